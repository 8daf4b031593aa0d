"""One step after the other: routing, understanding, limits, sessions, the lease, and what is on record of it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import stage
from modelserver import ModelServer, Says
from stage import (
    LOOP,
    answer,
    assert_whole,
    attempts,
    book,
    engine,
    events,
    linked,
    run,
    says,
    start,
    state,
    steps,
)

from rolecall.agents.adapters.scripted import scripted
from rolecall.agents.protocol import Context, Reply, ToolCall, Turn, Usage
from rolecall.errors import AgentError, Conflict, UsageError
from rolecall.settings.mask import Mask
from rolecall.settings.models import Endpoint
from rolecall.store import holder
from rolecall.store.store import Store
from rolecall.threads import commit, compose, lifecycle, thread
from rolecall.threads.extract import extract
from rolecall.workflow import registry

EXAMPLES = Path(__file__).parents[2] / "examples"
SPENT = Usage(input_tokens=100, output_tokens=20, cost=0.25, turns=2)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with stage.open_store(tmp_path / "store.db") as opened:
        yield opened
        stage.assert_sound(opened)


@pytest.fixture
def name(store: Store, tmp_path: Path) -> str:
    return start(store, book(LOOP), tmp_path / "work")


class Remembering:
    """An agent with sessions: what it was told, in which session, as which attempt."""

    can_resume = True

    def __init__(self, *answers: Any) -> None:
        self._answers = iter(answers)
        self.told: list[str] = []
        self.sessions: list[str | None] = []
        self.tries: list[int] = []

    async def __call__(self, prompt: str, context: Context) -> Reply:
        self.told.append(prompt)
        self.sessions.append(context.session)
        self.tries.append(context.attempt)
        return Reply(next(self._answers), session=context.session or f"s{len(self.told)}", usage=SPENT)


# -- workflows to their end --


SOLVE = {
    "planner": [{"output": {"plan": "turn the sign", "steps": ["edit"]}, "body": "The plan."}],
    "developer": [
        {"output": {"filesChanged": ["a.py"], "summary": "first"}, "body": "First try."},
        {"output": {"filesChanged": ["a.py"], "summary": "second"}, "body": "Second try."},
    ],
    "reviewer": [
        {"output": {"approved": False, "comments": "a test is missing"}, "body": "Not yet."},
        {"output": {"approved": True, "comments": "fine"}, "body": "Good."},
    ],
}
FIX = {
    "planner": SOLVE["planner"],
    "developer": [
        {"output": {"$status": "done", **entry["output"]}, "body": "x"}  # type: ignore[dict-item]
        for entry in SOLVE["developer"]
    ],
    "reviewer": [
        {"output": {"$status": "rejected", "comments": "a test is missing"}},
        {"output": {"$status": "approved", "comments": "fine"}},
    ],
}


@pytest.mark.parametrize(("file", "script"), [("solve-issue.yaml", SOLVE), ("fix-issue.yaml", FIX)])
def test_an_example_runs_through_its_loop_to_the_end(
    store: Store, tmp_path: Path, file: str, script: Any
) -> None:
    (tmp_path / "script.json").write_text(json.dumps({"roles": script}))
    name = start(store, registry.load_file(str(EXAMPLES / file)), tmp_path / "work")
    outcomes = run(compose.engine(store, agent=f"scripted:{tmp_path / 'script.json'}"), name)
    roles = ["planner", "developer", "reviewer", "developer", "reviewer"]
    assert [step.role for step in steps(store, name)] == roles
    assert [(outcome.status, outcome.role) for outcome in outcomes] == [
        *(("idle", role) for role in roles[1:]),
        ("completed", None),
    ]
    assert state(store, name)["status"] == "completed"
    assert state(store, name)["steps"] == 5
    assert_whole(store, name)
    assert store.ref(thread.attempt_name(name)) is None


def test_a_prompt_is_kept_as_the_agent_saw_it(store: Store, tmp_path: Path) -> None:
    received: list[str] = []

    async def speak(prompt: str, context: Context) -> str:
        received.append(prompt)
        long = "A long report about what was done, é and 𝄞.\n" * 40
        return answer(
            "done" if context.role == "worker" else "end" if len(received) == 6 else "again", "x", long
        )

    name = start(store, book(LOOP), tmp_path / "work", "Line one\n\n# Heading\n\n  indented ---\n")
    run(engine(store, speak), name)
    assert [step.prompt for step in steps(store, name)] == received
    assert "Line one" in received[0] and "Once more: x" in received[2] and "A long report" in received[5]


def test_events_tell_the_story_in_order(store: Store, name: str) -> None:
    async def speak(_prompt: str, context: Context) -> Reply:
        context.emit("session", {"session": "s"})
        context.emit("text", {"text": "thinking"})
        context.emit("tool_call", {"name": "edit", "arguments": {"path": "a"}})
        if context.role == "checker" and context.attempt == 0:
            raise AgentError("the endpoint is down", ending="api_failure")
        return Reply(answer("done" if context.role == "worker" else "end"), session="s")

    seen: list[str] = []
    playing = engine(store, speak, watch=lambda kind, _body: seen.append(kind))
    run(playing, name)
    lifecycle.resume(store, thread.find(store, name), mask=Mask([]))
    run(playing, name)
    asked = ["step_started", "session", "text", "tool_call"]
    expected = [*asked, "step", *asked, "attempt_failed", "suspended", "resumed", *asked, "step"]
    assert events(store, name) == ["started", *expected]
    assert seen == [kind for kind in expected if kind != "resumed"]
    body = store.events(name)[5].body
    assert (body["role"], body["status"], body["next"]) == ("worker", "idle", "checker")


# -- where a step leads --


def test_a_status_without_an_edge_suspends_with_the_step_committed(store: Store, tmp_path: Path) -> None:
    old = book(LOOP, without=("worker", "lost"))
    name = start(store, old, tmp_path / "work")
    (outcome,) = run(engine(store, says(answer("lost")), workflow=old), name)
    assert outcome.status == "suspended" and outcome.took == steps(store, name)[0].id
    assert "no edge" in outcome.reason and "'lost'" in outcome.reason
    assert state(store, name)["reason"] == outcome.reason
    assert_whole(store, name)
    lifecycle.resume(store, thread.find(store, name), mask=Mask([]), answer="say done")
    run(engine(store, says(answer("done"), answer("end")), workflow=old), name)
    assert [step.role for step in steps(store, name)] == ["worker", "$PERSON", "worker", "checker"]


def test_fail_ends_the_thread_with_its_reason(store: Store, name: str) -> None:
    outcomes = run(engine(store, says(answer("stop", "no compiler"))), name)
    assert [(outcome.status, outcome.reason) for outcome in outcomes] == [("failed", "stopped: no compiler")]
    assert state(store, name)["status"] == "failed"
    with pytest.raises(UsageError, match="is failed"):
        run(engine(store, says()), name)


def test_an_agent_that_asks_is_answered_in_its_next_prompt(store: Store, name: str) -> None:
    agent = Remembering("---\n$status: $SUSPEND\nreason: Which branch?\n---\n", answer("done"), answer("end"))
    (outcome,) = run(engine(store, agent), name)
    assert (outcome.status, outcome.reason) == ("suspended", "Which branch?")
    with pytest.raises(UsageError, match="suspended: Which branch"):
        run(engine(store, agent), name)
    lifecycle.resume(store, thread.find(store, name), mask=Mask([]), answer="The branch main.")
    run(engine(store, agent), name)
    worker, person, again, _ = steps(store, name)
    assert (worker.role, person.role, again.role) == ("worker", "$PERSON", "worker")
    asked = {"reason": "Which branch?", "answer": "The branch main.", "role": "worker"}
    assert person.output == {**asked, "location": worker.payload["cwd"]}
    assert "The branch main." in agent.told[1]
    assert_whole(store, name)


def test_a_killed_thread_takes_no_further_step(store: Store, name: str) -> None:
    run(engine(store, says(answer("done"))), name, steps=1)
    _, lease = lifecycle.kill(store, thread.find(store, name), mask=Mask([]))
    assert not lease and state(store, name)["status"] == "killed"
    with pytest.raises(UsageError, match="is killed"):
        run(engine(store, says(answer("end"))), name)
    assert len(steps(store, name)) == 1


def test_a_thread_killed_while_its_agent_runs_keeps_the_answer_but_not_the_step(
    store: Store, name: str
) -> None:
    async def speak(_prompt: str, _context: Context) -> str:
        lifecycle.kill(store, thread.find(store, name), mask=Mask([]))
        return answer("done")

    with pytest.raises(Conflict, match="taken over or ended"):
        run(engine(store, speak), name)
    note = store.ref(thread.attempt_name(name))
    assert note is not None and note.state["raw"] == answer("done")
    assert state(store, name)["status"] == "killed" and steps(store, name) == []


def test_a_note_of_another_version_is_continued(store: Store, name: str) -> None:
    head = thread.find(store, name).head
    note = {"head": head, "role": "worker", "agent": "test", "raw": answer("done"), "mood": "good"}
    store.move(thread.attempt_name(name), None, None, note)
    run(engine(store, says()), name, steps=1)
    assert [step.raw for step in steps(store, name)] == [answer("done")]


# -- understanding --


def test_an_unreadable_answer_is_corrected_in_the_same_session(store: Store, name: str) -> None:
    agent = Remembering("I did it.", answer("done"))
    run(engine(store, agent), name, steps=1)
    assert agent.sessions == [None, "s1"] and agent.tries == [0, 1]
    assert "could not be read" in agent.told[1]
    (step,) = steps(store, name)
    (failed,) = linked(store, step.payload["attempt"])
    assert store.get(failed["raw"]).payload == "I did it." and failed["session"] == "s1"
    assert step.prompt == agent.told[0]
    totals = step.payload["totals"]
    assert totals["tokens"] == 240 and totals["cost"] == 0.5 and totals["turns"] == 4 and totals["steps"] == 1


def test_the_extract_model_reads_what_the_agent_could_not_say(store: Store, name: str) -> None:
    agent = Remembering("I did it.", "I really did.")
    with ModelServer([Says('{"$status": "done"}', 30, 3)]) as server:

        async def model(raw: str, schema: Any, _overrides: Any) -> Any:
            found = await extract(raw, schema, endpoint=Endpoint(server.base_url, "small", None, 20.0))
            return found.output, found.usage

        run(engine(store, agent, extract=model), name, steps=1)
        assert server.requests[0].body["messages"][1]["content"] == "I really did."
    (step,) = steps(store, name)
    assert step.output == {"$status": "done"} and step.body == "I really did."
    assert step.payload["totals"]["tokens"] == 2 * 120 + 33


def test_what_nobody_could_read_suspends_with_everything_kept(store: Store, name: str) -> None:
    agent = Remembering("I did it.", "I really did.")
    with ModelServer([Says("no json", 30, 3), Says("none", 40, 4)]) as server:

        async def model(raw: str, schema: Any, _overrides: Any) -> Any:
            return await extract(raw, schema, endpoint=Endpoint(server.base_url, "small", None, 20.0))

        (outcome,) = run(engine(store, agent, extract=model), name)
    assert outcome.status == "suspended" and "could not be read" in outcome.reason and outcome.took is None
    second, first = attempts(store, name)
    assert [store.get(attempt["raw"]).payload for attempt in (first, second)] == [
        "I did it.",
        "I really did.",
    ]
    assert (first["session"], second["session"]) == ("s1", "s1")
    assert first["usage"]["input_tokens"] == 100
    assert second["usage"] == {**first["usage"], "input_tokens": 170, "output_tokens": 27}
    assert thread.prompt_text(store, second["prompt"]) == agent.told[0]
    lifecycle.resume(store, thread.find(store, name), mask=Mask([]))
    run(engine(store, says(answer("done"))), name, steps=1)
    (step,) = steps(store, name)
    assert len(linked(store, step.payload["attempt"])) == 2
    assert step.payload["totals"]["roles"]["worker"]["tokens"] == 120 + 197
    assert store.ref(thread.attempt_name(name)) is None


def test_an_agent_that_fails_leaves_all_it_gave(store: Store, name: str) -> None:
    turns = (Turn("assistant", "half way", (ToolCall("edit", {"path": "a"}, "ok"),)),)
    error = AgentError(
        "out of credit", ending="api_failure", text="half", session="s9", usage=SPENT, turns=turns
    )
    (outcome,) = run(engine(store, says(error)), name)
    assert (outcome.status, outcome.reason) == ("suspended", "worker: out of credit")
    (attempt,) = attempts(store, name)
    assert (attempt["ending"], attempt["session"], attempt["error"]) == ("api_failure", "s9", "out of credit")
    assert store.get(attempt["raw"]).payload == "half"
    assert store.get(attempt["detail"]).payload["turns"][0]["tool_calls"][0]["name"] == "edit"
    assert "lease" not in state(store, name)


@pytest.mark.parametrize(
    "error", [ValueError("bad"), KeyError("k"), RecursionError(), SystemExit(3), asyncio.CancelledError()]
)
def test_an_agent_that_raises_anything_is_an_attempt_and_not_a_crash(
    store: Store, name: str, error: BaseException
) -> None:
    (outcome,) = run(engine(store, says(error)), name)
    assert outcome.status == "suspended" and type(error).__name__ in outcome.reason
    assert type(error).__name__ in attempts(store, name)[0]["error"]
    lifecycle.resume(store, thread.find(store, name), mask=Mask([]))
    assert run(engine(store, says(answer("done"), answer("end"))), name)[-1].status == "completed"


def test_cancelling_the_task_passes_through_and_lets_the_thread_go(store: Store, name: str) -> None:
    async def scene() -> None:
        begun = asyncio.Event()

        async def hang(_prompt: str, context: Context) -> str:
            begun.set()
            await context.cancel.wait()
            return ""

        task = asyncio.ensure_future(engine(store, hang).step(name, cancel=asyncio.Event()))
        await asyncio.wait_for(begun.wait(), 60)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(scene())
    assert state(store, name)["status"] == "idle" and "lease" not in state(store, name)
    assert run(engine(store, says(answer("done"), answer("end"))), name)[-1].status == "completed"


def test_an_interruption_of_the_program_passes_through_and_lets_the_thread_go(
    store: Store, name: str
) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(engine(store, says(KeyboardInterrupt())), name)
    assert state(store, name)["status"] == "idle" and "lease" not in state(store, name)
    assert run(engine(store, says(answer("done"), answer("end"))), name)[-1].status == "completed"


def test_an_agent_that_claims_to_be_interrupted_is_not_asked_forever(store: Store, name: str) -> None:
    outcomes = run(engine(store, says(AgentError("interrupted", ending="interrupted"))), name)
    assert [outcome.status for outcome in outcomes] == ["suspended"]  # nobody has interrupted it
    assert len(attempts(store, name)) == 1


def test_cancelling_ends_the_agent_and_leaves_the_thread_idle(
    store: Store, tmp_path: Path, name: str
) -> None:
    (tmp_path / "script.json").write_text(
        json.dumps({"roles": {"worker": [{"hang": True, "session": "s7"}]}})
    )

    async def interrupted() -> list[str]:
        cancel = asyncio.Event()
        playing = engine(
            store,
            scripted(tmp_path / "script.json"),
            watch=lambda kind, _body: cancel.set() if kind == "session" else None,
        )
        return [outcome.status async for outcome in playing.run(name, cancel=cancel)]

    assert asyncio.run(interrupted()) == ["idle"]
    (attempt,) = attempts(store, name)
    assert (attempt["ending"], attempt["session"]) == ("interrupted", "s7")


@pytest.mark.parametrize(
    "reply",
    [
        Reply("\ud800" + answer("done"), turns=(Turn("assistant", "\udfff"),)),
        Reply(
            answer("done"),
            turns=(Turn("assistant", "", (ToolCall("x", {"p": Path("/a"), "n": float("nan")}),)),),
        ),
        Reply(answer("done", body="\x00 binary \x1b[31m")),
    ],
)
def test_what_cannot_be_stored_as_it_is_is_stored_as_text(store: Store, name: str, reply: Reply) -> None:
    (outcome,) = run(engine(store, says(reply)), name, steps=1)
    assert outcome.status in ("idle", "suspended")
    assert steps(store, name) or store.get(attempts(store, name)[0]["raw"]).payload


def test_an_output_without_a_stored_form_is_an_attempt_that_does_not_come_back(
    store: Store, tmp_path: Path
) -> None:
    free = book(LOOP.replace("note: {type: string}", "note: {}"))
    name = start(store, free, tmp_path / "work")
    (outcome,) = run(engine(store, says(answer("done", ".nan"))), name)
    assert outcome.status == "suspended"
    assert store.get(attempts(store, name)[0]["raw"]).payload == answer("done", ".nan")
    lifecycle.resume(store, thread.find(store, name), mask=Mask([]))
    assert run(engine(store, says(answer("done"))), name, steps=1)[0].status == "idle"


def test_a_step_of_another_thread_or_role_is_not_adopted(store: Store, name: str, tmp_path: Path) -> None:
    other = start(store, book(LOOP), tmp_path / "work", "Another")
    run(engine(store, says(answer("done"))), other, steps=1)
    foreign = steps(store, other)[0].id
    for step in (foreign, "0000000000000", "not an id"):
        (outcome,) = run(engine(store, says(Reply("", step=step))), name)
        assert outcome.status == "suspended" and outcome.took is None
        lifecycle.resume(store, thread.find(store, name), mask=Mask([]))
    assert len(attempts(store, name)) == 3
    assert run(engine(store, says(answer("done"), answer("end"))), name)[-1].status == "completed"


# -- limits and usage --


def test_limits_are_counted_from_the_chain_and_raised_by_a_person(store: Store, tmp_path: Path) -> None:
    name = start(store, book(LOOP), tmp_path / "work", limits={"tokens": 200})
    agent = Remembering(answer("done"), answer("again", "x"), answer("done"), answer("end"))
    outcomes = run(engine(store, agent), name)
    assert [outcome.status for outcome in outcomes] == ["idle", "idle", "suspended"]
    assert "240 of 200 tokens" in outcomes[-1].reason
    lifecycle.resume(store, thread.find(store, name), mask=Mask([]), limits={"tokens": 2000})
    assert run(engine(store, agent), name)[-1].status == "completed"
    assert len(agent.told) == 4


def test_what_failed_attempts_used_counts_before_the_next_one_is_paid_for(
    store: Store, tmp_path: Path
) -> None:
    name = start(store, book(LOOP), tmp_path / "work", limits={"cost": 0.5})
    error = AgentError("down", ending="api_failure", usage=SPENT)
    for _ in range(2):
        (outcome,) = run(engine(store, says(error)), name)
        assert "down" in outcome.reason
        lifecycle.resume(store, thread.find(store, name), mask=Mask([]))
    (outcome,) = run(engine(store, says()), name)
    assert outcome.status == "suspended" and "0.5 of 0.5 cost" in outcome.reason


def test_usage_is_summed_for_the_thread_and_for_each_role(store: Store, name: str) -> None:
    run(engine(store, Remembering(answer("done"), answer("again", "x"), answer("done"), answer("end"))), name)
    totals = steps(store, name)[-1].payload["totals"]
    assert (totals["steps"], totals["tokens"], totals["cost"]) == (4, 480, 1.0)
    assert {role: used["tokens"] for role, used in totals["roles"].items()} == {"worker": 240, "checker": 240}


# -- sessions --


@pytest.mark.parametrize(("resume", "again"), [("persistent", "s1"), ("ephemeral", None)])
def test_a_role_goes_on_in_its_session_when_it_is_to(
    store: Store, tmp_path: Path, resume: str, again: str | None
) -> None:
    workflow = book(LOOP.replace("goal: Work.", f"goal: Work.\n    resume: {resume}"))
    name = start(store, workflow, tmp_path / "work")
    agent = Remembering(answer("done"), answer("again", "x"), answer("done"), answer("end"))
    run(engine(store, agent), name)
    assert agent.sessions == [None, None, again, None]
    assert ("# Task" in agent.told[2]) == (again is None)
    assert [step.prompt for step in steps(store, name)] == agent.told


# -- forks --


def test_a_plain_fork_is_one_ref_and_goes_its_own_way(store: Store, name: str) -> None:
    run(engine(store, says(answer("done"), answer("end"))), name)
    source, first = thread.find(store, name), steps(store, name)[0]
    before, refs = store.backend.size()["nodes"], len(store.refs(""))
    fork = lifecycle.fork(store, first.id, mask=Mask([]), source=source).id
    assert store.backend.size()["nodes"] == before and len(store.refs("")) == refs + 1
    run(engine(store, says(answer("again", "x"), answer("done"), answer("end"))), fork)
    assert [step.role for step in steps(store, fork)] == ["worker", "checker", "worker", "checker"]
    assert steps(store, fork)[0].id == first.id
    assert thread.find(store, name) == source
    assert_whole(store, fork)


def test_a_fork_at_the_start_runs_from_the_beginning(store: Store, name: str) -> None:
    run(engine(store, says(answer("done"), answer("end"))), name)
    head = thread.Chain(store, thread.find(store, name).head).start.id
    fork = lifecycle.fork(store, head, mask=Mask([])).id
    assert steps(store, fork) == []
    run(engine(store, says(answer("stop", "x"))), fork)
    assert state(store, fork)["status"] == "failed" and len(steps(store, name)) == 2


@pytest.mark.parametrize("at", [0, 1])
def test_a_fork_with_another_prompt_shows_it_from_there_on(store: Store, tmp_path: Path, at: int) -> None:
    name = start(store, book(LOOP), tmp_path / "work", "The old task", limits={"steps": 9})
    run(engine(store, says(answer("done"), answer("end"))), name)
    before = thread.find(store, name)
    chain = thread.Chain(store, before.head)
    node = chain.start.id if at == 0 else steps(store, name)[0].id
    fork = lifecycle.fork(store, node, mask=Mask([]), prompt="The new task").id
    agent = Remembering(*[answer("done")] * (1 - at), answer("end"))
    run(engine(store, agent), fork)
    assert all("The new task" in item and "The old task" not in item for item in agent.told)
    assert state(store, fork)["status"] == "completed" and state(store, fork)["title"] == "The new task"
    assert state(store, fork)["limits"] == {"steps": 9}
    assert thread.find(store, name) == before
    assert thread.Chain(store, before.head).start.prompt == "The old task"
    assert_whole(store, fork)


def test_a_fork_with_another_workflow_follows_it(store: Store, name: str) -> None:
    run(engine(store, says(answer("done"), answer("end"))), name)
    newer = book(LOOP.replace("end: $END", "end: {role: $FAIL, prompt: the new way}"))
    fork = lifecycle.fork(store, steps(store, name)[0].id, mask=Mask([]), workflow=newer).id
    outcomes = run(engine(store, says(answer("end"))), fork)
    assert (outcomes[-1].status, outcomes[-1].reason) == ("failed", "the new way")
    assert state(store, name)["status"] == "completed"


# -- the lease --


def forge(store: Store, name: str, **lease: Any) -> None:
    ref = thread.find(store, name)
    mine = {**holder.identify_self("another"), "deadline": store.now() + holder.LEASE_MS, **lease}
    store.move(ref.ref.name, ref.ref, ref.head, {**ref.ref.state, "status": "running", "lease": mine})


def test_a_second_engine_is_told_who_runs_the_thread(store: Store, name: str, tmp_path: Path) -> None:
    other = engine(store, says(answer("done")))

    async def speak(_prompt: str, _context: Context) -> str:
        with pytest.raises(Conflict, match=f"is being run by process {os.getpid()} on "):
            await other.step(name, cancel=asyncio.Event())
        return answer("done")

    run(engine(store, speak), name, steps=1)
    assert len(steps(store, name)) == 1 and "lease" not in state(store, name)


HOLDER = """
import sys, os, stage
from pathlib import Path
from rolecall.threads import lease
lease.take(stage.open_store(Path(sys.argv[1])), sys.argv[2], "dead")
print("taken", flush=True)
sys.stdin.read()
"""


def test_a_lease_of_a_process_that_died_is_taken_over_even_before_it_is_reaped(
    store: Store, name: str, tmp_path: Path
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / "store.db"), name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
    ) as child:
        assert child.stdout is not None and child.stdout.readline() == b"taken\n"
        with pytest.raises(Conflict, match=f"process {child.pid} "):
            run(engine(store, says()), name)
        child.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # dead, and still a zombie
        assert run(engine(store, says(answer("done"), answer("end"))), name)[-1].status == "completed"


def test_a_lease_whose_process_number_was_given_away_is_taken_over(store: Store, name: str) -> None:
    forge(store, name)
    with pytest.raises(Conflict):
        run(engine(store, says()), name)
    ref = thread.find(store, name)
    recycled = {**ref.state.lease, "born": "1"}
    store.move(ref.ref.name, ref.ref, ref.head, {**ref.ref.state, "lease": recycled})
    assert run(engine(store, says(answer("done"), answer("end"))), name)[-1].status == "completed"


def test_a_lease_of_another_host_holds_until_its_deadline(store: Store, name: str) -> None:
    clock = [1_000_000]
    store.now = lambda: clock[0]
    forge(store, name, host="elsewhere/boot", pid=1, deadline=1_060_000)
    clock[0] = 1_059_999
    with pytest.raises(Conflict, match="process 1 on elsewhere"):
        run(engine(store, says()), name)
    clock[0] = 1_060_000
    assert run(engine(store, says(answer("done"), answer("end"))), name)[-1].status == "completed"


def test_a_step_that_lost_its_thread_commits_nothing_and_its_answer_is_kept(store: Store, name: str) -> None:
    fast = engine(store, says(answer("done", "of the one that took over")))

    async def slow(_prompt: str, _context: Context) -> Reply:
        ref = thread.find(store, name)
        lost = {**ref.state.lease, "born": "1"}
        store.move(ref.ref.name, ref.ref, ref.head, {**ref.ref.state, "lease": lost})
        taking = asyncio.create_task(fast.step(name, cancel=asyncio.Event()))
        assert (await taking).status == "idle"
        return Reply(answer("done", "of the one that lost it"), session="lost", usage=SPENT)

    with pytest.raises(Conflict):
        run(engine(store, slow), name)
    (step,) = steps(store, name)
    assert step.output["note"] == "of the one that took over"
    (late,) = attempts(store, name)
    assert store.get(late["raw"]).payload == answer("done", "of the one that lost it")
    assert late["usage"]["input_tokens"] == 100
    assert_whole(store, name)
    assert run(engine(store, says(answer("end"))), name)[-1].status == "completed"
    assert store.ref(thread.attempt_name(name)) is None


def test_what_an_agent_gave_is_kept_when_it_fails_after_its_thread_was_lost(store: Store, name: str) -> None:
    fast = engine(store, says(answer("done")))

    async def slow(_prompt: str, _context: Context) -> Reply:
        ref = thread.find(store, name)
        lost = {**ref.state.lease, "born": "1"}
        store.move(ref.ref.name, ref.ref, ref.head, {**ref.ref.state, "lease": lost})
        await fast.step(name, cancel=asyncio.Event())
        raise AgentError("was cancelled", ending="interrupted", text="half an answer", usage=SPENT)

    with pytest.raises(Conflict):
        run(engine(store, slow), name)
    (late,) = attempts(store, name)
    assert store.get(late["raw"]).payload == "half an answer" and late["usage"]["turns"] == 2
    assert len(steps(store, name)) == 1


def test_an_answer_that_comes_while_another_runs_the_thread_does_not_disturb_it(
    store: Store, name: str
) -> None:
    """The one that lost the thread hands in its answer in the middle of the other's step."""

    async def scene() -> None:
        late_may_answer, late_has_answered = asyncio.Event(), asyncio.Event()

        async def late(_prompt: str, _context: Context) -> str:
            await late_may_answer.wait()
            return answer("done", "late")

        async def taker(_prompt: str, _context: Context) -> str:
            late_may_answer.set()
            await late_has_answered.wait()
            return answer("done", "in time")

        losing = asyncio.create_task(engine(store, late).step(name, cancel=asyncio.Event()))
        while store.ref(thread.attempt_name(name)) is None:
            await asyncio.sleep(0)
        ref = thread.find(store, name)
        lost = {**ref.state.lease, "born": "1"}
        store.move(ref.ref.name, ref.ref, ref.head, {**ref.ref.state, "lease": lost})
        taking = asyncio.create_task(engine(store, taker).step(name, cancel=asyncio.Event()))
        with pytest.raises(Conflict):
            await losing
        late_has_answered.set()
        assert (await taking).status == "idle"

    asyncio.run(scene())
    (step,) = steps(store, name)
    assert step.output["note"] == "in time"
    texts = [store.get(a["raw"]).payload for a in linked(store, step.payload["attempt"]) if "raw" in a]
    assert texts == [answer("done", "late")]
    assert store.ref(thread.attempt_name(name)) is None


