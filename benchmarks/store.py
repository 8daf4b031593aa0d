"""The store: how fast it takes nodes and walks them, whether its cost grows, how much memory it needs.

The SQLite store runs with `durability="never"`, which is SQLite's `synchronous=NORMAL`, so that the
figures are of the program more than of one disk's flush. A store of a million nodes of about 300 bytes
is built in a temporary folder (0.5 GB) and removed again.
"""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.measure import Row, Timing, interleaved, peak_memory, print_table, timed, times
from rolecall.store import canonical
from rolecall.store.backend import Backend
from rolecall.store.files import FilesBackend
from rolecall.store.ids import node_id
from rolecall.store.sqlite import SqliteBackend
from rolecall.store.store import META, Store
from rolecall.store.verify import verify

_BATCH = 100
_FAN_OUT = 100
_PUTS_PER_SECOND = 10_000
_WALK_SECONDS = 1.0
_GROWTH = 1.5
_MEMORY_MB = 150

_REF = {"type": "string", "format": "ocas_ref"}
_SCHEMA = {
    "type": "object",
    "required": ["role", "number", "text", "refs"],
    "additionalProperties": False,
    "properties": {
        "role": {"type": "string"},
        "number": {"type": "integer", "minimum": 0},
        "text": {"type": "string"},
        "refs": {"type": "array", "items": _REF},
        "output": {
            "type": "object",
            "required": ["$status"],
            "properties": {"$status": {"type": "string"}, "files": {"type": "array"}},
        },
    },
}

Item = TypeVar("Item")


def main(*, quick: bool = False) -> None:
    with tempfile.TemporaryDirectory(prefix="rolecall-bench-") as folder:
        put_rates(folder, nodes=1_000 if quick else 5_000, rounds=3 if quick else 9)
        walks(folder, nodes=10_000 if quick else 50_000, rounds=3 if quick else 7)
        large = 50_000 if quick else 1_000_000
        path = os.path.join(folder, "large.db")
        root = build_tree(path, large)
        memory(path, root, nodes=large)
        growth(folder, path, nodes=large, rounds=5 if quick else 21)


# -- how fast nodes are put --


def put_rates(folder: str, *, nodes: int, rounds: int) -> None:
    store = _open_sqlite(os.path.join(folder, "puts.db"))
    raw = _RawTable(os.path.join(folder, "raw.db"))
    ours, floor = interleaved(
        rounds, partial(_put_round, store, nodes), partial(raw.round, nodes, _large_payload)
    )
    store.close()
    raw.close()
    rows = [_rate_row("sqlite", ours.per(nodes), floor.per(nodes), target=_PUTS_PER_SECOND)]
    fewer = nodes // 5
    for name, opened in _other_backends(folder):
        with opened as backend, Store(backend) as other:
            (timing,) = interleaved(3, partial(_put_round, other, fewer))
        rows.append(_rate_row(name, timing.per(fewer), floor.per(nodes)))
    if find_spec("pgserver") is None:
        rows.append(Row("postgres", "pgserver is not installed"))
    print_table(
        f"Put of 2 KB nodes, validated and hashed, in batches of {_BATCH} "
        f"(median of {rounds} rounds of {nodes:,}; floor: the same bytes by sqlite3.executemany)",
        rows,
    )


def _rate_row(name: str, one: Timing, floor: Timing, target: float | None = None) -> Row:
    rate = 1 / one.wall
    return Row(
        name,
        f"{rate:,.0f}/s",
        f"{1 / floor.wall:,.0f}/s",
        times(one.wall, floor.wall),
        times(one.cpu, floor.cpu),
        f"≥ {target:,}/s" if target else "",
        rate >= target if target else None,
    )


def _put_round(store: Store, nodes: int) -> Timing:
    type_id = store.put_schema(_SCHEMA)
    payloads = [(type_id, _large_payload(random.getrandbits(52))) for _ in range(nodes)]
    return timed(lambda: _put_all(store, payloads, _BATCH))


