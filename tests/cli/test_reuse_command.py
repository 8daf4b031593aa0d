"""`--reuse` and `--fresh` with the installed program: what people see, the service, and real kills."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from test_crash_files import replace_git
from test_thread_folder import DONE, STATUS, git

from rolecall.cli.group_view import GroupBlock

if TYPE_CHECKING:
    from conftest import Rolecall

    from rolecall.api import Thread

USAGE = {"input_tokens": 1200, "output_tokens": 34, "cost": 0.41}


class Team:
    """A workflow whose only role changes files and leaves a trace, and folders with the same files to run it in."""

    def __init__(self, rolecall: Rolecall, folder: Path) -> None:
        self.rolecall, self.folder = rolecall, folder
        self.asked = folder / "asked"
        self.asked.touch()
        self.agent = f"scripted:{folder / 'script.json'}"
        work = f"echo . >> {self.asked}; for n in 1 2 3; do seq 2000 > made$n.txt; done; rm old.txt"
        visit = {**DONE, "run": [["sh", "-c", work]], "usage": USAGE}
        (folder / "script.json").write_text(json.dumps({"roles": {"worker": [visit]}}))
        self.define()

    def define(self, **of_role: Any) -> None:
        definition = {
            "name": "do-work",
            "description": "Works.",
            "roles": {"worker": {"prompt": "Work.", "schema": STATUS, **of_role}},
            "graph": {"$START": "worker", "worker": "$END"},
        }
        (self.folder / "do-work.yaml").write_text(json.dumps(definition))

    def make(self, name: str) -> Path:
        work = self.folder / name
        work.mkdir()
        (work / "old.txt").write_text("old\n")
        return work

    def run(self, work: Path, *words: str, check: int = 0, **env: str) -> str:
        file = str(self.folder / "do-work.yaml")
        given = ["run", file, "-p", "Do it", "--cwd", str(work), "--agent", self.agent, *words]
        return self.rolecall(*given, check=check, env=env).stdout

    def count(self) -> int:
        return len(self.asked.read_text().split())

    def newest(self) -> str:
        return str(self.rolecall.json("thread", "list", "--all")[0]["thread"])


@pytest.fixture
def team(rolecall: Rolecall, tmp_path: Path) -> Team:
    return Team(rolecall, tmp_path)


def test_a_reused_step_is_shown_with_its_origin_and_what_it_saved(team: Team) -> None:
    assert "✓ 1 worker · done · " in team.run(team.make("a"))
    first = team.newest()
    shown = team.run(here := team.make("b"), "--reuse")
    message = f"reused from …{first[-4:]} · saved $0.41"
    assert f"✓ 1 worker · done · {message}\n" in shown and team.count() == 1
    assert "used: 1 step\nreused: 1 step, saved $0.41\n" in shown
    assert sorted(path.name for path in here.iterdir()) == ["made1.txt", "made2.txt", "made3.txt"]

    second = team.newest()
    assert "1 step, saved $0.41" in team.rolecall("thread", "show", second, check=0).stdout
    _, step = team.rolecall.json("thread", "steps", second)["steps"]
    origin = team.rolecall.json("thread", "steps", first)["steps"][1]["hash"]
    assert step["reused"] == {"step": origin, "thread": first, "saved": USAGE}
    assert step["usage"] == {} and len(step["changes"]) == 4
    assert message in team.rolecall("thread", "watch", second, check=0).stdout

    assert "reused" not in team.run(team.make("c"), "--fresh") and team.count() == 2
    team.define(reuse=True)
    events = [json.loads(line) for line in team.run(team.make("d"), "--json").splitlines()]
    assert [one["reused"]["saved"] for one in events if one.get("event") == "step"] == [USAGE]
    assert "not allowed with" in team.rolecall("thread", "run", second, "--reuse", "--fresh", check=2).stderr


def test_any_process_that_takes_the_next_step_obeys_what_the_thread_was_told(team: Team) -> None:
    team.run(team.make("a"))
    words = ["thread", "start", str(team.folder / "do-work.yaml"), "-p", "Do it", "--agent", team.agent]
    for flag, reuse, count in (("--reuse", True, 1), ("--fresh", False, 2)):
        ident = team.rolecall.json(*words, "--cwd", str(team.make(flag)), flag)["thread"]
        team.rolecall("thread", "run", ident, check=0)
        assert team.rolecall.json("thread", "show", ident)["reuse"] is reuse and team.count() == count
    shutil.rmtree(team.folder / "--fresh")
    team.make("--fresh")
    fork = team.rolecall.json("thread", "fork", ident, "--at", "start", "--keep-files", "--fresh")["thread"]
    team.rolecall("thread", "step", fork, "--reuse", check=0)  # the last word counts
    assert team.count() == 2


@pytest.mark.parametrize(
    ("moment", "is_meddled"), [("before", False), ("amid", False), ("after", False), ("amid", True)]
)
def test_killed_while_files_are_written_the_next_process_finishes_without_asking(
    team: Team, tmp_path: Path, moment: str, is_meddled: bool
) -> None:
    team.run(theirs := team.make("a"))
    here = team.make("b")
    half = f'"$real" "$@"; rm {here}/made2.txt; head -c 100 {theirs}/made3.txt > {here}/made3.txt; '
    action = {"before": "", "amid": half, "after": '"$real" "$@"; '}[moment] + "kill -9 $PPID"
    team.run(here, "--reuse", check=-9, PATH=replace_git(tmp_path, action))
    if is_meddled:
        (here / "made1.txt").write_text("mine\n")
    ident = team.newest()
    team.rolecall("thread", "run", ident, check=0)
    _, step = team.rolecall.json("thread", "steps", ident)["steps"]
    assert ("reused" in step) is not is_meddled and team.count() == (2 if is_meddled else 1)
    if is_meddled:
        details = team.rolecall.json("thread", "step-details", f"{ident}#1")
        assert details["notes"] == [
            "not reused: the files in the folder are not those from before the step; "
            "some of the step's changes might still be in the folder"
        ]
    else:
        made, wanted = ({path.name: path.read_bytes() for path in one.iterdir()} for one in (here, theirs))
        assert made == wanted


def test_a_git_that_outlives_its_process_is_waited_for(team: Team, tmp_path: Path) -> None:
    """It would overwrite what others do in the folder after the step."""
    team.run(team.make("a"))
    action = f'cat > {tmp_path}/paths; kill -9 $PPID; sleep 1; "$real" "$@" < {tmp_path}/paths; touch {tmp_path}/done'
    team.run(here := team.make("b"), "--reuse", check=-9, PATH=replace_git(tmp_path, action))
    team.rolecall("thread", "run", team.newest(), check=0)
    assert (tmp_path / "done").exists() and (here / "made3.txt").exists() and team.count() == 1


def test_reused_members_are_merged_like_others(team: Team) -> None:
    team.define(each="[1]", workdir="worktree", merge="queue")
    repository = team.make("a")
    git(repository, "init", "--quiet", "--initial-branch=main")
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "-m", "first")
    team.run(repository)
    git(repository, "reset", "--quiet", "--hard", "HEAD^1")
    shown = team.run(repository, "--reuse")
    assert "1 of 1 members are done" in shown and "reused 1 step, saved $0.41" in shown and team.count() == 1
    assert sorted(path.name for path in repository.glob("*.txt")) == ["made1.txt", "made2.txt", "made3.txt"]
    assert git(repository, "log", "--oneline", "--merges").count("\n") == 0
    assert git(repository, "status", "--porcelain") == ""


def test_members_that_are_reused_are_counted_while_a_group_runs() -> None:
    block = GroupBlock("reviewer", 3)
    for kind, body in (("step", {"reused": {"thread": "T"}}), ("over", {"status": "done"})):
        block.event({"number": 1, "thread": "M", "kind": kind, "body": body})
    (line,) = block.lines(cast("Thread", None), 5)  # everything is known from the events
    assert "1 of 3 done · 2 to come · 1 reused" in line
