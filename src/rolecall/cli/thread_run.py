"""`rolecall thread`: the verbs that create, run and control a thread.

If a thread stops before its end, the last line on standard error is the command that continues it.
"""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from time import localtime, sleep, strftime
from typing import TYPE_CHECKING, Any

from rolecall.cli import Reply, argument, flag, hints, verb
from rolecall.cli.arguments import AGENT, CWD, LIMIT, RUN, THREAD, WORKFLOW, in_this_store
from rolecall.cli.output import (
    STORE,
    between,
    colored,
    format_of,
    plural,
    printable,
    read_input,
    say,
    show,
    show_record,
)
from rolecall.cli.thread_outcome import CODES, CRASHED, show_state, tell_continuation
from rolecall.errors import UsageError
from rolecall.settings import config
from rolecall.settings.settings import UWF_PROGRAMS, agent_for, uwf_program
from rolecall.threads import lifecycle, thread, views, workspace
from rolecall.threads.state import ThreadRef
from rolecall.threads.thread import Chain
from rolecall.workflow import registry
from rolecall.workflow.playbook import Playbook, players

if TYPE_CHECKING:
    from rolecall.settings.yaml12 import Problem


# -- start and fork --


@verb(
    "thread start",
    "make a thread of a workflow; nothing is run yet",
    "rolecall thread start fix-issue -p 'The login page is blank'\n"
    "rolecall thread start ./flows/fix-issue.yaml -p @issue.md --limit steps=20 --limit cost=1.5",
    WORKFLOW,
    argument("-p --prompt", "TEXT", "the task; @FILE reads a file, - standard input", required=True),
    CWD,
    LIMIT,
    AGENT,
    STORE,
)
def start(options: Namespace) -> None:
    prompt, limits = read_input(options.prompt), dict(options.limit)
    with workspace.open_store(options.store) as store:
        found = registry.find(store, options.workflow, folder=os.getcwd())
        book = (
            registry.load_file(found.path, warn=print_problem)
            if found.path
            else registry.load_node(store, found.node or "")
        )
        check_limits(limits, book.workflow.roles)
        tell_of_successors(book, options.agent)
        if options.agent:  # a problem with other agents matters only at a later step
            workspace.refuse_miscast(book, options.agent)
        elif missing := workspace.miscast(book, None):
            lines = [f"{colored('warning:', 'yellow')} {role}: {error.message}" for role, error in missing]
            advice = dict.fromkeys(f"  {hints.word(error.hint)}" for _, error in missing if error.hint)
            say("\n".join([*lines, *advice]), sys.stderr)
        ref = lifecycle.start(
            store,
            found.node or book,
            prompt,
            cwd=options.cwd or os.getcwd(),
            mask=workspace.mask(),
            limits=limits,
            agent=options.agent,
            bind=workspace.binder(options.agent),
            work=config.work_folder(),
        )
    shown = {
        "workflow": ref.state.workflow,
        "thread": thread.id_of(ref),
        "status": ref.state.status.value,
        "currentRole": ref.state.role,
    }
    _show_new_thread(options, ref, shown, "run it", in_this_store(options, thread.continuation(ref) or ""))


@verb(
    "thread fork",
    "make a new thread that continues from a step of another",
    "rolecall thread fork 01M7F72S",
    argument("thread", "THREAD|STEP", "a thread, THREAD#N, or a step's id"),
    argument("--at", "STEP|N|start", "where (default: at the thread's head)"),
    argument("--workflow -w", "NAME", "continue with another workflow or version"),
    argument("-p --prompt", "TEXT", "continue with another task; @FILE and - read it"),
    AGENT,
    STORE,
)
def fork(options: Namespace) -> None:
    prompt = None if options.prompt is None else read_input(options.prompt)
    with workspace.open_store(options.store) as store:
        at, source = views.step_named(store, options.thread, options.at)
        workflow: str | Playbook | None = None
        if options.workflow is not None:
            found = registry.find(store, options.workflow, folder=os.getcwd())
            workflow = found.node or registry.load_file(found.path or "")
        if options.agent:
            book = workflow or Chain(store, at).start.workflow
            workspace.refuse_miscast(
                registry.load_node(store, book) if isinstance(book, str) else book, options.agent
            )
        ref = lifecycle.fork(
            store,
            at,
            mask=workspace.mask(),
            source=source,
            workflow=workflow,
            prompt=prompt,
            agent=options.agent,
            bind=workspace.binder(options.agent or (source.state.agent if source else None)),
            work=config.work_folder(),
        )
    onward = in_this_store(options, thread.continuation(ref) or "")
    shown = {"thread": thread.id_of(ref), "forkedFrom": {"step": at}, "continue": onward}
    _show_new_thread(options, ref, shown, "continue", onward)


