"""Search the texts of threads, newest thread first, for as long as the caller allows."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import suppress
from time import monotonic
from typing import NamedTuple, TypedDict

from rolecall.errors import Damaged, NotFound
from rolecall.store.store import Store
from rolecall.threads import listing
from rolecall.threads.thread import PERSON, Chain
from rolecall.threads.view_types import ThreadEntry

_AROUND = 120
"""The number of characters shown on each side of a match."""


class TextMatch(TypedDict):
    """The passage in which the words were found."""

    step: str | None
    """The id of the step with the answer, or None if the words were found in the task."""
    number: int
    text: str


class FoundThread(ThreadEntry):
    """A thread in which words were found."""

    hit: TextMatch


class SearchPage(NamedTuple):
    found: Sequence[FoundThread] = ()
    """The entries of the threads that were found, each with the matching passage as `hit`."""
    searched: int = 0
    until: int | None = None
    """When the newest thread that was not searched was started, or None if all were searched."""
    next: str | None = None
    """The thread after which the search continues, or None if all were searched."""


def search(
    store: Store, text: str, *, asked: listing.Filter, after: str | None, max: int, seconds: float
) -> SearchPage:
    """Find threads whose task, or one of whose answers, contains all words of `text`, with the first such passage of
    each thread. Stop when `max` threads are found or `seconds` have passed."""
    words = text.lower().split()
    until, count, last = monotonic() + seconds, 0, after
    found: list[FoundThread] = []
    for entry in listing.list_threads(store, asked, page=after):
        if len(found) == max or monotonic() > until:
            return SearchPage(found, count, entry["created"], last)
        count, last = count + 1, entry["thread"]
        hit = _find(store, entry, words) if entry["head"] and entry["status"] != "damaged" else None
        if hit is not None:
            found.append({**entry, "hit": hit})
    return SearchPage(found, count)


def _find(store: Store, entry: ThreadEntry, words: list[str]) -> TextMatch | None:
    with suppress(NotFound, Damaged):
        chain = Chain(store, entry["head"] or "")
        newest = chain.number
        answers = (
            (
                step.id,
                newest - place,
                str(step.output.get("answer", "")) if step.role == PERSON else step.body,
            )
            for place, step in enumerate(chain)
        )
        for step, number, text in itertools.chain([(None, 0, chain.start.prompt)], answers):
            low = text.lower()
            if all(word in low for word in words):
                at = low.find(words[0]) if words else 0
                return {"step": step, "number": number, "text": text[max(0, at - _AROUND) : at + _AROUND]}
    return None
