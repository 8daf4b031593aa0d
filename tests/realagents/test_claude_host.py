"""Claude Code as a host: what `rolecall install claude` writes, with the real program and a scripted model.

No test passes settings: hooks, servers, agents and skills are those of the installed files. Flags only pre-approve
tools, because nobody is there to be asked.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from modelserver import Calls, Item, ModelServer, Request, When

from realagents.hosted import ROLECALL, Hosted, claude_stage, read_text
from realagents.stage import BOUND, installed

PROGRAM = installed("claude")
ALLOWED = "Write,Edit,Read,Bash,Agent,SendMessage"
TESTER = "you believe nothing you have not run"
RESEARCHER = "You find things out: in the code base"
TASK = {"title": "Write the greeting", "context": "For the front page.", "acceptance": "It says hello."}


FILES_SERVER = """
import json, sys
PUT = {"name": "put", "description": "Writes a file.", "inputSchema": {"type": "object"}}
for line in sys.stdin:
    message = json.loads(line)
    method, params = message["method"], message.get("params") or {}
    result = {"protocolVersion": params.get("protocolVersion"), "capabilities": {"tools": {}},
              "serverInfo": {"name": "files", "version": "1"}}
    if method == "tools/list":
        result = {"tools": [PUT]}
    if method == "tools/call":
        with open(params["arguments"]["path"], "w") as file:
            file.write(params["arguments"]["content"])
        result = {"content": [{"type": "text", "text": "written"}]}
    if "id" in message:
        known = method in ("initialize", "tools/list", "tools/call")
        told = {"result": result} if known else {"error": {"code": -32601, "message": "no"}}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **told}), flush=True)
