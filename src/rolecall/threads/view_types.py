"""The types of the JSON objects with which `views.py` describes threads and their steps.

Modules on the read path import this module only for type checking, because making these classes takes as long as
reading a thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NotRequired, TypedDict, final

from rolecall.errors import Hint
from rolecall.files.merge import MergeConflict
from rolecall.files.snapshot import FileDifference
from rolecall.store.ids import ThreadId

Continuation = TypedDict("Continuation", {"continue": Hint | None})
"""The action that continues a thread, or None if the thread has ended."""


FolderOrigin = TypedDict("FolderOrigin", {"from": NotRequired[str]})


class StoredFiles(TypedDict):
    """A `FirstFiles` as JSON."""

    tree: str
    repository: str
    place: str


class StoredFolder(FolderOrigin):
    """A `WorkFolder` as JSON. Fields without a value are missing."""

    path: str
    cwd: str
    source: str
    branch: NotRequired[str]
    base: NotRequired[str]
    omitted: NotRequired[int]
    files: NotRequired[StoredFiles]
    removed: NotRequired[bool]
    set_aside: NotRequired[Mapping[str, Any]]


class FolderFindings(TypedDict, total=False):
    """What is found in a folder. Keys that do not apply are missing."""

    changes: list[str]
    """In a folder without a branch, the changed files, each after the kind of its change."""
    into: str | None
    """The branch that is checked out in `source`."""
    ahead: int
    behind: int
    checkedOut: str | None
    """The branch that is checked out in the folder."""
    uncommitted: list[str]
    problem: str
    """Why the folder's repository cannot be read."""


class FolderReport(StoredFolder, FolderFindings):
    """A thread's own folder and its current state."""

    kind: str
    state: str
    """`there`, `missing`, `removed` or `half removed`."""


class ThreadFacts(TypedDict):
    """What a list says about a thread, apart from the action that continues it. Times are in milliseconds."""

    workflow: str | None
    """The id of the workflow's version."""
    thread: ThreadId
    head: str | None
    status: str
    currentRole: str | None
    name: str | None
    title: str | None
    reason: str | None
    created: int
    updated: int
    steps: int
    folders: dict[str, StoredFolder]
    """The thread's own folders, by kind."""
    until: NotRequired[int]
    """The time at which the provider's limit ends, if the thread waits for that."""
    parent: NotRequired[ThreadId | None]
    """The thread whose group this thread is a member of."""
    member: NotRequired[int]


class ThreadEntry(ThreadFacts, Continuation):
    """A thread in a list."""


class SetAsideThread(ThreadEntry):
    """A thread whose work could not be merged, with the reason."""

    branch: NotRequired[str]
    """The branch that contains the work."""
    conflict: NotRequired[MergeConflict]


class ThreadNearLimit(ThreadEntry):
    """A thread that has used most of what a limit allows."""

    limit: str
    used: float
    most: float


class NearLimits(TypedDict):
    threads: list[ThreadNearLimit]
    """The thread nearest to its limit comes first."""
    more: bool
    """Whether older threads were left out."""


class ThreadUsage(TypedDict, total=False):
    """What a thread has used. An amount that no agent reported is missing."""

    steps: int
    turns: int
    tokens: int
    cost: float
    minutes: float
    saved: dict[str, float]
    """The amounts that reuse has saved."""
    roles: dict[str, dict[str, float]]
    """The amounts of each role; only in the summary of a thread."""
    hasMembers: bool
    """Whether the thread has members; only in its totals."""


MemberStatus = Literal["done", "failed", "stopped", "set_aside", "running", "waiting", "open"]
"""`set_aside`: the work could not be merged; `waiting`: for a person; `open`: not running now."""


class MemberDetails(TypedDict, total=False):
    item: Any
    """The member's item, if the group has one member for each item of a list."""
    role: str
    """The member's role, if the group has several."""
    title: str
    """Given only while the group is at work."""
    output: Any
    """Given only when the group has ended."""
    branch: str
    """The branch of the member's worktree."""
    reason: str
    """Why the member is not done, or a remark on the merge of its work."""
    until: int
    """The time at which the provider's limit ends, if the member waits for that."""
    conflict: MergeConflict


