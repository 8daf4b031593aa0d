"""Steps in a sandbox: what the kernel refuses, who is accepted because of it, and what the step records."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import Rolecall

WORKFLOW = """
name: looking
roles:
  look:
    goal: Look.
    agent: "{agent}"
{role}
    schema: {{type: object, required: [status], properties: {{status: {{enum: [done]}}}}}}
graph: {{$START: look, look: $END}}
"""
TRY = """#!/bin/sh
{ %s ; } 2>&1 | tr -d ':' > "$TMPDIR/said"
printf -- '---\\nstatus: done\\n---\\n'
cat "$TMPDIR/said"
"""
OFF = {"ROLECALL_SANDBOX": "off"}


class Stage:
    """A folder in which a script plays the only role of a workflow."""

    def __init__(self, rolecall: Rolecall, folder: Path) -> None:
        self.rolecall = rolecall
        self.folder = folder
        folder.mkdir()

    def write(self, tries: str, role: str) -> None:
        script = self.folder / "agent.sh"
        script.write_text(TRY % tries)
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
        lines = "\n".join(f"    {line}" for line in role.splitlines())
        (self.folder / "looking.yaml").write_text(WORKFLOW.format(agent="command:./agent.sh", role=lines))

    def run(self, tries: str, role: str, *, check: int = 0, **env: str) -> subprocess.CompletedProcess[str]:
        self.write(tries, role)
        return self.rolecall(
            "run", "looking.yaml", "-p", "look", cwd=self.folder, check=check, env={"TMPDIR": "/tmp", **env}
        )

    def details(self) -> Any:
        return self.rolecall.json("thread", "step-details", cwd=self.folder)


@pytest.fixture
def stage(rolecall: Rolecall, tmp_path: Path) -> Stage:
    return Stage(rolecall, tmp_path / "work")


@pytest.mark.parametrize("word", ["read_only", "no_file_edit"])
def test_a_command_is_held_to_what_its_role_may_not_write(stage: Stage, word: str) -> None:
    stage.run("echo a > new; echo b >> agent.sh; touch ../beside; ls", f"capabilities: [{word}]")
    found = stage.details()
    assert sorted(path.name for path in stage.folder.iterdir()) == ["agent.sh", "looking.yaml"]
    assert found["body"].count("Read-only file system") == 2
    assert not (stage.folder.parent / "beside").exists()  # it was written to a /tmp of its own
    assert found["sandbox"]["rules"] == "writes nothing"
    assert "files: mounts" in found["sandbox"]["enforced"]


def test_a_role_without_commands_starts_none(stage: Stage) -> None:
    stage.write("", "capabilities: [no_shell_exec]")
    (stage.folder / "agent.sh").write_text(
        "#!/bin/sh\n/bin/ls / && exit 3\necho x > written\necho '---'; echo 'status: done'; echo '---'\n"
    )
    stage.rolecall("run", "looking.yaml", "-p", "look", cwd=stage.folder, check=0)
    assert stage.details()["sandbox"]["rules"] == "writes only to its work folder, no commands"
    assert (stage.folder / "written").exists()


def test_what_a_role_says_is_enforced_and_shown(stage: Stage) -> None:
    tries = "echo a > out/new; echo b > new; cat $HOME/.ssh/key; ls out; getent hosts localhost; echo $TOKEN."
    (stage.folder / "out").mkdir()
    home = stage.folder.parent / "user"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh/key").write_text("the secret")
    role = "sandbox: {write: [out], network: none, memory: 1GB}"
    stage.run(tries, role, HOME=str(home), TOKEN="abcdefgh")
    found = stage.details()
    assert (stage.folder / "out/new").read_text() == "a\n"
    assert not (stage.folder / "new").exists()
    assert "the secret" not in found["body"]
    assert "abcdefgh" not in found["body"]
    assert found["sandbox"]["rules"] == "writes only to out, no network, 1,000 MB for each process"
    assert "network: a namespace" in found["sandbox"]["enforced"]
    line = "sandbox: writes only to out, no network, 1,000 MB for each process · mounts"
    for command in (("thread", "step-details"), ("thread", "read")):
        assert line in stage.rolecall(*command, cwd=stage.folder, check=0).stdout
    page = stage.folder / "page.html"
    stage.rolecall("thread", "export", str(page), cwd=stage.folder, check=0)
    assert line in page.read_text()


def test_a_role_gets_only_the_variables_and_the_places_that_it_names(stage: Stage) -> None:
    (stage.folder.parent / "plain").write_text("plain text")
    stage.run(
        "echo $KEPT $LEFT; cat ../plain", "sandbox: {env: [KEPT], read: []}", KEPT="first", LEFT="second"
    )
    said = stage.details()["body"]
    assert "first" in said
    assert "second" not in said and "plain text" not in said


def test_a_role_that_starts_no_program_says_so_in_its_step(stage: Stage) -> None:
    stage.write("", "sandbox: {network: none}")
    (stage.folder / "script.yaml").write_text("roles: {look: [{output: {status: done}}]}")
    stage.rolecall(
        "run", "looking.yaml", "-p", "look", "--agent", "scripted:script.yaml", cwd=stage.folder, check=0
    )
    assert stage.details()["sandbox"]["enforced"] == ["no program was started"]


def test_a_role_that_switches_the_sandbox_off_says_so_in_its_step(stage: Stage) -> None:
    stage.run("echo a > new", "sandbox: off")
    assert stage.details()["sandbox"] == {"rules": "off"}
    assert "no sandbox (off)" in stage.rolecall("thread", "read", cwd=stage.folder, check=0).stdout
    refused = stage.run("true", "sandbox: off\ncapabilities: [read_only]", check=2)
    assert "cannot be held to 'read_only'" in refused.stderr


def test_our_own_home_is_hidden_from_a_step_unless_it_may_start_threads(stage: Stage) -> None:
    tries = f"ls {stage.rolecall.home}; echo x > {stage.rolecall.home}/planted"
    stage.run(tries, "sandbox: {}")
    assert "rolecall.db" not in stage.details()["body"]
    assert not (stage.rolecall.home / "planted").exists()
    stage.run(f"ls {stage.rolecall.home}", "sandbox: {}\nmay_start_threads: true")
    assert any(path.name in stage.details()["body"] for path in stage.rolecall.home.iterdir())


def test_the_files_of_a_step_in_a_sandbox_are_kept(stage: Stage) -> None:
    stage.run("echo a > new", "sandbox: {}")
    stage.rolecall("cas", "gc", "--delete", "--grace", "0", cwd=stage.folder, check=0)
    stage.rolecall("cas", "verify", cwd=stage.folder, check=0)
    assert "+a" in stage.rolecall("thread", "diff", "--files", cwd=stage.folder, check=0).stdout


def test_a_failed_attempt_records_its_sandbox(stage: Stage) -> None:
    stage.write("", "capabilities: [read_only]")
    (stage.folder / "agent.sh").write_text("#!/bin/sh\necho no >&2; exit 3\n")
    stage.rolecall("run", "looking.yaml", "-p", "look", cwd=stage.folder)
    thread = stage.rolecall.json("thread", "show", cwd=stage.folder)
    attempt = stage.rolecall.json("thread", "step-details", thread["attempts"][0]["id"], cwd=stage.folder)
    assert attempt["sandbox"]["rules"] == "writes nothing"


def test_without_a_kernel_that_can_a_command_is_refused_as_before(stage: Stage) -> None:
    refused = stage.run("true", "capabilities: [read_only]", check=2, **OFF)
    assert "the agent 'command:./agent.sh' cannot be held to 'read_only'" in refused.stderr
    refused = stage.run("true", "sandbox: {network: none}", check=2, **OFF)
    assert "the sandbox of the role 'look' cannot be enforced here" in refused.stderr
    assert "rolecall doctor" in refused.stderr
    assert stage.rolecall.json("thread", "list", "--all") == []


def test_best_effort_runs_with_less_and_says_what_is_missing(stage: Stage) -> None:
    stage.run("true", "sandbox: {processes: 50, best_effort: true}")
    enforced = stage.details()["sandbox"]["enforced"]
    is_limited = "processes: 50" in enforced
    assert is_limited or any(line.startswith("missing: ") for line in enforced)


def test_a_role_without_a_sandbox_needs_none_of_it(stage: Stage) -> None:
    stage.write("echo a > new", "capabilities: [coding]")
    code = (
        "import sys; from rolecall.__main__ import command\n"
        "sys.argv = ['rolecall', 'run', 'looking.yaml', '-p', 'look']\n"
        "try: command()\n"
        "except SystemExit: pass\n"
        "print([name for name in sys.modules if name.startswith('rolecall.agents.sandbox')])"
    )
    env = {**os.environ, "ROLECALL_HOME": str(stage.rolecall.home), "TMPDIR": "/tmp"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=stage.folder, env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]", done.stdout + done.stderr
    assert "sandbox" not in stage.details()
    assert (stage.folder / "new").exists()


FUNCTION = """
from rolecall import Role, Workflow

