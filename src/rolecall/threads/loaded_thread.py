"""Find the next role from a thread's chain and its workflow. Except for lazy reads of the chain, the code is pure."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from rolecall.agents import protocol
from rolecall.errors import AgentError, ExtractError, InvalidPayload, RolecallError
from rolecall.store import canonical
from rolecall.store.canonical import JsonObject
from rolecall.store.lazy import Module
from rolecall.store.schema import Type
from rolecall.store.store import Store
from rolecall.threads import thread
from rolecall.threads.state import ThreadRef, WorkFolder
from rolecall.threads.thread import FORK, PERSON, Chain, Step
from rolecall.workflow import route
from rolecall.workflow.model import (
    END,
    START,
    SUSPEND,
    StoredRole,
    Workdir,
    dump_limits,
    member_workdir,
    own_folders,
    workdir_of,
)
from rolecall.workflow.playbook import Message, Moderator, Playbook, RoleFunction, RoleResult, ThreadContext
from rolecall.workflow.registry import read_node
from rolecall.workflow.route import Ended, Failed, Next, Route, Stuck, Suspended

if TYPE_CHECKING:
    from rolecall.workflow import condition
    from rolecall.workflow import group as groups
else:
    condition = Module("rolecall.workflow.condition")
    groups = Module("rolecall.workflow.group")

MOST_STEPS = 1_000
"""The maximum number of latest steps given to a condition that looks at all steps."""
ERROR = "$ERROR"
T = TypeVar("T")


class LoadedThread:
    """A thread at its head, together with the workflow that decides what comes next."""

    def __init__(
        self, name: str, chain: Chain, playbook: Playbook, folders: Mapping[str, WorkFolder] | None = None
    ) -> None:
        """`folders` are the thread's own folders."""
        self.thread = name
        self.chain = chain
        self.folders = folders or {}
        fork = self.folders.get("fork")
        self.cwd = fork.cwd if fork else chain.start.cwd
        """The folder that the thread's roles share."""
        self.defined = playbook.workflow
        """The workflow as it is stored. In `workflow`, the texts of a member's role contain the member's item, and its
        agent is the one of that member."""
        if (member := chain.start.member) is not None:
            name, role = groups.role_of(
                self.defined,
                member.group.role,
                number=member.number,
                count=member.group.size,
                item=member.item,
            )
            workflow = self.defined._replace(roles={**self.defined.roles, name: role})
            playbook = playbook._replace(workflow=workflow)
        self.playbook = playbook
        self.workflow = playbook.workflow

    @property
    def task(self) -> str:
        return self.chain.start.prompt

    @property
    def start_view(self) -> dict[str, str]:
        """The start in the form that conditions and templates see."""
        return {"workflow": self.workflow.name, "prompt": self.task, "cwd": self.cwd}

    @cached_property
    def last(self) -> Step | None:
        return self.chain.last

    @cached_property
    def messages(self) -> Messages:
        return Messages(self.chain)

    @property
    def totals(self) -> JsonObject:
        return self.last.payload["totals"] if self.last else {}

    @property
    def steps_count(self) -> int:
        """The number of the thread's steps, without the steps of members."""
        return int(self.totals.get("steps", 0) - self.totals.get("members", 0))

    def role(self, name: str) -> StoredRole:
        return self.workflow.roles[name]

    def workdir_of(self, role: str) -> Workdir:
        """Return the kind of folder that a role works in. The members of a group can work elsewhere; for the group's
        role, return the kind of folder into which the members' work is merged."""
        if member := self.chain.start.member:
            return member_workdir(self.workflow, member.group.role, role)
        group = self.role(role).group
        if group is None:
            return workdir_of(self.workflow, role)
        is_own = group.merge == "queue" and "worktree" in own_folders(self.workflow)
        return "worktree" if is_own else "shared"

    def over_limit(self, role: str, raised: Mapping[str, float], used: JsonObject) -> Reached | None:
        """Return the limit that forbids another step of `role`, or None. `raised` are the limits that were raised for
        this thread. The key of a limit for a single role begins with that role, as in `ROLE.steps`."""
        raised, of_role = {**self.chain.start.limits, **raised}, f"{role}."
        own = {key.removeprefix(of_role): raised[key] for key in raised if key.startswith(of_role)}
        by_role = used.get("roles", {}).get(role, {})
        kinds = [("the thread", "", self.workflow.limits, raised, used)]
        if self.role(role).group is None:  # the limits of a group's role apply to each member
            kinds.append((f"the role {role}", of_role, self.role(role).limits, own, by_role))
        for whose, prefix, declared, extra, amounts in kinds:
            limits = {**dump_limits(declared), **extra}
            if key := thread.over_limit(limits, amounts):
                used_up = amounts.get(key, 0)
                return suggest_more(f"{prefix}{key}", limits[key], used_up, f"{whose} has used", key)
        return None

    def context(self, *, workdir: str) -> ThreadContext:
        context = ThreadContext(self.thread, self.task, self.messages, workdir)
        if (member := self.chain.start.member) is None:
            return context
        return context._replace(item=member.item, number=member.number, count=member.group.size)

    async def call(
        self, role: str, function: RoleFunction, *, workdir: str, cancel: protocol.Cancel
    ) -> RoleResult:
        """Call a role written in Python. Raise `AgentError` if its function raises, and `UsageError` if the result has
        the wrong shape."""
        what = f"the function of {role}"
        with contain(what):
            work = function(self.context(workdir=workdir))
        result = RoleResult.of(await wait_unless(cancel, what, work))
        output = dict(result.output)
        for value in (output, result.body):
            canonical.encode(value)  # raises if the value cannot be stored
        if misfits := Type(dict(self.role(role).schema)).misfits(output):
            listed = "".join(f"\n  {misfit}" for misfit in misfits)
            raise InvalidPayload(f"`output` does not fit the schema of the role:{listed}", misfits)
        return result


