"""The only reader of the environment and of configuration files.

Everything else is told. The home folder is `~/.rolecall`, or what ROLECALL_HOME names; the store is
`store.db` in it, or what ROLECALL_STORE or the `store:` key of `config.yaml` names.
"""

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from rolecall.errors import UsageError
from rolecall.store.backend import DURABILITIES, Durability


class StoreSettings(NamedTuple):
    url: str
    """A path of a SQLite file, `files:FOLDER`, or `postgresql://…`."""
    durability: Durability


def home(environ: Mapping[str, str] = os.environ) -> str:
    """The folder that holds the store and the configuration."""
    named = environ.get("ROLECALL_HOME")
    return os.path.abspath(named) if named else os.path.join(os.path.expanduser("~"), ".rolecall")


def store_settings(environ: Mapping[str, str] = os.environ) -> StoreSettings:
    """Where the store is and when it waits for the disk."""
    folder = home(environ)
    configured = _configured_store(os.path.join(folder, "config.yaml"))
    url = environ.get("ROLECALL_STORE") or configured.get("url") or os.path.join(folder, "store.db")
    durability = configured.get("durability", "heads")
    if not isinstance(url, str) or durability not in DURABILITIES:
        raise UsageError(
            f"{os.path.join(folder, 'config.yaml')}: `store` has url {url!r} and durability {durability!r}",
            hint=f"url is a path or an address, durability one of {', '.join(DURABILITIES)}.",
        )
    return StoreSettings(url, durability)


def _configured_store(path: str) -> Mapping[str, Any]:
    """The `store:` section of the configuration file; reading YAML costs 30 ms, so only if it has one."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except FileNotFoundError:
        return {}
    if not any(line.startswith(("store:", '"store":', "'store':")) for line in text.splitlines()):
        return {}
    import yaml

    try:
        section = yaml.safe_load(text)["store"]
    except yaml.YAMLError as exc:
        raise UsageError(f"{path} is not YAML: {exc}", hint="Correct the file, or move it away.") from exc
    if isinstance(section, str):
        return {"url": section}
    if not isinstance(section, dict) or not set(section) <= {"url", "durability"}:
        raise UsageError(f"{path}: `store` must be a path or a mapping with `url` and `durability`")
    return section
