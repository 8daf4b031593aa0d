"""Modules that are imported when they are first used: reading a thread starts no event loop, and checking a workflow
opens no store. A module declares them at its top, beside the imports that a type checker reads:

    if TYPE_CHECKING:
        import shutil

        from rolecall.store import bundle
    else:
        shutil = Module("shutil")
        bundle = Module("rolecall.store.bundle")
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # hooks do without `typing`
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any


class Module:
    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name == "_module":
            __import__(self._name)
            self._module = sys.modules[self._name]
            return self._module
        return getattr(self._module, name)


def import_later(table: Mapping[str, str]) -> dict[str, Module]:
    """The modules of a table that has the names of modules by the package that they are in."""
    return {name: Module(package + name) for package, names in table.items() for name in names.split()}
