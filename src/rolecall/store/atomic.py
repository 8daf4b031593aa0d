"""Write a file as a whole or not at all."""

from __future__ import annotations

import os
import stat
from contextlib import suppress


def replace(path: str, data: bytes, *, mode: int | None = None, durable: bool = False) -> None:
    """Replace a file atomically, or create it. The file gets the permissions `mode`; if `mode` is None, an existing
    file keeps its permissions. If `durable` is true, the content is on disk when this function returns."""
    # Use a new file with a name that nobody can guess, because an agent might have put a link into the folder.
    draft = os.path.join(os.path.dirname(path), f".{os.urandom(8).hex()}.draft")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    try:
        with open(os.open(draft, flags, 0o666 if mode is None else mode), "wb") as file:
            if mode is None and os.path.exists(path):
                os.fchmod(file.fileno(), stat.S_IMODE(os.stat(path).st_mode))
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(draft, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(draft)
        raise
