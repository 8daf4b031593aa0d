"""`knowledge.db`: the passages of a repository, their words and their vectors, in one SQLite file.

It is a cache that can always be rebuilt from the files. A sync is one transaction, so a reader sees the state before it
or the state after it, even if a process is killed. All vectors come from one model, which the file names; they are
stored together for each source file, so that reading all of them takes a few large reads. Everything has a checksum,
because a damaged vector looks like any other. A link in place of the file is refused, because it may come with the
repository and point outside it.
"""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
import stat
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import quote

from xxhash import xxh3_64, xxh3_64_intdigest, xxh3_128_digest

from rolecall.errors import Conflict, Damaged, Hint, NotFound, StorageError, UsageError
from rolecall.knowledge.words import terms
from rolecall.store.sqlite import use_wal

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from rolecall.knowledge.chunk import Passage

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")

FORMAT = 1
_OURS = 0x524C4B4E  # "RLKN" in SQLite's header
FILE_BITS = 20
"""A passage's id is the id of its file, shifted by this many bits, plus its number in the file."""
_WAIT = 120
"""Seconds that a sync waits for another sync."""
_BESIDE = ("", "-wal", "-shm", "-journal")
"""Suffixes of the file itself and of the files that SQLite keeps beside it."""
REBUILD = Hint("Rebuild it", "rebuild_index")
_SEPARATOR = "\x1f"

_SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE file (
    id INTEGER PRIMARY KEY, path TEXT NOT NULL UNIQUE, digest BLOB NOT NULL, count INTEGER NOT NULL,
    vectors BLOB NOT NULL, checksum INTEGER NOT NULL);
CREATE TABLE passage (
    id INTEGER PRIMARY KEY, start INTEGER NOT NULL, "end" INTEGER NOT NULL, trail TEXT NOT NULL,
    named INTEGER NOT NULL, text TEXT NOT NULL, checksum INTEGER NOT NULL);
CREATE VIRTUAL TABLE words USING fts5 (
    name, around, text, content='', tokenize="unicode61 remove_diacritics 0 tokenchars '_'");
CREATE VIRTUAL TABLE vocabulary USING fts5vocab (words, row);
"""
_STATEMENTS = _SCHEMA.strip().removesuffix(";").split(";\n")
WORD_WEIGHTS = (10.0, 2.0, 1.0)
"""The weight of a word in a passage's own name, in its surroundings (the path, outer names), and in its text."""


class State(NamedTuple):
    """The state of an index, including what it was built from."""

    generation: int
    """Incremented by every sync that changed something."""
    model: str
    dimensions: int
    recipe: str
    """How texts were cut and words were formed; a different recipe needs a new index."""
    files: int
    passages: int
    synced: str
    words: int
    """The checksum of the words, which are in SQLite's own tables."""


class Stored(NamedTuple):
    """A passage as it was when it was indexed."""

    id: int
    path: str
    start: int
    end: int
    trail: tuple[str, ...]
    text: str


class Vectors(NamedTuple):
    ids: NDArray[np.int64]
    matrix: NDArray[np.float32]


def digest(data: bytes) -> bytes:
    """Compute a digest of a file's contents, to detect changes."""
    return bytes(xxh3_128_digest(data))


# -- opening --


