"""`Rolecall`: a store and a folder to work from. It starts and finds threads and workflows."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from time import monotonic, time
from typing import TYPE_CHECKING, NamedTuple

from rolecall.api.thread import Crew, Folder, Thread, check_limits
from rolecall.errors import Hint, NotFound, RolecallError, UsageError
from rolecall.settings import config, repository
from rolecall.store.lazy import Module, import_later

if TYPE_CHECKING:
    import asyncio
    import shutil
    import tempfile
    import threading

    from rolecall.api import evals, knowledge, project
    from rolecall.api.evals import Evals
    from rolecall.api.knowledge import Knowledge
    from rolecall.api.project import Project
    from rolecall.checks import workflow_file
    from rolecall.files import packs, tree
    from rolecall.files.packs import PackComparison
    from rolecall.hosts.lead import conversation
    from rolecall.knowledge.query import FoundPassage
    from rolecall.nexus import project_paths
    from rolecall.settings import settings, stores, yaml12
    from rolecall.settings.yaml12 import Problem
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
        views,
        workfolder,
    )
    from rolecall.threads import state as states
    from rolecall.threads.state import ThreadRef
    from rolecall.threads.thread import Step
    from rolecall.traces import follow, otlp
    from rolecall.workflow import (
        document,
        gallery,
        model,
        pack,
        playbook,
        python,
        registry,
        versions,
        yaml,
    )
    from rolecall.workflow.pack import Pin, Powers
    from rolecall.workflow.playbook import Playbook
    from rolecall.workflow.python import Workflow
    from rolecall.workflow.registry import Checked, Found, Version, WorkflowEntry
else:
    _LATER = {
        "": "asyncio shutil tempfile threading",
        "rolecall.api.": "evals knowledge project",
        "rolecall.checks.": "workflow_file",
        "rolecall.files.": "packs tree",
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
    states = Module("rolecall.threads.state")

MEMORY = ":memory:"


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
"""How long after a provider's limit has ended a thread that waited for it counts as abandoned."""
_MOST_IDLE = 500
"""How many idle threads are checked for this."""


class LoadedWorkflow(NamedTuple):
    """A workflow that is ready to run, and where it was found: a stored node or a file."""

    playbook: Playbook
    id: str | None = None
    path: str | None = None


