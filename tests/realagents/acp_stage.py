"""The stage for agents that speak the Agent Client Protocol: many calls of one adapter in one event loop.

With ROLECALL_RECORD=1 what a reader was told in a run that has a name is written to tests/agents/acp_streams.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from realagents.stage import BOUND, IS_RECORDING, Stage, Tape
from rolecall.agents import process
from rolecall.agents.acp_reader import AcpReader
from rolecall.agents.adapters.acp import Acp
from rolecall.agents.contract import Recorder, context_for
from rolecall.agents.program import Json
from rolecall.agents.protocol import Context, Reply, ask
from rolecall.errors import AgentError

_LONG_LISTS = ("available_commands_update", "config_option_update")
"""Updates that are nothing but a list of what the agent offers."""
STREAMS = Path(__file__).parents[1] / "agents" / "acp_streams"


class AcpStage(Stage):
    def context(self, **changes: Any) -> Context:
        return replace(context_for(self.work, self.recorder, env=self.env), **changes)

    def scene(self, agent: Acp, act: Callable[[], Awaitable[Any]]) -> Any:
        """Run something in a loop of its own, and close the agent after it."""
        self.recorder = Recorder()

        async def run() -> Any:
            try:
                return await asyncio.wait_for(act(), BOUND)
            finally:
                await agent.aclose()

        return asyncio.run(run())

    def asked(self, agent: Acp, prompt: str = "Go on.", *, record: str = "", **changes: Any) -> Reply:
        tape = Tape(end={})
        taped = _taped(agent, tape)
        try:
            reply: Reply = self.scene(taped, lambda: ask(taped, prompt, context=self.context(**changes)))
        finally:
            if record and IS_RECORDING:
                path = STREAMS / agent.name.removeprefix("acp:") / f"{record}.jsonl"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(tape.text(self._places()), encoding="utf-8")
        return reply

    def failed(self, agent: Acp, prompt: str = "Go on.", **changes: Any) -> AgentError:
        with pytest.raises(AgentError) as caught:
            self.asked(agent, prompt, **changes)
        return caught.value

    def cut_off(self, agent: Acp, when: Callable[[], bool]) -> AgentError:
        """Cancel a call as soon as `when`, which waits in a thread of its own, has come true."""

        async def act() -> None:
            context = self.context()
            running = asyncio.ensure_future(ask(agent, "Go on.", context=context))
            assert await asyncio.to_thread(when)
            context.cancel.set()  # type: ignore[attr-defined]
            await running

        with pytest.raises(AgentError) as caught:
            self.scene(agent, act)
        return caught.value

    def leftovers(self) -> list[int]:
        started = {(body["run"], body["pid"]) for body in self.recorder.bodies("process")}
        assert started
        return [pid for run, leader in started for pid in process.survivors(run, leader)]

    def calls(self) -> list[str]:
        return [body["name"] for body in self.recorder.bodies("tool_call")]


def _taped(agent: Acp, tape: Tape) -> Acp:
    """The same adapter, with a reader that keeps what it is told and asked."""

    class Taping(AcpReader):
        def event(self, event: Json) -> None:
            if event.get("sessionUpdate") not in _LONG_LISTS:
                tape.events.append({"update": dict(event)})
            super().event(event)

        def find_denied(self, call: Json) -> tuple[str, ...]:
            tape.events.append({"question": dict(call)})
            return super().find_denied(call)

        def finish_prompt(self, result: Json) -> Reply:
            tape.end = {"result": dict(result)}
            return super().finish_prompt(result)

    class Taped(Acp):
        def reader(self, context: Context) -> AcpReader:
            return Taping(context, self._preset, {server.name for server in self.mcp})

    return Taped(**{item.name: getattr(agent, item.name) for item in fields(agent) if item.init})
