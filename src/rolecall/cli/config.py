"""`rolecall config`: reads and changes `config.yaml` in the home."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from typing import Any

from rolecall.cli import Verb, hints
from rolecall.cli.output import add_format, colored, read_input, say, show
from rolecall.errors import NotFound, UsageError
from rolecall.settings.settings import Path


def _get(options: Namespace) -> None:
    from rolecall.settings import config
    from rolecall.settings.settings import kind_of, path_of

    path = path_of(options.key)
    kind_of(path)
    value = _at(config.load(), path)
    if not options.reveal:
        value = _masked({path[-1]: value})[path[-1]]
    show(options, {"value": value}, (lambda: value) if isinstance(value, str) else None)


def _at(settings: Any, path: Path) -> Any:
    from rolecall.settings.settings import key_of

    for step in path:
        settings = settings.get(step) if isinstance(settings, dict) else None
    if settings is None:
        raise NotFound(
            f"{key_of(path)} is not set", hint=f"`rolecall config set {key_of(path)} VALUE` sets it."
        )
    return settings


def _masked(value: Any) -> Any:
    from rolecall.settings.mask import MASKED, masked
    from rolecall.threads.workspace import mask

    return mask().value(masked(value, MASKED))


def _set(options: Namespace) -> None:
    from rolecall.settings import config, config_file
    from rolecall.settings.mask import MASKED, masked
    from rolecall.settings.settings import key_of, path_of, value_from

    path = path_of(options.key)
    text = read_input(options.value) if options.value == "-" else options.value
    value = value_from(text.removesuffix("\n") if options.value == "-" else text, path)
    file = config.config_path()

    def edit(text: str) -> str:
        changed = config_file.with_value(text, path, value, source=file)
        _refuse_dangling(config.parse(changed, file), path)
        if path == ("catalog",):
            _check_catalog(config.folder_in_home(value))
        return changed

    config_file.change(file, edit)
    if path[-1] == "apiKey":
        print(
            f"warning: the key now stands in {file}; better keep it in .env there and name it with "
            f"{key_of((*path[:-1], 'apiKeyEnv'))}",
            file=sys.stderr,
        )
    shown = masked({path[-1]: value}, MASKED)[path[-1]]
    show(options, {"key": options.key, "value": shown}, lambda: f"{options.key} = {shown}")


def _refuse_dangling(settings: dict[str, Any], path: Path) -> None:
    """A name that leads nowhere is refused when it is set, not when a thread needs it."""
    from rolecall.settings.settings import dangling

    found = [one for one in dangling(settings, adapters=_adapters()) if one.startswith(".".join(path) + ":")]
    if found:
        raise UsageError(found[0], hint="Nothing was changed.")


def _check_catalog(folder: str) -> None:
    """Refuse a catalogue that cannot be used when it is set, not when a host or a plan needs it."""
    from rolecall.errors import RolecallError
    from rolecall.nexus import catalog

    try:
        catalog.load(folder)
    except RolecallError as exc:
        raise UsageError(exc.message, hint=f"{hints.word(exc.hint)} Nothing was changed.".strip()) from exc


def _adapters() -> tuple[str, ...]:
    from rolecall.agents import ADAPTERS

    return (*ADAPTERS, "human")


def _unset(options: Namespace) -> None:
    from rolecall.settings import config, config_file
    from rolecall.settings.settings import path_of

    path, file = path_of(options.key), config.config_path()
    # A key that is not known any more may still stand in the file, and this is how it gets out.
    value = _at(config.load(), path)
    config_file.change(file, lambda text: config_file.without_value(text, path, source=file))
    shown = _masked({path[-1]: value})[path[-1]]
    show(options, {"key": options.key, "value": None, "was": shown}, lambda: f"{options.key} removed")


def _list(options: Namespace) -> None:
    from rolecall.settings import config
    from rolecall.settings.settings import problems

    settings = config.load()
    for problem in problems(settings, adapters=_adapters()):
        say(f"{colored('warning:', 'yellow')} {config.config_path()}: {problem}", sys.stderr)
    shown = _masked(settings)
    show(options, shown, lambda: _listed(shown, config.config_path()))


def _listed(settings: dict[str, Any], file: str) -> str:
    from rolecall.workflow.document import dump

    return f"# {file}\n" + (dump(settings).rstrip() if settings else "# nothing is set")


# -- the table --


def _get_arguments(parser: ArgumentParser) -> None:
    _key_argument(parser)
    parser.add_argument("--reveal", action="store_true", help="show keys and passwords")
    add_format(parser)


def _key_argument(parser: ArgumentParser) -> None:
    parser.add_argument("key", metavar="KEY", help="joined by dots: providers.openrouter.baseUrl")


def _set_arguments(parser: ArgumentParser) -> None:
    _key_argument(parser)
    parser.add_argument(
        "value", metavar="VALUE", help="the value; a JSON array for `args`; - reads standard input"
    )
    add_format(parser)


def _unset_arguments(parser: ArgumentParser) -> None:
    _key_argument(parser)
    add_format(parser)


VERBS = {
    "get": Verb(
        _get,
        "print one setting, or a section of them",
        "rolecall config get defaultAgent\nrolecall config get providers.openrouter",
        _get_arguments,
    ),
    "set": Verb(
        _set,
        "change one setting; comments in the file stay",
        "rolecall config set defaultAgent command:./agent.sh\n"
        'rolecall config set agents.hermes.args \'["--profile", "work"]\'',
        _set_arguments,
    ),
    "unset": Verb(
        _unset,
        "remove one setting, or a section of them",
        "rolecall config unset agentOverrides.solve-issue.reviewer",
        _unset_arguments,
    ),
    "list": Verb(_list, "print all settings, keys masked", "rolecall config list", add_format),
}
