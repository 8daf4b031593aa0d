"""What a program shows to a person: on a terminal of 80 columns."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import monotonic


def shown_by(words: Sequence[str], *, cwd: Path, env: Mapping[str, str], code: int = 0) -> str:
    """All that a program prints until it ends with `code`, as it was sent to the terminal."""
    mine, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    child = subprocess.Popen(words, stdout=theirs, stderr=theirs, cwd=cwd, env={**os.environ, **env})
    os.close(theirs)
    shown = b""
    try:
        while part := os.read(mine, 65536):
            shown += part
    except OSError:  # how Linux says that nobody holds the other end any more
        pass
    finally:
        os.close(mine)
    assert child.wait(60) == code, shown
    return shown.decode()


class Terminal:
    """The command on a terminal of its own; every wait is bounded."""

    def __init__(self, *args: str, home: Path, path: str = "/nowhere", rows: int = 24) -> None:
        """`rolecall` with these arguments; without a path no agent's program is found."""
        self.seen = ""
        program = str(Path(sys.executable).parent / "rolecall")
        self.pid, self._end = pty.fork()
        if self.pid == 0:
            fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", rows, 80, 0, 0))
            environment = {**os.environ, "ROLECALL_HOME": str(home), "PATH": path}
            os.execve(program, [program, *args], environment)

    def expect(self, text: str) -> None:
        until = monotonic() + 60
        while text not in self.seen:
            ready, _, _ = select.select([self._end], [], [], max(0.0, until - monotonic()))
            assert ready, f"waited for {text!r}, saw {self.seen!r}"
            try:
                data = os.read(self._end, 4096).decode()
            except OSError:
                data = ""
            assert data, f"ended before {text!r}, saw {self.seen!r}"
            self.seen += data

    def screen(self) -> list[str]:
        """The lines that a person sees, from all that was sent so far: enough of a terminal for a block that is drawn
        again."""
        lines, row, column = [""], 0, 0
        for part in re.findall(r"\033\[(\d*)([A-Za-z])|(\r)|(\n)|([^\033\r\n]+)", self.seen):
            count, code, is_return, is_newline, text = part
            if is_return:
                column = 0
            elif is_newline:
                row += 1
                lines += [""] * (row + 1 - len(lines))
            elif text:
                lines[row] = lines[row][:column].ljust(column) + text + lines[row][column + len(text) :]
                column += len(text)
            elif code == "A":
                row = max(0, row - int(count or 1))
            elif code in "JK":
                lines[row] = lines[row][:column]
                del lines[row + 1 if code == "J" else len(lines) :]
        return [line.rstrip() for line in lines]

    def type(self, text: str) -> None:
        self.seen = ""
        os.write(self._end, text.encode())

    def close(self) -> int:
        try:
            while select.select([self._end], [], [], 60)[0] and (data := os.read(self._end, 4096)):
                self.seen += data.decode()
        except OSError:
            pass  # the other end is closed, which is what was waited for
        else:
            os.kill(self.pid, signal.SIGKILL)
        os.close(self._end)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
