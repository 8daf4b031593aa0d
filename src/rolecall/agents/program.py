"""Coding agents that are programs: each run gives one answer, and reports its events as JSON lines.

An adapter is a subclass of `Program`. It defines how to call the program (`call`) and how to interpret its events (a
`Reader`). Neither has side effects, so a reader can be tested with a recorded stream. This module handles running,
limits, cancellation, signals and timeouts for all adapters.
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
"""Exit codes after a signal: of programs that catch SIGINT or SIGTERM, or whose child was ended by SIGKILL."""


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
        """Return the sum of some counters; a value that is not an amount counts as 0."""
        return sum(int(self.amount(key) or 0) for key in keys)

    def usage(
        self, input: Sequence[str], output: Sequence[str], cached: Sequence[str] = (), **more: Any
    ) -> Usage:
        """Return the usage, given the counters that add up to each number of tokens."""
        return Usage(self.count(*input), self.count(*output), self.count(*cached), **more)


def parse_object(text: str | bytes) -> Json | None:
    """Parse a JSON object; return None for any other text."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return Json(value) if isinstance(value, dict) else None


def read_object(path: Path) -> Json:
    """Read a JSON object from a file; return an empty object if the program has not written the file."""
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
    """The arguments, input and environment of the program for one prompt."""

    argv: Sequence[str]
    stdin: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment variables added to those of the context."""
    session: str = ""
    """The id that the adapter chose for a new session; empty if the program chooses ids itself."""


class Reader:
    """An accumulator of one run's events. Subclasses define how to interpret each event and the end of the run."""

    no_session: ClassVar[tuple[str, ...]] = ()
    """Messages that the program prints if it does not know the session it should continue."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.transcript = Transcript(context)
        self.noise = ""
        """The beginning of the output that is not events; it often explains why no answer came."""
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
        """Return a reply that says how the run ended, with `text` or, if that is empty, the last message."""
        text = (text or self.transcript.answer)[:LONGEST_ANSWER]
        more |= {"usage": self.usage(), "session_total": self.total()}
        return self.transcript.reply(text, ending, reason[:_LONGEST_REASON], **more)

    def fail(self, error: str, **more: Any) -> Reply:
        """Return a failed reply. `error` is the program's own or its provider's, never the model's words: if it reports
        a limit, the ending is `api_failure`."""
        return self.answer("api_failure" if ratelimit.names_limit(error) else "failed", error, **more)

    def is_lost(self, printed: str) -> bool:
        """Return whether the program says that it does not know the session."""
        return bool(self.context.session) and any(words in printed for words in self.no_session)

    def no_answer(self, exit: Exit) -> Reply:
        """Return the reply after a run without a final event, based on the exit code."""
        ending: Ending = "failed"
        reason = exit.reason
        if exit.code == 0:
            ending, reason = "interrupted", "the program ended without a result: it was interrupted"
        elif exit.code is not None and (exit.code < 0 or exit.code in _BY_SIGNAL):
            ending = "killed"
        elif self.noise.strip() and not exit.stderr.strip():
            reason = f"{reason}: {self.noise.strip()[-2000:]}"
        elif ratelimit.names_limit(reason):
            ending = "api_failure"
        return self.answer(ending, reason, is_session_lost=self.is_lost(exit.stderr))


@dataclass(frozen=True, kw_only=True)
class Program:
    """An adapter for a program, with the information `doctor` needs."""

    name: ClassVar[str]
    program: ClassVar[str]
    install: ClassVar[str]
    """The command that installs the program."""
    reads: ClassVar[type[Reader]]
    needed_flags: ClassVar[tuple[str, ...]] = ()
    """Flags the adapter uses; `doctor` looks for them in the help text."""
    help_arguments: ClassVar[tuple[str, ...]] = ("--help",)
    can_resume: ClassVar[bool] = True
    can_fork: ClassVar[bool] = False
    deniable: ClassVar[frozenset[str]] = frozenset()
    """The classes of actions (`capabilities.CLASSES`) that `call` can deny."""
    mcp_tool: ClassVar[str] = ""
    """How the program names the tools of our MCP server, with `{}` in place of the tool's name; empty if unknown."""
    runs_in_sandbox: ClassVar[bool] = True
    signed_in: ClassVar[tuple[str, ...]] = ()
    """Signs that the user is signed in: environment variables, and paths in the user's home, written `~/…`. An entry
    that ends in `?` is a settings file that might contain a key; if the file exists, the state is unknown."""

    model: str | None = None
    """The model, under the program's own name for it."""
    timeout: float | None = DEFAULT_TIMEOUT
    """The maximum number of seconds for one call; None for no limit."""
    executable: str | None = None
    """The path of the program, if it cannot be found by name."""
    args: tuple[str, ...] = ()
    """Additional arguments, passed unchanged."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment variables added for the program."""

    def call(self, prompt: str, context: Context, folder: Path) -> ProgramCall:
        """Return how to run the program; `folder` is a folder of this run, for files that the program needs."""
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
    """Add the processes that could not be ended to a reply's reason."""
    if not left:
        return reply
    note = f"processes that could not be ended: {', '.join(map(str, left))}"
    return replace(reply, reason=f"{reply.reason} ({note})" if reply.reason else note)


class Lines:
    """A splitter that passes each line of a stream to a reader if the line is a JSON object. The last line must end
    with a line break."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._parts: list[str] = []
        self._size = 0

    def feed(self, text: str) -> None:
        *whole, rest = text.split("\n")
        for part in whole:
            self._add(part)
            line = "".join(self._parts).strip()
            self._parts, self._size = [], 0
            event = parse_object(line) if line.startswith("{") else None
            if event is not None:
                self._reader.event(event)
            elif line:
                self._reader.noise = (self._reader.noise + line + "\n")[:_NOISE]
        self._add(rest)

    def _add(self, part: str) -> None:
        self._size += len(part)
        if self._size > _LONGEST_LINE:  # too long to be an event or to keep in memory
            self._parts = [f"a line of more than {_LONGEST_LINE} characters was left out"]
        else:
            self._parts.append(part)
