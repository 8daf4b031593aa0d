"""Vectors that were computed before, by model and text: for every repository and every branch of one home.

A model that is asked over the network is paid by the text, and switching branches must not cost anything. Whatever
happens to the file, only the vectors in it are lost: it is begun anew, and that is said.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from xxhash import xxh3_64_digest

from rolecall.knowledge.index import remove
from rolecall.store.sqlite import use_wal

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from rolecall.knowledge.model import Embedder, Matrix

FILE = "vectors.db"
_AT_ONCE = 500
_WAIT = 30
"""Seconds that a lock of another process is waited for."""
_SEAL = 8
"""Bytes of a checksum."""
_SCHEMA = """
CREATE TABLE IF NOT EXISTS model (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE IF NOT EXISTS vector (
    model INTEGER NOT NULL, digest BLOB NOT NULL, vector BLOB NOT NULL, PRIMARY KEY (model, digest)) WITHOUT ROWID;
"""


class CachedModel:
    """An embedder that asks another one only for what it has not asked before."""

    def __init__(self, embedder: Embedder, folder: str, tell: Callable[[str], None]) -> None:
        self._embedder = embedder
        self._path = os.path.join(folder, FILE)
        self._tell = tell
        self._db: sqlite3.Connection | None = None
        self._is_usable = True
        self._has_found_damage = False
        self.found = 0
        """Texts whose vectors were there."""
        self.computed = 0

    @property
    def name(self) -> str:
        return self._embedder.name

    def embed(self, texts: Sequence[str]) -> Matrix:
        import numpy as np

        if not texts:
            return self._embedder.embed(texts)
        keys = [blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest() for text in texts]
        rows = self._known(keys)
        made = self._made({key: text for key, text in zip(keys, texts, strict=True) if key not in rows})
        sizes = {len(row) for row in (*rows.values(), *made.values())}
        if made:
            sizes.update(self._sizes())
        if len(sizes) > 1:
            self._tell(
                f"{self.name} gives vectors of another size than before: what was kept of it is dropped"
            )
            self._drop()
            self._keep(made)
            return self.embed(texts)
        self._keep(made)
        self.found += len(texts) - len(made)
        rows.update(made)
        return np.stack([rows[key] for key in keys])

    def _made(self, new: Mapping[bytes, str]) -> dict[bytes, NDArray[np.float32]]:
        """Vectors from the model itself, with the digits that are kept: the same now and later."""
        import numpy as np

        if not new:
            return {}
        self.computed += len(new)
        made = self._embedder.embed(list(new.values())).astype(np.float16).astype(np.float32)
        return dict(zip(new, made, strict=True))

    # -- the file --

    def _known(self, keys: Sequence[bytes]) -> dict[bytes, NDArray[np.float32]]:
        import numpy as np

        found: dict[bytes, NDArray[np.float32]] = {}
        for at in range(0, len(keys), _AT_ONCE):
            some = list(dict.fromkeys(keys[at : at + _AT_ONCE]))
            marks = ",".join("?" * len(some))
            rows = self._run(
                f"SELECT digest, vector FROM vector WHERE model = {_MODEL} AND digest IN ({marks})",  # noqa: S608
                [(self.name, *some)],
            )
            for key, sealed in rows:
                if isinstance(sealed, bytes) and self._seal(key, sealed[:-_SEAL]) == sealed[-_SEAL:]:
                    found[key] = np.frombuffer(sealed[:-_SEAL], np.float16).astype(np.float32)
                elif not self._has_found_damage:
                    self._has_found_damage = True
                    self._tell(f"vectors in the cache {self._path} were damaged: they are computed anew")
        return found

    def _seal(self, key: bytes, vector: bytes) -> bytes:
        """A checksum, because a damaged vector looks like any other, and so does one of another text."""
        return bytes(xxh3_64_digest(b"\0".join((self.name.encode("utf-8", "surrogatepass"), key, vector))))

    def _sizes(self) -> list[int]:
        """How long the vectors of this model are that are kept; nothing when there are none."""
        rows = self._run(f"SELECT length(vector) FROM vector WHERE model = {_MODEL} LIMIT 1", [(self.name,)])  # noqa: S608
        return [(size - _SEAL) // 2 for (size,) in rows]

    def _keep(self, rows: Mapping[bytes, NDArray[np.float32]]) -> None:
        import numpy as np

        kept = [(key, row.astype(np.float16).tobytes()) for key, row in rows.items()]
        if kept:
            self._run("INSERT OR IGNORE INTO model (name) VALUES (?)", [(self.name,)])
            self._run(
                f"INSERT OR REPLACE INTO vector SELECT {_MODEL}, ?, ?",
                [(self.name, key, vector + self._seal(key, vector)) for key, vector in kept],
            )

    def _drop(self) -> None:
        self._run(f"DELETE FROM vector WHERE model = {_MODEL}", [(self.name,)])  # noqa: S608

    def _run(self, statement: str, rows: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """Carry out a statement for each row, all or none; nothing when the file cannot be used, which is said once."""
        if not self._is_usable:
            return []
        try:
            return self._carried_out(statement, rows)
        except sqlite3.OperationalError as error:
            self._is_usable = False
            self._tell(f"the cache {self._path} cannot be used ({error}): every text is computed")
        except sqlite3.DatabaseError as error:
            self._begin_anew(f"the cache {self._path} was damaged ({error}) and is begun anew")
        except OSError as error:
            self._is_usable = False
            self._tell(f"the cache {self._path} cannot be used ({error.strerror}): every text is computed")
        return []

    def _carried_out(self, statement: str, rows: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        if self._db is None:
            self._db = _opened(self._path)
        with self._db:
            self._db.execute("BEGIN IMMEDIATE" if not statement.startswith("SELECT") else "BEGIN")
            if len(rows) != 1:
                self._db.executemany(statement, rows)
                return []
            return self._db.execute(statement, rows[0]).fetchall()

    def close(self) -> None:
        if self._db is not None:
            self._db.close()
        self._db = None

    def _begin_anew(self, why: str) -> None:
        self.close()
        remove(self._path)
        self._tell(why)


_MODEL = "(SELECT id FROM model WHERE name = ?)"


def _opened(path: str) -> sqlite3.Connection:
    os.makedirs(os.path.dirname(path), exist_ok=True)
    # Several syncs and a server may share it, and a server answers in threads of its own, one at a time.
    db = sqlite3.connect(path, isolation_level=None, timeout=_WAIT, check_same_thread=False)
    db.text_factory = bytes  # no text is read, and damage may look like one
    use_wal(db, patience=_WAIT)
    db.execute("PRAGMA synchronous=NORMAL")
    db.executescript(_SCHEMA)
    return db


def size(folder: str) -> int:
    """Bytes that the vectors of this home take."""
    try:
        return os.path.getsize(os.path.join(folder, FILE))
    except OSError:
        return 0
