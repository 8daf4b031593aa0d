"""Play a role with a group: start and run the group's members, which are threads of their own, and join their results.

The roster is stored before the first member starts, and the members' ids are derived from it. The same members are
therefore found again after a crash: finished members stay finished, and the others continue like any thread. `group.py`
decides what comes next. The join is one step of the parent.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from rolecall.agents.protocol import Cancel, Usage
from rolecall.errors import AgentError, Conflict, RolecallError, StorageError, UsageError
from rolecall.store import canonical, holder
from rolecall.store.backend import Ref
from rolecall.store.canonical import JsonObject
from rolecall.store.ids import NodeId, ThreadId
from rolecall.store.store import Draft, Store
from rolecall.threads import killing, lifecycle, thread, workfolder
from rolecall.threads.attempt import Attempt, StepResult
from rolecall.threads.commit import Outcome, commit, settle
from rolecall.threads.group import Amounts, Decision, Fate, GroupProgress, fate_of, load_progress, plan
from rolecall.threads.lease import Held
from rolecall.threads.loaded_thread import count_steps_for, suggest_more
from rolecall.threads.member_files import MemberFiles, note_result
from rolecall.threads.nested import sum_usage
from rolecall.threads.report import item_text
from rolecall.threads.setup import Setup, Watch, is_unpaid
from rolecall.threads.state import (
    GROUP,
    RESUME,
    QueuePlace,
    Status,
    ThreadRef,
    ThreadState,
    add,
    group_name,
    move,
    raise_limit,
    read_members,
    read_note,
    read_thread,
)
from rolecall.threads.storable import describe_usage
from rolecall.threads.thread import LIMITS, Chain, Roster
from rolecall.workflow.group import items_of, output_schema, role_of, status_of
from rolecall.workflow.model import MOST_MEMBERS, Group, dump_limits, member_roles
from rolecall.workflow.route import Suspended

if TYPE_CHECKING:
    from rolecall.threads.view_types import GroupMember, GroupOutput, MemberDetails, MemberStatus

LARGEST_ITEM = 1_000_000
"""The maximum size of an item, in bytes of JSON."""
MOST_TEXT = 100_000
"""The maximum number of characters that the step of a group repeats from its members' reports."""
_AGAIN = "Resuming would find the same list. Fork the thread before that step, or fork it with a corrected workflow"
_PAGE = 200
_STOP_MS = 5_000
"""The maximum time to wait for the processes of stopped members to record their agents' usage."""
_LOOK_SECONDS = 1.0
"""The interval between checks of whether members that other processes run have ended."""

Run = Callable[[str, Watch, Cancel], Awaitable[None]]
"""Takes a thread, a function that receives events, and `cancel`; runs a member until it ends, is suspended or is
interrupted."""


async def play(setup: Setup, run: Run, held: Held, attempt: Attempt, cancel: Cancel) -> Outcome:
    """Play the role with its group: run the members in this process, or queue them for the service."""
    files = MemberFiles(setup, attempt.loaded, held.ref(), attempt.role)
    try:
        ref = setup.store.ref(group_name(held.thread))
        if ref is None:
            await attempt.find_files()
            ref = _store_roster(setup, held, attempt, files)
        members = Members(setup, held, attempt, ref, files)
        return await (members.queue(cancel) if setup.queues_members else members.run(run, cancel))
    except UsageError as error:
        return settle(setup, held.ref(), Suspended(f"{attempt.role}: {error.explain()}"), RESUME)


