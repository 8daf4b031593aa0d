"""The proxy of sandboxed programs, with real programs, real sandboxes and real servers."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import pwd
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from textwrap import dedent
from typing import Any, ClassVar

import pytest

from rolecall.agents import process, proxy
from rolecall.agents.process import Exit
from rolecall.agents.sandbox import Layers, Needs, Policy, ProxiedEndpoint, find_layers, plan
from rolecall.errors import UsageError
from rolecall.store import scratch
from rolecall.workflow.model import Sandbox

BOUND = 120.0
HOME = pwd.getpwuid(os.getuid()).pw_dir
"""The user's real home, because the homes of others are hidden, and Python may be installed there."""
KEY = "sk-real-0123456789abcdefghijklmnopqrstuvwxyz"
BIG = 50 * 1024 * 1024
PIECE = bytes(range(256)) * 256
COMMIT = "0123456789" * 4
PATH = "/usr/local/bin:/usr/bin:/bin"
Program = Callable[[str], list[str]]


class Site(BaseHTTPRequestHandler):
    """A server with something to fetch, something to send to, and a protected place."""

    protocol_version = "HTTP/1.1"
    seen: ClassVar[list[tuple[str, dict[str, str]]]]
    goes_on: ClassVar[threading.Event]

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self.seen.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
        if self.path == "/big":
            self.send_response(200)
            self.send_header("Content-Length", str(BIG))
            self.end_headers()
            for _ in range(BIG // len(PIECE)):
                self.wfile.write(PIECE)
        elif self.path.startswith("/away/"):
            self.send_response(302)
            self.send_header("Location", self.path.removeprefix("/away/"))
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif "/info/refs" in self.path:
            self._send(f"{COMMIT}\trefs/heads/main\n".encode(), 200)
        elif self.path.endswith("/events"):
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for number in range(3):
                event = f"data: {number}\n\n".encode()
                self.wfile.write(b"%x\r\n%b\r\n" % (len(event), event))
                self.wfile.flush()
                assert self.goes_on.wait(BOUND)
                self.goes_on.clear()
            self.wfile.write(b"0\r\n\r\n")
        else:
            self._say({"path": self.path, "key": self._key()}, 200 if self._key() in ("", KEY) else 401)

    def do_POST(self) -> None:
        self.seen.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
        digest, size = hashlib.sha256(), 0
        for piece in self._body():
            digest.update(piece)
            size += len(piece)
        answer = {"size": size, "digest": digest.hexdigest()}
        self._say(answer, 200 if self._key() in ("", KEY) else 401)

    def _key(self) -> str:
        return self.headers.get("x-api-key") or self.headers.get("authorization", "").removeprefix("Bearer ")

    def _body(self) -> Iterator[bytes]:
        if self.headers.get("transfer-encoding") != "chunked":
            left = int(self.headers.get("content-length", 0))
            while left:
                piece = self.rfile.read(min(left, 65536))
                left -= len(piece)
                yield piece
            return
        while size := int(self.rfile.readline(), 16):
            yield self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()

    def _say(self, value: object, status: int) -> None:
        self._send(json.dumps(value).encode(), status)

    def _send(self, body: bytes, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, certificate: Path | None = None) -> None:
        self.site: type[Site] = type("Site", (Site,), {"seen": [], "goes_on": threading.Event()})
        super().__init__(("127.0.0.1", 0), self.site)
        self.scheme = "https" if certificate else "http"
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate, certificate.with_name("key.pem"))
            self.socket = context.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)

    @property
    def host(self) -> str:
        return f"localhost:{self.server_address[1]}"

    @property
    def address(self) -> str:
        return f"{self.scheme}://{self.host}"

    def handle_error(self, request: object, client_address: object) -> None:
        pass  # clients go away


@contextmanager
def serving(server: Server) -> Iterator[Server]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(scope="session")
def certificate() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="rc-certificate-", dir="/tmp") as folder:
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
             "-days", "2", "-keyout", "key.pem", "-out", "certificate.pem", "-subj", "/CN=localhost",
             "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"],
            cwd=folder, check=True, capture_output=True,
        )  # fmt: skip
        yield Path(folder, "certificate.pem")


@pytest.fixture
def site() -> Iterator[Server]:
    with serving(Server()) as server:
        yield server


@pytest.fixture
def secure(certificate: Path) -> Iterator[Server]:
    with serving(Server(certificate)) as server:
        yield server


@pytest.fixture
def other() -> Iterator[Server]:
    with serving(Server()) as server:
        yield server


@pytest.fixture(scope="session")
def layers() -> Layers:
    found = find_layers()
    if not found.namespaces:
        pytest.skip("this machine has neither user namespaces nor bubblewrap")
    return found


