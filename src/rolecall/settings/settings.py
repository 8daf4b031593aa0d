"""What the configuration says about agents and models. Pure: works on the mapping `config.load` gives.

providers:      {NAME: {baseUrl, apiKey | apiKeyEnv, protocol}}     protocol: openai (the default) or anthropic
models:         {ALIAS: {provider, name}}
agents:         {ALIAS: {adapter, OPTION…} | {command, args}}     an adapter with options, or an external agent
defaultAgent:   an alias or a spec such as `command:prog`
defaultModel:   a model alias
agentOverrides: {WORKFLOW: {ROLE: alias}}
modelOverrides: {SCENE: model alias}         the scene `extract` reads answers
modelTiers:     {HOST | AGENT: {high, standard}}     the models for the tiers of the catalogue's agents
extract:        {provider | baseUrl, model, apiKey | apiKeyEnv, timeout}
catalog:        a folder with agents and skills to use instead of our own
memory:         {autoDelete, unreadDays, …}  whether notes may be deleted without asking, and what speaks for it
project:        {unplannedEdits}             block (the default), warn or off: edits in a host while no task is planned
store:          a path or an address, or {url, durability}

A key belongs to the endpoint it is written beside: it is never sent to one that another section names.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from rolecall.errors import NotFound, UsageError
from rolecall.settings.mask import is_secret_name, passwords_in

Path = tuple[str, ...]

_SECTIONS: dict[str, Any] = {
    "providers": {
        "*": {"baseUrl": "url", "apiKey": "secret", "apiKeyEnv": "variable", "protocol": "protocol"}
    },
    "models": {"*": {"provider": "text", "name": "text"}},
    "agents": {"*": {"adapter": "text", "command": "text", "args": "texts", "*": "option"}},
    "defaultAgent": "text",
    "defaultModel": "text",
    "agentOverrides": {"*": {"*": "text"}},
    "modelOverrides": {"*": "text"},
    "modelTiers": {"*": {"high": "text", "standard": "text"}},
    "extract": {
        "provider": "text",
        "baseUrl": "url",
        "model": "text",
        "apiKey": "secret",
        "apiKeyEnv": "variable",
        "timeout": "seconds",
    },
    "memory": {
        "autoDelete": "switch",
        "unreadDays": "count",
        "unreadReads": "count",
        "unchangedDays": "count",
        "graceDays": "count",
        "signals": "signals",
        "overlap": "percent",
        "superseded": "percent",
    },
    "project": {"unplannedEdits": "gate"},
    "catalog": "folder",
    "store": {"url": "text", "durability": "durability"},
}
"""Every key and the kind of its value; `*` is a name of the user's own."""

KEYS = tuple(_SECTIONS)

PROTOCOLS = ("openai", "anthropic")
"""What a model's endpoint can speak."""
_PUBLIC: dict[str, Any] = {
    "openai": {"baseUrl": "https://api.openai.com/v1", "apiKeyEnv": "OPENAI_API_KEY", "protocol": "openai"},
    "anthropic": {
        "baseUrl": "https://api.anthropic.com",
        "apiKeyEnv": "ANTHROPIC_API_KEY",
        "protocol": "anthropic",
    },
}
"""Providers that need no configuration: each key of the environment goes to the endpoint beside it alone."""
UWF_PROGRAMS = {
    "uwf-builtin": "builtin",
    "uwf-claude-code": "claude",
    "uwf-cursor": "cursor",
    "uwf-hermes": "hermes",
}
"""The agents that come with uwf, and the adapters that replace them."""
_DURABILITIES = ("always", "heads", "never")
_GATES = ("block", "warn", "off")
_RANGES = {"count": (0, 10**9), "signals": (3, 4), "percent": (1, 100)}
"""Kinds of whole numbers."""
_STEP = re.compile(r'"([^"]+)"(?:\.|$)|([^."]+)(?:\.|$)')
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PASSWORD = re.compile(r"(?<=://)([^/@:\s]*):[^/@\s]+@")


# -- agents --

NAME_AN_AGENT = (
    "Give the role an `agent`, set a default (`rolecall config set defaultAgent NAME`), or use --agent."
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
            hint=NAME_AN_AGENT,
        )
    return str(chosen)


