"""`rolecall thread`: the verbs that make a thread, take its steps and steer it.

Exit codes beyond those of every command: 6 failed, 7 suspended, 8 killed, 130 interrupted. A thread that
stopped short is left with the command that continues it as the last line on standard error.
"""

from __future__ import annotations

import json
import os
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache
from time import sleep
from typing import TYPE_CHECKING, Any

from rolecall.cli import hints, report
from rolecall.cli.output import (
    colored,
    colored_status,
    format_of,
    printable,
    read_input,
    say,
    short,
    show,
    show_record,
)
from rolecall.cli.thread_arguments import agent_option, at_least_one, common, in_this_store, one_thread
from rolecall.errors import Conflict, RolecallError, UsageError
from rolecall.settings import config
from rolecall.store import holder
from rolecall.store.store import Store
from rolecall.threads import lifecycle, thread, views, workspace
from rolecall.threads.state import ThreadRef
from rolecall.workflow import registry

if TYPE_CHECKING:
    from rolecall.cli.thread_live import View
    from rolecall.settings.yaml12 import Problem
    from rolecall.workflow.playbook import Playbook

CODES = {"failed": 6, "suspended": 7, "killed": 8, "discarded": 9}
"""Exit codes by the status a thread was left in; 0 for the others."""
CRASHED = 5
INTERRUPTED = 130
INTERRUPTION = "interrupted"


# -- start --


def run_start(options: Namespace) -> None:
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
        _warn_of_agents(book, options.agent)
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
    tell_omitted(ref)
    shown = {
        "workflow": ref.state.workflow,
        "thread": thread.id_of(ref),
        "status": ref.state.status.value,
        "currentRole": ref.state.role,
    }
    onward = in_this_store(options, thread.continuation(ref) or "")
    show_new_thread(options, shown, f"run it: {onward}")


def show_new_thread(options: Namespace, shown: dict[str, Any], advice: str) -> None:
    """Print only the id on standard output, for scripts, and the next command on standard error."""
    show(options, shown, lambda: str(shown["thread"]))
    if format_of(options) == "text" and advice:
        sys.stdout.flush()
        print(printable(advice), file=sys.stderr)


def print_problem(problem: Problem) -> None:
    say(str(problem), sys.stderr)


def tell_omitted(ref: ThreadRef) -> None:
    """Say what a new thread's own folder does not have: people look for their changes in it."""
    for folder in ref.state.folders.values():
        if count := folder.get("omitted"):
            whose = printable(folder.get("from", folder["source"]))
            changes = "1 uncommitted change" if count == 1 else f"{count} uncommitted changes"
            _tell_once(f"note: the thread's worktree begins without {changes} in {whose}")


@cache
def _tell_once(note: str) -> None:
    """Print a message once: roles and threads that start alike have the same message."""
    print(note, file=sys.stderr)


def _warn_of_agents(book: Playbook, override: str | None) -> None:
    """Tell now what would stop a later step. Only an agent named here and now is an error already."""
    if override:
        workspace.refuse_miscast(book, override)
        return
    found = workspace.miscast(book, override)
    lines = [f"{colored('warning:', 'yellow')} {role}: {error.message}" for role, error in found]
    advice = dict.fromkeys(
        f"  {hints.word(error.hint)}" for _, error in found if error.hint
    )  # often the same for every role
    if found:
        say("\n".join([*lines, *advice]), sys.stderr)


def tell_of_successors(book: Playbook, override: str | None) -> None:
    """Say which built-in adapter plays a role that the configuration gives to an agent of uwf."""
    from rolecall.settings.settings import UWF_PROGRAMS, agent_for, uwf_program

    settings, told = config.load(), set[str]()
    for name, role in book.workflow.roles.items():
        with suppress(UsageError):
            alias = agent_for(
                settings, workflow=book.workflow.name, role=name, named=role.agent, override=override
            )
            if (program := uwf_program(settings, alias)) and program not in told:
                told.add(program)
                adapter = UWF_PROGRAMS[program]
                print(f"note: the built-in adapter {adapter!r} replaces {program}", file=sys.stderr)


# -- step and run --


def run_step(options: Namespace) -> int:
    with workspace.open_store(options.store, create=False) as store:
        return play(options, store, thread.find(store, options.thread), steps=1, is_run=False)


def run_run(options: Namespace) -> int:
    with workspace.open_store(options.store, create=False) as store:
        return play(options, store, thread.find(store, options.thread), steps=options.steps, is_run=True)


