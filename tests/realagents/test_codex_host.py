"""Rolecall in Codex: installed by our command, at work in the real program.

Hooks run here with --dangerously-bypass-hook-trust, except where trust is what is tested: there a test says what a
person says in Codex, through the same door that its screen uses.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any, Self

import pytest
from modelserver import Calls, ModelServer, Says, When

from realagents.hosted import Hosted, read_text, turns_of
from realagents.stage import Stage, file_text, installed
from realagents.test_codex import CODE_MODEL, CONFIGURATION, PATCH

PROGRAM = installed("codex")
TRUSTED = '\n[projects.{}]\ntrust_level = "trusted"\n'
ARCHITECT = "# Architect"
ENGINEER = "# Engineer"
"""How the instructions of agents begin: by them a scripted model knows whose turn it is."""
REFUSED = "No task is planned"


@pytest.fixture
def host(model: ModelServer, tmp_path: Path) -> Hosted:
    stage = Stage(model, tmp_path, {"SCRIPTED_KEY": "dummy"})
    host = Hosted(stage, "codex")
    own = stage.home / ".codex"
    own.mkdir()
    text = CONFIGURATION.format(url=model.base_url) + TRUSTED.format(json.dumps(str(host.work)))
    (own / "config.toml").write_text(text, encoding="utf-8")
    return host


def codex(
    host: Hosted,
    prompt: str = "Go on.",
    *,
    model: str = "gpt-5.5",
    is_trusting: bool = True,
    args: tuple[str, ...] = (),
    **env: str,
) -> str:
    trust = ["--dangerously-bypass-hook-trust"] if is_trusting else []
    features = ["-c", "features.plugins=false", "-c", "features.apps=false"]
    argv = [PROGRAM, "exec", "--json", *trust, *features, "--model", model, *args, "-"]
    return host.program(argv, prompt=prompt, **env)


def ours(tool: str, **arguments: Any) -> Calls:
    return Calls(tool, arguments, namespace="mcp__rolecall")


def shell(command: str) -> Calls:
    # Of a command that ends at once Codex tells nothing.
    return Calls("exec_command", {"cmd": f"sleep 0.3; {command}"})


def code(text: str) -> Calls:
    return Calls("exec", f"text(JSON.stringify(await tools.{text}))")


def spawn(agent: str) -> Calls:
    given = {"agent_type": agent, "message": "Do it.", "task_name": "one"}
    return Calls("spawn_agent", given, namespace="collaboration")


WAIT = Calls("wait_agent", {"timeout_ms": 20_000}, namespace="collaboration")


def returned(model: ModelServer) -> list[str]:
    """What the tools gave back, as the model was told in the last request."""
    items: list[dict[str, Any]] = model.turns[-1].body["input"]
    return [json.dumps(item["output"]) for item in items if item["type"].endswith("_output")]


# -- the server and the gate --


def test_our_server_is_started_and_its_tools_are_called(host: Hosted, model: ModelServer) -> None:
    host.install()
    model.add(ours("nx_task_add", title="Write it", context="Because."), ours("nx_task_list"), "done")
    codex(host)
    added, listed = returned(model)
    assert "Write it" in added
    assert "Write it" in listed
    assert host.state("tasks.json").exists()
    assert [entry["tool"] for entry in host.tool_log()] == [
        "mcp__rolecall__nx_task_add",
        "mcp__rolecall__nx_task_list",
    ]


def test_an_edit_that_nobody_planned_is_refused_and_the_model_is_told_why(
    host: Hosted, model: ModelServer
) -> None:
    host.install()
    heredoc = Calls("exec_command", {"cmd": f"apply_patch <<'EOF'\n{PATCH}EOF"})
    model.add(Calls("apply_patch", PATCH), shell("echo x > a.txt"), heredoc, shell("ls"), "done")
    codex(host)
    patched, written, through_shell, listed = returned(model)
    assert all(REFUSED in text for text in (patched, written, through_shell))
    assert REFUSED not in listed
    assert not (host.work / "a.txt").exists()


def test_code_that_calls_tools_is_held_by_the_gate(host: Hosted, model: ModelServer) -> None:
    host.install()
    model.add(code(f"apply_patch({json.dumps(PATCH)})"), "done")
    codex(host, model=CODE_MODEL)
    assert REFUSED in returned(model)[0]
    assert not (host.work / "a.txt").exists()


def test_a_planned_edit_passes_and_the_log_names_the_file(host: Hosted, model: ModelServer) -> None:
    host.install()
    host.plan_task()
    model.add(Calls("apply_patch", PATCH), shell("echo x > b.txt"), "done")
    codex(host)
    assert file_text(host.work / "a.txt") == "written\n"
    assert file_text(host.work / "b.txt") == "x\n"
    logged = [(entry["tool"], entry.get("files"), entry["agent_id"]) for entry in host.tool_log()]
    assert logged == [("apply_patch", ["a.txt"], "lead"), ("Bash", ["b.txt"], "lead")]


def test_what_is_typed_into_a_running_program_is_not_seen(host: Hosted, model: ModelServer) -> None:
    host.install()
    script = (
        'let run = await tools.exec_command({cmd: "bash", tty: true, yield_time_ms: 500});'
        ' await tools.write_stdin({session_id: run.session_id, chars: "echo x > a.txt; exit\\n"})'
    )
    model.add(Calls("exec", script), "done")
    codex(host, model=CODE_MODEL)
    assert file_text(host.work / "a.txt") == "x\n"  # Codex asks no hook about it; docs/hosts.md says so


def test_the_state_is_not_written_past_the_tools(host: Hosted, model: ModelServer) -> None:
    host.install()
    host.plan_task()
    before = host.state("tasks.json").read_bytes()
    path = PATCH.replace("a.txt", ".nexus/state/tasks.json")
    by_name = {"cmd": "sleep 0.3; echo '{}' > tasks.json", "workdir": ".nexus/state"}
    model.add(
        Calls("apply_patch", path),
        shell("echo '{}' > .nexus/state/tasks.json"),
        Calls("exec_command", by_name),
        "done",
    )
    codex(host)
    assert len(returned(model)) == 3
    assert all("written by the tools alone" in text for text in returned(model))
    assert host.state("tasks.json").read_bytes() == before


def test_a_command_that_is_run_elsewhere_is_judged_in_the_project_of_the_session(
    host: Hosted, model: ModelServer
) -> None:
    host.install("--user")
    (host.work / ".nexus").mkdir()
    given = {"cmd": f"sleep 0.3; echo x > {host.work}/a.txt", "workdir": "/tmp"}
    model.add(Calls("exec_command", given), "done")
    codex(host)
    assert REFUSED in returned(model)[0]
    assert not (host.work / "a.txt").exists()


def test_a_role_of_a_thread_keeps_its_restrictions_in_the_server_that_codex_starts(
    host: Hosted, model: ModelServer
) -> None:
    host.install()
    model.add(ours("nx_task_add", title="Mine", context="Because."), ours("nx_task_list"), "done")
    codex(host, is_trusting=False, ROLECALL_RESTRICTIONS="no_task_create", ROLECALL_RUN="a-run")
    added, listed = returned(model)
    assert "unsupported call" in added  # the server does not offer it to such a role
    assert "exists" in listed
    assert not host.state("tasks.json").exists()


# -- words for the model --


def test_the_start_of_a_session_tells_what_was_left_and_what_is_known(
    host: Hosted, model: ModelServer
) -> None:
    host.install()
    host.plan_task("Build the shop")
    host.rolecall("memory", "add", "till-rounding", "-m", "The till rounds up.")
    model.add("done")
    codex(host)
    words = read_text(model.turns[0])
    assert "Left over from before: 1 tasks, 1 of them unfinished" in words
    assert "till-rounding.md" in words


def test_a_tag_puts_the_whole_skill_before_the_model(host: Hosted, model: ModelServer) -> None:
    host.install()
    model.add("done")
    codex(host, "[plan] Build a shop")
    words = read_text(model.turns[0])
    assert "The user activated the skill nx-plan" in words
    assert "call the tool spawn_agent with agent_type `architect`" in words
    assert "Full hook output saved to" not in words


def test_skills_are_offered_and_the_manual_one_only_comes_when_named(
    host: Hosted, model: ModelServer
) -> None:
    host.install()
    model.add("done", "done")
    codex(host)
    codex(host, "Use $nx-init.")
    first, second = map(read_text, model.turns)
    assert "- nx-plan: Plan before acting" in first
    assert "- nx-init:" not in first
    assert "<name>nx-init</name>" in second


def test_a_note_that_is_read_is_counted(host: Hosted, model: ModelServer) -> None:
    host.install()
    host.rolecall("memory", "add", "till-rounding", "-m", "The till rounds up.")
    model.add(shell("cat .nexus/memory/till-rounding.md"), "done")
    codex(host)
    assert "rounds up" in returned(model)[0]
    assert "till-rounding.md" in (file_text(host.state("rolecall", "memory-access.jsonl")) or "")


def test_after_a_compaction_the_model_is_told_again(host: Hosted, model: ModelServer) -> None:
    host.install()
    host.plan_task("Build the shop")
    model.add(Calls("exec_command", {"cmd": "sleep 0.3"}, prompt_tokens=9_000), shell("true"), "done")
    codex(host, "[run]", args=("-c", "model_auto_compact_token_limit=4000"))
    (summary,) = (request for request in model.requests if request not in model.turns)
    after = read_text(model.turns[1])
    assert "CONTEXT CHECKPOINT COMPACTION" in read_text(summary)
    assert "Where the project stands, read again from disk" in after
    assert "Build the shop" in after
    assert "How you work while the skill nx-run is active" in after


# -- agents --


def test_an_agent_is_held_to_its_capabilities(host: Hosted, model: ModelServer) -> None:
    host.install()
    host.plan_task()
    tries = [
        code(f"apply_patch({json.dumps(PATCH)})"),
        code('exec_command({cmd: "sleep 0.3; echo x > b.txt"})'),
        code('mcp__rolecall__nx_task_add({title: "Mine", context: "x"})'),
        code('mcp__rolecall__nx_plan_start({topic: "Mine", issues: ["x"], research_summary: "x"})'),
        spawn("engineer"),
    ]
    model.add(*(When(ARCHITECT, item) for item in tries), When(ARCHITECT, "My report."))
    model.add(spawn("architect"), WAIT, "done")
    codex(host, model=CODE_MODEL)
    last = read_text(turns_of(model, ARCHITECT)[-1])
    for reason in (
        "Changing a.txt is denied to the agent architect by no_file_edit",
        "Changing b.txt is denied to the agent architect by no_file_edit",
        "nx_task_add is denied to the agent architect by no_task_create",
        "Only Lead may use nx_plan_start",
        "Only Lead starts agents",
    ):
        assert reason in last
    assert sorted(path.name for path in host.work.glob("*.txt")) == []
    assert len(host.rolecall("task", "list")["tasks"]) == 1


def test_what_a_program_of_a_restricted_agent_writes_is_not_blocked(host: Hosted, model: ModelServer) -> None:
    host.install()
    host.plan_task()
    assert 'sandbox_mode = "read-only"' in (file_text(host.work / ".codex/agents/architect.toml") or "")
    write = code(
        """exec_command({cmd: "sleep 0.3; python3 -c 'open(\\"a.txt\\", \\"w\\").write(\\"x\\")'"})"""
    )
    model.add(When(ARCHITECT, write), When(ARCHITECT, "My report."), spawn("architect"), WAIT, "done")
    codex(host, model=CODE_MODEL)
    # Codex gives an agent the sandbox of whoever starts it, whatever the agent's file says; docs/hosts.md says so.
    assert file_text(host.work / "a.txt") == "x"


def test_an_agent_is_told_its_task_and_is_on_record(host: Hosted, model: ModelServer) -> None:
    host.install()
    host.plan_task("Write the letter", owner="engineer", acceptance="It is there.")
    write = code(f"apply_patch({json.dumps(PATCH)})")
    look = code('exec_command({cmd: "sleep 0.3; cat .nexus/state/rolecall/agent-tracker.json"})')
    model.add(When(ENGINEER, write), When(ENGINEER, "It is written."), spawn("engineer"), WAIT, look, "done")
    codex(host, model=CODE_MODEL)
    first = read_text(turns_of(model, ENGINEER)[0])
    assert "Write the letter" in first
    assert "It is there." in first
    assert file_text(host.work / "a.txt") == "written\n"
    assert [entry["agent"] for entry in host.tool_log() if entry["agent_id"] != "lead"] == ["engineer"]
    record = read_text(model.turns[-1]).replace("\\", "")
    assert '"agent_name": "engineer"' in record
    assert '"status": "completed"' in record
    assert '"a.txt"' in record
    assert not host.state("rolecall", "agent-tracker.json").exists()  # with the last session it goes


# -- trust --


class AppServer:
    """What the screen of Codex talks to."""

    def __init__(self, host: Hosted) -> None:
        self._child = subprocess.Popen(
            [PROGRAM, "app-server"],
            cwd=host.work,
            env=host.stage.env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._asked = 0
        self.ask("initialize", {"clientInfo": {"name": "test", "version": "1"}})
        self._send({"method": "initialized"})

    def _send(self, message: dict[str, Any]) -> None:
        assert self._child.stdin is not None
        self._child.stdin.write(json.dumps(message) + "\n")
        self._child.stdin.flush()

    def ask(self, method: str, params: dict[str, Any]) -> Any:
        self._asked += 1
        self._send({"id": self._asked, "method": method, "params": params})
        assert self._child.stdout is not None
        for line in self._child.stdout:
            answer = json.loads(line)
            if answer.get("id") == self._asked:
                return answer["result"]
        raise AssertionError(f"no answer to {method}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._child.terminate()
        self._child.communicate(timeout=30)


def hooks_of(host: Hosted, server: AppServer) -> list[dict[str, Any]]:
    (found,) = server.ask("hooks/list", {"cwds": [str(host.work)]})["data"]
    assert (found["errors"], found["warnings"]) == ([], [])
    listed: list[dict[str, Any]] = found["hooks"]
    return listed


def trust(host: Hosted) -> list[dict[str, Any]]:
    """Trust every hook that Codex shows, as a person does at its start or in /hooks; the hooks as they are then."""
    with AppServer(host) as server:
        state = {hook["key"]: {"trusted_hash": hook["currentHash"]} for hook in hooks_of(host, server)}
        edit = {"keyPath": "hooks.state", "value": state, "mergeStrategy": "upsert"}
        server.ask("config/batchWrite", {"edits": [edit], "reloadUserConfig": True})
        return hooks_of(host, server)


@pytest.mark.parametrize("scope", ["--project", "--user"])
def test_codex_runs_no_hook_before_it_was_told_to_trust_it_and_doctor_says_so(
    host: Hosted, model: ModelServer, scope: str
) -> None:
    host.install(scope)
    (host.work / ".nexus").mkdir()
    model.add(Calls("apply_patch", PATCH), "done", Calls("apply_patch", PATCH), "done")
    codex(host, is_trusting=False)
    assert file_text(host.work / "a.txt") == "written\n"
    assert any("does not trust our hooks yet" in text for text in host.doctor())
    (host.work / "a.txt").unlink()

    assert {hook["trustStatus"] for hook in trust(host)} == {"trusted"}
    host.install(scope)  # a second time changes nothing that trust goes by
    codex(host, is_trusting=False)
    assert not (host.work / "a.txt").exists()
    assert REFUSED in returned(model)[0]
    assert host.doctor() == []


def test_of_a_project_that_is_not_trusted_nothing_is_read_and_doctor_says_so(
    host: Hosted, model: ModelServer
) -> None:
    host.install()
    own = host.stage.home / ".codex" / "config.toml"
    own.write_text(CONFIGURATION.format(url=model.base_url), encoding="utf-8")
    model.add(ours("nx_plan_status"), "done")
    codex(host)
    assert "unsupported call" in returned(model)[0]
    assert not host.state().exists()
    assert any(f"does not trust {host.work} yet" in text for text in host.doctor())


def test_a_server_that_is_switched_off_for_the_user_has_no_tools_in_a_project_and_doctor_says_so(
    host: Hosted, model: ModelServer
) -> None:
    host.install()
    own = host.stage.home / ".codex" / "config.toml"
    with own.open("a", encoding="utf-8") as file:
        file.write("\n[mcp_servers.rolecall]\nenabled = false\n")
    model.add(ours("nx_plan_status"), "done")
    codex(host)
    assert "unsupported call" in returned(model)[0]
    assert any("does not start our server" in text and str(own) in text for text in host.doctor())


def test_for_the_user_a_repository_within_the_project_is_no_way_round_the_gate(
    host: Hosted, model: ModelServer
) -> None:
    host.install("--user")
    (host.work / ".nexus").mkdir()
    subprocess.run(["git", "init", "-q", host.work / "vendor"], check=True)
    within = {"cmd": f"sleep 0.3; echo x > {host.work}/a.txt", "workdir": str(host.work / "vendor")}
    model.add(Calls("exec_command", within), "done")
    codex(host)
    assert REFUSED in returned(model)[0]
    assert not (host.work / "a.txt").exists()


# -- taking it out --


def test_uninstalling_leaves_no_trace_in_a_project(host: Hosted, model: ModelServer) -> None:
    (host.work / ".codex").mkdir()
    theirs = {"hooks": {"Stop": [{"hooks": [{"type": "command", "command": "true"}]}]}}
    (host.work / ".codex" / "hooks.json").write_text(json.dumps(theirs), encoding="utf-8")
    (host.work / ".codex" / "config.toml").write_text('# mine\nmodel_reasoning_effort = "low" # quick\n')
    before = host.files()
    host.install()
    model.add("done")
    codex(host)
    host.uninstall()
    after = host.files(without=(".git", ".nexus"))
    hooks = ".codex/hooks.json"  # JSON is laid out again
    assert json.loads(after.pop(hooks)) == json.loads(before.pop(hooks)) == theirs
    assert after == before


def test_uninstalling_leaves_what_codex_and_the_user_wrote_meanwhile(
    host: Hosted, model: ModelServer
) -> None:
    own = host.stage.home / ".codex"
    before = (own / "config.toml").read_text(encoding="utf-8")
    host.install("--user")
    trust(host)
    settings = {
        "mcp_servers.other": {"command": "true"},
        "mcp_servers.rolecall.tools.nx_task_add": {
            "approval_mode": "approve"
        },  # the person need not be asked
    }
    edits = [{"keyPath": key, "value": value, "mergeStrategy": "upsert"} for key, value in settings.items()]
    with AppServer(host) as server:
        server.ask("config/batchWrite", {"edits": edits, "reloadUserConfig": False})
    assert [change["state"] for change in host.install("--user")["changes"]].count("same") > 10
    assert "nx_task_add" in (own / "config.toml").read_text(encoding="utf-8")
    host.uninstall("--user")
    after = (own / "config.toml").read_text(encoding="utf-8")
    assert after.startswith(before)
    assert "[mcp_servers.other]" in after
    assert "hooks.state" in after
    assert "rolecall" not in after.replace(str(own), "")
    assert not (own / "hooks.json").exists()
    model.add(Says("done"))
    codex(host)  # what is left is a configuration that Codex reads
