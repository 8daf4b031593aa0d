"""Explain why a step was reused or not, by comparing the parts of its key with those of the nearest earlier step."""

from __future__ import annotations

from contextlib import suppress
from itertools import islice
from typing import NamedTuple, TypedDict

from rolecall.errors import RolecallError, UsageError
from rolecall.files.tree import Trees
from rolecall.store.store import Store
from rolecall.threads import thread, views
from rolecall.threads.key import OF_ROLE, ROUND, differences, key_of
from rolecall.threads.reuse import REFUSED
from rolecall.threads.setup import HUMAN
from rolecall.threads.state import GROUP, ThreadRef, load
from rolecall.threads.thread import Chain, Step
from rolecall.threads.view_types import ReusedStep
from rolecall.workflow import registry
from rolecall.workflow.model import reuse_of, sandbox_of
from rolecall.workflow.route import status_of

_MOST_THREADS = 200
_MOST_STEPS = 50
"""The maximum number of steps that are read of each earlier thread of the workflow."""
_MOST_FILES = 5
_WORDS = {
    "task": "the task",
    "item": "the item of the member",
    "knowledge": "the passages from the repository",
    "history": "the earlier steps that it was shown",
    "steps": "the earlier steps",
    "session": "the earlier turns of its session",
}


class _Near(NamedTuple):
    step: Step
    thread: str
    differs: list[str]


class NearestStep(TypedDict):
    """The earlier step whose key differs least."""

    thread: str
    step: str
    number: int


class KeyExplanation(TypedDict):
    """Why a step was reused or not."""

    thread: str
    step: str
    number: int
    role: str
    key: str
    reused: ReusedStep | None
    nearest: NearestStep | None
    part: str | None
    """The first part of the key that differs from the nearest step."""
    differs: list[str]
    """All parts that differ."""
    text: str
    """The explanation in words."""


def explain(store: Store, trees: Trees, ref: ThreadRef, at: str | None = None) -> KeyExplanation:
    """Return why a step was reused or not. `at` is the number or the id of the step, or None for the last step."""
    node, _ = views.step_named(store, ref.id, at)
    if node == Chain(store, ref.head).start.id:
        raise UsageError(f"thread {ref.id} has no such step, or none yet", hint="Give a step that was taken.")
    step = Step(store, store.get(node))
    nearest: NearestStep | None = None
    differs: list[str] = []
    notes = [str(note) for note in step.detail.get("notes", ())]
    refused = next((note for note in notes if note.startswith(REFUSED)), "")
    if step.reused:
        text = f"reused from step {step.reused.step} of thread {step.reused.thread}"
    elif reason := _has_no_key(step):
        text = f"it has no key: {reason}"
    else:
        near = _find_nearest(store, ref, step)
        text = refused or "asked: no earlier step of this role is known"
        if near is not None:
            nearest = {"thread": near.thread, "step": near.step.id, "number": near.step.number}
            differs = near.differs
            whose = f"step {near.step.number} of thread {near.thread}"
            if near.differs:
                cause = describe_part(store, trees, near.step, step, near.differs[0])
                text = refused or f"asked: differs from {whose}: {cause}"
            else:
                cause = _find_obstacle(store, ref, near.step, step)
                text = refused or f"asked although {whose} has the same key: {cause}"
    return {
        "thread": ref.id,
        "step": step.id,
        "number": step.number,
        "role": step.role,
        "key": key_of(step.parts) if step.parts else "",
        "reused": step.reused.dump() if step.reused else None,
        "nearest": nearest,
        "part": differs[0] if differs else None,
        "differs": differs,
        "text": text,
    }


def _has_no_key(step: Step) -> str:
    if step.role in (thread.PERSON, thread.FORK) or step.agent == HUMAN:
        return "it was not taken by an agent"
    if step.agent == GROUP:
        return "the steps of a group's members have keys of their own"
    if step.parts is None:
        return "what it depends on was not recorded"
    if not step.parts.version:
        if step.parts.agent.startswith("python:"):
            return "the values in its code cannot be compared"
        return "the version of its agent is not known"
    if step.parts.tree:
        return ""
    nested = step.tree.found.nested if step.tree else None
    if nested:
        return f"the nested repository {nested[0]} has files that are not committed"
    return "the files from before the step were not recorded"


