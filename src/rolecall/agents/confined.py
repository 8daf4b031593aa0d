"""Access to the files in one folder, for paths that a model names.

A path, with its links and `..` resolved, must be inside the folder. A write replaces the whole file, so it never
changes a file outside the folder through a hard link. Git's own files can be read but not written, because git's hooks
and settings can run commands later. A program that puts a link in place between the check and the write is not stopped.
Paths that a role's sandbox forbids are refused here, too.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from rolecall.store import atomic

if TYPE_CHECKING:  # most roles have no sandbox
    from rolecall.agents.sandbox import Policy

LARGEST_FILE = 16 * 1024 * 1024


class CallRefused(Exception):
    """An error that tells the model why a call was refused."""


class Folder:
    def __init__(self, root: Path, sandbox: Policy | None = None) -> None:
        self.root = os.path.realpath(root)
        self._sandbox = sandbox

    def may_read(self, path: str) -> bool:
        """Return whether the role's sandbox allows reading a file in the folder; without a sandbox, every file can be
        read."""
        return self._sandbox is None or self._sandbox.may_read(os.path.join(self.root, path))

    def read(self, given: str) -> bytes:
        path = self._resolve(given)
        if not self.may_read(path):
            raise CallRefused(f"{given!r} is hidden from this role")
        found = os.stat(path)
        if stat.S_ISDIR(found.st_mode):
            raise CallRefused(f"{given!r} is a folder, not a file")
        if not stat.S_ISREG(found.st_mode):  # opening a pipe would wait for a writer
            raise CallRefused(f"{given!r} is not a regular file")
        with open(path, "rb") as file:
            content = file.read(LARGEST_FILE + 1)
        if len(content) > LARGEST_FILE:
            raise CallRefused(f"{given!r} has {found.st_size:,} bytes, which is too large; search it instead")
        return content

    def write(self, given: str, content: bytes) -> bool:
        """Write a whole file, creating its parent folders. Return whether the file is new."""
        path = self._resolve(given)
        self._check_writable(path, given)
        is_new = not os.path.exists(path)
        if not is_new and not os.path.isfile(path):
            raise CallRefused(f"{given!r} exists and is not a regular file")
        os.makedirs(os.path.dirname(path), exist_ok=True)
        atomic.replace(path, content)
        return is_new

    def delete(self, given: str) -> None:
        """Remove a file or a link. The target of a link is kept."""
        whole = os.path.join(self.root, given).rstrip("/")
        above, name = os.path.split(whole)
        if name in ("", ".", ".."):
            raise CallRefused(f"{given!r} is not a file")
        path = os.path.join(self._resolve(above, shown=given, is_folder=True), name)
        self._check_writable(path, given)
        if stat.S_ISDIR(os.lstat(path).st_mode):
            raise CallRefused(f"{given!r} is a folder; only files can be deleted")
        os.unlink(path)

    def _resolve(self, given: str, *, shown: str | None = None, is_folder: bool = False) -> str:
        if not given.strip() or "\0" in given:
            raise CallRefused(f"{given!r} is not a path")
        real = os.path.realpath(os.path.join(self.root, given))
        if os.path.commonpath([self.root, real]) != self.root:
            raise CallRefused(
                f"{shown or given!r} leads outside the work folder, where nothing can be accessed; "
                "give a path relative to the work folder"
            )
        if real == self.root and not is_folder:
            raise CallRefused("the work folder itself is not a file")
        return real

    def _check_writable(self, path: str, given: str) -> None:
        if self._sandbox is not None and not self._sandbox.may_write(path):
            raise CallRefused(f"{given!r} cannot be changed by this role")
        # Some file systems ignore case.
        if ".git" in os.path.relpath(path, self.root).lower().split(os.sep):
            raise CallRefused(f"{given!r} belongs to git and cannot be changed by this tool")
