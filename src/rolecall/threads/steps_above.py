"""The steps before a group, as its members see them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import count
from typing import TYPE_CHECKING, Any

from rolecall.store.lazy import Module
from rolecall.store.store import Store
from rolecall.threads.prompt import ShownStep
from rolecall.threads.thread import FORK, PERSON, Chain

if TYPE_CHECKING:
    from rolecall.workflow import condition
else:
    condition = Module("rolecall.workflow.condition")

_LEFT_OUT = "(a list whose items are given to members, one to each)"
"""The text shown instead of the list of items. Members of a group do not see the list, because the question to one
member must not depend on the other items."""


class StepsAbove:
    """The steps before a group, as the group's members see them. The steps are read once for all members that this
    process runs, and only as far as needed. The list that `each` names is left out. If `each` is an expression, all
    lists in the fields that it uses are left out."""

    def __init__(self, chain: Chain, each: str | None) -> None:
        self._unread = (step for step in chain if step.role != FORK)
        self._read: list[tuple[str, ShownStep]] = []
        self._left_out = condition.output_fields(each) if each else ()
        self._place = 0
        """The number of steps of roles that were read; `each` does not see the steps of people."""

    def __iter__(self) -> Iterator[tuple[str, ShownStep]]:
        """Yield each step with its id, newest first."""
        for place in count():
            if place == len(self._read):
                step = next(self._unread, None)
                if step is None:
                    return
                self._place += step.role != PERSON
                output, is_cut = step.output, False
                for field in self._left_out:
                    if field.recent in (None, self._place) and field.name in output:
                        shown = _leave_out_list(output[field.name], field.path)
                        is_cut = is_cut or shown != output[field.name]
                        output[field.name] = shown
                self._read.append((step.id, step.past._replace(output=output, is_cut=is_cut)))
            yield self._read[place]


@lru_cache(maxsize=8)
def read_above(store: Store, head: str, each: str | None) -> StepsAbove:
    return StepsAbove(Chain(store, head), each)


def _leave_out_list(value: Any, path: tuple[str, ...] | None) -> Any:
    """Return the value without the list at `path` or, if `path` is None, without any list below it."""
    if isinstance(value, list):
        return _LEFT_OUT
    if not isinstance(value, dict):
        return value
    names = value.keys() if path is None else value.keys() & {*path[:1]}
    return {**value, **{name: _leave_out_list(value[name], path and path[1:]) for name in names}}
