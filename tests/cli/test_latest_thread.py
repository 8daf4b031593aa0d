"""A command without an id means the latest thread of this folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from terminal import Terminal

if TYPE_CHECKING:
    from conftest import Rolecall

FLOW = """
name: two-steps
roles:
  writer: {prompt: Write., schema: {type: object}, agent: human}
  asker: {prompt: Ask., schema: {type: object}, agent: human}
graph: {$START: writer, writer: asker, asker: $END}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "shop"
    (place / ".git").mkdir(parents=True)
    (place / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    (place / "src").mkdir()
    (place / "two-steps.yaml").write_text(FLOW)
    return place


def start(rolecall: Rolecall, place: Path, prompt: str = "Write it") -> str:
    flow = next(
        str(one / "two-steps.yaml") for one in (place, *place.parents) if (one / "two-steps.yaml").exists()
    )
    return str(rolecall.json("thread", "start", flow, "-p", prompt, cwd=place)["thread"])


def test_the_latest_thread_of_the_folder_is_meant_and_named(rolecall: Rolecall, folder: Path) -> None:
    other = folder / "other"
    other.mkdir()
    first, latest, elsewhere = (start(rolecall, place) for place in (folder, folder, other))
    for words in (["show"], ["steps"], ["read"], ["show", "--members"]):
        done = rolecall("thread", *words, cwd=folder / "src", check=0)  # below the folder, in its repository
        assert done.stderr == f"thread {latest} · Write it\n", words
        assert done.stdout == rolecall("thread", *words, latest, cwd=folder, check=0).stdout
    assert rolecall.json("thread", "show", cwd=other)["thread"] == elsewhere
    assert rolecall.json("thread", "show", first, cwd=folder)["thread"] == first
    refused = rolecall("thread", "show", "", cwd=folder, check=2).stderr  # an empty variable
    assert "'' is too short for a thread" in refused


def test_a_thread_is_answered_run_and_forked_without_an_id(rolecall: Rolecall, folder: Path) -> None:
    latest = start(rolecall, folder)
    assert rolecall("thread", "run", cwd=folder, check=7).stderr.startswith(f"thread {latest} ")
    answered = rolecall("thread", "answer", "--output", "{}", "--run", "--json", cwd=folder, check=7)
    assert json.loads(answered.stdout.splitlines()[-1])["currentRole"] == "asker"
    assert rolecall.json("thread", "step-details", cwd=folder)["role"] == "writer"
    page = folder / "page.md"
    assert rolecall.json("thread", "export", "--full", str(page), cwd=folder)["thread"] == latest
    words = ["thread", "export", latest, "--force", str(page)]  # an option between the two words
    assert rolecall.json(*words, cwd=folder)["file"] == str(page)
    fork = rolecall.json("thread", "fork", "--at", "1", cwd=folder)["thread"]
    assert rolecall.json("thread", "show", cwd=folder)["forkedThread"] == latest
    assert rolecall.json("thread", "show", cwd=folder)["thread"] == fork


def test_the_thread_that_waits_is_answered_and_resumed_without_an_id(
    rolecall: Rolecall, folder: Path
) -> None:
    waits, ended = start(rolecall, folder, "Wait"), start(rolecall, folder)
    rolecall("thread", "run", waits, cwd=folder, check=7)
    rolecall("thread", "kill", ended, cwd=folder, check=0)
    assert rolecall.json("thread", "answer", "--output", "{}", cwd=folder)["thread"] == waits
    rolecall("thread", "run", waits, cwd=folder, check=7)
    assert rolecall.json("thread", "resume", cwd=folder)["thread"] == waits
    refused = rolecall("thread", "resume", cwd=folder, check=2).stderr  # nobody waits
    assert f"thread {ended} is killed" in refused


def test_what_cannot_be_undone_needs_an_id_or_a_yes(
    rolecall: Rolecall, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    latest = start(rolecall, folder)
    for words, why in (
        (["kill"], "killing a thread cannot be undone"),
        (["folder", "remove"], "removing its folders cannot be undone"),
        (["folder", "merge"], "merging changes your branch"),
    ):
        refused = rolecall("thread", *words, cwd=folder, check=2).stderr
        assert refused == (
            f"rolecall: no thread is named, and {why}\n"
            f"  The latest of this folder is {latest} · Write it. Name it to use it.\n"
        )
    monkeypatch.chdir(folder)
    for answer, code in (("", 2), ("y", 0)):
        terminal = Terminal("thread", "kill", home=rolecall.home)
        terminal.expect("Do it? [y/N]")
        terminal.type(f"{answer}\n")
        assert terminal.close() == code
    assert rolecall.json("thread", "show", cwd=folder)["status"] == "killed"


def test_a_folder_without_threads_says_so(rolecall: Rolecall, folder: Path, tmp_path: Path) -> None:
    start(rolecall, folder)
    refused = rolecall("thread", "read", cwd=tmp_path, check=3).stderr
    assert refused == (
        "rolecall: no thread was started in this folder\n  Name one: `rolecall thread list --all` shows them all.\n"
    )


def test_threads_of_other_folders_are_listed_with_their_folder(
    rolecall: Rolecall, folder: Path, tmp_path: Path
) -> None:
    start(rolecall, folder)
    (tmp_path / "elsewhere").mkdir()
    assert "in shop: Write it" in rolecall(cwd=tmp_path / "elsewhere", check=0).stdout
    here = rolecall(cwd=folder / "src", check=0).stdout
    assert "Write it" in here and "in shop" not in here


def test_on_a_terminal_commands_to_type_need_no_id(
    rolecall: Rolecall, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    latest = start(rolecall, folder)
    assert f"continue: rolecall thread answer {latest} --run" in rolecall("thread", "run", cwd=folder).stderr
    monkeypatch.chdir(folder)
    terminal = Terminal("thread", "run", home=rolecall.home)
    assert terminal.close() == 7
    assert "continue: rolecall thread answer --run\r\n" in terminal.seen
    terminal = Terminal(home=rolecall.home)
    assert terminal.close() == 0
    assert (
        "next       rolecall thread answer --run  continue Write it\r\n           rolecall thread show "
        in terminal.seen
    )
