"""What an agent is told of a task."""

from __future__ import annotations

from rolecall.nexus.brief import LONGEST_RESULT, MOST_RESULTS, TaskResult, brief, notes
from rolecall.nexus.dispatch import TOOLS
from rolecall.nexus.reply import ProjectTask

TASK: ProjectTask = {
    "id": 3,
    "title": "Count  the\nbeans",
    "context": "In beans.py.",
    "status": "pending",
    "deps": [],
}


def test_parts_that_are_absent_or_empty_are_left_out() -> None:
    assert brief(TASK) == "TASK: Count the beans\n\nCONTEXT:\nIn beans.py."
    assert brief({**TASK, "approach": " ", "acceptance": ""}) == brief(TASK)


def test_the_parts_stand_word_for_word_and_in_order() -> None:
    task: ProjectTask = {**TASK, "approach": "Loop:\n  for", "acceptance": "- 4\n- 5", "risk": "Many."}
    text = brief(task, decisions=["Once."], knowledge=".nexus/rules/: a.md", first="Read again.")
    assert text == (
        "TASK: Count the beans\n\nFIRST: Read again.\n\n"
        "CONTEXT:\nIn beans.py.\n\nRisk: Many.\n\nDecisions that bind the work:\n- Once.\n\n"
        "APPROACH:\nLoop:\n  for\n\nACCEPTANCE:\n- 4\n- 5\n\n"
        "KNOWLEDGE:\nFiles of the project. Those in rules/ bind you; read the others as far as they bear on the task.\n"
        ".nexus/rules/: a.md"
    )


def test_results_of_other_tasks_are_short_and_say_where_the_rest_is() -> None:
    result = TaskResult({**TASK, "id": 1, "title": "Sow"}, "x" * 5_000, "engineer", "THREAD")
    text = brief(TASK, results=[result, TaskResult({**TASK, "id": 2, "title": "Wait"})])
    line = next(line for line in text.splitlines() if line.startswith("- Task 1"))
    assert line == (
        f"- Task 1 (Sow), by engineer: {'x' * (LONGEST_RESULT - 1)}… (all of it: `rolecall thread read THREAD`)"
    )
    assert text.endswith("- Task 2 (Wait)")


def test_a_task_with_many_dependencies_names_how_many_more_there_are() -> None:
    results = [TaskResult({**TASK, "id": number, "title": "x"}) for number in range(MOST_RESULTS + 7)]
    assert brief(TASK, results=results).endswith("- and 7 more: `rolecall task list`")


def test_the_work_that_is_checked_stands_beside_the_task() -> None:
    work: ProjectTask = {
        **TASK,
        "id": 1,
        "title": "Sow",
        "context": "In field.py.",
        "acceptance": "It grows.",
    }
    text = brief(TASK, works=[work])
    assert text.endswith("WORK TO CHECK: task 1:\nSow\n\nContext:\nIn field.py.\n\nAcceptance:\nIt grows.")


def test_the_notes_name_commands_that_there_are() -> None:
    from rolecall.cli.parser import verbs_of

    text = notes("mcp__rolecall__{}")
    assert "`mcp__rolecall__nx_task_list`" in text
    assert "server" not in notes()
    for line in notes().splitlines()[1:]:
        tool, _, command = line.removeprefix("- ").partition(": ")
        noun, verb = command.strip("`").split()[1:3]
        assert tool.strip("`").removeprefix("nx_") in TOOLS
        assert verb in verbs_of(noun)
