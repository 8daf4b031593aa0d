"""What all adapters of programs share: lines, bounds, and readers that nothing can throw off."""

from __future__ import annotations

import asyncio
import copy
import json
import tracemalloc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from standin import STREAMS, Standin

from rolecall import agents
from rolecall.agents import PROGRAMS, process
from rolecall.agents.adapters.claude import claude
from rolecall.agents.contract import Recorder, context_for
from rolecall.agents.program import Json, Lines, Program, Reader
from rolecall.agents.protocol import ENDINGS, Context, Reply, Usage, ask
from rolecall.errors import AgentError, UsageError

ENV = {"PATH": "/usr/local/bin:/usr/bin:/bin"}
EVENTS: list[dict[str, Any]] = [
    json.loads(line)
    for path in sorted(STREAMS.rglob("*.jsonl"))
    for line in path.read_text(encoding="utf-8").splitlines()
    if line.startswith("{")
]
"""Every event of every recorded stream: the shapes that readers look for."""


def context(recorder: Recorder | None = None) -> Context:
    async def made() -> Context:
        return context_for(Path("/work"), recorder or Recorder(), env={})

    return asyncio.run(made())


class Collecting(Reader):
    def __init__(self) -> None:
        super().__init__(context())
        self.events: list[Mapping[str, Any]] = []

    def event(self, event: Json) -> None:
        self.events.append(event)


# -- lines --

texts = st.text(st.characters(blacklist_categories=["Cs"]), max_size=40)
lines = st.lists(
    st.one_of(st.sampled_from(EVENTS).map(json.dumps), texts.map(lambda t: t.replace("\n", " ")))
)


@given(lines, st.data())
def test_however_a_stream_is_cut_the_events_are_the_same(written: list[str], data: st.DataObject) -> None:
    stream = "\n".join(written)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=20)))
    whole, cut = Collecting(), Collecting()
    once, piecewise = Lines(whole), Lines(cut)
    once.feed(stream)
    for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        piecewise.feed(stream[begin:end])
    once.feed("\n")
    piecewise.feed("\n")
    assert cut.events == whole.events
    assert cut.noise == whole.noise
    assert len(whole.events) == sum(
        line.startswith("{") and _is_object(line) for line in map(str.strip, written)
    )


