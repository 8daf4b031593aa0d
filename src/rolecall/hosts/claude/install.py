"""Claude Code: where its servers, hooks, agents and skills are written, and what stands in them.

Every command is an absolute one of this machine, so in a project the settings go to the file that is one person's
(`settings.local.json`), and nothing that is written is meant to be committed. Each agent has a server of its own that
holds it to its limits, and is denied Lead's; Claude Code starts such servers in folders it was told to trust.
"""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Iterator, Mapping
from typing import Any

from rolecall.errors import RolecallError
from rolecall.hosts import command_hook, file_change, host_file
from rolecall.hosts.claude import events as host
from rolecall.hosts.command_hook import is_refusal as is_refusal
from rolecall.hosts.managed_block import JsonItems, JsonMember, OwnFile, Piece, value_at
from rolecall.hosts.setup import SERVER, Commands, Obstacle, Setup, server_words, shell
from rolecall.nexus import tool_map
from rolecall.nexus.catalog import Agent, Catalog, Skill

TITLE = "Claude Code"
PROGRAM = "claude"
_NAME = "claude"
_TIMEOUT = 10
"""Seconds after which Claude Code stops waiting for a hook and goes on."""
_UNHEARD = " || exit 127"
"""What a hook ends with that failed, however it did: with 2 it would block everything, and only with this one the
person is told that an action was not checked."""
_READS_FAILURES = ("SessionEnd",)
"""Where a hook that fails is how the person is told something."""
_ALLOWED = tuple(
    f"mcp__{SERVER}__{name}"
    for name in (
        *("nx_*", "memory_add", "memory_list", "memory_read", "rule_add", "rule_list", "rule_read"),
        "knowledge_query",
    )
)
"""Tools that need not be asked for: they read, or write to `.nexus/` alone. Those that delete or start agents are
asked for."""
_FOR_LEAD = ("Agent", "ListAgents", "SendMessage", "Task", "Workflow", f"mcp__{SERVER}")
"""Setting others to work is Lead's, and so is Lead's server."""


def pieces(setup: Setup) -> list[Piece]:
    return [
        _server(setup),
        *_settings(setup),
        *(
            OwnFile(_agent_path(setup, agent.id), _agent_file(agent, setup))
            for agent in setup.catalog.agents.values()
        ),
        *(
            OwnFile(_skill_path(setup, skill.id), _skill_file(skill, setup.catalog))
            for skill in setup.catalog.skills.values()
        ),
    ]


def sweeps(setup: Setup) -> list[str]:
    folder = glob.escape(_folder(setup))
    return [os.path.join(folder, "agents", "*.md"), os.path.join(folder, "skills", "*", "SKILL.md")]


def roots(setup: Setup) -> list[str]:
    """Folders that were there before us."""
    return [setup.project or setup.home, *filter(None, [setup.env.get("CLAUDE_CONFIG_DIR")])]


def next_steps(setup: Setup) -> list[str]:
    steps = ["Restart Claude Code where it is open: it reads servers, hooks and agents when it starts."]
    if setup.scope == "project":
        steps.append(
            f"Open Claude Code in {setup.project} once and trust the folder: in one it was not told to trust,"
            " `claude -p` gives agents none of Rolecall's tools."
        )
    else:
        steps.append(host_file.ONLY_PROJECTS)
    return steps


# -- where --


def _user_folder(setup: Setup) -> str:
    return setup.env.get("CLAUDE_CONFIG_DIR") or os.path.join(setup.home, ".claude")


def _folder(setup: Setup) -> str:
    return os.path.join(setup.project, ".claude") if setup.scope == "project" else _user_folder(setup)


def _own_path(setup: Setup) -> str:
    """Where Claude Code keeps what it knows of its user: servers, projects, what was trusted."""
    return os.path.join(setup.env.get("CLAUDE_CONFIG_DIR") or setup.home, ".claude.json")


def _servers_path(setup: Setup) -> str:
    return os.path.join(setup.project, ".mcp.json") if setup.scope == "project" else _own_path(setup)


def _settings_path(setup: Setup) -> str:
    name = "settings.local.json" if setup.scope == "project" else "settings.json"
    return os.path.join(_folder(setup), name)


def _agent_path(setup: Setup, id: str) -> str:
    return os.path.join(_folder(setup), "agents", f"{id}.md")


def _skill_path(setup: Setup, id: str) -> str:
    return os.path.join(_folder(setup), "skills", id, "SKILL.md")


# -- the server and the settings --


def _server(setup: Setup) -> JsonMember:
    value = _started(setup.server_command())
    return JsonMember(
        _servers_path(setup), ("mcpServers", SERVER), value, lambda one: bool(server_words(one))
    )


def _started(words: tuple[str, ...]) -> dict[str, Any]:
    return {"type": "stdio", "command": words[0], "args": list(words[1:])}


def _settings(setup: Setup) -> Iterator[JsonItems]:
    path = _settings_path(setup)
    if setup.scope == "project":
        yield JsonItems(path, ("enabledMcpjsonServers",), (SERVER,), lambda item: item == SERVER)
    rules = (*_ALLOWED, *(f"mcp__{_own_server(agent)}" for agent in setup.catalog.agents))
    yield JsonItems(path, ("permissions", "allow"), rules, _is_our_rule)
    for event in host.EVENTS:
        yield _hook(setup, event)


