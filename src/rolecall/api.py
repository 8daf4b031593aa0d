"""The Python API: `rolecall.open()` returns a `Rolecall`, which starts and finds threads.

Every front door calls the methods below. A `Thread` is a handle: its properties read the store each time, so they are
up to date even if another process moved the thread.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from itertools import islice
from time import monotonic, sleep, time
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from rolecall.errors import Conflict, Hint, InvalidPayload, NotFound, RolecallError, UsageError
from rolecall.settings import config, repository

if TYPE_CHECKING:
    import asyncio
    import dataclasses
    import queue
    import shutil
    import tempfile
    import threading

    from rolecall.agents import confinement
    from rolecall.agents.protocol import Cancel
    from rolecall.checks import workflow_file
    from rolecall.evals import (
        begin,
        bisect,
        check,
        compare,
        gate,
        html,
        judge,
        promote,
        recorded,
        records,
        results,
        run,
        suite,
    )
    from rolecall.files import merge, packs, tree
    from rolecall.files.packs import PackComparison
    from rolecall.hosts.lead import conversation
    from rolecall.knowledge import place, queries
    from rolecall.knowledge.query import FoundPassage
    from rolecall.nexus import memory, overview, project_paths, tools
    from rolecall.settings import settings, stores, yaml12
    from rolecall.settings.yaml12 import Problem
    from rolecall.store import bundle, holder, ids
    from rolecall.store.backend import StoredEvent
    from rolecall.store.canonical import JsonObject
    from rolecall.store.ids import Node, ThreadId
    from rolecall.store.store import Store
    from rolecall.threads import (
        casting,
        commit,
        compose,
        dry_run,
        handover,
        html_report,
        import_uwf,
        kept_files,
        killing,
        lease,
        lifecycle,
        listing,
        provenance,
        report,
        requests,
        seal,
        setup,
        spending,
        step_files,
        tail,
        text_search,
        thread,
        tryout,
        turn,
        views,
        why,
        workfolder,
    )
    from rolecall.threads import state as states
    from rolecall.threads.engine import Engine, Outcome
    from rolecall.threads.setup import Cast, Watch
    from rolecall.threads.state import ThreadRef, ThreadState
    from rolecall.threads.thread import Chain, Step
    from rolecall.traces import follow, otlp
    from rolecall.traces import spans as projection
    from rolecall.workflow import (
        document,
        gallery,
        model,
        pack,
        playbook,
        python,
        registry,
        reply,
        route,
        versions,
        yaml,
    )
    from rolecall.workflow.pack import Pin, Powers
    from rolecall.workflow.playbook import Playbook
    from rolecall.workflow.python import Workflow
    from rolecall.workflow.registry import Checked, Found, Version, WorkflowEntry
else:

    class _Module:
        """A module that is imported when it is first used: reading a thread starts no event loop, and checking a
        workflow opens no store."""

        def __init__(self, name: str) -> None:
            self._name = name

        def __getattr__(self, name: str) -> Any:
            return getattr(import_module(self._name), name)

    _LATER = {
        "": "asyncio dataclasses queue shutil tempfile threading",
        "rolecall.agents.": "confinement",
        "rolecall.checks.": "workflow_file",
        "rolecall.evals.": "begin bisect check compare gate html judge promote recorded records results run suite",
        "rolecall.files.": "packs tree",
        "rolecall.hosts.lead.": "conversation",
        "rolecall.knowledge.": "place queries",
        "rolecall.nexus.": "memory project_paths tools",
        "rolecall.settings.": "settings stores yaml12",
        "rolecall.store.": "bundle holder ids",
        "rolecall.threads.": "casting commit compose dry_run handover html_report import_uwf kept_files killing"
        " lease lifecycle listing provenance report requests seal setup spending step_files tail"
        " text_search thread tryout turn views why workfolder",
        "rolecall.traces.": "follow otlp",
        "rolecall.workflow.": "document gallery model pack playbook python registry reply route versions yaml",
    }
    globals().update({name: _Module(room + name) for room, names in _LATER.items() for name in names.split()})
    states = _Module("rolecall.threads.state")
    projection = _Module("rolecall.traces.spans")

MEMORY = ":memory:"
Folder = str | os.PathLike[str]


def open(store: str | None = None, *, folder: Folder = ".") -> Rolecall:
    """Open a store: by default the configured one, else one by its address (`sqlite:/path`, `files:/folder`,
    `postgresql://…`), or `:memory:` for a temporary one. Workflows and agents are looked up in `folder`."""
    if not os.path.isdir(folder):
        raise UsageError(
            f"the folder {os.fspath(folder)!r} does not exist", hint="Make it, or name one that exists."
        )
    return Rolecall(store, folder=folder)


def reader(store: str | None = None, *, folder: Folder = ".") -> Rolecall:
    """Return a Rolecall that creates nothing and opens the store when it first needs it."""
    return Rolecall(store, folder=folder, create=False, is_lazy=True)


_OVERDUE_MS = 60_000
"""How long after the end of a provider's limit a thread that waited for it counts as abandoned."""
_MOST_IDLE = 500
"""How many idle threads are looked at for that."""


EARLIER = "\n\n---\n\nThis continues a conversation, in which another thread came before."
"""Ends the words with which a person continues a conversation whose thread has ended; what follows is about it."""
_NEXT = "next/"
_FOLLOWED_WITHIN = 1.0
_LONGEST_RECAP = 4_000


class Event(NamedTuple):
    """An event in a running thread. Kinds are `step`, `text`, `tool_call`, `usage`, `suspended`, …"""

    thread: str
    kind: str
    body: Mapping[str, Any] = {}

    def __str__(self) -> str:
        shown = ("role", "agent", "status", "name", "reason", "error", "text")
        words = [str(self.body[key]) for key in shown if self.body.get(key)]
        return " · ".join([self.kind, *words])


class LoadedWorkflow(NamedTuple):
    """A workflow that is ready to run, and where it was found: a stored node or a file."""

    playbook: Playbook
    id: str | None = None
    path: str | None = None


class WorkflowDefinition(NamedTuple):
    """A workflow as a value, the node it is or would be stored as, and its file if it was found in one."""

    workflow: model.Workflow
    node: Node
    path: str | None


class Question(NamedTuple):
    """What a thread needs next: the output of `due`, or a text if `due` is None."""

    due: route.Next | None
    role: model.Role | None
    """The definition of the role that is due."""
    task: str
    is_asked: bool
    """Whether a role suspended the thread with a question."""
    before: Step | None
    """The latest step of a role."""

    @property
    def takes_words(self) -> bool:
        """Whether any words are an answer, so that a person need not choose or fill in fields."""
        return self.role is None or isinstance(reply.from_words("…", self.role.schema), reply.ParsedReply)


