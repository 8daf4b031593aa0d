"""The active skill of a session: its text for the model, and whether the skill is finished."""

from __future__ import annotations

import os

from rolecall.hosts.hook_context import HookContext
from rolecall.hosts.project_summary import ProjectState
from rolecall.hosts.sessions import HostSession, milliseconds
from rolecall.nexus import project_paths


def is_over(project: str, session: HostSession, now: ProjectState) -> bool:
    """Return whether the active skill is finished, according to the project's files: planning, when every issue is
    decided and tasks exist; a run, when the cycle is closed; other known skills, when the tasks added for them are
    completed or closed. An unknown skill ends only with the session, or when another skill becomes active."""
    if not session.skill or not session.since or now.plan_problem or now.tasks_problem:
        return False
    added = [task for task in now.tasks if task.get("created_at", "") >= session.since]
    if session.skill == "nx-plan":
        return bool(added) and not now.pending_issues()
    try:
        closed_at = os.stat(project_paths.history(project)).st_mtime * 1000
        is_closed = not now.has_tasks and closed_at >= milliseconds(session.since)
    except OSError:
        is_closed = False
    if session.skill == "nx-run":
        return is_closed
    is_done = bool(added) and all(task["status"] == "completed" for task in added)
    return session.skill in ("nx-sync", "nx-init") and (is_closed or is_done)


def body_of(project: str, skill: str, hooks: HookContext, *, beside: str = "") -> str:
    """Return the body of a skill. If the body and `beside` together are too long for the host, the body is cut at the
    start of a section and followed by the name of the file with the full text."""
    body = hooks.skills[skill].strip()
    if hooks.limit is None:
        return body
    most, encoding = hooks.limit

    def size(text: str) -> int:
        return len(text.encode(encoding, errors="replace"))

    def continuation(title: str) -> str:
        return (
            f"(The skill is longer than the host allows. Read {file} from {title} on before you act on it.)"
        )

    if size(body) + size(beside) <= most:
        return body
    files = (os.path.expanduser(place.replace("{}", skill)) for place in hooks.skill_files)
    places = [os.path.join(project, file) for file in files]
    file = next(filter(os.path.isfile, places), places[-1] if places else f"skills/{skill}/body.md")
    docs = hooks.docs.get(skill, "")
    room = most - size(beside + docs) - size(continuation("x" * 80))

    # Cut before the last section that begins within the limit or, in a text without sections, before a paragraph.
    section, title, paragraph, at, used, is_code = 0, "where this ends", 0, 0, 0, False
    for line in body.splitlines(keepends=True):
        is_code ^= line.lstrip().startswith("```")
        if not is_code and line.startswith("#") and at:
            section, title = at, f'"{line.strip().lstrip("# ")[:80]}"'
        elif not is_code and not line.strip():
            paragraph = at
        used += size(line)
        if used > room:
            break
        at += len(line)
    end = section or paragraph or at
    return "\n\n".join(filter(None, [body[:end].rstrip(), continuation(title), docs]))
