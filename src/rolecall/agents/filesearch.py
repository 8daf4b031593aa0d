"""Lists the files in a folder and finds lines that match a pattern. Links are not followed.

Run as a program, it carries out a model's search: a JSON request on stdin, one line per match on stdout. It is a
separate process because Python cannot stop a regular expression that backtracks endlessly; an alarm ends it even if its
parent has died. It imports only the standard library.
"""

from __future__ import annotations

import json
import os
import re
import signal
import stat
import sys
import time
from collections.abc import Iterator
from typing import NamedTuple

PROGRAM = __file__
MOST_ENTRIES = 200_000
MOST_MATCHES = 200
LARGEST_SEARCHED = 4 * 1024 * 1024
_LONGEST_LINE = 300
_SKIPPED = ".git"
_LATENESS = 0.5
"""Seconds a search has to stop by itself before the alarm ends it."""


class FoundFile(NamedTuple):
    path: str
    """The path relative to the root; a folder's path ends with a slash."""
    name: str
    parent: int
    """Descriptor of the containing folder, valid until the walk moves on."""


class Walk:
    """Iterates over every file and folder below the root. `is_cut` tells whether a limit ended the walk."""

    def __init__(self, root: str, seconds: float) -> None:
        self._root = root
        self._until = time.monotonic() + seconds
        self._room = MOST_ENTRIES
        self.is_cut = False

    def __iter__(self) -> Iterator[FoundFile]:
        for folder, inner, files, parent in os.fwalk(self._root, follow_symlinks=False):
            inner[:] = sorted(name for name in inner if name != _SKIPPED)
            above = os.path.relpath(folder, self._root)
            prefix = "" if above == os.curdir else above + "/"
            named = [(name, prefix + name) for name in sorted(files)]
            for name, path in named + [(name, f"{prefix}{name}/") for name in inner]:
                self._room -= 1
                if self._room < 0 or time.monotonic() > self._until:
                    self.is_cut = True
                    return
                yield FoundFile(path, name, parent)


def glob_pattern(glob: str) -> str:
    """Return the regular expression for a file name pattern: `*` and `?` stay within a name, `**/` matches zero or more
    folders, `[abc]` matches one of the characters."""
    glob = glob.removeprefix("./").rstrip("/")
    pieces, at = [], 0
    while at < len(glob):
        closing = glob.find("]", at + 2) if glob[at] == "[" else -1
        if glob.startswith("**/", at):
            piece, at = r"(?:[^/]+/)*", at + 3
        elif glob.startswith("**", at):
            piece, at = ".*", at + 2
        elif closing > 0:
            inner = glob[at + 1 : closing].replace("\\", r"\\")
            inner = re.sub(r"[\[&~]", r"\\\g<0>", inner)  # engines treat these differently in a class
            piece, at = f"[{'^' + inner[1:] if inner[0] == '!' else inner}]", closing + 1
        else:
            piece = {"*": "[^/]*", "?": "[^/]"}.get(glob[at]) or re.escape(glob[at])
            at += 1
        pieces.append(piece)
    return f"^(?s:{''.join(pieces)})$"


def matches(root: str, pattern: re.Pattern[str], glob: re.Pattern[str], seconds: float) -> Iterator[str]:
    """Yield lines of the form `path:number: text`, then a note about anything left out."""
    found = too_large = 0
    walk = Walk(root, seconds)
    for entry in walk:
        if entry.path.endswith("/") or not glob.fullmatch(entry.path):
            continue
        text = _text_of(entry)
        too_large += text is None
        for number, line in enumerate((text or "").split("\n"), 1):
            if not pattern.search(line):
                continue
            found += 1
            if found > MOST_MATCHES:
                yield f"[only the first {MOST_MATCHES} matches are shown; narrow the pattern or the files]"
                return
            yield f"{entry.path}:{number}: {line.strip()[:_LONGEST_LINE]}"
    if too_large:
        yield f"[{too_large} files of more than {LARGEST_SEARCHED:,} bytes were not searched]"
    if walk.is_cut:
        yield "[there was too much to search; narrow the files]"


def _text_of(entry: FoundFile) -> str | None:
    """Return the text of a regular file, empty if it is not text, or None if it is too large."""
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with os.fdopen(os.open(entry.name, flags, dir_fd=entry.parent), "rb") as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                return ""
            if found.st_size > LARGEST_SEARCHED:
                return None
            content = file.read(LARGEST_SEARCHED)
    except OSError:  # a link, a deleted file, or no permission to read
        return ""
    return "" if b"\0" in content[:8192] else content.decode("utf-8", "replace")


def main() -> int:
    request = json.loads(sys.stdin.buffer.read())
    signal.setitimer(signal.ITIMER_REAL, request["seconds"] + _LATENESS)
    pattern, glob = re.compile(request["pattern"]), re.compile(glob_pattern(request["glob"]))
    for line in matches(request["root"], pattern, glob, request["seconds"]):
        sys.stdout.buffer.write(line.encode("utf-8", "replace") + b"\n")
        sys.stdout.buffer.flush()  # keep the matches found before the alarm
    return 0


if __name__ == "__main__":
    sys.exit(main())