class Rolecall:
    """A store and the folder to work from. Use it as a context manager, or close it."""

    def __init__(
        self,
        store: str | Store | None = None,
        *,
        folder: Folder = ".",
        create: bool = True,
        is_lazy: bool = False,
    ) -> None:
        """`store` is an address or a store that is already open. Without `create`, a store that does not exist is an
        error; if `is_lazy`, only when the store is first needed."""
        self.folder = os.path.abspath(folder)
        self._creates = create
        self._is_closed = False
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        self._ledger: spending.Ledger | None = None
        if store == MEMORY:
            # A file rather than memory, so that a run in another Python thread can open the same store.
            self._scratch = tempfile.TemporaryDirectory(prefix=stores.TEMPORARY)
            store = os.path.join(self._scratch.name, "store.db")
        self._url = store if isinstance(store, str) else None
        self._store = None if store is None or isinstance(store, str) else store
        if not is_lazy:
            self._store = self.store

    def __enter__(self) -> Rolecall:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._is_closed = True
        if self._store is not None:
            self._store.close()
        if self._scratch is not None:
            kept = config.trees_folder(os.path.realpath(os.path.join(self._scratch.name, "store.db")))
            shutil.rmtree(kept, ignore_errors=True)
            self._scratch.cleanup()

    @property
    def store(self) -> Store:
        """The open store."""
        if self._is_closed:
            raise UsageError("this Rolecall is closed", hint="Open the store again: `rolecall.open()`.")
        if self._store is None:
            self._store = stores.open_store(self._url, create=self._creates)
        return self._store

    @property
    def store_if_any(self) -> Store | None:
        """The open store, or None if the configured store does not exist yet; it then counts as empty."""
        try:
            return self.store
        except NotFound:
            if self._url is not None:
                raise
            return None

    # -- threads --

    def start(
        self,
        workflow: str | Workflow | Playbook | LoadedWorkflow,
        prompt: str,
        *,
        agent: str | None = None,
        agents: Mapping[str, str] | None = None,
        limits: Mapping[str, float] | None = None,
        folder: Folder | None = None,
        priority: int | None = None,
        sessions: Mapping[str, Mapping[str, str]] | None = None,
        reuse: bool | None = None,
        ident: str | None = None,
        also: lifecycle.Also | None = None,
        request: requests.Request | None = None,
    ) -> Thread:
        """Create a thread without running it.

        Args:
            workflow: a name, a path, an id, a `Workflow`, or what `load_workflow` returned.
            agent: plays every role.
            agents: play single roles, by role; they override `agent`.
            limits: on `steps`, `turns`, `tokens`, `cost` or `minutes`; reaching one suspends the thread.
            folder: its work folder, if not that of this `Rolecall`.
            priority: queues it for the service with this priority, 0 to 9.
            sessions: for roles that begin in a session of an earlier thread: its `thread`, `step` and `tier`.
            reuse: True takes over finished steps with the same key, except where the workflow says `reuse: false`;
                False asks every role; None leaves it to the workflow.
            ident: its id, which `new_id` has returned.
            also: adds to the transaction that creates the thread.
            request: if an earlier one with the same key has created a thread, that thread is returned.
        """
        loaded = self.load_workflow(workflow)
        check_limits(limits or {}, loaded.playbook.workflow.roles)
        if not isinstance(prompt, str):
            raise UsageError(f"a prompt is text, not {prompt!r}", hint="Say in words what to do.")
        if priority is not None and priority not in range(10):
            raise UsageError(
                f"a priority is a number from 0 to 9, not {priority!r}", hint="9 is asked first."
            )
        if ident is not None:
            ids.thread_time(ident)
            if self.thread_if_any(ident):
                raise UsageError(f"the thread {ident} exists already", hint="`Rolecall.new_id` makes ids.")
        book = casting.assign(loaded.playbook, agents or {}, self.folder)
        agent = self._agent(agent, book)
        if agents:
            casting.refuse_miscast(book, agent)

        def create(also: lifecycle.Also | None) -> ThreadRef:
            return lifecycle.start(
                self.store,
                loaded.id or loaded.playbook,
                prompt,
                cwd=self.folder if folder is None else os.path.abspath(folder),
                mask=config.mask(),
                limits=limits,
                agent=agent,
                bind=casting.binder(agent, book.bound),
                work=config.work_folder(),
                sessions=sessions,
                reuse=reuse,
                queue=priority,
                ident=ident,
                also=also,
            )

        ref = requests.create_once(self.store, request, also, create) if request else create(also)
        registry.remember(ref.state.workflow, loaded.playbook)
        lifecycle.tell_service(ref)
        return Thread(self, ref.id)

    def talk(
        self,
        text: str,
        *,
        workflow: str | LoadedWorkflow = "lead",
        agent: str | None = None,
        limits: Mapping[str, float] | None = None,
        ident: str | None = None,
    ) -> Thread:
        """Start a conversation with a person's words, by default with the Lead; `Thread.say` continues it. Tags in
        words to the Lead are carried out, and the Lead learns where the project stands, as in a host. The other
        arguments are those of `start`."""
        loaded = self.load_workflow(workflow)
        agent = self._agent(agent, loaded.playbook)
        if not agent:  # before a thread is made or a tag carried out
            casting.refuse_miscast(loaded.playbook, None)
        if loaded.playbook.workflow.name != conversation.WORKFLOW:
            return self.start(loaded, text, agent=agent, limits=limits, ident=ident)
        ident = ident or self.new_id()
        heard = conversation.receive(self.folder, ident, text, is_new=True)
        words = conversation.attach(text, heard.context)
        made = self.start(loaded, words, agent=agent, limits=limits, ident=ident)
        made.notice = heard.notice
        return made

    def tags(self) -> dict[str, str]:
        """What a person can type to the Lead, such as `[plan]`, and what it does."""
        return conversation.list_tags()

    def new_id(self) -> str:
        """An id for a thread that is started later."""
        return thread.new_thread_id(self.store.now())

    def find_requested(self, request: requests.Request) -> Thread | None:
        """The thread that an earlier request with the same key has created, if any."""
        store = self.store_if_any
        made = requests.find(store, request, store.ref(requests.REF)) if store else None
        return Thread(self, made.id) if made else None

    def look_ahead(
        self,
        workflow: str | Workflow | Playbook | LoadedWorkflow,
        prompt: str,
        *,
        agent: str | None = None,
        limits: Mapping[str, float] | None = None,
        folder: Folder | None = None,
        reuse: bool | None = None,
    ) -> dry_run.Outlook:
        """Which first steps of a thread would be reused, and what the rest may use. The arguments are those of
        `start`; nobody is asked, no thread is started and nothing is written to the store."""
        loaded = self.load_workflow(workflow)
        check_limits(limits or {}, loaded.playbook.workflow.roles)
        agent = self._agent(agent, loaded.playbook)
        cwd = self.folder if folder is None else os.path.abspath(folder)
        store = self.store_if_any
        if store is None:
            with Rolecall(MEMORY, folder=self.folder) as empty:
                return empty.look_ahead(
                    loaded, prompt, agent=agent, limits=limits, folder=folder, reuse=reuse
                )

        async def look() -> dry_run.Outlook:
            engine = compose.engine(store, agent=agent, folder=cwd)
            try:
                return await dry_run.look_ahead(
                    engine, loaded.playbook, prompt, cwd=cwd, limits=limits, chosen=reuse
                )
            finally:
                await engine.close()

        return asyncio.run(look())

    def thread(self, name: str) -> Thread:
        """Find a thread by its id or by a unique part of its id."""
        return Thread(self, thread.find(self.store, name).id)

    def latest_thread(self, *, is_waiting: bool = False) -> Thread | None:
        """The thread that was started last in this folder, or in one above it in the same repository; with
        `is_waiting`, the last of those that wait for a person or for the end of a limit."""
        place = os.path.realpath(self.folder)
        folders, root = [place], repository.root_around(place) or place
        while place != root:
            place = os.path.dirname(place)
            folders.append(place)
        store = self.store_if_any
        ref = listing.find_latest(store, folders, is_waiting=is_waiting) if store else None
        return Thread(self, ref.id) if ref else None

    def thread_if_any(self, ident: str) -> Thread | None:
        """The thread with this id, or None if it is not in the store."""
        store = self.store_if_any
        ref = states.read_thread(store, ident) if store else None
        return Thread(self, ref.id) if ref else None

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
        """List threads, newest first; the arguments are those of `entries`."""
        for entry in self.entries(
            status=status,
            workflow=workflow,
            text=text,
            since=since,
            before=before,
            after=after,
            members=members,
        ):
            yield Thread(self, entry["thread"])

    def entries(
        self,
        *,
        status: str | Sequence[str] | None = None,
        workflow: str | None = None,
        text: str = "",
        since: int = 0,
        before: int | None = None,
        after: str | None = None,
        members: bool = False,
        look: Callable[[str], bool] | None = None,
    ) -> Iterator[views.View]:
        """Describe threads as `Thread.entry` does, newest first, with any status unless `status` is given. `since` and
        `before` limit their start times, in milliseconds; the list begins after the thread `after`. With `members`,
        those of groups too. `look` is called with the id of each thread before it is looked at, also of those that are
        then left out; the list ends when it returns False."""
        given = {status} if isinstance(status, str) else status
        wanted = set(states.Status if given is None else given)
        if unknown := wanted - set(states.Status):
            raise UsageError(
                f"unknown status {', '.join(map(repr, sorted(unknown)))}",
                hint=f"A thread is {', '.join(sorted(states.Status))}.",
            )
        words = tuple(text.lower().split())
        asked = listing.Filter(frozenset(wanted), workflow, since, before, words, members)
        store = self.store_if_any
        return listing.list_threads(store, asked, page=after, look=look) if store else iter(())

    def events(self, *, after: int, limit: int = 500) -> list[StoredEvent]:
        """The recorded events of all threads with a number (`seq`) above `after`, oldest first."""
        store = self.store_if_any
        return store.events(after=after, limit=limit) if store else []

    def newest_event(self) -> int:
        """The number of the newest recorded event, 0 before the first."""
        store = self.store_if_any
        return store.newest_event() if store else 0

    def waiting(self) -> Iterator[views.View]:
        """Threads in which nothing happens until a person acts, newest first: suspended ones, members of groups
        included, and crashed ones; then those that nobody runs although the limit of their provider has ended. Left out
        are threads that wait for another, and members whose group has ended."""
        for entry in self.entries(status=("suspended", "crashed"), members=True):
            state = self.thread(entry["thread"]).state
            parent = self.thread_if_any(state.parent) if state.member and state.parent else None
            if not state.asks and not (parent and parent.has_ended):
                yield entry
        late = int(time() * 1000) - _OVERDUE_MS
        for entry in islice(self.entries(status="idle"), _MOST_IDLE):
            if entry.get("until", late) < late:
                yield entry

    def set_aside(self) -> Iterator[views.View]:
        """Members of groups and tasks of `plan run` whose work could not be merged, newest first: the entries of their
        threads with the `branch` that has it, the `reason`, and the `conflict`. Only those of the repository of the
        folder, and only until another branch has the work or the branch is gone."""
        store = self.store_if_any
        if store is None:
            return
        for ref, known in handover.list_set_aside(store, self.folder):
            told = {key: known[key] for key in ("branch", "reason", "conflict") if key in known}
            yield {**views.entry(store, ref), **told}

    def near_limits(self, *, share: float = 0.8, seconds: float = 1.0) -> views.View:
        """Threads that have not ended and have used this share of a limit, the one nearest to its limit first. If
        `seconds` do not suffice to look at all of them, older ones are left out, and `more` is true."""
        until, found, has_more = monotonic() + seconds, list[views.View](), False
        open_ones = sorted({*states.Status} - {*states.ENDED, states.Status.DAMAGED})
        for entry in self.entries(status=open_ones):
            if monotonic() > until:
                has_more = True
                break
            shown = self.thread(entry["thread"]).summary()
            used = shown.get("usage", {})
            for limit, most in shown.get("limits", {}).items():
                if most and used.get(limit, 0) >= share * most:
                    found.append({**entry, "limit": limit, "used": used[limit], "most": most})
        return {"threads": sorted(found, key=lambda one: -one["used"] / one["most"]), "more": has_more}

    def search(
        self, text: str, *, after: str | None = None, limit: int = 20, seconds: float = 2.0
    ) -> text_search.SearchPage:
        """Threads whose task or answers contain all words of `text`, newest first, as far as `seconds` allow; `next`
        continues the search if given as `after`."""
        store = self.store_if_any
        if store is None or not text.strip():
            return text_search.SearchPage()
        asked = listing.Filter(frozenset(states.Status), None, 0, None, (), True)
        return text_search.search(store, text, asked=asked, after=after, limit=limit, seconds=seconds)

    def spend(self, *, since: int, seconds: float = 2.0) -> views.View:
        """What threads that moved after `since` (milliseconds) used, by day, workflow, role and agent. Steps without a
        reported cost are counted apart. If `seconds` do not suffice, `left` threads are counted by the next call."""
        store = self.store_if_any
        if store is None:
            return {"since": since, "threads": 0, "completed": 0, "left": 0, "rows": []}
        self._ledger = self._ledger or spending.Ledger()
        return self._ledger.read(store, since=since, seconds=seconds)

    def cost(self, *, since: int, by: str = "workflow") -> spending.SpendingSummary:
        """What was used after `since` (milliseconds), by local `day`, `workflow`, `role`, `agent` or `thread`;
        reported, estimated and unknown costs apart. All threads are counted, however long that takes."""
        if by not in spending.GROUPINGS:
            raise UsageError(f"costs cannot be listed by {by!r}", hint=f"By {', '.join(spending.GROUPINGS)}.")
        ledger, store = spending.Ledger(since), self.store_if_any
        while store is not None and ledger.read(store, since=since, seconds=60.0)["left"]:
            pass
        return ledger.summarize(by=by)

    def short_id_length(self) -> int:
        """How many characters at the end of an id distinguish all threads of the store."""
        store = self.store_if_any
        return thread.short_id_length(store) if store else 26

    def step(self, name: str) -> views.View:
        """Everything about a step or a failed attempt, by its id or as `THREAD#N`."""
        return views.details_named(self.store, name)

    def find_step(self, ident: str) -> Step:
        """A step by its id."""
        return thread.Step(self.store, self.store.get(ident))

    def prove(self, commit: str, *, bundle: Folder | None = None) -> provenance.Proof:
        """Where a commit of the repository around the folder comes from: its steps, agents, checks and people, and
        whether all of that is as it was. `bundle` is a proof file (`Proof.sealed.dump()`), which is used instead of the
        store. Raise `NotFound` if no step is known that made the commit."""
        if bundle is not None:
            given = seal.read_chain(os.fspath(bundle))
            return provenance.prove(self.folder, commit, store=None, given=given)
        store = self.store_if_any
        trees = tree.Trees(config.trees_folder(store.backend.address)) if store else None
        return provenance.prove(self.folder, commit, store=store, trees=trees)

    def fork(
        self,
        name: str,
        *,
        at: int | str | None = None,
        workflow: str | Workflow | None = None,
        prompt: str | None = None,
        agent: str | None = None,
        keep_files: bool = False,
        reuse: bool | None = None,
        request: requests.Request | None = None,
    ) -> Thread:
        """Create a thread that shares the steps of another up to a step. `name` is a thread, `THREAD#N` or a step's id;
        `at` is a number, an id or `"start"` in that thread, by default its head. It works in a folder of its own with
        the files of that step, or, with `keep_files`, with the files as they are now. `reuse` and `request` are those
        of `start`; if the next role is a group, its members are reused by default."""
        node, source = views.step_named(self.store, name, None if at is None else str(at))
        loaded = None if workflow is None else self.load_workflow(workflow)
        if agent:
            old = loaded or self.load_workflow(thread.Chain(self.store, node).start.workflow)
            agent = self._agent(agent, old.playbook)

        def create(also: lifecycle.Also | None) -> ThreadRef:
            return lifecycle.fork(
                self.store,
                node,
                mask=config.mask(),
                source=source,
                workflow=loaded and (loaded.id or loaded.playbook),
                prompt=prompt,
                agent=agent,
                bind=casting.binder(agent or (source.state.agent if source else None)),
                work=config.work_folder(),
                trees=None if keep_files else config.trees_folder(self.store.backend.address),
                reuse=reuse,
                also=also,
            )

        ref = requests.create_once(self.store, request, None, create) if request else create(None)
        if loaded:
            registry.remember(ref.state.workflow, loaded.playbook)
        return Thread(self, ref.id)

    def crew(self, *, agent: str | None = None, tiers: Mapping[str, str] | None = None) -> Crew:
        """Agents that take steps of several threads in this process; `agent` plays every role, `tiers` are the model
        tiers of roles that have one."""
        return Crew(compose.engine(self.store, agent=agent, tiers=tiers, shares_process=True))

    def import_uwf(
        self,
        folder: Folder,
        *,
        cas: str | None = None,
        keep_going: bool = False,
        progress: Callable[[int], None] = lambda _count: None,
    ) -> import_uwf.Imported:
        """Import the threads and workflows of a uwf folder; `cas` names its folder of nodes if that is elsewhere. With
        `keep_going`, damaged nodes are left out instead of raising an error."""
        return import_uwf.import_threads(
            self.store, os.fspath(folder), cas=cas, keep_going=keep_going, progress=progress
        )

    def collector(self, url: str | None = None, *, content: bool | None = None) -> settings.Collector | None:
        """The configured collector of traces, or the one at `url`; only the configured one gets headers. `content` says
        whether it gets prompts, answers and tool results; None leaves that to the configuration."""
        known = settings.collector(config.load(), config.environment(), url)
        return known if known is None or content is None else known._replace(content=content)

    def encode_traces(self, threads: Iterable[Thread], *, content: bool = False) -> Iterator[JsonObject]:
        """Threads as requests of OTLP in JSON, which are also lines of a collector's files."""
        return otlp.encode(span for one in threads for span in one.spans(content=content))

    def export_traces(self, threads: Iterable[Thread], collector: settings.Collector) -> otlp.Sent:
        """Send threads as traces to a collector. Doing it again sends the same spans, so it is harmless."""
        found = (span for one in threads for span in one.spans(content=collector.content))
        return otlp.send(found, collector)

    def follow_traces(
        self, collector: settings.Collector, *, stop: threading.Event, say: Callable[[str], None]
    ) -> None:
        """Send each step to a collector when it is committed, by any process, until `stop` is set. The position is kept
        in the store. `say` gets a sentence about each problem, and an empty one when it has ended."""
        follow.Follower(self.store, collector, config.mask(), say).run(stop)

    def export(self, path: Folder) -> bundle.Copied:
        """Write the whole store, with the files that steps recorded, to a bundle, which `import_bundle` takes over."""
        add_files = partial(kept_files.add_to_bundle, self.store)
        return bundle.export_to(self.store, os.fspath(path), add_files=add_files)

    def import_bundle(self, path: Folder) -> bundle.Copied:
        """Take over the threads, workflows and recorded files of a bundle."""
        take_files = partial(kept_files.take_from_bundle, self.store)
        return bundle.import_from(self.store, os.fspath(path), take_files=take_files)

    def restore_folders(self) -> list[str]:
        """Make the work folders of all threads that have not ended as their last steps left them, after they came to
        this machine in a bundle, and return the folders. The paths must be those of the other machine, and the commits
        that threads work on must be there. Files in those folders are replaced."""
        place = config.trees_folder(self.store.backend.address)
        unfinished = [ref for ref in states.read_threads(self.store) if not ref.state.has_ended]
        return workfolder.bring_back(self.store, sorted(unfinished, key=lambda ref: ref.id), place)

    def prune_folders(self, *, is_dry: bool = False) -> views.View:
        """Remove folders and branches of ended threads whose work is merged."""
        return handover.prune(self.store, is_dry=is_dry)

    # -- workflows --

    def put(self, workflow: str | Workflow | Playbook, *, is_named: bool = True) -> str:
        """Store a workflow as the current version of its name, unless `is_named` is false, and return its id."""
        book = self.look_up(workflow) if isinstance(workflow, str) else self.load_workflow(workflow).playbook
        node = (registry.register if is_named else registry.keep)(self.store, book)
        # A playbook from a file may lack the functions of its roles, because a child process has loaded it.
        return node if isinstance(workflow, (str, playbook.Playbook)) else registry.remember(node, book)

    def workflow(self, name: str) -> JsonObject:
        """A workflow as the mapping that its YAML contains."""
        return document.to_document(self.define(name).workflow)

    def workflows(self) -> list[str]:
        """The names of the workflows that can be started from this folder."""
        return [entry.name for entry in self.workflow_entries()]

    def workflow_entries(self) -> list[WorkflowEntry]:
        """The workflows that can be started from this folder: `name`, `node`, `path` and `origin`."""
        return registry.list_entries(self.store_if_any, folder=self.folder)

    def gallery(self) -> list[WorkflowEntry]:
        """The workflows that come with Rolecall and can be started from anywhere, unless one here has the same name."""
        return registry.gallery_entries(self.workflows())

    def stored_workflows(self) -> list[str]:
        """The names under which a workflow was put."""
        return [ref.name.partition("/")[2] for ref in self.store.refs("workflow/")]

    def describe(self, entry: WorkflowEntry) -> str | None:
        """Describe a workflow of the list, or say why it cannot be read; None for Python, whose code is not run."""
        try:
            if entry.node is not None:
                return str(registry.workflow_node(self.store, entry.node).payload.get("description", ""))
            path = str(entry.path)
            if path.endswith(".py"):
                return None
            if gallery.has_file(path):
                return gallery.summaries()[entry.name]
            workflow = yaml.load_file(path).workflow
            return workflow.description if workflow else "(does not validate)"
        except RolecallError as error:
            return f"({error.message})"

    def read_workflow(self, ident: str) -> model.Workflow:
        """A stored workflow by its id, without running its code."""
        return registry.read_node(self.store, ident)[0]

    def versions(self, name: str) -> list[Version]:
        """The versions that were put under a name, newest first."""
        store = self.store_if_any
        return registry.history(store, name) if store else []

    def count_versions(self, name: str) -> int:
        """How many versions were put under a name; none of them is read."""
        store = self.store_if_any
        return len(store.history(registry.ref_name(name))) if store else 0

    def workflow_files(self) -> list[str]:
        """The workflow files of the project around this folder, nearest first."""
        return list(registry.project_files(self.folder))

    def id_of(self, book: Playbook) -> str:
        """The id under which a workflow is or would be stored."""
        return registry.stored_form(book).id

    def remove_copies(self, *, grace_ms: int) -> list[str]:
        """Remove the copies of Python workflows that no thread in the store was started with."""
        before = (self.store.now() - grace_ms) / 1000
        folder = config.versions_folder(self._url)
        return versions.clean(folder, registry.python_files(self.store), before=before)

    def find_file(self, name: str) -> str:
        """Find a workflow file by its name in the project or by its path."""
        return str(registry.find(None, self._as_path(name), folder=self.folder).path)

    def _as_path(self, name: str) -> str:
        is_file = "/" not in name and "." in name and os.path.isfile(os.path.join(self.folder, name))
        return f"./{name}" if is_file else name

    def find_workflow(self, name: str) -> Found:
        """Find a workflow by its name, path or id without loading it."""
        name = self._as_path(name)
        # Opening a store takes longer than checking a file.
        return registry.find(None if registry.is_path(name) else self.store_if_any, name, folder=self.folder)

    def load_workflow(
        self,
        workflow: str | Workflow | Playbook | LoadedWorkflow,
        *,
        warn: Callable[[Problem], object] = lambda _problem: None,
        is_kept: bool = False,
        has_any_name: bool = False,
    ) -> LoadedWorkflow:
        """Load a workflow to start threads of it. `warn` is called with each warning about a file; with `is_kept`, one
        written in Python is loaded from a copy that does not change; with `has_any_name`, the name of a file need not
        be that of its workflow."""
        if isinstance(workflow, LoadedWorkflow):
            return workflow
        if isinstance(workflow, playbook.Playbook):
            return LoadedWorkflow(workflow)
        if not isinstance(workflow, str):
            return LoadedWorkflow(python.compile(workflow, python=_address_of(workflow)))
        found = self.find_workflow(workflow)
        if found.path is None:
            loaded = LoadedWorkflow(registry.load_node(self.store, str(found.node)), found.node)
        elif is_kept:
            book = compose.load_workflow(found.path, store=self._url, warn=warn)
            loaded = LoadedWorkflow(book, path=found.path)
        else:
            book = registry.load_file(found.path, warn=warn, has_any_name=has_any_name)
            loaded = LoadedWorkflow(book, path=found.path)
        self._check_nested(loaded)
        return loaded

    def look_up(self, name: str) -> Playbook:
        """Load a workflow to look at it. A file in Python is loaded in a sandbox, where the machine has one, and its
        playbook lacks the functions."""
        found = self.find_workflow(name)
        if found.path is None or not found.path.endswith(".py"):
            return self.load_workflow(name).playbook
        registry.check_trust(found.path)
        checked = workflow_file.check_apart(found.path, folder=self.folder)
        if checked.playbook is None:
            raise yaml12.refusal(found.path, checked.problems)
        self._check_nested(LoadedWorkflow(checked.playbook, path=found.path))
        return checked.playbook

    def _load_version(self, name: str) -> Playbook:
        """Load a workflow by its name, path or id, or one of the versions that were put under a name: NAME@PREVIOUS is
        the newest that differs from the current one, NAME@ID one whose id begins so."""
        base, at, wanted = name.rpartition("@")
        if not at or registry.is_path(name):
            return self.load_workflow(name).playbook
        known = self.versions(base)
        if wanted.upper() == "PREVIOUS":
            current = self.id_of(self.load_workflow(base).playbook)
            chosen = [one.node for one in known if one.node != current]
        else:
            chosen = [one.node for one in known if wanted and one.node.startswith(wanted.upper())]
        if not chosen:
            raise NotFound(
                f"the workflow {base!r} has no version {wanted!r}",
                hint=Hint("Put versions under their name, and list them", "workflow_history", workflow=base),
            )
        return self.load_workflow(chosen[0]).playbook

    # -- workflows of other projects --

    def add_workflows(self, source: str, names: Sequence[str] = ()) -> tuple[dict[str, Pin], list[str]]:
        """Take workflows from a folder or a git repository, `SOURCE` or `SOURCE#REF`, into this project. Return where
        each comes from, and the names that the source also has. Nothing of it runs."""
        return packs.add(self.folder, source, names)

    def compare_workflows(self, names: Sequence[str] = (), *, ref: str | None = None) -> list[PackComparison]:
        """Compare workflows of packs, by default all, with what their sources have now."""
        return packs.compare(self.folder, names, ref=ref)

    def update_workflows(self, chosen: Sequence[PackComparison]) -> None:
        """Replace workflows by what their sources have."""
        packs.update(self.folder, chosen)

    def powers(self, name: str) -> list[Powers]:
        """What a workflow file may do, and what the files may do that belong to it or play its roles. No code runs."""
        found: dict[str, Powers] = {}
        waiting = [self.find_file(name)]
        while waiting:
            for one in pack.describe(waiting.pop(0)):
                if one.path not in found:
                    found[one.path] = one
                    waiting += self._files_of(one.nested)
        return list(found.values())

    def trust(self, powers: Sequence[Powers]) -> None:
        """Allow the workflows of packs that `powers` described, until their files change."""
        for one in powers:
            if one.pin:
                pack.trust(one.path, one.content)

    def _check_nested(self, loaded: LoadedWorkflow) -> None:
        """Find what would keep workflows from playing roles, before other roles cost money."""
        workflow = loaded.playbook.workflow
        for path in self._nested_files(model.nested_workflows(workflow)):
            registry.check_trust(path)
        for role in workflow.roles if loaded.path else ():
            members = model.member_roles(workflow, role) if workflow.roles[role].group else ()
            if loaded.path in self._nested_files(model.nested_workflows(workflow, members)):
                raise UsageError(
                    f"{loaded.path}: members of {role!r} are played by a workflow that leads back to this one",
                    hint="It would never end. Let another workflow play them.",
                )

    def _nested_files(self, names: Sequence[str]) -> list[str]:
        """The files of the workflows with these names and of those that play their roles, directly or through one
        another."""
        found: list[str] = []
        waiting = list(self._files_of(names))
        while waiting:
            path = waiting.pop()
            if path not in found:
                found.append(path)
                nested = None if path.endswith(".py") else yaml.load_file(path).workflow
                waiting += self._files_of(model.nested_workflows(nested)) if nested else []
        return found

    def _files_of(self, names: Sequence[str]) -> Iterator[str]:
        """The files that workflows are named by; one that is stored or missing has none."""
        for name in names:
            with suppress(RolecallError):  # reported at the role's turn
                if path := registry.find(self.store_if_any, name, folder=self.folder).path:
                    yield path

    def define(self, name: str) -> WorkflowDefinition:
        """Read a workflow without what is needed to run it; a stored one runs no code."""
        found = self.find_workflow(name)
        if found.path is None:
            node = registry.workflow_node(self.store, str(found.node))
            return WorkflowDefinition(self.read_workflow(node.id), node, None)
        is_python = found.path.endswith(".py")
        book = self.look_up(found.path) if is_python else registry.read_file(found.path)
        node, store = registry.stored_form(book), self.store_if_any
        if store is not None and store.has(node.id):
            node = node._replace(created=store.get(node.id).created)
        return WorkflowDefinition(book.workflow, node, found.path)

    def check(self, workflow: str | Workflow) -> Checked:
        """Check a workflow by the current rules: every problem, and its playbook unless one is an error; that of a file
        in Python lacks the functions. Positions in a stored workflow are those of its YAML."""
        if not isinstance(workflow, str):
            book, problems = python.check(workflow, name=None, python=_address_of(workflow))
            return registry.Checked(book, tuple(problems))
        found = self.find_workflow(workflow)
        if found.path is not None and found.path.endswith(".py"):
            return workflow_file.check_apart(found.path, folder=self.folder)
        if found.path is not None:
            return registry.check_file(found.path)
        node = str(found.node)
        stored = self.read_workflow(node)
        if stored.python is not None:
            return registry.Checked(registry.load_node(self.store, node), ())
        parsed = yaml.parse(document.to_yaml(stored), source=node)
        book = playbook.Playbook(stored) if parsed.workflow else None
        return registry.Checked(book, parsed.problems, parsed.marks)

    def validate(self, workflow: str | Workflow) -> list[Problem]:
        """Every error and warning in a workflow file or object, with its position."""
        return list(self.check(workflow).problems)

    def try_workflow(
        self,
        workflow: str | Workflow | Playbook,
        threads: Sequence[str] = (),
        *,
        since: int = 0,
        runs_code: bool = False,
    ) -> Iterator[tryout.Trial]:
        """Walk recorded threads through an edited workflow, without asking anybody: by default those of the workflow
        with the same name that began at `since` (in milliseconds) or later. A workflow in Python that is given by its
        name or its file is refused unless it `runs_code`."""
        found = self.find_workflow(workflow) if isinstance(workflow, str) else None
        if isinstance(workflow, str) and not runs_code and self.is_python(workflow):
            raise UsageError(
                f"{workflow} is written in Python, and to try it is to run its code",
                hint=Hint("Allow that, if you trust it", "run_code"),
            )
        if found is not None and found.path is not None:  # a copy beside the original may have any name
            book = registry.read_file(found.path, has_any_name=True)
        else:
            book = self.load_workflow(workflow).playbook
        refs = (
            [thread.find(self.store, name) for name in dict.fromkeys(threads)]
            if threads
            else tryout.read_recorded(self.store, book.workflow.name, since=since)
        )
        return tryout.Tryout(self.store, book).walk(refs)

    def is_python(self, name: str) -> bool:
        """Whether a workflow is written in Python, so that loading it runs its code."""
        found = self.find_workflow(name)
        if found.path is not None:
            return found.path.endswith(".py")
        return "python" in registry.workflow_node(self.store, str(found.node)).payload

    def missing_agents(
        self, book: Playbook, agent: str | None = None, agents: Mapping[str, str] | None = None
    ) -> list[tuple[str, RolecallError]]:
        """The roles whose agent is unknown or missing, with the reason; `agent`, if given, plays every role, `agents`
        play single ones."""
        return casting.miscast(casting.assign(book, agents or {}, self.folder), agent)

    def first_ready_workflow(self) -> str | None:
        """The name of the first workflow here whose agents are all available. One written in Python counts as ready,
        because checking it would run its code."""
        for entry in self.workflow_entries():
            with suppress(RolecallError):
                is_python = (entry.path or "").endswith(".py") or (
                    entry.node and "python" in registry.workflow_node(self.store, entry.node).payload
                )
                source = entry.path or str(entry.node)
                if is_python or not casting.miscast(self.load_workflow(source).playbook, None):
                    return entry.name
        return None

    def _agent(self, agent: str | None, book: Playbook) -> str | None:
        """Return the agent that plays every role. Raise an error now if it is unknown or missing."""
        if agent:
            agent = casting.agent_from(self.folder, agent)
            casting.refuse_miscast(book, agent)
        return agent

    # -- evaluations --

    def evals(self) -> Evals:
        """Suites of tasks, their runs and results."""
        return Evals(self)

    # -- the project --

    def project(self) -> Project:
        """The plan, tasks and memory of the project around this folder."""
        return Project(project_paths.find(self.folder))

    def query(
        self, question: str, *, max: int = 5, path: str | None = None, may_write: bool = True
    ) -> list[FoundPassage]:
        """Find the passages of this repository that best answer a question. A damaged index is rebuilt if this
        `may_write`, else an error."""
        asking = queries.Searcher(now=project_paths.now, tell=lambda _text: None, may_write=may_write)
        try:
            return list(asking.ask(question, place.root_of(self.folder), limit=max, path=path).answers)
        finally:
            asking.close()


