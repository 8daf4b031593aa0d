"""Answer the requests of an editor: sessions, prompts, cancellation."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import stat
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from itertools import islice
from typing import Any, TypeVar

from acp import PROTOCOL_VERSION, RequestError
from acp.agent.connection import AgentSideConnection
from acp.schema import (
    AgentCapabilities,
    ClientCapabilities,
    CloseSessionResponse,
    EmbeddedResourceContentBlock,
    Implementation,
    InitializeResponse,
    ListSessionsResponse,
    LoadSessionResponse,
    NewSessionResponse,
    PromptCapabilities,
    PromptResponse,
    ResourceContentBlock,
    ResumeSessionResponse,
    SessionCapabilities,
    SessionCloseCapabilities,
    SessionConfigOptionBoolean,
    SessionConfigOptionSelect,
    SessionConfigSelectOption,
    SessionInfo,
    SessionListCapabilities,
    SessionResumeCapabilities,
    SetSessionConfigOptionResponse,
    TextContentBlock,
    TextResourceContents,
)

import rolecall.agents as agents
from rolecall import __version__
from rolecall.acp import hints
from rolecall.acp.conversation import Conversation, Defaults
from rolecall.agents.presence import find_program
from rolecall.api import Rolecall
from rolecall.errors import RolecallError, UsageError
from rolecall.settings import config
from rolecall.store.canonical import JsonObject

__all__ = ["Defaults", "serve"]

T = TypeVar("T")
Choice = SessionConfigOptionSelect | SessionConfigOptionBoolean

_PAGE = 50
_MOST_SESSIONS = 64
"""The maximum number of sessions that can be at work at once."""
_LONGEST_MESSAGE = 50 * 1024 * 1024
_CONFIGURED = "configured"
"""The choice that leaves the selection of agents to the workflow and the configuration."""


def serve(defaults: Defaults) -> None:
    """Answer an editor on standard input and output until the editor closes its end."""
    if not (_is_stream(0) and _is_stream(1)):
        raise UsageError("standard input and output must be pipes", hint="An editor starts this command.")
    # The output of agents and workflows must not get between two messages.
    source, sink = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(2, 1)
    os.close(null)
    asyncio.run(_serve(defaults, source, sink))


def _is_stream(number: int) -> bool:
    """Whether the event loop can wait for the file with this descriptor."""
    try:
        mode = os.fstat(number).st_mode
    except OSError:  # the descriptor is closed
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(number)


async def _serve(defaults: Defaults, source: int, sink: int) -> None:
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(_MOST_SESSIONS))
    reader = asyncio.StreamReader(limit=_LONGEST_MESSAGE)
    await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(source, "rb", buffering=0)
    )
    pipe, protocol = await loop.connect_write_pipe(
        asyncio.streams.FlowControlMixin, os.fdopen(sink, "wb", buffering=0)
    )
    agent = RolecallAgent(defaults)
    connection = AgentSideConnection(
        agent,  # type: ignore[arg-type]  # it has what it offers
        _Lines(reader, asyncio.StreamWriter(pipe, protocol, None, loop)),
        listening=False,
        use_unstable_protocol=True,
    )
    listening = asyncio.ensure_future(connection.listen())
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, listening.cancel)
    try:
        with suppress(asyncio.CancelledError):
            await listening
    finally:
        await agent.stop()
        await connection.close()


class _Lines:
    """A connection on which each message is a line of JSON. The SDK's own connection ends at a malformed message; this
    one answers the message with an error."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, message: JsonObject) -> None:
        self._writer.write(json.dumps(message).encode() + b"\n")
        await self._writer.drain()

    async def receive(self) -> JsonObject | None:
        while True:
            try:
                if not (line := await self._reader.readline()):
                    return None
                message = json.loads(line)
            except (ValueError, RecursionError):  # the line is too long or is not JSON
                await self._refuse(RequestError.parse_error())
                continue
            is_message = (  # a request, a notification or a reply
                isinstance(message, dict)
                and isinstance(message.get("id"), str | int | None)
                and isinstance(message.get("method"), str | None)
                and isinstance(message.get("error"), dict | None)
                and ("method" in message or "id" in message)
            )
            if not is_message:
                await self._refuse(RequestError.invalid_request())
            elif "id" in message or not str(message.get("method")).startswith("$/"):
                return dict(message)  # notifications that begin with `$/` may be ignored

    async def _refuse(self, error: RequestError) -> None:
        await self.send({"jsonrpc": "2.0", "id": None, "error": error.to_error_obj()})

    async def close(self) -> None:
        self._writer.close()


