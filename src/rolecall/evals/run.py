"""Run a suite: one thread for each variant, task and repeat, and the verdicts of the judges.

The run is stored before the first thread starts, and the ids of its threads are derived from it. So a run that was
interrupted or killed can continue: finished threads are found again, recorded answers are not asked for again, and only
judgements without a recorded verdict are repeated.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import takewhile
from time import monotonic
from typing import Any

from rolecall.agents.protocol import Cancel
from rolecall.errors import Conflict, NotFound, RolecallError, StorageError, UsageError
from rolecall.evals import folders, judge
from rolecall.evals.judge import Judged, Site, Vote
from rolecall.evals.records import (
    EVENT,
    Calibration,
    Cell,
    EvalRun,
    Result,
    StoredJudge,
    StoredSuite,
    Verdict,
    add_calibration,
    add_result,
    sum_amounts,
)
from rolecall.settings.mask import Mask
from rolecall.store import holder, scratch
from rolecall.store.canonical import JsonObject
from rolecall.store.ids import member_id
from rolecall.store.store import Store
from rolecall.threads import casting, handover, lifecycle, step_files, thread, views
from rolecall.threads.engine import Engine
from rolecall.threads.setup import Watch
from rolecall.threads.state import Status, ThreadRef, read_thread
from rolecall.threads.thread import Chain
from rolecall.workflow import registry

AMOUNTS: tuple[thread.LimitName, ...] = ("cost", "tokens", "minutes", "turns", "steps")
_LEASE_MS = 600_000
_RENEW_SECONDS = 60.0
_LOOK_SECONDS = 0.5
"""The number of seconds between two checks of whether the run has reached a limit."""


@dataclass
class Runner:
    """Runs the open cells of a run in this process."""

    store: Store
    run: EvalRun
    site: Site
    engine: Callable[[str | None], Engine]
    """Makes an engine. If an agent is given, it plays every role."""
    mask: Mask
    work: str
    """The folder that contains the work folders of threads."""
    cache: str
    """The folder that contains fetched repositories."""
    watch: Watch
    cancel: Cancel
    at_once: int = 4
    stop: Callable[[Sequence[Result]], str] | None = None
    """Called with the results so far, in the order in which they arrived. Returns why the rest need not run, or an
    empty string if it must run."""
    _results: dict[int, Result] = field(default_factory=dict)
    _engines: dict[str | None, Engine] = field(default_factory=dict)
    _used: dict[int, Mapping[str, float]] = field(default_factory=dict)
    """The usage of each thread, keyed by the number of its cell."""
    _judging: dict[str, Mapping[str, float]] = field(default_factory=dict)
    """The usage of judges' votes, keyed by thread."""
    _since: dict[int, float] = field(default_factory=dict)
    """When the current step of each running thread began, keyed by the number of its cell."""
    _halt: asyncio.Event = field(default_factory=asyncio.Event)

    async def play(self) -> EvalRun:
        """Run the remaining cells until everything has a verdict, a limit is reached or the run is interrupted."""
        results = self.run.read_results()
        self._results = dict(sorted(results.items(), key=lambda one: one[1].at))
        self._used = {number: result.usage for number, result in results.items()}
        is_done = {number for number, result in results.items() if result.outcome != "infrastructure"}
        earlier = [verdict.usage for number in is_done for verdict in results[number].verdicts]
        earlier += [one.usage for one in self.run.read_calibrations().values()]
        self._judging = {"": sum_amounts(earlier)}
        waiting = deque(cell for cell in self.run.cells if cell.number not in is_done)
        if self.stop:  # a task counts only when all its threads have ended
            order = self.run.tasks.index
            waiting = deque(sorted(waiting, key=lambda cell: (order(cell.task.node), cell.number)))
        self._set(status="open", reason="")
        try:
            await self._try_setups(waiting)
        except UsageError:
            if results:
                self._set(lease=None)
            else:  # leave no trace, as if the run had never started
                self.store.move(self.run.ref.name, self.run.ref)
                shutil.rmtree(self._folder(""), ignore_errors=True)
            raise
        reason, stopping = "", asyncio.ensure_future(self._halt_when_cancelled())
        try:
            await self._calibrate()
            reason = self._find_reached() or await self._play_cells(waiting)
        finally:
            stopping.cancel()
            for engine in self._engines.values():
                await engine.close()
            results = self.run.read_results()
            judged = [result for result in results.values() if result.outcome != "infrastructure"]
            is_complete = len(judged) == len(self.run.cells)
            early = "" if is_complete or reason or self.cancel.is_set() else self._find_answer()
            status = "done" if is_complete or early else "suspended" if reason else "open"
            self._set(status=status, reason=reason or early, early=bool(early) or None, lease=None)
        return self.run

    async def _halt_when_cancelled(self) -> None:
        await self.cancel.wait()
        self._halt.set()

    async def _try_setups(self, waiting: Sequence[Cell]) -> None:
        """Prepare the folder of the first thread of each task, so that no agent is asked if the setup of a task
        fails."""
        new = [cell for cell in reversed(waiting) if read_thread(self.store, cell.thread) is None]
        first = {cell.task.node: cell for cell in new}
        problems = []
        for cell in sorted(first.values()):
            try:
                await self._prepare(cell)
            except RolecallError as error:
                problems.append(judge.describe_problem(error))
            if self.cancel.is_set():
                return
        # Run the command judges on untouched files, to find judges that write outside their folder. The sandbox would
        # block these writes, but a judge could then fail every result regardless of its quality.
        commands = [one for one in self.run.suite.judges if one.judge.command]
        for stored in commands if first and not problems else ():
            cell = min(first.values())
            files = await asyncio.to_thread(self.site.trees.take, self._folder(str(cell.number)))
            judged = Judged(cell.task.id, cell.task.prompt, files, {})
            if wrote := await judge.find_writes(stored, judged, self.site, cancel=self.cancel):
                problems.append(f"the judge {stored.judge.name!r} writes outside its folder: {wrote}")
        if problems:
            listed = "".join(f"\n  {problem}" for problem in problems)
            raise UsageError(f"nothing was run:{listed}")

    async def _play_cells(self, waiting: deque[Cell]) -> str:
        """Run cells, as many at once as allowed. Return the limit that was reached, or an empty string."""
        running: dict[asyncio.Task[None], Cell] = {}
        reason, renewed = "", monotonic()
        try:
            while running or (waiting and not self._halt.is_set()):
                reason = reason or self._find_reached()
                if self._find_answer():
                    waiting.clear()
                if reason:
                    self._halt.set()
                while waiting and len(running) < self.at_once and not self._halt.is_set():
                    cell = waiting.popleft()
                    running[asyncio.create_task(self._play_cell(cell))] = cell
                counts = {"waiting": len(waiting), "running": len(running), "limits": dict(self.run.limits)}
                self.watch("progress", {**counts, "spent": self.spent()})
                if not running:
                    break
                ended, _ = await asyncio.wait(running, timeout=_LOOK_SECONDS, return_when="FIRST_COMPLETED")
                for task in ended:
                    running.pop(task)
                    task.result()
                if monotonic() - renewed > _RENEW_SECONDS:
                    renewed = monotonic()
                    self._set()
        finally:
            self._halt.set()
            await asyncio.gather(*running, return_exceptions=True)
        return reason

    # -- the run --

    def _set(self, **fields: Any) -> None:
        """Change the state of the run, and renew its lease unless `fields` replace the lease."""
        lease = {**holder.identify_self("eval"), "deadline": self.store.now() + _LEASE_MS}
        state = {**self.run.ref.state, "lease": lease, **fields}
        kept = {key: value for key, value in state.items() if value not in (None, "")}
        draft = self.store.draft()
        draft.move(self.run.ref.name, self.run.ref, self.run.ref.target, kept)
        if fields:
            draft.event(self.run.id, EVENT, {"status": kept["status"]})
        self.run.ref = draft.commit(durable=True)[0]

    def _find_answer(self) -> str:
        """Return why the rest of the run is unnecessary, in words, or an empty string if it is needed."""
        return self.stop([*self._results.values()]) if self.stop else ""

    def _find_reached(self) -> str:
        """Return the limit of the run that is used up, in words, or an empty string if none is."""
        spent = self.spent()
        for key, limit in self.run.limits.items():
            if spent.get(key, 0) >= limit:
                return f"the run has used {spent[key]:,.4g} of its limit {key}={limit:g}"
        return ""

    def spent(self) -> dict[str, float]:
        """Return the usage of the run so far, including its judges."""
        total = sum_amounts([*self._used.values(), *self._judging.values()])
        now = monotonic()
        under_way = sum(now - since for since in self._since.values()) / 60
        return total | {"minutes": total.get("minutes", 0) + under_way}

    # -- a cell --

    def _folder(self, name: str) -> str:
        return os.path.join(self.work, "eval", self.run.id, name)

    async def _prepare(self, cell: Cell) -> str:
        folder = self._folder(str(cell.number))
        os.makedirs(os.path.dirname(folder), exist_ok=True)
        await folders.prepare(
            folder, cell.task, self.site.trees, self.cache, env=self.site.environment, cancel=self.cancel
        )
        return folder

    async def _play_cell(self, cell: Cell) -> None:
        """Run the thread of a cell and judge its result. Record nothing if the run is interrupted first."""
        try:
            reason = await self._run_thread(cell)
            ref = read_thread(self.store, cell.thread)
            if reason or ref is None:
                result = self._result(cell, ref, "infrastructure", reason)
            elif ref.state.status == Status.FAILED:
                result = self._result(cell, ref, "failed", ref.state.reason)
            elif ref.state.status != Status.COMPLETED:
                if self._halt.is_set():
                    return
                result = self._result(cell, ref, "infrastructure", ref.state.reason or ref.state.status)
            else:
                judged = read_judged(self.store, ref, cell.task.id, cell.task.prompt)
                verdicts = [await self._ask(one, cell, judged) for one in self.run.suite.judges]
                outcome, reason, score = judge.decide(name_deciding(self.run.suite), verdicts)
                result = self._result(cell, ref, outcome, reason, verdicts, score)
        except StorageError:
            raise
        except RolecallError as error:
            ref = read_thread(self.store, cell.thread)
            result = self._result(cell, ref, "infrastructure", judge.describe_problem(error))
        if self._halt.is_set() and result.outcome == "infrastructure":
            return
        add_result(self.store, self.run, result)
        self._results.pop(cell.number, None)
        self._results[cell.number] = result
        self._used[cell.number] = result.usage
        if result.outcome != "infrastructure":  # the files in the thread's work folders are recorded
            ended = thread.find(self.store, cell.thread)
            if ended.state.folders:
                with suppress(RolecallError):  # folders that cannot be removed stay
                    handover.remove(self.store, ended, force=True)
            folders.clear(self._folder(str(cell.number)))
        self.watch("cell", describe_result(cell, result))

    async def _run_thread(self, cell: Cell) -> str:
        """Run the thread of a cell until it stops, after starting it if it is new. Return why the thread cannot run, or
        an empty string."""
        ref = read_thread(self.store, cell.thread)
        if ref is None:
            folder = await self._prepare(cell)
            if self._halt.is_set():
                return ""
            ref = self._start(cell, folder)
        if ref.state.status == Status.SUSPENDED:
            try:
                ref = lifecycle.resume(self.store, ref, mask=self.mask, is_run_here=True)
            except UsageError:  # the thread is waiting for an answer
                return ref.state.reason
        if ref.state.has_ended:
            has_result = ref.state.status in (Status.COMPLETED, Status.FAILED)
            return "" if has_result else f"it was {ref.state.status}"
        self._since[cell.number] = monotonic()

        def tell(kind: str, body: JsonObject) -> None:
            if kind == "step":
                self._since[cell.number] = monotonic()
                if (moved := read_thread(self.store, cell.thread)) is not None:
                    self._used[cell.number] = measure_usage(self.store, moved, cell.task.fork)
            self.watch("member", {"number": cell.number, "thread": cell.thread, "kind": kind, "body": body})

        try:
            await self._advance(cell.variant.agent, cell.thread, tell)
        except Conflict as error:  # another process is running the thread, or somebody has killed it
            return error.message
        finally:
            del self._since[cell.number]
        return ""

    async def _advance(self, agent: str | None, ident: str, tell: Watch) -> None:
        if agent not in self._engines:
            self._engines[agent] = self.engine(agent)
        async for _ in replace(self._engines[agent], watch=tell).run(ident, cancel=self._halt):
            pass

    def _start(self, cell: Cell, folder: str) -> ThreadRef:
        variant = cell.variant
        book = casting.assign(registry.load_node(self.store, variant.workflow), variant.agents, folder)
        bind = casting.binder(variant.agent, book.bound)
        title = f"{self.run.suite.name} · {variant.name} · {cell.task.id} · {cell.repeat + 1}"
        fork = partial(lifecycle.fork, self.store, cell.task.fork, workflow=variant.workflow)
        start = partial(lifecycle.start, self.store, variant.workflow, cell.task.prompt)
        return (fork if cell.task.fork else start)(
            cwd=folder,
            mask=self.mask,
            agent=variant.agent,
            bind=bind,
            title=title,
            work=self.work,
            reuse=not self.run.is_fresh,
            cell=lifecycle.EvalThread(cell.thread, self.run.id, cell.repeat),
        )

    def _result(
        self,
        cell: Cell,
        ref: ThreadRef | None,
        outcome: str,
        reason: str,
        verdicts: Sequence[Verdict] = (),
        score: float | None = None,
    ) -> Result:
        result = Result(cell.number, cell.thread, outcome, tuple(verdicts), self.store.now())
        result = result._replace(reason=self.mask.text(reason), score=score)
        if ref is None:
            return result
        return result._replace(
            head=ref.head,
            usage=measure_usage(self.store, ref, cell.task.fork),
            saved=measure_savings(self.store, ref, cell.task.fork),
            agents=list_agents(self.store, ref),
        )

    # -- judging --

    async def _ask(self, stored: StoredJudge, cell: Cell, judged: Judged) -> Verdict:
        if stored.judge.kind == "expression":
            return judge.judge_expression(stored.judge, judged)
        if stored.judge.kind == "command":
            verdict = await judge.judge_command(stored, judged, self.site, cancel=self._halt)
            details = self.mask.value(verdict.details)
            return verdict._replace(reason=self.mask.text(verdict.reason), details=details)
        title = f"{stored.judge.name} · {cell.variant.name} · {cell.task.id} · {cell.repeat + 1}"
        return await self._ask_agent(stored, judged, str(cell.number), title, cell.repeat)

    async def _ask_agent(
        self, stored: StoredJudge, judged: Judged, place: str, title: str, repeat: int = 0
    ) -> Verdict:
        """Let the agent of a judge vote as often as the judge's `votes` says. `place` identifies the judged result."""
        name, count = stored.judge.name, stored.judge.votes
        votes = [
            await self._vote(stored, judged, f"{place}-{name}-{number + 1}", title, number + repeat * count)
            for number in range(count)
        ]
        return judge.count_votes(stored.judge, votes)

    async def _vote(self, stored: StoredJudge, judged: Judged, place: str, title: str, repeat: int) -> Vote:
        """Let the agent of a judge vote once, in a new thread with a fresh copy of the result."""
        ident, folder = member_id(self.run.at, 0, f"{self.run.node}/{place}"), self._folder(place)
        ref = read_thread(self.store, ident)
        if ref is None:
            await asyncio.to_thread(folders.fill, folder, judged.files, self.site.trees, self.cache)
            ref = lifecycle.start(
                self.store,
                stored.workflow or "",
                judge.question_of(judged),
                cwd=folder,
                mask=self.mask,
                bind=casting.binder(None),
                title=f"{self.run.suite.name} · {title}",
                work=self.work,
                reuse=not self.run.is_fresh,
                cell=lifecycle.EvalThread(ident, self.run.id, repeat),
            )
        if ref.state.status == Status.SUSPENDED:
            with suppress(UsageError):  # the thread is waiting for an answer
                ref = lifecycle.resume(self.store, ref, mask=self.mask, is_run_here=True)
        if not ref.state.is_over:

            def tell(kind: str, body: JsonObject) -> None:
                self.watch("member", {"number": 0, "thread": ident, "kind": kind, "body": body})

            await self._advance(None, ident, tell)
            ref = thread.find(self.store, ident)
        last = Chain(self.store, ref.head).last
        used = self._judging[ident] = measure_usage(self.store, ref)
        if ref.state.status != Status.COMPLETED or last is None:
            return Vote(problem=ref.state.reason or "it was interrupted", usage=used, step=ref.head)
        folders.clear(folder)
        output = last.output
        return Vote(output["verdict"] == "pass", float(output["score"]), output["reason"], last.id, used)

    async def _calibrate(self) -> None:
        """Ask the judging agents about answers with known verdicts, unless this run has already done so."""
        known, places = self.run.read_calibrations(), asyncio.Semaphore(self.at_once)

        async def ask(stored: StoredJudge, number: int) -> Verdict:
            example, files = stored.judge.examples[number], stored.examples[number]
            async with places:
                if self._halt.is_set():
                    return Verdict(stored.judge.name, "infrastructure")
                if files is None:
                    with scratch.folder("rolecall-eval-") as empty:
                        files = await asyncio.to_thread(self.site.trees.take, str(empty), source=self.work)
                judged = Judged("", example.prompt, files, example.output, example.answer)
                title = f"{stored.judge.name} · example {number + 1}"
                verdict = await self._ask_agent(stored, judged, f"example-{number + 1}", title)
                if self._find_reached():
                    self._halt.set()
                return verdict

        for stored in self.run.suite.judges:
            judge_name, examples = stored.judge.name, stored.judge.examples
            if not examples or (judge_name in known and known[judge_name].total == len(examples)):
                continue
            verdicts = await asyncio.gather(*(ask(stored, number) for number in range(len(examples))))
            if self._halt.is_set():
                return
            given = [number for number, one in enumerate(verdicts) if not one.is_infrastructure]
            wrong = tuple(
                number + 1
                for number in given
                if (verdicts[number].outcome == "passed") != (examples[number].verdict == "pass")
            )
            usage = sum_amounts(one.usage for one in verdicts)
            votes = [step for one in verdicts for step in one.votes]
            found = Calibration(judge_name, len(given) - len(wrong), len(given), wrong, usage, votes)
            add_calibration(self.store, self.run, found)


