"""Conformance fixtures: cases in JSON that contain calls of tools and their expected results.

Loading reports every mistake in a fixture with its file and place; no file is skipped silently. The format is that of
nexus-core 0.10.0. Where its own fixtures go beyond its schema, our format does, too: the content of a file can be an
array. There are two additions. A string is the literal text of a file, for cases with a damaged file or a git branch.
The eight events of our hooks, which have a reply, are allowed in addition to the three events of nexus-core.
`conformance` runs the cases.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from functools import cache, partial
from types import NoneType
from typing import Any, Literal, NamedTuple, TypeAlias

from rolecall.errors import UsageError
from rolecall.nexus import documented, expectation, project_paths
from rolecall.settings import form, yaml12
from rolecall.settings.form import At, Choice, Field, Form, ListOf, MapOf, Record, Text, Unreadable
from rolecall.settings.yaml12 import Position, YamlNode
from rolecall.store.canonical import JsonObject

EVENTS = ("agent_spawn", "agent_complete", "agent_resume")
HOOK_EVENTS = (
    *("session_start", "user_message", "subagent_spawn", "subagent_complete"),
    *("pre_tool_use", "post_tool_use", "session_end", "context_compact"),
)
"""The events of Rolecall's own hooks. The reply to an event has the keys `block`, `context` and `notice`."""
Fields: TypeAlias = JsonObject
"""Parameters or contents by name, or expected values by their path in a document."""
_NONE: Fields = {}
_TOKENS = ("{STATE_ROOT}", "{HARNESS_ID}")
_TOKEN = re.compile(r"\{[^{}]*\}")


class FixtureCall(NamedTuple):
    tool: str
    params: Fields


class FixtureEvent(NamedTuple):
    type: str
    params: Fields = _NONE
    description: str = ""

    @property
    def has_reply(self) -> bool:
        return self.type in HOOK_EVENTS


class Expected(NamedTuple):
    """The expectations after a step."""

    at: str
    """The place of the expectations in the case."""
    return_value: Fields = _NONE
    state_files: Fields = _NONE
    """The expected content of each file, by the file's path; None for a file that must not exist."""
    error: bool | None = None
    """Whether the reply must be an error; None if the case does not say."""
    error_contains: str | None = None

    @property
    def must_fail(self) -> bool:
        return bool(self.error) or self.error_contains is not None


class FixtureStep(NamedTuple):
    action: FixtureCall | None = None
    event: FixtureEvent | None = None
    assert_return: Fields = _NONE
    assert_state: Fields = _NONE
    description: str = ""


class Coverage(NamedTuple):
    """The fields that a case checks, by state file and by tool."""

    state_schemas: Mapping[str, Sequence[str]] = {}
    return_value: Mapping[str, Sequence[str]] = {}
    description: str = ""


class Case(NamedTuple):
    test_id: str
    description: str
    covers: Coverage
    before: Fields = _NONE
    """The files at the start of the case."""
    action: FixtureCall | None = None
    event: FixtureEvent | None = None
    steps: tuple[FixtureStep, ...] = ()
    postcondition: Expected = Expected("postcondition")
    uncovered_params: tuple[str, ...] = ()
    file: str = ""

    @property
    def all_steps(self) -> tuple[FixtureStep, ...]:
        return self.steps or (FixtureStep(self.action, self.event),)

    @property
    def kind(self) -> Literal["tool", "scenario", "lifecycle"]:
        if any(step.event for step in self.all_steps):
            return "lifecycle"
        return "scenario" if self.steps else "tool"

    @property
    def harness(self) -> str:
        """What {HARNESS_ID} stands for: the harness of the events, or of an entry in a file, or our own."""
        named: list[Any] = [step.event.params for step in self.all_steps if step.event]
        for content in self.before.values():
            named += content if isinstance(content, list) else []
        ids = (one.get("harness_id") for one in named if isinstance(one, dict))
        return next((id for id in ids if isinstance(id, str)), project_paths.HARNESS)

    def expand(self, path: str) -> str:
        """Return a file's path with its tokens replaced."""
        return path.replace("{STATE_ROOT}", ".nexus/state").replace("{HARNESS_ID}", self.harness)

    def expected_after(self, number: int) -> list[Expected]:
        """Return the expectations after a step. The expectations of the whole case apply to its last step."""
        step = self.all_steps[number]
        own = Expected(f"steps[{number}]", step.assert_return, step.assert_state)
        is_last = number == len(self.all_steps) - 1
        return [*([own] if self.steps else []), *([self.postcondition] if is_last else [])]


