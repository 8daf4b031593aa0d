"""A thread with a worktree of its own goes on on another machine, with its files, when its machine is lost."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

from fleetstage import LEASE, fleet_in
from servicestage import STEPS, done

from rolecall.service.fleet.dispatch import Room
from rolecall.service.fleet.machines import Facts, FleetMember
from rolecall.service.fleet.needs import Need
from rolecall.store.backend import Ref
from rolecall.threads import thread

COMMIT = "git add --all && git -c user.name=a -c user.email=a@b commit --quiet --message"


def run_git(folder: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True, text=True).stdout


def test_a_step_goes_where_its_files_are_newest_even_if_that_machine_is_busier() -> None:
    def machine(name: str, **facts: Any) -> FleetMember:
        return FleetMember(name, name, True, Facts(slots=1, open=True, **facts), "", 0, 0, 0, host=name)

    slots = [Ref("slot/w/1", None, {"machine": "beta"}, 1, 0)]
    need = Need("agent", ("/path",), host="beta")
    room = Room([machine("alpha"), machine("beta")], slots)
    assert room.choose("slot/w/2", need).name == "beta"
    state = need.replace_in({"machine": "beta", "instead_of": "an earlier need"})
    assert "instead_of" not in state
    assert not room.is_better_elsewhere(Ref("slot/w/2", None, state, 1, 0))
    assert Room([machine("alpha")], slots).choose("slot/w/2", need).name == "alpha"
    lacking = Room([machine("alpha"), machine("beta", lacks={need.text: "it has no agent"})], slots)
    assert lacking.choose("slot/w/2", need).name == "alpha"


def test_another_machine_goes_on_with_the_files_of_a_lost_one(tmp_path: Path, postgres_server: Any) -> None:
    with fleet_in(tmp_path, str(postgres_server.get_uri())) as fleet:
        fleet.lease = LEASE
        run_git(fleet.work, "init", "--quiet")
        run_git(
            fleet.work, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "first", "--allow-empty"
        )
        waits = f"echo half > two; touch {tmp_path}/at-two; until test -e {tmp_path}/go; do sleep 0.05; done"
        entries = [
            done(run=[["sh", "-c", f"echo one > one; {COMMIT} one; echo loose > loose"]]),
            done(run=[["sh", "-c", f"ls > {tmp_path}/seen; {waits}; cat one loose > two"]]),
            done("end", run=[["sh", "-c", f"{COMMIT} three"]]),
        ]
        [alpha] = fleet.started("alpha")
        text = STEPS + "workdir: worktree\n"
        name = fleet.enter(fleet.agent(*entries), text=text, work=str(alpha.home / "work"))
        fleet.until(lambda: (tmp_path / "at-two").exists() or fleet.status(name) == "suspended")
        alpha.end_all()
        folder = thread.find(fleet.store, name).state.folders["worktree"]
        for lost in (alpha.home, Path(folder.path)):  # with its disk
            shutil.rmtree(lost, ignore_errors=True)
        run_git(fleet.work, "worktree", "prune")
        run_git(fleet.work, "branch", "-D", folder.branch)

        (tmp_path / "go").touch()
        fleet.started("beta")
        assert fleet.ended(name) == ["completed"], fleet.describe_state()
        fleet.assert_whole(name, steps=3)
        assert (tmp_path / "seen").read_text().split() == ["loose", "one"]
        assert Path(folder.path, "two").read_text() == "one\nloose\n"
        assert run_git(Path(folder.path), "log", "--format=%s").split() == ["three", "one", "first"]
        steps = list(thread.Chain(fleet.store, thread.find(fleet.store, name).head))[::-1]
        assert "was made with files from another machine" in steps[1].detail["notes"][0]
        changes = [step.tree.changed if step.tree else () for step in steps]
        assert [[change.path for change in changed] for changed in changes] == [["loose", "one"], ["two"], []]
