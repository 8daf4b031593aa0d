"""Secrets of the environment, of `.env` and of the configuration are in nothing that is stored or shown."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import stage
from stage import LOOP, answer, attempts, book, run, says, start, steps

from rolecall.agents.protocol import Context, Reply, ToolCall, Turn
from rolecall.errors import AgentError, UsageError
from rolecall.settings import config
from rolecall.settings.mask import MASKED, Mask
from rolecall.store.store import Store
from rolecall.threads import commit, compose, lifecycle, thread
from rolecall.workflow.playbook import Playbook

if TYPE_CHECKING:
    from conftest import Rolecall

SECRETS = {
    "ENVIRONMENT_API_KEY": "env-9f8e7d6c5b4a",
    "ENV_FILE_PLAIN_NAME": "dotenv-value-0102030405",
    "apiKey": "sk-config-a1b2c3d4e5",
}
ALL = " ".join(SECRETS.values())


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    (folder / ".env").write_text(f"ENV_FILE_PLAIN_NAME={SECRETS['ENV_FILE_PLAIN_NAME']}\n")
    provider = {"baseUrl": "http://127.0.0.1:9/v1", "apiKey": SECRETS["apiKey"]}
    (folder / "config.yaml").write_text(json.dumps({"providers": {"somewhere": provider}}))
    monkeypatch.setenv("ROLECALL_HOME", str(folder))
    monkeypatch.setenv("ENVIRONMENT_API_KEY", SECRETS["ENVIRONMENT_API_KEY"])
    return folder


@pytest.fixture
def mask(home: Path) -> Mask:
    return config.mask()


@pytest.fixture
def store(tmp_path: Path, home: Path) -> Iterator[Store]:
    """A store in whose files no secret is found in the end: not in the database and not in its log."""
    opened = stage.open_store(tmp_path / "store.db")
    yield opened
    assert_absent(b"".join(path.read_bytes() for path in tmp_path.glob("store.db*")))
    stage.assert_sound(opened)
    opened.close()
    assert_absent((tmp_path / "store.db").read_bytes())


def assert_absent(shown: bytes | str) -> None:
    data = shown.encode() if isinstance(shown, str) else shown
    assert data
    assert [name for name, secret in SECRETS.items() if secret.encode() in data] == []


def test_prompts_answers_events_tool_calls_and_sessions_are_masked(
    store: Store, mask: Mask, tmp_path: Path
) -> None:
    watched: list[Any] = []

    async def leak(_prompt: str, context: Context) -> Reply:
        context.emit("session", {"session": f"s {ALL}"})
        context.emit("tool_call", {"name": ALL, "arguments": {ALL: [ALL]}})
        for character in f"streamed: {ALL}!":
            context.emit("text", {"text": character})
        status = (
            "done"
            if context.role == "worker"
            else "again"
            if context.attempt == 0 and not steps(store, name)[2:]
            else "end"
        )
        calls = (ToolCall(ALL, {"argument": ALL}, ALL),)
        said = answer(status, f'"{ALL}"', f"The keys are {ALL}.")
        return Reply(
            said, session=f"s {ALL}", turns=(Turn("assistant", ALL, calls),), files=(ALL,), reason=ALL
        )

    name = start(store, book(LOOP), tmp_path / "work", f"Use {ALL}", mask=mask)
    playing = stage.engine(
        store, leak, mask=mask, environment=dict(os.environ), watch=lambda *told: watched.append(told)
    )
    outcomes = run(playing, name)
    assert outcomes[-1].status == "completed"
    assert MASKED in steps(store, name)[0].output["note"] and MASKED in steps(store, name)[2].prompt
    assert_absent(repr(watched) + repr(outcomes))
    texts = [event.body["text"] for event in store.events(name) if event.kind == "text"]
    assert "".join(texts) == f"streamed: {MASKED} {MASKED} {MASKED}!" * 4
    assert_absent("".join(texts))


def test_errors_and_what_is_quoted_in_them_are_masked(store: Store, mask: Mask, tmp_path: Path) -> None:
    watched: list[Any] = []
    turns = (Turn("assistant", ALL),)
    failing: list[Any] = [
        AgentError(f"exit 1: {ALL}", ending="failed", text=ALL, session=ALL, turns=turns),
        ValueError(ALL),
        f"no frontmatter, but {ALL}",
        answer("nonsense", f'"{ALL}"'),
        f"---\n$status: $SUSPEND\nreason: I need {ALL}\n---\n",
    ]
    for fault in failing:
        name = start(store, book(LOOP), tmp_path / "work", mask=mask)
        playing = stage.engine(store, says(fault), mask=mask, watch=lambda *told: watched.append(told))
        (outcome,) = run(playing, name)
        assert outcome.status == "suspended"
        assert_absent(repr(outcome) + repr(stage.state(store, name)))
        lifecycle.resume(store, thread.find(store, name), mask=mask, answer=f"Take {ALL}")
    assert len(watched) >= 2 * len(failing)
    assert_absent(repr(watched))


def test_reasons_of_moderators_functions_and_prompts_are_masked(
    store: Store, mask: Mask, tmp_path: Path
) -> None:
    def moderator(context: Any) -> str:
        if context.steps:
            raise RuntimeError(ALL)
        return "worker"

    async def prompt(_context: Any) -> str:
        return f"Use {ALL}"

    async def function(_context: Any) -> Any:
        raise RuntimeError(ALL)

    workflow = book(LOOP).workflow
    for playbook, agent in (
        (Playbook(workflow, moderator=moderator, prompts={"worker": prompt}), says(answer("done"))),
        (Playbook(workflow, moderator=moderator, functions={"worker": function}), says()),
    ):
        name = start(store, playbook, tmp_path / "work", mask=mask)
        (outcome,) = run(stage.engine(store, agent, mask=mask, workflow=playbook), name)
        assert outcome.status == "suspended" and MASKED in outcome.reason
        assert_absent(repr(outcome))


def test_what_a_person_does_is_masked(store: Store, mask: Mask, tmp_path: Path) -> None:
    name = start(store, book(LOOP), tmp_path / "work", mask=mask)
    answered = commit.answer(
        store, thread.find(store, name), book(LOOP), {"$status": "done", "note": ALL}, body=ALL, mask=mask
    )
    fork = lifecycle.fork(store, answered.head, mask=mask, prompt=f"Now with {ALL}")
    assert MASKED in fork.state.title
    with pytest.raises(UsageError, match="contains a secret"):
        start(
            store, book(LOOP), tmp_path / "work", mask=mask, agent=f"command:tool --key {SECRETS['apiKey']}"
        )


def test_a_secret_in_the_name_of_an_agent_is_masked(store: Store, mask: Mask, tmp_path: Path) -> None:
    name = start(store, book(LOOP), tmp_path / "work", mask=mask)
    spec = f"command:/bin/echo --key {SECRETS['ENVIRONMENT_API_KEY']}"

    async def collect() -> list[Any]:
        playing = compose.engine(store, agent=spec)
        return [outcome async for outcome in playing.run(name, cancel=asyncio.Event())]

    (outcome,) = asyncio.run(collect())
    assert outcome.status == "suspended"
    (attempt,) = attempts(store, name)
    assert MASKED in attempt["agent"]


LEAK = """
import os, sys
sys.stdin.read()
everything = " ".join(f"{name}={value}" for name, value in os.environ.items())
sys.stderr.write(everything)
print("---\\n$status: done\\nnote: '" + os.environ["ENVIRONMENT_API_KEY"] + "'\\n---\\n" + everything)
sys.exit(len(sys.argv) - 1)
"""


def test_a_command_that_prints_its_environment_shows_no_secret_anywhere(
    rolecall: Rolecall, home: Path, tmp_path: Path
) -> None:
    (tmp_path / "leak.py").write_text(LEAK)
    (tmp_path / "run-loop.yaml").write_text(LOOP)
    run_in: dict[str, Any] = {"cwd": tmp_path}
    started = rolecall.json("thread", "start", "./run-loop.yaml", "-p", f"Use {ALL}", **run_in)
    name = started["thread"]
    agent = f"command:{sys.executable} {tmp_path / 'leak.py'}"
    shown = [rolecall("thread", "run", name, "--agent", agent, "--steps", "1", **run_in)]
    shown.append(rolecall("thread", "run", name, "--agent", f"{agent} fail", **run_in))
    assert "exited with status 1" in shown[-1].stdout + shown[-1].stderr
    verbs = [
        ["show", name],
        ["read", name],
        ["steps", name],
        ["list"],
        ["export", name, "report.md", "--full"],
        ["export", name, "report.html", "--full"],
    ]
    shown += [rolecall("thread", *words, **run_in) for words in verbs]
    assert [done.args for done in shown[2:] if done.returncode] == []
    errors = [done.stdout + done.stderr for done in shown]
    errors += [(tmp_path / name).read_text() for name in ("report.md", "report.html")]
    for text in errors:
        assert_absent(text)
    assert sum(MASKED in text for text in errors) >= 3
    assert_absent(b"".join(path.read_bytes() for path in home.glob("store.db*")))
