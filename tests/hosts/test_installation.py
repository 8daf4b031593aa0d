"""Pieces put into real files and taken out again: what is ours, what is kept, what is refused."""

from __future__ import annotations

import json
import os
import shutil
import stat
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolecall.errors import Conflict, RolecallError, UsageError
from rolecall.hosts import file_change
from rolecall.hosts.file_change import FileChange
from rolecall.hosts.installation import Entry, FileMember, Items, OwnFile, Wiring, plan_install, plan_removal

NOBODY = 65534
TEXT = '---\nname: "tester"\n---\n\nYou test.\n'


def is_ours(item: Any) -> bool:
    return isinstance(item, str) and item.startswith("rolecall ")


class Place:
    """A project that something is installed into."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.agent = folder / ".host" / "agents" / "tester.md"
        self.settings = folder / ".host" / "settings.json"
        self.config = folder / "config.toml"
        self.entries: list[Entry] = [
            FileMember(
                str(self.settings), ("servers", "rolecall"), {"command": "new"}, lambda it: "command" in it
            ),
            Items(str(self.settings), ("hooks", "Stop"), ("rolecall stop",), is_ours),
            FileMember(
                str(self.config), ("servers", "rolecall"), {"command": "new"}, lambda it: "command" in it
            ),
            OwnFile(str(self.agent), TEXT),
        ]

    @property
    def wiring(self) -> Wiring:
        return Wiring(self.entries, [str(self.folder / ".host" / "agents" / "*.md")], str(self.folder))

    def install(self, *, force: bool = False) -> dict[str, str]:
        return self._made(plan_install(self.wiring, force=force))

    def remove(self, *, force: bool = False) -> dict[str, str]:
        return self._made(plan_removal(self.wiring, force=force))

    def _made(self, changes: list[FileChange]) -> dict[str, str]:
        file_change.make(changes, roots=[str(self.folder)])
        return {os.path.basename(one.path): one.state for one in changes}

    def write(self, path: Path, text: str) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def files(self) -> dict[str, bytes]:
        return {str(one): one.read_bytes() for one in sorted(self.folder.rglob("*")) if one.is_file()}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


# -- all of it --


def test_installing_twice_is_installing_once(place: Place) -> None:
    assert set(place.install().values()) == {"new"}
    before = place.files()
    assert set(place.install().values()) == {"same"}
    assert place.files() == before


def test_where_nothing_was_nothing_is_left(place: Place) -> None:
    place.install()
    assert set(place.remove().values()) == {"removed"}
    assert list(place.folder.iterdir()) == []
    assert place.remove() == {}


def test_files_that_were_there_get_their_values_comments_and_rights_back(place: Place) -> None:
    place.write(place.settings, '{\n    "hooks": {"Stop": ["mine"]},\n    "x": 1\n}\n')
    place.write(place.config, "# mine\n[a]\nb = 1 # one\n")
    os.chmod(place.settings, 0o640)
    before = place.files()
    place.install()
    assert set(place.files()) > set(before)
    assert '\n    "x": 1' in place.settings.read_text()
    assert stat.S_IMODE(place.settings.stat().st_mode) == 0o640
    place.remove()
    assert set(place.files()) == set(before)
    assert json.loads(place.settings.read_text()) == {"hooks": {"Stop": ["mine"]}, "x": 1}
    assert place.config.read_text().rstrip() == "# mine\n[a]\nb = 1 # one"
    assert stat.S_IMODE(place.settings.stat().st_mode) == 0o640


def test_what_neighbours_wrote_meanwhile_stays(place: Place) -> None:
    place.install()
    settings = json.loads(place.settings.read_text())
    settings["hooks"]["Stop"].insert(0, "another's")
    settings["servers"]["other"] = {"command": "x"}
    place.settings.write_text(json.dumps(settings))
    place.write(place.agent.parent / "mine.md", "mine")
    assert set(place.install().values()) == {"same"}
    place.remove()
    assert json.loads(place.settings.read_text()) == {
        "servers": {"other": {"command": "x"}},
        "hooks": {"Stop": ["another's"]},
    }
    assert [one.name for one in place.agent.parent.iterdir()] == ["mine.md"]


def test_what_an_older_version_wrote_is_brought_up_to_date(place: Place) -> None:
    place.install()
    place.entries[0] = place.entries[0]._replace(value={"command": "newer"})  # type: ignore[call-arg]
    place.entries[1] = place.entries[1]._replace(items=("rolecall a", "rolecall b"))  # type: ignore[call-arg]
    place.entries[2] = place.entries[2]._replace(value={"command": "newer"})  # type: ignore[call-arg]
    place.entries[3] = place.entries[3]._replace(text=TEXT.replace("test", "try"))  # type: ignore[call-arg]
    assert set(place.install().values()) == {"changed"}
    assert json.loads(place.settings.read_text()) == {
        "servers": {"rolecall": {"command": "newer"}},
        "hooks": {"Stop": ["rolecall a", "rolecall b"]},
    }
    assert "You try." in place.agent.read_text()
    place.entries[1] = place.entries[1]._replace(items=("rolecall c",))  # type: ignore[call-arg]
    place.install()
    assert json.loads(place.settings.read_text())["hooks"] == {"Stop": ["rolecall c"]}
    place.remove()
    assert list(place.folder.iterdir()) == []


def test_keys_that_somebody_added_to_our_member_stay_when_it_changes(place: Place) -> None:
    place.write(place.settings, '{"servers": {"rolecall": {"command": "old", "env": {"A": "b"}}}}')
    place.install()
    assert json.loads(place.settings.read_text())["servers"]["rolecall"] == {
        "command": "new",
        "env": {"A": "b"},
    }


def test_a_member_of_our_name_that_is_not_ours_is_refused_and_replaced_by_force(place: Place) -> None:
    place.write(place.settings, '{"servers": {"rolecall": {"url": "http://mine"}}}')
    before = place.files()
    with pytest.raises(
        UsageError, match=r"settings\.json: servers\.rolecall exists and is not Rolecall's"
    ) as caught:
        place.install()
    assert "replace it" in caught.value.hint
    assert place.files() == before
    assert place.remove() == {"settings.json": "same"}
    assert place.files() == before
    place.install(force=True)
    assert json.loads(place.settings.read_text())["servers"]["rolecall"] == {"command": "new"}


def test_an_entry_that_has_ours_among_others_stays_and_is_named(place: Place) -> None:
    mixed: list[str] = ["theirs", "rolecall stop"]
    entry = Items(
        str(place.settings), ("hooks", "Stop"), ("rolecall stop",), is_ours, lambda item: item == mixed
    )
    place.entries = [entry]
    place.write(place.settings, json.dumps({"hooks": {"Stop": [mixed]}}))
    [found] = plan_removal(place.wiring)
    assert (found.state, found.note) == ("kept", "an entry of hooks.Stop has ours among others' and stays")


# -- TOML --

SERVER = ("mcp_servers", "rolecall")
TABLE: dict[str, Any] = {
    "command": '/opt/a "b"/ü\x7f',
    "args": ["mcp", "--project", "/x y"],
    "required": True,
    "startup_timeout_sec": 20,
}
PARTS = st.lists(
    st.sampled_from(
        (
            "# a note, not ours\n",
            "\n",
            '[mcp_servers.other]\ncommand = "x"\n',
            "[features] # mine\nweb = true\n",
            "[tui]\n",
            '[text]\nlong = """\n[features]\n"""\n',
            "[[points]]\nx = 1\n",
        )
    ),
    max_size=5,
    unique=True,
)


def toml_entry(path: Path, **fields: Any) -> FileMember:
    value = {**TABLE, **fields}
    return FileMember(str(path), SERVER, value, lambda found: str(found.get("command")).startswith("/opt/"))


@hypothesis.settings(max_examples=50)
@given(PARTS, st.sampled_from(("", 'model = "m"\n')), st.booleans())
def test_values_and_comments_of_a_toml_file_survive_installing_and_removing(
    tmp_path_factory: pytest.TempPathFactory, parts: list[str], first: str, has_last_line_end: bool
) -> None:
    place = Place(tmp_path_factory.mktemp("place"))
    place.entries = [toml_entry(place.config)]
    text = first + "".join(parts)
    text = text if has_last_line_end else text.rstrip("\n")
    place.write(place.config, text)
    before = tomllib.loads(text)
    place.install()
    found = tomllib.loads(place.config.read_text())
    assert found["mcp_servers"].pop("rolecall") == TABLE
    assert found == {"mcp_servers": {}, **before}
    assert place.install() == {"config.toml": "same"}
    place.remove()
    left = place.config.read_text() if place.config.exists() else ""
    assert tomllib.loads(left) == before
    assert ("# a note" in left, "# mine" in left) == ("# a note" in text, "# mine" in text)


REWRITTEN = """\
# mine
model = "m"
[mcp_servers.rolecall]
command = "/opt/x"
startup_timeout_sec = 30.5 # slow disk

