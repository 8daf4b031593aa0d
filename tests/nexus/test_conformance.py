"""Fixtures are understood as their format says, run through both doors, and their failures explained."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema_rs
import pytest
from msgspec import inspect
from mutants import (
    EQUIVALENT,
    FIXTURES,
    SOURCE,
    Mutant,
    all_mutants,
    failing,
    killers,
    sample,
    scratch,
    sources_with,
)

from rolecall.errors import UsageError
from rolecall.hosts import lifecycle
from rolecall.nexus import conformance, documented, fixture
from rolecall.nexus.expectation import ABSENT, fits, problem_of, value_at
from rolecall.settings.capabilities import VARIABLE

if TYPE_CHECKING:
    from conftest import Rolecall

PLAN, TASKS, HISTORY = ".nexus/state/plan.json", ".nexus/state/tasks.json", ".nexus/history.json"
TRACKER = "{STATE_ROOT}/{HARNESS_ID}/agent-tracker.json"
SCHEMAS = {
    "plan.schema.json": PLAN,
    "tasks.schema.json": TASKS,
    "history.schema.json": HISTORY,
    "agent-tracker.schema.json": TRACKER,
    "memory-access.schema.json": ".nexus/state/rolecall/memory-access.jsonl",
}
QUICK = {"TMPDIR": scratch() or ""} if scratch() else {}
"""The tools wait for the disk, which here they need not."""
COVERS = {"return_value": {"plan_status": ["active"]}}


@pytest.fixture(autouse=True)
def _in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", scratch())


def a_case(test_id: str = "a_case", /, **fields: Any) -> dict[str, Any]:
    """A case that passes, and what a test changes about it."""
    base = {
        "test_id": test_id,
        "description": "plan_status of an empty project",
        "covers": COVERS,
        "action": {"tool": "plan_status", "params": {}},
        "postcondition": {"return_value": {"$.active": False}},
    }
    return {key: value for key, value in {**base, **fields}.items() if value is not None}


def written(folder: Path, *cases: Any, name: str = "cases.json") -> Path:
    path = folder / "fixtures" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(list(cases)), encoding="utf-8")
    return path.parent


def run(folder: Path, **options: Any) -> list[conformance.CaseResult]:
    found = fixture.load(str(folder))
    assert found.mistakes == []
    options = {"over": ["tools"], "environ": os.environ, **options}
    return conformance.run(found.cases, **options)


# -- our fixtures --

LIFECYCLE = FIXTURES / "lifecycle"


@pytest.mark.parametrize("door", [*conformance.DOORS, "hooks", "hook-command"])
def test_our_tools_and_hooks_pass_our_fixtures_through_every_door(rolecall: Rolecall, door: str) -> None:
    report = rolecall.json("conformance", "run", str(FIXTURES), "--over", door, env=QUICK)
    is_for_hooks = door not in conformance.DOORS
    cases = [case for case in report["cases"] if (case["kind"] == "lifecycle") is is_for_hooks]
    assert report["passed"] is True
    assert report["summary"] == {
        "passed": len(cases),
        "failed": 0,
        "not_run": len(report["cases"]) - len(cases),
        "malformed": 0,
    }
    assert len(cases) > (60 if is_for_hooks else 180)
    assert all(case["over"] == [door] for case in cases)
    assert not rolecall.home.exists()


def test_our_tools_and_hooks_pass_the_given_fixtures(rolecall: Rolecall, shared_data: Path) -> None:
    given = shared_data / "nexus-0.10.0" / "conformance"
    report = rolecall.json("conformance", "run", str(given), env=QUICK)
    assert report["summary"] | {"passed": 0} == {"passed": 0, "failed": 0, "not_run": 0, "malformed": 0}
    doors = {case["test_id"]: case["over"] for case in report["cases"]}
    assert doors.pop("agent_spawn") == ["hooks", "hook-command"]
    assert all(over == ["tools", "mcp"] for over in doors.values())
    assert "schema/fixture.schema.json" in report["passed_over"]


def test_our_fixtures_have_every_event_of_our_hooks_and_of_the_contract() -> None:
    assert lifecycle.EVENTS == fixture.HOOK_EVENTS
    steps = [step for case in our_cases() for step in case.get("steps", [case])]
    reported = {step["event"]["type"] for step in steps if "event" in step}
    assert reported == {*fixture.EVENTS, *fixture.HOOK_EVENTS}


def test_our_fixtures_fit_the_given_schema(shared_data: Path) -> None:
    path = shared_data / "nexus-0.10.0" / "conformance" / "schema" / "fixture.schema.json"
    judge = jsonschema_rs.validator_for(json.loads(path.read_text()))
    for file in FIXTURES.rglob("*.json"):
        if file.parent == LIFECYCLE:  # there, and only there, are events of our own
            continue
        for case in json.loads(file.read_text()):
            if file.parent.name == "text":  # there files are given by their text
                case = without_texts(case)
            judge.validate(case)


def without_texts(case: dict[str, Any]) -> dict[str, Any]:
    files = case["precondition"]["state_files"]
    objects = {path: {} if isinstance(content, str) else content for path, content in files.items()}
    return {**case, "precondition": {"state_files": objects}}


def test_every_field_of_every_reply_and_file_is_expected_somewhere() -> None:
    expected: dict[str, set[str]] = {}
    for case in our_cases():
        for what, paths in expectations(case):
            expected.setdefault(what, set()).update(paths)
    for tool, forms in documented.REPLIES.items():
        for form in forms:
            assert fields(form) <= expected[tool], tool
    for path, form in documented.FILES.items():
        assert fields(form) <= expected[path], path
    assert {f"cycles[].{field}" for field in fields(documented.NEW_CYCLE)} <= expected[HISTORY]


def test_what_our_fixtures_claim_to_cover_they_expect() -> None:
    for case in our_cases():
        expected = dict(expectations(case))
        covers = case["covers"]
        claims = {SCHEMAS[name]: paths for name, paths in covers.get("state_schemas", {}).items()}
        for what, paths in {**claims, **covers.get("return_value", {})}.items():
            for path in paths:
                assert any(re.match(re.escape(path) + r"($|[.\[])", one) for one in expected[what]), path


def our_cases() -> Iterator[dict[str, Any]]:
    for file in FIXTURES.rglob("*.json"):
        yield from json.loads(file.read_text())


def expectations(case: Mapping[str, Any]) -> list[tuple[str, set[str]]]:
    """What a case expects: of which tool's reply or which file, and which fields."""
    found: dict[str, set[str]] = {}
    after = case.get("postcondition", {})
    steps = [*case.get("steps", ())] or [case]
    parts = [(name_event_or_call(step), step.get("assert_return", {})) for step in steps]
    parts += [(parts[-1][0], after.get("return_value", {}))]
    if after.get("error") or "error_contains" in after:
        parts += [(parts[-1][0], {"$.error": ""})]
    for step in steps:
        parts += step.get("assert_state", {}).items()
    for what, expected in [*parts, *after.get("state_files", {}).items()]:
        found.setdefault(what, set()).update(plain(path) for path in expected or {})
    return list(found.items())


