"""The command that hosts run: it answers, it never blocks by failing, and it stays out of folders that are not ours."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hook_stage import (
    OURS,
    PLAN,
    ROLECALL,
    SESSIONS,
    TASKS,
    TRACKER,
    hook,
    lines,
    plan,
    read,
    task,
    tasks,
    write,
)

from rolecall import errors
from rolecall.agents.process import RUN_VARIABLE
from rolecall.settings import config
from rolecall.settings.capabilities import RESTRICTIONS

WRITE = {"session": "s", "tool": "Write", "input": {"file_path": "a.py", "content": "x"}}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return repository(tmp_path / "project")


def repository(folder: Path) -> Path:
    (folder / ".git").mkdir(parents=True)
    (folder / ".git/HEAD").write_text("ref: refs/heads/main\n")
    return folder


def answer(done: subprocess.CompletedProcess[bytes]) -> Any:
    assert (done.returncode, done.stderr) == (0, b""), done
    return json.loads(done.stdout)


EVENTS: dict[str, dict[str, Any]] = {
    "session_start": {},
    "user_message": {"text": "[plan] go"},
    "subagent_spawn": {"agent": "engineer", "agent_id": "e1"},
    "pre_tool_use": {"tool": "Write", "input": {"file_path": "a", "content": "x"}},
    "post_tool_use": {"tool": "Write", "input": {"file_path": "a", "content": "x"}, "error": "no"},
    "subagent_complete": {"agent_id": "e1", "last_message": "Done."},
    "context_compact": {},
    "session_end": {"is_over": False},
}


def test_every_event_is_answered(project: Path) -> None:
    tasks(project, task(1))
    said = {name: answer(hook(project, name, {"session": "s", **more})) for name, more in EVENTS.items()}
    assert "Left over" in said["session_start"]["notice"]
    assert "nx-plan" in said["user_message"]["context"]
    assert "report to Lead" in said["subagent_spawn"]["context"]
    assert said["pre_tool_use"] == said["post_tool_use"] == said["subagent_complete"] == {}
    assert "Active skill: nx-plan" in said["context_compact"]["context"]
    assert "Unfinished" in said["session_end"]["notice"]
    assert read(project, TRACKER)[0]["status"] == "completed"
    assert lines(project, f"{OURS}/tool-log.jsonl")[0]["error"] == "no"


def test_an_unplanned_edit_is_blocked_and_a_planned_one_is_not(project: Path) -> None:
    assert "No task is planned" in answer(hook(project, "pre_tool_use", WRITE))["block"]
    tasks(project, task(1))
    assert answer(hook(project, "pre_tool_use", WRITE)) == {}


def test_half_a_pair_of_surrogates_lets_no_edit_pass(project: Path) -> None:
    half = {**WRITE, "input": {"file_path": "a\ud800.py", "content": "\udc00"}}
    assert "No task is planned" in answer(hook(project, "pre_tool_use", half))["block"]


def test_agents_are_tracked_under_the_name_that_is_given(project: Path) -> None:
    spawn = {"session": "s", "agent": "engineer", "agent_id": "e1"}
    answer(hook(project, "subagent_spawn", spawn, "--harness", "other-harness"))
    assert read(project, ".nexus/state/other-harness/agent-tracker.json")[0]["harness_id"] == "other-harness"
    assert not (project / TRACKER).exists()


def test_all_that_hooks_keep_lies_under_the_name_that_is_given(project: Path) -> None:
    write(project, ".nexus/memory/retry-limits.md", "x")
    name = ("--harness", "other-harness")
    read_note = {"tool": "read_file", "input": {"path": ".nexus/memory/retry-limits.md"}}
    for event, payload in {
        "session_start": {},
        "subagent_spawn": {"agent": "engineer", "agent_id": "e1"},
        "post_tool_use": {**EVENTS["post_tool_use"], "agent": "engineer", "agent_id": "e1", "error": ""},
    }.items():
        answer(hook(project, event, {"session": "s", **payload}, *name))
    answer(hook(project, "post_tool_use", {"session": "s", **read_note}, *name))
    hook(project, "user_message", b"{", *name)
    kept = {path.name for path in (project / ".nexus/state/other-harness").iterdir()}
    assert kept >= {"agent-tracker.json", "sessions.json", "tool-log.jsonl", "touched", "memory-access.jsonl"}
    ours = {path.name for path in (project / OURS).iterdir()}
    assert ours == {"lock"} and "hook-errors.log" in kept
    done = hook(project, "session_start", {"session": "s"}, "--harness", "../elsewhere")
    assert done.returncode == 1 and b"is not the name of a harness" in done.stderr


def test_the_session_is_that_of_the_process_that_runs_the_hook(project: Path) -> None:
    answer(hook(project, "session_start", {"session": "s"}))
    assert read(project, SESSIONS)["s"]["process"]["pid"] == os.getpid()


# -- which project --


def test_without_a_project_the_repository_around_the_session_is_it(project: Path, tmp_path: Path) -> None:
    tasks(project, task(1))
    below = project / "deep/er"
    below.mkdir(parents=True)
    done = hook(None, "user_message", {"session": "s", "text": "hi", "cwd": str(below)}, cwd=tmp_path)
    assert "Tasks" in answer(done)["context"]
    assert "Tasks" in answer(hook(None, "user_message", {"session": "t", "text": "hi"}, cwd=below))["context"]


@pytest.mark.parametrize("name", EVENTS)
def test_in_a_folder_that_is_no_project_hooks_do_and_say_nothing(
    project: Path, tmp_path: Path, name: str
) -> None:
    """But for a session that begins in a repository, and a tag."""
    before = sorted(tmp_path.rglob("*"))
    fields = {**EVENTS[name], "text": "hello [x]"}
    for folder in (project, tmp_path) if name != "session_start" else (tmp_path,):
        done = hook(None, name, {"session": "s", "cwd": str(folder), **fields}, cwd=tmp_path)
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert sorted(tmp_path.rglob("*")) == before


def test_a_session_that_begins_in_a_repository_makes_it_a_project(project: Path) -> None:
    assert answer(hook(None, "session_start", {"session": "s"}, cwd=project)) == {}
    assert read(project, TRACKER) == []
    assert (project / ".nexus/.gitignore").read_text() == "state/\n"


def test_the_home_is_no_project_also_where_it_is_a_repository(project: Path) -> None:
    done = hook(None, "session_start", {"session": "s"}, cwd=project, env={"HOME": str(project)})
    assert (done.returncode, done.stdout) == (0, b"") and not (project / ".nexus").exists()


def test_a_tag_is_answered_whether_there_is_a_project_a_repository_or_neither(
    project: Path, tmp_path: Path
) -> None:
    said = {"session": "s", "text": "[plan] go"}
    assert "activated the skill nx-plan" in answer(hook(None, "user_message", said, cwd=project))["context"]
    assert (project / ".nexus/.gitignore").exists()
    outside = tmp_path / "outside"
    outside.mkdir()
    reported = answer(hook(None, "user_message", said, cwd=outside))
    assert "not in a git repository" in reported["context"] == reported["notice"] and not list(
        outside.iterdir()
    )
    done = hook(None, "user_message", said, cwd=outside, env={RUN_VARIABLE: "r"})
    assert (done.returncode, done.stdout) == (0, b"")


def test_a_session_of_claude_stays_where_it_was_started_whatever_folder_a_command_has_entered(
    project: Path,
) -> None:
    nested = repository(project / "vendor")
    write = {"tool_name": "Write", "tool_input": {"file_path": str(project / "a"), "content": "x"}}
    payload = {"session_id": "s", "cwd": str(nested), **write}
    (project / ".nexus").mkdir(exist_ok=True)
    for started, cwd in ((project, nested), (project.parent, project), ("", project)):
        env = {"CLAUDE_PROJECT_DIR": str(started)}
        done = hook(None, "PreToolUse", payload, host="claude", cwd=cwd, env=env)
        assert b"No task is planned" in done.stdout


def test_a_folder_that_is_gone_is_no_project(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    code = f"import os, sys; os.rmdir({str(gone)!r}); os.execv({ROLECALL!r}, sys.argv[1:])"
    words = [sys.executable, "-c", code, ROLECALL, "hook", "rolecall", "session_start"]
    done = subprocess.run(words, input=b'{"session": "s"}', capture_output=True, cwd=gone, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


# -- inside a run of the engine --


def test_for_a_project_that_is_gone_a_hook_fails_and_lets_nothing_pass_in_silence(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    for name, more in EVENTS.items():
        done = hook(gone, name, {"session": "s", **more}, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (1, b"")
        assert str(gone).encode() in done.stderr and b"rolecall install" in done.stderr
    assert not gone.exists()


def test_inside_a_run_the_restrictions_of_the_role_count(project: Path) -> None:
    env = {RUN_VARIABLE: "thread/1", "ROLECALL_RESTRICTIONS": "no_file_edit"}
    assert (
        "denied to this role by no_file_edit"
        in answer(hook(project, "pre_tool_use", WRITE, env=env))["block"]
    )
    free = {RUN_VARIABLE: "thread/1", "ROLECALL_RESTRICTIONS": ""}
    assert answer(hook(project, "pre_tool_use", WRITE, env=free)) == {}
    assert answer(hook(project, "user_message", {"session": "s", "text": "[plan] x"}, env=free)) == {}
    assert config.run({RUN_VARIABLE: "thread/1"}) == "thread/1"


@pytest.mark.parametrize("word", RESTRICTIONS)
def test_a_role_is_held_to_its_restrictions_also_outside_of_a_run(project: Path, word: str) -> None:
    plan(project, "Which format?")
    tasks(project, task(1, status="in_progress", owner="engineer"))
    env = {"ROLECALL_RESTRICTIONS": word}
    key = project.parent / "key-of-the-host"
    key.write_text(key.name)
    host = ("--host-key", str(key))
    message = {"session": "s", "text": "[d] JSON\n\n[rule] no-tabs: none\n\n[m] slow-disks: wait"}
    said = answer(hook(project, "user_message", message, *host, env=env))["context"]
    assert "nx_plan_decide is for the lead" in said and "rule_add is for the lead" in said
    assert read(project, PLAN)["issues"][0]["status"] == "pending"
    assert not (project / ".nexus/rules").exists()
    is_writer = word not in ("no_file_edit", "read_only")
    assert (project / ".nexus/memory/slow-disks.md").exists() is is_writer
    assert (f"memory_add is denied to this role by {word}" in said) is not is_writer
    agent = {"session": "s", "agent": "engineer", "agent_id": "e1"}
    hook(project, "subagent_spawn", agent, *host, env=env)
    reported = answer(hook(project, "subagent_complete", agent, *host, env=env))["context"]
    is_denied = word == "no_task_update"
    assert (f"nx_task_update is denied to this role by {word}" in reported) is is_denied
    assert read(project, TASKS)["tasks"][0]["status"] == ("in_progress" if is_denied else "completed")


@pytest.mark.parametrize("word", RESTRICTIONS)
def test_an_agent_makes_up_no_events_in_its_own_shell(project: Path, word: str) -> None:
    plan(project, "Which format?")
    before = read(project, PLAN)
    message = {"session": "s", "text": "[d] JSON\n\n[rule] no-tabs: none\n\n[m] slow-disks: wait"}
    for name, payload in {**EVENTS, "user_message": message}.items():
        if name == "pre_tool_use":  # which changes nothing
            continue
        done = hook(project, name, {"session": "s", **payload}, env={"ROLECALL_RESTRICTIONS": word})
        assert (done.returncode, done.stdout) == (1, b"")
        assert (
            f"hook rolecall {name} is for hosts, but this process is restricted by {word}".encode()
            in done.stderr
        )
        assert b"rolecall install HOST" in done.stderr
    assert read(project, PLAN) == before
    assert not (project / ".nexus/rules").exists() and not (project / ".nexus/memory").exists()


def test_decisions_and_reports_are_kept_without_the_secrets_of_the_environment(project: Path) -> None:
    plan(project, "Which format?")
    key = "sk-0a1b2c3d4e5f6071"
    message = {"session": "s", "text": f"[d] Use {key}"}
    answer(hook(project, "user_message", message, env={"SERVICE_API_KEY": key}))
    assert read(project, PLAN)["issues"][0]["decision"] == "Use ***MASKED***"
    agent = {"session": "s", "agent": "engineer", "agent_id": "e1", "last_message": f"Used {key}."}
    hook(project, "subagent_complete", agent, env={"SERVICE_API_KEY": key})
    assert read(project, TRACKER)[0]["last_message"] == "Used ***MASKED***."


def test_a_restricted_session_is_held_at_the_gate_also_outside_of_a_run(project: Path) -> None:
    tasks(project, task(1, status="in_progress"))
    assert answer(hook(project, "pre_tool_use", WRITE)) == {}
    env = {"ROLECALL_RESTRICTIONS": "no_file_edit"}
    said = answer(hook(project, "pre_tool_use", WRITE, env=env))
    assert "denied to this role by no_file_edit" in said["block"]
    decide = {"session": "s", "tool": "nx_plan_decide", "input": {}}
    assert (
        "Only Lead may use nx_plan_decide" in answer(hook(project, "pre_tool_use", decide, env=env))["block"]
    )


def test_the_mode_of_the_configuration_counts(project: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    write(home, "config.yaml", "project:\n  unplannedEdits: warn\n")
    said = answer(hook(project, "pre_tool_use", WRITE, env={"ROLECALL_HOME": str(home)}))
    assert "while no task is planned" in said["context"] and "block" not in said


def test_a_catalogue_that_cannot_be_read_opens_no_gate_and_is_said(project: Path, tmp_path: Path) -> None:
    env = {"ROLECALL_HOME": str(tmp_path / "home")}
    write(tmp_path / "home", "config.yaml", "catalog: gone\n")
    assert "No task is planned" in answer(hook(project, "pre_tool_use", WRITE, env=env))["block"]
    tasks(project, task(1))
    assert answer(hook(project, "pre_tool_use", WRITE, env=env)) == {}
    for agent in ("tester", "auditor"):  # the second one may be in the catalogue that cannot be read
        done = hook(project, "pre_tool_use", {**WRITE, "agent": agent, "agent_id": "a"}, env=env)
        assert "by no_file_edit" in answer(done)["block"]
    for event in ("session_start", "user_message"):
        reported = answer(hook(project, event, {"session": "s", "text": "hello"}, env=env))["context"]
        assert "gone/manifest.json" in reported and "rolecall config unset catalog" in reported


def test_the_mode_is_set_by_a_command_and_one_that_does_not_exist_is_refused(
    project: Path, tmp_path: Path
) -> None:
    env = {"ROLECALL_HOME": str(tmp_path / "home")}
    words = [ROLECALL, "config", "set", "project.unplannedEdits"]
    for mode, code in (("off", 0), ("maybe", 2)):
        done = subprocess.run([*words, mode], env={**os.environ, **env}, capture_output=True, check=False)
        assert done.returncode == code
    assert b"one of block, warn, off" in done.stderr
    assert answer(hook(project, "pre_tool_use", WRITE, env=env)) == {}


# -- when something is wrong --


@pytest.mark.parametrize(
    "payload",
    [
        *(b"", b"{", b"[]", b"null", b'"text"', b"\xff\xfe", b"[" * 100_000, b"{}"),
        *(b'{"session": ""}', b'{"session": 3}', b'{"session": "s", "is_new": "yes"}'),
    ],
    ids=range(11),
)
def test_an_input_that_cannot_be_used_is_said_and_holds_nobody_up(project: Path, payload: bytes) -> None:
    done = hook(project, "session_start", payload)
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.startswith(b"rolecall hook rolecall session_start: ")
    assert b"Traceback" not in done.stderr
    said = answer(hook(project, "session_start", {"session": "s"}))
    assert "A hook failed before this" in said["notice"]


@pytest.mark.parametrize(
    "words", [[], ["claude"], ["a", "b", "c"], ["claude", "Stop", "--project"], ["x", "y", "--project="]]
)
def test_wrong_words_never_end_with_what_hosts_take_for_a_refusal(words: list[str]) -> None:
    done = subprocess.run([ROLECALL, "hook", *words], input=b"{}", capture_output=True, check=False)
    assert done.returncode == 1
    assert b"usage: rolecall hook HOST EVENT" in done.stderr


def test_hosts_and_events_that_do_not_exist_are_said(project: Path) -> None:
    for host, event in (("emacs", "start"), ("rolecall", "start"), ("claude", "Nonsense")):
        done = hook(project, event, {"session": "s"}, host=host)
        assert done.returncode == 1
        assert b"There are" in done.stderr or b"Known events" in done.stderr


def test_a_mistake_of_our_own_is_said_with_its_trace_and_holds_nobody_up(project: Path) -> None:
    state = project / ".nexus/state/rolecall"
    state.mkdir(parents=True)
    (state / "sessions.json").mkdir()  # where a file should be
    done = hook(project, "session_start", {"session": "s"})
    assert done.returncode == 1 and b"sessions.json" in done.stderr


def test_a_disk_that_refuses_is_said_and_holds_nobody_up(project: Path) -> None:
    (project / ".nexus").write_text("a file, not a folder")
    for name, more in EVENTS.items():
        done = hook(project, name, {"session": "s", **more})
        assert done.returncode in (0, 1) and b"Traceback" not in done.stderr, done


def test_a_lock_that_somebody_keeps_holds_nobody_up_and_is_said(project: Path) -> None:
    answer(hook(project, "session_start", {"session": "s"}))
    with (project / ".nexus/state/rolecall/lock").open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # as a process does that was stopped while it wrote
        done = hook(project, "session_start", {"session": "t"})
        blocked = answer(hook(project, "pre_tool_use", {"session": "t", **EVENTS["pre_tool_use"]}))
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"another process still holds" in done.stderr and b"Traceback" not in done.stderr
    assert "No task is planned" in blocked["block"]
    said = answer(hook(project, "session_start", {"session": "t"}))
    assert "A hook failed before this" in said["notice"] and "rolecall/lock" in said["notice"]


def test_a_host_that_closes_the_output_is_not_held_up(project: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [ROLECALL, "hook", "rolecall", "pre_tool_use", "--project", str(project)],
        input=json.dumps(WRITE).encode(), stdout=writer, stderr=subprocess.PIPE, check=False,
    )  # fmt: skip
    os.close(writer)
    assert done.returncode == 1


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_streams_that_are_closed_are_no_refusal(project: Path, closed: str) -> None:
    line = f"{ROLECALL} hook rolecall pre_tool_use --project {project} {closed}"
    done = subprocess.run(
        ["sh", "-c", line], input=json.dumps(WRITE).encode(), capture_output=True, check=False
    )
    assert done.returncode == (0 if closed == "2>&-" else 1)


# -- what it costs --

DUMP = """
import os, sys
before = set(sys.modules)
exit = os._exit
def leave(status):  # a hook ends in os._exit
    sys.stdout.flush()
    print(*sorted(set(sys.modules) - before), sep="\\n", file=sys.stderr, flush=True)
    exit(status)
