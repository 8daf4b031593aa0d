"""Settings for individual agents that speak the Agent Client Protocol, used by acp.py.

The protocol does not define how to restrict an agent. Rolecall answers permission requests, but most agents ask only
for some actions, and some end their turn after a refusal. Therefore, if an agent has a mechanism of its own (a sandbox,
a list of denied tools), a role's restrictions use that mechanism, and the model does not see the denied tools at all.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rolecall.agents.adapters import claude, codex, copilot, gemini, opencode, qwen
from rolecall.agents.program import McpServer, mcp_config
from rolecall.settings import capabilities
from rolecall.store.canonical import JsonObject

FOLDER = "{folder}"
"""The placeholder in an argument for the folder of the process, which contains the launch's files."""


@dataclass(frozen=True)
class Launch:
    """What one way of running an agent adds to its command, environment and sessions."""

    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    meta: JsonObject = field(default_factory=dict)
    """The `_meta` field of requests that open a session."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Files that the process needs, by name."""
    mode: str | None = None
    """The mode that the agent's sessions must have; None for any."""


@dataclass(frozen=True)
class Wish:
    """The requirements for running an agent."""

    tools: tuple[str, ...] = ()
    """The tools to deny, or the settings that deny them, as listed in the preset's `denies`."""
    model: str | None = None
    servers: tuple[McpServer, ...] = ()
    """The tool servers to give to the agent. Other servers that the agent knows are not trusted."""
    env: Mapping[str, str] = field(default_factory=dict)
    """The agent's environment."""
    folder: Path = Path()
    """The work folder."""
    is_confined: bool = False
    """Whether the agent runs in Rolecall's sandbox."""

    @property
    def model_flag(self) -> tuple[str, ...]:
        return ("--model", self.model) if self.model else ()

    @property
    def server_names(self) -> list[str]:
        return [server.name for server in self.servers]

    @property
    def allowed_servers(self) -> list[str]:
        """The only tool servers that a restricted role is allowed to use. Agents read an empty list as all servers, so
        a list without servers contains a name that no server has."""
        return self.server_names or ["no-server"]


@dataclass(frozen=True)
class Preset:
    words: tuple[str, ...] = ()
    """The command."""
    install: str = ""
    denies: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """For each class of actions, the tools or settings that deny it. A class that is missing here cannot be denied."""
    launch: Callable[[Wish], Launch] = lambda _: Launch()
    can_fork: bool = False
    has_model_flag: bool = True
    """Whether `launch` sets the model; otherwise it is chosen from the session's options."""
    is_given_servers: bool = True
    """Whether tool servers are passed when a session is opened; otherwise `launch` passes them."""
    server_key: str = ""
    """The key in a permission request's input that names the tool server."""
    is_other_harmless: bool = False
    """Whether the agent's own restrictions leave no tool, even from other servers, that could do what is denied.
    Requests of kind `other` (another agent, a skill) can then be allowed."""
    is_usage_total: bool = False
    """Whether the usage reported after a prompt is a total since the start of the process."""
    is_used_per_request: bool = False
    """Whether the agent sends a `usage_update` for each request to the model, and for nothing else."""
    notices: re.Pattern[str] | None = None
    """The agent's own notices, which arrive as model messages, each in one chunk."""
    failures: re.Pattern[str] | None = None
    """Notices that report a failure of the model's endpoint, after which the turn still ends normally."""


UNKNOWN = Preset(has_model_flag=False)
"""The preset of an agent that is not in the table."""


def preset_of(words: Sequence[str]) -> tuple[str, Preset, tuple[str, ...]]:
    """Return the agent's name, its preset and the full command. A single word can be the name of a preset. A command
    that starts with a preset's words is that agent with further arguments."""
    if len(words) == 1 and words[0] in PRESETS:
        return words[0], PRESETS[words[0]], PRESETS[words[0]].words
    program = (os.path.basename(words[0]), *words[1:])
    for name, preset in PRESETS.items():
        if program[: len(preset.words)] == preset.words:
            return name, preset, tuple(words)
    return program[0], UNKNOWN, tuple(words)


def _launch_codex(wish: Wish) -> Launch:
    # session/set_mode is not used, because it marks the folder as trusted in the user's configuration. If the role
    # denies anything, permission requests are turned off, because a refusal ends the turn.
    settings = ['approval_policy="on-request"', 'sandbox_mode="workspace-write"', *wish.tools]
    if wish.model:
        settings.append(f"model={json.dumps(wish.model)}")
    if wish.tools:  # turn off other tool servers, because they run outside Codex's sandbox
        off = codex.servers_off(wish.env, wish.folder, wish.server_names)
        settings += [f"mcp_servers={off}", "features.plugins=false", "features.apps=false"]
    if wish.is_confined:  # Codex cannot set up its sandbox inside ours; the last value of a setting counts
        settings += ['approval_policy="never"', f'sandbox_mode="{codex.UNCONFINED}"']
    return Launch(args=tuple(word for setting in settings for word in ("-c", setting)))


def _launch_claude(wish: Wish) -> Launch:
    options = {
        "disallowedTools": list(wish.tools),
        "allowDangerouslySkipPermissions": False,
        "strictMcpConfig": bool(wish.tools),  # the user's own tool servers could bypass a restriction
        "promptSuggestions": False,  # a suggestion would cost a model request after every answer
        **({"model": wish.model} if wish.model else {}),
        **(claude.WITHOUT_SANDBOX if wish.is_confined else {}),
    }
    meta = {"claudeCode": {"options": options}}
    return Launch(env={"DISABLE_AUTOUPDATER": "1"}, meta=meta, mode="default")


