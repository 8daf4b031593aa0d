from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rolecall.agents.contract import Recorder, context_for
from rolecall.agents.protocol import ANSWERED, ENDINGS, Context, Ending, Reply, Turn, Usage, ask
from rolecall.errors import AgentError


def put_to(agent: Any, tmp_path: Path) -> Reply:
    return asyncio.run(ask(agent, "Say it.", context=context_for(tmp_path, Recorder(), env={})))


def test_a_plain_async_function_is_an_agent(tmp_path: Path) -> None:
    async def echo(prompt: str, context: Context) -> str:
        return f"{context.role}: {prompt}"

    assert put_to(echo, tmp_path) == Reply("worker: Say it.")


def test_an_agent_that_returns_something_else_is_named_by_its_role(tmp_path: Path) -> None:
    async def forgetful(prompt: str, context: Context) -> None:
        return None

    with pytest.raises(AgentError, match="'worker' returned NoneType") as caught:
        put_to(forgetful, tmp_path)
    assert caught.value.ending == "failed"


@pytest.mark.parametrize("ending", ENDINGS)
def test_an_ending_without_an_answer_becomes_an_error_that_keeps_everything(
    tmp_path: Path, ending: Ending
) -> None:
    given = Reply(
        "part", session="s1", usage=Usage(3), turns=(Turn("assistant", "part"),), ending=ending, reason="why"
    )

    async def ends(prompt: str, context: Context) -> Reply:
        return given

    if ending in ANSWERED:
        assert put_to(ends, tmp_path) is given
        return
    with pytest.raises(AgentError, match="why") as caught:
        put_to(ends, tmp_path)
    kept = caught.value
    assert (kept.ending, kept.text, kept.session, kept.usage) == (ending, "part", "s1", Usage(3))
    assert kept.turns == given.turns


def test_naming_the_agents_imports_neither_asyncio_nor_yaml() -> None:
    script = "import sys, rolecall.agents; print([m for m in ('asyncio', 'yaml', 'dataclasses') if m in sys.modules])"
    found = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert found.stdout == "[]\n"
