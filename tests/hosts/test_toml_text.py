"""TOML that others write, too: ours is a block of its own, and everything around it keeps its bytes."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolecall.errors import UsageError
from rolecall.hosts import toml_text

SERVER = ("mcp_servers", "rolecall")
TABLE: dict[str, Any] = {
    "command": '/opt/a "b"/ü\x7f',
    "args": ["mcp", "--project", "/x y"],
    "required": True,
    "startup_timeout_sec": 20,
    "env": {"A B": "c"},
}

PARTS = st.lists(
    st.sampled_from(
        (
            "# a note, not ours\n",
            "\n",
            '[mcp_servers.other]\ncommand = "x"\n',
            "[features] # mine\nweb = true\n",
            '[mcp_servers.rolecall.tools.x]\napproval_mode = "approve"\n',
            "[tui]\n",
            '[text]\nlong = """\n[features]\n# rolecall end x\n"""\n',
            "[[points]]\nx = 1\n",
        )
    ),
    max_size=5,
    unique=True,
)


@given(PARTS, st.sampled_from(("", 'model = "m"\n')), st.booleans(), st.booleans())
def test_taking_out_what_was_put_in_gives_back_the_very_text(
    parts: list[str], first: str, has_last_line_end: bool, is_crlf: bool
) -> None:
    text = first + "".join(parts)
    text = text if has_last_line_end else text.rstrip("\n")
    text = text.replace("\n", "\r\n") if is_crlf else text
    after = toml_text.put(text, SERVER, TABLE)
    before, found = tomllib.loads(text), tomllib.loads(after)
    ours = found["mcp_servers"].pop("rolecall")
    assert {key: ours[key] for key in TABLE} == TABLE
    tools = before.get("mcp_servers", {}).pop("rolecall", None)
    assert found == {"mcp_servers": {}, **before}
    left = toml_text.remove(after, SERVER)
    assert left is not None
    if tools is None:
        assert left == text
    else:  # what was allowed to our tools is of no use without them, and Codex would refuse it
        assert ours["tools"] == tools["tools"]
        assert "rolecall" not in left.replace("# rolecall end x", "")


def test_of_a_file_that_we_made_nothing_is_left() -> None:
    after = toml_text.put(None, SERVER, TABLE)
    assert tomllib.loads(after) == {"mcp_servers": {"rolecall": TABLE}}
    assert toml_text.remove(after, SERVER) is None
    assert toml_text.remove(toml_text.put("", SERVER, TABLE), SERVER) == ""


def test_a_second_time_changes_nothing_and_another_value_replaces_the_block() -> None:
    after = toml_text.put("[a]\nb = 1\n", SERVER, TABLE)
    assert toml_text.put(after, SERVER, TABLE) == after
    newer = toml_text.put(after, SERVER, {**TABLE, "command": "/new"})
    assert tomllib.loads(newer) == {"a": {"b": 1}, "mcp_servers": {"rolecall": {**TABLE, "command": "/new"}}}
    assert newer.count("# rolecall begin") == 1


def test_a_table_that_somebody_pasted_is_left_to_them() -> None:
    text = f"{toml_text.written(SERVER, TABLE)}\nenabled = true\n"
    assert toml_text.put(text, SERVER, TABLE) == text
    assert toml_text.remove(text, SERVER) == text


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('[mcp_servers.rolecall]\ncommand = "mine"\n', "is there and not ours"),
        ("mcp_servers = 1\n", "cannot be added"),
        ("mcp_servers = { a = {} }\n", "cannot be added"),
        ("mcp_servers.rolecall = 1\n", "is there and not ours"),
    ],
)
def test_what_does_not_fit_in_is_refused(text: str, what: str) -> None:
    with pytest.raises(UsageError, match=what):
        toml_text.put(text, SERVER, TABLE)


def test_what_is_not_toml_is_refused_with_the_place() -> None:
    with pytest.raises(toml_text.NotToml, match="line 2"):
        toml_text.put("[a]\nb = \n", SERVER, TABLE)


REWRITTEN = """\
# mine
model = "m"
# rolecall begin mcp_servers.rolecall
[mcp_servers.rolecall]
command = "/x"

[mcp_servers.rolecall.tools.nx_task_add]
approval_mode = "approve"

[mcp_servers.other]
command = "y"
args = [
  ["a"],
]

[hooks.state."/p/hooks.json:stop:0:0"]
trusted_hash = "sha256:0"
# rolecall end mcp_servers.rolecall
"""
"""What a program leaves that adds tables before a comment which stands last: theirs are in our block."""


def test_tables_that_a_host_wrote_into_our_block_stay_when_it_goes() -> None:
    left = toml_text.remove(REWRITTEN, SERVER)
    assert left is not None
    assert tomllib.loads(left) == {
        "model": "m",
        "mcp_servers": {"other": {"command": "y", "args": [["a"]]}},
        "hooks": {"state": {"/p/hooks.json:stop:0:0": {"trusted_hash": "sha256:0"}}},
    }
    assert "rolecall" not in left
    assert "# mine" in left


def test_tables_that_a_host_wrote_into_our_block_stay_when_it_is_brought_up_to_date() -> None:
    assert toml_text.put(REWRITTEN, SERVER, {"command": "/x"}) == REWRITTEN
    newer = toml_text.put(REWRITTEN, SERVER, {"command": "/new"})
    before, after = tomllib.loads(REWRITTEN), tomllib.loads(newer)
    assert after["mcp_servers"]["rolecall"]["command"] == "/new"
    before["mcp_servers"]["rolecall"]["command"] = "/new"
    assert after == before
    assert toml_text.remove(newer, SERVER) == toml_text.remove(REWRITTEN, SERVER)


def test_keys_that_somebody_added_to_our_table_stay() -> None:
    mine = "startup_timeout_sec = 30.5\nenv = { A = 'b' }\nsince = 2026-01-02T03:04:05Z\n"
    text = toml_text.put("", SERVER, {"command": "/x"}).replace("# rolecall end", f"{mine}# rolecall end")
    assert toml_text.put(text, SERVER, {"command": "/x"}) == text
    found = tomllib.loads(toml_text.put(text, SERVER, {"command": "/new"}))["mcp_servers"]["rolecall"]
    assert found == {"command": "/new", **tomllib.loads(mine)}
