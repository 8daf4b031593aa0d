"""A store that refuses the service a write, whichever it is: no agent is left at work, nothing that was stored is asked
for again, and every thread goes on by itself once there is room."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import refuser
from disk_fixture import fill_up
from fakeagent import executable
from servicestage import PATIENCE, STEPS, Service, gone

from rolecall.settings import stores
from rolecall.threads import thread

MOST = 400
"""More writes than the service makes for two steps, in files of its own each."""


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    service = Service(tmp_path)
    yield service
    service.close()


def agent(folder: Path, name: str) -> str:
    """A command that leaves a trace of its calls, and a process that goes on unless it is ended."""
    place = folder / name
    script = f"""
        sleep 300 > /dev/null 2>&1 &
        echo $$ $! >> {place}.pids
        cat > /dev/null
        echo call >> {place}.calls
        end=$(grep -c call {place}.calls)
        printf -- '---\\n$status: %s\\n---\\nThe report.\\n' $([ $end -ge 2 ] && echo end || echo done)
    """
    return f"command:{executable(place, script)}"


def check_agents_gone(place: Path) -> None:
    for pid in place.with_suffix(".pids").read_text().split():
        gone(int(pid))


@pytest.mark.parametrize(("kind", "stride"), [("sqlite", 1), ("files", 7)])
def test_a_refused_write_of_the_service_costs_no_thread_and_leaves_no_agent(
    service: Service, kind: str, stride: int
) -> None:
    url = f"files:{service.folder / 'store'}" if kind == "files" else str(service.home / "store.db")
    service._store = stores.open_store(url)
    refuse = service.folder / "refuse"
    service.program = [sys.executable, refuser.__file__]
    service.env["REFUSE"] = str(refuse)
    flow = service.workflow()
    service.start("--store", url)
    for number in range(1, MOST, stride):
        draft = service.folder / "draft"
        draft.write_text(str(number))
        draft.rename(refuse)
        name = service.enter(flow, agent(service.folder, f"agent{number}"))
        assert service.ended(name) == ["completed"], (number, service.state(name), service.log())
        steps = service.steps(name)
        assert [step.number for step in steps] == list(range(1, len(steps) + 1)), number
        assert service.store.ref(thread.attempt_name(name)) is None
        check_agents_gone(service.folder / f"agent{number}")
        calls = (service.folder / f"agent{number}.calls").read_text().split()
        assert 2 <= len(calls) <= 3, (number, calls)
        if refuse.exists():  # there are no more writes to refuse
            break
    else:
        raise AssertionError("the service never came to an end of its writes")
    assert number > 10
    refuse.unlink()
    service.stop()
    service.assert_clean()


def test_a_service_on_a_full_disk_ends_its_agents_and_goes_on_when_there_is_room(
    small_disk: Path, tmp_path: Path
) -> None:
    service = Service(tmp_path)
    service.home.rmdir()
    service.home.symlink_to(small_disk)
    asked, go, speech = (tmp_path / name for name in ("asked", "go", "speech"))
    os.mkfifo(asked)
    os.mkfifo(go)
    speech.write_text("---\n$status: end\n---\n" + "x" * 10_000)
    program = executable(tmp_path / "agent", f"cat > /dev/null; echo $$ > {asked}; cat {go}; cat {speech}")
    try:
        flow = service.workflow(text=STEPS)
        service.start()
        name = service.enter(flow, f"command:{program}")
        pid = int(asked.read_text())
        ballast = fill_up(small_disk)
        go.write_text("")
        gone(pid)

        deadline = time.monotonic() + PATIENCE
        while "no room" not in service.status()["running"][0].get("trouble", ""):  # no event can tell of it
            assert time.monotonic() < deadline, service.log()
        assert [pid for pid in service.processes() if pid_runs(pid, program)] == []
        ballast.unlink()
        asked.read_text()
        go.write_text("")
        assert service.ended(name) == ["completed"]
        assert len(service.steps(name)) == 1
        service.stop()
        service.assert_clean()
    finally:
        service.close()


def pid_runs(pid: int, program: Path) -> bool:
    try:
        return str(program).encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:  # it has ended since
        return False
