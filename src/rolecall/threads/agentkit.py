"""A library for authors of external agents; the author writes only the function that does the work.

    from rolecall import agentkit

    async def work(prompt, context):
        return await ask_my_model(prompt)

    if __name__ == "__main__":
        agentkit.run(work)

The engine calls the program with a thread and a role. The program opens the engine's store, builds the prompt and the
context as the engine does, calls the function, parses the function's answer (frontmatter, one correction, the extract
model), stores the step and prints the step's id. Only the engine that called the program moves the head or any other
ref.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import NoReturn

from rolecall.agents.protocol import Context, Reply
from rolecall.errors import AgentError, ExtractError, RolecallError, UsageError
from rolecall.settings.stores import open_store
from rolecall.threads import compose, nested, thread
from rolecall.threads.attempt import Attempt
from rolecall.threads.commit import put_step
from rolecall.threads.loaded_thread import LoadedThread, name_of, next_of
from rolecall.threads.perform import perform
from rolecall.threads.setup import Cast
from rolecall.threads.thread import Chain
from rolecall.workflow.route import Next

AgentFunction = Callable[[str, Context], Awaitable[str | Reply]]


def run(function: AgentFunction, argv: Sequence[str] | None = None) -> NoReturn:
    """Play the role named on the command line, print the step's id and exit with status 0. After an error, exit with
    status 1: write the reason to stderr and the function's answer, if any, to stdout, where the engine reads it.

    If the function has an attribute `can_resume` that is true, the function receives the session to continue as
    `context.session`, and is asked for a correction if its answer cannot be parsed.
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
    """Turn a function into a program that can be an entry point or be called directly. Use as a decorator."""

    def main() -> NoReturn:
        run(function)

    return main


async def _take_step(function: AgentFunction, name: str, role: str, instruction: str | None) -> str:
    # Set on SIGTERM or SIGINT, so that the function can stop what it started.
    cancel = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, cancel.set)
    with open_store(create=False) as store:
        engine = compose.engine(store)
        ref = thread.find(store, name)
        chain = Chain(store, ref.head)
        loaded = LoadedThread(ref.id, chain, engine.playbook(chain.start.workflow), ref.state.folders)
        way = next_of(loaded)
        if not isinstance(way, Next) or way.role != role:
            due = f"{way.role} is" if isinstance(way, Next) else "no role is"
            raise UsageError(f"the role {role!r} is not due in thread {ref.id}: {due}")
        if instruction is not None:
            way = replace(way, prompt=instruction)
        attempt = Attempt(store, loaded, way, mask=engine.mask, setup=engine, is_owner=False)
        cast = Cast(attempt.agent or name_of(function), function)
        try:
            play = partial(nested.play, engine, engine.run_child)
            result = await perform(engine, attempt, cast, cancel=cancel, play=play)
        except ExtractError as error:
            if loaded.playbook.moderator is None:
                raise
            result = attempt.unreadable(error)
        draft = store.draft()
        step, _ = put_step(draft, attempt, result, limits=ref.state.limits)
        draft.commit(durable=True)
        return step
