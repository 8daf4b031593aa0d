"""`rolecall config`: read and change `config.yaml` in Rolecall's home."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING, Any

from rolecall.agents import ADAPTERS
from rolecall.cli import CommandResult, argument, flag, hints, verb
from rolecall.cli.output import dump_yaml, read_input, warn, word_value
from rolecall.errors import NotFound, RolecallError, UsageError
from rolecall.settings import config, config_file, settings
from rolecall.settings.mask import MASKED, hide_secrets
from rolecall.store.lazy import Module

if TYPE_CHECKING:
    from rolecall.nexus import catalog
else:
    catalog = Module("rolecall.nexus.catalog")

_KEY = argument("key", "KEY", "joined by dots: providers.openrouter.baseUrl")
_AGENTS = (*ADAPTERS, "human")


def find_setting(found: Any, path: settings.Path) -> Any:
    """Return the value of a setting, or None if it is not set."""
    for step in path:
        found = found.get(step) if isinstance(found, dict) else None
    return found


def _look_up(path: settings.Path) -> Any:
    found = find_setting(config.load(), path)
    if found is None:
        key = settings.key_of(path)
        raise NotFound(f"{key} is not set", hint=f"`rolecall config set {key} VALUE` sets it.")
    return found


def _as_typed(value: Any) -> str:
    """Return a value in the form that `config set` reads, and a section as YAML."""
    if isinstance(value, dict):
        return dump_yaml(value).rstrip()
    return word_value(value)


def _mask(name: str, value: Any) -> Any:
    return config.mask().value(hide_secrets({name: value}, MASKED))[name]


@verb(
    "config get",
    "print one setting, or a section of them",
    "rolecall config get defaultAgent\nrolecall config get providers.openrouter",
    _KEY,
    flag("--reveal", "show keys and passwords"),
)
def get(options: Namespace) -> CommandResult:
    path = settings.path_of(options.key)
    settings.kind_of(path)
    value = _look_up(path)
    if not options.reveal:
        value = _mask(path[-1], value)
    return CommandResult({"value": value}, _as_typed(value))


@verb(
    "config set",
    "change one setting; comments in the file stay",
    "rolecall config set defaultAgent command:./agent.sh\n"
    'rolecall config set agents.hermes.args \'["--profile", "work"]\'',
    _KEY,
    argument("value", "VALUE", "the value; a JSON array for `args`; - reads standard input"),
)
def set_value(options: Namespace) -> CommandResult:
    path, file = settings.path_of(options.key), config.config_path()
    text = read_input("-").removesuffix("\n") if options.value == "-" else options.value
    value = settings.value_from(text, path)
    if path == ("catalog",):
        try:
            catalog.load(config.folder_in_home(value))
        except RolecallError as exc:
            raise UsageError(
                exc.message, hint=f"{hints.word(exc.hint)} Nothing was changed.".strip()
            ) from exc

    def edit(before: str) -> str:
        after = config_file.with_value(before, path, value, source=file)
        # A name that refers to nothing is refused now, not when a thread needs it.
        for name in settings.find_dangling_names(config.parse(after, file), adapters=_AGENTS):
            if name.path == path:
                raise UsageError(f"{name.message}. {name.hint}", hint="Nothing was changed.")
        return after

    config_file.change(file, edit)
    if path[-1] == "apiKey":
        variable = settings.key_of((*path[:-1], "apiKeyEnv"))
        warn(f"the key is now in {file}; better keep it in .env there and name it with {variable}")
    shown = hide_secrets({path[-1]: value}, MASKED)[path[-1]]
    return CommandResult({"key": options.key, "value": shown}, f"{options.key} = {_as_typed(shown)}")


@verb(
    "config unset",
    "remove one setting, or a section of them",
    "rolecall config unset agentOverrides.solve-issue.reviewer",
    _KEY,
)
def unset(options: Namespace) -> CommandResult:
    path, file = settings.path_of(options.key), config.config_path()
    value = _look_up(path)  # the key is not checked, so that an unknown one can be removed too
    config_file.change(file, lambda text: config_file.without_value(text, path, source=file))
    shown = {"key": options.key, "value": None, "was": _mask(path[-1], value)}
    return CommandResult(shown, f"{options.key} removed")


@verb("config list", "print all settings, keys masked", "rolecall config list")
def list_settings(_options: Namespace) -> CommandResult:
    file = config.config_path()
    text = config.read_text(file)
    found = config.parse(text, file)
    for problem in settings.problems(found, text, source=file, adapters=_AGENTS):
        warn(f"{problem.place}: {problem.text}")
    shown = config.mask().value(hide_secrets(found, MASKED))
    return CommandResult(
        shown, lambda: f"# {file}\n" + (dump_yaml(shown).rstrip() if shown else "# nothing is set")
    )
