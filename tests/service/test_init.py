"""`rolecall init`: a project that runs at once, made beside whatever is there, and never over it."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema_rs
import pytest
from fakeagent import claude_says, fake_claude
from terminal import Terminal

from rolecall.knowledge import settings as knowledge_settings
from rolecall.service import policy, project_file
from rolecall.service.triggers import trigger_form
from rolecall.settings import yaml12
from rolecall.settings.settings import EXTRACT
from rolecall.workflow import gallery

if TYPE_CHECKING:
    from conftest import Rolecall


SCHEMAS = (".schemas/project.schema.json", ".schemas/workflow.schema.json")


class Machine:
    """A user's machine on which no agent is installed, and a folder for the project."""

    def __init__(self, rolecall: Rolecall, folder: Path) -> None:
        self.rolecall = rolecall
        self.bin = folder / "bin"
        self.project = folder / "project"
        for path in (self.bin, self.project, folder / "user"):
            path.mkdir()
        self.env = {
            "PATH": f"{self.bin}:/usr/bin:/bin",
            "HOME": str(folder / "user"),
            "ANTHROPIC_API_KEY": "",
        }

    def run(self, *args: str, check: int = 0, **env: str) -> Any:
        done = self.rolecall(*args, "--json", check=check, env={**self.env, **env}, cwd=self.project)
        return json.loads(done.stdout.strip().splitlines()[-1])


@pytest.fixture
def machine(rolecall: Rolecall, tmp_path: Path) -> Machine:
    return Machine(rolecall, tmp_path)


def files_in(folder: Path) -> dict[str, str]:
    found = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_text() for path in found}


def test_a_new_project_is_valid_and_its_example_runs_without_any_agent(machine: Machine) -> None:
    shown = machine.run("init")
    assert shown["made"] == ["rolecall.yaml", ".workflows/hello.yaml", ".gitignore"]
    assert shown["kept"] == []
    assert shown["example"]["agent"] == "command:printf"
    report = machine.run("validate", "--offline")
    assert (report["valid"], report["problems"]) == (True, [])
    thread = machine.run("thread", "start", "hello", "-p", "A haiku")["thread"]
    assert machine.run("thread", "run", thread)["status"] == "completed"


def test_what_init_says_to_type_next_runs_the_example_to_its_end(machine: Machine) -> None:
    words = machine.run("init")["example"]["run"].split(" ", 3)
    assert words[:2] == ["rolecall", "run"]
    assert machine.run(*words[1:3], "-p", "A haiku about the sea")["status"] == "completed"


def test_agents_that_are_missing_are_told_with_how_to_have_them(machine: Machine) -> None:
    agents = {one["agent"]: one for one in machine.run("init")["agents"]}
    assert agents["claude"]["state"] == "not installed"
    assert agents["claude"]["fix"] == "npm install -g @anthropic-ai/claude-code"
    assert {"codex", "opencode", "gemini"} <= agents.keys()


def test_an_agent_that_is_ready_plays_the_example(machine: Machine) -> None:
    fake_claude(machine.bin)
    shown = machine.run("init", ANTHROPIC_API_KEY="sk-test-0123456789")
    assert shown["example"]["agent"] == "claude"
    assert next(one for one in shown["agents"] if one["agent"] == "claude")["state"] == "ready"
    example = (machine.project / ".workflows" / "hello.yaml").read_text()
    assert example.count("agent: claude") == 2
    assert "sk-test" not in example


def test_an_agent_that_is_not_signed_in_does_not_play_the_example(machine: Machine) -> None:
    fake_claude(machine.bin)
    shown = machine.run("init")
    assert next(one for one in shown["agents"] if one["agent"] == "claude")["state"] == "not signed in"
    assert shown["example"]["agent"] == "command:printf"


def test_a_second_init_changes_nothing(machine: Machine) -> None:
    machine.run("init", "--senses", "--schemas")
    before = files_in(machine.project)
    shown = machine.run("init", "--senses", "--schemas")
    assert shown["made"] == []
    assert shown["kept"] == [
        "rolecall.yaml", ".workflows/hello.yaml", "senses/disk_space.py", *SCHEMAS, ".gitignore",
    ]  # fmt: skip
    assert files_in(machine.project) == before


