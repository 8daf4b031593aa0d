"""Read the values of the YAML 1.2 core schema from text, with the place of every part, safely even if the input is
hostile.

This reader is built on the events of libyaml, so none of PyYAML's YAML 1.1 rules apply: `yes`, `12:30`, `1_000` and
dates are text, `012` is 12, `<<` is an ordinary key, and a key is always the text as written. Duplicate keys, tags
beyond the core, several documents and values that JSON cannot represent are refused. Nesting, size and alias expansion
are bounded. No files are opened: `!include` works only if the caller passes a function that reads them.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from rolecall.errors import UsageError
from rolecall.store.lazy import Module

if TYPE_CHECKING:
    import yaml
    from yaml import _yaml
else:
    # Importing these takes longer than reading most texts.
    _yaml = Module("yaml._yaml")
    yaml = Module("yaml")

MAX_BYTES = 1_000_000
MAX_DEPTH = 100
MAX_ALIASED = 200_000
"""The maximum to which all aliases together can expand, in nodes and characters."""

Path = tuple[str | int, ...]
Include = Callable[[str, str], tuple[str, str]]
"""Called with the path as written and the name of the file that contains it. Returns the included file's name and text,
or raises `UsageError`."""

_CORE = "tag:yaml.org,2002:"
# The patterns are strings, so that importing this module compiles none of them.
_NUMBER = (
    r"(?P<integer>[-+]?[0-9]+)|(?P<based>0o[0-7]+|0x[0-9a-fA-F]+)"
    r"|[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?"
)
_WORDS = {
    "": None,
    "~": None,
    **dict.fromkeys(("null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
    **{sign + word: float(sign + "inf") for sign in ("", "-", "+") for word in (".inf", ".Inf", ".INF")},
}
_FLAT = r"(?a)([$A-Za-z_][$\w-]{0,49}): ([A-Za-z0-9](?:[\w ./-]{0,300}[\w./-])?)"
_MOST_DIGITS = 400


class Position(NamedTuple):
    """A position in a file. Lines and columns count from 1."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


class Problem(NamedTuple):
    """A problem with a text: what is wrong, where it is, and what to do about it."""

    severity: Literal["error", "warning"]
    message: str
    file: str
    line: int
    """The line, or 0 if the problem is not in the text itself."""
    column: int
    hint: str = ""

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}:{self.column}" if self.line else self.file

    @property
    def text(self) -> str:
        """The message and the hint."""
        return f"{self.message}{'. ' if self.hint else ''}{self.hint}"

    def __str__(self) -> str:
        return f"{self.place}: {self.severity}: {self.text}"


def refusal(what: str, problems: Iterable[Problem]) -> UsageError:
    """Return the error for a text that cannot be used, with one line for each error in the text."""
    errors = [problem for problem in problems if problem.severity == "error"]
    lines = "".join(f"\n  {problem}" for problem in errors)
    return UsageError(f"{what} has {len(errors)} problem{'s' if errors[1:] else ''}:{lines}")


def unreadable(source: str, problems: Sequence[Problem]) -> UsageError:
    """Return the error for a text whose value cannot be read. A single problem is reported without a list."""
    if problems[1:]:
        return refusal(source, problems)
    return UsageError(f"{problems[0].place}: {problems[0].message}", hint=problems[0].hint)


class YamlNode:
    """A value with its place, and with the places of its keys and parts."""

    __slots__ = ("height", "key_places", "parts", "place", "value", "weight")

    def __init__(self, value: Any, place: Position, *, weight: int = 1, height: int = 0) -> None:
        self.value = value
        self.place = place
        self.weight = weight
        self.height = height
        self.parts: dict[str | int, YamlNode] = {}
        self.key_places: dict[str | int, Position] = {}

    def add(self, key: str | int, part: YamlNode, key_place: Position) -> None:
        self.parts[key] = part
        self.key_places[key] = key_place
        self.weight += part.weight + (len(key) if isinstance(key, str) else 0)
        self.height = max(self.height, part.height + 1)


class Marks:
    """Finds the place of any path in a value."""

    def __init__(self, root: YamlNode) -> None:
        self._root = root

    def at(self, path: Path, *, key: bool = False) -> Position:
        """Return the place of the value at `path`, or of its key. If the value is absent, return the place of the
        nearest part around it."""
        node, place = self._root, self._root.place
        for step in path:
            part = node.parts.get(step)
            if part is None:
                return place
            place = node.key_places[step] if key else part.place
            node = part
        return place


