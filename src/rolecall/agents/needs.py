"""What the agents' programs need in a sandbox, in addition to the access of their role.

A program can write to the folder with its state, login and sessions, but not to those settings in the folder that run
commands later, outside of any sandbox. Those settings stay read-only. Missing settings are created empty, because only
an existing file can be protected.

If a program lets us set the address of its model, it is given the address of Rolecall's proxy and a placeholder for the
key (proxy.py). This module is imported only for roles with a sandbox.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from glob import glob
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from rolecall.agents.presence import find_interpreters, find_program
from rolecall.agents.sandbox import Needs, Policy, ProxiedEndpoint
from rolecall.store.lazy import Module

if TYPE_CHECKING:
    import rolecall.agents.proxy as proxy
else:
    proxy = Module("rolecall.agents.proxy")

_HELPERS = ("git", "rg")
"""Programs that agents start by themselves, even if the model is not allowed to start any program, in addition to those
in their own package."""
_ADDRESS_VARIABLE = "ROLECALL_MODEL_ADDRESS"
"""The environment variable with the proxy's address, for programs that read their model's address from settings."""
_ADDRESS = re.compile(r"""base_?url["']?\s*[:=]\s*["']?(https?://[^"'\s,}]+)""", re.IGNORECASE)
_KEY_NAME = re.compile(
    r"""(?:env_key|key_env|api_key_env(?:_var)?)["']?\s*[:=]\s*["']?([A-Za-z_]\w*)|\{env:([A-Za-z_]\w*)\}"""
)


class State(NamedTuple):
    """The folders where a program keeps its state, and the endpoints of its model."""

    folder: tuple[str, ...]
    """The variable that names a folder, that folder's default path in the user's home and, if the state is in a
    subfolder, the name of the subfolder."""
    held: tuple[str, ...] = ()
    """Files and folders that can run commands later, relative to the folder. Missing ones are created; the name of a
    folder ends with a slash."""
    protect: tuple[str, ...] = ()
    """Further files and folders that can run commands later, and instructions for later sessions. They are protected
    only if they exist."""
    write: tuple[str, ...] = ()
    """Further folders, relative to the user's home."""
    read: tuple[str, ...] = ()
    """Places outside these folders, also relative to the user's home."""
    env: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    """The user's settings files, which can name endpoints and the variables with their keys, relative to the
    folder. The project's files are excluded, because an agent could have written them."""
    content: str = ""
    """The environment variable that contains further settings."""
    base_urls: tuple[str, ...] = ()
    """The environment variables that name the endpoint."""
    hosts: tuple[str, ...] = ()
    """The default endpoints, and the hosts that renew a login; used if no setting or variable names an endpoint."""
    more_hosts: tuple[str, ...] = ()
    """Endpoints that are needed in addition to the named or default ones."""
    key: tuple[str, ...] = ()
    """The variables with the address and key of the endpoint to use instead of `endpoints`, and a default address."""
    endpoints: tuple[ProxiedEndpoint, ...] = ()
    """The endpoints for which the program gets a placeholder instead of the key. The program needs no direct access to
    them."""


@asynccontextmanager
async def enter(
    policy: Policy,
    agent: str,
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    folder: Path,
    own: Iterable[str] = (),
    write: Sequence[str] = (),
) -> AsyncIterator[tuple[list[str], Policy]]:
    """Yield the command and the policy with which to start an agent's program. The proxy that the program needs stays
    open until the block ends."""
    policy = confine(policy, agent, argv[0], env=env, folder=folder, own=own, write=write)
    if not policy.needs_proxy:
        yield list(argv), policy
        return
    async with proxy.serve(policy, env) as policy:
        words: list[str] = []
        if address := policy.variables.get(_ADDRESS_VARIABLE):
            words, variables = _REDIRECTS[agent](address, env, os.fspath(folder))
            policy = replace(policy, variables={**policy.variables, **variables})
        yield [argv[0], *words, *argv[1:]], policy


