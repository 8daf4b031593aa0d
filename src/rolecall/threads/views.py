"""What a thread is, how it stands and what its steps did, as plain JSON values for every front door.

Reads refs and chains and changes nothing. What is said of a thread at a glance comes from its ref and its
newest nodes, so it costs the same for one step as for a thousand. On the command line's read path.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from rolecall.errors import Damaged, Hint, NotFound, RolecallError, UsageError
from rolecall.store.ids import NODE_ID_LENGTH, is_thread_id, thread_time
from rolecall.store.store import Store
from rolecall.threads import report, thread
from rolecall.threads.state import Status, ThreadRef, read_note
from rolecall.threads.thread import Chain, Step

_SEPARATOR = "\n\n---\n\n"
_NEWEST_ATTEMPTS = 20


# -- a thread --


def entry(store: Store, ref: ThreadRef) -> dict[str, Any]:
    """A thread as its ref alone tells it."""
    state, status = ref.state, status_of(store, ref)
    if not state.name and (known := thread.with_facts(store, ref).state).cwd is not None:  # uwf wrote it
        state = known._replace(role=known.role or role_due(store, ref, Chain(store, ref.head)))
    is_damaged = status == Status.DAMAGED
    return {
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
        "folders": state.folders,
        "continue": None if is_damaged else thread.continuation(ref, is_held=status == Status.RUNNING),
    }


def damaged(known: Mapping[str, Any], error: RolecallError) -> dict[str, Any]:
    """An entry of a thread whose newest nodes cannot be read."""
    return {**known, "status": Status.DAMAGED.value, "reason": error.message, "continue": None}


def status_of(store: Store, ref: ThreadRef) -> Status:
    """The status of a thread; `crashed` if it says `running` and its process is gone."""
    if ref.state.status != Status.RUNNING:
        return ref.state.status
    from rolecall.store import holder

    return Status.RUNNING if holder.is_alive(ref.state.lease, now=store.now()) else Status.CRASHED


def card(store: Store, ref: ThreadRef) -> dict[str, Any]:
    """What a thread is and how it stands, from its ref and its newest nodes alone."""
    try:
        chain = Chain(store, ref.head)
        start, last = chain.start, chain.last
        totals: Mapping[str, Any] = last.payload["totals"] if last else {}
    except (NotFound, Damaged) as error:
        return damaged(entry(store, ref), error) | {"done": False, "background": None}
    attempts, pending = _attempts_now(store, ref)
    for attempt in attempts:
        used = thread.counted(attempt["usage"], ms=attempt["durationMs"], steps=0)
        totals = thread.add_totals(totals, attempt["role"], used)
    known = entry(store, ref)
    return {
        **known,
        "currentRole": known["currentRole"] or role_due(store, ref, chain),
        "done": known["status"] in thread.ENDED,
        "background": None,
        "steps": head_number(ref, chain),
        "usage": totals,
        "limits": _limits(store, ref, start),
        "agents": {role: bound["name"] for role, bound in ref.state.agents.items()},
        "attempts": [_brief_attempt(attempt) for attempt in attempts[:_NEWEST_ATTEMPTS]],
        "pending": pending,
        "lease": _holder(store, ref),
        "forkedFrom": ref.state.forked_from,
        "forkedThread": ref.state.forked_thread,
        "cwd": start.cwd,
    }


def _limits(store: Store, ref: ThreadRef, start: thread.Start) -> dict[str, Any]:
    try:
        of_workflow = store.get(start.workflow).payload.get("limits") or {}
    except (NotFound, Damaged):
        of_workflow = {}
    return {**of_workflow, **start.limits, **ref.state.limits}


def _holder(store: Store, ref: ThreadRef) -> dict[str, Any] | None:
    lease = ref.state.lease
    if not lease:
        return None
    from rolecall.store import holder

    alive = holder.is_alive(lease, now=store.now())
    return {
        "holder": holder.describe(lease),
        "pid": lease.get("pid"),
        "alive": alive,
        "deadline": lease.get("deadline"),
    }


def _attempts_now(store: Store, ref: ThreadRef) -> tuple[list[dict[str, Any]], dict[str, Any] | None]:
    """Failed attempts that no step has taken in yet, newest first, and the one that runs now."""
    known = read_note(store, ref.id)
    if known is None:
        return [], None
    note, pending = known.note, None
    if note.agent:
        pending = {
            "role": note.role,
            "agent": note.agent,
            "session": note.session or None,
            "startedAt": note.started_at,
            "answered": bool(note.raw),
        }
    return list(attempts_from(store, known.attempt, with_texts=False)), pending


def _brief_attempt(attempt: Mapping[str, Any]) -> dict[str, Any]:
    kept = ("hash", "role", "agent", "error", "ending", "session", "usage", "timestamp", "durationMs")
    return {key: attempt[key] for key in kept}


def role_of(store: Store, ref: ThreadRef) -> str | None:
    """The role that is due, or that waits for somebody; None when the thread has ended."""
    if ref.state.has_ended:
        return None
    return ref.state.role or role_due(store, ref, Chain(store, ref.head))


def asking_role(head: Any) -> str | None:
    """The role after which a suspended thread waits, from the payload of its head."""
    role = head.get("role") if isinstance(head, dict) else None
    return role if isinstance(role, str) and not role.startswith("$") else None


def role_due(store: Store, ref: ThreadRef, chain: Chain) -> str | None:
    """The role that is due where the ref does not say it: after a fork, or while somebody is asked."""
    status = ref.state.status
    if status == Status.SUSPENDED and chain.last is not None:
        return asking_role(chain.last.payload)
    if status not in (Status.IDLE, Status.QUEUED):
        return None
    from rolecall.threads.turn import Turn, next_of
    from rolecall.workflow.registry import load_node
    from rolecall.workflow.route import Next

    try:
        way = next_of(Turn(ref.id, chain, load_node(store, chain.start.workflow)))
    except RolecallError:
        return None  # the workflow cannot be read here; what is known of the thread still can
    return way.role if isinstance(way, Next) else None


# -- its steps --


def head_number(ref: ThreadRef, chain: Chain) -> int:
    if chain.last is None:
        return 0
    # The predecessor's steps carry no number; how many there are was counted when they were imported.
    return int(chain.last.payload["number"] or ref.state.steps or chain.last.number)


def numbered(ref: ThreadRef, chain: Chain) -> Iterator[tuple[Step, int]]:
    number = head_number(ref, chain)
    for step in chain:
        yield step, number
        number -= 1


def start_entry(store: Store, start: thread.Start) -> dict[str, Any]:
    created = store.get(start.id).created
    return {"hash": start.id, "workflow": start.workflow, "prompt": start.prompt, "timestamp": created}


def step_entry(step: Step, number: int) -> dict[str, Any]:
    payload, output = step.payload, step.output
    return {
        "hash": step.id,
        "role": step.role,
        "output": output,
        "detail": step.detail_id,
        "agent": step.agent,
        "timestamp": payload["completed_at"],
        "durationMs": payload["completed_at"] - payload["started_at"],
        "number": number,
        "status": _status_in(output),
        "session": payload.get("session"),
        "usage": payload.get("usage") or {},
    }


def _status_in(output: Any) -> str | None:
    if not isinstance(output, dict):
        return None
    found = output.get("$status", output.get("status"))
    return found if isinstance(found, str) else None


def step_named(store: Store, text: str, at: str | None = None) -> tuple[str, ThreadRef | None]:
    """The node that `STEP`, `THREAD` or `THREAD#N` names; of a thread alone its head. `at` takes the place
    of `#N` and may be an id or `start` as well."""
    name, _, number = text.partition("#")
    if not is_thread_id(name.upper()) and not number and at is None:
        try:
            return store.resolve(name), None
        except (NotFound, UsageError):
            pass  # not a node: the short form of a thread's id
    ref = thread.find(store, name)
    place = at or number
    if not place:
        return ref.head, ref
    chain = Chain(store, ref.head)
    if place in ("start", "0"):
        return chain.start.id, ref
    for step, count in numbered(ref, chain):
        if place in (str(count), f"#{count}", step.id) or (
            len(place) > 3 and step.id.startswith(place.upper())
        ):
            return step.id, ref
    raise NotFound(
        f"thread {ref.id} has no step {place!r}",
        hint=Hint("List its steps", "list_steps", thread=ref.id),
    )


def details_named(store: Store, text: str) -> dict[str, Any]:
    """Everything about the step or the failed attempt that `text` names."""
    node = step_named(store, text)[0]
    payload = store.get(node).payload
    if not isinstance(payload, dict) or "role" not in payload or "start" not in payload:
        raise UsageError(
            f"{node} is neither a step nor an attempt",
            hint=Hint("List a thread's steps", "list_steps", thread="THREAD"),
        )
    if "prev" not in payload:
        return attempt_view(store, node, payload, with_texts=True)
    step = Step(store, store.get(node))
    return details(store, step, step.number)


def details(store: Store, step: Step, number: int) -> dict[str, Any]:
    """Everything about a step, what it refers to included."""
    payload = step.payload
    return {
        **step_entry(step, number),
        "body": step.body,
        "raw": step.raw,
        "edgePrompt": payload.get("edge_prompt", ""),
        "prompt": step.prompt,
        **_detail(store, payload.get("detail")),
        "cwd": payload.get("cwd", ""),
        "sessionReason": payload.get("session_reason", ""),
        "children": payload.get("children", []),
        "attempts": list(attempts_from(store, payload.get("attempt"), with_texts=True)),
    }


def _detail(store: Store, node: str | None) -> dict[str, Any]:
    kept = store.get(node).payload if node else {}
    if not isinstance(kept, dict):
        kept = {} if isinstance(kept, str) else {"notes": [str(kept)]}
    rest = {key: value for key, value in kept.items() if key != "turns"}
    return {
        "files": [],
        "ending": "",
        "reason": "",
        "notes": [],
        **rest,
        "turns": thread.turns_of(store, node),
    }


def attempts_from(store: Store, node: str | None, *, with_texts: bool) -> Iterator[dict[str, Any]]:
    """A failed attempt and those before it, newest first."""
    while node is not None:
        payload = store.get(node).payload
        yield attempt_view(store, node, payload, with_texts=with_texts)
        node = payload.get("previous")


def attempt_view(store: Store, node: str, payload: Mapping[str, Any], *, with_texts: bool) -> dict[str, Any]:
    view = {
        "hash": node,
        "role": payload["role"],
        "agent": payload["agent"],
        "error": payload.get("error", ""),
        "ending": payload.get("ending", ""),
        "session": payload.get("session"),
        "usage": payload.get("usage") or {},
        "timestamp": payload.get("completed_at", payload["started_at"]),
        "durationMs": payload.get("completed_at", payload["started_at"]) - payload["started_at"],
    }
    if not with_texts:
        return view
    raw, prompt, detail = payload.get("raw"), payload.get("prompt"), payload.get("detail")
    return {
        **view,
        "raw": store.get(raw).payload if raw else "",
        "prompt": thread.prompt_text(store, prompt) if prompt else "",
        "turns": thread.turns_of(store, detail),
    }


def result(store: Store, ref: ThreadRef) -> dict[str, Any] | None:
    """The result of a thread: its last answer, the files its agents reported, and its usage. None before any role has
    answered."""
    chain = Chain(store, ref.head)
    steps = [step for step in chain if not step.role.startswith("$")]
    if not steps:
        return None
    last = steps[0]
    reported = (
        file for step in reversed(steps) for file in _detail(store, step.payload.get("detail"))["files"]
    )
    return {
        "step": last.id,
        "role": last.role,
        "status": _status_in(last.output),
        "output": last.output,
        "text": report.shortened(last.body.strip(), report.SHORT),
        "files": list(dict.fromkeys(reported)),
        "usage": {key: value for key, value in card(store, ref)["usage"].items() if key != "roles"},
    }


def gather(store: Store, ref: ThreadRef) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A thread's card and all its steps in full, oldest first: what a report is made of."""
    chain = Chain(store, ref.head)
    known = read_note(store, ref.id)
    waiting = attempts_from(store, known.attempt if known else None, with_texts=True)
    whole = card(store, ref) | {"prompt": chain.start.prompt, "attempts": list(waiting)}
    return whole, [details(store, step, number) for step, number in numbered(ref, chain)][::-1]


