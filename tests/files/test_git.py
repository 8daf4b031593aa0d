"""How git is run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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