def name_of(function: Any) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


def crash_error(what: str, error: BaseException) -> AgentError:
    """Return an error for third-party code that raised an exception, with the line that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return AgentError(f"{what} failed: {type(error).__name__}: {error}{place}", ending="failed")


@contextmanager
def contain(what: str) -> Iterator[None]:
    """Turn any exception from third-party code, even SystemExit, into an `AgentError`."""
    try:
        yield
    except RolecallError:
        raise
    except (Exception, SystemExit) as error:
        raise crash_error(what, error) from error
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is not None and task.cancelling():  # our own task is being cancelled
            raise
        raise crash_error(what, error) from error


async def wait_unless(cancel: protocol.Cancel, what: str, work: Awaitable[T], *, grace: float = 0.0) -> T:
    """Return the result of `work`. If `cancel` is set and `work` does not end within `grace` seconds after that, cancel
    `work` and raise `AgentError`."""

    async def guard() -> T:
        with contain(what):
            return await work

    task, stop = asyncio.ensure_future(guard()), asyncio.ensure_future(cancel.wait())
    try:
        await asyncio.wait((task, stop), return_when=asyncio.FIRST_COMPLETED)
        if not task.done() and grace:
            await asyncio.wait((task,), timeout=grace)
        if not task.done():
            raise AgentError(f"{what} was interrupted", ending="interrupted")
        return task.result()
    finally:
        for future in (task, stop):
            future.cancel()
        await asyncio.gather(task, stop, return_exceptions=True)


class Reached(NamedTuple):
    """A limit that forbids another step."""

    reason: str
    more: str
    """A higher limit to suggest, such as `steps=40`."""


def suggest_more(name: str, limit: float, used: float, whose: str, key: str) -> Reached:
    """Describe a limit that was reached, and suggest a higher limit that would allow another step."""
    more = limit * 2
    while more <= used:
        more *= 2
    amounts = [f"{value:,.4f}".rstrip("0").rstrip(".") for value in (used, limit)]
    return Reached(f"limit reached: {whose} {amounts[0]} of {amounts[1]} {key}", f"{name}={more:.15g}")


# -- routing --


def find_next_role(store: Store, ref: ThreadRef, chain: Chain) -> str | None:
    """Return the role that is next in a thread. Return None for a workflow in Python, whose code is not run just to
    show a thread."""
    workflow, schema_ids = read_node(store, chain.start.workflow)
    if workflow.python is not None:
        return None
    way = next_of(LoadedThread(ref.id, chain, Playbook(workflow, schema_ids=schema_ids), ref.state.folders))
    return way.role if isinstance(way, Next) else None


def next_of(loaded: LoadedThread) -> Route:
    """Return the route from the thread's head."""
    step = next((step for step in loaded.chain if step.role != FORK), None)
    if step is None:
        return route_after(loaded, START, {}, "")
    if step.role != PERSON:
        return route_after(loaded, step.role, step.output, step.body)
    # A person has answered a role. Call that role again with the same prompt, followed by the answer.
    said = step.output
    if said["role"] not in loaded.workflow.roles:
        known = ", ".join(loaded.workflow.roles)
        return Stuck(
            f"a person has answered {said['role']!r}, which is not a role of this workflow (roles: {known})"
        )
    text = "\n\n".join(filter(None, (said.get("prompt"), said["answer"])))
    return Next(said["role"], text, said.get("location"))


def find_call(loaded: LoadedThread, role: str) -> Next:
    """Return the call of a role that waits for a person, so that the role can be called again in the same way."""
    way = next_of(loaded)
    if isinstance(way, Next) and way.role == role:  # the role has not been called yet, or its attempt failed
        return way
    asked = next((step for step in loaded.chain if step.role == role), None)
    if asked is None:
        return Next(role, "", None)
    return Next(role, asked.payload.get("edge_prompt") or "", asked.payload.get("cwd"))