class WorkflowDefinition(NamedTuple):
    """A workflow as a value, the node it is or would be stored as, and its file if it was found in one."""

    workflow: model.StoredWorkflow
    node: Node
    path: str | None


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
        """`store` is an address or an open store. Unless `create` is set, a missing store is an error, with `is_lazy`
        only once the store is needed."""
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
            ident: its id, an earlier result of `new_id`. also: adds to the transaction that creates the thread.
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
        """Start a conversation with a person's words, by default with the Lead; `Thread.say` continues it. As in a
        host, tags in words to the Lead are carried out, and the Lead is shown the state of the project. The other
        arguments are the same as for `start`."""
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
        """Which first steps of a thread would be reused, and what the remaining ones may use. The arguments are the
        same as for `start`; no agent is asked, no thread is started and nothing is written to the store."""
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
        """The latest thread that was started in this folder, or in a folder above it in the same repository; with
        `is_waiting`, the latest that waits for a person or for the end of a limit."""
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
    ) -> Iterator[views.View]:
        """Describe threads as `Thread.entry` does, newest first, with any status unless `status` is given. `since` and
        `before` limit their start times, in milliseconds; the list begins after the thread `after`. `members` includes
        the members of groups. `look` is called with the id of each thread before the thread is read, even if it is then
        left out; the list ends when `look` returns False."""
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
        """Threads that need a person, newest first: suspended ones, including members of groups, and crashed ones; then
        those that no process runs although the limit of their provider has ended. Threads that wait for another thread,
        members whose group has ended, and threads that continue with the run of their evaluation are left out."""
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

    def set_aside(self) -> Iterator[views.View]:
        """Members of groups and tasks of `plan run` whose work could not be merged, newest first: the entries of their
        threads with the `branch` that has the work, the `reason`, and the `conflict`. Only threads in this folder's
        repository are listed, and only until another branch has the work or the branch is gone."""
        store = self.store_if_any
        if store is None:
            return
        for ref, known in handover.list_set_aside(store, self.folder):
            told = {key: known[key] for key in ("branch", "reason", "conflict") if key in known}
            yield {**views.entry(store, ref), **told}

    def near_limits(self, *, share: float = 0.8, seconds: float = 1.0) -> views.View:
        """Threads that have not ended and have used this share of a limit, the one nearest to its limit first. If
        `seconds` are not enough to read all of them, older ones are left out, and `more` is true."""
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
        reported cost are counted separately. If `seconds` are not enough, the next call counts the `left` threads."""
        store = self.store_if_any
        if store is None:
            return {"since": since, "threads": 0, "completed": 0, "left": 0, "rows": []}
        self._ledger = self._ledger or spending.Ledger()
        return self._ledger.read(store, since=since, seconds=seconds)

    def cost(self, *, since: int, by: str = "workflow") -> spending.SpendingSummary:
        """What was used after `since` (milliseconds), by local `day`, `workflow`, `role`, `agent` or `thread`;
        reported, estimated and unknown costs are separate. All threads are counted, however long that takes."""
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
        """Where a commit of this folder's repository comes from: its steps, agents, checks and people, and whether
        their records are intact. `bundle` is a proof file (`Proof.sealed.dump()`), which is used instead of the store.
        Raise `NotFound` if no known step made the commit."""
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
        `at` is a number, an id or `"start"` in that thread, by default its head. The new thread works in a folder of
        its own with the files of that step, or, with `keep_files`, with the files as they are now. `reuse` and
        `request` are the same as for `start`; if the next role is a group, its members are reused by default."""
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
        """Import the threads and workflows of a uwf folder; `cas` is its folder of nodes if that is elsewhere. With
        `keep_going`, damaged nodes are left out instead of raising an error."""
        return import_uwf.import_threads(
            self.store, os.fspath(folder), cas=cas, keep_going=keep_going, progress=progress
        )

    def collector(self, url: str | None = None, *, content: bool | None = None) -> settings.Collector | None:
        """The configured collector of traces, or the one at `url`; only the configured one gets headers. `content` says
        whether the collector gets prompts, answers and tool results; None leaves that to the configuration."""
        known = settings.collector(config.load(), config.environment(), url)
        return known if known is None or content is None else known._replace(content=content)

    def encode_traces(self, threads: Iterable[Thread], *, content: bool = False) -> Iterator[JsonObject]:
        """Threads as requests of OTLP in JSON, which are also lines of a collector's files."""
        return otlp.encode(span for one in threads for span in one.spans(content=content))

    def export_traces(self, threads: Iterable[Thread], collector: settings.Collector) -> otlp.Sent:
        """Send threads as traces to a collector. Repeating the call is harmless, because it sends the same spans."""
        found = (span for one in threads for span in one.spans(content=collector.content))
        return otlp.send(found, collector)

    def follow_traces(
        self, collector: settings.Collector, *, stop: threading.Event, say: Callable[[str], None]
    ) -> None:
        """Send each step to a collector when it is committed, by any process, until `stop` is set. The position is kept
        in the store. `say` is called with a sentence about each problem, and with an empty text when the problem is
        over."""
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
        """After a bundle was imported on this machine, make the work folders of all threads that have not ended, with
        the files that their last steps left, and return the folders. The paths must be those of the other machine, and
        the commits that threads work on must be there. Files in those folders are replaced."""
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
        """The workflows that come with Rolecall and can be started from any folder, unless a workflow here has the same
        name."""
        return registry.gallery_entries(self.workflows())

    def stored_workflows(self) -> list[str]:
        """The names of the stored workflows."""
        return [ref.name.partition("/")[2] for ref in self.store.refs("workflow/")]

    def describe(self, entry: WorkflowEntry) -> str | None:
        """Describe an entry of `workflow_entries`, or say why it cannot be read; None for a workflow in Python, whose
        code is not run."""
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
        """A stored workflow by its id, without running its code."""
        return registry.read_node(self.store, ident)[0]

    def versions(self, name: str) -> list[Version]:
        """The stored versions of a name, newest first."""
        store = self.store_if_any
        return registry.history(store, name) if store else []

    def count_versions(self, name: str) -> int:
        """How many versions a name has; their contents are not read."""
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
        """Load a workflow by its name, path or id, or a stored version of a name: NAME@PREVIOUS is the newest one that
        differs from the current one, NAME@VERSION the newest one with this version, or with an id that begins so."""
        base, at, wanted = name.rpartition("@")
        if not at or registry.is_path(name):
            return self.load_workflow(name).playbook
        known = self.versions(base)
        if wanted.upper() == "PREVIOUS":
            current = self.id_of(self.load_workflow(base).playbook)
            chosen = [one.node for one in known if one.node != current]
        else:
            chosen = [one.node for one in known if wanted and one.version == wanted]
            chosen += [one.node for one in known if wanted and one.node.startswith(wanted.upper())]
        if not chosen:
            listed = ", ".join(dict.fromkeys(f"{base}@{one.version or one.node}" for one in known[:5]))
            raise NotFound(
                f"the workflow {base!r} has no version {wanted!r}{f', but {listed}' if listed else ''}",
                hint=Hint("Put versions under their name, and list them", "workflow_history", workflow=base),
            )
        return self.load_workflow(chosen[0]).playbook

    # -- workflows of other projects --

    def add_workflows(self, source: str, names: Sequence[str] = ()) -> tuple[dict[str, Pin], list[str]]:
        """Copy workflows from a folder or a git repository, `SOURCE` or `SOURCE#REF`, into this project. Return where
        each comes from, and the names that the source also has. None of their code runs."""
        return packs.add(self.folder, source, names)

    def compare_workflows(self, names: Sequence[str] = (), *, ref: str | None = None) -> list[PackComparison]:
        """Compare workflows of packs, by default all, with the current contents of their sources."""
        return packs.compare(self.folder, names, ref=ref)

    def update_workflows(self, chosen: Sequence[PackComparison]) -> None:
        """Replace workflows with the versions of their sources."""
        packs.update(self.folder, chosen)

    def powers(self, name: str) -> list[Powers]:
        """What a workflow file may do, including the files that belong to it or play its roles. No code runs."""
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
        """The files with the given workflow names; a workflow that is stored or missing has none."""
        for name in names:
            with suppress(RolecallError):  # reported at the role's turn
                if path := registry.find(self.store_if_any, name, folder=self.folder).path:
                    yield path

    def define(self, name: str) -> WorkflowDefinition:
        """Read a workflow only to look at it, without what is needed to run it; for a stored one, no code runs."""
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
        """Check a workflow by the current rules: return every problem, and the playbook unless a problem is an error;
        the playbook of a file in Python lacks the functions. Positions in a stored workflow refer to its YAML."""
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
        """Walk recorded threads through an edited workflow, without asking any agent: by default those of the workflow
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
        return evals.Evals(self)

    # -- the project --

    def project(self) -> Project:
        """The plan, tasks and memory of the project around this folder."""
        return project.Project(project_paths.find(self.folder))

    def knowledge(
        self, *, tell: Callable[[str], None] = lambda _text: None, may_write: bool = True
    ) -> Knowledge:
        """The index of the repository around this folder. The arguments are the same as for `Knowledge`."""
        return knowledge.Knowledge(self.folder, tell=tell, may_write=may_write)

    def query(
        self, question: str, *, max: int = 5, path: str | None = None, may_write: bool = True
    ) -> list[FoundPassage]:
        """Find the passages of this repository that best answer a question. A damaged index is rebuilt if this
        `may_write`, else an error."""
        with self.knowledge(may_write=may_write) as knowledge:
            return knowledge.query(question, max=max, path=path).answers


def _address_of(workflow: Workflow) -> str:
    """The address from which another process can load a workflow object, or a guess if it has none."""
    if not isinstance(workflow, python.Workflow):
        raise UsageError(
            f"a workflow is a name, a path as text, an id or a Workflow, not {workflow!r}",
            hint="The text of a path is `str(path)`.",
        )
    try:
        return workflow.address()
    except UsageError:
        return f"{workflow.place.file}:{workflow.name.replace('-', '_')}"
