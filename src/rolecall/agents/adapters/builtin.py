"""The built-in agent: a model behind any OpenAI-compatible or Anthropic endpoint, with its own tools.

It needs only the extra `llm`. The caller gives endpoint, model and key (`settings.model_endpoint` finds them in the
configuration). The loop is modelloop.py, imported when the agent is first asked, because the model libraries take most
of a second to import.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlsplit

from rolecall.agents.protocol import ANSWERED, Cancel, Context, Reply, failure
from rolecall.errors import AgentError, UsageError
from rolecall.settings import capabilities
from rolecall.settings.settings import PROTOCOLS

if TYPE_CHECKING:
    from pydantic_ai.models import Model

    from rolecall.agents.modelloop import Run

DEFAULT_TIMEOUT = 3600.0


@dataclass(frozen=True, kw_only=True)
class Builtin:
    name: ClassVar[str] = "builtin"
    can_resume: ClassVar[bool] = True
    can_fork: ClassVar[bool] = True
    deniable: ClassVar[frozenset[str]] = frozenset(capabilities.CLASSES)
    """Every class of actions, because a denied tool is not offered."""

    model: str = ""
    base_url: str = ""
    """The URL without a trailing /chat/completions or /messages."""
    api_key: str | None = field(default=None, repr=False)
    protocol: str = "openai"
    """The endpoint's protocol: `openai` (chat completions) or `anthropic` (messages)."""
    timeout: float | None = DEFAULT_TIMEOUT
    """Seconds for the whole call, including all turns, tools and retries."""
    max_turns: int = 100
    """How many requests to the model one call may make."""
    max_tokens: int | None = None
    """How many tokens, input and output, one call may use before no further turn starts."""
    max_output: int | None = None
    """The most tokens in one model message; None leaves this to the endpoint."""
    retries: int = 4
    """How many times to repeat a request if the endpoint is busy or unreachable."""
    system: str = ""
    """Added to the system prompt."""
    _kept: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    """The model with its open connections, and the event loop they belong to."""

    async def __call__(self, prompt: str, context: Context) -> Reply:
        self._check()
        if context.cancel.is_set():
            raise AgentError("the agent was cancelled before it started", ending="interrupted")
        run = await self._run(context)
        reply = await _run_bounded(run.answer(prompt), context.cancel, self.timeout)
        if reply is None and context.cancel.is_set():
            reply = run.reply("interrupted", "the agent was cancelled")
        elif reply is None:
            hint = "Give the agent a longer timeout, or less to do."
            reply = run.reply(
                "timeout", f"the agent ran longer than {self.timeout:g} s and was ended", hint=hint
            )
        if reply.ending not in ANSWERED:
            raise failure(reply)
        return reply

    async def aclose(self) -> None:
        """Close the connections; the agent can be used again."""
        if opened := self._kept.pop("opened", None):
            await opened.aclose()

    async def _run(self, context: Context) -> Run:
        try:
            from rolecall.agents import modelloop

            model = await self._model()
        except ImportError as error:
            raise AgentError(
                f"the agent 'builtin' needs the extra `llm`, which is not installed: {error}",
                ending="failed",
                hint="pip install 'rolecall[llm]'",
            ) from error
        # The timeout starts here, because importing the libraries does not count.
        now = asyncio.get_running_loop().time()
        deadline = now + self.timeout if self.timeout else float("inf")
        return modelloop.Run(
            context,
            model,
            system=self.system,
            max_turns=self.max_turns,
            max_tokens=self.max_tokens,
            max_output=self.max_output,
            retries=self.retries,
            deadline=deadline,
            secret=self.api_key,
        )

    async def _model(self) -> Model:
        from rolecall.agents.modelclient import connected

        loop = asyncio.get_running_loop()
        if "opened" not in self._kept or self._kept["loop"] is not loop:
            # A generator, because an event loop closes unfinished generators when it ends.
            opened = connected(
                model=self.model, base_url=self.base_url, api_key=self.api_key, protocol=self.protocol
            )
            self._kept.update(opened=opened, loop=loop, model=await anext(opened))
        model: Model = self._kept["model"]
        return model

    def _check(self) -> None:
        if self.protocol not in PROTOCOLS:
            raise UsageError(
                f"the protocol of an endpoint is {' or '.join(PROTOCOLS)}, not {self.protocol!r}"
            )
        if not self.model or not self.base_url:
            raise UsageError(
                "the agent 'builtin' has no model to ask",
                hint="Name one, `builtin:PROVIDER/MODEL` or `builtin:ALIAS`, or set `defaultModel`.",
            )
        url = urlsplit(self.base_url)
        if url.scheme not in ("http", "https") or not url.hostname or "@" in url.netloc:
            raise UsageError(
                "the base URL of a model's endpoint has the form https://host/path",
                hint="Set it in the configuration; the key has a place of its own.",
            )


async def _run_bounded(
    work: Coroutine[Any, Any, Reply], cancel: Cancel, timeout: float | None
) -> Reply | None:
    """Return the result, or None if the work was cancelled or timed out. The work has ended in either case."""
    working = asyncio.ensure_future(work)
    cancelled = asyncio.ensure_future(cancel.wait())
    try:
        await asyncio.wait({working, cancelled}, timeout=timeout or None, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        working.cancel()
        cancelled.cancel()
        await asyncio.gather(working, cancelled, return_exceptions=True)


builtin = Builtin
"""The adapter under the name that roles use: `builtin(model=…, timeout=600)`."""
default = builtin()
