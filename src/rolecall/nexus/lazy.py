"""A module that is imported on first use, because importing it takes longer than many commands run."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any


class Lazy:
    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        _import_msgspec()
        value = getattr(import_module(self._name), attribute)
        setattr(self, attribute, value)
        return value


def _import_msgspec() -> None:
    """Import msgspec with the names of `typing`, which suffice.

    If typing_extensions is installed, msgspec takes them from there, which costs a command a fifth of its time. So it
    is hidden during the import, unless other threads are running, because one of them may be importing it.
    """
    costly, threading = "typing_extensions", sys.modules.get("threading")
    if costly in sys.modules or (threading and threading.active_count() > 1):
        return
    sys.modules[costly] = None  # type: ignore[assignment]
    try:
        import_module("msgspec")
    finally:
        del sys.modules[costly]
