from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from rolecall.agents import resolve
from rolecall.agents.adapters.scripted import scripted
from rolecall.agents.contract import ANSWER, WRITTEN, AgentContract, Recorder, context_for
from rolecall.agents.protocol import Agent, PastStep, Reply, ToolCall, Usage, ask
from rolecall.errors import AgentError, NotFound, UsageError
from rolecall.settings import yaml12

ENV = {"PATH": "/usr/local/bin:/usr/bin:/bin"}


@dataclass(frozen=True)
class Past:
    role: str
    output: Mapping[str, Any] = field(default_factory=dict)
    body: str = ""


def script(folder: Path, *entries: Any, **more: Any) -> Agent:
    path = folder.parent / f"{folder.name}.script.json"
    path.write_text(json.dumps({"roles": {"worker": list(entries)}, **more}), encoding="utf-8")
    return scripted(path)


def run(agent: Agent, workdir: Path, *, recorder: Recorder | None = None, **changes: Any) -> Reply:
    async def scene() -> Reply:
        context = replace(context_for(workdir, recorder or Recorder(), env=ENV), **changes)
        return await ask(agent, "Go on.", context=context)

    return asyncio.run(scene())


class TestScriptedKeepsTheContract(AgentContract):
    session = "s-1"

    def answering(self, workdir: Path) -> Agent:
        return script(
            workdir, {"answer": ANSWER, "session": "s-1", "emit": [{"kind": "text", "text": "on it"}]}
        )

    def hanging(self, workdir: Path) -> Agent:
        return script(workdir, {"hang": True, "emit": [{"kind": "text", "text": "thinking"}]})

    def timing_out(self, workdir: Path) -> Agent:
        return script(workdir, {"fail": {"ending": "timeout", "reason": "too slow"}})

    def missing(self, workdir: Path) -> tuple[Agent, str]:
        return script(workdir, {"run": [["no-such-agent"]]}), "no-such-agent"

    def writing(self, workdir: Path) -> Agent:
        return script(workdir, {"edit": {WRITTEN: "text"}, "answer": "done"})


def test_each_visit_of_a_role_takes_the_next_entry(tmp_path: Path) -> None:
    agent = script(tmp_path, {"answer": "first"}, {"answer": "second"})
    assert run(agent, tmp_path).text == "first"
    assert run(agent, tmp_path, steps=[Past("other"), Past("worker"), Past("other")]).text == "second"
    assert run(agent, tmp_path).text == "first"


def test_a_visit_beyond_the_last_entry_is_an_error_unless_it_repeats(tmp_path: Path) -> None:
    beyond = [Past("worker")] * 3
    with pytest.raises(AgentError, match="only 1 entries for role 'worker'"):
        run(script(tmp_path, {"answer": "once"}), tmp_path, steps=beyond)
    assert (
        run(script(tmp_path, {"answer": "ever"}, after_last="repeat"), tmp_path, steps=beyond).text == "ever"
    )


class Counted(Sequence[PastStep]):
    """A long chain that counts how much of it is read."""

    def __init__(self) -> None:
        self.read = 0

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: Any) -> Any:
        self.read += 1
        return Past("worker")

    def __reversed__(self) -> Iterator[PastStep]:
        return (self[index] for index in range(len(self) - 1, -1, -1))


def test_a_long_thread_is_read_no_further_than_the_script_goes(tmp_path: Path) -> None:
    steps = Counted()
    agent = script(tmp_path, {"answer": "1"}, {"answer": "2"}, {"answer": "3"}, after_last="repeat")
    assert run(agent, tmp_path, steps=steps).text == "3"
    assert steps.read == 2


def test_asking_the_same_visit_again_takes_its_own_entries(tmp_path: Path) -> None:
    agent = script(tmp_path, {"answer": "wrong", "again": [{"answer": "better"}]}, {"answer": "next visit"})
    assert [run(agent, tmp_path, attempt=n).text for n in range(3)] == ["wrong", "better", "better"]


