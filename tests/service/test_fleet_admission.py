"""A fleet admits as one machine does: the same tests of a service, with a machine of a fleet in its place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import test_supervisor
from fleetstage import Host, fleet_in


@pytest.mark.parametrize(
    "same_test",
    [
        test_supervisor.test_no_more_run_at_once_than_the_project_allows,
        test_supervisor.test_what_comes_while_a_workflow_is_busy_is_discarded_where_the_project_says_so,
        test_supervisor.test_of_too_many_that_wait_the_oldest_is_discarded,
        test_supervisor.test_an_agent_that_may_be_called_no_more_is_waited_for_and_nobody_fails,
        test_supervisor.test_what_steps_cost_is_summed_up_and_stops_admission_for_the_day,
    ],
    ids=lambda same_test: str(same_test.__name__).removeprefix("test_"),
)
def test_a_fleet_passes_what_one_machine_has_to(
    same_test: Callable[[Path], None], tmp_path: Path, postgres_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def served(folder: Path, *options: str) -> Iterator[Host]:
        """As `servicestage.served`: the folder has the project's file."""
        place = folder / "fleet"
        place.mkdir()
        with fleet_in(place, str(postgres_server.get_uri())) as fleet:
            host = fleet.host("alpha", slots=16)
            host.project = folder
            host.start(*options)
            yield host

    monkeypatch.setattr(test_supervisor, "served", served)
    same_test(tmp_path)
