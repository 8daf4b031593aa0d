"""Run a thread in this process: show its progress, stop it on a signal, and print how to continue it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from argparse import Namespace
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager, suppress
from shlex import quote
from typing import Any, TypeVar

import rolecall.agents as agents
from rolecall.agents.process import survivors
from rolecall.api import Thread
from rolecall.cli import hints
from rolecall.cli.group_view import Amounts, GroupBlock, duration, gist, limits_line, unwrap, work_folders
from rolecall.cli.output import LastLine, format_of, say, short, show_record
from rolecall.cli.parser import report
from rolecall.cli.thread_outcome import CODES, INTERRUPTED, INTERRUPTION, show_state, tell_continuation
from rolecall.errors import Conflict, RolecallError
from rolecall.settings import config
from rolecall.settings.settings import is_known_agent
from rolecall.store.canonical import JsonObject
from rolecall.threads.report import describe_join, describe_reuse, local_time, reuse_total
from rolecall.threads.setup import HUMAN
from rolecall.threads.state import ENDED, GROUP
from rolecall.threads.thread import LIMITS, Step, count_usage, sum_amounts
from rolecall.workflow.playbook import FileChanged, FileGone
from rolecall.workflow.route import status_of

T = TypeVar("T")

_AGENTS = (*agents.ADAPTERS, HUMAN)
_REFRESH = 0.2
_AGENT_LENGTH = 24
"""How many characters of an agent's name are shown, because the name can be a long command."""


def play(options: Namespace, thread: Thread, *, steps: int | None, is_run: bool) -> int:
    """Take steps, show them, and print how to continue the thread. Return the exit code."""
    status = thread.state.status
    step, is_cancelled = None, False
    # A suspended thread cannot take a step, and the exit code says so. Asking an ended thread for a single step is
    # wrong usage, which the engine reports.
    if status != "suspended" and not (is_run and status in ENDED):
        try:
            view = view_of(options, thread, has_events=is_run)
            step, stopped = take_steps(options, thread, view, steps=steps, is_run=is_run)
            is_cancelled = stopped.cancel.is_set()
        except RolecallError as error:
            if not isinstance(error, Conflict) or thread.state.status != "killed":
                sys.stdout.flush()
                code = report(error)
                instead = None  # a different command to suggest, if the same one would fail again
                if isinstance(error, FileChanged):
                    place = quote(error.place)
                    instead = f"rolecall thread fork {thread.id} --keep-files --workflow {place}"
                elif isinstance(error, FileGone):
                    instead = f"rolecall thread fork {thread.id} --keep-files --workflow '…'"
                elif options.agent and not is_known_agent(config.load(), options.agent, _AGENTS):
                    instead = f"{hints.command(thread.continuation or '')} --agent '…'"
                tell_continuation(options, thread, agent=None if instead else options.agent, instead=instead)
                return code
    return leave(options, thread, step=step, is_run=is_run, is_cancelled=is_cancelled)


def leave(options: Namespace, thread: Thread, *, step: str | None, is_run: bool, is_cancelled: bool) -> int:
    """Show the thread's state and how to continue the thread. Return the exit code."""
    status = thread.state.status
    is_interrupted = is_cancelled and status not in CODES and status != "completed"
    reason = INTERRUPTION if is_interrupted else ""
    show_state(options, thread, step=step, reason=reason, is_after_events=is_run)
    if is_interrupted or is_run or status == "suspended":
        tell_continuation(options, thread, agent=options.agent)
    return INTERRUPTED if is_interrupted else CODES.get(status, 0)


def take_steps(
    options: Namespace, thread: Thread, view: View, *, steps: int | None, is_run: bool
) -> tuple[str | None, Stopped]:
    """Take steps. Return the id of the last step taken, and how the run was stopped."""
    return run_attended(
        view,
        lambda stopped: thread.advance(
            watch=stopped.watch, cancel=stopped.cancel, steps=steps, agent=options.agent, needs_all=is_run
        ),
    )


class View:
    """A view of the events of a run. This base class shows nothing."""

    shows_members = False

    def event(self, kind: str, body: JsonObject) -> None:
        pass

    def tick(self) -> None:
        """Refresh the view; called five times a second."""

    def close(self) -> None:
        pass


