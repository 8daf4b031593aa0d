"""A role that is called once more: with the same instruction, in the same folder, and not paid for twice."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from stage import LOOP, answer, attempts, book, engine, open_store, run, says, start, state, steps

from rolecall.agents.protocol import Context, Reply, Usage
from rolecall.errors import AgentError, ExtractError
from rolecall.settings.mask import Mask
from rolecall.store.store import Store
from rolecall.threads import lifecycle, thread

LOCATED = LOOP.replace("$START: worker", "$START: {role: worker, prompt: Mind the gap., location: sub}")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path / "store.db") as opened:
        yield opened


def resume(store: Store, name: str, answer: str | None = None) -> None:
    lifecycle.resume(store, thread.find(store, name), mask=Mask([]), answer=answer)


@pytest.mark.parametrize(
    "first",
    [AgentError("out of credit", ending="failed"), "---\n$status: $SUSPEND\nreason: Which one?\n---\n"],
)
def test_an_answered_role_is_called_as_it_was_before(store: Store, tmp_path: Path, first: Any) -> None:
    (tmp_path / "work" / "sub").mkdir(parents=True)
    calls: list[tuple[str, str]] = []
    said = iter([first, AgentError("again", ending="failed"), answer("done"), answer("end")])

    async def speak(prompt: str, context: Context) -> str:
        calls.append((context.workdir.name, prompt))
        word = next(said)
        if isinstance(word, Exception):
            raise word
        return str(word)

    name = start(store, book(LOCATED), tmp_path / "work")
    run(engine(store, speak), name)
    for word in ("The left one.", "Truly."):
        resume(store, name, word)
        run(engine(store, speak), name)
    assert state(store, name)["status"] == "completed"
    assert [folder for folder, _ in calls] == ["sub", "sub", "sub", "work"]
    assert all("Mind the gap." in prompt for _, prompt in calls[:3])
    assert "The left one." in calls[1][1] and "The left one." in calls[2][1] and "Truly." in calls[2][1]


def test_an_answer_to_a_role_that_a_fork_does_not_have_is_told_before_anything_runs(
    store: Store, tmp_path: Path
) -> None:
    name = start(store, book(LOOP), tmp_path / "work")
    run(engine(store, says("---\n$status: $SUSPEND\nreason: Which?\n---\n")), name)
    resume(store, name, "That one.")
    other = book(LOOP.replace("worker", "writer"))
    with pytest.raises(Exception, match="'worker', which is not a role"):
        lifecycle.fork(store, thread.find(store, name).head, mask=Mask([]), workflow=other)


def test_what_a_person_said_is_no_step_to_conditions(store: Store, tmp_path: Path) -> None:
    text = LOOP.replace(
        "worker: {done: checker,", "worker: {done: {role: checker, prompt: '{{steps_count}}'},"
    )
    name = start(store, book(text), tmp_path / "work")
    run(engine(store, says("---\n$status: $SUSPEND\nreason: Which?\n---\n")), name)
    resume(store, name, "That one.")
    run(engine(store, says(answer("done"), answer("end"))), name)
    checker = steps(store, name)[-1]
    assert (checker.number, checker.payload["edge_prompt"]) == (4, "2")


class Reading:
    """An extract model that is down, or hangs, before it works."""

    def __init__(self, *results: Any) -> None:
        self.results = iter(results)
        self.begun = asyncio.Event()

    async def __call__(self, raw: str, _schema: Any, _overrides: Any) -> Any:
        result = next(self.results)
        self.begun.set()
        if result == "hang":
            await asyncio.Event().wait()
        if isinstance(result, Exception):
            raise result
        assert raw == "Nothing readable."
        return result, {}


async def mumble(_prompt: str, _context: Context) -> Reply:
    return Reply("Nothing readable.", usage=Usage(7, 3))


def test_an_answer_that_no_model_could_read_for_an_outage_is_read_again_and_not_asked_for(
    store: Store, tmp_path: Path
) -> None:
    model = Reading(ExtractError("it is down", is_outage=True), {"$status": "done", "note": "read"})
    name = start(store, book(LOOP), tmp_path / "work")
    assert run(engine(store, mumble, extract=model), name)[-1].status == "suspended"
    resume(store, name)
    run(engine(store, says(), extract=model), name, steps=1)  # an agent that was asked would fail
    (step,) = steps(store, name)
    assert (step.output["note"], step.body) == ("read", "Nothing readable.")
    assert "usage" not in step.payload  # it was paid for in the attempt
    assert store.get(step.payload["attempt"]).payload["usage"] == {"input_tokens": 7, "output_tokens": 3}


def test_an_answer_without_an_output_is_asked_for_again(store: Store, tmp_path: Path) -> None:
    model = Reading(ExtractError("nothing in it"))
    name = start(store, book(LOOP), tmp_path / "work")
    assert run(engine(store, mumble, extract=model), name)[-1].status == "suspended"
    resume(store, name)
    run(engine(store, says(answer("done"))), name, steps=1)
    assert steps(store, name)[0].output == {"$status": "done"}


def test_an_interruption_while_a_model_reads_keeps_the_answer(store: Store, tmp_path: Path) -> None:
    name = start(store, book(LOOP), tmp_path / "work")

    async def scene() -> str:
        model, cancel = Reading("hang"), asyncio.Event()
        task = asyncio.ensure_future(engine(store, mumble, extract=model).step(name, cancel=cancel))
        await asyncio.wait_for(model.begun.wait(), 60)
        cancel.set()
        return (await asyncio.wait_for(task, 60)).status

    assert asyncio.run(scene()) == "idle"
    assert attempts(store, name)[0]["ending"] == "interrupted"
    run(engine(store, says(), extract=Reading({"$status": "done"})), name, steps=1)
    assert steps(store, name)[0].body == "Nothing readable."


def test_the_hint_of_an_error_is_part_of_the_reason(store: Store, tmp_path: Path) -> None:
    name = start(store, book(LOOP), tmp_path / "work")
    error = AgentError("the program is not executable", ending="failed", hint="chmod +x it")
    (outcome,) = run(engine(store, says(error)), name)
    assert outcome.reason == "worker: the program is not executable. chmod +x it"
