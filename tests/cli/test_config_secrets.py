"""Secrets stand in the configuration in several places, and no error about the configuration shows one."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from rolecall import __main__ as program
from rolecall.settings import config, mask
from rolecall.workflow import document

SECRET = "sk-0a1b2c3d4e5f6071"
IN_ADDRESS = f"https://user:{SECRET}@models.example/v1"

WRONG: dict[str, Any] = {
    "key with a line break": {
        "extract": {"baseUrl": "http://127.0.0.1:9", "model": "m", "apiKey": f"{SECRET}\n"}
    },
    "key that is a list": {"extract": {"baseUrl": "http://127.0.0.1:9", "model": "m", "apiKey": [SECRET]}},
    "provider's key is a list": {"providers": {"p": {"baseUrl": "http://127.0.0.1:9", "apiKey": [SECRET]}}},
    "key in the place of a variable": {"extract": {"model": "m", "apiKeyEnv": f"{SECRET} "}},
    "provider's key in the place of a variable": {
        "providers": {"p": {"baseUrl": "http://127.0.0.1:9", "apiKeyEnv": SECRET}},
        "models": {"m": {"provider": "p", "name": "n"}},
        "defaultModel": "m",
        "defaultAgent": "builtin",
    },
    "password in an address that is none": {
        "extract": {"baseUrl": f"ftp://user:{SECRET}@host/", "model": "m"}
    },
    "password and no model": {"extract": {"baseUrl": IN_ADDRESS}},
    "password of a store": {
        "store": {"url": f"postgresql://user:{SECRET}@127.0.0.1:9/db", "durability": "sometimes"}
    },
    "password of a store that is unknown": {"store": f"postgre://user:{SECRET}@127.0.0.1:9/db"},
    "password of a store that does not answer": {"store": f"postgresql://user:{SECRET}@127.0.0.1:9/db"},
    "an agent's environment that is a text": {
        "agents": {"mine": {"adapter": "claude", "env": f"API_KEY={SECRET}"}},
        "defaultAgent": "mine",
    },
    "an agent's tool server without a command": {
        "agents": {"mine": {"adapter": "claude", "mcp": {"docs": {"args": ["--token", SECRET]}}}},
        "defaultAgent": "mine",
    },
    "an agent whose adapter is unknown": {
        "agents": {"mine": {"adapter": "clod", "env": {"API_KEY": SECRET}}},
        "defaultAgent": "mine",
    },
    "an agent's option that is unknown": {
        "agents": {"mine": {"adapter": "claude", "enw": {"API_KEY": SECRET}}},
        "defaultAgent": "mine",
    },
    "a key nobody knows": {"provders": {"p": {"apiKey": SECRET}}},
    "a setting nobody knows": {"project": {"apiKey": SECRET}},
}
BROKEN = {
    "quotes": f'providers:\n  p:\n    apiKey: "{SECRET}\n',
    "colon": f"providers:\n  p:\n    apiKey: a: {SECRET}\n",
    "indentation": f"providers:\n  p:\n   apiKey: {SECRET}\n  baseUrl: x\n    x: y\n",
    "twice": f"providers:\n  p:\n    apiKey: x\n    apiKey: {SECRET}\n",
    "no mapping": f"- {SECRET}\n",
}
READERS = (
    ["config", "set", "defaultModel", "x"],
    ["thread", "list"],
    ["run", "say-hello", "-p", "x"],
    ["agents", "test", "mine", "--yes"],
    ["agents", "test", "builtin", "--yes"],
    ["install", "claude", "--dry-run"],
    ["validate"],
    ["doctor"],
)

WORKFLOW = {
    "name": "say-hello",
    "description": "x",
    "roles": {"worker": {"goal": "Work.", "meta": {"type": "object"}, "agent": "command:echo hello"}},
    "graph": {"$START": "worker", "worker": "$END"},
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    project = tmp_path / "project"
    (project / ".workflows").mkdir(parents=True)
    (project / ".workflows" / "say-hello.yaml").write_text(json.dumps(WORKFLOW))
    (project / ".git").mkdir()
    (project / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("ROLECALL_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("ROLECALL_STORE", raising=False)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.chdir(project)
    return tmp_path / "home"


def leaks(capfd: pytest.CaptureFixture[str], *commands: list[str]) -> list[str]:
    """What commands print that holds the secret."""
    found = []
    for words in commands or READERS:
        with suppress(SystemExit):  # argparse's
            program.main(list(words))
        printed = "".join(capfd.readouterr())
        found += [f"{words}: {line}" for line in printed.splitlines() if SECRET in line]
    return found


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_setting_is_named_and_no_secret_of_it_is_shown(
    home: Path, capfd: pytest.CaptureFixture[str], wrong: str
) -> None:
    (home / "config.yaml").write_text(document.dump(WRONG[wrong]))
    assert leaks(capfd) == []


SECRET_PLACES: dict[str, Any] = {
    "providers": {"p": {"baseUrl": IN_ADDRESS, "apiKey": SECRET}},
    "extract": {"apiKeyEnv": SECRET, "baseUrl": IN_ADDRESS},
    "agents": {
        "mine": {
            "adapter": "claude",
            "env": {"API_KEY": SECRET},
            "mcp": {"docs": {"command": "x", "env": {"A_TOKEN": SECRET}}},
        }
    },
    "store": {"url": f"postgresql://user:{SECRET}@127.0.0.1:9/db"},
}


def test_every_place_of_a_secret_is_masked_in_the_list_and_by_the_mask(
    home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for section, value in SECRET_PLACES.items():
        (home / "config.yaml").write_text(document.dump({section: value}))
        assert leaks(capfd, ["config", "list"], ["config", "get", section]) == []
        assert SECRET not in config.mask().text(f"It is {SECRET}."), section


def test_a_configuration_is_only_read_for_secrets_where_it_may_have_some() -> None:
    variables = {"providers": {"p": {"baseUrl": "https://x.example", "apiKeyEnv": "P_API_KEY"}}}
    for text in (document.dump(variables), json.dumps(variables), ""):
        assert not mask.may_have_secrets(text)
    for section, value in SECRET_PLACES.items():
        for text in (document.dump({section: value}), json.dumps({section: value})):
            assert mask.may_have_secrets(text)
    assert mask.may_have_secrets("extract:\n  apiKeyEnv: A_KEY0a1b2c3d4e5f6071\n")


def test_the_names_of_roles_are_no_names_of_secrets(home: Path) -> None:
    overrides = {"agentOverrides": {"rotate-keys": {"token-auditor": "claude-opus"}}}
    (home / "config.yaml").write_text(document.dump(overrides))
    assert config.mask().text("claude-opus") == "claude-opus"


@pytest.mark.parametrize("broken", BROKEN)
def test_a_file_that_cannot_be_read_is_named_and_no_secret_of_it_is_shown(
    home: Path, capfd: pytest.CaptureFixture[str], broken: str
) -> None:
    (home / "config.yaml").write_text(BROKEN[broken])
    assert leaks(capfd) == []


@pytest.mark.parametrize("line", [SECRET, f"MY KEY={SECRET}", f"={SECRET}", f"export {SECRET}"])
def test_a_wrong_line_of_the_env_file_is_not_shown(
    home: Path, capfd: pytest.CaptureFixture[str], line: str
) -> None:
    (home / ".env").write_text(f"{line}\n")
    assert leaks(capfd) == []


def test_what_config_set_refuses_is_not_shown_where_it_may_be_a_secret(
    home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    given = {
        "extract.apiKey": f"{SECRET}\n",
        "extract.apiKeyEnv": f"{SECRET} ",
        "providers.p.apiKeyEnv": f"{SECRET} ",
        "providers.p.baseUrl": f"user:{SECRET}@models.example",
        "extract.baseUrl": f"ftp://user:{SECRET}@models.example",
        "store.url": f"postgresql://user:{SECRET}@host/db\n",
        "agents.mine.args": f"[{SECRET}]",
        "project.apiKey": SECRET,
    }
    for key, value in given.items():
        assert leaks(capfd, ["config", "set", key, value]) == []
