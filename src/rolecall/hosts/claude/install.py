"""Claude Code: the locations and contents of its servers, hooks, agents and skills.

Commands are absolute paths on this machine, so a project's settings are written to the personal file
(`settings.local.json`) and should not be committed. Each agent has a server of its own that enforces the agent's
limits, and is denied Lead's server. Claude Code starts agents' servers only in folders that the user trusts.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from rolecall.agents.adapters.claude import DENIES
from rolecall.errors import RolecallError
from rolecall.hosts import command_hook, file_change, host_file
from rolecall.hosts.claude.events import EVENTS
from rolecall.hosts.claude.words import WORDING
from rolecall.hosts.command_hook import is_refusal as is_refusal
from rolecall.hosts.installation import Entry, FileMember, Items, OwnFile, read_value
from rolecall.hosts.names import THREAD_END
from rolecall.hosts.payload import Payload
from rolecall.hosts.setup import SERVER, Commands, HostSetup, Obstacle, server_words
from rolecall.nexus.catalog import Catalog, Skill
from rolecall.settings import capabilities
from rolecall.store.canonical import JsonObject

TITLE = "Claude Code"
PROGRAM = "claude"
LAYOUT = host_file.Layout(".claude", "CLAUDE_CONFIG_DIR", ".claude", "", ("agents/*.md", "skills/*/SKILL.md"))
path, sweeps, roots = LAYOUT.path, LAYOUT.sweeps, LAYOUT.roots
_TIMEOUT = 10
"""The number of seconds that Claude Code waits for a hook."""
_LONGEST_RUN = 7 * 86_400
"""The number of seconds for which a background hook waits for the end of a thread."""
_HANDS_OVER = f"mcp__{SERVER}__(workflow_run|thread_run)"
_READS = (
    "nx_*",
    "memory_add",
    "memory_list",
    "memory_read",
    "rule_add",
    "rule_list",
    "rule_read",
    "knowledge_query",
)
_ALLOWED = tuple(f"mcp__{SERVER}__{name}" for name in _READS)
"""The tools that need no permission, because they only read, or write only to `.nexus/`."""
_AGENT_RULE = re.compile(f"mcp__{SERVER}-(?!.*__).*")
"""A permission for all tools of an agent's server."""
_FOR_LEAD = ("Agent", "ListAgents", "SendMessage", "Task", "Workflow", f"mcp__{SERVER}")
"""The tools that only Lead is allowed to use: those that start agents, and those of Lead's server."""


def list_entries(setup: HostSetup) -> list[Entry]:
    rules = (*_ALLOWED, *(f"mcp__{SERVER}-{agent}" for agent in setup.catalog.agents))
    found: list[Entry] = [
        FileMember(
            _server_path(setup),
            ("mcpServers", SERVER),
            _server(setup.server_command()),
            is_ours=lambda value: bool(server_words(value)),
        ),
        Items(
            _settings_path(setup),
            ("permissions", "allow"),
            rules,
            lambda rule: rule in _ALLOWED or _AGENT_RULE.fullmatch(str(rule)) is not None,
        ),
        *_hooks(setup),
    ]
    if setup.scope == "project":
        enabled = ("enabledMcpjsonServers",)
        found.append(Items(_settings_path(setup), enabled, (SERVER,), lambda item: item == SERVER))
    for agent in setup.catalog.agents.values():
        server, denied = f"{SERVER}-{agent.id}", capabilities.denied_tools(DENIES, agent.capabilities)
        head = {
            "name": agent.id,
            "description": host_file.summary(agent),
            **setup.model(PROGRAM, agent),
            "disallowedTools": ", ".join(sorted({*denied, *_FOR_LEAD})),
            "mcpServers": [{server: _server(setup.server_command(agent.id))}],
        }
        names = f"The tools called `nx_…` here are those of the MCP server `{server}`: `mcp__{server}__nx_…`."
        text = host_file.with_head(head, f"{agent.body.strip()}\n\n{names}")
        found.append(OwnFile(path(setup, "agents", f"{agent.id}.md"), text))
    for skill in setup.catalog.skills.values():
        found.append(OwnFile(path(setup, "skills", skill.id, "SKILL.md"), skill_file(skill, setup.catalog)))
    return found


def skill_file(skill: Skill, catalog: Catalog) -> str:
    manual: dict[str, Any] = {"disable-model-invocation": True} if skill.manual_only else {}
    return host_file.skill_file(skill, catalog, WORDING, **manual)


