"""The forms of the triggers in a project's file. They report every problem at once."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, cast

from rolecall.service.triggers.schedule import find_flaws
from rolecall.service.triggers.trigger import (
    ALWAYS,
    DURATION,
    LONGEST,
    NAME,
    Clock,
    Cron,
    Every,
    Hook,
    Schedule,
    Sense,
    Source,
    Trigger,
    WatchedCommand,
    WatchedFiles,
    parse_duration,
    show_duration,
)
from rolecall.settings import form
from rolecall.settings.form import At, Field, Form, Text, Unreadable
from rolecall.store.canonical import Schema
from rolecall.store.schema import glob_test
from rolecall.workflow import template
from rolecall.workflow.yaml import SANDBOX


class _Duration(Form[float]):
    def __init__(self, least: float = 0.0) -> None:
        self.least = least

    def read(self, value: Any, at: At) -> float | Unreadable:
        seconds = parse_duration(value)
        if seconds is not None and self.least <= seconds <= LONGEST:
            return seconds
        wanted = f"a duration from {show_duration(self.least)} to {show_duration(LONGEST)}"
        return at.expect(wanted, value, "Write a number and a unit: 30s, 15m, 2h or 1d.")

    def schema(self) -> Schema:
        return {"type": "string", "pattern": rf"^{DURATION.pattern}$"}


_WORD = Text("text", least=1, pattern=r"[^\x00]*")
_HOOK = form.Record(
    Hook,
    "http",
    {
        "secret_env": Field(
            Text("the name of the variable with the secret", pattern=r"[A-Za-z_][A-Za-z0-9_]*"),
            "The variable that holds the secret.",
            required=True,
            hint="A hook needs the name of a variable, of the environment or of `.env` in the home, that holds its "
            "secret.",
        ),
        "signature": Field(
            Text("the name of a header", pattern="[A-Za-z0-9-]{0,60}", hint="Such as X-Hub-Signature-256."),
            "The header with the HMAC-SHA256 of the body, instead of the secret itself.",
        ),
    },
    hint="For example `http: {secret_env: HOOK_SECRET}`.",
)
_FIELDS = form.Section(
    "a trigger",
    {
        "every": Field(_Duration(1.0), "How often: 30s, 15m, 2h or 1d."),
        "cron": Field(Text(), "When: minute, hour, day, month, weekday."),
        "timezone": Field(Text(), "Of `cron`; by default UTC."),
        "files": Field(
            form.ListOf(_WORD, "a pattern or a list of patterns", least=1, allow_single=True),
            "File name patterns, relative to the project's folder.",
        ),
        "command": Field(
            form.ListOf(
                _WORD,
                "a list of texts",
                least=1,
                hint='Such as ["git", "rev-parse", "HEAD"]; no shell reads it.',
            ),
            "A command; the trigger fires when its output changes.",
        ),
        "http": Field(_HOOK, "A request; the trigger fires when one with the secret arrives."),
        "sense": Field(
            Text(
                "the name of a file or a folder in `senses`",
                pattern="[A-Za-z_][A-Za-z0-9_-]{0,59}",
                hint="`sense: disk_space` is senses/disk_space.py or senses/disk_space/index.py.",
            ),
            "The name of a function in `senses`.",
        ),
        "prompt": Field(
            Text(least=1), "What the thread is asked to do: a Mustache template over the signal."
        ),
        "dedupe": Field(
            Text(least=1),
            "A template. Of several signals for which it gives the same text, only the first starts a thread.",
        ),
        "cooldown": Field(
            _Duration(), "How long to wait after a thread has started before another can start."
        ),
        "timeout": Field(_Duration(0.1), "Of a command or a sense (1m)."),
        "sandbox": SANDBOX,
    },
    hint="For example `{every: 1h, prompt: Look around.}`.",
)
KEYS = _FIELDS.keys


class TriggerForm(Form[Trigger]):
    """The form of a trigger, at the path `…/WORKFLOW/triggers/NAME`. A trigger with a problem is left out."""

    def read(self, value: Any, at: At) -> Trigger | Unreadable:
        before = len(at.reading.wrong)
        given = _FIELDS.read(value, at)
        if isinstance(given, Unreadable):
            return given
        written = set(value)
        source = _read_source(written, given, at)
        schedule = _read_schedule(written, given, source, at)
        if "prompt" not in written and not isinstance(source, Sense):
            at.report(
                "the trigger has no `prompt`", "Say what the thread is to do; {{names}} come from the signal."
            )
        for key in ("prompt", "dedupe"):
            if key not in given or source is None:
                continue
            flaws = template.problems(given[key])
            for flaw in flaws:
                (at / key).report(f"is not a template: {flaw.message}")
            known = (*ALWAYS, *(source.names or ()))
            for use in template.variables(given[key]) if source.names is not None and not flaws else ():
                if not use.inside and use.path[0] not in known:
                    hint = form.did_you_mean(use.path[0], known, what="Known")
                    (at / key).report(f"a signal has no {{{{{use.name}}}}}", hint)
        if source is None or len(at.reading.wrong) > before:
            return form.UNREADABLE
        return Trigger(
            workflow=str(at.path[-3]),
            name=str(at.path[-1]),
            source=source,
            schedule=schedule,
            prompt=given.get("prompt", ""),
            dedupe=given.get("dedupe", ""),
            cooldown=given.get("cooldown", 0.0),
        )

    def schema(self) -> Schema:
        return {**_FIELDS.schema(), "description": "One source, and a schedule if the source must be polled."}


TRIGGERS = form.MapOf(
    TriggerForm(),
    "a mapping from names to triggers",
    key=NAME.pattern,
    key_wanted="Letters, digits, '.', '_' and '-', at most 60.",
    hint="Each trigger has a name: `triggers: {nightly: {cron: …}}`.",
)


def _read_source(written: Collection[str], given: Mapping[str, Any], at: At) -> Source | None:
    found = [key for key in ("files", "command", "http", "sense") if key in written]
    if len(found) > 1:
        (at / found[1]).report(f"a trigger has one source, and this one has {' and '.join(found)}")
        return None
    if "timeout" in written and found not in (["command"], ["sense"]):
        (at / "timeout").report("only a command or a sense has a timeout")
    if found and found[0] not in given:
        return None
    if "sandbox" in written and found not in (["command"], ["sense"]):
        (at / "sandbox").report("only a command or a sense has a sandbox")
    own = {key: given[key] for key in ("timeout", "sandbox") if key in given}
    match found:
        case ["files"]:
            patterns = given["files"]
            for pattern in patterns:
                if pattern.startswith(("/", "~")) or ".." in pattern.split("/"):
                    hint = "Patterns are relative to the project's folder and stay in it: src/**/*.py"
                    (at / "files").report(f"the pattern {pattern!r} is not accepted", hint)
                    return None
            try:
                glob_test(*patterns)
            except ValueError:
                (at / "files").report(f"a pattern is not accepted: {', '.join(map(repr, patterns))}")
                return None
            return WatchedFiles(patterns)
        case ["command"]:
            return WatchedCommand(given["command"], **own)
        case ["http"]:
            return cast(Hook, given["http"])
        case ["sense"]:
            return Sense(given["sense"], **own)
    return Clock()


def _read_schedule(
    written: Collection[str], given: Mapping[str, Any], source: Source | None, at: At
) -> Schedule | None:
    found = [key for key in ("every", "cron") if key in written]
    if "timezone" in written and "cron" not in found:
        (at / "timezone").report("only `cron` has a time zone")
    if isinstance(source, WatchedFiles | Hook) and found:
        (at / found[0]).report("files and requests report by themselves and have no schedule")
    elif len(found) > 1:
        (at / "cron").report("a trigger has `every` or `cron`, not both")
    elif "every" in given:
        return Every(given["every"])
    elif "cron" in given:
        cron = Cron(" ".join(given["cron"].split()), given.get("timezone", "UTC"))
        for key, message, hint in find_flaws(cron):
            (at / key).report(message, hint)
        return cron
    elif not found and source is not None and not isinstance(source, WatchedFiles | Hook):
        at.report("the trigger does not say when", 'Add `every: 1h` or `cron: "0 3 * * *"`.')
    return None
