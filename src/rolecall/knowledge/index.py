"""`knowledge.db`: the passages of a repository, their words and their vectors, in one SQLite file.

The file is a cache that can always be rebuilt from the repository's files. A sync is one transaction, so a reader sees
the state either before or after a sync, even if a process is killed. All vectors come from one model, which the file
names. The vectors of each source file are stored together, so that reading all vectors takes a few large reads. A link
in place of the file is refused, because the link could come with the repository and point outside it.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from rolecall.errors import Conflict, Damaged, Hint, NotFound, StorageError, UsageError
from rolecall.knowledge.lazy import np, sqlite, sqlite3
from rolecall.knowledge.words import terms

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rolecall.knowledge.chunk import Passage

FORMAT = 2
_OURS = 0x524C4B4E  # "RLKN" in SQLite's header
FILE_BITS = 20
"""The number of low bits in a passage's id that hold the passage's number in its file. The bits above hold the file's
id."""
_WAIT = 120
"""The number of seconds that a sync waits for another sync."""
_BESIDE = ("", "-wal", "-shm", "-journal")
"""The suffixes of the index file itself (none) and of the files that SQLite keeps next to it."""
REBUILD = Hint("Rebuild it", "rebuild_index")
_SEPARATOR = "\x1f"

_SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE file (
    id INTEGER PRIMARY KEY, path TEXT NOT NULL UNIQUE, digest BLOB NOT NULL, count INTEGER NOT NULL,
    vectors BLOB NOT NULL);
CREATE TABLE passage (
    id INTEGER PRIMARY KEY, start INTEGER NOT NULL, "end" INTEGER NOT NULL, trail TEXT NOT NULL, text TEXT NOT NULL);
CREATE VIRTUAL TABLE words USING fts5 (
    name, around, text, content='', tokenize="unicode61 remove_diacritics 0 tokenchars '_'");
CREATE VIRTUAL TABLE vocabulary USING fts5vocab (words, row);
"""
WORD_WEIGHTS = (10.0, 2.0, 1.0)
"""The weights of a word in a passage's own name, in its surroundings (the path and outer names), and in its text."""

_BY_WORDS = (
    "SELECT rowid, bm25(words, ?, ?, ?) AS score FROM words WHERE words MATCH ?{} ORDER BY score LIMIT ?"
)
_AT_LINE = 'SELECT id FROM passage WHERE id >= ? AND id < ? AND start <= ? AND "end" >= ?'
_STORED = (
    'SELECT passage.id, file.path, start, "end", trail, text'
    f" FROM passage JOIN file ON file.id = passage.id >> {FILE_BITS}"
)


class IndexState(NamedTuple):
    """The state of an index, including what it was built from."""

    generation: int
    """The number of syncs that changed something."""
    model: str
    dimensions: int
    recipe: str
    """How texts were cut and words were formed; a different recipe requires a new index."""
    files: int
    passages: int
    synced: str


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


class Outdated(Damaged):
    """An error for an index that must be rebuilt, because an older version wrote it or it was never finished."""


# -- opening --


