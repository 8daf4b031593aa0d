"""The pieces a host's wiring is made of, and what putting them in and taking them out makes of its files.

Nothing is remembered between install and uninstall: what is ours is told by what it is. A file of our own carries a
line with a hash, so one that was changed by hand is known and kept. In a file that others write too, ours is a named
member, or an entry that starts our command, or a block between two comments; everything around it keeps its bytes.

`installed` and `removed` only read, and give the changes; `change.py` shows and makes them.
"""

from __future__ import annotations

import glob
import hashlib
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from rolecall.errors import RolecallError, UsageError
from rolecall.hosts import file_change, toml_text
from rolecall.hosts.file_change import Change
from rolecall.hosts.json_text import Document, NotJson


class OwnFile(NamedTuple):
    """A file that is ours alone. Its kind decides how the line with the hash is written: `.md` (with
    frontmatter), `.toml`, `.yml`, `.js` and `.ts` can have one."""

    path: str
    text: str


class JsonMember(NamedTuple):
    """A member of an object in a JSON file, such as our server among a host's servers. Keys that somebody added
    to our member stay when it is brought up to date."""

    path: str
    keys: tuple[str, ...]
    """The way to the member; objects on it that are missing are made."""
    value: Any
    is_ours: Callable[[Any], bool] = lambda _: True
    """Whether what is there under this name is ours, from whichever version."""


class JsonItems(NamedTuple):
    """Entries of an array in a JSON file, such as our hooks among those of an event."""

    path: str
    keys: tuple[str, ...]
    """The way to the array; what is missing on it is made."""
    items: tuple[Any, ...]
    is_ours: Callable[[Any], bool]
    """Tells our entries from others', whichever version wrote them."""
    has_ours: Callable[[Any], bool] = lambda _: False
    """Whether somebody put ours into an entry of theirs: that one is theirs to clear."""


class TomlTable(NamedTuple):
    """A table in a TOML file, written as a block between two comments. Keys that somebody added to it stay when it is
    brought up to date."""

    path: str
    keys: tuple[str, ...]
    value: Mapping[str, Any]


Piece: TypeAlias = OwnFile | JsonMember | JsonItems | TomlTable


class Wiring(NamedTuple):
    """All that a host is to have of us."""

    pieces: Sequence[Piece]
    sweeps: Sequence[str] = ()
    """Patterns of paths where files of ours may lie that `pieces` names no longer."""
    root: str = ""
    """The folder nothing may lead out of by a link; empty: links are followed wherever they lead."""


def installed(wiring: Wiring, *, force: bool = False) -> list[Change]:
    """What installing would change, file by file; `UsageError` with every file that it cannot be done to."""
    return _checked(wiring, lambda text, piece: _put(text, piece, force=force), force=force)


def removed(wiring: Wiring, *, force: bool = False) -> list[Change]:
    """What uninstalling would change."""
    changes = _checked(wiring, lambda text, piece: _taken(text, piece, force=force), force=force)
    return [one for one in changes if one.before is not None]


def is_present(wiring: Wiring) -> bool:
    """Whether anything of ours is there; of files that cannot be read nothing is known."""
    changes, _ = _planned(wiring, lambda text, piece: _taken(text, piece, force=False))
    return any(one.is_change or one.note for one in [*changes, *_swept(wiring, force=False)])


def value_at(piece: JsonMember | JsonItems | TomlTable) -> Any:
    """What stands where the piece belongs, whoever wrote it; None where nothing does."""
    text = file_change.read_text(piece.path)
    if text is None:
        return None
    if isinstance(piece, TomlTable):
        return toml_text.at(toml_text.parse(text), piece.keys)
    return Document(text).get(piece.keys)


def our_items(piece: JsonItems) -> list[Any]:
    """Our entries of an array, as they stand in the file."""
    found = value_at(piece)
    return [item for item in found if piece.is_ours(item)] if isinstance(found, list) else []


# -- planning: files are read, nothing is written --

