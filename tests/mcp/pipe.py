"""What the tests of the MCP doors share: a project, and a client that sends exactly the bytes a test wants."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Timer
from typing import Any

PROGRAM = str(Path(sys.executable).parent / "rolecall")
PATIENCE = 120
"""Seconds after which a server that does not answer is killed, so that a test fails instead of hanging."""


def environment(folder: Path, **more: str) -> dict[str, str]:
    homes = {"HOME": str(folder / "home"), "ROLECALL_HOME": str(folder / "home" / "rolecall")}
    return {**os.environ, **homes, **more}


def make_project(folder: Path) -> Path:
    """A folder that git calls a repository."""
    project = folder / "project"
    (project / ".git").mkdir(parents=True)
    (project / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    return project


class Pipe:
    """A client that writes lines and reads lines, and asks no more of a server than that."""

    def __init__(self, child: subprocess.Popen[bytes]) -> None:
        self.child = child
        self._count = 0

    def send(self, *messages: Any) -> None:
        """Messages as JSON, bytes as they are; all in one write."""
        assert self.child.stdin is not None
        lines = [one if isinstance(one, bytes) else json.dumps(one).encode() for one in messages]
        self.child.stdin.write(b"".join(line + b"\n" for line in lines))
        self.child.stdin.flush()

    def receive(self) -> Any:
        assert self.child.stdout is not None
        line = self.child.stdout.readline()
        assert line.endswith(b"\n"), "the server is gone"
        return json.loads(line)

    def ask(self, method: str, params: Any = None) -> Any:
        """The reply to a request, which must be the next message."""
        self._count += 1
        message = {"jsonrpc": "2.0", "id": self._count, "method": method}
        self.send(message if params is None else {**message, "params": params})
        reply = self.receive()
        assert reply["id"] == self._count
        return reply

    def initialize(self, version: str = "2025-06-18") -> Any:
        client = {"name": "test", "version": "1"}
        asked = {"protocolVersion": version, "capabilities": {}, "clientInfo": client}
        result = self.ask("initialize", asked)["result"]
        self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return result

    def call(self, name: str, /, **arguments: Any) -> Any:
        """The reply of a tool, from the text that a model would read."""
        result = self.ask("tools/call", {"name": name, "arguments": arguments})["result"]
        (content,) = result["content"]
        assert content["type"] == "text"
        reply = json.loads(content["text"])
        assert result.get("isError", False) == ("error" in reply)
        return reply

    def tools(self) -> list[str]:
        return [tool["name"] for tool in self.ask("tools/list")["result"]["tools"]]

    def close(self) -> tuple[int, bytes]:
        """Close our end; the exit code, and whatever the server still had to say."""
        assert self.child.stdin is not None and self.child.stdout is not None
        self.child.stdin.close()
        rest = self.child.stdout.read()
        return self.child.wait(PATIENCE), rest


@contextmanager
def piped(project: Path, *options: str, **more: str) -> Iterator[Pipe]:
    """A server on a pipe, as a host starts it; what it writes to standard error is kept in `stderr` beside the
    project."""
    key = project.parent / "key-of-the-host"
    key.write_text(key.name)
    with open(project.parent / "stderr", "ab") as errors:
        child = subprocess.Popen(
            [PROGRAM, "mcp", "--project", str(project), "--host-key", str(key), *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment(project.parent, **more),
        )
    watchdog = Timer(PATIENCE, child.kill)
    watchdog.start()
    try:
        yield Pipe(child)
    finally:
        watchdog.cancel()
        child.kill()
        child.wait()
        for end in (child.stdin, child.stdout):
            if end is not None:
                end.close()


def request(ident: Any, method: str, params: Any = None) -> dict[str, Any]:
    message = {"jsonrpc": "2.0", "id": ident, "method": method}
    return message if params is None else {**message, "params": params}


def calling(ident: Any, name: str, **arguments: Any) -> dict[str, Any]:
    return request(ident, "tools/call", {"name": name, "arguments": arguments})


def cancelling(ident: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": ident}}
