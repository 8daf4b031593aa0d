"""A thread's life outside its steps: start, fork, kill, resume, answer. Each is one transaction."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rolecall import holder, registry, thread
from rolecall.errors import Conflict, InvalidPayload, UsageError
from rolecall.store.backend import Ref
from rolecall.store.store import Store
from rolecall.thread import FORK, FORK_SCHEMA, PERSON, PERSON_SCHEMA, START_SCHEMA, STEP_SCHEMA, Chain

if TYPE_CHECKING:
    from rolecall.mask import Mask
    from rolecall.playbook import Playbook

LIMITS = ("steps", "turns", "tokens", "cost", "minutes")


def start(
    store: Store,
    workflow: str | Playbook,
    prompt: str,
    *,
    cwd: str,
    mask: Mask,
    limits: Mapping[str, float] | None = None,
    agent: str | None = None,
) -> Ref:
    """Make a thread; nothing is run. A playbook that is not stored yet is stored with it."""
    if not prompt.strip():
        raise UsageError("a thread needs a prompt", hint="Say what is to be done: -p 'Fix the login bug'.")
    if not os.path.isdir(cwd):
        raise UsageError(f"the work folder {cwd!r} does not exist")
    draft = store.draft()
    node = workflow if isinstance(workflow, str) else registry.add_workflow(draft, workflow)
    name = store.get(workflow).payload["name"] if isinstance(workflow, str) else workflow.workflow.name
    fields = {
        "workflow": node,
        "prompt": mask.text(prompt),
        "cwd": os.path.realpath(cwd),
        "limits": dict(limits or {}),
    }
    head = draft.put_as(START_SCHEMA, {key: value for key, value in fields.items() if value})
    ident = thread.new_thread_id(store.now())
    state = {
        "status": "idle",
        "workflow": node,
        "name": name,
        "title": _title(fields["prompt"]),
        "cwd": fields["cwd"],
    }
    draft.event(ident, "started", {"workflow": node, "name": name})
    draft.move(thread.ref_name(ident), None, head, state | ({"agent": agent} if agent else {}))
    return draft.commit(durable=True)[0]


def _title(prompt: str) -> str:
    line = next((line.strip() for line in prompt.splitlines() if line.strip()), "")
    return line if len(line) <= 100 else line[:99] + "…"


def fork(
    store: Store,
    at: str,
    *,
    mask: Mask,
    source: Ref | None = None,
    workflow: str | Playbook | None = None,
    prompt: str | None = None,
) -> Ref:
    """A new thread that shares the chain up to `at` (a start or a step). Changing the workflow or the
    prompt adds a start of its own; otherwise a fork is one ref."""
    chain = Chain(store, at)
    draft = store.draft()
    head, node = at, chain.start.workflow
    if workflow is not None or prompt is not None:
        node = (
            workflow
            if isinstance(workflow, str)
            else registry.add_workflow(draft, workflow)
            if workflow
            else node
        )
        fields = {
            "workflow": node,
            "prompt": mask.text(prompt or chain.start.prompt),
            "cwd": chain.start.cwd,
            "forked_from": at,
        }
        head = draft.put_as(START_SCHEMA, fields)
        if chain.last is not None:
            head = _put_mark(store, draft, chain, head)
    ident = thread.new_thread_id(store.now())
    name = (
        workflow.workflow.name
        if workflow is not None and not isinstance(workflow, str)
        else store.get(node).payload["name"]
    )
    state = {
        "status": "idle",
        "workflow": node,
        "name": name,
        "title": _title(prompt or chain.start.prompt),
        "cwd": chain.start.cwd,
        "forked_from": at,
        "steps": chain.last.number if chain.last else 0,
    }
    if source is not None:
        state |= {"forked_thread": source.name[7:]} | {
            key: source.state[key] for key in ("limits", "agent") if key in source.state
        }
    draft.event(ident, "forked", {"from": at})
    draft.move(thread.ref_name(ident), None, head, state)
    return draft.commit(durable=True)[0]


def _put_mark(store: Store, draft: Any, chain: Chain, start_id: str) -> str:
    """The step that says: from here on another start counts."""
    assert chain.last is not None  # noqa: S101 - callers fork a step here, not a start
    return _put_marker(store, draft, chain, FORK, draft.put_as(FORK_SCHEMA, {"from": chain.head}), start_id)


def _put_marker(store: Store, draft: Any, chain: Chain, role: str, output: str, start_id: str) -> str:
    last, now = chain.last, store.now()
    fields = {
        "start": start_id,
        "prev": chain.head if last else None,
        "number": (last.number if last else 0) + 1,
        "role": role,
        "output": output,
        "agent": "person" if role == PERSON else "rolecall",
        "started_at": now,
        "completed_at": now,
        "cwd": chain.start.cwd,
        "totals": last.payload["totals"] if last else {},
    }
    node: str = draft.put_as(STEP_SCHEMA, fields)
    return node


def resume(
    store: Store,
    ref: Ref,
    *,
    mask: Mask,
    answer: str | None = None,
    limits: Mapping[str, float] | None = None,
) -> Ref:
    """Let a suspended thread go on. What the person says becomes part of the chain."""
    status = ref.state.get("status")
    if status in thread.ENDED:
        raise UsageError(
            f"thread {ref.name[7:]} is {status}",
            hint=f"Fork it to go on: `rolecall thread fork {ref.name[7:]}`.",
        )
    _refuse_running(store, ref)
    chain = Chain(store, ref.target or "")
    draft = store.draft()
    head = ref.target
    state = {key: value for key, value in ref.state.items() if key not in ("reason", "lease")}
    if answer is not None and answer.strip():
        said = {
            "reason": ref.state.get("reason", ""),
            "answer": mask.text(answer),
            "role": _asking_role(chain, ref),
        }
        head = _put_marker(store, draft, chain, PERSON, draft.put_as(PERSON_SCHEMA, said), chain.start.id)
    if limits:
        state["limits"] = {**state.get("limits", {}), **limits}
    draft.event(ref.name[7:], "resumed", {"answer": mask.text(answer or ""), "limits": dict(limits or {})})
    draft.move(ref.name, ref, head, {**state, "status": "idle"})
    return draft.commit(durable=True)[0]


def _asking_role(chain: Chain, ref: Ref) -> str:
    """The role that is waiting: the one that asked, or the one whose attempt failed."""
    role = ref.state.get("role")
    if role:
        return str(role)
    for step in chain:
        if not step.role.startswith("$"):
            return step.role
    raise UsageError(f"thread {ref.name[7:]} waits for no role", hint="Resume it without an answer.")


def kill(store: Store, ref: Ref, reason: str = "killed by a person") -> tuple[Ref, Mapping[str, Any] | None]:
    """End a thread for good. The lease of a process that runs it right now is returned, to be signalled."""
    if ref.state.get("status") in thread.ENDED:
        raise UsageError(f"thread {ref.name[7:]} is already {ref.state['status']}")
    lease = ref.state.get("lease")
    state = {key: value for key, value in ref.state.items() if key not in ("lease", "role")}
    draft = store.draft()
    draft.event(ref.name[7:], "killed", {"reason": reason})
    draft.move(ref.name, ref, ref.target, {**state, "status": "killed", "reason": reason})
    moved = draft.commit(durable=True)[0]
    return moved, lease if lease and holder.is_alive(lease, now=store.now()) else None


def answer(
    store: Store, ref: Ref, playbook: Playbook, output: Mapping[str, Any], *, body: str, mask: Mask
) -> Ref:
    """A person plays the role that is due: the typed output, checked, becomes the step."""
    from rolecall.engine import status_after
    from rolecall.record import Recorder
    from rolecall.route import Next
    from rolecall.schema import Type
    from rolecall.turn import Turn, next_of

    _refuse_running(store, ref)
    if ref.state.get("status") in thread.ENDED:
        raise UsageError(f"thread {ref.name[7:]} is {ref.state['status']}")
    turn = Turn(ref.name[7:], Chain(store, ref.target or ""), playbook)
    way = next_of(turn)
    if not isinstance(way, Next):
        raise UsageError(
            f"no role of thread {ref.name[7:]} is due", hint=f"See `rolecall thread show {ref.name[7:]}`."
        )
    misfits = Type(dict(turn.role(way.role).schema)).misfits(output)
    if misfits:
        listed = "".join(f"\n  {misfit}" for misfit in misfits)
        raise InvalidPayload(f"the answer does not fit what {way.role} has to give:{listed}", misfits)
    record = Recorder(store, turn.thread, turn, way, mask=mask)
    draft = store.draft()
    step, onward = record.put_step(draft, {"output": dict(output), "text": body, "agent": "human"})
    status, role, reason = status_after(onward)
    state = {key: value for key, value in ref.state.items() if key not in ("reason", "lease", "role")}
    state |= {"status": status, "role": role, "reason": reason, "steps": record.number}
    draft.event(turn.thread, "step", {"step": step, "role": way.role, "status": status, "next": role})
    record.settle(draft)
    draft.move(ref.name, ref, step, {key: value for key, value in state.items() if value not in (None, "")})
    draft.commit(durable=True)
    return thread.find(store, turn.thread)


def _refuse_running(store: Store, ref: Ref) -> None:
    lease = ref.state.get("lease")
    if lease and holder.is_alive(lease, now=store.now()):
        raise Conflict(f"thread {ref.name[7:]} is being run by {holder.describe(lease)}")
