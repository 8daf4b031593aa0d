"""Start, fork, resume and kill threads, each in one transaction."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from rolecall.errors import Conflict, Hint, UsageError
from rolecall.files.tree import Trees
from rolecall.settings import config
from rolecall.settings.service_socket import poke
from rolecall.store import holder
from rolecall.store.canonical import JsonObject
from rolecall.store.ids import NodeId, ThreadId
from rolecall.store.store import Draft, Store
from rolecall.threads import thread, workfolder
from rolecall.threads.loaded_thread import LoadedThread, find_call, next_of
from rolecall.threads.state import (
    QueuePlace,
    Status,
    ThreadRef,
    ThreadState,
    add,
    group_name,
    load,
    move,
    read_note,
    read_thread,
    read_threads,
)
from rolecall.threads.thread import FORK, PERSON, Chain
from rolecall.workflow import command, registry
from rolecall.workflow.model import StoredWorkflow, own_folders
from rolecall.workflow.route import Next, Stuck

if TYPE_CHECKING:
    from rolecall.settings.mask import Mask
    from rolecall.workflow.playbook import Playbook

Bind = Callable[["Playbook"], JsonObject]
"""Returns the agents to bind to the roles of a new thread, which stores these agents."""
Also = Callable[[str, Draft], object]
"""Takes the id of a new thread and the draft that creates the thread, and adds something to that draft."""
KILLED = 137
"""The exit code of a killed thread, which equals that of a process ended by SIGKILL."""
MAKING_MS = 600_000
"""The time that another host waits for the process that makes a thread's folders, before treating that process as
dead."""


class EvalThread(NamedTuple):
    """A thread of an evaluation, which runs one repeat of one task with one variant."""

    thread: str
    """The thread's id, which is derived from the run."""
    run: str
    repeat: int = 0
    """The number of earlier repeats that ask the same questions; the thread does not reuse their answers."""


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
    title: str = "",
    work: str | None = None,
    sessions: Mapping[str, Mapping[str, str]] | None = None,
    reuse: bool | None = None,
    queue: int | None = None,
    cell: EvalThread | None = None,
    ident: str | None = None,
    also: Also | None = None,
) -> ThreadRef:
    """Create a thread without running it. Store its playbook if it is not stored yet.

    Args:
        agent: the agent that plays every role.
        bind: chooses the agent of each role now, so that later changes of the configuration do not apply.
        parent: the thread with the role that this thread plays.
        title: the title; if empty, the first line of the prompt.
        work: the folder in which the thread's own folders are created.
        sessions: for each role that begins in an earlier session, the `thread`, `step` and `tier` of that session,
            or, as `refusal`, the reason for a new session.
        reuse: whether finished steps with the same key are taken over; None leaves the choice to the workflow.
        queue: the thread's priority in the service's queue; None if the thread is not queued.
        cell: the id and the settings that an evaluation chooses for the thread.
        ident: the thread's id, if it has already been chosen.
        also: adds to the transaction that creates the thread.
    """
    if not prompt.strip():
        raise UsageError("a thread needs a prompt", hint=Hint("Say what to do", "name_task"))
    if not os.path.isdir(cwd):
        hint = "Create the folder, or name an existing one."
        raise UsageError(f"the work folder {cwd!r} does not exist", hint=hint)
    if agent:
        _refuse_secret(agent, mask)
    draft = store.draft()
    node = workflow if isinstance(workflow, str) else registry.add_workflow(draft, workflow)
    fields = {"workflow": node, "prompt": mask.text(prompt), "cwd": os.path.realpath(cwd)}
    head = draft.put_as(thread.START_SCHEMA, fields)
    draft.put_schema(thread.STEP_SCHEMA)  # an external agent needs this schema to store the first step
    draft.commit()
    book = registry.load_node(store, workflow) if isinstance(workflow, str) else workflow
    for role in sessions or ():
        if role not in book.workflow.roles:
            raise UsageError(
                f"a session is given for {role!r}, which is not a role of {book.workflow.name!r}"
            )
    state = ThreadState(
        agent=agent,
        agents=bind(book) if bind else {},
        parent=ThreadId(parent) if parent else None,
        title=thread.title_of(title),
        sessions=dict(sessions or {}),
        limits=dict(limits or {}),
        reuse=reuse,
    )
    kind, body = "started" if queue is None else "queued", {"workflow": node}
    return _add_thread(
        store, head, book, state, kind, body, ident=ident, cell=cell, work=work, queue=queue, also=also
    )