def test_a_role_the_script_does_not_know_is_named(tmp_path: Path) -> None:
    with pytest.raises(AgentError, match="nothing for role 'critic'") as caught:
        run(script(tmp_path, {"answer": "x"}), tmp_path, role="critic")
    assert "worker" in caught.value.hint


def test_output_and_body_become_frontmatter_that_reads_back_the_same(tmp_path: Path) -> None:
    output = {
        "$status": "done",
        "n": 3,
        "odd": "1e3",
        "yes": "no",
        "list": ["a: b", None, 1.5],
        "text": "ü\n---\n\x7f",
    }
    reply = run(script(tmp_path, {"output": output, "body": "The rest.\n"}), tmp_path)
    opening, front, body = reply.text.split("---\n", 2)
    assert (opening, body) == ("", "\nThe rest.\n")
    assert yaml12.load(front) == yaml.safe_load(front) == output
    assert "$status: done\n" in front
    assert 'odd: "1e3"\n' in front


@pytest.mark.parametrize("output", ["meta", "frontmatter"])
def test_older_words_for_output_and_body_are_read(tmp_path: Path, output: str) -> None:
    older = run(script(tmp_path, {output: {"status": "done"}, "content": "Fixed."}), tmp_path)
    assert (
        older.text == run(script(tmp_path, {"output": {"status": "done"}, "body": "Fixed."}), tmp_path).text
    )


def test_edits_write_and_replace_files_and_are_told_as_tool_calls(tmp_path: Path) -> None:
    (tmp_path / "calc.py").write_text("a - b\n")
    recorder = Recorder()
    edit = {"calc.py": {"old": "a - b", "new": "a + b"}, "new/deep.txt": "x"}
    reply = run(script(tmp_path, {"edit": edit, "answer": "ok"}), tmp_path, recorder=recorder)
    assert (tmp_path / "calc.py").read_text() == "a + b\n"
    assert (tmp_path / "new/deep.txt").read_text() == "x"
    assert reply.files == ("calc.py", "new/deep.txt")
    assert [call.arguments["path"] for call in reply.turns[0].tool_calls] == ["calc.py", "new/deep.txt"]
    assert [body["name"] for body in recorder.bodies("tool_call")] == ["edit", "edit"]


@pytest.mark.parametrize(
    "path", ["../outside.txt", "{root}/outside.txt", "link/outside.txt", "file-link", "."]
)
def test_an_edit_outside_the_work_folder_is_refused(tmp_path: Path, path: str) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "link").symlink_to(tmp_path)
    (work / "file-link").symlink_to(tmp_path / "outside.txt")
    agent = script(work, {"edit": {path.format(root=tmp_path): "x"}})
    with pytest.raises(AgentError, match=r"outside the work folder|the work folder itself"):
        run(agent, work)
    assert not (tmp_path / "outside.txt").exists()


@pytest.mark.parametrize("content", ["twice twice", "never"])
def test_a_replacement_that_does_not_fit_exactly_once_changes_nothing(tmp_path: Path, content: str) -> None:
    (tmp_path / "f").write_text(content)
    with pytest.raises(AgentError, match=r"times, not once: 'twice'"):
        run(script(tmp_path, {"edit": {"f": {"old": "twice", "new": "x"}}}), tmp_path)
    assert (tmp_path / "f").read_text() == content


def test_commands_run_in_the_work_folder_after_the_edits(tmp_path: Path) -> None:
    entry = {
        "edit": {"f": "seen"},
        "run": [["cat", "f"], {"argv": ["sh", "-c", "exit 1"], "exit": 1}],
        "answer": "ok",
    }
    calls = run(script(tmp_path, entry), tmp_path).turns[0].tool_calls
    assert ToolCall("run", {"argv": ["cat", "f"]}, "seen") in calls


