"""Modules that are imported at their first use, so that a command that does not need them starts faster."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__all__ = ["http_client", "model_request", "np", "sqlite3", "tokenizers", "tree_sitter", "use_wal"]


class _Lazy:
    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        found = getattr(import_module(self._module), name)
        setattr(self, name, found)
        return found


if TYPE_CHECKING:
    import http.client as http_client
    import sqlite3

    import numpy as np
    import tokenizers
    import tree_sitter

    from rolecall.settings import model_request
    from rolecall.store.sqlite import use_wal
else:
    http_client, np, sqlite3 = _Lazy("http.client"), _Lazy("numpy"), _Lazy("sqlite3")
    tokenizers, tree_sitter = _Lazy("tokenizers"), _Lazy("tree_sitter")
    model_request = _Lazy("rolecall.settings.model_request")

    def use_wal(*args: Any, **options: Any) -> None:
        import_module("rolecall.store.sqlite").use_wal(*args, **options)