def _refuse_secret(agent: str, mask: Mask) -> None:
    if mask.text(agent) != agent:
        raise UsageError(
            "the agent's command contains a secret, which the thread would store",
            hint="Let the command read the secret from its environment.",
        )


def fork(
    store: Store,
    at: str,
    *,
    mask: Mask,
    source: ThreadRef | None = None,
    workflow: str | Playbook | None = None,
    prompt: str | None = None,
    cwd: str | None = None,
    agent: str | None = None,
    bind: Bind | None = None,
    title: str = "",
    work: str | None = None,
    trees: str | None = None,
    reuse: bool | None = None,
    cell: EvalThread | None = None,
    also: Also | None = None,
) -> ThreadRef:
    """Create a thread that shares the chain up to `at`, which is a start or a step. A different workflow or prompt adds
    a new start, which can also have a different work folder, `cwd`; without a new start, a fork is just one ref. The
    fork keeps the agents of `source`, unless `agent` or `workflow` is given. `cell` holds what an evaluation chooses
    for the fork.

    The fork works in its own folders, which begin with the files of that step. `trees` is the folder of the
    repositories that contain these files. Without `trees`, or if the step did not record its files, the fork shares the
    folder that `source` shares, and its own folders begin with the current state of the folders of `source`: a worktree
    begins at the last commit of the worktree of `source`, and a copy is made from the copy of `source`."""
    chain, head = Chain(store, at), at
    if workflow is not None or prompt is not None:
        draft = store.draft()
        node = chain.start.workflow if workflow is None else workflow
        fields = {
            "workflow": node if isinstance(node, str) else registry.add_workflow(draft, node),
            "prompt": mask.text(prompt or chain.start.prompt),
            "cwd": os.path.realpath(cwd) if cwd else chain.start.cwd,
        }
        is_member = chain.start.member is not None
        given = store.get(chain.start.id).payload if is_member else {}
        head = draft.put_as(thread.MEMBER_SCHEMA if is_member else thread.START_SCHEMA, {**given, **fields})
        if chain.last is not None:  # a `$FORK` step marks where the new start takes effect
            mark = draft.put_as(thread.FORK_SCHEMA, {"from": at})
            head = _put_marker(store, draft, chain, FORK, mark, start=head)
        draft.commit()
    stored = workflow if isinstance(workflow, str) else chain.start.workflow
    book = workflow if workflow and not isinstance(workflow, str) else registry.load_node(store, stored)

    limits = _limits_at(store, chain) if source is None else source.state.limits
    known = source.state if source else ThreadState()
    is_bound = agent is not None or workflow is not None or source is None
    state = ThreadState(
        forked_from=NodeId(at),
        forked_thread=source.id if source else None,
        agent=known.agent if agent is None else agent,
        agents=bind(book) if bind and is_bound else known.agents,
        title=thread.title_of(title),
        limits={**chain.start.limits, **limits},
        reuse=reuse,
    )
    return _add_thread(
        store, head, book, state, "forked", {"from": at},
        cell=cell, work=work, source=source, trees=trees, also=also,
    )  # fmt: skip


def _limits_at(store: Store, chain: Chain) -> dict[str, float]:
    """Return the limits for a fork at a node that was given without a thread. A start does not store limits and can be
    shared by several threads, so the lowest limits of those threads apply."""
    if chain.last is not None:
        return dict(chain.last.payload.get("limits", {}))
    found: dict[str, float] = {}
    for ref in read_threads(store, where={"workflow": [chain.start.workflow]}):
        if ref.state.limits and Chain(store, ref.head).start.id == chain.head:
            found |= {key: min(value, found.get(key, value)) for key, value in ref.state.limits.items()}
    return found


