"""Run conformance fixtures against our tools, in process and over MCP, and report the results by test_id.

Every case has its own folder, and nothing outside it is touched. Besides its own expectations, every case must meet
three more: replies and state files have exactly the fields that the contract documents, a tool or hook writes only
where it may, and one that only reads leaves no trace.

Cases with events go through functions that the caller passes in, because hooks are above this room.

`fixture` and `expectation` define what fixtures may contain; the command line shows the report.
"""

from __future__ import annotations

import copy
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import groupby
from typing import Any, Literal, NamedTuple, TypeAlias

from rolecall.errors import RolecallError
from rolecall.nexus import dispatch, documented, expectation, project_paths, tracker
from rolecall.nexus.fixture import Action, Case, Expected, Mistake, Step
from rolecall.nexus.server_child import ServerChild
from rolecall.settings import capabilities

DOORS = ("tools", "mcp")
"""Ways to call a tool: in process, and over the pipe of a `rolecall mcp` child."""
NEEDS_HOOKS, NEEDS_TOOLS = "needs the hooks", "needs the tools"
ALWAYS = "always"
"""Marks expectations that apply to every case, whether it states them or not."""

Call: TypeAlias = "Callable[[str, dict[str, Any]], Any]"
"""Calls a tool by name with parameters. Returns its reply, or `{"error": …}`."""
Tell: TypeAlias = "Callable[[str, str, dict[str, Any]], Any]"
"""Runs the hooks for an event: the project's folder, the type of the event, and its parameters, which include the
harness. Returns the answer, or `{"error": …}`."""

_WRITABLE_FOLDERS = (f".nexus/state/{project_paths.HARNESS}/", ".nexus/state/artifacts/")
_WRITABLE = (*documented.FILES, ".nexus/.gitignore", ".nexus/", ".nexus/state/")
_WRITABLE_BY_HOOKS = (
    *(".nexus/state/tasks.json", ".nexus/state/plan.json", ".nexus/state/agent-tracker.json"),
    *(".nexus/.gitignore", ".nexus/", ".nexus/state/"),
)
_LONGEST = 300


class Failure(NamedTuple):
    over: str
    at: str
    """The place of the expectation in the case, or ALWAYS."""
    what: str
    """`reply`, or the path of a file."""
    path: str
    expected: str
    found: str


class Result(NamedTuple):
    test_id: str
    file: str
    kind: str
    status: Literal["passed", "failed", "not run"]
    reason: str = ""
    failures: Sequence[Failure] = ()
    over: Sequence[str] = ()
    """The doors the case went through."""


class Report(NamedTuple):
    results: Sequence[Result]
    mistakes: Sequence[Mistake]
    """Cases, and whole files, that could not be parsed."""
    passed_over: Sequence[str]

    @property
    def is_good(self) -> bool:
        """Whether at least one case passed, and none failed or was malformed."""
        counts = self.counts
        return bool(counts["passed"]) and not counts["failed"] and not counts["malformed"]

    @property
    def counts(self) -> dict[str, int]:
        statuses = [result.status for result in self.results]
        # The mistakes of one case count once; in a file without cases, each mistake counts.
        malformed = {(mistake.file, mistake.test_id or mistake.place) for mistake in self.mistakes}
        return {
            "passed": statuses.count("passed"),
            "failed": statuses.count("failed"),
            "not_run": statuses.count("not run"),
            "malformed": len(malformed),
        }


def run(
    cases: Sequence[Case],
    over: Sequence[str] = DOORS,
    *,
    environ: Mapping[str, str],
    tells: Mapping[str, Tell] | None = None,
    done: Callable[[int], object] = lambda _: None,
) -> list[Result]:
    """Run all cases and return their results in order. `tells` are additional doors, by name, for cases with events."""
    results: list[Result] = []
    chosen = {name: tell for name, tell in (tells or {}).items() if name in over}
    with tempfile.TemporaryDirectory(prefix="rolecall-conformance-") as scratch:
        # The cases run unrestricted, even if the process that started the run is restricted.
        kept = {name: value for name, value in environ.items() if name != capabilities.VARIABLE}
        kept["ROLECALL_HOME"] = os.path.join(scratch, "home")
        for _, group in groupby(cases, key=lambda case: case.file):
            with _doors(scratch, over, kept, chosen) as doors:
                for case in group:
                    results.append(_result(case, doors))
                    done(len(results))
    return results


