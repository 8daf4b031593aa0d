"""Modules that are imported when they are first used: reading a thread starts no event loop, and checking a workflow
opens no store."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any


class Module:
    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self._name), name)


def import_later(table: Mapping[str, str]) -> dict[str, Module]:
    """The modules of a table that has the names of modules by the package that they are in."""
    return {name: Module(package + name) for package, names in table.items() for name in names.split()}
