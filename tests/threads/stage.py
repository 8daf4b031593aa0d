"""What the tests of the engine share: workflows written in the test, engines with agents given as code."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from typing import Any

from rolecall.agents.protocol import Agent
from rolecall.errors import ExtractError
from rolecall.settings.mask import Mask
from rolecall.store.sqlite import SqliteBackend
from rolecall.store.store import Store
from rolecall.store.verify import verify
from rolecall.threads import lifecycle, thread
from rolecall.threads.engine import Cast, Engine, Outcome
from rolecall.workflow import registry, yaml
from rolecall.workflow.playbook import Playbook

LOOP = """
name: run-loop
description: Two roles take turns
roles:
  worker:
    description: Works
    goal: Work.
    frontmatter:
      type: object
      properties: {$status: {enum: [done, stop, lost]}, note: {type: string}}
      required: [$status]
  checker:
    description: Checks
    goal: Check.
    frontmatter:
      type: object
      properties: {$status: {enum: [again, end]}, note: {type: string}}
      required: [$status]
graph:
  $START: worker
  worker: {done: checker, stop: {role: $FAIL, prompt: "stopped: {{note}}"}, lost: checker}
  checker: {again: {role: worker, prompt: "Once more: {{note}}"}, end: $END}
limits: {steps: 100}
"""

_tokens = count(1)


def open_store(path: Path) -> Store:
    return Store(SqliteBackend(str(path)))


def book(text: str, *, without: tuple[str, str] | None = None) -> Playbook:
    """A workflow from its YAML. `without` takes one edge away again, as an older version may have stored it."""
    read = yaml.parse(text, source="test.yaml")
    assert read.workflow is not None, read.problems
    if without is not None:
        role, status = without
        graph: Any = read.workflow.graph
        graph[role] = tuple(edge for edge in graph[role] if edge.status != status)
    return Playbook(read.workflow)


def start(store: Store, workflow: Playbook, cwd: Path, prompt: str = "Do it", **options: Any) -> str:
    cwd.mkdir(parents=True, exist_ok=True)
    mask = options.pop("mask", Mask([]))
    return lifecycle.start(store, workflow, prompt, cwd=str(cwd), mask=mask, **options).id


def engine(
    store: Store, agent: Agent | Mapping[str, Agent], *, workflow: Playbook | None = None, **options: Any
) -> Engine:
    """An engine whose roles are played by `agent`, or by the one given for each."""

    def cast(_book: Playbook, role: str) -> Cast:
        return Cast("test", agent[role] if isinstance(agent, Mapping) else agent)

    async def no_model(raw: str, _schema: Any, _overrides: Any) -> Any:
        raise ExtractError("no model is configured", raw=raw)

    given: dict[str, Any] = {
        "playbook": lambda node: workflow or registry.load_node(store, node),
        "cast": cast,
        "extract": no_model,
        "can_extract": lambda _role: "extract" in options,
        "token": lambda: f"token{next(_tokens)}",
        "environment": {"PATH": "/usr/bin:/bin"},
        "mask": Mask([]),
    }
    return Engine(store, **{**given, **options})


def run(playing: Engine, name: str, *, steps: int | None = None) -> list[Outcome]:
    async def collect() -> list[Outcome]:
        return [outcome async for outcome in playing.run(name, cancel=asyncio.Event(), steps=steps)]

    return asyncio.run(collect())


def answer(status: str, note: str = "", body: str = "The report.") -> str:
    message = f"note: {note}\n" if note else ""
    return f"---\n$status: {status}\n{message}---\n{body}\n"


def says(*answers: Any) -> Callable[..., Any]:
    """An agent that gives one answer after the other; an exception is raised."""
    left = iter(answers)

    async def speak(_prompt: str, _context: Any) -> Any:
        said = next(left)
        if isinstance(said, BaseException):
            raise said
        return said

    return speak


def state(store: Store, name: str) -> Mapping[str, Any]:
    return thread.find(store, name).ref.state


def steps(store: Store, name: str) -> list[thread.Step]:
    """Oldest first."""
    return list(thread.Chain(store, thread.find(store, name).head))[::-1]


def attempts(store: Store, name: str) -> list[dict[str, Any]]:
    """The failed attempts that wait for a step, newest first."""
    ref = store.ref(thread.attempt_name(name))
    return linked(store, ref.target if ref else None)


def linked(store: Store, node: str | None) -> list[dict[str, Any]]:
    found = []
    while node is not None:
        found.append(store.get(node).payload)
        node = found[-1].get("previous")
    return found


def events(store: Store, name: str) -> list[str]:
    return [event.kind for event in store.events(name)]


def assert_whole(store: Store, name: str) -> None:
    """The chain is numbered without a gap, each step names the one before it, nobody holds the thread."""
    chain = steps(store, name)
    assert [step.number for step in chain] == list(range(1, len(chain) + 1))
    assert [step.payload["prev"] for step in chain] == [None, *(step.id for step in chain)][: len(chain)]
    assert "lease" not in state(store, name)


def assert_sound(store: Store) -> None:
    problems = [problem for done in verify(store) for problem in done.problems]
    assert problems == [], problems