class IndexReader:
    """A consistent view of an index, which stays the same until `refresh` is called."""

    def __init__(self, path: str) -> None:
        self.path = path
        _check_place(path)
        if not os.path.exists(path):
            raise NotFound(
                f"{path} does not exist: nothing has been indexed yet",
                hint=Hint("Index it", "sync_knowledge"),
            )
        with _translate_errors(path):
            self._identity = _identify(path)
            # SQLite cannot create a log in a folder without write permission, and needs none there.
            has_log = os.access(os.path.dirname(path), os.W_OK) or os.path.exists(f"{path}-wal")
            address = f"file:{quote(os.path.abspath(path))}?mode=ro{'' if has_log else '&immutable=1'}"
            self._db = sqlite3.connect(address, uri=True, isolation_level=None, check_same_thread=False)
            try:
                _check_format(self._db, path)
                self._db.execute("BEGIN")
                self.state = _read_state(self._db, path)
            except BaseException:
                self._db.close()  # otherwise the database stays open as long as the error exists
                raise
        self._vectors: Vectors | None = None

    def close(self) -> None:
        self._db.close()

    def is_current_file(self) -> bool:
        """Return whether the file at our path is still the file that was opened."""
        try:
            return _identify(self.path) == self._identity
        except FileNotFoundError:
            return False

    def rest(self) -> None:
        """Release the current state until `refresh` is called, so that the log can shrink while this process waits."""
        if self._db.in_transaction:
            self._query("COMMIT")

    def refresh(self) -> None:
        """Switch to the newest state of the index."""
        self.rest()
        self._query("BEGIN")
        with _translate_errors(self.path):
            state = _read_state(self._db, self.path)
        if state.generation != self.state.generation:
            self._vectors = None
        self.state = state

    def _query(self, statement: str, *values: object) -> list[Any]:
        with _translate_errors(self.path):
            return self._db.execute(statement, values).fetchall()

    def digests(self) -> dict[str, bytes]:
        return dict(self._query("SELECT path, digest FROM file"))

    def digest_of(self, path: str) -> bytes:
        found: bytes = self._query("SELECT digest FROM file WHERE path = ?", path)[0][0]
        return found

    def counts(self) -> dict[str, int]:
        """Return the number of passages in each file."""
        return dict(self._query("SELECT path, count FROM file ORDER BY path"))

    def frequencies(self, words: Iterable[str]) -> dict[str, int]:
        """Return the number of passages in which each word occurs."""
        found = {word: self._query("SELECT doc FROM vocabulary WHERE term = ?", word) for word in words}
        return {word: rows[0][0] if rows else 0 for word, rows in found.items()}

    def by_words(
        self, expression: str, *, limit: int, files: Collection[int] | None = None
    ) -> dict[int, float]:
        """Return the passages that best match a full-text expression, with their scores. With `files`, consider only
        those files."""
        where, among = "", tuple[str, ...]()
        if files is not None:  # one JSON value, because a statement has a limited number of parameters
            where = f" AND rowid >> {FILE_BITS} IN (SELECT value FROM json_each(?))"
            among = (json.dumps(list(files)),)
        rows = self._query(_BY_WORDS.format(where), *WORD_WEIGHTS, expression, *among, limit)
        return {row: -score for row, score in rows}

    def vectors(self) -> Vectors:
        """Return all vectors. They are kept in memory after the first call."""
        if self._vectors is None:
            at, dimensions = 0, self.state.dimensions
            ids = np.empty(self.state.passages, np.int64)
            matrix = np.empty((self.state.passages, dimensions), np.float32)
            with _translate_errors(self.path):
                for file, count, blob in self._db.execute("SELECT id, count, vectors FROM file ORDER BY id"):
                    ids[at : at + count] = np.arange(count) + (file << FILE_BITS)
                    matrix[at : at + count] = np.frombuffer(blob, np.float16).reshape(count, dimensions)
                    at += count
            self._vectors = Vectors(ids, matrix)
        return self._vectors

    def files_where(self, fits: Callable[[str], bool]) -> dict[int, str]:
        return {file: path for file, path in self._query("SELECT id, path FROM file") if fits(path)}

    def at_lines(self, places: Mapping[int, Collection[int]]) -> set[int]:
        """Return the passages that contain one of the given lines of their files."""
        found: set[int] = set()
        for file, lines in places.items():
            for line in lines:
                rows = self._query(_AT_LINE, file << FILE_BITS, (file + 1) << FILE_BITS, line, line)
                found.update(row for (row,) in rows)
        return found

    def load(self, ids: Collection[int]) -> dict[int, Stored]:
        """Return passages by id."""
        rows = self._query(f"{_STORED} WHERE passage.id IN ({','.join(map(str, ids))})")
        return {row[0]: _make_stored(*row) for row in rows}

    def outlines(self, ids: Collection[int]) -> dict[int, tuple[tuple[str, ...], int]]:
        """Return the trail and the number of lines of each passage, without reading its text."""
        listed = ",".join(map(str, ids))
        rows = self._query(f'SELECT id, trail, "end" - start + 1 FROM passage WHERE id IN ({listed})')
        return {row: (_split_trail(trail), lines) for row, trail, lines in rows}

    def of_file(self, path: str) -> list[Stored]:
        rows = self._query(f"{_STORED} WHERE file.path = ? ORDER BY passage.id", path)
        return [_make_stored(*row) for row in rows]