# -- reading within a quota --


def read(
    store: Store,
    ref: ThreadRef,
    *,
    quota: int,
    before: str | None = None,
    with_start: bool = True,
    phrase: Callable[[Hint], str] = Hint.call,
) -> dict[str, Any]:
    """A thread as Markdown of at most `quota` characters: the newest steps that fit, in their order, and at
    least one; `before` leaves out a step and what came after it; `phrase` says how to read more."""
    ident = ref.id
    chain = Chain(store, ref.head)
    steps = numbered(ref, chain)
    if before is not None:
        _skip_to(store, steps, before, ident)
    head = _start_section(store, ref, chain, quota) if with_start else ""
    goals = _Goals(store)
    chosen: list[dict[str, Any]] = []
    problem = None
    try:
        for view in _within(store, steps, goals, quota=quota - len(head), ident=ident, phrase=phrase):
            chosen.append(view)
    except (NotFound, Damaged) as error:
        if not chosen:
            raise
        problem = error.message
    earlier = chosen[-1]["number"] - 1 if chosen else 0
    parts = [head] if head else []
    if problem:
        parts.append(f"*({earlier} earlier steps cannot be read: {problem})*")
    elif earlier:
        parts.append(_notice(ident, chosen[-1]["hash"], earlier, phrase))
    told: set[str] = set()
    for view in reversed(chosen):
        goal = "" if view["role"] in told else goals.of(view)
        parts.append(report.step_markdown(view, goal=goal, phrase=phrase))
        told.add(view["role"])
    return {
        "thread": ident,
        "text": _SEPARATOR.join(parts),
        "steps": len(chosen),
        "earlier": earlier,
        "before": chosen[-1]["hash"] if earlier else None,
        "problem": problem,
    }