def play(options: Namespace, store: Store, ref: ThreadRef, *, steps: int | None, is_run: bool) -> int:
    """Take steps, show them, and leave behind how to go on."""
    from rolecall.cli.thread_live import view_of

    status = ref.state.status
    if status == "suspended" or (is_run and status in thread.ENDED):
        # There is no step to take, and the exit code tells why. One step that was asked for and cannot be
        # taken any more is wrong use; the engine says so.
        return leave(options, store, ref, step=None, is_run=is_run, is_cancelled=False)
    ident = thread.id_of(ref)
    view = view_of(options, store, ident, has_events=is_run)
    took, is_cancelled = None, False
    try:
        took, is_cancelled = take_steps(options, store, ref, view, steps=steps, is_run=is_run)
    except RolecallError as error:
        ref = thread.find(store, ident)
        if not isinstance(error, Conflict) or ref.state.status != "killed":
            sys.stdout.flush()
            code = report(error)
            instead = _instead(options, ref, error)
            tell_continuation(options, store, ref, agent=None if instead else options.agent, instead=instead)
            return code
    ref = thread.find(store, ident)
    return leave(options, store, ref, step=took, is_run=is_run, is_cancelled=is_cancelled)


def leave(
    options: Namespace, store: Store, ref: ThreadRef, *, step: str | None, is_run: bool, is_cancelled: bool
) -> int:
    """Show how the thread stands and how it goes on; the exit code that says it."""
    status = ref.state.status
    is_interrupted = is_cancelled and status not in CODES and status != "completed"
    reason = INTERRUPTION if is_interrupted else ""
    show_standing(options, store, ref, step=step, reason=reason, is_after_events=is_run)
    if is_interrupted or is_run or status == "suspended":
        tell_continuation(options, store, ref, agent=options.agent)
    return INTERRUPTED if is_interrupted else CODES.get(status, 0)


def _instead(options: Namespace, ref: ThreadRef, error: RolecallError) -> str | None:
    """What goes on where the same command could only fail again; None: nothing does but that command."""
    from rolecall import agents
    from rolecall.settings.settings import is_known_agent
    from rolecall.threads.engine import HUMAN
    from rolecall.workflow.python import FileChanged, FileGone

    if isinstance(error, FileChanged):
        from shlex import quote

        return f"rolecall thread fork {thread.id_of(ref)} --workflow {quote(error.place)}"
    if isinstance(error, FileGone):
        return f"rolecall thread fork {thread.id_of(ref)} --workflow '…'"
    agent = options.agent
    if agent and not is_known_agent(config.load(), agent, (*agents.ADAPTERS, HUMAN)):
        return f"{hints.command(thread.continuation(ref) or '')} --agent '…'"
    return None


def take_steps(
    options: Namespace, store: Store, ref: ThreadRef, view: View, *, steps: int | None, is_run: bool
) -> tuple[str | None, bool]:
    """The last step that was taken, and whether the run was stopped by a signal."""
    import asyncio

    from rolecall.cli.thread_live import attended

    ident, agent = thread.id_of(ref), options.agent or ref.state.agent

    async def scene() -> tuple[str | None, bool]:
        took = None
        async with attended(view) as stopped:
            engine = workspace.engine(store, agent=agent, folder=ref.state.cwd, watch=stopped.watch)
            # An agent named for this run overrides those that the thread started with.
            engine = replace(engine, keeps_agents=not options.agent)
            if is_run:
                bound = ref.state.agents if engine.keeps_agents else None
                book = engine.playbook(ref.state.workflow)
                workspace.refuse_miscast(replace(book, bound=bound or {}), agent)
            try:
                async for outcome in engine.run(ident, cancel=stopped.cancel, steps=steps):
                    took = outcome.took or took
            finally:
                await engine.close()
        if stopped.error is not None:
            raise stopped.error
        return took, stopped.cancel.is_set()

    return asyncio.run(scene())


def show_standing(
    options: Namespace,
    store: Store,
    ref: ThreadRef,
    *,
    step: str | None = None,
    reason: str = "",
    is_after_events: bool = False,
    is_brief: bool = False,
) -> None:
    """The state of a thread under the predecessor's names, and its result if it has ended. As text, `is_brief` leaves
    out the result."""
    status = views.status_of(store, ref)
    shown: dict[str, Any] = {
        "workflow": ref.state.workflow,
        "thread": thread.id_of(ref),
        "title": ref.state.title,
        "head": ref.head,
        "status": status.value,
        "currentRole": views.role_of(store, ref),
        "done": status in thread.ENDED,
        "background": None,
        "reason": reason or ref.state.reason,
        "step": step,
        "result": _result(options, store, ref) if status in thread.ENDED else None,
    }
    if is_after_events and format_of(options) == "yaml":
        print("---")
    show(options, shown, lambda: _standing(shown) + ("" if is_brief else _result_text(shown["result"])))
    sys.stdout.flush()