def _find_nearest(store: Store, ref: ThreadRef, step: Step) -> _Near | None:
    """Return the earlier finished step of the same role with the fewest differing parts. Of several such steps, prefer
    steps of this thread to steps of other threads of the workflow, and newer ones to older ones."""
    assert step.parts is not None  # noqa: S101 - narrows the type
    before, named, best = step.payload["started_at"], {"name": [ref.state.name]}, None
    others = map(load, store.refs("thread/", where=named, newest_first=True, limit=_MOST_THREADS))
    for one in (ref, *(other for other in others if other.id != ref.id)):
        # If the thread's nodes are damaged, reading the thread reports this.
        with suppress(RolecallError):
            for earlier in islice(Chain(store, one.head), _MOST_STEPS):
                if earlier.role != step.role or earlier.id == step.id or earlier.parts is None:
                    continue
                is_finished = not str(status_of(earlier.output)).startswith("$")
                if not is_finished or earlier.payload["completed_at"] > before:
                    continue
                differs = differences(earlier.parts, step.parts)
                if best is None or len(differs) < len(best.differs):
                    best = _Near(earlier, one.id, differs)
                if not differs:
                    return best
    return best


def _find_obstacle(store: Store, ref: ThreadRef, before: Step, after: Step) -> str:
    """Return why a step was not taken over although an earlier step has the same key."""
    workflow = registry.read_node(store, ref.state.workflow)[0]
    if reuse_of(workflow, after.role, ref.state.reuse) is not True:
        return "reuse was off for this step"
    if workflow.roles[after.role].may_start_threads:
        return "a role that may start threads is always asked"
    if ending := before.detail.get("ending"):
        return f"the agent ended that step with {ending!r}"
    return "it could not be found by its key"


def describe_part(store: Store, trees: Trees, before: Step, after: Step, part: str) -> str:
    """Describe in words what differs in one part of the keys of two steps."""
    assert before.parts is not None and after.parts is not None  # noqa: S101 - narrows the types
    was, now = before.parts.get(part), after.parts.get(part)
    if part == "role":
        starts = (Chain(store, step.id).start for step in (before, after))
        workflows = [registry.read_node(store, start.workflow)[0] for start in starts]
        old, new = (workflow.roles.get(after.role) for workflow in workflows)
        changed = [name for name in OF_ROLE if getattr(old, name, None) != getattr(new, name, None)]
        boxes = [sandbox_of(workflow, after.role) for workflow in workflows if after.role in workflow.roles]
        changed += ["sandbox"] if boxes[:1] != boxes[1:] else []
        return f"the role as defined: its {', '.join(changed)}" if changed else "the role as defined"
    if part == "instruction":
        texts = [step.payload.get("edge_prompt", "").strip() for step in (after, before)]
        return "the instruction: {!r}, was {!r}".format(*(thread.title_of(text) for text in texts))
    if part == "agent":
        return f"the agent: {now}, was {was}"
    if part == "version":
        return f"the version of its program: {now}, was {was}"
    if part == "restrictions":
        return f"its restrictions: {', '.join(now) or 'none'}, was {', '.join(was) or 'none'}"
    if part == "tree":
        return f"the files it found{_describe_files(trees, before, after)}"
    if part == "repetition" and now // ROUND != was // ROUND:
        return f"it is repeat {now // ROUND + 1} of an evaluation, the other step repeat {was // ROUND + 1}"
    if part == "repetition":
        return f"it was asked the same thing {now} times before, the other step {was} times"
    return _WORDS[part]


def _describe_files(trees: Trees, before: Step, after: Step) -> str:
    if before.tree is None or after.tree is None:
        return ""
    try:
        changed = trees.changes(before.tree.found, after.tree.found)
    except (RolecallError, OSError):  # the files are on another machine, or were collected
        return ""
    names = [change.path for change in changed]
    more = ", …" if len(names) > _MOST_FILES else ""
    verb = "differs" if len(names) == 1 else "differ"
    return f": {len(names)} {verb}: {', '.join(names[:_MOST_FILES])}{more}" if names else ""
