"""The state of a thread as one typed value. Only this module reads the state from the thread's ref and writes it back.

A thread is the ref `thread/<id>`: its target is the head of the chain, and its state contains the facts needed for a
listing. This module is on the command line's read path.
"""

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from rolecall.errors import Damaged
from rolecall.store.backend import Ref
from rolecall.store.canonical import JsonObject
from rolecall.store.ids import NodeId, ThreadId, member_id
from rolecall.store.lazy import Module
from rolecall.store.store import Draft, Store

if TYPE_CHECKING:
    from rolecall.settings import notify
    from rolecall.threads.view_types import StoredFolder
else:
    notify = Module("rolecall.settings.notify")  # needed only for threads that end or wait

GROUP = "group"
"""The agent of a step that joins the results of a group's members."""
_LONGEST_REASON = 2_000
"""The maximum number of characters of a reason that a notification repeats."""
LONG_WAIT_MS = 1_800_000
"""The shortest wait for the end of a usage limit, in milliseconds, about which a person is notified."""


class Status(StrEnum):
    QUEUED = "queued"
    IDLE = "idle"
    RUNNING = "running"
    WAITING = "waiting"
    """The thread waits for the members of its group, without a process."""
    SUSPENDED = "suspended"
    COMPLETED = "completed"
    FAILED = "failed"
    KILLED = "killed"
    DISCARDED = "discarded"
    CRASHED = "crashed"
    """Shown but never stored: the stored status is running, but the process that ran the thread is gone."""
    DAMAGED = "damaged"
    """Shown but never stored: the thread's ref or head cannot be read."""


STATUSES = tuple(status for status in Status if status not in (Status.CRASHED, Status.DAMAGED))
ENDED = (Status.COMPLETED, Status.FAILED, Status.KILLED, Status.DISCARDED)


class QueuePlace(NamedTuple):
    """The service's data about a thread that the service runs."""

    priority: int
    queued_at: int
    admitted_at: int | None = None
    crashes: int | None = None
    losses: int | None = None

    def dump(self) -> dict[str, int]:
        return {key: value for key, value in self._asdict().items() if value is not None}


class Onward(NamedTuple):
    """What continues a suspended thread that does not wait for an answer: the code of a `Hint` and its argument."""

    code: str
    limit: str = ""
    """The limit to raise, in the form KEY=AMOUNT."""

    def dump(self) -> dict[str, str]:
        return {"code": self.code} | ({"limit": self.limit} if self.limit else {})


class FirstFiles(NamedTuple):
    """The snapshot with which the folder of a fork begins."""

    tree: str
    repository: str
    place: str
    """The folder of Rolecall's repositories, one of which contains the snapshot."""


class WorkFolder(NamedTuple):
    """A thread's own folder, as planned by `threads/workfolder.py`."""

    path: str
    cwd: str
    """The folder within this folder where roles work."""
    source: str
    """The folder from which this folder was made."""
    branch: str = ""
    """The branch of a worktree, or empty for a copy or a plain folder."""
    base: str = ""
    """The first commit of a worktree."""
    origin: str = ""
    """The corresponding folder of the thread that was forked, stored as `from`."""
    omitted: int = 0
    """The number of uncommitted changes in `source` that a worktree does not include."""
    files: FirstFiles | None = None
    is_removed: bool = False
    """Whether a person removed this folder, stored as `removed`."""
    set_aside: Mapping[str, Any] = {}
    """Why the work in this folder could not be merged: `branch`, `reason` and `conflict`."""

    def dump(self) -> "StoredFolder":
        stored: StoredFolder = {"path": self.path, "cwd": self.cwd, "source": self.source}
        if self.branch:
            stored["branch"] = self.branch
        if self.base:
            stored["base"] = self.base
        if self.origin:
            stored["from"] = self.origin
        if self.omitted:
            stored["omitted"] = self.omitted
        if self.files:
            tree, repository, place = self.files
            stored["files"] = {"tree": tree, "repository": repository, "place": place}
        if self.is_removed:
            stored["removed"] = True
        if self.set_aside:
            stored["set_aside"] = self.set_aside
        return stored


_STORED_AS = {"origin": "from", "is_removed": "removed"}


def load_folder(stored: JsonObject) -> WorkFolder:
    known = {key: stored[name] for key in WorkFolder._fields if (name := _STORED_AS.get(key, key)) in stored}
    if files := stored.get("files"):
        known["files"] = FirstFiles(**files)
    return WorkFolder(**known)


RESUME = Onward("resume_thread")


def raise_limit(limit: str) -> Onward:
    return Onward("raise_limit", limit)


