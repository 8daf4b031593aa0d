"""The files in a thread's own folder go through a shared store from machine to machine."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from stage import LOOP, answer, book, engine, run, start, steps

from rolecall.agents.protocol import Context
from rolecall.errors import Conflict, UsageError
from rolecall.files.tree import Trees
from rolecall.service.fleet.needs import Here, Need, find_need, find_need_elsewhere
from rolecall.settings.mask import Mask
from rolecall.store.collect import collect
from rolecall.store.postgres import PostgresBackend
from rolecall.store.store import Store
from rolecall.threads import commit as threads_commit
from rolecall.threads import handover, lifecycle, shared_files, thread
from rolecall.threads.attempt import Attempt
from rolecall.threads.commit import Outcome
from rolecall.threads.state import Status, attempt_name, files_name, move, read_members

WORKTREE, COPY = (LOOP + f"workdir: {kind}\n" for kind in ("worktree", "copy"))


@pytest.fixture
def store(postgres_url: str, postgres_schema: str) -> Iterator[Store]:
    with Store(PostgresBackend(postgres_url, schema=postgres_schema)) as opened:
        yield opened


class Disks:
    """The disks of several machines, one of which is in its place, so that all have the same paths."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._name = ""
        self.place = folder / "disk"
        self.repo, self.work = self.place / "repo", self.place / "work"

    def use(self, name: str) -> None:
        if self._name:
            self.place.rename(self._folder / self._name)
        (self._folder / name).mkdir(exist_ok=True)
        (self._folder / name).rename(self.place)
        self._name = name

    def trees(self, *, is_shared: bool = True) -> Trees:
        return Trees(str(self.place / "trees"), is_shared=is_shared)


@pytest.fixture
def disks(tmp_path: Path) -> Disks:
    """Two machines, each with its own clone of a repository."""
    found = Disks(tmp_path)
    run_git(tmp_path, "init", "--quiet", "--initial-branch=main", "upstream")
    (tmp_path / "upstream" / "first").write_text("first\n")
    run_git(tmp_path / "upstream", "add", "--all")
    run_git(tmp_path / "upstream", "commit", "--quiet", "--message=first")
    for name in ("beta", "alpha"):
        found.use(name)
        run_git(tmp_path, "clone", "--quiet", str(tmp_path / "upstream"), str(found.repo))
    return found


def run_git(folder: Path, *words: str) -> str:
    as_us = ("-c", "user.name=a", "-c", "user.email=a@b")
    argv = ["git", "-C", str(folder), *as_us, *words]
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


async def write(_prompt: str, context: Context) -> str:
    """Commit a file, and leave another uncommitted; remove the one before."""
    number, folder = len(context.steps) + 1, context.workdir
    (folder / f"committed{number}").write_text("x" * 10 * number)
    if (folder / ".git").exists():
        run_git(folder, "add", "--all")
        run_git(folder, "commit", "--quiet", f"--message=step {number}")
    (folder / f"loose{number}").write_text("y")
    (folder / f"loose{number - 2}").unlink(missing_ok=True)
    return answer("done" if context.role == "worker" else "again", "go on")


