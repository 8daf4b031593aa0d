"""OpenCode: the files it is given, all of them our own: a plugin, agents, skills.

The plugin (`opencode_plugin.js`) registers the server and runs the hooks, so that no file of the user's is edited.
OpenCode itself holds agents to what their files deny them, which stands there as permissions.
"""

from __future__ import annotations

import glob
import json
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from rolecall.agents.opencode import DENIES
from rolecall.errors import RolecallError
from rolecall.hosts import file_change, gate, host_file
from rolecall.hosts.managed_block import OwnFile, Piece
from rolecall.hosts.opencode import events as host
from rolecall.hosts.setup import SERVER, Commands, Obstacle, Setup, is_ours
from rolecall.nexus.catalog import Agent, Skill
from rolecall.settings import capabilities

TITLE = "OpenCode"
PROGRAM = "opencode"
_NAME = "opencode"
_PLUGIN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "plugin.js")
_SERVER_LINE, _HOOKS_LINE = "const SERVER = ", "const HOOKS = "


def pieces(setup: Setup) -> list[Piece]:
    return [
        OwnFile(_plugin_path(setup), _plugin(setup)),
        *(
            OwnFile(_path(setup, "agents", f"{agent.id}.md"), _agent_file(agent, setup))
            for agent in setup.catalog.agents.values()
        ),
        *(piece for skill in setup.catalog.skills.values() for piece in _skill_files(setup, skill)),
    ]


def sweeps(setup: Setup) -> list[str]:
    folder = glob.escape(_folder(setup))
    below = (("agents", "*.md"), ("skills", "*", "SKILL.md"), ("commands", "*.md"))
    return [os.path.join(folder, *names) for names in below]


def roots(setup: Setup) -> list[str]:
    """Folders that were there before us."""
    return [setup.project or setup.home, *filter(None, [setup.env.get("XDG_CONFIG_HOME")])]


def next_steps(setup: Setup) -> list[str]:
    steps = ["Restart OpenCode where it is open: it reads plugins, agents and skills when it starts."]
    if setup.scope == "user":
        steps.append(host_file.ONLY_PROJECTS)
    return steps


# -- where --


def _folder(setup: Setup) -> str:
    if setup.scope == "project":
        return os.path.join(setup.project, ".opencode")
    settings = setup.env.get("XDG_CONFIG_HOME") or os.path.join(setup.home, ".config")
    return os.path.join(settings, "opencode")


def _path(setup: Setup, *names: str) -> str:
    return os.path.join(_folder(setup), *names)


def _plugin_path(setup: Setup) -> str:
    return _path(setup, "plugins", "rolecall.js")


# -- the plugin --


def _plugin(setup: Setup) -> str:
    """The plugin with this machine's commands in the place of two words."""
    with open(_PLUGIN, encoding="utf-8") as file:
        text = file.read()
    hooks = {event: setup.hook_command(_NAME, event) for event in host.EVENTS}
    for word, value in (("SERVER", setup.server_command()), ("HOOKS", hooks)):
        text = text.replace(f'"@{word}@"', json.dumps(value))
    return text


# -- agents and skills --


def _agent_file(agent: Agent, setup: Setup) -> str:
    head = {
        "name": agent.id,
        "description": host_file.summary(agent),
        "mode": "subagent",
        **setup.model(_NAME, agent),
        "permission": dict.fromkeys(_denied(agent), "deny"),
    }
    return host_file.headed(head, f"{agent.body.strip()}\n\n{_tool_names()}")


def _denied(agent: Agent) -> list[str]:
    """The tools of OpenCode and of our server that an agent may not use. Setting others to work is Lead's alone."""
    classes = capabilities.denied(agent.capabilities)
    own = {tool for name in classes for tool in DENIES.get(name, ())}
    ours = {tool for tool, done in gate.CHANGES.items() if set(done).intersection(classes)}
    return ["task", *sorted(own), *(f"{SERVER}_{tool}" for tool in sorted(ours.union(gate.FOR_LEAD)))]


def _tool_names() -> str:
    return f"{host_file.TOOL_NAMES} OpenCode calls them `{SERVER}_nx_…`."


