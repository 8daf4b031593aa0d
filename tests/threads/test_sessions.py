"""In which of an agent's sessions a role is asked, and why; the memory of agents that have none."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from stage import LOOP, answer, attempts, book, engine, open_store, run, says, start, state, steps

from rolecall.agents import process
from rolecall.agents.protocol import Context, Reply, Usage
from rolecall.errors import AgentError
from rolecall.files.tree import Trees
from rolecall.settings.mask import Mask
from rolecall.store.store import Store
from rolecall.threads import lifecycle, thread
from rolecall.threads.engine import Cast
from rolecall.threads.sessions import REREAD, StoredMemory
from rolecall.workflow.model import OnCrash


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path / "store.db") as opened:
        yield opened


@dataclass
class Speaker:
    """Answers the loop `rounds` times; each of its turns touches the files given for its role."""

    rounds: int = 2
    files: dict[str, tuple[str, ...]] = field(default_factory=dict)
    can_resume: bool = True
    can_fork: bool = True
    costs: bool = False
    unknown: set[str] = field(default_factory=set)
    asked: list[tuple[str, str | None, bool]] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    totals: list[Usage | None] = field(default_factory=list)

    async def __call__(self, prompt: str, context: Context) -> Reply:
        self.asked.append((context.role, context.session, context.is_fork))
        self.told.append(prompt)
        self.totals.append(context.session_total)
        if context.session in self.unknown:
            raise AgentError("no such session", ending="failed", is_session_lost=True)
        turns = sum(role == "worker" for role, _, _ in self.asked)
        said = "done" if context.role == "worker" else "end" if turns >= self.rounds else "again"
        session = context.session if context.session and not context.is_fork else f"s{len(self.asked)}"
        total = Usage(cost=0.5 * len(self.asked))
        return Reply(
            answer(said, "x"),
            session=session,
            usage=total.since(context.session_total) if self.costs else None,
            session_total=total if self.costs else None,
            files=self.files.get(context.role, ()),
        )


def loop(tier: str | None) -> Any:
    text = LOOP.replace("goal: Work.", f"goal: Work.\n    resume: {tier}") if tier else LOOP
    return book(text)


def reasons(store: Store, name: str) -> list[str]:
    return [step.payload.get("session_reason", "") for step in steps(store, name) if step.role == "worker"]


@pytest.mark.parametrize(
    ("tier", "session", "reason"),
    [
        (None, None, "new: ephemeral"),
        ("ephemeral", None, "new: ephemeral"),
        ("persistent", "s1", "resumed: persistent, from step 1"),
        ("bounded", None, "new: bounded, and it is not known which files the last turn was about"),
    ],
)
def test_the_tier_of_a_role_decides_whether_its_session_goes_on_and_the_step_says_why(
    store: Store, tmp_path: Path, tier: str | None, session: str | None, reason: str
) -> None:
    agent = Speaker()
    name = start(store, loop(tier), tmp_path / "work")
    assert run(engine(store, agent), name)[-1].status == "completed"
    assert [asked for role, asked, _ in agent.asked if role == "worker"] == [None, session]
    assert reasons(store, name)[1] == reason


@pytest.mark.parametrize(
    ("deed", "session", "reason"),
    [
        ("nothing", "s1", "resumed: bounded, from step 1"),
        ("another file", "s1", "resumed: bounded, from step 1"),
        ("its file", None, "new: bounded, and a.py has changed since"),
        ("remove", None, "new: bounded, and a.py has been removed since"),
    ],
)
def test_a_bounded_session_goes_on_only_while_nobody_has_changed_its_files(
    store: Store, tmp_path: Path, deed: str, session: str | None, reason: str
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "a.py").write_text("x")
    later = (time.time() + 60) * 1e9

    class Meddling(Speaker):
        async def __call__(self, prompt: str, context: Context) -> Reply:
            if context.role == "checker" and deed == "its file":
                os.utime(work / "a.py", ns=(int(later), int(later)))
            if context.role == "checker" and deed == "another file":
                (work / "b.py").write_text("x")
            if context.role == "checker" and deed == "remove":
                (work / "a.py").unlink()
            return await super().__call__(prompt, context)

    agent = Meddling(files={"worker": ("a.py",)})
    name = start(store, loop("bounded"), work)
    run(engine(store, agent), name, steps=3)
    assert agent.asked[2] == ("worker", session, False)
    assert reasons(store, name)[1] == reason
    assert (REREAD in agent.told[2]) == (session is not None)


def test_the_files_of_a_step_are_also_those_of_the_attempts_before_it(store: Store, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / "a.py").write_text("x")

    class Mumbling(Speaker):
        async def __call__(self, prompt: str, context: Context) -> Reply:
            if not self.asked:
                self.asked.append((context.role, context.session, False))
                return Reply("mumble", session="s1", files=("a.py",))
            return await super().__call__(prompt, context)

    agent = Mumbling(rounds=3)
    name = start(store, loop("bounded"), work)
    run(engine(store, agent), name, steps=3)
    assert reasons(store, name)[1] == "resumed: bounded, from step 1"


def test_a_session_is_not_offered_to_another_agent(store: Store, tmp_path: Path) -> None:
    class Failing(Speaker):
        async def __call__(self, prompt: str, context: Context) -> Reply:
            context.emit("session", {"session": "s0"})
            raise AgentError("overloaded", ending="api_failure")

    name = start(store, loop(None), tmp_path / "work")
    run(engine(store, Failing()), name)
    lifecycle.resume(store, thread.find(store, name), mask=Mask([]))
    agent = Speaker()
    run(engine(store, agent, cast=lambda _book, _role: Cast("another", agent)), name, steps=1)
    assert agent.asked[0][1] is None


def test_an_answer_that_cannot_be_read_is_not_corrected_in_the_session_of_another_agent(
    store: Store, tmp_path: Path
) -> None:
    name, speaker = start(store, book(LOOP), tmp_path), Speaker(rounds=1)
    head = thread.find(store, name).head
    left = {"head": head, "role": "worker", "agent": "other", "by": "other", "session": "theirs", "raw": "hm"}
    store.move(thread.attempt_name(name), None, None, left)
    run(engine(store, speaker), name)
    assert speaker.asked == [] and state(store, name)["status"] == "suspended"
    lifecycle.resume(store, thread.find(store, name), mask=Mask([]))
    run(engine(store, speaker), name)
    assert speaker.asked[0] == ("worker", None, False) and state(store, name)["status"] == "completed"


def test_an_agent_without_sessions_is_told_everything_again(store: Store, tmp_path: Path) -> None:
    agent = Speaker(can_resume=False)
    name = start(store, loop("persistent"), tmp_path / "work")
    run(engine(store, agent), name)
    assert reasons(store, name) == ["new: test cannot resume"] * 2
    assert "# Task" in agent.told[2]


def test_a_session_that_the_agent_does_not_know_is_asked_anew_and_kept_as_an_attempt(
    store: Store, tmp_path: Path
) -> None:
    agent = Speaker(unknown={"s1"}, rounds=3)
    name = start(store, loop("persistent"), tmp_path / "work")
    assert run(engine(store, agent), name)[-1].status == "completed"
    assert [asked for role, asked, _ in agent.asked if role == "worker"][:3] == [None, "s1", None]
    second = [step for step in steps(store, name) if step.role == "worker"][1]
    assert store.get(second.payload["attempt"]).payload["error"] == "no such session"
    assert second.payload["session_reason"] == "new: the agent does not know its session any more"


def test_a_fork_goes_on_in_a_copy_of_the_session_or_anew(store: Store, tmp_path: Path) -> None:
    name = start(store, loop("persistent"), tmp_path / "work")
    agent = Speaker(rounds=9)
    run(engine(store, agent), name, steps=2)
    head = thread.find(store, name).head
    for can_fork, asked in ((True, ("worker", "s1", True)), (False, ("worker", None, False))):
        assert fork_asks(store, name, head, can_fork=can_fork) == asked
    assert reasons(store, name) == ["new: worker has no session with test yet"]
    run(engine(store, agent), name, steps=1)  # the session holds now what the fork must not know
    assert fork_asks(store, name, head, can_fork=True) == ("worker", None, False)
    unknown = lifecycle.fork(store, head, mask=Mask([]))
    agent = Speaker()
    run(engine(store, agent), unknown.id, steps=1)
    assert agent.asked == [("worker", None, False)]


def fork_asks(store: Store, name: str, head: str, *, can_fork: bool) -> tuple[str, str | None, bool]:
    """In which session a fork at `head` asks its agent."""
    fork = lifecycle.fork(store, head, mask=Mask([]), source=thread.find(store, name))
    agent = Speaker(can_fork=can_fork)
    run(engine(store, agent), fork.id, steps=1)
    return agent.asked[0]


def test_costs_that_an_agent_counts_over_its_session_become_differences(store: Store, tmp_path: Path) -> None:
    agent = Speaker(costs=True, rounds=3)
    name = start(store, loop("persistent"), tmp_path / "work")
    run(engine(store, agent), name)
    costs = [step.payload["usage"]["cost"] for step in steps(store, name) if step.role == "worker"]
    assert costs == [0.5, 1.0, 1.0]  # every second of the six calls is the worker's


def test_an_attempt_that_failed_for_a_while_goes_on_in_its_session(store: Store, tmp_path: Path) -> None:
    class Failing(Speaker):
        async def __call__(self, prompt: str, context: Context) -> Reply:
            if not self.asked:
                context.emit("session", {"session": "s0"})
                self.asked.append((context.role, context.session, False))
                raise AgentError("overloaded", ending="api_failure", session_total=Usage(cost=0.2))
            return await super().__call__(prompt, context)

    agent = Failing()
    name = start(store, loop(None), tmp_path / "work")
    assert run(engine(store, agent), name)[-1].status == "suspended"
    lifecycle.resume(store, thread.find(store, name), mask=Mask([]))
    run(engine(store, agent), name, steps=1)
    assert agent.asked[1][1] == "s0"
    assert agent.totals == [Usage(cost=0.2)]
    assert reasons(store, name) == ["resumed: the attempt before was interrupted"]
    assert attempts(store, name) == []


@pytest.mark.parametrize(
    ("on_crash", "session", "reason"),
    [("keep", "s0", "resumed: the attempt before was interrupted"), ("restore", None, "new: ephemeral")],
)
def test_a_crashed_attempt_whose_files_are_put_back_begins_a_new_session(
    store: Store, tmp_path: Path, on_crash: OnCrash, session: str | None, reason: str
) -> None:
    class Died(BaseException):
        pass

    class Dying(Speaker):
        async def __call__(self, prompt: str, context: Context) -> Reply:
            if not self.asked:
                context.emit("session", {"session": "s0"})
                self.asked.append((context.role, context.session, False))
                raise Died
            return await super().__call__(prompt, context)

    agent, book = Dying(), loop(None)
    book = book._replace(workflow=book.workflow._replace(on_crash=on_crash))
    name = start(store, book, tmp_path / "work")
    playing = engine(store, agent, trees=Trees(str(tmp_path / "trees")))
    with pytest.raises(Died):
        run(playing, name)
    run(playing, name, steps=1)
    assert agent.asked[1][1] == session
    assert reasons(store, name) == [reason]


def test_a_kept_session_is_there_for_another_process_and_hides_secrets(tmp_path: Path) -> None:
    with open_store(tmp_path / "store.db") as store:
        memory = StoredMemory(store, Mask(["tok-abcdefgh"]))
        assert memory.read("s") == []
        memory.add("s", "first")
        memory.add("s", "second tok-abcdefgh")
        memory.add("other", "x")
    with open_store(tmp_path / "store.db") as store:
        kept = StoredMemory(store, Mask([])).read("s")
        assert kept[0] == "first" and kept[1].startswith("second ") and "abcdefgh" not in kept[1]


def test_an_agent_remembers_through_the_engine(store: Store, tmp_path: Path) -> None:
    heard: list[list[str]] = []

    async def remember(_prompt: str, context: Context) -> str:
        heard.append(context.memory.read("mine"))
        context.memory.add("mine", f"turn {len(heard)}")
        return answer("done" if context.role == "worker" else "end")

    name = start(store, book(LOOP), tmp_path / "work")
    run(engine(store, remember), name)
    assert heard == [[], ["turn 1"]]
    assert state(store, name)["status"] == "completed"


def test_a_session_of_another_folder_is_not_gone_on_with(store: Store, tmp_path: Path) -> None:
    (tmp_path / "work" / "sub").mkdir(parents=True)
    text = LOOP.replace("goal: Work.", "goal: Work.\n    resume: persistent")
    text = text.replace('prompt: "Once more: {{note}}"', 'prompt: "Once more", location: sub')
    agent = Speaker()
    name = start(store, book(text), tmp_path / "work")
    run(engine(store, agent), name)
    assert [asked for role, asked, _ in agent.asked if role == "worker"] == [None, None]
    assert reasons(store, name)[1] == f"new: the session belongs to {tmp_path / 'work'}"


def test_a_process_that_was_kept_from_an_earlier_step_is_ended_after_a_crash(
    store: Store, tmp_path: Path
) -> None:
    kept: list[subprocess.Popen[bytes]] = []

    async def keep(_prompt: str, context: Context) -> str:
        if not kept:
            kept.append(subprocess.Popen(["sleep", "300"], env=process.add_mark({}, "kept-run")))
        context.emit("process", {"pid": kept[0].pid, "run": "kept-run"})
        if len(context.steps) == 1:
            raise KeyboardInterrupt  # the engine is gone, and what it noted stays
        return answer("done" if context.role == "worker" else "end")

    name = start(store, book(LOOP), tmp_path / "work")
    with pytest.raises(KeyboardInterrupt):
        run(engine(store, keep), name)
    assert kept[0].poll() is None
    assert run(engine(store, says(answer("end"))), name)[-1].status == "completed"
    assert kept[0].wait(timeout=60) == -signal.SIGTERM
