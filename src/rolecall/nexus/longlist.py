"""A JSON file that is one long list with a few fields around it: `tasks.json` and `history.json`.

Such a file grows for years, and a tool adds one entry or looks at a few. So entries are found by where they
begin, a new one is put before the closing bracket, and everything else keeps its bytes. Where the entries
begin is known from parsing the file once; a writer leaves it in an index of our own, under a digest of the
file's bytes. The index is never believed about other bytes than those: whatever anybody else writes to the
file is parsed and checked in full. Nor is it believed where the bytes speak against it, since it may be forged.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any, NamedTuple

from rolecall.errors import StorageError, UsageError
from rolecall.nexus import project_paths as place
from rolecall.nexus import state_file
from rolecall.nexus.project_paths import Folder
from rolecall.nexus.shape import Check, is_number

_WORTH_AN_INDEX = 100_000
"""Bytes from which on parsing takes longer than reading an index."""
_INDEX_VERSION = 1
"""Goes up when a shape changes, so that files checked by the old one are checked again."""
_REMEMBERED = 4

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode
_BY_NUMBER = re.compile(rb"\\[u/]")
_SPACE = re.compile(r"[ \t\n\r]*")
_COMMA = re.compile(r"[ \t\n\r]*,[ \t\n\r]*")
_BRACE = ord("{")
_WHITE = b" \t\n\r"
_LONGEST_JOINT = 64
"""Bytes between two entries, for an index to be believed: more than any writer puts there."""


class Kind(NamedTuple):
    """What a file of this kind consists of."""

    name: str
    key: str
    """The field that is the list."""
    head: Check
    """The other fields."""
    entry: Check
    rank: Callable[[Any], float]
    """The number of an entry; 0 when it has none."""
    brief: Callable[[Any], Any] = lambda _: None
    """What of each entry is worth remembering by a process that looks again and again."""


class Layout(NamedTuple):
    """Where things are in the bytes of a file that was found good."""

    head: dict[str, Any]
    opening: int
    """Just after the list's bracket."""
    closing: int
    """At its other bracket."""
    starts: list[int]
    highest: int
    """No entry has a higher number."""
    is_in_order: bool
    """The entries are numbered 1, 2, 3 and so on."""
    is_literal: bool
    """Every character stands for itself or has the one short escape that JSON knows for it."""
    briefs: list[Any] | None = None
    """Not in the index: reading them would take as long as parsing the file."""


class LongList:
    """The bytes of a file and where its entries are in them. They never change: a change is another one."""

    def __init__(
        self, data: bytes, layout: Layout, *, digest: str = "", parsed: list[Any] | None = None
    ) -> None:
        self.data = data
        self.layout = layout
        self._digest = digest
        self._parsed = parsed

    @property
    def count(self) -> int:
        return len(self.layout.starts)

    def slice(self, number: int) -> bytes:
        """The JSON of one entry as it stands in the file."""
        starts = self.layout.starts
        end = starts[number + 1] if number + 1 < len(starts) else self.layout.closing
        return self.data[starts[number] : end].rstrip(b", \t\r\n")

    def entry(self, number: int) -> Any:
        try:
            return json.loads(self.slice(number))
        except ValueError as exc:
            raise StorageError(
                "an index below .nexus/state/rolecall does not fit its file",
                hint="Remove what ends in .index.json there; it is made anew.",
            ) from exc

    def list_json(self) -> memoryview:
        """The JSON of all entries, brackets included, as it stands in the file."""
        return memoryview(self.data)[self.layout.opening - 1 : self.layout.closing + 1]

    def entries(self) -> list[Any]:
        """All of them, for the caller to keep: those that checking the file left are given away once."""
        parsed, self._parsed = self._parsed, None
        found: list[Any] = json.loads(str(self.list_json(), "utf-8")) if parsed is None else parsed
        return found

    def briefs(self, kind: Kind) -> list[Any]:
        """What is remembered of the entries, or is from now on."""
        if self.layout.briefs is not None:
            return self.layout.briefs
        briefs = [kind.brief(entry) for entry in self.entries()]
        self.layout = self.layout._replace(briefs=briefs)
        if self._digest:
            _remember(kind, self._digest, self.layout)
        return briefs


