"""`workflow try`: recorded threads walked through edited workflows.

What really happens is the judge: the edited workflow is run, with agents that give the recorded answers as long as they
are asked the recorded questions.
"""

from __future__ import annotations

import asyncio
import copy
import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from itertools import zip_longest
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
from stage import book, engine, open_store, start, steps

from rolecall.errors import AgentError
from rolecall.settings.mask import Mask
from rolecall.store.sqlite import SqliteBackend
from rolecall.store.store import Store
from rolecall.threads import lifecycle, thread
from rolecall.threads.engine import Cast
from rolecall.threads.state import ThreadRef
from rolecall.threads.tryout import Trial, Tryout
from rolecall.workflow.model import SUSPEND
from rolecall.workflow.playbook import Playbook

Document = dict[str, Any]
TEXT = {"type": "string"}


def _schema(*statuses: str, **fields: Any) -> Document:
    properties = {"status": {"enum": list(statuses)}, "note": TEXT, **fields}
    return {"type": "object", "properties": properties, "required": ["status"]}


BASE: Document = {
    "name": "ship-it",
    "description": "Plan, build, review each file, check",
    "roles": {
        "planner": {
            "prompt": "Plan it.",
            "schema": _schema("planned", "rejected", files={"type": "array", "items": TEXT}),
        },
        "developer": {
            "prompt": "Build it.",
            "procedure": "Small steps.",
            "capabilities": ["Python"],
            "schema": _schema("done"),
        },
        "reviewers": {
            "prompt": "Review {{item}}.",
            "workdir": "shared",
            "each": "steps[role='planner'][-1].output.files",
            "schema": _schema("fine", "poor"),
        },
        "checker": {"prompt": "Check it.", "schema": _schema("again", "end")},
    },
    "conditions": {"lost": "steps[-1].output.note = 'lost'"},
    "graph": {
        "$START": "planner",
        "planner": {
            "planned": {"role": "developer", "prompt": "Build {{note}}."},
            "rejected": {"role": "$FAIL", "prompt": "Rejected: {{note}}"},
        },
        "developer": [
            {"role": "planner", "condition": "lost", "prompt": "Plan again."},
            {"role": "reviewers"},
        ],
        "reviewers": {"done": "checker", "partly": "developer", "failed": "developer"},
        "checker": {
            "again": {"role": "developer", "prompt": "Once more: {{note}}", "location": "sub"},
            "end": "$END",
        },
    },
    "limits": {"steps": 40},
}

ANSWERS = {
    "long": {
        "planner": ["planned a [x.py]"],
        "developer": ["done one", "done two"],
        "checker": ["again worse", "end"],
    },
    "lost": {
        "planner": ["planned a [x.py]", "planned b [y.py]"],
        "developer": ["done lost", "done found"],
        "checker": ["end"],
    },
    "rejected": {"planner": ["rejected no"]},
}
"""What each role answers, in the order of its turns; members always answer `fine`."""


_IDS = re.compile(r"[0-9A-Z]{26}")
Call = tuple[str, str, str, str, str]
"""The role, the agent it names, what it is asked, its restrictions and its folder."""


class Agents:
    """Agents that answer as planned, as long as they are asked what was `recorded`, if that is given."""

    def __init__(self, answers: dict[str, list[str]], recorded: list[set[Call]] | None = None) -> None:
        self.calls: list[set[Call]] = []
        """What was asked in each step; the members of a group belong to one step."""
        self.is_stopped = asyncio.Event()
        self._answers = {role: iter(said) for role, said in answers.items()}
        self._recorded = recorded

    def cast(self, workflow: Playbook, role: str) -> Cast:
        async def answer(prompt: str, context: Any) -> str:
            words = ",".join(sorted(context.capabilities))
            agent = str(workflow.workflow.roles[role].agent)
            call = (role, agent, _IDS.sub("ID", prompt), words, context.workdir.name)
            if role == "reviewers" and self.calls and any(one[0] == role for one in self.calls[-1]):
                self.calls[-1].add(call)
            else:
                self.calls.append({call})
            expected = (self._recorded or self.calls)[: len(self.calls)]
            if len(expected) < len(self.calls) or call not in expected[-1]:
                self.is_stopped.set()
                raise AgentError("asked something else", ending="failed")
            status, _, rest = ("fine" if role == "reviewers" else next(self._answers[role])).partition(" ")
            note, _, files = rest.partition(" ")
            fields = [
                f"{'$' if status == SUSPEND else ''}status: {status}",
                note and f"note: {note}",
                files and f"files: {files}",
            ]
            return "\n".join(["---", *filter(None, fields), "---", "The report."])

        return Cast("test", answer)


