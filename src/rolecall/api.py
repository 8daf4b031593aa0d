"""The Python API: `rolecall.open()` returns a `Rolecall`, which starts and finds threads.

Every front door calls the methods below. A `Thread` is a handle: its properties read the store each time, so they are
up to date even if another process moved the thread.
"""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib import import_module
from queue import SimpleQueue
from time import sleep
from typing import TYPE_CHECKING, Any, Literal

from rolecall.errors import Hint, RolecallError, UsageError
from rolecall.nexus import project_paths
from rolecall.settings import config
from rolecall.settings.stores import open_store
from rolecall.settings.yaml12 import Problem
from rolecall.store.ids import ThreadId
from rolecall.store.store import Store
from rolecall.threads import listing, report, thread, views
from rolecall.threads.state import Status, ThreadRef, ThreadState
from rolecall.threads.thread import Chain, Step
from rolecall.workflow import registry
from rolecall.workflow.document import to_document
from rolecall.workflow.playbook import Playbook
from rolecall.workflow.python import Workflow, check, compile

if TYPE_CHECKING:
    import asyncio
    import tempfile

    from rolecall.agents.protocol import Cancel
    from rolecall.knowledge import place, queries
    from rolecall.knowledge.query import Answer
    from rolecall.nexus import memory, tools
    from rolecall.threads import (
        casting,
        commit,
        compose,
        handover,
        html_report,
        import_uwf,
        killing,
        lease,
        lifecycle,
    )
else:

    class _Module:
        """A module that is imported when it is first used: a program that reads threads needs none of these."""

        def __init__(self, name: str) -> None:
            self._name = name

        def __getattr__(self, name: str) -> Any:
            return getattr(import_module(self._name), name)

    asyncio, tempfile = _Module("asyncio"), _Module("tempfile")
    place, queries = _Module("rolecall.knowledge.place"), _Module("rolecall.knowledge.queries")
    memory, tools = _Module("rolecall.nexus.memory"), _Module("rolecall.nexus.tools")
    casting, commit = _Module("rolecall.threads.casting"), _Module("rolecall.threads.commit")
    compose, handover = _Module("rolecall.threads.compose"), _Module("rolecall.threads.handover")
    html_report, import_uwf = _Module("rolecall.threads.html_report"), _Module("rolecall.threads.import_uwf")
    killing, lease = _Module("rolecall.threads.killing"), _Module("rolecall.threads.lease")
    lifecycle = _Module("rolecall.threads.lifecycle")

MEMORY = ":memory:"
Folder = str | os.PathLike[str]


def open(store: str | None = None, *, folder: Folder = ".") -> Rolecall:
    """Open a store: by default the configured one, else one by its address (`sqlite:/path`, `files:/folder`,
    `postgresql://…`), or `:memory:` for a temporary one. Workflows and agents are looked up in `folder`."""
    return Rolecall(store, folder=folder)


@dataclass(frozen=True)
class Event:
    """An event in a running thread. Kinds are `step`, `text`, `tool_call`, `usage`, `suspended`, …"""

    thread: str
    kind: str
    body: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        shown = ("role", "agent", "status", "name", "reason", "error", "text")
        words = [str(self.body[key]) for key in shown if self.body.get(key)]
        return " · ".join([self.kind, *words])


