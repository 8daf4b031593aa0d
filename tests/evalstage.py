"""Runs of suites with known results, stored without asking an agent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rolecall.evals import records
from rolecall.evals.records import EvalRun, Result
from rolecall.evals.suite import Judge, Suite, Variant
from rolecall.evals.tasks import EvalTask
from rolecall.store.store import Store
from rolecall.workflow.model import Edge, StoredRole, StoredWorkflow
from rolecall.workflow.playbook import Playbook

Outcome = Callable[[str, int, int], str]
"""(variant, number of the task from 0, repeat from 0) -> outcome, or an empty text for none."""


def store_run(
    store: Store,
    variants: Sequence[str] = ("base", "new"),
    *,
    tasks: Sequence[EvalTask] | int = 4,
    repeat: int = 1,
    outcome: Outcome = lambda _variant, _task, _repeat: "passed",
    costs: Mapping[str, float] | None = None,
    reason: str = "",
    name: str = "fix-bug",
    agent: str = "scripted:a.yaml",
) -> EvalRun:
    """Store a run with these outcomes. A variant that `costs` does not name reports no cost."""
    known = (
        [EvalTask(f"task-{number}", f"Do part {number}.") for number in range(tasks)]
        if isinstance(tasks, int)
        else tasks
    )
    book = Playbook(
        StoredWorkflow(
            "fix-it", roles={"worker": StoredRole(prompt="Work.")}, graph={"$START": (Edge("worker"),)}
        )
    )
    suite = Suite(
        name,
        "suite.yaml",
        tuple(Variant(one, "fix-it", agents={"worker": agent}) for one in variants),
        tuple(known),
        None,
        repeat,
        (Judge("tests", command=("python3", "test.py"), gate=True),),
        {},
        None,
        None,
        dict.fromkeys(variants, book),
    )
    node = records.put_suite(
        store,
        suite,
        [(task, None) for task in known],
        [records.JudgeFiles(one, None, ()) for one in suite.judges],
    )
    stored = records.load_suite(store, node)
    chosen = [task.node for task in stored.tasks]
    run = records.start_run(store, node, chosen, limits={}, is_fresh=False, lease={})
    places = {task.id: number for number, task in enumerate(known)}
    for cell in run.cells:
        if found := outcome(cell.variant.name, places[cell.task.id], cell.repeat):
            used: dict[str, Any] = {"tokens": 1000, "minutes": 0.5}
            if costs and cell.variant.name in costs:
                used["cost"] = costs[cell.variant.name] * (1 + 0.1 * (cell.number % 7))
            who = [{"role": "worker", "agent": agent, "version": "1.2.3"}]
            why = reason if found != "passed" else ""
            records.add_result(
                store,
                run,
                Result(cell.number, cell.thread, found, (), run.at, reason=why, usage=used, agents=who),
            )
    return run
