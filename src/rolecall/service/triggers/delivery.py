"""Handle a signal: decide whether it starts a thread, start it, and remember the outcome.

Each trigger handles one signal at a time. Threads are created in child processes, so no user code runs here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace

from rolecall.errors import Conflict, UsageError
from rolecall.service.project_file import Project
from rolecall.service.triggers import firing
from rolecall.service.triggers import memory as memories
from rolecall.service.triggers.memory import Memory, Signal
from rolecall.service.triggers.trigger import Hook, Trigger
from rolecall.settings.mask import SHORTEST, Mask
from rolecall.store.backend import Ref
from rolecall.store.store import Store
from rolecall.workflow import template

_ATTEMPTS = 10


class Delivery:
    """Delivers signals. `say` gets log messages, `on_start` is called when a thread waits for admission, and `gate`
    limits how many children run at once."""

    def __init__(
        self,
        store: Store,
        *,
        env: Mapping[str, str],
        mask: Mask,
        say: Callable[[str], object],
        on_start: Callable[[], object],
        gate: asyncio.Semaphore,
    ) -> None:
        self._store = store
        self._env = env
        self._mask = mask
        self._say = say
        self._on_start = on_start
        self._gate = gate
        self._project: Project | None = None
        self._workflows: Mapping[str, str] = {}
        self._turns: dict[str, asyncio.Lock] = {}

    def update(self, project: Project, workflows: Mapping[str, str]) -> None:
        self._project, self._workflows = project, dict(workflows)

    # -- memory --

    def recall(self, trigger: Trigger) -> tuple[Ref | None, Memory]:
        return memories.recall(self._store, self._name(), trigger, now=self._store.now())

    def remember(self, trigger: Trigger, ref: Ref | None, memory: Memory) -> None:
        """Save a trigger's memory; raise `Conflict` if another process has moved it."""
        memories.save(self._store, self._name(), trigger, ref, memory)

    def heed(self, trigger: Trigger, slot: int) -> None:
        """Record that a planned time passed without a signal, so that it is not checked again."""
        ref, memory = self.recall(trigger)
        with suppress(Conflict):
            after = replace(memory, scheduled=max(slot, memory.scheduled), problem="", problem_at=0)
            self.remember(trigger, ref, after)

    def trouble(self, trigger: Trigger, slot: int, problem: str) -> None:
        problem = self.masked(problem)
        ref, memory = self.recall(trigger)
        if problem != memory.problem:  # logging the same problem at every look would fill the log
            self._say(f"{trigger.id}: {problem}")
        with suppress(Conflict):
            self.remember(trigger, ref, memories.after_trouble(memory, slot, problem, self._store.now()))

    def _name(self) -> str:
        return self._project.name if self._project else ""

    # -- delivering --

    async def deliver(self, trigger: Trigger, signal: Signal) -> firing.Result:
        """Start the thread of a signal, unless there is a reason not to."""
        async with self._turns.setdefault(trigger.id, asyncio.Lock()):
            for _ in range(_ATTEMPTS):
                with suppress(Conflict):
                    result = await self._try(trigger, signal)
                    if not result.is_late:
                        return result
        return firing.Result(problem="the trigger moved too often to be heeded")

    async def _try(self, trigger: Trigger, signal: Signal) -> firing.Result:
        try:
            ref, memory = self.recall(trigger)
            project, workflow = self._project, self._workflows.get(trigger.workflow)
            if project is None or workflow is None:
                raise UsageError(f"there is no workflow {trigger.workflow!r} that could be used")
            now = self._store.now()
            if trigger.dedupe:
                values = firing.view(project, trigger, signal, now)
                signal = replace(signal, key=template.render(trigger.dedupe, values))
            else:
                signal = replace(signal, signed="")
            if reason := memories.refusal(trigger, memory, signal, now):
                after = memories.after_skip(memory, signal, reason, now)
                if after != memory:
                    self.remember(trigger, ref, after)
                return firing.Result(skipped=reason)
            order = firing.order_for(
                project, trigger, signal, ref, memory, workflow=workflow, now=now, mask=self.masked
            )
        except UsageError as error:
            self.trouble(trigger, signal.slot, f"{error.message}. {error.hint}".rstrip(". "))
            return firing.Result(problem=error.message)
        async with self._gate:
            result = await firing.start_in_child(order, self._env)
        if result.thread:
            self._say(f"{trigger.id}: started thread {result.thread}")
            self._on_start()
        elif not result.is_late:
            self.trouble(trigger, signal.slot, result.problem)
        return result

    def masked(self, text: str) -> str:
        """Mask secrets in a text, including those that only triggers use."""
        triggers = self._project.triggers if self._project else ()
        secrets = [self.secret_of(one.source) for one in triggers if isinstance(one.source, Hook)]
        return self._mask.text(Mask(one for one in secrets if len(one) >= SHORTEST).text(text))

    def secret_of(self, hook: Hook) -> str:
        return self._env.get(hook.secret_env, "")
