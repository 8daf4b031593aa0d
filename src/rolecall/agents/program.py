"""Coding agents that are programs: each run gives one answer, and events are JSON lines.

An adapter is a subclass of `Program`. It defines how to call the program (`call`) and how to interpret its events (a
`Reader`); both are pure, so a reader can be tested with a recorded stream. Running, limits, cancellation, signals and
timeouts are handled here for all adapters.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from rolecall.agents import process
from rolecall.agents.protocol import ANSWERED, Context, Ending, Reply, Usage, failure
from rolecall.agents.transcript import LONGEST_ANSWER, Transcript
from rolecall.settings import capabilities
from rolecall.store import scratch

DEFAULT_TIMEOUT = 3600.0
_LONGEST_LINE = 32 * 1024 * 1024
_KEPT_OUTPUT = 256 * 1024
_NOISE = 4_000
_MOST = 10**15
_BY_SIGNAL = (130, 137, 143)
"""Exit codes of programs that catch SIGINT, a child's SIGKILL, or SIGTERM."""


@dataclass(frozen=True)
class McpServer:
    """A tool server for the agent to start."""

    name: str
    command: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Call:
    """The arguments and environment for one prompt."""

    argv: Sequence[str]
    stdin: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables added to the context's environment."""
    session: str = ""
    """The id we chose for a new session, if the program accepts one."""


class Reader:
    """Accumulates the events of one run. Subclasses interpret `event` and how the run ended."""

    no_session: ClassVar[tuple[str, ...]] = ()
    """Messages that the program prints if it does not know the session to continue."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.transcript = Transcript(context)
        self.noise = ""
        """The beginning of output other than events; it often explains why there is no answer."""
        self.folder = Path()
        """The run's own folder, which exists during the run; some programs write a usage file there."""

    def event(self, event: Mapping[str, Any]) -> None:
        raise NotImplementedError

    def finish(self, exit: process.Exit) -> Reply:
        """Return the reply after a run that was not cancelled and did not time out."""
        raise NotImplementedError

    def usage(self) -> Usage | None:
        """Return the run's usage as far as it is known, even after a timeout or cancellation."""
        return None

    def total(self) -> Usage | None:
        """Return the session's usage, if the agent reports totals."""
        return None

    # -- for subclasses --

    def reply(self, text: str, ending: Ending = "completed", reason: str = "", **more: Any) -> Reply:
        kept = self.transcript
        return Reply(
            text[:LONGEST_ANSWER],
            session=kept.session,
            usage=self.usage(),
            session_total=self.total(),
            turns=kept.turns if any(turn.tool_calls for turn in kept.turns) or kept.count > 1 else (),
            files=kept.files,
            ending=ending,
            reason=reason,
            **more,
        )

    def is_lost(self, printed: str) -> bool:
        """Whether the program says that it does not know the session."""
        return bool(self.context.session) and any(words in printed for words in self.no_session)

    def no_answer(self, exit: process.Exit) -> Reply:
        """Return the reply after a run without a final event, based on the exit code."""
        ending: Ending = "failed"
        reason = exit.reason
        if exit.code == 0:
            ending, reason = "interrupted", "the program ended without a result: it was interrupted"
        elif exit.code is not None and (exit.code < 0 or exit.code in _BY_SIGNAL):
            ending = "killed"
        elif self.noise.strip() and not exit.stderr.strip():
            reason = f"{exit.reason}: {self.noise.strip()[-2000:]}"
        return self.reply(self.transcript.answer, ending, reason, is_session_lost=self.is_lost(exit.stderr))