# -- what a person does with a thread whose process died --


def left_with_an_answer(store: Store, name: str) -> None:
    """As a process leaves it that is killed between the answer and the step."""
    playing = engine(store, says(answer("done", "paid for")))
    object.__setattr__(playing, "mask", Mask([]))
    commit = store.backend.commit

    def dying(change: Any, **options: Any) -> Any:
        if any(event.kind == "step" for event in change.events):
            raise KeyboardInterrupt
        return commit(change, **options)

    store.backend.commit = dying  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        run(playing, name)
    store.backend.commit = commit  # type: ignore[method-assign]


def test_an_answer_that_had_arrived_is_used_without_asking_again(store: Store, name: str) -> None:
    left_with_an_answer(store, name)
    (outcome,) = run(engine(store, says()), name, steps=1)
    (step,) = steps(store, name)
    assert outcome.took == step.id and step.output["note"] == "paid for"
    assert "# Task" in step.prompt and "attempt" not in step.payload


def test_a_person_who_moves_the_thread_on_does_not_lose_the_answer_that_had_arrived(
    store: Store, name: str
) -> None:
    left_with_an_answer(store, name)
    lifecycle.resume(store, thread.find(store, name), mask=Mask([]), answer="Do it differently.")
    run(engine(store, says(answer("done", "differently"))), name, steps=1)
    person, step = steps(store, name)
    assert (person.role, step.output["note"]) == ("$PERSON", "differently")
    (attempt,) = linked(store, step.payload["attempt"])
    assert store.get(attempt["raw"]).payload == answer("done", "paid for")


