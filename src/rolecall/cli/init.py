"""`rolecall init`: create a project, and end by printing a command that runs. No file is ever overwritten."""

from __future__ import annotations

import json
import os
from argparse import Namespace
from shlex import quote
from typing import NamedTuple

from rolecall.agents.presence import check_present
from rolecall.api import reader
from rolecall.cli import CommandResult, argument, asking, flag, verb
from rolecall.cli.agents import agents_table
from rolecall.cli.arguments import parse_agent
from rolecall.cli.hints import word
from rolecall.cli.output import format_of, short, tell
from rolecall.errors import UsageError
from rolecall.service import project_file
from rolecall.settings import config
from rolecall.settings.form import did_you_mean
from rolecall.threads import casting
from rolecall.workflow import gallery
from rolecall.workflow.places import ENDINGS, FOLDERS, PACKS
from rolecall.workflow.yaml import json_schema

SCHEMA_LINE = "# yaml-language-server: $schema={}.schemas/{}.schema.json\n"
PROJECT = """\
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
"""Fixed answers for the roles of the example, which `printf` gives in place of an agent if no agent is installed."""

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


HELLO = "hello"
FIRST_TASK = "A haiku about the sea"


class FirstRun(NamedTuple):
    """The agent, workflow and task with which the project begins."""

    agent: str | None
    """The agent that plays the roles, or None if no agent is ready."""
    workflow: str
    """The name of the example or of a workflow in the gallery."""
    task: str


@verb(
    "init",
    "make a project and show the command that runs its first workflow; asks on a terminal, overwrites nothing",
    "rolecall init\nrolecall init --agent claude --workflow review-change\nrolecall init ~/projects/shop --senses",
    argument("folder", "DIR", "where (default: this folder)", nargs="?", default="."),
    argument(
        "--agent",
        "NAME",
        "the agent that plays the first workflow (default: one that is ready)",
        type=parse_agent,
    ),
    argument("--workflow", "NAME", f"the first workflow: {HELLO} (default), or a ready-made one"),
    flag("--senses", "also make senses/ with an example"),
    flag("--schemas", "also write .schemas/, which editors use to check the files"),
)
def init(options: Namespace) -> CommandResult:
    folder = os.path.abspath(options.folder)
    if os.path.lexists(folder) and not os.path.isdir(folder):
        raise UsageError(f"{folder} is not a folder")
    findings = list(reader().agents().values())
    default = config.load().get("defaultAgent")
    start = _choose(options, [finding.agent for finding in findings if finding.is_ready], default)
    # An agent that cannot play the first workflow is reported before anything is written.
    if start.workflow != HELLO:
        with reader(folder=folder) as rolecall:
            book = rolecall.load_workflow(start.workflow).playbook
            for _, error in rolecall.missing_agents(book, start.agent):
                raise error
    elif start.agent:
        env = config.environment()
        check_present(casting.cast_alone(config.load(), start.agent, environment=env).agent, env=env)

    lead = SCHEMA_LINE if options.schemas else ""
    project = PROJECT.replace(f"  {HELLO}:", f"  {start.workflow}:")
    files = {"rolecall.yaml": lead.format("", "project") + project}
    if start.workflow == HELLO:
        players = {role: f"'command:printf %b \"{text}\"'" for role, text in _FIXED.items()}
        if start.agent:  # YAML leaves text in single quotes unchanged, except for single quotes
            named = "'" + start.agent.replace("'", "''") + "'" if ":" in start.agent else start.agent
            players = dict.fromkeys(_FIXED, named)
        example = lead.format("../", "workflow") + EXAMPLE.format(**players)
        files[os.path.join(PACKS, f"{HELLO}.yaml")] = example
    if options.senses:
        files[os.path.join("senses", "disk_space.py")] = SENSE
    if options.schemas:
        for name, schema in (("project", project_file.json_schema()), ("workflow", json_schema())):
            text = json.dumps(schema, indent=2, ensure_ascii=False) + "\n"
            files[os.path.join(".schemas", f"{name}.schema.json")] = text
    is_new = _write_files(folder, files)
    if problem := project_file.check_nerve_file(folder):
        tell(str(problem))

    run = f"rolecall run {start.workflow} -p {quote(start.task)}"
    if start.workflow != HELLO and start.agent not in (None, default):
        run += f" --agent {quote(start.agent)}"
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
        "example": {"workflow": start.workflow, "agent": start.agent or "command:printf", "run": run},
    }
    lines = [f"project in {folder}"]
    lines += [f"  made: {', '.join(shown['made'])}"] if shown["made"] else []
    lines += [f"  already exists, left unchanged: {', '.join(shown['kept'])}"] if shown["kept"] else []
    if start.agent is None:
        lines += ["", agents_table(findings), ""]
        lines.append(
            f"No agent is ready, so fixed texts answer in {HELLO}. Once you have one, `rolecall new` lists what to try."
        )
    else:
        lines.append(f"  {start.agent} plays the roles of {start.workflow}")
    enter = f"cd {quote(os.path.relpath(folder))} && " if folder != os.getcwd() else ""
    return CommandResult(shown, [*lines, "", f"Next: {enter}{run}"])


def _choose(options: Namespace, ready: list[str], default: str | None) -> FirstRun:
    """Take the agent, workflow and task from the options, or ask for them on a terminal. If no agent is ready, ask
    nothing, because only the example runs without an agent."""
    agent = options.agent or default or next(iter(ready), None)
    workflow = options.workflow or HELLO
    names = [HELLO, *gallery.names()]
    if workflow not in names:
        raise UsageError(
            f"no ready-made workflow has the name {workflow!r}",
            hint=did_you_mean(workflow, names, what="Known"),
        )
    task = FIRST_TASK if workflow == HELLO else "What to do"
    is_open = not (options.agent or options.workflow) and format_of(options) == "text"
    if not (agent and is_open and asking.can_ask()):
        return FirstRun(agent, workflow, task)

    if len(ready) > 1 and not default:
        agent = ready[asking.ask_choice("Which agent plays the roles?", ready, default=0) or 0]
    known = {HELLO: "Writes a short text, to see how it goes.", **gallery.summaries()}
    width = max(map(len, known))
    choices = [f"{name:{width}}  {short(line, 73 - width)}" for name, line in known.items()]
    workflow = [*known][asking.ask_choice("Which workflow first?", choices, default=0) or 0]
    task = FIRST_TASK if workflow == HELLO else "What to do"
    return FirstRun(
        agent, workflow, asking.ask(f"What should be done? (Enter: {task})", lambda text: text or task)
    )


def _write_files(folder: str, files: dict[str, str]) -> dict[str, bool]:
    """Write the files that do not exist, and add missing lines to `.gitignore`. Return whether each file was written. A
    workflow counts as existing if the example's name exists in another place or format."""
    is_new = {}
    for name, text in files.items():
        path = os.path.join(folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        others = [path]
        if name.startswith(PACKS):
            stems = [os.path.join(folder, place, HELLO) for place in FOLDERS]
            others += [stem + ending for stem in stems for ending in ("", *ENDINGS)]
        is_new[name] = not any(map(os.path.lexists, others))
        if is_new[name]:
            with open(path, "x", encoding="utf-8") as file:
                file.write(text)

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
    return {**is_new, ".gitignore": bool(missing)}
