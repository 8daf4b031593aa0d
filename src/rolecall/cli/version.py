"""`rolecall version`: print the version."""

from __future__ import annotations

from argparse import Namespace

from rolecall import __version__
from rolecall.cli import Verb
from rolecall.cli.output import add_format, show


def _version(options: Namespace) -> None:
    show(options, {"version": __version__}, lambda: f"rolecall {__version__}")


VERBS = {"": Verb(_version, "print the version", "rolecall version", add_format)}
