"""`workflow try`: recorded threads of five steps walked through edited workflows, beside reading the same threads.

The steps are put into the store as the engine would put them, without an agent. Three edits: none at all, a prompt of
the last role, so that no condition is evaluated, and every condition in other words, so that each step is routed again.
"""

from __future__ import annotations

import os
import sys
import tempfile
from functools import partial
from itertools import pairwise
from typing import Any

from benchmarks.measure import Row, interleaved, print_table, timed, times
from rolecall.store.sqlite import SqliteBackend
from rolecall.store.store import Store
from rolecall.threads import thread
from rolecall.threads.state import Status, ThreadState, add, read_threads
from rolecall.threads.thread import START_SCHEMA, Chain
from rolecall.threads.tryout import Tryout, read_recorded
from rolecall.workflow import registry, yaml
from rolecall.workflow.playbook import Playbook

_THREADS = 10_000
_STEPS = 5
_SECONDS = 60.0
_BATCH = 500
_SCHEMA = "{type: object, properties: {note: {type: string}}, required: [note]}"


def main(*, quick: bool = False) -> None:
    count = 1_000 if quick else _THREADS
    with tempfile.TemporaryDirectory(prefix="rolecall-bench-") as folder:
        store = Store(SqliteBackend(os.path.join(folder, "store.db"), durability="never"))
        _record(store, count)
        edits = {
            "  the same version": (_workflow(), 0),
            "  the last prompt edited": (_workflow(prompt="Work harder."), count),
            "  every condition in other words": (_workflow(condition="steps[-1].output.note != ''"), 0),
        }
        works = [partial(_read, store)]
        works += [partial(_try, store, new, differing=differing) for new, differing in edits.values()]
        reading, *found = interleaved(1 if quick else 3, *(partial(timed, work) for work in works))
        target = _SECONDS * count / _THREADS
        rows = [Row(f"{count:,} threads of {_STEPS} steps: reading them", f"{reading.wall:.2f} s")]
        rows += [
            Row(
                name,
                f"{took.wall:.2f} s",
                f"{reading.wall:.2f} s",
                times(took.wall, reading.wall),
                times(took.cpu, reading.cpu),
                f"≤ {target:g} s",
                took.wall <= target,
            )
            for name, took in zip(edits, found, strict=True)
        ]
        print_table("`workflow try`, without a token (peer: reading every step and output)", rows)
        store.close()


def _workflow(*, prompt: str = "Work.", condition: str = "$length(steps[-1].output.note) > 0") -> Playbook:
    """Five roles in a row; from each leads an edge with a condition."""
    names = [f"role{number}" for number in range(1, _STEPS + 1)]
    roles = [
        f"  {name}: {{prompt: {'Work.' if name != names[-1] else prompt}, schema: {_SCHEMA}}}"
        for name in names
    ]
    edges = [
        f"  {name}: [{{role: {after}, condition: fine, prompt: '{{{{note}}}}'}}, {{role: $FAIL}}]"
        for name, after in pairwise(names)
    ]
    graph = ["  $START: role1", *edges, f"  {names[-1]}: $END"]
    lines = ["name: in-a-row", "roles:", *roles, f'conditions: {{fine: "{condition}"}}', "graph:", *graph]
    text = "\n".join([*lines, "limits: {steps: 10}"])
    read = yaml.parse(text, source="bench.yaml")
    assert read.workflow is not None, read.problems
    return Playbook(read.workflow)


def _record(store: Store, count: int) -> None:
    """Put finished threads into the store, each with texts of its own."""
    book, draft = _workflow(), store.draft()
    workflow = registry.add_workflow(draft, book)
    for number in range(count):
        task, now = f"Task {number}", store.now()
        start = draft.put_as(START_SCHEMA, {"workflow": workflow, "prompt": task, "cwd": "/"})
        head: str | None = None
        for step, name in enumerate(book.workflow.roles, 1):
            prompt, output = f"note {step - 1} of {number}", {"note": f"note {step} of {number}"}
            fields: dict[str, Any] = {
                "start": start, "prev": head, "number": step, "role": name, "agent": "claude", "cwd": "/",
                **({"edge_prompt": prompt} if head else {}),
                "output": draft.put(draft.put_schema(dict(book.workflow.roles[name].schema)), output),
                "raw": f"Report {step} of {number}. " * 40, "body_at": 0, "usage": {"cost": 0.01 * step},
                "totals": {"steps": step, "cost": 0.01 * step}, "started_at": now, "completed_at": now + 60_000,
            }  # fmt: skip
            head = thread.put_step(draft, fields)
        state = ThreadState(Status.COMPLETED, workflow, book.workflow.name, task, "/", steps=_STEPS)  # type: ignore[arg-type]
        add(draft, thread.new_thread_id(now), str(head), state)
        if number % _BATCH == _BATCH - 1:
            draft.commit()
            draft = store.draft()
    draft.commit()


def _read(store: Store) -> None:
    for ref in read_threads(store):
        for step in Chain(store, ref.head):
            assert step.output


def _try(store: Store, new: Playbook, *, differing: int) -> None:
    trials = list(Tryout(store, new).walk(read_recorded(store, new.workflow.name)))
    assert sum(trial.difference is not None for trial in trials) == differing
    assert not any(trial.problem for trial in trials)


if __name__ == "__main__":
    main(quick="--quick" in sys.argv[1:])
