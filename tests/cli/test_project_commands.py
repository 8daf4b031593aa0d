"""`rolecall plan|task|history|artifact`: the tools by hand, on the project one is in."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from terminal import Terminal
from test_imports import HEAVY, modules_of

from rolecall.nexus import tools
from rolecall.settings import yaml12
from rolecall.settings.capabilities import RESTRICTIONS

if TYPE_CHECKING:
    from conftest import Rolecall

Run = Callable[..., Any]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A git work tree, and in it the folder that commands are given from."""
    folder = tmp_path / "project"
    (folder / "src").mkdir(parents=True)
    subprocess.run(["git", "init", "-q", "-b", "feature/x"], cwd=folder, check=True)
    return folder


@pytest.fixture
def run(rolecall: Rolecall, project: Path) -> Run:
    """A command given within the project; its reply."""

    def run_one(*args: str, **options: Any) -> Any:
        return rolecall.json(*args, cwd=project / "src", **options)

    return run_one


@pytest.fixture
def text(rolecall: Rolecall, project: Path) -> Callable[..., str]:
    """What a command shows on a terminal."""

    def show(*args: str) -> str:
        return rolecall(*args, "--format", "text", cwd=project / "src", check=0).stdout.rstrip("\n")

    return show


def state(project: Path, name: str) -> Any:
    return json.loads((project / ".nexus" / name).read_bytes())


# -- plan --


def test_a_plan_is_begun_changed_and_decided(run: Run, project: Path) -> None:
    (project / "src" / "notes.md").write_text("Read.\n")
    reply = run("plan", "start", "Storage", "--issue", "A", "--issue", "B", "--research", "@notes.md")
    assert reply == {
        "created": True,
        "plan_id": 1,
        "topic": "Storage",
        "issueCount": 2,
        "previousArchived": False,
    }
    assert state(project, "state/plan.json")["research_summary"] == "Read.\n"
    assert run("plan", "add", "C")["issue"] == {"id": 3, "title": "C", "status": "pending"}
    assert run("plan", "edit", "3", "C?") == {"edited": True, "issue": {"id": 3, "title": "C?"}}
    assert run("plan", "remove", "2") == {"removed": True, "issue": {"id": 2}}
    how = ("--agent", "architect", "--advice", "architect=Do = it", "--agent-id", "architect=a-1")
    assert run("plan", "decide", "1", "-", *how, input="So.")["remaining"] == [
        {"id": 3, "title": "C?", "status": "pending"}
    ]
    issue = state(project, "state/plan.json")["issues"][0]
    assert issue["decision"] == "So."
    assert (issue["how_agents"], issue["how_summary"], issue["how_agent_ids"]) == (
        ["architect"],
        {"architect": "Do = it"},
        {"architect": "a-1"},
    )
    assert run("plan", "reopen", "1")["issue"] == {"id": 1, "title": "A", "status": "pending"}
    assert run("plan", "status")["summary"] == {"total": 2, "pending": 2, "decided": 0}


def test_a_decision_is_replaced_only_when_that_is_asked_for(
    rolecall: Rolecall, run: Run, text: Callable[..., str], project: Path
) -> None:
    run("plan", "start", "Storage", "--issue", "A", "--issue", "B", "--research", "x")
    run("plan", "decide", "1", "Lines.")
    decided = {"id": 1, "title": "A", "status": "decided", "decision": "Lines."}
    assert state(project, "state/plan.json")["issues"][0] == decided
    refused = rolecall("plan", "decide", "1", "One file.", cwd=project, check=2)
    assert "issue 1 already has a decision: Lines." in refused.stderr and "--again" in refused.stderr
    assert run("plan", "status")["issues"][0]["decision"] == "Lines."
    assert text("plan", "decide", "1", "One file.", "--again") == "decided; 1 left\nreplaces: Lines."
    assert run("plan", "decide", "1", "Two files.", "--again")["replaced"] == "One file."
    run("plan", "reopen", "1")
    assert "replaced" not in run("plan", "decide", "1", "Lines after all.")


