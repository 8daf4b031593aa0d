"""Everything a program can do with Rolecall: `rolecall.open()` gives a `Rolecall`, which starts and finds threads.

The verbs below are the ones that every front door calls. A `Thread` is a handle: its properties read the store each
time, so they are right whichever process moved the thread last.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Literal

from rolecall.errors import RolecallError, UsageError
from rolecall.nexus import memory, project_paths, tools
from rolecall.settings import config
from rolecall.store.store import Store
from rolecall.threads import commit, lease, lifecycle, listing, report, thread, views, workspace
from rolecall.threads.state import Status
from rolecall.threads.thread import Chain, Step
from rolecall.workflow import registry
from rolecall.workflow.playbook import Playbook
from rolecall.workflow.python import Workflow, check

if TYPE_CHECKING:
    from rolecall.agents.protocol import Cancel
    from rolecall.knowledge.query import Answer
    from rolecall.settings.yaml12 import Problem
    from rolecall.threads.state import ThreadRef

MEMORY = ":memory:"


def open(store: str | None = None, *, folder: str | os.PathLike[str] = ".") -> Rolecall:
    """Open a store: the configured one, one by its address (`sqlite:/path`, `files:/folder`, `postgresql://…`), or
    `:memory:` for one that lasts until it is closed. `folder` is where workflows and agents are looked up."""
    return Rolecall(store, folder=folder)


@dataclass(frozen=True)
class Event:
    """Something that happened in a thread while it ran: `step`, `text`, `tool_call`, `usage`, `suspended`, …"""

    thread: str
    kind: str
    body: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        shown = ("role", "agent", "status", "name", "reason", "error", "text")
        words = [str(self.body[key]) for key in shown if self.body.get(key)]
        return " · ".join([self.kind, *words])


class Rolecall:
    """A store and the folder to work from. Use it as a context manager, or close it."""

    def __init__(self, store: str | None = None, *, folder: str | os.PathLike[str] = ".") -> None:
        self.folder = os.path.abspath(folder)
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        if store == MEMORY:
            # In a file of its own, so that a run in another thread reaches the same store.
            self._scratch = tempfile.TemporaryDirectory(prefix="rolecall-")
            store = os.path.join(self._scratch.name, "store.db")
        self._url = store
        self.store: Store = workspace.open_store(store)

    def __enter__(self) -> Rolecall:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.store.close()
        if self._scratch is not None:
            self._scratch.cleanup()

    # -- threads --

    def start(
        self,
        workflow: str | Workflow,
        prompt: str,
        *,
        agent: str | None = None,
        limits: Mapping[str, float] | None = None,
        folder: str | os.PathLike[str] | None = None,
    ) -> Thread:
        """Make a thread; nothing runs yet. `workflow` is a name, a path, an id, or a `Workflow`; `agent` plays every
        role; `limits` on `steps`, `turns`, `tokens`, `cost` or `minutes` suspend the thread."""
        playbook = self._playbook(workflow)
        check_limits(limits or {}, playbook.workflow.roles)
        agent = self._agent(agent, playbook)
        ref = lifecycle.start(
            self.store,
            self._stored(playbook),
            prompt,
            cwd=self.folder if folder is None else os.path.abspath(folder),
            mask=workspace.mask(),
            limits=limits,
            agent=agent,
            bind=workspace.binder(agent),
            work=config.work_folder(),
        )
        return Thread(self, thread.id_of(ref))

    def thread(self, name: str) -> Thread:
        """A thread by its id, or by a part of the id that no other id contains."""
        return Thread(self, thread.id_of(thread.find(self.store, name)))

    def threads(
        self,
        *,
        status: str | Sequence[str] | None = None,
        workflow: str | None = None,
        text: str = "",
    ) -> Iterator[Thread]:
        """Threads, newest first; all of them without `status`."""
        every = {*Status}
        wanted = every if status is None else {status} if isinstance(status, str) else set(status)
        if unknown := wanted - every:
            raise UsageError(
                f"there is no status {', '.join(sorted(unknown))}",
                hint=f"A thread is {', '.join(sorted(every))}.",
            )
        asked = listing.Filter(frozenset(wanted), workflow, 0, None, tuple(text.lower().split()))
        for found in listing.listed(self.store, asked):
            yield Thread(self, found["thread"])

    # -- workflows --

    def put(self, workflow: str | Workflow) -> str:
        """Store a workflow as the current version of its name and return its id."""
        playbook = self._playbook(workflow)
        return registry.remember(registry.register(self.store, playbook), playbook)

    def workflow(self, name: str) -> Mapping[str, Any]:
        """A workflow in the form of its YAML."""
        from rolecall.workflow.document import to_document

        return to_document(self._playbook(name).workflow)

    def workflows(self) -> list[str]:
        """The names of the workflows that can be started from this folder."""
        return [entry.name for entry in registry.listed(self.store, folder=self.folder)]

    def validate(self, workflow: str | Workflow) -> list[Problem]:
        """Every problem and warning of a workflow file or object, with its place; empty when there are none."""
        if isinstance(workflow, Workflow):
            return check(workflow, name=None, python=_address(workflow))[1]
        return list(registry.check_file(registry.find_file(workflow, folder=self.folder)).problems)

    def _playbook(self, workflow: str | Workflow) -> Playbook:
        if isinstance(workflow, Workflow):
            from rolecall.workflow.python import compile

            return compile(workflow, python=_address(workflow))
        found = registry.find(self.store, workflow, folder=self.folder)
        if found.path is not None:
            return registry.load_file(found.path)
        return registry.load_node(self.store, found.node or "")

    def _agent(self, agent: str | None, playbook: Playbook) -> str | None:
        """The agent that plays every role; an unknown or missing one is an error at once."""
        if agent:
            agent = workspace.agent_from(self.folder, agent)
            workspace.refuse_miscast(playbook, agent)
        return agent

    def _stored(self, playbook: Playbook) -> str:
        draft = self.store.draft()
        node = registry.add_workflow(draft, playbook)
        draft.commit()
        return registry.remember(node, playbook)

    # -- the project --

    def project(self) -> Project:
        """Plan, tasks and memory of the project around this folder."""
        return Project(project_paths.find(self.folder))

    def query(self, question: str, *, max: int = 5, path: str | None = None) -> list[Answer]:
        """The passages of this repository that answer a question best."""
        from rolecall.knowledge import queries
        from rolecall.knowledge.place import root_of

        asking = queries.Desk(now=project_paths.now, tell=lambda _text: None)
        try:
            return list(asking.ask(question, root_of(self.folder), limit=max, path=path).answers)
        finally:
            asking.close()


def check_limits(limits: Mapping[str, float], roles: Mapping[str, Any]) -> None:
    for name, value in limits.items():
        role, _, kind = name.rpartition(".")
        if kind not in thread.LIMITS or (role and role not in roles):
            raise UsageError(
                f"there is no limit {name!r}",
                hint=f"Limits are {', '.join(thread.LIMITS)}, of one role ROLE.steps; roles: {', '.join(roles)}.",
            )
        if not 0 < value < float("inf"):
            raise UsageError(f"the limit {name} must be a number above 0, not {value}")


def _address(workflow: Workflow) -> str:
    """The place where another process finds a workflow object, if it can."""
    try:
        return workflow.address()
    except UsageError:
        return f"{workflow.place.file}:{workflow.name.replace('-', '_')}"


class Thread:
    """One run of a workflow. Properties read the store; verbs change it."""

    def __init__(self, rolecall: Rolecall, ident: str) -> None:
        self._rolecall = rolecall
        self._store = rolecall.store
        self.id = ident

    def __repr__(self) -> str:
        return f"<Thread {self.id} {self.status}>"

    # -- what it is --

    @property
    def status(self) -> str:
        """`idle`, `queued`, `running`, `crashed`, `suspended`, `completed`, `failed`, `killed` or `discarded`."""
        return views.status_of(self._store, self._ref)

    @property
    def has_ended(self) -> bool:
        return self.status in thread.ENDED

    @property
    def role(self) -> str | None:
        """The role whose turn it is, or that waits for a person; None when the thread has ended."""
        return views.role_of(self._store, self._ref)

    @property
    def reason(self) -> str:
        """Why it is suspended, failed or killed."""
        return self._ref.state.reason

    @property
    def prompt(self) -> str:
        return self._chain.start.prompt

    @property
    def workflow(self) -> str:
        """The id of the workflow version it follows."""
        return self._chain.start.workflow

    @property
    def steps(self) -> list[Step]:
        """Every step so far, oldest first: `role`, `agent`, `output`, `body`, `prompt`, `id`, `number`."""
        return list(self._chain)[::-1]

    @property
    def usage(self) -> Mapping[str, float]:
        """Steps, turns, tokens, cost and minutes so far, failed attempts included. What no agent reported is
        missing, not zero."""
        return {key: value for key, value in self.summary()["usage"].items() if key != "roles"}

    def summary(self) -> dict[str, Any]:
        """The state of the thread, as `rolecall thread show --json` prints it."""
        return views.card(self._store, self._ref)

    @property
    def _ref(self) -> ThreadRef:
        return thread.find(self._store, self.id)

    @property
    def _chain(self) -> Chain:
        return Chain(self._store, self._ref.head)

    @property
    def _playbook(self) -> Playbook:
        return registry.load_node(self._store, self.workflow)

    # -- running --

    def run(self, *, steps: int | None = None) -> Run:
        """Begin to take steps until the thread ends, waits for a person, or `steps` were taken. Iterate over the
        result to follow it, `wait()` for its end, or do something else meanwhile."""
        self._check_begin()
        return Run(self, steps)

    def step(self) -> Thread:
        """Take one step and wait for it."""
        self.run(steps=1).wait()
        return self

    async def arun(self, *, steps: int | None = None) -> AsyncIterator[Event]:
        """The same in a running event loop: events as they happen. Leaving the loop early stops the agent."""
        self._check_begin()
        events: asyncio.Queue[Event | None] = asyncio.Queue()
        cancel = asyncio.Event()

        async def play() -> None:
            try:
                await self._play(self._store, events.put_nowait, cancel, steps)
            finally:
                events.put_nowait(None)

        playing = asyncio.create_task(play())
        try:
            while (event := await events.get()) is not None:
                yield event
        finally:
            cancel.set()
            await playing

    def _check_begin(self) -> None:
        """Refuse here and now what would end a run at once."""
        ref = self._ref
        lease.refuse_ended(ref)
        if ref.state.status != "suspended":
            book = replace(self._playbook, bound=ref.state.agents)
            workspace.refuse_miscast(book, ref.state.agent)

    async def _play(self, store: Store, tell: Any, cancel: Cancel, steps: int | None) -> None:
        ref = thread.find(store, self.id)
        if ref.state.status == "suspended":
            return
        engine = workspace.engine(
            store,
            agent=ref.state.agent,
            folder=ref.state.cwd,
            watch=lambda kind, body: tell(Event(self.id, kind, body)),
        )
        try:
            async for _ in engine.run(self.id, cancel=cancel, steps=steps):
                pass
        finally:
            await engine.close()

    def watch(self, *, after: int = 0) -> Iterator[Event]:
        """Events of the thread as recorded in the store, whichever process runs it, until it ends or waits."""
        from time import sleep

        while True:
            status = self.status  # before its events, which then hold what led to it
            while found := self._store.events(self.id, after=after, limit=500):
                for event in found:
                    yield Event(self.id, event.kind, event.body)
                after = found[-1].seq
            if status in (*thread.ENDED, "suspended", "crashed"):
                return
            sleep(0.2)

    # -- steering --

    def resume(
        self,
        text: str | None = None,
        *,
        limits: Mapping[str, float] | None = None,
        agent: str | None = None,
    ) -> Thread:
        """Continue a suspended thread: with a message to the role that waits, with higher limits, or to try again.
        From here on `agent` plays every role, if one is given."""
        agent = self._rolecall._agent(agent, self._playbook)
        bind = workspace.binder(agent) if agent else None
        ref = lifecycle.resume(
            self._store, self._ref, mask=workspace.mask(), answer=text, limits=limits, agent=agent, bind=bind
        )
        workspace.tell_service(ref)
        return self

    def answer(self, output: Mapping[str, Any], body: str = "") -> Thread:
        """Play the role as a person: `output` must fit its schema."""
        ref = commit.answer(self._store, self._ref, self._playbook, output, body=body, mask=workspace.mask())
        workspace.tell_service(ref)
        return self

    def fork(
        self,
        *,
        at: int | str | None = None,
        workflow: str | Workflow | None = None,
        prompt: str | None = None,
        agent: str | None = None,
    ) -> Thread:
        """A new thread that shares the steps up to `at` (a number, an id or `"start"`; the head by default)."""
        node, source = views.step_named(self._store, self.id, None if at is None else str(at))
        playbook = None if workflow is None else self._rolecall._playbook(workflow)
        agent = self._rolecall._agent(agent, playbook or self._playbook)
        ref = lifecycle.fork(
            self._store,
            node,
            mask=workspace.mask(),
            source=source,
            workflow=None if playbook is None else self._rolecall._stored(playbook),
            prompt=prompt,
            agent=agent,
            bind=workspace.binder(agent or (source.state.agent if source else None)),
            work=config.work_folder(),
        )
        return Thread(self._rolecall, thread.id_of(ref))

    def kill(self, reason: str = "killed by a program") -> Thread:
        """End the thread for good, the process that runs it, and its agent."""
        from rolecall.threads.killing import kill

        kill(self._store, self._ref, reason, mask=workspace.mask())
        return self

    # -- reading --

    def diff(self, other: Thread) -> dict[str, Any]:
        """The last common step of two threads, and the differences of prompts and outputs after it."""
        return views.difference(self._store, self._ref, other._ref)

    def read(self, *, max_chars: int = 10_000) -> str:
        """Prompts, actions and answers as Markdown: the newest steps that fit."""
        text: str = views.read(self._store, self._ref, quota=max_chars, before=None, with_start=True)["text"]
        return text

    def export(self, format: Literal["html", "markdown"] = "html") -> str:
        """A report of the whole thread as one self-contained page, or as Markdown."""
        card, steps = views.gather(self._store, self._ref)
        if format == "markdown":
            return report.markdown(card, steps)
        from rolecall.threads import html_report

        return html_report.page(self._store, self._ref, card, steps)


class Run:
    """A thread that is being run in the background of this process. It has begun when it is made.

    Iterate over it for its events. Leaving the loop early stops the agent; the thread can be run again later.
    """

    def __init__(self, of: Thread, steps: int | None) -> None:
        self.thread = of
        self._steps = steps
        self._events: SimpleQueue[Event | None] = SimpleQueue()
        self._error: BaseException | None = None
        self._is_followed = False
        self._ready = threading.Event()
        self._worker = threading.Thread(target=self._work, name=f"rolecall-{of.id}")
        self._worker.start()
        self._ready.wait()

    def __iter__(self) -> Iterator[Event]:
        self._is_followed = True
        try:
            while (event := self._events.get()) is not None:
                yield event
        finally:
            self.stop()
        self._raise()

    def wait(self) -> Thread:
        """Wait until the run has stopped."""
        self._is_followed = True
        self._worker.join()
        self._raise()
        return self.thread

    def stop(self) -> None:
        """Ask the agent to end, and wait until it has."""
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._cancel.set)
        self._worker.join()

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _work(self) -> None:
        try:
            asyncio.run(self._play())
        except RolecallError as error:
            self._error = error
            if not self._is_followed:
                raise
        except BaseException as error:
            self._error = error
            raise
        finally:
            self._ready.set()
            self._events.put(None)

    async def _play(self) -> None:
        self._loop, self._cancel = asyncio.get_running_loop(), asyncio.Event()
        self._ready.set()
        # A connection belongs to the thread that opened it.
        with workspace.open_store(self.thread._rolecall._url) as store:
            await self.thread._play(store, self._events.put, self._cancel, self._steps)


class Project:
    """Plans, decisions, tasks and lessons of a project, kept in its `.nexus/` folder. Replies are the contract's."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def plan(self) -> dict[str, Any]:
        """The active plan: its issues, their decisions, and how many are left."""
        return tools.plan_status(self.folder)

    def start_plan(self, topic: str, issues: Sequence[str], *, research: str) -> dict[str, Any]:
        return tools.plan_start(self.folder, topic=topic, issues=issues, research_summary=research)

    def decide(self, issue: int, decision: str) -> dict[str, Any]:
        return tools.plan_decide(self.folder, issue_id=issue, decision=decision)

    def tasks(self) -> dict[str, Any]:
        """The tasks of the running cycle, with those that are ready."""
        return tools.task_list(self.folder)

    def add_task(
        self, title: str, context: str, *, deps: Sequence[int] = (), acceptance: str | None = None
    ) -> dict[str, Any]:
        return tools.task_add(
            self.folder, title=title, context=context, deps=list(deps), acceptance=acceptance
        )

    def update_task(self, task: int, status: str) -> dict[str, Any]:
        return tools.task_update(self.folder, id=task, status=status)

    def close_cycle(self) -> dict[str, Any]:
        """Put the plan and its tasks into the history."""
        return tools.task_close(self.folder)

    def history(self, query: str = "", *, last: int = 10) -> dict[str, Any]:
        return tools.history_search(self.folder, query=query, last_n=last)

    def memories(self) -> list[dict[str, Any]]:
        """The notes of the project, with how often each was read."""
        return memory.listed(self.folder)

    def remember(self, name: str, text: str) -> dict[str, Any]:
        """Keep a lesson as a note; refused when a note that says much the same exists."""
        return memory.add(self.folder, name, text, mask=workspace.mask())

    def recall(self, name: str) -> str:
        return memory.read(self.folder, name).text
