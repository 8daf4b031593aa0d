"""The configuration: the keys of `config.yaml` (`_SETTINGS`), and what they mean for agents and projects. The functions
here are pure functions of the mapping that `config.load` returns; those about models are in `models.py`."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from rolecall.errors import Hint, NotFound, UsageError
from rolecall.settings import yaml12
from rolecall.settings.form import (
    Anything,
    At,
    Choice,
    Either,
    Field,
    Flag,
    Form,
    ListOf,
    MapOf,
    Number,
    Reading,
    Record,
    RefusedKey,
    Section,
    Text,
    check_value,
    did_you_mean,
    in_order,
    load,
)
from rolecall.settings.yaml12 import Position, Problem, YamlNode

if TYPE_CHECKING:
    from rolecall.store.canonical import JsonObject, Schema

Path = tuple[str, ...]
Settings = Mapping[str, Any]
"""The configuration as `config.load` returns it, or a section of it. It can have any shape; `problems` reports what is
wrong with it."""

PROTOCOLS = ("openai", "anthropic")
"""The protocols that a model's endpoint can speak."""
PUBLIC_PROVIDERS: Mapping[str, Mapping[str, str]] = {
    "openai": {"baseUrl": "https://api.openai.com/v1", "apiKeyEnv": "OPENAI_API_KEY", "protocol": "openai"},
    "anthropic": {
        "baseUrl": "https://api.anthropic.com",
        "apiKeyEnv": "ANTHROPIC_API_KEY",
        "protocol": "anthropic",
    },
}
"""Providers that need no configuration. The key in each variable is sent only to the endpoint in the same entry."""
UWF_PROGRAMS = {
    "uwf-builtin": "builtin",
    "uwf-claude-code": "claude",
    "uwf-cursor": "cursor",
    "uwf-hermes": "hermes",
}
"""The agents that come with uwf, and the adapters that replace them."""
OUTSIDE = "outside"
"""The value of an agent's `effects` if its work has effects outside its folder, so that none of its steps is reused."""
NOTIFIED = ("waits", "limited", "completed", "failed", "discarded")
"""The events of which people can be notified. A killed thread sends no notification, because the person who killed it
knows."""
_GATES = ("block", "warn", "off")
_STEP = r'"([^"]+)"(?:\.|$)|([^."]+)(?:\.|$)'

