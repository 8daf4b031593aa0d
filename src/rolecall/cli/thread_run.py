"""The verbs of `rolecall thread` that create, run and control a thread.

If a thread stops before its end, the last line on standard error is the command that continues the thread.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from contextlib import suppress
from functools import cache
from time import localtime, sleep, strftime
from typing import TYPE_CHECKING

from rolecall.api import Rolecall, Thread
from rolecall.cli import CommandResult, argument, flag, hints, verb
from rolecall.cli.arguments import (
    AGENT,
    CWD,
    LIMIT,
    REUSE,
    RUN,
    THREAD,
    WORKFLOW,
    describe_person,
    find_thread,
    in_this_store,
    omit_latest,
    open_thread,
    wants_reuse,
)
from rolecall.cli.group_view import gist
from rolecall.cli.output import (
    STORE,
    between,
    format_of,
    paint,
    plural,
    printable,
    read_input,
    show_record,
    tell,
)
from rolecall.cli.thread_outcome import CODES, CRASHED, show_state, tell_continuation
from rolecall.cli.thread_play import play
from rolecall.errors import UsageError
from rolecall.service import control
from rolecall.settings import config
from rolecall.settings.settings import UWF_PROGRAMS, agent_for, problems, uwf_program
from rolecall.store.canonical import JsonObject
from rolecall.threads.state import ENDED
from rolecall.workflow.playbook import Playbook, players

if TYPE_CHECKING:
    from rolecall.settings.yaml12 import Problem


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
    REUSE,
    STORE,
)
def start(options: Namespace) -> CommandResult:
    prompt = read_input(options.prompt)
    with Rolecall(options.store) as rolecall:
        loaded = rolecall.load_workflow(options.workflow, warn=print_problem)
        tell_of_settings(loaded.playbook, options.agent)
        # A problem with an agent that the command does not name matters only at a later step.
        if not options.agent and (missing := rolecall.missing_agents(loaded.playbook)):
            lines = [f"{paint('warning:', 'yellow')} {role}: {error.message}" for role, error in missing]
            advice = dict.fromkeys(f"  {hints.word(error.hint)}" for _, error in missing if error.hint)
            tell("\n".join([*lines, *advice]))
        thread = rolecall.start(
            loaded,
            prompt,
            agent=options.agent,
            limits=dict(options.limit),
            folder=options.cwd,
            reuse=wants_reuse(options),
        )
        state = thread.state
        shown = {
            "workflow": state.workflow,
            "thread": thread.id,
            "status": state.status.value,
            "currentRole": state.role,
        }
        return _view_new_thread(options, thread, shown, "run it")


@verb(
    "thread fork",
    "make a new thread that continues from a step of another, with the files of that step",
    "rolecall thread fork 01M7F72S --at 3\nrolecall thread fork 01M7F72S --keep-files --workflow fix-issue",
    argument(
        "thread",
        "THREAD|STEP",
        "a thread, THREAD#N, or a step's id (default: the latest thread of this folder)",
        nargs="?",
    ),
    argument("--at", "STEP|N|start", "where (default: at the thread's head)"),
    argument("--workflow -w", "NAME", "continue with another workflow or version"),
    argument("-p --prompt", "TEXT", "continue with another task; @FILE and - read it"),
    flag("--keep-files", "continue with the current files, not in a new folder"),
    AGENT,
    REUSE,
    STORE,
)
def fork(options: Namespace) -> CommandResult:
    prompt = None if options.prompt is None else read_input(options.prompt)
    with Rolecall(options.store) as rolecall:
        thread = rolecall.fork(
            find_thread(rolecall, None).id if options.thread is None else options.thread,
            at=options.at,
            workflow=options.workflow,
            prompt=prompt,
            agent=options.agent,
            keep_files=options.keep_files,
            reuse=wants_reuse(options),
        )
        folders = thread.state.folders
        places = [folder.cwd for folder in folders.values() if folder.files]
        for place in places:
            tell(f"the files of the step are in {place}")
        if thread.state.steps and not places and not options.keep_files:
            note = "the files of this step are not recorded, so the fork has the current files"
            tell(f"note: {note}")
        onward = in_this_store(options, thread.continuation or "")
        shown = {
            "thread": thread.id,
            "forkedFrom": {"step": thread.state.forked_from},
            "folders": thread.state.dump_folders(),
            "continue": onward,
        }
        return _view_new_thread(options, thread, shown, "continue")


def _view_new_thread(options: Namespace, thread: Thread, shown: JsonObject, label: str) -> CommandResult:
    """Return only the id as text, for scripts. The next command is printed on standard error."""
    tell_omitted(thread)
    note = ""
    if format_of(options) == "text" and (onward := thread.continuation):
        note = f"{label}: {omit_latest(thread.rolecall, in_this_store(options, onward))}"
    return CommandResult(shown, thread.id, note=note)


def print_problem(problem: Problem) -> None:
    tell(str(hints.word_problem(problem)))


def tell_omitted(thread: Thread) -> None:
    """Say how many uncommitted changes are missing in a new thread's own folder, where people will look for them."""
    for folder in thread.state.folders.values():
        if count := folder.omitted:
            whose = printable(folder.origin or folder.source)
            changes = plural(count, "uncommitted change")
            _note_once(f"note: the thread's worktree begins without {changes} in {whose}")


