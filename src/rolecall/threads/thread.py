"""The parts of a thread: start, steps and attempts, and a lazy view of their chain.

Starts and steps are nodes of the types that uwf writes, so in a shared folder each program can read the other's
threads. Fields of a step that uwf does not know, such as the number, totals, session and attempts, are in the step's
`detail`.

A thread is one ref, `thread/<id>`. The ref points to the newest node of the chain, and its state contains the facts
needed for a listing: the status, the next role and the process that runs the thread. Everything else is in the chain.
Each step names the step before it, so a fork is another ref to the same nodes, and nothing is ever rewritten.

Two kinds of steps are not taken by roles: `$PERSON` is a person's message to a suspended thread, and `$FORK` marks the
place where a fork continues with another workflow or prompt. This module is on the command line's read path.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, reduce
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from rolecall.errors import Damaged, Hint, NotFound, RolecallError, UsageError
from rolecall.files.snapshot import StepTree, load_tree
from rolecall.store import canonical
from rolecall.store.backend import Ref
from rolecall.store.canonical import JsonObject, Schema
from rolecall.store.ids import ThreadId, is_thread_id, member_id, node_id, thread_id
from rolecall.store.lazy import Module
from rolecall.store.store import META, Draft, Node, Store, copy_json
from rolecall.threads.key import Parts, load_parts
from rolecall.threads.state import ENDED as ENDED
from rolecall.threads.state import STATUSES as STATUSES
from rolecall.threads.state import QueuePlace, Status, ThreadRef, ThreadState, load, read_thread
from rolecall.threads.state import attempt_name as attempt_name
from rolecall.threads.state import ref_name as ref_name

if TYPE_CHECKING:
    from rolecall.threads import prompt
    from rolecall.threads.prompt import ShownStep
    from rolecall.threads.view_types import RecordedCall, RecordedTurn, ReusedStep
else:
    prompt = Module("rolecall.threads.prompt")

PERSON = "$PERSON"
FORK = "$FORK"

SHORTEST_PART = 3
"""The minimum length of a part of an id that can name a thread."""
_SHORT = 6

# -- node types --

_TEXT = {"type": "string"}
_REF = {"type": "string", "format": "ocas_ref"}
_REF_OR_NULL = {"anyOf": [_REF, {"type": "null"}]}
_INTEGER = {"type": "integer"}
_OBJECT = {"type": "object"}
_LIMITS = {"type": "object", "additionalProperties": {"type": "number"}}


def make_type(title: str, required: Schema, optional: Schema | None = None) -> Schema:
    """Return the type of a node with these fields and no others."""
    return {
        "title": title,
        "type": "object",
        "properties": required | (optional or {}),
        "required": sorted(required),
        "additionalProperties": False,
    }


def _extend(schema: Schema, added: tuple[str, Schema]) -> Schema:
    """Return the next version of a type, which has one more field."""
    return {**schema, "properties": {**schema["properties"], added[0]: added[1]}}


def find_type(versions: Sequence[Schema], fields: JsonObject) -> Schema:
    """Return the oldest version of a type that has all the fields, because a node's id also depends on its type."""
    fitting = (one for one in versions if fields.keys() <= one["properties"].keys())
    return next(fitting, versions[-1])


