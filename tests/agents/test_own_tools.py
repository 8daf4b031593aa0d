"""A role that may start threads gets the project's own tools, if its agent takes tool servers."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rolecall.agents.program import McpServer
from rolecall.settings.settings import Settings
from rolecall.threads import casting
from rolecall.workflow import gallery, registry

SERVER = ("-P", "-m", "rolecall", "mcp")


def servers(settings: Settings, role: str = "lead", workflow: str = "lead") -> tuple[McpServer, ...]:
    book = registry.load_file(str(gallery.path_of(workflow)))
    environment = {"ROLECALL_HOME": "/somewhere", "KEY": "x"}
    made = casting.cast(settings, book, role, environment=environment).agent
    given: tuple[McpServer, ...] = getattr(made, "mcp", ())
    return given


@pytest.mark.parametrize("agent", ["claude", "codex", "opencode", "copilot", "qwen", "acp:gemini"])
def test_an_agent_that_takes_servers_gets_ours(agent: str) -> None:
    (server,) = servers({"defaultAgent": agent})
    assert (server.name, server.command, server.args) == ("rolecall", sys.executable, SERVER)
    assert server.env == {"ROLECALL_HOME": "/somewhere", "ROLECALL_MAY_START_THREADS": "1"}


def test_servers_of_the_configuration_stay_and_come_first() -> None:
    own = {"adapter": "claude", "mcp": {"docs": {"command": "docs-server"}}}
    names = [server.name for server in servers({"defaultAgent": "mine", "agents": {"mine": own}})]
    assert names == ["docs", "rolecall"]
    own["mcp"] = {"rolecall": {"command": "another"}}
    (server,) = servers({"defaultAgent": "mine", "agents": {"mine": own}})
    assert server.command == "another"


def test_other_roles_and_other_agents_get_none(tmp_path: Path) -> None:
    assert servers({"defaultAgent": "claude"}, "researcher", "answer-question") == ()
    (tmp_path / "script.yaml").write_text("roles: {lead: [{body: Hello}]}")
    assert servers({"defaultAgent": f"scripted:{tmp_path}/script.yaml"}) == ()
