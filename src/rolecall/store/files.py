"""A store in a folder of plain files, laid out the way the predecessor lays out its storage root.

A folder it wrote can be used here, and one written here can be used by it: node files in `cas/`, the
type index in `cas/_index/`, active threads in `threads.yaml`, ended ones in `history.jsonl`, workflow
names in `registry.yaml` (or `workflows.yaml`, where that exists). What it has no place for lies beside:
`refs/`, `moves.jsonl`, `events.jsonl`, `counters.json` and `cas/_sha256/`.

A change is decided when `journal.json` is in its place; only then are the other files brought up to
it. Writers hold a kernel lock and finish the journal a killed one left. Readers take no lock: they
read the files as the journal says they will be, and look again when a writer was faster.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from heapq import nsmallest
from itertools import count
from pathlib import Path
from shutil import rmtree
from typing import Any, BinaryIO, NamedTuple, TypeVar

from rolecall import canonical
from rolecall.errors import Damaged, StorageError, UsageError
from rolecall.ids import is_node_id, is_thread_id, node_from_number, node_id, node_number, self_id
from rolecall.store.backend import (
    Change,
    Damage,
    Event,
    Move,
    Moved,
    NewEvent,
    Put,
    Record,
    Ref,
    collision,
    conflict,
    no_store,
)

_T = TypeVar("_T")

_THREADS = "threads.yaml"
_HISTORY = "history.jsonl"
_MOVES = "moves.jsonl"
_EVENTS = "events.jsonl"
_INDEX = "cas/_index"
_HASHES = "cas/_sha256"
_LINE_KEYS = {_MOVES: {"seq", "name", "target", "at"}, _EVENTS: {"seq", "stream", "kind", "body", "at"}}
# Files only we append to: a last line without its newline was never finished.
_OURS = (_MOVES, _EVENTS, _HASHES)

_REASON = {"completed": "completed", "failed": "failed", "killed": "cancelled"}
_STATUS = {"completed": "completed", "failed": "failed", "cancelled": "killed", None: "completed"}
_MANY_UNSYNCED = 500
_LOOKS = 50
_serial = count()


class _Journal(NamedTuple):
    """A change as the files will show it; the same value overlays what a reader finds."""

    nodes: dict[str, list[str]]
    """Id to the temporary file that holds the node and the file it becomes."""
    lengths: dict[str, int]
    lines: dict[str, list[str]]
    """Per file that grows: how long it was, and the lines it gets."""
    maps: dict[str, dict[str, str | None]]
    """Per YAML file the entries to set, or with None to take out."""
    refs: dict[str, dict[str, Any] | None]
    forget: list[str]
    """Names of refs whose history goes."""
    before: dict[str, int]
    counters: dict[str, int]


def _nothing(counters: dict[str, int]) -> _Journal:
    return _Journal({}, {}, {}, {}, {}, [], dict(counters), dict(counters))


class FilesBackend:
    """A store in the folder `path`. `create=False` refuses to make one, so that a read leaves no trace."""

    def __init__(self, path: str, *, create: bool = True) -> None:
        self.path = path
        self._root = Path(path)
        self._cas = self._root / "cas"
        self._temporary = self._root / ".tmp"
        self._lock: int | None = None
        self._swept = False
        self._unsynced: list[Path] = []
        with _translated(path):
            if not self._cas.is_dir():
                if not create and not (self._root.exists() and not self._root.is_dir()):
                    raise no_store(path)
                self._cas.mkdir(parents=True, exist_ok=True)

    # -- writing --

    def commit(self, change: Change, *, now: int, durable: bool) -> list[Ref]:
        with _translated(self.path), self._writing():
            view = _View(self._root, None)
            fresh, known = self._compare(change.nodes)
            moved = [_plan_move(view, move, now) for move in change.moves]
            for event in change.events:
                view.add_event(event, now)
            journal = view.over
            if fresh:
                self._plan_nodes(journal, fresh)
            self._carry_out(journal, fresh, known, now=now, durable=durable)
        return moved

    def _compare(self, records: Sequence[Record]) -> tuple[list[Record], list[Path]]:
        """The records that are new, and the files of those that are here with the same bytes."""
        fresh: list[Record] = []
        known: list[Path] = []
        for record in {record.id: record for record in records}.values():
            path = self._find(record.id)
            if path is None:
                fresh.append(record)
                continue
            stored = _parse_node(record.id, path.read_bytes(), path)
            if (stored.type, stored.data) != (record.type, record.data):
                raise collision(record, self._sha256(record.id))
            known.append(path)
        return fresh, known

    def _plan_nodes(self, journal: _Journal, fresh: list[Record]) -> None:
        if not (self._root / _INDEX).is_dir():
            self._rebuild_index()
        folder = "cas/nodes" if (self._cas / "nodes").is_dir() else "cas"
        for record in fresh:
            journal.nodes[record.id] = [f".tmp/{_unique()}", f"{folder}/{record.id}.bin"]
            _plan_line(journal, self._root, f"{_INDEX}/{record.type}", record.id)
            if record.type == record.id:
                _plan_line(journal, self._root, f"{_INDEX}/_meta", record.id)
            if record.sha256 is not None:
                line = f"{record.id} {record.sha256.hex()}"
                _plan_line(journal, self._root, f"{_HASHES}/{record.id[:2]}", line)

    def _carry_out(
        self, journal: _Journal, fresh: list[Record], known: list[Path], *, now: int, durable: bool
    ) -> None:
        try:
            stamp = self._next_stamps(now, len(fresh) + len(known))
            for path in known:
                os.utime(path, ns=(stamp, stamp))
                stamp += 1000
            if journal == _nothing(journal.before):
                return
            for record in fresh:
                temporary = self._root / journal.nodes[record.id][0]
                self._write(temporary, _node_bytes(record), sync=durable)
                os.utime(temporary, ns=(stamp, stamp))
                stamp += 1000
            if durable:
                self._sync_earlier()
            self._write_journal(journal, durable=durable)
        except BaseException:
            self._sweep()
            raise
        try:
            self._apply(journal, durable=durable)
        except OSError:
            # The change is decided and readers see it; the next writer finishes it or says why not.
            return
        if not durable:
            self._unsynced += [self._root / final for _, final in journal.nodes.values()]

    def _next_stamps(self, now: int, wanted: int) -> int:
        """The first of `wanted` times, a microsecond apart, later than any time given before.

        The time a node file was last changed is its position among the puts. The lock file keeps the
        highest, because a clock stands still between two ticks.
        """
        assert self._lock is not None  # noqa: S101 - narrows the type
        if not wanted:
            return 0
        first = max(now * 1_000_000, os.fstat(self._lock).st_mtime_ns // 1000 * 1000 + 1000)
        last = first + (wanted - 1) * 1000
        os.utime(self._lock, ns=(last, last))
        return first

    def _sync_earlier(self) -> None:
        """Nodes put without waiting may be what a ref is about to point at."""
        if len(self._unsynced) > _MANY_UNSYNCED:
            os.sync()
        else:
            for path in self._unsynced:
                if path.exists():
                    _sync(path)
        self._unsynced.clear()

    def _write_journal(self, journal: _Journal, *, durable: bool) -> None:
        place = self._root / "journal.json"
        temporary = self._temporary / _unique()
        self._write(temporary, _json(journal._asdict()).encode(), sync=durable)
        if durable:
            _sync(self._temporary)
        try:
            temporary.replace(place)
            if durable:
                _sync(self._root)
        except BaseException:
            place.unlink(missing_ok=True)
            raise

    def _apply(self, journal: _Journal, *, durable: bool) -> None:
        """Bring the files up to the journal. Doing it twice is doing it once."""
        touched = {self._root, self._cas}
        for file, lines in journal.lines.items():
            if not (journal.forget and file in (_MOVES, _HISTORY)):
                path = self._root / file
                path.parent.mkdir(parents=True, exist_ok=True)
                _append(path, journal.lengths[file], lines, sync=durable)
                touched.add(path.parent)
        for temporary, final in journal.nodes.values():
            if (self._root / temporary).exists():
                (self._root / final).parent.mkdir(exist_ok=True)
                (self._root / temporary).replace(self._root / final)
                touched.add((self._root / final).parent)
        if journal.forget:
            self._forget(journal, sync=durable)
        for file, edits in journal.maps.items():
            entries = _read_map(self._root / file)
            if (edited := _edited(entries, edits)) != entries:
                self._replace(self._root / file, _map_text(edited).encode(), sync=durable)
        for name, entry in journal.refs.items():
            touched.update(self._write_ref(name, entry, sync=durable))
        if journal.counters != journal.before:
            self._replace(self._root / "counters.json", _json(journal.counters).encode(), sync=durable)
        if durable:
            for folder in touched:
                _sync(folder)
        (self._root / "journal.json").unlink()

    def _forget(self, journal: _Journal, *, sync: bool) -> None:
        moves = [_json(move._asdict()) for move in _moves(self._root, journal)]
        self._replace(self._root / _MOVES, "".join(f"{line}\n" for line in moves).encode(), sync=sync)
        history = _read(self._root / _HISTORY)
        if history is not None or _HISTORY in journal.lines:
            self._replace(self._root / _HISTORY, _overlaid(history or b"", _HISTORY, journal), sync=sync)

    def _write_ref(self, name: str, entry: dict[str, Any] | None, *, sync: bool) -> list[Path]:
        path = _ref_path(self._root, name)
        if entry is None:
            path.unlink(missing_ok=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._replace(path, _json(entry).encode(), sync=sync)
        inside = len(self._root.parts)
        return [parent for parent in path.parents if len(parent.parts) > inside and parent.exists()]

    def _replace(self, path: Path, data: bytes, *, sync: bool) -> None:
        temporary = self._temporary / _unique()
        self._write(temporary, data, sync=sync)
        temporary.replace(path)

    def _write(self, path: Path, data: bytes, *, sync: bool) -> None:
        try:
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        except FileNotFoundError:
            path.parent.mkdir(exist_ok=True)
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        try:
            _write_all(file, data)
            if sync:
                os.fsync(file)
        finally:
            os.close(file)

    # -- the lock --

    @contextmanager
    def _writing(self) -> Iterator[None]:
        if self._lock is not None:
            self._finish_journal()
            yield
            return
        self._lock = _locked(self._root / ".lock")
        try:
            self._finish_journal()
            yield
        finally:
            lock, self._lock = self._lock, None
            # A forked child may hold the same open file, so closing it alone would not unlock.
            fcntl.flock(lock, fcntl.LOCK_UN)
            os.close(lock)

    def _finish_journal(self) -> None:
        journal = _read_journal(self._root)
        if journal is not None:
            self._apply(journal, durable=True)
        if journal is not None or not self._swept:
            (self._root / "journal.json").unlink(missing_ok=True)
            self._sweep()
        self._swept = True

    def _sweep(self) -> None:
        """Remove temporary files; with the lock held and no journal they are nobody's."""
        if (self._root / "journal.json").exists() or not self._temporary.is_dir():
            return
        for left in self._temporary.iterdir():
            if left.is_dir():
                rmtree(left)
            else:
                left.unlink()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        with _translated(self.path), self._writing():
            yield

    def delete(self, nodes: Iterable[str]) -> int:
        if self._lock is None:
            raise RuntimeError("delete is only safe inside exclusive()")
        with _translated(self.path):
            doomed = set(nodes)
            found = 0
            for node in doomed:
                paths = [path for path in self._places(node) if path.exists()]
                found += bool(paths)
                for path in paths:
                    path.unlink()
            self._drop_lines(self._root / _INDEX, doomed)
            self._drop_lines(self._root / _HASHES, doomed)
            return found

    def _drop_lines(self, folder: Path, doomed: set[str]) -> None:
        gone = {node.encode() for node in doomed}
        for path in list(folder.iterdir()) if folder.is_dir() else []:
            lines = path.read_bytes().splitlines()
            kept = [line for line in lines if line[:13] not in gone]
            if not kept:
                path.unlink()
            elif len(kept) < len(lines):
                self._replace(path, b"\n".join(kept) + b"\n", sync=False)

    def reindex(self, refs: Mapping[str, tuple[str, ...]] | None = None) -> None:
        if refs is not None:
            return  # References are not kept in this layout; they are derived from the schema.
        with _translated(self.path), self._writing():
            self._rebuild_index()

    def _rebuild_index(self) -> None:
        fresh = self._temporary / _unique()
        fresh.mkdir(parents=True)
        for type_id, members in self._by_type().items():
            (fresh / type_id).write_text("".join(f"{node}\n" for _, node in sorted(members)))
        place = self._root / _INDEX
        if place.is_dir():
            place.replace(self._temporary / _unique())
        fresh.replace(place)
        self._sweep()

    def _by_type(self) -> dict[str, list[tuple[int, str]]]:
        """Time and id of the readable nodes of each type, and of the self-referencing under `_meta`."""
        members: dict[str, list[tuple[int, str]]] = {}
        for item in self._scan(hashes=False):
            # A damaged node has no type to be listed under; `scan` reports it.
            if isinstance(item, Record):
                members.setdefault(item.type, []).append((item.created, item.id))
                if item.type == item.id:
                    members.setdefault("_meta", []).append((item.created, item.id))
        return members

    # -- reading nodes --

    def _places(self, node: str) -> tuple[Path, Path]:
        return self._cas / f"{node}.bin", self._cas / "nodes" / f"{node}.bin"

    def _find(self, node: str) -> Path | None:
        return next((path for path in self._places(node) if path.exists()), None)

    def record(self, node: str) -> Record | None:
        with _translated(self.path):
            found = self._load(node)
            return found._replace(sha256=self._sha256(node)) if found else None

    def _load(self, node: str) -> Record | None:
        # The predecessor moves old files to the newer place and a journal's files are moved into
        # theirs, so a file may be missed once on its way, not twice.
        for _ in range(2):
            for path in self._places(node):
                data = _read(path)
                if data is not None:
                    return _parse_node(node, data, path)
            journal = _read_journal(self._root)
            if journal is not None and node in journal.nodes:
                path = self._root / journal.nodes[node][0]
                data = _read(path)
                if data is not None:
                    return _parse_node(node, data, path)
        return None

    def _sha256(self, node: str) -> bytes | None:
        shard = f"{_HASHES}/{node[:2]}"
        data = b"\n" + (_read(self._root / shard) or b"")
        at = data.rfind(b"\n" + node.encode() + b" ")
        found = _hash_in(data[at + 1 : at + 79].decode("ascii", "replace")) if at >= 0 else None
        if found is None and (journal := _read_journal(self._root)) is not None:
            pending = (line for line in journal.lines.get(shard, ()) if line.startswith(node))
            found = _hash_in(next(pending, ""))
        return found

    def records(self, nodes: Sequence[str]) -> list[Record]:
        found = (self.record(node) for node in dict.fromkeys(nodes))
        return [record for record in found if record is not None]

    def ids_with_prefix(self, prefix: str, limit: int) -> list[str]:
        with _translated(self.path):
            return nsmallest(limit, (node for node, _ in self._listing() if node.startswith(prefix)))

    def ids_of_type(self, type_id: str) -> Iterator[str]:
        with _translated(self.path):
            if not (self._root / _INDEX).is_dir():
                for _, node in sorted(self._by_type().get(type_id, [])):
                    yield node
                return
            journal = _read_journal(self._root)
            seen: set[int] = set()
            for node in self._indexed(type_id, journal):
                if is_node_id(node) and node_number(node) not in seen and self._is_here(node, journal):
                    seen.add(node_number(node))
                    yield node

    def _indexed(self, type_id: str, journal: _Journal | None) -> Iterator[str]:
        own = _read(self._root / _INDEX / "_meta") or b""
        if type_id.encode() in own.split():
            yield type_id
        path = self._root / _INDEX / type_id
        if path.exists():
            with path.open("rb") as file:
                for line in file:
                    yield line.strip().decode("ascii", "replace")
        if journal is not None:
            yield from journal.lines.get(f"{_INDEX}/{type_id}", ())

    def _is_here(self, node: str, journal: _Journal | None) -> bool:
        return self._find(node) is not None or (journal is not None and node in journal.nodes)

    def _listing(self) -> Iterator[tuple[str, Path]]:
        """Every node file, each id once, with those a journal is about to put in place."""
        journal = _read_journal(self._root)
        pending = (
            {node: self._root / temporary for node, (temporary, _) in journal.nodes.items()}
            if journal
            else {}
        )
        newer = self._cas / "nodes"
        both = newer.is_dir()
        for folder in (newer, self._cas) if both else (self._cas,):
            with os.scandir(folder) as entries:
                for entry in entries:
                    node = _node_of(entry.name)
                    if node is None or (both and folder == self._cas and (newer / entry.name).exists()):
                        continue
                    pending.pop(node, None)
                    yield node, Path(entry.path)
        yield from pending.items()

    def _listing_with_latest(self) -> Iterator[tuple[str, Path]]:
        """The listing, then what was put while it went on: a folder being read need not show that.

        A node put again in the meantime may come twice.
        """
        start = _changed_ns(self._root / ".lock")
        young: set[str] = set()
        for node, path in self._listing():
            if _changed_ns(path) > start:
                young.add(node)
            yield node, path
        if _changed_ns(self._root / ".lock") != start:
            for node, path in self._listing():
                if node not in young and _changed_ns(path) > start:
                    yield node, path

    def scan(self) -> Iterator[Record | Damage]:
        with _translated(self.path):
            yield from self._scan(hashes=True)

    def _scan(self, *, hashes: bool) -> Iterator[Record | Damage]:
        for node, path in self._listing_with_latest():
            data = _read(path)
            if data is None:
                path = self._find(node) or path
                data = _read(path)
            if data is None:
                continue
            try:
                record = _parse_node(node, data, path)
            except Damaged as exc:
                yield Damage(node, exc.message)
                continue
            yield record._replace(sha256=self._sha256(node)) if hashes else record

    def puts(self, after: int = 0) -> Iterator[Put]:
        with _translated(self.path):
            found = [(at, node_number(node)) for node, at in self._times() if at > after]
        for at, number in sorted(found):
            yield Put(at, node_from_number(number), at // 1_000_000)

    def _times(self) -> Iterator[tuple[str, int]]:
        for node, path in self._listing():
            try:
                yield node, path.stat().st_mtime_ns
            except FileNotFoundError:
                place = self._find(node)
                if place is not None:
                    yield node, place.stat().st_mtime_ns

    def position(self) -> tuple[int, int]:
        with _translated(self.path):
            latest = _changed_ns(self._root / ".lock")
            highest = max((at for _, at in self._times()), default=0)
            highest = max(highest, latest)
            if self._lock is not None:
                # A file from elsewhere may carry a later time; what is put from now on must lie beyond.
                os.utime(self._lock, ns=(highest, highest))
            return highest, self._look(lambda view: view.over.counters["move"])

    # -- reading refs and events --

    def _look(self, at: Callable[[_View], _T]) -> _T:
        """What `at` finds in one state of the files, though a writer may be at work."""
        for _ in range(_LOOKS):
            before = _state(self._root)
            problem = None
            try:
                found = at(_View(self._root, _read_journal(self._root)))
            except Damaged as exc:
                problem = exc
            if _state(self._root) == before:
                if problem is not None:
                    raise problem
                return found
        with _read_locked(self._root / ".lock"):
            return at(_View(self._root, _read_journal(self._root)))

    def ref(self, name: str) -> Ref | None:
        with _translated(self.path):
            return self._look(lambda view: view.ref(name))

    def refs(
        self,
        prefix: str = "",
        *,
        where: Mapping[str, Sequence[str]] | None = None,
        before: str | None = None,
        newest_first: bool = False,
        limit: int | None = None,
    ) -> list[Ref]:
        def page(view: _View) -> list[Ref]:
            names = [
                name for name in view.names(prefix) if before is None or _follows(name, before, newest_first)
            ]
            found: list[Ref] = []
            for name in sorted(names, reverse=newest_first):
                if limit is not None and len(found) >= limit:
                    break
                ref = view.ref(name)
                if ref is not None and _fits(ref, where or {}):
                    found.append(ref)
            return found

        with _translated(self.path):
            return self._look(page)

    def names(self, prefix: str = "", *, before: str | None = None, limit: int | None = None) -> list[str]:
        with _translated(self.path):
            found = self._look(lambda view: view.names(prefix))
        return sorted((name for name in found if before is None or name < before), reverse=True)[:limit]

    def history(self, name: str) -> list[Moved]:
        def moves(view: _View) -> list[Moved]:
            recorded = [move for move in _moves(self._root, view.over) if move.name == name]
            return [*recorded, *view.unrecorded([name])]

        with _translated(self.path):
            return self._look(moves)

    def roots(self, since: int = 0) -> Iterator[Moved]:
        with _translated(self.path):
            journal, unrecorded = self._look(lambda view: (view.over, view.unrecorded(None, since)))
            yield from _moves(self._root, journal, since)
            yield from unrecorded

    def events(self, stream: str | None = None, *, after: int = 0, limit: int | None = None) -> list[Event]:
        with _translated(self.path):
            journal = self._look(lambda view: view.over)
            found: list[Event] = []
            for line in _numbered(self._root, _EVENTS, journal, after, "event"):
                if limit is not None and len(found) >= limit:
                    break
                if stream is None or line["stream"] == stream:
                    found.append(Event(line["seq"], line["stream"], line["kind"], line["body"], line["at"]))
            return found

    # -- the container --

    def size(self) -> dict[str, Any]:
        nodes = payloads = 0
        types: dict[str, int] = {}
        with _translated(self.path):
            for item in self._scan(hashes=False):
                nodes += 1
                if isinstance(item, Record):
                    payloads += len(item.data)
                    types[item.type] = types.get(item.type, 0) + 1
            refs = self._look(lambda view: sum(view.ref(name) is not None for name in view.names("")))
            disk = sum(path.stat().st_size for path in self._root.rglob("*") if path.is_file())
        ordered = dict(sorted(types.items(), key=lambda item: -item[1]))
        events = len(self.events())
        return {
            "nodes": nodes,
            "bytes": payloads,
            "types": ordered,
            "refs": refs,
            "events": events,
            "disk": disk,
        }

    def problems(self) -> Iterator[str]:
        with _translated(self.path):
            yield from _stray_files(self._cas)
            yield from _bad_index_lines(self._root / _INDEX)
            yield from _bad_history_lines(self._root / _HISTORY)
            yield from _unreadable(lambda: _read_journal(self._root))
            yield from _unreadable(lambda: list(_moves(self._root, _View(self._root, None).over)))
            yield from _unreadable(lambda: self.events())
            view = _View(self._root, None)
            for file in (_THREADS, view.registry_file):
                yield from _unreadable(lambda file=file: _read_map(self._root / file))  # type: ignore[misc]
            for name in _names_under(self._root / "refs", ""):
                yield from _unreadable(lambda name=name: view.sidecar(name))  # type: ignore[misc]

            yield from _unlisted(view)

    def close(self) -> None:
        """Nothing stays open between calls."""


# -- what the files say about refs --


class _View:
    """The refs as the files show them under `over`, a journal in force or a change being planned."""

    def __init__(self, root: Path, journal: _Journal | None) -> None:
        self._root = root
        self.over = journal or _nothing(_counters(root))
        self.registry_file = "workflows.yaml" if (root / "workflows.yaml").exists() else "registry.yaml"
        self._maps: dict[str, dict[str, str]] = {}
        self._ended_bytes: bytes | None = None
        self._last_lines: dict[str, dict[str, Any]] | None = None

    def ref(self, name: str) -> Ref | None:
        entry = self.sidecar(name)
        own = Ref(name, *(entry[key] for key in ("target", "state", "version", "updated"))) if entry else None
        file, key = self.shared_place(name)
        if not file:
            return own
        target = self.listed_target(file, key)
        if target is not None:
            return self._listed(name, own, target, file)
        return self._ended(name, own, key) if file == _THREADS else own

    def _listed(self, name: str, own: Ref | None, target: str, file: str) -> Ref:
        """A ref whose target stands in a file that the predecessor writes too: that file is right."""
        if own is None:
            state = {"status": "idle"} if file == _THREADS else {}
            return Ref(name, target, state, 1, _changed_ms(self._root / file))
        ended = file == _THREADS and own.state.get("status") in _REASON
        if own.target == target and not ended:
            return own
        state = {**own.state, "status": "idle"} if ended else dict(own.state)
        return Ref(name, target, state, own.version + 1, _changed_ms(self._root / file))

    def _ended(self, name: str, own: Ref | None, thread: str) -> Ref | None:
        line = self._last_ended(thread)
        if line is None:
            return own
        status = _STATUS.get(line["reason"], "completed")
        if own is not None:
            if own.state.get("status") in _REASON and own.target == line["head"]:
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
            line = _history_line(data[start : stop if stop >= 0 else len(data)])
            if line is not None and line["thread"] == thread:
                return line
            end = start
        return None

    def _history(self) -> bytes:
        if self._ended_bytes is None:
            self._ended_bytes = _read(self._root / _HISTORY) or b""
        return _overlaid(self._ended_bytes, _HISTORY, self.over)

    def sidecar(self, name: str) -> dict[str, Any] | None:
        if name in self.over.refs:
            return self.over.refs[name]
        path = _ref_path(self._root, name)
        data = _read(path)
        if data is None:
            return None
        entry = _loaded(data, path)
        if not isinstance(entry, dict) or not {"target", "state", "version", "updated"} <= entry.keys():
            raise _damaged_file(path, "it is not a ref")
        return entry

    def shared_place(self, name: str) -> tuple[str, str]:
        """The file and key under which the predecessor keeps a ref, if it does."""
        kind, _, key = name.partition("/")
        if kind == "thread" and is_thread_id(key):
            return _THREADS, key
        return (self.registry_file, key) if kind == "workflow" and key else ("", "")

    def listed_target(self, file: str, key: str) -> str | None:
        edits = self.over.maps.get(file, {})
        return edits[key] if key in edits else self._map(file).get(key)

    def _map(self, file: str) -> dict[str, str]:
        if file not in self._maps:
            self._maps[file] = _read_map(self._root / file)
        return self._maps[file]

    def names(self, prefix: str) -> set[str]:
        """Names that may have a ref now."""
        found = set(_names_under(self._root / "refs", prefix)) | set(self.over.refs)
        if prefix.startswith("thread/") or "thread/".startswith(prefix):
            found.update(
                f"thread/{key}" for key in _edited(self._map(_THREADS), self.over.maps.get(_THREADS, {}))
            )
            self._last_lines = {line["thread"]: line for line in self._ended_lines()}
            found.update(f"thread/{thread}" for thread in self._last_lines)
        if prefix.startswith("workflow/") or "workflow/".startswith(prefix):
            file = self.registry_file
            found.update(f"workflow/{key}" for key in _edited(self._map(file), self.over.maps.get(file, {})))
        return {name for name in found if name.startswith(prefix)}

    def _ended_lines(self) -> Iterator[dict[str, Any]]:
        lines = (_history_line(line) for line in self._history().splitlines())
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
        recorded = {name: (self.sidecar(name) or {}).get("target") for name, _ in targets}
        return [
            Moved(seq, name, target, at)
            for (name, target), at in sorted(targets.items())
            if recorded[name] != target
        ]

    def add_event(self, event: NewEvent, now: int) -> None:
        self.over.counters["event"] += 1
        line = {"seq": self.over.counters["event"], **event._asdict(), "body": dict(event.body), "at": now}
        _plan_line(self.over, self._root, _EVENTS, _json(line))

    def add_move(self, name: str, target: str, now: int) -> None:
        self.over.counters["move"] += 1
        move = Moved(self.over.counters["move"], name, target, now)
        _plan_line(self.over, self._root, _MOVES, _json(move._asdict()))

    def add_ended(self, thread: str, ref: Ref) -> None:
        line = {
            "thread": thread,
            "workflow": ref.state.get("workflow"),
            "head": ref.target,
            "completedAt": ref.updated,
            "reason": _REASON[ref.state["status"]],
        }
        _plan_line(self.over, self._root, _HISTORY, _json(line))


def _plan_move(view: _View, move: Move, now: int) -> Ref:
    entry = view.sidecar(move.name)
    current = view.ref(move.name)
    if (current.version if current else 0) != move.expected:
        raise conflict(move, current)
    ref = Ref(move.name, move.target, dict(move.state or {}), move.expected + 1, now)
    view.over.counters["change"] += 1
    if move.removes:
        _plan_removal(view, move.name)
        return ref
    recorded = entry["target"] if entry else None
    for target in dict.fromkeys((current.target if current else None, ref.target)):
        if target is not None and target != recorded:
            view.add_move(ref.name, target, now)
            recorded = target
    _plan_shared(view, ref, current)
    pointed = recorded is not None or bool(entry and entry.get("pointed", True))
    view.over.refs[ref.name] = {**ref._asdict(), "pointed": pointed}
    return ref


def _plan_removal(view: _View, name: str) -> None:
    over = view.over
    file, key = view.shared_place(name)
    entry = view.sidecar(name)
    over.refs[name] = None
    if file:
        over.maps.setdefault(file, {})[key] = None
    # A lease never points anywhere, so it has no history that would have to be rewritten.
    if file or (entry and entry.get("pointed", True)):
        over.forget.append(name)
        for kind in (_MOVES, _HISTORY):
            lines = over.lines.get(kind, [])
            lines[:] = [line for line in lines if not _tells_of(line, name, kind)]


def _plan_shared(view: _View, ref: Ref, current: Ref | None) -> None:
    """Keep the files of the predecessor in step with a ref it knows."""
    file, key = view.shared_place(ref.name)
    if not file:
        return
    over = view.over
    ended = file == _THREADS and ref.state.get("status") in _REASON
    over.maps.setdefault(file, {})[key] = None if ended else ref.target
    if ended and ref.target is not None:
        told = current and (current.target, current.state.get("status")) == (ref.target, ref.state["status"])
        if not told:
            view.add_ended(key, ref)


def _tells_of(line: str, name: str, file: str) -> bool:
    if not line:
        return False
    entry = json.loads(line)
    return bool(entry["name"] == name if file == _MOVES else f"thread/{entry['thread']}" == name)


def _plan_line(journal: _Journal, root: Path, file: str, line: str) -> None:
    if file not in journal.lines:
        length, whole = _settled(root / file, ours=file.startswith(_OURS))
        journal.lengths[file] = length
        journal.lines[file] = [] if whole else [""]
    journal.lines[file].append(line)


def _settled(path: Path, *, ours: bool) -> tuple[int, bool]:
    """How long a growing file is and whether its last line is whole; ours is cut back to whole lines."""
    try:
        file = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return 0, True
    try:
        size = os.fstat(file).st_size
        if size == 0 or os.pread(file, 1, size - 1) == b"\n":
            return size, True
        if not ours:
            return size, False
        size = os.pread(file, size, 0).rfind(b"\n") + 1
        os.ftruncate(file, size)
        return size, True
    finally:
        os.close(file)


def _follows(name: str, before: str, newest_first: bool) -> bool:
    return name < before if newest_first else name > before


def _fits(ref: Ref, where: Mapping[str, Sequence[str]]) -> bool:
    return all(ref.state.get(key) in wanted for key, wanted in where.items())


# -- node files --


def _node_bytes(record: Record) -> bytes:
    """The deterministic CBOR of {type, payload, timestamp}; shorter keys come first."""
    head = b"\xa3" + canonical.encode("type") + canonical.encode(record.type) + canonical.encode("payload")
    return head + record.data + canonical.encode("timestamp") + canonical.encode(record.created)


_HEAD = b"\xa3dtype\x6d"
_PAYLOAD = b"gpayload"
_TIMESTAMP = b"itimestamp\x1b"


def _parse_node(node: str, data: bytes, path: Path) -> Record:
    try:
        return _quick_record(node, data) or _record(node, data)
    except Damaged as exc:
        raise Damaged(
            f"node {node} is damaged: {path}: {exc.message}",
            node=node,
            hint="Restore it from a bundle that holds it: `rolecall cas import BUNDLE --repair`.",
        ) from exc


def _quick_record(node: str, data: bytes) -> Record | None:
    """A record cut out by position; only when the id proves the cut right."""
    if not (data.startswith(_HEAD) and data[20:28] == _PAYLOAD and data[-19:-8] == _TIMESTAMP):
        return None
    payload = data[28:-19]
    try:
        type_id = data[7:20].decode("ascii")
    except UnicodeDecodeError:
        return None
    if (self_id(payload) if type_id == node else node_id(type_id, payload)) != node:
        return None
    return Record(node, type_id, payload, int.from_bytes(data[-8:], "big"), None, None)


def _record(node: str, data: bytes) -> Record:
    if data[:1] != b"\xa3":
        raise Damaged("the file is empty" if not data else "it does not begin like a node file")
    found: dict[str, Any] = {}
    at = 1
    for _ in range(3):
        key, start = canonical.decode_at(data, at)
        value, at = canonical.decode_at(data, start)
        # The payload is kept as it lies: an undefined property would not survive decoding.
        found[str(key)] = data[start:at] if key == "payload" else value
    if at != len(data):
        raise Damaged(f"{len(data) - at} bytes follow the node")
    if found.keys() != {"type", "payload", "timestamp"}:
        raise Damaged("it has other fields than type, payload and timestamp")
    if not isinstance(found["type"], str) or not isinstance(found["timestamp"], int | float):
        raise Damaged("its type or timestamp is of the wrong kind")
    return Record(node, found["type"], found["payload"], int(found["timestamp"]), None, None)


def _node_of(file: str) -> str | None:
    return file[:-4] if file.endswith(".bin") and is_node_id(file[:-4]) else None


def _hash_in(line: str) -> bytes | None:
    try:
        return bytes.fromhex(line[14:78]) if len(line) >= 78 else None
    except ValueError:
        return None


# -- growing files --


def _append(path: Path, length: int, lines: list[str], *, sync: bool) -> None:
    """Append lines to a file that was `length` long, unless they are there already."""
    text = "".join(f"{line}\n" for line in lines).encode()
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        size = os.fstat(file).st_size
        since = os.pread(file, size - length, length) if size > length else b""
        if not since.startswith(text):
            if text.startswith(since):
                os.ftruncate(file, length)
            elif not since.endswith(b"\n"):
                text = b"\n" + text
            os.lseek(file, 0, os.SEEK_END)
            _write_all(file, text)
        if sync:
            os.fsync(file)
    finally:
        os.close(file)


def _overlaid(data: bytes, file: str, journal: _Journal) -> bytes:
    """The bytes of `history.jsonl` once the journal is carried out."""
    gone = {name.removeprefix("thread/") for name in journal.forget}
    added = [line.encode() for line in journal.lines.get(file, []) if line]
    if not gone and not added:
        return data
    known = set(added)
    kept = []
    for line in data.splitlines():
        entry = _history_line(line) if gone else None
        if line not in known and not (entry and entry["thread"] in gone):
            kept.append(line)
    return b"".join(line + b"\n" for line in (*kept, *added))


def _history_line(line: bytes) -> dict[str, Any] | None:
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    if not isinstance(entry, dict) or not is_thread_id(str(entry.get("thread"))):
        return None
    if not is_node_id(str(entry.get("head"))) or not isinstance(entry.get("completedAt"), int | float):
        return None
    reason, workflow = entry.get("reason"), entry.get("workflow")
    return {
        "thread": entry["thread"],
        "head": entry["head"],
        "completedAt": int(entry["completedAt"]),
        "reason": reason if isinstance(reason, str) else None,
        "workflow": workflow if isinstance(workflow, str) else None,
    }


def _moves(root: Path, journal: _Journal, since: int = 0) -> Iterator[Moved]:
    for line in _numbered(root, _MOVES, journal, since, "move"):
        if line["name"] not in journal.forget or line["seq"] > journal.before["move"]:
            yield Moved(line["seq"], line["name"], line["target"], line["at"])


def _numbered(root: Path, name: str, journal: _Journal, after: int, counter: str) -> Iterator[dict[str, Any]]:
    """The lines of a file numbered by `seq` beyond `after`, as of the journal."""
    path = root / name
    last = journal.before[counter]
    if path.exists():
        with path.open("rb") as file:
            _seek_beyond(file, after)
            for line in file:
                # A line without its end is still being written, or never was.
                if not line.endswith(b"\n"):
                    break
                entry = _loaded(line, path)
                if not isinstance(entry, dict) or not entry.keys() >= _LINE_KEYS[name]:
                    raise _damaged_file(path, "a line does not say what it must")
                if after < entry["seq"] <= last:
                    yield entry
    for text in journal.lines.get(name, ()):
        if text and (entry := json.loads(text))["seq"] > after:
            yield entry


def _seek_beyond(file: BinaryIO, seq: int) -> None:
    """Go to the start of a line not beyond `seq` and close before it; the numbers rise along the file."""
    low, high = 0, os.fstat(file.fileno()).st_size
    while seq and high - low > 4096:
        middle = (low + high) // 2
        file.seek(middle)
        file.readline()
        match = re.match(rb'\{"seq":(\d+),.*\n', file.readline())
        if match and int(match[1]) <= seq:
            low = middle
        else:
            high = middle
    file.seek(low)
    if low:
        file.readline()


# -- names and maps --


def _ref_path(root: Path, name: str) -> Path:
    segments = name.split("/")
    if any(part in ("", ".", "..") or "\0" in part for part in segments):
        raise UsageError(f"{name!r} is not a ref name", hint="Join non-empty segments by /.")
    # A folder `a.json` could not live beside the file of the ref `a`; no name holds a plus sign.
    folders = [f"{part}+" if part.endswith(".json") else part for part in segments[:-1]]
    return root.joinpath("refs", *folders, f"{segments[-1]}.json")


def _names_under(folder: Path, prefix: str) -> Iterator[str]:
    """Names of kept refs; only folders that `prefix` allows are opened."""
    base, _, _ = prefix.rpartition("/")
    start = folder.joinpath(*(f"{p}+" if p.endswith(".json") else p for p in base.split("/") if p))
    waiting = [(start, f"{base}/" if base else "")]
    while waiting:
        place, name = waiting.pop()
        if not place.is_dir():
            continue
        with os.scandir(place) as entries:
            for entry in entries:
                if entry.is_dir():
                    waiting.append((Path(entry.path), f"{name}{entry.name.removesuffix('+')}/"))
                elif entry.name.endswith(".json"):
                    yield name + entry.name[:-5]


_LINE = re.compile(r'(?:"([\w@.$/-]+)"|([A-Za-z0-9][\w.$/-]*)): +(?:"([0-9A-Z]{13})"|([0-9A-Z]{13}))')


def _read_map(path: Path) -> dict[str, str]:
    """A flat YAML map from name to node id. Every scalar is text: an id may look like a number."""
    data = _read(path)
    if data is None:
        return {}
    try:
        text = data.decode()
    except UnicodeDecodeError as exc:
        raise _damaged_file(path, f"line {data.count(10, 0, exc.start) + 1} is not UTF-8") from exc
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        match = _LINE.fullmatch(line.rstrip())
        if match is None:
            return _read_any_map(text, path)
        value = match[3] or match[4]
        if not is_node_id(value):
            raise _damaged_file(path, f"line {number}: {value!r} is not a node id")
        found[match[1] or match[2]] = value
    return found


def _read_any_map(text: str, path: Path) -> dict[str, str]:
    import yaml

    try:
        top = yaml.compose(text, Loader=getattr(yaml, "CBaseLoader", yaml.BaseLoader))
    except yaml.MarkedYAMLError as exc:
        line = exc.problem_mark.line + 1 if exc.problem_mark else 1
        raise _damaged_file(path, f"line {line}: {exc.problem}") from exc
    except yaml.YAMLError as exc:
        raise _damaged_file(path, str(exc)) from exc
    if top is None:
        return {}
    if not isinstance(top, yaml.MappingNode):
        raise _damaged_file(path, "line 1: it is not a map from name to node id")
    found: dict[str, str] = {}
    for key, value in top.value:
        if not isinstance(key, yaml.ScalarNode) or not is_node_id(str(value.value)):
            raise _damaged_file(path, f"line {key.start_mark.line + 1}: it is not a name with a node id")
        found[key.value] = value.value
    return found


def _edited(entries: Mapping[str, str], edits: Mapping[str, str | None]) -> dict[str, str]:
    return {key: value for key, value in {**entries, **edits}.items() if value is not None}


def _map_text(entries: Mapping[str, str]) -> str:
    """YAML that any parser reads: JSON strings are YAML strings."""
    lines = [f"{json.dumps(key)}: {json.dumps(value)}\n" for key, value in sorted(entries.items())]
    return "".join(lines) or "{}\n"


# -- files --


def _counters(root: Path) -> dict[str, int]:
    path = root / "counters.json"
    data = _read(path)
    if data is None:
        return {"change": 0, "move": _last_number(root / _MOVES), "event": _last_number(root / _EVENTS)}
    counters = _loaded(data, path)
    if not isinstance(counters, dict) or not {"change", "move", "event"} <= counters.keys():
        raise _damaged_file(path, "a counter is missing")
    return counters


def _last_number(path: Path) -> int:
    lines = [line for line in (_read(path) or b"").splitlines(keepends=True) if line.endswith(b"\n")]
    return int(_loaded(lines[-1], path)["seq"]) if lines else 0


def _state(root: Path) -> tuple[bytes | None, bytes | None]:
    """Changes whenever a change of refs begins or ends to show."""
    return _read(root / "journal.json"), _read(root / "counters.json")


def _read_journal(root: Path) -> _Journal | None:
    path = root / "journal.json"
    data = _read(path)
    # A journal that had to last was on the disk before it got its name. One that lost its bytes in a
    # power cut belongs to a change that nobody was to wait for.
    if data is None or not data.strip(b"\0"):
        return None
    parts = _loaded(data, path)
    if not isinstance(parts, dict) or parts.keys() != set(_Journal._fields):
        raise _damaged_file(path, "it is not a journal")
    return _Journal(**parts)


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _loaded(data: bytes, path: Path) -> Any:
    try:
        return json.loads(data)
    except ValueError as exc:
        raise _damaged_file(path, f"{exc}: {data[:40]!r}") from exc


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _unique() -> str:
    return f"{os.getpid()}-{next(_serial)}"


def _write_all(file: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(file, rest) :]


def _sync(path: Path) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _changed_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def _changed_ms(path: Path) -> int:
    return _changed_ns(path) // 1_000_000


def _locked(path: Path) -> int:
    """The lock file, open and locked; its time is where the stamps of puts begin."""
    while True:
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
            os.utime(file, ns=(0, 0))
        except FileExistsError:
            file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        fcntl.flock(file, fcntl.LOCK_EX)
        # Somebody may have removed the file while we waited for it.
        if path.exists() and path.stat().st_ino == os.fstat(file).st_ino:
            return file
        os.close(file)


@contextmanager
def _read_locked(path: Path) -> Iterator[None]:
    file = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(file, fcntl.LOCK_SH)
        yield
    finally:
        os.close(file)


# -- faults --


def _damaged_file(path: Path, reason: str) -> Damaged:
    return Damaged(
        f"{path} is damaged: {reason}",
        hint="It was left as it is. Correct or restore the file, then run it again.",
    )


def _unreadable(read: Callable[[], object]) -> Iterator[str]:
    try:
        read()
    except Damaged as exc:
        yield exc.message


def _unlisted(view: _View) -> Iterator[str]:
    """Refs that a file of the predecessor should list and does not: it may have overwritten the entry."""
    try:
        refs = [ref for name in sorted(view.names("")) if (ref := view.ref(name)) and ref.target is not None]
        for ref in refs:
            file, key = view.shared_place(ref.name)
            ended = file == _THREADS and ref.state.get("status") in _REASON
            if file and not ended and view.listed_target(file, key) is None:
                yield f"{file}: {key} is missing; its next move puts it back"
    except Damaged:
        return  # Reported by name before.


def _stray_files(cas: Path) -> Iterator[str]:
    for folder in (cas, cas / "nodes"):
        for entry in sorted(os.scandir(folder), key=lambda e: e.name) if folder.is_dir() else ():
            # The predecessor keeps its variables here, under names of their own.
            known = entry.name.startswith(("_", "variables.db")) or (folder == cas and entry.name == "nodes")
            if not known and _node_of(entry.name) is None:
                yield f"{entry.path}: not the name of a node file"


def _bad_index_lines(index: Path) -> Iterator[str]:
    for path in sorted(index.iterdir()) if index.is_dir() else ():
        for number, line in enumerate(path.read_bytes().splitlines(), 1):
            if not is_node_id(line.decode("ascii", "replace").strip()):
                yield f"{path}: line {number} is not a node id; `rolecall cas reindex` rebuilds it"


def _bad_history_lines(path: Path) -> Iterator[str]:
    for number, raw in enumerate((_read(path) or b"").splitlines(), 1):
        line = _history_line(raw)
        if line is None and raw.strip():
            yield f"{path}: line {number} does not tell how a thread ended"
        elif line is not None and line["reason"] not in _STATUS:
            yield f"{path}: line {number} has the unknown reason {line['reason']!r}"


@contextmanager
def _translated(path: str) -> Iterator[None]:
    """The system's errors as ours: what happened, to which file, what to do."""
    try:
        yield
    except OSError as exc:
        raise _translate(exc, path) from exc


def _translate(exc: OSError, path: str) -> StorageError:
    file = exc.filename if isinstance(exc.filename, str) else path
    reason = exc.strerror or str(exc)
    if exc.errno in (errno.ENOSPC, errno.EDQUOT):
        return StorageError(
            f"no room to write {file}: {reason}", hint="Free some disk space, then run it again."
        )
    if exc.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return StorageError(
            f"{file} cannot be used: {reason}", hint="Make the folder and its files writable."
        )
    if exc.errno in (errno.ENOTDIR, errno.EEXIST):
        return StorageError(f"{path} is not a folder: {reason}", hint="Name a folder, or remove the file.")
    return StorageError(f"{file}: {reason}", hint="Check the disk and the folder, then run it again.")
