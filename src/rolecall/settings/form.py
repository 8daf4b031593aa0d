"""The one reader for files that people write. Declare a form and read a value with it, and get every problem with its
place.

    HOOKS = Record(Hooks, "hooks", {
        "host": Text("an address such as 127.0.0.1"),
        "port": Number(whole=True, least=0, most=65535),
        "secret": Field(Text(), "What callers must send.", required=True, aliases=("token",)),
    })
    hooks, problems = form.load(HOOKS, text, source="hooks.yaml")
    hooks = form.load(HOOKS, text, source="hooks.yaml").require()       # or `UsageError` with every problem
    form.json_schema(HOOKS)                                             # for editors

A value that does not fit is reported and left out, so the dataclass that a `Record` makes supplies the default,
as it does for a key that is absent or null. A record without one of its required keys is left out itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypeVar

from rolecall.errors import UsageError
from rolecall.settings import yaml12
from rolecall.settings.yaml12 import Marks, Path, Position, Problem, YamlNode
from rolecall.store.lazy import Module

if TYPE_CHECKING:
    import difflib

    from rolecall.store.canonical import Schema
else:
    difflib = Module("difflib")

T = TypeVar("T")
U = TypeVar("U")

_MOST_NAMES = 100
"""The number of names that a hint lists. More names do not help, and a file can have thousands of problems."""


class Unreadable:
    """The type of `UNREADABLE`, which marks a value that does not fit its form. The reasons are among the problems."""


UNREADABLE = Unreadable()


class Reading:
    """A document that is being read, with the places of its parts and the problems found so far."""

    def __init__(
        self,
        root: YamlNode | Callable[[], YamlNode],
        problems: Iterable[Problem] = (),
        *,
        hides_texts: bool = False,
    ) -> None:
        """`root` has the places of all parts; a function in its place is called only if there is a problem. With
        `hides_texts`, problems show no text from the document, because it might be a secret in the wrong place."""
        self.problems = list(problems)
        self.hides_texts = hides_texts
        self.wrong: list[Path] = []
        """The path of every error, including further errors in the same place."""
        self.written: dict[Path, Path] = {}
        """Maps the path of a part to its path in the text if the two differ."""
        self._root = root
        self._unreadable_places = {problem[2:5] for problem in self.problems}

    def place(self, path: Path, *, key: bool = False) -> Position:
        for length in range(len(path), 0, -1):
            if path[:length] in self.written:
                path = (*self.written[path[:length]], *path[length:])
                break
        if not isinstance(self._root, YamlNode):
            self._root = self._root()
        return Marks(self._root).at(path, key=key)


class At:
    """A part of a document, with its path and a way to report problems with it."""

    def __init__(self, reading: Reading, path: Path = ()) -> None:
        self.reading = reading
        self.path = path

    def __truediv__(self, step: str | int) -> At:
        return At(self.reading, (*self.path, step))

    def __str__(self) -> str:
        return ".".join(map(str, self.path)) or "the text"

    def report(
        self,
        message: str,
        hint: str = "",
        *,
        key: bool = False,
        severity: Literal["error", "warning"] = "error",
    ) -> Unreadable:
        """Report a problem with this part (or, if `key` is true, with its key), unless the YAML itself is invalid
        there."""
        if severity == "error":
            self.reading.wrong.append(self.path)
        place = self.reading.place(self.path, key=key)
        if place not in self.reading._unreadable_places:
            self.reading.problems.append(Problem(severity, message, *place, hint))
        return UNREADABLE

    def expect(self, wanted: str, value: Any, hint: str = "") -> Unreadable:
        is_hidden = self.reading.hides_texts and isinstance(value, str)
        return self.report(f"{self} must be {wanted}{'' if is_hidden else f', not {describe(value)}'}", hint)


class Form(Generic[T]):
    """The shape that a value must have. Subclass it to define your own forms."""

    def read(self, value: Any, at: At) -> T | Unreadable:
        """Return the value, or report the reason and return UNREADABLE."""
        raise NotImplementedError

    def schema(self) -> Schema:
        """Return the JSON Schema of the accepted values."""
        raise NotImplementedError


class Text(Form[str]):
    def __init__(
        self,
        wanted: str = "",
        *,
        pattern: str = "",
        least: int = 0,
        most: int | None = None,
        is_line: bool = False,
        is_secret: bool = False,
        hint: str = "",
    ) -> None:
        """`least` and `most` limit the length; `least` does not count blanks at the ends. With `is_line`, the text must
        be printable and not empty. Problems never show the value of a secret."""
        self.pattern, self.hint, self.is_secret = pattern, hint, is_secret
        self.least, self.most, self.is_line = max(least, int(is_line)), most, is_line
        bounds = [f"at least {least} characters"] if least > 1 else []
        bounds += [f"at most {most:,} characters"] if most is not None else []
        bounded = f"text of {' and '.join(bounds)}" if bounds else "text"
        self.wanted = wanted or (f"text that matches {pattern}" if pattern else bounded)

    def read(self, value: Any, at: At) -> str | Unreadable:
        if (
            isinstance(value, str)
            and len(value.strip()) >= self.least
            and (self.most is None or len(value) <= self.most)
            and (not self.pattern or re.fullmatch(self.pattern, value))
            and (not self.is_line or value.isprintable())
        ):
            return value
        if self.is_secret:
            return at.report(f"{at} must be {self.wanted}", self.hint)
        return at.expect(self.wanted, value, self.hint)

    def schema(self) -> Schema:
        bounds = {"minLength": self.least or None, "maxLength": self.most}
        found = {"type": "string", "pattern": self.pattern and f"^(?:{self.pattern})$", **bounds}
        return {key: value for key, value in found.items() if value}


class AnyText(Form[str]):
    """A text; a number or a flag is read as text."""

    def read(self, value: Any, at: At) -> Any:
        return str(value) if isinstance(value, (str, int, float)) else at.expect("text", value)

    def schema(self) -> Schema:
        return {"type": ["string", "number", "boolean"]}


class Choice(Form[Any]):
    """One of a few words."""

    def __init__(self, *words: str, wanted: str = "", hint: str = "") -> None:
        self.words, self.hint = words, hint
        self.wanted = wanted or f"one of {', '.join(self.words)}"

    def read(self, value: Any, at: At) -> Any:
        if isinstance(value, str) and value in self.words:
            return value
        hint = self.hint or (did_you_mean(value, self.words) if isinstance(value, str) else "")
        return at.expect(self.wanted, value, hint)

    def schema(self) -> Schema:
        return {"enum": list(self.words)}


class Flag(Form[bool]):
    """True or false."""

    def read(self, value: Any, at: At) -> bool | Unreadable:
        return value if isinstance(value, bool) else at.expect("true or false", value)

    def schema(self) -> Schema:
        return {"type": "boolean"}


class Number(Form[Any]):
    def __init__(
        self,
        wanted: str = "",
        *,
        whole: bool = False,
        least: float | None = None,
        above: float | None = None,
        most: float | None = None,
        hint: str = "",
    ) -> None:
        self.whole, self.least, self.above, self.most, self.hint = whole, least, above, most, hint
        bounds = ""
        if above is not None:
            bounds = f" above {above:,}"
        elif most is not None:
            bounds = f" from {least or 0:,} to {most:,}"
        elif least is not None:
            bounds = f" of {least:,} or more"
        self.wanted = wanted or f"a {'whole ' if whole else ''}number{bounds}"

    def fits(self, value: Any) -> bool:
        is_number = isinstance(value, int if self.whole else (int, float)) and not isinstance(value, bool)
        return is_number and (
            (self.least is None or value >= self.least)
            and (self.above is None or value > self.above)
            and (value <= self.most if self.most is not None else abs(value) < float("inf"))
        )

    def read(self, value: Any, at: At) -> Any:
        return value if self.fits(value) else at.expect(self.wanted, value, self.hint)

    def schema(self) -> Schema:
        bounds = {"minimum": self.least, "exclusiveMinimum": self.above, "maximum": self.most}
        kind = "integer" if self.whole else "number"
        return {"type": kind, **{key: value for key, value in bounds.items() if value is not None}}


class Anything(Form[Any]):
    """Any value at all."""

    def read(self, value: Any, at: At) -> Any:  # noqa: ARG002
        return value

    def schema(self) -> Schema:
        return {}


class RefusedKey(Form[Any]):
    """A key that must not be used. `message` gives the reason."""

    def __init__(self, message: str, hint: str = "") -> None:
        self.message, self.hint = message, hint

    def read(self, value: Any, at: At) -> Unreadable:  # noqa: ARG002
        return at.report(self.message, self.hint, key=True)

    def schema(self) -> Schema:
        return {"not": {}}


class ListOf(Form[tuple[T, ...]]):
    def __init__(
        self, item: Form[T], wanted: str = "", *, least: int = 0, allow_single: bool = False, hint: str = ""
    ) -> None:
        """With `allow_single`, one text is accepted in place of a list of one text."""
        self.item, self.least, self.hint, self.allow_single = item, least, hint, allow_single
        entries = f" of at least {least} {'entry' if least == 1 else 'entries'}" if least else ""
        self.wanted = wanted or f"a list{entries}"

    def read(self, value: Any, at: At) -> tuple[T, ...] | Unreadable:
        if self.allow_single and isinstance(value, str):
            item = self.item.read(value, at)
            return UNREADABLE if isinstance(item, Unreadable) else (item,)
        if not isinstance(value, list) or len(value) < self.least:
            return at.expect(self.wanted, value, self.hint)
        items = [self.item.read(item, at / index) for index, item in enumerate(value)]
        return tuple(item for item in items if not isinstance(item, Unreadable))

    def schema(self) -> Schema:
        schema: Schema = {"type": "array", "items": self.item.schema()}
        if self.least:
            schema["minItems"] = self.least
        return {"anyOf": [{**self.item.schema(), "type": "string"}, schema]} if self.allow_single else schema


class MapOf(Form[dict[str, T]]):
    """A mapping whose keys the user chooses."""

    def __init__(
        self,
        item: Form[T],
        wanted: str = "a mapping",
        *,
        key: str = "",
        key_wanted: str = "",
        least: int = 0,
        hint: str = "",
    ) -> None:
        """`key` is a regular expression for the names, and `key_wanted` describes it in words."""
        self.item, self.wanted, self.hint, self.least = item, wanted, hint, least
        self.key, self.key_wanted = key, key_wanted

    def read(self, value: Any, at: At) -> dict[str, T] | Unreadable:
        if not isinstance(value, Mapping) or len(value) < self.least:
            return at.expect(self.wanted, value, self.hint)
        found: dict[str, T] = {}
        for name, item in value.items():
            if self.key and not re.fullmatch(self.key, name):
                (at / name).report(f"the name {name[:80]!r} is not accepted", self.key_wanted, key=True)
            read = self.item.read(item, at / name)
            if not isinstance(read, Unreadable):
                found[name] = read
        return found

    def schema(self) -> Schema:
        schema: Schema = {"type": "object", "additionalProperties": self.item.schema()}
        if self.key:
            schema["propertyNames"] = {"pattern": f"^(?:{self.key})$"}
        return {**schema, "minProperties": self.least} if self.least else schema


class Field(NamedTuple):
    """One key of a record."""

    form: Form[Any]
    description: str = ""
    required: bool = False
    to: str = ""
    """The parameter that receives the value, if its name differs from the key."""
    aliases: tuple[str, ...] = ()
    """Older names of the key, which are read but never written."""
    default: Any = UNREADABLE
    """A replacement for a value that is absent or does not fit, if `make` has no default of its own."""
    hint: str = ""
    """What to do if the key is required but missing."""
    nullable: bool = True
    """Whether null means that the key is not given."""


class Record(Form[T]):
    """A mapping with known keys, from which `make(**fields)` makes a value."""

    def __init__(
        self,
        make: Callable[..., T],
        owner: str,
        fields: Mapping[str, Field | Form[Any]],
        *,
        others: Form[Any] | None = None,
        check: Callable[[T, At], None] | None = None,
        wanted: str = "a mapping",
        hint: str = "",
    ) -> None:
        """`owner` names the record in problems, such as "a role". `others` is the form for all other keys; without it,
        other keys are problems. `check` reports problems that concern several fields."""
        self.make, self.owner, self.others, self.check = make, owner, others, check
        self.wanted, self.hint = wanted, hint
        self.fields = {
            name: field if isinstance(field, Field) else Field(field) for name, field in fields.items()
        }

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(name for name, field in self.fields.items() if not isinstance(field.form, RefusedKey))

    def read(self, value: Any, at: At) -> T | Unreadable:
        if not isinstance(value, Mapping):
            return at.expect(self.wanted, value, self.hint)
        found: dict[str, Any] = {}
        is_whole = True
        for name, field in self.fields.items():
            given = [key for key in (name, *field.aliases) if key in value]
            if len(given) > 1:
                message = f"{given[1]!r} means the same as {given[0]!r}, so {self.owner} has it twice"
                (at / given[1]).report(message, "Keep one of them.", key=True)
            read: Any = UNREADABLE
            if given and (value[given[0]] is not None or not field.nullable):
                if given[0] != name:
                    at.reading.written[(*at.path, name)] = (*at.path, given[0])
                read = field.form.read(value[given[0]], at / given[0])
            elif field.required:
                hint = field.hint or f"Keys of {self.owner}: {', '.join(self.keys)}."
                at.report(f"{name!r} is missing{f' in {at}' if at.path else ''}", hint, key=True)
            read = field.default if isinstance(read, Unreadable) else read
            if not isinstance(read, Unreadable):
                found[field.to or name] = read
            elif field.required:
                is_whole = False
        known = {key for name, field in self.fields.items() for key in (name, *field.aliases)}
        for key in value:
            if key in known:
                continue
            if self.others is None:
                hint = did_you_mean(key, self.keys, what="Keys")
                (at / key).report(f"{key!r} is not a key of {self.owner}", hint, key=True)
            elif not isinstance(read := self.others.read(value[key], at / key), Unreadable):
                found[key] = read
        if not is_whole:
            return UNREADABLE
        made = self.make(**found)
        if self.check is not None:
            self.check(made, at)
        return made

    def schema(self) -> Schema:
        properties: Schema = {}
        required: list[str] = []
        choices: list[Schema] = []
        for name, field in self.fields.items():
            schema = field.form.schema()
            if field.nullable and not field.required:  # null is accepted, too
                if "enum" in schema:
                    schema = {**schema, "enum": [*schema["enum"], None]}
                elif isinstance(schema.get("type"), str):
                    schema = {**schema, "type": [schema["type"], "null"]}
                elif schema and "not" not in schema:
                    schema = {"anyOf": [schema, {"type": "null"}]}
            if field.description:
                schema = {**schema, "description": field.description}
            properties[name] = schema
            properties |= {alias: {**schema, "deprecated": True} for alias in field.aliases}
            if field.required and field.aliases:
                choices.append({"oneOf": [{"required": [key]} for key in (name, *field.aliases)]})
            elif field.required:
                required.append(name)
        found: Schema = {"type": "object", "properties": properties, "required": required}
        found["additionalProperties"] = False if self.others is None else self.others.schema()
        return {**found, "allOf": choices} if choices else found


class Section(Record[dict[str, Any]]):
    """A record that stays a mapping. Its values are checked."""

    def __init__(self, owner: str, fields: Mapping[str, Field | Form[Any]], **options: Any) -> None:
        super().__init__(dict, owner, fields, **options)


class Either(Form[Any]):
    """One of several forms, chosen by the type of the value: `Either("a role, or {role, prompt}", {str: …, dict:
    …})`."""

    def __init__(self, wanted: str, forms: Mapping[type, Form[Any]], *, hint: str = "") -> None:
        self.wanted, self.forms, self.hint = wanted, forms, hint

    def read(self, value: Any, at: At) -> Any:
        form = self.forms.get(type(value))
        return form.read(value, at) if form else at.expect(self.wanted, value, self.hint)

    def schema(self) -> Schema:
        return {"anyOf": [form.schema() for form in self.forms.values()]}


class Converted(Form[U]):
    """A form whose value is converted. `convert` raises `UsageError` for a value that it cannot use."""

    def __init__(self, form: Form[T], convert: Callable[[T], U]) -> None:
        self.form, self.convert = form, convert

    def read(self, value: Any, at: At) -> U | Unreadable:
        read = self.form.read(value, at)
        if isinstance(read, Unreadable):
            return read
        try:
            return self.convert(read)
        except UsageError as error:
            return at.report(f"{at} {error.message}", error.hint)

    def schema(self) -> Schema:
        return self.form.schema()


class Loaded(NamedTuple, Generic[T]):
    """The value, or None if it could not be read, with every problem in the order of the text."""

    value: T | None
    problems: tuple[Problem, ...]

    def require(self, what: str = "") -> T:
        """Return the value, or raise `UsageError` with every error on its own line. `what` names the document."""
        errors = [problem for problem in self.problems if problem.severity == "error"]
        if self.value is None or errors:
            lines = "".join(f"\n  {problem}" for problem in errors)
            raise UsageError(f"{what or errors[0].file} cannot be used:{lines}")
        return self.value


def load(
    form: Form[T],
    text: str,
    *,
    source: str,
    section: str = "",
    include: yaml12.Include | None = None,
    max_bytes: int = yaml12.MAX_BYTES,
    hides_texts: bool = False,
) -> Loaded[T]:
    """Read the value of a YAML text, or of one section of the text."""
    node, problems = yaml12.read(text, source=source, include=include, max_bytes=max_bytes)
    if node is None:
        return Loaded(None, tuple(problems))
    reading = Reading(node, problems, hides_texts=hides_texts)
    at, value = At(reading), node.value
    if section:
        at, value = at / section, value.get(section) if isinstance(value, dict) else None
    read = form.read(value, at)
    return Loaded(None if isinstance(read, Unreadable) else read, in_order(reading.problems, source))


def load_json(form: Form[T], text: str, *, source: str) -> Loaded[T]:
    """Read the value of a JSON text."""
    try:
        value, has_repeats = parse_json(text)
    except ValueError as error:
        line, column = getattr(error, "lineno", 0), getattr(error, "colno", 0)
        message = f"not valid JSON: {getattr(error, 'msg', error)}"
        return Loaded(None, (Problem("error", message, source, line, column),))

    def find_places() -> YamlNode:
        return yaml12.read_json_places(text, source=source).node or YamlNode(None, Position(source, 0, 0))

    problems = yaml12.read_json_places(text, source=source).problems if has_repeats else ()
    reading = Reading(find_places, problems)
    read = form.read(value, At(reading))
    return Loaded(None if isinstance(read, Unreadable) else read, in_order(reading.problems, source))


def parse_json(text: str) -> tuple[Any, bool]:
    """Return the value of a JSON text, and whether a key is given twice in one object. Raise `ValueError` if the text
    is not valid JSON."""
    has_repeats = False

    def make_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal has_repeats
        value = dict(pairs)
        has_repeats |= len(value) != len(pairs)
        return value

    def refuse(name: str) -> Any:
        raise ValueError(f"{name} is not a JSON value")

    try:
        value = json.loads(text.removeprefix("\ufeff"), object_pairs_hook=make_object, parse_constant=refuse)
    except RecursionError:
        raise ValueError("it nests too deep") from None
    return value, has_repeats


def load_value(
    form: Form[T], value: Any, *, source: str = "", path: Path = (), hides_texts: bool = False
) -> Loaded[T]:
    """Read a value that was not parsed from a text. Problems name paths, which begin with `path`, instead of lines."""
    reading = Reading(YamlNode(None, Position(source, 1, 1)), hides_texts=hides_texts)
    read = form.read(value, At(reading, path))
    return Loaded(None if isinstance(read, Unreadable) else read, tuple(reading.problems))


def check_value(form: Form[T], value: Any, path: Path) -> T:
    """Read a parsed value, or raise `UsageError` with the first problem."""
    loaded: Loaded[T] = load_value(form, value, path=path)
    if loaded.problems:
        raise UsageError(loaded.problems[0].message, hint=loaded.problems[0].hint)
    return loaded.require()


def in_order(problems: Iterable[Problem], source: str) -> tuple[Problem, ...]:
    """Return each problem once, in the order of the text, with the problems of included files last."""
    return tuple(
        sorted(set(problems), key=lambda one: (one.file != source, *one[2:5], one.severity, one.message))
    )


def json_schema(form: Form[Any], title: str) -> Schema:
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": title, **form.schema()}


def did_you_mean(name: str, known: Iterable[str], *, what: str = "") -> str:
    """Return the hint for an unknown name: the closest known name, then all known names under the heading `what`."""
    names = list(dict.fromkeys(islice(known, _MOST_NAMES + 1)))
    more = ", …" if names[_MOST_NAMES:] else ""
    names = names[:_MOST_NAMES]
    folded = {other.casefold().lstrip("$"): other for other in names}
    near = folded.get(name.casefold().lstrip("$")) or next(
        iter(difflib.get_close_matches(name, names, n=1)), None
    )
    guess = f"Did you mean {near!r}?" if near else ""
    listed = f"{what}: {', '.join(names) or 'none'}{more}." if what else ""
    return f"{guess} {listed}".strip()


def describe(value: Any) -> str:
    """Describe a value in a few words, for "must be X, not …"."""
    if value is None:
        return "empty"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (dict, list)):
        kind = "mapping" if isinstance(value, dict) else "list"
        return f"a {kind}" if value else f"an empty {kind}"
    return (str if isinstance(value, (int, float)) else repr)(value)[:80]