def _show_new_thread(
    options: Namespace, ref: ThreadRef, shown: Mapping[str, Any], label: str, command: str
) -> None:
    """Print only the id on standard output, for scripts, and the next command on standard error."""
    tell_omitted(ref)
    show(options, shown, str(shown["thread"]))
    if format_of(options) == "text" and command:
        sys.stdout.flush()
        print(printable(f"{label}: {command}"), file=sys.stderr)


def print_problem(problem: Problem) -> None:
    say(str(hints.word_problem(problem)), sys.stderr)


def tell_omitted(ref: ThreadRef) -> None:
    """Say how many uncommitted changes a new thread's own folder lacks, because people look for them there."""
    for folder in ref.state.folders.values():
        if count := folder.get("omitted"):
            whose = printable(folder.get("from", folder["source"]))
            _note_once(
                f"note: the thread's worktree begins without {plural(count, 'uncommitted change')} in {whose}"
            )


@cache
def _note_once(note: str) -> None:
    """Print a message once: similar roles and threads have the same message."""
    print(note, file=sys.stderr)


def tell_of_successors(book: Playbook, override: str | None) -> None:
    """Tell which built-in adapter plays a role that the configuration assigns to a uwf agent."""
    settings = config.load()
    for name, played in players(book):
        with suppress(UsageError):
            own = played.workflow.roles[name].agent
            alias = agent_for(settings, workflow=book.workflow.name, role=name, named=own, override=override)
            if program := uwf_program(settings, alias):
                _note_once(f"note: the built-in adapter {UWF_PROGRAMS[program]!r} replaces {program}")


def check_limits(limits: Mapping[str, float], roles: Mapping[str, Any]) -> None:
    for name in limits:
        role = name.rpartition(".")[0]
        if role and role not in roles:
            raise UsageError(f"there is no role for the limit {name!r}", hint=f"Roles: {', '.join(roles)}.")


# -- step, run, resume --


@verb("thread step", "take exactly one step", "rolecall thread step 01M7F72S", THREAD, AGENT, STORE)
def step(options: Namespace) -> int:
    from rolecall.cli.thread_play import play  # imports asyncio and the engine, which other verbs do not need

    with workspace.open_store(options.store, create=False) as store:
        return play(options, store, thread.find(store, options.thread), steps=1, is_run=False)


@verb(
    "thread run",
    "take steps until the thread ends, is suspended or reaches a limit",
    "rolecall thread run 01M7F72S\nrolecall thread run 01M7F72S --steps 3 --agent command:./agent",
    THREAD,
    AGENT,
    argument("--steps", "N", "stop after N steps", type=between(1)),
    STORE,
)
def run(options: Namespace) -> int:
    from rolecall.cli.thread_play import play

    with workspace.open_store(options.store, create=False) as store:
        return play(options, store, thread.find(store, options.thread), steps=options.steps, is_run=True)


