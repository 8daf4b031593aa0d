"""Listing on every kind of store, a damaged ref included."""

from __future__ import annotations

from pathlib import Path

import pytest

from rolecall.settings.stores import open_backend
from rolecall.store.ids import thread_id
from rolecall.store.store import Store
from rolecall.threads import thread
from rolecall.threads.listing import Filter, list_threads

EVERYTHING = Filter(frozenset({*thread.STATUSES, "crashed", "damaged"}), None, 0, None, ())
NAMES = [thread_id(1_700_000_000_000 + index, bytes(10)) for index in range(4)]


def filled(url: str) -> Store:
    store = Store(open_backend(url))
    head = store.put_text("stands for a start")
    for name in NAMES:
        store.move(thread.ref_name(name), None, head, {"status": "idle", "name": "n", "title": "t"})
    store.move("other/ref", None, head)
    return store


@pytest.mark.parametrize("kind", ["{}/store.db", "files:{}/folder"])
def test_names_of_refs_come_last_first_and_in_pages(tmp_path: Path, kind: str) -> None:
    with filled(kind.format(tmp_path)) as store:
        refs = [thread.ref_name(name) for name in NAMES]
        assert store.backend.names("thread/") == refs[::-1]
        assert store.backend.names("thread/", limit=2) == refs[:1:-1]
        assert store.backend.names("thread/", before=refs[2]) == refs[1::-1]
        assert store.backend.names("nothing/") == []
        assert "other/ref" in store.backend.names()


@pytest.mark.parametrize("kind", ["{}/store.db", "files:{}/folder"])
def test_threads_are_listed_newest_first(tmp_path: Path, kind: str) -> None:
    with filled(kind.format(tmp_path)) as store:
        assert [entry["thread"] for entry in list_threads(store, EVERYTHING)] == NAMES[::-1]
        assert [entry["thread"] for entry in list_threads(store, EVERYTHING, page=NAMES[2])] == NAMES[1::-1]
        late = EVERYTHING._replace(since=1_700_000_000_001, before=1_700_000_000_003)
        assert [entry["thread"] for entry in list_threads(store, late)] == [NAMES[2], NAMES[1]]


def test_a_list_ends_before_the_thread_that_is_one_too_many(tmp_path: Path) -> None:
    with filled(f"{tmp_path}/store.db") as store:
        damaged, seen = EVERYTHING._replace(statuses=frozenset({"damaged"})), list[str]()

        def look(ident: str) -> bool:
            seen.append(ident)
            return len(seen) < 3

        assert list(list_threads(store, damaged, look=look)) == []
        assert seen == NAMES[:0:-1]


def test_a_damaged_ref_in_a_folder_is_listed_as_damaged(tmp_path: Path) -> None:
    with filled(f"files:{tmp_path}/folder") as store:
        [file] = [path for path in (tmp_path / "folder" / "refs").rglob("*") if NAMES[1] in path.name]
        file.write_text("{broken")
        found = [(entry["thread"], entry["status"]) for entry in list_threads(store, EVERYTHING)]
        assert found == [(NAMES[3], "idle"), (NAMES[2], "idle"), (NAMES[1], "damaged"), (NAMES[0], "idle")]


@pytest.mark.parametrize("kind", ["{}/store.db", "files:{}/folder"])
def test_a_thread_with_a_status_of_another_version_hides_no_other(tmp_path: Path, kind: str) -> None:
    with filled(kind.format(tmp_path)) as store:
        ref = store.ref(thread.ref_name(NAMES[1]))
        store.move(thread.ref_name(NAMES[1]), ref, ref.target if ref else None, {"status": "paused"})
        found = [(entry["thread"], entry["status"]) for entry in list_threads(store, EVERYTHING)]
        assert found == [(NAMES[3], "idle"), (NAMES[2], "idle"), (NAMES[1], "damaged"), (NAMES[0], "idle")]
