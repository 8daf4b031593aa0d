"""Show the members of a group while a thread runs: a line of counts, and a line for each member at work."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from rolecall.api import Thread
from rolecall.cli.output import short
from rolecall.store.canonical import JsonObject
from rolecall.threads import report
from rolecall.threads.report import call_text, describe_reuse, local_time, money
from rolecall.threads.thread import LIMITS, sum_amounts

_TITLE = 24
_AGENT = 16
_MOST_FAILURES = 5
"""How many failed members get a line of their own."""
_BAR = 8
_PATHS = ("file_path", "path", "notebook_path", "filePath", "target_file")
"""The names that different agents' tools give to the argument with a file's path."""
_FATES = ("done", "failed", "stopped", "waits", "short")


def unwrap(kind: str, body: JsonObject) -> tuple[str, JsonObject]:
    """Return the kind and body of the innermost event in a `member` event. Return any other event unchanged."""
    while kind == "member":
        kind, body = body["kind"], body["body"]
    return kind, body


class Amounts(NamedTuple):
    """Tokens and dollars, as far as agents have reported them."""

    tokens: int = 0
    cost: float = 0.0

    @classmethod
    def of(cls, usage: report.View) -> Amounts:
        return cls(report.tokens(usage), usage.get("cost") or 0.0)

    def plus(self, other: Amounts) -> Amounts:
        return Amounts(self.tokens + other.tokens, self.cost + other.cost)

    def words(self) -> list[str]:
        tokens = [f"{self.tokens:,} tokens"] if self.tokens else []
        return [*tokens, money(self.cost)] if self.cost else tokens


@dataclass
class _Member:
    """A member at work."""

    thread: str
    title: str = ""
    agent: str = ""
    since: float = field(default_factory=time.monotonic)
    used: Amounts = field(default_factory=Amounts)
    latest: str = ""
    folders: Sequence[str] | None = None
    """The member's work folders, or None until they have been looked up."""

    def of_limits(self) -> dict[str, float]:
        """Return what the member has used, in the units that limits use."""
        minutes = (time.monotonic() - self.since) / 60
        return {"tokens": self.used.tokens, "cost": self.used.cost, "minutes": minutes}


