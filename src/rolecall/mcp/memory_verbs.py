"""Implements the tools of notes and rules. None deletes notes by itself: the caller names the notes to delete."""

from __future__ import annotations

from collections.abc import Sequence

from rolecall.mcp.tools import Caller, McpOutput, ToolContext
from rolecall.nexus import memory, memory_access, memory_gc, rule
from rolecall.settings.config import mask


def add_note(
    place: ToolContext,
    _caller: Caller,
    /,
    name: str,
    text: str,
    category: str | None = None,
    into: str | None = None,
    new: bool = False,
) -> McpOutput:
    return memory.add(
        place.project,
        name,
        text,
        mask=mask(),
        category=category,
        into=into,
        is_new=new,
        thresholds=memory.configured_thresholds(),
    )


def list_notes(place: ToolContext, _caller: Caller, /) -> McpOutput:
    return {"notes": memory.list_notes(place.project)}


def read_note(place: ToolContext, _caller: Caller, /, name: str) -> McpOutput:
    reading = memory.read(place.project, name, agent=place.agent or memory_access.LEAD)
    return {"text": reading.text, **({"warning": reading.warning} if reading.warning else {})}


def merge_notes(
    place: ToolContext, _caller: Caller, /, first: str, second: str, into: str | None = None
) -> McpOutput:
    return memory.merge(place.project, first, second, into=into)


def list_candidates(place: ToolContext, _caller: Caller, /) -> McpOutput:
    return {
        "candidates": [
            {"name": found.note.name, "signals": [signal._asdict() for signal in found.signals]}
            for found in memory_gc.candidates(place.project, thresholds=memory.configured_thresholds())
        ],
    }


def delete_notes(place: ToolContext, _caller: Caller, /, names: Sequence[str]) -> McpOutput:
    return {"deleted": memory_gc.delete(place.project, names)}


def add_rule(
    place: ToolContext, _caller: Caller, /, name: str, text: str, tags: Sequence[str] = ()
) -> McpOutput:
    return rule.add(place.project, name, text, mask=mask(), tags=tags)


def list_rules(place: ToolContext, _caller: Caller, /, tag: str | None = None) -> McpOutput:
    return {"rules": rule.list_rules(place.project, tag=tag)}


def read_rule(place: ToolContext, _caller: Caller, /, name: str) -> McpOutput:
    return {"text": rule.read(place.project, name)}
