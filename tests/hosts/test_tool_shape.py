"""Tools that no table knows are told by their input and their name."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolecall.hosts.tool_shape import guess, shell
from rolecall.settings.capabilities import FILES

EDITS: list[tuple[str, dict[str, Any], list[str]]] = [
    ("Scribble", {"file_path": "a.py", "content": "x"}, ["/p/a.py"]),
    ("scribble", {"filePath": "/q/a.py", "newString": "x", "oldString": "y"}, ["/q/a.py"]),
    ("NewNotebookTool", {"notebook_path": "n.ipynb", "new_source": "x"}, ["/p/n.ipynb"]),
    ("str_replace_based_edit_tool", {"command": "", "path": "a", "new_str": "x"}, ["/p/a"]),
    (
        "multi",
        {"edits": [{"path": "a", "new_string": "x"}, {"path": "b", "new_string": "y"}]},
        ["/p/a", "/p/b"],
    ),
    ("mcp__files__write_file", {"path": "../p/a", "content": "x"}, ["/p/../p/a"]),
    ("mcp__files__move_file", {"source": "a/b", "destination": "c.txt"}, ["/p/a/b", "/p/c.txt"]),
    ("mcp__files__delete", {"paths": ["a", "b"]}, ["/p/a", "/p/b"]),
    ("mcp__files__createDirectory", {"path": "d"}, ["/p/d"]),
    ("files_edit", {"uri": "file:///p/with%20space"}, ["/p/with space"]),
    ("apply_patch", {"input": "*** Begin Patch\n*** Update File: a\n"}, ["/p/a"]),
    ("patch", {"patch": "*** Begin Patch\n*** Delete File: a\n*** Add File: b\n"}, ["/p/a", "/p/b"]),
]
READS: list[tuple[str, dict[str, Any], list[str]]] = [
    ("mcp__files__read_file", {"path": "a"}, ["/p/a"]),
    ("viewFile", {"file_path": "/q/a"}, ["/q/a"]),
]
NEITHER: list[tuple[str, dict[str, Any]]] = [
    ("search_and_replace_preview_list", {"path": "a"}),
    ("mcp__tickets__create_issue", {"title": "T", "content": "C"}),
    ("mcp__mail__move", {"from": "inbox", "to": "archive"}),
    ("mcp__web__fetch", {"url": "https://example.org/a.txt"}),
    ("mcp__web__update", {"url": "https://example.org/a.txt"}),
    ("Grep", {"pattern": "x", "path": "src"}),
    ("mcp__files__list_directory", {"path": "a"}),
    ("mcp__files__search_files", {"path": "a.md"}),
    ("Odd", {"path": None, "content": 3}),
    ("Odd", {"path": "several\nlines", "content": "x"}),
    ("Empty", {}),
]


@pytest.mark.parametrize(("tool", "arguments", "paths"), EDITS, ids=lambda value: str(value)[:40])
def test_a_path_with_a_new_content_or_a_name_that_says_so_is_an_edit(
    tool: str, arguments: dict[str, Any], paths: list[str]
) -> None:
    call = guess(tool, arguments, "/p")
    assert (list(call.writes), call.classes, call.reads) == (paths, FILES, ())


@pytest.mark.parametrize(("tool", "arguments", "paths"), READS, ids=lambda value: str(value)[:40])
def test_a_name_that_reads_and_one_path_is_a_read(
    tool: str, arguments: dict[str, Any], paths: list[str]
) -> None:
    call = guess(tool, arguments, "/p")
    assert (call.writes, list(call.reads), call.classes) == ((), paths, ())


@pytest.mark.parametrize(("tool", "arguments"), NEITHER, ids=lambda value: str(value)[:40])
def test_anything_else_is_neither(tool: str, arguments: dict[str, Any]) -> None:
    call = guess(tool, arguments, "/p")
    assert (call.writes, call.classes) == ((), ())


@pytest.mark.parametrize(
    "arguments", [{"command": "rm x"}, {"cmd": ["rm", "x"]}, {"script": "rm x", "path": "y"}]
)
def test_a_tool_that_is_given_a_command_is_a_shell(arguments: dict[str, Any]) -> None:
    call = guess("Whatever", arguments, "/p")
    assert call == shell("Whatever", "rm x", "/p")
    assert call.writes == ("/p/x",)
    assert call.classes == ("shell_command_exec", "subprocess_spawn", "shell_file_write")
    assert shell("Whatever", "ls", "/p").classes == ("shell_command_exec", "subprocess_spawn")


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=20,
)
_KEYS = st.sampled_from(["path", "file_path", "content", "edits", "command", "input", "paths", "url"])


@given(st.text(max_size=40), st.dictionaries(_KEYS | st.text(max_size=5), _JSON, max_size=6))
def test_no_input_is_too_odd(tool: str, arguments: dict[str, Any]) -> None:
    call = guess(tool, arguments, "/p")
    assert all(path.startswith("/") for path in (*call.writes, *call.reads))