def _put_all(store: Store, payloads: Sequence[tuple[str, Any]], batch: int) -> None:
    for page in _pages(payloads, batch):
        store.put_many(page)


class _RawTable:
    """What SQLite itself costs: a table found by id, the same bytes, no checks of any kind."""

    def __init__(self, path: str) -> None:
        self._db = sqlite3.connect(path, isolation_level=None)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = NORMAL")
        self._db.execute(
            "CREATE TABLE IF NOT EXISTS nodes (seq INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, data BLOB)"
        )

    def round(self, nodes: int, make: Callable[[int], dict[str, Any]]) -> Timing:
        payloads = [canonical.encode(make(random.getrandbits(52))) for _ in range(nodes)]
        rows = [(node_id(META, data), data) for data in payloads]
        return timed(lambda: self._insert(rows))

    def _insert(self, rows: list[tuple[str, bytes]]) -> None:
        for page in _pages(rows, _BATCH):
            self._db.execute("BEGIN IMMEDIATE")
            self._db.executemany("INSERT INTO nodes (id, data) VALUES (?, ?)", page)
            self._db.execute("COMMIT")

    def close(self) -> None:
        self._db.close()


def _other_backends(folder: str) -> Iterator[tuple[str, AbstractContextManager[Backend]]]:
    yield "files", nullcontext(FilesBackend(os.path.join(folder, "files")))
    if find_spec("pgserver") is not None:
        yield "postgres", _postgres()


@contextmanager
def _postgres() -> Iterator[Backend]:
    from rolecall.store.postgres import PostgresBackend

    with postgres_server() as server:
        yield PostgresBackend(server)


@contextmanager
def postgres_server() -> Iterator[str]:
    """The address of a server of its own. Started by root it runs as another user, who must reach its folder."""
    home = Path(tempfile.mkdtemp(prefix="rc-pg-"))
    home.chmod(0o755)
    (home / "runtime").mkdir(mode=0o700)
    os.environ.setdefault("XDG_RUNTIME_DIR", str(home / "runtime"))  # where pgserver keeps its lock
    from pgserver.postgres_server import get_server

    server = get_server(home / "data", cleanup_mode="delete")
    try:
        yield server.get_uri()
    finally:
        server.cleanup()
        shutil.rmtree(home)


# -- how fast nodes are walked --


def walks(folder: str, *, nodes: int, rounds: int) -> None:
    rows = []
    for name, build, page in (("a chain", build_chain, 1), ("a tree", build_tree, 200)):
        path = os.path.join(folder, f"{name.split()[-1]}.db")
        root = build(path, nodes)
        ours, floor = interleaved(
            rounds, partial(_walk_round, path, root, nodes), partial(_raw_reads, path, page)
        )
        # Seconds for the target's 50,000, so that a quick run can be read the same way.
        seconds, raw = ours.per(nodes).wall * 50_000, floor.per(nodes).wall * 50_000
        rows.append(
            Row(
                f"{name} of {nodes:,}",
                f"{seconds:.2f} s",
                f"{raw:.2f} s",
                times(ours.wall, floor.wall),
                times(ours.cpu, floor.cpu),
                f"≤ {_WALK_SECONDS:g} s",
                seconds <= _WALK_SECONDS,
            )
        )
    print_table(
        f"Walk, seconds per 50,000 nodes (median of {rounds} rounds; floor: the same rows by sqlite3, "
        "a chain's one by one, a tree's 200 at a time)",
        rows,
    )


def _walk_round(path: str, root: str, nodes: int) -> Timing:
    with _open_sqlite(path) as store:
        return timed(lambda: _walk_all(store, root, nodes))


def _walk_all(store: Store, root: str, nodes: int) -> None:
    visited = sum(1 for _ in store.walk(root))
    if visited != nodes:
        raise RuntimeError(f"the walk met {visited} nodes of {nodes}")