class Reader:
    """A consistent view of an index, which stays the same until `refresh`."""

    def __init__(self, path: str) -> None:
        self.path = path
        _check_place(path)
        if not os.path.exists(path):
            raise NotFound(
                f"{path} is not there: nothing has been indexed yet", hint=Hint("Index it", "sync_knowledge")
            )
        with _translated(path):
            self._identity = _identity(path)
            # A folder without write permission cannot have a log and needs none.
            has_log = os.access(os.path.dirname(path), os.W_OK) or os.path.exists(f"{path}-wal")
            address = f"file:{quote(os.path.abspath(path))}?mode=ro{'' if has_log else '&immutable=1'}"
            self._db = sqlite3.connect(address, uri=True, isolation_level=None, check_same_thread=False)
            try:
                _check_format(self._db, path)
                self._db.execute("BEGIN")
                self.state = _state(self._db, path)
                _check_words(self._db, path, self.state)
            except BaseException:
                self._db.close()  # otherwise it stays open as long as the error exists
                raise
        self._vectors: Vectors | None = None

    def close(self) -> None:
        self._db.close()

    def is_current_file(self) -> bool:
        """Whether the file at our path is still the one that was opened."""
        try:
            return _identity(self.path) == self._identity
        except FileNotFoundError:
            return False

    def rest(self) -> None:
        """Release the current state until `refresh`, so that a waiting process does not hold on to the log."""
        if self._db.in_transaction:
            with _translated(self.path):
                self._db.execute("COMMIT")

    def refresh(self) -> None:
        """Move to the newest state."""
        self.rest()
        with _translated(self.path):
            self._db.execute("BEGIN")
            state = _state(self._db, self.path)
            if state.generation != self.state.generation:
                _check_words(self._db, self.path, state)
                self._vectors = None
        self.state = state

    def digests(self) -> dict[str, bytes]:
        with _translated(self.path):
            return _digests(self._db)

    def digests_of(self, paths: Collection[str]) -> dict[str, bytes]:
        with _translated(self.path):
            found = (
                (path, self._db.execute("SELECT digest FROM file WHERE path = ?", (path,))) for path in paths
            )
            digests = {path: row[0] for path, rows in found if (row := rows.fetchone())}
        return self._complete(digests, set(paths))

    def counts(self) -> dict[str, int]:
        """Return the number of passages in each file."""
        with _translated(self.path):
            return dict(self._db.execute("SELECT path, count FROM file ORDER BY path"))

    def frequencies(self, words: Iterable[str]) -> dict[str, int]:
        """Return the number of passages in which each word occurs."""
        with _translated(self.path):
            found = ((word, self._db.execute(_FREQUENCY, (word,)).fetchone()) for word in words)
            return {word: row[0] if row else 0 for word, row in found}

    def by_words(
        self, expression: str, *, limit: int, files: Collection[int] | None = None
    ) -> dict[int, float]:
        """Return the passages that best match a full-text expression, with scores; only those of `files` if given."""
        where, among = "", tuple[str, ...]()
        if files is not None:  # as one value, because a statement has a limited number of parameters
            where = f" AND rowid >> {FILE_BITS} IN (SELECT value FROM json_each(?))"
            among = (json.dumps(list(files)),)
        with _translated(self.path):
            rows = self._db.execute(_BY_WORDS.format(where), (*WORD_WEIGHTS, expression, *among, limit))
            return {row: -score for row, score in rows}

    def vectors(self) -> Vectors:
        """Return all vectors, which are kept in memory after the first call."""
        if self._vectors is not None:
            return self._vectors
        import numpy as np

        dimensions, at = self.state.dimensions, 0
        ids = np.empty(self.state.passages, np.int64)
        matrix = np.empty((self.state.passages, dimensions), np.float32)
        with _translated(self.path):
            for file, count, blob, checksum in self._db.execute(
                "SELECT id, count, vectors, checksum FROM file ORDER BY id"
            ):
                is_whole = _checksum(blob) == checksum and isinstance(count, int)
                if not is_whole or len(blob) != count * dimensions * 2 or at + count > len(ids):
                    raise _damaged(self.path, "the vectors of a file are not what was written")
                ids[at : at + count] = np.arange(count) + (file << FILE_BITS)
                matrix[at : at + count] = np.frombuffer(blob, np.float16).reshape(count, dimensions)
                at += count
        if at != len(ids):
            raise _damaged(self.path, "vectors are missing")
        self._vectors = Vectors(ids, matrix)
        return self._vectors

    def files_where(self, fits: Callable[[str], bool]) -> dict[int, str]:
        with _translated(self.path):
            return {file: path for file, path in self._db.execute("SELECT id, path FROM file") if fits(path)}

    def at_lines(self, places: Mapping[int, Collection[int]]) -> set[int]:
        """Return the passages that contain one of the given lines of their files."""
        with _translated(self.path):
            return {
                row
                for file, lines in places.items()
                for line in lines
                for (row,) in self._db.execute(
                    _AT_LINE, (file << FILE_BITS, (file + 1) << FILE_BITS, line, line)
                )
            }

    def stored(self, ids: Collection[int]) -> dict[int, Stored]:
        """Return passages by id."""
        with _translated(self.path):
            rows = self._db.execute(f"{_STORED} WHERE passage.id IN ({_join(ids)})")
            found = {row[0]: _passage(row, self.path) for row in rows}
        return self._complete(found, set(ids))

    def outlines(self, ids: Collection[int]) -> dict[int, tuple[tuple[str, ...], int]]:
        """Return the trails of passages and their numbers of lines, without reading their texts."""
        query = f'SELECT id, trail, named, "end" - start + 1 FROM passage WHERE id IN ({_join(ids)})'
        with _translated(self.path):
            rows = self._db.execute(query)
            found = {
                row: (_names(trail), lines)
                for row, trail, named, lines in rows
                if _text_checksum(trail) == named
            }
        return self._complete(found, set(ids))

    def _complete(self, found: dict[_Key, _Value], wanted: set[_Key]) -> dict[_Key, _Value]:
        """Return `found`, or raise `Damaged` if one table lacks entries that another refers to."""
        if found.keys() != wanted:
            raise _damaged(self.path, "its tables do not fit together")
        return found

    def of_file(self, path: str) -> list[Stored]:
        with _translated(self.path):
            rows = self._db.execute(f"{_STORED} WHERE file.path = ? ORDER BY passage.id", (path,))
            return [_passage(row, self.path) for row in rows]


