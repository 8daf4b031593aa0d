"""`rolecall doctor` and the agents in `rolecall workflow validate`, as a user meets them."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from collector import collecting
from fakeagent import executable, fake_claude
from modelserver import ModelServer

if TYPE_CHECKING:
    from conftest import Rolecall

PROGRAM = str(Path(sys.executable).parent / "rolecall")
KEY = "sk-test-0123456789"

WORKFLOW = """\
name: {name}
roles:
  planner:
    goal: Plan.
    agent: {agent}
    capabilities: [{capabilities}]
    meta: {{type: object, properties: {{plan: {{type: string}}}}, required: [plan]}}
graph:
  $START: planner
  planner: $END
"""


class Machine:
    """A user's machine: a home, a folder of installed programs, a project."""

    def __init__(self, rolecall: Rolecall, folder: Path) -> None:
        self.rolecall = rolecall
        self.bin = folder / "bin"
        self.user = folder / "user"
        self.project = folder / "project"
        for path in (self.bin, self.user, self.project / "workflows"):
            path.mkdir(parents=True)
        self.env = {
            "PATH": f"{self.bin}:/usr/bin:/bin",
            "HOME": str(self.user),
            "ANTHROPIC_API_KEY": "",
            "NO_COLOR": "",
        }

    def write(self, name: str = "solve-issue", agent: str = "claude", capabilities: str = "") -> Path:
        file = self.project / "workflows" / f"{name}.yaml"
        text = WORKFLOW.format(name=name, agent=agent, capabilities=capabilities)
        file.write_text(text.replace("    agent: \n", ""))
        return file

    def configure(self, text: str) -> Path:
        self.rolecall.home.mkdir(exist_ok=True)
        file = self.rolecall.home / "config.yaml"
        file.write_text(text)
        return file

    def run(self, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
        return self.rolecall(*args, env={**self.env, **env}, cwd=self.project)

    def doctor(self, *args: str, code: int, **env: str) -> Any:
        done = self.run("doctor", *args, "--json", **env)
        assert done.returncode == code, (done.stdout, done.stderr)
        assert done.stderr == ""
        return json.loads(done.stdout)

    def validate(self, *args: str) -> Any:
        done = self.run("workflow", "validate", *args, "--json")
        assert done.returncode == 0, (done.stdout, done.stderr)
        [report] = json.loads(done.stdout)
        return report


@pytest.fixture
def machine(rolecall: Rolecall, tmp_path: Path) -> Machine:
    return Machine(rolecall, tmp_path)


def checks_of(shown: Any) -> dict[str, str]:
    return {check["name"]: check["state"] for check in shown["checks"]}


# -- ready or not --


def test_without_a_workflow_the_home_decides_and_nothing_is_created(machine: Machine) -> None:
    shown = machine.doctor(code=0)
    assert shown["ready"]
    assert checks_of(shown) == dict.fromkeys(
        ("python", "home", "configuration", "store", "sandbox", "git", "extract"), "ok"
    )
    assert (shown["agents"], shown["roles"], shown["fix"]) == ([], [], [])
    assert not machine.rolecall.home.exists()
    assert list(machine.user.iterdir()) == []


def test_a_workflow_is_ready_when_its_agents_program_is_there_and_signed_in(machine: Machine) -> None:
    machine.write(agent="claude:opus")
    shown = machine.doctor(code=1)
    assert shown["fix"] == [
        {
            "text": "claude: the agent 'claude' needs the program 'claude', which was not found",
            "fix": "npm install -g @anthropic-ai/claude-code",
        }
    ]
    path = fake_claude(machine.bin)
    shown = machine.doctor(code=0, ANTHROPIC_API_KEY=KEY)
    assert shown["agents"] == [
        {
            "agent": "claude",
            "state": "ready",
            "program": "claude",
            "path": str(path),
            "version": "2.1.325",
            "signedIn": "yes",
            "signedInBy": "ANTHROPIC_API_KEY is set",
            "missingFlags": [],
            "neededBy": [{"workflow": "solve-issue", "role": "planner"}],
            "problems": [],
        }
    ]
    assert shown["roles"] == [
        {"workflow": "solve-issue", "role": "planner", "agent": "claude:opus", "problem": None, "hint": None}
    ]


def test_only_the_workflows_that_are_named_count(machine: Machine) -> None:
    machine.write("needs-claude")
    machine.write("needs-nobody", agent="human")
    shown = machine.doctor("needs-nobody", code=0)
    assert [role["workflow"] for role in shown["roles"]] == ["needs-nobody"]
    machine.doctor("workflows/needs-claude.yaml", code=1)
    done = machine.run("doctor", "nedds-nobody")
    assert done.returncode == 3
    assert "Did you mean 'needs-nobody'?" in done.stderr


def test_a_stored_workflow_is_looked_at_by_its_name(machine: Machine) -> None:
    file = machine.write("put-before")
    machine.rolecall("workflow", "put", str(file), check=0)
    file.unlink()
    assert machine.doctor("put-before", code=1)["agents"][0]["agent"] == "claude"


def test_the_roles_of_a_workflow_that_plays_a_role_count_too(machine: Machine) -> None:
    machine.write("outer", agent="workflow:inner")
    assert "there is no workflow 'inner'" in machine.doctor(code=1)["fix"][0]["text"]
    (machine.project / "inner.yaml").write_text(
        WORKFLOW.format(name="inner", agent="command:missing-program", capabilities="")
    )
    machine.rolecall("workflow", "put", str(machine.project / "inner.yaml"), check=0)
    shown = machine.doctor(code=1)
    assert [(role["workflow"], role["problem"]) for role in shown["roles"]] == [
        ("outer", None),
        ("inner", None),
    ]
    assert "missing-program" in shown["fix"][0]["text"]


def test_an_agent_that_is_installed_is_proposed_for_roles_without_one(machine: Machine) -> None:
    machine.write("a-first", agent="")
    machine.write("b-second", agent="")
    [found] = machine.doctor(code=1)["fix"]
    assert found["text"] == "no agent is chosen for a-first (planner), b-second (planner)"
    assert "config set defaultAgent NAME" in machine.doctor(code=1)["fix"][0]["fix"]
    program = machine.bin / "codex"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    proposed = "codex is installed: `rolecall config set defaultAgent codex`, or use --agent codex."
    assert machine.doctor(code=1)["fix"][0]["fix"] == proposed


def test_a_role_that_nobody_plays_is_a_problem_of_the_role(machine: Machine) -> None:
    machine.write("a-first", agent="")
    machine.write("b-second", agent="clod")
    machine.write("c-third", agent="command:true", capabilities="read_only")
    machine.write("d-fourth", agent="claude:modle=opus")
    shown = machine.doctor(code=1, ROLECALL_SANDBOX="off")
    problems = [role["problem"] for role in shown["roles"]]
    assert "no agent is named" in problems[0]
    assert problems[1] == "there is no agent 'clod'"
    assert "cannot be held to 'read_only'" in problems[2]
    assert "has no option 'modle'" in problems[3]
    assert len(shown["fix"]) == 4


def test_an_alias_of_the_configuration_is_looked_at_with_its_options(machine: Machine) -> None:
    machine.write(agent="mine")
    path = fake_claude(machine.user / "tools", version="3.0.0")
    machine.configure(
        f"agents: {{mine: {{adapter: claude, executable: {path}, env: {{ANTHROPIC_API_KEY: {KEY}}}}}}}\n"
    )
    shown = machine.doctor(code=0)
    [agent] = shown["agents"]
    assert (agent["agent"], agent["version"], agent["path"]) == ("mine", "3.0.0", str(path))
    assert KEY not in json.dumps(shown)


def test_a_workflow_that_does_not_validate_is_a_problem(machine: Machine) -> None:
    file = machine.write(agent="human")
    file.write_text(file.read_text().replace("$END", "$EDN"))
    shown = machine.doctor(code=1)
    assert shown["fix"] == [
        {"text": f"{file} does not validate", "fix": f"rolecall workflow validate {file}"}
    ]


# -- the home --


def test_a_configuration_that_cannot_be_read_is_a_problem(machine: Machine) -> None:
    machine.write(agent="human")
    machine.configure("defaultAgent: [\n")
    assert checks_of(machine.doctor(code=1))["configuration"] == "problem"
    machine.configure("store: x.db\ndefaultAgnet: human\nmemory: {overlap: 0}\n")
    texts = [one["text"] for one in machine.doctor(code=1)["fix"]]
    assert "config.yaml:2:1: 'defaultAgnet' is not a key" in texts[0]
    assert "config.yaml:3:19: memory.overlap must be" in texts[1]
    machine.configure("")
    (machine.rolecall.home / ".env").write_text("no variable\n")
    assert checks_of(machine.doctor(code=1))["configuration"] == "problem"


def test_keys_that_others_can_read_are_a_warning(machine: Machine) -> None:
    machine.rolecall.home.mkdir()
    file = machine.rolecall.home / ".env"
    file.write_text(f"SOME_KEY={KEY}\n")
    file.chmod(0o644)
    shown = machine.doctor(code=0)
    [check] = [check for check in shown["checks"] if check["name"] == "keys"]
    assert (check["state"], check["fix"]) == ("warning", f"chmod 600 {file}")
    file.chmod(0o600)
    assert "keys" not in checks_of(machine.doctor(code=0))


def test_a_home_that_cannot_be_written_is_a_problem(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    shown = machine.doctor(code=1, ROLECALL_HOME=str(tmp_path / "file" / "home"))
    assert checks_of(shown)["home"] == "problem"


def test_a_store_that_does_not_open_is_a_problem(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "store.db").write_text("this is no database, whatever its name says" * 100)
    shown = machine.doctor(code=1, ROLECALL_STORE=str(tmp_path / "store.db"))
    assert checks_of(shown)["store"] == "problem"
    assert machine.doctor("--store", str(tmp_path / "other.db"), code=0)
    assert not (tmp_path / "other.db").exists()


def test_the_extract_endpoint_is_asked_with_its_key_and_the_key_is_not_shown(machine: Machine) -> None:
    with ModelServer([]) as server:
        machine.configure(f"extract: {{baseUrl: '{server.base_url}', model: tiny, apiKeyEnv: READ_KEY}}\n")
        shown = machine.doctor(code=0, READ_KEY=KEY)
        assert checks_of(shown)["extract"] == "ok"
        [request] = server.requests
        assert (request.method, request.path) == ("GET", "/v1/models")
        assert request.headers["authorization"] == f"Bearer {KEY}"
    assert KEY not in json.dumps(shown)
    shown = machine.doctor(code=1, READ_KEY=KEY)
    assert checks_of(shown)["extract"] == "problem"
    assert KEY not in json.dumps(shown)


def test_the_collector_of_traces_is_asked_with_its_headers(machine: Machine) -> None:
    with collecting() as collector:
        machine.configure(f"traces: {{otlp: '{collector.url}?key={KEY}', headersEnv: TRACE_HEADERS}}\n")
        shown = machine.doctor(code=0, TRACE_HEADERS=f"authorization=Bearer%20{KEY}")
        assert checks_of(shown)["traces"] == "ok" and KEY not in json.dumps(shown)
        [headers] = collector.headers
        assert headers["Authorization"] == f"Bearer {KEY}" and not collector.spans
        collector.answers = [(401, b"who is it?")]
        [result] = [
            one for one in machine.doctor(code=0, TRACE_HEADERS="a=b")["checks"] if one["name"] == "traces"
        ]
        assert result["state"] == "warning" and result["text"].endswith("answered 401: who is it?")
    assert checks_of(machine.doctor(code=0, TRACE_HEADERS="a=b"))["traces"] == "warning"  # it has gone
    assert checks_of(machine.doctor(code=1, TRACE_HEADERS=""))["traces"] == "problem"


def test_what_a_broken_program_prints_is_shown_without_keys(machine: Machine) -> None:
    machine.write()
    executable(machine.bin / "claude", 'echo "bad key $ANTHROPIC_API_KEY" >&2; exit 3')
    done = machine.run("doctor", ANTHROPIC_API_KEY=KEY)
    assert done.returncode == 1
    assert "bad key ***MASKED***" in done.stdout
    assert KEY not in done.stdout


# -- agents that nobody needs --


def test_known_agents_that_are_not_needed_are_only_looked_for(machine: Machine) -> None:
    machine.write(agent="human")
    executable(machine.bin / "claude", f"touch '{machine.user}/was-run'")
    shown = machine.doctor(code=0)
    others = {one["agent"]: one["installed"] for one in shown["others"]}
    assert others["claude"]
    assert not others["codex"]
    assert not (machine.user / "was-run").exists()


def test_all_looks_at_every_known_agent_and_holds_it_against_nobody(machine: Machine) -> None:
    from rolecall.agents import PROGRAMS

    machine.write(agent="human")
    fake_claude(machine.bin)
    shown = machine.doctor("--all", code=0)
    states = {agent["agent"]: agent["state"] for agent in shown["agents"]}
    assert set(states) >= {*PROGRAMS, "builtin", "human", "acp:codex-acp"}
    assert states["claude"] == "not signed in"
    assert states["codex"] == "not installed"
    assert shown["others"] == []


def test_the_default_agent_is_looked_at_before_there_is_a_workflow(machine: Machine) -> None:
    machine.configure("defaultAgent: claude\n")
    shown = machine.doctor(code=0)
    assert [(agent["agent"], agent["state"]) for agent in shown["agents"]] == [("claude", "not installed")]


# -- on a terminal --


def on_terminal(machine: Machine, *args: str, **env: str) -> str:
    leader, follower = pty.openpty()
    child = subprocess.Popen(
        [PROGRAM, *args],
        stdin=follower,
        stdout=follower,
        stderr=follower,
        env={**os.environ, **machine.env, "ROLECALL_HOME": str(machine.rolecall.home), **env},
        cwd=machine.project,
    )
    os.close(follower)
    shown = b""
    try:
        while piece := os.read(leader, 65536):
            shown += piece
    except OSError:  # the terminal's other end is closed: the program is done
        pass
    finally:
        os.close(leader)
        child.wait(120)
    return shown.decode().replace("\r\n", "\n")


def test_a_terminal_shows_a_table_in_colour_and_what_to_do(machine: Machine) -> None:
    machine.write()
    text = on_terminal(machine, "doctor")
    lines = text.splitlines()
    assert lines[0].split() == ["agent", "version", "signed", "in", "needed", "by", "state"]
    assert lines[1].startswith("claude ")
    assert "solve-issue: planner" in lines[1]
    assert lines[1].endswith("\033[31mnot installed\033[0m")
    assert "    npm install -g @anthropic-ai/claude-code" in lines
    assert "also known, not installed: codex" in text
    assert lines[-1] == "\033[31mnot ready: 1 thing to fix\033[0m"
    fake_claude(machine.bin)
    text = on_terminal(machine, "doctor", ANTHROPIC_API_KEY=KEY, NO_COLOR="1")
    assert text.splitlines()[1].split() == [
        "claude", "2.1.325", "yes", "(ANTHROPIC_API_KEY)", "solve-issue:", "planner", "ready",
    ]  # fmt: skip
    assert "\033" not in text
    assert text.splitlines()[-1] == "ready: 1 workflow can be run"


# -- validate --


def test_validate_warns_of_a_missing_program_where_the_definition_names_it(machine: Machine) -> None:
    file = machine.write()
    report = machine.validate()
    assert report["valid"]
    [problem] = report["problems"]
    assert problem == {
        "severity": "warning",
        "message": "planner: the agent 'claude' needs the program 'claude', which was not found",
        "file": str(file),
        "line": 5,
        "column": 5,
        "hint": "Install it: npm install -g @anthropic-ai/claude-code",
    }
    fake_claude(machine.bin)
    assert machine.validate()["problems"] == []


def test_validate_gives_no_line_for_an_agent_of_the_configuration(machine: Machine) -> None:
    file = machine.write(agent="")
    machine.configure("defaultAgent: claude\n")
    [problem] = machine.validate()["problems"]
    assert (problem["line"], problem["column"]) == (None, None)
    text = machine.run("workflow", "validate", "--format", "text").stdout
    assert text.startswith(f"{file}: warning: planner: the agent 'claude' needs")
    machine.write(agent="command:true")
    machine.configure("agentOverrides: {solve-issue: {planner: 'command:nowhere'}}\n")
    [problem] = machine.validate()["problems"]
    assert (problem["line"], "'nowhere'" in problem["message"]) == (None, True)


@pytest.mark.parametrize(
    ("agent", "capabilities", "part"),
    [
        ("command:true", "no_file_edit", "cannot be held to 'no_file_edit'"),
        ("workflow:nowhere", "", "there is no workflow 'nowhere'"),
    ],
)
def test_validate_warns_of_what_an_agent_cannot_do(
    machine: Machine, agent: str, capabilities: str, part: str
) -> None:
    fake_claude(machine.bin)
    machine.write(agent=agent, capabilities=capabilities)
    machine.env["ROLECALL_SANDBOX"] = "off"
    [problem] = machine.validate()["problems"]
    assert part in problem["message"]
    assert (problem["severity"], problem["line"]) == ("warning", 5)


def test_validate_accepts_restrictions_that_the_agent_can_be_held_to(machine: Machine) -> None:
    fake_claude(machine.bin)
    machine.write(capabilities="read_only, no_shell_exec, no_task_create, no_task_update, planning")
    assert machine.validate()["problems"] == []


def test_a_narrow_column_leaves_no_part_of_a_secret(machine: Machine) -> None:
    secret = "hunter2-" * 6
    machine.write(agent=f"'command:sh -c \": {secret}\"'")
    done = machine.run("doctor", SITE_PASSWORD=secret)
    assert 'command:sh -c ": ***MASKED***' in done.stdout
    assert "hunter" not in done.stdout
