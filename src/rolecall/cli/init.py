"""`rolecall init`: a project to begin with, and what of its needs is here already. Nothing is ever overwritten."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rolecall.cli import Verb
from rolecall.cli.hints import word
from rolecall.cli.output import add_format, printable, show, table
from rolecall.errors import UsageError

if TYPE_CHECKING:
    from rolecall.checks.doctor import Finding

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
"""What the roles of the example say where no agent is installed: `printf` is an agent like any other program."""

SENSE = '''\
"""An example of a sense: a trigger with `sense: disk_space` calls it and starts a thread when it returns a signal."""

import shutil


def sense():
    free = shutil.disk_usage(".").free // 10**9
    if free > 5:
        return None
    # What a prompt can name; of signals with the same key only the first counts.
    return {"free": free, "key": f"{free} GB"}
'''

IGNORED = (".env", "knowledge.db", "knowledge.db-*", "__pycache__/")


class Made(NamedTuple):
    path: str
    is_new: bool


def _init(options: Namespace) -> None:
    from rolecall.service import project_file
    from rolecall.workflow import yaml

    folder = os.path.abspath(options.folder)
    if os.path.lexists(folder) and not os.path.isdir(folder):
        raise UsageError(f"{folder} is not a folder")
    findings = _findings()
    agent = next((finding.agent for finding in findings if finding.is_ready), None)
    files = {"rolecall.yaml": PROJECT, os.path.join("workflows", "hello.yaml"): _example(agent)}
    if options.senses:
        files[os.path.join("senses", "disk_space.py")] = SENSE
    for name, schema in (("project", project_file.json_schema()), ("workflow", yaml.json_schema())):
        files[os.path.join(".schemas", f"{name}.schema.json")] = (
            json.dumps(schema, indent=2, ensure_ascii=False) + "\n"
        )
    made = [_write(folder, name, text) for name, text in files.items()]
    made.append(_ignore(folder))
    shown = _shown(folder, made, findings, agent)
    show(options, shown, lambda: "\n".join(_lines(shown)))
    from rolecall.service import project_file

    if problem := project_file.unread(folder):
        print(printable(str(problem)), file=sys.stderr)


def _findings() -> list[Finding]:
    """What there is of every agent that has a program of its own."""
    from rolecall.agents.presence import program_of
    from rolecall.checks.doctor import Place, examine, known_agents
    from rolecall.settings import config

    place = Place(config.environment(), Path.cwd())
    casts = [cast for cast in known_agents() if program_of(cast.agent)]
    return asyncio.run(examine(casts, place, has_flags=False))


def _example(agent: str | None) -> str:
    def agent_of(role: str) -> str:
        # Between single quotes YAML leaves everything as it is.
        return agent or f"'command:printf %b \"{_FIXED[role]}\"'"

    return EXAMPLE.format(writer=agent_of("writer"), reader=agent_of("reader"))


# -- writing --


def _write(folder: str, name: str, text: str) -> Made:
    path = os.path.join(folder, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if os.path.lexists(path) or (name.startswith("workflows") and _has_workflow(os.path.dirname(path))):
        return Made(name, False)
    with open(path, "x", encoding="utf-8") as file:
        file.write(text)
    return Made(name, True)


def _has_workflow(folder: str) -> bool:
    """An example in whatever form stays the only one."""
    return any(os.path.lexists(os.path.join(folder, f"hello{end}")) for end in ("", ".yaml", ".yml", ".py"))


def _ignore(folder: str) -> Made:
    """Add the lines that `.gitignore` does not have."""
    path = os.path.join(folder, ".gitignore")
    if os.path.lexists(path) and not os.path.isfile(path):
        raise UsageError(f"{path} is not a file")
    with open(path, "a+", encoding="utf-8", errors="surrogateescape") as file:
        file.seek(0)
        text = file.read()
        has = {line.strip().removeprefix("/") for line in text.splitlines()}
        missing = [line for line in IGNORED if line not in has]
        if missing:
            file.write(
                "\n" * (bool(text) and not text.endswith("\n")) + "".join(f"{line}\n" for line in missing)
            )
    return Made(".gitignore", bool(missing))


# -- telling --


def _shown(folder: str, made: list[Made], findings: list[Finding], agent: str | None) -> dict[str, Any]:
    return {
        "folder": folder,
        "made": [one.path for one in made if one.is_new],
        "kept": [one.path for one in made if not one.is_new],
        "agents": [
            {
                "agent": finding.agent,
                "state": finding.state,
                "version": finding.version,
                "fix": word(finding.troubles[0].fix) if finding.troubles else None,
            }
            for finding in findings
        ],
        "example": {
            "workflow": "hello",
            "agent": agent or "command:printf",
            "run": "rolecall run hello -p 'A haiku about the sea'",
        },
    }


def _lines(shown: dict[str, Any]) -> Iterator[str]:
    yield f"project in {shown['folder']}"
    for key, what in (("made", "made"), ("kept", "there already, left as it is")):
        if shown[key]:
            yield f"  {what}: {', '.join(shown[key])}"
    yield ""
    rows = [(one["agent"], one["version"] or "–", one["state"], one["fix"] or "") for one in shown["agents"]]
    yield table(rows, ("agent", "version", "state", "to have it"))
    yield ""
    if shown["example"]["agent"] == "command:printf":
        yield "No agent is ready, so the example answers by itself; once you have one, name it in workflows/hello.yaml."
    yield f"Next: {shown['example']['run']}"


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument("folder", metavar="DIR", nargs="?", default=".", help="where (default: this folder)")
    parser.add_argument("--senses", action="store_true", help="also make senses/ with an example")
    add_format(parser)


VERBS = {
    "": Verb(
        _init,
        "make a project: rolecall.yaml, a workflow that runs at once, .gitignore; nothing is overwritten",
        "rolecall init\nrolecall init ~/projects/shop --senses",
        _arguments,
    )
}
