"""The folders of a project's workflows, and what a file's path says about the workflow in the file."""

from __future__ import annotations

import os
from collections.abc import Iterator

FOLDERS = (".workflows", ".workflow", "workflows")
ENDINGS = (".yaml", ".yml", ".py")
PACKS = FOLDERS[0]
"""The folder for workflows of other projects, which can also contain the project's own workflows."""
LOCK = "lock.yaml"
"""The file in that folder that says where these workflows come from; see `pack.py`."""


def name_of(path: str) -> str:
    """Return the name of the workflow in a file, which is derived from the file's path."""
    stem = os.path.splitext(os.path.basename(path))[0]
    return os.path.basename(os.path.dirname(path)) if is_index(path) else stem


def is_index(path: str) -> bool:
    """Return whether a file is the index file of its folder."""
    return os.path.basename(path).rsplit(".", 1)[0] == "index"


def places_around(path: str) -> Iterator[tuple[str, str]]:
    """Yield each folder with a lock file that contains a file at any depth. With the folder, yield the file or folder
    in it that leads to the file; everything below that entry belongs to one workflow."""
    for way in (os.path.abspath(path), os.path.realpath(path)):
        folder, part = os.path.split(way)
        while part:
            if has_lock(folder):
                yield folder, part
            folder, part = os.path.split(folder)


def has_lock(folder: str) -> bool:
    """Return whether workflows in a folder come from packs. Some file systems do not distinguish upper and lower
    case."""
    is_packs = os.path.basename(folder).casefold() == PACKS
    return is_packs and os.path.lexists(os.path.join(folder, LOCK))
