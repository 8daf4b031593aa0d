"""The supervisor's side of a step: every question of its process is checked here before the store hears of it.

A step may read nodes by their ids and workflows by their names. It may move its own thread, the threads that its
roles have started and the sessions they had, and append to their events; whatever else it asks for is a
`Violation`, which ends that process and its thread. Bytes are checked against ids, payloads against types.

With what the step does to its thread goes, in the same transaction, what follows for the service: the slot of a
thread that has ended, what a step has cost, and that an agent which was ended by a signal is a crash, to be
tried again, and no reason to wait for a person.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any

from rolecall.errors import Conflict, Damaged, InvalidValue, NotFound, RolecallError, UsageError
from rolecall.service import queue
from rolecall.service.pipestore import change_in, error_out, framed, record_out
from rolecall.service.queue import BY_SERVICE, Slot
from rolecall.store.backend import Change, Move, NewEvent, Record, Ref
from rolecall.store.ids import is_node_id, is_thread_id
from rolecall.store.schema import Type
from rolecall.store.store import META, Store, check, checked_name, make_record, payload_of
from rolecall.threads import thread
from rolecall.threads.sessions import LOOK_BACK
from rolecall.threads.state import ThreadState, load, load_state, read_thread

MOST_EVENTS = 100_000
MOST_BYTES = 512 * 1024 * 1024
"""What one step may have written down, in events and in bytes of its questions."""
_LONGEST_LIST = 10_000
_GIVEN = ("idle", "running", "suspended", "completed", "failed")
"""The statuses that a step gives its thread; the others are the service's and people's to give."""
_FIXED = ("name", "workflow")
"""What a thread is from beginning to end."""


_MISFITS = (TypeError, ValueError, AttributeError, LookupError, RecursionError)


class Violation(Exception):
    """A step has asked for what is not its own, or in a form that no step asks in."""


class Gate:
    """What the process of one step may do to the store."""

    def __init__(
        self,
        store: Store,
        slot: Slot,
        *,
        host: str,
        checked: set[str],
        told: Callable[[str], None] = lambda _stream: None,
        moved: Callable[[Ref], None] = lambda _ref: None,
    ) -> None:
        """`checked` are types that were found to be some before, by any gate; `told` hears of every thread to which
        events were added, `moved` of every ref that was moved."""
        self._store = store
        self._slot = slot
        self._own = {slot.thread}
        self._sessions: set[str] = set()
        self._host = host
        self._checked = checked
        self._told = told
        self._moved = moved
        self._events = 0
        self._bytes = 0
        self._agent_ended = ""
        """How the last attempt ended, when a signal ended its agent."""
        self.report: Mapping[str, Any] | None = None
        """What the process has said of its end."""

    def answer(self, question: bytes) -> bytes:
        self._bytes += len(question)
        if self._bytes > MOST_BYTES:
            raise Violation(f"its step has written more than {MOST_BYTES // 1024 // 1024} MB")
        words = _parsed(question)
        verbs: dict[str, Callable[..., Any]] = {
            "commit": self._commit,
            "records": self._records,
            "stored": self._stored,
            "ids_with_prefix": self._ids_with_prefix,
            "ref": self._ref,
            "refs": self._refs,
            "done": self._done,
        }
        verb = verbs.get(words[0]) if isinstance(words[0], str) else None
        if verb is None:
            raise Violation(f"its worker has asked for {str(words[0])[:80]!r}, which is nothing")
        try:
            return framed({"value": verb(*words[1:])})
        except RolecallError as error:
            return framed({"error": error_out(error)})
        except _MISFITS as error:  # too few words, or words of another kind
            raise Violation(f"its worker has asked for {words[0]} in a wrong form: {error}") from error

    # -- reading --

    def _records(self, nodes: list[str]) -> list[Any]:
        return [record_out(record) for record in self._store.backend.records(_ids(nodes))]

    def _stored(self, nodes: list[str]) -> list[str]:
        return sorted(self._store.backend.stored(_ids(nodes)))

    def _ids_with_prefix(self, prefix: str, limit: int) -> list[str]:
        if not isinstance(prefix, str) or not isinstance(limit, int) or len(prefix) < 4:
            raise Violation("its worker has asked for ids without their beginning")
        return self._store.backend.ids_with_prefix(prefix, min(limit, 10))

    def _ref(self, name: str) -> Ref | None:
        self._check_readable(name)
        return self._store.ref(name)

    def _refs(self, prefix: str) -> list[Ref]:
        if prefix != "workflow/":
            raise Violation(f"its worker has asked for all refs under {str(prefix)[:80]!r}")
        return self._store.refs(prefix)

    def _done(self, report: dict[str, Any]) -> None:
        is_told = isinstance(report, dict) and (
            "error" not in report
            or all(isinstance(report.get(key), str) for key in ("error", "message", "hint"))
        )
        if not is_told:
            raise Violation("its worker has not said how its step ended")
        self.report = report

    def _check_readable(self, name: object) -> None:
        kind, _, rest = name.partition("/") if isinstance(name, str) else ("", "", "")
        is_known = (
            (kind in ("thread", "attempt") and (self._is_ours(rest) or rest in self._relatives()))
            or (kind == "session" and self._is_session(rest))
            or kind == "workflow"
        )
        if not is_known:
            raise Violation(f"its worker has asked for {str(name)[:80]!r}, which is not its own")

    def _relatives(self) -> set[str]:
        """The threads that a step looks at: those it plays in, and the one it was forked from."""
        found: set[str] = set()
        waiting = list(self._own)
        while waiting:
            ref = read_thread(self._store, waiting.pop())
            related = [ref.state.parent, ref.state.forked_thread] if ref else []
            new = [name for name in related if name and name not in found]
            found.update(new)
            waiting += new
        return found

    def _is_session(self, session: str) -> bool:
        """Whether a session is one that this thread has had, or nobody's yet."""
        if session in self._sessions:
            return True
        if self._store.ref(thread.session_name(session)) is not None and session not in self._past_sessions():
            return False
        self._sessions.add(session)
        return True

    def _past_sessions(self) -> set[str]:
        found: set[Any] = set()
        for name in self._own:
            ref = read_thread(self._store, name)
            note = self._store.ref(thread.attempt_name(name))
            found.add(note.state.get("session") if note else None)
            steps = islice(thread.Chain(self._store, ref.head), LOOK_BACK) if ref else ()
            found.update(step.payload.get("session") for step in steps)
            for origin in ref.state.sessions.values() if ref else ():
                if self._store.has(origin.get("step", "")):
                    found.add(
                        thread.Step(self._store, self._store.get(origin["step"])).payload.get("session")
                    )
        return {session for session in found if isinstance(session, str)}

    # -- writing --

    def _commit(self, told: Sequence[Any], durable: bool) -> list[Ref]:
        change = _shaped(change_in(told))
        nodes = self._checked_nodes(change.nodes)
        for move in change.moves:
            self._check_move(move)
        for event in change.events:
            if event.stream not in self._own:
                raise Violation(
                    f"its worker has added an event to {event.stream[:80]!r}, which is not its own"
                )
        self._events += len(change.events)
        if self._events > MOST_EVENTS:
            raise Violation(f"its step has added more than {MOST_EVENTS:,} events")
        full, moved = self._committed(change._replace(nodes=nodes), durable=bool(durable))
        for ref in moved:
            self._moved(ref)
        for stream in {event.stream for event in full.events}:
            self._told(stream)
        return moved[: len(change.moves)]

    def _committed(self, change: Change, *, durable: bool) -> tuple[Change, list[Ref]]:
        """All of it, with what follows from it. What follows moves refs that others move as well, the slot and what a
        day has cost; that somebody else was faster there is no conflict of the step's."""
        while True:
            full = self._with_consequences(change)
            try:
                return full, self._store.backend.commit(full, now=self._store.now(), durable=durable)
            except Conflict:
                if not all(map(self._is_as_seen, change.moves)):
                    raise

    def _is_as_seen(self, move: Move) -> bool:
        ref = self._store.ref(move.name)
        return (ref.version if ref else 0) == move.expected

    def _checked_nodes(self, nodes: Sequence[Record]) -> list[Record]:
        fresh = {record.id: record for record in nodes}
        try:
            return [self._checked_node(record, fresh) for record in nodes]
        except (Damaged, InvalidValue) as error:
            raise Violation(f"its worker has put a node that is none: {error.message}") from error

    def _checked_node(self, record: Record, fresh: Mapping[str, Record]) -> Record:
        check(record)
        if record.id in self._checked or record.id == META:
            return record
        kind, payload = self._type(record.type, fresh), payload_of(record)
        if misfits := kind.misfits(payload):
            raise Violation(f"its worker has put a node that does not fit its type: {misfits[0]}")
        if record.type == META:  # every transaction brings its types along
            self._checked.add(record.id)
        # What a node refers to keeps other nodes from being collected, so nobody is believed about it.
        return make_record(record.type, record.data, kind.refs(payload), record.created)

    def _type(self, type_id: str, fresh: Mapping[str, Record]) -> Type:
        try:
            return self._store.type(type_id)
        except NotFound:
            if type_id not in fresh:
                raise
        return Type(payload_of(fresh[type_id]))

    def _check_move(self, move: Move) -> None:
        try:
            checked_name(move.name)
        except UsageError as error:
            raise Violation(f"its worker has moved {move.name[:80]!r}, which is not a ref name") from error
        kind, _, rest = move.name.partition("/")
        if kind == "thread" and self._is_new_child(rest, move):
            self._own.add(rest)
        is_own = (kind in ("thread", "attempt") and self._is_ours(rest)) or (
            kind == "session" and self._is_session(rest)
        )
        if not is_own:
            raise Violation(f"its worker has moved {move.name[:80]!r}, which is not its own")
        is_main = move.name == thread.ref_name(self._slot.thread)
        if is_main and (move.state or {}).get("status") not in _GIVEN:
            raise Violation("its worker has given its thread a status that is none, or not a step's to give")

    def _is_new_child(self, ident: str, move: Move) -> bool:
        is_new = is_thread_id(ident) and self._store.ref(move.name) is None
        return is_new and (move.state or {}).get("parent") in self._own

    def _is_ours(self, ident: str) -> bool:
        """Whether a thread is the step's own, or one that a role of it has started, perhaps in an earlier try."""
        line: list[str] = []
        while ident not in self._own:
            ref = read_thread(self._store, ident) if is_thread_id(ident) else None
            parent = ref.state.parent if ref else None
            if not parent or ident in line:
                return False
            line.append(ident)
            ident = parent
        self._own.update(line)
        return True

    # -- what follows for the service --

    def _with_consequences(self, change: Change) -> Change:
        moves, events = list(change.moves), list(change.events)
        dollars = 0.0
        for place, move in enumerate(change.moves):
            if move.name == thread.attempt_name(self._slot.thread):
                self._note_ending(move, change.nodes)
                dollars += self._cost(move, change.nodes)
            elif move.name == thread.ref_name(self._slot.thread):
                dollars += self._cost(move, change.nodes)
                moves[place] = self._moved_thread(move, events)
                if moves[place].state["status"] in (*thread.ENDED, "suspended"):  # type: ignore[index]
                    moves += self._slot_move()
        if dollars:
            moves.append(self._spend_move(dollars))
        return change._replace(moves=moves, events=events)

    def _moved_thread(self, move: Move, events: list[NewEvent]) -> Move:
        """The thread's new state with what the service knows of it, which is not the step's to change."""
        ref = self._store.ref(move.name)
        before = load(ref).state if ref else ThreadState()
        place = before.service
        if ref is not None and move.target != ref.target and place is not None:
            place = place._replace(crashes=None, losses=None)
        state = load_state(move.state or {})._replace(
            **{key: value for key in _FIXED if (value := getattr(before, key))}, service=place
        )
        if state.status == "suspended" and self._agent_ended:
            return move._replace(state=self._crashed(state, events).dump())
        if state.is_over and all(event.kind != state.status for event in events):
            told = {key: value for key in ("reason", "steps") if (value := getattr(state, key))}
            events.append(NewEvent(self._slot.thread, state.status.value, {**told, **BY_SERVICE}))
        return move._replace(state=state.dump())

    def _crashed(self, state: ThreadState, events: list[NewEvent]) -> ThreadState:
        """In place of a suspension: the step is tried again, unless this was the last time."""
        after, count = queue.crashed_state(state, self._agent_ended)
        told = {"reason": self._agent_ended, "count": count, **BY_SERVICE}
        events[:] = [event for event in events if event.kind != "suspended"]
        events.append(NewEvent(self._slot.thread, "crashed", told))
        if after.status == "suspended":
            after = after._replace(onward=state.onward)
            events.append(NewEvent(self._slot.thread, "suspended", {"reason": after.reason, **BY_SERVICE}))
        return after

    def _note_ending(self, move: Move, nodes: Sequence[Record]) -> None:
        attempt = _payload(self._store, move.target, nodes)
        is_failure = "agent" not in (move.state or {})
        is_killed = is_failure and attempt.get("ending") == "killed"
        self._agent_ended = str(attempt.get("error", "its agent was killed")) if is_killed else ""

    def _cost(self, move: Move, nodes: Sequence[Record]) -> float:
        """What a new step or a failed attempt has cost, as its agent says. The children's is in it already."""
        ref = self._store.ref(move.name)
        if move.target is None or (ref is not None and ref.target == move.target):
            return 0.0
        put = _payload(self._store, move.target, nodes)
        usage = put.get("usage") or _payload(self._store, put.get("detail"), nodes).get("usage")
        cost = usage.get("cost") if isinstance(usage, dict) else None
        if isinstance(cost, bool) or not isinstance(cost, int | float):
            return 0.0
        return max(0.0, float(cost))

    def _spend_move(self, dollars: float) -> Move:
        name = f"spend/{queue.day_of(self._store.now())}/{self._host}"
        ref = self._store.ref(name)
        known = ref.state.get("dollars", 0) if ref else 0
        return Move(name, ref.version if ref else 0, None, {"dollars": round(known + dollars, 10)})

    def _slot_move(self) -> list[Move]:
        ref = self._store.ref(thread.slot_name(self._slot.workflow, self._slot.thread))
        return [Move(ref.name, ref.version)] if ref else []


