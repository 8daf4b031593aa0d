"""Threads whose agent has reached a limit of its provider: they wait until it ends, and then ask again."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from stage import LOOP, answer, attempts, book, engine, open_store, run, says, start, state, steps
from test_members import flow
from test_nested import INNER, end, playing, tell

from rolecall.agents.protocol import Context
from rolecall.errors import AgentError
from rolecall.settings.mask import Mask
from rolecall.store.store import Store
from rolecall.threads import lifecycle, thread, views
from rolecall.workflow import registry


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path / "store.db") as opened:
        registry.register(opened, book(INNER))
        yield opened


def limited(seconds: float = 0.1) -> AgentError:
    return AgentError(f"Rate limit reached. Please try again in {seconds}s", ending="api_failure")


def test_a_run_waits_until_the_limit_ends_and_goes_on(store: Store, tmp_path: Path) -> None:
    name = start(store, book(LOOP), tmp_path / "work")
    received: list[tuple[str, Any]] = []
    watch = lambda kind, body: received.append((kind, body))  # noqa: E731
    agents = {"worker": says(limited(), answer("done")), "checker": says(answer("end"))}
    outcomes = run(engine(store, agents, watch=watch), name)
    assert [outcome.status for outcome in outcomes] == ["idle", "idle", "completed"]
    until, asked_again = outcomes[0].until, next(store.get(step.id) for step in steps(store, name))
    assert until is not None and asked_again.created >= until
    assert [kind for kind, _ in received if kind in ("limited", "waits", "waited")] == [
        "limited",
        "waits",
        "waited",
    ]
    assert "until" not in state(store, name) and "reason" not in state(store, name)


def test_nobody_is_asked_before(store: Store, tmp_path: Path) -> None:
    name = start(store, book(LOOP), tmp_path / "work")
    agent = says(limited(3600), answer("done"))
    first = asyncio.run(engine(store, agent).step(name, cancel=asyncio.Event()))
    again = asyncio.run(engine(store, agent).step(name, cancel=asyncio.Event()))
    assert first.until == again.until == state(store, name)["until"] and again.took is None
    assert len(attempts(store, name)) == 1

    # A person who knows better resumes it.
    lifecycle.resume(store, thread.find(store, name), mask=Mask([]))
    assert asyncio.run(engine(store, agent).step(name, cancel=asyncio.Event())).took


def test_a_limit_that_is_reported_again_and_again_is_asked_about_less_often(
    store: Store, tmp_path: Path
) -> None:
    name = start(store, book(LOOP), tmp_path / "work")
    playing = engine(store, says(*[limited(0)] * 3))
    waits = []
    for _ in range(3):
        outcome = asyncio.run(playing.step(name, cancel=asyncio.Event()))
        waits.append(((outcome.until or 0) - store.now() + 100) // 250)
        lifecycle.resume(store, thread.find(store, name), mask=Mask([]))
    assert waits == [1, 2, 4]


@pytest.mark.parametrize(
    "said",
    [
        "On HTTP 429 (too many requests) the client must wait 12 hours.",  # and its status is missing
        AgentError("rate limit reached, try again in 3 days", ending="failed"),
        AgentError("the model failed", ending="api_failure", text="rate limit: try again in 3 days"),
        RuntimeError("rate limit reached, try again in 3 days"),
    ],
)
def test_only_an_error_of_the_provider_makes_a_thread_wait(
    said: str | Exception, store: Store, tmp_path: Path
) -> None:
    name = start(store, book(LOOP), tmp_path / "work")
    outcome = asyncio.run(engine(store, says(said)).step(name, cancel=asyncio.Event()))
    assert (outcome.status, outcome.until) == ("suspended", None)


def test_a_limit_without_an_end_waits_for_a_person(store: Store, tmp_path: Path) -> None:
    name = start(store, book(LOOP), tmp_path / "work")
    agent = says(AgentError("rate limit exceeded", ending="api_failure"))
    assert run(engine(store, agent), name)[-1].status == "suspended"


def test_a_thread_waits_with_the_one_that_plays_its_role(store: Store, tmp_path: Path) -> None:
    name = start(store, book(LOOP), tmp_path / "work")
    counting = says(limited(), answer("done"))
    outcomes = run(playing(store, counter=counting, teller=tell, checker=end), name)
    assert outcomes[0].until and outcomes[-1].status == "completed"
    worker = steps(store, name)[0]
    [child] = worker.payload["children"]
    assert len(list(steps(store, child))) == 2 and state(store, child)["status"] == "completed"


def test_members_wait_one_by_one_while_the_others_go_on(store: Store, tmp_path: Path) -> None:
    name = start(store, flow(), tmp_path / "work")
    asked: list[str] = []

    async def review(prompt: str, _context: Context) -> str:
        item = "b.py" if "b.py" in prompt else "a.py"
        asked.append(item)
        if asked.count("b.py") == 1 and item == "b.py":
            raise limited(0.3)
        return answer("fine")

    agents = {
        "lister": says('---\n{"$status": "listed", "files": ["a.py", "b.py"]}\n---\n'),
        "reviewer": review,
        "judge": says(answer("good")),
    }
    seen: list[Any] = []
    watch = lambda kind, body: seen.append(views.card(store, thread.find(store, name)).get("group"))  # noqa: E731
    assert run(engine(store, agents, watch=watch), name)[-1].status == "completed"
    assert any(group and group.get("until") for group in seen)
    assert sorted(asked) == ["a.py", "b.py", "b.py"]
    assert steps(store, name)[1].output["done"] == 2


def test_resuming_a_thread_resumes_the_one_that_it_waits_for(store: Store, tmp_path: Path) -> None:
    name = start(store, book(LOOP), tmp_path / "work")
    inner = playing(store, counter=says(limited(3600), answer("done")), teller=tell, checker=end)
    assert asyncio.run(inner.step(name, cancel=asyncio.Event())).until
    lifecycle.resume(store, thread.find(store, name), mask=Mask([]))
    assert run(inner, name)[-1].status == "completed"
