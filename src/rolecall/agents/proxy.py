"""A proxy in Rolecall's own process, which connects a sandboxed program to the network for as long as the program runs.

The proxy has two tasks. As an HTTP proxy, it connects the program to the hosts of the program's policy and to no
others. As an endpoint, it takes the place of the model's address: the program gets a placeholder for the key, and the
proxy replaces the placeholder with the real key in the program's requests. A program without a network connects to the
proxy through a Unix socket (`--forward` in sandbox_exec.py), other programs through a port on the loopback interface.

Each connection carries one request, so the body of an answer is forwarded as it arrives and never interpreted. The
proxy does not look into encrypted connections, follows no redirects, and speaks only HTTP/1.
"""

from __future__ import annotations

import asyncio
import base64
import os
import re
import ssl
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import replace
from http import HTTPStatus
from typing import NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit

from rolecall.agents.sandbox import Policy, ProxiedEndpoint, Relay
from rolecall.errors import UsageError
from rolecall.store import scratch
from rolecall.workflow.model import split_address

PORT_INSIDE = 41873
"""The proxy's port on the program's private loopback interface."""
HEAD_SECONDS = 60.0
"""The maximum number of seconds for a client to send the head of its request."""
CONNECT_SECONDS = 30.0
MOST_CONNECTIONS = 256
"""The maximum number of simultaneous connections from a program; each connection uses open files of Rolecall's
process."""

_READ_SIZE = 64 * 1024
_LINGER = 2.0
_LONGEST_PLACE = 64
"""The maximum length of the temporary folder's path, because the path of a Unix socket has at most 107 characters."""
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_CREDENTIALS = ("authorization", "x-api-key", "api-key", "x-goog-api-key")
"""The headers in which a placeholder is replaced. Other headers are left alone, because a server could repeat them in
its answer."""
_HOP_BY_HOP = (
    "connection", "host", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te",
    "trailer", "upgrade",
)  # fmt: skip
_REQUEST = re.compile(r"([A-Za-z-]{1,32}) ([\x21-\x7e]+) HTTP/1\.[01]")
_HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\t\x20-\x7e\x80-\xff]*?)[ \t]*")
_ABSOLUTE = re.compile(r"http://([^/?#@\\]+)([/?][^#]*)?", re.IGNORECASE)
_CHUNK = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(;[\t\x20-\xff]*)?\r\n")

Headers = list[tuple[str, str]]
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def serve(policy: Policy, env: Mapping[str, str]) -> AsyncIterator[Policy]:
    """Open the proxy that a policy needs, and yield a policy for programs that use the proxy. The new policy's
    `variables` contain the addresses and placeholders for the program. `env` shows whether this machine itself needs a
    proxy."""
    proxy = Proxy(policy, env)
    with ExitStack() as own:
        if policy.network != "all" and policy.layers.namespaces:
            place = tempfile.gettempdir()
            if len(place) > _LONGEST_PLACE:
                place = "/tmp"  # noqa: S108 -- for a new folder that nobody else can enter
            folder = os.path.realpath(own.enter_context(scratch.folder("rolecall-tmp-", place)))
            relay, keep = Relay(PORT_INSIDE, os.path.join(folder, "proxy")), (*policy.keep, folder)
            server: asyncio.Server = await asyncio.start_unix_server(
                proxy.answer, relay.socket, limit=_READ_SIZE
            )
        else:
            server = await asyncio.start_server(proxy.answer, "127.0.0.1", 0, limit=_READ_SIZE)
            relay, keep = Relay(server.sockets[0].getsockname()[1]), policy.keep
        proxy.address = f"127.0.0.1:{relay.port}"
        policy.enforced.extend(line for line in proxy.describe() if line not in policy.enforced)
        variables = {**policy.variables, **proxy.choose_variables()}
        try:
            yield replace(policy, endpoints=(), relay=relay, keep=keep, variables=variables)
        finally:
            server.close()
            await proxy.close()


