"""A task as a workflow: who does it, who checks it, who diagnoses a failure, and when a person is asked.

Failures are edges of the workflow. The first failure leads to a diagnosis and then to another attempt; the second leads
to a person, who redirects the task, changes it, or ends it. The text of the task is in the prompt of its thread, not in
the workflow, so tasks of the same kind share one workflow. Within the workflow, every attempt starts a new session; a
session from an earlier task is passed to the thread from outside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from rolecall.nexus.catalog import Catalog
from rolecall.store.canonical import Schema
from rolecall.workflow.model import (
    END,
    FAIL,
    START,
    Condition,
    Edge,
    Limits,
    StoredRole,
    StoredWorkflow,
    Workdir,
)

NAME = "run-task"
"""The name of the workflow, used to configure its agents, as in `agentOverrides.run-task.engineer`."""
PERSON = "person"
ESCALATION: Mapping[str, str] = {
    "engineer": "architect",
    "researcher": "postdoc",
    "tester": "architect",
    "writer": "strategist",
}
"""For each role, the role that diagnoses its failures. The failures of any other role lead directly to a person."""
MOST_STEPS = 40

DONE, BLOCKED = "done", "blocked"
_NOT_DONE = ("partial", BLOCKED)
_VERDICTS = {"reviewer": ("approved", "revision_required")}
FAILURES = (*_NOT_DONE, "fail", "revision_required", "task_wrong")
_FIRST = "isFirstFailure"


class Players(NamedTuple):
    """The roles that take part in a task, as catalogue ids."""

    doers: tuple[str, ...] = ()
    """The roles that do the task, or, for a check, those that did the checked tasks and redo them if necessary."""
    checker: str = ""
    is_check: bool = False
    """Whether the task itself is a check, so that its workflow begins with the checker."""

    @property
    def owner(self) -> str:
        return self.checker if self.is_check else self.doers[0]


def verdicts(checker: str) -> tuple[str, str]:
    """Return the statuses that a checker's body uses for a good and a bad result."""
    return _VERDICTS.get(checker, ("pass", "fail"))


def diagnosticians(players: Players) -> list[str]:
    """Return the roles that can be asked for a diagnosis."""
    failing = _can_go_again(players)
    return list(dict.fromkeys(ESCALATION[name] for name in failing if name in ESCALATION))


def roles_of(players: Players) -> list[str]:
    """Return every role that needs an agent."""
    named = [*players.doers, players.checker, *diagnosticians(players)]
    return list(dict.fromkeys(filter(None, named)))


def make(
    players: Players,
    catalog: Catalog,
    notes: Callable[[str], str] = lambda _role: "",
    workdir: Workdir | None = None,
) -> StoredWorkflow:
    """Build the workflow of a task. `notes` returns text to add to a role's body, such as tool names."""
    asked = diagnosticians(players)
    schemas = dict.fromkeys(players.doers, _WORK)
    who = "Who has to try again, with your correction; or that the task itself is wrong, or that you cannot tell."
    again = (f"again_{name}" for name in _can_go_again(players))
    diagnosis = _object(
        status=_status(who, *again, "task_wrong", BLOCKED),
        cause=_text("Why it failed, with path:line."),
        correction=_text(
            "The smallest correction and how to see that it worked; or what the task should say."
        ),
    )
    schemas |= dict.fromkeys(asked, diagnosis)
    if players.checker:
        schemas[players.checker] = _object(
            status=_status("Your verdict.", *verdicts(players.checker), BLOCKED),
            summary=_text("What decided the verdict, in one to three sentences."),
        )
    roles = {}
    for name, schema in schemas.items():
        agent = catalog.agent(name)
        roles[name] = StoredRole(
            description=agent.description,
            # The runner updates the task list, so that no agent completes a task that still has to be checked.
            capabilities=tuple(dict.fromkeys((*agent.capabilities, "no_task_update"))),
            procedure="\n\n".join(filter(None, (agent.body.strip(), notes(name)))),
            output="The fields above, then your message in the form that your role gives it.",
            schema=schema,
        )
    conditions = {}
    if asked:
        were_asked = " or ".join(f'"{name}" in steps.role' for name in asked)
        about = "Nobody has looked for the cause of a failure yet."
        conditions[_FIRST] = Condition(f"$not({were_asked})", about)
    return StoredWorkflow(
        NAME,
        description="Does a task, has it checked, and asks a person when it has failed twice.",
        roles={**roles, PERSON: _PERSON},
        graph=_graph(players, asked),
        conditions=conditions,
        limits=Limits(steps=MOST_STEPS),
        workdir=workdir,
    )


# -- roles --