class Document(NamedTuple):
    """A parsed document. `node` is None if the text could not be read to its end."""

    node: YamlNode | None
    problems: list[Problem]


def load(
    text: str, *, source: str = "<text>", max_bytes: int = MAX_BYTES, include: Include | None = None
) -> Any:
    """Read one YAML document and return its value. Raise `UsageError` with every problem, each with file, line and
    column, if the document is invalid."""
    # Most agents' answers begin with simple `name: words` lines, and importing the parser takes longer than reading
    # these.
    if len(text) <= max_bytes:
        lines = [re.fullmatch(_FLAT, line) for line in text.removesuffix("\n").split("\n")]
        flat = {line[1]: _plain(line[2]) for line in lines if line}
        if len(flat) == len(lines):
            return flat
    node, problems = read(text, source=source, max_bytes=max_bytes, include=include)
    if problems or node is None:
        raise unreadable(source, problems)
    return node.value


def read(
    text: str, *, source: str = "<text>", max_bytes: int = MAX_BYTES, include: Include | None = None
) -> Document:
    """Read one YAML document with the places of all its parts, and collect every problem."""
    budget = _Budget(max_bytes, include)
    try:
        return Document(_Reader(text, (source,), budget).read_document(), budget.problems)
    except _Unreadable as exc:
        return Document(None, [*budget.problems, exc.problem])


def read_json_places(text: str, *, source: str) -> Document:
    """Read the places of all parts of a JSON text, and find keys that are given twice. Escapes, which YAML
    writes differently, are replaced by dots. The values therefore differ, and a key with an escape has the place of
    the object around it."""
    same_length = re.sub(r"\\(?:u[0-9a-fA-F]{4}|.)", lambda escape: "." * len(escape[0]), text)
    return read(same_length.replace("\t", " "), source=source, max_bytes=4 * len(text))


