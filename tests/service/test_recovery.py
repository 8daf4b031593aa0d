"""The service, its workers, its zygote and whole machines die; every thread goes on without a person."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from processes import stop_between_writes
from servicestage import PATIENCE, PROGRAM, STEPS, Service, done, gone, served

from rolecall.service import control, recovery
from rolecall.service.queue import Slot
from rolecall.store.files import FilesBackend
from rolecall.store.store import Store
from rolecall.threads import thread

REMEMBERS = """
import json, os, subprocess
from pathlib import Path
from rolecall import END, Reply, Role, ThreadContext, Workflow

class Agent:
    '''Notes in which session it is called, and the first time does not come back from a program it starts.'''

    name, can_resume = "remembers", True

    async def __call__(self, prompt, context):
        calls = Path(context.workdir, "calls")
        with open(calls, "a") as file:
            file.write(json.dumps([len(context.steps), context.session, context.attempt]) + "\\n")
        session = context.session or f"session-{len(context.steps)}"
        context.emit("session", {"session": session})
        if len(context.steps) == 1 and len(calls.read_text().splitlines()) < 2 + int(context.start):
            from rolecall.agents import process
            await process.run(
                ["sleep", "600"], cwd=context.workdir, env=context.env, cancel=context.cancel,
                on_start=lambda child: context.emit("process", {"pid": child.pid, "run": child.run}),
            )
        return Reply("---\\n$status: done\\n---\\nDid it.", session=session)

def moderator(context):
    return END if len(context.steps) == 3 else "worker"

