"""Handles the start and the end of an agent that Lead started."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from rolecall.errors import Damaged, UsageError
from rolecall.hosts import gate, project_summary, sessions, tool_log
from rolecall.hosts.event import HostAnswer, HostCaller, SubagentComplete, SubagentSpawn
from rolecall.hosts.hook_context import HookContext
from rolecall.hosts.project_summary import ProjectState
from rolecall.hosts.sessions import has_key, task_key
from rolecall.nexus import brief, knowledge_files, overview, tools, tracker
from rolecall.settings.capabilities import TASK_UPDATE, check_allowed
from rolecall.store.lazy import Module

if TYPE_CHECKING:
    from rolecall.nexus import filenames, resume
    from rolecall.nexus.reply import ProjectTask, TrackedAgent
else:
    filenames = Module("rolecall.nexus.filenames")  # slow to import, and most agents are not resumed
    resume = Module("rolecall.nexus.resume")

_LONGEST_BRIEF = 8_000
"""The maximum number of characters in a task's text, because a host silently cuts a longer text."""
_TURN = {"in_progress": 0, "pending": 1, "completed": 2}
"""The order in which the agent's tasks are considered when its current task is chosen, by status."""
_NOT_DONE = ("blocked", "partial")
"""The words after `STATUS:` in a report for which the agent's task stays open."""
_LATER = "9999"
"""A timestamp later than any real one, for files that were found to have changed after an agent ended."""


def subagent_spawn(project: str, event: SubagentSpawn, hooks: HookContext, now: str) -> HostAnswer:
    """Record that the agent is running. Tell it its limits, its task if that is certain, and what the project knows."""
    who = event.who
    task: ProjectTask | None = None
    entries: Sequence[TrackedAgent] = []
    if who.id:
        entries = _read_agents(project)
        running = {entry.get("agent_id") for entry in entries if entry.get("status") == "running"}
        known = sessions.tasks_of_agents(project)
        taken = {key for agent, key in known.items() if agent in running and agent != who.id}
        task = _find_task(who, project, known.get(who.id, ""), taken)
        link = task_key(task) if task else known.get(who.id, "")
        # The session's record is written first, because an agent that belongs to no session is removed from the list.
        sessions.change(
            project,
            event.session,
            now,
            lambda one: one._replace(agents={**one.agents, who.id: link or one.agents.get(who.id, "")}),
            process=hooks.process,
        )
        tracker.record_start(project, agent_name=who.agent, agent_id=who.id, at=now)
    active = sessions.find(project, event.session)
    docs = hooks.docs.get(active.skill, "") if active else ""

    prior = next((entry for entry in entries if entry.get("agent_id") == who.id), None)
    is_resumed = prior is not None and prior.get("status") == "completed"
    first = _advise_resumed(project, who, task, prior, entries, hooks) if prior and is_resumed else ""
    words = gate.capabilities_of(who.agent, hooks)
    limits = f"You are held to {', '.join(words)}. " if words else ""
    limits += "Planning, deciding and starting agents are Lead's: report to Lead what else is to be done."
    if task is None:
        lines = [*filter(None, [first, limits]), *project_summary.knowledge_lines(project, most=40)]
        text = project_summary.fit(lines, project_summary.LONG)
    else:
        text = brief.brief(task, knowledge=knowledge_files.as_text(project, 40), first=first)
        if len(text) > _LONGEST_BRIEF:
            id = project_summary.format_id(task["id"])
            text = f"{text[:_LONGEST_BRIEF]}…\n(cut here; nx_task_list has all of task {id})"
        text = f"{text}\n\n{limits}"
    return HostAnswer(context="\n\n".join(filter(None, [text, docs])))


def _read_agents(project: str) -> list[TrackedAgent]:
    """Return the list of agents. Replace a damaged list by an empty one, keep a copy, and log this."""
    try:
        return tracker.entries(project)
    except Damaged:
        tool_log.note_error(project, tracker.reset(project))
        return []


def _find_task(who: HostCaller, project: str, known: str, taken: Collection[str]) -> ProjectTask | None:
    """Return the task that an agent was started for: its own task, or otherwise the only candidate."""
    state = ProjectState(project)
    found = _own_task(state.tasks, who.id, known)
    if found is not None and found["status"] != "completed":
        return found
    own, ready = [task for task in state.tasks if task.get("owner") == who.agent], state.ready_ids
    begun = [task for task in own if task["status"] == "in_progress" and task_key(task) not in taken]
    free = begun or [task for task in own if task["id"] in ready and task_key(task) not in taken]
    return free[0] if len(free) == 1 else None


