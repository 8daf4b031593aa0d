"""`rolecall new`: list the workflows that come with Rolecall, and copy one into the project."""

from __future__ import annotations

import os
import re
from argparse import Namespace

from rolecall.api import reader
from rolecall.checks.choose import open_roles
from rolecall.cli import CommandResult, argument, verb
from rolecall.cli.output import table
from rolecall.errors import UsageError
from rolecall.files.packs import packs_folder
from rolecall.settings import config
from rolecall.settings.settings import get_agent_spec
from rolecall.workflow import gallery
from rolecall.workflow.places import LOCK
from rolecall.workflow.playbook import Playbook
from rolecall.workflow.yaml import NAME


@verb(
    "new",
    "list ready-made workflows, or copy one into .workflows/ with the agents that are installed here",
    "rolecall new\nrolecall new fix-test\nrolecall new fix-login-test --from fix-test",
    argument("name", "WORKFLOW", "the workflow to copy; with --from, the name of the copy", nargs="?"),
    argument("--from", "WORKFLOW", "the workflow to copy, under another name", dest="source"),
)
def new(options: Namespace) -> CommandResult:
    if options.name is None and options.source is None:
        found = gallery.summaries()
        text = table(list(found.items()), ("name", "what it does"), folds=True)
        text += "\n\nRun one at once:  rolecall try NAME -p 'TASK'\nCopy one to edit: rolecall new NAME"
        return CommandResult([{"name": name, "description": line} for name, line in found.items()], text)
    source = options.source or options.name
    return _copy(source, options.name or source)


def _copy(source: str, name: str) -> CommandResult:
    text = gallery.read(source)
    if not NAME.fullmatch(name):
        raise UsageError(f"the name {name!r} is not in kebab-case", hint="Use a name such as fix-login-test.")
    if f"{name}.yaml" == LOCK:
        raise UsageError(f"{LOCK} lists the workflows of packs", hint="Give the copy another name.")
    folder = packs_folder(os.getcwd())
    path = os.path.join(folder, f"{name}.yaml")
    settings = config.load()
    with reader() as rolecall:
        for known in rolecall.workflow_entries():
            if known.name == name and known.path:
                raise UsageError(
                    f"there is already a workflow {name!r}: {os.path.relpath(known.path)}",
                    hint=f"Give the copy another name: `rolecall new my-{name} --from {source}`.",
                )
        workflow = rolecall.define(str(gallery.path_of(source))).workflow
        # The file does not name the configured agent, so that it follows the configuration. Only judges get another
        # agent.
        default = settings.get("defaultAgent")
        roles, left_open = open_roles(workflow, {}), open_roles(workflow, settings)
        adapter = get_agent_spec(settings, default)[0].partition(":")[0] if default else ""
        chosen = rolecall.choose_agents(Playbook(workflow), roles, default=adapter)
    chosen = {role: one for role, one in chosen.items() if one.is_second or role in left_open}
    text = text.replace(f"name: {source}\n", f"name: {name}\n", 1)
    for role, one in chosen.items():  # all workflows of the gallery have the same layout
        head = rf"^  {re.escape(role)}:\n"
        text = re.sub(head, rf"\g<0>    agent: {one.agent}\n", text, count=1, flags=re.M)

    os.makedirs(folder, exist_ok=True)
    with open(path, "x", encoding="utf-8") as file:
        file.write(text)
    shown = {
        "name": name,
        "file": os.path.relpath(path),
        "from": source,
        "agents": {role: one.agent for role, one in chosen.items()},
        "open": [role for role in left_open if role not in chosen],
    }
    others = [role for role in roles if role not in chosen and role not in shown["open"]]
    lines = [f"{shown['file']}, a copy of {source} that is yours to edit"]
    for one in dict.fromkeys(chosen.values()):
        why = "judges the work of the other" if one.is_second else "is ready here"
        played = ", ".join(role for role in chosen if chosen[role] == one)
        lines.append(f"  {one.agent} {why}, and plays {played}")
    if others and default:
        lines.append(f"  {default} is configured, and plays {', '.join(others)}")
    if shown["open"]:
        lines.append(f"  no agent is ready here to play {', '.join(shown['open'])}; see `rolecall doctor`")
    return CommandResult(shown, [*lines, "", f"Run it: rolecall run {name} -p 'TASK'"])