# Values are kept out of error messages, because any of them might be a misplaced key.
_LINE = Text("text", is_line=True, is_secret=True)
_URL = Text(
    "an address that begins with http:// or https://",
    pattern=r"https?://[^/\s]\S*",
    is_line=True,
    is_secret=True,
)
_VARIABLE = Text("the name of an environment variable", pattern="[A-Za-z_][A-Za-z0-9_]*", is_secret=True)
_DAYS = Number("a whole number of 0 or more", whole=True, least=0, most=10**9)
_PERCENT = Number(whole=True, least=1, most=100)
_KEYS_OF_ENDPOINT = {
    "baseUrl": Field(_URL, "The address of the endpoint."),
    "apiKey": Field(_LINE, "Its key; prefer the name of a variable in `apiKeyEnv`."),
    "apiKeyEnv": Field(_VARIABLE, "The variable, of the environment or of `.env`, with its key."),
}
_THRESHOLDS = {
    "unreadDays": Field(
        _DAYS, "A note that has not been read for this many days counts as unread (90).", to="unread_days"
    ),
    "unreadReads": Field(
        _DAYS, "So is a note that was not read while others were read this often (20).", to="unread_reads"
    ),
    "unchangedDays": Field(
        _DAYS,
        "A note that has not been changed for this many days counts as unchanged (180).",
        to="unchanged_days",
    ),
    "graceDays": Field(_DAYS, "A note younger than this is kept (14).", to="grace_days"),
    "signals": Field(
        Number("3 or 4: the contract forbids fewer", whole=True, least=3, most=4),
        "How many signals make a note a candidate (3).",
    ),
    "overlap": Field(_PERCENT, "Two notes that share this much have one subject (35)."),
    "superseded": Field(_PERCENT, "A note of which this much is in another is superseded (70)."),
}
_MEMORY = Section(
    "memory",
    {
        "autoDelete": Field(Flag(), "Whether `memory gc --auto` deletes notes without asking (false)."),
        **_THRESHOLDS,
    },
)
EXTRACT = Section(
    "extract",
    {
        "provider": Field(_LINE, "A provider of the configuration."),
        **_KEYS_OF_ENDPOINT,
        "model": Field(_LINE, "The provider's name of the model."),
        "timeout": Field(Number("a number of seconds above 0", above=0), "How many seconds it may take."),
    },
)
EXTRACT_OF_PROJECT = Section(
    "extract",
    {
        **EXTRACT.fields,
        "apiKey": RefusedKey(
            "an API key does not belong in the project's file",
            "Use `apiKeyEnv` to name an environment variable that holds the key, because this file is shared.",
        ),
    },
)
"""The form of `extract` in a project's rolecall.yaml."""
_PROVIDER = Section(
    "a provider",
    {**_KEYS_OF_ENDPOINT, "protocol": Field(Choice(*PROTOCOLS), "What the endpoint speaks (openai).")},
)
_MODEL = Section(
    "a model",
    {
        "provider": Field(_LINE, "A name under `providers`."),
        "name": Field(_LINE, "The provider's name of the model."),
    },
)
_AGENT = Section(
    "an agent",
    {
        "adapter": Field(_LINE, "An adapter; its options are keys beside it, such as `model`."),
        "command": Field(_LINE, "The program of an external agent."),
        "args": Field(
            ListOf(_LINE, 'a JSON array of texts, such as ["--yes"]'), "The arguments of the program."
        ),
        "effects": Field(
            Choice(OUTSIDE, "none"),
            "`outside`: its work has effects outside its folder, so no step is reused.",
        ),
    },
    others=Anything(),  # the adapter checks its options when a role first uses the agent
)
_TIERS = Section(
    "modelTiers",
    {
        "high": Field(_LINE, "The model of the high tier, as the host calls it."),
        "standard": Field(_LINE, "The model of the standard tier."),
    },
)
_PROJECT = Section(
    "project",
    {"unplannedEdits": Field(Choice(*_GATES), "What a host's hooks do about edits without a task (block).")},
)
_TREES = Section(
    "trees",
    {
        "keep": Field(Flag(), "Whether steps record the files that roles found and left (true)."),
        "share": Field(Flag(), "Whether files in threads' own folders go to other machines (true)."),
    },
)
_NOTIFY = Section(
    "notify",
    {
        "command": Field(
            ListOf(_LINE, 'a JSON array of texts, such as ["notify-me", "{text}"]', least=1),
            "A program with its arguments; `{text}`, `{title}`, `{address}` are filled in.",
        ),
        "webhook": Field(_URL, "An address that gets the notification as JSON."),
        "desktop": Field(Flag(), "Whether to show a desktop notification (false)."),
        "on": Field(
            ListOf(Choice(*NOTIFIED), 'a JSON array, such as ["waits"]'), "The events to notify of (all)."
        ),
        "page": Field(_URL, "The address of the web page, if it does not run on this machine."),
    },
)
_TRACES = Section(
    "traces",
    {
        "otlp": Field(_URL, "The address of an OpenTelemetry collector."),
        "headersEnv": Field(
            _VARIABLE, "The variable with the headers it wants: `name=value`, separated by commas."
        ),
        "content": Field(Flag(), "Whether spans contain prompts, answers and tool results (false)."),
    },
)
_STORE = Section(
    "store",
    {
        "url": Field(_LINE, "A SQLite file, files:FOLDER or postgresql://USER@HOST/DATABASE."),
        "durability": Field(
            Choice("always", "heads", "never"),
            "When a write waits for the disk, in SQLite (heads).",
            nullable=False,
        ),
    },
)
_SETTINGS = Section(
    "the configuration",
    {
        "providers": Field(
            MapOf(_PROVIDER), "Endpoints of models. `openai` and `anthropic` (for `builtin`) need no entry."
        ),
        "models": Field(MapOf(_MODEL), "Models under names of your own."),
        "agents": Field(MapOf(_AGENT), "Agents under names of your own."),
        "defaultAgent": Field(
            _LINE, "Plays the roles that name no agent: an alias, or an adapter such as `claude`."
        ),
        "defaultModel": Field(_LINE, "A name under `models`."),
        "agentOverrides": Field(
            MapOf(MapOf(_LINE)), "Agents by workflow and role, instead of the role's own."
        ),
        "modelOverrides": Field(
            MapOf(_LINE), "A name under `models` by scene; the scene `extract` reads answers."
        ),
        "modelTiers": Field(
            MapOf(_TIERS),
            "Models of the catalogue's agents, by host (claude, codex, opencode), alias or adapter.",
        ),
        "extract": Field(EXTRACT, "The model that reads answers without frontmatter."),
        "memory": Field(_MEMORY, "When a note of a project's memory may be forgotten."),
        "project": Field(_PROJECT, "How hosts work on a project."),
        "trees": Field(_TREES, "The recorded files of steps."),
        "notify": Field(
            _NOTIFY, "How people are told that a thread is waiting for one of them, or has ended."
        ),
        "traces": Field(_TRACES, "Where the service sends each step as a span."),
        "catalog": Field(
            Text("the path of a folder", is_line=True, is_secret=True),
            "A folder with agents and skills to use instead of the built-in ones.",
        ),
        "store": Field(
            Either(
                "a path or a mapping",
                {dict: _STORE, str: _LINE},
                hint="For example `store: /srv/rolecall/store.db`.",
            ),
            "Where threads are kept: a path or an address (store.db in the home).",
            nullable=False,
        ),
    },
    wanted="a mapping of settings",
)
KEYS = _SETTINGS.keys


