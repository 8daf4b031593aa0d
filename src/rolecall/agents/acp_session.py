"""Opens a session with an agent: a new one, one of an earlier process, or a copy of one.

What an agent can do it says when it is greeted. One that cannot load a session, or does not know it, has lost
it: that is told apart from every other failure, because asking anew helps then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rolecall.agents.acp_link import Link
from rolecall.agents.program import McpServer, mapping
from rolecall.errors import AgentError, UsageError

if TYPE_CHECKING:
    from acp.client.connection import ClientSideConnection
    from acp.exceptions import RequestError
    from acp.schema import AgentCapabilities

PROTOCOL = 1
SIGNED_OUT = -32000
NOT_FOUND = -32002


class SessionLost(Exception):
    """The agent has no such session."""


@dataclass(frozen=True)
class Wanted:
    """How a session is to be opened."""

    agent: str
    """The agent's name, for what is said about it."""
    folder: str
    session: str | None
    """The one to go on in; None opens a new one."""
    is_fork: bool
    servers: Sequence[McpServer]
    model: str | None
    """To be chosen among those that the session offers."""


async def open_session(link: Link, connection: ClientSideConnection, wanted: Wanted) -> str:
    """The id of a session that is ready to be prompted."""
    can = await _greeted(link, connection, wanted.agent)
    if wanted.session in link.sessions and wanted.session is not None and not wanted.is_fork:
        return wanted.session
    given: dict[str, Any] = {
        "cwd": wanted.folder,
        "mcp_servers": _servers(wanted.servers),
        **link.start.launch.meta,
    }
    if wanted.session is None:
        opened = await connection.new_session(**given)
        session = opened.session_id
    else:
        opened, session = await _opened_again(link, connection, can, wanted, given)
    await _set_up(link, connection, wanted, session, opened)
    link.sessions.add(session)
    return session


async def _greeted(link: Link, connection: ClientSideConnection, agent: str) -> AgentCapabilities:
    from acp.schema import AgentCapabilities, ClientCapabilities, Implementation

    from rolecall import __version__

    if link.capabilities is None:
        found = await connection.initialize(
            protocol_version=PROTOCOL,
            client_capabilities=ClientCapabilities(),
            client_info=Implementation(name="rolecall", version=__version__),
        )
        if found.protocol_version != PROTOCOL:
            raise AgentError(
                f"{agent} speaks version {found.protocol_version} of the protocol, not {PROTOCOL}",
                ending="failed",
                hint="Another version of the agent is needed.",
            )
        link.capabilities = found.agent_capabilities or AgentCapabilities()
    return link.capabilities


def _servers(servers: Sequence[McpServer]) -> list[Any]:
    from acp.schema import EnvVariable, McpServerStdio

    return [
        McpServerStdio(
            name=server.name,
            command=server.command,
            args=list(server.args),
            env=[EnvVariable(name=key, value=value) for key, value in server.env.items()],
        )
        for server in servers
    ]


async def _opened_again(
    link: Link,
    connection: ClientSideConnection,
    can: AgentCapabilities,
    wanted: Wanted,
    given: Mapping[str, Any],
) -> tuple[Any, str]:
    from acp.exceptions import RequestError

    session = str(wanted.session)
    try:
        if wanted.is_fork:
            return await _copied(connection, can, wanted, given)
        return await _loaded(link, connection, can, wanted, given), session
    except RequestError as error:
        if error.code == SIGNED_OUT:
            raise
        raise SessionLost(f"{wanted.agent} does not know the session {session}: {told(error)}") from error


async def _copied(
    connection: ClientSideConnection, can: AgentCapabilities, wanted: Wanted, given: Mapping[str, Any]
) -> tuple[Any, str]:
    if not can.session_capabilities or can.session_capabilities.fork is None:
        raise SessionLost(f"{wanted.agent} cannot copy a session")
    opened = await connection.fork_session(session_id=str(wanted.session), **given)
    return opened, opened.session_id


async def _loaded(
    link: Link,
    connection: ClientSideConnection,
    can: AgentCapabilities,
    wanted: Wanted,
    given: Mapping[str, Any],
) -> Any:
    """What is replayed of the session is heard by nobody. Loading goes before resuming, because an agent that
    resumes a session it does not know may begin another in its place."""
    session, heard = str(wanted.session), link.heard
    if can.load_session:
        found = await connection.load_session(session_id=session, **given)
        if link.heard == heard and not found.model_dump(exclude_none=True):
            # Some say nothing at all where they do not know it; of a session there is always something to replay.
            raise SessionLost(f"{wanted.agent} does not know the session {session}")
        return found
    if can.session_capabilities and can.session_capabilities.resume is not None:
        return await connection.resume_session(session_id=session, **given)
    raise SessionLost(f"{wanted.agent} cannot go on in a session of an earlier process")


async def _set_up(
    link: Link, connection: ClientSideConnection, wanted: Wanted, session: str, opened: Any
) -> None:
    """Put a session into the mode in which the role's restrictions hold, and on the model that was chosen."""
    mode, options = link.start.launch.mode, opened.config_options or []
    if mode and mode != _mode_of(opened, options):
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


def _mode_of(opened: Any, options: Sequence[Any]) -> str | None:
    """The mode of a session, which some agents tell as such and some among its options."""
    if opened.modes is not None:
        return str(opened.modes.current_mode_id)
    return next((str(option.current_value) for option in options if option.category == "mode"), None)


def told(error: RequestError) -> str:
    """What an error says: agents put the point of it into its data as often as into its message."""
    message, data = str(error), error.data
    found = [data] if isinstance(data, str) else [mapping(data).get(key) for key in ("message", "details")]
    more = next((text for text in found if isinstance(text, str) and text not in message), "")
    return f"{message}: {more}"[:2000] if more else message[:2000]
