"""Speaks the Agent Client Protocol over a link, using the protocol's own package.

Imported only when an agent is first asked, because importing the package takes a second.
"""

from __future__ import annotations

from typing import Any

from acp.client.connection import ClientSideConnection
from acp.core import connect_to_agent
from acp.exceptions import RequestError
from acp.helpers import text_block
from acp.schema import (
    AgentCapabilities,
    AllowedOutcome,
    ClientCapabilities,
    DeniedOutcome,
    EnvVariable,
    Implementation,
    McpServerStdio,
    RequestPermissionResponse,
)
from pydantic import ValidationError

from rolecall import __version__
from rolecall.agents.acp_link import AcpLink
from rolecall.agents.acp_reader import AcpReader, choose_option
from rolecall.agents.process import TRACEPARENT
from rolecall.agents.program import Json
from rolecall.agents.protocol import Context, Ending, Reply
from rolecall.errors import AgentError, UsageError

_PROTOCOL = 1
_SIGNED_OUT = -32000
_NOT_FOUND = -32002


class SessionLost(Exception):
    """An error for a session that the agent does not know or cannot continue."""


class _Client:
    """The client side of the protocol: it answers permission requests, and offers no file or terminal access."""

    def __init__(self, link: AcpLink) -> None:
        self._link = link

    async def request_permission(self, session_id: str, tool_call: Any, options: Any, **_meta: Any) -> Any:  # noqa: ARG002 -- the package's signature
        is_allowed = self._link.allows(_dump(tool_call))
        option = choose_option([(option.kind, option.option_id) for option in options], is_allowed=is_allowed)
        if option is None:
            return RequestPermissionResponse(outcome=DeniedOutcome(outcome="cancelled"))
        return RequestPermissionResponse(outcome=AllowedOutcome(outcome="selected", option_id=option))


def _dump(model: Any) -> Json:
    return Json(model.model_dump(mode="json", by_alias=True, exclude_none=True))


async def exchange(link: AcpLink, reader: AcpReader, prompt: str) -> Reply:
    """Open the session, send the prompt and return the reply. An error also becomes a reply: an error after the prompt
    was sent counts as the model's, an earlier one as the agent's."""
    agent = f"acp:{link.start.agent}"
    if link.connection is None:
        link.connection = connect_to_agent(_Client(link), link.wire)  # type: ignore[arg-type]
    try:
        session = await _open_session(link, link.connection, reader.context, agent)
        reader.transcript.in_session(session)
        reader.counted_before = link.counted.get(session)
        link.listen(reader, session)
        text = prompt.encode("utf-8", "replace").decode("utf-8")
        # The span is in the request, not the environment: if one process serves several steps, its environment keeps
        # the span of the first.
        about = {"traceparent": span} if (span := reader.context.env.get(TRACEPARENT)) else {}
        response = await link.connection.prompt(session_id=session, prompt=[text_block(text)], **about)
    except SessionLost as error:
        return reader.answer("failed", str(error), is_session_lost=True)
    except ConnectionError:  # the exit status explains the lost connection
        exit, noise = await link.talk.exit(), link.wire.noise.strip()[-2000:]
        if exit is None:
            closed = f"{agent} closed the connection"
            return reader.answer("failed", f"{closed}: {noise}" if noise else closed)
        more = f": {noise}" if noise and not exit.stderr.strip() else ""
        ending: Ending = "killed" if exit.ending == "killed" else "failed"
        return reader.answer(ending, f"{exit.reason}{more}", hint=exit.hint)
    except ValidationError as error:
        return reader.answer("failed", f"{agent} violates the protocol: {error}"[:2000])
    except RequestError as error:
        reason = f"{agent}: {_explain(error)}"
        if error.code == _SIGNED_OUT:
            return reader.answer("failed", reason, hint="Sign in to the agent, or give the agent its key.")
        if link.session is None:
            return reader.answer("failed", reason, hint="Run the agent by hand in the work folder to see.")
        is_lost = error.code == _NOT_FOUND and reader.context.session is not None
        return reader.answer("api_failure", reason, is_session_lost=is_lost)
    reply = reader.finish_prompt(_dump(response))
    if (counted := reader.count_tokens()) is not None:
        link.counted[session] = counted
    return reply