def _make_stored(number: int, path: str, start: int, end: int, trail: str, text: str) -> Stored:
    return Stored(number, path, start, end, _split_trail(trail), text)


def _split_trail(trail: str) -> tuple[str, ...]:
    return tuple(trail.split(_SEPARATOR)) if trail else ()


def _identify(path: str) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_dev, status.st_ino


def _check_format(db: sqlite3.Connection, path: str) -> None:
    (kind,) = db.execute("PRAGMA application_id").fetchone()
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if version > FORMAT and kind == _OURS:
        raise StorageError(
            f"{path} was written by a newer version (format {version}, this one knows up to {FORMAT})",
            hint=Hint("Upgrade Rolecall, or index the repository again with this version", "index_again"),
        )
    has_tables = _has_tables(db)
    if kind != _OURS and has_tables:
        raise StorageError(f"{path} is another program's database", hint="Move it away, then try again.")
    if not has_tables:  # the first sync has not finished
        raise NotFound(f"nothing has been indexed in {path} yet", hint=Hint("Index it", "sync_knowledge"))
    if version != FORMAT:
        raise Outdated(f"{path} has no index of this format", hint=REBUILD)


def _has_tables(db: sqlite3.Connection) -> bool:
    return bool(db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0])


def _read_state(db: sqlite3.Connection, path: str) -> IndexState:
    found = dict(db.execute("SELECT key, value FROM meta"))
    if not found:
        raise Outdated(f"{path} was not written completely", hint=REBUILD)
    return IndexState(**found)


@contextmanager
def _translate_errors(path: str) -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as error:
        if "locked" in str(error) or "busy" in str(error):
            raise _busy(path) from error
        damage = ("no such table", "no such column", "malformed", "fts5", "vtable", "decode")
        if any(word in str(error) for word in damage):
            raise Damaged(f"{path} is damaged: {error}", hint=REBUILD) from error
        raise StorageError(
            f"{path}: {error}", hint="Check that there is enough disk space and that the file can be written."
        ) from error
    except (sqlite3.ProgrammingError, sqlite3.InterfaceError, sqlite3.DataError):
        raise  # this is a bug, not damage to the file
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # or SQLite's own message cannot be decoded
        raise Damaged(f"{path} is damaged: {error}", hint=REBUILD) from error


def _busy(path: str) -> Conflict:
    return Conflict(f"another sync is writing {path}", hint="Wait until it has ended, then try again.")


def _check_place(path: str) -> None:
    """Raise an error if a link or a folder is in place of our files. Writing through a link would leave the
    repository."""
    for each in (path + suffix for suffix in _BESIDE):
        with suppress(FileNotFoundError):
            if not stat.S_ISREG(os.lstat(each).st_mode):
                raise UsageError(
                    f"{each} is not a file that Rolecall wrote, but a link or a folder",
                    hint="Move it away, then try again.",
                )


def remove(path: str) -> None:
    """Delete an index and the files that SQLite keeps next to it."""
    for each in (path + suffix for suffix in _BESIDE):
        if os.path.isdir(each) and not os.path.islink(each):
            raise UsageError(f"{each} is a folder, not an index", hint="Move it away, then try again.")
        with suppress(FileNotFoundError):
            os.unlink(each)


# -- writing --