def _store_roster(setup: Setup, held: Held, attempt: Attempt, files: MemberFiles) -> Ref:
    """Store the list of members before the first member starts. Raise `UsageError` if such a group cannot be formed."""
    store, loaded, way = setup.store, attempt.loaded, attempt.way
    role = loaded.role(way.role)
    group = role.group or Group()
    steps = loaded.messages.recent(count_steps_for(group.each)) if group.each else []
    try:
        items = items_of(group, start=loaded.start_view, steps=steps, steps_count=loaded.steps_count)
        # Find problems that would prevent asking the members, before anything incurs costs.
        count = len(items)
        if count > MOST_MEMBERS:
            raise UsageError(
                f"the list has {count:,} items, but a group can have at most {MOST_MEMBERS:,} members"
            )
        if isinstance(group.join, int) and 0 < count < group.join:
            raise UsageError(
                f"at least {group.join} members must be done, but the list has only {count} items"
            )
        is_template = not group.roles and any("{{" in text for text in (role.prompt, role.procedure))
        for number, item in enumerate(items, 1):
            if group.each and (size := len(canonical.encode(item))) > LARGEST_ITEM:
                raise UsageError(
                    f"item {number} has {size:,} bytes, but an item can have at most {LARGEST_ITEM:,}",
                    hint="Put long texts into files and list their paths.",
                )
            if is_template:
                role_of(loaded.workflow, way.role, number=number, count=count, item=item)
    except UsageError as error:
        raise UsageError(error.message, hint=f"{error.hint} {_AGAIN}".lstrip()) from None
    if items:
        for played in member_roles(loaded.workflow, way.role):
            files.plan(held.thread, played)

    draft, now = store.draft(), store.now()
    fields: dict[str, Any] = {"role": way.role, "above": held.head, "count": count, "at": now}
    if group.each:
        fields["items"] = draft.put_as(thread.ITEMS_SCHEMA, setup.mask.value(items))
    if way.prompt:
        fields["prompt"] = setup.mask.text(way.prompt)
    if way.location:
        fields["location"] = way.location
    roster = draft.put_as(thread.ROSTER_SCHEMA, fields)
    draft.put_schema(thread.STEP_SCHEMA)  # an external agent needs this schema to store the first step
    state: dict[str, Any] = {"deadline": now + int(group.deadline * 60_000)} if group.deadline else {}
    if attempt.note.tree:
        state["tree"] = attempt.note.tree
    draft.move(group_name(held.thread), None, roster, state)
    draft.event(held.thread, "group", {"role": way.role, "count": count, "group": roster})
    [ref] = draft.commit(durable=True)
    return ref