def go_on(store: Store, name: str, agents: Agents) -> None:
    async def advance() -> None:
        async for _ in engine(store, {}, cast=agents.cast).run(name, cancel=agents.is_stopped):
            pass

    asyncio.run(advance())


def play(store: Store, workflow: Playbook, folder: Path, agents: Agents) -> ThreadRef:
    name = start(store, workflow, folder)
    go_on(store, name, agents)
    return thread.find(store, name)


def find_true_difference(
    store: Store, workflow: Playbook, folder: Path, kind: str, recorded: list[set[Call]], was: ThreadRef
) -> int | None:
    """Run the edited workflow; the number of the first step that is not as it was recorded, or None."""
    agents = Agents(ANSWERS[kind], recorded)
    now = play(store, workflow, folder, agents)
    for number, (one, other) in enumerate(zip_longest(agents.calls, recorded), 1):
        if one != other:
            return number
    return None if now.state.status == was.state.status else len(recorded) + 1


# -- edits --

Edit = Callable[[Document], object]


def edits() -> Iterator[tuple[str, Edit]]:
    """Edits of the workflow, each with its name."""
    for role, field in zip(BASE["roles"], ("prompt", "procedure", "description", "output"), strict=True):
        yield f"{field} of {role}", partial(set_field, role, {field: "Something else."})
        schema = BASE["roles"][role]["schema"]
        more = {**schema, "properties": {**schema["properties"], "more": TEXT}}
        yield f"schema of {role}", partial(set_field, role, {"schema": more})
        yield f"skills of {role}", partial(set_field, role, {"capabilities": ["Rust"]})
        yield f"restriction of {role}", partial(set_field, role, {"capabilities": ["read_only"]})
        yield f"agent of {role}", partial(set_field, role, {"agent": "codex"})
        yield f"another name for {role}", partial(rename, role, "somebody")

    graph: Callable[[Document], Any] = itemgetter("graph")
    yield "prompt after planned", lambda new: graph(new)["planner"]["planned"].update(prompt="Say {{note}}.")
    yield (
        "prompt after rejected",
        lambda new: graph(new)["planner"]["rejected"].update(prompt="Say {{note}}."),
    )
    yield "prompt after again", lambda new: graph(new)["checker"]["again"].update(prompt="Say {{note}}.")
    yield (
        "prompt at the start",
        lambda new: graph(new).update({"$START": {"role": "planner", "prompt": "Begin."}}),
    )
    yield "prompt before the group", lambda new: graph(new)["developer"][1].update(prompt="Look.")
    yield (
        "prompt after the group",
        lambda new: graph(new)["reviewers"].update(done={"role": "checker", "prompt": "They said {{done}}."}),
    )
    yield (
        "a prompt that cannot be written",
        lambda new: graph(new)["checker"]["again"].update(prompt="{{#note}}{{/note}}"),
    )
    yield "folder of an edge", lambda new: graph(new)["planner"]["planned"].update(location="sub")

    yield "no folder for an edge", lambda new: graph(new)["checker"]["again"].pop("location")

    yield "another first role, also when lost", lambda new: graph(new).update({"$START": "developer"})
    yield "rejected goes on", lambda new: graph(new)["planner"].update(rejected="developer")
    yield "planned is checked at once", lambda new: graph(new)["planner"].update(planned="checker")
    yield "again plans", lambda new: graph(new)["checker"].update(again="planner")
    yield "again ends", lambda new: graph(new)["checker"].update(again="$END")
    yield "again fails", lambda new: graph(new)["checker"].update(again="$FAIL")
    yield "the end plans", lambda new: graph(new)["checker"].update(end="planner")
    yield "the end fails", lambda new: graph(new)["checker"].update(end="$FAIL")
    yield "an edge that no thread took", lambda new: graph(new)["reviewers"].update(partly="planner")
    yield "an edge less, never lost", lambda new: (new.pop("conditions"), graph(new)["developer"].pop(0))

    yield "never lost", lambda new: new["conditions"].update(lost="false")
    yield "always lost", lambda new: new["conditions"].update(lost="true")
    yield "lost if it says two", lambda new: new["conditions"].update(lost="steps[-1].output.note = 'two'")
    yield (
        "a condition that fails",
        lambda new: new["conditions"].update(lost="$number(steps[-1].output.note) > 1"),
    )
    yield (
        "the same condition in other words",
        lambda new: new["conditions"].update(lost="$not(steps[-1].output.note != 'lost')"),
    )

    def insert(new: Document, after: str) -> None:
        new["roles"]["tester"] = {"prompt": "Test it.", "schema": _schema("again", "end")}
        new["graph"]["tester"] = {
            "again": "developer",
            "end": "reviewers" if after == "developer" else "$END",
        }
        if after == "developer":
            new["graph"]["developer"][1]["role"] = "tester"
        else:
            new["graph"]["checker"]["end"] = "tester"

    yield "a new role in between", lambda new: insert(new, "developer")
    yield "a new role at the end", lambda new: insert(new, "checker")
    yield "another list", lambda new: new["roles"]["reviewers"].update(each="['z.py']")
    yield (
        "the same list in other words",
        lambda new: new["roles"]["reviewers"].update(
            each="steps[role = 'planner'][-1].output.files[$length($) > 0]"
        ),
    )
    yield (
        "a list from elsewhere",
        lambda new: new["roles"]["reviewers"].update(each="$string(steps[-1].output.note)"),
    )
    yield "a lower limit", lambda new: new.update(limits={"steps": 2})
    yield "a lower limit of a role", lambda new: new["roles"]["developer"].update(limits={"steps": 1})

    # What nobody is asked, and what no thread depends on.
    yield "a higher limit", lambda new: new.update(limits={"steps": 400})
    yield "description and version", lambda new: new.update(description="Other words", version="2")
    yield "how many at once", lambda new: new["roles"]["reviewers"].update(at_once=1, deadline=60)
    yield "after a crash", lambda new: new.update(on_crash="restore")
    yield (
        "a condition's description",
        lambda new: new["conditions"].update(
            lost={"expression": BASE["conditions"]["lost"], "description": "It has lost its way"}
        ),
    )


