"""Requests that created a thread. They prevent a repeated request, sent after a lost reply or a second press of a
button, from creating another thread.

The newest requests are kept in the ref `request/threads`, which moves in the transaction that creates the thread.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import NamedTuple

from rolecall.errors import Conflict
from rolecall.store.backend import Ref
from rolecall.store.store import Draft, Store
from rolecall.threads.lifecycle import Also
from rolecall.threads.state import ThreadRef, read_thread

REF = "request/threads"
_MOST = 200
"""The number of newest requests that are kept."""

Create = Callable[[Also | None], ThreadRef]
"""Creates a thread. The argument, if any, adds to the same transaction."""


class Request(NamedTuple):
    key: str
    """A key chosen by the caller. Each new thread needs a different key."""
    content: str
    """Everything that the request asks for. A repeated request has the same content."""


def create_once(store: Store, request: Request, also: Also | None, create: Create) -> ThreadRef:
    """Return the thread that `create` creates, together with `also`, or the thread that an earlier request with the
    same key created. Raise `Conflict` if the earlier request asked for something else."""
    key, content = map(_digest, request)
    while True:
        seen = store.ref(REF)
        if (made := find(store, request, seen)) is not None:
            return made

        def record(ident: str, draft: Draft, seen: Ref | None = seen) -> None:
            known = seen.state["newest"] if seen else ()
            others = [entry for entry in known if entry[0] != key]
            draft.move(REF, seen, state={"newest": [*others, [key, content, ident]][-_MOST:]})
            if also is not None:
                also(ident, draft)

        try:
            return create(record)
        except Conflict:
            there = store.ref(REF)
            if (there and there.version) == (seen and seen.version):
                raise  # another change caused the conflict


def find(store: Store, request: Request, seen: Ref | None) -> ThreadRef | None:
    """Return the thread that an earlier request with the same key created, or None. `seen` is the ref of all requests.
    Raise `Conflict` if that request asked for something else."""
    key, content = map(_digest, request)
    for one, asked, ident in seen.state["newest"] if seen else ():
        # A thread is removed if its folders cannot be made, so its request can be repeated.
        if one == key and (made := read_thread(store, ident)) is not None:
            if asked != content:
                raise Conflict(
                    f"another request with this key has created thread {made.id}",
                    hint="Use another key for another thread.",
                )
            return made
    return None


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()[:32]