# -- shapes --


def _parsed(question: bytes) -> list[Any]:
    try:
        words = json.loads(question, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise Violation("its worker has sent what is no JSON") from error
    if not isinstance(words, list) or not words:
        raise Violation("its worker has sent what is no question")
    return words


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no number")


def _ids(nodes: object) -> list[str]:
    if not isinstance(nodes, list) or len(nodes) > _LONGEST_LIST:
        raise Violation("its worker has asked for nodes without a list of ids")
    for node in nodes:
        if not isinstance(node, str) or not is_node_id(node):
            raise Violation(f"its worker has asked for {str(node)[:80]!r}, which is no node")
    return nodes


def _shaped(change: Change) -> Change:
    """`change`, when every part of it is of the kind that it must be."""
    if max(map(len, change)) > _LONGEST_LIST:
        raise Violation("its worker has sent more than one transaction may hold")
    _ids(change.types)
    for record in change.nodes:
        if not isinstance(record.created, int) or isinstance(record.created, bool):
            raise Violation("its worker has put a node without a time")
    for move in change.moves:
        has_kinds = isinstance(move.name, str) and isinstance(move.expected, int) and move.at is None
        is_target = move.target is None or (isinstance(move.target, str) and is_node_id(move.target))
        if not has_kinds or not is_target or not (move.state is None or isinstance(move.state, dict)):
            raise Violation("its worker has sent a move that is none")
    for event in change.events:
        is_short = isinstance(event.kind, str) and 0 < len(event.kind) <= 64
        if not isinstance(event.stream, str) or not is_short or not isinstance(event.body, dict) or event.at:
            raise Violation("its worker has sent an event that is none")
    return change


def _payload(store: Store, node: str | None, nodes: Sequence[Record]) -> Mapping[str, Any]:
    """What a node holds that is about to be put, or is stored."""
    if node is None:
        return {}
    record = next((record for record in nodes if record.id == node), None)
    try:
        payload = payload_of(record) if record is not None else store.get(node).payload
    except UsageError:
        return {}
    return payload if isinstance(payload, dict) else {}
