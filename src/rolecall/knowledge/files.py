"""Selects and reads the files of a repository that are to be indexed.

The folder is walked once, skipping whatever git ignores or the settings exclude. Only the repository's own ignore files
count, so that an index does not depend on the user. Links are not followed: their targets are either indexed themselves
or outside the repository. A file that is not text is skipped with a reason.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from xxhash import xxh3_128_digest

from rolecall.knowledge.globs import Globs
from rolecall.knowledge.settings import INDEX, KnowledgeSettings
from rolecall.settings import repository

_SECRET_FILES = (
    ".env", ".env.*", "*.env", ".envrc", "!.env.example", "!.env.sample", "!.env.template", "*.pem", "*.key",
    "*.p12", "*.pfx", "*.ppk", "*.keystore", "*.jks", "id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*", "!*.pub",
    ".netrc", ".pgpass", ".pypirc", ".npmrc", ".git-credentials", ".htpasswd", "*.kdbx", "*.gpg", "*.tfstate",
    ".aws/credentials", ".docker/config.json", ".kube/config",
)  # fmt: skip
"""The patterns of files that are meant to contain secrets."""
_MOST_RULES = 8_000_000
"""The maximum size of a .gitignore file in bytes; a larger file is not read."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK is needed because opening a pipe would otherwise wait for the process at its other end.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Skipped(NamedTuple):
    path: str
    reason: str


class Listing(NamedTuple):
    paths: list[str]
    """The paths of the files to index, relative to the root and sorted."""
    skipped: list[Skipped]
    """The files that are left out for a reason known without reading them."""


def list_files(root: str, settings: KnowledgeSettings) -> Listing:
    include, exclude, secret = Globs(settings.include), Globs(settings.exclude), Globs(_SECRET_FILES)
    listing = Listing([], [])
    for path, entry in _walk(root, exclude, listing.skipped):
        is_index = path == INDEX or path.startswith((f"{INDEX}-", f"{INDEX}."))
        if not include.has(path) or exclude.has(path) or is_index:
            continue
        reason = ""
        try:
            path.encode()
            if secret.has(path):
                reason = "holds secrets by its name"
            elif entry.is_symlink():
                reason = "is a symbolic link"
            elif not entry.is_file(follow_symlinks=False):
                reason = "is not a file"
            elif entry.stat(follow_symlinks=False).st_size > settings.largest_file:
                reason = f"is larger than {settings.largest_file:,} bytes"
        except UnicodeEncodeError:
            reason = "has a name that is not UTF-8"
        except OSError as error:
            reason = f"cannot be read: {error.strerror}"
        if reason:
            listing.skipped.append(Skipped(path, reason))
        else:
            listing.paths.append(path)
    listing.paths.sort()
    return listing


def is_index_ignored(root: str) -> bool:
    """Return whether git ignores the index, or the folder is not in a repository."""
    return repository.root_around(root) is None or _Ignored.of(root).has(INDEX)


def exclude(root: str, pattern: str) -> None:
    """Add a pattern to `.git/info/exclude`, which applies to this clone and all its worktrees."""
    folder = os.path.join(_git_folder(repository.root_around(root) or root), "info")
    os.makedirs(folder, exist_ok=True)
    append_line(os.path.join(folder, "exclude"), pattern)


def append_line(path: str, line: str) -> None:
    with open(path, "a+b") as file:
        file.seek(0)
        is_ended = file.read()[-1:] in (b"\n", b"")
        file.write(f"{'' if is_ended else os.linesep}{line}\n".encode())


# -- the walk --


class _Rules(NamedTuple):
    """The rules in one .gitignore file. To match a path, its first `cut` characters are removed and `before` is put in
    front, so that the path is relative to the folder of the file."""

    before: str
    cut: int
    globs: Globs


