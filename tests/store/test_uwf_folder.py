"""A folder that uwf wrote, used as a store: both programs read what either wrote."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import pytest
from uwffolder import CANCELLED, DONE, FRESH, IDLE, Folder, filled, read_thread

if TYPE_CHECKING:
    from conftest import Rolecall

SAYS = "command:printf %s '---\n$status: again\nn: 7\n---\nSaid.'"
AGENT = """
    import json, subprocess, sys

    given = dict(zip(sys.argv[1::2], sys.argv[2::2]))
    thread, role = given["--thread"], given["--role"]

    def uwf(*words, text=None):
        done = subprocess.run([UWF, *words, "--format", "json"], input=text, capture_output=True, text=True, check=True)
        return json.loads(done.stdout)

    card = uwf("thread", "show", thread)
    steps = uwf("thread", "steps", thread)["steps"]
    output_type = uwf("cas", "get", card["workflow"])["payload"]["roles"][role]["frontmatter"]
    output = uwf("cas", "put", output_type, json.dumps({"$status": "again", "n": len(given["--prompt"])}))["hash"]
    turn = uwf("cas", "put", OBJECT, json.dumps({"role": "assistant", "content": "All mine."}))["hash"]
    detail = uwf("cas", "put", OBJECT, json.dumps({"sessionId": "s", "turns": [turn]}))["hash"]
    step = {
        "start": steps[0]["hash"], "prev": card["head"] if len(steps) > 1 else None, "role": role,
        "output": output, "detail": detail, "agent": "uwf-mine",
    }
    CHANGE
    schema = {"title": "StepNode", "type": "object", "required": list(step)}
    kind = uwf("cas", "schema", "put", "-", text=json.dumps(schema))["hash"]
    print("working")
    print(json.dumps({"stepHash": uwf("cas", "put", kind, json.dumps(step))["hash"]}))
"""


@pytest.fixture
def shared(tmp_path: Path, rolecall: Rolecall, monkeypatch: pytest.MonkeyPatch) -> Folder:
    """A folder of uwf's that is the store; its threads work in a folder that is there, outside any repository."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("uwffolder.CWD", str(tmp_path))
    folder = filled(tmp_path / "uwf")
    monkeypatch.setenv("ROLECALL_STORE", f"files:{folder.root}")
    return folder


def head_of(folder: Folder, name: str) -> str:
    found = re.search(rf'{name}"?: "?([0-9A-Z]{{13}})', (folder.root / "threads.yaml").read_text())
    assert found is not None
    return found[1]


def configure(rolecall: Rolecall, tmp_path: Path, change: str = "") -> None:
    """An agent written for uwf, configured as uwf's configuration does it."""
    uwf = str(Path(sys.executable).parent / "uwf")
    program = dedent(AGENT).replace("UWF", repr(uwf)).replace("OBJECT", repr("944RT37WX1PQ5"))
    (tmp_path / "mine.py").write_text(program.replace("CHANGE", change))
    settings = {
        "agents": {"mine": {"command": sys.executable, "args": [str(tmp_path / "mine.py")]}},
        "defaultAgent": "mine",
    }
    rolecall.home.mkdir(exist_ok=True)
    (rolecall.home / "config.yaml").write_text(json.dumps(settings))


def test_uwf_reads_a_thread_of_its_own_after_a_step_of_ours(rolecall: Rolecall, shared: Folder) -> None:
    before = read_thread(shared.root, head_of(shared, IDLE))
    rolecall("thread", "step", IDLE, "--agent", SAYS, check=0)
    after = read_thread(shared.root, head_of(shared, IDLE))
    assert after[:-1] == before
    assert (after[-1]["role"], after[-1]["output"]) == ("coder", {"$status": "again", "n": 7})
    assert "Said." in after[-1]["text"] and after[-1]["edgePrompt"] == "Again."
    shown = rolecall.json("thread", "step-details", f"{IDLE}#3", "--format", "json")
    assert (shown["number"], shown["body"]) == (3, "Said.")


