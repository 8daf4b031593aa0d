"""The `Thread` class, a handle on a thread, and `Run` and `Crew`, which run threads.

The properties of a `Thread` read the store each time, so they are up to date even if another process moved the thread.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from time import sleep
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from rolecall.errors import Conflict, Hint, InvalidPayload, NotFound, RolecallError, UsageError
from rolecall.settings import config
from rolecall.store.lazy import Module, import_later

if TYPE_CHECKING:
    import asyncio
    import atexit
    import dataclasses
    import queue
    import threading

    from rolecall.agents.protocol import Cancel
    from rolecall.api import Rolecall, run_loop
    from rolecall.files import merge, tree
    from rolecall.hosts.lead import conversation
    from rolecall.store import holder
    from rolecall.store.backend import StoredEvent
    from rolecall.store.canonical import JsonObject
    from rolecall.store.ids import ThreadId
    from rolecall.store.store import Store
    from rolecall.threads import (
        casting,
        commit,
        compose,
        handover,
        html_report,
        killing,
        lease,
        lifecycle,
        loaded_thread,
        report,
        requests,
        seal,
        setup,
        step_files,
        tail,
        thread,
        view_types,
        views,
        why,
    )
    from rolecall.threads import state as states
    from rolecall.threads.engine import Engine, Outcome
    from rolecall.threads.setup import Cast, Watch
    from rolecall.threads.state import ThreadRef, ThreadState
    from rolecall.threads.thread import Chain, Step
    from rolecall.traces import spans as projection
    from rolecall.workflow import model, registry, reply, route
    from rolecall.workflow.playbook import Playbook
    from rolecall.workflow.python import Workflow
else:
    _LATER = {
        "": "asyncio atexit dataclasses queue threading",
        "rolecall.api.": "run_loop",
        "rolecall.files.": "tree",
        "rolecall.hosts.lead.": "conversation",
        "rolecall.store.": "holder",
        "rolecall.threads.": "casting commit compose handover html_report killing lease lifecycle loaded_thread report"
        " requests seal setup step_files tail thread views why",
        "rolecall.workflow.": "model registry reply route",
    }
    globals().update(import_later(_LATER))
    states = Module("rolecall.threads.state")
    projection = Module("rolecall.traces.spans")

Folder = str | os.PathLike[str]

EARLIER = "\n\n---\n\nThis continues a conversation, in which another thread came before."
"""Separates a person's words from the summary of an earlier thread, if the words continue a conversation whose thread
has ended."""
_NEXT = "next/"
_FOLLOWED_WITHIN = 1.0
_LONGEST_RECAP = 4_000


class Event(NamedTuple):
    """An event in a running thread. Its kind is `step`, `text`, `tool_call`, `usage`, `suspended`, …"""

    thread: str
    kind: str
    body: Mapping[str, Any] = {}

    def __str__(self) -> str:
        shown = ("role", "agent", "status", "name", "reason", "error", "text")
        words = [str(self.body[key]) for key in shown if self.body.get(key)]
        return " · ".join([self.kind, *words])


class Question(NamedTuple):
    """What a thread needs next: the output of the role in `due`, or a text if `due` is None."""

    due: route.Next | None
    role: model.StoredRole | None
    """The definition of the role that is due."""
    task: str
    is_asked: bool
    """Whether a role suspended the thread with a question."""
    before: Step | None
    """The latest step that a role took."""

    @property
    def takes_words(self) -> bool:
        """Whether any words count as an answer, so that a person need not make a choice or fill in fields."""
        return self.role is None or isinstance(reply.from_words("…", self.role.schema), reply.ParsedReply)


def own_words(text: str) -> str:
    """Return the person's own words from a text to which `talk` or `say` has added information for a role."""
    return conversation.detach(text).partition(EARLIER)[0]


def check_limits(limits: Mapping[str, float], roles: Collection[str]) -> None:
    if not isinstance(limits, Mapping):
        raise UsageError(f"limits are a mapping, not {limits!r}", hint='For example {"cost": 2}.')
    for name, value in limits.items():
        role, _, kind = name.rpartition(".")
        if kind not in thread.LIMITS or (role and role not in roles):
            raise UsageError(
                f"unknown limit {name!r}",
                hint=f"Limits are {', '.join(thread.LIMITS)}, of one role ROLE.steps; roles: {', '.join(roles)}.",
            )
        if not isinstance(value, (int, float)) or not 0 < value < float("inf"):
            raise UsageError(
                f"the limit {name} must be a number above 0, not {value!r}", hint="Omit it for no limit."
            )


