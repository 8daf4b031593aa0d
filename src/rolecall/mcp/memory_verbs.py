"""Implements the tools of notes and rules. None deletes notes by itself: the caller names the notes to delete."""

from __future__ import annotations

from collections.abc import Sequence

from rolecall.api import Project
from rolecall.mcp.tools import Caller, McpOutput, ToolContext


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
    return Project(place.project).remember(name, text, category=category, into=into, is_new=new)


def list_notes(place: ToolContext, _caller: Caller, /) -> McpOutput:
    return {"notes": Project(place.project).memories()}


def read_note(place: ToolContext, _caller: Caller, /, name: str) -> McpOutput:
    warnings: list[str] = []
    text = Project(place.project).recall(name, agent=place.agent, warn=warnings.append)
    return {"text": text, **({"warning": warnings[0]} if warnings else {})}


def merge_notes(
    place: ToolContext, _caller: Caller, /, first: str, second: str, into: str | None = None
) -> McpOutput:
    return Project(place.project).merge_memories(first, second, into=into)


def list_candidates(place: ToolContext, _caller: Caller, /) -> McpOutput:
    return {"candidates": Project(place.project).forgettable()}


def delete_notes(place: ToolContext, _caller: Caller, /, names: Sequence[str]) -> McpOutput:
    return {"deleted": Project(place.project).forget(names)}


def add_rule(
    place: ToolContext, _caller: Caller, /, name: str, text: str, tags: Sequence[str] = ()
) -> McpOutput:
    return Project(place.project).add_rule(name, text, tags=tags)


def list_rules(place: ToolContext, _caller: Caller, /, tag: str | None = None) -> McpOutput:
    return {"rules": Project(place.project).rules(tag=tag)}


def read_rule(place: ToolContext, _caller: Caller, /, name: str) -> McpOutput:
    return {"text": Project(place.project).rule(name)}
