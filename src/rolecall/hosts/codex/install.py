"""Codex: where its server, hooks, agents and skills are written, and what stands in them.

Codex runs hooks only after the person has looked at them and trusted them, and reads the files of a project only when
the person trusts the project. Both are the person's to say, in Codex: neither is written here, `untrusted` tells what
is missing. Entries of others in `hooks.json` keep their places, because that is what trust in them goes by.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from rolecall.agents.codex import DENIES
from rolecall.errors import UsageError
from rolecall.hosts import command_hook, file_change, host_file, toml_text
from rolecall.hosts.codex import events as host
from rolecall.hosts.command_hook import is_refusal as is_refusal
from rolecall.hosts.managed_block import JsonItems, OwnFile, Piece, TomlTable, value_at
from rolecall.hosts.setup import SERVER, Commands, Obstacle, Setup, server_words, shell
from rolecall.nexus.catalog import Agent, Skill
from rolecall.settings import capabilities

TITLE = "Codex"
PROGRAM = "codex"
_NAME = "codex"
_TIMEOUT = 10
"""Seconds after which Codex stops waiting for a hook and goes on."""
_LAST_TIMEOUT = 3
"""The same at the end of a session, where Codex allows no more."""
_UNHEARD = " || exit 1"
"""What a hook ends with that failed, however it did: with 2 it would block everything."""
_WITH_CONTEXT = ("SessionStart", "UserPromptSubmit", "SubagentStart")
"""Events at which the model is told more than a few words."""
_VARIABLES = (
    *capabilities.STORE_VARIABLES,
    "ROLECALL_RUN",
    capabilities.VARIABLE,
    capabilities.THREADS_VARIABLE,
)
"""Variables that the server needs; Codex gives a server none that it is not told of."""
_MANUAL = "policy:\n  allow_implicit_invocation: false\n"


def pieces(setup: Setup) -> list[Piece]:
    return [
        _server(setup),
        *(_hook(setup, event) for event in host.EVENTS),
        *(
            OwnFile(_path(setup, "agents", f"{agent.id}.toml"), _agent_file(agent, setup))
            for agent in setup.catalog.agents.values()
        ),
        *(piece for skill in setup.catalog.skills.values() for piece in _skill_files(setup, skill)),
    ]


def sweeps(setup: Setup) -> list[str]:
    folder = glob.escape(_folder(setup))
    below = (("agents", "*.toml"), ("skills", "*", "SKILL.md"), ("skills", "*", "agents", "openai.yaml"))
    return [os.path.join(folder, *names) for names in below]


def roots(setup: Setup) -> list[str]:
    """Folders that were there before us."""
    return [setup.project or setup.home, *filter(None, [setup.env.get("CODEX_HOME")])]


def next_steps(setup: Setup) -> list[str]:
    where = f" in {setup.project}" if setup.scope == "project" else ""
    steps = [
        f"Start `codex`{where} and say that you trust the hooks it shows you (later: /hooks). Until then Codex runs"
        " none of them, and `codex exec` does not say so."
    ]
    if setup.scope == "project":
        steps.append(
            "Trust the folder when Codex asks: it reads nothing from a project that you do not trust."
        )
    else:
        steps.append(host_file.ONLY_PROJECTS)
    return steps


# -- where --


def _user_folder(setup: Setup) -> str:
    return setup.env.get("CODEX_HOME") or os.path.join(setup.home, ".codex")


def _folder(setup: Setup) -> str:
    return os.path.join(setup.project, ".codex") if setup.scope == "project" else _user_folder(setup)


def _path(setup: Setup, *names: str) -> str:
    return os.path.join(_folder(setup), *names)


# -- the server and the hooks --


def _server(setup: Setup) -> TomlTable:
    words = setup.server_command()
    value: dict[str, Any] = {"command": words[0], "args": list(words[1:]), "env_vars": list(_VARIABLES)}
    if setup.scope == "project":
        # Else a first turn begins before the tools are there. For all projects of a user that is too much: there,
        # Codex has to start although Rolecall does not.
        value["required"] = True
    return TomlTable(_path(setup, "config.toml"), ("mcp_servers", SERVER), value)


def _hook(setup: Setup, event: str) -> JsonItems:
    line = shell(setup.hook_command(_NAME, event)) + _UNHEARD
    fields = {"timeout": _LAST_TIMEOUT if event == "SessionEnd" else _TIMEOUT}
    if event in _WITH_CONTEXT:
        fields["additionalContextLimit"] = host.CONTEXT_TOKENS
    return command_hook.hook(_path(setup, "hooks.json"), _NAME, event, line, **fields)


# -- agents and skills --


def _agent_file(agent: Agent, setup: Setup) -> str:
    """Settings of Codex that deny what the agent's capabilities do, as far as it has such; the gates of the hooks hold
    an agent to all of them."""
    settings = {
        "name": toml_text.quoted(agent.id),
        "description": toml_text.quoted(host_file.summary(agent)),
        **{key: toml_text.quoted(value) for key, value in setup.model(_NAME, agent).items()},
        "developer_instructions": _long_text(f"{agent.body.strip()}\n\n{host_file.TOOL_NAMES}\n"),
    }
    for name in capabilities.denied(agent.capabilities):
        settings |= DENIES.get(name, {})
    return "".join(f"{key} = {value}\n" for key, value in settings.items())


def _long_text(value: str) -> str:
    inside = value.replace("\\", "\\\\").replace('"""', '""\\"')
    return f'"""\n{inside}"""'


