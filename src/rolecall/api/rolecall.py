"""The `Rolecall` class: a store and a folder to work from, with verbs that start and find threads and workflows."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from time import monotonic, time
from typing import TYPE_CHECKING, NamedTuple

from rolecall.api.thread import Crew, Folder, Run, Thread, check_limits
from rolecall.errors import Hint, NotFound, RolecallError, UsageError
from rolecall.settings import config, repository
from rolecall.store.lazy import Module, import_later

if TYPE_CHECKING:
    import asyncio
    import pathlib
    import shutil
    import tempfile
    import threading

    from rolecall.api import diagnosis, evals, knowledge, project
    from rolecall.api.evals import Evals
    from rolecall.api.knowledge import Knowledge
    from rolecall.api.project import Project
    from rolecall.checks import agents as agent_check
    from rolecall.checks import choose, doctor, workflow_file
    from rolecall.checks.choose import AgentChoice
    from rolecall.checks.doctor import AgentFinding, Diagnosis
    from rolecall.files import packs, tree
    from rolecall.files.packs import PackComparison
    from rolecall.hosts import installation, setup
    from rolecall.hosts.installation import HostInstallation
    from rolecall.hosts.lead import conversation
    from rolecall.knowledge.query import FoundPassage
    from rolecall.nexus import project_paths
    from rolecall.settings import settings, stores, yaml12
    from rolecall.settings.yaml12 import Marks, Problem
    from rolecall.store import bundle, ids
    from rolecall.store.backend import StoredEvent
    from rolecall.store.canonical import JsonObject
    from rolecall.store.ids import Node
    from rolecall.store.store import Store
    from rolecall.threads import (
        casting,
        compose,
        dry_run,
        handover,
        import_uwf,
        kept_files,
        lifecycle,
        listing,
        provenance,
        requests,
        seal,
        spending,
        text_search,
        thread,
        tryout,
        view_types,
        views,
        workfolder,
    )
    from rolecall.threads import state as states
    from rolecall.threads.state import ThreadRef
    from rolecall.threads.thread import Step
    from rolecall.traces import follow, otlp
    from rolecall.workflow import document, gallery, model, pack, playbook, python, registry, versions, yaml
    from rolecall.workflow.pack import Pin, Powers
    from rolecall.workflow.playbook import Playbook
    from rolecall.workflow.python import Workflow
    from rolecall.workflow.registry import Checked, Found, Version, WorkflowEntry
else:
    _LATER = {
        "": "asyncio pathlib shutil tempfile threading",
        "rolecall.api.": "diagnosis evals knowledge project",
        "rolecall.checks.": "choose doctor workflow_file",
        "rolecall.files.": "packs tree",
        "rolecall.hosts.": "installation setup",
        "rolecall.hosts.lead.": "conversation",
        "rolecall.nexus.": "project_paths",
        "rolecall.settings.": "settings stores yaml12",
        "rolecall.store.": "bundle ids",
        "rolecall.threads.": "casting compose dry_run handover import_uwf kept_files lifecycle listing"
        " provenance requests seal spending text_search thread tryout views workfolder",
        "rolecall.traces.": "follow otlp",
        "rolecall.workflow.": "document gallery model pack playbook python registry versions yaml",
    }
    globals().update(import_later(_LATER))
    agent_check = Module("rolecall.checks.agents")
    states = Module("rolecall.threads.state")

MEMORY = ":memory:"


def open(store: str | None = None, *, folder: Folder = ".") -> Rolecall:
    """Open a store and return its `Rolecall`. `store` is an address (`sqlite:/path`, `files:/folder`, `postgresql://…`)
    or `:memory:` for a temporary store; without `store`, the configured store is opened. Workflows and agents are
    looked up in `folder`."""
    if store is not None and not isinstance(store, str):
        raise UsageError(
            f"a store is named by its address, not {store!r}",
            hint='For example "sqlite:/path" or ":memory:".',
        )
    if not os.path.isdir(folder):
        raise UsageError(
            f"the folder {os.fspath(folder)!r} does not exist",
            hint="Create the folder, or name an existing one.",
        )
    return Rolecall(store, folder=folder)


def reader(store: str | None = None, *, folder: Folder = ".") -> Rolecall:
    """Return a `Rolecall` that never creates a store and opens the store only when a verb first needs it."""
    return Rolecall(store, folder=folder, create=False, is_lazy=True)


_OVERDUE_MS = 60_000
"""A thread that waits for a provider's limit to end counts as abandoned this long after the end of the limit."""
_MOST_IDLE = 500
"""How many idle threads `waiting` checks for being abandoned."""