def test_a_nerve_yaml_is_pointed_out(machine: Machine) -> None:
    (machine.project / "nerve.yaml").write_text("extract: {provider: dashscope, model: qwen-plus}\n")
    done = machine.rolecall("init", env=machine.env, cwd=machine.project, check=0)
    assert "nerve.yaml is not read. Move what it says to rolecall.yaml" in done.stderr


def test_nothing_that_is_there_is_overwritten(machine: Machine) -> None:
    (machine.project / "workflows").mkdir()
    (machine.project / "rolecall.yaml").write_text("name: mine\n")
    (machine.project / "workflows" / "hello.py").write_text("# mine\n")
    (machine.project / ".gitignore").write_text("target\n.env")
    os.chmod(machine.project / ".gitignore", 0o640)
    shown = machine.run("init")
    assert shown["made"] == [".gitignore"]
    files = files_in(machine.project)
    assert files["rolecall.yaml"] == "name: mine\n"
    assert files["workflows/hello.py"] == "# mine\n"
    assert ".workflows/hello.yaml" not in files  # it would hide the other
    assert files[".gitignore"] == "target\n.env\nknowledge.db\nknowledge.db-*\n__pycache__/\n"
    assert stat.S_IMODE((machine.project / ".gitignore").stat().st_mode) == 0o640


def test_senses_are_made_only_when_asked_for_and_nothing_uses_them_by_itself(machine: Machine) -> None:
    machine.run("init")
    assert not (machine.project / "senses").exists()
    assert machine.run("init", "--senses")["made"] == ["senses/disk_space.py"]
    assert machine.run("trigger", "list") == []


def test_a_folder_that_is_not_there_is_made_and_a_file_in_its_place_is_refused(machine: Machine) -> None:
    shown = machine.run("init", "deep/below")
    assert shown["folder"] == str(machine.project / "deep" / "below")
    assert (machine.project / "deep" / "below" / "rolecall.yaml").is_file()
    done = machine.rolecall("init", "deep/below/rolecall.yaml", cwd=machine.project, check=2)
    assert "is not a folder" in done.stderr


def test_on_a_terminal_it_says_what_was_made_what_is_missing_and_what_is_next(machine: Machine) -> None:
    done = machine.rolecall("init", "--format", "text", env=machine.env, cwd=machine.project, check=0)
    assert "made: rolecall.yaml, .workflows/hello.yaml, .gitignore" in done.stdout
    assert "npm install -g @anthropic-ai/claude-code" in done.stdout
    assert done.stdout.splitlines()[-1] == "Next: rolecall run hello -p 'A haiku about the sea'"


HELLO_ANSWERS = {
    "writer": "---\ntext: Waves\n---\nHere it is.",
    "reader": "---\n$status: good\nadvice: none\n---\nFine.",
}


@pytest.fixture
def claude(machine: Machine) -> Machine:
    """A machine with an agent that is signed in, and answers as the role of `hello` that is asked."""
    answers = {role: claude_says(text) for role, text in HELLO_ANSWERS.items()}
    cases = f"*'You are a reader'*) {answers['reader']};; *) {answers['writer']};;"
    fake_claude(machine.bin, run=f'said=$(cat; echo "$@"); case "$said" in {cases} esac')
    machine.env["ANTHROPIC_API_KEY"] = "sk-test-0123456789"
    return machine


