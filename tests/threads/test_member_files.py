"""Files of a group's members: worktrees that begin at the parent's state, and the queue that merges them."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import stage
from processes import gone

from rolecall.service.fleet.needs import find_need
from rolecall.settings.mask import Mask
from rolecall.threads import handover, lifecycle, thread
from rolecall.threads.engine import Engine, Outcome
from rolecall.threads.state import read_members

FLOW = """
name: write-parts
description: Several write at once
{workdir}
roles:
  planner:
    goal: Plan.
    {planner}
    schema: {{type: object, properties: {{note: {{type: string}}}}, required: [note]}}
  writer:
    times: {times}
    {group}
    goal: Write part {{{{number}}}}.
    workdir: worktree
    schema: {{type: object, properties: {{note: {{type: string}}}}, required: [note]}}
  integrator:
    goal: Bring in what was set aside.
    schema: {{type: object, properties: {{note: {{type: string}}}}, required: [note]}}
graph:
  $START: planner
  planner: writer
  writer:
    done: $END
    failed: $FAIL
    partly:
      role: integrator
      prompt: "{{{{#members}}}}{{{{#conflict}}}}{{{{branch}}}} {{{{reason}}}};{{{{/conflict}}}}{{{{/members}}}}"
  integrator: $END
"""
NOTED = "---\nnote: {}\n---\nDid it.\n"
LINES = "".join(f"{number}\n" for number in range(1, 21))
Writes = Mapping[int, Mapping[str, str | None]]


class Project:
    def __init__(self, place: Path) -> None:
        self.place = place
        self.folder = place / "project"
        self.folder.mkdir()
        (self.folder / "lines").write_text(LINES)
        self.git("init", "--quiet", "--initial-branch=main")
        self.git("config", "user.name", "Somebody")
        self.git("config", "user.email", "some@body")
        self.git("add", "--all")
        self.git("commit", "--quiet", "-m", "first")
        self.store = stage.open_store(place / "store.db")
        self.prompts: list[str] = []
        self.folders: list[Path] = []

    def git(self, *args: str, folder: Path | str | None = None) -> str:
        argv = ["git", "-C", str(folder or self.folder), *args]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (args, done.stderr)
        return done.stdout.strip()

    def start(self, text: str) -> str:
        work = str(self.place / "work")
        return stage.start(self.store, stage.book(text), self.folder, work=work)

    def engine(self, writes: Writes, *, order: tuple[int, ...] = (), **options: Any) -> Engine:
        """Members write these files by number, and end in this order."""
        ended = {number: asyncio.Event() for number in order}

        async def play(prompt: str, context: Any) -> str:
            self.prompts.append(prompt)
            self.folders.append(context.workdir)
            if context.role == "planner":
                (context.workdir / "plan").write_text("planned\n")
                return NOTED.format("planned")
            if context.role == "integrator":
                return NOTED.format("integrated")
            found = re.search(r"Write part (\d+)\.", prompt)
            assert found, prompt
            number = int(found[1])
            for name, content in writes.get(number, {}).items():
                path = context.workdir / name
                path.unlink() if content is None else path.write_text(content)
            if number in order and (at := order.index(number)):
                await ended[order[at - 1]].wait()
            if number in ended:
                # The next one ends after this one's step is committed.
                asyncio.get_running_loop().call_later(0.05, ended[number].set)
            return NOTED.format(f"part {number}")

        return stage.engine(self.store, play, work=str(self.place / "work"), **options)

    def group(self, ident: str) -> dict[str, Any]:
        [step] = [step for step in stage.steps(self.store, ident) if step.role == "writer"]
        output: dict[str, Any] = step.output
        return output

    def kinds(self, ident: str) -> list[str]:
        return [event.kind for event in self.store.events(ident)]


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    made = Project(tmp_path)
    with made.store:
        yield made


def flow(*group: str, times: int = 3, workdir: str = "", planner: str = "") -> str:
    return FLOW.format(group="\n    ".join(group), times=times, workdir=workdir, planner=planner)


def change(line: int, text: str) -> str:
    return LINES.replace(f"\n{line}\n", f"\n{text}\n")


def test_members_are_merged_in_the_order_in_which_they_finished(project: Project) -> None:
    ident = project.start(flow("merge: queue"))
    writes: Writes = {
        1: {"lines": change(3, "three")},
        2: {"new": "2\n"},
        3: {"lines": change(17, "seventeen")},
    }
    outcomes = stage.run(project.engine(writes, order=(3, 1, 2)), ident)
    assert outcomes[-1].status == "completed", outcomes
    assert (project.folder / "lines").read_text() == change(3, "three").replace("\n17\n", "\nseventeen\n")
    assert (project.folder / "new").read_text() == "2\n"
    titles = project.git("log", "--first-parent", "--format=%s").splitlines()
    assert [re.findall(r"writer (\d)/3", title) for title in titles] == [["2"], ["1"], ["3"], []]
    members = project.group(ident)["members"]
    assert [member["status"] for member in members] == ["done"] * 3
    assert [member["branch"] for member in members] == [f"rolecall/{member['id']}" for member in members]
    # Each had a worktree of its own, and what was uncommitted in the user's folder is still that.
    assert len({folder for folder in project.folders if folder != project.folder}) == 3
    assert project.git("status", "--porcelain") == "?? plan"
    assert project.kinds(ident).count("member_merged") == 3


def test_a_conflict_sets_the_member_aside_and_an_edge_sends_it_on(project: Project) -> None:
    ident = project.start(flow("merge: queue"))
    writes: Writes = {
        1: {"lines": change(3, "three")},
        2: {"lines": change(3, "drei")},
        3: {"lines": change(17, "seventeen")},
    }
    outcomes = stage.run(project.engine(writes, order=(1, 2, 3)), ident)
    assert outcomes[-1].status == "completed"
    group = project.group(ident)
    assert (group["status"], group["done"], group["set_aside"]) == ("partly", 2, 1)
    first, aside, _ = group["members"]
    assert aside["status"] == "set_aside"
    assert aside["reason"] == "conflicts in lines"
    assert aside["output"] == {"note": "part 2"}
    [file] = aside["conflict"]["files"]
    assert (file["path"], file["kind"]) == ("lines", "contents")
    assert "three" in file["hunks"][0]
    assert "drei" in file["hunks"][0]
    assert [by["thread"] for by in file["changed_by"]] == [first["id"]]
    assert f"{aside['branch']} conflicts in lines;" in project.prompts[-1]
    assert project.git("show", f"{aside['branch']}:lines") == change(3, "drei").strip()
    assert project.git("status", "--porcelain") == "?? plan"


def test_a_check_that_fails_sets_the_member_aside_and_the_rest_goes_on(project: Project) -> None:
    check = "check: [sh, -c, 'echo looked at $(ls); echo oh no >&2; test ! -e bad']"
    ident = project.start(flow("merge: queue", check))
    writes: Writes = {1: {"bad": "1\n"}, 2: {"good": "2\n"}}
    stage.run(project.engine(writes, order=(1, 2, 3)), ident)
    group = project.group(ident)
    assert [member["status"] for member in group["members"]] == ["set_aside", "done", "done"]
    aside = group["members"][0]
    assert aside["reason"] == "the check failed: 'sh' exited with status 1"
    assert aside["conflict"]["check"]["command"][0] == "sh"
    assert aside["conflict"]["check"]["output"] == "looked at bad lines plan\noh no"
    assert sorted(path.name for path in project.folder.iterdir()) == [".git", "good", "lines", "plan"]
    assert project.git("show", f"{aside['branch']}:bad") == "1"


def test_a_check_has_a_time_limit_and_ends_with_what_it_started(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handover, "CHECK_SECONDS", 0.5)
    pids = project.place / "pids"
    check = f"check: [sh, -c, 'sleep 300 & echo $! > {pids}; wait']"
    ident = project.start(flow("merge: queue", check, times=1))
    stage.run(project.engine({1: {"new": "1\n"}}), ident)
    [aside] = project.group(ident)["members"]
    assert aside["reason"] == "the check failed: 'sh' ran longer than 0.5 s and was ended"
    for pid in (
        pids.read_text().split() if pids.exists() else ()
    ):  # or the machine is so busy that it had not begun
        gone(int(pid))
    assert not (project.folder / "new").exists()


def test_a_check_that_cannot_start_suspends_the_group_and_resume_goes_on(project: Project) -> None:
    ident = project.start(flow("merge: queue", "check: [./check.sh]", times=1))
    [*_, outcome] = stage.run(project.engine({1: {"new": "1\n"}}), ident)
    assert outcome.status == "suspended"
    assert "the check cannot run: the program './check.sh' was not found" in outcome.reason
    assert not (project.folder / "new").exists()
    (project.folder / "check.sh").write_text("#!/bin/sh\n")
    (project.folder / "check.sh").chmod(0o755)
    asked = len(project.prompts)
    lifecycle.resume(project.store, thread.find(project.store, ident), mask=Mask([]))
    [*_, outcome] = stage.run(project.engine({}), ident)
    assert outcome.status == "completed"
    assert (project.folder / "new").read_text() == "1\n"
    assert len(project.prompts) == asked


def test_an_interrupt_during_a_check_undoes_the_merge_and_the_next_run_joins(project: Project) -> None:
    started = project.place / "started"
    check = f"check: [sh, -c, 'test -e {started} || {{ touch {started}; sleep 300; }}']"
    ident = project.start(flow("merge: queue", check, times=2))
    playing = project.engine({1: {"one": "1\n"}, 2: {"two": "2\n"}})

    async def interrupt() -> Outcome:
        cancel = asyncio.Event()
        await playing.step(ident, cancel=cancel)
        task = asyncio.create_task(playing.step(ident, cancel=cancel))
        while not started.exists():
            await asyncio.sleep(0.01)
        cancel.set()
        return await task

    outcome = asyncio.run(interrupt())
    assert (outcome.status, outcome.reason) == ("idle", "interrupted")
    assert project.git("log", "--format=%s") == "first"
    assert project.git("status", "--porcelain") == "?? plan"
    asked = len(project.prompts)
    assert stage.run(playing, ident)[-1].status == "completed"
    assert len(project.prompts) == asked
    assert (project.folder / "two").exists()


def test_uncommitted_changes_in_the_same_files_suspend_before_anything_is_merged(project: Project) -> None:
    ident = project.start(flow("merge: queue"))
    writes: Writes = {1: {"new": "1\n"}, 2: {"lines": change(3, "three")}}

    playing = project.engine(writes, order=(1, 2, 3))
    stage.run(playing, ident, steps=1)
    (project.folder / "lines").write_text("mine\n")
    [*_, outcome] = stage.run(playing, ident)
    assert outcome.status == "suspended"
    assert "has uncommitted changes in files that are to be merged: lines" in outcome.reason
    assert not (project.folder / "new").exists()
    assert (project.folder / "lines").read_text() == "mine\n"
    project.git("stash", "--quiet")
    asked = len(project.prompts)
    lifecycle.resume(project.store, thread.find(project.store, ident), mask=Mask([]))
    assert stage.run(playing, ident)[-1].status == "completed"
    assert len(project.prompts) == asked
    assert (project.folder / "lines").read_text() == change(3, "three")
    assert "mine" in project.git("stash", "show", "-p")


def test_without_a_queue_the_branches_are_left(project: Project) -> None:
    ident = project.start(flow("merge: none", times=2))
    stage.run(project.engine({1: {"new": "1\n"}}), ident)
    one, two = project.group(ident)["members"]
    assert (one["status"], two["status"]) == ("done", "done")
    assert project.git("log", "--format=%s") == "first"
    ref = thread.find(project.store, one["id"])
    assert handover.merge(project.store, ref)["committed"]
    assert (project.folder / "new").read_text() == "1\n"
    assert two["branch"] in project.git("branch", "--list", "rolecall/*")


def test_the_parents_own_worktree_is_where_members_begin_and_end(project: Project) -> None:
    ident = project.start(flow("merge: queue", times=2, planner="workdir: worktree"))
    own = Path(thread.find(project.store, ident).state.folders["worktree"].path)
    writes: Writes = {1: {"plan": "planned\nby one\n"}, 2: {"two": "2\n"}}
    assert stage.run(project.engine(writes), ident)[-1].status == "completed"
    assert (own / "plan").read_text() == "planned\nby one\n"
    assert (own / "two").read_text() == "2\n"
    assert project.git("status", "--porcelain") == ""
    assert project.git("log", "--format=%s") == "first"
    assert handover.merge(project.store, thread.find(project.store, ident))["merged"]
    assert (project.folder / "plan").read_text() == "planned\nby one\n"


def test_members_that_only_read_see_the_parents_worktree_as_it_is(project: Project) -> None:
    ident = project.start(flow("capabilities: [read_only]", times=2, planner="workdir: worktree"))
    own = Path(thread.find(project.store, ident).state.folders["worktree"].path)
    assert stage.run(project.engine({}), ident)[-1].status == "completed"
    assert project.folders == [own] * 3
    for member in project.group(ident)["members"]:
        ref = thread.find(project.store, member["id"])
        assert (ref.state.folders, ref.state.cwd) == ({}, str(own))
    assert project.git("status", "--porcelain", folder=own) == "?? plan"


def test_a_group_alone_gives_its_thread_no_worktree(project: Project) -> None:
    ident = project.start(flow("merge: queue"))
    assert thread.find(project.store, ident).state.folders == {}


def test_members_that_only_read_have_nothing_to_merge(project: Project) -> None:
    ident = project.start(
        flow("capabilities: [read_only]\n    merge: queue", times=2, planner="workdir: worktree")
    )
    assert stage.run(project.engine({}), ident)[-1].status == "completed"
    assert project.group(ident)["done"] == 2


@pytest.mark.parametrize("spoil", ["no repository", "no commit"])
def test_a_folder_without_worktrees_suspends_before_anybody_is_asked(project: Project, spoil: str) -> None:
    ident = project.start(flow("merge: queue"))
    subprocess.run(["rm", "-rf", str(project.folder / ".git")], check=True)
    if spoil == "no commit":
        project.git("init", "--quiet")
    [*_, outcome] = stage.run(project.engine({}), ident)
    assert outcome.status == "suspended"
    assert "writer: " in outcome.reason
    assert "repository" in outcome.reason
    assert len(project.prompts) == 1


def test_a_folder_that_nothing_can_be_merged_into_suspends_before_anybody_is_asked(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.git("switch", "--quiet", "--detach")
    [*_, outcome] = stage.run(project.engine({}), project.start(flow("merge: queue")))
    assert "no branch is checked out" in outcome.reason
    project.git("switch", "--quiet", "main")
    old = project.place / "bin/git"
    old.parent.mkdir()
    real = shutil.which("git")
    old.write_text(
        f'#!/bin/sh\ncase "$*" in *" version") echo git version 2.34.1;; *) exec {real} "$@";; esac\n'
    )
    old.chmod(0o755)
    monkeypatch.setenv("PATH", f"{old.parent}:{os.environ['PATH']}")
    [*_, outcome] = stage.run(project.engine({}), project.start(flow("merge: queue")))
    assert "merging needs git 2.38, and this is git version 2.34.1" in outcome.reason
    assert len(project.prompts) == 2  # only the planner, each time


def test_a_member_that_failed_is_not_merged(project: Project) -> None:
    ident = project.start(flow("merge: queue", times=2))
    playing = project.engine({1: {"one": "1\n"}, 2: {"two": "2\n"}})
    cast: Callable[..., Any] = playing.cast

    async def fail(prompt: str, context: Any) -> str:
        said: str = await cast(None, "writer").agent(prompt, context)
        return "nothing that could be read" if "part 2" in said else said

    stage.run(stage.engine(project.store, fail, work=str(project.place / "work")), ident)
    group = project.group(ident)
    assert [member["status"] for member in group["members"]] == ["done", "failed"]
    assert (project.folder / "one").exists()
    assert not (project.folder / "two").exists()


def test_queued_members_find_their_worktrees_and_are_merged_where_they_are(project: Project) -> None:
    ident = project.start(flow("merge: queue", times=2))
    playing = project.engine({1: {"one": "1\n"}, 2: {"two": "2\n"}}, queues_members=True)
    assert stage.run(playing, ident)[-1].status == "waiting"
    members = list(read_members(project.store, ident))
    paths = [ref.state.folders["worktree"].path for ref in members]
    assert all((Path(path) / "lines").exists() for path in paths)
    need = find_need(project.store, thread.find(project.store, ident), "test")
    assert need.files == (paths[0],)
    for ref in members:
        stage.run(playing, ref.id)
    assert stage.run(playing, ident)[-1].status == "completed"
    assert (project.folder / "two").read_text() == "2\n"


def test_a_fork_of_a_member_has_a_worktree_that_begins_at_its_branch(project: Project) -> None:
    ident = project.start(flow("merge: none", times=1))
    stage.run(project.engine({1: {"new": "1\n"}}), ident)
    [member] = project.group(ident)["members"]
    ref = thread.find(project.store, member["id"])
    fork = lifecycle.fork(
        project.store, ref.head, prompt=None, mask=Mask([]), source=ref, work=str(project.place / "work")
    )
    assert fork.state.folders["worktree"].origin == ref.state.folders["worktree"].path
