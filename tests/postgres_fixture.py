"""A real PostgreSQL for the tests of this folder: one server per test process, one schema per test."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql

pytest.register_assert_rewrite("rolecall.store.contract")


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Any]:
    # Not under pytest's folders: a server started by root runs as another user, who must be able to
    # reach its files, while pytest keeps closing its folders to everybody else. A short path also
    # leaves room for the name of the socket.
    home = Path(tempfile.mkdtemp(prefix="rc-pg-"))
    home.chmod(0o755)
    try:
        with pytest.MonkeyPatch.context() as patch, open(__file__) as here:
            # pgserver keeps a lock file in the runtime folder and warns when the environment names none.
            runtime = home / "runtime"
            runtime.mkdir(mode=0o700)
            patch.setenv("XDG_RUNTIME_DIR", str(runtime))
            # Where root starts it, it makes that other user with `useradd`: not on every PATH, and not for two at once.
            patch.setenv("PATH", f"{os.environ['PATH']}:/usr/sbin:/sbin")
            fcntl.flock(here, fcntl.LOCK_EX)
            from pgserver.postgres_server import get_server

            server = get_server(home / "data", cleanup_mode="delete")
        yield server
        server.cleanup()
    finally:
        shutil.rmtree(home)


@pytest.fixture
def postgres_url(postgres_server: Any) -> str:
    return str(postgres_server.get_uri())


@pytest.fixture
def postgres_schema(postgres_url: str) -> Iterator[str]:
    """A schema name of this test alone; whatever is made under it is dropped."""
    name = f"test_{os.getpid()}_{uuid4().hex}"
    yield name
    with psycopg.connect(postgres_url, autocommit=True) as db:
        db.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(name)))
