"""A running agent: its process, the messages exchanged with it, and its open sessions.

Starting an agent can take seconds, so an adapter keeps its links between calls. A link serves only one call at a time,
because two prompts in one process could not be stopped separately. acp_session.py speaks the protocol over a link.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rolecall.agents.acp_presets import FOLDER, Launch
from rolecall.agents.acp_reader import AcpReader
from rolecall.agents.process import RUN_VARIABLE, TRACEPARENT, LineProcess, conversation
from rolecall.agents.program import Json, McpServer, parse_object
from rolecall.agents.protocol import Usage
from rolecall.store import scratch
from rolecall.store.canonical import JsonObject
from rolecall.store.lazy import Module

if TYPE_CHECKING:
    from acp.client.connection import ClientSideConnection
    from acp.schema import AgentCapabilities

    import rolecall.agents.needs as needs
    from rolecall.agents.sandbox import Policy
else:
    needs = Module("rolecall.agents.needs")

_LONGEST_LINE = 32 * 1024 * 1024
_NOISE = 4_000
_MOST_IDLE = 4
_PATIENCE = 2.0
"""The number of seconds to wait for a cancelled prompt to end."""


@dataclass(frozen=True)
class AgentStart:
    """The parameters of an agent's process. A process can be reused for a call with the same parameters."""

    words: tuple[str, ...]
    launch: Launch
    folder: Path
    env: Mapping[str, str]
    sandbox: Policy | None = None
    agent: str = ""
    """The name of the agent, which determines what it needs in a sandbox."""
    own: tuple[str, ...] = ()
    """The names of the environment variables that the adapter sets for the agent."""
    servers: tuple[McpServer, ...] = ()
    """The tool servers of each session, in addition to those of `launch`."""
    model: str | None = None
    """The model to choose in each session."""

    def is_like(self, other: AgentStart) -> bool:
        # The run's mark and the span differ from step to step, but the agent does not depend on them.
        ours, theirs = ({**start.env, RUN_VARIABLE: "", TRACEPARENT: ""} for start in (self, other))
        is_same = (self.words, self.launch, self.folder) == (other.words, other.launch, other.folder)
        return is_same and ours == theirs and self.sandbox == other.sandbox


class Wire:
    """The transport between the child process and the connection of the protocol's package. Updates reach the reader
    immediately and in order. Lines that are not messages are kept as noise, and an overlong line ends the connection
    with a reason."""

    def __init__(self, talk: LineProcess, hear: Callable[[Json], None]) -> None:
        self._talk = talk
        self._hear = hear
        self.noise = ""
        """The beginning of the lines that are not messages; they often explain why no message came."""
        self.failure: Exception | None = None
        self.failed = asyncio.Event()

    async def send(self, message: JsonObject) -> None:
        text = json.dumps(message, ensure_ascii=False, separators=(",", ":"))
        try:
            await self._talk.write(text.encode("utf-8", "replace") + b"\n")
        except OSError as error:
            if "method" in message:  # a response that nobody reads does not matter
                raise ConnectionError("the agent no longer reads its input") from error

    async def receive(self) -> Json | None:
        """Return the next request or response, or None at the end of the output."""
        try:
            while (line := await self._talk.read()) is not None:
                message = parse_object(line)
                is_message = message is not None and isinstance(message.get("id"), (int, str, type(None)))
                if message is None or not is_message or not isinstance(message.get("method", ""), str):
                    self.noise = (self.noise + line[:_NOISE].decode("utf-8", "replace") + "\n")[:_NOISE]
                elif "id" in message:
                    if "error" in message and not isinstance(message["error"], Mapping):
                        message["error"] = {"code": -32603, "message": str(message["error"])}
                    return message
                elif message.get("method") == "session/update":
                    self._hear(message.part("params"))
        except Exception as error:  # such as an overlong line; the waiting call raises it
            self.fail(error)
        return None

    async def close(self) -> None:
        """Do nothing: the link owns the process."""

    def fail(self, error: Exception) -> None:
        self.failure = self.failure or error
        self.failed.set()


