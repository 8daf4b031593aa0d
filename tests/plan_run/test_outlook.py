"""`plan run --dry-run`: who would do what in which order, with nothing run and nothing written."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from plan_run.stage import Crew


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_nothing_is_run_and_nothing_is_written(crew: Crew) -> None:
    crew.task("One", owner="engineer")
    before = files_of(crew.project), sorted(crew.rolecall.home.iterdir())
    crew.run("--dry-run")
    assert (files_of(crew.project), sorted(crew.rolecall.home.iterdir())) == before
    assert crew.asked() == []


def test_the_outlook_has_waves_owners_agents_pairs_clashes_and_what_is_left(crew: Crew) -> None:
    crew.task("One", context="In src/a.py.", owner="engineer", acceptance="returns 4")
    crew.task("Two", context="In src/a.py.")
    crew.task("Three", owner="writer", deps=[1])
    crew.task("Four", owner="lead")
    crew.task("Five", owner="engineer", deps=[4])
    crew.task("Six", owner="engineer", deps=[6])
    found = crew.run("--dry-run", "--at-once", "5")
    assert [[job["task"] for job in wave] for wave in found["waves"]] == [[1], [2, 3]]
    one, two, three = (job for wave in found["waves"] for job in wave)
    assert (one["owner"], one["agent"], one["checker"]) == ("engineer", "player", "tester")
    assert one["pairing"] == "its acceptance says how the result behaves"
    assert (two["owner"], two["assumed"], two["checker"]) == ("engineer", True, "")
    assert two["clash"] == {"file": "src/a.py", "task": 1}
    assert (three["clash"], three["after"]) == (None, [1])
    assert {one["task"]: one["reason"] for one in found["left"]} == {
        4: "is Lead's",
        5: "waits for 4, which is Lead's",
        6: "waits for itself: 6 -> 6",
    }
    assert found["agents"] == dict.fromkeys(
        ("engineer", "tester", "architect", "writer", "strategist"), "player"
    )


def test_as_text_it_reads_from_top_to_bottom(crew: Crew) -> None:
    crew.task("One", context="In src/a.py.", acceptance="returns 4", goal="Beans")
    crew.task("Two", context="In src/a.py.", owner="engineer", deps=[1])
    crew.task("Three", owner="lead")
    done = crew.rolecall("plan", "run", "--dry-run", "--format", "text", cwd=crew.project, check=0)
    assert done.stdout.splitlines() == [
        "goal: Beans",
        "round 1:",
        "  1  engineer (by default), then tester: One",
        "     checked: its acceptance says how the result behaves",
        "     writes src/a.py",
        "round 2:",
        "  2  engineer, after 1: Two",
        "     not checked: it has no acceptance to check",
        "     writes src/a.py",
        "not by this run:",
        "  3  Three: is Lead's",
        "agents:",
        "  engineer, tester, architect: player",
    ]


def test_an_agent_that_is_missing_is_told_and_the_outlook_is_shown_all_the_same(crew: Crew) -> None:
    crew.configure(defaultAgent="")
    crew.task("One", owner="engineer")
    found = crew.run("--dry-run")
    assert found["waves"][0][0]["agent"] == found["agents"]["engineer"] == "no agent is named"
    shown = crew.rolecall("plan", "run", "--dry-run", "--format", "text", cwd=crew.project, check=0).stdout
    assert shown.splitlines()[-2:] == [
        "  engineer, architect: no agent is named",
        "  Set one for all (`rolecall config set defaultAgent NAME`), or use --agent.",
    ]


def test_a_thread_that_has_begun_is_named(crew: Crew) -> None:
    crew.score(engineer=[{"exit": 3}])
    crew.task("One", owner="engineer")
    thread = crew.run(check=7)["rows"][1]["thread"]
    assert crew.run("--dry-run")["waves"][0][0]["thread"] == thread


def test_a_thousand_tasks_of_depth_fifty_are_shown_in_a_moment(crew: Crew) -> None:
    def task(number: int) -> dict[str, Any]:
        first = (number - 1) // 20 * 20
        text = {"title": f"Task {number}", "context": f"Change src/f{number % 300}.py, as decided. " * 5}
        deps = list(range(first - 19, first + 1)) if first else []
        return {
            "id": number,
            "status": "pending",
            "owner": "engineer",
            "deps": deps,
            "acceptance": "returns 4",
            **text,
        }

    state = crew.project / ".nexus/state"
    state.mkdir(parents=True)
    tasks = [task(number) for number in range(1, 1001)]
    (state / "tasks.json").write_text(json.dumps({"goal": "Many", "decisions": [], "tasks": tasks}))
    started = time.monotonic()
    found = crew.run("--dry-run", "--at-once", "20")
    assert [len(wave) for wave in found["waves"]] == [20] * 50
    assert time.monotonic() - started < 100
