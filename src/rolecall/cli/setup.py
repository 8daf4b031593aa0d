"""`rolecall setup`: write the first configuration, from flags or by asking at a terminal.

A key is stored in the `.env` file of Rolecall's home, which only the owner can read. `config.yaml` contains only the
name of the environment variable.
"""

from __future__ import annotations

import os
from argparse import Namespace
from getpass import getpass
from pathlib import Path
from typing import NamedTuple

from rolecall.agents import ADAPTERS, PROGRAMS
from rolecall.agents.presence import find_program
from rolecall.cli import CommandResult, argument, asking, verb
from rolecall.cli.config import find_setting
from rolecall.cli.output import read_input, tell
from rolecall.errors import UsageError
from rolecall.settings import config, config_file
from rolecall.settings.settings import Path as Key
from rolecall.settings.settings import Settings, is_known_agent, unknown_agent, value_from

BASE_URLS = {
    "openrouter": "https://openrouter.ai/api/v1",
    "openai": "https://api.openai.com/v1",
    "deepseek": "https://api.deepseek.com/v1",
    "ollama": "http://localhost:11434/v1",
}

MODEL = "default"
"""The alias of the model in the configuration."""

_PROVIDER_FLAGS = ("provider", "base_url", "model", "api_key")
_AGENTS = (*ADAPTERS, "human")


class Answers(NamedTuple):
    provider: str | None
    base_url: str | None
    api_key: str | None
    """The key to store. None keeps the current key; an empty string means that no key is needed."""
    model: str | None
    agent: str | None
    """The default agent. None keeps the current agent; an empty string removes it."""


@verb(
    "setup",
    "configure a provider, a model and an agent; asks on a terminal when no option is given",
    "rolecall setup\nrolecall setup --agent command:./agent.sh\n"
    "rolecall setup --provider openrouter --model qwen/qwen3-coder --api-key - < key.txt",
    argument("--provider", "NAME", "a provider of models, such as openrouter"),
    argument("--base-url", "URL", "its OpenAI-compatible address (known for some providers)"),
    argument("--api-key", "KEY", "its key; - reads it from standard input, so that no process list shows it"),
    argument("--model", "NAME", "the model, by the provider's name for it"),
    argument("--agent", "NAME", "the agent that plays roles by default"),
)
def setup(options: Namespace) -> CommandResult:
    settings, environment = config.load(), config.environment()
    programs = []
    for name, program in PROGRAMS.items():
        path, can_run = find_program(program, env=environment, folder=Path.cwd())
        if path is not None and can_run:
            programs.append({"program": program, "path": path, "adapter": name})
    if any(getattr(options, flag) is not None for flag in (*_PROVIDER_FLAGS, "agent")):
        answers = _from_flags(options, settings, environment)
    elif asking.can_ask():
        answers = _ask(settings, environment, programs)
    else:
        raise UsageError(
            "this is not a terminal, so nothing can be asked: give --agent, or --provider, --base-url, --model "
            "and --api-key",
            hint="For instance: rolecall setup --agent command:./agent.sh",
        )
    if answers.agent:
        _check_agent(answers.agent, settings)
    if answers.provider is not None:
        _check_provider(answers.provider)
        value_from(answers.base_url or "", ("providers", answers.provider, "baseUrl"))
        value_from(answers.model or "", ("models", MODEL, "name"))
    elif not answers.agent and not settings.get("defaultAgent"):
        raise UsageError("there is nothing to set up", hint="Name an agent or a provider.")
    shown = {**_write(answers, settings), "programs": programs}
    lines = [f"written to {shown['config']}:"]
    lines += [f"  {key} = {value}" for key, value in shown["written"].items()]
    lines += [f"  {key} is not set any more" for key in shown["removed"]]
    if shown["env"]:
        lines.append(f"the key is in {shown['env']} as {shown['variable']}")
    return CommandResult(shown, [*lines, "Next: rolecall doctor, then rolecall run WORKFLOW -p TASK"])


def _provider(settings: Settings, name: str) -> Settings:
    entry = (settings.get("providers") or {}).get(name)
    return entry if isinstance(entry, dict) else {}


def _known_url(settings: Settings, provider: str) -> str | None:
    return _provider(settings, provider).get("baseUrl") or BASE_URLS.get(provider)


def _has_key(settings: Settings, environment: dict[str, str], provider: str) -> bool:
    entry = _provider(settings, provider)
    return bool(entry.get("apiKey") or environment.get(entry.get("apiKeyEnv") or _variable(provider)))


def _variable(provider: str) -> str:
    name = "".join(character if character.isalnum() else "_" for character in provider.upper())
    return f"{name}_API_KEY" if name[:1].isalpha() else f"_{name}_API_KEY"