class GroupMember(MemberDetails):
    """A member of a group."""

    number: int
    status: MemberStatus
    id: ThreadId
    """The member's thread, or empty if the member was never started."""


class GroupOutput(TypedDict):
    """The output of a step that joins the results of a group's members, with how many members have each status."""

    status: str
    members: list[GroupMember]
    count: int
    done: int
    failed: int
    stopped: int
    set_aside: int


class GroupCounts(TypedDict):
    """The group that is at work, with how many of its `count` members have each status."""

    role: str
    count: int
    done: NotRequired[int]
    failed: NotRequired[int]
    stopped: NotRequired[int]
    set_aside: NotRequired[int]
    running: NotRequired[int]
    waiting: NotRequired[int]
    open: NotRequired[int]
    until: NotRequired[int]
    """The time at which the first provider's limit ends, if members wait for that."""


class GroupAtWork(TypedDict, total=False):
    group: GroupCounts


class PlayedGroup(TypedDict):
    """A group with its members. If the group is still at work, `step` is None, and `status` and the counts of members
    are missing."""

    role: str
    step: int | None
    """The number of the step that joined the results."""
    status: NotRequired[str]
    members: list[GroupMember]
    count: int
    done: NotRequired[int]
    failed: NotRequired[int]
    stopped: NotRequired[int]
    set_aside: NotRequired[int]


class ReportedUsage(TypedDict, total=False):
    """What an agent reported about the usage of one call."""

    input_tokens: int
    output_tokens: int
    cached_tokens: int
    cost: float
    turns: int


class RecordedCall(TypedDict):
    """A tool call of an agent."""

    name: str
    arguments: Any
    result: str
    started_at: NotRequired[int]
    ended_at: NotRequired[int]


class RecordedTurn(TypedDict):
    """A turn of the conversation with an agent."""

    role: str
    text: str
    tool_calls: list[RecordedCall]


class SandboxUse(TypedDict):
    """The sandbox of a step."""

    rules: str
    enforced: NotRequired[list[str]]
    """How the rules were enforced; missing if the sandbox was switched off."""


class ReusedStep(TypedDict):
    """A `Reused` as JSON."""

    step: str
    thread: str
    saved: NotRequired[Mapping[str, Any]]


@final
class AttemptEntry(TypedDict):
    """A failed attempt at a step. In lists of attempts, the keys after `durationMs` are missing."""

    id: str
    role: str
    agent: str
    error: str
    ending: str
    session: str | None
    usage: ReportedUsage
    timestamp: int
    durationMs: int
    raw: NotRequired[str]
    """The agent's unparsed answer."""
    prompt: NotRequired[str]
    turns: NotRequired[list[RecordedTurn]]
    sandbox: NotRequired[SandboxUse]
    changes: NotRequired[list[FileDifference]]
    moreChanges: NotRequired[int]


class AskedAgent(TypedDict):
    """The agent that is being asked now."""

    role: str
    agent: str
    session: str | None
    startedAt: int | None
    answered: bool
    """Whether the answer has arrived, but the step is not yet committed."""


class LeaseHolder(TypedDict):
    """The process that runs a thread."""

    holder: str
    pid: int | None
    alive: bool
    deadline: int | None


class IntactFacts(GroupAtWork, total=False):
    """What is known about a thread that is not damaged."""

    usage: ThreadUsage
    limits: dict[str, float]
    reuse: bool | None
    agents: dict[str, str]
    """The agent of each role."""
    attempts: list[AttemptEntry]
    """The failed attempts since the last step, newest first."""
    pending: AskedAgent | None
    lease: LeaseHolder | None
    forkedFrom: str | None
    """The step at which the thread was forked."""
    forkedThread: str | None
    cwd: str


