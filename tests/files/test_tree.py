"""Snapshots of folders: compared with git's own trees, with the folder itself, and after a kill."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from pathlib import Path
from threading import Barrier

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolecall.errors import Damaged, NotFound, UsageError
from rolecall.files import blame, tree, tree_keep
from rolecall.files.blame import BlamedState
from rolecall.files.snapshot import Changed, Snapshot, load_tree
from rolecall.files.tree import Trees

NAMES = st.one_of(
    st.sampled_from(
        [
            "a",
            "b.txt",
            "c d",
            "ü",
            "-x",
            "line\nbreak",
            'quote"',
            "*",
            "[a]",
            ":(top)",
            "é\u0301",
            "back\\slash",
        ]
    ),
    st.text(
        st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=8
    ).filter(
        lambda name: (
            name not in (".", "..")
            and not name.lower().startswith(".git")
            and not any(fnmatchcase(name, secret) for secret in tree.SECRETS)
        )
    ),
)
FILES = st.dictionaries(
    st.lists(NAMES, min_size=1, max_size=3).map(tuple),
    st.one_of(
        st.tuples(st.just("file"), st.binary(max_size=40)),
        st.tuples(st.just("program"), st.sampled_from([b"#!/bin/sh\r\n", b"a\r\nb\n", b"\0"])),
        st.tuples(st.just("link"), st.sampled_from([b"a", b"../b.txt", b"nowhere", b"/etc"])),
    ),
    max_size=8,
)

EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"


def git(folder: Path, *words: str, **env: str) -> str:
    plain = {"HOME": str(folder), "PATH": os.environ["PATH"], "GIT_CONFIG_NOSYSTEM": "1", **env}
    names = ("-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=main")
    done = subprocess.run(
        ["git", "-C", str(folder), *names, *words], capture_output=True, env=plain, check=True
    )
    return done.stdout.decode().rstrip("\n")


def write(folder: Path, files: dict[tuple[str, ...], tuple[str, bytes]]) -> None:
    for parts, (kind, data) in files.items():
        path = folder.joinpath(*parts)
        if any(parent.is_symlink() or parent.is_file() for parent in path.parents) or os.path.lexists(path):
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        if kind == "link":
            os.symlink(data, os.fsencode(path))
        else:
            path.write_bytes(data)
            path.chmod(0o755 if kind == "program" else 0o644)


def contents(folder: Path) -> dict[str, tuple[object, ...]]:
    """Every file below a folder without its .git: its kind and its bytes."""
    found: dict[str, tuple[object, ...]] = {}
    for top, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name != ".git"]
        for name in [*files, *(name for name in folders if os.path.islink(os.path.join(top, name)))]:
            path = os.path.join(top, name)
            key = os.path.relpath(path, folder)
            if os.path.islink(path):
                found[key] = ("link", os.readlink(path))
            else:
                is_program = bool(os.stat(path).st_mode & stat.S_IXUSR)
                found[key] = ("file", Path(path).read_bytes(), is_program)
    return found


def repository(folder: Path, *options: str, **files: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    git(folder, "init", "--quiet", *options)
    for name, text in (files or {"a": "1\n"}).items():
        (folder / name).write_text(text)
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "first")
    return folder


@settings(max_examples=30)
@given(before=FILES, after=FILES, has_git=st.booleans(), crlf=st.booleans())
def test_a_tree_is_the_one_git_makes_and_is_written_back_byte_for_byte(
    before: dict[tuple[str, ...], tuple[str, bytes]],
    after: dict[tuple[str, ...], tuple[str, bytes]],
    has_git: bool,
    crlf: bool,
) -> None:
    with tempfile.TemporaryDirectory() as name:
        place, work = Path(name), Path(name, "work")
        work.mkdir()
        if has_git:
            git(work, "init", "--quiet")
            if crlf:
                git(work, "config", "core.autocrlf", "true")
        write(work, before)
        trees = Trees(str(place / "trees"))
        first = trees.take(str(work))
        write(work, {("more", *parts): entry for parts, entry in after.items()})
        second = trees.take(str(work))

        plain = {"GIT_DIR": str(place / "plain"), "GIT_WORK_TREE": str(work)}
        git(place, "init", "--quiet", "--bare", str(place / "plain"))
        git(work, "add", "--all", **plain)
        assert second.tree == git(work, "write-tree", **plain)
        for number, snapshot in enumerate((first, second)):
            trees.check_out(snapshot, str(place / f"out{number}"))
        assert contents(place / "out1") == contents(work)
        assert {change.kind for change in trees.changes(first, second)} <= {"added"}
        assert len(trees.changes(first, second)) == len(contents(work)) - len(contents(place / "out0"))
        assert trees.is_whole(second)


def test_nothing_is_written_into_the_users_repository(tmp_path: Path) -> None:
    work = repository(tmp_path / "work")
    hooks = work / ".git" / "hooks"
    for hook in ("post-index-change", "pre-commit", "fsmonitor"):
        (hooks / hook).write_text(f"#!/bin/sh\ntouch {tmp_path / 'ran'}\n")
        (hooks / hook).chmod(0o755)
    git(work, "config", "core.fsmonitor", str(hooks / "fsmonitor"))
    git(work, "config", "filter.evil.clean", f"touch {tmp_path / 'ran'}; cat")
    (work / ".gitattributes").write_text("*.txt filter=evil text eol=crlf\n")
    (work / "new.txt").write_text("one\n")
    before = sorted(path for path in (work / ".git").rglob("*"))
    times = [path.stat().st_mtime_ns for path in before]
    Trees(str(tmp_path / "trees")).take(str(work))
    assert sorted((work / ".git").rglob("*")) == before
    assert [path.stat().st_mtime_ns for path in before] == times
    assert not (tmp_path / "ran").exists()


def test_ignored_files_are_out_untracked_and_tracked_ones_in(tmp_path: Path) -> None:
    work = repository(tmp_path / "work", kept="1\n")
    (work / "forced.log").write_text("tracked though ignored\n")
    git(work, "add", "--force", "forced.log")
    (work / ".gitignore").write_text("*.log\nbuild/\n")
    (work / ".git" / "info" / "exclude").write_text("mine\n")
    (work / "build").mkdir()
    for name in ("other.log", "build/x", "mine", "new"):
        (work / name).write_text("2\n")
    trees = Trees(str(tmp_path / "trees"))
    trees.check_out(trees.take(str(work)), str(tmp_path / "out"))
    assert contents(tmp_path / "out").keys() == {"kept", "forced.log", ".gitignore", "new"}


def test_a_tree_does_not_depend_on_what_was_recorded_before(tmp_path: Path) -> None:
    work = repository(tmp_path / "work", kept="1\n", file="1\n")
    (work / "build").mkdir()
    for name in ("build/x", "out.log", "mine"):
        (work / name).write_text("2\n")
    inner = repository(work / "inner", b="1\n")
    trees = Trees(str(tmp_path / "trees"))
    trees.take(str(work))

    def files() -> set[str]:
        snapshot = trees.take(str(work))
        assert snapshot == Trees(tempfile.mkdtemp(dir=tmp_path)).take(str(work))
        return {change.path for change in trees.changes(Snapshot(EMPTY_TREE, snapshot.repository), snapshot)}

    (work / ".gitignore").write_text("*.log\nbuild/\n")
    assert files() == {".gitignore", "file", "inner", "kept", "mine"}
    git(work, "add", "--force", "out.log")
    assert files() == {".gitignore", "file", "inner", "kept", "mine", "out.log"}
    git(work, "rm", "--quiet", "--cached", "out.log")
    (work / ".git" / "info" / "exclude").write_text("mine\n")
    assert files() == {".gitignore", "file", "inner", "kept"}
    shutil.rmtree(inner / ".git")
    assert files() == {".gitignore", "file", "inner/b", "kept"}
    (work / "file").unlink()
    (work / "file").mkdir()
    (work / "file" / "c").write_text("3\n")
    assert files() == {".gitignore", "file/c", "inner/b", "kept"}


def test_large_files_and_secrets_are_left_out_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree, "LARGEST", 10)
    work = repository(tmp_path / "work", grows="1\n")
    trees = Trees(str(tmp_path / "trees"))
    assert trees.take(str(work)).omitted == ()
    (work / "grows").write_text("12345678901")
    for name in (".env", ".env.example", "id_rsa"):
        (work / name).write_text("x\n")
    snapshot = trees.take(str(work))
    assert snapshot.omitted == (".env", "grows", "id_rsa")
    trees.check_out(snapshot, str(tmp_path / "out"))
    assert contents(tmp_path / "out").keys() == {".env.example"}


def test_a_nested_repository_is_its_commit(tmp_path: Path) -> None:
    work = repository(tmp_path / "work")
    inner = repository(work / "inner", b="1\n")
    (work / "empty").mkdir()
    git(work / "empty", "init", "--quiet")
    trees = Trees(str(tmp_path / "trees"))
    first = trees.take(str(work))
    assert first.omitted == ("empty/",)  # it has no commit that could be recorded
    (inner / "b").write_text("2\n")
    changed = trees.take(str(work))
    assert (changed.tree, changed.omitted) == (first.tree, ("empty/", "inner/"))
    git(inner, "commit", "--quiet", "--all", "--message", "second")
    second = trees.take(str(work))
    assert [change.path for change in trees.changes(first, second)] == ["inner"]
    assert second.omitted == ("empty/",)
    other = repository(work / "other", c="1\n")
    assert trees.take(str(work)).omitted == ("empty/",)
    (other / "c").write_text("2\n")
    assert trees.take(str(work)).omitted == ("empty/", "other/")


def test_changes_and_diff_of_two_trees(tmp_path: Path) -> None:
    work = repository(tmp_path / "work", a="1\n2\n", gone="x\n")
    (work / "binary").write_bytes(b"\0")
    trees = Trees(str(tmp_path / "trees"))
    before = trees.take(str(work))
    (work / "a").write_text("1\n3\n4\n")
    (work / "gone").unlink()
    (work / "binary").write_bytes(b"\0\1")
    after = trees.take(str(work))
    assert trees.changes(before, after) == [
        Changed("a", "changed", 2, 1),
        Changed("binary", "changed", None, None),
        Changed("gone", "removed", 0, 1),
    ]
    assert "-2\n+3\n+4\n" in trees.diff(before, after)
    assert "gone" not in trees.diff(before, after, ["a"])
    assert trees.read(after, "a") == b"1\n3\n4\n"
    with pytest.raises(NotFound):
        trees.read(after, "gone")


def test_a_folder_in_use_is_not_overwritten_and_a_missing_repository_is_an_error(tmp_path: Path) -> None:
    work = repository(tmp_path / "work")
    trees = Trees(str(tmp_path / "trees"))
    snapshot = trees.take(str(work))
    with pytest.raises(UsageError, match="not empty"):
        trees.check_out(snapshot, str(work))
    with pytest.raises(NotFound, match="not on this machine"):
        trees.check_out(snapshot._replace(repository="0" * 16), str(tmp_path / "out"))
    assert not trees.is_whole(Snapshot("0" * 40, snapshot.repository))


def test_a_snapshot_is_whole_after_a_kill_at_any_moment(tmp_path: Path) -> None:
    """Each round changes a file and kills the process that takes the snapshot a little later than before."""
    work = repository(tmp_path / "work", **{f"f{number}": f"{number}\n" for number in range(50)})
    trees = Trees(str(tmp_path / "trees"))
    program = "import sys; from rolecall.files import tree; print(flush=1); tree.Trees(sys.argv[1]).take(sys.argv[2])"
    for number in range(10):
        (work / f"f{number}").write_text("changed\n")
        words = [sys.executable, "-c", program, str(tmp_path / "trees"), str(work)]
        with subprocess.Popen(words, stdout=subprocess.PIPE, start_new_session=True) as process:
            assert process.stdout is not None
            process.stdout.readline()
            for _ in range(number * 40_000):
                pass
            os.killpg(process.pid, signal.SIGKILL)
        snapshot = trees.take(str(work))
        assert trees.is_whole(snapshot)
        trees.check_out(snapshot, str(tmp_path / f"out{number}"))
        assert contents(tmp_path / f"out{number}") == contents(work)


def test_folders_of_one_source_are_recorded_by_several_threads_of_a_process(tmp_path: Path) -> None:
    for attempt in range(20):
        trees, barrier = Trees(str(tmp_path / f"trees{attempt}")), Barrier(16)

        def prepare(_: int, trees: Trees = trees, barrier: Barrier = barrier) -> str:
            barrier.wait()
            return trees.prepare(str(tmp_path / "source"))

        with ThreadPoolExecutor(16) as pool:
            assert len({*pool.map(prepare, range(16))}) == 1


def test_restoring_keeps_ignored_and_omitted_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "LARGEST", 100)
    work = repository(tmp_path / "work", kept="1\n")
    (work / ".gitignore").write_text("notes.local\n")
    (work / "notes.local").write_text("mine\n")
    (work / "large").write_text("x" * 101)
    trees = Trees(str(tmp_path / "trees"))
    found = trees.take(str(work))
    (work / ".gitignore").unlink()
    (work / "large").write_text("short")
    (work / "kept").write_text("2\n")
    (work / "new").write_text("by the agent\n")
    trees.restore(found, str(work))
    names = {".gitignore", "notes.local", "large", "kept"}
    assert contents(work).keys() == names
    assert (work / "kept").read_text() == "1\n"


def test_our_own_folders_are_not_recorded(tmp_path: Path) -> None:
    work = tmp_path / "work"
    (work / "home" / "trees").mkdir(parents=True)
    (work / "a").write_text("1\n")
    (work / "store.db-wal").write_text("log")
    trees = Trees(str(work / "home" / "trees"), private=(str(work / "home"), str(work / "store.db")))
    first = trees.take(str(work))
    assert trees.take(str(work)) == first
    trees.check_out(first, str(tmp_path / "out"))
    assert contents(tmp_path / "out").keys() == {"a"}


def test_a_folder_that_becomes_a_link_and_a_file_that_becomes_a_pipe(tmp_path: Path) -> None:
    work = repository(tmp_path / "work", gone="1\n")
    (work / "src").mkdir()
    (work / "src" / "a").write_text("1\n")
    trees = Trees(str(tmp_path / "trees"))
    trees.take(str(work))
    (work / "src").rename(work / "moved")
    os.symlink("moved", work / "src")
    (work / "moved" / "a").write_text("2\n")
    (work / "gone").unlink()
    os.mkfifo(work / "gone")
    snapshot = trees.take(str(work))
    assert snapshot.omitted == ("gone",)
    trees.check_out(snapshot, str(tmp_path / "out"))
    assert contents(tmp_path / "out") == {"src": ("link", "moved"), "moved/a": ("file", b"2\n", False)}


def test_a_commit_in_a_submodule_is_seen(tmp_path: Path) -> None:
    inner = repository(tmp_path / "inner", f="1\n")
    work = repository(tmp_path / "work")
    git(work, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(inner), "sub")
    trees = Trees(str(tmp_path / "trees"))
    first = trees.take(str(work))
    (work / "sub" / "f").write_text("2\n")
    git(work / "sub", "commit", "--quiet", "--all", "--message", "second")
    assert trees.recall(str(work)) is None
    assert [change.path for change in trees.changes(first, trees.take(str(work)))] == ["sub"]


def test_ids_that_are_not_ids_never_reach_git() -> None:
    with pytest.raises(Damaged, match="not the id"):
        load_tree({"found": "--output=/tmp/x", "repository": "0" * 16})
    with pytest.raises(Damaged, match="not the id"):
        load_tree({"found": "0" * 40, "repository": "../../elsewhere"})


def test_a_folder_that_is_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "MOST_BYTES", 100)
    work = repository(tmp_path / "work")
    (work / "data").write_text("x" * 101)
    with pytest.raises(tree.TooManyFiles, match="of new files"):
        Trees(str(tmp_path / "trees")).take(str(work))


def test_a_folder_that_was_too_large_is_not_walked_again_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trees, work = Trees(str(tmp_path / "trees")), tmp_path / "work"
    work.mkdir()
    (work / "a").touch()
    (work / "b").touch()
    with monkeypatch.context() as patch:
        patch.setattr(tree, "MOST_FILES", 1)
        with pytest.raises(tree.TooManyFiles, match="more than 1 files") as refused:
            trees.take(str(work))
        assert not refused.value.is_known
    words = r"had more than 1 files at \d\d:\d\d; it is looked at again after \d\d:\d\d"
    with pytest.raises(tree.TooManyFiles, match=words) as refused:
        trees.take(str(work))
    assert refused.value.is_known
    (mark,) = (tmp_path / "trees").glob("*/indexes/*.refused")
    os.utime(mark, (1, 1))
    assert trees.take(str(work)).tree
    os.utime(mark)
    with pytest.raises(tree.TooManyFiles):
        trees.take(str(work))
    (work / ".gitignore").write_text("b\n")
    os.utime(work / ".gitignore", (mark.stat().st_mtime + 1,) * 2)
    assert trees.take(str(work)).tree


def test_a_repository_with_sha256_ids_is_recorded_like_any_other(tmp_path: Path) -> None:
    work = repository(tmp_path / "work", "--object-format=sha256", a="1\n2\n")
    trees = Trees(str(tmp_path / "trees"))
    first = trees.take(str(work))
    assert first.tree == git(work, "rev-parse", "HEAD^{tree}")
    (work / "a").write_text("1\n3\n")
    second = trees.take(str(work))
    assert trees.changes(first, second) == [Changed("a", "changed", 1, 1)]
    lines = blame.blame(trees, [BlamedState(first), BlamedState(second, (0,))], 1, "a")
    assert [line.state for line in lines] == [0, 1]
    repository(work / "inner")
    # Its commit has an id of the other kind.
    assert trees.take(str(work)) == second._replace(omitted=("inner/",))
    shutil.rmtree(work / "inner")
    named = {first.repository: [first.tree, second.tree]}
    assert not tree_keep.write_bundle(trees.place, named, str(tmp_path / "bundle"))
    assert tree_keep.read_bundle(str(tmp_path / "other"), str(tmp_path / "bundle")) == 2
    Trees(str(tmp_path / "other")).check_out(second, str(tmp_path / "out"))
    assert contents(tmp_path / "out") == contents(work)


@settings(max_examples=6)
@given(before=FILES, after=FILES, cut=st.integers(0, 8))
def test_changes_are_made_again_in_another_folder_and_from_halfway(
    before: dict[tuple[str, ...], tuple[str, bytes]],
    after: dict[tuple[str, ...], tuple[str, bytes]],
    cut: int,
) -> None:
    with tempfile.TemporaryDirectory() as name:
        trees, there, here = Trees(f"{name}/trees"), Path(name, "there"), Path(name, "here")
        for folder in (there, here):
            folder.mkdir()
            write(folder, before)
        found = trees.take(str(there))
        for path in there.iterdir():
            path.unlink() if path.is_symlink() or path.is_file() else shutil.rmtree(path)
        write(there, after)
        left = trees.take(str(there))
        if trees.advance(found, left, str(here)):  # a folder became a file
            assert trees.take(str(here)).tree == found.tree
            return
        assert contents(here) == contents(there)

        # As a process leaves it that dies in the middle of writing a file.
        changed = [change for change in trees.changes(found, left) if change.kind != "removed"]
        for change in changed[:1]:
            path = here / change.path
            if path.is_file() and not path.is_symlink():
                path.write_bytes(path.read_bytes()[:cut])
        assert trees.advance(found, left, str(here), is_begun=True) == ""
        assert contents(here) == contents(there)


def test_changes_are_made_only_in_a_folder_that_is_as_it_was_found(tmp_path: Path) -> None:
    trees, there, here = Trees(str(tmp_path / "trees")), tmp_path / "there", tmp_path / "here"
    for folder in (there, here):
        repository(folder, a="1\n", b="1\n", **{".gitignore": "c\n"})
    found = trees.take(str(there))
    (there / "a").write_text("2\n")
    (there / ".gitignore").write_text("")
    (there / "c").write_text("2\n")
    left = trees.take(str(there))

    (here / "b").write_text("mine\n")
    as_it_is = contents(here)
    for is_begun in (False, True):
        assert "not those from before the step" in trees.advance(found, left, str(here), is_begun=is_begun)
    (here / "b").write_text("1\n")
    (here / "c").write_text("mine, and ignored\n")
    assert trees.advance(found, left, str(here)) == "c is in the way"
    (here / "c").unlink()
    (here / "b").write_text("mine\n")
    assert contents(here) == as_it_is
    (here / "b").write_text("1\n")
    assert trees.advance(found, left, str(here)) == "" and contents(here) == contents(there)

    (there / ".env").write_text("SECRET=1\n")
    assert "not recorded" in trees.advance(left, trees.take(str(there)), str(here))
    assert "not on this machine" in trees.advance(left, Snapshot(found.tree, "0" * 16), str(here))


@pytest.mark.parametrize("is_link", [False, True])
def test_an_ignored_file_where_a_folder_has_to_be_stays(tmp_path: Path, is_link: bool) -> None:
    trees, there, here = Trees(str(tmp_path / "trees")), tmp_path / "there", tmp_path / "here"
    for folder in (there, here):
        repository(folder, a="1\n")
    found = trees.take(str(there))
    (there / "out").mkdir()
    (there / "out" / "x").write_text("made\n")
    left = trees.take(str(there))

    (here / ".git" / "info" / "exclude").write_text("out\n")
    (here / "out").symlink_to(tmp_path) if is_link else (here / "out").write_text("mine\n")
    as_it_is = contents(here)
    assert trees.advance(found, left, str(here)) == "out is in the way"
    with pytest.raises(UsageError, match="out is in the way"):
        trees.restore(left, str(here))
    assert contents(here) == as_it_is


@pytest.mark.parametrize("mine", [None, "ke"])
def test_only_what_a_dead_process_was_writing_may_be_missing_or_short(
    tmp_path: Path, mine: str | None
) -> None:
    trees, there, here = Trees(str(tmp_path / "trees")), tmp_path / "there", tmp_path / "here"
    for folder in (there, here):
        repository(folder, a="1\n", b="1\n", keep="keep\n")
    found = trees.take(str(there))
    (there / "a").write_text("made\n")
    left = trees.take(str(there))
    (here / "a").write_text("ma")  # half written
    as_it_is = contents(here)
    (here / "keep").unlink() if mine is None else (here / "keep").write_text(mine)
    for before, after in ((found, left), (left, found)):
        assert "not those" in trees.advance(before, after, str(here), is_begun=True)
    (here / "keep").write_text("keep\n")
    assert contents(here) == as_it_is

    assert trees.advance(left, found, str(here), is_begun=True) == ""  # back
    assert trees.take(str(here)).tree == found.tree
