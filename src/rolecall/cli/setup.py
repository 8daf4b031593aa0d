"""`rolecall setup`: writes the first configuration, from flags or by asking on a terminal.

A key goes into `.env` of the home, where only its owner can read it; `config.yaml` only names the variable.
"""

from __future__ import annotations

import os
from argparse import ArgumentParser, Namespace
from typing import Any, NamedTuple

from rolecall.cli import Verb, asking
from rolecall.cli.output import add_format, read_input, show
from rolecall.errors import UsageError
from rolecall.settings.settings import Path

BASE_URLS = {
    "openrouter": "https://openrouter.ai/api/v1",
    "openai": "https://api.openai.com/v1",
    "deepseek": "https://api.deepseek.com/v1",
    "ollama": "http://localhost:11434/v1",
}

MODEL = "default"
"""The alias under which the model is kept."""

_PROVIDER_FLAGS = ("provider", "base_url", "model", "api_key")


class Answers(NamedTuple):
    provider: str | None
    base_url: str | None
    api_key: str | None
    """None keeps the key there is; empty means that none is needed."""
    model: str | None
    agent: str | None
    """None keeps the present one; an empty text removes it."""


class Program(NamedTuple):
    """The program of an agent that is installed here."""

    program: str
    path: str
    adapter: str


def _setup(options: Namespace) -> None:
    from rolecall.settings import config

    settings, environment = config.load(), config.environment()
    programs = _installed(environment)
    if any(getattr(options, flag) is not None for flag in (*_PROVIDER_FLAGS, "agent")):
        answers = _from_flags(options, settings, environment)
    elif asking.can_ask():
        answers = _asked(settings, environment, programs)
    else:
        raise UsageError(
            "this is not a terminal, so nothing can be asked: give --agent, or --provider, --base-url, --model "
            "and --api-key",
            hint="For instance: rolecall setup --agent command:./agent.sh",
        )
    _check(answers, settings)
    shown = _write(answers)
    shown["programs"] = [program._asdict() for program in programs]
    show(options, shown, lambda: _written_text(shown))


def _installed(environment: dict[str, str]) -> list[Program]:
    from pathlib import Path

    from rolecall.agents.presence import find_program, program_of
    from rolecall.checks.doctor import known_agents

    found = []
    for name, agent in ((cast.name, cast.agent) for cast in known_agents()):
        path, can_run = find_program(program_of(agent), env=environment, folder=Path.cwd())
        if path is not None and can_run:
            found.append(Program(program_of(agent), path, name))
    return found


# -- flags --


def _from_flags(options: Namespace, settings: dict[str, Any], environment: dict[str, str]) -> Answers:
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


def _known_url(settings: dict[str, Any], provider: str) -> str | None:
    return _provider(settings, provider).get("baseUrl") or BASE_URLS.get(provider)


def _has_key(settings: dict[str, Any], environment: dict[str, str], provider: str) -> bool:
    entry = _provider(settings, provider)
    return bool(entry.get("apiKey") or environment.get(entry.get("apiKeyEnv") or _variable(provider)))


def _provider(settings: dict[str, Any], name: str) -> dict[str, Any]:
    entry = (settings.get("providers") or {}).get(name)
    return entry if isinstance(entry, dict) else {}


def _variable(provider: str) -> str:
    """The variable that holds a provider's key."""
    name = "".join(character if character.isalnum() else "_" for character in provider.upper())
    return f"{name}_API_KEY" if name[:1].isalpha() else f"_{name}_API_KEY"


# -- questions --


def _asked(settings: dict[str, Any], environment: dict[str, str], programs: list[Program]) -> Answers:
    """Check every answer at its question, and ask again if it is wrong."""
    for program in programs:
        asking.say(f"found {program.program} ({program.path}): adapter {program.adapter}")
    offered = settings.get("defaultAgent") or next((program.adapter for program in programs), "")

    def check_agent(text: str) -> str:
        """The agent, or an empty text for no agent."""
        agent = "" if text == "-" else text or offered
        if agent:
            _check_agent(agent, settings)
        return agent

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
    return Answers(provider, base_url, _ask_key(settings, environment, provider), name, agent)


def _ask_needed(question: str, default: str, path: Path) -> str:
    from rolecall.settings.settings import value_from

    def check(text: str) -> str:
        if not text and not default:
            raise UsageError("An answer is needed.")
        return str(value_from(text or default, path))

    return asking.ask(f"{question} [{default}]" if default else question, check)


def _ask_key(settings: dict[str, Any], environment: dict[str, str], provider: str) -> str | None:
    from getpass import getpass

    has_key = _has_key(settings, environment, provider)
    while True:
        try:
            key = getpass(
                f"Key of {provider} (not shown; Enter: {'keep the present one' if has_key else 'none'}): "
            ).strip()
        except EOFError:
            raise asking.ended() from None
        if key.isascii() and key.isprintable() and " " not in key:
            return key or (None if has_key else "")
        asking.say("  A key has only ASCII characters and no spaces.")


