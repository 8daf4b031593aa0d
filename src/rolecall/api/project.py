"""The `Project` class: the plans, decisions, tasks and lessons of a project."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from rolecall.errors import Damaged
from rolecall.settings import config
from rolecall.store.lazy import import_later

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from rolecall.hosts import handed_over, installation, setup
    from rolecall.hosts.installation import HostInstallation
    from rolecall.nexus import (
        dispatch,
        knowledge_files,
        memory,
        memory_access,
        memory_gc,
        note,
        project_paths,
        reply,
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
        "rolecall.hosts.": "handed_over installation setup",
        "rolecall.nexus.": "dispatch knowledge_files memory memory_access memory_gc note project_paths reply"
        " rule run_record state_file task_graph tools tracker",
    }
    globals().update(import_later(_LATER))

P = ParamSpec("P")
T = TypeVar("T")


class Project:
    """The plans, decisions, tasks and lessons in a project's `.nexus/` folder. Methods return replies in the format of
    the project contract, whose keys `rolecall.nexus.reply` lists, and mask secrets in what they write."""

    def __init__(self, folder: Folder | None = None) -> None:
        """`folder` is the project's folder, by default the git work tree around the current folder."""
        self.folder = project_paths.choose(folder)

    def call_tool(self, name: str, arguments: Any, *, restrictions: Iterable[str] = ()) -> bytes:
        """Call a tool of the project contract and return its reply as JSON. `arguments` are checked by this method;
        `restrictions` are those of the caller."""
        return dispatch.call_json(self.folder, name, arguments, restrictions=restrictions, mask=config.mask)

    def _call(self, tool: Callable[Concatenate[Folder, P], T], *_: P.args, **arguments: P.kwargs) -> T:
        """Call a tool with keyword arguments."""
        return dispatch.call(self.folder, tool, arguments, mask=config.mask)

    # -- the plan --

    def plan(self) -> reply.PlanReply:
        """Return the active plan: its issues, the decisions on them, and how many issues are left."""
        return tools.plan_status(self.folder)

    def start_plan(self, topic: str, issues: Sequence[str], *, research: str) -> reply.StartedPlan:
        """Start a plan with the issues to decide. `research` is a summary of what is known. If a plan is active, it
        moves to the history."""
        return self._call(tools.plan_start, topic=topic, issues=list(issues), research_summary=research)

    def decide(
        self,
        issue: int,
        decision: str,
        *,
        agents: Sequence[str] = (),
        advice: Mapping[str, str] | None = None,
        agent_ids: Mapping[str, str] | None = None,
    ) -> reply.RecordedDecision:
        """Record the decision on an issue. `agents` are the agents that were consulted; `advice` is what each agent
        advised, and `agent_ids` the id of each agent's instance."""
        return self._call(
            tools.plan_decide,
            issue_id=issue,
            decision=decision,
            how_agents=list(agents) or None,
            how_summary=dict(advice or {}) or None,
            how_agent_ids=dict(agent_ids or {}) or None,
        )

    def change_issue(
        self, action: str, issue: int | None = None, title: str | None = None
    ) -> reply.IssueChange:
        """Change an issue of the active plan. `action` is `add`, `remove`, `edit` (change the title) or `reopen`."""
        return self._call(tools.plan_update, action=action, issue_id=issue, title=title)

    def context(self) -> reply.ProjectContext:
        """Return the current state of the project: its branch, the goal, how many tasks are left, and the decisions
        that bind the work."""
        return tools.context(self.folder)

    # -- tasks --

    def tasks(self) -> reply.TaskListReply:
        """Return the tasks of the current cycle, and which of them are ready."""
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
    ) -> reply.TaskReply:
        """Add a task that can begin once the tasks in `deps` are completed. Raise `UsageError` if one of these tasks
        does not exist or would itself wait for the new task, both of which the contract's tool allows.

        Args:
            plan_issue: the plan issue from which the task comes.
            goal: the goal of all tasks of the cycle; replaces an earlier goal.
            decisions: decisions that bind the work of the whole cycle.
            owner: who does the task, either an agent of the catalogue or `lead`.
            owner_agent_id: the instance of that agent.
            owner_reuse_policy: whether an earlier instance of the agent continues with the task: `fresh`,
                `resume_if_same_artifact` or `resume`.
        """
        if deps:
            with suppress(Damaged):  # `task_add` reports the damaged file and keeps a copy of it
                task_graph.check_deps(self.tasks().get("tasks", ()), deps)
        return self._call(
            tools.task_add,
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

    def update_task(self, task: float, status: str) -> reply.TaskReply:
        """Set the status of a task: `pending`, `in_progress` or `completed`."""
        return self._call(tools.task_update, id=task, status=status)

    def close_cycle(self) -> reply.ClosedCycle:
        """Move the plan and its tasks to the history."""
        return self._call(tools.task_close)

    def history(self, query: str = "", *, last: int = 10) -> reply.FoundCycles:
        """Return the newest closed cycles that contain the words of `query`, at most `last` of them."""
        return self._call(tools.history_search, query=query, last_n=last)

    def write_artifact(self, name: str, text: str) -> reply.WrittenArtifact:
        """Write a file for later steps of this cycle or for people. The reply contains the `path` of the file."""
        return self._call(tools.artifact_write, filename=name, content=text)

    # -- hosts --

    def install(
        self, host: str, *, exclude: bool | None = None, force: bool = False, is_dry: bool = False
    ) -> HostInstallation:
        """Let a host (`claude`, `codex` or `opencode`) use Rolecall in this project.

        Args:
            exclude: whether `.git/info/exclude` keeps the new files out of git; None keeps what an earlier installation
                chose.
            force: also replace files that were changed by hand or existed before.
            is_dry: change nothing, and return what would change.
        """
        found = setup.project_setup(self.folder)
        return installation.install(host, found, exclude=exclude, force=force, is_dry=is_dry)

    def uninstall(self, host: str, *, force: bool = False, is_dry: bool = False) -> HostInstallation:
        """Remove what `install` wrote, and nothing else."""
        found = setup.project_setup(self.folder, is_removal=True)
        return installation.uninstall(host, found, force=force, is_dry=is_dry)

    def notify_host(self, thread: str, store: str, *, problem: str = "") -> None:
        """Let the hooks of a host notify its model when a thread ends, with the `problem` if the thread could not be
        run. `store` is the address of the thread's store."""
        handed_over.note(self.folder, thread, store, problem=problem)

    def cancel_notice(self, thread: str) -> bool:
        """Cancel the notification of the model about a thread's end. Return whether one was pending."""
        return handed_over.forget(self.folder, thread)

    # -- agents at work on tasks --

    def lock(self) -> AbstractContextManager[object]:
        """Keep other programs from writing the project's state during a `with` block. If the block finds a state file
        damaged, a copy of the file is kept."""
        return state_file.hold_lock(self.folder)

    def run_alone(self) -> AbstractContextManager[None]:
        """Keep other programs from running the tasks during a `with` block. Raise `Conflict` if another program is
        running them."""
        return run_record.run_alone(self.folder)

    def task_runs(self) -> dict[str, run_record.TaskRun]:
        """Return the runs of tasks in threads, by the key of the task."""
        return run_record.load(self.folder)

    def save_task_runs(
        self, runs: Mapping[str, run_record.TaskRun], tasks: Iterable[reply.ProjectTask]
    ) -> None:
        """Record the runs in `runs` that belong to `tasks`, and drop all others."""
        run_record.save(self.folder, runs, {run_record.key(task) for task in tasks})

    def agents(self) -> Sequence[reply.TrackedAgent]:
        """Return the agents of this cycle's sessions: when each agent started and ended, and which files it touched."""
        return tracker.entries(self.folder)

    def start_agent(self, ident: str, name: str) -> None:
        """Record that an agent was started or resumed."""
        tracker.record_start(self.folder, agent_name=name, agent_id=ident, at=project_paths.now())

    def end_agent(
        self, ident: str, name: str, *, at: str = "", message: str = "", files: Iterable[str] = ()
    ) -> None:
        """Record that an agent ended, with its last message and the files it touched."""
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
        """Return the files in the folder `memory`, `rules` or `context`, without reading their contents."""
        return note.list_notes(self.folder, kind)

    def note_file(self, name: str, kind: Kind = "memory") -> note.ProjectNote:
        """Return one file of the folder `memory`, `rules` or `context`. If the file does not exist, the error names the
        files that do."""
        return note.find(self.folder, kind, name)

    def reading_list(self) -> str:
        """Return the names of the files in `memory`, `rules` and `context` as a text for an agent. The text is empty if
        there are no files."""
        return knowledge_files.as_text(self.folder)

    def memories(self) -> list[reply.NoteEntry]:
        """Return the notes of the project, with how often each note was read."""
        return memory.list_notes(self.folder)

    def remember(
        self,
        name: str,
        text: str,
        *,
        category: str | None = None,
        into: str | None = None,
        is_new: bool = False,
    ) -> reply.AddedNote:
        """Save a lesson as a new note, or add it to the note `into`. Raise `memory.NoteOverlap` if a very similar note
        exists, unless `is_new` is set."""
        return memory.add(
            self.folder,
            name,
            text,
            mask=config.mask(),
            category=category,
            into=into,
            is_new=is_new,
            thresholds=memory.load_thresholds(),
        )

    def recall(
        self,
        name: str,
        *,
        agent: str | None = None,
        warn: Callable[[str], object] = lambda _text: None,
    ) -> str:
        """Return the text of a note. The read is counted for `agent`, by default the lead; if counting fails, `warn` is
        called with the reason."""
        found = memory.read(self.folder, name, agent=agent or memory_access.LEAD)
        if found.warning:
            warn(found.warning)
        return found.text

    def merge_memories(self, first: str, second: str, *, into: str | None = None) -> reply.MergedNotes:
        """Merge two notes into the first or into a new note. A commit removes the notes that were merged."""
        return memory.merge(self.folder, first, second, into=into)

    def forgettable(self) -> list[reply.ForgettableNote]:
        """Return the notes that can be deleted, each with the `signals` in favour of deletion. Nothing is deleted."""
        return memory_gc.list_forgettable(self.folder, thresholds=memory.load_thresholds())

    def forget(self, names: Sequence[str]) -> list[reply.DeletedNote]:
        """Delete notes, each in its own commit. In the result, `restore` is the command that brings a note back."""
        return memory_gc.delete(self.folder, names)

    def forget_automatically(self) -> reply.Deletions:
        """Delete the notes with enough signals in favour of deletion, if `memory.autoDelete` is enabled in the
        configuration."""
        return memory_gc.delete_automatically(
            self.folder,
            is_enabled=(config.load().get("memory") or {}).get("autoDelete") is True,
            thresholds=memory.load_thresholds(),
        )

    def rules(self, *, tag: str | None = None) -> list[reply.RuleEntry]:
        """Return the rules of the project, or only those with a given tag."""
        return rule.list_rules(self.folder, tag=tag)

    def rule(self, name: str) -> str:
        """Return the text of a rule."""
        return rule.read(self.folder, name)

    def add_rule(self, name: str, text: str, *, tags: Iterable[str] = ()) -> reply.AddedRule:
        """Write a rule. `tags` say where the rule applies."""
        return rule.add(self.folder, name, text, mask=config.mask(), tags=tags)
