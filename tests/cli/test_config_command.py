"""`rolecall config` and `rolecall setup` as a user meets them, with a terminal and without."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml
from terminal import Terminal

if TYPE_CHECKING:
    from conftest import Rolecall

KEY = "sk-test-0123456789"
MASKED = "***MASKED***"
PROGRAM = str(Path(sys.executable).parent / "rolecall")


def assert_error(done: subprocess.CompletedProcess[str], code: int, *parts: str) -> None:
    assert done.returncode == code, (done.stdout, done.stderr)
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    for part in parts:
        assert part in done.stderr


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


# -- config --


def test_set_get_and_list_answer_like_the_predecessor(rolecall: Rolecall) -> None:
    url = "https://openrouter.ai/api/v1"
    done = rolecall.json("config", "set", "providers.openrouter.baseUrl", url)
    assert done == {"key": "providers.openrouter.baseUrl", "value": url}
    assert rolecall.json("config", "get", "providers.openrouter.baseUrl") == {"value": url}
    assert rolecall.json("config", "set", "agents.hermes.args", '["--a", "b c"]')["value"] == ["--a", "b c"]
    assert rolecall.json("config", "list") == {
        "providers": {"openrouter": {"baseUrl": url}},
        "agents": {"hermes": {"args": ["--a", "b c"]}},
    }
    assert mode(rolecall.home / "config.yaml") == 0o600


def test_keys_are_masked_until_they_are_asked_for(rolecall: Rolecall) -> None:
    done = rolecall("config", "set", "providers.a.apiKey", "-", "--json", input=KEY + "\n", check=0)
    assert json.loads(done.stdout) == {"key": "providers.a.apiKey", "value": MASKED}
    assert "apiKeyEnv" in done.stderr
    assert KEY not in done.stdout + done.stderr
    for arguments in (
        ["list"],
        ["get", "providers"],
        ["get", "providers.a.apiKey"],
        ["list", "--format", "text"],
    ):
        shown = rolecall("config", *arguments, check=0).stdout
        assert MASKED in shown
        assert KEY not in shown
    assert rolecall.json("config", "get", "providers.a.apiKey", "--reveal") == {"value": KEY}


def test_secrets_of_the_environment_are_masked_wherever_they_stand(rolecall: Rolecall) -> None:
    rolecall("config", "set", "agents.a.args", json.dumps([f"--key={KEY}"]), check=0)
    shown = rolecall.json("config", "list", env={"MY_API_KEY": KEY})
    assert shown == {"agents": {"a": {"args": [f"--key={MASKED}"]}}}


def test_comments_stay_where_they_are(rolecall: Rolecall) -> None:
    rolecall.home.mkdir()
    file = rolecall.home / "config.yaml"
    file.write_text("# mine\ndefaultAgent: human # for now\n\nstore: x.db\n")
    rolecall("config", "set", "defaultAgent", "command:cat", check=0)
    assert file.read_text() == "# mine\ndefaultAgent: command:cat # for now\n\nstore: x.db\n"
    rolecall("config", "unset", "store", check=0)
    assert file.read_text() == "# mine\ndefaultAgent: command:cat # for now\n\n"


@pytest.mark.parametrize(
    ("arguments", "code", "parts"),
    [
        (["set", "defautAgent", "x"], 2, ["'defautAgent' is not a key", "Did you mean 'defaultAgent'?"]),
        (["set", "defaultAgent", "nobody"], 2, ["there is no agent 'nobody'", "Nothing was changed"]),
        (["set", "agentOverrides.solve.coder", "nobody"], 2, ["there is no agent 'nobody'"]),
        (["set", "models.m.provider", "nowhere"], 2, ["there is no provider 'nowhere'"]),
        (["set", "defaultModel", "m"], 2, ["there is no model 'm'"]),
        (["set", "agents.h.args", "yes"], 2, ["JSON array"]),
        (["set", "providers", "x"], 2, ["is a section"]),
        (["get", "nothing"], 2, ["is not a key"]),
        (["get", "defaultAgent"], 3, ["defaultAgent is not set"]),
        (["unset", "defaultAgent"], 3, ["defaultAgent is not set"]),
    ],
)
def test_wrong_requests_change_nothing(
    rolecall: Rolecall, arguments: list[str], code: int, parts: list[str]
) -> None:
    assert_error(rolecall("config", *arguments), code, *parts)
    assert not (rolecall.home / "config.yaml").exists()


def test_list_warns_of_what_the_file_should_not_have(rolecall: Rolecall) -> None:
    rolecall.home.mkdir()
    (rolecall.home / "config.yaml").write_text("defautAgent: x\ndefaultAgent: nobody\n")
    done = rolecall("config", "list", check=0)
    assert f"{rolecall.home}/config.yaml:1:1: 'defautAgent' is not a key" in done.stderr
    assert f"{rolecall.home}/config.yaml:2:15: defaultAgent: there is no agent 'nobody'" in done.stderr
    assert "Did you mean 'defaultAgent'?" in done.stderr
    assert "there is no agent 'nobody'" in done.stderr
    rolecall("config", "unset", "defautAgent", check=0)
    assert (rolecall.home / "config.yaml").read_text() == "defaultAgent: nobody\n"


# -- setup by flags --


def test_setup_by_flags_keeps_the_key_out_of_the_configuration(rolecall: Rolecall) -> None:
    flags = ["--provider", "openrouter", "--model", "some/model", "--agent", "human", "--api-key", "-"]
    done = rolecall("setup", *flags, input=KEY + "\n", check=0)
    assert KEY not in done.stdout + done.stderr
    config, env = rolecall.home / "config.yaml", rolecall.home / ".env"
    assert yaml.safe_load(config.read_text()) == {
        "defaultAgent": "human",
        "providers": {
            "openrouter": {"baseUrl": "https://openrouter.ai/api/v1", "apiKeyEnv": "OPENROUTER_API_KEY"}
        },
        "models": {"default": {"provider": "openrouter", "name": "some/model"}},
        "defaultModel": "default",
    }
    assert env.read_text() == f"OPENROUTER_API_KEY={KEY}\n"
    assert (mode(config), mode(env)) == (0o600, 0o600)
    before = (config.read_text(), env.read_text())
    rolecall("setup", *flags, input=KEY + "\n", check=0)
    rolecall("setup", *flags[:4], check=0)
    assert (config.read_text(), env.read_text()) == before
    assert rolecall("config", "list", check=0).stderr == ""


def test_setup_replaces_a_key_that_stood_in_the_configuration(rolecall: Rolecall) -> None:
    rolecall("config", "set", "providers.me.apiKey", "old-key-0123", check=0)
    rolecall(
        "setup", "--provider", "me", "--base-url", "http://x/v1", "--model", "m", "--api-key", KEY, check=0
    )
    assert "old-key" not in (rolecall.home / "config.yaml").read_text()
    rolecall("setup", "--provider", "me", "--model", "m", "--api-key", "", check=0)
    assert "apiKey" not in (rolecall.home / "config.yaml").read_text()


@pytest.mark.parametrize(
    ("flags", "code", "parts"),
    [
        ([], 2, ["not a terminal", "--agent", "--provider", "--base-url", "--model", "--api-key"]),
        (["--provider", "me"], 2, ["--base-url, --model, --api-key"]),
        (["--model", "m", "--agent", "human"], 2, ["--provider, --base-url, --api-key"]),
        (["--agent", "hunam"], 3, ["there is no agent 'hunam'", "Did you mean 'human'?"]),
        (["--provider", "me", "--base-url", "x", "--model", "m", "--api-key", "k"], 2, ["http://"]),
        (["--provider", "a.b", "--base-url", "http://x", "--model", "m", "--api-key", "k"], 2, ["'a.b'"]),
    ],
)
def test_setup_refuses_before_it_writes(
    rolecall: Rolecall, flags: list[str], code: int, parts: list[str]
) -> None:
    assert_error(rolecall("setup", *flags), code, *parts)
    assert not rolecall.home.exists()


def test_setup_finds_the_agents_that_are_installed(rolecall: Rolecall, tmp_path: Path) -> None:
    program = tmp_path / "bin" / "qwen"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    path = f"{program.parent}:{Path(sys.executable).parent}"
    done = rolecall.json("setup", "--agent", "human", env={"PATH": path})
    assert done["programs"] == [{"program": "qwen", "path": str(program), "adapter": "qwen"}]


# -- setup on a terminal --


def test_setup_asks_on_a_terminal_and_does_not_show_the_key(rolecall: Rolecall) -> None:
    terminal = Terminal("setup", home=rolecall.home)
    shown = ""
    for question, answer in (
        ("Agent that plays roles", "human"),
        ("Provider of the model", "openai"),
        ("Base URL [https://api.openai.com/v1]: ", ""),
        ("Model: ", "some-model"),
        ("Key of openai (not shown; Enter: none): ", KEY),
    ):
        terminal.expect(question)
        shown += terminal.seen
        terminal.type(answer + "\n")
    assert terminal.close() == 0
    assert KEY not in shown + terminal.seen
    assert "defaultAgent = human" in terminal.seen
    assert (rolecall.home / ".env").read_text() == f"OPENAI_API_KEY={KEY}\n"
    assert rolecall.json("config", "get", "models.default")["value"] == {
        "provider": "openai",
        "name": "some-model",
    }


def test_setup_offers_what_is_set_and_empty_answers_keep_it(rolecall: Rolecall) -> None:
    flags = ["--provider", "openai", "--model", "m1", "--agent", "human", "--api-key", KEY]
    rolecall("setup", *flags, check=0)
    before = (rolecall.home / "config.yaml").read_text()
    terminal = Terminal("setup", home=rolecall.home)
    for question in (
        "[human]: ",
        "[openai]: ",
        "[https://api.openai.com/v1]: ",
        "[m1]: ",
        "keep the present one",
    ):
        terminal.expect(question)
        terminal.type("\n")
    assert terminal.close() == 0
    assert (rolecall.home / "config.yaml").read_text() == before
    assert (rolecall.home / ".env").read_text() == f"OPENAI_API_KEY={KEY}\n"


def test_setup_refuses_a_wrong_answer_at_its_question(rolecall: Rolecall) -> None:
    terminal = Terminal("setup", home=rolecall.home)
    for question, answer in (
        ("Agent that plays roles by default (Enter: none): ", "claud"),
        ("Did you mean 'claude'?", "human"),
        ("Provider of the model that reads answers (Enter: none): ", "my.own"),
        ("'my.own' is not a name for a provider", "mine"),
        ("Base URL: ", ""),
        ("An answer is needed.", "localhost:1"),
        ("begins with http:// or https://", "http://localhost:1/v1"),
        ("Model: ", ""),
        ("An answer is needed.", "small"),
        ("Enter: none): ", "two words"),
    ):
        terminal.expect(question)
        terminal.type(answer + "\n")
    terminal.expect("A key has only ASCII characters")
    terminal.expect("Enter: none): ")  # what is typed before a key is asked for is thrown away
    terminal.type("\n")
    assert terminal.close() == 0
    assert rolecall.json("config", "get", "providers.mine.baseUrl")["value"] == "http://localhost:1/v1"
    assert rolecall.json("config", "get", "defaultAgent")["value"] == "human"


def test_enter_at_a_question_of_setup_means_what_the_question_says(rolecall: Rolecall) -> None:
    rolecall("setup", "--agent", "human", check=0)
    terminal = Terminal("setup", home=rolecall.home)
    for question, answer in (("(-: none) [human]: ", ""), ("reads answers (Enter: none): ", "")):
        terminal.expect(question)
        terminal.type(answer + "\n")
    assert terminal.close() == 0
    assert rolecall.json("config", "get", "defaultAgent")["value"] == "human"
    terminal = Terminal("setup", home=rolecall.home)
    for question, answer in (("(-: none) [human]: ", "-"), ("reads answers (Enter: none): ", "")):
        terminal.expect(question)
        terminal.type(answer + "\n")
    assert terminal.close() == 0
    assert "defaultAgent is not set any more" in terminal.seen
    assert "defaultAgent" not in (rolecall.home / "config.yaml").read_text()


def test_setup_that_is_left_writes_nothing(rolecall: Rolecall) -> None:
    terminal = Terminal("setup", home=rolecall.home)
    terminal.expect("Agent that plays roles")
    terminal.type("human\n")
    terminal.expect("Provider of the model")
    terminal.type("\x04")
    assert terminal.close() == 2
    assert "Nothing was written" in terminal.seen
    assert not rolecall.home.exists()


def test_values_are_shown_as_they_can_be_typed(rolecall: Rolecall) -> None:
    shown = rolecall("config", "set", "notify.command", '["ntfy", "{text}"]', check=0).stdout
    assert shown == 'notify.command = ["ntfy", "{text}"]\n'
    assert rolecall("config", "set", "notify.desktop", "false", check=0).stdout == "notify.desktop = false\n"
    assert rolecall("config", "get", "notify.command", check=0).stdout == '["ntfy", "{text}"]\n'
    assert rolecall("config", "get", "notify", check=0).stdout.splitlines()[0] == "command:"
