"""`rolecall plan run` as a whole: the installed program, agents that are real processes, a project's files."""

from __future__ import annotations

import json
import re
import sys
from typing import Any
from unicodedata import east_asian_width

import pytest
from terminal import shown_by

from plan_run.stage import AGAIN, BLOCKED, BOUND, DONE, PASS, PROGRAM, Crew
from rolecall.nexus import tools, tracker

RUNS = "returns 4"
"""An acceptance that a tester is for."""


def meeting(door: str, side: str) -> list[dict[str, Any]]:
    return [DONE | {"meet": [door], "side": side}]


# -- at once, or one after the other --


def test_tasks_that_touch_different_files_run_at_once(crew: Crew) -> None:
    door = crew.fifo("door")
    crew.score(**{"engineer: One": meeting(door, "left"), "engineer: Two": meeting(door, "right")})
    crew.task("One", owner="engineer", context="In src/one.py.")
    crew.task("Two", owner="engineer", context="In src/two.py.")
    assert crew.run()["done"] is True
    assert crew.statuses() == {1: "completed", 2: "completed"}


def test_no_more_run_at_once_than_the_limit_allows(crew: Crew) -> None:
    room = crew.room("room")
    crew.score(engineer=[DONE | {"never_meet": room}])
    for number in range(3):
        crew.task(f"Task {number}", owner="engineer")
    crew.run("--at-once", "1")
    assert [row["verdict"] for row in crew.run()["rows"].values()] == []
    assert set(crew.statuses().values()) == {"completed"}


def test_tasks_that_name_the_same_file_run_one_after_the_other(crew: Crew) -> None:
    room, door = crew.room("room"), crew.fifo("door")
    alone = DONE | {"never_meet": room}
    crew.score(
        **{
            "engineer: One": [alone | {"meet": [door], "side": "left"}],
            "engineer: Other": meeting(door, "right"),
            "engineer: Two": [alone],
        }
    )
    crew.task("One", owner="engineer", context="Change src/a.py:3.")
    crew.task("Two", owner="engineer", context="Also change ./src/a.py, please.")
    crew.task("Other", owner="engineer", context="Change src/b.py.")
    result = crew.run()
    assert {row["verdict"] for row in result["rows"].values()} == {"done"}
    begun = [event["task"] for event in result["events"] if event["event"] == "begun"]
    assert begun == [1, 3, 2]


@pytest.mark.parametrize(
    "other", ["./src/../src/shared.py", "src/link.py", "linked/shared.py", "src/s*.py", "**/*.py"]
)
def test_a_file_is_the_same_by_whatever_name_a_task_calls_it(crew: Crew, other: str) -> None:
    (crew.project / "src").mkdir()
    (crew.project / "src/shared.py").touch()
    (crew.project / "src/link.py").symlink_to("shared.py")
    (crew.project / "linked").symlink_to("src")
    crew.score(engineer=[DONE | {"never_meet": crew.room("src")}])
    crew.task("One", owner="engineer", context="In src/shared.py.")
    crew.task("Two", owner="engineer", context=f"In {other}.")
    assert crew.run()["done"] is True
    assert crew.asked() == ["engineer: One", "engineer: Two"]


def test_a_file_that_two_have_touched_by_different_names_is_told(crew: Crew) -> None:
    (crew.project / "src").mkdir()
    (crew.project / "src/shared.py").touch()
    (crew.project / "linked").symlink_to("src")
    door = crew.fifo("door")
    crew.score(
        **{
            "engineer: One": [meeting(door, "left")[0] | {"write": {"src/shared.py": "x = 1\n"}}],
            "engineer: Two": [meeting(door, "right")[0] | {"write": {"linked/shared.py": "x = 2\n"}}],
        }
    )
    crew.task("One", owner="engineer")
    crew.task("Two", owner="engineer")
    result = crew.run()
    text = "tasks 1 and 2 have both touched src/shared.py at the same time: look at it"
    assert [row["remarks"] for row in result["rows"].values()] == [[text], [text]]


