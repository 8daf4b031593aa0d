"""Coding agents that are programs: one run of the program is one answer, its events are JSON lines.

An adapter is a subclass of `Program`. It says how the program is called (`call`) and what its events mean (a `Reader`);
both are pure, so a recorded stream tests a reader without the program. Running, bounds, cancellation, signals and
timeouts are handled here, once for all adapters.
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
"""Exit codes of programs that catch a signal: SIGINT, SIGKILL of their child, SIGTERM."""


@dataclass(frozen=True)
class McpServer:
    """A tool server that the agent is to start."""

    name: str
    command: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Call:
    """How the program is run for one prompt."""

    argv: Sequence[str]
    stdin: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    """Laid over the context's variables."""
    session: str = ""
    """The id that the program was told to give its new session, where it takes one."""


class Reader:
    """Folds the events of one run. Subclasses give meaning to `event` and to how the run ended."""

    no_session: ClassVar[tuple[str, ...]] = ()
    """What the program prints when it does not know the session it is to continue."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.transcript = Transcript(context)
        self.noise = ""
        """The beginning of what was printed besides events; it often says why nothing else came."""
        self.folder = Path()
        """The run's own folder while the run lasts: some programs leave a file of figures there."""

    def event(self, event: Mapping[str, Any]) -> None:
        raise NotImplementedError

    def finish(self, exit: process.Exit) -> Reply:
        """The reply after a run that was neither cancelled nor ran out of time."""
        raise NotImplementedError

    def usage(self) -> Usage | None:
        """What the run has used, as far as it is known; also asked after a timeout or a cancel."""
        return None

    def total(self) -> Usage | None:
        """What the session has used, where the agent counts over all of it."""
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
        """The reply after a run without the event that says how it ended: only the exit code is left to go by."""
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
    """An adapter: an agent, and what `doctor` has to know about its program."""

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
    """Where a sign of being signed in is found: variables, and paths from the user's home as `~/…`. One that
    ends in `?` is a setting that may hold a key of its own: with it there, nobody can tell."""

    model: str | None = None
    timeout: float | None = DEFAULT_TIMEOUT
    executable: str | None = None
    """The program's path, where it is not found by its name."""
    args: tuple[str, ...] = ()
    """Further arguments, as they are."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Laid over the context's variables."""

    def call(self, prompt: str, context: Context, folder: Path) -> Call:
        """How to run it; `folder` is the run's own, for files the program is to read."""
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
    """Cuts a stream into lines and gives those that are JSON objects to a reader."""

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
        if self._size > _LONGEST_LINE:  # no event, and not worth the memory
            self._pieces = [f"a line of more than {_LONGEST_LINE} characters was left out"]
        else:
            self._pieces.append(piece)


def mcp_file(servers: Iterable[McpServer], folder: Path, **more: Any) -> Path:
    """A configuration of tool servers in the form that most programs read; `more` goes into each entry."""
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
    """A JSON object; None for any other text."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def count(record: Any, *keys: str) -> int:
    """The sum of counters in a record of somebody else's: what is missing or no number counts nothing."""
    return sum(int(amount(mapping(record).get(key)) or 0) for key in keys)


def amount(value: Any) -> float | None:
    """A number of somebody else's; None for anything that cannot be one of tokens or money."""
    is_number = isinstance(value, (int, float)) and 0 <= value < _MOST
    return value if is_number else None


def mapping(value: Any) -> Mapping[str, Any]:
    """A record of somebody else's as a mapping; anything else is an empty one."""
    return value if isinstance(value, Mapping) else {}


def items(value: Any) -> list[Any]:
    """A list of somebody else's; anything else is an empty one."""
    return value if isinstance(value, list) else []
