"""One request to a model's endpoint, made with the standard library because model libraries take seconds to import.

No proxy is used, no redirect is followed, and no error contains the key.
"""

from __future__ import annotations

import http.client
import re
import socket
import time
from contextlib import suppress
from email.message import Message
from threading import Timer
from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit

from rolecall.errors import UsageError
from rolecall.settings.models import Endpoint


class ModelResponse(NamedTuple):
    status: int
    data: bytes
    headers: Message


def check_endpoint(endpoint: Endpoint, model: str) -> SplitResult:
    """Return the parts of the endpoint's address. Raise UsageError if no request can be made with the address or the
    key. Errors name the endpoint's `model`."""
    try:
        url = urlsplit(endpoint.base_url)
        host, _ = url.hostname, url.port  # raises ValueError if the port is not a number
    except ValueError:
        host = None
    if not host or url.scheme not in ("http", "https") or url.username is not None:
        raise UsageError(
            f"the base URL of {model} is not of the form https://host/path",
            hint="Set the base URL in the configuration, without the key, which has a setting of its own.",
        )
    if not re.fullmatch(r"[\x21-\x7e]*", endpoint.api_key or ""):
        raise UsageError(f"the key of {model} contains spaces or control characters", hint="Set it again.")
    return url


class ModelRequest:
    """A request that another thread can abort."""

    def __init__(self, endpoint: Endpoint, path: str, model: str) -> None:
        url = check_endpoint(endpoint, model)
        kind = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
        self._connection = kind(str(url.hostname), url.port, timeout=endpoint.timeout)
        self._path = url.path.rstrip("/") + path + (f"?{url.query}" if url.query else "")
        self._headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if endpoint.api_key:
            self._headers["Authorization"] = f"Bearer {endpoint.api_key}"
        self._seconds = endpoint.timeout
        self._socket: socket.socket | None = None

    def send(self, body: bytes | None, *, most: int) -> ModelResponse:
        """Send the request and read at most one byte more than `most` of the answer. A request without a body is a GET
        request. Raise TimeoutError if the whole exchange takes longer than the endpoint's timeout, and another OSError
        or an HTTPException if it fails."""
        connection, until = self._connection, time.monotonic() + self._seconds
        # The socket's own timeout applies only to the time between two bytes.
        timer = Timer(self._seconds, self.abort)
        timer.daemon = True
        timer.start()
        try:
            connection.connect()
            # Keep the socket, because the connection drops its reference to it if the response is going to close it.
            self._socket = connection.sock
            connection.request("GET" if body is None else "POST", self._path, body, self._headers)
            with connection.getresponse() as response:
                data = response.read(most + 1)
                if response.length and len(data) <= most:
                    raise http.client.IncompleteRead(data, response.length)
        except (OSError, http.client.HTTPException) as error:
            if time.monotonic() >= until:
                raise TimeoutError from error
            raise
        finally:
            timer.cancel()
            connection.close()
        if time.monotonic() >= until:  # an answer without a length might have been cut off
            raise TimeoutError
        return ModelResponse(response.status, data, response.headers)

    def abort(self) -> None:
        # Closing alone would not wake a thread that is blocked in a read.
        if self._socket is not None:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)


def excerpt(said: bytes | str | BaseException, key: str | None, *, most: int = 300) -> str:
    """Return the beginning of what an endpoint or an error says, on one line, without the key, which might be
    echoed."""
    if isinstance(said, BaseException):
        said = str(said) or type(said).__name__
    text = said[:4000].decode("utf-8", "replace") if isinstance(said, bytes) else said[:4000]
    if key:
        text = text.replace(key, "***")
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())[:most] or "nothing"