# -- writing --


def _check(answers: Answers, settings: dict[str, Any]) -> None:
    """Everything is refused before anything is written."""
    from rolecall.settings.settings import value_from

    if answers.agent:
        _check_agent(answers.agent, settings)
    if answers.provider is None:
        if not answers.agent and not settings.get("defaultAgent"):
            raise UsageError("nothing was given that could be set up", hint="Name an agent or a provider.")
        return
    _check_provider(answers.provider)
    value_from(answers.base_url or "", ("providers", answers.provider, "baseUrl"))
    value_from(answers.model or "", ("models", MODEL, "name"))


def _check_agent(agent: str, settings: dict[str, Any]) -> None:
    from rolecall.agents import ADAPTERS
    from rolecall.settings.settings import is_known_agent, unknown_agent
    from rolecall.threads.engine import HUMAN

    if not is_known_agent(settings, agent, (*ADAPTERS, HUMAN)):
        raise unknown_agent(settings, agent, (*ADAPTERS, HUMAN))


def _check_provider(provider: str) -> str:
    if not provider.isprintable() or any(character in provider for character in ". \"'"):
        raise UsageError(f"{provider!r} is not a name for a provider", hint="Use letters, digits and '-'.")
    return provider


def _write(answers: Answers) -> dict[str, Any]:
    from rolecall.settings import config, config_file

    env_path = os.path.join(config.home(), ".env")
    file = config.config_path()
    values, removed = _values(answers)
    if answers.api_key:
        variable = _variable(str(answers.provider))
        key = answers.api_key
        config_file.change(env_path, lambda text: config_file.with_variable(text, variable, key))

    def edit(text: str) -> str:
        for path in removed:
            if _is_set(config.parse(text, file), path):
                text = config_file.without_value(text, path, source=file)
        for path, value in values.items():
            text = config_file.with_value(text, path, value, source=file)
        return text

    before = config.load()
    config_file.change(file, edit)
    return {
        "config": file,
        "written": {".".join(path): value for path, value in values.items()},
        "removed": [".".join(path) for path in removed if _is_set(before, path)],
        "env": env_path if answers.api_key else None,
        "variable": _variable(str(answers.provider)) if answers.api_key else None,
    }


def _values(answers: Answers) -> tuple[dict[Path, str], list[Path]]:
    """What is set, and what must go because it would count instead."""
    values: dict[Path, str] = {}
    gone: list[Path] = [("defaultAgent",)] if answers.agent == "" else []
    if answers.agent:
        values["defaultAgent",] = answers.agent
    if not answers.provider:
        return values, gone
    base, key, variable = (
        ("providers", answers.provider, name) for name in ("baseUrl", "apiKey", "apiKeyEnv")
    )
    values |= {
        base: str(answers.base_url),
        ("models", MODEL, "provider"): answers.provider,
        ("models", MODEL, "name"): str(answers.model),
        ("defaultModel",): MODEL,
    }
    if answers.api_key == "":
        return values, [*gone, key, variable]
    if answers.api_key is None and _names_a_key(answers.provider):
        return values, gone
    return values | {variable: _variable(answers.provider)}, [*gone, key]


def _names_a_key(provider: str) -> bool:
    from rolecall.settings import config

    entry = _provider(config.load(), provider)
    return bool(entry.get("apiKey") or entry.get("apiKeyEnv"))


def _is_set(settings: Any, path: Path) -> bool:
    for step in path:
        if not isinstance(settings, dict) or step not in settings:
            return False
        settings = settings[step]
    return True


def _written_text(shown: dict[str, Any]) -> str:
    lines = [f"written to {shown['config']}:"]
    lines += [f"  {key} = {value}" for key, value in shown["written"].items()]
    lines += [f"  {key} is no longer set" for key in shown["removed"]]
    if shown["env"]:
        lines.append(f"the key is in {shown['env']} as {shown['variable']}")
    lines.append("Next: rolecall doctor, then rolecall run WORKFLOW -p TASK")
    return "\n".join(lines)


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--provider", metavar="NAME", help="a provider of models, such as openrouter")
    parser.add_argument("--base-url", metavar="URL", help="its OpenAI-compatible address (known for some)")
    parser.add_argument(
        "--api-key", metavar="KEY", help="its key; - reads standard input, which no process list shows"
    )
    parser.add_argument("--model", metavar="NAME", help="the model, by the provider's name for it")
    parser.add_argument("--agent", metavar="NAME", help="the agent that plays roles by default")
    add_format(parser)


VERBS = {
    "": Verb(
        _setup,
        "configure a provider, a model and an agent; asks on a terminal when no option is given",
        "rolecall setup\nrolecall setup --agent command:./agent.sh\n"
        "rolecall setup --provider openrouter --model qwen/qwen3-coder --api-key - < key.txt",
        _arguments,
    )
}
