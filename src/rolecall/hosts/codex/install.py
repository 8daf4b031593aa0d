"""Codex: the locations and contents of its server, hooks, agents and skills.

Codex runs hooks only after the person has reviewed and trusted them, and reads a project's files only if the person
trusts the project. Only the person can grant this trust, in Codex; `obstacles` reports what is missing. Other people's
entries in `hooks.json` keep their positions, because Codex remembers trust by position.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping

import tomlkit

from rolecall.agents.adapters.codex import DENIES
from rolecall.errors import UsageError
from rolecall.hosts import command_hook, host_file
from rolecall.hosts.codex.events import CONTEXT_TOKENS, EVENTS
from rolecall.hosts.codex.words import WORDING
from rolecall.hosts.command_hook import is_refusal as is_refusal
from rolecall.hosts.installation import Entry, FileMember, Items, OwnFile, read_value
from rolecall.hosts.payload import Payload
from rolecall.hosts.setup import SERVER, Commands, HostSetup, Obstacle, server_words
from rolecall.settings import capabilities

TITLE = "Codex"
PROGRAM = "codex"
LAYOUT = host_file.Layout(
    *(".codex", "CODEX_HOME", ".codex", ""),
    ours=("agents/*.toml", "skills/*/SKILL.md", "skills/*/agents/openai.yaml"),
)
path, sweeps, roots = LAYOUT.path, LAYOUT.sweeps, LAYOUT.roots
_TIMEOUT, _LAST_TIMEOUT = 10, 3
"""The seconds that Codex waits for a hook, and for the hook at a session's end, where Codex allows no more."""
_WITH_CONTEXT = ("SessionStart", "UserPromptSubmit", "SubagentStart")
"""The events at which a hook can return a long text for the model."""
_VARIABLES = (
    *capabilities.STORE_VARIABLES,
    "ROLECALL_RUN",
    capabilities.VARIABLE,
    capabilities.THREADS_VARIABLE,
)
"""The environment variables that the server needs; Codex passes a server only the configured variables."""
_SERVER_KEYS = ("mcp_servers", SERVER)
_MANUAL = "policy:\n  allow_implicit_invocation: false\n"


def list_entries(setup: HostSetup) -> list[Entry]:
    command = setup.server_command()
    # Without `required`, the first turn begins before the tools are available. In the user's scope, the setting is left
    # out, because Codex must start even if Rolecall cannot.
    server = {
        "command": command[0],
        "args": list(command[1:]),
        "env_vars": list(_VARIABLES),
        **({"required": True} if setup.scope == "project" else {}),
    }
    config = path(setup, "config.toml")
    found: list[Entry] = [
        FileMember(config, _SERVER_KEYS, server, lambda value: bool(server_words(value))),
        *_hooks(setup),
    ]
    for agent in setup.catalog.agents.values():
        texts = {"name": agent.id, "description": host_file.summary(agent), **setup.model(PROGRAM, agent)}
        settings = {key: tomlkit.item(value).as_string() for key, value in texts.items()}
        body = f"{agent.body.strip()}\n\n{host_file.TOOL_NAMES}\n"
        settings["developer_instructions"] = tomlkit.string(body, multiline=True).as_string()
        # Codex has settings for some restrictions only; the gates in the hooks enforce all of them.
        for name in capabilities.denied_classes(agent.capabilities):
            settings |= DENIES.get(name, {})
        text = "".join(f"{key} = {value}\n" for key, value in settings.items())
        found.append(OwnFile(path(setup, "agents", f"{agent.id}.toml"), text))
    for skill in setup.catalog.skills.values():
        text = host_file.skill_file(skill, setup.catalog, WORDING)
        found.append(OwnFile(path(setup, "skills", skill.id, "SKILL.md"), text))
        if skill.manual_only:
            found.append(OwnFile(path(setup, "skills", skill.id, "agents", "openai.yaml"), _MANUAL))
    return found