_Edit: TypeAlias = "Callable[[str | None, Piece], _Edited]"


class _Edited(NamedTuple):
    text: str | None
    note: str = ""


def _checked(wiring: Wiring, edit: _Edit, *, force: bool) -> list[Change]:
    """All changes, none of which is refused: then they can all be made, or none is."""
    changes, refusals = _planned(wiring, edit)
    changes += _swept(wiring, force=force)
    for one in changes:
        try:
            if one.is_change:
                file_change.check_writable(one.path)
        except RolecallError as error:
            refusals.append(error)
    if refusals:
        raise _refusal(refusals)
    return changes


def _planned(wiring: Wiring, edit: _Edit) -> tuple[list[Change], list[RolecallError]]:
    """What becomes of each file, and why some are refused."""
    by_path: dict[str, list[Piece]] = {}
    for piece in wiring.pieces:
        by_path.setdefault(piece.path, []).append(piece)
    changes: list[Change] = []
    refusals: list[RolecallError] = []
    for path, pieces in by_path.items():
        try:
            changes.append(_changed(path, pieces, edit, wiring.root))
        except RolecallError as error:
            refusals.append(error)
    return changes, refusals


def _changed(path: str, pieces: Iterable[Piece], edit: _Edit, root: str) -> Change:
    file_change.check_place(path, root)
    before = file_change.read(path)
    text, notes = file_change.decoded(path, before), []
    for piece in pieces:
        try:
            text, note = edit(text, piece)
        except UsageError as error:
            raise UsageError(f"{path}: {error.message}", hint=error.hint or _by_hand(piece)) from None
        notes += [note] if note else []
    return Change(path, before, None if text is None else text.encode(), "; ".join(notes))


def _by_hand(piece: Piece) -> str:
    if isinstance(piece, TomlTable):
        pasted = toml_text.written(piece.keys, piece.value)
        return f"Correct the file, or add this to it by hand:\n{pasted}"
    return "Correct the file and try again; it was left as it is."


def _refusal(errors: Sequence[RolecallError]) -> RolecallError:
    if len(errors) == 1:
        return errors[0]
    lines = [f"\n  {error.message}" for error in errors]
    return UsageError(f"nothing was written:{''.join(lines)}", hint=errors[0].hint)


def _put(text: str | None, piece: Piece, *, force: bool) -> _Edited:
    if isinstance(piece, OwnFile):
        return _own_file(text, piece, force=force)
    if isinstance(piece, TomlTable):
        return _Edited(toml_text.put(text, piece.keys, piece.value))
    if isinstance(piece, JsonItems):
        return _Edited(_items(text, piece))
    return _Edited(_member(text, piece, force=force))


def _taken(text: str | None, piece: Piece, *, force: bool) -> _Edited:
    if text is None:
        return _Edited(None)
    if isinstance(piece, OwnFile):
        return _without_own_file(text, force=force)
    if isinstance(piece, TomlTable):
        return _Edited(toml_text.remove(text, piece.keys))
    document = _document(text)
    note = ""
    if isinstance(piece, JsonItems):
        for index in reversed(_our_places(document, piece)):
            document.remove([*piece.keys, index])
        if any(map(piece.has_ours, document.get(piece.keys) or ())):
            note = f"an entry of {'.'.join(piece.keys)} has ours among others' and stays"
    else:
        there = document.get(piece.keys)
        if there is not None and piece.is_ours(there):
            document.remove(piece.keys)
    return _Edited(None if document.is_all_gone else document.text, note)


# -- JSON --

_NEW = "{\n}\n"


def _document(text: str | None) -> Document:
    try:
        return Document(_NEW if text is None else text)
    except NotJson as error:
        raise NotJson(f"it is not JSON, and was left as it is: {error.message}") from None


def _member(text: str | None, piece: JsonMember, *, force: bool) -> str:
    document = _document(text)
    there = document.get(piece.keys)
    if there is not None and not force and not piece.is_ours(there):
        raise UsageError(
            f"{'.'.join(piece.keys)} is there and not ours", hint="Rename it, or replace it with --force."
        )
    value = piece.value
    if isinstance(there, Mapping) and isinstance(value, Mapping) and piece.is_ours(there):
        value = {**there, **value}
    document.set(piece.keys, value)
    return _fresh(text, document)


