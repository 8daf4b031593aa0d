"""The process of a step: whatever it does ends its own thread only, and reaches no other step."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from textwrap import indent

import pytest
from processes import stop_between_writes
from servicestage import PATIENCE, STEPS, Service, done, gone, is_living, served

from rolecall.threads import thread

ROLE = """
import asyncio, os, subprocess, sys, time
from rolecall import END, Role, RoleResult, ThreadContext, Workflow

async def work(context: ThreadContext) -> RoleResult:
{body}
    return RoleResult(content="Done.", meta={{}})

def moderator(context: ThreadContext) -> str:
    return {next}

workflow = Workflow("{name}", roles={{"worker": Role.function(work, {{"type": "object"}})}}, moderator=moderator)
"""
ONCE = 'END if context.steps else "worker"'


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One service for all: whatever one thread does to it, the next ones have to live with."""
    folder = tmp_path_factory.mktemp("service")
    (folder / "rolecall.yaml").write_text("service: {worker: {memory_mb: 400, cpu_minutes: 7}}\n")
    with served(folder, "--concurrency", "2") as service:
        yield service
        service.stop()
        service.assert_clean()


@pytest.fixture
def bystander(service: Service) -> Iterator[str]:
    """A thread of somebody else that runs all the while, and comes to its end afterwards."""
    fifo = service.work / f"gate-{os.urandom(4).hex()}"
    os.mkfifo(fifo)
    agent = service.script(done("end", run=[["cat", fifo.name]]), name=fifo.name)
    name = service.enter(service.workflow("stand-by"), agent)
    service.event(name, "process")
    before = service.state(name)
    yield name
    assert service.state(name)["lease"]["pid"] == before["lease"]["pid"]
    fifo.write_text("go on")
    assert service.ended(name) == ["completed"]
    assert service.kinds(name) == ["queued", "started", "step", "completed"]


def role(service: Service, name: str, body: str, after: str = ONCE) -> str:
    indented = indent(body.strip("\n"), "    ")
    return service.python_workflow(name, ROLE.format(name=name, body=indented, next=after))


def outcome(service: Service, flow: str, prompt: str = "Do it") -> tuple[str, str]:
    name = service.enter(flow, None, prompt=prompt)
    (status,) = service.ended(name)
    assert service.store.ref(thread.slot_name(service.state(name)["name"], name)) is None
    return status, str(service.state(name).get("reason", ""))


# -- what a step does to itself --


def test_a_segfault_ends_the_step_only_and_the_third_one_leaves_the_thread_to_a_person(
    service: Service, bystander: str
) -> None:
    flow = role(service, "crash-hard", "import ctypes\nctypes.string_at(0)")
    name = service.enter(flow, None)
    assert service.ended(name) == ["suspended"]
    assert service.kinds(name) == ["queued", "started", *["crashed"] * 3, "suspended"]
    assert service.state(name)["reason"] == (
        "its step crashed 3 times, last: its worker was ended by SIGSEGV"
    )
    assert [event.body["count"] for event in service.events(name) if event.kind == "crashed"] == [1, 2, 3]


def test_a_step_that_exits_the_process_crashes_and_what_it_said_last_is_told(service: Service) -> None:
    flow = role(service, "leave-early", "print('no more of this', flush=True)\nos._exit(3)")
    status, reason = outcome(service, flow)
    assert status == "suspended"
    assert reason.endswith("its worker ended with status 3: no more of this")


def test_a_step_that_takes_all_memory_is_refused_it_and_nobody_else_is(
    service: Service, bystander: str
) -> None:
    status, reason = outcome(service, role(service, "eat-memory", "bytearray(600 * 1024 * 1024)"))
    assert status == "suspended"
    assert "MemoryError" in reason


def test_a_step_that_has_used_its_processor_time_up_is_ended_by_a_signal_that_says_so(
    service: Service,
) -> None:
    body = (
        "import resource\n"
        "first, last = resource.getrlimit(resource.RLIMIT_CPU)\n"
        "assert first < last, 'the signal that says so never comes'\n"
        "resource.setrlimit(resource.RLIMIT_CPU, (1, last))\n"  # not seven minutes
        "while True: pass"
    )
    status, reason = outcome(service, role(service, "burn-time", body))
    assert status == "suspended"
    assert "its worker was ended by SIGXCPU, its cpu_minutes being used up" in reason


