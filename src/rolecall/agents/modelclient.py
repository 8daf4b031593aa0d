"""Requests to a model endpoint through pydantic-ai. Imported at the first request.

The libraries below read keys, addresses and headers from the environment. A hook replaces the headers of every request,
so an endpoint receives only what it was configured with. No proxy is used, no redirect is followed, and no message
contains a key.

The conversation is in modelloop.py, the tools in toolbox.py.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import ssl
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractContextManager
from functools import cache
from itertools import count
from typing import Any
from urllib.parse import urlsplit

import httpx2
from pydantic_ai import exceptions
from pydantic_ai.direct import model_request_stream
from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    ModelResponseStreamEvent,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
)
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.settings import ModelSettings

from rolecall.agents.protocol import Ending
from rolecall.agents.transcript import LONGEST_ANSWER

_NO_KEY = "no-key"
"""A placeholder: without a key the libraries look for one in the environment."""
_AGENT_NAME = "rolecall"
_KEPT_HEADERS = ("host", "content-length", "transfer-encoding")
_CONNECT_SECONDS = 30.0
_SILENT_SECONDS = 600.0
"""How long an endpoint may be silent; models that think send data more often."""
_FIRST_PAUSE = 0.5
_LONGEST_PAUSE = 30.0
_TRANSIENT = (408, 409, 425, 429)
_EXCERPT = 500


Listen = Callable[[], AbstractContextManager[Callable[[str], None]]]
"""Opens a receiver for the text of one message, piece by piece."""


class Unanswered(Exception):
    """Raised if the model gave no answer, with the reason, a hint, and whether asking again may help."""

    def __init__(
        self,
        reason: str,
        *,
        hint: str = "",
        ending: Ending = "api_failure",
        is_transient: bool = False,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.hint = hint
        self.ending: Ending = ending
        self.is_transient = is_transient
        self.retry_after = retry_after


# -- the connection --


async def connected(
    *, model: str, base_url: str, api_key: str | None, protocol: str
) -> AsyncGenerator[Model, None]:
    """Yield the model, with connections that stay open until the generator is closed or its event loop ends."""
    auth: dict[str, str] = {}

    async def replace_headers(request: httpx2.Request) -> None:
        kept = {name: request.headers[name] for name in _KEPT_HEADERS if name in request.headers}
        version = request.headers.get("anthropic-version", "")
        if re.fullmatch(r"\d{4}-\d{2}-\d{2}", version):
            kept["anthropic-version"] = version
        request.headers = httpx2.Headers(
            {
                **kept,
                "accept": "application/json, text/event-stream",
                "accept-encoding": "gzip, deflate",
                "connection": "keep-alive",
                "content-type": "application/json",
                "user-agent": _AGENT_NAME,
                **auth,
            }
        )

    client = httpx2.AsyncClient(
        verify=_trusted_certificates(),
        trust_env=False,
        follow_redirects=False,
        timeout=httpx2.Timeout(_SILENT_SECONDS, connect=_CONNECT_SECONDS),
        limits=httpx2.Limits(max_connections=None),
        event_hooks={"request": [replace_headers]},
    )
    try:
        connect = _anthropic if protocol == "anthropic" else _openai
        connection, headers = connect(model, base_url, api_key or _NO_KEY, client)
        if api_key:
            auth.update(headers)
        # Nothing has been awaited so far, so two simultaneous first calls share one model.
        yield connection
    finally:
        await client.aclose()


@cache
def _trusted_certificates() -> ssl.SSLContext:
    """Load the certificates once, because that takes longer than a whole call."""
    return httpx2.create_ssl_context(trust_env=False)


def _openai(name: str, base_url: str, key: str, client: httpx2.AsyncClient) -> tuple[Model, dict[str, str]]:
    from openai import AsyncOpenAI
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.profiles.openai import OpenAIModelProfile
    from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider

    is_openais_own = urlsplit(base_url).hostname == "api.openai.com"
    profile = OpenAIModelProfile(
        # Without this, a truncated answer would pass for a complete one.
        openai_chat_streaming_requires_finish_reason=True,
        openai_supports_strict_tool_definition=is_openais_own,
        openai_chat_supports_max_completion_tokens=is_openais_own,
    )
    made = AsyncOpenAI(api_key=key, base_url=base_url, http_client=client, max_retries=0)
    provider = OpenAICompatibleProvider("openai-compatible", openai_client=made, profile=profile)
    return OpenAIChatModel(name, provider=provider), {"authorization": f"Bearer {key}"}


def _anthropic(
    name: str, base_url: str, key: str, client: httpx2.AsyncClient
) -> tuple[Model, dict[str, str]]:
    from anthropic import AsyncAnthropic
    from pydantic_ai.models.anthropic import AnthropicModel, AnthropicModelSettings
    from pydantic_ai.providers.anthropic import AnthropicProvider

    # The library itself adds the version to the address.
    root = base_url.rstrip("/").removesuffix("/v1")
    made = AsyncAnthropic(api_key=key, base_url=root, http_client=client, max_retries=0)
    # Every turn sends the whole conversation, so without the cache each turn costs the full price.
    caching = AnthropicModelSettings(
        anthropic_cache_instructions=True,
        anthropic_cache_tool_definitions=True,
        anthropic_cache_messages=True,
    )
    provider = AnthropicProvider(anthropic_client=made)
    return AnthropicModel(name, provider=provider, settings=caching), dict(made.auth_headers)


# -- one question --


class Asking:
    """Asks one model, and retries if that may help, up to `retries` times and until `deadline`."""

    def __init__(
        self,
        model: Model,
        parameters: ModelRequestParameters,
        *,
        settings: ModelSettings,
        retries: int,
        deadline: float,
        secret: str | None,
    ) -> None:
        self._model = model
        self._parameters = parameters
        self._settings = settings
        self._retries = retries
        self._deadline = deadline
        self._secret = secret

    async def __call__(self, messages: Sequence[ModelMessage], listen: Listen) -> ModelResponse:
        """Return the model's next message; `listen` opens a new receiver for each attempt."""
        for tried in count(1):
            try:
                with listen() as say:
                    return await self._ask_once(messages, say)
            except Unanswered as failure:
                pause = failure.retry_after
                if pause is None:
                    # Random, so that agents refused at the same time do not retry at the same time.
                    spread = random.uniform(0.75, 1.25)  # noqa: S311 -- not for security
                    pause = min(_FIRST_PAUSE * 2 ** (tried - 1), _LONGEST_PAUSE) * spread
                is_late = asyncio.get_running_loop().time() + pause >= self._deadline
                if not failure.is_transient or tried > self._retries or is_late:
                    if tried > 1:
                        failure.reason += f" (tried {tried} times)"
                    elif failure.is_transient and failure.retry_after is not None:
                        failure.reason += f" (it asks to wait {failure.retry_after:g} s)"
                    raise
            await asyncio.sleep(pause)
        raise AssertionError("unreachable")

    async def _ask_once(self, messages: Sequence[ModelMessage], say: Callable[[str], None]) -> ModelResponse:
        size = 0
        try:
            async with model_request_stream(
                self._model,
                messages,
                model_settings=self._settings,
                model_request_parameters=self._parameters,
                instrument=False,
            ) as stream:
                async for event in stream:
                    text, length = _measure(event)
                    size += length
                    if size > LONGEST_ANSWER:
                        raise Unanswered(f"the model sent more than {LONGEST_ANSWER:,} characters at once")
                    say(text)
                response = stream.get()
        except exceptions.ModelAPIError as error:
            raise self._explain(error) from error
        except (exceptions.AgentRunError, exceptions.UserError, httpx2.HTTPError, *_MALFORMED) as error:
            raise Unanswered(
                f"the model's endpoint sent something that is no answer: {self._excerpt(str(error))}",
                hint="Check that the base URL and the protocol belong to this endpoint.",
            ) from error
        has_end = response.finish_reason or (response.provider_details or {}).get("finish_reason")
        if response.state != "complete" or not has_end or response.finish_reason == "error":
            raise Unanswered("the model's answer broke off", is_transient=True)
        return response

    def _explain(self, error: exceptions.ModelAPIError) -> Unanswered:
        body = (
            error.body
            if isinstance(error.body, str)
            else json.dumps(error.body, ensure_ascii=False, default=str)
        )
        if isinstance(error, exceptions.ModelContextWindowExceededError):
            reason = f"the conversation is too long for the model: {self._excerpt(body)}"
            return Unanswered(reason, ending="limit")
        # Only the library's own error has a status below 400.
        status = getattr(error, "status_code", None) or getattr(error.__cause__, "status_code", None)
        if status is None:
            root: BaseException = error
            while root.__cause__ is not None:
                root = root.__cause__
            return Unanswered(
                f"the model's endpoint cannot be reached: {self._excerpt(str(root) or type(root).__name__)}",
                hint="Check the base URL in the configuration, and that the endpoint is up.",
                is_transient=True,
            )
        is_spent = isinstance(error, exceptions.ModelQuotaExceededError)
        return Unanswered(
            f"the model's endpoint refused with HTTP {status}: {self._excerpt(body)}",
            hint=_advise(status),
            is_transient=(status in _TRANSIENT or status >= 500) and not is_spent,
            retry_after=error.retry_after,
        )

    def _excerpt(self, text: str) -> str:
        """Return the start of a text in one line, with the key removed in case the endpoint repeats it."""
        if self._secret:
            text = text.replace(self._secret, "***")
        line = " ".join("".join(c if c.isprintable() else " " for c in text[: 4 * _EXCERPT]).split())
        return line[:_EXCERPT] or "nothing"


_MALFORMED = (ValueError, TypeError, AttributeError, LookupError, AssertionError, RecursionError)
"""Exceptions besides their own that the libraries raise for an unexpected response."""


def _measure(event: ModelResponseStreamEvent) -> tuple[str, int]:
    """Return the text that an event adds to the message, and the size of everything it adds."""
    if isinstance(event, PartStartEvent):
        part: Any = event.part
        text = part.content if isinstance(part, TextPart) else ""
        return text, len(str(getattr(part, "content", "") or getattr(part, "args", "")))
    if isinstance(event, PartDeltaEvent):
        delta: Any = event.delta
        text = delta.content_delta if isinstance(delta, TextPartDelta) else ""
        return text, len(str(getattr(delta, "content_delta", "") or getattr(delta, "args_delta", "")))
    return "", 0


def _advise(status: int) -> str:
    if status in (401, 403):
        return "Check the key that is configured for this endpoint."
    if status == 404:
        return "Check the base URL, the protocol and the name of the model."
    if 300 <= status < 400:
        return "Redirects are not followed: set the base URL to where it leads, if you trust it with the key."
    if status == 429:
        return "The endpoint limits requests: wait, then resume the thread."
    return "Resume the thread when the endpoint works again." if status >= 500 else ""