def test_a_command_that_ends_otherwise_than_scripted_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(AgentError, match=r"should exit with 0: .*status 7"):
        run(script(tmp_path, {"run": [["sh", "-c", "exit 7"]]}), tmp_path)


def test_session_and_usage_are_reported_live_and_kept_on_failure(tmp_path: Path) -> None:
    entry = {
        "session": "s",
        "usage": {"input_tokens": 5},
        "answer": "half",
        "fail": {"ending": "api_failure"},
    }
    recorder = Recorder()
    with pytest.raises(AgentError) as caught:
        run(script(tmp_path, entry), tmp_path, recorder=recorder)
    kept = caught.value
    assert (kept.ending, kept.text, kept.session, kept.usage) == ("api_failure", "half", "s", Usage(5))
    assert [kind for kind, _ in recorder.events] == ["session", "usage"]


def test_a_refusal_is_a_reply(tmp_path: Path) -> None:
    entry = {"answer": "I will not.", "fail": {"ending": "refused", "reason": "policy"}}
    reply = run(script(tmp_path, entry), tmp_path)
    assert (reply.text, reply.ending, reply.reason) == ("I will not.", "refused", "policy")


def test_a_script_may_be_yaml_or_json_and_named_in_a_spec(tmp_path: Path) -> None:
    content = {"roles": {"worker": [{"answer": "yes 😀"}]}}
    for path, text in (
        (tmp_path / "a: b.json", json.dumps(content)),
        (tmp_path / "a.yaml", yaml.safe_dump(content)),
    ):
        path.write_text(text)
        assert run(resolve(f"scripted:{path}"), tmp_path).text == "yes 😀"


def test_a_script_that_is_not_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text("{")
    with pytest.raises(UsageError, match=r"s\.json:1:2: error: not valid JSON"):
        scripted(tmp_path / "s.json")
    (tmp_path / "s.json").write_text(
        '{"roles": {"w": [\n\t{"answer": "\\ud83d\\ude00", "boddy": "x"},\n 5]}, "x": 1}'
    )
    with pytest.raises(UsageError) as caught:
        scripted(tmp_path / "s.json")
    places = [line.split(": ")[0].rpartition("s.json:")[2] for line in caught.value.message.splitlines()[1:]]
    assert places == ["2:29", "3:2", "3:7"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("roles: {worker: [{anser: x}]}", "'anser' is not a key of an entry"),
        ("roles: {worker: {answer: x}}", "roles.worker must be a list, not a mapping"),
        ("role: {}", "'role' is not a key of a script"),
        ("[]", "must be a mapping"),
        ("roles: [", "script.yaml"),
        ("roles: {w: []}\nroles: {}", "roles"),
        ("roles: {}\nafter_last: loop", "after_last must be one of error, repeat"),
        ("roles: {w: [{fail: {ending: tired}}]}", "not 'tired'"),
        ("roles: {w: [{emit: [{kind: song}]}]}", "not 'song'"),
        ("roles: {w: [{run: [ls -l]}]}", "run.0 must be a list of words"),
        ("roles: {w: [{run: [[]]}]}", "begins with a program"),
        ("roles: {w: [{answer: x, body: y}]}", "both an answer"),
        ("roles: {w: [{edit: {f: {old: x}}}]}", "'new' is missing"),
        ("roles: {w: [{usage: {tokens: 1}}]}", "'tokens' is not a key of usage"),
        ("roles: {w: [{again: [{x: 1}]}]}", "'x' is not a key of an entry"),
    ],
)
def test_a_wrong_script_is_refused_before_the_run(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "script.yaml"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        scripted(path)
    assert problem in caught.value.message
    assert str(path) in caught.value.message


def test_a_missing_script_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"nowhere\.yaml"):
        resolve(f"scripted:{tmp_path}/nowhere.yaml")
    with pytest.raises(UsageError, match="needs a file"):
        resolve("scripted")
