"""An HTTP server: where it listens, and who is allowed to call it. The application decides what to answer.

On loopback, every process on this machine is allowed to call; elsewhere callers need a token. A web page can point its
own domain name at this machine (DNS rebinding), but the Host header still contains that name, so the server accepts
only its own names there. A numeric address cannot be rebound, so a server that listens on all addresses accepts any
numeric address.
"""

from __future__ import annotations

import re
import socket
from argparse import Namespace
from collections.abc import Callable
from hmac import compare_digest
from importlib import import_module
from ipaddress import ip_address
from typing import TYPE_CHECKING, NamedTuple

from rolecall.errors import Hint, StorageError, UsageError
from rolecall.settings import config

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

LOOPBACK = "127.0.0.1"
_LOOPBACK_NAMES = (LOOPBACK, "localhost", "::1")
SHORTEST_TOKEN = 32
"""The minimum length of a token outside loopback, where others can guess as fast as the network allows."""
_MAKE_TOKEN = "python3 -c 'import secrets; print(secrets.token_urlsafe(32))'"  # noqa: S105 -- a command
_GRACE = 1
"""Seconds to wait for open streams when the server stops; clients can hold them open indefinitely."""
_ADDRESS = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9_-]+(?:\.[a-z0-9_-]+)*)\.?(?::([0-9]{1,6}))?")
_DEFAULT_PORT = 80


# -- listening --


def serve(
    make: Callable[[], ASGIApp],
    options: Namespace,
    *,
    path: str,
    extra: str,
    tell: Callable[[str], None],
    asks_token: bool = True,
) -> None:
    """Serve clients until a signal arrives. `options` has the attributes `host`, `port`, `token_env` and `allow_host`.
    `tell` is called with the address once clients can reach it. `extra` names the extra that installs the required
    packages. Without `asks_token`, the application itself checks callers, and only the Host and Origin headers are
    checked here."""
    host, token = LOOPBACK if options.host is None else options.host, read_token(options)
    names = []
    for name in options.allow_host:
        address = parse_address(name)
        if address is None:
            raise UsageError(
                f"--allow-host {name!r} is not the name of a host",
                hint="Give what clients send as Host: box.example, or box.example:8443.",
            )
        names.append(address)
    with _listen(host, options.port or 0) as listener:
        app = make()
        try:
            uvicorn = import_module("uvicorn")
        except ImportError as error:
            raise UsageError(
                f"serving HTTP needs packages that are not installed ({error})",
                hint=f"Install them: pip install 'rolecall[{extra}]'.",
            ) from error
        number, port = listener.getsockname()[:2]
        app = Guard(app, host=host, bound=(number, port), names=names, token=token if asks_token else None)
        tell(f"http://{f'[{host}]' if ':' in host else host}:{port}{path}")
        settings = uvicorn.Config(
            app, log_level="warning", ws="none", access_log=False, timeout_graceful_shutdown=_GRACE
        )
        uvicorn.Server(settings).run(sockets=[listener])


def read_token(options: Namespace) -> str | None:
    """Return the token that callers need, from the environment variable that the options name. Outside loopback, the
    token must be long."""
    host, token = LOOPBACK if options.host is None else options.host, None
    if options.token_env is not None:
        token = config.environment().get(options.token_env, "").strip()
        if not token:
            raise UsageError(
                f"the variable {options.token_env} holds no token",
                hint=f"Set it: export {options.token_env}=…",
            )
    if not token and not _is_loopback(host):
        raise UsageError(
            f"a server on {host} can be reached by others, so it needs a token",
            hint=Hint(
                "Listen on loopback, or put a token into a variable and name it",
                "name_token",
                before=f"To make a token: {_MAKE_TOKEN}.",
            ),
        )
    if token and len(token) < SHORTEST_TOKEN and not _is_loopback(host):
        raise UsageError(
            f"others can reach a server on {host}, so its token must have at least {SHORTEST_TOKEN} "
            f"characters, not {len(token)}",
            hint=f"To make one: {_MAKE_TOKEN}",
        )
    return token or None


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    except (OSError, UnicodeError) as error:
        raise UsageError(
            f"--host {host!r} is not an address on which a server can listen: {error}",
            hint="Give an address or a name of this machine, such as 127.0.0.1.",
        ) from error
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise StorageError(
            f"the server cannot listen on {host}:{port}: {error.strerror or error}",
            hint=Hint("Another process might be using the port; choose a free one", "free_port"),
        ) from error