class Rolecall:
    """A store and the folder to work from. Use it as a context manager, or close it."""

    def __init__(
        self, store: str | Store | None = None, *, folder: Folder = ".", create: bool = True
    ) -> None:
        """`store` is an address or a store that is already open. Without `create`, a store that does not exist is an
        error."""
        self.folder = os.path.abspath(folder)
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        if store == MEMORY:
            # A file rather than memory, so that a run in another Python thread can open the same store.
            self._scratch = tempfile.TemporaryDirectory(prefix="rolecall-")
            store = os.path.join(self._scratch.name, "store.db")
        self._url = None if isinstance(store, Store) else store
        self.store = store if isinstance(store, Store) else open_store(store, create=create)

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
        folder: Folder | None = None,
        priority: int | None = None,
        sessions: Mapping[str, Mapping[str, str]] | None = None,
        also: lifecycle.Also | None = None,
    ) -> Thread:
        """Create a thread without running it.

        Args:
            workflow: a name, a path, an id, or a `Workflow`.
            agent: plays every role.
            limits: on `steps`, `turns`, `tokens`, `cost` or `minutes`; reaching one suspends the thread.
            folder: its work folder, if not that of this `Rolecall`.
            priority: queues it for the service with this priority, 0 to 9.
            sessions: for roles that begin in a session of an earlier thread: its `thread`, `step` and `tier`.
            also: adds to the transaction that creates the thread.
        """
        playbook = self._playbook(workflow)
        check_limits(limits or {}, playbook.workflow.roles)
        agent = self._agent(agent, playbook)
        ref = lifecycle.start(
            self.store,
            self._stored(playbook),
            prompt,
            cwd=self.folder if folder is None else os.path.abspath(folder),
            mask=config.mask(),
            limits=limits,
            agent=agent,
            bind=casting.binder(agent),
            work=config.work_folder(),
            sessions=sessions,
            queue=priority,
            also=also,
        )
        lifecycle.tell_service(ref)
        return Thread(self, ref.id)

    def thread(self, name: str) -> Thread:
        """Find a thread by its id or by a unique part of its id."""
        return Thread(self, thread.find(self.store, name).id)

    def threads(
        self,
        *,
        status: str | Sequence[str] | None = None,
        workflow: str | None = None,
        text: str = "",
        since: int = 0,
        before: int | None = None,
        after: str | None = None,
        members: bool = False,
    ) -> Iterator[Thread]:
        """List threads, newest first, with any status unless `status` is given. `since` and `before` limit their start
        times, in milliseconds; the list begins after the thread `after`. With `members`, those of groups too."""
        wanted = set(Status) if status is None else {status} if isinstance(status, str) else set(status)
        if unknown := wanted - set(Status):
            raise UsageError(
                f"there is no status {', '.join(sorted(unknown))}",
                hint=f"A thread is {', '.join(sorted(Status))}.",
            )
        words = tuple(text.lower().split())
        asked = listing.Filter(frozenset(wanted), workflow, since, before, words, members)
        for found in listing.listed(self.store, asked, page=after):
            yield Thread(self, found["thread"])

    def step(self, name: str) -> dict[str, Any]:
        """Everything about a step or a failed attempt, by its id or as `THREAD#N`."""
        return views.details_named(self.store, name)

    def import_uwf(self, folder: Folder, *, cas: str | None = None) -> import_uwf.Imported:
        """Import the threads and workflows of a uwf folder; `cas` names its folder of nodes if that is elsewhere."""
        return import_uwf.import_threads(self.store, os.fspath(folder), cas=cas)

    def prune_folders(self, *, is_dry: bool = False) -> dict[str, Any]:
        """Remove folders and branches of ended threads whose work is merged."""
        return handover.prune(self.store, is_dry=is_dry)

    # -- workflows --

    def put(self, workflow: str | Workflow) -> str:
        """Store a workflow as the current version of its name and return its id."""
        playbook = self._playbook(workflow)
        return registry.remember(registry.register(self.store, playbook), playbook)

    def workflow(self, name: str) -> Mapping[str, Any]:
        """A workflow as the mapping that its YAML contains."""
        return to_document(self._playbook(name).workflow)

    def workflows(self) -> list[str]:
        """The names of the workflows that can be started from this folder."""
        return [entry.name for entry in registry.listed(self.store, folder=self.folder)]

    def validate(self, workflow: str | Workflow) -> list[Problem]:
        """Every error and warning in a workflow file or object, with its position; empty if there are none."""
        if isinstance(workflow, Workflow):
            return check(workflow, name=None, python=_address(workflow))[1]
        return list(registry.check_file(registry.find_file(workflow, folder=self.folder)).problems)

    def _playbook(self, workflow: str | Workflow) -> Playbook:
        if isinstance(workflow, Workflow):
            return compile(workflow, python=_address(workflow))
        found = registry.find(self.store, workflow, folder=self.folder)
        if found.path is not None:
            return registry.load_file(found.path)
        return registry.load_node(self.store, found.node or "")

    def _agent(self, agent: str | None, playbook: Playbook) -> str | None:
        """Return the agent that plays every role. Raise an error now if it is unknown or missing."""
        if agent:
            agent = casting.agent_from(self.folder, agent)
            casting.refuse_miscast(playbook, agent)
        return agent

    def _stored(self, playbook: Playbook) -> str:
        draft = self.store.draft()
        node = registry.add_workflow(draft, playbook)
        draft.commit()
        return registry.remember(node, playbook)

    # -- the project --

    def project(self) -> Project:
        """The plan, tasks and memory of the project around this folder."""
        return Project(project_paths.find(self.folder))

    def query(self, question: str, *, max: int = 5, path: str | None = None) -> list[Answer]:
        """Find the passages of this repository that best answer a question."""
        asking = queries.Searcher(now=project_paths.now, tell=lambda _text: None)
        try:
            return list(asking.ask(question, place.root_of(self.folder), limit=max, path=path).answers)
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
    """The address at which another process can load a workflow object, or a guess if it has none."""
    try:
        return workflow.address()
    except UsageError:
        return f"{workflow.place.file}:{workflow.name.replace('-', '_')}"