def json_bytes(value: Any) -> bytes:
    """JSON as JavaScript writes it: no spaces, characters as themselves."""
    text = _encode(value)
    try:
        return text.encode()
    except UnicodeEncodeError:
        # Half of a pair can be written in JSON only by its number, and stands only within strings.
        return re.sub("[\ud800-\udfff]", lambda half: f"\\u{ord(half[0]):04x}", text).encode()


# -- changing --


class Change(NamedTuple):
    """A file as it is to become. In parts, because most of it is a file that was read, and copying ten
    megabytes takes longer than all the rest."""

    parts: Sequence[bytes | memoryview]
    layout: Layout


def empty(kind: Kind, head: dict[str, Any]) -> LongList:
    return with_head(LongList(b"[]", Layout(head, 1, 1, [], 0, True, True)), kind, head)


def with_head(file: LongList, kind: Kind, head: dict[str, Any]) -> LongList:
    """The same list with other fields around it."""
    fields = json_bytes(head)[:-1] + (b"," if head else b"")
    front = fields + json_bytes(kind.key) + b":["
    layout = file.layout
    inside = file.data[layout.opening : layout.closing]
    shift = len(front) - layout.opening
    moved = layout._replace(
        head=head,
        opening=len(front),
        closing=layout.closing + shift,
        starts=[start + shift for start in layout.starts],
    )
    return LongList(front + inside + b"]}\n", moved)


def appended(file: LongList, kind: Kind, entry: Any) -> Change:
    """One entry more, behind the others."""
    layout, count, view = file.layout, file.count, memoryview(file.data)
    text = json_bytes(entry)
    end = layout.starts[-1] + len(file.slice(count - 1)) if count else layout.opening
    start = end + (2 if count else 1)
    number = kind.rank(entry)
    longer = layout._replace(
        closing=start + len(text) + 1,
        starts=[*layout.starts, start],
        highest=max(layout.highest, int(number)),
        is_in_order=layout.is_in_order and number == count + 1,
        is_literal=layout.is_literal and _is_literal(text),
        briefs=None if layout.briefs is None else [*layout.briefs, kind.brief(entry)],
    )
    between = b",\n" if count else b"\n"
    return Change((view[:end], between, text, b"\n", view[layout.closing :]), longer)


def replaced(file: LongList, kind: Kind, place_in_file: int, entry: Any) -> Change:
    """Another entry in the place of one, under the same number."""
    layout, view = file.layout, memoryview(file.data)
    old, text = file.slice(place_in_file), json_bytes(entry)
    start, shift = layout.starts[place_in_file], len(text) - len(old)
    later = [start + shift for start in layout.starts[place_in_file + 1 :]]
    briefs = None if layout.briefs is None else [*layout.briefs]
    if briefs is not None:
        briefs[place_in_file] = kind.brief(entry)
    moved = layout._replace(
        closing=layout.closing + shift,
        starts=[*layout.starts[: place_in_file + 1], *later],
        is_literal=layout.is_literal and _is_literal(text),
        briefs=briefs,
    )
    return Change((view[:start], text, view[start + len(old) :]), moved)


# -- reading and writing --


def load(project: Folder, path: str, kind: Kind) -> LongList | None:
    """The file, known to be good; None when there is none."""
    data = state_file.read(path)
    if data is None:
        return None
    digest, layout, parsed = "", None, None
    if len(data) >= _WORTH_AN_INDEX:
        digest = state_file.digest(data)
        layout = _known.get((kind.name, digest)) or _indexed(project, kind, data, digest)
    if layout is None:
        layout, parsed = _checked(path, data, kind)
    if digest:
        _remember(kind, digest, layout)
    return LongList(data, layout, digest=digest, parsed=parsed)