def confine(
    policy: Policy,
    agent: str,
    program: str,
    *,
    env: Mapping[str, str],
    folder: Path,
    own: Iterable[str] = (),
    write: Sequence[str] = (),
) -> Policy:
    """Return the policy for an agent's program that is started in `folder`. `own` names the adapter's environment
    variables, and `write` lists further writable places."""
    needs = find_needs(agent, env=env, folder=folder)
    path, _ = find_program(program, env=env, folder=folder)
    installed = [] if path is None else _find_installed(path, env, folder)
    shown = [place for place in installed if not policy.may_read(place)]
    before, modules, _ = os.path.realpath(path or "").partition("/node_modules/")
    started = [before + modules] if modules else []
    started += filter(None, (find_program(name, env=env, folder=folder)[0] for name in _HELPERS))
    return policy.grant(
        needs._replace(
            write=(*needs.write, *write),
            read=(*needs.read, *shown),
            execute=tuple(started),
            env=(*needs.env, *own),
        )
    )


def find_needs(agent: str, *, env: Mapping[str, str], folder: Path) -> Needs:
    """Return what an agent needs, given the name of its adapter or preset; an unknown agent needs nothing. Create
    missing folders, and missing settings that must be protected."""
    state = STATES.get(agent)
    if state is None:
        return Needs()
    if not isinstance(state, State):
        state = state(env, os.fspath(folder))
    own = _find_folder(env, folder, *state.folder)
    write = (own, *(_at_home(env, name) for name in state.write))
    endpoints = _find_endpoint(env, *state.key) if state.key else state.endpoints
    held = [os.path.join(own, name) for name in state.held]
    with suppress(OSError):  # the program cannot create them, either
        for place in write:
            os.makedirs(place, mode=0o700, exist_ok=True)
        for path in held:
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
            if not os.path.lexists(path):
                with open(path, "x", encoding="utf-8") as file:
                    file.write("{}\n" if path.endswith(".json") else "")
    texts = [*_read_all(os.path.join(own, name) for name in state.settings), env.get(state.content, "")]
    named = [env[name] for name in state.base_urls if env.get(name)]
    named += [address for text in texts for address in _ADDRESS.findall(text)]
    keys = [name for text in texts for pair in _KEY_NAME.findall(text) for name in pair if name]
    hosts = (*(tuple(filter(None, map(endpoint_of, named))) or state.hosts), *state.more_hosts)
    redirected = {endpoint_of(endpoint.base_url) for endpoint in endpoints}
    return Needs(
        write=write,
        protect=(*held, *(os.path.join(own, name) for name in state.protect)),
        read=tuple(_at_home(env, name) for name in state.read),
        env=(*state.env, *keys),
        hosts=tuple(host for host in hosts if host not in redirected),
        endpoints=endpoints,
    )


def endpoint_of(address: str) -> str:
    """Return the host and port of an address, or an empty string if the address is invalid."""
    try:
        url = urlsplit(address)
        port = url.port or (80 if url.scheme == "http" else 443)
    except ValueError:
        return ""
    return f"{url.hostname}:{port}" if url.hostname else ""


def _read_all(paths: Iterable[str]) -> Iterator[str]:
    for path in paths:
        with suppress(OSError):
            yield Path(path).read_text(encoding="utf-8", errors="replace")


def _find_installed(path: str, env: Mapping[str, str], folder: Path) -> Iterator[str]:
    """Yield the folders with a program's files: the folder of each link to the program, the folder of its package, and
    the same for its interpreter."""
    while True:
        yield os.path.dirname(path)
        if not os.path.islink(path):
            break
        path = os.path.normpath(os.path.join(os.path.dirname(path), os.readlink(path)))
    real = os.path.realpath(path)
    before, modules, _ = real.partition("/node_modules/")
    if modules:
        yield before + modules.rstrip("/")
    above = os.path.dirname(os.path.dirname(real))
    if os.path.exists(os.path.join(above, "pyvenv.cfg")):
        yield above
    for interpreter in find_interpreters(real, env, folder):
        yield from _find_installed(interpreter, env, folder)
        if os.path.basename(interpreter).startswith("python"):
            yield os.path.dirname(os.path.dirname(os.path.realpath(interpreter)))


# -- the programs --


def _at_home(env: Mapping[str, str], name: str) -> str:
    return os.path.join(env.get("HOME") or os.path.expanduser("~"), name)


