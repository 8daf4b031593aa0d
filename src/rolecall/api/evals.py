"""The `Evals` class: suites of tasks, their runs and results."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from rolecall.api.thread import Folder
from rolecall.errors import Hint, UsageError
from rolecall.settings import config
from rolecall.store.lazy import Module, import_later

if TYPE_CHECKING:
    import asyncio
    import dataclasses

    from rolecall.agents import confinement
    from rolecall.agents.protocol import Cancel
    from rolecall.api import Rolecall
    from rolecall.api.thread import Thread
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
    from rolecall.files import tree
    from rolecall.settings import settings
    from rolecall.store import bundle
    from rolecall.threads import compose, kept_files
    from rolecall.threads import state as states
    from rolecall.threads.engine import Engine
    from rolecall.threads.setup import Watch
    from rolecall.workflow.playbook import Playbook
else:
    _LATER = {
        "": "asyncio dataclasses",
        "rolecall.agents.": "confinement",
        "rolecall.evals.": "begin bisect check compare gate html judge promote recorded records results run"
        " suite",
        "rolecall.files.": "tree",
        "rolecall.settings.": "settings",
        "rolecall.store.": "bundle",
        "rolecall.threads.": "compose kept_files",
    }
    globals().update(import_later(_LATER))
    states = Module("rolecall.threads.state")


class Evals:
    """Suites of tasks, which measure whether a change to a workflow, a prompt or an agent helps, by how much, and at
    what cost."""

    def __init__(self, rolecall: Rolecall) -> None:
        self._rolecall = rolecall
        self._cache = config.folder_in_home("evals")

    @property
    def _trees(self) -> tree.Trees:
        return compose.trees_of(self._rolecall.store)

    def _site(self) -> judge.Site:
        private = (config.home(), self._rolecall.store.backend.address.removeprefix("files:"))
        layers = confinement.find_allowed_layers()
        return judge.Site(self._trees, config.environment(), private, layers)

    def _at(self, path: Folder) -> Rolecall:
        """Return a `Rolecall` that looks up workflows and agents next to a suite."""
        return type(self._rolecall)(self._rolecall.store, folder=os.path.dirname(os.path.abspath(path)))

    def read(self, path: Folder) -> suite.Suite:
        """Read a suite and everything that it names. If there are problems, raise one error that lists all of them with
        their positions."""
        near = self._at(path)
        return suite.read_suite(os.fspath(path), load=near._load_version, missing=near.missing_agents)

    def plan(
        self, path: Folder, *, only: Sequence[str] = (), is_fresh: bool = False, is_new: bool = False
    ) -> begin.EvalPlan:
        """Store a suite and return what a run of it will do. `only` selects tasks by tag or id. With `is_fresh`, every
        role is asked, even if an earlier run has the answer. With `is_new`, a new run starts even if an earlier run is
        unfinished."""
        if not settings.keeps_trees(config.load()):
            raise UsageError(
                "files are not recorded, so nothing could be judged",
                hint=Hint("Record them", "set_setting", key="trees.keep", value="true"),
            )
        return self._plan(self.read(path), only=only, is_fresh=is_fresh, is_new=is_new)

    @property
    def _plan(self) -> Callable[..., begin.EvalPlan]:
        return partial(begin.plan, self._rolecall.store, self._trees, cache=self._cache)

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
        """Plan an experiment. Recorded threads are forked before the first step of a role, with the files that the step
        found, and each variant continues a fork.

        The suite names the workflow and the judges. If another version of the `workflow` or other `agents` for roles
        are given, the variants are `current` (the first of the suite) and `changed`; otherwise the variants are those
        of the suite. Without `threads`, up to `most` threads of the workflow that began at `since` or later are used.
        """
        # An edited copy of the workflow can have any file name.
        given = self._rolecall.load_workflow(workflow, has_any_name=True) if workflow else None
        changes = begin.Changes(given.playbook if given else None, agents or {})
        recorded = suite.Recorded("", since, most, role, tuple(one.id for one in threads))
        read = begin.make_experiment(self.read(path), recorded, changes, self._at(path).missing_agents)
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
        """Run what `plan` describes, with at most `at_once` threads at a time.

        `limits` on `cost` and `minutes` apply to the whole run and replace those of the suite. With `stop_early`, no
        further threads start once it is clear how the other variants compare with the first. `watch` is called with the
        kind and the body of each event. `cancel` interrupts the run; a later call continues an interrupted run.
        """
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
        """Compare variants, pairing their results by task. Each argument is RUN or RUN:VARIANT. If only one run is
        given, its first variant is compared with the others."""
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
        """Run what `plan` describes, and decide whether the result is worse than a base. `base` is a run, or the name
        under which `save_base` saved a run."""
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
        """Find the version of a suite's workflow that broke the suite. The search covers the stored versions of the
        workflow's name from `oldest` to `newest`. `noise` is how often an answer of the suite is wrong; by default it
        is estimated from repeats. `limits` apply to each run. A call with the same arguments continues an interrupted
        search."""
        read = self.read(path)
        own = read.variants[0]
        name = read.books[own.name].workflow.name
        versions = bisect.choose_versions(self._rolecall.versions(name), oldest, newest, name)

        def plan(asked: suite.Suite, tasks: Sequence[str], first: int) -> begin.EvalPlan:
            return self._plan(asked, only=tasks or only, first=first)

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
        """Find what broke a suite between its recorded runs `oldest` and `newest`: a program, a model, an agent or a
        version of the workflow. No agent is asked. `noise` and `only` are the same as for `bisect`."""
        found = self._plan(self.read(path), only=only)
        return recorded.trace(self._rolecall.store, found, oldest=oldest, newest=newest, noise=noise)

    def save_base(self, name: str, report: results.Report) -> None:
        """Save a finished run under a name, so that `gate` can compare other runs with it."""
        gate.save_base(self._rolecall.store, name, report)

    async def check(
        self, path: Folder, *, only: Sequence[str] = (), cancel: Cancel | None = None
    ) -> list[check.JudgedAnswer]:
        """Ask the judges of a suite about its references and cheats, without asking any agent. `only` is the same as
        for `plan`."""
        return await check.check(
            self.read(path),
            self._rolecall.store,
            self._site(),
            only=only,
            cache=self._cache,
            cancel=cancel or asyncio.Event(),
        )

    def report(self, name: str = "") -> results.Report:
        """Return the report on a run. `name` is the id of the run or a part of the id; without `name`, the newest run
        is reported."""
        return results.Report(self.find(name))

    def page(self, name: str = "", *, base: str = "") -> str:
        """Return a run as one self-contained HTML page. The page shows the differences from the variant `base`. With
        two variants, the default of `base` is the first variant."""
        return html.make_page(self._rolecall.store, self.report(name), mask=config.mask(), base=base)

    def figures(
        self,
        report: results.Report,
        link: Callable[[results.CellResult], str],
        *,
        base: str = "",
        running: Collection[str] = (),
    ) -> html.Figures:
        """Return the parts of the page that `page` makes. `link` returns the address of a thread."""
        store = self._rolecall.store
        return html.Figures(store, report, mask=config.mask(), link=link, base=base, running=running)

    def runs(self) -> list[records.EvalRun]:
        """Return all runs, newest first, without their findings."""
        store = self._rolecall.store_if_any
        return records.list_runs(store) if store else []

    def find(self, name: str = "") -> records.EvalRun:
        """Return a run by its id or by a part of its id, without its findings."""
        return records.find_run(self._rolecall.store, name)

    def reports(self) -> Iterator[results.Report]:
        """Yield reports on all runs, newest first."""
        return map(results.Report, self.runs())

    def export(self, name: str, path: Folder) -> bundle.Copied:
        """Write a run with its suite, its threads and their files to a bundle, which `cas import` can read."""
        store, found = self._rolecall.store, self.find(name)
        add_files = partial(kept_files.add_to_bundle, store)
        refs = [found.ref.name, *(states.ref_name(cell.thread) for cell in found.cells)]
        return bundle.export_to(store, os.fspath(path), refs=refs, add_files=add_files)

    def find_tasks_file(self, path: Folder) -> str:
        """Return the path of the tasks file that a suite names."""
        return promote.find_tasks_file(os.fspath(path))

    def promote(
        self, thread: Thread, tasks: Folder, *, name: str = "", tags: Sequence[str] = ()
    ) -> promote.Promoted:
        """Turn a thread into a task: append it to the file `tasks`, with a copy of the files with which the thread
        began."""
        ref = thread._ref
        ident = name or f"{ref.state.name}-{ref.id[-6:]}".lower()
        file = os.path.abspath(tasks)
        return promote.promote(self._rolecall.store, self._trees, ref, file, name=ident, tags=list(tags))
