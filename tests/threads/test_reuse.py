"""Finished steps that are taken over instead of asking again: when, with which files, and when not."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import stage

from rolecall.agents import workflow
from rolecall.agents.protocol import Context, Reply, Usage
from rolecall.files.tree import Trees
from rolecall.settings.capabilities import CLASSES
from rolecall.settings.mask import Mask
from rolecall.store.collect import collect
from rolecall.store.store import Node, Store
from rolecall.threads import html_report, lifecycle, report, reuse, thread, views
from rolecall.threads.attempt_files import CHANGED_ANYWAY
from rolecall.threads.casting import cast
from rolecall.threads.engine import Cast, Engine
from rolecall.threads.reuse import REFUSED
from rolecall.workflow import registry
from rolecall.workflow.model import reuse_of
from rolecall.workflow.playbook import Playbook

STATUS = (
    "{type: object, properties: {$status: {enum: [done, again]}, note: {type: string}}, required: [$status]}"
)
FLOW = f"""
name: make-it
description: A role writes, another one reads.
roles:
  writer: {{prompt: Write., schema: {STATUS}}}
  reader: {{prompt: Read., capabilities: [read_only], schema: {STATUS}}}
graph: {{$START: writer, writer: {{done: reader, again: writer}}, reader: {{done: $END, again: writer}}}}
"""
ONE = f"""
name: make-one
description: A role writes.
roles:
  writer: {{prompt: Write., schema: {STATUS}}}
