"""A running agent: its process, the protocol connection to it, and its open sessions.

Starting an agent can take seconds, so an adapter keeps its links between calls. One link serves one call at a time,
because two prompts in one process could not be stopped separately.

The connection comes from the protocol's own package; only the message transport is ours. Updates reach the reader
immediately and in order, other lines are kept as noise, and an overlong line ends the connection with a reason.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rolecall import __version__
from rolecall.agents import process
from rolecall.agents.acp_presets import FOLDER, Launch
from rolecall.agents.acp_reader import AcpReader, chosen_option
from rolecall.agents.program import McpServer, mapping
from rolecall.agents.protocol import Usage
from rolecall.errors import AgentError, UsageError
from rolecall.store import scratch

if TYPE_CHECKING:
    from acp.client.connection import ClientSideConnection
    from acp.exceptions import RequestError
    from acp.schema import AgentCapabilities

PROTOCOL = 1
SIGNED_OUT = -32000
NOT_FOUND = -32002
LONGEST_LINE = 32 * 1024 * 1024
_NOISE = 4_000
_MOST_IDLE = 4
_PATIENCE = 2.0
"""Seconds to wait for a cancelled prompt to end."""


@dataclass(frozen=True)
class Start:
    """The parameters of an agent's process. A process can be reused if they are the same."""

    words: tuple[str, ...]
    launch: Launch
    folder: Path
    env: Mapping[str, str]

    @property
    def identity(self) -> tuple[Any, ...]:
        # The run's mark differs from step to step but makes no difference to the agent.
        env = {key: value for key, value in self.env.items() if key != process.RUN_VARIABLE}
        return self.words, self.launch, self.folder, env


class Wire:
    """Carries messages between the child process and the protocol package's connection."""

    def __init__(self, talk: process.Conversation, hear: Callable[[Mapping[str, Any]], None]) -> None:
        self._talk = talk
        self._hear = hear
        self.noise = ""
        """Lines that are not messages; they often explain why no message came."""
        self.failure: Exception | None = None
        self.failed = asyncio.Event()

    async def send(self, message: dict[str, Any]) -> None:
        text = json.dumps(message, ensure_ascii=False, separators=(",", ":"))
        try:
            await self._talk.write(text.encode("utf-8", "replace") + b"\n")
        except OSError as error:
            if "method" in message:  # a response that nobody reads does not matter
                raise ConnectionError("the agent does not read its input any more") from error

    async def receive(self) -> dict[str, Any] | None:
        """Return the next request or response, or None at the end of the output."""
        try:
            while (line := await self._talk.read()) is not None:
                message = _message(line)
                if message is None:
                    self.noise = (self.noise + line[:_NOISE].decode("utf-8", "replace") + "\n")[:_NOISE]
                elif "id" in message:
                    return message
                elif message.get("method") == "session/update":
                    self._hear(message)
        except Exception as error:  # from the reader, or an overlong line: the waiting call raises it
            self.fail(error)
        return None

    async def close(self) -> None:
        """Do nothing: the link owns the process."""

    def fail(self, error: Exception) -> None:
        self.failure = self.failure or error
        self.failed.set()