class Mistake(NamedTuple):
    """A mistake in a fixture, with its place."""

    file: str
    place: str
    problem: str
    test_id: str = ""
    line: int = 0
    """The line, or 0 if the mistake is not in the text itself."""
    column: int = 0


class Fixtures(NamedTuple):
    cases: list[Case]
    mistakes: list[Mistake]
    passed_over: list[str]
    """JSON files that are neither fixtures nor look like fixtures, such as schemas."""


def load(folder: str) -> Fixtures:
    """Load every fixture below a folder, or the fixtures in one file."""
    if not os.path.exists(folder):
        raise UsageError(f"{folder!r} does not exist", hint="Name a folder of fixtures, or one file.")
    paths = [] if os.path.isdir(folder) else [folder]
    for root, folders, names in os.walk(folder):
        folders.sort()
        paths += [os.path.join(root, name) for name in sorted(names) if name.endswith(".json")]
    found = Fixtures([], [], [])
    for path in paths:
        _load_file(path, os.path.relpath(path, folder) if os.path.isdir(folder) else path, found)

    # Results are identified by their test_id, so no two cases can have the same one.
    files: dict[str, str] = {}
    for case in list(found.cases):
        if case.test_id in files:
            found.cases.remove(case)
            problem = f"the test_id is used before, in {files[case.test_id]}"
            found.mistakes.append(Mistake(case.file, "/test_id", problem, case.test_id))
        files.setdefault(case.test_id, case.file)
    if not found.cases and not found.mistakes:
        raise UsageError(f"{folder!r} has no fixture in it", hint="Fixtures are .json files.")
    return found


def _load_file(path: str, name: str, found: Fixtures) -> None:
    try:
        if not os.path.isfile(path):  # reading a pipe or a device might never end
            raise ValueError("it is not a regular file")
        with open(path, encoding="utf-8") as file:
            text = file.read()
        content = json.loads(text)
    except json.JSONDecodeError as exc:
        found.mistakes.append(Mistake(name, "", f"it is not JSON: {exc.msg}", "", exc.lineno, exc.colno))
        return
    except (OSError, ValueError, RecursionError) as exc:
        found.mistakes.append(Mistake(name, "", f"it cannot be read: {exc}"))
        return
    if isinstance(content, dict) and "$schema" in content:
        found.passed_over.append(name)
        return
    if content == []:
        found.mistakes.append(Mistake(name, "", "it is an empty list"))

    @cache
    def find_places() -> YamlNode:
        return yaml12.read_json_places(text, source=name).node or YamlNode(None, Position(name, 1, 1))

    for number, entry in enumerate(content if isinstance(content, list) else [content]):

        def find_entry(number: int = number) -> YamlNode:
            whole = find_places()
            return whole.parts.get(number, whole) if isinstance(content, list) else whole

        reading = form.Reading(find_entry)
        case = _CASE.read(entry, At(reading))
        if not isinstance(case, Unreadable) and not reading.problems:
            _check(case, At(reading))
            if not reading.problems:
                found.cases.append(case._replace(file=name))
        test_id = entry.get("test_id") if isinstance(entry, dict) else ""
        start = [str(number)] if isinstance(content, list) else []
        for where, problem in zip(reading.wrong, reading.problems, strict=True):
            place = "/" + "/".join([*start, *map(str, where)])
            written = test_id if isinstance(test_id, str) else ""
            found.mistakes.append(
                Mistake(name, place, problem.message, written, problem.line, problem.column)
            )


