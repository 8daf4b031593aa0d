"""A thread's life outside its steps: start, fork, kill, resume, answer. Each is one transaction."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from rolecall.errors import Conflict, Hint, InvalidPayload, UsageError
from rolecall.store import holder
from rolecall.store.ids import NodeId, ThreadId
from rolecall.store.store import Draft, Store
from rolecall.threads import thread
from rolecall.threads.state import QueuePlace, Status, ThreadRef, ThreadState, add, load, move, read_threads
from rolecall.threads.thread import FORK, FORK_SCHEMA, PERSON, PERSON_SCHEMA, START_SCHEMA, STEP_SCHEMA, Chain
from rolecall.workflow import registry

if TYPE_CHECKING:
    from rolecall.settings.mask import Mask
    from rolecall.workflow.playbook import Playbook

Bind = Callable[["Playbook"], Mapping[str, Any]]
"""Binds agents to the roles of a new thread of a playbook; the thread stores them."""
Also = Callable[[str, Draft], object]
"""(id of a new thread, the draft that makes it): adds something that happens together with it."""
KILLED = 137
"""The exit code of a thread that was killed, which is that of a process ended by SIGKILL."""
MAKING_MS = 600_000
"""After how long another host takes it that whoever makes a thread's folders is gone."""


def start(
    store: Store,
    workflow: str | Playbook,
    prompt: str,
    *,
    cwd: str,
    mask: Mask,
    limits: Mapping[str, float] | None = None,
    agent: str | None = None,
    bind: Bind | None = None,
    parent: str | None = None,
    work: str | None = None,
    sessions: Mapping[str, Mapping[str, str]] | None = None,
    queue: int | None = None,
    also: Also | None = None,
) -> ThreadRef:
    """Make a thread without running it, and store its playbook if it is not stored yet. `agent` plays every role;
    `bind` names the agent of each role, so that later changes of the configuration do not apply. `parent` is the
    thread one of whose roles it plays, `work` the place for folders of its own. `sessions` has, for roles that resume
    a session in their first turn, the `thread` and `step` of the earlier one and the `tier` that decides; or the
    `refusal`, the reason for a new session. `queue` queues it for the service with that priority. `also` adds to the
    transaction that makes the thread."""
    if not prompt.strip():
        raise UsageError("a thread needs a prompt", hint="Say what is to be done: -p 'Fix the login bug'.")
    if not os.path.isdir(cwd):
        raise UsageError(f"the work folder {cwd!r} does not exist")
    if agent:
        _refuse_secret(agent, mask)
    draft = store.draft()
    fields = {
        "workflow": workflow if isinstance(workflow, str) else registry.add_workflow(draft, workflow),
        "prompt": mask.text(prompt),
        "cwd": os.path.realpath(cwd),
    }
    head = draft.put_as(START_SCHEMA, fields)
    draft.put_schema(STEP_SCHEMA)  # so that an agent can put the first step
    draft.commit()
    book = registry.load_node(store, workflow) if isinstance(workflow, str) else workflow
    for role in sessions or ():
        if role not in book.workflow.roles:
            raise UsageError(
                f"a session is given for {role!r}, which is not a role of {book.workflow.name!r}"
            )
    return _point(
        store,
        head,
        book,
        ThreadState(
            agent=agent,
            agents=bind(book) if bind else {},
            parent=ThreadId(parent) if parent else None,
            sessions=dict(sessions or {}),
            limits=dict(limits or {}),
        ),
        event=("started" if queue is None else "queued", {"workflow": fields["workflow"]}),
        work=work,
        queue=queue,
        also=also,
    )


def _refuse_secret(agent: str, mask: Mask) -> None:
    if mask.text(agent) != agent:
        raise UsageError(
            "the agent's command contains a secret, which the thread would store",
            hint="Let the command read the secret from its environment.",
        )


