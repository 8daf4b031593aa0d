"""The files in `.nexus/` as bytes: read, replaced atomically, copied aside if damaged, under one lock.

The kernel holds the lock, which is on one of our own files, so it is released when its process ends. Readers take no
lock, because files are only replaced as a whole. A replacement is first written to our own folder, always under the
same name, so the next writer removes the draft that a killed writer left. Nothing is read or written through a link,
because a repository could come from anybody.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from stat import S_ISREG
from typing import NamedTuple, TypeAlias

import xxhash

from rolecall.errors import Conflict, Damaged, StorageError, UsageError
from rolecall.nexus import project_paths
from rolecall.nexus.project_paths import Folder
from rolecall.settings import config

Bytes: TypeAlias = "bytes | memoryview"
Stamp: TypeAlias = "tuple[int, ...]"
"""The inode, size and times of a large file; as long as they are unchanged, the file is unchanged."""

_LOCK, _DRAFT = "lock", "draft"
_LARGE = 100_000
"""The minimum size in bytes of a file that is not read again while its stamp is unchanged. A smaller file could be
written twice within one tick of the clock; writing a larger file takes longer than a tick."""
_FIRST_NAP, _LONGEST_NAP = 0.001, 0.02

is_taken_back: ContextVar[Callable[[], bool] | None] = ContextVar("is_taken_back", default=None)
"""A function that returns whether the caller has given up waiting for the lock; None if it never does."""
patience_ends: ContextVar[float | None] = ContextVar("patience_ends", default=None)
"""The time (`time.monotonic`) at which to stop waiting for the lock; a free lock is taken even after that."""


class FoundBytes(NamedTuple):
    data: bytes | None
    """The bytes; None if the file still has the stamp that the caller knows."""
    stamp: Stamp | None
    """The stamp of the file; None for a small file."""


def read(path: str) -> bytes | None:
    """Return the bytes of a file in `.nexus/`, or None if the file does not exist."""
    found = read_unless(path, None)
    return found.data if found else None


def read_unless(path: str, known: Stamp | None) -> FoundBytes | None:
    """Read a file as `read` does, unless the file still has the stamp `known`."""
    refuse_links(path)
    try:
        # Without O_NONBLOCK, opening a pipe would wait until another process opens its other end.
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        with open(number, "rb", buffering=0) as file:
            status = os.fstat(number)
            if not S_ISREG(status.st_mode):
                raise OSError(errno.EINVAL, "it is not a regular file", path)
            stamp = _stamp(status)
            return FoundBytes(None if stamp and stamp == known else file.readall(), stamp)
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise storage_error(exc, path) from exc


def _stamp(status: os.stat_result) -> Stamp | None:
    if status.st_size < _LARGE:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def refuse_links(path: str) -> None:
    """Raise an error for a path in `.nexus/` that contains a link, including `.nexus` itself."""
    at, _, inner = f"{path}/".rpartition("/.nexus/")
    for name in (".nexus", *inner.split("/")[:-1]):
        at = f"{at}/{name}"
        if os.path.islink(at):
            problem = "what leads out of the project this way is neither read nor written"
            raise UsageError(f"{at} is a link: {problem}", hint="Put the file or folder itself in its place.")


def digest(*parts: Bytes) -> str:
    hashed = xxhash.xxh3_128()
    for part in parts:
        hashed.update(part)
    return hashed.hexdigest()


# -- the lock --


@contextmanager
def hold_lock(project: Folder) -> Iterator[int]:
    """Hold the project's lock, and create missing folders. Yield the open lock file."""
    ours = project_paths.ours(project)
    refuse_links(ours)
    try:
        if not os.path.isdir(ours):
            if not os.path.isdir(project):
                hint = "Name the project's folder."
                raise UsageError(f"the folder {os.fspath(project)!r} does not exist", hint=hint)
            for folder in (project_paths.nexus(project), project_paths.state(project), ours):
                make_folder(folder)
        path = os.path.join(ours, _LOCK)
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        try:
            _wait_for(lock, path)
        except BaseException:
            os.close(lock)
            raise
    except OSError as exc:
        raise storage_error(exc, ours) from exc
    try:
        ignored = os.path.join(project_paths.nexus(project), ".gitignore")
        if not os.path.exists(ignored):
            replace(project, ignored, b"state/\n")
        yield lock
    except DamagedFile as exc:
        raise keep_copy(project, exc) from exc
    except OSError as exc:
        raise storage_error(exc, project_paths.nexus(project)) from exc
    finally:
        # A forked child can share the open file, so closing the file would not be enough to release the lock.
        fcntl.flock(lock, fcntl.LOCK_UN)
        os.close(lock)


