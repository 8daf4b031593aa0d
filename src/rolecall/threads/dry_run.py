"""Predict a thread without starting it: which of its first steps would be reused, and how much the remaining steps
might use.

No agent is asked and nothing is written to the store. The predicted thread is a chain in memory, made of finished steps
that are found by their keys. The chain ends before the first role that would be asked.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from rolecall.agents.presence import adapter_of
from rolecall.errors import Damaged, NotFound, RolecallError
from rolecall.files import git
from rolecall.files.snapshot import Snapshot
from rolecall.files.tree import find_top
from rolecall.settings.settings import OUTSIDE
from rolecall.store.store import Node, Store
from rolecall.threads import reuse
from rolecall.threads.forecast import NOTHING, Forecast, PastThreads
from rolecall.threads.key import Parts, key_of
from rolecall.threads.key_parts import KeyInput, KnownStep, find_parts, find_parts_of_call, find_step
from rolecall.threads.loaded_thread import LoadedThread, next_of
from rolecall.threads.prompt import ShownStep, choose_steps
from rolecall.threads.setup import HUMAN, Setup
from rolecall.threads.thread import Chain, Reused, Start, Step, add_totals
from rolecall.workflow.model import Workdir, reuse_of
from rolecall.workflow.playbook import Playbook
from rolecall.workflow.route import Ended, Next

_MOST_STEPS = 1_000
_SHOW = f"rolecall thread read {'0' * 26}"


class Ahead(NamedTuple):
    """A step that would be reused."""

    number: int
    role: str
    origin: Reused


class Outlook(NamedTuple):
    """The prediction for a thread."""

    reused: tuple[Ahead, ...]
    asks: str | None
    """The first role that would be asked, or None if no role would be asked."""
    reason: str
    """Why this role is asked, or why the thread would end or stop."""
    forecast: Forecast
    """The amounts that the thread might use from that role on."""
    threads: int
    """The number of earlier threads that the forecast is based on."""


class _Stop(Exception):
    """The role must be asked, or might have to be asked; the message says why."""


async def look_ahead(
    setup: Setup,
    book: Playbook,
    prompt: str,
    *,
    cwd: str,
    limits: Mapping[str, float] | None = None,
    chosen: bool | None = None,
) -> Outlook:
    """Follow a new thread for as long as its steps can be taken from finished ones. `chosen` says whether the thread
    would be started with or without reuse; None leaves the choice to the workflow."""
    store, history = setup.store, PastThreads(setup.store, book.workflow.name)
    start = Start("", "", setup.mask.text(prompt), cwd, limits or {})
    folders, steps, ahead = _Folders(setup, cwd), list[Step](), list[Ahead]()
    while True:
        loaded = LoadedThread("", _ChainAhead(store, start, steps), book._replace(bound=setup.bind(book)))
        way = next_of(loaded)
        if not isinstance(way, Next):
            reason = "the thread would end here" if isinstance(way, Ended) else getattr(way, "reason", "")
            return Outlook(tuple(ahead), None, reason, NOTHING, history.threads)
        if limit := loaded.over_limit(way.role, {}, loaded.totals):
            return Outlook(tuple(ahead), None, limit.reason, NOTHING, history.threads)
        try:
            known, parts = await _find_known(setup, loaded, way, folders, chosen)
        except _Stop as why:
            number = 1 + sum(step.role == way.role for step in steps)
            rest = history.rest_from(way.role, number)
            return Outlook(tuple(ahead), way.role, str(why), rest, history.threads)
        ahead.append(Ahead(len(steps) + 1, way.role, reuse.origin_of(known)))
        fields = {
            **known.step.payload,
            "start": "",
            "prev": loaded.chain.head or None,
            "number": loaded.chain.number + 1,
            "totals": add_totals(loaded.totals, way.role, {"steps": 1}),
            "parts": parts.dump((known.step.payload.get("tree") or {}).get("found", "")),
        }
        steps.insert(0, Step(store, Node(known.step.id, "", fields, 0)))
        if known.step.tree is not None:
            folders.files[loaded.workdir_of(way.role)] = known.step.tree.left


async def _find_known(
    setup: Setup, loaded: LoadedThread, way: Next, folders: _Folders, chosen: bool | None
) -> tuple[KnownStep, Parts]:
    role, book = loaded.role(way.role), loaded.playbook
    if not reuse_of(loaded.workflow, way.role, chosen):
        raise _Stop("reuse is not switched on")
    if role.group is not None:
        raise _Stop("it is played by a group, whose members are not examined")
    if role.knowledge is not None or way.role in book.prompts:
        raise _Stop("its prompt is made only when it is asked")
    if len(loaded.messages) >= _MOST_STEPS:
        raise _Stop(f"the forecast ends after {_MOST_STEPS:,} steps")
    workdir, files = await folders.find(loaded.workdir_of(way.role), way.location)

    def show_steps(since: int | None) -> list[ShownStep]:
        past = (step.past for step in loaded.chain)
        return [step for step, _ in choose_steps(past, since=since or 0, show_command=_SHOW)]

    instruction, found = setup.mask.text(way.prompt), "" if files.nested else files.tree
    below = os.path.relpath(os.path.realpath(workdir), find_top(workdir))
    asked = KeyInput(loaded, way.role, workdir, below, found, loaded.task, instruction, "", show_steps, None)
    if way.role in book.functions:
        function = book.functions[way.role]
        has_effects = getattr(function, "effects", "") == OUTSIDE
        parts = find_parts_of_call(setup, asked, function)
    else:
        cast = setup.cast(book, way.role)
        if cast.name == HUMAN:
            raise _Stop("it is played by a person")
        if adapter_of(cast.agent) == "workflow":
            raise _Stop("it is played by another workflow, whose steps are not examined")
        parts, has_effects = await find_parts(setup, asked, cast.agent), cast.has_effects
    try:
        known = find_step(setup.store, key_of(parts))
        refusal = reuse.find_refusal(known.step) if known else ""
    except (NotFound, Damaged) as error:
        raise _Stop(error.message) from error
    if known is None:
        raise _Stop("no finished step has the same prompt, agent and files")
    if has_effects:
        raise _Stop("its agent has effects outside the work folder")
    if refusal:
        raise _Stop(refusal)
    trees, tree = setup.trees, known.step.tree
    if tree and tree.left.tree != tree.found.tree and not (trees and trees.is_whole(tree.left)):
        raise _Stop("the files of the finished step are not on this machine")
    return known, parts


class _Folders:
    """The files that roles would find, by the kind of work folder."""

    def __init__(self, setup: Setup, cwd: str) -> None:
        self._setup = setup
        self._cwd = cwd
        self.files: dict[Workdir, Snapshot] = {}

    async def find(self, kind: Workdir, location: str | None) -> tuple[str, Snapshot]:
        """Return the folder in which a role would work, and its files."""
        folder = os.path.join(self._cwd, location or "")
        if not os.path.isdir(folder) or find_top(folder) != find_top(self._cwd):
            raise _Stop("its folder does not exist yet, or belongs to something else")
        if kind not in self.files:
            if kind == "worktree" and git.ask(self._cwd, "status", "--porcelain").out:
                raise _Stop("its worktree would lack the uncommitted changes in this folder")
            if self._setup.trees is None:
                raise _Stop("files are not recorded")
            try:
                self.files[kind] = await asyncio.to_thread(self._setup.trees.take, self._cwd)
            except (RolecallError, OSError) as error:
                raise _Stop(f"the files are not recorded: {error}") from error
        return folder, self.files[kind]


class _ChainAhead(Chain):
    """The steps of a thread that is not in the store, newest first."""

    def __init__(self, store: Store, start: Start, steps: list[Step]) -> None:
        self._store = store
        self._start = start
        self._steps = steps
        self.head = steps[0].id if steps else ""

    @property
    def last(self) -> Step | None:
        return self._steps[0] if self._steps else None

    def __iter__(self) -> Iterator[Step]:
        return iter(self._steps)
