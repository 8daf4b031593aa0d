"""What a project has learnt and what its agents keep to, as tools: thin wrappers over `project.memory` and
`project.rule`. Deleting without asking is not among them; whoever deletes names what goes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rolecall.mcp.protocol import Cancel
from rolecall.mcp.tools import Place, Reply, checked_tool
from rolecall.nexus import memory, memory_access, memory_gc, rule
from rolecall.nexus.note_name import CATEGORIES
from rolecall.settings.capabilities import FILES

if TYPE_CHECKING:
    from rolecall.settings.mask import Mask


def _memory_add(place: Place, arguments: dict[str, Any], _cancel: Cancel) -> Reply:
    return memory.add(
        place.project,
        arguments["name"],
        arguments["text"],
        mask=_mask(),
        category=arguments.get("category"),
        into=arguments.get("into"),
        is_new=arguments.get("new", False),
        thresholds=_thresholds(),
    )


def _mask() -> Mask:
    from rolecall.threads.workspace import mask

    return mask()


def _thresholds() -> memory.Thresholds:
    return memory.configured_thresholds()


def _memory_list(place: Place, _arguments: dict[str, Any], _cancel: Cancel) -> Reply:
    return {"notes": memory.listed(place.project), **_warned(memory.unfinished(place.project))}


def _warned(warning: str) -> dict[str, str]:
    return {"warning": warning} if warning else {}


def _memory_read(place: Place, arguments: dict[str, Any], _cancel: Cancel) -> Reply:
    reader = place.agent or memory_access.LEAD
    reading = memory.read(place.project, arguments["name"], agent=reader)
    return {"text": reading.text, **_warned(reading.warning)}


def _memory_merge(place: Place, arguments: dict[str, Any], _cancel: Cancel) -> Reply:
    return memory.merge(place.project, arguments["first"], arguments["second"], into=arguments.get("into"))


def _memory_gc(place: Place, _arguments: dict[str, Any], _cancel: Cancel) -> Reply:
    """A look. What was cut off is left to whoever changes notes next, because hosts may call a reader unasked."""
    return {
        **_warned(memory.unfinished(place.project)),
        "candidates": [
            {"name": found.note.name, "signals": [signal._asdict() for signal in found.signals]}
            for found in memory_gc.candidates(place.project, thresholds=_thresholds())
        ],
    }


def _memory_delete(place: Place, arguments: dict[str, Any], _cancel: Cancel) -> Reply:
    return {"deleted": memory_gc.delete(place.project, arguments["names"])}


def _rule_add(place: Place, arguments: dict[str, Any], _cancel: Cancel) -> Reply:
    tags = arguments.get("tags", ())
    return rule.add(place.project, arguments["name"], arguments["text"], mask=_mask(), tags=tags)


def _rule_list(place: Place, arguments: dict[str, Any], _cancel: Cancel) -> Reply:
    return {"rules": rule.listed(place.project, tag=arguments.get("tag"))}


def _rule_read(place: Place, arguments: dict[str, Any], _cancel: Cancel) -> Reply:
    return {"text": rule.read(place.project, arguments["name"])}


# -- the table --


def _text(description: str) -> dict[str, Any]:
    return {"type": "string", "description": description}


def _texts(description: str) -> dict[str, Any]:
    return {"type": "array", "items": {"type": "string"}, "description": description}


TOOLS = (
    checked_tool(
        "memory_add",
        _memory_add,
        "Keep a lesson of this project as a note. If a note on its subject exists, the reply names it, and you say"
        " `into` it or `new`. Never put keys or passwords into it.",
        {
            "name": _text(
                "2 to 4 words on the subject joined by hyphens, no date and no version: retry-limits."
            ),
            "text": _text("The lesson, in Markdown."),
        },
        {
            "category": {
                "enum": list(CATEGORIES),
                "description": "empirical: measured here; external: imposed by others; pattern: a way of working.",
            },
            "into": _text("The note to put the text into, under a heading."),
            "new": {
                "type": "boolean",
                "description": "Make a note of its own also where one is on the subject.",
            },
        },
        effect="adds",
        classes=FILES,
    ),
    checked_tool(
        "memory_list",
        _memory_list,
        "List the notes of this project and how often each was read.",
        {},
        notes_reads=True,
    ),
    checked_tool(
        "memory_read",
        _memory_read,
        "Read a note. The read is counted.",
        {"name": _text("The note.")},
        notes_reads=True,
    ),
    checked_tool(
        "memory_merge",
        _memory_merge,
        "Join two notes in the first one, or in a new one; what is joined is removed by a git commit.",
        {"first": _text("A note, which takes the other in."), "second": _text("The other note.")},
        {"into": _text("The name of a new note that takes both in.")},
        effect="changes",
        is_for_lead=True,
    ),
    checked_tool(
        "memory_gc",
        _memory_gc,
        "Show which notes may be forgotten and what speaks for it. Nothing is deleted: ask the user first.",
        {},
        notes_reads=True,
    ),
    checked_tool(
        "memory_delete",
        _memory_delete,
        "Delete notes that the user agreed to delete, each by a git commit whose message brings it back.",
        {"names": {**_texts("The notes."), "minItems": 1}},
        effect="changes",
        is_for_lead=True,
    ),
    checked_tool(
        "rule_add",
        _rule_add,
        "Write a rule that all agents of this project keep to.",
        {"name": _text("What it is about: commit-messages."), "text": _text("The rule, in Markdown.")},
        {"tags": _texts("Where it applies: frontend.")},
        effect="adds",
        is_for_lead=True,
    ),
    checked_tool(
        "rule_list",
        _rule_list,
        "List the rules of this project.",
        {},
        {"tag": _text("Only those with this tag.")},
    ),
    checked_tool("rule_read", _rule_read, "Read a rule.", {"name": _text("The rule.")}),
)