_START = {"workflow": _REF, "prompt": _TEXT, "cwd": _TEXT}
START_SCHEMA: Schema = {**make_type("StartNode", _START), "required": ["workflow", "prompt", "cwd"]}
STEP_SCHEMA: Schema = {
    "title": "StepNode",
    "type": "object",
    "required": [
        *("start", "prev", "role", "output", "detail", "agent"),
        *("startedAtMs", "completedAtMs", "cwd"),
    ],
    "properties": {
        "start": _REF,
        "prev": _REF_OR_NULL,
        "role": _TEXT,
        "output": _REF,
        "detail": _REF,
        "agent": _TEXT,
        "edgePrompt": _TEXT,
        "startedAtMs": _INTEGER,
        "completedAtMs": _INTEGER,
        "cwd": _TEXT,
        "assembledPrompt": _REF_OR_NULL,
    },
    "additionalProperties": False,
}
OLDER_START_SCHEMA = make_type("rolecall.start", _START, {"forked_from": _REF, "limits": _LIMITS})
"""The type of older starts. Older steps also have a type of their own. Both types can still be read."""
ANSWER_SCHEMA = make_type("rolecall.answer", {"role": {"const": "assistant"}, "content": _TEXT})
RECORD_SCHEMA = make_type(
    "rolecall.record",
    {"number": _INTEGER, "totals": _OBJECT, "turns": {"type": "array", "items": _REF}},
    {
        "body": _REF,
        "body_at": _INTEGER,
        "work": _REF,
        "given": _REF,
        "prompt": _REF,
        "session": _TEXT,
        "session_reason": _TEXT,
        "session_total": _OBJECT,
        "usage": _OBJECT,
        "attempt": _REF,
        "children": {"type": "array", "items": _TEXT},
        "limits": _LIMITS,
    },
)
"""The `detail` of a step written by Rolecall. `turns` contains the answer, where uwf looks for it; `work` records the
agent's actions; `given` is the original step of an agent that knows only uwf's fields."""
_BY = {"type": "object", "additionalProperties": _TEXT}
_SANDBOX = make_type("rolecall.sandbox", {"rules": _TEXT}, {"enforced": {"type": "array", "items": _TEXT}})
_ADDED_TO_RECORDS: dict[str, Schema] = {
    "group": _REF,  # the roster, for a step that joins a group
    "tree": _OBJECT,  # the files that the role found and left, as `files/snapshot.py` stores them
    "parts": _OBJECT,  # the parts of the step's key, as `key.py` stores them
    "reused": _OBJECT,  # the reused step, which is not linked because it can be deleted
    "by": _BY,  # the person who took the step, and the door that the person used
    "sandbox": _SANDBOX,  # the rules of the role's sandbox, and how they were enforced
}
RECORD_SCHEMAS = tuple(accumulate(_ADDED_TO_RECORDS.items(), _extend, initial=RECORD_SCHEMA))
"""All types of a step's `detail`, oldest first."""
TREE_SCHEMA = make_type("rolecall.tree", {"tree": _OBJECT})
"""The type of recorded files that are named by something other than a step, such as a task of an evaluation."""
ATTEMPT_SCHEMA = make_type(
    "rolecall.attempt",
    {"start": _REF, "head": _REF, "role": _TEXT, "agent": _TEXT, "started_at": _INTEGER, "cwd": _TEXT},
    {
        "state": {"type": "string", "enum": ["failed"]},
        "error": _TEXT,
        "ending": _TEXT,
        "raw": _REF,
        "detail": _REF,
        "prompt": _REF,
        "edge_prompt": _TEXT,
        "session": _TEXT,
        "session_reason": _TEXT,
        "session_total": _OBJECT,
        "children": {"type": "array", "items": _TEXT},
        "usage": _OBJECT,
        "completed_at": _INTEGER,
        "previous": _REF,
        "number": _INTEGER,
    },
)
ATTEMPT_SCHEMAS = (
    ATTEMPT_SCHEMA,
    _extend(ATTEMPT_SCHEMA, ("tree", _OBJECT)),
    _extend(_extend(ATTEMPT_SCHEMA, ("tree", _OBJECT)), ("sandbox", _SANDBOX)),
)
DETAIL_SCHEMA = make_type(
    "rolecall.detail",
    {"turns": {"type": "array", "items": {"type": "object"}}},
    {
        "files": {"type": "array", "items": _TEXT},
        "ending": _TEXT,
        "reason": _TEXT,
        "notes": {"type": "array", "items": _TEXT},
    },
)
# The files of a thread's own folder, for other machines. They are stored as packs of git objects that earlier packs do
# not contain; each pack is cut into texts in base64.
FILES_SCHEMA = make_type(
    "rolecall.files",
    {"tree": _TEXT, "objects": {"type": "array", "items": _REF}, "commits": {"type": "array", "items": _REF}},
    {"head": _TEXT, "previous": _REF},
)
# A prompt is stored in parts, with earlier steps as ids, so that only new text takes space.
PROMPT_SCHEMA = make_type(
    "rolecall.prompt",
    {
        "parts": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"literal": _TEXT, "text": _REF, "step": _REF, "form": _INTEGER},
                "additionalProperties": False,
            },
        }
    },
)
# The conversation of an agent without its own memory, one node per turn.
SESSION_SCHEMA = make_type("rolecall.session", {"prev": _REF_OR_NULL, "text": _TEXT})
PERSON_SCHEMA = make_type(
    "rolecall.person", {"reason": _TEXT, "answer": _TEXT, "role": _TEXT}, {"prompt": _TEXT, "location": _TEXT}
)
BY_PERSON_SCHEMA = _extend(PERSON_SCHEMA, ("by", _BY))
"""A person's message, with the person who wrote it and the door that the person used."""
# A group's roster is stored before its first member starts, so the list cannot change. Everything that all members
# share is in the roster and not in their starts. The list is a node of its own, because a member reads only its own
# item.
ITEMS_SCHEMA: Schema = {"title": "rolecall.items", "type": "array"}
ROSTER_SCHEMA = make_type(
    "rolecall.group",
    {"role": _TEXT, "above": _REF, "count": _INTEGER, "at": _INTEGER},
    {"items": _REF, "prompt": _TEXT, "location": _TEXT},
)
MEMBER_SCHEMA = make_type(
    "rolecall.member",
    {
        "workflow": _REF,
        "prompt": _TEXT,
        "cwd": _TEXT,
        "group": _REF,
        "member": {
            "type": "object",
            "properties": {"number": _INTEGER, "role": _TEXT, "item": {}},
            "required": ["number", "role"],
            "additionalProperties": False,
        },
    },
)
"""The start of a member. Its `prompt` is empty unless a fork changed the prompt; the task is that of the parent
thread."""
FORK_SCHEMA = make_type("rolecall.fork", {"from": _TEXT})
SUSPENSION_SCHEMA = make_type("rolecall.suspension", {"$status": {"const": "$SUSPEND"}, "reason": _TEXT})
ERROR_SCHEMA = make_type("rolecall.error", {"$status": {"const": "$ERROR"}, "reason": _TEXT})
"""The output of a step whose answer could not be read. A moderator decides what happens next."""


