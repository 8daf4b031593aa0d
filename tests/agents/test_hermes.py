"""The adapter of Hermes Agent with a stand-in that plays what the real program printed."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from replay import ANSWER, Replays, call, fails, play, value
from standin import STREAMS

from rolecall.agents.adapters.hermes import DENIES, Hermes, hermes
from rolecall.agents.contract import AgentContract
from rolecall.agents.protocol import Usage
from rolecall.errors import UsageError
from rolecall.settings import capabilities

TEXT = '---\nstatus: done\n---\n\n  {"a": 1}\n\n**All** is well.'
READER = f"""#!{sys.executable} -IS
import json, re, sys
told = " ".join(sys.argv)
usage = sys.argv[sys.argv.index("--usage-file") + 1]
prompt = open(re.search(r"/\\S+/prompt\\.md", told)[0], encoding="utf-8").read()
print(len(prompt), prompt[-5:])
json.dump({{"session_id": "s-9", "completed": True}}, open(usage, "w"))
"""


def session_in(stream: str) -> str:
    text = (STREAMS / "hermes" / f"{stream}.jsonl").read_text(encoding="utf-8")
    found = re.search(r"\d{8}_\d{6}_\w{6}", text)
    assert found
    return found[0]


class TestHermesKeepsTheContract(Replays):
    agent = hermes()
    session = session_in("answer")


def test_the_prompt_is_a_file_of_the_run_that_the_program_is_told_to_read(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text(READER, encoding="utf-8")
    program.chmod(0o755)
    agent = hermes(executable=str(program))
    reply, _ = AgentContract()._run(agent, tmp_path, prompt="Zeile ü\n" * 131_072 + "end ü")
    assert reply.text == f"{8 * 131_072 + 5} end ü"
    seen = call(hermes(env={"HERMES_HOME": "/h"}), tmp_path / "call")
    (path,) = re.findall(r"/\S+/prompt\.md", str(value(seen, "--oneshot")))
    assert "The prompt." not in " ".join(seen["argv"])
    assert not Path(path).exists()
    assert (seen["env"]["KEPT"], seen["env"]["HERMES_HOME"]) == ("1", "/h")


def test_a_new_session_leaves_its_figures_and_an_old_one_is_resumed(tmp_path: Path) -> None:
    new = call(hermes(model="a/b"), tmp_path)
    assert (value(new, "--model"), "chat" in new["argv"]) == ("a/b", False)
    assert value(new, "--usage-file")
    old = call(hermes(args=("--max-turns", "5")), tmp_path / "old", session="s-1", stream="resumed")
    assert old["argv"][0] == "chat"
    assert (value(old, "--resume"), value(old, "--max-turns")) == ("s-1", "5")
    assert {"--quiet", "--yolo", "--query"} <= set(old["argv"])
    assert "--toolsets" not in {*new["argv"], *old["argv"]}


@pytest.mark.parametrize("restriction", ["no_file_edit", "no_shell_exec"])
@pytest.mark.parametrize("session", [None, "s-1"])
def test_a_restricted_role_has_only_the_toolsets_that_are_left(
    tmp_path: Path, restriction: str, session: str | None
) -> None:
    stream = "resumed" if session else "answer"
    seen = call(hermes(), tmp_path, capabilities=(restriction,), session=session, stream=stream)
    left = set(str(value(seen, "--toolsets")).split(","))
    denied = {one for name in capabilities.RESTRICTIONS[restriction] for one in DENIES[name]}
    assert left & {"file", "terminal", "code_execution"} == {"file", "terminal", "code_execution"} - denied
    assert {"delegation", "cronjob", "skills", "browser"}.isdisjoint(left)


@pytest.mark.parametrize("restrictions", [("read_only",), ("no_file_edit", "no_shell_exec")])
def test_it_cannot_be_denied_all_that_it_reads_its_prompt_with(
    tmp_path: Path, restrictions: tuple[str, ...]
) -> None:
    assert Hermes.deniable == set(DENIES) == {*capabilities.FILES, *capabilities.SHELL}
    with pytest.raises(UsageError) as caught:
        call(hermes(), tmp_path, capabilities=restrictions)
    assert caught.value.hint


def test_an_answer_comes_with_session_and_usage(tmp_path: Path) -> None:
    reply, recorder = play(hermes(), tmp_path, "answer")
    assert (reply.text, reply.session, reply.ending) == (ANSWER, session_in("answer"), "completed")
    assert reply.usage == Usage(100, 7, 40, None, 1)
    assert (len(recorder.bodies("usage")), reply.turns) == (1, ())


def test_an_answer_is_kept_as_it_was_printed_without_the_warnings_before_it(tmp_path: Path) -> None:
    assert play(hermes(), tmp_path, "lines")[0].text == TEXT
    resumed, _ = play(hermes(), tmp_path / "resumed", "lines-resumed", session="s-1")
    assert (resumed.text, resumed.session) == (TEXT, session_in("lines-resumed"))
    assert resumed.usage is None


def test_a_cost_is_told_where_it_is_known(tmp_path: Path) -> None:
    figures = {"session_id": "s", "input_tokens": 1, "estimated_cost_usd": 0.25, "cost_status": "estimated"}
    reply, _ = play(hermes(), tmp_path, "yes\n", ending={"leaves": {"usage.json": figures}})
    assert reply.usage == Usage(1, cost=0.25)


def test_a_run_that_stopped_before_it_was_done_is_a_limit(tmp_path: Path) -> None:
    figures = {"session_id": "s", "completed": False, "failed": False}
    reply, _ = play(hermes(), tmp_path, "So far.\n", ending={"leaves": {"usage.json": figures}})
    assert (reply.text, reply.ending) == ("So far.", "limit")


def test_the_endings_that_are_no_answer(tmp_path: Path) -> None:
    api = fails(hermes(), tmp_path / "api", "api-failure")
    assert (api.ending, str(api)) == ("api_failure", "HTTP 401: the key is wrong")
    resumed = fails(hermes(), tmp_path / "resumed", "api-failure-resumed", session="s-1")
    assert (resumed.ending, resumed.session) == ("api_failure", session_in("api-failure-resumed"))
    lost = fails(hermes(), tmp_path / "lost", "session-lost", session="s-1")
    assert (lost.ending, lost.is_session_lost) == ("failed", True)
    silent = fails(hermes(), tmp_path / "silent", "\n", ending={"exit": 0})
    assert silent.ending == "interrupted"
    killed = fails(hermes(), tmp_path / "killed", "\n", ending={"exit": -15})
    assert killed.ending == "killed"
    broken = {"leaves": {"usage.json": {"failed": True, "failure": "no provider"}}, "exit": 1}
    error = fails(hermes(), tmp_path / "broken", "\n", ending=broken)
    assert error.ending == "failed"
