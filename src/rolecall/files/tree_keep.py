"""Keep recorded files as long as steps name them: remove other files, find what is missing, and fill bundles.

Objects that one of our repositories borrows can vanish, because their owner rewrites history and git then removes them.
`collect` therefore copies the objects to which no branch or tag of the owner leads any more.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple

from rolecall.errors import StorageError
from rolecall.files import git
from rolecall.files.tree import hold, make_repository, mark_taken

Named = Mapping[str, Collection[str]]
"""The trees that steps name, keyed by repository."""
_IDLE_SECONDS = 30 * 86_400
"""Seconds after which an unused index is removed. Without its index, a folder's next snapshot takes longer."""
_BUNDLED = "trees"
"""The folder in a bundle that contains a folder for each repository, with a pack and the ids of its trees."""


class Collected(NamedTuple):
    removed: int
    """The number of trees that no step names. In a dry run, they are not removed."""
    freed: int
    """The number of bytes freed."""
    problems: tuple[str, ...]
    """The repositories from which nothing was removed, each with the reason."""


class Lost(NamedTuple):
    """A tree that is incomplete."""

    repository: str
    tree: str
    text: str


def collect(place: str, named: Named, *, before: float, delete: bool) -> Collected:
    """Find the trees that no step names and that were not taken since `before`. If `delete` is true, remove them."""
    removed = freed = 0
    problems = []
    for repository in _list_repositories(place):
        ours = os.path.join(place, repository)
        with hold(ours, fcntl.LOCK_EX if delete else fcntl.LOCK_SH):
            taken = {entry.name: entry.stat().st_mtime for entry in _scan(os.path.join(ours, "taken"))}
            roots = {*named.get(repository, ()), *(tree for tree, at in taken.items() if at > before)}
            roots |= set(_check_indexes(ours, before=min(before, time.time() - _IDLE_SECONDS), delete=delete))
            unnamed = taken.keys() - roots
            if delete:
                size = _size(ours)
                try:
                    _keep_only(ours, roots, before=before)
                except StorageError as error:
                    problems.append(f"{ours}: {error.message}")
                    continue
                for tree in unnamed:
                    os.unlink(os.path.join(ours, "taken", tree))
                if not roots and not os.listdir(os.path.join(ours, "indexes")):
                    shutil.rmtree(ours)
                # A pack with few objects takes up more space than loose files.
                freed += max(0, size - _size(ours))
            removed += len(unnamed)
    return Collected(removed, freed, tuple(problems))


def find_lost(place: str, named: Named) -> Iterator[Lost]:
    """Read every object of the named trees, and yield the trees that are incomplete."""
    for repository, trees in named.items():
        ours = os.path.join(place, repository)
        if not os.path.exists(os.path.join(ours, "HEAD")):
            yield from (Lost(repository, tree, "it is not on this machine") for tree in sorted(trees))
            continue
        if _check(ours, trees).code:
            for tree in sorted(trees):
                if (found := _check(ours, [tree])).code:
                    yield Lost(repository, tree, found.err.removeprefix("fatal: "))


# -- bundles --


def write_bundle(place: str, named: Named, folder: str) -> list[Lost]:
    """Write the named trees with all their objects into a bundle's folder. Leave out incomplete trees, and return
    these."""
    lost = list(find_lost(place, named))
    left_out = {(each.repository, each.tree) for each in lost}
    for repository, trees in named.items():
        whole = sorted(tree for tree in trees if (repository, tree) not in left_out)
        if whole:
            inside, ours = os.path.join(folder, _BUNDLED, repository), os.path.join(place, repository)
            os.makedirs(inside, exist_ok=True)
            _pack(ours, _list_objects(ours, whole), inside)
            with open(os.path.join(inside, "trees"), "a", encoding="ascii") as file:
                file.write("".join(f"{tree}\n" for tree in whole))
    return lost


def read_bundle(place: str, folder: str) -> int:
    """Take over the trees of a bundle from its folder, and return their number."""
    count = 0
    for repository in _list_repositories(os.path.join(folder, _BUNDLED)):
        ours, inside = os.path.join(place, repository), os.path.join(folder, _BUNDLED, repository)
        if not os.path.exists(os.path.join(inside, "trees")):
            continue
        with open(os.path.join(inside, "trees"), encoding="ascii") as file:
            trees = re.findall(r"^[0-9a-f]{40,64}$", file.read(), re.MULTILINE)
        make_repository(ours, is_sha256=any(len(tree) == 64 for tree in trees))
        with hold(ours, fcntl.LOCK_SH):
            for name in sorted(os.listdir(inside)):
                if name.endswith(".pack"):
                    with open(os.path.join(inside, name), "rb") as pack:
                        data = pack.read()
                    git.run(ours, "index-pack", "--stdin", env={"GIT_DIR": ours}, stdin=data)
            if (found := _check(ours, trees)).code:
                hint = "Export it again, or import it without files."
                raise StorageError(f"the bundle does not have all of its files: {found.err}", hint=hint)
            for tree in trees:
                mark_taken(ours, tree)
        count += len(trees)
    return count