def _skill_files(setup: Setup, skill: Skill) -> Iterator[OwnFile]:
    """A skill is offered to the model and is a command, too; one that only a user may call for is a command alone."""
    words = host.words(setup.catalog.vocabulary.tags)
    body = host_file.skill_body(skill, setup.catalog, words, host.docs(skill))
    head = {"name": skill.id, "description": skill.description}
    if skill.manual_only:
        text = host_file.headed(head, f"{body}\n$ARGUMENTS")
        yield OwnFile(_path(setup, "commands", f"{skill.id}.md"), text)
    else:
        yield OwnFile(_path(setup, "skills", skill.id, "SKILL.md"), host_file.headed(head, body))


# -- what doctor asks --


def commands(setup: Setup) -> Commands:
    """The commands as they stand in the plugin."""
    lines = (file_change.read_text(_plugin_path(setup)) or "").split("\n")
    hooks = _constant(lines, _HOOKS_LINE)
    given = hooks if isinstance(hooks, dict) else {}
    server = _words(_constant(lines, _SERVER_LINE), "mcp")
    return Commands(
        {SERVER: server}, {event: _words(given.get(event), "hook", _NAME) for event in host.EVENTS}
    )


def _constant(lines: list[str], name: str) -> Any:
    line = next((line for line in lines if line.startswith(name)), "")
    try:
        return json.loads(line.removeprefix(name))
    except ValueError:  # gone, or changed by hand
        return None


def _words(value: Any, *verb: str) -> tuple[str, ...]:
    words = tuple(map(str, value)) if isinstance(value, list) else ()
    return words if is_ours(words, *verb) else ()


def obstacles(setup: Setup) -> list[Obstacle]:
    """A server of our name in a configuration of the user's, which OpenCode takes in the place of ours."""
    theirs: dict[str, Any] = {}
    place = ""
    for path in _configurations(setup):
        found = _server_in(path)
        theirs, place = {**theirs, **found}, path if found else place
    if not place:
        return []
    if theirs.get("enabled") is False:
        text = f"OpenCode does not start our server: it is not enabled in {place}"
        return [Obstacle(text, f"Enable it in {place}, or take it out there.")]
    if _words(theirs.get("command"), "mcp"):
        return []
    text = f"OpenCode takes the server {SERVER} of {place}, which is not ours, in the place of ours"
    return [Obstacle(text, f"Give it another name in {place}.")]


def _configurations(setup: Setup) -> list[str]:
    """Where OpenCode reads what its user wants, the last one counts most."""
    own = os.path.join(setup.env.get("XDG_CONFIG_HOME") or os.path.join(setup.home, ".config"), "opencode")
    folders = [setup.project, os.path.join(setup.project, ".opencode")] if setup.project else []
    names = ("opencode.json", "opencode.jsonc")
    return [
        *(os.path.join(own, name) for name in ("config.json", *names)),
        *filter(None, [setup.env.get("OPENCODE_CONFIG")]),
        *(os.path.join(folder, name) for folder in folders for name in names),
    ]


_COMMENTS = re.compile(r'("(?:[^"\\]|\\.)*")|//[^\n]*|/\*.*?\*/', re.DOTALL)
_LAST_COMMAS = re.compile(r'("(?:[^"\\]|\\.)*")|,(?=\s*[}\]])')


def _server_in(path: str) -> Mapping[str, Any]:
    """What a configuration says of a server of our name: JSON with comments. One that cannot be read is OpenCode's to
    complain about, which then does not start."""
    try:
        text = file_change.read_text(path) or "{}"
        for pattern in (_COMMENTS, _LAST_COMMAS):
            text = pattern.sub(lambda found: found[1] or "", text)
        found = json.loads(text)["mcp"][SERVER]
    except (ValueError, LookupError, TypeError, RecursionError, RolecallError):
        return {}
    return found if isinstance(found, Mapping) else {}


def sample(event: str, folder: str) -> dict[str, Any]:
    """What the plugin would say at an event in a project in `folder`."""
    common = {"session": "rolecall-doctor", "cwd": folder}
    args = {"filePath": os.path.join(folder, "doctor.txt"), "content": "."}
    tool = {"tool": "write", "args": args}
    more: dict[str, dict[str, Any]] = {
        "session.created": {"isNew": True},
        "chat.message": {"text": "How far are we?", "message": "rolecall-doctor"},
        "tool.execute.before": tool,
        "tool.execute.after": tool,
        "subagent.completed": {"child": "rolecall-doctor", "agent": "tester", "output": "done"},
    }
    return {**common, **more.get(event, {})}


def is_refusal(stdout: str) -> bool:
    """Whether a hook's answer to a tool call is that it may not run."""
    try:
        return bool(json.loads(stdout)["block"])
    except (ValueError, LookupError, TypeError):
        return False
