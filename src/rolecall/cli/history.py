"""`rolecall history`: cycles that were closed."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Mapping
from typing import Any

from rolecall.cli import Verb
from rolecall.cli.output import show, table
from rolecall.cli.project_call import add_project, call


def _search(options: Namespace) -> None:
    reply = call(options, "history_search", query=options.query, last_n=options.last)
    show(options, reply, lambda: _text(reply))


def _text(reply: Mapping[str, Any]) -> str:
    rows = [
        (
            cycle["completed_at"],
            cycle["branch"],
            cycle.get("topic", ""),
            len(cycle.get("decisions", ())),
            cycle["task_count"],
        )
        for cycle in reply["cycles"]
    ]
    shown = f"{reply['showing']} of {reply['total']} cycles"
    return (
        "\n".join([table(rows, ("closed", "branch", "topic", "decisions", "tasks")), shown])
        if rows
        else shown
    )


def _count(text: str) -> int:
    if not text.isdecimal():
        raise ArgumentTypeError(f"{text!r} is not a number of 0 or more")
    return int(text)


def _search_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "query", metavar="TEXT", nargs="?", help="only cycles that have this text anywhere (default: all)"
    )
    parser.add_argument("--last", type=_count, metavar="N", help="how many at most, the latest (default: 10)")
    add_project(parser)


VERBS = {
    "search": Verb(
        _search,
        "find closed cycles, the latest last",
        "rolecall history search migration\nrolecall history search --last 3",
        _search_arguments,
    ),
}
