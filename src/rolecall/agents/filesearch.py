"""Lists the files in a folder and finds lines that match a pattern, for the built-in agent. Links are not followed."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterator

MOST_ENTRIES = 200_000
MOST_MATCHES = 200
LARGEST_SEARCHED = 4 * 1024 * 1024
_LONGEST_LINE = 300
_SKIPPED = ".git"


class Walk:
    """An iterable over the paths of all files and folders below a root except `.git`, relative to the root; the path of
    a folder ends with a slash. `is_cut` says whether a limit ended the walk."""

    def __init__(self, root: str, seconds: float) -> None:
        self._root = root
        self._until = time.monotonic() + seconds
        self._room = MOST_ENTRIES
        self.is_cut = False

    def __iter__(self) -> Iterator[str]:
        for folder, inner, files in os.walk(self._root):
            inner[:] = sorted(name for name in inner if name != _SKIPPED)
            above = os.path.relpath(folder, self._root)
            prefix = "" if above == os.curdir else above + "/"
            for name in (*sorted(files), *(f"{name}/" for name in inner)):
                self._room -= 1
                if self._room < 0 or self.is_late():
                    self.is_cut = True
                    return
                yield prefix + name

    def is_late(self) -> bool:
        """Return whether the time is up, which ends the walk."""
        self.is_cut = self.is_cut or time.monotonic() > self._until
        return self.is_cut


def matches(
    root: str, has_match: Callable[[str], bool], is_searched: Callable[[str], bool], seconds: float
) -> Iterator[str]:
    """Yield lines of the form `path:number: text`, then a note about anything left out."""
    found = too_large = 0
    walk = Walk(root, seconds)
    for path in walk:
        if path.endswith("/") or not is_searched(path):
            continue
        text = _text_of(os.path.join(root, path))
        too_large += text is None
        for number, line in enumerate((text or "").split("\n"), 1):
            if walk.is_late():  # some patterns take long for a single line
                break
            if not has_match(line):
                continue
            found += 1
            if found > MOST_MATCHES:
                yield f"[only the first {MOST_MATCHES} matches are shown; narrow the pattern or the files]"
                return
            yield f"{path}:{number}: {line.strip()[:_LONGEST_LINE]}"
    if too_large:
        yield f"[{too_large} files of more than {LARGEST_SEARCHED:,} bytes were not searched]"
    if walk.is_cut:
        yield "[there was too much to search; narrow the files]"


def _text_of(path: str) -> str | None:
    """Return the text of a regular file, an empty string if the file is not readable text, or None if the file is too
    large."""
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with os.fdopen(os.open(path, flags), "rb") as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                return ""
            if found.st_size > LARGEST_SEARCHED:
                return None
            content = file.read(LARGEST_SEARCHED)
    except OSError:  # a link, a deleted file, or no permission to read
        return ""
    return "" if b"\0" in content[:8192] else content.decode("utf-8", "replace")
