"""The embedding service: what it answers, whom it lets in, and that each text is computed once for everybody."""

from __future__ import annotations

import base64
import http.client
import json
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread, Timer
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import commands
import pytest

from knowledge.knowrepo import Repo
from knowledge.vectorserver import Fault, VectorServer

TOKEN = "a-token-of-some-length-that-is-long-enough"
PATIENCE = 120


class Answer(NamedTuple):
    status: int
    body: Any
    headers: dict[str, str]


class Client:
    def __init__(self, address: str, child: subprocess.Popen[str]) -> None:
        self.address = address
        self.child = child
        self._host, self._port = urlsplit(address).hostname, urlsplit(address).port

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body, named)
        response = connection.getresponse()
        data = response.read()
        connection.close()
        is_json = response.getheader("content-type") == "application/json"
        return Answer(
            response.status, json.loads(data) if is_json else data.decode(), dict(response.getheaders())
        )

    def embed(
        self, texts: Any, *, model: str = "embedded", more: dict[str, Any] | None = None, **headers: str
    ) -> Answer:
        body = json.dumps({"model": model, "input": texts, **(more or {})}).encode()
        return self.ask("POST", "/v1/embeddings", body, **headers)


@contextmanager
def served(repo: Repo, *options: str, lasting: float = PATIENCE, **more: str) -> Iterator[Client]:
    """A server, which is killed after a while so that a test fails instead of hanging."""
    child = subprocess.Popen(
        repo.command("serve", *options),
        cwd=repo.folder,
        env={**repo.env, **more},
        stdout=subprocess.PIPE,
        text=True,
    )
    watchdog = Timer(lasting, child.kill)
    watchdog.start()
    try:
        assert child.stdout is not None
        yield Client(child.stdout.readline().strip(), child)
    finally:
        watchdog.cancel()
        child.terminate()
        child.communicate(timeout=PATIENCE)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    folder = tmp_path_factory.mktemp("served")
    with served(Repo(folder / "repo", folder / "home"), lasting=600) as client:
        yield client


# -- what it answers --


def test_it_answers_as_the_public_endpoint_does(client: Client) -> None:
    assert client.address.startswith("http://127.0.0.1:") and client.address.endswith("/v1")
    answer = client.embed(["parse the configuration", "delete a folder"])
    assert answer.status == 200 and answer.body["object"] == "list" and answer.body["model"] == "embedded"
    assert [row["index"] for row in answer.body["data"]] == [0, 1]
    assert {len(row["embedding"]) for row in answer.body["data"]} == {256}
    assert answer.body["usage"]["total_tokens"] > 0
    (model,) = client.ask("GET", "/v1/models").body["data"]
    assert model["id"] == "embedded"


def test_one_text_and_vectors_in_bytes_are_the_same(client: Client) -> None:
    (plain,) = client.embed("parse it").body["data"]
    (same,) = client.embed("parse it", more={"encoding_format": None, "user": "me"}).body["data"]
    assert same == plain
    (packed,) = client.embed(["parse it"], more={"encoding_format": "base64"}).body["data"]
    numbers = struct.unpack("<256f", base64.b64decode(packed["embedding"]))
    assert numbers == pytest.approx(plain["embedding"], abs=1e-6)


def test_the_usual_client_can_use_it(client: Client) -> None:
    openai = pytest.importorskip("openai")
    with openai.OpenAI(api_key="none", base_url=client.address, max_retries=0) as asked:
        found = asked.embeddings.create(model="embedded", input=["parse it", "delete it"])
    assert [len(row.embedding) for row in found.data] == [256, 256]