class GroupBlock:
    """The state of a group, computed from the events of its members."""

    def __init__(self, role: str, count: int, *, is_served: bool = False) -> None:
        """With `is_served`, the service decides when a started member runs."""
        self.role = role
        self._count = count
        self._at_work = "started" if is_served else "running"
        self._since = time.monotonic()
        self._working: dict[int, _Member] = {}
        self._fates: dict[int, str] = {}
        self._tally: Counter[str] = Counter()
        self._used = Amounts()
        self._ended: dict[int, Mapping[str, float]] = {}
        """What each member that has ended has used, in the units that limits use."""
        self._shown = 0

    def event(self, body: JsonObject) -> str:
        """Process an event of a member. If the member has failed or waits, return a line that stays on the screen."""
        number, kind = body["number"], body["kind"]
        if kind == "over":
            about, before = body["body"], self._fates.get(number)
            fate, reason = str(about["status"]), str(about.get("reason") or "")
            ended = self._working.pop(number, None)
            if ended:
                self._used = self._used.plus(ended.used)
            self._ended[number] = about.get("used") or {"steps": 1, **(ended.of_limits() if ended else {})}
            if before:
                self._tally[before] -= 1
            self._fates[number] = fate
            self._tally[fate] += 1
            is_news = fate == "failed" and before != fate
            return self._tell(number, reason.removeprefix(f"{self.role}: ")) if is_news else ""
        if number in self._fates:
            if kind not in ("started", "resumed", "step_started"):
                return ""
            self._tally[self._fates.pop(number)] -= 1  # the member continues
            self._ended.pop(number, None)
        member = self._working.setdefault(number, _Member(str(body["thread"])))
        about = body["body"]
        if kind == "started":
            member.title = str(about["title"])
        elif kind == "step_started":
            member.agent, member.since = str(about["agent"]), time.monotonic()
        elif kind == "usage":
            member.used = Amounts.of(about)
        elif kind == "step" and "reused" in about:
            self._tally["reused"] += 1
        elif kind in ("limited", "waits", "waited"):
            member.latest = f"waits until {local_time(about['until'])}" if kind != "waited" else ""
            if kind == "limited":
                return self._tell(number, member.latest, sign="◷")
        elif kind in ("text", "tool_call"):
            member.latest = gist(kind, about) or member.latest
        return ""

    def merge(self, kind: str, body: JsonObject) -> str:
        """Count a member whose files were merged or set aside. If they were set aside, return a line that says so."""
        self._tally[kind] += 1
        is_aside = kind == "member_set_aside"
        return self._tell(body["number"], f"set aside: {body['reason']}") if is_aside else ""

    def _tell(self, number: int, words: str, *, sign: str = "✗") -> str:
        self._shown += 1
        return f"{sign} {self.role} {number}/{self._count}: {words}" if self._shown <= _MOST_FAILURES else ""

    def of_limits(self) -> dict[str, float]:
        """Return what the members have used, in the units that limits use."""
        return sum_amounts([*self._ended.values(), *(one.of_limits() for one in self._working.values())])

    def lines(self, thread: Thread, height: int) -> list[str]:
        """Return at most `height` lines: the counts, then a line for each member at work, lowest numbers first."""
        tally, working = self._tally, len(self._working)
        numbers = {
            "failed": tally["failed"],
            "stopped": tally["stopped"],
            "waiting for a person": tally["waits"],
            self._at_work: working,
            "to come": self._count - working - sum(tally[fate] for fate in _FATES),
            "reused": tally["reused"],
            "merged": tally["member_merged"],
            "set aside": tally["member_set_aside"],
        }
        counts = [f"{number:,} {what}" for what, number in numbers.items() if number > 0]
        used = self._used
        for member in self._working.values():
            used = used.plus(member.used)
        spent = [duration(time.monotonic() - self._since), *used.words()]
        head = " · ".join([f"… {self.role}", f"{tally['done']:,} of {self._count:,} done", *counts, *spent])
        room = min(height - 1, working)
        shown = sorted(self._working.items())[: room if room == working else max(0, room - 1)]
        rows = [self._row(thread, number, member) for number, member in shown]
        if room > 0 and len(shown) < working:
            rows.append(f"  and {working - len(shown):,} more {self._at_work}")
        return [head, *rows]

    def _row(self, thread: Thread, number: int, member: _Member) -> str:
        # If another process started the member, its title, agent and folders are not known yet.
        if member.folders is None or not (member.title and member.agent):
            known = thread.rolecall.thread_if_any(member.thread)
            bound = next(iter(known.state.agents.values()), {"name": " "}) if known else {"name": " "}
            member.title = member.title or (known.state.title if known else " ")
            member.agent = member.agent or (known and known.state.agent) or str(bound["name"])
            member.folders = work_folders(known) if known else ()
        latest = member.latest
        for folder in member.folders:
            latest = latest.replace(f"{folder}/", "")
        title = member.title.removeprefix(f"{self.role} ").removeprefix(f"{number}/{self._count}")
        parts = [
            f"  {number:>{len(str(self._count))}} {short(title.lstrip(': '), _TITLE)}".rstrip(),
            short(member.agent.strip(), _AGENT),
            duration(time.monotonic() - member.since),
            *member.used.words(),
            short(latest, 200),
        ]
        return " · ".join(filter(None, parts))


def work_folders(thread: Thread) -> list[str]:
    """Return the folders in which a thread works."""
    state = thread.state
    return [*filter(None, (*(folder.cwd for folder in state.folders.values()), state.cwd))]


def limits_line(used: Mapping[str, float], limits: Mapping[str, float]) -> str:
    """Return bars that show how much of each limit of a thread is used, or an empty text if there are no limits."""
    bars = []
    for key in LIMITS:
        if not (most := limits.get(key)):
            continue
        amount, share = used.get(key, 0), min(used.get(key, 0) / most, 1)
        full = round(share * _BAR)
        words = f"{report.amount(round(amount, 1))}/{report.amount(most)}"
        words = f"{money(amount)}/{money(most)}" if key == "cost" else words
        bars.append(f"{key} {'█' * full}{'░' * (_BAR - full)} {words}")
    return "  " + " · ".join(bars) if bars else ""


def duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60}h {minutes % 60:02}m"
    return f"{minutes}m {rest:02}s" if minutes else f"{seconds:.1f}s"


def gist(kind: str, body: JsonObject, *, folders: Sequence[str] = ()) -> str:
    """Summarize an event in a few words on one line. Paths below one of the folders are shortened."""
    if kind == "text":
        lines = [line.strip() for line in str(body.get("text", "")).splitlines() if line.strip()]
        return lines[-1] if lines else ""
    if kind == "tool_call":
        given = body.get("arguments")
        known = given if isinstance(given, Mapping) and not {"command", "pattern"} & given.keys() else {}
        path = str(next((known[key] for key in _PATHS if known.get(key)), ""))
        for folder in folders:
            path = path.removeprefix(f"{folder}/")
        return f"{body.get('name', 'tool')} {path or call_text(given)}".rstrip()
    if kind == "usage":
        return f"{report.tokens(body):,} tokens"
    if kind == "step" and "reused" in body:
        return " · ".join([f"role {body['role']}", *describe_reuse(body["reused"])])
    keys = ("role", "agent", "status", "next", "reason", "error", "answer", "session", "pid")
    return " · ".join(f"{key} {body[key]}" for key in keys if body.get(key))
