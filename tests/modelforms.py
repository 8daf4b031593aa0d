"""How the model endpoints write an answer: Anthropic Messages, OpenAI chat completions and Responses, Gemini.

Each form is a pure function of a turn (text, maybe a tool call), the request's body and the turn's number.
A list is a stream: `(event name or None, value)`; anything else is a JSON body. The server is modelserver.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Says:
    """The model's text, in a well-formed response."""

    text: str
    prompt_tokens: int = 10
    completion_tokens: int = 5
    cached_tokens: int = 0
    """How many of the prompt's tokens came from a cache."""


@dataclass(frozen=True)
class Calls:
    """The model calls a tool; `text` is what it says before. Arguments that are text make a free-form call."""

    name: str
    arguments: Mapping[str, Any] | str = field(default_factory=dict)
    text: str = ""
    namespace: str | None = None
    """Only in the Responses form: the group that the tool was offered in."""
    prompt_tokens: int = 10
    completion_tokens: int = 5
    cached_tokens: int = 0


Turn = Says | Calls
Events = list[tuple[str | None, Any]]
Form = Callable[[Turn, Any, int], Any]


def form_for(path: str) -> Form | None:
    place = path.partition("?")[0]
    return next((form for end, form in _FORMS.items() if place.endswith(end)), None)


def fixed_answer(path: str) -> Any:
    """What is told about models and counts of tokens, whatever the script says; None for a model's turn."""
    place = path.partition("?")[0]
    return next((answer for end, answer in _FIXED.items() if place.endswith(end)), None)


def encoded(answer: Any) -> tuple[str, bytes]:
    """A form's answer as content type and body."""
    if not isinstance(answer, list):
        return "application/json", json.dumps(answer).encode()
    pieces = [
        (f"event: {name}\n" if name else "")
        + f"data: {value if value == '[DONE]' else json.dumps(value)}\n\n"
        for name, value in answer
    ]
    return "text/event-stream", "".join(pieces).encode()


def _asked_for_stream(request: Any) -> bool:
    return isinstance(request, dict) and bool(request.get("stream"))


def _model(request: Any) -> str:
    return str(request.get("model", "a-model")) if isinstance(request, dict) else "a-model"


def _arguments(turn: Calls) -> str:
    return turn.arguments if isinstance(turn.arguments, str) else json.dumps(dict(turn.arguments))


# -- Anthropic Messages --


def _messages(turn: Turn, request: Any, number: int) -> Any:
    blocks: list[dict[str, Any]] = [{"type": "text", "text": turn.text}] if turn.text else []
    if isinstance(turn, Calls):
        given = {"input": turn.arguments} if isinstance(turn.arguments, str) else dict(turn.arguments)
        blocks.append({"type": "tool_use", "id": f"toolu_{number}", "name": turn.name, "input": given})
    message = {
        "id": f"msg_{number}",
        "type": "message",
        "role": "assistant",
        "model": _model(request),
        "content": blocks,
        "stop_reason": "tool_use" if isinstance(turn, Calls) else "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": turn.prompt_tokens - turn.cached_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": turn.cached_tokens,
            "output_tokens": turn.completion_tokens,
        },
    }
    return _messages_events(message) if _asked_for_stream(request) else message


def _messages_events(message: dict[str, Any]) -> Events:
    begun = {**message, "content": [], "stop_reason": None, "usage": {**message["usage"], "output_tokens": 1}}
    values: list[dict[str, Any]] = [{"type": "message_start", "message": begun}]
    for index, block in enumerate(message["content"]):
        if block["type"] == "text":
            empty, delta = {**block, "text": ""}, {"type": "text_delta", "text": block["text"]}
        else:
            empty = {**block, "input": {}}
            delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
        values += [
            {"type": "content_block_start", "index": index, "content_block": empty},
            {"type": "content_block_delta", "index": index, "delta": delta},
            {"type": "content_block_stop", "index": index},
        ]
    ended = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    values.append({"type": "message_delta", "delta": ended, "usage": message["usage"]})
    values.append({"type": "message_stop"})
    return [(str(value["type"]), value) for value in values]


# -- OpenAI chat completions --


def _chat(turn: Turn, request: Any, number: int) -> Any:
    message: dict[str, Any] = {"role": "assistant", "content": turn.text or None}
    if isinstance(turn, Calls):
        function = {"name": turn.name, "arguments": _arguments(turn)}
        message["tool_calls"] = [
            {"index": 0, "id": f"call_{number}", "type": "function", "function": function}
        ]
    elif not turn.text:
        message["content"] = ""
    finish = "tool_calls" if isinstance(turn, Calls) else "stop"
    usage: dict[str, Any] = {
        "prompt_tokens": turn.prompt_tokens,
        "completion_tokens": turn.completion_tokens,
        "total_tokens": turn.prompt_tokens + turn.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": turn.cached_tokens},
    }
    head = {"id": f"chatcmpl-{number}", "created": 1, "model": _model(request)}
    if _asked_for_stream(request):
        return _chat_events(head, message, finish, usage)
    choice = {"index": 0, "message": message, "finish_reason": finish}
    return {**head, "object": "chat.completion", "choices": [choice], "usage": usage}