graph: {{$START: writer, writer: $END}}
"""


class Agent:
    """Counts how often each role is asked, and writes a file for the writer."""

    can_resume = can_fork = True
    deniable = frozenset(CLASSES)
    name = "counting"

    def __init__(self, answers: Mapping[str, str] | None = None) -> None:
        self.asked: list[str] = []
        self.sessions: list[tuple[str | None, bool]] = []
        self.answers = answers or {}

    async def __call__(self, prompt: str, context: Context) -> Reply:
        self.asked.append(context.role)
        self.sessions.append((context.session, context.is_fork))
        if context.role == "writer":
            (context.workdir / "made.txt").write_text(f"{prompt.count('Once more')} {len(context.steps)}\n")
            (context.workdir / "old.txt").unlink(missing_ok=True)
        said = self.answers.get(context.role, stage.answer("done", f"by {context.role}"))
        session = f"session-{context.thread}-{len(self.asked)}"
        return Reply(said, session=session, usage=Usage(1000, 500, cost=0.25, turns=2))


class Stage:
    def __init__(self, store: Store, folder: Path) -> None:
        self.store, self.folder = store, folder
        self.trees = Trees(str(folder / "trees"))
        self.agent = Agent()

    def work(self, name: str, **files: str) -> Path:
        folder = self.folder / name
        folder.mkdir()
        for file, text in {"old.txt": "old\n", **files}.items():
            (folder / file).write_text(text)
        return folder

    def engine(self, **options: Any) -> Engine:
        return stage.engine(self.store, self.agent, **{"trees": self.trees, **options})

    def run(
        self,
        cwd: Path,
        text: str = FLOW,
        *,
        prompt: str = "Do it",
        engine: Engine | None = None,
        **options: Any,
    ) -> str:
        ident = stage.start(self.store, stage.book(text), cwd, prompt, **options)
        stage.run(engine or self.engine(), ident)
        return ident

    def steps(self, ident: str) -> list[thread.Step]:
        return stage.steps(self.store, ident)


@pytest.fixture
def on(tmp_path: Path) -> Iterator[Stage]:
    with stage.open_store(tmp_path / "store.db") as store:
        yield Stage(store, tmp_path)


def test_finished_steps_are_taken_over_with_their_files_in_another_folder(on: Stage) -> None:
    first = on.run(on.work("a"))
    assert on.agent.asked == ["writer", "reader"]
    second = on.run(here := on.work("b"), reuse=True)
    third = on.run(on.work("c"), reuse=True)
    assert on.agent.asked == ["writer", "reader"]
    assert (here / "made.txt").read_text() == "0 0\n" and not (here / "old.txt").exists()

    for ident in (second, third):
        for mine, theirs in zip(on.steps(ident), on.steps(first), strict=True):
            assert mine.reused == thread.Reused(theirs.id, first, theirs.payload["usage"])
            assert (mine.output, mine.body, mine.raw) == (theirs.output, theirs.body, theirs.raw)
            assert (mine.agent, mine.prompt, mine.parts) == (theirs.agent, theirs.prompt, theirs.parts)
            assert mine.tree and theirs.tree and mine.tree.changed == theirs.tree.changed
            assert (mine.tree.found.tree, mine.tree.left.tree) == (
                theirs.tree.found.tree,
                theirs.tree.left.tree,
            )
            assert "usage" not in mine.payload and "session" not in mine.payload
            assert mine.payload["started_at"] == mine.payload["completed_at"]
    totals = on.steps(second)[-1].payload["totals"]
    assert totals["steps"] == 2 and "cost" not in totals and "tokens" not in totals
    assert totals["saved"] == {"steps": 2, "tokens": 3000, "cost": 0.5, "turns": 4}
    assert on.trees.is_whole(on.steps(second)[0].tree.left)  # type: ignore[union-attr]
    bodies = [event.body for event in on.store.events(second) if event.kind == "step"]
    assert [body["reused"]["thread"] for body in bodies] == [first, first]
    ref, shown = thread.find(on.store, second), f"reused from …{first[-4:]} · saved $0.25"
    card, steps = views.gather(on.store, ref)
    assert card["usage"]["saved"]["cost"] == 0.5
    for text in (
        str(views.read(on.store, ref, quota=10_000)["text"]),
        report.markdown(card, steps),
        html_report.page(on.store, ref, card, steps, mask=Mask([])),
    ):
        assert text.count(shown) == 2
        assert "reused" in text and ("2 steps, saved $0.50" in text or text.startswith("# make-it"))
    stage.assert_sound(on.store)
    stage.assert_whole(on.store, second)


@pytest.mark.parametrize(
    ("of_workflow", "of_role", "chosen", "is_wanted"),
    [
        (None, None, None, False),
        (None, None, True, True),
        (True, None, None, True),
        (True, None, False, False),
        (True, False, None, False),
        (True, False, True, False),
        (False, True, None, True),
        (False, None, True, False),
        (None, True, False, False),
    ],
)
def test_role_workflow_and_thread_say_whether_steps_are_reused(
    of_workflow: bool | None, of_role: bool | None, chosen: bool | None, is_wanted: bool
) -> None:
    workflow = stage.book(FLOW).workflow
    role = workflow.roles["writer"]._replace(reuse=of_role)
    workflow = workflow._replace(reuse=of_workflow, roles={**workflow.roles, "writer": role})
    assert bool(reuse_of(workflow, "writer", chosen)) is is_wanted


def test_a_thread_is_asked_again_where_something_differs(on: Stage) -> None:
    on.run(on.work("a"))
    on.agent.asked.clear()
    on.run(on.work("b"))  # nobody asked for reuse
    on.run(on.work("c", **{"more.txt": "1\n"}), reuse=True)
    on.run(on.work("d"), prompt="Do something else", reuse=True)
    assert on.agent.asked == ["writer", "reader"] * 3
    on.agent.asked.clear()
    on.run(on.work("e"), FLOW.replace("Write.", "Write well."), reuse=True)  # with the same result
    on.run(on.work("f"), FLOW.replace("Read.", "Read well."), reuse=True)
    assert on.agent.asked == ["writer", "reader"]


def test_a_choice_can_be_made_later(on: Stage) -> None:
    on.run(on.work("a"))
    ident = stage.start(on.store, stage.book(FLOW), on.work("b"))
    lifecycle.choose_reuse(on.store, thread.find(on.store, ident), True)
    stage.run(on.engine(), ident, steps=1)
    lifecycle.choose_reuse(on.store, thread.find(on.store, ident), None)
    assert on.agent.asked == ["writer", "reader"]
    lifecycle.choose_reuse(on.store, thread.find(on.store, ident), False)
    stage.run(on.engine(), ident)
    assert on.agent.asked == ["writer", "reader", "reader"]


class Meddling(Trees):
    """Somebody changes the folder at the last moment."""

    def advance(self, before: Any, after: Any, folder: str, **options: Any) -> str:
        Path(folder, "mine.txt").write_text("mine\n")
        return super().advance(before, after, folder, **options)


def test_a_folder_with_other_files_is_not_overwritten(on: Stage) -> None:
    on.run(on.work("a"))
    on.trees = Meddling(str(on.folder / "trees"))
    second = on.run(here := on.work("b"), reuse=True)
    assert on.agent.asked == ["writer", "reader"] * 2
    assert (here / "mine.txt").read_text() == "mine\n"
    (step, _) = on.steps(second)
    assert step.detail["notes"] == [f"{REFUSED}the files in the folder are not those from before the step"]
    assert step.tree and [change.path for change in step.tree.changed] == ["made.txt", "old.txt"]
    assert step.parts and step.parts.tree == step.tree.found.tree


def test_files_that_are_gone_are_not_reused(on: Stage) -> None:
    on.run(on.work("a"))
    on.trees = Trees(str(on.folder / "elsewhere"))
    second = on.run(on.work("b"), reuse=True)
    assert on.agent.asked == ["writer", "reader", "writer"]
    assert "not on this machine" in on.steps(second)[0].detail["notes"][0]


@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_step_that_cannot_be_read_any_more_is_not_reused(on: Stage, is_damaged: bool) -> None:
    step = on.steps(on.run(on.work("a")))[0]
    on.store.close()
    with sqlite3.connect(on.folder / "store.db") as database:
        if is_damaged:
            database.execute("UPDATE nodes SET data = x'00' WHERE id = ?", (step.id,))
        else:
            database.execute("DELETE FROM nodes WHERE id = ?", (step.detail_id,))
    with stage.open_store(on.folder / "store.db") as on.store:
        second = on.run(here := on.work("b"), reuse=True)
        assert on.agent.asked == ["writer", "reader", "writer"]
        assert "not reused: " in on.steps(second)[0].detail["notes"][0] and (here / "made.txt").exists()


def test_a_corrected_step_is_reused_with_the_files_and_the_cost_of_both_answers(on: Stage) -> None:
    class Corrected(Agent):
        async def __call__(self, prompt: str, context: Context) -> Reply:
            if context.attempt:
                return Reply(stage.answer("done"), session="s", usage=Usage(cost=0.01))
            given = await super().__call__(prompt, context)
            return Reply("no frontmatter", session="s", usage=given.usage)

    on.agent = Corrected()
    first, second = (on.run(here := on.work(name), ONE, reuse=True) for name in "ab")
    assert on.agent.asked == ["writer"] and (here / "made.txt").exists()
    for step in (on.steps(first)[0], on.steps(second)[0]):
        assert step.tree and [change.path for change in step.tree.changed] == ["made.txt", "old.txt"]
    assert on.steps(second)[0].saved["cost"] == 0.26

    step = on.steps(first)[
        0
    ]  # as versions stored it that took the files after the first answer for the found ones
    other = {**step.payload, "parts": {**step.payload["parts"], "tree": "f" * 40}}
    assert "not recorded" in reuse.find_refusal(thread.Step(on.store, Node(step.id, "", other, 0)))


@pytest.mark.parametrize(("can_write", "reason"), [(True, "not recorded have changed"), (False, "read-only")])
def test_changes_that_are_not_made_again_are_not_left_out_silently(
    on: Stage, can_write: bool, reason: str
) -> None:
    class Other(Agent):
        async def __call__(self, prompt: str, context: Context) -> Reply:
            given = await super().__call__(prompt, context)
            context.workdir.joinpath(".env" if can_write else "by-reader.txt").write_text("1\n")
            return given

    flow = ONE.replace("writer", "reader")
    flow = flow if can_write else flow.replace("Write.,", "Write., capabilities: [read_only],")
    on.agent = Other()
    on.run(on.work("a"), flow)
    second = on.run(on.work("b"), flow, reuse=True)
    assert on.agent.asked == ["reader"] * 2
    assert any(note.startswith(REFUSED) and reason in note for note in on.steps(second)[0].detail["notes"])


class Failing(Trees):
    """The disk is full, or the process dies, after the changes of a step were made halfway."""

    error: BaseException | None = None

    def _fill(self, *args: Any, **options: Any) -> None:
        super()._fill(*args, **options)
        error, self.error = self.error, None
        if error is not None:
            raise error


def test_changes_that_cannot_be_made_are_undone_and_the_role_is_asked(on: Stage) -> None:
    on.run(on.work("a"), ONE)
    on.trees = trees = Failing(str(on.folder / "trees"))
    trees.error = OSError(28, "No space left on device")
    second = on.run(on.work("b"), ONE, reuse=True)
    step = on.steps(second)[0]
    assert on.agent.asked == ["writer"] * 2
    assert step.detail["notes"] == [f"{REFUSED}[Errno 28] No space left on device"]
    assert step.tree and [change.path for change in step.tree.changed] == ["made.txt", "old.txt"]


class Dies(BaseException):
    pass


@pytest.mark.parametrize("case", ["fresh", "deleted", "edited"])
def test_a_reuse_that_was_begun_can_be_left(on: Stage, case: str) -> None:
    first = on.run(on.work("a"), ONE)
    on.trees = trees = Failing(str(on.folder / "trees"))
    trees.error = Dies()
    second = stage.start(on.store, stage.book(ONE), here := on.work("b"), reuse=True)
    with pytest.raises(Dies):
        stage.run(on.engine(), second)
    assert (here / "made.txt").exists() and (here / "old.txt").exists()

    expected = "some of the step's changes"
    if case == "fresh":
        lifecycle.choose_reuse(on.store, thread.find(on.store, second), False)
        expected = "reuse was switched off after it had begun"
    elif case == "deleted":
        delete(on.store, first)
    else:
        (here / "old.txt").write_text("by a person\n")
    stage.run(on.engine(), second)
    step = on.steps(second)[0]
    assert on.agent.asked == ["writer"] * 2 and step.reused is None and step.tree
    (note,) = step.detail["notes"]
    assert note.startswith(REFUSED) and expected in note
    before = on.steps(first)[0].tree if case != "deleted" else None
    assert step.parts and step.parts.tree == step.tree.found.tree
    assert before is None or (before.found.tree == step.tree.found.tree) is (case == "fresh")


def test_remarks_from_before_a_crash_stay(on: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    on.agent = Agent({"writer": stage.answer("Done")})
    flow = ONE.replace("Write.,", "Write., capabilities: [read_only],")
    ident = stage.start(on.store, stage.book(flow), on.work("a"))

    def die(*_args: Any) -> None:
        raise Dies

    with monkeypatch.context() as patch, pytest.raises(Dies):
        patch.setattr(Engine, "_commit", die)
        stage.run(on.engine(), ident)
    stage.run(on.engine(), ident)
    changed, repaired = on.steps(ident)[0].detail["notes"]
    assert CHANGED_ANYWAY in changed and "is read as 'done'" in repaired and len(on.agent.asked) == 1


def delete(store: Store, ident: str) -> None:
    draft = store.draft()
    ref = thread.find(store, ident).ref
    draft.move(ref.name, ref)
    draft.commit()
    collect(store, delete=True, grace_ms=0)


def test_a_copy_is_found_after_the_first_thread_was_deleted(on: Stage) -> None:
    first, second = (on.run(on.work(name), ONE, reuse=True) for name in "ab")
    origin = on.steps(second)[0].reused
    delete(on.store, first)
    third = on.run(on.work("c"), ONE, reuse=True)
    assert on.agent.asked == ["writer"] and on.steps(third)[0].reused == origin


def test_what_others_change_during_a_reuse_is_not_reused(on: Stage) -> None:
    on.run(on.work("a"), ONE)

    class Busy(Trees):
        def advance(self, before: Any, after: Any, folder: str, **options: Any) -> str:
            done = super().advance(before, after, folder, **options)
            Path(folder, "mine.txt").write_text("mine\n")
            return done

    plain, on.trees = on.trees, Busy(str(on.folder / "trees"))
    second = on.run(on.work("b"), ONE, reuse=True)
    assert "other files changed" in on.steps(second)[0].detail["notes"][0]
    on.trees = plain
    third = on.run(here := on.work("c"), ONE, reuse=True)
    assert on.agent.asked == ["writer"] and on.steps(third)[0].reused and not (here / "mine.txt").exists()


def test_questions_and_agents_with_effects_are_never_reused(on: Stage) -> None:
    ask = "---\n$status: $SUSPEND\nreason: Which one?\n---\n"
    on.agent = Agent({"reader": ask})
    on.run(on.work("a"))
    ident = on.run(on.work("b"), reuse=True)
    assert on.agent.asked == ["writer", "reader", "reader"]
    assert thread.find(on.store, ident).state.status == "suspended"

    def cast(_book: Playbook, _role: str) -> Cast:
        return Cast("test", on.agent, has_effects=True)

    third = on.run(on.work("c"), reuse=True, engine=on.engine(cast=cast))
    assert on.agent.asked == ["writer", "reader", "reader", "writer", "reader"]
    assert "effects outside" in on.steps(third)[0].detail["notes"][0]


@pytest.mark.parametrize(("effects", "expected"), [("outside", True), ("none", False), (None, False)])
def test_the_configuration_says_which_agents_have_effects(effects: str | None, expected: bool) -> None:
    entry = {"adapter": "command:./deploy.sh", **({"effects": effects} if effects else {})}
    made = cast({"agents": {"deployer": entry}}, stage.book(FLOW), "writer", override="deployer")
    assert made.has_effects is expected


def test_a_python_function_is_reused(on: Stage) -> None:
    calls: list[str] = []

    async def write(context: Any) -> Mapping[str, Any]:
        calls.append(context.thread)
        Path(context.workdir, "made.txt").write_text("1\n")
        return {"output": {"$status": "done"}, "body": "made"}

    book = stage.book(FLOW)._replace(functions={"writer": write})
    for name in ("a", "b"):
        ident = stage.start(on.store, stage.book(FLOW), here := on.work(name), reuse=True)
        stage.run(on.engine(workflow=book), ident, steps=1)
        assert (here / "made.txt").read_text() == "1\n"
    assert len(calls) == 1 and on.steps(ident)[0].reused is not None


TURNS = FLOW.replace("prompt: Write.,", "prompt: Write., resume: persistent,")


@pytest.mark.parametrize("can_fork", [True, False])
def test_a_later_turn_does_not_continue_the_session_of_the_other_thread(
    on: Stage, can_fork: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    again = Agent({"writer": stage.answer("again")})
    on.agent = again
    here = on.work("a")
    first = stage.start(on.store, stage.book(TURNS), here)
    stage.run(on.engine(), first, steps=1)
    monkeypatch.setattr(Agent, "can_fork", can_fork)
    for file in here.iterdir():
        file.unlink()
    (here / "old.txt").write_text("old\n")
    second = stage.start(on.store, stage.book(TURNS), here, reuse=True)
    stage.run(on.engine(), second, steps=2)
    assert [bool(step.reused) for step in on.steps(second)] == [True, False]
    session = on.steps(first)[0].payload["session"]
    assert again.sessions == [(None, False), (session, True) if can_fork else (None, False)]
    has_task = "Do it" in on.steps(second)[1].prompt
    assert has_task is not can_fork


EACH = f"""
name: review-all
description: Lists, then reviews each.
roles:
  lister:
    prompt: List.
    schema: {{type: object, properties: {{files: {{type: array, items: {{type: string}}}}}}, required: [files]}}
  reviewer:
    each: steps[-1].output.files
    prompt: Review {{{{item}}}}.
    capabilities: [read_only]
    schema: {STATUS}
