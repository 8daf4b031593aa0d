"""What the verbs that run threads have in common: arguments, and the command that goes on as it must be
typed. On the read path, so it imports next to nothing."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace

from rolecall.cli import hints, under_this_name
from rolecall.cli.output import add_format, add_store


def common(parser: ArgumentParser) -> None:
    add_format(parser)
    add_store(parser)


def one_thread(parser: ArgumentParser) -> None:
    parser.add_argument(
        "thread", metavar="THREAD", help="a thread's id, or a part of it that no other id contains"
    )
    common(parser)


def count(text: str) -> int:
    if not text.isdecimal():
        raise ArgumentTypeError(f"{text!r} is not a number")
    return int(text)


def at_least_one(text: str) -> int:
    if count(text) < 1:
        raise ArgumentTypeError(f"{text!r} is not a number of 1 or more")
    return count(text)


def agent_option(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--agent", type=_agent_here, metavar="NAME", help="the agent that plays every role, whoever they name"
    )


def _agent_here(text: str) -> str:
    import os

    from rolecall.threads.workspace import agent_from

    return agent_from(os.getcwd(), text)


def in_this_store(options: Namespace, command: str) -> str:
    """The next command to type, under the program's name and with this command's --store."""
    command = under_this_name(hints.command(command))
    if not options.store:
        return command
    from shlex import quote

    from rolecall.settings.mask import masked

    return f"{command} --store {quote(masked(options.store, '…'))}"