def name_event_or_call(step: Mapping[str, Any]) -> str:
    return str(step["action"]["tool"] if "action" in step else step["event"]["type"])


def plain(path: str) -> str:
    """A path as coverage is told: no numbers of entries, and a length is its list."""
    named = re.sub(r"\[-?\d+\]", "[]", path).removeprefix("$").removeprefix(".").removesuffix(".length")
    return named.removeprefix("[].")


def fields(form: Any, at: str = "") -> set[str]:
    """The fields that hold values, and the lists, in a documented type."""
    kind = form if isinstance(form, inspect.Type) else inspect.type_info(form)
    if isinstance(kind, inspect.Metadata):
        kind = kind.type
    if isinstance(kind, inspect.UnionType):
        inner = [part for part in kind.types if isinstance(part, inspect.StructType | inspect.ListType)]
        return set().union(*(fields(part, at) for part in inner)) or {at}
    if isinstance(kind, inspect.ListType):
        below = fields(kind.item_type, f"{at}[]")
        return {at} | (below if below != {f"{at}[]"} else set())
    if isinstance(kind, inspect.StructType):
        found = [fields(field.type, f"{at}.{field.name}" if at else field.name) for field in kind.fields]
        return set().union(*found)
    return {at}


def test_the_case_in_the_documentation_passes(tmp_path: Path) -> None:
    page = (FIXTURES.parents[2] / "docs" / "project.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```json\n(\{\n  \"test_id\".*?)```", page, re.DOTALL)
    assert [result.status for result in run(written(tmp_path, json.loads(example)))] == ["passed"]


# -- mutants: `make mutants` tries more of them --


def test_mutants_are_made_of_every_tool_and_the_sample_is_the_same_every_time() -> None:
    functions = {mutant.function for mutant in all_mutants()}
    assert set(documented.REPLIES) <= functions
    assert sample() == sample()


@pytest.mark.parametrize("mutant", sample()[::30], ids=str)
def test_a_tool_that_is_broken_is_noticed(mutant: Mutant) -> None:
    assert killers(mutant) or f"{mutant.file}:{mutant.function}" in EQUIVALENT


def test_sources_that_nobody_changed_pass() -> None:
    with sources_with({}) as path:
        assert failing(path, FIXTURES / "scenarios") == ([], [])


# -- what the runner expects of every case --


