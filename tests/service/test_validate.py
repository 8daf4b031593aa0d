"""`rolecall validate`: everything that is wrong with a project at once, and no harm done by any file of it."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from modelserver import ModelServer

from rolecall.checks import workflow_file

if TYPE_CHECKING:
    from conftest import Rolecall

WORKFLOW = """\
name: {name}
roles:
  planner:
    goal: Plan.
    agent: {agent}
    meta: {{type: object, properties: {{plan: {{type: string}}}}, required: [plan]}}
graph:
  $START: planner
  planner: $END
"""

PYTHON = """\
from rolecall import END, Role, Workflow
{before}
async def plan(context):
    return {{"content": "done", "meta": {{}}}}

workflow = Workflow("{name}", {{"plan": Role.function(plan)}}, lambda context: END)
"""


class Project:
    def __init__(self, rolecall: Rolecall, folder: Path) -> None:
        self.rolecall = rolecall
        self.folder = folder
        (folder / "workflows").mkdir(parents=True)
        self.env = {"PATH": "/usr/bin:/bin", "HOME": str(folder.parent)}

    def write(self, path: str, text: str) -> None:
        file = self.folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def workflow(self, name: str, agent: str = "command:cat") -> None:
        self.write(f"workflows/{name}.yaml", WORKFLOW.format(name=name, agent=agent))

    def python(self, name: str, before: str = "") -> None:
        self.write(f"workflows/{name}.py", PYTHON.format(name=name, before=before))

    def validate(self, *args: str, code: int, **env: str) -> Any:
        done = self.rolecall(
            "validate", *args, "--json", env={**self.env, **env}, cwd=self.folder, check=code
        )
        assert done.stderr == ""
        return json.loads(done.stdout)

    def problems(self, *args: str, code: int = 2, **env: str) -> list[str]:
        """Where and what, seen from the project's folder."""
        found = self.validate(*args, code=code, **env)["problems"]
        prefix = f"{self.folder}/"
        return [f"{one['file'].removeprefix(prefix)}:{one['line']}: {one['message']}" for one in found]


@pytest.fixture
def project(rolecall: Rolecall, tmp_path: Path) -> Project:
    return Project(rolecall, tmp_path / "project")


def test_a_project_with_nothing_wrong_is_valid(project: Project) -> None:
    project.workflow("solve-issue")
    project.python("clean-up")
    project.write("rolecall.yaml", "workflows: {solve-issue: {triggers: {t: {every: 1h, prompt: Go.}}}}\n")
    report = project.validate(code=0)
    assert (report["valid"], report["problems"]) == (True, [])
    assert {one["name"] for one in report["workflows"]} == {"solve-issue", "clean-up"}
    assert report["triggers"] == [{"trigger": "solve-issue/t", "does": "every 1h"}]


def test_a_nerve_yaml_is_pointed_out_with_what_to_do(project: Project) -> None:
    project.workflow("solve-issue")
    project.write("nerve.yaml", "workflows: {solve-issue: {concurrency: 1, overflow: drop}}\n")
    report = project.validate(code=0)
    [problem] = report["problems"]
    assert (problem["severity"], problem["message"]) == ("warning", "nerve.yaml is not read")
    assert (
        problem["file"] == f"{project.folder}/nerve.yaml" and "Rename it to rolecall.yaml" in problem["hint"]
    )
    (project.folder / "nerve.yaml").rename(project.folder / "rolecall.yaml")
    assert project.validate(code=0)["problems"] == []
    project.write("nerve.yaml", "{}")
    [problem] = project.validate(code=0)["problems"]
    assert "Move what it says to rolecall.yaml" in problem["hint"]


def test_a_sense_in_a_folder_of_its_own_is_checked_where_it_lies(project: Project) -> None:
    project.workflow("solve-issue")
    project.write("senses/tired/index.py", "def sense():\n    retrun 1\n")
    project.write(
        "rolecall.yaml", "workflows: {solve-issue: {triggers: {c: {sense: tired, every: 1h, prompt: x}}}}\n"
    )
    assert project.problems() == ["senses/tired/index.py:2: SyntaxError: invalid syntax (index.py, line 2)"]


