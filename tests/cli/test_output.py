"""How replies are printed: as text everywhere, as JSON where that is asked for."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import resource
import signal
import subprocess
import sys
import time
import unicodedata
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from terminal import shown_by

from rolecall.cli import NOUNS
from rolecall.cli.output import printable, table, write_file
from rolecall.cli.parser import build_parser, verbs_of
from rolecall.errors import UsageError

if TYPE_CHECKING:
    from conftest import Rolecall

WITHOUT_A_REPLY = {"knowledge serve", "web", "mcp", "acp", "hook", "completion", "help"}
"""Servers, and commands whose output is a text that others have a use for."""
COMMANDS = [f"{noun} {verb}".rstrip() for noun in NOUNS for verb in verbs_of(noun)]


def test_a_pipe_gets_the_text_of_a_terminal_and_json_is_asked_for(rolecall: Rolecall, tmp_path: Path) -> None:
    from conftest import SCRIPTS

    node = rolecall.json("cas", "put-text", "hello")["hash"]
    for words in (["cas", "has", node], ["cas", "stats"], ["cas", "schema", "list"], ["config", "list"]):
        command = [str(SCRIPTS / "rolecall"), *words]
        shown = shown_by(command, cwd=tmp_path, env={"ROLECALL_HOME": str(rolecall.home)})
        piped = rolecall(*words, check=0).stdout
        assert piped == shown.replace("\r\n", "\n")
        assert (
            rolecall(*words, "--json", check=0).stdout == rolecall(*words, "--format", "json").stdout != piped
        )


@pytest.mark.parametrize("command", [one for one in COMMANDS if one not in WITHOUT_A_REPLY])
def test_every_command_with_a_reply_takes_json(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        build_parser(command.split()[0]).parse_args([*command.split(), "--help"])
    assert ended.value.code == 0
    assert "--json " in capsys.readouterr().out


def test_the_predecessors_commands_print_json_in_a_pipe_under_its_name(
    rolecall: Rolecall, tmp_path: Path
) -> None:
    piped = rolecall("cas", "put-text", "hello", program="uwf", check=0).stdout
    assert set(json.loads(piped)) == {"hash"}
    for words in (["workflow", "list"], ["thread", "list"], ["cas", "schema", "list"], ["config", "list"]):
        assert json.loads(rolecall(*words, program="uwf", check=0).stdout) is not None
    text = rolecall("cas", "put-text", "hello", "--format", "text", program="uwf", check=0).stdout
    assert text == rolecall("cas", "put-text", "hello", check=0).stdout != piped
    assert rolecall("agents", "list", program="uwf", check=0).stdout.startswith("agent")


# -- colours --

RED, GREEN, END = "\x1b[31m", "\x1b[32m", "\x1b[0m"


@pytest.fixture
def thread(rolecall: Rolecall, tmp_path: Path) -> str:
    """One that has been completed."""
    role = {"goal": "Do it.", "frontmatter": {"type": "object", "properties": {"status": {"enum": ["done"]}}}}
    graph = {"$START": {"_": {"role": "worker", "prompt": "Begin."}}, "worker": {"done": "$END"}}
    flow = {"name": "do-it", "description": "Does it.", "roles": {"worker": role}, "graph": graph}
    (tmp_path / "do-it.yaml").write_text(json.dumps(flow | {"limits": {"steps": 3}}))
    (tmp_path / "script.json").write_text(json.dumps({"roles": {"worker": [{"output": {"status": "done"}}]}}))
    words = ["thread", "start", "./do-it.yaml", "-p", "x", "--agent", "scripted:script.json"]
    ident = str(rolecall.json(*words, cwd=tmp_path)["thread"])
    rolecall("thread", "run", ident, cwd=tmp_path, check=0)
    return ident


def on_terminal(
    rolecall: Rolecall, folder: Path, *words: str, code: int = 0, env: dict[str, str] | None = None
) -> str:
    from conftest import SCRIPTS

    command = [str(SCRIPTS / "rolecall"), *words]
    own = {"ROLECALL_HOME": str(rolecall.home), "TERM": "xterm", "NO_COLOR": "", **(env or {})}
    return shown_by(command, cwd=folder, env=own, code=code).replace("\r\n", "\n")


def test_statuses_signs_and_errors_have_colours_on_a_terminal(
    rolecall: Rolecall, tmp_path: Path, thread: str
) -> None:
    assert f"{GREEN}completed{END}" in on_terminal(rolecall, tmp_path, "thread", "list", "--all")
    fork = rolecall.json("thread", "fork", thread, "--at", "start", cwd=tmp_path)["thread"]
    assert f"{GREEN}✓{END} 1 worker" in on_terminal(rolecall, tmp_path, "thread", "run", fork)
    missing = on_terminal(rolecall, tmp_path, "thread", "show", "nowhere", code=3)
    assert missing.startswith(f"{RED}rolecall:{END} ")


def test_differences_have_colours_on_a_terminal(rolecall: Rolecall, tmp_path: Path, thread: str) -> None:
    other = tmp_path / "other"
    other.mkdir()
    text = (tmp_path / "do-it.yaml").read_text()
    (other / "do-it.yaml").write_text(text.replace("Do it.", "Do it well."))
    shown = on_terminal(rolecall, tmp_path, "workflow", "diff", "./do-it.yaml", "other/do-it.yaml")
    assert f"{RED}-    prompt: Do it.{END}\n{GREEN}+    prompt: Do it well.{END}" in shown


@pytest.mark.parametrize(
    ("words", "env", "is_colored"),
    [
        ([], {}, True),
        ([], {"NO_COLOR": "1"}, False),
        ([], {"NO_COLOR": ""}, True),
        ([], {"TERM": "dumb"}, False),
        (["--color", "never"], {}, False),
        (["--color=always"], {"NO_COLOR": "1"}, True),
    ],
)
def test_who_wants_no_colours_gets_none(
    rolecall: Rolecall, tmp_path: Path, thread: str, words: list[str], env: dict[str, str], is_colored: bool
) -> None:
    shown = on_terminal(rolecall, tmp_path, "thread", "show", thread, *words, env=env)
    assert ("\x1b[" in shown) == is_colored
    assert shown.replace(GREEN, "").replace(END, "") == rolecall("thread", "show", thread).stdout


def test_a_pipe_has_colours_only_when_asked(rolecall: Rolecall, thread: str) -> None:
    assert "\x1b" not in rolecall("thread", "show", thread, check=0).stdout
    assert f"{GREEN}completed{END}" in rolecall("thread", "show", thread, "--color", "always", check=0).stdout
    assert "\x1b" not in rolecall("thread", "show", thread, "--json", "--color", "always", check=0).stdout


# -- characters --


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain text\n\twith lines", "plain text\n\twith lines"),
        ("a\x1b[31mb\rc\x7f\x9b", "a\\u001b[31mb\\u000dc\\u007f\\u009b"),
        ("a\u061cb\u200bc\u00add\ufeffe\u2060f", "a\\u061cb\\u200bc\\u00add\\ufeffe\\u2060f"),
        ("a\u202eb\u2066c\u2028d", "a\\u202eb\\u2066c\\u2028d"),
        ("hi\U000e0041\U000e007f\U000e0001\U000e0000", "hi\\U000e0041\\U000e007f\\U000e0001\\U000e0000"),
        ("a\u200db\u200c", "a\\u200db\\u200c"),
        ("می\u200cخواهم", "می\u200cخواهم"),
        ("👩\u200d💻 ❤\ufe0f 1\ufe0f\u20e3", "👩\u200d💻 ❤\ufe0f 1\ufe0f\u20e3"),
        ("👩\u200d\u200d💻", "👩\\u200d\\u200d💻"),
        ("x\ufe00\ufe01\U000e0100", "x\ufe00\\ufe01\\U000e0100"),
        ("葛\U000e0100城", "葛\U000e0100城"),
        ("\u0600\u06dd ٣", "\u0600\u06dd ٣"),
        ("a\ufdd0b\ufdd5", "a\\ufdd0b\\ufdd5"),
        ("grüße, 日本語, ✓", "grüße, 日本語, ✓"),
    ],
)
def test_what_is_printed_can_be_seen(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_all_of_unicodes_format_characters_are_escaped_but_those_that_are_seen() -> None:
    formats = [chr(code) for code in range(sys.maxunicode + 1) if unicodedata.category(chr(code)) == "Cf"]
    kept = [letter for letter in formats if printable(f"a{letter}b") == f"a{letter}b"]
    assert [unicodedata.name(letter) for letter in kept if ord(letter) < 0x110BD] == [
        "ARABIC NUMBER SIGN", "ARABIC SIGN SANAH", "ARABIC FOOTNOTE MARKER", "ARABIC SIGN SAFHA",
        "ARABIC SIGN SAMVAT", "ARABIC NUMBER MARK ABOVE", "ARABIC END OF AYAH", "SYRIAC ABBREVIATION MARK",
        "ARABIC POUND MARK ABOVE", "ARABIC PIASTRE MARK ABOVE", "ARABIC DISPUTED END OF AYAH",
    ]  # fmt: skip
    assert [letter for letter in kept if ord(letter) >= 0x110BD] == ["\U000110bd", "\U000110cd"]


# -- tables --


def test_a_table_is_no_wider_than_the_terminal_and_tells_rows_apart() -> None:
    shared = "Fix the login page of the shop for customers who have no account: "
    rows = [
        ("01AB", "completed", shared + "header"),
        ("01CD", "idle", shared + "footer"),
        ("01EF", "idle", "x"),
    ]
    lines = table(rows, ("id", "status", "title")).splitlines()
    assert max(map(len, (line.translate(UNMARKED) for line in lines))) <= 80
    assert [line.rpartition(" ")[2] for line in lines] == ["title", "header", "footer", "x"]
    assert all("Fix the login" in line and "…" in line for line in lines[1:3])


def test_rows_that_differ_in_several_places_are_told_apart() -> None:
    titles = [f"{'a' * 80}{one}{'b' * 80}{other}" for one in "xy" for other in "pq"]
    lines = table([(title,) for title in titles], ("title",)).splitlines()
    assert len(set(lines)) == 5
    assert max(map(len, lines)) <= 80


def test_ids_and_numbers_are_never_cut_and_columns_can_be_spared() -> None:
    rows = [("01M7FGRCJE30D2T1QKZ97R6Z8C", 1234567, "a" * 50, "b" * 50, "c" * 50)]
    headings = ("thread", "steps", "one", "two", "title")
    whole = table(rows, headings).splitlines()[1]
    assert whole.startswith("01M7FGRCJE30D2T1QKZ97R6Z8C  1,234,567  ") and len(whole) <= 80
    spared = table(rows, headings, ("one", "two")).splitlines()
    assert spared[0].split() == ["thread", "steps", "two", "title"] and spared[1].endswith("c" * 19 + "…")
    narrow = [("01M7FGRCJE30D2T1QKZ97R6Z8C", *[10**11] * 3, "05:38:08")]
    spared = table(narrow, ("id", "one", "two", "three", "began"), ("began", "three")).splitlines()
    assert spared[0].split() == ["id", "one", "two", "three"] and len(spared[1]) <= 80


def test_a_table_that_folds_shows_the_whole_of_its_last_column() -> None:
    rows = [
        (1, "ready", "Read both formats and prefer the new one " * 4),
        (2, "ready", "日本語" * 20),
        (3, "ready", ""),
    ]
    lines = table(rows, ("id", "status", "task"), folds=True).translate(UNMARKED).splitlines()
    assert (
        max(sum(2 if unicodedata.east_asian_width(one) == "W" else 1 for one in line) for line in lines) <= 80
    )
    assert [line[:2] for line in lines] == ["id", " 1", "  ", "  ", " 2", "  ", " 3"]
    assert "…" not in "".join(lines) and " ".join(lines).count("formats") == 4


def test_wide_letters_and_escapes_count_as_what_they_take() -> None:
    rows = [("日本語" * 20, "x"), ("a\x1b[31m" * 20, "y")]
    for line in table(rows, ("title", "n")).splitlines()[1:]:
        assert sum(2 if unicodedata.east_asian_width(letter) == "W" else 1 for letter in line) == 80


def test_a_long_table_takes_time_by_its_length() -> None:
    rows = [
        ("x" * 20_000_000,),
        *((f"Task {number} " + "with a long title " * 10,) for number in range(20_000)),
    ]
    begun = time.process_time()
    assert len(set(table(rows, ("title",)).splitlines())) == 20_002
    assert time.process_time() - begun < 15


UNMARKED = dict.fromkeys(range(0xFDD0, 0xFDF0))


def test_a_pipe_is_as_wide_as_it_is_told(rolecall: Rolecall, tmp_path: Path, thread: str) -> None:
    for words in (
        ["thread", "show", thread],
        ["agents", "list"],
        ["agents", "list", "--restrictions"],
        ["doctor"],
    ):
        piped = rolecall(*words, cwd=tmp_path).stdout
        code = rolecall(*words, cwd=tmp_path).returncode
        shown = on_terminal(rolecall, tmp_path, *words, code=code, env={"NO_COLOR": "1"})
        assert piped == shown
    tables = rolecall("agents", "list").stdout + rolecall("agents", "list", "--restrictions").stdout
    assert max(map(len, tables.splitlines())) <= 80
    wide = rolecall("agents", "list", env={"COLUMNS": "200"}).stdout
    assert 80 < max(map(len, wide.splitlines())) <= 200


def test_in_a_pipe_nothing_of_a_table_is_cut(rolecall: Rolecall, tmp_path: Path, thread: str) -> None:
    title = "Move the storage from files to the database without a stop, and say when it is done"
    words = ["thread", "start", "./do-it.yaml", "-p", title, "--agent", "scripted:script.json"]
    rolecall(*words, cwd=tmp_path, check=0)
    for columns in ("", "0", "wide"):
        shown = rolecall("thread", "list", "--all", cwd=tmp_path, env={"COLUMNS": columns}, check=0).stdout
        assert shown.splitlines()[0].split()[-2:] == ["updated", "title"]
        assert shown.splitlines()[1].endswith(f"  {title}") and "…" not in shown
    cut = rolecall("thread", "list", "--all", cwd=tmp_path, env={"COLUMNS": "60"}, check=0).stdout
    assert max(map(len, cut.splitlines())) <= 60


# -- short ids, and a list that is watched --


def test_the_short_id_of_a_list_names_its_thread(rolecall: Rolecall, tmp_path: Path, thread: str) -> None:
    row = rolecall("thread", "list", "--all", cwd=tmp_path, check=0).stdout.splitlines()[1]
    short = row.split()[0]
    assert thread.endswith(short) and 6 <= len(short) < 26
    assert rolecall.json("thread", "show", short)["thread"] == thread
    assert rolecall.json("thread", "list", "--all")[0]["thread"] == thread
    assert rolecall.json("thread", "show", thread[9:14].lower())["thread"] == thread
    assert rolecall.json("thread", "show", thread[-3:])["thread"] == thread
    errors = rolecall("thread", "show", thread[-2:], check=2).stderr
    assert f"{thread[-2:]!r} is too short for a thread\n  Give at least 3 characters of its id." in errors
    other = rolecall.json("thread", "fork", thread, cwd=tmp_path)["thread"]
    shared = thread[:5]
    assert other.startswith(shared)
    assert "matches several threads" in rolecall("thread", "show", shared, check=2).stderr


def test_a_list_that_is_watched_is_printed_again_when_it_changes(
    rolecall: Rolecall, tmp_path: Path, thread: str
) -> None:
    from conftest import SCRIPTS

    command = [str(SCRIPTS / "rolecall"), "thread", "list", "--all", "--watch"]
    env = {**os.environ, "ROLECALL_HOME": str(rolecall.home)}
    with subprocess.Popen([*command, "--json"], stdout=subprocess.PIPE, env=env, text=True) as child:
        assert child.stdout is not None
        assert [entry["thread"] for entry in json.loads(child.stdout.readline())["threads"]] == [thread]
        fork = rolecall.json("thread", "fork", thread, cwd=tmp_path)["thread"]
        assert [entry["thread"] for entry in json.loads(child.stdout.readline())["threads"]] == [fork, thread]
        child.send_signal(signal.SIGINT)
        assert child.wait(60) == 0


def test_on_a_terminal_a_watched_list_is_drawn_over(rolecall: Rolecall, thread: str) -> None:
    from conftest import SCRIPTS

    command = [str(SCRIPTS / "rolecall"), "thread", "list", "--all", "--watch"]
    mine, theirs = pty.openpty()
    env = {**os.environ, "ROLECALL_HOME": str(rolecall.home)}
    child = subprocess.Popen(command, stdout=theirs, stderr=theirs, env=env)
    os.close(theirs)
    seen = b""
    while seen.count(b"\033[H\033[J") < 2:
        seen += os.read(mine, 4096)
    child.send_signal(signal.SIGINT)
    with contextlib.suppress(OSError):  # how Linux says that nobody holds the other end any more
        while os.read(mine, 4096):
            pass
    os.close(mine)
    assert child.wait(60) == 0
    assert seen.count(b"thread  workflow  status") >= 1


# -- files --


def test_a_file_that_cannot_be_written_whole_stays_as_it_was(tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    report.write_text("before")
    report.chmod(0o640)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        for path, is_new in ((report, False), (tmp_path / "new.html", True)):
            with pytest.raises(UsageError, match="cannot be written: File too large"):
                write_file(str(path), b"x" * 10_000, is_new=is_new)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    assert report.read_text() == "before"
    (tmp_path / "link.html").symlink_to(report)
    write_file(str(tmp_path / "link.html"), b"after")
    assert report.read_text() == "after" and report.stat().st_mode & 0o777 == 0o640
    write_file("/dev/null", b"x")
    assert Path("/dev/null").is_char_device()
