"""Every command of the command line, with the actions in it that a role can be denied.

The command line checks a command before running it; the hooks' gate checks the Rolecall commands inside shell commands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from rolecall.errors import UsageError
from rolecall.settings.capabilities import FILES, SHELL, TASK_CREATION, TASK_UPDATE, check_allowed, check_lead


class Action(NamedTuple):
    """The actions of a command that a role can be denied."""

    classes: tuple[str, ...] = ()
    """Classes of actions. The command is denied if a restriction denies one of them."""
    is_for_lead: bool = False
    """Whether any restriction denies the command, because a restricted role is not the lead."""
    starts_threads: bool = False
    """Whether the command is denied inside a step unless the role may start threads."""
    is_door: bool = False
    """Whether only hosts may start the command, which then checks every call itself. It is denied in an agent's
    shell."""


READS = Action()
"""Commands that only read, or that write only what every role may write: artifacts, and how often a note was read."""
WRITES = Action(FILES)
RUNS = Action(SHELL)
ADDS_TASKS = Action(TASK_CREATION)
UPDATES_TASKS = Action(TASK_UPDATE)
LEADS = Action(is_for_lead=True)
STARTS = Action(is_for_lead=True, starts_threads=True)
OPENS = Action(is_door=True)

_TABLE: Mapping[Action, str] = {
    READS: """
        workflow show, workflow list, workflow graph, workflow schema, workflow history, workflow diff, workflow try,
        thread watch, thread show, thread list, thread steps, thread read, thread step-details, thread diff,
        thread blame, thread why, thread folder show, thread folder diff, serve status, serve logs, fleet status,
        trigger list, plan status, task list, task ready, task graph, history search, artifact write,
        memory list, memory read, memory gc, rule list, rule read,
        knowledge query, knowledge status, knowledge show, config get, config list, agents list,
        completion, status, cost, prove, help, version, eval show, eval list, eval compare,
        cas get, cas has, cas refs, cas walk, cas verify, cas stats, cas schema list, cas schema get""",
    WRITES: """
        new, eval export, eval promote,
        thread export, thread checkout, thread folder merge, thread folder remove, thread folder prune, memory add,
        knowledge init, knowledge sync, knowledge forget, cas put, cas put-text, cas export, cas schema put""",
    RUNS: "eval check, doctor, validate, workflow validate, workflow outdated, conformance run",
    ADDS_TASKS: "task add",
    UPDATES_TASKS: "task update, task close",
    LEADS: """
        plan start, plan add, plan remove, plan edit, plan reopen, plan decide, memory merge, rule add,
        config set, config unset, notify, trace export, init, setup, install, uninstall, workflow put, workflow add,
        workflow update, knowledge serve,
        cas reindex, cas gc, cas import""",
    STARTS: """
        run, try, lead, ci run, eval run, eval gate, eval experiment, eval bisect,
        workflow trust, serve, serve stop, web, acp, plan run, agents test,
        trigger fire, trigger pause, trigger resume,
        thread start, thread step, thread run, thread resume, thread answer, thread kill, thread fork, thread import""",
    OPENS: "mcp, hook",
}
VERBS: Mapping[str, Action] = {
    " ".join(verb.split()): action for action, listed in _TABLE.items() for verb in listed.split(",")
}
OPTIONS: Mapping[tuple[str, str], Action] = {
    ("workflow graph", "output"): WRITES,
    ("prove", "export"): WRITES,
    ("workflow try", "code"): RUNS,
    ("memory gc", "delete"): LEADS,
    ("memory gc", "auto"): LEADS,
}
"""Options that change the action of a command."""


def check_verb(
    verb: str,
    is_given: Callable[[str], object],
    *,
    restrictions: Iterable[str],
    is_in_step: bool,
    may_start_threads: bool,
) -> None:
    """Raise an error if the role of this process is not allowed to perform the actions of a command with the given
    options."""
    name, action = find_action(verb, is_given)
    if action.is_for_lead:
        check_lead(restrictions, name)
    check_allowed(restrictions, name, action.classes)
    if action.starts_threads and is_in_step and not may_start_threads:
        raise UsageError(
            f"{name} starts or moves threads, which this role may not do",
            hint="Leave it to the workflow, or give the role `may_start_threads: true`.",
        )


def find_action(verb: str, is_given: Callable[[str], object]) -> tuple[str, Action]:
    """Return the action of a command with the given options, and its name with the option that decides. Only the lead
    may use a command that is not in the table."""
    for (name, option), action in OPTIONS.items():
        if name == verb and is_given(option):
            return f"{verb} --{option}", action
    return verb, VERBS.get(verb, LEADS)
