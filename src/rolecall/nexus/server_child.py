"""A `rolecall mcp` child on a pipe, which handles one request at a time.

Conformance runs call tools through it, and `doctor` uses it to check that an installed server answers.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from threading import Timer
from typing import IO, Any, TypeAlias

from rolecall.store.canonical import JsonObject

Message: TypeAlias = JsonObject
PREFIX = "nx_"
ROLECALL = (sys.executable, "-P", "-c", "from rolecall.__main__ import command; raise SystemExit(command())")
"""The command that starts this program itself."""
_PATIENCE = 60
"""The number of seconds after which a server that does not answer is stopped."""
_OPENING = {
    "protocolVersion": "2025-06-18",
    "capabilities": {},
    "clientInfo": {"name": "rolecall conformance", "version": "1"},
}


class Unanswered(Exception):
    """An error for a server that has ended or did not answer."""


@dataclass
class ServerChild:
    """The server for one project folder, started by the first call and restarted if it has died."""

    project: str
    environ: Mapping[str, str]
    command: Sequence[str] = ()
    """The command that starts the server; empty for our own command."""
    stderr: IO[bytes] | None = None
    patience: float = _PATIENCE
    _child: subprocess.Popen[bytes] | None = None
    _count: int = 0

    def call(self, tool: str, params: Message) -> Any:
        """Call a tool, and return its reply as a model would read it."""
        frame = self._ask("tools/call", {"name": PREFIX + tool, "arguments": params})
        if "error" in frame:
            return {"error": frame["error"]["message"]}
        result = frame["result"]
        try:
            (content,) = result["content"]
            reply = json.loads(content["text"])
        except (KeyError, TypeError, ValueError) as exc:
            raise Unanswered(f"the result has no JSON as its one text: {str(result)[:200]}") from exc
        is_error = isinstance(reply, dict) and "error" in reply
        if result.get("isError", False) is not is_error:
            raise Unanswered(f"isError does not agree with the reply: {str(result)[:200]}")
        if result.get("structuredContent", reply) != reply:
            raise Unanswered(f"structuredContent is not the reply: {str(result)[:200]}")
        return reply

    def tools(self) -> list[str]:
        """Return the names of the server's tools."""
        frame = self._ask("tools/list", {})
        try:
            return [str(tool["name"]) for tool in frame["result"]["tools"]]
        except (LookupError, TypeError) as exc:
            raise Unanswered(f"the server listed no tools: {str(frame)[:200]}") from exc

    def close(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        for end in (child.stdin, child.stdout):
            if end is not None:
                end.close()
        try:
            child.wait(self.patience)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()

    def _ask(self, method: str, params: Message) -> Message:
        if self._child is None:
            self._child = subprocess.Popen(  # noqa: S603 -- no shell is involved
                [*(self.command or (*ROLECALL, "mcp", "--project", self.project, "--only", "nexus"))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self.stderr,
                cwd=self.project,
                env=dict(self.environ),
            )
            self._ask("initialize", _OPENING)
            self._send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        self._count += 1
        child = self._child
        watchdog = Timer(self.patience, child.kill)
        watchdog.start()
        try:
            self._send({"jsonrpc": "2.0", "id": self._count, "method": method, "params": params})
            line = child.stdout.readline() if child.stdout else b""
        except BrokenPipeError:
            line = b""
        finally:
            watchdog.cancel()
        if not line.endswith(b"\n"):
            self.close()
            raise Unanswered(f"the server ended with {child.returncode} instead of answering {method}")
        try:
            frame = json.loads(line)
        except ValueError as exc:
            raise Unanswered(f"the server sent something that is not JSON: {line[:200]!r}") from exc
        # The reply to a message that could not be parsed has no id.
        if not isinstance(frame, dict) or frame.get("id") not in (self._count, None):
            raise Unanswered(f"the server answered something else: {line[:200]!r}")
        return frame

    def _send(self, message: Message) -> None:
        if self._child is not None and self._child.stdin is not None:
            self._child.stdin.write(json.dumps(message).encode() + b"\n")
            self._child.stdin.flush()