def _from_flags(options: Namespace, settings: Settings, environment: dict[str, str]) -> Answers:
    if all(getattr(options, flag) is None for flag in _PROVIDER_FLAGS):
        return Answers(None, None, None, None, options.agent)
    provider = options.provider
    base_url = options.base_url or _known_url(settings, provider or "")
    key = options.api_key
    has_key = key is not None or _has_key(settings, environment, provider or "")
    wanted = {"--provider": provider, "--base-url": base_url, "--model": options.model, "--api-key": has_key}
    missing = [flag for flag, value in wanted.items() if not value]
    if missing:
        raise UsageError(
            f"setup also needs {', '.join(missing)}",
            hint=f"Addresses are known for {', '.join(BASE_URLS)}. "
            'For a provider without a key, give an empty one: --api-key "".',
        )
    return Answers(provider, base_url, read_input(key).strip() if key else key, options.model, options.agent)


def _ask(settings: Settings, environment: dict[str, str], programs: list[dict[str, str]]) -> Answers:
    """Ask for the settings. Each answer is checked immediately, and a wrong answer is asked for again."""
    for one in programs:
        tell(f"found {one['program']} ({one['path']}): adapter {one['adapter']}")
    offered = settings.get("defaultAgent") or next((one["adapter"] for one in programs), "")

    def check_agent(text: str) -> str:
        """Return the agent, or an empty string for no agent."""
        agent = "" if text == "-" else text or offered
        if agent:
            _check_agent(agent, settings)
        return str(agent)

    tell("Roles that name no agent are played by the default agent; `rolecall agents list` shows the names.")
    how = f"(-: none) [{offered}]" if offered else "(Enter: none)"
    agent = asking.ask(f"Agent that plays roles by default {how}", check_agent)
    model = (settings.get("models") or {}).get(settings.get("defaultModel") or MODEL) or {}
    present = model.get("provider") or ""
    how = f"[{present}]" if present else "(Enter: none)"
    provider = asking.ask(
        f"Provider of the model that reads answers {how}", lambda text: _check_provider(text or present)
    )
    if not provider:
        return Answers(None, None, None, None, agent)
    known_url = _known_url(settings, provider) or ""
    base_url = _ask_needed("Base URL", known_url, ("providers", provider, "baseUrl"))
    name = _ask_needed("Model", model.get("name") or "", ("models", MODEL, "name"))

    has_key = _has_key(settings, environment, provider)
    enter = "keep the present one" if has_key else "none"
    while True:
        try:
            key = getpass(f"Key of {provider} (not shown; Enter: {enter}): ").strip()
        except EOFError:
            raise asking.end_of_input() from None
        if key.isascii() and key.isprintable() and " " not in key:
            return Answers(provider, base_url, key or (None if has_key else ""), name, agent)
        tell("  A key has only ASCII characters and no spaces.")


def _ask_needed(question: str, default: str, key: Key) -> str:
    def check(text: str) -> str:
        if not text and not default:
            raise UsageError("An answer is needed.")
        return str(value_from(text or default, key))

    return asking.ask(f"{question} [{default}]" if default else question, check)


def _check_agent(agent: str, settings: Settings) -> None:
    if not is_known_agent(settings, agent, _AGENTS):
        raise unknown_agent(settings, agent, _AGENTS)


def _check_provider(provider: str) -> str:
    if not provider.isprintable() or any(character in provider for character in ". \"'"):
        raise UsageError(f"{provider!r} is not a name for a provider", hint="Use letters, digits and '-'.")
    return provider


def _write(answers: Answers, settings: Settings) -> Settings:
    values: dict[Key, str] = {}
    unset: list[Key] = [("defaultAgent",)] if answers.agent == "" else []
    if answers.agent:
        values["defaultAgent",] = answers.agent
    variable = None
    if answers.provider:
        entry = _provider(settings, answers.provider)
        provider = ("providers", answers.provider)
        base, key, named = ((*provider, name) for name in ("baseUrl", "apiKey", "apiKeyEnv"))
        values |= {
            base: str(answers.base_url),
            ("models", MODEL, "provider"): answers.provider,
            ("models", MODEL, "name"): str(answers.model),
            ("defaultModel",): MODEL,
        }
        if answers.api_key == "":
            unset += [key, named]
        elif answers.api_key or not (entry.get("apiKey") or entry.get("apiKeyEnv")):
            values[named] = _variable(answers.provider)
            unset.append(key)  # an old setting would take precedence
    file, env_path = config.config_path(), os.path.join(config.home(), ".env")
    if answers.api_key:
        variable, secret = _variable(str(answers.provider)), answers.api_key
        config_file.change(env_path, lambda text: config_file.with_variable(text, variable, secret))

    def edit(text: str) -> str:
        for path in unset:
            if find_setting(config.parse(text, file), path) is not None:
                text = config_file.without_value(text, path, source=file)
        for path, value in values.items():
            text = config_file.with_value(text, path, value, source=file)
        return text

    config_file.change(file, edit)
    return {
        "config": file,
        "written": {".".join(path): value for path, value in values.items()},
        "removed": [".".join(path) for path in unset if find_setting(settings, path) is not None],
        "env": env_path if answers.api_key else None,
        "variable": variable,
    }
