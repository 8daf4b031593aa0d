"""The folder backend on real files: the predecessor's layout, crashes, several writers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rolecall.errors import Collision, Conflict, Damaged, NotFound, StorageError
from rolecall.store import canonical
from rolecall.store.backend import Change, Damage, Move, NewEvent, NodeRecord
from rolecall.store.files import FilesBackend
from rolecall.store.ids import node_id
from rolecall.store.store import BUILTIN, META, Store, make_record

STRING = BUILTIN["string"]
OBJECT = BUILTIN["object"]
THREAD = "06GZZZZZZZ0123456789ABCDEF"
OTHER = "06GZZZZZZZ0123456789ABCDEG"
NOW = 1_780_000_000_000


def text(value: str, *, created: int = NOW) -> NodeRecord:
    return make_record(STRING, canonical.encode(value), (), created)


def put(backend: FilesBackend, *records: NodeRecord, now: int = NOW) -> None:
    backend.commit(Change(nodes=records), now=now, durable=False)


def move(backend: FilesBackend, name: str, target: str | None, state: dict[str, Any] | None = None) -> None:
    ref = backend.ref(name)
    change = Change(moves=[Move(name, ref.version if ref else 0, target, state)])
    backend.commit(change, now=NOW, durable=True)


def tree(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes())
        for path in folder.rglob("*")
        if path.is_file()
    }


def write_node(folder: Path, type_id: str, data: bytes, timestamp: int) -> str:
    """A node file byte for byte as the predecessor writes it."""
    node = node_id(type_id, data)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{node}.bin").write_bytes(
        b"\xa3\x64type\x6d"
        + type_id.encode()
        + b"\x67payload"
        + data
        + b"\x69timestamp\x1b"
        + timestamp.to_bytes(8, "big")
    )
    return node


def test_nodes_refs_and_events_come_back_after_reopening(tmp_path: Path) -> None:
    a = text("a")
    backend = FilesBackend(str(tmp_path))
    change = Change([a], [Move("note/x", 0, a.id, {"n": 1})], [NewEvent("s", "k", {"b": [1]})])
    (ref,) = backend.commit(change, now=NOW, durable=True)
    again = FilesBackend(str(tmp_path), create=False)
    assert again.record(a.id) == a._replace(refs=None)
    assert again.ref("note/x") == ref
    assert [m.target for m in again.history("note/x")] == [a.id]
    assert [(e.seq, e.stream, e.kind, e.body, e.at) for e in again.events()] == [
        (1, "s", "k", {"b": [1]}, NOW)
    ]
    assert not (tmp_path / "journal.json").exists()
    assert list((tmp_path / ".tmp").iterdir()) == []


def test_a_second_put_keeps_the_time_of_the_first_and_moves_to_the_end_of_the_puts(tmp_path: Path) -> None:
    backend = FilesBackend(str(tmp_path))
    put(backend, text("a"), text("b"))
    position, _ = backend.position()
    put(backend, text("a", created=NOW + 5), now=NOW + 5)
    stored = backend.record(text("a").id)
    assert stored is not None and stored.created == NOW
    assert [(p.id, p.at) for p in backend.puts(position)] == [(text("a").id, NOW + 5)]
    assert (tmp_path / "cas/_index" / STRING).read_text().splitlines() == [text("a").id, text("b").id]


def test_a_node_put_within_the_same_tick_lies_beyond_the_position(tmp_path: Path) -> None:
    backend = FilesBackend(str(tmp_path))
    for number in range(50):
        position, _ = backend.position()
        put(backend, text(str(number)))
        assert [p.id for p in backend.puts(position)] == [text(str(number)).id]


def test_both_layouts_are_read_and_the_newer_is_written_where_it_exists(tmp_path: Path) -> None:
    old = write_node(tmp_path / "cas", STRING, canonical.encode("old"), 1)
    new = write_node(tmp_path / "cas/nodes", STRING, canonical.encode("new"), 2)
    backend = FilesBackend(str(tmp_path))
    put(backend, text("mine"))
    assert (tmp_path / "cas/nodes" / f"{text('mine').id}.bin").exists()
    assert list(backend.ids_of_type(STRING)) == [old, new, text("mine").id]
    assert {r.id for r in backend.scan() if isinstance(r, NodeRecord)} == {old, new, text("mine").id}
    assert backend.ids_with_prefix(old[:4], 5) == [old]


def test_a_folder_written_by_the_predecessor_is_read_without_leaving_a_trace(tmp_path: Path) -> None:
    data = b"\xa2\x61a\xf7\x61b\x01"
    node = write_node(tmp_path / "cas", OBJECT, data, NOW)
    later = write_node(tmp_path / "cas", OBJECT, b"\xa0", NOW - 1)
    (tmp_path / "cas/_index").mkdir()
    (tmp_path / "cas/_index" / OBJECT).write_text(f"{node}\n{later}\n{node}\n")
    (tmp_path / "threads.yaml").write_text(f"# active\n{THREAD}: {node}\n")
    lines = [
        {"thread": OTHER, "workflow": node, "head": node, "completedAt": 5, "reason": None},
        {"thread": OTHER, "workflow": node, "head": later, "completedAt": 6, "reason": "cancelled"},
    ]
    (tmp_path / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "workflows.yaml").write_text(f"solve: {node}\n")
    before = tree(tmp_path)
    backend = FilesBackend(str(tmp_path), create=False)
    stored = backend.record(node)
    assert stored is not None and (stored.data, stored.created, stored.sha256) == (data, NOW, None)
    assert Store(backend).get(node).payload == {"b": 1}
    assert list(backend.ids_of_type(OBJECT)) == [node, later]
    shown = {ref.name: (ref.target, ref.state) for ref in backend.refs()}
    assert shown == {
        f"thread/{THREAD}": (node, {"status": "idle"}),
        f"thread/{OTHER}": (later, {"status": "killed", "workflow": node}),
        "workflow/solve": (node, {}),
    }
    assert {m.target for m in backend.roots()} == {node, later}
    assert [m.target for m in backend.history(f"thread/{THREAD}")] == [node]
    assert backend.size()["nodes"] == 2 and backend.position()[0] > 0
    assert list(backend.problems()) == []
    assert tree(tmp_path) == before


def test_the_folder_holds_what_the_predecessor_expects(tmp_path: Path) -> None:
    import yaml

    backend = FilesBackend(str(tmp_path))
    a, b = text("a"), text("b")
    put(backend, a, b)
    move(backend, f"thread/{THREAD}", a.id, {"status": "running", "workflow": b.id})
    move(backend, f"thread/{OTHER}", b.id, {"status": "idle"})
    move(backend, "workflow/solve", b.id, {})
    head = b"\xa3\x64type\x6d" + STRING.encode() + b"\x67payload\x61a\x69timestamp\x1b"
    assert (tmp_path / f"cas/{a.id}.bin").read_bytes() == head + NOW.to_bytes(8, "big")
    assert yaml.safe_load((tmp_path / "threads.yaml").read_text()) == {THREAD: a.id, OTHER: b.id}
    assert yaml.safe_load((tmp_path / "registry.yaml").read_text()) == {"solve": b.id}
    move(backend, f"thread/{THREAD}", b.id, {"status": "killed", "workflow": b.id})
    assert yaml.safe_load((tmp_path / "threads.yaml").read_text()) == {OTHER: b.id}
    assert [json.loads(line) for line in (tmp_path / "history.jsonl").read_text().splitlines()] == [
        {"thread": THREAD, "workflow": b.id, "head": b.id, "completedAt": NOW, "reason": "cancelled"}
    ]
    ended = backend.ref(f"thread/{THREAD}")
    assert ended is not None and (ended.state["status"], ended.version) == ("killed", 2)


def test_the_index_lists_self_referencing_nodes_and_is_rebuilt_in_order_of_time(tmp_path: Path) -> None:
    store = Store(FilesBackend(str(tmp_path)), now=lambda: NOW)
    store.put_text("x")
    index = tmp_path / "cas/_index"
    assert (index / "_meta").read_text() == f"{META}\n"
    put(store.backend, text("early", created=1))  # type: ignore[arg-type]
    shutil.rmtree(index)
    assert list(store.of_type(STRING)) == [text("early").id, text("x").id]
    assert not index.exists()
    store.backend.reindex()
    assert (index / STRING).read_text().splitlines() == [text("early").id, text("x").id]
    assert (index / "_meta").read_text() == f"{META}\n"


def test_a_head_moved_by_somebody_else_is_shown_with_a_higher_version(tmp_path: Path) -> None:
    backend = FilesBackend(str(tmp_path))
    a, b, c = text("a"), text("b"), text("c")
    put(backend, a, b, c)
    name = f"thread/{THREAD}"
    move(backend, name, a.id, {"status": "idle"})
    (tmp_path / "threads.yaml").write_text(f"{THREAD}: {b.id}\n")
    seen = backend.ref(name)
    assert seen is not None and (seen.target, seen.version) == (b.id, 2)
    with pytest.raises(Conflict):
        backend.commit(Change(moves=[Move(name, 1, c.id, {})]), now=NOW, durable=True)
    move(backend, name, c.id, {"status": "idle"})
    assert [m.target for m in backend.history(name)] == [a.id, b.id, c.id]


def test_a_removed_ref_leaves_no_history_and_its_numbers_are_not_used_again(tmp_path: Path) -> None:
    backend = FilesBackend(str(tmp_path))
    a = text("a")
    put(backend, a)
    name = f"thread/{THREAD}"
    move(backend, "keep", a.id)
    move(backend, name, a.id, {"status": "completed"})
    move(backend, name, None)
    assert backend.ref(name) is None and backend.history(name) == []
    assert [ref.name for ref in backend.refs()] == ["keep"]
    assert backend.position()[1] == 2
    move(backend, "next", a.id)
    assert [(m.seq, m.name) for m in backend.roots()] == [(1, "keep"), (3, "next")]
    assert [(m.seq, m.name) for m in backend.roots(1)] == [(3, "next")]


def test_refs_are_paged_filtered_and_named_apart_from_their_folders(tmp_path: Path) -> None:
    backend = FilesBackend(str(tmp_path))
    for name in ("a", "a.json/b", "a/b", "c"):
        move(backend, name, None, {"kind": "x" if name == "c" else "y"})
    assert [r.name for r in backend.refs()] == ["a", "a.json/b", "a/b", "c"]
    assert [r.name for r in backend.refs("a.")] == ["a.json/b"]
    assert [r.name for r in backend.refs("a/")] == ["a/b"]
    assert [r.name for r in backend.refs(newest_first=True, before="c", limit=2)] == ["a/b", "a.json/b"]
    assert [r.name for r in backend.refs(where={"kind": ["x", "z"]})] == ["c"]


def test_nothing_is_written_when_a_move_loses_or_bytes_collide(tmp_path: Path) -> None:
    backend = FilesBackend(str(tmp_path))
    put(backend, text("a"))
    with pytest.raises(Conflict):
        backend.commit(Change([text("b")], [Move("r", 3, text("b").id)]), now=NOW, durable=True)
    with pytest.raises(Collision):
        fake = text("c")._replace(id=text("a").id)
        backend.commit(Change([text("b"), fake], [Move("r", 0, fake.id)]), now=NOW, durable=True)
    assert backend.record(text("b").id) is None and backend.refs() == []


def test_events_are_found_beyond_a_number_in_a_long_file(tmp_path: Path) -> None:
    backend = FilesBackend(str(tmp_path))
    new = [NewEvent("odd" if n % 2 else "even", "k", {"n": n}) for n in range(1, 2001)]
    backend.commit(Change(events=new), now=NOW, durable=False)
    for after in (0, 1, 777, 1999, 2000):
        assert [e.seq for e in backend.events(after=after)] == list(range(after + 1, 2001))
    assert [e.seq for e in backend.events("odd", after=10, limit=3)] == [11, 13, 15]


def test_a_torn_last_line_is_ignored_and_cut_off_by_the_next_writer(tmp_path: Path) -> None:
    backend = FilesBackend(str(tmp_path))
    backend.commit(Change(events=[NewEvent("s", "one", {})]), now=NOW, durable=True)
    with (tmp_path / "events.jsonl").open("a") as file:
        file.write('{"seq":2,"stre')
    assert [e.kind for e in backend.events()] == ["one"]
    backend.commit(Change(events=[NewEvent("s", "two", {})]), now=NOW, durable=True)
    assert [(e.seq, e.kind) for e in backend.events()] == [(1, "one"), (2, "two")]


def test_a_torn_last_line_does_not_outlast_the_removal_of_a_ref(tmp_path: Path) -> None:
    backend = FilesBackend(str(tmp_path))
    put(backend, text("a"))
    for name in ("keep", "gone"):
        move(backend, name, text("a").id)
    with (tmp_path / "moves.jsonl").open("a") as file:
        file.write('{"seq":3,"na')
    move(backend, "gone", None)
    assert [moved.name for moved in backend.roots()] == ["keep"]


KILLED_BEFORE_SPREADING = """
import os, signal, sys
from rolecall.store.backend import Change, Move
from rolecall.store.files import FilesBackend
from rolecall.store.journal import Journal
Journal.carry_out = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
target, state = (sys.argv[3], {"status": "completed"}) if sys.argv[3:] else (None, None)
backend = FilesBackend(sys.argv[1])
change = Change(moves=[Move("thread/" + sys.argv[2], 1, target, state)])
backend.commit(change, now=2, durable=True)
"""


@pytest.mark.parametrize("ends", [True, False], ids=["ends", "is removed"])
def test_a_thread_that_the_predecessor_ended_after_a_crash_stays_ended(tmp_path: Path, ends: bool) -> None:
    backend = FilesBackend(str(tmp_path))
    put(backend, text("a"))
    move(backend, f"thread/{THREAD}", text("a").id, {"status": "idle" if ends else "completed"})
    move(backend, f"thread/{OTHER}", text("a").id, {"status": "idle"})
    run(KILLED_BEFORE_SPREADING, str(tmp_path), THREAD, *([text("a").id] if ends else []))
    assert (tmp_path / "journal.json").exists()

    (tmp_path / "threads.yaml").write_text("{}\n")
    with (tmp_path / "history.jsonl").open("ab") as file:
        line = {
            "thread": OTHER,
            "workflow": None,
            "head": text("a").id,
            "completedAt": NOW + 1,
            "reason": None,
        }
        file.write(json.dumps(line).encode() + b"\n" + b'{"thread": "\xe2\x82')
    for _ in range(2):
        ref = backend.ref(f"thread/{OTHER}")
        assert ref is not None and ref.state["status"] == "completed"
        own = backend.ref(f"thread/{THREAD}")
        assert own and own.state["status"] == "completed" if ends else own is None
        move(backend, "other", text("a").id)


def test_many_nodes_put_without_waiting_are_synced_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)
    with Store(FilesBackend(str(tmp_path / "store"))) as store:
        store.put_many([(BUILTIN["string"], f"text {number}") for number in range(600)])
        store.put_text("the last", durable=True)
    assert 0 < len(synced) < 50


def test_deleted_nodes_leave_files_index_and_hashes(tmp_path: Path) -> None:
    backend = FilesBackend(str(tmp_path))
    put(backend, text("a"), text("b"))
    with backend.exclusive():
        assert backend.delete([text("a").id, text("never").id]) == 1
        put(backend, text("c"))
    assert backend.record(text("a").id) is None
    assert list(backend.ids_of_type(STRING)) == [text("b").id, text("c").id]
    hashes = "".join(path.read_text() for path in (tmp_path / "cas/_sha256").iterdir())
    assert text("a").id not in hashes and text("b").id in hashes


def test_damaged_node_files_are_named_and_never_returned(tmp_path: Path) -> None:
    backend = FilesBackend(str(tmp_path))
    cut, flipped, empty = text("cut off"), text("flipped"), text("empty")
    put(backend, cut, flipped, empty, text("whole"))
    path = tmp_path / f"cas/{cut.id}.bin"
    path.write_bytes(path.read_bytes()[:-9])
    path = tmp_path / f"cas/{flipped.id}.bin"
    data = bytearray(path.read_bytes())
    data[28] ^= 0x80
    path.write_bytes(data)
    (tmp_path / f"cas/{empty.id}.bin").write_bytes(b"")
    (tmp_path / "cas/notes.txt").write_text("hello")
    for record in (cut, flipped, empty):
        with pytest.raises(Damaged, match=record.id) as caught:
            backend.record(record.id)
        assert f"{record.id}.bin" in caught.value.message
        with pytest.raises(Damaged, match=record.id):
            put(backend, record)
    items = list(backend.scan())
    assert {i.id for i in items if isinstance(i, Damage)} == {cut.id, flipped.id, empty.id}
    assert [i.id for i in items if isinstance(i, NodeRecord)] == [text("whole").id]
    assert any("notes.txt" in problem for problem in backend.problems())


def test_bad_yaml_is_named_with_its_line_and_never_overwritten(tmp_path: Path) -> None:
    backend = FilesBackend(str(tmp_path))
    a = text("a")
    put(backend, a)
    bad = f"{THREAD}: {a.id}\n{OTHER}: [\n"
    (tmp_path / "threads.yaml").write_text(bad)
    (tmp_path / "history.jsonl").write_text("{nonsense\n")
    for look in (lambda: backend.ref(f"thread/{THREAD}"), lambda: backend.refs()):
        with pytest.raises(Damaged, match=r"threads\.yaml.*line \d"):
            look()
    with pytest.raises(Damaged):
        backend.commit(Change(moves=[Move(f"thread/{THREAD}", 1, a.id, {})]), now=NOW, durable=True)
    assert (tmp_path / "threads.yaml").read_text() == bad
    found = "\n".join(backend.problems())
    assert "threads.yaml" in found and "history.jsonl: line 1" in found


def test_a_missing_store_is_not_made_by_a_reader_and_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        FilesBackend(str(tmp_path / "none"), create=False)
    assert not (tmp_path / "none").exists()
    (tmp_path / "file").write_text("")
    for create in (True, False):
        with pytest.raises(StorageError, match="file"):
            FilesBackend(str(tmp_path / "file"), create=create)


def run(code: str, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True, timeout=60)


FULL = """
import resource, sys
from rolecall.store import canonical
from rolecall.errors import StorageError
from rolecall.store.backend import Change, Move
from rolecall.store.files import FilesBackend
from rolecall.store.store import BUILTIN, make_record
backend = FilesBackend(sys.argv[1])
big = make_record(BUILTIN["string"], canonical.encode("x" * 100_000), (), 1)
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
try:
    backend.commit(Change([big], [Move("r", 0, big.id)]), now=1, durable=True)
