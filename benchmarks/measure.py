"""Measuring and showing: interleaved rounds, wall and processor time, one table for every benchmark.

A figure alone says as much about the machine as about the program, so each is put beside a floor or a
peer measured in the same run, round by round in turn. What is compared is the median of the rounds.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import NamedTuple


class Timing(NamedTuple):
    """Seconds for one piece of work: by the clock, and on the processor (children included)."""

    wall: float
    cpu: float

    def per(self, count: int) -> Timing:
        return Timing(self.wall / count, self.cpu / count)


class Row(NamedTuple):
    """One line of a table. A row without a target is shown for information."""

    name: str
    value: str
    peer: str = ""
    ratio: str = ""
    cpu_ratio: str = ""
    target: str = ""
    met: bool | None = None


def timed(work: Callable[[], object]) -> Timing:
    wall, cpu = time.perf_counter(), _processor()
    work()
    return Timing(time.perf_counter() - wall, _processor() - cpu)


def interleaved(rounds: int, *works: Callable[[], Timing]) -> list[Timing]:
    """The median of each work, all of them taking turns so that a busy machine disturbs them alike."""
    timings: list[list[Timing]] = [[] for _ in works]
    for _ in range(rounds):
        for found, work in zip(timings, works, strict=True):
            found.append(work())
    return [
        Timing(median(timing.wall for timing in found), median(timing.cpu for timing in found))
        for found in timings
    ]


def peak_memory() -> float:
    """The most memory this process has held, in MB.

    The kernel hands a process that was just started its parent's peak as its own in `ru_maxrss`;
    the figure in /proc begins anew with the program.
    """
    try:
        with open("/proc/self/status", encoding="ascii") as file:
            kilobytes = next(int(line.split()[1]) for line in file if line.startswith("VmHWM:"))
    except FileNotFoundError:
        kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return kilobytes * 1024 / 1e6


def times(value: float, peer: float) -> str:
    return f"{value / peer:.2f}"


def print_table(title: str, rows: Sequence[Row]) -> None:
    heads = ("", "value", "floor or peer", "ratio", "cpu ratio", "target", "")
    lines = [heads, *(_cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
    print(f"\n{title}")
    for line in lines:
        cells = [line[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(line[1:-1], widths[1:-1], strict=True)]
        print(("  " + "  ".join([*cells, line[-1]])).rstrip())


def _cells(row: Row) -> tuple[str, ...]:
    verdict = "" if row.met is None else "met" if row.met else "missed"
    return (row.name, row.value, row.peer, row.ratio, row.cpu_ratio, row.target, verdict)


def _processor() -> float:
    own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime
