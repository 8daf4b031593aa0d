"""What the configuration means: agents, the extract endpoint and its key, known keys, masking."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rolecall.errors import UsageError
from rolecall.settings import mask, models, settings, yaml12
from rolecall.settings.yaml12 import Problem

PROVIDERS = {
    "openai": {"baseUrl": "https://openai/v1", "apiKeyEnv": "OPENAI_API_KEY"},
    "other": {"baseUrl": "https://other/v1", "apiKey": "other-key"},
    "bare": {"baseUrl": "http://localhost/v1"},
}
MODELS = {"cheap": {"provider": "other", "name": "model-s"}, "big": {"provider": "openai", "name": "model-l"}}
ENVIRONMENT = {"OPENAI_API_KEY": "env-openai", "EXTRACT_KEY": "env-extract", "BARE_API_KEY": "env-bare"}


def endpoint(extract: dict[str, Any] | None = None, role: dict[str, Any] | None = None, **rest: Any) -> Any:
    whole = {"providers": PROVIDERS, "models": MODELS, **rest, **({"extract": extract} if extract else {})}
    found = models.extract_endpoint(whole, ENVIRONMENT, role)
    return found and (found.base_url, found.model, found.api_key)


def problems_of(whole: dict[str, Any], *, adapters: tuple[str, ...]) -> tuple[Problem, ...]:
    return settings.problems(whole, json.dumps(whole, indent=1), source="c", adapters=adapters)


# -- agents --


def test_agents_are_chosen_by_option_then_override_then_role_then_default() -> None:
    configured = {"agentOverrides": {"solve": {"coder": "over"}}, "defaultAgent": "default"}

    def agent(role: str = "coder", named: str | None = "own", override: str | None = None) -> str:
        return settings.agent_for(configured, workflow="solve", role=role, named=named, override=override)

    assert agent(override="option") == "option"
    assert agent() == "over"
    assert agent("tester") == "own"
    assert agent("tester", named=None) == "default"
    with pytest.raises(UsageError, match="no agent is named for the role 'x'"):
        settings.agent_for({}, workflow="solve", role="x", named=None, override=None)


def test_an_alias_stands_for_an_adapter_with_options_or_an_external_command() -> None:
    configured = {
        "agents": {
            "h": {"command": "hermes", "args": ["-x", "a b"]},
            "fast": {"adapter": "claude", "model": "haiku"},
            "bad": {"args": []},
        }
    }
    assert settings.get_agent_spec(configured, "h") == ("external:hermes -x 'a b'", {"has_flags": True})
    assert settings.get_agent_spec(configured, "fast") == ("claude", {"model": "haiku"})
    assert settings.get_agent_spec(configured, "codex:o9") == ("codex:o9", {})
    with pytest.raises(UsageError, match="neither `adapter` nor `command`"):
        settings.get_agent_spec(configured, "bad")
    with pytest.raises(UsageError, match="must be a list"):
        settings.get_agent_spec({"agents": {"h": {"command": "x", "args": "-x"}}}, "h")


# -- the model of the built-in agent --

CONFIGURED = {"providers": PROVIDERS, "models": MODELS, "defaultModel": "cheap"}
KEYS = {**ENVIRONMENT, "ANTHROPIC_API_KEY": "env-anthropic", "OTHER_API_KEY": "env-other"}


def model(named: str | None, configured: dict[str, Any] | None = None) -> tuple[Any, ...]:
    found = models.model_endpoint(CONFIGURED if configured is None else configured, KEYS, named)
    return found.base_url, found.model, found.api_key, found.protocol


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        (None, ("https://other/v1", "model-s", "other-key", "openai")),
        ("big", ("https://openai/v1", "model-l", "env-openai", "openai")),
        ("other/model-x", ("https://other/v1", "model-x", "other-key", "openai")),
        ("bare/vendor/model-x", ("http://localhost/v1", "vendor/model-x", None, "openai")),
        ("anthropic/c", ("https://api.anthropic.com", "c", "env-anthropic", "anthropic")),
    ],
)
def test_a_model_is_an_alias_or_a_name_at_a_provider(named: str | None, expected: tuple[Any, ...]) -> None:
    assert model(named) == expected


def test_two_providers_need_no_configuration_and_their_keys_go_to_their_own_endpoint_alone() -> None:
    assert model("openai/g", {}) == ("https://api.openai.com/v1", "g", "env-openai", "openai")
    assert model("anthropic/c", {}) == ("https://api.anthropic.com", "c", "env-anthropic", "anthropic")
    for name in ("openai", "anthropic"):
        elsewhere = {"providers": {name: {"baseUrl": "https://elsewhere/v1"}}}
        assert model(f"{name}/m", elsewhere) == ("https://elsewhere/v1", "m", None, "openai")


def test_a_provider_says_what_its_endpoint_speaks() -> None:
    configured = {"providers": {"p": {"baseUrl": "https://p", "protocol": "anthropic"}}}
    assert model("p/m", configured)[3] == "anthropic"
    assert problems_of(configured, adapters=()) == ()
    wrong = {"providers": {"p": {"baseUrl": "https://p", "protocol": "gopher"}}}
    found = [one.message for one in problems_of(wrong, adapters=())]
    assert found == ["providers.p.protocol must be one of openai, anthropic"]


@pytest.mark.parametrize(
    ("named", "configured", "message"),
    [
        (None, {}, "no model is named"),
        ("chaep", CONFIGURED, "no model 'chaep'"),
        ("/m", CONFIGURED, "no model '/m'"),
        ("other/", CONFIGURED, "no model 'other/'"),
        ("othr/m", CONFIGURED, "no provider 'othr'"),
        ("m", {"models": {"m": {"provider": "other"}}}, "needs a `provider` and a `name`"),
        ("p/m", {"providers": {"p": {"apiKey": "k"}}}, "'p' has no `baseUrl`"),
        (
            "p/m",
            {"providers": {"p": {"baseUrl": "http://x", "apiKeyEnv": "NOT_SET"}}},
            "'NOT_SET'.* is not set",
        ),
    ],
)
def test_a_model_that_cannot_be_found_is_an_error_that_names_it(
    named: str | None, configured: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        model(named, configured)


def test_a_public_provider_without_its_key_is_an_error_that_names_the_variable() -> None:
    with pytest.raises(
        UsageError, match=r"'ANTHROPIC_API_KEY'.*the provider 'anthropic', is not set"
    ) as caught:
        models.model_endpoint({}, {"OPENAI_API_KEY": "k", "ROLECALL_HOME": "/home"}, "anthropic/c")
    assert "`ANTHROPIC_API_KEY=…` into /home/.env" in caught.value.hint
    assert "openai (OPENAI_API_KEY), anthropic (ANTHROPIC_API_KEY)" in caught.value.hint


def test_a_provider_that_is_not_known_is_an_error_that_names_those_that_are() -> None:
    configured = {"providers": {"mine": {"baseUrl": "https://x"}}}
    with pytest.raises(UsageError, match="no provider 'opnai'") as caught:
        models.model_endpoint(configured, {}, "opnai/m")
    assert caught.value.hint == (
        "Did you mean 'openai'? In the configuration: mine. Built in: openai (OPENAI_API_KEY), "
        "anthropic (ANTHROPIC_API_KEY). Add another, or write it under `providers` in ~/.rolecall/config.yaml."
    )


def test_a_built_in_provider_that_speaks_openai_can_read_answers() -> None:
    extract = {"extract": {"provider": "openai", "model": "m"}}
    found = models.extract_endpoint(extract, {"OPENAI_API_KEY": "k"})
    assert found is not None and (found.base_url, found.api_key) == ("https://api.openai.com/v1", "k")
    with pytest.raises(UsageError, match="no provider 'anthropic'") as caught:
        models.extract_endpoint({"extract": {"provider": "anthropic", "model": "m"}}, {})
    assert "Built in: openai (OPENAI_API_KEY). " in caught.value.hint


def test_the_built_in_agent_takes_its_endpoint_from_a_provider_alone() -> None:
    found = models.builtin_options(CONFIGURED, KEYS, {"model": "big", "max_turns": 5})
    assert found == {
        "max_turns": 5,
        "model": "model-l",
        "base_url": "https://openai/v1",
        "api_key": "env-openai",
        "protocol": "openai",
    }
    for key in ("base_url", "base-url", "api_key", "api-key", "protocol"):
        with pytest.raises(UsageError, match="from a provider") as caught:
            models.builtin_options(CONFIGURED, KEYS, {"model": "big", key: "https://elsewhere"})
        assert "elsewhere" not in caught.value.message + caught.value.hint


# -- the extract endpoint --


@pytest.mark.parametrize(
    ("extract", "role", "expected"),
    [
        ({"provider": "openai", "model": "m"}, None, ("https://openai/v1", "m", "env-openai")),
        ({"model": "cheap"}, None, ("https://other/v1", "model-s", "other-key")),
        ({"baseUrl": "http://x/v1", "model": "m"}, None, ("http://x/v1", "m", None)),
        (
            {"baseUrl": "http://x/v1", "model": "m", "apiKeyEnv": "EXTRACT_KEY"},
            None,
            ("http://x/v1", "m", "env-extract"),
        ),
        ({"provider": "other", "model": "m"}, {"model": "n"}, ("https://other/v1", "n", "other-key")),
        (
            {"provider": "other", "model": "m"},
            {"apiKeyEnv": "EXTRACT_KEY"},
            ("https://other/v1", "m", "env-extract"),
        ),
        (
            {"provider": "other", "model": "m"},
            {"model": "big"},
            ("https://openai/v1", "model-l", "env-openai"),
        ),
        (None, {"model": "big"}, ("https://openai/v1", "model-l", "env-openai")),
    ],
)
def test_a_role_overrides_what_it_names_and_takes_the_rest_from_extract(
    extract: dict[str, Any] | None, role: dict[str, Any] | None, expected: tuple[str, str, str | None]
) -> None:
    assert endpoint(extract, role) == expected


@pytest.mark.parametrize(
    ("extract", "role"),
    [
        # A role that names another endpoint does not get the key of the general one.
        ({"baseUrl": "https://a/v1", "model": "m", "apiKey": "secret"}, {"baseUrl": "https://b/v1"}),
        ({"provider": "other", "model": "m"}, {"baseUrl": "https://b/v1"}),
        # Nor does an address of its own get the key of the provider beside it.
        ({"provider": "other", "baseUrl": "https://b/v1", "model": "m"}, None),
        ({"provider": "openai", "baseUrl": "https://b/v1", "model": "m"}, None),
        # Nor is a variable guessed from the name of a provider.
        ({"provider": "bare", "model": "m"}, None),
        ({"provider": "openai", "model": "m"}, {"provider": "bare"}),
    ],
)
def test_a_key_never_goes_to_an_endpoint_it_was_not_meant_for(
    extract: dict[str, Any], role: dict[str, Any] | None
) -> None:
    assert endpoint(extract, role)[2] is None


def test_without_extract_the_model_of_the_scene_counts_then_the_default() -> None:
    assert endpoint() is None
    assert endpoint(defaultModel="cheap")[1] == "model-s"
    assert endpoint(defaultModel="cheap", modelOverrides={"extract": "big"})[1] == "model-l"
    assert endpoint(defaultModel="cheap", models={**MODELS, "extract": MODELS["big"]})[1] == "model-l"


@pytest.mark.parametrize(
    ("extract", "rest", "message"),
    [
        ({"model": "m"}, {}, "needs a model and a base URL"),
        ({"baseUrl": "http://x"}, {}, "needs a model and a base URL"),
        ({"provider": "opnai", "model": "m"}, {}, "no provider 'opnai'"),
        ({"baseUrl": "http://x", "model": "m", "apiKeyEnv": "NOT_SET"}, {}, "'NOT_SET'.* is not set"),
        ({"baseUrl": "http://x", "model": "m", "base_url": "y"}, {}, "'base_url' is not a key of extract"),
        ({"baseUrl": "http://x", "model": "m", "timeout": "soon"}, {}, "extract.timeout must be"),
        (None, {"defaultModel": "chaep"}, "no model 'chaep'"),
    ],
)
def test_a_wrong_endpoint_is_an_error_that_names_it(
    extract: dict[str, Any] | None, rest: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        endpoint(extract, **rest)


def test_the_timeout_comes_from_the_nearest_level() -> None:
    whole = {"extract": {"baseUrl": "http://x", "model": "m", "timeout": 5}}
    found = [models.extract_endpoint(whole, {}, role) for role in ({}, {"timeout": 7.5})]
    assert [one and one.timeout for one in found] == [5.0, 7.5]


# -- keys --


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("defaultAgent", "command:x y", "command:x y"),
        ("providers.a.baseUrl", "https://x/v1", "https://x/v1"),
        ('models."gpt-4.1".name', "gpt-4.1", "gpt-4.1"),
        ("agents.h.args", '["-a", "b c"]', ["-a", "b c"]),
        ("agents.h.args", "[]", []),
        ("extract.timeout", "2.5", 2.5),
        ("store.durability", "always", "always"),
        ("providers.a.protocol", "anthropic", "anthropic"),
    ],
)
def test_values_are_typed_by_their_key(key: str, text: str, value: Any) -> None:
    assert settings.value_from(text, settings.path_of(key)) == value
    assert settings.key_of(settings.path_of(key)) == key


@pytest.mark.parametrize(
    ("key", "text", "message"),
    [
        ("agents.h.args", "-a", "JSON array"),
        ("agents.h.args", "[1]", "args.0 must be text"),
        ("agents.h", "x", "is a section"),
        ("agents", "x", "is a section"),
        ("extract.timeout", "0", "above 0"),
        ("extract.timeout", "nan", "above 0"),
        ("providers.a.baseUrl", "openrouter.ai", "http://"),
        ("providers.a.apiKeyEnv", "sk-123", "environment variable"),
        ("store.durability", "sometimes", "one of always"),
        ("providers.a.protocol", "gopher", "one of openai"),
        ("defaultAgent", " ", "must be text"),
        ("defaultAgent", "a\nb", "must be text"),
        ("defaultAgent.x", "y", "single value"),
        ("defautAgent", "y", "is not a key"),
        ("", "y", "is not a key"),
        ("a..b", "y", "is not a key"),
    ],
)
def test_wrong_keys_and_values_are_refused(key: str, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        settings.value_from(text, settings.path_of(key))


def test_a_misspelt_key_gets_a_guess() -> None:
    with pytest.raises(UsageError) as caught:
        settings.kind_of(("providers", "x", "baseURL"))
    assert "Did you mean 'baseUrl'?" in caught.value.hint


def test_a_refused_key_does_not_show_the_secret() -> None:
    with pytest.raises(UsageError) as caught:
        settings.value_from("sk-secret\n", ("providers", "x", "apiKey"))
    assert "sk-secret" not in caught.value.message + caught.value.hint


def test_problems_of_a_file_are_all_named() -> None:
    whole = {
        "defautAgent": "x",
        "defaultAgent": "nobody",
        "agents": {"h": {"command": 5}},
        "agentOverrides": {"solve": {"coder": "hh"}},
        "models": {"m": {"provider": "p", "name": "n"}},
        "extract": [],
        "store": "/srv/x.db",
    }
    found = problems_of(whole, adapters=("human",))
    assert [one.message.split(":")[0].split(" ")[0] for one in found] == [
        "'defautAgent'",
        "defaultAgent",
        "agents.h.command",
        "agentOverrides.solve.coder",
        "models.m.provider",
        "extract",
    ]
    assert "Did you mean 'h'?" in found[3].hint
    assert problems_of({"defaultAgent": "human", "store": "/x"}, adapters=("human",)) == ()


def test_every_problem_of_a_file_has_its_line_and_column() -> None:
    text = """\