# -- names and refs --


def session_name(session: str) -> str:
    """Return the name of the ref of a session, which is stored for agents without a memory of their own."""
    return f"session/{session}"


def queue_name(workflow: str, thread: str, *, priority: int, at: int) -> str:
    """Return the name of the ref of a thread in the service's queue. These names sort in the order of admission."""
    return f"queue/{workflow}/{9 - priority}{at:013}{thread}"


def slot_name(workflow: str, thread: str) -> str:
    """Return the name of the ref of an admitted thread. This ref exists until the thread ends or waits for a person."""
    return f"slot/{workflow}/{thread}"


def queue_name_of(ident: str, state: ThreadState) -> str:
    """Return the name of the ref of a thread's place in the queue."""
    place = state.service or QueuePlace(0, 0)
    return queue_name(state.name, ident, priority=place.priority, at=place.queued_at)


def queue_entry(state: ThreadState, entry: JsonObject) -> dict[str, Any]:
    """Return what the queue stores about a thread besides its place: `entry`, and facts from the thread's state."""
    known = {"member": bool(state.member), "until": state.until}
    return {**entry, **{key: value for key, value in known.items() if value}}


def in_service(store: Store, ref: ThreadRef) -> list[Ref]:
    """Return the refs of a thread's queue place and slot in the service."""
    if ref.state.service is None:
        return []
    names = (queue_name_of(ref.id, ref.state), slot_name(ref.state.name, ref.id))
    return [found for name in names if (found := store.ref(name)) is not None]


