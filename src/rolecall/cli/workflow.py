"""`rolecall workflow`."""

from __future__ import annotations

from rolecall.cli import Verb

VERBS: dict[str, Verb] = {}
