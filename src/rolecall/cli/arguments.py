"""Arguments shared by several commands, and the next command to type. Used for reading, so it imports little."""

from __future__ import annotations

import os
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from shlex import quote

from rolecall.api import Rolecall, Thread
from rolecall.cli import argument, hints
from rolecall.cli.output import under_this_name
from rolecall.threads.thread import LIMITS


def _agent(text: str) -> str:
    from rolecall.threads.casting import agent_from  # imports every adapter

    return agent_from(os.getcwd(), text)


def _limit(text: str) -> tuple[str, float]:
    name, _, given = text.partition("=")
    kind = name.rpartition(".")[2]
    try:
        value = float(given) if kind in ("cost", "minutes") else int(given)
    except ValueError:
        value = 0
    if kind not in LIMITS or not 0 < value < float("inf"):
        known = ", ".join(LIMITS)
        raise ArgumentTypeError(
            f"{text!r} is not a limit such as steps=20 or cost=1.5: a number above 0, for one of {known}"
        )
    return name, value


WORKFLOW = argument("workflow", "WORKFLOW", "its name, the path of its file, or its id")
THREAD = argument("thread", "THREAD", "a thread's id, or a part of it that no other id contains")
CWD = argument("--cwd", "DIR", "the work folder (default: this one)")
AGENT = argument(
    "--agent",
    "NAME",
    "the agent that plays every role, instead of those the roles name",
    type=_agent,
)
LIMIT = argument(
    "--limit",
    "NAME=VALUE",
    f"suspend the thread at this much: {', '.join(LIMITS)}, or of one role: ROLE.steps=3",
    type=_limit,
    action="append",
    default=[],
)


def RUN(parser: ArgumentParser) -> None:
    parser.add_argument("--run", action="store_true", help="continue at once, as `thread run` does")
    AGENT(parser)


def in_this_store(options: Namespace, command: str) -> str:
    """Return the next command to type, with the program's name and this command's --store."""
    command = under_this_name(hints.command(command))
    if not options.store:
        return command
    from rolecall.settings.mask import masked

    return f"{command} --store {quote(masked(options.store, '…'))}"


@contextmanager
def open_thread(options: Namespace) -> Iterator[Thread]:
    """Open the store, which must exist, and find the thread that the command names."""
    with Rolecall(options.store, create=False) as rolecall:
        yield rolecall.thread(options.thread)
