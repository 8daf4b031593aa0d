"""Handles the start, the end and the compaction of a session."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from rolecall.hosts import handed_over, project_summary, sessions, skill, tool_log
from rolecall.hosts.event import ContextCompact, HostAnswer, SessionEnd, SessionStart
from rolecall.hosts.hook_context import HookContext
from rolecall.hosts.project_summary import ProjectState
from rolecall.nexus import project_paths, state_file
from rolecall.store.lazy import Module

if TYPE_CHECKING:
    from rolecall.hosts import thread_news
else:
    thread_news = Module("rolecall.hosts.thread_news")  # opens the store

_START = 600
"""The number of tokens for the answer at the start of a session, which lists the knowledge files."""
_COMPACTED = 2_400
"""The number of tokens after a compaction, with a skill's body; a host cuts a longer text."""


def session_start(project: str, event: SessionStart, hooks: HookContext, now: str) -> HostAnswer:
    """Create the folders, forget the agents of sessions that no longer exist, and report unfinished work."""
    state_file.ignore_state(project)
    began = sessions.begin(project, event.session, now, hooks.process)
    legacy = project_paths.state(project, "agent-tracker.json")  # the place until version 0.7 of the contract
    if os.path.isfile(legacy) and not os.path.islink(legacy):
        os.unlink(legacy)
    tool_log.forget_others(project, sessions.tasks_of_agents)

    warnings = []
    root, folder = os.path.realpath(project), os.path.realpath(event.cwd.replace("\0", ""))
    if os.path.isabs(event.cwd) and not os.path.join(folder, "").startswith(os.path.join(root, "")):
        # The folder is a copy of the project with its hooks, or the project was moved and created again.
        warnings.append(
            f"Rolecall was installed here for {root}, and this session works in {folder}: edits here are not checked,"
            f" and plan and tasks are those of {root}. `rolecall install` in this folder fixes that."
        )
    warnings += [hooks.problem, *began.problems, *tool_log.take_errors(project)]
    if event.is_new and not began.others and not began.is_plan_run:
        state = ProjectState(project)
        if left := [*_plan_words(state), *_task_words(state)]:
            warnings.append(
                f"Left over from before: {' and '.join(left)}. Continue it (`[run]`), or close the cycle with"
                " nx_task_close (`rolecall task close`), which archives it."
            )
    if began.others:
        count = len(began.others)
        what, whom = ("Another session is", "it") if count == 1 else (f"{count} other sessions are", "them")
        warnings.append(f"{what} open in this project; plan and tasks are shared with {whom}.")
    if began.is_plan_run:
        warnings.append(
            "`rolecall plan run` is carrying out the tasks of this project at the moment: leave them to it."
        )
    if threads := handed_over.list_noted(project):
        warnings += thread_news.take(project, threads)
    warnings = list(filter(None, warnings))
    lines = [*warnings, *project_summary.knowledge_lines(project, most=40)]
    return HostAnswer(context=project_summary.fit(lines, _START), notice="\n".join(warnings))


def _plan_words(state: ProjectState) -> list[str]:
    if state.plan_problem:
        return [f"a plan that cannot be read ({state.plan_problem})"]
    if not state.plan["active"]:
        return []
    topic, summary = state.plan["topic"][:80], state.plan["summary"]
    return [f"plan {topic!r} with {summary['pending']} of {summary['total']} issues pending"]


def _task_words(state: ProjectState) -> list[str]:
    if state.tasks_problem:
        return [f"tasks that cannot be read ({state.tasks_problem})"]
    if state.summary is None:
        return []
    return [f"{state.summary['total']} tasks, {state.unfinished} of them unfinished"]


def session_end(project: str, event: SessionEnd, hooks: HookContext, now: str) -> HostAnswer:
    """Report unfinished work. If the session is over, remove its own files. The plan, tasks and knowledge stay."""
    if not os.path.isdir(project_paths.state(project)):
        return HostAnswer()
    state = ProjectState(project)
    left = _plan_words(state) + (_task_words(state) if state.unfinished or state.tasks_problem else [])
    warning = ""
    if left:
        closing = "It stays for the next session; `rolecall task close` archives plan and tasks."
        warning = f"Unfinished: {' and '.join(left)}. {closing}"
    if event.is_over:
        sessions.end(project, event.session, now)
        tool_log.forget_others(project, sessions.tasks_of_agents)
        return HostAnswer(notice=warning)
    before = sessions.find(project, event.session) or sessions.HostSession(now)
    warned = state_file.digest(warning.encode(errors="replace")) if warning else ""
    after = before._replace(warned=warned)
    if skill.is_over(project, before, state):
        after = after._replace(skill="", mode="", since="")
    sessions.note(project, event.session, now, before, after, process=hooks.process)
    return HostAnswer(notice=warning if warned != before.warned else "")


def context_compact(project: str, event: ContextCompact, hooks: HookContext, now: str) -> HostAnswer:
    """Repeat from disk what the model has forgotten: the state of the project and the active skill's text."""
    session = sessions.find(project, event.session) or sessions.HostSession(now)
    words = ""
    if session.skill in hooks.skills:
        words = f"How you work while the skill {session.skill} is active:\n\n"
        words += skill.body_of(project, session.skill, hooks, beside=words + " " * 4 * project_summary.SHORT)
    left = _COMPACTED - project_summary.count_tokens(words)
    budget = max(project_summary.SHORT, min(project_summary.LONG, left))
    summary = project_summary.describe(project, session, hooks, budget)
    sessions.note(project, event.session, now, session, session._replace(told=""), process=hooks.process)
    return HostAnswer(context="\n\n".join(filter(None, [summary, words])))
