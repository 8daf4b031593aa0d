"""The files that a text names, as paths from the project's folder. Nothing is read but whether a file is there.

A word counts that is a file of the project, or that looks like the path of one: a name with the ending of a source
or a document, or a path whose last part has an ending. Folders do not count: they are named too loosely to mean that
everything in them changes. One word too many makes two tasks wait for each other that need not; that is all. In
scripts that put no spaces between words only names of files that are there can be told from the text around them.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator

_LETTER = r"\w./+@À-ɏͰ-ԯ-"
"""Of Latin, Greek and Cyrillic: scripts that put spaces between their words."""
_WORD = re.compile(rf"(?<![{_LETTER}])[{_LETTER}]+(?::{{2}}[\w.]+|(?::\d+)+)?", re.ASCII)
_UNSPACED = re.compile(r"[\w./+@-]+")
_OTHER_SCRIPT = re.compile(r"[^\x00-ԯ]")
_UP_TO_ENDING = re.compile(r".*[^/]\.[A-Za-z][A-Za-z0-9]{0,7}")
_LONGEST = 4_000
_ENDING = re.compile(r"[^/]\.[A-Za-z][A-Za-z0-9]{0,7}$")
_SOURCES = frozenset((
    "c", "cc", "cfg", "cpp", "cs", "css", "csv", "go", "h", "hpp", "html", "ini", "java", "js", "json", "jsx", "kt",
    "lock", "md", "php", "proto", "py", "pyi", "rb", "rs", "rst", "scss", "sh", "sql", "svelte", "swift", "tf", "toml",
    "ts", "tsx", "txt", "vue", "xml", "yaml", "yml",
))  # fmt: skip


def named(texts: Iterable[str], root: str, is_file: Callable[[str], bool]) -> frozenset[str]:
    """The files that the texts name; `is_file` tells of a path from `root` whether a file is there."""
    texts = list(texts)
    words = {match[0] for text in texts for match in _WORD.finditer(text)}
    paths = {_path(word, root) for word in words}
    found = {path for path in paths if path and (_looks_like_one(path) or is_file(path))}
    unspaced = {_path(word, root) for text in texts for word in _of_other_scripts(text)}
    return frozenset(found | {path for path in unspaced if path and is_file(path)})


def _of_other_scripts(text: str) -> Iterator[str]:
    """Words up to the ending of a file: what follows it may be the next word of the sentence."""
    for match in _UNSPACED.finditer(text):
        is_one = len(match[0]) <= _LONGEST and _OTHER_SCRIPT.search(match[0])
        if is_one and (name := _UP_TO_ENDING.match(match[0])):
            yield name[0]


def _path(word: str, root: str) -> str:
    """The word as a path from the root; empty when it cannot be one."""
    plain = word.partition(":")[0].rstrip(".")
    if plain.startswith("/"):
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