def json_schema() -> Schema:
    """Return the JSON Schema of `config.yaml`."""
    return _SETTINGS.schema()


# -- keys --


def path_of(key: str) -> Path:
    """Return the steps of a dotted key. A step that contains a dot is in double quotes."""
    steps, at = [], 0
    while match := re.compile(_STEP).match(key, at):
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


def kind_of(path: Path) -> Form[Any]:
    """Return the form of the value at a path. Raise `UsageError` for an unknown key."""
    level: Form[Any] = _SETTINGS
    for depth, step in enumerate(path):
        if isinstance(level, Either):
            level = level.forms[dict]
        if isinstance(level, MapOf):
            level = level.item
        elif isinstance(level, Record) and step in level.fields:
            level = level.fields[step].form
        elif isinstance(level, Record) and level.others is not None:
            level = level.others
        elif isinstance(level, Record):
            of = f" of {key_of(path[:depth])}" if depth else ""
            raise UsageError(
                f"{key_of(path[: depth + 1])!r} is not a key of the configuration",
                hint=did_you_mean(step, level.keys, what=f"Keys{of}"),
            )
        else:
            raise UsageError(f"{key_of(path[:depth])} is a single value and has no key {step!r}")
    return level


def value_from(text: str, path: Path) -> Any:
    """Return the value that `text` stands for at a path."""
    form = kind_of(path)
    if isinstance(form, Either):
        form = form.forms[dict]
    if isinstance(form, (Record, MapOf)):
        names = ", ".join(form.keys) if isinstance(form, Record) else "any name"
        raise UsageError(
            f"{key_of(path)} is a section",
            hint=f"Set one of its keys: {key_of(path)}.NAME with NAME of {names}.",
        )
    value: Any = text
    if isinstance(form, Number) and re.fullmatch(r"[0-9]*\.?[0-9]{1,9}", text):
        value = int(text) if text.isdecimal() and form.whole else float(text)
    elif isinstance(form, Flag):
        value = {"true": True, "false": False}.get(text, text)
    elif isinstance(form, ListOf):
        try:
            value = json.loads(text)
        except ValueError:
            raise UsageError(f"{key_of(path)} must be {form.wanted}") from None
    read = check_value(form, value, path)
    return list(read) if isinstance(read, tuple) else read


def problems(
    settings: Settings, text: str, *, source: str, adapters: Collection[str] | None = None
) -> tuple[Problem, ...]:
    """Return all problems with a configuration that was read from `text`: unknown keys, invalid values and, given the
    known `adapters`, names that are not defined. The text is read again for their places, if there are any."""

    def find_places() -> YamlNode:
        return yaml12.read(text, source=source).node or YamlNode(None, Position(source, 1, 1))

    reading = Reading(find_places, hides_texts=True)
    _SETTINGS.read(settings, At(reading))
    if adapters is not None:
        for name in find_dangling_names(settings, adapters=adapters):
            At(reading, name.path).report(name.message, name.hint)
    return in_order(reading.problems, source)


def refusal(text: str, *, source: str) -> UsageError:
    """Return the error for the text of a configuration that cannot be used, with every problem in it."""
    found = load(_SETTINGS, text, source=source, hides_texts=True).problems
    error = yaml12.unreadable(source, found)
    return UsageError(error.message, hint=error.hint or "Correct the file, or move it away.")


class DanglingName(NamedTuple):
    """A name that the configuration uses but does not define."""

    path: Path
    message: str
    hint: str


