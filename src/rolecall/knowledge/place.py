"""Where a repository's knowledge is, and which repositories of this home have any.

Each indexed repository has a small file of its own in the home, so that two syncs never write the same one.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from hashlib import blake2b

from rolecall.errors import Hint, NotFound, UsageError
from rolecall.knowledge import settings
from rolecall.knowledge.extra import check_installed
from rolecall.knowledge.settings import FILE, INDEX, Settings
from rolecall.settings import repository

_FOLDER = "knowledge"
_PROJECT = "rolecall.yaml"
_LARGEST = 1_000_000
"""Bytes of a file with settings."""
_SECTION = re.compile(r"^[\"']?knowledge[\"']?\s*:", re.MULTILINE)


def root_of(folder: str) -> str:
    """The nearest folder with a `knowledge.yaml`, or with a `rolecall.yaml` that has a section `knowledge`, up to the
    repository's root."""
    check_installed()
    folder = os.path.realpath(folder)
    if not os.path.isdir(folder):
        raise UsageError(f"there is no folder {folder!r}", hint="Name a repository's folder.")
    found = repository.nearest(FILE, folder) or project_file(folder)
    if found is None:
        where = repository.root_around(folder) or folder
        raise _no_settings(where, "" if where == folder else where)
    return os.path.dirname(found)


def _no_settings(root: str, repo: str = "") -> NotFound:
    hint = Hint("Write one", "init_knowledge", repo=repo)
    return NotFound(f"{root} has no {FILE}, which says what to index", hint=hint)


def project_file(folder: str) -> str | None:
    """The file of the project around a folder, if it says what to index."""
    found = repository.nearest(_PROJECT, folder)
    is_said = found is not None and _SECTION.search(_text(found))
    return found if is_said else None


def settings_of(root: str) -> Settings:
    """From `knowledge.yaml`, or from the project's file where there is none."""
    path, project = os.path.join(root, FILE), os.path.join(root, _PROJECT)
    if os.path.lexists(path):
        return settings.load(_text(path), source=path)
    if os.path.lexists(project):
        return settings.load(_text(project), source=project, section="knowledge")
    raise _no_settings(root)


def _text(path: str) -> str:
    try:
        with open(path, "rb", opener=_without_waiting) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise UsageError(f"{path} is no file", hint="Put a file in its place.")
            data = file.read(_LARGEST + 1)
            if len(data) > _LARGEST:
                raise UsageError(f"{path} is larger than {_LARGEST:,} bytes", hint="Correct the file.")
            return data.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}", hint="Correct the file.") from error


def _without_waiting(path: str, flags: int) -> int:
    """Opening a pipe would wait for somebody at its other end."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


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
