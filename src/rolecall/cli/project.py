"""Arguments and texts of commands on a project."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable
from typing import TypeVar

from rolecall.cli import CommandResult, argument
from rolecall.cli.output import printable, read_file
from rolecall.errors import Damaged, UsageError

T = TypeVar("T")

PROJECT = argument("--project", "DIR", "the project's folder (default: the git work tree around this folder)")
SOURCE = argument("source", "FILE", "where the text is; - is standard input", nargs="?")
MESSAGE = argument("-m --message", "TEXT", "the text itself")


def look(read: Callable[[], T]) -> T | None:
    """Call a verb that reads, before a verb that writes. Return None if a file is damaged, because the verb that writes
    will report the damage and keep a copy."""
    try:
        return read()
    except Damaged:
        return None


def read_text(options: Namespace) -> str:
    if (options.message is None) == (options.source is None):
        raise UsageError(
            "the text is given twice" if options.source else "the text is missing",
            hint="Give it with -m TEXT, or name a FILE, or - for standard input.",
        )
    return read_file(options.source) if options.message is None else str(options.message)


def reply_text(options: Namespace, text: str) -> CommandResult | None:
    """Print a note unchanged, even into a pipe, where agents read it. Return JSON or YAML only if that format was
    requested."""
    if options.format not in (None, "text"):
        return CommandResult({"name": options.name, "text": text})
    sys.stdout.write(printable(text) if sys.stdout.isatty() else text)
    return None