def _point(
    store: Store,
    head: str,
    book: Playbook,
    facts: ThreadState,
    *,
    event: tuple[str, Mapping[str, Any]],
    work: str | None,
    source: ThreadRef | None = None,
    queue: int | None = None,
    also: Also | None = None,
) -> ThreadRef:
    """A new thread whose head is `head`, with what must be known of it at a glance."""
    from rolecall.threads.turn import Turn, next_of
    from rolecall.workflow.route import Next, Stuck

    ident = thread.new_thread_id(store.now())
    chain = Chain(store, head)
    way = next_of(Turn(ident, chain, book))
    if isinstance(way, Stuck):
        raise UsageError(f"the thread could not take its next step: {way.reason}")
    state = facts._replace(
        workflow=NodeId(chain.start.workflow),
        name=book.workflow.name,
        title=thread.title_of(chain.start.prompt),
        cwd=chain.start.cwd,
        role=way.role if isinstance(way, Next) else None,
        steps=chain.last.number if chain.last else None,
        folders=_planned_folders(store, ident, book, chain.start.cwd, work=work, source=source),
    )
    draft = store.draft()
    told = {"name": book.workflow.name, **event[1], "folders": state.folders}
    draft.event(ident, event[0], _given(told))
    if queue is not None:
        state = _queued(store, state, queue)
    add(draft, ident, head, state)
    if queue is not None:
        _enter_queue(draft, ident, state, maker=_maker(store) if state.folders else None)
    if also is not None:
        also(ident, draft)
    return _with_folders(store, load(draft.commit(durable=True)[0]))


def _queued(store: Store, state: ThreadState, priority: int) -> ThreadState:
    return state._replace(status=Status.QUEUED, service=QueuePlace(priority, store.now()))


def _enter_queue(
    draft: Draft,
    ident: str,
    state: ThreadState,
    *,
    maker: Mapping[str, Any] | None = None,
    is_begun: bool = False,
) -> None:
    """`maker` still makes the thread's folders: as long as it lives, the thread is not admitted. One that `is_begun`
    is not discarded."""
    place = state.service
    assert place is not None  # noqa: S101 -- `_queued` gave it one
    entry: dict[str, Any] = {"maker": dict(maker)} if maker else {}
    entry |= {"begun": True} if is_begun else {}
    name = thread.queue_name(state.name, ident, priority=place.priority, at=place.queued_at)
    draft.move(name, None, state=entry)


def _maker(store: Store) -> dict[str, Any]:
    return {**holder.me("maker"), "deadline": store.now() + MAKING_MS}


def _going_on(store: Store, draft: Draft, ref: ThreadRef, state: ThreadState) -> ThreadState:
    """The state of a thread that is to go on: one that the service had waits for the service again."""
    place = ref.state.service
    if state.status != Status.IDLE or place is None:
        return state
    if thread.in_service(store, ref):
        return state._replace(status=Status.QUEUED) if ref.state.status == Status.QUEUED else state
    state = _queued(store, state, place.priority)
    _enter_queue(draft, ref.id, state, is_begun=True)
    return state


def _planned_folders(
    store: Store, ident: str, book: Playbook, cwd: str, *, work: str | None, source: ThreadRef | None
) -> dict[str, Any]:
    """The folders of its own that a thread needs; what is wrong with them is an error before there is one."""
    from rolecall.workflow.model import own_folders

    kinds = own_folders(book.workflow)
    if not kinds:
        return {}
    from rolecall.threads import workfolder

    known = source.state.folders if source else {}
    if source is not None and "copy" in kinds and "copy" in known:
        refuse_running(store, source)  # a folder cannot be copied consistently while a process writes to it
    return {kind: workfolder.plan(kind, ident, cwd=cwd, work=work, parent=known.get(kind)) for kind in kinds}


def _with_folders(store: Store, ref: ThreadRef) -> ThreadRef:
    """Make the thread's own folders. A thread that cannot have them is none. Where this process dies before they
    are there, the first step makes them."""
    folders = ref.state.folders
    if not folders:
        return ref
    from rolecall.threads import workfolder

    try:
        for kind, folder in folders.items():
            workfolder.make(kind, folder)
    except BaseException as error:
        for kind, folder in folders.items():
            workfolder.discard(kind, folder)
        draft = store.draft()
        draft.event(ref.id, "not_started", {"reason": str(error)})
        for place in (ref.ref, *thread.in_service(store, ref)):
            draft.move(place.name, place)
        with suppress(Conflict):  # it was killed or discarded meanwhile
            draft.commit(durable=True)
        raise
    with suppress(Conflict):  # the same
        for place in thread.in_service(store, ref):
            store.move(place.name, place, state={})
    return thread.find(store, ref.id)


def _given(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if value}


