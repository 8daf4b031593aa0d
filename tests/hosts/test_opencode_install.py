"""What OpenCode is given: a plugin that has our commands, agents with what they are denied, skills."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from wired import CATALOG, COMMAND, install, is_up_to_date, setup_in, uninstall

from rolecall.hosts.event import HostAnswer
from rolecall.hosts.installation import OwnFile
from rolecall.hosts.opencode import events as host
from rolecall.hosts.opencode import install as opencode
from rolecall.nexus import catalog
from rolecall.settings import yaml12


def head_of(path: Path) -> Any:
    return yaml12.load(path.read_text(encoding="utf-8").split("---\n")[1], source="head")


def plugin_of(folder: Path) -> str:
    return (folder / "plugins" / "rolecall.js").read_text(encoding="utf-8")


def test_the_plugin_has_the_commands_of_this_machine(tmp_path: Path) -> None:
    setup = setup_in(tmp_path)
    assert not any((*opencode.commands(setup).servers.values(), *opencode.commands(setup).hooks.values()))
    install("opencode", setup)
    found = opencode.commands(setup)
    assert found.servers == {"rolecall": (*COMMAND, "mcp", "--project", setup.project, "--without", "skills")}
    assert found.hooks == {event: setup.hook_command("opencode", event) for event in host.EVENTS}
    assert "@" not in plugin_of(Path(setup.project, ".opencode"))


def test_the_plugin_asks_for_each_event_there_is_and_for_no_other(tmp_path: Path) -> None:
    text = plugin_of(Path(install("opencode", setup_in(tmp_path)).project, ".opencode"))
    code = "".join(line for line in text.splitlines() if not line.startswith("const HOOKS"))
    reported = {event for event in host.EVENTS if f'"{event}"' in code}
    assert reported == set(host.EVENTS)


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no node")
def test_the_plugin_is_javascript(tmp_path: Path) -> None:
    path = tmp_path / "plugin.mjs"
    path.write_text(
        plugin_of(Path(install("opencode", setup_in(tmp_path)).project, ".opencode")), encoding="utf-8"
    )
    done = subprocess.run(["node", "--check", str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("variable", ["", "XDG_CONFIG_HOME"])
def test_for_a_user_it_goes_where_opencode_looks(tmp_path: Path, variable: str) -> None:
    env = {variable: str(tmp_path / "other")} if variable else {}
    install("opencode", setup_in(tmp_path, scope="user", **env))
    folder = tmp_path / "other" if variable else tmp_path / "home" / ".config"
    assert "--project" not in plugin_of(folder / "opencode")
    assert (folder / "opencode" / "agents" / "tester.md").exists()
    assert list((tmp_path / "my project").iterdir()) == []


@pytest.mark.parametrize("agent", CATALOG.agents.values(), ids=lambda agent: agent.id)
def test_an_agent_is_denied_what_its_capabilities_deny_and_what_is_leads(
    tmp_path: Path, agent: catalog.CatalogAgent
) -> None:
    path = Path(install("opencode", setup_in(tmp_path)).project, ".opencode", "agents", f"{agent.id}.md")
    head = head_of(path)
    assert (head["name"], head["mode"]) == (agent.id, "subagent")
    assert set(head["permission"].values()) == {"deny"}
    denied = set(head["permission"])
    assert {"task", "rolecall_nx_plan_start", "rolecall_rule_add", "rolecall_thread_start"} <= denied
    assert ("edit" in denied) == ("no_file_edit" in agent.capabilities)
    assert ("rolecall_nx_task_add" in denied) == ("no_task_create" in agent.capabilities)
    assert ("rolecall_nx_task_update" in denied) == ("no_task_update" in agent.capabilities)
    assert "bash" not in denied
    assert agent.body.strip() in path.read_text(encoding="utf-8")


@pytest.mark.parametrize("skill", CATALOG.skills.values(), ids=lambda skill: skill.id)
def test_a_skill_is_in_the_words_of_opencode_and_a_manual_one_is_only_a_command(
    tmp_path: Path, skill: catalog.Skill
) -> None:
    folder = Path(install("opencode", setup_in(tmp_path)).project, ".opencode")
    file, command = folder / "skills" / skill.id / "SKILL.md", folder / "commands" / f"{skill.id}.md"
    assert (file.exists(), command.exists()) == (not skill.manual_only, skill.manual_only)
    text = (command if skill.manual_only else file).read_text(encoding="utf-8")
    assert "{{" not in text
    assert ("Call the tool task" in text) == ("subagent_spawn" in skill.body)
    assert text.endswith("$ARGUMENTS\n") == skill.manual_only


def test_no_file_of_the_user_is_edited_and_everything_goes_again(tmp_path: Path) -> None:
    setup = setup_in(tmp_path)
    own = Path(setup.project, "opencode.jsonc")
    own.write_text("// mine\n{}\n")
    assert all(isinstance(entry, OwnFile) for entry in opencode.list_entries(setup))
    install("opencode", setup)
    assert is_up_to_date("opencode", setup)
    uninstall("opencode", setup)
    assert [path.name for path in Path(setup.project).rglob("*")] == ["opencode.jsonc"]
    assert own.read_text() == "// mine\n{}\n"


@pytest.mark.parametrize("event", host.EVENTS)
def test_each_sample_is_an_event_and_the_one_before_a_tool_is_an_edit(tmp_path: Path, event: str) -> None:
    payload = opencode.sample(event, str(tmp_path))
    assert host.event(event, payload) is not None
    if event == "tool.execute.before":
        assert host.tool_call(payload).writes == (str(tmp_path / "doctor.txt"),)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"mcp": {"rolecall": {"enabled": false}}}', "does not start our server"),
        ('{"mcp": {"rolecall": {"type": "local", "command": ["their-server"]}}}', "which is not Rolecall's"),
        ('// "mcp": {"rolecall": {"enabled": false}}\n{"url": "http://x", /* y */ "a": [1,],}', ""),
        ('{"mcp": {"rolecall": {"type": "local", "command": ["/opt/v/bin/rolecall", "mcp"]}}}', ""),
        *(('{"mcp": {"other": {"enabled": false}}}', ""), ("{", ""), ('{"mcp": []}', ""), ("[]", "")),
    ],
)
def test_a_server_of_our_name_in_a_configuration_is_named_where_it_is_not_ours(
    tmp_path: Path, text: str, told: str
) -> None:
    setup = setup_in(tmp_path)
    path = tmp_path / "my project" / "opencode.jsonc"
    path.write_text(text)
    said = [one.text for one in opencode.obstacles(setup)]
    assert [told in one and str(path) in one for one in said] == ([True] if told else [])


def test_of_several_configurations_the_nearest_counts(tmp_path: Path) -> None:
    setup = setup_in(tmp_path)
    folder = tmp_path / "home" / ".config" / "opencode"
    folder.mkdir(parents=True)
    (folder / "opencode.json").write_text(
        '{"mcp": {"rolecall": {"command": ["/x/rolecall", "mcp"], "enabled": false}}}'
    )
    assert [one.text for one in opencode.obstacles(setup._replace(scope="user", project=""))]
    (tmp_path / "my project" / "opencode.json").write_text('{"mcp": {"rolecall": {"enabled": true}}}')
    assert opencode.obstacles(setup) == []


def test_a_refusal_is_told_from_other_answers() -> None:
    assert opencode.is_refusal(host.output("tool.execute.before", HostAnswer(block="No.")).stdout)
    assert not opencode.is_refusal(json.dumps({"context": "Yes."}))
    assert not opencode.is_refusal("")