@cache  # similar roles and threads lead to the same message
def _note_once(note: str) -> None:
    tell(note)


def tell_of_settings(book: Playbook, override: str | None) -> None:
    """Report problems in the configuration. Also say which built-in adapter plays a role that the configuration assigns
    to a uwf agent."""
    file = config.config_path()
    text = config.read_text(file)
    settings = config.parse(text, file)
    for problem in problems(settings, text, source=file):
        _note_once(f"note: {problem.place}: {problem.text}")
    for name, played in players(book):
        with suppress(UsageError):
            own = played.workflow.roles[name].agent
            alias = agent_for(settings, workflow=book.workflow.name, role=name, named=own, override=override)
            if program := uwf_program(settings, alias):
                _note_once(f"note: the built-in adapter {UWF_PROGRAMS[program]!r} replaces {program}")


@verb("thread step", "take exactly one step", "rolecall thread step 01M7F72S", THREAD, AGENT, REUSE, STORE)
def step(options: Namespace) -> int:
    with open_thread(options) as thread:
        thread.choose_reuse(wants_reuse(options))
        return play(options, thread, steps=1, is_run=False)


@verb(
    "thread run",
    "take steps until the thread ends, is suspended or reaches a limit",
    "rolecall thread run 01M7F72S\nrolecall thread run 01M7F72S --steps 3 --agent command:./agent",
    THREAD,
    AGENT,
    REUSE,
    argument("--steps", "N", "stop after N steps", type=between(1)),
    STORE,
)
def run(options: Namespace) -> int:
    with open_thread(options) as thread:
        thread.choose_reuse(wants_reuse(options))
        return play(options, thread, steps=options.steps, is_run=True)


@verb(
    "thread resume",
    "continue a suspended thread, with a higher limit or a message to its role",
    "rolecall thread resume 01M7F72S --run\nrolecall thread resume 01M7F72S --limit steps=40 --run",
    THREAD,
    argument("-p --prompt", "TEXT", "the answer; @FILE reads a file, - standard input"),
    LIMIT,
    *RUN,
    REUSE,
    STORE,
)
def resume(options: Namespace) -> int:
    answer = None if options.prompt is None else read_input(options.prompt)
    limits = dict(options.limit)
    with open_thread(options, is_waiting=True) as thread:
        before, has_waited = thread.state.status, thread.state.until is not None
        thread.resume(
            answer,
            limits=limits,
            agent=options.agent,
            reuse=wants_reuse(options),
            is_run_here=options.run,
            by=describe_person(),
        )
        if before == "running":
            tell("the process that ran this thread is gone; the thread is idle now")
        elif has_waited:
            tell("the thread no longer waits for the end of the limit; its agent is asked again")
        elif before == "idle" and answer is None and not limits and not options.agent:
            tell("the thread was idle already")
        if options.run:
            return play(options, thread, steps=None, is_run=True)
        show_state(options, thread)
        tell_continuation(options, thread, is_served=thread.state.service is not None)
    return 0


@verb(
    "thread kill",
    "end a thread for good, and the process that runs it",
    "rolecall thread kill 01M7F72S",
    THREAD,
    argument("--reason", "TEXT", "kept with the thread", default="killed by a person"),
    STORE,
)
def kill(options: Namespace) -> CommandResult:
    with open_thread(options, ask="killing a thread cannot be undone") as thread:
        killed = thread.kill(options.reason)
    how = "did not stop when asked and was killed" if killed.was_stuck else "has stopped"
    process = f"; process {killed.process} {how}" if killed.process else ""
    shown = {"thread": thread.id, "killed": True, "cancelled": True, "process": killed.process}
    return CommandResult(shown, f"{thread.id} is killed{process}")


@verb(
    "thread watch",
    "print the events of a thread as they happen, in any process",
    "rolecall thread watch 01M7F72S\nrolecall thread watch 01M7F72S --follow --format json",
    THREAD,
    flag("--follow", "do not stop when it is suspended, only when it ends"),
    STORE,
)
def watch(options: Namespace) -> int:
    is_text = format_of(options) == "text"
    seen, has_explained = 0, False
    with open_thread(options) as thread:
        while True:
            status = thread.status  # read first, so that the events include everything that led to it
            is_stopped = status == "crashed" or thread.needs_person
            for event in thread.events(after=seen):
                seen = event.seq
                if is_text:
                    at = strftime("%H:%M:%S", localtime(event.at / 1000))
                    line = f"{at} {event.kind:14} {gist(event.kind, event.body)}".rstrip()
                    print(printable(line), flush=True)
                else:
                    head = {"event": event.kind, "thread": event.stream, "seq": event.seq, "at": event.at}
                    show_record(options, head | dict(event.body))
            if status in ENDED or (is_stopped and not options.follow):
                break
            sys.stdout.flush()
            if status != "running" and not has_explained:
                has_explained = True
                if thread.state.service is None:
                    tell(f"{thread.id} is {status} and no process runs it; waiting for one")
                elif not control.find_service(config.home()):
                    waits = "no service is running; waiting for `rolecall serve`"
                    tell(f"{thread.id} is {status} and {waits}")
            sleep(0.2)
        show_state(options, thread, is_after_events=True)
        tell_continuation(options, thread)
    return CRASHED if status == "crashed" else CODES.get(status, 0)
