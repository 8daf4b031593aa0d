"""Merging branches into a folder: real repositories, real processes."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from rolecall.errors import Conflict, UsageError
from rolecall.files import merge
from rolecall.files.merge import MergeCheck, Merged, SetAside, Work

NUMBERS = "".join(f"{number}\n" for number in range(1, 21))


class Repository:
    """A folder with a branch, and worktrees of it."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.folder = place / "main folder"
        self.folder.mkdir(parents=True)
        self.git("init", "--quiet", "--initial-branch=main")
        self.git("config", "user.name", "Somebody")
        self.git("config", "user.email", "some@body")
        self.write({"numbers": NUMBERS, "old": "old\n", "sub/deep": "deep\n"})
        self.git("add", "--all")
        self.git("commit", "--quiet", "-m", "first")

    def git(self, *args: str, folder: Path | None = None) -> str:
        argv = ["git", "-C", str(folder or self.folder), *args]
        done = subprocess.run(argv, capture_output=True, check=False)
        assert done.returncode == 0, (args, done.stderr)
        return os.fsdecode(done.stdout).strip("\n")

    def write(self, files: dict[str, str | None], folder: Path | None = None) -> None:
        for name, text in files.items():
            path = (folder or self.folder) / name
            if text is None:
                path.unlink()
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)

    def member(self, name: str, files: dict[str, str | None], *, is_committed: bool = False) -> Work:
        path = self.place / f"tree of {name}"
        self.git("worktree", "add", "--quiet", "-b", f"rolecall/{name}", str(path))
        self.write(files, path)
        if is_committed:
            self.git("add", "--all", folder=path)
            self.git("commit", "--quiet", "-m", f"by {name}", folder=path)
        return Work(name, f"thread {name}: Write", f"rolecall/{name}", str(path))

    def merge(self, work: Work, check: merge.Check | None = None) -> Merged | SetAside:
        return asyncio.run(merge.merge(str(self.folder), work, check))

    def state(self) -> tuple[str, str, str, dict[str, bytes]]:
        """The commit, the index, the status and every file."""
        files = {
            str(path.relative_to(self.folder)): path.read_bytes()
            for path in sorted(self.folder.rglob("*"))
            if path.is_file() and ".git" not in path.parts
        }
        index = self.git("ls-files", "--stage")
        return self.git("rev-parse", "HEAD"), index, self.git("status", "--porcelain", "-uall"), files

    def unchecked(self) -> str:
        return self.git("for-each-ref", "refs/worktree")


@pytest.fixture
def repo(tmp_path: Path) -> Repository:
    return Repository(tmp_path)


async def fail() -> MergeCheck:
    return MergeCheck(("make", "test"), False, "'make test' exited with 2", "2 tests failed")


async def succeed() -> MergeCheck:
    return MergeCheck(("make", "test"), True, "", "all passed")


def change(line: int, text: str) -> str:
    return NUMBERS.replace(f"\n{line}\n", f"\n{text}\n")


# -- merging --


def test_members_are_merged_one_after_the_other_with_what_they_had_not_committed(repo: Repository) -> None:
    one = repo.member("one", {"numbers": change(3, "three"), "new/one": "1\n"})
    two = repo.member("two", {"numbers": change(17, "seventeen"), "old": None}, is_committed=True)
    for work in (one, two):
        assert isinstance(repo.merge(work, succeed), Merged)
    assert (repo.folder / "numbers").read_text() == change(3, "three").replace("\n17\n", "\nseventeen\n")
    assert (repo.folder / "new/one").read_text() == "1\n"
    assert not (repo.folder / "old").exists()
    assert repo.git("status", "--porcelain") == ""
    titles = repo.git("log", "--first-parent", "--format=%s %(trailers:key=Rolecall-Thread,valueonly)")
    assert [line.strip() for line in titles.splitlines() if line] == [
        "Merge thread two: Write two",
        "Merge thread one: Write one",
        "first",
    ]
    assert repo.unchecked() == ""


def test_work_is_merged_once(repo: Repository) -> None:
    work = repo.member("one", {"numbers": change(3, "three")})
    first = repo.merge(work)
    assert isinstance(first, Merged)
    assert first.commit == repo.git("rev-parse", "HEAD")
    before = repo.state()
    assert repo.merge(work, fail) == Merged(None)
    assert repo.state() == before


