"""`rolecall help` and `rolecall version`."""

from __future__ import annotations

from argparse import Namespace

from rolecall import __version__
from rolecall.cli import CommandResult, argument, verb
from rolecall.cli.parser import build_parser, run


@verb(
    "help",
    "explain a command",
    "rolecall help\nrolecall help all\nrolecall help thread start",
    argument("words", "COMMAND", "a command, and one of its verbs; or all", nargs="*"),
    has_reply=False,
)
def print_help(options: Namespace) -> int:
    if options.words == ["all"]:
        print(build_parser(only="help").format_help(), end="")
        return 0
    return run([*options.words, "--help"])


@verb("version", "print the version", "rolecall version")
def print_version(_options: Namespace) -> CommandResult:
    return CommandResult({"version": __version__}, f"rolecall {__version__}")