# -- who may call --


class Address(NamedTuple):
    """A host in its normalized spelling, and its port, or None if no port is given."""

    host: str
    port: int | None


def parse_address(text: str) -> Address | None:
    """Parse the address in a Host header. Return None if it is not valid."""
    found = _ADDRESS.fullmatch(text.lower())
    if found is None:
        return None
    number = _number(host := found[1].strip("[]"))
    if number is None and found[1] != host:
        return None
    return Address(number or host, int(found[2]) if found[2] else None)


def _number(host: str) -> str | None:
    """Return a numeric address in its normalized spelling, or None if `host` is a name."""
    try:
        return str(ip_address(host))
    except ValueError:
        return None


def _is_loopback(host: str) -> bool:
    number = _number(host)
    return host.lower() == "localhost" if number is None else ip_address(number).is_loopback


class Guard:
    """Passes on requests from callers who are allowed to call. `bound` is the address to which `host` resolved."""

    def __init__(
        self, app: ASGIApp, *, host: str, bound: tuple[str, int], names: list[Address], token: str | None
    ) -> None:
        number, port = bound
        self._app = app
        self._token = token.encode() if token else None
        self._is_on_loopback = _is_loopback(host)
        self._is_everywhere = ip_address(number).is_unspecified
        self._ports: dict[str, set[int | None]] = {}
        for own in (host, number, *(_LOOPBACK_NAMES if self._is_on_loopback else ())):
            self._ports.setdefault(_number(own) or own.lower().removesuffix("."), set()).add(port)
        for name in names:
            # A proxy between us and the client has its own port, so a name without a port also matches.
            self._ports.setdefault(name.host, set()).update({name.port} if name.port else {port, None})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refuse(scope) if scope["type"] == "http" else None
        if refusal is None:
            await self._app(scope, receive, send)
            return
        status, why = refusal
        challenge = [(b"www-authenticate", b"Bearer")] if status == 401 else []
        headers = [*challenge, (b"content-type", b"text/plain"), (b"content-length", b"%d" % len(why))]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": why})

    def _refuse(self, scope: Scope) -> tuple[int, bytes] | None:
        """Return the status and body of the refusal, or None if the request is accepted. A header that occurs twice
        counts as missing, because a proxy might have read the other one."""

        def read(name: bytes) -> list[str]:
            return [value.decode("latin-1") for key, value in scope["headers"] if key == name]

        if self._token is not None:
            given = read(b"authorization")
            scheme, _, secret = (given[0] if len(given) == 1 else "").partition(" ")
            # Compare in constant time, so that timing reveals nothing about the token.
            is_same = compare_digest(secret.strip().encode("latin-1"), self._token)
            if not (scheme.lower() == "bearer" and is_same):
                return 401, b"a bearer token is needed\n"
        hosts, origins = read(b"host"), read(b"origin")
        host = parse_address(hosts[0]) if len(hosts) == 1 else None
        if host is None or not self._is_ours(host):
            return 421, b"the Host header is not a name of this server; --allow-host adds one\n"
        if origins and not (len(origins) == 1 and self._is_our_page(origins[0], host)):
            return 403, b"pages of this origin are not let in; --allow-host adds one\n"
        return None

    def _is_ours(self, address: Address) -> bool:
        ports = self._ports.get(address.host, ())
        if address.port in ports or (address.port is None and _DEFAULT_PORT in ports):
            return True
        return self._is_everywhere and _number(address.host) is not None

    def _is_our_page(self, origin: str, host: Address) -> bool:
        """Return whether a page is allowed to call. On loopback, pages of other local servers are, too."""
        scheme, _, rest = origin.lower().partition("://")
        page = parse_address(rest)
        if page is None or scheme not in ("http", "https"):
            return False
        if self._is_on_loopback and scheme == "http" and page.host in _LOOPBACK_NAMES:
            return True
        return page == host if _number(page.host) and self._is_everywhere else self._is_ours(page)
