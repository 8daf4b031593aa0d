"""Any agent that speaks the Agent Client Protocol: `acp:codex-acp`, or `acp:program --flag` for your own agent.

An adapter keeps the agent's process and sessions between calls, until `aclose` or the end of the event loop. A session
that is not open in the process is loaded if the agent can do that; otherwise the reply reports it as lost, and the
caller starts a new one.

The role's capabilities decide the agent's permission requests. This restricts only an agent that asks, so a restricted
role needs an agent that is known to ask (acp_presets.py) or is declared to ask (`is_asking`). We offer no files or
terminals; an agent uses its own tools.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any, ClassVar

from rolecall.agents.acp_link import AcpLink, AgentStart, Links
from rolecall.agents.acp_presets import UNKNOWN, Preset, Wish, preset_of
from rolecall.agents.acp_reader import AcpReader
from rolecall.agents.adapters.command import words_of
from rolecall.agents.presence import find_program
from rolecall.agents.process import MORE_TIME
from rolecall.agents.program import McpServer, note_leftovers
from rolecall.agents.protocol import ANSWERED, DEFAULT_TIMEOUT, Context, Reply
from rolecall.errors import AgentError
from rolecall.settings import capabilities

_EVERYTHING = frozenset((*capabilities.FILES, *capabilities.SHELL, *capabilities.SHELL_WRITES))


@dataclass(frozen=True)
class Acp:
    argv: tuple[str, ...]
    """The command that starts the agent, or the name of a preset."""
    model: str | None = None
    """The model, under the agent's own name for it."""
    timeout: float | None = DEFAULT_TIMEOUT
    """The maximum number of seconds for one call; None for no limit."""
    mcp: tuple[McpServer, ...] = ()
    """The tool servers for the agent, by name: {command, args, env}."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment variables added for the agent."""
    is_asking: bool = False
    """Declares that the agent asks before it changes a file or runs a command, so that a role's restrictions apply.
    Rolecall cannot verify the declaration."""

    can_resume: ClassVar[bool] = True
    """Whether the agent can resume a session. Always true, because this is known only once the agent runs. If the agent
    cannot resume the session, its reply reports the session as lost."""
    can_fork: ClassVar[bool] = False
    deniable: ClassVar[frozenset[str]] = frozenset()
    """The classes of actions that can be denied: none for an unknown command; an agent with a preset has its own
    set."""
    install: ClassVar[str] = ""
    runs_in_sandbox: ClassVar[bool] = True

    _label: str = field(init=False, repr=False, compare=False, default="")
    _preset: Preset = field(init=False, repr=False, compare=False, default=UNKNOWN)
    _links: Links = field(init=False, repr=False, compare=False, default_factory=Links)

    def __post_init__(self) -> None:
        label, preset, argv = preset_of(words_of(self.argv, "acp"))
        deniable = _EVERYTHING if self.is_asking and preset is UNKNOWN else frozenset(preset.denies)
        own = {"argv": argv, "deniable": deniable, "can_fork": preset.can_fork, "install": preset.install}
        for key, value in {**own, "_label": label, "_preset": preset}.items():
            object.__setattr__(self, key, value)

    @property
    def name(self) -> str:
        return f"acp:{self._label}"

    @property
    def program(self) -> str:
        return self.argv[0]

    async def __call__(self, prompt: str, context: Context) -> Reply:
        by_kernel = context.sandbox.layers.deniable if context.sandbox else ()
        capabilities.check_supported(self.name, context.capabilities, self.deniable, by_kernel=by_kernel)
        if context.cancel.is_set():
            raise AgentError(f"{self.name} was cancelled before it started", ending="interrupted")
        env = {**context.env, **self.env}
        denies, is_confined = self._preset.denies, context.is_confined
        tools = capabilities.denied_tools(denies, context.capabilities, sandboxed=is_confined)
        servers = self._servers(context)
        wish = Wish(tools, self.model, servers, env, context.workdir, is_confined)
        launch = self._preset.launch(wish)
        start = AgentStart(
            self.argv,
            launch,
            context.workdir,
            {**env, **launch.env},
            context.sandbox,
            self._label,
            own=(*self.env, *launch.env),
            servers=servers if self._preset.is_given_servers else (),
            model=None if self._preset.has_model_flag else self.model,
        )
        link = await self._links.take(start, context.session)
        reader = AcpReader(context, self._preset, {server.name for server in self.mcp})
        is_kept = False
        try:
            # The process is reported for every call, because an earlier step might have started the process that this
            # step uses.
            context.emit("process", link.talk.child.started._asdict())
            reply = await self._ask(link, reader, prompt)
            is_kept = reply.ending in ANSWERED or reply.is_session_lost
            link.tell_enforced(context.sandbox)
        finally:
            await (self._links.give(link) if is_kept else self._links.end(link))
        return note_leftovers(reply, link.talk.left)

    async def aclose(self) -> None:
        """End the processes kept for the next call."""
        await self._links.aclose()

    async def _ask(self, link: AcpLink, reader: AcpReader, prompt: str) -> Reply:
        """Send the prompt. Wait for an answer, a failed link, a cancellation or the timeout, whichever comes first."""
        cancel, sandbox, timeout = reader.context.cancel, reader.context.sandbox, self.timeout
        if sandbox is not None:
            timeout = sandbox.shorten(timeout)
        asked = asyncio.ensure_future(self._exchange(link, reader, prompt))
        signs = [asyncio.ensure_future(sign.wait()) for sign in (link.wire.failed, cancel)]
        try:
            await asyncio.wait({asked, *signs}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if link.wire.failure is not None:
                raise link.wire.failure
            if asked.done():
                return asked.result()
            is_cancelled = cancel.is_set()
            await link.stop(asked)
            if is_cancelled:
                return reader.answer("interrupted", f"{self.name} was cancelled")
            reason = f"{self.name} ran longer than {timeout:g} s and was ended"
            return reader.answer("timeout", reason, hint=MORE_TIME)
        finally:
            for waiting in (asked, *signs):
                waiting.cancel()
            await asyncio.gather(asked, *signs, return_exceptions=True)

    async def _exchange(self, link: AcpLink, reader: AcpReader, prompt: str) -> Reply:
        try:  # import in a thread, while the agent starts
            session = await asyncio.to_thread(import_module, "rolecall.agents.acp_session")
        except ModuleNotFoundError as error:
            raise AgentError(
                f"the package of the Agent Client Protocol is not installed: {error}",
                hint="Install it: pip install 'rolecall[acp]'",
            ) from error
        reply: Reply = await session.exchange(link, reader, prompt)
        return reply

    def _servers(self, context: Context) -> tuple[McpServer, ...]:
        """Return the tool servers with the absolute paths of their programs, as the protocol requires."""
        env = {**context.env, **self.env}
        found = []
        for server in self.mcp:
            path, is_there = find_program(server.command, env={**env, **server.env}, folder=context.workdir)
            if path is None or not is_there:
                raise AgentError(
                    f"the tool server {server.name!r} needs the program {server.command!r}, which was not found",
                    hint="Install it, or correct the command of the tool server.",
                )
            found.append(replace(server, command=path))
        return tuple(found)


def acp(command: str | Sequence[str], **options: Any) -> Acp:
    """Create an agent from a command or from the name of a preset: `acp("codex-acp", timeout=600)`."""
    return Acp(words_of(command, "acp"), **options)


from_argument = acp