schema = {"type": "object", "properties": {"$status": {"type": "string"}}, "required": ["$status"]}
workflow = Workflow("keep-on", roles={"worker": Role(Agent(), "Work.", schema)}, moderator=moderator)
"""


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with served(tmp_path, "--concurrency", "3") as service:
        yield service


def worker_of(service: Service, name: str) -> int:
    return int(service.state(name)["lease"]["pid"])


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    gone(pid)


def kill_service(service: Service, _worker: int) -> None:
    service.kill()


def kill_worker(_service: Service, worker: int) -> None:
    kill(worker)


def kill_zygote(service: Service, _worker: int) -> None:
    kill(service.status()["zygote"])


def kill_all(service: Service, worker: int) -> None:
    """As a power cut does, or the kernel when memory runs out: nobody has time for anything."""
    zygote = service.status()["zygote"]
    service.kill()
    for pid in (zygote, worker):
        with suppress(ProcessLookupError):  # it has found out already
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("crash", [kill_service, kill_worker, kill_zygote, kill_all])
def test_after_a_kill_the_thread_goes_on_in_the_session_its_agent_had(
    service: Service, crash: Callable[[Service, int], None]
) -> None:
    flow = service.python_workflow("keep-on", REMEMBERS)
    name = service.enter(flow, None, prompt="1")
    agent = int(service.event(name, "process")["pid"])
    worker = worker_of(service, name)
    crash(service, worker)
    if service.process is None:
        service.start("--concurrency", "3")
    assert service.ended(name) == ["completed"]
    gone(worker)
    gone(agent)
    assert (service.work / "calls").read_text().splitlines() == [
        "[0, null, 0]",
        "[1, null, 0]",
        '[1, "session-1", 1]',  # in the session it had, and knowing that it was tried before
        "[2, null, 0]",
    ]
    assert service.kinds(name) == ["queued", "started", "step", "crashed", "step", "step", "completed"]
    assert [step.number for step in service.steps(name)] == [1, 2, 3]
    service.stop()
    service.assert_clean()


def test_a_service_that_is_killed_takes_its_workers_and_their_agents_with_it(service: Service) -> None:
    """Nobody may start it again: what it ran must not go on alone, and cost."""
    name = service.enter(service.workflow(), service.script(done("end", run=[["sleep", "600"]])))
    agent = int(service.event(name, "process")["pid"])
    worker = worker_of(service, name)
    service.kill()
    gone(worker)
    gone(agent)
    for pid in service.processes():
        gone(pid)
    assert service.thread_status(name) == "running"  # nobody was left to write it down


def test_threads_that_wait_and_threads_that_run_are_all_there_after_a_kill(service: Service) -> None:
    flow = service.workflow()
    hangs = service.script({"hang": True, "again": [done("end")]}, name="hangs")
    running = [service.enter(flow, hangs) for _ in range(3)]
    for name in running:
        service.event(name, "step_started")
    waiting = [service.enter(flow, service.script(done("end"))) for _ in range(5)]
    service.kill()
    assert [service.thread_status(name) for name in waiting] == ["queued"] * 5
    service.start("--concurrency", "3")
    assert service.ended(*running, *waiting) == ["completed"] * 8
    started = [event.stream for event in service.store.events() if event.kind == "started"]
    assert sorted(started) == sorted([*running, *waiting])  # each once
    assert [name for name in started if name in waiting] == waiting
    service.stop()
    service.assert_clean()


def test_a_thread_whose_step_dies_three_times_is_left_to_a_person_who_can_let_it_go_on(
    service: Service,
) -> None:
    agent = service.script({"hang": True, "again": [{"hang": True}, {"hang": True}, done("end")]})
    name = service.enter(service.workflow(), agent)
    for number in (1, 2, 3):
        service.event(name, "step_started", count=number)
        kill(worker_of(service, name))
    assert service.ended(name) == ["suspended"], service.events(name)
    reason = "its step crashed 3 times, last: its worker was ended by SIGKILL"
    assert service.state(name)["reason"] == reason
    shown = service.rolecall("thread", "show", name, "--format", "text").stdout
    assert reason in shown
    assert service.rolecall("thread", "resume", name).returncode == 0
    assert service.ended(name) == ["completed"]


def test_crashes_are_counted_for_one_step_and_forgotten_with_the_next(service: Service) -> None:
    entry = {"hang": True, "again": [{"hang": True}, done()]}
    last = {"hang": True, "again": [{"hang": True}, done("end")]}
    name = service.enter(service.workflow(), service.script(entry, last))
    for number in (1, 2, 4, 5):  # the third and the sixth come to their ends
        service.event(name, "step_started", count=number)
        kill(worker_of(service, name))
    assert service.ended(name) == ["completed"]
    counts = [event.body["count"] for event in service.events(name) if event.kind == "crashed"]
    assert counts == [1, 2, 1, 2]
    assert not {"crashes", "losses"} & set(service.state(name)["service"])


def test_an_agent_that_is_killed_is_a_crash_and_is_tried_again(service: Service) -> None:
    blocks = {"run": [["sleep", "600"]]}
    name = service.enter(service.workflow(), service.script({**done(), **blocks, "again": [done("end")]}))
    kill(int(service.event(name, "process")["pid"]))
    assert service.ended(name) == ["completed"]
    assert service.kinds(name) == ["queued", "started", "crashed", "step", "completed"]
    crash = next(event for event in service.events(name) if event.kind == "crashed")
    assert "was ended by SIGKILL" in crash.body["reason"]


def test_an_agent_that_is_killed_every_time_leaves_the_thread_to_a_person(service: Service) -> None:
    kills_itself = {"run": [["sh", "-c", "kill -9 $$"]]}
    name = service.enter(service.workflow(), service.script({**done(), **kills_itself}))
    assert service.ended(name) == ["suspended"]
    assert service.kinds(name) == ["queued", "started", *["crashed"] * 3, "suspended"]
    assert service.state(name)["reason"].startswith("its step crashed 3 times, last: ")
    assert service.store.backend.names("slot/") == []


def test_an_agent_that_fails_by_itself_is_no_crash(service: Service) -> None:
    name = service.enter(service.workflow(), service.script({**done(), "run": [["false"]]}))
    assert service.ended(name) == ["suspended"]
    assert service.kinds(name) == ["queued", "started", "suspended"]


def test_attempts_that_failed_are_shown_in_the_order_in_which_they_were_made(service: Service) -> None:
    fails = {**done(), "run": [["sh", "-c", "echo once >> tries; exit $((3 + $(wc -l < tries)))"]]}
    name = service.enter(service.workflow(), service.script(fails))
    assert service.ended(name) == ["suspended"]
    assert service.rolecall("thread", "resume", name).returncode == 0
    service.event(name, "suspended", count=2)
    shown = service.rolecall("thread", "show", name, "--format", "text").stdout
    failed = [line for line in shown.splitlines() if line.startswith("failed attempt")]
    assert [re.findall("status ([0-9])", line) for line in failed] == [["4"], ["5"]]


SLOW_GIT = """#!/bin/sh
case "$*" in *"worktree add"*) echo there > "$REACHED"; exec sleep 600;; esac
exec "$GIT" "$@"
"""


def test_a_thread_whose_maker_dies_before_its_folders_are_there_is_run_all_the_same(service: Service) -> None:
    """It is queued when it is made, waits for its folders, and does not wait for the dead."""
    repository = service.folder / "repository"
    repository.mkdir()
    author = ["-c", "user.name=T", "-c", "user.email=t@example.org"]
    for words in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "begin"]):
        subprocess.run(["git", *author, *words], cwd=repository, check=True)
    service.workflow("change-tree", STEPS + "workdir: worktree\n")
    slow = service.folder / "bin"
    slow.mkdir()
    (slow / "git").write_text(SLOW_GIT)
    (slow / "git").chmod(0o755)
    reached = service.folder / "reached"
    os.mkfifo(reached)
    env = {
        **service.env,
        "PATH": f"{slow}:{os.environ['PATH']}",
        "GIT": str(shutil.which("git")),
        "REACHED": str(reached),
    }
    agent = service.script(done("end", edit={"new.txt": "new"}))
    words = ["run", "change-tree", "-p", "Do it", "--detach", "--agent", agent, "--cwd", str(repository)]
    maker = subprocess.Popen([PROGRAM, *words], env=env, cwd=service.folder)
    reached.read_text()  # until its folder is about to be made
    (name,) = [ref.name[7:] for ref in service.store.refs("thread/")]
    other = service.enter(service.workflow(), service.script(done("end"), name="other"))
    assert service.ended(other) == ["completed"]
    assert service.thread_status(name) == "queued"
    maker.kill()
    maker.wait(PATIENCE)
    control.poke(str(service.home), name)
    assert service.ended(name) == ["completed"]
    folder = service.state(name)["folders"]["worktree"]["path"]
    assert Path(folder, "new.txt").read_text() == "new"


def leased(service: Service, name: str, **lease: object) -> None:
    """Let a thread look as if a process had it."""
    ref = thread.find(service.store, name)
    service.store.move(
        ref.ref.name, ref.ref, ref.head, {**ref.ref.state, "status": "running", "lease": lease}
    )


def admitted(service: Service) -> str:
    """A thread that has a slot and was never run."""
    name = service.enter(service.workflow(), service.script(done("end")))
    state = service.state(name)
    entry = service.store.ref(service.store.backend.names("queue/")[0])
    ref = thread.find(service.store, name)
    draft = service.store.draft()
    assert entry is not None
    draft.move(entry.name, entry)
    draft.move(thread.slot_name(state["name"], name), None, state={"since": 1})
    draft.move(ref.ref.name, ref.ref, ref.head, {**state, "status": "idle"})
    draft.commit()
    return name


@pytest.fixture
def asleep(tmp_path: Path) -> Iterator[Service]:
    """A home whose service is not started yet."""
    service = Service(tmp_path)
    yield service
    service.close()


OF_ANOTHER_BOOT = {"host": f"{os.uname().nodename}/of-another-boot/1", "pid": os.getpid(), "born": "1"}


def test_after_a_reboot_a_thread_is_taken_up_at_once(asleep: Service) -> None:
    """The machine has forgotten every process of before, and nobody else can have the store open."""
    name = admitted(asleep)
    leased(asleep, name, **OF_ANOTHER_BOOT, token="t", deadline=asleep.store.now() + 600_000)
    asleep.start()
    assert asleep.ended(name) == ["completed"]
    assert asleep.kinds(name) == ["queued", "crashed", "step", "completed"]


def test_where_machines_may_share_a_store_the_lease_of_another_boot_runs_out_first(tmp_path: Path) -> None:
    """It may be that of another machine with the same name."""
    now = 1_000_000
    store = Store(FilesBackend(str(tmp_path / "store")), now=lambda: now)
    slot = Slot("do-steps", thread.new_thread_id(now), now)
    lease = {**OF_ANOTHER_BOOT, "token": "t", "deadline": now + 1}
    state = {"status": "running", "name": "do-steps", "workflow": "0" * 13, "lease": lease}
    store.move(thread.ref_name(slot.thread), None, store.put_text("start"), state)
    held = asyncio.run(recovery.take_up(store, slot))
    assert (held.became, held.head, held.is_trouble) == ("is held", "", True)
    now += 1
    ready = asyncio.run(recovery.take_up(store, slot))
    assert ready.head == thread.find(store, slot.thread).head != ""


def test_a_process_number_that_belongs_to_somebody_else_by_now_is_no_holder(asleep: Service) -> None:
    from rolecall.store import holder

    name = admitted(asleep)
    leased(
        asleep, name, **{**holder.identify_self("t"), "born": "1", "deadline": asleep.store.now() + 60_000}
    )
    asleep.start()
    assert asleep.ended(name) == ["completed"]


def test_a_thread_that_another_process_runs_by_hand_is_left_to_it_until_it_lets_go(asleep: Service) -> None:
    name = admitted(asleep)
    fifo = asleep.work / "gate"
    os.mkfifo(fifo)
    agent = asleep.script(done(run=[["cat", "gate"]]), done("end"), name="by-hand")
    by_hand = asleep.spawn("thread", "run", name, "--agent", agent, "--steps", "1", "--json")
    assert by_hand.stdout is not None
    for line in by_hand.stdout:  # until its agent runs
        if '"process"' in line:
            break
    asleep.start()
    assert asleep.until(lambda: asleep.status()["running"])[0]["pid"] is None
    fifo.write_text("go on")
    by_hand.communicate(timeout=PATIENCE)
    assert asleep.ended(name) == ["completed"]
    assert [step.number for step in asleep.steps(name)] == [1, 2]
    assert "crashed" not in asleep.kinds(name)


def test_a_person_who_takes_over_a_thread_before_the_service_sees_that_its_worker_died_keeps_it(
    service: Service,
) -> None:
    name = service.enter(service.workflow(), service.script({"hang": True}))
    service.event(name, "step_started")
    assert service.process is not None
    stop_between_writes(service.process.pid, service.home / "store.db")
    kill(worker_of(service, name))

    fifo = service.work / "gate"
    os.mkfifo(fifo)
    agent = service.script(done("end", run=[["cat", "gate"]]), name="by-hand")
    by_hand = service.spawn("thread", "run", name, "--agent", agent, "--steps", "1", "--json")
    assert by_hand.stdout is not None
    for line in by_hand.stdout:  # until its agent runs
        if '"process"' in line:
            break
    os.kill(service.process.pid, signal.SIGCONT)
    service.until(lambda: service.status()["running"][0]["pid"] is None)
    fifo.write_text("go on")
    _, errors = by_hand.communicate(timeout=PATIENCE)
    assert by_hand.returncode == 0, errors
    assert service.ended(name) == ["completed"]
    assert "crashed" not in service.kinds(name)


@pytest.mark.parametrize("status", ["completed", "killed", "suspended"])
def test_a_slot_whose_thread_needs_it_no_longer_goes_at_the_start(asleep: Service, status: str) -> None:
    name = admitted(asleep)
    ref = thread.find(asleep.store, name)
    asleep.store.move(ref.ref.name, ref.ref, ref.head, {**ref.ref.state, "status": status})
    other = asleep.enter(asleep.workflow(), asleep.script(done("end")))
    asleep.start()
    assert asleep.ended(other) == ["completed"]
    asleep.stop()
    assert asleep.store.backend.names("slot/") == []
    assert asleep.thread_status(name) == status


def test_a_socket_and_a_lock_left_behind_by_a_killed_service_hinder_nobody(service: Service) -> None:
    service.kill()
    assert (service.home / "service.sock").exists()
    assert control.find_service(str(service.home)) is None
    result = service.rolecall("serve", "status")
    assert result.returncode == 1
    service.start()
    name = service.enter(service.workflow(), service.script(done("end")))
    assert service.ended(name) == ["completed"]
