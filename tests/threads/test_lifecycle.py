"""A thread's life outside its steps: what start, fork, resume, answer and kill refuse, and what they leave."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import stage
from stage import LOOP, answer, assert_whole, book, engine, events, run, says, start, state, steps

from rolecall.errors import AgentError, Conflict, InvalidPayload, NotFound, UsageError
from rolecall.settings.mask import Mask
from rolecall.store import holder
from rolecall.store.store import Store
from rolecall.threads import commit, lifecycle, thread
from rolecall.workflow import registry
from rolecall.workflow.model import Limits

NONE = Mask([])


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with stage.open_store(tmp_path / "store.db") as opened:
        yield opened
        stage.assert_sound(opened)


@pytest.fixture
def name(store: Store, tmp_path: Path) -> str:
    return start(store, book(LOOP), tmp_path / "work")


def held(store: Store, name: str) -> None:
    """As if this very process were running the thread."""
    ref = thread.find(store, name)
    lease = {**holder.identify_self("here"), "deadline": store.now() + holder.LEASE_MS}
    store.move(ref.ref.name, ref.ref, ref.head, {**ref.ref.state, "status": "running", "lease": lease})


# -- start --


def test_starting_runs_nothing_and_knows_the_first_role(store: Store, name: str) -> None:
    assert steps(store, name) == [] and events(store, name) == ["started"]
    assert {key: state(store, name)[key] for key in ("status", "name", "title", "role")} == {
        "status": "idle",
        "name": "run-loop",
        "title": "Do it",
        "role": "worker",
    }


def test_a_stored_workflow_is_started_by_its_id(store: Store, tmp_path: Path) -> None:
    node = registry.register(store, book(LOOP))
    ref = lifecycle.start(store, node, "Do it", cwd=str(tmp_path), mask=NONE)
    assert ref.state.workflow == node and ref.state.name == "run-loop"


def test_a_thread_needs_a_prompt_and_a_folder(store: Store, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="needs a prompt"):
        lifecycle.start(store, book(LOOP), " \n", cwd=str(tmp_path), mask=NONE)
    with pytest.raises(UsageError, match="does not exist"):
        lifecycle.start(store, book(LOOP), "Do it", cwd=str(tmp_path / "missing"), mask=NONE)
    assert store.refs("thread/") == []


def test_a_title_is_the_first_line_that_says_something(store: Store, tmp_path: Path) -> None:
    name = start(store, book(LOOP), tmp_path / "work", "\n  \n" + "long " * 50 + "\nmore")
    assert len(state(store, name)["title"]) == 100 and state(store, name)["title"].endswith("…")


def test_threads_are_found_by_either_end_of_their_ids(store: Store, name: str) -> None:
    assert thread.find(store, name[-8:]) == thread.find(store, name.lower()) == thread.find(store, name)
    with pytest.raises(NotFound):
        thread.find(store, "0000")
    with pytest.raises(UsageError, match="too short"):
        thread.find(store, name[:2])


# -- resume, answer, kill --


def test_ended_threads_cannot_be_resumed_answered_or_killed(store: Store, name: str) -> None:
    run(engine(store, says(answer("done"), answer("end"))), name)
    ref = thread.find(store, name)
    with pytest.raises(UsageError, match="is completed"):
        lifecycle.resume(store, ref, mask=NONE)
    with pytest.raises(UsageError, match="is completed"):
        commit.answer(store, ref, book(LOOP), {"$status": "done"}, body="", mask=NONE)
    with pytest.raises(UsageError, match="already completed"):
        lifecycle.kill(store, ref, mask=NONE)
    assert thread.find(store, name) == ref


def test_a_thread_that_runs_is_neither_resumed_nor_answered(store: Store, name: str) -> None:
    held(store, name)
    ref = thread.find(store, name)
    with pytest.raises(Conflict, match="is being run by process"):
        lifecycle.resume(store, ref, mask=NONE, answer="now")
    with pytest.raises(Conflict, match="is being run by process"):
        commit.answer(store, ref, book(LOOP), {"$status": "done"}, body="", mask=NONE)


def test_killing_names_the_process_that_still_runs_the_thread(store: Store, name: str) -> None:
    held(store, name)
    killed, lease = lifecycle.kill(store, thread.find(store, name), "enough", mask=NONE)
    assert lease is not None and lease["pid"] == holder.identify_self("")["pid"]
    assert killed.state.status == "killed" and killed.state.reason == "enough"
    assert "lease" not in killed.state and events(store, name)[-1] == "killed"


def test_a_question_is_not_answered_by_silence(store: Store, name: str) -> None:
    run(engine(store, says("---\n$status: $SUSPEND\nreason: Which?\n---\n")), name)
    with pytest.raises(UsageError, match="waits for an answer: Which"):
        lifecycle.resume(store, thread.find(store, name), mask=NONE)
    lifecycle.resume(store, thread.find(store, name), mask=NONE, answer="That one.")
    assert state(store, name)["role"] == "worker" and state(store, name)["steps"] == 2
    assert_whole(store, name)


def test_a_failed_attempt_is_tried_again_with_or_without_a_word(store: Store, name: str) -> None:
    failing = AgentError("down", ending="api_failure")
    run(engine(store, says(failing)), name)
    lifecycle.resume(store, thread.find(store, name), mask=NONE)
    assert len(steps(store, name)) == 0
    run(engine(store, says(failing)), name)
    lifecycle.resume(store, thread.find(store, name), mask=NONE, answer="Try the other endpoint.")
    received: list[str] = []

    async def listen(prompt: str, _context: Any) -> str:
        received.append(prompt)
        return answer("done")

    run(engine(store, listen), name, steps=1)
    assert "Try the other endpoint." in received[0]
    assert len(stage.linked(store, steps(store, name)[-1].payload["attempt"])) == 2


def test_two_who_resume_at_once_are_told_apart(store: Store, name: str) -> None:
    run(engine(store, says(AgentError("down", ending="api_failure"))), name)
    seen = thread.find(store, name)
    lifecycle.resume(store, seen, mask=NONE, answer="first")
    with pytest.raises(Conflict):
        lifecycle.resume(store, seen, mask=NONE, answer="second")
    assert [step.output["answer"] for step in steps(store, name)] == ["first"]


def test_a_person_plays_a_role_and_is_held_to_its_schema(store: Store, name: str) -> None:
    ref = thread.find(store, name)
    with pytest.raises(InvalidPayload, match="does not fit what worker must deliver"):
        commit.answer(store, ref, book(LOOP), {"$status": "perhaps"}, body="", mask=NONE)
    commit.answer(store, ref, book(LOOP), {"$status": "done"}, body="By hand.", mask=NONE)
    commit.answer(store, thread.find(store, name), book(LOOP), {"$status": "end"}, body="", mask=NONE)
    assert [(step.role, step.agent, step.body) for step in steps(store, name)] == [
        ("worker", "human", "By hand."),
        ("checker", "human", ""),
    ]
    assert state(store, name)["status"] == "completed"
    assert_whole(store, name)


def test_a_secret_in_the_reason_of_a_kill_is_masked(store: Store, name: str) -> None:
    killed, _ = lifecycle.kill(store, thread.find(store, name), "leaked tiger-42", mask=Mask(["tiger-42"]))
    assert "tiger-42" not in killed.state.reason
    assert "tiger-42" not in str(store.events(name))


def test_what_is_limited_has_one_list_of_names() -> None:
    assert Limits._fields == thread.LIMITS


# -- fork --


def test_a_fork_keeps_limits_and_agent_of_its_thread(store: Store, tmp_path: Path) -> None:
    name = start(store, book(LOOP), tmp_path / "work", agent="human")
    lifecycle.resume(store, thread.find(store, name), mask=NONE, limits={"steps": 7})
    source = thread.find(store, name)
    fork = lifecycle.fork(store, source.head, mask=NONE, source=source)
    assert fork.state.limits == {"steps": 7} and fork.state.agent == "human"
    assert fork.state.forked_thread == name and fork.state.forked_from == source.head


def test_a_fork_of_a_fork_goes_on_from_the_step_it_is_of(store: Store, name: str) -> None:
    run(engine(store, says(answer("done"), answer("again", "x"))), name, steps=2)
    first = lifecycle.fork(store, steps(store, name)[1].id, mask=NONE, prompt="Second task")
    second = lifecycle.fork(store, first.head, mask=NONE, prompt="Third task").id
    received: list[str] = []

    async def listen(prompt: str, context: Any) -> str:
        received.append(prompt)
        return answer("done" if context.role == "worker" else "end")

    run(engine(store, listen), second)
    assert [step.role for step in steps(store, second)] == [
        "worker",
        "checker",
        "$FORK",
        "$FORK",
        "worker",
        "checker",
    ]
    assert all("Third task" in prompt and "Second task" not in prompt for prompt in received)
    assert_whole(store, second)


def test_a_node_that_is_no_step_cannot_be_forked(store: Store) -> None:
    node = store.put_text("not a step")
    with pytest.raises((UsageError, NotFound)):
        lifecycle.fork(store, node, mask=NONE)
    with pytest.raises(NotFound):
        lifecycle.fork(store, "0000000000000", mask=NONE)


@pytest.mark.parametrize(
    ("prompt", "title"),
    [
        ("\n# The sum\n\nis wrong", "The sum"),
        ("#42 is wrong", "#42 is wrong"),
        ("#", "#"),
        ("x" * 200, "x" * 99 + "…"),
    ],
)
def test_the_title_of_a_thread_is_the_first_line_of_its_task(prompt: str, title: str) -> None:
    assert thread.title_of(prompt) == title
