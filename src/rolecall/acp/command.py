"""`rolecall acp`: serve a workflow as an agent to which editors can talk.

The CLI lists this module in its table of commands. The packages of the `acp` extra are imported only when the agent is
served.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from typing import TYPE_CHECKING

from rolecall.errors import explain_missing
from rolecall.settings.server_options import add_store_option
from rolecall.store.lazy import Module

if TYPE_CHECKING:
    from rolecall.acp import agent
else:
    agent = Module("rolecall.acp.agent")

HELP = "serve a workflow as an agent to an editor (needs rolecall[acp])"
EXAMPLE = "rolecall acp\nrolecall acp --workflow implement-issue --agent claude --limit cost=10"
LEAD = "lead"
"""The workflow that is used without `--workflow`."""


def run(options: Namespace) -> None:
    with explain_missing("acp", "the Agent Client Protocol"):
        defaults = agent.Defaults(options.workflow, options.agent, dict(options.limit), options.store)
    if sys.stdin is not None and sys.stdin.isatty():
        print("waiting for an editor on standard input; Ctrl-C ends it", file=sys.stderr)
    agent.serve(defaults)


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--workflow",
        default=LEAD,
        metavar="NAME",
        help=f"the workflow that answers: its name, path or id (default: {LEAD})",
    )
    parser.add_argument(
        "--agent", metavar="NAME", help="the agent that plays every role, instead of the roles' own agents"
    )
    parser.add_argument(
        "--limit",
        metavar="NAME=VALUE",
        help="suspend a thread at this much, such as cost=10; may be repeated",
        type=_read_limit,
        action="append",
        default=[],
    )
    add_store_option(parser)


def _read_limit(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    try:
        return name, float(value)
    except ValueError as error:
        raise ArgumentTypeError(f"{text!r} is not a limit such as steps=20 or cost=1.5") from error
