"""What shells complete: commands, options, workflows, agents and threads, asked of the program itself."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Rolecall

FLOW = """
name: hello
description: Asks a person.
roles:
  someone: {agent: human, goal: Say yes., frontmatter: {type: object, properties: {status: {enum: ["yes"]}}}}
graph: {$START: {_: {role: someone, prompt: Say it.}}, someone: {"yes": $END}}
limits: {steps: 3}
"""


class Shell:
    """A folder with a workflow and a thread, and what a shell makes of a line that is typed in it."""

    def __init__(self, rolecall: Rolecall, folder: Path) -> None:
        from conftest import SCRIPTS

        self.rolecall = rolecall
        self.folder = folder
        (folder / ".workflows").mkdir()
        (folder / ".workflows" / "hello.yaml").write_text(FLOW)
        (folder / "some-file.txt").write_text("x")
        self.thread = rolecall.json("thread", "start", "hello", "-p", "Do it", cwd=folder)["thread"]
        self.env = {
            **os.environ,
            "ROLECALL_HOME": str(rolecall.home),
            "PATH": f"{SCRIPTS}:{os.environ['PATH']}",
            "TERM": "dumb",
        }

    def run(self, *argv: str) -> list[str]:
        done = subprocess.run(
            argv, cwd=self.folder, env=self.env, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0 and not done.stderr, done
        return done.stdout.splitlines()

    def words(self, *words: str) -> list[str]:
        return self.run("rolecall", "completion", "bash", "--", *words)

    def bash(self, *words: str) -> list[str]:
        code = (
            'eval "$(rolecall completion bash)"; COMP_WORDS=("$@"); COMP_CWORD=$(($#-1)); _rolecall; '
            "printf '%s\\n' \"${COMPREPLY[@]}\""
        )
        return self.run("bash", "--norc", "-c", code, "bash", *words)

    def fish(self, line: str) -> list[str]:
        code = "rolecall completion fish | source; complete -C $argv[1]"
        found = self.run("fish", "--no-config", "-c", code, line)
        return [one.partition("\t")[0] for one in found]

    def zsh(self, line: str, wanted: str) -> None:
        """Wait until `wanted` stands there after a Tab."""
        mine, theirs = pty.openpty()
        env = {**self.env, "TERM": "xterm", "PS1": "> ", "ZDOTDIR": str(self.folder / "nowhere")}
        child = subprocess.Popen(
            ["zsh", "-f", "-i"], stdin=theirs, stdout=theirs, stderr=theirs, env=env, cwd=self.folder,
            start_new_session=True,
        )  # fmt: skip
        os.close(theirs)
        seen = b""
        try:
            start = (
                'autoload -Uz compinit && compinit -u -D; eval "$(rolecall completion zsh)"; echo rea""dy\n'
            )
            os.write(mine, start.encode())
            while b"ready" not in seen:
                seen += _read(mine)
            os.write(mine, f"{line}\t".encode())
            while wanted.encode() not in seen:
                seen += _read(mine)
        finally:
            child.kill()
            child.wait()
            os.close(mine)


def _read(terminal: int) -> bytes:
    assert select.select([terminal], [], [], 60)[0], "nothing more came"
    return os.read(terminal, 4096)


@pytest.fixture
def shell(rolecall: Rolecall, tmp_path: Path) -> Shell:
    return Shell(rolecall, tmp_path)


def test_commands_verbs_and_options_are_completed(shell: Shell) -> None:
    assert shell.words("thr") == ["thread"]
    assert {"thread", "run", "status", "help", "--version"} <= set(shell.words(""))
    assert shell.words("thread", "st") == ["start", "step", "steps", "step-details"]
    assert shell.words("thread", "folder", "m") == ["merge"]
    assert shell.words("thread", "list", "--wa") == ["--watch"]
    assert shell.words("thread", "list", "--format", "") == ["text", "json", "yaml"]
    assert shell.words("serve", "st") == ["status", "stop"]
    assert shell.words("nonsense", "") == []


def test_workflows_agents_and_threads_are_completed(shell: Shell) -> None:
    assert shell.words("run", "he") == ["hello"]
    assert shell.words("run", "hello", "-p", "x", "--agent", "clau") == ["claude"]
    assert "acp:gemini" in shell.words("agents", "test", "acp")
    short = shell.thread[-6:]
    assert shell.words("thread", "show", short[:2]) == [short]
    assert shell.words("thread", "show", "") == [short]
    assert "fix-test" in shell.words("new", "fix-t")
    assert shell.words("thread", "show", shell.thread[:8]) == [shell.thread]
    assert shell.words("thread", "diff", short, short[:2]) == [short]
    shell.rolecall("config", "set", "agents.mine.adapter", "claude", check=0)
    assert "mine" in shell.words("run", "hello", "-p", "x", "--agent", "")


def test_where_nothing_is_known_nothing_is_said(rolecall: Rolecall, tmp_path: Path) -> None:
    done = rolecall("completion", "bash", "--", "thread", "show", "", cwd=tmp_path, check=0)
    assert (done.stdout, done.stderr) == ("", "")
    rolecall.home.mkdir()
    (rolecall.home / "config.yaml").write_text("store: [")
    assert rolecall("completion", "zsh", "--", "thread", "show", "", cwd=tmp_path, check=0).stdout == ""


def test_bash_completes(shell: Shell) -> None:
    assert shell.bash("rolecall", "thread", "lis") == ["list"]
    assert shell.bash("uwf", "run", "he") == ["hello"]
    assert shell.bash("rolecall", "thread", "show", shell.thread[-6:-3]) == [shell.thread[-6:]]
    # Bash takes these apart at the sign, and replaces only what stands behind it.
    assert shell.bash("rolecall", "run", "x", "--agent", "=", "clau") == ["claude"]
    assert shell.bash("rolecall", "agents", "test", "acp", ":", "gem") == ["gemini"]
    assert "gemini" in shell.bash("rolecall", "agents", "test", "acp", ":")


@pytest.mark.skipif(not shutil.which("fish"), reason="fish is not installed")
def test_fish_completes(shell: Shell) -> None:
    assert shell.fish("rolecall thread lis") == ["list"]
    assert shell.fish("uwf run he") == ["hello"]
    assert shell.fish(f"rolecall thread show {shell.thread[-6:-3]}") == [shell.thread[-6:]]
    assert "some-file.txt" in shell.fish("rolecall artifact write x some-f")
    assert "acp:gemini" in shell.fish("rolecall agents test acp:gem")


@pytest.mark.skipif(not shutil.which("zsh"), reason="zsh is not installed")
@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("rolecall thread lis", "list"),
        ("uwf run he", "hello"),
        ("rolecall agents test acp:gem", "acp:gemini"),
    ],
)
def test_zsh_completes(shell: Shell, line: str, wanted: str) -> None:
    shell.zsh(line, wanted)


def test_tcsh_gets_a_script_for_both_names(rolecall: Rolecall) -> None:
    script = rolecall("completion", "tcsh", check=0).stdout
    assert "\ncomplete rolecall " in script and "\ncomplete uwf " in script
    assert "put-text" in script and "reindex" in script
