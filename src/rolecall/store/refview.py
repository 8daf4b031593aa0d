"""Combine the files of a store folder into refs and events, and plan changes to them.

A thread or workflow is also listed in a file that the predecessor writes. If that file and our own differ, the
predecessor's file is right about the target, and our own file about the rest. This module writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property, partial
from itertools import chain
from typing import NamedTuple

from rolecall.store import reffile
from rolecall.store.backend import Fact, Move, Moved, NewEvent, Ref, StoredEvent, conflict
from rolecall.store.canonical import JsonObject
from rolecall.store.disk import changed_ns, find_damage, json_text, parse
from rolecall.store.ids import is_thread_id
from rolecall.store.journal import COUNTERS, Journal
from rolecall.store.reffile import HISTORY, REASON, STATUS, THREADS, Ending, edit_map, read_map

_MOVES = "moves.jsonl"
_EVENTS = "events.jsonl"


class _Counters(NamedTuple):
    """The highest number of each kind so far. Numbers are never reused."""

    change: int = 0
    move: int = 0
    event: int = 0


class _OwnRef(NamedTuple):
    """The content of a ref's own file."""

    name: str
    target: str | None
    state: JsonObject
    version: int
    updated: int
    pointed: bool = True
    """Whether the ref has ever had a target, and therefore has a history."""


