"""The ids of traces and spans, which are derived from ids that are known before an agent is asked.

An agent's process can therefore be told its span, and exporting a thread twice gives the same spans. A trace contains
everything that a thread has done, and the threads that play its roles. A span is one attempt at a step. The span is
identified by the thread, the head that the step extends, and the previous failed attempt.
"""

import xxhash

from rolecall.store.store import Store
from rolecall.threads.state import read_thread


def trace_id(store: Store, thread: str, parent: str | None) -> str:
    """Return the id of a thread's trace. A thread that plays a role belongs to the trace of the topmost thread above
    it."""
    while parent:
        above = read_thread(store, parent)
        thread, parent = parent, above.state.parent if above else None
    return xxhash.xxh3_128_hexdigest(f"trace/{thread}".encode())


def thread_span(thread: str) -> str:
    """Return the id of the span of a whole thread."""
    return xxhash.xxh3_64_hexdigest(f"thread/{thread}".encode())


def attempt_span(thread: str, head: str, previous: str | None) -> str:
    """Return the id of the span of an attempt, failed or not, after the node `head` and the failed attempt
    `previous`."""
    return xxhash.xxh3_64_hexdigest(f"attempt/{thread}/{head}/{previous or ''}".encode())


def group_span(thread: str, roster: str) -> str:
    """Return the id of the span of a group. The group's members can compute the same id from their roster."""
    return xxhash.xxh3_64_hexdigest(f"group/{thread}/{roster}".encode())


def part_span(span: str, part: str) -> str:
    """Return the id of the span of a part of an attempt, such as the third tool call."""
    return xxhash.xxh3_64_hexdigest(f"part/{span}/{part}".encode())


def traceparent(trace: str, span: str) -> str:
    """Return a span as the value of a `traceparent` header of the W3C Trace Context."""
    return f"00-{trace}-{span}-01"