except StorageError as exc:
    print(exc.message)
"""


def test_a_refused_write_loses_nothing_and_leaves_no_temporary_file(tmp_path: Path) -> None:
    backend = FilesBackend(str(tmp_path))
    put(backend, text("a"))
    done = run(FULL, str(tmp_path))
    assert "File too large" in done.stdout, done.stderr
    assert list((tmp_path / ".tmp").iterdir()) == [] and not (tmp_path / "journal.json").exists()
    assert backend.refs() == [] and backend.record(text("a").id) is not None


KILLED = """
import os, shutil, signal, sys
from rolecall.store.backend import Change, Move, NewEvent
from rolecall.store.files import FilesBackend
from rolecall.store import canonical
from rolecall.store.store import BUILTIN, make_record
start, thread = sys.argv[1:]
# One child for each point to be killed at; the first that reaches the end ends it.
for last in range(1, 200):
    folder = f"{start}-{last}"
    shutil.copytree(start, folder)
    child = os.fork()
    if child == 0:
        break
    _, status = os.waitpid(child, 0)
    if status != signal.SIGKILL:
        print(last, status)
        sys.exit()
calls = 0
def counted(function):
    def call(*args, **kwargs):
        global calls
        calls += 1
        if calls == last:
            if function is os_write:  # half of it arrives
                function(args[0], bytes(args[1])[: len(args[1]) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*args, **kwargs)
    return call
os_write = os.write
backend = FilesBackend(folder)
for name in ("replace", "rename", "fsync", "write", "unlink", "utime", "ftruncate", "mkdir"):
    setattr(os, name, counted(getattr(os, name)))
nodes = [make_record(BUILTIN["string"], canonical.encode(t), (), 1) for t in ("new one", "new two")]
moves = [
    Move("thread/" + thread, 1, nodes[1].id, {"status": "completed"}),
    Move("workflow/w", 0, nodes[0].id, {}),
    Move("lease/x", 1, None, None),
    Move("gone", 1, None, None),
]
backend.commit(Change(nodes, moves, [NewEvent("s", "second", {})]), now=2, durable=True)
"""


def outcome(folder: Path) -> tuple[object, ...]:
    backend = FilesBackend(str(folder), create=False)
    return (
        [(r.name, r.target, dict(r.state), r.version) for r in backend.refs()],
        [(m.seq, m.name, m.target) for m in backend.roots()],
        [e.kind for e in backend.events()],
        sorted(backend.ids_of_type(STRING)),
        sorted(item.id for item in backend.scan() if isinstance(item, NodeRecord) and item.sha256),
        sorted(p.id for p in backend.puts()),
        backend.position()[1],
    )


def test_a_kill_at_any_point_leaves_all_of_a_change_or_nothing(tmp_path: Path) -> None:
    start = tmp_path / "start"
    backend = FilesBackend(str(start))
    put(backend, text("old"))
    move(backend, f"thread/{THREAD}", text("old").id, {"status": "running"})
    move(backend, "lease/x", None, {"holder": "me"})
    move(backend, "gone", text("old").id)
    backend.commit(Change(events=[NewEvent("s", "first", {})]), now=NOW, durable=True)
    nothing = outcome(start)
    child = run(KILLED, str(start), THREAD)
    last, status = map(int, child.stdout.split())
    assert status == 0, child.stderr
    everything = outcome(tmp_path / f"start-{last}")
    assert everything != nothing
    seen = set()
    for call in range(1, last):
        folder = tmp_path / f"start-{call}"
        before = tree(folder)
        found = outcome(folder)
        assert found in (nothing, everything), f"killed at call {call}"
        assert tree(folder) == before, "a reader changed the folder"
        with FilesBackend(str(folder)).exclusive():
            pass
        assert outcome(folder) == found, f"repair after call {call} changed the answer"
        assert not (folder / "journal.json").exists()
        assert not (folder / ".tmp").exists() or list((folder / ".tmp").iterdir()) == []
        seen.add(found == everything)
    assert seen == {True, False} and last > 30


WRITER = """
import sys
from rolecall.store import canonical
from rolecall.errors import Conflict
from rolecall.store.backend import Change, Move, NewEvent
from rolecall.store.files import FilesBackend
from rolecall.store.store import BUILTIN, make_record
backend = FilesBackend(sys.argv[1])
won = 0
while won < 12:
    ref = backend.ref("thread/" + sys.argv[2])
    n = ref.state["n"] + 1 if ref else 1
    node = make_record(BUILTIN["string"], canonical.encode(f"{n} by {sys.argv[3]}"), (), n)
    move = Move("thread/" + sys.argv[2], ref.version if ref else 0, node.id, {"status": "idle", "n": n})
    try:
        backend.commit(Change([node], [move], [NewEvent("s", "won", {"n": n})]), now=n, durable=False)
    except Conflict:
        continue
    won += 1
"""


def test_eight_processes_counting_up_lose_nothing(tmp_path: Path) -> None:
    FilesBackend(str(tmp_path))
    children = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), THREAD, str(n)]) for n in range(8)
    ]
    assert [child.wait(timeout=60) for child in children] == [0] * 8
    backend = FilesBackend(str(tmp_path), create=False)
    ref = backend.ref(f"thread/{THREAD}")
    assert ref is not None and (ref.version, ref.state["n"]) == (96, 96)
    assert [e.body["n"] for e in backend.events()] == list(range(1, 97))
    targets = [m.target for m in backend.history(f"thread/{THREAD}")]
    assert len(set(targets)) == 96 and len(backend.records(targets)) == 96
    assert sorted(backend.ids_of_type(STRING)) == sorted(targets)
    assert os.listdir(tmp_path / ".tmp") == []


def test_a_thread_that_the_predecessor_dropped_from_its_file_is_kept_and_reported(tmp_path: Path) -> None:
    backend = FilesBackend(str(tmp_path))
    put(backend, text("a"))
    move(backend, f"thread/{THREAD}", text("a").id, {"status": "idle"})
    (tmp_path / "threads.yaml").write_text("{}\n")
    ref = backend.ref(f"thread/{THREAD}")
    assert ref is not None and (ref.target, ref.version) == (text("a").id, 1)
    assert [problem for problem in backend.problems() if THREAD in problem]
    move(backend, f"thread/{THREAD}", text("b").id, {"status": "idle"})
    assert list(backend.problems()) == []


TOGGLER = """
import sys
from rolecall.store.backend import Change, Move
from rolecall.store.files import FilesBackend
backend = FilesBackend(sys.argv[1])
for n in range(1, 151):
    state = {"status": "completed" if n % 2 else "running", "n": n}
    move = Move("thread/" + sys.argv[2], n - 1, f"{n:013d}", state)
    backend.commit(Change(moves=[move, Move("workflow/w", n - 1, f"{n:013d}", {"n": n})]), now=n, durable=False)
"""


def test_a_reader_beside_a_writer_sees_whole_changes_only(tmp_path: Path) -> None:
    backend = FilesBackend(str(tmp_path))
    child = subprocess.Popen([sys.executable, "-c", TOGGLER, str(tmp_path), THREAD])
    version = 0
    while child.poll() is None:
        found = backend.refs()
        for ref in found:
            assert (ref.state["n"], ref.target) == (ref.version, f"{ref.version:013d}")
        assert len({ref.version for ref in found}) <= 1 and len(found) in (0, 2)
        assert all(ref.version >= version for ref in found)
        version = max([version, *(ref.version for ref in found)])
    assert child.returncode == 0
    assert {ref.version for ref in backend.refs()} == {150}


STUCK = """
import resource, sys
from rolecall.errors import StorageError
from rolecall.store.backend import Change, NewEvent
from rolecall.store.files import FilesBackend
backend = FilesBackend(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
backend.commit(Change(events=[NewEvent("s", "decided", {})]), now=1, durable=True)
try:
    backend.commit(Change(events=[NewEvent("s", "refused", {})]), now=1, durable=True)
except StorageError as exc:
    print(exc.message)
"""


def test_a_decided_change_that_cannot_be_spread_is_seen_and_finished_later(tmp_path: Path) -> None:
    backend = FilesBackend(str(tmp_path))
    backend.commit(Change(events=[NewEvent("s", "big", {"x": "x" * 60_000})]), now=NOW, durable=True)
    done = run(STUCK, str(tmp_path))
    assert "File too large" in done.stdout, done.stderr
    assert (tmp_path / "journal.json").exists()
    assert [e.kind for e in backend.events()] == ["big", "decided"]
    backend.commit(Change(events=[NewEvent("s", "after", {})]), now=NOW, durable=True)
    assert [(e.seq, e.kind) for e in backend.events()] == [(1, "big"), (2, "decided"), (3, "after")]
    assert not (tmp_path / "journal.json").exists()


def test_nodes_that_lie_elsewhere_are_read_beside_the_refs_of_the_folder(tmp_path: Path) -> None:
    root, cas = tmp_path / "workflow", tmp_path / "json-cas"
    node = write_node(cas, STRING, canonical.encode("elsewhere"), NOW)
    root.mkdir()
    (root / "threads.yaml").write_text(f"{THREAD}: {node}\n")
    (root / "workflows.yaml").write_text(f"solve: {node}\n")
    before = tree(tmp_path)
    with pytest.raises(NotFound):
        FilesBackend(str(root), create=False)
    backend = FilesBackend(str(root), cas=str(cas))
    assert {ref.name: ref.target for ref in backend.refs()} == {
        f"thread/{THREAD}": node,
        "workflow/solve": node,
    }
    assert Store(backend).get(node).payload == "elsewhere"
    assert list(backend.ids_of_type(STRING)) == [node]
    assert [put.id for put in backend.puts()] == [node]
    assert list(backend.problems()) == []
    assert backend.size()["disk"] == sum(len(data) for _, data in before.values())
    assert tree(tmp_path) == before and not (root / "cas").exists()


@pytest.mark.parametrize("layout", [".", "nodes"])
def test_a_bare_node_folder_is_read_as_a_store_without_refs(tmp_path: Path, layout: str) -> None:
    node = write_node(tmp_path / layout, STRING, canonical.encode("bare"), NOW)
    (tmp_path / "_index").mkdir()
    (tmp_path / "_index" / STRING).write_text(f"{node}\n")
    before = tree(tmp_path)
    backend = FilesBackend(str(tmp_path))
    assert Store(backend).get(node).payload == "bare"
    assert list(backend.ids_of_type(STRING)) == [node]
    assert backend.refs() == [] and list(backend.roots()) == [] and backend.size()["nodes"] == 1
    assert list(backend.problems()) == []
    assert tree(tmp_path) == before


@pytest.mark.parametrize("bare", [True, False])
def test_a_node_folder_without_its_own_lock_is_never_written(tmp_path: Path, bare: bool) -> None:
    root, cas = tmp_path / "root", tmp_path / "nodes-of-many"
    write_node(cas, STRING, canonical.encode("old"), NOW)
    root.mkdir()
    before = tree(tmp_path)
    backend = FilesBackend(str(cas)) if bare else FilesBackend(str(root), cas=str(cas))
    with pytest.raises(StorageError, match="nodes-of-many"):
        put(backend, text("new"))
    with pytest.raises(StorageError, match="nodes-of-many"):
        move(backend, "note/x", text("old").id)
    with pytest.raises(StorageError, match="nodes-of-many"), backend.exclusive():
        pass
    with pytest.raises(StorageError, match="nodes-of-many"):
        backend.reindex()
    assert tree(tmp_path) == before and os.listdir(root) == []


def test_a_node_folder_that_is_named_must_be_there_and_the_usual_one_stays_writable(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="none"):
        FilesBackend(str(tmp_path), cas=str(tmp_path / "none"))
    with pytest.raises(NotFound, match="typo"):
        FilesBackend(str(tmp_path / "typo"), cas=str(tmp_path))
    assert os.listdir(tmp_path) == []
    backend = FilesBackend(str(tmp_path), cas=str(tmp_path / "cas"))
    put(backend, text("a"))
    assert (tmp_path / f"cas/{text('a').id}.bin").exists()


def test_files_that_only_look_like_nodes_do_not_stop_a_store_from_being_made(tmp_path: Path) -> None:
    (tmp_path / "firmware.bin").write_bytes(b"\0")
    (tmp_path / "nodes").mkdir()
    put(FilesBackend(str(tmp_path)), text("a"))
    assert (tmp_path / f"cas/{text('a').id}.bin").exists()


def test_a_damaged_counter_is_reported_among_the_other_problems(tmp_path: Path) -> None:
    backend = FilesBackend(str(tmp_path))
    put(backend, text("a"))
    move(backend, "note/x", text("a").id)
    (tmp_path / "counters.json").write_text("{")
    (tmp_path / "threads.yaml").write_text("[\n")
    found = "\n".join(backend.problems())
    assert "counters.json" in found and "threads.yaml" in found


@pytest.mark.parametrize("journal", ["[]", "{", '{"other": {}}'])
def test_a_journal_of_the_wrong_kind_is_damage(tmp_path: Path, journal: str) -> None:
    backend = FilesBackend(str(tmp_path))
    put(backend, text("a"))
    (tmp_path / "journal.json").write_text(journal)
    with pytest.raises(Damaged, match=r"journal\.json"):
        put(backend, text("b"))


@pytest.mark.parametrize("timestamp", [b"\x1b\x80" + bytes(7), b"\xfb\x7f\xf8" + bytes(6), b"\x20", b"\xf6"])
def test_a_time_that_is_none_is_damage_of_its_node(tmp_path: Path, timestamp: bytes) -> None:
    backend = FilesBackend(str(tmp_path))
    put(backend, text("intact"), text("changed"))
    node = text("changed").id
    path = tmp_path / "cas" / f"{node}.bin"
    path.write_bytes(path.read_bytes()[:-9] + timestamp)
    with pytest.raises(Damaged, match=node):
        backend.record(node)
    assert [item.id for item in backend.scan() if isinstance(item, Damage)] == [node]


def test_a_line_that_the_index_has_lost_is_a_problem_until_it_is_rebuilt(tmp_path: Path) -> None:
    store = Store(FilesBackend(str(tmp_path)))
    nodes = [store.put_text(str(number)) for number in range(3)]
    assert list(store.backend.problems()) == []
    index = tmp_path / "cas/_index" / STRING
    index.write_text(f"{nodes[0]}\n{nodes[2]}\n")
    (problem,) = store.backend.problems()
    assert str(index) in problem and nodes[1] in problem and "reindex" in problem
    (tmp_path / "cas/_index" / META).unlink()
    assert len(list(store.backend.problems())) == 2
    store.backend.reindex()
    assert list(store.backend.problems()) == []


def test_the_first_write_makes_the_folder(tmp_path: Path) -> None:
    place = tmp_path / "a" / "store"
    store = Store(FilesBackend(str(place)))
    assert (store.refs(), store.events(), list(store.backend.scan())) == ([], [], [])
    assert (list(store.backend.problems()), store.backend.size()["nodes"]) == ([], 0)
    with pytest.raises(NotFound):
        store.put("0000000000001", {})
    assert not (tmp_path / "a").exists()
    assert Store(FilesBackend(str(place))).put_text("x")
    assert store.has(text("x").id)
