"""Implements the tools of notes and rules. None deletes notes by itself: the caller names the notes to delete."""

from __future__ import annotations

from typing import Any

from rolecall.mcp.tools import Cancel, Place, Reply
from rolecall.nexus import memory, memory_access, memory_gc, rule
from rolecall.settings.config import mask


def add_note(place: Place, arguments: dict[str, Any], _cancel: Cancel) -> Reply:
    return memory.add(
        place.project,
        arguments["name"],
        arguments["text"],
        mask=mask(),
        category=arguments.get("category"),
        into=arguments.get("into"),
        is_new=arguments.get("new", False),
        thresholds=memory.configured_thresholds(),
    )


def list_notes(place: Place, _arguments: dict[str, Any], _cancel: Cancel) -> Reply:
    return {"notes": memory.list_notes(place.project)}


def read_note(place: Place, arguments: dict[str, Any], _cancel: Cancel) -> Reply:
    reader = place.agent or memory_access.LEAD
    reading = memory.read(place.project, arguments["name"], agent=reader)
    return {"text": reading.text, **({"warning": reading.warning} if reading.warning else {})}


def merge_notes(place: Place, arguments: dict[str, Any], _cancel: Cancel) -> Reply:
    return memory.merge(place.project, arguments["first"], arguments["second"], into=arguments.get("into"))


def list_candidates(place: Place, _arguments: dict[str, Any], _cancel: Cancel) -> Reply:
    return {
        "candidates": [
            {"name": found.note.name, "signals": [signal._asdict() for signal in found.signals]}
            for found in memory_gc.candidates(place.project, thresholds=memory.configured_thresholds())
        ],
    }


def delete_notes(place: Place, arguments: dict[str, Any], _cancel: Cancel) -> Reply:
    return {"deleted": memory_gc.delete(place.project, arguments["names"])}


def add_rule(place: Place, arguments: dict[str, Any], _cancel: Cancel) -> Reply:
    tags = arguments.get("tags", ())
    return rule.add(place.project, arguments["name"], arguments["text"], mask=mask(), tags=tags)


def list_rules(place: Place, arguments: dict[str, Any], _cancel: Cancel) -> Reply:
    return {"rules": rule.list_rules(place.project, tag=arguments.get("tag"))}


def read_rule(place: Place, arguments: dict[str, Any], _cancel: Cancel) -> Reply:
    return {"text": rule.read(place.project, arguments["name"])}