def broken_run(folder: Path, cases: Path, door: str = "tools", **changed: str) -> dict[str, Any]:
    """The report on these cases with other code at the beginning of a tool."""
    text = (SOURCE / "nexus" / "tools.py").read_text()
    for tool, code in changed.items():
        text, count = re.subn(
            rf"(?s)(\ndef {tool}\(.*?\) -> \w+:\n    \"\"\".*?\"\"\"\n)", rf"\g<1>    {code}\n", text
        )
        assert count == 1
    with sources_with({"tools.py": text}) as path:
        done = subprocess.run(
            [sys.executable, "-P", "-c", "from rolecall.__main__ import command; raise SystemExit(command())",
             "conformance", "run", str(cases), "--over", door, "--format", "json"],
            env={**os.environ, **QUICK, "PYTHONPATH": str(path), "ROLECALL_HOME": str(folder / "home")},
            capture_output=True, check=False, timeout=60,
        )  # fmt: skip
    assert done.returncode == 1, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def test_a_field_that_nobody_documented_is_noticed_in_a_case_that_says_nothing_of_it(tmp_path: Path) -> None:
    cases = written(tmp_path, a_case())
    report = broken_run(tmp_path, cases, plan_status='return {"active": False, "mood": "calm"}')
    (failure,) = report["cases"][0]["failures"]
    assert failure["at"] == "always"
    assert "mood" in failure["found"]


@pytest.mark.parametrize(
    ("code", "path"),
    [
        ('open(os.path.join(project, "notes"), "w").close()', "notes"),
        ("os.mkdir(project_paths.nexus(project))", ".nexus/"),
        ('open(os.path.join(project, "..", "escaped"), "w").close()', "escaped"),
    ],
)
def test_a_reader_that_leaves_a_trace_is_noticed(tmp_path: Path, code: str, path: str) -> None:
    report = broken_run(tmp_path, written(tmp_path, a_case()), plan_status=code)
    (failure,) = report["cases"][0]["failures"]
    assert (failure["at"], failure["what"], failure["found"]) == ("always", path, "changed")
    assert failure["expected"] == "left alone by plan_status"


def test_a_tool_that_writes_a_file_of_another_form_is_noticed(tmp_path: Path) -> None:
    adding = {"tool": "task_add", "params": {"title": "T", "context": "C"}}
    cases = written(tmp_path, a_case(action=adding, postcondition={}))
    code = 'os.makedirs(project_paths.ours(project)); open(project_paths.state(project, "plan.json"), "w").write("[]")'
    report = broken_run(tmp_path, cases, task_add=code)
    (failure,) = report["cases"][0]["failures"]
    assert (failure["at"], failure["what"]) == ("always", PLAN)


# -- what goes wrong on the way --


def test_a_tool_that_crashes_fails_its_case_and_the_run_goes_on(tmp_path: Path) -> None:
    listing = {"tool": "task_list", "params": {}}
    wrong = a_case("is_error", postcondition={"error": True})
    right = a_case("other", action=listing, postcondition={"return_value": {"$.exists": False}})
    report = broken_run(tmp_path, written(tmp_path, wrong, right), plan_status="1 / 0")
    assert [case["status"] for case in report["cases"]] == ["failed", "passed"]
    assert "ZeroDivisionError" in report["cases"][0]["failures"][0]["found"]


def test_a_server_that_ends_fails_its_case_and_another_is_started(tmp_path: Path) -> None:
    adding = {"tool": "task_add", "params": {"title": "T", "context": "C"}}
    cases = written(tmp_path, a_case("ends"), a_case("goes_on", action=adding, postcondition={}))
    report = broken_run(tmp_path, cases, "mcp", plan_status="os._exit(3)")
    assert [case["status"] for case in report["cases"]] == ["failed", "passed"]
    (failure,) = report["cases"][0]["failures"]
    assert "ended with 3" in failure["found"]
    assert failure["over"] == "mcp"


# -- the command --


