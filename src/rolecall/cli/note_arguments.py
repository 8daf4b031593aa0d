"""What `rolecall memory` and `rolecall rule` share: reading a text from the arguments, and printing one."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from typing import Any

from rolecall.cli.output import printable, read_file, read_input, show
from rolecall.errors import UsageError


def add_text(parser: ArgumentParser) -> None:
    parser.add_argument("source", nargs="?", metavar="FILE", help="where the text is; - is standard input")
    parser.add_argument("-m", "--message", metavar="TEXT", help="the text itself")


def text_of(options: Namespace) -> str:
    if (options.message is None) == (options.source is None):
        raise UsageError(
            "the text is given twice" if options.source else "there is no text",
            hint="Give it with -m TEXT, or name a FILE, or - for standard input.",
        )
    if options.message is not None:
        return str(options.message)
    return read_input("-") if options.source == "-" else read_file(options.source)


def print_text(options: Namespace, text: str, **more: Any) -> None:
    """A note as it is, also in a pipe, where agents read it; other forms only when they are asked for."""
    if options.format not in (None, "text"):
        show(options, {**more, "text": text})
    else:
        sys.stdout.write(printable(text) if sys.stdout.isatty() else text)
