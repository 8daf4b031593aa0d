"""PostgreSQL goes away for a while: the fleet waits, its agents go on, and nothing of what they did is lost."""

from __future__ import annotations

import subprocess
import time
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from fleetstage import fleet_in
from servicestage import done

OUTAGE = 20.0


def test_a_database_that_is_gone_for_20_s_is_waited_for_and_no_step_is_done_again(
    tmp_path: Path, postgres_server: Any
) -> None:
    # Not before the fixture has told it where its lock may lie.
    pg_ctl = import_module("pgserver._commands").pg_ctl

    with fleet_in(tmp_path, str(postgres_server.get_uri())) as fleet:
        fleet.lease = 60.0
        fleet.options = ("--concurrency", "4")
        alpha, beta = fleet.started("alpha", "beta", slots=2)
        # Each agent says that it was started, and is at work when the server goes and when it comes back.
        slow = done(run=[["sh", "-c", "echo begun >> begun; sleep 8; sleep 8; sleep 8"]])
        agent = alpha.script(slow, done("end"))
        names = [alpha.enter(alpha.workflow(), agent) for _ in range(3)]
        fleet.until(lambda: _lines(fleet.work / "begun") == 3)
        pg_ctl(
            ["-w", "-m", "immediate", "stop"], pgdata=postgres_server.pgdata, user=postgres_server.system_user
        )
        gone_at = time.monotonic()
        while time.monotonic() - gone_at < OUTAGE:
            time.sleep(0.5)
        for _ in range(12):  # pgserver waits for 10 s; recovery takes longer on a busy machine
            with suppress(subprocess.TimeoutExpired):
                postgres_server.ensure_postgres_running()
                break
        assert fleet.ended(*names) == ["completed"] * 3
        fleet.assert_whole(*names, steps=2)
        assert _lines(fleet.work / "begun") == 3
        assert [event for event in fleet.store.events() if event.kind == "crashed"] == []
        assert (
            "the database has not answered" in alpha.log() and "the database has not answered" in beta.log()
        )


def _lines(file: Path) -> int:
    return len(file.read_text().splitlines()) if file.exists() else 0