def test_plan_status_is_a_table_on_a_terminal(run: Run, text: Callable[..., str]) -> None:
    assert text("plan", "status") == "no plan is active"
    shown = text("plan", "start", "Storage", "--issue", "Which\nformat?", "--research", "")
    assert shown == "plan 1 has 1 issue"
    run("plan", "decide", "1", "Lines.")
    assert text("plan", "status").splitlines() == [
        "plan 1: Storage",
        "id  status   issue → decision",
        " 1  decided  Which format?",
        "             → Lines.",
        "1 of 1 decided",
    ]
    assert text("plan", "start", "Next", "--research", "x") == (
        "plan 2 has 0 issues; the plan before it is in the history"
    )
    assert text("plan", "add", "A") == "issue 1 added"
    assert text("plan", "decide", "1", "x") == "Every issue is decided."


# -- task --


def test_a_task_is_added_with_everything_and_updated(run: Run, project: Path) -> None:
    for title in ("A", "B"):
        run("task", "add", title, "--context", "x")
    task = run(
        "task", "add", "Write", "--context", "-", "--dep", "1", "--dep", "2", "--approach", "a", "--acceptance", "b",
        "--risk", "c", "--plan-issue", "1", "--goal", "Ship", "--decision", "d", "--decision", "e", "--owner", "lead",
        "--owner-agent-id", "x", "--owner-reuse-policy", "resume", input="Why.",
    )["task"]  # fmt: skip
    created = task.pop("created_at")
    assert created.endswith("Z")
    assert task == {
        "id": 3, "title": "Write", "context": "Why.", "approach": "a", "acceptance": "b", "risk": "c",
        "status": "pending", "deps": [1, 2], "plan_issue": 1, "owner": "lead", "owner_agent_id": "x",
        "owner_reuse_policy": "resume",
    }  # fmt: skip
    assert state(project, "state/tasks.json")["decisions"] == ["d", "e"]
    assert run("task", "update", "3", "completed")["task"]["status"] == "completed"
    assert run("task", "list")["summary"]["completed"] == 1


def test_a_task_that_could_never_begin_is_refused(rolecall: Rolecall, run: Run, project: Path) -> None:
    refused = rolecall("task", "add", "A", "--context", "x", "--dep", "1", cwd=project, check=2)
    assert "no task has the id 1" in refused.stderr and "no tasks yet" in refused.stderr
    tools.task_add(str(project), title="A", context="x", deps=[3])  # as over MCP, where nothing is refused
    run("task", "add", "B", "--context", "x", "--dep", "1")
    refused = rolecall("task", "add", "C", "--context", "x", "--dep", "2", "--dep", "9", cwd=project, check=2)
    assert "no task has the id 9" in refused.stderr and "Tasks: 1, 2." in refused.stderr
    refused = rolecall("task", "add", "C", "--context", "x", "--dep", "2", cwd=project, check=2)
    assert "the tasks would wait for each other: 3 after 2 after 1 after 3" in refused.stderr
    assert [task["title"] for task in run("task", "list")["tasks"]] == ["A", "B"]


def test_tasks_are_listed_with_what_can_be_begun(run: Run, text: Callable[..., str]) -> None:
    assert text("task", "list") == "there are no tasks"
    assert text("task", "ready") == "no task is ready"
    assert run("task", "ready") == {"ready": []}
    assert text("task", "add", "First", "--context", "x", "--goal", "Ship it") == "task 1 added"
    run("task", "add", "Second", "--context", "x", "--dep", "1", "--owner", "writer")
    run("task", "add", "Third", "--context", "x")
    assert text("task", "update", "3", "in_progress") == "task 3 is in_progress"
    assert text("task", "list").splitlines() == [
        "goal: Ship it",
        "id  status       owner   after  task",
        " 1  ready                       First",
        " 2  waiting      writer  1      Second",
        " 3  in_progress                 Third",
        "0 of 3 completed, 1 in progress, 1 ready",
    ]
    assert [task["id"] for task in run("task", "ready")["ready"]] == [1]
    run("task", "update", "1", "completed")
    assert "Second" in text("task", "ready")