def _result(case: Case, doors: Mapping[str, _Door]) -> Result:
    needs_hooks = case.kind == "lifecycle"
    fitting = {name: door for name, door in doors.items() if (door.tell is not None) is needs_hooks}
    if not fitting:
        reason = NEEDS_HOOKS if needs_hooks else NEEDS_TOOLS
        return Result(case.test_id, case.file, case.kind, "not run", reason)
    failures = [
        failure._replace(over=name) for name, door in fitting.items() for failure in _failures(case, door)
    ]
    status: Literal["passed", "failed"] = "failed" if failures else "passed"
    return Result(case.test_id, case.file, case.kind, status, "", failures, tuple(fitting))


# -- doors --


class _Door(NamedTuple):
    root: str
    """A folder that contains only the project, so that writes outside the project are noticed."""
    call: Call
    tell: Tell | None = None

    @property
    def project(self) -> str:
        return os.path.join(self.root, "project")


@contextmanager
def _doors(
    scratch: str, over: Sequence[str], environ: Mapping[str, str], tells: Mapping[str, Tell]
) -> Iterator[dict[str, _Door]]:
    """The doors for the cases of one file, which share a server, as the sessions of a host do."""
    roots = {name: os.path.join(scratch, name) for name in over if name in DOORS or name in tells}
    server = ServerChild(os.path.join(roots.get("mcp", scratch), "project"), environ)

    def call_in_process(project: str, tool: str, params: dict[str, Any]) -> Any:
        try:
            return json.loads(dispatch.call_json(project, tool, copy.deepcopy(params)))
        except RolecallError as error:
            return {"error": error.message}

    doors = {
        name: _Door(
            root,
            server.call if name == "mcp" else partial(call_in_process, os.path.join(root, "project")),
            tells.get(name),
        )
        for name, root in roots.items()
    }
    try:
        yield doors
    finally:
        server.close()


# -- one case --


def _failures(case: Case, door: _Door) -> list[Failure]:
    """The failures of a case through one door."""
    found: list[Failure] = []
    at = "precondition"
    try:
        shutil.rmtree(door.root, ignore_errors=True)
        os.makedirs(door.project)
        for path, content in case.before.items():
            if content is None:
                continue  # the file must be absent, and it is
            target = os.path.join(door.project, path)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            with open(target, "w", encoding="utf-8") as file:
                text = (
                    content if isinstance(content, str) else json.dumps(content, indent=2, ensure_ascii=False)
                )
                file.write(text)
        for step in case.steps:
            at = step.expected[0].at
            found += _step_failures(case, step, door)
    except Exception as exc:  # any crash fails the case, and the run continues
        found.append(_failure(at, "", "", "to be carried out", f"{type(exc).__name__}: {exc}"))
    return found


