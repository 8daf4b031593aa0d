"""The OpenAPI 3.1 document that describes the JSON interface."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from rolecall import __version__
from rolecall.web.verbs import TEXT, ApiVerb, JsonObject, Schema, record

_ERROR = {
    "type": "object",
    "properties": {
        "error": {"type": "string", "description": "What went wrong."},
        "hint": {"type": "string", "description": "What to do about it."},
        "code": {"type": "string"},
        "problems": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["error", "code"],
}
_HEADER: JsonObject = {"name": "X-Rolecall", "in": "header", "required": True, "schema": {"const": "1"}}
_PERSON: JsonObject = {
    "name": "X-Rolecall-Person",
    "in": "header",
    "description": "who asks, percent-encoded",
}
_KEY: JsonObject = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": "16 to 100 letters, digits, _ and -: a repetition with the same key and body returns the thread of "
    "the first request, one with another body is refused with 409",
}


class Described(NamedTuple):
    """A path of the interface that is not a verb."""

    method: str
    path: str
    summary: str
    query: Mapping[str, str] = {}
    body: Schema | None = None
    type: str = "application/json"
    """The content type of the reply."""


OTHERS = (
    Described(
        "GET", "/me", "Who is signed in to what: version, folder, store, and how much waits for a person."
    ),
    Described("GET", "/schema", "This document."),
    Described(
        "POST", "/links", "Make a link that signs another browser in, once, within minutes.", body=record()
    ),
    Described("POST", "/signout", "End the cookie of this browser.", body=record()),
    Described(
        "GET",
        "/threads/{thread}/report",
        "The report of a thread, as a file.",
        {"format": "html (default) or markdown"},
        type="text/html",
    ),
    Described(
        "GET",
        "/evals/{run}/report",
        "The page of an evaluation, as a file.",
        {"base": "the variant from which differences are shown"},
        type="text/html",
    ),
    Described(
        "GET",
        "/events",
        "Events of all threads as server-sent events, resumable by Last-Event-ID.",
        {
            "thread": "also every event of these threads (ids, commas)",
            "after": "the number of the last event seen",
        },
        type="text/event-stream",
    ),
)


def describe(verbs: Iterable[ApiVerb]) -> JsonObject:
    paths: dict[str, JsonObject] = {}
    everything: list[Described | ApiVerb] = [*OTHERS, *verbs]
    for one in everything:
        path = re.sub(r"\{(\w+):\w+\}", r"{\1}", one.path)
        parameters: list[JsonObject] = [
            {"name": name, "in": "path", "required": True, "schema": TEXT}
            for name in re.findall(r"\{(\w+)\}", path)
        ]
        parameters += [
            {"name": name, "in": "query", "description": about, "schema": TEXT}
            for name, about in one.query.items()
        ]
        reply = "application/json" if isinstance(one, ApiVerb) else one.type
        operation: JsonObject = {
            "summary": one.summary,
            "parameters": parameters,
            "responses": {
                "200": {"description": "The result.", "content": {reply: {}}},
                "default": {
                    "description": "An error.",
                    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
                },
            },
        }
        if one.body is not None:
            content = {"application/json": {"schema": one.body}}
            operation["requestBody"] = {"required": True, "content": content}
            parameters += [_HEADER, _PERSON] if isinstance(one, ApiVerb) else [_HEADER]
        if isinstance(one, ApiVerb) and one.is_repeatable:
            parameters.append(_KEY)
        paths.setdefault(f"/api{path}", {})[one.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": "Rolecall", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": {"Error": _ERROR},
            "securitySchemes": {
                "cookie": {"type": "apiKey", "in": "cookie", "name": "rolecall_PORT"},
                "token": {"type": "http", "scheme": "bearer"},
            },
        },
        "security": [{"cookie": []}, {"token": []}],
    }
