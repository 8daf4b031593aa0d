"""`rolecall thread`: starting, stepping, steering. The installed program, with agents that need no model."""

from __future__ import annotations

import asyncio
import codecs
import json
import os
import pty
import re
import select
import shlex
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING, Any

import pytest
from fakeagent import executable
from processes import wait_for_environment
from terminal import Terminal

from rolecall.agents import process
from rolecall.settings.mask import Mask
from rolecall.store import holder
from rolecall.store.sqlite import SqliteBackend
from rolecall.store.store import Store
from rolecall.threads import killing, lifecycle, thread
from rolecall.threads.thread import Chain, Step

if TYPE_CHECKING:
    from conftest import Rolecall

PROGRAM = str(Path(sys.executable).parent / "rolecall")
DONE: dict[str, Any] = {"output": {"status": "done", "files": ["a.py"]}, "body": "Did it."}
BLOCKED: dict[str, Any] = {"output": {"status": "blocked", "files": ["x"]}, "body": "No access."}
APPROVED: dict[str, Any] = {"output": {"status": "approved"}, "body": "Good."}
REJECTED: dict[str, Any] = {"output": {"status": "rejected"}, "body": "Not yet."}
ASKS: dict[str, Any] = {"output": {"$status": "$SUSPEND", "reason": "Which database?"}}
PAID: dict[str, Any] = DONE | {"usage": {"input_tokens": 900, "output_tokens": 100, "cost": 0.5, "turns": 3}}
HANGS: dict[str, Any] = {"hang": True, "emit": [{"kind": "text", "text": "thinking"}]}


def role(statuses: list[str], **more: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {"status": {"enum": statuses}}
    if "done" in statuses:
        fields["files"] = {"type": "array", "items": {"type": "string"}}
    schema = {"type": "object", "properties": fields, "required": list(fields)}
    texts = dict.fromkeys(("description", "goal", "procedure", "output"), "Play it well.")
    return {**texts, "capabilities": [], "meta": schema, **more}


class Flow:
    """A workflow of a developer and a reviewer, a script for them, and the folder they work in."""

    def __init__(self, rolecall: Rolecall, folder: Path) -> None:
        self.rolecall = rolecall
        self.folder = folder
        self.work = folder / "work"
        self.work.mkdir()
        self.children: list[subprocess.Popen[str]] = []
        self.file = folder / "change-code.yaml"
        self.write()

    def write(self, *, developer: dict[str, Any] | None = None, **more: Any) -> None:
        definition = {
            "name": "change-code",
            "description": "Changes code.",
            "roles": {
                "developer": role(["done", "blocked"], **(developer or {})),
                "reviewer": role(["approved", "rejected"]),
            },
            "graph": {
                "$START": {"_": {"role": "developer", "prompt": "Begin."}},
                "developer": {
                    "done": {"role": "reviewer", "prompt": "Review {{files}}."},
                    "blocked": {"role": "$FAIL", "prompt": "Blocked after {{steps_count}} steps."},
                },
                "reviewer": {"approved": "$END", "rejected": {"role": "developer", "prompt": "Once more."}},
            },
            "limits": {"steps": 50},
            **more,
        }
        self.file.write_text(json.dumps(definition))

    def script(self, developer: list[Any], reviewer: list[Any] | None = None) -> str:
        path = self.folder / "script.json"
        path.write_text(json.dumps({"roles": {"developer": developer, "reviewer": reviewer or [APPROVED]}}))
        return f"scripted:{path}"

    def start(self, agent: str | None, *more: str, prompt: str = "Fix the bug") -> str:
        named = ["--agent", agent] if agent else []
        words = ["thread", "start", str(self.file), "-p", prompt, "--cwd", str(self.work), *named, *more]
        return str(self.rolecall.json(*words)["thread"])

    def thread(self, *args: str, check: int = 0) -> dict[str, Any]:
        """The reply, which is the last line, and under `continue` the last line on standard error."""
        done = self.rolecall("thread", *args, "--json", check=check)
        errors = done.stderr.splitlines()[-1:]
        command = (
            errors[0].removeprefix("continue: ") if errors and errors[0].startswith("continue: ") else None
        )
        reply: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return reply | {"continue": command, "stderr": done.stderr}

    def spawn(self, *args: str, out: int = subprocess.PIPE) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            [PROGRAM, "thread", *args, "--json"],
            stdout=out,
            stderr=out,
            text=True,
            env={**os.environ, "ROLECALL_HOME": str(self.rolecall.home)},
        )
        self.children.append(child)
        return child

    def send_between_writes(self, child: subprocess.Popen[str], number: signal.Signals) -> None:
        """A process that is stopped in the middle of a write would keep the store's lock."""
        with closing(
            sqlite3.connect(self.rolecall.home / "store.db", timeout=60, isolation_level=None)
        ) as lock:
            lock.execute("BEGIN IMMEDIATE")
            child.send_signal(number)
            os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def store(self) -> Store:
        return Store(SqliteBackend(str(self.rolecall.home / "store.db"), create=False))

    def steps(self, ident: str) -> list[Step]:
        """Oldest first; read whole, because the store is closed afterwards."""
        with self.store() as store:
            found = list(Chain(store, thread.find(store, ident).head))
            for step in found:
                step.shown = (step.output, step.body, step.prompt)  # type: ignore[attr-defined]
        return found[::-1]

    def attempts(self, ident: str) -> list[dict[str, Any]]:
        with self.store() as store:
            ref = store.ref(thread.attempt_name(ident))
            node = ref.target if ref else None
            found = []
            while node:
                found.append(store.get(node).payload)
                node = found[-1].get("previous")
        return found


@pytest.fixture
def flow(rolecall: Rolecall, tmp_path: Path) -> Iterator[Flow]:
    flow = Flow(rolecall, tmp_path)
    yield flow
    for child in flow.children:  # also after a failure, whose report would otherwise fall on a later test
        with child:
            child.kill()


def shown(step: Step) -> tuple[Any, str, str]:
    parts: tuple[Any, str, str] = step.shown  # type: ignore[attr-defined]
    return parts


def until(child: subprocess.Popen[str], kind: str) -> dict[str, Any]:
    """Read events until one of this kind comes."""
    assert child.stdout
    with _bounded(child):
        for line in child.stdout:
            event: dict[str, Any] = json.loads(line)
            if event.get("event") == kind:
                return event
    raise AssertionError(f"no {kind}: {child.communicate()}")