graph: {{$START: lister, lister: reviewer, reviewer: $END}}
"""


def listing(*files: str) -> str:
    return f"---\nfiles: [{', '.join(files)}]\n---\n"


def test_members_are_reused_in_any_order(on: Stage) -> None:
    here = on.work("a")
    on.agent = Agent({"lister": listing("a", "b", "c")})
    on.run(here, EACH)
    assert on.agent.asked.count("reviewer") == 3
    on.agent.answers = {"lister": listing("c", "d", "a", "b")}  # another agent would have other keys
    on.agent.asked.clear()
    second = on.run(here, EACH.replace("List.", "List all."), reuse=True)
    assert on.agent.asked == ["lister", "reviewer"]
    joined = on.steps(second)[-1]
    assert [member["item"] for member in joined.output["members"]] == ["c", "d", "a", "b"]
    assert joined.output["done"] == 4 and joined.payload["usage"]["cost"] == 0.25
    assert joined.saved == {"steps": 3, "turns": 6, "tokens": 4500, "cost": 0.75}
    assert report.facts(views.step_entry(joined, 2))[-1] == "reused 3 steps, saved $0.75"


@pytest.mark.parametrize(("chosen", "asked"), [(None, 0), (False, 3)])
def test_a_fork_resumes_a_group_by_reusing_its_members(on: Stage, chosen: bool | None, asked: int) -> None:
    on.agent = Agent({"lister": listing("a", "b", "c")})
    first = on.run(on.work("a"), EACH)
    on.agent.asked.clear()
    at = on.steps(first)[0].id
    fork = lifecycle.fork(
        on.store, at, mask=on.engine().mask, source=thread.find(on.store, first), reuse=chosen
    )
    stage.run(on.engine(), fork.id)
    assert on.agent.asked == ["reviewer"] * asked
    assert on.steps(fork.id)[-1].output["done"] == 3


OUTER = f"""
name: play-it
description: A role is played by another workflow.
roles:
  all: {{prompt: Do., schema: {STATUS}}}