def configured_agent(settings: Mapping[str, Any], alias: str) -> tuple[str, dict[str, Any]]:
    """The spec and the options of an alias; any other name is its own spec.

    `{adapter: claude, model: …}` is an adapter with options, `{command, args}` an external agent. The agents that
    come with uwf map to our own adapters.
    """
    entry = _mapping(settings, "agents").get(alias)
    if program := uwf_program(settings, alias):
        if isinstance(entry, Mapping) and entry.get("args"):
            raise UsageError(
                f"the agent {alias!r} of the configuration has arguments for {program}, which Rolecall does not run",
                hint=f"Name the adapter with its options instead: `rolecall config set agents.{alias}.adapter "
                f"{UWF_PROGRAMS[program]}`.",
            )
        return UWF_PROGRAMS[program], {}
    if entry is None:
        return alias, {}
    if isinstance(entry, Mapping) and isinstance(entry.get("adapter"), str):
        return entry["adapter"], {key: value for key, value in entry.items() if key != "adapter"}
    if not isinstance(entry, Mapping) or not isinstance(entry.get("command"), str):
        raise UsageError(
            f"the agent {alias!r} of the configuration has neither `adapter` nor `command`",
            hint=f"`rolecall config set agents.{alias}.command PROGRAM`",
        )
    args = entry.get("args") or []
    if not isinstance(args, list):
        raise UsageError(f"`args` of the agent {alias!r} of the configuration must be a list")
    return f"external:{shlex.join([entry['command'], *map(str, args)])}", {"has_flags": True}


def uwf_program(settings: Mapping[str, Any], alias: str) -> str | None:
    """The agent of uwf that a name means and that an adapter of ours replaces; None for any other name."""
    entry = _mapping(settings, "agents").get(alias)
    named = _mapping(entry).get("command") if entry is not None else alias
    return named if isinstance(named, str) and named in UWF_PROGRAMS else None


def is_known_agent(settings: Mapping[str, Any], alias: str, adapters: Collection[str]) -> bool:
    known = (*_mapping(settings, "agents"), *UWF_PROGRAMS)
    return alias in known or alias.partition(":")[0] in adapters


def unknown_agent(settings: Mapping[str, Any], alias: str, adapters: Collection[str]) -> NotFound:
    known = sorted({*_mapping(settings, "agents"), *adapters})
    return NotFound(
        f"there is no agent {alias!r}",
        hint=f"{_guess(alias, known)}Known: {', '.join(known)}. To run a program of your own: `command:{alias}` gets "
        f"the prompt on its standard input and prints the answer; `external:{alias}` puts the step itself.",
    )


def tier_model(settings: Mapping[str, Any], names: Sequence[str], tier: str) -> str:
    """The configured model for a tier of the catalogue's agents, from the first name that has one: an alias, then its
    adapter, or a host. Empty means the agent's own default."""
    tiers = _mapping(settings, "modelTiers")
    found = (_mapping(tiers.get(name)).get(tier) for name in names)
    return next((str(model) for model in found if model), "")


# -- the project --


def unplanned_edits(settings: Mapping[str, Any]) -> str:
    """What the hooks of a host do about edits while no task is planned: block, warn or off."""
    mode = _mapping(settings, "project").get("unplannedEdits", _GATES[0])
    if mode not in _GATES:
        raise UsageError(
            _misfit("project.unplannedEdits", "gate", mode),
            hint="`rolecall config set project.unplannedEdits block`",
        )
    return str(mode)


def memory_thresholds(settings: Mapping[str, Any]) -> dict[str, int]:
    """The configured thresholds for merging and forgetting memory notes, under their names in `project.memory`."""
    section = _mapping(settings, "memory")
    found = {}
    for key, kind in _SECTIONS["memory"].items():
        if kind in _RANGES and section.get(key) is not None:
            if not _fits(section[key], kind):
                raise UsageError(f"memory.{key} must be {_KINDS[kind]}, not {section[key]!r}")
            found[re.sub("[A-Z]", lambda letter: f"_{letter[0].lower()}", key)] = section[key]
    return found


def catalog(settings: Mapping[str, Any]) -> str | None:
    """The folder named as the catalogue; None: our own. A key that is nearly `catalog` is refused, because it would
    have our own used in its place."""
    for key in settings:
        if key not in KEYS and _guess(str(key), KEYS) == _guess("catalog", KEYS):
            kind_of((key,))  # which refuses it
    folder = settings.get("catalog")
    if folder is not None and not _fits(folder, "folder"):
        raise UsageError(
            f"catalog must be {_KINDS['folder']}",
            hint="`rolecall config unset catalog` goes back to our own.",
        )
    return folder


# -- the model of the built-in agent --


