"""What a person sees on a terminal while a thread runs, and at its end."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from terminal import Terminal

from rolecall.cli.group_view import gist, limits_line

if TYPE_CHECKING:
    from conftest import Rolecall

FLOW = """
name: write-poem
roles:
  writer: {prompt: Write., schema: {type: object}}
  editor: {prompt: Edit., schema: {type: object}}
graph: {$START: writer, writer: editor, editor: $END}
limits: {steps: 4, cost: 2}
"""
SCRIPT = """
roles:
  writer: [{edit: {poem: "roses\\n"}, output: {}, usage: {input_tokens: 900, output_tokens: 100, cost: 0.5}}]
  editor:
    - emit:
        - {kind: tool_call, name: Edit, arguments: {file_path: FOLDER/poem, old_string: roses, new_string: tulips}}
        - {kind: usage, input_tokens: 40, output_tokens: 2, cost: 0.25}
      hang: true
"""


GROUP_FLOW = """
name: write-poems
roles:
  writer: {prompt: Write., schema: {type: object}}
  editor: {prompt: Edit., schema: {type: object}}
  team: {roles: [writer, editor], at_once: 1, workdir: shared}
graph: {$START: team, team: $END}
limits: {steps: 4, cost: 2}
"""
GROUP_SCRIPT = """
roles:
  writer: [{output: {}, usage: {input_tokens: 900, output_tokens: 100, cost: 0.5}}]
  editor:
    - emit:
        - {kind: usage, input_tokens: 40, output_tokens: 2, cost: 0.25}
        - {kind: tool_call, name: Edit, arguments: {file_path: FOLDER/poems/of/the/sea/and/other/waters/the-tide.md}}
      hang: true
"""


@pytest.fixture
def poem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "poem"
    place.mkdir()
    (place / "write-poem.yaml").write_text(FLOW)
    (place / "script.yaml").write_text(SCRIPT.replace("FOLDER", str(place)))
    monkeypatch.chdir(place)
    return place


@pytest.mark.usefixtures("poem")
def test_a_terminal_shows_who_does_what_and_how_much_of_the_limits_is_used(rolecall: Rolecall) -> None:
    words = ("run", "./write-poem.yaml", "-p", "Write it", "--agent", "scripted:script.yaml")
    terminal = Terminal(*words, home=rolecall.home, path=os.environ["PATH"])
    terminal.expect("$0.75/$2.00")
    *_, step, now, doing, limits = terminal.screen()
    assert step.startswith("✓ 1 writer · ") and step.endswith(" · 1,000 tokens · $0.50")
    assert now.startswith("… editor · scripted:") and now.endswith(" · 42 tokens · $0.25")
    assert doing == "  Edit poem"
    assert limits == "  steps ██░░░░░░ 1/4 · cost ███░░░░░ $0.75/$2.00"
    terminal.type("\x03")
    assert terminal.close() == 130
    assert terminal.screen()[-2] == "continue: rolecall thread run"


def test_a_terminal_shows_the_same_of_a_group(rolecall: Rolecall, poem: Path) -> None:
    (poem / "write-poems.yaml").write_text(GROUP_FLOW)
    (poem / "script.yaml").write_text(GROUP_SCRIPT.replace("FOLDER", str(poem)))
    words = ("run", "./write-poems.yaml", "-p", "Write them", "--agent", "scripted:script.yaml")
    terminal = Terminal(*words, home=rolecall.home, path=os.environ["PATH"])
    terminal.expect("$0.75/$2.00")
    terminal.expect("Edit")
    *_, head, member, limits = terminal.screen()
    assert head.startswith("… team · 1 of 2 done · 1 running · ")
    assert head.endswith(" · 1,042 tokens · $0.75")
    assert (
        member.startswith("  2 editor 2/2 · scripted:") and " · 42 tokens · $0.25 · Edit poems/of/" in member
    )
    assert member.endswith("…") and len(member) == 79
    assert limits == "  steps ██░░░░░░ 1/4 · cost ███░░░░░ $0.75/$2.00"

    # What finished before this process is counted too.
    terminal.type("\x03")
    assert terminal.close() == 130
    (thread,) = rolecall.json("thread", "list")
    again = Terminal("thread", "run", thread["thread"], home=rolecall.home, path=os.environ["PATH"])
    again.expect("$0.75/$2.00")
    again.type("\x03")
    assert again.close() == 130


def test_a_finished_run_says_what_changed_what_it_cost_and_how_to_look_at_it(
    rolecall: Rolecall, poem: Path
) -> None:
    again = "edit: {poem: 'roses'}\n      output: {}"
    script = (
        (poem / "script.yaml")
        .read_text()
        .replace("hang: true", again)
        .replace("roses\\n", "tulips\\nfor\\nyou\\n")
    )
    (poem / "script.yaml").write_text(script)
    words = ("run", "./write-poem.yaml", "-p", "Write it", "--agent", "scripted:script.yaml")
    terminal = Terminal(*words, home=rolecall.home, path=os.environ["PATH"])
    assert terminal.close() == 0
    changed, used, *commands = terminal.screen()[-5:-1]
    assert changed == "files changed: poem +1 -0"  # in the end, whatever each step did
    assert used.startswith("used: 2 steps, 1,000 tokens, $0.50, ")
    assert commands == ["read it all: rolecall thread read", "see the changes: rolecall thread diff"]
    assert "+roses" in rolecall("thread", "diff", check=0).stdout


def test_a_tool_is_shown_with_its_file_or_its_command() -> None:
    edit = {"name": "Edit", "arguments": {"file_path": "/work/src/a.py", "old": "x"}}
    assert gist("tool_call", edit, folders=["/work"]) == "Edit src/a.py"
    grep = {"name": "Grep", "arguments": {"pattern": "def add", "path": "src"}}
    assert gist("tool_call", grep, folders=["/work"]) == "Grep def add src"
    assert gist("tool_call", {"name": "Bash", "arguments": {"command": "make"}}) == "Bash make"


def test_bars_show_only_the_limits_of_the_thread() -> None:
    assert limits_line({"tokens": 5}, {}) == ""
    shown = limits_line(
        {"tokens": 3_000, "minutes": 0.26}, {"tokens": 1_000, "minutes": 30, "editor.steps": 2}
    )
    assert shown == "  tokens ████████ 3,000/1,000 · minutes ░░░░░░░░ 0.3/30"
