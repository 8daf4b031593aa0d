"""A task as a workflow: who does it, who checks it, who says why it failed, when a person is asked. Values.

Failing is an edge. The first failure leads to a diagnosis and from there to one more attempt; the second one to a
person, who sends it another way, changes the task, or ends it. What the task itself says is not in the workflow but
in the prompt of its thread, so tasks of the same kind share one workflow. In all of it nobody goes on in a session:
one more attempt is a fresh one. A session of an earlier task is given to the thread from outside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from rolecall.nexus.catalog import Agent, Catalog, effective
from rolecall.workflow.model import END, FAIL, START, Condition, Edge, Limits, Role, Workflow

NAME = "run-task"
"""The name to configure agents by: `agentOverrides.run-task.engineer`."""
PERSON = "person"
ESCALATION: Mapping[str, str] = {
    "engineer": "architect",
    "researcher": "postdoc",
    "tester": "architect",
    "writer": "strategist",
}
"""Who finds out why somebody failed; failures of all others are a person's at once."""
MOST_STEPS = 40

DONE, BLOCKED = "done", "blocked"
_NOT_DONE = ("partial", BLOCKED)
_VERDICTS = {"reviewer": ("approved", "revision_required")}
FAILURES = (*_NOT_DONE, "fail", "revision_required", "task_wrong")
"""The words with which somebody says that it went wrong."""
_FIRST = "isFirstFailure"


class Players(NamedTuple):
    """Who has a part in a task, by ids of the catalogue."""

    doers: tuple[str, ...] = ()
    """Who does it. Where a task is a check of other tasks: who did those, and does them again if need be."""
    checker: str = ""
    is_check: bool = False
    """The task itself is the check, so it begins with the checker."""

    @property
    def owner(self) -> str:
        return self.checker if self.is_check else self.doers[0]


def verdicts(checker: str) -> tuple[str, str]:
    """The words of a checker for good and for bad, as its body has them."""
    return _VERDICTS.get(checker, ("pass", "fail"))


def diagnosticians(players: Players) -> list[str]:
    """Who may be asked why it failed."""
    failing = [*players.doers, *([players.checker] if players.checker else [])]
    return list(dict.fromkeys(ESCALATION[name] for name in failing if name in ESCALATION))


def roles_of(players: Players) -> list[str]:
    """Everybody that an agent has to be found for."""
    named = [*players.doers, players.checker, *diagnosticians(players)]
    return list(dict.fromkeys(filter(None, named)))


def make(players: Players, catalog: Catalog, notes: Callable[[str], str] = lambda _role: "") -> Workflow:
    """The workflow of a task; `notes` are words for a role on top of its body, such as names of tools."""
    asked = diagnosticians(players)
    schemas = {name: _work() for name in players.doers}
    schemas |= {name: _diagnosis(players) for name in asked}
    if players.checker:
        schemas[players.checker] = _check(players.checker)
    roles = {name: _role(catalog.agent(name), schema, notes(name)) for name, schema in schemas.items()}
    return Workflow(
        NAME,
        description="Does a task, has it checked, and asks a person when it has failed twice.",
        roles={**roles, PERSON: _person()},
        graph={source: tuple(edges) for source, edges in _graph(players, asked).items()},
        conditions=_conditions(asked),
        limits=Limits(steps=MOST_STEPS),
    )


# -- roles --


def _role(agent: Agent, schema: Mapping[str, Any], notes: str) -> Role:
    return Role(
        description=agent.description,
        # The list is kept by whoever runs the plan: nobody calls a task done that has to be checked yet.
        capabilities=tuple(dict.fromkeys((*effective(agent), "no_task_update"))),
        procedure="\n\n".join(filter(None, (agent.body.strip(), notes))),
        output="The fields above, then your message in the form that your role gives it.",
        schema=schema,
    )


def _person() -> Role:
    return Role(
        description="decides how a task goes on that has failed",
        prompt="Look at what was tried and why it failed. Then send the task another way, change it, or end it.",
        schema={"oneOf": [_answer(status, field, about) for status, field, about in _ANSWERS]},
        agent="human",
    )


_ANSWERS = (
    ("another_way", "how", "What to do differently."),
    ("change_task", "change", "What the task asks for now: what to drop, relax or add."),
    ("plan_again", "why", "Which decision does not hold. The task ends; the plan is taken up again."),
    ("stop", "why", "Why the task is left."),
)


def _answer(status: str, field: str, about: str) -> dict[str, Any]:
    said = {**_text(about), "examples": [about.partition(".")[0].partition(":")[0].lower()]}
    return _object({"status": {"const": status}, field: said})


