"""Settings for individual agents that speak the Agent Client Protocol, used by acp.py.

The protocol does not define how to restrict an agent. Permission requests are answered, but most agents ask only for
some actions, and some end their turn after a refusal. So if an agent has its own mechanism (a sandbox, a list of denied
tools), a role's restrictions use it, and the model does not see the tool at all.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rolecall.agents.adapters import claude, codex, copilot, gemini, opencode, qwen
from rolecall.agents.adapters.copilot import Copilot
from rolecall.agents.adapters.gemini import Gemini
from rolecall.agents.adapters.opencode import OpenCode
from rolecall.agents.adapters.qwen import Qwen
from rolecall.agents.program import McpServer, mapping
from rolecall.errors import UsageError
from rolecall.settings import capabilities

FOLDER = "{folder}"
"""Placeholder in an argument for the process's folder, which contains the files of a launch."""

_OURS = "rolecall"
_OPENCODE_CONFIG = "OPENCODE_CONFIG_CONTENT"


@dataclass(frozen=True)
class Launch:
    """Additions to an agent's command, environment and sessions for one way of running it."""

    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    meta: Mapping[str, Any] = field(default_factory=dict)
    """The `_meta` field of requests that open a session."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Files that the process needs, by name."""
    mode: str | None = None
    """The required mode of its sessions."""


@dataclass(frozen=True)
class Wish:
    """The requirements for running an agent."""

    tools: tuple[str, ...] = ()
    """The tools or settings to deny, in the terms of the preset's table."""
    model: str | None = None
    servers: tuple[McpServer, ...] = ()
    """The tool servers to provide. Other servers that the agent knows are not trusted."""
    env: Mapping[str, str] = field(default_factory=dict)
    """The agent's environment."""
    folder: Path = Path()
    """The work folder."""


@dataclass(frozen=True)
class Preset:
    words: tuple[str, ...]
    """The command."""
    install: str
    denies: Mapping[str, tuple[str, ...]]
    """For each class of actions, the tools or settings that deny it. A class that is missing here cannot be denied."""
    launch: Callable[[Wish], Launch]
    can_fork: bool = False
    has_model_flag: bool = True
    """Whether `launch` sets the model; otherwise it is chosen from the session's options."""
    is_given_servers: bool = True
    """Whether tool servers are passed when a session is opened; otherwise `launch` passes them."""
    server_key: str = ""
    """The key in a permission request's input that names the tool server."""
    is_other_harmless: bool = False
    """Whether its own restrictions leave no tool, even from other servers, that could do what is denied. Requests of
    kind `other` (another agent, a skill) can then be allowed."""
    is_usage_total: bool = False
    """Whether the usage reported after a prompt counts from the start of the process."""
    is_used_per_request: bool = False
    """Whether each request to the model, and nothing else, sends a `usage_update`."""
    notices: re.Pattern[str] | None = None
    """The agent's own notices, which arrive as model messages, each in one chunk."""
    failures: re.Pattern[str] | None = None
    """Notices that report a failure of the model's endpoint, after which the turn still ends normally."""


def preset_of(words: Sequence[str]) -> tuple[str, Preset | None, tuple[str, ...]]:
    """Return the agent's name, its preset and the full command. A single word may be a preset's name, and a command
    that starts with a preset's words is that agent with further arguments."""
    if len(words) == 1 and words[0] in PRESETS:
        return words[0], PRESETS[words[0]], PRESETS[words[0]].words
    program = (os.path.basename(words[0]), *words[1:])
    for name, preset in PRESETS.items():
        if program[: len(preset.words)] == preset.words:
            return name, preset, tuple(words)
    return program[0], None, tuple(words)


def _codex(wish: Wish) -> Launch:
    # session/set_mode is not used because it marks the folder as trusted in the user's configuration. If anything is
    # denied, permission requests are off, because a refusal ends the turn.
    settings = ['approval_policy="on-request"', 'sandbox_mode="workspace-write"', *wish.tools]
    if wish.model:
        settings.append(f"model={json.dumps(wish.model)}")
    if wish.tools:  # disable other tool servers, because they run outside the sandbox
        off = codex.servers_off(wish.env, wish.folder, [server.name for server in wish.servers])
        settings += [f"mcp_servers={off}", "features.plugins=false", "features.apps=false"]
    return Launch(args=tuple(word for setting in settings for word in ("-c", setting)))


def _claude(wish: Wish) -> Launch:
    options: dict[str, Any] = {
        "disallowedTools": list(wish.tools),
        "allowDangerouslySkipPermissions": False,
        "strictMcpConfig": bool(wish.tools),  # the user's own tool servers could bypass a restriction
        "promptSuggestions": False,  # it would cost a model request after every answer
    }
    if wish.model:
        options["model"] = wish.model
    meta = {"claudeCode": {"options": options}}
    return Launch(env={"DISABLE_AUTOUPDATER": "1"}, meta=meta, mode="default")


def _opencode(wish: Wish) -> Launch:
    """Play a restricted role with an agent of our own, which OpenCode treats as a session mode."""
    env = {"OPENCODE_DISABLE_AUTOUPDATE": "1"}
    if not wish.tools:
        return Launch(env=env)
    written = wish.env.get(_OPENCODE_CONFIG) or "{}"
    try:
        config = dict(json.loads(written))
    except (ValueError, TypeError) as error:
        raise UsageError(
            f"the variable {_OPENCODE_CONFIG} is no JSON object: {error}", hint="Correct it, or unset it."
        ) from error
    rules = opencode.permissions(wish.tools, [server.name for server in wish.servers])
    agents = {**mapping(config.get("agent")), _OURS: {"mode": "primary", "permission": rules}}
    told = json.dumps({**config, "agent": agents, "default_agent": _OURS})
    return Launch(env={**env, _OPENCODE_CONFIG: told}, mode=_OURS)


