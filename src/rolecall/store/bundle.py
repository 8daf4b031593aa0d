"""Export and import: a copy from one backend to another.

A bundle is a tar of the `files` layout, so it can be unpacked and looked at, used as a store as it
is, and read by the predecessor; a folder works in place of a bundle in both directions. Nodes keep
their ids and times. What is damaged is named, and nothing is taken over before all was looked at.
"""

from __future__ import annotations

import gzip
import lzma
import os
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import NamedTuple

from rolecall.errors import Damaged, NotFound, RolecallError, StorageError, UsageError
from rolecall.store.backend import Damage, Record
from rolecall.store.files import FilesBackend
from rolecall.store.store import META, Dangling, Draft, Store, check, sha256_of
from rolecall.store.verify import Problem

_BATCH = 500

Progress = Callable[[int], None]


class Copied(NamedTuple):
    nodes: int
    """Nodes taken over, those that were there already included."""
    refs: int
    kept: tuple[str, ...]
    """Refs that already point elsewhere here and were left alone."""
    problems: tuple[Problem, ...]
    """What was left out, or taken although something is odd about it."""


def export_to(
    store: Store, path: str, nodes: Sequence[str] = (), *, progress: Progress = lambda _: None
) -> Copied:
    """Write everything, or what is reachable from `nodes`, to a bundle file or a folder."""
    if os.path.isdir(path) or path.endswith("/"):
        with Store(FilesBackend(path), now=store.now) as target:
            return _copy(store, target, nodes, progress=progress)
    if os.path.exists(path):
        raise UsageError(f"{path} exists", hint="Name a new file; an export never overwrites.")
    return _export_bundle(store, path, nodes, progress)


def import_from(
    store: Store,
    path: str,
    *,
    repair: bool = False,
    keep_going: bool = False,
    progress: Progress = lambda _: None,
) -> Copied:
    """Take over a bundle or a folder. `repair` also replaces nodes that are damaged here."""
    with _opened(path) as source:
        if repair:
            _drop_damaged(store, source)
        return _copy(source, store, (), keep_going=keep_going, progress=progress)


# -- copying --


def _copy(
    source: Store, target: Store, nodes: Sequence[str], *, keep_going: bool = False, progress: Progress
) -> Copied:
    problems = [] if nodes else list(_damage_in(source))
    if problems and not keep_going:
        raise _refused(problems)
    damaged = {problem.node for problem in problems}
    count = 0
    # Types first, so that a copy that is cut short holds no node without its type.
    for schemas_first in (True, False):
        chosen = (
            r for r in _records(source, nodes, damaged, problems) if (r.type in (META, r.id)) == schemas_first
        )
        while batch := list(islice(chosen, _BATCH)):
            draft = target.draft()
            for record in batch:
                draft.add(_completed(source, record, problems))
            draft.commit(durable=True)
            count += len(batch)
            progress(count)
    refs, kept = _copy_refs(source, target) if not nodes else (0, [])
    return Copied(count, refs, tuple(kept), tuple(dict.fromkeys(problems)))


def _damage_in(source: Store) -> Iterator[Problem]:
    for item in source.backend.scan():
        if isinstance(item, Damage):
            yield Problem(item.id, "damaged", item.reason)
            continue
        try:
            check(item)
        except Damaged as exc:
            yield Problem(item.id, "damaged", exc.message)


def _refused(problems: list[Problem]) -> Damaged:
    shown = "".join(f"\n  {problem.node}: {problem.text}" for problem in problems[:20])
    more = f"\n  and {len(problems) - 20} more" if problems[20:] else ""
    return Damaged(
        f"nothing was copied: {len(problems)} nodes of the source are damaged:{shown}{more}",
        node=problems[0].node,
        hint="--keep-going takes the intact ones and leaves these out.",
    )


def _records(
    source: Store, nodes: Sequence[str], damaged: set[str], problems: list[Problem]
) -> Iterator[Record]:
    if not nodes:
        yield from (
            item for item in source.backend.scan() if isinstance(item, Record) and item.id not in damaged
        )
        return
    for visit in source.walk(*nodes, follow_types=True):
        if isinstance(visit, Dangling):
            problems.append(Problem(visit.referrer, "dangling", f"refers to {visit.id}, which is not stored"))
        else:
            yield source.record(visit)