def type_next(machine: Machine, shown: str) -> str:
    """Run the command on the last line, as a shell would; return what it prints."""
    command = shown.rstrip().splitlines()[-1].removeprefix("Next: ")
    done = subprocess.run(
        ["sh", "-c", command],
        cwd=machine.project,
        env={
            **os.environ,
            **machine.env,
            "ROLECALL_HOME": str(machine.rolecall.home),
            "PATH": f"{Path(sys.executable).parent}:{machine.env['PATH']}",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout


def test_the_command_on_the_last_line_runs(claude: Machine) -> None:
    for words in (["init", "shop"], ["init"]):
        shown = claude.rolecall(*words, env=claude.env, cwd=claude.project, check=0).stdout
        assert "claude plays the roles of hello" in shown
        assert " is completed" in type_next(claude, shown)


def test_on_a_terminal_it_asks_for_workflow_and_task(
    claude: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(claude.project)
    for name in ("HOME", "ANTHROPIC_API_KEY"):
        monkeypatch.setenv(name, claude.env[name])
    terminal = Terminal("init", home=claude.rolecall.home, path=claude.env["PATH"])
    terminal.expect("Which workflow first?")  # there is only one agent, so there is no question which
    terminal.expect("(Enter: 1): ")
    listed = terminal.screen()[1:-1]
    assert [line.split()[2:] for line in listed[1:]] == [
        line.split() for line in gallery.summaries().values()
    ]
    assert max(map(len, listed)) <= 80
    terminal.type("\n")
    terminal.expect("What should be done? (Enter: A haiku about the sea): ")
    terminal.type("Don't panic\n")
    assert terminal.close() == 0
    shown = terminal.seen.replace("\r\n", "\n")
    assert shown.splitlines()[-1] == "Next: rolecall run hello -p 'Don'\"'\"'t panic'"
    assert " is completed" in type_next(claude, shown)


def test_flags_choose_a_ready_made_workflow_without_a_question(claude: Machine) -> None:
    shown = claude.run("init", "--workflow", "answer-question", "--agent", "claude")
    assert shown["made"] == ["rolecall.yaml", ".gitignore"]
    assert shown["example"]["run"] == "rolecall run answer-question -p 'What to do' --agent claude"
    assert claude.run("validate", "--offline")["valid"]
    refused = claude.rolecall(
        "init", "--workflow", "anser-question", env=claude.env, cwd=claude.project, check=2
    )
    assert (
        "no ready-made workflow has the name 'anser-question'\n  Did you mean 'answer-question'?"
        in refused.stderr
    )


def test_an_agent_that_is_not_installed_is_refused_before_anything_is_written(machine: Machine) -> None:
    refused = machine.rolecall("init", "--agent", "codex", env=machine.env, cwd=machine.project, check=3)
    assert "the agent 'codex' needs the program 'codex', which was not found" in refused.stderr
    assert files_in(machine.project) == {}


def test_editors_find_the_schemas_of_the_files_that_were_made(machine: Machine) -> None:
    machine.run("init", "--schemas")
    for name, kind in (("rolecall.yaml", "project"), (".workflows/hello.yaml", "workflow")):
        file = machine.project / name
        line = file.read_text().splitlines()[0]
        schema = file.parent / line.removeprefix("# yaml-language-server: $schema=")
        found = json.loads(schema.read_text())
        assert found == machine.run("workflow", "schema", kind)
        jsonschema_rs.validator_for(found).validate(yaml12.load(file.read_text()))


def test_the_schema_of_a_project_knows_every_key_and_no_other() -> None:
    schema = project_file.json_schema()
    valid = jsonschema_rs.validator_for(schema).is_valid
    page = (Path(__file__).parents[2] / "docs" / "project-file.md").read_text()
    example = yaml12.load(page.split("```yaml\n")[1].partition("```")[0])
    assert set(example) == set(project_file.KEYS) and valid(example)
    parts = schema["properties"]
    assert tuple(parts) == project_file.KEYS
    assert set(parts["extract"]["properties"]) == {*EXTRACT.keys}
    assert set(parts["service"]["properties"]) == set(policy.SERVICE.keys)
    worker = {field.name for field in fields(policy.WorkerLimits)}
    assert set(parts["service"]["properties"]["worker"]["properties"]) == worker
    workflow = parts["workflows"]["additionalProperties"]["properties"]
    assert set(workflow) == {*policy.WORKFLOW_FIELDS, "triggers"}
    assert set(workflow["triggers"]["additionalProperties"]["properties"]) == set(trigger_form.KEYS)
    assert set(parts["knowledge"]["properties"]) == set(knowledge_settings.SETTINGS.keys)
    for wrong in (
        {"naem": "x"},
        {"service": {"limit": 0}},
        {"workflows": {"a": {"triggers": {"b": {"every": 5}}}}},
    ):
        assert not valid(wrong)
