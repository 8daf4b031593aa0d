"""`rolecall rule`: rules for the agents of a project, kept as notes in its `.nexus/rules/`."""

from __future__ import annotations

from argparse import Namespace

from rolecall.cli import Reply, argument, verb
from rolecall.cli.output import table
from rolecall.cli.project import MESSAGE, PROJECT, SOURCE, project_of, read_text, reply_text
from rolecall.nexus import rule
from rolecall.settings import config


@verb(
    "rule add",
    "write a rule",
    "rolecall rule add commit-messages -m 'The first line says what changed.'\n"
    "rolecall rule add css-tokens --tag frontend rules/css.md",
    argument("name", "NAME", "what it is about: commit-messages"),
    SOURCE,
    MESSAGE,
    argument("--tag", "TAG", "where it applies: frontend", action="append", default=[]),
    PROJECT,
)
def add_rule(options: Namespace) -> Reply:
    text = read_text(options)
    reply = rule.add(project_of(options), options.name, text, mask=config.mask(), tags=options.tag)
    return Reply(reply, f"wrote {reply['path']}")


@verb(
    "rule list",
    "list the rules",
    "rolecall rule list --tag frontend",
    argument("--tag", "TAG", "only those with this tag"),
    PROJECT,
)
def list_rules(options: Namespace) -> Reply:
    rules = rule.list_rules(project_of(options), tag=options.tag)
    rows = [(entry["name"], ", ".join(entry["tags"]), entry["size"]) for entry in rules]
    return Reply(rules, table(rows, ("name", "tags", "bytes")) if rows else "there are no rules yet")


@verb(
    "rule read",
    "print a rule",
    "rolecall rule read commit-messages",
    argument("name", "NAME", "the rule"),
    PROJECT,
)
def read_rule(options: Namespace) -> Reply | None:
    return reply_text(options, rule.read(project_of(options), options.name))
