"""A stand-in for an agent's program: a real child process that plays back a recorded stream.

A stream is what the program printed, line by line, with `$WORK` for the folder it ran in and `$SESSION` for the
session it was told to use. Its last line says how it ended: {"standin": {"exit": 0, "stderr": "…", "hangs": true,
"writes": ["file"], "leaves": {"usage.json": {…}}}}, each of them optional; what it leaves is written where an
argument names such a file. tests/realagents records the streams from the real programs.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

STREAMS = Path(__file__).parent / "streams"
_SESSION = ("--session-id=", "--resume=")


class Standin:
    """A program in `folder` that plays `stream`: a path from STREAMS, or the text of a stream itself."""

    def __init__(self, folder: Path, stream: str, **ending: Any) -> None:
        text = stream if "\n" in stream else (STREAMS / stream).read_text(encoding="utf-8")
        if ending:
            text += json.dumps({"standin": ending}) + "\n"
        folder.mkdir(parents=True, exist_ok=True)
        self._log = folder / "calls.jsonl"
        played = folder / "stream.jsonl"
        played.write_text(text, encoding="utf-8")
        command = shlex.join([sys.executable, "-IS", __file__, str(played), str(self._log)])
        self.path = str(folder / "program")
        Path(self.path).write_text(f'#!/bin/sh\nexec {command} "$@"\n', encoding="utf-8")
        Path(self.path).chmod(0o755)

    @property
    def calls(self) -> list[dict[str, Any]]:
        """Each call: `argv`, `stdin`, `env`, and the text of the `files` that the arguments name."""
        return [json.loads(line) for line in self._log.read_text(encoding="utf-8").splitlines()]


def _play(stream: str, log: str, *argv: str) -> None:
    call = {"argv": argv, "stdin": sys.stdin.read(), "env": dict(os.environ), "files": _files(argv)}
    with open(log, "a", encoding="utf-8") as file:
        file.write(json.dumps(call) + "\n")
    ending: dict[str, Any] = {}
    reported = next((word.partition("=")[2] for word in argv if word.startswith(_SESSION)), "")
    with open(stream, encoding="utf-8") as lines:
        for line in lines:
            if line.startswith('{"standin"'):
                ending |= json.loads(line)["standin"]
            else:
                line = line.replace("$SESSION", reported)
                sys.stdout.write(line.replace("$WORK", json.dumps(os.getcwd())[1:-1]))
    sys.stdout.flush()
    sys.stderr.write(ending.get("stderr", ""))
    sys.stderr.flush()
    for name in ending.get("writes", ()):
        Path(name).touch()
    for name in argv:
        if os.path.basename(name) in ending.get("leaves", {}):
            Path(name).write_text(json.dumps(ending["leaves"][os.path.basename(name)]), encoding="utf-8")
    if ending.get("hangs"):
        subprocess.Popen(["tail", "-f", "/dev/null"])  # somebody who would be left over
        signal.pause()
    code = ending.get("exit", 0)
    if code < 0:
        os.kill(os.getpid(), -code)
    sys.exit(code)


def _files(argv: tuple[str, ...]) -> dict[str, str]:
    names = (name.removeprefix("@") for name in argv)
    return {name: Path(name).read_text(encoding="utf-8") for name in names if _is_file(name)}


def _is_file(name: str) -> bool:
    return len(name) < 1000 and name.startswith("/") and os.path.isfile(name)


if __name__ == "__main__":
    _play(*sys.argv[1:])