_latest = (0, 0)


def new_thread_id(now: int, randomness: Callable[[int], bytes] = os.urandom) -> str:
    """Create a unique thread id. Ids that a process creates within the same millisecond sort in the order of creation,
    so threads that are queued together are admitted in that order."""
    global _latest
    number = int.from_bytes(randomness(10), "big")
    if _latest[0] == now:
        number = max(number, _latest[1] + 1)
    _latest = (now, number)
    return thread_id(now, number.to_bytes(10, "big"))


def find(store: Store, text: str) -> ThreadRef:
    """Find a thread by its id, by a unique ending of its id, or by any unique part of its id."""
    wanted = text.upper()
    if is_thread_id(wanted) and (ref := read_thread(store, wanted)):
        return with_facts(store, ref)
    if len(wanted) < SHORTEST_PART:
        raise UsageError(
            f"{text!r} is too short for a thread", hint=f"Give at least {SHORTEST_PART} characters of its id."
        )
    names = [] if is_thread_id(wanted) else store.backend.names("thread/")
    found = [name for name in names if name.endswith(wanted)]
    found = found if len(found) == 1 else [name for name in names if wanted in name[7:]]
    if len(found) > 1:
        shown = ", ".join(name[7:] for name in found[:5])
        raise UsageError(f"{text!r} matches several threads: {shown}", hint="Give more characters.")
    ref = read_thread(store, found[0][7:]) if found else None
    if ref is None:
        raise NotFound(f"there is no thread {text!r}", hint=Hint("List them all", "list_threads"))
    return with_facts(store, ref)


def short_id_length(store: Store) -> int:
    """Return how many final characters of an id are enough to distinguish all threads in the store, at least six."""
    names = store.backend.names("thread/")
    lengths = range(_SHORT, 26)
    return next((length for length in lengths if len({name[-length:] for name in names}) == len(names)), 26)


def with_facts(store: Store, ref: ThreadRef) -> ThreadRef:
    """Return the ref with the facts that uwf does not store, taken from the chain."""
    if ref.state.name:
        return ref
    try:
        facts = facts_of(store, Chain(store, ref.head))
        return load(ref.ref._replace(state={**facts, **ref.ref.state}))
    except RolecallError:
        return ref  # reading the thread's nodes reports the problem


def facts_of(store: Store, chain: "Chain") -> dict[str, Any]:
    start = chain.start
    facts = {
        "workflow": start.workflow,
        "name": store.get(start.workflow).payload.get("name"),
        "title": title_of(start.prompt),
        "cwd": start.cwd,
        "steps": sum(1 for _ in chain),
    }
    return {key: value for key, value in facts.items() if value not in (None, "")}


def title_of(prompt: str) -> str:
    """Return the first line of a task, which can be a Markdown heading, as a title."""
    line = next((line.strip() for line in prompt.splitlines() if line.strip()), "")
    mark, _, rest = line.partition(" ")
    line = rest.strip() or line if set(mark) == {"#"} else line
    return line if len(line) <= 100 else line[:99] + "…"


def continuation(ref: ThreadRef, *, is_held: bool = False) -> Hint | None:
    """Return a hint to continue a thread, or to watch it while another process runs it. Return None if it has ended."""
    if ref.state.has_ended:
        return None
    is_served = ref.state.status == Status.WAITING and ref.state.service is not None
    if is_held or is_served or ref.state.status == Status.QUEUED:
        return Hint("Follow it", "watch_thread", thread=ref.id)
    if ref.state.status != Status.SUSPENDED:
        return Hint("Run it", "run_thread", thread=ref.id)
    onward = ref.state.onward
    if onward is None:
        return Hint("Answer it", "answer_thread", thread=ref.id)
    if onward.limit:
        return Hint("Raise the limit", onward.code, thread=ref.id, limit=onward.limit)
    return Hint("Resume it", onward.code, thread=ref.id)


