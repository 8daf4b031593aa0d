"""A module that is imported when it is first used, because importing it takes longer than many commands run."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

_COSTLY = "typing_extensions"
"""msgspec imports this where it is installed, and with it `inspect`; without it, msgspec takes `typing`."""


class Lazy:
    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        is_imported = _COSTLY in sys.modules
        if not is_imported:
            sys.modules[_COSTLY] = None  # type: ignore[assignment]
        try:
            value = getattr(import_module(self._name), attribute)
        finally:
            if not is_imported:
                del sys.modules[_COSTLY]
        setattr(self, attribute, value)
        return value
