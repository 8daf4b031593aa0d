"""The hosts, and what a hook command returns to one. Cheap to import.

A host's `events` module has `EVENTS` (the events it knows, by the host's names), `event(name, payload)` (the event as
ours, None if it does not concern us) and `output(name, answer)`.
"""

from __future__ import annotations

from typing import NamedTuple

HOSTS = ("claude", "codex", "opencode")


class Output(NamedTuple):
    """What a hook command prints, and its exit code."""

    stdout: str = ""
    stderr: str = ""
    code: int = 0
