"""Find the parts of a step's key before its agent is asked, and find a step by its key."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rolecall.agents.identity import Identity, identify, identify_code
from rolecall.agents.presence import adapter_of
from rolecall.errors import RolecallError
from rolecall.store import canonical
from rolecall.store.lazy import Module
from rolecall.store.store import Store
from rolecall.threads.key import (
    ROUND,
    Parts,
    describe_step,
    digest,
    digest_prompt,
    digest_role,
    key_name,
    key_of,
)
from rolecall.threads.loaded_thread import LoadedThread
from rolecall.threads.prompt import ShownStep
from rolecall.threads.sessions import LOOK_BACK, Origin
from rolecall.threads.setup import Setup
from rolecall.threads.thread import FORK, Step
from rolecall.workflow.model import sandbox_of, sandbox_payload
from rolecall.workflow.playbook import RoleFunction

if TYPE_CHECKING:
    from rolecall.workflow import versions
else:
    versions = Module("rolecall.workflow.versions")  # not needed for a workflow in YAML


class KeyInput(NamedTuple):
    """The question that a role is about to be asked, from which the parts are computed."""

    loaded: LoadedThread
    role: str
    workdir: str
    below_top: str
    """The work folder, relative to the folder that the tree covers."""
    tree: str
    """The files before the role's turn, as in `Parts`."""
    task: str
    """The task, including text added by a prompt written in Python."""
    instruction: str
    recalled: str
    """The passages from the repository that the prompt contains."""
    steps_shown: Callable[[int | None], Sequence[ShownStep]]
    """Returns the earlier steps to show to a session that has already seen the steps up to the given number."""
    origin: Origin | None
    """The step of an earlier thread in whose session the role begins."""
    repeat: int = 0
    """The number of times that an evaluation asked the same question before, in other threads."""


class KnownStep(NamedTuple):
    """A step found by its key, and the step's thread."""

    step: Step
    thread: str


def find_step(store: Store, key: str) -> KnownStep | None:
    """Return the newest finished step with this key, or None if the store does not contain one."""
    ref = store.ref(key_name(key)) if key else None
    if ref is None or not store.has(ref.state["step"]):
        return None
    return KnownStep(Step(store, store.get(ref.state["step"])), ref.state["thread"])


async def find_parts(setup: Setup, asked: KeyInput, agent: object) -> Parts:
    """Return the parts of the step for which an agent is about to be asked."""
    adapter, folder = adapter_of(agent), asked.workdir
    if adapter == "workflow":  # a workflow's definition identifies it, because its steps have keys
        name, version = str(getattr(agent, "workflow", "")), ""
        with suppress(RolecallError):  # the problem is reported when the workflow is asked
            version = setup.find_workflow(name, folder)
        known = Identity(f"workflow:{name}", version)
    else:
        env, mask = setup.environment, setup.mask
        known = await identify(agent, env=env, folder=Path(folder), mask=mask, cache=setup.cache)
        known = known if adapter else _add_workflow(known, asked)
    can_resume = bool(getattr(agent, "can_resume", False))
    session, since = _find_session(asked, known.agent) if can_resume else ("", None)
    prompt = digest_prompt(
        task=asked.task,
        item=_find_item(asked),
        instruction=asked.instruction,
        knowledge="" if session else asked.recalled,
        history=asked.steps_shown(since),
    )
    return _combine(setup, asked, known, prompt, session)


def find_parts_of_call(setup: Setup, asked: KeyInput, function: RoleFunction) -> Parts:
    """Return the parts of the step for which a Python function is about to be called. A function can read every earlier
    step, so the parts cover all of them."""
    # The digest of all earlier steps extends the digest computed for the last function called in the thread.
    unread, earlier = list[Step](), ""
    for step in asked.loaded.chain.with_above():
        if step.role == FORK:
            continue
        unread.append(step)
        if step.parts is not None and "steps" in step.parts.prompt:
            earlier = step.parts.prompt["steps"]
            break
    for step in reversed(unread):
        earlier = digest([earlier, describe_step(step.past)])
    prompt = digest_prompt(task=asked.task, item=_find_item(asked), steps=earlier)
    return _combine(setup, asked, _add_workflow(identify_code(function), asked), prompt)