class ThreadState(NamedTuple):
    """The facts about a thread that are known without reading its chain. A state is immutable; `_replace` makes a new
    state."""

    status: Status = Status.IDLE
    workflow: NodeId = NodeId("")
    """The version of the workflow that the thread follows. Empty, like `name`, in a ref that only uwf has written."""
    name: str = ""
    """The name of the workflow."""
    title: str = ""
    cwd: str | None = None
    role: str | None = None
    """The role whose turn it is."""
    steps: int | None = None
    folders: Mapping[str, WorkFolder] = {}
    """The thread's own folders, by kind."""
    agent: str | None = None
    """The agent that plays every role."""
    agents: Mapping[str, JsonObject] = {}
    """The agent of each role, as it was bound when the thread started."""
    parent: ThreadId | None = None
    """The thread with the role that this thread plays, or of whose group it is a member."""
    member: int | None = None
    """The thread's number among the members of the parent's group."""
    sessions: Mapping[str, Mapping[str, str]] = {}
    """The earlier session in which each of these roles begins."""
    forked_from: NodeId | None = None
    forked_thread: ThreadId | None = None
    limits: Mapping[str, float] = {}
    reuse: bool | None = None
    """Whether finished steps with the same key are reused. If True, they are, unless the workflow forbids it; if False,
    never; if None, the workflow decides."""
    eval: str = ""
    """The evaluation run that the thread belongs to."""
    repeat: int | None = None
    """The number of times that the evaluation asked the same question before, in other threads; None if never."""
    service: QueuePlace | None = None
    reason: str = ""
    """Why the thread is suspended, failed, killed or discarded, or what it waits for."""
    onward: Onward | None = None
    """What continues a suspended thread, or None if a person's answer does."""
    asks: str = ""
    """The thread that plays the role, if this thread is suspended because that thread waits for a person."""
    until: int | None = None
    """The time at which the thread continues, if its agent has reached a usage limit of its provider. Nobody asks the
    agent before that time."""
    lease: Mapping[str, Any] = {}
    """The process that runs the thread, as described by `store/holder.py`."""
    ended_at: int | None = None
    """When the thread ended, if it was imported after its end."""
    imported: int | None = None
    """The version of the thread's ref that an import from uwf wrote."""
    other: Mapping[str, Any] = {}
    """Fields that another program or version wrote."""

    @property
    def has_ended(self) -> bool:
        return self.status in ENDED

    @property
    def is_over(self) -> bool:
        """Whether the thread has ended or is suspended."""
        return self.status in ENDED or self.status == Status.SUSPENDED

    @property
    def waits_for_person(self) -> bool:
        """Whether a role, or a thread that plays the role, has asked for a person, rather than failed."""
        return self.status == Status.SUSPENDED and (bool(self.asks) or self.onward is None)

    @property
    def news(self) -> str:
        """The event about which people are notified when a thread reaches this state, or empty if there is none. A
        thread that plays a role of another thread, or is a member of a group, sends no notification of its end, and its
        parent does not repeat its questions. Killed threads and threads of evaluations send no notifications."""
        if self.eval:
            return ""
        if self.until is not None:
            return "limited" if self.member or not self.parent else ""
        if self.status == Status.SUSPENDED:
            return "" if self.asks or (self.parent and not self.waits_for_person) else "waits"
        is_news = self.status in (Status.COMPLETED, Status.FAILED, Status.DISCARDED) and not self.parent
        return self.status.value if is_news else ""

    def move_to(self, status: Status, **fields: Any) -> "ThreadState":
        """Return the state after a change of status, without the lease and other fields that no longer apply."""
        return self._replace(status=status, lease={}, reason="", onward=None, asks="", until=None)._replace(
            **fields
        )

    def dump(self) -> dict[str, Any]:
        """Return the stored form of the state, without fields that have no value."""
        fields = {key: value for key, value in self._asdict().items() if value not in (None, "", {})}
        fields |= {"status": self.status.value} | fields.pop("other", {})
        nested = {"service": self.service, "onward": self.onward}
        fields |= {key: value.dump() for key, value in nested.items() if value}
        return fields | ({"folders": self.dump_folders()} if self.folders else {})

    def dump_folders(self) -> "dict[str, StoredFolder]":
        return {kind: folder.dump() for kind, folder in self.folders.items()}


_FIELDS = frozenset(ThreadState._fields) - {"other"}


def load_state(stored: JsonObject) -> ThreadState:
    known = {key: value for key, value in stored.items() if key in _FIELDS}
    known["status"] = Status(stored.get("status", Status.IDLE))
    known["other"] = {key: value for key, value in stored.items() if key not in _FIELDS}
    if place := stored.get("service"):
        known["service"] = QueuePlace(**place)
    if folders := stored.get("folders"):
        known["folders"] = {kind: load_folder(folder) for kind, folder in folders.items()}
    if "onward" in stored:
        onward = stored["onward"]
        known["onward"] = _read_command(onward) if isinstance(onward, str) else Onward(**onward)
    return ThreadState(**known)


def _read_command(command: str) -> Onward | None:
    """Read the command that version 0.1 stored, such as `resume ID --limit KEY=AMOUNT --run`."""
    match command.split():
        case ["resume", _, "--limit", limit, *_]:
            return raise_limit(limit)
        case ["resume", *_]:
            return RESUME
    return None