def test_the_graph_shows_what_can_be_done_at_once_and_what_never_can(
    run: Run, text: Callable[..., str], project: Path
) -> None:
    assert text("task", "graph") == "there are no tasks"
    for title, *deps in (["A"], ["B", "1"], ['C "x"', "1", "2"], ["D", "9"], ["E", "6"], ["F", "5"], ["G"]):
        tools.task_add(str(project), title=title, context="x", deps=[int(dep) for dep in deps])
    run("task", "update", "1", "completed")
    assert text("task", "graph").splitlines() == [
        "1.",
        "  1  completed    A",
        "  7  ready        G",
        "2.",
        "  2  ready        B  <- 1",
        "3.",
        '  3  waiting      C "x"  <- 1, 2',
        "never: they wait for one another, or for a task that does not exist",
        "  4  waiting      D  <- 9",
        "  5  waiting      E  <- 6",
        "  6  waiting      F  <- 5",
    ]
    mermaid = text("task", "graph", "--as", "mermaid").splitlines()
    assert mermaid[0] == "graph TD"
    assert '  t3["3: C #quot;x#quot;"]' in mermaid and "  t2 --> t3" in mermaid
    dot = text("task", "graph", "--as", "dot").splitlines()
    assert (dot[0], dot[-1]) == ("digraph tasks {", "}")
    assert '  "3" [label="3: C \\"x\\""];' in dot and '  "2" -> "3";' in dot


def thousand_tasks(project: Path) -> None:
    """Fifty waves of twenty tasks, twenty of them completed; the last waits for one in three of all before it."""
    tasks = []
    for number in range(1, 1001):
        wave = (number - 1) // 20
        deps = [number - 20] * (wave > 0) if number < 1000 else [*range(1, 300), *range(300, 1000, 3)]
        status = "completed" if wave < 20 else "in_progress" if number == 402 else "pending"
        tasks.append(
            {
                "id": number,
                "title": f"Part {number}",
                "context": "c",
                "status": status,
                "deps": deps,
                "owner": "writer",
            }
        )
    folder = project / ".nexus" / "state"
    folder.mkdir(parents=True)
    (folder / "tasks.json").write_text(json.dumps({"goal": "", "decisions": [], "tasks": tasks}))


def test_the_graph_of_a_thousand_tasks_is_aligned_and_leaves_out_what_is_done(
    text: Callable[..., str], project: Path
) -> None:
    thousand_tasks(project)
    lines = text("task", "graph").splitlines()
    assert lines[:6] == [
        "1. to 20.: 400 tasks, all completed",
        "21.",
        "   401  ready        Part 401  <- 381",
        "   402  in_progress  Part 402  <- 382",
        "   403  ready        Part 403  <- 383",
        "   404  ready        Part 404  <- 384",
    ]
    assert lines[-1] == (
        "  1000  waiting      Part 1000  <- 1-300, 303, 306, 309, 312, 315, 318, 321 and 226 more"
    )
    assert len(lines) == 1 + 600 + 31
    assert max(map(len, lines)) <= 110


def test_the_ready_ones_of_a_thousand_tasks_fit_on_the_screen_with_ids_that_can_be_typed(
    text: Callable[..., str], project: Path
) -> None:
    thousand_tasks(project)
    assert text("task", "ready").splitlines()[:2] == [
        " id  status  owner   after  task",
        "401  ready   writer  381    Part 401",
    ]
    last, counts = text("task", "list").splitlines()[-2:]
    assert last.startswith("1000  waiting      writer  1-300, 303, 306, 309,") and "  Part 1000" in last
    assert counts == "400 of 1000 completed, 1 in progress, 19 ready"