class RequestRefused(Exception):
    """An error that the proxy itself sends as the answer, in place of the server's."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = HTTPStatus(status)


class Head(NamedTuple):
    method: str
    target: str
    headers: Headers

    def find_all(self, name: str) -> list[str]:
        return [value for other, value in self.headers if other.lower() == name]


class Proxy:
    def __init__(self, policy: Policy, env: Mapping[str, str]) -> None:
        self.address = ""
        self._has_network = policy.network == "all"
        self._hosts = [] if isinstance(policy.network, str) else [_split(host) for host in policy.network]
        self._endpoints = {f"sk-stand-in-{os.urandom(16).hex()}": endpoint for endpoint in policy.endpoints}
        self._env = env
        self._running: set[asyncio.Task[None]] = set()
        for endpoint in policy.endpoints:
            base = urlsplit(endpoint.base_url)
            if base.scheme not in ("http", "https") or not base.hostname:
                raise UsageError(f"the model's address {endpoint.base_url!r} is not an http or https address")
            if not re.fullmatch(r"[\x21-\x7e]+", endpoint.key):
                raise UsageError(f"the key for {base.hostname} is empty, or has spaces or control characters")

    def describe(self) -> list[str]:
        """Return the lines that the step records about the proxy."""
        lines = [f"network: a proxy for {self._list_hosts()}"] if self._hosts else []
        named = [each.key_env for each in self._endpoints.values() if each.key_env]
        return lines + [f"keys: a placeholder for {name}" for name in named]

    def choose_variables(self) -> dict[str, str]:
        """Return the environment variables that make a program use this proxy."""
        chosen: dict[str, str] = {}
        for stand_in, endpoint in self._endpoints.items():
            path = urlsplit(endpoint.base_url).path.rstrip("/")
            chosen |= {endpoint.base_url_env: f"http://{self.address}{path}", endpoint.key_env: stand_in}
        chosen.pop("", None)
        if self._has_network:
            direct = ",".join(filter(None, [_find(self._env, "no_proxy"), "127.0.0.1"]))
        else:
            for name in ("http_proxy", "https_proxy", "all_proxy"):
                chosen |= dict.fromkeys((name, name.upper()), f"http://{self.address}")
            chosen["NODE_USE_ENV_PROXY"] = "1"
            # A server that the program itself starts is on the program's private loopback interface; a listed loopback
            # host is on this machine's.
            listed = {host for host, _ in self._hosts}
            direct = ",".join(name for name in _LOOPBACK if name not in listed)
        return chosen | {"no_proxy": direct, "NO_PROXY": direct}

    async def close(self) -> None:
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        await asyncio.sleep(0)  # the connections close in the loop's next iteration

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the request of one connection."""
        task = asyncio.current_task()
        if task is None or len(self._running) >= MOST_CONNECTIONS:
            writer.close()
            return
        self._running.add(task)
        try:
            head = await _read_head(reader)
            if head.method != "CONNECT":
                await self._pass_on(head, reader, writer)
                return
            host, port = self._check(head.target)
            incoming, outgoing = await self._connect(host, port, self._find_upstream("https", host))
            try:
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                await asyncio.gather(_pump(reader, outgoing), _pump(incoming, writer))
            finally:
                outgoing.transport.abort()
        except RequestRefused as refusal:
            body = f"rolecall: {refusal}\n".encode()
            lines = [f"HTTP/1.1 {refusal.status.value} {refusal.status.phrase}"]
            lines += ["Content-Type: text/plain; charset=utf-8", f"Content-Length: {len(body)}"]
            with suppress(OSError):
                writer.write("\r\n".join([*lines, "Connection: close", "", ""]).encode() + body)
                async with asyncio.timeout(_LINGER):
                    await writer.drain()
                    writer.write_eof()
                    # Closing with unread bytes would discard the answer.
                    while await reader.read(_READ_SIZE):
                        pass
        except (OSError, EOFError, ValueError):
            pass  # the client has closed the connection, or the address of the machine's own proxy has no valid port
        except asyncio.CancelledError:
            writer.transport.abort()
        finally:
            self._running.discard(task)
            writer.close()

    async def _pass_on(self, head: Head, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        absolute = _ABSOLUTE.fullmatch(head.target)
        if absolute is None and not head.target.startswith("/"):
            raise RequestRefused(400, "only CONNECT, and requests for http:// addresses")
        authority, target = absolute.groups(default="") if absolute else (self.address, head.target)
        target = target if target.startswith("/") else f"/{target}"
        headers, scheme = head.headers, "http"
        if authority == self.address:
            endpoint, headers = self._exchange_key(headers)
            base = urlsplit(endpoint.base_url)
            served, path = base.path.rstrip("/"), unquote(target.partition("?")[0]).replace("\\", "/")
            if not f"{path}/".startswith(f"{served}/") or not {".", ".."}.isdisjoint(path.split("/")):
                raise RequestRefused(404, f"this address only serves paths below {served or '/'}")
            scheme, authority = base.scheme, base.netloc.rpartition("@")[2]
            host, port = base.hostname or "", base.port or (443 if scheme == "https" else 80)
        else:
            host, port = self._check(authority if re.search(r":[0-9]+$", authority) else f"{authority}:80")
        body = _read_body(head, reader)
        named = {word.strip().lower() for value in head.find_all("connection") for word in value.split(",")}
        dropped = {*_HOP_BY_HOP, *named} - {"content-length", "transfer-encoding"}
        lines = [f"Host: {authority}"]
        lines += [f"{name}: {value}" for name, value in headers if name.lower() not in dropped]
        upstream = self._find_upstream(scheme, host)
        if upstream is not None and scheme == "http":
            target = f"http://{authority}{target}"
            lines += _sign_in(upstream)
            host, port, upstream = upstream.hostname or "", upstream.port or 80, None
        incoming, outgoing = await self._connect(host, port, upstream, is_encrypted=scheme == "https")

        async def send() -> None:
            async for chunk in body:
                with suppress(OSError):  # a server can answer and close before it has read everything
                    outgoing.write(chunk)
                    await outgoing.drain()
            while await reader.read(_READ_SIZE):  # until the client closes the connection
                pass

        lines = [f"{head.method} {target} HTTP/1.1", *lines, "Connection: close", "", ""]
        outgoing.write("\r\n".join(lines).encode("latin-1"))
        sending, receiving = asyncio.create_task(send()), asyncio.create_task(_receive(incoming, writer))
        try:
            await asyncio.wait((sending, receiving), return_when=asyncio.FIRST_COMPLETED)
            if receiving.done():
                receiving.result()
                # Closing a connection with unread bytes would discard the end of the answer.
                await asyncio.wait((sending,), timeout=_LINGER)
        finally:
            outgoing.transport.abort()
            sending.cancel()
            receiving.cancel()
            await asyncio.gather(sending, receiving, return_exceptions=True)

    def _check(self, authority: str) -> tuple[str, int]:
        """Return the host and port if the program is allowed to connect to them; otherwise, raise RequestRefused."""
        try:
            host, port = _split(authority)
        except UsageError as error:
            raise RequestRefused(400, str(error)) from error
        for allowed, allowed_port in self._hosts:
            is_below = allowed.startswith("*.") and host.endswith(allowed[1:])
            if port == allowed_port and (host == allowed or is_below):
                return host, port
        raise RequestRefused(403, f"the sandbox does not allow {host}:{port}; it allows {self._list_hosts()}")

    def _list_hosts(self) -> str:
        return ", ".join(_join(host, port) for host, port in self._hosts) or "none"

    def _exchange_key(self, headers: Headers) -> tuple[ProxiedEndpoint, Headers]:
        """Return the endpoint whose placeholder is in the headers, and the headers with the endpoint's key in its
        place."""
        given = [value.rpartition(" ")[2] for name, value in headers if name.lower() in _CREDENTIALS]
        stand_in = next((word for word in given if word in self._endpoints), None)
        if stand_in is None:
            why = "a request to this address needs the key from the program's environment"
            raise RequestRefused(401, why)
        endpoint, exchanged = self._endpoints[stand_in], []
        for name, value in headers:
            scheme, space, word = value.rpartition(" ")
            is_ours = name.lower() in _CREDENTIALS and word == stand_in
            exchanged.append((name, f"{scheme}{space}{endpoint.key}" if is_ours else value))
        return endpoint, exchanged

    def _find_upstream(self, scheme: str, host: str) -> SplitResult | None:
        """Return the proxy that this machine itself needs to connect to a host, or None."""
        address = _find(self._env, f"{scheme}_proxy") or _find(self._env, "all_proxy")
        direct = [name.strip() for name in _find(self._env, "no_proxy").lower().split(",")]
        names = [name.removeprefix("*").removeprefix(".") for name in (*_LOOPBACK, *filter(None, direct))]
        if not address or any(host == name or host.endswith(f".{name}") or not name for name in names):
            return None
        upstream = urlsplit(address if "://" in address else f"http://{address}")
        if upstream.scheme != "http" or not upstream.hostname:
            raise RequestRefused(502, "this machine's own proxy is not an http:// address")
        return upstream

    async def _connect(
        self, host: str, port: int, upstream: SplitResult | None, *, is_encrypted: bool = False
    ) -> Connection:
        encryption: ssl.SSLContext | None = None
        if is_encrypted:
            encryption = ssl.create_default_context()
            for name in ("SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS"):
                with suppress(OSError):  # a missing file adds no certificates
                    encryption.load_verify_locations(self._env.get(name) or os.devnull)
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                if upstream is None:
                    return await asyncio.open_connection(host, port, limit=_READ_SIZE, ssl=encryption)
                return await _connect_through(upstream, host, port, encryption)
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError) as error:
            why = f"{host}:{port} cannot be reached: {error or 'no answer'}"
            raise RequestRefused(504 if isinstance(error, TimeoutError) else 502, why) from error


