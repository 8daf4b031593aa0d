"""Whether the active skill of a session has finished, according to the project's files.

A skill also ends with the session and when another one becomes active. Skills unknown to this module end only in these
ways.
"""

from __future__ import annotations

import os

from rolecall.hosts.project_summary import Standing
from rolecall.hosts.sessions import Session, milliseconds
from rolecall.nexus import project_paths


def is_over(project: str, session: Session, now: Standing) -> bool:
    """Planning ends when every issue is decided and tasks exist; a run ends when the cycle is closed; the others end
    when the tasks added for them are completed, or closed with the cycle."""
    if not session.skill or not session.since or now.plan_problem or now.tasks_problem:
        return False
    added = [task for task in now.tasks if task.get("created_at", "") >= session.since]
    is_closed = not now.has_tasks and _closed_since(project, session.since)
    match session.skill:
        case "nx-plan":
            return bool(added) and not now.pending_issues()
        case "nx-run":
            return is_closed
        case "nx-sync" | "nx-init":
            return is_closed or (bool(added) and all(task["status"] == "completed" for task in added))
    return False


def _closed_since(project: str, since: str) -> bool:
    """Whether a cycle was added to the history."""
    try:
        return os.stat(project_paths.history(project)).st_mtime * 1000 >= milliseconds(since)
    except OSError:
        return False