class Members:
    """The members of a group that plays a thread's role."""

    def __init__(self, setup: Setup, held: Held, attempt: Attempt, ref: Ref, files: MemberFiles) -> None:
        self._setup = setup
        self._store = setup.store
        self._held = held
        self._attempt = attempt
        self._loaded = attempt.loaded
        self._ref = ref
        self._files = files
        self._roster: Roster = thread.read_roster(self._store, ref.target or "")
        self._group = self._loaded.role(self._roster.role).group or Group()
        self._roles = member_roles(self._loaded.workflow, self._roster.role)
        self._items: list[Any] = self._store.get(self._roster.items).payload if self._roster.items else []
        self._state = held.ref().state
        """The parent's state, from which members take their agents."""
        self._reuse = self._state.reuse
        above = self._loaded.last
        is_first = above is None or above.role == thread.FORK or above.id == self._state.forked_from
        if self._reuse is None and self._state.forked_from and is_first:
            self._reuse = True  # the fork exists to continue the group's work
        limits = {
            **dump_limits(self._loaded.workflow.limits),
            **self._loaded.chain.start.limits,
            **self._state.limits,
        }
        self._limits: dict[str, float] = {key: limits[key] for key in LIMITS if key in limits}
        self._progress = GroupProgress(self._roster.size)

    # -- the two ways to play --

    async def run(self, run: Run, cancel: Cancel) -> Outcome:
        """Run the members in this process, as many at once as the group allows, and join their results."""
        if "standing" in self._ref.state:  # the stored progress is outdated from here on
            kept = {key: value for key, value in self._ref.state.items() if key not in ("standing", "seen")}
            self._ref = self._store.move(self._ref.name, self._ref, self._ref.target, kept, durable=False)
        about = {"role": self._roster.role, "count": self._roster.size, "group": self._roster.id}
        self._setup.watch("group", about)
        self._read_all()
        ready, elsewhere = deque(self._progress.open), set[int]()
        running: dict[asyncio.Task[None], int] = {}
        stops: dict[int, asyncio.Event] = {}
        stopped = asyncio.ensure_future(cancel.wait())
        try:
            while not stopped.done():
                decision = self._decide()
                if decision.stop:
                    await self._stop(decision.stop)
                if decision.join:
                    for stop in stops.values():
                        stop.set()
                    await asyncio.gather(*running, return_exceptions=True)
                    running, stops = {}, {}
                    if outcome := await self._join(decision.stop, cancel):
                        return outcome
                    ready, elsewhere = deque(self._progress.open), set()
                    continue
                if decision.suspend:
                    return self._suspend(decision)
                if decision.start:
                    draft = self._store.draft()
                    self._add(draft, decision.start)
                    draft.commit(durable=False)
                    ready += decision.start
                while ready and len(running) < self._group.at_once:
                    number = ready.popleft()
                    stops[number] = asyncio.Event()
                    running[asyncio.create_task(self._run_one(run, number, stops[number]))] = number
                if not (running or elsewhere):
                    if outcome := self._rest():
                        return outcome
                    ready = deque(self._progress.open)  # somebody has answered these members
                    continue
                seconds = [_LOOK_SECONDS] if elsewhere else []
                if deadline := self._ref.state.get("deadline"):
                    seconds.append(max(0.0, (deadline - self._store.now()) / 1000))
                ended, _ = await asyncio.wait(
                    {stopped, *running},
                    timeout=min(seconds, default=None),
                    return_when=asyncio.FIRST_COMPLETED,
                )
                for task in ended & running.keys():
                    number = running.pop(task)
                    del stops[number]
                    task.result()
                    if self._note(number) is Fate.OPEN:  # another process runs this member
                        elsewhere.add(number)
                if not ended:
                    ready += self._look_elsewhere(elsewhere)
        finally:
            stopped.cancel()
            for stop in stops.values():
                stop.set()
            await asyncio.gather(stopped, *running, return_exceptions=True)
        return self._interrupt()

    async def queue(self, cancel: Cancel) -> Outcome:
        """Queue members for the service. The parent then waits, without a process, until a member has ended."""
        is_joining = False
        while True:
            stored = self._ref.state.get("standing")
            if stored and not is_joining:
                self._progress = load_progress(stored)
                for number in [*self._progress.open, *self._progress.waits, *self._progress.short]:
                    self._note(number)
            else:
                self._read_all()
            decision = self._decide()
            if decision.stop:
                await self._stop(decision.stop)
            if decision.suspend:
                return self._suspend(decision)
            is_joining = decision.join
            if is_joining:
                outcome = await self._join(decision.stop, cancel)
            else:
                # Members that another process started, and that the service has not queued, are queued, too.
                granted = {}
                for number, amounts in self._progress.open.items():
                    ref = read_thread(self._store, self._id(number))
                    if ref is None or ref.state.status not in (Status.IDLE, Status.RUNNING):
                        continue
                    if not lifecycle.is_held(self._store, ref) and not thread.in_service(self._store, ref):
                        granted[number] = amounts
                outcome = self._rest({**granted, **decision.start})
            if outcome is not None:
                return outcome
            self._ref = self._store.ref(self._ref.name) or self._ref

    # -- the state of the members --

    def _id(self, number: int) -> ThreadId:
        return self._roster.member(self._held.thread, number)

    def _role(self, number: int) -> str:
        return self._roles[(number - 1) % len(self._roles)]

    def _decide(self) -> Decision:
        decision = plan(
            self._group,
            self._progress,
            now=self._store.now(),
            deadline=self._ref.state.get("deadline"),
            limits=self._limits,
            used=self._loaded.totals,
            own=lambda number: dump_limits(self._loaded.role(self._role(number)).limits),
        )
        if decision.lacks and self._group.on_limit == "suspend":
            self._progress.lacks = decision.lacks
        return decision

    def _read_all(self) -> None:
        """Read every started member, in the order in which the members reached their current status."""
        self._progress = GroupProgress(self._roster.size)
        for ref in sorted(read_members(self._store, self._held.thread), key=lambda ref: ref.ref.updated):
            self._note_ref(ref)
            self._progress.next = max(self._progress.next, (ref.state.member or 0) + 1)

    def _note(self, number: int) -> Fate:
        ref = read_thread(self._store, self._id(number))
        return Fate.OPEN if ref is None else self._note_ref(ref)

    def _note_ref(self, ref: ThreadRef) -> Fate:
        number, fate = ref.state.member or 0, fate_of(ref.state)
        is_retried = fate is Fate.FAILED and ref.state.status == Status.SUSPENDED
        if is_retried and ref.ref.updated <= self._ref.state.get("retry", 0):
            fate = Fate.SHORT
        amounts: Amounts = {key: ref.state.limits.get(key, 0) for key in self._limits}
        if self._limits and fate not in (Fate.OPEN, Fate.WAITS):
            reserved, used, last = amounts, self._usage_of(ref), Chain(self._store, ref.head).last
            amounts = {key: used.get(key, 0) for key in self._limits}
            is_reused = last is not None and last.reused and not last.payload.get("attempt")
            has_agent = not is_reused and (last is None or not is_unpaid(last.agent))
            if "cost" in amounts and "cost" not in used and has_agent:  # the cost may be the whole share
                amounts["cost"] = reserved["cost"]
        is_new = ref.ref.updated > self._ref.state.get("retry", 0)
        self._progress.note(number, fate, amounts=amounts, reason=ref.state.reason, is_new=is_new)
        if fate is not Fate.OPEN:
            body = {"status": fate.value, "reason": ref.state.reason}
            is_used = self._limits and fate is not Fate.WAITS
            self._tell(number, "over", body | ({"used": amounts} if is_used else {}))
        return fate

    def _usage_of(self, ref: ThreadRef) -> dict[str, float]:
        """Return the amounts that a member has used, including failed attempts that no step links to yet. A stopped
        member whose process has not recorded its agent's usage counts as having used all amounts reserved for it."""
        last, note = Chain(self._store, ref.head).last, read_note(self._store, ref.id)
        failed = thread.read_attempts(self._store, note.attempt if note else None)
        before = last.payload["totals"] if last else {}
        totals = thread.add_attempts(before, (attempt.payload for attempt in failed))
        used: dict[str, float] = {key: totals[key] for key in LIMITS if key in totals}
        if ref.state.has_ended and note is not None and note.note.agent:
            reserved = {key: ref.state.limits.get(key, 0) for key in self._limits if key != "steps"}
            used |= {key: max(used.get(key, 0), amount) for key, amount in reserved.items()}
        return used

    def _tell(self, number: int, kind: str, body: JsonObject) -> None:
        event = {"number": number, "thread": self._id(number), "kind": kind, "body": body}
        self._setup.watch("member", event)

    # -- running --

    def _add(self, draft: Draft, granted: Mapping[int, Amounts], queued: QueuePlace | None = None) -> None:
        for number, limits in granted.items():
            if number in self._progress.short or number in self._progress.open:
                ref = thread.find(self._store, self._id(number))
                state = ref.state.move_to(Status.IDLE, limits={**ref.state.limits, **limits})
                draft.event(ref.id, "resumed", {"limits": dict(limits)})
                if queued is not None:
                    state = state._replace(status=Status.QUEUED, service=queued)
                move(draft, ref, state)
            else:
                state = self._put_member(draft, number, limits, queued)
                self._progress.next = number + 1
            if queued is not None:
                lifecycle.enter_queue(draft, self._id(number), state, {"begun": True})
            self._progress.note(number, Fate.OPEN, amounts=limits)

    def _put_member(
        self, draft: Draft, number: int, limits: Amounts, queued: QueuePlace | None
    ) -> ThreadState:
        start, role, ident = self._loaded.chain.start, self._role(number), self._id(number)
        own: dict[str, Any] = {"number": number, "role": role}
        title = f"{role} {number}/{self._roster.size}"
        if self._roster.items:
            item = own["item"] = self._items[number - 1]
            title += f": {item_text(item)}"
        place = self._files.plan(ident, role)
        for kind, folder in place.folders.items():
            if queued is not None:  # the machine that runs the member must find its folders
                workfolder.make(kind, folder)
        fields = {"workflow": start.workflow, "prompt": "", "cwd": place.cwd}
        head = draft.put_as(thread.MEMBER_SCHEMA, {**fields, "group": self._roster.id, "member": own})
        of_role = {key: value for key, value in self._state.limits.items() if key.startswith(f"{role}.")}
        agents = self._state.agents
        turns = len(self._group.agents)
        bound = agents.get(f"{role}#{(number - 1) % turns + 1}" if turns else role)
        state = ThreadState(
            status=Status.IDLE if queued is None else Status.QUEUED,
            workflow=NodeId(start.workflow),
            name=self._loaded.workflow.name,
            title=thread.title_of(title),
            cwd=place.cwd,
            role=role,
            folders=place.folders,
            agent=self._state.agent,
            agents={role: bound} if bound else {},
            parent=ThreadId(self._held.thread),
            member=number,
            limits={**of_role, **limits},
            reuse=self._reuse,
            eval=self._state.eval,
            repeat=self._state.repeat,
            service=queued,
        )
        body = {"name": state.name, **({"folders": state.dump_folders()} if place.folders else {})}
        draft.event(ident, "started" if queued is None else "queued", body)
        add(draft, ident, head, state)
        self._tell(number, "started", {"title": state.title})
        return state

    async def _run_one(self, run: Run, number: int, stop: Cancel) -> None:
        """Run a member. Suspend it if a problem, such as a missing program, prevents asking its agent."""
        ident = self._id(number)
        try:
            await run(ident, partial(self._tell, number), stop)
        except Conflict:
            pass  # the member was killed, or another process runs it
        except StorageError:
            raise
        except RolecallError as error:
            ref = thread.find(self._store, ident)
            if not ref.state.is_over:
                way = Suspended(f"{self._role(number)}: {error.explain()}")
                settle(replace(self._setup, watch=partial(self._tell, number)), ref, way, RESUME)

    def _look_elsewhere(self, elsewhere: set[int]) -> list[int]:
        """Record the members that have ended in other processes. Return the members whose process is gone."""
        abandoned = []
        for number in sorted(elsewhere):
            ref = thread.find(self._store, self._id(number))
            is_held = lifecycle.is_held(self._store, ref)
            if self._note_ref(ref) is not Fate.OPEN:
                elsewhere.discard(number)
            elif not is_held:
                elsewhere.discard(number)
                abandoned.append(number)
        return abandoned

    async def _stop(self, reason: str) -> None:
        """End the unfinished members for good, and wait until the amounts that they have used are recorded."""
        numbers = [*self._progress.open, *self._progress.waits, *self._progress.short]
        leases: dict[ThreadId, JsonObject] = {}
        for number in numbers:
            ref = thread.find(self._store, self._id(number))
            with suppress(UsageError):  # the member has ended
                if self._setup.queues_members:  # the service ends the members' processes
                    ref, leases[ref.id] = lifecycle.kill(self._store, ref, reason, mask=self._setup.mask)
                    lifecycle.tell_service(ref)
                else:
                    killing.kill(self._store, ref, reason, mask=self._setup.mask)
        deadline = self._store.now() + _STOP_MS
        while (now := self._store.now()) < deadline and any(
            lease and holder.is_alive(lease, now=now) and not _is_recorded(self._store, one)
            for one, lease in leases.items()
        ):
            await asyncio.sleep(0.02)
        for number in numbers:
            self._note(number)

    # -- endings --

    def _suspend(self, decision: Decision) -> Outcome:
        reason, onward = decision.suspend, RESUME
        if key := decision.lacks:
            used = self._loaded.totals.get(key, 0) + self._progress.total(key)
            reached = suggest_more(key, self._limits[key], used, "the thread and its members have used", key)
            reason, onward = reached.reason, raise_limit(reached.more)
        return settle(self._setup, self._held.ref(), Suspended(f"{self._roster.role}: {reason}"), onward)

    def _rest(self, granted: Mapping[int, Amounts] | None = None) -> Outcome | None:
        """Let the parent wait for its members without a process. First queue the members in `granted`, with their
        limits. Return None if a member has moved in the meantime, so that the decision has to be made again."""
        ref = self._ref
        if granted is None:
            ref = self._store.ref(self._ref.name) or self._ref
            waiting = list(self._progress.waits)
            if any(self._note(number) is not Fate.WAITS for number in waiting):
                return None
        parent, draft = self._held.ref(), self._store.draft()
        if granted is not None:
            place = parent.state.service or QueuePlace(0, self._store.now())
            self._add(draft, granted, QueuePlace(place.priority, place.queued_at))
        open_, waits = len(self._progress.open), len(self._progress.waits)
        counted = [(open_, "at work"), (waits, "waiting for a person")]
        reason = f"{self._roster.role}: " + ", ".join(f"{count} {word}" for count, word in counted if count)
        kept = {**ref.state, "seen": ref.version + 1}
        if granted is not None:
            kept["standing"] = self._progress.dump()
            slot = self._store.ref(thread.slot_name(parent.state.name, parent.id))
            if slot is not None and "order" in slot.state:  # a fleet derives its next order's id from this
                kept["order"] = slot.state["order"]
        draft.move(ref.name, ref, ref.target, kept)
        if "seen" not in ref.state or not open_:
            draft.event(parent.id, Status.WAITING.value, {"reason": reason})
        move(draft, parent, parent.state.move_to(Status.WAITING, role=self._roster.role, reason=reason))
        try:
            draft.commit(durable=True)
        except Conflict:
            self._held.ref()  # raises if something other than the group has moved
            return None
        self._setup.watch(Status.WAITING.value, {"reason": reason})
        return Outcome(parent.id, parent.head, Status.WAITING, self._roster.role, reason)

    def _interrupt(self) -> Outcome:
        self._held.ref()
        return Outcome(self._held.thread, self._held.head, Status.IDLE, self._roster.role, "interrupted")

    async def _join(self, stopped: str, cancel: Cancel) -> Outcome | None:
        """Merge the members' files if the group merges them, and commit the step that joins the members' results.
        Return None if somebody has continued a member."""
        ref = self._store.ref(self._ref.name) or self._ref
        members: list[GroupMember] = []
        texts, used, usage = list[str](), Counter[str](), Usage()
        merged, saved = dict[int, ThreadRef](), list[Mapping[str, float]]()
        for one in self._read_results():
            if fate_of(one.state) is Fate.OPEN:
                self._note_ref(one)
                return None
            entry, text = self._result_of(one)
            if entry["status"] == "done" and self._group.merge == "queue":
                merged[one.state.member or 0] = one
            members.append(entry)
            texts.append(text)
            used.update(self._usage_of(one))
            saved.append(thread.get_savings(self._store, one))
            usage = usage.plus(sum_usage(self._store, one))
        for number in range(len(members) + 1, self._roster.size + 1):
            members.append({**self._entry(number, "stopped", ThreadId("")), "reason": stopped})
        try:
            for number, fate in (await self._files.merge(merged, cancel)).items():
                note_result(members[number - 1], fate)
        except AgentError:
            return self._interrupt()
        counted = Counter(entry["status"] for entry in members)
        done, set_aside = counted["done"], counted["set_aside"]
        output: GroupOutput = {
            "status": status_of(self._group, count=self._roster.size, done=done, set_aside=set_aside),
            "members": members,
            "count": self._roster.size,
            "done": done,
            "failed": counted["failed"],
            "stopped": counted["stopped"],
            "set_aside": set_aside,
        }
        attempt, body = self._attempt, _cut(texts)
        attempt.started_at = self._roster.at
        attempt.note = attempt.note._replace(usage=describe_usage(usage), tree=ref.state.get("tree", {}))
        await attempt.leave_files()
        steps = max(1, int(used["steps"]))
        amounts = {key: value for key, value in used.items() if value}
        result = StepResult(
            output,
            body,
            raw=body,
            schema=output_schema(self._loaded.workflow, self._roster.role),
            agent=GROUP,
            group=self._roster.id,
            used={**amounts, "steps": steps, "members": steps - 1},
            saved=thread.sum_amounts(saved),
        )

        def finish(draft: Draft, state: ThreadState) -> ThreadState:
            draft.move(ref.name, ref)
            return state

        try:
            return commit(attempt, result, self._held.ref(), finish=finish)
        except Conflict:
            self._held.ref()
            self._read_all()
            return None

    def _read_results(self) -> Iterator[ThreadRef]:
        """Yield the members in the order of their numbers, after fetching the nodes of their last steps."""
        page: list[ThreadRef] = []
        for ref in read_members(self._store, self._held.thread):
            page.append(ref)
            if len(page) == _PAGE:
                yield from self._fetch(page)
                page = []
        yield from self._fetch(page)

    def _fetch(self, page: list[ThreadRef]) -> list[ThreadRef]:
        self._store.fetch(ref.head for ref in page)
        heads = [self._store.follow(ref.head).payload for ref in page]
        self._store.fetch(head[key] for head in heads for key in ("output", "detail") if key in head)
        return page

    def _entry(self, number: int, status: MemberStatus, ident: ThreadId) -> GroupMember:
        details: MemberDetails = {}
        if self._roster.items:
            details["item"] = self._items[number - 1]
        if self._group.roles:
            details["role"] = self._role(number)
        return {"number": number, **details, "status": status, "output": None, "id": ident}

    def _result_of(self, ref: ThreadRef) -> tuple[GroupMember, str]:
        """Return a member's entry in the output of the group, and the member's report."""
        number, fate = ref.state.member or 0, fate_of(ref.state)
        status: MemberStatus = "failed"
        if fate is Fate.DONE:
            status = "done"
        elif fate is Fate.STOPPED:
            status = "stopped"
        entry = self._entry(number, status, ref.id)
        if worktree := ref.state.folders.get("worktree"):
            entry["branch"] = worktree.branch
        if fate is Fate.DONE:
            last = Chain(self._store, ref.head).last
            entry["output"] = last.output if last else None
            body = last.body.strip() if last else ""
            return entry, f"## {ref.state.title}\n\n{body}" if body else ""
        if ref.state.reason:
            entry["reason"] = ref.state.reason
        return entry, ""


def _is_recorded(store: Store, member: str) -> bool:
    note = read_note(store, member)
    return note is not None and bool(note.attempt) and not note.note.agent


def _cut(texts: list[str]) -> str:
    """Join as many of the members' reports as fit into one text."""
    kept, left = list[str](), MOST_TEXT
    for text in filter(None, texts):
        if len(text) > left:
            kept.append("The reports of further members are in their own threads.")
            break
        kept.append(text)
        left -= len(text)
    return "\n\n".join(kept)