class Thread:
    """One run of a workflow. Properties read the store; methods such as `resume` change it."""

    def __init__(self, rolecall: Rolecall, ident: ThreadId) -> None:
        self.rolecall = rolecall
        self.id = ident
        self.notice = ""
        """What a person should know about the words they said last, such as that a tag is misspelt."""

    def __repr__(self) -> str:
        return f"<Thread {self.id} {self.status}>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Thread):
            return NotImplemented
        return self.id == other.id and (
            self.rolecall is other.rolecall or self._store.backend.address == other._store.backend.address
        )

    def __hash__(self) -> int:
        return hash(self.id)

    @property
    def _store(self) -> Store:
        return self.rolecall.store

    # -- facts --

    @property
    def status(self) -> str:
        """`idle`, `queued`, `running`, `waiting` for members, `suspended`, `crashed`, `completed`, `failed`, …"""
        return views.status_of(self._store, self._ref).value

    @property
    def state(self) -> ThreadState:
        """The facts that can be read without reading the thread's steps: title, folders, agents, limits, lease, …"""
        return self._ref.state

    @property
    def head(self) -> str:
        """The id of the last step, or of the start."""
        return self._ref.head

    @property
    def has_ended(self) -> bool:
        return self.state.has_ended

    @property
    def role(self) -> str | None:
        """The next role or the role that waits for a person, or None if the thread has ended."""
        return views.role_of(self._store, self._ref)

    @property
    def reason(self) -> str:
        """Why the thread is suspended, or why it failed or was killed."""
        return self.state.reason

    @property
    def needs_person(self) -> bool:
        """Whether the thread needs a person, because it is suspended or waits for members that need a person."""
        return views.needs_person(self._store, self._ref)

    @property
    def continuation(self) -> Hint | None:
        """The action that continues the thread, as a code with arguments, or None if the thread has ended."""
        ref = self._ref
        # A lease that this process could not release, for example on a full disk, does not block the thread.
        is_ours = holder.process(os.getpid()).items() <= ref.state.lease.items()
        is_held = not is_ours and views.status_of(self._store, ref) == states.Status.RUNNING
        return thread.continuation(ref, is_held=is_held)

    @property
    def prompt(self) -> str:
        return self._chain.start.prompt

    @property
    def workflow(self) -> str:
        """The id of the workflow version that the thread follows."""
        return self._chain.start.workflow

    @property
    def steps(self) -> list[Step]:
        """Every step so far, oldest first: `role`, `agent`, `output`, `body`, `prompt`, `id`, `number`."""
        return list(self._chain)[::-1]

    @property
    def session(self) -> str:
        """The id of the session in which an agent is being asked now, or an empty text while no agent is being
        asked."""
        known = states.read_note(self._store, self.id)
        return known.note.session if known else ""

    @property
    def members(self) -> list[Thread]:
        """The members of the thread's latest group that have been started, in the order of their numbers."""
        found = views.groups(self._store, self._ref)[-1:]
        return [Thread(self.rolecall, one["id"]) for group in found for one in group["members"] if one["id"]]

    @property
    def usage(self) -> Mapping[str, float]:
        """Steps, turns, tokens, cost and minutes so far, including those of failed attempts. An amount that no agent
        reported is missing rather than zero."""
        used = self.summary()["usage"]
        return {key: used[key] for key in used if key in thread.LIMITS}

    def entry(self) -> view_types.ThreadEntry:
        """Return a short description of the thread, as `rolecall thread list --json` prints it."""
        return views.entry(self._store, self._ref)

    def summary(self) -> view_types.ThreadSummary:
        """Return the state of the thread, as `rolecall thread show --json` prints it."""
        return views.card(self._store, self._ref)

    def groups(self, *, newest: int | None = None) -> list[view_types.PlayedGroup]:
        """Return the groups that have played a role, each with its members. With `newest`, look only at that many of
        the newest steps."""
        return views.groups(self._store, self._ref, newest)

    def current_group(self) -> view_types.PlayedGroup | None:
        """Return the group that is playing a role now, with its members."""
        return views.current_group(self._store, self._ref)

    def totals(self) -> view_types.ThreadUsage:
        """Return what the thread has used, by reading only its newest step."""
        return views.totals(self._store, self._ref)

    def step_page(self, *, before: str | None = None, max: int = 100) -> view_types.StepPage:
        """Return up to `max` steps, newest first: the newest steps of the thread, or those before the step with the
        id `before`."""
        return views.step_page(self._store, self._ref, before=before, max=max)

    def step_entries(self) -> list[view_types.StartEntry | view_types.StepEntry]:
        """Return the start and all steps, oldest first. `rolecall thread steps --json` prints them with `hash` in place
        of `id`."""
        ref, chain = self._ref, self._chain
        steps = [views.step_entry(step, number) for step, number in views.number_steps(ref, chain)]
        return [views.start_entry(self._store, chain.start), *reversed(steps)]

    def result(self) -> view_types.ThreadResult | None:
        """Return the last answer, the files that agents reported, and the usage, or None if no role has answered
        yet."""
        return views.result(self._store, self._ref)

    @property
    def _ref(self) -> ThreadRef:
        return thread.find(self._store, self.id)

    def _ref_at(self, head: str | None) -> ThreadRef:
        ref = self._ref
        if head is not None and ref.head != head:
            hint = Hint("See it", "show_thread", thread=self.id)
            raise Conflict(f"thread {self.id} has moved on", hint=hint)
        return ref

    @property
    def _chain(self) -> Chain:
        return thread.Chain(self._store, self._ref.head)

    @property
    def _playbook(self) -> Playbook:
        return registry.load_node(self._store, self.workflow)

    @property
    def _trees(self) -> tree.Trees:
        return tree.Trees(config.trees_folder(self._store.backend.address))

    # -- running --

    def run(self, *, steps: int | None = None, agent: str | None = None, reuse: bool | None = None) -> Run:
        """Run the thread in the background until it ends, waits for a person, or has taken `steps` steps. Iterate over
        the result to follow the run, or call `wait()` on it to wait for its end. `agent` plays every role in this run;
        `reuse` is the same as for `choose_reuse`."""
        self._check_begin(agent, steps)
        self.choose_reuse(reuse)
        return Run(self, steps, agent)

    def step(self, *, agent: str | None = None, reuse: bool | None = None) -> Thread:
        """Take one step and wait until it is finished."""
        self.run(steps=1, agent=agent, reuse=reuse).wait()
        return self

    async def arun(
        self,
        *,
        steps: int | None = None,
        agent: str | None = None,
        reuse: bool | None = None,
        cancel: asyncio.Event | None = None,
    ) -> AsyncIterator[Event]:
        """Yield events as they happen, while the thread runs in the current event loop as with `run`. The run ends when
        `cancel` is set or when the caller leaves the iteration early. After an early exit, the agent is stopped only
        once the event loop is free; use `contextlib.aclosing` to wait for that."""
        self._check_begin(agent, steps)
        self.choose_reuse(reuse)
        events: asyncio.Queue[Event | None] = asyncio.Queue()
        stop = asyncio.Event() if cancel is None else cancel

        async def play() -> None:
            try:
                tell = lambda kind, body: events.put_nowait(Event(self.id, kind, body))  # noqa: E731
                await self.advance(watch=tell, cancel=stop, steps=steps, agent=agent, needs_all=False)
            finally:
                events.put_nowait(None)

        playing = asyncio.create_task(play())
        try:
            while (event := await events.get()) is not None:
                yield event
        finally:
            stop.set()
            await playing

    async def advance(
        self,
        *,
        watch: Watch,
        cancel: Cancel,
        steps: int | None = None,
        agent: str | None = None,
        needs_all: bool = True,
        is_served: bool = False,
        lease_ms: int | None = None,
    ) -> str | None:
        """Take steps in this event loop and return the id of the last one, or None if no step was taken.

        `watch` is called with the kind and the body of each event before anything else happens. With `needs_all`, a
        role without a usable agent is an error even if its turn would come later. A worker of the service sets
        `is_served`, so that members of groups are queued, and `lease_ms`, how long its lease lasts unless renewed.
        """
        state, last = self.state, None
        if state.status == states.Status.SUSPENDED:
            return None
        engine = compose.engine(
            self._store,
            agent=agent or state.agent,
            folder=state.cwd,
            watch=watch,
            is_served=is_served,
            lease_ms=lease_ms or holder.LEASE_MS,
        )
        # An agent named for this run overrides the agents with which the thread was started.
        engine = dataclasses.replace(engine, keeps_agents=not agent)
        if needs_all:
            _check_agents(engine.playbook(state.workflow), state, agent)
        try:
            async for outcome in engine.run(self.id, cancel=cancel, steps=steps, waits=not is_served):
                last = outcome.took or last
        finally:
            await engine.close()
        return last

    def agent_of(self, role: str) -> str:
        """Return the name of the agent that plays a role, or `human` for a person. Raise an error if no agent can play
        the role."""
        state, book = self.state, self._playbook
        if role in book.functions:
            return "python"
        bound = book._replace(bound=state.agents)
        return casting.cast(config.load(), bound, role, override=state.agent).name

    def is_person(self, role: str) -> bool:
        """Return whether a person plays a role. A missing agent is reported only when the role is called."""
        with suppress(RolecallError):
            return self.agent_of(role) == setup.HUMAN
        return False

    def _check_begin(self, agent: str | None, steps: int | None) -> None:
        """Raise an error if a run could not take its first step."""
        if steps is not None and (not isinstance(steps, int) or steps < 1):
            raise UsageError(
                f"steps must be a whole number above 0, not {steps!r}", hint="Leave it out for all steps."
            )
        lease.refuse_ended(self._ref)
        state = self.state
        if state.status != states.Status.SUSPENDED:
            _check_agents(self._playbook, state, agent)

    def events(self, *, after: int = 0) -> Iterator[StoredEvent]:
        """Yield the recorded events whose number (`seq`) is above `after`."""
        while found := self._store.events(self.id, after=after, limit=500):
            yield from found
            after = found[-1].seq

    def tail(self, *, members: bool = False) -> Iterator[Event | None]:
        """Yield the recorded events from the first on, and None each time the recorded events are used up. With
        `members`, also yield the events of the members of the thread's groups, with the kind `member`, as a run in this
        process reports them."""
        for told in tail.follow_events(self._store, self.id, members=members):
            yield Event(self.id, *told) if told else None

    def watch(self, *, after: int = 0) -> Iterator[Event]:
        """Yield the events that any process records for the thread, until it ends or waits for a person."""
        while True:
            ref = self._ref  # read first, so that the events include those that led to this state
            for event in self.events(after=after):
                yield Event(self.id, event.kind, event.body)
                after = event.seq
            is_over = ref.state.is_over or views.needs_person(self._store, ref)
            if is_over or views.status_of(self._store, ref) == states.Status.CRASHED:
                return
            sleep(0.2)

    # -- steering --

    def choose_reuse(self, reuse: bool | None) -> None:
        """Decide whether the next steps, in any process, can be reused. True reuses finished steps with the same key,
        except for roles with `reuse: false`; False asks every role; None changes nothing."""
        lifecycle.choose_reuse(self._store, self._ref, reuse)

    def resume(
        self,
        text: str | None = None,
        *,
        limits: Mapping[str, float] | None = None,
        agent: str | None = None,
        reuse: bool | None = None,
        is_run_here: bool = False,
        by: Mapping[str, str] | None = None,
        head: str | None = None,
    ) -> Thread:
        """Continue a suspended thread: with a message to the role that waits, with higher limits, or with another
        attempt.

        If `agent` is given, it plays every role from now on. `reuse` is the same as for `choose_reuse`; `by` records
        who resumed the thread; `head` is the same as for `answer`. A thread that the service ran before goes back to
        the service, unless `is_run_here` is set.
        """
        if limits:
            check_limits(limits, self._store.get(self.workflow).payload["roles"])
        if agent:
            agent = self.rolecall._agent(agent, self._playbook)
        ref = lifecycle.resume(
            self._store,
            self._ref_at(head),
            mask=config.mask(),
            answer=text,
            limits=limits,
            agent=agent,
            bind=casting.binder(agent) if agent else None,
            reuse=reuse,
            is_run_here=is_run_here,
            by=by,
        )
        lifecycle.tell_service(ref)
        return self

    def give_to_service(self, *, priority: int = 0) -> Thread:
        """Queue an idle thread for the service."""
        lifecycle.tell_service(lifecycle.give_to_service(self._store, self._ref, priority=priority))
        return self

    def write_message(self, title: str) -> str:
        """Return a commit message for the thread's work: the title, and trailers that identify the thread's newest
        step."""
        nowhere = states.WorkFolder("", "", "")
        return handover.work_of(self._ref, nowhere, seal.Sealer(self._store)).write_message(title)

    def refuse_running(self) -> None:
        """Raise `Conflict` while a process runs the thread."""
        lifecycle.refuse_running(self._store, self._ref)

    def question(self) -> Question:
        """Return what the thread needs next, so that it can be shown to a person."""
        chain = self._chain
        now = loaded_thread.LoadedThread(self.id, chain, self._playbook, self.state.folders)
        way = loaded_thread.next_of(now)
        before = next((step for step in chain if step.role not in (thread.PERSON, thread.FORK)), None)
        if isinstance(way, route.Next):
            return Question(way, now.role(way.role), now.task, False, before)
        return Question(None, None, now.task, isinstance(way, route.Suspended), before)

    def answer(
        self,
        output: JsonObject,
        body: str = "",
        *,
        is_run_here: bool = False,
        by: Mapping[str, str] | None = None,
        head: str | None = None,
    ) -> Thread:
        """Play the due role as a person: `output` must fit the role's schema. `by` records who answered. `head` is the
        id of the last step that the person saw; raise `Conflict` if the thread has moved on since then. A thread that
        the service ran before goes back to the service, unless `is_run_here` is set."""
        if not isinstance(output, Mapping):
            raise UsageError(
                f"the fields of an answer are a mapping, not {output!r}",
                hint='For example {"status": "done"}.',
            )
        ref = commit.answer(
            self._store,
            self._ref_at(head),
            self._playbook,
            output,
            body=body,
            mask=config.mask(),
            is_run_here=is_run_here,
            by=by,
        )
        lifecycle.tell_service(ref)
        return self

    @property
    def asking(self) -> Thread:
        """The thread whose question a person must answer before this thread can continue: this thread itself, or the
        thread or member that plays its role."""
        waiting = [self.rolecall.thread(asks)] if (asks := self.state.asks) else []
        if self.state.status == states.Status.WAITING:
            waiting = [member for member in self.members if member.needs_person]
        return waiting[0].asking if waiting else self

    def say(
        self,
        text: str,
        *,
        by: Mapping[str, str] | None = None,
        head: str | None = None,
        is_run_here: bool = False,
    ) -> Thread:
        """Continue a conversation with a person's words.

        If it is a person's turn, the words become the output of that person's role (see `from_words`). If the words do
        not fit, the error says what the role must deliver. If it is not a person's turn, the role that waits or was
        interrupted is called again with the words. If the thread has ended, the words and a summary of this thread
        start another thread of the same workflow, which is returned; `by` is not recorded for these words. The other
        arguments are the same as for `answer`.
        """
        if not text.strip():
            raise UsageError("nothing was said", hint="Write what the role needs to know.")
        self._ref_at(head)
        if (asked := self.asking) is not self:
            asked.say(text, by=by, is_run_here=is_run_here)
            return self.resume(is_run_here=is_run_here) if self.state.asks else self
        if self.state.name == conversation.WORKFLOW:
            heard = conversation.receive(self.state.cwd or self.rolecall.folder, self.id, text)
            self.notice, text = heard.notice, conversation.attach(text, heard.context)
        if self.has_ended:
            return self._follow_up(text, by, is_run_here)
        question = self.question()
        due, role = question.due, question.role
        if due is None or role is None or not self.is_person(due.role):
            return self.resume(text, by=by, head=head, is_run_here=is_run_here)
        given = reply.from_words(text, role.schema)
        if isinstance(given, reply.ReplyProblem):
            listed = "".join(f"\n  {misfit}" for misfit in given.misfits)
            raise InvalidPayload(
                f"this does not say what {due.role} must deliver: {given.reason}{listed}",
                given.misfits,
                hint=Hint("See the fields and an example", "show_question", thread=self.id),
            )
        return self.answer(given.output, given.body, is_run_here=is_run_here, by=by, head=head)

    def leave(self) -> str:
        """End a person's part in a conversation with the Lead until the person speaks again. Return a sentence about
        unfinished work in the project, or an empty text."""
        is_lead = self.state.name == conversation.WORKFLOW
        return conversation.leave(self.state.cwd or self.rolecall.folder, self.id) if is_lead else ""

    @property
    def next(self) -> Thread | None:
        """The thread that `say` started after this thread had ended."""
        ref = self._store.ref(f"{_NEXT}{self.id}")
        return self.rolecall.thread_if_any(ref.state["thread"]) if ref else None

    def _follow_up(self, text: str, by: Mapping[str, str] | None, is_run_here: bool) -> Thread:
        if (there := self.next) is not None:
            return there.say(text, by=by, is_run_here=is_run_here)
        state, chain = self.state, self._chain
        last = next((step for step in chain if not step.role.startswith("$")), None)
        told = [f"{last.role} answered:", last.body or report.pretty(last.output)] if last else []
        parts = ["Its task was:", chain.start.prompt, *told, *([state.reason] if state.reason else [])]
        earlier = "\n\n".join(report.shorten(part.strip(), _LONGEST_RECAP) for part in parts)
        return self.rolecall.start(
            self.workflow,
            f"{text}{EARLIER} It is {state.status}. {earlier}",
            agent=state.agent,
            limits={**chain.start.limits, **state.limits},
            folder=chain.start.cwd,
            also=lambda ident, draft: draft.move(f"{_NEXT}{self.id}", None, state={"thread": ident}),
        )

    def fork(
        self,
        *,
        at: int | str | None = None,
        workflow: str | Workflow | None = None,
        prompt: str | None = None,
        agent: str | None = None,
        keep_files: bool = False,
        reuse: bool | None = None,
        request: requests.Request | None = None,
    ) -> Thread:
        """Create a thread that shares the steps up to `at` and works in a folder of its own. `at` is a number, an id or
        `"start"`, by default the head. The folder contains the files that this step left or, with `keep_files`, the
        files as they are now. `reuse` and `request` are the same as for `Rolecall.fork`."""
        return self.rolecall.fork(
            self.id,
            at=at,
            workflow=workflow,
            prompt=prompt,
            agent=agent,
            keep_files=keep_files,
            reuse=reuse,
            request=request,
        )

    def kill(self, reason: str = "killed by a program") -> killing.Killed:
        """End the thread for good, and stop its agent and the process that runs it. The result names that process."""
        return killing.kill(self._store, self._ref, reason, mask=config.mask())

    # -- reading --

    def diff(self, other: Thread) -> view_types.ThreadDifference:
        """Return the last step that both threads share, and the differences in their prompts and outputs after that
        step."""
        return views.difference(self._store, self._ref, _ref_of(other))

    def read(self, *, max_chars: int = 10_000, before: str | None = None) -> str:
        """Return prompts, actions and answers as Markdown: the newest steps that fit into `max_chars`, or the steps
        before the step `before`."""
        return self.read_page(max_chars=max_chars, before=before)["text"]

    def read_page(
        self,
        *,
        max_chars: int,
        before: str | None = None,
        with_start: bool = False,
        with_members: bool = False,
        phrase: Callable[[Hint], str] = Hint.call,
    ) -> view_types.ReadPage:
        """Return what `read` returns (as `text`), together with the step before which the next page ends. The task is
        part of the first page; `with_start` adds it to any other page. `with_members` adds the answers of group
        members. `phrase` turns the hint on how to read more into text."""
        return views.read(
            self._store,
            self._ref,
            quota=max_chars,
            before=before,
            with_start=with_start or before is None,
            with_members=with_members,
            phrase=phrase,
        )

    def export(
        self,
        format: Literal["html", "markdown"] = "html",
        *,
        max_chars: int | None = 2000,
        files: bool = False,
        warn: Callable[[str], object] = lambda _text: None,
        phrase: Callable[[Hint], str] = Hint.call,
    ) -> str:
        """Return a report on the whole thread, as one self-contained HTML page or as Markdown. Texts are cut after
        `max_chars` characters; with None they are complete. `files` adds the changes that each step made to files, as a
        diff. `warn` is called with anything that could not be shown. `phrase` turns the hint on how to continue the
        thread into text."""
        if format not in ("html", "markdown"):
            raise UsageError(f"{format!r} is not a format of reports", hint="Name html or markdown.")
        known, entries = views.gather(self._store, self._ref)
        mask = config.mask()  # files are recorded as they are
        steps: Sequence[JsonObject] = entries
        attempts: Sequence[JsonObject] = known["attempts"]
        if files:
            add_diffs = partial(step_files.add_diffs, self._store, self._trees, warn=warn, mask=mask)
            steps, attempts = list(add_diffs(entries)), list(add_diffs(known["attempts"]))
        onward = known["continue"]
        card = {**known, "attempts": attempts, "continue": phrase(onward) if onward else None}
        if format == "markdown":
            return report.markdown(card, steps, limit=max_chars)
        return html_report.page(self._store, self._ref, card, steps, mask=mask, limit=max_chars, warn=warn)

    def spans(self, *, content: bool = False) -> Iterator[projection.Span]:
        """Yield the thread as the spans of a trace: its steps and failed attempts, its turns and tool calls, and the
        threads that play its roles. Prompts, answers and tool results are included only with `content`."""
        return projection.Projection(self._store, config.mask(), content=content).thread(self._ref)

    # -- the files of its steps --

    def file_changes(self, *, newest: int | None = None) -> list[view_types.ChangedFiles]:
        """Return the files that each step changed, oldest step first, with the numbers of lines added and removed. With
        `newest`, look only at that many of the newest steps. Steps that changed no files are left out."""
        return views.file_changes(self._store, self._ref, newest)

    def file_versions(
        self, step: Step, *, most: int = 20, longest: int = 200_000
    ) -> list[step_files.FileVersions]:
        """Return up to `most` text files that a step changed, each as it was before and after the step. Files longer
        than `longest` bytes are skipped. The result is empty if the files are not on this machine."""
        folder, mask = step.payload.get("cwd") or self._chain.start.cwd, config.mask()
        try:
            found = list(step_files.read_versions(self._trees, step, folder, most=most, longest=longest))
        except NotFound:
            return []
        return [
            one._replace(
                before=one.before and mask.text(one.before), after=one.after and mask.text(one.after)
            )
            for one in found
        ]

    def check_out(self, folder: Folder, *, at: int | str | None = None) -> step_files.CheckedOut:
        """Write the files that a step left into a new or empty folder. `at` is a number, an id or `"start"`, by default
        the last step."""
        place = os.path.abspath(folder)
        return step_files.check_out(self._store, self._trees, self._ref, place, _name_step(at))

    def diff_files(
        self,
        other: Thread | None = None,
        *,
        at: int | str | None = None,
        role: str | None = None,
        path: str | None = None,
        lines: int | None = None,
    ) -> list[step_files.FilesDifference]:
        """Return what the thread changed in its files, as a list of files and as a patch.

        `at` is a step, or `"A..B"` for the changes after step A up to step B. With `role`, the result has one entry for
        each step of that role. With `other`, the result is the difference between the last files of this thread and
        those of the other thread. The patch shows all files, only the file `path`, or only the first files with up to
        `lines` changed lines; files that it does not show are listed as `omitted`.
        """
        excerpt = step_files.Excerpt(path, lines)
        if other is None:
            return step_files.compare(
                self._store, self._trees, self._ref, at=_name_step(at), role=role, excerpt=excerpt
            )
        if at is not None or role is not None:
            raise UsageError("two threads are compared by their last files, without `at` and `role`")
        return step_files.compare_threads(self._store, self._trees, self._ref, _ref_of(other), excerpt)

    def blame(
        self, path: str, *, lines: tuple[int, int] | None = None, at: int | str | None = None
    ) -> step_files.TracedFile:
        """Return the step, role, agent and prompt behind each line of a file. `lines` is the first and the last line to
        explain. `path` is relative to the top of the work tree. `at` is a step, by default the last."""
        return step_files.trace_lines(
            self._store, self._trees, self._ref, path, lines=lines, at=_name_step(at)
        )

    def why(self, at: int | str | None = None) -> why.KeyExplanation:
        """Explain why a step, by default the last, was or was not reused. The result contains the first part of the
        step's key that differs from the nearest earlier step, and an explanation in words under `text`."""
        return why.explain(self._store, self._trees, self._ref, _name_step(at))

    # -- its own folders --

    def folders(self) -> list[view_types.FolderReport]:
        """Return the thread's own work folders and the changes in them."""
        return [handover.show(kind, folder) for kind, folder in self.state.folders.items()]

    def changed_files(self) -> list[str] | None:
        """Return the changed files in the thread's own folders, or None if the thread has no folder or git cannot list
        the changes."""
        changed: list[list[str] | None] = []
        with suppress(RolecallError):  # the repository is missing or broken
            changed = [handover.changed_files(folder) for folder in self.state.folders.values()]
        if all(files is None for files in changed):
            return None
        return list(dict.fromkeys(file for files in changed for file in files or ()))

    def diff_folders(self) -> str:
        """Return the changes in the thread's own work folders as a patch."""
        kept = {kind: folder for kind, folder in self.state.folders.items() if not folder.is_removed}
        if not kept:
            raise UsageError(f"thread {self.id} has no folder of its own")
        return "".join(handover.diff(kind, folder) for kind, folder in kept.items())

    def merge_folder(self) -> handover.FolderMerge:
        """Merge the thread's branch into the branch that is checked out in the folder where the thread was started."""
        return handover.merge(self._store, self._ref)

    async def queue_merge(
        self, check: Sequence[str] = (), *, cancel: Cancel | None = None
    ) -> merge.Merged | merge.SetAside:
        """Merge the thread's worktree into the folder where the thread was started; threads are merged one at a time.
        If the merge conflicts, or the command `check` fails in the folder after the merge, undo the merge and return
        the conflict."""
        env = config.environment()
        return await handover.queue_merge(self._store, self._ref, check, env=env, cancel=cancel)

    def remove_folders(self, *, force: bool = False) -> handover.RemovedFolders:
        """Remove the thread's own folders and branch. With `force`, also remove work that exists nowhere else."""
        return handover.remove(self._store, self._ref, force=force)