def _gemini(wish: Wish) -> Launch:
    args = ["--approval-mode", "default", "--skip-trust", *(["--model", wish.model] if wish.model else [])]
    if not wish.tools:
        return Launch(tuple(args))
    Gemini.check_policies()
    # Its rules cannot deny all servers but one, so other servers are left out by name.
    denied = [tool for tool in wish.tools if "*" not in tool]
    rules = [
        *_rule([f"mcp_{server.name}_*" for server in wish.servers], "allow", 998),
        *_rule(denied, "deny", 999),
    ]
    args += ["--allowed-mcp-server-names", *_server_names(wish), "--admin-policy", f"{FOLDER}/rules.toml"]
    return Launch(tuple(args), files={"rules.toml": "\n".join(rules)})


def _rule(tools: Sequence[str], decision: str, rank: int) -> list[str]:
    # A list of plain names looks the same in JSON and TOML.
    told = ["[[rule]]", f"toolName = {json.dumps(tools)}", f'decision = "{decision}"', f"priority = {rank}\n"]
    return told if tools else []


def _server_names(wish: Wish) -> list[str]:
    """Return the only tool servers that a restricted role may use. An empty list would allow all of them."""
    return [server.name for server in wish.servers] or ["no-server"]


def _qwen(wish: Wish) -> Launch:
    args = ["--approval-mode", "default", *(["--model", wish.model] if wish.model else [])]
    if wish.tools:
        args += ["--exclude-tools", *wish.tools, "--allowed-mcp-server-names", *_server_names(wish)]
    return Launch(tuple(args))


def _copilot(wish: Wish) -> Launch:
    args = ["--no-auto-update", "--no-ask-user", *(["--model", wish.model] if wish.model else [])]
    args += [f"--allow-tool={server.name}" for server in wish.servers]
    args += [f"--deny-tool={tool}" for tool in wish.tools]
    if not wish.servers:
        return Launch(tuple(args))
    servers = {
        server.name: {"command": server.command, "args": server.args, "env": dict(server.env), "tools": ["*"]}
        for server in wish.servers
    }
    told = json.dumps({"mcpServers": servers})
    return Launch((*args, "--additional-mcp-config", f"@{FOLDER}/mcp.json"), files={"mcp.json": told})


def _hermes(_wish: Wish) -> Launch:
    return Launch(mode="default")


_READ_ONLY_SANDBOX = ('approval_policy="never"', 'sandbox_mode="read-only"')

PRESETS: Mapping[str, Preset] = {
    # On Linux its sandbox needs bubblewrap on the PATH; without it, commands fail instead of running unconfined. It
    # does not exit when its stdin is closed, so it is ended by a signal like the others.
    "codex-acp": Preset(
        words=("codex-acp",),
        install="npm install -g @zed-industries/codex-acp",
        denies={
            **dict.fromkeys((*capabilities.FILES, *capabilities.SHELL_WRITES), _READ_ONLY_SANDBOX),
            **dict.fromkeys(capabilities.SHELL, ("features.shell_tool=false",)),
        },
        launch=_codex,
        server_key="server_name",
        is_used_per_request=True,
        notices=re.compile(r"Model metadata for `.*` not found\..*"),
    ),
    "claude-agent-acp": Preset(
        words=("claude-agent-acp",),
        install="npm install -g @agentclientprotocol/claude-agent-acp",
        denies=claude.DENIES,
        launch=_claude,
        can_fork=True,
    ),
    "opencode": Preset(
        words=("opencode", "acp"),
        install=OpenCode.install,
        denies=opencode.DENIES,
        launch=_opencode,
        is_other_harmless=True,
        has_model_flag=False,
        can_fork=True,
    ),
    # It claims that it can load sessions but often cannot find those of another process; they count as lost. If a
    # client offers files, it reads each file before writing it and fails if the file does not exist.
    "gemini": Preset(
        words=("gemini", "--acp"),
        install=Gemini.install,
        denies=gemini.DENIES,
        launch=_gemini,
        is_other_harmless=True,
        notices=re.compile(r"\[MODE_UPDATE\] \w+"),
    ),
    "copilot": Preset(
        words=("copilot", "--acp"),
        install=Copilot.install,
        denies=copilot.DENIES,
        launch=_copilot,
        is_given_servers=False,
        is_usage_total=True,
        notices=re.compile(r"Info: (/.*|Operation cancelled by user)"),
        failures=re.compile(r"Error: .*", re.DOTALL),
    ),
    "qwen": Preset(
        words=("qwen", "--acp"),
        install=Qwen.install,
        denies=qwen.DENIES,
        launch=_qwen,
        is_other_harmless=True,
        notices=re.compile(r'Background agent ".*" \w+\.'),
    ),
    # It asks before its own edits but not before those of its subagents, and only before commands that look dangerous,
    # so no restriction can be enforced. Without its extra `mcp` it silently ignores tool servers.
    "hermes": Preset(
        words=("hermes", "acp"),
        install="pip install 'hermes-agent[acp,mcp]'",
        denies={},
        launch=_hermes,
        has_model_flag=False,
        is_usage_total=True,
        failures=re.compile(r"(HTTP \d{3}|API (call )?(failed|error)).*", re.DOTALL | re.IGNORECASE),
    ),
}