@pytest.mark.parametrize(
    ("body", "status", "told"),
    [
        (b"{", 400, "not JSON"),
        (b"[" * 100_000, 400, "not JSON"),
        (b"[]", 400, "not an object"),
        (b'{"input": "x"}', 404, "the model here is 'embedded'"),
        (b'{"model": "other", "input": "x"}', 404, "not 'other'"),
        (b'{"model": "embedded"}', 400, "`input` must be"),
        (b'{"model": "embedded", "input": []}', 400, "`input` must be"),
        (b'{"model": "embedded", "input": ""}', 400, "none of them empty"),
        (b'{"model": "embedded", "input": [[1, 2]]}', 400, "numbers of tokens"),
        (b'{"model": "embedded", "input": [1, 2]}', 400, "numbers of tokens"),
        (b'{"model": "embedded", "input": 12}', 400, "`input` must be"),
        (b'{"model": "embedded", "input": [null]}', 400, "`input` must be"),
        (b'{"model": "embedded", "input": "\\ud800"}', 400, "surrogate"),
        (b'{"model": "embedded", "input": "x", "encoding_format": "int8"}', 400, "float or base64"),
        (b'{"model": "embedded", "input": "x", "dimensions": 8}', 400, "leave out `dimensions`"),
        (json.dumps({"model": "embedded", "input": ["x"] * 2049}).encode(), 400, "at most 2,048"),
        (b" " * (32 * 1024 * 1024 + 1), 413, "at most"),
    ],
)
def test_what_cannot_be_answered_is_said_and_the_server_goes_on(
    client: Client, body: bytes, status: int, told: str
) -> None:
    answer = client.ask("POST", "/v1/embeddings", body)
    assert (answer.status, told in answer.body["error"]["message"]) == (status, True), answer
    assert client.embed("x").status == 200


def test_there_is_nothing_else_there(client: Client) -> None:
    for method, path in (
        ("GET", "/"),
        ("GET", "/v1/embeddings"),
        ("POST", "/v1/models"),
        ("PUT", "/v1/embeddings"),
    ):
        assert client.ask(method, path, b"{}").status == 404


def test_many_clients_at_once_get_their_own_vectors(client: Client) -> None:
    words = [f"word{number}" for number in range(24)]
    alone = {word: client.embed(word).body["data"][0]["embedding"] for word in words}
    found: dict[str, Any] = {}

    def ask(word: str) -> None:
        found[word] = client.embed(word).body["data"][0]["embedding"]

    threads = [Thread(target=ask, args=(word,)) for word in words]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert found == alone


# -- the cache --


def test_a_text_is_computed_once_for_everybody_who_asks(remote: Repo, server: VectorServer) -> None:
    with served(remote, "--model", "fake/tiny") as client:
        first = client.embed(["one", "two", "one"], model="fake/tiny")
        assert first.status == 200 and sorted(server.texts) == ["one", "two"]
        again = client.embed(["two", "three"], model="fake/tiny")
        assert again.status == 200 and sorted(server.texts) == ["one", "three", "two"]
        assert again.body["data"][0]["embedding"] == pytest.approx(
            first.body["data"][1]["embedding"], abs=1e-3
        )
    with served(remote, "--model", "fake/tiny") as client:
        assert client.embed(["one", "three"], model="fake/tiny").status == 200
    assert len(server.texts) == 3


def test_a_sync_and_the_service_share_what_was_computed(remote: Repo, server: VectorServer) -> None:
    remote.sync()
    known = list(server.texts)
    with served(remote, "--model", "fake/tiny") as client:
        assert client.embed(known, model="fake/tiny").status == 200
    assert server.texts == known


def test_a_repository_can_be_indexed_through_it(repo: Repo, tmp_path: Path) -> None:
    with served(repo, "--token-env", "TOKEN", TOKEN=TOKEN) as client:
        other = Repo(tmp_path / "other", tmp_path / "elsewhere")
        other.write({"knowledge.yaml": 'include: ["*"]\nembedding: {provider: shared, model: embedded}\n'})
        other.home.mkdir(parents=True)
        entry = {"baseUrl": client.address, "apiKeyEnv": "SHARED"}
        (other.home / "config.yaml").write_text(json.dumps({"providers": {"shared": entry}}))
        assert "HTTP 401" in other.refused("sync", SHARED="wrong")
        assert other.json("sync", SHARED=TOKEN)["files"] >= 3
        found = other.json("query", "how often is a request tried", SHARED=TOKEN)["results"]
        assert found[0]["path"] == "src/retry.py"