def _object(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": dict(properties), "required": list(properties)}


def _status(about: str, *words: str) -> dict[str, Any]:
    return {"enum": list(words), "description": about}


def _text(about: str) -> dict[str, Any]:
    return {"type": "string", "minLength": 1, "description": about}


def _work() -> dict[str, Any]:
    files = "Files you created, changed or removed, as paths from the project's folder; empty if none."
    return _object(
        {
            "status": _status("Only what meets the whole acceptance is done.", DONE, *_NOT_DONE),
            "summary": _text("What was done, or what is in the way, in one to three sentences."),
            "files": {"type": "array", "items": {"type": "string"}, "description": files},
        }
    )


def _check(checker: str) -> dict[str, Any]:
    return _object(
        {
            "status": _status("Your verdict.", *verdicts(checker), BLOCKED),
            "summary": _text("What decided the verdict, in one to three sentences."),
        }
    )


def _diagnosis(players: Players) -> dict[str, Any]:
    who = "Who has to try again, with your correction; or that the task itself is wrong, or that you cannot tell."
    again = (_again(name) for name in _can_go_again(players))
    return _object(
        {
            "status": _status(who, *again, "task_wrong", BLOCKED),
            "cause": _text("Why it failed, with path:line."),
            "correction": _text(
                "The smallest correction and how to see that it worked; or what the task should say."
            ),
        }
    )


def _again(name: str) -> str:
    return f"again_{name}"


def _can_go_again(players: Players) -> list[str]:
    return [*players.doers, *([players.checker] if players.checker else [])]


# -- edges --


def _graph(players: Players, asked: list[str]) -> dict[str, list[Edge]]:
    graph = {START: [Edge(players.owner, prompt=_CHECK_TASK if players.is_check else _DO)]}
    graph |= {name: list(_after_work(name, players)) for name in players.doers}
    if players.checker:
        graph[players.checker] = list(_after_check(players))
    graph |= {name: list(_after_diagnosis(players)) for name in asked}
    graph[PERSON] = list(_after_person(players.doers[0] if players.doers else players.checker))
    return graph


def _after_work(name: str, players: Players) -> Iterator[Edge]:
    yield Edge(players.checker, DONE, prompt=_CHECK) if players.checker else Edge(END, DONE)
    for status in _NOT_DONE:
        yield from _failed(name, status, ESCALATION.get(name))


def _after_check(players: Players) -> Iterator[Edge]:
    good, bad = verdicts(players.checker)
    yield Edge(END, good)
    # A bad verdict is a failure of the work, a check that could not be made one of the checker.
    doer = players.doers[0] if players.doers else ""
    yield from _failed(players.checker, bad, ESCALATION.get(doer))
    yield from _failed(players.checker, BLOCKED, ESCALATION.get(players.checker))


def _failed(name: str, status: str, diagnostician: str | None) -> Iterator[Edge]:
    if diagnostician:
        yield Edge(diagnostician, status, _FIRST, prompt=_DIAGNOSE.format(name=name, status=status))
    yield Edge(PERSON, status, prompt=_ASK.format(name=name, status=status))


def _after_diagnosis(players: Players) -> Iterator[Edge]:
    for name in _can_go_again(players):
        yield Edge(name, _again(name), prompt=_TRY_AGAIN)
    yield Edge(PERSON, "task_wrong", prompt=_WRONG)
    yield Edge(PERSON, BLOCKED, prompt=_UNKNOWN)


def _after_person(onward: str) -> Iterator[Edge]:
    yield Edge(onward, "another_way", prompt=_ANOTHER_WAY)
    yield Edge(onward, "change_task", prompt=_CHANGED)
    yield Edge(FAIL, "plan_again", prompt="A person wants to plan again: {{why}}")
    yield Edge(FAIL, "stop", prompt="A person has stopped it: {{why}}")


def _conditions(asked: list[str]) -> dict[str, Condition]:
    if not asked:
        return {}
    were_asked = " or ".join(f'"{name}" in steps.role' for name in asked)
    return {_FIRST: Condition(f"$not({were_asked})", "Nobody has looked for the cause of a failure yet.")}


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

The task has failed, and nobody tries again without you. How to go on?"""
_WRONG = """\
The diagnosis says that the task itself is wrong: {{cause}}

What it should say: {{correction}}

Nobody tries again without you. How to go on?"""
_UNKNOWN = """\
The task has failed, and the diagnosis could not tell why: {{cause}}

Nobody tries again without you. How to go on?"""
_ANOTHER_WAY = """\
The attempts before this one failed. A person says how to go on, and this is added to CONTEXT:

{{how}}"""
_CHANGED = """\
The attempts before this one failed. A person has changed the task; where this and the task disagree, this counts:

{{change}}"""
