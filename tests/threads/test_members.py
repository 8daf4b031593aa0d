"""A role that is played by a group: its members are threads, and one step joins them."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from stage import (
    answer,
    assert_sound,
    assert_whole,
    book,
    engine,
    events,
    open_store,
    run,
    start,
    state,
    steps,
)

from rolecall.agents.adapters.subworkflow import workflow
from rolecall.agents.protocol import Reply, Usage
from rolecall.errors import AgentError, NotFound, UsageError
from rolecall.settings.mask import Mask
from rolecall.store.store import Store
from rolecall.threads import commit, killing, lifecycle, members, thread
from rolecall.threads.engine import HUMAN, Cast, Engine
from rolecall.threads.prompt import ShownStep
from rolecall.threads.state import ThreadRef, group_name, read_members, read_threads
from rolecall.threads.steps_above import StepsAbove
from rolecall.threads.thread import Chain
from rolecall.workflow import registry

FLOW = """
name: fan-out
description: Reviews each file
roles:
  lister:
    goal: List the files.
    schema:
      type: object
      properties: {$status: {enum: [listed]}, files: {type: array}}
      required: [$status, files]
  reviewer:
    each: steps[-1].output.files
    at_once: %(at_once)s
    workdir: shared
    %(more)s
    goal: Review {{item}}, which is {{number}} of {{count}}.
    schema: &review
      type: object
      properties: {$status: {enum: [fine, poor]}, note: {type: string}}
      required: [$status]
  judge:
    goal: Judge.
    schema: {type: object, properties: {$status: {enum: [good]}}, required: [$status]}
graph:
  $START: lister
  lister: {listed: {role: reviewer, prompt: "Look well."}}
  reviewer: {done: judge, partly: judge, failed: {role: $FAIL, prompt: nobody}}
  judge: {good: $END}
%(limits)s
"""


TEAM_OF_BOTH = """
name: both
description: A program and a person, whoever is first
roles:
  program: &member
    goal: Write.
    workdir: shared
    schema: {type: object, properties: {$status: {enum: [fine]}}, required: [$status]}
  person: *member
  both: {roles: [program, person], join: first}