class EventRecords(View):
    """A view that prints each event immediately as a record, to which the fields of `head` are added. If `kinds` is
    given, only events of these kinds are printed."""

    shows_members = True

    def __init__(self, options: Namespace, kinds: Collection[str] = (), **head: str) -> None:
        self._options = options
        self._kinds = kinds
        self._head = head

    def event(self, kind: str, body: JsonObject) -> None:
        if self._kinds and kind not in self._kinds:
            return
        head: dict[str, Any] = {**self._head}
        while kind == "member":  # print the event as one of the member's own thread
            head = {"thread": body["thread"], "parent": head.get("thread"), "member": body["number"]}
            kind, body = body["kind"], body["body"]
        show_record(self._options, {"event": kind, **head, **body})


class StepLines(View):
    """A view that prints a line for each finished step. On a terminal, the current activity is shown below: who is
    asked, what the agent is doing, and how much of the limits is used, or the block of a group."""

    shows_members = True

    def __init__(self, thread: Thread, *, is_served: bool) -> None:
        self._thread = thread
        self._is_served = is_served
        self._now = LastLine()
        self._folders = work_folders(thread)
        self._role = self._agent = self._latest = ""
        self._since = 0.0
        self._usage: JsonObject = {}
        self._totals: Mapping[str, float] = {}
        self._limits: Mapping[str, float] = {}
        self._group: GroupBlock | None = None
        self._until: int | None = None
        """When the thread continues, if its agent has reached a limit."""
        self._failure = ""
        """A failed attempt that is not shown yet. If the thread is then suspended for the same reason, only the
        suspension is shown."""

    def event(self, kind: str, body: JsonObject) -> None:
        is_same = self._failure and str(body.get("reason", "")).startswith(self._failure)
        if is_same and kind in ("suspended", "limited"):
            self._failure = ""
        if self._failure:
            self.close()
        if kind == "group":
            self._group = GroupBlock(str(body["role"]), int(body["count"]), is_served=self._is_served)
            self._read_limits()
        elif kind == "member":
            if self._group and (line := self._group.event(body)):
                self._say(line)
        elif kind in ("member_merged", "member_set_aside"):
            if self._group and (line := self._group.merge(kind, body)):
                self._say(line)
        elif kind == "step_started":
            self._role, self._agent, self._until = str(body["role"]), str(body["agent"]), None
            self._since, self._usage, self._latest = time.monotonic(), {}, ""
            self._read_limits()
        elif kind == "usage":
            self._usage = body
        elif kind == "step":
            self._say(step_line(self._thread.rolecall.find_step(body["step"])))
            self._role, self._group = "", None
        elif kind == "attempt_failed":
            self._failure = f"{body['role']}: {body['error']}"
        elif kind in ("limited", "waits", "waited"):
            self._role, self._until = "", int(body["until"]) if kind != "waited" else None
            if kind == "limited":
                self._say(f"◷ {body['reason']}\n  waits until {local_time(int(body['until']))}")
        elif kind == "remark":
            self._say(f"⚠ {body['text']}")
        elif kind == "crashed":
            self._say(f"✗ crashed: {body['reason']}")
        elif kind in ("text", "tool_call"):
            self._latest = gist(kind, body, folders=self._folders) or self._latest

    def _read_limits(self) -> None:
        if self._now.height:
            known = self._thread.summary()
            used, self._limits = known.get("usage", {}), known.get("limits", {})
            self._totals = {key: used[key] for key in LIMITS if key in used}

    def tick(self) -> None:
        height = self._now.height
        if not height:
            return
        if self._group:
            bars = limits_line(sum_amounts([self._totals, self._group.of_limits()]), self._limits)
            lines = self._group.lines(self._thread, height - bool(bars))
            self._now.draw(*filter(None, [*lines, bars]))
            return
        if self._until is not None:
            left = max(0.0, self._until / 1000 - time.time())
            until = local_time(self._until)
            self._now.draw(f"◷ continues in {duration(left)}, at {until} · Ctrl-C leaves it waiting")
        if not self._role:
            return
        seconds = time.monotonic() - self._since
        agent = short(self._agent, _AGENT_LENGTH)
        parts = [self._role, agent, duration(seconds), *Amounts.of(self._usage).words()]
        lines = ["… " + " · ".join(parts), f"  {self._latest}" if self._latest else ""]
        used = sum_amounts([self._totals, count_usage(self._usage, ms=round(seconds * 1000), steps=0)])
        lines.append(limits_line(used, self._limits))
        self._now.draw(*filter(None, lines))

    def close(self) -> None:
        self._now.clear()
        if self._failure:
            failure, self._failure = self._failure, ""
            say(f"✗ {failure}")

    def _say(self, line: str) -> None:
        self.close()
        say(line)


