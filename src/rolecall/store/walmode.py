"""Switching an SQLite database to WAL, also while another process makes the same database."""

from __future__ import annotations

import sqlite3
import time


def switch(db: sqlite3.Connection, *, patience: float) -> None:
    """Wait up to `patience` seconds for a lock: SQLite does not do so here, but says at once that it is locked."""
    until = time.monotonic() + patience
    while True:
        try:
            db.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as exc:
            if exc.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                raise
            time.sleep(0.01)