def await_process(child: subprocess.Popen[str]) -> str:
    """Wait until the agent's program has begun, and return the id of its run."""
    started = until(child, "process")
    wait_for_environment(started["pid"])
    run: str = started["run"]
    return run


@contextmanager
def _bounded(child: subprocess.Popen[Any]) -> Iterator[None]:
    """A child that has nothing more to say ends the wait, and the test, in a minute."""
    timer = Timer(60, child.kill)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


@pytest.fixture
def hanging(flow: Flow) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A thread whose developer is at work and does not come to an end by itself."""
    ident = flow.start(None)
    child = flow.spawn("run", ident, "--agent", flow.script([HANGS]))
    until(child, "text")
    yield ident, child
    child.kill()
    child.communicate()


# -- start --


def test_start_makes_an_idle_thread_and_runs_nothing(flow: Flow) -> None:
    reply = flow.thread("start", str(flow.file), "-p", "Fix it", "--agent", "command:touch ran")
    assert {"workflow", "thread"} <= set(reply)
    assert (reply["status"], reply["currentRole"]) == ("idle", "developer")
    assert flow.steps(reply["thread"]) == []
    assert not (flow.work / "ran").exists()


def test_start_and_fork_print_the_id_alone_so_that_a_shell_can_keep_it(flow: Flow) -> None:
    words = [
        "thread",
        "start",
        str(flow.file),
        "-p",
        "Fix it",
        "--agent",
        flow.script([DONE]),
        "--format",
        "text",
    ]
    for label in ("run it", "continue"):
        done = flow.rolecall(*words, check=0)
        ident = done.stdout.removesuffix("\n")
        assert done.stderr == f"{label}: rolecall thread run {ident}\n"
        words = ["thread", "fork", ident, "--at", "start", "--format", "text"]


def test_start_reports_every_problem_of_a_definition(flow: Flow) -> None:
    flow.write(graph={"$START": "developer", "developer": {"done": "nobody", "blocked": "$FAIL"}})
    done = flow.rolecall("thread", "start", str(flow.file), "-p", "Fix it", check=2)
    assert "nobody" in done.stderr
    assert "reviewer" in done.stderr


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["-p", "  "], 2, "needs a prompt"),
        (["-p", "x", "--cwd", "/nowhere"], 2, "/nowhere"),
        (["-p", "x", "--limit", "steps=0"], 2, "steps=0"),
        (["-p", "x", "--limit", "hats=3"], 2, "hats=3"),
        (["-p", "x", "--limit", "nobody.steps=3"], 2, "nobody.steps"),
        (["-p", "x", "--agent", "scriptd:x"], 3, "Did you mean"),
    ],
)
def test_start_refuses_what_cannot_work(flow: Flow, words: list[str], code: int, told: str) -> None:
    done = flow.rolecall("thread", "start", str(flow.file), *words, check=code)
    assert told in done.stderr
    assert done.stdout == ""


def test_an_unknown_agent_of_a_later_role_stops_a_run_before_the_first_role_is_paid(flow: Flow) -> None:
    flow.write(roles={
        "developer": role(["done", "blocked"], agent="command:touch ran"),
        "reviewer": role(["approved", "rejected"], agent="revewer"),
    })  # fmt: skip
    done = flow.rolecall(
        "thread", "start", str(flow.file), "-p", "x", "--cwd", str(flow.work), "--json", check=0
    )
    assert "warning: reviewer: there is no agent 'revewer'" in done.stderr
    ident = json.loads(done.stdout)["thread"]
    refused = flow.rolecall("thread", "run", ident, check=3)
    assert "there is no agent 'revewer'" in refused.stderr
    assert refused.stderr.splitlines()[-1] == f"continue: rolecall thread run {ident}"
    assert not (flow.work / "ran").exists()


def test_start_prints_the_warnings_of_the_definition(flow: Flow) -> None:
    flow.write(limits=None)
    done = flow.rolecall("thread", "start", str(flow.file), "-p", "x", "--agent", "human", check=0)
    line, _ = done.stderr.splitlines()
    assert line.startswith(f"{flow.file}:1:")
    assert "warning: developer -> reviewer -> developer can loop forever" in line


def test_a_script_is_found_from_any_folder_the_thread_is_run_from(flow: Flow, tmp_path: Path) -> None:
    flow.script([DONE])
    words = ["thread", "start", str(flow.file), "-p", "x", "--cwd", str(flow.work)]
    reply = flow.rolecall.json(*words, "--agent", "scripted:script.json", cwd=tmp_path)
    assert flow.rolecall("thread", "run", reply["thread"], cwd=flow.work).returncode == 0


# -- step and run --


def test_step_takes_exactly_one_step_and_answers_by_the_old_names(flow: Flow) -> None:
    ident = flow.start(flow.script([DONE]))
    first = flow.thread("step", ident)
    assert set(first) >= {"workflow", "thread", "head", "status", "currentRole", "done", "background"}
    assert (first["status"], first["currentRole"], first["done"], first["step"]) == (
        "idle", "reviewer", False, first["head"],
    )  # fmt: skip
    second = flow.thread("step", ident[-6:])
    assert (second["status"], second["currentRole"], second["done"]) == ("completed", None, True)
    assert second["continue"] is None
    assert [step.role for step in flow.steps(ident)] == ["developer", "reviewer"]


def test_a_run_goes_round_the_loop_and_prints_an_event_a_line(flow: Flow) -> None:
    ident = flow.start(flow.script([PAID, DONE], [REJECTED, APPROVED]))
    done = flow.rolecall("thread", "run", ident, "--json", check=0)
    *events, last = map(json.loads, done.stdout.splitlines())
    assert [event["role"] for event in events if event["event"] == "step"] == [
        "developer", "reviewer", "developer", "reviewer",
    ]  # fmt: skip
    assert {event["event"] for event in events} == {"step_started", "usage", "step"}
    assert (last["status"], last["done"], done.stderr) == ("completed", True, "")


def test_the_exit_code_of_a_run_that_has_nothing_to_do_tells_how_the_thread_stands(flow: Flow) -> None:
    done = flow.start(flow.script([DONE]))
    flow.thread("run", done)
    again = flow.thread("run", done)
    assert (again["status"], again["step"], again["stderr"]) == ("completed", None, "")
    over = flow.rolecall("thread", "step", done, check=2)
    assert "is completed" in over.stderr
    assert f"rolecall thread fork {done}" in over.stderr
    asks = flow.start(flow.script([ASKS]))
    first = flow.thread("run", asks, check=7)
    for verb in ("run", "step"):
        reply = flow.thread(verb, asks, check=7)
        assert (reply["reason"], reply["continue"], reply["step"]) == (
            "Which database?",
            first["continue"],
            None,
        )
    flow.thread("kill", asks)
    assert flow.thread("run", asks, check=8)["status"] == "killed"


def test_a_template_has_the_latest_output_of_an_earlier_role(flow: Flow) -> None:
    again = {
        "role": "developer",
        "prompt": "Again: {{steps.developer.files}}.",
    }
    judged = {"role": "judge", "prompt": "Was {{steps.developer.files}} {{steps.reviewer.status}}?"}
    judge = {"goal": "Judge.", "meta": {"type": "object"}}
    roles = {"developer": role(["done"]), "reviewer": role(["approved", "rejected"]), "judge": judge}
    graph = {
        "$START": "developer",
        "developer": {"done": "reviewer"},
        "reviewer": {"approved": judged, "rejected": again},
        "judge": {"role": "$FAIL", "prompt": "{{steps.reviewer.status}}"},
    }
    flow.write(roles=roles, graph=graph)
    second = {"output": {"status": "done", "files": ["b.py", "c.py"]}, "body": "Did more."}
    agent = flow.script([DONE, second], [REJECTED, APPROVED])
    script = json.loads(Path(agent.removeprefix("scripted:")).read_text())
    script["roles"]["judge"] = [{"output": {}, "body": "So it is."}]
    Path(agent.removeprefix("scripted:")).write_text(json.dumps(script))
    ident = flow.start(agent)
    assert flow.thread("run", ident, check=6)["reason"] == "approved"
    received = [step.payload.get("edge_prompt", "") for step in flow.steps(ident)]
    assert received == ["", "", "Again: a.py.", "", "Was b.py, c.py approved?"]


def test_a_template_of_a_role_that_has_not_run_suspends_and_says_so(flow: Flow) -> None:
    after = {"done": {"role": "reviewer", "prompt": "{{steps.reviewer.status}}"}, "blocked": "$FAIL"}
    flow.write(graph={"$START": "developer", "developer": after,
                      "reviewer": {"approved": "$END", "rejected": "developer"}})  # fmt: skip
    ident = flow.start(flow.script([DONE]))
    reply = flow.thread("run", ident, check=7)
    assert "{{steps.reviewer.status}} has no value (reviewer has not run yet)" in reply["reason"]


def test_fail_and_end_are_told_apart_by_the_exit_code(flow: Flow) -> None:
    ident = flow.start(flow.script([BLOCKED]))
    reply = flow.thread("run", ident, check=6)
    assert (reply["status"], reply["reason"]) == ("failed", "Blocked after 1 steps.")


def test_a_finished_run_shows_its_result_and_what_leads_to_the_rest(flow: Flow) -> None:
    wrote = PAID | {"edit": {"a.py": "print(1)"}}
    verdict = {
        "output": {"status": "approved"},
        "body": "Good.\n\n" + "\n".join(f"line {n}" for n in range(20)),
    }
    ident = flow.start(flow.script([wrote], [verdict]))
    text = flow.rolecall("thread", "run", ident, "--format", "text", check=0).stdout
    text = re.sub(r"\d+\.\ds\b", "TIME", text)
    assert text[text.index(f"{ident} is completed") :] == (
        f"{ident} is completed\n\nreviewer: approved\n  Good.\n"
        + "".join(f"  line {n}\n" for n in range(5))
        + "  … 15 more lines\n\nfiles changed: a.py +1 -0\nused: 2 steps, 1,000 tokens, $0.50, TIME\n"
        f"read it all: rolecall thread read {ident}\nsee the changes: rolecall thread diff {ident}\n"
    )
    result = flow.thread("run", ident, "--format", "json")["result"]
    assert (result["role"], result["status"], result["output"]) == (
        "reviewer",
        "approved",
        {"status": "approved"},
    )
    assert (result["text"], result["files"]) == (verdict["body"], ["a.py"])
    assert (result["usage"]["tokens"], result["usage"]["cost"]) == (1000, 0.5)
    assert (result["read"], result["merge"]) == (f"rolecall thread read {ident}", None)


def test_a_failed_run_shows_what_the_last_role_said(flow: Flow) -> None:
    words = (
        "run",
        str(flow.file),
        "-p",
        "Fix it",
        "--cwd",
        str(flow.work),
        "--agent",
        flow.script([BLOCKED]),
    )
    text = flow.rolecall(*words, "--format", "text", check=6).stdout
    assert (
        'is failed: Blocked after 1 steps.\n\ndeveloper: blocked\n  files: ["x"]\n  No access.\n\nused: 1 step, '
        in text
    )


def test_a_run_of_some_steps_ends_with_the_command_for_the_rest(flow: Flow) -> None:
    agent = flow.script([DONE])
    ident = flow.start(None)
    reply = flow.thread("run", ident, "--steps", "1", "--agent", agent)
    assert (reply["status"], reply["continue"]) == ("idle", f"rolecall thread run {ident} --agent {agent}")
    assert flow.thread(*reply["continue"].split()[2:])["status"] == "completed"


def test_the_command_that_goes_on_names_the_store_that_was_named(flow: Flow, tmp_path: Path) -> None:
    store = ["--store", str(tmp_path / "an other.db")]
    named = f"--store '{tmp_path}/an other.db'"
    ident = flow.start(flow.script([DONE, DONE], [REJECTED, APPROVED]), *store)
    ran = flow.thread("run", ident, "--steps", "1", *store)
    assert ran["continue"] == f"rolecall thread run {ident} {named}"
    assert flow.rolecall.json("thread", "show", ident, *store)["continue"] == ran["continue"]
    (listed,) = flow.rolecall.json("thread", "list", *store)
    assert listed["continue"] == ran["continue"]
    fork = flow.rolecall.json("thread", "fork", ident, *store)
    assert fork["continue"] == f"rolecall thread run {fork['thread']} {named}"
    assert flow.thread(*shlex.split(fork["continue"])[2:])["status"] == "completed"
    waiting = flow.start("human", *store)
    asked = flow.thread("run", waiting, *store, check=7)["continue"]
    assert asked == f"rolecall thread answer {waiting} --run {named}"
    assert named in flow.thread("answer", waiting, *store)["answer"]


def test_an_agent_that_does_not_exist_is_not_named_again(flow: Flow) -> None:
    ident = flow.start(None)
    for verb in ("run", "step"):
        done = flow.rolecall("thread", verb, ident, "--agent", "comand:x", check=3)
        assert "Did you mean 'command'?" in done.stderr
        assert done.stderr.splitlines()[-1] == f"continue: rolecall thread run {ident} --agent '…'"


PYTHON = """
from rolecall import END, RoleResult, Workflow

