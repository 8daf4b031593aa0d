"""Admission as what it is, a function: of any policy, any state and any time."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolecall.service.admission import DAY_MS, Admission, Due, QueueState, Waiting, decide, turn_of
from rolecall.service.policy import ServicePolicy, StartRate, WorkflowPolicy

NOW = 1_790_000_000_000
WORKFLOWS = ("clean-up", "review-code", "write-docs")
AGENTS = ("", "claude", "command:prog --fast")


def waiting(thread: str, workflow: str = "review-code", since: int = 0, **more: Any) -> Waiting:
    return Waiting(thread, workflow, more.pop("priority", 0), NOW + since, **more)


def policy(limit: int = 100, **rules: Any) -> ServicePolicy:
    """`review_code=…` is the rule of that workflow; the rest are fields of the policy."""
    workflows = {
        name.replace("_", "-"): rule for name, rule in rules.items() if isinstance(rule, WorkflowPolicy)
    }
    return ServicePolicy(
        limit=limit,
        workflows=workflows,
        **{key: value for key, value in rules.items() if not isinstance(value, WorkflowPolicy)},
    )


# -- examples --


def test_as_many_are_admitted_as_the_workflow_may_run_and_the_rest_are_told_why_they_wait() -> None:
    verdict = decide(
        policy(review_code=WorkflowPolicy(concurrency=3)),
        QueueState([waiting(name) for name in "dcba"], admitted={"review-code": 1}),
        NOW,
    )
    assert verdict.admit == ("a", "b")
    assert set(verdict.wait) == {"c", "d"}
    assert verdict.wait["c"] == "review-code has 3 threads running (concurrency 3)"
    assert verdict.look_again_at is None


def test_a_workflow_that_is_not_named_runs_one_thread_at_a_time() -> None:
    verdict = decide(
        ServicePolicy(), QueueState([waiting("a"), waiting("b"), waiting("c", "write-docs")]), NOW
    )
    assert verdict.admit == ("a", "c")


def test_the_higher_priority_comes_first_and_of_one_priority_who_came_first() -> None:
    crowd = [
        waiting("late", since=5),
        waiting("early", since=1),
        waiting("urgent", since=9, priority=7),
        waiting("other", "write-docs", since=3),
    ]
    roomy = WorkflowPolicy(concurrency=9)
    verdict = decide(policy(limit=3, review_code=roomy, write_docs=roomy), QueueState(crowd), NOW)
    assert verdict.admit == ("urgent", "early", "other")
    assert verdict.wait == {"late": "the service has 3 threads running (limit 3)"}


def test_a_full_workflow_stands_in_nobody_elses_way() -> None:
    crowd = [waiting("first", "clean-up", priority=9), waiting("second", since=1)]
    verdict = decide(policy(), QueueState(crowd, admitted={"clean-up": 1}), NOW)
    assert verdict.admit == ("second",)


def test_the_oldest_of_those_that_wait_is_discarded_when_too_many_do() -> None:
    rule = WorkflowPolicy(concurrency=1, max_queue=2)
    crowd = [waiting(name, since=at) for at, name in enumerate("abcde")]
    verdict = decide(policy(review_code=rule), QueueState(crowd), NOW)
    assert verdict.admit == ("a",)
    assert list(verdict.discard) == ["b", "c"]
    assert verdict.discard["b"] == "more than 2 threads of review-code were waiting (max_queue 2)"
    assert set(verdict.wait) == {"d", "e"}


def test_of_different_priorities_the_lowest_is_discarded_first() -> None:
    rule = WorkflowPolicy(concurrency=1, max_queue=1)
    crowd = [waiting("urgent", since=0, priority=5), waiting("old", since=1), waiting("new", since=2)]
    verdict = decide(policy(review_code=rule), QueueState(crowd, admitted={"review-code": 1}), NOW)
    assert list(verdict.discard) == ["old", "new"]
    assert list(verdict.wait) == ["urgent"]


def test_where_overflow_is_drop_what_comes_while_it_is_busy_is_discarded() -> None:
    rule = WorkflowPolicy(concurrency=1, overflow="drop")
    verdict = decide(
        policy(clean_up=rule), QueueState([waiting("a", "clean-up"), waiting("b", "clean-up")]), NOW
    )
    assert verdict.admit == ("a",)
    assert verdict.discard == {"b": "clean-up was busy (concurrency 1, overflow drop)"}
    busy = QueueState([waiting("c", "clean-up")], admitted={"clean-up": 1})
    assert list(decide(policy(clean_up=rule), busy, NOW).discard) == ["c"]


@pytest.mark.parametrize("rule", [WorkflowPolicy(overflow="drop"), WorkflowPolicy(max_queue=0)])
def test_a_thread_that_was_begun_waits_whatever_becomes_of_those_that_were_not(rule: WorkflowPolicy) -> None:
    crowd = [waiting("new", since=1), waiting("resumed", is_begun=True), waiting("newest", since=2)]
    verdict = decide(policy(review_code=rule), QueueState(crowd, admitted={"review-code": 1}), NOW)
    assert set(verdict.discard) == {"new", "newest"}
    assert set(verdict.wait) == {"resumed"}


def test_where_overflow_is_drop_a_thread_waits_for_room_that_others_take() -> None:
    rule = WorkflowPolicy(concurrency=1, overflow="drop")
    full = QueueState(
        [waiting("a", "clean-up"), waiting("b", "clean-up", since=1)], admitted={"write-docs": 1}
    )
    verdict = decide(policy(limit=1, clean_up=rule), full, NOW)
    assert verdict.admit == ()
    assert set(verdict.wait) == {"a"}
    assert set(verdict.discard) == {"b"}


def test_an_agent_called_often_enough_is_waited_for_until_the_oldest_call_is_old() -> None:
    given = policy(rates={"claude": StartRate(2, 60)}, review_code=WorkflowPolicy(concurrency=9))
    crowd = [waiting("a", agent="claude"), waiting("b", agent="codex", since=1)]
    state = QueueState(crowd, calls={"claude": [NOW - 59_000, NOW - 10_000]})
    verdict = decide(given, state, NOW)
    assert verdict.admit == ("b",)
    assert verdict.wait == {"a": "claude has reached its call rate (2/min)"}
    assert verdict.look_again_at == NOW + 1_000
    assert decide(given, state, NOW + 1_000).admit == ("a", "b")
    assert decide(given, state, NOW + 999).admit == ("b",)


def test_a_rate_goes_by_the_kind_of_an_agent_where_its_whole_name_is_not_named() -> None:
    given = policy(rates={"command": StartRate(1, 60)}, review_code=WorkflowPolicy(concurrency=9))
    crowd = [waiting("a", agent="command:one"), waiting("b", agent="command:two", since=1)]
    assert decide(given, QueueState(crowd), NOW).admit == ("a",)


def test_threads_that_run_call_their_agents_before_new_ones_do() -> None:
    given = policy(rates={"claude": StartRate(2, 60)}, review_code=WorkflowPolicy(concurrency=9))
    state = QueueState(
        [waiting("new", agent="claude", priority=9)],
        admitted={"review-code": 3},
        due=[Due("c", 3, "claude"), Due("a", 1, "claude"), Due("b", 2, "claude"), Due("free", 4)],
    )
    verdict = decide(given, state, NOW)
    assert verdict.step == ("a", "b", "free")
    assert verdict.admit == ()
    assert set(verdict.wait) == {"c", "new"}


def test_when_the_day_is_spent_nothing_is_admitted_before_midnight_and_what_runs_goes_on() -> None:
    given = policy(spend_per_day=5.0)
    state = QueueState([waiting("a")], due=[Due("b", 0)], spent=5.0)
    verdict = decide(given, state, NOW)
    assert verdict.step == ("b",)
    assert verdict.admit == ()
    assert verdict.wait == {"a": "$5.00 was spent today (spend_per_day 5)"}
    assert verdict.look_again_at is not None
    assert verdict.look_again_at % DAY_MS == 0
    assert 0 < verdict.look_again_at - NOW <= DAY_MS
    assert decide(given, replace(state, spent=4.99), NOW).admit == ("a",)


@pytest.mark.parametrize("ahead", [1, 59_999, 60_000, 10**9])
def test_a_clock_that_was_set_back_does_not_keep_an_agent_from_being_called_for_long(ahead: int) -> None:
    given = policy(rates={"claude": StartRate(1, 60)})
    verdict = decide(given, QueueState([waiting("a", agent="claude")], calls={"claude": [NOW + ahead]}), NOW)
    if ahead >= 60_000:
        assert verdict.admit == ("a",)
    else:
        assert verdict.look_again_at is not None and verdict.look_again_at - NOW < 120_000


# -- of any policy and any state --

rules = st.builds(
    WorkflowPolicy,
    concurrency=st.integers(-1, 4),
    overflow=st.sampled_from(["queue", "queue", "drop"]),
    max_queue=st.none() | st.integers(-1, 4),
    priority=st.integers(0, 9),
)
policies = st.builds(
    ServicePolicy,
    limit=st.integers(-1, 8),
    workflows=st.dictionaries(st.sampled_from(WORKFLOWS), rules),
    default=rules,
    rates=st.dictionaries(
        st.sampled_from(["claude", "command"]), st.builds(StartRate, st.integers(0, 3), st.integers(1, 90))
    ),
    spend_per_day=st.none() | st.floats(0, 10),
)
crowds = st.lists(
    st.builds(
        Waiting,
        thread=st.text("abcdef", min_size=1, max_size=4),
        workflow=st.sampled_from(WORKFLOWS),
        priority=st.integers(0, 3),
        since=st.integers(NOW - 20, NOW),
        agent=st.sampled_from(AGENTS),
        is_begun=st.booleans(),
    ),
    max_size=14,
    unique_by=lambda one: one.thread,
)
states = st.builds(
    QueueState,
    waiting=crowds,
    admitted=st.dictionaries(st.sampled_from(WORKFLOWS), st.integers(0, 4)),
    due=st.lists(
        st.builds(Due, st.text("uvwxyz", min_size=1, max_size=3), st.integers(0, 9), st.sampled_from(AGENTS)),
        max_size=5,
        unique_by=lambda due: due.thread,
    ),
    calls=st.dictionaries(
        st.sampled_from(["claude", "command"]), st.lists(st.integers(NOW - 100_000, NOW + 5), max_size=4)
    ),
    spent=st.floats(0, 12),
)


@given(policies, states)
def test_neither_a_workflow_nor_the_service_ever_runs_more_than_it_may(
    given: ServicePolicy, state: QueueState
) -> None:
    verdict = decide(given, state, NOW)
    by_name = {one.thread: one for one in state.waiting}
    admitted = Counter(by_name[thread].workflow for thread in verdict.admit)
    for workflow, count in admitted.items():
        assert count + state.admitted.get(workflow, 0) <= given.of(workflow).concurrency
    if admitted:
        assert admitted.total() + sum(state.admitted.values()) <= given.limit


@given(policies, states)
def test_every_thread_has_exactly_one_answer(given: ServicePolicy, state: QueueState) -> None:
    verdict = decide(given, state, NOW)
    answers = [*verdict.step, *verdict.admit, *verdict.discard, *verdict.wait]
    asked = [one.thread for one in state.waiting] + [due.thread for due in state.due]
    assert sorted(answers) == sorted(asked)
    assert all(verdict.wait.values()) and all(verdict.discard.values())


@given(policies, states, st.randoms())
def test_the_answer_does_not_depend_on_the_order_in_which_the_state_is_told(
    given: ServicePolicy, state: QueueState, chance: Any
) -> None:
    crowd, due = list(state.waiting), list(state.due)
    chance.shuffle(crowd)
    chance.shuffle(due)
    assert decide(given, replace(state, waiting=crowd, due=due), NOW) == decide(given, state, NOW)


@given(policies, states)
def test_nobody_is_passed_over_by_a_thread_of_the_same_workflow_and_agent_that_comes_later(
    given: ServicePolicy, state: QueueState
) -> None:
    admitted = set(decide(given, state, NOW).admit)
    order = sorted(state.waiting, key=turn_of)
    for place, one in enumerate(order):
        if one.thread not in admitted:
            behind = [
                late for late in order[place:] if (late.workflow, late.agent) == (one.workflow, one.agent)
            ]
            assert not admitted & {late.thread for late in behind}


@given(policies, states)
def test_those_admitted_are_in_the_order_of_their_turns(given: ServicePolicy, state: QueueState) -> None:
    verdict = decide(given, state, NOW)
    order = [one.thread for one in sorted(state.waiting, key=turn_of)]
    assert [thread for thread in order if thread in verdict.admit] == list(verdict.admit)


@given(policies, states)
def test_no_more_wait_than_may_and_none_of_those_is_older_than_one_that_was_kept(
    given: ServicePolicy, state: QueueState
) -> None:
    verdict = decide(given, state, NOW)
    for workflow in WORKFLOWS:
        rule = given.of(workflow)
        of_it = [one for one in state.waiting if one.workflow == workflow]
        kept = [one for one in of_it if one.thread in verdict.wait and not one.is_begun]
        gone = [one for one in of_it if one.thread in verdict.discard]
        assert not any(one.is_begun for one in gone)
        if rule.overflow == "drop":
            busy = state.admitted.get(workflow, 0) + sum(one.thread in verdict.admit for one in of_it)
            assert len(kept) <= max(0, rule.concurrency - busy)
        elif rule.max_queue is None:
            assert gone == []
        else:
            assert len(kept) <= max(0, rule.max_queue)
            assert gone == [] or len(kept) == max(0, rule.max_queue)
            rank = sorted(gone + kept, key=lambda one: (one.priority, one.since, one.thread))
            assert {one.thread for one in rank[: len(gone)]} == {one.thread for one in gone}


@given(policies, states)
def test_nobody_waits_without_need(given: ServicePolicy, state: QueueState) -> None:
    """Whoever is left waiting would break a limit if it were admitted as well."""
    verdict = decide(given, state, NOW)
    by_name = {one.thread: one for one in state.waiting}
    admitted = Counter(state.admitted) + Counter(by_name[thread].workflow for thread in verdict.admit)
    for one in (by_name[thread] for thread in verdict.wait if thread in by_name):
        is_full = admitted[one.workflow] >= given.of(one.workflow).concurrency
        is_crowded = admitted.total() >= given.limit
        is_spent = given.spend_per_day is not None and state.spent >= given.spend_per_day
        assert is_full or is_crowded or is_spent or given.meter(one.agent)


@given(policies, states)
def test_where_time_alone_brings_an_answer_it_says_when_to_look_again(
    given: ServicePolicy, state: QueueState
) -> None:
    verdict = decide(given, state, NOW)
    if verdict.look_again_at is None:
        later = decide(given, state, NOW + 2 * DAY_MS)
        if given.spend_per_day is None or state.spent < given.spend_per_day:
            callable_ever = all(rate.count > 0 for rate in given.rates.values())
            assert not callable_ever or (later.step, later.admit) == (verdict.step, verdict.admit)
    else:
        assert verdict.look_again_at > NOW
        refused = [reason for reason in verdict.wait.values() if "call rate" in reason or "spent" in reason]
        assert refused or any("drop" in reason or "max" in reason for reason in verdict.discard.values())


@settings(max_examples=60)
@given(
    st.builds(StartRate, st.integers(1, 4), st.integers(1, 5)),
    st.lists(st.integers(0, 1500), min_size=1, max_size=40),
)
def test_no_window_of_a_rate_ever_holds_more_calls_than_it_may_and_all_come_through(
    rate: StartRate, gaps: list[int]
) -> None:
    """A service that looks again exactly when it is told to, with threads arriving in between."""
    given = ServicePolicy(limit=1000, default=WorkflowPolicy(concurrency=1000), rates={"claude": rate})
    arrivals = [NOW + sum(gaps[:count]) for count in range(len(gaps))]
    called: list[int] = []
    now = arrivals[0]
    while len(called) < len(arrivals):
        crowd = [
            waiting(f"{place:03}", since=at - NOW, agent="claude")
            for place, at in enumerate(arrivals)
            if at <= now
        ][len(called) :]
        verdict = decide(given, QueueState(crowd, calls={"claude": called}), now)
        called += [now] * len(verdict.admit)
        coming = [at for at in arrivals if at > now]
        now = min(filter(None, [verdict.look_again_at, *coming[:1]]), default=now)
    for at in called:
        assert sum(at <= other < at + rate.per_seconds * 1000 for other in called) <= rate.count
    # No call came later than it had to: it was the thread's arrival, or the window had just made room.
    for place, at in enumerate(called):
        window = called[place - rate.count] + rate.per_seconds * 1000 if place >= rate.count else 0
        assert at == max(arrivals[place], window)


@settings(max_examples=60)
@given(policies, st.lists(crowds, max_size=6), st.randoms())
def test_over_a_whole_life_nothing_is_above_its_limit_and_what_can_run_runs(
    given: ServicePolicy, waves: list[list[Waiting]], chance: Any
) -> None:
    given = replace(given, rates={}, spend_per_day=None)
    running: dict[str, str] = {}
    queue: list[Waiting] = []
    names = 0

    def tick(wave: list[Waiting]) -> None:
        nonlocal names, queue
        for one in wave:
            names += 1
            queue.append(replace(one, thread=f"{names:04}"))
        verdict = decide(given, QueueState(queue, admitted=Counter(running.values())), NOW)
        running.update({one.thread: one.workflow for one in queue if one.thread in verdict.admit})
        queue = [one for one in queue if one.thread in verdict.wait]
        assert len(running) <= max(0, given.limit)
        for workflow, count in Counter(running.values()).items():
            assert count <= given.of(workflow).concurrency

    for wave in waves:
        for thread in [thread for thread in running if chance.random() < 0.5]:
            del running[thread]
        tick(wave)
    while running:
        running.clear()
        tick([])
    # Nothing runs any more, so nothing is left but what may never run.
    assert [one for one in queue if given.limit > 0 and given.of(one.workflow).concurrency > 0] == []


def test_the_empty_question_has_the_empty_answer() -> None:
    assert decide(ServicePolicy(), QueueState(), NOW) == Admission()
