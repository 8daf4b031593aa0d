"""A plan carried out by Claude Code: the real program plays every role of `rolecall plan run`, the model is scripted.

The tasks of each test depend on one another, so that the model's turns come in the order of the script.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from modelserver import Calls, Item, ModelServer, Request

from realagents.hosted import ROLECALL, Hosted, read_text
from realagents.stage import BOUND, Stage, file_text, installed
from rolecall.nexus import resume, tracker

installed("claude")
EDITING = {"Write", "Edit", "MultiEdit", "NotebookEdit"}


def says(status: str, summary: str = "It is so.", **more: Any) -> str:
    return f"---\n{json.dumps({'status': status, 'summary': summary, **more})}\n---\nThe report of it."


def done(*files: str, summary: str = "It is there.") -> str:
    return says("done", summary, files=list(files))


@dataclass
class Plan:
    """A project with tasks, and what became of it when they were run."""

    hosted: Hosted
    model: ModelServer
    rows: dict[int, dict[str, Any]] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    turns: list[Request] = field(default_factory=list)
    """The model's turns of the last run."""

    @property
    def work(self) -> Path:
        return self.hosted.work

    def task(self, title: str, *, owner: str, after: int | None = None, **fields: str) -> None:
        words = ["--owner", owner, *(["--dep", str(after)] if after else [])]
        words += [word for name, value in fields.items() for word in (f"--{name}", value)]
        self.hosted.rolecall("task", "add", title, *words)

    def write(self, name: str, text: str) -> Calls:
        return Calls("Write", {"file_path": str(self.work / name), "content": text})

    def read(self, name: str) -> Calls:
        return Calls("Read", {"file_path": str(self.work / name)})

    def run(self, *script: Item) -> None:
        """Run what is open while the model goes through the script, all of it."""
        seen = len(self.model.turns)
        self.model.add(*script)
        ended = subprocess.run(
            [ROLECALL, "plan", "run", "--json"],
            cwd=self.work,
            env=self.hosted.stage.env,
            capture_output=True,
            text=True,
            timeout=3 * BOUND,  # several tasks, each with some calls of the program
            check=False,
        )
        assert ended.returncode == 0, (ended.stdout[-3000:], ended.stderr)
        *self.events, result = map(json.loads, ended.stdout.splitlines())
        self.rows = {row["task"]: row for row in result["tasks"]}
        self.turns = self.model.turns[seen:]
        assert len(self.turns) == len(script)

    def statuses(self) -> list[str]:
        return [task["status"] for task in self.hosted.rolecall("task", "list")["tasks"]]

    def step(self, task: int, number: int = 1) -> dict[str, Any]:
        """What is known about a step of a task's thread."""
        found: dict[str, Any] = self.hosted.rolecall(
            "thread", "step-details", f"{self.rows[task]['thread']}#{number}"
        )
        return found


@pytest.fixture
def plan(model: ModelServer, tmp_path: Path) -> Plan:
    env = {
        "ANTHROPIC_BASE_URL": model.root_url,
        "ANTHROPIC_API_KEY": "dummy",
        "CLAUDE_CODE_MAX_RETRIES": "0",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_TELEMETRY": "1",
        "DISABLE_ERROR_REPORTING": "1",
        "DISABLE_AUTOUPDATER": "1",
        "CLAUDE_CODE_TMPDIR": str(tmp_path / "tmp"),
    }
    hosted = Hosted(Stage(model, tmp_path, env), "claude")
    hosted.rolecall("config", "set", "defaultAgent", "claude")
    return Plan(hosted, model)


def test_a_plan_is_carried_out_and_checked(plan: Plan) -> None:
    rules = plan.work / ".nexus/rules"
    rules.mkdir(parents=True)
    (rules / "tone.md").write_text("Be kind.")
    plan.task(
        "Write the greeting",
        owner="engineer",
        context="In greeting.txt.",
        approach="One line.",
        acceptance="It says hello.",
    )
    plan.task("Describe it", owner="writer", after=1, context="In README.md.")
    plan.run(
        plan.write("greeting.txt", "hello\n"),
        done("greeting.txt", summary="The greeting is one line."),
        plan.write("greeting.txt", "rubbish\n"),
        says("pass"),
        plan.write("README.md", "It greets.\n"),
        done("README.md"),
    )
    assert plan.statuses() == ["completed", "completed"]
    assert [(row["verdict"], row["agent"], row["files"]) for row in plan.rows.values()] == [
        ("pass", "claude", ["greeting.txt"]),
        ("done", "claude", ["README.md"]),
    ]
    assert file_text(plan.work / "README.md") == "It greets.\n"
    engineer, _, tester, denied, writer, _ = plan.turns

    # What each is told.
    brief = (
        "TASK: Write the greeting\n\nCONTEXT:\nIn greeting.txt.\n\n"
        "APPROACH:\nOne line.\n\nACCEPTANCE:\nIt says hello."
    )
    assert brief in read_text(engineer)
    assert brief in read_text(tester)
    assert ".nexus/rules/: tone.md" in read_text(engineer)
    assert "You write and repair code." in read_text(engineer)
    assert "- Task 1 (Write the greeting), by engineer: The greeting is one line." in read_text(writer)

    # The tester is kept from editing by the program itself.
    assert EDITING & set(engineer.tools) >= {"Write", "Edit"}
    assert EDITING & set(tester.tools) == set()
    assert "No such tool available: Write" in read_text(denied)
    assert file_text(plan.work / "greeting.txt") == "hello\n"