def make_policy(layers: Layers, folder: Path, *hosts: str, **more: Any) -> Policy:
    network = more.pop("network", hosts or "none")
    policy = plan(
        Sandbox(network=network, best_effort=more.pop("best_effort", False)),
        (),
        workdir=folder,
        env={"HOME": HOME},
        private=(),
        layers=layers,
    )
    assert policy is not None
    return policy.grant(Needs(**more))


def run(
    argv: Sequence[str], folder: Path, policy: Policy, *, env: dict[str, str] | None = None, **more: Any
) -> Exit:
    async def bounded() -> Exit:
        whole = {"PATH": PATH, "HOME": str(folder), **(env or {})}
        return await asyncio.wait_for(process.run(argv, cwd=folder, env=whole, sandbox=policy, **more), BOUND)

    return asyncio.run(bounded())


def trust(certificate: Path) -> dict[str, str]:
    names = ("SSL_CERT_FILE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO", "NODE_EXTRA_CA_CERTS")
    return dict.fromkeys(names, str(certificate))


FETCH = """
    import sys, urllib.request, urllib.error
    try:
        print(urllib.request.urlopen(sys.argv[1], timeout=60).read().decode())
    except urllib.error.HTTPError as error:
        print(error.code, error.read().decode())
    except OSError as error:
        print("failed:", error)
"""

NODE = """
    const http = require("http"), tls = require("tls"), url = new URL(process.argv[2]);
    const through = new URL(process.env.HTTPS_PROXY);
    const request = http.request({host: through.hostname, port: through.port, method: "CONNECT", path: url.host});
    request.on("connect", (answer, socket) => {
      if (answer.statusCode !== 200) { console.log(answer.statusCode); process.exit(); }
      const secure = tls.connect({socket, servername: url.hostname}, () =>
        secure.write(`GET ${url.pathname} HTTP/1.1\\r\\nHost: ${url.host}\\r\\nConnection: close\\r\\n\\r\\n`));
      secure.on("data", (piece) => process.stdout.write(piece));
    });
    request.end();
"""


def fetch_with(client: str, program: Program, folder: Path, address: str) -> list[str]:
    if client == "curl":
        return ["curl", "--silent", "--show-error", address]
    if client == "node":
        script = folder / "fetch.js"
        script.write_text(dedent(NODE), encoding="utf-8")
        return ["node", str(script), address]
    return [*program(FETCH), address]


@pytest.mark.parametrize("client", ["curl", "python", "node"])
def test_a_listed_server_is_reached_over_tls(
    client: str, layers: Layers, secure: Server, certificate: Path, tmp_path: Path, program: Program
) -> None:
    if shutil.which(client, path=PATH) is None and client != "python":
        pytest.skip(f"{client} is not installed")
    argv = fetch_with(client, program, tmp_path, f"{secure.address}/hello")
    policy = make_policy(layers, tmp_path, secure.host)
    done = run(argv, tmp_path, policy, env=trust(certificate))
    assert '"path": "/hello"' in done.stdout, (done.reason, done.stderr)
    assert f"network: a proxy for {secure.host}" in policy.enforced
    assert "network: a namespace" in policy.enforced


@pytest.mark.parametrize("client", ["curl", "python"])
def test_a_listed_server_is_reached_without_tls(
    client: str, layers: Layers, site: Server, tmp_path: Path, program: Program
) -> None:
    argv = fetch_with(client, program, tmp_path, f"{site.address}/hello?a=b")
    done = run(argv, tmp_path, make_policy(layers, tmp_path, site.host))
    assert json.loads(done.stdout) == {"path": "/hello?a=b", "key": ""}
    assert site.site.seen[0][1]["host"] == site.host


def test_git_asks_listed_servers_only(
    layers: Layers, secure: Server, other: Server, certificate: Path, tmp_path: Path
) -> None:
    policy = make_policy(layers, tmp_path, secure.host)
    done = run(["git", "ls-remote", f"{secure.address}/repo"], tmp_path, policy, env=trust(certificate))
    assert done.stdout == f"{COMMIT}\trefs/heads/main\n", done.stderr
    done = run(["git", "ls-remote", f"{other.address}/repo"], tmp_path, policy, env=trust(certificate))
    assert "403" in done.stderr
    assert not other.site.seen


def test_a_server_that_is_not_listed_is_refused_with_what_is_allowed(
    layers: Layers, site: Server, other: Server, tmp_path: Path, program: Program
) -> None:
    policy = make_policy(layers, tmp_path, site.host, "*.example.com:443")
    done = run([*program(FETCH), f"{other.address}/hello"], tmp_path, policy)
    assert f"403 rolecall: the sandbox does not allow {other.host}" in done.stdout
    assert f"it allows {site.host}, *.example.com:443" in done.stdout
    done = run(["curl", "--silent", "--show-error", "https://example.org/"], tmp_path, policy)
    assert done.code == 56
    assert "403" in done.stderr
    assert not other.site.seen


