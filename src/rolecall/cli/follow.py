"""Follow threads that the service runs, or run threads in this process one at a time."""

from __future__ import annotations

import asyncio
import sys
from argparse import Namespace
from collections.abc import Callable, Iterable
from functools import partial
from time import monotonic

from rolecall.api import Thread
from rolecall.cli.arguments import in_this_store, omit_latest
from rolecall.cli.output import LastLine, tell
from rolecall.cli.thread_outcome import CODES, INTERRUPTED, show_state
from rolecall.cli.thread_play import Stopped, View, leave, run_attended, take_steps, view_of
from rolecall.service import control
from rolecall.settings import config

_PATIENCE = 1.0
"""Seconds between checks of the store if no message arrives."""
_SERVICE_CHECK = 5.0
"""Seconds between checks for a service while this process is not connected to one."""


def follow(options: Namespace, thread: Thread) -> int:
    """Show a thread that the service runs, until the thread ends or waits for a person. Return the exit code."""
    step, stopped = _watch(options, thread, view_of(options, thread, has_events=True, is_served=True))
    if stopped.cancel.is_set() and thread.state.status not in (*CODES, "completed"):
        is_served = control.is_served(config.home(), options.store, thread.rolecall.store)
        tell(f"{thread.id} {'continues in' if is_served else 'waits for'} the service")
        command = omit_latest(thread.rolecall, in_this_store(options, f"rolecall thread watch {thread.id}"))
        tell(f"watch: {command}")
        return INTERRUPTED
    return leave(options, thread, step=step, is_run=True, is_cancelled=False)


def follow_each(options: Namespace, threads: Iterable[Thread], count: int, *, is_served: bool) -> int:
    """Follow threads one at a time and show how each one ended. If no service runs the threads, iterating over
    `threads` starts each thread after the previous one has ended."""
    codes = []
    last_line = LastLine()
    for place, thread in enumerate(threads):
        last_line.draw(f"… {place} of {count} threads have ended")
        if is_served:
            _, stopped = _watch(options, thread, View())
        else:
            _, stopped = take_steps(options, thread, View(), steps=None, is_run=True)
        last_line.clear()
        if stopped.cancel.is_set():
            tell(f"{count - place} of {count} threads have not ended: `rolecall thread list`")
            return INTERRUPTED
        show_state(options, thread, is_after_events=True, is_brief=True)
        codes.append(CODES.get(thread.state.status, 0))
    return max(codes)


def _watch(options: Namespace, thread: Thread, view: View) -> tuple[str | None, Stopped]:
    """Show a thread's events until the thread ends or waits for a person. Return the id of its last step, and whether
    and how the command was stopped before that."""

    async def watch(stopped: Stopped) -> str | None:
        step, events = None, thread.tail(members=view.shows_members)
        is_served = partial(control.is_served, config.home(), options.store, thread.rolecall.store)
        async with _Bell(thread.id, is_served) as bell:
            while True:
                # Read the state before the events, so that the events include everything that led to it.
                is_over = thread.has_ended or thread.needs_person
                while event := next(events):
                    if event.kind == "step":
                        step = event.body["step"]
                    # Whether the service queued or started the thread does not matter to the user.
                    is_inner = event.kind in ("queued", "started") or event.body.get("by") == "service"
                    if event.kind == "crashed" or not is_inner:
                        stopped.watch(event.kind, event.body)
                if is_over or stopped.cancel.is_set():
                    break
                await bell.wait(stopped.cancel)
        return step

    return run_attended(view, watch)


class _Bell:
    """A connection to the service that announces new events of a thread. `wait` waits up to a second for an
    announcement, and tells the person when no service is left to run the thread."""

    def __init__(self, ident: str, is_served: Callable[[], bool]) -> None:
        self._ident = ident
        self._is_served = is_served
        self._is_alone = False
        self._check_at = 0.0
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def __aenter__(self) -> _Bell:
        await self._connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._writer is not None:
            self._writer.close()

    async def wait(self, cancel: asyncio.Event) -> None:
        if self._reader is None:
            await self._connect()
        if self._reader is not None:
            self._is_alone = False
        elif monotonic() >= self._check_at:  # other machines of a fleet have no connection that could break
            self._check_at = monotonic() + _SERVICE_CHECK
            if self._is_served():
                self._is_alone = False
            elif not self._is_alone:
                self._say_service_ended()
        stop = asyncio.ensure_future(cancel.wait())
        message = asyncio.ensure_future(self._reader.read(4096)) if self._reader is not None else None
        waits = {stop, message} if message else {stop}
        done, pending = await asyncio.wait(waits, timeout=_PATIENCE, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        if message in done and (message.exception() or not message.result()):
            if self._writer is not None:
                self._writer.close()
            self._reader = self._writer = None
            self._say_service_ended()
            await asyncio.wait([asyncio.ensure_future(cancel.wait())], timeout=_PATIENCE)

    def _say_service_ended(self) -> None:
        self._is_alone = True
        over_last_line = "\r\033[K" if sys.stderr.isatty() else ""
        text = "the service has ended; the thread is waiting for it to run again"
        print(f"{over_last_line}{text}", file=sys.stderr, flush=True)

    async def _connect(self) -> None:
        pipe = control.connect(config.home())
        if pipe is None:
            return
        pipe.setblocking(False)
        self._reader, self._writer = await asyncio.open_connection(sock=pipe)
        self._writer.write(control.to_line({"do": "follow", "thread": self._ident}))
