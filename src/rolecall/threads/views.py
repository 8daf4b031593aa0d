"""Threads and their steps as plain JSON values, for every front door.

Summaries are read from a thread's ref and its newest nodes, so their cost does not depend on the number of steps. This
module is on the command line's read path, so modules that only some views need are imported when they are first used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any

from rolecall.errors import Damaged, Hint, NotFound, RolecallError, UsageError
from rolecall.files.snapshot import load_tree
from rolecall.store import holder
from rolecall.store.canonical import JsonObject
from rolecall.store.ids import NODE_ID_LENGTH, is_thread_id, thread_time
from rolecall.store.lazy import Module
from rolecall.store.store import Store
from rolecall.threads import report, thread
from rolecall.threads.state import GROUP, Status, ThreadRef, group_name, read_members, read_note
from rolecall.threads.thread import LIMITS, Chain, Step

if TYPE_CHECKING:
    import difflib

    from rolecall.threads import loaded_thread
    from rolecall.threads.view_types import (
        AgentWork,
        AskedAgent,
        AttemptEntry,
        ChangedFiles,
        GroupAtWork,
        GroupCounts,
        GroupMember,
        GroupOutput,
        IntactFacts,
        LeaseHolder,
        ListedStep,
        MemberStatus,
        NamedStep,
        PlayedGroup,
        ReadPage,
        ReadStep,
        ReportedThread,
        ReportedUsage,
        StartEntry,
        StepDetails,
        StepDifference,
        StepEntry,
        StepOrigins,
        StepPage,
        ThreadDifference,
        ThreadEntry,
        ThreadResult,
        ThreadSummary,
        ThreadUsage,
    )
    from rolecall.workflow import template
else:
    difflib = Module("difflib")
    loaded_thread = Module("rolecall.threads.loaded_thread")
    template = Module("rolecall.workflow.template")

_SEPARATOR = "\n\n---\n\n"
_NEWEST_ATTEMPTS = 20


# -- a thread --


def entry(store: Store, ref: ThreadRef) -> ThreadEntry:
    """Return the summary of a thread, read from its ref alone."""
    state, status = ref.state, status_of(store, ref)
    if not state.name and (known := thread.with_facts(store, ref).state).cwd is not None:  # written by uwf
        state = known._replace(role=known.role or role_due(store, ref, Chain(store, ref.head)))
    onward = None if status == Status.DAMAGED else thread.continuation(ref, is_held=status == Status.RUNNING)
    found: ThreadEntry = {
        "workflow": state.workflow or None,
        "thread": ref.id,
        "head": ref.head or None,
        "status": status.value,
        "currentRole": None if state.has_ended else state.role,
        "name": state.name or None,
        "title": state.title or None,
        "reason": state.reason or None,
        "created": thread_time(ref.id) if is_thread_id(ref.id) else 0,
        "updated": state.ended_at or ref.ref.updated,
        "steps": state.steps or 0,
        "folders": state.dump_folders(),
        "continue": onward,
    }
    if state.until is not None:
        found["until"] = state.until
    if state.member:
        found["parent"], found["member"] = state.parent, state.member
    return found


def totals(store: Store, ref: ThreadRef) -> ThreadUsage:
    """Return the total usage of a thread, and in `hasMembers` whether the thread has members. Only the newest step is
    read. Return an empty mapping if the thread has no step or cannot be read."""
    with suppress(NotFound, Damaged, UsageError):
        last = Chain(store, ref.head).last
        known = last.payload["totals"] if last else {}
        used = _read_usage(known)
        is_group = last is not None and last.agent == GROUP
        if known.get("members") or ref.state.status == Status.WAITING or is_group:
            used["hasMembers"] = True
        return used
    return {}


def _read_usage(totals: JsonObject, *, with_roles: bool = False) -> ThreadUsage:
    """Return the totals that a step stores, in their stored order. `with_roles` includes those of each role."""
    used: ThreadUsage = {}
    for key, value in totals.items():
        if key in LIMITS:
            used[key] = value
        elif key == "saved":
            used["saved"] = value
        elif key == "roles" and with_roles:
            used["roles"] = value
    return used


def describe_damage(known: ThreadEntry, error: RolecallError) -> ThreadEntry:
    """Return the entry of a thread whose newest nodes cannot be read."""
    return {**known, "status": Status.DAMAGED.value, "reason": error.message, "continue": None}


def status_of(store: Store, ref: ThreadRef) -> Status:
    """Return the status of a thread, or `crashed` if the thread is stored as `running` but its process is gone."""
    if ref.state.status != Status.RUNNING:
        return ref.state.status
    return Status.RUNNING if holder.is_alive(ref.state.lease, now=store.now()) else Status.CRASHED


def card(store: Store, ref: ThreadRef) -> ThreadSummary:
    """Return the description and state of a thread, read from its ref and its newest nodes alone."""
    try:
        chain = Chain(store, ref.head)
        start, last = chain.start, chain.last
        totals: JsonObject = last.payload["totals"] if last else {}
    except (NotFound, Damaged) as error:
        nothing: IntactFacts = {}
        return {**describe_damage(entry(store, ref), error), "done": False, "background": None, **nothing}

    # Include failed attempts that no step links to yet, and the current attempt.
    known = read_note(store, ref.id)
    pending: AskedAgent | None = None
    if known is not None and known.note.agent:
        note = known.note
        pending = {
            "role": note.role,
            "agent": note.agent,
            "session": note.session or None,
            "startedAt": note.started_at,
            "answered": bool(note.raw),
        }
    attempts = list(attempts_from(store, known.attempt if known else None, with_texts=False))
    for attempt in attempts:
        amounts = thread.count_usage(attempt["usage"], ms=attempt["durationMs"], steps=0)
        totals = thread.add_totals(totals, attempt["role"], amounts)

    try:
        limits = store.get(start.workflow).payload.get("limits") or {}
    except (NotFound, Damaged):
        limits = {}
    lease = ref.state.lease
    held: LeaseHolder | None = None
    if lease:
        held = {
            "holder": holder.describe(lease),
            "pid": lease.get("pid"),
            "alive": holder.is_alive(lease, now=store.now()),
            "deadline": lease.get("deadline"),
        }
    at_work: GroupAtWork = {}
    if group := current_group(store, ref):
        counts: GroupCounts = {"role": group["role"], "count": group["count"]}
        for status, count in Counter(member["status"] for member in group["members"]).items():
            counts[status] = count
        if ends := [member["until"] for member in group["members"] if "until" in member]:
            counts["until"] = min(ends)
        at_work["group"] = counts
    shown = entry(store, ref)
    return {
        **shown,
        "currentRole": shown["currentRole"] or role_due(store, ref, chain),
        "done": shown["status"] in thread.ENDED,
        "background": None,
        "steps": head_number(ref, chain),
        "usage": _read_usage(totals, with_roles=True),
        "limits": {**limits, **start.limits, **ref.state.limits},
        "reuse": ref.state.reuse,
        "agents": {role: bound["name"] for role, bound in ref.state.agents.items()},
        "attempts": attempts[:_NEWEST_ATTEMPTS],
        "pending": pending,
        "lease": held,
        "forkedFrom": ref.state.forked_from,
        "forkedThread": ref.state.forked_thread,
        "cwd": start.cwd,
        **at_work,
    }


def groups(store: Store, ref: ThreadRef, newest: int | None = None) -> list[PlayedGroup]:
    """Return the groups of a thread with all their members, oldest group first. The last group may still be at work."""
    found: list[PlayedGroup] = []
    for step, number in islice(number_steps(ref, Chain(store, ref.head)), newest):
        if step.agent == GROUP:
            output: GroupOutput = step.output
            found.append({"role": step.role, "step": number, **output})
    return [*reversed(found), *([group] if (group := current_group(store, ref)) else [])]


def current_group(store: Store, ref: ThreadRef) -> PlayedGroup | None:
    """Return the group that a thread is playing now, with the members that have been started, or None."""
    held = store.ref(group_name(ref.id))
    if held is None:
        return None
    roster = store.get(held.target or "").payload
    members: list[GroupMember] = []
    for member in read_members(store, ref.id):
        state = member.state
        status = _FATES.get(status_of(store, member)) or ("waiting" if state.waits_for_person else "failed")
        shown: GroupMember = {
            "number": state.member or 0,
            "status": status,
            "id": member.id,
            "title": state.title,
        }
        if state.reason:
            shown["reason"] = state.reason
        if state.until:
            shown["until"] = state.until
        members.append(shown)
    return {"role": roster["role"], "step": None, "count": roster["count"], "members": members}


def needs_person(store: Store, ref: ThreadRef) -> bool:
    """Return whether the thread needs a person: it is suspended, or waits only for suspended members."""
    if ref.state.status != Status.WAITING:
        return ref.state.status == Status.SUSPENDED
    held = store.ref(group_name(ref.id))
    progress = held.state.get("standing", {}) if held else {}
    if progress.get("open") or progress.get("next", 1) <= progress.get("count", 0):
        return False
    group = current_group(store, ref) or {"members": ()}
    return not any(member["status"] in ("running", "open") for member in group["members"])


_FATES: dict[Status, MemberStatus] = {
    Status.COMPLETED: "done",
    Status.FAILED: "failed",
    Status.RUNNING: "running",
    **dict.fromkeys((Status.KILLED, Status.DISCARDED), "stopped"),
    **dict.fromkeys((Status.QUEUED, Status.IDLE, Status.CRASHED, Status.WAITING), "open"),
}
"""The outcome of a member, derived from its status. A suspended member counts as either waiting for a person or
failed."""


def role_of(store: Store, ref: ThreadRef) -> str | None:
    """Return the next role, or the role that waits for a person. Return None if the thread has ended."""
    if ref.state.has_ended:
        return None
    return ref.state.role or role_due(store, ref, Chain(store, ref.head))


def asking_role(head: Any) -> str | None:
    """Return the role that suspended the thread, read from the payload of the thread's head."""
    role = head.get("role") if isinstance(head, dict) else None
    return role if isinstance(role, str) and not role.startswith("$") else None


