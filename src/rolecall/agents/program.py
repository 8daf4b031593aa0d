"""Coding agents that are programs: each run gives one answer, and events are JSON lines.

An adapter is a subclass of `Program`. It defines how to call the program (`call`) and how to interpret its events (a
`Reader`); both are pure, so a reader can be tested with a recorded stream. Running, limits, cancellation, signals and
timeouts are handled here for all adapters.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from rolecall.agents.process import Exit, Started
from rolecall.agents.process import run as run_process
from rolecall.agents.protocol import DEFAULT_TIMEOUT, Context, Ending, Reply, Usage
from rolecall.agents.transcript import LONGEST_ANSWER, Transcript, text_of
from rolecall.settings import capabilities
from rolecall.store import scratch
from rolecall.store.lazy import Module

if TYPE_CHECKING:
    import rolecall.agents.needs as needs
    import rolecall.agents.ratelimit as ratelimit
else:  # most runs have no sandbox and do not fail
    needs = Module("rolecall.agents.needs")
    ratelimit = Module("rolecall.agents.ratelimit")

_LONGEST_LINE = 32 * 1024 * 1024
_KEPT_OUTPUT = 256 * 1024
_NOISE = 4_000
_LONGEST_REASON = 5_000
_MOST = 10**15
_BY_SIGNAL = (130, 137, 143)
"""Exit codes of programs that catch SIGINT, a child's SIGKILL, or SIGTERM."""


class Json(dict[str, Any]):
    """An untrusted JSON object. A part that is missing or has another type reads as empty."""

    def part(self, key: str) -> Json:
        value = self.get(key)
        return Json(value) if isinstance(value, Mapping) else Json()

    def parts(self, key: str) -> list[Json]:
        """Return the objects in a list or among the values of an object."""
        value = self.get(key)
        inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
        return [Json(item) for item in inner if isinstance(item, Mapping)]

    def text(self, *keys: str) -> str:
        """Return the first text found under one of the keys."""
        return next((text for key in keys if (text := text_of(self.get(key)))), "")

    def amount(self, key: str) -> float | None:
        """Return a number, or None if it cannot be an amount of tokens or money."""
        value = self.get(key)
        return value if isinstance(value, (int, float)) and 0 <= value < _MOST else None

    def count(self, *keys: str) -> int:
        """Add up counters; a value that is not an amount counts as 0."""
        return sum(int(self.amount(key) or 0) for key in keys)


def parse_object(text: str | bytes) -> Json | None:
    """Parse a JSON object; return None for any other text."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return Json(value) if isinstance(value, dict) else None


def read_object(path: Path) -> Json:
    """Read a JSON object from a file that a program may not have written."""
    try:
        return parse_object(path.read_bytes()) or Json()
    except OSError:
        return Json()


@dataclass(frozen=True)
class McpServer:
    """A tool server for the agent to start."""

    name: str
    command: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)


def mcp_config(servers: Iterable[McpServer], **more: Any) -> str:
    """Return a tool server configuration in the form most programs read; `more` is added to each entry."""
    entries = {
        server.name: {
            "type": "stdio",
            "command": server.command,
            "args": server.args,
            "env": dict(server.env),
            **more,
        }
        for server in servers
    }
    return json.dumps({"mcpServers": entries})


def write_file(folder: Path, name: str, text: str) -> str:
    """Write a file that the program reads into the run's folder, and return its path."""
    path = folder / name
    path.write_text(text, encoding="utf-8", errors="replace")
    return str(path)


@dataclass(frozen=True)
class ProgramCall:
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
        """The beginning of output other than events; it often explains why no answer came."""
        self.folder = Path()
        """The run's own folder, which exists during the run; some programs write a usage file there."""

    def event(self, event: Json) -> None:
        raise NotImplementedError

    def finish(self, exit: Exit) -> Reply:
        """Return the reply after a run that was not cancelled and did not time out."""
        raise NotImplementedError

    def usage(self) -> Usage | None:
        """Return the run's usage as far as it is known, even after a timeout or cancellation."""
        total = self.total()
        return total.since(self.context.session_total) if total else None

    def total(self) -> Usage | None:
        """Return the session's usage, if the agent reports totals."""
        return None

    def answer(self, ending: Ending = "completed", reason: str = "", *, text: str = "", **more: Any) -> Reply:
        """Return a reply with `text`, or else the last message, and how the run ended."""
        text = (text or self.transcript.answer)[:LONGEST_ANSWER]
        more |= {"usage": self.usage(), "session_total": self.total()}
        return self.transcript.reply(text, ending, reason[:_LONGEST_REASON], **more)

    def fail(self, error: str, **more: Any) -> Reply:
        """Return a reply that failed with an error of the program itself or of its provider, never with the model's
        words: if it reports a limit, the endpoint failed."""
        return self.answer("api_failure" if ratelimit.names_limit(error) else "failed", error, **more)

    def is_lost(self, printed: str) -> bool:
        """Whether the program says that it does not know the session."""
        return bool(self.context.session) and any(words in printed for words in self.no_session)

    def no_answer(self, exit: Exit) -> Reply:
        """Return the reply after a run without a final event, based on the exit code."""
        is_lost = self.is_lost(exit.stderr)
        if exit.code == 0:
            reason = "the program ended without a result: it was interrupted"
            return self.answer("interrupted", reason, is_session_lost=is_lost)
        if exit.code is not None and (exit.code < 0 or exit.code in _BY_SIGNAL):
            return self.answer("killed", exit.reason, is_session_lost=is_lost)
        if self.noise.strip() and not exit.stderr.strip():
            reason = f"{exit.reason}: {self.noise.strip()[-2000:]}"
            return self.answer("failed", reason, is_session_lost=is_lost)
        return self.fail(exit.reason, is_session_lost=is_lost)


