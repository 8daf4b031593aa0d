"""Standard streams that are closed or lead nowhere: an error in words, for the server and for every command."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from pipe import PATIENCE, PROGRAM, environment, make_project


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return make_project(tmp_path)


def redirected(project: Path, words: str, redirections: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a command that a shell starts with some of them closed."""
    done = subprocess.run(
        ["sh", "-c", f"exec '{PROGRAM}' {words} {redirections}"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=environment(project.parent),
        cwd=project,
        timeout=PATIENCE,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("redirections", "name"),
    [
        ("<&-", "standard input"),
        (">&-", "standard output"),
        ("<&- >&-", "standard output"),
        ("0>/dev/null", "standard input"),
        ("1</dev/null", "standard output"),
    ],
)
def test_a_pipe_with_an_end_that_leads_nowhere_is_refused(
    project: Path, redirections: str, name: str
) -> None:
    code, _, said = redirected(project, "mcp", redirections)
    assert code == 2
    assert said.startswith(f"rolecall: {name} ") and said.count("\n") == 2
    assert redirected(project, "mcp", f"{redirections} 2>&-")[0] == 2


@pytest.mark.parametrize(
    "words", ["--version", "--help", "mcp --help", "workflow list", "task list", "cas stats"]
)
def test_a_command_whose_output_is_closed_says_so_and_does_nothing(project: Path, words: str) -> None:
    closed = "rolecall: standard output is closed\n  Redirect it, to /dev/null for example.\n"
    assert redirected(project, words, ">&-") == (2, "", closed)
    assert redirected(project, words, ">&- 2>&-") == (2, "", "")


def test_an_error_does_not_come_out_as_a_result_where_standard_error_is_closed(project: Path) -> None:
    assert redirected(project, "thread show nope", "2>&-")[1] == ""
    assert redirected(project, "workflow list --json", "2>&- <&-") == (0, "[]\n", "")


def test_a_command_cannot_read_from_an_input_that_is_closed(project: Path) -> None:
    code, out, said = redirected(project, "cas put-text -", "<&-")
    assert (code, out) == (5, "")
    assert said.startswith("rolecall: ") and said.count("\n") == 1
