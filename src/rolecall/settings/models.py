"""The endpoints of models, as they are named in the configuration.

A key is sent only to the endpoint with which it is configured, never to an endpoint from another section.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from rolecall.errors import Hint, UsageError
from rolecall.settings.form import check_value, did_you_mean
from rolecall.settings.mask import is_variable_name
from rolecall.settings.settings import (
    EXTRACT,
    PROTOCOLS,
    PUBLIC_PROVIDERS,
    Settings,
    as_mapping,
    get_section,
    in_home,
)

if TYPE_CHECKING:
    from rolecall.store.canonical import JsonObject


class Endpoint(NamedTuple):
    """The endpoint of a model. Its string representation omits the API key."""

    base_url: str
    """The address without the path of the request, such as /chat/completions."""
    model: str
    api_key: str | None = None
    timeout: float = 60.0
    """The timeout of a whole request in seconds, from connecting to the last byte."""
    protocol: str = PROTOCOLS[0]

    @property
    def place(self) -> str:
        """The address without its query, which might contain a key."""
        return re.split("[?#]", self.base_url)[0]

    def __repr__(self) -> str:
        return f"Endpoint({self.place!r}, {self.model!r})"


def model_endpoint(settings: Settings, environment: Mapping[str, str], model: str | None) -> Endpoint:
    """Return the endpoint of a model.

    `model` is an alias from `models`, or `PROVIDER/NAME`; None means the default model. A configured provider overrides
    the built-in one of the same name. The configured provider uses its own key, or none.
    """
    named = str(model or settings.get("defaultModel") or "")
    if not named:
        raise UsageError(
            "no model is named, and no default is set",
            hint=Hint("Name one, `builtin:PROVIDER/NAME` or `builtin:ALIAS`, or set a default", "set_up"),
        )
    models = get_section(settings, "models")
    if named in models:
        entry = as_mapping(models[named])
        if not entry.get("provider") or not entry.get("name"):
            raise UsageError(
                f"the model {named!r} of the configuration needs a `provider` and a `name`",
                hint=Hint("Set them", "set_setting", key=f"models.{named}.provider", value="NAME"),
            )
        provider, name = str(entry["provider"]), str(entry["name"])
    else:
        provider, _, name = named.partition("/")
        if not provider or not name:
            raise _no_model(settings, named)
    found = _provider(settings, environment, provider, PUBLIC_PROVIDERS)
    if not found.get("baseUrl"):
        raise UsageError(
            f"the provider {provider!r} has no `baseUrl`",
            hint=Hint("Set it", "set_setting", key=f"providers.{provider}.baseUrl", value="https://…"),
        )
    return Endpoint(
        base_url=str(found["baseUrl"]),
        model=name,
        api_key=_key(found, environment, f"the provider {provider!r}"),
        protocol=str(found.get("protocol") or PROTOCOLS[0]),
    )


def builtin_options(settings: Settings, environment: Mapping[str, str], options: JsonObject) -> JsonObject:
    """Return the options of the built-in agent, with its endpoint, which only a provider can set. A key in a workflow
    or in an agent's options would be stored, and could be sent to the wrong endpoint."""
    for key in ("base_url", "api_key", "protocol"):
        if key in {name.replace("-", "_") for name in options}:
            raise UsageError(
                f"the agent 'builtin' takes {key!r} from a provider, not as an option",
                hint="Set `providers.NAME.baseUrl` and `providers.NAME.apiKeyEnv`, and give the model as NAME/MODEL.",
            )
    found = model_endpoint(settings, environment, options.get("model"))
    endpoint = {key: getattr(found, key) for key in ("base_url", "model", "api_key", "protocol")}
    return {**options, **endpoint}


# -- the model that reads answers --


