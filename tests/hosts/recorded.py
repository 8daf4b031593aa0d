"""Payloads of real hosts, as payloads/README.md tells."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

WORK = "/home/me/work"


class Call(NamedTuple):
    scene: str
    event: str
    payload: dict[str, Any]


def calls(host: str, scene: str = "") -> list[Call]:
    text = (Path(__file__).parent / "payloads" / f"{host}.jsonl").read_text(encoding="utf-8")
    found = [json.loads(line) for line in text.replace("$WORK", WORK).splitlines()]
    return [Call(**call) for call in found if scene in ("", call["scene"])]


def first(host: str, scene: str, event: str, **wanted: Any) -> Mapping[str, Any]:
    """The first payload of a scene for an event in which these fields are as wanted."""
    return next(
        call.payload
        for call in calls(host, scene)
        if call.event == event and wanted.items() <= call.payload.items()
    )