async def _open_session(link: AcpLink, connection: ClientSideConnection, context: Context, agent: str) -> str:
    """Open or continue a session, set its mode and model, and return its id."""
    if link.capabilities is None:
        found = await connection.initialize(
            protocol_version=_PROTOCOL,
            client_capabilities=ClientCapabilities(),
            client_info=Implementation(name="rolecall", version=__version__),
        )
        if found.protocol_version != _PROTOCOL:
            raise AgentError(
                f"{agent} speaks version {found.protocol_version} of the protocol, not {_PROTOCOL}",
                hint="Another version of the agent is needed.",
            )
        link.capabilities = found.agent_capabilities or AgentCapabilities()
    if context.session in link.sessions and context.session is not None and not context.is_fork:
        return context.session

    offered = [
        McpServerStdio(
            name=server.name,
            command=server.command,
            args=list(server.args),
            env=[EnvVariable(name=key, value=value) for key, value in server.env.items()],
        )
        for server in link.start.servers
    ]
    parameters = {"cwd": str(context.workdir), "mcp_servers": offered, **link.start.launch.meta}
    if context.session is None:
        opened: Any = await connection.new_session(**parameters)
        session = str(opened.session_id)
    else:
        opened, session = await _reopen(link, connection, agent, context, parameters)

    # Some agents report the mode separately, others as one of the session's options.
    mode, options = link.start.launch.mode, opened.config_options or []
    current = next((str(option.current_value) for option in options if option.category == "mode"), None)
    if opened.modes is not None:
        current = str(opened.modes.current_mode_id)
    if mode and mode != current:
        await connection.set_session_mode(session_id=session, mode_id=mode)
    if model := link.start.model:
        choice = next((option for option in options if "model" in (option.category, option.id)), None)
        if choice is None:
            hint = "Name the model in its command or its own configuration."
            raise UsageError(f"{agent} offers no choice of models", hint=hint)
        await connection.set_config_option(session_id=session, config_id=choice.id, value=model)
    link.sessions.add(session)
    return session


async def _reopen(
    link: AcpLink, connection: ClientSideConnection, agent: str, context: Context, parameters: dict[str, Any]
) -> tuple[Any, str]:
    """Copy a session, or reopen one from an earlier process without passing on the updates that the agent replays.
    Loading is tried before resuming, because an agent that is asked to resume an unknown session might start a new one
    instead."""
    session, heard = str(context.session), link.heard
    can = link.capabilities or AgentCapabilities()
    verbs = can.session_capabilities
    try:
        if context.is_fork:
            if verbs is None or verbs.fork is None:
                raise SessionLost(f"{agent} cannot copy a session")
            copy = await connection.fork_session(session_id=session, **parameters)
            return copy, copy.session_id
        if can.load_session:
            loaded = await connection.load_session(session_id=session, **parameters)
            # Some agents return an empty response for an unknown session. A known session always has updates to replay.
            if link.heard == heard and not loaded.model_dump(exclude_none=True):
                raise SessionLost(f"{agent} does not know the session {session}")
            return loaded, session
        if verbs is not None and verbs.resume is not None:
            return await connection.resume_session(session_id=session, **parameters), session
    except RequestError as error:
        if error.code == _SIGNED_OUT:
            raise
        raise SessionLost(f"{agent} does not know the session {session}: {_explain(error)}") from error
    raise SessionLost(f"{agent} cannot continue a session from an earlier process")


def _explain(error: RequestError) -> str:
    """Return the text of an error. Agents give the actual reason in the error's data as often as in its message."""
    message, data = str(error), Json(error.data if isinstance(error.data, dict) else {"message": error.data})
    details = (data.text(key) for key in ("message", "details"))
    more = next((text for text in details if text not in message), "")
    return f"{message}: {more}"[:2000] if more else message[:2000]
