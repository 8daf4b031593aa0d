"""Ranges and sums of what threads have used."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import stage

from rolecall.agents.protocol import Reply, Usage
from rolecall.files.tree import Trees
from rolecall.settings.capabilities import CLASSES
from rolecall.threads.forecast import (
    NOTHING,
    UNKNOWN,
    Forecast,
    PastThreads,
    Range,
    Rest,
    Sum,
    add_up,
    range_of,
)

GROUP = """
name: ask-three
roles:
  asker:
    prompt: Ask.
    times: 3
    capabilities: [read_only]
    schema: {type: object, properties: {$status: {const: done}}, required: [$status]}
graph: {$START: asker, asker: $END}
"""


@dataclass
class Asker:
    """Tells what the first answers cost, and not what others do."""

    tells: int = field(compare=False)
    deniable: ClassVar[frozenset[str]] = frozenset(CLASSES)

    async def __call__(self, _prompt: str, _context: Any) -> Reply:
        self.tells -= 1
        return Reply(stage.answer("done"), usage=Usage(100, 50, cost=0.1) if self.tells >= 0 else None)


def test_the_amounts_of_a_group_are_known_if_those_of_all_members_are(tmp_path: Path) -> None:
    with stage.open_store(tmp_path / "store.db") as store:

        def run(workflow: str, *, tells: int, **options: Any) -> Rest:
            text = GROUP.replace("ask-three", workflow)
            name = stage.start(store, stage.book(text), tmp_path / "work", **options)
            playing = stage.engine(store, Asker(tells=tells), trees=Trees(str(tmp_path / "trees")))
            assert stage.run(playing, name)[-1].status == "completed"
            return PastThreads(store, workflow).rest_from("asker").rests[0]

        some, all_of_them = run("ask-some", tells=1), run("ask-all", tells=3)
        assert (some.cost, some.tokens, some.minutes is None) == (None, None, False)
        assert (all_of_them.cost, all_of_them.tokens) == (0.3, 450)
        reused = run("ask-all", tells=0, reuse=True)
        assert reused == Rest(0.3, 450, None)


def test_a_range_is_the_median_and_four_fifths_of_the_past() -> None:
    assert range_of([float(value) for value in range(11, 0, -1)]) == Range(2, 6, 10)
    assert range_of([3.0]) == Range(3, 3, 3)
    assert range_of([]) is None


def test_unknown_amounts_are_counted_and_never_zero() -> None:
    past = Forecast((Rest(1.0, 10, None), Rest(None, 30, None)))
    assert add_up([past]) == {
        "cost": Sum(Range(1, 1, 1), 0),
        "tokens": Sum(Range(12, 20, 28), 0),
        "minutes": Sum(None, 1),
    }
    sums = add_up([past, past, UNKNOWN, NOTHING])
    assert sums["cost"] == Sum(Range(2, 2, 2), 1)
    assert sums["minutes"] == Sum(Range(0, 0, 0), 3)


def test_a_sum_varies_less_than_its_parts() -> None:
    past = Forecast(tuple(Rest(float(cost)) for cost in range(1, 11)))
    found = add_up([past] * 100)["cost"].range
    assert found is not None
    assert 500 < found.low < found.median < found.high < 600
    assert add_up([past] * 100)["cost"].range == found
