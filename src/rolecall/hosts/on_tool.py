"""A tool has run: the log, the files that were touched, the memory notes that were read."""

from __future__ import annotations

import os
from collections.abc import Sequence

from rolecall.hosts import tool_log
from rolecall.hosts.event import LEAD, Answer, Caller, PostToolUse
from rolecall.hosts.hook_context import Kit

_LONGEST_ERROR = 300
_LONGEST_NAME = 1_000
_MOST_FILES = 20
"""Files of one call that stand in the log."""
_MOST_LOOKED_UP = 200


def post_tool_use(project: str, event: PostToolUse, kit: Kit, now: str) -> Answer:
    """A line in the log, the files that were touched, and a read of a memory note counted."""
    deed, who = event.deed, event.who
    root = os.path.realpath(project)
    written = [] if event.error else _names(root, deed.writes)
    read = _names(root, deed.reads)
    tool_log.append(
        project,
        {
            "timestamp": now,
            "session": event.session[:200],
            "agent_id": who.id[:200] or "lead",
            **({"agent": who.agent[:200]} if who.agent else {}),
            **({"run": kit.run} if kit.run else {}),
            "tool": deed.tool[:200],
            **({"files": files} if (files := [*written, *read][:_MOST_FILES]) else {}),
            "status": "error" if event.error else "ok",
            **({"error": kit.mask().text(event.error)[:_LONGEST_ERROR]} if event.error else {}),
        },
    )
    if who.id and not kit.run:
        is_shell = bool(deed.command)
        files = [name for name in written if _is_file(project, name, is_shell=is_shell)]
        tool_log.touch(project, who.id, files)
    if not event.error:
        _observe(project, read, who, now)
        if deed.skill in kit.skills and who == LEAD and not kit.run:
            _note_skill(project, event, kit, now)
    return Answer()


def _note_skill(project: str, event: PostToolUse, kit: Kit, now: str) -> None:
    """Make a skill that the model called itself the active one, as if the user had called it."""
    from rolecall.hosts import sessions
    from rolecall.nexus import skills

    found = skills.slash(f"/{event.deed.skill} {event.deed.words}", kit.skills, kit.tags)
    mode = found.mode if found else ""
    sessions.change(
        project,
        event.session,
        now,
        lambda one: one._replace(skill=event.deed.skill, mode=mode, since=now),
        process=kit.process,
    )


def _names(root: str, paths: Sequence[str]) -> list[str]:
    """Paths as they are told from the project's folder, without those that lead elsewhere."""
    found = [os.path.realpath(path.replace("\0", "")) for path in paths[:_MOST_LOOKED_UP]]
    return [path[len(root) + 1 :][:_LONGEST_NAME] for path in found if path.startswith(root + os.sep)]


def _is_file(project: str, name: str, *, is_shell: bool) -> bool:
    """Whether one file is meant: a command may name a folder, or files by a pattern."""
    path = os.path.join(project, name)
    is_pattern = is_shell and any(sign in name for sign in "*?${}") and not os.path.lexists(path)
    return not is_pattern and not os.path.isdir(path)


def _observe(project: str, read: list[str], who: Caller, now: str) -> None:
    for name in read:
        if name.startswith(os.path.join(".nexus", "memory", "")):
            from rolecall.nexus import memory_access

            memory_access.observe(project, name, who.id or who.agent or memory_access.LEAD, now)
