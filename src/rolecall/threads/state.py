"""The state of a thread as one typed value. Only this module reads it from the thread's ref and writes it back.

A thread is the ref `thread/<id>`: its target is the head of the chain, its state holds the facts needed for a listing.
On the command line's read path.
"""

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from rolecall.errors import Damaged
from rolecall.store.backend import Ref
from rolecall.store.ids import NodeId, ThreadId, member_id
from rolecall.store.store import Draft, Store

GROUP = "group"
"""The agent of a step that joins the members of a group."""


class Status(StrEnum):
    QUEUED = "queued"
    IDLE = "idle"
    RUNNING = "running"
    WAITING = "waiting"
    """It waits for the members of its group and holds no process."""
    SUSPENDED = "suspended"
    COMPLETED = "completed"
    FAILED = "failed"
    KILLED = "killed"
    DISCARDED = "discarded"
    CRASHED = "crashed"
    """Shown, never stored: the status is running, but the process that ran it is gone."""
    DAMAGED = "damaged"
    """Shown, never stored: the thread's ref or head cannot be read."""


STATUSES = tuple(status for status in Status if status not in (Status.CRASHED, Status.DAMAGED))
ENDED = (Status.COMPLETED, Status.FAILED, Status.KILLED, Status.DISCARDED)


class QueuePlace(NamedTuple):
    """The service's data about a thread that it runs."""

    priority: int
    queued_at: int
    admitted_at: int | None = None
    crashes: int | None = None
    losses: int | None = None

    def dump(self) -> dict[str, int]:
        return {key: value for key, value in self._asdict().items() if value is not None}


class ThreadState(NamedTuple):
    """The facts about a thread that are known without reading its chain. Immutable: `_replace` makes a new state."""

    status: Status = Status.IDLE
    workflow: NodeId = NodeId("")
    """The workflow version it follows; empty, like `name`, in a ref that only uwf has written."""
    name: str = ""
    """The name of the workflow."""
    title: str = ""
    cwd: str | None = None
    role: str | None = None
    """The role whose turn it is."""
    steps: int | None = None
    folders: Mapping[str, Mapping[str, Any]] = {}
    """Its own folders by kind, as `threads/workfolder.py` plans them."""
    agent: str | None = None
    """The agent that plays every role."""
    agents: Mapping[str, Mapping[str, Any]] = {}
    """The agent of each role, as it was bound when the thread started."""
    parent: ThreadId | None = None
    """The thread that has the role this one plays."""
    member: int | None = None
    """Its number among the members of the parent's group."""
    sessions: Mapping[str, Mapping[str, str]] = {}
    """The earlier session in which a role begins, by role."""
    forked_from: NodeId | None = None
    forked_thread: ThreadId | None = None
    limits: Mapping[str, float] = {}
    service: QueuePlace | None = None
    reason: str = ""
    """Why it is suspended, failed, killed or discarded."""
    onward: str = ""
    """The command that continues a suspended thread."""
    asks: str = ""
    """The thread that plays the role, if this one is suspended because that one waits for a person."""
    lease: Mapping[str, Any] = {}
    """The process that runs it, as `store/holder.py` describes it."""
    ended_at: int | None = None
    """When the thread ended, if it was imported after that."""
    imported: int | None = None
    """The version of the ref that an import from uwf wrote."""
    other: Mapping[str, Any] = {}
    """Fields that another program or version wrote."""

    @property
    def has_ended(self) -> bool:
        return self.status in ENDED

    @property
    def is_over(self) -> bool:
        """Whether the thread has ended or waits for a person."""
        return self.status in ENDED or self.status == Status.SUSPENDED

    @property
    def waits_for_person(self) -> bool:
        """Whether a role, or a thread that plays it, has asked for a person, rather than failed."""
        return self.status == Status.SUSPENDED and (bool(self.asks) or not self.onward.startswith("resume "))

    def moved(self, status: Status, **fields: Any) -> "ThreadState":
        """The state after a change of status, without the lease and other fields that no longer apply."""
        return self._replace(status=status, lease={}, reason="", onward="", asks="")._replace(**fields)

    def dump(self) -> dict[str, Any]:
        """The state as it is stored: fields without a value are left out."""
        fields = {key: value for key, value in self._asdict().items() if value not in (None, "", {})}
        fields |= {"status": self.status.value} | fields.pop("other", {})
        return fields | {"service": self.service.dump()} if self.service else fields


_FIELDS = frozenset(ThreadState._fields) - {"other"}


