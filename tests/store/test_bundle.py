"""Export and import: a copy is whole or named as not, and never takes anything from either side."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tarfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rolecall.errors import Damaged, NotFound, RolecallError, StorageError, UsageError
from rolecall.store.backend import Change, NodeRecord
from rolecall.store.bundle import export_to, import_from
from rolecall.store.files import FilesBackend
from rolecall.store.sqlite import SqliteBackend
from rolecall.store.store import BUILTIN, META, Store
from rolecall.store.verify import verify

LIST = {"type": "array", "items": {"type": "string", "format": "ocas_ref"}}
THREAD = "06GZZZZZZZ0123456789ABCDEF"
Opener = Callable[[str], Store]


@pytest.fixture
def open_store(tmp_path: Path) -> Iterator[Opener]:
    """Opens stores by name; all are closed at the end."""
    opened: list[Store] = []

    def open_named(name: str) -> Store:
        path = str(tmp_path / name)
        opened.append(Store(FilesBackend(path) if name.startswith("files") else SqliteBackend(path)))
        return opened[-1]

    yield open_named
    for store in opened:
        store.close()


@pytest.fixture
def source(open_store: Opener) -> Store:
    """A store with a tree of nodes, a ref with a history, one without a target, an ended thread and events."""
    store = open_store("source.db")
    clock = itertools.count(1_700_000_000_000, 1_000)
    store.now = lambda: next(clock)
    leaf, other = store.put_text("leaf"), store.put_text("other")
    root = store.put(store.put_schema(LIST), [leaf])
    ref = store.move("wf/example", None, root, {"n": 0})
    ref = store.move("wf/example", ref, other, {"n": 1})
    ref = store.move("wf/example", ref, root, {"n": 2})
    store.move("wf/example", ref, root, {"n": 3})
    store.move("attempt/one", None, None, {"agent": "a"})
    store.move(f"thread/{THREAD}", None, root, {"status": "completed", "workflow": other})
    for stream in ("a", "b", "a"):
        draft = store.draft()
        draft.event(stream, "step", {"half": "\ud800", "list": [1, {}]})
        draft.commit()
    return store


def contents(store: Store) -> dict[str, tuple[str, bytes, int]]:
    return {
        record.id: (record.type, record.data, record.created)
        for record in store.backend.scan()
        if isinstance(record, NodeRecord)
    }


def problems(store: Store) -> list[object]:
    return [problem for done in verify(store) for problem in done.problems]


def damage(store: Store, node: str) -> None:
    with sqlite3.connect(str(store.backend.path)) as db:  # type: ignore[attr-defined]
        assert db.execute("UPDATE nodes SET data = X'80' WHERE id = ?", (node,)).rowcount == 1
    db.close()


def dump_refs_and_events(store: Store) -> dict[str, object]:
    """Everything of a store beside its nodes, without the numbers that a store gives by itself."""
    return {
        "refs": [(ref.name, ref.target, ref.state, ref.updated) for ref in store.refs()],
        "moves": {ref.name: [(m.target, m.at) for m in store.history(ref.name)] for ref in store.refs()},
        "events": [(e.stream, e.kind, e.body, e.at) for e in store.events()],
    }


@pytest.mark.parametrize("name", ["backup.tar", "backup.tgz", "backup.tar.gz", "folder/"])
def test_a_copy_holds_every_node_ref_and_event_with_its_time(
    source: Store, open_store: Opener, tmp_path: Path, name: str
) -> None:
    path = os.path.join(tmp_path, name)
    exported = export_to(source, path)
    assert (exported.refs, exported.events, exported.kept, exported.problems) == (3, 3, (), ())
    target = open_store("target.db")
    imported = import_from(target, path)
    assert imported == exported
    assert contents(target) == contents(source)
    assert exported.nodes == len(contents(source))
    assert dump_refs_and_events(target) == dump_refs_and_events(source)
    assert len(source.history("wf/example")) == 3
    assert problems(target) == []


def test_a_folder_tells_when_a_thread_ended(source: Store, tmp_path: Path) -> None:
    export_to(source, str(tmp_path / "folder") + "/")
    (line,) = (tmp_path / "folder" / "history.jsonl").read_text().splitlines()
    ended = source.ref(f"thread/{THREAD}")
    assert ended is not None
    assert json.loads(line)["completedAt"] == ended.updated


def test_importing_again_changes_nothing(source: Store, open_store: Opener, tmp_path: Path) -> None:
    export_to(source, path := str(tmp_path / "b.tar"))
    target = open_store("target.db")
    import_from(target, path)
    before = contents(target)
    again = import_from(target, path)
    assert (again.refs, again.events, again.kept) == (0, 0, ())
    assert (contents(target), dump_refs_and_events(target)) == (before, dump_refs_and_events(source))


def test_importing_later_brings_the_events_since(source: Store, open_store: Opener, tmp_path: Path) -> None:
    target = open_store("target.db")
    export_to(source, first := str(tmp_path / "1.tar"))
    import_from(target, first)
    for stream in ("a", "c"):
        draft = source.draft()
        draft.event(stream, "later", {})
        draft.commit()
    export_to(source, second := str(tmp_path / "2.tar"))
    assert import_from(target, second).events == 2
    assert dump_refs_and_events(target) == dump_refs_and_events(source)


def test_events_that_went_another_way_here_are_left_alone(
    source: Store, open_store: Opener, tmp_path: Path
) -> None:
    target = open_store("target.db")
    draft = target.draft()
    draft.event("a", "mine", {})
    draft.commit()
    export_to(source, path := str(tmp_path / "b.tar"))
    imported = import_from(target, path)
    assert (imported.events, imported.kept) == (1, ("a",))
    assert [(event.stream, event.kind) for event in target.events()] == [("a", "mine"), ("b", "step")]


def test_a_bundle_unpacked_is_a_store(source: Store, tmp_path: Path) -> None:
    export_to(source, str(tmp_path / "b.tgz"))
    (tmp_path / "unpacked").mkdir()
    subprocess.run(["tar", "-xf", tmp_path / "b.tgz", "-C", tmp_path / "unpacked"], check=True, timeout=60)
    with Store(FilesBackend(str(tmp_path / "unpacked"), create=False)) as unpacked:
        assert contents(unpacked) == contents(source)
        assert problems(unpacked) == []


def test_part_of_a_store_can_be_exported(source: Store, open_store: Opener, tmp_path: Path) -> None:
    ref = source.ref("wf/example")
    assert ref is not None and ref.target is not None
    leaf = source.refs_of(ref.target)[0]
    exported = export_to(source, path := str(tmp_path / "part.tar"), [ref.target])
    assert (exported.refs, exported.events) == (0, 0)
    target = open_store("target.db")
    import_from(target, path)
    assert target.get(leaf).payload == "leaf"
    assert target.get(ref.target) == source.get(ref.target)
    assert target.ref("wf/example") is None
    texts = [node for node in contents(target) if target.get(node).payload == "other"]
    assert texts == []


def test_a_part_with_a_reference_to_nothing_is_exported_and_says_so(source: Store, tmp_path: Path) -> None:
    node = source.put(source.put_schema(LIST), ["0000000000001"])
    exported = export_to(source, str(tmp_path / "part.tar"), [node])
    assert [(problem.node, problem.kind) for problem in exported.problems] == [(node, "dangling")]


def test_a_ref_that_points_elsewhere_here_is_left_alone(
    source: Store, open_store: Opener, tmp_path: Path
) -> None:
    export_to(source, path := str(tmp_path / "b.tar"))
    target = open_store("target.db")
    target.move("wf/example", None, mine := target.put_text("mine"))
    target.move("attempt/one", None, None, {"agent": "mine"})
    imported = import_from(target, path)
    assert (imported.refs, imported.kept) == (1, ("attempt/one", "wf/example"))
    ref = target.ref("wf/example")
    assert ref is not None and ref.target == mine


def test_the_index_is_carried_over_and_what_it_names_here_stays(
    source: Store, open_store: Opener, tmp_path: Path
) -> None:
    target, node = open_store("target.db"), source.put_text("step")
    for store, names in ((source, ("key/a", "key/b")), (target, ("key/a",))):
        draft = store.draft()
        for name in names:
            draft.set_fact(name, {"step": node if store is source else target.put_text("mine")})
        draft.commit()
    export_to(source, path := str(tmp_path / "b.tar"))
    imported = import_from(target, path)
    assert (imported.refs, imported.kept) == (4, ())  # both steps have the key, so neither is worth a word
    assert [ref.state["step"] == node for ref in target.refs("key/")] == [False, True]


# -- refusals --


def test_an_export_never_overwrites(source: Store, tmp_path: Path) -> None:
    (tmp_path / "b.tar").write_text("precious")
    with pytest.raises(UsageError, match="exists"):
        export_to(source, str(tmp_path / "b.tar"))
    assert (tmp_path / "b.tar").read_text() == "precious"


def test_an_export_that_cannot_be_written_leaves_nothing(source: Store, tmp_path: Path) -> None:
    before = sorted(tmp_path.iterdir())
    with pytest.raises(StorageError, match="could not be written"):
        export_to(source, str(tmp_path / "no" / "such" / "b.tar"))
    assert sorted(tmp_path.iterdir()) == before


def test_an_export_leaves_nothing_beside_the_bundle(source: Store, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    export_to(source, str(tmp_path / "out" / "b.tar"))
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["b.tar"]


def test_a_damaged_source_is_not_exported_in_full(source: Store, tmp_path: Path) -> None:
    node = source.put_text("will be damaged")
    damage(source, node)
    with pytest.raises(Damaged) as caught:
        export_to(source, str(tmp_path / "b.tar"))
    assert caught.value.node == node
    assert node in caught.value.message
    assert "what is intact" in caught.value.hint
    assert not (tmp_path / "b.tar").exists()


@pytest.mark.parametrize("part", [False, True])
def test_keep_going_exports_the_intact_nodes_of_a_damaged_store(
    source: Store, open_store: Opener, tmp_path: Path, part: bool
) -> None:
    ref = source.refs("wf/")[0]
    assert ref.target is not None
    (leaf,) = source.refs_of(ref.target)
    damage(source, leaf)
    exported = export_to(
        source, path := str(tmp_path / "b.tar"), [ref.target] if part else [], keep_going=True
    )
    assert [(problem.node, problem.kind) for problem in exported.problems] == [(leaf, "damaged")]
    target = open_store("target.db")
    if not part:  # its refs lead to what is not in it
        with pytest.raises(Damaged, match=f"leads to {leaf}, which is not stored"):
            import_from(target, path)
        assert contents(target) == {}
    import_from(target, path, keep_going=True)
    assert target.get(ref.target) == source.get(ref.target)
    assert not target.has(leaf)
    if not part:
        assert dump_refs_and_events(target) == dump_refs_and_events(source)


def test_keep_going_exports_what_lies_beyond_a_damaged_page(open_store: Opener, tmp_path: Path) -> None:
    with open_store("large.db") as store:
        nodes = store.put_many((BUILTIN["string"], f"{number} " * 100) for number in range(200))
    path = tmp_path / "large.db"
    data = bytearray(path.read_bytes())
    # The middle of the file lies among the nodes; a page that says nothing takes the nodes on it.
    at = len(data) // 2 // 4096 * 4096
    data[at : at + 4096] = bytes(4096)
    path.write_bytes(data)
    damaged = open_store("large.db")
    exported = export_to(damaged, bundle := str(tmp_path / "b.tar"), keep_going=True)
    lost = {problem.node for problem in exported.problems}
    assert 0 < len(lost) < 50
    target = open_store("target.db")
    import_from(target, bundle)
    assert set(nodes) - contents(target).keys() == lost & set(nodes)


def test_keep_going_exports_the_refs_and_events_that_can_be_read(
    source: Store, open_store: Opener, tmp_path: Path
) -> None:
    with sqlite3.connect(str(source.backend.path)) as db:  # type: ignore[attr-defined]
        db.execute("UPDATE refs SET state = '[' WHERE name = 'wf/example'")
        db.execute("UPDATE events SET body = '9' WHERE seq = 3")
    db.close()
    with pytest.raises(Damaged, match="wf/example"):
        export_to(source, str(tmp_path / "b.tar"))
    exported = export_to(source, path := str(tmp_path / "b.tar"), keep_going=True)
    assert {problem.node for problem in exported.problems} == {"wf/example", ""}
    target = open_store("target.db")
    import_from(target, path)
    assert [ref.name for ref in target.refs()] == ["attempt/one", f"thread/{THREAD}"]


def test_what_is_not_there_is_not_found(open_store: Opener, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"nothing\.tar"):
        import_from(open_store("target.db"), str(tmp_path / "nothing.tar"))


def test_a_folder_without_nodes_is_not_found(open_store: Opener, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with tarfile.open(tmp_path / "empty.tar", "w") as tar:
        tar.add(tmp_path / "empty", arcname=".")
    for name in ("empty", "empty.tar"):
        with pytest.raises(NotFound, match=f"there are no nodes in .*{name}") as caught:
            import_from(open_store("target.db"), str(tmp_path / name))
        assert "bundle" in caught.value.hint and "put" not in caught.value.hint
    assert not (tmp_path / "target.db").exists()


def test_a_file_that_is_no_bundle_is_refused(open_store: Opener, tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("Dear reader, " * 200)
    with pytest.raises(Damaged, match=r"letter\.txt is not a whole bundle"):
        import_from(open_store("target.db"), str(tmp_path / "letter.txt"))


@pytest.mark.parametrize("name", ["b.tar", "b.tgz"])
def test_a_bundle_cut_short_or_changed_is_refused_or_taken_whole(
    source: Store, open_store: Opener, tmp_path: Path, name: str
) -> None:
    export_to(source, str(tmp_path / name))
    whole = (tmp_path / name).read_bytes()
    intact = {(node, *stored[:2]) for node, stored in contents(source).items()}
    dice = random.Random(4)
    variants = [whole[: dice.randrange(len(whole))] for _ in range(25)]
    for _ in range(50):
        changed = bytearray(whole)
        changed[dice.randrange(len(changed))] ^= 1 << dice.randrange(8)
        variants.append(bytes(changed))
    target = open_store("target.db")
    for number, data in enumerate(variants):
        broken = tmp_path / f"{number}-{name}"
        broken.write_bytes(data)
        with contextlib.suppress(RolecallError):
            import_from(target, str(broken))
        # The time of the first put is no part of what an id is made from.
        assert {(node, *stored[:2]) for node, stored in contents(target).items()} <= intact


def test_a_time_that_no_clock_has_is_refused(open_store: Opener, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "b.tar", "w", format=tarfile.PAX_FORMAT) as tar:
        folder = tarfile.TarInfo("refs")
        folder.type, folder.mtime = tarfile.DIRTYPE, 2**80
        tar.addfile(folder)
    with pytest.raises(Damaged, match="not a whole bundle"):
        import_from(open_store("target.db"), str(tmp_path / "b.tar"))


def test_a_bundle_cut_off_between_two_files_is_refused(
    source: Store, open_store: Opener, tmp_path: Path
) -> None:
    export_to(source, str(tmp_path / "b.tar"))
    with tarfile.open(tmp_path / "b.tar") as tar:
        boundaries = [member.offset for member in tar.getmembers()][1:]
    whole = (tmp_path / "b.tar").read_bytes()
    target = open_store("target.db")
    for number, boundary in enumerate(boundaries):
        (tmp_path / f"{number}.tar").write_bytes(whole[:boundary])
        with pytest.raises(Damaged, match="not a whole bundle"):
            import_from(target, str(tmp_path / f"{number}.tar"))
    assert contents(target) == {}


@pytest.mark.parametrize(
    "member",
    [
        {"name": "../escaped.txt"},
        {"name": "cas/../../escaped.txt"},
        {"name": "{outside}/escaped.txt"},
        {"name": "cas", "type": tarfile.SYMTYPE, "linkname": "{outside}"},
        {"name": "cas", "type": tarfile.SYMTYPE, "linkname": "."},
        {"name": "cas/a.bin", "type": tarfile.LNKTYPE, "linkname": "{outside}/secret"},
        {"name": "cas/pipe", "type": tarfile.FIFOTYPE},
        {"name": "cas/device", "type": tarfile.CHRTYPE},
    ],
    ids=lambda member: " ".join(str(value) for value in member.values()),
)
def test_a_bundle_that_reaches_out_of_its_folder_is_refused(
    open_store: Opener, tmp_path: Path, member: dict[str, Any]
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    info = tarfile.TarInfo()
    for key, value in member.items():
        setattr(info, key, value.format(outside=outside) if isinstance(value, str) else value)
    beyond = tarfile.TarInfo("cas/escaped.txt")
    beyond.size = 4
    with tarfile.open(tmp_path / "b.tar", "w") as tar:
        tar.addfile(info, io.BytesIO())
        tar.addfile(beyond, io.BytesIO(b"evil"))
    with pytest.raises(Damaged, match=r"is not a whole bundle: .* is not a plain file"):
        import_from(open_store("target.db"), str(tmp_path / "b.tar"))
    assert list(outside.iterdir()) == []
    assert not list(tmp_path.rglob("escaped.txt"))


# -- damage in the source, damage here --


def damaged_folder(source: Store, tmp_path: Path) -> tuple[str, str]:
    """An exported folder with one node file cut short; its path and the node."""
    node = source.put_text("will be damaged")
    export_to(source, folder := str(tmp_path / "folder") + "/")
    (file,) = Path(folder).rglob(f"{node}.bin")
    file.write_bytes(file.read_bytes()[:-1])
    return folder, node


def test_a_damaged_node_in_a_folder_stops_the_import_before_it_begins(
    source: Store, open_store: Opener, tmp_path: Path
) -> None:
    folder, node = damaged_folder(source, tmp_path)
    target = open_store("target.db")
    with pytest.raises(Damaged) as caught:
        import_from(target, folder)
    assert caught.value.node == node
    assert "what is intact" in caught.value.hint
    assert contents(target) == {}


def test_keep_going_takes_the_intact_nodes_and_names_the_others(
    source: Store, open_store: Opener, tmp_path: Path
) -> None:
    folder, node = damaged_folder(source, tmp_path)
    target = open_store("target.db")
    imported = import_from(target, folder, keep_going=True)
    assert [(problem.node, problem.kind) for problem in imported.problems] == [(node, "damaged")]
    assert contents(source).keys() - contents(target).keys() == {node}


def test_repair_replaces_what_is_damaged_here_and_intact_there(
    source: Store, open_store: Opener, tmp_path: Path
) -> None:
    node, lost = source.put_text("in the bundle"), "not in the bundle"
    before = contents(source)
    export_to(source, path := str(tmp_path / "b.tgz"))
    alone = source.put_text(lost)
    damage(source, node)
    damage(source, alone)
    with pytest.raises(Damaged):
        import_from(source, path)
    import_from(source, path, repair=True)
    assert source.get(node).payload == "in the bundle"
    assert before.items() <= contents(source).items()
    with pytest.raises(Damaged):
        source.get(alone)


def test_a_refused_repair_leaves_everything_as_it_is(
    source: Store, open_store: Opener, tmp_path: Path
) -> None:
    folder, spoilt = damaged_folder(source, tmp_path)
    root = source.refs("wf/")[0].target
    assert root is not None
    damage(source, root)
    before = contents(source)
    with pytest.raises(Damaged, match=spoilt):
        import_from(source, folder, repair=True)
    assert contents(source) == before
    assert not import_from(source, folder, repair=True, keep_going=True).kept
    assert source.get(root).id == root
    assert source.get(spoilt).payload == "will be damaged"


@pytest.mark.parametrize("name", ["target.db", "files-target"])
def test_repair_brings_back_what_cannot_be_read_at_all(
    source: Store, open_store: Opener, tmp_path: Path, name: str
) -> None:
    export_to(source, path := str(tmp_path / "b.tar"))
    target = open_store(name)
    import_from(target, path)
    (root,) = source.of_type(source.put_schema(LIST))
    with target.backend.exclusive():
        target.backend.delete([META, root])
    for record in (source.record(META), source.record(root)):
        spoilt = record._replace(data=record.data[:-1] + b"\x00")
        target.backend.commit(Change([spoilt]), now=1, durable=True)
    import_from(target, path, repair=True)
    assert contents(target) == contents(source)
    assert problems(target) == []


# -- what is killed, and what is too large --


@pytest.mark.parametrize("verb", ["export", "import"])
def test_what_a_killed_copy_left_is_removed_by_the_next(
    source: Store, tmp_path: Path, rolecall: Any, verb: str
) -> None:
    place = tmp_path / "place"
    place.mkdir()
    bundle, path = str(tmp_path / "bundle.tar"), str(source.backend.path)  # type: ignore[attr-defined]
    export_to(source, bundle)
    words = {
        "export": ["cas", "export", str(place / "b.tar"), "--store", path],
        "import": ["cas", "import", bundle, "--store", str(tmp_path / "target.db")],
    }[verb]
    stuck = (
        "import os, signal, sys\n"
        "from rolecall import __main__ as program\n"
        "from rolecall.store import bundle\n"
        "bundle.FilesBackend.events = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)\n"
        "program.main(sys.argv[1:])\n"
    )
    env = {**os.environ, "TMPDIR": str(place), "ROLECALL_HOME": str(rolecall.home)}
    killed = subprocess.run([sys.executable, "-c", stuck, *words], env=env, timeout=60, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert len(list(place.iterdir())) == 1
    rolecall(*words, env=env, check=0)
    assert [file.name for file in place.iterdir()] == (["b.tar"] if verb == "export" else [])


def bomb(path: Path, kind: bytes) -> Path:
    """A bundle of 3 MB that unpacks to 3 GB: in a file, or in the name of one."""
    header = tarfile.TarInfo("cas/0000000000000.bin")
    header.type, header.size = kind, 3 << 30
    zeros, packer = bytes(1 << 20), zlib.compressobj(9, wbits=31)
    with path.open("wb") as file:
        file.write(packer.compress(header.tobuf(tarfile.GNU_FORMAT)))
        piece = packer.compress(zeros) + packer.flush(zlib.Z_FULL_FLUSH)
        file.write(piece)
        piece = packer.compress(zeros) + packer.flush(zlib.Z_FULL_FLUSH)
        file.writelines(piece for _ in range(3 * 1024))
    return path


@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.GNUTYPE_LONGNAME])
def test_a_bundle_that_unpacks_to_far_more_than_its_size_is_refused_early(
    open_store: Opener, tmp_path: Path, kind: bytes
) -> None:
    path = bomb(tmp_path / "bomb.tgz", kind)
    code = (
        "import resource, sys\n"
        "from rolecall import __main__ as program\n"
        "limit = 512 << 20\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))\n"
        "code = program.main(sys.argv[1:])\n"
        # Not ru_maxrss, which begins with the memory of the process that started this one.
        "print(next(line for line in open('/proc/self/status') if line.startswith('VmHWM')).split()[1])\n"
        "sys.exit(code)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "cas", "import", str(path), "--store", str(tmp_path / "target.db")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 4, done.stderr
    assert "unpacks to more than" in done.stderr
    assert int(done.stdout) < 300 * 1024
    assert not (tmp_path / "target.db").exists()
