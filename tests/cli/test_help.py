"""Every command has help with an example, and stands in the documentation."""

from __future__ import annotations

import contextlib
import io
import re
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rolecall.__main__ import main
from rolecall.cli import MODULES, NOUNS, SCREEN, Verb
from rolecall.cli.parser import verbs_of

if TYPE_CHECKING:
    from conftest import Rolecall

CLI_PAGE = Path(__file__).parents[2] / "docs" / "cli.md"


def commands() -> list[str]:
    """Everything that can be typed after `rolecall`, groups of verbs included."""
    found = list[str]()
    for noun in NOUNS:
        found.append(noun)
        for verb in verbs_of(noun):
            words = verb.split()
            found += [" ".join([noun, *words[: count + 1]]) for count in range(len(words))]
    return list(dict.fromkeys(found))


def help_of(command: str) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), pytest.raises(SystemExit) as caught:
        main([*command.split(), "--help"])
    assert caught.value.code == 0
    return out.getvalue()


@pytest.mark.parametrize("command", commands())
def test_help_shows_usage_and_examples_of_this_command(command: str) -> None:
    text = help_of(command)
    assert text.startswith(f"usage: rolecall {command}".rstrip())
    _, found, block = text.partition("\nexamples:\n")
    assert found
    lines = [line.strip() for line in block.strip().splitlines()]
    assert lines
    for line in lines:
        assert re.search(r"(^|[ |(;])rolecall ", line), line
        assert f"rolecall {command}".rstrip() in line, line


def test_every_verb_is_found_under_its_noun() -> None:
    homes = {noun: set(MODULES.get(noun) or {module}) for noun, (module, _) in NOUNS.items()}
    for module in sorted(set().union(*homes.values())):
        for one in vars(import_module(module)).values():
            if isinstance(one, Verb):
                noun, _, verb = one.name.partition(" ")
                assert module in homes.get(noun, ()), (
                    f"{module}: {one.name!r} does not begin with a noun of it"
                )
                words = MODULES.get(noun, {}).get(module) or [verb.split(" ")[0]]
                assert verb.split(" ")[0] in words, f"{one.name!r} is not in MODULES under {module}"


@pytest.mark.parametrize("noun", NOUNS)
def test_help_of_a_noun_lists_its_verbs(noun: str) -> None:
    text = help_of(noun)
    for verb in verbs_of(noun):
        assert verb.split(" ")[0] in text


def test_help_fits_a_screen_and_help_all_lists_every_command(rolecall: Rolecall) -> None:
    lines = rolecall("--help", check=0).stdout.splitlines()
    assert len(lines) < 24 and max(map(len, lines)) <= 80
    assert sum(map(len, SCREEN.values())) == 10
    for group, known in SCREEN.items():
        assert any(line.startswith(f"{group}  ") for line in lines)
        for command in known:
            noun, _, verb = command.partition(" ")
            assert noun not in NOUNS or (
                (not verb or verb in verbs_of(noun)) and any(f"  {command} " in line for line in lines)
            )
    everything = rolecall("help", "all", check=0).stdout
    assert all(f"    {noun} " in everything and line in everything for noun, (_, line) in NOUNS.items())


def test_every_command_stands_in_the_documentation() -> None:
    page = CLI_PAGE.read_text(encoding="utf-8")
    wanted = [f"{noun} {verb}".rstrip() for noun in NOUNS for verb in verbs_of(noun)]
    missing = [command for command in wanted if not re.search(rf"`(rolecall )?{command}[ `]", page)]
    assert missing == []


@pytest.mark.parametrize(
    ("command", "instead"),
    [
        ("thread exec 01M7", "rolecall thread step"),
        ("thread stop 01M7", "rolecall serve stop"),
        ("thread cancel 01M7", "rolecall thread kill"),
        ("thread running", "rolecall thread list --status running"),
        ("step list 01M7", "rolecall thread steps"),
        ("step show 95ST", "rolecall thread step-details"),
        ("step read 95ST --quota 100", "rolecall thread step-details"),
        ("step fork 95ST", "rolecall thread fork"),
        ("step", "rolecall thread steps"),
        ("log list", "rolecall serve logs"),
    ],
)
def test_a_command_of_uwf_says_its_new_name(rolecall: Rolecall, command: str, instead: str) -> None:
    refused = rolecall(*command.split(), check=2)
    assert "unknown command" in refused.stderr and instead in refused.stderr
    words = instead.split()[1:]
    listed = rolecall(*words[: 1 + (words[0] != "run")], "--help", check=0)
    assert "usage" in listed.stdout


# -- finding one's way --


@pytest.mark.parametrize("words", [["help"], ["-h"]])
def test_help_has_several_names(rolecall: Rolecall, words: list[str]) -> None:
    done = rolecall(*words, check=0)
    assert done.stdout == rolecall("--help", check=0).stdout
    assert done.stderr == ""


