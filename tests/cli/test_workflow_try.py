"""`rolecall workflow try` as a user meets it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rolecall.api import open as open_store

if TYPE_CHECKING:
    from conftest import Rolecall

WORKFLOW = """\
name: fix-bug
roles:
  developer: {prompt: Mend it., schema: {type: object, properties: {status: {const: done}}, required: [status]}}
  reviewer: {prompt: Review it., schema: {type: object, properties: {status: {const: fine}}, required: [status]}}
graph:
  $START: developer
  developer: {done: reviewer}
  reviewer: {fine: $END}
limits: {steps: 9}
"""
USAGE = {"input_tokens": 900, "output_tokens": 100}


@pytest.fixture
def recorded(rolecall: Rolecall, tmp_path: Path) -> list[str]:
    """Two threads that have ended; only the second has reported what it cost."""
    (tmp_path / "fix-bug.yaml").write_text(WORKFLOW)
    threads = []
    with open_store(f"sqlite:{rolecall.home}/store.db", folder=tmp_path) as store:
        for cost in (None, 0.25):
            usage = USAGE if cost is None else {**USAGE, "cost": cost}
            visits = {
                role: [{"output": {"status": status}, "usage": usage}]
                for role, status in (("developer", "done"), ("reviewer", "fine"))
            }
            script = tmp_path / f"script-{cost}.json"
            script.write_text(json.dumps({"roles": visits}))
            thread = store.start("./fix-bug.yaml", f"Bug {cost}", agent=f"scripted:{script}")
            assert thread.run().wait().status == "completed"
            threads.append(str(thread.id))
    return threads


def edit(tmp_path: Path, old: str, new: str) -> str:
    place = tmp_path / "edited"
    place.mkdir(exist_ok=True)
    assert old in WORKFLOW
    (place / "fix-bug-2.yaml").write_text(WORKFLOW.replace(old, new))
    return str(place / "fix-bug-2.yaml")


def try_it(rolecall: Rolecall, *args: str, check: int = 1) -> Any:
    return json.loads(rolecall("workflow", "try", *args, "--json", check=check).stdout)


def test_threads_are_unchanged_or_differ_from_a_step_on(
    rolecall: Rolecall, tmp_path: Path, recorded: list[str]
) -> None:
    store = rolecall.home / "store.db"
    before = hashlib.sha256(store.read_bytes()).hexdigest()
    same = try_it(rolecall, str(tmp_path / "fix-bug.yaml"), check=0)
    assert (same["threads"], same["unchanged"], same["differ"], same["forecast"]) == (2, 2, 0, None)

    new = edit(tmp_path, "Review it.", "Review it twice.")
    found = try_it(rolecall, new)
    assert [trial["thread"] for trial in found["trials"]] == recorded
    [difference] = {json.dumps(trial["difference"]) for trial in found["trials"]}
    assert json.loads(difference) == {
        "step": 2, "role": "reviewer", "asks": "reviewer",
        "changes": [{"kind": "role", "parts": ["prompt"], "was": "", "now": "", "text": "the role's prompt"}],
    }  # fmt: skip
    # One of two threads knows its cost; both know their tokens.
    forecast = found["trials"][0]["forecast"]
    assert forecast["cost"] == {"low": 0.25, "median": 0.25, "high": 0.25}
    assert forecast["tokens"] == {"low": 1000, "median": 1000, "high": 1000}
    assert found["forecast"]["cost"]["median"] == 0.5

    text = rolecall("workflow", "try", new, check=1).stdout
    assert "2 threads, 2 would differ" in text
    assert "2 reviewer  the role's prompt  $0.50" in text
    assert max(map(len, text.splitlines())) <= 80
    assert hashlib.sha256(store.read_bytes()).hexdigest() == before


def test_what_the_past_does_not_know_is_unknown(
    rolecall: Rolecall, tmp_path: Path, recorded: list[str]
) -> None:
    new = edit(tmp_path, "{fine: $END}", "{fine: publisher}\n  publisher: $END")
    Path(new).write_text(
        Path(new).read_text().replace("graph:", "  publisher: {prompt: P., schema: {type: object}}\ngraph:")
    )
    [trial] = try_it(rolecall, new, recorded[0])["trials"]
    assert trial["difference"]["step"] == 3 and trial["difference"]["asks"] == "publisher"
    assert trial["forecast"] == {"cost": None, "tokens": None, "minutes": None, "past": 0}
    text = rolecall("workflow", "try", new, recorded[0][-6:], check=1).stdout
    assert "after 2  goes to publisher, ended before  unknown" in text
    ended = rolecall("workflow", "try", edit(tmp_path, "done: reviewer", "done: $END"), check=2).stderr
    assert "cannot be reached" in ended


def test_threads_to_try_are_named_or_chosen_by_their_age(
    rolecall: Rolecall, tmp_path: Path, recorded: list[str]
) -> None:
    file = str(tmp_path / "fix-bug.yaml")
    assert try_it(rolecall, file, "--on", "1d", check=0)["threads"] == 2
    assert try_it(rolecall, file, recorded[1], check=0)["threads"] == 1
    assert "no thread is recorded" in rolecall("workflow", "try", file, "--on", "2999-01-01", check=3).stderr
    assert "Give one of them" in rolecall("workflow", "try", file, recorded[0], "--on", "1d", check=2).stderr


def test_code_runs_only_if_that_is_asked_for(rolecall: Rolecall, tmp_path: Path, recorded: list[str]) -> None:
    (tmp_path / "cloned").mkdir()
    file, mark = tmp_path / "cloned" / "fix-bug-2.py", tmp_path / "mark"
    file.write_text(
        "from pathlib import Path\n"
        "from rolecall import END, Role, Workflow\n"
        f"Path({str(mark)!r}).touch()\n"
        "status = {'type': 'object', 'properties': {'status': {'type': 'string'}}}\n"
        "roles = {'developer': Role(None, 'Mend it.', status), 'critic': Role(None, 'Judge it.', status)}\n"
        "def decide(context):\n"
        "    return END if len(context.steps) > 1 else 'critic' if context.steps else 'developer'\n"
        "workflow = Workflow('fix-bug', roles, decide)\n"
    )
    refused = rolecall("workflow", "try", str(file), recorded[0], check=2).stderr
    assert "written in Python" in refused and "--code" in refused
    assert not mark.exists()
    [trial] = try_it(rolecall, str(file), recorded[0], "--code")["trials"]
    assert mark.exists()
    assert (trial["difference"]["step"], trial["difference"]["role"]) == (1, "developer")