def _find_folder(env: Mapping[str, str], folder: str | Path, variable: str, default: str, *below: str) -> str:
    return os.path.join(folder, env.get(variable) or _at_home(env, default), *below)


def _find_endpoint(
    env: Mapping[str, str], address: str, key: str, default: str = ""
) -> tuple[ProxiedEndpoint, ...]:
    """Return the endpoint given by the variables `address` (or else `default`) and `key`, if both values are known."""
    base_url = env.get(address) or default
    return (ProxiedEndpoint(base_url, env[key], address, key),) if base_url and env.get(key) else ()


def _describe_claude(env: Mapping[str, str], folder: str) -> State:
    place = ("CLAUDE_CONFIG_DIR", ".claude")
    cloud: tuple[str, ...] = ()
    login: tuple[str, ...] = ()
    if env.get("CLAUDE_CODE_USE_BEDROCK"):
        cloud, login = ("AWS_*",), (".aws",)
    elif env.get("CLAUDE_CODE_USE_VERTEX"):
        cloud, login = ("GOOGLE_*", "CLOUD_ML_REGION", "VERTEX_*"), (".config/gcloud",)
    endpoints = [
        endpoint
        for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN")
        for endpoint in _find_endpoint(env, "ANTHROPIC_BASE_URL", name, "https://api.anthropic.com")
    ]
    # Settings files that contain an address or a key override the environment variables.
    names = ("settings.json", "settings.local.json")
    places = (_find_folder(env, folder, *place), os.path.join(folder, ".claude"))
    files = [os.path.join(path, name) for path in places for name in names]
    if cloud or any(word in text for text in _read_all(files) for word in ("ANTHROPIC_", "apiKeyHelper")):
        endpoints = []
    return State(
        folder=place,
        held=("settings.json", "agents/", "commands/", "skills/", "plugins/"),
        protect=(
            "settings.local.json", "remote-settings.json", ".claude.json", "hooks", "output-styles", "workflows",
            "local", "CLAUDE.md", "rules",
        ),
        # This file lists tool servers, so it stays read-only. Claude Code works even if it cannot record in this file
        # which hints it has shown.
        read=(".claude.json", *login),
        env=("ANTHROPIC_*", "CLAUDE_*", "DISABLE_*", *cloud),
        settings=("settings.json",),
        base_urls=("ANTHROPIC_BASE_URL", "ANTHROPIC_BEDROCK_BASE_URL", "ANTHROPIC_VERTEX_BASE_URL"),
        hosts=("api.anthropic.com:443", *(() if endpoints else _CLAUDE_LOGIN)),
        endpoints=tuple(endpoints),
    )  # fmt: skip


_CLAUDE_LOGIN = ("platform.claude.com:443", "console.anthropic.com:443")


_CODEX = ("CODEX_HOME", ".codex")


def _describe_codex(env: Mapping[str, str], folder: str) -> State:
    profiles = glob(os.path.join(_find_folder(env, folder, *_CODEX), "*.config.toml"))
    return State(
        folder=_CODEX,
        held=("config.toml", "hooks.json", "rules/", "plugins/", "skills/", "agents/"),
        protect=(
            "managed_config.toml", "hooks", "prompts", "packages", "bin", "AGENTS.md", "AGENTS.override.md",
            *map(os.path.basename, profiles),
        ),
        env=("CODEX_*", "OPENAI_*"),
        settings=("config.toml", *profiles),
        base_urls=("OPENAI_BASE_URL",),
        hosts=("api.openai.com:443", "chatgpt.com:443", "auth.openai.com:443"),
        endpoints=tuple(_find_codex_endpoint(env, folder).values()),
    )  # fmt: skip


