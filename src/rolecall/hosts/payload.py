"""Readers for a host's payload: fields that can be missing or have another type, paths, and the names of our own
tools. `tool_shape`, for tools that are in no host's table, is imported only when a host's module uses it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeAlias

from rolecall.errors import UsageError
from rolecall.store.lazy import Module

if TYPE_CHECKING:
    from rolecall.hosts import tool_shape as tool_shape
    from rolecall.hosts.event import Event
    from rolecall.store.canonical import JsonObject
else:
    tool_shape = Module("rolecall.hosts.tool_shape")

Payload: TypeAlias = "JsonObject"
Reader: TypeAlias = "Callable[[Payload], Event | None]"
"""A function that converts a payload to an event, or returns None if the event does not concern us."""

_OUR_TOOL = re.compile(r"(?:mcp__)?rolecall(?:-[\w-]+?)?_{1,2}\w+")


def read_event(events: Mapping[str, Reader], host: str, name: str, payload: Payload) -> Event | None:
    """Convert a host's event to ours; return None if the event does not concern us."""
    if name not in events:
        raise UsageError(f"{host} has no event {name!r}", hint=f"Known events: {', '.join(events)}.")
    return events[name](payload)


def text(payload: Payload, key: str) -> str:
    """Return a text field, or an empty string if the field is missing or has another type."""
    value = payload.get(key)
    return value if isinstance(value, str) else ""


def fields(payload: Payload, key: str) -> Payload:
    value = payload.get(key)
    return value if isinstance(value, Mapping) else {}


def session(payload: Payload, key: str) -> str:
    found = text(payload, key)
    if not found:
        raise UsageError(f"the payload has no {key}", hint="Hosts send one with every event.")
    return found


def paths(given: Payload, key: str, cwd: str) -> tuple[str, ...]:
    """Return the path in a field, made absolute, or an empty tuple if the field is missing."""
    path = text(given, key)
    return (os.path.join(cwd, os.path.expanduser(path)),) if path else ()


def is_our_tool(tool: str) -> bool:
    """Return whether a tool belongs to one of our servers; the gate judges our tools by name."""
    return _OUR_TOOL.fullmatch(tool) is not None