"""


class Host(Hosted):
    """Claude Code in a project, on a machine of its own, with a blank in its paths."""

    def __init__(self, model: ModelServer, folder: Path) -> None:
        super().__init__(claude_stage(model, folder / "my place"), "claude")
        self.model = model
        self.home = self.stage.home
        self.trust()
        self.stderr = ""
        self.turns: list[Request] = []

    def trust(self) -> None:
        """What the program writes when a person answers its question about the folder."""
        fields = {"projects": {str(self.work): {"hasTrustDialogAccepted": True}}}
        (self.home / ".claude.json").write_text(json.dumps(fields))

    def ask(
        self, prompt: str, *script: Item, flags: tuple[str, ...] = ("--allowedTools", ALLOWED)
    ) -> list[dict[str, Any]]:
        """Its events, once the model has gone through the script; the requests of this run are in `turns`."""
        seen = len(self.model.turns)
        self.model.add(*script)
        command = [PROGRAM, "--print", "--output-format", "stream-json", "--verbose", *flags]
        done = self._run(command, prompt)
        assert done.returncode == 0, (done.stdout[-2000:], done.stderr)
        self.stderr, self.turns = done.stderr, self.model.turns[seen:]
        return [json.loads(line) for line in done.stdout.splitlines()]

    def converse(self, *said: tuple[str, str]) -> list[dict[str, Any]]:
        """One session: what the user says, and what the model answers to it."""
        seen = len(self.model.turns)
        self.model.add(*(answer for _, answer in said))
        command = [
            PROGRAM,
            "--print",
            "--output-format",
            "stream-json",
            "--input-format",
            "stream-json",
            "--verbose",
        ]
        with subprocess.Popen(
            command,
            env=self.stage.env,
            cwd=self.work,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as child:
            watchdog = threading.Timer(90, child.kill)
            watchdog.start()
            events = [event for prompt, _ in said for event in _turn(child, prompt)]
            assert child.stdin is not None
            child.stdin.close()
            watchdog.cancel()
            assert child.wait(90) == 0
        self.turns = self.model.turns[seen:]
        return events

    def write(self, name: str) -> Calls:
        return Calls("Write", {"file_path": str(self.work / name), "content": "hello\n"})

    def ours(self, name: str) -> Path:
        return self.state("rolecall", name)


def _turn(child: subprocess.Popen[str], prompt: str) -> Iterator[dict[str, Any]]:
    assert child.stdin is not None
    assert child.stdout is not None
    message = {"type": "user", "message": {"role": "user", "content": prompt}}
    child.stdin.write(json.dumps(message) + "\n")
    child.stdin.flush()
    for line in child.stdout:
        event = json.loads(line)
        yield event
        if event["type"] == "result":
            return


@pytest.fixture
def host(model: ModelServer, tmp_path: Path) -> Host:
    found = Host(model, tmp_path)
    found.install()
    return found


def tool(name: str, **arguments: Any) -> Calls:
    return Calls(f"mcp__rolecall__{name}", arguments)


def agent(kind: str, prompt: str = "GO") -> Calls:
    # In the foreground, so that its answer is the result of the call.
    return Calls(
        "Agent", {"description": "d", "prompt": prompt, "subagent_type": kind, "run_in_background": False}
    )


def of(words: str, *items: Calls | str) -> Iterator[When]:
    """The turns of whoever has these words in its instructions."""
    return (When(words, item) for item in items)


def results(events: list[dict[str, Any]]) -> list[str]:
    """What tools gave back, as the model reads it."""
    blocks = [
        block
        for event in events
        if event.get("type") == "user" and isinstance(event["message"]["content"], list)
        for block in event["message"]["content"]
    ]
    return [
        json.dumps(block.get("content"), ensure_ascii=False)
        for block in blocks
        if block["type"] == "tool_result"
    ]


def notices(events: list[dict[str, Any]]) -> list[str]:
    return [event["content"] for event in events if event.get("subtype") == "informational"]


# -- edits --


def test_an_unplanned_edit_is_blocked_and_the_model_is_told_why(host: Host) -> None:
    [refused] = results(host.ask("Greet.", host.write("a.txt"), "I see."))
    assert "No task is planned, so a.txt is not edited" in refused
    assert "No task is planned" in host.turns[1].text
    assert not (host.work / "a.txt").exists()


def test_a_planned_edit_passes_with_the_plan_made_by_the_models_own_tools(host: Host) -> None:
    events = host.ask(
        "Greet.",
        tool("nx_plan_start", topic="Greeting", issues=["Which words?"], research_summary="none"),
        tool("nx_plan_decide", issue_id=1, decision="hello"),
        tool("nx_task_add", **TASK),
        host.write("a.txt"),
        "Done.",
    )
    started, decided, added, written = results(events)
    assert "created" in started
    assert "allComplete" in decided
    assert "pending" in added
    assert "created successfully" in written
    assert (host.work / "a.txt").read_text() == "hello\n"
    assert host.rolecall("task", "list")["summary"]["total"] == 1


@pytest.mark.parametrize(("mode", "is_told"), [("warn", True), ("off", False)])
def test_the_gate_can_warn_or_be_off(host: Host, mode: str, is_told: bool) -> None:
    host.rolecall("config", "set", "project.unplannedEdits", mode)
    host.ask("Greet.", host.write("a.txt"), "Done.")
    assert (host.work / "a.txt").exists()
    assert ("while no task is planned" in host.turns[1].text) is is_told


@pytest.mark.parametrize("command", ["echo x > a.txt", "cd .. && echo x | tee work/a.txt"])
def test_a_shell_that_visibly_writes_a_file_is_blocked_like_an_edit(host: Host, command: str) -> None:
    [refused] = results(host.ask("Greet.", Calls("Bash", {"command": command, "description": "d"}), "I see."))
    assert "No task is planned" in refused
    assert not (host.work / "a.txt").exists()


@pytest.mark.parametrize("path", ["src/../a.txt", "link/a.txt", ".nexus/../a.txt"])
def test_a_path_by_another_way_is_the_same_path(host: Host, path: str) -> None:
    (host.work / "src").mkdir()
    (host.work / "link").symlink_to(host.work)
    [refused] = results(host.ask("Greet.", host.write(path), "I see."))
    assert "No task is planned" in refused
    assert not (host.work / "a.txt").exists()


def test_an_edit_through_a_server_of_somebody_else_is_blocked(host: Host, tmp_path: Path) -> None:
    script = tmp_path / "files.py"
    script.write_text(FILES_SERVER)
    servers = json.loads((host.work / ".mcp.json").read_text())
    servers["mcpServers"]["files"] = {"command": sys.executable, "args": ["-I", str(script)]}
    (host.work / ".mcp.json").write_text(json.dumps(servers))
    allowed = ("--allowedTools", f"{ALLOWED},mcp__files")
    put = Calls("mcp__files__put", {"path": str(host.work / "a.txt"), "content": "x"})
    [refused] = results(host.ask("Greet.", put, "I see.", flags=allowed))
    assert "No task is planned" in refused
    assert not (host.work / "a.txt").exists()
    host.rolecall("task", "add", "Any", "--context", "c")
    host.ask("Greet.", put, "I see.", flags=allowed)
    assert (host.work / "a.txt").read_text() == "x"


def test_what_a_program_writes_by_itself_cannot_be_blocked(host: Host) -> None:
    """docs/hosts.md says so: a hook sees the command, not what an interpreter does."""
    command = """python3 -c "open('a.txt', 'w').write('x')\""""
    host.ask("Greet.", Calls("Bash", {"command": command, "description": "d"}), "Done.")
    assert (host.work / "a.txt").exists()