def test_closing_a_cycle_makes_it_searchable(run: Run, text: Callable[..., str], project: Path) -> None:
    assert text("history", "search") == "0 of 0 cycles"
    run("plan", "start", "Storage", "--issue", "A", "--research", "x")
    run("plan", "decide", "1", "Lines.")
    run("task", "add", "T", "--context", "x")
    closed = run("task", "close")
    assert closed["branch"] == "feature/x" and closed["deleted"] == ["plan.json", "tasks.json"]
    assert run("history", "search", "LINES") == {
        "total": 1,
        "showing": 1,
        "cycles": [
            {
                "completed_at": closed["cycle"],
                "branch": "feature/x",
                "topic": "Storage",
                "decisions": [{"title": "A", "decision": "Lines."}],
                "task_count": 1,
            }
        ],
    }
    shown = text("history", "search").splitlines()
    assert shown[0].split() == ["closed", "branch", "topic", "decisions", "tasks"]
    assert shown[1].split() == [closed["cycle"], "feature/x", "Storage", "1", "1"]
    assert shown[-1] == "1 of 1 cycles"


def test_a_cycle_without_a_plan_or_a_task_is_not_closed(rolecall: Rolecall, project: Path) -> None:
    done = rolecall("task", "close", cwd=project, check=2)
    assert "nothing to close" in done.stderr
    assert not (project / ".nexus").exists()
    rolecall("plan", "start", "Storage", "--research", "x", cwd=project, check=0)
    rolecall("task", "close", cwd=project, check=0)


def test_closing_names_tasks_that_are_open_and_on_a_terminal_asks(rolecall: Rolecall, project: Path) -> None:
    for number in range(1, 23):
        rolecall("task", "add", f"Task {number}", "--context", "x", cwd=project, check=0)
    rolecall("task", "update", "1", "completed", cwd=project, check=0)
    asked = Terminal("task", "close", "--project", str(project), home=rolecall.home)
    for text in (
        "21 tasks are not completed:",
        "2 Task 2\r\n",
        "and 1 more",
        "Close the cycle with them? [y/N] ",
    ):
        asked.expect(text)
    asked.type("\n")
    asked.expect("The cycle stays open.")
    assert asked.close() == 1
    assert len(state(project, "state/tasks.json")["tasks"]) == 22
    done = Terminal("task", "close", "--yes", "--project", str(project), home=rolecall.home)
    done.expect("cycle 1 is in the history")
    assert done.close() == 0


def test_in_a_pipe_closing_names_open_tasks_and_goes_on(rolecall: Rolecall, project: Path) -> None:
    rolecall("task", "add", "Write it", "--context", "x", cwd=project, check=0)
    done = rolecall("task", "close", cwd=project, check=0)
    assert "1 task is not completed:\n  1 Write it" in done.stderr


# -- artifact --


def test_an_artifact_comes_from_a_file_or_from_standard_input(
    run: Run, text: Callable[..., str], project: Path
) -> None:
    (project / "src" / "notes.md").write_text("größer", encoding="utf-8")
    path = project / ".nexus/state/artifacts/a/notes.md"
    assert run("artifact", "write", "a/notes.md", "notes.md") == {"success": True, "path": str(path)}
    assert path.read_text(encoding="utf-8") == "größer"
    assert run("artifact", "write", "../a/notes.md", input="piped")["path"] == str(path)
    assert path.read_text() == "piped"
    assert text("artifact", "write", "empty.md") == str(path.parents[1] / "empty.md")


@pytest.mark.parametrize(
    ("args", "data", "said"),
    [
        (("artifact", "write", ".."), b"x", "'..' names no file"),
        (("artifact", "write", "a", "nowhere.md"), b"", "nowhere.md cannot be read"),
        (("artifact", "write", "a"), b"\xff", "standard input is not UTF-8"),
    ],
)
def test_what_cannot_be_an_artifact_is_wrong_use(
    rolecall: Rolecall, project: Path, args: tuple[str, ...], data: bytes, said: str
) -> None:
    done = rolecall(*args, input=data, cwd=project, check=2)
    assert said in done.stderr and done.stdout == ""
    assert not (project / ".nexus").exists()


# -- which project --


