"""What Claude Code is given: servers, hooks, agents with their limits, skills in its own words."""

from __future__ import annotations

import json
import os
import re
import shlex
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsontexts import settings, texts
from wired import CATALOG, COMMAND, files_in, install, is_up_to_date, setup_in, uninstall

from rolecall.agents.adapters.claude import DENIES
from rolecall.hosts.claude import events as host
from rolecall.hosts.claude import install as claude
from rolecall.hosts.installation import is_unchanged, plan_removal, wiring_of
from rolecall.hosts.setup import is_ours, split_words
from rolecall.nexus import catalog
from rolecall.settings import capabilities, yaml12

SKILLS = ("--without", "skills")


def loaded(*path: str | os.PathLike[str]) -> Any:
    return json.loads(Path(*path).read_text(encoding="utf-8"))


def head_of(*path: str | os.PathLike[str]) -> dict[str, Any]:
    text = Path(*path).read_text(encoding="utf-8")
    assert is_unchanged(text)
    fields = yaml12.load(text.split("---\n")[1], source="head")
    assert isinstance(fields, dict)
    return fields


# -- where --


def test_in_a_project_the_commands_name_it_and_go_into_the_file_of_one_person(tmp_path: Path) -> None:
    setup = install("claude", setup_in(tmp_path))
    assert loaded(setup.project, ".mcp.json") == {
        "mcpServers": {
            "rolecall": {
                "type": "stdio",
                "command": COMMAND[0],
                "args": ["mcp", "--project", setup.project, *SKILLS],
            }
        }
    }
    written = loaded(setup.project, ".claude", "settings.local.json")
    assert written["enabledMcpjsonServers"] == ["rolecall"]
    assert set(written["hooks"]) == set(host.EVENTS)
    line = written["hooks"]["PreToolUse"][0]["hooks"][0]["command"]
    assert split_words(line)[:6] == (*COMMAND, "hook", "claude", "PreToolUse", "--project", setup.project)
    assert list(Path(setup.home).iterdir()) == []


@pytest.mark.parametrize("variable", ["", "CLAUDE_CONFIG_DIR"])
def test_for_a_user_they_name_none_and_go_where_claude_looks(tmp_path: Path, variable: str) -> None:
    other = tmp_path / "other config"
    setup = install(
        "claude", setup_in(tmp_path, scope="user", **({variable: str(other)} if variable else {}))
    )
    servers = other / ".claude.json" if variable else Path(setup.home) / ".claude.json"
    folder = other if variable else Path(setup.home) / ".claude"
    assert loaded(servers)["mcpServers"]["rolecall"]["args"] == ["mcp", *SKILLS]
    written = loaded(folder, "settings.json")
    assert split_words(written["hooks"]["Stop"][0]["hooks"][0]["command"])[:4] == (
        *COMMAND,
        "hook",
        "claude",
        "Stop",
    )
    assert "enabledMcpjsonServers" not in written
    assert (folder / "agents" / "tester.md").exists()
    assert list((tmp_path / "my project").rglob("*")) == []


def test_a_hook_that_fails_never_ends_with_the_code_that_blocks(tmp_path: Path) -> None:
    setup = install("claude", setup_in(tmp_path))
    hooks = loaded(setup.project, ".claude", "settings.local.json")["hooks"]
    for event, [entry, *_] in hooks.items():
        line = entry["hooks"][0]["command"]
        assert line.endswith(" || exit 127") is (event != "SessionEnd"), event


def test_a_hook_in_the_background_waits_for_the_threads_that_are_handed_over(tmp_path: Path) -> None:
    setup = install("claude", setup_in(tmp_path))
    hooks = loaded(setup.project, ".claude", "settings.local.json")["hooks"]
    assert {event: len(entries) for event, entries in hooks.items() if len(entries) > 1} == {"PostToolUse": 2}
    waits = hooks["PostToolUse"][1]
    (hook,) = waits["hooks"]
    assert hook["asyncRewake"] is True
    assert split_words(hook["command"]) == (
        *COMMAND,
        "hook",
        "claude",
        "ThreadEnd",
        "--project",
        setup.project,
    )
    for tool in ("workflow_run", "thread_run"):
        assert re.fullmatch(waits["matcher"], f"mcp__rolecall__{tool}")


