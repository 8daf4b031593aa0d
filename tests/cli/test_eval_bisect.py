"""`eval bisect` with the installed program: versions of a workflow, of which one breaks a suite."""

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

from rolecall import api

if TYPE_CHECKING:
    from conftest import Rolecall

VERSIONS = 16
DONE = {"type": "object", "properties": {"status": {"const": "done"}}, "required": ["status"]}


class Project:
    """A workflow with 16 versions. Each names a script of its own for its agent, which fails from one version on."""

    def __init__(self, rolecall: Rolecall, folder: Path) -> None:
        self.rolecall, self.folder = rolecall, folder
        self.asked = folder / "asked"
        self.asked.touch()
        (folder / ".workflows").mkdir()
        self.suite: dict[str, Any] = {
            "workflow": "fix-it",
            "tasks": [{"id": name, "prompt": name} for name in ("one", "two", "three")],
            "judges": {"answer": {"command": ["grep", "-q", "good", "answer"]}},
        }

    def put(self, bad_from: int, *, noise: str = "false", gate: str = "true") -> list[str]:
        """Put the versions; those from `bad_from` on fail, but where `noise` succeeds it is the other way round."""
        nodes = []
        for number in range(VERSIONS):
            right, wrong = ("bad", "good") if number >= bad_from else ("good", "bad")
            answer = f"if {noise}; then echo {wrong}; else echo {right}; fi > answer"
            command = f"echo {number} >> {self.asked}; {gate}; {answer}"
            script = self.folder / f"script{number}.json"
            visit = {"run": [["sh", "-c", command]], "output": {"status": "done"}}
            script.write_text(json.dumps({"roles": {"developer": [visit]}}))
            role = {"prompt": f"Fix it, rule {number}.", "schema": DONE, "agent": f"scripted:{script}"}
            flow = {
                "name": "fix-it",
                "version": f"1.{number}",
                "description": "Fixes.",
                "roles": {"developer": role},
                "graph": {"$START": "developer", "developer": "$END"},
            }
            file = self.folder / ".workflows/fix-it.yaml"
            file.write_text(json.dumps(flow))
            with api.Rolecall(f"sqlite:{self.rolecall.home / 'store.db'}", folder=self.folder) as here:
                nodes.append(here.put(str(file)))
        return nodes

    def __call__(self, *words: str, check: int | None = 0) -> subprocess.CompletedProcess[str]:
        (self.folder / "suite.yaml").write_text(json.dumps(self.suite))
        return self.rolecall("eval", "bisect", "suite.yaml", *words, cwd=self.folder, check=check)

    def json(self, *words: str, check: int = 0) -> Any:
        return json.loads(self(*words, "--json", check=check).stdout.splitlines()[-1])

    def versions_asked(self) -> list[int]:
        return [int(one) for one in self.asked.read_text().split()]


@pytest.fixture
def project(rolecall: Rolecall, tmp_path: Path) -> Project:
    return Project(rolecall, tmp_path)


def test_the_version_that_broke_a_suite_is_found(project: Project) -> None:
    nodes = project.put(bad_from=11)
    found = project.json()
    assert (found["status"], found["bad"]["node"], found["good"]["node"]) == ("found", nodes[11], nodes[10])
    assert found["tasks"] == ["one", "two", "three"] and found["error"] == 0 and found["certainty"] == 1
    assert found["asked"] <= 6 and len(project.versions_asked()) == 3 * found["asked"]
    assert found["changes"] == ["changed workflow: version", "changed role developer: prompt, agent"]
    assert "-    prompt: Fix it, rule 10." in found["diff"]
    shown = project("--from", "1.9", "--to", nodes[13][:8]).stdout
    assert f"the first bad version is {nodes[11]} (100.0 % certain)" in shown and "versions left" in shown
    assert max(map(len, shown.partition("---")[0].splitlines())) <= 80