def test_the_program_alone_says_where_one_is(rolecall: Rolecall, tmp_path: Path) -> None:
    done = rolecall(cwd=tmp_path, check=0)
    assert (done.stdout, done.stderr) == (rolecall("status", cwd=tmp_path, check=0).stdout, "")


@pytest.mark.parametrize("words", [["thread"], ["help", "thread"]])
def test_a_command_alone_lists_its_verbs(rolecall: Rolecall, words: list[str]) -> None:
    done = rolecall(*words, check=0)
    assert done.stdout == rolecall("thread", "--help", check=0).stdout
    assert re.search(r"\n    list +list threads", done.stdout)


def test_help_explains_a_verb_and_a_group_of_verbs(rolecall: Rolecall) -> None:
    assert rolecall("help", "thread", "start").stdout == rolecall("thread", "start", "--help").stdout
    assert "usage: rolecall thread folder" in rolecall("thread", "folder", check=0).stdout


def test_version_is_a_command_and_an_option(rolecall: Rolecall) -> None:
    said = rolecall("--version", check=0).stdout
    assert rolecall("version", check=0).stdout == said
    assert said == f"rolecall {rolecall.json('version')['version']}\n"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("thraed list", "unknown command 'thraed'\n  Did you mean `rolecall thread`?"),
        ("thread lst", "unknown command 'thread lst'\n  Did you mean `rolecall thread list`?"),
        ("thread folder sow", "Did you mean `rolecall thread folder show`?"),
        ("serve staus", "Did you mean `rolecall serve status`?"),
        ("help thraed", "Did you mean `rolecall thread`?"),
        ("zzzz", "unknown command 'zzzz'\n  `rolecall --help` lists the commands."),
        ("thread start x --promt y", "unknown option --promt; did you mean --prompt?"),
        ("cas get x --fromat=json", "unknown option --fromat; did you mean --format?"),
        ("cas get x --zzzz", "unknown option --zzzz\n  `rolecall cas get --help` shows the options."),
        ("thread start", "the following arguments are required: WORKFLOW, -p/--prompt\n  usage: "),
    ],
)
def test_what_is_misspelt_is_answered_with_what_was_meant(rolecall: Rolecall, words: str, told: str) -> None:
    done = rolecall(*words.split(), check=2)
    assert told in done.stderr
    assert done.stdout == ""


def test_an_option_by_its_old_name_works_with_a_note(rolecall: Rolecall, tmp_path: Path) -> None:
    node = rolecall.json("cas", "put-text", "hello")["hash"]
    for words in (["cas", "walk", node, "--limit", "1"], ["thread", "list", "--limit=1"]):
        done = rolecall(*words, "--json", cwd=tmp_path, check=0)
        assert done.stderr == "note: --limit is now --max\n"
        words = [word.replace("--limit", "--max") for word in words]
        now = rolecall(*words, "--json", cwd=tmp_path, check=0)
        assert (now.stdout, now.stderr) == (done.stdout, "")


def test_a_value_that_looks_like_an_option_is_a_value(rolecall: Rolecall) -> None:
    assert rolecall.json("cas", "put-text", "--", "--hello")["hash"]
    assert rolecall.json("cas", "put-text", "--hello world")["hash"]


def test_under_uwf_help_errors_and_commands_to_type_say_uwf(rolecall: Rolecall, tmp_path: Path) -> None:
    (tmp_path / "ask-me.yaml").write_text(ASKING)
    for words, code in (
        ("", 0), ("thread start --help", 0), ("help thread", 0), ("thread lst", 2), ("thrd", 2), ("thread show x", 3),
        ("thread list --format text", 0), ("init", 0), ("serve status", 1), ("doctor", 0),
    ):  # fmt: skip
        done = rolecall(*words.split(), program="uwf", check=code, cwd=tmp_path)
        assert "uwf" in done.stdout + done.stderr, words
        assert not re.search(r"\brolecall[: ]", done.stdout + done.stderr), words
    started = rolecall("run", "./ask-me.yaml", "-p", "x", program="uwf", cwd=tmp_path, check=7)
    assert "\ncontinue: uwf thread answer " in f"\n{started.stderr}"
    status = rolecall("status", program="uwf", cwd=tmp_path, check=0).stdout
    assert "next       uwf thread answer" in status and "rolecall" not in status.replace(str(tmp_path), "")


# -- where am I --

ASKING = """
name: ask-me
description: Asks a person.
roles:
  someone:
    agent: human
    goal: Say yes.
    frontmatter: {type: object, properties: {status: {enum: [yes]}}}
graph:
  $START: {_: {role: someone, prompt: Say it.}}
  someone: {"yes": $END}
limits: {steps: 3}
"""


