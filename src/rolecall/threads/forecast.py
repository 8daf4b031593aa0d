"""Forecast the amounts that a thread, or the rest of a thread, might use, based on earlier threads of its workflow.

An amount that an agent did not report is unknown, never zero. An earlier thread therefore counts for an amount only if
all its agents reported that amount from the role in question on, including the agents of group members and of workflows
that played a role.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from random import Random
from typing import NamedTuple

from rolecall.errors import Damaged, NotFound
from rolecall.store.store import Store
from rolecall.threads.setup import is_unpaid
from rolecall.threads.state import Status, ThreadRef, load, read_thread
from rolecall.threads.thread import FORK, PERSON, Chain, Step, count_usage

AMOUNTS = ("cost", "tokens", "minutes")
MOST_THREADS = 200
"""The maximum number of earlier threads that a forecast uses, newest first."""
MOST_STEPS = 20_000
"""Once this many steps of these threads, and of the threads that played their roles, have been read, no further thread
is read."""
_PAGE = 500
_MOST_PAGES = 20
_DRAWS = 200
_ANY = 0


class Range(NamedTuple):
    """The median of the values, and the range that contains the middle 80 percent of them."""

    low: float
    median: float
    high: float


class Rest(NamedTuple):
    """The amounts that a thread used from one step to its end. An amount is None if it is unknown."""

    cost: float | None = None
    tokens: float | None = None
    minutes: float | None = None


@dataclass(frozen=True)
class Forecast:
    """A forecast of the amounts that a thread uses until it ends, made of the amounts that earlier threads used."""

    rests: tuple[Rest, ...] = ()

    def past(self, amount: str) -> list[float]:
        """Return the known past values of an amount."""
        return [value for rest in self.rests if (value := getattr(rest, amount)) is not None]


UNKNOWN = Forecast()
NOTHING = Forecast((Rest(0.0, 0.0, 0.0),))
"""The forecast for a thread that ends or stops, so that no agent is asked."""


class Sum(NamedTuple):
    """The sum of one amount over several forecasts."""

    range: Range | None
    """The range of the sum of the known amounts, or None if all amounts are unknown."""
    unknown: int
    """The number of forecasts in which the amount is unknown."""


def add_up(forecasts: Iterable[Forecast]) -> dict[str, Sum]:
    """Return the sum of each amount. A sum varies less than its parts, so its range is computed from random draws from
    the past values, with a fixed seed."""
    counts = Counter(forecasts)
    sums = {}
    for amount in AMOUNTS:
        pasts = [(one.past(amount), count) for one, count in counts.items()]
        known = [(past, count) for past, count in pasts if past]
        values = known[0][0] if [count for _, count in known] == [1] else []
        if known and not values:
            random = Random(0)  # noqa: S311 -- keeps no secret
            values = [sum(sum(random.choices(past, k=count)) for past, count in known) for _ in range(_DRAWS)]
        sums[amount] = Sum(range_of(values), sum(count for past, count in pasts if not past))
    return sums


def range_of(values: Sequence[float]) -> Range | None:
    """Return the median and the range of the middle 80 percent of the values, or None if there are no values."""
    if not values:
        return None
    ordered = sorted(values)

    def at(share: float) -> float:
        place = share * (len(ordered) - 1)
        below = int(place)
        above = min(below + 1, len(ordered) - 1)
        return round(ordered[below] + (ordered[above] - ordered[below]) * (place - below), 6)

    return Range(at(0.1), at(0.5), at(0.9))


class PastThreads:
    """The amounts that the ended threads of a workflow have used."""

    def __init__(self, store: Store, workflow: str) -> None:
        """`workflow` is a name; threads of all versions of the workflow count."""
        rests: dict[tuple[str, int], list[Rest]] = defaultdict(list)
        self.threads = steps = 0
        for ref in islice(_newest_ended(store, workflow), MOST_THREADS):
            if steps > MOST_STEPS:
                break
            try:
                found = list(_rests_of(store, ref))
            except (NotFound, Damaged):
                continue  # the other threads are enough
            self.threads += 1
            steps += sum(read for _, _, read in found)
            turns: Counter[str] = Counter()
            for role, rest, _ in reversed(found):
                turns[role] += 1
                rests[role, turns[role]].append(rest)
                rests[role, _ANY].append(rest)
        self._rests = {call: Forecast(tuple(found)) for call, found in rests.items()}

    def rest_from(self, role: str, turn: int = 1) -> Forecast:
        """Return a forecast from a turn of a role to the end of the thread. It is based on the same turn in earlier
        threads or, if no thread reached that turn, on all of the role's turns."""
        return self._rests.get((role, turn)) or self._rests.get((role, _ANY), UNKNOWN)


def _newest_ended(store: Store, workflow: str) -> Iterator[ThreadRef]:
    last = "thread/~"
    where: dict[str, list[str]] = {"name": [workflow], "status": [Status.COMPLETED, Status.FAILED]}
    for _ in range(_MOST_PAGES):  # all threads on a page can be members of groups
        page = store.refs("thread/", where=where, before=last, newest_first=True, limit=_PAGE)
        yield from (load(ref) for ref in page if not ref.state.get("member"))
        if len(page) < _PAGE:
            return
        last = page[-1].name


def _rests_of(store: Store, ref: ThreadRef) -> Iterator[tuple[str, Rest, int]]:
    """Yield, newest step first, the role of each step, the amounts used from that step to the end of the thread, and
    the number of steps read."""
    steps = list(Chain(store, ref.head))
    if not steps:
        return
    # The totals include failed attempts and the amounts saved by reuse; each step says which amounts its agent
    # reported.
    at_end, known = _amounts_in(steps[0]), set(AMOUNTS)
    for step, before in zip(steps, [*steps[1:], None], strict=True):
        of_step, read = _find_known(store, step)
        known &= of_step
        earlier = _amounts_in(before) if before else {}
        rest = Rest(**{key: round(at_end[key] - earlier.get(key, 0), 6) for key in known})
        if step.role not in (PERSON, FORK):
            yield step.role, rest, read


def _amounts_in(step: Step) -> dict[str, float]:
    """Return the amounts that the thread would have used up to and including a step if nothing had been reused."""
    totals = step.payload["totals"]
    return {key: totals.get(key, 0) + totals.get("saved", {}).get(key, 0) for key in AMOUNTS}


def _find_known(store: Store, step: Step) -> tuple[set[str], int]:
    """Return the known amounts of a step, and the number of steps read to find them. A person, a function or a command
    costs nothing; an agent costs what it reported; a group or another workflow costs the sum of its steps."""
    if step.role in (PERSON, FORK) or is_unpaid(step.agent):
        return set(AMOUNTS), 1
    if step.reused is not None:  # how long the agent would have taken is unknown
        return set(count_usage(step.reused.saved, ms=0)) - {"minutes"}, 1
    players = step.payload.get("children", ())
    if "group" in step.payload:
        players = [member["id"] for member in step.output["members"] if member["id"]]
    elif not players:
        return {"minutes", *count_usage(step.payload.get("usage"), ms=0)}, 1
    known, read = set(AMOUNTS), 1
    for ref in (read_thread(store, player) for player in players):
        taken = list(Chain(store, ref.head)) if ref else []
        if not taken:  # a member that failed may have incurred costs
            known &= {"minutes"}
        for one in taken:
            of_one, more = _find_known(store, one)
            known, read = known & of_one, read + more
    return known, read
