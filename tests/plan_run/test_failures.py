"""When a task fails: one diagnosis, one more attempt, then a person; and a check that finds its work wanting."""

from __future__ import annotations

import json
from typing import Any

from plan_run.stage import AGAIN, BLOCKED, DONE, FAIL, PASS, PROGRAM, Crew

RUNS = "returns 4"
WRONG: dict[str, Any] = {
    "output": {"status": "task_wrong", "cause": "4 is not a letter", "correction": "Ask for a letter."}
}


def roles(crew: Crew, thread: str) -> list[str]:
    return [step.role for step in crew.steps(thread)]


# -- a task of an engineer --


def test_a_failure_is_diagnosed_and_the_owner_tries_again_with_the_diagnosis(crew: Crew) -> None:
    crew.score(engineer=[BLOCKED, DONE])
    crew.task("Add", owner="engineer", acceptance=RUNS)
    row = crew.run()["rows"][1]
    assert (row["status"], row["verdict"]) == ("completed", "pass")
    assert roles(crew, row["thread"]) == ["engineer", "architect", "engineer", "tester"]
    first, diagnosis, second, _ = crew.calls()
    assert "engineer ended with `blocked`: The door is shut." in diagnosis["prompt"]
    assert "Cause: a.py:3 is off by one\n\nCorrection: Count from 0." in second["prompt"]
    assert second["resumed"] is None
    assert first["session"] != second["session"]


def test_a_bad_verdict_is_a_failure_of_the_work(crew: Crew) -> None:
    crew.score(tester=[FAIL, PASS])
    crew.task("Add", owner="engineer", acceptance=RUNS)
    row = crew.run()["rows"][1]
    assert row["status"] == "completed"
    assert roles(crew, row["thread"]) == ["engineer", "tester", "architect", "engineer", "tester"]


def test_the_second_failure_is_for_a_person_and_the_others_go_on(crew: Crew) -> None:
    crew.score(**{"engineer: Bad": [BLOCKED]})
    crew.task("Bad", owner="engineer")
    crew.task("Good", owner="engineer")
    crew.task("After bad", owner="engineer", deps=(1,))
    result = crew.run(check=7)
    row = result["rows"][1]
    assert roles(crew, row["thread"]) == ["engineer", "architect", "engineer"]
    assert (row["status"], row["command"]) == ("waiting", f"rolecall thread answer {row['thread']} --run")
    assert row["reason"].startswith("engineer ended with `blocked`: The door is shut. The task has failed")
    assert result["rows"][2]["status"] == "completed"
    assert result["rows"][3]["reason"] == "waits for 1, which waits for a person"
    assert crew.statuses() == {1: "pending", 2: "completed", 3: "pending"}


def test_a_waiting_task_is_not_asked_again_by_another_run(crew: Crew) -> None:
    crew.score(engineer=[BLOCKED])
    crew.task("Bad", owner="engineer")
    first = crew.run(check=7)["rows"][1]
    second = crew.run(check=7)["rows"][1]
    assert (second["thread"], second["status"]) == (first["thread"], "waiting")
    assert len(crew.asked()) == 3


def test_a_person_sends_it_another_way_and_the_next_run_goes_on_in_the_same_thread(crew: Crew) -> None:
    crew.score(engineer=[BLOCKED, BLOCKED, DONE])
    crew.task("Bad", owner="engineer")
    thread = crew.run(check=7)["rows"][1]["thread"]
    answer = ("--field", "status=another_way", "--field", "how=Use the window.")
    crew.rolecall("thread", "answer", thread, *answer, cwd=crew.project, check=0)
    row = crew.run()["rows"][1]
    assert (row["thread"], row["status"]) == (thread, "completed")
    assert roles(crew, thread) == ["engineer", "architect", "engineer", "person", "engineer"]
    assert "Use the window." in crew.calls()[-1]["prompt"]


def test_a_person_changes_the_task_and_lets_the_thread_run_without_the_runner(crew: Crew) -> None:
    crew.score(engineer=[BLOCKED, BLOCKED, DONE])
    crew.task("Bad", owner="engineer")
    thread = crew.run(check=7)["rows"][1]["thread"]
    answer = ("--field", "status=change_task", "--field", "change=Half of it will do.")
    crew.rolecall("thread", "answer", thread, *answer, cwd=crew.project, check=0)
    crew.rolecall("thread", "run", thread, cwd=crew.project, check=0)
    assert crew.statuses() == {1: "pending"}
    row = crew.run()["rows"][1]
    assert row["status"] == "completed"
    assert "Half of it will do." in crew.calls()[-1]["prompt"]
    assert crew.statuses() == {1: "completed"}
    assert len(crew.asked()) == 4


