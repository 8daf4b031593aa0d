"""`rolecall init`: create a starter project and show the installed agents. Nothing is ever overwritten."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from argparse import Namespace
from pathlib import Path

from rolecall.agents.presence import program_of
from rolecall.checks.doctor import Place, examine, known_agents
from rolecall.cli import Reply, argument, flag, verb
from rolecall.cli.hints import word
from rolecall.cli.output import printable, table
from rolecall.errors import UsageError
from rolecall.service import project_file
from rolecall.settings import config
from rolecall.workflow.yaml import json_schema

PROJECT = """\
# yaml-language-server: $schema=.schemas/project.schema.json
# The project, for Rolecall. `rolecall validate` checks it; docs: project-file.md
# Every line is optional: `rolecall run WORKFLOW -p TASK` works without any.

# The model that reads answers without output (a provider of your configuration, or an address):
# extract: {baseUrl: "https://…/v1", model: some-model, apiKeyEnv: SOME_API_KEY}

# For `rolecall serve`:
# service:
#   limit: 16                  # threads at once, over all workflows
#   rates: {claude: 30/min}    # calls of an agent
#   spend_per_day: 20          # dollars, as reported by the agents

workflows:
  hello:
    concurrency: 2             # threads of this workflow at once; others wait
    # overflow: queue          # or drop: discard new threads while it is busy
    # max_queue: 20            # if more wait, discard the oldest
    # triggers:
    #   morning: {cron: "0 7 * * 1-5", timezone: UTC, prompt: "Say good morning."}
"""

EXAMPLE = """\
# yaml-language-server: $schema=../.schemas/workflow.schema.json
# An example: one role writes a text, another reads it and may send it back. Run it:
#   rolecall run hello -p 'A haiku about the sea'
name: hello
description: Writes a short text and revises it until the reader approves.
roles:
  writer:
    prompt: You are a writer. Write the short text that the task asks for. Change no files.
    agent: {writer}
    schema:
      type: object
      properties: {{text: {{type: string}}}}
      required: [text]
  reader:
    prompt: You are a reader. Say whether the text is what the task asks for. Change no files.
    agent: {reader}
    schema:
      type: object
      properties:
        $status: {{enum: [good, again]}}
        advice: {{type: string}}
      required: [$status, advice]
graph:
  $START: writer
  writer: {{role: reader, prompt: "Read this:\\n{{{{text}}}}"}}
  reader:
    good: $END
    again: {{role: writer, prompt: "Write it again: {{{{advice}}}}"}}
limits: {{steps: 6}}
"""

_FIXED = {
    "writer": "---\\ntext: Hello from Rolecall.\\n---\\nThis answer is always the same.\\n",
    "reader": "---\\n$status: good\\nadvice: none\\n---\\nIt says hello.\\n",
}
"""Fixed answers for the example's roles if no agent is installed, given by `printf` as the agent."""

SENSE = '''\
"""An example of a sense: a trigger with `sense: disk_space` calls it and starts a thread when it returns a signal."""

import shutil


def sense():
    free = shutil.disk_usage(".").free // 10**9
    if free > 5:
        return None
    # The values a prompt can name; of signals with the same key only the first counts.
    return {"free": free, "key": f"{free} GB"}
'''

IGNORED = (".env", "knowledge.db", "knowledge.db-*", "__pycache__/")


@verb(
    "init",
    "make a project: rolecall.yaml, a workflow that runs at once, .gitignore; nothing is overwritten",
    "rolecall init\nrolecall init ~/projects/shop --senses",
    argument("folder", "DIR", "where (default: this folder)", nargs="?", default="."),
    flag("--senses", "also make senses/ with an example"),
)
def init(options: Namespace) -> Reply:
    folder = os.path.abspath(options.folder)
    if os.path.lexists(folder) and not os.path.isdir(folder):
        raise UsageError(f"{folder} is not a folder")
    casts = [cast for cast in known_agents() if program_of(cast.agent)]
    findings = asyncio.run(examine(casts, Place(config.environment(), Path.cwd()), has_flags=False))
    agent = next((finding.agent for finding in findings if finding.is_ready), None)
    # YAML leaves text in single quotes unchanged.
    players = {role: agent or f"'command:printf %b \"{text}\"'" for role, text in _FIXED.items()}
    files = {"rolecall.yaml": PROJECT, os.path.join("workflows", "hello.yaml"): EXAMPLE.format(**players)}
    if options.senses:
        files[os.path.join("senses", "disk_space.py")] = SENSE
    for name, schema in (("project", project_file.json_schema()), ("workflow", json_schema())):
        text = json.dumps(schema, indent=2, ensure_ascii=False) + "\n"
        files[os.path.join(".schemas", f"{name}.schema.json")] = text
    is_new = {name: _write(folder, name, text) for name, text in files.items()}
    is_new[".gitignore"] = _ignore(folder)
    if problem := project_file.unread(folder):
        print(printable(str(problem)), file=sys.stderr)
    run = "rolecall run hello -p 'A haiku about the sea'"
    shown = {
        "folder": folder,
        "made": [name for name, was_made in is_new.items() if was_made],
        "kept": [name for name, was_made in is_new.items() if not was_made],
        "agents": [
            {
                "agent": finding.agent,
                "state": finding.state,
                "version": finding.version,
                "fix": word(finding.troubles[0].fix) if finding.troubles else None,
            }
            for finding in findings
        ],
        "example": {"workflow": "hello", "agent": agent or "command:printf", "run": run},
    }
    lines = [f"project in {folder}"]
    for key, what in (("made", "made"), ("kept", "there already, left as it is")):
        if shown[key]:
            lines.append(f"  {what}: {', '.join(shown[key])}")
    rows = [(one["agent"], one["version"] or "–", one["state"], one["fix"] or "") for one in shown["agents"]]
    lines += ["", table(rows, ("agent", "version", "state", "to install")), ""]
    if agent is None:
        lines.append(
            "No agent is ready, so the example answers by itself; once you have one, name it in workflows/hello.yaml."
        )
    return Reply(shown, "\n".join([*lines, f"Next: {run}"]))


def _write(folder: str, name: str, text: str) -> bool:
    """Write a new file; return False if it exists, or if the example exists in another form."""
    path = os.path.join(folder, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    others = [path]
    if name.startswith("workflows"):
        stem = path.removesuffix(".yaml")
        others += [stem + ending for ending in ("", ".yml", ".py")]
    if any(map(os.path.lexists, others)):
        return False
    with open(path, "x", encoding="utf-8") as file:
        file.write(text)
    return True


def _ignore(folder: str) -> bool:
    """Add missing lines to `.gitignore`; return whether there were any."""
    path = os.path.join(folder, ".gitignore")
    if os.path.lexists(path) and not os.path.isfile(path):
        raise UsageError(f"{path} is not a file")
    with open(path, "a+", encoding="utf-8", errors="surrogateescape") as file:
        file.seek(0)
        text = file.read()
        present = {line.strip().removeprefix("/") for line in text.splitlines()}
        missing = [line for line in IGNORED if line not in present]
        if missing:
            break_before = "\n" if text and not text.endswith("\n") else ""
            file.write(break_before + "".join(f"{line}\n" for line in missing))
    return bool(missing)
