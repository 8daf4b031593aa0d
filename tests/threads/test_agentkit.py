"""External agents in child processes, from the engine that asks them to the step it adopts."""

from __future__ import annotations

import asyncio
import json
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from modelserver import ModelServer

from rolecall.settings import stores
from rolecall.settings.mask import Mask
from rolecall.store.backend import Ref
from rolecall.store.store import Store
from rolecall.threads import compose, lifecycle
from rolecall.threads.engine import Outcome
from rolecall.threads.thread import Chain, Step
from rolecall.workflow import registry

WORKFLOW = """
name: do-things
roles:
  first:
    goal: Begin.
    meta: {type: object, properties: {count: {type: integer}}, required: [count]}
  second:
    goal: Go on.
    meta: {type: object, properties: {count: {type: integer}}, required: [count]}
graph:
  $START: {role: first, prompt: "Begin at {{start.cwd}}"}
  first: {role: second, prompt: "After {{count}}"}
  second: $END
"""
COUNTING = """
    from rolecall.threads import agentkit

    async def work(prompt, context):
        assert "Begin" in prompt or "After 0" in prompt, prompt
        return f"---\\ncount: {len(context.steps)}\\n---\\n{context.role} in {context.workdir}"

    agentkit.run(work)
"""


@dataclass(frozen=True)
class Bench:
    """A store, a thread in it, and programs that play its roles."""

    store: Store
    folder: Path
    thread: str

    @property
    def ref(self) -> Ref:
        ref = self.store.ref(f"thread/{self.thread}")
        assert ref is not None
        return ref

    @property
    def steps(self) -> list[Step]:
        assert self.ref.target is not None
        return list(Chain(self.store, self.ref.target))[::-1]

    @property
    def attempts(self) -> list[Mapping[str, Any]]:
        ref = self.store.ref(f"attempt/{self.thread}")
        found: list[Mapping[str, Any]] = []
        node = ref.target if ref else None
        while node:
            found.append(self.store.get(node).payload)
            node = found[-1].get("previous")
        return found

    def program(self, source: str) -> str:
        path = self.folder / f"agent{len(list(self.folder.glob('agent*.py')))}.py"
        path.write_text(dedent(source), encoding="utf-8")
        return f"external:{shlex.join([sys.executable, str(path)])}"

    def run(self, agent: str, *, steps: int | None = None) -> list[Outcome]:
        engine = compose.engine(self.store, agent=agent)

        async def scene() -> list[Outcome]:
            return [one async for one in engine.run(self.thread, cancel=asyncio.Event(), steps=steps)]

        return asyncio.run(asyncio.wait_for(scene(), 60))

    def call(self, agent: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        argv = shlex.split(agent.removeprefix("external:"))
        return subprocess.run(
            [*argv, *arguments], capture_output=True, text=True, timeout=60, input="", check=False
        )


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setenv("ROLECALL_HOME", str(tmp_path / "home"))
    (tmp_path / "work").mkdir()
    (tmp_path / "do-things.yaml").write_text(WORKFLOW, encoding="utf-8")
    with stores.open_store() as store:
        book = registry.load_file(str(tmp_path / "do-things.yaml"))
        started = lifecycle.start(store, book, "Do it.", cwd=str(tmp_path / "work"), mask=Mask([]))
        yield Bench(store, tmp_path, started.id)


def suspended(bench: Bench, agent: str) -> str:
    """Take a step that must not come about; the reason."""
    head = bench.ref.target
    outcome = bench.run(agent)[-1]
    assert (outcome.status, bench.ref.target, bench.ref.state["status"]) == ("suspended", head, "suspended")
    assert "lease" not in bench.ref.state
    assert bench.attempts[0]["role"] == outcome.reason.partition(":")[0]
    assert bench.attempts[0]["error"] in outcome.reason
    assert bench.attempts[0]["agent"] == agent
    return outcome.reason


def test_steps_put_by_the_kit_carry_the_thread_to_its_end(bench: Bench) -> None:
    agent = bench.program(COUNTING)
    outcomes = bench.run(agent)
    assert [one.status for one in outcomes] == ["idle", "completed"]
    first, second = bench.steps
    assert [step.output for step in (first, second)] == [{"count": 0}, {"count": 1}]
    assert first.body == f"first in {bench.folder / 'work'}"
    assert (first.agent, second.payload["prev"]) == (agent, first.id)
    assert "Begin at" in first.prompt and "After 0" in second.prompt
    assert second.payload["edge_prompt"] == "After 0"
    assert second.payload["totals"]["steps"] == 2
    assert bench.store.ref(f"attempt/{bench.thread}") is None


def test_a_relative_home_is_the_same_for_an_agent_in_another_folder(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(bench.folder)
    monkeypatch.setenv("ROLECALL_HOME", "home")
    assert bench.run(bench.program(COUNTING))[-1].status == "completed"


def test_a_relative_store_is_the_same_for_an_agent_in_another_folder(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(bench.folder)
    monkeypatch.setenv("ROLECALL_HOME", str(bench.folder / "elsewhere"))
    monkeypatch.setenv("ROLECALL_STORE", "sqlite:home/store.db")
    assert bench.run(bench.program(COUNTING))[-1].status == "completed"


def test_the_kit_moves_no_ref_and_prints_the_same_step_for_either_form_of_call(bench: Bench) -> None:
    agent = bench.program(COUNTING)
    before = list(bench.store.refs(""))
    positional = bench.call(agent, bench.thread, "first")
    named = bench.call(agent, "--thread", bench.thread, "--role", "first", "--prompt", "Begin with this.")
    assert (positional.returncode, named.returncode) == (0, 0), positional.stderr + named.stderr
    assert list(bench.store.refs("")) == before
    steps = [Step(bench.store, bench.store.get(done.stdout.strip())) for done in (positional, named)]
    assert [step.payload["prev"] for step in steps] == [None, None]
    assert steps[0].payload["edge_prompt"].startswith("Begin at")
    assert "Begin with this." in steps[1].prompt


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "a thread and a role are needed"),
        (("{thread}",), "a thread and a role are needed"),
        (("{thread}", "second"), "the role 'second' is not due in thread"),
        (("06EXAMPLE00000000000000000", "first"), "there is no thread"),
    ],
)
def test_a_call_that_cannot_be_served_says_why_on_stderr(
    bench: Bench, arguments: tuple[str, ...], said: str
) -> None:
    done = bench.call(bench.program(COUNTING), *(one.format(thread=bench.thread) for one in arguments))
    assert done.returncode != 0
    assert (done.stdout, said in done.stderr) == ("", True)


