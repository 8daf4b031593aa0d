"""Which files of a repository are indexed, and what is read of one.

A folder is walked once: what git ignores and what is excluded is not entered. What git ignores is told by the
repository's own files, so that an index does not depend on who makes it. Links are not followed, because what they
lead to is either indexed where it is or none of the repository's. A file that is no text is judged and named, not
an error: a repository has them.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from typing import NamedTuple

from rolecall.knowledge.globs import Globs
from rolecall.knowledge.settings import INDEX, Settings
from rolecall.settings import repository

_SECRET_FILES = (
    ".env", ".env.*", "*.env", ".envrc", "!.env.example", "!.env.sample", "!.env.template", "*.pem", "*.key",
    "*.p12", "*.pfx", "*.ppk", "*.keystore", "*.jks", "id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*", "!*.pub",
    ".netrc", ".pgpass", ".pypirc", ".npmrc", ".git-credentials", ".htpasswd", "*.kdbx", "*.gpg", "*.tfstate",
    ".aws/credentials", ".docker/config.json", ".kube/config",
)  # fmt: skip
"""Files that are there to hold secrets."""
_MOST_RULES = 8_000_000
"""Bytes of a .gitignore that are read; a larger one is none."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Without O_NONBLOCK, opening a pipe would wait for somebody at its other end.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


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
    for path, entry in _walked(root, exclude, listing.skipped):
        if not include.has(path) or exclude.has(path) or _is_own(path):
            continue
        reason = (
            "holds secrets by its name" if secret.has(path) else _unfit(path, entry, settings.largest_file)
        )
        if reason:
            listing.skipped.append(Skipped(path, reason))
        else:
            listing.paths.append(path)
    listing.paths.sort()
    return listing


def is_ignored(root: str, path: str) -> bool:
    """Whether git leaves a file of the root alone."""
    return _Ignored.of(root).has(path)


def exclude(root: str, pattern: str) -> None:
    """Add a pattern to `.git/info/exclude`, for this clone and all its worktrees."""
    folder = os.path.join(_git_folder(repository.root_around(root) or root), "info")
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "exclude"), "a+b") as file:
        file.seek(0)
        is_ended = file.read()[-1:] in (b"\n", b"")
        file.write(f"{'' if is_ended else os.linesep}{pattern}\n".encode())


def _is_own(path: str) -> bool:
    return path == INDEX or path.startswith((f"{INDEX}-", f"{INDEX}."))


def _unfit(path: str, entry: os.DirEntry[str], largest: int) -> str:
    if entry.is_symlink():
        return "is a symbolic link"
    if not entry.is_file(follow_symlinks=False):
        return "is no file"
    try:
        path.encode()
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
        ignored = cls().also(os.path.join(_git_folder(top), "info"), "exclude", before=inside)
        ignored = ignored.also(top, before=inside)
        while inside:
            part, _, inside = inside.partition("/")
            if any(
                rules.globs.has(rules.before[: len(rules.before) - len(inside)]) for rules in ignored._rules
            ):
                ignored = cls()  # whoever asks for a folder that git ignores means what is in it
            top = os.path.join(top, part)
            ignored = ignored.also(top, before=inside)
        return ignored

    def also(self, folder: str, name: str = ".gitignore", *, before: str = "", cut: int = 0) -> _Ignored:
        """With the rules of one more file, if it is there. Git follows no link there either."""
        data = read(folder, name, largest=_MOST_RULES)
        if isinstance(data, Skipped):
            return self
        lines = data.decode("utf-8-sig", "surrogateescape").split("\n")
        globs = Globs((line.removesuffix("\r") for line in lines), is_exact=True)
        return _Ignored((*self._rules, _Rules(before, cut, globs))) if globs else self

    def has(self, path: str) -> bool:
        for rules in reversed(self._rules):
            verdict = rules.globs.verdict(rules.before + path[rules.cut :])
            if verdict is not None:
                return verdict
        return False


def _git_folder(top: str) -> str:
    """Where git keeps what all worktrees of a repository share."""
    folder = os.path.join(top, ".git")
    if named := _line(top, ".git").removeprefix("gitdir: "):
        folder = os.path.join(top, named)
    return os.path.normpath(os.path.join(folder, _line(folder, "commondir")))


def _line(folder: str, name: str) -> str:
    """What a file of git's says in its one line; empty when it is none."""
    data = read(folder, name, largest=10_000)
    return "" if isinstance(data, Skipped) else os.fsdecode(data).strip()


def _walked(root: str, exclude: Globs, closed: list[Skipped]) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Every file that git does not ignore, by its path from the root. Folders that cannot be read go to `closed`."""
    folders = [("", _Ignored.of(root))]
    while folders:
        folder, ignored = folders.pop()
        for entry in _entries(root, folder, closed):
            path = f"{folder}{entry.name}"
            if not entry.is_dir(follow_symlinks=False):
                if not ignored.has(path):
                    yield path, entry
            elif not _is_apart(entry) and not exclude.has(f"{path}/") and not ignored.has(f"{path}/"):
                folders.append((f"{path}/", ignored.also(entry.path, cut=len(path) + 1)))


def _entries(root: str, folder: str, closed: list[Skipped]) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(os.path.join(root, folder)) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError):  # gone since it was listed
        return []
    except OSError as error:
        closed.append(Skipped(folder or "./", f"cannot be read: {error.strerror}"))
        return []


def _is_apart(entry: os.DirEntry[str]) -> bool:
    """Git's own folder, and a repository inside this one, which has a memory of its own."""
    return entry.name == ".git" or os.path.lexists(os.path.join(entry.path, ".git"))


# -- one file --


def read(root: str, path: str, *, largest: int) -> bytes | Skipped:
    """What a file holds; links are not followed, not even one that was put in the way since the walk."""
    try:
        file = _opened(root, path)
        try:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                return Skipped(path, "is no file")
            data = _at_most(file, largest + 1)
        finally:
            os.close(file)
    except OSError as error:
        return Skipped(path, f"cannot be read: {error.strerror}")
    return Skipped(path, f"is larger than {largest:,} bytes") if len(data) > largest else data


def _opened(root: str, path: str) -> int:
    """A file opened part by part, so that none of them is a link."""
    *above, name = path.split("/")
    folder = os.open(root, _FOLDER & ~os.O_NOFOLLOW)
    try:
        for part in above:
            inner = os.open(part, _FOLDER, dir_fd=folder)
            os.close(folder)
            folder = inner
        return os.open(name, _FILE, dir_fd=folder)
    finally:
        os.close(folder)


def _at_most(file: int, size: int) -> bytes:
    """The beginning of a file, in as many reads as it takes: some files give less than there is."""
    parts: list[bytes] = []
    while size > 0 and (part := os.read(file, size)):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def decoded(path: str, data: bytes) -> str | Skipped:
    """The text of a file, with line ends as `\\n`."""
    if b"\0" in data:
        return Skipped(path, "is binary")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return Skipped(path, "is not UTF-8")
    return text.replace("\r\n", "\n").replace("\r", "\n")
