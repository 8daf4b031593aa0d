"""`run --dry`: what it says is what a run with the same choice does afterwards."""

from __future__ import annotations

import copy
import hashlib
import json
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rolecall.api import Rolecall, Thread
from rolecall.api import open as open_store
from rolecall.settings import config
from rolecall.threads.dry_run import Outlook

if TYPE_CHECKING:
    from conftest import Rolecall as Command

Document = dict[str, Any]


def _role(prompt: str) -> Document:
    schema = {"type": "object", "properties": {"status": {"const": "done"}}, "required": ["status"]}
    return {"prompt": prompt, "schema": schema}


BASE: Document = {
    "name": "fix-bug",
    "roles": {"planner": _role("Plan."), "developer": _role("Mend."), "reviewer": _role("Review.")},
    "graph": {
        "$START": "planner",
        "planner": {"done": "developer"},
        "developer": {"done": "reviewer"},
        "reviewer": {"done": "$END"},
    },
    "limits": {"steps": 9},
}
SCRIPT = {
    role: [{"output": {"status": "done"}, "usage": {"input_tokens": 90, "output_tokens": 10, "cost": cost}}]
    for role, cost in (("planner", 0.1), ("developer", 0.2), ("reviewer", 0.4), ("tester", 0.8))
}
SCRIPT["developer"][0]["edit"] = {"a.txt": "mended\n"}


@pytest.fixture
def rc(tmp_path: Path) -> Iterator[Rolecall]:
    (tmp_path / "work").mkdir()
    (tmp_path / "script.json").write_text(json.dumps({"roles": SCRIPT}))
    write(tmp_path, BASE)
    with open_store(":memory:", folder=tmp_path) as opened:
        yield opened


def write(folder: Path, document: Document) -> None:
    """Write the workflow, and the files that a thread finds."""
    (folder / "fix-bug.yaml").write_text(json.dumps(document))
    (folder / "work" / "a.txt").write_text("broken\n")


def look(rc: Rolecall, prompt: str = "The bug", *, reuse: bool | None = True) -> Outlook:
    work = f"{rc.folder}/work"
    return rc.look_ahead("./fix-bug.yaml", prompt, agent="scripted:script.json", folder=work, reuse=reuse)


def run(rc: Rolecall, prompt: str = "The bug") -> Thread:
    work = f"{rc.folder}/work"
    thread = rc.start("./fix-bug.yaml", prompt, agent="scripted:script.json", folder=work, reuse=True)
    return thread.run().wait()


def change(role: str, **fields: Any) -> Callable[[Document], object]:
    return lambda new: new["roles"][role].update(fields)


def group(document: Document, role: str) -> None:
    document["roles"][role].update(times=1, workdir="shared")
    document["graph"][role] = dict.fromkeys(("done", "partly", "failed"), "$END")


@pytest.mark.parametrize(
    ("edit", "reused", "cost"),
    [
        (lambda _: None, 3, 0.0),
        (change("planner", prompt="Plan well."), 0, 0.7),
        (change("reviewer", prompt="Review well."), 2, 0.4),
        (change("developer", reuse=False), 1, 0.6),
        (lambda new: new["graph"]["planner"].update(done={"role": "developer", "prompt": "Go."}), 1, 0.6),
        (lambda new: new.update(limits={"steps": 1}), 1, 0.0),
        (lambda new: new.update(workdir="copy"), 3, 0.0),
        (lambda new: group(new, "reviewer"), 2, 0.4),
    ],
    ids=["same", "first prompt", "last prompt", "reuse false", "instruction", "limit", "copy", "group"],
)
def test_a_run_reuses_what_the_dry_run_said(
    rc: Rolecall, tmp_path: Path, edit: Callable[[Document], object], reused: int, cost: float
) -> None:
    first = run(rc)
    assert (first.status, first.usage["cost"]) == ("completed", 0.7)
    new = copy.deepcopy(BASE)
    edit(new)
    write(tmp_path, new)

    outlook = look(rc)
    assert (tmp_path / "work" / "a.txt").read_text() == "broken\n"
    assert [one.origin.thread for one in outlook.reused] == [first.id] * reused
    costs = outlook.forecast.past("cost")
    assert costs == [pytest.approx(cost)]

    second = run(rc)
    taken = list(takewhile(lambda step: step.reused is not None, second.steps))
    assert [step.number for step in taken] == [one.number for one in outlook.reused]
    asked = second.steps[len(taken) :]
    assert outlook.asks == (asked[0].role if asked else None)


