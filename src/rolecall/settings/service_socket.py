"""The socket of a home's service. It carries no work: a process that moves a thread records the move in the store, and
then pokes the service, so that the service looks at the store sooner."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rolecall.store.canonical import JsonObject

_PATIENCE = 10.0
_LONGEST_PATH = 100
"""The longest path, in bytes, to which it is safe to bind a socket; the system's limit is 108 or 104."""


def socket_path(home: str) -> str:
    return os.path.join(home, "service.sock")


def connect(home: str) -> socket.socket | None:
    """Connect to the service, or return None if no service is listening."""
    pipe = socket.socket(socket.AF_UNIX)
    pipe.settimeout(_PATIENCE)
    try:
        with short_path(socket_path(home)) as short:
            pipe.connect(short)
    except OSError:
        pipe.close()
        return None
    return pipe


def poke(home: str, thread: str = "") -> bool:
    """Make the service look at the store now, and return whether one is running."""
    pipe = connect(home)
    if pipe is None:
        return False
    with pipe, suppress(OSError):
        pipe.sendall(to_line({"do": "poke", "thread": thread}))
    return True


def to_line(words: JsonObject) -> bytes:
    return json.dumps(words).encode() + b"\n"


@contextmanager
def short_path(path: str) -> Iterator[str]:
    """Provide an alternative name for `path` that is short enough for a socket's address."""
    if len(os.fsencode(path)) <= _LONGEST_PATH or not os.path.isdir("/proc/self/fd"):
        yield path
        return
    folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{os.path.basename(path)}"
    finally:
        os.close(folder)
