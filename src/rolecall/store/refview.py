"""Refs as the files of a store folder tell them together, and moves of refs planned into a journal.

A thread or a workflow also stands in a file that the predecessor writes; where the two differ, that
file is right about the target and our own about the rest. Nothing is written here. Above is `files`;
below are `journal`, which lays a change under way over the files, and `reffile`, which reads them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from rolecall.errors import Damaged
from rolecall.store.backend import Move, Moved, NewEvent, Ref, conflict
from rolecall.store.disk import changed_ms, json_text, read
from rolecall.store.ids import is_thread_id
from rolecall.store.journal import EVENTS, MOVES, Journal, empty_journal, history, plan_line
from rolecall.store.reffile import (
    HISTORY,
    REASON,
    STATUS,
    THREADS,
    edited,
    ended_line,
    read_map,
    read_ref,
    ref_names,
    registry_file,
)


class RefView:
    """The refs as the files show them under `over`, a journal in force or a change being planned."""

    def __init__(self, root: Path, journal: Journal | None) -> None:
        self._root = root
        self.over = journal or empty_journal(root)
        self._registry = registry_file(root)
        self._maps: dict[str, dict[str, str]] = {}
        self._ended_bytes: bytes | None = None
        self._last_lines: dict[str, dict[str, Any]] | None = None

    def ref(self, name: str) -> Ref | None:
        entry = self.own_entry(name)
        own = Ref(name, *(entry[key] for key in ("target", "state", "version", "updated"))) if entry else None
        file, key = self.shared_place(name)
        if not file:
            return own
        target = self.listed_target(file, key)
        if target is not None:
            return self._listed(name, own, target, file)
        return self._ended(name, own, key) if file == THREADS else own

    def _listed(self, name: str, own: Ref | None, target: str, file: str) -> Ref:
        """A ref whose target stands in a file that the predecessor writes too: that file is right."""
        if own is None:
            state = {"status": "idle"} if file == THREADS else {}
            return Ref(name, target, state, 1, changed_ms(self._root / file))
        ended = file == THREADS and own.state.get("status") in REASON
        if own.target == target and not ended:
            return own
        state = {**own.state, "status": "idle"} if ended else dict(own.state)
        return Ref(name, target, state, own.version + 1, changed_ms(self._root / file))

    def _ended(self, name: str, own: Ref | None, thread: str) -> Ref | None:
        line = self._last_ended(thread)
        if line is None:
            return own
        status = STATUS.get(line["reason"], "completed")
        if own is not None:
            if own.state.get("status") in REASON and own.target == line["head"]:
                return own
            # Taken up again here after that line was written.
            if line["completedAt"] < own.updated:
                return own
        state = {**(own.state if own else {}), "status": status}
        if line["workflow"] is not None:
            state["workflow"] = line["workflow"]
        return Ref(name, line["head"], state, own.version + 1 if own else 1, line["completedAt"])

    def _last_ended(self, thread: str) -> dict[str, Any] | None:
        if self._last_lines is not None:
            return self._last_lines.get(thread)
        data = self._history()
        end = len(data)
        while (at := data.rfind(thread.encode(), 0, end)) >= 0:
            start = data.rfind(b"\n", 0, at) + 1
            stop = data.find(b"\n", at)
            line = ended_line(data[start : stop if stop >= 0 else len(data)])
            if line is not None and line["thread"] == thread:
                return line
            end = start
        return None

    def _history(self) -> bytes:
        if self._ended_bytes is None:
            self._ended_bytes = read(self._root / HISTORY) or b""
        return history(self.over, self._ended_bytes)

    def own_entry(self, name: str) -> dict[str, Any] | None:
        """What our own file of a ref says."""
        if name in self.over.refs:
            return self.over.refs[name]
        return read_ref(self._root, name)

    def shared_place(self, name: str) -> tuple[str, str]:
        """The file and key under which the predecessor keeps a ref, if it does."""
        kind, _, key = name.partition("/")
        if kind == "thread" and is_thread_id(key):
            return THREADS, key
        return (self._registry, key) if kind == "workflow" and key else ("", "")

    def listed_target(self, file: str, key: str) -> str | None:
        edits = self.over.maps.get(file, {})
        return edits[key] if key in edits else self._map(file).get(key)

    def _map(self, file: str) -> dict[str, str]:
        if file not in self._maps:
            self._maps[file] = read_map(self._root / file)
        return self._maps[file]

    def names(self, prefix: str) -> set[str]:
        """Names that may have a ref now."""
        found = set(ref_names(self._root, prefix)) | set(self.over.refs)
        if prefix.startswith("thread/") or "thread/".startswith(prefix):
            found.update(f"thread/{key}" for key in self._keys(THREADS))
            self._last_lines = {line["thread"]: line for line in self._ended_lines()}
            found.update(f"thread/{thread}" for thread in self._last_lines)
        if prefix.startswith("workflow/") or "workflow/".startswith(prefix):
            found.update(f"workflow/{key}" for key in self._keys(self._registry))
        return {name for name in found if name.startswith(prefix)}

    def _keys(self, file: str) -> Iterable[str]:
        return edited(self._map(file), self.over.maps.get(file, {}))

    def _ended_lines(self) -> Iterator[dict[str, Any]]:
        lines = (ended_line(line) for line in self._history().splitlines())
        return (line for line in lines if line is not None)

    def unrecorded(self, names: Iterable[str] | None = None, since: int = 0) -> list[Moved]:
        """What refs point at by somebody else's doing, as if moved just now: each still matters."""
        wanted = self.names("thread/") | self.names("workflow/") if names is None else set(names)
        found = [ref for name in wanted if (ref := self.ref(name))]
        targets = {(ref.name, ref.target): ref.updated for ref in found if ref.target is not None}
        if names is None:
            for line in self._ended_lines():
                targets[f"thread/{line['thread']}", line["head"]] = line["completedAt"]
        seq = max(since, self.over.counters["move"]) + 1
        recorded = {name: (self.own_entry(name) or {}).get("target") for name, _ in targets}
        return [
            Moved(seq, name, target, at)
            for (name, target), at in sorted(targets.items())
            if recorded[name] != target
        ]

    def add_event(self, event: NewEvent, now: int) -> None:
        self.over.counters["event"] += 1
        at = now if event.at is None else event.at
        line = {"seq": self.over.counters["event"], **event._asdict(), "body": dict(event.body), "at": at}
        plan_line(self.over, self._root, file=EVENTS, line=json_text(line))

    def add_move(self, name: str, target: str, now: int) -> None:
        self.over.counters["move"] += 1
        move = Moved(self.over.counters["move"], name, target, now)
        plan_line(self.over, self._root, file=MOVES, line=json_text(move._asdict()))

    def add_ended(self, thread: str, ref: Ref) -> None:
        line = {
            "thread": thread,
            "workflow": ref.state.get("workflow"),
            "head": ref.target,
            "completedAt": ref.updated,
            "reason": REASON[ref.state["status"]],
        }
        plan_line(self.over, self._root, file=HISTORY, line=json_text(line), shared=True)