async def work(context):
    return RoleResult("done", {})

workflow = Workflow("do-work", {"worker": work}, lambda context: END if context.steps else "worker")
"""


def test_a_python_file_that_changed_or_is_gone_leaves_the_fork_that_goes_on(flow: Flow) -> None:
    file = flow.folder / "do-work.py"
    file.write_text(PYTHON)
    ident = flow.thread("start", str(file), "-p", "x")["thread"]
    file.write_text(PYTHON.replace('"worker": work}', '"worker": work, "other": work}'))
    changed = flow.rolecall("thread", "run", ident, check=2).stderr.splitlines()[-1]
    assert changed == f"continue: rolecall thread fork {ident} --keep-files --workflow {file}"
    fork = flow.rolecall.json(*changed.split()[2:])["thread"]
    assert flow.thread("run", fork)["status"] == "completed"
    file.rename(flow.folder / "gone.txt")
    gone = flow.rolecall("thread", "step", ident, check=3).stderr.splitlines()[-1]
    assert gone == f"continue: rolecall thread fork {ident} --keep-files --workflow '…'"


def test_a_prompt_of_a_megabyte_reaches_the_agent(flow: Flow, tmp_path: Path) -> None:
    (tmp_path / "task.md").write_text("Zeile ü\n" * 131_072)
    answer = "---\\nstatus: done\\nfiles: [\\'%d\\']\\n---\\n"
    program = f"import sys; print('{answer}' % len(sys.stdin.read()))"
    agent = f'command:{sys.executable} -c "{program}"'
    ident = flow.start(agent, prompt=f"@{tmp_path}/task.md")
    assert flow.thread("step", ident)["status"] == "idle"
    output, _, _ = shown(flow.steps(ident)[0])
    assert int(output["files"][0]) > 1_000_000


def test_an_agent_that_fails_suspends_the_thread_and_resume_goes_on(flow: Flow) -> None:
    fails = {"fail": {"ending": "api_failure", "reason": "the endpoint is down"}, "again": [DONE]}
    ident = flow.start(flow.script([fails]))
    reply = flow.thread("run", ident, check=7)
    assert "the endpoint is down" in reply["reason"]
    assert reply["continue"] == f"rolecall thread resume {ident} --run"
    assert [attempt["ending"] for attempt in flow.attempts(ident)] == ["api_failure"]
    assert flow.thread(*reply["continue"].split()[2:])["status"] == "completed"


def test_a_missing_work_folder_stops_the_thread_with_the_command_that_goes_on(flow: Flow) -> None:
    ident = flow.start(flow.script([DONE]))
    flow.work.rmdir()
    reply = flow.thread("step", ident, check=7)
    assert str(flow.work) in reply["reason"]
    flow.work.mkdir()
    assert flow.thread(*reply["continue"].split()[2:])["status"] == "completed"


# -- suspension, limits --


def test_an_answer_becomes_part_of_the_chain_and_of_the_next_prompt(flow: Flow) -> None:
    ident = flow.start(flow.script([ASKS, DONE]))
    reply = flow.thread("run", ident, check=7)
    assert (reply["status"], reply["reason"]) == ("suspended", "Which database?")
    assert reply["continue"] == f"rolecall thread answer {ident} --run"
    assert "waits for an answer" in flow.rolecall("thread", "resume", ident, check=2).stderr
    resumed = flow.thread("resume", ident, "-p", "The second one, with ünïcode")
    assert (resumed["status"], resumed["currentRole"]) == ("idle", "developer")
    assert resumed["continue"] == f"rolecall thread run {ident}"
    assert flow.thread("run", ident)["status"] == "completed"
    steps = flow.steps(ident)
    assert [step.role for step in steps] == ["developer", "$PERSON", "developer", "reviewer"]
    said = shown(steps[1])[0]
    assert (said["reason"], said["answer"]) == ("Which database?", "The second one, with ünïcode")
    assert (said["role"], said["prompt"]) == ("developer", "Begin.")  # it is called as it was before
    assert "The second one, with ünïcode" in shown(steps[2])[2]


@pytest.mark.parametrize(
    ("limit", "more"), [("steps=1", "steps=2"), ("tokens=1000", "tokens=2000"), ("cost=0.3", "cost=0.6"),
                        ("reviewer.turns=1", None)]
)  # fmt: skip
def test_a_limit_suspends_and_can_be_raised(flow: Flow, limit: str, more: str | None) -> None:
    reviewer = [REJECTED | {"usage": {"turns": 2}}, APPROVED]
    ident = flow.start(flow.script([PAID, DONE], reviewer), "--limit", limit)
    reply = flow.thread("run", ident, check=7)
    assert "limit reached" in reply["reason"]
    assert limit.partition("=")[0].rpartition(".")[2] in reply["reason"]
    raised = more or "reviewer.turns=4"
    assert reply["continue"] == f"rolecall thread resume {ident} --limit {raised} --run"
    kept = len(flow.steps(ident))
    status = flow.thread("resume", ident, "--limit", limit.partition("=")[0] + "=1000000", "--run")["status"]
    assert (status, len(flow.steps(ident))) == ("completed", 4)
    assert kept < 4


def test_what_a_failed_attempt_has_cost_counts_for_the_limit(flow: Flow) -> None:
    fails = {"fail": {"ending": "limit", "reason": "x"}, "answer": "no form", "usage": PAID["usage"]}
    ident = flow.start(flow.script([fails]), "--limit", "cost=0.4")
    flow.thread("run", ident, check=7)
    reply = flow.thread("resume", ident, "--run", check=7)
    assert reply["reason"].startswith("limit reached: the thread has used 0.5 of 0.4 cost")


def test_resuming_an_idle_thread_says_that_it_was_idle(flow: Flow) -> None:
    ident = flow.start(flow.script([DONE]))
    assert "idle already" in flow.thread("resume", ident)["stderr"]
    flow.thread("kill", ident)
    assert "is killed" in flow.rolecall("thread", "resume", ident, check=2).stderr


# -- a person plays --


def test_a_role_of_a_person_asks_and_takes_only_what_fits(flow: Flow) -> None:
    flow.write(developer={"agent": "human"})
    flow.rolecall.home.mkdir()
    (flow.rolecall.home / "config.yaml").write_text(f"defaultAgent: {flow.script([])}\n")
    ident = flow.start(None)
    reply = flow.thread("run", ident, check=7)
    assert reply["continue"] == f"rolecall thread answer {ident} --run"
    asked = flow.thread("answer", ident)
    assert (asked["currentRole"], asked["task"], asked["instruction"]) == (
        "developer",
        "Fix the bug",
        "Begin.",
    )
    text = flow.rolecall("thread", "answer", ident, "--format", "text", check=0).stdout
    assert "files (required): list, each item: string" in text
    assert "one of done, blocked" in text
    for said_to_agents in ("frontmatter", "without a person", "`"):
        assert said_to_agents not in text
    example = text.rstrip().splitlines()[-1].strip()
    assert example == (
        f"rolecall thread answer {ident} --field status=done --field 'files=[\"text\"]' --body 'Your report.'"
    )
    assert "resume" not in flow.rolecall("thread", "step", ident, check=7).stderr
    wrong = flow.rolecall("thread", "answer", ident, "--field", "status=perhaps", check=2)
    assert "perhaps" in wrong.stderr
    assert "files" in wrong.stderr
    assert flow.steps(ident) == []
    given = flow.thread(
        "answer", ident, "--field", "status=done", "--field", 'files=["b.py"]', "--body", "By hand."
    )
    assert (given["status"], given["currentRole"]) == ("idle", "reviewer")
    assert flow.thread("run", ident)["status"] == "completed"
    steps = flow.steps(ident)
    assert (steps[0].agent, shown(steps[0])[:2]) == (
        "human",
        ({"status": "done", "files": ["b.py"]}, "By hand."),
    )
    assert "By hand." in shown(steps[1])[2]


def test_a_person_can_play_the_role_of_an_agent(flow: Flow, tmp_path: Path) -> None:
    ident = flow.start(flow.script([DONE]))
    (tmp_path / "answer.json").write_text('{"status": "blocked", "files": []}')
    reply = flow.thread("answer", ident, "--output", f"@{tmp_path}/answer.json", check=6)
    assert reply["status"] == "failed"
    assert "is failed" in flow.rolecall("thread", "answer", ident, "--output", "{}", check=2).stderr
    ended = flow.start(flow.script([DONE]))
    flow.thread("kill", ended)
    assert "is killed" in flow.rolecall("thread", "answer", ended, check=2).stderr


def test_a_person_is_shown_the_answer_that_went_before(flow: Flow) -> None:
    people = {"reviewer": role(["approved", "rejected"], agent="human")}
    flow.write(roles={"developer": role(["done", "blocked"]), **people})
    long = "\n".join(f"line {number}" for number in range(1, 31))
    ident = flow.start(flow.script([DONE | {"body": long}]))
    flow.thread("run", ident, check=7)
    text = flow.rolecall("thread", "answer", ident, "--format", "text", check=0).stdout
    assert "## From developer\n\nline 1\n" in text
    assert "line 20\n… 10 more lines\n" in text and "line 21" not in text


def test_a_question_without_description_or_fields_is_asked_without_gaps(flow: Flow) -> None:
    bare = {"agent": "human", "goal": "Decide.", "meta": {"type": "object"}}
    flow.write(roles={"boss": bare}, graph={"$START": "boss", "boss": "$END"})
    ident = flow.start(None)
    text = flow.rolecall("thread", "answer", ident, "--format", "text", check=0).stdout
    assert text.splitlines()[0] == "# You are asked as boss"
    assert "Fields" not in text
    assert text.rstrip().splitlines()[-1].strip() == f"rolecall thread answer {ident} --body 'Your report.'"
    assert flow.thread("answer", ident, "--body", "Yes.")["status"] == "completed"


def test_each_form_of_an_answer_is_shown_with_its_command(flow: Flow) -> None:
    forms = [
        {"type": "object", "properties": {"$status": {"const": "yes"}}, "required": ["$status"]},
        {
            "type": "object",
            "properties": {"$status": {"const": "no"}, "why": {"type": "string", "description": "In short."}},
            "required": ["$status", "why"],
        },
    ]
    boss = {
        "agent": "human",
        "goal": "Decide.",
        "description": "Has the last word.",
        "meta": {"oneOf": forms},
    }
    flow.write(roles={"boss": boss}, graph={"$START": "boss", "boss": {"yes": "$END", "no": "$FAIL"}})
    ident = flow.start(None)
    text = flow.rolecall("thread", "answer", ident, "--format", "text", check=0).stdout
    assert text.splitlines()[0] == "# You are asked as boss: Has the last word."
    assert "- why (required): string. In short." in text and "## Prompt\n\nDecide." in text
    assert flow.thread("answer", ident, check=0)["prompt"] == "Decide."
    commands = [line.strip() for line in text.splitlines() if line.startswith("  rolecall thread answer")]
    assert commands == [
        f"rolecall thread answer {ident} --field status=yes --body 'Your report.'",
        f"rolecall thread answer {ident} --field status=no --field why=text --body 'Your report.'",
    ]
    given = flow.thread(*shlex.split(commands[1])[2:], check=6)
    assert (given["status"], given["currentRole"]) == ("failed", None)


def ask_a_person(flow: Flow, schema: dict[str, Any], **more: Any) -> str:
    """A thread in which a person is asked for an output of this schema, with the status `$status`."""
    boss = {"agent": "human", "goal": "Decide.", "meta": schema}
    after: dict[str, Any] = {"ship": "$END", "hold": "$FAIL"}
    flow.write(roles={"boss": boss}, graph={"$START": "boss", "boss": after}, **more)
    return flow.start(None)


SHIP = {"type": "object", "properties": {"$status": {"enum": ["ship", "hold"]}}, "required": ["$status"]}


@pytest.mark.parametrize("given", [["--field", "status=ship"], ["--output", '{"status": "ship"}'],
                                   ["--field", "$status=ship"]])  # fmt: skip
def test_status_is_taken_for_the_name_that_a_shell_would_expand(flow: Flow, given: list[str]) -> None:
    ident = ask_a_person(flow, SHIP)
    assert flow.thread("answer", ident, *given)["status"] == "completed"
    assert shown(flow.steps(ident)[0])[0] == {"$status": "ship"}


@pytest.mark.parametrize("given", [["--field", "=ship"], ["--output", '{"": "ship"}']])
def test_a_name_that_the_shell_expanded_to_nothing_is_explained(flow: Flow, given: list[str]) -> None:
    ident = ask_a_person(flow, SHIP)
    errors = " ".join(flow.rolecall("thread", "answer", ident, *given, check=2).stderr.split())
    assert "Your shell replaces $status with the value of a variable" in errors
    assert "Write status=…, or use single quotes: '$status=…'." in errors


def test_a_terminal_asks_for_the_fields_one_by_one_and_checks_each_at_once(flow: Flow) -> None:
    fields = {
        "$status": {"enum": ["ship", "hold"]},
        "why": {"type": "string", "minLength": 3, "description": "In short."},
        "count": {"type": "integer"},
        "names": {"type": "array", "items": {"type": "string"}},
        "urgent": {"type": "boolean"},
    }
    ident = ask_a_person(
        flow, {"type": "object", "properties": fields, "required": ["$status", "why", "names"]}
    )
    terminal = Terminal("thread", "answer", ident, home=flow.rolecall.home)
    for question, answer in (
        ("status\r\n  1) ship\r\n  2) hold\r\n1 to 2: ", "3"),
        ("'3' is not one of them.\r\n1 to 2: ", "1"),
        ("why (required): string, at least 3 characters. In short: ", "no"),
        ("why (required): string, at least 3 characters. In short: ", "It works."),
        ("names (required): list, each item: string (separated by commas): ", "a.py, b.py"),
        ("count (optional): integer (Enter: leave it out): ", "many"),
        ("count (optional): integer (Enter: leave it out): ", ""),
        ("urgent\r\n  1) true\r\n  2) false\r\n1 to 2 (Enter: leave it out): ", "2"),
        ("Your report (optional; end it with an empty line):", "First.\nSecond.\n"),
    ):
        terminal.expect(question)
        terminal.type(answer + "\n")
    assert terminal.close() == 0
    assert f"{ident} is completed" in terminal.seen
    output, body, _ = shown(flow.steps(ident)[0])
    assert output == {"$status": "ship", "why": "It works.", "names": ["a.py", "b.py"], "urgent": False}
    assert body == "First.\nSecond."


def test_a_terminal_asks_for_the_fields_of_the_form_that_was_chosen(flow: Flow) -> None:
    forms = [
        {"type": "object", "properties": {"$status": {"const": "ship"}}, "required": ["$status"]},
        {
            "type": "object",
            "properties": {"$status": {"const": "hold"}, "why": {"type": "string"}},
            "required": ["$status", "why"],
        },
    ]
    ident = ask_a_person(flow, {"oneOf": forms})
    terminal = Terminal("thread", "answer", ident, home=flow.rolecall.home)
    for question, answer in (("1 to 2: ", "hold"), ("why (required): ", ""), ("needed", "Not yet."),
                             ("Your report", "")):  # fmt: skip
        terminal.expect(question)
        terminal.type(answer + "\n")
    assert terminal.close() == 6
    assert shown(flow.steps(ident)[0])[0] == {"$status": "hold", "why": "Not yet."}


def test_an_answer_that_is_broken_off_records_nothing(flow: Flow) -> None:
    ident = ask_a_person(flow, SHIP)
    terminal = Terminal("thread", "answer", ident, home=flow.rolecall.home)
    terminal.expect("1 to 2: ")
    terminal.type("\x04")
    assert terminal.close() == 2
    assert "the input ended before everything was answered" in terminal.seen
    assert flow.steps(ident) == []


def test_a_question_of_an_agent_is_answered_by_the_same_verb_and_the_thread_goes_on(flow: Flow) -> None:
    ident = flow.start(flow.script([ASKS, DONE]), prompt="Store it")
    text = flow.rolecall("thread", "run", ident, "--format", "text", check=7)
    assert f"{ident} is suspended: Store it\n  Which database?\n" in text.stdout
    assert (text.stdout + text.stderr).count("Which database?") == 1
    assert text.stderr.splitlines()[-1] == f"continue: rolecall thread answer {ident} --run"
    asked = flow.thread("answer", ident)
    assert (asked["currentRole"], asked["question"]) == ("developer", "Which database?")
    assert asked["answer"] == f"rolecall thread answer {ident} -p '…' --run"
    assert (
        flow.thread("answer", ident, "--run", check=7)["question"] == "Which database?"
    )  # nothing was answered
    refused = flow.rolecall("thread", "answer", ident, "--field", "status=done", check=2).stderr
    assert "expects text, not fields: Which database?" in refused
    assert "empty" in flow.rolecall("thread", "answer", ident, "-p", " ", check=2).stderr
    assert flow.thread("answer", ident, "-p", "The second one", "--run")["status"] == "completed"
    assert "The second one" in shown(flow.steps(ident)[2])[2]


def test_a_question_of_an_agent_is_asked_on_a_terminal(flow: Flow) -> None:
    ident = flow.start(flow.script([ASKS, DONE]))
    flow.thread("run", ident, check=7)
    terminal = Terminal("thread", "answer", ident, "--run", home=flow.rolecall.home)
    terminal.expect("Your answer (end it with an empty line):")
    assert "# Fix the bug" in terminal.seen and terminal.seen.count("Which database?") == 1
    terminal.type("\n")
    terminal.expect("An answer is needed.")
    terminal.type("The second one\n\n")
    assert terminal.close() == 0
    assert "✓ 4 reviewer · approved" in terminal.seen


def test_a_failed_attempt_that_suspends_the_thread_is_told_once(flow: Flow) -> None:
    ident = flow.start(flow.script([{"fail": {"ending": "failed", "reason": "no credit"}}]))
    result = flow.rolecall("thread", "run", ident, "--format", "text", check=7)
    assert (result.stdout + result.stderr).count("no credit") == 1


def test_the_role_that_is_stuck_is_named_by_every_verb(flow: Flow) -> None:
    flow.write(graph={
        "$START": "developer",
        "developer": [{"role": "reviewer", "condition": "never"}],
        "reviewer": {"approved": "$END", "rejected": "developer"},
    }, conditions={"never": "false"})  # fmt: skip
    ident = flow.start(flow.script([DONE]))
    assert flow.thread("run", ident, check=7)["currentRole"] == "developer"
    assert flow.rolecall.json("thread", "show", ident)["currentRole"] == "developer"
    assert [row["currentRole"] for row in flow.rolecall.json("thread", "list")] == ["developer"]
    fork = flow.rolecall.json("thread", "fork", ident, "--at", "start")["thread"]
    answered = flow.thread("answer", fork, "--output", json.dumps(DONE["output"]), check=7)
    assert answered["currentRole"] == "developer"


# -- two at once, stopping, killing --


def test_of_two_at_once_one_runs_and_the_other_is_told_who(
    flow: Flow, hanging: tuple[str, subprocess.Popen[str]]
) -> None:
    ident, child = hanging
    done = flow.rolecall("thread", "step", ident, "--agent", flow.script([DONE]), check=5)
    assert f"is being run by process {child.pid} on " in done.stderr
    assert done.stderr.splitlines()[-1] == f"watch: rolecall thread watch {ident}"
    assert "is being run by" in flow.rolecall("thread", "resume", ident, "-p", "x", check=5).stderr
    for given in ([], ["--body", "x"]):
        assert "is being run by" in flow.rolecall("thread", "answer", ident, *given, check=5).stderr


def test_of_many_steps_at_once_exactly_one_is_taken(flow: Flow) -> None:
    os.mkfifo(flow.work / "gate")
    program = "import sys; open('gate').read(); print('---\\\\nstatus: done\\\\nfiles: []\\\\n---\\\\n')"
    ident = flow.start(f'command:{sys.executable} -c "{program}"')
    children = [flow.spawn("step", ident) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool, open(flow.work / "gate", "w") as gate:
        # Opening the gate has waited for the one that runs; it is held until the others have ended.
        running = as_completed([pool.submit(child.communicate) for child in children], timeout=60)
        received = [next(running).result()[1] for _ in range(3)]
        gate.write("go")
    assert sorted(child.returncode for child in children) == [0, 5, 5, 5]
    assert all("is being run by process" in text for text in received)
    assert len(flow.steps(ident)) == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_an_idle_thread_that_continues(flow: Flow, number: signal.Signals) -> None:
    ident = flow.start(None)
    child = flow.spawn("run", ident, "--agent", "command:sleep 1000")
    run = until(child, "process")["run"]
    child.send_signal(number)
    out, err = child.communicate(timeout=60)
    last = json.loads(out.splitlines()[-1])
    assert (child.returncode, last["status"], last["reason"]) == (130, "idle", "interrupted")
    assert err.splitlines()[-1] == f"continue: rolecall thread run {ident} --agent 'command:sleep 1000'"
    assert last["currentRole"] == "developer"
    assert process.survivors(run) == []
    assert [attempt["ending"] for attempt in flow.attempts(ident)] == ["interrupted"]
    assert flow.thread("run", ident, "--agent", flow.script([DONE]))["status"] == "completed"
    assert "attempt" in flow.steps(ident)[0].payload


def test_a_second_signal_ends_an_agent_that_does_not_listen(flow: Flow) -> None:
    ident = flow.start(None)
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    program = f"{deaf}; print(1, flush=True); time.sleep(999)"
    child = flow.spawn("run", ident, "--agent", f'command:{sys.executable} -c "{program}"')
    run = until(child, "process")["run"]
    until(child, "text")
    child.send_signal(signal.SIGINT)
    child.send_signal(signal.SIGTERM)
    child.communicate(timeout=60)
    assert child.returncode == 130
    _wait_for_the_end_of(process.survivors(run))
    assert process.survivors(run) == []
    assert flow.thread("run", ident, "--agent", flow.script([DONE]))["status"] == "completed"


def _wait_for_the_end_of(pids: Sequence[int]) -> None:
    """A killed process is gone a moment after the signal; wait for that, not longer than a minute."""
    for pid in pids:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        watch = select.poll()
        watch.register(descriptor, select.POLLIN)
        watch.poll(60_000)
        os.close(descriptor)


def test_a_reader_that_goes_away_stops_the_run_and_loses_nothing(flow: Flow) -> None:
    ident = flow.start(flow.script([DONE, DONE], [REJECTED, APPROVED]))
    reading, writing = os.pipe()
    os.close(reading)
    child = flow.spawn("run", ident, out=writing)
    os.close(writing)
    assert child.wait(60) == 141
    assert flow.thread("run", ident)["status"] == "completed"
    assert [step.role for step in flow.steps(ident)] == ["developer", "reviewer"] * 2


def test_a_killed_process_leaves_no_agent_behind_and_the_thread_continues(flow: Flow) -> None:
    ident = flow.start(None)
    child = flow.spawn("run", ident, "--agent", "command:sleep 1000")
    run = await_process(child)
    child.kill()
    child.communicate()
    assert process.survivors(run) != []
    watched = flow.thread("watch", ident, check=5)
    assert (watched["status"], watched["continue"]) == ("crashed", f"rolecall thread run {ident}")
    assert flow.thread("step", ident, "--agent", flow.script([DONE]))["status"] == "idle"
    assert process.survivors(run) == []


def test_kill_ends_the_thread_and_the_process_that_runs_it(
    flow: Flow, hanging: tuple[str, subprocess.Popen[str]]
) -> None:
    ident, child = hanging
    reply = flow.thread("kill", ident, "--reason", "wrong idea")
    assert (reply["killed"], reply["cancelled"], reply["process"]) == (True, True, child.pid)
    out, _ = child.communicate(timeout=60)
    last = json.loads(out.splitlines()[-1])
    assert (child.returncode, last["status"], last["reason"], last["done"]) == (
        8,
        "killed",
        "wrong idea",
        True,
    )
    assert "already killed" in flow.rolecall("thread", "kill", ident, check=2).stderr
    assert "is killed" in flow.rolecall("thread", "step", ident, check=2).stderr


def test_kill_ends_a_process_that_hears_no_signal_and_its_agent(flow: Flow) -> None:
    ident = flow.start(None)
    child = flow.spawn("run", ident, "--agent", "command:sleep 1000")
    run = await_process(child)
    flow.send_between_writes(child, signal.SIGSTOP)  # as deaf as code that never returns to the interpreter
    assert flow.thread("kill", ident)["process"] == child.pid
    child.communicate(timeout=60)
    assert child.returncode == -signal.SIGKILL
    assert process.survivors(run) == []


def test_kill_names_the_process_also_when_it_has_noticed_by_itself_and_is_gone() -> None:
    child = subprocess.Popen(["true"])
    lease = {**holder.identify_self(""), "pid": child.pid}
    child.wait(60)
    assert killing.ask_to_stop(lease) == child.pid


def test_a_runner_that_no_signal_reaches_notices_that_its_thread_was_killed(
    flow: Flow, hanging: tuple[str, subprocess.Popen[str]]
) -> None:
    ident, child = hanging
    with flow.store() as store:
        lifecycle.kill(store, thread.find(store, ident), mask=Mask([]))
    child.communicate(timeout=60)
    assert child.returncode == 8


def test_kill_ends_the_agent_of_a_process_that_is_gone(flow: Flow) -> None:
    ident = flow.start(None)
    child = flow.spawn("run", ident, "--agent", "command:sleep 1000")
    run = await_process(child)
    child.kill()
    child.communicate()
    assert flow.thread("kill", ident)["process"] is None
    assert process.survivors(run) == []


def test_an_asynchronous_program_can_kill_a_thread_whose_process_is_gone(flow: Flow) -> None:
    ident = flow.start(None)
    child = flow.spawn("run", ident, "--agent", "command:sleep 1000")
    run = await_process(child)
    child.kill()
    child.communicate()

    async def kill() -> None:
        with flow.store() as store:
            killing.kill(store, thread.find(store, ident), "wrong idea", mask=Mask([]))

    asyncio.run(kill())
    assert process.survivors(run) == []


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_kill_ends_the_agent_of_a_workflow_that_plays_a_role(flow: Flow, number: signal.Signals) -> None:
    reported = flow.folder / "told"
    os.mkfifo(reported)
    agent = executable(flow.folder / "agent", f"echo $ROLECALL_RUN > {reported}; exec sleep 1000")
    inner = {
        "name": "do-inside",
        "roles": {"worker": role(["done"], agent=f"command:{agent}")},
        "graph": {"$START": "worker", "worker": {"done": "$END"}},
    }
    (flow.folder / "do-inside.yaml").write_text(json.dumps(inner))
    flow.rolecall("workflow", "put", str(flow.folder / "do-inside.yaml"), check=0)
    flow.rolecall("config", "set", "defaultAgent", "command:true", check=0)
    flow.write(developer={"agent": "workflow:do-inside"})
    ident = flow.start(None)
    child = flow.spawn("run", ident)
    until(child, "session")
    run = reported.read_text().split("/")[-1].strip()
    flow.send_between_writes(child, number)
    flow.thread("kill", ident)
    child.communicate(timeout=60)
    _wait_for_the_end_of(process.survivors(run))
    assert process.survivors(run) == []


# -- seen from elsewhere --


def test_watch_shows_another_process_what_happens_until_the_end(flow: Flow) -> None:
    ident = flow.start(flow.script([DONE, DONE], [REJECTED, APPROVED]))
    child = flow.spawn("watch", ident)
    until(child, "started")
    flow.thread("run", ident)
    out, _ = child.communicate(timeout=60)
    *events, last = map(json.loads, out.splitlines())
    assert [event["role"] for event in events if event["event"] == "step"] == ["developer", "reviewer"] * 2
    assert (child.returncode, last["status"]) == (0, "completed")


def test_watching_a_thread_that_nobody_runs_says_so(flow: Flow) -> None:
    ident = flow.start(flow.script([DONE]))
    child = flow.spawn("watch", ident)
    assert child.stderr
    with _bounded(child):
        assert child.stderr.readline() == f"{ident} is idle and no process runs it; waiting for one\n"
    flow.thread("run", ident)
    _, rest = child.communicate(timeout=60)
    assert (child.returncode, rest) == (0, "")


def test_watch_ends_at_a_suspension_unless_told_to_follow(flow: Flow) -> None:
    ident = flow.start(flow.script([ASKS, BLOCKED]))
    flow.thread("run", ident, check=7)
    assert flow.thread("watch", ident, check=7)["continue"] == f"rolecall thread answer {ident} --run"
    child = flow.spawn("watch", ident, "--follow")
    until(child, "step")
    flow.thread("resume", ident, "-p", "Any", "--run", check=6)
    child.communicate(timeout=60)
    assert child.returncode == 6


def test_a_terminal_shows_who_is_at_work_and_a_line_per_step(flow: Flow) -> None:
    os.mkfifo(flow.work / "gate")
    program = (
        "print('reading\\\\x1b[2J the code', flush=True); open('gate').read(); "
        "print('---\\\\nstatus: done\\\\nfiles: []\\\\n---\\\\n')"
    )
    flow.write(developer={"agent": f'command:{sys.executable} -c "{program}"'})
    ident = flow.start(None)
    master, slave = pty.openpty()
    child = subprocess.Popen(
        [PROGRAM, "thread", "step", ident],
        stdout=slave, stderr=slave, env={**os.environ, "ROLECALL_HOME": str(flow.rolecall.home)},
    )  # fmt: skip
    os.close(slave)
    with _bounded(child):
        seen = _read_until(master, "\n  reading")
        assert "\n  reading" in seen
        with open(flow.work / "gate", "w"):
            pass
        seen += _read_until(master, None)
    os.close(master)
    assert child.wait(60) == 0
    assert "developer · command:" in seen
    assert "\\u001b[2J the code" in seen
    assert "\x1b[2J" not in seen
    assert "✓ 1 developer · done" in seen


def _read_until(master: int, wanted: str | None) -> str:
    """What the terminal was sent, up to `wanted` or to the end."""
    seen, decoder = "", codecs.getincrementaldecoder("utf-8")("replace")  # a read may end within a letter
    while wanted is None or wanted not in seen:
        try:
            data = os.read(master, 65536)
        except OSError:  # how Linux says that nobody holds the other end any more
            break
        if not data:
            break
        seen += decoder.decode(data)
    return seen


def test_a_program_that_is_not_installed_is_told_before_anybody_is_paid(flow: Flow) -> None:
    flow.write(developer={"agent": flow.script([DONE])})
    definition = json.loads(flow.file.read_text())
    definition["roles"]["reviewer"]["agent"] = "claude:executable=/nowhere/claude"
    flow.file.write_text(json.dumps(definition))
    started = flow.rolecall(
        "thread", "start", str(flow.file), "-p", "Fix it", "--cwd", str(flow.work), "--json", check=0
    )
    assert "warning: reviewer:" in started.stderr and "/nowhere/claude" in started.stderr
    ident = json.loads(started.stdout)["thread"]
    done = flow.rolecall("thread", "run", ident, check=3)
    assert "needs the program '/nowhere/claude', which was not found" in done.stderr
    assert flow.steps(ident) == []


def test_a_person_who_was_asked_for_is_not_replaced_by_an_agent(flow: Flow) -> None:
    flow.write(developer={"agent": "human"})
    ident = flow.start(flow.script([DONE]))
    reply = flow.thread("run", ident, check=7)
    assert reply["status"] == "suspended" and "played by a person" in reply["reason"]
    assert flow.steps(ident) == []