def _launch_opencode(wish: Wish) -> Launch:
    """Return the launch for OpenCode. A restricted role is played by an agent that Rolecall defines, which OpenCode
    treats as a session mode."""
    env = {"OPENCODE_DISABLE_AUTOUPDATE": "1"}
    if not wish.tools:
        return Launch(env=env)
    env[opencode.CONFIG] = opencode.build_config(wish.env, wish.tools, wish.servers, is_acp=True)
    return Launch(env=env, mode=opencode.RESTRICTED)


def _launch_gemini(wish: Wish) -> Launch:
    args = ("--approval-mode", "default", "--skip-trust", *wish.model_flag)
    if not wish.tools:
        return Launch(args)
    gemini.Gemini.check_policies()
    # Gemini's rules cannot deny all servers but one, so only the servers to use are named.
    rules = [gemini.rule([tool for tool in wish.tools if "*" not in tool], "deny", 999)]
    if wish.servers:
        rules.insert(0, gemini.rule([f"mcp_{name}_*" for name in wish.server_names], "allow", 998))
    args += ("--allowed-mcp-server-names", *wish.allowed_servers, "--admin-policy", f"{FOLDER}/rules.toml")
    return Launch(args, files={"rules.toml": "\n".join(rules)})


def _launch_qwen(wish: Wish) -> Launch:
    args = ("--approval-mode", "default", *wish.model_flag)
    if wish.tools:
        args += ("--exclude-tools", *wish.tools, "--allowed-mcp-server-names", *wish.allowed_servers)
    return Launch(args)


def _launch_copilot(wish: Wish) -> Launch:
    args = ("--no-auto-update", "--no-ask-user", *wish.model_flag)
    args += tuple(f"--allow-tool={name}" for name in wish.server_names)
    args += tuple(f"--deny-tool={tool}" for tool in wish.tools)
    if not wish.servers:
        return Launch(args)
    config = mcp_config(wish.servers, tools=["*"])
    return Launch((*args, "--additional-mcp-config", f"@{FOLDER}/mcp.json"), files={"mcp.json": config})


_READ_ONLY_SANDBOX = ('approval_policy="never"', 'sandbox_mode="read-only"')

PRESETS: Mapping[str, Preset] = {
    # On Linux, Codex's sandbox needs bubblewrap on the PATH; without bubblewrap, commands fail instead of running
    # unconfined. The program does not exit when its stdin is closed, so it is ended by a signal, like the other agents.
    "codex-acp": Preset(
        words=("codex-acp",),
        install="npm install -g @zed-industries/codex-acp",
        denies={
            **dict.fromkeys((*capabilities.FILES, *capabilities.SHELL_WRITES), _READ_ONLY_SANDBOX),
            **dict.fromkeys(capabilities.SHELL, ("features.shell_tool=false",)),
        },
        launch=_launch_codex,
        server_key="server_name",
        is_used_per_request=True,
        notices=re.compile(r"Model metadata for `.*` not found\..*"),
    ),
    "claude-agent-acp": Preset(
        words=("claude-agent-acp",),
        install="npm install -g @agentclientprotocol/claude-agent-acp",
        denies=claude.DENIES,
        launch=_launch_claude,
        can_fork=True,
    ),
    "opencode": Preset(
        words=("opencode", "acp"),
        install=opencode.OpenCode.install,
        denies=opencode.DENIES,
        launch=_launch_opencode,
        is_other_harmless=True,
        has_model_flag=False,
        can_fork=True,
    ),
    # Gemini claims that it can load sessions, but often cannot find those of another process; they count as lost. If a
    # client offered file access, Gemini would read each file before writing it, and fail if the file did not exist.
    "gemini": Preset(
        words=("gemini", "--acp"),
        install=gemini.Gemini.install,
        denies=gemini.DENIES,
        launch=_launch_gemini,
        is_other_harmless=True,
        notices=re.compile(r"\[MODE_UPDATE\] \w+"),
    ),
    "copilot": Preset(
        words=("copilot", "--acp"),
        install=copilot.Copilot.install,
        denies=copilot.DENIES,
        launch=_launch_copilot,
        is_given_servers=False,
        is_usage_total=True,
        notices=re.compile(r"Info: (/.*|Operation cancelled by user)"),
        failures=re.compile(r"Error: .*", re.DOTALL),
    ),
    "qwen": Preset(
        words=("qwen", "--acp"),
        install=qwen.Qwen.install,
        denies=qwen.DENIES,
        launch=_launch_qwen,
        is_other_harmless=True,
        notices=re.compile(r'Background agent ".*" \w+\.'),
    ),
    # Hermes asks before its own edits but not before those of its subagents, and only before commands that look
    # dangerous, so no restriction can be enforced. Without its extra `mcp`, it silently ignores tool servers.
    "hermes": Preset(
        words=("hermes", "acp"),
        install="pip install 'hermes-agent[acp,mcp]'",
        launch=lambda _: Launch(mode="default"),
        has_model_flag=False,
        is_usage_total=True,
        failures=re.compile(r"(HTTP \d{3}|API (call )?(failed|error)).*", re.DOTALL | re.IGNORECASE),
    ),
}
