"""Where an HTTP server of ours listens, and how it runs: on loopback for everybody, elsewhere with a token.

`guard.py` says who is let in. What is answered is the application's business.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import TYPE_CHECKING

from rolecall.errors import StorageError, UsageError
from rolecall.mcp.guard import Guard, allowed, is_loopback

if TYPE_CHECKING:
    from starlette.types import ASGIApp

SHORTEST_TOKEN = 32
"""Least length of a token beyond loopback, where anybody can try as many as the network carries."""
_MAKING_ONE = "python3 -c 'import secrets; print(secrets.token_urlsafe(32))'"
_GRACE = 1
"""Seconds that open streams get when the server ends; clients may hold one for ever."""


def serve(
    make: Callable[[], ASGIApp],
    *,
    host: str,
    port: int,
    token: str | None,
    path: str,
    names: Iterable[str] = (),
    extra: str,
    tell: Callable[[str], None],
) -> None:
    """Answer clients until a signal ends it. `tell` is given the address once it can be reached; `names` are
    further names of this machine that a client may call it by, `extra` what brings the packages that are needed."""
    if not token and not is_loopback(host):
        raise UsageError(
            f"a server on {host} can be reached by others, so it needs a token",
            hint="Put one into a variable and name it: --token-env NAME. Or leave out --host. "
            f"To make a token: {_MAKING_ONE}",
        )
    if token and len(token) < SHORTEST_TOKEN and not is_loopback(host):
        raise UsageError(
            f"others can reach a server on {host}, so its token must have at least {SHORTEST_TOKEN} "
            f"characters, not {len(token)}",
            hint=f"To make one: {_MAKING_ONE}",
        )
    known = [allowed(name) for name in names]
    with _listening(host, port) as listener:
        app = make()
        try:
            uvicorn = import_module("uvicorn")
        except ImportError as error:
            raise UsageError(
                f"serving HTTP needs packages that are not installed ({error})",
                hint=f"Install them: pip install 'rolecall[{extra}]'.",
            ) from error
        number, port = listener.getsockname()[:2]
        app = Guard(app, host=host, bound=(number, port), names=known, token=token)
        tell(f"http://{_written(host)}:{port}{path}")
        settings = uvicorn.Config(
            app, log_level="warning", ws="none", access_log=False, timeout_graceful_shutdown=_GRACE
        )
        uvicorn.Server(settings).run(sockets=[listener])


def _written(host: str) -> str:
    """A host as it stands in an address."""
    return f"[{host}]" if ":" in host else host


def _listening(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    except (OSError, UnicodeError) as error:  # the second for what cannot even be asked for
        raise UsageError(
            f"--host {host!r} is no address that can be listened on: {error}",
            hint="Give an address or a name of this machine, such as 127.0.0.1.",
        ) from error
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise StorageError(
            f"{host}:{port} cannot be listened on: {error.strerror or error}",
            hint="Another process may have the port; --port 0 takes a free one.",
        ) from error
