"""The names of the hosts, and the output of a hook command. This module is cheap to import.

A host's `events` module has `EVENTS` (the events that the host knows, under the host's names), `event(name, payload)`
(which returns our event, or None if the event does not concern us) and `output(name, answer)`.
"""

from __future__ import annotations

from typing import NamedTuple

HOSTS = ("claude", "codex", "opencode")
LEAD = "lead"
"""The name of our own Lead, whose host is Rolecall itself: Lead has a wording and no events."""
THREAD_END = "ThreadEnd"
"""Our name for the hook that waits for the threads that a tool call handed over, and wakes the model when they end."""


class Output(NamedTuple):
    """The output and exit code of a hook command."""

    stdout: str = ""
    stderr: str = ""
    code: int = 0
