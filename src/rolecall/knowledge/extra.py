"""What the knowledge layer needs beside Rolecall itself, and the error for whoever has not installed it."""

from __future__ import annotations

from importlib.util import find_spec

from rolecall.errors import UsageError

_PACKAGES = ("numpy", "tokenizers", "tree_sitter")


def check_installed() -> None:
    missing = [name for name in _PACKAGES if find_spec(name) is None]
    if missing:
        raise UsageError(
            f"knowledge needs packages that are not installed: {', '.join(missing)}",
            hint="`pip install 'rolecall[knowledge]'`: the embedded model comes with it.",
        )
