"""Encode spans as OTLP in JSON, and send them over HTTP, with the standard library alone.

https://opentelemetry.io/docs/specs/otlp/ says what a collector accepts. Many spans are sent in several requests, so
neither side has to hold a whole thread.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from http.client import HTTPException
from typing import Any, NamedTuple
from urllib import error as urlerror
from urllib import request
from urllib.parse import unquote, urlsplit, urlunsplit

from rolecall import __version__
from rolecall.errors import RolecallError, UsageError
from rolecall.settings.direct_http import open_address
from rolecall.settings.settings import Collector
from rolecall.store.canonical import JsonObject
from rolecall.traces.conventions import SCHEMA
from rolecall.traces.spans import Span, Value

_MOST_SPANS = 500
_MOST_BYTES = 1_000_000
"""The limits of a request in spans and bytes; the request ends with the span that reaches one of them."""
_SECONDS = 10.0
_PATH = "/v1/traces"
_LINE = 300


class CollectorError(RolecallError):
    """Raised if a collector could not be reached, or did not accept the spans."""

    def __init__(self, message: str, *, is_final: bool) -> None:
        super().__init__(message, hint="Look at the collector and its address.")
        self.is_final = is_final
        """Whether the collector would refuse the same spans every time."""


class Sent(NamedTuple):
    spans: int = 0
    rejected: int = 0
    """The number of spans that the collector did not accept."""
    reason: str = ""


def encode(spans: Iterable[Span]) -> Iterator[JsonObject]:
    """Yield the requests for some spans, each small enough for a collector."""
    batch, size = list[JsonObject](), 0
    for span in spans:
        batch.append(
            {
                "traceId": span.trace,
                "spanId": span.id,
                **({"parentSpanId": span.parent} if span.parent else {}),
                "flags": 1,
                "name": span.name,
                "kind": 3 if span.is_client else 1,
                "startTimeUnixNano": str(span.start * 1_000_000),
                "endTimeUnixNano": str(span.end * 1_000_000),
                "attributes": _list(span.attributes),
                "links": [{"traceId": link.trace, "spanId": link.span, "flags": 1} for link in span.links],
                "status": {} if span.error is None else {"code": 2, "message": span.error},
            }
        )
        size += len(json.dumps(batch[-1]))
        if len(batch) >= _MOST_SPANS or size >= _MOST_BYTES:
            yield _wrap(batch)
            batch, size = [], 0
    if batch:
        yield _wrap(batch)


def _wrap(spans: list[JsonObject]) -> JsonObject:
    resource = {"service.name": "rolecall", "service.version": __version__}
    scope = {"scope": {"name": "rolecall", "version": __version__}, "spans": spans, "schemaUrl": SCHEMA}
    return {"resourceSpans": [{"resource": {"attributes": _list(resource)}, "scopeSpans": [scope]}]}


def _list(attributes: Mapping[str, Value]) -> list[JsonObject]:
    return [{"key": key, "value": _value(value)} for key, value in attributes.items()]


def _value(value: Value) -> JsonObject:
    match value:
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(value)}
        case float():
            return {"doubleValue": value}
        case str():
            return {"stringValue": value}
        case _:
            return {"arrayValue": {"values": [_value(one) for one in value]}}


def send(
    spans: Iterable[Span], collector: Collector, *, leave_out: Callable[[str], object] | None = None
) -> Sent:
    """Send spans to a collector, and return how many were sent and rejected. If the collector does not take a request,
    raise CollectorError. If it would never take that request and `leave_out` is given, call `leave_out` with the reason
    instead."""
    sent, rejected, reason = 0, 0, ""
    url, headers = _read_address(collector.url), _read_headers(collector.headers)
    for body in encode(spans):
        try:
            partial = _post(body, url, headers).get("partialSuccess") or {}
        except CollectorError as error:
            if leave_out is None or not error.is_final:
                raise
            leave_out(error.message)
            continue
        sent += len(body["resourceSpans"][0]["scopeSpans"][0]["spans"])
        rejected += int(partial.get("rejectedSpans") or 0)
        reason = str(partial.get("errorMessage") or reason)[:_LINE]
    return Sent(sent, rejected, reason)


def probe(collector: Collector) -> None:
    """Send a request without spans. Raise CollectorError if the collector does not take it."""
    _post(_wrap([]), _read_address(collector.url), _read_headers(collector.headers))


def _read_address(text: str) -> str:
    """Return the address to which spans are sent. If the path of the protocol is missing, it is added."""
    try:
        parts = urlsplit(text)
        is_right = parts.port != 0 and parts.hostname and "@" not in parts.netloc and parts.path.isascii()
    except ValueError:
        is_right = False
    if not is_right:
        raise UsageError(
            "the address of the collector is not of the form http://HOST:PORT",
            hint="A name and a password go into the headers: `authorization=Basic%20…` (`traces.headersEnv`).",
        )
    path = parts.path.rstrip("/")
    return urlunsplit(parts._replace(path=path if path.endswith(_PATH) else path + _PATH))


def _read_headers(text: str) -> dict[str, str]:
    """Return the headers in a list of `name=value`, in which the values are percent-encoded."""
    headers = {}
    for part in filter(None, text.split(",")):
        name, equals, value = (word.strip() for word in part.partition("="))
        value = unquote(value)
        is_name = re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", name)
        if not (equals and is_name) or re.search(r"[\r\n]", value):
            raise UsageError(
                "the headers for traces are not `name=value`, separated by commas",
                hint="A value with a comma or a space is percent-encoded: authorization=Basic%20…",
            )
        headers[name] = value
    return headers


def _post(body: JsonObject, url: str, headers: Mapping[str, str]) -> Mapping[str, Any]:
    ours = {"Content-Type": "application/json", "User-Agent": f"rolecall/{__version__}"}
    asked = request.Request(url, json.dumps(body).encode(), {**headers, **ours}, method="POST")  # noqa: S310 -- http or https, checked
    where = "/".join(url.split("/", 3)[:3])
    try:
        with open_address(asked, timeout=_SECONDS) as reply:
            text = reply.read(_MOST_BYTES)
    except urlerror.HTTPError as error:
        with error:
            why = " ".join(error.read(_LINE).decode("utf-8", "replace").split())
        is_final = error.code in (400, 413, 422)
        message = f"the collector at {where} answered {error.code}{f': {why}' if why else ''}"
        raise CollectorError(message, is_final=is_final) from error
    except (OSError, HTTPException, UnicodeError) as error:  # an invalid host name raises UnicodeError
        reason = getattr(error, "reason", None) or error
        raise CollectorError(
            f"the collector at {where} cannot be reached: {reason}", is_final=False
        ) from error
    try:
        found = json.loads(text or b"{}")
    except ValueError:  # a collector that answers in another format has taken all spans
        found = {}
    return found if isinstance(found, dict) else {}
