"""The index file: whole states only, words and vectors that belong together, and damage that is noticed."""

from __future__ import annotations

import select
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rolecall.errors import Conflict, NotFound, UsageError
from rolecall.knowledge import files, index
from rolecall.knowledge.chunk import Passage
from rolecall.knowledge.index import IndexReader, Writer, only_writer, writing


def put(writer: Writer, path: str, *texts: str) -> None:
    rows = np.eye(4, dtype=np.float32)[[len(text) % 4 for text in texts]]
    made = [Passage(at, at, ("Head", text.split()[0]), text) for at, text in enumerate(texts, 1)]
    writer.put(path, files.digest("".join(texts).encode()), made, rows)


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


def words(reader: IndexReader, word: str) -> list[str]:
    return [each.text for each in reader.load(reader.by_words(f'"{word}"', limit=10)).values()]


def test_what_was_written_is_read(path: str) -> None:
    reader = IndexReader(path)
    assert (reader.state.files, reader.state.passages, reader.state.model) == (2, 3, "m")
    assert words(reader, "beta") == ["beta two"]
    ids, matrix = reader.vectors()
    assert matrix.shape == (3, 4) and sorted(ids) == list(ids)
    assert {each.text for each in reader.load(list(map(int, ids))).values()} == {
        "alpha one",
        "beta two",
        "gamma three",
    }
    reader.close()


def test_words_are_looked_for_in_as_many_files_as_there_are(path: str) -> None:
    reader = IndexReader(path)
    (only,) = reader.files_where(lambda name: name == "b.md")
    assert reader.by_words('"beta" OR "gamma"', limit=10, files=[only]).keys() == {only << index.FILE_BITS}
    assert len(reader.by_words('"beta" OR "gamma"', limit=10, files=range(300_000))) == 2
    assert reader.by_words('"beta"', limit=10, files=[]) == {}
    reader.close()


def test_a_file_that_is_put_again_or_removed_leaves_no_words_behind(path: str) -> None:
    with writing(path) as writer:
        put(writer, "a.md", "delta four")
        writer.remove("b.md")
        writer.remove("never.md")
        finish(writer)
    reader = IndexReader(path)
    assert [reader.frequencies([word])[word] for word in ("alpha", "beta", "gamma", "delta")] == [0, 0, 0, 1]
    assert words(reader, "delta") == ["delta four"] and reader.vectors().matrix.shape == (1, 4)
    reader.close()


def test_a_sync_that_fails_writes_nothing(path: str) -> None:
    with pytest.raises(RuntimeError), writing(path) as writer:
        writer.clear()
        put(writer, "c.md", "delta four")
        finish(writer)
        raise RuntimeError
    reader = IndexReader(path)
    assert reader.state.files == 2 and words(reader, "delta") == []
    reader.close()


def test_a_first_sync_that_fails_leaves_what_says_that_nothing_is_indexed(tmp_path: Path) -> None:
    path = str(tmp_path / "knowledge.db")
    with pytest.raises(NotFound, match="nothing has been indexed yet"):
        IndexReader(path)
    with pytest.raises(RuntimeError), writing(path) as writer:
        put(writer, "a.md", "alpha one")
        raise RuntimeError
    with pytest.raises(NotFound, match="nothing has been indexed"):
        IndexReader(path)


def test_a_reader_sees_one_state_until_it_goes_on(path: str) -> None:
    reader = IndexReader(path)
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
    reader = IndexReader(path)
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


@pytest.mark.parametrize("suffix", ["", "-wal", "-shm", "-journal"])
def test_nothing_is_written_through_a_link(path: str, tmp_path: Path, suffix: str) -> None:
    """A repository may come with one."""
    Path(path).unlink()
    outside = tmp_path / "outside"
    Path(path + suffix).symlink_to(outside)
    for use in (IndexReader, lambda path: writing(path).__enter__()):
        with pytest.raises(UsageError, match="a link or a folder"):
            use(path)
    assert not outside.exists()


def test_one_at_a_time_writes_or_removes(tmp_path: Path) -> None:
    code = (
        "import sys; from rolecall.knowledge import index\n"
        "with index.only_writer(sys.argv[1]): print('mine', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as first, subprocess.Popen(command, **pipes) as second:
        owner, other = (first, second) if _says_first(first, second) else (second, first)
        with pytest.raises(Conflict, match="another sync"), only_writer(str(tmp_path), wait=0.0):
            pass
        owner.communicate(timeout=60)
        assert other.communicate(timeout=60)[0] == "mine\n"
    with only_writer(str(tmp_path), wait=0.0):
        pass


def _says_first(first: subprocess.Popen[str], second: subprocess.Popen[str]) -> bool:
    assert first.stdout and second.stdout
    ready, _, _ = select.select([first.stdout, second.stdout], [], [], 60)
    assert len(ready) == 1, "one has it, and the other waits"
    return ready[0] is first.stdout