@pytest.mark.parametrize(
    ("flow", "is_git"), [(WORKTREE, True), (COPY, True), (COPY, False)], ids=["worktree", "copy", "plain"]
)
def test_a_thread_goes_on_where_its_folder_is_missing_or_older(
    store: Store, disks: Disks, flow: str, is_git: bool
) -> None:
    source = disks.repo if is_git else disks.place / "plain"
    source.mkdir(exist_ok=True)
    name = start(store, book(flow), source, work=str(disks.work))
    (folder,) = thread.find(store, name).state.folders.values()
    path = Path(folder.path)
    for number, machine in enumerate(("alpha", "beta", "alpha", "alpha"), 1):
        disks.use(machine)
        run(engine(store, write, trees=disks.trees()), name, steps=1)
        expected = {
            *([".git", "first"] if is_git else []),
            f"loose{number}",
            *[f"loose{number - 1}"] * (number > 1),
        }
        expected |= {f"committed{n}" for n in range(1, number + 1)}
        assert {file.name for file in path.iterdir()} == expected
        if "branch" in folder:
            log = run_git(path, "log", "--format=%s", folder.branch).split("\n")
            assert log[:-1] == [*(f"step {n}" for n in range(number, 0, -1)), "first"]
            assert run_git(path, "branch", "--show-current").strip() == folder.branch
            assert "loose" in run_git(path, "status", "--porcelain")
    taken = steps(store, name)
    assert [step.tree and step.tree.found for step in taken[1:]] == [
        step.tree and step.tree.left for step in taken[:-1]
    ]
    notes = [" ".join(step.detail.get("notes", [])) for step in taken]
    assert [("was made" in note, "up to date" in note) for note in notes] == [
        *((False, False), (True, False), (False, True), (False, False))
    ]
    handover.remove(store, thread.find(store, name), force=True)
    assert store.ref(files_name(name, next(iter(thread.find(store, name).state.folders)))) is None
    assert collect(store, delete=False, grace_ms=0).collected > 4


@pytest.mark.parametrize("is_committed", [False, True])
def test_what_no_step_has_recorded_in_a_folder_is_never_replaced(
    store: Store, disks: Disks, is_committed: bool
) -> None:
    name = start(store, book(WORKTREE), disks.repo, work=str(disks.work))
    folder = thread.find(store, name).state.folders["worktree"]
    path = Path(folder.path)
    run(engine(store, write, trees=disks.trees()), name, steps=1)
    (path / "first").write_text("by a person\n")
    (path / "draft").write_text("by a person\n")
    if is_committed:
        run_git(path, "add", "--all")
        run_git(path, "commit", "--quiet", "--message=by a person")
    disks.use("beta")
    run(engine(store, write, trees=disks.trees()), name, steps=1)

    def stop(reason: str) -> None:
        (outcome,) = run(engine(store, write, trees=disks.trees()), name, steps=1)
        assert outcome.status == "suspended" and reason in outcome.reason
        lifecycle.resume(store, thread.find(store, name), mask=Mask([]))

    disks.use("alpha")
    stop(f"to {path}: the folder has changes that no step has recorded")
    assert (path / "first").read_text() == (path / "draft").read_text() == "by a person\n"
    shutil.rmtree(path)
    if is_committed:
        stop(f"{folder.branch} has commits that no step has recorded")
        run_git(disks.repo, "branch", "mine", folder.branch)
    (outcome,) = run(engine(store, write, trees=disks.trees()), name, steps=1)
    assert outcome.took is not None and (path / "committed2").exists() and not (path / "draft").exists()


SLOW_GIT = """\
#!/bin/sh
case " $* " in *" unpack-objects "*) echo asked > {asked}; timeout 20 head -c 1 {go} > {asked} || exit 1;; esac
exec {git} "$@"
"""


