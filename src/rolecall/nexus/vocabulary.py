"""The vocabulary: the words that agents, skills and hosts share, and the reader of a catalogue's files.

The vocabulary contains capabilities, categories, resume tiers, tags, invocations and task exceptions. Ids, keys and the
values of choices are those of the shared format. The descriptions are each catalogue's own, and are kept only where
something shows them. The memory policy of a catalogue is not read: memory follows the policy of the contract.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from rolecall.nexus.tags import Tag
from rolecall.settings import form, yaml12
from rolecall.settings.capabilities import RESTRICTIONS
from rolecall.settings.form import At, Choice, Field, Flag, Form, ListOf, Reading, Record, Text
from rolecall.settings.yaml12 import Path, Position, Problem, YamlNode

CATEGORIES = ("how", "do", "check")
RESUME_TIERS = ("persistent", "bounded", "ephemeral")
MODEL_TIERS = ("high", "standard")
MAX_BYTES = 1_000_000
"""The maximum size of a file in bytes."""
T = TypeVar("T")


class Capability(NamedTuple):
    id: str
    blocks_semantic_classes: tuple[str, ...]


class Entry(NamedTuple):
    """A category, a resume tier or a task exception."""

    id: str
    description: str


class Parameter(NamedTuple):
    name: str
    description: str
    required: bool
    value_type: str = ""
    """The type of the value: `string` or `array`; any other text means any type."""


class Invocation(NamedTuple):
    id: str
    semantic_params: tuple[Parameter, ...]


class Vocabulary(NamedTuple):
    capabilities: Mapping[str, Capability]
    categories: Mapping[str, Entry]
    resume_tiers: Mapping[str, Entry]
    tags: Mapping[str, Tag]
    invocations: Mapping[str, Invocation]
    task_exceptions: Mapping[str, Entry]


class VocabularyReader:
    """A reader of the files in one folder, whose names have slashes. It collects the problems."""

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
            if len(content) <= MAX_BYTES:
                return content
            problem = f"the file is larger than {MAX_BYTES:,} bytes"
        except FileNotFoundError:
            problem = "the file is missing"
        except OSError as exc:
            problem = f"the file cannot be read: {exc.strerror or exc}"
        self.report(name, (), problem)
        return None

    def decode(self, name: str, content: bytes | None) -> str | None:
        try:
            return None if content is None else content.decode("utf-8-sig")
        except UnicodeDecodeError as exc:
            self.report(name, (), f"the file is not UTF-8: byte {exc.start}")
            return None

    def yaml(self, name: str, wanted: Form[T]) -> T | None:
        """Return the value of a YAML file, or None if the file has problems."""
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
        return None if reading.problems or isinstance(value, form.Unreadable) else value

    def json(self, name: str, wanted: Form[T]) -> T | None:
        """Return the value of a JSON file as `yaml` does for a YAML file."""
        text = self.decode(name, self.raw(name))
        if text is None:
            return None
        loaded = form.load_json(wanted, text, source=self.path(name))
        self.problems += loaded.problems
        return None if loaded.problems else loaded.value

    def report(self, name: str, path: Path, message: str, hint: str = "") -> None:
        reading = self._readings.get(name) or Reading(YamlNode(None, Position(self.path(name), 1, 1)))
        where = ".".join(str(step) for step in path)
        text = f"{where}: {message}" if where else message
        self.problems.append(Problem("error", text, *reading.place(path), hint))


# -- the form of the files --

ID = Text("an id of lower-case letters, digits, _ and -", pattern=r"[a-z][a-z0-9_-]*")
SENTENCE = Text("text that is not empty", least=1)
_SNAKE = Text("a name of lower-case letters, digits and _", pattern=r"[a-z][a-z0-9_]*")
_GUIDANCE = Text("text of at least 40 characters", least=40)
_DOTTED = Text("a name such as docs_only.coherent", pattern=r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)?")
_TRIGGER = Text("a tag such as [plan]", pattern=r"\[[a-z][a-z0-9_-]*(:[a-z0-9][a-z0-9_-]*)?\]")


def require(**forms: Form[Any]) -> dict[str, Field | Form[Any]]:
    """Mark the fields as required."""
    return {name: Field(each, required=True) for name, each in forms.items()}


def _keep(make: Callable[..., T], *names: str) -> Callable[..., T]:
    """Return a function that makes a value from some of the fields that are read."""
    return lambda **fields: make(**{name: fields[name] for name in names})


_SIMPLE = require(id=ID, description=SENTENCE)
_CAPABILITY = require(
    intent=_SNAKE,
    blocks_semantic_classes=ListOf(_SNAKE, "a list of at least one class", least=1),
    prose_guidance=_GUIDANCE,
)
_TAG = {
    **require(trigger=_TRIGGER, type=Choice("skill", "inline_action")),
    "skill": ID,
    "handler": SENTENCE,
    "variants": ListOf(SENTENCE),
    "prose_guidance": _GUIDANCE,
}
_PARAMETER = {**require(name=_SNAKE, description=SENTENCE, required=Flag()), "value_type": SENTENCE}
_INVOCATION = require(
    intent=_SNAKE,
    semantic_params=ListOf(Record(Parameter, "a parameter", _PARAMETER)),
    prose_guidance=_GUIDANCE,
    fallback_behavior=Text("text of at least 20 characters", least=20),
)
_EXCEPTION = require(id=_DOTTED, applies_when=SENTENCE, treatment=SENTENCE, rationale=SENTENCE)
_ENTRY = _keep(Entry, "id", "description")
_MAKE_CAPABILITY = _keep(Capability, "id", "blocks_semantic_classes")
_MAKE_INVOCATION = _keep(Invocation, "id", "semantic_params")
W = TypeVar("W", Capability, Entry, Tag, Invocation)


def file_of(part: str) -> str:
    return f"vocabulary/{part.replace('_', '-')}.yml"


def read(reader: VocabularyReader) -> Vocabulary | None:
    """Read the vocabulary in the reader's folder. Return None if a file is malformed."""
    capability = Record(_MAKE_CAPABILITY, "a capability", {**_SIMPLE, **_CAPABILITY})
    capabilities = _read_part(reader, "capabilities", capability)
    categories = _read_part(reader, "categories", Record(_ENTRY, "a category", _SIMPLE))
    tiers = _read_part(reader, "resume_tiers", Record(_ENTRY, "a resume tier", _SIMPLE))
    tags = _read_part(reader, "tags", Record(Tag, "a tag", {**_SIMPLE, **_TAG}))
    invocation = Record(_MAKE_INVOCATION, "an invocation", {**_SIMPLE, **_INVOCATION})
    invocations = _read_part(reader, "invocations", invocation)
    exception = Record(_ENTRY, "a task exception", {**_SIMPLE, **_EXCEPTION})
    exceptions = _read_part(reader, "task_exceptions", exception)
    if (
        capabilities is None
        or categories is None
        or tiers is None
        or tags is None
        or invocations is None
        or exceptions is None
    ):
        return None
    return Vocabulary(capabilities, categories, tiers, tags, invocations, exceptions)