def route_after(loaded: LoadedThread, role: str, output: Any, body: str, *, is_new: bool = False) -> Route:
    """Return the route after `role` has answered with `output`. `is_new` means that this step is not in the chain
    yet."""
    if route.status_of(output) == SUSPEND:
        return Suspended(str(output.get("reason", "")))
    if member := loaded.chain.start.member:
        return Next(member.role, member.group.prompt, member.group.location) if role == START else Ended()
    if loaded.playbook.moderator is not None:
        return _ask_moderator(loaded, loaded.playbook.moderator, role, output, body, is_new=is_new)
    conditions = loaded.workflow.conditions
    names = {edge.condition for edge in loaded.workflow.graph.get(role, ()) if edge.condition}
    needed = count_steps_for(*(conditions[name].expression for name in names if name in conditions))
    new = [{"role": role, "output": output, "body": body}] if is_new else []
    return route.route(
        loaded.workflow,
        role=role,
        output=output,
        start=loaded.start_view,
        steps=[*loaded.messages.recent(needed), *new],
        steps_count=loaded.steps_count + len(new),
        thread=loaded.thread,
        body=body,
        outputs=Outputs(loaded, {role: output} if is_new else {}),
    )


class Outputs(JsonObject):
    """The latest output of each role that has run, looked up in the chain on demand."""

    def __init__(self, loaded: LoadedThread, newest: JsonObject) -> None:
        """`newest` maps roles to outputs that are not in the chain yet."""
        self._loaded = loaded
        self._newest = newest

    def __getitem__(self, role: str) -> Any:
        if role in self._newest:
            return self._newest[role]
        if role in self._loaded.workflow.roles:
            for message in reversed(self._loaded.messages):
                if message.role == role:
                    return message.output
        raise KeyError(role)

    def __iter__(self) -> Iterator[str]:
        return (role for role in self._loaded.workflow.roles if role in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def count_steps_for(*expressions: str) -> int:
    """Return the number of past steps that the expressions look at."""
    windows = [condition.window(expression) for expression in expressions]
    return max((MOST_STEPS if window is None else window for window in windows), default=0)


def _ask_moderator(
    loaded: LoadedThread, moderator: Moderator, role: str, output: Any, body: str, *, is_new: bool
) -> Route:
    steps = Messages(loaded.chain, newest=Message(role, body, output)) if is_new else loaded.messages
    is_error = isinstance(output, Mapping) and output.get("$status") == ERROR
    error = ExtractError(str(output.get("reason", "")), raw=body) if is_error else None
    context = ThreadContext(loaded.thread, loaded.task, steps, loaded.cwd, error)
    try:
        with contain("the moderator"):
            chosen = moderator(context)
    except AgentError as error:
        return Stuck(error.message)
    if chosen == END:
        return Ended()
    if not isinstance(chosen, str) or chosen not in loaded.workflow.roles:
        return Failed(
            f"the moderator named {chosen!r}, which is not a role (roles: {', '.join(loaded.workflow.roles)})"
        )
    return Next(chosen, "", None)


class Messages(Sequence[Message]):
    """The steps of a chain as Python code sees them, oldest first. The steps are read on demand, newest first."""

    def __init__(self, chain: Chain, *, newest: Message | None = None) -> None:
        """`newest` is a step that is not in the chain yet."""
        self._chain = chain
        self._newest_first: list[Message] = [newest] if newest else []
        self._steps = (step for step in chain.with_above() if step.role != FORK)
        self._is_complete = False

    def __len__(self) -> int:
        self._read(None)
        return len(self._newest_first)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, int) and index < 0:
            self._read(-index)
            return self._newest_first[-index - 1]
        self._read(None)
        return self._newest_first[::-1][index]

    def __reversed__(self) -> Iterator[Message]:
        at = 0
        while True:
            self._read(at + 1)
            if at >= len(self._newest_first):
                return
            yield self._newest_first[at]
            at += 1

    def recent(self, count: int) -> list[dict[str, Any]]:
        """Return the latest `count` steps taken by roles, oldest first, in the form that conditions see."""
        answers = islice((message for message in reversed(self) if message.role != PERSON), count)
        return [{"role": message.role, "output": message.output} for message in answers][::-1]

    def _read(self, count: int | None) -> None:
        while not self._is_complete and (count is None or len(self._newest_first) < count):
            step = next(self._steps, None)
            if step is None:
                self._is_complete = True
            else:
                body, output = partial(getattr, step, "body"), partial(getattr, step, "output")
                self._newest_first.append(Message(step.role, body, output))