def _raw_reads(path: str, page: int) -> Timing:
    db = sqlite3.connect(path)
    ids = [node for (node,) in db.execute("SELECT id FROM nodes ORDER BY seq DESC")]
    query = f"SELECT id, type, data, refs FROM nodes WHERE id IN ({','.join('?' * page)})"
    timing = timed(
        lambda: [db.execute(query, some).fetchall() for some in _pages(ids, page) if len(some) == page]
    )
    db.close()
    return timing


# -- how much memory a large store takes --


def memory(path: str, root: str, *, nodes: int) -> None:
    rows = []
    idle = _child("idle", path, root)
    for name in ("walk", "verify"):
        peak = _child(name, path, root)
        rows.append(
            Row(name, f"{peak:.0f} MB", f"{idle:.0f} MB", times(peak, idle), "",
                f"≤ {_MEMORY_MB} MB", peak <= _MEMORY_MB)
        )  # fmt: skip
    print_table(f"Peak memory of a process over {nodes:,} nodes (peer: one that only opens the store)", rows)


def _child(work: str, path: str, root: str) -> float:
    command = [sys.executable, "-m", "benchmarks.store", "--child", work, path, root]
    repository = Path(__file__).parent.parent
    return float(subprocess.run(command, cwd=repository, check=True, stdout=subprocess.PIPE).stdout)


def _run_child(work: str, path: str, root: str) -> None:
    with _open_sqlite(path) as store:
        if work == "walk":
            for _ in store.walk(root):
                pass
        elif work == "verify":
            for checked in verify(store):
                if checked.problems:
                    raise RuntimeError(f"the store is not sound: {checked.problems[0]}")
    print(peak_memory())


# -- does the cost grow with the store --


def growth(folder: str, large: str, *, nodes: int, rounds: int) -> None:
    small = os.path.join(folder, "small.db")
    build_tree(small, 1_000)
    works: dict[str, tuple[int, Callable[[str], Timing]]] = {
        "get": (1_000, _get_round),
        "put, one at a time": (200, partial(_growth_puts, count=200, batch=1)),
        f"put, batches of {_BATCH}": (1_000, partial(_growth_puts, count=1_000, batch=_BATCH)),
        "move of a ref": (200, _move_round),
    }
    rows = []
    for name, (count, work) in works.items():
        at_small, at_large = interleaved(rounds, partial(_on_copy, work, small), partial(work, large))
        rows.append(_growth_row(name, at_small.per(count), at_large.per(count), target=_GROWTH))
    rows.append(_raw_growth(folder, nodes, rounds))
    print_table(
        f"Growth: cost at {nodes:,} nodes against 1,000 (medians of {rounds} interleaved rounds; each round "
        "opens the store, works, and folds its log back)",
        rows,
    )


def _growth_row(name: str, small: Timing, large: Timing, target: float | None = None) -> Row:
    return Row(
        name,
        f"{large.wall * 1e6:.1f} µs",
        f"{small.wall * 1e6:.1f} µs",
        times(large.wall, small.wall),
        times(large.cpu, small.cpu),
        f"≤ {target:g}" if target else "",
        large.wall <= target * small.wall if target else None,
    )


def _on_copy(work: Callable[[str], Timing], path: str) -> Timing:
    """Every round of the small store begins at its size; a thousand puts would double it."""
    copy = path + ".copy"
    shutil.copy(path, copy)
    timing = work(copy)
    os.remove(copy)
    return timing


def _get_round(path: str) -> Timing:
    db = sqlite3.connect(path)
    (last,) = db.execute("SELECT max(seq) FROM nodes").fetchone()
    chosen = [(random.randint(1, last),) for _ in range(1_000)]
    ids = [db.execute("SELECT id FROM nodes WHERE seq = ?", one).fetchone()[0] for one in chosen]
    db.close()
    with _open_sqlite(path) as store:
        store.get(ids[0])
        return timed(lambda: [store.get(node) for node in ids])


