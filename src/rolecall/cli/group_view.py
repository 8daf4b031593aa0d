"""Shows the members of a group while a thread runs: a line of counts, and a line for each member at work."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rolecall.api import Thread
from rolecall.cli.output import short
from rolecall.threads.report import call_text

_TITLE = 32
_AGENT = 16
_MOST_FAILURES = 5
"""How many failed members are printed as lines of their own."""
_FATES = ("done", "failed", "stopped", "waits", "short")


def unwrap(kind: str, body: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    """The event of the innermost member inside a `member` event; any other event as it is."""
    while kind == "member":
        kind, body = body["kind"], body["body"]
    return kind, body


@dataclass
class _Member:
    """A member at work."""

    thread: str
    title: str = ""
    agent: str = ""
    since: float = field(default_factory=time.monotonic)
    tokens: int = 0
    latest: str = ""


class GroupBlock:
    """The state of a group: from the events of its members if they run here, else from the store."""

    def __init__(self, role: str, count: int) -> None:
        self.role = role
        self._count = count
        self._is_elsewhere = False
        self._looked = 0.0
        self._since = time.monotonic()
        self._working: dict[int, _Member] = {}
        self._fates: dict[int, str] = {}
        self._tally: Counter[str] = Counter()
        self._tokens = 0
        self._told = 0

    def event(self, body: Mapping[str, Any]) -> str:
        """Take in an event of a member. Return a line to print for good, if it has failed."""
        number, kind = body["number"], body["kind"]
        if kind == "over":
            return self._end(number, str(body["body"]["status"]), str(body["body"].get("reason") or ""))
        member = self._working.setdefault(number, _Member(str(body["thread"])))
        about = body["body"]
        if kind == "started":
            member.title = str(about["title"])
        elif kind == "step_started":
            member.agent, member.since = str(about["agent"]), time.monotonic()
        elif kind == "usage":
            member.tokens = tokens_of(about)
        elif kind in ("text", "tool_call"):
            member.latest = gist(kind, about) or member.latest
        return ""

    def _end(self, number: int, fate: str, reason: str) -> str:
        member = self._working.pop(number, None)
        self._tokens += member.tokens if member else 0
        if before := self._fates.get(number):
            self._tally[before] -= 1
        self._fates[number] = fate
        self._tally[fate] += 1
        if fate != "failed" or before == fate:
            return ""
        return self._tell(number, reason.removeprefix(f"{self.role}: "))

    def merge(self, kind: str, body: Mapping[str, Any]) -> str:
        """Count a member whose files were merged or set aside. Return a line to print for good in the second case."""
        self._tally[kind] += 1
        return (
            self._tell(body["number"], f"set aside: {body['reason']}") if kind == "member_set_aside" else ""
        )

    def _tell(self, number: int, words: str) -> str:
        self._told += 1
        return f"✗ {self.role} {number}/{self._count}: {words}" if self._told <= _MOST_FAILURES else ""

    def _look(self, thread: Thread) -> None:
        """Read from the store how the members stand that the service runs."""
        self._looked = time.monotonic()
        standing = thread.group_standing()
        if standing is None:
            return
        self._is_elsewhere = True
        self._tally = Counter({key: standing[key] for key in ("done", "failed", "stopped", "waits")})
        before = self._working
        self._working = {
            number: before.get(number) or _Member(one) for number, one in standing["open"].items()
        }

    def lines(self, thread: Thread, height: int) -> list[str]:
        """At most `height` lines: the counts, then those at work that began first."""
        if not self._fates and time.monotonic() - self._looked >= 1:
            self._look(thread)
        merged, set_aside = self._tally["member_merged"], self._tally["member_set_aside"]
        working, at_work = len(self._working), "started" if self._is_elsewhere else "running"
        waiting = self._count - working - sum(self._tally[fate] for fate in _FATES)
        counts = [
            f"{self._tally['done']:,} of {self._count:,} done",
            f"{self._tally['failed']:,} failed" if self._tally["failed"] else "",
            f"{self._tally['stopped']:,} stopped" if self._tally["stopped"] else "",
            f"{self._tally['waits']:,} waiting for a person" if self._tally["waits"] else "",
            f"{working:,} {at_work}" if working else "",
            f"{waiting:,} to come" if waiting > 0 else "",
            f"{merged:,} merged" if merged else "",
            f"{set_aside:,} set aside" if set_aside else "",
            duration(time.monotonic() - self._since),
        ]
        tokens = self._tokens + sum(member.tokens for member in self._working.values())
        counts += [f"{tokens:,} tokens"] if tokens else []
        head = f"… {self.role} · " + " · ".join(filter(None, counts))
        room = min(height - 1, working)
        shown = sorted(self._working.items())[: room if room == working else max(0, room - 1)]
        rows = [self._row(thread, number, member) for number, member in shown]
        if room > 0 and len(shown) < working:
            rows.append(f"  and {working - len(shown):,} more {at_work}")
        return [head, *rows]

    def _row(self, thread: Thread, number: int, member: _Member) -> str:
        if not member.title:  # it was started by an earlier process
            known = thread.rolecall.thread_if_any(member.thread)
            member.title = known.state.title if known else " "
            member.agent = member.agent or (known.state.agent or "" if known else "")
        title = (
            member.title.removeprefix(f"{self.role} ").removeprefix(f"{number}/{self._count}").lstrip(": ")
        )
        parts = [
            f"  {number:>{len(str(self._count))}} {short(title, _TITLE)}".rstrip(),
            short(member.agent, _AGENT),
            duration(time.monotonic() - member.since),
            f"{member.tokens:,} tokens" if member.tokens else "",
            short(member.latest, 200),
        ]
        return " · ".join(filter(None, parts))


# -- words --


def tokens_of(usage: Mapping[str, Any]) -> int:
    return (usage.get("input_tokens") or 0) + (usage.get("output_tokens") or 0)


def duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60}h {minutes % 60:02}m"
    return f"{minutes}m {rest:02}s" if minutes else f"{seconds:.1f}s"


def gist(kind: str, body: Mapping[str, Any]) -> str:
    """Summarize an event in a few words on one line."""
    if kind == "text":
        lines = [line.strip() for line in str(body.get("text", "")).splitlines() if line.strip()]
        return lines[-1] if lines else ""
    if kind == "tool_call":
        return f"{body.get('name', 'tool')} {call_text(body.get('arguments'))}".rstrip()
    if kind == "usage":
        return f"{tokens_of(body):,} tokens"
    keys = ("role", "agent", "status", "next", "reason", "error", "answer", "session", "pid")
    return " · ".join(f"{key} {body[key]}" for key in keys if body.get(key))
