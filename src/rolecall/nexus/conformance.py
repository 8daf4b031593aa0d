"""Runs conformance fixtures against our tools, in process and over MCP, and reports the results by test_id.

Every case has its own folder, and nothing outside the folder is touched. In addition to its own expectations, every
case must meet three more: replies and state files have exactly the fields that the contract documents, a tool or hook
writes only where it is allowed to, and a tool that only reads leaves no trace.

Cases with events are run by functions that the caller passes in, because hooks are in a layer above this one. `fixture`
and `expectation` define what fixtures can contain; the command line shows the report.
"""

from __future__ import annotations

import copy
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Literal, NamedTuple, TypeAlias

from rolecall.errors import RolecallError
from rolecall.nexus import dispatch, documented, expectation, project_paths, tracker
from rolecall.nexus.fixture import Case, Fields, Mistake
from rolecall.nexus.server_child import ServerChild
from rolecall.settings import capabilities
from rolecall.store.canonical import JsonObject

DOORS = ("tools", "mcp")
"""The doors through which a tool is called: in process, and over the pipe of a `rolecall mcp` child."""
NEEDS_HOOKS, NEEDS_TOOLS = "needs the hooks", "needs the tools"
ALWAYS = "always"
"""The mark of expectations that apply to every case, whether the case states them or not."""

Tell: TypeAlias = "Callable[[str, str, JsonObject], Any]"
"""A function that runs the hooks for an event. It takes the project's folder, the type of the event and the event's
parameters, which include the harness, and returns the answer, or `{"error": …}`."""

_WRITABLE_FOLDERS = (f".nexus/state/{project_paths.HARNESS}/", ".nexus/state/artifacts/")
_WRITABLE = (*documented.FILES, ".nexus/.gitignore", ".nexus/", ".nexus/state/")
_WRITABLE_BY_HOOKS = (
    *(".nexus/state/tasks.json", ".nexus/state/plan.json", ".nexus/state/agent-tracker.json"),
    *(".nexus/.gitignore", ".nexus/", ".nexus/state/"),
)
_LONGEST = 300


class CaseFailure(NamedTuple):
    over: str
    """The door through which the case failed."""
    at: str
    """The place of the expectation in the case, or ALWAYS."""
    what: str
    """What failed the expectation: `reply`, or the path of a file."""
    path: str
    expected: str
    found: str


class CaseResult(NamedTuple):
    test_id: str
    file: str
    kind: str
    status: Literal["passed", "failed", "not run"]
    reason: str = ""
    failures: Sequence[CaseFailure] = ()
    over: Sequence[str] = ()
    """The doors through which the case was run."""


class ConformanceReport(NamedTuple):
    over: Sequence[str]
    """The doors through which the fixtures were run."""
    results: Sequence[CaseResult]
    mistakes: Sequence[Mistake]
    """The mistakes in cases and in whole files that could not be parsed."""
    passed_over: Sequence[str]

    @property
    def is_good(self) -> bool:
        """Whether at least one case passed, and none failed or was malformed."""
        counts = self.counts
        return bool(counts["passed"]) and not counts["failed"] and not counts["malformed"]

    @property
    def counts(self) -> dict[str, int]:
        statuses = [result.status for result in self.results]
        # All mistakes in one case count as one; in a file without cases, each mistake counts.
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
) -> list[CaseResult]:
    """Run all cases, and return their results in order. `tells` are the additional doors, for events."""
    results: list[CaseResult] = []
    with tempfile.TemporaryDirectory(prefix="rolecall-conformance-") as scratch:
        # The cases run unrestricted, even if the process that started them is restricted.
        kept = {name: value for name, value in environ.items() if name != capabilities.VARIABLE}
        kept["ROLECALL_HOME"] = os.path.join(scratch, "home")
        for _, group in groupby(cases, key=lambda case: case.file):
            # The cases in one file share a server, like the sessions of a host.
            server = ServerChild(os.path.join(scratch, "mcp", "project"), kept)
            doors = [_Door(name, f"{scratch}/{name}", server, (tells or {}).get(name)) for name in over]
            try:
                for case in group:
                    results.append(_run_case(case, doors))
                    done(len(results))
            finally:
                server.close()
    return results


class _Door(NamedTuple):
    name: str
    root: str
    """A folder that contains only the project, so that writes outside the project are noticed."""
    server: ServerChild
    tell: Tell | None

    @property
    def project(self) -> str:
        return os.path.join(self.root, "project")

    def call(self, tool: str, params: Fields) -> Any:
        """Call a tool and return its reply, or `{"error": …}`."""
        if self.name == "mcp":
            return self.server.call(tool, params)
        try:
            return json.loads(dispatch.call_json(self.project, tool, copy.deepcopy(dict(params))))
        except RolecallError as error:
            return {"error": error.message}