def test_a_failure_is_explained_by_path_expected_and_found(rolecall: Rolecall, tmp_path: Path) -> None:
    start = {"tool": "plan_start", "params": {"topic": "T", "issues": ["A"], "research_summary": ""}}
    state = {PLAN: {"$.issues[0].status": "decided"}, TASKS: {}, HISTORY: None}
    wrong = a_case(
        "wrong", action=start, postcondition={"return_value": {"$.plan_id": 2}, "state_files": state}
    )
    folder = written(tmp_path, wrong, a_case())
    done = rolecall("conformance", "run", str(folder), "--over", "both", "--json", check=1, env=QUICK)
    report = json.loads(done.stdout)
    assert report["summary"] == {"passed": 1, "failed": 1, "not_run": 0, "malformed": 0}
    found = [tuple(failure.values()) for failure in report["cases"][0]["failures"]]
    at = "postcondition"
    explained = [
        (at, "reply", "$.plan_id", "2", "1"),
        (at, PLAN, "$.issues[0].status", '"decided"', '"pending"'),
        (at, TASKS, "", "the file", "nothing"),
    ]
    assert found == [(door, *one) for door in ("tools", "mcp") for one in explained]
    text = rolecall(
        "conformance", "run", str(folder), "--over", "tools", "--format", "text", check=1, env=QUICK
    )
    assert re.search(r"^wrong +failed +cases\.json$", text.stdout, re.MULTILINE)
    assert re.search(r"^a_case +passed +cases\.json$", text.stdout, re.MULTILINE)
    assert "  over tools, postcondition, reply, $.plan_id: expected 2, found 1\n" in text.stdout
    assert text.stdout.endswith("1 passed, 1 failed\n")


def test_only_the_named_cases_are_run(rolecall: Rolecall, tmp_path: Path) -> None:
    broken = a_case("broken", covers=None)
    folder = written(tmp_path, a_case("one"), a_case("two"), a_case("three"), broken)
    words = ("conformance", "run", str(folder), "--over", "tools")
    report = rolecall.json(*words, "--only", "two", "--only", "three", env=QUICK)
    assert [case["test_id"] for case in report["cases"]] == ["two", "three"]
    assert report["mistakes"] == []
    assert rolecall(*words, "--only", "broken", check=1, env=QUICK)
    missing = rolecall(*words, "--only", "too", check=3, env=QUICK)
    assert "unknown case 'too'" in missing.stderr and "Did you mean 'two'?" in missing.stderr


def test_cases_that_need_hooks_are_said_and_alone_are_no_success(rolecall: Rolecall, tmp_path: Path) -> None:
    spawn = a_case("spawn", action=None, event={"type": "agent_spawn"}, postcondition={})
    words = ("conformance", "run", str(written(tmp_path, spawn)), "--over", "tools")
    done = rolecall(*words, "--format", "text", check=1, env=QUICK)
    assert "1 not run: needs the hooks" in done.stdout
    written(tmp_path, spawn, a_case())
    done = rolecall(*words, "--format", "text", check=0, env=QUICK)
    assert done.stdout.endswith("1 passed, 0 failed, 1 not run: needs the hooks\n")


def test_a_file_that_is_none_is_reported_and_nobody_waits_for_it(rolecall: Rolecall, tmp_path: Path) -> None:
    folder = written(tmp_path, a_case())
    os.mkfifo(folder / "pipe.json")
    os.symlink("/dev/zero", folder / "device.json")
    report = rolecall.json("conformance", "run", str(folder), "--over", "tools", check=1, env=QUICK)
    assert {mistake["file"] for mistake in report["mistakes"]} == {"pipe.json", "device.json"}
    assert all("it is not a regular file" in mistake["problem"] for mistake in report["mistakes"])
    alone = rolecall("conformance", "run", str(folder / "pipe.json"), "--over", "tools", check=1, env=QUICK)
    assert "it is not a regular file" in alone.stdout + alone.stderr


def test_mistakes_of_authors_are_shown_and_are_no_success(rolecall: Rolecall, tmp_path: Path) -> None:
    folder = written(tmp_path, a_case(), a_case("odd", postcondition={"return_value": {"active": False}}))
    (folder / "cut.json").write_text('[{"test_id":\n')
    done = rolecall(
        "conformance", "run", str(folder), "--over", "tools", "--format", "text", check=1, env=QUICK
    )
    assert "1 passed, 0 failed, 2 malformed\n" in done.stdout
    assert "  cut.json:2:1: it is not JSON: " in done.stdout
    place = "/1/postcondition/return_value/active (odd)"
    assert re.search(rf"  cases\.json:\d+:\d+, {re.escape(place)}: 'active' is not a path", done.stdout)


@pytest.mark.parametrize("content", [None, "empty"])
def test_a_folder_without_fixtures_is_wrong_use(
    rolecall: Rolecall, tmp_path: Path, content: str | None
) -> None:
    folder = tmp_path / "folder"
    if content:
        folder.mkdir()
    rolecall("conformance", "run", str(folder), check=2)


def test_a_run_is_not_bound_by_the_limits_of_who_started_it(rolecall: Rolecall, tmp_path: Path) -> None:
    adding = {"tool": "task_add", "params": {"title": "T", "context": "C"}}
    folder = written(tmp_path, a_case(action=adding, postcondition={"return_value": {"$.task.id": 1}}))
    restricted = {VARIABLE: "no_task_create", **QUICK}
    assert rolecall.json("conformance", "run", str(folder), env=restricted)["passed"] is True


# -- the format --