def _wait_for(file: int, path: str) -> None:
    has_given_up, end = is_taken_back.get(), patience_ends.get()
    if has_given_up is None and end is None:
        fcntl.flock(file, fcntl.LOCK_EX)
        return
    nap = _FIRST_NAP
    while has_given_up is None or not has_given_up():
        with suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        if end is not None and time.monotonic() > end:
            problem = (
                f"another process still holds {path}, and did not release it in time: nothing was finished"
            )
            hint = f"See which one (`fuser {path}`); if it was stopped, continue or end it."
            raise Conflict(problem, hint=hint)
        time.sleep(nap)
        nap = min(2 * nap, _LONGEST_NAP)
    raise Conflict("the call was cancelled while another process was writing", hint="Nothing was written.")


def ignore_state(project: Folder) -> None:
    """Make git ignore the state if an existing `.nexus/.gitignore` does not; `hold_lock` creates a missing one."""
    path = os.path.join(project_paths.nexus(project), ".gitignore")
    data = None if os.path.islink(path) else read(path)
    if data is None:
        return
    lines = {line.strip().strip(b"/") for line in data.split(b"\n")}
    if lines & {b"state", b"state/*", b"state/**", b"*", b"**", b"!state", b"!/state"}:
        return
    with hold_lock(project):
        replace(project, path, data.rstrip(b"\n") + b"\n" * bool(data.strip()) + b"state/\n")


# -- writing, under the lock --


def make_folder(path: str) -> None:
    try:
        os.mkdir(path)
    except FileExistsError:
        if not os.path.isdir(path):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path) from None
        return
    sync_folder(os.path.dirname(path))


def replace(project: Folder, path: str, *parts: Bytes, must_last: bool = True) -> Stamp | None:
    """Atomically replace `path` with these bytes. With `must_last`, the bytes are on disk when this function returns.
    An existing file keeps its mode."""
    refuse_links(path)
    with draft(project, *parts, mode=_mode(path), must_last=must_last) as made:
        os.replace(made, path)
    if must_last:
        sync_folder(os.path.dirname(path))
    return _stamp(os.stat(path))


@contextmanager
def draft(project: Folder, *parts: Bytes, mode: int | None = None, must_last: bool = True) -> Iterator[str]:
    """Yield the path of a draft with these bytes, to be moved into place. The draft is removed if an error occurs."""
    path = project_paths.ours(project, _DRAFT)
    try:
        remove(path)  # a draft left by a killed writer, or a link
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        file = os.open(path, flags, 0o666 if mode is None else 0o600)
        try:
            if mode is not None:
                os.fchmod(file, mode)
            for part in parts:
                rest = memoryview(part)
                while rest:
                    rest = rest[os.write(file, rest) :]
            if must_last:
                os.fsync(file)
        finally:
            os.close(file)
        yield path
    except BaseException:
        remove(path)
        raise


def _mode(path: str) -> int | None:
    try:
        return os.stat(path).st_mode & 0o777
    except FileNotFoundError:
        return None


def remove(path: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(path)


def sync_folder(path: str) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def storage_error(exc: OSError, path: str) -> StorageError:
    file = exc.filename if isinstance(exc.filename, str) else path
    hint = "Check the disk and its permissions, then try again."
    if exc.errno == errno.EROFS and config.run():
        hint = "A role writes this only if `write` of its sandbox names `.nexus`."
    return StorageError(f"{file}: {exc.strerror or exc}", hint=hint)


# -- damaged files --


class DamagedFile(Damaged):
    """An error for a project file with invalid content, which carries the file's bytes."""

    def __init__(self, path: str, data: bytes, problem: str, *, copy: str = "") -> None:
        kept = f", and a copy of it is in {copy}" if copy else ""
        super().__init__(
            f"{path} cannot be used: {problem}. It was left as it is{kept}",
            hint="Correct the file or move it away, then try again.",
        )
        self.path, self.data, self.problem, self.copy = path, data, problem, copy


def keep_copy(project: Folder, file: DamagedFile) -> DamagedFile:
    """Copy a damaged file to our own folder, so that it can be repaired. The caller must hold the lock."""
    folder = project_paths.ours(project, "damaged")
    make_folder(folder)
    copy = os.path.join(folder, f"{os.path.basename(file.path)}.{digest(file.data)}")
    refuse_links(copy)
    if not os.path.exists(copy):
        # The copy has the same permissions as the file.
        with draft(project, file.data, mode=_mode(file.path) or 0o600) as made:
            os.replace(made, copy)
        sync_folder(folder)
    return DamagedFile(file.path, file.data, file.problem, copy=copy)


def set_aside(project: Folder, file: DamagedFile) -> str:
    """Copy a damaged file that the caller replaces, and return a sentence about this."""
    copy = keep_copy(project, file).copy
    return f"{file.path} could not be used ({file.problem}) and was replaced. A copy is in {copy}"