os._exit = leave
from rolecall.__main__ import main
leave(main(sys.argv[1:]) or 0)
"""
HEAVY = {
    *(
        "yaml",
        "rolecall.settings.yaml12",
        "argparse",
        "dataclasses",
        "inspect",
        "pathlib",
        "subprocess",
        "shutil",
        "hashlib",
        "datetime",
    ),
    *("jsonschema_rs", "asyncio", "tempfile", "sqlite3", "rolecall.nexus.catalog", "rolecall.store.store"),
}


def modules_of(project: Path, event: str, payload: dict[str, Any], host: str = "rolecall") -> set[str]:
    words = [sys.executable, "-S", "-c", DUMP, "hook", host, event, "--project", str(project)]
    site = [path for path in sys.path if path.endswith("site-packages")]
    source = str(Path(errors.__file__).parents[1])
    env = {"ROLECALL_HOME": os.environ["ROLECALL_HOME"], "PYTHONPATH": ":".join([source, *site])}
    data = json.dumps({"session": "s", "session_id": "s", "hook_event_name": event, **payload}).encode()
    done = subprocess.run(words, input=data, env=env, capture_output=True, check=True)
    modules = set(done.stderr.decode().split())
    assert f"rolecall.hosts.{host}.events" in modules
    return modules


@pytest.mark.parametrize("name", EVENTS)
def test_once_the_kit_is_compiled_no_event_imports_anything_heavy(project: Path, name: str) -> None:
    tasks(project, task(1))
    payload = {key: value for key, value in EVENTS[name].items() if key != "error"}
    modules_of(project, "session_start", {})
    heavy = modules_of(project, name, payload) & HEAVY
    assert not heavy


def test_before_a_tool_nothing_is_imported_that_writes_or_reads_a_shell(project: Path) -> None:
    tasks(project, task(1))
    modules_of(project, "SessionStart", {}, host="claude")
    tool = {"tool_name": "Write", "tool_input": {"file_path": "a", "content": "x"}, "cwd": str(project)}
    modules = modules_of(project, "PreToolUse", tool, host="claude")
    assert "rolecall.hosts.gate" in modules
    wrong = modules & {"fcntl", "xxhash", "rolecall.nexus.state_file", "rolecall.hosts.shell_writes"}
    assert not wrong
