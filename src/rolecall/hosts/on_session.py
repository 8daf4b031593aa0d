"""A session begins, ends, or has forgotten what was said in it."""

from __future__ import annotations

import os
from stat import S_ISREG

from rolecall.hosts import project_summary, sessions, skill_state, tool_log
from rolecall.hosts.event import Answer, ContextCompact, SessionEnd, SessionStart
from rolecall.hosts.hook_context import Kit
from rolecall.hosts.project_summary import Standing
from rolecall.nexus import project_paths, state_file

_START = 600
"""Tokens at the start of a session, where the files of knowledge are listed."""
_COMPACTED = 2_400
"""Tokens after a compaction with a skill's body: a host shows the model only the beginning of what is longer."""


_PLAN_RUN = "`rolecall plan run` is carrying out the tasks of this project at the moment: leave them to it."


def session_start(project: str, event: SessionStart, kit: Kit, now: str) -> Answer:
    """Folders, a list of agents without those of sessions that are gone, and what lies there from before."""
    state_file.ignore_state(project)
    began = sessions.begin(project, event.session, now, kit.process, harness=kit.harness)
    _remove_legacy_tracker(project)
    tool_log.forget_others(project, sessions.agents)
    is_alone = not began.others and not began.is_plan_run
    warnings = [
        _elsewhere(project, event.cwd),
        kit.problem,
        *began.problems,
        *tool_log.errors_before(project),
        *([_left_over(project_summary.Standing(project))] if event.is_new and is_alone else []),
        *([_other_sessions(len(began.others))] if began.others else []),
        *([_PLAN_RUN] if began.is_plan_run else []),
    ]
    said = [warning for warning in warnings if warning]
    lines = [*said, *project_summary.knowledge_lines(project, most=40)]
    return Answer(context=project_summary.fitted(lines, _START), notice="\n".join(said))


def _elsewhere(project: str, cwd: str) -> str:
    """Hooks for one project in a folder of another: it was copied with them, or moved and made anew."""
    if not os.path.isabs(cwd):
        return ""
    root, folder = os.path.realpath(project), os.path.realpath(cwd.replace("\0", ""))
    if os.path.join(folder, "").startswith(os.path.join(root, "")):
        return ""
    return (
        f"Rolecall was installed here for {root}, and this session works in {folder}: edits here are not checked,"
        f" and plan and tasks are those of {root}. `rolecall install` in this folder puts that right."
    )


def _remove_legacy_tracker(project: str) -> None:
    """Harnesses before 0.7 kept their agents where everybody wrote."""
    path = project_paths.state(project, "agent-tracker.json")
    try:
        if S_ISREG(os.lstat(path).st_mode):
            os.unlink(path)
    except FileNotFoundError:
        return


def _left_over(now: Standing) -> str:
    found = [*_plan_words(now), *_task_words(now)]
    if not found:
        return ""
    return (
        f"Left over from before: {' and '.join(found)}. Go on with that (`[run]`), or close the cycle with"
        " nx_task_close (`rolecall task close`), which archives it."
    )


def _plan_words(now: Standing) -> list[str]:
    if now.plan_problem:
        return [f"a plan that cannot be read ({now.plan_problem})"]
    if not now.plan.get("active"):
        return []
    summary = now.plan["summary"]
    return [f"plan {now.plan['topic'][:80]!r} with {summary['pending']} of {summary['total']} issues pending"]


def _task_words(now: Standing) -> list[str]:
    if now.tasks_problem:
        return [f"tasks that cannot be read ({now.tasks_problem})"]
    total = now.summary.get("total")
    return [] if total is None else [f"{total} tasks, {now.unfinished} of them unfinished"]


def _other_sessions(count: int) -> str:
    what = "Another session is" if count == 1 else f"{count} other sessions are"
    return f"{what} open in this project; plan and tasks are shared with it."


def session_end(project: str, event: SessionEnd, kit: Kit, now: str) -> Answer:
    """What is unfinished is named; at the very end the session's own files go. Plan, tasks and knowledge stay."""
    if not os.path.isdir(project_paths.state(project)):
        return Answer()
    state = project_summary.Standing(project)
    warning = _unfinished(state)
    if event.is_over:
        sessions.end(project, event.session, now, harness=kit.harness)
        tool_log.forget_others(project, sessions.agents)
        return Answer(notice=warning)
    base = sessions.known(project, event.session) or sessions.Session(now)
    warned = state_file.digest(warning.encode(errors="replace")) if warning else ""
    after = base._replace(warned=warned)
    if skill_state.is_over(project, base, state):
        after = after._replace(skill="", mode="", since="")
    sessions.note(project, event.session, now, base, after, process=kit.process)
    return Answer(notice=warning if warned != base.warned else "")


def _unfinished(now: Standing) -> str:
    found = [*_plan_words(now), *(_task_words(now) if now.unfinished or now.tasks_problem else [])]
    if not found:
        return ""
    return (
        f"Unfinished: {' and '.join(found)}. It stays for the next session; `rolecall task close` archives plan and"
        " tasks."
    )


def context_compact(project: str, event: ContextCompact, kit: Kit, now: str) -> Answer:
    """Everything that the model has forgotten, from disk: how the project stands, and the words of the active skill."""
    base = sessions.known(project, event.session) or sessions.Session(now)
    words = ""
    if base.skill in kit.skills:
        from rolecall.hosts import skill_text

        words = f"How you work while the skill {base.skill} is active:\n\n"
        words += skill_text.body_of(project, base.skill, kit, beside=words + " " * 4 * project_summary.SHORT)
    budget = max(project_summary.SHORT, min(project_summary.LONG, _COMPACTED - project_summary.tokens(words)))
    standing = project_summary.long(project, base, kit, budget)
    sessions.note(project, event.session, now, base, base._replace(told=""), process=kit.process)
    return Answer(context="\n\n".join(filter(None, [standing, words])))