# -- agents --


@pytest.mark.parametrize("agent", CATALOG.agents.values(), ids=lambda agent: agent.id)
def test_an_agent_is_denied_what_its_capabilities_deny_and_what_is_leads(
    tmp_path: Path, agent: catalog.CatalogAgent
) -> None:
    setup = install("claude", setup_in(tmp_path))
    path = Path(setup.project, ".claude", "agents", f"{agent.id}.md")
    head = head_of(path)
    assert head["name"] == agent.id
    denied = set(head["disallowedTools"].split(", "))
    classes = capabilities.denied_classes(agent.capabilities)
    own = {tool for name in classes for tool in DENIES.get(name, ())}
    assert denied == {*own, "Agent", "Task", "Workflow", "SendMessage", "ListAgents", "mcp__rolecall"}
    assert ("Write" in denied) is ("no_file_edit" in agent.capabilities)
    assert agent.body.strip() in path.read_text()


def test_an_agent_has_a_server_of_its_own_that_knows_whose_it_is(tmp_path: Path) -> None:
    setup = install("claude", setup_in(tmp_path))
    [server] = head_of(setup.project, ".claude", "agents", "tester.md")["mcpServers"]
    assert server == {
        "rolecall-tester": {
            "type": "stdio",
            "command": COMMAND[0],
            "args": ["mcp", "--project", setup.project, "--as", "tester"],
        }
    }
    allowed = loaded(setup.project, ".claude", "settings.local.json")["permissions"]["allow"]
    assert "mcp__rolecall-tester" in allowed
    assert not any("thread" in rule or "delete" in rule for rule in allowed)


# -- skills --


@pytest.mark.parametrize("skill", CATALOG.skills.values(), ids=lambda skill: skill.id)
def test_a_skill_is_in_claudes_own_words_and_a_manual_one_is_not_the_models_to_call(
    tmp_path: Path, skill: catalog.Skill
) -> None:
    setup = install("claude", setup_in(tmp_path))
    path = Path(setup.project, ".claude", "skills", skill.id, "SKILL.md")
    head = head_of(path)
    assert (head["name"], head["description"]) == (skill.id, skill.description)
    assert head.get("disable-model-invocation", False) is skill.manual_only
    assert "{{" not in path.read_text()


def test_skills_name_the_tools_that_claude_has_for_what_they_ask() -> None:
    text = claude.skill_file(CATALOG.skills["nx-run"], CATALOG)
    assert "Call the tool Skill with skill `nx-plan` and args `auto`." in text
    assert "Call the tool Agent with subagent_type `engineer`" in text
    assert "TASK: <title>" in text
    assert "those of the MCP server `rolecall`" in text


def test_every_skill_fits_into_what_a_hook_may_say(tmp_path: Path) -> None:
    for skill in CATALOG.skills.values():
        text = claude.skill_file(skill, CATALOG)
        assert len(text.encode(host.LIMIT.encoding)) < host.LIMIT.bytes, skill.id


# -- exactly that --


