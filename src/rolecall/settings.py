"""What the configuration says about agents and models. Pure: works on the mapping `config.load` gives.

providers:      {NAME: {baseUrl, apiKey | apiKeyEnv}}
models:         {ALIAS: {provider, name}}
agents:         {ALIAS: {command, args}}     external agents; an alias may also be an adapter spec
defaultAgent:   an alias or a spec such as `command:prog`
defaultModel:   a model alias
agentOverrides: {WORKFLOW: {ROLE: alias}}
modelOverrides: {SCENE: model alias}         the scene `extract` reads answers
extract:        {provider | baseUrl, model, apiKey | apiKeyEnv, timeout}
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from rolecall.errors import NotFound, UsageError

KEYS = (
    "providers",
    "models",
    "agents",
    "defaultAgent",
    "defaultModel",
    "agentOverrides",
    "modelOverrides",
    "extract",
    "store",
)


def agent_for(
    settings: Mapping[str, Any], *, workflow: str, role: str, named: str | None, override: str | None
) -> str:
    """The alias or spec of the agent that plays a role: --agent, per workflow and role, the role's own, default."""
    configured = _mapping(_mapping(settings, "agentOverrides").get(workflow)).get(role)
    chosen = override or configured or named or settings.get("defaultAgent")
    if not chosen:
        raise UsageError(
            f"no agent is named for the role {role!r} of {workflow!r}",
            hint="Give the role an `agent`, set a default (`rolecall config set defaultAgent NAME`), or use --agent.",
        )
    return str(chosen)


def external_command(settings: Mapping[str, Any], alias: str) -> list[str] | None:
    """The command of an agent configured as {command, args}; None when the alias is none of them."""
    entry = _mapping(settings, "agents").get(alias)
    if entry is None:
        return None
    if not isinstance(entry, Mapping) or not isinstance(entry.get("command"), str):
        raise UsageError(f"the agent {alias!r} of the configuration has no `command`")
    return [entry["command"], *map(str, entry.get("args") or ())]


def unknown_agent(settings: Mapping[str, Any], alias: str, adapters: tuple[str, ...]) -> NotFound:
    known = sorted({*_mapping(settings, "agents"), *adapters})
    close = get_close_matches(alias, known, n=1)
    guess = f"Did you mean {close[0]!r}? " if close else ""
    return NotFound(f"there is no agent {alias!r}", hint=f"{guess}Known: {', '.join(known)}.")


def extract_endpoint(
    settings: Mapping[str, Any], environment: Mapping[str, str], overrides: Mapping[str, Any] | None = None
) -> dict[str, Any] | None:
    """Where answers are read that carry no frontmatter: base_url, model, api_key, timeout; None: nowhere.

    `extract` of the configuration, with the role's overrides on top; else the model alias of the scene.
    """
    section = {**_mapping(settings, "extract"), **(overrides or {})}
    if not section:
        alias = _mapping(settings, "modelOverrides").get("extract") or settings.get("defaultModel")
        alias = "extract" if "extract" in _mapping(settings, "models") and not alias else alias
        if not alias:
            return None
        section = {"model": alias}
    model = _mapping(_mapping(settings, "models").get(str(section.get("model"))))
    provider_name = section.get("provider") or model.get("provider")
    provider = _mapping(_mapping(settings, "providers").get(str(provider_name)))
    base_url = section.get("baseUrl") or section.get("base_url") or provider.get("baseUrl")
    name = model.get("name") or section.get("model")
    if not base_url or not name:
        raise UsageError(
            f"`extract` needs a model and a base URL; it has model {name!r} and base URL {base_url!r}",
            hint="Set `extract: {baseUrl: …, model: …, apiKeyEnv: …}` or name a configured provider.",
        )
    key = _key({**provider, **section}, environment, str(provider_name or ""))
    return {"base_url": base_url, "model": name, "api_key": key, "timeout": float(section.get("timeout", 60))}


def _key(entry: Mapping[str, Any], environment: Mapping[str, str], provider: str) -> str | None:
    """A key written down, or read from the variable that is named; never one meant for somebody else."""
    if entry.get("apiKey"):
        return str(entry["apiKey"])
    variable = entry.get("apiKeyEnv") or (
        f"{provider.upper().replace('-', '_')}_API_KEY" if provider else None
    )
    return environment.get(str(variable)) if variable else None


def secrets_of(settings: Any) -> list[str]:
    """Every key written into the configuration itself."""
    if isinstance(settings, Mapping):
        own = [str(value) for name, value in settings.items() if name == "apiKey" and value]
        return own + [secret for value in settings.values() for secret in secrets_of(value)]
    if isinstance(settings, list):
        return [secret for value in settings for secret in secrets_of(value)]
    return []


def _mapping(value: Any, key: str | None = None) -> Mapping[str, Any]:
    found = value.get(key) if key is not None and isinstance(value, Mapping) else value
    return found if isinstance(found, Mapping) else {}
