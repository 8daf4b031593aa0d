"""For authors of external agents: everything but the work itself.

    from rolecall import agentkit

    async def work(prompt, context):
        return await ask_my_model(prompt)

    if __name__ == "__main__":
        agentkit.run(work)

The program is called with a thread and a role. It opens the same store, puts together the prompt and the context as the
engine does, calls the function, understands its answer (frontmatter, one correction, the extract model), puts the step
and prints the step's id. Moving the head, and every other ref, is up to the engine that called the program.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import NoReturn

from rolecall.agents.protocol import Context, Reply
from rolecall.errors import AgentError, ExtractError, RolecallError, UsageError
from rolecall.settings.stores import open_store
from rolecall.threads import compose, thread
from rolecall.threads.attempt import Attempt, perform
from rolecall.threads.commit import put_step
from rolecall.threads.setup import Cast
from rolecall.threads.thread import Chain
from rolecall.threads.turn import Turn, name_of, next_of
from rolecall.workflow.route import Next

AgentFunction = Callable[[str, Context], Awaitable[str | Reply]]


def run(function: AgentFunction, argv: Sequence[str] | None = None) -> NoReturn:
    """Play one role as the command line says, print the id of the step, and exit: 0, or 1 with the reason on stderr
    and whatever the function answered on stdout, which the engine keeps.

    A function with an attribute `can_resume` that is true is given `context.session` to continue, and is asked for a
    correction when its answer cannot be read.
    """
    parser = argparse.ArgumentParser(description="Plays one role of a thread and prints the step's id.")
    parser.add_argument("thread", nargs="?")
    parser.add_argument("role", nargs="?")
    parser.add_argument("--thread", dest="named_thread")
    parser.add_argument("--role", dest="named_role")
    parser.add_argument("--prompt", help="the instruction to the role, in place of the workflow's")
    request = parser.parse_args(argv)
    name, role = request.named_thread or request.thread, request.named_role or request.role
    if not name or not role:
        parser.error("a thread and a role are needed: <thread-id> <role>")
    try:
        step = asyncio.run(_take_step(function, name, role, request.prompt))
    except RolecallError as error:
        given = error.text if isinstance(error, AgentError) else getattr(error, "raw", "")
        if given:
            sys.stdout.write(f"{given}\n")
        sys.stderr.write(f"{error.message}\n" + (f"{error.hint}\n" if error.hint else ""))
        sys.exit(1)
    sys.stdout.write(f"{step}\n")
    sys.stdout.flush()
    sys.exit(0)


def agent(function: AgentFunction) -> Callable[[], NoReturn]:
    """The function as a program: `@agentkit.agent`, then name it as an entry point or call it."""

    def main() -> NoReturn:
        run(function)

    return main


async def _take_step(function: AgentFunction, name: str, role: str, instruction: str | None) -> str:
    # Set when the process is asked to end, so that the function can stop what it started.
    cancel = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, cancel.set)
    with open_store(create=False) as store:
        engine = compose.engine(store)
        ref = thread.find(store, name)
        chain = Chain(store, ref.head)
        turn = Turn(ref.id, chain, engine.playbook(chain.start.workflow))
        way = next_of(turn)
        if not isinstance(way, Next) or way.role != role:
            due = f"{way.role} is" if isinstance(way, Next) else "no role is"
            raise UsageError(f"the role {role!r} is not due in thread {ref.id}: {due}")
        if instruction is not None:
            way = replace(way, prompt=instruction)
        attempt = Attempt(store, turn, way, mask=engine.mask, is_owner=False, recall=engine.recall)
        cast = Cast(attempt.agent or name_of(function), function)
        try:
            result = await perform(engine, attempt, cast, cancel=cancel)
        except ExtractError as error:
            if turn.playbook.moderator is None:
                raise
            result = attempt.unreadable(error)
        draft = store.draft()
        step, _ = put_step(draft, attempt, result, limits=ref.state.limits)
        draft.commit(durable=True)
        return step
