"""What a project's file says about the service: read into values, with every problem at once."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rolecall.service import project_file
from rolecall.service.policy import ServicePolicy, StartRate, WorkerLimits, WorkflowPolicy, parse_rate
from rolecall.settings.yaml12 import Problem


def read(service: Any, workflows: Any) -> tuple[ServicePolicy, tuple[Problem, ...]]:
    text = json.dumps({"service": service, "workflows": workflows})
    reading = project_file.parse(text, path="/work/shop/rolecall.yaml")
    return reading.project.policy, reading.problems


def test_sections_that_say_nothing_mean_the_defaults() -> None:
    assert read(None, None) == (ServicePolicy(), ())
    assert read({}, {"review-code": None}) == (
        ServicePolicy(workflows={"review-code": WorkflowPolicy()}),
        (),
    )


def test_everything_that_can_be_said_is_read() -> None:
    service = {
        "limit": 4,
        "rates": {"claude": "30/min", "command": "1/10s"},
        "spend_per_day": 7.5,
        "worker": {"memory_mb": 512, "cpu_minutes": 10},
    }
    workflows = {
        "review-code": {"concurrency": 3, "overflow": "queue", "max_queue": 20, "priority": 9},
        "clean-up": {"overflow": "drop", "triggers": {}},
    }
    policy, problems = read(service, workflows)
    assert problems == ()
    assert policy == ServicePolicy(
        limit=4,
        workflows={
            "review-code": WorkflowPolicy(3, "queue", 20, 9),
            "clean-up": WorkflowPolicy(1, "drop"),
        },
        rates={"claude": StartRate(30, 60), "command": StartRate(1, 10)},
        spend_per_day=7.5,
        worker=WorkerLimits(512, 10),
    )
    assert policy.of("review-code").concurrency == 3
    assert policy.of("anything") == policy.default


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("30/min", StartRate(30, 60)),
        ("5/s", StartRate(5, 1)),
        ("5 / second", StartRate(5, 1)),
        ("100/hours", StartRate(100, 3600)),
        ("1/10s", StartRate(1, 10)),
        ("2/15min", StartRate(2, 900)),
        ("1000/day", StartRate(1000, 86400)),
    ],
)
def test_a_rate_is_a_number_of_calls_and_a_time(text: str, rate: StartRate) -> None:
    assert parse_rate(text) == rate
    assert parse_rate(str(rate)) == rate


@pytest.mark.parametrize(
    "text", ["", "30", "0/min", "30/0s", "30/fortnight", "-1/s", "1001/s", "x/min", "30/ms"]
)
def test_what_is_no_rate_is_none(text: str) -> None:
    assert parse_rate(text) is None


def test_every_problem_is_told_with_its_place() -> None:
    _, problems = read(
        {
            "limit": 0,
            "rates": {"claude": "often", "a b": "1/s"},
            "spend_per_day": True,
            "lmit": 3,
            "worker": 7,
        },
        {
            "review-code": {"concurrency": "many", "overflow": "wait", "priority": 10, "concurency": 2},
            "clean-up": {"overflow": "drop", "max_queue": 3},
            "write-docs": 5,
        },
    )
    assert [f"{problem.message} {problem.hint}" for problem in problems] == [
        "service.limit must be a whole number of 1 or more, not 0 ",
        "service.rates.claude must be a rate, not 'often' Write 30/min, 5/s or 1/10s, with at most 1,000 calls.",
        "the name 'a b' is not accepted It is not the name of an agent.",
        "service.spend_per_day must be an amount of dollars, not true Write a number such as 20 or 7.5.",
        "'lmit' is not a key of service Did you mean 'limit'? Keys: limit, rates, spend_per_day, worker.",
        "service.worker must be a mapping, not 7 ",
        "workflows.review-code.concurrency must be a whole number of 1 or more, not 'many' ",
        "workflows.review-code.overflow must be one of queue, drop, not 'wait' ",
        "workflows.review-code.priority must be a whole number from 0 to 9, not 10 ",
        "'concurency' is not a key of a workflow Did you mean 'concurrency'? "
        "Keys: concurrency, overflow, max_queue, priority, triggers.",
        "nothing waits where overflow is drop Leave one of them out.",
        "workflows.write-docs must be a mapping, not 5 ",
    ]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1, "20"])
def test_a_spending_limit_is_an_amount(value: Any) -> None:
    policy, problems = read({"spend_per_day": value}, None)
    assert policy.spend_per_day is None
    assert len(problems) == 1


def test_what_is_wrong_counts_as_not_said() -> None:
    policy, problems = read("all of it", {"review-code": {"concurrency": True, "max_queue": -1}})
    assert len(problems) == 3
    assert policy == ServicePolicy(workflows={"review-code": WorkflowPolicy()})