def test_a_member_that_changed_nothing_changes_nothing(repo: Repository) -> None:
    before = repo.state()
    assert repo.merge(repo.member("one", {}), fail) == Merged(None)
    assert repo.state() == before


def test_the_same_change_by_two_members_is_no_conflict(repo: Repository) -> None:
    works = [repo.member(name, {"numbers": change(3, "three")}) for name in ("one", "two")]
    assert all(isinstance(repo.merge(work), Merged) for work in works)
    assert (repo.folder / "numbers").read_text() == change(3, "three")


def test_names_are_taken_as_they_are(repo: Repository) -> None:
    odd = ["ä b", "-rf", ":(top)x", "new\nline", "tab\there", "*.py", '"quoted"', "a\\b", " leading"]
    work = repo.member("one", dict.fromkeys(odd, "one\n"))
    bytes_only = os.fsencode(work.path) + b"/\xff\xfe"
    Path(os.fsdecode(bytes_only)).write_text("one\n")
    other = repo.member("two", dict.fromkeys(odd, "two\n"))
    Path(os.fsdecode(os.fsencode(other.path) + b"/\xff\xfe")).write_text("two\n")
    assert isinstance(repo.merge(work, succeed), Merged)
    assert {path.name for path in repo.folder.iterdir()} >= {*odd, os.fsdecode(b"\xff\xfe")}

    before = repo.state()
    aside = repo.merge(other)
    assert isinstance(aside, SetAside)
    assert {file.path for file in aside.files} == {*odd, "��"}
    assert {by.thread for file in aside.files for by in file.changed_by} == {"one"}
    json.dumps(aside.as_json(), ensure_ascii=False).encode("utf-8")
    assert repo.state() == before

    before = repo.state()
    third = repo.member("three", {name: None for name in odd if name != "ä b"} | {"ä b": "three\n"})
    assert isinstance(repo.merge(third, fail), SetAside)
    assert repo.state() == before


# -- conflicts --


def test_a_conflict_leaves_the_folder_alone_and_says_whose_change_it_is(repo: Repository) -> None:
    one = repo.member("one", {"numbers": change(3, "three"), "old": "changed\n"})
    two = repo.member("two", {"numbers": change(3, "drei"), "old": None, "fine": "fine\n"})
    three = repo.member("three", {"numbers": change(17, "seventeen")})
    assert isinstance(repo.merge(one), Merged)
    before = repo.state()
    aside = repo.merge(two)
    assert isinstance(aside, SetAside)
    assert aside.reason == "conflicts in numbers, old"
    assert repo.state() == before
    numbers, old = aside.files
    assert numbers.kind == "contents"
    assert old.kind == "modify/delete"
    assert "old deleted in rolecall/two and modified in HEAD" in old.message
    (hunk,) = numbers.hunks
    lines = [line for line in hunk.splitlines() if not line.startswith("|||||||")]
    assert lines == ["<<<<<<< HEAD", "three", "3", "=======", "drei", ">>>>>>> rolecall/two"]
    assert [(by.thread, by.title) for by in numbers.changed_by] == [("one", "Merge thread one: Write")]
    assert [by.thread for by in old.changed_by] == ["one"]

    # The work is all on its branch, and the next one goes on.
    assert repo.git("show", "rolecall/two:fine") == "fine"
    assert isinstance(repo.merge(three), Merged)


def test_a_conflict_with_a_commit_of_nobodys_names_the_commit(repo: Repository) -> None:
    work = repo.member("one", {"numbers": change(3, "three")})
    repo.write({"numbers": change(3, "mine")})
    repo.git("commit", "--quiet", "-am", "My own change")
    aside = repo.merge(work)
    assert isinstance(aside, SetAside)
    (by,) = aside.files[0].changed_by
    assert by == merge.ConflictingCommit(repo.git("rev-parse", "HEAD"), "My own change", "")


