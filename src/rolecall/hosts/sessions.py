"""The sessions of hosts in a project: `state/rolecall/sessions.json`, ours alone.

Of each session: whether it is alive, the active skill, which agents it started for which task, and digests of what was
done and said last, so that an event that comes twice is not acted upon twice. Two sessions of any hosts may be open in
one project; what belongs to one that lives is not touched by the beginning or the end of another.

Written as a whole under the project's lock. A file that cannot be read is kept aside and begun anew: what it knew is
found again as events come.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from rolecall.hosts import tool_log
from rolecall.nexus import project_paths, state_file, tracker
from rolecall.nexus.project_paths import HARNESS
from rolecall.store import holder

FILE = "sessions.json"
_FORGOTTEN_MS = 12 * 3_600_000
"""After how long without a word a session is over whose process is not known."""
_SILENT_MS = 3_600_000
"""After how long a session that only talks is written down as alive."""
_LONGEST_MS = 7 * 24 * 3_600_000
"""After how long any session is: a process that serves many may outlive them."""
_MOST_AGENTS = 500
_SHELLS = frozenset(("sh", "bash", "dash", "zsh", "fish", "ksh", "ash", "env", "timeout", "nice"))

Process: TypeAlias = Mapping[str, Any]
"""A process as `holder` tells it apart."""


class Session(NamedTuple):
    seen: str
    """When it last said something that was written down."""
    process: Process | None = None
    """The host's, where it is known."""
    skill: str = ""
    mode: str = ""
    since: str = ""
    """When the skill became active."""
    agents: Mapping[str, str] = {}
    """The agents it started, by id, and the task of each by `task_key`; in the order they were started."""
    aim: str = ""
    """A digest of the last message with decisions, and the issues that were pending then."""
    handled: str = ""
    """A digest of the last message that something was done about."""
    told: str = ""
    """A digest of the last state that was put before the model."""
    warned: str = ""
    """A digest of the last warning to the person."""


Sessions: TypeAlias = dict[str, Session]


def load(project: str) -> Sessions:
    path = project_paths.of_harness(project, FILE)
    data = state_file.read(path)
    if data is None:
        return {}
    try:
        return {name: _session(fields) for name, fields in json.loads(data).items()}
    except (ValueError, TypeError, AttributeError, RecursionError) as exc:
        raise state_file.DamagedFile(path, data, f"no list of sessions: {exc}") from exc


def _session(fields: Mapping[str, Any]) -> Session:
    found = Session(**fields)
    texts = (
        found.seen,
        found.skill,
        found.mode,
        found.since,
        found.aim,
        found.handled,
        found.told,
        found.warned,
    )
    if not all(isinstance(text, str) for text in texts):
        raise TypeError("a text is something else")
    milliseconds(found.seen)
    agents = {str(agent): str(task) for agent, task in found.agents.items()}
    return found._replace(agents=agents, process=dict(found.process) if found.process else None)


def is_alive(session: Session, now: str) -> bool:
    at, last = milliseconds(now), milliseconds(session.seen)
    lease = {**(session.process or {}), "deadline": last + _FORGOTTEN_MS}
    return at - last < _LONGEST_MS and holder.is_alive(lease, now=at)


def milliseconds(at: str) -> int:
    """The moment of a time as `place.now` writes it, since 1970. By hand: every hook that knows its session asks for
    it, and importing `datetime` would take it longer than all the rest here."""
    if len(at) != len("2026-01-31T09:30:00.000Z") or not at.endswith("Z"):
        raise ValueError(f"{at!r} is no time of ours")
    spans = ((0, 4), (5, 7), (8, 10), (11, 13), (14, 16), (17, 19), (20, 23))
    year, month, day, hour, minute, second, rest = (int(at[start:end]) for start, end in spans)
    if month < 3:  # counted from March, the day that a leap year has more is the last
        year, month = year - 1, month + 12
    days = 365 * year + year // 4 - year // 100 + year // 400 + (153 * month - 457) // 5 + day - 719_469
    return (((days * 24 + hour) * 60 + minute) * 60 + second) * 1000 + rest


def host_process() -> Process | None:
    """The process that runs hooks: the nearest one above us that is no shell. None where that cannot be told."""
    pid = os.getppid()
    for _ in range(len(_SHELLS)):
        name, above = _name_and_parent(pid)
        if pid <= 1 or not name:
            return None
        if name not in _SHELLS:
            return holder.process(pid)
        pid = above
    return None


def _name_and_parent(pid: int) -> tuple[str, int]:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            before, _, behind = file.read().rpartition(")")
    except OSError:
        return "", 0
    return before.partition("(")[2], int(behind.split()[1])


def known(project: str, session: str) -> Session | None:
    """What is on record of a session."""
    return _read(project).get(session)


def agents(project: str) -> set[str]:
    """The agents that any session started."""
    return _agents_of(_read(project).values())


def task_key(task: Mapping[str, Any]) -> str:
    """What a task is known by. Its number alone is another task's in the next cycle."""
    return f"{task['id']} {state_file.digest(task['title'].encode(errors='replace'))[:8]}"


