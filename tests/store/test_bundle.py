"""Export and import: a copy is whole or named as not, and never takes anything from either side."""

from __future__ import annotations

import contextlib
import os
import random
import sqlite3
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rolecall.errors import Damaged, NotFound, RolecallError, StorageError, UsageError
from rolecall.store.backend import Record
from rolecall.store.bundle import export_to, import_from
from rolecall.store.files import FilesBackend
from rolecall.store.sqlite import SqliteBackend
from rolecall.store.store import Store
from rolecall.store.verify import verify

LIST = {"type": "array", "items": {"type": "string", "format": "ocas_ref"}}
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
    """A store with a tree of nodes and a ref with a history."""
    store = open_store("source.db")
    leaf, other = store.put_text("leaf"), store.put_text("other")
    root = store.put(store.put_schema(LIST), [leaf])
    ref = store.move("wf/example", None, other, {"n": 1})
    store.move("wf/example", ref, root, {"n": 2})
    return store


def contents(store: Store) -> dict[str, tuple[str, bytes, int]]:
    return {
        record.id: (record.type, record.data, record.created)
        for record in store.backend.scan()
        if isinstance(record, Record)
    }


def problems(store: Store) -> list[object]:
    return [problem for done in verify(store) for problem in done.problems]


def damage(store: Store, node: str) -> None:
    with sqlite3.connect(str(store.backend.path)) as db:  # type: ignore[attr-defined]
        assert db.execute("UPDATE nodes SET data = X'80' WHERE id = ?", (node,)).rowcount == 1
    db.close()


@pytest.mark.parametrize("name", ["backup.tar", "backup.tgz", "backup.tar.gz", "folder/"])
def test_a_copy_holds_every_node_and_ref_with_its_time(
    source: Store, open_store: Opener, tmp_path: Path, name: str
) -> None:
    path = os.path.join(tmp_path, name)
    exported = export_to(source, path)
    assert (exported.refs, exported.kept, exported.problems) == (1, (), ())
    target = open_store("target.db")
    imported = import_from(target, path)
    assert imported == exported
    assert contents(target) == contents(source)
    assert exported.nodes == len(contents(source))
    ref, original = target.ref("wf/example"), source.ref("wf/example")
    assert ref is not None and original is not None
    assert (ref.target, ref.state) == (original.target, original.state)
    assert [moved.target for moved in target.history("wf/example")] == [
        moved.target for moved in source.history("wf/example")
    ]
    assert problems(target) == []


def test_importing_again_changes_nothing(source: Store, open_store: Opener, tmp_path: Path) -> None:
    export_to(source, path := str(tmp_path / "b.tar"))
    target = open_store("target.db")
    import_from(target, path)
    before = contents(target)
    again = import_from(target, path)
    assert (again.refs, again.kept) == (0, ())
    assert contents(target) == before


def test_a_bundle_unpacked_is_a_store(source: Store, tmp_path: Path) -> None:
    export_to(source, str(tmp_path / "b.tgz"))
    with tarfile.open(tmp_path / "b.tgz") as tar:
        tar.extractall(tmp_path / "unpacked", filter="data")
    with Store(FilesBackend(str(tmp_path / "unpacked"), create=False)) as unpacked:
        assert contents(unpacked) == contents(source)
        assert problems(unpacked) == []


def test_part_of_a_store_can_be_exported(source: Store, open_store: Opener, tmp_path: Path) -> None:
    ref = source.ref("wf/example")
    assert ref is not None and ref.target is not None
    leaf = source.refs_of(ref.target)[0]
    exported = export_to(source, path := str(tmp_path / "part.tar"), [ref.target])
    assert exported.refs == 0
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
    imported = import_from(target, path)
    assert (imported.refs, imported.kept) == (0, ("wf/example",))
    ref = target.ref("wf/example")
    assert ref is not None and ref.target == mine


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
    assert not (tmp_path / "b.tar").exists()


def test_what_is_not_there_is_not_found(open_store: Opener, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"nothing\.tar"):
        import_from(open_store("target.db"), str(tmp_path / "nothing.tar"))


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
    intact = contents(source)
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
        assert contents(target).items() <= intact.items()


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


def test_a_bundle_that_reaches_out_of_its_folder_is_refused(open_store: Opener, tmp_path: Path) -> None:
    (tmp_path / "evil.txt").write_text("evil")
    with tarfile.open(tmp_path / "b.tar", "w") as tar:
        tar.add(tmp_path / "evil.txt", arcname="../escaped.txt")
    with pytest.raises(Damaged, match="not a whole bundle"):
        import_from(open_store("target.db"), str(tmp_path / "b.tar"))


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
    assert "--keep-going" in caught.value.hint
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