def find_dangling_names(settings: Settings, *, adapters: Collection[str]) -> list[DanglingName]:
    """Return the names that the configuration uses but does not define."""
    agents: list[tuple[Path, Any]] = [(("defaultAgent",), settings.get("defaultAgent"))]
    for workflow, roles in get_section(settings, "agentOverrides").items():
        agents += [(("agentOverrides", workflow, role), alias) for role, alias in as_mapping(roles).items()]
    for name, tiers in get_section(settings, "modelTiers").items():
        agents += [(("modelTiers", name, tier), name) for tier in as_mapping(tiers)]
    models: list[tuple[Path, Any]] = [(("defaultModel",), settings.get("defaultModel"))]
    models += [
        (("modelOverrides", scene), name) for scene, name in get_section(settings, "modelOverrides").items()
    ]
    extract = get_section(settings, "extract")
    providers: list[tuple[Path, Any]] = [(("extract", "provider"), extract.get("provider"))]
    for name, entry in get_section(settings, "models").items():
        providers.append((("models", name, "provider"), as_mapping(entry).get("provider")))
    known_agents = {*get_section(settings, "agents"), *adapters, *UWF_PROGRAMS}
    aliases = [(path, name) for path, name in agents if str(name).partition(":")[0] not in known_agents]
    return [
        *_missing("agent", aliases, known_agents),
        *_missing("model", models, get_section(settings, "models")),
        *_missing("provider", providers, {*get_section(settings, "providers"), *PUBLIC_PROVIDERS}),
    ]


def _missing(what: str, named: Sequence[tuple[Path, Any]], known: Collection[str]) -> Iterator[DanglingName]:
    for path, name in named:
        if isinstance(name, str) and name not in known:
            hint = did_you_mean(name, sorted(known), what="Known")
            yield DanglingName(path, f"{'.'.join(path)}: there is no {what} {name!r}", hint)


def get_section(settings: Settings, key: str) -> Settings:
    return as_mapping(settings.get(key))


def as_mapping(value: Any) -> Settings:
    return value if isinstance(value, Mapping) else {}


def in_home(environment: Mapping[str, str], file: str) -> str:
    """Return the path of a file in the home, in the form in which hints show it."""
    return os.path.join(environment.get("ROLECALL_HOME") or "~/.rolecall", file)


def keeps_trees(settings: Settings) -> bool:
    """Return whether steps record the files that their roles found and left."""
    return get_section(settings, "trees").get("keep") is not False


def shares_trees(settings: Settings) -> bool:
    """Return whether the files in a thread's own folder are passed on to other machines through a shared store."""
    return keeps_trees(settings) and get_section(settings, "trees").get("share") is not False


class Collector(NamedTuple):
    """The collector that receives traces, as configured in the section `traces`."""

    url: str
    headers: str = ""
    """The headers that the collector requires, in the form of OTEL_EXPORTER_OTLP_HEADERS."""
    content: bool = False
    """Whether the collector receives prompts, answers and tool results."""


def collector(settings: Settings, environment: Mapping[str, str], url: str | None = None) -> Collector | None:
    """Return the configured collector, or the one at `url`. Only the configured collector gets headers."""
    section = get_section(settings, "traces")
    check_value(kind_of(("traces",)), section, ("traces",))
    if url and url != section.get("otlp"):
        return Collector(value_from(url, ("traces", "otlp")))
    if not section.get("otlp"):
        return None
    variable = section.get("headersEnv", "")
    if variable and not environment.get(variable):
        raise UsageError(
            f"the variable {variable!r}, which holds the headers for traces, is not set",
            hint=f"Write `{variable}=…` into {in_home(environment, '.env')}.",
        )
    return Collector(section["otlp"], environment.get(variable, ""), section.get("content", False))


# -- agents --

NAME_AN_AGENT = Hint("Give the role an `agent`, or set a default", "set_default_agent", agent="NAME")


def agent_for(
    settings: Settings, *, workflow: str, role: str, named: str | None, override: str | None
) -> str:
    """Return the alias or spec of the agent for a role: from `override` (the --agent option), agentOverrides, the role
    itself, or the default. The --agent option does not replace a command that is run for its exit code."""
    configured = as_mapping(get_section(settings, "agentOverrides").get(workflow)).get(role)
    if named and named.startswith("run:"):
        override = None
    chosen = override or configured or named or settings.get("defaultAgent")
    if not chosen:
        raise UsageError(f"no agent is named for the role {role!r} of {workflow!r}", hint=NAME_AN_AGENT)
    return str(chosen)


