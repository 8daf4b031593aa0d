"""Follow the events of a store, and send each step to a collector when it is committed.

The position is the ref `traces/<collector>`, so a service that starts again, or another machine, continues where the
last one stopped. The position moves after the collector has accepted the spans. While the collector is unreachable, no
spans are lost, because they are made from the store. After a crash, some spans are sent twice, which is harmless
because their ids stay the same.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

import xxhash

from rolecall.errors import Conflict, Damaged, NotFound, RolecallError
from rolecall.settings.mask import Mask
from rolecall.settings.settings import Collector
from rolecall.store.backend import StoredEvent
from rolecall.store.store import Store
from rolecall.threads.state import ENDED
from rolecall.threads.thread import PERSON, find
from rolecall.traces.otlp import send
from rolecall.traces.spans import Projection, Span

_PAGE = 500
_CLAIM_MS = 60_000
"""Milliseconds for which one machine keeps the task of sending before another machine can take over."""
_LOOK = 1.0
"""Seconds between two checks of the store."""
_LONGEST_PAUSE = 60.0
"""The maximum number of seconds between two attempts while the collector or the store is unreachable."""


class Follower:
    def __init__(self, store: Store, collector: Collector, mask: Mask, say: Callable[[str], None]) -> None:
        """`say` is called with a sentence about each new problem, and with an empty string when the problem is over."""
        self._store = store
        self._collector = collector
        self._mask = mask
        self._say = say
        self._problem = ""
        self._name = f"traces/{xxhash.xxh3_64_hexdigest(collector.url.encode())}"
        self._me = os.urandom(8).hex()

    def run(self, stop: threading.Event) -> None:
        """Send commits until `stop` is set. Retry sends that fail."""
        pause = 0.0
        while not stop.wait(pause):
            try:
                pause = 0.0 if self.look() else _LOOK
                self._note("")
            except RolecallError as error:
                pause = min(max(_LOOK, 2 * pause), _LONGEST_PAUSE)
                self._note(f"{error.message}; it is tried again, and nothing is lost")

    def _note(self, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            self._say(problem)

    def look(self) -> bool:
        """Send the spans for the next page of events. Return whether there might be more."""
        ref = self._store.ref(self._name)
        if ref is None:  # earlier commits can be exported with `rolecall trace export`
            with suppress(Conflict):
                self._store.move(self._name, None, state={"seq": self._store.newest_event()})
            return False
        now, holder = self._store.now(), ref.state.get("by", self._me)
        if holder != self._me and now < ref.state["until"] <= now + _CLAIM_MS:
            return False
        found = self._store.events(after=ref.state["seq"], limit=_PAGE)
        if not found:
            return False
        with suppress(Conflict):  # another machine was faster
            if self._store.is_shared:
                claim = {"seq": ref.state["seq"], "by": self._me, "until": now + _CLAIM_MS}
                ref = self._store.move(self._name, ref, state=claim, durable=False)
            sent = send(
                self._project(found),
                self._collector,
                leave_out=lambda error: self._note(f"{error}; these spans are left out"),
            )
            if sent.rejected:
                self._note(f"the collector did not take {sent.rejected} of {sent.spans} spans: {sent.reason}")
            self._store.move(self._name, ref, state={"seq": found[-1].seq})
        return len(found) == _PAGE

    def _project(self, found: Sequence[StoredEvent]) -> Iterator[Span]:
        projection = Projection(self._store, self._mask, content=self._collector.content)
        seen = set[str]()  # the service records the end of a thread a second time
        for event in found:
            if event.kind not in ("step", "attempt_failed", *ENDED):
                continue
            try:
                for span in self._read(projection, event):
                    if span.id not in seen:
                        seen.add(span.id)
                        yield span
            except NotFound:
                pass  # the thread or step has been deleted
            except Damaged as error:
                self._note(f"a span is left out: {error.message}")

    def _read(self, projection: Projection, event: StoredEvent) -> list[Span]:
        ref, spans = find(self._store, event.stream), list[Span]()
        if event.kind == "step":
            # A person's message is a step without an event of its own.
            before = self._store.get(event.body["step"]).payload["prev"]
            while before and (step := self._store.get(before).payload)["role"] == PERSON:
                spans += projection.record(ref, before)
                before = step["prev"]
        if event.kind in ("step", "attempt_failed"):
            spans += projection.record(ref, event.body["step" if event.kind == "step" else "attempt"])
        is_end = event.kind in ENDED or (event.kind == "step" and event.body["status"] in ENDED)
        if is_end and not ref.state.member:
            spans.append(projection.top(ref))
        return spans