graph: {$START: both, both: {done: $END, partly: $END, failed: $FAIL}}
"""


def flow(*, at_once: int = 8, more: str = "join: all", limits: str = "") -> Any:
    return book(FLOW % {"at_once": at_once, "more": more, "limits": limits})


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path / "store.db") as opened:
        yield opened


Review = Callable[[str, Any], Any]


def cast_of(review: Review, files: Any = ("a", "b", "c")) -> dict[str, Any]:
    """Agents: one lists `files`, `review` is asked for each with the number of the member, one judges."""

    async def lister(_prompt: str, _context: Any) -> str:
        listed = ", ".join(str(file) for file in files) if not isinstance(files, str) else files
        return f"---\n$status: listed\nfiles: [{listed}]\n---\nHere they are.\n"

    async def reviewer(prompt: str, context: Any) -> Any:
        said = review(prompt, context)
        return await said if asyncio.iscoroutine(said) else said

    async def judge(_prompt: str, _context: Any) -> str:
        return answer("good")

    return {"lister": lister, "reviewer": reviewer, "judge": judge}


def fine(_prompt: str, _context: Any) -> str:
    return answer("fine")


def number_in(prompt: str) -> int:
    return int(prompt.partition("which is ")[2].partition(" ")[0])


def members_of(store: Store, name: str) -> list[ThreadRef]:
    found = [ref for ref in read_threads(store) if ref.state.parent == name]
    return sorted(found, key=lambda ref: ref.state.member or 0)


def joined(store: Store, name: str) -> dict[str, Any]:
    step = next(step for step in steps(store, name) if step.agent == "group")
    output: dict[str, Any] = step.output
    return output


def test_members_are_not_shown_the_list_that_they_come_from(store: Store, tmp_path: Path) -> None:
    prompts: dict[int, str] = {}

    def review(prompt: str, _context: Any) -> str:
        prompts[number_in(prompt)] = prompt
        return answer("fine")

    files = [f"file-{number}.py" for number in range(1, 4)]
    name = start(store, flow(), tmp_path / "work")
    run(engine(store, cast_of(review, files)), name)
    assert len(prompts) == 3
    for number, prompt in prompts.items():
        assert f"Review file-{number}.py" in prompt
        assert ("file-2.py" in prompt) == (number == 2)
        assert "3" not in prompt.replace("of 3", "").replace("file-3.py, which is 3", "")
        assert "Here they are." in prompt
    # What was asked can be read again word for word.
    kept = {ref.state.member: Chain(store, ref.head).last for ref in members_of(store, name)}
    assert {number: step.prompt for number, step in kept.items() if step} == prompts


@pytest.mark.parametrize(
    ("each", "shown"),
    [
        ("steps[-1].output.plan.files", {"files": "left out", "rules": ["no tabs"]}),
        ("steps[-1].output.plan.files.name", {"files": "left out", "rules": ["no tabs"]}),
        ("steps[-1].output.plan.files[1 = 1]", {"files": "left out", "rules": "left out"}),
    ],
)
def test_other_lists_beside_that_of_the_items_are_shown(each: str, shown: Any) -> None:
    output = {"plan": {"rules": ["no tabs"], "files": [{"name": "a"}]}}
    step = SimpleNamespace(id="S", role="lister", output=output, past=ShownStep(1, "lister", output))
    [(_, past)] = StepsAbove(cast("Chain", [step]), each)
    reported = {
        key: value if isinstance(value, list) else "left out" for key, value in past.output["plan"].items()
    }
    assert reported == shown


def test_each_item_has_a_member_and_one_step_joins_them(store: Store, tmp_path: Path) -> None:
    prompts: dict[int, str] = {}

    def review(prompt: str, context: Any) -> str:
        prompts[number_in(prompt)] = prompt
        assert [step.role for step in context.steps] == ["lister"]
        return answer(
            "poor" if "Review b" in prompt else "fine", f"on {number_in(prompt)}", body="What I saw."
        )

    name = start(store, flow(), tmp_path / "work")
    outcomes = run(engine(store, cast_of(review)), name)
    assert [outcome.status for outcome in outcomes] == ["idle", "idle", "completed"]
    assert_whole(store, name)
    assert_sound(store)

    output = joined(store, name)
    assert {key: output[key] for key in ("status", "count", "done", "failed")} == {
        "status": "done", "count": 3, "done": 3, "failed": 0,
    }  # fmt: skip
    assert [(one["number"], one["item"], one["status"]) for one in output["members"]] == [
        (1, "a", "done"), (2, "b", "done"), (3, "c", "done"),
    ]  # fmt: skip
    assert [one["output"]["$status"] for one in output["members"]] == ["fine", "poor", "fine"]

    members = members_of(store, name)
    assert (
        [one["id"] for one in output["members"]]
        == [ref.id for ref in members]
        == sorted(ref.id for ref in members)
    )
    assert [(ref.state.member, ref.state.title) for ref in members] == [
        (1, "reviewer 1/3: a"), (2, "reviewer 2/3: b"), (3, "reviewer 3/3: c"),
    ]  # fmt: skip
    assert "# Task\n\nDo it" in prompts[2] and "Here they are." in prompts[2] and "Look well." in prompts[2]
    assert "Review b, which is 2 of 3." in prompts[2]
    step = steps(store, name)[1]
    assert "## reviewer 2/3: b\n\nWhat I saw." in step.body
    assert store.ref(group_name(name)) is None
    assert thread.read_roster(store, step.payload["group"]).size == 3


def test_the_prompt_of_a_member_is_that_of_a_plain_role(store: Store, tmp_path: Path) -> None:
    name = start(store, flow(), tmp_path / "work")
    run(engine(store, cast_of(fine)), name)
    [step] = steps(store, members_of(store, name)[0].id)
    assert step.number == 2
    assert "## Step 1: lister (test)" in step.prompt and "Here they are." in step.prompt


def test_no_more_run_at_once_than_the_group_allows(store: Store, tmp_path: Path) -> None:
    at_work, most = 0, 0

    async def review(_prompt: str, _context: Any) -> str:
        nonlocal at_work, most
        at_work += 1
        most = max(most, at_work)
        for _ in range(5):
            await asyncio.sleep(0)
        at_work -= 1
        return answer("fine")

    name = start(store, flow(at_once=3), tmp_path / "work")
    run(engine(store, cast_of(review, range(10))), name)
    assert most == 3
    assert joined(store, name)["done"] == 10


def test_an_empty_list_is_done_and_nobody_is_asked(store: Store, tmp_path: Path) -> None:
    name = start(store, flow(), tmp_path / "work")
    run(engine(store, cast_of(lambda *_: pytest.fail("asked"), [])), name)
    assert state(store, name)["status"] == "completed"
    assert joined(store, name) == {
        "status": "done", "members": [], "count": 0, "done": 0, "failed": 0, "stopped": 0, "set_aside": 0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("each", "more", "reason"),
    [
        ("steps[-2].output.files", "join: all", "gives nothing, not a list. Resuming"),
        ("'[start.prompt]'", "join: all", "item 1 has 1,000,0"),
        ("steps[-1].output.files", "join: {at_least: 4}", "only 3 items. Resuming"),
        ("steps[-1].output.files", "procedure: 'Read {{item.path}}.'", "member 1"),
    ],
)
def test_what_cannot_be_a_group_suspends_before_anybody_is_asked(
    store: Store, tmp_path: Path, each: str, more: str, reason: str
) -> None:
    text = FLOW % {"at_once": 8, "more": more, "limits": ""}
    made = book(text.replace("steps[-1].output.files", each))
    name = start(store, made, tmp_path / "work", "x" * 1_000_000)
    run(engine(store, cast_of(lambda *_: pytest.fail("asked"))), name)
    assert state(store, name)["status"] == "suspended"
    assert reason in state(store, name)["reason"]
    assert "or fork it with a corrected workflow" in state(store, name)["reason"]
    assert members_of(store, name) == [] and store.ref(group_name(name)) is None


def test_equal_items_are_different_members(store: Store, tmp_path: Path) -> None:
    name = start(store, flow(), tmp_path / "work")
    run(engine(store, cast_of(fine, ["a", "a"])), name)
    assert [one["item"] for one in joined(store, name)["members"]] == ["a", "a"]
    assert len({ref.id for ref in members_of(store, name)}) == 2


# -- teams and repetitions --

TEAM = """
name: team
description: Several at once
roles:
  team:
    roles: [backend, frontend]
    workdir: shared
  backend:
    goal: Build the back.
    schema: {type: object, properties: {back: {type: string}}, required: [back]}
  frontend:
    goal: Build the front.
    schema: {type: object, properties: {front: {type: integer}}, required: [front]}
