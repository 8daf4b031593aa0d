"""Follow the recorded events of a thread and of the members of its groups."""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter

from rolecall.store.canonical import JsonObject
from rolecall.store.store import Store
from rolecall.threads.group import events_of
from rolecall.threads.state import read_thread
from rolecall.threads.thread import read_roster

_PAGE = 500

EventFields = tuple[int, str, JsonObject]
"""An event: its position among all events of the store, its kind and its body."""


def follow_events(store: Store, thread: str, *, members: bool) -> Iterator[tuple[str, JsonObject] | None]:
    """Yield the kind and the body of each recorded event, beginning with the first. Yield None whenever no new events
    have arrived. With `members`, events of group members are yielded as events of the kind `member`."""
    after, group = 0, None
    while True:
        own = store.events(thread, after=after, limit=_PAGE)
        found: list[EventFields] = []
        for event in own:
            after = event.seq
            found.append((event.seq, event.kind, event.body))
            if event.kind == "group":  # the events after this one are read together with those of the members
                break
        if group is not None:
            found += group.read()
        for _, kind, body in sorted(found, key=itemgetter(0)):
            yield kind, body
            if kind == "group" and members:
                group = _Members(store, thread, body["group"])
            elif kind == "step":
                group = None
        if not found:
            yield None


class _Members:
    """The events of a group's members. The cost of a call to `read` depends on the number of unfinished members, not on
    the size of the group or the store."""

    def __init__(self, store: Store, parent: str, roster: str) -> None:
        self._store = store
        self._parent = parent
        self._roster = read_roster(store, roster)
        self._next = 1
        """The lowest number of a member that has not been started yet."""
        self._open: dict[int, int] = {}
        """The sequence number of the last event read from each unfinished member, by the member's number."""

    def _id(self, number: int) -> str:
        return self._roster.member(self._parent, number)

    def read(self) -> Iterator[EventFields]:
        """Yield the events since the last call, member by member."""
        while self._next <= self._roster.size and read_thread(self._store, self._id(self._next)):
            self._open[self._next] = 0
            self._next += 1
        for number, after in list(self._open.items()):
            ident = self._id(number)
            events = self._store.events(ident, after=after)
            # The state is read after the events, so that it is not older than they are.
            ref = read_thread(self._store, ident) if events else None
            if ref is None:
                continue
            self._open[number] = events[-1].seq
            if ref.state.has_ended:
                events += self._store.events(ident, after=events[-1].seq)
                del self._open[number]
            for event in events:
                for kind, body in events_of(ref.state, event.kind, event.body):
                    wrapped = {"number": number, "thread": ident, "kind": kind, "body": body}
                    yield event.seq, "member", wrapped