def _run_case(case: Case, doors: Sequence[_Door]) -> CaseResult:
    needs_hooks = case.kind == "lifecycle"
    fitting = [door for door in doors if (door.name not in DOORS) is needs_hooks]
    if not fitting:
        reason = NEEDS_HOOKS if needs_hooks else NEEDS_TOOLS
        return CaseResult(case.test_id, case.file, case.kind, "not run", reason)
    failures: list[CaseFailure] = []
    for door in fitting:
        at = "precondition"
        try:
            shutil.rmtree(door.root, ignore_errors=True)
            os.makedirs(door.project)
            for path, content in case.before.items():
                if content is not None:
                    target = os.path.join(door.project, case.expand(path))
                    os.makedirs(os.path.dirname(target), exist_ok=True)
                    with open(target, "w", encoding="utf-8") as file:
                        file.write(content if isinstance(content, str) else json.dumps(content, indent=2))
            for number in range(len(case.all_steps)):
                at = case.expected_after(number)[0].at if case.expected_after(number) else f"steps[{number}]"
                failures += [failure._replace(over=door.name) for failure in _run_step(case, number, door)]
        except Exception as exc:  # any crash fails the case, but the run continues
            crash = f"{type(exc).__name__}: {exc}"
            failures.append(CaseFailure(door.name, at, "", "", "to be carried out", crash))
    status: Literal["passed", "failed"] = "failed" if failures else "passed"
    names = tuple(door.name for door in fitting)
    return CaseResult(case.test_id, case.file, case.kind, status, "", failures, names)


def _run_step(case: Case, number: int, door: _Door) -> Iterator[CaseFailure]:
    """Carry out a step, and yield every violation of its expectations and of those that always apply."""
    step, expectations, before = case.all_steps[number], case.expected_after(number), _read_files(door.root)
    files: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    if step.action:
        actor = step.action.tool
        reply = door.call(actor, step.action.params)
        if misfit := documented.reply_misfit(actor, reply):
            yield CaseFailure("", ALWAYS, "reply", "", "the fields of the contract", misfit)
        if actor not in documented.READERS:
            files, folders = _WRITABLE, _WRITABLE_FOLDERS
    elif step.event and door.tell:
        actor = step.event.type
        reply = door.tell(door.project, actor, {"harness_id": case.harness, **step.event.params})
        # Hooks write only the state, and what a user asks to keep. Before a tool call, they write nothing.
        if actor != "pre_tool_use":
            files = _WRITABLE_BY_HOOKS
            folders = tuple(f".nexus/state/{name}/" for name in (project_paths.HARNESS, case.harness))
            folders += (".nexus/memory/", ".nexus/rules/") if actor == "user_message" else ()

    message = reply.get("error") if isinstance(reply, dict) else None
    may_fail = any(one.must_fail or one.return_value.get("$.error") is not None for one in expectations)
    if message is not None and not may_fail:
        at = expectations[0].at if expectations else ALWAYS
        yield CaseFailure("", at, "reply", "", "no error", _show(message))
    for expected in expectations:
        words = expected.error_contains or ""
        if expected.must_fail and (message is None or words not in str(message)):
            wanted = f"an error with {_show(words)}" if words else "an error"
            yield CaseFailure("", expected.at, "reply", "", wanted, _show(reply))
        yield from _compare(expected.at, "reply", expected.return_value, reply)

    after = _read_files(door.root)
    for path in sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path)):
        name = path.removeprefix("project/")
        if name not in files and not name.startswith(folders or ("\0",)):
            yield CaseFailure("", ALWAYS, name, "", f"left alone by {actor}", "changed")
        elif path in after and (problem := _find_misfit(name, after[path], case)):
            yield CaseFailure("", ALWAYS, name, "", "the fields of the contract", problem)
    for expected in expectations:
        for path, content in expected.state_files.items():
            name = case.expand(path)
            data = after.get(f"project/{name}", after.get(f"project/{name}/"))
            if content is None and data is not None:
                yield CaseFailure("", expected.at, name, "", "no such file", "it is there")
            elif content is not None and data is None:
                yield CaseFailure("", expected.at, name, "", "the file", "nothing")
            elif content and data is not None:
                try:
                    document = json.loads(data)
                except ValueError as exc:
                    yield CaseFailure("", expected.at, name, "", "JSON", str(exc))
                else:
                    yield from _compare(expected.at, name, content, document)


def _compare(at: str, what: str, expected: Fields, document: Any) -> Iterator[CaseFailure]:
    for path, value in expected.items():
        found = expectation.value_at(document, path)
        if not expectation.fits(value, found):
            yield CaseFailure("", at, what, path, _show(value), _show(found))


def _find_misfit(name: str, data: bytes, case: Case) -> str:
    """Return why a written file violates its form in the contract; empty if it fits, or if it has no form."""
    try:
        if name in documented.FILES:
            return documented.file_misfit(name, json.loads(data))
        is_tracker = name == f".nexus/state/{case.harness}/{tracker.FILE}"
        return tracker.problem_of(json.loads(data)) if is_tracker and case.kind == "lifecycle" else ""
    except ValueError as exc:
        return f"it is not JSON: {exc}"


def _read_files(root: str) -> dict[str, bytes]:
    """Return every file below a folder by its path, and every folder by its path with a trailing slash."""
    found: dict[str, bytes] = {}
    for folder, folders, names in os.walk(root):
        found |= {os.path.relpath(os.path.join(folder, name), root) + "/": b"" for name in folders}
        for name in names:
            path = os.path.join(folder, name)
            with open(path, "rb") as file:
                found[os.path.relpath(path, root)] = file.read()
    return found


def _show(value: Any) -> str:
    if value is expectation.ABSENT:
        return "nothing"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST else text[:_LONGEST] + "…"