graph: {$START: team, team: {done: $END, partly: $FAIL, failed: $FAIL}}
"""


def test_a_team_plays_its_roles_on_the_same_task(store: Store, tmp_path: Path) -> None:
    async def agent(prompt: str, context: Any) -> str:
        assert f"Build the {context.role.removesuffix('end')}." in prompt
        return "---\nback: b\n---\n" if context.role == "backend" else "---\nfront: 7\n---\n"

    name = start(store, book(TEAM), tmp_path / "work")
    run(engine(store, agent), name)
    assert [(one["role"], one["output"]) for one in joined(store, name)["members"]] == [
        ("backend", {"back": "b"}), ("frontend", {"front": 7}),
    ]  # fmt: skip


def test_members_take_the_agents_of_a_list_in_turn(store: Store, tmp_path: Path) -> None:
    made = book(FLOW.replace("each: steps[-1].output.files", "times: 3\n    agent: [codex, claude]").replace(
        "{{item}}, ", ", ") % {"at_once": 8, "more": "join: all", "limits": ""})  # fmt: skip
    chosen = []
    agents = cast_of(fine)

    def cast(played: Any, role: str) -> Cast:
        chosen.append((role, played.workflow.roles[role].agent))
        return Cast("test", agents[role])

    name = start(store, made, tmp_path / "work")
    run(engine(store, agents, cast=cast), name)
    assert [agent for role, agent in chosen if role == "reviewer"] == ["codex", "claude", "codex"]
    assert joined(store, name)["done"] == 3


# -- members that fail --


def failing(*numbers: int, reason: str = "it broke in {}") -> Review:
    def review(prompt: str, _context: Any) -> str:
        if number_in(prompt) in numbers:
            raise AgentError(reason.format(chr(96 + number_in(prompt))), ending="failed")
        return answer("fine")

    return review


def test_members_that_fail_are_told_with_their_reason(store: Store, tmp_path: Path) -> None:
    name = start(store, flow(), tmp_path / "work")
    run(engine(store, cast_of(failing(2))), name)
    output = joined(store, name)
    assert (output["status"], output["done"], output["failed"]) == ("partly", 2, 1)
    assert output["members"][1]["status"] == "failed" and "it broke" in output["members"][1]["reason"]
    assert members_of(store, name)[1].state.status == "suspended"


def test_a_group_without_a_result_fails(store: Store, tmp_path: Path) -> None:
    name = start(store, flow(), tmp_path / "work")
    run(engine(store, cast_of(failing(1, 2, 3))), name)
    assert joined(store, name)["status"] == "failed"
    assert state(store, name)["status"] == "failed"


@pytest.mark.parametrize(
    ("join", "status"), [("any", "done"), ("{at_least: 2}", "done"), ("{at_least: 3}", "partly")]
)
def test_the_join_says_how_many_are_enough(store: Store, tmp_path: Path, join: str, status: str) -> None:
    name = start(store, flow(more=f"join: {join}"), tmp_path / "work")
    run(engine(store, cast_of(failing(2))), name)
    assert joined(store, name)["status"] == status


def test_the_first_is_enough_and_the_others_are_stopped(store: Store, tmp_path: Path) -> None:
    async def review(prompt: str, context: Any) -> str:
        if number_in(prompt) == 2:
            return answer("fine")
        await context.cancel.wait()
        raise AgentError("stopped", ending="interrupted")

    name = start(store, flow(more="join: first", at_once=3), tmp_path / "work")
    run(engine(store, cast_of(review, range(5))), name)
    output = joined(store, name)
    assert output["status"] == "done"
    assert [one["status"] for one in output["members"]] == [
        "stopped",
        "done",
        "stopped",
        "stopped",
        "stopped",
    ]
    assert all("first" in one["reason"] for one in output["members"] if one["status"] == "stopped")
    assert [ref.state.status for ref in members_of(store, name)] == ["killed", "completed", "killed"]


def test_what_stopped_members_use_counts_and_else_what_was_reserved_for_them(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(members, "_STOP_MS", 500)
    released = asyncio.Event()

    async def review(prompt: str, context: Any) -> Any:
        number = number_in(prompt)
        if number == 2:
            await context.cancel.wait()
            raise AgentError("stopped", ending="interrupted", usage=Usage(cost=0.5))
        if number == 3:
            await released.wait()  # it does not listen
        return Reply(answer("fine"), usage=Usage(cost=0.25))

    async def play() -> None:
        playing = engine(store, cast_of(review), queues_members=True, lease_ms=500)

        async def run_one(ident: str) -> None:
            async for _ in playing.run(ident, cancel=asyncio.Event()):
                pass

        await run_one(name)
        one, two, three = [ref.id for ref in read_members(store, name)]
        others = [asyncio.create_task(run_one(ident)) for ident in (two, three)]
        while not all(store.ref(thread.attempt_name(ident)) for ident in (two, three)):
            await asyncio.sleep(0.01)
        await run_one(one)
        await run_one(name)
        released.set()
        await asyncio.gather(*others, return_exceptions=True)

    name = start(store, flow(more="join: first", limits="limits: {cost: 9}"), tmp_path / "work")
    asyncio.run(play())
    assert [one["status"] for one in joined(store, name)["members"]] == ["done", "stopped", "stopped"]
    group = next(step for step in steps(store, name) if step.agent == "group")
    assert group.payload["totals"]["cost"] == 0.25 + 0.5 + 3
    assert group.payload["usage"]["cost"] == 0.75


def test_a_member_that_is_answered_as_the_others_are_stopped_is_done(store: Store, tmp_path: Path) -> None:
    def watch(kind: str, body: Any) -> None:
        if kind == "member" and (body["number"], body["kind"]) == (1, "over"):
            reply(store, next(ref for ref in read_members(store, name) if ref.state.member == 2))

    async def writer(_prompt: str, _context: Any) -> str:
        return answer("fine")

    def cast(_book: Any, role: str) -> Cast:
        return Cast(HUMAN if role == "person" else "test", writer)

    name = start(store, book(TEAM_OF_BOTH), tmp_path / "work")
    run(engine(store, writer, cast=cast, watch=watch), name)
    assert [one["status"] for one in joined(store, name)["members"]] == ["done", "done"]
    assert joined(store, name)["status"] == "done"


def test_a_member_that_another_process_began_and_left_is_queued_again(store: Store, tmp_path: Path) -> None:
    name = start(store, flow(), tmp_path / "work")
    cancel = asyncio.Event()

    async def interrupt(_prompt: str, context: Any) -> Any:
        cancel.set()
        await context.cancel.wait()
        raise AgentError("interrupted", ending="interrupted")

    async def begin() -> None:
        async for _ in engine(store, cast_of(interrupt)).run(name, cancel=cancel):
            pass

    asyncio.run(begin())
    assert {ref.state.status for ref in read_members(store, name)} == {"idle"}
    assert run(engine(store, cast_of(fine), queues_members=True), name)[-1].status == "waiting"
    found = list(read_members(store, name))
    assert {ref.state.status for ref in found} == {"queued"}
    assert len(store.refs("queue/")) == len(found) == 3


def test_a_failure_stops_the_others_if_the_workflow_says_so(store: Store, tmp_path: Path) -> None:
    name = start(store, flow(more="on_failure: stop", at_once=1), tmp_path / "work")
    run(engine(store, cast_of(failing(2), range(9))), name)
    output = joined(store, name)
    assert [output[key] for key in ("status", "done", "failed", "stopped")] == ["partly", 1, 1, 7]
    assert len(members_of(store, name)) == 2


def test_a_deadline_stops_the_unfinished(store: Store, tmp_path: Path) -> None:
    async def review(prompt: str, context: Any) -> str:
        if number_in(prompt) > 1:
            await context.cancel.wait()
            raise AgentError("stopped", ending="interrupted")
        return answer("fine")

    name = start(store, flow(more="deadline: 0.005"), tmp_path / "work")
    run(engine(store, cast_of(review)), name)
    output = joined(store, name)
    assert [one["status"] for one in output["members"]] == ["done", "stopped", "stopped"]
    assert "deadline" in output["members"][1]["reason"]


def test_a_member_without_an_agent_fails_alone(store: Store, tmp_path: Path) -> None:
    agents = cast_of(fine)

    def cast(_book: Any, role: str) -> Cast:
        if role == "reviewer":
            raise NotFound("there is no program codex", hint="Install it.")
        return Cast("test", agents[role])

    name = start(store, flow(), tmp_path / "work")
    run(engine(store, agents, cast=cast), name)
    assert "there is no program codex. Install it." in joined(store, name)["members"][0]["reason"]


def test_three_that_fail_alike_suspend_the_group_and_resume_goes_on(store: Store, tmp_path: Path) -> None:
    asked: list[int] = []
    is_logged_in = False

    def review(prompt: str, _context: Any) -> str:
        asked.append(number_in(prompt))
        if not is_logged_in and number_in(prompt) <= 3:
            raise AgentError(f"request {number_in(prompt)}: the login has expired", ending="failed")
        return answer("fine")

    name = start(store, flow(at_once=1), tmp_path / "work")
    playing = engine(store, cast_of(review, range(8)))
    run(playing, name)
    assert state(store, name)["status"] == "suspended"
    assert "the login has expired" in state(store, name)["reason"]
    assert asked == [1, 2, 3]
    is_logged_in = True
    lifecycle.resume(store, thread.find(store, name), mask=Mask([]))
    run(playing, name)
    assert state(store, name)["status"] == "completed"
    assert asked == [1, 2, 3, 1, 2, 3, 4, 5, 6, 7, 8]
    assert joined(store, name)["done"] == 8


# -- persons --


def human(store: Store, roles: tuple[str, ...] = ("reviewer",), **options: Any) -> Engine:
    agents = cast_of(fine)

    def cast(_book: Any, role: str) -> Cast:
        return Cast(HUMAN if role in roles else "test", agents[role])

    return engine(store, agents, cast=cast, **options)


def reply(store: Store, ref: ThreadRef) -> None:
    playbook = registry.load_node(store, ref.state.workflow)
    commit.answer(store, ref, playbook, {"$status": "fine"}, body="Mine.", mask=Mask([]))


def test_persons_are_asked_each_on_their_own_while_the_group_waits(store: Store, tmp_path: Path) -> None:
    name = start(store, flow(at_once=1), tmp_path / "work")
    playing = human(store)
    assert run(playing, name)[-1].status == "waiting"
    assert "lease" not in state(store, name)
    members = list(read_members(store, name))
    assert [ref.state.status for ref in members] == ["suspended"] * 3
    reply(store, members[1])
    assert run(playing, name)[-1].status == "waiting"
    for ref in (members[0], members[2]):
        reply(store, ref)
    run(playing, name)
    assert state(store, name)["status"] == "completed"
    assert [one["status"] for one in joined(store, name)["members"]] == ["done"] * 3


def test_a_waiting_parent_is_due_when_a_member_has_moved(store: Store, tmp_path: Path) -> None:
    name = start(store, flow(), tmp_path / "work")
    run(human(store), name)
    seen = store.ref(group_name(name))
    assert seen is not None and seen.version == seen.state["seen"]
    reply(store, next(read_members(store, name)))
    moved = store.ref(group_name(name))
    assert moved is not None and moved.version != moved.state["seen"]


def test_a_member_that_asks_is_waited_for(store: Store, tmp_path: Path) -> None:
    def review(prompt: str, context: Any) -> str:
        if number_in(prompt) == 2 and "Blue." not in prompt:
            return "---\n$status: $SUSPEND\nreason: Which colour?\n---\n"
        return answer("fine")

    name = start(store, flow(), tmp_path / "work")
    playing = engine(store, cast_of(review))
    assert run(playing, name)[-1].status == "waiting"
    [asking] = [ref for ref in read_members(store, name) if ref.state.status == "suspended"]
    lifecycle.resume(store, asking, mask=Mask([]), answer="Blue.")
    run(playing, name)
    assert joined(store, name)["done"] == 3


def test_a_member_that_is_answered_while_others_run_goes_on_in_the_same_run(
    store: Store, tmp_path: Path
) -> None:
    name = start(store, flow(), tmp_path / "work")

    async def review(prompt: str, _context: Any) -> str:
        if number_in(prompt) == 2 and "Blue." not in prompt:
            return "---\n$status: $SUSPEND\nreason: Which colour?\n---\n"
        while number_in(prompt) == 3:
            asking = [ref for ref in read_members(store, name) if ref.state.status == "suspended"]
            if asking:
                lifecycle.resume(store, asking[0], mask=Mask([]), answer="Blue.")
                break
            await asyncio.sleep(0)
        return answer("fine")

    assert run(engine(store, cast_of(review)), name)[-1].status == "completed"
    assert joined(store, name)["done"] == 3


def test_words_for_the_group_itself_are_refused(store: Store, tmp_path: Path) -> None:
    name = start(store, flow(), tmp_path / "work")
    run(human(store), name)
    with pytest.raises(UsageError, match="played by a group"):
        lifecycle.resume(store, thread.find(store, name), mask=Mask([]), answer="Well?")
    with pytest.raises(UsageError, match="played by a group"):
        reply(store, thread.find(store, name))


# -- limits --


def spending(tokens: int, cost: float | None = None) -> Review:
    def review(_prompt: str, _context: Any) -> Reply:
        return Reply(answer("fine"), usage=Usage(tokens, 0, turns=1, cost=cost))

    return review


def test_members_share_the_limits_and_the_step_adds_up(store: Store, tmp_path: Path) -> None:
    name = start(store, flow(limits="limits: {tokens: 1000, cost: 4}", at_once=2), tmp_path / "work")
    run(engine(store, cast_of(spending(100, 0.5))), name)
    assert state(store, name)["status"] == "completed"
    step = steps(store, name)[1]
    assert step.payload["usage"] == {"input_tokens": 300, "turns": 3, "cost": 1.5}
    totals = step.payload["totals"]
    assert (totals["tokens"], totals["cost"], totals["steps"], totals["members"]) == (300, 1.5, 4, 2)
    assert [ref.state.limits["tokens"] for ref in members_of(store, name)][:2] == [500, 500]


def test_a_limit_suspends_the_group_and_a_higher_one_continues_it(store: Store, tmp_path: Path) -> None:
    asked: list[int] = []

    def review(prompt: str, _context: Any) -> Reply:
        asked.append(number_in(prompt))
        return Reply(answer("fine"), usage=Usage(100, 0))

    name = start(store, flow(limits="limits: {tokens: 250}", at_once=1), tmp_path / "work")
    playing = engine(store, cast_of(review, range(6)))
    run(playing, name)
    assert state(store, name)["status"] == "suspended"
    assert "limit reached" in state(store, name)["reason"]
    assert state(store, name)["onward"] == {"code": "raise_limit", "limit": "tokens=500"}
    assert asked == [1, 2, 3]
    lifecycle.resume(store, thread.find(store, name), mask=Mask([]), limits={"tokens": 1000})
    run(playing, name)
    assert asked == [1, 2, 3, 4, 5, 6]
    assert joined(store, name)["done"] == 6


def test_steps_are_counted_too(store: Store, tmp_path: Path) -> None:
    name = start(store, flow(limits="limits: {steps: 4}"), tmp_path / "work")
    run(engine(store, cast_of(fine, range(5))), name)
    assert state(store, name)["status"] == "suspended"
    assert "steps" in state(store, name)["reason"]
    assert len(members_of(store, name)) == 3


def test_an_unknown_cost_counts_as_all_that_was_reserved(store: Store, tmp_path: Path) -> None:
    name = start(store, flow(limits="limits: {cost: 1}", at_once=2), tmp_path / "work")
    run(engine(store, cast_of(spending(10), range(5))), name)
    assert state(store, name)["status"] == "suspended"
    assert len(members_of(store, name)) == 2
    lifecycle.resume(store, thread.find(store, name), mask=Mask([]), limits={"cost": 9})
    run(engine(store, cast_of(spending(10), range(5))), name)
    assert "cost" not in steps(store, name)[1].payload["usage"] if len(steps(store, name)) > 1 else True


def test_a_member_that_needs_more_than_its_share_gets_it(store: Store, tmp_path: Path) -> None:
    def review(prompt: str, _context: Any) -> Reply:
        if number_in(prompt) == 1 and "Blue." not in prompt:
            return Reply("---\n$status: $SUSPEND\nreason: Which colour?\n---\n", usage=Usage(60, 0))
        return Reply(answer("fine"), usage=Usage(10, 0))

    name = start(store, flow(limits="limits: {tokens: 100}", at_once=2), tmp_path / "work")
    playing = engine(store, cast_of(review, range(2)))
    assert run(playing, name)[-1].status == "waiting"
    first = next(read_members(store, name))
    assert first.state.limits["tokens"] == 50
    lifecycle.resume(store, first, mask=Mask([]), answer="Blue.")
    run(playing, name)
    assert joined(store, name)["done"] == 2
    assert members_of(store, name)[0].state.limits["tokens"] == 90


@pytest.mark.parametrize(("on_limit", "asked"), [("suspend", 2), ("wait", 4)])
def test_a_group_waits_for_what_running_members_give_back_or_is_suspended(
    store: Store, tmp_path: Path, on_limit: str, asked: int
) -> None:
    """The first member uses up its share while the second runs, which uses almost nothing."""

    async def review(prompt: str, _context: Any) -> Reply:
        number = number_in(prompt)
        while number == 2 and len(members_of(store, name)) < 2:
            await asyncio.sleep(0)
        for _ in range(50 if number == 2 else 0):
            await asyncio.sleep(0)
        return Reply(answer("fine"), usage=Usage(50 if number == 1 else 1, 0))

    made = flow(more=f"on_limit: {on_limit}", limits="limits: {tokens: 100}", at_once=2)
    name = start(store, made, tmp_path / "work")
    run(engine(store, cast_of(review, range(4))), name)
    assert len(members_of(store, name)) == asked
    assert state(store, name)["status"] == ("completed" if on_limit == "wait" else "suspended")


# -- interruptions --


def test_an_interrupted_group_continues_and_asks_nobody_twice(store: Store, tmp_path: Path) -> None:
    asked: list[int] = []

    async def interrupted() -> Any:
        cancel = asyncio.Event()

        async def review(prompt: str, context: Any) -> str:
            asked.append(number_in(prompt))
            if number_in(prompt) > 4:
                if number_in(prompt) == 6:
                    cancel.set()
                await context.cancel.wait()
                raise AgentError("interrupted", ending="interrupted")
            return answer("fine")

        playing = engine(store, cast_of(review, range(9)))
        return [outcome async for outcome in playing.run(name, cancel=cancel)][-1]

    name = start(store, flow(at_once=2), tmp_path / "work")
    outcome = asyncio.run(interrupted())
    assert (outcome.status, outcome.reason) == ("idle", "interrupted")
    assert asked == [1, 2, 3, 4, 5, 6]
    assert all("lease" not in ref.ref.state for ref in members_of(store, name))

    def review(prompt: str, _context: Any) -> str:
        asked.append(number_in(prompt))
        return answer("fine")

    run(engine(store, cast_of(review, range(9))), name)
    assert asked[6:] == [5, 6, 7, 8, 9]
    assert joined(store, name)["done"] == 9


def test_killing_the_parent_kills_every_member(store: Store, tmp_path: Path) -> None:
    name = start(store, flow(), tmp_path / "work")
    run(human(store), name)
    killing.kill(store, thread.find(store, name), "enough", mask=Mask([]))
    assert [ref.state.status for ref in members_of(store, name)] == ["killed"] * 3
    assert "enough" in members_of(store, name)[0].state.reason


def test_a_parent_killed_while_members_run_stops_them(store: Store, tmp_path: Path) -> None:
    async def review(_prompt: str, context: Any) -> str:
        if not thread.find(store, name).state.has_ended:
            killing.kill(store, thread.find(store, name), "enough", mask=Mask([]))
        await context.cancel.wait()
        raise AgentError("interrupted", ending="interrupted")

    name = start(store, flow(), tmp_path / "work")
    with pytest.raises(Exception, match="was taken over or ended"):
        run(engine(store, cast_of(review), lease_ms=500), name)
    assert [ref.state.status for ref in members_of(store, name)] == ["killed"] * 3


def test_a_member_is_forked_by_itself(store: Store, tmp_path: Path) -> None:
    name = start(store, flow(), tmp_path / "work")
    run(engine(store, cast_of(failing(2))), name)
    failed = members_of(store, name)[1]
    forked = lifecycle.fork(store, failed.head, mask=Mask([]), source=failed)
    prompts = []

    def review(prompt: str, _context: Any) -> str:
        prompts.append(prompt)
        return answer("fine")

    run(engine(store, cast_of(review)), forked.id)
    assert state(store, forked.id)["status"] == "completed"
    assert "Review b, which is 2 of 3." in prompts[0]
    other = lifecycle.fork(store, failed.head, mask=Mask([]), source=failed, prompt="Do it well")
    run(engine(store, cast_of(review)), other.id)
    assert "Review b" in prompts[1] and "Do it well" in prompts[1]


# -- groups within groups --

OUTER = """
name: outer
description: Each item through a workflow of its own
roles:
  flows:
    each: '["x", "y"]'
    agent: workflow:fan-out
    workdir: shared
    goal: Handle {{item}}.
    schema: {type: object, properties: {$status: {enum: [good]}}, required: [$status]}