def test_a_file_is_one_case_or_a_list_of_them(tmp_path: Path) -> None:
    folder = written(tmp_path, a_case("one"), a_case("two"))
    (folder / "single.json").write_text(json.dumps(a_case("three")))
    (folder / "deep").mkdir()
    (folder / "deep" / "more.json").write_text(json.dumps([a_case("four")]))
    (folder / "a.schema.json").write_text(json.dumps({"$schema": "https://json-schema.org/x"}))
    found = fixture.load(str(folder))
    assert [(case.test_id, case.file) for case in found.cases] == [
        ("one", "cases.json"), ("two", "cases.json"), ("three", "single.json"), ("four", "deep/more.json"),
    ]  # fmt: skip
    assert found.passed_over == ["a.schema.json"]
    assert [case.test_id for case in fixture.load(str(folder / "single.json")).cases] == ["three"]


ADD: dict[str, Any] = {"action": {"tool": "task_add", "params": {"title": "T", "context": "C"}}}


@pytest.mark.parametrize(
    ("changed", "place", "problem"),
    [
        ({"test_id": None}, "", "'test_id' is missing"),
        ({"test_id": "Big"}, "/test_id", "must be text that matches"),
        ({"description": "short"}, "/description", "at least 10 characters"),
        ({"covers": None}, "", "'covers' is missing"),
        ({"covers": {}}, "/covers", "must name a field"),
        ({"surprise": 1}, "/surprise", "is not a key of a case"),
        ({"action": None}, "", "exactly one of action, event and steps"),
        ({"event": {"type": "agent_spawn"}}, "", "exactly one of action, event and steps"),
        ({"action": None, "steps": []}, "/steps", "at least 1 entry"),
        ({"action": None, "steps": [{}]}, "/steps/0", "exactly one of action and event"),
        ({"action": None, "steps": [{**ADD, "event": {"type": "agent_spawn"}}]}, "/steps/0", "exactly one of"),
        ({"action": None, "event": {"type": "session_pause"}, "postcondition": {}}, "/event/type", "agent_spawn"),
        ({"action": None, "event": {"type": "agent_spawn"}}, "/postcondition", "an event has no reply"),
        ({"action": {"tool": "nx_task_list", "params": {}}}, "/action/tool", "not 'nx_task_list'"),
        ({"action": {"tool": "task_list"}}, "/action", "'params' is missing"),
        ({"precondition": {"state_files": {"{HOME}/x": {}}}}, "/precondition/state_files/{HOME}/x", "{HOME} is not"),
        ({"precondition": {"state_files": {"../x": {}}}}, "/precondition/state_files/../x", "below the project"),
        ({"precondition": {"state_files": {"/x": {}}}}, "/precondition/state_files//x", "below the project"),
        ({"precondition": {"state_files": {"x": 5}}}, "/precondition/state_files/x", "must be an object, an array"),
        ({"postcondition": {"state_files": {"{HARNESS}": {}}}}, "/postcondition/state_files/{HARNESS}", "is not known"),
        ({"postcondition": {"state_files": {"a": "text"}}}, "/postcondition/state_files/a", "an object or null"),
        ({"postcondition": {"state_files": {"a": {"x": 1}}}}, "/postcondition/state_files/a/x", "is not a path"),
        ({"postcondition": {"return_value": {"$..a": 1}}}, "/postcondition/return_value/$..a", "is not a path"),
        ({"postcondition": {"return_value": {"$.a": [1]}}}, "/postcondition/return_value/$.a", "an array"),
        ({"postcondition": {"return_value": {"$.a": {"b": 1}}}}, "/postcondition/return_value/$.a", "a matcher has"),
        ({"postcondition": {"error": False, "error_contains": "x"}}, "/postcondition/error", "expects an error"),
        ({"action": None, "steps": [{**ADD, "assert_return": {"$.a": {"type": "date"}}}]},
         "/steps/0/assert_return/$.a", "a matcher has the type"),
        ({"action": None, "steps": [{**ADD, "assert_state": {"a/../b": None}}]},
         "/steps/0/assert_state/a/../b", "below the project"),
    ],
)  # fmt: skip
def test_a_case_that_is_not_of_the_format_is_reported_with_its_place(
    tmp_path: Path, changed: dict[str, Any], place: str, problem: str
) -> None:
    found = fixture.load(str(written(tmp_path, a_case("good"), a_case("odd", **changed))))
    assert [case.test_id for case in found.cases] == ["good"]
    (mistake, *_) = found.mistakes
    assert mistake.file == "cases.json"
    assert mistake.place == "/1" + place
    assert problem in mistake.problem
    assert mistake.line and mistake.column
    assert mistake.test_id == (changed.get("test_id", "odd") or "")


