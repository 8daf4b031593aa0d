"""Export and import: copy from one backend to another.

A bundle is a tar archive of the `files` layout, so you can unpack and inspect it, use it as a store, and read it with
the predecessor. A folder can take the place of a bundle in both directions. Nodes, refs with their history, and events
keep their ids and times. An export reads the store as of one instant. Damaged and missing nodes are reported, and an
import checks everything before it writes anything.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import tarfile
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import islice
from pathlib import Path
from typing import IO, NamedTuple, cast

from rolecall.errors import Damaged, Hint, NotFound, RolecallError, StorageError, UsageError
from rolecall.store import scratch
from rolecall.store.backend import INDEX, Damage, NodeRecord, Ref, StoredEvent
from rolecall.store.files import FilesBackend
from rolecall.store.ids import is_node_id, node_number
from rolecall.store.store import META, Dangling, Store, check, sha256_of
from rolecall.store.verify import Fault

_BATCH = 500
_SMALL = 64 * 1024 * 1024
_MOST_RATIO = 100
"""A bundle can unpack to at most `_SMALL` bytes plus this multiple of its own size; a factor of ten is common."""
_GZIP = b"\x1f\x8b"

Progress = Callable[[int], None]
AddFiles = Callable[[Store, str], Sequence[Fault]]
"""Called with the bundle's store and its folder; returns what is missing."""
TakeFiles = Callable[[str], object]
"""Called with the bundle's folder."""


class Copied(NamedTuple):
    nodes: int
    """The number of nodes copied, including those that were already present."""
    refs: int
    events: int
    kept: tuple[str, ...]
    """The refs and event streams that have diverged in the target and were left alone."""
    problems: tuple[Fault, ...]
    """Items that were left out, or that were copied despite a fault."""


def export_to(
    store: Store,
    path: str,
    nodes: Sequence[str] = (),
    *,
    refs: Sequence[str] = (),
    keep_going: bool = False,
    progress: Progress = lambda _: None,
    add_files: AddFiles | None = None,
) -> Copied:
    """Write a store to a bundle file or a folder. Without `nodes` and `refs`, everything is written; otherwise only
    what is reachable from `nodes`, or `refs` with the nodes reachable from them. `add_files` adds the files that belong
    to the copied nodes."""

    def fill(folder: str, *, durable: bool) -> Copied:
        with Store(FilesBackend(folder), now=store.now) as target:
            copied = _copy(
                store, target, nodes, refs, keep_going=keep_going, progress=progress, durable=durable
            )
            more = add_files(target, folder) if add_files else ()
        return copied._replace(problems=(*copied.problems, *more))

    if os.path.isdir(path) or path.endswith("/"):
        return fill(path, durable=True)
    if os.path.exists(path):
        raise UsageError(f"{path} exists", hint="Name a new file; an export never overwrites.")
    try:
        with scratch.folder(".rolecall-export-", os.path.dirname(os.path.abspath(path))) as place:
            # Only the finished bundle must be durable, not the folder from which it is packed.
            copied = fill(str(place / "store"), durable=False)
            packed = str(place / "bundle")
            with tarfile.open(packed, "w:gz" if path.endswith((".gz", ".tgz")) else "w") as tar:
                tar.add(place / "store", arcname=".")
            with open(packed, "rb") as file:
                os.fsync(file.fileno())
            try:
                os.link(packed, path)  # a link never overwrites an existing file
            except PermissionError:  # the file system has no hard links
                os.rename(packed, path)
    except OSError as exc:
        raise StorageError(
            f"{path} could not be written: {exc.strerror}", hint="Nothing was left behind."
        ) from exc
    return copied


