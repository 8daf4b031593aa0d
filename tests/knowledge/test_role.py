"""A role that is given passages of the repository with its task: real steps by a program that keeps what it is told."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import commands
import pytest
from definitions import errors_in, require

from knowledge.knowrepo import PROGRAM, Repo
from knowledge.vectorserver import Fault, VectorServer
from rolecall.knowledge.brief import brief
from rolecall.knowledge.query import FoundPassage
from rolecall.knowledge.words import tokens
from rolecall.threads.prompt import assemble
from rolecall.workflow import document, model, yaml
from rolecall.workflow.model import Recall, StoredRole

KEEPING = """
    import pathlib, sys
    told = sys.stdin.read()
    pathlib.Path({folder!r}, str(len(list(pathlib.Path({folder!r}).iterdir())))).write_text(told)
    print("---\\nstatus: done\\n---\\nDid it.")
"""
TASK = "Raise the limit of retries"


class Stage:
    """A workflow of one role in a repository, and a folder with what the agent was told."""

    def __init__(self, repo: Repo, tmp_path: Path, program: Callable[[str], list[str]]) -> None:
        self.repo = repo
        self.told = tmp_path / "told"
        self.told.mkdir()
        self.agent = f"command:{shlex.join(program(KEEPING.format(folder=str(self.told))))}"
        self.file = tmp_path / "change-code.yaml"

    def run(self, knowledge: Any, *, workdir: str = "shared") -> dict[str, Any]:
        """How the thread stands after its one step."""
        role = {
            "goal": "Change it.",
            "meta": {"type": "object", "properties": {"status": {"enum": ["done"]}}, "required": ["status"]},
            "knowledge": knowledge,
            "workdir": workdir,
        }
        graph = {"$START": "developer", "developer": "$END"}
        self.file.write_text(
            json.dumps({"name": "change-code", "roles": {"developer": role}, "graph": graph})
        )
        place = ["--cwd", str(self.repo.folder), "--agent", self.agent]
        self.name = self._thread("start", str(self.file), "-p", TASK, *place)["thread"]
        return self._thread("step", self.name)

    def report(self) -> str:
        """What a person reads about the thread."""
        done = commands.run([PROGRAM, "thread", "read", self.name], env=self.repo.env)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def _thread(self, *words: str) -> dict[str, Any]:
        done = commands.run([PROGRAM, "thread", *words, "--json"], env=self.repo.env)
        assert done.stdout, done.stderr
        reply: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return reply

    @property
    def prompt(self) -> str:
        return max(self.told.iterdir(), key=lambda path: int(path.name)).read_text(encoding="utf-8")


@pytest.fixture
def stage(repo: Repo, tmp_path: Path, program: Callable[[str], list[str]]) -> Stage:
    repo.commit()
    return Stage(repo, tmp_path, program)


def test_the_agent_is_given_passages_for_its_task_with_files_and_lines(stage: Stage) -> None:
    stage.run(True)
    before, found, after = stage.prompt.partition("# From this repository\n")
    assert found and TASK in before
    assert "## src/retry.py:1-3 retry_limit\n\n```\ndef retry_limit(count):" in after


def test_what_the_repository_says_is_what_it_says_now(stage: Stage) -> None:
    stage.run(True)
    stage.repo.write({"src/retry.py": "def retry_limit_of_today(count):\n    return count * 3\n"})
    stage.run(True)
    assert "retry_limit_of_today" in stage.prompt
    assert "return count * 2" not in stage.prompt


def test_a_thread_that_works_in_a_folder_of_its_own_is_told_what_is_in_there(stage: Stage) -> None:
    stage.run(True, workdir="worktree")
    assert "src/retry.py:1-3 retry_limit" in stage.prompt
    assert not stage.repo.index.exists()
    assert stage.repo.json("status", "-g")["repositories"] == []


def test_only_files_that_match_are_looked_at(stage: Stage) -> None:
    stage.run({"tokens": 1000, "path": "docs/"})
    assert "docs/guide.md" in stage.prompt
    assert "retry_limit" not in stage.prompt


def test_a_role_that_wants_none_is_told_nothing_and_needs_no_index(stage: Stage) -> None:
    (stage.repo.folder / "knowledge.yaml").unlink()
    for wanted in (None, False):
        stage.run(wanted)
        assert "# From this repository" not in stage.prompt
    assert not stage.repo.index.exists()


def test_where_it_cannot_be_had_the_agent_and_the_person_are_told_and_the_step_is_taken(stage: Stage) -> None:
    (stage.repo.folder / "knowledge.yaml").unlink()
    assert stage.run(True)["status"] == "completed"
    assert "# From this repository\n\nThe repository cannot be searched for this task" in stage.prompt
    assert "has no knowledge.yaml" in stage.report() and "Write one" in stage.report()


def test_where_it_is_required_and_cannot_be_had_the_thread_waits_and_says_what_to_do(stage: Stage) -> None:
    (stage.repo.folder / "knowledge.yaml").unlink()
    reply = stage.run({"required": True})
    assert reply["status"] == "suspended"
    assert "knowledge.yaml" in reply["reason"] and "Write one" in reply["reason"]
    assert not list(stage.told.iterdir())


def test_an_index_that_git_would_hand_over_is_not_made(stage: Stage) -> None:
    (stage.repo.folder / ".gitignore").write_text("!knowledge.db\n")
    assert stage.run(True)["status"] == "completed" and "knowledge.db*" in stage.report()
    assert not stage.repo.index.exists()


def test_git_ignores_the_index_that_a_role_has_made(stage: Stage) -> None:
    (stage.repo.folder / ".gitignore").write_text("other\n")
    assert stage.run(True)["status"] == "completed" and stage.repo.index.exists()
    assert "knowledge.db" not in stage.repo.git("status", "--porcelain")


def test_an_endpoint_that_is_down_is_told_and_the_step_is_taken(stage: Stage, server: VectorServer) -> None:
    stage.repo.use(server)
    server.faults = [Fault(401, b"no such key")]
    assert stage.run(True)["status"] == "completed"
    assert "HTTP 401: no such key" in stage.report() and "cannot be searched" in stage.prompt


def test_that_an_index_was_made_anew_is_told(stage: Stage) -> None:
    stage.repo.sync()
    stage.repo.index.write_bytes(b"garbage" * 1000)
    assert stage.run(True)["status"] == "completed"
    assert "rebuilt" in stage.report() and "src/retry.py:1-3 retry_limit" in stage.prompt


def test_a_search_that_finds_nothing_is_told(stage: Stage) -> None:
    stage.run({"path": "nowhere/"})
    assert "# From this repository\n\nA search of the repository found nothing for the task." in stage.prompt


# -- the values --


def answer(path: str, text: str, *trail: str) -> FoundPassage:
    return FoundPassage("/repo", path, 3, 9, trail, text, 1.0, False)


@pytest.mark.parametrize("budget", [200, 500, 2000])
def test_a_brief_keeps_to_its_budget_and_names_what_does_not_fit(budget: int) -> None:
    answers = [answer(f"src/part{number}.py", "word " * 150, "Part", "run") for number in range(12)]
    text = brief(answers, budget=budget)
    assert tokens(text) <= budget
    assert text.count("```") // 2 == (budget - 100) // 230
    assert "- src/part11.py:3-9 Part.run" in text or budget < 500


def test_a_brief_of_nothing_says_so() -> None:
    assert brief([], budget=1000) == "A search of the repository found nothing for the task."


def test_a_name_of_several_lines_is_told_in_one() -> None:
    assert "## a\\nb.md:3-9 One Two\n\n```\nx" in brief([answer("a\nb.md", "x", "One\nTwo")], budget=1000)


def test_a_passage_with_fences_stays_inside_its_own() -> None:
    text = brief([answer("a.md", "````\ncode\n````", "Guide", "Use")], budget=1000)
    assert "## a.md:3-9 Guide › Use\n\n`````\n````\ncode\n````\n`````" in text


def test_an_agent_whose_session_goes_on_is_not_told_again() -> None:
    common: dict[str, Any] = {
        "name": "a",
        "task": "t",
        "newest_first": (),
        "instruction": "i",
        "show_command": "s",
    }
    assert "# From this repository\n\nx" in assemble(StoredRole(), **common, knowledge="x").text
    assert "From this repository" not in assemble(StoredRole(), **common, knowledge="x", last_turn=1).text


WORKFLOW = """
name: fix-bug
roles:
  developer:
    goal: Fix it.
    meta: {type: object, properties: {status: {enum: [done]}}, required: [status]}
    knowledge: %s
