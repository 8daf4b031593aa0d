"""`rolecall help`: print the `--help` of a command."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from rolecall.cli import Verb, main


def _help(options: Namespace) -> int:
    return main([*options.words, "--help"])


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument("words", nargs="*", metavar="COMMAND", help="a command, and one of its verbs")


VERBS = {"": Verb(_help, "explain a command", "rolecall help\nrolecall help thread start", _arguments)}
