"""Modules that a search imports when they are first used, so that commands that do not need them start faster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rolecall.store.lazy import Module

__all__ = ["http_client", "model_request", "np", "sqlite", "sqlite3", "tokenizers", "tree_sitter"]

if TYPE_CHECKING:
    import http.client as http_client
    import sqlite3

    import numpy as np
    import tokenizers
    import tree_sitter

    from rolecall.settings import model_request
    from rolecall.store import sqlite
else:
    http_client, np, sqlite3 = Module("http.client"), Module("numpy"), Module("sqlite3")
    tokenizers, tree_sitter = Module("tokenizers"), Module("tree_sitter")
    model_request, sqlite = Module("rolecall.settings.model_request"), Module("rolecall.store.sqlite")
