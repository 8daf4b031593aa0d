"""The sections of a file: in order, without overlap, covering all lines."""

from __future__ import annotations

from typing import NamedTuple


class Section(NamedTuple):
    start: int
    """Its first line, from 1."""
    end: int
    """Its last line."""
    trail: tuple[str, ...]
    """The names around it, from the outside in, its own last."""


def between(marks: list[tuple[int, tuple[str, ...]]], count: int) -> list[Section]:
    """The sections of a file of `count` lines that begin at the marked lines; what comes before has no trail."""
    if not marks or marks[0][0] > 1:
        marks = [(1, ()), *marks]
    ends = [start - 1 for start, _ in marks[1:]] + [count]
    return [
        Section(start, end, trail) for (start, trail), end in zip(marks, ends, strict=True) if start <= end
    ]
