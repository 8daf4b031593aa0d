"""What starts a thread by itself: the values of a trigger, and how a project writes them.

    workflows:
      review-code:
        triggers:
          nightly: {cron: "0 3 * * *", timezone: Europe/Berlin, prompt: "Review what changed before {{scheduled}}."}
          pushed:  {http: {secret_env: HOOK_SECRET}, prompt: "Review {{body.after}}.", dedupe: "{{body.after}}"}
          edited:  {files: ["src/**/*.py"], prompt: "Review {{files}}.", cooldown: 10m}
          moved:   {command: [git, rev-parse, origin/main], every: 5m, prompt: "Review {{output}}."}
          flaky:   {sense: flaky_tests, every: 1h, prompt: "Look at {{test}}."}

A trigger is a source of signals, a schedule where the source has to be looked at, and what becomes of a signal.
Plain values, and a reader that reports every problem at once. Nothing is run or looked up here.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from rolecall.service.policy import Problem
from rolecall.workflow import template

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,59}")
SENSE = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,59}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HEADER = re.compile(r"[A-Za-z0-9-]{1,60}")
_DURATION = re.compile(r"\s*([0-9]{1,9}(?:\.[0-9]{1,3})?)\s*(s|m|min|h|d)\s*")
_SECONDS = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
LONGEST = 366 * 86400.0
DURATION_HINT = "Write a number and a unit: 30s, 15m, 2h or 1d."

KEYS = (
    "every", "cron", "timezone", "files", "command", "http", "sense", "prompt", "dedupe", "cooldown", "timeout",
)  # fmt: skip
ALWAYS = ("trigger", "workflow", "project", "at")
"""What every prompt can name."""

Path = tuple[str, ...]


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
    """The schedule itself is the signal."""

    names: ClassVar[tuple[str, ...] | None] = ("scheduled",)
    """What a prompt can name besides `ALWAYS`; None: whatever the signal brings."""

    def __str__(self) -> str:
        return ""


@dataclass(frozen=True)
class Files:
    """Files of the project that were changed, made or removed."""

    patterns: tuple[str, ...]
    names: ClassVar[tuple[str, ...] | None] = ("files",)

    def __str__(self) -> str:
        return f"when a file changes: {', '.join(self.patterns)}"


@dataclass(frozen=True)
class Command:
    """A command that prints something else than it did before."""

    argv: tuple[str, ...]
    timeout: float = 60.0
    names: ClassVar[tuple[str, ...] | None] = ("output", "scheduled")

    def __str__(self) -> str:
        import shlex

        return f"runs `{shlex.join(self.argv)}` and fires when its output changes"


@dataclass(frozen=True)
class Sense:
    """A function of the project's own, in `senses/<name>.py` or `senses/<name>/index.py`."""

    name: str
    timeout: float = 60.0
    names: ClassVar[tuple[str, ...] | None] = None

    def __str__(self) -> str:
        return f"runs the sense {self.name} and fires when it returns a signal"


@dataclass(frozen=True)
class Hook:
    """A request of somebody who knows a secret."""

    secret_env: str
    signature: str = ""
    """The header with the HMAC-SHA256 of the body; empty: the secret itself comes as a bearer token."""
    names: ClassVar[tuple[str, ...] | None] = ("body", "headers", "query")

    def __str__(self) -> str:
        how = f"signed in {self.signature}" if self.signature else "with the secret as a bearer token"
        return f"by a request {how} (secret in ${self.secret_env})"


Schedule = Every | Cron
Source = Clock | Files | Command | Sense | Hook


@dataclass(frozen=True)
class Trigger:
    workflow: str
    name: str
    """Unique among the triggers of its workflow."""
    source: Source
    schedule: Schedule | None
    """When the source is looked at; None where it speaks up by itself."""
    prompt: str
    """A template over the signal; empty only for a sense, whose signal then brings its own."""
    dedupe: str = ""
    """A template: of signals with the same text only the first starts a thread."""
    cooldown: float = 0.0
    """Seconds after a thread was started in which no other is."""

    @property
    def id(self) -> str:
        return f"{self.workflow}/{self.name}"

    def describe(self) -> str:
        """What will happen, in one line."""
        told = [str(part) for part in (self.source, self.schedule) if part is not None and str(part)]
        told += [f"at most every {show_duration(self.cooldown)}"] if self.cooldown else []
        return ", ".join(told)


def hook_path(trigger: Trigger) -> str:
    """Where a hook is called."""
    return f"/hooks/{trigger.id}"


