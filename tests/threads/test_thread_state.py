"""The state of a thread: what is stored is read back, and so is what an older version stored."""

from __future__ import annotations

from typing import Any

import pytest

from rolecall.threads.state import RESUME, Onward, Status, ThreadState, load_state, raise_limit


@pytest.mark.parametrize("onward", [None, RESUME, raise_limit("cost=4")])
def test_what_continues_a_thread_is_stored_as_a_code_with_its_argument(onward: Onward | None) -> None:
    state = ThreadState(Status.SUSPENDED, onward=onward)
    assert load_state(state.dump()) == state
    assert state.dump().get("onward") == (onward and onward.dump())


@pytest.mark.parametrize(
    ("command", "onward"),
    [
        ("resume 01X --run", RESUME),
        ("resume 01X --limit reviewer.steps=8 --run", raise_limit("reviewer.steps=8")),
        ("answer 01X --run", None),
        ("", None),
    ],
)
def test_a_command_that_version_0_1_stored_is_read(command: str, onward: Any) -> None:
    assert load_state({"status": "suspended", "onward": command}).onward == onward
