"""A store in a folder of plain files, in the layout of the predecessor's storage root.

A folder written by the predecessor can be used here, and the predecessor can still read the threads in it. Node files
are in `cas/`, the type index in `cas/_index/`, active threads in `threads.yaml`, ended threads in `history.jsonl`, and
workflow names in `registry.yaml` (or `workflows.yaml`, if that exists). Data for which this layout has no place is kept
in `refs/`, `moves.jsonl`, `events.jsonl`, `counters.json` and `cas/_sha256/`.

A change takes effect once `journal.json` is in place; only then are the other files updated. Writers hold a kernel lock
and finish the journal of a killed writer. Readers take no lock: they read the files as they will be once the journal is
carried out, and retry if a writer interfered.

This module contains the backend's methods, the lock and the order of a commit. `nodefile` handles nodes, `refview` and
`reffile` handle refs, `journal` handles a change in progress, and `disk` handles single files.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from heapq import nsmallest
from pathlib import Path
from typing import TypeVar

from rolecall.errors import Damaged, Hint, NotFound, StorageError
from rolecall.store import journal
from rolecall.store.backend import (
    Change,
    Damage,
    Moved,
    NodeRecord,
    Put,
    Ref,
    Size,
    StoredEvent,
    no_store,
    require,
)
from rolecall.store.disk import find_damage, sync, translate_errors, write
from rolecall.store.ids import node_from_number, node_number
from rolecall.store.journal import Journal
from rolecall.store.nodefile import NodeFolder, holds_nodes, node_bytes
from rolecall.store.refview import RefView

_T = TypeVar("_T")

_MANY_UNSYNCED = 500
_LOOKS = 50


class FilesBackend:
    """A store in the folder `path`. The first write creates the folder, so that an earlier failure leaves no trace.
    With `create=False`, a store that does not exist is an error.

    `cas` names the node folder if it is not `cas/` within `path`. A `path` that is itself a node folder is a store
    without refs. In both cases the store is read-only, because several store folders might share the nodes, and the
    lock of one does not protect the others.
    """

    clock: Callable[[], int] | None = None

    def __init__(self, path: str, *, create: bool = True, cas: str | None = None) -> None:
        self.path = path
        self._root = Path(path).absolute()
        self.address = f"files:{os.path.realpath(path)}"
        self._lock: int | None = None
        self._swept = False
        self._unsynced: list[Path] = []
        with translate_errors(path):
            usual = self._root / "cas"
            folder = Path(cas).absolute() if cas is not None else usual
            if cas is None and not usual.is_dir() and holds_nodes(self._root):
                folder = self._root
            self._writable = folder == usual
            if not self._writable:
                for needed in (self._root, folder):
                    if not needed.is_dir():
                        raise NotFound(
                            f"{str(needed)!r} is not a folder", hint="Name the folder that was written."
                        )
            elif not folder.is_dir():
                if self._root.exists() and not self._root.is_dir():
                    raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
                if not create:
                    raise no_store(path)
        self._nodes = NodeFolder(folder, root=self._root)

    # -- writing --

    def commit(self, change: Change, *, now: int, durable: bool) -> list[Ref]:
        with translate_errors(self.path), self._writing():
            view = RefView(Journal(self._root))
            require(change.types, self.find_stored(change.types))
            fresh, known = self._nodes.compare(change.nodes)
            moved = [view.plan_move(move, now) for move in change.moves]
            for name in change.bumps:
                view.plan_bump(name, now)
            for fact in change.facts:
                view.plan_fact(fact, now)
            for event in change.events:
                view.plan_event(event, now)
            plan = view.journal
            self._nodes.plan(plan, fresh)
            try:
                self._decide(plan, fresh, known, now=now, durable=durable)
            except BaseException:
                journal.sweep(self._root)
                raise
            if plan.is_empty:
                return moved
            try:
                plan.carry_out(durable=durable)
            except OSError:
                # The change has taken effect, and readers see it. The next writer carries it out, or reports why that
                # is impossible.
                return moved
            if not durable:
                self._unsynced += [self._root / final for _, final in plan.nodes.values()]
        return moved

    def _decide(
        self, plan: Journal, fresh: list[NodeRecord], known: list[Path], *, now: int, durable: bool
    ) -> None:
        """Write the new nodes to temporary files, and then the journal, which makes the change take effect."""
        assert self._lock is not None  # noqa: S101 - narrows the type
        if fresh or known:
            # The modification time of a node file is its position among the puts, which are a microsecond apart. The
            # lock file keeps the highest position, because two puts can happen within one tick of the clock.
            stamp = max(now * 1_000_000, os.fstat(self._lock).st_mtime_ns // 1000 * 1000 + 1000)
            last = stamp + (len(fresh) + len(known) - 1) * 1000
            os.utime(self._lock, ns=(last, last))
        for path in known:
            os.utime(path, ns=(stamp, stamp))
            stamp += 1000
        if plan.is_empty:
            return
        for record in fresh:
            temporary = self._root / plan.nodes[record.id][0]
            write(temporary, node_bytes(record), sync=durable)
            os.utime(temporary, ns=(stamp, stamp))
            stamp += 1000
        if durable:  # a ref might be about to point at nodes that were put without waiting
            if len(self._unsynced) > _MANY_UNSYNCED:  # syncing each file separately would take milliseconds
                os.sync()
            else:
                for path in self._unsynced:
                    if path.exists():
                        sync(path)
            self._unsynced.clear()
        plan.write(durable=durable)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        if not self._writable:
            raise StorageError(
                f"{self.path} is only read: its nodes are in {self._nodes.path}, which other stores might share",
                hint=Hint("Copy them into a store", "import_nodes", source=str(self._nodes.path)),
            )
        if self._lock is not None:
            journal.finish_journal(self._root, first=False)
            yield
            return
        self._nodes.path.mkdir(parents=True, exist_ok=True)
        path = self._root / ".lock"
        try:
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
            os.utime(lock, ns=(0, 0))  # the time of the last put
        except FileExistsError:
            lock = os.open(path, os.O_RDWR, 0o666)
        fcntl.flock(lock, fcntl.LOCK_EX)
        self._lock = lock
        try:
            journal.finish_journal(self._root, first=not self._swept)
            self._swept = True
            yield
        finally:
            self._lock = None
            # A forked child process might hold the same open file, so closing the file would not be enough to unlock
            # it.
            fcntl.flock(lock, fcntl.LOCK_UN)
            os.close(lock)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        with translate_errors(self.path), self._writing():
            yield

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Block writers. As always, reads include the journal of a killed writer."""
        lock = self._root / ".lock"
        with _read_lock(lock) if lock.exists() else nullcontext():
            yield

    def delete(self, nodes: Iterable[str]) -> int:
        if self._lock is None:
            raise RuntimeError("delete is only safe inside exclusive()")
        with translate_errors(self.path):
            return self._nodes.delete(nodes)

    def reindex(self, refs: Mapping[str, tuple[str, ...]] | None = None) -> None:
        if refs is not None:
            return  # this layout derives references from the schema and does not store them
        with translate_errors(self.path), self._writing():
            self._nodes.rebuild_index()

    # -- reading nodes --

    def record(self, node: str) -> NodeRecord | None:
        with translate_errors(self.path):
            return self._nodes.record(node)

    def records(self, nodes: Sequence[str]) -> list[NodeRecord]:
        return [record for node in dict.fromkeys(nodes) if (record := self.record(node)) is not None]

    def find_stored(self, nodes: Sequence[str]) -> set[str]:
        with translate_errors(self.path):
            return {node for node in nodes if self._nodes.has(node)}

    def ids_with_prefix(self, prefix: str, limit: int) -> list[str]:
        with translate_errors(self.path):
            return nsmallest(limit, (node for node, _ in self._nodes.listing() if node.startswith(prefix)))

    def ids_of_type(self, type_id: str) -> Iterator[str]:
        with translate_errors(self.path):
            yield from self._nodes.of_type(type_id)

    def scan(self) -> Iterator[NodeRecord | Damage]:
        with translate_errors(self.path):
            yield from self._nodes.scan(hashes=True)

    def puts(self, after: int = 0) -> Iterator[Put]:
        with translate_errors(self.path):
            found = [(at, node_number(node)) for node, at in self._nodes.times() if at > after]
        for at, number in sorted(found):
            yield Put(at, node_from_number(number), at // 1_000_000)

    def position(self) -> tuple[int, int]:
        with translate_errors(self.path):
            highest = max(self._nodes.latest_put(), max((at for _, at in self._nodes.times()), default=0))
            if self._lock is not None:
                # A file from elsewhere might have a later time; new puts must come after it.
                os.utime(self._lock, ns=(highest, highest))
            return highest, self._look(lambda view: view.counters.move)

    # -- reading refs and events --

    def _look(self, at: Callable[[RefView], _T]) -> _T:
        """Return what `at` finds in one consistent state of the files, even if a writer is at work."""

        def look() -> _T:
            return at(RefView(journal.read_journal(self._root) or Journal(self._root)))

        with translate_errors(self.path):
            for _ in range(_LOOKS):
                before = journal.read_marker(self._root)
                problem = None
                try:
                    found = look()
                except Damaged as exc:
                    problem = exc
                if journal.read_marker(self._root) == before:
                    if problem is not None:
                        raise problem
                    return found
            with _read_lock(self._root / ".lock"):
                return look()

    def ref(self, name: str) -> Ref | None:
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
        def page(view: RefView) -> list[Ref]:
            found: list[Ref] = []
            for name in sorted(view.names(prefix), reverse=newest_first):
                if limit is not None and len(found) >= limit:
                    break
                if before is not None and (name >= before if newest_first else name <= before):
                    continue
                ref = view.ref(name)
                if ref is None:
                    continue
                # The workflow of a thread that the predecessor wrote is in the thread's nodes, so the caller must check
                # it.
                unsaid = {"name", "workflow"} - set(ref.state) if name.startswith("thread/") else set[str]()
                if all(
                    key in unsaid or ref.state.get(key) in wanted for key, wanted in (where or {}).items()
                ):
                    found.append(ref)
            return found

        return self._look(page)

    def names(self, prefix: str = "", *, before: str | None = None, limit: int | None = None) -> list[str]:
        found = self._look(lambda view: view.names(prefix))
        return sorted((name for name in found if before is None or name < before), reverse=True)[:limit]

    def history(self, name: str) -> list[Moved]:
        def read(view: RefView) -> list[Moved]:
            return [*(moved for moved in view.moves() if moved.name == name), *view.find_unrecorded([name])]

        return self._look(read)

    def roots(self, since: int = 0) -> Iterator[Moved]:
        yield from self._look(lambda view: [*view.moves(since), *view.find_unrecorded(None, since)])

    def events(
        self, stream: str | None = None, *, after: int = 0, limit: int | None = None
    ) -> list[StoredEvent]:
        return self._look(lambda view: view.events(stream, after=after, limit=limit))

    def newest_event(self) -> int:
        return self._look(lambda view: view.counters.event)

    # -- the container --

    def size(self) -> Size:
        nodes = payloads = 0
        types: dict[str, int] = {}
        with translate_errors(self.path):
            for item in self._nodes.scan(hashes=False):
                nodes += 1
                if isinstance(item, NodeRecord):
                    payloads += len(item.data)
                    types[item.type] = types.get(item.type, 0) + 1
            refs = self._look(lambda view: sum(view.ref(name) is not None for name in view.names("")))
            folders = (
                {self._root, self._nodes.path} if self._root not in self._nodes.path.parents else {self._root}
            )
            files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
        return {
            "nodes": nodes,
            "bytes": payloads,
            "types": dict(sorted(types.items(), key=lambda item: -item[1])),
            "refs": refs,
            "events": len(self.events()),
            "disk": sum(path.stat().st_size for path in files),
        }

    def problems(self) -> Iterator[str]:
        with translate_errors(self.path):
            yield from self._nodes.problems()
            yield from find_damage(lambda: journal.read_journal(self._root))
            yield from RefView(Journal(self._root)).problems()

    def close(self) -> None:
        """Do nothing, because no file stays open between calls."""


@contextmanager
def _read_lock(path: Path) -> Iterator[None]:
    file = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(file, fcntl.LOCK_SH)
        yield
    finally:
        os.close(file)