# mine
defautAgent: claude
models:
  fast: {provider: nowhere, nam: gpt}
memory:
  unreadDays: soon
"""
    found = settings.problems(yaml12.load(text), text, source="config.yaml", adapters=())
    assert [f"{one.place}: {one.message}" for one in found] == [
        "config.yaml:2:1: 'defautAgent' is not a key of the configuration",
        "config.yaml:4:20: models.fast.provider: there is no provider 'nowhere'",
        "config.yaml:4:29: 'nam' is not a key of a model",
        "config.yaml:6:15: memory.unreadDays must be a whole number of 0 or more",
    ]


def test_the_text_of_a_sound_configuration_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the text is read again")

    monkeypatch.setattr(yaml12, "read", refuse)
    sound = {"defaultAgent": "human", "store": "/x"}
    assert settings.problems(sound, "…", source="c", adapters=("human",)) == ()


def test_a_text_in_the_wrong_place_is_not_shown_because_it_may_be_a_key() -> None:
    key = "sk-0123456789abcdef"
    wrong = {"providers": key, "agents": {"a": key}, "extract": key, "project": {"unplannedEdits": key}}
    found = problems_of({**wrong, "memory": {"unreadDays": key, "autoDelete": key}}, adapters=())
    assert len(found) == 6 and key not in str(found)
    assert "providers must be a mapping" in [one.message for one in found]


def test_a_section_that_may_be_a_path_names_its_keys() -> None:
    with pytest.raises(UsageError, match="store is a section") as raised:
        settings.value_from("/x", ("store",))
    assert raised.value.hint == "Set one of its keys: store.NAME with NAME of url, durability."


def test_keys_and_passwords_are_masked_and_nothing_else() -> None:
    whole = {
        "providers": {"a": {"apiKey": "k", "apiKeyEnv": "A_KEY"}, "b": {"apiKey": ""}},
        "store": {"url": "postgresql://me:pw@host/db"},
        "list": ["http://u:p@x/"],
    }
    assert mask.hide_secrets(whole, "***") == {
        "providers": {"a": {"apiKey": "***", "apiKeyEnv": "A_KEY"}, "b": {"apiKey": ""}},
        "store": {"url": "postgresql://me:***@host/db"},
        "list": ["http://u:***@x/"],
    }