def role_due(store: Store, ref: ThreadRef, chain: Chain) -> str | None:
    """Return the next role if the ref does not name it, as after an import or while a person is asked."""
    if ref.state.status == Status.SUSPENDED and chain.last is not None:
        return asking_role(chain.last.payload)
    if ref.state.status not in (Status.IDLE, Status.QUEUED):
        return None
    try:
        return loaded_thread.find_next_role(store, ref, chain)
    except RolecallError:
        return None  # the workflow cannot be read here, but the rest of the thread can


# -- its steps --


def head_number(ref: ThreadRef, chain: Chain) -> int:
    if chain.last is None:
        return 0
    # The predecessor's steps store no number; the import counted them.
    return int(chain.last.payload["number"] or ref.state.steps or chain.last.number)


def number_steps(ref: ThreadRef, chain: Chain) -> Iterator[tuple[Step, int]]:
    """Yield each step with its number, newest first."""
    number = head_number(ref, chain)
    for step in chain:
        yield step, number
        number -= 1


def start_entry(store: Store, start: thread.Start) -> StartEntry:
    created = store.get(start.id).created
    return {"id": start.id, "workflow": start.workflow, "prompt": start.prompt, "timestamp": created}


def step_entry(step: Step, number: int) -> StepEntry:
    payload, output = step.payload, step.output
    reported: ReportedUsage | None = payload.get("usage")
    found: StepEntry = {
        "id": step.id,
        "role": step.role,
        "output": output,
        "detail": step.detail_id,
        "agent": step.agent,
        "timestamp": payload["completed_at"],
        "durationMs": payload["completed_at"] - payload["started_at"],
        "number": number,
        "status": _status_in(output),
        "session": payload.get("session"),
        "usage": reported or {},
    }
    if "reused" in payload:
        found["reused"] = payload["reused"]
    if saved := step.saved:
        found["saved"] = saved
    if "sandbox" in payload:
        found["sandbox"] = payload["sandbox"]
    if tree := step.tree:
        found["changes"], found["moreChanges"] = [change.dump() for change in tree.changed], tree.more
    return found