class RolecallAgent:
    """The requests that an editor can make. Each session is a `Conversation`."""

    def __init__(self, defaults: Defaults) -> None:
        self._defaults = defaults
        self._sessions: dict[str, Conversation] = {}
        self._can_fill_forms = False
        self._connection: AgentSideConnection

    def on_connect(self, connection: AgentSideConnection) -> None:
        self._connection = connection

    async def stop(self) -> None:
        """Stop all running threads. The threads can be continued later."""
        await asyncio.gather(*(asyncio.to_thread(one.cancel) for one in self._sessions.values()))

    async def initialize(
        self, client_capabilities: ClientCapabilities | None = None, **_: Any
    ) -> InitializeResponse:
        forms = client_capabilities.elicitation if client_capabilities else None
        self._can_fill_forms = forms is not None and forms.form is not None
        return InitializeResponse(
            protocol_version=PROTOCOL_VERSION,  # the only version that exists
            agent_info=Implementation(name="rolecall", title="Rolecall", version=__version__),
            agent_capabilities=AgentCapabilities(
                load_session=True,
                prompt_capabilities=PromptCapabilities(embedded_context=True),
                session_capabilities=SessionCapabilities(
                    list=SessionListCapabilities(),
                    resume=SessionResumeCapabilities(),
                    close=SessionCloseCapabilities(),
                ),
            ),
            auth_methods=[],
        )

    # -- sessions --

    async def new_session(self, cwd: str, **_: Any) -> NewSessionResponse:
        with _report():
            _check_folder(cwd)
            ident = await self._call(cwd, Rolecall.new_id)
            session = self._open(ident, cwd)
            return NewSessionResponse(session_id=ident, config_options=await self._offer(session))

    async def load_session(self, cwd: str, session_id: str, **_: Any) -> LoadSessionResponse:
        session = await self._find(session_id, cwd)
        with _report():
            await asyncio.to_thread(session.replay)
            return LoadSessionResponse(config_options=await self._offer(session))

    async def resume_session(self, cwd: str, session_id: str, **_: Any) -> ResumeSessionResponse:
        session = await self._find(session_id, cwd)
        with _report():
            return ResumeSessionResponse(config_options=await self._offer(session))

    async def close_session(self, session_id: str, **_: Any) -> CloseSessionResponse:
        if session := self._sessions.pop(session_id, None):
            await asyncio.to_thread(session.cancel)
        return CloseSessionResponse()

    async def list_sessions(
        self, cwd: str | None = None, cursor: str | None = None, **_: Any
    ) -> ListSessionsResponse:
        def read(rolecall: Rolecall) -> list[SessionInfo]:
            def is_here(folder: str | None) -> bool:
                return cwd in (None, folder) or os.path.realpath(cwd or "/") == os.path.realpath(
                    folder or "/"
                )

            found = (thread for thread in rolecall.threads(after=cursor) if not thread.state.parent)
            here = (one for one in found if is_here(one.state.cwd))
            return [
                SessionInfo(
                    session_id=one.id,
                    cwd=one.state.cwd or "/",
                    title=one.state.title,
                    updated_at=datetime.fromtimestamp(one.entry()["updated"] / 1000, UTC).isoformat(),
                )
                for one in islice(here, _PAGE + 1)
            ]

        with _report():
            listed = await self._call(cwd or os.getcwd(), read)
        more = listed[_PAGE - 1].session_id if len(listed) > _PAGE else None
        return ListSessionsResponse(sessions=listed[:_PAGE], next_cursor=more)

    async def set_config_option(
        self, config_id: str, session_id: str, value: str | bool, **_: Any
    ) -> SetSessionConfigOptionResponse:
        session = self._get(session_id)
        with _report():
            choices = [
                option.value
                for one in await self._offer(session)
                if one.id == config_id and isinstance(one, SessionConfigOptionSelect)
                for option in one.options
                if isinstance(option, SessionConfigSelectOption)
            ]
            if value not in choices:
                raise UsageError(f"{value!r} is not a choice for {config_id!r}")
            if config_id == "workflow":
                session.workflow = str(value)
            else:
                session.agent = None if value == _CONFIGURED else str(value)
            return SetSessionConfigOptionResponse(config_options=await self._offer(session))

    # -- turns --

    async def prompt(self, session_id: str, prompt: list[Any], **_: Any) -> PromptResponse:
        session = self._get(session_id)
        text = "\n\n".join(filter(None, map(_read_block, prompt)))
        with _report():
            turn = await asyncio.to_thread(session.prompt, text)
        return PromptResponse(
            stop_reason="cancelled" if turn.is_cancelled else "end_turn", usage=turn.usage()
        )

    async def cancel(self, session_id: str, **_: Any) -> None:
        if session := self._sessions.get(session_id):
            await asyncio.to_thread(session.cancel)

    # -- helpers --

    def _open(self, ident: str, folder: str) -> Conversation:
        self._sessions[ident] = Conversation(
            ident, folder, self._defaults, self._connection, can_fill_forms=self._can_fill_forms
        )
        return self._sessions[ident]

    async def _find(self, ident: str, folder: str) -> Conversation:
        def has_thread(rolecall: Rolecall) -> bool:
            return rolecall.thread_if_any(ident) is not None

        with _report():
            _check_folder(folder)
            if not await self._call(folder, has_thread):
                raise RequestError.resource_not_found(ident)
        return self._sessions.get(ident) or self._open(ident, folder)

    def _get(self, ident: str) -> Conversation:
        if ident not in self._sessions:
            raise RequestError.resource_not_found(ident)
        return self._sessions[ident]

    async def _call(self, folder: str, verb: Callable[[Rolecall], T]) -> T:
        def work() -> T:
            with Rolecall(self._defaults.store, folder=folder) as rolecall:
                return verb(rolecall)

        return await asyncio.to_thread(work)

    async def _offer(self, session: Conversation) -> list[Choice]:
        """Return the choices for the next thread: its workflow, and the agent that plays its roles."""

        def list_workflows(rolecall: Rolecall) -> dict[str, str]:
            entries = [*rolecall.workflow_entries(), *rolecall.gallery()]
            return {entry.name: rolecall.describe(entry) or "" for entry in entries}

        workflows = {session.workflow: "", **await self._call(session.folder, list_workflows)}
        names = {_CONFIGURED: "from the workflow and the configuration"}
        names |= dict.fromkeys(config.load().get("agents") or {}, "")
        names |= dict.fromkeys([session.agent] if session.agent else [], "")
        env = config.environment()
        for name, program in agents.PROGRAMS.items():
            if find_program(program, env=env, folder=session.folder)[1]:
                names.setdefault(name, "")
        return [
            _make_choice("workflow", "Workflow", session.workflow, workflows),
            _make_choice("agent", "Agent", session.agent or _CONFIGURED, names),
        ]