def set_field(role: str, fields: Document, document: Document) -> None:
    document["roles"][role].update(fields)


def rename(role: str, other: str, document: Document) -> None:
    document["roles"][other] = document["roles"].pop(role)
    document["graph"] = json.loads(json.dumps(document["graph"]).replace(f'"{role}"', f'"{other}"'))


def edited(edit: Edit) -> Playbook:
    document = copy.deepcopy(BASE)
    edit(document)
    return book(json.dumps(document))


def test_every_edit_is_found_at_the_step_where_it_really_makes_a_difference(tmp_path: Path) -> None:
    (tmp_path / "work" / "sub").mkdir(parents=True)
    store = Store(SqliteBackend(str(tmp_path / "store.db"), durability="never"))
    base, threads, recorded = book(json.dumps(BASE)), {}, {}
    for kind, answers in ANSWERS.items():
        agents = Agents(answers)
        threads[kind] = play(store, base, tmp_path / "work", agents)
        recorded[kind] = agents.calls
    assert [ref.state.status for ref in threads.values()] == ["completed", "completed", "failed"]

    wrong, count = [], 0
    for name, edit in edits():
        new = edited(edit)
        found = {trial.thread: trial for trial in Tryout(store, new).walk(threads.values())}
        count += 1
        for kind, ref in threads.items():
            if kind != "long" and kind not in name:  # the long thread has every role
                continue
            there = found[ref.id].difference
            true = find_true_difference(store, new, tmp_path / "work", kind, recorded[kind], ref)
            if (there.step if there else None) != true:
                wrong.append(f"{name}, {kind}: found {there}, true {true}")
    assert not wrong, "\n".join(wrong)
    assert count >= 50


