"""Adapters of programs with a stand-in: what they make of a recorded stream, and how they call the program."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from standin import Standin

from rolecall.agents.contract import ANSWER, WRITTEN, AgentContract, Recorder, context_for
from rolecall.agents.program import Program
from rolecall.agents.protocol import Agent, Reply, ask
from rolecall.errors import AgentError

ENV = {"PATH": "/usr/local/bin:/usr/bin:/bin"}


def play(
    agent: Program, folder: Path, stream: str, *, ending: dict[str, Any] | None = None, **context: Any
) -> tuple[Reply, Recorder]:
    """The reply of `agent` when its program prints `stream`; an `ending` goes before the recorded one."""
    text = stream if "\n" in stream else f"{agent.name}/{stream}.jsonl"
    standin = Standin(folder / "bin", text, **(ending or {}))
    recorder = Recorder()

    async def scene() -> Reply:
        given = replace(context_for(folder, recorder, env=ENV), **context)
        return await ask(replace(agent, executable=standin.path), "Go on.", context=given)

    return asyncio.run(scene()), recorder


def fails(agent: Program, folder: Path, stream: str, **more: Any) -> AgentError:
    with pytest.raises(AgentError) as caught:
        play(agent, folder, stream, **more)
    return caught.value


def call(
    agent: Program,
    folder: Path,
    *,
    env: dict[str, str] | None = None,
    stream: str = "answer",
    **context: Any,
) -> dict[str, Any]:
    """How the program is called, as it sees it: `argv`, `stdin`, `env` and the text of the `files` it is given."""
    standin = Standin(folder / "bin", f"{agent.name}/{stream}.jsonl")

    async def scene() -> None:
        variables = {**ENV, "KEPT": "1", **(env or {})}
        given = replace(context_for(folder, Recorder(), env=variables), **context)
        await ask(replace(agent, executable=standin.path), "The prompt.", context=given)

    asyncio.run(scene())
    (seen,) = standin.calls
    return seen


def value(seen: dict[str, Any], flag: str) -> str | None:
    argv: list[str] = seen["argv"]
    return argv[argv.index(flag) + 1] if flag in argv else None


class Replays(AgentContract):
    """The contract of agents, for an adapter whose program is a stand-in."""

    agent: Program

    def answering(self, workdir: Path) -> Agent:
        return self.standing_in(workdir, "answer")

    def hanging(self, workdir: Path) -> Agent:
        return self.standing_in(workdir, "cancelled")

    def timing_out(self, workdir: Path) -> Agent:
        return replace(self.standing_in(workdir, "cancelled"), timeout=0.5)

    def missing(self, workdir: Path) -> tuple[Agent, str]:
        return replace(self.agent, executable="no-such-agent"), "no-such-agent"

    def writing(self, workdir: Path) -> Agent:
        stream = f"{self.agent.name}/answer.jsonl"
        return replace(self.agent, executable=Standin(workdir.parent / "bin", stream, writes=[WRITTEN]).path)

    def standing_in(self, workdir: Path, stream: str) -> Program:
        return replace(
            self.agent, executable=Standin(workdir / "bin", f"{self.agent.name}/{stream}.jsonl").path
        )


def calls_of(reply: Reply) -> list[tuple[str, str]]:
    """The tools that were called, with the beginning of what they gave back."""
    return [(call.name, call.result[:40]) for turn in reply.turns for call in turn.tool_calls]


__all__ = ["ANSWER", "ENV", "Replays", "call", "calls_of", "fails", "play", "value"]
