# ruff: noqa: S101 -- this is a test suite
"""The tests that every adapter must pass. Subclass `AgentContract` in a test module and provide the agents.

    class TestMyAgent(AgentContract):
        def answering(self, workdir): return my_agent(...)
        ...

Each method creates an agent with one behaviour, by any means: a small program, a script, a fake model endpoint. Only
pytest is required.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar

import pytest

from rolecall.agents import process
from rolecall.agents.protocol import EVENT_KINDS, Agent, Context, Reply, ask
from rolecall.errors import AgentError
from rolecall.store.canonical import JsonObject

ANSWER = "All is well."
WRITTEN = "written.txt"
_BOUND = 60.0


@dataclass
class Recorder:
    """A recorder of an agent's events, which signals the first one."""

    events: list[tuple[str, JsonObject]] = field(default_factory=list)
    first: asyncio.Event = field(default_factory=asyncio.Event)

    def __call__(self, kind: str, body: JsonObject) -> None:
        self.events.append((kind, dict(body)))
        self.first.set()

    def bodies(self, kind: str) -> list[JsonObject]:
        return [body for seen, body in self.events if seen == kind]


def context_for(workdir: Path, recorder: Recorder, *, env: Mapping[str, str]) -> Context:
    """Create a context like the one the engine creates for the first step of a thread."""
    return Context(
        thread="06EXAMPLE00000000000000000",
        role="worker",
        start="Do the work.",
        workdir=workdir,
        cancel=asyncio.Event(),
        emit=recorder,
        env=env,
    )


class AgentContract:
    env: ClassVar[Mapping[str, str]] = {"PATH": "/usr/local/bin:/usr/bin:/bin"}
    session: ClassVar[str | None] = None
    """The session id that `answering` reports; None for adapters that have no sessions."""

    def answering(self, workdir: Path) -> Agent:
        """Return an agent that reads a prompt of any size, emits an event and answers ANSWER."""
        raise NotImplementedError

    def hanging(self, workdir: Path) -> Agent:
        """Return an agent that emits an event and then never ends on its own."""
        raise NotImplementedError

    def timing_out(self, workdir: Path) -> Agent:
        """Return an agent that reaches its own timeout after a short time."""
        raise NotImplementedError

    def missing(self, workdir: Path) -> tuple[Agent, str]:
        """Return an agent whose program is not installed, and the program's name."""
        raise NotImplementedError

    def writing(self, workdir: Path) -> Agent:
        """Return an agent that uses a relative path to write the file WRITTEN in its work folder."""
        raise NotImplementedError

    def test_an_agent_answers_with_text(self, tmp_path: Path) -> None:
        reply, _ = self._run(self.answering(tmp_path), tmp_path)
        assert (reply.text.strip(), reply.ending) == (ANSWER, "completed")

    def test_a_prompt_of_a_megabyte_is_taken(self, tmp_path: Path) -> None:
        reply, _ = self._run(self.answering(tmp_path), tmp_path, prompt="Zeile ü\n" * 131_072)
        assert reply.text.strip() == ANSWER

    def test_signs_of_life_are_known_events_and_come_before_the_answer(self, tmp_path: Path) -> None:
        _, recorder = self._run(self.answering(tmp_path), tmp_path)
        assert recorder.events
        assert {kind for kind, _ in recorder.events} <= set(EVENT_KINDS)

    def test_the_session_is_reported_live_and_in_the_reply(self, tmp_path: Path) -> None:
        reply, recorder = self._run(self.answering(tmp_path), tmp_path)
        assert reply.session == self.session
        assert recorder.bodies("session") == ([{"session": self.session}] if self.session else [])

    def test_an_agent_works_in_the_work_folder(self, tmp_path: Path) -> None:
        workdir = tmp_path / "work folder ü"
        workdir.mkdir()
        self._run(self.writing(workdir), workdir)
        assert (workdir / WRITTEN).is_file()

    def test_the_cancel_signal_ends_the_agent_and_every_process_of_it(self, tmp_path: Path) -> None:
        error, recorder = asyncio.run(self._cancel(tmp_path, by_signal=True))
        assert isinstance(error, AgentError)
        assert error.ending == "interrupted"
        assert _leftovers(recorder) == []

    def test_cancelling_the_task_ends_the_agent_and_every_process_of_it(self, tmp_path: Path) -> None:
        error, recorder = asyncio.run(self._cancel(tmp_path, by_signal=False))
        assert isinstance(error, asyncio.CancelledError)
        assert _leftovers(recorder) == []

    def test_a_cancel_before_the_start_starts_nothing(self, tmp_path: Path) -> None:
        async def scene() -> Recorder:
            recorder = Recorder()
            context = context_for(tmp_path, recorder, env=self.env)
            assert isinstance(context.cancel, asyncio.Event)
            context.cancel.set()
            with pytest.raises(AgentError) as caught:
                await asyncio.wait_for(ask(self.hanging(tmp_path), "Go on.", context=context), _BOUND)
            assert caught.value.ending == "interrupted"
            return recorder

        assert asyncio.run(scene()).bodies("process") == []

    def test_a_timeout_is_named_and_leaves_no_process(self, tmp_path: Path) -> None:
        recorder = Recorder()
        with pytest.raises(AgentError) as caught:
            self._run(self.timing_out(tmp_path), tmp_path, recorder=recorder)
        assert caught.value.ending == "timeout"
        assert _leftovers(recorder) == []

    def test_a_missing_program_is_named(self, tmp_path: Path) -> None:
        agent, program = self.missing(tmp_path)
        with pytest.raises(AgentError, match=program) as caught:
            self._run(agent, tmp_path)
        assert caught.value.ending == "failed"
        assert caught.value.hint

    def _run(
        self, agent: Agent, workdir: Path, *, prompt: str = "Go on.", recorder: Recorder | None = None
    ) -> tuple[Reply, Recorder]:
        seen = recorder or Recorder()

        async def scene() -> Reply:
            context = context_for(workdir, seen, env=self.env)
            return await asyncio.wait_for(ask(agent, prompt, context=context), _BOUND)

        return asyncio.run(scene()), seen

    async def _cancel(self, workdir: Path, *, by_signal: bool) -> tuple[BaseException | None, Recorder]:
        recorder = Recorder()
        cancel = asyncio.Event()
        context = replace(context_for(workdir, recorder, env=self.env), cancel=cancel)
        task = asyncio.ensure_future(ask(self.hanging(workdir), "Go on.", context=context))
        await asyncio.wait_for(recorder.first.wait(), _BOUND)
        if by_signal:
            cancel.set()
        else:
            task.cancel()
        await asyncio.wait({task}, timeout=_BOUND)
        return (asyncio.CancelledError() if task.cancelled() else task.exception()), recorder


def _leftovers(recorder: Recorder) -> list[int]:
    return [pid for body in recorder.bodies("process") for pid in process.survivors(body["run"])]
