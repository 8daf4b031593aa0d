"""Stores whose files were cut or changed: what is read is right or an error that names what is damaged."""

from __future__ import annotations

import random
import re
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import writer
from writer import HEAD

from rolecall.errors import Damaged, NotFound, RolecallError, StorageError
from rolecall.store.store import BUILTIN, Store
from rolecall.store.verify import DAMAGE, Fault, verify

Contents = dict[str, tuple[str, Any]]
FLIPS = 120


def fill(kind: str, path: Path) -> Contents:
    """A store of small and large nodes at `path`; every node in it."""
    with writer.connect([kind, str(path)]) as store:
        ref = None
        for _ in range(8):
            ref = writer.write(store, "w", ref)
        store.put_many((BUILTIN["string"], f"text {number} " * 9) for number in range(40))
        return {put.id: store.get(put.id)[1:3] for put in store.backend.puts()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, Contents]:
    """The bytes of an intact SQLite store, and what is in it."""
    path = tmp_path_factory.mktemp("whole") / "store.db"
    contents = fill("sqlite", path)
    return path.read_bytes(), contents


def names(error: RolecallError, *things: str) -> bool:
    return any(thing in error.message for thing in things)


def read_all(store: Store, path: Path, contents: Contents) -> set[str]:
    """The nodes that could not be had. Any other outcome than the right content or a good error fails."""
    lost = set()
    for node, expected in contents.items():
        try:
            assert store.get(node)[1:3] == expected
        except (Damaged, StorageError, NotFound) as exc:
            assert names(exc, node, str(path))
            lost.add(node)
    return lost


def use_everything(store: Store, path: Path) -> None:
    """Every other verb: it works or it says what is damaged; a driver's own error would fail the test."""
    verbs: list[Callable[[], object]] = [
        lambda: [list(store.walk(*[ref.target for ref in store.refs() if ref.target], follow_types=True))],
        lambda: store.history(HEAD),
        lambda: store.events(),
        lambda: list(store.of_type(BUILTIN["string"])),
        lambda: list(store.backend.roots()),
        lambda: store.backend.size(),
        lambda: store.put_text("something new"),
    ]
    for verb in verbs:
        try:
            verb()
        except (Damaged, StorageError) as exc:
            assert exc.message.startswith("ref ") or names(exc, "node ", "event ", str(path))


def damage(store: Store) -> list[Fault]:
    return [problem for done in verify(store) for problem in done.problems if problem.kind in DAMAGE]


def examine(path: Path, contents: Contents) -> set[str]:
    """Open, read, verify and use a damaged SQLite store; the nodes that could not be had."""
    try:
        store = writer.connect(["sqlite", str(path)], create=False)
    except Damaged as exc:
        assert names(exc, str(path))
        return set(contents)
    with store:
        lost = read_all(store, path, contents)
        found = damage(store)
        assert found or not lost
        assert all(problem.node or str(path) in problem.text for problem in found)
        use_everything(store, path)
    return lost


