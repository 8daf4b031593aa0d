"""A place for a real program to run in: a fresh home, dummy keys, a scripted model, no telemetry.

With ROLECALL_RECORD=1 a run that is given a name is written to tests/agents/streams as well, without paths, ids
and times of this run, so that the tests of the readers need no program. The form is that of standin.py.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import select
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import pytest
from modelserver import ModelServer

from rolecall.agents import process
from rolecall.agents.contract import Recorder, context_for
from rolecall.agents.program import Program, Reader
from rolecall.agents.protocol import Context, Reply, ask
from rolecall.errors import AgentError

FOLDER = os.environ.get("ROLECALL_TEST_AGENTS", "")
IS_RECORDING = os.environ.get("ROLECALL_RECORD") == "1"
STREAMS = Path(__file__).parents[1] / "agents" / "streams"
BOUND = 90.0


def installed(program: str) -> str:
    """The path of a program that scripts/install-agents has installed; without it the module is skipped."""
    if not FOLDER:
        pytest.skip("real agents are tested by `make test-agents` only", allow_module_level=True)
    path = Path(FOLDER) / "bin" / program
    if not path.exists():
        pytest.skip(f"{program} is not in {FOLDER}: scripts/install-agents", allow_module_level=True)
    return str(path)


@dataclass
class Stage:
    server: ModelServer
    folder: Path
    env: dict[str, str] = field(default_factory=dict)
    recorder: Recorder = field(default_factory=Recorder)
    """What the latest run emitted."""
    is_session_told: bool = False
    """The program is told the id of its session, so that a stand-in has to repeat it."""

    def __post_init__(self) -> None:
        for folder in (self.home, self.work, self.folder / "tmp"):
            folder.mkdir(parents=True, exist_ok=True)
        self.env = {
            "PATH": f"{FOLDER}/bin:/usr/local/bin:/usr/bin:/bin",
            "HOME": str(self.home),
            "TMPDIR": str(self.folder / "tmp"),
            "LANG": "C.UTF-8",
            **self.env,
        }

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def work(self) -> Path:
        return self.folder / "work"

    def run(self, agent: Program, prompt: str = "Go on.", *, record: str = "", **context: Any) -> Reply:
        return asyncio.run(self._run(agent, prompt, asyncio.Event(), record=record, **context))

    def fails(self, agent: Program, prompt: str = "Go on.", **context: Any) -> AgentError:
        with pytest.raises(AgentError) as caught:
            self.run(agent, prompt, **context)
        return caught.value

    def cancelled(self, agent: Program, when: Callable[[], bool], *, record: str = "") -> AgentError:
        """Cancel a run as soon as `when`, which waits in a thread of its own, has come true."""

        async def scene() -> None:
            cancel = asyncio.Event()
            run = asyncio.ensure_future(self._run(agent, "Go on.", cancel, record=record))
            assert await asyncio.to_thread(when)
            cancel.set()
            await run

        with pytest.raises(AgentError) as caught:
            asyncio.run(scene())
        return caught.value

    def survivors(self) -> list[int]:
        """What is left of the processes of the latest run."""
        (started,) = self.recorder.bodies("process")
        return process.survivors(started["run"], started["pid"])

    async def _run(
        self, agent: Program, prompt: str, cancel: asyncio.Event, *, record: str, **context: Any
    ) -> Reply:
        self.recorder = Recorder()
        given = replace(context_for(self.work, self.recorder, env=self.env), cancel=cancel, **context)
        tape = Tape()
        try:
            return await asyncio.wait_for(ask(taped(agent, tape), prompt, context=given), BOUND)
        finally:
            if record and IS_RECORDING:
                text = tape.text(self._places())
                path = STREAMS / agent.name / f"{record}.jsonl"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")

    def _places(self) -> dict[str, str]:
        bodies = self.recorder.bodies("session") if self.is_session_told else []
        return {
            **{body["session"]: "$SESSION" for body in bodies},
            str(self.work): "$WORK",
            re.sub(r"[^A-Za-z0-9]", "-", str(self.work)): "-work",
            str(self.folder): "$FOLDER",
            FOLDER: "$AGENTS",
            f":{self.server.port}": ":1",
        }


@dataclass
class Tape:
    """What a reader was given: the events, or all that was printed where not all are events, and the end."""

    events: list[Mapping[str, Any]] = field(default_factory=list)
    plain: str = ""
    end: dict[str, Any] = field(default_factory=lambda: {"hangs": True})

    def text(self, places: Mapping[str, str]) -> str:
        lines = [json.dumps(_timeless(event), ensure_ascii=False) for event in self.events]
        lines = self.plain.splitlines() or lines
        text = "\n".join([*lines, json.dumps({"standin": self.end}, ensure_ascii=False)]) + "\n"
        for place, name in places.items():
            text = text.replace(place, name)
        return _numbered(text)


def taped(agent: Program, tape: Tape) -> Program:
    """The same adapter, with a reader that keeps what it is given."""
    kind: Any = type(agent)

    class Taped(kind):  # type: ignore[misc]
        def reader(self, context: Context) -> Reader:
            reader: Any = super().reader(context)
            event, finish = reader.event, reader.finish

            def seen(value: Mapping[str, Any]) -> None:
                tape.events.append(value)
                event(value)

            def seen_end(exit: process.Exit) -> Reply:
                tape.plain = exit.stdout if reader.noise else ""
                tape.end = {"exit": exit.code, **({"stderr": exit.stderr} if exit.stderr else {})}
                if (figures := file_text(reader.folder / "usage.json")) is not None:
                    tape.end["leaves"] = {"usage.json": json.loads(figures)}
                reply: Reply = finish(exit)
                return reply

            reader.event, reader.finish = seen, seen_end
            made: Reader = reader
            return made

    made: Program = Taped(**{item.name: getattr(agent, item.name) for item in fields(agent)})
    return made


_TIMES = re.compile(r"(_ms|_at|_time|At|timestamp)$")
_IDS = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z")
_SOCKET = re.compile(r"/tmp/[\w-]+/\d+\.sock")


def _timeless(value: Any) -> Any:
    if isinstance(value, list):
        return [_timeless(item) for item in value]
    if isinstance(value, dict):
        return {
            key: 0 if _TIMES.search(key) and isinstance(item, (int, float)) else _timeless(item)
            for key, item in value.items()
        }
    return value


def _numbered(text: str) -> str:
    """Ids become numbers in the order in which they appear, moments the same one."""
    order = {found: number for number, found in enumerate(dict.fromkeys(_IDS.findall(text)), 1)}
    text = _IDS.sub(lambda match: f"00000000-0000-4000-8000-{order[match[0]]:012}", text)
    text = _SOCKET.sub("/tmp/socket", text)
    return _MOMENT.sub("2000-01-01T00:00:00.000Z", text)


def file_text(path: Path) -> str | None:
    with suppress(FileNotFoundError):
        return path.read_text(encoding="utf-8")
    return None


class Bell:
    """A named pipe that a command of an agent writes to, so that a test can wait until it runs."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self._end = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        self.ring = f"echo on > {path.name}"

    def rings(self) -> bool:
        try:
            return bool(select.select([self._end], [], [], BOUND)[0])
        finally:
            os.close(self._end)
