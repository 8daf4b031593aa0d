"""What Codex is given: a server, hooks, agents, skills; and what of it Codex was told to trust."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from wired import CATALOG, COMMAND, files_in, install, is_up_to_date, setup_in, uninstall

from rolecall.errors import UsageError
from rolecall.hosts.codex import events as host
from rolecall.hosts.codex import install as codex
from rolecall.hosts.setup import HostSetup, split_words
from rolecall.nexus import catalog
from rolecall.settings import yaml12

EVENTS = "session_start user_prompt_submit subagent_start subagent_stop pre_tool_use post_tool_use stop session_end"


def loaded(*path: str | Path) -> Any:
    text = Path(*path).read_text(encoding="utf-8")
    return tomllib.loads(text) if str(path[-1]).endswith(".toml") else json.loads(text)


def test_in_a_project_the_commands_name_it_and_the_server_has_to_start(tmp_path: Path) -> None:
    setup = install("codex", setup_in(tmp_path))
    server = loaded(setup.project, ".codex/config.toml")["mcp_servers"]["rolecall"]
    assert (server["command"], server["args"]) == (
        COMMAND[0],
        ["mcp", "--project", setup.project, "--without", "skills"],
    )
    assert server["required"] is True
    assert {"ROLECALL_HOME", "ROLECALL_RESTRICTIONS", "ROLECALL_RUN"} <= set(server["env_vars"])
    hooks = loaded(setup.project, ".codex/hooks.json")["hooks"]
    assert set(hooks) == set(host.EVENTS)
    for event, [entry] in hooks.items():
        (hook,) = entry["hooks"]
        words = (*COMMAND, "hook", "codex", event, "--project", setup.project)
        assert split_words(hook["command"]) == (*words, "||", "exit", "1"), event
        assert hook["timeout"] == (3 if event == "SessionEnd" else 10)
    assert list((tmp_path / "home").iterdir()) == []


@pytest.mark.parametrize("variable", ["", "CODEX_HOME"])
def test_for_a_user_they_name_none_and_codex_starts_without_the_server(tmp_path: Path, variable: str) -> None:
    env = {variable: str(tmp_path / "other")} if variable else {}
    setup = install("codex", setup_in(tmp_path, scope="user", **env))
    folder = tmp_path / "other" if variable else tmp_path / "home" / ".codex"
    server = loaded(folder, "config.toml")["mcp_servers"]["rolecall"]
    assert server["args"] == ["mcp", "--without", "skills"]
    assert "required" not in server
    assert "--project" not in (folder / "hooks.json").read_text()
    assert (folder / "skills" / "nx-plan" / "SKILL.md").exists()
    assert list((tmp_path / "my project").iterdir()) == []
    assert codex.commands(setup).servers == {"rolecall": (*COMMAND, "mcp", "--without", "skills")}


@pytest.mark.parametrize("agent", CATALOG.agents.values(), ids=lambda agent: agent.id)
def test_an_agent_has_its_body_and_the_settings_that_deny(
    tmp_path: Path, agent: catalog.CatalogAgent
) -> None:
    setup = install("codex", setup_in(tmp_path))
    settings = loaded(setup.project, f".codex/agents/{agent.id}.toml")
    assert settings["name"] == agent.id
    assert settings["developer_instructions"].startswith(agent.body.strip())
    is_reader = "no_file_edit" in agent.capabilities
    assert settings.get("sandbox_mode") == ("read-only" if is_reader else None)
    assert "features" not in settings


def test_an_agent_without_a_shell_has_none_and_any_text_is_a_body(tmp_path: Path) -> None:
    body = 'Say """no""" to C:\\new\\tables.\n"quoted"'
    agent = CATALOG.agents["tester"]._replace(body=body, capabilities=("no_shell_exec",))
    made = CATALOG._replace(agents={**CATALOG.agents, "tester": agent})
    setup = install("codex", setup_in(tmp_path)._replace(catalog=made))
    settings = loaded(setup.project, ".codex/agents/tester.toml")
    assert settings["developer_instructions"].startswith(body)
    assert settings["features"] == {"shell_tool": False}
    assert "sandbox_mode" not in settings


@pytest.mark.parametrize("skill", CATALOG.skills.values(), ids=lambda skill: skill.id)
def test_a_skill_is_in_the_words_of_codex_and_a_manual_one_is_not_offered(
    tmp_path: Path, skill: catalog.Skill
) -> None:
    setup = install("codex", setup_in(tmp_path))
    folder = Path(setup.project, ".codex", "skills", skill.id)
    _, head, body = (folder / "SKILL.md").read_text(encoding="utf-8").split("---\n", 2)
    fields = yaml12.load(head, source="head")
    assert fields == {"name": skill.id, "description": skill.description}
    assert "{{" not in body
    assert ("spawn_agent" in body) == ("subagent_spawn" in skill.body)
    policy = folder / "agents" / "openai.yaml"
    assert policy.exists() == skill.manual_only
    if skill.manual_only:
        assert yaml12.load(policy.read_text(), source="p") == {"policy": {"allow_implicit_invocation": False}}


def test_entries_of_others_keep_their_places_and_everything_goes_again(tmp_path: Path) -> None:
    setup = setup_in(tmp_path)
    folder = Path(setup.project, ".codex")
    folder.mkdir()
    theirs = {"hooks": {"Stop": [{"hooks": [{"type": "command", "command": "say done"}]}]}}
    (folder / "hooks.json").write_text(json.dumps(theirs))
    (folder / "config.toml").write_text('# mine\nmodel = "m"\n')
    install("codex", setup)
    assert loaded(folder, "hooks.json")["hooks"]["Stop"][0] == theirs["hooks"]["Stop"][0]
    assert is_up_to_date("codex", setup)
    uninstall("codex", setup)
    assert sorted(files_in(folder)) == [str(folder / "config.toml"), str(folder / "hooks.json")]
    assert loaded(folder, "hooks.json") == theirs
    assert (folder / "config.toml").read_text() == '# mine\nmodel = "m"\n'


def test_the_commands_are_read_from_the_files(tmp_path: Path) -> None:
    setup = setup_in(tmp_path)
    assert not any((*codex.commands(setup).servers.values(), *codex.commands(setup).hooks.values()))
    install("codex", setup)
    found = codex.commands(setup)
    assert found.servers == {"rolecall": setup.server_command()}
    assert found.hooks == {event: setup.hook_command("codex", event) for event in host.EVENTS}


# -- trust --


def obstacle(setup: HostSetup) -> str:
    (found,) = codex.obstacles(setup)
    return found.text


def test_what_codex_was_not_told_to_trust_is_named(tmp_path: Path) -> None:
    setup = install("codex", setup_in(tmp_path))
    own = tmp_path / "home" / ".codex" / "config.toml"
    own.parent.mkdir()
    assert f"does not trust {setup.project} yet" in obstacle(setup)
    trusted = f'[projects.{json.dumps(setup.project)}]\ntrust_level = "trusted"\n'
    own.write_text(trusted)
    assert "PreToolUse, PostToolUse" in obstacle(setup)
    keys = [f"{setup.project}/.codex/hooks.json:{event}:0:0" for event in EVENTS.split()]
    states = {key: f'[hooks.state.{json.dumps(key)}]\ntrusted_hash = "sha256:0"\n' for key in keys}
    own.write_text(trusted + "".join(states.values()))
    assert codex.obstacles(setup) == []
    own.write_text(trusted + "".join(states.values()).replace("sha256:0", "", 1) + "enabled = false\n")
    assert obstacle(setup).endswith(": SessionStart, SessionEnd")


def test_trust_goes_by_the_place_of_our_entry_among_those_of_others(tmp_path: Path) -> None:
    setup = setup_in(tmp_path)
    folder = Path(setup.project, ".codex")
    folder.mkdir()
    theirs = {"hooks": {"Stop": [{"hooks": [{"type": "command", "command": "say done"}]}]}}
    (folder / "hooks.json").write_text(json.dumps(theirs))
    install("codex", setup)
    own = tmp_path / "home" / ".codex" / "config.toml"
    own.parent.mkdir()
    text = f'[projects.{json.dumps(setup.project)}]\ntrust_level = "trusted"\n'
    for event in EVENTS.split():
        key = json.dumps(f"{folder}/hooks.json:{event}:{int(event == 'stop')}:0")
        text += f'[hooks.state.{key}]\ntrusted_hash = "sha256:0"\n'
    own.write_text(text)
    assert codex.obstacles(setup) == []


def test_a_configuration_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    setup = install("codex", setup_in(tmp_path))
    own = tmp_path / "home" / ".codex" / "config.toml"
    own.parent.mkdir()
    own.write_text("model = \n")
    assert "cannot be read" in obstacle(setup)


def test_a_server_of_our_name_that_is_somebody_elses_is_not_touched(tmp_path: Path) -> None:
    setup = setup_in(tmp_path)
    path = Path(setup.project, ".codex", "config.toml")
    path.parent.mkdir()
    path.write_text('[mcp_servers.rolecall]\ncommand = "mine"\n')
    with pytest.raises(UsageError, match="exists and is not Rolecall's"):
        install("codex", setup)
    assert path.read_text() == '[mcp_servers.rolecall]\ncommand = "mine"\n'
    assert not (path.parent / "hooks.json").exists()


@pytest.mark.parametrize("event", host.EVENTS)
def test_each_sample_is_an_event_and_the_one_before_a_tool_is_an_edit(tmp_path: Path, event: str) -> None:
    found = host.event(event, codex.sample(event, str(tmp_path)))
    assert found is not None
    if event == "PreToolUse":
        assert host.tool_call(codex.sample(event, str(tmp_path))).writes == (str(tmp_path / "doctor.txt"),)


def test_a_refusal_is_told_from_other_answers() -> None:
    from rolecall.hosts.event import HostAnswer

    assert codex.is_refusal(host.output("PreToolUse", HostAnswer(block="No.")).stdout)
    assert not codex.is_refusal(host.output("PreToolUse", HostAnswer(context="Yes.")).stdout)
    assert not codex.is_refusal("")
