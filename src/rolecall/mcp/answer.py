"""`thread_answer`: what a thread asks a person, and the answer. It takes what is asked for and nothing else.

A person's words would steer any role, and a person's output would pass for any agent's. So a text is taken where
a thread waits for one, and an output where the role that is due is played by a person.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from rolecall.errors import RolecallError, UsageError
from rolecall.mcp.hints import TOOLS, with_tool
from rolecall.mcp.protocol import Cancel
from rolecall.mcp.tools import Place

if TYPE_CHECKING:
    from rolecall.store.store import Store
    from rolecall.threads.state import ThreadRef
    from rolecall.threads.turn import Turn
    from rolecall.workflow.route import Next

Kind: TypeAlias = Literal["text", "output"]


def thread_answer(place: Place, arguments: dict[str, Any], _cancel: Cancel) -> dict[str, Any]:
    """What is asked, when nothing is given; else the answer becomes part of the thread."""
    from rolecall.threads import commit, lifecycle, thread, views, workspace

    _check_given(arguments)
    with workspace.open_store(place.store, create=False) as store:
        asked = _asked(store, thread.find(store, arguments["thread"]))
        if "text" in arguments:
            _check_takes(store, asked, "text")
            ref = lifecycle.resume(store, asked.ref, mask=workspace.mask(), answer=arguments["text"])
        elif "output" in arguments:
            _check_takes(store, asked, "output")
            book, body = asked.turn.playbook, arguments.get("body", "")
            ref = commit.answer(store, asked.ref, book, arguments["output"], body=body, mask=workspace.mask())
        else:
            return _question(store, asked)
        return with_tool(views.entry(store, ref))


def _check_given(arguments: dict[str, Any]) -> None:
    if "text" in arguments and "output" in arguments:
        raise UsageError(
            "an answer is a text or an output, not both",
            hint="Called with the thread alone, thread_answer shows which.",
        )
    if "body" in arguments and "output" not in arguments:
        raise UsageError(
            "a body goes with an output, and there is none", hint="Give `output` too, or a `text` instead."
        )


class _Asked(NamedTuple):
    """A thread, and the role that is due in it."""

    ref: ThreadRef
    turn: Turn
    due: Next | None
    takes: Kind | None
    """What kind of answer it waits for."""


def _asked(store: Store, ref: ThreadRef) -> _Asked:
    from rolecall.threads import thread
    from rolecall.threads.turn import Turn, next_of
    from rolecall.workflow import registry
    from rolecall.workflow.route import Next

    chain = thread.Chain(store, ref.head)
    turn = Turn(thread.id_of(ref), chain, registry.load_node(store, chain.start.workflow))
    way = next_of(turn)
    due = way if isinstance(way, Next) else None
    return _Asked(ref, turn, due, _kind(ref, turn, due))


def _kind(ref: ThreadRef, turn: Turn, due: Next | None) -> Kind | None:
    from rolecall.threads import thread

    status = ref.state.status
    if status == "running" or status in thread.ENDED:
        return None
    if due is not None and _is_person(ref, turn, due.role):
        return "output"
    onward = thread.continuation(ref)
    is_waiting = status == "suspended" and onward is not None and TOOLS.get(onward.code) == "thread_answer"
    return "text" if is_waiting else None


def _is_person(ref: ThreadRef, turn: Turn, role: str) -> bool:
    from rolecall.settings import config
    from rolecall.threads import workspace
    from rolecall.threads.engine import HUMAN

    if role in turn.playbook.functions:
        return False
    try:
        book = replace(turn.playbook, bound=ref.state.agents)
        cast = workspace.cast(config.load(), book, role, override=ref.state.agent)
    except RolecallError:  # an agent that cannot be had, which a step will tell; a person always can
        return False
    return cast.name == HUMAN


def _check_takes(store: Store, asked: _Asked, given: Kind) -> None:
    from rolecall.threads import views

    if given == asked.takes:
        return
    if asked.takes is not None:
        raise UsageError(
            f"thread {asked.turn.thread} waits for {_A[asked.takes]}, not for {_A[given]}",
            hint="Called with the thread alone, thread_answer shows what is asked.",
        )
    view = with_tool(views.entry(store, asked.ref))
    status, reason = view["status"], view["reason"]
    why = f": {reason}" if reason else f", and {asked.due.role} is played by no person" if asked.due else ""
    raise UsageError(
        f"thread {asked.turn.thread} asks nothing: it is {status}{why}", hint=_ONWARD.get(status, "")
    )


_A: dict[Kind, str] = {"text": "a text", "output": "an output"}
_ONWARD = {
    "idle": "thread_step lets it go on.",
    "crashed": "thread_step lets it go on.",
    "running": "thread_show tells how it stands.",
    "suspended": "Ask the user: no tool raises a limit.",
}
"""What to do about a thread that asks nothing, by its status."""


def _question(store: Store, asked: _Asked) -> dict[str, Any]:
    """How the thread stands, what kind of answer it takes, and for an output what the role has to give."""
    from rolecall.threads import views

    shown = {**with_tool(views.entry(store, asked.ref)), "takes": asked.takes}
    if asked.takes != "output" or asked.due is None:
        return shown
    role = asked.turn.role(asked.due.role)
    return {
        **shown,
        "task": asked.turn.task,
        "instruction": asked.due.prompt,
        "goal": role.prompt,
        "schema": dict(role.schema),
    }
