"""Handle a signal: decide whether it starts a thread, and write the thread, its queue entry and the trigger's memory in
one transaction.

The service starts threads in a child process (`python -m rolecall.service.triggers.firing`), because creating one can
involve loading a workflow written in Python and creating a work folder, and the service does neither itself. `rolecall
trigger fire` starts the thread in its own process.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from rolecall.agents import process
from rolecall.api import Rolecall
from rolecall.errors import Conflict, RolecallError, StorageError, UsageError
from rolecall.service.project_file import ProjectFile
from rolecall.service.triggers import memory as memories
from rolecall.service.triggers.memory import Signal, TriggerMemory, time_text
from rolecall.service.triggers.trigger import Hook, Trigger
from rolecall.settings.mask import SHORTEST, Mask
from rolecall.store.backend import Ref
from rolecall.store.canonical import JsonObject
from rolecall.store.store import Draft, Store
from rolecall.threads.requests import Request
from rolecall.workflow import template

PATIENCE = 600.0
"""The time limit for creating a thread, in seconds. It is generous because a work folder might have to be copied."""
LONGEST_PROMPT = 200_000
_LONGEST = 500
"""The number of characters of a problem that are kept."""
_ATTEMPTS = 10


class ThreadOrder(NamedTuple):
    """A thread to start, and the trigger's ref that moves with it, as plain data for a child process."""

    workflow: str
    """The id of the workflow's node."""
    prompt: str
    cwd: str
    priority: int
    ref: str
    """The name of the trigger's ref."""
    version: int
    """The version that the ref must still have, or 0 if it must not exist yet."""
    state: JsonObject
    """The new state of the ref, without the thread's id."""


@dataclass(frozen=True)
class FiringResult:
    """The outcome of a signal."""

    thread: str = ""
    is_late: bool = False
    """Whether another process has moved the trigger's ref, so the signal must be checked again."""
    skipped: str = ""
    """Why the signal was skipped."""
    problem: str = ""


@dataclass
class Delivery:
    """Delivers signals, one at a time for each trigger."""

    store: Store
    env: Mapping[str, str]
    """The environment of child processes. It also contains the secrets of hooks."""
    masker: Mask
    say: Callable[[str], object]
    on_start: Callable[[], object]
    """Called when a thread starts to wait for admission."""
    gate: asyncio.Semaphore
    """Limits how many child processes run at once."""
    project: ProjectFile = field(default_factory=lambda: ProjectFile("", ""))
    workflows: Mapping[str, str] = field(default_factory=dict)
    """The node of each workflow, keyed by name."""
    _turns: dict[str, asyncio.Lock] = field(default_factory=dict)

    def recall(self, trigger: Trigger) -> tuple[Ref | None, TriggerMemory]:
        return memories.recall(self.store, self.project.name, trigger, now=self.store.now())

    def remember(self, trigger: Trigger, ref: Ref | None, memory: TriggerMemory) -> None:
        """Save a trigger's memory. Raise `Conflict` if another process has moved the trigger's ref."""
        memories.save(self.store, self.project.name, trigger, ref, memory)

    def pass_over(self, trigger: Trigger, slot: int) -> None:
        """Record that a planned time passed without a signal, so that it is not checked again."""
        ref, memory = self.recall(trigger)
        with suppress(Conflict):
            after = replace(memory, scheduled=max(slot, memory.scheduled), problem="")
            self.remember(trigger, ref, after)

    def report(self, trigger: Trigger, slot: int, problem: str) -> None:
        """Record why a look at the source, or the start of a thread, failed."""
        problem = self.mask(problem)
        ref, memory = self.recall(trigger)
        if problem != memory.problem:  # logging the same problem after every look would fill the log
            self.say(f"{trigger.id}: {problem}")
        with suppress(Conflict):
            after = replace(memory, scheduled=max(memory.scheduled, slot), problem=problem[:_LONGEST])
            self.remember(trigger, ref, after)

    async def deliver(self, trigger: Trigger, signal: Signal) -> FiringResult:
        """Start the thread of a signal, unless there is a reason not to."""
        async with self._turns.setdefault(trigger.id, asyncio.Lock()):
            for _ in range(_ATTEMPTS):
                with suppress(Conflict):
                    result = await self._try(trigger, signal)
                    if not result.is_late:
                        return result
        return FiringResult(problem="the trigger moved too often to be used")

    async def _try(self, trigger: Trigger, signal: Signal) -> FiringResult:
        project, workflow = self.project, self.workflows.get(trigger.workflow)
        try:
            ref, memory = self.recall(trigger)
            if workflow is None:
                raise UsageError(f"the workflow {trigger.workflow!r} is missing or wrong")
            now = self.store.now()
            if trigger.dedupe:
                values = view(project, trigger, signal, now)
                signal = replace(signal, key=template.render(trigger.dedupe, values))
            else:
                signal = replace(signal, signed="")
            if reason := memories.refusal(trigger, memory, signal, now):
                after = memories.after_skip(memory, signal, reason, now)
                if after != memory:
                    self.remember(trigger, ref, after)
                return FiringResult(skipped=reason)
            order = order_for(
                project, trigger, signal, ref, memory, workflow=workflow, now=now, mask=self.mask
            )
        except UsageError as error:
            self.report(trigger, signal.slot, _explain(error))
            return FiringResult(problem=error.message)
        async with self.gate:
            result = await _start_in_child(order, self.env)
        if result.thread:
            self.say(f"{trigger.id}: started thread {result.thread}")
            self.on_start()
        elif not result.is_late:
            self.report(trigger, signal.slot, result.problem)
        return result

    def mask(self, text: str) -> str:
        """Mask the secrets in a text, including those that only triggers use."""
        hooks = (one.source for one in self.project.triggers if isinstance(one.source, Hook))
        secrets = [secret for hook in hooks if len(secret := self.secret_of(hook)) >= SHORTEST]
        return self.masker.text(Mask(secrets).text(text))

    def secret_of(self, hook: Hook) -> str:
        return self.env.get(hook.secret_env, "")


