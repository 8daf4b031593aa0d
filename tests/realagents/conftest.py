from __future__ import annotations

from collections.abc import Iterator

import pytest
from modelserver import ModelServer


@pytest.fixture
def model() -> Iterator[ModelServer]:
    """The model of an agent; a test adds the turns of its script."""
    with ModelServer([], is_agent=True) as server:
        yield server
