"""A runner that is killed, stopped or doubled: nothing is paid for twice, nobody is left at work."""

from __future__ import annotations

import json
import os
import signal
import subprocess

import pytest

from plan_run.stage import BOUND, DONE, PASS, Crew


def is_living(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            return file.read().rpartition(")")[2].split()[0] not in ("Z", "X")
    except FileNotFoundError:
        return False


def ended(child: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = child.communicate(timeout=BOUND)
    return child.returncode, out, err


def test_a_killed_run_goes_on_in_the_same_threads_and_sessions(crew: Crew) -> None:
    crew.score(**{"engineer: Slow": [DONE | {"hang": True}, DONE]})
    crew.task("Fast", owner="engineer", acceptance="returns 4")
    crew.task("Slow", owner="engineer")
    crew.task("Last", owner="engineer", deps=[1, 2])
    child = crew.spawn()
    crew.until(lambda: crew.statuses()[1] == "completed" and "engineer: Slow" in crew.asked())
    crew.until(lambda: crew.has_session(2))
    os.kill(child.pid, signal.SIGKILL)
    ended(child)
    assert crew.statuses() == {1: "completed", 2: "in_progress", 3: "pending"}
    result = crew.run()
    assert set(crew.statuses().values()) == {"completed"}
    assert sorted(crew.asked()) == [
        "engineer: Fast", "engineer: Last", "engineer: Slow", "engineer: Slow", "tester: Fast",
    ]  # fmt: skip
    slow = [call for call in crew.calls() if call["title"] == "Slow"]
    assert slow[1]["resumed"] == slow[0]["session"]
    assert not is_living(slow[0]["pid"])
    assert [event["task"] for event in result["events"] if event["event"] == "goes_on"] == [2]
    resumed = {entry["agent_id"]: (entry["status"], entry["resume_count"]) for entry in crew.tracker()}
    assert set(resumed.values()) == {("completed", 0), ("completed", 1)}
    assert resumed[f"{result['rows'][2]['thread']}:1"] == ("completed", 1)


@pytest.mark.parametrize("events", [1, 2, 4, 6, 9, 12, 16, 20])
def test_whenever_it_is_killed_every_step_is_answered_once(crew: Crew, events: int) -> None:
    for number in range(1, 5):
        crew.task(f"Task {number}", owner="engineer", acceptance="returns 4", deps=[1] if number == 4 else [])
    child = crew.spawn()
    assert child.stdout is not None
    for _ in range(events):
        assert child.stdout.readline()
    child.kill()
    ended(child)
    crew.run()
    assert set(crew.statuses().values()) == {"completed"}
    kept = json.loads((crew.project / ".nexus/state/rolecall/runs.json").read_text())["runs"]
    assert sorted(run["thread"] for run in kept.values()) == sorted(crew.threads())
    assert len(kept) == 4
    for run in kept.values():
        assert [step.role for step in crew.steps(run["thread"])] == ["engineer", "tester"]
    # Whoever had answered and was heard is not asked again: at most those at work at the kill were.
    assert len(crew.calls()) <= 8 + 3


def test_a_run_that_died_before_the_thread_it_planned_is_as_if_it_had_never_begun(crew: Crew) -> None:
    """The note of a thread comes before the thread, so nothing is left that no task knows."""
    crew.task("Add", owner="engineer")
    crew.run()
    file = crew.project / ".nexus/state/rolecall/runs.json"
    whole = json.loads(file.read_text())
    (run,) = whole["runs"].values()
    run |= {"thread": "01M7FRV970GDSPH2P66VJXPZBM", "is_settled": False, "is_planned": True}
    file.write_text(json.dumps(whole))
    crew.set(1, "pending")
    assert "continues in" not in crew.rolecall("plan", "run", "--dry-run", cwd=crew.project, check=0).stdout
    row = crew.run()["rows"][1]
    assert row["status"] == "completed"
    assert row["thread"] in crew.threads()


def test_an_answer_that_was_given_before_the_kill_is_not_asked_for_again(crew: Crew) -> None:
    crew.score(tester=[PASS | {"hang": True}, PASS])
    crew.task("Add", owner="engineer", acceptance="returns 4")
    child = crew.spawn()
    crew.until(lambda: "tester: Add" in crew.asked())
    child.kill()
    ended(child)
    crew.run()
    assert crew.asked() == ["engineer: Add", "tester: Add", "tester: Add"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_the_agents_and_leaves_tasks_pending_with_their_threads(
    crew: Crew, number: signal.Signals
) -> None:
    crew.score(**{"engineer": [DONE | {"hang": True}, DONE], "engineer: Four": [DONE]})
    for title in ("One", "Two", "Three", "Four"):
        crew.task(title, owner="engineer")
    child = crew.spawn()
    crew.until(lambda: len(crew.asked()) == 3)
    child.send_signal(number)
    code, out, err = ended(child)
    assert code == 130, err
    assert set(crew.statuses().values()) == {"pending"}
    assert [call["pid"] for call in crew.calls() if is_living(call["pid"])] == []
    rows = {row["task"]: row for row in json.loads(out.splitlines()[-1])["tasks"]}
    assert [rows[task]["status"] for task in (1, 2, 3, 4)] == ["stopped"] * 4
    assert err.splitlines()[-1] == "continue: rolecall plan run"
    assert {entry["status"] for entry in crew.tracker()} == {"completed"}
    result = crew.run()
    assert {row["status"] for row in result["rows"].values()} == {"completed"}
    assert [result["rows"][task]["thread"] for task in (1, 2, 3)] == [
        rows[task]["thread"] for task in (1, 2, 3)
    ]


def test_the_second_signal_ends_every_agent_at_once(crew: Crew) -> None:
    crew.score(engineer=[DONE | {"hang": True, "deaf": True}])
    crew.task("One", owner="engineer")
    crew.task("Two", owner="engineer")
    child = crew.spawn()
    crew.until(lambda: len(crew.calls("deaf")) == 2)
    child.send_signal(signal.SIGINT)
    crew.until(lambda: len(crew.calls("heard")) > 0)
    child.send_signal(signal.SIGINT)
    assert ended(child)[0] == 130
    crew.until(lambda: not any(is_living(call["pid"]) for call in crew.calls()))


def test_two_runners_never_work_on_one_project(crew: Crew) -> None:
    crew.score(engineer=[DONE | {"hang": True}, DONE])
    crew.task("One", owner="engineer")
    child = crew.spawn()
    crew.until(lambda: len(crew.asked()) == 1)
    done = crew.rolecall("plan", "run", cwd=crew.project)
    assert done.returncode == 5
    assert f"the plan is being run already, by process {child.pid} since 2" in done.stderr
    looked = crew.rolecall("plan", "run", "--dry-run", cwd=crew.project)
    assert looked.returncode == 0
    child.kill()
    ended(child)
    crew.run()
    assert len(crew.asked()) == 2


def test_a_thread_that_somebody_else_runs_is_left_to_them(crew: Crew) -> None:
    crew.score(engineer=[{"exit": 3}, DONE | {"hang": True}])
    crew.task("One", owner="engineer")
    ident = crew.run(check=7)["rows"][1]["thread"]
    child = subprocess.Popen(
        ["rolecall", "thread", "resume", ident, "--run"],
        executable=str(crew.program),
        cwd=crew.project,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "ROLECALL_HOME": str(crew.rolecall.home)},
    )
    crew.until(lambda: len(crew.asked()) == 2)
    row = crew.run()["rows"][1]
    assert row["status"] == "elsewhere"
    assert row["reason"].startswith(f"is being run by process {child.pid} on ")
    child.send_signal(signal.SIGINT)
    child.wait(BOUND)


def test_a_reader_that_goes_away_stops_the_run_like_a_signal(crew: Crew) -> None:
    """It is noticed when there is something to tell: here that the second task is done."""
    door = crew.fifo("door")
    crew.score(
        **{
            "engineer: One": [DONE | {"hang": True}],
            "engineer: Two": [DONE | {"meet": [door], "side": "left"}],
        }
    )
    crew.task("One", owner="engineer")
    crew.task("Two", owner="engineer")
    with crew.spawn() as child:
        assert child.stdout is not None
        crew.until(lambda: len(crew.asked()) == 2)
        child.stdout.close()
        crew.unlock(door)
        assert child.wait(BOUND) == 141
    assert crew.statuses()[1] == "pending"
    assert [call["pid"] for call in crew.calls() if is_living(call["pid"])] == []


def test_a_thread_that_a_person_kills_ends_alone_and_the_other_tasks_go_on(crew: Crew) -> None:
    door = crew.fifo("door")
    crew.score(
        **{
            "engineer: One": [DONE | {"hang": True}],
            "engineer: Two": [DONE | {"meet": [door], "side": "left"}],
        }
    )
    crew.task("One", owner="engineer")
    crew.task("Two", owner="engineer")
    crew.task("Three", owner="engineer", deps=[2])
    child = crew.spawn()
    crew.until(lambda: len(crew.asked()) == 2)
    runs = json.loads((crew.project / ".nexus/state/rolecall/runs.json").read_text())["runs"]
    (ident,) = [run["thread"] for name, run in runs.items() if name.startswith("1@")]
    crew.rolecall("thread", "kill", ident, cwd=crew.project, check=0)
    crew.until(lambda: crew.statuses()[1] == "pending")
    crew.unlock(door)
    code, out, err = ended(child)
    assert code == 6, err
    rows = {row["task"]: row for row in json.loads(out.splitlines()[-1])["tasks"]}
    assert (rows[1]["status"], rows[1]["reason"]) == ("failed", "killed by a person")
    assert crew.statuses() == {1: "pending", 2: "completed", 3: "completed"}
    assert [call["pid"] for call in crew.calls() if is_living(call["pid"])] == []