def import_from(
    store: Store,
    path: str,
    *,
    repair: bool = False,
    keep_going: bool = False,
    progress: Progress = lambda _: None,
    take_files: TakeFiles | None = None,
) -> Copied:
    """Import a bundle or a folder. With `repair`, also replace nodes that are damaged in `store`. `take_files` takes
    over what `add_files` added, before any node is copied."""
    is_folder = os.path.isdir(path)
    with nullcontext(Path(path)) if is_folder else scratch.folder("rolecall-import-") as place:
        if not is_folder:
            _unpack(path, str(place))
        try:
            backend = FilesBackend(str(place), create=False)
        except NotFound as exc:
            raise NotFound(
                f"there are no nodes in {path}",
                hint="Name a bundle, or a folder in the files layout: its nodes are in cas/.",
            ) from exc
        with Store(backend) as source:
            if take_files:
                take_files(str(place))
            return _copy(source, store, (), repair=repair, keep_going=keep_going, progress=progress)


# -- copying --


def _copy(
    source: Store,
    target: Store,
    nodes: Sequence[str],
    refs: Sequence[str] = (),
    *,
    repair: bool = False,
    keep_going: bool = False,
    progress: Progress,
    durable: bool = True,
) -> Copied:
    with source.backend.snapshot():
        targets = [moved.target for name in refs for moved in source.history(name)]
        targets += [ref.target for name in refs if (ref := source.ref(name)) is not None and ref.target]
        nodes = list(dict.fromkeys([*nodes, *targets]))
        problems = list(_find_damage(source)) if keep_going or not nodes else []
        damaged = {problem.node for problem in problems}
        if not nodes:
            _check_refs(source, target, problems, damaged, keep_going=keep_going)
        if problems and not keep_going:
            shown = "".join(f"\n  {problem.node}: {problem.text}" for problem in problems[:20])
            more = f"\n  and {len(problems) - 20} more" if problems[20:] else ""
            raise Damaged(
                f"nothing was copied: the source is damaged, {len(problems)} times:{shown}{more}",
                node=problems[0].node,
                hint=Hint("Copy what is intact and name the rest", "keep_going"),
            )
        if repair:  # replace nodes that are damaged in the target
            found = [problem.node for problem in _find_damage(target) if is_node_id(problem.node)]
            for node in sorted(source.backend.find_stored(found) - damaged):
                record = _complete(source, source.record(node), problems)
                with target.backend.exclusive():
                    target.backend.delete([node])
                    _add(target, [record])
        count = 0
        # Copy types first, so that an interrupted copy has no node without its type.
        for schemas_first in (True, False):
            records = _records(source, nodes, damaged, problems)
            chosen = (r for r in records if (r.type in (META, r.id)) == schemas_first)
            while batch := list(islice(chosen, _BATCH)):
                _add(target, [_complete(source, record, problems) for record in batch], durable=durable)
                count += len(batch)
                progress(count)
        if nodes and not refs:
            return Copied(count, 0, 0, (), tuple(dict.fromkeys(problems)))
        kept: list[str] = []
        noted = problems if keep_going else None
        names = list(refs) or source.backend.names()[::-1]
        streams: list[str | None] = [name.removeprefix("thread/") for name in refs] or [None]
        copied = _copy_refs(source, target, names, noted, kept, durable=durable)
        events = _copy_events(source, target, streams, noted, kept, durable=durable)
        return Copied(count, copied, events, tuple(kept), tuple(dict.fromkeys(problems)))


@contextmanager
def _note_damage(problems: list[Fault] | None, name: str = "") -> Iterator[None]:
    """Add damage to `problems` under the name of the damaged item, or raise it if `problems` is None."""
    try:
        yield
    except Damaged as exc:
        if problems is None:
            raise
        problems.append(Fault(name, "container", exc.message))


def _find_damage(source: Store) -> Iterator[Fault]:
    try:
        for item in source.backend.scan():
            if isinstance(item, Damage):
                yield Fault(item.id, "damaged", item.reason)
                continue
            try:
                check(item)
            except Damaged as exc:
                yield Fault(item.id, "damaged", exc.message)
    except Damaged as exc:
        yield Fault(exc.node, "container", exc.message)