def test_the_project_is_the_work_tree_around_or_the_folder_that_is_named(
    rolecall: Rolecall, project: Path, tmp_path: Path
) -> None:
    rolecall("task", "add", "T", "--context", "x", cwd=project / "src", check=0)
    assert (project / ".nexus/state/tasks.json").exists()
    other = tmp_path / "other"
    other.mkdir()
    named = rolecall.json("task", "list", "--project", str(project), cwd=other)
    assert named["summary"]["total"] == 1
    rolecall("task", "add", "T", "--context", "x", "--project", ".", cwd=other, check=0)
    assert (other / ".nexus/state/tasks.json").exists()


def test_outside_git_a_project_has_to_be_named(rolecall: Rolecall, tmp_path: Path) -> None:
    folder = tmp_path / "plain"
    folder.mkdir()
    done = rolecall("plan", "status", cwd=folder, check=2)
    assert str(folder) in done.stderr and "--project DIR" in done.stderr
    done = rolecall("plan", "status", "--project", "typo", cwd=folder, check=2)
    assert "the folder 'typo' does not exist" in done.stderr
    assert list(folder.iterdir()) == []


# -- errors --


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (("plan", "add", "A"), 3, "No active plan session"),
        (("plan", "decide", "1", "x"), 3, "No active plan session"),
        (("task", "update", "1", "completed"), 3, "tasks.json not found"),
        (("plan", "start", "", "--research", "x"), 2, "topic is empty"),
        (("plan", "start", "T"), 2, "--research"),
        (("task", "add", "T"), 2, "--context"),
        (("task", "update", "1", "done"), 2, "invalid choice: 'done'"),
        (("plan", "remove", "x"), 2, "invalid int value"),
        (("plan", "decide", "1", "x", "--advice", "no pair"), 2, "'no pair' is not NAME=VALUE"),
        (("history", "search", "--last", "-1"), 2, "'-1' is not a number of 0 or more"),
        (("history", "search", "--last", "x"), 2, "'x' is not a number of 0 or more"),
    ],
)
def test_what_is_wrong_is_said_on_standard_error_with_an_exit_code(
    rolecall: Rolecall, project: Path, args: tuple[str, ...], code: int, said: str
) -> None:
    done = rolecall(*args, cwd=project, check=code)
    assert said in done.stderr and done.stdout == ""
    assert not (project / ".nexus").exists()


def test_a_damaged_file_has_an_exit_code_of_its_own_and_is_kept(rolecall: Rolecall, project: Path) -> None:
    path = project / ".nexus/state/tasks.json"
    path.parent.mkdir(parents=True)
    path.write_text("{")
    for args in (("task", "list"), ("task", "add", "T", "--context", "x"), ("task", "close")):
        done = rolecall(*args, cwd=project, check=4)
        assert str(path) in done.stderr and "Correct the file or move it away" in done.stderr
    assert path.read_text() == "{"
    (copy,) = (project / ".nexus/state/rolecall/damaged").iterdir()
    assert copy.read_text() == "{" and str(copy) in done.stderr


def test_a_disk_that_refuses_has_an_exit_code_of_its_own(rolecall: Rolecall, project: Path) -> None:
    (project / ".nexus").write_text("in the way")
    done = rolecall("task", "add", "T", "--context", "x", cwd=project, check=5)
    assert ".nexus" in done.stderr


# -- arguments that are no text --

BAD = os.fsdecode(b"x\xff\xfey")


@pytest.mark.parametrize(
    ("args", "refusal"),
    [
        (("plan", "add", BAD), "is not a character"),
        (("plan", "decide", "1", "So.", "--advice", f"a={BAD}"), "is not a character"),
        (("task", "add", BAD, "--context", "c"), "is not a character"),
        (("task", "add", "T", "--context", "c", "--decision", BAD), "is not a character"),
        (("artifact", "write", BAD), "cannot be the name of an artifact"),
    ],
)
def test_bytes_that_are_no_text_are_refused_and_not_stored(
    rolecall: Rolecall, project: Path, args: tuple[str, ...], refusal: str
) -> None:
    rolecall("plan", "start", "T", "--issue", "A", "--research", "r", cwd=project, check=0)
    rolecall("task", "add", "T", "--context", "c", cwd=project, check=0)
    before = [state(project, f"state/{name}.json") for name in ("plan", "tasks")]
    done = rolecall(*args, input=b"", cwd=project, check=2)
    assert refusal in done.stderr
    assert [state(project, f"state/{name}.json") for name in ("plan", "tasks")] == before
    assert not (project / ".nexus/history.json").exists()


