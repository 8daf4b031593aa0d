"""Which tasks can begin, and why the others cannot: values, for every graph."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as some

from rolecall.plan_run.schedule import Clash, Want, choose_startable, explain_hopeless, outlook, reasons

NUMBERS: some.SearchStrategy[float] = some.integers(1, 12)
AT_WORK = some.dictionaries(NUMBERS, some.frozensets(some.sampled_from("abc")))
GRAPHS = some.dictionaries(
    NUMBERS,
    some.tuples(
        some.lists(NUMBERS, max_size=3).map(tuple), some.frozensets(some.sampled_from("abc")), some.booleans()
    ),
).map(lambda found: [Want(number, *fields) for number, fields in found.items()])


def wants(*rows: tuple[int, tuple[int, ...], str]) -> list[Want]:
    return [Want(number, deps, frozenset(files)) for number, deps, files in rows]


def test_what_is_ready_starts_in_the_order_of_the_list_up_to_the_limit() -> None:
    found = choose_startable(
        wants((3, (), ""), (1, (), ""), (2, (9,), ""), (4, (), "")), done=(), running={}, at_once=2
    )
    assert found.start == (3, 1)


def test_a_task_that_has_begun_goes_first_and_asks_for_nothing() -> None:
    rows = [Want(1), Want(2, (1,), is_begun=True)]
    assert choose_startable(rows, done=(), running={}, at_once=1).start == (2,)


def test_the_same_file_is_written_by_one_at_a_time() -> None:
    rows = wants((1, (), "a"), (2, (), "ab"), (3, (), "b"), (4, (), "c"))
    found = choose_startable(rows, done=(), running={9: frozenset("c")}, at_once=9)
    assert list(found.start) == [1, 3]
    assert found.clashes == {2: Clash("a", 1), 4: Clash("c", 9)}


def test_every_reason_is_told() -> None:
    rows = wants((1, (), "a"), (2, (), "a"), (3, (1,), ""), (4, (), ""), (5, (7, 8), ""))
    others: dict[float, str] = {7: "is Lead's", 8: "waits for a person"}
    assert reasons(rows, done=(), running={1: frozenset("a")}, at_once=2, others=others) == {
        2: "same file a as task 1",
        3: "waits for 1",
        5: "waits for 7, which is Lead's; for 8, which waits for a person",
    }
    assert reasons(rows, done=(), running={1: frozenset("a"), 6: frozenset()}, at_once=2, others=others)[
        4
    ] == ("waits for one of the 2 that may run at once")


def test_what_can_never_begin_is_told_with_its_root() -> None:
    rows = wants(
        (1, (2,), ""), (2, (3,), ""), (3, (2,), ""), (4, (9,), ""), (5, (4,), ""), (6, (6,), ""), (7, (), "")
    )
    assert explain_hopeless(rows, known=()) == {
        1: "waits for 2, which can never begin",
        2: "waits for itself: 2 -> 3 -> 2",
        3: "waits for itself: 3 -> 2 -> 3",
        4: "waits for 9, which does not exist",
        5: "waits for 4, which can never begin",
        6: "waits for itself: 6 -> 6",
    }


@given(GRAPHS, some.integers(1, 4), some.sets(NUMBERS))
def test_an_outlook_ends_and_accounts_for_every_task(
    graph: list[Want], at_once: int, done: set[float]
) -> None:
    open_wants = [want for want in graph if want.id not in done]
    found = outlook(open_wants, done=done, at_once=at_once, others={})
    started = [number for wave in found.waves for number in wave]
    assert len(started) == len(set(started))
    assert set(started).isdisjoint(found.left)
    assert {*started, *found.left} == {want.id for want in open_wants}
    by_id = {want.id: want for want in open_wants}
    over = set(done)
    for wave in found.waves:
        assert len(wave) <= at_once
        assert all(by_id[number].is_begun or over.issuperset(by_id[number].deps) for number in wave)
        files = [file for number in wave for file in by_id[number].files]
        assert len(files) == len(set(files))
        over.update(wave)
    assert set(found.left) == set(explain_hopeless(open_wants, known=done))
    assert all(found.left.values())


@given(GRAPHS, some.integers(1, 4), some.sets(NUMBERS), AT_WORK)
def test_nothing_starts_that_clashes_or_is_not_ready(
    graph: list[Want], at_once: int, done: set[float], running: dict[float, frozenset[str]]
) -> None:
    now = choose_startable(graph, done=done, running=running, at_once=at_once)
    held = {file for files in running.values() for file in files}
    by_id = {want.id: want for want in graph}
    for number in now.start:
        assert number not in running
        assert not held & by_id[number].files
        held |= by_id[number].files
    assert len(now.start) <= max(0, at_once - len(running))
    reported = reasons(graph, done=done, running=running, at_once=at_once, others={})
    assert set(reported) == {want.id for want in graph} - set(now.start) - set(running)


@pytest.mark.parametrize("at_once", [1, 3, 50])
def test_a_thousand_tasks_of_depth_fifty_are_no_work(at_once: int) -> None:
    rows = [
        Want(
            number, tuple(range(number - 20, number)) if number > 20 else (), frozenset({f"f{number % 300}"})
        )
        for number in range(1, 1001)
    ]
    started = time.process_time()
    found = outlook(rows, done=(), at_once=at_once, others={})
    assert sum(map(len, found.waves)) == 1000
    assert time.process_time() - started < 2


def test_a_hundred_thousand_tasks_in_one_row_do_not_end_in_a_recursion() -> None:
    rows = [Want(number, (number + 1,)) for number in range(100_000)]
    found = explain_hopeless(rows, known=())
    assert found[99_999] == "waits for 100000, which does not exist"
    assert len(found) == 100_000
