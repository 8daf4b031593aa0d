"""The built-in agent's tools: confinement, bounds, what the model is told, which tools a role is offered."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rolecall.agents import filesearch, process, toolbox
from rolecall.agents.confined import LARGEST_FILE
from rolecall.agents.contract import Recorder, context_for
from rolecall.agents.sandbox import Policy, find_layers
from rolecall.agents.toolbox import DENIES, TOOLS, ModelToolbox, ToolOutput, offer
from rolecall.settings import capabilities
from rolecall.store.schema import pattern_test

ENV = {"PATH": "/usr/local/bin:/usr/bin:/bin", "ROLE_SECRET": "handed-on"}


class Bench:
    """A work folder with a secret beside it, and the tools on it."""

    def __init__(self, tmp_path: Path) -> None:
        self.work = tmp_path / "work"
        self.work.mkdir()
        self.outside = tmp_path / "outside"
        self.outside.mkdir()
        (self.outside / "secret.txt").write_text("the secret")
        self.recorder = Recorder()
        self.touched: list[str] = []
        self.sandbox: Policy | None = None

    def use(self, name: str, *words: str, **arguments: Any) -> ToolOutput:
        async def scene() -> ToolOutput:
            context = context_for(self.work, self.recorder, env=ENV)
            context = replace(context, capabilities=words, sandbox=self.sandbox)
            return await asyncio.wait_for(ModelToolbox(context, self.touched.append).use(name, arguments), 60)

        return asyncio.run(scene())

    def text(self, name: str, **arguments: Any) -> str:
        result = self.use(name, **arguments)
        assert not result.is_error, result.text
        return result.text

    def refusal(self, name: str, **arguments: Any) -> str:
        result = self.use(name, **arguments)
        assert result.is_error, result.text
        return result.text


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


# -- files --


def test_a_file_is_written_read_edited_and_deleted(bench: Bench) -> None:
    assert "created" in bench.text("write_file", path="deep/er/a.txt", content="eins\nzwei ü\n")
    assert bench.text("read_file", path="deep/er/a.txt") == "eins\nzwei ü\n"
    assert "line 2" in bench.text("edit_file", path="./deep/er/a.txt", old="zwei", new="2")
    assert (bench.work / "deep/er/a.txt").read_text() == "eins\n2 ü\n"
    assert "replaced" in bench.text("write_file", path=str(bench.work / "deep/er/a.txt"), content="")
    bench.text("delete_file", path="deep/../deep/er/a.txt")
    assert os.listdir(bench.work / "deep/er") == []
    assert len(bench.touched) == 4


def test_a_file_keeps_its_mode_and_its_line_ends(bench: Bench) -> None:
    script = bench.work / "run.sh"
    script.write_bytes(b"#!/bin/sh\r\necho a\r\n")
    script.chmod(0o750)
    bench.text("edit_file", path="run.sh", old="echo a", new="echo b")
    assert (script.read_bytes(), script.stat().st_mode & 0o777) == (b"#!/bin/sh\r\necho b\r\n", 0o750)


def test_a_long_file_is_read_in_pieces_that_name_their_lines(bench: Bench) -> None:
    (bench.work / "long.txt").write_text("".join(f"line {number}\n" for number in range(1, 5001)))
    first = bench.text("read_file", path="long.txt")
    assert first.startswith("[lines 1 to 2000 of 5001]\nline 1\n")
    assert bench.text("read_file", path="long.txt", first_line=4000, lines=2) == (
        "[lines 4000 to 4001 of 5001]\nline 4000\nline 4001"
    )
    (bench.work / "wide.txt").write_text(("x" * 999 + "\n") * 100)
    wide = bench.text("read_file", path="wide.txt")
    assert wide.startswith("[lines 1 to 39 of 101]")
    assert len(wide) <= toolbox.LONGEST_RESULT


@pytest.mark.parametrize(
    ("old", "said"), [("absent", "does not occur"), ("twice", "occurs 2 times"), ("", "old")]
)
def test_an_edit_needs_a_piece_that_occurs_exactly_once(bench: Bench, old: str, said: str) -> None:
    (bench.work / "a.txt").write_text("twice twice")
    assert said in bench.refusal("edit_file", path="a.txt", old=old, new="x")
    assert (bench.work / "a.txt").read_text() == "twice twice"
    assert bench.touched == []


def test_what_is_no_text_or_too_large_is_not_read(bench: Bench) -> None:
    (bench.work / "image").write_bytes(b"\x89PNG\0\0")
    (bench.work / "latin").write_bytes(b"caf\xe9")
    with open(bench.work / "huge", "wb") as file:
        file.truncate(LARGEST_FILE + 1)
    os.mkfifo(bench.work / "pipe")
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(bench.work / "socket"))
    assert bench.refusal("read_file", path="socket")
    assert "not a text file" in bench.refusal("read_file", path="image")
    assert bench.text("read_file", path="latin") == "caf�"
    assert "utf-8" in bench.refusal("edit_file", path="latin", old="caf", new="x")
    assert "too large" in bench.refusal("read_file", path="huge")
    assert "not a regular file" in bench.refusal("read_file", path="pipe")
    assert "not a regular file" in bench.refusal("write_file", path="pipe", content="x")
    (bench.work / "sub").mkdir()
    assert "is a folder" in bench.refusal("read_file", path="sub")


# -- confinement --


def attacks(bench: Bench) -> list[str]:
    """Paths that lead outside: by name, by a link, by a folder that is a link, by a link to a link."""
    (bench.work / "link.txt").symlink_to(bench.outside / "secret.txt")
    (bench.work / "folder").symlink_to(bench.outside)
    (bench.work / "again").symlink_to("folder")
    (bench.work / "up").symlink_to("..")
    (bench.work / "dangling").symlink_to(bench.outside / "new.txt")
    return [
        "../outside/secret.txt",
        str(bench.outside / "secret.txt"),
        "link.txt",
        "folder/secret.txt",
        "again/secret.txt",
        "up/outside/secret.txt",
        "folder/../secret.txt",
        "dangling",
        f"{bench.work}/../outside/secret.txt",
        f"{bench.work}-beside/secret.txt",
        "/etc/passwd",
    ]


def test_no_path_leads_out_of_the_work_folder(bench: Bench) -> None:
    for path in attacks(bench):
        for name, more in (
            ("read_file", {}),
            ("write_file", {"content": "x"}),
            ("edit_file", {"old": "secret", "new": "x"}),
        ):
            assert "outside the work folder" in bench.refusal(name, path=path, **more), (name, path)
    assert (bench.outside / "secret.txt").read_text() == "the secret"
    assert os.listdir(bench.outside) == ["secret.txt"]
    assert bench.touched == []


def test_deleting_a_link_deletes_the_link_and_nothing_else(bench: Bench) -> None:
    attacks(bench)
    for path in ("../outside/secret.txt", "folder/secret.txt", "up/outside/secret.txt"):
        assert "outside the work folder" in bench.refusal("delete_file", path=path)
    for path in ("link.txt", "folder", "dangling"):
        bench.text("delete_file", path=path)
        assert not (bench.work / path).is_symlink()
    (bench.work / "sub").mkdir()
    assert "is a folder" in bench.refusal("delete_file", path="sub/")
    assert os.listdir(bench.outside) == ["secret.txt"]


@pytest.mark.parametrize("path", ["", " ", "a\0b", ".", "..", "x/..", "/", "a" * 300, "\ud800"])
def test_what_is_no_file_name_is_told_and_harms_nothing(bench: Bench, path: str) -> None:
    for name, more in (("read_file", {}), ("write_file", {"content": "x"}), ("delete_file", {})):
        assert bench.refusal(name, path=path, **more)
    assert os.listdir(bench.work) == []


def test_links_within_the_work_folder_are_followed(bench: Bench) -> None:
    (bench.work / "real").mkdir()
    (bench.work / "real/a.txt").write_text("a")
    (bench.work / "short").symlink_to("real/a.txt")
    bench.text("write_file", path="short", content="b")
    assert (bench.work / "short").is_symlink()
    assert (bench.work / "real/a.txt").read_text() == "b"


def test_a_hard_link_to_a_file_outside_is_cut_by_a_write(bench: Bench) -> None:
    os.link(bench.outside / "secret.txt", bench.work / "hard.txt")
    bench.text("write_file", path="hard.txt", content="mine")
    assert (bench.outside / "secret.txt").read_text() == "the secret"


def test_gits_own_files_can_be_read_and_not_changed(bench: Bench) -> None:
    (bench.work / ".git/hooks").mkdir(parents=True)
    (bench.work / ".git/config").write_text("[core]")
    (bench.work / "way").symlink_to(".git")
    assert bench.text("read_file", path=".git/config") == "[core]"
    for path in (".git/config", ".git/hooks/pre-commit", "way/config", ".GIT/config", "sub/.git"):
        assert "belongs to git" in bench.refusal("write_file", path=path, content="x")
    assert "belongs to git" in bench.refusal("delete_file", path="way/config")
    assert (bench.work / ".git/config").read_text() == "[core]"


# -- looking around --


def test_files_are_listed_by_pattern_without_following_links(bench: Bench) -> None:
    attacks(bench)
    for path in ("a.py", "src/b.py", "src/deep/c.py", ".git/x.py", "src/[d].txt"):
        (bench.work / path).parent.mkdir(parents=True, exist_ok=True)
        (bench.work / path).write_text("")
    listed = {
        pattern: bench.text("list_files", pattern=pattern).split("\n")
        for pattern in ("**/*.py", "src/*", "src/**", "./*.py", "**/[bc].py", "src/[!d]*.py", "**/c.?y")
    }
    assert listed == {
        "**/*.py": ["a.py", "src/b.py", "src/deep/c.py"],
        "src/*": ["src/[d].txt", "src/b.py", "src/deep/"],
        "src/**": ["src/[d].txt", "src/b.py", "src/deep/", "src/deep/c.py"],
        "./*.py": ["a.py"],
        "**/[bc].py": ["src/b.py", "src/deep/c.py"],
        "src/[!d]*.py": ["src/b.py"],
        "**/c.?y": ["src/deep/c.py"],
    }
    assert "secret" not in bench.text("list_files", pattern="**/*")
    assert {"a.py", "src/", "folder/"} <= set(bench.text("list_files").split("\n"))
    assert bench.text("list_files", pattern="*.rs") == "[nothing matches]"
    assert "not a file name pattern" in bench.refusal("list_files", pattern="[z-a]")


def test_a_pattern_of_many_wildcards_does_not_run_away(bench: Bench) -> None:
    (bench.work / ("a" * 200)).write_text("")
    assert bench.text("list_files", pattern="**/" * 20 + "*a" * 20 + "b") == "[nothing matches]"


def test_a_listing_is_bounded_and_says_so(bench: Bench) -> None:
    for number in range(toolbox._MOST_LISTED + 1):
        (bench.work / f"{number:05}").touch()
    lines = bench.text("list_files").split("\n")
    assert len(lines) == toolbox._MOST_LISTED + 1
    assert "narrow the pattern" in lines[-1]


def test_a_search_names_file_and_line_and_stays_inside(bench: Bench) -> None:
    attacks(bench)
    (bench.work / "a.txt").write_text("nothing\nthe  secret of ü\n")
    (bench.work / "sub").mkdir()
    (bench.work / "sub/b.md").write_text("THE SECRET\n" + "y" * 1000 + "the secret")
    (bench.work / "blob").write_bytes(b"\0the secret")
    assert bench.text("search", pattern=r"the\s+secret") == (
        f"a.txt:2: the  secret of ü\nsub/b.md:2: {'y' * 300}\n"
    )
    assert bench.text("search", pattern="(?i)^the secret", files="**/*.md") == "sub/b.md:1: THE SECRET\n"
    assert bench.text("search", pattern="absent") == "[nothing matches]"
    assert "not a regular expression" in bench.refusal("search", pattern="(")


def test_a_search_is_bounded_in_matches_and_sizes(bench: Bench) -> None:
    (bench.work / "many").write_text("hit\n" * 1000)
    lines = bench.text("search", pattern="hit").splitlines()
    assert len(lines) == filesearch.MOST_MATCHES + 1
    assert "only the first" in lines[-1]
    with open(bench.work / "large", "wb") as file:
        file.truncate(filesearch.LARGEST_SEARCHED + 1)
    assert "1 files of more than" in bench.text("search", pattern="absent")


@pytest.mark.parametrize("pattern", ["first|^(a|a)*$", "first|^(a+)+b$", r"first|^(a+)+\1b$"])
def test_a_pattern_with_endless_ways_to_match_is_answered(bench: Bench, pattern: str) -> None:
    (bench.work / "a.txt").write_text("first aaa\n" + "a" * 60 + "!")
    assert bench.text("search", pattern=pattern) == "a.txt:1: first aaa\n"


def test_a_search_ends_in_the_middle_of_a_file_whose_lines_take_long(bench: Bench) -> None:
    (bench.work / "a.txt").write_text(("a" * 60 + "!\n") * 30)
    found = filesearch.matches(str(bench.work), pattern_test(r"^(a|a)*\1b"), pattern_test(""), 0.3)
    assert list(found) == ["[there was too much to search; narrow the files]"]


# -- commands --


def test_a_command_is_told_with_its_status_and_both_outputs(bench: Bench) -> None:
    code = "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"
    assert (
        bench.text("run_command", argv=[sys.executable, "-c", code]) == "[exit status 3]\nout\n[stderr]\nerr"
    )
    assert bench.text("run_command", shell="pwd | cat; echo $ROLE_SECRET; echo $#") == (
        f"[exit status 0]\n{bench.work}\nhanded-on\n0"
    )
    assert [set(body) for body in bench.recorder.bodies("process")] == [{"pid", "run"}] * 2


def test_a_command_gets_the_environment_of_the_context_and_nothing_else(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OURS_ALONE", "1")
    names = {line.partition("=")[0] for line in bench.text("run_command", argv=["env"]).splitlines()[1:]}
    assert names == {*ENV, "PWD", process.RUN_VARIABLE}


def test_a_command_that_takes_too_long_is_ended_with_all_it_started(bench: Bench) -> None:
    text = bench.text("run_command", shell="echo on; tail -f /dev/null & tail -f /dev/null", seconds=0.3)
    assert text == "[ended after 0.3 s]\non"
    assert process.survivors(bench.recorder.bodies("process")[0]["run"]) == []


def test_what_a_command_leaves_running_is_ended_with_it(bench: Bench) -> None:
    assert bench.text("run_command", shell="setsid tail -f /dev/null & echo done") == "[exit status 0]\ndone"
    assert process.survivors(bench.recorder.bodies("process")[0]["run"]) == []


def test_the_output_of_a_command_is_bounded(bench: Bench) -> None:
    text = bench.text("run_command", shell="yes | head -c 5000000; yes no | head -c 5000000 >&2")
    assert len(text) <= toolbox.LONGEST_RESULT
    assert re.search(r"… \d+ characters …", text)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "either `argv` or `shell`"),
        ({"argv": ["ls"], "shell": "ls"}, "either `argv` or `shell`"),
        ({"argv": ["no-such-program"]}, "'no-such-program' was not found"),
        ({"argv": []}, "argv"),
        ({"argv": "ls"}, "argv"),
        ({"argv": ["a\0b"]}, "was not found"),
        ({"shell": "true", "seconds": 0}, "seconds"),
        ({"shell": "true", "wait": 1}, "wait"),
    ],
)
def test_a_wrong_command_is_explained_to_the_model(
    bench: Bench, arguments: dict[str, Any], said: str
) -> None:
    assert re.search(said, bench.refusal("run_command", **arguments))


# -- which tools --

ALL = [tool.name for tool in TOOLS]


@pytest.mark.parametrize(
    ("words", "missing"),
    [
        ((), set()),
        (("anything", "else"), set()),
        (("no_file_edit",), {"write_file", "edit_file", "delete_file"}),
        (("no_shell_exec",), {"run_command"}),
        (("read_only",), {"write_file", "edit_file", "delete_file", "run_command"}),
        (("no_task_create", "no_task_update"), set()),
        (("no_file_edit", "no_shell_exec"), {"write_file", "edit_file", "delete_file", "run_command"}),
    ],
)
def test_a_tool_that_a_restriction_denies_is_not_offered_and_cannot_be_used(
    bench: Bench, words: tuple[str, ...], missing: set[str]
) -> None:
    assert [tool.name for tool in offer(words)] == [name for name in ALL if name not in missing]
    for name in missing:
        result = bench.use(name, *words, path="x", content="x")
        assert (result.is_error, "unknown tool" in result.text) == (True, True)
    assert os.listdir(bench.work) == []


def test_every_class_of_actions_is_denied_by_a_row_of_the_table() -> None:
    assert set(DENIES) == set(capabilities.CLASSES)
    assert {name for names in DENIES.values() for name in names} == set(ALL) - {
        "read_file",
        "list_files",
        "search",
    }


def test_a_wrong_call_is_explained_to_the_model(bench: Bench) -> None:
    assert "unknown tool 'bash'" in bench.refusal("bash", command="ls")
    assert "path" in bench.refusal("read_file")
    assert "first_line" in bench.refusal("read_file", path="x", first_line=0)
    assert "No such file" in bench.refusal("read_file", path="x")

    async def scene() -> ToolOutput:
        box = ModelToolbox(context_for(bench.work, bench.recorder, env=ENV), bench.touched.append)
        return await box.use("read_file", "not an object")

    assert asyncio.run(scene()).is_error


# -- in a sandbox --


def test_what_a_sandbox_forbids_the_tools_of_files_refuse_too(bench: Bench) -> None:
    (bench.work / "hidden").mkdir()
    (bench.work / "hidden/key.txt").write_text("the key")
    (bench.work / "a.txt").write_text("the text")
    bench.sandbox = Policy(hide=(str(bench.work / "hidden"),))
    assert "cannot be changed" in bench.refusal("write_file", path="b.txt", content="x")
    assert "cannot be changed" in bench.refusal("edit_file", path="a.txt", old="text", new="x")
    assert "cannot be changed" in bench.refusal("delete_file", path="a.txt")
    assert "hidden from this role" in bench.refusal("read_file", path="hidden/key.txt")
    assert bench.text("search", pattern="the") == "a.txt:1: the text\n"
    assert bench.text("list_files", pattern="**/*") == "a.txt"
    bench.sandbox = Policy(write=(str(bench.work),), protect=(str(bench.work / "a.txt"),))
    assert "cannot be changed" in bench.refusal("delete_file", path="a.txt")
    assert "was created" in bench.text("write_file", path="b.txt", content="x")


@pytest.mark.skipif(not find_layers().can_restrict_files, reason="no sandbox can be made here")
def test_a_role_that_may_only_read_may_run_commands_in_a_sandbox(bench: Bench) -> None:
    (bench.work / "a.txt").write_text("the text")
    bench.sandbox = Policy(layers=find_layers())
    result = bench.use("run_command", "read_only", shell="echo x > a.txt; cat a.txt")
    assert "the text" in result.text
    assert (bench.work / "a.txt").read_text() == "the text"
    assert "write_file" in bench.use("write_file", "read_only", path="a.txt", content="x").text
    assert bench.sandbox.enforced