def _step_failures(case: Case, step: Step, door: _Door) -> Iterator[Failure]:
    before = _files(door.root)
    if isinstance(step.act, Action):
        reply = door.call(step.act.tool, step.act.params)
        yield from _reply_failures(reply, step.expected)
        for misfit in documented.reply_misfits(step.act.tool, reply):
            yield _failure(ALWAYS, "reply", "", "the fields of the contract", misfit)
        may_write = step.act.tool not in documented.READERS
        yield from _write_failures(
            step.act.tool,
            _WRITABLE if may_write else (),
            _WRITABLE_FOLDERS if may_write else (),
            before,
            _files(door.root),
        )
    elif door.tell is not None:
        event = step.act.type
        reply = door.tell(door.project, event, {"harness_id": case.harness, **step.act.params})
        yield from _reply_failures(reply, step.expected)
        # Hooks write only the state and what a user asks to keep; before a tool call they write nothing.
        folders = [f".nexus/state/{name}/" for name in (project_paths.HARNESS, case.harness)]
        folders += [".nexus/memory/", ".nexus/rules/"] if event == "user_message" else []
        may_write = event != "pre_tool_use"
        yield from _write_failures(
            event,
            _WRITABLE_BY_HOOKS if may_write else (),
            tuple(folders) if may_write else (),
            before,
            _files(door.root),
            tracker_file=f".nexus/state/{case.harness}/agent-tracker.json",
        )
    for expected in step.expected:
        for path, content in expected.files.items():
            yield from _file_failures(door.project, expected.at, path, content)


def _file_failures(project: str, at: str, path: str, expected: Mapping[str, Any] | None) -> Iterator[Failure]:
    target = os.path.join(project, path)
    is_there = os.path.lexists(target)
    if expected is None:
        if is_there:
            yield _failure(at, path, "", "no such file", "it is there")
    elif not is_there:
        yield _failure(at, path, "", "the file", "nothing")
    elif expected:
        try:
            with open(target, encoding="utf-8") as file:
                document = json.load(file)
        except ValueError as exc:
            yield _failure(at, path, "", "JSON", str(exc))
        else:
            yield from _misses(at, path, expected, document)


def _reply_failures(reply: Any, expectations: Sequence[Expected]) -> Iterator[Failure]:
    message = reply.get("error") if isinstance(reply, dict) else None
    if message is not None and not any(expected.is_error for expected in expectations):
        yield _failure(expectations[0].at, "reply", "", "no error", _shown(message))
    for expected in expectations:
        if expected.error and (message is None or expected.error_contains not in str(message)):
            words = f" with {_shown(expected.error_contains)}" if expected.error_contains else ""
            yield _failure(expected.at, "reply", "", f"an error{words}", _shown(reply))
        yield from _misses(expected.at, "reply", expected.returns, reply)


def _misses(at: str, what: str, expected: Mapping[str, Any], document: Any) -> Iterator[Failure]:
    for path, value in expected.items():
        found = expectation.value_at(document, path)
        if not expectation.fits(value, found):
            yield _failure(at, what, path, _shown(value), _shown(found))


# -- expectations of every case --


def _write_failures(
    actor: str,
    files: Sequence[str],
    folders: tuple[str, ...],
    before: Mapping[str, bytes],
    after: Mapping[str, bytes],
    *,
    tracker_file: str = "",
) -> Iterator[Failure]:
    """Report changes where nothing may be written, and malformed files."""
    for path in sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path)):
        name = path.removeprefix("project/")
        if name not in files and not name.startswith(folders or ("\0",)):
            yield _failure(ALWAYS, name, "", f"left alone by {actor}", "changed")
            continue
        misfits: list[str] = []
        try:
            if name in documented.FILES and path in after:
                misfits = documented.file_misfits(name, json.loads(after[path]))
            elif name == tracker_file and path in after:
                misfits = [problem for problem in [tracker.problem_of(json.loads(after[path]))] if problem]
        except ValueError as exc:
            misfits = [f"it is not JSON: {exc}"]
        for misfit in misfits:
            yield _failure(ALWAYS, name, "", "the fields of the contract", misfit)


def _files(root: str) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for folder, folders, names in os.walk(root):
        found |= {os.path.relpath(os.path.join(folder, name), root) + "/": b"" for name in folders}
        for name in names:
            path = os.path.join(folder, name)
            with open(path, "rb") as file:
                found[os.path.relpath(path, root)] = file.read()
    return found


# -- formatting --


def _failure(at: str, what: str, path: str, expected: str, found: str) -> Failure:
    return Failure("", at, what, path, expected, found)


def _shown(value: Any) -> str:
    if value is expectation.ABSENT:
        return "nothing"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "…"
