"""Arguments shared by several commands, and the next command to type. Commands that only read use this module, so it
imports little."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentTypeError, Namespace
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from datetime import datetime
from shlex import quote
from time import time_ns
from typing import TYPE_CHECKING

from rolecall.api import Rolecall, Thread
from rolecall.cli import argument, asking, either, flag, hints, repeated
from rolecall.cli.output import between, short, tell, under_this_name
from rolecall.errors import NotFound, UsageError
from rolecall.settings import config
from rolecall.store.lazy import Module
from rolecall.threads.thread import LIMITS

if TYPE_CHECKING:
    from rolecall.cli import Argument
    from rolecall.settings import mask
    from rolecall.threads import casting
else:
    casting = Module("rolecall.threads.casting")
    mask = Module("rolecall.settings.mask")


def describe_person() -> dict[str, str]:
    """Return who answers on the command line, for the record: the person's account, or only the door if an agent's step
    runs the command."""
    return {"door": "cli"} if config.plays_role() else {"person": config.user_name(), "door": "cli"}


def parse_agent(text: str) -> str:
    """Return the name of an agent, in which the path of a script is made absolute."""
    return casting.agent_from(os.getcwd(), text)


def parse_limit(text: str, kinds: Collection[str] = LIMITS) -> tuple[str, float]:
    """Parse a limit of one of these kinds, such as `cost=1.5`."""
    name, _, given = text.partition("=")
    kind = name.rpartition(".")[2]
    try:
        value = float(given) if kind in ("cost", "minutes") else int(given)
    except ValueError:
        value = 0
    if kind not in kinds or not 0 < value < float("inf"):
        example = "steps=20 or cost=1.5" if "steps" in kinds else "cost=20"
        known = ", ".join(kinds)
        raise ArgumentTypeError(
            f"{text!r} is not a limit such as {example}: a number above 0, for one of {known}"
        )
    return name, value


_UNITS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}


def parse_duration(text: str) -> int:
    """Parse a duration such as 90s, 30m, 1h, 2d or 0, and return it in milliseconds."""
    if text == "0":
        return 0
    if text[-1:] not in _UNITS or not text[:-1].isdecimal():
        raise ArgumentTypeError(f"{text!r} is not a time such as 90s, 30m, 1h, 2d or 0")
    return int(text[:-1]) * _UNITS[text[-1]]


def parse_time(text: str) -> int:
    """Parse a time and return it in milliseconds. The text is an age, `all`, or a date with or without a time of day;
    the date is local by default."""
    if text == "all":
        return 0
    if text[-1:] in _UNITS and text[:-1].isdecimal():
        return max(time_ns() // 1_000_000 - parse_duration(text), 0)
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError) as error:
        raise ArgumentTypeError(
            f"{text!r} is not a time such as 30m, 24h, 7d, 2026-01-31T12:00 or all"
        ) from error


TIMES = "30m, 24h, 7d, 2w, or a local date or time such as 2026-01-31"
"""The forms that `parse_time` accepts, for help texts."""
WORKFLOW = argument("workflow", "WORKFLOW", "its name, the path of its file, or its id")
THREAD = argument(
    "thread",
    "THREAD",
    "a thread's id, or a part of it that no other id contains (default: the latest of this folder)",
    nargs="?",
)
CWD = argument("--cwd", "DIR", "the work folder (default: this one)")
AGENT = argument(
    "--agent", "NAME", "the agent that plays every role, instead of the roles' own agents", type=parse_agent
)
LIMIT = repeated(
    "--limit",
    "NAME=VALUE",
    f"suspend the thread at this limit: {', '.join(LIMITS)}, or for one role: ROLE.steps=3",
    type=parse_limit,
)

RUN = (flag("--run", "continue at once, as `thread run` does"), AGENT)
REUSE = either(
    flag("--reuse", "reuse finished steps of other threads with the same prompt, agent and files"),
    flag("--fresh", "ask every role, even if the workflow allows reuse"),
)


def at_once(what: str, default: int) -> Argument:
    """Declare the option that limits how many threads or tasks run in parallel."""
    how = f"how many {what} run at once (default: {default})"
    return argument("--at-once", "N", how, type=between(1), default=default)


def wants_reuse(options: Namespace) -> bool | None:
    """Return whether the options in `REUSE` ask for reuse, or None if neither option is given."""
    return True if options.reuse else False if options.fresh else None


def in_this_store(options: Namespace, command: str) -> str:
    """Return the next command to type, including the current program's name and the --store option of this command."""
    command = under_this_name(hints.command(command))
    if not options.store:
        return command
    return f"{command} --store {quote(mask.hide_secrets(options.store, '…'))}"


def omit_latest(rolecall: Rolecall, command: str) -> str:
    """Remove the id of this folder's latest thread from a command that a person is about to type. If standard error is
    not a terminal, keep the id, because logs are read elsewhere and later."""
    if not sys.stderr.isatty() or (latest := rolecall.latest_thread()) is None:
        return command
    return command.replace(f" {latest.id}", "")


@contextmanager
def open_thread(options: Namespace, *, ask: str = "", is_waiting: bool = False) -> Iterator[Thread]:
    """Open the store, which must exist, and find the thread of the command as `find_thread` does."""
    with Rolecall(options.store, create=False) as rolecall:
        yield find_thread(rolecall, options.thread, ask=ask, is_waiting=is_waiting)


def find_thread(rolecall: Rolecall, name: str | None, *, ask: str = "", is_waiting: bool = False) -> Thread:
    """Find a thread by its name. Without a name, choose this folder's latest thread and tell the person which thread
    that is; with `is_waiting`, prefer the latest thread that waits for a person. If `ask` gives a reason, a thread
    chosen without a name needs the person's confirmation."""
    if name is not None:  # an empty name, such as an unset shell variable, is a mistake
        return rolecall.thread(name)
    thread = (rolecall.latest_thread(is_waiting=True) if is_waiting else None) or rolecall.latest_thread()
    if thread is None:
        raise NotFound(
            "no thread was started in this folder",
            hint="Name one: `rolecall thread list --all` shows them all.",
        )
    about = f"thread {thread.id} · {short(thread.state.title, 40)}"
    if not ask:
        tell(about)
        return thread
    if not asking.confirm(
        f"{about}\n{ask[0].upper()}{ask[1:]}. Do it?",
        f"The latest of this folder is {about.removeprefix('thread ')}. Name it to use it.",
        problem=f"no thread is named, and {ask}",
    ):
        raise UsageError("nothing was done", hint="Name another thread: `rolecall thread list` shows them.")
    return thread
