"""What a program is shown and may write in its sandbox, besides what the role may reach."""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from rolecall.agents import sandbox
from rolecall.agents.acp_presets import PRESETS
from rolecall.agents.adapters.command import command
from rolecall.agents.adapters.scripted import scripted
from rolecall.agents.contract import Recorder, context_for
from rolecall.agents.needs import STATES, confine, find_needs
from rolecall.agents.process import run
from rolecall.agents.protocol import ask
from rolecall.agents.sandbox import Needs, Policy
from rolecall.errors import AgentError
from rolecall.workflow.model import Sandbox

LAYERS = sandbox.find_layers()
needs_mounts = pytest.mark.skipif(not LAYERS.namespaces, reason="no namespaces can be made here")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    for name in (".ssh/key", ".claude/settings.json", "work/a.txt"):
        path = tmp_path / "home" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("kept\n")
    return tmp_path / "home"


def plan(home: Path, workdir: Path, *restrictions: str) -> Policy:
    made = sandbox.plan(
        Sandbox(), restrictions, workdir=workdir, env={"HOME": str(home)}, private=[], layers=LAYERS
    )
    assert made is not None
    return made


def shell(policy: Policy, command: str, home: Path, workdir: Path) -> str:
    env = {"HOME": str(home), "PATH": os.defpath}
    ended = asyncio.run(run(["/bin/sh", "-c", command], cwd=workdir, env=env, sandbox=policy))
    return ended.stdout + ended.stderr


@needs_mounts
def test_a_state_folder_in_a_hidden_place_can_be_written_but_not_its_settings(home: Path) -> None:
    own = home / ".claude"
    needs = Needs(write=(str(own),), protect=(str(own / "settings.json"),))
    policy = plan(home, home / "work").grant(needs)
    command = "cat ../.ssh/key; cd ../.claude; echo x > state; echo x > settings.json"
    said = shell(policy, command, home, home / "work")
    assert "kept" not in said
    assert (own / "state").read_text() == "x\n"
    assert (own / "settings.json").read_text() == "kept\n"


@needs_mounts
def test_a_hidden_place_in_the_work_folder_stays_hidden(home: Path) -> None:
    assert "kept" not in shell(plan(home, home), "echo x > b.txt; cat .ssh/key", home, home)
    assert (home / "b.txt").read_text() == "x\n"


# -- what each program needs --


@pytest.mark.parametrize(
    ("agent", "state", "settings"),
    [
        ("claude", ".claude", "settings.json"),
        ("codex", ".codex", "config.toml"),
        ("codex-acp", ".codex", "hooks.json"),
        ("opencode", ".local/share/opencode", "bin"),
        ("gemini", ".gemini", "settings.json"),
        ("qwen", ".qwen", "settings.json"),
        ("copilot", ".copilot", "mcp-config.json"),
        ("cursor", ".cursor", "hooks.json"),
        ("hermes", ".hermes", "config.yaml"),
    ],
)
def test_a_program_may_write_its_state_but_not_settings_that_run_commands(
    tmp_path: Path, agent: str, state: str, settings: str
) -> None:
    needs = find_needs(agent, env={"HOME": str(tmp_path)}, folder=tmp_path)
    assert needs.write[0] == str(tmp_path / state)
    assert str(tmp_path / state / settings) in [path.rstrip("/") for path in needs.protect]
    assert (tmp_path / state / settings).exists()  # otherwise the program could make it
    assert needs.env
    assert all(":" in host for host in needs.hosts)


def test_every_program_with_an_adapter_or_a_preset_says_what_it_needs() -> None:
    programs = {"claude", "codex", "opencode", "gemini", "qwen", "copilot", "cursor", "hermes"}
    assert set(STATES) == programs | set(PRESETS)


def test_settings_that_exist_are_left_as_they_are(home: Path) -> None:
    find_needs("claude", env={"HOME": str(home)}, folder=home)
    assert (home / ".claude/settings.json").read_text() == "kept\n"


@pytest.mark.parametrize(
    ("agent", "env", "hosts"),
    [
        ("claude", {"ANTHROPIC_BASE_URL": "http://gateway:8080/v1"}, ("gateway:8080",)),
        ("codex", {"CODEX_HOME": "own"}, ("models.example.org:443",)),
        ("opencode", {"OPENCODE_CONFIG": "own/config.toml"}, ("models.example.org:443",)),
        ("qwen", {"OPENAI_BASE_URL": "not an address"}, ("portal.qwen.ai:443",)),
    ],
)
def test_the_endpoint_comes_from_variables_and_settings(
    tmp_path: Path, agent: str, env: dict[str, str], hosts: tuple[str, ...]
) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own/config.toml").write_text(
        '[model_providers.mine]\nbase_url = "https://models.example.org/v1"\nenv_key = "MINE"\n'
    )
    needs = find_needs(agent, env={"HOME": str(tmp_path), **env}, folder=tmp_path)
    assert needs.hosts[: len(hosts)] == hosts
    assert ("MINE" in needs.env) == ("own" in str(env))