@pytest.mark.parametrize(
    ("text", "place", "at", "problem"),
    [
        ("", "", (1, 1), "not JSON"),
        ("[\n\n{]", "", (3, 2), "not JSON"),
        ("[]", "", (0, 0), "empty list"),
        ("5", "/", (1, 1), "must be an object"),
        ('[{"test_id": "a"}, 7]', "/0", (1, 2), "is missing"),
        ('[\n {"test_id": "a",\n  "covers": 7}]', "/0/covers", (3, 13), "must be"),
    ],
)
def test_a_file_that_is_no_fixture_is_reported_and_never_passed_over(
    tmp_path: Path, text: str, place: str, at: tuple[int, int], problem: str
) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    mistake = next(one for one in fixture.load(str(tmp_path)).mistakes if one.place == place)
    assert (mistake.file, mistake.line, mistake.column) == ("x.json", *at)
    assert problem in mistake.problem


def test_a_test_id_that_is_used_twice_is_a_mistake(tmp_path: Path) -> None:
    folder = written(tmp_path, a_case("same"))
    written(tmp_path, a_case("same"), a_case("other"), name="more.json")
    found = fixture.load(str(folder))
    assert [case.test_id for case in found.cases] == ["same", "other"]
    assert found.mistakes == [
        fixture.Mistake("more.json", "/test_id", "the test_id is used before, in cases.json", "same")
    ]


def test_a_file_that_cannot_be_read_is_reported(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_bytes(b"\xff\xfe")
    (mistake,) = fixture.load(str(tmp_path)).mistakes
    assert mistake.file == "x.json" and "cannot be read" in mistake.problem


def test_a_folder_that_is_not_there_is_wrong_use(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        fixture.load(str(tmp_path / "nowhere"))


# -- expectations --


DOCUMENT = {"a": {"b-c": [1, {"d": None}], "length": 7}, "e": True, "f": "x", "n": 2.0}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("$", DOCUMENT), ("$.a.b-c[0]", 1), ("$.a.b-c[-1].d", None), ("$.a.b-c.length", 2), ("$.a.length", 7),
        ("$.a.b-c[2]", ABSENT), ("$.a.b-c[-3]", ABSENT), ("$.x", ABSENT), ("$.x.y[0]", ABSENT), ("$.f.length", ABSENT),
        ("$.a[0]", ABSENT), ("$.e.x", ABSENT),
    ],
)  # fmt: skip
def test_a_path_leads_to_a_value_or_to_nothing(path: str, value: Any) -> None:
    assert problem_of(path, 1) == ""
    assert value_at(DOCUMENT, path) is value or value_at(DOCUMENT, path) == value


def test_a_path_can_begin_with_an_entry_of_a_list() -> None:
    assert value_at([{"a": 1}], "$[0].a") == 1
    assert value_at([5, 6], "$.length") == 2
    assert value_at([5, 6], "$[-1]") == 6


@pytest.mark.parametrize(
    ("expected", "fitting", "unfitting"),
    [
        (None, [None, ABSENT], [False, 0, "", [], {}]),
        (1, [1, 1.0], [True, "1", None, ABSENT, 2]),
        (True, [True], [1, "true", False, ABSENT]),
        (False, [False], [0, None, ABSENT]),
        ("a", ["a"], ["A", "a ", None, ABSENT, ["a"]]),
        ({"type": "number"}, [0, -1.5], [True, "1", None, ABSENT]),
        ({"type": "number", "min": 1, "max": 3}, [1, 2.5, 3], [0, 4, ABSENT]),
        ({"type": "string"}, ["", "a"], [1, None, ABSENT]),
        ({"type": "string", "minLength": 2}, ["ab"], ["a", ["a", "b"]]),
        ({"type": "string", "pattern": "b.d"}, ["abcde"], ["abd", "ABCDE", None]),
        ({"type": "boolean"}, [True, False], [0, "true", None, ABSENT]),
        ({"type": "iso8601"},
         ["2026-04-12T00:00:00.000Z", "2026-04-12T00:00:00+02:00", "2024-02-29t23:59:59z"],
         ["2026-04-12", "2026-04-12 00:00:00Z", "2026-04-12T00:00:00", "2026-02-30T00:00:00Z", 1772443800, None]),
    ],
)  # fmt: skip
def test_a_value_fits_or_does_not(expected: Any, fitting: list[Any], unfitting: list[Any]) -> None:
    assert problem_of("$.a", expected) == ""
    assert all(fits(expected, found) for found in fitting)
    assert not any(fits(expected, found) for found in unfitting)