@pytest.mark.parametrize("args", [("plan", "decide", "1", "-"), ("artifact", "write", "a.md")])
def test_bytes_on_standard_input_that_are_no_text_are_refused(
    rolecall: Rolecall, project: Path, args: tuple[str, ...]
) -> None:
    rolecall("plan", "start", "T", "--issue", "A", "--research", "r", cwd=project, check=0)
    done = rolecall(*args, input=b"x\xff", cwd=project, check=2)
    assert "standard input is not UTF-8: byte 1 is 0xff" in done.stderr


def test_a_project_may_lie_in_a_folder_whose_name_is_no_text(rolecall: Rolecall, tmp_path: Path) -> None:
    folder = tmp_path / BAD
    folder.mkdir()
    done = rolecall("artifact", "write", "a.md", "--project", str(folder), "--json", input="x", check=0)
    assert json.loads(done.stdout)["path"] == str(folder / ".nexus/state/artifacts/a.md")


# -- what is shown --


def test_what_lies_in_a_project_does_not_steer_the_terminal_through_a_hint(
    rolecall: Rolecall, project: Path
) -> None:
    notes = project / ".nexus/memory"
    notes.mkdir(parents=True)
    (notes / "evil\x1b]0;x\x07-note.md").write_text("x")
    done = rolecall("memory", "read", "evil-notes", cwd=project, check=3)
    assert "evil\\u001b]0;x\\u0007-note" in done.stderr
    assert not set("\x1b\x07") & set(done.stderr)


@pytest.mark.parametrize("kind", ["json", "yaml"])
def test_a_graph_of_tasks_is_given_in_the_form_that_is_asked_for(
    rolecall: Rolecall, project: Path, kind: str
) -> None:
    rolecall("task", "add", "A", "--context", "x", cwd=project, check=0)
    rolecall("task", "add", "B", "--context", "x", "--dep", "1", cwd=project, check=0)
    drawn = rolecall("task", "graph", cwd=project, check=0).stdout
    assert drawn == rolecall("task", "graph", "--format", "text", cwd=project, check=0).stdout
    done = rolecall("task", "graph", "--as", "mermaid", "--format", kind, cwd=project, check=0)
    reply = yaml12.load(done.stdout) if kind == "yaml" else json.loads(done.stdout)
    mermaid = rolecall("task", "graph", "--as", "mermaid", cwd=project, check=0).stdout
    assert reply == {"as": "mermaid", "graph": mermaid.rstrip("\n")}


# -- restrictions --


@pytest.mark.parametrize(
    ("words", "denied"),
    [
        ("no_task_create", {"add"}),
        ("no_task_update,read_only", {"update", "close"}),
        ("no_file_edit,no_task_create,no_task_update", {"add", "update", "close"}),
        ("", set()),
    ],
)
def test_a_role_that_may_not_is_refused_whatever_shell_it_comes_from(
    rolecall: Rolecall, project: Path, words: str, denied: set[str]
) -> None:
    rolecall("task", "add", "T", "--context", "x", cwd=project, check=0)
    verbs = {
        "list": (),
        "ready": (),
        "add": ("T", "--context", "x"),
        "update": ("1", "in_progress"),
        "close": (),
    }
    for verb, args in verbs.items():
        done = rolecall("task", verb, *args, cwd=project, env={"ROLECALL_RESTRICTIONS": words})
        assert done.returncode == (2 if verb in denied else 0)
        assert ("is denied to this role by no_task_" in done.stderr) is (verb in denied)
    rolecall("plan", "status", cwd=project, env={"ROLECALL_RESTRICTIONS": words}, check=0)


