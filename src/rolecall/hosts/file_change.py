"""File changes that are planned, shown as a diff, and then made. Each file is replaced atomically."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Sequence
from difflib import unified_diff
from typing import Literal, NamedTuple, TypeAlias

from rolecall.errors import Conflict, Hint, StorageError, UsageError
from rolecall.store import atomic

State: TypeAlias = Literal["new", "changed", "removed", "kept", "same"]


class FileChange(NamedTuple):
    path: str
    before: bytes | None
    """The content before the change; None if the file does not exist."""
    after: bytes | None
    note: str = ""
    """A note of what was left unchanged, and why."""

    @property
    def state(self) -> State:
        if self.before == self.after:
            return "kept" if self.note else "same"
        if self.before is None:
            return "new"
        return "removed" if self.after is None else "changed"

    @property
    def is_change(self) -> bool:
        return self.before != self.after


def read(path: str) -> bytes | None:
    """Return a file's bytes, or None if the file does not exist."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # reading a pipe would never end
            raise UsageError(f"{path} is not a regular file", hint="Move it out of the way.")
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise _storage_error(exc, path) from exc


def read_text(path: str) -> str | None:
    data = read(path)
    try:
        return None if data is None else data.decode()
    except UnicodeDecodeError as exc:
        raise UsageError(f"{path} is not UTF-8 (byte {exc.start}) and was left unchanged") from exc


def check_target(path: str, root: str) -> None:
    """Raise an error for a path that a link leads out of `root` (a repository could come from anybody), or that cannot
    be written, which would leave an installation incomplete."""
    file = folder = os.path.realpath(path)
    if root and not file.startswith(os.path.join(os.path.realpath(root), "")):
        hint = Hint("Remove the link, or install for the user", "install_for_user")
        raise UsageError(f"{path} leads out of the project by a link, so nothing is written there", hint=hint)
    while folder == file or not os.path.exists(folder):
        folder = os.path.dirname(folder)
    if not os.access(folder, os.W_OK | os.X_OK) or (os.path.exists(file) and not os.access(file, os.W_OK)):
        raise StorageError(f"{path} is write-protected", hint="Make it writable, then try again.")


def difference(changes: Iterable[FileChange]) -> str:
    """Return all changes as one unified diff."""
    parts: list[str] = []
    for change in changes:
        if change.is_change:
            # Programs that apply diffs expect a tab after a name that contains a space.
            name = f"{change.path}\t" if " " in change.path else change.path
            old, new = ("/dev/null" if data is None else name for data in (change.before, change.after))
            parts += unified_diff(_lines(change.before), _lines(change.after), old, new, n=2)
    return "".join(parts)


def _lines(data: bytes | None) -> list[str]:
    *lines, last = (data or b"").decode(errors="replace").split("\n")
    ending = [f"{last}\n\\ No newline at end of file\n"] if last else []
    return [*(f"{line}\n" for line in lines), *ending]


def make(changes: Iterable[FileChange], *, roots: Sequence[str], is_private: bool = False) -> None:
    """Make the changes. Folders that a removal leaves empty are removed, except `roots` and the folders above
    them. If `is_private`, only the owner can read a new file. A link stays a link; its target is changed."""
    for change in changes:
        if not change.is_change:
            continue
        if read(change.path) != change.before:
            raise Conflict(f"{change.path} has changed meanwhile", hint="Run the command again.")
        try:
            if change.after is None:
                for path in {os.path.realpath(change.path), change.path}:
                    os.unlink(path)
                folder = os.path.dirname(change.path)
                while folder not in roots and not os.listdir(folder):
                    os.rmdir(folder)
                    folder = os.path.dirname(folder)
                continue
            target = os.path.realpath(change.path)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            is_new = not os.path.exists(target)
            atomic.replace(target, change.after, mode=0o600 if is_private and is_new else None, durable=True)
        except OSError as exc:
            raise _storage_error(exc, change.path) from exc


def _storage_error(exc: OSError, path: str) -> StorageError:
    hint = "Check the disk and the permissions, then try again."
    return StorageError(f"{path}: {exc.strerror or exc}", hint=hint)
