"""What a tool does, told by its input: for tools that no table of a host knows. Values.

A tool that was renamed, one that came with an update, one of an MCP server: it edits a file when its input has a path
and a new content beside it, or when its name says so and its input has a path; it runs a command when it is given one.
Hosts have tables for the tools they know, and ask here about all others.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from rolecall.hosts.event import Deed
from rolecall.hosts.shell_writes import patched_files, read_command
from rolecall.settings.capabilities import FILES, SHELL, SHELL_WRITES

# Sets and not patterns, because compiling a pattern costs more than a hook that has nothing to do.
_PATH_KEYS = frozenset((
    "path", "paths", "filename", "filenames", "filepath", "filepaths", "targetfile", "notebookpath", "oldpath",
    "newpath",
))  # fmt: skip
"""Keys whose value is a path, without their case and underscores."""
_PERHAPS_PATH_KEYS = frozenset((
    "file", "files", "target", "destination", "dest", "source", "src", "from", "to", "uri", "uris", "url",
    "directory", "dir", "folder",
))  # fmt: skip
"""Keys whose value is one when it looks like one: a tool may also move a letter to a person."""
_CONTENT_KEYS = frozenset((
    "content", "contents", "newstring", "oldstring", "newstr", "oldstr", "newtext", "oldtext", "newsource",
    "newcontent", "newcontents", "filetext", "filecontent", "inserttext", "appendtext", "replacement", "patch", "diff",
    "edits", "codeedit",
))  # fmt: skip
"""Keys that tell what a file becomes."""
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
"""Names of tools that list or search files: they do not count as reading a file."""
_LONGEST_LIST = 1_000
_DEEPEST = 4


def guessed(tool: str, arguments: Mapping[str, Any], cwd: str) -> Deed:
    """What a tool of any name is about to do, as far as its input shows it."""
    command = _command(arguments)
    if command:
        return shell(tool, command, cwd)
    paths = tuple(
        dict.fromkeys([*_patches(arguments, cwd), *(_absolute(path, cwd) for path in _paths(arguments))])
    )
    words = _words(tool)
    is_reader, is_writer = (not words.isdisjoint(kind) for kind in (_READING_WORDS, _WRITING_WORDS))
    has_content = any(_plain(key) in _CONTENT_KEYS for key in _keys(arguments))
    if paths and (has_content or (is_writer and not is_reader)):
        return Deed(tool, FILES, writes=paths)
    is_search = not words.isdisjoint(_SEARCHING_WORDS)
    return Deed(tool, reads=paths if is_reader and not is_search and len(paths) == 1 else ())


def shell(tool: str, command: str, cwd: str) -> Deed:
    """A command for a shell, and what it visibly does."""
    writes, reads, calls = read_command(command, cwd)
    classes = (*SHELL[:2], *SHELL_WRITES) if writes else SHELL[:2]
    return Deed(tool, classes, writes, reads, command=command, calls=calls)


def _command(arguments: Mapping[str, Any]) -> str:
    for key, value in arguments.items():
        if _plain(key) not in _COMMAND_KEYS:
            continue
        if isinstance(value, str):
            return value
        if isinstance(value, list) and value and all(isinstance(word, str) for word in value):
            return _joined(value)
    return ""


def _joined(words: list[str]) -> str:
    """Words of a program as a line for a shell; `bash -c` among them means the same there."""
    import shlex

    return shlex.join(words)


def _patches(arguments: Mapping[str, Any], cwd: str) -> Iterator[str]:
    for key, value in arguments.items():
        if _plain(key) in _PATCH_KEYS and isinstance(value, str) and "*** " in value:
            yield from (_absolute(path, cwd) for path in patched_files(value))


def _paths(value: Any, depth: int = 0, *, is_path: bool = False) -> Iterator[str]:
    """Texts that stand where paths stand, also in lists of edits."""
    if isinstance(value, str):
        if is_path and value and "\n" not in value:
            yield value
    elif depth > _DEEPEST:
        return
    elif isinstance(value, list):
        for item in value[:_LONGEST_LIST]:
            yield from _paths(item, depth + 1, is_path=is_path)
    elif isinstance(value, dict):
        for key, item in list(value.items())[:_LONGEST_LIST]:
            yield from _paths(item, depth + 1, is_path=_is_path(_plain(key), item))


def _is_path(key: str, value: Any) -> bool:
    first = value[0] if isinstance(value, list) and value else value
    return key in _PATH_KEYS or (
        key in _PERHAPS_PATH_KEYS and isinstance(first, str) and _is_like_path(first)
    )


def _is_like_path(text: str) -> bool:
    scheme, is_address, _ = text.partition("://")
    if is_address:
        return scheme == "file"
    ending = os.path.splitext(text)[1]
    return "/" in text or (1 < len(ending) <= 9 and ending[1:].isalnum())


def _keys(value: Any, depth: int = 0) -> Iterator[str]:
    if isinstance(value, dict) and depth <= _DEEPEST:
        for key, item in list(value.items())[:_LONGEST_LIST]:
            yield str(key)
            yield from _keys(item, depth + 1)
    elif isinstance(value, list) and depth <= _DEEPEST:
        for item in value[:_LONGEST_LIST]:
            yield from _keys(item, depth + 1)


def _absolute(path: str, cwd: str) -> str:
    """A path, or the address of a file, as a path; `..` and links stay for whoever looks."""
    if path.startswith("file://"):
        from urllib.parse import unquote

        path = unquote(path.removeprefix("file://").removeprefix("localhost"))
    return os.path.join(cwd, os.path.expanduser(path))


def _words(tool: str) -> set[str]:
    """`mcp__files__writeFile` -> mcp, files, write, file."""
    letters = [
        f" {letter}" if letter.isupper() and not before.isupper() else letter if letter.isalpha() else " "
        for before, letter in zip(" " + tool[:200], tool[:200], strict=False)
    ]
    return set("".join(letters).lower().split())


def _plain(key: Any) -> str:
    return str(key).replace("_", "").replace("-", "").lower()