def view_of(options: Namespace, thread: Thread, *, has_events: bool, is_served: bool = False) -> View:
    if format_of(options) == "text":
        return StepLines(thread, is_served=is_served)
    return EventRecords(options, thread=thread.id) if has_events else View()


def step_line(step: Step) -> str:
    """Describe a finished step: number, role and status, then duration and tokens, or the origin of a reused step."""
    status = status_of(step.output) or ""
    if step.reused is not None:
        parts = describe_reuse(step.reused._asdict())
    else:
        ms = step.payload["completed_at"] - step.payload["started_at"]
        parts = [duration(ms / 1000), *Amounts.of(step.payload.get("usage", {})).words()]
        parts += [f"reused {total}"] if (total := reuse_total(step.saved)) else []
        status += f": {describe_join(step.output)}" if step.agent == GROUP else ""
    return f"✓ {step.number} " + " · ".join(filter(None, [step.role, status, *parts]))


class Stopped:
    """The request to stop a run, and how it was made. The engine checks `cancel`."""

    def __init__(self, view: View) -> None:
        self.cancel = asyncio.Event()
        self._error: OSError | None = None
        """Why output can no longer be printed."""
        self.number = 0
        """The number of the signal that asked the run to stop, or 0."""
        self._loop = asyncio.get_running_loop()
        self._view = view
        self._children: dict[str, int] = {}
        """The processes that were started, keyed by run, because several threads can run at once."""

    def watch(self, kind: str, body: JsonObject) -> None:
        """Pass an event on to the view. If the view cannot print, ask the run to stop."""
        inner, about = unwrap(kind, body)
        if inner == "process":
            self._children[str(about["run"])] = int(about["pid"])
        if self._error is not None:
            return
        try:
            self._view.event(kind, body)
        except OSError as error:
            self._error = error
            self.cancel.set()

    def raise_error(self) -> None:
        if self._error is not None:
            raise self._error

    def on_signal(self, number: int, _frame: object) -> None:
        """Ask the agent to stop and the engine to record the interruption. At the second signal, kill everything."""
        if self.number:
            for run, leader in self._children.items():
                for pid in survivors(run, leader):
                    with suppress(ProcessLookupError, PermissionError):
                        os.kill(pid, signal.SIGKILL)
            os._exit(INTERRUPTED)
        self.number = number
        self._loop.call_soon_threadsafe(self.cancel.set)


@asynccontextmanager
async def attend(view: View) -> AsyncIterator[Stopped]:
    """Show a run, and stop it on Ctrl-C, SIGTERM or a closed terminal. If output could no longer be printed, raise the
    reason at the end of the run."""
    stopped = Stopped(view)

    async def refresh() -> None:
        with suppress(OSError):
            while True:
                view.tick()
                await asyncio.sleep(_REFRESH)

    task = asyncio.create_task(refresh())
    # The event loop's signal handlers cannot run while the loop is blocked.
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    handled = {number: handler for number, handler in before.items() if handler is not signal.SIG_IGN}
    for number in handled:
        signal.signal(number, stopped.on_signal)
    try:
        yield stopped
    finally:
        for number, handler in handled.items():
            signal.signal(number, handler)
        task.cancel()
        with suppress(OSError):
            view.close()
    stopped.raise_error()


def run_attended(view: View, play: Callable[[Stopped], Awaitable[T]]) -> tuple[T, Stopped]:
    """Run the awaitable that `play` returns in a new event loop, attended by `view`. Return its result, and how it was
    stopped."""

    async def run() -> tuple[T, Stopped]:
        async with attend(view) as stopped:
            result = await play(stopped)
        return result, stopped

    return asyncio.run(run())