def _find_codex_endpoint(env: Mapping[str, str], folder: str) -> dict[str, ProxiedEndpoint]:
    """Return the endpoint of the configured provider under the provider's name, if its key is in an environment
    variable."""
    config = os.path.join(_find_folder(env, folder, *_CODEX), "config.toml")
    try:
        settings = tomllib.loads("".join(_read_all([config])))
        name = settings.get("model_provider", "openai")
        provider = settings.get("model_providers", {}).get(name, {})
        address, variable = provider.get("base_url"), provider.get("env_key")
        if name == "openai":
            address, variable = settings.get("openai_base_url", "https://api.openai.com/v1"), "CODEX_API_KEY"
        if "." in name:  # a `-c` argument cannot name such a provider
            return {}
        return {name: ProxiedEndpoint(str(address), env[variable], _ADDRESS_VARIABLE, variable)}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}


def _redirect_codex(address: str, env: Mapping[str, str], folder: str) -> tuple[list[str], dict[str, str]]:
    words: list[str] = []
    for name, endpoint in _find_codex_endpoint(env, folder).items():
        if name == "openai":  # use a custom provider, because Codex insists on WebSockets for its own
            name = "rolecall"
            table = {"name": "OpenAI", "env_key": endpoint.key_env, "wire_api": "responses"}
            words += ["-c", f'model_provider="{name}"']
            words += [
                word
                for key, value in table.items()
                for word in ("-c", f'model_providers.{name}.{key}="{value}"')
            ]
        words += ["-c", f'model_providers.{name}.base_url="{address}"']
    return words, {}


_OPENCODE_CONFIG = ("XDG_CONFIG_HOME", ".config", "opencode")


def _describe_opencode(env: Mapping[str, str], folder: str) -> State:
    cache = _find_folder(env, folder, "XDG_CACHE_HOME", ".cache", "opencode")
    config = _find_folder(env, folder, *_OPENCODE_CONFIG)
    own = ("OPENCODE_CONFIG", "OPENCODE_CONFIG_DIR")
    more = [os.path.join(folder, env[name]) for name in own if env.get(name)]
    named = [os.path.join(config, name) for name in ("opencode.json", "opencode.jsonc")]
    return State(
        folder=("XDG_DATA_HOME", ".local/share", "opencode"),
        write=(cache, _find_folder(env, folder, "XDG_STATE_HOME", ".local/state", "opencode")),
        # OpenCode downloads code into these folders and runs it: language servers and plugin packages. OpenCode does
        # not start if `.gitignore` is missing and cannot be written.
        held=(
            "bin/",
            *(os.path.join(cache, name) for name in ("bin/", "packages/", "node_modules/")),
            os.path.join(config, ".gitignore"),
        ),
        read=(config, *more),
        env=("OPENCODE_*", *_PROVIDERS),
        settings=(*named, *more),
        content="OPENCODE_CONFIG_CONTENT",
        hosts=("opencode.ai:443", "models.dev:443"),
        more_hosts=tuple(host for name, host in _PROVIDERS.items() if env.get(name)),
        endpoints=tuple(_find_opencode_endpoint(env, folder).values()),
    )


def _find_opencode_endpoint(env: Mapping[str, str], folder: str) -> dict[str, ProxiedEndpoint]:
    """Return the endpoint of the configured model's provider under the provider's name, if the settings name the
    address and the variable with the key."""
    config = _find_folder(env, folder, *_OPENCODE_CONFIG)
    places = (os.path.join(config, "opencode.json"), os.path.join(folder, env.get("OPENCODE_CONFIG", "")))
    found: dict[str, ProxiedEndpoint] = {}
    for text in _read_all(places):
        try:
            settings = json.loads(text)
            name = settings["model"].partition("/")[0]
            options = settings["provider"][name]["options"]
            variable = _KEY_NAME.fullmatch(options["apiKey"])
            if variable is not None:
                found = {
                    name: ProxiedEndpoint(
                        options["baseURL"], env[variable[2]], _ADDRESS_VARIABLE, variable[2]
                    )
                }
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
    return found


def _redirect_opencode(address: str, env: Mapping[str, str], folder: str) -> tuple[list[str], dict[str, str]]:
    settings = json.loads(env.get("OPENCODE_CONFIG_CONTENT") or "{}")
    for name in _find_opencode_endpoint(env, folder):
        provider = settings.setdefault("provider", {}).setdefault(name, {})
        provider.setdefault("options", {})["baseURL"] = address
    return [], {"OPENCODE_CONFIG_CONTENT": json.dumps(settings)}


