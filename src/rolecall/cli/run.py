"""`rolecall run`: start threads of a workflow and follow them, through the service when one is running here, in this
process when not. What is printed, and the exit codes, are those of `thread run`.
"""

from __future__ import annotations

import json
import os
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from rolecall.cli import Verb, thread_run
from rolecall.cli.output import LastLine, printable, read_file, read_input, say, show
from rolecall.cli.thread_arguments import agent_option, common, count, in_this_store
from rolecall.cli.thread_run import CODES, INTERRUPTED, add_limit
from rolecall.errors import UsageError
from rolecall.settings import config
from rolecall.store.store import Store
from rolecall.threads import lifecycle, thread, workspace
from rolecall.threads.state import ThreadRef
from rolecall.workflow import registry

if TYPE_CHECKING:
    from rolecall.cli.thread_live import View
    from rolecall.workflow.playbook import Playbook

_KEYS = ("prompt", "cwd", "priority")
_PATIENCE = 1.0
"""Seconds between two looks at the store when nobody says that something has happened."""


_WHO_IS_THERE = 5.0
"""Seconds between two looks for whoever runs threads, where no service is connected."""


class Task(NamedTuple):
    prompt: str
    cwd: str
    priority: int


def _run(options: Namespace) -> int:
    limits = dict(options.limit)
    with workspace.open_store(options.store) as store:
        found = registry.find(store, options.workflow, folder=os.getcwd())
        book = (
            workspace.load_workflow(found.path, store=options.store, warn=thread_run.print_problem)
            if found.path
            else registry.load_node(store, found.node or "")
        )
        thread_run.check_limits(limits, book.workflow.roles)
        thread_run.tell_of_successors(book, options.agent)
        workspace.refuse_miscast(book, options.agent)
        tasks = _tasks(options, book)
        from rolecall.service import control

        is_served = control.is_served(config.home(), options.store, store)
        start = _Starting(options, store, found.node or book, limits, is_queued=is_served or options.detach)
        if options.detach:
            return _detached(options, _all_started(tasks, start), is_served=is_served)
        if len(tasks) > 1:
            return _each(options, store, tasks, start, is_served=is_served)
        ref = start(tasks[0])
        print(f"thread {thread.id_of(ref)}", file=sys.stderr, flush=True)
        if is_served:
            return _follow(options, store, thread.id_of(ref))
        return thread_run.play(options, store, ref, steps=None, is_run=True)


# -- what is to be done --


def _tasks(options: Namespace, book: Playbook) -> list[Task]:
    cwd = os.path.abspath(options.cwd or os.getcwd())
    priority = options.priority
    if priority is None:
        from rolecall.service import project_file

        priority = project_file.load(os.getcwd()).project.policy.of(book.workflow.name).priority
    if options.each is None:
        return [Task(read_input(options.prompt), cwd, priority)]
    lines = read_input("-") if options.each == "-" else read_file(options.each)
    # Not splitlines: a text may hold characters that only some take for the end of a line.
    each = lines.removeprefix("\ufeff").split("\n")
    entries = [(number, line.strip()) for number, line in enumerate(each, 1) if line.strip()]
    if not entries:
        raise UsageError(f"{options.each} has no prompts", hint="Write one on each line.")
    tasks = []
    for number, line in entries:
        place = f"{options.each}:{number}"
        tasks.append(_task(line, place, Task("", cwd, priority)))
        _check_task(tasks[-1], place)
    return tasks


def _task(line: str, place: str, default: Task) -> Task:
    """A line is a prompt, or a JSON object with one, or a JSON text, which may have lines of its own."""
    if line[0] not in '{"':
        return default._replace(prompt=line)
    try:
        given = json.loads(line)
    except ValueError as error:
        if line[0] == '"':  # a prompt that begins with a quotation
            return default._replace(prompt=line)
        raise UsageError(f"{place} begins like JSON and is none: {error}") from error
    given = {"prompt": given} if isinstance(given, str) else given
    _check_keys(given, place)
    cwd = os.path.join(default.cwd, os.path.expanduser(given.get("cwd", "")))
    return Task(given["prompt"], os.path.abspath(cwd), given.get("priority", default.priority))


def _check_keys(given: Mapping[str, Any], place: str) -> None:
    if unknown := [key for key in given if key not in _KEYS]:
        raise UsageError(f"{place} has the key {unknown[0]!r}", hint=f"Known are {', '.join(_KEYS)}.")
    if not isinstance(given.get("prompt"), str) or not isinstance(given.get("cwd", ""), str):
        raise UsageError(f"{place} must have a `prompt`, and where it has a `cwd` both must be texts")
    priority = given.get("priority", 0)
    if type(priority) is not int or priority not in range(10):  # 5.0 and true are equal to one that is
        raise UsageError(f"{place} has the priority {priority!r}", hint="It goes from 0 to 9.")