def model_endpoint(
    settings: Mapping[str, Any], environment: Mapping[str, str], model: str | None
) -> dict[str, Any]:
    """Where a model is asked: base_url, model, api_key, protocol.

    `model` is an alias of `models`, or `PROVIDER/NAME`; None is the default one. A provider that is
    configured counts before one of the same name that needs no configuration, and brings its own key or none.
    """
    named = model or settings.get("defaultModel")
    if not named:
        raise UsageError(
            "no model is named and there is no default one",
            hint="Name one, `builtin:PROVIDER/NAME` or `builtin:ALIAS`, or run `rolecall setup`.",
        )
    provider, name = _provider_and_name(settings, str(named))
    entry = _mapping(settings, "providers").get(provider, _PUBLIC.get(provider))
    if entry is None:
        raise _no_provider(settings, environment, provider, built_in=_PUBLIC)
    entry = _mapping(entry)
    if not entry.get("baseUrl"):
        raise UsageError(
            f"the provider {provider!r} has no `baseUrl`",
            hint=f"`rolecall config set providers.{provider}.baseUrl https://…`",
        )
    return {
        "base_url": str(entry["baseUrl"]),
        "model": name,
        "api_key": _key(entry, environment, f"the provider {provider!r}"),
        "protocol": str(entry.get("protocol") or PROTOCOLS[0]),
    }


def builtin_options(
    settings: Mapping[str, Any], environment: Mapping[str, str], options: Mapping[str, Any]
) -> dict[str, Any]:
    """The options of the built-in agent with its endpoint, which only a provider can name: a key that stands
    in a workflow or beside an agent would be stored, and could be sent to another endpoint than its own."""
    for key in ("base_url", "api_key", "protocol"):
        if key in {name.replace("-", "_") for name in options}:
            raise UsageError(
                f"the agent 'builtin' takes {key!r} from a provider, not as an option",
                hint="Set `providers.NAME.baseUrl` and `providers.NAME.apiKeyEnv`, and give the model as NAME/MODEL.",
            )
    return {**options, **model_endpoint(settings, environment, options.get("model"))}


def _provider_and_name(settings: Mapping[str, Any], named: str) -> tuple[str, str]:
    models = _mapping(settings, "models")
    if named in models:
        entry = _mapping(models[named])
        if entry.get("provider") and entry.get("name"):
            return str(entry["provider"]), str(entry["name"])
        raise UsageError(
            f"the model {named!r} of the configuration needs a `provider` and a `name`",
            hint=f"`rolecall config set models.{named}.provider NAME`",
        )
    provider, _, name = named.partition("/")
    if not provider or not name:
        raise _no_model(settings, named)
    return provider, name


# -- the model that reads answers --


def extract_endpoint(
    settings: Mapping[str, Any], environment: Mapping[str, str], overrides: Mapping[str, Any] | None = None
) -> dict[str, Any] | None:
    """Where answers are read that carry no frontmatter: base_url, model, api_key, timeout; None: nowhere.

    What the role's overrides do not say, `extract` of the configuration does; without both, the model of
    the scene `extract`, or the default one.
    """
    levels = [level for level in (_mapping(overrides), _mapping(settings, "extract")) if level]
    for level in levels:
        _check_extract(level)
    alias = _scene_model(settings)
    if not levels and not alias:
        return None
    levels.append({"model": alias} if alias else {})
    named = next((level["model"] for level in levels if level.get("model")), None)
    depth, base_url, provider_key = _place(settings, environment, levels)
    if not named or not base_url:
        raise UsageError(
            f"`extract` needs a model and a base URL, and has no {'model' if not named else 'base URL'}",
            hint="Set `extract: {baseUrl: …, model: …, apiKeyEnv: …}` or name a configured provider.",
        )
    keys = [level for level in levels[: depth + 1] if level.get("apiKey") or level.get("apiKeyEnv")]
    return {
        "base_url": base_url,
        "model": str(_mapping(_mapping(settings, "models").get(str(named))).get("name") or named),
        "api_key": _key((keys or [provider_key])[0], environment, "the model that reads answers"),
        "timeout": next((float(level["timeout"]) for level in levels if level.get("timeout")), 60.0),
    }


def _scene_model(settings: Mapping[str, Any]) -> str | None:
    models = _mapping(settings, "models")
    alias = _mapping(settings, "modelOverrides").get("extract") or (
        "extract" if "extract" in models else None
    )
    alias = alias or settings.get("defaultModel")
    if alias and alias not in models:
        raise _no_model(settings, str(alias))
    return str(alias) if alias else None