def test_everything_is_told_at_once_with_file_and_line(project: Project) -> None:
    project.workflow("solve-issue", agent="claude")
    project.write("workflows/broken.yaml", "name: broken\nroles: {}\ngraph: {$START: nobody}\n")
    project.python("crash-early", before="import no_such_module")
    project.write("senses/tired.py", "def sense():\n    retrun 1\n")
    project.write(
        "rolecall.yaml",
        """\
service: {limit: none, rates: {cluade: 5/min}}
workflows:
  solve-isue: {}
  solve-issue:
    triggers:
      a: {command: [no-such-program], every: 1h, prompt: x}
      b: {http: {secret_env: NO_SUCH_SECRET}, prompt: x}
      c: {sense: tired, every: 1h, prompt: x}
      d: {sense: missing, every: 1h, prompt: x}
""",
    )
    found = project.problems()
    for wanted in (
        "rolecall.yaml:1: service.limit must be a whole number of 1 or more, not 'none'",
        "rolecall.yaml:1: the agent 'cluade' does not exist, so it has no calls to count",
        "rolecall.yaml:3: the workflow 'solve-isue' does not exist",
        "rolecall.yaml:6: the program 'no-such-program' was not found",
        "rolecall.yaml:7: the variable 'NO_SUCH_SECRET', which holds the hook's secret, is not set",
        "senses/tired.py:2: SyntaxError: invalid syntax (tired.py, line 2)",
        f"rolecall.yaml:9: the file {project.folder}/senses/missing.py does not exist",
        "workflows/solve-issue.yaml:5: planner: the agent 'claude' needs the program 'claude', which was not found",
        "workflows/broken.yaml:2: roles must be a mapping from names to roles, not an empty mapping",
        "workflows/crash-early.py:2: the workflow cannot be loaded: ModuleNotFoundError: "
        "No module named 'no_such_module'",
    ):
        assert wanted in found, found


@pytest.mark.parametrize(
    ("before", "told"),
    [
        ("raise SystemExit(3)", "the workflow cannot be loaded: SystemExit: 3"),
        ("import os; os._exit(7)", "the process that loaded it ended without an answer (exit code 7)"),
        (
            "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
            "the process that loaded it ended without an answer (exit code -11)",
        ),
        ("print('noise' * 100000, flush=True); import os; os.write(1, b'[{}]')", None),
        ("1 / 0", "the workflow cannot be loaded: ZeroDivisionError: division by zero"),
    ],
)
def test_a_python_workflow_that_misbehaves_hurts_nobody_but_itself(
    project: Project, before: str, told: str | None
) -> None:
    project.python("misbehave", before=before)
    project.workflow("solve-issue")
    found = project.problems(code=2 if told else 0)
    assert [problem.partition(": ")[2] for problem in found] == ([told] if told else [])


HANGS = """\
import subprocess, time
child = subprocess.Popen(["sleep", "600"])
with open({file!r}, "w") as file:
    file.write(str(child.pid))
time.sleep(600)
"""


def test_a_python_workflow_that_hangs_is_ended_with_all_it_started(project: Project, tmp_path: Path) -> None:
    child = tmp_path / "child"
    project.python("hang-around", before=HANGS.format(file=str(child)))
    path = str(project.folder / "workflows" / "hang-around.py")
    # In a sandbox it could not say which process it has started.
    env = {**project.env, "ROLECALL_HOME": str(tmp_path / "home"), "ROLECALL_SANDBOX": "off"}
    for patience in (4.0, 90.0):
        [report] = asyncio.run(
            workflow_file.check([path], folder=str(project.folder), env=env, patience=patience)
        )
        assert f"took longer than {patience:g} s" in report.problems[0].message
        if child.exists():  # else it was ended before it had begun, on a machine that is very busy
            break
    assert report.workflow is None
    assert not is_running(int(child.read_text()))


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def test_the_endpoint_of_a_project_is_asked_without_the_key_that_the_project_names(project: Project) -> None:
    project.workflow("solve-issue")
    key = "sk-reader-0123456789"
    with ModelServer([]) as server:
        said = f"baseUrl: '{server.base_url}', model: small, apiKeyEnv: READER_KEY"
        project.write("rolecall.yaml", f"# mine\nextract: {{{said}}}\n")
        [endpoint] = project.validate(code=0, READER_KEY=key)["endpoints"]
        [request] = server.requests
    assert (endpoint["state"], request.path) == ("ok", "/v1/models")
    assert "authorization" not in {name.lower() for name in request.headers}
    assert "asked without its key" in endpoint["text"]
    [problem] = project.problems(READER_KEY=key)
    assert problem.startswith(f"rolecall.yaml:2: extract: {server.base_url} cannot be reached")


def test_an_endpoint_that_says_nothing_is_waited_for_within_bounds(project: Project) -> None:
    project.workflow("solve-issue")
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        project.write(
            "rolecall.yaml", f"extract: {{baseUrl: 'http://127.0.0.1:{deaf.getsockname()[1]}', model: m}}\n"
        )
        began = time.monotonic()
        [problem] = project.problems()
    assert "did not answer within 5 s" in problem
    assert time.monotonic() - began < 90


