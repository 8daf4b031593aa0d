"""Read and validate the files of a catalogue, collecting every problem with its place.

Once all files are well formed, `catalog` and `vocabulary` check whether they agree with each other.
"""

from __future__ import annotations

import json
import os
from typing import Any, TypeVar

from rolecall.settings import form, yaml12
from rolecall.settings.form import At, Field, Form, Reading, Text, Unreadable
from rolecall.settings.yaml12 import Node, Path, Place, Problem

MAX_BYTES = 1_000_000
ID = Text("an id of lower-case letters, digits, _ and -", pattern=r"[a-z][a-z0-9_-]*")
SENTENCE = Text("text that is not empty", least=1)

T = TypeVar("T")


def require(**forms: Form[Any]) -> dict[str, Field | Form[Any]]:
    """Mark the fields as required."""
    return {name: Field(each, required=True) for name, each in forms.items()}


class Reader:
    """Reads the files of one folder, named with slashes, and collects their problems."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.problems: list[Problem] = []
        self._readings: dict[str, Reading] = {}

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

    def decode(self, name: str, content: bytes | None) -> str | None:
        try:
            return None if content is None else content.decode("utf-8-sig")
        except UnicodeDecodeError as exc:
            self.report(name, (), f"the file is not UTF-8: byte {exc.start}")
            return None

    def yaml(self, name: str, wanted: Form[T]) -> T | None:
        """The value of a YAML file, or None if it cannot be used; the reasons are added to the problems."""
        text = self.decode(name, self.raw(name))
        if text is None:
            return None
        node, problems = yaml12.read(text, source=self.path(name))
        if node is None:
            self.problems += problems
            return None
        reading = self._readings[name] = Reading(node, problems)
        value = wanted.read(node.value, At(reading))
        self.problems += form.in_order(reading.problems, self.path(name))
        return None if reading.problems or isinstance(value, Unreadable) else value

    def json(self, name: str, wanted: Form[T]) -> T | None:
        """Like `yaml`, for a JSON file; problems have paths instead of lines."""
        text = self.decode(name, self.raw(name))
        if text is None:
            return None
        try:
            loaded = form.load_value(wanted, json.loads(text), source=self.path(name))
        except (ValueError, RecursionError) as exc:
            self.report(name, (), f"not valid JSON: {exc}")
            return None
        self.problems += loaded.problems
        return None if loaded.problems else loaded.value

    def report(self, name: str, path: Path, message: str, hint: str = "") -> None:
        reading = self._readings.get(name) or Reading(Node(None, Place(self.path(name), 1, 1)))
        where = ".".join(str(step) for step in path)
        told = f"{where}: {message}" if where else message
        self.problems.append(Problem("error", told, *reading.place(path), hint))