# -- the chain --


class Roster(NamedTuple):
    """The data that the members of a group share."""

    id: str
    role: str
    """The role that the group plays."""
    size: int
    above: str
    """The head of the parent's chain at the time the group began."""
    at: int
    prompt: str = ""
    location: str | None = None
    items: str | None = None
    """The node of the list of items, if the group has a list."""

    def member(self, parent: str, number: int) -> ThreadId:
        """Return the id of the thread of a member."""
        return ThreadId(member_id(self.at, number, f"{parent}/{self.id}"))


class Member(NamedTuple):
    """The data that makes a thread a member of a group."""

    group: Roster
    number: int
    role: str
    """The role that the member plays: the role of the group, or a role of a team."""
    item: Any


class Start(NamedTuple):
    id: str
    workflow: str
    prompt: str
    cwd: str
    limits: Mapping[str, float]
    member: Member | None = None


def read_roster(store: Store, node: str) -> Roster:
    fields = dict(store.follow(node).payload)
    return Roster(node, size=fields.pop("count"), **fields)


class Chain:
    """The steps of a thread, newest first, read from the store on demand."""

    def __init__(self, store: Store, head: str) -> None:
        self._store = store
        self.head = head
        node = store.get(head)
        is_start = isinstance(node.payload, dict) and {"workflow", "prompt"} <= node.payload.keys()
        self._head: Node | None = None if is_start and "role" not in node.payload else node
        self._start_id: str = head if self._head is None else Step(store, node).start
        self._start = self._read_start(node) if self._head is None else None

    @property
    def start(self) -> Start:
        if self._start is None:
            self._start = self._read_start(self._store.get(self._start_id))
        return self._start

    def _read_start(self, node: Node) -> Start:
        payload, member = node.payload, None
        prompt, limits = payload["prompt"], payload.get("limits", {})
        if "member" in payload:
            roster, own = read_roster(self._store, payload["group"]), payload["member"]
            member = Member(roster, own["number"], own["role"], own.get("item"))
            prompt = prompt or Chain(self._store, roster.above).start.prompt
        return Start(node.id, payload["workflow"], prompt, payload.get("cwd", ""), limits, member)

    @property
    def last(self) -> "Step | None":
        """The newest step, or None if there is only the start."""
        return Step(self._store, self._head) if self._head else None

    @property
    def number(self) -> int:
        """The number of the chain's newest step. The steps of a member continue the numbers of the steps above it."""
        if self.last is not None:
            return self.last.number
        return Chain(self._store, self.start.member.group.above).number if self.start.member else 0

    def with_above(self) -> "Iterator[Step]":
        """Yield the chain's steps and, for a member, the steps of the parent before the group, newest first."""
        yield from self
        if self.start.member is not None:
            yield from Chain(self._store, self.start.member.group.above)

    def __iter__(self) -> "Iterator[Step]":
        node = self._head
        while node is not None:
            yield Step(self._store, node)
            previous = node.payload["prev"]
            node = self._store.follow(previous) if previous else None


class Reused(NamedTuple):
    """The finished step that a step was taken over from."""

    step: str
    """The step whose agent was asked, even if the step was taken over from a step that was itself reused."""
    thread: str
    """The thread in which the agent was asked."""
    saved: Mapping[str, Any] = {}
    """The usage of the step whose agent was asked."""

    def dump(self) -> "ReusedStep":
        return {"step": self.step, "thread": self.thread, "saved": self.saved}