def test_a_noisy_judge_is_asked_again(project: Project) -> None:
    """One answer in five is wrong, the same in each run of this test; the first one is that about the good end."""
    count = f"n=$(wc -l < {project.asked}); [ $((n % 5)) -eq 1 ]"
    nodes = project.put(bad_from=6, noise=count)
    project.suite["tasks"] = project.suite["tasks"][:1]
    found = project.json("--noise", "0.2", "--at-once", "1")
    assert found["status"] == "found" and found["bad"]["node"] == nodes[6] and found["certainty"] >= 0.97
    assert len(found["looks"]) > found["asked"]
    project.suite["repeat"] = 5
    estimated = project.json("--at-once", "1")
    assert 0 < estimated["error"] < 0.45 and estimated["bad"]["node"] == nodes[6]


def test_a_search_that_was_killed_goes_on(project: Project) -> None:
    opened = project.folder / "open"
    held = f'[ "$(sort -u {project.asked} | wc -l)" -lt 4 ] || while [ ! -e {opened} ]; do sleep 0.05; done'
    nodes = project.put(bad_from=5, gate=held)
    (project.folder / "suite.yaml").write_text(json.dumps(project.suite))
    env = {**os.environ, "ROLECALL_HOME": str(project.rolecall.home)}
    words = (str(SCRIPTS / "rolecall"), "eval", "bisect", "suite.yaml")
    with commands.PipedChild(words, env=env, cwd=project.folder) as child:
        wait_until(lambda: len(set(project.versions_asked())) == 4)
        child.send_signal(signal.SIGKILL)
        child.wait()
    before = project.versions_asked()
    opened.touch()
    found = project.json()
    assert found["bad"]["node"] == nodes[5]
    asked = project.versions_asked()
    assert all(asked.count(one) == before.count(one) == 3 for one in list(dict.fromkeys(before))[:3])


def test_what_cannot_be_searched_is_said(project: Project) -> None:
    project.put(bad_from=VERSIONS)
    shown = project(check=1).stdout
    assert "not broken: 1.15@" in shown and "breaks no task that 1.0@" in shown
    assert "there is no version '9.9'" in project("--from", "9.9", check=3).stderr
    assert (
        "no versions of 'fix-it' between these two" in project("--from", "1.5", "--to", "1.4", check=2).stderr
    )
    assert "is not a number from 0 to below 0.5" in project("--noise", "0.5", check=2).stderr


def test_a_program_that_has_changed_is_named(project: Project) -> None:
    project.put(bad_from=VERSIONS)
    project(check=1)
    for number in (0, VERSIONS - 1):  # the same agents are worse now
        script = project.folder / f"script{number}.json"
        script.write_text(script.read_text().replace("echo good", "echo bad"))
    found = project.json(check=1)
    assert found["status"] == "not broken" and len(found["drift"]) == 3
    assert "`rolecall eval bisect --recorded`" in project(check=1).stdout
    assert (
        "one passed in" in found["drift"][0] and "since then the program of developer is" in found["drift"][0]
    )


def test_the_program_with_which_recorded_runs_began_to_fail_is_found(project: Project) -> None:
    """The agent's program is a script; each run is made with another version of it."""
    project.put(bad_from=VERSIONS)
    script = project.folder / f"script{VERSIONS - 1}.json"
    good, runs = script.read_text(), []
    (project.folder / "suite.yaml").write_text(json.dumps(project.suite))
    for number in range(6):
        text = good.replace("echo good", "echo bad") if number >= 4 else good
        script.write_text(text.replace(str(project.asked), f"{project.asked}{number}"))
        reply = project.rolecall("eval", "run", "suite.yaml", "--json", cwd=project.folder, check=None)
        runs.append(json.loads(reply.stdout.splitlines()[-1])["eval"])
    before = project.versions_asked()
    found = project.json("--recorded")
    assert (found["status"], found["makeups"], found["certainty"]) == ("found", 6, 1)
    assert (found["good"]["run"], found["bad"]["run"]) == (runs[3], runs[4])
    assert found["tasks"] == ["one", "three", "two"] and project.versions_asked() == before
    (change,) = found["changes"]
    assert change.startswith("the program of developer is ")
    shown = project("--recorded", "--from", runs[1], "--to", runs[4]).stdout
    assert "4 makeups recorded" in shown and f"the first bad run is {runs[4]}" in shown
    assert max(map(len, shown.splitlines())) <= 80
    assert "not broken" in project("--recorded", "--to", runs[2], check=1).stdout
    assert "only one makeup" in project("--recorded", "--from", runs[5], check=2).stderr