def _object(**properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _status(about: str, *words: str) -> Schema:
    return {"enum": list(words), "description": about}


def _text(about: str) -> Schema:
    return {"type": "string", "minLength": 1, "description": about}


_ANSWERS = (
    ("another_way", "how", "What to do differently."),
    ("change_task", "change", "What the task asks for now: what to drop, relax or add."),
    ("plan_again", "why", "Which decision does not hold. The task ends; the plan is taken up again."),
    ("stop", "why", "Why the task is given up."),
)
_PERSON = StoredRole(
    description="decides how to continue a task that has failed",
    prompt="Look at what was tried and why it failed. Then redirect the task, change it, or end it.",
    schema={
        "oneOf": [
            _object(
                status={"const": status},
                **{field: {**_text(about), "examples": [about.partition(".")[0].partition(":")[0].lower()]}},
            )
            for status, field, about in _ANSWERS
        ]
    },
    agent="human",
)
_FILES = "Files you created, changed or removed, as paths from the project's folder; empty if none."
_WORK = _object(
    status=_status("Only what meets the whole acceptance is done.", DONE, *_NOT_DONE),
    summary=_text("What was done, or what is in the way, in one to three sentences."),
    files={"type": "array", "items": {"type": "string"}, "description": _FILES},
)


def _can_go_again(players: Players) -> list[str]:
    return [*players.doers, *([players.checker] if players.checker else [])]


# -- edges --


def _graph(players: Players, asked: list[str]) -> dict[str, tuple[Edge, ...]]:
    graph: dict[str, tuple[Edge, ...]] = {
        START: (Edge(players.owner, prompt=_CHECK_TASK if players.is_check else _DO),)
    }
    for name in players.doers:
        done = Edge(players.checker, DONE, prompt=_CHECK) if players.checker else Edge(END, DONE)
        failed = (edge for status in _NOT_DONE for edge in _after_failure(name, status, ESCALATION.get(name)))
        graph[name] = (done, *failed)
    if players.checker:
        good, bad = verdicts(players.checker)
        doer = players.doers[0] if players.doers else ""
        graph[players.checker] = (
            Edge(END, good),
            # A bad verdict is a failure of the work; a check that could not be made is a failure of the checker.
            *_after_failure(players.checker, bad, ESCALATION.get(doer)),
            *_after_failure(players.checker, BLOCKED, ESCALATION.get(players.checker)),
        )
    for name in asked:
        graph[name] = (
            *(Edge(again, f"again_{again}", prompt=_TRY_AGAIN) for again in _can_go_again(players)),
            Edge(PERSON, "task_wrong", prompt=_WRONG),
            Edge(PERSON, BLOCKED, prompt=_UNKNOWN),
        )
    onward = players.doers[0] if players.doers else players.checker
    graph[PERSON] = (
        Edge(onward, "another_way", prompt=_ANOTHER_WAY),
        Edge(onward, "change_task", prompt=_CHANGED),
        Edge(FAIL, "plan_again", prompt="A person wants to plan again: {{why}}"),
        Edge(FAIL, "stop", prompt="A person has stopped it: {{why}}"),
    )
    return graph


def _after_failure(name: str, status: str, diagnostician: str | None) -> Iterator[Edge]:
    if diagnostician:
        yield Edge(diagnostician, status, _FIRST, prompt=_DIAGNOSE.format(name=name, status=status))
    yield Edge(PERSON, status, prompt=_ASK.format(name=name, status=status))


_DO = "Do the task."
_CHECK_TASK = """\
Check the work that the task names. What its author reports is a claim and no evidence."""
_CHECK = """\
The task is said to be done. Check the result against its ACCEPTANCE. What the author reports is a claim and no \
evidence."""
_DIAGNOSE = """\
{name} ended with `{status}`: {{{{summary}}}}

Find out why and what the smallest correction is. Change nothing yourself. Name the cause with path:line, one \
correction, and how to see that it worked; or that the task itself is wrong, and why."""
_TRY_AGAIN = """\
The attempt before this one failed. You start fresh, with this added to CONTEXT:

Cause: {{cause}}

Correction: {{correction}}

Read the files as they are now, then bring the task to its end."""
_ASK = """\
{name} ended with `{status}`: {{{{summary}}}}

The task has failed, and nobody tries again without you. What should happen next?"""
_WRONG = """\
The diagnosis says that the task itself is wrong: {{cause}}

What it should say: {{correction}}

Nobody tries again without you. What should happen next?"""
_UNKNOWN = """\
The task has failed, and the diagnosis could not tell why: {{cause}}

Nobody tries again without you. What should happen next?"""
_ANOTHER_WAY = """\
The attempts before this one failed. A person says how to continue, and this is added to CONTEXT:

{{how}}"""
_CHANGED = """\
The attempts before this one failed. A person has changed the task; if the two disagree, follow the change:

{{change}}"""
