"""Hooks that are shell commands in a JSON file. The format is Claude Code's, and Codex uses it, too."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from rolecall.hosts.installation import Items, read_value
from rolecall.hosts.payload import Payload
from rolecall.hosts.setup import is_ours, split_words
from rolecall.store.canonical import JsonObject


def hook(path: str, host: str, event: str, line: str, *more: JsonObject, **fields: Any) -> Items:
    """Return the hook entry for one event, with the settings in `fields`, followed by `more` entries."""

    def has_ours(item: Any) -> bool:
        is_some = any(is_ours(words, "hook", host) for words in _commands(item))
        return is_some and not _is_our_hook(host, item)

    item = {"hooks": [{"type": "command", "command": line, **fields}]}
    return Items(path, ("hooks", event), (item, *more), partial(_is_our_hook, host), has_ours)


def read_commands(hooks: Iterable[Items]) -> dict[str, tuple[str, ...]]:
    """Return our hooks' commands by event, as they are in the file now; a missing command is empty."""
    found = {}
    for hook in hooks:
        there = read_value(hook.path, hook.keys)
        ours = [item for item in there if hook.is_ours(item)] if isinstance(there, list) else []
        found[hook.keys[-1]] = _commands(ours[0])[0] if ours else ()
    return found


def _is_our_hook(host: str, item: Any) -> bool:
    """Return whether an entry runs only our commands, from any version of Rolecall."""
    found = _commands(item)
    return bool(found) and all(is_ours(words, "hook", host) for words in found)


def _commands(item: Any) -> list[tuple[str, ...]]:
    """Return the commands in an entry, each without anything after `||`."""
    hooks = item.get("hooks") if isinstance(item, Mapping) else None
    found = []
    for hook in hooks if isinstance(hooks, list) else ():
        words = split_words(hook.get("command")) if isinstance(hook, Mapping) else ()
        found.append(words[: words.index("||")] if "||" in words else words)
    return found


def sample(event: str, folder: str, tool: Payload) -> Payload:
    """Return a sample of the host's payload for an event; `tool` is a call of one of its editing tools."""
    id = "rolecall-doctor"
    agent = {"agent_id": id, "agent_type": "tester"}
    call = {**tool, "tool_use_id": id}
    more: dict[str, Payload] = {
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
    """Return whether a hook's answer denies a tool call."""
    try:
        return bool(json.loads(stdout)["hookSpecificOutput"]["permissionDecision"] == "deny")
    except (ValueError, LookupError, TypeError):
        return False
