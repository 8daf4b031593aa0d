"""Nodes, and the ids of nodes and threads: Crockford base32, XXH64, and ids ordered by time. All functions are pure.

A node id is the XXH64 hash of the type id's 13 characters and the payload's canonical bytes. A thread id has 26
characters, the first ten of which encode the time, so sorting ids sorts threads by age.
"""

from __future__ import annotations

from typing import Any, NamedTuple, NewType

import xxhash

from rolecall.errors import UsageError

NodeId = NewType("NodeId", str)
ThreadId = NewType("ThreadId", str)

META = "CTS5P6RD8HMCS"
"""The id of the meta-schema, the only node that is its own type."""

ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
NODE_ID_LENGTH = 13
THREAD_ID_LENGTH = 26

# Python's `int(text, 32)` uses the digits 0-9A-V, so decoding takes one `translate` and one `int`.
_TO_BASE32 = str.maketrans(ALPHABET, "0123456789ABCDEFGHIJKLMNOPQRSTUV")
_DIGITS = frozenset(ALPHABET)
_PAIRS = [first + second for first in ALPHABET for second in ALPHABET]

# Ids written by the predecessor have the 48 time bits shifted left by two. Read as a plain time, they are above this
# limit (the year 2109), and plain ids are below it.
_SHIFTED_FROM_MS = 1 << 42


class Node(NamedTuple):
    id: str
    type: str
    payload: Any
    created: int


def node_id(type_id: str, data: bytes) -> str:
    """Return the id of a node, which depends only on the node's type and the canonical bytes of its payload. For a node
    that is its own type, such as the meta-schema, the type counts as empty."""
    return node_from_number(xxhash.xxh64_intdigest(type_id.encode("ascii") + data))


def is_id_of(node: str, type_id: str, data: bytes) -> bool:
    """Return whether `node` is the id of these bytes, either as a node of this type or as a node that is its own
    type."""
    prefix = b"" if node == type_id else type_id.encode("ascii", "replace")
    return node_from_number(xxhash.xxh64_intdigest(prefix + data)) == node


def is_node_id(text: str) -> bool:
    return len(text) == NODE_ID_LENGTH and _DIGITS.issuperset(text)


def node_number(node: str) -> int:
    """Return a node id as an integer, which needs a third of the memory."""
    return int(node.translate(_TO_BASE32), 32)


def node_from_number(number: int) -> str:
    # Take two characters at a time, unrolled, because a walk over a million nodes spends its time here.
    return (
        ALPHABET[number >> 60]
        + _PAIRS[number >> 50 & 1023]
        + _PAIRS[number >> 40 & 1023]
        + _PAIRS[number >> 30 & 1023]
        + _PAIRS[number >> 20 & 1023]
        + _PAIRS[number >> 10 & 1023]
        + _PAIRS[number & 1023]
    )


def thread_id(ms: int, randomness: bytes) -> str:
    """Return a thread id made from a time in milliseconds and ten random bytes."""
    if not 0 <= ms < _SHIFTED_FROM_MS or len(randomness) != 10:
        raise UsageError(f"a thread id needs a time below {_SHIFTED_FROM_MS} ms and 10 random bytes")
    number = (ms << 80) | int.from_bytes(randomness, "big")
    return "".join(_PAIRS[number >> shift & 1023] for shift in range(120, -1, -10))


def member_id(ms: int, number: int, source: str) -> str:
    """Return the id of a group's member, which depends only on the group's time and `source` and on the member's
    number. The ids of a group's members sort by number and begin with the same ten characters; their endings differ."""
    digest = xxhash.xxh64_digest(f"{source}/{number}".encode("ascii"))
    return thread_id(ms, number.to_bytes(3, "big") + digest[:7])


def is_thread_id(text: str) -> bool:
    return len(text) == THREAD_ID_LENGTH and _DIGITS.issuperset(text)


def thread_time(thread: str) -> int:
    """Return the time, in milliseconds, encoded in a thread id, in our form or in the predecessor's shifted form."""
    if not is_thread_id(thread):
        raise UsageError(
            f"{thread!r} is not a thread id",
            hint="A thread id has 26 characters of 0-9 and A-Z without I, L, O, U.",
        )
    ms = int(thread[:10].translate(_TO_BASE32), 32)
    return ms >> 2 if ms >= _SHIFTED_FROM_MS else ms
