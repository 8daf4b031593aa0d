"""What the verbs of `rolecall thread` have in common: arguments, and the command that goes on as it must be
typed. On the read path, so it imports next to nothing."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace

from rolecall.cli.output import add_format, add_store


def common(parser: ArgumentParser) -> None:
    add_format(parser)
    add_store(parser)


def one_thread(parser: ArgumentParser) -> None:
    parser.add_argument("thread", metavar="THREAD", help="a thread's id, or an unambiguous end or beginning")
    common(parser)


def count(text: str) -> int:
    if not text.isdecimal():
        raise ArgumentTypeError(f"{text!r} is not a number")
    return int(text)


def in_this_store(options: Namespace, command: str) -> str:
    """A command that is to be typed next, with the store that was named for this one."""
    if not options.store:
        return command
    from shlex import quote

    from rolecall.settings import masked

    return f"{command} --store {quote(masked(options.store, '…'))}"