_PROVIDERS = {
    "ANTHROPIC_API_KEY": "api.anthropic.com:443",
    "OPENAI_API_KEY": "api.openai.com:443",
    "OPENROUTER_API_KEY": "openrouter.ai:443",
    "GEMINI_API_KEY": "generativelanguage.googleapis.com:443",
    "GOOGLE_GENERATIVE_AI_API_KEY": "generativelanguage.googleapis.com:443",
}


_REDIRECTS: Mapping[str, Callable[[str, Mapping[str, str], str], tuple[list[str], dict[str, str]]]] = {
    "codex": _redirect_codex,
    "codex-acp": _redirect_codex,
    "opencode": _redirect_opencode,
}
"""For each program that reads its model's address from settings: a function that returns the arguments and environment
variables that replace the address."""

STATES: Mapping[str, State | Callable[[Mapping[str, str], str], State]] = {
    "claude": _describe_claude,
    "claude-agent-acp": _describe_claude,
    "codex": _describe_codex,
    "codex-acp": _describe_codex,
    "opencode": _describe_opencode,
    "cursor": State(
        folder=("", ".cursor"),
        write=(".config/cursor",),
        held=("mcp.json", "hooks.json"),
        protect=("cli-config.json", "rules", "commands", "skills", "agents", "plugins", "hooks"),
        env=("CURSOR_*",),
        hosts=("api2.cursor.sh:443", "api5.cursor.sh:443"),
    ),
    "gemini": State(
        folder=("GEMINI_CLI_HOME", "", ".gemini"),
        held=("settings.json", "extensions/", "policies/", "commands/", "skills/", "agents/"),
        protect=(".env", "hooks", "trustedFolders.json", "GEMINI.md"),
        env=("GEMINI_*", "GOOGLE_*"),
        base_urls=("GOOGLE_GEMINI_BASE_URL", "GOOGLE_VERTEX_BASE_URL"),
        hosts=(
            "generativelanguage.googleapis.com:443", "cloudcode-pa.googleapis.com:443",
            "oauth2.googleapis.com:443", "aiplatform.googleapis.com:443",
        ),
        key=("GOOGLE_GEMINI_BASE_URL", "GEMINI_API_KEY", "https://generativelanguage.googleapis.com"),
    ),
    "qwen": State(
        folder=("QWEN_HOME", ".qwen"),
        held=("settings.json", "extensions/", "commands/", "skills/", "agents/"),
        protect=(".env", "hooks", "trustedFolders.json", "QWEN.md"),
        env=("QWEN_*", "OPENAI_*", "DASHSCOPE_*", "BAILIAN_*"),
        settings=("settings.json",),
        base_urls=("OPENAI_BASE_URL",),
        hosts=("portal.qwen.ai:443", "chat.qwen.ai:443", "dashscope.aliyuncs.com:443"),
        key=("OPENAI_BASE_URL", "OPENAI_API_KEY"),
    ),
    "copilot": State(
        folder=("COPILOT_HOME", ".copilot"),
        held=("mcp-config.json", "agents/", "skills/", "hooks/", "installed-plugins/", "pkg/"),
        protect=("config.json", "settings.json", "copilot-instructions.md"),
        env=("COPILOT_*", "GH_TOKEN", "GITHUB_TOKEN"),
        base_urls=("COPILOT_PROVIDER_BASE_URL",),
        hosts=("api.githubcopilot.com:443", "api.individual.githubcopilot.com:443", "api.github.com:443"),
        key=("COPILOT_PROVIDER_BASE_URL", "COPILOT_PROVIDER_API_KEY"),
    ),
    "hermes": State(
        folder=("HERMES_HOME", ".hermes"),
        held=("config.yaml", "hooks/", "plugins/", "cron/", "skills/"),
        protect=(".env", "scripts", "hermes-agent", "bin", "SOUL.md"),
        env=("HERMES_*", "OPENAI_*", *_PROVIDERS),
        settings=("config.yaml",),
        base_urls=("OPENAI_BASE_URL",),
        hosts=("openrouter.ai:443",),
    ),
}  # fmt: skip
"""The state of each program, or a function of its environment and work folder that describes the state."""
