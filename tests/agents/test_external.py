from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from rolecall.agents import process, resolve
from rolecall.agents.adapters.external import external
from rolecall.agents.contract import Recorder, context_for
from rolecall.agents.protocol import Agent, Reply, ask
from rolecall.errors import AgentError, UsageError

ENV = {"PATH": "/usr/local/bin:/usr/bin:/bin"}
Program = Callable[[str], list[str]]
STEP = "0123456789ABC"
THREAD, ROLE = "06EXAMPLE00000000000000000", "worker"


def run(agent: Agent, workdir: Path, *, prompt: str = "") -> Reply:
    async def scene() -> Reply:
        return await ask(agent, prompt, context=context_for(workdir, Recorder(), env=ENV))

    return asyncio.run(scene())


def test_thread_and_role_are_the_last_arguments_and_the_prompt_is_on_stdin(
    tmp_path: Path, program: Program
) -> None:
    argv = program(f"""
        import json, pathlib, sys
        pathlib.Path("told.json").write_text(json.dumps([sys.argv[1:], sys.stdin.read()]))
        print("{STEP}")
    """)
    prompt = "Ä" * 300_000
    reply = run(external([*argv, "--model", "big"]), tmp_path, prompt=prompt)
    assert (reply.text, reply.step) == ("", STEP)
    assert json.loads((tmp_path / "told.json").read_text()) == [["--model", "big", THREAD, ROLE], prompt]


@pytest.mark.parametrize(
    "printed",
    [
        STEP,
        f"thinking\nmore\n{STEP}",
        f"\n  {STEP}  \n\n",
        json.dumps({"stepHash": STEP, "detailHash": "x", "role": ROLE}),
        "log\n" + json.dumps({"stepHash": STEP}),
    ],
)
def test_the_last_line_names_the_step_bare_or_as_a_record(tmp_path: Path, printed: str) -> None:
    assert run(external(["sh", "-c", 'printf %s "$0"', printed]), tmp_path).step == STEP


@pytest.fixture
def printing(program: Program) -> object:
    return lambda text: external(program(f"print({text!r})"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "printed nothing"),
        ("I am done.", "printed 'I am done.'"),
        (f"{STEP}\nBye!", "printed 'Bye!'"),
        ("{not json", "printed '{not json'"),
        ("{}", "printed '{}'"),
        ('{"stepHash": 7}', "printed"),
        ('{"stepHash": "' + "x" * 400 + '"}', "printed"),
        ("{" * 100_000, "printed"),
        (STEP.lower(), "printed"),
    ],
)
def test_anything_else_is_an_error_that_says_what_was_expected_and_keeps_the_output(
    tmp_path: Path, printing: object, text: str, said: str
) -> None:
    with pytest.raises(AgentError, match=said) as caught:
        run(printing(text), tmp_path)  # type: ignore[operator]
    assert (caught.value.ending, caught.value.text) == ("failed", f"{text}\n")
    assert "stepHash" in caught.value.hint
    assert len(caught.value.message) < 400


def test_a_program_that_fails_gave_no_step_whatever_it_printed(tmp_path: Path) -> None:
    with pytest.raises(AgentError, match="status 3: no model") as caught:
        run(external(["sh", "-c", f"echo {STEP}; echo no model >&2; exit 3"]), tmp_path)
    assert (caught.value.ending, caught.value.text) == ("failed", f"{STEP}\n")


def test_a_program_that_hangs_is_ended_with_its_children_when_cancelled(tmp_path: Path) -> None:
    recorder = Recorder()

    async def scene() -> None:
        context = context_for(tmp_path, recorder, env=ENV)
        agent = external(["sh", "-c", "tail -f /dev/null & tail -f /dev/null"])
        asked = asyncio.create_task(ask(agent, "", context=context))
        await asyncio.wait_for(recorder.first.wait(), 60)
        context.cancel.set()  # type: ignore[attr-defined]
        await asyncio.wait_for(asked, 60)

    with pytest.raises(AgentError) as caught:
        asyncio.run(scene())
    assert caught.value.ending == "interrupted"
    assert process.survivors(recorder.bodies("process")[0]["run"]) == []


def test_a_program_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    with pytest.raises(AgentError) as caught:
        run(external(["sh", "-c", "tail -f /dev/null"], timeout=0.2), tmp_path)
    assert caught.value.ending == "timeout"


def test_a_spec_names_the_program(tmp_path: Path) -> None:
    assert run(resolve(f"external:sh -c 'echo {STEP}'"), tmp_path).step == STEP


@pytest.mark.parametrize("spec", ["external", "external:", "external:''", "external:prog 'open"])
def test_a_spec_without_a_proper_program_is_refused_before_the_run(spec: str) -> None:
    with pytest.raises(UsageError) as caught:
        resolve(spec)
    assert "external:program" in caught.value.hint