graph: {{$START: all, all: {{done: $END, again: all}}}}
"""


def test_the_steps_of_a_nested_workflow_are_reused(on: Stage) -> None:
    inner = registry.register(on.store, stage.book(FLOW))

    def cast(_book: Playbook, role: str) -> Cast:
        return Cast("workflow:make-it", workflow("make-it")) if role == "all" else Cast("test", on.agent)

    engine = on.engine(cast=cast, find_workflow=lambda _name, _folder: inner)
    on.run(on.work("a"), OUTER, engine=engine)
    on.run(on.work("b"), OUTER.replace("Do.", "Do., reuse: true"), engine=engine)
    second = on.run(on.work("c"), OUTER, engine=engine, reuse=True)
    assert on.agent.asked == ["writer", "reader"]
    on.run(on.work("d"), OUTER.replace("Do.", "Do., reuse: false"), engine=engine, reuse=True)
    assert len(on.agent.asked) == 4
    (step,) = on.steps(second)
    assert step.reused is None and "usage" not in step.payload
    assert step.payload["totals"]["saved"]["cost"] == 0.5


@pytest.mark.parametrize("tier", ["persistent", "bounded"])
def test_every_turn_of_a_session_is_reused(on: Stage, tier: str) -> None:
    class Twice(Agent):
        async def __call__(self, prompt: str, context: Context) -> Reply:
            self.answers = {"writer": stage.answer("done" if context.steps else "again")}
            return await super().__call__(prompt, context)

    flow, on.agent = TURNS.replace("persistent", tier), Twice()
    on.run(on.work("a"), flow)
    assert on.agent.asked == ["writer", "writer", "reader"]
    for name in "bc":
        assert all(step.reused for step in on.steps(on.run(on.work(name), flow, reuse=True)))
    assert len(on.agent.asked) == 3


def test_reused_members_spend_nothing_of_a_limit(on: Stage) -> None:
    class Silent(Agent):
        async def __call__(self, prompt: str, context: Context) -> Reply:
            return Reply((await super().__call__(prompt, context)).text)  # it does not tell its cost

    flow, on.agent = (
        EACH.replace("each:", "at_once: 1\n    each:"),
        Silent({"lister": listing("a", "b", "c")}),
    )
    here = on.work("a")
    on.run(here, flow)
    second = on.run(here, flow, reuse=True, limits={"cost": 0.1})
    assert thread.find(on.store, second).state.reason == ""
