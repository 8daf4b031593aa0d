"""Modules that are imported when they are first used, so that, for example, reading a thread imports no event loop and
checking a workflow imports no store. A module declares them at its top, next to the imports that a type checker reads:

    if TYPE_CHECKING:
        import shutil

        from rolecall.store import bundle
    else:
        shutil = Module("shutil")
        bundle = Module("rolecall.store.bundle")

A module that declares dozens of them uses a table and `import_later`.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # hooks do without `typing`, because importing it takes time
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
    """Return a `Module` for each module in a table. The table maps a package to the names of its modules."""
    return {name: Module(package + name) for package, names in table.items() for name in names.split()}
