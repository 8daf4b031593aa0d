"""Every backend keeps the same promises."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from rolecall.store.backend import Backend
from rolecall.store.contract import Reopen, StoreContract


class BackendContract(StoreContract):
    """Opens backends with `connect` and closes every one of them at the end of the test."""

    @pytest.fixture
    def connect(self) -> Callable[[], Backend]:
        raise NotImplementedError

    @pytest.fixture
    def reopen(self, connect: Callable[[], Backend]) -> Iterator[Reopen]:
        with ExitStack() as stack:

            def open_one() -> Backend:
                backend = connect()
                stack.callback(backend.close)
                return backend

            yield open_one

    @pytest.fixture
    def backend(self, reopen: Reopen) -> Backend:
        return reopen()


class TestSqlite(BackendContract):
    @pytest.fixture
    def connect(self, tmp_path: Path) -> Callable[[], Backend]:
        from rolecall.store.sqlite import SqliteBackend

        return lambda: SqliteBackend(str(tmp_path / "store.db"))


class TestFiles(BackendContract):
    @pytest.fixture
    def connect(self, tmp_path: Path) -> Callable[[], Backend]:
        from rolecall.store.files import FilesBackend

        return lambda: FilesBackend(str(tmp_path / "store"))


class TestPostgres(BackendContract):
    @pytest.fixture
    def connect(self, postgres_url: str, postgres_schema: str) -> Callable[[], Backend]:
        from rolecall.store.postgres import PostgresBackend

        return lambda: PostgresBackend(postgres_url, schema=postgres_schema)