def _no_model(settings: Mapping[str, Any], alias: str) -> UsageError:
    models = _mapping(settings, "models")
    known = ", ".join(models) or "none"
    return UsageError(
        f"there is no model {alias!r} in the configuration",
        hint=f"{_guess(alias, models)}Known: {known}. `rolecall setup` adds one.",
    )


def _place(
    settings: Mapping[str, Any], environment: Mapping[str, str], levels: Sequence[Mapping[str, Any]]
) -> tuple[int, str | None, Mapping[str, Any]]:
    """Which level names the endpoint, its address, and what keeps the key that is meant for it."""
    for depth, level in enumerate(levels):
        model = _mapping(_mapping(settings, "models").get(str(level.get("model"))))
        name = level.get("provider") or model.get("provider")
        if not name and not level.get("baseUrl"):
            continue
        provider = _provider(settings, environment, str(name)) if name else {}
        address = level.get("baseUrl") or provider.get("baseUrl")
        is_providers_own = address == provider.get("baseUrl")
        return depth, address, provider if is_providers_own else {}
    return 0, None, {}


def _provider(settings: Mapping[str, Any], environment: Mapping[str, str], name: str) -> Mapping[str, Any]:
    """The provider of a model that reads answers, which must speak OpenAI's protocol."""
    built_in = {key: entry for key, entry in _PUBLIC.items() if entry["protocol"] == PROTOCOLS[0]}
    entry = _mapping(settings, "providers").get(name, built_in.get(name))
    if entry is None:
        raise _no_provider(settings, environment, name, built_in=built_in)
    return _mapping(entry)


def _no_provider(
    settings: Mapping[str, Any], environment: Mapping[str, str], name: str, *, built_in: Mapping[str, Any]
) -> UsageError:
    providers = _mapping(settings, "providers")
    known = f"In the configuration: {', '.join(providers)}. " if providers else ""
    return UsageError(
        f"there is no provider {name!r}",
        hint=f"{_guess(name, [*providers, *built_in])}{known}Built in: {_listed(built_in)}. "
        f"Add another with `rolecall setup`, or under `providers` in {_in_home(environment, 'config.yaml')}.",
    )


def _listed(built_in: Mapping[str, Any]) -> str:
    """Providers that need no configuration, each with the variable for its key."""
    return ", ".join(f"{name} ({entry['apiKeyEnv']})" for name, entry in built_in.items())


def _in_home(environment: Mapping[str, str], file: str) -> str:
    return os.path.join(environment.get("ROLECALL_HOME") or "~/.rolecall", file)


def _check_extract(section: Mapping[str, Any]) -> None:
    for key, value in section.items():
        kind = kind_of(("extract", key))
        if value is not None and not _fits(value, kind):
            raise UsageError(_misfit(f"extract.{key}", kind, value))


def _key(entry: Mapping[str, Any], environment: Mapping[str, str], whose: str) -> str | None:
    """A key written down, or read from the variable that is named; a variable without value is an error."""
    if entry.get("apiKey"):
        return str(entry["apiKey"])
    variable = entry.get("apiKeyEnv")
    if not variable:
        return None
    if not environment.get(str(variable)):
        if not _is_variable(variable):  # the value may be the key itself
            raise UsageError(
                f"the variable in `apiKeyEnv` of {whose} is not set",
                hint="`apiKeyEnv` names the variable that holds the key; put the key itself into `.env` in the home.",
            )
        raise UsageError(
            f"the variable {variable!r}, which holds the key of {whose}, is not set",
            hint=f"Write `{variable}=…` into {_in_home(environment, '.env')}, or run `rolecall setup`. "
            f"Built-in providers: {_listed(_PUBLIC)}.",
        )
    return environment[str(variable)]


# -- the keys --

_KINDS = {
    "text": "text",
    "texts": 'a JSON array of texts, such as ["--yes"]',
    "url": "an address that begins with http:// or https://",
    "secret": "text",
    "variable": "the name of an environment variable",
    "seconds": "a number of seconds above 0",
    "switch": "true or false",
    "count": "a whole number of 0 or more",
    "signals": "3 or 4: the contract forbids fewer",
    "percent": "a whole number from 1 to 100",
    "option": "an option of the adapter",
    "folder": "the path of a folder",
    "protocol": f"one of {', '.join(PROTOCOLS)}",
    "durability": f"one of {', '.join(_DURABILITIES)}",
    "gate": f"one of {', '.join(_GATES)}",
}