@hypothesis.settings(max_examples=25)
@given(st.data())
def test_values_of_others_survive_installing_and_uninstalling(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    setup = setup_in(tmp_path_factory.mktemp("place"))
    project = Path(setup.project)
    (project / ".claude").mkdir()
    paths = [project / ".mcp.json", project / ".claude" / "settings.local.json"]
    for path in paths:
        path.write_text(data.draw(texts(data.draw(settings()))), encoding="utf-8", newline="")
    before = [loaded(path) for path in paths]
    install("claude", setup)
    assert is_up_to_date("claude", setup)
    uninstall("claude", setup)
    after = [loaded(path) if path.exists() else {} for path in paths]
    assert [without_empty(one) for one in after] == [without_empty(one) for one in before]
    assert set(files_in(project)) <= {str(path) for path in paths}


OURS = ("mcpServers", "hooks", "permissions", "allow", "enabledMcpjsonServers", *host.EVENTS)


def without_empty(value: Any) -> Any:
    """The value without the empty objects and arrays that ours stand in, which go with them."""
    if not isinstance(value, dict):
        return value
    found = {key: without_empty(one) if key in OURS else one for key, one in value.items()}
    return {key: one for key, one in found.items() if key not in OURS or one not in ({}, [])}


def test_nothing_is_left_where_nothing_was(tmp_path: Path) -> None:
    for scope in ("project", "user"):
        setup = install("claude", setup_in(tmp_path, scope=scope))
        uninstall("claude", setup)
    assert files_in(tmp_path) == {}
    assert sorted(one.name for one in tmp_path.rglob("*")) == ["home", "my project"]


def test_what_was_installed_from_elsewhere_is_brought_up_to_date_and_not_doubled(tmp_path: Path) -> None:
    setup = install("claude", setup_in(tmp_path)._replace(command=("/old/bin/rolecall",)))
    install("claude", setup._replace(command=COMMAND))
    written = loaded(setup.project, ".claude", "settings.local.json")
    assert all(len(entries) == 1 + (event == "PostToolUse") for event, entries in written["hooks"].items())
    assert "/old/" not in json.dumps([written, loaded(setup.project, ".mcp.json")])


def test_rules_and_hooks_of_others_are_not_taken_for_ours(tmp_path: Path) -> None:
    setup = setup_in(tmp_path)
    theirs = {
        "permissions": {
            "allow": ["mcp__rolecall__thread_start", "Bash(rolecall hook claude:*)", "mcp__other"]
        },
        "hooks": {
            "Stop": [
                {"hooks": [{"type": "command", "command": "/usr/bin/not-rolecall hook claude Stop"}]},
                {"matcher": "x", "hooks": []},
                "nonsense",
            ]
        },
        "enabledMcpjsonServers": ["other"],
    }
    path = Path(setup.project, ".claude", "settings.local.json")
    path.parent.mkdir()
    path.write_text(json.dumps(theirs))
    install("claude", setup)
    uninstall("claude", setup)
    assert loaded(path) == theirs


def test_our_hook_among_others_hooks_stays_and_is_named(tmp_path: Path) -> None:
    setup = install("claude", setup_in(tmp_path))
    path = Path(setup.project, ".claude", "settings.local.json")
    written = loaded(path)
    written["hooks"]["Stop"][0]["hooks"].append({"type": "command", "command": "true"})
    path.write_text(json.dumps(written))
    found = {os.path.basename(one.path): one for one in plan_removal(wiring_of("claude", setup))}
    assert "hooks.Stop" in found["settings.local.json"].note


# -- words of a command --


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0")), min_size=1))
def test_a_command_for_a_shell_has_the_same_words_again(words: list[str]) -> None:
    assert split_words(shlex.join(words)) == tuple(words)


@pytest.mark.parametrize(
    ("words", "is_it"),
    [
        (["/opt/bin/rolecall", "hook", "claude", "Stop"], True),
        (["/usr/bin/python3.12", "-P", "-m", "rolecall", "hook", "claude", "Stop"], True),
        (["/opt/bin/rolecall", "hook", "codex", "Stop"], False),
        (["/opt/bin/norolecall", "hook", "claude"], False),
        (["sudo", "/opt/bin/rolecall", "hook", "claude"], False),
        (["hook", "claude"], False),
        ([], False),
    ],
)
def test_a_command_is_ours_when_it_starts_rolecall_with_that_verb(words: list[str], is_it: bool) -> None:
    assert is_ours(words, "hook", "claude") is is_it
