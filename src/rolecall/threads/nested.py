"""Start, run and read the thread that plays a role with another workflow.

The child is a thread like any other, and the parent's step links to it. The child's id is the session of the parent's
attempt, so the same child continues after a crash.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from rolecall.agents.protocol import Cancel, Played, Usage
from rolecall.errors import UsageError
from rolecall.store.canonical import JsonObject
from rolecall.store.store import Store
from rolecall.threads import lifecycle, thread
from rolecall.threads.attempt import Attempt
from rolecall.threads.sessions import add_usages
from rolecall.threads.setup import Setup, Watch
from rolecall.threads.state import Status, ThreadRef, read_note, read_thread
from rolecall.threads.thread import Chain

DEEPEST = 8
"""The maximum depth to which workflows can be nested, which stops a workflow that plays its own role."""


async def play(
    setup: Setup,
    run_child: Callable[[Attempt, str, Watch, Cancel], Awaitable[None]],
    parent: Attempt,
    cancel: Cancel,
    workflow: str,
    prompt: str,
    session: str | None,
) -> Played:
    """Run the child until it ends, is suspended or is interrupted. Continue an earlier child only if the parent's
    attempt has not become a step yet; otherwise start a new child."""
    store = setup.store
    is_unfinished = session is not None and parent.session.since is None
    child = session if session and is_unfinished else _start(setup, parent, workflow, prompt)
    parent.note_sign("session", {"session": child})
    ref = thread.find(store, child)
    if ref.state.status == Status.SUSPENDED:  # resuming the parent also resumes the child
        lifecycle.resume(store, ref, mask=setup.mask)

    def watch(kind: str, body: JsonObject) -> None:
        if kind == "step":
            arguments = {"status": body["status"], "thread": child}
            parent.note_sign("tool_call", {"name": f"{workflow}/{body['role']}", "arguments": arguments})

    if not thread.find(store, child).state.has_ended:
        await run_child(parent, child, watch, cancel)
    ref = thread.find(store, child)
    last = Chain(store, ref.head).last
    output, body = (last.output, last.body) if last else ({}, "")
    status = "limited" if ref.state.until is not None else ref.state.status.value
    return Played(child, status, ref.state.reason, output, body, sum_usage(store, ref))


def _start(setup: Setup, parent: Attempt, workflow: str, prompt: str) -> str:
    own = thread.find(setup.store, parent.thread).state
    ident = thread.new_thread_id(setup.store.now())
    depth, above = 0, read_thread(setup.store, parent.thread)
    while above is not None and depth < DEEPEST:
        depth += 1
        above = read_thread(setup.store, above.state.parent) if above.state.parent else None
    if depth >= DEEPEST:
        raise UsageError(
            f"workflows are nested {depth} levels deep, and {workflow!r} would add another level",
            hint="Look for a role that is played by its own workflow.",
        )
    child = lifecycle.start(
        setup.store,
        setup.find_workflow(workflow, parent.workdir),
        prompt,
        cwd=parent.workdir,
        mask=setup.mask,
        bind=setup.bind,
        parent=parent.thread,
        title=own.title if own.member else f"{parent.role}: {own.title}",
        work=setup.work,
        reuse=parent.reuse,
        cell=lifecycle.EvalThread(ident, own.eval, own.repeat or 0) if own.eval else None,
    )
    return child.id


def find_asking(store: Store, child: str) -> str:
    """Return the child if it is waiting for a person, or an empty string if it is suspended for another reason."""
    ref = read_thread(store, child) if child else None
    asks = ref is not None and (ref.state.waits_for_person or ref.state.status == Status.WAITING)
    return child if asks else ""


def sum_usage(store: Store, ref: ThreadRef) -> Usage:
    """Return the total usage of all steps and failed attempts of a thread."""
    used = [step.payload for step in Chain(store, ref.head)]
    waiting = read_note(store, ref.id)
    failed = [payload.get("attempt") for payload in used] + [waiting.attempt if waiting else None]
    used += [attempt.payload for newest in failed for attempt in thread.read_attempts(store, newest)]
    return add_usages(used)
