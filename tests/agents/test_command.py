from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from rolecall.agents import resolve, transcript
from rolecall.agents.adapters.command import command
from rolecall.agents.contract import ANSWER, WRITTEN, AgentContract, Recorder, context_for
from rolecall.agents.protocol import Agent, Reply, ask
from rolecall.errors import AgentError, NotFound, UsageError

ENV = {"PATH": "/usr/local/bin:/usr/bin:/bin"}


def python(source: str) -> list[str]:
    return [sys.executable, "-I", "-c", source]


class TestCommandKeepsTheContract(AgentContract):
    def answering(self, workdir: Path) -> Agent:
        return command(python(f"import sys; sys.stdin.read(); print({ANSWER!r})"))

    def hanging(self, workdir: Path) -> Agent:
        return command(["sh", "-c", "echo on; tail -f /dev/null & tail -f /dev/null"])

    def timing_out(self, workdir: Path) -> Agent:
        return command(["sh", "-c", "tail -f /dev/null & tail -f /dev/null"], timeout=0.2)

    def missing(self, workdir: Path) -> tuple[Agent, str]:
        return command(["no-such-agent"]), "no-such-agent"

    def writing(self, workdir: Path) -> Agent:
        return command(["touch", WRITTEN])


def run(agent: Agent, workdir: Path, *, prompt: str = "") -> tuple[Reply, Recorder]:
    recorder = Recorder()

    async def scene() -> Reply:
        return await ask(agent, prompt, context=context_for(workdir, recorder, env=ENV))

    return asyncio.run(scene()), recorder


def test_stdout_is_the_answer_and_live_text(tmp_path: Path) -> None:
    reply, recorder = run(command(["cat"]), tmp_path, prompt="to and fro")
    assert reply.text == "to and fro"
    assert "".join(body["text"] for body in recorder.bodies("text")) == "to and fro"


def test_live_text_stops_at_its_bound_and_says_so_while_the_answer_is_kept(tmp_path: Path) -> None:
    prompt = "x" * 1_000_000
    reply, recorder = run(command(["cat"]), tmp_path, prompt=prompt)
    shown = recorder.bodies("text")
    assert reply.text == prompt
    assert sum(len(body["text"]) for body in shown) == transcript._LIVE_CHARACTERS
    assert [body.get("more", False) for body in shown].count(True) == 1
    assert shown[-1]["more"]


def test_a_failing_command_keeps_its_output_and_tells_its_stderr(tmp_path: Path) -> None:
    with pytest.raises(AgentError, match=r"status 4: disk on fire") as caught:
        run(command(["sh", "-c", "echo part; echo disk on fire >&2; exit 4"]), tmp_path)
    assert (caught.value.ending, caught.value.text) == ("failed", "part\n")


def test_a_command_that_dies_by_signal_was_killed(tmp_path: Path) -> None:
    with pytest.raises(AgentError, match="SIGSEGV") as caught:
        run(command(["sh", "-c", "kill -SEGV $$"]), tmp_path)
    assert (caught.value.ending, bool(caught.value.hint)) == ("killed", True)


def test_variables_of_the_instance_are_laid_over_those_of_the_context(tmp_path: Path) -> None:
    async def scene() -> Reply:
        context = context_for(tmp_path, Recorder(), env={**ENV, "MODEL": "small", "KEPT": "1"})
        return await ask(command(["env"], env={"MODEL": "large"}), "", context=replace(context, role="x"))

    lines = asyncio.run(scene()).text.splitlines()
    assert {"MODEL=large", "KEPT=1"} <= set(lines)
    assert "MODEL=small" not in lines


def test_a_spec_is_split_into_words_without_a_shell(tmp_path: Path) -> None:
    reply, _ = run(resolve("command:printf '%s|' 'one word' $HOME a:b"), tmp_path)
    assert reply.text == "one word|$HOME|a:b|"


@pytest.mark.parametrize("spec", ["command", "command:", "command:''", "command:echo 'open"])
def test_a_spec_without_a_proper_command_is_refused_before_the_run(spec: str) -> None:
    with pytest.raises(UsageError) as caught:
        resolve(spec)
    assert "command:program" in caught.value.hint


def test_an_unknown_agent_is_refused_with_what_was_meant_and_what_there_is() -> None:
    with pytest.raises(NotFound, match="'comand'") as caught:
        resolve("comand:echo")
    assert "Did you mean 'command'?" in caught.value.hint
    assert "scripted" in caught.value.hint