def test_the_limits_of_a_step_hold_for_what_it_starts(service: Service) -> None:
    result = "subprocess.run(['sh', '-c', '(ulimit -d; ulimit -t; ulimit -c) > limits'], cwd=context.workdir)"
    assert outcome(service, role(service, "tell-limits", result))[0] == "completed"
    assert (service.work / "limits").read_text().split() == [str(400 * 1024), str(7 * 60), "0"]


def test_what_a_step_prints_within_reason_harms_nobody(service: Service) -> None:
    flow = role(service, "print-much", "os.write(1, b'x' * 1000000); os.write(2, b'\\xff' * 1000)")
    assert outcome(service, flow)[0] == "completed"


def test_a_role_that_is_none_and_a_result_of_a_wrong_shape_fail_their_threads(service: Service) -> None:
    status, reason = outcome(service, role(service, "call-nobody", "pass", after='"nobody"'))
    assert (status, "nobody" in reason) == ("failed", True)
    status, reason = outcome(service, role(service, "give-rubbish", "return ['not', 'a', 'result']"))
    assert (status, "worker" in reason) == ("failed", True)


def test_a_file_that_cannot_be_loaded_any_more_suspends_its_threads_with_the_reason(service: Service) -> None:
    flow = role(service, "break-itself", "open(__file__, 'w').write('this is no Python')", after='"worker"')
    name = service.enter(flow, None)
    assert service.ended(name) == ["suspended"]
    assert service.kinds(name) == ["queued", "started", "step", "suspended"]
    assert "break-itself.py" in service.state(name)["reason"]


def test_an_agent_that_does_not_exist_suspends_the_thread_with_the_reason(service: Service) -> None:
    name = service.enter(service.workflow(), "command:no-such-program-anywhere")
    assert service.ended(name) == ["suspended"]
    assert "no-such-program-anywhere" in service.state(name)["reason"]
    resumed = service.rolecall("thread", "resume", name)
    assert resumed.returncode == 0
    assert "watch: rolecall thread watch" in resumed.stderr
    service.event(name, "suspended", count=2)


def test_an_agent_named_by_a_very_long_command_is_called_like_any_other(
    service: Service, bystander: str
) -> None:
    """Whoever starts the step's process is told by a short message, whatever the agent's name is."""
    said = "---\\n$status: end\\n---\\n" + "y" * 100_000
    name = service.enter(service.workflow(), f"command:printf %b '{said}'")
    assert service.ended(name) == ["completed"], service.state(name)


# -- what a step leaves behind --

DAEMON = """
hide = (
    "import os, time", "os.setsid()", "os.fork() and os._exit(0)",
    "open('daemon', 'w').write(str(os.getpid()))", "os.rename('daemon', 'there')", "time.sleep(600)",
)
quiet = dict(stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
subprocess.Popen([sys.executable, "-c", "; ".join(hide)], cwd=context.workdir, env={}, **quiet)
while not os.path.exists(os.path.join(context.workdir, "there")): os.sched_yield()
"""


@pytest.mark.parametrize("ending", ["", "os._exit(1)"], ids=["after its end", "after a crash"])
def test_a_daemon_that_hides_from_everybody_does_not_outlive_its_step(service: Service, ending: str) -> None:
    there = service.work / "there"
    there.unlink(missing_ok=True)
    flow = role(service, f"hide-daemon-{'crash' if ending else 'well'}", DAEMON + ending)
    name = service.enter(flow, None)
    service.until(
        lambda: service.thread_status(name) in ("completed", "suspended") or "crashed" in service.kinds(name)
    )
    pid = int(there.read_text())
    gone(pid)
    assert not is_living(pid)
    service.ended(name)


