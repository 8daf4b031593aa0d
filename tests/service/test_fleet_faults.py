"""Machines that die, are cut off or have no room: every thread comes to its end, each step happens once, and no thread
is ever run by two."""

from __future__ import annotations

import os
import random
import signal
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fleetstage import (
    AT_WORK,
    CLOCK,
    HAS_HOST_NAMES,
    HAS_MOUNTS,
    HAS_NETWORKS,
    LEASE,
    Fleet,
    Host,
    assert_one_after_the_other,
    fleet_in,
    spells,
)
from servicestage import PATIENCE, done

from rolecall.agents.process import add_mark
from rolecall.service.fleet import machines, serving
from rolecall.threads import thread

THREADS, STEPS, FAULTS = (12, 6, 6) if "SOAK" in os.environ else (8, 4, 4)
ALONE = "flock --nonblock -E 99 .lock {}; test $? != 99 || {{ echo two at once >> ../twice; sleep 1; }}"
"""A command that tells when another of the same thread is still at work. One that is killed is no such case, though
the shell around it may outlive it for a moment."""

faults = pytest.mark.parametrize(
    "fault",
    [
        "killed",
        pytest.param(
            "cut off",
            marks=pytest.mark.skipif(not HAS_HOST_NAMES, reason="needs host names of the machines' own"),
        ),
        pytest.param(
            "without a network",
            marks=pytest.mark.skipif(not HAS_NETWORKS, reason="needs networks of the machines' own"),
        ),
    ],
)


def problems(fleet: Fleet, name: str) -> dict[str, str]:
    """What the fleet's status says is wrong with a machine."""
    result = machines.status(fleet.store)["machines"]
    found: dict[str, str] = next(one["problems"] for one in result if one["machine"] == name)
    return found


@faults
def test_a_machine_that_is_gone_in_mid_step_is_replaced_and_never_joined(
    tmp_path: Path, postgres_server: Any, fault: str
) -> None:
    with fleet_in(tmp_path, str(postgres_server.get_uri())) as fleet:
        fleet.lease = LEASE
        hosts = fleet.started("alpha", "beta", has_network=fault == "without a network")
        place = fleet.work / "thread"
        place.mkdir()
        hold = ALONE.format(f"sh -c '{AT_WORK}; while sleep 0.1; do {AT_WORK}; done'")
        goes_on = ALONE.format(f"sh -c '{AT_WORK}; sleep 0.1; {AT_WORK}'")
        first = done(run=[["sh", "-c", hold]], session="s-1")
        second = done("end", run=[["sh", "-c", goes_on]], session="s-1")
        name = fleet.enter(fleet.agent({**first, "again": [second]}), cwd=place)
        fleet.until(lambda: (place / "at-work").exists() and spells(place))
        lost = next(host for host in hosts if str(host.home) == spells(place)[0][2])
        lost.kill() if fault == "killed" else lost.cut()
        assert fleet.ended(name) == ["completed"], fleet.describe_state()
        fleet.assert_whole(name, steps=1)
        assert [home for _, _, home in spells(place)[1:]] == [
            str(host.home) for host in hosts if host is not lost
        ]
        assert_one_after_the_other(place)
        assert not (fleet.work / "twice").exists()
        assert fleet.kinds(name) == ["queued", "started", "crashed", "step", "completed"]
        _comes_back(fleet, lost, is_cut=fault != "killed")


def _comes_back(fleet: Fleet, lost: Host, *, is_cut: bool) -> None:
    """The machine that was gone takes work again, alone when it has to."""
    lost.mend() if is_cut else _restarted(lost)
    for host in fleet.hosts.values():
        if host is not lost:
            host.stop()
    name = fleet.enter(fleet.agent(done("end")))
    assert fleet.ended(name) == ["completed"], fleet.describe_state()
    fleet.assert_left_clean()


def _restarted(lost: Host) -> None:
    """Started again, it first ends what has outlived it: another machine has had the thread long since."""
    env = add_mark(dict(os.environ), serving.mark_of(str(lost.home)))
    outlived = subprocess.Popen(["sleep", "600"], env=add_mark(env, "01M7FZN8RK4F9ZZYY2432GNSMQ"))
    lost.start()
    assert outlived.wait(PATIENCE) == -signal.SIGTERM


@pytest.mark.skipif(not HAS_HOST_NAMES, reason="needs host names of the machines' own")
def test_what_a_machine_that_was_cut_off_has_to_say_afterwards_becomes_no_step(
    tmp_path: Path, postgres_server: Any
) -> None:
    """Its agent answers while nothing can be written down, and when it can be, another machine has taken the step."""
    with fleet_in(tmp_path, str(postgres_server.get_uri())) as fleet:
        fleet.lease = LEASE
        hosts = fleet.started("alpha", "beta")
        answers = f"{AT_WORK}; while ! test -e answer; do sleep 0.05; done; touch answered"
        first = done(run=[["sh", "-c", answers]], body="From the machine that was cut off.")
        second = done("end", run=[["sh", "-c", AT_WORK]], body="From the other.")
        name = fleet.enter(fleet.agent({**first, "again": [second]}))
        fleet.until(lambda: (fleet.work / "at-work").exists() and spells(fleet.work))
        lost = next(host for host in hosts if str(host.home) == spells(fleet.work)[0][2])
        lost.cut()
        (fleet.work / "answer").touch()
        fleet.until((fleet.work / "answered").exists)
        assert fleet.ended(name) == ["completed"], fleet.describe_state()
        lost.mend()
        fleet.until(lambda: lost.rolecall("fleet", "status").returncode == 0)
        after = fleet.enter(fleet.agent(done("end"), name="after"))
        assert fleet.ended(after) == ["completed"]
        fleet.assert_whole(name, steps=1)
        output = lost.rolecall("thread", "read", name).stdout
        assert "From the other." in output and "From the machine that was cut off." not in output
        assert fleet.kinds(name) == ["queued", "started", "crashed", "step", "completed"]
        fleet.assert_left_clean()


