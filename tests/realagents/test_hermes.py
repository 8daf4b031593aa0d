"""Hermes Agent through its adapter."""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path
from typing import Any

import pytest
from modelserver import Calls, ModelServer, Sends

from realagents.duties import REFUSAL, Duties
from realagents.stage import BOUND, Stage, installed
from rolecall.agents.adapters.hermes import hermes
from rolecall.agents.contract import ANSWER
from rolecall.agents.protocol import Reply, Usage
from rolecall.errors import UsageError

PROGRAM = installed("hermes")
CONFIGURATION = """
model: {{provider: custom, default: fake-model, base_url: "{url}", api_key: dummy, context_length: 2000000}}
"""


@pytest.fixture
def stage(model: ModelServer, tmp_path: Path) -> Stage:
    stage = Stage(model, tmp_path)
    own = stage.home / ".hermes"
    own.mkdir()
    (own / "config.yaml").write_text(CONFIGURATION.format(url=model.base_url), encoding="utf-8")
    return stage


class TestHermes(Duties):
    agent = hermes
    unknown = "20990101_000000_abcdef"
    has_live_session = False

    def write(self, stage: Stage, name: str) -> Calls:
        return Calls("write_file", {"path": name, "content": "written\n"}, "I write it.")

    def shell(self, command: str) -> Calls:
        return Calls("terminal", {"command": command})

    def check_turns(self, stage: Stage, reply: Any) -> None:
        assert (reply.turns, reply.files) == ((), ())  # it tells nothing of them
        assert reply.usage.turns == 3

    def check_resumed(self, usage: Usage | None) -> None:
        assert usage is None

    def test_a_prompt_of_a_megabyte_arrives_whole(self, stage: Stage, model: ModelServer) -> None:
        """The prompt is a file, and the program gives its text to the model that reads it."""
        gate = stage.work / "gate"
        os.mkfifo(gate)
        model.add(self.shell("cat gate"))
        prompt = "The first line.\n" + "Zeile ü\n" * 131_072 + "The last line is oak."

        async def scene() -> Reply:
            cancel = asyncio.Event()
            run = asyncio.ensure_future(stage._run(self.make(), prompt, cancel, record=""))
            assert await asyncio.to_thread(model.wait_for_turn, 1, BOUND)
            (path,) = set(re.findall(r"/\S+/prompt\.md", model.turns[0].text))
            model.add(self.shell(f"head -n 1 {path}; tail -n 1 {path}"), ANSWER)
            await asyncio.to_thread(gate.write_text, "go\n")
            return await run

        assert asyncio.run(scene()).text == ANSWER
        assert all(line in model.turns[2].text for line in ("The first line.", "The last line is oak."))


def test_an_answer_of_several_lines_is_kept_as_it_is(stage: Stage, model: ModelServer) -> None:
    text = '---\nstatus: done\n---\n\n  {"a": 1}\n\n**All** is well.'
    model.add(text, text)
    first = stage.run(hermes(), record="lines")
    assert first.text == text
    assert stage.run(hermes(), session=first.session, record="lines-resumed").text == text


def test_a_failure_in_a_resumed_session_is_told_as_one(stage: Stage, model: ModelServer) -> None:
    model.add("one", *[Sends(REFUSAL, 401, {"Content-Type": "application/json"})] * 8)
    first = stage.run(hermes())
    error = stage.fails(hermes(), session=first.session, record="api-failure-resumed")
    assert (error.ending, error.session) == ("api_failure", first.session)


def test_it_cannot_be_denied_all_that_it_reads_its_prompt_with(stage: Stage, model: ModelServer) -> None:
    for restrictions in (("no_file_edit", "no_shell_exec"), ("read_only",)):
        with pytest.raises(UsageError):
            stage.run(hermes(), capabilities=restrictions)
    assert model.requests == []
