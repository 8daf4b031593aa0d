"""A cache of computed vectors by model and text, shared by all repositories and branches of one home.

A remote model charges for every text, so switching branches must not compute vectors again. If the file is damaged or
unusable, vectors are computed again and the user is notified.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from rolecall.knowledge.index import remove
from rolecall.knowledge.lazy import np, sqlite, sqlite3
from rolecall.knowledge.model import Embedder

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from rolecall.knowledge.model import Matrix

FILE = "vectors.db"
_AT_ONCE = 500
_WAIT = 30
"""The number of seconds to wait for another process's lock."""
_MODEL = "(SELECT id FROM model WHERE name = ?)"
# Earlier versions kept vectors with checksums in the table `vector`.
_SCHEMA = """
DROP TABLE IF EXISTS vector;
CREATE TABLE IF NOT EXISTS model (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE IF NOT EXISTS embedding (
    model INTEGER NOT NULL, digest BLOB NOT NULL, vector BLOB NOT NULL, PRIMARY KEY (model, digest)) WITHOUT ROWID;
"""


class CachedModel:
    """An embedder that looks up known texts in the cache and passes only new texts on to another embedder."""

    def __init__(self, embedder: Embedder, folder: str, tell: Callable[[str], None]) -> None:
        self._embedder = embedder
        self._path = os.path.join(folder, FILE)
        self._tell = tell
        self._db: sqlite3.Connection | None = None
        self._is_usable = True
        self.found = 0
        """The number of texts whose vectors were in the cache."""
        self.computed = 0

    @property
    def name(self) -> str:
        return self._embedder.name

    def embed(self, texts: Sequence[str]) -> Matrix:
        if not texts:
            return self._embedder.embed(texts)
        keys = [blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest() for text in texts]
        rows: dict[bytes, NDArray[np.float32]] = {}
        for at in range(0, len(keys), _AT_ONCE):
            some = list(dict.fromkeys(keys[at : at + _AT_ONCE]))
            marks = ",".join("?" * len(some))
            query = f"SELECT digest, vector FROM embedding WHERE model = {_MODEL} AND digest IN ({marks})"  # noqa: S608
            for key, vector in self._run(query, [(self.name, *some)]):
                rows[key] = np.frombuffer(vector, np.float16).astype(np.float32)
        new = {key: text for key, text in zip(keys, texts, strict=True) if key not in rows}
        made: dict[bytes, NDArray[np.float32]] = {}
        if new:
            self.computed += len(new)
            # New vectors are rounded to the stored precision, so that they equal the vectors read from the cache.
            vectors = self._embedder.embed(list(new.values())).astype(np.float16).astype(np.float32)
            made = dict(zip(new, vectors, strict=True))
        sizes = {len(row) for row in (*rows.values(), *made.values())}
        if made:
            query = f"SELECT length(vector) FROM embedding WHERE model = {_MODEL} LIMIT 1"  # noqa: S608
            sizes.update(size // 2 for (size,) in self._run(query, [(self.name,)]))
        if len(sizes) > 1:
            self._tell(f"{self.name} now gives vectors of a different size: the cached vectors are dropped")
            self._run(f"DELETE FROM embedding WHERE model = {_MODEL}", [(self.name,)])  # noqa: S608
            self._keep(made)
            return self.embed(texts)
        self._keep(made)
        self.found += len(texts) - len(made)
        rows.update(made)
        return np.stack([rows[key] for key in keys])

    def close(self) -> None:
        if self._db is not None:
            self._db.close()
        self._db = None

    # -- the file --

    def _keep(self, rows: Mapping[bytes, NDArray[np.float32]]) -> None:
        kept = [(key, row.astype("float16").tobytes()) for key, row in rows.items()]
        if kept:
            self._run("INSERT OR IGNORE INTO model (name) VALUES (?)", [(self.name,)])
            self._run(
                f"INSERT OR REPLACE INTO embedding SELECT {_MODEL}, ?, ?",
                [(self.name, key, vector) for key, vector in kept],
            )

    def _run(self, statement: str, rows: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """Run a statement for each row in one transaction. If the file is unusable, report this once and return no
        rows."""
        if not self._is_usable:
            return []
        try:
            if self._db is None:
                os.makedirs(os.path.dirname(self._path), exist_ok=True)
                # Several syncs and a server can share the file. The server uses the connection from several threads,
                # one at a time.
                self._db = sqlite3.connect(
                    self._path, isolation_level=None, timeout=_WAIT, check_same_thread=False
                )
                self._db.text_factory = bytes  # no text column is read, and damaged data might not decode
                sqlite.use_wal(self._db, patience=_WAIT)
                self._db.execute("PRAGMA synchronous=NORMAL")
                self._db.executescript(_SCHEMA)
            with self._db:
                self._db.execute("BEGIN" if statement.startswith("SELECT") else "BEGIN IMMEDIATE")
                if len(rows) == 1:
                    return self._db.execute(statement, rows[0]).fetchall()
                self._db.executemany(statement, rows)
        except (sqlite3.OperationalError, OSError) as error:
            self._is_usable = False
            reason = error.strerror if isinstance(error, OSError) else error
            self._tell(f"the cache {self._path} cannot be used ({reason}): every text is computed")
        except sqlite3.DatabaseError as error:
            self.close()
            remove(self._path)
            self._tell(f"the cache {self._path} was damaged ({error}) and starts empty")
        return []


def size(folder: str) -> int:
    """Return the size of this home's vector cache in bytes."""
    try:
        return os.path.getsize(os.path.join(folder, FILE))
    except OSError:
        return 0
