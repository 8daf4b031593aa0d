"""Run the triggers of a project: wait until one is due, look at its source, receive requests, and deliver signals.

The triggers run in one task on the service's event loop. It sleeps between events, but never for long, because nothing
reports that the clock was set or a trigger was paused. User code runs only in child processes. The memory is in the
store, so two machines with the same project start one thread, not two.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from rolecall.errors import Conflict, RolecallError
from rolecall.service.problems import Problems
from rolecall.service.project_file import Hooks, ProjectFile
from rolecall.service.triggers import hook, schedule, sources
from rolecall.service.triggers import memory as memories
from rolecall.service.triggers.firing import Delivery
from rolecall.service.triggers.memory import Signal, time_text
from rolecall.service.triggers.trigger import Hook, Sense, Trigger, WatchedCommand, WatchedFiles, hook_path
from rolecall.settings.mask import Mask
from rolecall.store.canonical import JsonObject
from rolecall.store.lazy import Module
from rolecall.store.store import Store

if TYPE_CHECKING:
    import watchfiles
else:
    watchfiles = Module("watchfiles")  # comes with an extra, which not every service needs

_LONGEST_SLEEP_MS = 15_000
_LOOK_ANYWAY_MS = 60_000
"""Milliseconds after which files are checked even without a notification, because some file systems send none."""
_STEP_MS = 200
"""How often the watcher's thread checks for notifications, which uses 0.03 % of a core."""
_GATHER_MS = 1_000
"""Changes within this time, such as those made by a checkout, are reported together."""
_LOOK_SELDOM = 1000
"""The pause after a look is at least this many times the CPU time that the look used."""
_CHILDREN = 2
"""How many child processes can look or start threads at once."""
_MOST_WAITING = 32
"""How many requests to one hook can wait, so that a burst on one hook leaves room for the others."""
_ABOUT = "trigger "
"""The prefix of problem names that concern a single trigger."""