def test_large_conflicts_are_cut(repo: Repository) -> None:
    repo.write({"many": "".join(f"{line}\n\n\n\n\n\n\n\n" for line in range(30)), "long": "x\n"})
    repo.git("add", "--all")
    repo.git("commit", "--quiet", "-m", "many")
    texts = [
        {
            "many": "".join(f"{name}{line}\n\n\n\n\n\n\n\n" for line in range(30)),
            "long": name * 3000,
        }
        for name in ("one", "two")
    ]
    works = [repo.member(name, dict(text)) for name, text in zip(("one", "two"), texts, strict=True)]
    repo.merge(works[0])
    aside = repo.merge(works[1])
    assert isinstance(aside, SetAside)
    long, many = aside.files
    assert len(many.hunks) == merge.MOST_HUNKS + 1
    assert many.hunks[-1] == "… 20 more"
    assert "more characters" in long.hunks[0]
    assert len(long.hunks[0]) < merge.MOST_TEXT + 50


def test_work_that_cannot_be_merged_is_set_aside_with_the_reason(repo: Repository) -> None:
    elsewhere = repo.member("one", {"a": "a\n"})
    repo.git("switch", "--quiet", "-c", "another", folder=Path(elsewhere.path))
    gone = repo.member("two", {})
    repo.git("worktree", "remove", "--force", gone.path)
    repo.git("branch", "-D", gone.branch)
    unrelated = repo.member("three", {})
    repo.git("switch", "--quiet", "--orphan", "o", folder=Path(unrelated.path))
    repo.git("branch", "-D", unrelated.branch)
    repo.git("switch", "--quiet", "--orphan", unrelated.branch, folder=Path(unrelated.path))
    repo.write({"b": "b\n"}, Path(unrelated.path))
    half = repo.member("four", {"numbers": change(3, "three")}, is_committed=True)
    repo.git("switch", "--quiet", "-c", "side", "main", folder=Path(half.path))
    repo.write({"numbers": change(3, "drei")}, Path(half.path))
    repo.git("commit", "--quiet", "-am", "side", folder=Path(half.path))
    repo.git("switch", "--quiet", half.branch, folder=Path(half.path))
    argv = ["git", "-C", half.path, "merge", "side"]
    assert subprocess.run(argv, capture_output=True, check=False).returncode == 1
    before = repo.state()
    reasons = [repo.merge(work) for work in (elsewhere, gone, unrelated, half)]
    received = [aside.reason for aside in reasons if isinstance(aside, SetAside)]
    assert "has another checked out instead of rolecall/one" in received[0]
    assert received[1] == "the branch rolecall/two is gone"
    assert "has no commit in common" in received[2]
    assert "conflicts that are not resolved" in received[3]
    assert repo.state() == before
    assert (Path(elsewhere.path) / "a").read_text() == "a\n"


@pytest.mark.parametrize("what", ["empty", "untracked", "committed"])
def test_work_with_a_repository_inside_is_set_aside_because_git_keeps_only_a_link(
    repo: Repository, what: str
) -> None:
    work = repo.member("one", {"inner/file": "kept\n"})
    inner = Path(work.path) / "inner"
    repo.git("init", "--quiet", folder=inner)
    if what != "empty":
        repo.git("add", "--all", folder=inner)
        identity = ("-c", "user.name=Somebody", "-c", "user.email=some@body")
        repo.git(*identity, "commit", "--quiet", "-m", "inner", folder=inner)
    if what == "committed":
        repo.git("add", "--all", folder=Path(work.path))
        repo.git("commit", "--quiet", "-m", "by one", folder=Path(work.path))
    before = repo.state()
    aside = repo.merge(work)
    assert isinstance(aside, SetAside)
    assert aside.reason == f"git would keep only a link to the repository inner in {work.path}, not its files"
    assert repo.state() == before
    assert (inner / "file").read_text() == "kept\n"

    shutil.rmtree(inner / ".git")
    repo.git("rm", "--cached", "--quiet", "--ignore-unmatch", "inner", folder=Path(work.path))
    assert isinstance(repo.merge(work), Merged)
    assert (repo.folder / "inner/file").read_text() == "kept\n"


# -- the check --


