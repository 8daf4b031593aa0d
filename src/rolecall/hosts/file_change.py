"""Changes of files: read, shown as a difference, made at once or not at all. Whose files they are is not known here.

A file is replaced by renaming, with its permissions; one that is a link stays one, and what it leads to is written.
A file that became another since it was read is not touched.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable, Sequence
from contextlib import suppress
from difflib import unified_diff
from typing import Any, Literal, NamedTuple, TypeAlias

from rolecall.errors import Conflict, StorageError, UsageError

State: TypeAlias = Literal["new", "changed", "removed", "kept", "same"]


class Change(NamedTuple):
    path: str
    before: bytes | None
    """None: there is no such file."""
    after: bytes | None
    note: str = ""
    """What of it was left as it is, and why."""

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


def json_text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=2) + "\n"


# -- reading --


def read(path: str) -> bytes | None:
    """The whole file; None when there is none."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # a pipe would never come to an end
            raise UsageError(f"{path} is no regular file", hint="Move it out of the way.")
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None
    except OSError as exc:
        raise _refused(exc, path) from exc


def read_text(path: str) -> str | None:
    return decoded(path, read(path))


def decoded(path: str, data: bytes | None) -> str | None:
    try:
        return None if data is None else data.decode()
    except UnicodeDecodeError as exc:
        raise UsageError(f"{path} is not UTF-8 (byte {exc.start}), and was left as it is") from exc


def check_place(path: str, root: str) -> None:
    """Refuse a link that leads nowhere, and one that leads out of `root`: a repository may come from anybody."""
    if os.path.islink(path) and not os.path.exists(path):
        raise UsageError(f"{path} is a link to nothing", hint="Remove it, or make what it leads to.")
    if root and not os.path.realpath(path).startswith(os.path.join(os.path.realpath(root), "")):
        raise UsageError(
            f"{path} leads out of the project by a link, so nothing is written there",
            hint="Remove the link, or install for the user with --user.",
        )


def check_writable(path: str) -> None:
    """Refuse what cannot be written: found out half-way, one half would be there and the other not."""
    file = folder = os.path.realpath(path)
    while folder == file or not os.path.exists(folder):
        folder = os.path.dirname(folder)
    can_write = os.access(folder, os.W_OK | os.X_OK) and (
        not os.path.exists(file) or os.access(file, os.W_OK)
    )
    if not can_write:
        raise StorageError(f"{path} is write-protected", hint="Let it be written, then try again.")


# -- showing --


def difference(changes: Iterable[Change]) -> str:
    """All changes as one unified diff."""
    return "".join(_file_difference(change) for change in changes if change.is_change)


def _file_difference(change: Change) -> str:
    before, after = (_lines(data) for data in (change.before, change.after))
    # Behind a name with blanks in it, programs that apply differences want a tab.
    name = f"{change.path}\t" if " " in change.path else change.path
    old, new = ("/dev/null" if data is None else name for data in (change.before, change.after))
    return "".join(unified_diff(before, after, old, new, n=2))


def _lines(data: bytes | None) -> list[str]:
    *lines, last = (data or b"").decode(errors="replace").split("\n")
    ending = [f"{last}\n\\ No newline at end of file\n"] if last else []
    return [*(f"{line}\n" for line in lines), *ending]


# -- making --


def make(changes: Iterable[Change], *, roots: Sequence[str], is_private: bool = False) -> None:
    """Make the changes. Folders that are empty after a removal go, up to `roots`, which stay; a new file of a
    private place can be read by its owner alone."""
    for change in changes:
        if not change.is_change:
            continue
        if read(change.path) != change.before:
            raise Conflict(f"{change.path} was changed meanwhile", hint="Run the command once more.")
        try:
            if change.after is None:
                _remove(change.path)
                _remove_empty(os.path.dirname(change.path), roots)
            else:
                _replace(os.path.realpath(change.path), change.after, is_private=is_private)
                if change.before is not None:
                    _sync_folder(os.path.dirname(os.path.realpath(change.path)))
        except OSError as exc:
            raise _refused(exc, change.path) from exc


def _remove(path: str) -> None:
    """The file; and where a link leads to it, the link, which would lead to nothing."""
    file = os.path.realpath(path)
    os.unlink(file)
    if os.path.islink(path):
        os.unlink(path)


def _replace(path: str, data: bytes, *, is_private: bool) -> None:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    draft = os.path.join(os.path.dirname(path), f".{os.path.basename(path)}.rolecall-{os.getpid()}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    file = os.open(draft, flags, 0o600 if is_private else 0o666)
    try:
        with open(file, "wb") as written:
            _take_over_rights(path, written.fileno())
            written.write(data)
            written.flush()
            if os.path.exists(path):  # what we make can be made again, what others wrote cannot
                os.fsync(written.fileno())
        os.replace(draft, path)
    except BaseException:
        os.unlink(draft)
        raise


def _take_over_rights(path: str, file: int) -> None:
    try:
        old = os.stat(path)
    except FileNotFoundError:
        return
    os.fchmod(file, old.st_mode & 0o7777)
    new = os.fstat(file)
    if (new.st_uid, new.st_gid) != (old.st_uid, old.st_gid):
        # Replacing a file of another owner may be allowed where giving one away is not.
        with suppress(PermissionError):
            os.fchown(file, old.st_uid, old.st_gid)


def _remove_empty(folder: str, roots: Sequence[str]) -> None:
    while folder not in roots and os.path.dirname(folder) != folder:
        try:
            os.rmdir(folder)
        except OSError:  # not empty, or not ours to remove
            return
        folder = os.path.dirname(folder)


def _sync_folder(path: str) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _refused(exc: OSError, path: str) -> StorageError:
    return StorageError(
        f"{path}: {exc.strerror or exc}", hint="Check the disk and who may write there, then try again."
    )