def _standing(shown: Mapping[str, Any]) -> str:
    next_role = f", next: {shown['currentRole']}" if shown["currentRole"] else ""
    if shown["reason"] == INTERRUPTION:
        return f"{shown['thread']} was interrupted{next_role}"
    line = f"{shown['thread']} is {colored_status(shown['status'])}"
    if shown["status"] == "idle":
        line += next_role
    if shown["status"] == "suspended":
        return f"{line}: {shown['title']}\n  {shown['reason']}"
    return line + (f": {shown['reason']}" if shown["reason"] else "")


def _result(options: Namespace, store: Store, ref: ThreadRef) -> dict[str, Any] | None:
    """The result of an ended thread, with the commands that read and merge it."""
    found = views.result(store, ref)
    if found is None:
        return None
    ident, folders = thread.id_of(ref), ref.state.folders
    changed: list[list[str] | None] = []
    if folders:
        from rolecall.threads import handover

        with suppress(RolecallError):  # the repository is gone or broken: the agents' reports remain
            changed = [handover.changed_files(kind, folder) for kind, folder in folders.items()]
    if any(files is not None for files in changed):
        found["files"] = list(dict.fromkeys(file for files in changed for file in files or ()))
    can_merge = found["files"] and "worktree" in folders and "removed" not in folders["worktree"]
    return {
        **found,
        "read": in_this_store(options, f"rolecall thread read {ident}"),
        "merge": in_this_store(options, f"rolecall thread folder merge {ident}") if can_merge else None,
    }


_SHOWN_LINES = 6
_SHOWN_FILES = 10
_LINE = 76


def _result_text(result: Mapping[str, Any] | None) -> str:
    if result is None:
        return ""
    from rolecall.threads.report import money
    from rolecall.workflow.route import STATUS_KEYS

    said = [f"{result['role']}: {result['status']}" if result["status"] else result["role"]]
    output = result["output"] if isinstance(result["output"], Mapping) else {}
    for name, value in output.items():
        if name not in STATUS_KEYS and value not in (None, "", [], {}):
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            said.append("  " + short(f"{name}: {text}", _LINE))
    lines = [line for line in result["text"].splitlines() if line.strip()]
    said += [f"  {short(line, 2 * _LINE)}" for line in lines[:_SHOWN_LINES]]
    said += [f"  … {len(lines) - _SHOWN_LINES} more lines"] if lines[_SHOWN_LINES:] else []

    files, usage = result["files"], result["usage"]
    more = f", and {len(files) - _SHOWN_FILES} more" if files[_SHOWN_FILES:] else ""
    used = [f"{usage['steps']:,} step{'s' if usage['steps'] != 1 else ''}"] if usage.get("steps") else []
    used += [f"{usage['tokens']:,} tokens"] if usage.get("tokens") else []
    used += [money(usage["cost"])] if usage.get("cost") else []
    facts = {
        "files changed": ", ".join(files[:_SHOWN_FILES]) + more,
        "used": ", ".join(used),
        "read it all": result["read"],
        "merge it": result["merge"],
    }
    return "\n".join(["", "", *said, "", *(f"{name}: {value}" for name, value in facts.items() if value)])


def tell_continuation(
    options: Namespace, store: Store, ref: ThreadRef, *, agent: str | None = None, instead: str | None = None
) -> None:
    """The last line: the exact command that goes on from here."""
    # This process could not release its lease, for example on a full disk: no process runs the thread.
    is_ours = holder.process(os.getpid()).items() <= ref.state.lease.items()
    is_held = not is_ours and views.status_of(store, ref) == "running"
    command = hints.command(instead or thread.continuation(ref, is_held=is_held) or "")
    if not command:
        return
    goes_on = command.startswith("rolecall thread run ") or command.endswith(" --run")
    if agent and goes_on and agent != ref.state.agent:
        from shlex import quote

        command += f" --agent {quote(agent)}"
    sys.stdout.flush()
    told = printable(in_this_store(options, command))
    label = "watch" if is_held or ref.state.status == "queued" else "continue"
    print(f"{label}: {told}", file=sys.stderr, flush=True)


# -- resume --


def run_resume(options: Namespace) -> int:
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
            is_run_here=options.run_on,
        )
        workspace.tell_service(ref)
        if before == "running":
            print("the process that ran this thread is gone; the thread is idle now", file=sys.stderr)
        elif before == "idle" and answer is None and not limits and not options.agent:
            print("the thread was idle already", file=sys.stderr)
        if options.run_on:
            return play(options, store, ref, steps=None, is_run=True)
        show_standing(options, store, ref)
        tell_continuation(options, store, ref)
    return 0


# -- kill --


