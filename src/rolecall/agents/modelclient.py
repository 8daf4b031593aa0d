"""Requests to a model endpoint through pydantic-ai. Imported at the first request.

The libraries that pydantic-ai uses read keys, addresses and headers from the environment. A hook replaces the headers
of every request, so an endpoint receives only what is configured for it. No proxy is used, no redirect is followed, and
no error message contains a key. The conversation is in modelloop.py, the tools are in toolbox.py.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

import httpx2
from pydantic_ai import exceptions
from pydantic_ai.direct import model_request_stream
from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
)
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.settings import ModelSettings

from rolecall.agents.model_options import ModelOptions
from rolecall.agents.protocol import Ending
from rolecall.agents.transcript import LONGEST_ANSWER
from rolecall.settings.model_request import excerpt

_LIBRARIES = {"openai": "rolecall.agents.model_openai", "anthropic": "rolecall.agents.model_anthropic"}
"""The module for each protocol. A run needs only one of the modules, and each takes long to import."""
_NO_KEY = "no-key"
"""A placeholder for a missing key: without any key, the libraries would look for one in the environment."""
_AGENT_NAME = "rolecall"
_KEPT_HEADERS = ("host", "content-length", "transfer-encoding")
_CONNECT_SECONDS = 30.0
_SILENT_SECONDS = 600.0
"""The number of seconds for which an endpoint can be silent; thinking models send data more often."""
_FIRST_PAUSE = 0.5
_LONGEST_PAUSE = 30.0
_LONGEST_WAIT = 60.0
"""The longest wait before a retry, in seconds, that an endpoint can request; for a longer wait, the thread waits
without a process."""
_TRANSIENT = (408, 409, 425, 429)
_EXCERPT = 500
_ADVICE = {
    401: "Check the key that is configured for this endpoint.",
    403: "Check the key that is configured for this endpoint.",
    404: "Check the base URL, the protocol and the name of the model.",
    429: "The endpoint limits requests: wait, then resume the thread.",
    **dict.fromkeys(
        range(300, 400),
        "Redirects are not followed. Set the base URL to the target of the redirect, if you trust that server "
        "with the key.",
    ),
    **dict.fromkeys(range(500, 600), "Resume the thread when the endpoint works again."),
}

Listen = Callable[[], AbstractContextManager[Callable[[str], None]]]
"""A function that opens a receiver for the text of one message, which arrives piece by piece."""


@dataclass(eq=False)
class NoAnswer(Exception):
    """An error for a model that gave no answer; `is_transient` says whether asking again could help."""

    reason: str
    hint: str = ""
    ending: Ending = "api_failure"
    is_transient: bool = False
    retry_after: float | None = None


async def connect(options: ModelOptions) -> AsyncGenerator[Model, None]:
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
        verify=_load_certificates(trust_env=False),
        trust_env=False,
        follow_redirects=False,
        timeout=httpx2.Timeout(_SILENT_SECONDS, connect=_CONNECT_SECONDS),
        limits=httpx2.Limits(max_connections=None),
        event_hooks={"request": [replace_headers]},
    )
    try:
        key = options.api_key or _NO_KEY
        library = import_module(_LIBRARIES[options.protocol])
        model, headers = library.connect(options.model, options.base_url, key, client)
        if options.api_key:
            auth.update(headers)
        # Nothing has been awaited up to this point, so two simultaneous first calls share one model.
        yield model
    finally:
        await client.aclose()


_load_certificates = cache(httpx2.create_ssl_context)  # loading them takes longer than a whole call


@dataclass(frozen=True)
class Asking:
    """A function object that asks one model. It retries if that could help, up to the number of retries and until
    `deadline`."""

    model: Model
    parameters: ModelRequestParameters
    options: ModelOptions
    deadline: float

    async def __call__(self, messages: Sequence[ModelMessage], listen: Listen) -> ModelResponse:
        """Return the model's next message; `listen` opens a new receiver for each attempt."""
        tried = 0
        while True:
            tried += 1
            try:
                with listen() as say:
                    return await self._ask_once(messages, say)
            except NoAnswer as failure:
                pause = failure.retry_after
                if pause is None:
                    # The pause is random, so that agents that were refused at the same time do not retry at the same
                    # time.
                    spread = random.uniform(0.75, 1.25)  # noqa: S311 -- not for security
                    pause = min(_FIRST_PAUSE * 2 ** (tried - 1), _LONGEST_PAUSE) * spread
                is_late = asyncio.get_running_loop().time() + pause >= self.deadline or pause > _LONGEST_WAIT
                if not failure.is_transient or tried > self.options.retries or is_late:
                    failure.reason += f" (tried {tried} times)" if tried > 1 else ""
                    if failure.is_transient and failure.retry_after:
                        failure.reason += f" (it asks to wait {failure.retry_after:g} s)"
                    raise
            await asyncio.sleep(pause)

    async def _ask_once(self, messages: Sequence[ModelMessage], say: Callable[[str], None]) -> ModelResponse:
        size = 0
        limit = self.options.max_output
        try:
            async with model_request_stream(
                self.model,
                messages,
                model_settings=ModelSettings(max_tokens=limit) if limit else ModelSettings(),
                model_request_parameters=self.parameters,
                instrument=False,
            ) as stream:
                async for event in stream:
                    if not isinstance(event, (PartStartEvent, PartDeltaEvent)):
                        continue
                    part: Any = event.part if isinstance(event, PartStartEvent) else event.delta
                    fields = ("content", "content_delta", "args", "args_delta")
                    said = next((str(text) for key in fields if (text := getattr(part, key, ""))), "")
                    size += len(said)
                    if size > LONGEST_ANSWER:
                        raise NoAnswer(f"the model sent more than {LONGEST_ANSWER:,} characters at once")
                    if isinstance(part, (TextPart, TextPartDelta)):
                        say(said)
                response = stream.get()
        except exceptions.ModelAPIError as error:
            raise self._explain(error) from error
        except (exceptions.AgentRunError, exceptions.UserError, httpx2.HTTPError, *_MALFORMED) as error:
            raise NoAnswer(
                f"the model's endpoint did not send a valid answer: {self._excerpt(str(error))}",
                hint="Check that the base URL and the protocol belong to this endpoint.",
            ) from error
        has_end = response.finish_reason or (response.provider_details or {}).get("finish_reason")
        if response.state != "complete" or not has_end or response.finish_reason == "error":
            raise NoAnswer("the model's answer broke off", is_transient=True)
        return response

    def _explain(self, error: exceptions.ModelAPIError) -> NoAnswer:
        body = error.body
        if not isinstance(body, str):
            body = json.dumps(body, ensure_ascii=False, default=str)
        if isinstance(error, exceptions.ModelContextWindowExceededError):
            reason = f"the conversation is too long for the model: {self._excerpt(body)}"
            return NoAnswer(reason, ending="limit")
        # Only the library's own error has a status below 400.
        status = getattr(error, "status_code", None) or getattr(error.__cause__, "status_code", None)
        if status is None:
            root: BaseException = error
            while root.__cause__ is not None:
                root = root.__cause__
            return NoAnswer(
                f"the model's endpoint cannot be reached: {self._excerpt(root)}",
                hint="Check the base URL in the configuration, and make sure that the endpoint is up.",
                is_transient=True,
            )
        is_spent = isinstance(error, exceptions.ModelQuotaExceededError)
        return NoAnswer(
            f"the model's endpoint refused with HTTP {status}: {self._excerpt(body)}",
            hint=_ADVICE.get(status, ""),
            is_transient=(status in _TRANSIENT or status >= 500) and not is_spent,
            retry_after=error.retry_after,
        )

    def _excerpt(self, said: str | BaseException) -> str:
        return excerpt(said, self.options.api_key, most=_EXCERPT)


_MALFORMED = (ValueError, TypeError, AttributeError, LookupError, AssertionError, RecursionError)
"""Built-in exceptions that the libraries raise for an unexpected response."""