def test_a_failed_check_undoes_the_merge_and_the_rest_goes_on(repo: Repository) -> None:
    files: dict[str, str | None] = {"numbers": change(3, "three"), "old": None, "new/deep/file": "x\n"}
    before = repo.state()
    aside = repo.merge(repo.member("one", files), fail)
    assert isinstance(aside, SetAside)
    assert aside.reason == "'make test' exited with 2"
    assert aside.as_json()["check"] == {"command": ["make", "test"], "output": "2 tests failed"}
    assert repo.state() == before
    assert not (repo.folder / "new").exists()
    assert repo.git("show", "rolecall/one:new/deep/file") == "x"
    assert isinstance(repo.merge(repo.member("two", {"numbers": change(3, "drei")}), succeed), Merged)


def test_the_check_sees_the_merge_in_the_folder(repo: Repository) -> None:
    seen = []

    async def look() -> MergeCheck:
        seen.append((repo.folder / "new").read_text())
        return await succeed()

    repo.merge(repo.member("one", {"new": "x\n"}), look)
    assert seen == ["x\n"]


def test_a_check_that_is_cancelled_or_raises_undoes_the_merge(repo: Repository) -> None:
    work, before = repo.member("one", {"old": None, "new": "x\n"}), repo.state()

    async def hang() -> MergeCheck:
        await asyncio.sleep(3600)
        raise AssertionError

    async def cancel() -> None:
        task = asyncio.create_task(merge.merge(str(repo.folder), work, hang))
        while not (repo.folder / "new").exists():
            await asyncio.sleep(0.01)
        task.cancel()
        await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancel())
    assert repo.state() == before

    async def missing() -> MergeCheck:
        raise UsageError("the program 'mke' was not found")

    with pytest.raises(UsageError, match="mke"):
        repo.merge(work, missing)
    assert repo.state() == before


def test_what_changes_in_merged_files_during_a_failed_check_is_kept_on_a_branch(repo: Repository) -> None:
    work = repo.member("one", {"numbers": change(3, "three"), "old": None, "new": "x\n", "other": "y\n"})
    before = repo.state()

    async def disturb() -> MergeCheck:
        repo.write({"numbers": "formatted\n", "old": "again\n", "new": None, "by-product": "z\n"})
        return await fail()

    aside = repo.merge(work, disturb)
    assert isinstance(aside, SetAside)
    assert repo.git("show", f"{aside.left}:numbers") == "formatted"
    assert repo.git("show", f"{aside.left}:old") == "again"
    (repo.folder / "by-product").unlink()  # an untracked file that was never part of the merge stays
    assert repo.state() == before


def test_a_commit_during_a_failed_check_is_not_undone(repo: Repository) -> None:
    work = repo.member("one", {"new": "x\n"})

    async def disturb() -> MergeCheck:
        repo.write({"mine": "mine\n"})
        repo.git("add", "mine")
        repo.git("commit", "--quiet", "-m", "mine")
        return await fail()

    with pytest.raises(UsageError, match="on top of a merge that did not pass") as caught:
        repo.merge(work, disturb)
    assert "revert -m 1" in caught.value.hint
    assert (repo.folder / "mine").read_text() == "mine\n"


# -- the user's own changes --


@pytest.mark.parametrize("check", [succeed, fail])
def test_uncommitted_changes_elsewhere_stay_as_they_are(repo: Repository, check: merge.Check) -> None:
    repo.write({"sub/deep": "staged\n", "staged-new": "s\n"})
    repo.git("add", "--all")
    repo.write({"sub/deep": "staged\nand more\n", "untracked": "u\n", "old": None})
    status = repo.git("status", "--porcelain")
    index = repo.git("diff", "--cached")
    result = repo.merge(repo.member("one", {"numbers": change(3, "three"), "new": "x\n"}), check)
    assert isinstance(result, Merged if check is succeed else SetAside)
    assert repo.git("status", "--porcelain") == status
    assert repo.git("diff", "--cached") == index
    assert (repo.folder / "sub/deep").read_text() == "staged\nand more\n"
    assert (repo.folder / "numbers").read_text() == (change(3, "three") if check is succeed else NUMBERS)


