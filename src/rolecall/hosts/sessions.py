"""The sessions of hosts in a project: `state/rolecall/sessions.json`.

The file records whether a session is alive, its active skill, the agents it started with their tasks, and digests of
what was last done and said, so that an event that arrives twice is not handled twice. Several sessions can be open in
one project; the start or end of one session does not affect another that is alive.

The file is written as a whole under the project's lock. An unreadable file is set aside and replaced by an empty one,
which later events fill again.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from rolecall.hosts import tool_log
from rolecall.nexus import project_paths, run_record, state_file, tracker
from rolecall.store import holder

if TYPE_CHECKING:
    from rolecall.nexus.reply import ProjectTask
    from rolecall.store.canonical import JsonObject

FILE = "sessions.json"
_FORGOTTEN_MS = 12 * 3_600_000
"""The time without an event after which a session ends if its process is unknown."""
_SILENT_MS = 3_600_000
"""The minimum time between two records that a session is alive, if nothing else in the session changes."""
_LONGEST_MS = 7 * 24 * 3_600_000
"""The time without an event after which any session ends: a process can outlive the sessions it serves."""
_MOST_AGENTS = 500
_SHELLS = frozenset(("sh", "bash", "dash", "zsh", "fish", "ksh", "ash", "env", "timeout", "nice"))

Process: TypeAlias = "JsonObject"
"""A process as `holder` identifies it."""


class HostSession(NamedTuple):
    seen: str
    """The time at which the session's last event was recorded."""
    process: Process | None = None
    """The host's process; None if it is unknown."""
    skill: str = ""
    mode: str = ""
    since: str = ""
    """The time at which the skill became active."""
    agents: Mapping[str, str] = {}
    """The agents that the session started, in order: the `task_key` of each agent's task, by the agent's id."""
    aim: str = ""
    """A digest of the last message with decisions, and the issues that were pending then."""
    handled: str = ""
    """A digest of the last message that was acted upon."""
    told: str = ""
    """A digest of the last summary that the model was shown."""
    warned: str = ""
    """A digest of the last warning to the person."""


Sessions: TypeAlias = dict[str, HostSession]


def load(project: str) -> Sessions:
    path = project_paths.of_harness(project, FILE)
    data = state_file.read(path)
    if data is None:
        return {}
    try:
        found = {name: HostSession(**fields) for name, fields in json.loads(data).items()}
        for session in found.values():  # the file could come from a cloned repository
            milliseconds(session.seen)
            texts = session._asdict()
            _ = {**(texts.pop("process") or {})}, {**texts.pop("agents")}, "".join(texts.values())
    except (ValueError, TypeError, AttributeError, RecursionError) as exc:
        raise state_file.DamagedFile(path, data, f"not a list of sessions: {exc}") from exc
    return found


def is_alive(session: HostSession, now: str) -> bool:
    at, last = milliseconds(now), milliseconds(session.seen)
    lease = {**(session.process or {}), "deadline": last + _FORGOTTEN_MS}
    return at - last < _LONGEST_MS and holder.is_alive(lease, now=at)


def milliseconds(at: str) -> int:
    """Return a time in the format of `project_paths.now` as milliseconds since 1970. It is computed by hand, because
    every hook of a known session needs it, and importing `datetime` would take longer."""
    if len(at) != len("2026-01-31T09:30:00.000Z") or not at.endswith("Z"):
        raise ValueError(f"{at!r} is not a time of ours")
    spans = ((0, 4), (5, 7), (8, 10), (11, 13), (14, 16), (17, 19), (20, 23))
    year, month, day, hour, minute, second, rest = (int(at[start:end]) for start, end in spans)
    if month < 3:  # counting from March puts the leap day last
        year, month = year - 1, month + 12
    days = 365 * year + year // 4 - year // 100 + year // 400 + (153 * month - 457) // 5 + day - 719_469
    return (((days * 24 + hour) * 60 + minute) * 60 + second) * 1000 + rest


def host_process() -> Process | None:
    """Return the process that runs hooks, our nearest ancestor that is not a shell, or None if unknown."""
    pid = os.getppid()
    for _ in range(len(_SHELLS)):
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
                before, _, after = file.read().rpartition(")")
        except OSError:
            return None
        if pid <= 1:
            return None
        if before.partition("(")[2] not in _SHELLS:
            return holder.process(pid)
        pid = int(after.split()[1])
    return None


def find(project: str, session: str) -> HostSession | None:
    """Return the record of a session, or None."""
    return _read(project).get(session)


def tasks_of_agents(project: str) -> dict[str, str]:
    """Return the task of each agent that any session started; the task is empty if it is unknown."""
    return {agent: task for session in _read(project).values() for agent, task in session.agents.items()}