def test_what_a_person_has_stopped_is_left_until_it_is_asked_for_by_number(crew: Crew) -> None:
    crew.score(engineer=[BLOCKED, BLOCKED, DONE])
    crew.task("Bad", owner="engineer")
    thread = crew.run(check=7)["rows"][1]["thread"]
    answer = ("--field", "status=stop", "--field", "why=Not worth it.")
    crew.rolecall("thread", "answer", thread, *answer, cwd=crew.project, check=6)
    row = crew.run(check=6)["rows"][1]
    assert (row["status"], row["reason"]) == ("failed", "A person has stopped it: Not worth it.")
    assert row["command"] == "rolecall plan run --task 1"
    assert len(crew.asked()) == 3
    restarted = crew.run("--task", "1")["rows"][1]
    assert restarted["status"] == "completed"
    assert restarted["thread"] != thread


def test_a_diagnosis_that_finds_the_task_wrong_goes_to_the_person_at_once(crew: Crew) -> None:
    crew.score(engineer=[BLOCKED], architect=[WRONG])
    crew.task("Bad", owner="engineer")
    row = crew.run(check=7)["rows"][1]
    assert roles(crew, row["thread"]) == ["engineer", "architect"]
    assert "The diagnosis says that the task itself is wrong: 4 is not a letter" in row["reason"]


def test_an_owner_whom_nobody_diagnoses_is_a_persons_at_once(crew: Crew) -> None:
    crew.score(designer=[BLOCKED])
    crew.task("Draw", owner="designer")
    row = crew.run(check=7)["rows"][1]
    assert roles(crew, row["thread"]) == ["designer"]


def test_an_agent_that_gives_no_answer_is_asked_again_by_the_next_run(crew: Crew) -> None:
    crew.score(engineer=[{"exit": 3}, DONE])
    crew.task("Add", owner="engineer")
    row = crew.run(check=7)["rows"][1]
    assert row["status"] == "waiting"
    assert "exited with status 3" in row["reason"]
    assert row["command"] == f"rolecall thread resume {row['thread']} --run"
    assert [entry["status"] for entry in crew.tracker()] == ["completed"]
    again = crew.run()["rows"][1]
    assert (again["thread"], again["status"]) == (row["thread"], "completed")


def test_a_role_that_asks_a_person_itself_waits_for_the_answer(crew: Crew) -> None:
    asks = {"output": {"$status": "$SUSPEND", "reason": "Which of the two doors?"}}
    crew.score(engineer=[asks, DONE])
    crew.task("Add", owner="engineer")
    row = crew.run(check=7)["rows"][1]
    assert (row["status"], row["reason"]) == ("waiting", "Which of the two doors?")
    assert row["command"] == f"rolecall thread answer {row['thread']} --run"
    assert crew.run(check=7)["rows"][1]["status"] == "waiting"
    assert len(crew.asked()) == 1
    words = (*row["command"].split()[1:], "-p", "The left one.")
    assert crew.rolecall(*words, check=0, cwd=crew.project).stderr == ""
    again = crew.run()["rows"][1]
    assert (again["thread"], again["status"]) == (row["thread"], "completed")
    assert crew.statuses() == {1: "completed"}


# -- a check that is a task of its own --


def test_a_check_that_fails_has_its_work_done_again_and_checks_once_more(crew: Crew) -> None:
    crew.score(tester=[FAIL, PASS])
    crew.task("Add", owner="engineer", context="In src/a.py.", acceptance=RUNS)
    crew.task("Try it", owner="tester", deps=(1,))
    crew.task("Next", owner="engineer", deps=(1, 2))
    result = crew.run()
    assert crew.asked() == [
        "engineer: Add",
        "tester: Try it",
        "architect: Try it",
        "engineer: Try it",
        "tester: Try it",
        "engineer: Next",
    ]
    assert set(crew.statuses().values()) == {"completed"}
    assert roles(crew, result["rows"][2]["thread"]) == ["tester", "architect", "engineer", "tester"]
    again = crew.calls()[3]["prompt"]
    assert "WORK TO CHECK: task 1:\nAdd\n\nContext:\nIn src/a.py.\n\nAcceptance:\nreturns 4" in again