def test_uwf_reads_a_thread_that_was_started_forked_and_answered_here(
    rolecall: Rolecall, shared: Folder
) -> None:
    words = ("thread", "start", "fix-issue", "-p", "New here.", "--limit", "steps=5", "--agent", SAYS)
    name = rolecall.json(*words, "--format", "json")["thread"]
    assert read_thread(shared.root, head_of(shared, name)) == []
    rolecall("thread", "run", name, "--steps", "2", check=0)
    assert [step["role"] for step in read_thread(shared.root, head_of(shared, name))] == ["planner", "coder"]
    fork = rolecall.json("thread", "fork", name, "--at", "1", "-p", "Otherwise.", "--format", "json")[
        "thread"
    ]
    assert [step["role"] for step in read_thread(shared.root, head_of(shared, fork))] == ["planner", "$FORK"]
    assert rolecall.json("thread", "show", fork, "--format", "json")["limits"] == {"steps": 5}


def test_what_a_command_printed_is_a_detail(rolecall: Rolecall, shared: Folder) -> None:
    rolecall("thread", "step", FRESH, "--agent", SAYS, check=0)
    (step,) = rolecall.json("thread", "steps", FRESH, "--format", "json")["steps"][1:]
    kept = rolecall.json("cas", "get", step["detail"], "--format", "json")["payload"]
    answer = rolecall.json("cas", "get", kept["turns"][-1], "--format", "json")["payload"]
    assert "Said." in answer["content"]


def test_an_agent_of_uwf_plays_a_role_with_the_fields_it_knows(
    rolecall: Rolecall, shared: Folder, tmp_path: Path
) -> None:
    configure(rolecall, tmp_path)
    rolecall("thread", "run", FRESH, "--steps", "2", check=0)
    one, two = (
        rolecall.json("thread", "step-details", f"{FRESH}#{number}", "--format", "json") for number in (1, 2)
    )
    assert (one["role"], one["output"]["n"], one["body"], one["agent"]) == (
        "planner",
        len("Plan it."),
        "All mine.",
        "mine",
    )
    assert [turn["text"] for turn in two["turns"]] == ["All mine."]
    assert rolecall.json("thread", "show", FRESH, "--format", "json")["usage"]["steps"] == 2
    assert [step["text"] for step in read_thread(shared.root, head_of(shared, FRESH))] == ["All mine."] * 2
    record = rolecall.json("cas", "get", one["detail"], "--format", "json")["payload"]
    assert rolecall.json("cas", "get", record["given"], "--format", "json")["payload"]["agent"] == "uwf-mine"


def test_the_detail_of_such_a_step_may_be_a_text(rolecall: Rolecall, shared: Folder, tmp_path: Path) -> None:
    configure(rolecall, tmp_path, "step['detail'] = uwf('cas', 'put-text', 'My log.')['hash']")
    rolecall("thread", "run", FRESH, "--steps", "1", check=0)
    shown = rolecall.json("thread", "step-details", f"{FRESH}#1", "--format", "json")
    assert (shown["body"], [turn["text"] for turn in shown["turns"]]) == ("My log.", ["My log."])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("step['role'] = 'coder'", "role is 'coder', not 'planner'"),
        ("step['prev'] = step['start']", "prev is"),
        (
            """step['output'] = uwf('cas', 'put', '944RT37WX1PQ5', '{"n": "x"}')['hash']""",
            "its output is not what planner must deliver",
        ),
        ("step['output'] = '0000000000000'", "its output is not in the store"),
        ("step['detail'] = '0000000000000'", "its detail is not in the store"),
        ("step['output'] = {'n': 1}", "output must be a text"),
        ("step['detail'] = 'my notes'", "its detail is not in the store"),
        (
            "step['detail'] = uwf('cas', 'put', '944RT37WX1PQ5', '{\"turns\": [\"0000000000000\"]}')['hash']",
            "node 0000000000000 is not in the store",
        ),
        ("step['number'] = 1", "its type is not that of a step"),
        (
            "step['detail'] = uwf('cas', 'put', '944RT37WX1PQ5', '{\"turns\": 5}')['hash']",
            "reading the step of 'mine' failed",
        ),
    ],
)
def test_a_step_of_such_an_agent_that_is_not_the_one_asked_for_is_refused(
    rolecall: Rolecall, shared: Folder, tmp_path: Path, change: str, said: str
) -> None:
    configure(rolecall, tmp_path, change)
    done = rolecall("thread", "run", FRESH, "--steps", "1")
    assert said in done.stdout + done.stderr
    assert read_thread(shared.root, head_of(shared, FRESH)) == []


def test_a_program_named_with_external_gets_thread_and_role_as_its_last_words(
    rolecall: Rolecall, shared: Folder, tmp_path: Path
) -> None:
    (tmp_path / "told.py").write_text("import sys; sys.exit(' '.join(sys.argv[1:]))")
    agent = f"external:{shlex.join([sys.executable, str(tmp_path / 'told.py')])}"
    done = rolecall("thread", "step", FRESH, "--agent", agent)
    assert f"{FRESH} planner" in done.stdout + done.stderr


