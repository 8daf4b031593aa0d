"""Hooks that are lines for a shell in a JSON file: Claude Code has them, and Codex has taken them over."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from rolecall.hosts.managed_block import JsonItems, our_items
from rolecall.hosts.setup import is_ours, words_of


def hook(path: str, host: str, event: str, line: str, **fields: Any) -> JsonItems:
    """An entry for one event; `fields` are what the host is told of it beside the line."""
    item = {"hooks": [{"type": "command", "command": line, **fields}]}
    return JsonItems(
        path, ("hooks", event), (item,), partial(is_our_hook, host), partial(_has_our_hook, host)
    )


def commands(hooks: Iterable[JsonItems]) -> dict[str, tuple[str, ...]]:
    """By the event, what the hooks would run as they stand in the file; no words where there is none of ours."""
    found = {}
    for one in hooks:
        lines = [line for item in our_items(one) for line in _commands_of(item)]
        found[one.keys[-1]] = lines[0] if lines else ()
    return found


def is_our_hook(host: str, item: Any) -> bool:
    """Whether an entry runs nothing but ours, from whichever version."""
    found = _commands_of(item)
    return bool(found) and all(is_ours(words, "hook", host) for words in found)


def _has_our_hook(host: str, item: Any) -> bool:
    is_some = any(is_ours(words, "hook", host) for words in _commands_of(item))
    return is_some and not is_our_hook(host, item)


def _commands_of(item: Any) -> list[tuple[str, ...]]:
    """The commands of an entry, without what is to be done when they fail."""
    listed = item.get("hooks") if isinstance(item, Mapping) else None
    lines = (
        [one.get("command") for one in listed if isinstance(one, Mapping)] if isinstance(listed, list) else []
    )
    return [words[: words.index("||")] if "||" in words else words for words in map(words_of, lines)]


def sample(event: str, folder: str, tool: Mapping[str, Any]) -> dict[str, Any]:
    """What the host would say at an event in a project in `folder`; `tool` is its call of a tool that edits."""
    id = "rolecall-doctor"
    agent = {"agent_id": id, "agent_type": "tester"}
    call = {**tool, "tool_use_id": id}
    more: dict[str, dict[str, Any]] = {
        "SessionStart": {"source": "startup"},
        "UserPromptSubmit": {"prompt": "How far are we?", "prompt_id": id, "turn_id": id},
        "SubagentStart": agent,
        "SubagentStop": {**agent, "last_assistant_message": "done"},
        "PreToolUse": call,
        "PostToolUse": {**call, "tool_response": {}},
        "PostToolUseFailure": {**call, "error": "a sample"},
        "Stop": {"stop_hook_active": False},
        "SessionEnd": {"reason": "other"},
    }
    return {"session_id": id, "cwd": folder, "hook_event_name": event, **more.get(event, {})}


def is_refusal(stdout: str) -> bool:
    """Whether a hook's answer to a tool call is that it may not run."""
    try:
        return bool(json.loads(stdout)["hookSpecificOutput"]["permissionDecision"] == "deny")
    except (ValueError, LookupError, TypeError):
        return False