[mcp_servers.rolecall.tools.nx_task_add]
approval_mode = "approve"

[mcp_servers.other]
command = "y"
args = [
  ["a"],
]

[hooks.state."/p/hooks.json:stop:0:0"]
trusted_hash = "sha256:0"
"""
"""A file after the host and the user have added to it."""


def test_what_others_added_to_our_toml_table_stays_until_it_is_removed(place: Place) -> None:
    place.entries = [toml_entry(place.config, startup_timeout_sec=30.5)]
    place.write(place.config, REWRITTEN)
    place.install()
    after = tomllib.loads(place.config.read_text())
    server = after["mcp_servers"]["rolecall"]
    assert server == {**TABLE, "startup_timeout_sec": 30.5, "tools": server["tools"]}
    assert "# slow disk" in place.config.read_text()
    place.remove()
    assert tomllib.loads(place.config.read_text()) == {
        "model": "m",
        "mcp_servers": {"other": {"command": "y", "args": [["a"]]}},
        "hooks": {"state": {"/p/hooks.json:stop:0:0": {"trusted_hash": "sha256:0"}}},
    }
    assert "# mine" in place.config.read_text()


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('[mcp_servers.rolecall]\ncommand = "mine"\n', "exists and is not Rolecall's"),
        ("mcp_servers = 1\n", "mcp_servers is not an object"),
        ("[a]\nb = \n", "line 2"),
    ],
)
def test_a_toml_file_that_ours_does_not_fit_into_is_refused(place: Place, text: str, what: str) -> None:
    place.entries = [toml_entry(place.config)]
    place.write(place.config, text)
    with pytest.raises(UsageError, match=what):
        place.install()
    assert place.config.read_text() == text


# -- files of our own --


def test_a_file_of_ours_that_was_changed_by_hand_is_kept_and_named(place: Place) -> None:
    place.install()
    changed = place.agent.read_text().replace("You test.", "You test twice.")
    place.agent.write_text(changed)
    [found] = [one for one in plan_install(place.wiring) if one.note]
    assert (found.path, found.state) == (str(place.agent), "kept")
    place.install()
    assert place.remove()["tester.md"] == "kept"
    assert place.agent.read_text() == changed
    place.install(force=True)
    assert place.agent.read_text() != changed
    place.agent.write_text(changed)
    assert place.remove(force=True)["tester.md"] == "removed"


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
@pytest.mark.parametrize("words", ["wrote this file; a file changed by hand is left alone.", "made this,"])
def test_what_an_older_version_wrote_was_not_changed_by_hand_whatever_its_words_and_line_ends(
    place: Place, line_end: str, words: str
) -> None:
    place.install()
    text = place.agent.read_text().replace("wrote this file; a file changed by hand is left alone.", words)
    place.agent.write_bytes(text.replace("\n", line_end).encode())
    place.entries[3] = place.entries[3]._replace(text=TEXT.replace("test", "try"))  # type: ignore[call-arg]
    assert place.install()["tester.md"] == "changed"
    assert "You try." in place.agent.read_text()


def test_a_file_in_our_place_that_is_not_ours_is_refused_and_never_removed(place: Place) -> None:
    place.write(place.agent, "my own tester")
    with pytest.raises(UsageError, match="exists and is not Rolecall's"):
        place.install()
    assert not place.settings.exists()
    assert place.remove(force=True) == {"tester.md": "same"}
    assert place.agent.read_text() == "my own tester"
    assert place.install(force=True)["tester.md"] == "changed"


def test_a_file_of_ours_that_nothing_asks_for_any_more_goes(place: Place) -> None:
    place.install()
    place.entries.pop()
    assert place.install()["tester.md"] == "removed"
    assert not place.agent.exists()


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("a.md", TEXT, 2),
        ("a.toml", 'a = "b"\n', 1),
        ("a.js", "export const a = 1;\n", 1),
    ],
)
def test_every_kind_of_file_carries_its_sign_where_its_language_has_comments(
    place: Place, name: str, text: str, line: int
) -> None:
    path = place.folder / name
    place.entries = [OwnFile(str(path), text)]
    place.install()
    lines = path.read_text().splitlines(keepends=True)
    assert "rolecall install wrote this file" in lines.pop(line - 1)
    assert "".join(lines) == text


# -- what is refused --


@pytest.mark.parametrize("damage", ['{"a": ', "", "[]", '{"hooks": []}', "\ufeff\ufeff{}"])
def test_a_damaged_file_is_refused_untouched_and_so_is_everything_else(place: Place, damage: str) -> None:
    place.write(place.settings, damage)
    before = place.files()
    with pytest.raises(RolecallError, match=r"settings\.json"):
        place.install()
    assert place.files() == before


def test_every_file_that_is_refused_is_named_at_once(place: Place) -> None:
    place.write(place.settings, "{")
    place.write(place.config, "= 1")
    place.write(place.agent, "mine")
    with pytest.raises(UsageError) as caught:
        place.install()
    for name in ("settings.json", "config.toml", "tester.md"):
        assert name in caught.value.message


def test_bytes_that_are_no_text_are_refused_untouched(place: Place) -> None:
    place.settings.parent.mkdir()
    place.settings.write_bytes(b'{"a": "\xff"}')
    with pytest.raises(UsageError, match="is not UTF-8"):
        place.install()
    assert place.settings.read_bytes() == b'{"a": "\xff"}'


@pytest.fixture
def protected() -> Iterator[Place]:
    """A place that can be write-protected: for root everything can be written, so nobody is who installs there."""
    folder = Path(tempfile.mkdtemp())
    is_root = os.geteuid() == 0
    try:
        if is_root:
            os.chown(folder, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, 0)
        yield Place(folder)
    finally:
        if is_root:
            os.setresuid(0, 0, 0)
        shutil.rmtree(folder)


@pytest.mark.parametrize("what", ["file", "folder"])
def test_what_is_write_protected_is_refused_before_anything_is_written(protected: Place, what: str) -> None:
    protected.write(protected.settings, "{}")
    target = protected.settings if what == "file" else protected.settings.parent
    target.chmod(0o555)
    before = protected.files()
    with pytest.raises(RolecallError, match=r"settings\.json is write-protected"):
        protected.install()
    assert protected.files() == before
    target.chmod(0o755)
    protected.install()
    target.chmod(0o555)
    assert set(protected.install().values()) == {"same"}
    with pytest.raises(RolecallError, match=r"settings\.json is write-protected"):
        protected.remove()


# -- links --


def test_a_link_stays_a_link_and_what_it_leads_to_is_written(place: Place) -> None:
    target = place.write(place.folder / "dotfiles" / "settings.json", '{"x": 1}')
    place.settings.parent.mkdir()
    place.settings.symlink_to(target)
    place.install()
    assert place.settings.is_symlink()
    assert json.loads(target.read_text())["servers"]["rolecall"] == {"command": "new"}
    place.remove()
    assert place.settings.is_symlink()
    assert json.loads(target.read_text()) == {"x": 1}


def test_nothing_of_ours_is_left_behind_a_link(place: Place) -> None:
    place.install()
    kept = place.folder / "dotfiles"
    kept.mkdir()
    for path in (place.settings, place.agent):
        os.rename(path, kept / path.name)
        path.symlink_to(kept / path.name)
    assert set(place.remove().values()) == {"removed"}
    assert [path.name for path in place.folder.rglob("*")] == ["dotfiles"]


@pytest.mark.parametrize("what", ["folder", "file"])
def test_a_link_out_of_the_project_is_not_followed(tmp_path: Path, what: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "settings.json").write_text("{}")
    (tmp_path / "project").mkdir()
    place = Place(tmp_path / "project")
    if what == "folder":
        place.settings.parent.symlink_to(outside)
    else:
        place.settings.parent.mkdir()
        place.settings.symlink_to(outside / "settings.json")
    with pytest.raises(UsageError, match="leads out of the project"):
        place.install()
    assert [(one.name, one.read_text()) for one in outside.iterdir()] == [("settings.json", "{}")]


# -- making --


def test_a_file_that_changed_since_it_was_looked_at_is_not_written_over(place: Place) -> None:
    place.write(place.settings, "{}")
    changes = plan_install(place.wiring)
    place.settings.write_text('{"theirs": 1}')
    with pytest.raises(Conflict, match="has changed meanwhile"):
        file_change.make(changes, roots=[str(place.folder)])
    assert place.settings.read_text() == '{"theirs": 1}'


def test_nothing_is_left_of_a_write_that_failed(place: Place) -> None:
    place.write(place.settings, "{}")
    changes = plan_install(place.wiring)
    place.settings.unlink()
    place.settings.mkdir()
    with pytest.raises(RolecallError):
        file_change.make(changes, roots=[str(place.folder)])
    assert [one.name for one in place.settings.parent.iterdir()] == ["settings.json"]


def test_a_new_file_of_a_private_place_is_readable_by_its_owner_alone(place: Place) -> None:
    file_change.make(plan_install(place.wiring), roots=[], is_private=True)
    assert stat.S_IMODE(place.settings.stat().st_mode) == 0o600


def test_a_name_with_blanks_is_told_from_what_follows_it_in_a_difference() -> None:
    shown = file_change.difference(
        [FileChange("/my project/a.md", b"a\n", b"b\n"), FileChange("/b.md", None, b"b\n")]
    )
    assert [line for line in shown.split("\n") if line.startswith(("---", "+++"))] == [
        *("--- /my project/a.md\t", "+++ /my project/a.md\t", "--- /dev/null", "+++ /b.md")
    ]


def test_the_difference_shows_what_would_be_written_and_writes_nothing(place: Place) -> None:
    place.write(place.config, "a = 1")
    before = place.files()
    shown = file_change.difference(plan_install(place.wiring))
    assert "--- /dev/null\n" in shown
    assert f"+++ {place.agent}\n" in shown
    assert "+You test.\n" in shown
    assert "\\ No newline at end of file" in shown
    assert place.files() == before