def listed(rolecall: Rolecall, *words: str) -> dict[str, Any]:
    return {entry["thread"]: entry for entry in rolecall.json("thread", "list", *words, "--format", "json")}


def test_a_bare_command_is_told_how_a_program_is_named(rolecall: Rolecall, shared: Folder) -> None:
    done = rolecall("thread", "step", FRESH, "--agent", "my-agent --fast", check=3)
    assert "`command:my-agent --fast`" in done.stderr and "`external:my-agent --fast`" in done.stderr


@pytest.mark.parametrize(
    "settings",
    [
        {"agents": {"hermes": {"command": "uwf-hermes", "args": []}}, "defaultAgent": "hermes"},
        {"defaultAgent": "uwf-hermes"},
    ],
)
def test_an_agent_of_uwf_is_played_by_an_adapter_of_ours_with_a_note(
    rolecall: Rolecall, shared: Folder, settings: dict[str, Any]
) -> None:
    rolecall.home.mkdir()
    (rolecall.home / "config.yaml").write_text(json.dumps(settings))
    done = rolecall("thread", "start", "fix-issue", "-p", "New.", check=0)
    assert done.stderr.count("note: the built-in adapter 'hermes' replaces uwf-hermes") == 1
    assert "there is no agent" not in done.stderr


def test_arguments_for_an_agent_of_uwf_are_not_dropped_in_silence(rolecall: Rolecall, shared: Folder) -> None:
    rolecall.home.mkdir()
    settings = {"agents": {"h": {"command": "uwf-hermes", "args": ["--fast"]}}, "defaultAgent": "h"}
    (rolecall.home / "config.yaml").write_text(json.dumps(settings))
    done = rolecall("thread", "start", "fix-issue", "-p", "New.", check=0)
    assert "has arguments for uwf-hermes" in done.stderr


def test_threads_of_uwf_are_listed_and_shown_with_all_that_ours_have(
    rolecall: Rolecall, shared: Folder
) -> None:
    entries = listed(rolecall, "--all")
    seen = {
        name: tuple(entries[name][key] for key in ("status", "name", "title", "steps", "currentRole"))
        for name in (IDLE, FRESH, DONE, CANCELLED)
    }
    assert seen == {
        IDLE: ("idle", "fix-issue", "Fix the crash.", 2, "coder"),
        FRESH: ("idle", "fix-issue", "Add a flag.", 0, "planner"),
        DONE: ("completed", "fix-issue", "Write docs.", 3, None),
        CANCELLED: ("killed", "fix-issue", "Never mind.", 1, None),
    }
    for name in seen:
        card = rolecall.json("thread", "show", name, "--format", "json")
        assert tuple(card[key] for key in ("status", "name", "title", "steps", "currentRole")) == seen[name]
        assert card["workflow"] == entries[name]["workflow"] == shared.workflow
    assert set(listed(rolecall, "--workflow", "fix-issue")) == {IDLE, FRESH}
    assert set(listed(rolecall, "--workflow", shared.workflow)) == {IDLE, FRESH}
    assert listed(rolecall, "--workflow", "other") == {}
    rolecall("thread", "step", FRESH, "--agent", SAYS, check=0)
    assert listed(rolecall)[FRESH]["title"] == "Add a flag."


def test_a_fork_at_the_start_has_the_limits_of_its_own_thread(rolecall: Rolecall, shared: Folder) -> None:
    """Threads of the same workflow, task and folder share one start."""
    words = ("thread", "start", "fix-issue", "-p", "New here.", "--format", "json")
    free, tight, wide = (
        rolecall.json(*words, *limits)["thread"]
        for limits in ((), ("--limit", "steps=5"), ("--limit", "steps=9"))
    )
    start = head_of(shared, free)
    assert head_of(shared, tight) == start

    def limits_of_fork(*where: str) -> Any:
        fork = rolecall.json("thread", "fork", *where, "--format", "json")["thread"]
        return rolecall.json("thread", "show", fork, "--format", "json")["limits"]

    assert limits_of_fork(free, "--at", "start") == {}
    assert limits_of_fork(wide, "--at", "start") == {"steps": 9}
    assert limits_of_fork(start) == {"steps": 5}
