"""`rolecall new` copies a workflow of the gallery with the agents of this machine; `rolecall try` runs one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import Rolecall
from fakeagent import claude_says, executable, fake_claude

from rolecall.workflow import gallery
from rolecall.workflow.yaml import load_file

KEY = "sk-test-0123456789"
OPEN = """\
name: say-hello
description: Says hello.
roles:
  writer:
    prompt: Say hello.
    schema: {type: object, properties: {text: {type: string}}, required: [text]}
  checker:
    prompt: Check it.
    agent: "command:printf %b '---\\\\nok: true\\\\n---\\\\nChecked.\\\\n'"
    schema: {type: object, properties: {ok: {type: boolean}}, required: [ok]}
graph:
  $START: writer
  writer: checker
  checker: $END
"""


class Machine:
    """A machine on which Claude Code is installed, and a project."""

    def __init__(self, rolecall: Rolecall, folder: Path) -> None:
        self.rolecall, self.bin, self.project = rolecall, folder / "bin", folder / "project"
        for path in (self.bin, self.project, folder / "user"):
            path.mkdir()
        self.env = {
            "PATH": f"{self.bin}:/usr/bin:/bin",
            "HOME": str(folder / "user"),
            "ANTHROPIC_API_KEY": KEY,
        }
        fake_claude(self.bin, run=claude_says("---\ntext: Hello.\n---\nSaid."))

    def install_codex(self) -> None:
        executable(self.bin / "codex", "echo 'codex-cli 0.63.0'\n")
        self.env["CODEX_API_KEY"] = self.env["OPENAI_API_KEY"] = KEY

    def __call__(self, *args: str, check: int = 0) -> Any:
        return self.rolecall(*args, check=check, env=self.env, cwd=self.project)

    def json(self, *args: str) -> Any:
        return json.loads(self(*args, "--json").stdout.strip().splitlines()[-1])


@pytest.fixture
def machine(rolecall: Rolecall, tmp_path: Path) -> Machine:
    return Machine(rolecall, tmp_path)


def test_the_list_has_one_line_of_80_columns_for_each(machine: Machine) -> None:
    lines = machine("new").stdout.splitlines()
    assert [line.split()[0] for line in lines[1 : len(gallery.names()) + 1]] == gallery.names()
    assert max(map(len, lines)) <= 80


def test_a_copy_names_the_agents_that_are_ready_and_never_overwrites(machine: Machine) -> None:
    copied = machine.json("new", "answer-question")
    assert copied["agents"] == {"researcher": "claude", "checker": "claude"}
    path = machine.project / copied["file"]
    assert (copied["file"], path.read_text().count("agent: claude")) == (".workflows/answer-question.yaml", 2)
    before = path.read_text()
    assert "--from answer-question" in machine("new", "answer-question", check=2).stderr
    assert path.read_text() == before
    machine("new", "../out", "--from", "answer-question", check=2)
    machine("new", "no-such", check=3)
    refused = machine("new", "lock", "--from", "answer-question", check=2)
    assert "lists the workflows of packs" in refused.stderr
    assert not (machine.project / ".workflows" / "lock.yaml").exists()

    # With two, another agent judges; a configured one is left to the configuration.
    machine.install_codex()
    machine("config", "set", "defaultAgent", "claude")
    assert machine.json("new", "--from", "answer-question", "ask-me")["agents"] == {"checker": "codex"}
    workflow = load_file(machine.project / ".workflows" / "ask-me.yaml").workflow
    assert workflow and workflow.name == "ask-me" and workflow.roles["researcher"].agent is None


def test_every_workflow_of_the_gallery_can_be_copied(machine: Machine) -> None:
    machine.install_codex()
    for name in gallery.names():
        copied = machine.json("new", name)
        read = load_file(machine.project / copied["file"])
        assert read.workflow is not None and not read.problems
        assert {role: read.workflow.roles[role].agent for role in copied["agents"]} == copied["agents"]
        assert copied["agents"] and copied["open"] == []


def test_trying_needs_no_configuration_and_replaces_no_agent(machine: Machine) -> None:
    (machine.project / ".workflows").mkdir()
    (machine.project / ".workflows" / "say-hello.yaml").write_text(OPEN)
    assert "no agent is named" in machine("run", "say-hello", "-p", "x", check=2).stderr
    done = machine("try", "say-hello", "-p", "x")
    assert "claude plays writer: it is ready here" in done.stderr
    (thread,) = machine.json("thread", "list", "--all")
    steps = machine.json("thread", "steps", thread["thread"])["steps"]
    assert [step["agent"].partition(":")[0] for step in steps if step.get("role")] == ["claude", "command"]

    machine.env["ANTHROPIC_API_KEY"] = ""
    refused = machine("try", "say-hello", "-p", "x", check=2)
    assert "no agent is ready here to play writer" in refused.stderr and "rolecall doctor" in refused.stderr
    to_do = "Run `claude` and sign in, or set ANTHROPIC_API_KEY."
    assert f"claude is installed, but not signed in: {to_do}\n" in refused.stderr
    (machine.project / ".workflows" / "say-hello.yaml").unlink()
    found = machine("doctor").stdout
    assert to_do in found and "npm install -g @openai/codex" in found
    assert found.splitlines()[-1] == "not ready: no workflow here"
