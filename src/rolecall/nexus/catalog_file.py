"""Files of a catalogue: read, held against the form they must have, every problem collected with its place.

A form says which keys and values a file has. Whether the files agree with each other is not known here;
`catalog.py` judges that when all of them have their form.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from rolecall.settings import yaml12
from rolecall.settings.yaml12 import Marks, Path, Problem

MAX_BYTES = 1_000_000


class Text(NamedTuple):
    pattern: str = ""
    least: int = 1
    most: int = MAX_BYTES
    words: tuple[str, ...] = ()
    """The only texts that are accepted, when there are any."""


class Flag(NamedTuple):
    """True or false."""


class Many(NamedTuple):
    of: Form
    least: int = 0


class Record(NamedTuple):
    needed: Mapping[str, Form]
    optional: Mapping[str, Form] = {}


class Unread(NamedTuple):
    """Whatever stands there; nobody looks at it."""


Form = Text | Flag | Many | Record | Unread


class Misfit(NamedTuple):
    path: Path
    message: str
    hint: str = ""
    is_key: bool = False
    """Whether the key is wrong and not what it holds."""


def misfits(value: Any, form: Form, path: Path = ()) -> Iterator[Misfit]:
    """Everything in `value` that does not have the form."""
    match form:
        case Text():
            yield from _text_misfits(value, form, path)
        case Flag():
            if not isinstance(value, bool):
                yield Misfit(path, f"must be true or false, not {_named(value)}")
        case Many():
            yield from _list_misfits(value, form, path)
        case Record():
            yield from _record_misfits(value, form, path)


def _text_misfits(value: Any, form: Text, path: Path) -> Iterator[Misfit]:
    if not isinstance(value, str):
        yield Misfit(path, f"must be text, not {_named(value)}")
    elif len(value.strip()) < form.least:
        at_least = f"at least {form.least} characters" if form.least > 1 else "text that is not empty"
        yield Misfit(path, f"must be {at_least}")
    elif len(value) > form.most:
        yield Misfit(path, f"must be at most {form.most} characters, not {len(value)}")
    elif form.words and value not in form.words:
        yield Misfit(path, f"must be one of {', '.join(form.words)}, not {value!r}")
    elif form.pattern and not re.fullmatch(form.pattern, value):
        yield Misfit(path, f"{value!r} must match {form.pattern}")


def _list_misfits(value: Any, form: Many, path: Path) -> Iterator[Misfit]:
    if not isinstance(value, list):
        yield Misfit(path, f"must be a list, not {_named(value)}")
        return
    if len(value) < form.least:
        yield Misfit(path, f"must have at least {form.least} {'entry' if form.least == 1 else 'entries'}")
    for index, part in enumerate(value):
        yield from misfits(part, form.of, (*path, index))


def _record_misfits(value: Any, form: Record, path: Path) -> Iterator[Misfit]:
    if not isinstance(value, dict):
        yield Misfit(path, f"must be a mapping, not {_named(value)}")
        return
    forms = {**form.needed, **form.optional}
    for key in form.needed:
        if key not in value:
            yield Misfit(path, f"{key!r} is missing")
    for key, part in value.items():
        if key in forms:
            yield from misfits(part, forms[key], (*path, key))
        else:
            yield Misfit((*path, key), f"the key {key!r} is not known", near(key, forms, what="Keys"), True)


def _named(value: Any) -> str:
    names = {dict: "a mapping", list: "a list", bool: "true or false", str: "text", type(None): "nothing"}
    return names.get(type(value), "a number")


def near(name: str, known: Mapping[str, Any] | list[str], *, what: str) -> str:
    """The hint for a name that is not known."""
    from rolecall.settings.form import did_you_mean

    return did_you_mean(name, known, what=what)


class Reader:
    """Reads files of one folder, by names with slashes, and collects what is wrong with them."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.problems: list[Problem] = []
        self._marks: dict[str, Marks] = {}

    def path(self, name: str) -> str:
        return os.path.join(self.folder, *name.split("/"))

    def raw(self, name: str) -> bytes | None:
        try:
            with open(self.path(name), "rb") as file:
                content = file.read(MAX_BYTES + 1)
        except FileNotFoundError:
            self.report(name, (), "the file is missing")
        except OSError as exc:
            self.report(name, (), f"the file cannot be read: {exc.strerror or exc}")
        else:
            if len(content) <= MAX_BYTES:
                return content
            self.report(name, (), f"the file is larger than {MAX_BYTES:,} bytes")
        return None

    def text(self, name: str) -> str | None:
        content = self.raw(name)
        return None if content is None else self.decoded(name, content)

    def decoded(self, name: str, content: bytes) -> str | None:
        try:
            return content.decode("utf-8-sig")
        except UnicodeDecodeError as exc:
            self.report(name, (), f"the file is not UTF-8: byte {exc.start}")
            return None

    def yaml(self, name: str, form: Form) -> Any:
        """The value of a YAML file; None when it cannot be used, with the reasons among the problems."""
        text = self.text(name)
        if text is None:
            return None
        node, problems = yaml12.read(text, source=self.path(name))
        self.problems += problems
        if node is None:
            return None
        self._marks[name] = Marks(node)
        found = [*problems, *self._fitted(name, node.value, form)]
        return None if found else node.value

    def json(self, name: str, form: Form) -> Any:
        """Like `yaml`, of a JSON file; its problems name paths instead of lines."""
        import json

        text = self.text(name)
        if text is None:
            return None
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as exc:
            self.report(name, (), f"not valid JSON: {exc}")
            return None
        return None if self._fitted(name, value, form) else value

    def _fitted(self, name: str, value: Any, form: Form) -> list[Misfit]:
        found = list(misfits(value, form))
        for misfit in found:
            self.report(name, misfit.path, misfit.message, misfit.hint, is_key=misfit.is_key)
        return found

    def report(self, name: str, path: Path, message: str, hint: str = "", *, is_key: bool = False) -> None:
        marks = self._marks.get(name)
        file, line, column = marks.at(path, key=is_key) if marks else (self.path(name), 1, 1)
        where = ".".join(str(step) for step in path)
        told = f"{where}: {message}" if where else message
        self.problems.append(Problem("error", told, file, line, column, hint))
