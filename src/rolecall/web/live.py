"""Live events: the events that any process records in the store, sent to every open page as server-sent events.

One Python thread reads new events; it runs only while at least one stream is open. Every page receives the events that
change the state of a thread, but an agent's messages and actions are sent only to pages that show the agent's thread. A
page that reconnects names the number of the last event it saw, and continues after that event.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from contextlib import suppress
from time import monotonic, perf_counter, sleep
from typing import TYPE_CHECKING, Any, NamedTuple

from rolecall.api import Rolecall
from rolecall.errors import RolecallError

if TYPE_CHECKING:
    from rolecall.store.backend import StoredEvent

_LEAST = 0.05
"""The minimum number of seconds between two looks at the store."""
_SHARE = 50
"""The pause after a look is this many times as long as the look, within the limits `_LEAST` and `_MOST`. Looking
therefore seldom takes more than 2 % of a core."""
_MOST = 1.0
"""The longest pause, in seconds."""
_PAGE = 500
_MOST_QUEUED = 500
_MOST_REPLAYED = 20_000
"""The maximum number of missed events that are sent to a page. A page that missed more events reloads everything."""
_GLANCE = 2.0
"""Seconds between two checks that the processes of running threads are alive."""
_BEAT = 20.0
"""Seconds between keep-alive messages on a silent stream, which reveal a dead connection."""
_RECENT = 30.0
"""Seconds for which a notice is repeated to streams that continue, because their pages might have read their data
before the notice."""
_INNER = frozenset({"text", "tool_call", "usage", "session", "process", "permission", "remark"})
"""Kinds of events that are sent only to pages about the thread."""
_KEPT = (
    "role", "agent", "number", "status", "next", "reason", "step", "name", "thread", "count", "error", "until",
)  # fmt: skip
_LONGEST = 400


class _Frame(NamedTuple):
    seq: int
    """The number of the event, or 0 for a notice, which is not in the store."""
    thread: str
    whole: bytes
    brief: bytes | None


class PageStream:
    """The stream of events to one page. It contains every event of `threads`, and from other threads only events that
    change their state."""

    def __init__(self, threads: Collection[str], is_allowed: Callable[[], bool]) -> None:
        """`is_allowed` returns whether the page's browser is still signed in."""
        self.threads = frozenset(threads)
        self.is_allowed = is_allowed
        self.frames: asyncio.Queue[bytes | None] = asyncio.Queue()

    def choose(self, frame: _Frame) -> bytes | None:
        return frame.whole if frame.thread in self.threads else frame.brief

    def offer(self, frames: list[_Frame]) -> None:
        if data := b"".join(filter(None, map(self.choose, frames))):
            # A page that does not read is disconnected. It then reconnects with the number of its last event.
            self.frames.put_nowait(data if self.frames.qsize() < _MOST_QUEUED else None)