class ThreadRef(NamedTuple):
    """A thread's ref at the time it was read."""

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


class AttemptNote(NamedTuple):
    """The record of an attempt that is under way. A process that takes over the thread after a crash continues from
    this record."""

    head: str = ""
    """The head that the step extends."""
    role: str = ""
    agent: str = ""
    """The agent that is being asked, or empty if no agent is."""
    by: str = ""
    """The agent that owns the session."""
    run: str = ""
    """The run id that marks the processes started by the attempt."""
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
    parts: Mapping[str, Any] = {}
    """The parts of the step's key, as `Parts` stores them."""
    step: str = ""
    """The id of the step that an external agent put into the store."""
    reused: Mapping[str, str] = {}
    """The finished step that is being taken over, and its thread. While this field is set, the files in the folder may
    be partly those that the finished step found and partly those that it left."""
    sandbox: Mapping[str, Any] = {}
    """The sandbox of the agent's processes, as `sandboxing.describe_use` stores it."""
    unread: bool = False
    """Whether only the extract model can find the output in the answer."""

    def dump(self) -> dict[str, Any]:
        return {key: value for key, value in self._asdict().items() if value}


class NoteRef(NamedTuple):
    """The ref `attempt/<thread>`: the note, and the newest failed attempt that no step links to yet."""

    note: AttemptNote
    attempt: str | None
    ref: Ref


def attempt_name(thread: str) -> str:
    return f"attempt/{thread}"


def read_note(store: Store, thread: str) -> NoteRef | None:
    ref = store.ref(attempt_name(thread))
    if ref is None:
        return None
    known = {key: value for key, value in ref.state.items() if key in AttemptNote._fields}
    return NoteRef(AttemptNote(**known), ref.target, ref)


def ref_name(thread: str) -> str:
    return f"thread/{thread}"


def read_thread(store: Store, thread: str) -> ThreadRef | None:
    """Read a thread by its full id."""
    ref = store.ref(ref_name(thread))
    return None if ref is None else load(ref)


def group_name(thread: str) -> str:
    """Return the name of the ref of the group that a thread is playing now. The ref's target is the roster, and its
    version rises whenever a member ends or is suspended."""
    return f"group/{thread}"


def files_name(thread: str, kind: str) -> str:
    """Return the name of the ref of the newest files in a thread's own folder of this kind, for other machines."""
    return f"files/{thread}/{kind}"


def check_run(thread: str) -> str:
    """Return the run id that marks the processes of the command that checks a group's merges."""
    return f"{thread}-check"


def read_members(store: Store, parent: str) -> Iterator[ThreadRef]:
    """Yield the members of the group that a thread is playing now, in the order of their numbers. Members that have not
    been started are left out."""
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
    """Add a thread's new state and, if given, its new head to a draft. The commit raises `Conflict` if the thread has
    moved since `seen` was read. If a member ends or is suspended, its group learns of it in the same commit, and people
    are notified after the commit."""
    draft.move(seen.ref.name, seen.ref, head or seen.head, state.dump())
    if not draft.store.is_temporary and _is_news(draft.store, seen, state, head or seen.head):
        draft.then(partial(_notify, seen.ref.name))
    if state.is_over and state.member and state.parent:
        draft.bump(group_name(state.parent))


def _is_news(store: Store, seen: ThreadRef, state: ThreadState, head: str) -> bool:
    """Return whether a thread ends, starts to wait for a person, or starts a long wait for a usage limit to end.
    Members of a group reach the same limit, so only the first member to wait counts."""
    if state.until is not None:
        if state.until == seen.state.until or state.until - store.now() < LONG_WAIT_MS:
            return False
        siblings = read_members(store, state.parent) if state.member and state.parent else ()
        return not any(one.state.until for one in siblings if one.id != seen.id)
    if state.status == seen.state.status:  # only folders changed, or the next question is asked
        return state.status == Status.SUSPENDED and head != seen.head
    return state.is_over


def _notify(name: str, moved: Sequence[Ref]) -> None:
    refs = (load(ref) for ref in moved if ref.name == name)
    notify.tell(
        {
            "event": ref.state.news,
            "thread": ref.id,
            "title": ref.state.title,
            "workflow": ref.state.name,
            "status": ref.state.status.value,
            "role": ref.state.role,
            "reason": ref.state.reason[:_LONGEST_REASON],
            **({"until": ref.state.until} if ref.state.until is not None else {}),
            "onward": ref.state.onward.dump() if ref.state.onward else None,
            "at": ref.ref.updated,
        }
        for ref in refs
        if ref.state.news
    )


def add(draft: Draft, thread: str, head: str, state: ThreadState) -> None:
    """Add a new thread to a draft."""
    draft.move(ref_name(thread), None, head, state.dump())
