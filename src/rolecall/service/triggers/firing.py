"""Start the thread of a signal: render its prompt, then write thread, queue entry and memory in one transaction.

The service does this in a child (`python -m rolecall.service.triggers.firing`), because creating a thread may load a
workflow written in Python and create a work folder, and the service does neither. `rolecall trigger fire` does it in
its own process.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from rolecall.errors import Conflict, RolecallError, StorageError, UsageError
from rolecall.service.project_file import Project
from rolecall.service.triggers import memory as memories
from rolecall.service.triggers.memory import Memory, Signal
from rolecall.service.triggers.trigger import Trigger
from rolecall.settings.mask import Mask
from rolecall.store.backend import Ref
from rolecall.store.store import Draft, Store
from rolecall.workflow import template

PATIENCE = 600.0
"""Seconds that creating a thread may take; a work folder may have to be copied."""
LONGEST_PROMPT = 200_000


class ThreadOrder(NamedTuple):
    """A thread to start, and the ref that moves with it. Plain data, for a child process."""

    workflow: str
    """The id of the workflow's node."""
    prompt: str
    cwd: str
    priority: int
    ref: str
    """The name of the trigger's ref."""
    version: int
    """The version that the ref must still have; 0 if it must not exist yet."""
    state: Mapping[str, Any]
    """The new state of the ref, without the thread."""


@dataclass(frozen=True)
class Result:
    """The outcome of an order."""

    thread: str = ""
    is_late: bool = False
    """Whether another process has moved the trigger; then look again."""
    skipped: str = ""
    """Why the signal was skipped."""
    problem: str = ""


def order_for(
    project: Project,
    trigger: Trigger,
    signal: Signal,
    ref: Ref | None,
    memory: Memory,
    *,
    workflow: str,
    now: int,
    mask: Callable[[str], str],
) -> ThreadOrder:
    """The order for a signal; raises `UsageError` if its prompt cannot be rendered."""
    return ThreadOrder(
        workflow=workflow,
        prompt=mask(prompt_of(project, trigger, signal, now)),
        cwd=project.folder,
        priority=project.policy.of(trigger.workflow).priority,
        ref=memories.ref_name(project.name, trigger),
        version=ref.version if ref else 0,
        state=memories.to_state(memories.after_start(memory, signal, "", now)),
    )


def prompt_of(project: Project, trigger: Trigger, signal: Signal, now: int) -> str:
    own = signal.data.get("prompt")
    written = trigger.prompt or (own if isinstance(own, str) else "")
    if not written.strip():
        raise UsageError(
            f"the signal of {trigger.id} has no `prompt`, and the trigger has none either",
            hint="Give the trigger a `prompt`.",
        )
    # A prompt that comes with the signal is text, not a template, so that outsiders cannot inject {{}}.
    text = template.render(trigger.prompt, view(project, trigger, signal, now)) if trigger.prompt else written
    if len(text) > LONGEST_PROMPT:
        raise UsageError(f"the prompt of {trigger.id} would have more than {LONGEST_PROMPT:,} characters")
    return text


def view(project: Project, trigger: Trigger, signal: Signal, now: int) -> dict[str, Any]:
    """The values that a trigger's templates can use."""
    own = {
        "trigger": trigger.name,
        "workflow": trigger.workflow,
        "project": project.name,
        "at": time_text(now),
    }
    return {**signal.data, **own}


def time_text(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


# -- starting --


def start(store: Store, order: ThreadOrder, *, mask: Mask, work: str) -> str:
    """Start a thread and return its id; raise `Conflict` if the trigger's ref has moved."""
    from rolecall.threads import lifecycle, thread, workspace

    seen = Ref(order.ref, None, {}, order.version, 0) if order.version else None

    def remember(ident: str, draft: Draft) -> None:
        draft.move(order.ref, seen, state={**order.state, "thread": ident})
        draft.event(order.ref, "fired", {"thread": ident})
        draft.event(ident, "triggered", {"trigger": order.ref.removeprefix("trigger/")})

    ref = lifecycle.start(
        store,
        order.workflow,
        order.prompt,
        cwd=order.cwd,
        mask=mask,
        bind=workspace.binder(),
        work=work,
        queue=order.priority,
        also=remember,
    )
    return thread.id_of(ref)


async def start_in_child(order: ThreadOrder, env: Mapping[str, str]) -> Result:
    """Start a thread in a child. `StorageError` means the store refuses for now and the trigger's ref has not moved."""
    from rolecall.agents import process

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
        told = {key: str(answer.get(key, "")) for key in ("thread", "problem")}
        result = Result(is_late=bool(answer.get("is_late")), **told)
    except (ValueError, AttributeError):
        last = ended.stderr.strip().rpartition("\n")[2][:300]
        return Result(problem=f"the process that starts the thread failed: {ended.reason} {last}".strip())
    if answer.get("is_refused"):
        raise StorageError(result.problem)
    return result


def main() -> None:
    order = ThreadOrder(**json.loads(sys.stdin.read()))
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # a workflow in Python may print
    answer.write(json.dumps(_start_or_explain(order)))
    answer.flush()
    os._exit(0)


def _start_or_explain(order: ThreadOrder) -> dict[str, Any]:
    from rolecall.settings import config
    from rolecall.threads import workspace

    def problem_of(error: RolecallError) -> str:
        return f"{error.message}. {error.hint}".rstrip(". ")

    try:
        with workspace.open_store() as store:
            try:
                return {"thread": start(store, order, mask=workspace.mask(), work=config.work_folder())}
            except StorageError as error:
                # Failing to create a folder is a StorageError too, but by then the signal has been used.
                ref = store.ref(order.ref)
                is_moved = (ref.version if ref else 0) != order.version
                return {"problem": problem_of(error), "is_refused": not is_moved}
    except Conflict as error:
        return {"is_late": True, "problem": error.message}
    except RolecallError as error:
        return {"problem": problem_of(error), "is_refused": isinstance(error, StorageError)}


if __name__ == "__main__":
    main()
