"""The sections of a file: in order, without overlaps, covering every line."""

from __future__ import annotations

from typing import NamedTuple


class Section(NamedTuple):
    start: int
    """The first line, counted from 1."""
    end: int
    """Its last line."""
    trail: tuple[str, ...]
    """The enclosing names, outermost first, ending with its own name."""


def between(marks: list[tuple[int, tuple[str, ...]]], count: int) -> list[Section]:
    """Divide a file of `count` lines at the marked lines; lines before the first mark have no trail."""
    if not marks or marks[0][0] > 1:
        marks = [(1, ()), *marks]
    ends = [start - 1 for start, _ in marks[1:]] + [count]
    return [
        Section(start, end, trail) for (start, trail), end in zip(marks, ends, strict=True) if start <= end
    ]