async def look(context):
    return {"body": "", "output": {"status": "done"}}

role = Role.function(look, {"type": "object", "properties": {"status": {"enum": ["done"]}}}%s)
workflow = Workflow("looking", {"look": role}, graph={"$START": "look", "look": "$END"}, sandbox={})
"""


def test_a_sandbox_that_cannot_hold_a_role_refuses_the_run(stage: Stage) -> None:
    file = stage.folder / "looking.py"
    file.write_text(FUNCTION % "")
    refused = stage.rolecall("run", "looking.py", "-p", "look", cwd=stage.folder, check=None)
    assert refused.returncode != 0 and "its function runs in Rolecall's own process" in refused.stderr
    assert "sandbox: off" in refused.stderr
    file.write_text(FUNCTION % ', sandbox="off"')
    stage.rolecall("run", "looking.py", "-p", "look", cwd=stage.folder, check=0)


def test_doctor_looks_again_at_what_the_machine_can_enforce(stage: Stage) -> None:
    """Its advice, such as to install bubblewrap, takes effect before the machine starts again."""
    for _ in range(2):  # the first run makes the home
        stage.run("true", "sandbox: {}")
    remembered = stage.rolecall.home / "cache" / "sandbox"
    stamp = remembered.read_text().splitlines()[0]
    remembered.write_text(f"{stamp}\n0\n\nFalse")
    assert "cannot be enforced here" in stage.run("true", "sandbox: {}", check=2).stderr
    stage.rolecall("doctor", cwd=stage.folder)
    stage.run("true", "sandbox: {}")


def test_a_command_of_ours_that_a_sandbox_stops_says_so(stage: Stage) -> None:
    subprocess.run(["git", "init", "--quiet", str(stage.folder)], check=True)
    (stage.folder / ".nexus").mkdir()
    program = Path(sys.executable).with_name("rolecall")
    write = f"echo a | {program} artifact write a.md -"
    stage.run(write, "sandbox: {}")
    said = stage.details()["body"]
    assert "Read-only file system" in said
    assert "`write` of its sandbox" in said
    stage.run(write, "sandbox: {write: [., .nexus]}")
    assert (stage.folder / ".nexus/state/artifacts/a.md").read_text() == "a\n"