def test_a_process_that_keeps_the_steps_line_open_does_not_keep_its_thread(service: Service) -> None:
    """A fork has everything its parent had, the socket too, and may move to a session of its own."""
    body = "if os.fork() == 0:\n    os.setsid()\n    time.sleep(600)\n    os._exit(0)"
    assert outcome(service, role(service, "fork-away", body))[0] == "completed"


# -- a process that takes several steps --

TELL = [["sh", "-c", "echo $PPID $ROLECALL_RUN >> told"]]
"""Adds the id of the step's process and the mark of what it starts to a file."""


def read_lines(service: Service) -> list[list[str]]:
    """What the steps have told since this was last asked."""
    file = service.work / "told"
    lines = [line.split() for line in file.read_text().splitlines()]
    file.unlink()
    return lines


def test_a_process_whose_step_ended_well_takes_the_next_one(service: Service) -> None:
    steps = [*[done(run=TELL)] * 5, done("end", run=TELL)]
    names = [service.enter(service.workflow(), service.script(*steps, name=f"several-{n}")) for n in range(2)]
    assert service.ended(*names) == ["completed"] * 2
    lines = read_lines(service)
    assert len(lines) == 12
    assert len({pid for pid, *_ in lines}) < len(lines)
    # The environment of one step does not reach the next one.
    marks = [[name for name in names if name in mark.split("/")] for _, mark in lines]
    assert sorted(marks) == sorted([[name] for name in names * 6])


def test_a_process_that_was_killed_takes_no_other_step(service: Service) -> None:
    gate = service.work / "gate"
    os.mkfifo(gate)
    waits = [*TELL, ["cat", "gate"]]
    script = service.script(done(run=TELL), done(run=waits), done("end", run=TELL), name="killed")
    name = service.enter(service.workflow(), script)
    service.event(name, "process", count=3)
    os.kill(int(service.state(name)["lease"]["pid"]), signal.SIGKILL)
    service.event(name, "crashed")
    gate.write_text("go on")
    assert service.ended(name) == ["completed"]
    _, (killed, _), *later = read_lines(service)
    assert len(later) == 2  # the same step once more, and the last one
    assert killed not in [pid for pid, _ in later]


def test_a_process_that_dies_before_it_reads_its_order_costs_the_thread_nothing(service: Service) -> None:
    script = service.script(done("end", run=TELL), name="idle")
    assert service.ended(service.enter(service.workflow(), script)) == ["completed"]
    ((idle, _),) = read_lines(service)
    with suppress(ProcessLookupError):  # on a busy machine it may have ended by now
        stop_between_writes(int(idle), service.home / "store.db")
    name = service.enter(service.workflow(), script)
    deadline = time.monotonic() + PATIENCE
    while service.status()["running"] == [] and service.thread_status(name) != "completed":
        assert time.monotonic() < deadline
    with suppress(ProcessLookupError):
        os.kill(int(idle), signal.SIGKILL)
    assert service.ended(name) == ["completed"]
    assert service.kinds(name) == ["queued", "started", "step", "completed"]
    assert idle not in [pid for pid, _ in read_lines(service)]


def test_what_a_role_in_python_does_to_its_process_reaches_no_other_step(service: Service) -> None:
    """Its code may change anything, so its process takes no further step."""
    body = """
import rolecall
assert "LEFT_BEHIND" not in os.environ and not hasattr(rolecall, "left_behind")
assert os.getcwd() != "/"
os.environ["LEFT_BEHIND"] = rolecall.left_behind = "yes"
os.chdir("/")
open(os.path.join(context.workdir, "told"), "a").write(f"{os.getpid()}\\n")
"""
    flow = role(service, "change-process", body, after='END if len(context.steps) == 3 else "worker"')
    assert outcome(service, flow) == ("completed", "")
    changed = [pid for (pid,) in read_lines(service)]
    assert len(set(changed)) == 3
    look = [["sh", "-c", "echo $PPID ${LEFT_BEHIND:-nothing} $(readlink /proc/$PPID/cwd) >> told"]]
    script = service.script(done(run=look), done("end", run=look), name="look")
    assert service.ended(service.enter(service.workflow(), script)) == ["completed"]
    for pid, left, folder in read_lines(service):
        assert pid not in changed
        assert (left, folder) == ("nothing", str(service.folder))


