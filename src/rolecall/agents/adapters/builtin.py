"""The built-in agent: a model behind any OpenAI-compatible or Anthropic endpoint, with its own tools.

It needs only the extra `llm`. The caller gives endpoint, model and key (`models.model_endpoint` finds them in the
configuration). The loop is modelloop.py, imported when the agent is first asked, because the model libraries take most
of a second to import.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from rolecall.agents.model_options import ModelOptions
from rolecall.agents.process import MORE_TIME
from rolecall.agents.protocol import Context, Reply
from rolecall.errors import AgentError, UsageError
from rolecall.settings import capabilities
from rolecall.settings.models import Endpoint
from rolecall.settings.settings import PROTOCOLS
from rolecall.store.lazy import Module

if TYPE_CHECKING:
    import rolecall.agents.modelclient as modelclient
    import rolecall.agents.modelloop as modelloop
    import rolecall.settings.model_request as model_request
else:  # the model libraries take most of a second to import
    modelclient = Module("rolecall.agents.modelclient")
    modelloop = Module("rolecall.agents.modelloop")
    model_request = Module("rolecall.settings.model_request")


@dataclass(frozen=True, kw_only=True)
class Builtin(ModelOptions):
    name: ClassVar[str] = "builtin"
    runs_in_sandbox: ClassVar[bool] = True
    """Whether the agent can be sandboxed. Its commands run in the sandbox; its file tools run in Rolecall's process,
    and refuse what the sandbox forbids."""
    can_resume: ClassVar[bool] = True
    can_fork: ClassVar[bool] = True
    deniable: ClassVar[frozenset[str]] = frozenset(capabilities.CLASSES)
    """The classes of actions that can be denied: all of them, because a denied tool is not offered to the model."""

    _kept: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    """The model with its open connections, and the event loop to which they belong."""

    async def __call__(self, prompt: str, context: Context) -> Reply:
        if self.protocol not in PROTOCOLS:
            raise UsageError(
                f"the protocol of an endpoint is {' or '.join(PROTOCOLS)}, not {self.protocol!r}"
            )
        if not self.model or not self.base_url:
            raise UsageError(
                "the agent 'builtin' has no model to ask",
                hint="Name one, `builtin:PROVIDER/MODEL` or `builtin:ALIAS`, or set `defaultModel`.",
            )
        endpoint = Endpoint(self.base_url, self.model, self.api_key)
        model_request.check_endpoint(endpoint, f"the model {self.model!r}")
        if context.cancel.is_set():
            raise AgentError("the agent was cancelled before it started", ending="interrupted")
        try:
            loop = asyncio.get_running_loop()
            if "opened" not in self._kept or self._kept["loop"] is not loop:
                # A generator holds the connections, because an event loop closes unfinished generators when it ends.
                opened = modelclient.connect(self)
                self._kept.update(opened=opened, loop=loop, model=await anext(opened))
            run = modelloop.ModelRun(context, self._kept["model"], self)
        except ImportError as error:
            raise AgentError(
                f"the agent 'builtin' needs the extra `llm`, which is not installed: {error}",
                hint="pip install 'rolecall[llm]'",
            ) from error
        working = asyncio.ensure_future(run.answer(prompt))
        cancelled = asyncio.ensure_future(context.cancel.wait())
        try:
            timeout = self.timeout or None
            if context.sandbox is not None:
                timeout = context.sandbox.shorten(timeout)
            await asyncio.wait({working, cancelled}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            reply: Reply | None = working.result() if working.done() else None
        finally:
            working.cancel()
            cancelled.cancel()
            await asyncio.gather(working, cancelled, return_exceptions=True)
        if reply is None and context.cancel.is_set():
            reply = run.reply("interrupted", "the agent was cancelled")
        elif reply is None:
            reason = f"the agent ran longer than {timeout:g} s and was ended"
            reply = run.reply("timeout", reason, hint=MORE_TIME)
        return reply

    async def aclose(self) -> None:
        """Close the connections; the agent can be used again."""
        if opened := self._kept.pop("opened", None):
            await opened.aclose()


builtin = Builtin