def test_the_state_is_nobodys_to_edit_even_with_a_task(host: Host) -> None:
    host.rolecall("task", "add", "Any", "--context", "c")
    [refused] = results(host.ask("Go.", host.write(".nexus/state/tasks.json"), "I see."))
    assert "is written by the tools alone" in refused


def test_a_hook_that_cannot_run_blocks_nothing_and_the_person_is_told(host: Host, tmp_path: Path) -> None:
    host.uninstall()
    moved = tmp_path / "elsewhere" / "rolecall"
    moved.parent.mkdir()
    moved.symlink_to(ROLECALL)
    host.program([str(moved), "install", "claude"])
    moved.unlink()
    events = host.ask("Greet.", host.write("a.txt"), "Done.")
    assert (host.work / "a.txt").exists()
    assert any("didn't check this action" in words for words in notices(events))


# -- what the model is told --


@pytest.mark.parametrize("is_there", [True, False])
def test_hooks_for_another_place_say_that_nothing_is_checked(host: Host, is_there: bool) -> None:
    place = host.work.parent / "before it was moved"
    settings = host.work / ".claude" / "settings.local.json"
    settings.write_text(settings.read_text().replace(str(host.work), str(place)))
    if is_there:
        place.mkdir()
    events = host.ask("Greet.", host.write("a.txt"), "Done.")
    assert (host.work / "a.txt").exists()
    if is_there:
        assert f"this session works in {host.work}: edits here are not checked" in host.turns[0].text
    else:
        assert any("didn't check this action" in text for text in notices(events))
    assert any(f"would act on {place}, not on this project" in text for text in host.doctor())


def test_a_tag_puts_the_skill_before_the_model(host: Host) -> None:
    host.ask("[plan] the front page", "Let us see.")
    assert "The user activated the skill nx-plan" in host.turns[0].text
    assert "# nx-plan: from a request to decisions and tasks" in host.turns[0].text
    assert "subagent_type `researcher`" in host.turns[0].text


def test_a_command_gives_the_skill_once_and_a_manual_one_is_the_users_alone(host: Host) -> None:
    host.ask("/nx-run", "Let us see.")
    assert host.turns[0].text.count("# nx-run: carry out the tasks") == 1
    [refused] = results(host.ask("Go.", Calls("Skill", {"skill": "nx-init"}), "I see."))
    assert "disable-model-invocation" in refused
    host.ask("/nx-init", "Let us see.")
    assert "nx-init" in host.turns[0].text


def test_reading_a_note_is_observed(host: Host) -> None:
    note = host.work / ".nexus" / "memory" / "pattern-greeting.md"
    note.parent.mkdir(parents=True)
    note.write_text("# Greeting\n\nAlways hello.\n")
    host.ask("Look.", Calls("Read", {"file_path": str(note)}), "Seen.")
    [seen] = [json.loads(line) for line in host.ours("memory-access.jsonl").read_text().splitlines()]
    assert (seen["path"], seen["access_count"]) == (str(note), 1)


def test_what_happened_is_in_the_tool_log_failures_too(host: Host) -> None:
    host.ask(
        "Go.", Calls("Read", {"file_path": str(host.work / "missing.txt")}), host.write("a.txt"), "I see."
    )
    logged = host.tool_log()
    assert [one["tool"] for one in logged] == ["Read"]
    assert "does not exist" in json.dumps(logged[0])