class RefView:
    """The refs in the files as they are after a journal, which is either in place or still being planned."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self._root = journal.root
        self._registry = reffile.registry_file(journal.root)
        self._maps: dict[str, dict[str, str]] = {}
        self._endings_by_thread: dict[str, list[Ending]] | None = None

    # -- reading --

    @cached_property
    def counters(self) -> _Counters:
        data = self.journal.read(COUNTERS)
        found: _Counters = parse(b"{}" if data is None else data, self._root / COUNTERS, _Counters)
        return found

    def ref(self, name: str) -> Ref | None:
        entry = self._own(name)
        own = Ref(*entry[:5]) if entry else None
        file, key = self._shared_place(name)
        if not file:
            return own
        target = self._find_listed_target(file, key)
        if target is None:  # the last history line decides, unless our own file has that ending or is newer
            endings = self._endings().get(key) if file == THREADS else None
            if not endings:
                return own
            ending = endings[-1]
            if own is not None:
                is_known = own.state.get("status") in REASON and own.target == ending.head
                was_resumed = ending.completedAt < own.updated  # by us, after that line was written
                if is_known or was_resumed:
                    return own
            state = {**(own.state if own else {}), "status": STATUS.get(ending.reason, "completed")}
            if ending.workflow is not None:
                state["workflow"] = ending.workflow
            return Ref(name, ending.head, state, own.version + 1 if own else 1, ending.completedAt)
        has_ended = file == THREADS and own is not None and own.state.get("status") in REASON
        if own is not None and own.target == target and not has_ended:
            return own
        # The predecessor has moved the ref, or resumed an ended thread.
        state = dict(own.state) if own else {}
        if file == THREADS and (own is None or has_ended):
            state["status"] = "idle"
        changed_ms = changed_ns(self._root / file) // 1_000_000
        return Ref(name, target, state, own.version + 1 if own else 1, changed_ms)

    def _endings(self) -> dict[str, list[Ending]]:
        if self._endings_by_thread is None:
            self._endings_by_thread = {}
            for line in (self.journal.read(HISTORY) or b"").splitlines():
                if ending := reffile.parse_ending(line):
                    self._endings_by_thread.setdefault(ending.thread, []).append(ending)
        return self._endings_by_thread

    def _own(self, name: str) -> _OwnRef | None:
        file = reffile.ref_file(name)
        data = self.journal.read(file)
        return None if data is None else parse(data, self._root / file, _OwnRef)

    def _shared_place(self, name: str) -> tuple[str, str]:
        """Return the file and key under which the predecessor keeps a ref, or two empty strings."""
        kind, _, key = name.partition("/")
        if kind == "thread" and is_thread_id(key):
            return THREADS, key
        return (self._registry, key) if kind == "workflow" and key else ("", "")

    def _find_listed_target(self, file: str, key: str) -> str | None:
        edits = self.journal.entries.get(file, {})
        return edits[key] if key in edits else self._map(file).get(key)

    def _map(self, file: str) -> dict[str, str]:
        if file not in self._maps:
            self._maps[file] = read_map(self._root / file)
        return self._maps[file]

    def names(self, prefix: str) -> set[str]:
        """Return the names that might have a ref now."""
        found = set(reffile.ref_names(self._root, prefix))
        found |= {reffile.ref_name(file) for file in self.journal.texts if file.startswith("refs/")}
        for kind, file in (("thread", THREADS), ("workflow", self._registry)):
            if prefix.startswith(f"{kind}/") or f"{kind}/".startswith(prefix):
                keys = edit_map(self._map(file), self.journal.entries.get(file, {}))
                found.update(f"{kind}/{key}" for key in keys)
        if prefix.startswith("thread/") or "thread/".startswith(prefix):
            found.update(f"thread/{thread}" for thread in self._endings())
        return {name for name in found if name.startswith(prefix)}

    def moves(self, after: int = 0) -> Iterator[Moved]:
        for line in self.journal.read_lines(_MOVES):
            moved: Moved = parse(line, self._root / _MOVES, Moved)
            if moved.seq > after:
                yield moved

    def events(self, stream: str | None, *, after: int, limit: int | None) -> list[StoredEvent]:
        found: list[StoredEvent] = []
        for line in self.journal.read_lines(_EVENTS):
            event: StoredEvent = parse(line, self._root / _EVENTS, StoredEvent)
            if event.seq > after and (stream is None or event.stream == stream):
                if limit is not None and len(found) >= limit:
                    break
                found.append(event)
        return found

    def find_unrecorded(self, names: Iterable[str] | None = None, since: int = 0) -> list[Moved]:
        """Return the targets that another program gave to refs, as moves that follow all recorded moves."""
        wanted = self.names("thread/") | self.names("workflow/") if names is None else set(names)
        found = [ref for name in wanted if (ref := self.ref(name))]
        targets = {(ref.name, ref.target): ref.updated for ref in found if ref.target is not None}
        if names is None:
            for ending in chain.from_iterable(self._endings().values()):
                targets[f"thread/{ending.thread}", ending.head] = ending.completedAt
        seq = max(since, self.counters.move) + 1
        own = {name: self._own(name) for name, _ in targets}
        recorded = {name: entry.target if entry else None for name, entry in own.items()}
        return [
            Moved(seq, name, target, at)
            for (name, target), at in sorted(targets.items())
            if recorded[name] != target
        ]

    def problems(self) -> Iterator[str]:
        history = self._root / HISTORY
        for number, raw in enumerate((self.journal.read(HISTORY) or b"").splitlines(), 1):
            ending = reffile.parse_ending(raw)
            if ending is None and raw.strip():
                yield f"{history}: line {number} does not say how a thread ended"
            elif ending is not None and ending.reason not in STATUS:
                yield f"{history}: line {number} has the unknown reason {ending.reason!r}"
        looks: list[Callable[[], object]] = [
            lambda: self.counters,
            lambda: list(self.moves()),
            lambda: self.events(None, after=0, limit=None),
            *(partial(self._map, file) for file in (THREADS, self._registry)),
            *(partial(self._own, name) for name in reffile.ref_names(self._root, "")),
        ]
        damage = [message for look in looks for message in find_damage(look)]
        yield from damage
        for name in () if damage else sorted(self.names("")):
            file, key = self._shared_place(name)
            ref = self.ref(name) if file else None
            if ref is None or ref.target is None or (file == THREADS and ref.state.get("status") in REASON):
                continue
            if (
                self._find_listed_target(file, key) is None
            ):  # the predecessor might have overwritten the entry
                yield f"{file}: {key} is missing; its next move puts it back"

    # -- planning --

    def plan_event(self, event: NewEvent, now: int) -> None:
        self._count(event=1)
        at = now if event.at is None else event.at
        planned = StoredEvent(self.counters.event, event.stream, event.kind, dict(event.body), at)
        self.journal.append(_EVENTS, json_text(planned._asdict()))

    def plan_move(self, move: Move, now: int) -> Ref:
        current = self.ref(move.name)
        if (current.version if current else 0) != move.expected:
            raise conflict(move, current)
        at = now if move.at is None else move.at
        ref = Ref(move.name, move.target, dict(move.state or {}), move.expected + 1, at)
        own = self._own(move.name)
        file, key = self._shared_place(move.name)
        self._count(change=1)
        self._endings_by_thread = None  # the planned move can change the endings
        if move.removes:
            self.journal.texts[reffile.ref_file(ref.name)] = None
            if file:
                self.journal.entries.setdefault(file, {})[key] = None
            # A ref that never had a target, such as a lease, has no history to remove.
            if file or (own and own.pointed):
                self.journal.forget(_MOVES, "name", ref.name)
                if file == THREADS:
                    self.journal.forget(HISTORY, "thread", key, shared=True)
            return ref

        recorded = own.target if own else None
        for target in dict.fromkeys((current.target if current else None, ref.target)):
            if target is not None and target != recorded:
                self._count(move=1)
                moved = Moved(self.counters.move, ref.name, target, at)
                self.journal.append(_MOVES, json_text(moved._asdict()))
                recorded = target
        self._put_own(ref, pointed=recorded is not None or bool(own and own.pointed))

        if file:  # the predecessor lists the ref, too
            status = ref.state.get("status")
            has_ended = file == THREADS and status in REASON
            self.journal.entries.setdefault(file, {})[key] = None if has_ended else ref.target
            is_known = current and (current.target, current.state.get("status")) == (ref.target, status)
            if has_ended and ref.target is not None and not is_known:
                ending = Ending(key, ref.state.get("workflow"), ref.target, ref.updated, REASON[str(status)])
                self.journal.append(HISTORY, json_text(ending._asdict()), shared=True)
        return ref

    def plan_bump(self, name: str, now: int) -> None:
        if own := self._own(name):
            self._count(change=1)
            self._put_own(Ref(*own[:5])._replace(version=own.version + 1, updated=now), pointed=own.pointed)

    def plan_fact(self, fact: Fact, now: int) -> None:
        own = self._own(fact.name)
        self._count(change=1)
        ref = Ref(fact.name, None, dict(fact.state), own.version + 1 if own else 1, now)
        self._put_own(ref, pointed=False)

    def _put_own(self, ref: Ref, *, pointed: bool) -> None:
        self.journal.texts[reffile.ref_file(ref.name)] = json_text({**ref._asdict(), "pointed": pointed})

    def _count(self, *, change: int = 0, move: int = 0, event: int = 0) -> None:
        before = self.counters
        self.counters = _Counters(before.change + change, before.move + move, before.event + event)
        self.journal.texts[COUNTERS] = json_text(self.counters._asdict())