def file_changes(store: Store, ref: ThreadRef, newest: int | None = None) -> list[ChangedFiles]:
    """Return the files changed by each of the `newest` steps, oldest step first, as far as the steps can be read."""
    found: list[ChangedFiles] = []
    with suppress(NotFound, Damaged):
        for step, number in islice(number_steps(ref, Chain(store, ref.head)), newest):
            if (tree := step.tree) and tree.changed:
                changes = [change.dump() for change in tree.changed]
                place: ChangedFiles = {
                    "step": step.id,
                    "number": number,
                    "role": step.role,
                    "changes": changes,
                    "moreChanges": tree.more,
                }
                found.append(place)
    return found[::-1]


def _status_in(output: Any) -> str | None:
    found = output.get("$status", output.get("status")) if isinstance(output, dict) else None
    return found if isinstance(found, str) else None


def step_page(store: Store, ref: ThreadRef, *, before: str | None = None, max: int) -> StepPage:
    """Return the newest `max` steps, or those before the step `before`, newest first, each with its failed
    attempts. Only these steps are read, however long the thread is. In the reply, `before` is None if no earlier
    steps are left."""
    chain = Chain(store, before or ref.head)
    start = chain.start.id
    number = Step(store, store.get(before)).number if before else head_number(ref, chain)
    found: list[ListedStep] = []
    for step in islice(chain, 1 if before else 0, None):
        number -= bool(found) or bool(before)
        found.append({**step_entry(step, number), **_origins(store, step, with_texts=False)})
        if len(found) == max:
            break
    is_more = bool(found) and number > 1 and Step(store, store.get(found[-1]["id"])).payload["prev"]
    return {"start": start, "steps": found, "before": found[-1]["id"] if is_more else None}


