"""The writing child of the fault tests, and what it writes: the tests know every byte to expect.

    python writer.py batches NAME STOP ADDRESS...   write batch after batch, say each number once it is committed
    python writer.py paced NAME FIRST ADDRESS...    write FIRST batches at once, then fifty a second
    python writer.py create STOP ADDRESS...         make a store
    python writer.py race NAME WINS ADDRESS...      move one ref among rivals until WINS moves were ours

STOP is a number from 0 to 1: the child kills itself that far through the calls that a batch takes, or
not at all at 1. ADDRESS is `sqlite FILE`, `files FOLDER` or `postgres URL SCHEMA`.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
import time
from collections.abc import Callable
from typing import Any

from rolecall.errors import Conflict
from rolecall.store.backend import Backend, Change, NewEvent, Ref
from rolecall.store.store import BUILTIN, Store

Address = list[str]

HEAD = "thread/06GZZZZZZZ0123456789ABCDEF"
LINK = {
    "title": "link",
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "number": {"type": "integer"},
        "before": {"anyOf": [{"type": "string", "format": "ocas_ref"}, {"type": "null"}]},
        "parts": {"type": "array", "items": {"type": "string", "format": "ocas_ref"}},
    },
    "required": ["name", "number", "before", "parts"],
}


def connect(address: Address, *, create: bool = True) -> Store:
    return Store(_backend(address, create=create))


def _backend(address: Address, *, create: bool) -> Backend:
    if address[0] == "sqlite":
        from rolecall.store.sqlite import SqliteBackend

        return SqliteBackend(address[1], create=create)
    if address[0] == "files":
        from rolecall.store.files import FilesBackend

        return FilesBackend(address[1], create=create)
    from rolecall.store.postgres import PostgresBackend

    return PostgresBackend(address[1], create=create, schema=address[2])


# -- what is written --


def parts(name: str, number: int) -> list[str]:
    """The texts of one batch; one of them is longer than a page of any database."""
    return [f"{name} {number} short", f"{name} {number} long " + f"{number:09d}" * 700]


def write(store: Store, name: str, ref: Ref | None) -> Ref:
    """The next batch after `ref`: its nodes, the move of the head and an event, in one commit."""
    number = ref.version + 1 if ref else 1
    draft = store.draft()
    texts = [draft.put(BUILTIN["string"], text) for text in parts(name, number)]
    head = draft.put_as(
        LINK, {"name": name, "number": number, "before": ref.target if ref else None, "parts": texts}
    )
    draft.move(HEAD, ref, head, {"status": "running", "number": number})
    draft.event("writes", "batch", {"number": number, "head": head})
    (moved,) = draft.commit()
    return moved


def write_batches(store: Store, name: str) -> None:
    ref = store.ref(HEAD)
    while True:
        ref = write(store, name, ref)
        say(ref.version)


def write_paced(store: Store, name: str, first: int) -> None:
    """Write `first` batches, then as many more as each line of the standard input asks for, a little apart."""
    ref = None
    for _ in range(first):
        ref = write(store, name, ref)
    for line in sys.stdin:
        for _ in range(int(line)):
            ref = write(store, name, ref)
            say(ref.version)
            time.sleep(0.02)


def race(store: Store, name: str, wins: int) -> None:
    """Move the head `wins` times, each time against everybody else; garbage is put in between."""
    won = 0
    while won < wins:
        try:
            moved = write(store, name, store.ref(HEAD))
        except Conflict:
            store.put_text("what several put and nobody keeps")
            continue
        won += 1
        store.put_text(f"{name} {moved.version} kept by nobody")
        say(moved.version)


def say(number: int, write: Callable[[int, bytes], int] = os.write) -> None:
    write(1, b"%d\n" % number)


# -- dying --


class Fuse:
    """Counts the calls of a first run, then kills this process at a part of as many in a second."""

    def __init__(self, part: float) -> None:
        self._part = part
        self._calls = 0
        self._last = -1

    def light(self) -> None:
        self._last = max(1, round(self._calls * self._part))
        self._calls = 0

    def burn(self, *_: object) -> int:
        self._calls += 1
        if self._calls == self._last:
            os.kill(os.getpid(), signal.SIGKILL)
        return 0

    def around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def burning(*args: Any, **options: Any) -> Any:
            self.burn()
            result = call(*args, **options)
            self.burn()
            return result

        return burning

    def around_write(self, call: Callable[..., int]) -> Callable[..., int]:
        """A write that may be cut off in its middle."""

        def burning(file: int, data: bytes) -> int:
            half = call(file, bytes(data)[: len(data) // 2]) if len(data) > 1 else 0
            self.burn()
            return half + call(file, bytes(data)[half:])

        return burning

    def lay(self, store: Store, kind: str) -> None:
        """Below the backend, at the smallest steps that can be seen from here."""
        if kind == "sqlite":
            connection(store).set_progress_handler(self.burn, 1)
        elif kind == "files":
            for name in ("replace", "rename", "fsync", "unlink", "utime", "ftruncate", "mkdir"):
                setattr(os, name, self.around(getattr(os, name)))
            os.write = self.around_write(os.write)
        else:
            import psycopg

            for name in ("execute", "executemany"):
                setattr(psycopg.Cursor, name, self.around(getattr(psycopg.Cursor, name)))


def connection(store: Store) -> sqlite3.Connection:
    with store.backend.exclusive():  # the first write makes the file
        pass
    found: sqlite3.Connection = vars(store.backend)["_connection"]
    return found


def write_until_killed(address: Address, name: str, part: float) -> None:
    store = connect(address)
    if address[0] == "sqlite":
        # Folding the log back after every commit puts that among the things to die in.
        connection(store).execute("PRAGMA wal_autocheckpoint = 1")
    if part >= 1:
        write_batches(store, name)
    # The first batch registers types, which the later ones need not.
    say(write(store, name, store.ref(HEAD)).version)
    fuse = Fuse(part)
    fuse.lay(store, address[0])
    say(write(store, name, store.ref(HEAD)).version)
    fuse.light()
    write_batches(store, name)


def create_until_killed(address: Address, part: float) -> None:
    """Every call and return of the interpreter is a place to die: the connection is not ours to watch yet."""
    fuse = Fuse(part)
    make([*address[:-1], f"{address[-1]}_rehearsal"])
    sys.setprofile(fuse.burn)
    make([*address[:-1], f"{address[-1]}_counted"])
    fuse.light()
    make(address)


def make(address: Address) -> None:
    """Just the store: what comes before its first write takes a hundred times as many calls."""
    _backend(address, create=True).commit(Change(events=[NewEvent("made", "now", {})]), now=1, durable=True)


def main(task: str, *args: str) -> None:
    if task == "batches":
        write_until_killed(list(args[2:]), args[0], float(args[1]))
    elif task == "create":
        create_until_killed(list(args[1:]), float(args[0]))
    elif task == "paced":
        with connect(list(args[2:])) as store:
            write_paced(store, args[0], int(args[1]))
    else:
        with connect(list(args[2:])) as store:
            race(store, args[0], int(args[1]))


if __name__ == "__main__":
    main(*sys.argv[1:])
