"""Finds the files that a text names, as paths relative to the project's folder.

A word counts if it is the name of a file in the project, or if it looks like a path: a name with the extension of a
source file or document, or a path whose last part has an extension. A pattern (`src/*.py`) stands for the files it
matches, and a link for its target. Folders do not count, because texts name them too loosely. The only effect of a
false match is that two tasks wait for each other unnecessarily. In scripts without spaces between words, only existing
files are recognized.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from fnmatch import fnmatchcase
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rolecall.nexus.reply import ProjectTask


_LETTER = r"\w./+@À-ɏͰ-ԯ-"
"""The letters of Latin, Greek and Cyrillic, which separate words by spaces, and the signs of a path."""
_WORD = re.compile(rf"(?<![{_LETTER}])[{_LETTER}]+(?::{{2}}[\w.]+|(?::\d+)+)?", re.ASCII)
_PATTERN = re.compile(rf"[{_LETTER}*]+", re.ASCII)
_UNSPACED = re.compile(r"[\w./+@-]+")
_OTHER_SCRIPT = re.compile(r"[^\x00-ԯ]")
_UP_TO_ENDING = re.compile(r".*[^/]\.[A-Za-z][A-Za-z0-9]{0,7}")
_LONGEST = 4_000
"""The maximum number of characters in a path on any system."""
_MOST_FILES, _MOST_MATCHES, _MOST_PATTERNS, _MOST_STARS = 20_000, 200, 20, 8
_NOT_WRITTEN = frozenset((".git", ".hg", ".venv", "node_modules", "__pycache__", "state"))
"""The folders that patterns in tasks never match; `state` is the folder in `.nexus`."""
_ENDING = re.compile(r"[^/]\.[A-Za-z][A-Za-z0-9]{0,7}$")
_SOURCES = frozenset((
    "c", "cc", "cfg", "cpp", "cs", "css", "csv", "go", "h", "hpp", "html", "ini", "java", "js", "json", "jsx", "kt",
    "lock", "md", "php", "proto", "py", "pyi", "rb", "rs", "rst", "scss", "sh", "sql", "svelte", "swift", "tf", "toml",
    "ts", "tsx", "txt", "vue", "xml", "yaml", "yml",
))  # fmt: skip


class ProjectFiles:
    """The files of a project, as they were when they were first listed."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._is_file: dict[str, bool] = {}
        self._files: list[str] | None = None

    def is_file(self, path: str) -> bool:
        if path not in self._is_file:
            self._is_file[path] = os.path.isfile(os.path.join(self.root, path))
        return self._is_file[path]

    def match(self, pattern: str) -> list[str]:
        """Return the files that a pattern matches: `*` stays within a folder, and `**/` is any number of folders."""
        if self._files is None:
            self._files = []
            for folder, folders, files in os.walk(self.root):
                is_nexus = os.path.basename(folder) == ".nexus"
                hidden = _NOT_WRITTEN if is_nexus else _NOT_WRITTEN - {"state"}
                folders[:] = sorted(set(folders) - hidden)
                inner = os.path.relpath(folder, self.root)
                self._files += [os.path.normpath(os.path.join(inner, name)) for name in sorted(files)]
                if len(self._files) >= _MOST_FILES:
                    break
        wanted = pattern.split("/")
        found = (path for path in self._files[:_MOST_FILES] if _fits(path.split("/"), wanted))
        return list(islice(found, _MOST_MATCHES))


def _fits(path: Sequence[str], wanted: Sequence[str]) -> bool:
    if not wanted:
        return not path
    name, *rest = wanted
    if name == "**":
        return any(_fits(path[skipped:], rest) for skipped in range(len(path)))
    return bool(path) and fnmatchcase(path[0], name) and _fits(path[1:], rest)


def find_names(texts: Iterable[str], tree: ProjectFiles) -> frozenset[str]:
    """Return the files that the texts name, as `canonical` names."""
    found: set[str] = set()
    patterns: dict[str, None] = {}
    for text in texts:
        for match in _WORD.finditer(text):
            path = _path(match[0], tree.root)
            stem, _, ending = path.rpartition(".")
            is_product = ending == "js" and stem[:1].isupper()  # Node.js, Vue.js
            is_source = "/" in path or (ending in _SOURCES and not is_product)
            if path and ((is_source and _ENDING.search(path)) or tree.is_file(path)):
                found.add(path)
        for match in _UNSPACED.finditer(text):
            # In scripts without spaces, the next word of the sentence can follow a file's extension directly.
            if len(match[0]) <= _LONGEST and _OTHER_SCRIPT.search(match[0]):
                name = _UP_TO_ENDING.match(match[0])
                path = _path(name[0], tree.root) if name else ""
                if path and tree.is_file(path):
                    found.add(path)
        for match in _PATTERN.finditer(text) if "*" in text else ():
            if len(match[0]) <= _LONGEST and 0 < match[0].count("*") <= _MOST_STARS:
                patterns[_path(match[0], tree.root)] = None
    for pattern in islice(filter(_ENDING.search, patterns), _MOST_PATTERNS):
        found.update(tree.match(pattern))
    return frozenset(canonicalize(path, tree.root) for path in found)


def find_names_in_tasks(tasks: Iterable[ProjectTask], tree: ProjectFiles) -> frozenset[str]:
    """Return the files named in the texts of tasks."""
    texts: list[str] = []
    for task in tasks:
        texts += [task["title"], task["context"], task.get("approach", ""), task.get("acceptance", "")]
    return find_names(texts, tree)


def canonicalize(path: str, root: str) -> str:
    """Return the canonical name of a file: relative to the root, or absolute if the file is outside the root."""
    real = os.path.realpath(os.path.join(root, path))
    return os.path.relpath(real, root) if real.startswith(os.path.join(root, "")) else real


def find_changed_since(root: str, files: Iterable[str], at: str) -> frozenset[str]:
    """Return the files that were written or removed after a time (RFC 3339)."""
    try:
        last = datetime.fromisoformat(at.upper()).timestamp()
    except ValueError:
        return frozenset()
    names = islice(sorted(files), _MOST_MATCHES)
    return frozenset(name for name in names if _read_change_time(os.path.join(root, name)) > last)


def _read_change_time(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:  # the file is missing, so its folder was changed
        folder = os.path.dirname(path)
        return _read_change_time(folder) if folder not in ("", path) else 0


def _path(word: str, root: str) -> str:
    """Return a word as a path relative to the root, or an empty string if the word cannot be such a path."""
    plain = word.partition(":")[0].rstrip(".") if len(word) <= _LONGEST else ""
    if plain.startswith("/"):
        plain = plain if plain.startswith(os.path.join(root, "")) else os.path.realpath(plain)
        if not plain.startswith(os.path.join(root, "")):
            return ""
        plain = os.path.relpath(plain, root)
    path = posixpath.normpath(plain) if plain else ""
    is_outside = path in ("", ".", "..") or path.startswith(("../", ".nexus/state/", "@", "-"))
    return "" if is_outside or plain.startswith("//") else path  # `//host/page.html` is the rest of a URL
