"""What is seen of a thread while it runs: a status line on a terminal, a line per event elsewhere; and
how a signal stops it. The engine calls a view for every event it has recorded."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from argparse import Namespace
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, Protocol

from rolecall.cli.output import LastLine, format_of, say, show_record
from rolecall.store.store import Store
from rolecall.threads.report import call_text
from rolecall.threads.thread import Step

_REFRESH = 0.2
_AGENT = 24
"""Characters of an agent's name that are shown: a command is one, and may be long."""


class View(Protocol):
    def event(self, kind: str, body: Mapping[str, Any]) -> None: ...

    def tick(self) -> None:
        """A fifth of a second has passed."""
        ...

    def close(self) -> None: ...


def view_of(options: Namespace, store: Store, ident: str, *, has_events: bool) -> View:
    if format_of(options) == "text":
        return Terminal(store)
    return Records(options, ident) if has_events else Silence()


class Silence:
    def event(self, kind: str, body: Mapping[str, Any]) -> None:
        pass

    def tick(self) -> None:
        pass

    def close(self) -> None:
        pass


class Records(Silence):
    """One record per event, at once, for whoever reads the pipe."""

    def __init__(self, options: Namespace, ident: str) -> None:
        self._options = options
        self._ident = ident

    def event(self, kind: str, body: Mapping[str, Any]) -> None:
        show_record(self._options, {"event": kind, "thread": self._ident, **body})


class Terminal:
    """A line per finished step, and below them one that says what goes on now."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._now = LastLine()
        self._role = self._agent = self._latest = ""
        self._since = 0.0
        self._tokens = 0
        self._failed = ""
        """A failed attempt that is not shown yet: a suspension that follows also reports it."""

    def event(self, kind: str, body: Mapping[str, Any]) -> None:
        if self._failed:
            failed, self._failed = self._failed, ""
            if kind != "suspended" or not str(body.get("reason", "")).startswith(failed):
                self._say(f"✗ {failed}")
        if kind == "step_started":
            self._role, self._agent = str(body["role"]), str(body["agent"])
            self._since, self._tokens, self._latest = time.monotonic(), 0, ""
        elif kind == "usage":
            self._tokens = tokens_of(body)
        elif kind == "step":
            self._say(step_line(Step(self._store, self._store.get(body["step"]))))
            self._role = ""
        elif kind == "attempt_failed":
            self._failed = f"{body['role']}: {body['error']}"
        elif kind == "remark":
            self._say(f"⚠ {body['text']}")
        elif kind == "crashed":
            self._say(f"✗ crashed: {body['reason']}")
        else:
            self._latest = gist(kind, body) or self._latest

    def tick(self) -> None:
        if not self._role:
            return
        agent = self._agent if len(self._agent) <= _AGENT else self._agent[: _AGENT - 1] + "…"
        parts = [self._role, agent, duration(time.monotonic() - self._since)]
        parts += [f"{self._tokens:,} tokens"] if self._tokens else []
        self._now.draw("… " + " · ".join([*parts, self._latest] if self._latest else parts))

    def close(self) -> None:
        self._now.clear()
        if self._failed:
            failed, self._failed = self._failed, ""
            self._say(f"✗ {failed}")

    def _say(self, line: str) -> None:
        self.close()
        say(line)


def step_line(step: Step) -> str:
    """A finished step: number, role, status, how long, how many tokens."""
    from rolecall.workflow.route import status_of

    ms = step.payload["completed_at"] - step.payload["started_at"]
    tokens = tokens_of(step.payload.get("usage", {}))
    parts = [
        step.role,
        status_of(step.output) or "",
        duration(ms / 1000),
        f"{tokens:,} tokens" if tokens else "",
    ]
    return f"✓ {step.number} " + " · ".join(part for part in parts if part)


def tokens_of(usage: Mapping[str, Any]) -> int:
    return (usage.get("input_tokens") or 0) + (usage.get("output_tokens") or 0)


def duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60}h {minutes % 60:02}m"
    return f"{minutes}m {rest:02}s" if minutes else f"{seconds:.1f}s"


def gist(kind: str, body: Mapping[str, Any]) -> str:
    """An event in a few words of one line."""
    if kind == "text":
        lines = [line.strip() for line in str(body.get("text", "")).splitlines() if line.strip()]
        return lines[-1] if lines else ""
    if kind == "tool_call":
        return f"{body.get('name', 'tool')} {call_text(body.get('arguments'))}".rstrip()
    if kind == "usage":
        return f"{tokens_of(body):,} tokens"
    told = ("role", "agent", "status", "next", "reason", "error", "answer", "session", "pid")
    return " · ".join(f"{key} {body[key]}" for key in told if body.get(key))


# -- running under a view, and stopping --


class Stopped:
    """Whether and how the run was asked to stop; `cancel` is what the engine looks at."""

    def __init__(self, view: View) -> None:
        self.cancel = asyncio.Event()
        self.error: OSError | None = None
        """Why nobody can be told anything any more."""
        self._loop = asyncio.get_running_loop()
        self._view = view
        self._is_asked = False
        self._children: dict[str, int] = {}
        """Every process that was started, by its run: several threads may be at work."""

    def watch(self, kind: str, body: Mapping[str, Any]) -> None:
        """Pass an event on to the view. A reader that is gone stops the run but does not break a step."""
        if kind == "process":
            self._children[str(body["run"])] = int(body["pid"])
        if self.error is not None:
            return
        try:
            self._view.event(kind, body)
        except OSError as error:
            self.error = error
            self.cancel.set()

    def on_signal(self, _number: int, _frame: object) -> None:
        """The first signal asks the agent to end and the engine to write that down, the second asks nobody."""
        if self._is_asked:
            self._end_at_once()
        self._is_asked = True
        self._loop.call_soon_threadsafe(self.cancel.set)

    def _end_at_once(self) -> None:
        from rolecall.agents.process import survivors

        for run, leader in self._children.items():
            for pid in survivors(run, leader):
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
        os._exit(130)


@asynccontextmanager
async def attended(view: View) -> AsyncIterator[Stopped]:
    """A run that is shown and can be stopped by Ctrl-C, SIGTERM or a closed terminal."""
    stopped = Stopped(view)

    async def refresh() -> None:
        with suppress(OSError):
            while True:
                view.tick()
                await asyncio.sleep(_REFRESH)

    task = asyncio.create_task(refresh())
    try:
        with _signals_to(stopped):
            yield stopped
    finally:
        task.cancel()
        with suppress(OSError):
            view.close()


@contextmanager
def _signals_to(stopped: Stopped) -> Iterator[None]:
    # Not the loop's own handlers: those wait for the loop, and code that hangs would keep it from coming.
    wanted = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
    before = {number: signal.getsignal(number) for number in wanted}
    heeded = [number for number in wanted if before[number] is not signal.SIG_IGN]
    for number in heeded:
        signal.signal(number, stopped.on_signal)
    try:
        yield
    finally:
        for number in heeded:
            signal.signal(number, before[number])
