"""`Project`: the plans, decisions, tasks and lessons of a project."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from rolecall.errors import Damaged
from rolecall.settings import config
from rolecall.store.lazy import import_later

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from rolecall.nexus import (
        dispatch,
        knowledge_files,
        memory,
        memory_access,
        memory_gc,
        note,
        overview,
        project_paths,
        rule,
        run_record,
        state_file,
        task_graph,
        tools,
        tracker,
    )
    from rolecall.nexus.note import Kind
    from rolecall.nexus.project_paths import Folder
else:
    _LATER = {
        "rolecall.nexus.": "dispatch knowledge_files memory memory_access memory_gc note project_paths rule"
        " run_record state_file task_graph tools tracker",
    }
    globals().update(import_later(_LATER))


class Project:
    """The plans, decisions, tasks and lessons in a project's `.nexus/` folder. Methods return the contract's reply, and
    mask secrets in what they write."""

    def __init__(self, folder: Folder | None = None) -> None:
        """`folder` is the project's folder, by default that of the git work tree around the current folder."""
        self.folder = project_paths.choose(folder)

    def call_tool(self, name: str, arguments: Any, *, restrictions: Iterable[str] = ()) -> bytes:
        """Call a tool of the contract for somebody who is held to `restrictions`, with arguments that nobody has
        checked. Return its reply as JSON."""
        return dispatch.call_json(self.folder, name, arguments, restrictions=restrictions, mask=config.mask)

    def _call(self, tool: str, **arguments: Any) -> overview.ToolReply:
        return dispatch.call(self.folder, tool, arguments, mask=config.mask)

    # -- the plan --

    def plan(self) -> overview.ToolReply:
        """The active plan: its issues, their decisions, and how many are left."""
        return tools.plan_status(self.folder)

    def start_plan(self, topic: str, issues: Sequence[str], *, research: str) -> overview.ToolReply:
        """Start a plan with the questions to decide; `research` is a summary of what is known. An active plan moves to
        the history."""
        return self._call("plan_start", topic=topic, issues=list(issues), research_summary=research)

    def decide(
        self,
        issue: int,
        decision: str,
        *,
        agents: Sequence[str] = (),
        advice: Mapping[str, str] | None = None,
        agent_ids: Mapping[str, str] | None = None,
    ) -> overview.ToolReply:
        """Record the decision on an issue; `agents` were consulted, `advice` and `agent_ids` have what each of them
        advised and the id of its instance."""
        return self._call(
            "plan_decide",
            issue_id=issue,
            decision=decision,
            how_agents=list(agents) or None,
            how_summary=dict(advice or {}) or None,
            how_agent_ids=dict(agent_ids or {}) or None,
        )

    def change_issue(
        self, action: str, issue: int | None = None, title: str | None = None
    ) -> overview.ToolReply:
        """Change an issue of the active plan: `add`, `remove`, `edit` its title, or `reopen` it."""
        return self._call("plan_update", action=action, issue_id=issue, title=title)

    def context(self) -> overview.ToolReply:
        """Where the project stands: its branch, the goal, how many tasks are left, the decisions that bind the work."""
        return tools.context(self.folder)

    # -- tasks --

    def tasks(self) -> overview.ToolReply:
        """The tasks of the current cycle, and which of them are ready."""
        return tools.task_list(self.folder)

    def add_task(
        self,
        title: str,
        context: str,
        *,
        deps: Sequence[float] = (),
        approach: str | None = None,
        acceptance: str | None = None,
        risk: str | None = None,
        plan_issue: int | None = None,
        goal: str | None = None,
        decisions: Sequence[str] = (),
        owner: str | None = None,
        owner_agent_id: str | None = None,
        owner_reuse_policy: str | None = None,
    ) -> overview.ToolReply:
        """Add a task that can begin once the tasks `deps` are completed. Raise UsageError if one of them does not exist
        or would wait for the new task, which the tool of the contract allows.

        Args:
            plan_issue: the issue of the plan that the task comes from.
            goal: what all tasks of the cycle are for; replaces an earlier one.
            decisions: bind the work of the whole cycle.
            owner: who does it, an agent of the catalogue or `lead`.
            owner_agent_id: the instance of that agent.
            owner_reuse_policy: whether an earlier instance continues with it: `fresh`, `resume_if_same_artifact` or
                `resume`.
        """
        if deps:
            with suppress(Damaged):  # adding the task reports that, and keeps a copy
                task_graph.check_deps(self.tasks().get("tasks", ()), deps)
        return self._call(
            "task_add",
            title=title,
            context=context,
            deps=list(deps),
            approach=approach,
            acceptance=acceptance,
            risk=risk,
            plan_issue=plan_issue,
            goal=goal,
            decisions=list(decisions),
            owner=owner,
            owner_agent_id=owner_agent_id,
            owner_reuse_policy=owner_reuse_policy,
        )

    def update_task(self, task: float, status: str) -> overview.ToolReply:
        """Set the status of a task: `pending`, `in_progress` or `completed`."""
        return self._call("task_update", id=task, status=status)

    def close_cycle(self) -> overview.ToolReply:
        """Move the plan and its tasks to the history."""
        return self._call("task_close")

    def history(self, query: str = "", *, last: int = 10) -> overview.ToolReply:
        """The newest closed cycles that contain the words of `query`."""
        return self._call("history_search", query=query, last_n=last)

    def write_artifact(self, name: str, text: str) -> overview.ToolReply:
        """Write a file of this cycle for later steps or for people; the reply has its `path`."""
        return self._call("artifact_write", filename=name, content=text)

    # -- agents at work on tasks --

    def lock(self) -> AbstractContextManager[object]:
        """Keep other programs from writing the project's state in a `with` block, which keeps a copy of each state file
        that it finds damaged."""
        return state_file.hold_lock(self.folder)

    def run_alone(self) -> AbstractContextManager[None]:
        """Keep other programs from running the tasks in a `with` block. Raise `Conflict` if one is running them."""
        return run_record.run_alone(self.folder)

    def task_runs(self) -> dict[str, run_record.TaskRun]:
        """The threads that do the tasks, by the key of the task."""
        return run_record.load(self.folder)

    def save_task_runs(self, runs: Mapping[str, run_record.TaskRun], tasks: Iterable[overview.Task]) -> None:
        """Record the threads that do these tasks; others of `runs` are dropped."""
        run_record.save(self.folder, runs, {run_record.key(task) for task in tasks})

    def agents(self) -> Sequence[tracker.Entry]:
        """The agents of this cycle's sessions: when each started and ended, and the files it touched."""
        return tracker.entries(self.folder)

    def start_agent(self, ident: str, name: str) -> None:
        """Record that an agent was started or resumed."""
        tracker.record_start(self.folder, agent_name=name, agent_id=ident, at=project_paths.now())

    def end_agent(
        self, ident: str, name: str, *, at: str = "", message: str = "", files: Iterable[str] = ()
    ) -> None:
        """Record that an agent ended, with its last message and the files that it touched."""
        tracker.record_end(
            self.folder,
            agent_id=ident,
            agent_name=name,
            at=at or project_paths.now(),
            last_message=message,
            files=files,
        )

    # -- notes and rules --

    def note_files(self, kind: Kind = "memory") -> list[note.ProjectNote]:
        """The files of `memory`, `rules` or `context`, which are not read."""
        return note.list_notes(self.folder, kind)

    def note_file(self, name: str, kind: Kind = "memory") -> note.ProjectNote:
        """One of these files. If it does not exist, the error names those that do."""
        return note.find(self.folder, kind, name)

    def reading_list(self) -> str:
        """The names of these files as a text for an agent; empty if there are none."""
        return knowledge_files.as_text(self.folder)

    def memories(self) -> list[overview.ToolReply]:
        """The notes of the project, with the number of times each was read."""
        return memory.list_notes(self.folder)

    def remember(
        self,
        name: str,
        text: str,
        *,
        category: str | None = None,
        into: str | None = None,
        is_new: bool = False,
    ) -> overview.ToolReply:
        """Save a lesson as a note, or add it to the note `into`. `memory.NoteOverlap` is raised if a very similar note
        exists, unless it `is_new`."""
        return memory.add(
            self.folder,
            name,
            text,
            mask=config.mask(),
            category=category,
            into=into,
            is_new=is_new,
            thresholds=memory.configured_thresholds(),
        )

    def recall(
        self,
        name: str,
        *,
        agent: str | None = None,
        warn: Callable[[str], object] = lambda _text: None,
    ) -> str:
        """The text of a note. The read is counted for `agent`, by default the lead; if that fails, `warn` says why."""
        found = memory.read(self.folder, name, agent=agent or memory_access.LEAD)
        if found.warning:
            warn(found.warning)
        return found.text

    def merge_memories(self, first: str, second: str, *, into: str | None = None) -> overview.ToolReply:
        """Join two notes in the first or in a new one; a commit removes what was joined."""
        return memory.merge(self.folder, first, second, into=into)

    def forgettable(self) -> list[overview.ToolReply]:
        """The notes that may be deleted, and the `signals` that speak for it; nothing is deleted."""
        found = memory_gc.candidates(self.folder, thresholds=memory.configured_thresholds())
        return [
            {"name": each.note.name, "signals": [signal._asdict() for signal in each.signals]}
            for each in found
        ]

    def forget(self, names: Sequence[str]) -> list[overview.ToolReply]:
        """Delete notes, each by a commit; `restore` is the command that brings a note back."""
        return memory_gc.delete(self.folder, names)

    def forget_automatically(self) -> overview.ToolReply:
        """Delete the notes that enough signals speak for, if the configuration allows it: `memory.autoDelete`."""
        return memory_gc.delete_automatically(
            self.folder,
            is_enabled=(config.load().get("memory") or {}).get("autoDelete") is True,
            thresholds=memory.configured_thresholds(),
        )

    def rules(self, *, tag: str | None = None) -> list[overview.ToolReply]:
        """The rules of the project, or those with a tag."""
        return rule.list_rules(self.folder, tag=tag)

    def rule(self, name: str) -> str:
        """The text of a rule."""
        return rule.read(self.folder, name)

    def add_rule(self, name: str, text: str, *, tags: Iterable[str] = ()) -> overview.ToolReply:
        """Write a rule; `tags` say where it applies."""
        return rule.add(self.folder, name, text, mask=config.mask(), tags=tags)
