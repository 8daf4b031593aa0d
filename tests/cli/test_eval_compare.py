"""`eval compare`, `eval gate`, `eval experiment` and `--stop-early` with the installed program and scripted agents."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import commands
import pytest
from conftest import SCRIPTS
from test_eval import wait_until

if TYPE_CHECKING:
    from conftest import Rolecall

DONE = {"type": "object", "properties": {"status": {"enum": ["done", "rejected"]}}, "required": ["status"]}
WORKFLOW: dict[str, Any] = {
    "name": "fix-it",
    "description": "Fixes.",
    "roles": {
        "developer": {"prompt": "Fix it.", "schema": DONE},
        "reviewer": {"prompt": "Review it.", "schema": DONE},
    },
    "graph": {"$START": "developer", "developer": "reviewer", "reviewer": "$END"},
}
FIRST_FAILING = 'n=$(cat n); [ "$n" -ge {count} ]'


class Project:
    """A suite whose tasks have numbers. A developer fails those with a number below what its script says."""

    def __init__(self, rolecall: Rolecall, folder: Path) -> None:
        self.rolecall, self.folder = rolecall, folder
        self.asked = folder / "asked"
        (folder / ".workflows").mkdir()
        (folder / ".workflows/fix-it.yaml").write_text(json.dumps(WORKFLOW))
        self.suite: dict[str, Any] = {
            "workflow": "fix-it",
            "variants": {
                name: {"agents": {"developer": f"scripted:{name}.json", "reviewer": "scripted:reviewer.json"}}
                for name in ("old", "new")
            },
            "judges": {"answer": {"command": ["grep", "-q", "good", "answer"]}},
        }
        self.tasks(8)
        self.script("reviewer", "reviewer", "true")
        self.developer("old", fails=0)
        self.developer("new", fails=0)

    def tasks(self, count: int) -> None:
        self.suite["tasks"] = [
            {"id": f"t{number}", "prompt": f"Task {number}", "setup": ["sh", "-c", f"echo {number} > n"]}
            for number in range(count)
        ]

    def developer(self, name: str, *, fails: int, **more: Any) -> None:
        test = FIRST_FAILING.format(count=fails)
        self.script(name, "developer", f"{test} && echo good > answer || echo bad > answer", **more)

    def script(self, name: str, role: str, command: str, **more: Any) -> None:
        usage = {"input_tokens": 100, "output_tokens": 10, "cost": 0.01}
        log = f"echo {name} >> {self.asked}"
        visit = {
            "run": [["sh", "-c", f"{log}; {command}"]],
            "output": {"status": "done"},
            "usage": usage,
            **more,
        }
        (self.folder / f"{name}.json").write_text(json.dumps({"roles": {role: [visit]}}))

    def count_asked(self, name: str) -> int:
        return self.asked.read_text().split().count(name)

    def __call__(self, *words: str, check: int = 0) -> subprocess.CompletedProcess[str]:
        (self.folder / "suite.yaml").write_text(json.dumps(self.suite))
        return self.rolecall("eval", *words, cwd=self.folder, check=check)

    def json(self, *words: str, check: int = 0) -> Any:
        return json.loads(self(*words, "--json", check=check).stdout.splitlines()[-1])


@pytest.fixture
def project(rolecall: Rolecall, tmp_path: Path) -> Project:
    return Project(rolecall, tmp_path)


def test_two_variants_are_compared_in_pairs(project: Project) -> None:
    project.developer("new", fails=6, usage={"input_tokens": 50, "output_tokens": 5, "cost": 0.002})
    project("run", "suite.yaml")
    shown = project("compare").stdout
    assert max(map(len, shown.splitlines())) <= 80
    assert "6 broken, 0 fixed, 0 flaky, 2 unchanged" in shown and "exact McNemar test" in shown
    assert "they part at step 1 developer: the version of its program" in " ".join(shown.split())
    [found] = project.json("compare")
    assert found["difference"]["value"] == -0.75 and found["difference"]["p_value"] == 2 / 2**6
    cost = next(one for one in found["amounts"] if one["name"] == "cost")
    assert cost["difference"]["value"] == pytest.approx(-0.008)
    broken = next(task for task in found["tasks"] if task["task"] == "t0")
    assert (broken["change"], broken["parting"]["step"], broken["parting"]["role"]) == (
        "broken",
        1,
        "developer",
    )
    assert broken["parting"]["part"] == "version" and broken["parting"]["answered"] == "it left other files"


def test_an_interval_is_whole_on_every_terminal(project: Project) -> None:
    project.tasks(2)
    project.developer(
        "new", fails=1, usage={"input_tokens": 1234567890, "output_tokens": 54321, "cost": 12.3456}
    )
    project("run", "suite.yaml")
    lines = project("compare").stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert any(line.strip() == "(+1,234,622,101 to +1,234,622,101)" for line in lines)
    wide = project.rolecall("eval", "compare", cwd=project.folder, env={"COLUMNS": "120"}).stdout
    assert "  +1,234,622,101 (+1,234,622,101 to +1,234,622,101)  " in wide
    narrow = project.rolecall("eval", "show", cwd=project.folder, env={"COLUMNS": "60"}).stdout
    assert "  1,234,622,321  " in narrow and "…" not in narrow


def test_the_step_where_variants_part_is_the_first_with_another_result(project: Project) -> None:
    project.suite["judges"] = {"shape": {"expression": "output.status = 'done'"}}
    project.suite["variants"]["new"] = {
        "agents": {"developer": "scripted:old.json", "reviewer": "scripted:strict.json"}
    }
    project.script("strict", "reviewer", "true", output={"status": "rejected"})
    project.suite["repeat"] = 3
    project.tasks(1)
    project("run", "suite.yaml")
    [found] = project.json("compare")
    parting = found["tasks"][0]["parting"]
    assert (parting["step"], parting["role"], parting["part"]) == (2, "reviewer", "version")
    assert parting["answered"] == "status is rejected, was done"
    assert found["difference"]["method"] == "exact sign-flip test by task"


def test_runs_of_different_suites_are_compared_on_what_they_share(project: Project) -> None:
    del project.suite["variants"]["new"]
    project("run", "suite.yaml")
    first = project.json("show")["eval"]
    project.tasks(9)
    project.suite["tasks"][1]["prompt"] = "Something else"
    project.suite["tasks"] = project.suite["tasks"][1:]
    project("run", "suite.yaml")
    second = project.json("show")["eval"]
    [found] = project.json("compare", first, second)
    assert found["left_out"] == {
        "t0": f"only in {first}:old",
        "t1": "its prompt, setup or files differ",
        "t8": f"only in {second}:old",
    }
    assert found["difference"]["tasks"] == 6 and found["difference"]["value"] == 0
    project.suite["tasks"] = [{"id": "other", "prompt": "Other", "setup": "echo 1 > n"}]
    project("run", "suite.yaml")
    failed = project("compare", first, project.json("show")["eval"], check=2)
    assert "have no task in common that both judged" in failed.stderr
    assert "has no variant 'none'" in project("compare", f"{first}:none", second, check=2).stderr
    assert "nothing can be compared with" in project("compare", first, check=2).stderr


def test_a_comparison_says_the_same_on_another_machine(project: Project, tmp_path: Path) -> None:
    project.developer("new", fails=2)
    project("run", "suite.yaml")
    here = project.json("compare")
    run = project.json("show")["eval"]
    project("export", run, str(tmp_path / "run.tgz"))
    other = str(tmp_path / "other.db")
    project.rolecall("cas", "import", str(tmp_path / "run.tgz"), "--store", other, check=0)
    assert project.json("compare", run, "--store", other) == here


def test_a_gate_stops_what_is_worse_and_nothing_else(project: Project) -> None:
    del project.suite["variants"]["new"]
    said = project("gate", "suite.yaml", "--against", "main", check=3).stderr
    assert "no base and no run 'main'" in said and "rolecall eval gate SUITE --save main" in said
    project("gate", "suite.yaml", "--save", "main")
    project("gate", "suite.yaml", "--against", "main")
    assert project.count_asked("old") == 8  # unchanged work is not asked again
    project.developer("old", fails=3)
    shown = project("gate", "suite.yaml", "--against", "main").stdout
    assert "passed: not worse than the base" in shown and "3 broken" in shown
    project.developer("old", fails=5)
    shown = project("gate", "suite.yaml", "--against", "main", "--save", "main", check=1).stdout
    assert "worse: worse than the base: old" in shown and "✗ t4: broken, 1 of 1 → 0 of 1" in shown
    project.developer("old", fails=0)
    project.suite["tasks"] = project.suite["tasks"][:4]
    few = project("gate", "suite.yaml", "--against", "main")
    assert "with 4 tasks this gate can never fail" in few.stderr
    assert project.json("gate", "suite.yaml", "--against", "main")["decision"] == "passed"


def test_a_gate_names_variants_that_its_base_does_not_have(project: Project) -> None:
    project("gate", "suite.yaml", "--save", "main")
    project.developer("added", fails=8)
    project.suite["variants"]["added"] = {
        "agents": {"developer": "scripted:added.json", "reviewer": "scripted:reviewer.json"}
    }
    shown = project("gate", "suite.yaml", "--against", "main").stdout
    assert shown.endswith(
        "\n\npassed: not worse than the base; not compared, because the base has none: added\n"
    )


def test_a_gate_without_verdicts_is_not_decided(project: Project) -> None:
    del project.suite["variants"]["new"]
    project("gate", "suite.yaml", "--save", "main")
    project.developer("old", fails=0, fail={"ending": "failed", "reason": "the model is gone"})
    undecided = project("gate", "suite.yaml", "--against", "main", check=6)
    assert "undecided: 8 threads could not run or be judged" in undecided.stdout
    assert "continue: rolecall eval gate --against main suite.yaml" in undecided.stderr


def test_a_run_stops_when_the_answer_is_clear(project: Project) -> None:
    project.tasks(24)
    project.developer("new", fails=24)
    shown = project("run", "suite.yaml", "--stop-early", "--at-once", "2").stdout
    assert "stopped early: new is worse after" in shown
    report = project.json("show")
    assert report["status"] == "done" and report["stoppedEarly"]
    assert 8 <= report["counts"]["failed"] <= 12 and report["counts"]["open"] >= 18
    [found] = project.json("compare")
    assert any("stopped early" in note for note in found["notes"])
    project.developer("new", fails=0)
    project("run", "suite.yaml", "--stop-early")
    report = project.json("show")
    assert not report["stoppedEarly"] and report["counts"]["passed"] == 48


def test_a_gate_stops_when_the_answer_is_clear(project: Project) -> None:
    del project.suite["variants"]["new"]
    project.tasks(30)
    project("gate", "suite.yaml", "--save", "main")
    project.developer("old", fails=30)
    before = project.count_asked("old")
    shown = project("gate", "suite.yaml", "--against", "main", "--stop-early", check=1).stdout
    assert "stopped early: old is worse after" in shown and project.count_asked("old") - before <= 20
    assert "only a run with several variants" in project("run", "suite.yaml", "--stop-early", check=2).stderr


# -- experiments --


def record(project: Project, count: int) -> None:
    """Run threads as people do; the developer fails the first two tasks."""
    project.developer("old", fails=2)
    agents = {"developer": "old", "reviewer": "reviewer"}
    played = {
        name: {**role, "agent": f"scripted:{project.folder / agents[name]}.json"}
        for name, role in WORKFLOW["roles"].items()
    }
    (project.folder / ".workflows/fix-it.yaml").write_text(json.dumps({**WORKFLOW, "roles": played}))
    for number in range(count):
        folder = project.folder / f"work{number}"
        folder.mkdir()
        (folder / "n").write_text(f"{number}\n")
        words = ("run", str(project.folder / ".workflows/fix-it.yaml"), "-p", f"Task {number}")
        project.rolecall(*words, cwd=folder, check=0)
    del project.suite["variants"]


def test_an_experiment_asks_only_what_follows_the_fork(project: Project) -> None:
    record(project, 4)
    assert (project.count_asked("old"), project.count_asked("reviewer")) == (4, 4)
    mend = "echo good > answer"
    project.script("mending", "reviewer", mend, output={"status": "done"})
    words = ("experiment", "suite.yaml", "--fork", "reviewer", "--agent", "reviewer=scripted:mending.json")
    shown = project(*words).stdout
    assert "2 variants × 4 tasks × 1 repeat = 8 threads" in shown and "2 fixed, 0 flaky, 2 unchanged" in shown
    # The developer is not asked again, nor the reviewer as it was, whose answers are known.
    assert [project.count_asked(name) for name in ("old", "reviewer", "mending")] == [4, 4, 4]
    again = project.json(*words, "--fresh")
    assert [project.count_asked(name) for name in ("old", "reviewer", "mending")] == [4, 8, 8]
    [found] = again["comparisons"]
    fixed = next(task for task in found["tasks"] if task["change"] == "fixed")
    assert (fixed["parting"]["step"], fixed["parting"]["role"]) == (2, "reviewer")
    assert again["cells"][0]["paid"]["cost"] == pytest.approx(0.01)  # without the steps before the fork
    assert again["cells"][0]["paid"]["steps"] == 1


def test_costs_that_nobody_reported_after_the_fork_are_not_known(project: Project) -> None:
    record(project, 2)
    project.script("free", "reviewer", "true", usage={})
    report = project.json(
        "experiment", "suite.yaml", "--fork", "reviewer", "--agent", "reviewer=scripted:free.json"
    )
    assert [variant["used"].get("cost") for variant in report["variants"]] == [pytest.approx(0.02), None]
    [found] = report["comparisons"]
    assert [amount["name"] for amount in found["amounts"]] == ["score", "minutes"]


def test_an_experiment_that_was_killed_goes_on(project: Project) -> None:
    record(project, 4)
    opened = project.folder / "open"
    held = f'[ "$(grep -c mending {project.asked})" -lt 3 ] || while [ ! -e {opened} ]; do sleep 0.05; done'
    project.script("mending", "reviewer", f"{held}; echo good > answer")
    (project.folder / "suite.yaml").write_text(json.dumps(project.suite))
    words = ("experiment", "suite.yaml", "--fork", "reviewer", "--agent", "reviewer=scripted:mending.json")
    env = {**os.environ, "ROLECALL_HOME": str(project.rolecall.home)}
    program = (str(SCRIPTS / "rolecall"), "eval", *words, "--at-once", "1")
    with commands.PipedChild(program, env=env, cwd=project.folder) as child:
        wait_until(lambda: project.count_asked("mending") == 3)
        child.send_signal(signal.SIGKILL)
        child.wait()
    opened.touch()
    shown = project(*words).stdout
    assert "continues: 5 of 8 are done" in shown and "2 fixed" in shown
    assert [project.count_asked(name) for name in ("old", "reviewer", "mending")] == [
        4,
        4,
        5,
    ]  # one was interrupted


def test_an_experiment_tries_another_workflow_on_named_threads(project: Project) -> None:
    record(project, 3)
    changed = json.loads((project.folder / ".workflows/fix-it.yaml").read_text())
    changed["roles"]["reviewer"]["prompt"] = "Review it twice."
    (project.folder / "changed.yaml").write_text(json.dumps(changed))
    thread = project.rolecall.json("thread", "list", "--all")[0]["thread"]
    words = ("experiment", "suite.yaml", "--fork", "reviewer", "--workflow", "changed.yaml")
    report = project.json(*words, "--thread", thread)
    assert {cell["task"] for cell in report["cells"]} == {thread} and len(report["cells"]) == 2
    assert [project.count_asked(name) for name in ("old", "reviewer")] == [3, 4]
    missing = project(*words[:3], "tester", check=2)
    assert "fix-it has no role 'tester'" in missing.stderr
    nobody = project(*words[:4], "--agent", "reviewer=nobody", check=2)
    assert "nobody can play reviewer" in nobody.stderr
