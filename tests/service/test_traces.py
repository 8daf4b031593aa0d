"""The service sends steps to a collector, and one that is away costs a note and nothing else."""

from __future__ import annotations

from pathlib import Path
from threading import Timer

from collector import collecting
from servicestage import PATIENCE, Service, done

from rolecall.settings.mask import Mask
from rolecall.settings.settings import Collector
from rolecall.traces.follow import Follower


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