def own_words(text: str) -> str:
    """What a person said, of a text to which `talk` or `say` has added what a role should know."""
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
                f"the limit {name} must be a number above 0, not {value!r}",
                hint="Omit it for no limit.",
            )


def _address_of(workflow: Workflow) -> str:
    """The address at which another process can load a workflow object, or a guess if it has none."""
    if not isinstance(workflow, python.Workflow):
        raise UsageError(
            f"a workflow is a name, a path as text, an id or a Workflow, not {workflow!r}",
            hint="The text of a path is `str(path)`.",
        )
    try:
        return workflow.address()
    except UsageError:
        return f"{workflow.place.file}:{workflow.name.replace('-', '_')}"


class Thread:
    """One run of a workflow. Properties read the store; methods such as `resume` change it."""

    def __init__(self, rolecall: Rolecall, ident: ThreadId) -> None:
        self.rolecall = rolecall
        self.id = ident
        self.notice = ""
        """What a person should know about the words that they said last, such as a misspelt tag."""

    def __repr__(self) -> str:
        return f"<Thread {self.id} {self.status}>"

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
        """The facts that do not require reading its steps: title, folders, agents, limits, lease, …"""
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
        """The next role, or the role that waits for a person; None if the thread has ended."""
        return views.role_of(self._store, self._ref)

    @property
    def reason(self) -> str:
        """Why it is suspended, failed or killed."""
        return self.state.reason

    @property
    def needs_person(self) -> bool:
        """Whether nothing happens until a person acts: it is suspended, or waits for members that are."""
        return views.needs_person(self._store, self._ref)

    @property
    def continuation(self) -> Hint | None:
        """The action that continues it, as a code with arguments; None if it has ended."""
        ref = self._ref
        # A lease that this process could not release, for example on a full disk, keeps nobody from running it.
        is_ours = holder.process(os.getpid()).items() <= ref.state.lease.items()
        is_held = not is_ours and views.status_of(self._store, ref) == states.Status.RUNNING
        return thread.continuation(ref, is_held=is_held)

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
    def session(self) -> str:
        """The session of the agent that is being asked now; empty between questions."""
        known = states.read_note(self._store, self.id)
        return known.note.session if known else ""

    @property
    def members(self) -> list[Thread]:
        """The members of its latest group that were started, in the order of their numbers."""
        found = views.groups(self._store, self._ref)[-1:]
        return [Thread(self.rolecall, one["id"]) for group in found for one in group["members"] if one["id"]]

    @property
    def usage(self) -> Mapping[str, float]:
        """Steps, turns, tokens, cost and minutes so far, including failed attempts. Amounts that no agent reported are
        missing rather than zero."""
        return {key: value for key, value in self.summary()["usage"].items() if key not in ("roles", "saved")}

    def entry(self) -> views.View:
        """A short description of the thread, as `rolecall thread list --json` prints it."""
        return views.entry(self._store, self._ref)

    def summary(self) -> views.View:
        """The state of the thread, as `rolecall thread show --json` prints it."""
        return views.card(self._store, self._ref)

    def groups(self) -> list[views.View]:
        """The groups that played a role, each with its members."""
        return views.groups(self._store, self._ref)

    def current_group(self) -> views.View | None:
        """The group that plays a role now, with its members."""
        return views.current_group(self._store, self._ref)

    def totals(self) -> views.View:
        """What the thread has used, from its newest step alone."""
        return views.totals(self._store, self._ref)

    def step_page(self, *, before: str | None = None, limit: int = 100) -> views.View:
        """The newest `limit` steps, newest first, or those before the step with the id `before`."""
        return views.step_page(self._store, self._ref, before=before, limit=limit)

    def step_entries(self) -> list[views.View]:
        """The start and all steps, oldest first, as `rolecall thread steps --json` prints them."""
        ref, chain = self._ref, self._chain
        steps = [views.step_entry(step, number) for step, number in views.number_steps(ref, chain)]
        return [views.start_entry(self._store, chain.start), *reversed(steps)]

    def result(self) -> views.View | None:
        """The last answer, the files that agents reported, and the usage; None if no role has answered yet."""
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
        the result to follow it, or call `wait()` to wait for its end. `agent` plays every role in this run; `reuse` is
        that of `choose_reuse`."""
        self._check_begin(agent, steps)
        self.choose_reuse(reuse)
        return Run(self, steps, agent)

    def step(self, *, agent: str | None = None, reuse: bool | None = None) -> Thread:
        """Take one step and wait for it."""
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
        """Like `run`, but for a running event loop: yield events as they happen. Setting `cancel` stops the agent, and
        so does leaving the loop early, although only when the event loop is free; `contextlib.aclosing` waits for it.
        """
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
        """Take steps in this event loop and return the id of the last one, or None. `watch` is called with the kind and
        the body of each event before anything else happens. If it `needs_all`, a role without a usable agent is an
        error, even if its turn would come later. A worker of the service says that the thread `is_served`, so that
        members of groups are queued, and how long its lease lasts unless it is renewed."""
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
        # An agent named for this run overrides those that the thread started with.
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
        """The name of the agent that plays a role, `human` for a person. Raise an error if no agent can."""
        state, book = self.state, self._playbook
        if role in book.functions:
            return "python"
        bound = book._replace(bound=state.agents)
        return casting.cast(config.load(), bound, role, override=state.agent).name

    def _check_begin(self, agent: str | None, steps: int | None) -> None:
        """Raise an error now if a run could not take its first step."""
        if steps is not None and (not isinstance(steps, int) or steps < 1):
            raise UsageError(
                f"steps must be a whole number above 0, not {steps!r}", hint="Leave it out for all steps."
            )
        lease.refuse_ended(self._ref)
        state = self.state
        if state.status != states.Status.SUSPENDED:
            _check_agents(self._playbook, state, agent)

    def events(self, *, after: int = 0) -> Iterator[StoredEvent]:
        """The recorded events with a number (`seq`) above `after`."""
        while found := self._store.events(self.id, after=after, limit=500):
            yield from found
            after = found[-1].seq

    def tail(self, *, members: bool = False) -> Iterator[Event | None]:
        """The recorded events from the first on, and None whenever there are no more of them yet. With `members`, also
        those of the members of its groups, as the kind `member` that a run in this process tells of them."""
        for told in tail.follow_events(self._store, self.id, members=members):
            yield Event(self.id, *told) if told else None

    def watch(self, *, after: int = 0) -> Iterator[Event]:
        """Yield the events that any process records for the thread, until it ends or waits for a person."""
        while True:
            ref = self._ref  # read before the events, so that they include those that led to this state
            for event in self.events(after=after):
                yield Event(self.id, event.kind, event.body)
                after = event.seq
            is_over = ref.state.is_over or views.needs_person(self._store, ref)
            if is_over or views.status_of(self._store, ref) == states.Status.CRASHED:
                return
            sleep(0.2)

    # -- steering --

    def choose_reuse(self, reuse: bool | None) -> None:
        """Decide about the next steps in any process: True reuses finished steps with the same key, except for roles
        with `reuse: false`; False asks every role; None changes nothing."""
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
        """Continue a suspended thread: with a message to the role that waits, with higher limits, or to try again. If
        `agent` is given, it plays every role from now on; `reuse` is that of `choose_reuse`; `by` says who did, for the
        record; `head` is that of `answer`. If the service ran the thread before, the service continues it, unless
        `is_run_here`."""
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
        """The message of a commit with the thread's work: a title, and trailers that lead to its newest step."""
        nowhere = states.WorkFolder("", "", "")
        return handover.work_of(self._ref, nowhere, seal.Sealer(self._store)).write_message(title)

    def refuse_running(self) -> None:
        """Raise `Conflict` while a process runs the thread."""
        lifecycle.refuse_running(self._store, self._ref)

    def question(self) -> Question:
        """What the thread needs next, to show it to a person."""
        chain = self._chain
        now = turn.Turn(self.id, chain, self._playbook, self.state.folders)
        way = turn.next_of(now)
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
        """Play the role as a person: `output` must fit its schema. `by` says who did, for the record. If the thread is
        not at `head` any more, which is the id of the step that the person saw last, raise `Conflict`."""
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
        """The thread whose question a person answers to continue this one: itself, or the thread or the member that
        plays its role."""
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
        """Continue a conversation with a person's words. If it is the turn of a person, they become the output of that
        role (see `from_words`); an error says what the role must deliver if they do not fit. Otherwise the role that
        waits, or that was interrupted, is called again with them. If the thread has ended, they start a thread of the
        same workflow, which learns how this one ended, and which is returned. The other arguments are those of
        `answer`."""
        if not text.strip():
            raise UsageError("nothing was said", hint="Write what the role needs to know.")
        if (asked := self.asking) is not self:
            self._ref_at(head)
            asked.say(text, by=by, is_run_here=is_run_here)
            return self.resume(is_run_here=is_run_here) if self.state.asks else self
        if self.state.name == conversation.WORKFLOW:
            heard = conversation.receive(self.state.cwd or self.rolecall.folder, self.id, text)
            self.notice, text = heard.notice, conversation.attach(text, heard.context)
        if self.has_ended:
            return self._follow_up(text)
        question = self.question()
        due, role = question.due, question.role
        if due is None or role is None or not self._is_played_by_person(due.role):
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
        """End a person's part in a conversation with the Lead until they say more; return what is unfinished in the
        project, in a sentence."""
        is_lead = self.state.name == conversation.WORKFLOW
        return conversation.leave(self.state.cwd or self.rolecall.folder, self.id) if is_lead else ""

    @property
    def next(self) -> Thread | None:
        """The thread that words have started after this one had ended."""
        ref = self._store.ref(f"{_NEXT}{self.id}")
        return self.rolecall.thread_if_any(ref.state["thread"]) if ref else None

    def _follow_up(self, text: str) -> Thread:
        if (there := self.next) is not None:
            return there.say(text)
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

    def _is_played_by_person(self, role: str) -> bool:
        with suppress(RolecallError):  # a missing agent is reported when the role is called
            return self.agent_of(role) == setup.HUMAN
        return False

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
        """Create a thread that shares the steps up to `at` (a number, an id or `"start"`; by default the head), in a
        folder of its own with the files of that step. With `keep_files` it has the files as they are now. `reuse` and
        `request` are those of `Rolecall.fork`."""
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
        """End the thread for good, and stop the process that runs it and its agent. The result names that process."""
        return killing.kill(self._store, self._ref, reason, mask=config.mask())

    # -- reading --

    def diff(self, other: Thread) -> views.View:
        """The last common step of two threads, and the differences in prompts and outputs after it."""
        return views.difference(self._store, self._ref, other._ref)

    def read(self, *, max_chars: int = 10_000, before: str | None = None) -> str:
        """Prompts, actions and answers as Markdown: the newest steps that fit, or those before the step `before`."""
        return str(self.read_page(max_chars=max_chars, before=before)["text"])

    def read_page(
        self,
        *,
        max_chars: int,
        before: str | None = None,
        with_start: bool = False,
        with_members: bool = False,
        phrase: Callable[[Hint], str] = Hint.call,
    ) -> views.View:
        """What `read` returns as `text`, with the step that the next page ends before. The task is part of the first
        page, and of others `with_start`; `with_members` adds what the members of groups answered; `phrase` words how to
        read more."""
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
        limit: int | None = 2000,
        files: bool = False,
        warn: Callable[[str], object] = lambda _text: None,
        phrase: Callable[[Hint], str] = Hint.call,
    ) -> str:
        """A report of the whole thread as one self-contained page or as Markdown. Texts are cut after `limit`
        characters; None shows everything. `files` adds what each step changed in files, as a diff. `warn` is called
        with anything that could not be shown; `phrase` words how to continue the thread."""
        if format not in ("html", "markdown"):
            raise UsageError(f"{format!r} is not a format of reports", hint="Name html or markdown.")
        card, steps = views.gather(self._store, self._ref)
        mask = config.mask()  # files are recorded as they are
        if files:
            steps, card["attempts"] = (
                list(step_files.add_diffs(self._store, self._trees, entries, warn, mask=mask))
                for entries in (steps, card["attempts"])
            )
        if card["continue"]:
            card["continue"] = phrase(card["continue"])
        if format == "markdown":
            return report.markdown(card, steps, limit=limit)
        return html_report.page(self._store, self._ref, card, steps, mask=mask, limit=limit, warn=warn)

    def spans(self, *, content: bool = False) -> Iterator[projection.Span]:
        """The thread as the spans of a trace: its steps and failed attempts, turns and tool calls, and the threads that
        play its roles. They have prompts, answers and tool results only with `content`."""
        return projection.Projection(self._store, config.mask(), content=content).thread(self._ref)

    # -- the files of its steps --

    def file_changes(self, *, newest: int | None = None) -> list[views.View]:
        """The files that each step changed, with lines added and removed, oldest first; of the `newest` steps if given.
        Steps that changed none are left out."""
        return views.file_changes(self._store, self._ref, newest)

    def file_versions(
        self, step: Step, *, most: int = 20, longest: int = 200_000
    ) -> list[step_files.FileVersions]:
        """The first text files that a step changed, each as the step found it and as it left it, without those that
        are longer than `longest` bytes. Empty if the files are not on this machine."""
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

    def check_out(self, folder: Folder, *, at: int | str | None = None) -> views.View:
        """Write the files that a step left into a new or empty folder; `at` is a number, an id or `"start"`, by default
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
    ) -> list[views.View]:
        """What the thread changed in its files, as a list of files and as a patch. `at` is a step, or `"A..B"` for what
        changed after step A up to step B; with `role`, there is one entry for each step of that role. With `other`, how
        the last files of that thread differ from the last files of this one. The patch has all files, or only `path`,
        or only the first files with up to this many changed `lines`; the others are then `omitted`."""
        excerpt = step_files.Excerpt(path, lines)
        if other is None:
            return step_files.compare(
                self._store, self._trees, self._ref, at=_name_step(at), role=role, excerpt=excerpt
            )
        if at is not None or role is not None:
            raise UsageError("two threads are compared by their last files, without `at` and `role`")
        return step_files.compare_threads(self._store, self._trees, self._ref, other._ref, excerpt)

    def blame(
        self, path: str, *, lines: tuple[int, int] | None = None, at: int | str | None = None
    ) -> views.View:
        """The step, role, agent and prompt behind each line of a file, or behind the `lines` from the first to the
        second. `path` begins at the top of the work tree; `at` is a step, by default the last."""
        return step_files.trace_lines(
            self._store, self._trees, self._ref, path, lines=lines, at=_name_step(at)
        )

    def why(self, at: int | str | None = None) -> views.View:
        """Why a step, by default the last, was reused or not: the first part of its key that differs from the nearest
        earlier step, in words under `text`."""
        return why.explain(self._store, self._trees, self._ref, _name_step(at))

    # -- its own folders --

    def folders(self) -> list[views.View]:
        """The thread's own work folders and the changes in them."""
        return [handover.show(kind, folder) for kind, folder in self.state.folders.items()]

    def changed_files(self) -> list[str] | None:
        """The files that differ in the thread's own folders; None if it has none, or git cannot tell."""
        changed: list[list[str] | None] = []
        with suppress(RolecallError):  # the repository is gone or broken
            changed = [handover.changed_files(folder) for folder in self.state.folders.values()]
        if all(files is None for files in changed):
            return None
        return list(dict.fromkeys(file for files in changed for file in files or ()))

    def diff_folders(self) -> str:
        """The changes in the thread's own work folders as a patch."""
        kept = {kind: folder for kind, folder in self.state.folders.items() if not folder.is_removed}
        if not kept:
            raise UsageError(f"thread {self.id} has no folder of its own")
        return "".join(handover.diff(kind, folder) for kind, folder in kept.items())

    def merge_folder(self) -> views.View:
        """Merge the thread's branch into the branch that is checked out where the thread was started."""
        return handover.merge(self._store, self._ref)

    async def queue_merge(
        self, check: Sequence[str] = (), *, cancel: Cancel | None = None
    ) -> merge.Merged | merge.SetAside:
        """Merge the thread's worktree into the folder it was started in, one thread at a time. If that conflicts, or
        the command `check` fails in the folder afterwards, the folder is as it was, and the conflict is returned."""
        env = config.environment()
        return await handover.queue_merge(self._store, self._ref, check, env=env, cancel=cancel)

    def remove_folders(self, *, force: bool = False) -> views.View:
        """Remove the thread's own folders and branch. Work that exists nowhere else is removed only with `force`."""
        return handover.remove(self._store, self._ref, force=force)