def _name_step(at: int | str | None) -> str | None:
    return None if at is None else str(at)


def _ref_of(other: Thread) -> ThreadRef:
    if not isinstance(other, Thread):
        raise UsageError(
            f"another thread is given as a Thread, not {other!r}",
            hint="`Rolecall.thread` finds a thread by its id.",
        )
    return other._ref


def _check_agents(book: Playbook, state: ThreadState, agent: str | None) -> None:
    """Raise an error if a role of a thread has no usable agent. If given, `agent` plays every role."""
    if agent:
        casting.check_name(agent)
    bound = {} if agent else state.agents
    casting.refuse_miscast(book._replace(bound=bound), agent or state.agent)


class Crew:
    """Agents that stay connected while they take steps of several threads in this process."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def cast(self, book: Playbook, role: str) -> Cast:
        """Return the agent that plays a role. Raise an error if the agent is unknown or missing."""
        return self._engine.cast(book, role)

    async def step(self, name: str, *, watch: Watch, cancel: Cancel) -> Outcome:
        """Take one step of a thread. If its agent has reached a limit, first wait until the limit ends."""
        engine = dataclasses.replace(self._engine, watch=watch)
        return [outcome async for outcome in engine.run(name, cancel=cancel, steps=1)][-1]

    async def close(self) -> None:
        await self._engine.close()


class Run:
    """A run of a thread in the background of this process. The run begins at once.

    Iterate over the run to receive its events. Leaving the iteration early stops the agent; the thread can be run again
    later. Python waits for the run before it exits; Ctrl-C during this wait stops the agent.
    """

    def __init__(self, of: Thread, steps: int | None, agent: str | None = None) -> None:
        self.thread = of
        self._steps = steps
        self._agent = agent
        self._events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._error: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ready, self._over, self._followed = threading.Event(), threading.Event(), threading.Event()
        # A daemon, because Python's own wait for a thread misses a Ctrl-C that comes just before the wait.
        self._worker = threading.Thread(target=self._work, name=f"rolecall-{of.id}", daemon=True)
        self._worker.start()
        self._ready.wait()

    def __iter__(self) -> Iterator[Event]:
        self._followed.set()
        try:
            while (event := self._next_event()) is not None:
                yield event
        finally:
            self.stop()
        self._raise()

    def wait(self) -> Thread:
        """Wait until the run has stopped. Ctrl-C stops the run."""
        self._followed.set()
        try:
            self._wait_until_over()
        finally:
            self.stop()
        self._raise()
        return self.thread

    def stop(self) -> None:
        """Ask the agent to stop, and wait until it has stopped."""
        if self._loop is not None:  # None if no event loop could be created
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._cancel.set)
        self._over.wait()  # `join` counts a thread as ended once Ctrl-C has interrupted it

    # Both waits have a timeout, because a wait without one would not notice a Ctrl-C that came just before the wait.

    def _next_event(self) -> Event | None:
        while True:
            with suppress(queue.Empty):
                return self._events.get(timeout=1.0)

    def _wait_until_over(self) -> None:
        while not self._over.wait(1.0):
            pass

    def _wait_at_exit(self) -> None:
        try:
            self._wait_until_over()
        finally:
            self.stop()
            self._worker.join()  # the worker might have an error to print

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _work(self) -> None:
        runs = self.thread.rolecall._runs
        runs.add(self)
        atexit.register(self._wait_at_exit)
        try:
            with asyncio.Runner(loop_factory=run_loop.RunLoop) as runner:
                runner.run(self._play())
        except BaseException as error:
            self._error = error
        finally:
            self._ready.set()
            self._events.put(None)
            self._over.set()
            runs.discard(self)
        if self._error and not self._followed.wait(_FOLLOWED_WITHIN):
            failure = (type(self._error), self._error, self._error.__traceback__, self._worker)
            threading.excepthook(threading.ExceptHookArgs(failure))
        atexit.unregister(self._wait_at_exit)

    async def _play(self) -> None:
        self._loop, self._cancel = asyncio.get_running_loop(), asyncio.Event()
        self._ready.set()
        ident = self.thread.id
        tell = lambda kind, body: self._events.put(Event(ident, kind, body))  # noqa: E731
        # A connection can be used only in the Python thread that opened it.
        ours = self.thread.rolecall
        with type(ours)(ours._url, folder=ours.folder) as rolecall:
            await Thread(rolecall, ident).advance(
                watch=tell, cancel=self._cancel, steps=self._steps, agent=self._agent, needs_all=False
            )