def _check_task(task: Task, place: str) -> None:
    """What would keep a thread from being made is told before any is."""
    if not task.prompt.strip():
        raise UsageError(f"{place} has an empty prompt", hint="Say what is to be done.")
    if not os.path.isdir(task.cwd):
        raise UsageError(f"{place} names the work folder {task.cwd!r}, which does not exist")
    try:
        task.prompt.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"{place} holds half of a character and no text: {error.reason}") from error


class _Starting:
    """Makes threads, one after the other."""

    def __init__(
        self,
        options: Namespace,
        store: Store,
        workflow: str | Playbook,
        limits: Mapping[str, float],
        *,
        is_queued: bool,
    ) -> None:
        self._options = options
        self._store = store
        self._workflow = workflow
        self._limits = limits
        self._is_queued = is_queued
        self._mask = workspace.mask()
        self._bind = workspace.binder(options.agent)

    def __call__(self, task: Task) -> ThreadRef:
        ref = lifecycle.start(
            self._store,
            self._workflow,
            task.prompt,
            cwd=task.cwd,
            mask=self._mask,
            limits=self._limits,
            agent=self._options.agent,
            bind=self._bind,
            work=config.work_folder(),
            queue=task.priority if self._is_queued else None,
        )
        self._workflow = ref.state.workflow  # the file is read once, however many threads are made of it
        thread_run.tell_omitted(ref)
        workspace.tell_service(ref)
        return ref


def _all_started(tasks: list[Task], start: _Starting) -> list[ThreadRef]:
    """All of them queued. Where that ends early, how far it came is told: those before run all the same."""
    refs: list[ThreadRef] = []
    try:
        for task in tasks:
            refs.append(start(task))
    finally:
        if 0 < len(refs) < len(tasks):
            last = thread.id_of(refs[-1])
            print(f"{len(refs)} of {len(tasks)} threads were queued, the last is {last}", file=sys.stderr)
    return refs


def _detached(options: Namespace, refs: list[ThreadRef], *, is_served: bool) -> int:
    """Say which threads wait, and how they are watched."""
    shown = [{"thread": thread.id_of(ref), "status": ref.state.status.value} for ref in refs]
    value: Any = shown if options.each is not None else shown[0]
    show(options, value, lambda: "\n".join(entry["thread"] for entry in shown))
    sys.stdout.flush()
    if not is_served:
        waiting = "it waits" if len(refs) == 1 else "they wait"
        say(f"no service is running here: {waiting} for `rolecall serve`", sys.stderr)
    return 0


# -- following --


def _each(options: Namespace, store: Store, tasks: list[Task], start: _Starting, *, is_served: bool) -> int:
    """Run many threads and show how each has ended, in the order they were given."""
    from rolecall.cli.thread_live import Silence

    started = _all_started(tasks, start) if is_served else []
    codes = []
    last_line = LastLine()
    for place, task in enumerate(tasks):
        last_line.draw(f"… {place} of {len(tasks)} threads have ended")
        if is_served:
            ident = thread.id_of(started[place])
            _, is_cancelled = _watched(options, store, ident, Silence())
        else:
            ident = thread.id_of(start(task))
            is_cancelled = _played(options, store, ident)
        last_line.clear()
        ref = thread.find(store, ident)
        if is_cancelled:
            left = len(tasks) - place
            say(f"{left} of {len(tasks)} threads have not ended: `rolecall thread list`", sys.stderr)
            return INTERRUPTED
        thread_run.show_standing(options, store, ref, is_after_events=True, is_brief=True)
        codes.append(CODES.get(ref.state.status, 0))
    return max(codes)


def _played(options: Namespace, store: Store, ident: str) -> bool:
    """Run a thread here, with nothing shown of it; whether that was interrupted."""
    from rolecall.cli.thread_live import Silence

    _, is_cancelled = thread_run.take_steps(
        options, store, thread.find(store, ident), Silence(), steps=None, is_run=True
    )
    return is_cancelled


def _follow(options: Namespace, store: Store, ident: str) -> int:
    from rolecall.cli.thread_live import view_of

    step, is_cancelled = _watched(options, store, ident, view_of(options, store, ident, has_events=True))
    ref = thread.find(store, ident)
    if is_cancelled and ref.state.status not in (*CODES, "completed"):
        from rolecall.service import control

        fate = "goes on in" if control.is_served(config.home(), options.store, store) else "waits for"
        print(f"{ident} {fate} the service", file=sys.stderr)
        told = in_this_store(options, f"rolecall thread watch {ident}")
        print(f"watch: {printable(told)}", file=sys.stderr, flush=True)
        return INTERRUPTED
    return thread_run.leave(options, store, ref, step=step, is_run=True, is_cancelled=False)