@pytest.mark.parametrize("mine", [{"numbers": "mine\n"}, {"new": "mine\n"}, {"numbers": None}])
@pytest.mark.parametrize("is_staged", [False, True])
def test_uncommitted_changes_in_the_same_files_refuse_the_merge(
    repo: Repository, mine: dict[str, str | None], is_staged: bool
) -> None:
    work = repo.member("one", {"numbers": change(3, "three"), "new": "x\n"}, is_committed=True)
    other = repo.member("two", {"two": "2\n"}, is_committed=True)
    repo.write(mine)
    if is_staged:
        repo.git("add", "--all")
    before = repo.state()
    refusal = f"uncommitted changes in files that are to be merged: {next(iter(mine))}"
    with pytest.raises(UsageError, match=refusal):
        merge.refuse_overlaps(str(repo.folder), [other, work])
    merge.refuse_overlaps(str(repo.folder), [other])
    with pytest.raises(UsageError, match=refusal):
        repo.merge(work, succeed)
    assert repo.state() == before
    assert repo.unchecked() == ""
    assert isinstance(repo.merge(other), Merged)


def test_an_ignored_file_is_not_overwritten(repo: Repository) -> None:
    work = repo.member("one", {".env": "theirs\n"}, is_committed=True)
    (repo.folder / ".git/info/exclude").write_text(".env\n")
    repo.write({".env": "my secret\n"})
    with pytest.raises(UsageError, match=r"\.env"):
        repo.merge(work)
    assert (repo.folder / ".env").read_text() == "my secret\n"


def test_a_folder_that_cannot_take_a_merge_refuses(repo: Repository) -> None:
    work = repo.member("one", {"new": "x\n"})
    repo.git("switch", "--quiet", "--detach")
    with pytest.raises(UsageError, match="no branch is checked out"):
        repo.merge(work)


# -- several at once, and crashes --


def test_one_merges_at_a_time(repo: Repository) -> None:
    works = [repo.member(f"m{number}", {f"file-{number}": "x\n"}) for number in range(5)]
    at_once: list[int] = []

    async def check() -> MergeCheck:
        at_once.append(1)
        assert len(at_once) == 1
        with pytest.raises(Conflict), merge.lock(str(repo.folder)):
            pass
        await asyncio.sleep(0.01)
        at_once.pop()
        return await succeed()

    async def merge_all() -> None:
        results = await asyncio.gather(*(merge.merge(str(repo.folder), work, check) for work in works))
        assert all(isinstance(result, Merged) for result in results)

    asyncio.run(merge_all())
    assert len(list(repo.folder.glob("file-*"))) == 5


def test_whoever_waits_for_a_turn_can_be_stopped(repo: Repository) -> None:
    work, looks = repo.member("one", {"new": "x\n"}), iter([False, False, True])

    async def wait() -> None:
        await merge.merge(str(repo.folder), work, is_stopped=lambda: next(looks))

    with merge.lock(str(repo.folder)), pytest.raises(Conflict, match="stopped before"):
        asyncio.run(wait())
    assert not (repo.folder / "new").exists()


CHILD = """\
import asyncio, sys
from rolecall.files import merge

async def check():
    print("checking", flush=True)
    return merge.MergeCheck(("true",), sys.argv[1] == "pass", "it failed", "")

print(asyncio.run(merge.merge(sys.argv[2], merge.Work(*sys.argv[3:]), check)))
"""
WRAPPER = """\
#!/bin/sh
"$REAL" "$@"; code=$?
case " $* " in
*" add "*|*" commit "*|*" commit-tree "*|*" update-ref "*|*" merge "*|*" read-tree "*|*" update-index "*)
    n=$(cat "$COUNT"); echo $((n - 1)) > "$COUNT"
    [ "$n" = 1 ] && kill -9 $PPID;;
esac
exit $code
"""