def test_the_lease_can_be_renewed_while_files_are_fetched(
    store: Store, disks: Disks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = start(store, book(WORKTREE), disks.repo, work=str(disks.work))
    run(engine(store, write, trees=disks.trees()), name, steps=1)
    disks.use("beta")
    asked, go, git = tmp_path / "asked", tmp_path / "go", tmp_path / "bin" / "git"
    git.parent.mkdir()
    git.write_text(SLOW_GIT.format(asked=asked, go=go, git=shutil.which("git")))
    git.chmod(0o755)
    monkeypatch.setenv("PATH", f"{git.parent}:{os.environ['PATH']}")
    ends = []
    for path in (asked, go):
        os.mkfifo(path)
        ends.append(os.open(path, os.O_RDWR | os.O_NONBLOCK))

    async def play() -> list[Outcome]:
        """Git gets on only if the loop runs while it works."""
        loop = asyncio.get_running_loop()
        loop.add_reader(ends[0], lambda: os.read(ends[0], 4096) and os.write(ends[1], b"x"))
        step = engine(store, write, trees=disks.trees()).run(name, cancel=asyncio.Event(), steps=1)
        return [outcome async for outcome in step]

    try:
        (outcome,) = asyncio.run(play())
    finally:
        for end in ends:
            os.close(end)
    assert outcome.took is not None, outcome.reason


def die_half_way(name: str, _snapshot: Any, folder: str, *_: Any, **__: Any) -> None:
    Path(folder, name).write_text("x" * 5)
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_machine_goes_on_with_files_that_it_had_begun_to_fetch(
    store: Store, disks: Disks, postgres_url: str, postgres_schema: str
) -> None:
    name = start(store, book(WORKTREE), disks.repo, work=str(disks.work))
    path = Path(thread.find(store, name).state.folders["worktree"].path)
    run(engine(store, write, trees=disks.trees()), name, steps=1)
    for number, machine in enumerate(("beta", "alpha"), 1):
        disks.use(machine)
        child = os.fork()
        if child == 0:
            Trees._fill = partial(die_half_way, f"committed{number}")  # type: ignore[method-assign]
            with Store(PostgresBackend(postgres_url, schema=postgres_schema)) as own:
                run(engine(own, write, trees=disks.trees()), name, steps=1)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
        (outcome,) = run(engine(store, write, trees=disks.trees()), name, steps=1)
        assert outcome.took is not None, outcome.reason
        assert (path / f"committed{number}").read_text() == "x" * 10 * number


def die_at_once(*_: Any, **__: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("is_asked", [False, True])
def test_a_step_says_that_its_files_were_fetched_even_if_the_process_that_fetched_them_died(
    store: Store,
    disks: Disks,
    postgres_url: str,
    postgres_schema: str,
    monkeypatch: pytest.MonkeyPatch,
    is_asked: bool,
) -> None:
    async def die(_prompt: str, _context: Context) -> str:
        os.kill(os.getpid(), signal.SIGKILL)
        return ""

    def run_and_die() -> None:
        child = os.fork()
        if child == 0:
            with Store(PostgresBackend(postgres_url, schema=postgres_schema)) as own:
                run(engine(own, die, trees=disks.trees()), name, steps=1)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL

    name = start(store, book(WORKTREE), disks.repo, work=str(disks.work))
    run(engine(store, write, trees=disks.trees()), name, steps=1)
    run_and_die()  # its agent works on alpha
    disks.use("beta")
    if not is_asked:
        monkeypatch.setattr(Attempt, "close_left_behind", die_at_once)
    run_and_die()
    monkeypatch.undo()
    run(engine(store, write, trees=disks.trees()), name, steps=2)
    notes = [" ".join(step.detail.get("notes", [])) for step in steps(store, name)]
    assert ["was made with files from another machine" in note for note in notes] == [False, True, False]
    lost = "the machine that ran this attempt is gone, and so are the files that it changed"
    died = "the process that ran this attempt is gone"
    failed = [event.body["error"] for event in store.events(name) if event.kind == "attempt_failed"]
    assert failed == ([lost, died] if is_asked else [lost])


PLACES = ("step_started", "agent", "files_sent", "agent", "step", "files_sent", "step_started")
"""Where the process of each machine in turn is killed: after these events, or in the agent."""


def test_no_files_of_a_step_are_lost_wherever_a_machine_dies(
    store: Store, disks: Disks, postgres_url: str, postgres_schema: str
) -> None:
    name = start(store, book(WORKTREE), disks.repo, work=str(disks.work))
    path = Path(thread.find(store, name).state.folders["worktree"].path)

    def work_and_die(place: str) -> None:
        def die_at(kind: str, _body: Any = None) -> None:
            if kind == place:
                os.kill(os.getpid(), signal.SIGKILL)

        async def add(_prompt: str, context: Context) -> str:
            (context.workdir / f"file{len(context.steps) + 1}").write_text(context.role)
            die_at("agent")
            return answer("done" if context.role == "worker" else "again", "go on")

        with Store(PostgresBackend(postgres_url, schema=postgres_schema)) as own:
            run(engine(own, add, trees=disks.trees(), watch=die_at), name, steps=2)

    for number, place in enumerate((*PLACES, "never")):
        disks.use(("alpha", "beta")[number % 2])
        child = os.fork()
        if child == 0:
            try:
                work_and_die(place)
                os._exit(0)
            finally:
                os._exit(1)
        ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert ended == (0 if place == "never" else -signal.SIGKILL), place
    taken = steps(store, name)
    assert len(taken) >= 3
    assert {file.name for file in path.iterdir()} == {
        ".git",
        "first",
        *(f"file{n + 1}" for n in range(len(taken))),
    }
    assert all(step.tree and disks.trees().is_whole(step.tree.left) for step in taken)


def test_a_process_that_has_lost_the_thread_sends_no_files_but_keeps_its_answer(
    store: Store, disks: Disks
) -> None:
    name = start(store, book(WORKTREE), disks.repo, work=str(disks.work))

    async def lose(prompt: str, context: Context) -> str:
        note = store.ref(attempt_name(name))
        assert note is not None
        store.move(note.name, note, note.target, {**note.state, "run": "of another process"})
        return await write(prompt, context)

    with pytest.raises(Conflict):
        run(engine(store, lose, trees=disks.trees()), name, steps=1)
    (ref,) = store.refs("files/")
    assert ref.state["tree"] == run_git(disks.repo, "rev-parse", "HEAD^{tree}").strip()
    note = store.ref(attempt_name(name))
    assert note is not None and note.target is not None
    assert "The report." in store.get(store.get(note.target).payload["raw"]).payload


def test_all_of_a_folder_is_sent_if_a_role_works_in_a_part_of_it(store: Store, disks: Disks) -> None:
    source = disks.place / "plain"
    (source / "part").mkdir(parents=True)
    (source / "whole").write_text("x")
    flow = COPY.replace("$START: worker", "$START: {role: worker, location: part}")
    name = start(store, book(flow), source, work=str(disks.work))
    run(engine(store, write, trees=disks.trees()), name, steps=1)
    disks.use("beta")
    run(engine(store, write, trees=disks.trees()), name, steps=1)
    path = Path(thread.find(store, name).state.folders["copy"].path)
    assert (path / "whole").exists() and (path / "part" / "committed1").exists()
    assert (path / "committed2").exists()


def test_a_machine_says_what_it_lacks_to_make_a_folder(store: Store, disks: Disks) -> None:
    name = start(store, book(WORKTREE), disks.repo, work=str(disks.work))
    ref = thread.find(store, name)
    own = Need("", (ref.state.folders["worktree"].path,))
    assert find_need_elsewhere(store, ref, own) is None  # nothing has been sent
    run(engine(store, write, trees=disks.trees()), name, steps=1)
    need = find_need_elsewhere(store, thread.find(store, name), own)
    assert need is not None and need.instead_of == own.text
    need = Need.of(need.text)
    assert Here().lacks(need) == ""
    run_git(disks.repo, "checkout", "--quiet", "--orphan", "other")
    disks.use("gamma")
    assert Here().lacks(need).endswith("repo does not exist")
    run_git(disks.place, "init", "--quiet", "repo")
    assert "does not have the commit" in Here().lacks(need)


def test_a_thread_with_more_than_a_step_sends_stays_on_its_machine_and_says_so_once(
    store: Store, disks: Disks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_files, "MOST_BYTES", 1_000)

    async def grow(prompt: str, context: Context) -> str:
        (context.workdir / "large").write_bytes(os.urandom(2_000))
        return await write(prompt, context)

    name = start(store, book(WORKTREE), disks.repo, work=str(disks.work))
    run(engine(store, grow, trees=disks.trees()), name, steps=2)
    notes = [step.detail.get("notes", []) for step in steps(store, name)]
    assert "stays on this machine" in notes[0][0] and not notes[1]
    assert find_need_elsewhere(store, thread.find(store, name), Need()) is None


def test_sharing_can_be_switched_off(store: Store, disks: Disks) -> None:
    name = start(store, book(WORKTREE), disks.repo, work=str(disks.work))
    run(engine(store, write, trees=disks.trees(is_shared=False)), name, steps=1)
    assert store.refs("files/") == []
    run(engine(store, write, trees=disks.trees()), name, steps=1)
    (ref,) = store.refs("files/")
    assert ref.target is not None
    run(engine(store, write, trees=disks.trees(is_shared=False)), name, steps=1)
    (ref,) = store.refs("files/")
    assert ref.target is None and "switched off" in ref.state["reason"]


# -- several copies of a folder --


async def edit(_prompt: str, context: Context) -> str:
    (context.workdir / f"file{len(context.steps) + 1}").write_text("x")
    return answer("done" if context.role == "worker" else "again", "go on")


async def commit(_prompt: str, context: Context) -> str:
    """Write a file, and commit it in the second step."""
    if context.steps:
        run_git(context.workdir, "add", "--all")
        run_git(context.workdir, "commit", "--quiet", "--message=second")
    else:
        (context.workdir / "file1").write_text("x")
    return answer("done" if context.role == "worker" else "end")


@pytest.mark.parametrize("where", ["alpha", "gamma"])
def test_only_the_machine_with_the_newest_copy_merges_and_removes(
    store: Store, disks: Disks, where: str
) -> None:
    name = start(store, book(WORKTREE), disks.repo, work=str(disks.work))
    path = Path(thread.find(store, name).state.folders["worktree"].path)
    for machine in ("alpha", "beta"):
        disks.use(machine)
        run(engine(store, commit, trees=disks.trees()), name, steps=1)
    disks.use(where)
    ref = thread.find(store, name)
    (kept,) = handover.prune(store)["kept"]
    assert kept["why"] == f"the newest files of {path} are on {os.uname().nodename}"
    with pytest.raises(UsageError, match="cannot be merged here: the newest files"):
        handover.merge(store, ref)
    with pytest.raises(UsageError, match="cannot be removed here: the newest files"):
        handover.remove(store, ref)
    if where == "gamma":
        handover.remove(store, ref, force=True)
        disks.use("beta")
        (kept,) = handover.prune(store)["kept"]
        assert "1 commit that is not merged" in kept["why"] and path.exists()
        return
    disks.use("beta")
    assert handover.merge(store, ref)["merged"] and (disks.repo / "file1").exists()
    assert not handover.prune(store)["kept"] and not path.exists()


@pytest.mark.parametrize("reason", ["too large", "another branch", "switched off here"])
def test_an_older_copy_is_not_used_if_the_newest_cannot_be_fetched(
    store: Store, disks: Disks, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    async def leave(prompt: str, context: Context) -> str:
        if reason == "another branch":
            run_git(context.workdir, "checkout", "--quiet", "-b", "feature")
        return await edit(prompt, context)

    name = start(store, book(WORKTREE), disks.repo, work=str(disks.work))
    run(engine(store, edit, trees=disks.trees()), name, steps=1)
    disks.use("beta")
    if reason == "too large":
        monkeypatch.setattr(shared_files, "MOST_BYTES", 10)
    run(engine(store, leave, trees=disks.trees()), name, steps=1)
    disks.use("alpha")
    ref = thread.find(store, name)
    need = find_need(store, ref, "")
    assert need.host == os.uname().nodename and "the newest files" in Here().lacks(Need.of(need.text))
    is_off = reason == "switched off here"
    assert (find_need_elsewhere(store, ref, need) is None) is not is_off
    (outcome,) = run(engine(store, edit, trees=disks.trees(is_shared=not is_off)), name, steps=1)
    assert outcome.status == "suspended" and "the newest files" in outcome.reason
    disks.use("beta")
    assert Here().lacks(need) == ""


def test_a_person_answers_on_a_machine_without_the_folder(store: Store, disks: Disks) -> None:
    name = start(store, book(WORKTREE), disks.repo, work=str(disks.work))
    run(engine(store, edit, trees=disks.trees()), name, steps=1)
    disks.use("gamma")
    output = {"$status": "again", "note": "go on"}
    threads_commit.answer(store, thread.find(store, name), book(WORKTREE), output, body="", mask=Mask([]))
    disks.use("beta")
    (outcome,) = run(engine(store, edit, trees=disks.trees()), name, steps=1)
    assert outcome.took is not None


def test_a_machine_needs_only_the_last_of_many_sends(
    store: Store, disks: Disks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_files, "_RESTART", 3)
    name = start(store, book(WORKTREE), disks.repo, work=str(disks.work))
    path = Path(thread.find(store, name).state.folders["worktree"].path)
    for machine, count in (("alpha", 1), ("beta", 3), ("alpha", 1)):
        disks.use(machine)
        run(engine(store, write, trees=disks.trees()), name, steps=count)
    (ref,) = store.refs("files/")
    sent = [str(ref.target)]
    while previous := store.get(sent[-1]).payload.get("previous"):
        sent.append(previous)
    assert len(sent) == 3 and len([*path.glob("committed*")]) == 5


def test_a_commit_of_the_same_files_arrives(store: Store, disks: Disks) -> None:
    name = start(store, book(WORKTREE), disks.repo, work=str(disks.work))
    path = Path(thread.find(store, name).state.folders["worktree"].path)

    async def commit_and_go_on(prompt: str, context: Context) -> str:
        await commit(prompt, context)
        return answer("again", "go on")

    for machine, role in (("alpha", edit), ("beta", commit_and_go_on), ("alpha", edit)):
        disks.use(machine)
        run(engine(store, role, trees=disks.trees()), name, steps=1)
    assert "second" in run_git(path, "log", "--format=%s")


@pytest.mark.parametrize("flow", [COPY, WORKTREE], ids=["copy", "worktree"])
def test_a_folder_that_is_not_the_threads_is_left_alone(store: Store, disks: Disks, flow: str) -> None:
    name = start(store, book(flow), disks.repo, work=str(disks.work))
    (folder,) = thread.find(store, name).state.folders.values()
    run(engine(store, edit, trees=disks.trees()), name, steps=1)
    disks.use("beta")
    run_git(disks.place, "init", "--quiet", "--initial-branch=mine")
    Path(folder.path).mkdir(parents=True)
    (outcome,) = run(engine(store, edit, trees=disks.trees()), name, steps=1)
    assert outcome.status == "suspended" and "the folder does not belong to the thread" in outcome.reason
    assert run_git(disks.place, "branch", "--show-current") == "mine\n"


READERS = """
name: readers
workdir: worktree
roles:
  zero: {prompt: z, schema: {type: object, properties: {}}}
  worker: {prompt: w, schema: {type: object, properties: {xs: {type: array, items: {type: string}}}}}
  each:
    prompt: "{{item}}"
    each: "steps[-1].output.xs"
    capabilities: [read_only]
    schema: {type: object, properties: {}}
graph: {$START: zero, zero: worker, worker: each, each: {done: $END, partly: $END, failed: $END}}
"""


def test_members_read_in_the_newest_copy_of_their_parents_folder(store: Store, disks: Disks) -> None:
    async def work(_prompt: str, context: Context) -> str:
        (context.workdir / context.role).write_text("x")
        return "---\nxs: [a]\n---\n"

    name = start(store, book(READERS), disks.repo, work=str(disks.work))
    for machine in ("alpha", "beta"):
        disks.use(machine)
        run(engine(store, work, trees=disks.trees()), name, steps=1)
    run(replace(engine(store, work, trees=disks.trees()), queues_members=True), name, steps=1)
    (member,) = read_members(store, name)
    need = find_need(store, member, "")
    assert need.host and Here().lacks(need) == ""
    disks.use("alpha")
    assert "the newest files" in Here().lacks(need)
    draft = store.draft()
    move(draft, member, member.state.move_to(Status.IDLE))
    draft.commit()
    (outcome,) = run(engine(store, work, trees=disks.trees()), member.id, steps=1)
    assert outcome.status == "suspended" and "the newest files" in outcome.reason