class LoadedWorkflow(NamedTuple):
    """A workflow that is ready to run, with the node (`id`) or the file (`path`) from which it was loaded."""

    playbook: Playbook
    id: str | None = None
    path: str | None = None


class WorkflowDefinition(NamedTuple):
    """A workflow as a value, the node in which it is or would be stored, and the path of its file, if it has one."""

    workflow: model.StoredWorkflow
    node: Node
    path: str | None


class Rolecall:
    """A store and the folder to work from. Use it as a context manager, or call `close`."""

    def __init__(
        self,
        store: str | Store | None = None,
        *,
        folder: Folder = ".",
        create: bool = True,
        is_lazy: bool = False,
    ) -> None:
        """Open a store. `store` is an address or an open store; None stands for the configured store. A missing store
        is created if `create` is set; otherwise it is an error. With `is_lazy`, the store is opened, and an error
        raised, only when the store is needed."""
        self.folder = os.path.abspath(folder)
        self._creates = create
        self._is_closed = False
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        self._ledger: spending.Ledger | None = None
        self._runs: set[Run] = set()
        if store == MEMORY:
            # Keep the store in a file, not in memory, so that a run in another Python thread can open it.
            self._scratch = tempfile.TemporaryDirectory(prefix=stores.TEMPORARY)
            store = os.path.join(self._scratch.name, "store.db")
        self._url = store if isinstance(store, str) else None
        self._store = None if store is None or isinstance(store, str) else store
        if not is_lazy:
            self._store = self.store

    def __enter__(self) -> Rolecall:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if isinstance(error, KeyboardInterrupt):
            self._stop_runs()
        self.close()

    def _stop_runs(self) -> None:
        for run in [*self._runs]:
            run.stop()

    def close(self) -> None:
        """Wait for the runs of this `Rolecall`, then close the store. Ctrl-C stops the runs."""
        try:
            for run in [*self._runs]:
                run._wait_until_over()
        finally:
            self._stop_runs()
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
        """The open store, or None if the configured store does not exist yet. Callers treat None as an empty store."""
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
            workflow: a name, a path, an id, a `Workflow`, or the result of `load_workflow`.
            agent: the agent that plays every role.
            agents: agents for single roles, by role; they override `agent`.
            limits: limits on `steps`, `turns`, `tokens`, `cost` or `minutes`; a thread that reaches a limit is
                suspended.
            folder: the work folder of the thread, by default the folder of this `Rolecall`.
            priority: if given, queue the thread for the service with this priority, 0 to 9.
            sessions: for each role that begins in a session of an earlier thread, the `thread`, `step` and `tier` of
                that session.
            reuse: True reuses finished steps with the same key, except where the workflow says `reuse: false`; False
                asks every role; None leaves the decision to the workflow.
            ident: the id of the new thread, which `new_id` has returned earlier.
            also: adds writes to the transaction that creates the thread.
            request: identifies a request that can be repeated. If an earlier call had a request with the same key,
                return the thread that the earlier call created.
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
        """Start a conversation with a person's words; `Thread.say` continues the conversation. The other party is the
        Lead unless `workflow` names another workflow. As in a host, tags in words to the Lead are carried out, and the
        Lead is shown the state of the project. The other arguments are the same as for `start`."""
        loaded = self.load_workflow(workflow)
        agent = self._agent(agent, loaded.playbook)
        if not agent:  # check before a thread is created or a tag is carried out
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
        """Return what a person can type to the Lead, such as `[plan]` or the name of a skill, and what each of these
        does."""
        return conversation.list_tags()

    def new_id(self) -> str:
        """Return an id for a thread that will be started later."""
        return thread.new_thread_id(self.store.now())

    def find_requested(self, request: requests.Request) -> Thread | None:
        """Return the thread that an earlier request with the same key created, or None if no request did."""
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
        """Predict which of a thread's first steps would be reused, and what the remaining steps might use. The
        arguments are the same as for `start`. No agent is asked, no thread is started, and nothing is written to the
        store."""
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
        if not isinstance(name, str):
            raise UsageError(
                f"a thread is named by its id, not {name!r}", hint="`Rolecall.threads` lists the threads."
            )
        return Thread(self, thread.find(self.store, name).id)

    def latest_thread(self, *, is_waiting: bool = False) -> Thread | None:
        """Return the latest thread that was started in this folder, or in a folder above it in the same repository.
        With `is_waiting`, consider only threads that wait for a person or for a limit to end."""
        place = os.path.realpath(self.folder)
        folders, root = [place], repository.root_around(place) or place
        while place != root:
            place = os.path.dirname(place)
            folders.append(place)
        store = self.store_if_any
        ref = listing.find_latest(store, folders, is_waiting=is_waiting) if store else None
        return Thread(self, ref.id) if ref else None

    def thread_if_any(self, ident: str) -> Thread | None:
        """Return the thread with this id, or None if the store has no such thread."""
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
        """List threads, newest first; the arguments are the same as for `entries`."""
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
    ) -> Iterator[view_types.ThreadEntry]:
        """Yield descriptions of threads, newest first, in the form that `Thread.entry` returns. Threads of every status
        are included unless `status` is given. `since` and `before` limit the start times, in milliseconds; the first
        thread is the one that follows the thread `after`. `members` includes the members of groups. `look` is called
        with the id of each thread before the thread is read, even if the thread is then left out; the list ends when
        `look` returns False."""
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

    def events(self, *, after: int, max: int = 500) -> list[StoredEvent]:
        """Return up to `max` recorded events of all threads, oldest first: those whose number (`seq`) is above
        `after`."""
        store = self.store_if_any
        return store.events(after=after, limit=max) if store else []

    def newest_event(self) -> int:
        """Return the number of the newest recorded event, or 0 if no event has been recorded."""
        store = self.store_if_any
        return store.newest_event() if store else 0

    def waiting(self) -> Iterator[view_types.ThreadEntry]:
        """Yield the threads that need a person, newest first: suspended threads, including members of groups, and
        crashed threads. After these come threads that waited for a provider's limit, if the limit has ended and still
        no process runs them. Threads that wait for another thread, members whose group has ended, and threads that
        continue with the run of their evaluation are left out."""
        for entry in self.entries(status=("suspended", "crashed"), members=True):
            state = self.thread(entry["thread"]).state
            parent = self.thread_if_any(state.parent) if state.member and state.parent else None
            is_for_eval = state.eval and not state.waits_for_person
            if not is_for_eval and not state.asks and not (parent and parent.has_ended):
                yield entry
        late = int(time() * 1000) - _OVERDUE_MS
        for entry in islice(self.entries(status="idle"), _MOST_IDLE):
            if entry.get("until", late) < late and not self.thread(entry["thread"]).state.eval:
                yield entry

    def set_aside(self) -> Iterator[view_types.SetAsideThread]:
        """Yield the entries of threads whose work could not be merged, newest first. The threads are members of groups,
        or carry out tasks of `plan run`. Each entry also has the `branch` that contains the work, the `reason`, and the
        `conflict`. Only threads in this folder's repository are listed, and only until another branch contains the work
        or the branch no longer exists."""
        store = self.store_if_any
        if store is None:
            return
        for ref, work in handover.list_set_aside(store, self.folder):
            yield {**views.entry(store, ref), **work}

    def near_limits(self, *, share: float = 0.8, seconds: float = 1.0) -> view_types.NearLimits:
        """Return the threads that have not ended and have used at least this share of a limit, the thread nearest to
        its limit first. If reading all threads takes longer than `seconds`, older threads are left out, and `more` is
        true."""
        found: list[view_types.ThreadNearLimit] = []
        until, has_more = monotonic() + seconds, False
        open_ones = sorted({*states.Status} - {*states.ENDED, states.Status.DAMAGED})
        for entry in self.entries(status=open_ones):
            if monotonic() > until:
                has_more = True
                break
            shown = self.thread(entry["thread"]).summary()
            used = shown.get("usage", {})
            for limit, most in shown.get("limits", {}).items():
                if limit in thread.LIMITS and most and used.get(limit, 0) >= share * most:
                    found.append({**entry, "limit": limit, "used": used[limit], "most": most})
        return {"threads": sorted(found, key=lambda one: -one["used"] / one["most"]), "more": has_more}

    def search(
        self, text: str, *, after: str | None = None, max: int = 20, seconds: float = 2.0
    ) -> text_search.SearchPage:
        """Return up to `max` threads whose task or answers contain all words of `text`, newest first. The search stops
        after `seconds`; to continue it, pass `next` from the result as `after`."""
        store = self.store_if_any
        if store is None or not text.strip():
            return text_search.SearchPage()
        asked = listing.Filter(frozenset(states.Status), None, 0, None, (), True)
        return text_search.search(store, text, asked=asked, after=after, max=max, seconds=seconds)

    def spend(self, *, since: int, seconds: float = 2.0) -> spending.SpendingCount:
        """Return what the threads that moved after `since` (in milliseconds) have used, by day, workflow, role and
        agent. Steps without a reported cost are counted separately. Counting stops after `seconds`; `left` is the
        number of threads that remain for the next call."""
        store = self.store_if_any
        if store is None:
            return {"since": since, "threads": 0, "completed": 0, "left": 0, "rows": []}
        self._ledger = self._ledger or spending.Ledger()
        return self._ledger.read(store, since=since, seconds=seconds)

    def cost(self, *, since: int, by: str = "workflow") -> spending.SpendingSummary:
        """Return what was used after `since` (in milliseconds), grouped by local `day`, `workflow`, `role`, `agent` or
        `thread`. Reported, estimated and unknown costs are kept apart. All threads are counted, however long that
        takes."""
        if by not in spending.GROUPINGS:
            raise UsageError(f"costs cannot be listed by {by!r}", hint=f"By {', '.join(spending.GROUPINGS)}.")
        ledger, store = spending.Ledger(since), self.store_if_any
        while store is not None and ledger.read(store, since=since, seconds=60.0)["left"]:
            pass
        return ledger.summarize(by=by)

    def short_id_length(self) -> int:
        """Return how many characters at the end of an id are enough to distinguish all threads of the store."""
        store = self.store_if_any
        return thread.short_id_length(store) if store else 26

    def step(self, name: str) -> view_types.StepDetails | view_types.AttemptEntry:
        """Return everything about a step or a failed attempt, which is named by its id or as `THREAD#N`."""
        return views.details_named(self.store, name)

    def find_step(self, ident: str) -> Step:
        """Return the step with this id."""
        return thread.Step(self.store, self.store.get(ident))

    def prove(self, commit: str, *, bundle: Folder | None = None) -> provenance.Proof:
        """Prove where a commit in this folder's repository comes from: its steps, agents, checks and people, and
        whether their records are intact. `bundle` is a proof file (written with `Proof.sealed.dump()`) that is read
        instead of the store. Raise `NotFound` if no known step made the commit."""
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
        """Create a thread that shares another thread's steps up to a certain step. `name` is a thread, `THREAD#N` or
        the id of a step; `at` is a step number, a step id or `"start"` in that thread, by default its head. The new
        thread works in a folder of its own, which contains the files that the step left or, with `keep_files`, the
        files as they are now. `reuse` and `request` are the same as for `start`, except that the members of a group are
        reused by default if the group is the next role."""
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
        """Return agents that can take steps of several threads in this process. `agent` plays every role; `tiers` gives
        the model tier of each role that has one."""
        return Crew(compose.engine(self.store, agent=agent, tiers=tiers, shares_process=True))

    def import_uwf(
        self,
        folder: Folder,
        *,
        cas: str | None = None,
        keep_going: bool = False,
        progress: Callable[[int], None] = lambda _count: None,
    ) -> import_uwf.Imported:
        """Import the threads and workflows of a uwf folder. `cas` names a separate folder of nodes, because by default
        uwf keeps nodes outside its folder. With `keep_going`, leave damaged nodes out instead of raising an error."""
        return import_uwf.import_threads(
            self.store, os.fspath(folder), cas=cas, keep_going=keep_going, progress=progress
        )

    def collector(self, url: str | None = None, *, content: bool | None = None) -> settings.Collector | None:
        """Return the configured collector of traces, or a collector at `url`; headers are sent only to the configured
        collector. `content` says whether the collector receives prompts, answers and tool results; None leaves that to
        the configuration."""
        known = settings.collector(config.load(), config.environment(), url)
        return known if known is None or content is None else known._replace(content=content)

    def encode_traces(self, threads: Iterable[Thread], *, content: bool = False) -> Iterator[JsonObject]:
        """Encode threads as OTLP requests in JSON. The lines of the files that a collector writes have the same
        form."""
        return otlp.encode(span for one in threads for span in one.spans(content=content))

    def export_traces(self, threads: Iterable[Thread], collector: settings.Collector) -> otlp.Sent:
        """Send threads as traces to a collector. Repeating the call is harmless, because it sends the same spans
        again."""
        found = (span for one in threads for span in one.spans(content=collector.content))
        return otlp.send(found, collector)

    def follow_traces(
        self, collector: settings.Collector, *, stop: threading.Event, say: Callable[[str], None]
    ) -> None:
        """Until `stop` is set, send each step to a collector when any process commits the step. The position is kept in
        the store. `say` is called with a sentence about each problem, and with an empty text when the problem is
        over."""
        follow.Follower(self.store, collector, config.mask(), say).run(stop)

    def export(self, path: Folder) -> bundle.Copied:
        """Write the whole store, with the files that steps recorded, to a bundle that `import_bundle` can read."""
        add_files = partial(kept_files.add_to_bundle, self.store)
        return bundle.export_to(self.store, os.fspath(path), add_files=add_files)

    def import_bundle(self, path: Folder) -> bundle.Copied:
        """Import the threads, workflows and recorded files of a bundle."""
        take_files = partial(kept_files.take_from_bundle, self.store)
        return bundle.import_from(self.store, os.fspath(path), take_files=take_files)

    def restore_folders(self) -> list[str]:
        """Recreate the work folders of all threads that have not ended, after a bundle was imported on this machine.
        Each folder gets the files that the thread's last step left; files that are already in the folder are replaced.
        The folders have the same paths as on the machine that wrote the bundle, and the commits on which the threads
        work must exist here. Return the folders."""
        place = config.trees_folder(self.store.backend.address)
        unfinished = [ref for ref in states.read_threads(self.store) if not ref.state.has_ended]
        return workfolder.bring_back(self.store, sorted(unfinished, key=lambda ref: ref.id), place)

    def prune_folders(self, *, is_dry: bool = False) -> handover.PrunedFolders:
        """Remove the folders and branches of ended threads whose work is merged."""
        return handover.prune(self.store, is_dry=is_dry)

    # -- workflows --

    def put(self, workflow: str | Workflow | Playbook, *, is_named: bool = True) -> str:
        """Store a workflow and return its id. The stored workflow becomes the current version of its name unless
        `is_named` is false."""
        book = self.look_up(workflow) if isinstance(workflow, str) else self.load_workflow(workflow).playbook
        node = (registry.register if is_named else registry.keep)(self.store, book)
        # A playbook from a file can lack the functions of its roles, because a child process has loaded the file.
        return node if isinstance(workflow, (str, playbook.Playbook)) else registry.remember(node, book)

    def workflow(self, name: str) -> JsonObject:
        """Return a workflow as the mapping that its YAML contains."""
        return document.to_document(self.define(name).workflow)

    def workflows(self) -> list[str]:
        """Return the names of the workflows that can be started from this folder."""
        return [entry.name for entry in self.workflow_entries()]

    def workflow_entries(self) -> list[WorkflowEntry]:
        """Return the workflows that can be started from this folder, each with its `name`, `node`, `path` and
        `origin`."""
        return registry.list_entries(self.store_if_any, folder=self.folder)

    def gallery(self) -> list[WorkflowEntry]:
        """Return the workflows that come with Rolecall and can be started from any folder. A workflow here with the
        same name hides the one in the gallery."""
        return registry.gallery_entries(self.workflows())

    def stored_workflows(self) -> list[str]:
        """Return the names of the stored workflows."""
        return [ref.name.partition("/")[2] for ref in self.store.refs("workflow/")]

    def describe(self, entry: WorkflowEntry) -> str | None:
        """Return the description of an entry of `workflow_entries`, or the reason why the workflow cannot be read.
        Return None for a workflow in Python, because its code is not run."""
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

    def read_workflow(self, ident: str) -> model.StoredWorkflow:
        """Return the stored workflow with this id, without running its code."""
        return registry.read_node(self.store, ident)[0]

    def versions(self, name: str) -> list[Version]:
        """Return the stored versions of a workflow name, newest first."""
        store = self.store_if_any
        return registry.history(store, name) if store else []

    def count_versions(self, name: str) -> int:
        """Return how many versions of a workflow name are stored, without reading their contents."""
        store = self.store_if_any
        return len(store.history(registry.ref_name(name))) if store else 0

    def workflow_files(self) -> list[str]:
        """Return the workflow files of the project around this folder, nearest first."""
        return list(registry.project_files(self.folder))

    def id_of(self, book: Playbook) -> str:
        """Return the id under which a workflow is or would be stored."""
        return registry.compute_node(book).id

    def remove_copies(self, *, grace_ms: int) -> list[str]:
        """Remove the copies of Python workflows that were not used during the last `grace_ms`, unless a thread in the
        store was started with the copy. Return the paths of the removed copies."""
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
        """Load a workflow so that threads can be started with it. `warn` is called with each warning about a workflow
        file. With `is_kept`, a workflow in Python is loaded from a copy that does not change. With `has_any_name`, the
        name of a file can differ from the name of its workflow."""
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
        """Load a workflow only to inspect it. A Python file is loaded in a sandbox, if the machine has one, and its
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
        """Load a workflow as `load_workflow` does. In addition, NAME@PREVIOUS is the newest stored version that differs
        from the current one."""
        base, at, wanted = name.rpartition("@")
        if not at or wanted.upper() != "PREVIOUS" or registry.is_path(name):
            return self.load_workflow(name).playbook
        current = self.id_of(self.load_workflow(base).playbook)
        return self.load_workflow(
            registry.find_version(self.store_if_any, base, wanted, current=current)
        ).playbook

    # -- workflows of other projects --

    def add_workflows(self, source: str, names: Sequence[str] = ()) -> tuple[dict[str, Pin], list[str]]:
        """Copy workflows from `source` into this project. `source` is a folder or a git repository, optionally followed
        by `#REF`. Return the origin of each copied workflow, and the names of the other workflows in the source. None
        of their code runs."""
        return packs.add(self.folder, source, names)

    def compare_workflows(self, names: Sequence[str] = (), *, ref: str | None = None) -> list[PackComparison]:
        """Compare workflows from packs with the current contents of their sources; without `names`, compare all of
        them."""
        return packs.compare(self.folder, names, ref=ref)

    def update_workflows(self, chosen: Sequence[PackComparison]) -> None:
        """Replace workflows from packs with the versions in their sources."""
        packs.update(self.folder, chosen)

    def powers(self, name: str) -> list[Powers]:
        """Return what a workflow file is allowed to do, and the same for every file that belongs to it or plays its
        roles. No code runs."""
        found: dict[str, Powers] = {}
        waiting = [self.find_file(name)]
        while waiting:
            for one in pack.describe(waiting.pop(0)):
                if one.path not in found:
                    found[one.path] = one
                    waiting += self._files_of(one.nested)
        return list(found.values())

    def trust(self, powers: Sequence[Powers]) -> None:
        """Allow the workflows from packs that `powers` returned, until their files change."""
        for one in powers:
            if one.pin:
                pack.trust(one.path, one.content)

    def _check_nested(self, loaded: LoadedWorkflow) -> None:
        """Raise an error if a workflow could not play a role, before other roles cost money."""
        workflow = loaded.playbook.workflow
        for path in self._nested_files(model.nested_workflows(workflow)):
            registry.check_trust(path)
        for role in workflow.roles if loaded.path else ():
            members = model.member_roles(workflow, role) if workflow.roles[role].group else ()
            if loaded.path in self._nested_files(model.nested_workflows(workflow, members)):
                raise UsageError(
                    f"{loaded.path}: members of {role!r} are played by a workflow that leads back to this one",
                    hint="Such a thread would never end. Let another workflow play the members.",
                )

    def _nested_files(self, names: Sequence[str]) -> list[str]:
        """Return the files of the workflows with these names and of all workflows that play their roles, directly or
        through other workflows."""
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
        """Yield the files of the workflows with these names; a stored or missing workflow has no file."""
        for name in names:
            with suppress(RolecallError):  # the error is reported when it is the role's turn
                if path := registry.find(self.store_if_any, name, folder=self.folder).path:
                    yield path

    def define(self, name: str) -> WorkflowDefinition:
        """Return a workflow for inspection, without its functions. No code of a stored workflow runs."""
        found = self.find_workflow(name)
        if found.path is None:
            node = registry.workflow_node(self.store, str(found.node))
            return WorkflowDefinition(self.read_workflow(node.id), node, None)
        is_python = found.path.endswith(".py")
        book = self.look_up(found.path) if is_python else registry.read_file(found.path)
        node, store = registry.compute_node(book), self.store_if_any
        if store is not None and store.has(node.id):
            node = node._replace(created=store.get(node.id).created)
        return WorkflowDefinition(book.workflow, node, found.path)

    def check(self, workflow: str | Workflow) -> Checked:
        """Check a workflow by the current rules. Return every problem, and the playbook unless a problem is an error;
        the playbook of a Python file lacks the functions. For a stored workflow, positions refer to its YAML."""
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
        """Return every error and warning in a workflow file or object, with its position."""
        return list(self.check(workflow).problems)

    def try_workflow(
        self,
        workflow: str | Workflow | Playbook,
        threads: Sequence[str] = (),
        *,
        since: int = 0,
        runs_code: bool = False,
    ) -> Iterator[tryout.Trial]:
        """Walk recorded threads through an edited workflow, without asking any agent. Without `threads`, the threads
        are those of the workflow with the same name that began at `since` (in milliseconds) or later. A Python workflow
        that is given by its name or its file is refused unless `runs_code` is set."""
        found = self.find_workflow(workflow) if isinstance(workflow, str) else None
        if isinstance(workflow, str) and not runs_code and self.is_python(workflow):
            raise UsageError(
                f"{workflow} is written in Python, so trying it runs its code",
                hint=Hint("Allow that, if you trust it", "run_code"),
            )
        if found is not None and found.path is not None:  # an edited copy can have any file name
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
        """Return the roles whose agent is unknown or missing, each with the reason. If given, `agent` plays every role;
        `agents` play single roles."""
        agent = casting.agent_from(self.folder, agent) if agent else None
        return casting.find_unusable(casting.assign(book, agents or {}, self.folder), agent)

    def check_agents(self, book: Playbook, file: str, *, marks: Marks | None = None) -> list[Problem]:
        """Return a problem for each role of a workflow that no agent on this machine can play. The problems name
        `file` and the positions in `marks`."""
        settings, env = config.load(), config.environment()
        return [*agent_check.problems(book, file, settings=settings, env=env, find=self.look_up, marks=marks)]

    def first_ready_workflow(self) -> str | None:
        """Return the name of the first workflow here whose agents are all available. A Python workflow counts as ready,
        because checking it would run its code."""
        for entry in self.workflow_entries():
            with suppress(RolecallError):
                source = entry.path or str(entry.node)
                if self.is_python(source) or not casting.find_unusable(
                    self.load_workflow(source).playbook, None
                ):
                    return entry.name
        return None

    def _agent(self, agent: str | None, book: Playbook) -> str | None:
        """Return the agent that plays every role, or raise an error if that agent is unknown or missing."""
        if agent:
            agent = casting.agent_from(self.folder, agent)
            casting.refuse_miscast(book, agent)
        return agent

    # -- this machine --

    def diagnose(self, workflows: Sequence[str] = (), *, all_agents: bool = False) -> Diagnosis:
        """Check everything that workflows need: the machine, the store, the hosts, the agents and the endpoints.
        Without `workflows`, check those of the project. With `all_agents`, also check the agents that no role needs.
        No check costs money."""
        return diagnosis.diagnose(self, self._url, workflows, all_agents=all_agents)

    def agents(self, names: Collection[str] = ()) -> dict[str, AgentFinding]:
        """Check whether agents are installed and signed in, by name. Without `names`, check the coding agents that are
        programs, the most capable first."""
        return doctor.find_agents(names, doctor.DoctorPlace(config.environment(), pathlib.Path(self.folder)))

    def choose_agents(
        self,
        workflow: str | Workflow | Playbook | LoadedWorkflow,
        roles: Sequence[str] | None = None,
        *,
        default: str = "",
        findings: Mapping[str, AgentFinding] | None = None,
    ) -> dict[str, AgentChoice]:
        """Choose agents that are ready on this machine for `roles`, by default for those without an agent. If possible,
        a role that judges the work of others is played by a second agent. `default` is the adapter that plays the other
        roles, and `findings` the result of `agents`. A role that no ready agent can play is missing from the
        result."""
        chosen_for = self.load_workflow(workflow).playbook.workflow
        if roles is None:  # the roles of a Python workflow are played by functions
            roles = [] if chosen_for.python else choose.open_roles(chosen_for, config.load())
        if findings is None:
            findings = self.agents() if roles else {}
        ready = [
            cast for cast in doctor.known_agents() if cast.name in findings and findings[cast.name].is_ready
        ]
        return choose.choose(chosen_for, roles, ready, default=default)

    def install_for_user(self, host: str, *, force: bool = False, is_dry: bool = False) -> HostInstallation:
        """Let a host (`claude`, `codex` or `opencode`) use Rolecall in every project of this user. The arguments are
        the same as for `Project.install`."""
        return installation.install(host, setup.user_setup(), force=force, is_dry=is_dry, around=self.folder)

    def uninstall_for_user(self, host: str, *, force: bool = False, is_dry: bool = False) -> HostInstallation:
        """Remove what `install_for_user` wrote."""
        removed = setup.user_setup(is_removal=True)
        return installation.uninstall(host, removed, force=force, is_dry=is_dry, around=self.folder)

    # -- evaluations --

    def evals(self) -> Evals:
        """Return the verbs for evaluations: suites of tasks, their runs and results."""
        return evals.Evals(self)

    # -- the project --

    def project(self) -> Project:
        """Return the project around this folder: its plan, tasks and memory."""
        return project.Project(project_paths.find(self.folder))

    def knowledge(
        self, *, tell: Callable[[str], None] = lambda _text: None, may_write: bool = True
    ) -> Knowledge:
        """Return the search index of the repository around this folder. The arguments are the same as for
        `Knowledge`."""
        return knowledge.Knowledge(self.folder, tell=tell, may_write=may_write)

    def query(
        self, question: str, *, max: int = 5, path: str | None = None, may_write: bool = True
    ) -> list[FoundPassage]:
        """Find the passages of this repository that best answer a question. A damaged index is rebuilt if `may_write`
        is set; otherwise it is an error."""
        with self.knowledge(may_write=may_write) as knowledge:
            return knowledge.query(question, max=max, path=path).answers


def _address_of(workflow: Workflow) -> str:
    """Return the address from which another process can load a workflow object, or a guess if the object has no
    address."""
    if not isinstance(workflow, python.Workflow):
        raise UsageError(
            f"a workflow must be a name, a path as text, an id or a Workflow, not {workflow!r}",
            hint="The text of a path is `str(path)`.",
        )
    try:
        return workflow.address()
    except UsageError:
        return f"{workflow.place.file}:{workflow.name.replace('-', '_')}"