@dataclass(frozen=True, kw_only=True)
class Program:
    """An adapter for a program, with the information `doctor` needs."""

    name: ClassVar[str]
    program: ClassVar[str]
    install: ClassVar[str]
    """The command that installs it."""
    needed_flags: ClassVar[tuple[str, ...]] = ()
    """Flags the adapter uses; `doctor` looks for them in the help text."""
    help_arguments: ClassVar[tuple[str, ...]] = ("--help",)
    can_resume: ClassVar[bool] = True
    can_fork: ClassVar[bool] = False
    deniable: ClassVar[frozenset[str]] = frozenset()
    """The classes of actions (`capabilities.CLASSES`) that `call` can deny."""
    signed_in: ClassVar[tuple[str, ...]] = ()
    """Signs of being signed in: variables, and paths in the user's home as `~/…`. An entry that ends in `?` is a
    setting that may contain a key; if it exists, the state is unknown."""

    model: str | None = None
    timeout: float | None = DEFAULT_TIMEOUT
    executable: str | None = None
    """The program's path, if it is not found by name."""
    args: tuple[str, ...] = ()
    """Additional arguments, passed unchanged."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables added to the context's environment."""

    def call(self, prompt: str, context: Context, folder: Path) -> Call:
        """Return how to run the program; `folder` is the run's own, for files the program needs."""
        raise NotImplementedError

    def reader(self, context: Context) -> Reader:
        raise NotImplementedError

    @property
    def command(self) -> str:
        return self.executable or self.program

    async def __call__(self, prompt: str, context: Context) -> Reply:
        capabilities.check_supported(self.name, context.capabilities, self.deniable)
        reader = self.reader(context)
        lines = Lines(reader)
        with scratch.folder() as folder:
            reader.folder = folder
            call = self.call(prompt, context, folder)

            def started(child: process.Started) -> None:
                context.emit("process", {"pid": child.pid, "run": child.run})
                reader.transcript.in_session(call.session)

            ended = await process.run(
                call.argv,
                cwd=context.workdir,
                env={**context.env, **call.env},
                prompt=call.stdin,
                timeout=self.timeout,
                cancel=context.cancel,
                on_start=started,
                on_text=lines.feed,
                max_output=_KEPT_OUTPUT,
            )
            lines.close()
            if ended.ending in ("timeout", "interrupted"):
                hint = process.ENDING_HINTS.get(ended.ending, "")
                reply = reader.reply(reader.transcript.answer, ended.ending, ended.reason, hint=hint)
            else:
                reply = reader.finish(ended)
                if ended.left:
                    left = f"processes that could not be ended: {', '.join(map(str, ended.left))}"
                    reply = replace(reply, reason=f"{reply.reason} ({left})" if reply.reason else left)
        if reply.ending not in ANSWERED:
            raise failure(reply)
        return reply


class Lines:
    """Splits a stream into lines and passes JSON objects to a reader."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._pieces: list[str] = []
        self._size = 0

    def feed(self, text: str) -> None:
        *whole, rest = text.split("\n")
        for piece in whole:
            self._add(piece)
            line = "".join(self._pieces).strip()
            self._pieces, self._size = [], 0
            event = parse_object(line) if line.startswith("{") else None
            if event is not None:
                self._reader.event(event)
            elif line:
                self._reader.noise = (self._reader.noise + line + "\n")[:_NOISE]
        self._add(rest)

    def close(self) -> None:
        self.feed("\n")

    def _add(self, piece: str) -> None:
        self._size += len(piece)
        if self._size > _LONGEST_LINE:  # too long to be an event or to keep in memory
            self._pieces = [f"a line of more than {_LONGEST_LINE} characters was left out"]
        else:
            self._pieces.append(piece)


def mcp_file(servers: Iterable[McpServer], folder: Path, **more: Any) -> Path:
    """Write a tool server configuration in the form most programs read; `more` is added to each entry."""
    entries = {
        server.name: {
            "type": "stdio",
            "command": server.command,
            "args": list(server.args),
            "env": dict(server.env),
            **more,
        }
        for server in servers
    }
    path = folder / "mcp.json"
    path.write_text(json.dumps({"mcpServers": entries}), encoding="utf-8")
    return path


def parse_object(text: str) -> dict[str, Any] | None:
    """Parse a JSON object; return None for any other text."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def count(record: Any, *keys: str) -> int:
    """Add up counters in an untrusted record; missing values and values that are not numbers count as 0."""
    return sum(int(amount(mapping(record).get(key)) or 0) for key in keys)


def amount(value: Any) -> float | None:
    """Return an untrusted number, or None if it cannot be an amount of tokens or money."""
    is_number = isinstance(value, (int, float)) and 0 <= value < _MOST
    return value if is_number else None


def mapping(value: Any) -> Mapping[str, Any]:
    """Return an untrusted value if it is a mapping, otherwise an empty mapping."""
    return value if isinstance(value, Mapping) else {}


def items(value: Any) -> list[Any]:
    """Return an untrusted value if it is a list, otherwise an empty list."""
    return value if isinstance(value, list) else []