def _is_our_rule(rule: Any) -> bool:
    return isinstance(rule, str) and (
        rule in _ALLOWED or ("__" not in rule[5:] and rule.startswith(f"mcp__{SERVER}-"))
    )


def _hook(setup: Setup, event: str) -> JsonItems:
    line = shell(setup.hook_command(_NAME, event))
    if event not in _READS_FAILURES:
        line += _UNHEARD
    return command_hook.hook(_settings_path(setup), _NAME, event, line, timeout=_TIMEOUT)


# -- agents and skills --


def _own_server(agent: str) -> str:
    return f"{SERVER}-{agent}"


def _agent_file(agent: Agent, setup: Setup) -> str:
    denied = set(tool_map.denied_tools(agent, tool_map.host_map(_NAME)))
    own, server = {tool for tool in denied if not tool.startswith("mcp__")}, _own_server(agent.id)
    head = {
        "name": agent.id,
        "description": host_file.summary(agent),
        **setup.model(_NAME, agent),
        "disallowedTools": ", ".join(sorted(own.union(_FOR_LEAD))),
        "mcpServers": [{server: _started(setup.server_command(agent.id))}],
    }
    names = f"The tools called `nx_…` here are those of the MCP server `{server}`: `mcp__{server}__nx_…`."
    return host_file.headed(head, f"{agent.body.strip()}\n\n{names}")


def _skill_file(skill: Skill, catalog: Catalog) -> str:
    head: dict[str, Any] = {"name": skill.id, "description": skill.description}
    if skill.manual_only:
        head["disable-model-invocation"] = True
    body = host_file.skill_body(skill, catalog, host.words(catalog.vocabulary.tags), host.docs(skill))
    return host_file.headed(head, body)


# -- what doctor asks --


def commands(setup: Setup) -> Commands:
    """The commands as they stand in the files."""
    servers = {SERVER: server_words(value_at(_server(setup)))}
    for agent in setup.catalog.agents:
        text = file_change.read_text(_agent_path(setup, agent))
        if text is not None:
            servers[_own_server(agent)] = _server_in(text, _own_server(agent))
    return Commands(servers, command_hook.commands(_hook(setup, event) for event in host.EVENTS))


def _server_in(text: str, name: str) -> tuple[str, ...]:
    """The command of a server that the file of an agent names."""
    try:
        listed = host_file.head_of(text).get("mcpServers")
    except RolecallError:  # what is wrong with it is told of the file
        return ()
    entries = [one for one in listed if isinstance(one, Mapping)] if isinstance(listed, list) else []
    return next((server_words(one[name]) for one in entries if name in one), ())


def obstacles(setup: Setup) -> list[Obstacle]:
    """Why Claude Code would leave out part of what is installed."""
    return [*_untrusted(setup), *_switched_off(setup)]


def _untrusted(setup: Setup) -> Iterator[Obstacle]:
    if setup.scope == "project" and _known_of(setup).get("hasTrustDialogAccepted") is not True:
        yield Obstacle(
            f"Claude Code was not told yet to trust {setup.project}, so it gives agents none of Rolecall's tools",
            f"Start claude in {setup.project} once and answer its question.",
        )


def _switched_off(setup: Setup) -> Iterator[Obstacle]:
    paths = [os.path.join(_user_folder(setup), "settings.json")]
    if setup.scope == "project":
        paths += [os.path.join(_folder(setup), name) for name in ("settings.json", "settings.local.json")]
    found = {path: _object_in(path) for path in paths}
    for path, settings in found.items():
        if settings.get("disableAllHooks") is True:
            yield Obstacle(f"Claude Code runs no hooks: disableAllHooks in {path}", f"Take it out of {path}.")
    if setup.scope == "project":
        for path, settings in {**found, _own_path(setup): _known_of(setup)}.items():
            for key in ("disabledMcpjsonServers", "disabledMcpServers"):
                listed = settings.get(key)
                if isinstance(listed, list) and SERVER in listed:
                    text = f"Claude Code does not start our server: {key} in {path}"
                    yield Obstacle(text, "Enable it again with /mcp in Claude Code, or take it out there.")


def _known_of(setup: Setup) -> Mapping[str, Any]:
    """What Claude Code keeps of the project in its own file."""
    projects = _object_in(_own_path(setup)).get("projects")
    found = projects.get(setup.project) if isinstance(projects, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _object_in(path: str) -> Mapping[str, Any]:
    """What a JSON file has; nothing where there is none, or none that can be read."""
    try:
        found = json.loads(file_change.read_text(path) or "{}")
    except (ValueError, RecursionError, RolecallError):
        return {}
    return found if isinstance(found, Mapping) else {}


def sample(event: str, folder: str) -> dict[str, Any]:
    """What Claude Code would say at an event in a project in `folder`."""
    given = {"file_path": os.path.join(folder, "doctor.txt"), "content": "."}
    return command_hook.sample(event, folder, {"tool_name": "Write", "tool_input": given})
