"""A thread whose role begins in the session of an earlier thread: when it does, when it does not, and why."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from stage import LOOP, answer, attempts, book, engine, open_store, run, start, state, steps

from rolecall.agents.protocol import Context, Reply, Usage
from rolecall.errors import AgentError, UsageError
from rolecall.settings.mask import Mask
from rolecall.store.store import Store
from rolecall.threads import lifecycle, thread
from rolecall.threads.engine import Cast


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path / "store.db") as opened:
        yield opened


@dataclass
class Worker:
    """Plays both roles; says in which session it was asked. Every session costs half a dollar a turn."""

    files: tuple[str, ...] = ()
    can_resume: bool = True
    unknown: set[str] = field(default_factory=set)
    fails: list[str] = field(default_factory=list)
    rounds: int = 1
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    totals: list[Usage | None] = field(default_factory=list)

    async def __call__(self, prompt: str, context: Context) -> Reply:
        self.asked.append((context.role, context.session))
        self.told.append(prompt)
        self.totals.append(context.session_total)
        if context.session in self.unknown:
            raise AgentError("no such session", ending="failed", is_session_lost=True)
        if self.fails:
            raise AgentError("broken", ending=self.fails.pop(), session=context.session)  # type: ignore[arg-type]
        turns = sum(role == "worker" for role, _ in self.asked)
        said = "done" if context.role == "worker" else "end" if turns >= self.rounds else "again"
        session = context.session or f"s{len(self.asked)}"
        return Reply(answer(said, "x"), session=session, session_total=Usage(cost=0.5), files=self.files)

    def of_worker(self) -> list[str | None]:
        return [session for role, session in self.asked if role == "worker"]


def first_thread(store: Store, folder: Path, agent: Any) -> dict[str, str]:
    """A thread that is done; where a later one may begin."""
    name = start(store, book(LOOP), folder)
    run(engine(store, agent), name)
    step = next(step for step in steps(store, name) if step.role == "worker")
    return {"thread": name, "step": step.id}


def begun(store: Store, folder: Path, origin: dict[str, str], **options: Any) -> str:
    return start(store, book(LOOP), folder, prompt="Go on with it", sessions={"worker": origin}, **options)


def reason(store: Store, name: str) -> str:
    step = next(step for step in steps(store, name) if step.role == "worker")
    return str(step.payload.get("session_reason", ""))


def test_a_role_begins_in_the_session_it_was_given_and_is_told_everything(
    store: Store, tmp_path: Path
) -> None:
    agent = Worker()
    origin = first_thread(store, tmp_path, agent)
    name = begun(store, tmp_path, {**origin, "tier": "persistent"})
    run(engine(store, agent), name)
    assert agent.of_worker() == [None, "s1"]
    assert "# Task\n\nGo on with it" in agent.told[2]
    assert agent.totals[2] == Usage(cost=0.5)
    assert reason(store, name) == f"resumed: persistent, from step 1 of {origin['thread']}"
    assert state(store, name)["sessions"] == {"worker": {**origin, "tier": "persistent"}}


def test_only_the_first_turn_of_the_role_begins_there(store: Store, tmp_path: Path) -> None:
    origin = first_thread(store, tmp_path, Worker())
    agent = Worker(rounds=2)
    run(engine(store, agent), begun(store, tmp_path, {**origin, "tier": "persistent"}))
    assert agent.of_worker() == ["s1", None]
    assert [session for role, session in agent.asked if role == "checker"] == [None, None]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (None, "resumed: bounded, from step 1 of {thread}"),
        ("write", "new: bounded, and a.txt has changed since"),
        ("remove", "new: bounded, and a.txt has been removed since"),
    ],
)
def test_a_bounded_session_is_left_when_its_files_have_changed(
    store: Store, tmp_path: Path, change: str | None, expected: str
) -> None:
    file = tmp_path / "a.txt"
    file.write_text("one")
    os.utime(file, (1, 1))
    origin = first_thread(store, tmp_path, Worker(files=("a.txt",)))
    if change == "write":
        os.utime(file, (4e9, 4e9))
    elif change == "remove":
        file.unlink()
    name = begun(store, tmp_path, {**origin, "tier": "bounded"})
    run(engine(store, Worker()), name)
    assert reason(store, name) == expected.format(**origin)


def test_an_agent_that_does_not_know_the_session_is_asked_anew(store: Store, tmp_path: Path) -> None:
    origin = first_thread(store, tmp_path, Worker())
    agent = Worker(unknown={"s1"})
    name = begun(store, tmp_path, {**origin, "tier": "persistent"})
    outcomes = run(engine(store, agent), name)
    assert outcomes[-1].status == "completed"
    assert agent.of_worker() == ["s1", None]
    assert reason(store, name) == "new: the agent does not know its session any more"


def test_a_session_in_which_the_first_attempt_failed_is_not_tried_again(store: Store, tmp_path: Path) -> None:
    origin = first_thread(store, tmp_path, Worker())
    agent = Worker(fails=["failed"])
    name = begun(store, tmp_path, {**origin, "tier": "persistent"})
    assert run(engine(store, agent), name)[-1].status == "suspended"
    lifecycle.resume(store, thread.find(store, name), mask=Mask([]))
    run(engine(store, agent), name)
    assert agent.of_worker() == ["s1", None]


def test_an_interrupted_first_turn_goes_on_where_it_was(store: Store, tmp_path: Path) -> None:
    origin = first_thread(store, tmp_path, Worker())
    agent = Worker(fails=["api_failure"])
    name = begun(store, tmp_path, {**origin, "tier": "persistent"})
    run(engine(store, agent), name)
    assert attempts(store, name)[0]["session"] == "s1"
    lifecycle.resume(store, thread.find(store, name), mask=Mask([]))
    run(engine(store, agent), name)
    assert agent.of_worker() == ["s1", "s1"]
    assert reason(store, name) == "resumed: the attempt before was interrupted"


def test_a_session_of_another_agent_or_folder_is_left(store: Store, tmp_path: Path) -> None:
    origin = {**first_thread(store, tmp_path / "one", Worker()), "tier": "persistent"}
    elsewhere = begun(store, tmp_path / "two", origin)
    run(engine(store, Worker()), elsewhere)
    assert reason(store, elsewhere) == f"new: the session belongs to {tmp_path / 'one'}"
    other = Worker()
    played = begun(store, tmp_path / "one", origin)
    run(engine(store, other, cast=lambda _book, _role: Cast("other", other)), played)
    assert reason(store, played) == f"new: the session of {origin['thread']} belongs to test"


def test_an_agent_that_cannot_resume_starts_anew_and_says_so(store: Store, tmp_path: Path) -> None:
    origin = first_thread(store, tmp_path, Worker())
    agent = Worker(can_resume=False)
    name = begun(store, tmp_path, {**origin, "tier": "persistent"})
    run(engine(store, agent), name)
    assert agent.of_worker() == [None]
    assert reason(store, name) == "new: test cannot resume"


def test_a_step_that_is_gone_or_had_no_session_is_no_hindrance(store: Store, tmp_path: Path) -> None:
    origin = first_thread(store, tmp_path, Worker())
    gone = begun(store, tmp_path, {"thread": origin["thread"], "step": "0" * 13, "tier": "persistent"})
    run(engine(store, Worker()), gone)
    assert reason(store, gone) == f"new: {origin['thread']} has no session to begin in"


def test_a_role_that_was_refused_a_session_tells_why(store: Store, tmp_path: Path) -> None:
    name = begun(store, tmp_path, {"refusal": "the task says so"})
    run(engine(store, Worker()), name)
    assert reason(store, name) == "new: the task says so"


def test_a_fork_of_such_a_thread_does_not_begin_in_that_session(store: Store, tmp_path: Path) -> None:
    origin = first_thread(store, tmp_path, Worker())
    name = begun(store, tmp_path, {**origin, "tier": "persistent"})
    ref = thread.find(store, name)
    forked = lifecycle.fork(store, ref.head, mask=Mask([]), source=ref)
    agent = Worker()
    run(engine(store, agent), forked.id)
    assert agent.of_worker() == [None]


def test_a_role_that_the_workflow_has_not_cannot_be_given_a_session(store: Store, tmp_path: Path) -> None:
    origin = {**first_thread(store, tmp_path, Worker()), "tier": "persistent"}
    with pytest.raises(UsageError, match="'nobody', which is not a role"):
        start(store, book(LOOP), tmp_path, sessions={"nobody": origin})
