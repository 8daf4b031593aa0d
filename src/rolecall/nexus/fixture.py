"""Conformance fixtures: cases in JSON that say what a tool is called with and what has to come of it.

Loading reports every mistake of an author with its file and place; a file is never passed over in silence.
The format is that of nexus-core 0.10.0. Where its own fixtures go beyond its schema, so do we: the content
of a file may be an array. Two things are ours: a string is the text of a file as it is, which is how a case has
a damaged file or a branch of git; and beside its three events there are the eight of our hooks, which have a reply.
Running cases is `conformance`'s.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Literal, NamedTuple

from rolecall.errors import UsageError
from rolecall.nexus import documented, expectation
from rolecall.nexus import project_paths as place
from rolecall.store.schema import Type

EVENTS = ("agent_spawn", "agent_complete", "agent_resume")
HOOK_EVENTS = (
    *(
        "session_start",
        "user_message",
        "subagent_spawn",
        "subagent_complete",
        "pre_tool_use",
        "post_tool_use",
    ),
    *("session_end", "context_compact"),
)
"""Ours: what a host tells, and what it is answered (`block`, `context`, `notice`)."""
STATE_ROOT = ".nexus/state"

_TOKEN = re.compile(r"\{([^{}]*)\}")


class Action(NamedTuple):
    tool: str
    params: dict[str, Any]


class Event(NamedTuple):
    type: str
    params: dict[str, Any]


class Expected(NamedTuple):
    """What has to hold after a step."""

    at: str
    """Where the case says so."""
    returns: Mapping[str, Any]
    files: Mapping[str, Mapping[str, Any] | None]
    error: bool | None = None
    """Whether the reply is an error; None when nothing is said about it."""
    error_contains: str = ""

    @property
    def is_error(self) -> bool:
        return bool(self.error) or self.returns.get("$.error") is not None


class Step(NamedTuple):
    act: Action | Event
    expected: tuple[Expected, ...]


class Case(NamedTuple):
    test_id: str
    file: str
    description: str
    kind: Literal["tool", "scenario", "lifecycle"]
    before: Mapping[str, Any]
    """Files there are when it begins, by path; None for one that there is not."""
    steps: tuple[Step, ...]
    harness: str = place.HARNESS
    """In whose folder agents are tracked."""


class Mistake(NamedTuple):
    """Of whoever wrote a fixture."""

    file: str
    place: str
    problem: str
    test_id: str = ""


class Fixtures(NamedTuple):
    cases: list[Case]
    mistakes: list[Mistake]
    passed_over: list[str]
    """JSON files that are no fixtures and do not look like any: schemas."""


def load(folder: str) -> Fixtures:
    """Every fixture below a folder, or those of one file."""
    if not os.path.exists(folder):
        raise UsageError(f"there is no folder {folder!r}", hint="Name a folder of fixtures, or one file.")
    found = Fixtures([], [], [])
    for path in _json_files(folder):
        _load_file(path, os.path.relpath(path, folder) if os.path.isdir(folder) else path, found)
    _report_repeats(found)
    if not found.cases and not found.mistakes:
        raise UsageError(f"there is no fixture in {folder!r}", hint="Fixtures are .json files.")
    return found


def _json_files(folder: str) -> Iterator[str]:
    if not os.path.isdir(folder):
        yield folder
    for root, folders, names in os.walk(folder):
        folders.sort()
        yield from (os.path.join(root, name) for name in sorted(names) if name.endswith(".json"))


def _load_file(path: str, name: str, found: Fixtures) -> None:
    try:
        if not os.path.isfile(path):  # a pipe would be waited for, a device read for ever
            raise ValueError("it is no regular file")
        with open(path, encoding="utf-8") as file:
            content = json.load(file, object_pairs_hook=_no_repeats, parse_constant=_no_constant)
    except json.JSONDecodeError as exc:
        found.mistakes.append(Mistake(name, f"line {exc.lineno}", f"it is not JSON: {exc.msg}"))
    except (OSError, ValueError, RecursionError) as exc:
        found.mistakes.append(Mistake(name, "", f"it cannot be read: {exc}"))
    else:
        if isinstance(content, dict) and "$schema" in content:
            found.passed_over.append(name)
            return
        entries = enumerate(content) if isinstance(content, list) else [(None, content)]
        for number, entry in entries:
            _load_case(entry, name, "" if number is None else f"/{number}", found)
        if content == []:
            found.mistakes.append(Mistake(name, "", "it is an empty list"))


def _load_case(entry: Any, file: str, at: str, found: Fixtures) -> None:
    test_id = entry.get("test_id") if isinstance(entry, dict) else ""
    said = test_id if isinstance(test_id, str) else ""
    problems = [(at + where, problem) for where, problem in _problems(entry)]
    if problems:
        found.mistakes.extend(Mistake(file, where or "/", problem, said) for where, problem in problems)
    else:
        found.cases.append(_case(entry, file))


def _report_repeats(found: Fixtures) -> None:
    """Results are told apart by their test_id, so two cases with one of them cannot both be right."""
    files: dict[str, str] = {}
    for case in list(found.cases):
        if case.test_id in files:
            found.cases.remove(case)
            problem = f"the test_id is used before, in {files[case.test_id]}"
            found.mistakes.append(Mistake(case.file, "/test_id", problem, case.test_id))
        files.setdefault(case.test_id, case.file)


def _no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """JSON lets a key stand twice, and one of the two expectations would be lost."""
    keys = [key for key, _ in pairs]
    for key in keys:
        if keys.count(key) > 1:
            raise ValueError(f"the key {key!r} stands twice in one object")
    return dict(pairs)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


# -- a case as a value --


def _case(entry: Mapping[str, Any], file: str) -> Case:
    steps = _steps(entry)
    harness = _harness(entry, steps)
    if any(isinstance(step.act, Event) for step in steps):
        kind = "lifecycle"
    else:
        kind = "scenario" if "steps" in entry else "tool"
    return Case(
        entry["test_id"],
        file,
        entry["description"],
        kind,  # type: ignore[arg-type]
        {_expanded(path, harness): content for path, content in _before(entry).items()},
        tuple(_with_paths(step, harness) for step in steps),
        harness,
    )


def _before(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    files: Mapping[str, Any] = entry.get("precondition", {}).get("state_files", {})
    return files


def _steps(entry: Mapping[str, Any]) -> list[Step]:
    after = _expected_after(entry.get("postcondition", {}))
    if "steps" not in entry:
        return [Step(_act(entry), (after,))]
    steps = [
        Step(_act(step), (_expected_of_step(number, step),)) for number, step in enumerate(entry["steps"])
    ]
    # What is expected in the end is expected of the last step.
    last = steps.pop()
    return [*steps, Step(last.act, (*last.expected, after))]


def _act(entry: Mapping[str, Any]) -> Action | Event:
    if "action" in entry:
        return Action(entry["action"]["tool"], entry["action"]["params"])
    return Event(entry["event"]["type"], entry["event"].get("params", {}))


def _expected_after(after: Mapping[str, Any]) -> Expected:
    returns, files = after.get("return_value", {}), after.get("state_files", {})
    text = after.get("error_contains")
    error = True if text is not None else after.get("error")
    return Expected("postcondition", returns, files, error, text or "")


def _expected_of_step(number: int, step: Mapping[str, Any]) -> Expected:
    return Expected(f"steps[{number}]", step.get("assert_return", {}), step.get("assert_state", {}))


def _harness(entry: Mapping[str, Any], steps: Collection[Step]) -> str:
    """Whose folder {HARNESS_ID} is: as the events say, else as an entry there says, else ours."""
    for step in steps:
        if isinstance(step.act, Event) and isinstance(named := step.act.params.get("harness_id"), str):
            return named
    for content in _before(entry).values():
        for one in content if isinstance(content, list) else ():
            if isinstance(one, dict) and isinstance(named := one.get("harness_id"), str):
                return named
    return place.HARNESS


def _with_paths(step: Step, harness: str) -> Step:
    expected = tuple(
        one._replace(files={_expanded(path, harness): content for path, content in one.files.items()})
        for one in step.expected
    )
    return step._replace(expected=expected)


def _expanded(path: str, harness: str) -> str:
    return path.replace("{STATE_ROOT}", STATE_ROOT).replace("{HARNESS_ID}", harness)


# -- the format --


def _closed(required: Mapping[str, Any], optional: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {**required, **optional},
        "required": list(required),
        "additionalProperties": False,
    }


_TEXT = {"type": "string"}
_OBJECT = {"type": "object"}
_WORD = {"type": "string", "pattern": "^[^ ]+$"}
_WORDS = {"type": "array", "items": _WORD}
_FILES = {"type": "object", "additionalProperties": {"type": ["object", "null"]}}
_CONTENTS = {"type": "object", "additionalProperties": {"type": ["object", "array", "string", "null"]}}
_ACTION = _closed({"tool": _TEXT, "params": _OBJECT}, {})
_EVENT = _closed({"type": {"enum": [*EVENTS, *HOOK_EVENTS]}}, {"params": _OBJECT, "description": _TEXT})
_STEP = _closed(
    {},
    {
        "description": _TEXT,
        "action": _ACTION,
        "event": _EVENT,
        "assert_return": _OBJECT,
        "assert_state": _FILES,
    },
)
_NAMED_WORDS = {"type": "object", "additionalProperties": _WORDS}
_COVERS = {
    **_closed({}, {"state_schemas": _NAMED_WORDS, "return_value": _NAMED_WORDS, "description": _TEXT}),
    "anyOf": [
        {"required": [key], "properties": {key: {"type": "object", "minProperties": 1}}}
        for key in ("state_schemas", "return_value")
    ],
}
_CASE = _closed(
    {
        "test_id": {"type": "string", "pattern": "^[a-z][a-z0-9_-]*$"},
        "description": {"type": "string", "minLength": 10},
        "covers": _COVERS,
    },
    {
        "uncovered_params": _WORDS,
        "precondition": _closed({}, {"state_files": _CONTENTS}),
        "action": _ACTION,
        "event": _EVENT,
        "steps": {"type": "array", "minItems": 1, "items": _STEP},
        "postcondition": _closed(
            {},
            {
                "state_files": _FILES,
                "return_value": _OBJECT,
                "error": {"type": "boolean"},
                "error_contains": _TEXT,
            },
        ),
    },
)
_FORM = Type(_CASE)

Problem = tuple[str, str]
"""Where in a case, and what is wrong there."""


def _problems(entry: Any) -> list[Problem]:
    if misfits := _FORM.misfits(entry):
        parts = (misfit.partition(": ") for misfit in misfits)
        return [(where.removesuffix("/"), problem) for where, _, problem in parts]
    return list(_act_problems(entry)) or [*_file_problems(entry), *_expectation_problems(entry)]


def _act_problems(entry: Mapping[str, Any]) -> Iterator[Problem]:
    if sum(key in entry for key in ("action", "event", "steps")) != 1:
        yield "", "it has to have exactly one of action, event and steps"
    for where, part in [("", entry), *_numbered_steps(entry)]:
        if where and ("action" in part) == ("event" in part):
            yield where, "it has to have exactly one of action and event"
        if "action" in part and part["action"]["tool"] not in documented.REPLIES:
            tools = ", ".join(documented.REPLIES)
            yield f"{where}/action/tool", f"there is no tool {part['action']['tool']!r}; there are {tools}"
        if _has_no_reply(part) and part.get("assert_return"):
            yield f"{where}/assert_return", "an event has no reply"
    after = entry.get("postcondition", {})
    if _has_no_reply(entry) and (after.keys() - {"state_files"}):
        yield "/postcondition", "an event has no reply, only state_files"
    if after.get("error") is False and "error_contains" in after:
        yield "/postcondition/error", "error_contains expects an error"


def _has_no_reply(part: Mapping[str, Any]) -> bool:
    return "event" in part and part["event"]["type"] in EVENTS


def _numbered_steps(entry: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    return ((f"/steps/{number}", step) for number, step in enumerate(entry.get("steps", ())))


def _file_problems(entry: Mapping[str, Any]) -> Iterator[Problem]:
    harness = _harness(entry, _steps(entry))
    for where, files in [("/precondition/state_files", _before(entry)), *_expected_files(entry)]:
        for path in files:
            if problem := _path_problem(path, harness):
                yield f"{where}/{path}", problem


def _path_problem(path: str, harness: str) -> str:
    for token in _TOKEN.findall(path):
        if token not in ("STATE_ROOT", "HARNESS_ID"):
            return f"there is no token {{{token}}}; there are {{STATE_ROOT}} and {{HARNESS_ID}}"
    parts = _expanded(path, harness).split("/")
    if "\0" in path or any(part in ("", ".", "..") for part in parts):
        return "a path names a file below the project's folder, without . and .."
    return ""


def _expected_files(entry: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    yield "/postcondition/state_files", entry.get("postcondition", {}).get("state_files", {})
    for where, step in _numbered_steps(entry):
        yield f"{where}/assert_state", step.get("assert_state", {})


def _expectation_problems(entry: Mapping[str, Any]) -> Iterator[Problem]:
    documents = [("/postcondition/return_value", entry.get("postcondition", {}).get("return_value", {}))]
    documents += [
        (f"{where}/assert_return", step.get("assert_return", {})) for where, step in _numbered_steps(entry)
    ]
    for where, files in _expected_files(entry):
        documents += [(f"{where}/{name}", expected or {}) for name, expected in files.items()]
    for where, document in documents:
        for path, expected in document.items():
            if problem := expectation.problem_of(path, expected):
                yield f"{where}/{path}", problem
