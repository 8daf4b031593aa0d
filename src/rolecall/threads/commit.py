"""Commit a step: add it to the chain and move the thread, in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from rolecall.errors import Hint, InvalidPayload, UsageError
from rolecall.settings.mask import Mask
from rolecall.store.canonical import JsonObject
from rolecall.store.store import Draft, Store
from rolecall.threads import thread
from rolecall.threads.attempt import Attempt, StepResult
from rolecall.threads.key import key_name, key_of
from rolecall.threads.lifecycle import queue_again, refuse_running
from rolecall.threads.loaded_thread import LoadedThread, next_of, route_after
from rolecall.threads.setup import HUMAN, Setup
from rolecall.threads.state import Onward, Status, ThreadRef, ThreadState, move, read_thread
from rolecall.threads.storable import drop_empty
from rolecall.threads.thread import Chain
from rolecall.workflow.playbook import Playbook
from rolecall.workflow.reply import Shape
from rolecall.workflow.route import Ended, Failed, Next, Route, Stuck, Suspended


class Outcome(NamedTuple):
    """The state of a thread after one or more steps."""

    thread: str
    head: str
    status: Status
    role: str | None
    """The role that comes next."""
    reason: str = ""
    took: str | None = None
    """The id of the committed step, if any."""
    until: int | None = None
    """The time at which the thread continues, if its agent has reached a usage limit."""


def commit(
    attempt: Attempt,
    result: StepResult,
    ref: ThreadRef,
    *,
    finish: Callable[[Draft, ThreadState], ThreadState] = lambda _draft, state: state,
) -> Outcome:
    """Store the step, move the head, and set the next role or the ending, all in one transaction. `finish` can add to
    the transaction and change the state. Raise `Conflict` if the thread has moved since it was read as `ref`."""
    draft = attempt.store.draft()
    step, onward = put_step(draft, attempt, result, limits=ref.state.limits)
    status, role, reason = status_after(onward)
    reason = attempt.mask.text(reason)
    state = ref.state.move_to(status, role=role, reason=reason, steps=attempt.number)
    event: dict[str, Any] = {
        "step": step,
        "role": attempt.role,
        "status": status.value,
        "next": role,
        "reason": reason,
    }
    if result.reused is not None:
        event["reused"] = result.reused._asdict()
    draft.event(ref.id, "step", event)
    attempt.close(draft)
    move(draft, ref, finish(draft, state), head=step)
    draft.commit(durable=True)
    attempt.watch("step", event)
    return Outcome(ref.id, step, status, role, reason, step)


def settle(
    setup: Setup, ref: ThreadRef, way: Route, onward: Onward | None = None, *, asks: str = ""
) -> Outcome:
    """End or suspend a thread without a step. `onward` describes what lets the thread continue, if not an answer.
    `asks` is the id of the thread that plays the role and is waiting for a person."""
    status, role, reason = status_after(way)
    reason = setup.mask.text(reason)
    draft = setup.store.draft()
    draft.event(ref.id, status.value, {"reason": reason})
    fields = {"role": role or ref.state.role, "reason": reason, "onward": onward, "asks": asks}
    move(draft, ref, ref.state.move_to(status, **fields))
    draft.commit(durable=True)
    setup.watch(status.value, {"reason": reason})
    return Outcome(ref.id, ref.head, status, role, reason)


def put_step(
    draft: Draft, attempt: Attempt, result: StepResult, *, limits: Mapping[str, float]
) -> tuple[str, Route]:
    """Add the step to a draft. Return the step's id and the route that the thread takes next. `limits` are the thread's
    own limits; a fork from the step inherits them.

    A step with the role's own output can be found by its key, except in two cases: the agent was stopped or refused, or
    the role may start threads, which a reused step would not start."""
    attempt.look_again()
    mask, loaded, note = attempt.mask, attempt.loaded, attempt.note
    output, body = mask.value(result.output), mask.text(result.body)
    onward = route_after(loaded, attempt.role, output, body, is_new=True)
    if result.step:
        return result.step, onward

    if result.schema is not None:
        stored = draft.put_as(dict(result.schema), output)
    else:
        known = loaded.playbook.schema_ids.get(attempt.role)
        stored = draft.put(known or draft.put_schema(dict(loaded.role(attempt.role).schema)), output)
    raw = mask.text(note.raw if result.raw is None else result.raw)
    # The body is nearly always the end of the answer, so only its offset is stored.
    place = {"body_at": len(raw) - len(body)} if raw.endswith(body) else {"body": draft.put_text(body)}
    now = attempt.store.now()
    if result.reused is not None:
        attempt.started_at = now  # no agent has worked on this step
    used = result.used or thread.count_usage(note.usage, ms=now - attempt.started_at)
    children = filter(None, (read_thread(attempt.store, child) for child in note.children))
    saved = result.saved or thread.sum_amounts(thread.get_savings(attempt.store, child) for child in children)
    fields = {
        "start": loaded.chain.start.id,
        "prev": loaded.chain.head if loaded.last else None,
        "number": attempt.number,
        "role": attempt.role,
        "output": stored,
        "agent": result.agent or attempt.agent,
        "raw": raw,
        **place,
        **attempt.put_context(draft),
        "usage": note.usage,
        "attempt": attempt.previous,
        "given": result.given,
        "group": result.group,
        "reused": result.reused._asdict() if result.reused else None,
        "by": result.by and mask.value(dict(result.by)),
        "started_at": attempt.started_at,
        "completed_at": now,
        "cwd": attempt.workdir,
        "totals": thread.add_totals(attempt.totals(), attempt.role, used, saved),
        "limits": dict(limits),
        "parts": attempt.dump_parts() if result.agent != HUMAN else {},
    }
    keep = ("prev", "number", "totals", "agent")
    step = thread.put_step(draft, drop_empty(fields, keep=keep))
    is_whole = result.schema is None and result.is_exact and "ending" not in note.detail
    can_stand = is_whole and not loaded.role(attempt.role).may_start_threads
    if can_stand and fields["parts"] and attempt.parts and (key := key_of(attempt.parts)):
        draft.set_fact(key_name(key), {"step": step, "thread": attempt.thread})
    for made in attempt.commits():
        # The inner step that made a commit is stored before the step of its group or nested workflow, so a step that is
        # already recorded is kept.
        if attempt.store.ref(name := key_name(f"commit-{made}")) is None:
            draft.set_fact(name, {"step": step, "thread": attempt.thread})
    return step, onward


def status_after(way: Route) -> tuple[Status, str | None, str]:
    """Return the thread's status after this route, the next role, and the reason if the thread stops."""
    match way:
        case Next():
            return Status.IDLE, way.role, ""
        case Ended():
            return Status.COMPLETED, None, ""
        case Failed():
            return Status.FAILED, None, way.reason
        case Suspended() | Stuck():
            return Status.SUSPENDED, None, way.reason