@pytest.mark.parametrize(
    "matcher",
    [
        {}, {"type": 1}, {"type": "date"}, {"type": "number", "minimum": 1}, {"type": "number", "min": "1"},
        {"type": "string", "min": 1}, {"type": "string", "pattern": "("}, {"type": "string", "minLength": True},
        {"type": "iso8601", "pattern": "Z$"},
    ],
)  # fmt: skip
def test_a_matcher_that_would_say_nothing_is_a_mistake(matcher: dict[str, Any]) -> None:
    assert problem_of("$.a", matcher)


# -- running a case --


def outcome(folder: Path, **fields: Any) -> list[str]:
    """The failures of one case, as what, path, expected, found."""
    (result,) = run(written(folder, a_case(**fields)))
    assert result.status == ("failed" if result.failures else "passed")
    return [
        f"{failure.what} {failure.path} {failure.expected} {failure.found}" for failure in result.failures
    ]


BAD_CALL = {"tool": "plan_decide", "params": {"issue_id": 1, "decision": "Yes."}}


@pytest.mark.parametrize(
    ("action", "postcondition", "failures"),
    [
        (BAD_CALL, {"error": True}, 0),
        (BAD_CALL, {"error_contains": "active plan"}, 0),
        (BAD_CALL, {"return_value": {"$.error": "No active plan session"}}, 0),
        (BAD_CALL, {"error": True, "error_contains": "passive"}, 1),
        (BAD_CALL, {"return_value": {"$.error": "No active plan"}}, 1),
        (BAD_CALL, {}, 1),
        (BAD_CALL, {"error": False}, 1),
        (BAD_CALL, {"return_value": {"$.decided": None}}, 1),
        (None, {"error": True}, 1),
        (None, {"error_contains": "x"}, 1),
        (None, {"error": False}, 0),
        (None, {"return_value": {"$.error": "x"}}, 1),
    ],
)
def test_an_error_is_expected_or_it_is_a_failure(
    tmp_path: Path, action: Any, postcondition: dict[str, Any], failures: int
) -> None:
    changed = {"action": action} if action else {}
    assert len(outcome(tmp_path, postcondition=postcondition, **changed)) == failures


def test_files_are_given_and_expected_as_the_format_says(tmp_path: Path) -> None:
    before = {
        "a.json": {"x": 1},
        "b/c.json": [1, 2],
        "d.md": {"x": 1},
        "e.txt": "as it is\n",
        "gone.json": None,
    }
    after = {
        "a.json": {"$.x": 1}, "b/c.json": {"$.length": 2, "$[-1]": 2}, "d.md": {"$.x": 1}, "e.txt": {},
        "gone.json": None,
    }  # fmt: skip
    given = {"precondition": {"state_files": before}}
    assert outcome(tmp_path, **given, postcondition={"state_files": after}) == []
    wrong = {"a.json": None, "b/c.json": {"$.length": 3}, "e.txt": {"$": 1}, "gone.json": {}}
    assert outcome(tmp_path, **given, postcondition={"state_files": wrong}) == [
        "a.json  no such file it is there",
        "b/c.json $.length 3 2",
        "e.txt  JSON Expecting value: line 1 column 1 (char 0)",
        "gone.json  the file nothing",
    ]


def test_every_step_is_checked_and_the_end_after_the_last(tmp_path: Path) -> None:
    listing = {"action": {"tool": "task_list", "params": {}}}
    steps = [
        {**listing, "assert_return": {"$.exists": True}, "assert_state": {TASKS: {}}},
        {**ADD, "assert_return": {"$.task.id": 2}},
        listing,
    ]
    after = {"return_value": {"$.summary.total": 1, "$.goal": "G"}, "state_files": {PLAN: {}}}
    (result,) = run(written(tmp_path, a_case(action=None, steps=steps, postcondition=after)))
    assert result.kind == "scenario"
    assert [(failure.at, failure.what, failure.path) for failure in result.failures] == [
        ("steps[0]", "reply", "$.exists"),
        ("steps[0]", TASKS, ""),
        ("steps[1]", "reply", "$.task.id"),
        ("postcondition", "reply", "$.goal"),
        ("postcondition", PLAN, ""),
    ]


def test_a_case_never_sees_what_another_left(tmp_path: Path) -> None:
    results = run(written(tmp_path, a_case("one", **ADD, postcondition={}), a_case("two", **ADD, postcondition={
        "return_value": {"$.task.id": 1}})))  # fmt: skip
    assert [result.status for result in results] == ["passed", "passed"]


def test_a_file_that_cannot_be_laid_out_fails_its_case(tmp_path: Path) -> None:
    given = {"state_files": {"a": {"x": 1}, "a/b": {"x": 1}}}
    (result,) = run(written(tmp_path, a_case(precondition=given)))
    (failure,) = result.failures
    assert failure.at == "precondition" and "Error" in failure.found