class Step:
    """One step of a chain. The nodes that the step refers to are read on demand."""

    def __init__(self, store: Store, node: Node) -> None:
        if not isinstance(node.payload, dict) or "role" not in node.payload or "prev" not in node.payload:
            raise UsageError(
                "the node is not a step", hint=Hint("List a thread's steps", "list_steps", thread="THREAD")
            )
        self.store = store
        self.id = node.id
        self._node = node
        self.stored: dict[str, Any] = node.payload
        self._payload: dict[str, Any] | None = None

    def __repr__(self) -> str:
        return f"<Step {self.id} {self.role}>"

    @property
    def payload(self) -> dict[str, Any]:
        """All fields of the step under Rolecall's names, including those in its detail."""
        if self._payload is None:
            # The output and the previous step are usually read next.
            self.store.fetch(self.stored.get(key) for key in ("detail", "output", "prev"))
            self._payload = _fields_of(self.store, self._node)
        return self._payload

    @property
    def number(self) -> int:
        """The position of the step in the chain. The predecessor's steps store no number, so they are counted."""
        return int(self.payload["number"]) or sum(1 for _ in Chain(self.store, self.id))

    @property
    def start(self) -> str:
        return str(self.stored["start"])

    @property
    def role(self) -> str:
        return str(self.stored["role"])

    @property
    def agent(self) -> str:
        return str(self.stored["agent"])

    @property
    def output(self) -> Any:
        return copy_json(self.store.follow(self.stored["output"]).payload)

    @property
    def past(self) -> "ShownStep":
        """The step as the prompts of later steps show it."""
        return prompt.ShownStep(self.number, self.role, self.output, self.body, self.agent)

    @property
    def is_ours(self) -> bool:
        """Whether the step was written by Rolecall or by an agent that uses Rolecall's library."""
        return bool(self.payload["number"])

    @property
    def detail_id(self) -> str | None:
        """The id of the step's detail node. It is missing only in some steps written by older versions."""
        return self.stored.get("detail")

    @property
    def raw(self) -> str:
        """The agent's unparsed answer."""
        return self._text("raw")

    @property
    def body(self) -> str:
        """The answer without its frontmatter."""
        if "body" in self.payload:
            return self._text("body")
        if "raw" in self.payload or "body_at" in self.payload:
            return self.raw[self.payload.get("body_at", 0) :]
        # The predecessor stored only the conversation, whose last message is the answer.
        answers = [turn["text"] for turn in self.turns if turn["role"] == "assistant" and turn["text"]]
        return str(answers[-1]) if answers else ""

    @property
    def turns(self) -> "list[RecordedTurn]":
        """The conversation with the agent, with the role, text and tool calls of each turn."""
        return turns_of(self.store, self.payload.get("detail"))

    @property
    def detail(self) -> JsonObject:
        """Details of the agent's work, such as files, ending and remarks."""
        node = self.payload.get("detail")
        kept = self.store.get(node).payload if node else None
        return kept if isinstance(kept, dict) else {}

    @property
    def tree(self) -> StepTree | None:
        """The files that the step's role found and left, if they were recorded."""
        return load_tree(self.payload.get("tree"))

    @property
    def parts(self) -> Parts | None:
        """The parts of the step's key, if they were recorded."""
        stored, tree = self.payload.get("parts"), self.payload.get("tree") or {}
        return load_parts(stored, tree.get("found", "")) if stored else None

    @property
    def reused(self) -> Reused | None:
        """The step that this step was taken over from, if nobody was asked."""
        found = self.payload.get("reused")
        return Reused(**found) if found else None

    @property
    def saved(self) -> dict[str, float]:
        """The amounts that reuse saved in this step or in the threads that played its role, in the units that limits
        use."""
        total, before = self.payload["totals"].get("saved", {}), self.payload["prev"]
        if total and before:
            known = Step(self.store, self.store.follow(before)).payload["totals"].get("saved", {})
            total = {key: round(value - known.get(key, 0), 6) for key, value in total.items()}
        return {key: value for key, value in total.items() if value}

    @property
    def origin(self) -> "Step | None":
        """The step that this step was taken over from, if that step is still in the store."""
        reused = self.reused
        is_there = reused is not None and self.store.has(reused.step)
        return Step(self.store, self.store.get(reused.step)) if reused and is_there else None

    def attempts(self) -> "Iterator[JsonObject]":
        """Return the records of the failed attempts before the step, newest first."""
        return (attempt.payload for attempt in read_attempts(self.store, self.payload.get("attempt")))

    @property
    def prompt(self) -> str:
        node = self.payload.get("prompt")
        return prompt_text(self.store, node) if node else ""

    def _text(self, key: str) -> str:
        node = self.payload.get(key)
        text = self.store.follow(node).payload if node else ""
        if isinstance(text, dict):  # a turn whose content is the answer
            text = text.get("content")
        if not isinstance(text, str):
            raise Damaged(f"step {self.id} names {node} as its {key}, which is not a text", node=self.id)
        return text