def test_a_process_that_an_agent_leaves_behind_ends_before_the_next_step(service: Service) -> None:
    hide = "env -i setsid sleep 600 > /dev/null 2>&1 < /dev/null & echo $! > hidden"
    look = "ps -o stat= -p $(cat hidden) | grep -v Z > left || true"
    script = service.script(
        done(run=[["sh", "-c", hide]]), done("end", run=[["sh", "-c", look]]), name="hides"
    )
    assert service.ended(service.enter(service.workflow(), script)) == ["completed"]
    assert (service.work / "left").read_text() == ""
    assert not is_living(int((service.work / "hidden").read_text()))


# -- what a step can do --


def test_a_role_that_a_workflow_plays_has_its_thread_in_the_same_process(service: Service) -> None:
    inner = STEPS.format(name="play-inside")
    flows = service.work / "workflows"
    flows.mkdir(exist_ok=True)
    (flows / "play-inside.yaml").write_text(inner)
    outer = service.workflow(
        "play-outside", STEPS.replace("goal: Work.", "goal: Work.\n    agent: workflow:play-inside")
    )
    config = service.home / "config.yaml"
    script = service.script(done(), done("end"), name="inner")
    config.write_text(f"agentOverrides: {{play-inside: {{worker: '{script}'}}}}\n")
    try:
        name = service.enter(outer, None)
        assert service.ended(name)[0] in ("completed", "suspended")
        (child,) = [ref.name[7:] for ref in service.store.refs("thread/") if ref.state.get("parent") == name]
        assert service.thread_status(child) == "completed", service.state(name).get("reason")
        assert [step.number for step in service.steps(child)] == [1, 2]
        # The name of the inner workflow is not a step's to give a new meaning to.
        assert service.store.ref("workflow/play-inside") is None
    finally:
        config.unlink()


def test_an_agent_without_a_memory_has_one_in_the_store_from_step_to_step(service: Service) -> None:
    """Two steps are two processes: the second one reads what the first one added to its session, and adds to it."""
    code = """
from rolecall import END, Reply, Role, Workflow

class Agent:
    name, can_resume = "forgetful", True

    async def __call__(self, prompt, context):
        session = context.session or f"memory-{context.thread}"
        context.memory.add(session, f"turn {len(context.memory.read(session)) + 1}")
        told = ", ".join(context.memory.read(session))
        return Reply(f"---\\n$status: done\\n---\\n{told}", session=session)

schema = {"type": "object", "properties": {"$status": {"type": "string"}}, "required": ["$status"]}
roles = {"worker": Role(Agent(), "Work.", schema, resume="persistent")}
workflow = Workflow("recall-turns", roles=roles, moderator=lambda context: END if len(context.steps) == 3 else "worker")
"""
    name = service.enter(service.python_workflow("recall-turns", code), None)
    assert service.ended(name) == ["completed"], service.state(name)
    assert [step.body.strip() for step in service.steps(name)] == [
        "turn 1",
        "turn 1, turn 2",
        "turn 1, turn 2, turn 3",
    ]


def test_a_thread_with_a_worktree_of_its_own_works_in_it(service: Service) -> None:
    repository = service.folder / "repository"
    repository.mkdir()
    author = ["-c", "user.name=T", "-c", "user.email=t@example.org"]
    for words in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "begin"]):
        subprocess.run(["git", *author, *words], cwd=repository, check=True)
    flow = service.workflow("change-tree", STEPS + "workdir: worktree\n")
    name = service.enter(
        flow,
        service.script(done("end", edit={"new.txt": "new"})),
        cwd=repository,
        work=str(service.home / "work"),
    )
    assert service.ended(name) == ["completed"]
    assert not (repository / "new.txt").exists()
    folder = Path(service.state(name)["folders"]["worktree"]["path"])
    assert (folder / "new.txt").read_text() == "new"
