"""The files of `.nexus/` as bytes: read, replaced at once, kept aside when damaged; one lock over all of them.

The lock is the kernel's, on a file of ours, so it ends with its holder however that ends. Readers need none:
a file is only ever replaced as a whole. Whatever is to replace a file is written in our own folder first,
always under the same name, so that what a killed writer leaves is removed by the next. Nothing is read or
written through a link: a repository may come from anybody, with links in it that lead anywhere.

What the bytes mean is not known here; above are `longlist`, `archive`, `tools` and `artifact`.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from stat import S_ISREG
from typing import TypeAlias

import xxhash

from rolecall.errors import Conflict, Damaged, StorageError, UsageError
from rolecall.nexus import project_paths
from rolecall.nexus.project_paths import Folder

Bytes: TypeAlias = "bytes | memoryview"
_LOCK, _DRAFT = "lock", "draft"
_FIRST_NAP, _LONGEST_NAP = 0.001, 0.02

is_taken_back: ContextVar[Callable[[], bool] | None] = ContextVar("is_taken_back", default=None)
"""Whether the caller has given up meanwhile, asked while the lock is waited for; None: nobody can."""
patience_ends: ContextVar[float | None] = ContextVar("patience_ends", default=None)
"""Until when the lock is waited for, on the clock of `time.monotonic`; if it is free it is taken also later. None: for
ever."""


def read(path: str) -> bytes | None:
    """The whole of a file below `.nexus/`; None when there is none."""
    refuse_links(path)
    try:
        with open(path, "rb", buffering=0, opener=_without_waiting) as file:
            if not S_ISREG(os.fstat(file.fileno()).st_mode):
                raise OSError(errno.EINVAL, "it is no regular file", path)
            return file.readall()
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise refused(exc, path) from exc


def refuse_links(path: str) -> None:
    """Refuse a path below `.nexus/` that has a link on its way or at its end, `.nexus` itself included."""
    at, _, inner = f"{path}/".rpartition("/.nexus/")
    for name in (".nexus", *inner.split("/")[:-1]):
        at = f"{at}/{name}"
        if os.path.islink(at):
            raise UsageError(
                f"{at} is a link: what leads out of the project this way is neither read nor written",
                hint="Put the file or folder itself in its place.",
            )


def _without_waiting(path: str, flags: int) -> int:
    """Opening a pipe would wait for somebody at its other end."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW)


def digest(*parts: Bytes) -> str:
    """Tells bytes apart: a file that still has the same is still the same."""
    hashed = xxhash.xxh3_128()
    for part in parts:
        hashed.update(part)
    return hashed.hexdigest()


# -- writing, under the lock --


@contextmanager
def locked(project: Folder) -> Iterator[int]:
    """Nobody else writes to this project meanwhile; folders that are missing are made. Gives the open lock."""
    try:
        _make_folders(project)
        lock = _take(project_paths.ours(project, _LOCK))
    except OSError as exc:
        raise refused(exc, project_paths.ours(project)) from exc
    try:
        _ignore_state(project)
        yield lock
    except DamagedFile as exc:
        raise kept_aside(project, exc) from exc
    except OSError as exc:
        raise refused(exc, project_paths.nexus(project)) from exc
    finally:
        # A forked child may hold the same open file, so closing it alone would not unlock.
        fcntl.flock(lock, fcntl.LOCK_UN)
        os.close(lock)


def _take(path: str) -> int:
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        try:
            _wait_for(file, path)
            if os.path.samestat(os.stat(path), os.fstat(file)):
                return file
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(file)
            raise
        # Somebody removed the folder while we waited: this lock keeps nobody out.
        os.close(file)
        os.makedirs(os.path.dirname(path), exist_ok=True)


def _wait_for(file: int, path: str) -> None:
    """Take the lock, unless the caller gives up before it is ours."""
    has_given_up, end = is_taken_back.get(), patience_ends.get()
    if has_given_up is None and end is None:
        fcntl.flock(file, fcntl.LOCK_EX)
        return
    nap = _FIRST_NAP
    while has_given_up is None or not has_given_up():
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if end is not None and time.monotonic() > end:
                raise _kept(path) from None
            time.sleep(nap)
            nap = min(2 * nap, _LONGEST_NAP)
        else:
            return
    raise Conflict("the call was taken back while somebody else wrote", hint="Nothing was written.")


