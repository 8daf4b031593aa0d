"""Adapters are used from Python by the names that roles give them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import rolecall
from rolecall import agents
from rolecall.agents import claude, command

ANSWER = "---\nstatus: done\n---\nHello."
DONE = {"type": "object", "properties": {"status": {"const": "done"}}}


@pytest.mark.parametrize("name", agents.ADAPTERS)
def test_every_adapter_can_be_imported_by_its_name(name: str) -> None:
    assert callable(getattr(agents, name))


def test_an_unknown_adapter_cannot_be_imported() -> None:
    with pytest.raises(AttributeError, match="calude"):
        getattr(agents, "calude")  # noqa: B009 -- mypy knows that it is not there


@pytest.mark.parametrize("kind", ["command", "claude"])
def test_an_adapter_with_options_plays_a_role(tmp_path: Path, kind: str) -> None:
    result = {"type": "result", "is_error": False, "result": ANSWER, "session_id": "s1", "num_turns": 1}
    (tmp_path / "answer").write_text(ANSWER if kind == "command" else json.dumps(result))
    program = tmp_path / "program"
    program.write_text(f"#!/bin/sh\ncat > /dev/null\ncat '{tmp_path}/answer'\n")
    program.chmod(0o755)
    agent = (
        command([str(program)], timeout=60)
        if kind == "command"
        else claude(model="opus", timeout=60, executable=str(program))
    )
    role = rolecall.Role(agent, "Greet the user.", DONE)
    workflow = rolecall.Workflow(
        "greet-user", {"greeter": role}, lambda context: rolecall.END if context.steps else "greeter"
    )
    with rolecall.open(":memory:", folder=tmp_path) as rc:
        thread = rc.start(workflow, "Say hello")
        thread.run().wait()
        assert (thread.status, thread.steps[-1].body) == ("completed", "Hello.")
