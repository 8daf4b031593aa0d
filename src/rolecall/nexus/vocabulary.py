"""The vocabulary: the words that agents, skills and hosts share, read from the files of a catalogue.

It contains capabilities, categories, resume tiers, tags, invocations, task exceptions and the memory policy. Ids, keys
and the values of choices are those of the shared format; the descriptions are each catalogue's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from rolecall.nexus.catalog_file import ID, SENTENCE, Reader, require
from rolecall.nexus.tags import Tag
from rolecall.settings.capabilities import RESTRICTIONS
from rolecall.settings.form import Choice, Flag, Form, ListOf, Record, Text
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
    """`string` or `array`; any other value means any type."""


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
    """The folder in which reads of files are counted."""
    is_deletion_manual: bool
    """Whether a person must approve each deletion, unless the settings say otherwise."""
    texts: Mapping[str, str]
    """The policy's texts by section: naming, access_tracking, forgetting, merge."""


class Vocabulary(NamedTuple):
    capabilities: Mapping[str, Capability]
    categories: Mapping[str, Entry]
    resume_tiers: Mapping[str, Entry]
    tags: Mapping[str, Tag]
    invocations: Mapping[str, Invocation]
    task_exceptions: Mapping[str, TaskException]
    memory_policy: MemoryPolicy


# -- the form of the files --

_SNAKE = Text("a name of lower-case letters, digits and _", pattern=r"[a-z][a-z0-9_]*")
_GUIDANCE = Text("text of at least 40 characters", least=40)
_DOTTED = Text("a name such as docs_only.coherent", pattern=r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)?")
_TRIGGER = Text("a tag such as [plan]", pattern=r"\[[a-z][a-z0-9_-]*(:[a-z0-9][a-z0-9_-]*)?\]")
_SIMPLE = require(id=ID, description=SENTENCE)


def _make_policy(
    categories: tuple[MemoryCategory, ...],
    naming: dict[str, Any],
    access_tracking: dict[str, Any],
    forgetting: dict[str, Any],
    merge: dict[str, Any],
) -> MemoryPolicy:
    sections = {
        "naming": naming,
        "access_tracking": access_tracking,
        "forgetting": forgetting,
        "merge": merge,
    }
    return MemoryPolicy(
        categories=categories,
        name_pattern=naming["pattern"],
        is_prefix_optional=naming["optional_prefix"],
        scope=access_tracking["scope"],
        is_deletion_manual=forgetting["manual_gate_default"],
        texts={name: section["description"] for name, section in sections.items()},
    )


def _section(**forms: Form[Any]) -> Record[dict[str, Any]]:
    return Record(dict, "the memory policy", require(**forms))