# -- the facts about a thread --


def name_deciding(suite: StoredSuite) -> list[str]:
    """Return the names of the judges that decide: those with `gate` or, if there are none, all of them."""
    gates = [one.judge.name for one in suite.judges if one.judge.gate]
    return gates or [one.judge.name for one in suite.judges]


def read_judged(store: Store, ref: ThreadRef, task: str, prompt: str) -> Judged:
    """Return the parts of an ended thread that judges see."""
    steps = [step for step in reversed(list(Chain(store, ref.head))) if not step.role.startswith("$")]
    if not steps:
        raise NotFound("no role has answered")
    last, files = steps[-1], step_files.find_left(store, ref).files
    seen = [{"role": step.role, "output": step.output} for step in steps]
    return Judged(task, prompt, files, last.output, last.body, seen, ref.state.name)


def measure_usage(store: Store, ref: ThreadRef, fork: str = "") -> dict[str, float]:
    """Return the usage of a thread since `fork`, including failed attempts. Amounts that were not reported are left
    out."""
    used = views.card(store, ref).get("usage", {})
    before = _totals_at(store, fork)
    return {
        key: used[key] - before.get(key, 0) for key in AMOUNTS if key in used and used[key] != before.get(key)
    }


def measure_savings(store: Store, ref: ThreadRef, fork: str = "") -> dict[str, float]:
    """Return the original usage of the steps that a thread has reused since `fork`."""
    before = _totals_at(store, fork).get("saved", {})
    saved: dict[str, float] = {
        key: value - before.get(key, 0)
        for key, value in thread.get_savings(store, ref).items()
        if key in AMOUNTS and value > before.get(key, 0)
    }
    own = takewhile(lambda step: step.id != fork, Chain(store, ref.head))
    ms = 0
    for origin in [step.reused.step for step in own if step.reused]:
        if store.has(origin):
            payload = thread.Step(store, store.get(origin)).payload
            ms += payload["completed_at"] - payload["started_at"]
    return saved | ({"minutes": ms / 60_000} if ms else {})


def _totals_at(store: Store, node: str) -> JsonObject:
    """Return the usage of a chain up to a step. At the start of the chain, it is empty."""
    last = Chain(store, node).last if node else None
    return last.payload["totals"] if last else {}


def list_agents(store: Store, ref: ThreadRef) -> list[dict[str, str]]:
    """Return the player of each role of a thread, with the version of its program."""
    found: dict[tuple[str, str, str], None] = {}
    for step in Chain(store, ref.head):
        if step.parts is not None:
            found[step.role, step.parts.agent, step.parts.version] = None
        elif not step.role.startswith("$"):
            found[step.role, step.agent, ""] = None
    named = [dict(zip(("role", "agent", "version"), one, strict=True)) for one in found]
    return [{key: value for key, value in one.items() if value} for one in reversed(named)]


def describe_result(cell: Cell, result: Result) -> JsonObject:
    """Return the result of a cell, for watchers of the run."""
    return {
        "number": cell.number,
        "variant": cell.variant.name,
        "task": cell.task.id,
        "repeat": cell.repeat + 1,
        "thread": cell.thread,
        "outcome": result.outcome,
        "reason": result.reason,
        "score": result.score,
        "usage": dict(result.usage),
        "saved": dict(result.saved),
    }