def order_for(
    project: ProjectFile,
    trigger: Trigger,
    signal: Signal,
    ref: Ref | None,
    memory: TriggerMemory,
    *,
    workflow: str,
    now: int,
    mask: Callable[[str], str],
) -> ThreadOrder:
    """Return the order for a signal's thread. Raise `UsageError` if the prompt cannot be rendered."""
    # A prompt that comes with the signal is text, not a template, so that outsiders cannot inject `{{}}`.
    own = signal.data.get("prompt")
    prompt = own if isinstance(own, str) else ""
    if trigger.prompt:
        prompt = template.render(trigger.prompt, view(project, trigger, signal, now))
    elif not prompt.strip():
        raise UsageError(
            f"the signal of {trigger.id} has no `prompt`, and the trigger has none either",
            hint="Give the trigger a `prompt`.",
        )
    if len(prompt) > LONGEST_PROMPT:
        raise UsageError(f"the prompt of {trigger.id} would have more than {LONGEST_PROMPT:,} characters")
    return ThreadOrder(
        workflow=workflow,
        prompt=mask(prompt),
        cwd=project.folder,
        priority=project.policy.of(trigger.workflow).priority,
        ref=memories.ref_name(project.name, trigger),
        version=ref.version if ref else 0,
        state=memories.to_state(memories.after_start(memory, signal, "", now)),
    )


def view(project: ProjectFile, trigger: Trigger, signal: Signal, now: int) -> JsonObject:
    """Return the values that a trigger's templates can use."""
    own = {"trigger": trigger.name, "workflow": trigger.workflow, "project": project.name}
    return {**signal.data, **own, "at": time_text(now)}


def _explain(error: RolecallError) -> str:
    return f"{error.message}. {error.hint}".rstrip(". ")


# -- starting --


def start(rolecall: Rolecall, order: ThreadOrder, request: Request | None = None) -> str:
    """Start a thread and return its id. Raise `Conflict` if the trigger's ref has moved."""
    seen = Ref(order.ref, None, {}, order.version, 0) if order.version else None

    def remember(ident: str, draft: Draft) -> None:
        draft.move(order.ref, seen, state={**order.state, "thread": ident})
        draft.event(order.ref, "fired", {"thread": ident})
        draft.event(ident, "triggered", {"trigger": order.ref.removeprefix("trigger/")})

    return rolecall.start(
        order.workflow,
        order.prompt,
        folder=order.cwd,
        priority=order.priority,
        also=remember,
        request=request,
    ).id


async def _start_in_child(order: ThreadOrder, env: Mapping[str, str]) -> FiringResult:
    """Start a thread in a child process. Raise `StorageError` if the store refused, so that the caller can retry."""
    ended = await process.run(
        [sys.executable, "-P", "-m", "rolecall.service.triggers.firing"],
        cwd=Path(order.cwd),
        env=env,
        prompt=json.dumps(order._asdict()),
        timeout=PATIENCE,
        max_output=64 * 1024,
    )
    try:
        answer = json.loads(ended.stdout)
    except ValueError:
        last = ended.stderr.strip().rpartition("\n")[2][:300]
        return FiringResult(
            problem=f"the process that starts the thread failed: {ended.reason} {last}".strip()
        )
    if answer.pop("is_refused", False):
        raise StorageError(answer["problem"])
    return FiringResult(**answer)


def main() -> None:
    order = ThreadOrder(**json.loads(sys.stdin.read()))
    output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # a workflow in Python might print
    answer: JsonObject
    try:
        with Rolecall() as rolecall:
            try:
                answer = {"thread": start(rolecall, order)}
            except StorageError as error:
                # Failing to create a folder is a StorageError, too, but by then the ref has moved, so the signal has
                # been used.
                ref = rolecall.store.ref(order.ref)
                is_moved = (ref.version if ref else 0) != order.version
                answer = {"problem": _explain(error), "is_refused": not is_moved}
    except Conflict as error:
        answer = {"is_late": True, "problem": error.message}
    except RolecallError as error:
        answer = {"problem": _explain(error), "is_refused": isinstance(error, StorageError)}
    output.write(json.dumps(answer))
    output.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
