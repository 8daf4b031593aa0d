"""The verbs for the inbox: every thread that needs a person, and work that could not be merged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import chain, islice
from typing import Any

from rolecall.api import Rolecall
from rolecall.errors import UsageError
from rolecall.threads.report import shorten
from rolecall.threads.view_types import ThreadEntry
from rolecall.web.questions import kind_of, read_instruction
from rolecall.web.threads import with_usage
from rolecall.web.verbs import Ask, get

_MOST = 200
_LONGEST = 400


def find_waiting(rolecall: Rolecall, problems: Mapping[str, str]) -> Iterator[ThreadEntry]:
    """Yield the entries that wait for a person. First come the threads that could not be run, with the reasons from
    `problems`; then waiting threads, newest first; then work that was set aside, whose entries have a `branch`."""

    def list_unrun() -> Iterator[ThreadEntry]:
        for ident, problem in problems.items():
            thread = rolecall.thread_if_any(ident)
            if thread is not None and thread.status in ("idle", "queued"):  # `waiting` lists crashed threads
                yield {**thread.entry(), "reason": problem}

    def set_aside() -> Iterator[ThreadEntry]:
        with suppress(UsageError):  # git is not installed
            yield from rolecall.set_aside()

    return chain(list_unrun(), rolecall.waiting(), set_aside())


@get(
    "/inbox",
    f"What waits for a person, at most {_MOST}: threads that could not be run, threads that wait, newest first, then "
    "work that could not be merged. `more` says whether there are others.",
)
def list_waiting(ask: Ask) -> Any:
    newest = ask.rolecall.newest_event()  # read first, so that the page misses no later event
    found = find_waiting(ask.rolecall, ask.problems)
    items = []
    for entry in islice(found, _MOST):
        thread = ask.rolecall.thread(entry["thread"])
        if "branch" in entry:
            kind: str | None = "conflict"
        elif entry["status"] in ("idle", "queued"):
            kind = "run"
        else:
            kind = kind_of(thread, entry["status"])
        asks = read_instruction(thread) if kind == "answer" else ""
        items.append({**with_usage(ask, entry), "kind": kind, "asks": shorten(asks, _LONGEST)})
    return {"items": items, "more": next(found, None) is not None, "lastEvent": newest}
