"""The vocabulary: the words agents, skills and hosts share, read from the files of a catalogue.

Capabilities, categories, resume tiers, tags, invocations, task exceptions and the memory policy, as values.
Ids, keys and the words of choices are those of the shared format; the sentences are each catalogue's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from rolecall.nexus.catalog_file import Reader, record
from rolecall.nexus.tags import Tag
from rolecall.settings.capabilities import RESTRICTIONS
from rolecall.settings.form import Choice, Flag, Form, ListOf, Text
from rolecall.settings.yaml12 import Path
from rolecall.store.schema import pattern_test

CATEGORIES = ("how", "do", "check")
RESUME_TIERS = ("persistent", "bounded", "ephemeral")
MODEL_TIERS = ("high", "standard")


class Capability(NamedTuple):
    id: str
    description: str
    intent: str
    blocks_semantic_classes: tuple[str, ...]
    prose_guidance: str


class Entry(NamedTuple):
    """A category or a resume tier."""

    id: str
    description: str


class Parameter(NamedTuple):
    name: str
    description: str
    required: bool
    value_type: str = ""
    """`string` or `array`; anything else leaves it open."""


class Invocation(NamedTuple):
    id: str
    description: str
    intent: str
    semantic_params: tuple[Parameter, ...]
    prose_guidance: str
    fallback_behavior: str


class TaskException(NamedTuple):
    id: str
    description: str
    applies_when: str
    treatment: str
    rationale: str


class MemoryCategory(NamedTuple):
    id: str
    prefix: str
    description: str


class MemoryPolicy(NamedTuple):
    categories: tuple[MemoryCategory, ...]
    name_pattern: str
    is_prefix_optional: bool
    scope: str
    """The folder whose files are counted when they are read."""
    is_deletion_manual: bool
    """Whether a person agrees to each deletion, unless the settings say otherwise."""
    texts: Mapping[str, str]
    """What the policy says in words, by section: naming, access_tracking, forgetting, merge."""


class Vocabulary(NamedTuple):
    capabilities: Mapping[str, Capability]
    categories: Mapping[str, Entry]
    resume_tiers: Mapping[str, Entry]
    tags: Mapping[str, Tag]
    invocations: Mapping[str, Invocation]
    task_exceptions: Mapping[str, TaskException]
    memory_policy: MemoryPolicy


# -- the form of the files --

ID = Text(pattern=r"[a-z][a-z0-9_-]*")
SENTENCE = Text("text that is not empty", least=1)
_SNAKE = Text(pattern=r"[a-z][a-z0-9_]*")
_GUIDANCE = Text(least=40)
_DOTTED = Text(pattern=r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)?")
_TRIGGER = Text(pattern=r"\[[a-z][a-z0-9_-]*(:[a-z0-9][a-z0-9_-]*)?\]")
_SIMPLE = {"id": ID, "description": SENTENCE}
_PARAMETER = record({"name": _SNAKE, "description": SENTENCE, "required": Flag()}, {"value_type": SENTENCE})
_CAPABILITY = record(
    {
        **_SIMPLE,
        "intent": _SNAKE,
        "blocks_semantic_classes": ListOf(_SNAKE, least=1),
        "prose_guidance": _GUIDANCE,
    }
)
_TAG = record(
    {**_SIMPLE, "trigger": _TRIGGER, "type": Choice("skill", "inline_action")},
    {"skill": ID, "handler": SENTENCE, "variants": ListOf(SENTENCE), "prose_guidance": _GUIDANCE},
)
_INVOCATION = record(
    {
        **_SIMPLE,
        "intent": _SNAKE,
        "semantic_params": ListOf(_PARAMETER),
        "prose_guidance": _GUIDANCE,
        "fallback_behavior": Text(least=20),
    }
)
_EXCEPTION = record(
    {"id": _DOTTED, **dict.fromkeys(("description", "applies_when", "treatment", "rationale"), SENTENCE)}
)
# A principle is a rule the memory follows; a policy with another one could not be kept to.
_MEMORY_POLICY = record(
    {
        "categories": ListOf(record({**_SIMPLE, "prefix": SENTENCE})),
        "naming": record({"pattern": SENTENCE, "description": SENTENCE, "optional_prefix": Flag()}),
        "access_tracking": record(
            {
                "observation_primitive": Choice("file_read"),
                "scope": SENTENCE,
                "description": SENTENCE,
                "information_accumulated": ListOf(record({"name": SENTENCE, "meaning": SENTENCE})),
                "storage_contract_reference": SENTENCE,
            }
        ),
        "forgetting": record(
            {
                "manual_gate_default": Flag(),
                "description": SENTENCE,
                "automatic_deletion_structure": record(
                    {
                        "principle": Choice("minimum_three_signal_intersection"),
                        "description": SENTENCE,
                    }
                ),
                "recoverable_deletion_requirement": Choice("git_commit"),
                "recoverable_deletion_description": SENTENCE,
            }
        ),
        "merge": record({"principle": Choice("merge_before_create"), "description": SENTENCE}),
    }
)


class _Part(NamedTuple):
    file: str
    form: Form[Any]
    made: Callable[..., Any]


_PARTS: Mapping[str, _Part] = {
    "capabilities": _Part("vocabulary/capabilities.yml", _CAPABILITY, Capability),
    "categories": _Part("vocabulary/categories.yml", record(_SIMPLE), Entry),
    "resume_tiers": _Part("vocabulary/resume-tiers.yml", record(_SIMPLE), Entry),
    "tags": _Part("vocabulary/tags.yml", _TAG, Tag),
    "invocations": _Part("vocabulary/invocations.yml", _INVOCATION, Invocation),
    "task_exceptions": _Part("vocabulary/task-exceptions.yml", _EXCEPTION, TaskException),
}
_POLICY_FILE = "vocabulary/memory_policy.yml"


# -- reading --


def read(reader: Reader) -> Vocabulary | None:
    """The vocabulary in the reader's folder; None when a file has not its form."""
    parts: dict[str, Any] = {key: _entries(reader, key, part) for key, part in _PARTS.items()}
    policy = reader.yaml(_POLICY_FILE, _MEMORY_POLICY)
    if policy is None or any(part is None for part in parts.values()):
        return None
    return Vocabulary(**parts, memory_policy=_policy(policy))