def step_named(store: Store, text: str, at: str | None = None) -> tuple[str, ThreadRef | None]:
    """Return the node that `STEP`, `THREAD` or `THREAD#N` names, and the thread if `text` names one. A thread without a
    number means the head of the thread. `at` replaces `#N`, and can also be an id or `start`."""
    name, _, number = text.partition("#")
    if not is_thread_id(name.upper()) and not number and at is None:
        try:
            return store.resolve(name), None
        except (NotFound, UsageError):
            pass  # not a node but the short form of a thread's id
    ref = thread.find(store, name)
    place = at or number
    if not place:
        return ref.head, ref
    chain = Chain(store, ref.head)
    if place in ("start", "0"):
        return chain.start.id, ref
    for step, count in number_steps(ref, chain):
        is_beginning = len(place) > 3 and step.id.startswith(place.upper())
        if is_beginning or place in (str(count), f"#{count}"):
            return step.id, ref
    raise NotFound(
        f"thread {ref.id} has no step {place!r}", hint=Hint("List its steps", "list_steps", thread=ref.id)
    )


def details_named(store: Store, text: str) -> StepDetails | AttemptEntry:
    """Return everything about the step or the failed attempt that `text` names."""
    node = store.get(step_named(store, text)[0])
    if not isinstance(node.payload, dict) or "role" not in node.payload or "start" not in node.payload:
        raise UsageError(
            f"{node.id} is neither a step nor an attempt",
            hint=Hint("List a thread's steps", "list_steps", thread="THREAD"),
        )
    if "prev" not in node.payload:
        return next(attempts_from(store, node.id, with_texts=True))
    step = Step(store, node)
    return details(store, step, step.number)


def details(store: Store, step: Step, number: int) -> StepDetails:
    """Return everything about a step, including the nodes that the step refers to."""
    payload = step.payload
    return {
        **step_entry(step, number),
        "body": step.body,
        "raw": step.raw,
        "prompt": step.prompt,
        **_work_of(store, payload.get("detail")),
        "cwd": payload.get("cwd", ""),
        "omitted": list(step.tree.left.omitted) if step.tree else [],
        "sessionReason": payload.get("session_reason", ""),
        **_origins(store, step, with_texts=True),
    }


def _origins(store: Store, step: Step, *, with_texts: bool) -> StepOrigins:
    """Return what led to a step: the edge's prompt, the failed attempts, and who played the role."""
    payload = step.payload
    found: StepOrigins = {
        "edgePrompt": payload.get("edge_prompt", ""),
        "attempts": list(attempts_from(store, payload.get("attempt"), with_texts=with_texts)),
        "children": payload.get("children", []),
    }
    if payload.get("by"):
        found["by"] = payload["by"]
    return found


def _work_of(store: Store, node: str | None) -> AgentWork:
    """Return details of the agent's work. The predecessor may have stored a text or another value instead of an
    object."""
    kept: Any = store.get(node).payload if node else {}
    if not isinstance(kept, dict):
        kept = {} if isinstance(kept, str) else {"notes": [str(kept)]}
    turns = thread.turns_of(store, node)
    return {"files": [], "ending": "", "reason": "", "notes": [], **kept, "turns": turns}


