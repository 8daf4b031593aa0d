"""A disk that is full and folders that may not be written: a clear error, and nothing stored is lost."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import writer
from disk_fixture import fill_up, mount
from writer import HEAD

from rolecall.errors import StorageError
from rolecall.store.store import BUILTIN, Store
from rolecall.store.verify import verify

KINDS = pytest.mark.parametrize("kind", ["sqlite", "files"])


def url(kind: str, path: Path) -> str:
    return f"files:{path}" if kind == "files" else str(path)


def put_until_full(store: Store) -> tuple[list[str], StorageError]:
    """The texts that were put, and the error that ended it."""
    texts: list[str] = []
    while len(texts) < 1000:
        text = f"{len(texts)} " * 3000
        try:
            store.put_text(text, durable=True)
        except StorageError as exc:
            return texts, exc
        texts.append(text)
    raise AssertionError("the disk was never full")


def problems(store: Store) -> list[Any]:
    return [problem for done in verify(store) for problem in done.problems]


def check_texts(store: Store, texts: list[str]) -> None:
    assert set(texts) <= {store.get(node).payload for node in store.of_type(BUILTIN["string"])}
    assert problems(store) == []


@KINDS
def test_a_full_disk_is_said_loses_nothing_and_works_again_with_room(
    small_disk: Path, kind: str, rolecall: Any
) -> None:
    path = small_disk / "store"
    room = small_disk / "room"
    room.write_bytes(b"x" * 200_000)
    with writer.connect([kind, str(path)]) as store:
        texts, error = put_until_full(store)
        assert "no room" in error.message and str(path) in error.message
        assert "Free some disk space" in error.hint
        assert len(texts) > 5
        check_texts(store, texts)
        done = rolecall("cas", "put-text", "x" * 50_000, "--store", url(kind, path), check=5)
        assert "no room" in done.stderr
        room.unlink()
        texts.append("with room again")
        store.put_text(texts[-1])
    with writer.connect([kind, str(path)], create=False) as store:
        check_texts(store, texts)


@KINDS
def test_a_store_on_a_full_disk_can_be_read(small_disk: Path, kind: str) -> None:
    path = small_disk / "store"
    with writer.connect([kind, str(path)]) as store:
        ref = writer.write(store, "w", None)
    ballast = fill_up(small_disk)
    with writer.connect([kind, str(path)], create=False) as store:
        assert store.ref(HEAD) == ref
        check_texts(store, writer.parts("w", 1))
        with pytest.raises(StorageError, match="no room"):
            writer.write(store, "w", ref)
    ballast.unlink()
    with writer.connect([kind, str(path)], create=False) as store:
        assert writer.write(store, "w", store.ref(HEAD)).version == 2
        assert problems(store) == []


@KINDS
def test_a_batch_that_finds_no_room_leaves_nothing_of_itself(small_disk: Path, kind: str) -> None:
    path = small_disk / "store"
    with writer.connect([kind, str(path)]) as store:
        ref = None
        with pytest.raises(StorageError, match="no room"):
            for _ in range(1000):
                ref = writer.write(store, "w", ref)
        assert ref is not None and store.ref(HEAD) == ref
        assert len(store.events("writes")) == len(store.history(HEAD)) == ref.version
        assert problems(store) == []


@KINDS
def test_a_file_that_may_not_grow_is_an_error_and_loses_nothing(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "store"
    with writer.connect([kind, str(path)]) as store:
        ref = writer.write(store, "w", None)
    done = child(
        "import signal, sys, writer\n"
        "from rolecall.errors import StorageError\n"
        "with writer.connect(sys.argv[1:]) as store:\n"
        "    try:\n"
        "        store.put_text('x' * 300_000, durable=True)\n"
        "    except StorageError as exc:\n"
        "        print(exc.message)\n",
        kind,
        str(path),
        before=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, 150_000)),
    )
    assert str(path) in done.stdout, done.stderr
    with writer.connect([kind, str(path)], create=False) as store:
        assert store.ref(HEAD) == ref and problems(store) == []
        assert writer.write(store, "w", ref).version == 2


# -- folders that may not be written --


def child(
    code: str, *args: str, before: Callable[[], None] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *args],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=Path(writer.__file__).parent,
        preexec_fn=before,
    )


READ_AND_PUT = """
import os, sys, writer
from rolecall.errors import RolecallError
from rolecall.store.verify import verify