def _combine(
    setup: Setup, asked: KeyInput, agent: Identity, prompt: dict[str, str], session: str = ""
) -> Parts:
    role, tree, below = asked.loaded.defined.roles[asked.role], asked.tree, asked.below_top
    sandbox = sandbox_of(asked.loaded.defined, asked.role)
    parts = Parts(
        role=digest_role(asked.role, role, None if sandbox is None else sandbox_payload(sandbox)),
        prompt=prompt,
        agent=agent.agent,
        version=agent.version,
        restrictions=tuple(sorted(setup.restrictions_of(role))),
        tree=tree if below == "." or not tree else f"{tree}:{below}",
        session=session,
    )
    return parts._replace(repetition=_count_repetitions(setup.store, asked, parts))


def _add_workflow(code: Identity, asked: KeyInput) -> Identity:
    """Return the identity of a piece of code, extended by the files of its Python workflow."""
    where = asked.loaded.defined.python
    if where is None or not code.version:
        return code
    files = _digest_workflow(where)
    return code._replace(version=f"{code.version}+{files}" if files else "")


@lru_cache(maxsize=8)
def _digest_workflow(where: str) -> str:
    """Return the digest of the code of a workflow that this process has loaded, or an empty string if the code cannot
    be read."""
    try:
        return versions.digest(where)[:16]
    except (RolecallError, OSError):
        return ""


def _find_session(asked: KeyInput, agent: str) -> tuple[str, int | None]:
    """Return the digest of the role's last turn in the session that its tier asks for, and the number of that turn's
    step. Whether the session can really be continued does not matter: if it cannot, the agent gets the same content in
    a longer prompt."""
    own = (step for step in islice(asked.loaded.chain, LOOK_BACK) if step.role == asked.role)
    if asked.loaded.role(asked.role).resume in ("bounded", "persistent"):
        for step in own:
            if step.parts is not None and step.parts.agent == agent:
                return _digest_turn(step, step.parts), step.number
    origin = asked.origin.step if asked.origin and not asked.origin.refusal else None
    if origin is not None and next(own, None) is None and origin.parts and origin.parts.agent == agent:
        return _digest_turn(origin, origin.parts), None
    return "", None


def _digest_turn(step: Step, parts: Parts) -> str:
    """Return the digest of what a session has seen up to a step. The digest of a step without a key equals no other."""
    return digest([key_of(parts) or step.id, step.output, step.body])


def _find_item(asked: KeyInput) -> Any:
    """Return what makes a member's role differ from the role's definition: the member's item, and the texts that
    contain the item. Return None if nothing does."""
    member = asked.loaded.chain.start.member
    if member is None:
        return None
    role, defined = asked.loaded.role(asked.role), asked.loaded.defined.roles[asked.role]
    texts = [role.prompt, role.procedure]
    is_same = texts == [defined.prompt, defined.procedure]
    return None if is_same and member.item is None else [member.item, *texts]


def _count_repetitions(store: Store, asked: KeyInput, parts: Parts) -> int:
    """Return the number of times that the same question was asked before: of earlier members of the group, in this
    thread, or in earlier repeats of an evaluation, each of which counts as `ROUND`."""
    loaded, before = asked.loaded, asked.repeat * ROUND
    if (member := loaded.chain.start.member) is not None:
        group = loaded.defined.roles[member.group.role].group
        if group is not None and group.roles:
            return before + group.roles[: member.number - 1].count(member.role)
        if member.group.items is None:
            return before + member.number - 1
        return before + _find_repeated(store, member.group.items).get(member.number, 0)
    key = key_of(parts._replace(repetition=before))
    if asked.role not in loaded.totals.get("roles", {}) or not key or store.ref(key_name(key)) is None:
        return before
    earlier = (step.parts for step in islice(loaded.chain, LOOK_BACK) if step.role == asked.role)
    same = (one.repetition + 1 for one in earlier if one is not None and one._replace(repetition=0) == parts)
    return next(same, before)


@lru_cache(maxsize=8)
def _find_repeated(store: Store, items: str) -> dict[int, int]:
    """Return the numbers of the items that also occur earlier in the list. Map each number to the count of those
    earlier occurrences."""
    seen, found = dict[bytes, int](), dict[int, int]()
    for number, item in enumerate(store.follow(items).payload, 1):
        content = canonical.encode(item)
        seen[content] = seen.get(content, -1) + 1
        if seen[content]:
            found[number] = seen[content]
    return found