def attempts_from(store: Store, node: str | None, *, with_texts: bool) -> Iterator[AttemptEntry]:
    """Yield a failed attempt and the attempts before it, newest first."""
    while node is not None:
        payload = store.get(node).payload
        completed = payload.get("completed_at", payload["started_at"])
        reported: ReportedUsage | None = payload.get("usage")
        found: AttemptEntry = {
            "id": node,
            "role": payload["role"],
            "agent": payload["agent"],
            "error": payload.get("error", ""),
            "ending": payload.get("ending", ""),
            "session": payload.get("session"),
            "usage": reported or {},
            "timestamp": completed,
            "durationMs": completed - payload["started_at"],
        }
        if with_texts:
            raw, prompt = payload.get("raw"), payload.get("prompt")
            found["raw"] = store.get(raw).payload if raw else ""
            found["prompt"] = thread.prompt_text(store, prompt) if prompt else ""
            found["turns"] = thread.turns_of(store, payload.get("detail"))
            if "sandbox" in payload:
                found["sandbox"] = payload["sandbox"]
            if tree := load_tree(payload.get("tree")):
                found["changes"], found["moreChanges"] = [change.dump() for change in tree.changed], tree.more
        yield found
        node = payload.get("previous")


def result(store: Store, ref: ThreadRef) -> ThreadResult | None:
    """Return the result of a thread: its last answer, the files that its agents reported, and its usage. Return None if
    no role has answered yet."""
    steps = [step for step in Chain(store, ref.head) if not step.role.startswith("$")]
    if not steps:
        return None
    last = steps[0]
    files = (
        file for step in reversed(steps) for file in _work_of(store, step.payload.get("detail"))["files"]
    )
    used = card(store, ref)["usage"]
    used.pop("roles", None)
    return {
        "step": last.id,
        "role": last.role,
        "status": _status_in(last.output),
        "output": last.output,
        "text": report.shorten(last.body.strip(), report.SHORT),
        "files": list(dict.fromkeys(files)),
        "usage": used,
    }


def gather(store: Store, ref: ThreadRef) -> tuple[ReportedThread, list[StepDetails]]:
    """Return a thread's card and all its steps in full, oldest first, for a report."""
    chain, known = Chain(store, ref.head), read_note(store, ref.id)
    attempts = list(attempts_from(store, known.attempt if known else None, with_texts=True))
    whole: ReportedThread = {**card(store, ref), "prompt": chain.start.prompt, "attempts": attempts}
    return whole, [details(store, step, number) for step, number in number_steps(ref, chain)][::-1]


# -- reading within a quota --