def _passage(row: tuple[Any, ...], index: str) -> Stored:
    number, path, start, end, trail, text, checksum = row
    if _text_checksum(path, start, end, trail, text) != checksum:
        raise _damaged(index, f"a passage of {path} is not what was written")
    return Stored(number, path, start, end, _names(trail), text)


def _digests(db: sqlite3.Connection) -> dict[str, bytes]:
    return {str(path): digest for path, digest in db.execute("SELECT path, digest FROM file")}


def _join(ids: Collection[int]) -> str:
    return ",".join(str(int(each)) for each in ids)


def _identity(path: str) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_dev, status.st_ino


_FREQUENCY = "SELECT doc FROM vocabulary WHERE term = ?"
_BY_WORDS = (
    "SELECT rowid, bm25(words, ?, ?, ?) AS score FROM words WHERE words MATCH ?{} ORDER BY score LIMIT ?"
)
_AT_LINE = 'SELECT id FROM passage WHERE id >= ? AND id < ? AND start <= ? AND "end" >= ?'
_FROM = f" FROM passage JOIN file ON file.id = passage.id >> {FILE_BITS}"
_STORED = f'SELECT passage.id, file.path, start, "end", trail, text, passage.checksum{_FROM}'


def _check_format(db: sqlite3.Connection, path: str) -> None:
    (kind,) = db.execute("PRAGMA application_id").fetchone()
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if version > FORMAT and kind == _OURS:
        raise StorageError(
            f"{path} was written by a newer version (format {version}, this one knows up to {FORMAT})",
            hint=Hint("Upgrade Rolecall, or index the repository again with this version", "index_again"),
        )
    is_made = _has_tables(db)
    if kind != _OURS and is_made:
        raise StorageError(f"{path} is another program's database", hint="Move it away, then try again.")
    if not is_made:  # the first sync has not finished
        raise NotFound(f"nothing has been indexed in {path} yet", hint=Hint("Index it", "sync_knowledge"))
    if version != FORMAT:
        raise Outdated(f"{path} has no index of this format", hint=REBUILD)


class Outdated(Damaged):
    """Raised for an index that an older version wrote, or that was never finished: it must be rebuilt."""


def _damaged(path: str, what: str) -> Damaged:
    return Damaged(f"{path} is damaged: {what}", hint=REBUILD)


def _state(db: sqlite3.Connection, path: str) -> State:
    found = dict(db.execute("SELECT key, value FROM meta"))
    try:
        state = State(**{field: found[field] for field in State._fields})
        checksum = found["checksum"]
    except KeyError as error:
        raise Outdated(f"{path} was never written to its end", hint=REBUILD) from error
    if checksum != _text_checksum(*state):
        raise _damaged(path, "what it says about itself is not what was written")
    return state


