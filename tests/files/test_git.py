"""How git is run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from rolecall.files import git

_CTRL_C = """
import os, signal
from rolecall.files import git
signal.signal(signal.SIGINT, lambda *_: None)
result = git.ask(".", "press", settings=(f"alias.press=!kill -INT -{os.getpid()}; echo done",))
print(result.code, result.text)
"""


def test_ctrl_c_in_a_terminal_does_not_stop_git_in_the_middle(tmp_path: Path) -> None:
    """A terminal sends the signal to all processes in its foreground group, and ours decides what to do."""
    result = subprocess.run(
        [sys.executable, "-c", _CTRL_C],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        start_new_session=True,
    )
    assert result.stdout == "0 done\n", result.stderr


def test_git_that_ctrl_c_ended_before_it_began_is_started_again(tmp_path: Path) -> None:
    alias = "alias.press=!test -e seen && echo done || { touch seen; kill -INT $PPID; }"
    assert git.ask(str(tmp_path), "press", settings=(alias,))[:2] == (0, b"done\n")


def test_a_program_that_ctrl_c_ends_lets_git_remove_its_locks(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    (tmp_path / ".gitattributes").write_text("slow filter=slow\n")
    (tmp_path / "slow").touch()
    os.mkfifo(begun := tmp_path / "begun")
    os.mkfifo(held := tmp_path / "held")
    os.mkfifo(talks := tmp_path / "talks")
    holds = os.open(held, os.O_RDWR)
    settings = ("filter.slow.clean=echo begun > begun; cat held",)
    script = (
        "import signal, subprocess; from rolecall.files import git\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's job in the background ignores it\n"
        "talk = subprocess.Popen.communicate\n"
        "def communicate(*args): open('talks', 'w').close(); return talk(*args)\n"
        "subprocess.Popen.communicate = communicate  # before, git may already run, and ends by itself\n"
        f"git.ask('.', 'add', 'slow', settings={settings})"
    )
    try:
        with subprocess.Popen(
            [sys.executable, "-c", script], cwd=tmp_path, stderr=subprocess.PIPE
        ) as process:
            assert talks.read_text() == ""
            assert begun.read_text() == "begun\n" and (tmp_path / ".git/index.lock").exists()
            process.send_signal(signal.SIGINT)
            assert b"KeyboardInterrupt" in process.communicate(timeout=60)[1]
    finally:
        os.close(holds)
    assert not (tmp_path / ".git/index.lock").exists()