graph: {$START: flows, flows: {done: $END, partly: $FAIL, failed: $FAIL}}
"""


def test_every_item_goes_through_a_workflow_with_a_group_of_its_own(store: Store, tmp_path: Path) -> None:
    registry.register(store, flow())
    agents = cast_of(fine)

    def cast(_book: Any, role: str) -> Cast:
        return (
            Cast("workflow:fan-out", workflow("fan-out")) if role == "flows" else Cast("test", agents[role])
        )

    name = start(store, book(OUTER), tmp_path / "work")
    playing = engine(
        store,
        agents,
        cast=cast,
        find_workflow=lambda found, folder: registry.find(store, found, folder=folder).node,
    )
    run(playing, name)
    assert state(store, name)["status"] == "completed"
    inner = [ref for member in members_of(store, name) for ref in members_of(store, member.id)]
    assert [joined(store, ref.id)["done"] for ref in inner] == [3, 3]
    assert [ref.state.title for ref in inner] == [ref.state.title for ref in members_of(store, name)]
    assert_sound(store)


def test_a_member_whose_workflow_waits_for_persons_is_waited_for(store: Store, tmp_path: Path) -> None:
    registry.register(store, flow())
    agents = cast_of(fine)

    def cast(_book: Any, role: str) -> Cast:
        if role == "flows":
            return Cast("workflow:fan-out", workflow("fan-out"))
        return Cast(HUMAN if role == "reviewer" else "test", agents[role])

    def find(found: str, folder: str) -> str:
        return registry.find(store, found, folder=folder).node or ""

    name = start(store, book(OUTER), tmp_path / "work")
    playing = engine(store, agents, cast=cast, find_workflow=find)
    assert run(playing, name)[-1].status == "waiting"
    outer = list(read_members(store, name))
    assert "is waiting" in outer[0].state.reason and outer[0].state.waits_for_person
    for member in outer:
        [inner] = members_of(store, member.id)
        for asked in read_members(store, inner.id):
            reply(store, asked)
        lifecycle.resume(store, member, mask=Mask([]))
    run(playing, name)
    assert state(store, name)["status"] == "completed"
    assert joined(store, name)["done"] == 2


def test_a_workflow_that_plays_itself_in_a_group_stops_at_the_deepest_level(
    store: Store, tmp_path: Path
) -> None:
    # Its YAML names another workflow: one that names itself is refused when it is read.
    made = book(OUTER.replace('["x", "y"]', '["x"]'))
    registry.register(store, made)

    def find(found: str, folder: str) -> str:
        return registry.find(store, found, folder=folder).node or ""

    name = start(store, made, tmp_path / "work")
    run(engine(store, workflow("outer"), find_workflow=find), name)
    assert state(store, name)["status"] == "failed"
    reasons = [ref.state.reason for ref in read_threads(store) if "deep" in ref.state.reason]
    assert reasons and "Look for a role that is played by its own workflow." in reasons[0]


def test_a_group_leaves_its_events(store: Store, tmp_path: Path) -> None:
    received: list[tuple[str, Any]] = []
    name = start(store, flow(), tmp_path / "work")
    run(engine(store, cast_of(fine), watch=lambda kind, body: received.append((kind, body))), name)
    assert "group" in events(store, name)
    over = [body["body"]["status"] for kind, body in received if kind == "member" and body["kind"] == "over"]
    assert over == ["done"] * 3


HERE = Path(__file__).parent
DIES = """
import asyncio, os, signal, sys
from pathlib import Path
import stage, test_members
from rolecall.agents.adapters.command import command

