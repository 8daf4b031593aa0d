"""The command line: the table of commands, and how a module declares its commands.

`rolecall/__main__.py` sets up the process, and `parser.py` runs a command. The module of a noun is imported only when
the noun is used: a command that reads one node should take little longer than starting Python. Exit codes: 0 success, 1
a negative answer, 2 wrong usage, 3 not found, 4 damaged, 5 refused by the disk, the server or another process.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # typing.TYPE_CHECKING without importing typing for `--version`
if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable, Iterable
    from typing import Any

    Argument = Callable[[Any], object]
    """A function that adds one or more arguments to a parser or an argument group."""
    Text = str | Iterable[str] | Callable[[], str]
    """What people read: a text, its lines, or a function that is called only if the text is shown."""

NOUNS = {
    "workflow": ("rolecall.cli.workflow*", "put, show, check, draw and try workflows"),
    "thread": ("rolecall.cli.thread_*", "start, step, read and steer threads"),
    "new": ("rolecall.cli.new", "list ready-made workflows, copy one into the project"),
    "try": ("rolecall.cli.run", "run a workflow with the agents that are installed"),
    "run": ("rolecall.cli.run", "start threads of a workflow and follow them"),
    "lead": ("rolecall.cli.lead", "talk with the Lead, which plans, starts work and reports"),
    "serve": ("rolecall.cli.serve*", "run queued threads: the service, its status, its log"),
    "web": ("rolecall.web.command", "open a page that shows and steers threads"),
    "fleet": ("rolecall.cli.fleet", "show the machines that share a database"),
    "init": ("rolecall.cli.init", "make a project with a workflow that runs at once"),
    "validate": ("rolecall.cli.validate", "check a project: its file, workflows, agents and triggers"),
    "trigger": ("rolecall.cli.trigger", "list, fire and pause a project's triggers"),
    "ci": ("rolecall.cli.ci", "run a workflow in a GitHub Actions or GitLab CI job"),
    "eval": ("rolecall.cli.eval*", "try variants of a workflow on a suite of tasks"),
    "plan": ("rolecall.cli.plan*", "a project's open questions and decisions"),
    "task": ("rolecall.cli.task", "the tasks of a project's current cycle"),
    "history": ("rolecall.cli.task", "search the cycles a project has closed"),
    "artifact": ("rolecall.cli.task", "files that one step of the work leaves for the next"),
    "memory": ("rolecall.cli.memory", "lessons a project has learnt: keep, read, merge, forget"),
    "knowledge": ("rolecall.cli.knowledge", "index a repository and search it"),
    "rule": ("rolecall.cli.memory", "rules for the agents of a project"),
    "config": ("rolecall.cli.config", "read and change the configuration"),
    "notify": ("rolecall.cli.notify", "send a test notification"),
    "agents": ("rolecall.cli.agents", "list the agents Rolecall can run, try one"),
    "doctor": ("rolecall.cli.doctor", "check that this machine has what the workflows need"),
    "setup": ("rolecall.cli.setup", "configure a provider, a model and an agent"),
    "mcp": ("rolecall.mcp.command", "serve the project's tools to an MCP host"),
    "acp": ("rolecall.acp.command", "serve a workflow as an agent to an editor"),
    "hook": ("rolecall.cli.hook", "answer an event of a host"),
    "install": ("rolecall.cli.install", "let Claude Code, Codex or OpenCode use Rolecall"),
    "uninstall": ("rolecall.cli.install", "remove from a host what install wrote"),
    "conformance": ("rolecall.cli.conformance", "run contract fixtures against the project's tools"),
    "cas": ("rolecall.cli.cas*", "read and write the content-addressed store"),
    "completion": ("rolecall.cli.completion", "print a shell completion script"),
    "trace": ("rolecall.cli.trace", "send threads to an OpenTelemetry collector"),
    "prove": ("rolecall.cli.prove", "show and check where a commit comes from"),
    "cost": ("rolecall.cli.cost", "show what threads have cost"),
    "status": ("rolecall.cli.status", "show project, threads, service and the next command"),
    "help": ("rolecall.cli.parser", "explain a command"),
    "version": ("rolecall.cli.parser", "print the version"),
}
"""Every noun with its module, which is imported on demand, and its line in the help."""

SCREEN = {
    "start": {
        "init": "make a project with a workflow that runs",
        "new": "list ready-made workflows, copy one",
        "try": "run a ready-made workflow at once",
        "run": "start a workflow and follow it to its end",
    },
    "watch and steer": {
        "thread answer": "answer what the latest thread asks",
        "web": "see and steer threads in the browser",
    },
    "look back": {
        "thread read": "read the latest thread",
        "thread diff": "what it changed in files",
        "cost": "what threads have cost",
    },
    "set up": {"doctor": "what is installed, and what to fix"},
}
"""The commands shown by `rolecall --help`, which must fit a terminal of 24 lines. `rolecall help all` lists all
commands."""

MODULES = {
    "workflow": {
        "rolecall.cli.workflow": ("put", "show", "list", "validate", "graph", "schema", "history", "diff"),
        "rolecall.cli.workflow_try": ("try",),
        "rolecall.cli.workflow_pack": ("add", "outdated", "update", "trust"),
    },
    "thread": {
        "rolecall.cli.thread_run": ("start", "step", "run", "resume", "kill", "watch", "fork"),
        "rolecall.cli.thread_answer": ("answer",),
        "rolecall.cli.thread_read": ("show", "list", "steps", "read", "step-details", "diff", "why"),
        "rolecall.cli.thread_files": ("export", "checkout", "blame", "folder", "import"),
    },
    "serve": {"rolecall.cli.serve": (), "rolecall.cli.serve_status": ("status", "stop", "logs")},
    "eval": {
        "rolecall.cli.eval": ("run", "show", "list", "check", "export", "promote"),
        "rolecall.cli.eval_compare": ("compare", "gate", "experiment"),
        "rolecall.cli.eval_bisect": ("bisect",),
    },
    "plan": {
        "rolecall.cli.plan": ("start", "status", "add", "remove", "edit", "reopen", "decide"),
        "rolecall.cli.plan_run": ("run",),
    },
    "cas": {
        "rolecall.cli.cas": ("get", "put", "put-text", "has", "refs", "walk", "stats", "schema"),
        "rolecall.cli.cas_care": ("reindex", "verify", "gc", "export", "import"),
    },
}
"""For nouns with several modules, the verbs of each module. A command that reads a thread therefore does not import the
code that runs threads."""

OLD_OPTIONS = {
    "serve": {"--limit": "--at-once"},
    "plan run": {"--limit": "--at-once"},
    "thread list": {"--limit": "--max"},
    "cas walk": {"--limit": "--max"},
    "knowledge query": {"--limit": "--max"},
}
"""Renamed options. In this version the old names still work, with a note on standard error."""

DESCRIPTION = "Runs teams of coding agents through workflows that cannot lose work."
EXAMPLES = "rolecall init\nrolecall run hello -p 'A haiku about the sea'"


# -- how a module declares its commands --


class CommandResult:
    """A command's result: the value to print as JSON or YAML, its text (indented JSON if None), an exit code, and a
    line that is printed after the result on standard error."""

    def __init__(self, value: Any, text: Text | None = None, code: int = 0, *, note: str = "") -> None:
        self.value = value
        self.text = text
        self.code = code
        self.note = note


class Verb:
    """A command: its name, its line in the help, its examples and arguments, and the function that implements it."""

    def __init__(
        self,
        name: str,
        help: str,
        examples: str,
        arguments: tuple[Argument, ...],
        run: Callable[[Namespace], CommandResult | int | None],
        has_reply: bool,
    ) -> None:
        self.name = name
        self.help = help
        self.examples = examples
        self.arguments = arguments
        self.run = run
        self.has_reply = has_reply


def verb(
    name: str, help: str, examples: str, *arguments: Argument, has_reply: bool = True
) -> Callable[[Callable[[Namespace], CommandResult | int | None]], Verb]:
    """Declare the decorated function as the command `name`. The function returns a value to print, an exit code, or
    None.

    The command accepts --format and --json unless `has_reply` is False.
    """
    return lambda run: Verb(name, help, examples, arguments, run, has_reply)


def argument(names: str, metavar: str | None, help: str | None, **options: Any) -> Argument:
    """Declare an argument by its name or names. `options` are passed on to `ArgumentParser.add_argument`."""
    return lambda parser: parser.add_argument(*names.split(), metavar=metavar, help=help, **options)


def repeated(names: str, metavar: str, help: str, **options: Any) -> Argument:
    """Declare an option that may be repeated. Its value is a list."""
    return argument(names, metavar, help, action="append", default=[], **options)


def flag(names: str, help: str, **options: Any) -> Argument:
    """Declare an option without a value."""
    return lambda parser: parser.add_argument(*names.split(), action="store_true", help=help, **options)


def either(*arguments: Argument) -> Argument:
    """Declare mutually exclusive arguments."""

    def add(parser: ArgumentParser) -> None:
        group = parser.add_mutually_exclusive_group()
        for one in arguments:
            one(group)

    return add


def program() -> str:
    """Return the name that started the command: `rolecall`, or `uwf` like the predecessor."""
    return "uwf" if sys.argv[0].rpartition("/")[2] == "uwf" else "rolecall"