@pytest.mark.parametrize("outcome", ["pass", "fail"])
def test_killed_after_any_write_the_next_try_ends_as_if_nothing_had_happened(
    tmp_path: Path, outcome: str
) -> None:
    wrapper = tmp_path / "bin/git"
    wrapper.parent.mkdir()
    wrapper.write_text(WRAPPER)
    wrapper.chmod(0o755)
    start = Repository(tmp_path / "start")
    work = start.member("one", {"numbers": change(3, "three"), "old": None, "new/file": "x\n"})
    start.write({"sub/deep": "my own\n", "mine": "mine\n"})
    before = start.state()
    env = dict(os.environ) | {
        "REAL": shutil.which("git") or "",
        "COUNT": str(tmp_path / "count"),
    }
    env["PATH"] = f"{wrapper.parent}:{env['PATH']}"
    kills = 0
    for call in range(1, 100):
        # The same paths each time, because worktrees know each other by path.
        shutil.rmtree(tmp_path / "kept", ignore_errors=True)
        shutil.copytree(start.place, tmp_path / "kept", symlinks=True)
        (tmp_path / "count").write_text(str(call))
        argv = [sys.executable, "-c", CHILD, outcome, str(start.folder), *work]
        done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL, done.stderr
        kills += 1

        result = start.merge(work, succeed if outcome == "pass" else fail)
        commit, _, status, files = start.state()
        assert start.unchecked() == ""
        assert [line[3:] for line in status.splitlines()] == ["sub/deep", "mine"]
        if outcome == "fail":
            assert isinstance(result, SetAside)
            assert start.state() == before
        else:
            assert isinstance(result, Merged)
            assert (files["numbers"], "old" in files, files["new/file"]) == (
                change(3, "three").encode(),
                False,
                b"x\n",
            )
            assert start.git("rev-list", "--count", "--merges", commit) == "1"
        assert files["mine"] == b"mine\n"
        assert start.git("branch", "--list", "rolecall/left-*") == ""
        shutil.rmtree(start.place)
        shutil.copytree(tmp_path / "kept", start.place, symlinks=True)
    assert kills == (6 if outcome == "pass" else 11)


def test_files_that_git_wrote_before_it_died_are_taken_back(repo: Repository) -> None:
    """Power can fail in the middle of git's own update: files of the merge, and neither index nor HEAD."""
    work = repo.member("one", {"numbers": change(3, "three"), "old": None, "new": "x\n"})
    assert isinstance(repo.merge(work), Merged)
    after = repo.git("rev-parse", "HEAD")
    repo.git("reset", "--quiet", "--hard", "HEAD^1")
    before = repo.state()
    repo.git("update-ref", "refs/worktree/rolecall/unchecked", after)
    repo.write({"new": "x\n", "old": None})
    assert isinstance(repo.merge(work, fail), SetAside)
    assert repo.state() == before

    repo.git("update-ref", "refs/worktree/rolecall/unchecked", after)
    repo.write({"new": "x\n", "numbers": "mine\n"})
    with pytest.raises(UsageError, match=r"files that are to be merged: numbers\n"):
        repo.merge(work, fail)
    assert (repo.folder / "numbers").read_text() == "mine\n"
    assert repo.git("status", "--porcelain") == " M numbers"
    assert repo.git("branch", "--list", "rolecall/left-*") == ""


def test_modes_and_links_are_merged_and_taken_back(repo: Repository) -> None:
    work = repo.member("one", {"script": "#!/bin/sh\n"})
    (Path(work.path) / "old").chmod(0o755)
    (Path(work.path) / "link").symlink_to("old")
    before = repo.state()
    assert isinstance(repo.merge(work, fail), SetAside)
    assert repo.state() == before
    assert isinstance(repo.merge(work, succeed), Merged)
    assert (repo.folder / "old").stat().st_mode & stat.S_IXUSR
    assert os.readlink(repo.folder / "link") == "old"


def test_a_worktree_can_be_the_folder_and_has_a_record_of_its_own(repo: Repository) -> None:
    parent = repo.member("parent", {})
    folder = Path(parent.path)
    repo.git("worktree", "add", "--quiet", "-b", "rolecall/m", str(repo.place / "m"), "rolecall/parent")
    (repo.place / "m/new").write_text("x\n")
    work = Work("m", "thread m: Write", "rolecall/m", str(repo.place / "m"))
    before = repo.state()
    assert isinstance(asyncio.run(merge.merge(str(folder), work, fail)), SetAside)
    assert isinstance(asyncio.run(merge.merge(str(folder), work, succeed)), Merged)
    assert (folder / "new").read_text() == "x\n"
    assert repo.state() == before