def next_steps(setup: HostSetup) -> list[str]:
    trust = (
        f"Open Claude Code in {setup.project} once and trust the folder: in a folder that you have not trusted,"
        " `claude -p` gives agents none of Rolecall's tools."
    )
    return [
        "If Claude Code is running, restart it: it reads servers, hooks and agents when it starts.",
        trust if setup.scope == "project" else host_file.ONLY_PROJECTS,
    ]


def _own_path(setup: HostSetup) -> str:
    """Return the file in which Claude Code keeps the user's servers, projects and trust decisions."""
    return os.path.join(setup.env.get("CLAUDE_CONFIG_DIR") or setup.home, ".claude.json")


def _server_path(setup: HostSetup) -> str:
    return os.path.join(setup.project, ".mcp.json") if setup.project else _own_path(setup)


def _settings_path(setup: HostSetup) -> str:
    return path(setup, "settings.local.json" if setup.scope == "project" else "settings.json")


def _server(command: tuple[str, ...]) -> JsonObject:
    return {"type": "stdio", "command": command[0], "args": list(command[1:])}


def _hooks(setup: HostSetup) -> Iterator[Items]:
    for event in EVENTS:
        line = shlex.join(setup.hook_command(PROGRAM, event))
        if event != "SessionEnd":  # at SessionEnd, the person sees only the output of a failing hook
            # Exit code 2 would block everything. Only at exit code 127 does Claude Code report that an action was not
            # checked.
            line += " || exit 127"
        more = []
        if event == "PostToolUse":  # this hook runs in the background, and exit code 2 wakes the model
            wait = shlex.join(setup.hook_command(PROGRAM, THREAD_END))
            fields = {"asyncRewake": True, "timeout": _LONGEST_RUN}
            more = [{"matcher": _HANDS_OVER, "hooks": [{"type": "command", "command": wait, **fields}]}]
        yield command_hook.hook(_settings_path(setup), PROGRAM, event, line, *more, timeout=_TIMEOUT)


# -- for doctor --


def commands(setup: HostSetup) -> Commands:
    servers = {SERVER: server_words(read_value(_server_path(setup), ("mcpServers", SERVER)))}
    for agent in setup.catalog.agents:
        text, name = file_change.read_text(path(setup, "agents", f"{agent}.md")), f"{SERVER}-{agent}"
        if text is None:
            continue
        servers[name] = ()
        with suppress(RolecallError):  # the file's own check reports it
            listed = host_file.read_head(text).get("mcpServers")
            for server in listed if isinstance(listed, list) else ():
                if isinstance(server, Mapping) and name in server:
                    servers[name] = server_words(server[name])
    return Commands(servers, command_hook.read_commands(_hooks(setup)))


def obstacles(setup: HostSetup) -> list[Obstacle]:
    found = []
    paths = [os.path.join(LAYOUT.user_folder(setup), "settings.json")]
    known: Any = {}
    if setup.scope == "project":
        paths += [path(setup, name) for name in ("settings.json", "settings.local.json")]
        known = _read_mapping(_own_path(setup), ("projects", setup.project))
        if known.get("hasTrustDialogAccepted") is not True:
            text = (
                f"Claude Code does not trust {setup.project} yet, so it gives agents none of Rolecall's tools"
            )
            found.append(Obstacle(text, f"Start claude in {setup.project} once and answer its question."))
    settings = {file: _read_mapping(file) for file in paths}
    for file, one in settings.items():
        if one.get("disableAllHooks") is True:
            text = f"Claude Code runs no hooks: disableAllHooks in {file}"
            found.append(Obstacle(text, f"Take it out of {file}."))
    for file, one in {**settings, _own_path(setup): known}.items() if setup.project else ():
        for key in ("disabledMcpjsonServers", "disabledMcpServers"):
            listed = one.get(key)
            if isinstance(listed, list) and SERVER in listed:
                text = f"Claude Code does not start our server: {key} in {file}"
                fix = "Enable it again with /mcp in Claude Code, or take it out there."
                found.append(Obstacle(text, fix))
    return found


def _read_mapping(file: str, keys: tuple[str, ...] = ()) -> JsonObject:
    try:
        found = read_value(file, keys)
    except RolecallError:  # the file's own check reports it
        return {}
    return found if isinstance(found, Mapping) else {}


def sample(event: str, folder: str) -> Payload:
    given = {"file_path": os.path.join(folder, "doctor.txt"), "content": "."}
    return command_hook.sample(event, folder, {"tool_name": "Write", "tool_input": given})