PLANNING = {
    "start": ("Another", "--research", "r"),
    "add": ("Who pays?",),
    "remove": ("2",),
    "edit": ("2", "Who pays?"),
    "reopen": ("1",),
    "decide": ("2", "Nobody."),
}


@pytest.mark.parametrize("word", RESTRICTIONS)
def test_a_role_with_any_restriction_is_not_the_lead_and_neither_plans_nor_decides(
    rolecall: Rolecall, project: Path, word: str
) -> None:
    rolecall("plan", "start", "T", "--issue", "A", "--issue", "B", "--research", "r", cwd=project, check=0)
    rolecall("plan", "decide", "1", "So.", cwd=project, check=0)
    before = state(project, "state/plan.json")
    for verb, args in PLANNING.items():
        done = rolecall("plan", verb, *args, cwd=project, env={"ROLECALL_RESTRICTIONS": word}, check=2)
        assert f"is for the lead, and this role is held to {word}" in done.stderr
    assert state(project, "state/plan.json") == before
    rolecall("plan", "status", cwd=project, env={"ROLECALL_RESTRICTIONS": word}, check=0)


@pytest.mark.parametrize("verb", PLANNING)
def test_the_lead_plans_and_decides(rolecall: Rolecall, project: Path, verb: str) -> None:
    rolecall("plan", "start", "T", "--issue", "A", "--issue", "B", "--research", "r", cwd=project, check=0)
    rolecall("plan", verb, *PLANNING[verb], cwd=project, env={"ROLECALL_RESTRICTIONS": ""}, check=0)


def test_a_restriction_that_nobody_knows_is_not_passed_over(rolecall: Rolecall, project: Path) -> None:
    done = rolecall("task", "close", cwd=project, env={"ROLECALL_RESTRICTIONS": "no_tasks"}, check=2)
    assert "'no_tasks'" in done.stderr


# -- start-up --


@pytest.mark.parametrize(
    "args", [("task", "list"), ("plan", "status"), ("history", "search"), ("task", "ready")]
)
def test_reading_a_project_imports_nothing_heavy(
    rolecall: Rolecall, project: Path, args: tuple[str, ...]
) -> None:
    modules = modules_of(rolecall, *args, "--project", os.fspath(project))
    assert not modules & (HEAVY | {"sqlite3"})


# -- secrets --

KEY = "sk-0a1b2c3d4e5f6071"
PEM = "-----BEGIN KEY-----\nMIIEvQIBADANBgkqhkiG\nw0BAQEFAASCBKcwggSj\n-----END KEY-----"
SECRETS = {"SERVICE_API_KEY": KEY, "SIGNING_KEY": PEM}


def kept(project: Path) -> str:
    return "".join(path.read_text() for path in (project / ".nexus").rglob("*") if path.is_file())


def test_no_secret_of_the_environment_is_kept_in_the_state(rolecall: Rolecall, project: Path) -> None:
    indented = PEM.replace("\n", "\n    ")
    commands = [
        [
            "plan",
            "start",
            f"Use {KEY}",
            "--issue",
            f"Is {KEY} safe?",
            "--research",
            f"Found:\n    {indented}",
        ],
        ["plan", "add", f"And {KEY}?"],
        ["plan", "edit", "2", f"Or {KEY}?"],
        ["plan", "decide", "1", f"Keep {KEY}."],
        ["task", "add", f"Take {KEY}", "--context", indented, "--goal", KEY, "--acceptance", PEM],
        ["artifact", "write", "notes.md"],
    ]
    for words in commands:
        done = rolecall(*words, cwd=project, env=SECRETS, input=f"The key is {KEY}.\n", check=0)
        assert KEY not in done.stdout + done.stderr
    found = kept(project)
    assert (
        "Use ***MASKED***" in found and "Take ***MASKED***" in found and "The key is ***MASKED***." in found
    )
    assert not [secret for secret in (KEY, *PEM.split("\n")[1:3]) if secret in found]