def _put_marker(store: Store, draft: Draft, chain: Chain, role: str, output: str, *, start: str) -> str:
    """Add a step that no role took: a person's message or the beginning of a fork."""
    last, now = chain.last, store.now()
    fields = {
        "start": start,
        "prev": chain.head if last else None,
        "number": chain.number + 1,
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


# -- a new thread --


def _add_thread(
    store: Store,
    head: str,
    book: Playbook,
    state: ThreadState,
    event: str,
    body: JsonObject,
    *,
    work: str | None,
    ident: str | None = None,
    cell: EvalThread | None = None,
    source: ThreadRef | None = None,
    trees: str | None = None,
    queue: int | None = None,
    also: Also | None = None,
) -> ThreadRef:
    if cell is not None:
        ident, state = cell.thread, state._replace(eval=cell.run, repeat=cell.repeat or None)
    ident = ident or thread.new_thread_id(store.now())
    chain = Chain(store, head)
    loaded = LoadedThread(ident, chain, book)
    way = next_of(loaded)
    if isinstance(way, Stuck):
        raise UsageError(f"the thread could not take its next step: {way.reason}")

    # Problems with the thread's folders are reported before the thread exists.
    kinds: list[str] = [*own_folders(book.workflow)]
    if member := chain.start.member:  # a fork of a member
        kinds = [kind for kind in [loaded.workdir_of(member.role)] if kind != "shared"]
    files: dict[str, workfolder.FilesAt] = {}
    if trees is not None:
        for kind in (*kinds, "fork"):
            if found := workfolder.files_at(store, chain, source, kind, trees):
                files[kind] = found
        if not all(Trees(trees).is_whole(found.snapshot) for found in files.values()):
            raise UsageError(
                "the files of this step are not on this machine, or not complete",
                hint=Hint("Fork with the files as they are now", "keep_files"),
            )
    if "fork" in files and any(loaded.workdir_of(role) == "shared" for role in loaded.workflow.roles):
        kinds.append("fork")
    known = source.state.folders if source else {}
    if source is not None and "copy" in kinds and "copy" in known:
        refuse_running(store, source)  # a folder cannot be copied consistently while a process writes to it
    cwd = chain.start.cwd
    folders = {
        kind: workfolder.plan(kind, ident, cwd=cwd, work=work, parent=known.get(kind), files=files.get(kind))
        for kind in kinds
    }

    state = state._replace(
        workflow=NodeId(chain.start.workflow),
        name=book.workflow.name,
        title=state.title or thread.title_of(chain.start.prompt),
        cwd=cwd,
        role=way.role if isinstance(way, Next) else None,
        steps=chain.last.number if chain.last else None,
        folders=folders,
    )
    draft = store.draft()
    fields = {"name": book.workflow.name, **body, "folders": state.dump_folders()}
    draft.event(ident, event, {key: value for key, value in fields.items() if value})
    if queue is not None:
        state = state._replace(status=Status.QUEUED, service=QueuePlace(queue, store.now()))
    add(draft, ident, head, state)
    if queue is not None:
        maker = {**holder.identify_self("maker"), "deadline": store.now() + MAKING_MS}
        enter_queue(draft, ident, state, {"maker": maker} if folders else {})
    if also is not None:
        also(ident, draft)
    return _make_folders(store, load(draft.commit(durable=True)[0]))


def enter_queue(draft: Draft, ident: str, state: ThreadState, entry: JsonObject) -> None:
    """Add a thread to the service's queue. While the process `maker` in `entry` lives, it is making the thread's
    folders, and the service does not admit the thread. If `begun` is true, the service never discards the thread."""
    draft.move(thread.queue_name_of(ident, state), None, state=thread.queue_entry(state, entry))


def _make_folders(store: Store, ref: ThreadRef) -> ThreadRef:
    """Make the thread's own folders, or remove the thread if that fails. If this process dies first, the thread's first
    step makes them."""
    folders = ref.state.folders
    if not folders:
        return ref
    try:
        for kind, folder in folders.items():
            workfolder.make(kind, folder)
    except BaseException as error:
        for folder in folders.values():
            workfolder.discard(folder)
        draft = store.draft()
        draft.event(ref.id, "not_started", {"reason": str(error)})
        for place in (ref.ref, *thread.in_service(store, ref)):
            draft.move(place.name, place)
        with suppress(Conflict):  # the thread has been killed or discarded
            draft.commit(durable=True)
        raise
    with suppress(Conflict):  # the thread has been killed or discarded
        for place in thread.in_service(store, ref):
            store.move(place.name, place, state={})
    return thread.find(store, ref.id)


# -- a thread that exists --


def resume(
    store: Store,
    ref: ThreadRef,
    *,
    mask: Mask,
    answer: str | None = None,
    limits: Mapping[str, float] | None = None,
    agent: str | None = None,
    bind: Bind | None = None,
    reuse: bool | None = None,
    is_run_here: bool = False,
    by: Mapping[str, str] | None = None,
) -> ThreadRef:
    """Continue a suspended thread. A person's answer becomes part of the chain, together with `by`, the description of
    that person. If `agent` is given, it plays every role from now on. If `reuse` is given, it says whether the next
    steps reuse finished ones. If the service ran the thread before, the service continues it, unless `is_run_here`."""
    if ref.state.has_ended:
        raise UsageError(
            f"thread {ref.id} is {ref.state.status}",
            hint=Hint("Fork it to continue", "fork_thread", thread=ref.id),
        )
    refuse_running(store, ref)
    words, whose = mask.text(answer or ""), {"by": mask.value(dict(by))} if by else {}
    group = store.ref(group_name(ref.id))
    if group is not None and words.strip():
        raise UsageError(
            f"the role of thread {ref.id} is played by a group, which cannot be answered as a whole",
            hint="Answer the members of the group, or resume the thread without an answer.",
        )
    if ref.state.status == Status.SUSPENDED and not words.strip() and ref.state.role is None:
        raise UsageError(
            f"thread {ref.id} waits for an answer: {ref.state.reason}",
            hint=Hint("Give it", "answer_thread", thread=ref.id),
        )
    if ref.state.until is not None and (note := read_note(store, ref.id)) is not None:
        played = read_thread(store, note.note.session) if note.note.by.startswith("workflow:") else None
        if played is not None and played.state.until is not None:  # the thread that plays its role waits, too
            resume(store, played, mask=mask)
    chain, draft = Chain(store, ref.head), store.draft()
    head: str = ref.head
    state = ref.state.move_to(Status.IDLE)
    if words.strip():
        # The role is called again with the same prompt, followed by the answer.
        book = registry.load_node(store, chain.start.workflow)
        role = _role_that_hears(chain, ref, book.workflow)
        called = find_call(LoadedThread(ref.id, chain, book, ref.state.folders), role)
        said = {"reason": ref.state.reason, "answer": words, "role": role}
        said |= {"prompt": called.prompt} if called.prompt else {}
        said |= {"location": called.location} if called.location else {}
        output = draft.put_as(thread.BY_PERSON_SCHEMA if by else thread.PERSON_SCHEMA, {**said, **whose})
        head = _put_marker(store, draft, chain, PERSON, output, start=chain.start.id)
        state = state._replace(role=role, steps=chain.number + 1)
    if limits:
        state = state._replace(limits={**state.limits, **limits})
    if reuse is not None:
        state = state._replace(reuse=reuse)
    if agent is not None and bind is not None:
        _refuse_secret(agent, mask)
        state = state._replace(agent=agent, agents=bind(registry.load_node(store, chain.start.workflow)))
    draft.event(ref.id, "resumed", {"answer": words, "limits": dict(limits or {}), **whose})
    if group is not None:
        # Members that have failed are tried again. The time for which the group was suspended does not count against
        # its deadline.
        now = store.now()
        kept = {"retry": now, **{key: group.state[key] for key in ("deadline", "tree") if key in group.state}}
        if "deadline" in kept:
            kept["deadline"] += now - ref.ref.updated
        draft.move(group.name, group, group.target, kept)
    move(draft, ref, state if is_run_here else queue_again(store, draft, ref, state), head=head)
    return load(draft.commit(durable=True)[-1])


def choose_reuse(store: Store, ref: ThreadRef, reuse: bool | None) -> None:
    """Set whether the thread's next steps may reuse finished steps; None changes nothing."""
    if reuse is None or reuse == ref.state.reuse or ref.state.has_ended:
        return
    refuse_running(store, ref)
    draft = store.draft()
    move(draft, ref, ref.state._replace(reuse=reuse))
    draft.commit()


def _role_that_hears(chain: Chain, ref: ThreadRef, workflow: StoredWorkflow) -> str:
    """Return the role that asked a question or whose attempt failed. If a command plays that role, return the role that
    the command's last tag names."""
    role = ref.state.role or next((step.role for step in chain if not step.role.startswith("$")), "")
    agents = {name: one.agent or "" for name, one in workflow.roles.items()}
    if command.is_run(agents.get(role)):
        role = command.source_of(command.words_of(agents[role]))
    if not role or command.is_run(agents.get(role)):
        raise UsageError(
            f"no role of thread {ref.id} waits for an answer", hint="Resume it without an answer."
        )
    return role


def queue_again(store: Store, draft: Draft, ref: ThreadRef, state: ThreadState) -> ThreadState:
    """Return the state of a thread that continues. Queue the thread again if the service ran it before."""
    place = ref.state.service
    if state.status != Status.IDLE or place is None:
        return state
    if places := thread.in_service(store, ref):
        for entry in places:
            if "until" in entry.state:  # the thread no longer waits for a limit
                kept = {key: value for key, value in entry.state.items() if key != "until"}
                draft.move(entry.name, entry, state=kept)
        return state._replace(status=Status.QUEUED) if ref.state.status == Status.QUEUED else state
    state = state._replace(status=Status.QUEUED, service=QueuePlace(place.priority, store.now()))
    enter_queue(draft, ref.id, state, {"begun": True})
    return state


def give_to_service(store: Store, ref: ThreadRef, *, priority: int = 0) -> ThreadRef:
    """Give an idle thread to the service."""
    refuse_running(store, ref)
    if ref.state.status != Status.IDLE or thread.in_service(store, ref):
        raise UsageError(f"thread {ref.id} is {ref.state.status}, so it cannot be queued")
    state = ref.state._replace(status=Status.QUEUED, service=QueuePlace(priority, store.now()))
    draft = store.draft()
    enter_queue(draft, ref.id, state, {"begun": True})
    draft.event(ref.id, "queued", {})
    move(draft, ref, state)
    return load(draft.commit(durable=True)[-1])


def kill(
    store: Store, ref: ThreadRef, reason: str = "killed by a person", *, mask: Mask
) -> tuple[ThreadRef, JsonObject]:
    """End a thread for good. Return the thread with the lease of the process that runs it, or with an empty lease if no
    process does. `killing.py` also ends that process."""
    while True:
        if ref.state.has_ended:
            raise UsageError(f"thread {ref.id} is already {ref.state.status}")
        # Find out whether the thread is running before the service can learn of the kill.
        is_running, masked = is_held(store, ref), mask.text(reason)
        draft = store.draft()
        draft.event(ref.id, "killed", {"reason": masked, "exit_code": KILLED})
        move(draft, ref, ref.state.move_to(Status.KILLED, role=None, reason=masked))
        for place in thread.in_service(store, ref):
            draft.move(place.name, place)
        try:
            return load(draft.commit(durable=True)[0]), ref.state.lease if is_running else {}
        except Conflict:  # for example because the lease was renewed
            ref = thread.find(store, ref.id)


def tell_service(ref: ThreadRef) -> None:
    """Ask the service to check one of its threads now instead of at the service's next poll."""
    if ref.state.service is not None:
        poke(config.home(), ref.id)


def is_held(store: Store, ref: ThreadRef) -> bool:
    """Return whether a live process runs the thread."""
    return bool(ref.state.lease) and holder.is_alive(ref.state.lease, now=store.now())


def refuse_running(store: Store, ref: ThreadRef) -> None:
    """Raise `Conflict` if a live process runs the thread."""
    if is_held(store, ref):
        raise Conflict(
            f"thread {ref.id} is being run by {holder.describe(ref.state.lease)}",
            hint="Wait until it stops, or stop it.",
        )
