"""Why a step was reused or not, in words."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from stage import LOOP, answer, book, engine, open_store, run, says, start

from rolecall.errors import UsageError
from rolecall.files.tree import Trees
from rolecall.settings.mask import Mask
from rolecall.store.store import Store
from rolecall.threads import commit, thread
from rolecall.threads.why import explain
from rolecall.workflow import registry


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path / "store.db") as opened:
        yield opened


class Stage:
    def __init__(self, store: Store, place: Path) -> None:
        self.store, self.place, self.trees = store, place, Trees(str(place / "trees"))

    def play(
        self, *, text: str = LOOP, task: str = "Do it", report: str = "Worked.", file: str = "x", **how: Any
    ) -> str:
        """Run a thread of two steps in a folder with one file, and return its id."""
        folder = self.place / "work"
        name = start(self.store, book(text), folder, task, **how)
        (folder / "a").write_text(file)
        agent = says(answer("done", body=report), answer("end"))
        run(engine(self.store, agent, trees=self.trees), name)
        return name

    def explain(self, name: str, at: str | None = None) -> Any:
        return explain(self.store, self.trees, thread.find(self.store, name), at)


@pytest.fixture
def stage(store: Store, tmp_path: Path) -> Stage:
    return Stage(store, tmp_path)


@pytest.mark.parametrize(
    ("change", "at", "part", "words"),
    [
        (
            {"text": LOOP.replace("goal: Work.", "goal: Work hard.")},
            "1",
            "role",
            "the role as defined: its prompt",
        ),
        (
            {"text": f"{LOOP}sandbox: {{network: none}}\n"},
            "1",
            "role",
            "the role as defined: its sandbox",
        ),
        ({"task": "Do more"}, "1", "task", "the task"),
        ({"report": "Worked hard."}, "2", "history", "the earlier steps that it was shown"),
        ({"file": "y"}, "1", "tree", "the files it found: 1 differs: a"),
        (
            {"text": LOOP.replace("{done: checker,", "{done: {role: checker, prompt: Look.},")},
            "2",
            "instruction",
            "the instruction: 'Look.', was ''",
        ),
    ],
)
def test_the_first_part_that_differs_from_the_nearest_step(
    stage: Stage, change: Any, at: str, part: str, words: str
) -> None:
    first = stage.play()
    found = stage.explain(stage.play(**change), at)
    assert (found["part"], found["nearest"]["thread"], found["number"]) == (part, first, int(at))
    assert found["text"] == f"asked: differs from step {at} of thread {first}: {words}"


def test_a_step_is_compared_with_earlier_ones_only_and_the_nearest_is_the_most_alike(
    stage: Stage, store: Store
) -> None:
    first, _, third = stage.play(), stage.play(task="Do more"), stage.play()
    assert stage.explain(first, "1")["text"] == "asked: no earlier step of this role is known"
    found = stage.explain(third)
    assert found["nearest"]["thread"] == first and found["differs"] == [] and found["key"]
    same = f"asked although step 2 of thread {first} has the same key: "
    assert found["text"] == f"{same}reuse was off for this step"
    # The thread wants reuse, but nothing was known when the step was asked.
    for ref in store.refs("key/"):
        draft = store.draft()
        draft.move(ref.name, ref)
        draft.commit()
    text = stage.explain(stage.play(reuse=True))["text"]
    assert text == f"{same.replace(first, third)}it could not be found by its key"


def test_a_step_without_a_key_says_why(stage: Stage, store: Store) -> None:
    name = start(store, book(LOOP), stage.place / "work")
    commit.answer(
        store,
        thread.find(store, name),
        registry.load_node(store, thread.find(store, name).state.workflow),
        {"$status": "done"},
        body="By hand.",
        mask=Mask([]),
    )
    assert stage.explain(name)["text"] == "it has no key: it was not taken by an agent"
    run(engine(store, says(answer("end"))), name)
    assert stage.explain(name)["text"] == "it has no key: the files from before the step were not recorded"
    with pytest.raises(UsageError, match="has no such step"):
        stage.explain(name, "start")