@verb(
    "thread resume",
    "continue a suspended thread, with a higher limit or a message to its role",
    "rolecall thread resume 01M7F72S --run\nrolecall thread resume 01M7F72S --limit steps=40 --run",
    THREAD,
    argument("-p --prompt", "TEXT", "the answer; @FILE reads a file, - standard input"),
    LIMIT,
    RUN,
    STORE,
)
def resume(options: Namespace) -> int:
    answer = None if options.prompt is None else read_input(options.prompt)
    with workspace.open_store(options.store, create=False) as store:
        ref = thread.find(store, options.thread)
        limits = dict(options.limit)
        if limits:
            check_limits(limits, store.get(ref.state.workflow).payload["roles"])
        if options.agent:
            workspace.refuse_miscast(registry.load_node(store, ref.state.workflow), options.agent)
        before = ref.state.status
        ref = lifecycle.resume(
            store,
            ref,
            mask=workspace.mask(),
            answer=answer,
            limits=limits,
            agent=options.agent,
            bind=workspace.binder(options.agent),
            is_run_here=options.run,
        )
        workspace.tell_service(ref)
        if before == "running":
            print("the process that ran this thread is gone; the thread is idle now", file=sys.stderr)
        elif before == "idle" and answer is None and not limits and not options.agent:
            print("the thread was idle already", file=sys.stderr)
        if options.run:
            from rolecall.cli.thread_play import play

            return play(options, store, ref, steps=None, is_run=True)
        show_state(options, store, ref)
        tell_continuation(options, store, ref)
    return 0


# -- kill and watch --


@verb(
    "thread kill",
    "end a thread for good, and the process that runs it",
    "rolecall thread kill 01M7F72S",
    THREAD,
    argument("--reason", "TEXT", "kept with the thread", default="killed by a person"),
    STORE,
)
def kill(options: Namespace) -> Reply:
    from rolecall.threads import killing

    with workspace.open_store(options.store, create=False) as store:
        found = thread.find(store, options.thread)
        killed = killing.kill(store, found, options.reason, mask=workspace.mask())
    ident = thread.id_of(killed.ref)
    how = "did not stop when asked and was killed" if killed.was_stuck else "has stopped"
    process = f"; process {killed.process} {how}" if killed.process else ""
    shown = {"thread": ident, "killed": True, "cancelled": True, "process": killed.process}
    return Reply(shown, f"{ident} is killed{process}")


@verb(
    "thread watch",
    "print the events of a thread as they happen, in whichever process",
    "rolecall thread watch 01M7F72S\nrolecall thread watch 01M7F72S --follow --format json",
    THREAD,
    flag("--follow", "do not stop when it is suspended, only when it ends"),
    STORE,
)
def watch(options: Namespace) -> int:
    seen, has_explained = 0, False
    with workspace.open_store(options.store, create=False) as store:
        ident = thread.id_of(thread.find(store, options.thread))
        while True:
            ref = thread.find(store, ident)  # before its events, which then include what led to its state
            while events := store.events(ident, after=seen, limit=500):
                for event in events:
                    _show_event(options, event)
                seen = events[-1].seq
            status = views.status_of(store, ref)
            is_stopped = status == "crashed" or views.needs_person(store, ref)
            if status in thread.ENDED or (is_stopped and not options.follow):
                break
            sys.stdout.flush()
            if status != "running" and not has_explained:
                has_explained = True
                _explain_waiting(ident, status, ref)
            sleep(0.2)
        show_state(options, store, ref, is_after_events=True)
        tell_continuation(options, store, ref)
    return CRASHED if status == "crashed" else CODES.get(status, 0)


def _explain_waiting(ident: str, status: str, ref: ThreadRef) -> None:
    from rolecall.service import control

    if ref.state.service is None:
        say(f"{ident} is {status} and no process runs it; waiting for one", sys.stderr)
    elif not control.held_by(config.home()):
        say(f"{ident} is {status} and no service is running; waiting for `rolecall serve`", sys.stderr)


def _show_event(options: Namespace, event: Any) -> None:
    from rolecall.cli.group_view import gist

    if format_of(options) != "text":
        head = {"event": event.kind, "thread": event.stream, "seq": event.seq, "at": event.at}
        show_record(options, head | dict(event.body))
        return
    at = strftime("%H:%M:%S", localtime(event.at / 1000))
    print(printable(f"{at} {event.kind:14} {gist(event.kind, event.body)}".rstrip()), flush=True)
