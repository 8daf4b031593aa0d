"""Which files of a repository are indexed, and what is read of one.

A folder is walked once: what git ignores and what is excluded is not entered. Links are not followed, because
what they lead to is either indexed where it is or none of the repository's. A file that is no text is judged and
named, not an error: a repository has them.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from typing import NamedTuple

from rolecall import repository
from rolecall.knowledge.globs import Globs, is_readable
from rolecall.knowledge.settings import INDEX, Settings

_SECRET_FILES = (
    ".env", ".env.*", "!.env.example", "!.env.sample", "!.env.template", "*.pem", "*.key", "*.p12", "*.pfx",
    "*.keystore", "*.jks", "id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*", "!*.pub", ".netrc", ".pypirc",
    ".npmrc", ".git-credentials", ".htpasswd", "*.kdbx", "*.gpg",
)  # fmt: skip
"""Files that are there to hold secrets."""


class Skipped(NamedTuple):
    path: str
    reason: str


class Listing(NamedTuple):
    paths: list[str]
    """Of the files to be indexed, from the root, sorted."""
    skipped: list[Skipped]
    """What would be indexed but for a reason that can be told without reading it."""


def listed(root: str, settings: Settings) -> Listing:
    include, exclude, secret = Globs(settings.include), Globs(settings.exclude), Globs(_SECRET_FILES)
    listing = Listing([], [])
    for path, entry in _walked(root, exclude):
        if not include.has(path) or exclude.has(path) or _is_own(path):
            continue
        reason = "holds secrets by its name" if secret.has(path) else _unfit(entry, settings.largest_file)
        if reason:
            listing.skipped.append(Skipped(path, reason))
        else:
            listing.paths.append(path)
    listing.paths.sort()
    return listing


def is_ignored(root: str, path: str) -> bool:
    """Whether git leaves a file of the root alone."""
    return _Ignored.of(root).has(path)


def _is_own(path: str) -> bool:
    return path == INDEX or path.startswith((f"{INDEX}-", f"{INDEX}."))


def _unfit(entry: os.DirEntry[str], largest: int) -> str:
    if entry.is_symlink():
        return "is a symbolic link"
    if not entry.is_file(follow_symlinks=False):
        return "is no file"
    try:
        entry.name.encode()
        size = entry.stat(follow_symlinks=False).st_size
    except UnicodeEncodeError:
        return "has a name that is not UTF-8"
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return f"is larger than {largest:,} bytes" if size > largest else ""


# -- the walk --


class _Rules(NamedTuple):
    """One .gitignore, and how its paths come from ours: something is put before, or cut off."""

    before: str
    cut: int
    globs: Globs


class _Ignored:
    """What the .gitignore files from the repository's root down to a folder say; the nearest one decides."""

    def __init__(self, rules: tuple[_Rules, ...] = ()) -> None:
        self._rules = rules

    @classmethod
    def of(cls, root: str) -> _Ignored:
        """Those that hold for a whole folder, which need not be the root of its repository."""
        top = repository.root_around(root) or root
        inside = "" if top == root else f"{os.path.relpath(root, top)}/"
        ignored = cls().also(os.path.join(top, ".git", "info", "exclude"), before=inside)
        ignored = ignored.also(os.path.join(top, ".gitignore"), before=inside)
        while inside:
            part, _, inside = inside.partition("/")
            if any(
                rules.globs.has(rules.before[: len(rules.before) - len(inside)]) for rules in ignored._rules
            ):
                ignored = cls()  # whoever asks for a folder that git ignores means what is in it
            top = os.path.join(top, part)
            ignored = ignored.also(os.path.join(top, ".gitignore"), before=inside)
        return ignored

    def also(self, file: str, *, before: str = "", cut: int = 0) -> _Ignored:
        """With the rules of one more file, if it is there."""
        try:
            with open(file, encoding="utf-8", errors="surrogateescape") as lines:
                globs = Globs(_readable(lines))
        except OSError:
            return self
        return _Ignored((*self._rules, _Rules(before, cut, globs))) if globs else self

    def has(self, path: str) -> bool:
        for rules in reversed(self._rules):
            verdict = rules.globs.verdict(rules.before + path[rules.cut :])
            if verdict is not None:
                return verdict
        return False


def _readable(lines: Iterator[str]) -> Iterator[str]:
    """The patterns git could read; it passes over others, too."""
    return (line.rstrip("\n") for line in lines if is_readable(line.rstrip("\n")))


def _walked(root: str, exclude: Globs) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Every file that git does not ignore, by its path from the root."""
    folders = [("", _Ignored.of(root))]
    while folders:
        folder, ignored = folders.pop()
        for entry in _entries(os.path.join(root, folder)):
            path = f"{folder}{entry.name}"
            if not entry.is_dir(follow_symlinks=False):
                if not ignored.has(path):
                    yield path, entry
            elif not _is_apart(entry) and not exclude.has(f"{path}/") and not ignored.has(f"{path}/"):
                folder_rules = ignored.also(os.path.join(entry.path, ".gitignore"), cut=len(path) + 1)
                folders.append((f"{path}/", folder_rules))


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError:  # gone, or closed to us: there is nothing in it that could be read
        return []


def _is_apart(entry: os.DirEntry[str]) -> bool:
    """Git's own folder, and a repository inside this one, which has a memory of its own."""
    return entry.name == ".git" or os.path.lexists(os.path.join(entry.path, ".git"))


# -- one file --


def read(root: str, path: str, *, largest: int) -> bytes | Skipped:
    """What a file holds; links are not followed, not even one that was put there since the walk."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(os.path.join(root, path), flags)
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return Skipped(path, "is no file")
            data = file.read(largest + 1)
    except OSError as error:
        return Skipped(path, f"cannot be read: {error.strerror}")
    return Skipped(path, f"is larger than {largest:,} bytes") if len(data) > largest else data


def decoded(path: str, data: bytes) -> str | Skipped:
    """The text of a file, with line ends as `\\n`."""
    if b"\0" in data:
        return Skipped(path, "is binary")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return Skipped(path, "is not UTF-8")
    return text.replace("\r\n", "\n").replace("\r", "\n")
