"""List threads, newest first, with filters and pages. A damaged thread is listed as damaged. Listing reads only refs
and the head of each listed thread. This module is on the command line's read path."""

from collections.abc import Callable, Iterator, Sequence
from heapq import merge
from typing import TYPE_CHECKING, NamedTuple

from rolecall.errors import Damaged, NotFound
from rolecall.store.backend import Ref
from rolecall.store.ids import is_node_id, is_thread_id, node_from_number, thread_time
from rolecall.store.store import Store
from rolecall.threads import thread
from rolecall.threads.state import STATUSES, Status, ThreadRef, load
from rolecall.threads.views import asking_role, describe_damage, entry

if TYPE_CHECKING:
    from rolecall.threads.view_types import ThreadEntry

_BATCH = 500
_FIRST = 51
_OLD_FROM = "04"
"""Ids that sort at or after this text are in the predecessor's form."""


class Filter(NamedTuple):
    statuses: frozenset[str]
    workflow: str | None
    since: int
    before: int | None
    words: tuple[str, ...]
    members: bool = False

    @property
    def where(self) -> dict[str, list[str]]:
        """The part of the filter that the store can apply. A crashed thread is stored as running. A damaged thread has
        no status and is always included."""
        kept = {"running" if status == "crashed" else status for status in self.statuses} - {Status.DAMAGED}
        wanted = {"status": sorted(kept)} if kept and not kept.issuperset(STATUSES) else {}
        if self.workflow is not None:
            wanted["workflow" if is_node_id(self.workflow) else "name"] = [self.workflow]
        return wanted

    @property
    def is_for_damaged(self) -> bool:
        """Whether only damaged threads are wanted. A thread with any stored status can be damaged."""
        return self.statuses == {Status.DAMAGED}

    def takes(self, found: "ThreadEntry") -> bool:
        if found["status"] not in self.statuses and not self.is_for_damaged:
            return False
        if found["status"] == Status.DAMAGED:
            return not self.words and self.workflow is None
        if self.workflow is not None and self.workflow not in (found["workflow"], found["name"]):
            return False
        words = (found["thread"], found["name"], found["title"], found["reason"])
        text = " ".join(filter(None, words)).lower()
        return all(word in text for word in self.words)


def list_threads(
    store: Store, asked: Filter, *, page: str | None = None, look: Callable[[str], bool] | None = None
) -> "Iterator[ThreadEntry]":
    """Yield threads by start time, newest first, beginning after the thread `page`. The predecessor's ids sort apart
    from Rolecall's, so two ranges of ids are merged. `look` is called with the id of each thread before the filter is
    applied, and ends the list by returning False."""
    if page is not None and not is_thread_id(page):
        page = thread.find(store, page).id
    highest = store.backend.names("thread/", limit=1)
    has_old = bool(highest) and highest[0] >= thread.ref_name(_OLD_FROM)
    bands = [_band(store, asked, page, is_old=is_old) for is_old in (False, True)[: 1 + has_old]]
    for found in merge(*bands, key=lambda found: -found["created"]):
        if found["created"] < asked.since:
            return
        if look is not None and not look(found["thread"]):
            return
        if ("member" in found and not asked.members) or not asked.takes(found):
            continue
        if found["status"] != Status.DAMAGED:
            # Reading the head shows whether the chain can be read, and which role is waiting.
            try:
                head = store.get(found["head"] or "").payload
                if found["status"] == Status.SUSPENDED and not found["currentRole"]:
                    found["currentRole"] = asking_role(head)
            except (NotFound, Damaged) as error:
                found = describe_damage(found, error)
        if found["status"] == Status.DAMAGED or not asked.is_for_damaged:
            yield found


def find_latest(store: Store, folders: Sequence[str], *, is_waiting: bool = False) -> ThreadRef | None:
    """Return the newest thread with one of these work folders, except threads that play a role of another thread. With
    `is_waiting`, return the newest such thread that is suspended or waits for a usage limit to end."""
    before, where = thread.ref_name(_OLD_FROM), {"cwd": folders}
    if is_waiting:
        where["status"] = [Status.SUSPENDED, Status.IDLE, Status.QUEUED]
    while batch := store.refs("thread/", where=where, before=before, newest_first=True, limit=_FIRST):
        for ref in batch:
            waits = ref.state.get("status") == Status.SUSPENDED or "until" in ref.state
            if not ref.state.get("parent") and (waits or not is_waiting):
                return load(ref)
        before = batch[-1].name
    return None


def _band(store: Store, asked: Filter, page: str | None, *, is_old: bool) -> "Iterator[ThreadEntry]":
    bounds = ["~" if is_old else _OLD_FROM]
    if asked.before is not None:
        bounds.append(_lowest_id(asked.before, is_old=is_old))
    if page is not None:
        # Within the same millisecond, Rolecall's ids come first, so that a page ends at the same place in both ranges.
        same_band = (page >= _OLD_FROM) == is_old
        bounds.append(page if same_band else _lowest_id(thread_time(page) + is_old, is_old=is_old))
    before, floor = thread.ref_name(min(bounds)), thread.ref_name(_OLD_FROM if is_old else "")
    size = _FIRST
    while True:
        batch = _read_page(store, asked, before, size)
        for ref in batch:
            if ref.name < floor:
                return
            try:
                known = load(ref)
            except Damaged as error:
                known = load(_damaged_ref(ref.name, error))
            yield entry(store, known)
        if len(batch) < size:
            return
        before, size = batch[-1].name, _BATCH


def _lowest_id(ms: int, *, is_old: bool) -> str:
    """Return the lowest id for a time. The first ten characters of an id encode the time, which is multiplied by four
    in the predecessor's form."""
    return node_from_number(ms << (12 if is_old else 10))[1:] + "0" * 14


def _read_page(store: Store, asked: Filter, before: str, limit: int) -> list[Ref]:
    """Read a page of threads. A thread whose state cannot be read is returned as damaged."""
    where = asked.where
    try:
        return store.refs("thread/", where=where, before=before, newest_first=True, limit=limit)
    except Damaged:
        pass
    found: list[Ref] = []
    for name in store.backend.names("thread/", before=before):
        try:
            ref = store.ref(name)
            if ref is None or any(ref.state.get(key) not in values for key, values in where.items()):
                continue
        except Damaged as error:
            ref = _damaged_ref(name, error)
        found.append(ref)
        if len(found) == limit:
            break
    return found


def _damaged_ref(name: str, error: Damaged) -> Ref:
    return Ref(name, None, {"status": Status.DAMAGED, "reason": error.message}, 0, 0)