@pytest.mark.skipif(not HAS_HOST_NAMES, reason="needs host names of the machines' own")
def test_a_machine_whose_clock_is_set_in_mid_step_keeps_its_thread_and_promises_no_more_than_before(
    tmp_path: Path, postgres_server: Any
) -> None:
    with fleet_in(tmp_path, str(postgres_server.get_uri())) as fleet:
        fleet.lease = LEASE
        (tmp_path / "sitecustomize.py").write_text(CLOCK)
        hosts = [fleet.host(name) for name in ("alpha", "beta")]
        for host in hosts:
            host.env |= {"PYTHONPATH": str(tmp_path), "TEST_CLOCK": str(host.folder / "clock")}
            host.start()
        holds = f"{AT_WORK}; while ! test -e answer; do sleep 0.05; done; {AT_WORK}"
        name = fleet.enter(fleet.agent(done("end", run=[["sh", "-c", holds]])))
        fleet.until(lambda: (fleet.work / "at-work").exists() and spells(fleet.work))
        holder = next(host for host in hosts if str(host.home) == spells(fleet.work)[0][2])

        def promised() -> int:
            lease = thread.find(fleet.store, name).state.lease or {}
            return int(lease.get("deadline", 0))

        def is_renewed_or_lost(before: int) -> bool:
            return promised() > before + LEASE * 1500 or "crashed" in fleet.kinds(name)

        for seconds in (-3600, 3600):
            (holder.folder / "clock").write_text(str(seconds))
            fleet.until(partial(is_renewed_or_lost, promised()))
            assert promised() < fleet.store.now() + LEASE * 1000 + 30_000
        (fleet.work / "answer").touch()
        assert fleet.ended(name) == ["completed"], fleet.describe_state()
        assert fleet.kinds(name) == ["queued", "started", "step", "completed"]
        assert [home for _, _, home in spells(fleet.work)] == [str(holder.home)]


def test_threads_end_and_no_step_is_lost_or_doubled_while_machines_die_and_are_cut_off(
    tmp_path: Path, postgres_server: Any
) -> None:
    chance = random.Random(20260101)
    with fleet_in(tmp_path, str(postgres_server.get_uri())) as fleet:
        fleet.lease = LEASE
        fleet.options = ("--concurrency", "9")
        hosts = fleet.started("alpha", "beta", "gamma", slots=3)
        works = f"sh -c '{AT_WORK}; sleep 0.1; {AT_WORK}; sleep 0.1; {AT_WORK}'"
        step: dict[str, Any] = {"run": [["sh", "-c", ALONE.format(works)]]}
        agent = fleet.agent(*[done(**step)] * (STEPS - 1), done("end", **step))
        places = [fleet.work / f"of-{number}" for number in range(THREADS)]
        for place in places:
            place.mkdir()
        names = [fleet.enter(agent, cwd=place) for place in places]
        cut: Host | None = None
        for fault in range(FAULTS):
            share = THREADS * STEPS // (FAULTS + 2)
            fleet.until(lambda so_far=share * (fault + 1): _steps(fleet) >= so_far)  # type: ignore[misc]
            if cut is not None:
                cut.mend()
            host = chance.choice([host for host in hosts if host is not cut])
            cut = host if fault % 2 and HAS_HOST_NAMES else None
            if cut is not None:
                cut.cut()
            else:
                host.kill()
                host.begin()
        if cut is not None:
            cut.mend()
        assert fleet.ended(*names, patience=3 * PATIENCE) == ["completed"] * THREADS, fleet.describe_state()
        fleet.assert_whole(*names, steps=STEPS)
        for place in places:
            assert_one_after_the_other(place)
        assert not (fleet.work / "twice").exists()
        assert not [host.name for host in hosts if "Traceback" in host.output()], fleet.describe_state()
        fleet.assert_left_clean()


def _steps(fleet: Fleet) -> int:
    return sum(int(ref.state.get("steps", 0)) for ref in fleet.store.refs("thread/"))


@pytest.mark.skipif(not HAS_MOUNTS, reason="needs mounts of the machine's own")
def test_a_machine_whose_disk_is_full_takes_no_work_and_says_so_until_there_is_room(
    tmp_path: Path, postgres_server: Any
) -> None:
    with fleet_in(tmp_path, str(postgres_server.get_uri())) as fleet:
        alpha, beta = fleet.host("alpha"), fleet.host("beta")
        alpha.disk_mb, alpha.is_own_child = 200, True
        for host in (alpha, beta):
            host.begin()
        for host in (alpha, beta):
            host.joined()
        alpha.fill_disk()
        message = f"no work is taken: {alpha.home} has 0 MB left on its disk"
        fleet.until(lambda: problems(fleet, "alpha") == {"disk": message})  # the disk takes a moment to fill
        assert message in beta.rolecall("fleet", "status", "--format", "text").stdout
        say = done("end", run=[["sh", "-c", "echo $MACHINE_HOME >> homes"]])
        names = [fleet.enter(fleet.agent(say)) for _ in range(4)]
        assert fleet.ended(*names) == ["completed"] * 4
        assert set((fleet.work / "homes").read_text().split()) == {str(beta.home)}
        alpha.empty_disk()
        fleet.until(lambda: problems(fleet, "alpha") == {})
        beta.stop()
        name = fleet.enter(fleet.agent(say))
        assert fleet.ended(name) == ["completed"]
        assert str(alpha.home) in (fleet.work / "homes").read_text().split()
