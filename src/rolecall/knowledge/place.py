"""Where a repository's knowledge is, and which repositories of this home have any.

Each indexed repository has a small file of its own in the home, so that two syncs never write the same one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from hashlib import blake2b

from rolecall import repository
from rolecall.errors import NotFound, UsageError
from rolecall.knowledge import settings
from rolecall.knowledge.extra import check_installed
from rolecall.knowledge.settings import FILE, INDEX, Settings

_FOLDER = "knowledge"
_PROJECT = "rolecall.yaml"
_SECTION = re.compile(r"^[\"']?knowledge[\"']?\s*:", re.MULTILINE)


def root_of(folder: str) -> str:
    """The nearest folder with a `knowledge.yaml`, or with a `rolecall.yaml` that has a section `knowledge`, up to the
    repository's root."""
    check_installed()
    folder = os.path.realpath(folder)
    if not os.path.isdir(folder):
        raise UsageError(f"there is no folder {folder!r}", hint="--repo names a repository's folder.")
    found = repository.nearest(FILE, folder) or _project_file(folder)
    if found is None:
        where = repository.root_around(folder) or folder
        raise NotFound(
            f"{where} has no {FILE}, which says what to index",
            hint=f"`rolecall knowledge init{'' if where == folder else f' --repo {where}'}` writes one.",
        )
    return os.path.dirname(found)


def _project_file(folder: str) -> str | None:
    """The file of the project around a folder, if it says what to index."""
    found = repository.nearest(_PROJECT, folder)
    is_said = found is not None and _SECTION.search(_text(found))
    return found if is_said else None


def settings_of(root: str) -> Settings:
    """From `knowledge.yaml`, or from the project's file where there is none."""
    path, project = os.path.join(root, FILE), os.path.join(root, _PROJECT)
    if not os.path.lexists(path) and os.path.lexists(project):
        return settings.load(_text(project), source=project, section="knowledge")
    return settings.load(_text(path), source=path)


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}", hint="Correct the file.") from error


def index_of(root: str) -> str:
    return os.path.join(root, INDEX)


def cache_folder(home: str) -> str:
    return os.path.join(home, _FOLDER)


# -- the repositories of this home --


def remember(home: str, root: str) -> None:
    """Note that a repository has an index."""
    path = _note(home, root)
    if os.path.exists(path):
        return
    os.makedirs(os.path.dirname(path), exist_ok=True)
    draft = f"{path}.{os.getpid()}"
    with open(draft, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(root)
    os.replace(draft, path)


def forget(home: str, root: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(_note(home, root))


def remembered(home: str) -> list[str]:
    return sorted(_noted(os.path.join(home, _FOLDER, "repositories")))


def _noted(folder: str) -> Iterator[str]:
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return
    for name in names:
        if name.endswith(".path"):
            with open(os.path.join(folder, name), encoding="utf-8", errors="surrogateescape") as file:
                yield file.read()


def _note(home: str, root: str) -> str:
    name = blake2b(os.fsencode(root), digest_size=12).hexdigest()
    return os.path.join(home, _FOLDER, "repositories", f"{name}.path")
