"""Single files: read, written, put in place of another, brought to the disk; the disk's errors as ours.

It knows bytes and paths, and nothing of nodes, refs or journals. The modules of the folder store build
on it: `reffile`, `journal`, `nodefile`, `refview` and `files`.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from rolecall.errors import Damaged, StorageError

_serial = count()


def read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def write(path: Path, data: bytes, *, sync: bool) -> None:
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    except FileNotFoundError:
        path.parent.mkdir(exist_ok=True)
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    try:
        write_all(file, data)
        if sync:
            os.fsync(file)
    finally:
        os.close(file)


def write_all(file: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(file, rest) :]


def replace(path: Path, data: bytes, *, root: Path, sync: bool) -> None:
    """Put `data` in the place of `path` at once. `root` is the store folder, on the same disk."""
    temporary = root / temporary_name()
    write(temporary, data, sync=sync)
    temporary.replace(path)


def temporary_name() -> str:
    """A name within the store folder that no other writer uses."""
    return f".tmp/{os.getpid()}-{next(_serial)}"


def sync(path: Path) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def changed_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def changed_ms(path: Path) -> int:
    return changed_ns(path) // 1_000_000


def json_text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def parsed(data: bytes, path: Path) -> Any:
    """The JSON value that `path` holds as `data`."""
    try:
        return json.loads(data)
    except ValueError as exc:
        raise damaged_file(path, f"{exc}: {data[:40]!r}") from exc


def has_kinds(entry: Any, kinds: Mapping[str, Callable[[Any], bool]]) -> bool:
    """Whether `entry` is an object whose values under these keys are of the right kind."""
    return isinstance(entry, dict) and all(key in entry and fits(entry[key]) for key, fits in kinds.items())


def is_text(value: Any) -> bool:
    return isinstance(value, str)


def is_count(value: Any) -> bool:
    return isinstance(value, int) and value >= 0


def is_object(value: Any) -> bool:
    return isinstance(value, dict)


def damaged_file(path: Path, reason: str) -> Damaged:
    return Damaged(
        f"{path} is damaged: {reason}",
        hint="It was left as it is. Correct or restore the file, then run it again.",
    )


def damage_met(look: Callable[[], object]) -> Iterator[str]:
    """What `look` finds damaged, if it does."""
    try:
        look()
    except Damaged as exc:
        yield exc.message


@contextmanager
def translated(path: str) -> Iterator[None]:
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
