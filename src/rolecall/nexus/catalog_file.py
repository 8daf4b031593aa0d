"""Files of a catalogue: read by their forms, every problem collected with its place.

A form says which keys and values a file has. Whether the files agree with each other is not known here;
`catalog.py` judges that when all of them have their form.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from rolecall.settings import yaml12
from rolecall.settings.form import At, Field, Form, Reading, Record
from rolecall.settings.yaml12 import Node, Path, Place, Problem

MAX_BYTES = 1_000_000


def record(needed: Mapping[str, Form[Any]], optional: Mapping[str, Form[Any]] | None = None) -> Record[Any]:
    """The form of a mapping with these keys and no others."""
    required = {key: Field(form, required=True) for key, form in needed.items()}
    return Record(dict, "the catalogue", {**required, **(optional or {})})


class Reader:
    """Reads files of one folder, by names with slashes, and collects what is wrong with them."""

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

    def text(self, name: str) -> str | None:
        content = self.raw(name)
        return None if content is None else self.decoded(name, content)

    def decoded(self, name: str, content: bytes) -> str | None:
        try:
            return content.decode("utf-8-sig")
        except UnicodeDecodeError as exc:
            self.report(name, (), f"the file is not UTF-8: byte {exc.start}")
            return None

    def yaml(self, name: str, form: Form[Any]) -> Any:
        """The value of a YAML file; None when it cannot be used, with the reasons among the problems."""
        text = self.text(name)
        if text is None:
            return None
        node, problems = yaml12.read(text, source=self.path(name))
        if node is None:
            self.problems += problems
            return None
        self._readings[name] = Reading(node, problems)
        return self._read(name, node.value, form)

    def json(self, name: str, form: Form[Any]) -> Any:
        """Like `yaml`, of a JSON file; its problems name paths instead of lines."""
        text = self.text(name)
        if text is None:
            return None
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as exc:
            self.report(name, (), f"not valid JSON: {exc}")
            return None
        self._readings[name] = Reading(Node(None, Place(self.path(name), 1, 1)))
        return self._read(name, value, form)

    def _read(self, name: str, value: Any, form: Form[Any]) -> Any:
        reading = self._readings[name]
        form.read(value, At(reading))
        self.problems += reading.problems
        return None if reading.problems else value

    def report(self, name: str, path: Path, message: str, hint: str = "") -> None:
        reading = self._readings.get(name)
        place = reading.place(path) if reading else Place(self.path(name), 1, 1)
        where = f"{'.'.join(map(str, path))}: " if path else ""
        self.problems.append(Problem("error", f"{where}{message}", *place, hint))