def test_an_answer_the_kit_cannot_read_is_kept_by_the_engine(bench: Bench) -> None:
    reason = suspended(
        bench,
        bench.program("""
            from rolecall.threads import agentkit

            async def work(prompt, context):
                return "Only words."

            agentkit.run(work)
        """),
    )
    assert "could not be read" in reason
    assert bench.store.get(bench.attempts[0]["raw"]).payload == "Only words.\n"


def test_a_function_of_the_kit_that_raises_is_told_with_its_line(bench: Bench) -> None:
    reason = suspended(
        bench,
        bench.program("""
            from rolecall.threads import agentkit

            @agentkit.agent
            async def main(prompt, context):
                raise RuntimeError("no model today")

            main()
        """),
    )
    assert "RuntimeError: no model today" in reason and "agent0.py:6" in reason


def test_the_kit_asks_for_one_correction_and_links_the_answer_it_was_made_of(bench: Bench) -> None:
    agent = bench.program("""
        from rolecall.threads import agentkit
        from rolecall.agents.protocol import Reply, Usage

        async def work(prompt, context):
            if context.session is None:
                return Reply("Words.", session="s1", usage=Usage(input_tokens=5))
            assert context.session == "s1" and "could not be read" in prompt
            return Reply("---\\ncount: 7\\n---\\nBetter.", session="s1", usage=Usage(input_tokens=2))

        work.can_resume = True
        agentkit.run(work)
    """)
    assert bench.run(agent, steps=1)[-1].status == "idle"
    (step,) = bench.steps
    assert (step.output, step.payload["session"]) == ({"count": 7}, "s1")
    assert step.payload["totals"]["tokens"] == 7
    failed = bench.store.get(step.payload["attempt"]).payload
    assert bench.store.get(failed["raw"]).payload == "Words."


def test_the_kit_lets_the_configured_model_read_what_has_no_frontmatter(bench: Bench) -> None:
    agent = bench.program("""
        from rolecall.threads import agentkit

        async def work(prompt, context):
            return "I counted to three."

        agentkit.run(work)
    """)
    with ModelServer(['{"count": 3}']) as server:
        settings = f"extract: {{baseUrl: '{server.base_url}', model: small}}\n"
        (bench.folder / "home" / "config.yaml").write_text(settings, encoding="utf-8")
        assert bench.run(agent, steps=1)[-1].status == "idle"
        assert len(server.requests) == 1
    assert (bench.steps[0].output, bench.steps[0].body) == ({"count": 3}, "I counted to three.")


# -- steps that are not the one asked for --


