"""What the repository says about a task: found once for each time an agent is asked, and kept as it was told."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from stage import LOOP, answer, attempts, book, engine, open_store, run, says, start, state, steps

from rolecall.agents.protocol import Reply
from rolecall.errors import AgentError, UsageError
from rolecall.settings.mask import Mask
from rolecall.store.store import Store
from rolecall.threads import lifecycle, thread
from rolecall.threads.attempt import Attempt
from rolecall.threads.engine import Cast
from rolecall.threads.loaded_thread import LoadedThread, next_of
from rolecall.threads.setup import Recalled
from rolecall.workflow.model import Recall
from rolecall.workflow.route import Next

KNOWING = LOOP.replace("    goal: Work.\n", "    goal: Work.\n    knowledge: {tokens: 300, path: docs/}\n")


class Library:
    """Says something else each time it is asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[Recall, str, str]] = []

    async def __call__(self, wanted: Recall, question: str, folder: str) -> Recalled:
        self.asked.append((wanted, question, folder))
        return Recalled(f"Passage {len(self.asked)}.", [f"Note {len(self.asked)}."])


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path / "store.db") as opened:
        yield opened


def test_only_the_role_that_wants_it_is_given_it_and_by_its_own_task(store: Store, tmp_path: Path) -> None:
    library = Library()
    name = start(store, book(KNOWING), tmp_path / "work", "Raise the limit")
    run(engine(store, says(answer("done"), answer("end")), recall=library), name)
    worker, checker = steps(store, name)
    assert "# From this repository\n\nPassage 1." in worker.prompt
    assert "From this repository" not in checker.prompt
    assert worker.detail["notes"] == ["Note 1."]
    (asked,) = library.asked
    assert asked == (Recall(300, "docs/"), "Raise the limit\n", str(tmp_path / "work"))


def test_after_a_failed_attempt_it_is_looked_for_again(store: Store, tmp_path: Path) -> None:
    library = Library()
    name = start(store, book(KNOWING), tmp_path / "work")
    failing = says(AgentError("gone", ending="failed"))
    run(engine(store, failing, recall=library), name)
    assert len(attempts(store, name)) == 1
    lifecycle.resume(store, thread.find(store, name), mask=Mask([]))
    run(engine(store, says(answer("stop")), recall=library), name)
    assert "Passage 2." in steps(store, name)[0].prompt


def test_an_answer_that_had_arrived_is_kept_with_what_was_told_for_it(store: Store, tmp_path: Path) -> None:
    library = Library()
    name = start(store, book(KNOWING), tmp_path / "work")
    chain = thread.Chain(store, thread.find(store, name).head)
    loaded = LoadedThread(name, chain, book(KNOWING))
    way = next_of(loaded)
    assert isinstance(way, Next)
    attempt = Attempt(store, loaded, way, mask=Mask([]), setup=engine(store, says(), recall=library))
    asyncio.run(_asked(attempt))
    run(engine(store, says(), recall=library), name, steps=1)
    assert len(library.asked) == 1
    assert "Passage 1." in steps(store, name)[0].prompt


async def _asked(attempt: Attempt) -> None:
    """Up to the answer; then the process is gone."""
    await attempt.make_prompt(Cast("test", says()))
    attempt.note_asking("test")
    attempt.note_answer(Reply(answer("done")))


async def refuse(_wanted: Recall, _question: str, _folder: str) -> Recalled:
    raise UsageError("there is no index", hint="Make one.")


def test_where_there_is_nothing_to_look_in_the_agent_and_the_reader_are_told(
    store: Store, tmp_path: Path
) -> None:
    name = start(store, book(KNOWING), tmp_path / "work")
    run(engine(store, says(answer("stop")), recall=refuse), name)
    (step,) = steps(store, name)
    assert "# From this repository\n\nThe repository cannot be searched" in step.prompt
    assert step.detail["notes"] == ["there is no index. Make one."]


def test_where_there_has_to_be_something_to_look_in_the_thread_waits(store: Store, tmp_path: Path) -> None:
    name = start(store, book(KNOWING.replace("docs/}", "docs/, required: true}")), tmp_path / "work")
    run(engine(store, says(), recall=refuse), name)
    assert state(store, name)["status"] == "suspended"
    assert "there is no index. Make one." in state(store, name)["reason"]
    assert steps(store, name) == []
