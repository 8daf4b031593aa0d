"""What holds for the readers and tables of every adapter of a program."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from standin import STREAMS, Standin

from rolecall import agents
from rolecall.agents import PROGRAMS
from rolecall.agents.contract import Recorder, context_for
from rolecall.agents.process import Exit
from rolecall.agents.program import Lines, Program
from rolecall.agents.protocol import ENDINGS, EVENT_KINDS
from rolecall.errors import UsageError
from rolecall.settings import capabilities

ENV = {"PATH": "/usr/bin:/bin"}

scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
anything = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)
exits = st.builds(
    Exit,
    ending=st.just("completed"),
    reason=st.text(max_size=5),
    code=st.sampled_from([0, 1, 2, 42, 53, 55, 130, 144, -9, -15]),
    stdout=st.text(max_size=20),
    stderr=st.text(max_size=20),
)


def adapter(name: str) -> Program:
    found: Program = agents.make(name, {})
    return found


def recorded(name: str) -> list[dict[str, Any]]:
    """Every event of every recorded stream of a program."""
    files = sorted((STREAMS / name).glob("*.jsonl"))
    lines = [line for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    return [json.loads(line) for line in lines if line.startswith("{")]


@st.composite
def damaged(draw: st.DrawFn, events: list[dict[str, Any]]) -> list[Any]:
    """Some events of a program, each with something else at one place of it."""
    chosen = draw(st.lists(st.sampled_from(events), min_size=1, max_size=8))
    return [draw(with_damage(event)) for event in chosen]


@st.composite
def with_damage(draw: st.DrawFn, value: Any) -> Any:
    inner = value if isinstance(value, dict) else dict(enumerate(value)) if isinstance(value, list) else {}
    if not inner or draw(st.integers(0, 5)) == 0:
        return draw(anything)
    place = draw(st.sampled_from(sorted(inner, key=str)))
    changed = {**inner, place: draw(with_damage(inner[place]))}
    return changed if isinstance(value, dict) else list(changed.values())


def folded(name: str, events: list[Any], exit: Exit) -> None:
    recorder = Recorder()
    reader = adapter(name).reader(context_for(Path("/work"), recorder, env=ENV))
    lines = Lines(reader)
    for event in events:
        lines.feed(json.dumps(event) + "\n")
    lines.feed("\n")
    reply = reader.finish(exit)
    assert reply.ending in ENDINGS
    assert {kind for kind, _ in recorder.events} <= set(EVENT_KINDS)
    json.dumps([body for _, body in recorder.events])


@pytest.mark.parametrize("name", PROGRAMS)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_no_reader_stumbles_over_events_that_are_not_as_expected(name: str, data: st.DataObject) -> None:
    folded(name, data.draw(damaged(recorded(name))), data.draw(exits))


@pytest.mark.parametrize("name", PROGRAMS)
@settings(max_examples=15, deadline=None)
@given(events=st.lists(anything, max_size=5), exit=exits)
def test_no_reader_stumbles_over_any_json(name: str, events: list[Any], exit: Exit) -> None:
    folded(name, events, exit)


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_adapter_has_a_factory_of_its_name(name: str) -> None:
    module = import_module(f"rolecall.agents.adapters.{name}")
    made = getattr(module, name)(timeout=5.0)
    assert (made.name, made.timeout, isinstance(made, Program)) == (name, 5.0, True)
    assert made.program
    assert made.install
    assert made.needed_flags


@pytest.mark.parametrize("restriction", sorted(capabilities.RESTRICTIONS))
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_class_of_a_restriction_is_denied_or_the_role_refused_before_the_run(
    name: str, restriction: str, tmp_path: Path
) -> None:
    agent = adapter(name)
    denies: Mapping[str, Any] = import_module(f"rolecall.agents.adapters.{name}").DENIES
    assert agent.deniable <= set(capabilities.CLASSES)
    needed = {
        name for name in capabilities.RESTRICTIONS[restriction] if name not in capabilities.BY_OURSELVES
    }
    if needed <= agent.deniable:
        assert all(denies[one] for one in needed)
        assert argv_of(agent, tmp_path, restriction) != argv_of(agent, tmp_path, "") or not needed
        return
    standin = Standin(tmp_path / "bin", "{}\n")
    with pytest.raises(UsageError, match=restriction):
        asyncio.run(asked(agent, standin.path, tmp_path, restriction))
    assert not (tmp_path / "bin" / "calls.jsonl").exists()


def argv_of(agent: Program, folder: Path, restriction: str) -> Any:
    """How the program would be called; a new session's id, which differs each time, is left out."""
    context = replace(context_for(folder, Recorder(), env=ENV), capabilities=(restriction,))
    call = agent.call("Go on.", context, folder)
    return [word for word in call.argv if not word.startswith("--session-id=")], dict(call.env)


async def asked(agent: Program, executable: str, folder: Path, restriction: str) -> None:
    context = replace(context_for(folder, Recorder(), env=ENV), capabilities=(restriction,))
    await replace(agent, executable=executable)("Go on.", context)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_limit_counts_in_the_error_output_of_a_program_and_not_in_what_else_it_prints(
    name: str, tmp_path: Path
) -> None:
    said = "You've hit your usage limit, try again in 3 hours"
    for error, ending in ((said, "api_failure"), ("", "failed")):
        reader = adapter(name).reader(context_for(tmp_path, Recorder(), env=ENV))
        Lines(reader).feed(f"{said}\n")
        reply = reader.finish(Exit("failed", f"it exited with status 1: {error}", 1, said, error))
        assert (reply.ending, error in reply.reason) == (ending, True)