@dataclass(frozen=True, kw_only=True)
class Program:
    """An adapter for a program, with the information `doctor` needs."""

    name: ClassVar[str]
    program: ClassVar[str]
    install: ClassVar[str]
    """The command that installs it."""
    reads: ClassVar[type[Reader]]
    needed_flags: ClassVar[tuple[str, ...]] = ()
    """Flags the adapter uses; `doctor` looks for them in the help text."""
    help_arguments: ClassVar[tuple[str, ...]] = ("--help",)
    can_resume: ClassVar[bool] = True
    can_fork: ClassVar[bool] = False
    deniable: ClassVar[frozenset[str]] = frozenset()
    """The classes of actions (`capabilities.CLASSES`) that `call` can deny."""
    runs_in_sandbox: ClassVar[bool] = True
    signed_in: ClassVar[tuple[str, ...]] = ()
    """Signs of being signed in: variables, and paths in the user's home as `~/…`. An entry that ends in `?` is a
    setting that may contain a key; if it exists, the state is unknown."""

    model: str | None = None
    """The model, by the program's own name for it."""
    timeout: float | None = DEFAULT_TIMEOUT
    """Seconds for one call."""
    executable: str | None = None
    """The program's path, if it is not found by name."""
    args: tuple[str, ...] = ()
    """Additional arguments, passed unchanged."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables added to its environment."""

    def call(self, prompt: str, context: Context, folder: Path) -> ProgramCall:
        """Return how to run the program; `folder` is the run's own, for files the program needs."""
        raise NotImplementedError

    def reader(self, context: Context) -> Reader:
        return self.reads(context)

    @property
    def command(self) -> str:
        return self.executable or self.program

    @property
    def last_arguments(self) -> list[str]:
        """The model, and the user's additional arguments."""
        return [*(["--model", self.model] if self.model else []), *self.args]

    async def __call__(self, prompt: str, context: Context) -> Reply:
        by_kernel = context.sandbox.layers.deniable if context.sandbox else ()
        capabilities.check_supported(self.name, context.capabilities, self.deniable, by_kernel=by_kernel)
        reader = self.reader(context)
        lines = Lines(reader)
        with scratch.folder() as folder:
            reader.folder = folder
            call = self.call(prompt, context, folder)
            env = {**context.env, **call.env}

            def note_start(child: Started) -> None:
                context.emit("process", child._asdict())
                reader.transcript.in_session(call.session)

            async with AsyncExitStack() as stack:
                argv, sandbox = call.argv, context.sandbox
                if sandbox is not None:
                    entry = needs.enter(
                        sandbox, self.name, argv,
                        env=env, folder=context.workdir, own=call.env, write=[str(folder)],
                    )  # fmt: skip
                    argv, sandbox = await stack.enter_async_context(entry)
                exit = await run_process(
                    argv,
                    cwd=context.workdir,
                    env=env,
                    prompt=call.stdin,
                    timeout=self.timeout,
                    cancel=context.cancel,
                    on_start=note_start,
                    on_text=lines.feed,
                    max_output=_KEPT_OUTPUT,
                    sandbox=sandbox,
                )
            lines.feed("\n")
            if exit.ending in ("timeout", "interrupted"):
                return reader.answer(exit.ending, exit.reason, hint=exit.hint)
            return note_leftovers(reader.finish(exit), exit.left)


def note_leftovers(reply: Reply, left: Sequence[int]) -> Reply:
    """Add processes that could not be ended to the reason of a reply."""
    if not left:
        return reply
    note = f"processes that could not be ended: {', '.join(map(str, left))}"
    return replace(reply, reason=f"{reply.reason} ({note})" if reply.reason else note)


class Lines:
    """Splits a stream into lines and passes JSON objects to a reader; the last line must be ended."""

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

    def _add(self, piece: str) -> None:
        self._size += len(piece)
        if self._size > _LONGEST_LINE:  # too long to be an event or to keep in memory
            self._pieces = [f"a line of more than {_LONGEST_LINE} characters was left out"]
        else:
            self._pieces.append(piece)