def read_attempts(store: Store, newest: str | None) -> Iterator[Node]:
    """Yield a failed attempt and the attempts before it at the same step, newest first."""
    while newest is not None:
        attempt = store.get(newest)
        yield attempt
        newest = attempt.payload.get("previous")


def turns_of(store: Store, detail: str | None) -> "list[RecordedTurn]":
    """Return the turns of a detail node. The predecessor stores each turn as a node with other field names."""
    kept = store.get(detail).payload if detail else None
    if isinstance(kept, str):  # the whole conversation as one text
        return [{"role": "assistant", "text": kept, "tool_calls": []}]
    found: list[RecordedTurn] = []
    for turn in (kept.get("turns") if isinstance(kept, dict) else None) or ():
        read = store.get(turn).payload if isinstance(turn, str) else turn
        if not isinstance(read, dict):
            continue
        calls: list[RecordedCall] = []
        for call in read.get("tool_calls") or read.get("toolCalls") or ():
            if not isinstance(call, dict):
                continue
            shown: RecordedCall = {
                "name": str(call.get("name") or call.get("tool") or ""),
                "arguments": next((call[key] for key in ("arguments", "args", "input") if key in call), {}),
                "result": str(call.get("result") or call.get("output") or ""),
            }
            if "started_at" in call:
                shown["started_at"] = call["started_at"]
            if "ended_at" in call:
                shown["ended_at"] = call["ended_at"]
            calls.append(shown)
        text = str(read.get("text") or read.get("content") or "")
        found.append({"role": str(read.get("role", "")), "text": text, "tool_calls": calls})
    return found


def prompt_text(store: Store, node: str) -> str:
    """Return the full text of a prompt that was stored in parts."""
    payload = store.get(node).payload
    if isinstance(payload, str):
        return payload
    texts = []
    for part in payload["parts"]:
        if "literal" in part:
            texts.append(str(part["literal"]))
        elif "text" in part:
            texts.append(str(store.follow(part["text"]).payload))
        else:
            step = Step(store, store.follow(part["step"]))
            texts.append(prompt.show_step(step.past, ""))
    return "\n\n".join(texts) + "\n"


_OUR_NAMES = {
    "startedAtMs": "started_at",
    "completedAtMs": "completed_at",
    "edgePrompt": "edge_prompt",
    "assembledPrompt": "prompt",
}


def put_step(draft: Draft, fields: JsonObject) -> str:
    """Add a step to a draft. `fields` use Rolecall's names; `raw` is the text of the answer."""
    record = {key: value for key, value in fields.items() if key not in ("raw", "detail")}
    step = {
        name: record.pop(_OUR_NAMES.get(name, name))
        for name in STEP_SCHEMA["properties"]
        if name != "assembledPrompt" and _OUR_NAMES.get(name, name) in record
    }
    raw = fields.get("raw")
    record["turns"] = [draft.put_as(ANSWER_SCHEMA, {"role": "assistant", "content": raw})] if raw else []
    if fields.get("detail"):
        record["work"] = fields["detail"]
    detail = draft.put_as(find_type(RECORD_SCHEMAS, record), record)
    node: str = draft.put_as(STEP_SCHEMA, {**step, "detail": detail})
    return node