def _check_refs(
    source: Store, target: Store, problems: list[Fault], damaged: set[str], *, keep_going: bool
) -> None:
    """Report damaged refs and events, and nodes that neither side has although a ref points or once pointed to them."""
    with _note_damage(problems):
        for name in reversed(source.backend.names()):
            with _note_damage(problems, name):
                source.ref(name)
    with _note_damage(problems):
        deque(source.backend.roots(), maxlen=0)
    with _note_damage(problems):
        deque(_events(source), maxlen=0)
    if problems and not keep_going:
        return
    with _note_damage(problems):
        names = {moved.target: moved.name for moved in source.backend.roots()}
        seen = {node_number(node) for node in damaged if is_node_id(node)}
        for visit in source.walk(*names, follow_types=True, seen=seen):
            if isinstance(visit, Dangling) and not target.backend.find_stored([visit.id]):
                referrer = visit.referrer or names[visit.id]
                problems.append(Fault(referrer, "missing", f"leads to {visit.id}, which is not stored"))


def _records(
    source: Store, nodes: Sequence[str], damaged: set[str], problems: list[Fault]
) -> Iterator[NodeRecord]:
    """Yield the intact records to copy: all of them, or those reachable from `nodes`."""
    if not nodes:
        try:
            for item in source.backend.scan():
                if isinstance(item, NodeRecord) and item.id not in damaged:
                    yield item
        except Damaged as exc:
            problems.append(Fault(exc.node, "container", exc.message))
        return
    left_out = {node_number(node) for node in damaged if is_node_id(node)}
    for visit in source.walk(*nodes, follow_types=True, seen=left_out, checked=True):
        if isinstance(visit, Dangling):
            problems.append(Fault(visit.referrer, "dangling", f"refers to {visit.id}, which is not stored"))
        else:
            yield source.record(visit)


def _complete(source: Store, record: NodeRecord, problems: list[Fault]) -> NodeRecord:
    """Fill in the references and the SHA-256 hash of a record if the source has not stored them."""
    refs = record.refs
    if refs is None:
        try:
            refs = source.derive_refs(record)
        except RolecallError as exc:
            problems.append(Fault(record.id, "type", exc.message))
            refs = ()
    prefix = "" if record.id == record.type else record.type
    return record._replace(refs=refs, sha256=record.sha256 or sha256_of(prefix, record.data))


def _add(target: Store, records: Sequence[NodeRecord], *, durable: bool = True) -> None:
    draft = target.draft()
    for record in records:
        draft.add(record)
    draft.commit(durable=durable)


# -- refs and events --


def _copy_refs(
    source: Store,
    target: Store,
    names: Sequence[str],
    problems: list[Fault] | None,
    kept: list[str],
    *,
    durable: bool,
) -> int:
    """Copy the refs that `target` lacks. A ref that already points to another node in `target` stays unchanged."""
    count = 0
    draft = target.draft()
    with _note_damage(problems):
        for name in names:
            with _note_damage(problems, name):
                ref, present = source.ref(name), target.ref(name)
                if ref is None:
                    continue
                if present is None:
                    version: Ref | None = None
                    # Copy the history, too, so that older targets stay reachable.
                    for number, moved in enumerate(source.history(name), 1):
                        draft.move(name, version, moved.target, {}, at=moved.at)
                        version = ref._replace(version=number)
                    draft.move(name, version, ref.target, ref.state, at=ref.updated)
                    count += 1
                elif name.startswith(INDEX):
                    continue  # two steps have the same key, and the index can name either
                elif present.target != ref.target or (ref.target is None and present.state != ref.state):
                    kept.append(name)
    draft.commit(durable=durable)
    return count