def test_agents_that_write_no_files_do_not_wait_for_each_other(crew: Crew) -> None:
    door = crew.fifo("door")
    crew.score(**{"researcher: One": meeting(door, "left"), "researcher: Two": meeting(door, "right")})
    crew.task("One", owner="researcher", context="Read src/a.py.")
    crew.task("Two", owner="researcher", context="Read src/a.py.")
    assert crew.run()["done"] is True


def test_a_file_that_two_tasks_have_touched_at_once_is_told_loudly_in_both_results(crew: Crew) -> None:
    door = crew.fifo("door")
    writes = {"write": {"src/shared.py": "x = 1\n"}}
    crew.score(
        **{
            "engineer: One": [meeting(door, "left")[0] | writes],
            "engineer: Two": [meeting(door, "right")[0] | writes],
        }
    )
    crew.task("One", owner="engineer")
    crew.task("Two", owner="engineer")
    result = crew.run()
    text = "tasks 1 and 2 have both touched src/shared.py at the same time: look at it"
    assert [row["remarks"] for row in result["rows"].values()] == [[text], [text]]
    assert [event["text"] for event in result["events"] if event["event"] == "remark"] == [text]


def test_a_task_begins_when_those_it_depends_on_are_completed_and_is_told_their_results(crew: Crew) -> None:
    crew.score(**{"engineer: First": [{"output": {**DONE["output"], "summary": "The format is two."}}]})
    crew.task("First", owner="engineer", acceptance=RUNS)
    crew.task("Second", owner="engineer", deps=(1,))
    result = crew.run()
    assert crew.asked() == ["engineer: First", "tester: First", "engineer: Second"]
    reported = crew.calls()[2]["prompt"]
    first = result["rows"][1]["thread"]
    assert (
        f"- Task 1 (First), by engineer: The format is two. (all of it: `rolecall thread read {first}`)"
        in reported
    )


def test_what_lead_has_done_by_hand_is_not_told_by_the_agent_that_had_failed(crew: Crew) -> None:
    crew.score(**{"engineer: First": [BLOCKED]})
    crew.task("First", owner="engineer")
    crew.run(check=7)
    crew.set(1, "completed")
    crew.task("Second", owner="engineer", deps=(1,))
    crew.run()
    reported = crew.calls()[-1]["prompt"]
    assert "- Task 1 (First)\n" in reported
    assert "The door is shut." not in reported


# -- what an agent is told and held to --


def test_the_prompt_has_the_body_the_task_the_knowledge_and_the_names_of_tools(crew: Crew) -> None:
    rules = crew.project / ".nexus/rules"
    rules.mkdir(parents=True)
    (rules / "naming.md").write_text("Short names.")
    crew.task(
        "Count the beans",
        owner="engineer",
        context="They are in beans.py.",
        approach="Use a loop.",
        risk="There are many.",
        decisions=["Beans are counted once."],
    )
    crew.run()
    reported = crew.calls()[0]["prompt"]
    assert "You write and repair code. A task is done when its acceptance is met" in reported
    expected = (
        "TASK: Count the beans\n\nCONTEXT:\nThey are in beans.py.\n\nRisk: There are many.\n\n"
        "Decisions that bind the work:\n- Beans are counted once.\n\nAPPROACH:\nUse a loop.\n\nKNOWLEDGE:\n"
    )
    assert expected in reported
    assert "ACCEPTANCE:" not in reported.partition("# Task")[2]
    assert ".nexus/rules/: naming.md" in reported
    assert "`rolecall history search TEXT`" in reported
    assert "`mcp__rolecall__nx_task_list`" in reported