@cache
def _record_types() -> frozenset[str]:
    return frozenset(node_id(META, canonical.encode(schema)) for schema in RECORD_SCHEMAS)


def _fields_of(store: Store, node: Node) -> dict[str, Any]:
    """Return the fields of a step under Rolecall's names. The step can be in the current form, an older form or
    uwf's."""
    if "number" in node.payload:
        return dict(node.payload)
    fields: dict[str, Any] = {
        "number": 0,
        "totals": {},
        "started_at": node.created,
        "completed_at": node.created,
        "cwd": "",
    }
    for key, value in node.payload.items():
        if value is not None or key == "prev":
            fields[_OUR_NAMES.get(key, key)] = value
    detail = store.follow(fields["detail"]) if fields.get("detail") else None
    if detail and detail.type in _record_types():
        del fields["detail"]
        fields |= detail.payload
        if turns := fields.pop("turns"):
            fields["raw"] = turns[-1]
        if "work" in fields:
            fields["detail"] = fields.pop("work")
    return fields


# -- usage --

LimitName = Literal["steps", "turns", "tokens", "cost", "minutes"]
LIMITS: tuple[LimitName, ...] = ("steps", "turns", "tokens", "cost", "minutes")
"""The amounts that are counted and can be limited."""


def count_usage(usage: JsonObject | None, *, ms: int, steps: int = 1) -> dict[str, float]:
    """Return the usage of one agent call in the units that limits use."""
    usage = usage or {}
    tokens = (usage.get("input_tokens") or 0) + (usage.get("output_tokens") or 0)
    used = {
        "steps": steps,
        "turns": usage.get("turns") or 0,
        "tokens": tokens,
        "cost": usage.get("cost") or 0,
    }
    return {**{key: value for key, value in used.items() if value}, "minutes": round(ms / 60_000, 4)}


def add_totals(
    totals: JsonObject, role: str, used: Mapping[str, float], saved: Mapping[str, float] | None = None
) -> dict[str, Any]:
    """Return the totals of thread and role after one more call. `members` is the number of steps that members of groups
    took, in addition to the steps that joined their results. `saved` is the original usage of reused steps."""
    roles = dict(totals.get("roles", {}))
    roles[role] = _sum(roles.get(role, {}), used)
    members = totals.get("members", 0) + used.get("members", 0)
    more = {"members": members, "saved": _sum(totals.get("saved", {}), saved or {})}
    return {**_sum(totals, used), **{key: value for key, value in more.items() if value}, "roles": roles}


def add_attempts(totals: JsonObject, attempts: Iterable[JsonObject]) -> dict[str, Any]:
    """Return the totals including failed attempts that no step has counted."""
    found = dict(totals)
    for attempt in attempts:
        ms = attempt.get("completed_at", attempt["started_at"]) - attempt["started_at"]
        found = add_totals(found, attempt["role"], count_usage(attempt.get("usage"), ms=ms, steps=0))
    return found


def get_savings(store: Store, ref: ThreadRef) -> Mapping[str, float]:
    """Return the amounts that a thread has saved by reusing steps."""
    last = Chain(store, ref.head).last
    found: Mapping[str, float] = last.payload["totals"].get("saved", {}) if last else {}
    return found


def sum_amounts(amounts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    return reduce(_sum, amounts, {})


def _sum(one: JsonObject, other: Mapping[str, float]) -> dict[str, float]:
    return {
        key: round(one.get(key, 0) + other.get(key, 0), 6)
        for key in LIMITS
        if one.get(key, 0) or other.get(key, 0)
    }


def over_limit(limits: Mapping[str, float], used: JsonObject) -> str | None:
    """Return the limit that has been reached, or None if another step is allowed."""
    return next((key for key in LIMITS if key in limits and used.get(key, 0) >= limits[key]), None)