def _skip_to(store: Store, steps: Iterator[tuple[Step, int]], wanted: str, ident: str) -> None:
    """Walk past the step that `wanted` names, by id, by the beginning of one, or by number."""
    if wanted.lstrip("#").isdecimal() and len(wanted) < NODE_ID_LENGTH:
        found = any(number == int(wanted.lstrip("#")) for _, number in steps)
    else:
        node = store.resolve(wanted)
        found = any(step.id == node for step, _ in steps)
    if not found:
        raise NotFound(
            f"step {wanted!r} is not in thread {ident}",
            hint=Hint("List its steps", "list_steps", thread=ident),
        )


def _start_section(store: Store, ref: ThreadRef, chain: Chain, quota: int) -> str:
    """The task; a long one gives way to the steps, which are what is read for."""
    prompt = chain.start.prompt
    return report.start_markdown(entry(store, ref), report.shortened(prompt, quota // 2))


def _within(
    store: Store,
    newest_first: Iterable[tuple[Step, int]],
    goals: "_Goals",
    *,
    quota: int,
    ident: str,
    phrase: Callable[[Hint], str],
) -> Iterator[dict[str, Any]]:
    """The newest steps whose text fits; the newest of all whatever its size."""
    used, told = 0, set[str]()
    for step, number in newest_first:
        attempts = list(attempts_from(store, step.payload.get("attempt"), with_texts=False))
        view = {
            **step_entry(step, number),
            **_detail(store, step.payload.get("detail")),
            "body": step.body,
            "edgePrompt": step.payload.get("edge_prompt", ""),
            "attempts": attempts,
            "children": step.payload.get("children", []),
            "start": step.payload["start"],
        }
        text = report.step_markdown(view, goal="" if step.role in told else goals.of(view), phrase=phrase)
        notice = len(_SEPARATOR) + len(_notice(ident, step.id, number, phrase)) if number > 1 else 0
        used += len(_SEPARATOR) + len(text)
        if told and used + notice > quota:
            return
        yield view
        told.add(step.role)


def _notice(ident: str, step: str, earlier: int, phrase: Callable[[Hint], str]) -> str:
    steps = "step" if earlier == 1 else "steps"
    more = phrase(Hint("Read them", "read_earlier", thread=ident, step=step))
    return f"*({earlier} earlier {steps}, load with {more})*"


class _Goals:
    """What each role is for, from the workflow that a step was played under."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._roles: dict[str, Mapping[str, Any]] = {}

    def _read(self, start: str) -> Mapping[str, Any]:
        try:
            workflow = self._store.get(self._store.get(start).payload["workflow"])
        except (NotFound, Damaged):
            return {}  # a goal is an ornament here: without the workflow the steps can still be read
        return workflow.payload.get("roles") or {}

    def of(self, view: Mapping[str, Any]) -> str:
        start = view["start"]
        if start not in self._roles:
            self._roles[start] = self._read(start)
        return str((self._roles[start].get(view["role"]) or {}).get("goal") or "")


# -- two threads --


def difference(store: Store, one: ThreadRef, other: ThreadRef) -> dict[str, Any]:
    """Where two threads part, and how what follows differs, step by step."""
    names = (one.id, other.id)
    left, right = (Chain(store, ref.head) for ref in (one, other))
    ours, theirs = list(numbered(one, left))[::-1], list(numbered(other, right))[::-1]
    shared = 0
    while shared < min(len(ours), len(theirs)) and ours[shared][0].id == theirs[shared][0].id:
        shared += 1
    common = ours[shared - 1][0].id if shared else None
    if common is None and left.start.id == right.start.id:
        common = left.start.id
    return {
        "threads": list(names),
        "common": common,
        "commonSteps": shared,
        "prompt": _text_diff(left.start.prompt, right.start.prompt, names),
        "steps": list(_pairs(ours[shared:], theirs[shared:], names)),
    }


def _pairs(
    ours: list[tuple[Step, int]], theirs: list[tuple[Step, int]], names: tuple[str, str]
) -> Iterator[dict[str, Any]]:
    """The steps after the last common one, in pairs: steps of the same role are paired in order."""
    from difflib import SequenceMatcher

    left, right = ([found for found in side if found[0].role != thread.FORK] for side in (ours, theirs))
    roles = [[step.role for step, _ in side] for side in (left, right)]
    matcher = SequenceMatcher(None, roles[0], roles[1], autojunk=False)
    pairs: list[tuple[tuple[Step, int] | None, tuple[Step, int] | None]] = []
    for kind, at, end, other_at, other_end in matcher.get_opcodes():
        if kind == "equal":
            pairs += zip(left[at:end], right[other_at:other_end], strict=True)
        else:
            pairs += [(found, None) for found in left[at:end]]
            pairs += [(None, found) for found in right[other_at:other_end]]
    for pair in pairs:
        one, other = (found[0] if found else None for found in pair)
        yield {
            "number": next(found[1] for found in pair if found),
            "steps": [
                {"hash": found[0].id, "role": found[0].role, "number": found[1]} if found else None
                for found in pair
            ],
            "output": _text_diff(_pretty_output(one), _pretty_output(other), names),
            "body": _text_diff(one.body if one else "", other.body if other else "", names),
        }


def _pretty_output(step: Step | None) -> str:
    return report.pretty(step.output) if step else ""


def _text_diff(one: str, other: str, names: tuple[str, str]) -> list[str]:
    if one == other:
        return []
    from difflib import unified_diff

    return list(unified_diff(one.splitlines(), other.splitlines(), names[0], names[1], lineterm=""))