# -- git --


def _check(ours: str, trees: Collection[str]) -> git.GitResult:
    """Read every object of some trees. The result's code is 0 if all objects are intact."""
    given = "\n".join(trees).encode()
    return git.ask(
        ours, "rev-list", "--verify-objects", "--stdin", "--quiet", env={"GIT_DIR": ours}, stdin=given
    )


def _list_objects(ours: str, trees: Collection[str], *, without: Collection[str] = ()) -> bytes:
    """Return the existing objects of some trees, except those in the commits `without`, each with its path."""
    env, given = {"GIT_DIR": ours}, "\n".join([*trees, *(f"^{commit}" for commit in without)])
    words = ("rev-list", "--objects", "--missing=print", "--stdin")
    listed = git.run(ours, *words, env=env, stdin=given.encode()).out
    return b"".join(line for line in listed.splitlines(keepends=True) if not line.startswith(b"?"))


def _pack(ours: str, objects: bytes, folder: str) -> str:
    """Write a pack with some objects, our own or borrowed, and return its name."""
    words = ("pack-objects", "-q", os.path.join(folder, "pack"))
    return f"pack-{git.run(ours, *words, env={'GIT_DIR': ours}, stdin=objects).text}"


def _keep_only(ours: str, roots: Collection[str], *, before: float) -> None:
    """Make one pack of the objects of the roots, and remove all other objects that are older than `before`."""
    env, objects = {"GIT_DIR": ours}, os.path.join(ours, "objects")
    asked = git.run(ours, "cat-file", "--batch-check", env=env, stdin="\n".join(roots).encode()).text
    there = [line.split()[0] for line in asked.splitlines() if line.endswith(tuple("0123456789"))]
    owned: list[str] = []
    with (
        suppress(FileNotFoundError),
        open(os.path.join(objects, "info", "alternates"), encoding="utf-8") as file,
    ):
        theirs = {"GIT_DIR": os.path.dirname(file.read().strip())}
        owned = git.ask(ours, "for-each-ref", "--format=%(objectname)", env=theirs).text.split()
    needed = _list_objects(ours, there, without=owned) if there else b""
    kept = _pack(ours, needed, os.path.join(objects, "pack")) if needed else ""
    # The index of a pack is removed before the pack, so that nobody looks for objects in a pack that is gone.
    for entry in sorted(_scan(os.path.join(objects, "pack")), key=lambda entry: entry.name):
        if not (kept and entry.name.startswith(kept)) and entry.stat().st_mtime <= before:
            os.unlink(entry.path)
    for folder in _scan(objects):
        if re.fullmatch("[0-9a-f]{2}", folder.name):
            for entry in _scan(folder.path):
                if entry.stat().st_mtime <= before:
                    os.unlink(entry.path)


# -- folders --


def _check_indexes(ours: str, *, before: float, delete: bool) -> Iterator[str]:
    """Yield the trees of the indexes. If `delete` is true, remove every index without a tree, or not used since
    `before`."""
    for entry in _scan(os.path.join(ours, "indexes")):
        if delete and entry.name.startswith("filling-") and entry.stat().st_mtime < before:
            os.unlink(entry.path)  # left behind by a process that was killed
        if not entry.name.endswith(".used"):
            continue
        index = entry.path.removesuffix(".used")
        known = f"{index}.tree"
        if os.path.exists(known) and os.path.getmtime(known) > before:
            with open(known, encoding="utf-8", errors="surrogateescape") as file:
                yield file.read().split("\0")[1]
        elif delete:
            for path in (index, known, f"{index}.nested", f"{index}.refused", f"{index}.writing", entry.path):
                with suppress(FileNotFoundError):
                    os.unlink(path)


def _list_repositories(place: str) -> list[str]:
    return sorted(entry.name for entry in _scan(place) if re.fullmatch("[0-9a-f]{16}", entry.name))


def _scan(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return list(found)
    except FileNotFoundError:
        return []


def _size(folder: str) -> int:
    return sum(
        os.lstat(os.path.join(top, name)).st_size for top, _, names in os.walk(folder) for name in names
    )