def fork(
    store: Store,
    at: str,
    *,
    mask: Mask,
    source: ThreadRef | None = None,
    workflow: str | Playbook | None = None,
    prompt: str | None = None,
    agent: str | None = None,
    bind: Bind | None = None,
    work: str | None = None,
) -> ThreadRef:
    """A new thread that shares the chain up to `at` (a start or a step). Changing the workflow or the
    prompt adds a start of its own; otherwise a fork is one ref. Its own folders begin as those of `source`
    are now: a worktree at the last commit there, a copy as a copy. The fork keeps the agents of `source`, unless it
    has an `agent` or a workflow of its own."""
    chain = Chain(store, at)
    head = at
    if workflow is not None or prompt is not None:
        head = _put_own_start(store, chain, workflow, mask.text(prompt or chain.start.prompt))
    stored = workflow if isinstance(workflow, str) else chain.start.workflow
    book = workflow if workflow and not isinstance(workflow, str) else registry.load_node(store, stored)
    limits = _limits_at(store, chain) if source is None else source.state.limits
    facts = ThreadState(forked_from=NodeId(at), limits={**chain.start.limits, **limits})
    if source is not None:
        facts = facts._replace(forked_thread=source.id, agent=source.state.agent, agents=source.state.agents)
    if agent is not None:
        facts = facts._replace(agent=agent)
    if bind and (agent is not None or workflow is not None or source is None):
        facts = facts._replace(agents=bind(book))
    return _point(store, head, book, facts, event=("forked", {"from": at}), work=work, source=source)


def _limits_at(store: Store, chain: Chain) -> dict[str, float]:
    """The limits of threads at a node that is named without a thread. A start does not store limits, and several
    threads may share it, so their lowest limits apply."""
    if chain.last is not None:
        return dict(chain.last.payload.get("limits", {}))
    found: dict[str, float] = {}
    for ref in read_threads(store, where={"workflow": [chain.start.workflow]}):
        given = ref.state.limits
        if given and Chain(store, ref.head).start.id == chain.head:
            found |= {key: min(value, found.get(key, value)) for key, value in given.items()}
    return found


def _put_own_start(store: Store, chain: Chain, workflow: str | Playbook | None, prompt: str) -> str:
    """A start of the fork's own; after a step, a `$FORK` step says that it counts from there on."""
    draft = store.draft()
    node = chain.start.workflow if workflow is None else workflow
    fields = {
        "workflow": node if isinstance(node, str) else registry.add_workflow(draft, node),
        "prompt": prompt,
        "cwd": chain.start.cwd,
    }
    head = draft.put_as(START_SCHEMA, fields)
    if chain.last is not None:
        mark = draft.put_as(FORK_SCHEMA, {"from": chain.head})
        head = _put_marker(store, draft, chain, FORK, mark, head)
    draft.commit()
    return head


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
        "limits": last.payload.get("limits", {}) if last else {},
    }
    return thread.put_step(draft, fields)


def resume(
    store: Store,
    ref: ThreadRef,
    *,
    mask: Mask,
    answer: str | None = None,
    limits: Mapping[str, float] | None = None,
    agent: str | None = None,
    bind: Bind | None = None,
    is_run_here: bool = False,
) -> ThreadRef:
    """Continue a suspended thread. The person's words become part of the chain. From here on `agent` plays every
    role, if one is given. The service continues a thread that it ran before, unless `is_run_here`."""
    status = ref.state.status
    if ref.state.has_ended:
        raise UsageError(
            f"thread {ref.id} is {status}",
            hint=Hint("Fork it to continue", "fork_thread", thread=ref.id),
        )
    refuse_running(store, ref)
    has_answer = answer is not None and answer.strip() != ""
    if status == Status.SUSPENDED and not has_answer and ref.state.role is None:
        raise UsageError(
            f"thread {ref.id} waits for an answer: {ref.state.reason}",
            hint=Hint("Give it", "answer_thread", thread=ref.id),
        )
    chain = Chain(store, ref.head)
    draft = store.draft()
    head: str = ref.head
    state = ref.state.moved(Status.IDLE)
    if answer is not None and has_answer:
        said = _said(store, chain, ref, mask.text(answer))
        head = _put_marker(store, draft, chain, PERSON, draft.put_as(PERSON_SCHEMA, said), chain.start.id)
        state = state._replace(role=said["role"], steps=(chain.last.number if chain.last else 0) + 1)
    if limits:
        state = state._replace(limits={**state.limits, **limits})
    if agent is not None and bind is not None:
        _refuse_secret(agent, mask)
        state = state._replace(agent=agent, agents=bind(registry.load_node(store, chain.start.workflow)))
    draft.event(ref.id, "resumed", {"answer": mask.text(answer or ""), "limits": dict(limits or {})})
    move(draft, ref, state if is_run_here else _going_on(store, draft, ref, state), head=head)
    return load(draft.commit(durable=True)[-1])