def _items(text: str | None, piece: JsonItems) -> str:
    document = _document(text)
    places, items = _our_places(document, piece), list(piece.items)
    for index, item in zip(places, items, strict=False):
        document.set([*piece.keys, index], item)
    for index in reversed(places[len(items) :]):
        document.remove([*piece.keys, index])
    document.append(piece.keys, items[len(places) :])
    return _fresh(text, document)


def _our_places(document: Document, piece: JsonItems) -> list[int]:
    there = document.get(piece.keys)
    if there is None:
        return []
    if not isinstance(there, list):
        raise UsageError(f"{'.'.join(piece.keys)} is no array")
    return [index for index, item in enumerate(there) if piece.is_ours(item)]


def _fresh(text: str | None, document: Document) -> str:
    """A file that we make is laid out as a whole, so that its first bracket does not look as if it had been there."""
    if text is not None:
        return document.text
    return file_change.json_text(document.root.value)


# -- files of our own --

_SIGN = "rolecall install wrote this file; once changed by hand it is left alone. sha256:"
_SIGNED = re.compile(r"^(?:#|//) rolecall install .*sha256:([0-9a-f]{64})\r?\n", re.MULTILINE)
"""The line with the hash, in whichever words a version had it."""
_COMMENTS = {".md": "#", ".toml": "#", ".yml": "#", ".yaml": "#", ".js": "//", ".ts": "//"}


def signed(piece: OwnFile) -> str:
    """The text with the line that tells it is ours and whether it was changed."""
    comment = _COMMENTS[os.path.splitext(piece.path)[1]]
    line = f"{comment} {_SIGN}{_digest(piece.text)}\n"
    head = "---\n" if piece.text.startswith("---\n") else ""
    return f"{head}{line}{piece.text.removeprefix(head)}"


def is_signed(text: str) -> bool:
    return _SIGNED.search(text) is not None


def is_unchanged(text: str) -> bool:
    """Whether a file of ours is as it was written."""
    found = _SIGNED.search(text)
    return found is not None and found[1] == _digest(text[: found.start()] + text[found.end() :])


def _digest(text: str) -> str:
    """Line ends do not count: git and editors may write others."""
    text = text.replace("\r\n", "\n")
    return hashlib.sha256(text.encode()).hexdigest()


def _own_file(text: str | None, piece: OwnFile, *, force: bool) -> _Edited:
    wanted = signed(piece)
    if text is None or text == wanted or force or is_unchanged(text):
        return _Edited(wanted)
    if is_signed(text):
        return _Edited(text, "changed by hand, so it stays as it is; --force replaces it")
    raise UsageError("this file is there and not ours", hint="Rename it, or replace it with --force.")


def _without_own_file(text: str, *, force: bool) -> _Edited:
    if is_unchanged(text) or (force and is_signed(text)):
        return _Edited(None)
    if is_signed(text):
        return _Edited(text, "changed by hand, so it stays; --force removes it")
    return _Edited(text)


def _swept(wiring: Wiring, *, force: bool) -> list[Change]:
    """Files of ours that nothing asks for any more: an agent that a catalogue no longer has."""
    known = {piece.path for piece in wiring.pieces}
    changes = []
    for path in sorted({path for pattern in wiring.sweeps for path in glob.glob(pattern)} - known):
        text = _text_of_a_file(path)
        after, note = _without_own_file(text, force=force)
        if note or after is None:
            changes.append(Change(path, text.encode(), None if after is None else text.encode(), note))
    return changes


def _text_of_a_file(path: str) -> str:
    """Empty where it is a link or cannot be read: that is nothing we wrote."""
    try:
        return "" if os.path.islink(path) else file_change.read_text(path) or ""
    except RolecallError:
        return ""
