"""The files of a project: what is made, what is left alone, what is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from project_stage import (
    HISTORY,
    PLAN,
    TASKS,
    call_tool,
    cycle,
    files,
    git,
    plan,
    read,
    task,
    tasks_file,
    write,
)

from rolecall.errors import Damaged, StorageError, UsageError
from rolecall.nexus import dispatch, project_paths, state, state_file, tools
from rolecall.nexus.tool_error import WrongCall

OURS = ".nexus/state/rolecall"


def call(project: Path, tool: str, **arguments: Any) -> dict[str, Any]:
    reply: dict[str, Any] = call_tool(project, tool, arguments)
    return reply


def start(project: Path) -> dict[str, Any]:
    return call(project, "plan_start", topic="T", issues=["A"], research_summary="R")


def add(project: Path, **fields: Any) -> dict[str, Any]:
    return call(project, "task_add", **{"title": "T", "context": "C", **fields})


WRITERS: dict[str, Callable[[Path], object]] = {
    "plan_start": start,
    "plan_update": lambda project: call(project, "plan_update", action="add", title="B"),
    "plan_decide": lambda project: call(project, "plan_decide", issue_id=1, decision="So."),
    "task_add": add,
    "task_update": lambda project: call(project, "task_update", id=1, status="completed"),
    "task_close": lambda project: call(project, "task_close"),
}
READERS = ("plan_status", "task_list", "history_search", "context")


# -- the layout --


def test_a_writer_makes_the_folders_a_gitignore_and_nothing_beyond_its_files(tmp_path: Path) -> None:
    add(tmp_path)
    call(tmp_path, "task_close")
    start(tmp_path)
    start(tmp_path)
    call(tmp_path, "artifact_write", filename="a.md", content="x")
    found = files(tmp_path)
    assert found.pop(".nexus/.gitignore") == b"state/\n"
    assert set(found) == {
        ".nexus/",
        ".nexus/history.json",
        ".nexus/state/",
        ".nexus/state/artifacts/",
        ".nexus/state/artifacts/a.md",
        ".nexus/state/plan.json",
        f"{OURS}/",
        f"{OURS}/lock",
    }


def test_git_sees_the_history_and_not_the_state(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    start(tmp_path)
    call(tmp_path, "task_close")
    add(tmp_path)
    shown = subprocess.run(
        ["git", "status", "--porcelain", "-uall"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert shown.stdout.split() == ["??", ".nexus/.gitignore", "??", ".nexus/history.json"]


def test_a_gitignore_that_is_there_is_left_alone(tmp_path: Path) -> None:
    write(tmp_path, ".nexus/.gitignore", "state/\nmine/\n")
    start(tmp_path)
    assert (tmp_path / ".nexus/.gitignore").read_text() == "state/\nmine/\n"


@pytest.mark.parametrize("tool", READERS)
def test_reading_leaves_no_trace_in_a_project_with_state_or_without(tmp_path: Path, tool: str) -> None:
    call(tmp_path, tool)
    assert files(tmp_path) == {}
    write(tmp_path, PLAN, plan(1, "A"))
    write(tmp_path, TASKS, tasks_file(*(task(number) for number in range(1, 2000))))
    write(tmp_path, HISTORY, {"cycles": [cycle(number) for number in range(1, 2000)]})
    before = files(tmp_path)
    call(tmp_path, tool)
    call(tmp_path, tool)
    assert files(tmp_path) == before


def test_what_belongs_to_other_harnesses_and_to_hooks_is_never_touched(tmp_path: Path) -> None:
    names = (
        "claude-nexus/agent-tracker.json",
        "claude-nexus/plan.extension.json",
        "edit-tracker.json",
        "tool-log.jsonl",
        "rolecall/agent-tracker.json",
        "rolecall/memory-access.jsonl",
    )
    theirs = {write(tmp_path, f".nexus/state/{name}", "theirs"): "theirs" for name in names}
    theirs |= {
        write(tmp_path, f".nexus/{name}/note.md", "kept"): "kept" for name in ("memory", "context", "rules")
    }
    start(tmp_path)
    add(tmp_path)
    for _ in range(2):
        call(tmp_path, "task_close")
    assert {path: path.read_text() for path in theirs} == theirs


def test_a_project_that_does_not_exist_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        start(tmp_path / "typo")
    assert files(tmp_path) == {}


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    write(tmp_path, ".nexus", "a file where the folder should be")
    with pytest.raises(StorageError, match=r"\.nexus"):
        start(tmp_path)


def test_a_state_file_keeps_its_mode(tmp_path: Path) -> None:
    kept = write(tmp_path, HISTORY, {"cycles": []})
    kept.chmod(0o640)
    call(tmp_path, "task_close")
    assert len(json.loads(kept.read_bytes())["cycles"]) == 1
    assert kept.stat().st_mode & 0o777 == 0o640


# -- files of other harnesses --


OTHERS: dict[str, tuple[str, Any]] = {
    "a plan with a version": (PLAN, plan(1, "A", schema_version="0.5", research_summary="")),
    "a plan with times of another zone": (PLAN, plan(1, "A", created_at="2026-04-12T02:00:00+02:00")),
    "tasks with a version and an empty goal": (TASKS, {**tasks_file(task(1), goal=""), "schema_version": "0.5"}),
    "tasks with every field": (
        TASKS,
        tasks_file(
            task(1, approach="", acceptance="", risk="", plan_issue=0, owner="lead", owner_agent_id="x/1",
                 owner_reuse_policy="fresh", created_at="2026-04-12T00:00:00Z")
        ),
    ),
    "cycles without versions": (HISTORY, {"cycles": [cycle(1), cycle(None)]}),
    "cycles of several versions": (
        HISTORY,
        {"schema_version": "0.5", "cycles": [cycle(1, schema_version="0.5"), cycle(2, schema_version="1.0")]},
    ),
    "an archived plan with a version": (HISTORY, {"cycles": [cycle(1, plan=plan(1, schema_version="0.5"))]}),
    "a cycle of a detached head": (HISTORY, {"cycles": [cycle(1, branch="")]}),
    "ids written as decimals": (TASKS, '{"goal":"g","decisions":[],"tasks":[{"id":1.0,"title":"T","context":"C",'
                                       '"status":"pending","deps":[]}]}'),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_what_another_harness_wrote_is_read_and_taken_further(tmp_path: Path, name: str) -> None:
    path, content = OTHERS[name]
    write(tmp_path, path, content)
    before = read(tmp_path, path)
    for tool in READERS:
        call(tmp_path, tool)
    add(tmp_path)
    closed = call(tmp_path, "task_close")
    if path == HISTORY:
        assert read(tmp_path, HISTORY)["cycles"][:-1] == before["cycles"]
        assert {**read(tmp_path, HISTORY), "cycles": before["cycles"]} == before
    elif path == TASKS:
        assert read(tmp_path, HISTORY)["cycles"][0]["tasks"][0] == before["tasks"][0]
        assert closed["archived"]["tasks"] == 2
    else:
        before.pop("schema_version", None)
        assert read(tmp_path, HISTORY)["cycles"][0]["plan"] == before


def test_old_cycles_keep_their_bytes_when_one_is_added(tmp_path: Path) -> None:
    entry = '{"completed_at":"2026-04-12T00:00:00Z", "branch":"\\u0061", "plan":null, "tasks":[] }'
    text = '{ "cycles" : [\n\t' + entry + "\n]\n}\n"
    write(tmp_path, HISTORY, text)
    call(tmp_path, "task_close")
    call(tmp_path, "task_close")
    assert (tmp_path / HISTORY).read_text().startswith(text.rstrip("\n}] "))
    assert len(read(tmp_path, HISTORY)["cycles"]) == 3


def test_a_history_has_a_line_for_each_cycle_so_that_versions_can_be_compared(tmp_path: Path) -> None:
    for _ in range(3):
        start(tmp_path)
        call(tmp_path, "task_close")
    first, *lines, last = (tmp_path / HISTORY).read_text().splitlines()
    assert (first, last) == ('{"cycles":[', "]}")
    assert [json.loads(line.rstrip(","))["plan"]["id"] for line in lines] == [1, 2, 3]


# -- damage --


GOOD = {PLAN: plan(1, "A"), TASKS: tasks_file(task(1)), HISTORY: {"cycles": [cycle(1)]}}
DAMAGE: dict[str, Callable[[str], str]] = {
    "empty": lambda _: "",
    "cut off": lambda text: text[: len(text) // 2],
    "not JSON": lambda _: "<<<<<<< HEAD",
    "followed by more": lambda text: text + "}",
    "a list": lambda text: f"[{text}]",
    "null": lambda _: "null",
    "nothing known": lambda _: "{}",
    "an unknown field": lambda text: '{"later": 1,' + text[1:],
    "a merge of two": lambda text: text + text,
    "a list for a name": lambda text: "{[1]: 2," + text[1:],
    "a field twice": lambda text: text[:-1] + ", " + text[1:],
    "NaN": lambda text: text.replace(": 1,", ": NaN,", 1),
    "infinite": lambda text: text.replace(": 1,", ": 1e999,", 1),
    "an id of zero": lambda text: text.replace(": 1,", ": 0,", 1),
    "a truth for a number": lambda text: text.replace(": 1,", ": true,", 1),
    "a comma too many": lambda text: text[:-1] + ",}",
    "nested too deeply": lambda _: "[" * 200_000,
    "a number too long": lambda text: text.replace(": 1,", f": {'9' * 5000},", 1),
}  # fmt: skip
USERS = {
    PLAN: ("plan_start", "plan_update", "plan_decide", "task_close"),
    TASKS: ("task_add", "task_update", "task_close"),
    HISTORY: ("plan_start", "task_close"),
}
SEEN_BY = {PLAN: "plan_status", TASKS: "task_list", HISTORY: "history_search"}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("name", GOOD)
def test_a_damaged_file_is_named_copied_and_never_written_over(
    tmp_path: Path, name: str, damage: str
) -> None:
    for good, content in GOOD.items():
        write(tmp_path, good, content)
    path = write(tmp_path, name, DAMAGE[damage](json.dumps(GOOD[name])))
    before = files(tmp_path)
    with pytest.raises(Damaged) as seen:
        call(tmp_path, SEEN_BY[name])
    assert str(path) in seen.value.message
    assert files(tmp_path) == before
    for tool in USERS[name]:
        with pytest.raises(Damaged) as refused:
            WRITERS[tool](tmp_path)
        assert str(path) in refused.value.message
        (copy,) = (tmp_path / OURS / "damaged").iterdir()
        assert copy.name.startswith(Path(name).name) and str(copy) in refused.value.message
        assert copy.read_bytes() == before[name]
        assert {
            key: data for key, data in files(tmp_path).items() if OURS not in key and "ignore" not in key
        } == before


WRONG_SHAPES = [
    (PLAN, lambda it: it["issues"][0].update(status="done")),
    (PLAN, lambda it: it["issues"][0].update(owner="x")),
    (PLAN, lambda it: it["issues"][0].pop("title")),
    (PLAN, lambda it: it["issues"][0].update(title="")),
    (PLAN, lambda it: it["issues"][0].update(how_agents="x")),
    (PLAN, lambda it: it["issues"][0].update(how_agents=[1])),
    (PLAN, lambda it: it["issues"][0].update(how_summary={"a": 1})),
    (PLAN, lambda it: it["issues"][0].update(how_agent_ids=["a"])),
    (PLAN, lambda it: it["issues"][0].update(decision=None)),
    (PLAN, lambda it: it.update(created_at=1_700_000_000)),
    (PLAN, lambda it: it.update(schema_version="1")),
    (PLAN, lambda it: it.update(topic="")),
    (PLAN, lambda it: it.update(issues={})),
    (PLAN, lambda it: it.pop("created_at")),
    (TASKS, lambda it: it["tasks"][0].update(status="blocked")),
    (TASKS, lambda it: it["tasks"][0].update(deps=["1"])),
    (TASKS, lambda it: it["tasks"][0].update(deps=None)),
    (TASKS, lambda it: it["tasks"][0].pop("deps")),
    (TASKS, lambda it: it["tasks"][0].update(context="")),
    (TASKS, lambda it: it["tasks"][0].update(owner_reuse_policy="never")),
    (TASKS, lambda it: it["tasks"][0].update(plan_issue="1")),
    (TASKS, lambda it: it["tasks"][0].update(extra=1)),
    (TASKS, lambda it: it.update(tasks={})),
    (TASKS, lambda it: it.update(decisions="So.")),
    (TASKS, lambda it: it.pop("goal")),
    (HISTORY, lambda it: it["cycles"][0].update(memoryHint={})),
    (HISTORY, lambda it: it["cycles"][0].pop("plan")),
    (HISTORY, lambda it: it["cycles"][0].update(plan=[])),
    (HISTORY, lambda it: it["cycles"][0].update(tasks=None)),
    (HISTORY, lambda it: it["cycles"][0].update(branch=None)),
    (HISTORY, lambda it: it["cycles"][0].update(schema_version=1)),
    (HISTORY, lambda it: it["cycles"][0]["plan"].update(later=1)),
    (HISTORY, lambda it: it["cycles"].append(None)),
    (HISTORY, lambda it: it.update(schema_version="x")),
]


@pytest.mark.parametrize(("name", "change"), WRONG_SHAPES)
def test_a_file_of_another_shape_is_refused(
    tmp_path: Path, name: str, change: Callable[[Any], object]
) -> None:
    content = json.loads(json.dumps(GOOD[name]))
    write(tmp_path, name, content)
    call(tmp_path, SEEN_BY[name])
    change(content)
    write(tmp_path, name, content)
    with pytest.raises(Damaged, match="cannot be used"):
        call(tmp_path, SEEN_BY[name])


def test_a_damaged_file_in_the_way_of_another_tool_is_none_of_its_business(tmp_path: Path) -> None:
    write(tmp_path, HISTORY, "{")
    add(tmp_path)
    call(tmp_path, "task_update", id=1, status="completed")
    write(tmp_path, TASKS, "{")
    call(tmp_path, "artifact_write", filename="a", content="b")
    (tmp_path / HISTORY).unlink()
    start(tmp_path)
    call(tmp_path, "plan_decide", issue_id=1, decision="So.")
    assert (tmp_path / TASKS).read_text() == "{"


def test_once_the_damaged_file_is_moved_away_work_goes_on(tmp_path: Path) -> None:
    path = write(tmp_path, TASKS, "{")
    with pytest.raises(Damaged):
        add(tmp_path)
    path.rename(tmp_path / "aside.json")
    assert add(tmp_path)["task"]["id"] == 1


# -- large files, which are not read again while they have not changed --


def large(project: Path, name: str, *, indent: int | None) -> dict[str, Any]:
    if name == TASKS:
        content = tasks_file(*(task(number, approach="x" * 50) for number in range(1, 1501)))
    else:
        content = {"cycles": [cycle(number, tasks=[task(1, approach="x" * 50)]) for number in range(1, 1001)]}
    write(project, name, content, indent=indent)
    return content


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("does_remember", [True, False])
def test_a_large_tasks_file_is_added_to_and_changed_like_a_small_one(
    tmp_path: Path, indent: int | None, does_remember: bool
) -> None:
    content = large(tmp_path, TASKS, indent=indent)

    def check() -> None:
        """Both ways of telling the list agree with the file, and the file with what was done."""
        listed = call(tmp_path, "task_list")
        assert json.loads(dispatch.call_json(tmp_path, "task_list")) == listed
        assert read(tmp_path, TASKS) == content
        assert listed["tasks"] == content["tasks"]
        if not does_remember:
            forget()

    check()
    for number in (1501, 1502):
        content["tasks"].append(add(tmp_path, deps=[700])["task"])
        assert content["tasks"][-1]["id"] == number
        check()
    for number, status in ((1502, "completed"), (1, "in_progress"), (700, "completed"), (700, "pending")):
        content["tasks"][number - 1] = call(tmp_path, "task_update", id=number, status=status)["task"]
        assert content["tasks"][number - 1]["id"] == number
        check()
    content["tasks"].append(add(tmp_path, goal="Another goal, ↗", decisions=["So."])["task"])
    content |= {"goal": "Another goal, ↗", "decisions": ["So."]}
    check()
    content["tasks"][4] = call(tmp_path, "task_update", id=5, status="completed")["task"]
    check()


@pytest.mark.parametrize("indent", [None, 2])
def test_a_large_history_is_added_to_and_searched_like_a_small_one(
    tmp_path: Path, indent: int | None
) -> None:
    content = large(tmp_path, HISTORY, indent=indent)
    assert start(tmp_path)["plan_id"] == 1001
    assert start(tmp_path)["plan_id"] == 1002
    assert call(tmp_path, "task_close")["total_cycles"] == 1002
    stored = read(tmp_path, HISTORY)["cycles"]
    assert stored[:1000] == content["cycles"]
    assert [entry["plan"]["id"] for entry in stored[1000:]] == [1001, 1002]
    assert call(tmp_path, "history_search", query='"id":1002,')["total"] == 1
    assert call(tmp_path, "history_search")["total"] == 1002


def forget() -> None:
    """What another process would not remember."""
    state._known.clear()


@pytest.mark.parametrize("does_remember", [True, False])
def test_a_change_by_somebody_else_is_noticed_even_with_the_same_size_and_time(
    tmp_path: Path, does_remember: bool
) -> None:
    large(tmp_path, HISTORY, indent=2)
    start(tmp_path)
    call(tmp_path, "task_close")
    path = tmp_path / HISTORY
    before = path.stat()
    data = path.read_bytes()
    changed = data.replace(b'"id": 700,', b'"id": 999,').replace(b'"id":1001,', b'"id":8888,')
    assert len(changed) == len(data) and changed != data
    while path.stat().st_ctime_ns == before.st_ctime_ns:  # the clock of a file system may tick slowly
        with path.open("r+b") as file:
            file.write(changed)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    if not does_remember:
        forget()
    assert call(tmp_path, "history_search", query='"id":8888,')["total"] == 1
    assert start(tmp_path)["plan_id"] == 8889


@pytest.mark.parametrize("does_remember", [True, False])
def test_damage_to_a_large_file_is_noticed_although_it_was_good_before(
    tmp_path: Path, does_remember: bool
) -> None:
    large(tmp_path, TASKS, indent=None)
    add(tmp_path)
    path = tmp_path / TASKS
    data = path.read_bytes()
    path.write_bytes(data.replace(b'"pending"', b'"pEnding"', 1))
    if not does_remember:
        forget()
    with pytest.raises(Damaged, match="tasks"):
        add(tmp_path)
    path.write_bytes(data)
    assert add(tmp_path)["task"]["id"] == 1502


def test_a_large_tasks_file_put_in_the_place_of_the_history_is_no_history(tmp_path: Path) -> None:
    large(tmp_path, TASKS, indent=None)
    call(tmp_path, "task_list")
    (tmp_path / HISTORY).write_bytes((tmp_path / TASKS).read_bytes())
    with pytest.raises(Damaged, match="history"):
        call(tmp_path, "history_search")


names = st.text(st.sampled_from('aä"\\\n,{}[]🎲 \u2028'), min_size=1, max_size=6)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(names, max_size=4),
    st.sampled_from([(None, True), (0, False), (3, True), (1, False)]),
    st.booleans(),
    st.lists(st.tuples(st.sampled_from(["add", "update", "goal"]), names, st.integers(1, 6)), max_size=8),
)
def test_changes_to_a_file_of_any_writing_do_what_they_do_to_its_value(
    tmp_path_factory: pytest.TempPathFactory,
    titles: list[str],
    writing: tuple[int | None, bool],
    is_list_first: bool,
    steps: list[tuple[str, str, int]],
) -> None:
    project = tmp_path_factory.mktemp("project")
    content = tasks_file(*(task(number, title=title) for number, title in enumerate(titles, 1)))
    content = dict(reversed(content.items())) if is_list_first else content
    text = json.dumps(content, indent=writing[0], ensure_ascii=True)
    write(project, TASKS, text)
    for step, text, number in steps:
        if step == "update":
            if number <= len(content["tasks"]):
                content["tasks"][number - 1] = tools.task_update(project, id=number, status="completed")[
                    "task"
                ]
            continue
        goal = text if step == "goal" else None
        content["tasks"].append(tools.task_add(project, title=text, context="C", goal=goal)["task"])
        content["goal"] = goal or content["goal"]
        assert read(project, TASKS) == content
    assert tools.task_list(project)["tasks"] == content["tasks"]
    assert json.loads(tools.task_list_json(project))["tasks"] == content["tasks"]


def test_a_large_list_is_written_and_replied_as_it_is_after_every_kind_of_change(tmp_path: Path) -> None:
    content = tasks_file(*(task(number, context="c" * 400) for number in range(1, 301)), goal="G")
    write(tmp_path, TASKS, json.dumps(content, indent=2))
    assert json.loads(tools.task_list_json(tmp_path))["tasks"] == content["tasks"]
    for number in range(301, 304):
        content["tasks"].append(tools.task_add(tmp_path, title="Whole \U0001f600", context="C")["task"])
        assert json.loads(tools.task_list_json(tmp_path))["tasks"] == content["tasks"]
        content["tasks"][number - 300] = tools.task_update(tmp_path, id=number - 299, status="completed")[
            "task"
        ]
        assert read(tmp_path, TASKS) == content
        assert json.loads(tools.task_list_json(tmp_path)) == tools.task_list(tmp_path)


def test_half_a_character_is_refused_and_makes_a_file_unusable(tmp_path: Path) -> None:
    with pytest.raises(WrongCall, match="half of a surrogate pair"):
        tools.task_add(tmp_path, title="Half \ud800", context="C")
    with pytest.raises(WrongCall, match="half of a surrogate pair"):
        tools.plan_start(tmp_path, topic="T", issues=["\udfff"], research_summary="")
    assert not (tmp_path / TASKS).exists() and not (tmp_path / PLAN).exists()
    write(tmp_path, TASKS, json.dumps(tasks_file(task(1, title="Half \ud800"))))
    with pytest.raises(Damaged):
        tools.task_list(tmp_path)


# -- what a dead writer noted --


def test_a_note_about_a_cycle_that_somebody_else_added_removes_nothing(tmp_path: Path) -> None:
    stored = write(tmp_path, PLAN, plan(2, "A"))
    write(tmp_path, HISTORY, {"cycles": [cycle(1)]})
    sources = {"plan.json": state_file.digest(stored.read_bytes())}
    note = {"cycle": 0, "completed_at": "2026-04-12T00:00:59.000Z", "sources": sources}
    path = write(tmp_path, f"{OURS}/archiving.json", note)
    add(tmp_path)
    assert stored.exists() and not path.exists()
    write(tmp_path, f"{OURS}/archiving.json", {**note, "completed_at": "2026-04-12T00:00:01.000Z"})
    add(tmp_path)
    assert not stored.exists() and not path.exists()


def test_a_plan_that_came_after_the_one_a_note_tells_of_stays(tmp_path: Path) -> None:
    stored = write(tmp_path, PLAN, plan(2, "A"))
    write(tmp_path, HISTORY, {"cycles": [cycle(1)]})
    note = {"cycle": 0, "completed_at": "2026-04-12T00:00:01.000Z", "sources": {"plan.json": "other bytes"}}
    write(tmp_path, f"{OURS}/archiving.json", note)
    call(tmp_path, "plan_decide", issue_id=1, decision="So.")
    assert json.loads(stored.read_bytes())["issues"][0]["decision"] == "So."


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"cycle": 0, "completed_at": "x", "sources": 3}'])
def test_a_note_that_cannot_be_read_is_named_instead_of_guessed_at(tmp_path: Path, content: str) -> None:
    write(tmp_path, PLAN, plan(2, "A"))
    note = write(tmp_path, f"{OURS}/archiving.json", content)
    with pytest.raises(Damaged) as refused:
        call(tmp_path, "task_close")
    assert str(note) in refused.value.message
    note.unlink()
    call(tmp_path, "task_close")


# -- against the reference --


def test_what_we_write_fits_the_schemas_of_the_contract(tmp_path: Path, shared_data: Path) -> None:
    schemas = shared_data / "nexus-0.10.0" / "conformance" / "state-schemas"
    if not schemas.is_dir():
        pytest.skip("no schemas of the contract beside the project")
    judges = {
        name: jsonschema_rs.validator_for(
            json.loads((schemas / f"{Path(name).stem}.schema.json").read_text()), validate_formats=True
        )
        for name in (PLAN, TASKS, HISTORY)
    }
    start(tmp_path)
    call(tmp_path, "plan_decide", issue_id=1, decision="So.", how_agents=["a"], how_summary={"a": "b"},
         how_agent_ids={"a": "b"})  # fmt: skip
    call(tmp_path, "plan_update", action="add", title="B")
    add(tmp_path, goal="Ship it", decisions=["So."], deps=[1], approach="a", acceptance="b", risk="c", plan_issue=1,
        owner="lead", owner_agent_id="x", owner_reuse_policy="resume")  # fmt: skip
    call(tmp_path, "task_update", id=1, status="in_progress")
    for name in (PLAN, TASKS):
        judges[name].validate(read(tmp_path, name))
    start(tmp_path)
    call(tmp_path, "task_close")
    call(tmp_path, "task_close")
    judges[HISTORY].validate(read(tmp_path, HISTORY))
    assert len(read(tmp_path, HISTORY)["cycles"]) == 3


def test_while_other_threads_run_no_module_is_hidden_from_them() -> None:
    code = """
import sys, threading
from rolecall.nexus import tools

go = threading.Event()
threading.Thread(target=go.wait).start()
try:
    tools.plan_status(".")
finally:
    go.set()
print("typing_extensions" in sys.modules)
"""
    pytest.importorskip("typing_extensions")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


@pytest.mark.parametrize(
    "name", ["", "Claude", "claude nexus", "claude_nexus", "-claude", "5claude", "../claude"]
)
def test_a_harness_has_a_name_of_lower_case_letters_digits_and_hyphens(name: str) -> None:
    with pytest.raises(UsageError, match="is not the name of a harness"):
        project_paths.use_harness(name)
    assert project_paths.is_harness_id("claude-nexus2")


def test_a_long_history_without_plans_counts_none(tmp_path: Path) -> None:
    add(tmp_path, context="x" * 200_000)
    call(tmp_path, "task_close")
    assert start(tmp_path)["plan_id"] == 1
