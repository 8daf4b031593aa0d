"""Handles a tool call that has run: logs the call, the files it touched, and the memory notes it read."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rolecall.hosts import tool_log
from rolecall.hosts.event import LEAD, HostAnswer, PostToolUse
from rolecall.hosts.hook_context import HookContext
from rolecall.store.lazy import Module

if TYPE_CHECKING:
    from rolecall.hosts import sessions
    from rolecall.nexus import memory_access, tags
else:
    memory_access = Module("rolecall.nexus.memory_access")  # few calls read a note
    sessions = Module("rolecall.hosts.sessions")  # only the activation of a skill changes the session
    tags = Module("rolecall.nexus.tags")

_LONGEST_ERROR = 300
_LONGEST_NAME = 1_000
_MOST_FILES = 20
"""The maximum number of files from one call in the log."""
_MOST_LOOKED_UP = 200


def post_tool_use(project: str, event: PostToolUse, hooks: HookContext, now: str) -> HostAnswer:
    call, who = event.call, event.who
    root = os.path.realpath(project)
    written = [] if event.error else _relative(root, call.writes)
    read = _relative(root, call.reads)
    entry = {
        "timestamp": now,
        "session": event.session[:200],
        "agent_id": who.id[:200] or "lead",
        "agent": who.agent[:200],
        "run": hooks.run,
        "tool": call.tool[:200],
        "files": [*written, *read][:_MOST_FILES],
        "status": "error" if event.error else "ok",
        "error": hooks.mask().text(event.error)[:_LONGEST_ERROR] if event.error else "",
    }
    tool_log.append(project, {key: value for key, value in entry.items() if value or key == "tool"})
    if who.id and not hooks.run:
        if call.command:  # a command can name files by a pattern
            patterns = {name for name in written if set("*?${}").intersection(name)}
            written = [name for name in written if name not in patterns or os.path.lexists(f"{root}/{name}")]
        files = [name for name in written if not os.path.isdir(os.path.join(root, name))]
        tool_log.touch(project, who.id, files)
    if event.error:
        return HostAnswer()
    for name in read:
        if name.startswith(os.path.join(".nexus", "memory", "")):
            memory_access.observe(project, name, who.id or who.agent or memory_access.LEAD, now)
    if call.skill in hooks.skills and who == LEAD and not hooks.run:
        # A skill that the model activates itself counts as if the user had activated it.
        found = tags.slash(f"/{call.skill} {call.words}", hooks.skills, hooks.tags)
        mode = found.mode if found else ""
        activate = lambda one: one._replace(skill=call.skill, mode=mode, since=now)  # noqa: E731
        sessions.change(project, event.session, now, activate, process=hooks.process)
    return HostAnswer()


def _relative(root: str, paths: Sequence[str]) -> list[str]:
    """Return the paths relative to the project's folder, leaving out paths outside it."""
    found = [os.path.realpath(path.replace("\0", "")) for path in paths[:_MOST_LOOKED_UP]]
    return [path[len(root) + 1 :][:_LONGEST_NAME] for path in found if path.startswith(root + os.sep)]