def test_every_role_is_held_to_the_capabilities_of_its_agent(crew: Crew) -> None:
    crew.task("Add", owner="engineer", acceptance=RUNS)
    crew.run()
    engineer, tester = crew.calls()
    assert engineer["restrictions"] == "no_task_create,no_task_update"
    assert tester["restrictions"] == "no_file_edit,no_task_create,no_task_update"
    denied = tester["arguments"][tester["arguments"].index("--disallowedTools") + 1].split(",")
    assert {"Write", "Edit", "mcp__rolecall__nx_task_add"} <= set(denied)


def test_an_agent_that_cannot_be_held_to_them_is_refused_before_anything_runs(crew: Crew) -> None:
    crew.task("One", owner="engineer")
    done = crew.rolecall("plan", "run", "--agent", "command:true", cwd=crew.project)
    assert done.returncode == 2
    assert "command:true cannot play architect: the agent 'command:true' cannot be held to" in done.stderr
    assert "These agents can: player" in done.stderr and "`rolecall plan run --agent player`" in done.stderr
    assert crew.statuses() == {1: "pending"}


def test_every_role_that_one_agent_cannot_play_is_named(crew: Crew) -> None:
    crew.task("One", owner="engineer", acceptance=RUNS)
    crew.task("Two", owner="researcher")
    done = crew.rolecall("plan", "run", "--agent", "command:true", cwd=crew.project)
    assert "command:true cannot play tester, architect, researcher, postdoc: " in done.stderr
    words = ("plan", "run", "--agent", "command:true", "--dry-run", "--format", "text")
    assert "  These agents can: player" in crew.rolecall(*words, cwd=crew.project, check=0).stdout
    crew.configure(agents={}, defaultAgent="")
    done = crew.rolecall("plan", "run", "--agent", "command:true", cwd=crew.project, env={"PATH": "/nowhere"})
    assert "No agent on this machine can; `rolecall agents list` shows all agents." in done.stderr


# -- models --


def model_in(call: dict[str, Any]) -> str | None:
    arguments = call["arguments"]
    return arguments[arguments.index("--model") + 1] if "--model" in arguments else None


def test_the_tier_of_a_role_reaches_the_model_of_its_agent(crew: Crew) -> None:
    crew.configure(
        modelTiers={"player": {"high": "large"}, "claude": {"high": "unused", "standard": "small"}}
    )
    crew.score(engineer=[BLOCKED, DONE])
    crew.task("One", owner="engineer")
    assert crew.run("--dry-run")["agents"] == {"engineer": "player (small)", "architect": "player (large)"}
    crew.run()
    found = [(call["role"], model_in(call)) for call in crew.calls()]
    assert found == [("engineer", "small"), ("architect", "large"), ("engineer", "small")]


def test_a_model_that_the_agent_itself_names_comes_before_its_tier(crew: Crew) -> None:
    own = {"adapter": "claude", "executable": str(crew.player), "model": "mine"}
    crew.configure(agents={"player": own}, modelTiers={"player": {"standard": "small"}})
    crew.task("One", owner="engineer")
    crew.run()
    assert [model_in(call) for call in crew.calls()] == ["mine"]


def test_overrides_of_the_configuration_say_who_plays_which_role(crew: Crew) -> None:
    crew.configure(
        defaultAgent="nobody-at-all",
        agentOverrides={"run-task": dict.fromkeys(("engineer", "architect"), "player")},
    )
    crew.task("One", owner="engineer")
    assert crew.run()["rows"][1]["agent"] == "player"


def test_a_missing_agent_is_an_error_that_names_the_role_and_nothing_is_replaced(crew: Crew) -> None:
    crew.configure(defaultAgent="")
    crew.task("One", owner="engineer")
    done = crew.rolecall("plan", "run", cwd=crew.project)
    assert done.returncode == 2
    assert "no agent can play engineer, architect: no agent is named\n  Set one for all" in done.stderr
    assert crew.asked() == []