def _completed(source: Store, record: Record, problems: list[Problem]) -> Record:
    """A record with what its old place may not have kept: references and SHA-256."""
    refs = record.refs
    if refs is None:
        try:
            refs = source.derive_refs(record)
        except RolecallError as exc:
            problems.append(Problem(record.id, "type", exc.message))
            refs = ()
    prefix = "" if record.id == record.type else record.type
    return record._replace(refs=refs, sha256=record.sha256 or sha256_of(prefix, record.data))


def _copy_refs(source: Store, target: Store) -> tuple[int, list[str]]:
    """Refs that are new here, each in one move; those that point elsewhere here stay."""
    kept = []
    draft = target.draft()
    count = 0
    for ref in source.refs():
        if ref.target is None:
            continue
        present = target.ref(ref.name)
        if present is None:
            _add_ref(draft, source, ref.name)
            count += 1
        elif present.target != ref.target:
            kept.append(ref.name)
    draft.commit()
    return count, kept


def _add_ref(draft: Draft, source: Store, name: str) -> None:
    """Walk a new ref through its history, so that older targets stay reachable here too."""
    ref = source.ref(name)
    if ref is None or ref.target is None:
        return
    past = [moved.target for moved in source.history(name) if moved.target != ref.target]
    version = None
    for target in past:
        draft.move(name, version, target, {})
        version = ref._replace(version=version.version + 1 if version else 1)
    draft.move(name, version, ref.target, ref.state)


def _drop_damaged(store: Store, source: Store) -> None:
    """Remove nodes that are damaged here and intact in `source`, so that the copy brings them back."""
    damaged = [problem.node for problem in _damage_in(store)]
    intact = []
    for node in damaged:
        try:
            check(source.record(node))
        except (NotFound, Damaged):
            continue
        intact.append(node)
    with store.backend.exclusive():
        store.backend.delete(intact)


# -- bundle files --


def _export_bundle(store: Store, path: str, nodes: Sequence[str], progress: Progress) -> Copied:
    folder = os.path.dirname(os.path.abspath(path))
    try:
        with tempfile.TemporaryDirectory(dir=folder, prefix=".rolecall-export-") as scratch:
            with Store(FilesBackend(os.path.join(scratch, "store")), now=store.now) as target:
                copied = _copy(store, target, nodes, progress=progress)
            packed = os.path.join(scratch, "bundle")
            with tarfile.open(packed, "w:gz" if path.endswith(("gz", ".tgz")) else "w") as tar:
                tar.add(os.path.join(scratch, "store"), arcname=".")
            with open(packed, "rb") as file:
                os.fsync(file.fileno())
            _place(packed, path)
    except OSError as exc:
        raise StorageError(
            f"{path} could not be written: {exc.strerror}", hint="Nothing was left behind."
        ) from exc
    return copied


def _place(packed: str, path: str) -> None:
    """Give the finished bundle its name. A link never overwrites; where there are none, a rename must do."""
    try:
        os.link(packed, path)
    except PermissionError:
        os.rename(packed, path)


@contextmanager
def _opened(path: str) -> Iterator[Store]:
    """A bundle or a folder as a store to read from."""
    if os.path.isdir(path):
        with Store(FilesBackend(path, create=False)) as source:
            yield source
        return
    with tempfile.TemporaryDirectory(prefix="rolecall-import-") as scratch:
        _unpack(path, scratch)
        with Store(FilesBackend(scratch, create=False)) as source:
            yield source


def _unpack(path: str, folder: str) -> None:
    try:
        with tarfile.open(path) as tar:
            # The `data` filter refuses absolute paths, links out of the folder and devices.
            tar.extractall(folder, filter="data")
            # Cut off between two files, a tar reads as a shorter one; only its closing block is missing.
            tar.fileobj.seek(tar.offset)
            if tar.fileobj.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
                raise tarfile.ReadError("it ends too early")
    except FileNotFoundError as exc:
        raise NotFound(f"there is no bundle or folder at {path}") from exc
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as exc:
        raise Damaged(
            f"{path} is not a whole bundle: {exc}", hint="Export it again, or fetch it again."
        ) from exc
    except OSError as exc:
        raise StorageError(f"{path} could not be unpacked: {exc}") from exc
