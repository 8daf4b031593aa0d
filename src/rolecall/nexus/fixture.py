"""Conformance fixtures: cases in JSON that contain calls of tools and their expected results.

Loading reports every mistake of an author with its file and place; no file is skipped silently. The format is that of
nexus-core 0.10.0. Where its own fixtures go beyond its schema, so do we: the content of a file may be an array. We add
two things: a string is the literal text of a file, so that a case can have a damaged file or a git branch; and the
eight events of our hooks, which have a reply, are allowed besides its three events. `conformance` runs the cases.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

from rolecall.errors import UsageError
from rolecall.nexus import documented, expectation, project_paths
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
"""Our hook events, whose reply has `block`, `context` and `notice`."""
STATE_ROOT = ".nexus/state"

_TOKEN = re.compile(r"\{([^{}]*)\}")


class Action(NamedTuple):
    tool: str
    params: dict[str, Any]


class Event(NamedTuple):
    type: str
    params: dict[str, Any]


class Expected(NamedTuple):
    """The expectations after a step."""

    at: str
    """The place of the expectation in the case."""
    returns: Mapping[str, Any]
    files: Mapping[str, Mapping[str, Any] | None]
    error: bool | None = None
    """Whether the reply must be an error; None if the case does not say."""
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
    """The files at the start of the case, by path; None for a file that must not exist."""
    steps: tuple[Step, ...]
    harness: str = project_paths.HARNESS
    """The harness in whose folder agents are tracked."""


class Mistake(NamedTuple):
    """A mistake in a fixture."""

    file: str
    place: str
    problem: str
    test_id: str = ""


class Fixtures(NamedTuple):
    cases: list[Case]
    mistakes: list[Mistake]
    passed_over: list[str]
    """JSON files that are not fixtures and do not look like any, such as schemas."""


def load(folder: str) -> Fixtures:
    """Load every fixture below a folder, or those of one file."""
    if not os.path.exists(folder):
        raise UsageError(f"there is no folder {folder!r}", hint="Name a folder of fixtures, or one file.")
    paths = [] if os.path.isdir(folder) else [folder]
    for root, folders, names in os.walk(folder):
        folders.sort()
        paths += [os.path.join(root, name) for name in sorted(names) if name.endswith(".json")]
    found = Fixtures([], [], [])
    for path in paths:
        _load_file(path, os.path.relpath(path, folder) if os.path.isdir(folder) else path, found)

    # Results are identified by their test_id, so two cases must not have the same one.
    files: dict[str, str] = {}
    for case in list(found.cases):
        if case.test_id in files:
            found.cases.remove(case)
            problem = f"the test_id is used before, in {files[case.test_id]}"
            found.mistakes.append(Mistake(case.file, "/test_id", problem, case.test_id))
        files.setdefault(case.test_id, case.file)
    if not found.cases and not found.mistakes:
        raise UsageError(f"there is no fixture in {folder!r}", hint="Fixtures are .json files.")
    return found


def _load_file(path: str, name: str, found: Fixtures) -> None:
    try:
        if not os.path.isfile(path):  # reading a pipe or a device would not end
            raise ValueError("it is not a regular file")
        with open(path, encoding="utf-8") as file:
            content = json.load(file, object_pairs_hook=_refuse_repeats, parse_constant=_refuse_constant)
    except json.JSONDecodeError as exc:
        found.mistakes.append(Mistake(name, f"line {exc.lineno}", f"it is not JSON: {exc.msg}"))
        return
    except (OSError, ValueError, RecursionError) as exc:
        found.mistakes.append(Mistake(name, "", f"it cannot be read: {exc}"))
        return
    if isinstance(content, dict) and "$schema" in content:
        found.passed_over.append(name)
        return
    if content == []:
        found.mistakes.append(Mistake(name, "", "it is an empty list"))
    entries = enumerate(content) if isinstance(content, list) else [(None, content)]
    for number, entry in entries:
        at = "" if number is None else f"/{number}"
        problems = _problems(entry)
        if not problems:
            found.cases.append(_case(entry, name))
        test_id = entry.get("test_id") if isinstance(entry, dict) else ""
        for where, problem in problems:
            written = test_id if isinstance(test_id, str) else ""
            found.mistakes.append(Mistake(name, at + where or "/", problem, written))


def _refuse_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse repeated keys, which JSON allows, because one of the two expectations would be lost."""
    keys = [key for key, _ in pairs]
    for key in keys:
        if keys.count(key) > 1:
            raise ValueError(f"the key {key!r} stands twice in one object")
    return dict(pairs)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