@contextmanager
def _translated(path: str) -> Iterator[None]:
    """Convert SQLite's errors to ours."""
    try:
        yield
    except sqlite3.OperationalError as error:
        if "locked" in str(error) or "busy" in str(error):
            raise _busy(path) from error
        if any(
            word in str(error)
            for word in ("no such table", "no such column", "malformed", "fts5", "vtable", "decode")
        ):
            raise _damaged(path, str(error)) from error
        raise StorageError(f"{path}: {error}", hint="Is there space, and may the file be written?") from error
    except (sqlite3.ProgrammingError, sqlite3.InterfaceError, sqlite3.DataError):
        raise  # a bug, not damage to the file
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # the latter from SQLite's own message
        raise _damaged(path, str(error)) from error


def _check_place(path: str) -> None:
    """Refuse a link or a folder in place of our files; writing through a link would leave the repository."""
    for each in (path + suffix for suffix in _BESIDE):
        with suppress(FileNotFoundError):
            if not stat.S_ISREG(os.lstat(each).st_mode):
                raise UsageError(
                    f"{each} is not our file, but a link or a folder", hint="Move it away, then try again."
                )


def remove(path: str) -> None:
    """Delete an index and the files that SQLite keeps beside it."""
    for each in (path + suffix for suffix in _BESIDE):
        if os.path.isdir(each) and not os.path.islink(each):
            raise UsageError(f"{each} is a folder, not an index", hint="Move it away, then try again.")
        with suppress(FileNotFoundError):
            os.unlink(each)


# -- writing --


@contextmanager
def only_writer(folder: str, *, wait: float = _WAIT) -> Iterator[None]:
    """Lock the index of this folder for writing or removing; raise `Conflict` if another process keeps it too long.

    SQLite's own lock does not protect a file that is removed and created again.
    """
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    until = time.monotonic() + wait
    try:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise _busy(f"the index of {folder}") from None
                time.sleep(0.05)
            except OSError:  # a file system that cannot lock a folder: rely on SQLite's own lock
                break
        yield
    finally:
        os.close(file)


def _busy(path: str) -> Conflict:
    return Conflict(f"another sync is writing {path}", hint="Wait until it has ended, then try again.")


class Writer:
    """The single transaction of a sync. Readers see none of it until `writing` ends without an error."""

    def __init__(self, db: sqlite3.Connection, path: str) -> None:
        self._db = db
        self.path = path
        self.is_changed = False

    def state(self) -> State | None:
        """Return the current state, or None if nothing has been written yet."""
        try:
            return _state(self._db, self.path)
        except Outdated:
            return None

    def digests(self) -> dict[str, bytes]:
        return _digests(self._db)

    def clear(self) -> None:
        for table in ("file", "passage"):
            self._db.execute(f"DELETE FROM {table}")
        self._db.execute("INSERT INTO words(words) VALUES ('delete-all')")
        self.is_changed = True

    def put(
        self, path: str, contents: bytes, passages: Sequence[Passage], vectors: NDArray[np.floating[Any]]
    ) -> None:
        """Replace a file's passages and their vectors."""
        import numpy as np

        self.remove(path)
        blob = np.ascontiguousarray(vectors, np.float16).tobytes()
        row = (path, contents, len(passages), blob, _checksum(blob))
        file = self._db.execute(
            "INSERT INTO file (path, digest, count, vectors, checksum) VALUES (?, ?, ?, ?, ?)", row
        ).lastrowid
        for number, each in enumerate(passages, int(file or 0) << FILE_BITS):
            trail = _SEPARATOR.join(each.trail)
            whole = _text_checksum(path, each.start, each.end, trail, each.text)
            kept = (number, each.start, each.end, trail, _text_checksum(trail), each.text, whole)
            self._db.execute("INSERT INTO passage VALUES (?, ?, ?, ?, ?, ?, ?)", kept)
            words = _words(path, each.trail, each.text)
            self._db.execute(
                "INSERT INTO words (rowid, name, around, text) VALUES (?, ?, ?, ?)", (number, *words)
            )
        self.is_changed = True

    def remove(self, path: str) -> None:
        found = self._db.execute("SELECT id, count FROM file WHERE path = ?", (path,)).fetchone()
        if found is None:
            return
        first = found[0] << FILE_BITS
        among = "passage.id >= ? AND passage.id < ?", (first, first + found[1])
        rows = [_passage(row, self.path) for row in self._db.execute(f"{_STORED} WHERE {among[0]}", among[1])]
        # The index does not store the words' text, so removing them needs the original words.
        self._db.executemany(
            "INSERT INTO words (words, rowid, name, around, text) VALUES ('delete', ?, ?, ?, ?)",
            [(each.id, *_words(path, each.trail, each.text)) for each in rows],
        )
        self._db.execute(f"DELETE FROM passage WHERE {among[0]}", among[1])
        self._db.execute("DELETE FROM file WHERE id = ?", found[:1])
        self.is_changed = True

    def finish(self, *, model: str, dimensions: int, recipe: str, synced: str) -> State:
        """Record what the index is now built from."""
        before = self.state()
        files, passages = self._db.execute("SELECT count(*), coalesce(sum(count), 0) FROM file").fetchone()
        generation = (before.generation if before else 0) + self.is_changed
        words = before.words if before and not self.is_changed else _words_checksum(self._db)
        state = State(generation, model, dimensions, recipe, files, passages, synced, words)
        kept = {**state._asdict(), "checksum": _text_checksum(*state)}
        self._db.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", kept.items())
        return state