store, name, pids = stage.open_store(Path(sys.argv[1])), sys.argv[2], Path(sys.argv[3])
agents = test_members.cast_of(test_members.fine)
agents["reviewer"] = command(["/bin/sh", "-c", "echo $$ >> pids; exec sleep 300"])

async def die() -> None:
    while not pids.exists() or len(pids.read_text().split()) < 2:
        await asyncio.sleep(0.02)
    os.kill(os.getpid(), signal.SIGKILL)

async def main() -> None:
    dying = asyncio.create_task(die())
    await stage.engine(store, agents).step(name, cancel=asyncio.Event())
    await stage.engine(store, agents).step(name, cancel=asyncio.Event())

asyncio.run(main())
"""


def is_living(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except FileNotFoundError:
        return False


def test_agents_that_a_dead_runner_left_end_with_the_members_they_play(store: Store, tmp_path: Path) -> None:
    """The first runner dies while two members work; the second finds that the deadline has passed."""
    name = start(store, flow(more="deadline: 60", at_once=2), tmp_path / "work")
    pids = tmp_path / "work" / "pids"
    words = [sys.executable, "-c", DIES, str(tmp_path / "store.db"), name, str(pids)]
    assert subprocess.run(words, cwd=HERE, timeout=60, check=False).returncode == -signal.SIGKILL
    left = [int(pid) for pid in pids.read_text().split()]
    group = store.ref(group_name(name))
    assert group is not None and group.state["deadline"] and len(left) == 2
    store.move(group.name, group, group.target, {"deadline": 1})
    run(engine(store, cast_of(fine)), name)
    assert [one["status"] for one in joined(store, name)["members"]] == ["stopped"] * 3
    assert not any(is_living(pid) for pid in left)
