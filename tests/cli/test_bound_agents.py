"""A thread keeps the agents it was started with, whatever becomes of the configuration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rolecall.store.sqlite import SqliteBackend
from rolecall.store.store import Store
from rolecall.threads import thread

if TYPE_CHECKING:
    from conftest import Rolecall

WORKFLOW = """
name: do-both
roles:
  first: {goal: Begin., meta: {type: object, properties: {by: {type: string}}, required: [by]}}
  second: {goal: Go on., meta: {type: object, properties: {by: {type: string}}, required: [by]}}
graph: {$START: first, first: second, second: $END}
"""


def says(name: str) -> str:
    return f"command:printf %s '---\nby: {name}\n---\n'"


def configure(rolecall: Rolecall, **settings: Any) -> None:
    rolecall.home.mkdir(exist_ok=True)
    (rolecall.home / "config.yaml").write_text(json.dumps(settings))


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    (folder / ".workflows").mkdir(parents=True)
    (folder / ".workflows" / "do-both.yaml").write_text(WORKFLOW)
    monkeypatch.chdir(folder)
    return folder


def started(rolecall: Rolecall, *words: str) -> str:
    shown = rolecall.json("thread", "start", "do-both", "-p", "Do it.", *words, "--format", "json")
    return str(shown["thread"])


def played(rolecall: Rolecall, name: str, *words: str) -> list[str]:
    """Run a thread to its end; what its steps say who took them."""
    rolecall("thread", "run", name, *words, check=0)
    steps = rolecall.json("thread", "steps", name, "--format", "json")["steps"]
    return [step["output"]["by"] for step in steps[1:] if step["role"] in ("first", "second")]


def agents(rolecall: Rolecall, name: str) -> dict[str, str]:
    found: dict[str, str] = rolecall.json("thread", "show", name, "--format", "json")["agents"]
    return found


def test_neither_the_default_nor_an_override_nor_an_alias_changes_under_a_thread(
    rolecall: Rolecall, project: Path
) -> None:
    configure(
        rolecall,
        agents={"mine": {"adapter": says("mine")}},
        defaultAgent=says("default"),
        agentOverrides={"do-both": {"second": "mine"}},
    )
    name = started(rolecall)
    configure(
        rolecall,
        agents={"mine": {"adapter": says("other mine")}},
        defaultAgent=says("other"),
        agentOverrides={"do-both": {"first": "mine"}},
    )
    assert agents(rolecall, name) == {"first": says("default"), "second": "mine"}
    assert "second: mine" in rolecall("thread", "show", name, "--format", "text", check=0).stdout
    assert played(rolecall, name) == ["default", "mine"]
    assert played(rolecall, started(rolecall)) == ["other mine", "other"]


def test_an_agent_named_at_the_start_keeps_what_it_stood_for(rolecall: Rolecall, project: Path) -> None:
    configure(rolecall, agents={"mine": {"adapter": says("mine")}})
    name = started(rolecall, "--agent", "mine")
    configure(rolecall, agents={"mine": {"adapter": says("changed")}})
    assert played(rolecall, name) == ["mine", "mine"]


def test_an_agent_named_for_a_run_plays_that_run_alone(rolecall: Rolecall, project: Path) -> None:
    configure(rolecall, defaultAgent=says("default"))
    name = started(rolecall)
    rolecall("thread", "step", name, "--agent", says("guest"), check=0)
    assert agents(rolecall, name) == {"first": says("default"), "second": says("default")}
    assert played(rolecall, name) == ["guest", "default"]


def test_resume_gives_a_thread_another_agent_from_there_on(rolecall: Rolecall, project: Path) -> None:
    configure(rolecall, defaultAgent=says("default"))
    name = started(rolecall)
    rolecall("thread", "step", name, check=0)
    rolecall("thread", "resume", name, "--agent", says("next"), check=0)
    assert agents(rolecall, name) == {"first": says("next"), "second": says("next")}
    assert played(rolecall, name) == ["default", "next"]


def test_resume_and_fork_refuse_an_agent_that_does_not_exist(rolecall: Rolecall, project: Path) -> None:
    configure(rolecall, defaultAgent=says("default"))
    name = started(rolecall)
    for verb in ("resume", "fork"):
        assert (
            "there is no agent 'nobody'"
            in rolecall("thread", verb, name, "--agent", "nobody", check=3).stderr
        )
    assert agents(rolecall, name)["first"] == says("default")
    assert len(rolecall.json("thread", "list", "--format", "json")) == 1


def test_a_fork_has_the_agents_of_its_thread_unless_it_is_given_others(
    rolecall: Rolecall, project: Path
) -> None:
    configure(rolecall, defaultAgent=says("default"))
    name = started(rolecall)
    rolecall("thread", "step", name, check=0)
    configure(rolecall, defaultAgent=says("other"))
    same = rolecall.json("thread", "fork", name, "--format", "json")["thread"]
    given = rolecall.json("thread", "fork", name, "--agent", says("given"), "--format", "json")["thread"]
    anew = rolecall.json("thread", "fork", name, "--workflow", "do-both", "--format", "json")["thread"]
    assert played(rolecall, same) == ["default", "default"]
    assert played(rolecall, given) == ["default", "given"]
    assert played(rolecall, anew) == ["default", "other"]


def test_a_thread_without_bound_agents_goes_by_the_configuration(rolecall: Rolecall, project: Path) -> None:
    configure(rolecall, defaultAgent=says("default"))
    name = started(rolecall)
    with Store(SqliteBackend(str(rolecall.home / "store.db"))) as store:
        ref = thread.find(store, name)
        older = {key: value for key, value in ref.ref.state.items() if key != "agents"}
        store.move(ref.ref.name, ref.ref, ref.head, older)
    configure(rolecall, defaultAgent=says("other"))
    assert agents(rolecall, name) == {}
    assert played(rolecall, name) == ["other", "other"]


def test_a_role_that_had_no_agent_at_the_start_gets_one_later(rolecall: Rolecall, project: Path) -> None:
    name = started(rolecall)
    configure(rolecall, defaultAgent=says("late"))
    assert played(rolecall, name) == ["late", "late"]


def test_what_may_be_a_secret_is_not_kept_with_the_thread(rolecall: Rolecall, project: Path) -> None:
    agent = {"adapter": "claude", "model": "opus", "env": {"TOKEN": "tok-123456789"}}
    keyed = {"adapter": "command:tool --key key-987654321"}
    overrides = {"do-both": {"first": "keyed"}}
    configure(rolecall, agents={"mine": agent, "keyed": keyed}, agentOverrides=overrides, defaultAgent="mine")
    (rolecall.home / ".env").write_text("THE_KEY=key-987654321\n")
    name = started(rolecall)
    with Store(SqliteBackend(str(rolecall.home / "store.db"))) as store:
        state = thread.find(store, name).state
    assert state.agents == {
        "first": {"name": "keyed"},
        "second": {"name": "mine", "spec": "claude", "options": {"model": "opus"}},
    }
    assert "tok-123456789" not in json.dumps(state) and "key-987654321" not in json.dumps(state)