def test_connections_that_go_around_the_proxy_fail(
    layers: Layers, site: Server, tmp_path: Path, program: Program
) -> None:
    argv = program("""
        import socket, sys
        for family, kind, address in (
            (socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", int(sys.argv[1]))),
            (socket.AF_INET, socket.SOCK_STREAM, ("192.0.2.1", 443)),
            (socket.AF_INET, socket.SOCK_DGRAM, ("192.0.2.1", 53)),
            (socket.AF_INET6, socket.SOCK_STREAM, ("2001:db8::1", 443)),
        ):
            try:
                socket.socket(family, kind).connect(address)
                print("connected", address)
            except OSError as error:
                print("failed", error.strerror)
    """)
    done = run([*argv, str(site.server_address[1])], tmp_path, make_policy(layers, tmp_path, site.host))
    assert done.stdout.splitlines() == [
        "failed Connection refused",
        "failed Network is unreachable",
        "failed Network is unreachable",
        "failed Network is unreachable",
    ]


def test_a_redirect_to_another_host_is_not_followed_there(
    layers: Layers, site: Server, other: Server, tmp_path: Path, program: Program
) -> None:
    policy = make_policy(layers, tmp_path, site.host)
    done = run([*program(FETCH), f"{site.address}/away/{other.address}/hello"], tmp_path, policy)
    assert done.stdout.startswith("403 ")
    assert not other.site.seen


def test_bubblewrap_leads_to_the_proxy_too(
    layers: Layers, site: Server, other: Server, tmp_path: Path
) -> None:
    if shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    policy = make_policy(layers._replace(namespaces="bubblewrap"), tmp_path, site.host)
    fetch = ["curl", "--silent", "--show-error", f"{site.address}/hello", f"{other.address}/hello"]
    done = run(fetch, tmp_path, policy)
    assert '"path": "/hello"' in done.stdout, done.stderr
    assert "the sandbox does not allow" in done.stdout


def test_servers_that_the_program_starts_itself_are_reached_directly(
    layers: Layers, tmp_path: Path, program: Program
) -> None:
    argv = program("""
        import http.server, threading, urllib.request
        server = http.server.HTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for name in ("127.0.0.1", "localhost"):
            print(urllib.request.urlopen(f"http://{name}:{server.server_address[1]}/").status)
    """)
    assert run(argv, tmp_path, make_policy(layers, tmp_path, "example.com:443")).stdout == "200\n200\n"


def test_events_arrive_one_by_one(layers: Layers, secure: Server, certificate: Path, tmp_path: Path) -> None:
    """The server sends the next event when the program has printed the one before."""
    endpoint = ProxiedEndpoint(secure.address, KEY, base_url_env="MODEL_URL", key_env="MODEL_KEY")
    for policy, address in (
        (make_policy(layers, tmp_path, secure.host), f"{secure.address}/events"),
        (make_policy(layers, tmp_path, endpoints=(endpoint,)), "$MODEL_URL/events"),
        (make_policy(layers, tmp_path, endpoints=(endpoint,), network="all"), "$MODEL_URL/events"),
    ):
        seen = ""

        def note(text: str) -> None:
            nonlocal seen
            for _ in range(text.count("data:")):
                secure.site.goes_on.set()
            seen += text

        argv = ["sh", "-c", f'curl --silent --show-error --no-buffer -H "x-api-key: $MODEL_KEY" "{address}"']
        done = run(argv, tmp_path, policy, env=trust(certificate), on_text=note)
        assert (seen, done.stderr) == ("data: 0\n\ndata: 1\n\ndata: 2\n\n", "")


ASK = """
    import json, os, sys, urllib.request, urllib.error
    address, key = os.environ["MODEL_URL"], os.environ["MODEL_KEY"]
    everything = open("/proc/self/environ").read()
    for folder, _, names in os.walk("."):
        everything += "".join(open(os.path.join(folder, name), errors="replace").read() for name in names)
    for headers in ({"x-api-key": key}, {"Authorization": f"Bearer {key}"}, {}, {"x-api-key": "another"}):
        request = urllib.request.Request(f"{address}/messages", data=b"{}", headers={**headers, "X-Kept": "yes"})
        try:
            print(urllib.request.urlopen(request).status)
        except urllib.error.HTTPError as error:
            print(error.code, error.read().decode().strip())
    print(json.dumps({"key": key, "address": address, "has_key": "sk-real" in everything}))
"""