graph: {$START: developer, developer: $END}
"""


@pytest.mark.parametrize(
    ("written", "wanted"),
    [
        ("true", Recall()),
        ("{}", Recall()),
        ("{tokens: 500, path: docs/}", Recall(500, "docs/")),
        ("{required: true}", Recall(is_required=True)),
        ("{required: false}", Recall()),
        ("false", None),
        ("null", None),
    ],
)
def test_a_role_says_what_it_wants_and_keeps_it_through_the_store(
    written: str, wanted: Recall | None
) -> None:
    read = require(yaml.parse(WORKFLOW % written, source="fix-bug.yaml"))
    role = read.roles["developer"]
    assert role.knowledge == wanted
    payload = model.to_payload(read, {"developer": "X"})
    assert model.from_payload(payload, {"X": role.schema}) == read
    assert ("knowledge" in payload["roles"]["developer"]) == (wanted is not None)
    assert (model.type_of(payload) is model.WORKFLOW_SCHEMA) == (wanted is None)
    again = require(yaml.parse(document.to_yaml(read), source="fix-bug.yaml"))
    assert again == read


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ("12", "must be true, false or a mapping"),
        ("{tokens: 5}", "from 100 to 100,000"),
        ("{tokens: true}", "from 100 to 100,000"),
        ('{path: ""}', "pattern"),
        ("{required: often}", "true or false"),
        ("{query: x}", "'query' is not a key of knowledge"),
    ],
)
def test_what_a_role_cannot_want_is_a_problem_at_its_place(written: str, told: str) -> None:
    problems = errors_in(yaml.parse(WORKFLOW % written, source="fix-bug.yaml"))
    assert [problem.line for problem in problems] == [7]
    assert told in str(problems[0])
