"""The service sends steps to a collector, and one that is away costs a note and nothing else."""

from __future__ import annotations

from pathlib import Path
from threading import Event, Timer
from typing import TYPE_CHECKING

import pytest
from collector import collecting
from servicestage import PATIENCE, Service, done

from rolecall.settings import stores
from rolecall.settings.mask import Mask
from rolecall.settings.settings import Collector
from rolecall.traces import otlp
from rolecall.traces.follow import Follower

if TYPE_CHECKING:
    from conftest import Rolecall

ONE = """
name: one
roles: {writer: {prompt: Write., schema: {type: object}, agent: 'command:printf %s ---\\n---\\nHello'}}
graph: {$START: writer, writer: {_: {role: $END}}}
"""


def wait_for_line(service: Service, text: str) -> None:
    """Follow the service's log until a line contains a text."""
    following = service.spawn("serve", "logs", "-f", "--lines", "1000")
    timer = Timer(PATIENCE, following.kill)
    timer.start()
    try:
        assert following.stdout is not None
        assert any(text in line for line in following.stdout), service.log()
    finally:
        timer.cancel()
        following.kill()
        following.communicate()


def test_a_collector_that_was_away_gets_every_step_even_after_a_restart(tmp_path: Path) -> None:
    with collecting() as first:
        port, url = first.port, first.url
    service = Service(tmp_path)
    (service.home / "config.yaml").write_text(f"traces: {{otlp: '{url}'}}\n")
    try:
        Follower(service.store, Collector(url), Mask([]), print).look()  # from now on nothing is missed
        service.start()
        flow, agent = service.workflow(), service.script(done(), done("end"))
        service.ended(service.enter(flow, agent))  # nobody listens, and the thread has ended all the same
        wait_for_line(service, "cannot be reached")
        assert "traces" in service.status()["problems"]
        service.kill()
        service.start()
        with collecting(port) as collector:
            collector.wait("invoke_workflow do-steps")
            assert sorted(span.name for span in collector.spans) == [
                "invoke_agent worker",
                "invoke_agent worker",
                "invoke_workflow do-steps",
            ]
    finally:
        service.close()


def test_only_the_request_that_a_collector_refuses_as_wrong_is_left_out(
    rolecall: Rolecall, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(otlp, "_MOST_SPANS", 1)
    received: list[str] = []

    class OneLook(Event):
        looks = iter((False, True))

        def wait(self, timeout: float | None = None) -> bool:
            return next(self.looks)

    with collecting() as collector, stores.open_store(str(tmp_path / "s.db")) as store:
        follower = Follower(store, Collector(collector.url), Mask([]), received.append)
        follower.look()
        (tmp_path / "one.yaml").write_text(ONE)
        rolecall("run", "./one.yaml", "-p", "x", "--store", str(tmp_path / "s.db"), cwd=tmp_path, check=0)
        collector.answers = [(413, b"too large")]
        follower.run(OneLook())
        assert [span.name for span in collector.spans] == ["invoke_workflow one"]
    assert received[0].endswith("answered 413: too large; these spans are left out") and received[1:] == [""]