@pytest.mark.parametrize("seed", range(4))
def test_flipped_bits_in_the_database_never_give_wrong_content(
    tmp_path: Path, whole: tuple[bytes, Contents], seed: int
) -> None:
    data, contents = whole
    chance = random.Random(f"flip {seed}")
    hits = 0
    for flip in range(FLIPS // 4):
        # Every third in the first bytes of a page, where it says how the page is to be read.
        page = chance.randrange(len(data) // 4096) * 4096
        at = page + (chance.randrange(100) if flip % 3 == 0 else chance.randrange(4096))
        changed = bytearray(data)
        changed[at] ^= 1 << chance.randrange(8)
        path = tmp_path / f"{flip}.db"
        path.write_bytes(changed)
        hits += bool(examine(path, contents))
    assert hits


@pytest.mark.parametrize("part", [0.001, 0.01, 0.2, 0.5, 0.8, 0.99])
def test_a_truncated_database_is_damaged_and_says_so(
    tmp_path: Path, rolecall: Any, whole: tuple[bytes, Contents], part: float
) -> None:
    data, contents = whole
    path = tmp_path / "store.db"
    path.write_bytes(data[: int(len(data) * part)])
    assert examine(path, contents)
    done = rolecall("cas", "verify", "--store", str(path), check=4)
    assert str(path) in done.stdout + done.stderr


def test_a_row_number_out_of_order_ends_a_listing_instead_of_repeating_it(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    with writer.connect(["sqlite", str(path)]) as store:
        store.put_many((BUILTIN["string"], f"number {number}") for number in range(1200))
    with sqlite3.connect(path) as db:
        (node,) = db.execute("SELECT id FROM nodes WHERE seq = 1000").fetchone()
    db.close()
    # The row number stands a few bytes before the row; 1000 becomes 104.
    data = path.read_bytes()
    pattern = rb"\x87\x68(?=.{6,12}" + node.encode() + b")"
    changed, count = re.subn(pattern, lambda _: b"\x80\x68", data, flags=re.DOTALL)
    assert count == 1
    path.write_bytes(changed)
    with writer.connect(["sqlite", str(path)]) as store:
        with pytest.raises(Damaged, match=r"store\.db is damaged: row"):
            list(store.backend.puts())
        assert any(problem.kind == "container" for problem in damage(store))


def test_a_node_that_its_index_has_lost_is_reported_by_verify(
    tmp_path: Path, rolecall: Any, whole: tuple[bytes, Contents]
) -> None:
    data, contents = whole
    path = tmp_path / "store.db"
    path.write_bytes(data)
    with sqlite3.connect(path) as db:
        (page,) = db.execute(
            "SELECT rootpage FROM sqlite_schema WHERE name LIKE 'sqlite_autoindex_nodes%'"
        ).fetchone()
    db.close()
    node = max(contents)
    changed = bytearray(data)
    changed[data.index(node.encode(), (page - 1) * 4096)] ^= 0x40
    path.write_bytes(changed)
    with writer.connect(["sqlite", str(path)]) as store:
        assert read_all(store, path, contents) == {node}
    done = rolecall("cas", "verify", "--store", str(path), check=4)
    assert "container" in done.stdout and str(path) in done.stdout


@pytest.mark.parametrize("value", ["NULL", "'short'", "'not the ids of any'"])
def test_changed_references_are_damage_and_stop_a_collection(
    tmp_path: Path, rolecall: Any, value: str
) -> None:
    path = tmp_path / "store.db"
    contents = fill("sqlite", path)
    db = sqlite3.connect(path)
    with db:
        # A column that must not be empty can be only by damage.
        db.execute("PRAGMA writable_schema = ON")
        db.execute(
            "UPDATE sqlite_schema SET sql = replace(sql, 'refs TEXT NOT NULL', 'refs TEXT') WHERE name = 'nodes'"
        )
    db.close()
    db = sqlite3.connect(path)
    with db:
        db.execute(
            f"UPDATE nodes SET refs = {value} WHERE id = (SELECT target FROM refs WHERE name = ?)", (HEAD,)
        )
    db.close()
    done = rolecall("cas", "gc", "--delete", "--grace", "0", "--store", str(path), check=4)
    assert "nothing was collected" in done.stderr
    with writer.connect(["sqlite", str(path)]) as store:
        assert read_all(store, path, contents) == set()
        assert {problem.kind for problem in damage(store)} == {"index"}
    rolecall("cas", "reindex", "--store", str(path), check=0)
    rolecall("cas", "verify", "--store", str(path), check=0)


# -- the log beside the database --


@pytest.fixture
def left_by_a_killed_writer(tmp_path: Path) -> Iterator[tuple[Path, int]]:
    """A store with a log that was not folded back, and the last number its writer acknowledged.

    The first three batches are in the database itself.
    """
    path = tmp_path / "store.db"
    address = ["sqlite", str(path)]
    with writer.connect(address) as store:
        ref = None
        for _ in range(3):
            ref = writer.write(store, "w", ref)
    code = (
        "import os, signal, sys, writer\n"
        "store = writer.connect(['sqlite', sys.argv[1]])\n"
        "for _ in range(4): writer.say(writer.write(store, 'w', store.ref(writer.HEAD)).version)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        capture_output=True,
        cwd=Path(writer.__file__).parent,
        timeout=60,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert path.with_name("store.db-wal").stat().st_size > 0
    yield path, int(done.stdout.split()[-1])


def batches(path: Path) -> int:
    """How many batches there are; each must be whole."""
    with writer.connect(["sqlite", str(path)], create=False) as store:
        history = [moved.target for moved in store.history(HEAD)]
        for number, head in enumerate(history, 1):
            link = store.get(head).payload
            assert [store.get(part).payload for part in link["parts"]] == writer.parts("w", number)
        assert [event.body["head"] for event in store.events("writes")] == history
        assert damage(store) == []
        store.put_text("after")
    return len(history)


def test_a_deleted_log_takes_only_what_was_not_folded_back(
    left_by_a_killed_writer: tuple[Path, int],
) -> None:
    path, acknowledged = left_by_a_killed_writer
    assert acknowledged == 7
    path.with_name("store.db-wal").unlink()
    assert batches(path) == 3


def test_a_deleted_index_of_the_log_takes_nothing(left_by_a_killed_writer: tuple[Path, int]) -> None:
    path, acknowledged = left_by_a_killed_writer
    path.with_name("store.db-shm").unlink()
    assert batches(path) == acknowledged


@pytest.mark.parametrize("flip", [False, True])
def test_a_damaged_log_gives_whole_batches_up_to_the_damage(
    left_by_a_killed_writer: tuple[Path, int], flip: bool
) -> None:
    path, acknowledged = left_by_a_killed_writer
    log = path.with_name("store.db-wal")
    data = {end: path.with_name(path.name + end).read_bytes() for end in ("", "-wal")}
    chance = random.Random(f"log {flip}")
    counts = set()
    for _ in range(15):
        at = chance.randrange(len(data["-wal"]))
        changed = bytearray(data["-wal"])
        changed[at] ^= 1 << chance.randrange(8)
        path.write_bytes(data[""])
        log.write_bytes(changed if flip else changed[:at])
        path.with_name("store.db-shm").unlink(missing_ok=True)
        counts.add(batches(path))
    assert counts <= set(range(3, acknowledged + 1)) and len(counts) > 2


def test_a_database_of_a_newer_format_is_refused_and_left_alone(tmp_path: Path, rolecall: Any) -> None:
    path = tmp_path / "store.db"
    fill("sqlite", path)
    db = sqlite3.connect(path)
    db.execute("PRAGMA user_version = 99")
    db.close()
    before = path.read_bytes()
    done = rolecall("cas", "put-text", "hello", "--store", str(path), check=5)
    assert "format 99" in done.stderr and "Upgrade" in done.stderr
    assert path.read_bytes() == before


# -- the folder --


def test_every_node_file_cut_or_flipped_is_named_and_the_others_stay_right(
    tmp_path: Path, rolecall: Any
) -> None:
    path = tmp_path / "store"
    contents = fill("files", path)
    chance = random.Random("node files")
    spoilt = set(chance.sample(sorted(contents), len(contents) // 2))
    for number, node in enumerate(sorted(spoilt)):
        file = path / "cas" / f"{node}.bin"
        data = bytearray(file.read_bytes())
        if number % 2:
            # The last eight bytes are the time, which no id vouches for.
            data[chance.randrange(len(data) - 8)] ^= 1 << chance.randrange(8)
        else:
            del data[chance.randrange(len(data)) :]
        file.write_bytes(data)
    with writer.connect(["files", str(path)]) as store:
        assert read_all(store, path, contents) == spoilt
        assert {problem.node for problem in damage(store) if problem.kind == "damaged"} == spoilt
        use_everything(store, path)
    done = rolecall("cas", "verify", "--store", f"files:{path}", check=4)
    assert all(node in done.stdout for node in spoilt)


@pytest.mark.parametrize("file", ["threads.yaml", "moves.jsonl", "events.jsonl", "counters.json", "refs"])
def test_damaged_lists_are_named_and_leave_the_nodes_readable(
    tmp_path: Path, rolecall: Any, file: str
) -> None:
    path = tmp_path / "store"
    contents = fill("files", path)
    place = path / f"refs/{HEAD}.json" if file == "refs" else path / file
    whole = place.read_bytes()
    chance = random.Random(file)
    reported = 0
    for _ in range(12):
        data = bytearray(whole)
        at = chance.randrange(len(data))
        data[at] ^= 0x80  # No longer ASCII, so nothing that was written there.
        place.write_bytes(data)
        with writer.connect(["files", str(path)]) as store:
            assert read_all(store, path, contents) == set()
            reported += any(str(place) in problem.text for problem in damage(store))
            use_everything(store, path)
        place.write_bytes(whole)
    assert reported == 12
    data[:] = whole
    data[0] ^= 0x80
    place.write_bytes(data)
    done = rolecall("cas", "verify", "--store", f"files:{path}", check=4)
    assert str(place) in done.stdout