class Triggers:
    def __init__(
        self,
        store: Store,
        *,
        env: Mapping[str, str],
        mask: Mask,
        say: Callable[[str], object],
        on_start: Callable[[], object] = lambda: None,
        problems: Problems | None = None,
    ) -> None:
        """`env` is the environment of child processes, including the store that they use. `say` is called with
        log messages, and `on_start` when a thread starts to wait for admission."""
        self._store = store
        self._env = env
        self._say = say
        self._problems = Problems(say) if problems is None else problems
        self._gate = asyncio.Semaphore(_CHILDREN)
        self._delivery = Delivery(store, env, mask, say, on_start, self._gate)
        self._project = ProjectFile("", "")
        self._news = asyncio.Event()
        self._looks: dict[str, asyncio.Task[None]] = {}
        """The running look of each trigger."""
        self._again: dict[str, int] = {}
        """When to look at the files of each trigger again. A trigger without a planned look is absent."""
        self._ask_at: dict[str, int] = {}
        """When to check next whether each trigger is due. A trigger that is absent is checked now."""
        self._arrange_at = 0.0
        """When to check next, by the loop's clock, that the hook server and the file watcher fit the configuration."""
        self._folders: dict[str, frozenset[str]] = {}
        """For each file trigger, the folders in which the last look found files."""
        self._watcher: asyncio.Task[None] | None = None
        self._watched: tuple[str, ...] = ()
        self._server: hook.Server | None = None
        self._served: Hooks | None = None
        self._waiting: dict[str, int] = {}
        self.port: int | None = None
        """The port for requests, or None if the server is closed."""

    def update(self, project: ProjectFile, workflows: Mapping[str, str]) -> None:
        """Set the current configuration and the node of each workflow. Running looks are not interrupted."""
        self._project = replace(project, folder=os.path.realpath(project.folder))
        self._delivery.project, self._delivery.workflows = self._project, dict(workflows)
        self._look_again(one.id for one in self._of(WatchedFiles))
        self._ask_at.clear()
        self._arrange_at = 0.0
        for name in [name for name in self._problems if name.startswith(_ABOUT)]:
            del self._problems[name]
        self._news.set()

    def lines(self) -> list[str]:
        """Return one line for each trigger of the project."""
        found = []
        for one in self._project.triggers:
            where = f" at {self._address()}{hook_path(one)}" if isinstance(one.source, Hook) else ""
            found.append(f"{one.id}: {one.describe()}{where}")
        return found

    async def run(self) -> None:
        try:
            while True:
                self._news.clear()
                now = asyncio.get_running_loop().time()
                if now >= self._arrange_at:
                    self._arrange_at = now + _LONGEST_SLEEP_MS / 1000
                    await self._serve_hooks()
                    self._watch_files()
                wait = self.begin_due()
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait):
                        await self._news.wait()
        finally:
            if self._server is not None:
                await self._server.close()
            running = [*self._looks.values(), *([self._watcher] if self._watcher else [])]
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    def _of(self, kind: type) -> list[Trigger]:
        return [one for one in self._project.triggers if isinstance(one.source, kind)]

    # -- looks --

    def begin_due(self) -> float:
        """Start every look that is due, and return the seconds until the next one."""
        now = self._store.now()
        latest = now + _LONGEST_SLEEP_MS
        for trigger in self._project.triggers:
            if trigger.id in self._looks or isinstance(trigger.source, Hook):
                continue
            # If the clock was set back, do not wait for the old time.
            if now < self._ask_at.get(trigger.id, 0) <= latest:
                continue
            self._ask_at[trigger.id] = latest
            try:
                slot, at = self._turn(trigger, now)
            except RolecallError as error:
                self._problems.note(f"{_ABOUT}{trigger.id}", f"{trigger.id}: {error.message}")
                continue
            self._problems.note(f"{_ABOUT}{trigger.id}", "")
            if slot is None:
                self._ask_at[trigger.id] = min(at, latest)
            else:
                self._again.pop(trigger.id, None)
                self._ask_at.pop(trigger.id, None)
                self._looks[trigger.id] = asyncio.create_task(self._look(trigger, slot))
        return max(0.0, (min([latest, *self._ask_at.values()]) - now) / 1000)

    def _turn(self, trigger: Trigger, now: int) -> tuple[int | None, int]:
        """Return the slot that is due (0 for an unplanned look, None if no look is due), and when to check again."""
        later = now + _LONGEST_SLEEP_MS
        ref, memory = self._delivery.recall(trigger)
        if memory.is_paused:
            return None, later
        is_compared = isinstance(trigger.source, WatchedFiles | WatchedCommand)
        if is_compared and memories.is_resumed(memory):
            return 0, now  # changes count from now on, not only from the next look
        if trigger.schedule is None:
            at = self._again.get(trigger.id, later)
            return (0, now) if at <= now else (None, at)
        last = memories.anchor(memory)
        if memories.is_new(ref, memory) or schedule.begins_again(trigger.schedule, last, now):
            last, memory = now, replace(memory, since=now, scheduled=0)
            with suppress(Conflict):  # another machine has just saved the same
                self._delivery.remember(trigger, ref, memory)
        return schedule.turn(trigger.schedule, last, now)

    async def _look(self, trigger: Trigger, slot: int) -> None:
        looking = f"{_ABOUT}{trigger.id}, looking"
        try:
            # A written file has the time of the kernel clock's last tick, which can be some milliseconds in the past.
            tick = time.clock_gettime_ns(getattr(time, "CLOCK_REALTIME_COARSE", time.CLOCK_REALTIME))
            seen_at = self._store.now() - (time.time_ns() - tick + 999_999) // 1_000_000
            async with self._gate:
                found = await self._look_at_source(trigger, slot)
            if found.problem:
                self._delivery.report(trigger, slot, found.problem)
            elif found.data is None:
                self._delivery.pass_over(trigger, slot)
            else:
                key = str(found.data.get("key") or "") if isinstance(trigger.source, Sense) else ""
                signal = Signal(found.data, key=key, slot=slot, seen=found.digest, seen_at=seen_at)
                result = await self._delivery.deliver(trigger, signal)
                if result.skipped == memories.COOLING and isinstance(trigger.source, WatchedFiles):
                    # Changes made during the cooldown still count, so look again when it is over.
                    rested_at = self._delivery.recall(trigger)[1].fired_at + round(trigger.cooldown * 1000)
                    self._again.setdefault(trigger.id, rested_at)
            if isinstance(trigger.source, WatchedFiles):
                self._folders |= {} if found.problem else {trigger.id: found.folders}
                pause = max(_LOOK_ANYWAY_MS, round(found.took * 1000 * _LOOK_SELDOM))
                self._again.setdefault(trigger.id, self._store.now() + pause)
            self._problems.note(looking, "")
        except Exception as error:  # the store failed, or there is a bug; try again later
            self._problems.note(looking, f"{trigger.id}: {error}")
            self._ask_at[trigger.id] = self._store.now() + _LONGEST_SLEEP_MS
            self._again |= {trigger.id: 0} if trigger.schedule is None else {}
        finally:
            self._looks.pop(trigger.id, None)
            self._news.set()

    async def _look_at_source(self, trigger: Trigger, slot: int) -> sources.SourceLook:
        folder, scheduled = self._project.folder, {"scheduled": time_text(slot)}
        match trigger.source:
            case WatchedCommand() as source:
                found = await sources.look_at_command(source, folder, self._env)
                return replace(found, data=found.data and {**found.data, **scheduled})
            case Sense() as source:
                return await sources.look_with_sense(source, folder, self._env)
            case WatchedFiles() as source:
                since = self._delivery.recall(trigger)[1].seen_at
                if clock := self._store.backend.clock:  # the times of files come from the local clock
                    since -= clock() - time.time_ns() // 1_000_000
                return await asyncio.to_thread(sources.look_at_files, source, folder, since_ms=since)
        return sources.SourceLook(scheduled)

    # -- requests --

    async def _serve_hooks(self) -> None:
        """Listen for requests at the configured address, and at no other."""
        wanted = self._project.hooks if self._of(Hook) else None
        if wanted == self._served:
            return
        if self._server is not None:
            await self._server.close()
        self._server = self._served = self.port = None
        problem = ""
        if wanted is not None:
            server = hook.Server(self._find_hook)
            try:
                self.port = await server.open(wanted.host, wanted.port)
                self._server, self._served = server, wanted
                self._say(f"hooks: listening for requests at {self._address()}")
            except OSError as error:  # retried in the next round
                why = error.strerror or error
                problem = f"cannot listen for requests at {wanted.host}:{wanted.port}: {why}"
        self._problems.note("hooks", problem)

    def _address(self) -> str:
        hooks = self._project.hooks
        host = f"[{hooks.host}]" if ":" in hooks.host else hooks.host
        return f"http://{host}:{self.port or hooks.port}"

    def _find_hook(self, path: str) -> hook.Guarded | None:
        for trigger in self._project.triggers:
            if isinstance(trigger.source, Hook) and hook_path(trigger) == path:
                secret = self._delivery.secret_of(trigger.source)
                return hook.Guarded(trigger.source, secret, partial(self._answer, trigger))
        return None

    async def _answer(self, trigger: Trigger, data: JsonObject, digest: str) -> hook.HookAnswer:
        waiting = self._waiting.get(trigger.id, 0)
        if waiting >= _MOST_WAITING:
            return hook.HookAnswer(429, {"error": "too many requests wait already"})
        self._waiting[trigger.id] = waiting + 1
        try:
            result = await self._delivery.deliver(trigger, Signal(data, signed=digest))
        except Exception as error:  # the store failed, or no process could start; the caller can retry
            self._say(f"{trigger.id}: {error}")
            why = error.message if isinstance(error, RolecallError) else "it cannot be handled at the moment"
            return hook.HookAnswer(503, {"error": why})
        finally:
            self._waiting[trigger.id] -= 1
        if result.problem:
            return hook.HookAnswer(422, {"error": self._delivery.mask(result.problem)})
        if result.thread:
            return hook.HookAnswer(202, {"thread": result.thread})
        return hook.HookAnswer(200, {"thread": None, "reason": result.skipped})

    # -- files --

    def _watch_files(self) -> None:
        """Watch the folders with which the current patterns begin, and no others."""
        patterns = [pattern for one in self._of(WatchedFiles) for pattern in _patterns(one)]
        folders = sources.roots(self._project.folder, patterns)
        # The kernel watches a folder, not its name, so a folder that has replaced another must be watched again.
        inodes = [""] * len(folders)
        for place, folder in enumerate(folders):
            with suppress(OSError):
                status = os.stat(folder)
                inodes[place] = f"{status.st_dev} {status.st_ino}"
        wanted = (*patterns, *folders, *inodes)
        is_watching = self._watcher is not None and not self._watcher.done()
        if wanted == self._watched and is_watching == bool(wanted):
            return
        if self._watcher is not None:
            self._watcher.cancel()
        if wanted != self._watched:
            self._problems.note("files", "")
            # Changes made before the watcher started are not reported.
            self._look_again(one.id for one in self._of(WatchedFiles))
        self._watched = wanted
        self._watcher = asyncio.create_task(self._follow(folders)) if wanted else None

    async def _follow(self, folders: list[str]) -> None:
        try:
            async for batch in watchfiles.awatch(
                *folders,
                watch_filter=None,
                debounce=_GATHER_MS,
                step=_STEP_MS,
                ignore_permission_denied=True,
            ):
                folder, paths = self._project.folder, {path for _, path in batch}
                for one in self._of(WatchedFiles):
                    known = self._folders.get(one.id, ())
                    if any(sources.concerns(path, folder, _patterns(one), known) for path in paths):
                        self._look_again([one.id])
                if not paths.isdisjoint(folders):
                    self._watched = ()  # a new folder can have the inode number of the folder that it replaces
                self._arrange_at = 0.0  # a new or removed folder might change what has to be watched
                self._news.set()
        except ImportError:
            missing = "the package 'watchfiles' is not installed. pip install 'rolecall[service]'"
            self._problems.note("files", f"files are not watched: {missing}")
        except OSError as error:
            self._problems.note("files", f"files are not watched: {error}")

    def _look_again(self, names: Iterable[str]) -> None:
        for name in names:
            self._again[name] = 0
            self._ask_at.pop(name, None)


def _patterns(trigger: Trigger) -> tuple[str, ...]:
    return trigger.source.patterns if isinstance(trigger.source, WatchedFiles) else ()
