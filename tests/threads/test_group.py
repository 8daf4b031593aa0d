"""What a group does next, decided from how its members stand."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rolecall.threads.group import Decision, Fate, GroupProgress, fate_of, load_progress, plan
from rolecall.threads.state import RESUME, Status, ThreadState, raise_limit
from rolecall.workflow.model import Group


def decide(progress: GroupProgress, *, now: int = 0, deadline: int | None = None, **words: Any) -> Decision:
    limits = {key: words.pop(key) for key in ("limits", "used", "own") if key in words}
    return plan(Group(**{"times": progress.count, **words}), progress, now=now, deadline=deadline, **limits)


def progress(count: int, *fates: str, **fields: Any) -> GroupProgress:
    """The members 1, 2, … with these fates, and the rest not started."""
    made = GroupProgress(count, next=len(fates) + 1, **fields)
    for number, fate in enumerate(fates, 1):
        made.note(number, Fate(fate), amounts={}, reason="it broke" if fate == "failed" else "")
    return made


def test_as_many_start_as_run_at_once() -> None:
    assert list(decide(progress(20), at_once=3).start) == [1, 2, 3]
    assert list(decide(progress(20, "open", "done"), at_once=3).start) == [3, 4]
    assert list(decide(progress(2), at_once=3).start) == [1, 2]
    assert decide(progress(20, "open", "open", "open"), at_once=3) == Decision()


def test_a_member_that_waits_for_a_person_leaves_room_for_others() -> None:
    assert list(decide(progress(9, "waits", "waits"), at_once=2).start) == [3, 4]
    assert decide(progress(2, "waits", "done"), at_once=2) == Decision()


def test_all_are_waited_for_and_an_empty_group_joins_at_once() -> None:
    assert decide(progress(0)).join
    assert decide(progress(3, "done", "failed", "stopped")).join
    for join in ("all", "any", 1):
        assert not decide(progress(3, "done", "done", "open"), join=join).join


def test_the_first_stops_the_others() -> None:
    decision = decide(progress(5, "failed", "open", "done", "waits"), join="first")
    assert decision.join and decision.stop and not decision.start
    assert not decide(progress(5, "failed", "open"), join="first").stop


def test_a_failure_stops_the_others_if_the_workflow_says_so() -> None:
    assert not decide(progress(3, "failed", "open")).stop
    decision = decide(progress(3, "failed", "open"), on_failure="stop")
    assert decision.join and "it broke" in decision.stop


def test_a_deadline_stops_what_is_unfinished() -> None:
    assert not decide(progress(3, "open"), deadline=100, now=99).stop
    passed = plan(Group(times=3, deadline=5), progress(3, "open"), now=100, deadline=100)
    assert passed.join and "5 minutes" in passed.stop
    assert not plan(Group(times=1, deadline=5), progress(1, "done"), now=100, deadline=100).stop


# -- failing alike --


def failing(*reasons: str, count: int = 10) -> GroupProgress:
    made = GroupProgress(count, next=len(reasons) + 1)
    for number, reason in enumerate(reasons, 1):
        fate = Fate.FAILED if reason else Fate.DONE
        made.note(number, fate, amounts={}, reason=reason)
    return made


def test_three_that_fail_alike_start_no_more_and_suspend_once_the_running_have_ended() -> None:
    alike = failing("a: login 17 of 01M7HQXYHA01YFDA30JWMPVHEQ expired", "b: login 5 of X expired", "")
    assert decide(alike).start
    made = failing(*(f"role{n}: login {n} of 01M7HQXYHA01YFDA30JWMPVHE{n} expired" for n in (1, 2, 3)))
    made.note(4, Fate.OPEN, amounts={})
    made.next = 5
    assert decide(made) == Decision()
    made.note(4, Fate.DONE, amounts={})
    assert "login 3" in decide(made).suspend


def test_other_reasons_or_nobody_left_to_start_break_nothing() -> None:
    assert decide(failing("x: one", "x: two", "x: one")).start
    assert decide(failing("", "x: one", "x: one", "x: one")).start
    assert decide(failing("x: one", "x: one", "x: one", count=3)).join


# -- limits --


def test_a_share_of_what_is_left_is_reserved_for_each() -> None:
    decision = decide(progress(9), at_once=4, limits={"tokens": 100, "cost": 1.0}, used={"tokens": 20})
    assert decision.start == {number: {"tokens": 20, "cost": 0.25} for number in (1, 2, 3, 4)}
    made = progress(9, "open")
    made.note(1, Fate.OPEN, amounts={"tokens": 60})
    assert decide(made, at_once=2, limits={"tokens": 100}).start == {2: {"tokens": 40}}


def test_the_limit_of_its_role_is_what_a_member_gets() -> None:
    own = {"tokens": 30}
    decision = decide(progress(9), at_once=4, limits={"tokens": 100}, own=lambda _number: own)
    assert [amounts["tokens"] for amounts in decision.start.values()] == [30, 30, 30, 10]


def test_what_cannot_be_divided_is_given_whole() -> None:
    decision = decide(progress(9), at_once=8, limits={"steps": 3})
    assert decision == Decision({number: {"steps": 1} for number in (1, 2, 3)}, lacks="steps")


def test_no_two_spend_the_last_cent() -> None:
    made = progress(100)
    given = 0.0
    while start := decide(made, at_once=8, limits={"cost": 1.0}).start:
        for number, amounts in start.items():
            made.next = number + 1
            made.note(number, Fate.DONE, amounts={"cost": amounts["cost"] / 2})
            given += amounts["cost"] / 2
    assert given <= 1.0 + 1e-6


def test_with_nothing_left_the_group_is_suspended_when_nobody_runs() -> None:
    made = progress(5)
    made.note(1, Fate.DONE, amounts={"tokens": 100})
    made.next = 2
    decision = decide(made, limits={"tokens": 100})
    assert decision.lacks == "tokens" and "limit on tokens" in decision.suspend
    made.note(2, Fate.OPEN, amounts={})
    assert decide(made, limits={"tokens": 100}) == Decision({}, lacks="tokens")


def test_a_member_short_of_its_share_goes_on_with_more() -> None:
    made = progress(2, "done")
    made.note(2, Fate.SHORT, amounts={"tokens": 50})
    made.next = 3
    assert decide(made, limits={"tokens": 80}).start == {2: {"tokens": 80}}


def test_a_group_that_lacks_something_starts_no_more() -> None:
    made = progress(5, "open", lacks="tokens")
    assert decide(made, limits={"tokens": 100}) == Decision()
    made.note(1, Fate.DONE, amounts={})
    assert decide(made, limits={"tokens": 100}).suspend


# -- fates --


@pytest.mark.parametrize(
    ("state", "fate"),
    [
        (ThreadState(Status.QUEUED), "open"),
        (ThreadState(Status.RUNNING), "open"),
        (ThreadState(Status.COMPLETED), "done"),
        (ThreadState(Status.FAILED), "failed"),
        (ThreadState(Status.KILLED), "stopped"),
        (ThreadState(Status.SUSPENDED), "waits"),
        (ThreadState(Status.SUSPENDED, onward=None), "waits"),
        (ThreadState(Status.SUSPENDED, onward=RESUME), "failed"),
        (ThreadState(Status.SUSPENDED, onward=raise_limit("tokens=200")), "short"),
        (ThreadState(Status.SUSPENDED, onward=raise_limit("reviewer.tokens=200")), "failed"),
    ],
)
def test_the_fate_of_a_member_follows_from_its_state(state: ThreadState, fate: str) -> None:
    assert fate_of(state) == fate


def test_a_standing_is_stored_and_read_again() -> None:
    made = progress(9, "open", "waits", "short", "done", "failed", "stopped")
    made.note(1, Fate.OPEN, amounts={"tokens": 5})
    assert load_progress(json.loads(json.dumps(made.dump()))) == made


def test_failures_before_a_resume_do_not_stop_the_group_again() -> None:
    made = GroupProgress(10, next=4)
    for number in (1, 2, 3):
        made.note(number, Fate.FAILED, amounts={}, reason="worker: broken", is_new=False)
    assert list(plan(Group(times=10, at_once=2), made, now=0).start) == [4, 5]
