"""Read, write, replace and sync single files of a folder store, and translate the system's errors into ours."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterator
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
    """Replace `path` with `data` atomically. `root` is the store folder, on the same disk."""
    temporary = root / temporary_name()
    write(temporary, data, sync=sync)
    temporary.replace(path)


def temporary_name() -> str:
    """Return a path in the store folder that no other writer uses."""
    return f".tmp/{os.getpid()}-{next(_serial)}"


def sync(path: Path) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def changed_ns(path: Path) -> int:
    """Return when a file was last modified, in nanoseconds, or 0 if the file does not exist."""
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def json_text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def parse(data: bytes, path: Path, make: Callable[..., Any]) -> Any:
    """Make a value from the JSON object in `data`, which is the content of one of our files or one of its lines."""
    try:
        return make(**json.loads(data))
    except (ValueError, TypeError) as exc:
        raise damaged_file_error(path, f"{exc}: {data[:40]!r}") from exc


def damaged_file_error(path: Path, reason: str) -> Damaged:
    return Damaged(
        f"{path} is damaged: {reason}",
        hint="The file was not changed. Correct or restore it, then try again.",
    )


def find_damage(look: Callable[[], object]) -> Iterator[str]:
    """Yield the message of the `Damaged` error that `look` raises, if it raises one."""
    try:
        look()
    except Damaged as exc:
        yield exc.message


@contextmanager
def translate_errors(path: str) -> Iterator[None]:
    """Translate the system's errors into ours, which say what happened, to which file, and what to do."""
    try:
        yield
    except OSError as exc:
        file = exc.filename if isinstance(exc.filename, str) else path
        reason = exc.strerror or str(exc)
        message, hint = f"{file}: {reason}", "Check the disk and the folder, then try again."
        if exc.errno in (errno.ENOSPC, errno.EDQUOT):
            message, hint = f"no room to write {message}", "Free some disk space, then try again."
        elif exc.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
            message, hint = f"{file} cannot be used: {reason}", "Make the folder and its files writable."
        elif exc.errno in (errno.ENOTDIR, errno.EEXIST):
            message, hint = f"{path} is not a folder: {reason}", "Name a folder, or remove the file."
        raise StorageError(message, hint=hint) from exc