# -- threads that people steered, and code --


def walk_one(store: Store, new: Playbook, ref: ThreadRef) -> Trial:
    [trial] = Tryout(store, new).walk([ref])
    return trial


def test_answers_of_people_and_forks_are_part_of_the_way(tmp_path: Path) -> None:
    store, folder = open_store(tmp_path / "store.db"), tmp_path / "work"
    (folder / "sub").mkdir(parents=True)
    base = book(json.dumps(BASE))
    asking = {**ANSWERS["lost"], "planner": ["$SUSPEND", "planned a [x.py]"], "developer": ["done two"]}
    ref = play(store, base, folder, Agents(asking))
    assert ref.state.status == "suspended"
    assert walk_one(store, base, ref).difference is None
    assert walk_one(store, edited(partial(rename, "developer", "builder")), ref).difference is None
    asking["planner"] = asking["planner"][1:]
    resumed = lifecycle.resume(store, ref, mask=Mask([]), answer="Go on.")
    go_on(store, resumed.id, Agents(asking))
    ref = thread.find(store, ref.id)
    assert ref.state.status == "completed"

    assert walk_one(store, base, ref).difference is None
    renamed = walk_one(store, edited(partial(rename, "planner", "architect")), ref).difference
    assert renamed is not None and (renamed.step, renamed.asks) == (1, "architect")
    prompt = walk_one(
        store, edited(lambda new: new["roles"]["developer"].update(prompt="Hm.")), ref
    ).difference
    assert prompt is not None and (prompt.step, prompt.role) == (4, "developer")

    # The steps before a fork belong to the version that took them.
    other = edited(lambda new: new["roles"]["checker"].update(prompt="Hm."))
    fork = lifecycle.fork(store, steps(store, ref.id)[3].id, mask=Mask([]), source=ref, workflow=other)
    go_on(store, fork.id, Agents(ANSWERS["lost"]))
    fork = thread.find(store, fork.id)
    found = walk_one(store, base, fork).difference
    assert found is not None and (found.role, str(found)) == ("checker", "the role's prompt")
    assert walk_one(store, other, fork).difference is None


@pytest.mark.parametrize(
    ("edit", "step", "what"),
    [
        (lambda new: new["roles"]["developer"].update(resume="persistent"), 2, "the role's resume"),
        (lambda new: new["roles"]["reviewers"].update(join="any"), 3, "the group's join"),
        (lambda new: new["roles"]["checker"].update(workdir="copy"), 4, "the work folder: copy, was shared"),
        (lambda new: new["roles"]["checker"].update(agent="human"), 4, "the agent: human, was none"),
        (
            lambda new: new["roles"]["developer"].update(sandbox={"network": "none", "write": []}),
            2,
            "the sandbox: writes nothing, no network, was none",
        ),
        (lambda new: new["roles"]["reviewers"].update(sandbox="off"), 3, "the sandbox: off, was none"),
        (lambda new: new.update(sandbox={}), 1, "the sandbox: the defaults, was none"),
    ],
)
def test_what_a_prompt_does_not_show_counts_as_well(tmp_path: Path, edit: Edit, step: int, what: str) -> None:
    (tmp_path / "sub").mkdir()
    store = open_store(tmp_path / "store.db")
    ref = play(store, book(json.dumps(BASE)), tmp_path, Agents(ANSWERS["long"]))
    found = walk_one(store, edited(edit), ref).difference
    assert found is not None and (found.step, str(found)) == (step, what)