def test_what_is_not_known_is_not_promised(rc: Rolecall, tmp_path: Path) -> None:
    unknown = look(rc)
    assert (unknown.reused, unknown.asks, unknown.threads) == ((), "planner", 0)
    assert unknown.forecast.past("cost") == [] and unknown.forecast.past("minutes") == []
    run(rc)
    write(tmp_path, BASE)
    assert len(look(rc).reused) == 3
    assert look(rc, reuse=None).reused == look(rc, reuse=False).reused == ()
    run(rc)
    write(tmp_path, BASE)
    other = look(rc, "Another bug")  # what reuse has saved counts, because it would be paid again
    assert (other.asks, other.forecast.past("cost")) == ("planner", [0.7, 0.7])
    (tmp_path / "work" / "b.txt").write_text("new")
    assert look(rc).asks == "planner"


def test_only_files_that_a_step_changed_must_be_on_this_machine(rc: Rolecall, tmp_path: Path) -> None:
    tree = run(rc).steps[0].tree
    assert tree is not None
    shutil.rmtree(Path(config.trees_folder(rc.store.backend.address), tree.found.repository))
    write(tmp_path, BASE)
    (tmp_path / "work").rename(tmp_path / "other")  # whose snapshots are elsewhere
    (tmp_path / "work").symlink_to("other")
    outlook = look(rc)
    assert (len(outlook.reused), outlook.asks) == (1, "developer")
    assert "are not on this machine" in outlook.reason
    assert [step.reused is not None for step in run(rc).steps[:2]] == [True, False]


def test_a_damaged_step_is_not_promised(rc: Rolecall, tmp_path: Path) -> None:
    step = run(rc).steps[1]
    write(tmp_path, BASE)
    with sqlite3.connect(rc.store.backend.address.removeprefix("sqlite:")) as database:
        database.execute("UPDATE nodes SET data = x'00' WHERE id = ?", (step.id,))
    database.close()
    outlook = look(rc)
    assert (len(outlook.reused), outlook.asks) == (1, "developer")
    assert f"node {step.id} is damaged" in outlook.reason
    assert [step.reused is not None for step in run(rc).steps[:2]] == [True, False]


def test_the_command_says_it_and_stores_nothing(rolecall: Command, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "script.json").write_text(json.dumps({"roles": SCRIPT}))
    write(tmp_path, BASE)
    words = ("run", "./fix-bug.yaml", "--cwd", "work", "--agent", "scripted:script.json", "--reuse")
    text = rolecall(*words, "-p", "The bug", "--dry", cwd=tmp_path, check=0).stdout
    assert "planner would be asked" in text and "may cost: unknown" in text
    assert not (rolecall.home / "store.db").exists()

    rolecall(*words, "-p", "The bug", cwd=tmp_path, check=0)
    edited = {**BASE, "roles": {**BASE["roles"], "reviewer": _role("Look.")}}
    write(tmp_path, edited)
    store = rolecall.home / "store.db"
    before = hashlib.sha256(store.read_bytes()).hexdigest()
    text = rolecall(*words, "-p", "The bug", "--dry", cwd=tmp_path, check=0).stdout
    assert "✓ 2 developer · reused from …" in text and "saves $0.20" in text
    assert "reviewer would be asked: no finished step" in text
    assert "the rest may cost: $0.40 (from 1 earlier thread of this workflow)" in text
    (tmp_path / "each").write_text("The bug\nAnother bug\n")
    each = rolecall.json(*words, "--each", "each", "--dry", cwd=tmp_path)
    assert [(len(one["reused"]), one["asks"]) for one in each] == [(2, "reviewer"), (0, "planner")]
    assert each[1]["forecast"]["cost"]["median"] == 0.7
    assert hashlib.sha256(store.read_bytes()).hexdigest() == before