# -- durations --


def parse_duration(text: Any) -> float | None:
    """Seconds of `15m`; None: it is no duration."""
    match = _DURATION.fullmatch(text) if isinstance(text, str) else None
    return float(match[1]) * _SECONDS[match[2]] if match else None


def show_duration(seconds: float) -> str:
    for unit in ("d", "h", "m"):
        if seconds >= _SECONDS[unit] and seconds % _SECONDS[unit] == 0:
            return f"{seconds / _SECONDS[unit]:g}{unit}"
    return f"{seconds:g}s"


# -- reading --


def read(workflow: str, section: Any) -> tuple[list[Trigger], list[Problem]]:
    """The triggers of a workflow, and everything that is wrong with them; one that is wrong is left out."""
    path = ("workflows", workflow, "triggers")
    if section is None:
        return [], []
    if not NAME.fullmatch(workflow):
        return [], [Problem(path[:2], f"{workflow[:80]!r} is no name of a workflow")]
    if not isinstance(section, Mapping):
        hint = "Each trigger has a name: `triggers: {nightly: {cron: …}}`."
        return [], [Problem(path, "must be a mapping from names to triggers", hint)]
    found, problems = [], []
    for name, value in section.items():
        reader = _Reader((*path, str(name)), value)
        trigger = reader.trigger(workflow, str(name))
        problems += reader.problems
        found += [trigger] if trigger is not None and not reader.problems else []
    return found, problems