@contextmanager
def only_writer(folder: str, *, wait: float = _WAIT) -> Iterator[None]:
    """Lock the index in this folder for writing or removing. Raise `Conflict` if another process keeps the lock too
    long.

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


class Writer:
    """The single transaction of a sync. Readers see none of its changes until `writing` ends without an error."""

    def __init__(self, db: sqlite3.Connection, path: str) -> None:
        self._db = db
        self.path = path
        self.is_changed = False

    def state(self) -> IndexState | None:
        """Return the current state, or None if nothing has been written yet."""
        try:
            return _read_state(self._db, self.path)
        except Outdated:
            return None

    def digests(self) -> dict[str, bytes]:
        return dict(self._db.execute("SELECT path, digest FROM file"))

    def clear(self) -> None:
        for table in ("file", "passage"):
            self._db.execute(f"DELETE FROM {table}")
        self._db.execute("INSERT INTO words(words) VALUES ('delete-all')")
        self.is_changed = True

    def put(
        self, path: str, contents: bytes, passages: Sequence[Passage], vectors: NDArray[np.floating[Any]]
    ) -> None:
        """Replace a file's passages and their vectors."""
        self.remove(path)
        blob = np.ascontiguousarray(vectors, np.float16).tobytes()
        file = self._db.execute(
            "INSERT INTO file (path, digest, count, vectors) VALUES (?, ?, ?, ?)",
            (path, contents, len(passages), blob),
        ).lastrowid
        for number, (start, end, trail, text) in enumerate(passages, int(file or 0) << FILE_BITS):
            row = (number, start, end, _SEPARATOR.join(trail), text)
            self._db.execute("INSERT INTO passage VALUES (?, ?, ?, ?, ?)", row)
            self._db.execute(
                "INSERT INTO words (rowid, name, around, text) VALUES (?, ?, ?, ?)",
                (number, *_words_of(path, trail, text)),
            )
        self.is_changed = True

    def remove(self, path: str) -> None:
        found = self._db.execute("SELECT id, count FROM file WHERE path = ?", (path,)).fetchone()
        if found is None:
            return
        file, count = found
        among = "passage.id >= ? AND passage.id < ?", (file << FILE_BITS, (file << FILE_BITS) + count)
        rows = self._db.execute(f"SELECT id, trail, text FROM passage WHERE {among[0]}", among[1]).fetchall()
        # The full-text table does not store its text, so removing words from the table requires the original words.
        self._db.executemany(
            "INSERT INTO words (words, rowid, name, around, text) VALUES ('delete', ?, ?, ?, ?)",
            [(number, *_words_of(path, _split_trail(trail), text)) for number, trail, text in rows],
        )
        self._db.execute(f"DELETE FROM passage WHERE {among[0]}", among[1])
        self._db.execute("DELETE FROM file WHERE id = ?", (file,))
        self.is_changed = True

    def finish(self, *, model: str, dimensions: int, recipe: str, synced: str) -> IndexState:
        """Record what the index is now built from, and return its new state."""
        before = self.state()
        files, passages = self._db.execute("SELECT count(*), coalesce(sum(count), 0) FROM file").fetchone()
        generation = (before.generation if before else 0) + self.is_changed
        state = IndexState(generation, model, dimensions, recipe, files, passages, synced)
        self._db.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", state._asdict().items())
        return state


@contextmanager
def writing(path: str) -> Iterator[Writer]:
    """Open the transaction of a sync, which is committed when the block ends and rolled back if the block raises.

    Raise `Damaged` (or `Outdated`) if the file must be removed and rebuilt, or `Conflict` while another sync is
    writing.
    """
    _check_place(path)
    with _translate_errors(path):
        db = sqlite3.connect(path, isolation_level=None, timeout=_WAIT)
        try:
            if _has_tables(db):
                _check_format(db, path)  # refuse another program's file before it is changed
            sqlite.use_wal(db, patience=_WAIT)
            db.execute("PRAGMA synchronous=NORMAL")  # a lost sync is repeated; a torn one is impossible
            db.execute("PRAGMA secure_delete=ON")  # text deleted from the files must not remain in the index
            db.execute("BEGIN IMMEDIATE")
            if not _has_tables(db):  # in the same transaction, so that a failed sync leaves no tables
                db.execute(f"PRAGMA application_id={_OURS}")
                db.execute(f"PRAGMA user_version={FORMAT}")
                for statement in _SCHEMA.strip().removesuffix(";").split(";\n"):
                    db.execute(statement)
            _check_format(db, path)
            yield Writer(db, path)
            db.execute("COMMIT")
            # The part of the log that a reader still needs is left to the next sync.
            db.execute("PRAGMA busy_timeout=0")
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        finally:
            db.close()  # rolls back anything that was not committed


def _words_of(path: str, trail: Sequence[str], text: str) -> tuple[str, str, str]:
    name, around = "".join(trail[-1:]), " ".join((path, *trail[:-1]))
    return " ".join(terms(name)), " ".join(terms(around)), " ".join(terms(text))
