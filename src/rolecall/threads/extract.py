"""Ask a model for the output of an answer whose frontmatter could not be parsed.

The request is one POST to an OpenAI-compatible endpoint. If the model's reply cannot be used, a second request says
why.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from http.client import HTTPException
from typing import NamedTuple

from rolecall.errors import ExtractError
from rolecall.settings.model_request import ModelRequest, excerpt
from rolecall.settings.models import Endpoint
from rolecall.store.canonical import JsonObject
from rolecall.workflow.reply import ParsedReply, ReplyProblem, Suspension, fit

MAX_RESPONSE = 8 * 1024 * 1024
MAX_RAW = 400_000
"""The maximum number of characters of the answer that the model sees. Of a longer answer, it sees the beginning and the
end."""

Message = Mapping[str, str]
USAGE_FIELDS = ("prompt_tokens", "completion_tokens")


_ADVICE = {
    401: "Check the key of the extract model in the configuration.",
    403: "Check the key of the extract model in the configuration.",
    404: "Check the base URL and the name of the extract model in the configuration.",
    429: "The endpoint limits requests: wait, then resume the thread.",
}


class Completion(NamedTuple):
    text: str
    usage: Mapping[str, int]


class Extracted(NamedTuple):
    output: JsonObject
    usage: Mapping[str, int]
    """The usage, summed over both tries."""


Ask = Callable[[Endpoint, Sequence[Message]], Awaitable[Completion]]
"""Sends one question to the model, or raises `ExtractError` if the model does not answer."""


async def chat(endpoint: Endpoint, messages: Sequence[Message]) -> Completion:
    """Request one chat completion in JSON mode."""
    body = {"model": endpoint.model, "messages": list(messages), "response_format": {"type": "json_object"}}
    request = ModelRequest(endpoint, "/chat/completions", "the extract model")
    model = f"the extract model at {endpoint.place}"
    hint = "Check the base URL in the configuration, and make sure that the endpoint is up."
    try:
        status, reply, _ = await asyncio.to_thread(request.send, json.dumps(body).encode(), most=MAX_RESPONSE)
    except TimeoutError:
        raise ExtractError(f"{model} did not answer within {endpoint.timeout:g} s", hint=hint) from None
    except (OSError, HTTPException) as exc:
        raise ExtractError(
            f"{model} cannot be reached: {excerpt(exc, endpoint.api_key)}", hint=hint
        ) from None
    finally:
        request.abort()
    if 300 <= status < 400:
        raise ExtractError(
            f"{model} sent a redirect (HTTP {status}), which was not followed",
            hint="Set the base URL to the target of the redirect, if you trust that server with the key.",
        )
    if status != 200:
        outage = "Resume the thread when the endpoint works again." if status >= 500 else ""
        raise ExtractError(
            f"{model} refused with HTTP {status}: {excerpt(reply, endpoint.api_key)}",
            hint=_ADVICE.get(status, outage),
        )
    if len(reply) > MAX_RESPONSE:
        raise ExtractError(f"{model} sent more than {MAX_RESPONSE:,} bytes")

    try:
        decoded = json.loads(reply)
        text = decoded["choices"][0]["message"]["content"]
        usage = {name: (decoded.get("usage") or {}).get(name) for name in USAGE_FIELDS}
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError):
        raise ExtractError(
            f"{model} did not send a chat completion: {excerpt(reply, endpoint.api_key)}",
            hint="Check that the base URL belongs to an OpenAI-compatible endpoint.",
        ) from None
    counts = {name: value if isinstance(value, int) and value > 0 else 0 for name, value in usage.items()}
    return Completion(text if isinstance(text, str) else "", counts)


async def extract(raw: str, schema: JsonObject, *, endpoint: Endpoint, ask: Ask = chat) -> Extracted:
    """Let the model at `endpoint` find the output in `raw`. Raise `ExtractError` after two failed tries."""
    instruction = (
        "The user message is the answer of an agent. Find in it the data that this JSON Schema describes and "
        "send it as one JSON object, without any other text. Take only what the answer says; add nothing. If "
        'something required is not in it, send {"$status": "$SUSPEND", "reason": "<what is missing>"} instead.\n\n'
        f"{json.dumps(dict(schema), ensure_ascii=False)}"
    )
    half = MAX_RAW // 2
    shown = raw
    if len(raw) > MAX_RAW:
        shown = f"{raw[:half]}\n\n[{len(raw) - 2 * half} characters left out]\n\n{raw[-half:]}"
    messages: list[Message] = [{"role": "system", "content": instruction}, {"role": "user", "content": shown}]
    result: ParsedReply | str = ""
    usage = dict.fromkeys(USAGE_FIELDS, 0)
    for _ in range(2):
        try:
            answer = await ask(endpoint, messages)
        except ExtractError as exc:
            raise ExtractError(exc.message, raw=raw, usage=usage, hint=exc.hint, is_outage=True) from None
        usage = {name: usage[name] + answer.usage.get(name, 0) for name in USAGE_FIELDS}
        result = _understand(answer.text, schema)
        if isinstance(result, ParsedReply):
            return Extracted(result.output, usage)
        again = f"That was not accepted: {result}. Send the corrected JSON object, without any other text."
        messages += [{"role": "assistant", "content": answer.text}, {"role": "user", "content": again}]
    raise ExtractError(
        f"the extract model {endpoint.model!r} found no output that fits the schema: {result}",
        raw=raw,
        usage=usage,
        hint="Answer for the role yourself, or resume the thread to ask its agent again.",
    )


def _understand(text: str, schema: JsonObject) -> ParsedReply | str:
    """Parse the model's output, or return the reason why it cannot be used."""
    fenced = re.fullmatch(r"\s*```\w*[ \t]*\n(.*?)\n?[ \t]*```\s*", text, re.DOTALL)
    try:
        value = json.loads(fenced[1] if fenced else text)
    except (ValueError, RecursionError) as exc:
        return f"the answer is not JSON ({exc})"
    if not isinstance(value, dict):
        return "the answer is not a JSON object"
    result = fit(value, schema)
    if isinstance(result, Suspension):
        return f"the model says that something is missing: {result.reason}"
    if isinstance(result, ReplyProblem):
        return "; ".join((result.reason, *result.misfits))
    return result
