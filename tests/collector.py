"""A collector on loopback: it keeps what it gets, decoded by OpenTelemetry's own package."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

PATIENCE = 120.0


class Collector:
    def __init__(self, port: int = 0) -> None:
        self.requests: list[ExportTraceServiceRequest] = []
        self.headers: list[dict[str, str]] = []
        self.answers: list[tuple[int, bytes]] = []
        """What it answers to the next requests; afterwards it takes everything."""
        self._changed = threading.Condition()
        keep = self._keep

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                code, text = keep(self.path, dict(self.headers), body)
                self.send_response(code)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_words: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.port = self.server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"

    def _keep(self, path: str, headers: dict[str, str], body: bytes) -> tuple[int, bytes]:
        assert path.partition("?")[0] == "/v1/traces"
        assert headers["Content-Type"] == "application/json"
        with self._changed:
            code, text = self.answers.pop(0) if self.answers else (200, b"{}")
            if code == 200:
                self.requests.append(decode(body))
                self.headers.append(headers)
            self._changed.notify_all()
        return code, text

    @property
    def spans(self) -> list[Any]:
        return [
            span
            for request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def wait(self, name: str, count: int = 1) -> None:
        """Wait until so many spans with a name have come."""
        with self._changed:
            assert self._changed.wait_for(
                lambda: sum(span.name == name for span in self.spans) >= count, PATIENCE
            ), [span.name for span in self.spans]


def decode(body: bytes) -> ExportTraceServiceRequest:
    """Read a request with the official messages. Their parser wants bytes in base64, and OTLP's JSON has the ids of
    traces and spans in hexadecimal: the one difference that the protocol makes."""

    def convert(value: Any) -> Any:
        if isinstance(value, dict):
            return {
                key: base64.b64encode(bytes.fromhex(item)).decode()
                if key in ("traceId", "spanId", "parentSpanId")
                else convert(item)
                for key, item in value.items()
            }
        return [convert(item) for item in value] if isinstance(value, list) else value

    request: ExportTraceServiceRequest = json_format.ParseDict(
        convert(json.loads(body)), ExportTraceServiceRequest()
    )
    return request


def attributes(span: Any) -> dict[str, Any]:
    found = {}
    for pair in span.attributes:
        value = pair.value
        kind = value.WhichOneof("value")
        found[pair.key] = (
            [one.string_value for one in value.array_value.values]
            if kind == "array_value"
            else getattr(value, kind)
        )
    return found


@contextmanager
def collecting(port: int = 0) -> Iterator[Collector]:
    collector = Collector(port)
    serving = threading.Thread(target=collector.server.serve_forever, daemon=True)
    serving.start()
    try:
        yield collector
    finally:
        collector.server.shutdown()
        collector.server.server_close()
        serving.join(PATIENCE)
