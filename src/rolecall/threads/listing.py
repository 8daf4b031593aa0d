"""Listing threads: filters, pages, the newest first, and a damaged one as damaged. Reads refs, and the head of
each thread that is listed."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from rolecall.errors import Damaged, NotFound
from rolecall.store.backend import Ref
from rolecall.store.ids import is_node_id, is_thread_id, node_from_number, thread_time
from rolecall.store.store import Store
from rolecall.threads import state, thread
from rolecall.threads.state import Status
from rolecall.threads.views import asking_role, damaged, entry

_BATCH = 500
_FIRST = 51
_OLD_FROM = "04"
"""Ids from here on are in the predecessor's form."""


class Filter(NamedTuple):
    statuses: frozenset[str]
    workflow: str | None
    since: int
    before: int | None
    words: tuple[str, ...]

    @property
    def where(self) -> dict[str, list[str]]:
        """What the store itself can sort out. A crashed thread is a running one whose process is gone; a
        damaged one has no status, and comes whatever is asked for."""
        kept = {"running" if status == "crashed" else status for status in self.statuses} - {Status.DAMAGED}
        wanted = {"status": sorted(kept)} if kept and not kept.issuperset(thread.STATUSES) else {}
        if self.workflow is not None:
            wanted["workflow" if is_node_id(self.workflow) else "name"] = [self.workflow]
        return wanted

    @property
    def is_for_damaged(self) -> bool:
        """Only damaged threads are asked for: any thread may be one, whatever its ref says."""
        return self.statuses == {Status.DAMAGED}

    def takes(self, found: Mapping[str, Any]) -> bool:
        if found["status"] not in self.statuses and not self.is_for_damaged:
            return False
        if found["status"] == Status.DAMAGED:
            return not self.words and self.workflow is None
        if self.workflow is not None and self.workflow not in (found["workflow"], found["name"]):
            return False
        text = " ".join(str(found[key] or "") for key in ("thread", "name", "title", "reason")).lower()
        return all(word in text for word in self.words)


def listed(store: Store, asked: Filter, *, page: str | None = None) -> Iterator[dict[str, Any]]:
    """Threads by the time of their start, newest first; `page` goes on after that thread.

    The predecessor's ids sort apart from ours, so the two bands are merged.
    """
    from heapq import merge

    if page is not None and not is_thread_id(page):
        page = thread.id_of(thread.find(store, page))
    highest = store.backend.names("thread/", limit=1)
    has_old = bool(highest) and highest[0] >= thread.ref_name(_OLD_FROM)
    bands = (
        _band(store, asked, is_old=is_old, below=_bounds(asked.before, page, is_old=is_old))
        for is_old in (False, True)[: 1 + has_old]
    )
    for found in merge(*bands, key=lambda found: -found["created"]):
        if found["created"] < asked.since:
            return
        if not asked.takes(found):
            continue
        seen = _with_head(store, found)
        if seen["status"] == Status.DAMAGED or not asked.is_for_damaged:
            yield seen


def _with_head(store: Store, found: dict[str, Any]) -> dict[str, Any]:
    """What the newest node adds: that it cannot be read, or which role waits."""
    if found["status"] == Status.DAMAGED:
        return found
    try:
        head = store.get(found["head"] or "").payload
    except (NotFound, Damaged) as error:
        return damaged(found, error)
    if found["status"] == "suspended" and not found["currentRole"]:
        return {**found, "currentRole": asking_role(head)}
    return found


def _bounds(before: int | None, page: str | None, *, is_old: bool) -> str:
    """The id below which a band begins."""
    bounds = ["~" if is_old else _OLD_FROM]
    if before is not None:
        bounds.append(_id_at(before, is_old=is_old))
    if page is not None:
        # Of one millisecond ours come first, so that a page ends at one place in both bands.
        same_band = (page >= _OLD_FROM) == is_old
        bounds.append(page if same_band else _id_at(thread_time(page) + is_old, is_old=is_old))
    return min(bounds)


def _id_at(ms: int, *, is_old: bool) -> str:
    """The lowest id of a moment: its first ten characters are the time, in the predecessor's form times four."""
    return node_from_number(ms << (12 if is_old else 10))[1:] + "0" * 14


def _band(store: Store, asked: Filter, *, is_old: bool, below: str) -> Iterator[dict[str, Any]]:
    before = thread.ref_name(below)
    floor = thread.ref_name(_OLD_FROM if is_old else "")
    size = _FIRST
    while True:
        batch = _refs(store, asked, before, size)
        for ref in batch:
            if ref.name < floor:
                return
            yield entry(store, state.load(ref))
        if len(batch) < size:
            return
        before, size = batch[-1].name, _BATCH


def _refs(store: Store, asked: Filter, before: str, limit: int) -> list[Ref]:
    """A page of threads. One whose state cannot be read comes as damaged instead of failing them all."""
    try:
        return store.refs("thread/", where=asked.where, before=before, newest_first=True, limit=limit)
    except Damaged:
        refs = (_ref_or_damage(store, name) for name in store.backend.names("thread/", before=before))
        return [ref for ref in refs if _fits(ref, asked.where)][:limit]


def _ref_or_damage(store: Store, name: str) -> Ref:
    try:
        return store.ref(name) or Ref(name, None, {"status": Status.DAMAGED, "reason": "it is gone"}, 0, 0)
    except Damaged as error:
        return Ref(name, None, {"status": Status.DAMAGED, "reason": error.message}, 0, 0)


def _fits(ref: Ref, where: Mapping[str, list[str]]) -> bool:
    stored = ref.state
    return stored.get("status") == Status.DAMAGED or all(
        stored.get(key) in values for key, values in where.items()
    )
