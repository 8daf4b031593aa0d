"""`rolecall setup`: writes the first configuration, from flags or by asking on a terminal.

A key goes into `.env` of the home, where only its owner can read it; `config.yaml` only names the variable.
"""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from typing import Any, NamedTuple

from rolecall.cli import Verb
from rolecall.cli.output import add_format, printable, read_input, show
from rolecall.errors import UsageError
from rolecall.settings import Path

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


class Program(NamedTuple):
    """The program of an agent that is installed here."""

    program: str
    path: str
    adapter: str


def _setup(options: Namespace) -> None:
    from rolecall import config

    settings, environment = config.load(), config.environment()
    programs = _installed(environment)
    if any(getattr(options, flag) is not None for flag in (*_PROVIDER_FLAGS, "agent")):
        answers = _from_flags(options, settings, environment)
    elif sys.stdin.isatty() and sys.stderr.isatty():
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
    from rolecall.doctor import known_agents

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
            hint='A provider that needs no key is given an empty one: --api-key "".',
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
    try:
        return _ask_all(settings, environment, programs)
    except EOFError:
        print(file=sys.stderr)
        raise UsageError(
            "the input ended before everything was answered", hint="Nothing was written."
        ) from None


def _ask_all(settings: dict[str, Any], environment: dict[str, str], programs: list[Program]) -> Answers:
    for program in programs:
        _say(f"found {program.program} ({program.path}): adapter {program.adapter}")
    offered = next((program.adapter for program in programs), "")
    agent = _ask("Agent that plays roles by default (empty: none)", settings.get("defaultAgent") or offered)
    model = (settings.get("models") or {}).get(settings.get("defaultModel") or MODEL) or {}
    provider = _ask("Provider of the model that reads answers (empty: none)", model.get("provider") or "")
    if not provider:
        return Answers(None, None, None, None, agent or None)
    base_url = _ask("Base URL", _known_url(settings, provider) or "")
    name = _ask("Model", model.get("name") or "")
    return Answers(provider, base_url, _ask_key(settings, environment, provider), name, agent or None)


def _ask(question: str, default: str) -> str:
    sys.stderr.write(f"{question}{f' [{printable(default)}]' if default else ''}: ")
    sys.stderr.flush()
    answer = sys.stdin.readline()
    if not answer:
        raise EOFError
    return answer.strip() or default


def _ask_key(settings: dict[str, Any], environment: dict[str, str], provider: str) -> str | None:
    from getpass import getpass

    has_key = _has_key(settings, environment, provider)
    key = getpass(f"Key of {provider} (not shown; empty: {'keep the present one' if has_key else 'none'}): ")
    return key.strip() or (None if has_key else "")


def _say(text: str) -> None:
    print(printable(text), file=sys.stderr)


# -- writing --


def _check(answers: Answers, settings: dict[str, Any]) -> None:
    """Everything is refused before anything is written."""
    from rolecall.agents import ADAPTERS
    from rolecall.engine import HUMAN
    from rolecall.settings import is_known_agent, unknown_agent, value_from

    if answers.agent and not is_known_agent(settings, answers.agent, (*ADAPTERS, HUMAN)):
        raise unknown_agent(settings, answers.agent, (*ADAPTERS, HUMAN))
    if answers.provider is None:
        if not answers.agent:
            raise UsageError("nothing was given that could be set up", hint="Name an agent or a provider.")
        return
    if not answers.provider.isprintable() or "." in answers.provider or '"' in answers.provider:
        raise UsageError(
            f"{answers.provider!r} is not a name for a provider", hint="Letters, digits and '-'."
        )
    value_from(answers.base_url or "", ("providers", answers.provider, "baseUrl"))
    value_from(answers.model or "", ("models", MODEL, "name"))


def _write(answers: Answers) -> dict[str, Any]:
    from rolecall import config, configfile

    env_path = os.path.join(config.home(), ".env")
    file = config.config_path()
    values, removed = _values(answers)
    if answers.api_key:
        variable = _variable(str(answers.provider))
        key = answers.api_key
        configfile.change(env_path, lambda text: configfile.with_variable(text, variable, key))

    def edit(text: str) -> str:
        for path in removed:
            if _is_set(config.parse(text, file), path):
                text = configfile.without_value(text, path, source=file)
        for path, value in values.items():
            text = configfile.with_value(text, path, value, source=file)
        return text

    configfile.change(file, edit)
    return {
        "config": file,
        "written": {".".join(path): value for path, value in values.items()},
        "env": env_path if answers.api_key else None,
        "variable": _variable(str(answers.provider)) if answers.api_key else None,
    }


def _values(answers: Answers) -> tuple[dict[Path, str], list[Path]]:
    """What is set, and what must go because it would count instead."""
    values: dict[Path, str] = {}
    if answers.agent:
        values["defaultAgent",] = answers.agent
    if not answers.provider:
        return values, []
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
        return values, [key, variable]
    if answers.api_key is None and _names_a_key(answers.provider):
        return values, []
    return values | {variable: _variable(answers.provider)}, [key]


def _names_a_key(provider: str) -> bool:
    from rolecall import config

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
    if shown["env"]:
        lines.append(f"the key is in {shown['env']} as {shown['variable']}")
    lines.append("Next: rolecall doctor, then rolecall thread start WORKFLOW -p TASK")
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
