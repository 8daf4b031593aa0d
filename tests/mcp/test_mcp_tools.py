"""What can be called over MCP: the table of tools, pinned texts, restrictions, groups, and the start itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from pipe import PATIENCE, PROGRAM, Pipe, environment, make_project, piped

from rolecall import errors
from rolecall.mcp import nexus
from rolecall.mcp.tools import ALL_GROUPS, GROUPS
from rolecall.nexus import dispatch
from rolecall.settings.capabilities import BY_OURSELVES, RESTRICTIONS

ELEVEN = (
    "nx_plan_start", "nx_plan_status", "nx_plan_update", "nx_plan_decide", "nx_task_add", "nx_task_list",
    "nx_task_update", "nx_task_close", "nx_history_search", "nx_context", "nx_artifact_write",
)  # fmt: skip
THREADS = (
    "workflow_list", "workflow_show", "workflow_run", "thread_start", "thread_run", "thread_wait", "thread_step",
    "thread_show", "thread_read", "thread_list", "thread_answer",
)  # fmt: skip
HERE = ("--only", "nexus,threads")
LEADING = (
    "nx_plan_start",
    "nx_plan_update",
    "nx_plan_decide",
    "workflow_run",
    "thread_start",
    "thread_run",
    "thread_step",
    "thread_answer",
)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return make_project(tmp_path)


# -- the table --


def test_the_eleven_and_the_thread_verbs_are_listed_with_schemas_and_hints(project: Path) -> None:
    with piped(project, *HERE) as pipe:
        pipe.initialize()
        tools = {tool["name"]: tool for tool in pipe.ask("tools/list")["result"]["tools"]}
    assert tuple(tools) == (*ELEVEN, *THREADS)
    for tool in tools.values():
        schema = tool["inputSchema"]
        assert (schema["type"], schema["additionalProperties"]) == ("object", False)
        assert set(schema["required"]) <= set(schema["properties"])
        assert all(field.get("description") for field in schema["properties"].values()), tool["name"]
        assert tool["annotations"]["readOnlyHint"] == ("destructiveHint" not in tool["annotations"])
    readers = {name for name, tool in tools.items() if tool["annotations"]["readOnlyHint"]}
    assert readers == {
        "nx_plan_status", "nx_task_list", "nx_history_search", "nx_context",
        "workflow_list", "workflow_show", "thread_wait", "thread_show", "thread_read", "thread_list",
    }  # fmt: skip
    assert tools["nx_artifact_write"]["annotations"]["destructiveHint"] is True
    assert tools["nx_task_add"]["annotations"]["destructiveHint"] is False


def test_the_schemas_name_exactly_the_parameters_of_the_contract() -> None:
    schemas = {tool.name: tool.schema for tool in nexus.TOOLS}
    parameters = {
        name: (schema["required"], sorted(set(schema["properties"]) - set(schema["required"])))
        for name, schema in schemas.items()
    }
    assert parameters == {
        "nx_plan_start": (["topic", "issues", "research_summary"], []),
        "nx_plan_status": ([], []),
        "nx_plan_update": (["action"], ["issue_id", "title"]),
        "nx_plan_decide": (["issue_id", "decision"], ["how_agent_ids", "how_agents", "how_summary"]),
        "nx_task_add": (
            ["title", "context"],
            ["acceptance", "approach", "decisions", "deps", "goal", "owner", "owner_agent_id",
             "owner_reuse_policy", "plan_issue", "risk"],
        ),
        "nx_task_list": ([], []),
        "nx_task_update": (["id", "status"], []),
        "nx_task_close": ([], []),
        "nx_history_search": ([], ["last_n", "query"]),
        "nx_context": ([], []),
        "nx_artifact_write": (["filename", "content"], []),
    }  # fmt: skip
    assert schemas["nx_plan_update"]["properties"]["action"].keys() == {"type", "description"}


def test_the_table_agrees_with_the_map_that_hosts_are_told() -> None:
    assert tuple(tool.name for tool in nexus.TOOLS if tool.is_for_lead) == dispatch.LEAD_ONLY
    assert dispatch.LEAD_ONLY == ("nx_plan_start", "nx_plan_update", "nx_plan_decide")
    denied = {name: {tool.name for tool in nexus.TOOLS if name in tool.classes} for name in BY_OURSELVES}
    assert denied == {
        "nexus_task_creation": {"nx_task_add"},
        "nexus_task_state_transition": {"nx_task_update", "nx_task_close"},
        "nexus_task_metadata_modification": {"nx_task_update", "nx_task_close"},
    }
    for tool in nexus.TOOLS:
        if tool.effect == "reads":
            assert not tool.classes and not tool.is_for_lead


# -- the pinned texts --

PLAN = {"topic": "T", "issues": ["one", "two"], "research_summary": ""}
TASK = {"title": "t", "context": "c"}


def text_of(pipe: Pipe, name: str, **arguments: Any) -> str:
    """The very text of an error, which must be marked as one and stand in both places."""
    result = pipe.ask("tools/call", {"name": name, "arguments": arguments})["result"]
    assert result["isError"] is True
    assert result["structuredContent"] == json.loads(result["content"][0]["text"])
    text: str = result["content"][0]["text"]
    return text


def test_each_pinned_error_text_comes_exactly_and_with_nothing_around_it(project: Path) -> None:
    with piped(project) as pipe:
        pipe.initialize()
        none = '{"error": "No active plan session"}'
        assert text_of(pipe, "nx_plan_decide", issue_id=1, decision="d") == none
        assert text_of(pipe, "nx_plan_update", action="add", title="x") == none
        assert (
            text_of(pipe, "nx_task_update", id=1, status="completed") == '{"error": "tasks.json not found"}'
        )
        pipe.call("nx_plan_start", **PLAN)
        pipe.call("nx_task_add", **TASK)
        for name, arguments, text in (
            ("nx_plan_update", {"action": "remove"}, "issue_id is required for remove"),
            ("nx_plan_update", {"action": "reopen"}, "issue_id is required for reopen"),
            ("nx_plan_update", {"action": "edit"}, "issue_id and title are required for edit"),
            ("nx_plan_update", {"action": "edit", "issue_id": 1}, "issue_id and title are required for edit"),
            ("nx_plan_update", {"action": "add"}, "title is required for add"),
            ("nx_plan_update", {"action": "remove", "issue_id": 999}, "Issue 999 not found"),
            ("nx_plan_decide", {"issue_id": 999, "decision": "d"}, "Issue 999 not found"),
            ("nx_task_update", {"id": 999, "status": "completed"}, "Task id 999 not found"),
        ):
            assert text_of(pipe, name, **arguments) == json.dumps({"error": text})
        assert text_of(pipe, "nx_plan_update", action="rename").startswith('{"error": "Unknown action')


def test_a_plan_without_research_is_an_error_and_leaves_no_plan(project: Path) -> None:
    with piped(project) as pipe:
        pipe.initialize()
        assert "error" in pipe.call("nx_plan_start", topic="T", issues=["one"])
        assert pipe.call("nx_plan_status") == {"active": False}
    assert not (project / ".nexus" / "state" / "plan.json").exists()


def test_wrong_arguments_are_errors_of_the_tool(project: Path) -> None:
    with piped(project) as pipe:
        pipe.initialize()
        for name, arguments, word in (
            ("nx_task_add", {**TASK, "title": 1}, "title"),
            ("nx_task_add", {"title": "t"}, "context"),
            ("nx_task_add", {**TASK, "colour": "red"}, "colour"),
            ("nx_task_add", {**TASK, "deps": ["1"]}, "deps"),
            ("nx_history_search", {"last_n": "all"}, "last_n"),
            ("thread_show", {}, "thread"),
            ("thread_list", {"max": 0}, "max"),
            ("thread_list", {"colour": "red"}, "colour"),
        ):
            assert word in pipe.call(name, **arguments)["error"]
        assert pipe.call("nx_task_list") == {"exists": False}


def test_damaged_state_is_an_error_that_names_the_file(project: Path) -> None:
    state = project / ".nexus" / "state"
    state.mkdir(parents=True)
    (state / "plan.json").write_text('{"id": ')
    with piped(project) as pipe:
        pipe.initialize()
        assert str(state / "plan.json") in pipe.call("nx_plan_start", **PLAN)["error"]
        assert pipe.call("nx_context")["branch"] == "main"
    assert (state / "plan.json").read_text() == '{"id": '


def test_state_that_another_harness_wrote_over_several_lines_stays_one_message(project: Path) -> None:
    task = {"id": 1, "title": 'a\n\t"b" \\ é', "context": "c", "status": "pending", "deps": []}
    state = project / ".nexus" / "state"
    state.mkdir(parents=True)
    file = {"goal": "g", "decisions": [], "tasks": [task]}
    (state / "tasks.json").write_text(json.dumps(file, indent="\t").replace("\n", "\r\n"))
    with piped(project) as pipe:
        pipe.initialize()
        assert pipe.call("nx_task_list")["tasks"] == [task]


# -- who may call what --


def allowed(pipe: Pipe) -> set[str]:
    pipe.initialize()
    listed = set(pipe.tools())
    for name in (*ELEVEN, *THREADS):
        if name not in listed:
            assert set(pipe.call(name)) == {"error"}
    return listed


@pytest.mark.parametrize(
    ("agent", "denied"),
    [
        ("architect", {"nx_task_add", "nx_task_update", "nx_task_close"}),
        ("engineer", {"nx_task_add"}),
        ("tester", {"nx_task_add"}),
    ],
)
def test_an_agent_sees_and_calls_only_what_its_capabilities_leave(
    project: Path, agent: str, denied: set[str]
) -> None:
    with piped(project, *HERE, "--as", agent) as pipe:
        assert allowed(pipe) == {*ELEVEN, *THREADS} - denied - set(LEADING)
        word = "no_task_create"
        fields = {"error": f"nx_task_add is denied to this role by {word}"}
        assert pipe.call("nx_task_add", **TASK) == fields
        planned = {"error": f"nx_plan_start is for the lead, and this server was started for {agent}"}
        assert pipe.call("nx_plan_start", **PLAN) == planned
        assert pipe.call("nx_task_list") == {"exists": False}
    assert not (project / ".nexus" / "state").exists()


@pytest.mark.parametrize("word", RESTRICTIONS)
def test_what_the_environment_denies_is_denied(project: Path, word: str) -> None:
    denied = {
        "no_task_create": {"nx_task_add"},
        "no_task_update": {"nx_task_update", "nx_task_close"},
    }.get(word, set())
    with piped(project, *HERE, ROLECALL_RESTRICTIONS=word) as pipe:
        assert allowed(pipe) == {*ELEVEN, *THREADS} - denied - set(LEADING)
        reply = pipe.call("nx_plan_start", **PLAN)
        assert reply == {"error": f"nx_plan_start is for the lead, and this role is held to {word}"}
        assert pipe.call("nx_plan_status") == {"active": False}


def test_the_environment_adds_to_what_an_agent_is_denied(project: Path) -> None:
    words = "no_task_update,no_shell_exec"
    with piped(project, *HERE, "--as", "engineer", ROLECALL_RESTRICTIONS=words) as pipe:
        denied = {"nx_task_add", "nx_task_update", "nx_task_close"}
        assert allowed(pipe) == {*ELEVEN, *THREADS} - denied - set(LEADING)


def test_an_agent_is_looked_for_in_the_catalogue_that_is_configured(project: Path) -> None:
    with piped(project, *HERE, "--as", "engineer") as pipe:
        pipe.initialize()
    home = Path(environment(project.parent)["ROLECALL_HOME"])
    package = project.parent / "package"
    (home / "config.yaml").write_text(f"catalog: {package}\n")
    assert str(package / "manifest.json") in refusal(project, "--as", "engineer", code=3)


# -- groups --


def test_groups_can_be_left_out_or_chosen(project: Path) -> None:
    for options, names in (
        (("--without", ",".join(set(ALL_GROUPS) - {"nexus"})), ELEVEN),
        (("--only", "nexus"), ELEVEN),
        (("--only", "threads"), THREADS),
        (("--only", "nexus,threads", "--without", "nexus"), THREADS),
    ):
        with piped(project, *options) as pipe:
            pipe.initialize()
            assert tuple(pipe.tools()) == names
            other = (set(ELEVEN) | set(THREADS)) - set(names)
            refused = pipe.ask("tools/call", {"name": min(other)})
            assert refused["error"]["code"] == -32602


def test_no_two_tools_have_a_name_in_common() -> None:
    names = [tool.name for module in GROUPS.values() for tool in import_module(module).TOOLS]
    assert {*ELEVEN, *THREADS} <= set(names)
    assert len(names) == len(set(names))


def test_every_group_and_every_tool_stands_in_the_documentation() -> None:
    page = (Path(__file__).parents[2] / "docs" / "mcp.md").read_text(encoding="utf-8")
    names = [tool.name for module in GROUPS.values() for tool in import_module(module).TOOLS]
    assert [name for name in (*ALL_GROUPS, *names) if f"`{name}`" not in page] == []


# -- the start --


def refusal(project: Path, *options: str, code: int = 2, cwd: Path | None = None, **more: str) -> str:
    done = subprocess.run(
        [PROGRAM, "mcp", *options],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=environment(project.parent, **more),
        cwd=cwd or project,
        timeout=PATIENCE,
        check=False,
    )
    assert (done.returncode, done.stdout) == (code, "")
    return done.stderr


def test_without_a_repository_around_it_the_server_does_not_start(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    bare = tmp_path / "bare"
    bare.mkdir()
    said = refusal(project, cwd=bare)
    assert str(bare) in said and "--project" in said


def test_the_project_is_the_repository_around_the_folder(project: Path) -> None:
    below = project / "src" / "deep"
    below.mkdir(parents=True)
    (below / ".nexus").mkdir()  # a state folder alone makes no project
    opening = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": "2025-06-18"}}
    calls = {"jsonrpc": "2.0", "id": 2, "method": "tools/call"}
    calls |= {"params": {"name": "nx_task_add", "arguments": TASK}}
    subprocess.run(
        [PROGRAM, "mcp"],
        input=f"{json.dumps(opening)}\n{json.dumps(calls)}\n".encode(),
        stdout=subprocess.DEVNULL,
        env=environment(project.parent),
        cwd=below,
        timeout=PATIENCE,
        check=True,
    )
    assert (project / ".nexus" / "state" / "tasks.json").exists()


def test_a_start_that_cannot_mean_what_was_meant_is_refused(project: Path) -> None:
    assert "the folder '/no/where' does not exist" in refusal(project, "--project", "/no/where")
    assert "the agent 'enginer' is not known" in refusal(project, "--as", "enginer", code=3)
    assert "engineer" in refusal(project, "--as", "enginer", code=3)
    assert "unknown group of tools 'thread'" in refusal(project, "--without", "thread")
    assert f"Groups: {', '.join(ALL_GROUPS)}." in refusal(project, "--only", "nonsense")
    assert "'no_such_word', which is not known" in refusal(project, ROLECALL_RESTRICTIONS="no_such_word")


@pytest.mark.parametrize("word", RESTRICTIONS)
def test_a_role_that_may_not_do_everything_starts_no_server_in_its_own_shell(
    project: Path, word: str
) -> None:
    other = project.parent / "some-file"
    other.write_text("x")
    for shown in ((), ("--host-key", "/no/such/file"), ("--host-key", str(other)), ("--host-key", "")):
        error = refusal(project, *shown, ROLECALL_RESTRICTIONS=word)
        assert f"rolecall mcp is for hosts, but this process is restricted by {word}" in error
        assert "install Rolecall in the host again: `rolecall install HOST`" in error


def test_inside_a_step_threads_are_moved_only_by_a_role_that_may(project: Path) -> None:
    moving = {"workflow_run", "thread_start", "thread_run", "thread_step", "thread_answer"}
    for may, denied in (("", moving), ("1", set())):
        with piped(project, *HERE, ROLECALL_RUN="a-run", ROLECALL_MAY_START_THREADS=may) as pipe:
            assert allowed(pipe) == {*ELEVEN, *THREADS} - denied
            reply = pipe.call("thread_step", thread="x")["error"]
            assert ("starts or moves threads, which this role may not do" in reply) is bool(denied)


def test_no_secret_of_the_environment_is_kept_in_the_state(project: Path) -> None:
    key = "sk-0a1b2c3d4e5f6071"
    with piped(project, *HERE, SERVICE_API_KEY=key) as pipe:
        pipe.initialize()
        pipe.call("nx_plan_start", topic=key, issues=[f"Is {key} safe?"], research_summary=key)
        pipe.call(
            "nx_plan_decide",
            issue_id=1,
            decision=key,
            how_agents=["architect"],
            how_summary={"architect": key},
        )
        pipe.call("nx_task_add", title=f"Take {key}", context=key, decisions=[key])
        assert key not in str([pipe.call("nx_task_list"), pipe.call("nx_plan_status")])
    files = [path.read_text() for path in (project / ".nexus").rglob("*") if path.is_file()]
    assert len(files) >= 2 and not [text for text in files if key in text]


OPEN_AND_TELL = """
import sys
before = set(sys.modules)
from rolecall.__main__ import main
status = main(["mcp", "--project", *sys.argv[1:]])
print(*sorted(set(sys.modules) - before), sep="\\n", file=sys.stderr)
sys.exit(status)
"""
HEAVY = {
    "asyncio", "dataclasses", "inspect", "jsonschema_rs", "logging", "mcp", "pathlib", "pydantic", "socket", "sqlite3",
    "subprocess", "tempfile", "xxhash", "yaml",
}  # fmt: skip


@pytest.mark.parametrize("options", [(), ("--as", "engineer")], ids=["lead", "agent"])
def test_initialize_is_answered_before_anything_heavy_is_imported(
    project: Path, options: tuple[str, ...]
) -> None:
    opening = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": "2025-06-18"}}
    source = Path(errors.__file__).parents[1]
    for flags in ((), ("-S",)):  # the first server of an agent reads the catalogue
        done = subprocess.run(
            [sys.executable, *flags, "-c", OPEN_AND_TELL, str(project), *options],
            input=json.dumps(opening),
            capture_output=True,
            text=True,
            env={**environment(project.parent), "PYTHONPATH": str(source)},
            timeout=PATIENCE,
            check=True,
        )
    assert json.loads(done.stdout)["id"] == 1
    modules = set(done.stderr.split())
    assert "rolecall.mcp.stdio" in modules
    assert not modules & HEAVY
    groups = {
        *GROUPS.values(),
        "rolecall.mcp.resources",
        "rolecall.mcp.skills",
        "rolecall.nexus.dispatch",
        "rolecall.nexus.catalog",
    }
    assert not modules & groups


@pytest.mark.parametrize("options", [(), ("--as", "engineer")], ids=["lead", "agent"])
def test_a_server_is_light_enough_for_one_per_agent(project: Path, options: tuple[str, ...]) -> None:
    """150 ms of processor time up to the answer, and 40 MB after a call over an interpreter that does nothing."""
    idle = [sys.executable, "-c", "import sys; print(flush=True); sys.stdin.read()"]
    with subprocess.Popen(idle, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stdin is not None
        child.stdout.readline()
        _, bare = measure_usage(child.pid)
    with piped(project, *options) as pipe:
        pipe.initialize()
        seconds, _ = measure_usage(pipe.child.pid)
        pipe.tools()
        pipe.call("nx_plan_status")
        _, memory = measure_usage(pipe.child.pid)
    assert seconds <= 0.150
    assert memory - bare < 40_000_000


def measure_usage(pid: int) -> tuple[float, int]:
    """Seconds on the processor and the peak of memory of a process."""
    folder = Path(f"/proc/{pid}")
    if not folder.exists():
        pytest.skip("this system does not tell what another process has used")
    ticks = folder.joinpath("stat").read_text().rpartition(")")[2].split()[11:13]
    line = next(one for one in folder.joinpath("status").read_text().splitlines() if "VmHWM" in one)
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK"), int(line.split()[1]) * 1024


def test_nothing_is_written_by_looking(project: Path) -> None:
    before = sorted(project.rglob("*"))
    with piped(project) as pipe:
        pipe.initialize()
        pipe.tools()
        for name in ("nx_plan_status", "nx_task_list", "nx_history_search", "nx_context", "thread_list"):
            pipe.call(name)
        assert pipe.call("workflow_list")["workflows"] == []
        assert "error" in pipe.call("thread_show", thread="01ABC")
        pipe.close()
    assert sorted(project.rglob("*")) == before
    assert not Path(environment(project.parent)["ROLECALL_HOME"]).exists()


def test_half_a_character_in_a_file_makes_it_unusable(tmp_path: Path) -> None:
    project = make_project(tmp_path)
    state = project / ".nexus" / "state"
    state.mkdir(parents=True)
    task = {"id": 1, "title": "t", "context": "b\ud800", "status": "pending", "deps": []}
    (state / "tasks.json").write_text(json.dumps({"goal": "", "decisions": [], "tasks": [task]}))
    with piped(project) as pipe:
        pipe.initialize()
        assert "tasks.json cannot be used" in pipe.call("nx_task_list")["error"]
