"""What a program shows to a person: on a terminal of 80 columns."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import termios
from collections.abc import Mapping, Sequence
from pathlib import Path


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
