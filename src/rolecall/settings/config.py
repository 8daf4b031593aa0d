"""The only reader of the environment and of configuration files.

The home folder is `~/.rolecall` or ROLECALL_HOME. The store is `store.db` in that folder, unless ROLECALL_STORE or
the `store:` key of `config.yaml` gives another. `.env` in the home adds variables that are not in the environment.

Every command and every hook imports this module, so it imports other modules only when it needs them.
"""

from __future__ import annotations

import os
import pwd
import re
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from rolecall.errors import UsageError
from rolecall.store.lazy import Module

if TYPE_CHECKING:
    import hashlib
    import zlib

    from rolecall.settings import capabilities, settings, yaml12
    from rolecall.settings import mask as masks
    from rolecall.settings.mask import Mask
    from rolecall.settings.settings import Settings
    from rolecall.store import backend
    from rolecall.store.backend import Durability
else:
    backend = Module("rolecall.store.backend")
    capabilities = Module("rolecall.settings.capabilities")
    hashlib = Module("hashlib")
    masks = Module("rolecall.settings.mask")
    settings = Module("rolecall.settings.settings")
    yaml12 = Module("rolecall.settings.yaml12")
    zlib = Module("zlib")


HOST_KEYS = "hosts"
"""The name of the folder in the home that contains the host key, which is a file with a random name."""
SESSION_FOLDER = "CLAUDE_PROJECT_DIR"
"""The variable that names the folder in which Claude Code was started. Hooks read it before they know whether there is
a project, so the variable is here: importing `hosts/claude` would slow down hooks outside projects."""


class StoreSettings(NamedTuple):
    url: str
    """The path of a SQLite file, `files:FOLDER`, or `postgresql://…`."""
    durability: Durability


def home(environ: Mapping[str, str] = os.environ) -> str:
    """Return the folder that contains the store and the configuration."""
    named = environ.get("ROLECALL_HOME")
    return os.path.abspath(named) if named else os.path.join(os.path.expanduser("~"), ".rolecall")


