"""Who is let in at the HTTP door: who knows the token, calls us by a name of ours, and is no stranger's page.

A page in a browser can have its own name lead to this machine; then the Host header still says that name, so it
must be one of ours. An address in numbers leads nowhere else, which is why a server on all addresses takes any.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from hmac import compare_digest
from ipaddress import ip_address
from typing import TYPE_CHECKING, NamedTuple

from rolecall.errors import UsageError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

_ADDRESS = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9_-]+(?:\.[a-z0-9_-]+)*)\.?(?::([0-9]{1,6}))?")
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_NO_PORT = 80
"""What a Host header without a port means."""


class Address(NamedTuple):
    """A host in the one spelling that can be compared, and the port if one is named."""

    host: str
    port: int | None


def address(text: str) -> Address | None:
    """What a Host header says; None when it is none."""
    found = _ADDRESS.fullmatch(text.lower())
    if found is None:
        return None
    number = _number(host := found[1].strip("[]"))
    if number is None and found[1] != host:
        return None
    return Address(number or host, int(found[2]) if found[2] else None)


def _number(host: str) -> str | None:
    """An address in numbers as it is usually written; None for a name."""
    try:
        return str(ip_address(host))
    except ValueError:
        return None


def allowed(name: str) -> Address:
    """Another name of this server, as it is given to us."""
    given = address(name)
    if given is None:
        raise UsageError(
            f"--allow-host {name!r} is not the name of a host",
            hint="Give what clients send as Host: box.example, or box.example:8443.",
        )
    return given


def is_loopback(host: str) -> bool:
    number = _number(host)
    return host.lower() == "localhost" if number is None else ip_address(number).is_loopback


class Guard:
    """The application behind it, for those who are let in. `bound` is the address that `host` has led to."""

    def __init__(
        self, app: ASGIApp, *, host: str, bound: tuple[str, int], names: Iterable[Address], token: str | None
    ) -> None:
        number, port = bound
        self._app = app
        self._token = token.encode() if token else None
        self._is_on_loopback = is_loopback(host)
        self._is_everywhere = ip_address(number).is_unspecified
        self._ports: dict[str, set[int | None]] = {}
        for own in (host, number, *(_LOOPBACK if self._is_on_loopback else ())):
            self._ports.setdefault(_number(own) or own.lower().removesuffix("."), set()).add(port)
        for name in names:
            # Whoever stands between us and the client has a port of its own, so none is one, too.
            self._ports.setdefault(name.host, set()).update({name.port} if name.port else {port, None})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        if refusal is None:
            await self._app(scope, receive, send)
            return
        status, why = refusal
        challenge = [(b"www-authenticate", b"Bearer")] if status == 401 else []
        headers = [*challenge, (b"content-type", b"text/plain"), (b"content-length", b"%d" % len(why))]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": why})

    def _refusal(self, scope: Scope) -> tuple[int, bytes] | None:
        if self._token is not None and not self._has_token(scope):
            return 401, b"a bearer token is needed\n"
        called = _one(scope, b"host")
        by = address(called) if called is not None else None
        if by is None or not self._is_ours(by):
            return 421, b"the Host header is no name of this server; --allow-host adds one\n"
        origins = _headers(scope, b"origin")
        if origins and not (len(origins) == 1 and self._is_our_page(origins[0], by)):
            return 403, b"pages of this origin are not let in; --allow-host adds one\n"
        return None

    def _has_token(self, scope: Scope) -> bool:
        scheme, _, secret = (_one(scope, b"authorization") or "").partition(" ")
        # How long the comparison takes says nothing about the token.
        is_same = compare_digest(secret.strip().encode("latin-1"), self._token or b"")
        return scheme.lower() == "bearer" and is_same

    def _is_ours(self, by: Address) -> bool:
        ports = self._ports.get(by.host, ())
        if by.port in ports or (by.port is None and _NO_PORT in ports):
            return True
        return self._is_everywhere and _number(by.host) is not None

    def _is_our_page(self, origin: str, called: Address) -> bool:
        """On loopback pages of other local servers are let in, too."""
        scheme, _, rest = origin.lower().partition("://")
        page = address(rest)
        if page is None or scheme not in ("http", "https"):
            return False
        if self._is_on_loopback and scheme == "http" and page.host in _LOOPBACK:
            return True
        return page == called if _number(page.host) and self._is_everywhere else self._is_ours(page)


def _headers(scope: Scope, name: bytes) -> list[str]:
    return [value.decode("latin-1") for key, value in scope["headers"] if key == name]


def _one(scope: Scope, name: bytes) -> str | None:
    """The header of a name; None also where there are two, because others may have gone by the other one."""
    values = _headers(scope, name)
    return values[0] if len(values) == 1 else None