def plan_move(view: RefView, move: Move, *, now: int) -> Ref:
    entry = view.own_entry(move.name)
    current = view.ref(move.name)
    if (current.version if current else 0) != move.expected:
        raise conflict(move, current)
    at = now if move.at is None else move.at
    ref = Ref(move.name, move.target, dict(move.state or {}), move.expected + 1, at)
    view.over.counters["change"] += 1
    if move.removes:
        _plan_removal(view, move.name)
        return ref
    recorded = entry["target"] if entry else None
    for target in dict.fromkeys((current.target if current else None, ref.target)):
        if target is not None and target != recorded:
            view.add_move(ref.name, target, at)
            recorded = target
    _plan_shared(view, ref, current)
    pointed = recorded is not None or bool(entry and entry.get("pointed", True))
    view.over.refs[ref.name] = {**ref._asdict(), "pointed": pointed}
    return ref


def _plan_removal(view: RefView, name: str) -> None:
    over = view.over
    file, key = view.shared_place(name)
    entry = view.own_entry(name)
    over.refs[name] = None
    if file:
        over.maps.setdefault(file, {})[key] = None
    # A lease never points anywhere, so it has no history that would have to be rewritten.
    if file or (entry and entry.get("pointed", True)):
        over.forget.append(name)
        for kind in (MOVES, HISTORY):
            lines = over.lines.get(kind, [])
            lines[:] = [line for line in lines if not _tells_of(line, name, kind)]


def _plan_shared(view: RefView, ref: Ref, current: Ref | None) -> None:
    """Keep the files of the predecessor in step with a ref it knows."""
    file, key = view.shared_place(ref.name)
    if not file:
        return
    over = view.over
    ended = file == THREADS and ref.state.get("status") in REASON
    over.maps.setdefault(file, {})[key] = None if ended else ref.target
    if ended and ref.target is not None:
        told = current and (current.target, current.state.get("status")) == (ref.target, ref.state["status"])
        if not told:
            view.add_ended(key, ref)


def _tells_of(line: str, name: str, file: str) -> bool:
    if not line:
        return False
    entry = json.loads(line)
    return bool(entry["name"] == name if file == MOVES else f"thread/{entry['thread']}" == name)


def unlisted(root: Path) -> Iterator[str]:
    """Refs that a file of the predecessor should list and does not: it may have overwritten the entry."""
    try:
        view = RefView(root, None)
        refs = [ref for name in sorted(view.names("")) if (ref := view.ref(name)) and ref.target is not None]
        for ref in refs:
            file, key = view.shared_place(ref.name)
            ended = file == THREADS and ref.state.get("status") in REASON
            if file and not ended and view.listed_target(file, key) is None:
                yield f"{file}: {key} is missing; its next move puts it back"
    except Damaged:
        return  # Whoever reads the files one by one reports it by name.
