"""`rolecall thread`: the verbs that make a thread, take its steps and steer it.

Exit codes beyond those of every command: 6 failed, 7 suspended, 8 killed, 130 interrupted. A thread that
stopped short is left with the command that continues it as the last line on standard error.
"""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rolecall import holder, lifecycle, registry, thread, workspace
from rolecall.cli import report
from rolecall.cli.output import add_format, add_store, format_of, parse_json, printable, read_input, show
from rolecall.errors import Conflict, RolecallError, UsageError
from rolecall.store.backend import Ref
from rolecall.store.store import Store
from rolecall.thread import Chain

if TYPE_CHECKING:
    from rolecall.cli.thread_live import View
    from rolecall.playbook import Playbook
    from rolecall.route import Next
    from rolecall.turn import Turn

CODES = {"failed": 6, "suspended": 7, "killed": 8}
"""Exit codes by the status a thread was left in; 0 for the others."""
CRASHED = 5
INTERRUPTED = 130


# -- start --


def run_start(options: Namespace) -> None:
    prompt, limits = read_input(options.prompt), dict(options.limit)
    with workspace.open_store(options.store) as store:
        found = registry.find(store, options.workflow, folder=os.getcwd())
        book = registry.load_file(found.path) if found.path else registry.load_node(store, found.node or "")
        _check_limits(limits, book.workflow.roles)
        _warn_of_agents(book, options.agent)
        ref = lifecycle.start(
            store,
            found.node or book,
            prompt,
            cwd=options.cwd or os.getcwd(),
            mask=workspace.mask(),
            limits=limits,
            agent=options.agent,
        )
    shown = {
        "workflow": ref.state["workflow"],
        "thread": ref.name[7:],
        "status": ref.state["status"],
        "currentRole": ref.state.get("role"),
    }
    show(options, shown, lambda: f"{shown['thread']}\nrun it: {thread.continuation(ref)}")


def _warn_of_agents(book: Playbook, override: str | None) -> None:
    """Tell now what would stop a later step. Only an agent named here and now is an error already."""
    for role, error in _miscast(book, override):
        if override:
            raise error
        print(f"warning: {role}: {printable(error.message)}. {error.hint}", file=sys.stderr)


def _miscast(book: Playbook, override: str | None) -> list[tuple[str, RolecallError]]:
    """The roles whose agent cannot be had, with the reason."""
    from rolecall import config

    settings, found = config.load(), []
    for role in book.workflow.roles:
        if role in book.functions:
            continue
        try:
            workspace.cast(settings, book, role, override=override)
        except RolecallError as error:
            found.append((role, error))
    return found


# -- step and run --


def run_step(options: Namespace) -> int:
    with workspace.open_store(options.store, create=False) as store:
        return _play(options, store, thread.find(store, options.thread), steps=1, is_run=False)


def run_run(options: Namespace) -> int:
    with workspace.open_store(options.store, create=False) as store:
        return _play(options, store, thread.find(store, options.thread), steps=options.steps, is_run=True)


def _play(options: Namespace, store: Store, ref: Ref, *, steps: int | None, is_run: bool) -> int:
    """Take steps, show them, and leave behind how to go on."""
    from rolecall.cli.thread_live import view_of

    ident = ref.name[7:]
    view = view_of(options, store, ident, has_events=is_run)
    took, is_cancelled = None, False
    try:
        took, is_cancelled = _take_steps(options, store, ref, view, steps=steps, is_run=is_run)
    except RolecallError as error:
        ref = thread.find(store, ident)
        if not isinstance(error, Conflict) or ref.state.get("status") != "killed":
            sys.stdout.flush()
            code = report(error)
            _tell_continuation(store, ref, options.agent)
            return code
    ref = thread.find(store, ident)
    status = ref.state.get("status", "idle")
    is_interrupted = is_cancelled and status not in CODES and status != "completed"
    shown = step_output(ref, step=took, reason="interrupted" if is_interrupted else "")
    _show_last(options, shown, is_run=is_run)
    if is_interrupted or is_run or status == "suspended":
        _tell_continuation(store, ref, options.agent)
    return INTERRUPTED if is_interrupted else CODES.get(status, 0)


