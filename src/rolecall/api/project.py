"""`Project`: the plans, decisions, tasks and lessons of a project."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rolecall.settings import config
from rolecall.store.lazy import import_later

if TYPE_CHECKING:
    from rolecall.nexus import memory, overview, tools
else:
    globals().update(import_later({"rolecall.nexus.": "memory tools"}))


class Project:
    """The plans, decisions, tasks and lessons in a project's `.nexus/` folder. Methods return the contract's reply."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def plan(self) -> overview.ToolReply:
        """The active plan: its issues, their decisions, and how many are left."""
        return tools.plan_status(self.folder)

    def start_plan(self, topic: str, issues: Sequence[str], *, research: str) -> overview.ToolReply:
        """Start a plan with the questions to decide; `research` is a summary of what is known."""
        return tools.plan_start(self.folder, topic=topic, issues=issues, research_summary=research)

    def decide(self, issue: int, decision: str) -> overview.ToolReply:
        """Record the decision on an issue."""
        return tools.plan_decide(self.folder, issue_id=issue, decision=decision)

    def change_issue(
        self, action: str, issue: int | None = None, title: str | None = None
    ) -> overview.ToolReply:
        """Change an issue of the active plan: `add`, `remove`, `edit` its title, or `reopen` it."""
        return tools.plan_update(self.folder, action=action, issue_id=issue, title=title)

    def tasks(self) -> overview.ToolReply:
        """The tasks of the current cycle, and which of them are ready."""
        return tools.task_list(self.folder)

    def add_task(
        self,
        title: str,
        context: str,
        *,
        deps: Sequence[int] = (),
        acceptance: str | None = None,
        owner: str | None = None,
    ) -> overview.ToolReply:
        """Add a task that can begin once the tasks `deps` are completed; `owner` is who does it."""
        return tools.task_add(
            self.folder, title=title, context=context, deps=list(deps), acceptance=acceptance, owner=owner
        )

    def update_task(self, task: int, status: str) -> overview.ToolReply:
        """Set the status of a task: `pending`, `in_progress` or `completed`."""
        return tools.task_update(self.folder, id=task, status=status)

    def close_cycle(self) -> overview.ToolReply:
        """Move the plan and its tasks to the history."""
        return tools.task_close(self.folder)

    def history(self, query: str = "", *, last: int = 10) -> overview.ToolReply:
        """The newest closed cycles that contain the words of `query`."""
        return tools.history_search(self.folder, query=query, last_n=last)

    def memories(self) -> list[overview.ToolReply]:
        """The notes of the project, with the number of times each was read."""
        return memory.list_notes(self.folder)

    def remember(self, name: str, text: str) -> overview.ToolReply:
        """Save a lesson as a note; refused if a very similar note exists."""
        return memory.add(self.folder, name, text, mask=config.mask())

    def recall(self, name: str) -> str:
        """The text of a note."""
        return memory.read(self.folder, name).text