def get_agent_spec(settings: Settings, alias: str) -> tuple[str, JsonObject]:
    """Return the spec and the options of an alias. Any other name is its own spec.

    `{adapter: claude, model: …}` is an adapter with options, and `{command, args}` an external agent. The agents of uwf
    are mapped to our own adapters.
    """
    given = get_section(settings, "agents").get(alias)
    entry = as_mapping(given)
    if program := uwf_program(settings, alias):
        if entry.get("args"):
            raise UsageError(
                f"the agent {alias!r} of the configuration has arguments for {program}, which Rolecall does not run",
                hint=Hint(
                    "Name the adapter with its options instead",
                    "set_setting",
                    key=f"agents.{alias}.adapter",
                    value=UWF_PROGRAMS[program],
                ),
            )
        return UWF_PROGRAMS[program], {}
    if given is None:
        return alias, {}
    if isinstance(entry.get("adapter"), str):
        return entry["adapter"], {
            key: value for key, value in entry.items() if key not in ("adapter", "effects")
        }
    if not isinstance(entry.get("command"), str):
        raise UsageError(
            f"the agent {alias!r} of the configuration has neither `adapter` nor `command`",
            hint=Hint("Set one", "set_setting", key=f"agents.{alias}.command", value="PROGRAM"),
        )
    args = entry.get("args") or []
    if not isinstance(args, list):
        raise UsageError(f"`args` of the agent {alias!r} of the configuration must be a list")
    return f"external:{shlex.join([entry['command'], *map(str, args)])}", {"has_flags": True}


def has_effects(settings: Settings, alias: str) -> bool:
    """Return whether the configuration says that an agent's work has effects outside its folder."""
    return as_mapping(get_section(settings, "agents").get(alias)).get("effects") == OUTSIDE


def uwf_program(settings: Settings, alias: str) -> str | None:
    """Return the uwf agent that a name means if one of our adapters replaces that agent, or None for any other name."""
    agents = get_section(settings, "agents")
    named = as_mapping(agents[alias]).get("command") if agents.get(alias) is not None else alias
    return named if isinstance(named, str) and named in UWF_PROGRAMS else None


def is_known_agent(settings: Settings, alias: str, adapters: Collection[str]) -> bool:
    return alias in (*get_section(settings, "agents"), *UWF_PROGRAMS) or alias.partition(":")[0] in adapters


def unknown_agent(settings: Settings, alias: str, adapters: Collection[str]) -> NotFound:
    known = did_you_mean(alias, sorted({*get_section(settings, "agents"), *adapters}), what="Known")
    return NotFound(
        f"there is no agent {alias!r}",
        hint=f"{known} To run a program of your own: `command:{alias}` gets the prompt on its standard input and "
        f"prints the answer; `external:{alias}` puts the step itself.",
    )


def tier_model(settings: Settings, names: Sequence[str], tier: str) -> str:
    """Return the configured model for a tier of the catalogue's agents, from the first of `names` that has one. The
    names are an alias followed by its adapter, or a host. An empty string means the agent's own default."""
    tiers = get_section(settings, "modelTiers")
    found = (as_mapping(tiers.get(name)).get(tier) for name in names)
    return next((str(model) for model in found if model), "")


# -- the project --


def unplanned_edits(settings: Settings) -> str:
    """Return how a host's hooks treat edits while no task is planned: block, warn or off."""
    mode = get_section(settings, "project").get("unplannedEdits", _GATES[0])
    if mode not in _GATES:
        raise UsageError(
            f"project.unplannedEdits must be one of {', '.join(_GATES)}, not {mode!r}",
            hint=Hint("Correct it", "set_setting", key="project.unplannedEdits", value="block"),
        )
    return str(mode)


def memory_thresholds(settings: Settings) -> dict[str, int]:
    """Return the configured thresholds for merging and forgetting memory notes, under their names in
    `project.memory`."""
    written = get_section(settings, "memory")
    section = {key: written[key] for key in _THRESHOLDS if key in written}
    return check_value(_MEMORY, section, ("memory",))


def catalog(settings: Settings) -> str | None:
    """Return the folder of the catalogue, or None for the built-in one. Raise an error for a key that looks like a
    misspelt `catalog`, because ignoring the key would silently use the built-in catalogue."""
    for key in settings:
        if key not in KEYS and did_you_mean(str(key), KEYS) == "Did you mean 'catalog'?":
            kind_of((key,))  # raises the error
    folder = settings.get("catalog")
    if folder is None or (isinstance(folder, str) and folder.strip() and folder.isprintable()):
        return folder
    raise UsageError(
        "catalog must be the path of a folder",
        hint=Hint("Go back to our own catalogue", "unset_setting", key="catalog"),
    )
