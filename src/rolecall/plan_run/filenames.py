"""The files that a text names, as paths from the project's folder. Nothing is read but which files are there.

A word counts that is a file of the project, or that looks like the path of one: a name with the ending of a source
or a document, or a path whose last part has an ending. A pattern (`src/*.py`) stands for the files that it fits. A link
counts as the file that it leads to. Folders do not count: they are named too loosely to mean that everything in them
changes. One word too many makes two tasks wait for each other that need not; that is all. In scripts that put no spaces
between words only names of files that are there can be told from the text around them.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from fnmatch import fnmatchcase
from itertools import islice
from typing import Any

_LETTER = r"\w./+@À-ɏͰ-ԯ-"
"""Of Latin, Greek and Cyrillic: scripts that put spaces between their words."""
_WORD = re.compile(rf"(?<![{_LETTER}])[{_LETTER}]+(?::{{2}}[\w.]+|(?::\d+)+)?", re.ASCII)
_PATTERN = re.compile(rf"[{_LETTER}*]+", re.ASCII)
_UNSPACED = re.compile(r"[\w./+@-]+")
_OTHER_SCRIPT = re.compile(r"[^\x00-ԯ]")
_UP_TO_ENDING = re.compile(r".*[^/]\.[A-Za-z][A-Za-z0-9]{0,7}")
_LONGEST = 4_000
"""Characters of a path; no system has longer ones."""
_MOST_FILES, _MOST_MATCHES, _MOST_PATTERNS, _MOST_STARS = 20_000, 200, 20, 8
_NOT_WRITTEN = frozenset((".git", ".hg", ".venv", "node_modules", "__pycache__", "state"))
"""Folders that no task writes by a pattern; `state` is that of `.nexus`."""
_ENDING = re.compile(r"[^/]\.[A-Za-z][A-Za-z0-9]{0,7}$")
_SOURCES = frozenset((
    "c", "cc", "cfg", "cpp", "cs", "css", "csv", "go", "h", "hpp", "html", "ini", "java", "js", "json", "jsx", "kt",
    "lock", "md", "php", "proto", "py", "pyi", "rb", "rs", "rst", "scss", "sh", "sql", "svelte", "swift", "tf", "toml",
    "ts", "tsx", "txt", "vue", "xml", "yaml", "yml",
))  # fmt: skip


class Tree:
    """The files of a project, as they were when they were first asked for."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._is_file: dict[str, bool] = {}
        self._files: list[str] | None = None

    def is_file(self, path: str) -> bool:
        if path not in self._is_file:
            self._is_file[path] = os.path.isfile(os.path.join(self.root, path))
        return self._is_file[path]

    def matching(self, pattern: str) -> list[str]:
        """The files that a pattern fits: `*` stays within a folder, `**/` is any number of them."""
        if self._files is None:
            self._files = list(islice(_walk(self.root), _MOST_FILES))
        wanted = pattern.split("/")
        fitting = (path for path in self._files if _fits(path.split("/"), wanted))
        return list(islice(fitting, _MOST_MATCHES))


def _fits(path: Sequence[str], wanted: Sequence[str]) -> bool:
    if not wanted:
        return not path
    name, *rest = wanted
    if name == "**":
        return any(_fits(path[skipped:], rest) for skipped in range(len(path)))
    return bool(path) and fnmatchcase(path[0], name) and _fits(path[1:], rest)


def _walk(root: str) -> Iterator[str]:
    for folder, folders, files in os.walk(root):
        is_ours = os.path.basename(folder) == ".nexus"
        folders[:] = sorted(
            name for name in folders if name not in _NOT_WRITTEN or (name == "state" and not is_ours)
        )
        yield from (os.path.relpath(os.path.join(folder, name), root) for name in sorted(files))


def named(texts: Iterable[str], tree: Tree) -> frozenset[str]:
    """The files that the texts name, each by the name that `same` gives it."""
    texts = list(texts)
    words = {match[0] for text in texts for match in _WORD.finditer(text)}
    paths = {_path(word, tree.root) for word in words}
    found = {path for path in paths if path and (_looks_like_one(path) or tree.is_file(path))}
    unspaced = {_path(word, tree.root) for text in texts for word in _of_other_scripts(text)}
    found |= {path for path in unspaced if path and tree.is_file(path)}
    found |= {path for pattern in _patterns(texts, tree.root) for path in tree.matching(pattern)}
    return frozenset(same(path, tree.root) for path in found)


def named_by(tasks: Iterable[Mapping[str, Any]], tree: Tree) -> frozenset[str]:
    """The files that the texts of tasks name."""
    fields = ("title", "context", "approach", "acceptance")
    return named((task.get(field, "") for task in tasks for field in fields), tree)


def same(path: str, root: str) -> str:
    """One name for each file, whatever it was called: from the root, or absolute where it lies elsewhere."""
    real = os.path.realpath(os.path.join(root, path))
    return os.path.relpath(real, root) if real.startswith(os.path.join(root, "")) else real


def changed_since(root: str, files: Iterable[str], at: str) -> frozenset[str]:
    """The files that anybody wrote or removed after a time (RFC 3339)."""
    try:
        last = datetime.fromisoformat(at.upper()).timestamp()
    except ValueError:
        return frozenset()
    names = islice(sorted(files), _MOST_MATCHES)
    return frozenset(name for name in names if _changed_at(os.path.join(root, name)) > last)


def _changed_at(path: str) -> float:
    """When a file was written; for a missing one, when its folder was, because that may have removed the file."""
    try:
        return os.stat(path).st_mtime
    except OSError:
        folder = os.path.dirname(path)
        return _changed_at(folder) if folder not in ("", path) else 0


def _patterns(texts: Iterable[str], root: str) -> list[str]:
    """Words with stars in them that can only be meant for files."""
    words = dict.fromkeys(match[0] for text in texts if "*" in text for match in _PATTERN.finditer(text))
    short = (word for word in words if len(word) <= _LONGEST and 0 < word.count("*") <= _MOST_STARS)
    paths = (_path(word, root) for word in short)
    return list(islice(filter(_ENDING.search, paths), _MOST_PATTERNS))


def _of_other_scripts(text: str) -> Iterator[str]:
    """Words up to the ending of a file: what follows it may be the next word of the sentence."""
    for match in _UNSPACED.finditer(text):
        is_one = len(match[0]) <= _LONGEST and _OTHER_SCRIPT.search(match[0])
        if is_one and (name := _UP_TO_ENDING.match(match[0])):
            yield name[0]


def _path(word: str, root: str) -> str:
    """The word as a path from the root; empty when it cannot be one."""
    plain = word.partition(":")[0].rstrip(".") if len(word) <= _LONGEST else ""
    if plain.startswith("/"):
        plain = plain if plain.startswith(os.path.join(root, "")) else os.path.realpath(plain)
        if not plain.startswith(os.path.join(root, "")):
            return ""
        plain = os.path.relpath(plain, root)
    path = posixpath.normpath(plain) if plain else ""
    is_outside = path in ("", ".", "..") or path.startswith(("../", ".nexus/state/", "@", "-"))
    # An address (`//host/page.html` is what is left of it) is no file of ours.
    return "" if is_outside or plain.startswith("//") else path


def _looks_like_one(path: str) -> bool:
    if not _ENDING.search(path):
        return False
    if "/" in path:
        return True
    name, _, ending = path.rpartition(".")
    is_product = ending == "js" and name[:1].isupper()  # Node.js, Vue.js
    return ending in _SOURCES and not is_product
