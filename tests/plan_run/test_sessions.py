"""Whether the agent of a task goes on in the session of an earlier one: by tier, policy, files, who touched them."""

from __future__ import annotations

import os
from typing import Any

import pytest
from fakeagent import executable

from plan_run.stage import BLOCKED, DONE, Crew
from rolecall.nexus import tracker

WRITES: dict[str, Any] = DONE | {"write": {"src/a.py": "x = 1\n"}}


def two(crew: Crew, owner: str, context: str = "About src/a.py.", **second: Any) -> list[dict[str, Any]]:
    """Two tasks of the same owner, one after the other; the calls of both."""
    crew.task("One", owner=owner, context=context)
    crew.task("Two", owner=owner, context=context, deps=[1], **second)
    crew.run()
    return crew.calls()


def reason(crew: Crew, number: int) -> str:
    entry = next(
        event for event in crew.last["events"] if event["event"] == "begun" and event["task"] == number
    )
    step = crew.steps(entry["thread"])[0]
    return str(step.payload["session_reason"])


def test_a_persistent_agent_goes_on_with_the_next_task(crew: Crew) -> None:
    one, two_ = two(crew, "researcher", context="No file.")
    assert two_["resumed"] == one["session"]
    first = crew.last["rows"][1]["thread"]
    assert reason(crew, 2) == f"resumed: persistent, from step 1 of {first}"
    assert "# Task\n\nTASK: Two" in two_["prompt"]
    assert "FIRST:" not in two_["prompt"]


def test_the_tracker_counts_it_as_the_same_instance(crew: Crew) -> None:
    two(crew, "researcher")
    (entry,) = tracker.entries(crew.project)
    assert (entry["agent_id"], entry["resume_count"]) == (f"{crew.last['rows'][1]['thread']}:1", 1)
    assert "last_resumed_at" in entry


def test_a_bounded_agent_goes_on_with_the_same_files_and_is_told_to_read_them_again(crew: Crew) -> None:
    crew.score(engineer=[WRITES])
    one, two_ = two(crew, "engineer")
    assert two_["resumed"] == one["session"]
    assert "TASK: Two\n\nFIRST: Read the files again before you change anything" in two_["prompt"]
    assert reason(crew, 2).startswith("resumed: bounded, about the same files, from step 1 of ")


def test_a_bounded_agent_starts_fresh_with_other_files_or_none(crew: Crew) -> None:
    crew.score(engineer=[WRITES])
    crew.task("One", owner="engineer", context="In src/a.py.")
    crew.task("Two", owner="engineer", context="In src/b.py.", deps=[1])
    crew.task("Three", owner="engineer", context="Nowhere in particular.", deps=[2])
    crew.run()
    assert [call["resumed"] for call in crew.calls()] == [None, None, None]
    assert reason(crew, 2) == "new: bounded, and src/b.py was not among the files of its last session"
    assert reason(crew, 3) == "new: bounded, and the task names no file"


def test_an_edit_by_another_agent_in_between_wins_over_every_policy(crew: Crew) -> None:
    crew.score(engineer=[WRITES], writer=[WRITES])
    crew.task("One", owner="engineer", context="In src/a.py.")
    crew.task("Words", owner="writer", context="In src/a.py.", deps=[1])
    crew.task("Two", owner="engineer", context="In src/a.py.", deps=[2], owner_reuse_policy="resume")
    crew.run()
    assert [call["resumed"] for call in crew.calls()] == [None, None, None]
    writer = crew.last["rows"][2]["thread"]
    assert reason(crew, 3) == f"new: src/a.py was touched by {writer}:1 since"


@pytest.mark.parametrize("name", ["src/a.py", "linked/a.py"])
def test_an_edit_by_an_agent_of_a_host_counts_as_well(crew: Crew, name: str) -> None:
    crew.score(engineer=[WRITES])
    (crew.project / "linked").symlink_to("src")
    crew.task("One", owner="engineer", context="In src/a.py.")
    crew.run()
    late = "2999-01-01T00:00:00.000Z"
    tracker.record_end(crew.project, agent_id="host-7", agent_name="engineer", at=late, files=[name])
    crew.task("Two", owner="engineer", context="In src/a.py.", deps=[1])
    crew.run()
    assert reason(crew, 2) == "new: src/a.py was touched by host-7 since"


def test_a_change_that_nobody_told_of_is_seen_in_the_file(crew: Crew) -> None:
    crew.score(**{"engineer": [WRITES], "engineer: Two": [DONE]})
    crew.task("One", owner="engineer", context="In src/a.py.")
    crew.run()
    os.utime(crew.project / "src/a.py", (4e9, 4e9))
    crew.task("Two", owner="engineer", context="In src/a.py.", deps=[1])
    crew.run()
    assert reason(crew, 2) == "new: bounded, and src/a.py has changed since"


def test_the_policy_of_a_task_goes_before_the_tier(crew: Crew) -> None:
    one, fresh = two(crew, "researcher", owner_reuse_policy="fresh")
    assert fresh["resumed"] is None
    assert reason(crew, 2) == "new: the task says so"
    crew.task("Three", owner="tester", deps=[2])
    crew.task("Four", owner="tester", deps=[3], owner_reuse_policy="resume")
    crew.run()
    three, four = crew.calls()[2:]
    assert four["resumed"] == three["session"]
    assert one["session"] != three["session"]


