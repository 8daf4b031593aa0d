"""Hints by the names of tools; what no tool can do is not advised."""

from __future__ import annotations

import pytest

from rolecall.errors import Hint
from rolecall.mcp import hints

TOOLS = {
    "nx_plan_start",
    "thread_answer",
    "thread_list",
    "thread_show",
    "thread_run",
    "thread_wait",
    "memory_gc",
    "knowledge_sync",
}
THREAD = "01M7FM569QCK6S24ZXRES2P0SA"


@pytest.mark.parametrize(
    ("hint", "worded"),
    [
        ("", ""),
        ("Give more characters.", "Give more characters."),
        (Hint("List them all", "list_threads"), "List them all: `thread_list`."),
        (Hint("Start one", "start_plan"), "Start one: `nx_plan_start`."),
        (Hint("Fork it to continue", "fork_thread", thread=THREAD), ""),
        (Hint("Follow it", "watch_thread", thread=THREAD), f"Follow it: `thread_wait` for {THREAD}."),
        (Hint("Configure it", "set_setting", before="Nothing is lost.", key="a", value="b"), "Nothing is lost."),
        (Hint("Finish it", "verify_store", before="Nothing is lost."), "Nothing is lost."),
        (Hint("Rebuild it", "rebuild_index"), "Rebuild it: `knowledge_sync` with `rebuild`."),
    ],
)  # fmt: skip
def test_a_hint_names_tools_or_stays_silent(hint: str, worded: str) -> None:
    assert hints.word(hint, TOOLS) == worded


def test_a_tool_that_may_not_be_called_is_not_advised() -> None:
    assert hints.word(Hint("List them all", "list_threads"), {"thread_show"}) == ""


@pytest.mark.parametrize(
    ("onward", "tool"),
    [
        (None, None),
        (Hint("Resume it", "resume_thread", thread=THREAD), "thread_answer"),
        (Hint("Run it", "run_thread", thread=THREAD), "thread_run"),
        (Hint("Raise the limit", "raise_limit", thread=THREAD, limit="steps=4"), None),
    ],
)
def test_a_view_names_the_tool_that_continues_the_thread(onward: Hint | None, tool: str | None) -> None:
    view = {"thread": THREAD, "reason": "dev: it said:\n  Try --help.\n", "continue": onward}
    assert hints.with_tool(view) == {**view, "continue": tool}