class _Ignored:
    """The .gitignore files from the repository's root down to a folder. The file nearest to a path decides."""

    def __init__(self, rules: tuple[_Rules, ...] = ()) -> None:
        self._rules = rules

    @classmethod
    def of(cls, root: str) -> _Ignored:
        """Return the rules for a folder, which need not be the root of its repository."""
        top = repository.root_around(root) or root
        inside = "" if top == root else f"{os.path.relpath(root, top)}/"
        ignored = cls().also(os.path.join(_git_folder(top), "info"), "exclude", before=inside)
        ignored = ignored.also(top, before=inside)
        while inside:
            part, _, inside = inside.partition("/")
            if any(
                rules.globs.has(rules.before[: len(rules.before) - len(inside)]) for rules in ignored._rules
            ):
                ignored = cls()  # if an ignored folder is indexed explicitly, its contents are indexed, too
            top = os.path.join(top, part)
            ignored = ignored.also(top, before=inside)
        return ignored

    def also(self, folder: str, name: str = ".gitignore", *, before: str = "", cut: int = 0) -> _Ignored:
        """Return these rules with the rules of one more file, if it exists. Like git, this method follows no links."""
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
    """Return the git folder with the data shared by all worktrees of a repository."""

    def line_of(folder: str, name: str) -> str:
        data = read(folder, name, largest=10_000)
        return "" if isinstance(data, Skipped) else os.fsdecode(data).strip()

    folder = os.path.join(top, ".git")
    if named := line_of(top, ".git").removeprefix("gitdir: "):
        folder = os.path.join(top, named)
    return os.path.normpath(os.path.join(folder, line_of(folder, "commondir")))


def _walk(root: str, exclude: Globs, closed: list[Skipped]) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Yield every file that git does not ignore, with its path from the root. Add unreadable folders to `closed`."""
    folders = [("", _Ignored.of(root))]
    while folders:
        folder, ignored = folders.pop()
        try:
            with os.scandir(os.path.join(root, folder)) as found:
                entries = sorted(found, key=lambda entry: entry.name)
        except (FileNotFoundError, NotADirectoryError):  # the folder was deleted since it was listed
            continue
        except OSError as error:
            closed.append(Skipped(folder or "./", f"cannot be read: {error.strerror}"))
            continue
        for entry in entries:
            path = f"{folder}{entry.name}"
            if not entry.is_dir(follow_symlinks=False):
                if not ignored.has(path):
                    yield path, entry
                continue
            # A nested repository has its own index.
            is_apart = entry.name == ".git" or os.path.lexists(os.path.join(entry.path, ".git"))
            if not is_apart and not exclude.has(f"{path}/") and not ignored.has(f"{path}/"):
                folders.append((f"{path}/", ignored.also(entry.path, cut=len(path) + 1)))


# -- one file --


def read(root: str, path: str, *, largest: int) -> bytes | Skipped:
    """Read a file. Each part of the path is opened separately, so that no link is followed."""
    *above, name = path.split("/")
    try:
        folder = os.open(root, _FOLDER & ~os.O_NOFOLLOW)
        try:
            for part in above:
                inner = os.open(part, _FOLDER, dir_fd=folder)
                os.close(folder)
                folder = inner
            opened = os.open(name, _FILE, dir_fd=folder)
        finally:
            os.close(folder)
        if not stat.S_ISREG(os.fstat(opened).st_mode):
            os.close(opened)
            return Skipped(path, "is not a file")
        with os.fdopen(opened, "rb") as file:
            data = file.read(largest + 1)
    except OSError as error:
        return Skipped(path, f"cannot be read: {error.strerror}")
    return Skipped(path, f"is larger than {largest:,} bytes") if len(data) > largest else data


def digest(data: bytes) -> bytes:
    """Compute a digest of a file's contents, to detect changes."""
    return bytes(xxh3_128_digest(data))


def find_changed(root: str, paths: Iterable[str], known: Mapping[str, bytes], *, largest: int) -> list[str]:
    """Return the files that are new or have changed, given the digests of the known files."""
    return [
        path for path in paths if path not in known or has_changed(root, path, known[path], largest=largest)
    ]


def has_changed(root: str, path: str, digest_before: bytes, *, largest: int) -> bool:
    """Return whether a file has changed since it was indexed."""
    data = read(root, path, largest=largest)
    return not isinstance(data, bytes) or digest(data) != digest_before


def decode(path: str, data: bytes) -> str | Skipped:
    """Decode a file's text, with line breaks as `\\n`."""
    if b"\0" in data:
        return Skipped(path, "is binary")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return Skipped(path, "is not UTF-8")
    return text.replace("\r\n", "\n").replace("\r", "\n")
