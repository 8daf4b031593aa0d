"""The wording of hints in tools: each hint names the tool that carries it out. Advice that no tool can follow is left
out, because a model that reads about a command would try to find it."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from rolecall.errors import Hint

if TYPE_CHECKING:
    from rolecall.store.canonical import JsonObject

TOOLS = {
    "add_task": "nx_task_add",
    "answer_thread": "thread_answer",
    "choose_note": "memory_add",
    "index_repository": "knowledge_sync",
    "init_knowledge": "knowledge_init",
    "list_gallery": "workflow_list",
    "list_steps": "thread_read",
    "list_tasks": "nx_task_list",
    "list_threads": "thread_list",
    "list_workflows": "workflow_list",
    "read_earlier": "thread_read",
    "rebuild_index": "knowledge_sync",
    "resume_thread": "thread_answer",
    "run_thread": "thread_run",
    "show_thread": "thread_show",
    "start_plan": "nx_plan_start",
    "sync_knowledge": "knowledge_sync",
    "watch_thread": "thread_wait",
}
"""The tool for each action that a tool can carry out."""
_WITH = {
    "choose_note": " with `into` {note} or with `new`",
    "read_earlier": " and `before` {step}",
    "rebuild_index": " with `rebuild`",
}


def word(hint: str, tools: Collection[str]) -> str:
    """Return a hint worded with the names of `tools`. Plain advice is returned unchanged. If no tool carries out the
    hint, return only the advice before it, which is also useful alone."""
    if not isinstance(hint, Hint):
        return hint
    if hint.code == "trust_workflow":  # only a person may decide to trust a workflow
        return f"Ask the user to run `rolecall workflow trust {hint.arguments['workflow']}`."
    if hint.code == "set_default_agent":
        return "Ask the user to choose one: `rolecall config set defaultAgent NAME`."
    if TOOLS.get(hint.code) not in tools:
        return hint.before
    whose = f" for {hint.arguments['thread']}" if "thread" in hint.arguments else ""
    return f"{hint.before} {hint.advice}: {phrase(hint)}{whose}.".lstrip()


def phrase(hint: Hint) -> str:
    """Return the name of the tool and its most important argument, or an empty text if no tool carries out the hint."""
    if hint.code not in TOOLS:
        return ""
    return f"`{TOOLS[hint.code]}`" + _WITH.get(hint.code, "").format_map(hint.arguments)


def with_tool(view: JsonObject) -> JsonObject:
    """Return a thread's state with `continue` replaced by the tool that continues the thread, or by None if no tool
    does."""
    onward = view["continue"]
    return {**view, "continue": onward and TOOLS.get(onward.code)}