def save(project: Folder, path: str, kind: Kind, change: Change) -> None:
    state_file.replace(project, path, *change.parts)
    if sum(map(len, change.parts)) >= _WORTH_AN_INDEX:
        digest = state_file.digest(*change.parts)
        _remember(kind, digest, change.layout)
        index = {"version": _INDEX_VERSION, "digest": digest, **change.layout._asdict()}
        del index["briefs"]
        # Going without it costs the next reader a parse, so nobody waits for the disk, and a change that was made is
        # not answered with an error because of it.
        with suppress(OSError, UsageError):
            state_file.replace(project, _index_path(project, kind), json_bytes(index), must_last=False)


_known: dict[tuple[str, str], Layout] = {}
"""By kind and digest, for a process that looks at the same large file again and again; reading must not write."""


def _remember(kind: Kind, digest: str, layout: Layout) -> None:
    global _known
    # Another one instead of a change to this one: threads may be looking at it.
    latest = [known for known in _known.items() if known[0] != (kind.name, digest)][1 - _REMEMBERED :]
    _known = dict([*latest, ((kind.name, digest), layout)])


def _index_path(project: Folder, kind: Kind) -> str:
    return place.ours(project, f"{kind.name}.index.json")


def _indexed(project: Folder, kind: Kind, data: bytes, digest: str) -> Layout | None:
    """The layout that a writer left of these bytes. An index with anything wrong about it is as good as none."""
    try:
        index = json.loads(state_file.read(_index_path(project, kind)) or b"null")
    except (ValueError, RecursionError, StorageError, UsageError):
        return None
    if not isinstance(index, dict) or (index.pop("version", 0), index.pop("digest", "")) != (
        _INDEX_VERSION,
        digest,
    ):
        return None
    try:
        return Layout(**index) if _is_layout(index, kind, data) and _fits(index, kind, data) else None
    except (ValueError, RecursionError):
        return None


def _is_layout(index: dict[str, Any], kind: Kind, data: bytes) -> bool:
    """Whether this could be the layout of these bytes: the file it stands in may be anybody's."""
    if index.keys() != {*Layout._fields} - {"briefs"} or type(index["starts"]) is not list:
        return False
    opening, starts, closing = index["opening"], index["starts"], index["closing"]
    if not all(type(number) is int for number in (opening, *starts, closing, index["highest"])):
        return False
    return (
        not kind.head(index["head"])
        and is_number(index["highest"])
        and type(index["is_in_order"]) is type(index["is_literal"]) is bool
        and 0 < opening <= closing < len(data)
        and all(place < following for place, following in pairwise((opening - 1, *starts, closing)))
        and all(data[start] == _BRACE for start in starts)
    )


def _fits(index: dict[str, Any], kind: Kind, data: bytes) -> bool:
    """Whether nothing in the bytes speaks against such a layout, as far as can be told without parsing them all."""
    opening, starts, closing = index["opening"], index["starts"], index["closing"]
    # A text between the brackets: were they themselves within a text, it would end that.
    around = parse(data[:opening] + b'""' + data[closing:])
    has_brackets = (data[opening - 1 : opening], data[closing : closing + 1]) == (b"[", b"]")
    if not has_brackets or around != {**index["head"], kind.key: [""]}:
        return False
    if not starts:
        return not data[opening:closing].strip(_WHITE) and index["highest"] == 0
    last = parse(data[starts[-1] : closing])
    rank = 0 if kind.entry(last) else int(kind.rank(last))
    is_numbered = (
        index["highest"] == rank == len(starts) if index["is_in_order"] else rank <= index["highest"]
    )
    return is_numbered and not data[opening : starts[0]].strip(_WHITE) and _are_joined(data, starts)


def _are_joined(data: bytes, starts: Sequence[int]) -> bool:
    """Whether each but the last ends as an entry does before the next, and none of them begins within a text."""
    has_escapes = b"\\" in data
    for start, following in pairwise(starts):
        joint = data[max(start, following - _LONGEST_JOINT) : following].rstrip(_WHITE)
        if not joint.endswith(b",") or not joint[:-1].rstrip(_WHITE).endswith(b"}"):
            return False
        quotes = data.count(b'"', start, following)
        if has_escapes and data.find(b"\\", start, following) >= 0:
            quotes = data[start:following].replace(rb"\\", b"").replace(rb"\"", b"").count(b'"')
        if quotes % 2:
            return False
    return True