def _chat_events(head: dict[str, Any], message: dict[str, Any], finish: str, usage: dict[str, Any]) -> Events:
    def chunk(choices: list[dict[str, Any]], **more: Any) -> tuple[None, Any]:
        return None, {**head, "object": "chat.completion.chunk", "choices": choices, **more}

    return [
        chunk([{"index": 0, "delta": message, "finish_reason": None}]),
        chunk([{"index": 0, "delta": {}, "finish_reason": finish}]),
        chunk([], usage=usage),
        (None, "[DONE]"),
    ]


# -- OpenAI Responses --


def _responses(turn: Turn, request: Any, number: int) -> Any:
    items = _response_items(turn, number)
    response = {
        "id": f"resp_{number}",
        "object": "response",
        "created_at": 1,
        "status": "completed",
        "model": _model(request),
        "output": items,
        "usage": {
            "input_tokens": turn.prompt_tokens,
            "input_tokens_details": {"cached_tokens": turn.cached_tokens},
            "output_tokens": turn.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": turn.prompt_tokens + turn.completion_tokens,
        },
    }
    return _responses_events(response) if _asked_for_stream(request) else response


def _response_items(turn: Turn, number: int) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    if turn.text or isinstance(turn, Says):
        content = [{"type": "output_text", "text": turn.text, "annotations": []}]
        items.append(
            {
                "type": "message",
                "id": f"msg_{number}",
                "role": "assistant",
                "status": "completed",
                "content": content,
            }
        )
    if isinstance(turn, Calls):
        is_free = isinstance(turn.arguments, str)
        items.append(
            {
                "type": "custom_tool_call" if is_free else "function_call",
                "id": f"fc_{number}",
                "call_id": f"call_{number}",
                "name": turn.name,
                "status": "completed",
                "input" if is_free else "arguments": _arguments(turn),
                **({"namespace": turn.namespace} if turn.namespace else {}),
            }
        )
    return items


def _responses_events(response: dict[str, Any]) -> Events:
    begun = {**response, "status": "in_progress", "output": [], "usage": None}
    values: list[dict[str, Any]] = [{"type": "response.created", "response": begun}]
    for index, item in enumerate(response["output"]):
        place = {"output_index": index, "item_id": item["id"]}
        empty = {**item, "status": "in_progress", **({"content": []} if "content" in item else {})}
        values.append({"type": "response.output_item.added", "output_index": index, "item": empty})
        if item["type"] == "message":
            text = item["content"][0]["text"]
            part = {"content_index": 0, "part": {**item["content"][0], "text": ""}}
            values += [
                {"type": "response.content_part.added", **place, **part},
                {"type": "response.output_text.delta", **place, "content_index": 0, "delta": text},
                {"type": "response.output_text.done", **place, "content_index": 0, "text": text},
            ]
        elif item["type"] == "function_call":
            fields = {**place, "arguments": item["arguments"], "name": item["name"]}
            values.append({"type": "response.function_call_arguments.done", **fields})
        values.append({"type": "response.output_item.done", "output_index": index, "item": item})
    values.append({"type": "response.completed", "response": response})
    return [(str(value["type"]), {**value, "sequence_number": at}) for at, value in enumerate(values)]


# -- Gemini --


def _gemini(turn: Turn, request: Any, number: int) -> Any:
    parts: list[dict[str, Any]] = [{"text": turn.text}] if turn.text or isinstance(turn, Says) else []
    if isinstance(turn, Calls):
        given = {"input": turn.arguments} if isinstance(turn.arguments, str) else dict(turn.arguments)
        parts.append({"functionCall": {"id": f"call_{number}", "name": turn.name, "args": given}})
    return {
        "candidates": [{"index": 0, "content": {"role": "model", "parts": parts}, "finishReason": "STOP"}],
        "usageMetadata": {
            "promptTokenCount": turn.prompt_tokens,
            "candidatesTokenCount": turn.completion_tokens,
            "cachedContentTokenCount": turn.cached_tokens,
            "totalTokenCount": turn.prompt_tokens + turn.completion_tokens,
        },
        "modelVersion": "a-model",
        "responseId": f"resp_{number}",
    }


def _gemini_stream(turn: Turn, request: Any, number: int) -> Any:
    return [(None, _gemini(turn, request, number))]


_FORMS: Mapping[str, Form] = {
    "/messages": _messages,
    "/chat/completions": _chat,
    "/responses": _responses,
    ":generateContent": _gemini,
    ":streamGenerateContent": _gemini_stream,
}

_FIXED: Mapping[str, Any] = {
    "/models": {
        "object": "list",
        "data": [{"id": "a-model", "object": "model", "created": 1, "owned_by": "tests"}],
        "has_more": False,
    },
    "/messages/count_tokens": {"input_tokens": 10},
    ":countTokens": {"totalTokens": 10},
}
