"""Machines that die, are cut off or have no room: every thread comes to its end, each step happens once, and no thread
is ever run by two."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import pytest
from fleetstage import HAS_HOST_NAMES, HAS_MOUNTS, HAS_NETWORKS, LEASE, Fleet, Host, fleet_in
from servicestage import PATIENCE, done

from rolecall.service.fleet import machines

ALONE = "flock --nonblock .lock {} || {{ echo two at once >> ../twice; sleep 1; }}"
"""A command that tells when another of the same thread is still at work."""

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
    told = machines.status(fleet.store)["machines"]
    found: dict[str, str] = next(one["problems"] for one in told if one["machine"] == name)
    return found


@faults
def test_a_machine_that_is_gone_in_mid_step_is_replaced_within_its_lease_and_never_joined(
    tmp_path: Path, postgres_server: Any, fault: str
) -> None:
    with fleet_in(tmp_path, str(postgres_server.get_uri())) as fleet:
        hosts = [fleet.host(name, has_network=fault == "without a network") for name in ("alpha", "beta")]
        for host in hosts:
            host.begin()
        for host in hosts:
            host.joined()
        place = fleet.work / "thread"
        place.mkdir()
        hold = "sh -c 'echo $ROLECALL_HOME >> began; exec sleep 600'"
        goes_on = ALONE.format("sh -c 'echo $ROLECALL_HOME >> began'")
        first = done(run=[["sh", "-c", ALONE.format(hold)]], session="s-1")
        second = done("end", run=[["sh", "-c", goes_on]], session="s-1")
        name = fleet.enter(fleet.agent({**first, "again": [second]}), cwd=place)
        began = place / "began"
        fleet.until(lambda: began.exists() and began.read_text().strip())
        lost = next(host for host in hosts if str(host.home) == began.read_text().strip())
        at = time.monotonic()
        lost.kill() if fault == "killed" else lost.cut()
        assert fleet.ended(name) == ["completed"], fleet.told()
        # Its lease, what it takes to notice, and the patience that a busy machine asks of a test.
        assert time.monotonic() - at < LEASE + 20
        fleet.assert_whole(name, steps=1)
        assert began.read_text().split()[1:] == [str(host.home) for host in hosts if host is not lost]
        assert not (fleet.work / "twice").exists()
        assert fleet.kinds(name) == ["queued", "started", "crashed", "step", "completed"]
        _comes_back(fleet, lost, is_cut=fault != "killed")


def _comes_back(fleet: Fleet, lost: Host, *, is_cut: bool) -> None:
    """The machine that was gone takes work again, alone when it has to."""
    lost.mend() if is_cut else lost.start()
    for host in fleet.hosts.values():
        if host is not lost:
            host.stop()
    name = fleet.enter(fleet.agent(done("end")))
    assert fleet.ended(name) == ["completed"], fleet.told()


def test_threads_end_and_no_step_is_lost_or_doubled_while_machines_die_and_are_cut_off(
    tmp_path: Path, postgres_server: Any
) -> None:
    chance = random.Random(20260101)
    with fleet_in(tmp_path, str(postgres_server.get_uri())) as fleet:
        fleet.options = ("--concurrency", "9")
        hosts = fleet.started("alpha", "beta", "gamma", slots=3)
        step: dict[str, Any] = {"run": [["sh", "-c", ALONE.format("sleep 0.2")]]}
        agent = fleet.agent(*[done(**step)] * 5, done("end", **step))
        names = []
        for number in range(12):
            (fleet.work / f"of-{number}").mkdir()
            names.append(fleet.enter(agent, cwd=fleet.work / f"of-{number}"))
        cut: Host | None = None
        for fault in range(6):
            fleet.until(lambda so_far=9 * (fault + 1): _steps(fleet) >= so_far)  # type: ignore[misc]
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
        assert fleet.ended(*names, patience=2 * PATIENCE) == ["completed"] * 12, fleet.told()
        fleet.assert_whole(*names, steps=6)
        assert not (fleet.work / "twice").exists()
        assert not [host.name for host in hosts if "Traceback" in host.output()], fleet.told()


def _steps(fleet: Fleet) -> int:
    return sum(int(ref.state.get("steps", 0)) for ref in fleet.store.refs("thread/"))


@pytest.mark.skipif(not HAS_MOUNTS, reason="needs mounts of the machine's own")
def test_a_machine_whose_disk_is_full_takes_no_work_and_says_so_until_there_is_room(
    tmp_path: Path, postgres_server: Any
) -> None:
    with fleet_in(tmp_path, str(postgres_server.get_uri())) as fleet:
        alpha, beta = fleet.host("alpha"), fleet.host("beta")
        alpha.disk_mb = 60
        alpha.begin()
        beta.begin()
        alpha.joined()
        beta.joined()
        fleet.until(lambda: problems(fleet, "alpha"))
        assert f"no work is taken: {alpha.home} has 6" in problems(fleet, "alpha")["disk"]
        say = done("end", run=[["sh", "-c", "echo $ROLECALL_HOME >> homes"]])
        names = [fleet.enter(fleet.agent(say)) for _ in range(4)]
        assert fleet.ended(*names) == ["completed"] * 4
        assert set((fleet.work / "homes").read_text().split()) == {str(beta.home)}
        alpha.set_disk(300)
        fleet.until(lambda: problems(fleet, "alpha") == {})
        beta.stop()
        name = fleet.enter(fleet.agent(say))
        assert fleet.ended(name) == ["completed"]
        assert str(alpha.home) in (fleet.work / "homes").read_text().split()