def test_after_a_compaction_the_model_knows_again_how_things_stand(host: Host) -> None:
    host.rolecall("plan", "start", "Front page", "--issue", "Which words?", "--research", "none")
    host.rolecall("task", "add", TASK["title"], "--context", TASK["context"])
    host.converse(
        ("[run] it", "I begin."),
        ("Go on.", "I go on."),
        ("/compact", "<summary>They talked.</summary>"),
        ("And now?", "Now."),
    )
    text = host.turns[-1].text
    assert "They talked." in text
    assert "I begin." not in text
    restored = text[text.index("SessionStart hook additional context") :]
    for words in (
        "Front page",
        "Write the greeting",
        "while the skill nx-run is active",
        "# nx-run: carry out",
    ):
        assert words in restored


def test_the_end_of_a_turn_and_of_a_session_name_what_is_unfinished(host: Host) -> None:
    host.rolecall("task", "add", TASK["title"], "--context", TASK["context"])
    events = host.ask("Hello.", "Hello.")
    assert [words for words in notices(events) if words.startswith("Stop says: Unfinished: 1 tasks")]
    assert "Unfinished: 1 tasks, 1 of them unfinished" in host.stderr
    host.rolecall("task", "close")
    events = host.ask("Hello.", "Hello.")
    assert (notices(events), host.stderr) == ([], "")


# -- agents --


def test_an_agent_that_may_not_edit_is_blocked_from_it_in_every_layer(host: Host) -> None:
    host.rolecall("task", "add", "Test it", "--context", "c", "--owner", "tester")
    events = host.ask(
        "Go.",
        *of(
            TESTER,
            host.write("a.txt"),
            Calls("Bash", {"command": "echo x > b.txt", "description": "d"}),
            Calls("Agent", {"description": "d", "prompt": "p", "subagent_type": "engineer"}),
            Calls("mcp__rolecall-tester__nx_task_list", {}),
            Calls("mcp__rolecall-tester__nx_task_add", {"title": "t", "context": "c"}),
            Calls("mcp__rolecall__nx_task_add", {"title": "t", "context": "c"}),
            "PASS",
        ),
        agent("tester"),
        "Thanks.",
    )
    written, shell, nested, listed, added, leads = [text for text in results(events) if "PASS" not in text]
    assert "No such tool available: Write" in written
    assert "denied to the agent tester by no_file_edit" in shell
    assert "No such tool available: Agent" in nested
    assert "Test it" in listed
    assert "No such tool available" in added
    assert "No such tool available" in leads
    assert not {"a.txt", "b.txt"}.intersection(os.listdir(host.work))
    assert host.rolecall("task", "list")["summary"]["total"] == 1


def test_no_agent_sets_others_to_work_whoever_brought_it_along(host: Host) -> None:
    events = host.ask(
        "Go.",
        *of(
            "lend me a hand",
            Calls("Agent", {"description": "d", "prompt": "p", "subagent_type": "engineer"}),
            Calls("SendMessage", {"to": "engineer", "summary": "s", "message": "m"}),
            tool("nx_plan_start", topic="t", issues=[], research_summary=""),
            tool("nx_task_add", **TASK),
            "PASS",
        ),
        agent("general-purpose", "lend me a hand"),
        "Thanks.",
    )
    spawned, messaged, planned, added = [text for text in results(events) if "PASS" not in text]
    assert "Only Lead starts agents" in spawned
    assert "Only Lead starts agents" in messaged
    assert "Only Lead may use nx_plan_start" in planned
    assert "nx_task_add is denied to the agent general-purpose" in added
    assert not (host.work / ".nexus" / "state" / "tasks.json").exists()


def test_in_a_folder_that_is_not_trusted_agents_have_no_tools_of_ours_and_doctor_says_so(host: Host) -> None:
    (host.home / ".claude.json").unlink()
    events = host.ask(
        "Go.",
        *of(
            TESTER,
            Calls("mcp__rolecall-tester__nx_task_list", {}),
            Calls("mcp__rolecall__nx_task_list", {}),
            "PASS",
        ),
        agent("tester"),
        "Thanks.",
    )
    assert [
        text for text in results(events) if "PASS" not in text and "No such tool available" not in text
    ] == []
    assert any("does not trust" in text for text in host.doctor())