def run_kill(options: Namespace) -> None:
    from rolecall.threads.killing import kill

    with workspace.open_store(options.store, create=False) as store:
        killed = kill(store, thread.find(store, options.thread), options.reason, mask=workspace.mask())
    shown = {
        "thread": thread.id_of(killed.ref),
        "killed": True,
        "cancelled": True,
        "process": killed.process,
    }
    how = "did not stop when asked and was killed" if killed.was_stuck else "has stopped"
    process = f"; process {killed.process} {how}" if killed.process else ""
    show(options, shown, lambda: f"{shown['thread']} is killed{process}")


# -- watch --


def run_watch(options: Namespace) -> int:
    seen, has_told = 0, False
    with workspace.open_store(options.store, create=False) as store:
        ident = thread.id_of(thread.find(store, options.thread))
        while True:
            ref = thread.find(store, ident)
            # The thread before its events: what it has come to by now is in them, then.
            while events := store.events(ident, after=seen, limit=500):
                for event in events:
                    _show_event(options, event)
                seen = events[-1].seq
            status = views.status_of(store, ref)
            if status in thread.ENDED or (not options.follow and status in ("suspended", "crashed")):
                break
            sys.stdout.flush()
            if status != "running" and not has_told:
                has_told = True
                _tell_waiting(ident, status, ref)
            sleep(0.2)
        show_standing(options, store, ref, is_after_events=True)
        tell_continuation(options, store, ref)
    return CRASHED if status == "crashed" else CODES.get(status, 0)


def _tell_waiting(ident: str, status: str, ref: ThreadRef) -> None:
    if ref.state.service is not None:
        from rolecall.service import control

        if control.held_by(config.home()):  # it is only a matter of time
            return
        told = f"{ident} is {status} and no service is running; waiting for `rolecall serve`"
    else:
        told = f"{ident} is {status} and nobody runs it; waiting for that"
    say(told, sys.stderr)


def _show_event(options: Namespace, event: Any) -> None:
    from rolecall.cli.thread_live import gist

    if format_of(options) != "text":
        head = {"event": event.kind, "thread": event.stream, "seq": event.seq, "at": event.at}
        show_record(options, head | dict(event.body))
        return
    from time import localtime, strftime

    at = strftime("%H:%M:%S", localtime(event.at / 1000))
    print(printable(f"{at} {event.kind:14} {gist(event.kind, event.body)}".rstrip()), flush=True)


# -- arguments --


def add_limit(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--limit",
        type=_limit,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help=f"suspend the thread at this much: {', '.join(thread.LIMITS)}, or of one role: ROLE.steps=3",
    )


def _limit(text: str) -> tuple[str, float]:
    name, _, given = text.partition("=")
    kind = name.rpartition(".")[2]
    try:
        value = float(given) if kind in ("cost", "minutes") else int(given)
    except ValueError:
        value = 0
    if kind not in thread.LIMITS or not 0 < value < float("inf"):
        known = ", ".join(thread.LIMITS)
        raise ArgumentTypeError(
            f"{text!r} is not a limit such as steps=20 or cost=1.5: a number above 0, for one of {known}"
        )
    return name, value


def check_limits(limits: Mapping[str, float], roles: Mapping[str, Any]) -> None:
    for name in limits:
        role = name.rpartition(".")[0]
        if role and role not in roles:
            raise UsageError(f"the limit {name!r} names no role", hint=f"Roles: {', '.join(roles)}.")


def start_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("workflow", metavar="WORKFLOW", help="its name, the path of its file, or its id")
    parser.add_argument(
        "-p", "--prompt", required=True, metavar="TEXT", help="the task; @FILE reads a file, - standard input"
    )
    parser.add_argument("--cwd", metavar="DIR", help="the work folder (default: this one)")
    add_limit(parser)
    agent_option(parser)
    common(parser)


def step_arguments(parser: ArgumentParser) -> None:
    one_thread(parser)
    agent_option(parser)


def run_arguments(parser: ArgumentParser) -> None:
    one_thread(parser)
    agent_option(parser)
    parser.add_argument("--steps", type=at_least_one, metavar="N", help="stop after N steps")


def resume_arguments(parser: ArgumentParser) -> None:
    one_thread(parser)
    parser.add_argument(
        "-p", "--prompt", metavar="TEXT", help="the answer; @FILE reads a file, - standard input"
    )
    add_limit(parser)
    # `run` is taken: it is where the parser keeps the verb itself.
    parser.add_argument("--run", dest="run_on", action="store_true", help="go on at once, as `thread run`")
    agent_option(parser)


def kill_arguments(parser: ArgumentParser) -> None:
    one_thread(parser)
    parser.add_argument("--reason", metavar="TEXT", default="killed by a person", help="kept with the thread")


def watch_arguments(parser: ArgumentParser) -> None:
    one_thread(parser)
    parser.add_argument("--follow", action="store_true", help="go on when it is suspended, until it ends")