def test_a_fresh_home_says_what_to_do(rolecall: Rolecall, tmp_path: Path) -> None:
    done = rolecall("thread", "list", cwd=tmp_path, check=0)
    assert (done.stdout, done.stderr) == ("no threads yet; start with: rolecall init\n", "")
    assert rolecall.json("thread", "list", cwd=tmp_path) == []
    errors = rolecall("thread", "show", "x", cwd=tmp_path, check=3).stderr
    assert "`rolecall init`" in errors and "put-text" not in errors
    assert (
        "there is no store at" in rolecall("thread", "list", "--store", "n.db", cwd=tmp_path, check=3).stderr
    )
    rolecall("init", cwd=tmp_path, check=0)
    shown = rolecall("thread", "list", cwd=tmp_path, check=0).stdout
    assert shown == "no threads yet; start with: rolecall run hello -p 'What to do'\n"
    rolecall("cas", "put-text", "x", check=0)
    assert rolecall("thread", "list", cwd=tmp_path, check=0).stdout == shown
    assert not rolecall.json("status", cwd=tmp_path)["threads"]


def test_status_says_where_one_is_and_what_comes_next(rolecall: Rolecall, tmp_path: Path) -> None:
    assert rolecall("status", cwd=tmp_path, check=0).stdout.splitlines() == [
        "project    no rolecall.yaml here",
        "workflows  none",
        "service    not running",
        "threads    none at work",
        "next       rolecall init    make a project",
        "           rolecall new     see ready-made workflows",
        "           rolecall doctor  see which agents are ready",
    ]
    assert not rolecall.home.exists()
    rolecall("init", cwd=tmp_path, check=0)
    (tmp_path / "ask-me.yaml").write_text(ASKING)
    rolecall("run", "./ask-me.yaml", "-p", "Decide it", cwd=tmp_path, check=7)
    found = rolecall.json("status", cwd=tmp_path)
    assert (found["project"], found["workflows"], found["service"]) == (str(tmp_path), ["hello"], None)
    assert [entry["status"] for entry in found["threads"]] == ["suspended"]
    assert found["next"] == found["threads"][0]["continue"]
    shown = rolecall("status", cwd=tmp_path, check=0).stdout
    assert "suspended" in shown and "Decide it" in shown
    assert shown.splitlines()[-3].startswith("next       rolecall thread answer ")
    assert "waits for you" in shown and "at work" not in shown
    received = [one["command"] for one in found["commands"]]
    assert received == [
        found["next"],
        f"rolecall thread show {found['threads'][0]['thread']}",
        "rolecall run hello -p 'What to do'",
    ]
    answered = found["threads"][0]["thread"]
    rolecall("thread", "kill", answered, check=0)
    rolecall("run", "hello", "-p", "x", "--detach", cwd=tmp_path, check=0)
    assert rolecall.json("status", cwd=tmp_path)["next"] == "rolecall serve --detach"


def test_status_cuts_neither_the_workflows_nor_what_a_command_does(
    rolecall: Rolecall, tmp_path: Path
) -> None:
    (tmp_path / ".workflows").mkdir()
    names = [f"ask-for-decision-{number}" for number in range(9)]
    for name in names:
        (tmp_path / ".workflows" / f"{name}.yaml").write_text(ASKING.replace("ask-me", name))
    rolecall("run", names[0], "-p", "Decide it", cwd=tmp_path, check=7)
    rolecall("thread", "answer", "--field", "status=yes", cwd=tmp_path, check=0)
    for columns in (60, 80):
        shown = rolecall("status", cwd=tmp_path, check=0, env={"COLUMNS": str(columns)}).stdout
        assert "look at the latest thread" in shown and "…" not in shown
        assert all(name in shown.split("service")[0] for name in names)
        assert max(map(len, shown.split("service")[0].splitlines()[1:])) <= columns


def test_the_command_that_comes_next_is_one_that_can_run(rolecall: Rolecall, tmp_path: Path) -> None:
    (tmp_path / ".workflows").mkdir()
    (tmp_path / ".workflows" / "ask-nobody.yaml").write_text(
        ASKING.replace("ask-me", "ask-nobody").replace("agent: human", "goal: Decide.")
    )
    (tmp_path / ".workflows" / "broken.yaml").write_text("roles: [")
    assert rolecall.json("status", cwd=tmp_path)["next"] == "rolecall doctor"
    assert "start with: rolecall doctor" in rolecall("thread", "list", cwd=tmp_path, check=0).stdout
    rolecall("init", cwd=tmp_path, check=0)
    assert rolecall.json("status", cwd=tmp_path)["next"] == "rolecall run hello -p 'What to do'"
