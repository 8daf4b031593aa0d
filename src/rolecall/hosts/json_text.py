"""JSON files that others write too, changed in place: everything around what is put in or taken out keeps its bytes.

What is put in takes on the file's own indent and line ends. Taking it out again gives back the very bytes there were
before, also where an object or an array was empty: one that was there before we wrote into it has one blank behind
its opening bracket, one that we made has not, and goes with what is in it. Nothing here knows hosts or files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from rolecall.errors import UsageError

Keys = Sequence[str | int]

_BLANK = re.compile(r"[ \t\r\n]*")
_INDENT = re.compile(r"\n([ \t]+)\S")
_MARK = " "
"""Behind the bracket of what was empty before something of ours was put into it."""


class NotJson(UsageError):
    """A text that cannot be read as JSON."""


class Node(NamedTuple):
    """A value and where it stands."""

    start: int
    end: int
    value: Any


class Part(NamedTuple):
    """A member of an object, or an entry of an array."""

    key: str | int
    start: int
    """Where it begins: at its key, or at itself."""
    node: Node


class Document:
    """A JSON text that is edited; `text` is what has become of it."""

    def __init__(self, text: str) -> None:
        self._mark = "\ufeff" if text.startswith("\ufeff") else ""  # says how the file is encoded
        self._text = text.removeprefix("\ufeff")
        self.is_all_gone = False
        """Whether nothing is left of a text that was not there before we wrote it."""
        self.root = _parsed(self._text)
        self._line_end = "\r\n" if "\r\n" in self._text else "\n"
        found = _INDENT.search(self._text)
        self._indent = found[1] if found else "  "

    @property
    def text(self) -> str:
        return self._mark + self._text

    def get(self, keys: Keys) -> Any:
        """The value there; None where there is none."""
        found = self._at(keys)
        return None if found is None else found.value

    def set(self, keys: Keys, value: Any) -> None:
        """Give something this value; a member that is missing is made, and the objects on the way to it."""
        found = self._at(keys)
        if found is None:
            parent, rest = self._deepest(keys)
            for key in reversed(rest[1:]):
                value = {key: value}
            self._put(parent, value, json.dumps(rest[0], ensure_ascii=False))
        elif found.value != value:
            self._splice(found.start, found.end, self._dumped(value, self._indent_at(found.start)))

    def append(self, keys: Sequence[str], items: Sequence[Any]) -> None:
        """Put entries at the end of an array, which is made where it is missing."""
        found = self._at(keys)
        if found is None:
            self.set(keys, list(items))
            return
        if not isinstance(found.value, list):
            raise UsageError(f"{'.'.join(keys)} is no array")
        for item in items:
            again = self._at(keys)
            if again is not None:
                self._put(again, item)

    def remove(self, keys: Keys) -> None:
        """Take something out, and with it what was made for it and is empty now."""
        container = self._at(keys[:-1])
        parts = list(self._parts(container)) if container else []
        index = next((number for number, part in enumerate(parts) if part.key == keys[-1]), None)
        if container is None or index is None:
            return
        was_there = self._text[container.start + 1 : parts[index].start] == _MARK
        if len(parts) > 1:
            self._splice(*_span(parts, index), "")
        elif was_there:
            self._splice(container.start + 1, parts[index].node.end, "")
        elif len(keys) > 1:
            self.remove(keys[:-1])
        else:
            self.is_all_gone = True
            self._splice(container.start + 1, container.end - 1, "")

    # -- finding --

    def _at(self, keys: Keys) -> Node | None:
        node = self.root
        for key in keys:
            found = self._part(node, key)
            if found is None:
                return None
            node = found.node
        return node

    def _deepest(self, keys: Keys) -> tuple[Node, Keys]:
        """The last object on the way that is there, and the rest of the way."""
        node = self.root
        for depth, key in enumerate(keys):
            if not isinstance(node.value, dict):
                raise UsageError(f"{'.'.join(map(str, keys[:depth])) or 'the whole'} is no object")
            found = self._part(node, key)
            if found is None:
                return node, keys[depth:]
            node = found.node
        raise AssertionError("the way leads to something that is there")  # pragma: no cover

    def _part(self, node: Node, key: str | int) -> Part | None:
        return next((part for part in self._parts(node) if part.key == key), None)

    def _parts(self, node: Node) -> Iterator[Part]:
        """The parts of an object or an array in the order of the text, which is known to be JSON."""
        if not isinstance(node.value, (dict, list)):
            return
        place = self._behind_blanks(node.start + 1)
        for number in range(len(node.value)):
            key: str | int = number
            start = place
            if isinstance(node.value, dict):
                key, place = _DECODER.raw_decode(self._text, place)
                place = self._behind_blanks(self._behind_blanks(place) + 1)  # the colon
            value, end = _DECODER.raw_decode(self._text, place)
            yield Part(key, start, Node(place, end, value))
            place = self._behind_blanks(self._behind_blanks(end) + 1)  # the comma

    def _behind_blanks(self, place: int) -> int:
        return _behind_blanks(self._text, place)

    # -- writing --

    def _put(self, container: Node, value: Any, key: str = "") -> None:
        """A new last part. What was empty gets it on the line of its bracket, behind a blank."""
        parts = list(self._parts(container))
        if not parts:
            place, before, indent = container.start + 1, _MARK, self._indent_at(container.start)
        else:
            place, indent = parts[-1].node.end, self._indent_at(parts[-1].start)
            is_spread = "\n" in self._text[container.start + 1 : parts[0].start]
            before = f",{self._line_end}{indent}" if is_spread else ", "
        self._splice(place, place, f"{before}{key}{': ' if key else ''}{self._dumped(value, indent)}")

    def _dumped(self, value: Any, indent: str) -> str:
        """A value as it is written into a line with this indent; a text of one line stays one."""
        is_spread = "\n" in self._text.strip() or not self.root.value
        text = json.dumps(value, ensure_ascii=False, indent=self._indent if is_spread else None)
        return text.replace("\n", self._line_end + indent)

    def _indent_at(self, place: int) -> str:
        """The indent of the line a place is on."""
        before = self._text[self._text.rfind("\n", 0, place) + 1 : place]
        return before[: len(before) - len(before.lstrip(" \t"))]

    def _splice(self, start: int, end: int, text: str) -> None:
        self._text = self._text[:start] + text + self._text[end:]
        self.root = _parsed(self._text)


def _span(parts: Sequence[Part], index: int) -> tuple[int, int]:
    """What goes with a part that has neighbours: the comma and the blanks between it and one of them."""
    if index == 0:
        return parts[0].start, parts[1].start
    return parts[index - 1].node.end, parts[index].node.end


# -- reading --


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:  # one of the two is meant, and nobody knows which
            raise NotJson(f"the key {key!r} stands twice in one object")
        found[key] = value
    return found


def _no_number(word: str) -> Any:
    raise NotJson(f"{word} is no number of JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_no_number)


def _parsed(text: str) -> Node:
    start = _behind_blanks(text, 0)
    try:
        value, end = _DECODER.raw_decode(text, start)
        if _behind_blanks(text, end) < len(text):
            raise json.JSONDecodeError("Something stands behind the end", text, end)
    except json.JSONDecodeError as exc:
        raise NotJson(f"{exc.msg} in line {exc.lineno}, column {exc.colno}") from None
    except ValueError as exc:  # a number with more digits than Python reads
        raise NotJson(str(exc)) from None
    except RecursionError:
        raise NotJson("it nests too deeply") from None
    return Node(start, end, value)


def _behind_blanks(text: str, place: int) -> int:
    found = _BLANK.match(text, place)
    return found.end() if found else place
