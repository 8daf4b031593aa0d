"""The workflows that come with Rolecall. The folder `gallery` next to this file contains one YAML file for each name.

A name is looked up here last, after the project's folders and the stored workflows. Files are not parsed here, because
each file begins with the lines `name` and `description`.
"""

from __future__ import annotations

import os

from rolecall.errors import Hint, NotFound
from rolecall.settings.form import did_you_mean

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "gallery")
_ENDING = ".yaml"


def names() -> list[str]:
    """Return the names of all workflows in the gallery, sorted."""
    return sorted(file.removesuffix(_ENDING) for file in os.listdir(FOLDER) if file.endswith(_ENDING))


def path_of(name: str) -> str | None:
    """Return the path of a workflow's file, or None if the gallery has no workflow of that name."""
    return os.path.join(FOLDER, name + _ENDING) if name in names() else None


def has_file(path: str | None) -> bool:
    """Return whether a file belongs to the gallery."""
    return path is not None and os.path.dirname(path) == FOLDER


def read(name: str) -> str:
    """Return the text of a workflow's file."""
    path = path_of(name)
    if path is None:
        hint = Hint("See them", "list_gallery", before=did_you_mean(name, names(), what="In the gallery"))
        raise NotFound(f"there is no workflow {name!r} in the gallery", hint=hint)
    with open(path, encoding="utf-8") as file:
        return file.read()


def summaries() -> dict[str, str]:
    """Return the description of each workflow, on one line."""
    found = {}
    for name in names():
        with open(os.path.join(FOLDER, name + _ENDING), encoding="utf-8") as file:
            lines = [file.readline() for _ in range(2)]
        found[name] = lines[1].removeprefix("description:").strip()
    return found