class _Reader:
    def __init__(self, path: Path, value: Any) -> None:
        self._path = path
        self._value: Mapping[str, Any] = value if isinstance(value, Mapping) else {}
        self.problems: list[Problem] = []
        if not isinstance(value, Mapping):
            self._say((), "must be a mapping", "For example `{every: 1h, prompt: Look around.}`.")

    def trigger(self, workflow: str, name: str) -> Trigger | None:
        if self.problems:
            return None
        if not NAME.fullmatch(name):
            self._say(
                (),
                f"the name {name[:80]!r} is not accepted",
                "Letters, digits, '.', '_' and '-', at most 60.",
            )
        self._known_keys(self._value, (), KEYS)
        source = self._source()
        schedule = self._schedule(source)
        if source is None:
            return None
        return Trigger(
            workflow=workflow,
            name=name,
            source=source,
            schedule=schedule,
            prompt=self._prompt(source),
            dedupe=self._template("dedupe", source),
            cooldown=self._duration("cooldown", 0.0),
        )

    # -- sources --

    def _source(self) -> Source | None:
        given = [key for key in ("files", "command", "http", "sense") if key in self._value]
        if len(given) > 1:
            self._say((given[1],), f"a trigger has one source, and this one has {' and '.join(given)}")
            return None
        if "timeout" in self._value and given not in (["command"], ["sense"]):
            self._say(("timeout",), "only a command or a sense has a timeout")
        match given:
            case ["files"]:
                return self._files()
            case ["command"]:
                argv = self._texts(
                    "command", 'A list of words, such as ["git", "rev-parse", "HEAD"]; no shell reads it.'
                )
                return Command(argv, self._duration("timeout", Command.timeout, least=0.1)) if argv else None
            case ["http"]:
                return self._hook(self._value["http"])
            case ["sense"]:
                return self._sense(self._value["sense"])
        return Clock()

    def _files(self) -> Files | None:
        from rolecall.service.triggers import sources

        value = self._value["files"]
        patterns = (
            (value,) if isinstance(value, str) else self._texts("files", "One pattern, or a list of them.")
        )
        for pattern in patterns:
            parts = pattern.split("/")
            if not pattern.strip() or pattern.startswith(("/", "~")) or ".." in parts:
                hint = "Patterns are seen from the project's folder and stay in it: src/**/*.py"
                self._say(("files",), f"the pattern {pattern!r} is not accepted", hint)
                return None
        try:
            sources.matcher(tuple(patterns))
        except ValueError:
            self._say(("files",), f"a pattern is not accepted: {', '.join(map(repr, patterns))}")
            return None
        return Files(tuple(patterns)) if patterns else None

    def _hook(self, value: Any) -> Hook | None:
        path = ("http",)
        if not isinstance(value, Mapping):
            self._say(path, "must be a mapping", "For example `http: {secret_env: HOOK_SECRET}`.")
            return None
        self._known_keys(value, path, tuple(field.name for field in fields(Hook)))
        variable, signature = value.get("secret_env"), value.get("signature", "")
        if not isinstance(variable, str) or not _VARIABLE.fullmatch(variable):
            hint = (
                "The name of a variable of the environment, or of `.env` in the home, that holds the secret."
            )
            self._say((*path, "secret_env"), "a hook needs the name of the variable with its secret", hint)
            return None
        if not isinstance(signature, str) or (signature and not _HEADER.fullmatch(signature)):
            self._say(
                (*path, "signature"), "must be the name of a header", "For example X-Hub-Signature-256."
            )
            return None
        return Hook(variable, signature)

    def _sense(self, value: Any) -> Sense | None:
        if not isinstance(value, str) or not SENSE.fullmatch(value):
            self._say(
                ("sense",),
                "must be the name of a file or a folder in `senses`",
                "`sense: disk_space` is senses/disk_space.py or senses/disk_space/index.py.",
            )
            return None
        return Sense(value, self._duration("timeout", Sense.timeout, least=0.1))

    # -- schedules --

    def _schedule(self, source: Source | None) -> Schedule | None:
        given = [key for key in ("every", "cron") if key in self._value]
        if "timezone" in self._value and "cron" not in given:
            self._say(("timezone",), "only `cron` has a time zone")
        if isinstance(source, Files | Hook) and given:
            self._say((given[0],), "files and requests speak up by themselves and have no schedule")
        elif len(given) > 1:
            self._say(("cron",), "a trigger has `every` or `cron`, not both")
        elif "every" in given:
            return Every(self._duration("every", 60.0, least=1.0))
        elif "cron" in given:
            return self._cron()
        elif source is not None and not isinstance(source, Files | Hook):
            self._say((), "the trigger does not say when", 'Add `every: 1h` or `cron: "0 3 * * *"`.')
        return None

    def _cron(self) -> Cron | None:
        from rolecall.service.triggers import schedule

        expression, zone = self._value["cron"], self._value.get("timezone", "UTC")
        if not isinstance(expression, str) or not isinstance(zone, str):
            self._say(("cron",), "must be text", 'Minute, hour, day, month, weekday: cron: "0 3 * * 1-5"')
            return None
        found = Cron(" ".join(expression.split()), zone)
        for key, message, hint in schedule.flaws(found):
            self._say((key,), message, hint)
        return found

    # -- plain values --

    def _prompt(self, source: Source) -> str:
        if "prompt" not in self._value and not isinstance(source, Sense):
            self._say(
                (),
                "the trigger has no `prompt`",
                "Say what the thread is to do; {{names}} come from the signal.",
            )
            return ""
        return self._template("prompt", source)

    def _template(self, key: str, source: Source) -> str:
        value = self._value.get(key)
        if value is None and key not in self._value:
            return ""
        if not isinstance(value, str) or not value.strip():
            self._say((key,), "must be text")
            return ""
        flaws = template.problems(value)
        for flaw in flaws:
            self._say((key,), f"is no template: {flaw.message}")
        known = (*ALWAYS, *(source.names or ()))
        for use in template.variables(value) if source.names is not None and not flaws else ():
            if not use.inside and use.path[0] not in known:
                self._say((key,), f"a signal has no {{{{{use.name}}}}}", _known(use.path[0], known))
        return value

    def _duration(self, key: str, default: float, *, least: float = 0.0) -> float:
        if key not in self._value:
            return default
        seconds = parse_duration(self._value[key])
        if seconds is None:
            self._say((key,), f"{self._value[key]!r} is no duration", DURATION_HINT)
        elif not least <= seconds <= LONGEST:
            self._say((key,), f"must be from {show_duration(least)} to {show_duration(LONGEST)}")
        else:
            return seconds
        return default

    def _texts(self, key: str, hint: str) -> tuple[str, ...]:
        value = self._value[key]
        is_list = isinstance(value, Sequence) and not isinstance(value, str)
        if (
            not is_list
            or not value
            or not all(isinstance(item, str) and item and "\0" not in item for item in value)
        ):
            self._say((key,), "must be a list of texts", hint)
            return ()
        return tuple(value)

    def _known_keys(self, value: Mapping[str, Any], path: Path, known: Collection[str]) -> None:
        for key in value:
            if key not in known:
                self._say((*path, str(key)), f"the key {str(key)!r} is not known", _known(str(key), known))

    def _say(self, path: Path, message: str, hint: str = "") -> None:
        self.problems.append(Problem((*self._path, *path), message, hint))


def _known(name: str, known: Collection[str]) -> str:
    from rolecall.settings.form import did_you_mean

    return did_you_mean(name, known, what="Known")