def _kept(lock: str) -> Conflict:
    return Conflict(
        f"{lock} is kept by another process, and the time to wait for it is over: what was begun is not finished",
        hint=f"See which (`fuser {lock}`); if it was stopped, let it go on or end it.",
    )


def _make_folders(project: Folder) -> None:
    ours = project_paths.ours(project)
    refuse_links(ours)
    if not os.path.isdir(ours):
        if not os.path.isdir(project):
            raise UsageError(f"there is no folder {os.fspath(project)!r}", hint="Name the project's folder.")
        for folder in (project_paths.nexus(project), project_paths.state(project), ours):
            make_folder(folder)


def _ignore_state(project: Folder) -> None:
    """The state of a running cycle is nobody's to commit."""
    ignored = os.path.join(project_paths.nexus(project), ".gitignore")
    if not os.path.exists(ignored):
        replace(project, ignored, b"state/\n")


def ignore_state(project: Folder) -> None:
    """Make git ignore the state if an existing `.nexus/.gitignore` does not."""
    path = os.path.join(project_paths.nexus(project), ".gitignore")
    data = None if os.path.islink(path) else read(path)
    lines = {line.strip().strip(b"/") for line in (data or b"").split(b"\n")}
    if data is None or not lines.isdisjoint(
        (b"state", b"state/*", b"state/**", b"*", b"**", b"!state", b"!/state")
    ):
        return  # `locked` makes a missing one
    with locked(project):
        replace(project, path, data.rstrip(b"\n") + b"\n" * bool(data.strip()) + b"state/\n")


def make_folder(path: str) -> None:
    try:
        os.mkdir(path)
    except FileExistsError:
        if not os.path.isdir(path):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path) from None
        return
    sync_folder(os.path.dirname(path))


def replace(project: Folder, path: str, *parts: Bytes, must_last: bool = True) -> None:
    """Put these bytes in the place of `path` at once, and on the disk before this returns. A file that is there
    keeps its mode."""
    refuse_links(path)
    with drafted(project, *parts, mode=_mode(path), must_last=must_last) as draft:
        os.replace(draft, path)
    if must_last:
        sync_folder(os.path.dirname(path))


@contextmanager
def drafted(project: Folder, *parts: Bytes, mode: int | None = None, must_last: bool = True) -> Iterator[str]:
    """A file with these bytes, to be moved to its place; gone if it is not."""
    draft = project_paths.ours(project, _DRAFT)
    try:
        _write(draft, *parts, mode=mode, must_last=must_last)
        yield draft
    except BaseException:
        remove(draft)
        raise


def _write(path: str, *parts: Bytes, mode: int | None, must_last: bool) -> None:
    remove(path)  # what a killed writer left, or a link that somebody laid there
    narrow = 0o666 if mode is None else 0o600
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, narrow)
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


def _mode(path: str) -> int | None:
    try:
        return os.stat(path).st_mode & 0o777
    except FileNotFoundError:
        return None


def remove(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        return


def sync_folder(path: str) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


# -- what cannot be used --


class DamagedFile(Damaged):
    """A file of the project that does not hold what it should, and its bytes."""

    def __init__(self, path: str, data: bytes, problem: str, *, copy: str = "") -> None:
        kept = f", and a copy of it is in {copy}" if copy else ""
        super().__init__(
            f"{path} cannot be used: {problem}. It was left as it is{kept}",
            hint="Correct the file or move it away, then try again.",
        )
        self.path, self.data, self.problem, self.copy = path, data, problem, copy


def kept_aside(project: Folder, file: DamagedFile) -> DamagedFile:
    """The same, once there is a copy for whoever corrects the file. Under the lock."""
    folder = project_paths.ours(project, "damaged")
    make_folder(folder)
    copy = os.path.join(folder, f"{os.path.basename(file.path)}.{digest(file.data)}")
    refuse_links(copy)
    if not os.path.exists(copy):
        # Nobody is to read more of it here than where it lies.
        with drafted(project, file.data, mode=_mode(file.path) or 0o600) as draft:
            os.replace(draft, copy)
        sync_folder(folder)
    return DamagedFile(file.path, file.data, file.problem, copy=copy)


def refused(exc: OSError, path: str) -> StorageError:
    file = exc.filename if isinstance(exc.filename, str) else path
    return StorageError(
        f"{file}: {exc.strerror or exc}", hint="Check the disk and who may write there, then try again."
    )
