"""The index file: whole states only, words and vectors that belong together, and damage that is noticed."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import numpy as np
import pytest

from rolecall.errors import Damaged, NotFound
from rolecall.knowledge import index
from rolecall.knowledge.chunk import Passage
from rolecall.knowledge.index import Reader, Writer, writing


def put(writer: Writer, path: str, *texts: str) -> None:
    rows = np.eye(4, dtype=np.float32)[[len(text) % 4 for text in texts]]
    made = [Passage(at, at, ("Head", text.split()[0]), text) for at, text in enumerate(texts, 1)]
    writer.put(path, index.digest("".join(texts).encode()), made, rows)


def finish(writer: Writer) -> None:
    writer.finish(model="m", dimensions=4, recipe="r", synced="now")


@pytest.fixture
def path(tmp_path: Path) -> str:
    path = str(tmp_path / "knowledge.db")
    with writing(path) as writer:
        put(writer, "a.md", "alpha one", "beta two")
        put(writer, "b.md", "gamma three")
        finish(writer)
    return path


def words(reader: Reader, word: str) -> list[str]:
    return [each.text for each in reader.stored(reader.by_words(f'"{word}"', limit=10)).values()]


def test_what_was_written_is_read(path: str) -> None:
    reader = Reader(path)
    assert (reader.state.files, reader.state.passages, reader.state.model) == (2, 3, "m")
    assert words(reader, "beta") == ["beta two"]
    ids, matrix = reader.vectors()
    assert matrix.shape == (3, 4) and sorted(ids) == list(ids)
    assert {each.text for each in reader.stored(list(map(int, ids))).values()} == {
        "alpha one",
        "beta two",
        "gamma three",
    }
    reader.close()


def test_a_file_that_is_put_again_or_removed_leaves_no_words_behind(path: str) -> None:
    with writing(path) as writer:
        put(writer, "a.md", "delta four")
        writer.remove("b.md")
        writer.remove("never.md")
        finish(writer)
    reader = Reader(path)
    assert [reader.frequencies([word])[word] for word in ("alpha", "beta", "gamma", "delta")] == [0, 0, 0, 1]
    assert words(reader, "delta") == ["delta four"] and reader.vectors().matrix.shape == (1, 4)
    reader.close()


def test_a_sync_that_fails_writes_nothing(path: str) -> None:
    with pytest.raises(RuntimeError), writing(path) as writer:
        writer.clear()
        put(writer, "c.md", "delta four")
        finish(writer)
        raise RuntimeError
    reader = Reader(path)
    assert reader.state.files == 2 and words(reader, "delta") == []
    reader.close()


def test_a_first_sync_that_fails_leaves_what_says_that_nothing_is_indexed(tmp_path: Path) -> None:
    path = str(tmp_path / "knowledge.db")
    with pytest.raises(NotFound, match="nothing has been indexed yet"):
        Reader(path)
    with pytest.raises(RuntimeError), writing(path) as writer:
        put(writer, "a.md", "alpha one")
        raise RuntimeError
    with pytest.raises(NotFound, match="nothing has been indexed"):
        Reader(path)


def test_a_reader_sees_one_state_until_it_goes_on(path: str) -> None:
    reader = Reader(path)
    ids, _ = reader.vectors()
    with writing(path) as writer:
        put(writer, "c.md", "delta four")
        assert words(reader, "delta") == []
        finish(writer)
    assert words(reader, "delta") == [] and reader.vectors().ids is ids
    reader.refresh()
    assert words(reader, "delta") == ["delta four"] and len(reader.vectors().ids) == 4
    reader.close()


def test_a_reader_at_rest_lets_the_log_end_and_knows_when_the_file_is_another(path: str) -> None:
    reader = Reader(path)
    reader.rest()
    with writing(path) as writer:
        put(writer, "c.md", "delta four")
        finish(writer)
    log = Path(f"{path}-wal")
    assert not log.exists() or log.stat().st_size == 0
    reader.refresh()
    assert reader.state.files == 3 and reader.is_current_file()
    index.remove(path)
    assert not reader.is_current_file()
    reader.close()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE file SET vectors = zeroblob(length(vectors)) WHERE path = 'a.md'",
        "UPDATE file SET vectors = substr(vectors, 1, 8) WHERE path = 'a.md'",
        "DELETE FROM file WHERE path = 'a.md'",
        "UPDATE meta SET value = 99 WHERE key = 'passages'",
        "UPDATE meta SET value = 8 WHERE key = 'dimensions'",
    ],
)
def test_vectors_that_are_not_what_was_written_are_damage(path: str, statement: str) -> None:
    spoil(path, statement)
    reader = Reader(path)
    with pytest.raises(Damaged):
        reader.vectors()
    reader.close()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE passage SET text = 'something else' WHERE text = 'beta two'",
        "UPDATE passage SET trail = 'Elsewhere' WHERE text = 'beta two'",
        "DELETE FROM passage WHERE text = 'beta two'",
    ],
)
def test_a_passage_that_is_not_what_was_written_is_damage(path: str, statement: str) -> None:
    spoil(path, statement)
    reader = Reader(path)
    with pytest.raises(Damaged):
        words(reader, "beta")
    reader.close()


def spoil(path: str, statement: str) -> None:
    db = sqlite3.connect(path)
    with db:
        assert db.execute(statement).rowcount == 1
    db.close()