def test_a_model_that_cannot_be_reached_is_an_error_of_the_server(remote: Repo, server: VectorServer) -> None:
    server.faults = [Fault(401, b"no such key")]
    with served(remote, "--model", "fake/tiny") as client:
        refused = client.embed("one", model="fake/tiny")
        assert refused.status == 502 and "HTTP 401: no such key" in refused.body["error"]["message"]
        assert client.embed("one", model="fake/tiny").status == 200


# -- who is let in --


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", ""])
def test_a_page_that_has_its_own_name_lead_here_is_not_let_in(client: Client, host: str) -> None:
    assert client.embed("x", Host=host).status == 421


def test_pages_of_others_are_not_let_in(client: Client) -> None:
    assert client.embed("x", Origin="http://evil.example").status == 403


def test_a_token_is_needed_where_one_was_named(repo: Repo) -> None:
    with served(repo, "--token-env", "TOKEN", TOKEN=TOKEN) as client:
        wrong: list[dict[str, Any]] = [{}, {"Authorization": "Bearer wrong"}, {"Authorization": TOKEN}]
        for given in wrong:
            refused = client.embed("x", **given)
            assert refused.status == 401 and refused.headers["www-authenticate"] == "Bearer"
        assert client.embed("x", Authorization=f"Bearer {TOKEN}").status == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7"])
def test_off_loopback_it_does_not_begin_without_a_token(repo: Repo, host: str) -> None:
    error = repo.refused("serve", "--host", host, code=2)
    assert (
        f"a server on {host} can be reached by others, so it needs a token" in error
        and "--token-env" in error
    )
    assert "holds no token" in repo.refused("serve", "--host", host, "--token-env", "TOKEN", code=2)


def test_off_loopback_it_takes_addresses_in_numbers_and_names_that_were_allowed(repo: Repo) -> None:
    options = ("--host", "0.0.0.0", "--token-env", "TOKEN", "--allow-host", "box.example")
    with served(repo, *options, TOKEN=TOKEN) as client:
        known: dict[str, Any] = {"Authorization": f"Bearer {TOKEN}"}
        assert client.embed("x", **known).status == 200
        assert client.embed("x", Host="box.example", **known).status == 200
        assert client.embed("x", Host="other.example", **known).status == 421
        assert client.embed("x").status == 401


# -- beginning and ending --


@pytest.mark.parametrize(
    ("model", "told"),
    [("", "is not the name of a model"), ("tiny", "is not the name of a model"), ("nobody/tiny", "'nobody'")],
)
def test_a_model_that_is_not_there_is_refused(repo: Repo, model: str, told: str) -> None:
    assert told in repo.refused("serve", "--model", model, code=2)


def test_a_port_that_is_taken_is_said(repo: Repo, client: Client) -> None:
    port = str(urlsplit(client.address).port)
    assert "cannot listen on" in repo.refused("serve", "--port", port)


def test_it_ends_with_a_signal_and_says_nothing_else(repo: Repo) -> None:
    with served(repo) as client:
        assert client.embed("x").status == 200
        client.child.terminate()
        rest, _ = client.child.communicate(timeout=PATIENCE)
    assert rest == "" and client.child.returncode in (0, -15)


def test_without_its_packages_it_says_what_to_install(repo: Repo) -> None:
    hide = "import sys; sys.modules['starlette'] = None; from rolecall.__main__ import command; sys.exit(command())"
    result = commands.run([sys.executable, "-c", hide, "knowledge", "serve"], cwd=repo.folder, env=repo.env)
    assert (result.returncode, result.stdout) == (2, "")
    assert "pip install 'rolecall[knowledge]'" in result.stderr