def _take_steps(
    options: Namespace, store: Store, ref: Ref, view: View, *, steps: int | None, is_run: bool
) -> tuple[str | None, bool]:
    """The last step that was taken, and whether the run was stopped by a signal."""
    import asyncio

    from rolecall.cli.thread_live import attended

    ident, agent = ref.name[7:], options.agent or ref.state.get("agent")

    async def scene() -> tuple[str | None, bool]:
        took = None
        async with attended(view) as stopped:
            engine = workspace.engine(store, agent=agent, watch=stopped.watch)
            if is_run:
                _refuse_miscast(engine.playbook(ref.state["workflow"]), agent)
            async for outcome in engine.run(ident, cancel=stopped.cancel, steps=steps):
                took = outcome.took or took
        if stopped.error is not None:
            raise stopped.error
        return took, stopped.cancel.is_set()

    return asyncio.run(scene())


def _refuse_miscast(book: Playbook, override: str | None) -> None:
    """A role that nobody can play is told before any other role is paid for."""
    for _, error in _miscast(book, override):
        raise error


def step_output(ref: Ref, *, step: str | None = None, reason: str = "") -> dict[str, Any]:
    """Where a thread stands, by the predecessor's names."""
    status = ref.state.get("status", "idle")
    return {
        "workflow": ref.state.get("workflow"),
        "thread": ref.name[7:],
        "head": ref.target,
        "status": status,
        "currentRole": ref.state.get("role"),
        "done": status in thread.ENDED,
        "background": None,
        "reason": reason or ref.state.get("reason", ""),
        "step": step,
    }


def _show_last(options: Namespace, shown: Mapping[str, Any], *, is_run: bool) -> None:
    if is_run and format_of(options) == "yaml":
        print("---")
    show(options, shown, lambda: _standing(shown))
    sys.stdout.flush()


def _standing(shown: Mapping[str, Any]) -> str:
    line = f"{shown['thread']} is {shown['status']}"
    if shown["status"] == "idle" and shown["currentRole"]:
        line += f", next: {shown['currentRole']}"
    return line + (f": {shown['reason']}" if shown["reason"] else "")


def _tell_continuation(store: Store, ref: Ref, agent: str | None = None) -> None:
    """The last line: the exact command that goes on from here."""
    is_held = _watched_status(store, ref) == "running"
    command = thread.continuation(ref, is_held=is_held)
    if command is None:
        return
    if agent and command.startswith("rolecall thread r"):
        from shlex import quote

        command += f" --agent {quote(agent)}"
    sys.stdout.flush()
    print(f"{'watch' if is_held else 'continue'}: {printable(command)}", file=sys.stderr, flush=True)


# -- resume --


def run_resume(options: Namespace) -> int:
    if options.agent and not options.run_on:
        raise UsageError("--agent says who goes on, so it needs --run")
    answer = None if options.prompt is None else read_input(options.prompt)
    with workspace.open_store(options.store, create=False) as store:
        ref = thread.find(store, options.thread)
        limits = dict(options.limit)
        if limits:
            _check_limits(limits, store.get(ref.state["workflow"]).payload["roles"])
        before = ref.state.get("status", "idle")
        ref = lifecycle.resume(store, ref, mask=workspace.mask(), answer=answer, limits=limits)
        if before == "running":
            print("the process that ran this thread is gone; the thread is idle now", file=sys.stderr)
        elif before == "idle" and answer is None and not limits:
            print("the thread was idle already", file=sys.stderr)
        if options.run_on:
            return _play(options, store, ref, steps=None, is_run=True)
    show(options, step_output(ref), lambda: _standing(step_output(ref)))
    sys.stdout.flush()
    print(f"continue: {thread.continuation(ref)}", file=sys.stderr)
    return 0


# -- answer --