def _name_step(at: int | str | None) -> str | None:
    return None if at is None else str(at)


def _check_agents(book: Playbook, state: ThreadState, agent: str | None) -> None:
    """Raise an error if a role of a thread has no usable agent; `agent`, if given, plays every role."""
    if agent:
        casting.check_name(agent)
    bound = {} if agent else state.agents
    casting.refuse_miscast(book._replace(bound=bound), agent or state.agent)


class Crew:
    """Agents that stay connected while they take steps of several threads in this process."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def cast(self, book: Playbook, role: str) -> Cast:
        """The agent that plays a role. Raise an error if it is unknown or missing."""
        return self._engine.cast(book, role)

    async def step(self, name: str, *, watch: Watch, cancel: Cancel) -> Outcome:
        """Take one step of a thread. If its agent has reached a limit, wait until the limit ends."""
        engine = dataclasses.replace(self._engine, watch=watch)
        return [outcome async for outcome in engine.run(name, cancel=cancel, steps=1)][-1]

    async def close(self) -> None:
        await self._engine.close()


class Run:
    """A run of a thread in the background of this process, which begins at once.

    Iterate over it to get its events. Leaving the loop early stops the agent; the thread can be run again later.
    """

    def __init__(self, of: Thread, steps: int | None, agent: str | None = None) -> None:
        self.thread = of
        self._steps = steps
        self._agent = agent
        self._events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._error: BaseException | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ready, self._over, self._followed = threading.Event(), threading.Event(), threading.Event()
        self._worker = threading.Thread(target=self._work, name=f"rolecall-{of.id}")
        self._worker.start()
        self._ready.wait()

    def __iter__(self) -> Iterator[Event]:
        self._followed.set()
        try:
            while (event := self._events.get()) is not None:
                yield event
        finally:
            self.stop()
        self._raise()

    def wait(self) -> Thread:
        """Wait until the run has stopped; Ctrl-C stops it."""
        self._followed.set()
        try:
            while not self._over.wait(1.0):
                pass  # Ctrl-C just before would else be noticed at the end only
        finally:
            self.stop()
        self._raise()
        return self.thread

    def stop(self) -> None:
        """Ask the agent to stop, and wait until it has."""
        if self._loop is not None:  # otherwise none could be made
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._cancel.set)
        self._over.wait()  # `join` counts a thread as ended once Ctrl-C has interrupted it

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _work(self) -> None:
        try:
            asyncio.run(self._play())
        except BaseException as error:
            self._error = error
        finally:
            self._ready.set()
            self._events.put(None)
            self._over.set()
        if self._error and not self._followed.wait(_FOLLOWED_WITHIN):
            raise self._error  # shows the error of a run that nobody follows

    async def _play(self) -> None:
        self._loop, self._cancel = asyncio.get_running_loop(), asyncio.Event()
        self._ready.set()
        ident = self.thread.id
        tell = lambda kind, body: self._events.put(Event(ident, kind, body))  # noqa: E731
        # A connection may be used only in the Python thread that opened it.
        with Rolecall(self.thread.rolecall._url, folder=self.thread.rolecall.folder) as rolecall:
            await Thread(rolecall, ident).advance(
                watch=tell, cancel=self._cancel, steps=self._steps, agent=self._agent, needs_all=False
            )


class Evals:
    """Suites of tasks: whether a change of a workflow, a prompt or an agent helps, by how much, and at what cost."""

    def __init__(self, rolecall: Rolecall) -> None:
        self._rolecall = rolecall
        self._cache = config.folder_in_home("evals")

    @property
    def _trees(self) -> tree.Trees:
        return compose.trees_of(self._rolecall.store)

    def _site(self) -> judge.Site:
        private = (config.home(), self._rolecall.store.backend.address.removeprefix("files:"))
        layers = confinement.configured_layers()
        return judge.Site(self._trees, config.environment(), private, layers)

    def read(self, path: Folder) -> suite.Suite:
        """Read a suite and everything that it names. Raise an error with all its problems, each with its place."""
        file = os.path.abspath(path)
        near = Rolecall(self._rolecall.store, folder=os.path.dirname(file))

        def find_missing(
            book: Playbook, agent: str | None, agents: Mapping[str, str]
        ) -> list[tuple[str, RolecallError]]:
            named = casting.agent_from(near.folder, agent) if agent else None
            return near.missing_agents(book, named, agents)

        return suite.read_suite(os.fspath(path), load=near._load_version, missing=find_missing)

    def plan(
        self, path: Folder, *, only: Sequence[str] = (), is_fresh: bool = False, is_new: bool = False
    ) -> begin.EvalPlan:
        """Store a suite and say what a run of it will do. `only` chooses tasks by tags or ids; `is_fresh` asks every
        role, also where an earlier run has the answer; `is_new` does not continue an unfinished run."""
        if not settings.keeps_trees(config.load()):
            raise UsageError(
                "files are not recorded, so nothing could be judged",
                hint=Hint("Record them", "set_setting", key="trees.keep", value="true"),
            )
        return self._plan(self.read(path), only, is_fresh=is_fresh, is_new=is_new)

    def _plan(
        self,
        read: suite.Suite,
        only: Sequence[str] = (),
        *,
        is_fresh: bool = False,
        is_new: bool = False,
        first: int = 0,
    ) -> begin.EvalPlan:
        return begin.plan(
            self._rolecall.store,
            self._trees,
            read,
            cache=self._cache,
            only=only,
            is_fresh=is_fresh,
            is_new=is_new,
            first=first,
        )

    def plan_experiment(
        self,
        path: Folder,
        role: str,
        *,
        threads: Sequence[Thread] = (),
        since: int = 0,
        most: int = 100,
        workflow: str | None = None,
        agents: Mapping[str, str] | None = None,
        is_fresh: bool = False,
        is_new: bool = False,
    ) -> begin.EvalPlan:
        """Say what an experiment will do: recorded threads are forked before the first step of a role, with the files
        that it found, and go on in each variant. A suite names the workflow and the judges. If another version of the
        `workflow` or other `agents` of roles are given, the variants are `current` (the first of the suite) and
        `changed`; otherwise those of the suite. Without `threads`, those of the workflow that began at `since` or
        later are taken, at `most` so many."""
        near = Rolecall(self._rolecall.store, folder=os.path.dirname(os.path.abspath(path)))
        # An edited copy beside the original may have any name.
        given = self._rolecall.load_workflow(workflow, has_any_name=True) if workflow else None
        changes = begin.Changes(given.playbook if given else None, agents or {})
        recorded = suite.Recorded("", since, most, role, tuple(one.id for one in threads))
        read = begin.make_experiment(self.read(path), recorded, changes, near.missing_agents)
        return self._plan(read, is_fresh=is_fresh, is_new=is_new)

    async def run(
        self,
        plan: begin.EvalPlan,
        *,
        at_once: int = 4,
        limits: Mapping[str, float] | None = None,
        stop_early: bool = False,
        watch: Watch = lambda _kind, _body: None,
        cancel: Cancel | None = None,
    ) -> results.Report:
        """Run what `plan` says, at most `at_once` threads at a time. `limits` on `cost` and `minutes` of the whole run
        replace those of the suite. With `stop_early` no further threads start once it is clear how the other variants
        compare with the first. `watch` is called with the kind and the body of each event; `cancel` interrupts the run,
        which a later call continues."""
        if stop_early and len(plan.suite.variants) < 2:
            raise UsageError(
                "only a run with several variants can stop early", hint="Name them in the suite."
            )
        held = begin.hold(self._rolecall.store, plan, given=limits or {})
        await self._play(held, plan, at_once, gate.Early(held) if stop_early else None, watch, cancel)
        return results.Report(held)

    async def _play(
        self,
        held: records.EvalRun,
        plan: begin.EvalPlan,
        at_once: int,
        stop: gate.Early | None,
        watch: Watch,
        cancel: Cancel | None,
    ) -> None:
        store = self._rolecall.store

        def make_engine(agent: str | None) -> Engine:
            engine = compose.engine(store, agent=agent, folder=plan.folder, shares_process=True)
            return dataclasses.replace(engine, private=(*engine.private, *plan.hidden))

        await run.Runner(
            store,
            held,
            self._site(),
            make_engine,
            config.mask(),
            config.work_folder(),
            self._cache,
            watch,
            cancel or asyncio.Event(),
            at_once,
            stop=stop,
        ).play()

    def compare(self, base: str, variant: str = "") -> list[compare.Comparison]:
        """Compare variants in pairs of tasks. A name is RUN or RUN:VARIANT; one run alone compares its first variant
        with the others."""
        store = self._rolecall.store
        pairs = compare.find_pairs(store, base, variant)
        return [compare.compare(store, self._trees, old, new) for old, new in pairs]

    async def gate(
        self,
        plan: begin.EvalPlan,
        *,
        base: str,
        at_once: int = 4,
        limits: Mapping[str, float] | None = None,
        stop_early: bool = False,
        watch: Watch = lambda _kind, _body: None,
        cancel: Cancel | None = None,
    ) -> gate.Gated:
        """Run what `plan` says, and decide whether it is worse than a base: a run, or a name that `save_base` has given
        to one."""
        store = self._rolecall.store
        sides = gate.find_base(store, base)
        bases = gate.list_bases(sides, plan.suite, plan.tasks)
        held = begin.hold(store, plan, given=limits or {})
        early = gate.Early(held, bases) if stop_early else None
        await self._play(held, plan, at_once, early, watch, cancel)
        return gate.decide(store, self._trees, sides, held, early)

    async def bisect(
        self,
        path: Folder,
        *,
        oldest: str = "",
        newest: str = "",
        noise: float | None = None,
        only: Sequence[str] = (),
        at_once: int = 4,
        limits: Mapping[str, float] | None = None,
        watch: Watch = lambda _kind, _body: None,
        cancel: Cancel | None = None,
    ) -> bisect.Bisected:
        """Find the version of the suite's workflow that broke the suite, among those that were put under its name, from
        `oldest` to `newest`. `noise` is how often an answer of the suite is wrong; by default it is estimated from
        repeats. `limits` apply to each run. A call with the same arguments continues a search."""
        read = self.read(path)
        own = read.variants[0]
        name = read.books[own.name].workflow.name
        versions = bisect.choose_versions(self._rolecall.versions(name), oldest, newest, name)

        def plan(asked: suite.Suite, tasks: Sequence[str], first: int) -> begin.EvalPlan:
            return self._plan(asked, tasks or only, first=first)

        async def play(plan: begin.EvalPlan) -> results.Report:
            return await self.run(plan, at_once=at_once, limits=limits, watch=watch, cancel=cancel)

        def load(node: str) -> Playbook:
            return self._rolecall.load_workflow(node).playbook

        search = bisect.Bisection(self._rolecall.store, read, versions, load, plan, play, watch, noise)
        return await search.find()

    def trace(
        self,
        path: Folder,
        *,
        oldest: str = "",
        newest: str = "",
        noise: float | None = None,
        only: Sequence[str] = (),
    ) -> recorded.Traced:
        """Find what broke the suite among its recorded runs, from the run `oldest` to `newest`: a program, a model, an
        agent or a version of the workflow. Nobody is asked. `noise` and `only` are those of `bisect`."""
        found = self._plan(self.read(path), only)
        return recorded.trace(self._rolecall.store, found, oldest=oldest, newest=newest, noise=noise)

    def save_base(self, name: str, report: results.Report) -> None:
        """Remember a finished run under a name, so that `gate` can compare with it."""
        gate.save_base(self._rolecall.store, name, report)

    async def check(
        self, path: Folder, *, only: Sequence[str] = (), cancel: Cancel | None = None
    ) -> list[check.JudgedAnswer]:
        """Ask the judges of a suite about its references and cheats; no agent is asked. `only` is that of `plan`."""
        return await check.check(
            self.read(path),
            self._rolecall.store,
            self._site(),
            only=only,
            cache=self._cache,
            cancel=cancel or asyncio.Event(),
        )

    def report(self, name: str = "") -> results.Report:
        """A run by its id or a part of it, by default the newest."""
        return results.Report(records.find_run(self._rolecall.store, name))

    def page(self, name: str = "", *, base: str = "") -> str:
        """A run as one self-contained HTML page. It shows the differences from the variant `base`; if there are two
        variants, that is by default the first."""
        return html.make_page(self._rolecall.store, self.report(name), mask=config.mask(), base=base)

    def figures(
        self,
        report: results.Report,
        link: Callable[[results.CellResult], str],
        *,
        base: str = "",
        running: Collection[str] = (),
    ) -> html.Figures:
        """The parts of such a page; `link` gives the address of a thread."""
        store = self._rolecall.store
        return html.Figures(store, report, mask=config.mask(), link=link, base=base, running=running)

    def runs(self) -> list[records.EvalRun]:
        """All runs, newest first, without what they have found."""
        store = self._rolecall.store_if_any
        return records.list_runs(store) if store else []

    def find(self, name: str = "") -> records.EvalRun:
        """A run by its id or a part of it, without what it has found."""
        return records.find_run(self._rolecall.store, name)

    def reports(self) -> Iterator[results.Report]:
        """All runs, newest first."""
        store = self._rolecall.store_if_any
        return (results.Report(one) for one in records.list_runs(store)) if store else iter(())

    def export(self, name: str, path: Folder) -> bundle.Copied:
        """Write a run with its suite, its threads and their files to a bundle, which `cas import` takes over."""
        store = self._rolecall.store
        found = records.find_run(store, name)
        threads = [cell.thread for cell in found.cells]
        add_files = partial(kept_files.add_to_bundle, store)
        refs = [found.ref.name, *(states.ref_name(one) for one in threads)]
        return bundle.export_to(store, os.fspath(path), refs=refs, add_files=add_files)

    def find_tasks_file(self, path: Folder) -> str:
        """The file of tasks that a suite names."""
        return promote.find_tasks_file(os.fspath(path))

    def promote(
        self, thread: Thread, tasks: Folder, *, name: str = "", tags: Sequence[str] = ()
    ) -> promote.Promoted:
        """Make a task of a thread: append it to the file `tasks`, with a copy of the files that it began with."""
        ref = thread._ref
        ident = name or f"{ref.state.name}-{ref.id[-6:]}".lower()
        file = os.path.abspath(tasks)
        return promote.promote(self._rolecall.store, self._trees, ref, file, name=ident, tags=list(tags))


class Project:
    """The plans, decisions, tasks and lessons in a project's `.nexus/` folder. Methods return the contract's reply."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def plan(self) -> overview.Reply:
        """The active plan: its issues, their decisions, and how many are left."""
        return tools.plan_status(self.folder)

    def start_plan(self, topic: str, issues: Sequence[str], *, research: str) -> overview.Reply:
        """Start a plan with the questions to decide; `research` is a summary of what is known."""
        return tools.plan_start(self.folder, topic=topic, issues=issues, research_summary=research)

    def decide(self, issue: int, decision: str) -> overview.Reply:
        """Record the decision on an issue."""
        return tools.plan_decide(self.folder, issue_id=issue, decision=decision)

    def change_issue(self, action: str, issue: int | None = None, title: str | None = None) -> overview.Reply:
        """Change an issue of the active plan: `add`, `remove`, `edit` its title, or `reopen` it."""
        return tools.plan_update(self.folder, action=action, issue_id=issue, title=title)

    def tasks(self) -> overview.Reply:
        """The tasks of the current cycle, and which of them are ready."""
        return tools.task_list(self.folder)

    def add_task(
        self,
        title: str,
        context: str,
        *,
        deps: Sequence[int] = (),
        acceptance: str | None = None,
        owner: str | None = None,
    ) -> overview.Reply:
        """Add a task that can begin once the tasks `deps` are completed; `owner` is who does it."""
        return tools.task_add(
            self.folder, title=title, context=context, deps=list(deps), acceptance=acceptance, owner=owner
        )

    def update_task(self, task: int, status: str) -> overview.Reply:
        """Set the status of a task: `pending`, `in_progress` or `completed`."""
        return tools.task_update(self.folder, id=task, status=status)

    def close_cycle(self) -> overview.Reply:
        """Move the plan and its tasks to the history."""
        return tools.task_close(self.folder)

    def history(self, query: str = "", *, last: int = 10) -> overview.Reply:
        """The newest closed cycles that contain the words of `query`."""
        return tools.history_search(self.folder, query=query, last_n=last)

    def memories(self) -> list[overview.Reply]:
        """The notes of the project, with the number of times each was read."""
        return memory.list_notes(self.folder)

    def remember(self, name: str, text: str) -> overview.Reply:
        """Save a lesson as a note; refused if a very similar note exists."""
        return memory.add(self.folder, name, text, mask=config.mask())

    def recall(self, name: str) -> str:
        """The text of a note."""
        return memory.read(self.folder, name).text
