"""A fleet does as one machine does: the same tests of a service, with a machine of a fleet in its place."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import test_kill
import test_recovery
import test_supervisor
from fleetstage import Fleet, Host, fleet_in
from servicestage import PATIENCE, STEPS, done, gone

from rolecall.service.fleet import machines


def named(same_test: Any) -> str:
    return str(same_test.__name__).removeprefix("test_")


@pytest.mark.parametrize(
    "same_test",
    [
        test_supervisor.test_threads_of_one_workflow_start_in_the_order_of_priority_and_time,
        test_supervisor.test_no_more_run_at_once_than_the_project_allows,
        test_supervisor.test_what_comes_while_a_workflow_is_busy_is_discarded_where_the_project_says_so,
        test_supervisor.test_of_too_many_that_wait_the_oldest_is_discarded,
        test_supervisor.test_an_agent_that_may_be_called_no_more_is_waited_for_and_nobody_fails,
        test_supervisor.test_what_steps_cost_is_summed_up_and_stops_admission_for_the_day,
    ],
    ids=named,
)
def test_a_fleet_admits_as_one_machine_does(
    same_test: Callable[[Path], None], tmp_path: Path, postgres_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "fleet"
    place.mkdir()
    with fleet_in(place, str(postgres_server.get_uri())) as fleet:

        def service(folder: Path) -> Host:
            """As `servicestage.Service`: the folder has the project's file."""
            host = fleet.host("alpha", slots=16)
            host.project = folder
            return host

        @contextmanager
        def served(folder: Path, *options: str) -> Iterator[Host]:
            host = service(folder)
            host.start(*options)
            yield host

        monkeypatch.setattr(test_supervisor, "served", served)
        monkeypatch.setattr(test_supervisor, "Service", service)
        same_test(tmp_path)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, postgres_server: Any) -> Iterator[Fleet]:
    with fleet_in(tmp_path_factory.mktemp("fleet"), str(postgres_server.get_uri())) as fleet:
        fleet.host("alpha").start("--concurrency", "3")
        yield fleet


@pytest.mark.parametrize(
    "same_test",
    [
        test_supervisor.test_steps_that_run_at_once_have_processes_and_sessions_of_their_own,
        test_supervisor.test_a_workflow_that_leads_to_fail_fails_its_thread,
        test_kill.test_the_agent_of_a_thread_that_is_killed_ends_and_its_worker_too,
        test_kill.test_an_answer_that_comes_after_the_kill_becomes_no_step_and_no_further_role_is_called,
        test_kill.test_a_thread_that_is_killed_between_two_steps_takes_no_other,
        test_kill.test_whoever_follows_is_told_and_exits_with_the_code_of_a_kill,
        test_recovery.test_a_thread_whose_step_dies_three_times_is_left_to_a_person_who_can_let_it_go_on,
        test_recovery.test_crashes_are_counted_for_one_step_and_forgotten_with_the_next,
        test_recovery.test_an_agent_that_is_killed_every_time_leaves_the_thread_to_a_person,
        test_recovery.test_an_agent_that_fails_by_itself_is_no_crash,
    ],
    ids=named,
)
def test_a_thread_lives_and_dies_on_a_fleet_as_on_one_machine(
    same_test: Callable[[Host], None], fleet: Fleet, tmp_path: Path
) -> None:
    host = fleet.hosts["alpha"]
    host.work = tmp_path
    same_test(host)
    assert fleet.store.backend.names("slot/") == []


PROJECT = """
service: {{limit: {limit}}}
workflows:
  do-steps:
    concurrency: 2
    triggers: {{watched: {{command: [sh, -c, "echo $$ > asked; exec sleep 600"], every: 1s, prompt: Again.}}}}
"""


def test_what_a_machines_project_says_holds_for_the_fleet_follows_its_file_and_ends_with_the_machine(
    tmp_path: Path, postgres_server: Any
) -> None:
    with fleet_in(tmp_path, str(postgres_server.get_uri())) as fleet:
        host = fleet.host("alpha")
        (host.folder / "workflows").mkdir()
        (host.folder / "workflows" / "do-steps.yaml").write_text(STEPS.format(name="do-steps"))
        file = host.folder / "rolecall.yaml"
        file.write_text(PROJECT.format(limit=5))
        host.start()
        policy = machines.read_policy(fleet.store)
        assert policy is not None and (policy.limit, policy.of("do-steps").concurrency) == (5, 2)
        file.write_text(PROJECT.format(limit=7))
        fleet.until(lambda: machines.status(fleet.store)["limit"] == 7)
        asked = host.folder / "asked"
        fleet.until(lambda: asked.exists() and asked.read_text().strip())
        fleet.assert_left_clean()


def test_whoever_follows_a_thread_is_told_that_no_machine_is_left_to_run_it(
    tmp_path: Path, postgres_server: Any
) -> None:
    with fleet_in(tmp_path, str(postgres_server.get_uri())) as fleet:
        machine = machines.Presence(fleet.store, "alpha", "alpha:1", lease_ms=600_000)
        machine.enter(machines.Facts(slots=0))
        laptop = fleet.host("laptop")
        (laptop.folder / "do-steps.yaml").write_text(STEPS.format(name="do-steps"))
        agent = fleet.agent(done("end"))
        following = laptop.spawn("run", "./do-steps.yaml", "-p", "Do it", "--agent", agent)
        try:
            fleet.until(lambda: fleet.store.backend.names("queue/"))
            machine.leave()
            assert following.stderr is not None
            errors = next(line for line in following.stderr if not line.startswith("thread "))
            assert errors == "the service has ended; the thread is waiting for it to run again\n"
        finally:
            following.kill()
            following.communicate(timeout=PATIENCE)


def test_a_machine_in_the_background_is_told_the_address_in_private(
    tmp_path: Path, postgres_server: Any
) -> None:
    with fleet_in(tmp_path, str(postgres_server.get_uri())) as fleet:
        host = fleet.host("alpha")
        words = ("--machine", "alpha", "--slots", "2", "--detach")
        started = host.rolecall("serve", "--database", host.relay.url, *words, "--json")
        assert started.returncode == 0, started.stderr
        pid = json.loads(started.stdout)["pid"]
        assert b"secret" not in Path(f"/proc/{pid}/cmdline").read_bytes()
        name = fleet.enter(fleet.agent(done("end")))
        assert fleet.ended(name) == ["completed"]
        assert host.rolecall("serve", "stop").returncode == 0
        gone(pid)
        assert machines.list_machines(fleet.store) == []
