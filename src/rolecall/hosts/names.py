"""The names of the hosts, and the output of a hook command. Cheap to import.

A host's `events` module has `EVENTS` (the events it knows, by the host's names), `event(name, payload)` (which returns
our event, or None if it does not concern us) and `output(name, answer)`.
"""

from __future__ import annotations

from typing import NamedTuple

HOSTS = ("claude", "codex", "opencode")
LEAD = "lead"
"""Our own Lead, whose host is Rolecall itself: it has a wording and no events."""
THREAD_END = "ThreadEnd"
"""Our name for the hook that waits for threads that a tool call handed over, and wakes the model at their end."""


class Output(NamedTuple):
    """The output of a hook command, and its exit code."""

    stdout: str = ""
    stderr: str = ""
    code: int = 0