def extract_endpoint(
    settings: Settings, environment: Mapping[str, str], overrides: Settings | None = None
) -> Endpoint | None:
    """Return the endpoint that reads answers without frontmatter, or None if no model is configured for it.

    The role's overrides come first, then `extract` in the configuration. Without either, the model of the scene
    `extract` is used, or the default model.
    """
    levels = [level for level in (as_mapping(overrides), get_section(settings, "extract")) if level]
    for level in levels:
        check_value(EXTRACT, level, ("extract",))
    models = get_section(settings, "models")
    scene = get_section(settings, "modelOverrides").get("extract") or (
        "extract" if "extract" in models else None
    )
    default = scene or settings.get("defaultModel")
    if default and default not in models:
        raise _no_model(settings, str(default))
    if not levels and not default:
        return None
    levels.append({"model": default} if default else {})

    named = next((level["model"] for level in levels if level.get("model")), None)
    speaking_openai = {
        key: entry for key, entry in PUBLIC_PROVIDERS.items() if entry["protocol"] == PROTOCOLS[0]
    }
    # The first level that names an endpoint decides. Its key is on that level, or on one before it, or in the section
    # of the provider to which the endpoint belongs.
    base_url: str | None = None
    keys: list[Settings] = []
    for level in levels:
        if level.get("apiKey") or level.get("apiKeyEnv"):
            keys.append(level)
        model = as_mapping(models.get(str(level.get("model"))))
        name = level.get("provider") or model.get("provider")
        if name or level.get("baseUrl"):
            provider = _provider(settings, environment, str(name), speaking_openai) if name else {}
            base_url = level.get("baseUrl") or provider.get("baseUrl")
            keys.append(provider if base_url == provider.get("baseUrl") else {})
            break
    if not named or not base_url:
        raise UsageError(
            f"`extract` needs a model and a base URL, and has no {'model' if not named else 'base URL'}",
            hint="Set `extract: {baseUrl: …, model: …, apiKeyEnv: …}` or name a configured provider.",
        )
    return Endpoint(
        base_url=base_url,
        model=str(as_mapping(models.get(str(named))).get("name") or named),
        api_key=_key(keys[0], environment, "the model that reads answers"),
        timeout=next((float(level["timeout"]) for level in levels if level.get("timeout")), 60.0),
    )


# -- providers and keys --


def _no_model(settings: Settings, alias: str) -> UsageError:
    known = did_you_mean(alias, get_section(settings, "models"), what="Known")
    return UsageError(
        f"there is no model {alias!r} in the configuration", hint=Hint("Add one", "set_up", before=known)
    )


def _provider(
    settings: Settings, environment: Mapping[str, str], name: str, built_in: Mapping[str, Mapping[str, str]]
) -> Settings:
    providers = get_section(settings, "providers")
    entry = providers.get(name, built_in.get(name))
    if entry is not None:
        return as_mapping(entry)
    guess = did_you_mean(name, [*providers, *built_in])
    known = f"In the configuration: {', '.join(providers)}." if providers else ""
    file = in_home(environment, "config.yaml")
    before = " ".join(part for part in (guess, known, f"Built in: {_list(built_in)}.") if part)
    raise UsageError(
        f"there is no provider {name!r}",
        hint=Hint(f"Add another, or write it under `providers` in {file}", "set_up", before=before),
    )


def _list(built_in: Mapping[str, Mapping[str, str]]) -> str:
    return ", ".join(f"{name} ({entry['apiKeyEnv']})" for name, entry in built_in.items())


def _key(entry: Settings, environment: Mapping[str, str], whose: str) -> str | None:
    """Return the key itself, or the value of the variable that is named. A variable without a value is an error."""
    variable = entry.get("apiKeyEnv")
    if entry.get("apiKey"):
        return str(entry["apiKey"])
    if not variable:
        return None
    if environment.get(str(variable)):
        return environment[str(variable)]
    if not is_variable_name(variable):  # the value might be the key itself
        raise UsageError(
            f"the variable in `apiKeyEnv` of {whose} is not set",
            hint="`apiKeyEnv` names the variable that holds the key; put the key itself into `.env` in the home.",
        )
    raise UsageError(
        f"the variable {variable!r}, which holds the key of {whose}, is not set",
        hint=Hint(
            f"Write `{variable}=…` into {in_home(environment, '.env')}, or set up the provider",
            "set_up",
            before=f"Built-in providers: {_list(PUBLIC_PROVIDERS)}.",
        ),
    )
