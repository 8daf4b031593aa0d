"""Combine the files of a store folder into refs, and plan moves of refs into a journal.

A thread or workflow is also listed in a file that the predecessor writes. If the two differ, that file is right about
the target, and our own file about the rest. Nothing is written here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from rolecall.store import reffile
from rolecall.store.backend import Fact, Move, Moved, NewEvent, Ref, conflict
from rolecall.store.disk import changed_ns, json_text, read
from rolecall.store.ids import is_thread_id
from rolecall.store.journal import EVENTS, MOVES, Journal, empty_journal, history
from rolecall.store.reffile import HISTORY, REASON, STATUS, THREADS, Ending, edit_map, read_map, read_ref


class RefView:
    """The refs in the files with `over` applied: a journal in force or a change being planned."""

    def __init__(self, root: Path, journal: Journal | None) -> None:
        self._root = root
        self.over = journal or empty_journal(root)
        self._registry = reffile.registry_file(root)
        self._maps: dict[str, dict[str, str]] = {}
        self._endings_by_thread: dict[str, list[Ending]] | None = None

    # -- reading --

    def ref(self, name: str) -> Ref | None:
        entry = self._own_entry(name)
        own = Ref(name, *(entry[key] for key in ("target", "state", "version", "updated"))) if entry else None
        file, key = self._shared_place(name)
        if not file:
            return own
        target = self._listed_target(file, key)
        if target is None:
            return self._apply_ending(name, own, key) if file == THREADS else own
        has_ended = file == THREADS and own is not None and own.state.get("status") in REASON
        if own is not None and own.target == target and not has_ended:
            return own
        # The predecessor has moved it, or resumed an ended thread.
        state = dict(own.state) if own else {}
        if file == THREADS and (own is None or has_ended):
            state["status"] = "idle"
        changed_ms = changed_ns(self._root / file) // 1_000_000
        return Ref(name, target, state, own.version + 1 if own else 1, changed_ms)

    def _apply_ending(self, name: str, own: Ref | None, thread: str) -> Ref | None:
        """A ref according to its last history line, unless our own file already has that ending or is newer."""
        if thread not in self._endings():
            return own
        ending = self._endings()[thread][-1]
        if own is not None:
            is_known = own.state.get("status") in REASON and own.target == ending.head
            if is_known or ending.completedAt < own.updated:  # resumed here after that line
                return own
        state = {**(own.state if own else {}), "status": STATUS.get(ending.reason, "completed")}
        if ending.workflow is not None:
            state["workflow"] = ending.workflow
        return Ref(name, ending.head, state, own.version + 1 if own else 1, ending.completedAt)

    def _endings(self) -> dict[str, list[Ending]]:
        if self._endings_by_thread is None:
            self._endings_by_thread = {}
            for line in history(self.over, read(self._root / HISTORY) or b"").splitlines():
                if ending := reffile.parse_ending(line):
                    self._endings_by_thread.setdefault(ending.thread, []).append(ending)
        return self._endings_by_thread

    def _own_entry(self, name: str) -> dict[str, Any] | None:
        """The entry in our own file of a ref."""
        return self.over.refs[name] if name in self.over.refs else read_ref(self._root, name)

    def _shared_place(self, name: str) -> tuple[str, str]:
        """The file and key under which the predecessor keeps a ref, or empty strings."""
        kind, _, key = name.partition("/")
        if kind == "thread" and is_thread_id(key):
            return THREADS, key
        return (self._registry, key) if kind == "workflow" and key else ("", "")

    def _listed_target(self, file: str, key: str) -> str | None:
        edits = self.over.maps.get(file, {})
        return edits[key] if key in edits else self._map(file).get(key)

    def _map(self, file: str) -> dict[str, str]:
        if file not in self._maps:
            self._maps[file] = read_map(self._root / file)
        return self._maps[file]

    def names(self, prefix: str) -> set[str]:
        """Names that may have a ref now."""
        found = set(reffile.ref_names(self._root, prefix)) | set(self.over.refs)
        for kind, file in (("thread", THREADS), ("workflow", self._registry)):
            if prefix.startswith(f"{kind}/") or f"{kind}/".startswith(prefix):
                keys = edit_map(self._map(file), self.over.maps.get(file, {}))
                found.update(f"{kind}/{key}" for key in keys)
        if prefix.startswith("thread/") or "thread/".startswith(prefix):
            found.update(f"thread/{thread}" for thread in self._endings())
        return {name for name in found if name.startswith(prefix)}

    def find_unrecorded(self, names: Iterable[str] | None = None, since: int = 0) -> list[Moved]:
        """Targets that another program gave to refs, reported as moves made just now, because they still matter."""
        wanted = self.names("thread/") | self.names("workflow/") if names is None else set(names)
        found = [ref for name in wanted if (ref := self.ref(name))]
        targets = {(ref.name, ref.target): ref.updated for ref in found if ref.target is not None}
        if names is None:
            for ending in chain.from_iterable(self._endings().values()):
                targets[f"thread/{ending.thread}", ending.head] = ending.completedAt
        seq = max(since, self.over.counters["move"]) + 1
        recorded = {name: (self._own_entry(name) or {}).get("target") for name, _ in targets}
        return [
            Moved(seq, name, target, at)
            for (name, target), at in sorted(targets.items())
            if recorded[name] != target
        ]

    def find_unlisted(self) -> Iterator[str]:
        """Refs that the predecessor's file should list but does not; it may have overwritten the entry."""
        for name in sorted(self.names("")):
            file, key = self._shared_place(name)
            ref = self.ref(name) if file else None
            if ref is None or ref.target is None:
                continue
            has_ended = file == THREADS and ref.state.get("status") in REASON
            if not has_ended and self._listed_target(file, key) is None:
                yield f"{file}: {key} is missing; its next move puts it back"

    # -- planning --

    def plan_event(self, event: NewEvent, now: int) -> None:
        self.over.counters["event"] += 1
        at = now if event.at is None else event.at
        line = {"seq": self.over.counters["event"], **event._asdict(), "body": dict(event.body), "at": at}
        self.over.add_line(self._root, EVENTS, json_text(line))

    def plan_move(self, move: Move, now: int) -> Ref:
        current = self.ref(move.name)
        if (current.version if current else 0) != move.expected:
            raise conflict(move, current)
        at = now if move.at is None else move.at
        ref = Ref(move.name, move.target, dict(move.state or {}), move.expected + 1, at)
        entry = self._own_entry(move.name)
        had_target = bool(entry and entry.get("pointed", True))
        file, key = self._shared_place(move.name)
        self.over.counters["change"] += 1
        self._endings_by_thread = None  # the plan may change them
        if move.removes:
            self.over.refs[ref.name] = None
            if file:
                self.over.maps.setdefault(file, {})[key] = None
            if (
                file or had_target
            ):  # a ref that never had a target, such as a lease, has no history to rewrite
                self.over.forget.append(ref.name)
                for kind, field, value in ((MOVES, "name", ref.name), (HISTORY, "thread", key)):
                    lines = self.over.lines.get(kind, [])
                    lines[:] = [line for line in lines if not line or json.loads(line)[field] != value]
            return ref

        recorded = entry["target"] if entry else None
        for target in dict.fromkeys((current.target if current else None, ref.target)):
            if target is not None and target != recorded:
                self.over.counters["move"] += 1
                moved = Moved(self.over.counters["move"], ref.name, target, at)
                self.over.add_line(self._root, MOVES, json_text(moved._asdict()))
                recorded = target
        self.over.refs[ref.name] = {**ref._asdict(), "pointed": recorded is not None or had_target}

        if file:  # the predecessor lists it too
            status = ref.state.get("status")
            has_ended = file == THREADS and status in REASON
            self.over.maps.setdefault(file, {})[key] = None if has_ended else ref.target
            is_known = current and (current.target, current.state.get("status")) == (ref.target, status)
            if has_ended and ref.target is not None and not is_known:
                ending = Ending(key, ref.state.get("workflow"), ref.target, ref.updated, REASON[str(status)])
                self.over.add_line(self._root, HISTORY, json_text(ending._asdict()), shared=True)
        return ref

    def plan_bump(self, name: str, now: int) -> None:
        entry = self._own_entry(name)
        if entry is not None:
            self.over.counters["change"] += 1
            self.over.refs[name] = {**entry, "version": entry["version"] + 1, "updated": now}

    def plan_fact(self, fact: Fact, now: int) -> None:
        current = self._own_entry(fact.name)
        ref = Ref(fact.name, None, dict(fact.state), current["version"] + 1 if current else 1, now)
        self.over.counters["change"] += 1
        self.over.refs[fact.name] = {**ref._asdict(), "pointed": False}