def forged(bench: Bench, change: str) -> str:
    """An agent that puts a step of its own making."""
    return bench.program(f"""
        import sys
        from rolecall.threads import thread
        from rolecall.settings import stores
        from rolecall.threads import compose
        from rolecall.threads.thread import Chain

        store = stores.open_store()
        chain = Chain(store, thread.find(store, sys.argv[1]).head)
        draft = store.draft()
        schema = {{"type": "object", "title": "do-things.first", "properties": {{"count": {{"type": "integer"}}}},
                  "required": ["count"]}}
        step = {{
            "start": chain.start.id, "prev": None, "number": 1, "role": sys.argv[2], "agent": "forger",
            "output": draft.put(draft.put_schema(schema), {{"count": 1}}),
            "started_at": 1, "completed_at": 2, "cwd": "/",
            "totals": thread.add_totals({{}}, sys.argv[2], thread.count_usage(None, ms=1)),
        }}
        node = None
        {change}
        node = node or thread.put_step(draft, step)
        draft.commit()
        print(node)
    """)


def test_a_step_need_not_be_put_by_the_kit(bench: Bench) -> None:
    assert bench.run(forged(bench, "pass"), steps=1)[-1].status == "idle"
    assert (bench.steps[0].agent, bench.steps[0].output) == ("forger", {"count": 1})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("step['role'] = 'second'", "role is 'second', not 'first'"),
        ("step['number'] = 5", "number is 5, not 1"),
        ("step['start'] = draft.put_text('x')", "start is"),
        ("step['prev'] = draft.put_text('x')", "prev is"),
        ("step['totals'] = {}", "totals is {}, not"),
        ("node = draft.put_text('no step')", "is not a step, or its detail is not in the store"),
        ("node = '0000000000000'", "it is not in the store"),
        (
            "step['output'] = draft.put_text('words')",
            "its output does not have the type that first must deliver",
        ),
        ("print('a word at the end')\nsys.exit(0)", "printed 'a word at the end'"),
        ("sys.exit('I give up')", "I give up"),
    ],
)
def test_a_step_that_is_not_the_one_asked_for_suspends_the_thread(
    bench: Bench, change: str, said: str
) -> None:
    assert said in suspended(bench, forged(bench, change.replace("\n", "\n        ")))


def test_an_old_step_returned_again_suspends_the_thread(bench: Bench) -> None:
    bench.run(bench.program(COUNTING), steps=1)
    reason = suspended(bench, f"external:sh -c 'echo {bench.steps[0].id}'")
    assert "role is 'first', not 'second'" in reason and "prev is None" in reason


def test_an_agent_that_hangs_is_ended_by_a_cancelled_run_and_the_thread_goes_on(bench: Bench) -> None:
    hanging = bench.program("""
        import asyncio
        from rolecall.threads import agentkit

        async def work(prompt, context):
            context.emit("text", {"text": "waiting"})
            await context.cancel.wait()
            raise asyncio.CancelledError

        agentkit.run(work)
    """)

    async def scene() -> Outcome:
        cancel, waits = asyncio.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()

        async def look() -> None:
            while not any(event.kind == "text" for event in bench.store.events(bench.thread)):
                await asyncio.sleep(0.02)
            waits.set()

        looking = loop.create_task(look())
        step = loop.create_task(compose.engine(bench.store, agent=hanging).step(bench.thread, cancel=cancel))
        await asyncio.wait_for(waits.wait(), 60)
        cancel.set()
        await looking
        return await asyncio.wait_for(step, 60)

    outcome = asyncio.run(scene())
    assert (outcome.status, outcome.took) == ("idle", None)
    assert bench.attempts[0]["ending"] == "interrupted"
    assert bench.run(bench.program(COUNTING))[-1].status == "completed"
    assert "attempt" in bench.steps[0].payload


def test_a_step_that_was_put_is_adopted_after_a_crash_instead_of_asked_for_again(bench: Bench) -> None:
    agent = bench.program(COUNTING)
    step = bench.call(agent, bench.thread, "first").stdout.strip()
    note = {"head": bench.ref.target, "role": "first", "agent": agent, "started_at": 1, "step": step}
    bench.store.move(f"attempt/{bench.thread}", None, None, note)
    assert bench.run("external:false", steps=1)[-1].took == step


def test_a_configured_agent_is_an_external_one(bench: Bench) -> None:
    command, *args = shlex.split(bench.program(COUNTING).removeprefix("external:"))
    settings = json.dumps(
        {"agents": {"counter": {"command": command, "args": args}}, "defaultAgent": "counter"}
    )
    (bench.folder / "home" / "config.yaml").write_text(settings, encoding="utf-8")
    engine = compose.engine(bench.store)

    async def scene() -> list[Outcome]:
        return [one async for one in engine.run(bench.thread, cancel=asyncio.Event())]

    assert asyncio.run(scene())[-1].status == "completed"
    assert {step.agent for step in bench.steps} == {"counter"}