def _check(case: Case, at: At) -> None:
    if sum(map(bool, (case.action, case.event, case.steps))) != 1:
        at.report("it must have exactly one of action, event and steps")
    for number, step in enumerate(case.steps):
        if bool(step.action) == bool(step.event):
            (at / "steps" / number).report("it must have exactly one of action and event")
        elif step.event and not step.event.has_reply and step.assert_return:
            (at / "steps" / number / "assert_return").report("an event has no reply")
    after = case.postcondition
    if case.event and not case.event.has_reply and after._replace(state_files={}) != Expected(after.at):
        (at / "postcondition").report("an event has no reply, only state_files")
    if after.error is False and after.error_contains is not None:
        (at / "postcondition" / "error").report("error_contains expects an error")
    if not project_paths.is_harness_id(case.harness):
        at.report(f"the harness_id {case.harness!r} cannot name a folder below the project's folder")


# -- the format --


class _Expectations(Form[Fields]):
    """Expected values by their paths in a document."""

    def read(self, value: Any, at: At) -> Fields | Unreadable:
        if not isinstance(value, dict):
            return at.expect("an object", value)
        for path, expected in value.items():
            if problem := expectation.problem_of(path, expected):
                (at / path).report(problem)
        return value


class _Files(MapOf[object]):
    """Files by their paths, which can contain tokens."""

    def read(self, value: Any, at: At) -> dict[str, object] | Unreadable:
        for path in value if isinstance(value, dict) else ():
            if unknown := set(_TOKEN.findall(path)).difference(_TOKENS):
                (at / path).report(f"the token {min(unknown)} is not known, only {' and '.join(_TOKENS)}")
            elif "\0" in path or any(part in ("", ".", "..") for part in path.split("/")):
                (at / path).report("a path names a file below the project's folder, without . and ..")
        return super().read(value, at)


def _check_covers(covers: Coverage, at: At) -> None:
    if not covers.state_schemas and not covers.return_value:
        at.report("it must name a field in state_schemas or return_value")


def _require(value: Form[Any]) -> Field:
    return Field(value, required=True)


_ANY, _TEXT, _OBJECT = form.Anything(), Text(), MapOf(form.Anything(), "an object")
_WORDS = ListOf(Text("a word", pattern="[^ ]+"))
_CONTENT = form.Either(
    "an object, an array, a text or null", dict.fromkeys((dict, list, str, NoneType), _ANY)
)
_EXPECTED = form.Either("an object or null", {dict: _Expectations(), NoneType: _ANY})
_ACTION = {"tool": _require(Choice(*documented.REPLIES)), "params": _require(_OBJECT)}
_TYPE = _require(Choice(*EVENTS, *HOOK_EVENTS))
_EVENT: Mapping[str, Field | Form[Any]] = {"type": _TYPE, "params": _OBJECT, "description": _TEXT}
_ACT: Mapping[str, Form[Any]] = {
    "action": Record(FixtureCall, "an action", _ACTION),
    "event": Record(FixtureEvent, "an event", _EVENT),
}
_STEP: Mapping[str, Form[Any]] = {
    **_ACT,
    "assert_return": _Expectations(),
    "assert_state": _Files(_EXPECTED),
    "description": _TEXT,
}
_AFTER: Mapping[str, Form[Any]] = {
    "state_files": _Files(_EXPECTED),
    "return_value": _Expectations(),
    "error": form.Flag(),
    "error_contains": _TEXT,
}
_MAP = MapOf(_WORDS)
_COVERS: Mapping[str, Form[Any]] = {"state_schemas": _MAP, "return_value": _MAP, "description": _TEXT}
_PRECONDITION: Record[Fields] = Record(
    lambda state_files=_NONE: state_files, "the precondition", {"state_files": _Files(_CONTENT)}
)
_CASE: Record[Case] = Record(
    Case,
    "a case",
    {
        **_ACT,
        "test_id": _require(Text(pattern="[a-z][a-z0-9_-]*")),
        "description": _require(Text(least=10)),
        "covers": _require(Record(Coverage, "covers", _COVERS, check=_check_covers)),
        "uncovered_params": _WORDS,
        "precondition": Field(_PRECONDITION, to="before"),
        "steps": ListOf(Record(FixtureStep, "a step", _STEP), least=1),
        "postcondition": Record(partial(Expected, "postcondition"), "the postcondition", _AFTER),
    },
    wanted="an object",
)