def is_known_by(key: str, task: Mapping[str, Any]) -> bool:
    """Whether this is the task of a key. Of a thousand tasks only one has its title hashed."""
    return key.startswith(f"{task['id']} ") and key == task_key(task)


def working(project: str) -> dict[str, str]:
    """The task of each agent that any session started; empty where it is not known."""
    return {agent: task for session in _read(project).values() for agent, task in session.agents.items()}


def _read(project: str) -> Sessions:
    """Without the lock. What cannot be read is no reason to fail here: the next writer begins it anew and says so."""
    try:
        return load(project)
    except state_file.DamagedFile:
        return {}


# -- changing --


class Began(NamedTuple):
    others: tuple[str, ...]
    """Other sessions that are open in this project."""
    problems: tuple[str, ...]
    """Files that could not be read and began anew."""
    is_plan_run: bool = False
    """Whether a `plan run` is at work."""


def begin(project: str, session: str, now: str, process: Process | None, *, harness: str = HARNESS) -> Began:
    """A session begins, or goes on: what sessions that are gone left is cleared away."""
    with state_file.locked(project):
        found, problem = _usable(project)
        live = {name: one for name, one in found.items() if name == session or is_alive(one, now)}
        known = live.get(session, Session(now))
        live[session] = known._replace(seen=now, process=process or known.process, told="", warned="")
        _write(project, live)
        # Whose agents are whose is not known from a file that was damaged: then all of them stay.
        problems = [problem or _clear_agents(project, live, harness)]
    others = tuple(name for name in live if name != session)
    return Began(others, tuple(filter(None, problems)), bool(_threads_of_plan(project)))


def end(project: str, session: str, now: str, *, harness: str = HARNESS) -> None:
    """A session is over; with the last one the list of agents goes, unless agents of a plan are at work."""
    with state_file.locked(project):
        found = _found(project)
        live = {name: one for name, one in found.items() if name != session and is_alive(one, now)}
        if live or _threads_of_plan(project):
            _clear_agents(project, live, harness)
        else:
            tracker.discard(project, harness=harness)
        _write(project, live)


def _clear_agents(project: str, live: Sessions, harness: str) -> str:
    """Take out of the list the agents of sessions that are gone. Those of a plan that is being run have no session."""
    return tracker.keep_only(
        project,
        _agents_of(live.values()),
        also=tuple(f"{thread}:" for thread in _threads_of_plan(project)),
        harness=harness,
    )


def _threads_of_plan(project: str) -> tuple[str, ...]:
    from rolecall.plan_run import ledger  # asked for when a session begins or ends, and by no other event

    return ledger.threads_at_work(project)


def change(
    project: str,
    session: str,
    now: str,
    edit: Callable[[Session], Session],
    *,
    process: Process | None,
) -> Session:
    """Write down something of a session; one whose beginning was never told begins so. One that goes on in another
    process, and did not say so, is that one's."""
    with state_file.locked(project):
        found = _found(project)
        before = found.get(session, Session(now))
        after = edit(before)._replace(seen=now, process=process or before.process)
        after = after._replace(agents=dict(list(after.agents.items())[-_MOST_AGENTS:]))
        _write(project, {**found, session: after})
    return after


def aim(
    project: str, session: str, now: str, message: str, issues: Sequence[float], *, process: Process | None
) -> list[float]:
    """The issues that were pending when a message first arrived. Its decisions apply to these, so that a second hook
    for the same message does not decide the next issue."""
    mine = " ".join([message, *map(str, issues)])

    def edit(found: Session) -> Session:
        return found if found.aim.partition(" ")[0] == message else found._replace(aim=mine)

    return [float(word) for word in change(project, session, now, edit, process=process).aim.split()[1:]]


def note(
    project: str, session: str, now: str, before: Session, after: Session, *, process: Process | None
) -> None:
    """Write down what has changed of a session. Most events change nothing; then nothing is locked or written, but for
    a sign of life now and then."""
    changed = {name: value for name, value in after._asdict().items() if value != getattr(before, name)}
    is_elsewhere = before.process is not None and process not in (None, before.process)
    is_silent = milliseconds(now) - milliseconds(before.seen) > _SILENT_MS
    if changed or is_elsewhere or is_silent:
        change(project, session, now, lambda found: found._replace(**changed), process=process)


def _found(project: str) -> Sessions:
    found, problem = _usable(project)
    if problem:
        tool_log.note_error(project, problem)
    return found


def _usable(project: str) -> tuple[Sessions, str]:
    try:
        return load(project), ""
    except state_file.DamagedFile as exc:
        copy = state_file.kept_aside(project, exc).copy
        return {}, f"{exc.path} could not be used ({exc.problem}) and began anew. A copy is in {copy}"


def _agents_of(found: Iterable[Session]) -> set[str]:
    return {agent for session in found for agent in session.agents}


def _write(project: str, found: Sessions) -> None:
    path = project_paths.of_harness(project, FILE)
    if not found:
        state_file.remove(path)
        return
    state_file.make_folder(os.path.dirname(path))
    text = json.dumps({name: _as_json(session) for name, session in found.items()})
    state_file.replace(project, path, f"{text}\n".encode(), must_last=False)


def _as_json(session: Session) -> Mapping[str, Any]:
    return {name: value for name, value in session._asdict().items() if value}