def run_answer(options: Namespace) -> int:
    from rolecall.route import Next
    from rolecall.turn import Turn, next_of

    with workspace.open_store(options.store, create=False) as store:
        ref = thread.find(store, options.thread)
        chain = Chain(store, ref.target or "")
        turn = Turn(ref.name[7:], chain, registry.load_node(store, chain.start.workflow))
        way = next_of(turn)
        if options.output is None and not options.field and options.body is None and isinstance(way, Next):
            _show_question(options, turn, way)
            return 0
        output = _given_output(options, turn.role(way.role).schema if isinstance(way, Next) else {})
        body = "" if options.body is None else read_input(options.body)
        ref = lifecycle.answer(store, ref, turn.playbook, output, body=body, mask=workspace.mask())
        shown = step_output(ref, step=ref.target)
        show(options, shown, lambda: _standing(shown))
        _tell_continuation(store, ref)
    return CODES.get(shown["status"], 0)


def _given_output(options: Namespace, schema: Mapping[str, Any]) -> dict[str, Any]:
    from rolecall.reply import Shape

    output = {} if options.output is None else parse_json(read_input(options.output))
    if not isinstance(output, dict):
        raise UsageError("--output must be a JSON object", hint='For example \'{"status": "approved"}\'.')
    texts = Shape(schema).strings
    return output | {name: text if name in texts else _value(text) for name, text in options.field}


def _value(text: str) -> Any:
    """JSON where it is JSON, else the text itself: the schema judges it either way."""
    try:
        return parse_json(text)
    except UsageError:
        return text


def _show_question(options: Namespace, turn: Turn, way: Next) -> None:
    from rolecall.prompt import deliverable

    role = turn.role(way.role)
    shown = {
        "thread": turn.thread,
        "currentRole": way.role,
        "description": role.description,
        "goal": role.goal,
        "task": turn.task,
        "instruction": way.prompt,
        "schema": dict(role.schema),
    }
    how = f"rolecall thread answer {turn.thread} --field NAME=VALUE … --body 'Your report.'"
    shown["answer"] = how
    sections = {"Task": turn.task, "Now": way.prompt, "Goal": role.goal}
    show(
        options,
        shown,
        lambda: "\n\n".join(
            [
                f"# You are asked as {way.role}: {role.description}",
                *(f"## {title}\n\n{text.strip()}" for title, text in sections.items() if text.strip()),
                deliverable(role.schema),
                f"Answer with:\n  {how}\n  rolecall thread answer {turn.thread} --output @answer.json",
            ]
        ),
    )


# -- kill --


def run_kill(options: Namespace) -> None:
    with workspace.open_store(options.store, create=False) as store:
        ref, lease = lifecycle.kill(store, thread.find(store, options.thread), options.reason)
        note = store.ref(thread.attempt_name(ref.name[7:]))
    process = _signal(lease) if lease else None
    if lease is None and note is not None and "run" in note.state:
        _end_leftovers(note.state["run"])
    shown = {"thread": ref.name[7:], "killed": True, "cancelled": True, "process": process}
    text = f"{shown['thread']} is killed" + (f"; process {process} was told to stop" if process else "")
    show(options, shown, lambda: text)


def _signal(lease: Mapping[str, Any]) -> int | None:
    """Tell the process that runs the thread; one of another host or user finds out by itself."""
    import signal

    if lease.get("host") != holder.me("")["host"]:
        return None
    try:
        os.kill(lease["pid"], signal.SIGTERM)
    except (ProcessLookupError, PermissionError):
        return None
    return int(lease["pid"])


def _end_leftovers(run: str) -> None:
    """The engine is dead; its agent may not be."""
    import asyncio

    from rolecall.agents.process import end_leftovers

    asyncio.run(end_leftovers(run))


# -- watch --


def run_watch(options: Namespace) -> int:
    from time import sleep

    seen = 0
    with workspace.open_store(options.store, create=False) as store:
        name = thread.find(store, options.thread).name
        while True:
            ref = thread.find(store, name[7:])
            # The thread before its events: what it has come to by now is in them, then.
            while events := store.events(name[7:], after=seen, limit=500):
                for event in events:
                    _show_event(options, event)
                seen = events[-1].seq
            status = _watched_status(store, ref)
            if status in thread.ENDED or (not options.follow and status in ("suspended", "crashed")):
                break
            sys.stdout.flush()
            sleep(0.2)
        _show_last(options, step_output(ref) | {"status": status}, is_run=True)
        _tell_continuation(store, ref)
    return CRASHED if status == "crashed" else CODES.get(status, 0)