class _Unreadable(Exception):
    def __init__(self, place: Position, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.problem = Problem("error", message, *place, hint)


class _Budget:
    """What a document and its includes are still allowed to use."""

    def __init__(self, max_bytes: int, include: Include | None) -> None:
        self.max_bytes = max_bytes
        self.include = include
        self.bytes_left = max_bytes
        self.aliased_left = MAX_ALIASED
        self.problems: list[Problem] = []

    def report(self, place: Position, message: str, hint: str = "") -> None:
        self.problems.append(Problem("error", message, *place, hint))

    def take(self, text: str, place: Position) -> None:
        # A character takes at least one byte, so an enormous text is refused before it is encoded.
        size = len(text) if len(text) > self.max_bytes else len(text.encode("utf-8", "surrogatepass"))
        self.bytes_left -= size
        if self.bytes_left < 0:
            raise _Unreadable(place, f"the text is larger than {self.max_bytes:,} bytes")


class _Reader:
    """Builds the value of one file from the parser's events."""

    def __init__(self, text: str, files: tuple[str, ...], budget: _Budget) -> None:
        self._file = files[-1]
        self._files = files
        self._budget = budget
        self._anchors: dict[str, YamlNode | None] = {}
        budget.take(text, Position(self._file, 1, 1))
        self._events = _events(text.removeprefix("\ufeff"), self._file)
        self._event: Any = None

    def read_document(self) -> YamlNode:
        self._advance()  # to the start of the stream
        if self._advance() == "StreamEndEvent":
            return YamlNode(None, Position(self._file, 1, 1))
        self._advance()
        node = self._read_node(0)
        self._advance()  # to the end of the document
        if self._advance() != "StreamEndEvent":
            raise _Unreadable(
                self._place(), "a second document begins here", "Keep one document in one text."
            )
        return node

    def _advance(self) -> str:
        self._event = next(self._events)
        return type(self._event).__name__

    def _place(self) -> Position:
        mark = self._event.start_mark
        return Position(self._file, mark.line + 1, mark.column + 1)

    def _read_node(self, depth: int) -> YamlNode:
        """Read the node that begins at the current event. Afterwards, the current event is the last event of the
        node."""
        event, place = self._event, self._place()
        kind = type(event).__name__
        if depth > MAX_DEPTH:
            raise _Unreadable(place, f"the text nests deeper than {MAX_DEPTH} levels")
        if kind == "AliasEvent":
            return self._read_alias(event.anchor, place, depth)
        if event.anchor:
            self._anchors[event.anchor] = None
        if event.tag == "!include":
            node = self._include(place, kind, depth)
        elif kind == "ScalarEvent":
            node = self._read_scalar(place)
        else:
            core = "map" if kind == "MappingStartEvent" else "seq"
            if event.tag not in (None, "!", _CORE + core):
                self._budget.report(place, _unknown_tag(event.tag), _TAG_HINT)
            node = YamlNode({} if core == "map" else [], place)
            while self._advance() not in ("MappingEndEvent", "SequenceEndEvent"):
                if core == "map":
                    self._read_entry(node, depth)
                else:
                    part = self._read_node(depth + 1)
                    node.add(len(node.value), part, part.place)
                    node.value.append(part.value)
        if event.anchor:
            self._anchors[event.anchor] = node
        return node

    def _read_alias(self, anchor: str, place: Position, depth: int) -> YamlNode:
        if anchor not in self._anchors:
            raise _Unreadable(place, f"the alias *{anchor} has no anchor &{anchor} before it")
        node = self._anchors[anchor]
        if node is None:
            raise _Unreadable(place, f"the alias *{anchor} is inside its own anchor")
        self._budget.aliased_left -= node.weight
        if self._budget.aliased_left < 0:
            message = f"the aliases expand to more than {MAX_ALIASED:,} values and characters"
            raise _Unreadable(place, message, "Use fewer aliases.")
        if depth + node.height > MAX_DEPTH:
            raise _Unreadable(place, f"the alias *{anchor} nests the text deeper than {MAX_DEPTH} levels")
        return node

    def _read_scalar(self, place: Position) -> YamlNode:
        event = self._event
        value: Any = event.value
        tag = (event.tag or "").removeprefix(_CORE)
        is_plain = event.tag is None and event.implicit[0]
        if is_plain or (tag in ("int", "float", "bool", "null") and tag != event.tag):
            try:
                value = _plain(event.value)
            except ValueError as exc:
                self._budget.report(place, str(exc))
            if tag == "float" and type(value) is int:
                value = float(value)
            if not is_plain and ("null" if value is None else type(value).__name__) != tag:
                self._budget.report(place, f"{event.value[:40]!r} is not of the type !!{tag}")
        elif event.tag not in (None, "!", _CORE + "str"):
            self._budget.report(place, f"{_unknown_tag(event.tag)}. {_TAG_HINT}")
        return YamlNode(value, place, weight=1 + len(event.value))

    def _read_entry(self, node: YamlNode, depth: int) -> None:
        """Read a key and its value into a mapping. The key is the text as written, even if it looks like a value of
        another type."""
        event, place = self._event, self._place()
        if type(event).__name__ == "ScalarEvent" and event.tag in (None, "!", _CORE + "str"):
            key = event.value
            if event.anchor:
                self._anchors[event.anchor] = YamlNode(key, place, weight=1 + len(key))
        else:
            key = self._read_node(depth + 1).value
        if not isinstance(key, str):
            self._budget.report(
                place,
                "a key must be text, not a list, a mapping or another type",
                'Text that begins with { or [ needs quotes, a template too: "{{name}}".',
            )
            key = f"<key at {place.line}:{place.column}>"

        self._advance()
        part = self._read_node(depth + 1)
        if key in node.value:
            first = node.key_places[key]
            where = f"line {first.line}, column {first.column}"
            self._budget.report(place, f"the key {key!r} is given twice; the first is at {where}")
            return
        node.add(key, part, place)
        node.value[key] = part.value

    def _include(self, place: Position, kind: str, depth: int) -> YamlNode:
        if kind != "ScalarEvent":
            raise _Unreadable(place, "!include takes the path of a file")
        path: str = self._event.value
        try:
            if self._budget.include is None:
                raise UsageError("!include is not available here")
            file, text = self._budget.include(path, self._file)
            if file in self._files:
                raise UsageError(
                    f"!include {path!r} goes round in a circle: {' -> '.join((*self._files, file))}"
                )
            if len(self._files) > 20:
                raise UsageError(f"!include {file!r} is more than 20 files deep")
            start, ending = Position(file, 1, 1), file.lower()
            if ending.endswith((".yaml", ".yml")):
                node = _Reader(text, (*self._files, file), self._budget).read_document()
            else:
                self._budget.take(text, start)
                is_json = ending.endswith(".json")
                node = _read_json(text, start) if is_json else YamlNode(text, start, weight=1 + len(text))
            if depth + node.height > MAX_DEPTH:
                raise UsageError(f"!include {file!r} nests the text deeper than {MAX_DEPTH} levels")
            return node
        except UsageError as exc:
            self._budget.report(place, exc.message, exc.hint)
            return YamlNode(None, place)


def _events(text: str, file: str) -> Any:
    """Yield the parser's events for a text. Raise `_Unreadable` for every parser error."""

    def place_of(before: str) -> Position:
        return Position(file, before.count("\n") + 1, len(before) - before.rfind("\n"))

    try:
        # Encode the text here, to catch lone surrogates. The parser counts columns in characters for bytes, too.
        parser = _yaml.CParser(text.encode("utf-8"))
        while (event := parser.get_event()) is not None:
            yield event
    except UnicodeEncodeError as exc:
        raise _Unreadable(place_of(text[: exc.start]), "a lone surrogate is not text") from None
    except yaml.MarkedYAMLError as exc:
        mark = exc.problem_mark or exc.context_mark
        place = Position(file, mark.line + 1, mark.column + 1) if mark else Position(file, 1, 1)
        reason = ", ".join(part for part in (exc.context, exc.problem) if part) or "it cannot be read"
        hint = next((hint for part, hint in _SYNTAX_HINTS.items() if part in (exc.problem or "")), "")
        if "cannot start any token" in reason and text.startswith("\t", mark.index if mark else 0):
            hint = "Indent with spaces, not with tabs."
        raise _Unreadable(place, f"not valid YAML: {reason}", hint) from None
    except yaml.reader.ReaderError as exc:
        before = text.encode("utf-8")[: exc.position].decode("utf-8", "ignore")
        raise _Unreadable(place_of(before), f"not valid YAML: {exc.reason}") from None
    except yaml.YAMLError as exc:
        raise _Unreadable(Position(file, 1, 1), f"not valid YAML: {exc}") from None


_SYNTAX_HINTS = {
    "mapping values are not allowed": "Text that contains ': ' needs quotes, and a key on the line before a colon.",
    "cannot start any token": "Text that begins with this character needs quotes.",
    "could not find expected ':'": "A key needs a colon and a space after it. Look at this line and the one before.",
    "did not find expected": "Look at the indentation and the quotes on this line and the one before.",
}


_TAG_HINT = "Only the tags of the YAML core and, in workflows, !include are understood."


def _unknown_tag(tag: str) -> str:
    return f"the tag {tag.replace(_CORE, '!!')!r} is not accepted here"


def _plain(text: str) -> Any:
    """Return the value of an unquoted scalar in the YAML 1.2 core schema."""
    if text in _WORDS:
        return _WORDS[text]
    if text[0] not in "-+.0123456789":
        return text
    number = re.fullmatch(_NUMBER, text)
    if number is None:
        return text
    if len(text) > _MOST_DIGITS:
        raise ValueError(f"a number of {len(text)} digits is too long; quote it when text is meant")
    if number["integer"]:
        return int(text)
    return int(text, 0) if number["based"] else float(text)


def _read_json(text: str, place: Position) -> YamlNode:
    def pairs_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        value = dict(pairs)
        if len(value) != len(pairs):
            twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
            raise ValueError(f"the key {twice!r} is given twice in one object")
        return value

    def refuse(name: str) -> Any:
        raise ValueError(f"{name} is not a JSON value")

    def node_of(value: Any) -> YamlNode:
        if isinstance(value, str):
            value.encode()  # JSON can spell lone surrogates, which are not valid text
            return YamlNode(value, place, weight=1 + len(value))
        node = YamlNode(value, place)
        parts = (
            value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        )
        for key, part in parts:
            str(key).encode()
            node.add(key, node_of(part), place)
        return node

    text = text.removeprefix("\ufeff")
    try:
        return node_of(json.loads(text, object_pairs_hook=pairs_once, parse_constant=refuse))
    except json.JSONDecodeError as exc:
        raise UsageError(f"{place.file}:{exc.lineno}:{exc.colno}: not valid JSON: {exc.msg}") from None
    except (ValueError, RecursionError) as exc:
        raise UsageError(f"{place.file}: not valid JSON: {exc}") from None
