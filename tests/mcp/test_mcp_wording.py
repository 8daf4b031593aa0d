"""Hints of the command line in the words of tools; what no tool can do is not advised."""

from __future__ import annotations

import pytest

from rolecall.mcp import wording

TOOLS = {"nx_plan_start", "thread_answer", "thread_list", "thread_show", "thread_step", "memory_gc"}
PARENT, CHILD = "01M7FM569QCK6S24ZXRES2P0SA", "01M7FM56VVWJ4GH475N1JGCX20"


@pytest.mark.parametrize(
    ("hint", "reworded"),
    [
        ("", ""),
        ("Give more characters.", "Give more characters."),
        ("`rolecall thread list --all` shows them.", "`thread_list` shows them."),
        ("`rolecall plan start` begins one.", "`nx_plan_start` begins one."),
        ("Fork it to go on: `rolecall thread fork THREAD`.", ""),
        (f"Follow it: `rolecall thread watch {CHILD}`.", f"Follow it: `thread_show` for {CHILD}."),
        ("Nothing is lost. Configure it with `rolecall config set extract X`.", "Nothing is lost."),
        ("The first put creates it, e.g. `rolecall cas put-text hello`.", ""),
        ("Register it first. `cas schema list` shows them.", "Register it first."),
        ("Say what is to be done: -p 'Fix it'.", ""),
        ("Set the key: rolecall setup", ""),
        ("Install it: npm install -g @openai/codex", "Install it: npm install -g @openai/codex"),
        ("Set a default (`rolecall config set defaultAgent NAME`), or use --agent. Or wait.", "Or wait."),
        (
            f"Answer it with `rolecall thread answer {CHILD} --run`, "
            f"then go on with `rolecall thread resume {PARENT} --run`.",
            f"Answer it with `thread_answer` for {CHILD}, then go on with `thread_answer` for {PARENT}.",
        ),
        ("Look at well-known names, and at `into` and `new`.", "Look at well-known names, and at `into` and `new`."),
    ],
)  # fmt: skip
def test_a_hint_names_tools_or_stays_silent(hint: str, reworded: str) -> None:
    assert wording.in_tools(hint, TOOLS) == reworded


def test_a_tool_that_may_not_be_called_is_not_advised() -> None:
    assert wording.in_tools("`rolecall thread list` shows them.", {"thread_show"}) == ""


@pytest.mark.parametrize(
    ("reason", "reworded"),
    [
        ("dev: it said:\n\n  Bad option.  Try --help.\n", "dev: it said:\n\n  Bad option.  Try --help.\n"),
        ("dev: no agent is named. Set one (`rolecall config set x y`). Or wait.", "dev: no agent is named. Or wait."),
        (f"dev: its thread is failed. See it: `rolecall thread show {CHILD}`.",
         f"dev: its thread is failed. See it: `thread_show` for {CHILD}."),
        ("run `rolecall cas verify` first", "run `rolecall cas verify` first"),
    ],
)  # fmt: skip
def test_a_reason_keeps_what_happened(reason: str, reworded: str) -> None:
    view = {"thread": PARENT, "reason": reason, "continue": f"rolecall thread resume {PARENT} --run"}
    assert wording.standing(view) == {"thread": PARENT, "reason": reworded, "continue": "thread_answer"}


def test_of_a_step_that_failed_the_error_stays_whole() -> None:
    said = (
        "rolecall: the answer does not fit, see `rolecall cas verify`:\n  a: is not a number\n"
        f"  Correct it. Run `rolecall cas reindex`.\ncontinue: rolecall thread run {PARENT}\n"
    )
    assert wording.failed_step(said) == (
        "the answer does not fit, see `rolecall cas verify`:\na: is not a number\nCorrect it."
    )
    assert wording.failed_step("") == ""
