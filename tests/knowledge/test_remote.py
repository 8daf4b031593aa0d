"""Vectors from an endpoint: batches, attempts, what is refused, and that nothing half done is ever used."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from knowledge.knowrepo import KEY, Repo
from knowledge.vectorserver import Fault, VectorServer
from rolecall.errors import RolecallError, StorageError, UsageError
from rolecall.knowledge.remote import RemoteModel


def asked(server: VectorServer, pauses: list[float] | None = None, **more: object) -> RemoteModel:
    """The model at a server; instead of waiting the pauses are noted."""
    noted = pauses if pauses is not None else []
    return RemoteModel(server.base_url, "tiny", wait=noted.append, **more)  # type: ignore[arg-type]


def data(*rows: object) -> Fault:
    return Fault(
        body=json.dumps({"data": [{"index": at, "embedding": row} for at, row in enumerate(rows)]}).encode()
    )


# -- what is asked and what comes of it --


def test_every_text_gets_a_vector_of_length_one_in_its_own_place(server: VectorServer) -> None:
    texts = [f"word{number} other{number % 7}" for number in range(250)]
    rows = asked(server).embed(texts)
    assert rows.shape == (250, 64)
    assert all(math.isclose(float(row @ row), 1.0, abs_tol=1e-5) for row in rows)
    assert (rows[17] == asked(server).embed([texts[17]])[0]).all()
    assert len(server.batches[0]) < 250 and server.texts[:250] == texts


def test_a_request_is_bounded_in_characters_too(server: VectorServer) -> None:
    asked(server).embed(["long " * 15_000] * 10)
    assert all(sum(map(len, batch)) <= 200_000 for batch in server.batches) and len(server.texts) == 10


def test_nothing_is_asked_for_no_texts(server: VectorServer) -> None:
    assert asked(server).embed([]).shape[0] == 0
    assert server.batches == []


def test_the_key_and_the_dimensions_are_sent_and_only_where_there_are_any(server: VectorServer) -> None:
    asked(server, key=KEY, dimensions=64).embed(["one"])
    asked(server).embed(["one"])
    assert [headers.get("authorization") for headers in server.headers] == [f"Bearer {KEY}", None]
    assert [body.get("dimensions") for body in server.bodies] == [64, None]


def test_names_tell_apart_whatever_makes_other_vectors(server: VectorServer) -> None:
    models = [
        RemoteModel("http://a.example/v1", "tiny"),
        RemoteModel("http://b.example/v1", "tiny"),
        RemoteModel("http://a.example/v1", "large"),
        RemoteModel("http://a.example/v1", "tiny", dimensions=8),
    ]
    assert len({model.name for model in models}) == 4
    assert RemoteModel("http://a.example/v1?key=hidden", "tiny", key=KEY).name == models[0].name


# -- trying again --


@pytest.mark.parametrize(
    "fault",
    [
        *(Fault(429), Fault(500), Fault(503), Fault(529), Fault(is_closing=True)),
        Fault(body=b'{"data": [', headers={"Content-Length": "1000"}),
    ],
    ids=["429", "500", "503", "529", "closed", "cut off"],
)
def test_what_may_pass_by_itself_is_tried_again_with_growing_pauses(fault: Fault) -> None:
    pauses: list[float] = []
    with VectorServer([fault, fault]) as server:
        assert asked(server, pauses).embed(["one"]).shape == (1, 64)
        assert len(server.batches) == 3
    assert pauses == sorted(pauses) and len(pauses) == 2 and pauses[0] > 0


def test_a_request_that_hangs_is_given_up_and_tried_again() -> None:
    with VectorServer([Fault(is_hanging=True)]) as server:
        assert asked(server, seconds=0.3).embed(["one"]).shape == (1, 64)
        assert len(server.batches) == 2


def test_a_pause_that_the_endpoint_asks_for_is_kept_within_reason() -> None:
    pauses: list[float] = []
    faults = [
        Fault(429, headers={"Retry-After": after})
        for after in ("7", "99999", "Sun, 15 Nov 2026 10:00:00 GMT")
    ]
    with VectorServer(faults) as server:
        asked(server, pauses).embed(["one"])
    assert pauses[:2] == [7.0, 30.0] and pauses[2] < 7


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (Fault(503, b"come back later"), "answered HTTP 503: come back later"),
        (Fault(is_hanging=True), "did not answer within 0.2 s"),
        (Fault(is_closing=True), "cannot be reached"),
    ],
    ids=["503", "hangs", "closes"],
)
def test_an_endpoint_that_stays_away_is_an_error_that_says_so(fault: Fault, told: str) -> None:
    with VectorServer([fault] * 9) as server, pytest.raises(StorageError) as caught:
        asked(server, seconds=0.2).embed(["one"])
    assert told in caught.value.message and server.base_url in caught.value.message
    assert "4 times in a row" in caught.value.message and "then try again" in caught.value.hint
    assert len(server.batches) == 4


@pytest.mark.parametrize(
    ("status", "hint"),
    [
        (400, "Nothing was changed."),
        (401, "apiKeyEnv"),
        (403, "apiKeyEnv"),
        (404, "name of the model"),
        (413, "smaller"),
    ],
)
def test_what_is_refused_is_not_tried_again(status: int, hint: str) -> None:
    with VectorServer([Fault(status, f"not with {KEY}\n\x1b[31m".encode())]) as server:
        with pytest.raises(StorageError) as caught:
            asked(server, key=KEY).embed(["one"])
        assert len(server.batches) == 1
    assert f"HTTP {status}: not with ***" in caught.value.message and hint in caught.value.hint
    assert KEY not in caught.value.message and "\x1b" not in caught.value.message


def test_a_redirect_is_not_followed(server: VectorServer) -> None:
    leads = {"Location": f"{server.base_url}/embeddings"}
    with VectorServer([Fault(307, headers=leads)]) as first, pytest.raises(StorageError) as caught:
        asked(first, key=KEY).embed(["one"])
    assert "HTTP 307" in caught.value.message and "not followed" in caught.value.hint
    assert server.batches == []


# -- what is no answer --


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (Fault(body=b"<html>"), "something that is not a list of vectors (<html>)"),
        (Fault(body=b"[]"), "something that is not a list of vectors"),
        (Fault(body=b'{"data": [{}, {}]}'), "something that is not a list of vectors"),
        (Fault(body=b"[" * 100_000), "something that is not a list of vectors"),
        (data([1, 2], [1, 2, 3]), "something that is not a list of vectors"),
        (data("AAAA", "AAAA"), "something that is not a list of vectors"),
        (data([10**400], [1]), "something that is not a list of vectors"),
        (data({"a": 1}, {"a": 1}), "something that is not a list of vectors"),
        (Fault(body=b'{"data": [[1, 2], [3, 4]]}'), "something that is not a list of vectors"),
        (Fault(body=b'{"data": {"0": [1, 2]}}'), "something that is not a list of vectors"),
        (Fault(body=b'{"data": null}'), "something that is not a list of vectors"),
        (
            Fault(body=b'{"data": [{"index": 0, "embedding": [1.0, 2'),
            "something that is not a list of vectors",
        ),
        (Fault(body=b"\xff\xfe"), "something that is not a list of vectors"),
        (data([], []), "something that is not a list of vectors"),
        (data([1, 2]), "1 vectors for 2 texts"),
        (data([1, 2], [3, 4], [5, 6]), "3 vectors for 2 texts"),
        (data([1, 2], [math.nan, 4]), "contain NaN or infinity"),
        (data([1, 2], [math.inf, 4]), "contain NaN or infinity"),
        (
            Fault(body=b'{"data": [{"index": 0, "embedding": [1]}, {"index": 0, "embedding": [2]}]}'),
            "something that is not a list of vectors",
        ),
    ],
)
def test_what_is_no_vector_for_each_text_is_refused(fault: Fault, told: str) -> None:
    with VectorServer([fault]) as server, pytest.raises(StorageError) as caught:
        asked(server).embed(["one", "two"])
    assert told in caught.value.message and "Nothing was changed." in caught.value.hint


def test_vectors_of_another_size_than_asked_for_or_than_before_are_refused() -> None:
    with VectorServer(size=8) as server:
        with pytest.raises(StorageError, match="vectors of 8 numbers, but 16 were requested"):
            asked(server, dimensions=16).embed(["one"])
        server.faults = [data(*[[1.0, 0.5]] * 96)]
        with pytest.raises(StorageError, match="vectors of 2 numbers, then of 8"):
            asked(server).embed([f"text {number}" for number in range(97)])


@pytest.mark.parametrize(
    "url", ["", "ftp://a.example", "http://", "http://user:word@a.example/v1", "http://a.example:port"]
)
def test_a_base_url_that_is_none_is_refused_without_being_shown(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        RemoteModel(url, "tiny")
    assert "word" not in caught.value.message


def test_a_key_that_would_be_a_header_of_its_own_is_refused(server: VectorServer) -> None:
    with pytest.raises(RolecallError, match="control characters"):
        asked(server, key="one\r\nHost: other")


# -- through the command --


def test_a_repository_is_indexed_and_asked_with_the_key_that_the_configuration_names(
    repo: Repo, server: VectorServer
) -> None:
    repo.use(server, key="EMBEDDING_KEY")
    assert "'EMBEDDING_KEY', which holds the key of the provider" in repo.refused("sync")
    assert not repo.index.exists() or repo.refused("query", "retry")
    done = repo.json("sync", EMBEDDING_KEY=KEY)
    assert done["model"].startswith("tiny of http://127.0.0.1:") and done["computed"] == done["passages"]
    assert {headers["authorization"] for headers in server.headers} == {f"Bearer {KEY}"}
    found = repo.json("query", "how often a request is tried again", EMBEDDING_KEY=KEY)["results"]
    assert found[0]["path"] == "src/retry.py"
    for file in (repo.index, repo.home / "knowledge" / "vectors.db"):
        assert KEY.encode() not in file.read_bytes()


def test_a_question_that_was_asked_before_costs_nothing(remote: Repo, server: VectorServer) -> None:
    remote.sync()
    remote.query("how is it installed")
    before = len(server.batches)
    remote.query("how is it installed")
    assert len(server.batches) == before


def test_words_alone_need_no_endpoint(remote: Repo, server: VectorServer) -> None:
    remote.sync()
    before = len(server.batches)
    assert remote.first("ConfigParser", "--words") == "src/parser.py"
    assert len(server.batches) == before


def test_a_sync_that_fails_half_way_leaves_the_old_index_and_pays_for_nothing_twice(
    remote: Repo, server: VectorServer
) -> None:
    remote.sync()
    remote.write({f"docs/page{n:03}.md": f"# Page {n}\n\nWords of page {n} alone.\n" for n in range(300)})
    server.hold = "page 290 "
    child = remote.start("sync")
    assert server.held.wait(60)  # the pages before it are embedded by now
    server.faults = [Fault(401)]
    server.release.set()
    _, errors = child.communicate(timeout=60)
    assert child.returncode not in (0, 1) and b"HTTP 401" in errors and b"Nothing was changed." in errors
    assert remote.json("status")["files"] == 3
    assert not [found for found in remote.query("words of page") if "page" in found["path"]]
    server.faults = []
    again = remote.sync()
    assert again["files"] == 303 and again["cached"] >= 200 and again["cached"] + again["computed"] == 300
    assert remote.first("Words of page 217") == "docs/page217.md"


def test_an_endpoint_that_gives_other_vectors_than_before_changes_nothing(
    remote: Repo, server: VectorServer
) -> None:
    remote.sync()
    server.size = 32
    remote.write({"docs/new.md": "# New\n\nSomething new.\n"})
    error = remote.refused("sync")
    assert "those of the index have 64" in error and "Nothing was changed" in error
    assert remote.json("status")["files"] == 3
    assert "vectors of 32 numbers, and those of" in remote.refused("query", "something that was never asked")
    assert remote.sync("--rebuild")["files"] == 4
    assert remote.first("something new") == "docs/new.md"


def test_wrong_dimensions_leave_no_index(repo: Repo, server: VectorServer) -> None:
    repo.use(server, more=", dimensions: 16")
    assert "vectors of 64 numbers, but 16 were requested" in repo.refused("sync")
    assert "nothing" in repo.refused("query", "retry")


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({}, "'fake'"),
        ({"fake": {"protocol": "openai"}}, "has no `baseUrl`"),
        ({"fake": {"baseUrl": "http://127.0.0.1:9/v1", "protocol": "anthropic"}}, "has no embeddings"),
    ],
)
def test_a_provider_that_cannot_embed_is_refused(
    remote: Repo, config: dict[str, object], told: str, server: VectorServer
) -> None:
    (remote.home / "config.yaml").write_text(json.dumps({"providers": config}))
    assert told in remote.refused("sync", code=2)
    assert not remote.index.exists()


# -- sentence-transformers --

LIBRARY = """
import numpy as np

