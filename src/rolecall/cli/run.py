"""`rolecall run`: start threads of a workflow and follow them, through the service if one is running here, otherwise in
this process. Output and exit codes are those of `thread run`."""

from __future__ import annotations

import json
import os
import sys
from argparse import Namespace
from dataclasses import dataclass, replace
from typing import Any

from rolecall.cli import argument, either, flag, verb
from rolecall.cli.arguments import AGENT, CWD, LIMIT, WORKFLOW
from rolecall.cli.output import STORE, between, read_file, read_input, say, show
from rolecall.cli.thread_run import check_limits, print_problem, tell_of_successors, tell_omitted
from rolecall.errors import UsageError
from rolecall.service import control, project_file
from rolecall.settings import config
from rolecall.store.store import Store
from rolecall.threads import lifecycle, thread, workspace
from rolecall.threads.state import ThreadRef
from rolecall.workflow import registry
from rolecall.workflow.playbook import Playbook

_KEYS = ("prompt", "cwd", "priority")


@dataclass(frozen=True)
class Task:
    prompt: str
    cwd: str
    priority: int


@verb(
    "run",
    "start a thread of a workflow and follow it to its end",
    "rolecall run fix-issue -p 'The login page is blank'\n"
    "rolecall run fix-issue --each prompts.txt --detach\n"
    "rolecall run fix-issue -p @issue.md --priority 9",
    WORKFLOW,
    either(
        argument("-p --prompt", "TEXT", "the task; @FILE reads a file, - standard input"),
        argument(
            "--each",
            "FILE",
            'a thread for every line of FILE: a prompt, or {"prompt", "cwd", "priority"}; - is standard input',
        ),
        required=True,
    ),
    flag("--detach", "queue it for the service, print its id"),
    argument(
        "--priority",
        "N",
        "from 0 to 9; threads with a higher priority go first (default: the workflow's)",
        type=between(0, 9),
    ),
    CWD,
    LIMIT,
    AGENT,
    STORE,
)
def run(options: Namespace) -> int:
    limits = dict(options.limit)
    with workspace.open_store(options.store) as store:
        found = registry.find(store, options.workflow, folder=os.getcwd())
        book = (
            workspace.load_workflow(found.path, store=options.store, warn=print_problem)
            if found.path
            else registry.load_node(store, found.node or "")
        )
        check_limits(limits, book.workflow.roles)
        tell_of_successors(book, options.agent)
        workspace.refuse_miscast(book, options.agent)
        tasks = _read_tasks(options, book)
        is_served = control.is_served(config.home(), options.store, store)
        starter = Starter(options, store, found.node or book, is_queued=is_served or options.detach)
        if options.detach:
            return _detach(options, starter.start_all(tasks), is_served=is_served)
        from rolecall.cli import follow  # imports asyncio and the engine, which --detach does not need

        if len(tasks) > 1:
            refs = starter.start_all(tasks) if is_served else map(starter.start, tasks)
            return follow.follow_each(options, store, refs, len(tasks), is_served=is_served)
        ref = starter.start(tasks[0])
        print(f"thread {thread.id_of(ref)}", file=sys.stderr, flush=True)
        if is_served:
            return follow.follow(options, store, thread.id_of(ref))
        return follow.play(options, store, ref, steps=None, is_run=True)


def _read_tasks(options: Namespace, book: Playbook) -> list[Task]:
    priority = options.priority
    if priority is None:
        priority = project_file.load(os.getcwd()).project.policy.of(book.workflow.name).priority
    default = Task("", os.path.abspath(options.cwd or os.getcwd()), priority)
    if options.each is None:
        return [replace(default, prompt=read_input(options.prompt))]
    tasks = []
    # Not splitlines, which also splits at other characters that a text may contain.
    for number, line in enumerate(read_file(options.each).removeprefix("\ufeff").split("\n"), 1):
        if line.strip():
            tasks.append(_parse_task(line.strip(), f"{options.each}:{number}", default))
    if not tasks:
        raise UsageError(f"{options.each} has no prompts", hint="Write one on each line.")
    return tasks


def _parse_task(line: str, place: str, default: Task) -> Task:
    """Parse a line: a prompt, a JSON object with one, or a JSON string, which may contain line breaks."""
    given: Any = {"prompt": line}
    if line[0] in '{"':
        try:
            given = json.loads(line)
        except ValueError as error:
            if line[0] == "{":  # otherwise it is a prompt that starts with a quotation
                raise UsageError(f"{place} begins like JSON but is not JSON: {error}") from error
    given = {"prompt": given} if isinstance(given, str) else given
    if unknown := [key for key in given if key not in _KEYS]:
        raise UsageError(f"{place} has the key {unknown[0]!r}", hint=f"Known are {', '.join(_KEYS)}.")
    prompt, folder, priority = (
        given.get("prompt"),
        given.get("cwd", ""),
        given.get("priority", default.priority),
    )
    if not isinstance(prompt, str) or not isinstance(folder, str):
        raise UsageError(f"{place} must have a `prompt`; it and `cwd` must be strings")
    if type(priority) is not int or priority not in range(10):  # `5.0 in range(10)` and `True in …` hold too
        raise UsageError(f"{place} has the priority {priority!r}", hint="It goes from 0 to 9.")
    task = Task(prompt, os.path.abspath(os.path.join(default.cwd, os.path.expanduser(folder))), priority)

    # Report anything that would prevent a thread before starting any.
    if not task.prompt.strip():
        raise UsageError(f"{place} has an empty prompt", hint="Say what to do.")
    if not os.path.isdir(task.cwd):
        raise UsageError(f"{place} names the work folder {task.cwd!r}, which does not exist")
    try:
        task.prompt.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"{place} holds half of a character: {error.reason}") from error
    return task


class Starter:
    """Starts threads one after the other."""

    def __init__(
        self, options: Namespace, store: Store, workflow: str | Playbook, *, is_queued: bool
    ) -> None:
        self._options = options
        self._store = store
        self._workflow = workflow
        self._is_queued = is_queued
        self._mask = workspace.mask()
        self._bind = workspace.binder(options.agent)

    def start(self, task: Task) -> ThreadRef:
        ref = lifecycle.start(
            self._store,
            self._workflow,
            task.prompt,
            cwd=task.cwd,
            mask=self._mask,
            limits=dict(self._options.limit),
            agent=self._options.agent,
            bind=self._bind,
            work=config.work_folder(),
            queue=task.priority if self._is_queued else None,
        )
        self._workflow = ref.state.workflow  # the file is read once for all threads
        tell_omitted(ref)
        workspace.tell_service(ref)
        return ref

    def start_all(self, tasks: list[Task]) -> list[ThreadRef]:
        """Queue all threads. If that fails midway, report how many were queued, because those will run."""
        refs: list[ThreadRef] = []
        try:
            for task in tasks:
                refs.append(self.start(task))
        finally:
            if 0 < len(refs) < len(tasks):
                last = thread.id_of(refs[-1])
                print(f"{len(refs)} of {len(tasks)} threads were queued, the last is {last}", file=sys.stderr)
        return refs


def _detach(options: Namespace, refs: list[ThreadRef], *, is_served: bool) -> int:
    shown = [{"thread": thread.id_of(ref), "status": ref.state.status.value} for ref in refs]
    value = shown if options.each is not None else shown[0]
    show(options, value, "\n".join(entry["thread"] for entry in shown))
    sys.stdout.flush()
    if not is_served:
        waiting = "it waits" if len(refs) == 1 else "they wait"
        say(f"no service is running here: {waiting} for `rolecall serve`", sys.stderr)
    return 0