class LiveEvents:
    def __init__(self, open_store: Callable[[], Rolecall], watched: Iterable[str] = ()) -> None:
        """`watched` are folders whose changes are announced as notices of the kind `project`."""
        self._open_store = open_store
        self._watched = tuple(watched)
        self._seen = self._stamps()
        self._notices: list[tuple[float, _Frame]] = []
        """Recent notices, each with the time when it expires."""
        self._streams: set[PageStream] = set()
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._position: asyncio.Future[int] | None = None
        """The number of the last event that was given to the streams."""

    async def join(self, stream: PageStream, *, missed: bool) -> int:
        """Add a stream, and return a number: the stream receives every event after this number. If the stream might
        have `missed` recent notices, it receives them too."""
        self._loop = asyncio.get_running_loop()
        with self._lock:
            self._streams.add(stream)
            if missed:
                stream.offer([frame for until, frame in self._notices if until > monotonic()])
            if self._position is None:
                self._position = self._loop.create_future()
                threading.Thread(target=self._follow, args=(self._loop,), name="live", daemon=True).start()
            position = self._position
        return await asyncio.shield(position)

    def leave(self, stream: PageStream) -> None:
        with self._lock:
            self._streams.discard(stream)

    def close(self) -> None:
        """End every stream."""
        for stream in self._streams:
            stream.frames.put_nowait(None)

    def end_refused(self) -> None:
        """End the streams of browsers that are no longer signed in."""
        for stream in self._streams:
            if not stream.is_allowed():
                stream.frames.put_nowait(None)

    def notify(self, kind: str, **fields: Any) -> None:
        """Send a notice, which is not an event of the store, to every page. This can be called in any Python thread."""
        data = _encode(0, kind=kind, **fields)
        frame, now = _Frame(0, fields.get("thread", ""), data, data), monotonic()
        with self._lock:
            others = [one for one in self._notices if one[0] > now and one[1] != frame]
            self._notices = [*others, (now + _RECENT, frame)]
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._publish, [frame], None)

    # -- the Python thread --

    def _follow(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            self._read(loop)
        except Exception as error:  # after any error, pages reconnect and try again
            loop.call_soon_threadsafe(self._fail, error)

    def _fail(self, error: Exception) -> None:
        with self._lock:
            position, self._position = self._position, None
        if position is not None and not position.done():
            position.set_exception(error)
        self.close()

    def _read(self, loop: asyncio.AbstractEventLoop) -> None:
        with self._open_store() as rolecall:
            after = rolecall.newest_event()
            loop.call_soon_threadsafe(self._publish, [], after)
            # A thread that a page shows as running might have crashed since.
            entries = rolecall.entries(status=("running", "crashed"), members=True)
            running: set[str] = {entry["thread"] for entry in entries}
            look_at = monotonic()
            while True:
                with self._lock:
                    if not self._streams:
                        self._position = None
                        return
                began = perf_counter()
                found: list[StoredEvent] = []
                # If the store is busy or unreachable, the next look finds the events.
                with suppress(RolecallError):
                    found = rolecall.events(after=after, max=_PAGE)
                if found:
                    after = found[-1].seq
                    loop.call_soon_threadsafe(self._publish, [_frame(event) for event in found], after)
                took = perf_counter() - began
                if begun := {event.stream for event in found if event.kind == "step_started"}:
                    running |= begun
                    with self._lock:
                        self._notices = [one for one in self._notices if one[1].thread not in begun]
                if monotonic() >= look_at:
                    running -= self._find_stopped(rolecall, running)
                    look_at = monotonic() + _GLANCE
                if (now := self._stamps()) != self._seen:
                    self._seen = now
                    self.notify("project")
                if len(found) < _PAGE:
                    sleep(min(_MOST, max(_LEAST, _SHARE * took)))

    def _find_stopped(self, rolecall: Rolecall, running: Collection[str]) -> set[str]:
        """Return the threads that no longer run. A killed process records nothing, so its thread is announced as
        crashed."""
        stopped = set()
        for ident in running:
            with suppress(RolecallError):
                status = rolecall.thread(ident).status
                if status == "crashed":
                    self.notify("crashed", thread=ident)
                if status != "running":
                    stopped.add(ident)
        return stopped

    def _stamps(self) -> list[int]:
        found = []
        for path in self._watched:
            with suppress(OSError):
                found.append(os.stat(path).st_mtime_ns)
        return found

    def _publish(self, frames: list[_Frame], position: int | None) -> None:
        if position is not None and self._position is not None:
            if self._position.done():
                self._position = asyncio.get_running_loop().create_future()
            self._position.set_result(position)
        for stream in tuple(self._streams):
            stream.offer(frames)


async def frames_of(
    live: LiveEvents, stream: PageStream, after: int | None, read: Callable[[int], Any]
) -> AsyncIterator[bytes]:
    """Yield the bytes of a stream: first the events since `after`, then each event as it happens. `read` returns an
    awaitable of the events after a number."""
    position = await live.join(stream, missed=after is not None)
    try:
        is_behind = after is not None and after < position
        # While events are missing, no number is sent, so that a page that reconnects now does not skip these events.
        yield b"retry: 1000\n\n" + _encode(0 if is_behind else position, kind="hello")
        if after is not None and is_behind:
            if position - after > _MOST_REPLAYED:
                yield _encode(position, kind="reset")
                after = position
            while after < position:
                found = await read(after)
                if not found:
                    break
                missed = [_frame(event) for event in found if event.seq <= position]
                if data := b"".join(filter(None, map(stream.choose, missed))):
                    yield data
                after = found[-1].seq
        while True:
            try:
                fresh = await asyncio.wait_for(stream.frames.get(), _BEAT)
            except TimeoutError:
                fresh = b": \n\n"
            if fresh is None or not stream.is_allowed():  # the browser was signed out, or its cookie expired
                return
            yield fresh
    finally:
        live.leave(stream)


def _frame(event: StoredEvent) -> _Frame:
    head = {"thread": event.stream, "kind": event.kind, "at": event.at, "seq": event.seq}
    whole = _encode(event.seq, **head, body=event.body)
    if event.kind in _INNER:
        return _Frame(event.seq, event.stream, whole, None)
    body = {key: event.body[key] for key in _KEPT if key in event.body}
    if len(str(body.get("reason", ""))) > _LONGEST:
        body["reason"] = str(body["reason"])[:_LONGEST] + "…"
    return _Frame(event.seq, event.stream, whole, _encode(event.seq, **head, body=body))


def _encode(number: int, /, **fields: Any) -> bytes:
    """Return an event in the form that is sent to pages. An event that is not in the store has no number."""
    head = f"id: {number}\n" if number else ""
    return f"{head}data: {json.dumps(fields, separators=(',', ':'))}\n\n".encode()