def next_steps(setup: HostSetup) -> list[str]:
    where = f" in {setup.project}" if setup.scope == "project" else ""
    trust = "Trust the folder when Codex asks: it reads nothing from a project that you do not trust."
    return [
        f"Start `codex`{where} and trust the hooks that it shows you (later: /hooks). Until then Codex runs none of"
        " them, and `codex exec` does not say so.",
        trust if setup.scope == "project" else host_file.ONLY_PROJECTS,
    ]


def _hooks(setup: HostSetup) -> Iterator[Items]:
    for event in EVENTS:
        # Exit code 2 would block everything, so every failure becomes 1.
        line = shlex.join(setup.hook_command(PROGRAM, event)) + " || exit 1"
        fields = {"timeout": _LAST_TIMEOUT if event == "SessionEnd" else _TIMEOUT}
        if event in _WITH_CONTEXT:
            fields["additionalContextLimit"] = CONTEXT_TOKENS
        yield command_hook.hook(path(setup, "hooks.json"), PROGRAM, event, line, **fields)


# -- for doctor --


def commands(setup: HostSetup) -> Commands:
    server = server_words(read_value(path(setup, "config.toml"), _SERVER_KEYS))
    return Commands({SERVER: server}, command_hook.read_commands(_hooks(setup)))


def obstacles(setup: HostSetup) -> list[Obstacle]:
    """Return what Codex does not trust yet, or is configured to ignore."""
    own = os.path.join(LAYOUT.user_folder(setup), "config.toml")
    try:
        trust = read_value(own, ("projects", os.path.realpath(setup.project), "trust_level"))
    except UsageError as error:
        text = f"whether Codex trusts the hooks is not known: {own} cannot be read: {error.message}"
        return [Obstacle(text, f"Correct {own}.")]
    found = []
    if setup.scope == "project" and trust != "trusted":
        text = f"Codex does not trust {setup.project} yet, so it reads nothing of what is installed there"
        found.append(Obstacle(text, f"Start codex in {setup.project} once and answer its questions."))
    elif untrusted := [hook.keys[-1] for hook in _hooks(setup) if not _is_trusted(hook, own)]:
        text = f"Codex does not trust our hooks yet, so it does not run them: {', '.join(untrusted)}"
        found.append(Obstacle(text, "Start codex and trust them when it asks, or later with /hooks."))

    enabled: dict[str, object] = {}
    for file in dict.fromkeys((own, path(setup, "config.toml"))):
        try:
            if read_value(file, ("features", "hooks")) is False:
                text = f"Codex runs no hooks: features.hooks is false in {file}"
                found.append(Obstacle(text, f"Take it out of {file}."))
            enabled[file] = read_value(file, (*_SERVER_KEYS, "enabled"))
        except UsageError:  # the file's own check reports it
            continue
    # Codex merges both files; if both have the setting, the project's wins.
    file, value = next((item for item in reversed(enabled.items()) if item[1] is not None), ("", None))
    if value is False:
        text = f"Codex does not start our server: it is not enabled in {file}"
        found.append(Obstacle(text, f"Enable it in {file}."))
    return found


def _is_trusted(hook: Items, config: str) -> bool:
    """Return whether Codex has recorded trust in our hook: a hash, stored under the hook's file and position. If a hook
    has changed since then, Codex itself reports the change."""
    there = read_value(hook.path, hook.keys)
    name = re.sub(r"(?<!^)(?=[A-Z])", "_", hook.keys[-1]).lower()
    for place, item in enumerate(there if isinstance(there, list) else ()):
        if hook.is_ours(item):
            key = f"{os.path.realpath(hook.path)}:{name}:{place}:0"
            state = read_value(config, ("hooks", "state", key))
            is_enabled = isinstance(state, Mapping) and state.get("enabled") is not False
            if not is_enabled or not state.get("trusted_hash"):
                return False
    return True


def sample(event: str, folder: str) -> Payload:
    patch = "*** Begin Patch\n*** Add File: doctor.txt\n+.\n*** End Patch\n"
    return command_hook.sample(event, folder, {"tool_name": "apply_patch", "tool_input": {"command": patch}})