def _said(store: Store, chain: Chain, ref: ThreadRef, answer: str) -> dict[str, str]:
    """What a person says to a role, with what the role was called with, so that it is called so again."""
    from rolecall.threads.turn import Turn, called_with

    role = _asking_role(chain, ref)
    book = registry.load_node(store, chain.start.workflow)
    called = called_with(Turn(ref.id, chain, book), role)
    as_before = {"prompt": called.prompt, "location": called.location}
    return {"reason": ref.state.reason, "answer": answer, "role": role, **_given(as_before)}


def _asking_role(chain: Chain, ref: ThreadRef) -> str:
    """The role that is waiting: the one that asked, or the one whose attempt failed."""
    if ref.state.role:
        return ref.state.role
    for step in chain:
        if not step.role.startswith("$"):
            return step.role
    raise UsageError(f"thread {ref.id} waits for no role", hint="Resume it without an answer.")


def kill(
    store: Store, ref: ThreadRef, reason: str = "killed by a person", *, mask: Mask
) -> tuple[ThreadRef, Mapping[str, Any] | None]:
    """End a thread for good. The lease of a process that runs it right now is returned, to be signalled."""
    while True:
        try:
            return _killed(store, ref, mask.text(reason))
        except Conflict:
            # Whoever runs it renews its lease; killing it does not depend on that.
            ref = thread.find(store, ref.id)


def _killed(store: Store, ref: ThreadRef, reason: str) -> tuple[ThreadRef, Mapping[str, Any] | None]:
    if ref.state.has_ended:
        raise UsageError(f"thread {ref.id} is already {ref.state.status}")
    lease = ref.state.lease
    is_running = lease and holder.is_alive(lease, now=store.now())  # asked before the service can hear of it
    draft = store.draft()
    draft.event(ref.id, "killed", {"reason": reason, "exit_code": KILLED})
    move(draft, ref, ref.state.moved(Status.KILLED, role=None, reason=reason))
    for place in thread.in_service(store, ref):
        draft.move(place.name, place)
    moved = load(draft.commit(durable=True)[0])
    return moved, lease if is_running else None


def answer(
    store: Store,
    ref: ThreadRef,
    playbook: Playbook,
    output: Mapping[str, Any],
    *,
    body: str,
    mask: Mask,
    is_run_here: bool = False,
) -> ThreadRef:
    """Let a person play the role whose turn it is: the checked output becomes the step. The service continues a thread
    that it ran before, unless `is_run_here`."""
    from rolecall.threads.engine import status_after
    from rolecall.threads.record import Recorder
    from rolecall.threads.turn import Turn, next_of
    from rolecall.workflow.reply import Shape
    from rolecall.workflow.route import Next, Stuck, Suspended

    refuse_running(store, ref)
    if ref.state.has_ended:
        raise UsageError(f"thread {ref.id} is {ref.state.status}")
    turn = Turn(ref.id, Chain(store, ref.head), playbook)
    way = next_of(turn)
    if not isinstance(way, Next):
        raise UsageError(
            f"no role of thread {ref.id} is due: {way.reason}"
            if isinstance(way, Suspended | Stuck)
            else f"no role of thread {ref.id} is due",
            hint=thread.continuation(ref) or "",
        )
    misfits = Shape(turn.role(way.role).schema).misfits(output)
    if misfits:
        listed = "".join(f"\n  {misfit}" for misfit in misfits)
        raise InvalidPayload(f"the answer does not fit what {way.role} has to give:{listed}", misfits)
    record = Recorder(store, turn.thread, turn, way, mask=mask)
    if record.agent:
        record.failed("a person answered in its place")
    draft = store.draft()
    step, onward = record.put_step(
        draft, {"output": dict(output), "text": body, "agent": "human"}, limits=ref.state.limits
    )
    status, role, reason = status_after(onward)
    state = ref.state.moved(status, role=role, reason=mask.text(reason), steps=record.number)
    draft.event(turn.thread, "step", {"step": step, "role": way.role, "status": status, "next": role})
    record.settle(draft)
    state = state if is_run_here else _going_on(store, draft, ref, state)
    move(draft, ref, state, head=step)
    draft.commit(durable=True)
    return thread.find(store, turn.thread)


def refuse_running(store: Store, ref: ThreadRef) -> None:
    """Raise Conflict while a live process runs the thread."""
    lease = ref.state.lease
    if lease and holder.is_alive(lease, now=store.now()):
        raise Conflict(f"thread {ref.id} is being run by {holder.describe(lease)}")