# -- a case as a value --


def _case(entry: Mapping[str, Any], file: str) -> Case:
    harness = _harness(entry)
    parts = entry.get("steps") or [entry]
    acts: list[Action | Event] = []
    expected: list[tuple[Expected, ...]] = []
    for number, part in enumerate(parts):
        if "action" in part:
            acts.append(Action(part["action"]["tool"], part["action"]["params"]))
        else:
            acts.append(Event(part["event"]["type"], part["event"].get("params", {})))
        files = _expand(part.get("assert_state", {}), harness)
        expected.append((Expected(f"steps[{number}]", part.get("assert_return", {}), files),))
    after = entry.get("postcondition", {})
    text = after.get("error_contains")
    last = Expected(
        "postcondition",
        after.get("return_value", {}),
        _expand(after.get("state_files", {}), harness),
        True if text is not None else after.get("error"),
        text or "",
    )
    # The case's final expectations apply to its last step.
    expected[-1] = (*expected[-1], last) if "steps" in entry else (last,)
    has_events = any(isinstance(act, Event) for act in acts)
    return Case(
        entry["test_id"],
        file,
        entry["description"],
        "lifecycle" if has_events else "scenario" if "steps" in entry else "tool",
        _expand(_before(entry), harness),
        tuple(Step(act, each) for act, each in zip(acts, expected, strict=True)),
        harness,
    )


def _before(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    files: Mapping[str, Any] = entry.get("precondition", {}).get("state_files", {})
    return files


def _harness(entry: Mapping[str, Any]) -> str:
    """The harness that {HARNESS_ID} stands for: from the events, else from an entry in its folder, else ours."""
    told = [part["event"].get("params", {}) for part in entry.get("steps") or [entry] if "event" in part]
    told += [one for content in _before(entry).values() if isinstance(content, list) for one in content]
    for one in told:
        if isinstance(one, dict) and isinstance(named := one.get("harness_id"), str):
            return named
    return project_paths.HARNESS


def _expand(files: Mapping[str, Any], harness: str) -> dict[str, Any]:
    """The files by path, with the tokens replaced."""
    return {
        path.replace("{STATE_ROOT}", STATE_ROOT).replace("{HARNESS_ID}", harness): content
        for path, content in files.items()
    }


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
"""The place in a case, and the problem there."""


def _problems(entry: Any) -> list[Problem]:
    if misfits := _FORM.misfits(entry):
        parts = (misfit.partition(": ") for misfit in misfits)
        return [(where.removesuffix("/"), problem) for where, _, problem in parts]
    return list(_act_problems(entry)) or list(_expectation_problems(entry))


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


def _expectation_problems(entry: Mapping[str, Any]) -> Iterator[Problem]:
    """Problems with file paths, and with the expectations about files and replies."""
    after = entry.get("postcondition", {})
    expected = [("/postcondition/state_files", after.get("state_files", {}))]
    documents = [("/postcondition/return_value", after.get("return_value", {}))]
    for where, step in _numbered_steps(entry):
        expected.append((f"{where}/assert_state", step.get("assert_state", {})))
        documents.append((f"{where}/assert_return", step.get("assert_return", {})))
    harness = _harness(entry)
    for where, files in [("/precondition/state_files", _before(entry)), *expected]:
        for path in files:
            if problem := _path_problem(path, harness):
                yield f"{where}/{path}", problem
    for where, files in expected:
        documents += [(f"{where}/{name}", content or {}) for name, content in files.items()]
    for where, document in documents:
        for path, value in document.items():
            if problem := expectation.problem_of(path, value):
                yield f"{where}/{path}", problem


def _path_problem(path: str, harness: str) -> str:
    for token in _TOKEN.findall(path):
        if token not in ("STATE_ROOT", "HARNESS_ID"):
            return f"there is no token {{{token}}}; there are {{STATE_ROOT}} and {{HARNESS_ID}}"
    (expanded,) = _expand({path: None}, harness)
    if "\0" in path or any(part in ("", ".", "..") for part in expanded.split("/")):
        return "a path names a file below the project's folder, without . and .."
    return ""
