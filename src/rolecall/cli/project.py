"""Shared by commands on a project: find the project and call its tools."""

from __future__ import annotations

import sys
from argparse import Namespace
from typing import Any

from rolecall.cli import CommandResult, argument
from rolecall.cli.output import printable, read_file
from rolecall.errors import Damaged, UsageError
from rolecall.nexus import dispatch, project_paths
from rolecall.settings import config

PROJECT = argument("--project", "DIR", "the project's folder (default: the git work tree around this folder)")


SOURCE = argument("source", "FILE", "where the text is; - is standard input", nargs="?")
MESSAGE = argument("-m --message", "TEXT", "the text itself")


def project_of(options: Namespace) -> str:
    return project_paths.choose(options.project)


def call(options: Namespace, tool: str, **arguments: Any) -> dict[str, Any]:
    return dispatch.call(project_of(options), tool, arguments, mask=config.mask)


def look(options: Namespace, tool: str) -> dict[str, Any]:
    """Call a reading tool before a writing one; return an empty reply if a file is damaged, because the writing tool
    reports that and keeps a copy."""
    try:
        return call(options, tool)
    except Damaged:
        return {}


def read_text(options: Namespace) -> str:
    if (options.message is None) == (options.source is None):
        raise UsageError(
            "the text is given twice" if options.source else "the text is missing",
            hint="Give it with -m TEXT, or name a FILE, or - for standard input.",
        )
    return read_file(options.source) if options.message is None else str(options.message)


def reply_text(options: Namespace, text: str) -> CommandResult | None:
    """Print a note unchanged, even in a pipe, where agents read it; JSON or YAML only on request."""
    if options.format not in (None, "text"):
        return CommandResult({"name": options.name, "text": text})
    sys.stdout.write(printable(text) if sys.stdout.isatty() else text)
    return None