async def _connect_through(
    upstream: SplitResult, host: str, port: int, encryption: ssl.SSLContext | None
) -> Connection:
    reader, writer = await asyncio.open_connection(upstream.hostname, upstream.port or 80, limit=_READ_SIZE)
    try:
        authority = _join(host, port)
        lines = [f"CONNECT {authority} HTTP/1.1", f"Host: {authority}", *_sign_in(upstream), "", ""]
        writer.write("\r\n".join(lines).encode("latin-1"))
        reply = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").splitlines()[0]
        if not re.match(r"HTTP/1\.[01] 2", reply):
            raise ConnectionRefusedError(f"this machine's own proxy answers {reply[:200]!r}")
        if encryption is not None:
            await writer.start_tls(encryption, server_hostname=host)
    except BaseException:
        writer.transport.abort()
        raise
    return reader, writer


async def _read_head(reader: asyncio.StreamReader) -> Head:
    try:
        async with asyncio.timeout(HEAD_SECONDS):
            raw = await reader.readuntil(b"\r\n\r\n")
    except TimeoutError:
        raise RequestRefused(408, "the head of the request took too long") from None
    except asyncio.LimitOverrunError:
        raise RequestRefused(431, "the head of the request is too long") from None
    first, *lines = raw[:-4].decode("latin-1").split("\r\n")
    request = _REQUEST.fullmatch(first)
    headers = [found for line in lines if (found := _HEADER.fullmatch(line))]
    if request is None or len(headers) < len(lines):
        raise RequestRefused(400, "the head of the request is malformed")
    return Head(request[1], request[2], [(header[1], header[2]) for header in headers])