class Link:
    def __init__(self, start: Start) -> None:
        self.start = start
        self._loop = asyncio.get_running_loop()
        self._stack = AsyncExitStack()
        self._folder = ""
        self._reader: AcpReader | None = None
        self._session: str | None = None
        self.is_busy = True
        self.heard = 0
        """The number of updates received."""
        self.sessions: set[str] = set()
        """The sessions that are open in this process."""
        self.counted: dict[str, Usage] = {}
        """The usage that the process reported for each session after its last prompt."""
        self.talk: process.Conversation
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
        return self._loop.is_closed() or (
            self.is_here and (not self.talk.is_open or self.wire.failed.is_set())
        )

    @property
    def is_prompted(self) -> bool:
        return self._session is not None

    async def open(self) -> None:
        """Start the process. Whether it really is an agent becomes clear at the first request."""
        start, launch = self.start, self.start.launch
        if launch.files:
            self._folder = str(self._stack.enter_context(scratch.folder()))
        for name, text in launch.files.items():
            Path(self._folder, name).write_text(text, encoding="utf-8")
        words = [*start.words, *(word.replace(FOLDER, self._folder) for word in launch.args)]
        self.talk = await self._stack.enter_async_context(
            process.conversation(words, cwd=start.folder, env=start.env, max_line=LONGEST_LINE)
        )
        self.wire = Wire(self.talk, self._hear)

    async def connect(self) -> ClientSideConnection:
        """Open the protocol connection. Its package takes a second to import, while the agent starts."""
        if self.connection is None:
            try:
                core = await asyncio.to_thread(import_module, "acp.core")
            except ModuleNotFoundError as error:
                raise AgentError(
                    f"the package of the Agent Client Protocol is not installed: {error}",
                    ending="failed",
                    hint="Install it: pip install 'rolecall[acp]'",
                ) from error
            self.connection = core.connect_to_agent(_Client(self), self.wire)
        return self.connection

    async def close(self) -> None:
        """End the process and everything it started."""
        try:
            if self.connection is not None and self.is_here:
                await self.connection.close()
        finally:
            await self._stack.aclose()

    def listen(self, reader: AcpReader | None, session: str | None = None) -> None:
        """Send a session's updates and permission requests to `reader` from now on."""
        self._reader, self._session = reader, session

    async def stop(self, asked: asyncio.Future[Any]) -> None:
        """Ask the agent to stop, and wait briefly until it does."""
        if self._session is None or self.connection is None:
            return
        with suppress(ConnectionError, TimeoutError):  # the process is ended anyway
            await asyncio.wait_for(self.connection.cancel(session_id=self._session), _PATIENCE)
            await asyncio.wait({asked}, timeout=_PATIENCE)

    def _hear(self, message: Mapping[str, Any]) -> None:
        self.heard += 1
        params = message.get("params")
        if self._reader is None or not isinstance(params, Mapping):
            return
        update = params.get("update")
        if params.get("sessionId") == self._session and isinstance(update, Mapping):
            self._reader.event(update)

    def allows(self, call: Mapping[str, Any]) -> bool:
        if self._reader is None:
            return False
        try:
            return not self._reader.permission(call).denied
        except Exception as error:  # raised by the waiting call, not inside the protocol's package
            self.wire.fail(error)
            return False


class _Client:
    """Our side of the protocol: it answers permission requests and offers no files or terminals."""

    def __init__(self, link: Link) -> None:
        self._link = link

    async def request_permission(self, session_id: str, tool_call: Any, options: Any, **_meta: Any) -> Any:  # noqa: ARG002 -- the package's signature
        from acp.schema import AllowedOutcome, DeniedOutcome, RequestPermissionResponse

        is_allowed = self._link.allows(tool_call.model_dump(mode="json", by_alias=True, exclude_none=True))
        offered = [option.model_dump(mode="json", by_alias=True) for option in options]
        option = chosen_option(offered, is_allowed=is_allowed)
        if option is None:
            return RequestPermissionResponse(outcome=DeniedOutcome(outcome="cancelled"))
        return RequestPermissionResponse(outcome=AllowedOutcome(outcome="selected", option_id=option))


@dataclass
class Links:
    """The open links of one adapter."""

    _open: list[Link] = field(default_factory=list)

    async def take(self, start: Start, session: str | None) -> Link:
        """Return an idle link, preferably the one with this session open, or start a new one."""
        await self._drop([link for link in self._open if not link.is_busy and link.is_lost])
        fitting = [
            link
            for link in self._open
            if not link.is_busy and link.is_here and link.start.identity == start.identity
        ]
        found = max(fitting, key=lambda link: session in link.sessions, default=None)
        if found is None:
            found = Link(start)
            await found.open()
            self._open.append(found)
        found.is_busy = True
        for other in self._open:
            if other is not found and session is not None:
                # The session continues here, so another process's copy of it becomes outdated.
                other.sessions.discard(session)
        return found

    async def give(self, link: Link) -> None:
        """Keep a link for the next call, and close the links that have been idle longest if there are too many."""
        link.listen(None)
        link.is_busy = False
        self._open = [*(other for other in self._open if other is not link), link]
        await self._drop([other for other in self._open if not other.is_busy and other.is_here][:-_MOST_IDLE])

    async def end(self, link: Link) -> None:
        """Close a link."""
        await self._drop([link])

    async def aclose(self) -> None:
        await self._drop([link for link in self._open if link.is_here and not link.is_busy])

    async def _drop(self, links: list[Link]) -> None:
        # Remove them from the list before awaiting anything, because another call may read it meanwhile.
        self._open = [link for link in self._open if link not in links]
        await asyncio.gather(*(link.close() for link in links))


def _message(line: bytes) -> dict[str, Any] | None:
    """Parse a line into a message that the protocol's package accepts; return None for any other line."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(message, dict) or not isinstance(message.get("id"), (int, str, type(None))):
        return None
    if "method" in message and not isinstance(message["method"], str):
        return None
    if "error" in message and not isinstance(message["error"], Mapping):
        message["error"] = {"code": -32603, "message": str(message["error"])}
    return message


# -- sessions --


class SessionLost(Exception):
    """Raised if the agent does not know the session."""


@dataclass(frozen=True)
class Wanted:
    """The session to open."""

    agent: str
    """The agent's name, for error messages."""
    folder: str
    session: str | None
    """The session to continue; None opens a new one."""
    is_fork: bool
    servers: Sequence[McpServer]
    model: str | None
    """The model to choose among those the session offers."""


