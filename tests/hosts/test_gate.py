"""The gates before every call: what is refused to whom, and what is left alone."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest
from hook_stage import known_hooks, task, tasks, tell, write

from rolecall.hosts import gate, tool_shape
from rolecall.hosts.event import LEAD, GateMode, HostAnswer, HostCaller, HostToolCall, PreToolUse
from rolecall.hosts.hook_context import HookContext
from rolecall.mcp.tools import GROUPS
from rolecall.settings.capabilities import FILES, RESTRICTIONS, SHELL

ENGINEER, TESTER, ARCHITECT = (
    HostCaller("engineer", "e1"),
    HostCaller("tester", "t1"),
    HostCaller("architect", "a1"),
)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


def edit(project: Path, name: str = "src/a.py") -> HostToolCall:
    return HostToolCall("Write", ("file_creation", "file_modification"), writes=(str(project / name),))


def ask(project: Path, who: HostCaller, call: HostToolCall, **changes: object) -> HostAnswer:
    return tell(project, PreToolUse("s", who, call), known_hooks()._replace(**changes))  # type: ignore[arg-type]


# -- unplanned edits --


@pytest.mark.parametrize("who", [LEAD, ENGINEER, HostCaller("general-purpose", "g1")], ids=str)
def test_a_file_is_not_edited_while_no_task_is_planned(project: Path, who: HostCaller) -> None:
    answer = ask(project, who, edit(project))
    assert "No task is planned, so src/a.py is not edited" in answer.block
    assert ("Report this to Lead" in answer.block) is (who != LEAD)
    tasks(project, task(1))
    assert ask(project, who, edit(project)) == HostAnswer()


def test_the_gate_warns_or_is_off_when_the_configuration_says_so(project: Path) -> None:
    modes: tuple[GateMode, ...] = ("warn", "off")
    warned, left_alone = (ask(project, LEAD, edit(project), gate=mode) for mode in modes)
    assert warned.block == "" and "while no task is planned" in warned.context
    assert left_alone == HostAnswer()


def test_a_tasks_file_that_is_damaged_is_there_all_the_same(project: Path) -> None:
    write(project, ".nexus/state/tasks.json", "{ cut o")
    assert ask(project, LEAD, edit(project)) == HostAnswer()


@pytest.mark.parametrize(
    "name", ["../elsewhere.py", "/tmp/scratch.py", ".nexus/memory/a-note.md", ".nexus/rules/x.md"]
)
def test_files_outside_and_what_a_project_knows_need_no_plan(project: Path, name: str) -> None:
    assert ask(project, LEAD, edit(project, name)) == HostAnswer()


def test_an_edit_of_a_file_that_is_not_named_is_one_of_the_project(project: Path) -> None:
    assert ask(project, LEAD, HostToolCall("Odd", ("file_modification",))).block


def test_reading_and_tools_that_do_nothing_known_are_left_alone(project: Path) -> None:
    for call in (
        HostToolCall("Read", reads=(str(project / "a"),)),
        HostToolCall("WebSearch"),
        tool_shape.shell("Bash", "ls", "/"),
    ):
        assert ask(project, LEAD, call) == HostAnswer()
    assert not (project / ".nexus").exists()


@pytest.mark.parametrize("mode", ["block", "warn", "off"])
@pytest.mark.parametrize("who", [LEAD, ENGINEER])
@pytest.mark.parametrize(
    "name", [".nexus/state/tasks.json", ".nexus/state", ".nexus", ".nexus/state/new/file"]
)
def test_the_state_is_the_tools_alone_whatever_the_mode(
    project: Path, mode: str, who: HostCaller, name: str
) -> None:
    tasks(project, task(1))
    assert "written by the tools alone" in ask(project, who, edit(project, name), gate=mode).block
    assert "written by the tools alone" in ask(project, who, edit(project, name), run="r1").block


def test_an_artifact_of_our_own_server_is_no_file_of_the_project(project: Path) -> None:
    arguments = {"filename": "report.md", "content": "x"}
    for tool in (
        "mcp__rolecall__nx_artifact_write",
        "mcp__rolecall-engineer__nx_artifact_write",
        "nx_artifact_write",
    ):
        assert ask(project, LEAD, tool_shape.guess(tool, arguments, str(project))) == HostAnswer()
    other = tool_shape.guess("mcp__other__nx_artifact_write", arguments, str(project))
    assert ask(project, LEAD, other).block


# -- capabilities --


@pytest.mark.parametrize(
    "who", [TESTER, ARCHITECT, HostCaller("Explore", "x"), HostCaller("Plan", "x")], ids=str
)
def test_an_agent_that_may_not_edit_is_refused_by_whatever_tool(project: Path, who: HostCaller) -> None:
    tasks(project, task(1))
    for call in (
        edit(project),
        tool_shape.shell("Bash", "echo > a", str(project)),
        HostToolCall("Odd", FILES[:1]),
    ):
        assert "is denied to the agent" in ask(project, who, call).block
    outside = tool_shape.shell("Bash", "make > /dev/null 2>&1", str(project))
    assert ask(project, who, outside) == HostAnswer()
    assert ask(project, who, edit(project, "../scratch")) == HostAnswer()


@pytest.mark.parametrize(
    "who", [ENGINEER, HostCaller("general-purpose", "g"), HostCaller("", "nameless")], ids=str
)
def test_an_agent_that_may_edit_does(project: Path, who: HostCaller) -> None:
    tasks(project, task(1))
    assert ask(project, who, edit(project)) == HostAnswer()


TASK_TOOLS = {
    "nx_task_add": "no_task_create",
    "nx_task_update": "no_task_update",
    "nx_task_close": "no_task_update",
}


@pytest.mark.parametrize("who", [ENGINEER, TESTER, ARCHITECT, HostCaller("general-purpose", "g")], ids=str)
@pytest.mark.parametrize("tool", TASK_TOOLS)
@pytest.mark.parametrize(
    "written", ["{}", "mcp__rolecall__{}", "rolecall_{}", "mcp__other__{}", "rolecall({})"]
)
def test_the_tools_of_tasks_go_by_what_an_agent_may(
    project: Path, who: HostCaller, tool: str, written: str
) -> None:
    may_not = {*gate.capabilities_of(who.agent, known_hooks())} & {*TASK_TOOLS.values()}
    answer = ask(project, who, HostToolCall(written.format(tool)))
    assert bool(answer.block) is (TASK_TOOLS[tool] in may_not)
    assert ask(project, LEAD, HostToolCall(written.format(tool))) == HostAnswer()


@pytest.mark.parametrize("tool", gate.FOR_LEAD)
def test_what_is_leads_is_no_agents(project: Path, tool: str) -> None:
    name = f"mcp__rolecall__{tool}"
    for who in (ENGINEER, HostCaller("general-purpose", "g")):
        assert f"Only Lead may use {tool}" in ask(project, who, HostToolCall(name)).block
    assert ask(project, LEAD, HostToolCall(name)) == HostAnswer()


@pytest.mark.parametrize(
    ("command", "is_refused"),
    [
        *(("rolecall plan decide 1 yes", True), ("cd x && rolecall task add T --context c", True)),
        *(("bash -c 'rolecall task add T'", True), ("rolecall thread run X", True), ("uwf rule add x", True)),
        *(
            ("rolecall memory gc", False),
            ("rolecall memory gc --delete a-b", True),
            ("rolecall task list", False),
        ),
        ("echo 'rolecall plan decide 1 yes'", False),
        *(("rolecall run solve-issue -p x", True), ("rolecall trigger fire x", True)),
        *(
            ("rolecall thread fork X", True),
            ("rolecall thread kill X", True),
            ("rolecall thread show X", False),
        ),
        *(("rolecall config set project.unplannedEdits off", True), ("rolecall config unset project", True)),
        *(("rolecall config get defaultAgent", False), ("rolecall uninstall claude", True)),
        *(("rolecall install claude --user", True), ("rolecall doctor", False)),
    ],
)
def test_our_commands_in_a_shell_are_the_same_as_the_tools(
    project: Path, command: str, is_refused: bool
) -> None:
    call = tool_shape.shell("Bash", command, str(project))
    assert bool(ask(project, ENGINEER, call).block) is is_refused
    assert ask(project, LEAD, call) == HostAnswer()


def test_only_lead_starts_agents(project: Path) -> None:
    for who in (ENGINEER, HostCaller("general-purpose", "g")):
        assert "Only Lead starts agents" in ask(project, who, HostToolCall("Task", starts="engineer")).block
    assert ask(project, LEAD, HostToolCall("Task", starts="engineer")) == HostAnswer()


def test_the_tables_are_those_of_our_server() -> None:
    tools = {tool.name: tool for module in GROUPS.values() for tool in import_module(module).TOOLS}
    assert {name for name, tool in tools.items() if tool.is_for_lead} == set(gate.FOR_LEAD)
    denied = {name: set(tool.classes) for name, tool in tools.items() if tool.classes}
    assert {name: set(classes) for name, classes in gate.CHANGES.items() if classes} == denied


# -- inside a run of the engine --


@pytest.mark.parametrize("word", RESTRICTIONS)
def test_inside_a_run_the_roles_own_restrictions_count_and_no_plan_is_needed(
    project: Path, word: str
) -> None:
    hooks = HookContext(run="thread/1", restrictions=(word,))
    asked = {
        "edit": edit(project),
        "shell": tool_shape.shell("Bash", "ls", str(project)),
        "shell write": tool_shape.shell("Bash", "ls > x", str(project)),
        "nx_task_add": HostToolCall("nx_task_add"),
        "nx_task_update": HostToolCall("nx_task_update"),
    }
    refused = {
        name for name, call in asked.items() if tell(project, PreToolUse("s", LEAD, call), hooks).block
    }
    expected = {
        "no_file_edit": {"edit", "shell write"},
        "read_only": {"edit", "shell write"},
        "no_shell_exec": {"shell", "shell write"},
        "no_task_create": {"nx_task_add"},
        "no_task_update": {"nx_task_update"},
    }
    assert refused == expected[word]
    assert tell(project, PreToolUse("s", LEAD, HostToolCall("nx_plan_decide")), hooks).block
    assert tell(project, PreToolUse("s", LEAD, edit(project)), HookContext(run="thread/1")) == HostAnswer()
    assert tell(project, PreToolUse("s", LEAD, HostToolCall("Task", starts="x")), hooks) == HostAnswer()


def test_interactive_shells_are_shells(project: Path) -> None:
    hooks = HookContext(run="r", restrictions=("no_shell_exec",))
    assert all(
        tell(project, PreToolUse("s", LEAD, HostToolCall("T", (word,))), hooks).block for word in SHELL
    )