def _growth_puts(path: str, *, count: int, batch: int) -> Timing:
    store = _open_sqlite(path)
    type_id = store.put_schema(_SCHEMA)
    payloads = [(type_id, _small_payload(random.getrandbits(52))) for _ in range(count)]

    def put_and_fold() -> None:
        _put_all(store, payloads, batch)
        store.close()

    return timed(put_and_fold)


def _move_round(path: str) -> Timing:
    store = _open_sqlite(path)
    targets = [store.put(store.put_schema(_SCHEMA), _small_payload(number)) for number in range(2)]
    ref = store.ref("bench")

    def move_and_fold() -> None:
        nonlocal ref
        for turn in range(200):
            ref = store.move("bench", ref, targets[turn % 2], {"status": "idle"})
        store.close()

    return timed(move_and_fold)


def _raw_growth(folder: str, nodes: int, rounds: int) -> Row:
    """How much of the growth is SQLite's own: one table and its index by id, nothing else."""
    paths = [os.path.join(folder, name) for name in ("raw-small.db", "raw-large.db")]
    for path, count in zip(paths, (1_000, nodes), strict=True):
        table = _RawTable(path)
        for _ in range(count // 1_000):
            table.round(1_000, _small_payload)
        table.close()

    def insert(path: str) -> Timing:
        table = _RawTable(path)
        timing = table.round(1_000, _small_payload)
        folding = timed(table.close)
        return Timing(timing.wall + folding.wall, timing.cpu + folding.cpu)

    small, large = interleaved(rounds, partial(_on_copy, insert, paths[0]), partial(insert, paths[1]))
    return _growth_row(f"  sqlite3 alone, batches of {_BATCH}", small.per(1_000), large.per(1_000))


# -- stores to measure on --


def build_chain(path: str, nodes: int) -> str:
    """A store whose nodes each refer to the one before; the id of the last."""
    with _open_sqlite(path) as store:
        type_id = store.put_schema(_SCHEMA)
        last: list[str] = []
        for numbers in _pages(range(nodes), _BATCH):
            draft = store.draft()
            for number in numbers:
                last = [draft.put(type_id, _small_payload(number, last))]
            draft.commit()
    return last[0]


def build_tree(path: str, nodes: int) -> str:
    """A store whose nodes refer to a hundred others each, down to the leaves; the id of the root."""
    with _open_sqlite(path) as store:
        type_id = store.put_schema(_SCHEMA)
        waiting: list[str] = []
        inner = max(1, (nodes - 1) // _FAN_OUT)
        for numbers in _pages(range(nodes - inner), _BATCH):
            waiting += store.put_many([(type_id, _small_payload(number)) for number in numbers])
        taken = 0
        for number in range(nodes - inner, nodes):
            # The last one takes all that is left, so that every node has a way from the root.
            upto = len(waiting) if number == nodes - 1 else taken + _FAN_OUT
            waiting.append(store.put(type_id, _small_payload(number, waiting[taken:upto])))
            taken = upto
    return waiting[-1]


def _open_sqlite(path: str) -> Store:
    return Store(SqliteBackend(path, durability="never"))


def _large_payload(number: int) -> dict[str, Any]:
    output = {"$status": "done", "files": ["src/one.py", "src/two.py"], "summary": f"{number:016d} " * 10}
    text = f"{number:016d} " * 100
    return {"role": "developer", "number": number, "text": text, "refs": [], "output": output}


def _small_payload(number: int, refs: Sequence[str] = ()) -> dict[str, Any]:
    return {"role": "developer", "number": number, "text": f"{number:016d} " * 14, "refs": list(refs)}


def _pages(items: Sequence[Item], size: int) -> Iterator[Sequence[Item]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        _run_child(*sys.argv[2:])
    else:
        main(quick="--quick" in sys.argv[1:])