def _read_body(head: Head, reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Return the body of a request piece by piece, to be forwarded. Raise RequestRefused if the end of the body is
    ambiguous, because the server could read the rest as another request."""
    lengths, codings = head.find_all("content-length"), head.find_all("transfer-encoding")
    if not codings and (not lengths or (len(lengths) == 1 and re.fullmatch("[0-9]{1,18}", lengths[0]))):
        return _read_exactly(reader, int(lengths[0]) if lengths else 0)
    if lengths or [coding.lower() for coding in codings] != ["chunked"]:
        raise RequestRefused(400, "it is unclear where the request body ends")
    return _read_chunks(reader)


async def _read_exactly(reader: asyncio.StreamReader, left: int) -> AsyncIterator[bytes]:
    while left:
        chunk = await reader.read(min(left, _READ_SIZE))
        if not chunk:
            raise EOFError
        left -= len(chunk)
        yield chunk


async def _read_chunks(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Yield a chunked body without its extensions and trailers."""
    size = 1
    while size:
        found = _CHUNK.fullmatch(await reader.readuntil(b"\r\n"))
        if found is None:
            raise EOFError
        size = int(found[1], 16)
        yield found[1] + b"\r\n"
        async for chunk in _read_exactly(reader, size):
            yield chunk
        if size and await reader.readexactly(2) != b"\r\n":
            raise EOFError
        yield b"\r\n"


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    try:
        while chunk := await source.read(_READ_SIZE):
            sink.write(chunk)
            await sink.drain()
        if sink.can_write_eof():
            sink.write_eof()
    except OSError:
        sink.transport.abort()


async def _receive(incoming: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Forward an answer, marked as the last on its connection."""
    is_last = False
    while not is_last:
        try:
            first, *lines = (await incoming.readuntil(b"\r\n\r\n"))[:-4].split(b"\r\n")
        except (OSError, EOFError, asyncio.LimitOverrunError) as error:
            why = "the server closed the connection, or its answer is malformed"
            raise RequestRefused(502, why) from error
        is_last = re.match(rb"HTTP/1\.[01] 1", first) is None
        dropped = (b"connection", b"keep-alive")
        kept = [line for line in lines if line.partition(b":")[0].lower() not in dropped]
        writer.write(b"\r\n".join([first, *kept, *([b"Connection: close"] if is_last else []), b"", b""]))
    await _pump(incoming, writer)


def _split(address: str) -> tuple[str, int]:
    host, port = split_address(address)
    return host.lower(), port


def _join(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _sign_in(upstream: SplitResult) -> list[str]:
    if upstream.username is None:
        return []
    login = f"{unquote(upstream.username)}:{unquote(upstream.password or '')}"
    return [f"Proxy-Authorization: Basic {base64.b64encode(login.encode()).decode()}"]


def _find(env: Mapping[str, str], name: str) -> str:
    return env.get(name) or env.get(name.upper()) or ""
