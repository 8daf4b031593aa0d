"""Files inside one folder and nowhere else: what a model may read and write by a path it names.

A path is resolved once, symbolic links and `..` included, and must end up inside the folder. The resolved
path is then opened part by part from the folder's own descriptor without following any link, so a link
that is put in the way between the two is refused and not followed. A file is replaced whole, never written
through, so a hard link to a file outside is cut and not used. What remains: a mount inside the folder, and
a folder that somebody moves out of it in the very moment of a write, are not noticed.

Git's own files can be read and not written: a hook or a setting in there is a command that runs later.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

LARGEST_FILE = 16 * 1024 * 1024
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Without O_NONBLOCK, opening a pipe would wait for somebody at its other end.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Refused(Exception):
    """What the model is told instead of a result."""


class Folder:
    def __init__(self, root: Path) -> None:
        self.root = os.path.realpath(root)

    def read(self, given: str) -> bytes:
        with self._parent(self._place(given)) as (parent, name):
            file = os.open(name, _FILE, dir_fd=parent)
            try:
                _check_regular(os.fstat(file), given)
                return _all_of(file, given)
            finally:
                os.close(file)

    def write(self, given: str, content: bytes) -> bool:
        """Put a whole file in place, with the folders above it; whether it is new."""
        place = self._place(given)
        _check_not_gits(place, given)
        with self._parent(place, is_created=True) as (parent, name):
            mode = _mode_of(name, parent, given)
            draft = f".{name[:80]}.{os.urandom(4).hex()}"
            try:
                _fill(draft, parent, content, mode)
                os.replace(draft, name, src_dir_fd=parent, dst_dir_fd=parent)
            except BaseException:
                with suppress(FileNotFoundError):
                    os.unlink(draft, dir_fd=parent)
                raise
        return mode is None

    def delete(self, given: str) -> None:
        """Remove a file, or a link itself and not what it leads to."""
        whole = os.path.join(self.root, _named(given))
        above, name = os.path.split(os.path.normpath(whole) if whole.endswith("/") else whole)
        if name in ("", ".", ".."):
            raise Refused(f"{given!r} is not a file")
        place = os.path.join(self._place(above, told=given), name)
        _check_not_gits(place, given)
        with self._parent(place) as (parent, last):
            if stat.S_ISDIR(os.stat(last, dir_fd=parent, follow_symlinks=False).st_mode):
                raise Refused(f"{given!r} is a folder; only files can be deleted")
            os.unlink(last, dir_fd=parent)

    def _place(self, given: str, *, told: str | None = None) -> str:
        """The path from the root that a name leads to in the end."""
        real = os.path.realpath(os.path.join(self.root, _named(given)))
        if os.path.commonpath([self.root, real]) != self.root:
            raise Refused(
                f"{told or given!r} leads outside the work folder, and nothing outside can be reached; "
                "give a path relative to the work folder"
            )
        return os.path.relpath(real, self.root)

    @contextmanager
    def _parent(self, place: str, *, is_created: bool = False) -> Iterator[tuple[int, str]]:
        """The open folder that a place is in, and its last name."""
        *above, name = place.split(os.sep)
        if name == os.curdir:
            raise Refused("the work folder itself is not a file")
        folder = os.open(self.root, _FOLDER)
        try:
            for part in above:
                if is_created:
                    with suppress(FileExistsError):
                        os.mkdir(part, dir_fd=folder)
                inner = os.open(part, _FOLDER, dir_fd=folder)
                os.close(folder)
                folder = inner
            yield folder, name
        finally:
            os.close(folder)


def _named(given: str) -> str:
    if not given.strip() or "\0" in given:
        raise Refused(f"{given!r} is not a path")
    return given


def _check_not_gits(place: str, given: str) -> None:
    # Without regard to case, because some file systems have none.
    if any(part.lower() == ".git" for part in place.split(os.sep)):
        raise Refused(f"{given!r} belongs to git and cannot be changed by this tool")


def _check_regular(found: os.stat_result, given: str) -> None:
    if stat.S_ISDIR(found.st_mode):
        raise Refused(f"{given!r} is a folder, not a file")
    if not stat.S_ISREG(found.st_mode):
        raise Refused(f"{given!r} is not a regular file")
    if found.st_size > LARGEST_FILE:
        raise Refused(f"{given!r} has {found.st_size:,} bytes, which is too large; search it instead")


def _all_of(file: int, given: str) -> bytes:
    content = bytearray()
    while piece := os.read(file, 1024 * 1024):
        content += piece
        if len(content) > LARGEST_FILE:  # it grows while it is read
            raise Refused(f"{given!r} is too large; search it instead")
    return bytes(content)


def _mode_of(name: str, parent: int, given: str) -> int | None:
    """The mode of the file that is there; None when there is none."""
    try:
        found = os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(found.st_mode):
        raise Refused(f"{given!r} is there and is not a regular file")
    return stat.S_IMODE(found.st_mode) & 0o777


def _fill(draft: str, parent: int, content: bytes, mode: int | None) -> None:
    with os.fdopen(os.open(draft, _NEW, 0o666, dir_fd=parent), "wb") as file:
        file.write(content)
        if mode is not None:
            os.fchmod(file.fileno(), mode)