def test_the_advice_for_a_missing_program_ends_before_the_next_advice(
    crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    crew.configure(defaultAgent="copilot")
    crew.task("One", owner="engineer")
    done = crew.rolecall("plan", "run", cwd=crew.project)
    assert "Install it: npm install -g @github/copilot; `rolecall config set" in done.stderr


# -- pairs --


def test_what_an_engineer_builds_is_checked_by_a_tester_in_the_same_thread(crew: Crew) -> None:
    crew.task("Add", owner="engineer", acceptance=RUNS)
    result = crew.run()
    assert crew.asked() == ["engineer: Add", "tester: Add"]
    row = result["rows"][1]
    assert (row["status"], row["verdict"], row["owner"]) == ("completed", "pass", "engineer")
    assert (row["tokens"], row["cost"]) == (200, 0.5)
    assert [step.role for step in crew.steps(row["thread"])] == ["engineer", "tester"]


def test_a_task_that_has_a_check_of_its_own_is_not_paired(crew: Crew) -> None:
    crew.task("Add", owner="engineer", acceptance=RUNS)
    crew.task("Try it", owner="tester", deps=(1,))
    crew.run()
    assert crew.asked() == ["engineer: Add", "tester: Try it"]


def test_a_task_without_an_owner_is_an_engineers(crew: Crew) -> None:
    crew.task("Add")
    assert crew.run()["rows"][1]["owner"] == "engineer"


# -- what is left alone --


def test_tasks_of_lead_are_left_to_lead_and_named(crew: Crew) -> None:
    crew.task("Decide", owner="lead")
    crew.task("Then", owner="engineer", deps=(1,))
    result = crew.run()
    assert {number: (row["status"], row["reason"]) for number, row in result["rows"].items()} == {
        1: ("lead", "is Lead's"),
        2: ("blocked", "waits for 1, which is Lead's"),
    }
    assert crew.asked() == []


def test_a_task_that_somebody_else_works_on_is_left_alone(crew: Crew) -> None:
    crew.task("Mine", owner="engineer")
    crew.set(1, "in_progress")
    assert crew.run()["rows"][1]["status"] == "elsewhere"
    assert crew.statuses() == {1: "in_progress"}


def test_only_the_tasks_that_were_asked_for_run(crew: Crew) -> None:
    for title in ("One", "Two", "Three"):
        crew.task(title, owner="engineer")
    result = crew.run("--task", "2", "--task", "3")
    assert sorted(crew.asked()) == ["engineer: Three", "engineer: Two"]
    assert result["rows"][1]["reason"] == "was not asked for"
    done = crew.rolecall("plan", "run", "--task", "9", cwd=crew.project)
    assert (done.returncode, done.stderr.splitlines()[0]) == (3, "rolecall: unknown task 9")


def test_an_unknown_owner_is_an_error_before_anything_runs(crew: Crew) -> None:
    crew.task("One", owner="engineer")
    crew.task("Two", owner="enginer")
    done = crew.rolecall("plan", "run", cwd=crew.project)
    assert done.returncode == 2
    assert "these tasks have an owner that is not in the catalogue: 2 ('enginer')" in done.stderr
    assert "Did you mean 'engineer'?" in done.stderr
    assert crew.asked() == []


def test_what_can_never_begin_is_named_and_the_rest_is_done(crew: Crew) -> None:
    crew.task("Circle", owner="engineer", deps=(2,))
    crew.task("Circle too", owner="engineer", deps=(1,))
    crew.task("Lost", owner="engineer", deps=(77,))
    crew.task("Fine", owner="engineer")
    result = crew.run(check=6)
    assert {number: row["reason"] for number, row in result["rows"].items() if row["status"] == "never"} == {
        1: "waits for itself: 1 -> 2 -> 1",
        2: "waits for itself: 2 -> 1 -> 2",
        3: "waits for 77, which does not exist",
    }
    assert result["rows"][4]["status"] == "completed"


def test_a_plan_with_open_issues_is_refused_with_their_names(crew: Crew) -> None:
    words = ("plan", "start", "Topic", "--issue", "Which way?", "--issue", "Who?", "--research", "x")
    crew.rolecall(*words, cwd=crew.project, check=0)
    crew.rolecall("plan", "decide", "2", "Us.", cwd=crew.project, check=0)
    crew.task("One", owner="engineer")
    done = crew.rolecall("plan", "run", cwd=crew.project)
    assert done.returncode == 2
    assert "the plan is not decided yet:\n  1  Which way?\n" in done.stderr
    assert "Who?" not in done.stderr
    crew.rolecall("plan", "decide", "1", "This.", cwd=crew.project, check=0)
    assert crew.run()["done"] is True


def test_without_tasks_there_is_nothing_to_run(crew: Crew) -> None:
    done = crew.rolecall("plan", "run", cwd=crew.project)
    assert (done.returncode, done.stderr.splitlines()[0]) == (2, "rolecall: there are no tasks")


def test_a_role_may_not_run_the_plan(crew: Crew) -> None:
    crew.task("One", owner="engineer")
    done = crew.rolecall("plan", "run", cwd=crew.project, env={"ROLECALL_RESTRICTIONS": "no_task_create"})
    assert done.returncode == 2
    assert "plan run is for the lead" in done.stderr
    assert crew.asked() == []


def test_an_agent_of_a_task_cannot_start_a_run_of_its_own(crew: Crew) -> None:
    crew.score(engineer=[DONE | {"run": [PROGRAM, "plan", "run"]}])
    crew.task("One", owner="engineer")
    crew.run()
    assert [(call["code"], call["stderr"].splitlines()[0]) for call in crew.calls("ran")] == [
        (2, "rolecall: plan run is for the lead, and this role is held to no_task_create")
    ]


@pytest.mark.parametrize("words", [["task", "update", "1", "completed"], ["task", "close"]])
def test_an_agent_cannot_call_its_task_completed_or_close_the_cycle(crew: Crew, words: list[str]) -> None:
    """The list is the run's: else what depends on the task would begin before it is checked."""
    crew.score(engineer=[DONE | {"run": [PROGRAM, *words]}])
    crew.task("One", owner="engineer", acceptance=RUNS)
    crew.run()
    assert [call["code"] for call in crew.calls("ran")] == [2]
    assert crew.statuses() == {1: "completed"}


# -- what is written down --


def test_every_instance_of_an_agent_is_in_the_tracker(crew: Crew) -> None:
    crew.score(engineer=[DONE | {"write": {"src/a.py": "x = 1\n"}, "body": "I did it."}])
    crew.task("Add", owner="engineer", acceptance=RUNS)
    result = crew.run()
    thread = result["rows"][1]["thread"]
    engineer, tester = tracker.entries(crew.project)
    assert (engineer["agent_id"], engineer["agent_name"]) == (f"{thread}:1", "engineer")
    assert (tester["agent_id"], tester["agent_name"]) == (f"{thread}:2", "tester")
    assert {engineer["status"], tester["status"]} == {"completed"}
    assert (engineer["files_touched"], engineer["last_message"]) == (["src/a.py"], "I did it.")
    assert tester["files_touched"] == []
    assert result["rows"][1]["files"] == ["src/a.py"]


def test_a_task_that_was_reopened_is_done_again_in_a_thread_of_its_own(crew: Crew) -> None:
    crew.task("Add", owner="engineer")
    first = crew.run()["rows"][1]["thread"]
    assert crew.run()["rows"] == {}
    crew.set(1, "pending")
    again = crew.run()["rows"][1]["thread"]
    assert first != again
    assert len(crew.asked()) == 2


def test_the_first_task_of_the_next_cycle_is_not_taken_for_the_first_of_this_one(crew: Crew) -> None:
    crew.task("Add", owner="engineer")
    first = crew.run()["rows"][1]["thread"]
    crew.rolecall("task", "close", cwd=crew.project, check=0)
    crew.task("Other", owner="engineer")
    assert crew.run()["rows"][1]["thread"] != first
    assert crew.asked() == ["engineer: Add", "engineer: Other"]
    kept = json.loads((crew.project / ".nexus/state/rolecall/runs.json").read_text())["runs"]
    assert [run["thread"] for run in kept.values()] != [first]
    assert len(kept) == 1


def test_tasks_that_are_added_while_others_run_are_run_as_well(crew: Crew) -> None:
    add = [
        "env",
        "-u",
        "ROLECALL_RESTRICTIONS",
        PROGRAM,
        "task",
        "add",
        "Late",
        "--context",
        "x",
        "--owner",
        "engineer",
    ]
    crew.score(**{"engineer: Early": [DONE | {"run": add}]})
    crew.task("Early", owner="engineer")
    result = crew.run()
    assert crew.asked() == ["engineer: Early", "engineer: Late"]
    assert {row["status"] for row in result["rows"].values()} == {"completed"}


def test_a_cycle_that_is_closed_meanwhile_is_told_and_nothing_of_the_next_one_is_touched(crew: Crew) -> None:
    door = crew.fifo("door")
    crew.score(engineer=meeting(door, "left"))
    crew.task("Old", owner="engineer")
    child = crew.spawn()
    crew.until(lambda: len(crew.asked()) == 1)
    tools.task_close(crew.project)
    crew.task("New", owner="lead")
    crew.unlock(door)
    out, err = child.communicate(timeout=BOUND)
    assert child.returncode == 0, err
    assert "task 1 is not in the task list any more, so it was not set to completed" in out
    assert "close the cycle" not in out
    assert crew.statuses() == {1: "pending"}


def test_a_file_that_was_touched_without_being_named_is_kept_clear_for_the_rest_of_the_task(
    crew: Crew,
) -> None:
    """Task 3 begins when the silent one is being checked, and would meet the checker."""
    room, door = crew.room("room"), crew.fifo("door")
    crew.score(
        **{
            "engineer: Silent": [DONE | {"write": {"src/a.py": "x = 1\n"}}],
            "tester: Silent": [PASS | {"meet": [door], "side": "left", "never_meet": room}],
            "researcher: Gate": meeting(door, "right"),
            "engineer: Same file": [DONE | {"never_meet": room}],
        }
    )
    crew.task("Silent", owner="engineer", acceptance=RUNS)
    crew.task("Gate", owner="researcher")
    crew.task("Same file", owner="engineer", context="In src/a.py.", deps=[2])
    rows = crew.run()["rows"]
    assert [row["verdict"] for row in rows.values()] == ["pass", "done", "done"]


def test_what_a_killed_run_did_not_write_down_any_more_is_made_good(crew: Crew) -> None:
    """The task was set to completed, and the run died before it noted that."""
    crew.task("Add", owner="engineer")
    crew.run()
    file = crew.project / ".nexus/state/rolecall/runs.json"
    file.write_text(file.read_text().replace('"is_settled": true', '"is_settled": false'))
    crew.run()
    crew.set(1, "pending")
    crew.run()
    assert len(crew.asked()) == 2


def test_another_store_is_told_apart_from_a_failure(crew: Crew) -> None:
    crew.score(engineer=[{"exit": 3}])
    crew.task("One", owner="engineer")
    crew.run(check=7)
    row = crew.run("--store", str(crew.stage / "other.db"), check=6)["rows"][1]
    assert row["reason"] == "has a thread that is not in this store"


def test_a_thread_goes_on_with_the_agent_it_was_begun_with(crew: Crew) -> None:
    crew.configure(defaultAgent="")
    crew.score(engineer=[{"exit": 3}, DONE])
    crew.task("One", owner="engineer")
    first = crew.run("--agent", "player", check=7)["rows"][1]
    second = crew.run()["rows"][1]
    assert (second["thread"], second["status"], second["agent"]) == (first["thread"], "completed", "player")


def test_events_are_told_line_by_line_with_their_task(crew: Crew) -> None:
    crew.task("Add", owner="engineer")
    events = [(event["event"], event["task"]) for event in crew.run()["events"]]
    assert events[0] == ("begun", 1)
    assert ("step_started", 1) in events
    assert ("step", 1) in events
    assert events[-1] == ("settled", 1)


def test_on_a_terminal_the_end_is_a_table_and_what_to_do_next(crew: Crew) -> None:
    crew.score(**{"engineer: Bad": [BLOCKED], "architect": [AGAIN]})
    crew.task("Good", owner="engineer")
    crew.task("Bad", owner="engineer")
    done = crew.rolecall("plan", "run", "--format", "text", cwd=crew.project)
    assert done.returncode == 7
    assert re.search(r"^ *1 +completed +engineer +done +100 +0\.25 +\w{6} +Good$", done.stdout, re.MULTILINE)
    assert re.search(r"^ *2 +waiting +engineer +blocked +300 +0\.75 +\w{6} +Bad$", done.stdout, re.MULTILINE)
    assert "1 of 2 tasks are completed" in done.stdout
    assert re.search(r"^  answer: rolecall thread answer \w{26} --run$", done.stdout, re.MULTILINE)
    assert "[1] ▶ engineer: Good" in done.stdout
    assert re.search(
        r"^\[1\] ✓ 1 engineer · done · \d+\.\ds · 100 tokens · \$0\.25$", done.stdout, re.MULTILINE
    )
    assert "The door is shut." in done.stdout


def test_the_table_is_not_wider_than_the_terminal_and_tells_titles_apart(crew: Crew) -> None:
    crew.score(**{"engineer: Bad": [BLOCKED]})
    for title in ("A title that is wider than any terminal " * 3, "日本語のとても長いタイトル" * 5, "Bad"):
        crew.task(title, owner="engineer")
    shown = on_terminal([PROGRAM, "plan", "run"], crew, code=7)
    table = [line for line in shown if re.match(r" *(id|[123]) +(status|completed|waiting) ", line)]
    assert [line.rpartition("  ")[2][:7] for line in table] == ["title", "A title", "日本語のとても", "Bad"]
    assert max(map(cells, table)) <= 80 and min(map(cells, table[1:3])) >= 79
    threads = {row["thread"][-6:] for row in crew.rolecall.json("thread", "list", "--all")}
    assert {next(filter(threads.__contains__, line.split()), line) for line in table[1:]} == threads


def test_the_line_of_what_goes_on_is_one_line_in_any_script(crew: Crew) -> None:
    code = "from rolecall.cli.output import LastLine; LastLine().draw('日本 a' * 40)"
    (line,) = on_terminal([sys.executable, "-c", code], crew)
    assert 78 <= cells(line.removeprefix("\033[K")) < 80


def cells(line: str) -> int:
    return sum(2 if east_asian_width(letter) in "WF" else 1 for letter in line)


def on_terminal(words: list[str], crew: Crew, *, code: int = 0) -> list[str]:
    """The lines that a program shows."""
    shown = shown_by(words, cwd=crew.project, env={"ROLECALL_HOME": str(crew.rolecall.home)}, code=code)
    return re.findall(r"[^\r\n]+", shown)


@pytest.mark.parametrize("wrong", ["{", '{"runs": [1]}', '{"runs": {"1@x": {}}}'])
def test_a_damaged_list_of_runs_is_named_and_kept(crew: Crew, wrong: str) -> None:
    crew.task("Add", owner="engineer")
    crew.run()
    file = crew.project / ".nexus/state/rolecall/runs.json"
    file.write_text(wrong)
    done = crew.rolecall("plan", "run", cwd=crew.project)
    assert done.returncode == 4
    assert "runs.json cannot be used" in done.stderr
    assert file.read_text() == wrong
    assert len(crew.asked()) == 1