def path_of(key: str) -> Path:
    """The steps of a dotted key; a step that contains a dot stands in double quotes."""
    steps, at = [], 0
    while match := _STEP.match(key, at):
        steps.append(match[1] or match[2])
        at = match.end()
    if at != len(key) or not steps or key.endswith("."):
        raise UsageError(
            f"{key!r} is not a key",
            hint='Keys are joined by dots; a name with a dot is quoted: models."gpt-4.1".name',
        )
    return tuple(steps)


def key_of(path: Path) -> str:
    return ".".join(f'"{step}"' if "." in step else step for step in path)


def kind_of(path: Path) -> str:
    """The kind of the value at a path; "" for a section. An unknown key is an error."""
    level: Any = _SECTIONS
    for depth, step in enumerate(path):
        if not isinstance(level, dict):
            raise UsageError(f"{key_of(path[:depth])} is a single value and has no key {step!r}")
        if step not in level and "*" not in level:
            raise UsageError(
                f"{key_of(path[: depth + 1])!r} is not a key of the configuration",
                hint=f"{_guess(step, level)}Keys{' of ' + key_of(path[:depth]) if depth else ''}: {', '.join(level)}.",
            )
        level = level.get(step, level.get("*"))
    return "" if isinstance(level, dict) else str(level)


def value_from(text: str, path: Path) -> Any:
    """The value that `text` stands for at a path."""
    kind = kind_of(path)
    if not kind:
        names = ", ".join(_below(path))
        raise UsageError(
            f"{key_of(path)} is a section",
            hint=f"Set one of its keys: {key_of(path)}.NAME with NAME of {names}.",
        )
    value = _parsed(text, kind)
    if not _fits(value, kind):
        raise UsageError(_misfit(key_of(path), kind, text))
    return value


def _misfit(key: str, kind: str, value: Any) -> str:
    """The problem with a value, shown only if it cannot be a misplaced secret."""
    shown = f", not {value!r}" if kind in ("seconds", "switch", "protocol", "durability", "gate") else ""
    return f"{key} must be {_KINDS[kind]}{shown}"


def _below(path: Path) -> list[str]:
    level: Any = _SECTIONS
    for step in path:
        level = level.get(step, level.get("*"))
    return ["any name" if name == "*" else name for name in level]


def _parsed(text: str, kind: str) -> Any:
    if kind == "seconds":
        return float(text) if re.fullmatch(r"[0-9]*\.?[0-9]+", text) else None
    if kind in _RANGES:
        return int(text) if re.fullmatch(r"[0-9]{1,9}", text) else None
    if kind == "switch":
        return {"true": True, "false": False}.get(text)
    if kind == "texts":
        import json

        try:
            return json.loads(text)
        except ValueError:
            return None
    return text


def _fits(value: Any, kind: str) -> bool:
    if kind in _RANGES:
        least, most = _RANGES[kind]
        return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
    match kind:
        case "seconds":
            return (
                isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < float("inf")
            )
        case "switch":
            return isinstance(value, bool)
        case "texts":
            return isinstance(value, list) and all(isinstance(item, str) and _is_line(item) for item in value)
        case "protocol":
            return value in PROTOCOLS
        case "durability":
            return value in _DURABILITIES
        case "gate":
            return value in _GATES
        case "option":
            return True  # the adapter knows its options, and says so when a role first names it
    if not isinstance(value, str) or not _is_line(value):
        return False
    if kind == "url":
        return re.match(r"https?://[^/\s]", value) is not None and not re.search(r"\s", value)
    return kind != "variable" or _VARIABLE.fullmatch(value) is not None


def _is_line(text: str) -> bool:
    return bool(text.strip()) and text.isprintable()


def problems(settings: Mapping[str, Any], *, adapters: Collection[str]) -> list[str]:
    """What is wrong with a configuration as it stands: unknown keys, misfits, names that lead nowhere."""
    return [*shape_problems(settings), *dangling(settings, adapters=adapters)]


def shape_problems(value: Mapping[str, Any], path: Path = ()) -> Iterator[str]:
    """Unknown keys and misfits; each text begins with the key."""
    for key, item in value.items():
        here = (*path, key)
        try:
            kind = kind_of(here)
        except UsageError as exc:
            yield f"{exc.message}. {exc.hint}"
            continue
        is_short_store = here == ("store",) and isinstance(item, str)
        if kind and item is not None and not _fits(item, kind):
            yield f"{key_of(here)} must be {_KINDS[kind]}"
        elif not kind and isinstance(item, Mapping):
            yield from shape_problems(item, here)
        elif not kind and item is not None and not is_short_store:
            yield f"{key_of(here)} must be a mapping"