class Thread:
    """One run of a workflow. Properties read the store; methods such as `resume` change it."""

    def __init__(self, rolecall: Rolecall, ident: ThreadId) -> None:
        self._rolecall = rolecall
        self._store = rolecall.store
        self.id = ident

    def __repr__(self) -> str:
        return f"<Thread {self.id} {self.status}>"

    # -- facts --

    @property
    def status(self) -> str:
        """`idle`, `queued`, `running`, `crashed`, `suspended`, `completed`, `failed`, `killed` or `discarded`."""
        return views.status_of(self._store, self._ref).value

    @property
    def state(self) -> ThreadState:
        """The facts that do not require reading its steps: title, folders, agents, limits, lease, …"""
        return self._ref.state

    @property
    def has_ended(self) -> bool:
        return self.state.has_ended

    @property
    def role(self) -> str | None:
        """The next role, or the role that waits for a person; None if the thread has ended."""
        return views.role_of(self._store, self._ref)

    @property
    def reason(self) -> str:
        """Why it is suspended, failed or killed."""
        return self.state.reason

    @property
    def continuation(self) -> Hint | None:
        """The action that continues it, as a code with arguments; None if it has ended."""
        ref = self._ref
        return thread.continuation(ref, is_held=views.status_of(self._store, ref) == Status.RUNNING)

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
        """Steps, turns, tokens, cost and minutes so far, including failed attempts. Amounts that no agent reported are
        missing rather than zero."""
        return {key: value for key, value in self.summary()["usage"].items() if key != "roles"}

    def entry(self) -> dict[str, Any]:
        """A short description of the thread, as `rolecall thread list --json` prints it."""
        return views.entry(self._store, self._ref)

    def summary(self) -> dict[str, Any]:
        """The state of the thread, as `rolecall thread show --json` prints it."""
        return views.card(self._store, self._ref)

    def result(self) -> dict[str, Any] | None:
        """The last answer, the files that agents reported, and the usage; None if no role has answered yet."""
        return views.result(self._store, self._ref)

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

    def run(self, *, steps: int | None = None, agent: str | None = None) -> Run:
        """Run the thread in the background until it ends, waits for a person, or has taken `steps` steps. Iterate over
        the result to follow it, or call `wait()` to wait for its end. `agent` plays every role in this run."""
        self._check_begin(agent)
        return Run(self, steps, agent)

    def step(self, *, agent: str | None = None) -> Thread:
        """Take one step and wait for it."""
        self.run(steps=1, agent=agent).wait()
        return self

    async def arun(
        self, *, steps: int | None = None, agent: str | None = None, cancel: asyncio.Event | None = None
    ) -> AsyncIterator[Event]:
        """Like `run`, but for a running event loop: yield events as they happen. Leaving the loop early, or setting
        `cancel`, stops the agent."""
        self._check_begin(agent)
        events: asyncio.Queue[Event | None] = asyncio.Queue()
        stop = asyncio.Event() if cancel is None else cancel

        async def play() -> None:
            try:
                await self._play(self._store, events.put_nowait, stop, steps, agent)
            finally:
                events.put_nowait(None)

        playing = asyncio.create_task(play())
        try:
            while (event := await events.get()) is not None:
                yield event
        finally:
            stop.set()
            await playing

    def _check_begin(self, agent: str | None) -> None:
        """Raise an error now if a run could not take its first step."""
        ref = self._ref
        lease.refuse_ended(ref)
        if ref.state.status != Status.SUSPENDED:
            bound = {} if agent else ref.state.agents
            casting.refuse_miscast(replace(self._playbook, bound=bound), agent or ref.state.agent)

    async def _play(
        self,
        store: Store,
        tell: Callable[[Event], None],
        cancel: Cancel,
        steps: int | None,
        agent: str | None,
    ) -> None:
        state = thread.find(store, self.id).state
        if state.status == Status.SUSPENDED:
            return
        engine = compose.engine(
            store,
            agent=agent or state.agent,
            folder=state.cwd,
            watch=lambda kind, body: tell(Event(self.id, kind, body)),
        )
        try:
            async for _ in replace(engine, keeps_agents=not agent).run(self.id, cancel=cancel, steps=steps):
                pass
        finally:
            await engine.close()

    def watch(self, *, after: int = 0) -> Iterator[Event]:
        """Yield the events that any process records for the thread, until it ends or waits for a person."""
        while True:
            ref = self._ref  # read before the events, so that they include those that led to this state
            while found := self._store.events(self.id, after=after, limit=500):
                for event in found:
                    yield Event(self.id, event.kind, event.body)
                after = found[-1].seq
            if ref.state.is_over or views.status_of(self._store, ref) == Status.CRASHED:
                return
            sleep(0.2)

    # -- steering --

    def resume(
        self,
        text: str | None = None,
        *,
        limits: Mapping[str, float] | None = None,
        agent: str | None = None,
        is_run_here: bool = False,
    ) -> Thread:
        """Continue a suspended thread: with a message to the role that waits, with higher limits, or to try again. If
        `agent` is given, it plays every role from now on. If the service ran the thread before, the service continues
        it, unless `is_run_here`."""
        if limits:
            check_limits(limits, self._playbook.workflow.roles)
        agent = self._rolecall._agent(agent, self._playbook)
        ref = lifecycle.resume(
            self._store,
            self._ref,
            mask=config.mask(),
            answer=text,
            limits=limits,
            agent=agent,
            bind=casting.binder(agent) if agent else None,
            is_run_here=is_run_here,
        )
        lifecycle.tell_service(ref)
        return self

    def answer(self, output: Mapping[str, Any], body: str = "", *, is_run_here: bool = False) -> Thread:
        """Play the role as a person: `output` must fit its schema."""
        ref = commit.answer(
            self._store,
            self._ref,
            self._playbook,
            output,
            body=body,
            mask=config.mask(),
            is_run_here=is_run_here,
        )
        lifecycle.tell_service(ref)
        return self

    def fork(
        self,
        *,
        at: int | str | None = None,
        workflow: str | Workflow | None = None,
        prompt: str | None = None,
        agent: str | None = None,
    ) -> Thread:
        """Create a thread that shares the steps up to `at` (a number, an id or `"start"`; by default the head)."""
        node, source = views.step_named(self._store, self.id, None if at is None else str(at))
        playbook = None if workflow is None else self._rolecall._playbook(workflow)
        agent = self._rolecall._agent(agent, playbook or self._playbook)
        ref = lifecycle.fork(
            self._store,
            node,
            mask=config.mask(),
            source=source,
            workflow=None if playbook is None else self._rolecall._stored(playbook),
            prompt=prompt,
            agent=agent,
            bind=casting.binder(agent or (source.state.agent if source else None)),
            work=config.work_folder(),
        )
        return Thread(self._rolecall, ref.id)

    def kill(self, reason: str = "killed by a program") -> Thread:
        """End the thread for good, and stop the process that runs it and its agent."""
        killing.kill(self._store, self._ref, reason, mask=config.mask())
        return self

    # -- reading --

    def diff(self, other: Thread) -> dict[str, Any]:
        """The last common step of two threads, and the differences in prompts and outputs after it."""
        return views.difference(self._store, self._ref, other._ref)

    def read(self, *, max_chars: int = 10_000, before: str | None = None) -> str:
        """Prompts, actions and answers as Markdown: the newest steps that fit, or those before the step `before`."""
        found = views.read(self._store, self._ref, quota=max_chars, before=before, with_start=before is None)
        return str(found["text"])

    def export(
        self,
        format: Literal["html", "markdown"] = "html",
        *,
        limit: int | None = report.SHORT,
        warn: Callable[[str], object] = lambda _text: None,
    ) -> str:
        """A report of the whole thread as one self-contained page or as Markdown. Texts are cut after `limit`
        characters; None shows everything. `warn` is called with anything that could not be shown."""
        card, steps = views.gather(self._store, self._ref)
        if format == "markdown":
            return report.markdown(card, steps, limit=limit)
        return html_report.page(self._store, self._ref, card, steps, limit=limit, warn=warn)

    # -- its own folders --

    def folders(self) -> list[dict[str, Any]]:
        """The thread's own work folders and the changes in them."""
        return [handover.show(kind, folder) for kind, folder in self.state.folders.items()]

    def merge_folder(self) -> dict[str, Any]:
        """Merge the thread's branch into the branch that is checked out where the thread was started."""
        return handover.merge(self._store, self._ref)

    def remove_folders(self, *, force: bool = False) -> dict[str, Any]:
        """Remove the thread's own folders and branch. Work that exists nowhere else is removed only with `force`."""
        return handover.remove(self._store, self._ref, force=force)