def task_key(task: ProjectTask) -> str:
    """Return a key that identifies a task. The task's number is not enough, because the next cycle reuses it."""
    return f"{task['id']} {state_file.digest(task['title'].encode(errors='replace'))[:8]}"


def has_key(task: ProjectTask, key: str) -> bool:
    """Return whether a task has this key. The title is hashed only if the number matches."""
    return key.startswith(f"{task['id']} ") and key == task_key(task)


def _read(project: str) -> Sessions:
    try:
        return load(project)
    except state_file.DamagedFile:  # the next writer replaces and reports the file
        return {}


class Began(NamedTuple):
    others: tuple[str, ...]
    """Other sessions that are open in this project."""
    problems: tuple[str, ...]
    """Messages about unreadable files that were replaced."""
    is_plan_run: bool = False
    """Whether a `plan run` is carrying out tasks."""


def begin(project: str, session: str, now: str, process: Process | None) -> Began:
    """Start or resume a session, and clean up after sessions that no longer exist."""
    with state_file.hold_lock(project):
        found, problem = _load_or_reset(project)
        live = {name: one for name, one in found.items() if name == session or is_alive(one, now)}
        known = live.get(session, HostSession(now))
        live[session] = known._replace(seen=now, process=process or known.process, told="", warned="")
        _write(project, live)
        # A damaged file does not show which session owns an agent, so all agents stay.
        problem = problem or _clear_agents(project, live)
    others = tuple(name for name in live if name != session)
    return Began(others, (problem,) if problem else (), bool(run_record.threads_at_work(project)))


def end(project: str, session: str, now: str) -> None:
    """End a session. If no other session is alive, remove the list of agents, unless agents of a plan are running."""
    with state_file.hold_lock(project):
        found = _load_and_log(project)
        live = {name: one for name, one in found.items() if name != session and is_alive(one, now)}
        if live or run_record.threads_at_work(project):
            _clear_agents(project, live)
        else:
            tracker.remove(project)
        _write(project, live)


def _clear_agents(project: str, live: Sessions) -> str:
    """Remove the agents of sessions that no longer exist; a running plan's agents have no session and stay."""
    plan_agents = tuple(f"{thread}:" for thread in run_record.threads_at_work(project))
    agents = {agent for session in live.values() for agent in session.agents}
    return tracker.keep_only(project, agents, also=plan_agents)


def change(
    project: str,
    session: str,
    now: str,
    edit: Callable[[HostSession], HostSession],
    *,
    process: Process | None,
) -> HostSession:
    """Change the record of a session, and create it if the start of the session was missed."""
    with state_file.hold_lock(project):
        found = _load_and_log(project)
        before = found.get(session, HostSession(now))
        after = edit(before)._replace(seen=now, process=process or before.process)
        after = after._replace(agents=dict(list(after.agents.items())[-_MOST_AGENTS:]))
        _write(project, {**found, session: after})
    return after


def aim(
    project: str, session: str, now: str, message: str, issues: Sequence[float], *, process: Process | None
) -> list[float]:
    """Return the issues that were pending when a message first arrived. Its decisions apply to these issues, so that a
    second hook for the same message does not decide the next issue."""
    mine = " ".join([message, *map(str, issues)])

    def edit(found: HostSession) -> HostSession:
        return found if found.aim.partition(" ")[0] == message else found._replace(aim=mine)

    return [float(word) for word in change(project, session, now, edit, process=process).aim.split()[1:]]


def note(
    project: str, session: str, now: str, before: HostSession, after: HostSession, *, process: Process | None
) -> None:
    """Record the changes in a session. Without changes, record only occasionally that the session is alive."""
    changed = {name: value for name, value in after._asdict().items() if value != getattr(before, name)}
    is_elsewhere = before.process is not None and process not in (None, before.process)
    is_silent = milliseconds(now) - milliseconds(before.seen) > _SILENT_MS
    if changed or is_elsewhere or is_silent:
        change(project, session, now, lambda found: found._replace(**changed), process=process)


def _load_and_log(project: str) -> Sessions:
    found, problem = _load_or_reset(project)
    if problem:
        tool_log.note_error(project, problem)
    return found


def _load_or_reset(project: str) -> tuple[Sessions, str]:
    try:
        return load(project), ""
    except state_file.DamagedFile as exc:
        return {}, state_file.set_aside(project, exc)


def _write(project: str, found: Sessions) -> None:
    path = project_paths.of_harness(project, FILE)
    if not found:
        state_file.remove(path)
        return
    state_file.make_folder(os.path.dirname(path))
    fields = {name: session._asdict().items() for name, session in found.items()}
    records = {name: {key: value for key, value in pairs if value} for name, pairs in fields.items()}
    state_file.replace(project, path, f"{json.dumps(records)}\n".encode(), must_last=False)