def wants_color(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether to print colours on a terminal; see https://no-color.org."""
    return not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"


def has_display(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether a graphical browser can be opened on this machine."""
    return sys.platform == "darwin" or bool(environ.get("DISPLAY") or environ.get("WAYLAND_DISPLAY"))


def columns(environ: Mapping[str, str] = os.environ) -> int:
    """Return the width of lines outside a terminal, or 0 if it is not set."""
    wanted = environ.get("COLUMNS", "")
    return int(wanted) if wanted.isdecimal() else 0


def config_path(environ: Mapping[str, str] = os.environ) -> str:
    return os.path.join(home(environ), "config.yaml")


def catalog_folder(environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the folder with the agents and skills to use instead of the built-in ones, or None if none is
    configured."""
    try:
        named = settings.catalog(load(environ))
    except UsageError as exc:
        raise UsageError(f"{config_path(environ)}: {exc.message}", hint=exc.hint) from None
    return folder_in_home(named, environ) if named else None


def folder_in_home(name: str, environ: Mapping[str, str] = os.environ) -> str:
    """Return the folder that a setting names. A relative path is relative to the home."""
    return os.path.join(home(environ), os.path.expanduser(name))


def work_folder(environ: Mapping[str, str] = os.environ) -> str:
    """Return the folder that contains the work folders of threads."""
    return os.path.join(home(environ), "work")


def restrictions(environ: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return the restrictions of the role for which this process runs. The engine passes them to every process of an
    agent."""
    words = tuple(word for word in environ.get(capabilities.VARIABLE, "").split(",") if word)
    for word in words:
        if word not in capabilities.RESTRICTIONS:
            raise UsageError(
                f"{capabilities.VARIABLE} has the word {word!r}, which is not known here",
                hint=f"Known are {', '.join(capabilities.RESTRICTIONS)}.",
            )
    return words


def run(environ: Mapping[str, str] = os.environ) -> str:
    """Return the ids of the agent runs to which this process belongs, separated by slashes, as set by `agents.process`,
    or an empty string if there are none."""
    return environ.get("ROLECALL_RUN", "")


def user_name() -> str:
    """Return the name of the account under which this process runs."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # the account has no name, perhaps in a container
        return str(os.getuid())


def plays_role(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether this process runs for a role, either inside a step or under restrictions."""
    return bool(run(environ) or environ.get("ROLECALL_RESTRICTIONS"))


def may_start_threads(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether the engine allows the role of this process to start threads."""
    return environ.get(capabilities.THREADS_VARIABLE) == "1"


def host_key(environ: Mapping[str, str] = os.environ) -> str:
    """Return the path of the file that hosts show when they start our hooks and servers, or an empty string if nothing
    was installed from this home."""
    folder = os.path.join(home(environ), HOST_KEYS)
    names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
    return os.path.join(folder, names[0]) if names else ""


def is_host_key(path: str) -> bool:
    """Return whether a file is a host key: a file that contains its own name."""
    return os.path.isfile(path) and read_text(path) == os.path.basename(path)


def session_folder(environ: Mapping[str, str] = os.environ) -> str:
    """Return the folder in which Claude Code was started, as Claude Code passes it to hooks, or an empty string if
    Claude Code did not start this process."""
    return environ.get(SESSION_FOLDER, "")


def versions_folder(store: str | None = None, environ: Mapping[str, str] = os.environ) -> str:
    """Return the folder with copies of workflows written in Python, for the threads that were started with them. Each
    store has a folder of its own, so that unused copies can be removed."""
    return _folder_of_store(environ, "versions", full_store_address(store, environ))


def trees_folder(address: str, environ: Mapping[str, str] = os.environ) -> str:
    """Return the folder with the files that steps found and left, for the store at a full address. Each store has a
    folder of its own, so that files which no step names any more can be removed."""
    return _folder_of_store(environ, "trees", address)


def _folder_of_store(environ: Mapping[str, str], name: str, address: str) -> str:
    return os.path.join(home(environ), name, hashlib.sha256(address.encode()).hexdigest()[:16])


def trusted_folder(environ: Mapping[str, str] = os.environ) -> str:
    """Return the folder that contains a file, named by its digest, for each workflow from a pack that somebody has
    looked at."""
    return os.path.join(home(environ), "trusted")


def cache_folder(environ: Mapping[str, str] = os.environ) -> str:
    """Return the folder for data that can be rebuilt at any time."""
    return os.path.join(home(environ), "cache")


# -- the store: every command reads these settings, if possible without a YAML parser --


def store_settings(environ: Mapping[str, str] = os.environ) -> StoreSettings:
    """Return the store's address and durability."""
    file = config_path(environ)
    text = read_text(file)
    section: Any = {}
    # Parsing YAML takes 30 ms, so do not parse a file without this section.
    if any(line.startswith(("store:", '"store":', "'store':")) for line in text.splitlines()):
        section = parse(text, file).get("store")
    if isinstance(section, str):
        section = {"url": section}
    if not isinstance(section, dict) or not set(section) <= {"url", "durability"}:
        raise settings.refusal(text, source=file)
    configured = section.get("url") or "store.db"
    if isinstance(configured, str):
        kind, path = store_address(configured)
        # A path is relative to the home, not to the working directory.
        if kind in ("files", "sqlite") and path:
            path = os.path.join(home(environ), os.path.expanduser(path))
            configured = path if kind == "sqlite" else f"{kind}:{path}"
    url = environ.get("ROLECALL_STORE") or configured
    durability = section.get("durability", "heads")
    if not isinstance(url, str) or durability not in backend.DURABILITIES:
        raise settings.refusal(text, source=file)
    return StoreSettings(url, durability)


def store_address(url: str) -> tuple[str, str]:
    """Return the kind of store that an address names, and the path in the address. A plain path names a SQLite file."""
    kind, colon, path = url.partition(":")
    if not colon or "/" in kind:
        return "sqlite", url
    return kind, path.removeprefix("//") if kind == "sqlite" else path


def full_store_address(url: str | None = None, environ: Mapping[str, str] = os.environ) -> str:
    """Return the full address of a store, which does not depend on the working directory. If `url` is None, use the
    configured store."""
    address = store_settings(environ).url if url is None else url
    kind, path = store_address(address)
    if kind not in ("files", "sqlite"):
        return address
    return os.path.abspath(path) if kind == "sqlite" else f"{kind}:{os.path.abspath(path)}"


def is_postgres(address: str) -> bool:
    """Return whether the address of a store names a PostgreSQL database."""
    return address.startswith(("postgresql://", "postgres://"))


def without_password(address: str) -> str:
    """Return an address without its password, for comparison and for use in files. The function might remove too much,
    but never leaves a part of the password."""
    if not is_postgres(address):
        return address
    shorter = re.sub(r"(?<=://)([^:@/?]*):.*@", r"\1@", address)
    return re.sub(r"(?<=[?&])\w*password=[^&]*", "", shorter)


# -- the rest of the configuration --


def load(environ: Mapping[str, str] = os.environ) -> Settings:
    """Return the content of `config.yaml`, or an empty mapping if the file does not exist."""
    path = config_path(environ)
    return parse(read_text(path), path)


def parse(text: str, path: str) -> Settings:
    """Return the settings in a text. If the text is not a YAML mapping, raise `UsageError` with every problem in it."""
    if not text.strip():
        return {}
    try:
        value = yaml12.load(text, source=path)
    except UsageError:
        raise settings.refusal(text, source=path) from None
    if value is None:  # the file contains only comments
        return {}
    if not isinstance(value, dict):
        raise settings.refusal(text, source=path)
    return value


def environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment in which agents run: ours, plus the variables in `.env`."""
    return {**env_file(environ), **environ}


def mask(places: SecretPlaces | None = None) -> Mask:
    """Return a mask for every secret in the environment, `.env` and the configuration. With `places`, the YAML need not
    be parsed."""
    known = (*masks.secrets_in(environment(), always=env_file()), *_withheld)
    text = read_text(config_path())
    if places is not None and places.checksum == _checksum(text):
        written = [text[start:end] for start, end in places.spans]
    else:
        written = _secrets_in(text)
    return masks.Mask({*known, *(secret for secret in written if len(secret) >= masks.SHORTEST)})


class SecretPlaces(NamedTuple):
    """The positions of the secrets in the text of a configuration. They can be stored without storing the secrets."""

    checksum: int
    spans: list[list[int]]


def secret_places() -> SecretPlaces | None:
    """Return the positions of the secrets in the configuration, or None if its text spells a secret differently, for
    example over several lines."""
    text = read_text(config_path())
    secrets = _secrets_in(text)
    starts = [text.find(secret) for secret in secrets]
    if -1 in starts:
        return None
    spans = [[start, start + len(secret)] for start, secret in zip(starts, secrets, strict=True)]
    return SecretPlaces(_checksum(text), spans)


def _secrets_in(text: str) -> list[str]:
    # Parsing YAML would double the run time of a hook, and most files only name the variables that contain keys.
    found = masks.secrets_of(parse(text, config_path())) if masks.may_have_secrets(text) else []
    return [secret.strip() for secret in found]


def _checksum(text: str) -> int:
    return zlib.crc32(text.encode())


def env_file(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables of `.env` in the home, which consists of NAME=VALUE lines. Quotes and `export` are
    allowed."""
    return variables_in(os.path.join(home(environ), ".env"))


def variables_in(path: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for number, line in enumerate(read_text(path).splitlines(), 1):
        text = line.strip().removeprefix("export ")
        if not text or text.startswith("#"):
            continue
        name, equals, value = text.partition("=")
        if not equals or not name.strip().isidentifier():
            raise UsageError(f"{path}:{number} is not NAME=VALUE", hint="Correct the line.")
        value = value.strip()
        is_quoted = len(value) >= 2 and value[0] == value[-1] and value[0] in "\"'"
        found[name.strip()] = value[1:-1] if is_quoted else value.partition(" #")[0].rstrip()
    return found


def read_text(path: str) -> str:
    """Return the text of a file in the home, or an empty string if the file does not exist."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except FileNotFoundError:
        return ""
    except NotADirectoryError as exc:
        raise UsageError(
            f"{os.path.dirname(path)} is not a folder",
            hint="The home folder is ~/.rolecall, or what ROLECALL_HOME names.",
        ) from exc
    except (OSError, UnicodeDecodeError) as exc:
        raise UsageError(f"{path} cannot be read: {exc}", hint="Correct the file, or move it away.") from exc


# -- the environment of processes --


def child_environment(**more: str) -> dict[str, str]:
    """Return the environment for a child process: ours, plus `more`."""
    return {**os.environ, **more}


_withheld: set[str] = set()
"""Secrets that were removed from the environment but are still masked."""


def withhold(names: Iterable[str]) -> None:
    """Remove variables with secrets from the environment of this process and of everything that it starts."""
    for value in filter(None, [os.environ.pop(name, "") for name in names]):
        # An address with a password is not a secret as a whole.
        found = masks.passwords_in(value) or [value.strip()]
        _withheld.update(secret for secret in found if len(secret) >= masks.SHORTEST)


def set_variables(variables: Mapping[str, str]) -> None:
    """Set variables for this process and for everything that it starts."""
    os.environ.update(variables)
