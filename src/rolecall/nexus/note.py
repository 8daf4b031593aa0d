"""Notes: the Markdown files in a project's `memory/`, `rules/` and `context/`, without subfolders.

A name refers to a regular file in its folder, or to nothing: links are refused, so that no note is read or written
elsewhere. Writers hold the project's lock. `memory` and `rule` define the purpose of each kind of note.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from rolecall.errors import NotFound, UsageError
from rolecall.nexus import note_name, project_paths, state_file
from rolecall.nexus.project_paths import Folder
from rolecall.store.lazy import Module

if TYPE_CHECKING:
    import difflib
else:
    difflib = Module("difflib")  # only a wrong name needs it, and hooks import this module

Kind: TypeAlias = Literal["memory", "rules", "context"]

LARGEST = 64 * 1024
"""The maximum size of a new note in bytes. Agents read whole notes, so a long note costs every reader."""


class ProjectNote(NamedTuple):
    name: str
    path: str
    size: int
    changed: float
    """The time when the note was last written, in seconds since 1970."""


def folder(project: Folder, kind: Kind) -> str:
    path = os.path.join(project_paths.nexus(project), kind)
    state_file.refuse_links(path)
    return path


def list_notes(project: Folder, kind: Kind) -> list[ProjectNote]:
    """Return all notes of a kind, sorted by name: the regular Markdown files in the folder of that kind."""
    inside = folder(project, kind)
    try:
        entries = list(os.scandir(inside))
    except FileNotFoundError:
        return []
    except OSError as exc:
        raise state_file.storage_error(exc, inside) from exc
    found = [
        ProjectNote(entry.name, entry.path, status.st_size, status.st_mtime)
        for entry in entries
        if entry.name.endswith(".md") and not entry.name.startswith(".")
        if stat.S_ISREG((status := entry.stat(follow_symlinks=False)).st_mode)
    ]
    return sorted(found)


def find(project: Folder, kind: Kind, name: str) -> ProjectNote:
    """Find an existing note. If there is no such note, raise an error that lists the existing notes."""
    file = note_name.file_name(name)
    path = os.path.join(folder(project, kind), file)
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        known = [note.name for note in list_notes(project, kind)]
        close = difflib.get_close_matches(file, known, n=1)
        guess = f"Did you mean {close[0]}? " if close else ""
        shown = ", ".join(known[:10]) + (f" and {len(known) - 10} more" if len(known) > 10 else "")
        raise NotFound(f"{path} does not exist", hint=f"{guess}There are: {shown or 'none'}.") from None
    except OSError as exc:
        raise state_file.storage_error(exc, path) from exc
    if not stat.S_ISREG(status.st_mode):
        raise UsageError(f"{path} is a link or a folder", hint="Put a plain file in its place.")
    return ProjectNote(file, path, status.st_size, status.st_mtime)


def content(note: ProjectNote) -> bytes:
    try:
        file = os.open(note.path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError as exc:
        hint = "Look what became of it."
        raise UsageError(f"{note.path} cannot be read: {exc.strerror}", hint=hint) from exc
    with open(file, "rb") as opened:
        return opened.read()


def text(note: ProjectNote) -> str:
    data = content(note)
    try:
        return data.decode()
    except UnicodeDecodeError as exc:
        problem, hint = f"byte {exc.start} is {data[exc.start]:#04x}", "Convert the file, then read it again."
        raise UsageError(f"{note.path} is not UTF-8: {problem}", hint=hint) from exc


def clean(text: str) -> str:
    """Normalize the text of a new note. Raise an error if the text cannot be stored."""
    kept = text.removeprefix("\ufeff").strip("\n").rstrip() + "\n"
    if not kept.strip():
        raise UsageError("the text is empty", hint="Write what to remember into it.")
    if "\0" in kept:
        raise UsageError("the text holds a NUL character", hint="Notes are plain text.")
    refuse_oversize(kept)
    return kept


def refuse_oversize(text: str) -> None:
    size = len(encode(text))
    if size > LARGEST:
        hint = "Keep only what must be remembered, and say where to find the rest."
        raise UsageError(f"the text has {size:,} bytes; a note has {LARGEST:,} at most", hint=hint)


def encode(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as exc:
        raise UsageError(f"the text holds {text[exc.start]!a}, which UTF-8 cannot say") from exc


# -- writing, under the project's lock --


def create(project: Folder, kind: Kind, file: str, text: str) -> ProjectNote:
    """Create a note without ever overwriting an existing one."""
    path = os.path.join(folder(project, kind), file)
    state_file.make_folder(folder(project, kind))
    with state_file.draft(project, encode(text)) as draft:
        try:
            os.link(draft, path)
        except FileExistsError:
            raise already_there(path) from None
        # If this process were killed before this line, the next writer would remove the draft, and the note would stay.
        state_file.remove(draft)
    state_file.sync_folder(os.path.dirname(path))
    return find(project, kind, file)


def already_there(path: str) -> UsageError:
    return UsageError(f"{path} exists already", hint="Choose another name, or change that file.")


def rewrite(project: Folder, note: ProjectNote, text: str) -> None:
    state_file.replace(project, note.path, encode(text))