def _read_part(reader: VocabularyReader, part: str, entry_form: Form[W]) -> dict[str, W] | None:
    """Return the entries of one file by their ids, or None if the file is malformed."""
    whole: Record[tuple[W, ...]] = Record(
        lambda **fields: fields[part], "the file", require(**{part: ListOf(entry_form)})
    )
    entries = reader.yaml(file_of(part), whole)
    if entries is None:
        return None
    found: dict[str, W] = {}
    for index, entry in enumerate(entries):
        if entry.id in found:
            reader.report(file_of(part), (part, index, "id"), f"the id {entry.id!r} is given twice")
        found[entry.id] = entry
    return found


def check(vocabulary: Vocabulary, reader: VocabularyReader) -> None:
    """Report contradictions between the files, or between a file and the restrictions that are enforced."""

    def report(part: str, *path: int | str, message: str) -> None:
        reader.report(file_of(part), (part, *path), message)

    for index, one in enumerate(vocabulary.capabilities.values()):
        # RESTRICTIONS determines what is enforced, so a file that differs would promise restrictions that do not exist.
        enforced = RESTRICTIONS.get(one.id)
        if enforced is not None and set(one.blocks_semantic_classes) != set(enforced):
            message = f"{one.id} is enforced as {', '.join(enforced)}, and the file names others"
            report("capabilities", index, "blocks_semantic_classes", message=message)

    triggers: set[str] = set()
    for index, tag in enumerate(vocabulary.tags.values()):
        needed = "skill" if tag.type == "skill" else "handler"
        if not getattr(tag, needed):
            report("tags", index, message=f"{needed!r} is missing, which the type {tag.type} needs")
        if tag.trigger in triggers:
            report("tags", index, "trigger", message=f"the trigger {tag.trigger} is given twice")
        if tag.variants and ":" in tag.trigger:
            message = f"the trigger {tag.trigger} is a variant itself and can have none"
            report("tags", index, "variants", message=message)
        triggers.add(tag.trigger)

    for index, invocation in enumerate(vocabulary.invocations.values()):
        names = [parameter.name for parameter in invocation.semantic_params]
        for number, name in enumerate(names):
            if name in names[:number]:
                message = f"the parameter {name!r} is given twice"
                report("invocations", index, "semantic_params", number, message=message)
