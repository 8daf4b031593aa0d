"""Finds the first step at which two threads with the same task diverge."""

from __future__ import annotations

from itertools import zip_longest
from typing import Any, NamedTuple

from rolecall.errors import Damaged, NotFound
from rolecall.files.tree import Trees
from rolecall.store.store import Store
from rolecall.threads import why
from rolecall.threads.key import describe_step, differences
from rolecall.threads.thread import FORK, Chain, Step

_MOST_CHARACTERS = 40


class Parting(NamedTuple):
    """The first step with a different result. If no step differs, `step` is None and only the judges differ."""

    step: int | None
    role: str
    part: str
    """The first part of the step's key that differs, as `thread why` names it; empty if it was asked the same."""
    asked: str
    """The differences in its prompt and files, in words."""
    answered: str
    """The differences in its result, in words."""

    def __str__(self) -> str:
        if self.step is None:
            return self.answered
        given = self.asked or "asked the same"
        return f"step {self.step} {self.role}: {given}; {self.answered}"


def find_parting(store: Store, trees: Trees, base: str, variant: str) -> Parting | None:
    """Where the chains that end in these nodes diverge; None if they are not in this store."""
    try:
        chains = [
            [step for step in reversed(list(Chain(store, head))) if step.role != FORK]
            for head in (base, variant)
        ]
        for number, (was, now) in enumerate(zip_longest(*chains), 1):
            if was is None or now is None or was.role != now.role:
                roles = [step.role if step else "" for step in (now, was)]
                way = [f"goes to {roles[0]}" if now else "ends", f"went to {roles[1]}" if was else "ended"]
                return Parting(number, roles[0] or roles[1], "", "", f"it {way[0]} here, the base {way[1]}")
            if answered := _compare_results(was, now):
                parts = differences(was.parts, now.parts) if was.parts and now.parts else []
                parts = [part for part in parts if part != "repetition"]
                asked = why.describe_part(store, trees, was, now, parts[0]) if parts else ""
                return Parting(number, now.role, next(iter(parts), ""), asked, answered)
    except (NotFound, Damaged):
        return None
    return Parting(None, "", "", "", "every step has the same result, so only the judges differ")


def _compare_results(was: Step, now: Step) -> str:
    """The differences between the results of two steps, in words; empty if they are the same."""
    old, new = (describe_step(step.past) for step in (was, now))
    if old[1] != new[1]:
        both = [value if isinstance(value, dict) else {"output": value} for value in (old[1], new[1])]
        keys = [key for key in {**both[1], **both[0]} if both[0].get(key) != both[1].get(key)]
        key = "$status" if "$status" in keys else "status" if "status" in keys else keys[0]
        return f"{key} is {_word(both[1].get(key))}, was {_word(both[0].get(key))}"
    if was.tree and now.tree and was.tree.left.tree != now.tree.left.tree:
        return "it left other files"
    return "" if old[2] == new[2] else "it answered with another text"


def _word(value: Any) -> str:
    if value is None:
        return "missing"
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= _MOST_CHARACTERS else f"{text[: _MOST_CHARACTERS - 1]}…"