MUMBLES = """\
name: solve-issue
roles:
  planner:
    goal: Plan.
    agent: command:echo I would plan it well
    meta: {type: object, properties: {plan: {type: string}}, required: [plan]}
graph: {$START: planner, planner: $END}
"""


def test_the_projects_own_endpoint_reads_the_answers_of_its_threads(project: Project) -> None:
    project.write("workflows/solve-issue.yaml", MUMBLES)
    with ModelServer([json.dumps({"plan": "well"})]) as server:
        project.write("rolecall.yaml", f"extract: {{baseUrl: '{server.base_url}', model: reader}}\n")
        done = project.rolecall(
            "run", "solve-issue", "-p", "Plan it.", "--json", env=project.env, cwd=project.folder, check=0
        )
        [request] = server.requests
    assert json.loads(done.stdout.splitlines()[-1])["status"] == "completed"
    assert request.body["model"] == "reader"


def test_a_project_file_that_is_wrong_suspends_only_a_thread_that_needs_it(project: Project) -> None:
    project.write("workflows/solve-issue.yaml", MUMBLES)
    project.workflow("talk-plainly", agent="'command:printf %b \"---\\nplan: x\\n---\\n\"'")
    project.write("rolecall.yaml", "service: {limit: 4}\n")
    started = [
        json.loads(
            project.rolecall(
                "thread", "start", name, "-p", "x", "--json", env=project.env, cwd=project.folder
            ).stdout
        )["thread"]
        for name in ("solve-issue", "talk-plainly")
    ]
    project.write("rolecall.yaml", "extract: 7\n")
    ran = [
        project.rolecall("thread", "run", one, "--json", env=project.env, cwd=project.folder)
        for one in started
    ]
    assert [done.returncode for done in ran] == [7, 0]
    assert "rolecall.yaml cannot be used" in json.loads(ran[0].stdout.splitlines()[-1])["reason"]


def test_offline_no_endpoint_is_asked_but_its_settings_are_looked_at(project: Project) -> None:
    project.workflow("solve-issue")
    with ModelServer([]) as server:
        project.write(
            "rolecall.yaml", f"extract: {{baseUrl: '{server.base_url}', model: m, apiKeyEnv: UNSET_KEY}}\n"
        )
        [problem] = project.problems("--offline")
        assert server.requests == []
    assert "the variable 'UNSET_KEY'" in problem


def test_a_secret_is_shown_nowhere(project: Project) -> None:
    project.workflow("solve-issue", agent="command:s3cret-program-name")
    done = project.rolecall(
        "validate", env={**project.env, "MY_TOKEN": "s3cret-program-name"}, cwd=project.folder, check=2
    )
    assert "s3cret-program-name" not in done.stdout
    assert "***MASKED***" in done.stdout


def test_a_folder_with_roles_and_no_workflow_is_a_problem(project: Project) -> None:
    project.write("workflows/review/roles/reader.md", "Read.\n")
    [problem] = project.problems()
    assert problem == "workflows/review:None: this folder has roles and no workflow"


def test_where_there_is_no_project_it_says_how_to_make_one(rolecall: Rolecall, tmp_path: Path) -> None:
    done = rolecall("validate", cwd=tmp_path, check=2)
    assert "rolecall init" in done.stderr
    assert rolecall("validate", "nowhere", cwd=tmp_path, check=3).stdout == ""


def test_nothing_is_created(project: Project, rolecall: Rolecall) -> None:
    project.workflow("solve-issue")
    project.python("clean-up", before="from . import _shared")
    project.write("workflows/_shared.py", "")
    before = sorted(project.folder.rglob("*"))
    project.validate(code=0)
    assert sorted(project.folder.rglob("*")) == before
    assert not rolecall.home.exists()


def test_on_a_terminal_each_problem_is_a_line_and_the_last_counts_them(project: Project) -> None:
    project.workflow("solve-issue", agent="claude")
    done = project.rolecall("validate", "--format", "text", env=project.env, cwd=project.folder, check=2)
    *problems, last = done.stdout.splitlines()
    assert len(problems) == 1
    assert problems[0].startswith(f"{project.folder}/workflows/solve-issue.yaml:5:5: error: planner: ")
    assert last == f"{project.folder}: not valid: 1 workflow, 0 triggers, 1 error"


def test_a_hint_from_the_process_that_loads_a_workflow_is_a_command(project: Project) -> None:
    project.write(
        "workflows/open.yaml", WORKFLOW.format(name="open", agent="x").replace("    agent: x\n", "")
    )
    assert "`rolecall config set defaultAgent NAME`" in project.validate(code=2)["problems"][0]["hint"]
