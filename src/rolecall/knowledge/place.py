"""Locates a repository's index, and lists the repositories indexed from this home.

Each indexed repository has a small file of its own in the home, so that two syncs never write the same file.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from hashlib import blake2b
from importlib.util import find_spec

from rolecall.errors import Hint, NotFound, UsageError
from rolecall.knowledge import files, settings
from rolecall.knowledge.files import Skipped
from rolecall.knowledge.settings import FILE, INDEX, KnowledgeSettings
from rolecall.settings import repository
from rolecall.store import atomic

_FOLDER = "knowledge"
_PROJECT = "rolecall.yaml"
_LARGEST = 1_000_000
"""The maximum size of a settings file in bytes."""
_SECTION = re.compile(r"^[\"']?knowledge[\"']?\s*:", re.MULTILINE)
_PACKAGES = ("numpy", "tokenizers", "tree_sitter")


def check_installed() -> None:
    missing = [name for name in _PACKAGES if find_spec(name) is None]
    if missing:
        raise UsageError(
            f"knowledge needs packages that are not installed: {', '.join(missing)}",
            hint="`pip install 'rolecall[knowledge]'`: the embedded model comes with it.",
        )


def root_of(folder: str) -> str:
    """Return the nearest folder, from `folder` up to the repository's root, that contains a `knowledge.yaml`, or a
    `rolecall.yaml` with a `knowledge` section."""
    check_installed()
    folder = os.path.realpath(folder)
    if not os.path.isdir(folder):
        raise UsageError(f"{folder!r} is not a folder", hint="Name a repository's folder.")
    found = repository.nearest(FILE, folder) or project_file(folder)
    if found is None:
        where = repository.root_around(folder) or folder
        raise _no_settings(where, "" if where == folder else where)
    return os.path.dirname(found)


def _no_settings(root: str, repo: str = "") -> NotFound:
    hint = Hint("Write one", "init_knowledge", repo=repo)
    return NotFound(f"{root} has no {FILE}, which says what to index", hint=hint)


def project_file(folder: str) -> str | None:
    """Return the nearest project file in a folder or above it, if the file has a `knowledge` section."""
    found = repository.nearest(_PROJECT, folder)
    return found if found is not None and _SECTION.search(_read(found)) else None


def settings_of(root: str) -> KnowledgeSettings:
    """Load the settings from `knowledge.yaml` or, if that does not exist, from the project's file."""
    path, project = os.path.join(root, FILE), os.path.join(root, _PROJECT)
    if os.path.lexists(path):
        return settings.load(_read(path), source=path)
    if os.path.lexists(project):
        return settings.load(_read(project), source=project, section="knowledge")
    raise _no_settings(root)


def _read(path: str) -> str:
    data = files.read(*os.path.split(os.path.realpath(path)), largest=_LARGEST)
    if isinstance(data, Skipped):
        raise UsageError(f"{path} {data.reason}", hint="Correct the file.")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} cannot be read: {error}", hint="Correct the file.") from error


def index_of(root: str) -> str:
    return os.path.join(root, INDEX)


def cache_folder(home: str) -> str:
    return os.path.join(home, _FOLDER)


# -- the repositories of this home --


def remember(home: str, root: str) -> None:
    """Record that a repository has an index."""
    path = _note_path(home, root)
    if os.path.exists(path):
        return
    os.makedirs(os.path.dirname(path), exist_ok=True)
    atomic.replace(path, os.fsencode(root))


def forget(home: str, root: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(_note_path(home, root))


def list_remembered(home: str) -> list[str]:
    folder = os.path.join(home, _FOLDER, "repositories")
    found = []
    for name in os.listdir(folder) if os.path.exists(folder) else ():
        if name.endswith(".path"):
            with open(os.path.join(folder, name), encoding="utf-8", errors="surrogateescape") as file:
                found.append(file.read())
    return sorted(found)


def _note_path(home: str, root: str) -> str:
    name = blake2b(os.fsencode(root), digest_size=12).hexdigest()
    return os.path.join(home, _FOLDER, "repositories", f"{name}.path")