def _watched(options: Namespace, store: Store, ident: str, view: View) -> tuple[str | None, bool]:
    """Show what happens in a thread until it ends or waits for a person; its last step, and whether whoever looks
    has had enough before."""
    import asyncio

    from rolecall.cli.thread_live import attended
    from rolecall.service import control

    def is_served() -> bool:
        return control.is_served(config.home(), options.store, store)

    async def scene() -> tuple[str | None, bool]:
        step, seen = None, 0
        async with attended(view) as stopped, _Bell(ident, is_served) as bell:
            while True:
                # The thread before its events: what it has come to by now is in them, then.
                status = thread.find(store, ident).state.status
                while events := store.events(ident, after=seen, limit=500):
                    for event in events:
                        if event.kind == "step":
                            step = event.body["step"]
                        if _is_shown(event.kind, event.body):
                            stopped.watch(event.kind, event.body)
                    seen = events[-1].seq
                if status in thread.ENDED or status == "suspended" or stopped.cancel.is_set():
                    break
                await bell.rings(stopped.cancel)
        if stopped.error is not None:
            raise stopped.error
        return step, stopped.cancel.is_set()

    return asyncio.run(scene())


def _is_shown(kind: str, body: Mapping[str, Any]) -> bool:
    """What the engine tells, and that something crashed; that the service queued or started it is its own affair."""
    return kind == "crashed" or (kind not in ("queued", "started") and body.get("by") != "service")


class _Bell:
    """Rings when the service says that a thread has a new event, and now and then without being told. Says so when
    nobody is there any more who runs it."""

    def __init__(self, ident: str, is_served: Callable[[], bool]) -> None:
        self._ident = ident
        self._is_served = is_served
        self._is_alone = False
        self._ask_at = 0.0
        self._reader: Any = None
        self._writer: Any = None

    async def __aenter__(self) -> _Bell:
        await self._connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._writer is not None:
            self._writer.close()

    async def rings(self, cancel: Any) -> None:
        import asyncio

        if self._reader is None:
            await self._connect()
        self._see_who_is_there()
        waits = [asyncio.ensure_future(cancel.wait())]
        if self._reader is not None:
            waits.append(asyncio.ensure_future(self._reader.read(4096)))
        done, pending = await asyncio.wait(waits, timeout=_PATIENCE, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()
        if len(waits) > 1 and waits[1] in done and not _heard(waits[1]):
            self._writer.close()
            self._reader = self._writer = None
            self._say_that_it_has_ended()
            await asyncio.wait([asyncio.ensure_future(cancel.wait())], timeout=_PATIENCE)

    def _see_who_is_there(self) -> None:
        """Machines of a fleet are elsewhere, and nothing breaks here when they end."""
        from time import monotonic

        if self._reader is not None:
            self._is_alone = False
        elif monotonic() >= self._ask_at:
            self._ask_at = monotonic() + _WHO_IS_THERE
            if self._is_served():
                self._is_alone = False
            elif not self._is_alone:
                self._say_that_it_has_ended()

    def _say_that_it_has_ended(self) -> None:
        self._is_alone = True
        over_last_line = "\r\033[K" if sys.stderr.isatty() else ""
        ended = "the service has ended: the thread waits for it to come back"
        print(f"{over_last_line}{ended}", file=sys.stderr, flush=True)

    async def _connect(self) -> None:
        import asyncio

        from rolecall.service import control

        pipe = control.connect(config.home())
        if pipe is None:
            return
        pipe.setblocking(False)
        self._reader, self._writer = await asyncio.open_connection(sock=pipe)
        self._writer.write(control.to_line({"do": "follow", "thread": self._ident}))


def _heard(reading: Any) -> bytes:
    try:
        heard: bytes = reading.result()
    except OSError:
        return b""
    return heard


# -- arguments --


def _priority(text: str) -> int:
    if count(text) > 9:
        raise ArgumentTypeError(f"{text!r} is not a priority from 0 to 9")
    return count(text)


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument("workflow", metavar="WORKFLOW", help="its name, the path of its file, or its id")
    task = parser.add_mutually_exclusive_group(required=True)
    task.add_argument("-p", "--prompt", metavar="TEXT", help="the task; @FILE reads a file, - standard input")
    task.add_argument(
        "--each",
        metavar="FILE",
        help='a thread for every line of FILE: a prompt, or {"prompt", "cwd", "priority"}; - is standard input',
    )
    parser.add_argument("--detach", action="store_true", help="queue it for the service, print its id")
    parser.add_argument(
        "--priority",
        type=_priority,
        metavar="N",
        help="from 0 to 9; who waits with a higher one goes first (default: the workflow's)",
    )
    parser.add_argument("--cwd", metavar="DIR", help="the work folder (default: this one)")
    add_limit(parser)
    agent_option(parser)
    common(parser)


VERBS = {
    "": Verb(
        _run,
        "start a thread of a workflow and follow it to its end",
        "rolecall run fix-issue -p 'The login page is blank'\n"
        "rolecall run fix-issue --each prompts.txt --detach\n"
        "rolecall run fix-issue -p @issue.md --priority 9",
        _arguments,
    )
}
