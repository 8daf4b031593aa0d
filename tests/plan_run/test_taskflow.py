"""The workflow of a task: sound for every set of players, and failing leads where it should."""

from __future__ import annotations

from typing import Any

import pytest

from rolecall.nexus import catalog
from rolecall.plan_run.taskflow import ESCALATION, PERSON, Players, diagnosticians, make, roles_of, verdicts
from rolecall.workflow import lint
from rolecall.workflow.model import START
from rolecall.workflow.route import Ended, Failed, Next, route

CATALOG = catalog.load()
DOERS = [id for id, agent in CATALOG.agents.items() if agent.category != "check"]
CHECKERS = [id for id, agent in CATALOG.agents.items() if agent.category == "check"]
ALL = [
    *(Players((doer,), checker) for doer in DOERS for checker in ("", *CHECKERS)),
    *(Players(doers, checker, True) for checker in CHECKERS for doers in ((), ("engineer", "writer"))),
    *(
        Players((doer,), checker, True)
        for doer in ("engineer", "researcher", "writer")
        for checker in CHECKERS
    ),
]


def names(players: Players) -> str:
    return "+".join([*players.doers, players.checker, "check" if players.is_check else ""])


@pytest.mark.parametrize("players", ALL, ids=names)
def test_there_is_nothing_to_say_against_the_workflow(players: Players) -> None:
    workflow = make(players, CATALOG, lambda role: f"Notes for {role}.")
    assert lint.check(workflow, unread=lint.Unread()) == []
    assert set(workflow.roles) == {*roles_of(players), PERSON}
    for name in roles_of(players):
        role, agent = workflow.roles[name], CATALOG.agent(name)
        assert set(role.capabilities) == {*agent.capabilities, "no_task_update"}
        assert agent.body.strip() in role.procedure
        assert role.procedure.endswith(f"Notes for {name}.")
        assert role.agent is None
    assert workflow.roles[PERSON].agent == "human"


def walk(players: Players, *said: tuple[str, str]) -> list[str]:
    """The roles that are called when each says the word given for it, and how it ends."""
    workflow = make(players, CATALOG)
    words = dict.fromkeys(("summary", "cause", "correction", "how", "change", "why"), "words")
    steps: list[dict[str, Any]] = []
    at, output = START, dict[str, Any]()
    seen: list[str] = []
    for role, status in (("", ""), *said):
        if role:
            assert at == role, (at, role, seen)
            output = {"status": status, "files": [], **words}
            steps.append({"role": role, "output": output})
        way = route(
            workflow,
            role=at,
            output=output,
            start={"workflow": workflow.name, "prompt": "x", "cwd": "/"},
            steps=steps,
            steps_count=len(steps),
            thread="T",
        )
        assert isinstance(way, (Next, Ended, Failed)), way
        at = way.role if isinstance(way, Next) else type(way).__name__
        seen.append(at)
    return seen


PAIR = Players(("engineer",), "tester")
CHECK = Players(("engineer",), "tester", is_check=True)


@pytest.mark.parametrize(
    ("players", "said", "path"),
    [
        (Players(("engineer",)), ["engineer:done"], "engineer Ended"),
        (PAIR, ["engineer:done", "tester:pass"], "engineer tester Ended"),
        (
            PAIR,
            ["engineer:partial", "architect:again_engineer", "engineer:done", "tester:pass"],
            "engineer architect engineer tester Ended",
        ),
        (
            PAIR,
            [
                "engineer:done",
                "tester:fail",
                "architect:again_engineer",
                "engineer:blocked",
                "person:another_way",
            ],
            "engineer tester architect engineer person engineer",
        ),
        (
            PAIR,
            [
                "engineer:done",
                "tester:fail",
                "architect:again_engineer",
                "engineer:done",
                "tester:fail",
                "person:stop",
            ],
            "engineer tester architect engineer tester person Failed",
        ),
        (
            PAIR,
            ["engineer:done", "tester:blocked", "architect:again_tester"],
            "engineer tester architect tester",
        ),
        (PAIR, ["engineer:blocked", "architect:task_wrong"], "engineer architect person"),
        (PAIR, ["engineer:blocked", "architect:blocked"], "engineer architect person"),
        (CHECK, ["tester:pass"], "tester Ended"),
        (
            CHECK,
            ["tester:fail", "architect:again_engineer", "engineer:done", "tester:pass"],
            "tester architect engineer tester Ended",
        ),
        (
            CHECK,
            ["tester:fail", "architect:again_engineer", "engineer:done", "tester:fail"],
            "tester architect engineer tester person",
        ),
        (Players((), "tester", True), ["tester:fail", "person:plan_again"], "tester person Failed"),
        (
            Players(("writer",), "reviewer"),
            ["writer:done", "reviewer:revision_required", "strategist:again_writer"],
            "writer reviewer strategist writer",
        ),
        (Players(("writer",), "reviewer"), ["writer:done", "reviewer:blocked"], "writer reviewer person"),
        (
            Players(("researcher",)),
            ["researcher:partial", "postdoc:again_researcher"],
            "researcher postdoc researcher",
        ),
        (Players(("designer",)), ["designer:blocked", "person:change_task"], "designer person designer"),
        (
            Players(("engineer", "writer"), "reviewer", True),
            ["reviewer:revision_required", "architect:again_writer", "writer:done"],
            "reviewer architect writer reviewer",
        ),
    ],
)
def test_failing_leads_to_one_diagnosis_one_more_attempt_and_then_a_person(
    players: Players, said: list[str], path: str
) -> None:
    pairs = [(role, status) for role, _, status in (one.partition(":") for one in said)]
    assert walk(players, *pairs) == path.split()


def test_the_escalation_map_is_that_of_the_contract() -> None:
    assert ESCALATION == {
        "engineer": "architect",
        "writer": "strategist",
        "researcher": "postdoc",
        "tester": "architect",
    }
    assert all(CATALOG.agents[name].category == "how" for name in ESCALATION.values())
    assert diagnosticians(Players(("writer",), "reviewer")) == ["strategist"]


def test_checkers_speak_the_words_of_their_bodies() -> None:
    for checker in CHECKERS:
        for word in verdicts(checker):
            assert word.upper() in CATALOG.agents[checker].body


def test_tasks_of_the_same_kind_share_one_workflow() -> None:
    assert make(PAIR, CATALOG) == make(Players(("engineer",), "tester"), CATALOG)