# The principles are rules that memory follows, so a policy with other principles could not be honoured.
_MEMORY_POLICY = Record(
    _make_policy,
    "the memory policy",
    require(
        categories=ListOf(Record(MemoryCategory, "a category", {**_SIMPLE, **require(prefix=SENTENCE)})),
        naming=_section(pattern=SENTENCE, description=SENTENCE, optional_prefix=Flag()),
        access_tracking=_section(
            observation_primitive=Choice("file_read"),
            scope=SENTENCE,
            description=SENTENCE,
            information_accumulated=ListOf(_section(name=SENTENCE, meaning=SENTENCE)),
            storage_contract_reference=SENTENCE,
        ),
        forgetting=_section(
            manual_gate_default=Flag(),
            description=SENTENCE,
            automatic_deletion_structure=_section(
                principle=Choice("minimum_three_signal_intersection"), description=SENTENCE
            ),
            recoverable_deletion_requirement=Choice("git_commit"),
            recoverable_deletion_description=SENTENCE,
        ),
        merge=_section(principle=Choice("merge_before_create"), description=SENTENCE),
    ),
)
_PARAMETER = Record(
    Parameter,
    "a parameter",
    {**require(name=_SNAKE, description=SENTENCE, required=Flag()), "value_type": SENTENCE},
)
_EXCEPTION = require(
    id=_DOTTED, description=SENTENCE, applies_when=SENTENCE, treatment=SENTENCE, rationale=SENTENCE
)
_PARTS: Mapping[str, tuple[str, Form[Any]]] = {
    "capabilities": (
        "vocabulary/capabilities.yml",
        Record(
            Capability,
            "a capability",
            {
                **_SIMPLE,
                **require(
                    intent=_SNAKE,
                    blocks_semantic_classes=ListOf(_SNAKE, "a list of at least one class", least=1),
                    prose_guidance=_GUIDANCE,
                ),
            },
        ),
    ),
    "categories": ("vocabulary/categories.yml", Record(Entry, "a category", _SIMPLE)),
    "resume_tiers": ("vocabulary/resume-tiers.yml", Record(Entry, "a resume tier", _SIMPLE)),
    "tags": (
        "vocabulary/tags.yml",
        Record(
            Tag,
            "a tag",
            {
                **_SIMPLE,
                **require(trigger=_TRIGGER, type=Choice("skill", "inline_action")),
                "skill": ID,
                "handler": SENTENCE,
                "variants": ListOf(SENTENCE),
                "prose_guidance": _GUIDANCE,
            },
        ),
    ),
    "invocations": (
        "vocabulary/invocations.yml",
        Record(
            Invocation,
            "an invocation",
            {
                **_SIMPLE,
                **require(
                    intent=_SNAKE,
                    semantic_params=ListOf(_PARAMETER),
                    prose_guidance=_GUIDANCE,
                    fallback_behavior=Text("text of at least 20 characters", least=20),
                ),
            },
        ),
    ),
    "task_exceptions": (
        "vocabulary/task-exceptions.yml",
        Record(TaskException, "a task exception", _EXCEPTION),
    ),
}
_POLICY_FILE = "vocabulary/memory_policy.yml"


def read(reader: Reader) -> Vocabulary | None:
    """Read the vocabulary in the reader's folder; None if a file is malformed."""
    parts: dict[str, dict[str, Any]] = {}
    for key, (file, entry_form) in _PARTS.items():
        form: Record[dict[str, Any]] = Record(dict, "the file", require(**{key: ListOf(entry_form)}))
        entries = reader.yaml(file, form)
        if entries is None:
            continue
        parts[key] = {}
        for index, entry in enumerate(entries[key]):
            if entry.id in parts[key]:
                reader.report(file, (key, index, "id"), f"the id {entry.id!r} is given twice")
            parts[key][entry.id] = entry
    policy = reader.yaml(_POLICY_FILE, _MEMORY_POLICY)
    if policy is None or len(parts) < len(_PARTS):
        return None
    return Vocabulary(**parts, memory_policy=policy)


# -- consistency --


def check(vocabulary: Vocabulary, reader: Reader, *, is_ours: bool) -> None:
    """Report contradictions between the files, or between a file and what is enforced."""

    def report(part: str, *path: int | str, message: str) -> None:
        reader.report(_PARTS[part][0], (part, *path), message)

    for index, one in enumerate(vocabulary.capabilities.values()):
        # RESTRICTIONS decides what is enforced, so a file that differs would promise something that is not.
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

    if is_ours:
        return  # ours is tested, and skipping the regular expression engine saves start-up time
    policy = vocabulary.memory_policy
    try:
        matches = pattern_test(policy.name_pattern)
    except ValueError:
        message = f"{policy.name_pattern!r} is not a regular expression"
        reader.report(_POLICY_FILE, ("naming", "pattern"), message)
        return
    for index, category in enumerate(policy.categories):
        if not matches(f"{category.prefix}subject.md"):
            message = f"a name that begins with {category.prefix!r} does not match {policy.name_pattern}"
            reader.report(_POLICY_FILE, ("categories", index, "prefix"), message)