class SentenceTransformer:
    def __init__(self, name):
        if name != "mini":
            raise OSError(f"no weights of {name}")

    def encode(self, texts, normalize_embeddings, show_progress_bar):
        assert normalize_embeddings and not show_progress_bar
        if "never asked" in "".join(texts):
            raise MemoryError("too much")
        rows = np.array([[text.lower().count(letter) + 0.01 for letter in "abcdefghij"] for text in texts])
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)
"""


def test_a_model_of_sentence_transformers_is_loaded_when_it_is_named(repo: Repo, tmp_path: Path) -> None:
    named = 'include: ["*.md"]\nembedding: {provider: sentence-transformers, model: %s}\n'
    repo.write({"knowledge.yaml": named % "mini"})
    error = repo.refused("sync", code=2)
    assert "needs the package sentence-transformers" in error and "rolecall[transformers]" in error
    package = tmp_path / "library" / "sentence_transformers"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(LIBRARY)
    path: dict[str, Any] = {"PYTHONPATH": str(package.parent)}
    assert repo.json("sync", **path)["model"] == "sentence-transformers/mini"
    assert repo.json("query", "delete it all", **path)["results"][0]["path"] == "docs/guide.md"
    assert "cannot embed with 'mini': too much" in repo.refused("query", "never asked", **path)
    repo.write({"knowledge.yaml": named % "huge"})
    assert "cannot load 'huge': no weights of huge" in repo.refused("sync", **path)
