"""Ports for tests that need the same one twice."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def held_port() -> Iterator[int]:
    """A port of 127.0.0.1 that nobody else gets meanwhile, also while nothing listens on it: the system gives none of
    these away by itself, and another test would hold it under the same name."""
    for port in random.sample(range(20_000, 30_000), 1_000):
        with socket.socket(socket.AF_UNIX) as name, socket.socket() as probe:
            try:
                name.bind(f"\0rolecall-tests-port-{port}")
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            probe.close()
            yield port
            return
    raise AssertionError("no port is free")
