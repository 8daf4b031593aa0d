"""Packs of recorded files for other machines."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping

from rolecall.errors import StorageError
from rolecall.files import git

_SMALL = 200_000
"""The size in bytes up to which a pack counts as small."""


class TooLarge(StorageError):
    """Raised if a pack would have more bytes than allowed."""


def write_pack(ours: str, wanted: Collection[str], *, without: Collection[str], most: int) -> bytes:
    """Return a pack with the objects of some trees and commits, except those of the trees and commits `without`. Return
    empty bytes if there are no such objects. Raise TooLarge if the objects take more than `most` bytes."""
    env, given = {"GIT_DIR": ours}, "\n".join([*wanted, *(f"^{one}" for one in without)])
    words = ("rev-list", "--objects", "--ignore-missing", "--stdin")
    listed = git.run(ours, *words, env=env, stdin=given.encode()).out
    if not listed:
        return b""
    asked = git.run(ours, "cat-file", "--batch-check=%(objectsize:disk) %(rest)", env=env, stdin=listed).out
    size = sum(int(line.split(b" ", 1)[0]) for line in asked.splitlines())
    if size > most:
        raise TooLarge(
            f"{size / 1e6:,.1f} MB of files are more than the {most / 1e6:,.0f} MB that a step sends"
        )
    return git.run(ours, "pack-objects", "-q", "--stdout", env=env, stdin=listed).out


def read_pack(folder: str, pack: bytes, *, env: Mapping[str, str] | None = None) -> None:
    """Take over the objects of a pack. The objects of a small pack become loose files, because git becomes slow with
    many packs."""
    words = ("unpack-objects", "-q") if len(pack) < _SMALL else ("index-pack", "--stdin")
    git.run(folder, *words, env=env, stdin=pack)


def has_tree(place: str, repository: str, tree: str) -> bool:
    """Return whether the tree object itself exists; other objects of the tree might be missing."""
    ours = os.path.join(place, repository)
    return os.path.isdir(ours) and git.ask(ours, "cat-file", "-e", tree, env={"GIT_DIR": ours}).code == 0
