"""TOML files that others write too, changed in place: a table of ours stands in a block between two comments.

The block comes at the end of the file. The whole is read before and after, and an edit whose result is not what it
should be is refused. Nothing here knows hosts or files.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rolecall.errors import UsageError

_BEGIN = "# rolecall begin {}"
_END = "# rolecall end {}"
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_HEADING = re.compile(r"^(?=[ \t]*\[)", re.MULTILINE)


class NotToml(UsageError):
    """A text that cannot be read as TOML."""


def parse(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as exc:
        raise NotToml(str(exc)) from None


def at(document: Mapping[str, Any], keys: Sequence[str]) -> Any:
    """The value that `keys` lead to; None where there is none."""
    value: Any = document
    for key in keys:
        if not isinstance(value, Mapping) or key not in value:
            return None
        value = value[key]
    return value


def put(text: str | None, keys: Sequence[str], table: Mapping[str, Any]) -> str:
    """The text with our block for this table, brought up to date or new. Keys that somebody added to our table stay;
    a table that has all of ours without being ours is left to whoever wrote it. None: there is no file yet."""
    if text is not None and _is_part_of(table, at(parse(text), keys)):
        return text
    bare = None if text is None else _without_block(text, keys)
    before = parse(bare or "")
    below = at(before, keys) or {}
    if not isinstance(below, Mapping) or not all(isinstance(value, Mapping) for value in below.values()):
        raise UsageError(f"{_dotted(keys)} is there and not ours")
    wanted = {**table, **_added(text or "", keys, table)}
    after = _with_block(bare, keys, wanted)
    if not _is_meant(after, keys, {**below, **wanted}, before):
        raise UsageError(f"{_dotted(keys)} cannot be added to what is there")
    return after


def remove(text: str, keys: Sequence[str]) -> str | None:
    """The text without our block for this table, and without what a host has hung below the table since; None
    where nothing is left of what we made."""
    left = _without_block(text, keys)
    if left is None or _block(text, keys) is None:
        return left
    bare = "".join(part for part in _tables(left) if _path_of(part)[: len(keys)] != tuple(keys))
    return bare if _is_same(bare, _without(parse(left), keys)) else left


def _is_same(text: str, document: Mapping[str, Any]) -> bool:
    try:
        return parse(text) == document
    except NotToml:  # what looked like a heading stood in the midst of a value
        return False


def _is_part_of(table: Mapping[str, Any], there: Any) -> bool:
    return isinstance(there, Mapping) and all(
        key in there and there[key] == value for key, value in table.items()
    )


def _is_meant(text: str, keys: Sequence[str], table: Mapping[str, Any], before: Mapping[str, Any]) -> bool:
    """Whether the text has our table, and is otherwise what it was before."""
    try:
        found = parse(text)
    except NotToml:
        return False
    return bool(at(found, keys) == table and _without(found, keys) == _without(before, keys))


def _without(document: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    """The document without what `keys` lead to, and without the tables that only lead there."""
    first, *rest = keys
    left = dict(document)
    if not rest:
        left.pop(first, None)
    elif isinstance(left.get(first), Mapping):
        left[first] = _without(left[first], rest)
    return {key: value for key, value in left.items() if key != first or value != {}}


# -- our block --


def _block(text: str, keys: Sequence[str]) -> re.Match[str] | None:
    begin, end = (re.escape(line.format(_dotted(keys))) for line in (_BEGIN, _END))
    return re.search(rf"^{begin}\r?\n((?:.*\n)*?){end}(\r?\n|\Z)", text, re.MULTILINE)


def _without_block(text: str, keys: Sequence[str]) -> str | None:
    """The text without what we wrote. A host that writes the file itself may keep a comment that stands last where
    it is, behind tables it adds: whatever table between our comments is not ours, stays."""
    found = _block(text, keys)
    if found is None:
        return text
    _, *tables = _tables(found[1])
    others = "".join(part for part in tables if _path_of(part) != tuple(keys))
    before = text[: found.start()]
    if not found[2] and not others:  # the file did not end with a line end before us, or was empty
        return before.removesuffix("\n").removesuffix("\r")
    return before + others + text[found.end() :] or None


def _added(text: str, keys: Sequence[str], table: Mapping[str, Any]) -> dict[str, Any]:
    """Keys in our table that are not of this version: an older one's, or somebody's own."""
    found = _block(text, keys)
    for part in _tables(found[1]) if found else ():
        if _path_of(part) == tuple(keys):
            return {key: value for key, value in at(parse(part), keys).items() if key not in table}
    return {}


def _with_block(text: str | None, keys: Sequence[str], table: Mapping[str, Any]) -> str:
    line_end = "\r\n" if "\r\n" in (text or "") else "\n"
    lines = [_BEGIN.format(_dotted(keys)), *_table(keys, table), _END.format(_dotted(keys))]
    block = line_end.join(lines)
    if text is None or text.endswith("\n"):
        return f"{text or ''}{block}{line_end}"
    return f"{text}{line_end if text else ''}{block}"


# -- tables as pieces of the text --


def _tables(text: str) -> list[str]:
    """What stands before the first heading, and then each table from its heading to the next. A line in the midst of
    a value may look like a heading: then both pieces are of no table, and stay side by side."""
    return _HEADING.split(text)


def _path_of(part: str) -> tuple[str, ...]:
    """The keys that the heading of a piece names; none where it is no heading."""
    try:
        value: Any = tomllib.loads(part.partition("\n")[0].rstrip("\r"))
    except tomllib.TOMLDecodeError:
        return ()
    path: list[str] = []
    while isinstance(value, dict) and value:
        ((key, value),) = value.items()
        path.append(key)
    return tuple(path)


# -- writing --


def written(keys: Sequence[str], table: Mapping[str, Any]) -> str:
    """A table as TOML, for whoever is to paste it."""
    return "\n".join(_table(keys, table))


def quoted(value: str) -> str:
    """A text as TOML has it, whatever characters it has."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _table(keys: Sequence[str], table: Mapping[str, Any]) -> Iterator[str]:
    """One table under one heading, whatever is in it: by that it is known again."""
    yield f"[{_dotted(keys)}]"
    yield from _pairs(table)


def _pairs(table: Mapping[str, Any]) -> Iterator[str]:
    return (f"{_key(key)} = {_value(value)}" for key, value in table.items())


def _dotted(keys: Sequence[str]) -> str:
    return ".".join(map(_key, keys))


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else quoted(key)


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"{{ {', '.join(_pairs(value))} }}" if value else "{}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, (bool, int, float)):
        return json.dumps(value)
    return str(value)  # a time, which TOML has as Python writes it
