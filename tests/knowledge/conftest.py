"""Repositories to be indexed, and an endpoint that embeds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from knowledge.knowrepo import Repo
from knowledge.vectorserver import VectorServer


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    return Repo(tmp_path / "repo", tmp_path / "home")


@pytest.fixture
def synced(repo: Repo) -> Repo:
    repo.sync()
    return repo


@pytest.fixture
def server() -> Iterator[VectorServer]:
    with VectorServer() as server:
        yield server


@pytest.fixture
def remote(repo: Repo, server: VectorServer) -> Repo:
    """A repository whose vectors come from `server`."""
    repo.use(server)
    return repo