def read(
    store: Store,
    ref: ThreadRef,
    *,
    quota: int,
    before: str | None = None,
    with_start: bool = True,
    with_members: bool = False,
    phrase: Callable[[Hint], str] = Hint.call,
) -> ReadPage:
    """Render a thread as Markdown of at most `quota` characters. Show the newest steps that fit, oldest first, but at
    least one step. Leave out the step `before` and all later steps. `with_members` shows the members of groups in full.
    `phrase` words the hint on how to read more."""
    chain = Chain(store, ref.head)
    steps = number_steps(ref, chain)
    # The steps of a member continue the numbers of the steps of the parent thread.
    member = chain.start.member
    above = Chain(store, member.group.above).last if member else None
    first = above.number + 1 if above else 1
    if before is not None:
        _skip_to(store, steps, before, ref)
    head = ""
    if with_start:  # a long task is cut to leave room for the steps, which matter more
        head = report.start_markdown(entry(store, ref), report.shorten(chain.start.prompt, quota // 2))

    def notice(step: str, earlier: int) -> str:
        more = phrase(Hint("Read them", "read_earlier", thread=ref.id, step=step))
        return f"*({report.plural(earlier, 'earlier step')}, load with {more})*"

    def show(view: ReadStep, role_prompt: str) -> str:
        return report.step_markdown(
            view, role_prompt=role_prompt, phrase=phrase, unfolded=None if with_members else 0
        )

    roles: dict[str, JsonObject] = {}
    chosen: list[ReadStep] = []
    used, problem = len(head), None
    try:
        for step, number in steps:
            view = _brief(store, step, number, roles)
            if member and "{{" in view["rolePrompt"]:
                about = {"item": member.item, "number": member.number, "count": member.group.size}
                view["rolePrompt"] = template.render(view["rolePrompt"], about)
            role_prompt = "" if any(step.role == other["role"] for other in chosen) else view["rolePrompt"]
            used += len(_SEPARATOR) + len(show(view, role_prompt))
            room = len(_SEPARATOR) + len(notice(step.id, number)) if number > first else 0
            if chosen and used + room > quota:
                break
            chosen.append(view)
    except (NotFound, Damaged) as error:
        if not chosen:
            raise
        problem = error.message

    earlier = chosen[-1]["number"] - first if chosen else 0
    parts = [head] if head else []
    if problem:
        parts.append(f"*({earlier} earlier steps cannot be read: {problem})*")
    elif earlier:
        parts.append(notice(chosen[-1]["id"], earlier))
    seen: set[str] = set()
    for view in reversed(chosen):
        role_prompt = "" if view["role"] in seen else view["rolePrompt"]
        parts.append(show(view, role_prompt))
        seen.add(view["role"])
    return {
        "thread": ref.id,
        "text": _SEPARATOR.join(parts),
        "steps": len(chosen),
        "earlier": earlier,
        "before": chosen[-1]["id"] if earlier else None,
        "problem": problem,
    }


def _skip_to(store: Store, steps: Iterator[tuple[Step, int]], wanted: str, ref: ThreadRef) -> None:
    """Advance past the step that `wanted` names by id, by the beginning of its id, or by number."""
    if wanted.lstrip("#").isdecimal() and len(wanted) < NODE_ID_LENGTH:
        found = any(number == int(wanted.lstrip("#")) for _, number in steps)
    else:
        node = store.resolve(wanted)
        found = any(step.id == node for step, _ in steps)
    if not found:
        raise NotFound(
            f"step {wanted!r} is not in thread {ref.id}",
            hint=Hint("List its steps", "list_steps", thread=ref.id),
        )


def _brief(store: Store, step: Step, number: int, roles: dict[str, JsonObject]) -> ReadStep:
    """Return a step as `read` shows it, with the prompt of the step's role in the workflow that the step followed.
    `roles` caches the roles of workflows that have been read."""
    start = step.payload["start"]
    if start not in roles:
        try:
            roles[start] = store.get(store.get(start).payload["workflow"]).payload.get("roles") or {}
        except (NotFound, Damaged):
            roles[start] = {}  # the steps can be read without the workflow
    return {
        **step_entry(step, number),
        **_work_of(store, step.payload.get("detail")),
        "body": step.body,
        **_origins(store, step, with_texts=False),
        "rolePrompt": str((roles[start].get(step.role) or {}).get("goal") or ""),
    }


# -- two threads --


def difference(store: Store, one: ThreadRef, other: ThreadRef) -> ThreadDifference:
    """Return the last step that two threads share, and the differences after that step, step by step."""

    def compare(ours: str, theirs: str) -> list[str]:
        if ours == theirs:
            return []
        return list(
            difflib.unified_diff(ours.splitlines(), theirs.splitlines(), one.id, other.id, lineterm="")
        )

    left, right = Chain(store, one.head), Chain(store, other.head)
    ours, theirs = list(number_steps(one, left))[::-1], list(number_steps(other, right))[::-1]
    shared = 0
    while shared < min(len(ours), len(theirs)) and ours[shared][0].id == theirs[shared][0].id:
        shared += 1
    common = ours[shared - 1][0].id if shared else None
    if common is None and left.start.id == right.start.id:
        common = left.start.id

    # Steps of the same role are paired in order.
    sides = [[found for found in side[shared:] if found[0].role != thread.FORK] for side in (ours, theirs)]
    one_roles, other_roles = ([step.role for step, _ in side] for side in sides)
    pairs: list[tuple[tuple[Step, int] | None, tuple[Step, int] | None]] = []
    matcher = difflib.SequenceMatcher(None, one_roles, other_roles, autojunk=False)
    for kind, at, end, other_at, other_end in matcher.get_opcodes():
        if kind == "equal":
            pairs += zip(sides[0][at:end], sides[1][other_at:other_end], strict=True)
        else:
            pairs += [(found, None) for found in sides[0][at:end]]
            pairs += [(None, found) for found in sides[1][other_at:other_end]]
    steps: list[StepDifference] = []
    for pair in pairs:
        mine, yours = (found[0] if found else None for found in pair)
        outputs = (report.pretty(step.output) if step else "" for step in (mine, yours))
        bodies = (step.body if step else "" for step in (mine, yours))
        entries: list[NamedStep | None] = [
            {"id": found[0].id, "role": found[0].role, "number": found[1]} if found else None
            for found in pair
        ]
        number = next(found[1] for found in pair if found)
        steps.append(
            {"number": number, "steps": entries, "output": compare(*outputs), "body": compare(*bodies)}
        )
    return {
        "threads": [one.id, other.id],
        "common": common,
        "commonSteps": shared,
        "prompt": compare(left.start.prompt, right.start.prompt),
        "steps": steps,
    }
