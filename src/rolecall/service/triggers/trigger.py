"""Triggers, which start threads automatically: their values, and how a project's file defines them.

    workflows:
      review-code:
        triggers:
          nightly: {cron: "0 3 * * *", timezone: Europe/Berlin, prompt: "Review what changed before {{scheduled}}."}
          pushed:  {http: {secret_env: HOOK_SECRET}, prompt: "Review {{body.after}}.", dedupe: "{{body.after}}"}
          edited:  {files: ["src/**/*.py"], prompt: "Review {{files}}.", cooldown: 10m}
          moved:   {command: [git, rev-parse, origin/main], every: 5m, prompt: "Review {{output}}."}
          flaky:   {sense: flaky_tests, every: 1h, prompt: "Look at {{test}}."}

A trigger consists of a source of signals, a schedule if the source must be polled, and rules for handling a signal. The
classes here are plain values; `trigger_form.py` reads them from the file.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import Any, ClassVar

from rolecall.workflow.model import Sandbox

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,59}")
DURATION = re.compile(r"\s*([0-9]{1,9}(?:\.[0-9]{1,3})?)\s*(s|m|min|h|d)\s*")
_SECONDS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
LONGEST = 366 * 86400.0

ALWAYS = ("trigger", "workflow", "project", "at")
"""The names of the values that every prompt can use."""


@dataclass(frozen=True)
class Every:
    seconds: float

    def __str__(self) -> str:
        return f"every {show_duration(self.seconds)}"


@dataclass(frozen=True)
class Cron:
    expression: str
    timezone: str = "UTC"

    def __str__(self) -> str:
        return f"cron {self.expression} ({self.timezone})"


@dataclass(frozen=True)
class Clock:
    """A source whose signal is the schedule itself."""

    names: ClassVar[tuple[str, ...] | None] = ("scheduled",)
    """The names of the values that a prompt can use in addition to `ALWAYS`, or None if they depend on the signal."""

    def __str__(self) -> str:
        return ""


@dataclass(frozen=True)
class WatchedFiles:
    """Files of the project that were changed, created or removed."""

    patterns: tuple[str, ...]
    names: ClassVar[tuple[str, ...] | None] = ("files",)

    def __str__(self) -> str:
        return f"when a file changes: {', '.join(self.patterns)}"


@dataclass(frozen=True)
class WatchedCommand:
    """A command whose output is watched for changes."""

    argv: tuple[str, ...]
    timeout: float = 60.0
    sandbox: Sandbox | None = None
    """What the command can access; by default it can write to the project's folder and sees no secrets."""
    names: ClassVar[tuple[str, ...] | None] = ("output", "scheduled")

    def __str__(self) -> str:
        return f"runs `{shlex.join(self.argv)}` and fires when its output changes"


@dataclass(frozen=True)
class Sense:
    """A function in the project, in `senses/<name>.py` or `senses/<name>/index.py`."""

    name: str
    timeout: float = 60.0
    sandbox: Sandbox | None = None
    """What the sense can access, as in `WatchedCommand`."""
    names: ClassVar[tuple[str, ...] | None] = None

    def __str__(self) -> str:
        return f"runs the sense {self.name} and fires when it returns a signal"


@dataclass(frozen=True)
class Hook:
    """A request from a caller who knows a secret."""

    secret_env: str
    signature: str = ""
    """The header with the HMAC-SHA256 of the body. If empty, the secret itself is sent as a bearer token."""
    names: ClassVar[tuple[str, ...] | None] = ("body", "headers", "query")

    def __str__(self) -> str:
        how = f"signed in {self.signature}" if self.signature else "with the secret as a bearer token"
        return f"by a request {how} (secret in ${self.secret_env})"


Schedule = Every | Cron
Source = Clock | WatchedFiles | WatchedCommand | Sense | Hook


@dataclass(frozen=True)
class Trigger:
    workflow: str
    name: str
    """The name of the trigger, unique among the triggers of its workflow."""
    source: Source
    schedule: Schedule | None
    """When to look at the source, or None if the source reports signals by itself."""
    prompt: str
    """A template over the signal. It is empty only for a sense whose signals contain a prompt."""
    dedupe: str = ""
    """A template. Of the signals for which it renders to the same text, only the first starts a thread."""
    cooldown: float = 0.0
    """How many seconds after the start of a thread no other thread is started."""

    @property
    def id(self) -> str:
        return f"{self.workflow}/{self.name}"

    def describe(self) -> str:
        """Describe in one line what the trigger does."""
        parts = [str(part) for part in (self.source, self.schedule) if part is not None and str(part)]
        parts += [f"at most every {show_duration(self.cooldown)}"] if self.cooldown else []
        return ", ".join(parts)


def hook_path(trigger: Trigger) -> str:
    """Return the path at which a hook is called."""
    return f"/hooks/{trigger.id}"


def parse_duration(text: Any) -> float | None:
    """Parse a duration such as `15m` into seconds. Return None if the text is not a duration."""
    match = DURATION.fullmatch(text) if isinstance(text, str) else None
    return float(match[1]) * _SECONDS[match[2]] if match else None


def show_duration(seconds: float) -> str:
    for unit in ("d", "h", "m"):
        if seconds >= _SECONDS[unit] and seconds % _SECONDS[unit] == 0:
            return f"{seconds / _SECONDS[unit]:g}{unit}"
    return f"{seconds:g}s"
