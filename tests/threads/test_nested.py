"""A role that another workflow plays: the child is a thread of its own, linked from the step."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from stage import LOOP, answer, attempts, book, engine, open_store, run, start, state, steps

from rolecall.agents.adapters.subworkflow import workflow
from rolecall.agents.protocol import Agent, Context, Reply, Usage
from rolecall.errors import AgentError
from rolecall.settings.mask import Mask
from rolecall.store.store import Store
from rolecall.threads import lifecycle, thread
from rolecall.threads.engine import Cast, Engine
from rolecall.workflow import registry

INNER = """
name: count-up
description: Counts
roles:
  counter:
    goal: Count.
    frontmatter:
      type: object
      properties: {$status: {enum: [done, stop]}, note: {type: string}}
      required: [$status]
  teller:
    goal: Tell.
    frontmatter:
      type: object
      properties: {$status: {enum: [done]}, note: {type: string}}
      required: [$status]
graph:
  $START: counter
  counter: {done: teller, stop: {role: $FAIL, prompt: "it stopped"}}
  teller: {done: $END}
limits: {steps: 4}
"""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path / "store.db") as opened:
        registry.register(opened, book(INNER))
        yield opened


def playing(store: Store, **others: Agent) -> Engine:
    """The worker of the loop is played by the workflow `count-up`, the other roles by functions."""

    def cast(_book: Any, role: str) -> Cast:
        return (
            Cast("workflow:count-up", workflow("count-up")) if role == "worker" else Cast("f", others[role])
        )

    return engine(
        store,
        {},
        cast=cast,
        find_workflow=lambda name, folder: registry.find(store, name, folder=folder).node or "",
    )


async def count(_prompt: str, _context: Context) -> Reply:
    return Reply(answer("done"), usage=Usage(100, 10, cost=0.25, turns=1))


async def tell(_prompt: str, _context: Context) -> Reply:
    return Reply(answer("done", "three", "Counted to three."), usage=Usage(50, 5, cost=0.5, turns=2))


async def end(_prompt: str, _context: Context) -> str:
    return answer("end")


def test_another_workflow_plays_a_role_and_its_thread_is_linked(store: Store, tmp_path: Path) -> None:
    name = start(store, book(LOOP), tmp_path / "work", "Count the sheep")
    assert run(playing(store, counter=count, teller=tell, checker=end), name)[-1].status == "completed"
    first = steps(store, name)[0]
    assert (first.output, first.body.strip()) == ({"$status": "done", "note": "three"}, "Counted to three.")
    (child,) = first.payload["children"]
    assert first.payload["session"] == child
    assert first.payload["usage"] == {
        "input_tokens": 150,
        "output_tokens": 15,
        "cost": 0.75,
        "turns": 3,
    }
    assert state(store, child)["status"] == "completed" and state(store, child)["parent"] == name
    assert "Count the sheep" in thread.Chain(store, thread.find(store, child).head).start.prompt
    bodies = [event.body for event in store.events(name) if event.kind == "tool_call"]
    assert [body["name"] for body in bodies] == ["count-up/counter", "count-up/teller"]


def test_a_child_that_is_suspended_suspends_the_parent_and_both_go_on(store: Store, tmp_path: Path) -> None:
    tries: list[str] = []

    async def stumble(prompt: str, context: Context) -> Reply:
        tries.append(context.thread)
        if len(tries) == 1:
            raise AgentError("no credit", ending="api_failure")
        return await tell(prompt, context)

    name = start(store, book(LOOP), tmp_path / "work")
    agents = playing(store, counter=count, teller=stumble, checker=end)
    outcome = run(agents, name)[-1]
    assert outcome.status == "suspended" and "is suspended: teller: no credit" in outcome.reason
    (attempt,) = attempts(store, name)
    (child,) = attempt["children"]
    assert child in outcome.reason and attempt["usage"]["cost"] == 0.25
    lifecycle.resume(store, thread.find(store, name), mask=Mask([]))
    assert run(agents, name)[-1].status == "completed"
    assert steps(store, name)[0].payload["children"] == [child]
    assert steps(store, name)[0].payload["usage"]["cost"] == 0.5  # the counter's was the attempt's
    assert tries == [child, child]


def test_a_child_that_fails_is_an_attempt_and_the_next_one_is_a_new_child(
    store: Store, tmp_path: Path
) -> None:
    said = iter([answer("stop"), answer("done")])

    async def stop_once(_prompt: str, _context: Context) -> str:
        return next(said)

    name = start(store, book(LOOP), tmp_path / "work")
    agents = playing(store, counter=stop_once, teller=tell, checker=end)
    outcome = run(agents, name)[-1]
    assert outcome.status == "suspended" and "is failed: it stopped" in outcome.reason
    (first,) = attempts(store, name)[0]["children"]
    lifecycle.resume(store, thread.find(store, name), mask=Mask([]))
    assert run(agents, name)[-1].status == "completed"
    (second,) = steps(store, name)[0].payload["children"]
    assert first != second


def test_a_workflow_that_plays_itself_comes_to_an_end(store: Store, tmp_path: Path) -> None:
    registry.register(store, book(LOOP))

    def cast(_book: Any, _role: str) -> Cast:
        return Cast("workflow:run-loop", workflow("run-loop"))

    name = start(store, book(LOOP), tmp_path / "work")
    endless = engine(
        store,
        {},
        cast=cast,
        find_workflow=lambda name, folder: registry.find(store, name, folder=folder).node,
    )
    outcome = run(endless, name)[-1]
    assert outcome.status == "suspended" and "8 levels deep" in outcome.reason
    assert ".." not in outcome.reason


def test_an_unknown_workflow_is_named(store: Store, tmp_path: Path) -> None:
    def cast(_book: Any, _role: str) -> Cast:
        return Cast("workflow:nothing", workflow("nothing"))

    name = start(store, book(LOOP), tmp_path / "work")
    lost = engine(
        store,
        {},
        cast=cast,
        find_workflow=lambda name, folder: registry.find(store, name, folder=folder).node,
    )
    outcome = run(lost, name)[-1]
    assert outcome.status == "suspended" and "'nothing'" in outcome.reason


def test_a_child_whose_process_died_is_gone_on_with(store: Store, tmp_path: Path) -> None:
    received: list[str] = []

    async def die_once(prompt: str, context: Context) -> Reply:
        received.append(context.thread)
        if len(received) == 1:
            ref = thread.find(store, context.thread)
            gone = {**ref.state.lease, "pid": 1, "born": "long ago", "token": "another"}
            store.move(ref.ref.name, ref.ref, ref.head, {**ref.ref.state, "lease": gone})
            raise KeyboardInterrupt  # with the child's lease left behind, as by a process that was killed
        return await tell(prompt, context)

    name = start(store, book(LOOP), tmp_path / "work")
    agents = playing(store, counter=count, teller=die_once, checker=end)
    with pytest.raises(KeyboardInterrupt):
        run(agents, name)
    assert state(store, received[0])["status"] == "running"
    assert run(agents, name)[-1].status == "completed"
    assert steps(store, name)[0].payload["children"] == [received[0]] and received[0] == received[1]


def test_a_workflow_works_anew_each_time_its_role_has_its_turn(store: Store, tmp_path: Path) -> None:
    ends = iter([answer("again", "more"), answer("end")])

    async def judge(_prompt: str, _context: Context) -> str:
        return next(ends)

    persistent = LOOP.replace("goal: Work.", "goal: Work.\n    resume: persistent")
    name = start(store, book(persistent), tmp_path / "work")
    assert run(playing(store, counter=count, teller=tell, checker=judge), name)[-1].status == "completed"
    children = [step.payload["children"] for step in steps(store, name) if step.role == "worker"]
    assert len(children) == 2 and children[0] != children[1]


def test_a_child_may_not_do_what_its_parent_may_not(store: Store, tmp_path: Path) -> None:
    seen: list[str | None] = []

    async def look(prompt: str, context: Context) -> Reply:
        seen.append(context.env.get("ROLECALL_RESTRICTIONS"))
        return await tell(prompt, context)

    restricted = LOOP.replace("goal: Work.", "goal: Work.\n    capabilities: [no_task_create]")
    name = start(store, book(restricted), tmp_path / "work")
    run(playing(store, counter=look, teller=look, checker=end), name)
    assert seen == ["no_task_create"] * 2