class Run:
    """A run of a thread in the background of this process, which begins at once.

    Iterate over it to get its events. Leaving the loop early stops the agent; the thread can be run again later.
    """

    def __init__(self, of: Thread, steps: int | None, agent: str | None = None) -> None:
        self.thread = of
        self._steps = steps
        self._agent = agent
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
        """Ask the agent to stop, and wait until it has."""
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
        # A connection may be used only in the Python thread that opened it.
        with open_store(self.thread._rolecall._url) as store:
            await self.thread._play(store, self._events.put, self._cancel, self._steps, self._agent)


class Project:
    """The plans, decisions, tasks and lessons in a project's `.nexus/` folder. Methods return the contract's reply."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def plan(self) -> dict[str, Any]:
        """The active plan: its issues, their decisions, and how many are left."""
        return tools.plan_status(self.folder)

    def start_plan(self, topic: str, issues: Sequence[str], *, research: str) -> dict[str, Any]:
        """Start a plan with the questions to decide; `research` is a summary of what is known."""
        return tools.plan_start(self.folder, topic=topic, issues=issues, research_summary=research)

    def decide(self, issue: int, decision: str) -> dict[str, Any]:
        """Record the decision on an issue."""
        return tools.plan_decide(self.folder, issue_id=issue, decision=decision)

    def tasks(self) -> dict[str, Any]:
        """The tasks of the current cycle, and which of them are ready."""
        return tools.task_list(self.folder)

    def add_task(
        self, title: str, context: str, *, deps: Sequence[int] = (), acceptance: str | None = None
    ) -> dict[str, Any]:
        """Add a task that can begin once the tasks `deps` are completed."""
        return tools.task_add(
            self.folder, title=title, context=context, deps=list(deps), acceptance=acceptance
        )

    def update_task(self, task: int, status: str) -> dict[str, Any]:
        """Set the status of a task: `pending`, `in_progress` or `completed`."""
        return tools.task_update(self.folder, id=task, status=status)

    def close_cycle(self) -> dict[str, Any]:
        """Move the plan and its tasks to the history."""
        return tools.task_close(self.folder)

    def history(self, query: str = "", *, last: int = 10) -> dict[str, Any]:
        """The newest closed cycles that contain the words of `query`."""
        return tools.history_search(self.folder, query=query, last_n=last)

    def memories(self) -> list[dict[str, Any]]:
        """The notes of the project, with the number of times each was read."""
        return memory.list_notes(self.folder)

    def remember(self, name: str, text: str) -> dict[str, Any]:
        """Save a lesson as a note; refused if a very similar note exists."""
        return memory.add(self.folder, name, text, mask=config.mask())

    def recall(self, name: str) -> str:
        """The text of a note."""
        return memory.read(self.folder, name).text