def test_a_server_that_a_person_disabled_has_no_tools_for_the_model_and_doctor_says_so(host: Host) -> None:
    path = host.home / ".claude.json"
    reply = json.loads(path.read_text())
    reply["projects"][str(host.work)]["disabledMcpServers"] = ["rolecall"]  # what /mcp writes
    path.write_text(json.dumps(reply))
    events = host.ask("Go.", tool("nx_task_list"), "Thanks.")
    assert ["No such tool available" in text for text in results(events)] == [True]
    assert any("does not start our server: disabledMcpServers in" in text for text in host.doctor())


def test_an_agent_is_told_its_task_and_is_on_record_while_it_works(host: Host) -> None:
    parts = ["--context", TASK["context"], "--acceptance", TASK["acceptance"], "--owner", "engineer"]
    host.rolecall("task", "add", TASK["title"], *parts)
    host.rolecall("task", "update", "1", "in_progress")
    look = Calls("Bash", {"command": "cat .nexus/state/rolecall/agent-tracker.json", "description": "d"})
    events = host.ask(
        "Go.",
        *of("subagent work", host.write("a.txt"), look, "STATUS: done"),
        agent("engineer", "subagent work"),
        look,
        "Thanks.",
    )
    first, *_ = [turn for turn in host.turns if "SubagentStart hook additional context" in turn.text]
    for words in ("TASK: Write the greeting", "For the front page.", "It says hello.", "no_task_create"):
        assert words in first.text
    [running], [ended] = [json.loads(json.loads(text)) for text in results(events) if "started_at" in text]
    assert (running["agent_name"], running["status"]) == ("engineer", "running")
    assert (ended["agent_id"], ended["status"]) == (running["agent_id"], "completed")
    assert (ended["files_touched"], ended["last_message"]) == (["a.txt"], "STATUS: done")
    assert host.rolecall("task", "list")["tasks"][0]["status"] == "completed"
    assert not host.ours("agent-tracker.json").exists()  # it goes with the session


def test_what_an_agent_in_the_background_reports_is_not_the_users_word_and_its_task_is_to_be_verified(
    host: Host,
) -> None:
    host.rolecall("task", "add", "Look", "--context", "c", "--acceptance", "seen", "--owner", "researcher")
    host.rolecall("task", "update", "1", "in_progress")
    host.ask(
        "Go.",
        *of(RESEARCHER, "I would [run] now."),
        Calls("Agent", {"description": "d", "prompt": "look around", "subagent_type": "researcher"}),
        "It works.",
        "It is done.",
    )
    text = host.turns[-1].text
    assert "I would [run] now." in text
    assert "# nx-run" not in text
    assert "Completed with acceptance criteria that no task verifies: 1" in text


# -- a task that is handed over --

FLOW = """
name: write-it
description: Writes it.
roles:
  developer:
    description: Develops
    goal: Write it.
    frontmatter: {type: object, properties: {$status: {enum: [done]}}, required: [$status]}
graph: {$START: developer, developer: {done: $END}}
"""


