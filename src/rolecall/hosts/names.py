"""One module for each host: its events into our words, our answers into its own. Pure, and cheap to import.

A host module has `EVENTS` (the names of the host's events it knows), `event(name, payload)` (the event in our words,
None where it is nothing of ours) and `output(name, answer)` (what the hook command prints and how it ends).
"""

from __future__ import annotations

from typing import NamedTuple

HOSTS = ("claude", "codex", "opencode")


class Output(NamedTuple):
    """What a hook command leaves to its host."""

    stdout: str = ""
    stderr: str = ""
    code: int = 0