def _is_object(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


def test_the_last_line_needs_no_end_and_other_lines_are_kept_as_noise() -> None:
    reader = Collecting()
    lines = Lines(reader)
    lines.feed('warning: old\r\n[1, 2]\n{"type": "a"}\r\n\n{broken\n{"type":')
    lines.feed(' "b"}')
    lines.feed("\n")
    assert reader.events == [{"type": "a"}, {"type": "b"}]
    assert reader.noise == "warning: old\n[1, 2]\n{broken\n"


def test_a_line_without_an_end_is_not_collected_without_bound_and_the_next_is_read() -> None:
    reader = Collecting()
    lines = Lines(reader)
    lines.feed('{"text": "')
    tracemalloc.start()
    try:
        for number in range(60):
            lines.feed(f"{number:02}" * 500_000)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 2_000_000
    lines.feed('"}\n{"type": "next"}\n')
    assert reader.events == [{"type": "next"}]
    assert "was left out" in reader.noise


# -- figures of somebody else's --


@pytest.mark.parametrize("wrong", [None, "5", -1, float("nan"), float("inf"), 10**400, [5], {}])
def test_what_is_no_amount_counts_nothing(wrong: Any) -> None:
    reported = Json({"a": wrong, "b": 2})
    assert reported.amount("a") is None
    assert reported.count("a", "b", "c") == 2
    assert reported.part("a").count("b") == 0


# -- readers --

wrong_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.just(10**30)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@st.composite
def damaged_events(draw: st.DrawFn) -> dict[str, Any]:
    """A recorded event with something wrong at some place of it."""
    event: dict[str, Any] = copy.deepcopy(draw(st.sampled_from(EVENTS)))
    for _ in range(draw(st.integers(0, 3))):
        place: Any = event
        while True:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            if not keys:
                break
            key = draw(st.sampled_from(keys))
            if not isinstance(place[key], (dict, list)) or draw(st.booleans()):
                place[key] = draw(wrong_values)
                break
            place = place[key]
    return event


def test_the_table_names_the_program_of_each_adapter() -> None:
    found = {name: agents.make(name, {}).program for name in PROGRAMS}
    assert found == PROGRAMS


@pytest.mark.parametrize("name", PROGRAMS)
@settings(max_examples=60)
@given(events=st.lists(damaged_events(), max_size=12), code=st.sampled_from([0, 1, -15, 130]))
def test_no_event_can_throw_a_reader_off(name: str, events: list[dict[str, Any]], code: int) -> None:
    recorder = Recorder()
    adapter: Program = agents.make(name, {})
    reader = adapter.reader(context(recorder))
    for event in events:
        reader.event(Json(event))
    reply = reader.finish(process.Exit("completed", "it ended", code, "", ""))
    assert isinstance(reply, Reply)
    assert reply.ending in ENDINGS
    assert isinstance(reply.text, str)
    assert reply.usage is None or isinstance(reply.usage, Usage)
    assert all(isinstance(file, str) for file in reply.files)
    json.dumps([vars(turn) for turn in reply.turns], default=vars)
    json.dumps(recorder.events)


def test_a_stream_of_thousands_of_events_keeps_turns_bounded_and_loses_no_figure(tmp_path: Path) -> None:
    def event(number: int) -> list[dict[str, Any]]:
        use = {"type": "tool_use", "id": f"t{number}", "name": "Read", "input": {"file_path": f"f{number}"}}
        done = {"type": "tool_result", "tool_use_id": f"t{number}", "content": "x" * 5_000}
        return [
            {"type": "assistant", "session_id": "s", "message": {"id": f"m{number}", "content": [use]}},
            {"type": "user", "session_id": "s", "message": {"content": [done]}},
        ]

    used = {"a-model": {"inputTokens": 7_000_000, "outputTokens": 3}}
    last = {"type": "result", "result": "done", "modelUsage": used, "num_turns": 4_000, "total_cost_usd": 1}
    events = [*(each for number in range(4_000) for each in event(number)), last]
    standin = Standin(tmp_path / "bin", "".join(json.dumps(each) + "\n" for each in events))
    recorder = Recorder()

    async def scene() -> Reply:
        given = context_for(tmp_path, recorder, env=ENV)
        return await ask(claude(executable=standin.path), "Go on.", context=given)

    reply = asyncio.run(scene())
    assert reply.text == "done"
    assert len(reply.turns) < 500
    assert reply.usage == Usage(7_000_000, 3, cost=1.0, turns=4_000)
    assert len(recorder.bodies("tool_call")) == 4_000


# -- how a run ends --


def run(folder: Path, stream: str, **ending: Any) -> Reply:
    standin = Standin(folder / "bin", stream, **ending)

    async def scene() -> Reply:
        given = context_for(folder, Recorder(), env=ENV)
        return await ask(claude(executable=standin.path), "Go on.", context=given)

    return asyncio.run(scene())


def test_what_a_program_printed_instead_of_events_is_its_reason(tmp_path: Path) -> None:
    with pytest.raises(AgentError, match="please log in") as caught:
        run(tmp_path, "please log in\n", exit=1)
    assert caught.value.ending == "failed"


def test_a_programs_last_words_on_stderr_go_before_its_noise(tmp_path: Path) -> None:
    with pytest.raises(AgentError, match="the licence is over") as caught:
        run(tmp_path, "some banner\n", exit=2, stderr="the licence is over\n")
    assert "some banner" not in str(caught.value)


def test_a_restriction_that_an_adapter_cannot_enforce_is_refused_before_anything_is_started(
    tmp_path: Path,
) -> None:
    class Unbounded(type(claude())):  # type: ignore[misc]
        deniable = frozenset({"file_creation"})

    standin = Standin(tmp_path / "bin", "claude/answer.jsonl")
    recorder = Recorder()

    async def scene() -> None:
        given = context_for(tmp_path, recorder, env=ENV)
        held = type(given)(**{**vars(given), "capabilities": ("no_shell_exec",)})
        await ask(Unbounded(executable=standin.path), "Go on.", context=held)

    with pytest.raises(UsageError, match="cannot be held to 'no_shell_exec'"):
        asyncio.run(scene())
    assert recorder.events == []