def test_a_person_who_answers_for_the_role_does_not_lose_the_answer_that_had_arrived(
    store: Store, name: str
) -> None:
    left_with_an_answer(store, name)
    commit.answer(
        store, thread.find(store, name), book(LOOP), {"$status": "done"}, body="Mine.", mask=Mask([])
    )
    (step,) = steps(store, name)
    assert step.agent == "human" and step.body == "Mine."
    (attempt,) = linked(store, step.payload["attempt"])
    assert store.get(attempt["raw"]).payload == answer("done", "paid for")


# -- folders --


def test_a_missing_work_folder_suspends_until_it_is_there(store: Store, tmp_path: Path, name: str) -> None:
    async def remove(_prompt: str, context: Context) -> str:
        context.workdir.rmdir()
        return answer("done")

    outcomes = run(engine(store, {"worker": remove, "checker": says(answer("end"))}), name)
    assert [outcome.status for outcome in outcomes] == ["idle", "suspended"]
    assert "does not exist" in outcomes[-1].reason
    (tmp_path / "work").mkdir()
    lifecycle.resume(store, thread.find(store, name), mask=Mask([]))
    assert run(engine(store, says(answer("end"))), name)[-1].status == "completed"


def test_an_unknown_agent_is_an_error_before_anything_is_written_down(store: Store, name: str) -> None:
    with pytest.raises(UsageError, match="no agent is named"):
        run(compose.engine(store), name)
    assert state(store, name)["status"] == "idle" and events(store, name) == ["started"]