def _own_task(tasks: Sequence[ProjectTask], agent: str, known: str) -> ProjectTask | None:
    """Return the task of an agent's instance: the task with the instance's id as `owner_agent_id`, or otherwise the
    task for which the instance was started. A task in progress takes precedence, then an open task."""

    def rank(task: ProjectTask) -> tuple[int, bool, bool]:
        return _TURN[task["status"]], task.get("owner_agent_id") != agent, not has_key(task, known)

    own = (task for task in tasks if task.get("owner_agent_id") == agent or has_key(task, known))
    return min(own, key=rank, default=None)


def _advise_resumed(
    project: str,
    who: HostCaller,
    task: ProjectTask | None,
    prior: TrackedAgent,
    entries: Sequence[TrackedAgent],
    hooks: HookContext,
) -> str:
    rules = hooks.agents.get(who.agent)
    ended, tree = prior.get("stopped_at", ""), filenames.ProjectFiles(os.path.realpath(project))
    known = frozenset(prior.get("files_touched", ()))
    if rules and "no_file_edit" in rules.capabilities:
        # Such an agent does not touch files, so it is judged by the files that its report names.
        known |= filenames.find_names([prior.get("last_message", "")], tree)
    files = filenames.find_names_in_tasks([task], tree) if task else known
    others = [
        resume.Touch(entry.get("agent_id", ""), frozenset(entry["files_touched"]), entry["stopped_at"])
        for entry in entries
        if entry.get("stopped_at") and entry.get("files_touched") and entry is not prior
    ]
    if changed := filenames.find_changed_since(project, known | files, ended):
        others.append(resume.Touch("somebody else", changed, _LATER))
    decision = resume.decide(
        agent=who.agent,
        tier=rules.tier if rules else None,
        policy=task.get("owner_reuse_policy") if task else None,
        files=files,
        prior=resume.Prior(who.agent, who.id, who.id, known, ended),
        others=others,
    )
    if decision.session is None:
        reason = decision.reasons[-1].removeprefix("fresh: ")
        what = "You continue in a session you had, though a new one was called for"
        return f"{what} ({reason}). {resume.REREAD}"
    return str(resume.REREAD) if decision.must_reread else ""


def subagent_complete(project: str, event: SubagentComplete, hooks: HookContext, now: str) -> HostAnswer:
    """Record the agent's end and its files. Complete its task unless its report says otherwise."""
    who = event.who
    if not who.id:
        return HostAnswer()
    entries = _read_agents(project)
    is_over = any(entry.get("agent_id") == who.id and entry.get("status") == "completed" for entry in entries)
    status = ""  # the first word after the last `STATUS:` at the start of a line
    for line in event.last_message.splitlines():
        name, _, word = line.strip(" \t>*_`#-").partition(":")
        if name.rstrip("*_` ").upper() == "STATUS":
            status = word.strip(" \t*_`").partition(" ")[0].rstrip("*_`.,;:").lower()
    report = "" if is_over else _complete_task(project, who.id, status, hooks)
    tracker.record_end(
        project,
        agent_id=who.id,
        at=now,
        last_message=hooks.mask().text(event.last_message) if event.last_message else "",
        files=tool_log.read_touched(project, who.id),
        agent_name=who.agent,
    )
    tool_log.forget_touched(project, who.id)
    return HostAnswer(context=report, notice=report)


def _complete_task(project: str, agent: str, status: str, hooks: HookContext) -> str:
    """Complete an agent's task if it is in progress, and return a sentence about it."""
    known, seen = sessions.tasks_of_agents(project).get(agent, ""), overview.task_list(project)
    if seen is not None and all(task["status"] != "in_progress" for task in seen.get("tasks", ())):
        return ""  # reading the tasks the way a tool does takes longer than the rest of the hook
    tasks, problem = project_summary.read_tasks(project)
    if problem:
        reason = f"Its task was not set to completed, because the tasks cannot be read: {problem}"
        return reason if known else ""
    task = _own_task(tasks, agent, known)
    if task is None or task["status"] != "in_progress":
        return ""
    title = f"Task {project_summary.format_id(task['id'])} ({task['title'][:80]})"
    if status in _NOT_DONE:
        advice = "Read its report, then decide."
        return f"{title} is not completed: its agent ended with STATUS: {status}. {advice}"
    try:
        check_allowed(hooks.restrictions, "nx_task_update", TASK_UPDATE)
    except UsageError as exc:
        return f"Its task was not set to completed: {exc.explain()}"
    if not tools.update_as_read(project, task, "completed"):
        return _complete_task(project, agent, status, hooks)  # somebody has just changed the task
    if task not in project_summary.find_unverified(tasks, hooks):
        return f"{title} is completed."
    advice = "It has acceptance criteria and no task checks them: have a tester or a reviewer verify them."
    return f"{title} is completed. {advice}"