def test_every_agent_is_in_the_tracker_as_the_contract_has_it(plan: Plan) -> None:
    plan.task("Write the greeting", owner="engineer", context="In greeting.txt.", acceptance="It says hello.")
    plan.run(plan.write("greeting.txt", "hello\n"), done("greeting.txt"), says("pass"))
    engineer, tester = tracker.entries(plan.work)  # checks the shape
    thread = plan.rows[1]["thread"]
    assert [(one["agent_name"], one["agent_id"]) for one in (engineer, tester)] == [
        ("engineer", f"{thread}:1"),
        ("tester", f"{thread}:2"),
    ]
    assert [one["status"] for one in (engineer, tester)] == ["completed", "completed"]
    assert (engineer["files_touched"], tester["files_touched"]) == (["greeting.txt"], [])
    assert engineer["last_message"] == "The report of it."


def test_the_engineer_goes_on_in_its_session_with_the_same_file_until_another_has_touched_it(
    plan: Plan,
) -> None:
    plan.task("Write the greeting", owner="engineer", context="In greeting.txt.")
    plan.task("Make it louder", owner="engineer", after=1, context="In greeting.txt.")
    plan.task("Make it nicer", owner="writer", after=2, context="In greeting.txt.")
    plan.task("Make it shorter", owner="engineer", after=3, context="In greeting.txt.")
    plan.run(
        plan.write("greeting.txt", "hello\n"),
        done("greeting.txt"),
        plan.read("greeting.txt"),
        plan.write("greeting.txt", "HELLO\n"),
        done("greeting.txt"),
        plan.read("greeting.txt"),
        plan.write("greeting.txt", "HELLO, dear\n"),
        done("greeting.txt"),
        plan.read("greeting.txt"),
        plan.write("greeting.txt", "HI\n"),
        done("greeting.txt"),
    )
    assert plan.statuses() == ["completed"] * 4
    assert file_text(plan.work / "greeting.txt") == "HI\n"
    first, louder, nicer, shorter = (plan.step(task) for task in (1, 2, 3, 4))
    second_turn, last_turn = plan.turns[2], plan.turns[8]

    assert louder["session"] == first["session"]
    assert f"TASK: Make it louder\n\nFIRST: {resume.REREAD}" in read_text(second_turn)
    assert "TASK: Write the greeting" in read_text(second_turn), "the program has not gone on in the session"

    assert shorter["session"] not in (first["session"], nicer["session"])
    assert shorter["sessionReason"] == f"new: greeting.txt was touched by {plan.rows[3]['thread']}:1 since"
    assert "TASK: Make it shorter" in read_text(last_turn)
    assert resume.REREAD not in read_text(last_turn)
    assert "TASK: Make it louder" not in read_text(last_turn)
    assert [entry.get("resume_count") for entry in tracker.entries(plan.work)] == [1, 0, 0]


def test_hooks_of_ours_in_the_program_neither_stop_a_planned_task_nor_forget_its_agents(plan: Plan) -> None:
    plan.hosted.install()
    plan.task("Write the greeting", owner="engineer", context="In greeting.txt.", acceptance="It says hello.")
    plan.run(plan.write("greeting.txt", "hello\n"), done("greeting.txt"), says("pass"))
    assert plan.statuses() == ["completed"]
    assert [entry["agent_name"] for entry in tracker.entries(plan.work)] == ["engineer", "tester"]
    assert file_text(plan.work / "greeting.txt") == "hello\n"
    assert not plan.hosted.state("rolecall", "hook-errors.log").exists()
    assert [call["tool"] for call in plan.hosted.tool_log()] == ["Write"]
