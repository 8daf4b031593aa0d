"""OpenCode: the files that we install, all of them our own: a plugin, agents and skills.

The plugin (`plugin.js`) registers the server and runs the hooks, so none of the user's files is edited. OpenCode itself
enforces an agent's denials, which are listed as permissions in the agent's file.
"""

from __future__ import annotations

import json
import os
import re
from typing import Any

from rolecall.agents.adapters.opencode import DENIES
from rolecall.errors import RolecallError
from rolecall.hosts import file_change, gate, host_file
from rolecall.hosts.installation import Entry, OwnFile
from rolecall.hosts.opencode.events import EVENTS
from rolecall.hosts.opencode.words import WORDING
from rolecall.hosts.payload import Payload
from rolecall.hosts.setup import SERVER, Commands, HostSetup, Obstacle, is_ours
from rolecall.settings import capabilities
from rolecall.store.canonical import JsonObject

TITLE = "OpenCode"
PROGRAM = "opencode"
LAYOUT = host_file.Layout(
    *(".opencode", "XDG_CONFIG_HOME", ".config", "opencode"),
    ours=("agents/*.md", "skills/*/SKILL.md", "commands/*.md"),
)
path, sweeps, roots = LAYOUT.path, LAYOUT.sweeps, LAYOUT.roots
_PLUGIN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "plugin.js")


def list_entries(setup: HostSetup) -> list[Entry]:
    with open(_PLUGIN, encoding="utf-8") as file:
        plugin = file.read()
    hooks = {event: setup.hook_command(PROGRAM, event) for event in EVENTS}
    plugin = plugin.replace('"@SERVER@"', json.dumps(setup.server_command()))
    plugin = plugin.replace('"@HOOKS@"', json.dumps(hooks))
    found: list[Entry] = [OwnFile(path(setup, "plugins", "rolecall.js"), plugin)]
    for agent in setup.catalog.agents.values():
        classes = capabilities.denied_classes(agent.capabilities)
        own = capabilities.denied_tools(DENIES, agent.capabilities)
        ours = {tool for tool, done in gate.CHANGES.items() if set(done).intersection(classes)}
        denied = ["task", *sorted(own), *(f"{SERVER}_{tool}" for tool in sorted(ours.union(gate.FOR_LEAD)))]
        head = {
            "name": agent.id,
            "description": host_file.summary(agent),
            "mode": "subagent",
            **setup.model(PROGRAM, agent),
            "permission": dict.fromkeys(denied, "deny"),
        }
        names = f"{host_file.TOOL_NAMES} OpenCode calls them `{SERVER}_nx_…`."
        text = host_file.with_head(head, f"{agent.body.strip()}\n\n{names}")
        found.append(OwnFile(path(setup, "agents", f"{agent.id}.md"), text))
    for skill in setup.catalog.skills.values():
        place, ending = path(setup, "skills", skill.id, "SKILL.md"), ""
        if skill.manual_only:  # such a skill is only a command, so that the model cannot activate it
            place, ending = path(setup, "commands", f"{skill.id}.md"), "$ARGUMENTS"
        found.append(OwnFile(place, host_file.skill_file(skill, setup.catalog, WORDING, ending=ending)))
    return found


def next_steps(setup: HostSetup) -> list[str]:
    steps = ["If OpenCode is running, restart it: it reads plugins, agents and skills when it starts."]
    return [*steps, host_file.ONLY_PROJECTS] if setup.scope == "user" else steps


# -- for doctor --


def commands(setup: HostSetup) -> Commands:
    lines = (file_change.read_text(path(setup, "plugins", "rolecall.js")) or "").split("\n")
    hooks = _constant(lines, "const HOOKS = ")
    given = hooks if isinstance(hooks, dict) else {}
    server = _words(_constant(lines, "const SERVER = "), "mcp")
    return Commands({SERVER: server}, {event: _words(given.get(event), "hook", PROGRAM) for event in EVENTS})


def _constant(lines: list[str], name: str) -> Any:
    line = next((line for line in lines if line.startswith(name)), "")
    try:
        return json.loads(line.removeprefix(name))
    except ValueError:  # the line was removed or changed by hand
        return None


def _words(value: Any, *verb: str) -> tuple[str, ...]:
    words = tuple(map(str, value)) if isinstance(value, list) else ()
    return words if is_ours(words, *verb) else ()


def obstacles(setup: HostSetup) -> list[Obstacle]:
    """Return an obstacle if a configuration has a server with our name, which takes precedence over ours."""
    names = ("opencode.json", "opencode.jsonc")
    paths = [os.path.join(LAYOUT.user_folder(setup), name) for name in ("config.json", *names)]
    paths += filter(None, [setup.env.get("OPENCODE_CONFIG")])
    for folder in [setup.project, os.path.join(setup.project, ".opencode")] if setup.project else []:
        paths += [os.path.join(folder, name) for name in names]

    theirs: JsonObject = {}
    place = ""
    for file in paths:  # the last file takes precedence
        try:
            text = file_change.read_text(file) or "{}"
            for pattern in (_COMMENTS, _LAST_COMMAS):  # the files are JSON with comments
                text = pattern.sub(lambda found: found[1] or "", text)
            if server := json.loads(text)["mcp"][SERVER]:
                theirs, place = {**theirs, **server}, file
        except (ValueError, LookupError, TypeError, RecursionError, RolecallError):
            continue  # the file has no such server, or cannot be read
    if not place:
        return []
    if theirs.get("enabled") is False:
        text = f"OpenCode does not start our server: it is not enabled in {place}"
        return [Obstacle(text, f"Enable it in {place}, or take it out there.")]
    if _words(theirs.get("command"), "mcp"):
        return []
    text = (
        f"OpenCode takes the server {SERVER} of {place}, which is not Rolecall's, instead of Rolecall's own"
    )
    return [Obstacle(text, f"Give it another name in {place}.")]


_COMMENTS = re.compile(r'("(?:[^"\\]|\\.)*")|//[^\n]*|/\*.*?\*/', re.DOTALL)
_LAST_COMMAS = re.compile(r'("(?:[^"\\]|\\.)*")|,(?=\s*[}\]])')


def sample(event: str, folder: str) -> Payload:
    args = {"filePath": os.path.join(folder, "doctor.txt"), "content": "."}
    tool = {"tool": "write", "args": args}
    more: dict[str, Payload] = {
        "session.created": {"isNew": True},
        "chat.message": {"text": "How far are we?", "message": "rolecall-doctor"},
        "tool.execute.before": tool,
        "tool.execute.after": tool,
        "subagent.completed": {"child": "rolecall-doctor", "agent": "tester", "output": "done"},
    }
    return {"session": "rolecall-doctor", "cwd": folder, **more.get(event, {})}


def is_refusal(stdout: str) -> bool:
    try:
        return bool(json.loads(stdout)["block"])
    except (ValueError, LookupError, TypeError):
        return False