@pytest.mark.parametrize(
    ("params", "before", "folder"),
    [
        ({"harness_id": "other-nexus"}, [], "other-nexus"),
        (
            {"agent_id": "a-1"},
            [{"harness_id": "claude-nexus", "started_at": "2026-04-12T00:00:00Z"}],
            "claude-nexus",
        ),
        ({}, [], "rolecall"),
    ],
)
def test_events_go_through_the_one_seam_for_hooks(
    tmp_path: Path, params: dict[str, Any], before: list[Any], folder: str
) -> None:
    received: list[tuple[str, dict[str, Any]]] = []

    def tell(project: str, event: str, given: dict[str, Any]) -> None:
        received.append((event, given))
        path = Path(project) / ".nexus" / "state" / folder / "agent-tracker.json"
        entry = {"harness_id": folder, "started_at": "2026-04-12T00:00:00Z", "status": "running"}
        path.write_text(json.dumps([*json.loads(path.read_text()), entry]))

    spawn = {
        "event": {"type": "agent_spawn", "params": params},
        "assert_state": {TRACKER: {"$[-1].status": "running"}},
    }
    case = a_case(
        action=None,
        precondition={"state_files": {TRACKER: before}},
        steps=[spawn, {**ADD, "assert_state": {TRACKER: {"$.length": len(before) + 1}}}],
        postcondition=None,
    )
    (result,) = run(written(tmp_path, case), over=["tools", "seam"], tells={"seam": tell})
    assert result.failures == []
    assert (result.status, result.kind, result.over) == ("passed", "lifecycle", ("seam",))
    assert received == [("agent_spawn", {"harness_id": folder, **params})]


def list_failures(folder: Path, event: str, reply: Any, write: str = "", **after: Any) -> list[str]:
    """The failures of a case with one event, which is answered so and leaves a file."""

    def tell(project: str, _type: str, _params: dict[str, Any]) -> Any:
        if write:
            path = Path(project, write)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("[1]")
        return reply

    case = a_case(action=None, event={"type": event}, postcondition=after)
    (result,) = run(written(folder, case), over=["seam"], tells={"seam": tell})
    return [f"{failure.at} {failure.what} {failure.path}".strip() for failure in result.failures]


def test_what_an_event_is_answered_is_expected_like_the_reply_of_a_tool(tmp_path: Path) -> None:
    answer = {"block": "no"}
    assert (
        list_failures(tmp_path, "pre_tool_use", answer, return_value={"$.block": "no", "$.context": None})
        == []
    )
    assert list_failures(tmp_path, "pre_tool_use", answer, return_value={"$.block": None}) == [
        "postcondition reply $.block"
    ]
    assert list_failures(tmp_path, "session_end", {"error": "x"}) == ["postcondition reply"]
    assert list_failures(tmp_path, "session_end", {"error": "x"}, error=True) == []


@pytest.mark.parametrize(
    ("event", "path", "is_allowed"),
    [
        ("session_start", ".nexus/state/rolecall/sessions.json", True),
        ("session_start", ".nexus/history.json", False),
        ("session_start", ".nexus/state/claude-nexus/agent-tracker.json", False),
        ("session_start", "src/a.py", False),
        ("pre_tool_use", ".nexus/state/rolecall/tool-log.jsonl", False),
        ("user_message", ".nexus/memory/a-b.md", True),
        ("post_tool_use", ".nexus/memory/a-b.md", False),
        ("subagent_spawn", ".nexus/state/rolecall/agent-tracker.json", False),
    ],
)
def test_a_hook_writes_where_hooks_may_and_what_has_its_form(
    tmp_path: Path, event: str, path: str, is_allowed: bool
) -> None:
    failures = list_failures(tmp_path, event, {}, write=path)
    assert (failures == []) is is_allowed
    assert all(failure.startswith("always ") for failure in failures)


def test_cases_without_events_are_not_run_where_only_hooks_are_asked_for(tmp_path: Path) -> None:
    (result,) = run(written(tmp_path, a_case()), over=["seam"], tells={"seam": lambda *_: {}})
    assert (result.status, result.reason) == ("not run", conformance.NEEDS_TOOLS)


def test_a_harness_id_that_leads_elsewhere_is_a_mistake(tmp_path: Path) -> None:
    event = {"type": "agent_spawn", "params": {"harness_id": "../.."}}
    odd = a_case(action=None, event=event, precondition={"state_files": {TRACKER: []}}, postcondition=None)
    (mistake,) = fixture.load(str(written(tmp_path, odd))).mistakes
    assert "below the project's folder" in mistake.problem


def test_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch_folder = tmp_path / "scratch"
    scratch_folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch_folder))
    assert run(written(tmp_path, a_case(**ADD, postcondition={})))[0].status == "passed"
    assert list(scratch_folder.iterdir()) == []