def _watched_status(store: Store, ref: Ref) -> str:
    status = str(ref.state.get("status", "idle"))
    if status == "running" and not holder.is_alive(ref.state.get("lease", {}), now=store.now()):
        return "crashed"
    return status


def _show_event(options: Namespace, event: Any) -> None:
    from rolecall.cli.thread_live import gist, show_record

    if format_of(options) != "text":
        head = {"event": event.kind, "thread": event.stream, "seq": event.seq, "at": event.at}
        show_record(options, head | dict(event.body))
        return
    from time import localtime, strftime

    at = strftime("%H:%M:%S", localtime(event.at / 1000))
    print(printable(f"{at} {event.kind:14} {gist(event.kind, event.body)}".rstrip()))


# -- arguments --


def _common(parser: ArgumentParser) -> None:
    add_format(parser)
    add_store(parser)


def _one_thread(parser: ArgumentParser) -> None:
    parser.add_argument("thread", metavar="ID", help="a thread's id, or an unambiguous part of one")
    _common(parser)


def _agent(parser: ArgumentParser) -> None:
    parser.add_argument("--agent", metavar="NAME", help="the agent that plays every role, whoever they name")


def _limit_option(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--limit",
        type=_limit,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help=f"suspend the thread at this much: {', '.join(lifecycle.LIMITS)}, or of one role: ROLE.steps=3",
    )


def _limit(text: str) -> tuple[str, float]:
    name, _, given = text.partition("=")
    kind = name.rpartition(".")[2]
    try:
        value = float(given) if kind in ("cost", "minutes") else int(given)
    except ValueError:
        value = 0
    if kind not in lifecycle.LIMITS or not 0 < value < float("inf"):
        known = ", ".join(lifecycle.LIMITS)
        raise ArgumentTypeError(f"{text!r} is not a limit such as steps=20 or cost=1.5 (limits: {known})")
    return name, value


def _check_limits(limits: Mapping[str, float], roles: Mapping[str, Any]) -> None:
    for name in limits:
        role = name.rpartition(".")[0]
        if role and role not in roles:
            raise UsageError(f"the limit {name!r} names no role", hint=f"Roles: {', '.join(roles)}.")


def _field(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"{text!r} is not a number of 1 or more")
    return int(text)


def start_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("workflow", metavar="WORKFLOW", help="its name, the path of its file, or its id")
    parser.add_argument(
        "-p", "--prompt", required=True, metavar="TEXT", help="the task; @FILE reads a file, - standard input"
    )
    parser.add_argument("--cwd", metavar="DIR", help="the work folder (default: this one)")
    _limit_option(parser)
    _agent(parser)
    _common(parser)


def step_arguments(parser: ArgumentParser) -> None:
    _one_thread(parser)
    _agent(parser)


def run_arguments(parser: ArgumentParser) -> None:
    _one_thread(parser)
    _agent(parser)
    parser.add_argument("--steps", type=_count, metavar="N", help="stop after N steps")


def resume_arguments(parser: ArgumentParser) -> None:
    _one_thread(parser)
    parser.add_argument(
        "-p", "--prompt", metavar="TEXT", help="the answer; @FILE reads a file, - standard input"
    )
    _limit_option(parser)
    # `run` is taken: it is where the parser keeps the verb itself.
    parser.add_argument("--run", dest="run_on", action="store_true", help="go on at once, as `thread run`")
    _agent(parser)


def answer_arguments(parser: ArgumentParser) -> None:
    _one_thread(parser)
    parser.add_argument(
        "--output", metavar="JSON", help="the role's output; @FILE reads a file, - standard input"
    )
    parser.add_argument(
        "--field",
        type=_field,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="one field of the output; may be repeated",
    )
    parser.add_argument("--body", metavar="TEXT", help="the report; @FILE reads a file, - standard input")


def kill_arguments(parser: ArgumentParser) -> None:
    _one_thread(parser)
    parser.add_argument("--reason", metavar="TEXT", default="killed by a person", help="kept with the thread")


def watch_arguments(parser: ArgumentParser) -> None:
    _one_thread(parser)
    parser.add_argument("--follow", action="store_true", help="go on when it is suspended, until it ends")
