"""What an agent gave, as values that can be stored. An adapter is anybody's code, so nothing of it is believed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from math import isfinite
from typing import Any

from rolecall.agents import protocol


def detail(reply: protocol.Reply) -> dict[str, Any] | None:
    """What the agent did besides answering; None when it only answered."""
    told = {"files": list(reply.files), "reason": reply.reason}
    if reply.ending != "completed":
        told["ending"] = reply.ending
    turns = [turn(each) for each in reply.turns]
    return {"turns": turns, **filled(told)} if turns or any(told.values()) else None


def turn(given: protocol.Turn) -> dict[str, Any]:
    calls = [
        {"name": call.name, "arguments": dict(call.arguments), "result": call.result}
        for call in given.tool_calls
    ]
    return {"role": given.role, "text": given.text} | ({"tool_calls": calls} if calls else {})


def usage(used: protocol.Usage | None) -> dict[str, Any]:
    given = asdict(used) if used else {}
    return {key: round(value, 10) if key == "cost" else value for key, value in given.items() if value}


def plain(value: Any) -> Any:
    """What an agent gave as a value that can be stored: an adapter is anybody's code."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, Mapping):
        return {plain(str(key)): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    is_known = (
        value is None or isinstance(value, (bool, int)) or (isinstance(value, float) and isfinite(value))
    )
    return value if is_known else plain(str(value))


def filled(fields: Mapping[str, Any], keep: tuple[str, ...] = ()) -> dict[str, Any]:
    """Only what has a value; what has none is left out, so that a later field changes no id."""
    return {key: value for key, value in fields.items() if value not in (None, "", {}, []) or key in keep}
