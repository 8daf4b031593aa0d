"""An agent that Lead started begins or ends."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from typing import TypeVar

from rolecall.errors import Damaged, UsageError
from rolecall.hosts import project_summary, sessions, tool_log
from rolecall.hosts.event import Answer, Caller, SubagentComplete, SubagentSpawn
from rolecall.hosts.hook_context import Kit
from rolecall.hosts.project_summary import Standing, Task
from rolecall.hosts.sessions import Session, is_known_by, task_key
from rolecall.nexus import tools, tracker
from rolecall.settings.capabilities import TASK_UPDATE, check_allowed

T = TypeVar("T")

_LONGEST_BRIEF = 8_000
"""Characters of a task: a host shows the model only the beginning of what is longer, and not where it was cut."""
_TURN = {"in_progress": 0, "pending": 1, "completed": 2}
"""Which of several tasks of one agent it works on."""
_NOT_DONE = ("blocked", "partial")
"""Words after `STATUS:` in a report with which an agent leaves its task open."""
_SINCE = "9999"
"""Later than any time: that a file was written after an agent had ended is known from the file."""


def subagent_spawn(project: str, event: SubagentSpawn, kit: Kit, now: str) -> Answer:
    """On record as running; told what it may not do, its task if that is certain, and what the project knows."""
    who, standing = event.who, project_summary.Standing(project)
    task, entries = None, []
    if who.id:
        entries = _tracked(project, kit, lambda: tracker.entries(project, harness=kit.harness))
        running = {entry.get("agent_id") for entry in entries if entry.get("status") == "running"}
        working = sessions.working(project)
        taken = {key for agent, key in working.items() if agent in running and agent != who.id}
        task = _task_of(who, standing, working.get(who.id, ""), taken)
        link = sessions.task_key(task) if task else ""
        # The session's record first: an entry that no session answers for is cleared away.
        sessions.change(
            project, event.session, now, lambda one: _with_agent(one, who.id, link), process=kit.process
        )
        _tracked(
            project,
            kit,
            lambda: tracker.spawned(
                project, agent_name=who.agent, agent_id=who.id, at=now, harness=kit.harness
            ),
        )
    told = _spawn_words(project, who, task, entries, kit)
    active = sessions.known(project, event.session)
    docs = kit.docs.get(active.skill, "") if active else ""
    return Answer(context="\n\n".join(filter(None, [told, docs])))


def _tracked(project: str, kit: Kit, act: Callable[[], T]) -> T:
    """With the list of agents as it is; one that is damaged is kept aside and begins anew, and that is said."""
    try:
        return act()
    except Damaged:
        tool_log.note_error(project, tracker.reset(project, harness=kit.harness))
        return act()


def _with_agent(found: Session, agent: str, task: str) -> Session:
    return found._replace(agents={**found.agents, agent: task or found.agents.get(agent, "")})


def _task_of(who: Caller, standing: Standing, known: str, taken: Collection[str]) -> Task | None:
    """The task that an agent was started for: its own, else the only candidate. A resumed agent has a task in progress
    now, and others from before."""
    found = _own_task(standing.tasks, who.id, known)
    if found is not None and found["status"] != "completed":
        return found
    own, ready = [task for task in standing.tasks if task.get("owner") == who.agent], standing.ready_ids
    begun = [task for task in own if task["status"] == "in_progress" and task_key(task) not in taken]
    free = begun or [task for task in own if task["id"] in ready and task_key(task) not in taken]
    return free[0] if len(free) == 1 else None


def _own_task(tasks: Sequence[Task], agent: str, known: str) -> Task | None:
    """The task of an instance: the one with its id as `owner_agent_id`, else the one it was started for. A task in
    progress comes before an open one, and an open one before a completed one."""

    def rank(task: Task) -> tuple[int, bool, bool]:
        return _TURN[task["status"]], task.get("owner_agent_id") != agent, not is_known_by(known, task)

    own = (task for task in tasks if task.get("owner_agent_id") == agent or is_known_by(known, task))
    return min(own, key=rank, default=None)


def _spawn_words(
    project: str, who: Caller, task: Task | None, entries: Sequence[tracker.Entry], kit: Kit
) -> str:
    from rolecall.nexus import brief, knowledge_files

    first = _resumed_words(project, who, task, entries, kit)
    limits = _limit_words(who, kit)
    if task is None:
        lines = [*filter(None, [first, limits]), *project_summary.knowledge_lines(project, most=40)]
        return project_summary.fitted(lines, project_summary.LONG)
    told = brief.brief(task, knowledge=knowledge_files.as_text(project, 40), first=first)
    if len(told) > _LONGEST_BRIEF:
        number = project_summary.number(task["id"])
        told = f"{told[:_LONGEST_BRIEF]}…\n(cut here; nx_task_list has all of task {number})"
    return f"{told}\n\n{limits}"


def _limit_words(who: Caller, kit: Kit) -> str:
    from rolecall.hosts import gate

    words = gate.capabilities_of(who.agent, kit)
    held = f"You are held to {', '.join(words)}. " if words else ""
    return f"{held}Planning, deciding and starting agents are Lead's: report to Lead what else is to be done."


def _resumed_words(
    project: str, who: Caller, task: Task | None, entries: Sequence[tracker.Entry], kit: Kit
) -> str:
    """What an agent is told that goes on in a session it had; empty for one that begins."""
    prior = next((entry for entry in entries if entry.get("agent_id") == who.id), None)
    if prior is None or prior.get("status") != "completed":
        return ""
    from rolecall.nexus import resume
    from rolecall.plan_run import filenames

    rules = kit.agents.get(who.agent)
    ended, tree = prior.get("stopped_at", ""), filenames.Tree(os.path.realpath(project))
    known = frozenset(prior.get("files_touched", ()))
    if rules and "no_file_edit" in rules.capabilities:
        # It touches no files, so the files that its report names count.
        known |= filenames.named([prior.get("last_message", "")], tree)
    files = filenames.named_by([task], tree) if task else known
    others = [
        resume.Touch(entry.get("agent_id", ""), frozenset(entry["files_touched"]), entry["stopped_at"])
        for entry in entries
        if entry.get("stopped_at") and entry.get("files_touched") and entry is not prior
    ]
    changed = filenames.changed_since(project, known | files, ended)
    others += [resume.Touch("somebody else", changed, _SINCE)] if changed else []
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
        return f"You go on in a session you had, though a new one was called for ({reason}). {resume.REREAD}"
    return resume.REREAD if decision.must_reread else ""


def subagent_complete(project: str, event: SubagentComplete, kit: Kit, now: str) -> Answer:
    """Record the agent's end and the files it touched, complete its task unless its report says otherwise, and ask for
    a check."""
    who = event.who
    if not who.id:
        return Answer()
    entries = _tracked(project, kit, lambda: tracker.entries(project, harness=kit.harness))
    is_over = any(entry.get("agent_id") == who.id and entry.get("status") == "completed" for entry in entries)
    said = "" if is_over else _completed_words(project, who.id, _status_in(event.last_message), kit)
    files = tool_log.touched(project, who.id)
    tracker.completed(
        project,
        agent_id=who.id,
        at=now,
        last_message=kit.mask().text(event.last_message) if event.last_message else "",
        files=files,
        agent_name=who.agent,
        harness=kit.harness,
    )
    tool_log.forget_touched(project, who.id)
    return Answer(context=said, notice=said)


def _status_in(report: str) -> str:
    """The first word after the last `STATUS:` at the beginning of a line; empty if there is no such line."""
    found = ""
    for line in report.splitlines():
        name, _, word = line.strip(" \t>*_`#-").partition(":")
        if name.rstrip("*_` ").upper() == "STATUS":
            found = word.strip(" \t*_`").partition(" ")[0].rstrip("*_`.,;:").lower()
    return found


def _completed_words(project: str, agent: str, status: str, kit: Kit) -> str:
    """Complete the task of an agent if it is being worked on; what is to be said about it."""
    known = sessions.working(project).get(agent, "")
    found, problem = project_summary.checked_tasks(project)
    if problem:
        return (
            f"Its task was not set to completed, because the tasks cannot be read: {problem}" if known else ""
        )
    task = _own_task(found, agent, known)
    if task is None or task["status"] != "in_progress":
        return ""
    title = f"Task {project_summary.number(task['id'])} ({task['title'][:80]})"
    if status in _NOT_DONE:
        return (
            f"{title} is not completed: its agent ended with STATUS: {status}. Read its report, then decide."
        )
    try:
        check_allowed(kit.restrictions, "nx_task_update", TASK_UPDATE)
    except UsageError as exc:
        return f"Its task was not set to completed: {exc.message}. {exc.hint}"
    if not tools.update_as_read(project, task, "completed"):
        return _completed_words(project, agent, status, kit)  # it was changed just now
    if task not in project_summary.unverified(found, kit):
        return f"{title} is completed."
    return (
        f"{title} is completed. It has acceptance criteria and no task checks them: have a tester or a reviewer verify"
        " them."
    )