def _copy_events(
    source: Store,
    target: Store,
    streams: Sequence[str | None],
    problems: list[Fault] | None,
    kept: list[str],
    *,
    durable: bool,
) -> int:
    """Copy the events of each stream that `target` lacks. A stream that has diverged in `target` is left alone. In
    `streams`, None means all streams."""
    count = 0
    here: dict[str, deque[int]] = {}
    for event in _events(target):
        here.setdefault(event.stream, deque()).append(_mark(event))
    left: set[str] = set()
    events = (event for stream in streams for event in _events(source, stream))
    with _note_damage(problems):
        while page := list(islice(events, _BATCH)):
            draft = target.draft()
            for event in page:
                if ours := here.get(event.stream):
                    if ours.popleft() != _mark(event):
                        left.add(event.stream)
                elif event.stream not in left:
                    draft.event(event.stream, event.kind, event.body, at=event.at)
                    count += 1
            draft.commit(durable=durable)
    kept += sorted(left)
    return count


def _events(store: Store, stream: str | None = None) -> Iterator[StoredEvent]:
    after = 0
    while page := store.events(stream, after=after, limit=_BATCH):
        yield from page
        after = page[-1].seq


def _mark(event: StoredEvent) -> int:
    return hash((event.kind, json.dumps(event.body, sort_keys=True), event.at))


# -- bundle files --


def _unpack(path: str, folder: str) -> None:
    try:
        with open(path, "rb") as file:
            is_packed, size = file.read(2) == _GZIP, os.fstat(file.fileno()).st_size
        with gzip.open(path, "rb") if is_packed else open(path, "rb") as content:
            bounded = cast("IO[bytes]", _Bounded(content, _SMALL + _MOST_RATIO * size))
            with tarfile.open(fileobj=bounded, mode="r:") as tar:
                for member in tar:
                    # A link could lead out of the folder, and a sparse file could have any size.
                    is_plain = (member.isreg() and not member.issparse()) or member.isdir()
                    place = os.path.normpath(os.path.join(folder, member.name))
                    if os.path.commonpath([folder, place]) != folder or not is_plain:
                        raise tarfile.ReadError(f"{member.name!r} is not a plain file within it")
                    # Not with `tar.extract`: it has no filter before Python 3.11.4.
                    source = tar.extractfile(member)
                    if source is None:
                        os.makedirs(place, exist_ok=True)
                    else:
                        os.makedirs(os.path.dirname(place), exist_ok=True)
                        with source, open(place, "wb") as target:
                            shutil.copyfileobj(source, target)
                    os.utime(place, (member.mtime, member.mtime))
                # A tar archive cut off between two files still reads as a shorter one; only its closing block is
                # missing.
                bounded.seek(tar.offset)
                if bounded.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
                    raise tarfile.ReadError("it ends too early")
    except FileNotFoundError as exc:
        raise NotFound(f"{path} does not exist", hint="Name a bundle or a folder.") from exc
    except (tarfile.TarError, EOFError, ValueError, OverflowError, zlib.error, gzip.BadGzipFile) as exc:
        raise Damaged(
            f"{path} is not a whole bundle: {exc}", hint="Export it again, or fetch it again."
        ) from exc
    except OSError as exc:
        raise StorageError(f"{path} could not be unpacked: {exc}") from exc


class _Bounded:
    """A file with a limit on its unpacked size, because a few compressed bytes can unpack to any amount."""

    def __init__(self, file: IO[bytes] | gzip.GzipFile, limit: int) -> None:
        self._file = file
        self._limit = limit
        self.tell = file.tell

    def seek(self, at: int) -> int:
        self._check(at)
        return self._file.seek(at)

    def read(self, size: int) -> bytes:
        self._check(self._file.tell() + size)
        return self._file.read(size)

    def _check(self, end: int) -> None:
        if end > self._limit:
            raise tarfile.ReadError(
                f"it unpacks to more than {self._limit // 1024 // 1024} MB, far more than its size suggests;"
                " if you trust it, unpack it by hand and import the folder"
            )