def dangling(settings: Mapping[str, Any], *, adapters: Collection[str]) -> list[str]:
    """Names that the configuration uses and does not define."""
    agents = [("defaultAgent", settings.get("defaultAgent"))]
    for workflow, roles in _mapping(settings, "agentOverrides").items():
        agents += [(f"agentOverrides.{workflow}.{role}", alias) for role, alias in _mapping(roles).items()]
    for name, tiers in _mapping(settings, "modelTiers").items():
        agents += [(f"modelTiers.{name}.{tier}", name) for tier in _mapping(tiers)]
    models = [("defaultModel", settings.get("defaultModel"))]
    models += [
        (f"modelOverrides.{scene}", alias) for scene, alias in _mapping(settings, "modelOverrides").items()
    ]
    providers = [("extract.provider", _mapping(settings, "extract").get("provider"))]
    for name, entry in _mapping(settings, "models").items():
        providers.append((f"models.{name}.provider", _mapping(entry).get("provider")))
    return [
        *_missing("agent", agents, {*_mapping(settings, "agents"), *adapters, *UWF_PROGRAMS}, is_spec=True),
        *_missing("model", models, _mapping(settings, "models")),
        *_missing("provider", providers, {*_mapping(settings, "providers"), *_PUBLIC}),
    ]


def _missing(
    what: str, named: Sequence[tuple[str, Any]], known: Collection[str], *, is_spec: bool = False
) -> Iterator[str]:
    for key, name in named:
        if not isinstance(name, str) or name in known or (is_spec and name.partition(":")[0] in known):
            continue
        listed = ", ".join(sorted(known)) or "none"
        yield f"{key}: there is no {what} {name!r}. {_guess(name, known)}Known: {listed}."


# -- secrets --


def may_have_secrets(text: str) -> bool:
    """Whether the text of a configuration may contain a secret; most only name variables for keys."""
    rest = re.sub(
        r"""apiKeyEnv["']?: *["']?[A-Z_][A-Z0-9_]*["']?(?= *(?:$|[,}#]))""", "", text, flags=re.MULTILINE
    )
    return is_secret_name(rest) or bool(passwords_in(rest))


def secrets_of(settings: Any) -> list[str]:
    """Every secret written into the configuration itself: keys, passwords in addresses, variables of agents."""
    if isinstance(settings, Mapping):
        own = [str(value) for name, value in settings.items() if _is_secret(name, value)]
        others = [value for name, value in settings.items() if name not in _NAMES_OF_OTHERS]
        return own + [secret for value in others for secret in secrets_of(value)]
    if isinstance(settings, list):
        return [secret for value in settings for secret in secrets_of(value)]
    return passwords_in(settings) if isinstance(settings, str) else []


def masked(value: Any, mask: str) -> Any:
    """A part of the configuration to be shown: secrets replaced by `mask`."""
    if isinstance(value, Mapping):
        return {
            key: mask if _is_secret(key, item) else item if key in _NAMES_OF_OTHERS else masked(item, mask)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [masked(item, mask) for item in value]
    return _PASSWORD.sub(rf"\1:{mask}@", value) if isinstance(value, str) else value


_NAMES_OF_OTHERS = ("agentOverrides", "modelOverrides")
"""Sections whose keys are names of workflows and roles, which may look like secrets: `rotate-keys`."""


def _is_secret(name: object, value: Any) -> bool:
    """Whether an entry holds a secret, by its name, or because a key is where a variable's name should be."""
    if value in (None, "") or isinstance(value, Mapping):
        return False
    if name == "apiKeyEnv":
        return not _is_variable(value)
    return name == "apiKey" or (isinstance(value, str) and is_secret_name(str(name)))


def _is_variable(value: Any) -> bool:
    """Whether a text looks like the name of a variable, not like a key."""
    return isinstance(value, str) and re.fullmatch(r"[A-Z_][A-Z0-9_]*", value) is not None


def _guess(name: str, known: Collection[str]) -> str:
    from difflib import get_close_matches

    close = get_close_matches(name, [one for one in known if one != "*"], n=1)
    return f"Did you mean {close[0]!r}? " if close else ""


def _mapping(value: Any, key: str | None = None) -> Mapping[str, Any]:
    found = value.get(key) if key is not None and isinstance(value, Mapping) else value
    return found if isinstance(found, Mapping) else {}