def test_a_program_that_can_do_without_its_key_gets_a_stand_in(tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path), "ANTHROPIC_API_KEY": "key-a", "CODEX_API_KEY": "key-b", "MINE": "key-c"}

    def summarize_needs(agent: str) -> tuple[list[tuple[str, str, str]], tuple[str, ...]]:
        needs = find_needs(agent, env=env, folder=tmp_path)
        return [(each.base_url, each.key, each.key_env) for each in needs.endpoints], needs.hosts

    assert summarize_needs("claude") == ([("https://api.anthropic.com", "key-a", "ANTHROPIC_API_KEY")], ())
    address = "https://api.openai.com/v1"
    assert summarize_needs("codex") == (
        [(address, "key-b", "CODEX_API_KEY")], ("chatgpt.com:443", "auth.openai.com:443"),
    )  # fmt: skip
    (tmp_path / ".codex/config.toml").write_text(
        'model_provider = "mine"\n[model_providers.mine]\nbase_url = "http://m:1/v1"\nenv_key = "MINE"\n'
    )
    assert summarize_needs("codex-acp") == ([("http://m:1/v1", "key-c", "MINE")], ())
    (tmp_path / ".claude/settings.json").write_text('{"apiKeyHelper": "get-key"}')
    assert summarize_needs("claude")[0] == []


def test_settings_of_the_project_name_no_endpoint_and_no_variable(tmp_path: Path) -> None:
    home, work = tmp_path / "home", tmp_path / "work"
    options = {"baseURL": "https://evil.example.org", "apiKey": "{env:OTHER_TOKEN}"}
    settings = json.dumps({"model": "mine/m", "provider": {"mine": {"options": options}}})
    for name in ("opencode.json", ".claude/settings.json", ".codex/config.toml", ".qwen/settings.json"):
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_text(settings)
    env = {"HOME": str(home), "OTHER_TOKEN": "another", "ANTHROPIC_API_KEY": "key"}
    for agent in STATES:
        needs = find_needs(agent, env=env, folder=work)
        assert "evil" not in f"{needs.hosts} {needs.endpoints}"
        assert "OTHER_TOKEN" not in needs.env


def test_a_program_in_a_hidden_place_is_shown_with_its_package(home: Path) -> None:
    package = home / ".ssh/lib/node_modules/agent"
    package.mkdir(parents=True)
    (package / "cli.sh").write_text("#!/bin/sh\ncat ../.ssh/lib/node_modules/other/part; cat ../.ssh/key\n")
    (package / "cli.sh").chmod(0o755)
    (home / ".ssh/lib/node_modules/other").mkdir()
    (home / ".ssh/lib/node_modules/other/part").write_text("a part\n")
    (home / ".ssh/bin").mkdir()
    (home / ".ssh/bin/agent").symlink_to("../lib/node_modules/agent/cli.sh")
    env = {"HOME": str(home), "PATH": f"{home}/.ssh/bin:{os.defpath}"}
    policy = confine(plan(home, home / "work"), "", "agent", env=env, folder=home / "work")
    ended = asyncio.run(run(["agent"], cwd=home / "work", env=env, sandbox=policy))
    assert ended.stdout == "a part\n", ended.stderr


# -- adapters --


@needs_mounts
def test_a_command_that_may_not_write_is_held_to_it_by_the_kernel(home: Path) -> None:
    agent = command(["sh", "-c", "echo x > b.txt; cat a.txt"])
    policy = plan(home, home / "work", "read_only")
    recorder = Recorder()
    context = replace(
        context_for(home / "work", recorder, env={"HOME": str(home), "PATH": os.defpath}),
        capabilities=("read_only",),
        sandbox=policy,
    )
    assert asyncio.run(ask(agent, "", context=context)).text == "kept\n"
    assert not (home / "work/b.txt").exists()
    assert "files: mounts" in policy.enforced


@needs_mounts
def test_the_variables_that_an_agent_is_given_pass_and_other_secrets_do_not(home: Path) -> None:
    agent = command("env", env={"OWN_TOKEN": "given"})
    env = {"HOME": str(home), "PATH": os.defpath, "OTHER_TOKEN": "another"}
    context = replace(context_for(home / "work", Recorder(), env=env), sandbox=plan(home, home / "work"))
    said = asyncio.run(ask(agent, "", context=context)).text
    assert "OWN_TOKEN=given" in said
    assert "OTHER_TOKEN" not in said


@needs_mounts
@pytest.mark.parametrize("restriction", ["", "read_only"])
def test_a_scripted_agent_is_held_to_its_sandbox(home: Path, restriction: str) -> None:
    script = home / "script.yaml"
    script.write_text(
        "roles: {worker: [{edit: {new.txt: text}, run: [[sh, -c, 'cat ../.ssh/key || echo hidden']], answer: done}]}"
    )
    words = (restriction,) if restriction else ()
    context = context_for(home / "work", Recorder(), env={"HOME": str(home), "PATH": os.defpath})
    context = replace(context, capabilities=words, sandbox=plan(home, home / "work", *words))
    asked = ask(scripted(script), "", context=context)
    if restriction:
        with pytest.raises(AgentError, match="cannot be changed by this role"):
            asyncio.run(asked)
        return
    reply = asyncio.run(asked)
    assert [call.result for turn in reply.turns for call in turn.tool_calls][1].startswith("hidden\n")