def load_state(stored: Mapping[str, Any]) -> ThreadState:
    known = {key: value for key, value in stored.items() if key in _FIELDS}
    known["status"] = Status(stored.get("status", Status.IDLE))
    known["other"] = {key: value for key, value in stored.items() if key not in _FIELDS}
    if place := stored.get("service"):
        known["service"] = QueuePlace(**place)
    return ThreadState(**known)


class ThreadRef(NamedTuple):
    """A thread's ref as it was when it was read."""

    id: ThreadId
    head: NodeId
    state: ThreadState
    ref: Ref


def load(ref: Ref) -> ThreadRef:
    try:
        state = load_state(ref.state)
    except (TypeError, ValueError) as error:
        raise Damaged(f"the state of {ref.name} is damaged: {error}", hint="Restore the store.") from error
    return ThreadRef(ThreadId(ref.name.removeprefix("thread/")), NodeId(ref.target or ""), state, ref)


class Note(NamedTuple):
    """The record of an attempt while it is under way. A process that takes over the thread after a crash continues
    from it."""

    head: str = ""
    """The head that the step extends."""
    role: str = ""
    agent: str = ""
    """The agent that is being asked; empty if none is."""
    by: str = ""
    """The agent that owns the session."""
    run: str = ""
    """Marks the processes that the attempt starts."""
    runs: Sequence[str] = ()
    since: int | None = None
    """The number of the role's last step in the session; earlier steps are not shown again."""
    recalled: str = ""
    """The passages from the repository that the agent was given."""
    started_at: int | None = None
    session: str = ""
    session_total: Mapping[str, Any] = {}
    session_reason: str = ""
    raw: str = ""
    """The unparsed answer."""
    children: Sequence[str] = ()
    usage: Mapping[str, Any] = {}
    detail: Mapping[str, Any] = {}
    completed_at: int | None = None
    tree: Mapping[str, Any] = {}
    """The files that the role found and left, as `StepTree` stores them."""
    step: str = ""
    """The id of the step that an external agent put into the store."""
    unread: bool = False
    """Whether only the extract model can find the output in the answer."""

    def dump(self) -> dict[str, Any]:
        return {key: value for key, value in self._asdict().items() if value}


class NoteRef(NamedTuple):
    """The ref `attempt/<thread>`: the note, and the newest failed attempt that no step links to yet."""

    note: Note
    attempt: str | None
    ref: Ref


def attempt_name(thread: str) -> str:
    return f"attempt/{thread}"


def read_note(store: Store, thread: str) -> NoteRef | None:
    ref = store.ref(attempt_name(thread))
    if ref is None:
        return None
    known = {key: value for key, value in ref.state.items() if key in Note._fields}
    return NoteRef(Note(**known), ref.target, ref)


def ref_name(thread: str) -> str:
    return f"thread/{thread}"


def read_thread(store: Store, thread: str) -> ThreadRef | None:
    """Read a thread by its full id."""
    ref = store.ref(ref_name(thread))
    return None if ref is None else load(ref)


def group_name(thread: str) -> str:
    """The ref of the group that a thread plays now. Its target is the roster, and its version rises whenever one of
    the members ends or is suspended."""
    return f"group/{thread}"


def check_run(thread: str) -> str:
    """Marks the processes of the command that checks what a thread's group has merged."""
    return f"{thread}-check"


def read_members(store: Store, parent: str) -> Iterator[ThreadRef]:
    """The members of the group that a thread plays now, in the order of their numbers; only those that were started."""
    group = store.ref(group_name(parent))
    if group is None or group.target is None:
        return
    roster = store.get(group.target).payload
    prefix, last = ref_name(member_id(roster["at"], 1, f"{parent}/{group.target}")[:10]), None
    while page := store.refs(prefix, before=last, limit=500):
        yield from (ref for ref in map(load, page) if ref.state.parent == parent and ref.state.member)
        last = page[-1].name


def read_threads(store: Store, *, where: Mapping[str, Sequence[str]] | None = None) -> Iterator[ThreadRef]:
    return map(load, store.refs("thread/", where=where))


def move(draft: Draft, seen: ThreadRef, state: ThreadState, *, head: str | None = None) -> None:
    """Add a thread's new state, and its new head if given, to a draft. The commit raises Conflict if the thread has
    moved since it was `seen`. The group of a member that ends or is suspended learns of it in the same commit."""
    draft.move(seen.ref.name, seen.ref, head or seen.head, state.dump())
    if state.is_over and state.member and state.parent:
        draft.bump(group_name(state.parent))


def add(draft: Draft, thread: str, head: str, state: ThreadState) -> None:
    """Add a new thread to a draft."""
    draft.move(ref_name(thread), None, head, state.dump())