@pytest.mark.parametrize("network", ["all", "none"])
def test_the_program_asks_the_model_with_a_stand_in_for_the_key(
    network: str, layers: Layers, secure: Server, certificate: Path, tmp_path: Path, program: Program
) -> None:
    endpoint = ProxiedEndpoint(f"{secure.address}/v1", KEY, base_url_env="MODEL_URL", key_env="MODEL_KEY")
    policy = make_policy(layers, tmp_path, endpoints=(endpoint,), network=network)
    env = {
        **trust(certificate),
        "MODEL_URL": endpoint.base_url,
        "MODEL_KEY": KEY,
        "http_proxy": "http://192.0.2.1:1",
    }
    *answers, last = run(program(ASK), tmp_path, policy, env=env).stdout.splitlines()
    refusal = "401 rolecall: a request to this address needs the key from the program's environment"
    assert answers == ["200", "200", refusal, refusal]
    seen = json.loads(last)
    assert seen["has_key"] is False
    assert seen["address"].startswith("http://127.0.0.1:")
    assert seen["address"].endswith("/v1")
    assert [
        (path, headers.get("x-api-key"), headers.get("authorization")) for path, headers in secure.site.seen
    ] == [
        ("/v1/messages", KEY, None),
        ("/v1/messages", None, f"Bearer {KEY}"),
    ]
    assert {headers["x-kept"] for _, headers in secure.site.seen} == {"yes"}
    assert "keys: a placeholder for MODEL_KEY" in policy.enforced

    # The stand-in is worthless elsewhere.
    done = subprocess.run(
        ["curl", "--silent", "--cacert", certificate, "-w", "%{http_code}", "-o", "/dev/null",
         "-H", f"x-api-key: {seen['key']}", f"{secure.address}/v1/messages"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == "401"


def test_no_text_of_an_endpoint_shows_its_key() -> None:
    endpoint = ProxiedEndpoint("https://example.com", KEY)
    policy = Policy().grant(Needs(endpoints=(endpoint,)))
    assert KEY not in repr(endpoint) + repr(policy)
    for wrong in (
        ProxiedEndpoint("ftp://example.com", KEY),
        ProxiedEndpoint("https://example.com", f"{KEY}\r\nHost: other"),
    ):
        with pytest.raises(UsageError) as error:
            proxy.Proxy(replace(policy, endpoints=(wrong,)), {})
        assert KEY not in f"{error.value} {error.value.hint}"


def test_the_address_is_known_before_the_program_starts(layers: Layers, site: Server, tmp_path: Path) -> None:
    """For a program that gets it as an argument."""
    endpoint = ProxiedEndpoint(site.address, KEY, base_url_env="MODEL_URL", key_env="MODEL_KEY")
    policy = make_policy(layers, tmp_path, endpoints=(endpoint,))

    async def ask() -> Exit:
        async with proxy.serve(policy, {}) as served:
            address, key = served.variables["MODEL_URL"], served.variables["MODEL_KEY"]
            argv = ["curl", "--silent", "--show-error", "-H", f"x-api-key: {key}", f"{address}/models"]
            env = {"PATH": PATH}
            return await asyncio.wait_for(process.run(argv, cwd=tmp_path, env=env, sandbox=served), BOUND)

    assert json.loads(asyncio.run(ask()).stdout) == {"path": "/models", "key": KEY}


GROWTH = """
    import asyncio, os, resource, sys
    from pathlib import Path
    from rolecall.agents import process
    from rolecall.agents.sandbox import Needs, ProxiedEndpoint, find_layers, plan
    from rolecall.workflow.model import Sandbox

    HOME = os.environ["HOME"]
    host, scheme, folder = sys.argv[1:]
    sandbox, layers = Sandbox(network=(host,)), find_layers()
    policy = plan(sandbox, (), workdir=Path(folder), env={"HOME": HOME}, private=(), layers=layers)
    key = "sk-real-0123456789abcdefghijklmnopqrstuvwxyz"
    endpoint = ProxiedEndpoint(f"{scheme}://{host}", key, "MODEL_URL", "MODEL_KEY")
    policy = policy.grant(Needs(endpoints=(endpoint,)))

    def run(command):
        env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "SSL_CERT_FILE": os.environ["SSL_CERT_FILE"]}
        argv = ["sh", "-ec", command]
        done = asyncio.run(process.run(argv, cwd=Path(folder), env=env, sandbox=policy))
        assert done.code == 0, done.reason
        return done.stdout

    key = '-H "x-api-key: $MODEL_KEY"'
    run(f"curl -sS {key} $MODEL_URL/small; curl -sS {scheme}://{host}/small")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # A reader that takes little at a time.
    print(run(f"curl -sS --limit-rate 40M {key} $MODEL_URL/big | dd bs=4096 status=none | sha256sum").split()[0])
    print(run(f"curl -sS {scheme}://{host}/big | sha256sum").split()[0])
    print(run(f"curl -sS {scheme}://{host}/big | curl -sS -T- -X POST {key} $MODEL_URL/up"))
    print(run(f"curl -sS {scheme}://{host}/big > big; curl -sS --data-binary @big {key} $MODEL_URL/up"))
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_bodies_of_50_mb_pass_without_being_kept_in_memory(
    layers: Layers, secure: Server, certificate: Path, tmp_path: Path, program: Program
) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    argv = [*program(GROWTH), secure.host, secure.scheme, str(folder)]
    env = {"PATH": PATH, "HOME": HOME, **trust(certificate)}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    first, second, chunked, counted, growth = done.stdout.split("\n")[:5]
    digest = hashlib.sha256(PIECE * (BIG // len(PIECE))).hexdigest()
    assert first == second == digest
    assert json.loads(chunked) == json.loads(counted) == {"size": BIG, "digest": digest}
    assert int(growth) < 16 * 1024  # kilobytes


def talk(policy: Policy, *requests: bytes, env: dict[str, str] | None = None) -> list[bytes]:
    """What the proxy answers to each of these bytes, over a connection of its own."""

    async def ask() -> list[bytes]:
        answers = []
        async with proxy.serve(policy, env or {}) as served:
            assert served.relay is not None
            for request in requests:
                stand_in = served.variables.get("MODEL_KEY", "").encode()
                reader, writer = await asyncio.open_connection("127.0.0.1", served.relay.port)
                writer.write(request.replace(b"STAND-IN", stand_in))
                answers.append(await asyncio.wait_for(reader.read(), BOUND))
                writer.close()
        return answers

    return asyncio.run(ask())


def status_of(answer: bytes) -> int:
    return int(answer.split()[1])


def test_malformed_requests_are_refused(site: Server) -> None:
    policy = Policy(
        network=(site.host,),
        endpoints=(ProxiedEndpoint(f"{site.address}/v1", KEY, "MODEL_URL", "MODEL_KEY"),),
    )
    host = site.host.encode()
    get = b"GET http://" + host + b"/x HTTP/1.1\r\n"
    ask = b"POST /v1/x HTTP/1.1\r\nx-api-key: STAND-IN\r\n"
    cases = {
        b"nonsense\r\n\r\n": 400,
        b"GET  / HTTP/1.1\r\n\r\n": 400,
        b"GET / HTTP/2.0\r\n\r\n": 400,
        b"\x16\x03\x01\x02\x00\r\n\r\n": 400,
        get + b"No colon\r\n\r\n": 400,
        get + b"Space before : colon\r\n\r\n": 400,
        get + b" folded: line\r\n\r\n": 400,
        get + b"Bare: a\nInjected: b\r\n\r\n": 400,
        get + b"Bare: a\rInjected: b\r\n\r\n": 400,
        get + b"Zero: a\0b\r\n\r\n": 400,
        get + b"Long: " + b"x" * 200_000 + b"\r\n\r\n": 431,
        get + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab": 400,
        get + b"Content-Length: +1\r\n\r\na": 400,
        get + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n": 400,
        get + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n": 400,
        b"GET https://" + host + b"/ HTTP/1.1\r\n\r\n": 400,
        b"GET http://user@" + host + b"/ HTTP/1.1\r\n\r\n": 400,
        b"GET http://" + host + b"@other.example:80/ HTTP/1.1\r\n\r\n": 400,
        b"CONNECT " + host.partition(b":")[0] + b" HTTP/1.1\r\n\r\n": 400,
        b"CONNECT http://" + host + b" HTTP/1.1\r\n\r\n": 400,
        b"CONNECT " + host + b"0 HTTP/1.1\r\n\r\n": 400,
        b"CONNECT other.example:443 HTTP/1.1\r\nHost: " + host + b"\r\n\r\n": 403,
        b"CONNECT 127.0.0.1:" + host.partition(b":")[2] + b" HTTP/1.1\r\n\r\n": 403,
        b"CONNECT 2130706433:" + host.partition(b":")[2] + b" HTTP/1.1\r\n\r\n": 403,
        b"CONNECT [::1]:" + host.partition(b":")[2] + b" HTTP/1.1\r\n\r\n": 403,
        b"GET http://other.example/ HTTP/1.1\r\nHost: " + host + b"\r\n\r\n": 403,
        b"POST /v1/x HTTP/1.1\r\nContent-Length: 0\r\n\r\n": 401,
        b"POST /v1/x HTTP/1.1\r\nX-Other: STAND-IN\r\nContent-Length: 0\r\n\r\n": 401,
        ask.replace(b"/v1/x", b"/v2/x") + b"\r\n": 404,
        ask.replace(b"/v1/x", b"/v1/../admin") + b"\r\n": 404,
        ask.replace(b"/v1/x", b"/v1/%2e%2E/admin") + b"\r\n": 404,
        ask.replace(b"/v1/x", b"/v1x") + b"\r\n": 404,
    }
    answers = talk(policy, *cases)
    assert [(request[:60], status_of(answer)) for request, answer in zip(cases, answers, strict=True)] == [
        (request[:60], status) for request, status in cases.items()
    ]
    assert not site.site.seen


def test_hosts_match_by_name_and_port(site: Server) -> None:
    port = site.server_address[1]
    policy = Policy(network=(f"LOCALHOST:{port}", f"[::1]:{port}", f"*.localhost:{port}"))
    connect = "CONNECT {} HTTP/1.1\r\n\r\nGET /hello HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    names = [f"LocalHost:{port}", f"localhost:{port + 1}", f"a.b.localhost:{port}", f"alocalhost:{port}"]
    answers = talk(policy, *(connect.format(name).encode() for name in names))
    assert b'"/hello"' in answers[0]
    assert [status_of(answer) in (200, 502) for answer in answers] == [True, False, True, False]
    for wrong in ("localhost", "localhost:0", "http://localhost:1", "*:443"):
        with pytest.raises(UsageError):
            proxy.Proxy(Policy(network=(wrong,)), {})


def test_headers_for_the_proxy_are_dropped_and_others_kept(site: Server) -> None:
    endpoint = ProxiedEndpoint(site.address, KEY, "MODEL_URL", "MODEL_KEY")
    head = (
        b"POST /x HTTP/1.1\r\nHost: elsewhere\r\nProxy-Connection: keep-alive\r\nProxy-Authorization: Basic eA==\r\n"
        b"Connection: keep-alive, X-Hop, Content-Length\r\nX-Hop: 1\r\nX-Kept: caf\xe9\r\nX-Api-Key: STAND-IN\r\n"
        b"X-Repeated: STAND-IN\r\nContent-Length: 2\r\n\r\nabGET /second HTTP/1.1\r\n\r\n"
    )
    (answer,) = talk(Policy(endpoints=(endpoint,)), head)
    assert status_of(answer) == 200
    ((path, headers),) = site.site.seen
    assert (path, headers["host"], headers["x-api-key"], headers["x-kept"]) == ("/x", site.host, KEY, "café")
    assert headers["x-repeated"].startswith("sk-stand-in-")
    assert headers["connection"] == "close"
    assert not {"proxy-connection", "proxy-authorization", "x-hop"} & set(headers)


def test_a_client_that_does_not_finish_its_head_is_sent_away(
    site: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxy, "HEAD_SECONDS", 0.05)
    (answer,) = talk(Policy(network=(site.host,)), b"GET http://" + site.host.encode())
    assert status_of(answer) == 408


def test_a_program_has_a_limited_number_of_connections(site: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy, "MOST_CONNECTIONS", 3)

    async def open_many() -> list[bytes]:
        async with proxy.serve(Policy(network=(site.host,)), {}) as served:
            assert served.relay is not None
            port = served.relay.port
            held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            answers = [await asyncio.wait_for(reader.read(), BOUND)]
            held[0][1].close()
            request = f"GET http://{site.host}/ HTTP/1.1\r\n\r\n".encode()
            while not answers[-1]:
                other_reader, other_writer = await asyncio.open_connection("127.0.0.1", port)
                other_writer.write(request)
                answers.append(await asyncio.wait_for(other_reader.read(), BOUND))
                other_writer.close()
            for end in (writer, *(ends[1] for ends in held)):
                end.close()
            return answers

    answers = asyncio.run(open_many())
    assert answers[0] == b""
    assert status_of(answers[-1]) == 200


def test_a_server_that_cannot_be_reached_or_trusted_is_an_answer(secure: Server) -> None:
    endpoint = ProxiedEndpoint(secure.address, KEY, "MODEL_URL", "MODEL_KEY")
    policy = Policy(network=("localhost:1", "nowhere.invalid:443"), endpoints=(endpoint,))
    requests = [
        f"CONNECT {host} HTTP/1.1\r\n\r\n".encode() for host in ("localhost:1", "nowhere.invalid:443")
    ]
    answers = talk(policy, *requests, b"GET /x HTTP/1.1\r\nX-Api-Key: STAND-IN\r\n\r\n")
    assert [status_of(answer) for answer in answers] == [502, 502, 502]
    assert b"certificate verify failed" in answers[2]
    assert KEY.encode() not in b"".join(answers)


def test_an_answer_says_that_it_is_the_last_of_its_connection() -> None:
    """Otherwise a client could send its next request while the proxy closes the connection."""
    answers = {
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nConnection: keep-alive\r\nX-A: b\r\n\r\nbody": (
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nX-A: b\r\nConnection: close\r\n\r\nbody"
        ),
        b"HTTP/1.0 200 OK\r\n\r\n": b"HTTP/1.0 200 OK\r\nConnection: close\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nCut": b"HTTP/1.1 502 Bad Gateway\r\n",
        b"": b"HTTP/1.1 502 Bad Gateway\r\n",
    }

    async def ask(sent: bytes) -> bytes:
        async def send(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(sent)
            writer.close()

        server = await asyncio.start_server(send, "127.0.0.1", 0)
        host = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server, proxy.serve(Policy(network=(host,)), {}) as served:
            assert served.relay is not None
            reader, writer = await asyncio.open_connection("127.0.0.1", served.relay.port)
            writer.write(f"GET http://{host}/ HTTP/1.1\r\n\r\n".encode())
            answer = await asyncio.wait_for(reader.read(), BOUND)
            writer.close()
            return answer

    for sent, expected in answers.items():
        answer = asyncio.run(ask(sent))
        assert answer.startswith(expected) if b"502" in expected else answer == expected


def test_a_request_ends_with_its_client(site: Server) -> None:
    """A model that nobody listens to any more is not kept busy."""
    policy = Policy(network=(site.host,))

    async def leave() -> bytes:
        gone = asyncio.Event()
        heads: list[bytes] = []

        async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            heads.append(await reader.readuntil(b"\r\n\r\n"))
            assert await reader.read() == b""
            writer.close()
            gone.set()

        silent = await asyncio.start_server(hold, "127.0.0.1", 0)
        port = silent.sockets[0].getsockname()[1]
        async with silent, proxy.serve(replace(policy, network=(f"127.0.0.1:{port}",)), {}) as served:
            assert served.relay is not None
            _, writer = await asyncio.open_connection("127.0.0.1", served.relay.port)
            writer.write(f"GET http://127.0.0.1:{port}/ HTTP/1.1\r\n\r\n".encode())
            while not heads:
                await asyncio.sleep(0.01)
            writer.close()
            await asyncio.wait_for(gone.wait(), BOUND)
        return heads[0]

    assert asyncio.run(leave()).startswith(b"GET / HTTP/1.1\r\n")


def test_a_machine_that_needs_a_proxy_itself_uses_it(certificate: Path, secure: Server, site: Server) -> None:
    """The machine's own proxy leads every name to the test's servers."""
    asked: list[str] = []
    ports = {"443": secure.server_address[1], "80": site.server_address[1]}

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        asked.append(head)
        method, target = head.split()[:2]
        is_tunnel = method == "CONNECT"
        port = ports[target.rpartition(":")[2] if is_tunnel else "80"]
        incoming, outgoing = await asyncio.open_connection("127.0.0.1", port)
        if is_tunnel:
            writer.write(b"HTTP/1.1 200 OK\r\nVia: test\r\n\r\n")
        else:
            outgoing.write(head.encode())
        await asyncio.gather(proxy._pump(reader, outgoing), proxy._pump(incoming, writer))
        outgoing.close()
        writer.close()

    async def ask() -> list[bytes]:
        upstream = await asyncio.start_server(carry, "127.0.0.1", 0)
        address = f"http://me:pass%20word@127.0.0.1:{upstream.sockets[0].getsockname()[1]}"
        env = {
            "HTTPS_PROXY": address,
            "http_proxy": address,
            "NO_PROXY": "direct.invalid",
            "SSL_CERT_FILE": str(certificate),
        }
        policy = Policy(
            network=("plain.example:80", "direct.invalid:80"),
            endpoints=(ProxiedEndpoint("https://localhost.example", KEY, "MODEL_URL", "MODEL_KEY"),),
        )
        answers = []
        async with upstream, proxy.serve(policy, env) as served:
            assert served.relay is not None
            for request in (
                "GET http://plain.example/a HTTP/1.1\r\n\r\n",
                "CONNECT plain.example:80 HTTP/1.1\r\n\r\nGET /b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
                "GET http://direct.invalid/c HTTP/1.1\r\n\r\n",
                f"GET /d HTTP/1.1\r\nx-api-key: {served.variables['MODEL_KEY']}\r\n\r\n",
            ):
                reader, writer = await asyncio.open_connection("127.0.0.1", served.relay.port)
                writer.write(request.encode())
                answers.append(await asyncio.wait_for(reader.read(), BOUND))
                writer.close()
        return answers

    answers = asyncio.run(ask())
    assert [status_of(answer) for answer in answers] == [200, 200, 502, 502]
    assert b"certificate" in answers[3]  # the server is not the one that it should be
    assert [head.split("\r\n")[0] for head in asked] == [
        "GET http://plain.example/a HTTP/1.1",
        "CONNECT plain.example:80 HTTP/1.1",
        "CONNECT localhost.example:443 HTTP/1.1",
    ]
    assert all("Proxy-Authorization: Basic bWU6cGFzcyB3b3Jk" in head for head in asked)
    assert KEY not in "".join(asked)


def test_landlock_alone_allows_tcp_only_to_the_proxy(
    layers: Layers, site: Server, other: Server, tmp_path: Path, program: Program
) -> None:
    if layers.landlock < 4:
        pytest.skip("Landlock cannot restrict TCP before version 4")
    script = program("""
        import os, socket, sys, urllib.request, urllib.error
        print(urllib.request.urlopen(sys.argv[1] + "/hello").read().decode())
        try:
            urllib.request.urlopen(sys.argv[2])
        except urllib.error.HTTPError as error:
            print(error.code)
        for number in (1, 2):
            try:
                socket.create_connection(("127.0.0.1", int(sys.argv[number].rpartition(":")[2])))
            except OSError as error:
                print(error.strerror)
    """)
    policy = make_policy(Layers(layers.landlock), tmp_path, site.host, best_effort=True)
    done = run([*script, site.address, other.address], tmp_path, policy)
    assert done.stdout.splitlines() == [
        '{"path": "/hello", "key": ""}',
        "403",
        "Permission denied",
        "Permission denied",
    ]
    assert f"network: TCP only through the proxy (Landlock {layers.landlock})" in policy.enforced
    assert any(line.startswith("missing: the network cannot be blocked") for line in policy.enforced)


KILLED = """
    import asyncio, os, sys
    from pathlib import Path
    from rolecall.agents import process
    from rolecall.agents.sandbox import find_layers, plan
    from rolecall.workflow.model import Sandbox

    HOME = os.environ["HOME"]
    folder, host = sys.argv[1:]
    sandbox = Sandbox(network=(host,))
    policy = plan(sandbox, (), workdir=Path(folder), env={"HOME": HOME}, private=(), layers=find_layers())
    argv = ["sh", "-c", "echo ready; exec sleep 1000"]
    asyncio.run(process.run(
        argv, cwd=Path(folder), env={"PATH": "/usr/local/bin:/usr/bin:/bin"}, sandbox=policy,
        on_start=lambda child: print(child.run, flush=True), on_text=lambda text: print(text, end="", flush=True),
    ))
"""


def test_nothing_is_left_of_a_proxy_whose_process_was_killed(
    layers: Layers, site: Server, tmp_path: Path, program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Path(tempfile.mkdtemp(prefix="rolecall-test-"))
    try:
        argv = [*program(KILLED), str(tmp_path), site.host]
        with subprocess.Popen(
            argv, stdout=subprocess.PIPE, env={"PATH": PATH, "HOME": HOME, "TMPDIR": str(place)}
        ) as driver:
            assert driver.stdout is not None
            run_id = driver.stdout.readline().decode().strip()
            assert driver.stdout.readline() == b"ready\n"
            assert len(list(place.glob("rolecall-tmp-*/proxy"))) == 1
            os.kill(driver.pid, signal.SIGKILL)
        assert asyncio.run(process.end_leftovers(run_id)) == ()
        scratch.remove_unheld("rolecall-tmp-", str(place))
        assert list(place.iterdir()) == []
    finally:
        shutil.rmtree(place)


def test_a_long_temporary_folder_does_not_prevent_the_proxy(
    layers: Layers, site: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / ("long-" * 20)
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    done = run(
        ["curl", "--silent", f"{site.address}/hello"], tmp_path, make_policy(layers, tmp_path, site.host)
    )
    assert '"/hello"' in done.stdout


def test_a_sandbox_without_a_list_or_an_endpoint_does_not_load_the_proxy(tmp_path: Path) -> None:
    source = """
        import asyncio, sys
        from pathlib import Path
        from rolecall.agents import process
        from rolecall.agents.sandbox import Policy, find_layers
        for network in ("all", "none"):
            policy = Policy(network=network, best_effort=True, layers=find_layers())
            asyncio.run(process.run(["true"], cwd=Path(), env={}, sandbox=policy))
        print("rolecall.agents.proxy" in sys.modules)
    """
    done = subprocess.run(
        [sys.executable, "-c", dedent(source)], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"