def answer(
    store: Store,
    ref: ThreadRef,
    playbook: Playbook,
    output: JsonObject,
    *,
    body: str,
    mask: Mask,
    is_run_here: bool = False,
    by: Mapping[str, str] | None = None,
) -> ThreadRef:
    """Add a step with a person's checked output for the role whose turn it is. `by` describes the person. If the
    service ran the thread before, the service continues it, unless `is_run_here`."""
    refuse_running(store, ref)
    if ref.state.has_ended:
        raise UsageError(
            f"thread {ref.id} is {ref.state.status} and is not waiting for an answer",
            hint=Hint("Fork it to continue from some step", "fork_thread", thread=ref.id),
        )
    loaded = LoadedThread(ref.id, Chain(store, ref.head), playbook, ref.state.folders)
    way = next_of(loaded)
    if not isinstance(way, Next):
        why = f": {way.reason}" if isinstance(way, Suspended | Stuck) else ""
        raise UsageError(f"no role of thread {ref.id} is due{why}", hint=thread.continuation(ref) or "")
    if misfits := Shape(loaded.role(way.role).schema).misfits(output):
        listed = "".join(f"\n  {misfit}" for misfit in misfits)
        raise InvalidPayload(
            f"the answer does not fit what {way.role} must deliver:{listed}",
            misfits,
            hint=Hint("See the fields and an example", "show_question", thread=ref.id),
        )
    if loaded.role(way.role).group is not None:
        raise UsageError(f"{way.role} is played by a group", hint="Answer its members.")
    attempt = Attempt(store, loaded, way, mask=mask, is_answer=True)
    if attempt.agent:
        attempt.fail("a person answered in its place")

    def finish(draft: Draft, state: ThreadState) -> ThreadState:
        return state if is_run_here else queue_again(store, draft, ref, state)

    commit(attempt, StepResult(dict(output), body, raw=body, agent=HUMAN, by=by), ref, finish=finish)
    return thread.find(store, ref.id)
