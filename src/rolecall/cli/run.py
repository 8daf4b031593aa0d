"""`rolecall run` and `rolecall try`: start threads of a workflow and follow them. If the service is running here, it
runs the threads; otherwise this process does. Output and exit codes are those of `thread run`."""

from __future__ import annotations

import json
import os
from argparse import Namespace
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rolecall.api import LoadedWorkflow, Rolecall, Thread, check_limits, reader
from rolecall.cli import CommandResult, argument, either, flag, forecast, verb
from rolecall.cli.arguments import AGENT, CWD, LIMIT, REUSE, WORKFLOW, wants_reuse
from rolecall.cli.follow import follow, follow_each
from rolecall.cli.hints import word
from rolecall.cli.output import STORE, between, read_file, read_input, tell
from rolecall.cli.thread_play import play
from rolecall.cli.thread_run import print_problem, tell_of_settings, tell_omitted
from rolecall.errors import UsageError
from rolecall.service import control, project_file
from rolecall.settings import config
from rolecall.store.lazy import Module

if TYPE_CHECKING:
    from rolecall.checks import choose
else:
    choose = Module("rolecall.checks.choose")  # imports adapters, which `run` does not need

_KEYS = ("prompt", "cwd", "priority")


@dataclass(frozen=True)
class RunTask:
    prompt: str
    cwd: str
    priority: int


_ARGUMENTS = (
    WORKFLOW,
    either(
        argument("-p --prompt", "TEXT", "the task; @FILE reads a file, - standard input"),
        argument(
            "--each",
            "FILE",
            'a thread for every line of FILE: a prompt, or {"prompt", "cwd", "priority"}; - is standard input',
        ),
    ),
    either(
        flag("--detach", "queue it for the service, print its id"),
        flag("--dry", "start nothing: show which steps would be reused and what the rest may cost"),
    ),
    argument(
        "--priority",
        "N",
        "from 0 to 9; threads with a higher priority go first (default: the workflow's)",
        type=between(0, 9),
    ),
    CWD,
    LIMIT,
    AGENT,
    REUSE,
    STORE,
)


@verb(
    "run",
    "start a thread of a workflow and follow it to its end",
    "rolecall run fix-issue -p 'The login page is blank'\n"
    "rolecall run fix-issue --each prompts.txt --detach\n"
    "rolecall run fix-issue -p @issue.md --priority 9\n"
    "rolecall run fix-issue -p 'The login page is blank' --reuse --dry",
    *_ARGUMENTS,
)
def run(options: Namespace) -> CommandResult | int:
    return _run(options)


@verb(
    "try",
    "run a workflow, even a ready-made one, at once; installed agents play the roles without an agent",
    "rolecall try answer-question -p 'How does a request reach the handler?'\n"
    "rolecall try fix-test -p 'The test of the login fails' --limit cost=2",
    *_ARGUMENTS,
)
def try_workflow(options: Namespace) -> CommandResult | int:
    return _run(options, names_agents=not options.agent)


def _name_agents(rolecall: Rolecall, loaded: LoadedWorkflow) -> LoadedWorkflow:
    """Assign agents that are ready here to the roles that have no agent."""
    workflow = loaded.playbook.workflow
    roles = choose.open_roles(workflow, config.load()) if workflow.python is None else []
    if not roles:
        return loaded
    findings = rolecall.agents()
    chosen = rolecall.choose_agents(loaded, roles, findings=findings)
    if missing := [role for role in roles if role not in chosen]:
        installed = [one for one in findings.values() if one.state not in ("ready", "not installed")]
        to_do = [
            f"{one.agent} is installed, but {one.state}: {word(one.troubles[0].fix)}" for one in installed
        ]
        raise UsageError(
            f"no agent is ready here to play {', '.join(missing)}",
            hint="\n".join([*to_do, "`rolecall doctor` lists the agents and what to do for each."]),
        )
    for agent in dict.fromkeys(one.agent for one in chosen.values()):
        played = ", ".join(role for role, one in chosen.items() if one.agent == agent)
        tell(f"{agent} plays {played}: it is ready here, and none is configured")
    named = {role: workflow.roles[role]._replace(agent=one.agent) for role, one in chosen.items()}
    book = loaded.playbook._replace(workflow=workflow._replace(roles={**workflow.roles, **named}))
    return loaded._replace(playbook=book, id=None)


def _run(options: Namespace, *, names_agents: bool = False) -> CommandResult | int:
    if options.prompt is None and options.each is None:
        raise UsageError(
            "the workflow needs a task", hint="Say what to do: -p 'The login page is blank', or -p @FILE."
        )
    if options.dry:
        return _run_dry(options, names_agents=names_agents)
    with Rolecall(options.store) as rolecall:
        loaded = rolecall.load_workflow(options.workflow, warn=print_problem, is_kept=True)
        loaded = _name_agents(rolecall, loaded) if names_agents else loaded
        check_limits(dict(options.limit), loaded.playbook.workflow.roles)
        tasks = _read_tasks(options, loaded.playbook.workflow.name)
        tell_of_settings(loaded.playbook, options.agent)
        for _, error in rolecall.missing_agents(loaded.playbook, options.agent):
            raise error
        is_served = control.is_served(config.home(), options.store, rolecall.store)
        starter = Starter(options, rolecall, loaded, is_queued=is_served or options.detach)
        if options.detach:
            threads = starter.start_all(tasks)
            shown = [{"thread": thread.id, "status": thread.state.status.value} for thread in threads]
            waiting = "it waits" if len(threads) == 1 else "they wait"
            note = "" if is_served else f"no service is running here: {waiting} for `rolecall serve`"
            reply = shown if options.each is not None else shown[0]
            return CommandResult(reply, [thread.id for thread in threads], note=note)
        if len(tasks) > 1:
            started = starter.start_all(tasks) if is_served else map(starter.start, tasks)
            return follow_each(options, started, len(tasks), is_served=is_served)
        thread = starter.start(tasks[0])
        tell(f"thread {thread.id}")
        if is_served:
            return follow(options, thread)
        return play(options, thread, steps=None, is_run=True)


