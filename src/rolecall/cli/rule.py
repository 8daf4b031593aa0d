"""`rolecall rule`: what the agents of a project keep to, written in its `.nexus/rules/`."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from rolecall.cli import Verb
from rolecall.cli.note_arguments import add_text, print_text, text_of
from rolecall.cli.output import show, table
from rolecall.cli.project_call import add_project, project_of


def _add(options: Namespace) -> None:
    from rolecall.nexus import rule
    from rolecall.threads.workspace import mask

    text = text_of(options)
    reply = rule.add(project_of(options), options.name, text, mask=mask(), tags=options.tag)
    show(options, reply, lambda: f"wrote {reply['path']}")


def _list(options: Namespace) -> None:
    from rolecall.nexus import rule

    rules = rule.listed(project_of(options), tag=options.tag)
    rows = [(entry["name"], ", ".join(entry["tags"]), entry["size"]) for entry in rules]
    show(options, rules, lambda: table(rows, ("name", "tags", "bytes")) if rows else "there is no rule")


def _read(options: Namespace) -> None:
    from rolecall.nexus import rule

    print_text(options, rule.read(project_of(options), options.name), name=options.name)


# -- the table --


def _add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="what it is about: commit-messages")
    add_text(parser)
    parser.add_argument(
        "--tag", action="append", default=[], metavar="TAG", help="where it applies: frontend"
    )
    add_project(parser)


def _list_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--tag", metavar="TAG", help="only those with this tag")
    add_project(parser)


def _read_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the rule")
    add_project(parser)


VERBS = {
    "add": Verb(
        _add,
        "write a rule",
        "rolecall rule add commit-messages -m 'The first line says what changed.'\n"
        "rolecall rule add css-tokens --tag frontend rules/css.md",
        _add_arguments,
    ),
    "list": Verb(_list, "list the rules", "rolecall rule list --tag frontend", _list_arguments),
    "read": Verb(_read, "print a rule", "rolecall rule read commit-messages", _read_arguments),
}
