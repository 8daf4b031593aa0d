"""Rolecall in OpenCode: installed by our command, at work in the real program through its plugin."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from modelserver import Calls, ModelServer, When

from realagents.hosted import Hosted, read_text, turns_of
from realagents.stage import Stage, file_text, installed
from realagents.test_opencode import settle

PROGRAM = installed("opencode")
THEIRS = (".git", ".nexus", ".gitignore", "node_modules", "package.json", "package-lock.json", "bun.lock")
"""What OpenCode puts beside plugins, and what is no wiring."""
ARCHITECT = "# Architect"
ENGINEER = "# Engineer"
"""How the instructions of agents begin: by them a scripted model knows whose turn it is."""
REFUSED = "No task is planned"


@pytest.fixture
def host(model: ModelServer, tmp_path: Path) -> Hosted:
    switches = ("AUTOUPDATE", "MODELS_FETCH", "LSP_DOWNLOAD", "DEFAULT_PLUGINS")
    # Where there are plugins it asks the registry for a package of its own, and waits for an answer.
    nowhere = {"npm_config_registry": "http://127.0.0.1:1/", "npm_config_fetch_retries": "0"}
    env = {f"OPENCODE_DISABLE_{switch}": "1" for switch in switches} | nowhere
    stage = Stage(model, tmp_path, env)
    settle(stage)
    return Hosted(stage, "opencode")


def opencode(host: Hosted, prompt: str = "Go on.", *args: str) -> list[dict[str, Any]]:
    """The events of a run."""
    argv = [PROGRAM, "run", "--format", "json", "--auto", "--dir", str(host.work), *args]
    return [json.loads(line) for line in host.program(argv, prompt=prompt).splitlines()]


def write(host: Hosted, name: str = "a.txt") -> Calls:
    return Calls("write", {"filePath": str(host.work / name), "content": "written\n"})


def shell(command: str) -> Calls:
    return Calls("bash", {"command": command, "description": "a command"})


def ours(tool: str, **arguments: Any) -> Calls:
    return Calls(f"rolecall_{tool}", arguments)


def task(agent: str) -> Calls:
    given = {"description": "do it", "prompt": "Do it.", "subagent_type": agent}
    return Calls("task", given)


def returned(model: ModelServer) -> list[str]:
    """What the tools gave back, as the model was told in the last request."""
    return [message["content"] for message in model.turns[-1].body["messages"] if message["role"] == "tool"]


def said(model: ModelServer, turn: int = 0) -> Iterator[str]:
    """The parts of the messages of the user in a request: what was typed, and what was put beside it."""
    for message in model.turns[turn].body["messages"]:
        if message["role"] == "user":
            content = message["content"]
            yield from [content] if isinstance(content, str) else (part["text"] for part in content)


# -- the server and the gate --


def test_our_server_is_started_and_its_tools_are_called(host: Hosted, model: ModelServer) -> None:
    host.install()
    model.add(ours("nx_task_add", title="Write it", context="Because."), ours("nx_task_list"), "done")
    opencode(host)
    assert all("Write it" in text for text in returned(model))
    assert host.state("tasks.json").exists()
    assert [entry["tool"] for entry in host.tool_log()] == [
        "rolecall_nx_task_add",
        "rolecall_nx_task_list",
    ]


def test_a_server_that_is_switched_off_has_no_tools_for_the_model_and_doctor_says_so(
    host: Hosted, model: ModelServer
) -> None:
    host.install()
    settings = host.work / "opencode.jsonc"
    settings.write_text('{\n  // not now\n  "mcp": {"rolecall": {"enabled": false},},\n}\n', encoding="utf-8")
    model.add("done")
    opencode(host)
    offered = {tool["function"]["name"] for turn in model.turns for tool in turn.body.get("tools", ())}
    assert "bash" in offered and not any("rolecall" in name for name in offered)
    assert any("does not start our server" in text and str(settings) in text for text in host.doctor())


def test_an_edit_that_nobody_planned_is_refused_and_the_model_is_told_why(
    host: Hosted, model: ModelServer
) -> None:
    host.install()
    (host.work / "old.txt").write_text("old\n", encoding="utf-8")
    edit = {"filePath": str(host.work / "old.txt"), "oldString": "old", "newString": "new"}
    model.add(write(host), Calls("edit", edit), shell("echo x > a.txt"), shell("ls"), "done")
    opencode(host)
    written, edited, through_shell, listed = returned(model)
    assert all(REFUSED in text for text in (written, edited, through_shell))
    assert "old.txt" in listed
    assert file_text(host.work / "old.txt") == "old\n"
    assert not (host.work / "a.txt").exists()


def test_a_planned_edit_passes_and_the_log_names_the_file(host: Hosted, model: ModelServer) -> None:
    host.install()
    host.plan_task()
    missing = Calls("read", {"filePath": str(host.work / "nothing.txt")})
    model.add(write(host), shell("echo x > b.txt"), missing, "done")
    opencode(host)
    assert file_text(host.work / "a.txt") == "written\n"
    assert file_text(host.work / "b.txt") == "x\n"
    logged = [(entry["tool"], entry.get("files"), entry["status"]) for entry in host.tool_log()]
    assert logged == [
        ("write", ["a.txt"], "ok"),
        ("bash", ["b.txt"], "ok"),
        ("read", ["nothing.txt"], "error"),
    ]


def test_the_state_is_not_written_past_the_tools(host: Hosted, model: ModelServer) -> None:
    host.install()
    host.plan_task()
    before = host.state("tasks.json").read_bytes()
    in_folder = {"command": "echo '{}' > tasks.json", "workdir": str(host.state()), "description": "x"}
    model.add(write(host, ".nexus/state/tasks.json"), Calls("bash", in_folder), "done")
    opencode(host)
    assert all("written by the tools alone" in text for text in returned(model))
    assert host.state("tasks.json").read_bytes() == before


# -- words for the model --


def test_a_session_begins_with_what_was_left_and_a_tag_brings_its_skill(
    host: Hosted, model: ModelServer
) -> None:
    host.install()
    host.plan_task("Build the shop")
    host.rolecall("memory", "add", "till-rounding", "-m", "The till rounds up.")
    model.add("done")
    opencode(host, "[run] now")
    typed, start, message = said(model)
    assert typed == "[run] now"
    assert "Left over from before: 1 tasks, 1 of them unfinished" in start
    assert "till-rounding.md" in start
    assert "The user activated the skill nx-run" in message
    assert "Call the tool task with subagent_type `engineer`" in message


def test_a_command_brings_the_skill_once_and_its_tags_are_not_the_users(
    host: Hosted, model: ModelServer
) -> None:
    host.install()
    model.add("done", "done")
    opencode(host, "a shop", "--command", "nx-plan")
    assert read_text(model.turns[0]).count("# nx-plan: ") == 1
    assert "a shop" in read_text(model.turns[0])
    opencode(host, "", "--command", "nx-init")
    assert read_text(model.turns[1]).count("# nx-init: ") == 1
    assert not host.state("plan.json").exists()


def test_a_session_that_goes_on_is_told_only_what_is_new(host: Hosted, model: ModelServer) -> None:
    host.install()
    host.plan_task("Build the shop")
    model.add("one", "two")
    (first, *_) = opencode(host, "Hello.")
    opencode(host, "Again.", "--session", first["sessionID"])
    words = list(said(model, 1))
    assert sum("Left over from before" in text for text in words) == 1
    assert "Again." in words


def test_a_note_that_is_read_is_counted(host: Hosted, model: ModelServer) -> None:
    host.install()
    host.rolecall("memory", "add", "till-rounding", "-m", "The till rounds up.")
    model.add(Calls("read", {"filePath": str(host.work / ".nexus/memory/till-rounding.md")}), "done")
    opencode(host)
    assert "rounds up" in returned(model)[0]
    assert "till-rounding.md" in (file_text(host.state("rolecall", "memory-access.jsonl")) or "")


def test_after_a_compaction_the_model_is_told_again(host: Hosted, model: ModelServer) -> None:
    provider = {"models": {"fake-model": {"limit": {"context": 20_000, "output": 2_000}}}}
    host.install()
    host.plan_task("Build the shop")
    settings = json.loads((host.stage.home / ".config/opencode/opencode.json").read_text(encoding="utf-8"))
    settings["provider"]["fake"] |= provider
    settle(host.stage, provider=settings["provider"])
    model.add(
        Calls("bash", {"command": "true", "description": "x"}, prompt_tokens=30_000), shell("true"), "done"
    )
    opencode(host, "[run]")
    before, *after = map(read_text, model.turns)
    assert "read anew from disk" not in before
    for words in after:
        assert "Where the project stands, read again from disk" in words
        assert "Build the shop" in words
        assert "How you work while the skill nx-run is active" in words


# -- agents --


def test_opencode_holds_an_agent_to_its_capabilities(host: Hosted, model: ModelServer) -> None:
    host.install()
    host.plan_task()
    tries = (
        write(host),
        shell("echo x > b.txt"),
        ours("nx_task_add", title="Mine", context="x"),
        task("engineer"),
    )
    model.add(*(When(ARCHITECT, item) for item in tries), When(ARCHITECT, "My report."))
    model.add(task("architect"), "done")
    opencode(host)
    (first, *_, last) = turns_of(model, ARCHITECT)
    for tool in ("write", "edit", "task", "rolecall_nx_task_add", "rolecall_nx_plan_start"):
        assert tool not in first.tools
    assert {"read", "bash", "rolecall_nx_task_list"} <= set(first.tools)
    assert "Changing b.txt is denied to the agent architect by no_file_edit" in read_text(last)
    assert list(host.work.glob("*.txt")) == []
    assert len(host.rolecall("task", "list")["tasks"]) == 1


def test_an_agent_is_told_its_task_and_is_on_record(host: Hosted, model: ModelServer) -> None:
    host.install()
    host.plan_task("Write the letter", owner="engineer", acceptance="It is there.")
    look = shell("cat .nexus/state/rolecall/agent-tracker.json")
    model.add(When(ENGINEER, write(host)), When(ENGINEER, "It is written."), task("engineer"), look, "done")
    opencode(host)
    first = read_text(turns_of(model, ENGINEER)[0])
    assert "Write the letter" in first
    assert "It is there." in first
    assert [entry["agent"] for entry in host.tool_log() if entry["agent_id"] != "lead"] == ["engineer"]
    (record,) = json.loads(returned(model)[-1])
    assert (record["agent_name"], record["status"], record["files_touched"]) == (
        "engineer",
        "completed",
        ["a.txt"],
    )
    assert record["last_message"] == "It is written."
    assert not host.state("rolecall", "agent-tracker.json").exists()  # with the last session it goes


# -- when it does not work, and taking it out --


def test_a_hook_that_fails_stops_nothing_and_is_told_to_the_model_and_in_the_log(
    host: Hosted, model: ModelServer
) -> None:
    host.install()
    plugin = host.work / ".opencode" / "plugins" / "rolecall.js"
    text = plugin.read_text(encoding="utf-8")
    plugin.write_text(text.replace('"hook"', '"no-such-verb"'), encoding="utf-8")
    model.add(write(host), "done")
    opencode(host)
    assert file_text(host.work / "a.txt") == "written\n"
    assert any("Rolecall's hook for chat.message failed" in text for text in said(model))
    logs = (host.stage.home / ".local/share/opencode/log").glob("*.log")
    log = "".join(path.read_text(encoding="utf-8") for path in logs)
    assert "Rolecall's hook for tool.execute.before failed" in log
    assert any("rolecall.js" in text and "changed by hand" in text for text in host.doctor())


def test_installed_for_a_user_it_acts_where_there_is_a_project_of_ours_only(
    host: Hosted, model: ModelServer
) -> None:
    host.install("--user")
    assert host.doctor() == []
    model.add(write(host), "done", write(host, "b.txt"), "done")
    opencode(host)
    assert file_text(host.work / "a.txt") == "written\n"
    assert not (host.work / ".nexus").exists()
    (host.work / ".nexus").mkdir()
    opencode(host)
    assert REFUSED in returned(model)[0]
    assert not (host.work / "b.txt").exists()


@pytest.mark.parametrize("scope", ["--project", "--user"])
def test_uninstalling_leaves_no_trace(host: Hosted, model: ModelServer, scope: str) -> None:
    agent = host.work / ".opencode" / "agents" / "mine.md"
    agent.parent.mkdir(parents=True)
    agent.write_text("---\ndescription: Mine.\n---\nMine.\n", encoding="utf-8")
    settle(host.stage, **{"$schema": "https://opencode.ai/config.json"})  # else OpenCode adds it
    settings = host.stage.home / ".config" / "opencode"
    before = host.files(without=THEIRS), host.files(settings, without=THEIRS)
    host.install(scope)
    model.add("done")
    opencode(host)
    host.uninstall(scope)
    assert (host.files(without=THEIRS), host.files(settings, without=THEIRS)) == before
