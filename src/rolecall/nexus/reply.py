"""The types of the replies of the project's verbs and tools. The contract defines the keys and their order.

The modules that make and read replies import these types only for the type checker, because hooks run often and
creating the types takes time.
"""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict

# -- the plan --


class PlanIssue(TypedDict):
    """An issue of a plan."""

    id: float
    title: str
    status: Literal["pending", "decided"]
    decision: NotRequired[str]
    how_agents: NotRequired[list[str]]
    """The agents that were consulted."""
    how_summary: NotRequired[dict[str, str]]
    """What each agent advised."""
    how_agent_ids: NotRequired[dict[str, str]]
    """The id of each agent's instance."""


class IssueCounts(TypedDict):
    total: int
    pending: int
    decided: int


class PlanReply(TypedDict):
    """The active plan. If no plan is active, `active` is the only key."""

    active: bool
    plan_id: NotRequired[float]
    topic: NotRequired[str]
    issues: NotRequired[list[PlanIssue]]
    research_summary: NotRequired[str]
    summary: NotRequired[IssueCounts]


class StartedPlan(TypedDict):
    created: bool
    plan_id: float
    topic: str
    issueCount: int
    previousArchived: bool
    """Whether another plan was active, which is now in the history."""


class IssueTitle(TypedDict):
    """An issue without its decision."""

    id: float
    title: str
    status: Literal["pending", "decided"]


class ChangedIssue(TypedDict):
    """An issue after a change. A removed issue has only its `id`; a renamed issue has no `status`."""

    id: float
    title: NotRequired[str]
    status: NotRequired[Literal["pending", "decided"]]


class IssueChange(TypedDict):
    """The changed issue. The only other key says what happened to the issue."""

    added: NotRequired[bool]
    removed: NotRequired[bool]
    edited: NotRequired[bool]
    reopened: NotRequired[bool]
    issue: ChangedIssue


class RecordedDecision(TypedDict):
    decided: bool
    issue: str
    """The title of the issue."""
    allComplete: bool
    """Whether every issue is decided."""
    remaining: NotRequired[list[IssueTitle]]
    """The issues that are not decided; absent if every issue is."""
    message: NotRequired[str]
    """Present if every issue is decided."""


# -- tasks --


class ProjectTask(TypedDict):
    """A task of the running cycle."""

    id: float
    title: str
    context: str
    approach: NotRequired[str]
    acceptance: NotRequired[str]
    risk: NotRequired[str]
    status: Literal["pending", "in_progress", "completed"]
    deps: list[float]
    """The ids of the tasks that must be completed first."""
    plan_issue: NotRequired[float]
    owner: NotRequired[str]
    owner_agent_id: NotRequired[str]
    owner_reuse_policy: NotRequired[Literal["fresh", "resume_if_same_artifact", "resume"]]
    created_at: NotRequired[str]


class TaskCounts(TypedDict):
    total: int
    completed: int
    pending: int


class TaskSummary(TaskCounts):
    blocked: int
    """The number of tasks in progress, which the contract calls `blocked`."""
    ready: list[float]
    """The ids of the tasks that can be started."""


class TaskListReply(TypedDict):
    """The tasks of the running cycle. If there are none, `exists` is the only key, and it is false."""

    exists: NotRequired[bool]
    goal: NotRequired[str]
    tasks: NotRequired[list[ProjectTask]]
    summary: NotRequired[TaskSummary]


class TaskReply(TypedDict):
    """The task that was added or changed."""

    task: ProjectTask


class ArchivedCounts(TypedDict):
    plan: bool
    """Whether a plan was active."""
    decisions: int
    tasks: int


class MemoryHint(TypedDict):
    """What the closed cycle was about, as a hint to lessons worth keeping."""

    taskCount: int
    decisionCount: int
    cycleTopics: list[str]


class ClosedCycle(TypedDict):
    closed: bool
    cycle: str
    """The time at which the cycle was closed."""
    branch: str
    archived: ArchivedCounts
    deleted: list[str]
    """The names of the state files that moved to the history."""
    total_cycles: int
    memoryHint: MemoryHint


# -- looking back --


class PastDecision(TypedDict):
    title: str
    decision: str


class PastCycle(TypedDict):
    """A summary of a closed cycle. A cycle without a plan has no `topic` and no `decisions`."""

    completed_at: str
    branch: str
    topic: NotRequired[str]
    decisions: NotRequired[list[PastDecision]]
    task_count: int


class FoundCycles(TypedDict):
    total: int
    """The number of cycles that contain the query."""
    showing: int
    """The number of cycles in `cycles`, in which the newest is last."""
    cycles: list[PastCycle]


class ProjectContext(TypedDict):
    """The current state of the project. Without tasks, or if the tasks cannot be read, `goal` and `tasksSummary` are
    absent."""

    branch: str
    activeMode: Literal["team"] | None
    goal: NotRequired[str]
    tasksSummary: NotRequired[TaskCounts]
    decisions: list[str]
    """The decisions that bind the work."""


class WrittenArtifact(TypedDict):
    success: bool
    path: str


# -- notes and rules --


class NoteEntry(TypedDict):
    """A note, with the number of times it was read."""

    name: str
    category: str
    """The category at the beginning of the name; empty if there is none."""
    size: int
    lastAccess: str | None
    lastAgent: str | None
    accessCount: int
    ageDays: int
    path: str


class AddedNote(TypedDict):
    name: str
    path: str
    category: str
    created: bool
    """Whether the note is new; false if the lesson was added to an existing note."""


class MergedNotes(TypedDict):
    name: str
    """The note that has the text of both."""
    path: str
    removed: list[str]
    commit: str
    restore: list[str]
    """The commands that bring the removed notes back."""


class ForgetReason(TypedDict):
    id: str
    reason: str


class ForgettableNote(TypedDict):
    name: str
    signals: list[ForgetReason]


class DeletedNote(TypedDict):
    name: str
    commit: str
    restore: str
    """The command that brings the note back."""
    signals: list[str]


class UndeletedNote(TypedDict):
    name: str
    reason: str
    """Why the note could not be deleted."""


class Deletions(TypedDict):
    deleted: list[DeletedNote]
    stayed: list[UndeletedNote]


class RuleEntry(TypedDict):
    name: str
    tags: list[str]
    size: int
    path: str


class AddedRule(TypedDict):
    name: str
    path: str
    tags: list[str]


# -- agents --


class TrackedAgent(TypedDict):
    """An instance of an agent that a session started."""

    harness_id: str
    started_at: str
    agent_name: NotRequired[str]
    agent_id: NotRequired[str]
    last_resumed_at: NotRequired[str]
    resume_count: NotRequired[int]
    status: NotRequired[Literal["running", "completed"]]
    stopped_at: NotRequired[str]
    last_message: NotRequired[str]
    files_touched: NotRequired[list[str]]