def _checked(path: str, data: bytes, kind: Kind) -> tuple[Layout, list[Any]]:
    """Where everything is in a file, and its entries."""
    try:
        return _parsed(data, kind)
    except (ValueError, RecursionError) as exc:
        raise state_file.DamagedFile(path, data, str(exc)) from exc


# -- parsing --


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _refuse_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # The value that is hidden would be gone with the next change.
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError(f"a field stands twice among {', '.join(found)}")
    return found


_decoder = json.JSONDecoder(parse_constant=_refuse_constant, object_pairs_hook=_refuse_repeats)


def parse(data: bytes) -> Any:
    """A value of JSON as the standard has it; a ValueError says why it is none."""
    return _decoder.decode(data.decode())


class _Scanner:
    """Goes through the two outer levels of a JSON text step by step; what lies deeper it reads at once."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def skip_space(self) -> None:
        space = _SPACE.match(self.text, self.at)
        self.at = space.end() if space else self.at

    def is_before(self, character: str) -> bool:
        self.skip_space()
        return self.text.startswith(character, self.at)

    def take(self, character: str) -> None:
        if not self.is_before(character):
            raise ValueError(f"{character!r} was expected at character {self.at}")
        self.at += 1

    def value(self) -> Any:
        self.skip_space()
        value, self.at = _decoder.raw_decode(self.text, self.at)
        return value

    def until(self, bracket: str) -> Iterator[int]:
        """Where each part up to the closing bracket begins; it has to be read before the next is asked for."""
        if not self.is_before(bracket):
            yield self.at
            while comma := _COMMA.match(self.text, self.at):
                self.at = comma.end()
                yield self.at
        self.take(bracket)


def _parsed(data: bytes, kind: Kind) -> tuple[Layout, list[Any]]:
    """Where everything is in a file of this kind, and its entries; a ValueError says what keeps it from being one."""
    scanner = _Scanner(data.decode())
    head: dict[str, Any] = {}
    lists: list[tuple[list[int], list[Any]]] = []
    scanner.take("{")
    for _ in scanner.until("}"):
        name = scanner.value()
        scanner.take(":")
        if name == kind.key:
            lists.append(_entries(scanner, kind))
        elif not isinstance(name, str) or name in head:
            raise ValueError(f"the name {name!r} stands where it cannot")
        else:
            head[name] = scanner.value()
    scanner.skip_space()
    if scanner.at != len(scanner.text) or len(lists) != 1:
        raise ValueError(f"it is not one object with one list of {kind.key}")
    if problem := kind.head(head):
        raise ValueError(f"it{problem}")
    places, entries = lists[0]
    ranks = [kind.rank(entry) for entry in entries]
    opening, *starts, closing = _in_bytes(scanner.text, places)
    layout = Layout(
        head,
        opening,
        closing,
        starts,
        highest=int(max(ranks, default=0)),
        is_in_order=ranks == list(range(1, len(ranks) + 1)),
        is_literal=_is_literal(data),
    )
    return layout, entries


def _entries(scanner: _Scanner, kind: Kind) -> tuple[list[int], list[Any]]:
    """Where the list opens, each entry begins, and it closes; and the entries."""
    scanner.take("[")
    places = [scanner.at]
    entries: list[Any] = []
    judge, text, decode = kind.entry, scanner.text, _decoder.raw_decode
    for start in scanner.until("]"):
        entry, scanner.at = decode(text, start)
        if problem := judge(entry):
            raise ValueError(f"{kind.key}[{len(entries)}]{problem}")
        places.append(start)
        entries.append(entry)
    return [*places, scanner.at - 1], entries


def _is_literal(data: bytes) -> bool:
    return b"\\" not in data or not _BY_NUMBER.search(data)


def _in_bytes(text: str, places: list[int]) -> list[int]:
    """Places in a text as places in its bytes."""
    if text.isascii():
        return places
    at = reached = 0
    found = []
    for place_in_text in places:
        reached += len(text[at:place_in_text].encode())
        at = place_in_text
        found.append(reached)
    return found
