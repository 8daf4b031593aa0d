"""A program in a real terminal: a pane of tmux, whose screen is what a person would see."""

from __future__ import annotations

import os
import select
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import monotonic

import pytest


class Pane:
    """A pane on a server of its own. Every wait ends with output of the program, or fails after a time. `folder` is for
    the pane's own files."""

    def __init__(
        self, words: Sequence[str], *, folder: Path, cwd: Path, env: Mapping[str, str], columns: int = 80
    ) -> None:
        if shutil.which("tmux") is None:
            pytest.skip("NOT TESTED in a terminal: tmux is not installed (apt-get install tmux)")
        self._place = tempfile.mkdtemp(prefix="tmux")  # the path of a socket must be short
        self._pid = folder / "pid"
        pipe = folder / "output"
        os.mkfifo(pipe)
        self._seen = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
        variables = [f"{name}={value}" for name, value in env.items()]
        # It begins when the pipe is there, and stays open afterwards to be looked at.
        program = shlex.join(["env", *variables, *words])
        command = shlex.join(["sh", "-c", f"echo $$ > {shlex.quote(str(self._pid))}; exec {program}"])
        ready = folder / "ready"
        os.mkfifo(ready)
        self._tmux(
            *("-f", "/dev/null", "new-session", "-d", "-x", str(columns), "-y", "24", "-c", str(cwd)),
            f"read line < {shlex.quote(str(ready))}; {command}; echo ended with $?; exec sleep 1000",
        )
        self._tmux("pipe-pane", "-O", f"exec cat > {shlex.quote(str(pipe))}")
        ready.write_text("go\n")

    def _tmux(self, *words: str) -> str:
        done = subprocess.run(
            ["tmux", "-S", f"{self._place}/socket", *words], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, (words, done.stderr)
        return done.stdout

    def screen(self) -> str:
        """What the screen shows, with the lines that have left it."""
        return self._tmux("capture-pane", "-p", "-J", "-S", "-1000").rstrip("\n")

    def expect(self, text: str, *, count: int = 1) -> str:
        """Wait until the screen shows a text so many times, and return the screen."""
        return self._wait(text, lambda: self.screen().count(text) >= count)

    def expect_prompt(self, text: str) -> str:
        """Wait until there is this text alone before the cursor, and return the screen. What is typed earlier may be
        lost, because a program takes over the keyboard when it asks."""

        def is_asking() -> bool:
            x, y = map(int, self._tmux("display-message", "-p", "#{cursor_x} #{cursor_y}").split())
            lines = self._tmux("capture-pane", "-p", "-N").split("\n")
            return lines[y][:x] == text

        return self._wait(text, is_asking)

    def _wait(self, what: str, is_true: Callable[[], bool]) -> str:
        until = monotonic() + 90
        while not is_true():
            screen, left = self.screen(), until - monotonic()
            has_ended = "ended with " in screen and not is_true()
            assert left > 0 and not has_ended, f"waited for {what!r}, saw\n{screen}"
            # A redraw may leave the screen unchanged, and tmux draws a moment after it has passed the output on.
            if select.select([self._seen], [], [], min(left, 0.5))[0]:
                os.read(self._seen, 1 << 16)
        return self.screen()

    def type(self, text: str) -> None:
        self._tmux("send-keys", "-l", "--", text)

    def press(self, *keys: str) -> None:
        """Press keys by tmux's names: `Enter`, `C-c`, `M-Enter`."""
        self._tmux("send-keys", *keys)

    @property
    def pid(self) -> int:
        """The process of the program, after it has shown something."""
        return int(self._pid.read_text())

    def close(self) -> None:
        self._tmux("kill-server")
        os.close(self._seen)
        shutil.rmtree(self._place)
