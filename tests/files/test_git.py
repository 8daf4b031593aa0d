"""How git is run."""

from __future__ import annotations

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
    told = subprocess.run(
        [sys.executable, "-c", _CTRL_C],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        start_new_session=True,
    )
    assert told.stdout == "0 done\n", told.stderr


def test_git_that_ctrl_c_ended_before_it_began_is_started_again(tmp_path: Path) -> None:
    alias = "alias.press=!test -e seen && echo done || { touch seen; kill -INT $PPID; }"
    assert git.ask(str(tmp_path), "press", settings=(alias,))[:2] == (0, b"done\n")