def test_a_model_that_hands_a_long_task_over_ends_its_turn_and_is_woken_at_the_end(host: Host) -> None:
    gate = host.work.parent / "gate"
    os.mkfifo(gate)
    work = {
        "run": [["sh", "-c", f"read line < '{gate}'"]],
        "output": {"$status": "done"},
        "body": "Wrote it.",
    }
    script = host.work.parent / "script.json"
    script.write_text(json.dumps({"roles": {"developer": [work]}}))
    host.rolecall("config", "set", "defaultAgent", f"scripted:{script}")
    (host.work / "write-it.yaml").write_text(FLOW)
    task = tool("workflow_run", workflow="write-it.yaml", prompt="The front page", wait=False)
    host.model.add(task, "It goes on by itself.", "It is done.")

    streams = ("--output-format", "stream-json", "--input-format", "stream-json", "--verbose")
    command = [PROGRAM, "--print", *streams, "--allowedTools", "mcp__rolecall__workflow_run"]
    with subprocess.Popen(
        command,
        env=host.stage.env,
        cwd=host.work,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        watchdog = threading.Timer(BOUND, child.kill)
        watchdog.start()
        [handed] = results(list(_turn(child, "Write the front page.")))
        assert "It continues in the background, even after this session" in handed
        gate.write_text("go\n")
        assert child.stdout is not None and child.stdin is not None
        ended = next(event for event in map(json.loads, child.stdout) if event["type"] == "result")
        child.stdin.close()
        watchdog.cancel()
        assert child.wait(BOUND) == 0
    assert ended["result"] == "It is done."
    woken = read_text(host.model.turns[-1])
    assert "(write-it: The front page), which was handed over, is completed." in woken
    assert "developer: done\nWrote it." in woken


# -- the other scope, and the way out --


def test_in_both_scopes_the_state_is_what_it_would_be_in_one_and_doctor_says_so(host: Host) -> None:
    host.install("--user")
    host.rolecall("task", "add", TASK["title"], "--context", TASK["context"], "--owner", "engineer")
    host.rolecall("task", "update", "1", "in_progress")
    look = Calls("Bash", {"command": "cat .nexus/state/rolecall/agent-tracker.json", "description": "d"})
    events = host.ask(
        "[rule] greeting-words: Greet with hello.",
        *of("subagent work", host.write("a.txt"), "STATUS: done"),
        agent("engineer", "subagent work"),
        look,
        "Thanks.",
    )
    [[tracked]] = [json.loads(json.loads(text)) for text in results(events) if "started_at" in text]
    assert (tracked["resume_count"], tracked["status"], tracked["files_touched"]) == (
        0,
        "completed",
        ["a.txt"],
    )
    assert [task["status"] for task in host.rolecall("task", "list")["tasks"]] == ["completed"]
    assert os.listdir(host.work / ".nexus" / "rules") == ["greeting-words.md"]
    assert any("so each runs twice" in text for text in host.doctor())
    host.rolecall("task", "close")
    [refused] = results(host.ask("Greet.", host.write("b.txt"), "I see."))
    assert "No task is planned" in refused


@pytest.mark.parametrize("folder", ["", "elsewhere"])
def test_for_the_user_hooks_act_in_repositories_and_nowhere_else(host: Host, folder: str) -> None:
    host.uninstall()
    if folder:
        host.stage.env["CLAUDE_CONFIG_DIR"] = str(host.home / folder)
    host.install("--user")
    (host.work / ".git").rename(host.work / "git")
    host.ask("Greet.", host.write("a.txt"), "Done.")
    assert (host.work / "a.txt").exists() and not (host.work / ".nexus").exists()
    (host.work / "git").rename(host.work / ".git")
    events = host.ask(
        "Greet.", host.write("b.txt"), tool("nx_task_add", **TASK), host.write("c.txt"), "Done."
    )
    refused, _, written = results(events)
    assert "No task is planned" in refused
    assert "created successfully" in written
    assert (host.work / ".nexus" / ".gitignore").read_text() == "state/\n"
    assert host.rolecall("doctor")["ready"]


def test_for_the_user_a_repository_within_the_project_is_no_way_round_the_gate(host: Host) -> None:
    host.uninstall()
    host.install("--user")
    (host.work / ".nexus").mkdir()
    subprocess.run(["git", "init", "-q", host.work / "vendor"], check=True)
    enter = Calls("Bash", {"command": "cd vendor", "description": "d"})
    where = Calls("Bash", {"command": "pwd", "description": "d"})
    _, place, refused = results(host.ask("Greet.", enter, where, host.write("a.txt"), "I see."))
    assert "vendor" in place
    assert "No task is planned" in refused
    assert not (host.work / "a.txt").exists()


def test_uninstalling_leaves_no_trace(host: Host) -> None:
    host.ask("[plan] it", host.write("a.txt"), "I see.")
    host.uninstall()
    assert host.files(without=(".git", ".nexus")) == {}
    assert not (host.work / ".claude").exists()
    host.ask("Greet.", host.write("a.txt"), "Done.")
    assert (host.work / "a.txt").exists()
    assert not any("hook" in turn.text for turn in host.turns if "additional context" in turn.text)