class SummaryFacts(ThreadFacts, IntactFacts):
    """The state of a thread, apart from the action that continues it."""

    done: bool
    background: None


class ThreadSummary(SummaryFacts, Continuation):
    """The state of a thread, as `rolecall thread show --json` prints it."""


class ReportedThread(ThreadSummary):
    """The state of a thread with its task, for a report."""

    prompt: str


@final
class StartEntry(TypedDict):
    """The start of a thread, which is listed before its steps."""

    id: str
    workflow: str
    prompt: str
    timestamp: int


class StepEntry(TypedDict):
    """A step in a list of steps."""

    id: str
    role: str
    output: Any
    detail: str | None
    """The id of the node with further fields."""
    agent: str
    timestamp: int
    durationMs: int
    number: int
    status: str | None
    session: str | None
    usage: ReportedUsage
    reused: NotRequired[ReusedStep]
    saved: NotRequired[dict[str, float]]
    """The amounts that reuse saved in the step."""
    sandbox: NotRequired[SandboxUse]
    changes: NotRequired[list[FileDifference]]
    """The files that the step changed; missing, like `moreChanges`, if its files were not recorded."""
    moreChanges: NotRequired[int]


class StepOrigins(TypedDict):
    """What led to a step."""

    edgePrompt: str
    attempts: list[AttemptEntry]
    """The failed attempts before the step, newest first."""
    children: list[str]
    """The threads that played the role."""
    by: NotRequired[dict[str, str]]
    """The `person` who took the step, and the `door` that the person used."""


class ListedStep(StepEntry, StepOrigins):
    """A step in a page of steps."""


class StepPage(TypedDict):
    start: str
    """The id of the thread's start."""
    steps: list[ListedStep]
    before: str | None
    """The step before which the next page begins, or None if no earlier steps are left."""


class AgentWork(TypedDict):
    """What an agent did in a step, apart from its answer."""

    files: list[str]
    """The files that the agent reported."""
    ending: str
    reason: str
    notes: list[str]
    turns: list[RecordedTurn]


class StepDetails(StepEntry, AgentWork, StepOrigins):
    """Everything about a step."""

    body: str
    raw: str
    """The agent's unparsed answer."""
    prompt: str
    cwd: str
    omitted: list[str]
    """The files that were not recorded."""
    sessionReason: str


class ChangedFiles(TypedDict):
    """The files that a step changed."""

    step: str
    number: int
    role: str
    changes: list[FileDifference]
    moreChanges: int
    """How many changed files are missing from `changes`."""


class ThreadResult(TypedDict):
    """The result of a thread so far."""

    step: str
    """The id of the last step that a role took."""
    role: str
    status: str | None
    output: Any
    text: str
    """The beginning of the last answer."""
    files: list[str]
    """The files that agents reported."""
    usage: ThreadUsage


class ReadPage(TypedDict):
    """A part of a thread as Markdown."""

    thread: ThreadId
    text: str
    steps: int
    """The number of steps in the text."""
    earlier: int
    """The number of steps before those in the text."""
    before: str | None
    """The step before which the next page ends, or None if no earlier steps are left."""
    problem: str | None
    """Why the earlier steps cannot be read."""


class ReadStep(StepEntry, AgentWork, StepOrigins):
    """A step in a part of a thread."""

    body: str
    rolePrompt: str


class NamedStep(TypedDict):
    id: str
    role: str
    number: int


class StepDifference(TypedDict):
    """Two steps of the same role, or a step that only one of two threads has."""

    number: int
    steps: list[NamedStep | None]
    output: list[str]
    """The lines of a diff, like `body`."""
    body: list[str]


class ThreadDifference(TypedDict):
    """Where two threads diverge, and how they differ from there on."""

    threads: list[ThreadId]
    common: str | None
    """The id of the last step that both threads share, or of their start."""
    commonSteps: int
    prompt: list[str]
    """The lines of a diff."""
    steps: list[StepDifference]
