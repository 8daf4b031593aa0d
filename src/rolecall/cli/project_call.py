"""What the commands on a project share: which project it is, and calling one of its tools."""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from typing import Any

from rolecall.cli.output import add_format
from rolecall.errors import Damaged, UsageError
from rolecall.nexus import dispatch, project_paths
from rolecall.settings import config


def add_project(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--project",
        metavar="DIR",
        help="the project's folder (default: the git work tree around this folder)",
    )
    add_format(parser)


def project_of(options: Namespace) -> str:
    if options.project is None:
        return project_paths.find(os.getcwd())
    if not os.path.isdir(options.project):
        raise UsageError(
            f"there is no folder {options.project!r}", hint="--project names the project's folder."
        )
    return str(os.path.abspath(options.project))


def call(options: Namespace, tool: str, **arguments: Any) -> dict[str, Any]:
    """The tool's reply."""
    for name, value in arguments.items():
        _check_text(name, value)
    return dispatch.call(project_of(options), tool, arguments, mask=config.mask)


def look(options: Namespace, tool: str) -> dict[str, Any]:
    """The reply of a tool that reads, called before one that writes; empty if a file cannot be read, because the
    writing tool reports that and keeps a copy."""
    try:
        return call(options, tool)
    except Damaged:
        return {}


def _check_text(name: str, value: Any) -> None:
    """Refuse bytes that are no text: what the system passes on in their place would be stored as half characters."""
    if isinstance(value, (list, dict)):
        for part in (*value, *value.values()) if isinstance(value, dict) else value:
            _check_text(name, part)
    elif isinstance(value, str):
        data = value.encode("utf-8", "surrogateescape")
        try:
            data.decode()
        except UnicodeDecodeError as exc:
            raise UsageError(
                f"{name} is not UTF-8: byte {exc.start} is {data[exc.start]:#04x}", hint="Give it as UTF-8."
            ) from None