async def open_session(link: Link, connection: ClientSideConnection, wanted: Wanted) -> str:
    """Open or continue a session and return its id."""
    from acp.schema import AgentCapabilities, ClientCapabilities, EnvVariable, Implementation, McpServerStdio

    if link.capabilities is None:
        found = await connection.initialize(
            protocol_version=PROTOCOL,
            client_capabilities=ClientCapabilities(),
            client_info=Implementation(name="rolecall", version=__version__),
        )
        if found.protocol_version != PROTOCOL:
            raise AgentError(
                f"{wanted.agent} speaks version {found.protocol_version} of the protocol, not {PROTOCOL}",
                ending="failed",
                hint="Another version of the agent is needed.",
            )
        link.capabilities = found.agent_capabilities or AgentCapabilities()
    if wanted.session in link.sessions and wanted.session is not None and not wanted.is_fork:
        return wanted.session
    servers = [
        McpServerStdio(
            name=server.name,
            command=server.command,
            args=list(server.args),
            env=[EnvVariable(name=key, value=value) for key, value in server.env.items()],
        )
        for server in wanted.servers
    ]
    given: dict[str, Any] = {"cwd": wanted.folder, "mcp_servers": servers, **link.start.launch.meta}
    if wanted.session is None:
        opened: Any = await connection.new_session(**given)
        session = opened.session_id
    else:
        opened, session = await _reopen(link, connection, wanted, given)
    await _configure(link, connection, wanted, session, opened)
    link.sessions.add(session)
    return str(session)


async def _reopen(
    link: Link, connection: ClientSideConnection, wanted: Wanted, given: Mapping[str, Any]
) -> tuple[Any, str]:
    """Copy a session, or reopen one from an earlier process without passing on its replayed updates. Loading is tried
    before resuming, because an agent asked to resume an unknown session may start a new one instead."""
    from acp.exceptions import RequestError

    session, heard = str(wanted.session), link.heard
    can = link.capabilities
    verbs = can.session_capabilities if can else None
    try:
        if wanted.is_fork:
            if verbs is None or verbs.fork is None:
                raise SessionLost(f"{wanted.agent} cannot copy a session")
            copy = await connection.fork_session(session_id=session, **given)
            return copy, copy.session_id
        if can is not None and can.load_session:
            loaded = await connection.load_session(session_id=session, **given)
            if link.heard == heard and not loaded.model_dump(exclude_none=True):
                # Some agents return an empty response for an unknown session; a known one always has something to
                # replay.
                raise SessionLost(f"{wanted.agent} does not know the session {session}")
            return loaded, session
        if verbs is not None and verbs.resume is not None:
            return await connection.resume_session(session_id=session, **given), session
    except RequestError as error:
        if error.code == SIGNED_OUT:
            raise
        raise SessionLost(f"{wanted.agent} does not know the session {session}: {explain(error)}") from error
    raise SessionLost(f"{wanted.agent} cannot go on in a session of an earlier process")


async def _configure(
    link: Link, connection: ClientSideConnection, wanted: Wanted, session: str, opened: Any
) -> None:
    """Set the session to the mode that enforces the role's restrictions, and to the chosen model."""
    mode, options = link.start.launch.mode, opened.config_options or []
    # Some agents report the mode separately, others among the session's options.
    current = next((str(option.current_value) for option in options if option.category == "mode"), None)
    if opened.modes is not None:
        current = str(opened.modes.current_mode_id)
    if mode and mode != current:
        await connection.set_session_mode(session_id=session, mode_id=mode)
    if not wanted.model:
        return
    choice = next((option for option in options if "model" in (option.category, option.id)), None)
    if choice is None:
        raise UsageError(
            f"{wanted.agent} offers no choice of models",
            hint="Name the model in its command or its own configuration.",
        )
    await connection.set_config_option(session_id=session, config_id=choice.id, value=wanted.model)


def explain(error: RequestError) -> str:
    """Return an error's text. Agents put the actual reason into its data as often as into its message."""
    message, data = str(error), error.data
    found = [data] if isinstance(data, str) else [mapping(data).get(key) for key in ("message", "details")]
    more = next((text for text in found if isinstance(text, str) and text not in message), "")
    return f"{message}: {more}"[:2000] if more else message[:2000]