def _skill_files(setup: Setup, skill: Skill) -> Iterator[OwnFile]:
    words = host.words(setup.catalog.vocabulary.tags)
    head = {"name": skill.id, "description": skill.description}
    body = host_file.skill_body(skill, setup.catalog, words, host.docs(skill))
    yield OwnFile(_path(setup, "skills", skill.id, "SKILL.md"), host_file.headed(head, body))
    if skill.manual_only:
        yield OwnFile(_path(setup, "skills", skill.id, "agents", "openai.yaml"), _MANUAL)


# -- what doctor asks --


def commands(setup: Setup) -> Commands:
    """The commands as they stand in the files."""
    servers = {SERVER: server_words(value_at(_server(setup)))}
    return Commands(servers, command_hook.commands(_hook(setup, event) for event in host.EVENTS))


def obstacles(setup: Setup) -> list[Obstacle]:
    """What Codex was not told to trust, and what it was told to leave out."""
    own = os.path.join(_user_folder(setup), "config.toml")
    try:
        config = toml_text.parse(file_change.read_text(own) or "")
    except UsageError as error:
        text = f"whether Codex trusts the hooks is not known: {own} cannot be read: {error.message}"
        return [Obstacle(text, f"Correct {own}.")]
    return [*_untrusted(setup, config), *_switched_off(setup, own, config)]


def _untrusted(setup: Setup, config: Mapping[str, Any]) -> Iterator[Obstacle]:
    project = toml_text.at(config, ("projects", os.path.realpath(setup.project), "trust_level"))
    if setup.scope == "project" and project != "trusted":
        yield Obstacle(
            f"Codex was not told yet to trust {setup.project}, so it reads nothing of what is installed there",
            f"Start codex in {setup.project} once and answer its questions.",
        )
        return
    missing = [event for event in host.EVENTS if not _is_trusted(setup, event, config)]
    if missing:
        yield Obstacle(
            f"Codex was not told yet to trust our hooks, so it does not run them: {', '.join(missing)}",
            "Start codex and trust them when it asks, or later with /hooks.",
        )


def _is_trusted(setup: Setup, event: str, config: Mapping[str, Any]) -> bool:
    """Codex keeps, for the file of a hook and its place there, a hash of what the person saw. What it is a hash of is
    its own affair: a hook that changed since is told of by Codex itself."""
    piece = _hook(setup, event)
    there = value_at(piece)
    places = [at for at, item in enumerate(there) if piece.is_ours(item)] if isinstance(there, list) else []
    name = re.sub(r"(?<!^)(?=[A-Z])", "_", event).lower()
    state = [
        toml_text.at(config, ("hooks", "state", f"{os.path.realpath(piece.path)}:{name}:{place}:0"))
        for place in places
    ]
    return all(
        isinstance(one, Mapping) and one.get("trusted_hash") and one.get("enabled") is not False
        for one in state
    )


def _switched_off(setup: Setup, own: str, config: Mapping[str, Any]) -> Iterator[Obstacle]:
    path = _path(setup, "config.toml")
    read = {own: config, path: _config_in(path)}
    for name, found in read.items():
        if toml_text.at(found, ("features", "hooks")) is False:
            yield Obstacle(
                f"Codex runs no hooks: features.hooks is false in {name}", f"Take it out of {name}."
            )
    # Codex puts both together, and where both say it the project counts.
    said = {name: toml_text.at(found, ("mcp_servers", SERVER, "enabled")) for name, found in read.items()}
    *_, last = [(name, value) for name, value in said.items() if value is not None] or [("", None)]
    if last[1] is False:
        text = f"Codex does not start our server: it is not enabled in {last[0]}"
        yield Obstacle(text, f"Enable it in {last[0]}.")


def _config_in(path: str) -> Mapping[str, Any]:
    try:
        return toml_text.parse(file_change.read_text(path) or "")
    except UsageError:  # what is wrong with it is told of the file
        return {}


def sample(event: str, folder: str) -> dict[str, Any]:
    """What Codex would say at an event in a project in `folder`."""
    patch = "*** Begin Patch\n*** Add File: doctor.txt\n+.\n*** End Patch\n"
    return command_hook.sample(event, folder, {"tool_name": "apply_patch", "tool_input": {"command": patch}})