class AcpLink:
    def __init__(self, start: AgentStart) -> None:
        self.start = start
        self._loop = asyncio.get_running_loop()
        self._stack = AsyncExitStack()
        self._reader: AcpReader | None = None
        self.session: str | None = None
        """The session whose updates go to the reader; None while no prompt is running."""
        self.is_busy = True
        self.heard = 0
        """The number of updates received."""
        self.sessions: set[str] = set()
        """The sessions that are open in this process."""
        self.counted: dict[str, Usage] = {}
        """The usage that the process reported for each session after its last prompt."""
        self.talk: LineProcess
        self.wire: Wire
        self.connection: ClientSideConnection | None = None
        self.capabilities: AgentCapabilities | None = None
        """The agent's capabilities, or None before it is initialized."""

    @property
    def is_here(self) -> bool:
        return self._loop is asyncio.get_running_loop()

    @property
    def is_lost(self) -> bool:
        """Whether the link can no longer be used. An event loop that has ended has also ended its child processes."""
        is_broken = self.is_here and (not self.talk.is_open or self.wire.failed.is_set())
        return self._loop.is_closed() or is_broken

    async def open(self) -> None:
        """Start the process. Only the first request shows whether the program speaks the protocol."""
        start, launch = self.start, self.start.launch
        folder = str(self._stack.enter_context(scratch.folder())) if launch.files else ""
        for name, text in launch.files.items():
            Path(folder, name).write_text(text, encoding="utf-8")
        words = [*start.words, *(word.replace(FOLDER, folder) for word in launch.args)]
        sandbox = start.sandbox
        if sandbox is not None:
            entry = needs.enter(
                sandbox, start.agent, words, env=start.env, folder=start.folder, own=start.own
            )
            words, sandbox = await self._stack.enter_async_context(entry)
        self.talk = await self._stack.enter_async_context(
            conversation(words, cwd=start.folder, env=start.env, max_line=_LONGEST_LINE, sandbox=sandbox)
        )
        self.wire = Wire(self.talk, self._hear)

    async def close(self) -> None:
        """End the process and everything it started."""
        try:
            if self.connection is not None and self.is_here:
                await self.connection.close()
        finally:
            await self._stack.aclose()

    def tell_enforced(self, sandbox: Policy | None) -> None:
        """Record in the policy of a call what the sandbox of the process enforces."""
        self.talk.child.read_report()
        if sandbox is not None and self.start.sandbox is not None:
            lines = self.start.sandbox.enforced
            sandbox.enforced.extend(line for line in lines if line not in sandbox.enforced)

    def listen(self, reader: AcpReader | None, session: str | None = None) -> None:
        """Direct a session's updates and permission requests to `reader` from now on."""
        self._reader, self.session = reader, session

    async def stop(self, asked: asyncio.Future[Any]) -> None:
        """Ask the agent to stop, and wait briefly until it does."""
        if self.session is None or self.connection is None:
            return
        with suppress(ConnectionError, TimeoutError):  # the process is killed in any case
            await asyncio.wait_for(self.connection.cancel(session_id=self.session), _PATIENCE)
            await asyncio.wait({asked}, timeout=_PATIENCE)

    def _hear(self, params: Json) -> None:
        self.heard += 1
        if self._reader is not None and params.get("sessionId") == self.session and params.part("update"):
            self._reader.event(params.part("update"))

    def allows(self, call: Json) -> bool:
        if self._reader is None:
            return False
        try:
            return not self._reader.find_denied(call)
        except Exception as error:  # the waiting call raises it, not the protocol's package
            self.wire.fail(error)
            return False


class Links:
    """The open links of one adapter."""

    def __init__(self) -> None:
        self._open: list[AcpLink] = []

    async def take(self, start: AgentStart, session: str | None) -> AcpLink:
        """Return an idle link, preferably one in which this session is open, or start a new link."""
        await self.end(*(link for link in self._open if not link.is_busy and link.is_lost))
        idle = [
            link for link in self._open if not link.is_busy and link.is_here and link.start.is_like(start)
        ]
        found = max(idle, key=lambda link: session in link.sessions, default=None)
        if found is None:
            found = AcpLink(start)
            await found.open()
            self._open.append(found)
        found.is_busy = True
        for other in self._open:
            if other is not found and session is not None:
                # The session continues in this process, so a copy in another process becomes outdated.
                other.sessions.discard(session)
        return found

    async def give(self, link: AcpLink) -> None:
        """Keep a link for the next call. If there are too many idle links, close those that have been idle longest."""
        link.listen(None)
        link.is_busy = False
        self._open = [*(other for other in self._open if other is not link), link]
        await self.end(*[other for other in self._open if not other.is_busy and other.is_here][:-_MOST_IDLE])

    async def end(self, *links: AcpLink) -> None:
        # Remove the links from the list before awaiting anything, because another call could use the list during the
        # wait.
        self._open = [link for link in self._open if link not in links]
        await asyncio.gather(*(link.close() for link in links))

    async def aclose(self) -> None:
        await self.end(*(link for link in self._open if link.is_here and not link.is_busy))
