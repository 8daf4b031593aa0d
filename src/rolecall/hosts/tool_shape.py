"""Works out what a tool does from its input, for tools that are in no host's table.

Such a tool could be renamed, new, or from an MCP server. The tool counts as editing a file if its input has a path and
new content, or if its input has a path and its name suggests editing. The tool counts as running a command if its input
contains a command.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rolecall.hosts.event import HostToolCall
from rolecall.hosts.shell_writes import find_patched_files as find_patched_files
from rolecall.hosts.shell_writes import read_command
from rolecall.settings.capabilities import FILES, SHELL, SHELL_WRITES
from rolecall.store.lazy import Module

if TYPE_CHECKING:
    from urllib import parse as urls

    from rolecall.store.canonical import JsonObject
else:
    urls = Module("urllib.parse")

# Keys are compared without case and underscores.
_PATH_KEYS = frozenset((
    "path", "paths", "filename", "filenames", "filepath", "filepaths", "targetfile", "notebookpath", "oldpath",
    "newpath",
))  # fmt: skip
_PERHAPS_PATH_KEYS = frozenset((
    "file", "files", "target", "destination", "dest", "source", "src", "from", "to", "uri", "uris", "url",
    "directory", "dir", "folder",
))  # fmt: skip
"""Keys that hold a path if the value looks like a path; they can mean other things, as in moving mail to a person."""
_CONTENT_KEYS = frozenset((
    "content", "contents", "newstring", "oldstring", "newstr", "oldstr", "newtext", "oldtext", "newsource",
    "newcontent", "newcontents", "filetext", "filecontent", "inserttext", "appendtext", "replacement", "patch", "diff",
    "edits", "codeedit",
))  # fmt: skip
"""Keys that hold the new content of a file."""
_COMMAND_KEYS = frozenset(("command", "cmd", "script", "shellcommand", "commandline"))
_PATCH_KEYS = frozenset(("patch", "patchtext", "input", "diff"))
_WRITING_WORDS = frozenset((
    "write", "edit", "create", "delete", "remove", "move", "rename", "patch", "update", "replace", "insert", "append",
    "modify", "save", "put", "copy", "mkdir", "touch", "upload", "overwrite", "apply", "set", "truncate", "unlink",
    "rm", "mv", "cp",
))  # fmt: skip
_READING_WORDS = frozenset((
    "read", "get", "list", "search", "find", "view", "show", "stat", "info", "query", "fetch", "grep", "glob", "tree",
))  # fmt: skip
_SEARCHING_WORDS = frozenset((
    "list", "search", "find", "stat", "info", "query", "grep", "glob", "tree", "directory", "dir", "ls",
))  # fmt: skip
"""Words that show, in a tool's name, that the tool lists or searches files. That does not count as reading a file."""
_LONGEST_LIST = 1_000
_DEEPEST = 4


def guess(tool: str, arguments: JsonObject, cwd: str) -> HostToolCall:
    """Guess from its input what a tool with any name is about to do."""
    paths: list[str] = []
    for key, value in arguments.items():
        name = _normalize(key)
        if name in _COMMAND_KEYS and value:
            is_list = isinstance(value, list) and all(isinstance(word, str) for word in value)
            command = shlex.join(value) if is_list else value
            if isinstance(command, str):
                return shell(tool, command, cwd)
        if name in _PATCH_KEYS and isinstance(value, str) and "*** " in value:
            paths += find_patched_files(value)
    fields = list(_walk(arguments))
    paths += [value for key, value in fields if _is_path(key, value)]
    for at, path in enumerate(paths):  # links and `..` are not resolved
        if path.startswith("file://"):
            path = urls.unquote(path.removeprefix("file://").removeprefix("localhost"))
        paths[at] = os.path.join(cwd, os.path.expanduser(path))
    paths = list(dict.fromkeys(paths))

    # `mcp__files__writeFile` -> mcp, files, write, file
    spaced = re.sub(r"(?<![A-Z])([A-Z])", r" \1", tool[:200])
    words = set(re.sub("[^A-Za-z]+", " ", spaced).lower().split())
    is_reader = not words.isdisjoint(_READING_WORDS)
    is_writer = not words.isdisjoint(_WRITING_WORDS) and not is_reader
    if paths and (is_writer or any(key in _CONTENT_KEYS for key, _ in fields)):
        return HostToolCall(tool, FILES, writes=tuple(paths))
    is_read = is_reader and words.isdisjoint(_SEARCHING_WORDS) and len(paths) == 1
    return HostToolCall(tool, reads=tuple(paths) if is_read else ())


def shell(tool: str, command: str, cwd: str) -> HostToolCall:
    """Return the call of a shell, with what its command visibly does."""
    writes, reads, calls = read_command(command, cwd)
    classes = (*SHELL[:2], *SHELL_WRITES) if writes else SHELL[:2]
    return HostToolCall(tool, classes, writes, reads, command=command, calls=calls)


def _walk(value: Any, key: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield every key with its value, including keys inside lists; for a list, yield the key once for each item."""
    if isinstance(value, dict) and depth <= _DEEPEST:
        for name, item in list(value.items())[:_LONGEST_LIST]:
            name = _normalize(name)
            if isinstance(item, dict | list):
                yield name, None
            yield from _walk(item, name, depth + 1)
    elif isinstance(value, list) and depth <= _DEEPEST:
        for item in value[:_LONGEST_LIST]:
            yield from _walk(item, key, depth + 1)
    else:
        yield key, value


def _is_path(key: str, value: Any) -> bool:
    if not isinstance(value, str) or not value or "\n" in value:
        return False
    if key in _PATH_KEYS or key not in _PERHAPS_PATH_KEYS:
        return key in _PATH_KEYS
    scheme, is_address, _ = value.partition("://")
    if is_address:
        return scheme == "file"
    ending = os.path.splitext(value)[1]
    return "/" in value or (1 < len(ending) <= 9 and ending[1:].isalnum())


def _normalize(key: Any) -> str:
    return str(key).replace("_", "").replace("-", "").lower()