def test_an_ephemeral_agent_starts_fresh(crew: Crew) -> None:
    assert [call["resumed"] for call in two(crew, "tester")] == [None, None]


def test_the_instance_that_a_task_names_is_the_one_that_goes_on(crew: Crew) -> None:
    crew.task("One", owner="researcher")
    crew.task("Two", owner="researcher", deps=[1], owner_reuse_policy="fresh")
    crew.run()
    first = crew.last["rows"][1]["thread"]
    crew.task("Three", owner="researcher", deps=[2], owner_agent_id=f"{first}:1")
    crew.task("Four", owner="researcher", deps=[3], owner_agent_id="nobody-knows-this")
    crew.run()
    one, _, three, four = crew.calls()
    assert three["resumed"] == one["session"]
    assert four["resumed"] is None
    unknown = "no researcher of this cycle has that id"
    assert reason(crew, 4) == f"new: the task names nobody-knows-this, but {unknown}"


def test_a_session_with_another_program_is_no_session_of_this_one(crew: Crew) -> None:
    crew.task("One", owner="researcher")
    crew.run()
    other = {"adapter": "claude", "executable": str(crew.player)}
    crew.configure(agents={"player": other, "second": other}, defaultAgent="second")
    crew.task("Two", owner="researcher", deps=[1])
    crew.run()
    assert reason(crew, 2) == "new: the last session of researcher was with player, and second plays it now"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("docs/limits.md", "resumed: the task's policy, about the same files, from step 1 of "),
        (
            "docs/other.md",
            "new: the task's policy, and docs/other.md was not among the files of its last session",
        ),
    ],
)
def test_the_artifact_of_a_researcher_is_the_file_that_its_report_names(
    crew: Crew, name: str, expected: str
) -> None:
    (crew.project / "docs").mkdir()
    for file in ("limits.md", "other.md"):
        (crew.project / "docs" / file).write_text("x")
        os.utime(crew.project / "docs" / file, (0, 0))
    found = {"status": "done", "summary": "Sixty calls, says docs/limits.md.", "files": []}
    crew.score(researcher=[{"output": found}])
    crew.task("One", owner="researcher", context="How many calls?")
    again = {"owner_reuse_policy": "resume_if_same_artifact", "deps": [1]}
    crew.task("Two", owner="researcher", context=f"What else does {name} say?", **again)
    crew.run()
    assert reason(crew, 2).startswith(expected)


def test_one_session_is_never_given_to_two_tasks_at_once(crew: Crew) -> None:
    door = crew.fifo("door")
    crew.score(
        **{
            "researcher: Left": [DONE | {"meet": [door], "side": "left"}],
            "researcher: Right": [DONE | {"meet": [door], "side": "right"}],
        }
    )
    crew.task("One", owner="researcher")
    crew.task("Left", owner="researcher", deps=[1])
    crew.task("Right", owner="researcher", deps=[1])
    crew.run()
    one, *both = crew.calls()
    assert sorted(str(call["resumed"]) for call in both) == sorted(["None", one["session"]])


def test_a_session_in_which_a_killed_run_was_at_work_is_not_given_to_another_task(crew: Crew) -> None:
    crew.score(**{"researcher: Two": [DONE | {"hang": True}, DONE]})
    crew.task("One", owner="researcher")
    crew.task("Two", owner="researcher", deps=[1])
    child = crew.spawn()
    crew.until(lambda: "researcher: Two" in crew.asked())
    child.kill()
    child.communicate()
    crew.task("Three", owner="researcher", deps=[1])
    crew.run()
    one, two_, *rest = crew.calls()
    resumed = {call["title"]: call["resumed"] for call in rest}
    assert two_["resumed"] == one["session"]
    assert resumed == {"Two": one["session"], "Three": None}


def test_a_diagnostician_goes_on_from_its_last_diagnosis(crew: Crew) -> None:
    crew.score(**{"engineer: One": [BLOCKED, DONE], "engineer: Two": [BLOCKED, DONE]})
    crew.task("One", owner="engineer")
    crew.task("Two", owner="engineer", deps=[1])
    crew.run()
    first, second = [call for call in crew.calls() if call["role"] == "architect"]
    assert second["resumed"] == first["session"]


def test_a_session_that_the_agent_has_forgotten_is_no_error(crew: Crew) -> None:
    crew.score(**{"researcher: Two": [{"lost": True}, DONE]})
    calls = two(crew, "researcher")
    assert [call["resumed"] is None for call in calls] == [True, False, True]
    assert reason(crew, 2) == "new: the agent does not know its session any more"
    assert crew.statuses() == {1: "completed", 2: "completed"}
    assert {entry["status"] for entry in crew.tracker()} == {"completed"}


def test_a_program_that_cannot_resume_is_asked_anew_without_a_word(crew: Crew) -> None:
    answer = "---\nstatus: done\nsummary: x\nfiles: []\n---\n"
    program = executable(crew.stage / "plain.sh", f"cat >/dev/null\necho '{answer}'\n")
    crew.configure(agentOverrides={"run-task": {"writer": f"command:{program}", "reviewer": "player"}})
    crew.task("One", owner="writer", context="In a.md.", owner_reuse_policy="resume")
    crew.task("Two", owner="writer", context="In a.md.", deps=[1], owner_reuse_policy="resume")
    crew.run()
    assert set(crew.statuses().values()) == {"completed"}
    assert reason(crew, 2).startswith("new: command:")