def _entries(reader: Reader, key: str, part: _Part) -> dict[str, Any] | None:
    value = reader.yaml(part.file, record({key: ListOf(part.form)}))
    if value is None:
        return None
    entries: dict[str, Any] = {}
    for index, entry in enumerate(value[key]):
        if entry["id"] in entries:
            reader.report(part.file, (key, index, "id"), f"the id {entry['id']!r} is given twice")
        entries[entry["id"]] = part.made(**{name: _frozen(name, held) for name, held in entry.items()})
    return entries


def _frozen(name: str, value: Any) -> Any:
    if name == "semantic_params":
        return tuple(Parameter(**one) for one in value)
    return tuple(value) if isinstance(value, list) else value


def _policy(value: Any) -> MemoryPolicy:
    return MemoryPolicy(
        categories=tuple(MemoryCategory(**one) for one in value["categories"]),
        name_pattern=value["naming"]["pattern"],
        is_prefix_optional=value["naming"]["optional_prefix"],
        scope=value["access_tracking"]["scope"],
        is_deletion_manual=value["forgetting"]["manual_gate_default"],
        texts={
            key: value[key]["description"] for key in ("naming", "access_tracking", "forgetting", "merge")
        },
    )


# -- agreement --


def check(vocabulary: Vocabulary, reader: Reader, *, is_ours: bool) -> None:
    """Report what the files say that contradicts each other, or what is enforced."""
    for part, found in (
        ("capabilities", _capability_faults(vocabulary)),
        ("tags", _tag_faults(vocabulary)),
        ("invocations", _invocation_faults(vocabulary)),
    ):
        for path, message in found:
            reader.report(_PARTS[part].file, (part, *path), message)
    if not is_ours:  # ours is tested, and skipping the regular expression engine saves start-up time
        for path, message in _policy_faults(vocabulary.memory_policy):
            reader.report(_POLICY_FILE, path, message)


def _capability_faults(vocabulary: Vocabulary) -> Iterator[tuple[Path, str]]:
    # Enforcement goes by RESTRICTIONS: a file that says otherwise would promise what nobody keeps.
    for index, one in enumerate(vocabulary.capabilities.values()):
        enforced = RESTRICTIONS.get(one.id)
        if enforced is not None and set(one.blocks_semantic_classes) != set(enforced):
            yield (
                (index, "blocks_semantic_classes"),
                f"{one.id} is enforced as {', '.join(enforced)}, and the file names others",
            )


def _tag_faults(vocabulary: Vocabulary) -> Iterator[tuple[Path, str]]:
    triggers: set[str] = set()
    for index, tag in enumerate(vocabulary.tags.values()):
        if not (tag.skill if tag.type == "skill" else tag.handler):
            needed = "skill" if tag.type == "skill" else "handler"
            yield (index,), f"{needed!r} is missing, which the type {tag.type} needs"
        if tag.trigger in triggers:
            yield (index, "trigger"), f"the trigger {tag.trigger} is given twice"
        if tag.variants and ":" in tag.trigger:
            yield (index, "variants"), f"the trigger {tag.trigger} is a variant itself and can have none"
        triggers.add(tag.trigger)


def _invocation_faults(vocabulary: Vocabulary) -> Iterator[tuple[Path, str]]:
    for index, one in enumerate(vocabulary.invocations.values()):
        names = [parameter.name for parameter in one.semantic_params]
        for number, name in enumerate(names):
            if name in names[:number]:
                yield (index, "semantic_params", number), f"the parameter {name!r} is given twice"


def _policy_faults(policy: MemoryPolicy) -> Iterator[tuple[Path, str]]:
    try:
        matches = pattern_test(policy.name_pattern)
    except ValueError:
        yield ("naming", "pattern"), f"{policy.name_pattern!r} is not a regular expression"
        return
    for index, category in enumerate(policy.categories):
        if not matches(f"{category.prefix}subject.md"):
            message = f"a name that begins with {category.prefix!r} does not match {policy.name_pattern}"
            yield ("categories", index, "prefix"), message
