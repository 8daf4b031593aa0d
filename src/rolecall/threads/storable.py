"""Turn the reply of an adapter, which can be third-party code, into values that can be stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from math import isfinite
from typing import Any

from rolecall.agents import protocol
from rolecall.store.canonical import JsonObject


def describe_reply(given: protocol.Reply) -> dict[str, Any]:
    """Return the agent's turns, files and ending, or an empty mapping if the agent did nothing but answer."""
    ending = given.ending if given.ending != "completed" else ""
    said = drop_empty({"files": list(given.files), "reason": given.reason, "ending": ending})
    turns = [describe_turn(turn) for turn in given.turns]
    return {"turns": turns, **said} if turns or said else {}


def describe_turn(given: protocol.Turn) -> dict[str, Any]:
    calls = [
        {"name": call.name, "arguments": dict(call.arguments), "result": call.result}
        | drop_empty({"started_at": call.started_at, "ended_at": call.ended_at})
        for call in given.tool_calls
    ]
    return {"role": given.role, "text": given.text} | ({"tool_calls": calls} if calls else {})


def describe_usage(used: protocol.Usage | None) -> dict[str, Any]:
    given = asdict(used) if used else {}
    return {key: round(value, 10) if key == "cost" else value for key, value in given.items() if value}


def make_plain(value: Any) -> Any:
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, Mapping):
        return {make_plain(str(key)): make_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [make_plain(item) for item in value]
    if value is None or isinstance(value, (bool, int)) or (isinstance(value, float) and isfinite(value)):
        return value
    return make_plain(str(value))


def drop_empty(fields: JsonObject, keep: tuple[str, ...] = ()) -> dict[str, Any]:
    """Drop fields without a value, so that adding a field later does not change existing ids."""
    return {key: value for key, value in fields.items() if value not in (None, "", {}, [], ()) or key in keep}