def _run_dry(options: Namespace, *, names_agents: bool) -> CommandResult:
    with reader(options.store) as rolecall:
        loaded = rolecall.load_workflow(options.workflow, warn=print_problem)
        loaded = _name_agents(rolecall, loaded) if names_agents else loaded
        for _, error in rolecall.missing_agents(loaded.playbook, options.agent):
            raise error
        outlooks = [
            rolecall.look_ahead(
                loaded,
                task.prompt,
                agent=options.agent,
                limits=dict(options.limit),
                folder=task.cwd,
                reuse=wants_reuse(options),
            )
            for task in _read_tasks(options, loaded.playbook.workflow.name)
        ]
    shown = [forecast.view_outlook(one) for one in outlooks]
    if options.each is None:
        return CommandResult(shown[0], forecast.word_outlook(outlooks[0]))
    return CommandResult(shown, forecast.word_outlooks(outlooks))


def _read_tasks(options: Namespace, workflow: str) -> list[RunTask]:
    priority = options.priority
    if priority is None:
        priority = project_file.load(os.getcwd()).project.policy.of(workflow).priority
    default = RunTask("", os.path.abspath(options.cwd or os.getcwd()), priority)
    if options.each is None:
        prompt = read_input(options.prompt)
        if not prompt.strip():
            raise UsageError("the task is empty", hint="Say what to do: -p 'The login page is blank'.")
        return [replace(default, prompt=prompt)]
    tasks = []
    # `splitlines` would also split at other characters that a text can contain.
    for number, line in enumerate(read_file(options.each).removeprefix("\ufeff").split("\n"), 1):
        if line.strip():
            tasks.append(_parse_task(line.strip(), f"{options.each}:{number}", default))
    if not tasks:
        raise UsageError(f"{options.each} has no prompts", hint="Write one on each line.")
    return tasks


def _parse_task(line: str, place: str, default: RunTask) -> RunTask:
    """Parse a line: a prompt, a JSON object that contains a prompt, or a JSON string, which can have line breaks."""
    given: Any = {"prompt": line}
    if line[0] in '{"':
        try:
            given = json.loads(line)
        except ValueError as error:
            if line[0] == "{":  # otherwise the line is a prompt that starts with a quotation
                raise UsageError(f"{place} begins like JSON but is not JSON: {error}") from error
    given = {"prompt": given} if isinstance(given, str) else given
    if unknown := [key for key in given if key not in _KEYS]:
        raise UsageError(f"{place} has the key {unknown[0]!r}", hint=f"Known are {', '.join(_KEYS)}.")
    prompt, folder = given.get("prompt"), given.get("cwd", "")
    priority = given.get("priority", default.priority)
    if not isinstance(prompt, str) or not isinstance(folder, str):
        raise UsageError(f"{place} must have a `prompt`; it and `cwd` must be strings")
    if type(priority) is not int or priority not in range(10):  # 5.0 and True are also in `range(10)`
        raise UsageError(f"{place} has the priority {priority!r}", hint="A priority is a number from 0 to 9.")
    task = RunTask(prompt, os.path.abspath(os.path.join(default.cwd, os.path.expanduser(folder))), priority)

    # Report anything that would prevent a thread from starting, before any thread is started.
    if not task.prompt.strip():
        raise UsageError(f"{place} has an empty prompt", hint="Say what to do.")
    if not os.path.isdir(task.cwd):
        raise UsageError(f"{place} names the work folder {task.cwd!r}, which does not exist")
    try:
        task.prompt.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"{place} holds half of a character: {error.reason}") from error
    return task


@dataclass
class Starter:
    """The options and the loaded workflow with which threads are started, one after the other."""

    options: Namespace
    rolecall: Rolecall
    loaded: LoadedWorkflow
    is_queued: bool

    def start(self, task: RunTask) -> Thread:
        thread = self.rolecall.start(
            self.loaded,
            task.prompt,
            folder=task.cwd,
            limits=dict(self.options.limit),
            agent=self.options.agent,
            reuse=wants_reuse(self.options),
            priority=task.priority if self.is_queued else None,
        )
        self.loaded = self.loaded._replace(id=thread.state.workflow)  # later threads use the stored workflow
        tell_omitted(thread)
        return thread

    def start_all(self, tasks: list[RunTask]) -> list[Thread]:
        """Queue all threads. If an error interrupts this, report how many threads have been queued, because those will
        run."""
        threads: list[Thread] = []
        try:
            for task in tasks:
                threads.append(self.start(task))
        finally:
            if 0 < len(threads) < len(tasks):
                tell(f"{len(threads)} of {len(tasks)} threads were queued; the last is {threads[-1].id}")
        return threads