def read_and_put(path, create):
    try:
        store = writer.connect([sys.argv[1], path], create=create)
        if create:
            writer.write(store, "w", None)
        head = store.get(store.ref(writer.HEAD).target).payload
        texts = [store.get(part).payload for part in head["parts"]]
        assert texts == writer.parts("w", head["number"])
        print(head["number"], [problem for done in verify(store) for problem in done.problems])
        store.put_text("perhaps not to be written")
        print("written")
    except RolecallError as exc:
        print(type(exc).__name__, exc.message)

# A rehearsal brings in every module, which another user might not be allowed to read.
read_and_put(sys.argv[2], create=True)
if os.getuid() == 0 and "as nobody" in sys.argv:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
read_and_put(sys.argv[3], create="create" in sys.argv)
"""


def read_and_put(kind: str, path: Path, *options: str) -> list[str]:
    """What a child could read and whether it could put, line by line."""
    with TemporaryDirectory() as folder:
        done = child(READ_AND_PUT, kind, f"{folder}/rehearsal", str(path), *options)
    first, second, *lines = done.stdout.splitlines()
    assert (first, second) == ("1 []", "written"), done.stderr
    assert done.returncode == 0, done.stderr
    return lines


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that another user can reach; pytest closes its own to everybody else."""
    with TemporaryDirectory(prefix="rc-disk-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder
        folder.chmod(0o755)
        for place in folder.rglob("*"):
            place.chmod(0o755)


def close_down(folder: Path, files: int, folders: int) -> None:
    for path in [*folder.rglob("*"), folder]:
        path.chmod(folders if path.is_dir() else files)


def leave_by_kill(kind: str, path: Path) -> None:
    done = child(
        "import os, signal, sys, writer\n"
        "store = writer.connect(sys.argv[1:])\n"
        "writer.write(store, 'w', writer.write(store, 'w', store.ref(writer.HEAD)))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n",
        kind,
        str(path),
    )
    assert done.returncode == -signal.SIGKILL, done.stderr


@KINDS
@pytest.mark.parametrize("killed", [False, True])
def test_a_read_only_folder_can_be_read_and_a_put_is_refused(
    open_folder: Path, kind: str, killed: bool
) -> None:
    path = open_folder / "store"
    with writer.connect([kind, str(path)]) as store:
        writer.write(store, "w", None)
    if killed:
        leave_by_kill(kind, path)
    close_down(open_folder, 0o444, 0o555)
    before = sorted(open_folder.rglob("*"))
    read, refused = read_and_put(kind, path, "as nobody")
    assert read == f"{3 if killed else 1} []"
    assert refused.startswith("StorageError") and str(path) in refused
    assert sorted(open_folder.rglob("*")) == before


@KINDS
def test_a_folder_that_may_not_be_entered_is_a_clear_error(open_folder: Path, kind: str) -> None:
    path = open_folder / "store"
    with writer.connect([kind, str(path)]) as store:
        writer.write(store, "w", None)
    close_down(open_folder, 0o000, 0o000)
    (refused,) = read_and_put(kind, path, "as nobody")
    assert refused.startswith("StorageError") and str(path) in refused


@KINDS
@pytest.mark.parametrize("killed", [False, True])
def test_a_disk_mounted_read_only_can_be_read_and_a_put_is_refused(
    small_disk: Path, kind: str, killed: bool
) -> None:
    path = small_disk / "store"
    with writer.connect([kind, str(path)]) as store:
        writer.write(store, "w", None)
    if killed:
        leave_by_kill(kind, path)
    assert mount("-o", "remount,ro", str(small_disk)) == ""
    read, refused = read_and_put(kind, path)
    assert read == f"{3 if killed else 1} []"
    assert refused.startswith("StorageError") and str(path) in refused


@KINDS
def test_a_folder_in_which_no_store_can_be_made_is_a_clear_error(open_folder: Path, kind: str) -> None:
    close_down(open_folder, 0o444, 0o555)
    place = open_folder / "deeper" / "store"
    (refused,) = read_and_put(kind, place, "as nobody", "create")
    assert refused.startswith("StorageError") and str(open_folder) in refused
    assert os.listdir(open_folder) == []
