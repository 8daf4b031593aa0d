"""`rolecall lead`: a conversation in a real terminal and in a pipe, with an agent that follows a script."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from processes import gone
from tmux import Pane

from rolecall.cli.lead_view import Markdown, fold

if TYPE_CHECKING:
    from conftest import Rolecall

PROGRAM = str(Path(sys.executable).parent / "rolecall")
USAGE = {"input_tokens": 3000, "output_tokens": 400, "cost": 0.12, "turns": 1}
FIRST = {
    "emit": [
        {
            "kind": "text",
            "text": "# Where we are\n\nThe retry loop of the uploader never ends, which is why ",
        },
        {"kind": "text", "text": "the nightly job hangs.\n"},
        {"kind": "tool_call", "name": "Edit", "arguments": {"file_path": "FOLDER/upload.py"}},
    ],
    "body": "Which way do you want?",
    "session": "s",
    "usage": USAGE,
}
HANGS = {
    "emit": [{"kind": "session", "session": "s"}, {"kind": "text", "text": "It will take a while and"}],
    "hang": True,
    "again": [{"body": "It was the other way round.", "session": "s"}],
}
LAST = {"body": "Everything is said.", "session": "s"}

Talk = Callable[..., Pane]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "project"
    place.mkdir()
    subprocess.run(["git", "init", "--quiet", str(place)], check=True)
    script = {"roles": {"lead": [FIRST, HANGS, LAST]}, "after_last": "repeat"}
    (place / "script.json").write_text(json.dumps(script).replace("FOLDER", str(place)))
    monkeypatch.chdir(place)
    return place


@pytest.fixture
def talk(rolecall: Rolecall, project: Path, tmp_path: Path) -> Iterator[Talk]:
    panes: list[Pane] = []

    def begin(*words: str, columns: int = 80, at: Path = project, **env: str) -> Pane:
        folder = tmp_path / f"pane{len(panes)}"
        folder.mkdir()
        env = {"ROLECALL_HOME": str(rolecall.home), "LC_ALL": "C.UTF-8", "NO_COLOR": "1", **env}
        pane = Pane([PROGRAM, "lead", *words], folder=folder, cwd=at, env=env, columns=columns)
        panes.append(pane)
        return pane

    yield begin
    for pane in panes:
        pane.close()


AGENT = ("--agent", "scripted:script.json")


def threads(rolecall: Rolecall) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = rolecall.json("thread", "list", "--all")
    return found


# -- in a terminal --


def test_a_person_and_the_lead_take_turns(rolecall: Rolecall, talk: Talk, project: Path) -> None:
    pane = talk(*AGENT)
    pane.expect("/help explains keys")
    pane.expect_prompt("› ")
    pane.type("[pl")
    pane.expect("[plan]  Plan: research")  # the menu of completions
    pane.type("na] The nightly job hangs")
    pane.press("M-Enter")
    pane.type("[m] upload-retries: three retries are enough for the upload server")
    pane.press("Enter")
    screen = pane.expect("this conversation $0.12")
    assert "⚠ [plna] is not a tag. Did you mean [plan]?" in screen
    assert "› [plna] The nightly job hangs\n  [m] upload-retries" in screen
    assert (
        "The retry loop of the uploader never ends, which is why the nightly job hangs.\n  Edit upload.py\n"
        in screen
    )
    assert re.search(r"Which way do you want\?\nscripted:.* · 3,400 tokens · \$0\.12\n", screen)
    assert (project / ".nexus/memory/upload-retries.md").is_file()

    # Ctrl-C stops the turn, and words or an empty line go on.
    pane.expect_prompt("› ")
    pane.type("[run]")
    pane.press("Enter")
    pane.expect("Ctrl-C stops it")
    pane.press("C-c")
    pane.expect("Press Enter to let it try again, or write something else.")
    pane.expect_prompt("› ")
    pane.type("Not so fast")
    pane.press("Enter")
    pane.expect("It was the other way round.")
    pane.expect_prompt("› ")
    pane.type("half a sentence")
    pane.expect("› half a sentence")
    pane.press("C-c")  # clears the line, and does not leave
    pane.expect_prompt("› ")
    pane.press("C-d")
    screen = pane.expect("ended with 0")
    (thread,) = threads(rolecall)
    assert f"continue: rolecall lead --thread {thread['thread']}" in screen
    assert (
        thread["status"] == "suspended"
        and "# nx-run" in rolecall("thread", "read", "--quota", "90000").stdout
    )

    # The next one begins with what was said, and finds what was written before.
    pane = talk("--continue")
    screen = pane.expect("this conversation $0.12")
    assert "› [plna] The nightly job hangs\n" in screen and "› [run]\n\n› Not so fast\n" in screen
    assert "<rolecall>" not in screen and "upload-retries.md" not in screen
    pane.expect_prompt("› ")
    pane.press("Up", "Enter")
    pane.expect("Everything is said.")
    pane.expect("› Not so fast", count=2)
    pane.expect_prompt("› ")
    pane.type("/close")
    pane.press("Enter")
    pane.expect("the conversation has ended")
    pane.expect_prompt("› ")
    pane.press("C-d")
    pane.expect("ended with 0")
    assert [one["status"] for one in threads(rolecall)] == ["completed"]
    history = rolecall.home / "lead-history"
    assert "Not so fast" in history.read_text() and history.stat().st_mode & 0o777 == 0o600


def test_a_conversation_goes_on_after_its_process_was_killed(rolecall: Rolecall, talk: Talk) -> None:
    pane = talk(*AGENT, "Why does the job hang?")
    pane.expect("this conversation $0.12")
    pane.expect_prompt("› ")
    pane.type("Go on")
    pane.press("Enter")
    pane.expect("Ctrl-C stops it")
    other = talk("--continue")
    other.expect("Another process runs this conversation.")
    other.expect_prompt("› ")
    other.press("C-d")
    other.expect("ended with 0")
    pid = pane.pid
    os.kill(pid, signal.SIGKILL)
    gone(pid)
    pane.expect("ended with 137")

    pane = talk("--continue")
    screen = pane.expect("Press Enter to let it try again")
    assert "› Why does the job hang?\n\nWhich way do you want?\n\n› Go on\n" in screen
    pane.expect_prompt("› ")
    pane.press("Enter")
    pane.expect("It was the other way round.")
    pane.expect_prompt("› ")
    pane.type("/quit")
    pane.press("Enter")
    pane.expect("ended with 0")
    (thread,) = threads(rolecall)
    steps = rolecall.json("thread", "steps", thread["thread"])
    assert [step["role"] for step in steps["steps"][1:]] == ["lead", "user", "lead"]


def test_the_board_shows_what_runs_and_what_waits(rolecall: Rolecall, talk: Talk, project: Path) -> None:
    (project / "ask-first.yaml").write_text(
        "name: ask-first\nroles: {boss: {agent: human, prompt: Decide., schema: {type: object,"
        " properties: {status: {enum: [approved, rejected]}}, required: [status]}}}\n"
        "graph: {$START: boss, boss: $END}\n"
    )
    rolecall("run", "./ask-first.yaml", "-p", "May we ship it?", check=7)
    rolecall("run", "lead", "-p", "Count the stars", "--detach", *AGENT, check=0)  # nobody runs it
    rolecall("task", "add", "Retry less", "--context", "the loop", check=0)
    pane = talk(*AGENT)
    screen = pane.expect("tasks 0 of 1 done")
    assert "● lead · lead · " in screen and "Count the stars" in screen
    assert "1 thread waiting for you: /answer · tasks 0 of 1 done" in screen
    pane.expect_prompt("› ")
    pane.type("/board")
    pane.press("Enter")
    screen = pane.expect("○ 1 Retry less")
    asking = next(one["thread"] for one in threads(rolecall) if one["name"] == "ask-first")
    assert f"ask-first · May we ship it?: /answer {asking}" in screen
    pane.expect_prompt("› ")
    pane.type("/answer")
    pane.press("Enter")
    pane.expect("/answer approved or rejected: WORDS")
    pane.expect_prompt("› ")
    pane.type("/answer perhaps")
    pane.press("Enter")
    pane.expect("this does not say what boss must deliver")
    pane.expect_prompt("› ")
    pane.type(f"/answer {asking[-6:]} approved: ship it")
    pane.press("Enter")
    pane.expect("boss: approved\n  ship it")
    queued = next(one for one in threads(rolecall) if one["name"] == "lead")
    rolecall("thread", "kill", queued["thread"], check=0)
    pane.expect("✗ lead killed · Count the stars")
    pane.expect_prompt("› ")
    pane.type("/nonsense")
    pane.press("Enter")
    pane.expect("unknown command /nonsense; /help lists them")
    pane.expect_prompt("› ")
    pane.type("/help")
    pane.press("Enter")
    pane.expect("Ctrl-C stops the Lead's turn")
    pane.expect_prompt("› ")
    pane.press("C-d")
    pane.expect("ended with 0")


def test_an_agent_that_fails_leaves_the_conversation_open(talk: Talk, project: Path) -> None:
    fails = {"fail": {"ending": "failed", "reason": "the model is not there"}, "again": [LAST]}
    (project / "script.json").write_text(json.dumps({"roles": {"lead": [fails]}}))
    pane = talk(*AGENT, "Hello")
    screen = pane.expect("Press Enter to let it try again, or write something else.")
    assert "the model is not there" in screen
    pane.expect_prompt("› ")
    pane.press("Enter")
    pane.expect("Everything is said.")
    pane.expect_prompt("› ")
    pane.press("C-d")
    pane.expect("ended with 0")


def test_a_secret_is_masked_on_the_screen_and_in_the_history(
    rolecall: Rolecall, talk: Talk, project: Path
) -> None:
    key = "key-abcdef1234567890"
    emit = [{"kind": "text", "text": f"I saw {key[:9]}"}, {"kind": "text", "text": f"{key[9:]} there.\n"}]
    (project / "script.json").write_text(json.dumps({"roles": {"lead": [{"emit": emit, "body": "Done."}]}}))
    pane = talk(*AGENT, columns=120, MY_API_KEY=key)
    pane.expect("/help explains keys")
    pane.expect_prompt("› ")
    pane.type(f"Is {key} in use?")
    pane.press("Enter")
    screen = pane.expect("Done.")
    assert "I saw ***MASKED*** there." in screen and screen.count(key) == 1  # what was typed
    pane.expect_prompt("› ")
    pane.press("C-d")
    pane.expect("ended with 0")
    assert "+Is ***MASKED*** in use?" in (rolecall.home / "lead-history").read_text()


def test_without_an_agent_it_says_what_run_says(rolecall: Rolecall, talk: Talk) -> None:
    said = rolecall("run", "lead", "-p", "Hello", check=None).stderr
    pane = talk("Hello")
    pane.expect("rolecall: ")
    pane.expect_prompt("› ")
    pane.press("C-d")
    screen = pane.expect("ended with 0")
    assert " ".join(said.split()) in " ".join(screen.split())


def test_without_an_agent_it_says_so_before_anything_is_written(talk: Talk) -> None:
    pane = talk()
    pane.expect("You talk with the Lead")
    screen = pane.expect("no agent is named for the role 'lead'")
    pane.expect_prompt("› ")
    pane.type("/board")
    pane.press("Enter")
    pane.expect("nothing runs, and nothing waits for you")
    pane.expect_prompt("› ")
    pane.press("C-d")
    pane.expect("ended with 0")
    assert screen.index("You talk with the Lead") < screen.index("no agent is named")


def test_a_narrow_terminal_outside_a_project_is_enough(
    rolecall: Rolecall, talk: Talk, project: Path, tmp_path: Path
) -> None:
    place = tmp_path / "elsewhere"
    place.mkdir()
    pane = talk("[plan] Hello", "--agent", f"scripted:{project / 'script.json'}", columns=40, at=place)
    screen = pane.expect("this conversation $0.12")
    assert "The tag in this message had no" in screen
    assert "never\nends, which is why the nightly job\nhangs.\n" in screen
    pane.expect_prompt("› ")
    pane.type("/board")
    pane.press("Enter")
    pane.expect("nothing runs, and nothing waits for you\n")
    pane.expect_prompt("› ")
    pane.type("Go on")
    pane.press("Enter")
    pane.expect("It will take a while and")
    pane.press("C-c")
    pane.expect("Press Enter to let it try again, or\nwrite something else.")
    pane.expect_prompt("› ")
    pane.press("C-d")
    pane.expect("ended with 0")
    assert not (place / ".nexus").exists() and len(threads(rolecall)) == 1


def test_without_the_terminal_library_it_says_how_to_install_it(talk: Talk, tmp_path: Path) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "prompt_toolkit.py").write_text("raise ModuleNotFoundError(__name__, name=__name__)\n")
    pane = talk(*AGENT, columns=120, PYTHONPATH=str(hidden))
    screen = pane.expect("ended with 2")
    assert "needs the package 'prompt_toolkit'" in screen and "pip install 'rolecall[lead]'" in screen


# -- in a pipe --


@pytest.mark.usefixtures("project")
def test_a_pipe_takes_one_message_and_gets_the_answer(rolecall: Rolecall) -> None:
    done = rolecall("lead", *AGENT, input="Why does the job hang?\n", check=0)
    assert done.stdout == "Which way do you want?\n"
    (thread,) = threads(rolecall)
    assert done.stderr == f"continue: rolecall lead --thread {thread['thread']}\n"
    assert thread["title"] == "Why does the job hang?"

    done = rolecall("lead", "--thread", thread["thread"], check=2)  # it is our turn
    assert "the Lead waits for your message" in done.stderr
    assert "nothing was said" in rolecall("lead", check=2).stderr


@pytest.mark.usefixtures("project")
def test_words_and_a_pipe_make_one_message(rolecall: Rolecall, project: Path) -> None:
    (project / "script.json").write_text(json.dumps({"roles": {"lead": [LAST]}}))
    reply = rolecall.json("lead", "Is this complete?", *AGENT, input="+1 line\n")
    assert reply["answer"] == "Everything is said." and not reply["reason"]
    assert "Is this complete?\n\n+1 line" in rolecall("thread", "read", reply["thread"]).stdout


def test_a_failure_in_a_pipe_has_an_exit_code(rolecall: Rolecall, project: Path) -> None:
    fails = {"fail": {"ending": "failed", "reason": "the model is not there"}}
    (project / "script.json").write_text(json.dumps({"roles": {"lead": [fails]}}))
    done = rolecall("lead", "Hello", *AGENT, check=7)
    assert "the model is not there" in done.stderr and done.stdout.strip() == ""


@pytest.mark.usefixtures("project")
def test_only_a_conversation_with_the_lead_is_taken_up(rolecall: Rolecall) -> None:
    assert "no conversation with the Lead was begun" in rolecall("lead", "--continue", check=3).stderr
    rolecall("thread", "start", "answer-question", "-p", "Why?", "--agent", "human", check=0)
    (thread,) = threads(rolecall)
    done = rolecall("lead", "--thread", thread["thread"], check=2)
    assert "is not a conversation with the Lead but one of answer-question" in done.stderr


# -- its parts --


def test_text_is_folded_at_words_and_code_is_not() -> None:
    assert fold("- " + "word " * 20) == "- " + "word " * 14 + "word\n  word word word word word"
    assert fold("") == ""
    markdown = Markdown()
    code = "x = " + "'long text' " * 12
    assert [markdown.fold(line) for line in ("```python", code, "```")][1] == code
    assert "\n" in markdown.fold(code)


def test_nothing_of_the_terminal_library_is_imported_in_a_pipe() -> None:
    code = "import sys, rolecall.cli.lead; print([name for name in sys.modules if 'prompt_toolkit' in name])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