@contextmanager
def writing(path: str) -> Iterator[Writer]:
    """Open a sync's transaction: committed when the block ends, rolled back if it raises.

    Raises `Damaged` (or `Outdated`) if the file must be removed and rebuilt, `Conflict` while another sync writes.
    """
    _check_place(path)
    with _translated(path):
        db = sqlite3.connect(path, isolation_level=None, timeout=_WAIT)
        try:
            if _has_tables(db):
                _check_format(db, path)  # before changing another program's file
            use_wal(db, patience=_WAIT)
            db.execute("PRAGMA synchronous=NORMAL")  # a lost sync is repeated; a torn one is impossible
            db.execute("PRAGMA secure_delete=ON")  # text deleted from the files must not remain in the index
            db.execute("BEGIN IMMEDIATE")
            if not _has_tables(db):  # in the same transaction, so that a failed sync leaves none
                db.execute(f"PRAGMA application_id={_OURS}")
                db.execute(f"PRAGMA user_version={FORMAT}")
                for statement in _STATEMENTS:
                    db.execute(statement)
            _check_format(db, path)
            writer = Writer(db, path)
            if known := writer.state():
                _check_words(db, path, known)  # otherwise damaged words would get a new checksum
            yield writer
            db.execute("COMMIT")
            # Any part of the log that a reader still needs is left to the next sync.
            db.execute("PRAGMA busy_timeout=0")
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        finally:
            db.close()  # rolls back anything that was not committed


def _has_tables(db: sqlite3.Connection) -> bool:
    return bool(db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0])


def _words(path: str, trail: Sequence[str], text: str) -> tuple[str, str, str]:
    name, around = "".join(trail[-1:]), " ".join((path, *trail[:-1]))
    return " ".join(terms(name)), " ".join(terms(around)), " ".join(terms(text))


def _names(trail: str) -> tuple[str, ...]:
    return tuple(trail.split(_SEPARATOR)) if trail else ()


def _text_checksum(*parts: object) -> int:
    """Compute the checksum of texts and numbers. A damaged file may contain other types, whose checksum does not
    match."""
    return _checksum(_SEPARATOR.join(map(str, parts)).encode("utf-8", "surrogatepass"))


def _words_checksum(db: sqlite3.Connection) -> int:
    """Compute the checksum of all full-text tables, because a damaged word is found in the wrong passages or not at
    all."""
    db.execute("SAVEPOINT words_checksum")  # makes SQLite write its pending changes
    db.execute("RELEASE words_checksum")
    total = xxh3_64()
    for (block,) in db.execute("SELECT block FROM words_data ORDER BY id"):
        total.update(block if isinstance(block, bytes) else repr(block).encode())
    for listed in ("id || hex(sz)) FROM words_docsize", "segid || hex(term) || pgno) FROM words_idx"):
        total.update(str(db.execute(f"SELECT group_concat({listed}").fetchone()[0]).encode())
    return int(total.intdigest()) - (1 << 63)


def _check_words(db: sqlite3.Connection, path: str, state: State) -> None:
    if _words_checksum(db) != state.words:
        raise _damaged(path, "its words are not what was written")


def _checksum(data: object) -> int:
    known = data if isinstance(data, bytes) else repr(data).encode()
    return int(xxh3_64_intdigest(known)) - (1 << 63)  # SQLite's integers are signed