def test_work_that_failed_its_check_is_not_completed_any_more(crew: Crew) -> None:
    """The status is looked at by the agent that does it again, in the middle of the run."""
    crew.score(
        **{"tester": [FAIL, PASS], "engineer: Try it": [DONE | {"run": [PROGRAM, "task", "list", "--json"]}]}
    )
    crew.task("Add", owner="engineer")
    crew.task("Try it", owner="tester", deps=(1,))
    crew.run()
    seen = json.loads(crew.calls("ran")[0]["stdout"])["tasks"]
    assert [task["status"] for task in seen] == ["in_progress", "in_progress"]
    assert crew.statuses() == {1: "completed", 2: "completed"}


def test_a_check_that_fails_twice_leaves_work_and_check_open_for_a_person(crew: Crew) -> None:
    crew.score(tester=[FAIL, FAIL, PASS])
    crew.task("Add", owner="engineer")
    crew.task("Try it", owner="tester", deps=(1,))
    crew.task("Next", owner="engineer", deps=(1,))
    result = crew.run(check=7)
    assert result["rows"][2]["status"] == "waiting"
    assert result["rows"][1]["reason"] == "failed the check of task 2, whose thread does it again"
    statuses = crew.statuses()
    assert (statuses[1], statuses[2]) == ("pending", "pending")
    asked = len(crew.asked())
    crew.run(check=7)
    assert len(crew.asked()) == asked
    thread = result["rows"][2]["thread"]
    answer = ("--field", "status=another_way", "--field", "how=Look again.")
    crew.rolecall("thread", "answer", thread, *answer, cwd=crew.project, check=0)
    crew.run()
    assert set(crew.statuses().values()) == {"completed"}
    assert crew.asked().count("engineer: Add") == 1


def test_a_check_that_a_person_has_stopped_is_begun_anew_together_with_its_work(crew: Crew) -> None:
    crew.score(tester=[FAIL, FAIL, PASS])
    crew.task("Add", owner="engineer")
    crew.task("Try it", owner="tester", deps=(1,))
    thread = crew.run(check=7)["rows"][2]["thread"]
    answer = ("--field", "status=stop", "--field", "why=Enough.")
    crew.rolecall("thread", "answer", thread, *answer, cwd=crew.project, check=6)
    rows = crew.run(check=6)["rows"]
    assert rows[1]["reason"] == "failed the check of task 2, whose thread has ended"
    assert rows[2]["command"] == "rolecall plan run --task 1 --task 2"
    crew.run("--task", "1", "--task", "2")
    assert crew.statuses() == {1: "completed", 2: "completed"}
    assert crew.asked()[-2:] == ["engineer: Add", "tester: Try it"]


def test_a_check_waits_for_the_file_before_its_work_is_done_again(crew: Crew) -> None:
    """Task 3 begins on the same file while the check is at work, and meets the one that does it again nowhere."""
    room, door = crew.room("room"), crew.fifo("door")
    alone = DONE | {"never_meet": room}
    crew.score(
        **{
            "tester: Try it": [FAIL | {"meet": [door], "side": "left"}, PASS],
            "engineer: Same file": [alone | {"meet": [door], "side": "right"}],
            "engineer: Try it": [alone],
        }
    )
    crew.task("Add", owner="engineer", context="In src/a.py.")
    crew.task("Try it", owner="tester", deps=(1,))
    crew.task("Same file", owner="engineer", context="In src/a.py.", deps=(1,))
    result = crew.run()
    assert {row["status"] for row in result["rows"].values()} == {"completed"}
    assert all("another one" not in str(call) for call in result["events"])
    paused = [event for event in result["events"] if event["event"] == "paused"]
    assert [(event["task"], event["file"]) for event in paused] == [(2, "src/a.py")]


def test_a_check_of_leads_work_that_fails_is_for_a_person(crew: Crew) -> None:
    crew.score(tester=[FAIL])
    crew.task("By hand", owner="lead")
    crew.set(1, "completed")
    crew.task("Try it", owner="tester", deps=(1,))
    row = crew.run(check=7)["rows"][2]
    assert roles(crew, row["thread"]) == ["tester"]
    assert crew.statuses()[1] == "completed"


def test_the_diagnosis_may_send_the_checker_again_instead(crew: Crew) -> None:
    again = {"output": {**AGAIN["output"], "status": "again_tester"}}
    crew.score(tester=[FAIL, PASS], architect=[again])
    crew.task("Add", owner="engineer", acceptance=RUNS)
    row = crew.run()["rows"][1]
    assert roles(crew, row["thread"]) == ["engineer", "tester", "architect", "tester"]
