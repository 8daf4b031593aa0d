"""A fleet reports damaged refs in its store, and they do not stop other threads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pytest
from fleetstage import Fleet, fleet_in
from servicestage import done

RATES = "service: {rates: {scripted: 100/s}}\n"
SLOT = "slot/do-steps/0123456789ABCDEFGHJKMNPQRS"


def spoil(fleet: Fleet, name: str) -> None:
    """Make the state of a ref unreadable, as a bad disk does."""
    with psycopg.connect(fleet.url, autocommit=True) as db:
        changed = db.execute("UPDATE rolecall.refs SET state = '{\"half' WHERE name = %s", (name,))
        assert changed.rowcount == 1


@pytest.mark.parametrize("project", ["", RATES])
def test_damaged_threads_places_and_slots_are_reported_and_do_not_stop_other_threads(
    tmp_path: Path, postgres_server: Any, project: str
) -> None:
    with fleet_in(tmp_path, str(postgres_server.get_uri())) as fleet:
        agent = fleet.agent(done("end"))
        first, second, third, admitted = (fleet.enter(agent) for _ in range(4))
        (entry,) = [name for name in fleet.store.backend.names("queue/") if name.endswith(first)]
        spoil(fleet, entry)
        spoil(fleet, f"thread/{second}")
        fleet.store.move(SLOT, None, state={"since": 7})
        spoil(fleet, SLOT)
        fleet.store.move(f"slot/do-steps/{admitted}", None, state={"since": 7})
        spoil(fleet, f"thread/{admitted}")

        alpha = fleet.host("alpha")
        (alpha.folder / "rolecall.yaml").write_text(project)
        alpha.start("--concurrency", "9")
        assert fleet.ended(third) == ["completed"]
        later = fleet.enter(agent)
        assert fleet.ended(later) == ["completed"]
        told = {first, second, admitted, SLOT}
        fleet.until(lambda: told <= set(alpha.status()["problems"]))
        assert fleet.store.backend.names(entry) == [entry]
        alpha.stop()