@contextmanager
def _report() -> Iterator[None]:
    """Turn a Rolecall error into a protocol error, which the editor shows."""
    try:
        yield
    except RolecallError as error:
        raise RequestError(
            -32603, ". ".join(filter(None, (error.message, hints.word(error.hint))))
        ) from error


def _check_folder(folder: str) -> None:
    if not (os.path.isabs(folder) and os.path.isdir(folder)):
        raise UsageError(
            f"{folder!r} is not the absolute path of a folder", hint="A session needs one as its `cwd`."
        )


def _make_choice(ident: str, name: str, current: str, choices: dict[str, str]) -> SessionConfigOptionSelect:
    options = [
        SessionConfigSelectOption(value=value, name=value, description=about or None)
        for value, about in choices.items()
    ]
    return SessionConfigOptionSelect(
        type="select", id=ident, name=name, current_value=current, options=options
    )


def _read_block(block: Any) -> str:
    """Return the text of one part of a prompt. A file is named, and its contents are quoted if the editor sends
    them."""
    if isinstance(block, TextContentBlock):
        return block.text
    if isinstance(block, ResourceContentBlock):
        return block.uri.removeprefix("file://")
    if isinstance(block, EmbeddedResourceContentBlock) and isinstance(block.resource, TextResourceContents):
        return f"{block.resource.uri.removeprefix('file://')}:\n\n```\n{block.resource.text}\n```"
    return ""
