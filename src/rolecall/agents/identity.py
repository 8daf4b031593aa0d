"""Identifies the agent that answers: its adapter, the options that shape an answer, and the version of its program.

An identity does not depend on the machine: a file is represented by its content, not its path. Only known coding agents
are asked for their version, once for each installed program; no other command is run to identify an agent.
"""

from __future__ import annotations

import json
import marshal
import os
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import MISSING, asdict, fields, is_dataclass
from functools import lru_cache, partial
from hashlib import file_digest, sha256
from pathlib import Path
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from rolecall import __version__
from rolecall.agents.adapter_table import PROGRAMS
from rolecall.agents.presence import adapter_of, env_of, find_program, program_of
from rolecall.agents.process import run as run_process
from rolecall.errors import AgentError
from rolecall.settings.mask import Mask
from rolecall.store import atomic
from rolecall.store.lazy import Module

if TYPE_CHECKING:
    from rolecall.store import scratch
else:
    scratch = Module("rolecall.store.scratch")

_PATIENCE = 10.0
"""The maximum number of seconds for a program to print its version."""
_SMALL = 1 << 18
"""The size in bytes above which a file's digest is cached on disk."""
_MOST_REMEMBERED = 100
_DIGEST = 16
_LONGEST = 80
QUIET = {
    "NO_COLOR": "1",
    "NO_UPDATE_NOTIFIER": "1",
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_TELEMETRY": "1",
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "OPENCODE_DISABLE_AUTOUPDATE": "1",
    "OPENCODE_DISABLE_MODELS_FETCH": "1",
    "COPILOT_AUTO_UPDATE": "false",
    **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), "http://127.0.0.1:9"),
}
"""Environment variables that keep programs from checking for updates when asked for their version: each program's own
switches and, for programs without a switch, the address of a proxy that does not exist."""
_NOT_SHAPING = ("timeout", "retries", "api_key")
"""Options that do not shape an answer."""
_OF_FILES = ("executable", "argv", "path", "roles", "after_last")
"""Options that name a file, which the identity represents by its content."""
_CHOOSING = ("_MODEL", "_BASE_URL")
"""The endings of environment variables that choose a model, such as `ANTHROPIC_MODEL`."""


class Identity(NamedTuple):
    agent: str
    version: str
    """The version; empty if it is unknown or cannot be compared with other versions."""


async def identify(
    agent: object, *, env: Mapping[str, str], folder: Path, mask: Mask, cache: str | None = None
) -> Identity:
    """Return the identity of an agent that works in `folder`. `cache` is a folder for cached versions; without it, no
    program is asked for its version."""
    adapter = adapter_of(agent)
    if not adapter:
        return identify_code(agent)
    options = {name: value for name, value in _find_options(agent).items() if name not in _OF_FILES}
    if adapter != "scripted":
        chosen = {name: value for name, value in env.items() if name.endswith(_CHOOSING) and value}
        options |= {"variables": chosen} if chosen else {}
    options = mask.value(json.loads(json.dumps(options, default=asdict)))  # tool servers are dataclasses
    model = options.pop("model", "") or options.pop("workflow", "")
    words, files = [f"{adapter}:{model}" if model else adapter], list[str]()
    if adapter in PROGRAMS:
        version = await _ask_version(agent, env=env, folder=folder, cache=cache)
    elif adapter == "scripted":
        version = _digest_files([str(getattr(agent, "path", ""))], cache)
    elif argv := getattr(agent, "argv", ()):
        for place, word in enumerate(argv):
            file = find_program(word, env=env_of(agent, env), folder=folder)[0] if place == 0 else None
            file = file or os.path.join(folder, word)
            is_file = os.path.isfile(file)
            files += [file] if is_file else []
            words.append(os.path.basename(word) if is_file else word)
        version = _digest_files(files, cache)
    else:
        version = f"rolecall {__version__}"
    if options:
        words.append(_digest(json.dumps(options, sort_keys=True)))
    text = mask.text(" ".join(words))
    if len(text) > _LONGEST:
        text = f"{text[: _LONGEST - _DIGEST - 2]}… {_digest(text)}"
    return Identity(text, version)


def identify_code(code: object) -> Identity:
    """Return the identity of a Python function or object: its name, the values that the object holds, and the content
    of the files that define the code and its classes, because a function depends on more than its own lines."""
    words = []
    while isinstance(code, partial):
        words.append(_digest(repr((code.args, code.keywords))))
        code = code.func
    named: Any = code if hasattr(code, "__qualname__") else type(code)
    function = getattr(code, "__wrapped__", code)
    compiled = getattr(function, "__code__", None) or getattr(type(code).__call__, "__code__", None)
    files = [getattr(compiled, "co_filename", "")]

    holder = getattr(code, "__self__", code)  # a method depends on its object
    if not isinstance(holder, type | FunctionType | ModuleType):
        state = _digest_state(_Same(holder))
        if state is None:
            return Identity(f"python:{named.__qualname__}", "")
        words += [state] if state else []
        modules = [sys.modules.get(each.__module__) for each in type(holder).__mro__]
        files += [file for module in modules if (file := getattr(module, "__file__", None))]
    version = _digest_files(list(dict.fromkeys(files)), None)
    if not version and compiled is not None:  # defined interactively, or compiled from a string
        version = sha256(marshal.dumps(compiled)).hexdigest()[:_DIGEST]
    return Identity(" ".join([f"python:{named.__qualname__}", *words]), version)


class _Same:
    """A wrapper that equals only wrappers of the same object, even if the object's class defines equality
    differently."""

    def __init__(self, value: object) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.value is other.value


@lru_cache(maxsize=64)
def _digest_state(holder: _Same) -> str | None:
    """Return a digest of an object's values, or an empty string if it has none. Return None if the values cannot be
    compared across processes. The digest is computed when the object is first seen, because its later values can depend
    on its past work."""
    try:
        is_described = is_dataclass(holder.value)
        state = _find_options(holder.value) if is_described else object.__getstate__(holder.value)
        return _digest(json.dumps(state, sort_keys=True, default=asdict)) if state else ""
    except (TypeError, ValueError, RecursionError):
        return None


def _digest(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST]


def _find_options(agent: object) -> dict[str, object]:
    """Return the fields of a dataclass that shape an answer and differ from their defaults."""
    if not is_dataclass(agent) or isinstance(agent, type):
        return {}
    return {
        field.name: value
        for field in fields(agent)
        if field.init and field.compare and field.name not in _NOT_SHAPING
        if (value := getattr(agent, field.name)) != field.default
        and (field.default_factory is MISSING or value != field.default_factory())
    }


def _digest_files(paths: list[str], cache: str | None) -> str:
    found = []
    for path in paths:
        try:
            time, size = _stamp(path)
            known = recall(cache, "content", path) if size > _SMALL and cache else ""
            found.append(known or _digest_file(path, time, size))
        except OSError:
            continue
        if size > _SMALL and cache and not known:
            remember(cache, "content", path, found[-1])
    return "+".join(found)


@lru_cache(maxsize=256)
def _digest_file(path: str, _time: int, _size: int) -> str:
    with open(path, "rb") as file:
        return file_digest(file, "sha256").hexdigest()[:_DIGEST]


async def _ask_version(agent: object, *, env: Mapping[str, str], folder: Path, cache: str | None) -> str:
    path, is_runnable = find_program(program_of(agent), env=env_of(agent, env), folder=folder)
    if path is None or not is_runnable or cache is None:
        return ""
    if known := recall(cache, "version", path):
        return known
    try:
        with scratch.folder() as place:
            result = await run_process(
                [path, "--version"], cwd=place, env={**env_of(agent, env), **QUIET}, timeout=_PATIENCE
            )
    except AgentError:
        return ""
    version = version_in(f"{result.stdout}\n{result.stderr}") if result.ending == "completed" else ""
    if version:
        remember(cache, "version", path, version)
    return version


def version_in(text: str) -> str:
    """Return the first text that looks like a version, or otherwise the beginning of the first line."""
    found = re.search(r"\d+(?:\.\d+)+[\w.+-]*", text)
    return found[0].rstrip(".") if found else text.strip().partition("\n")[0][:40]


# -- cached facts about installed programs --


def recall(cache: str, what: str, path: str) -> str:
    """Return a cached fact about a file, or an empty string. A fact is valid while the file's time and size stay the
    same. Links are not resolved, because a program can behave differently depending on the link that starts it."""
    known = _read(cache).get(f"{what} {os.path.abspath(path)}")
    return str(known[1]) if known and known[0] == _stamp(path) else ""


def remember(cache: str, what: str, path: str, text: str) -> None:
    """Cache a fact about a file. If two processes do so at the same time, one of the facts can be lost."""
    known = {**_read(cache), f"{what} {os.path.abspath(path)}": [_stamp(path), text]}
    kept = dict(list(known.items())[-_MOST_REMEMBERED:])
    with suppress(OSError):
        os.makedirs(cache, exist_ok=True)
        atomic.replace(os.path.join(cache, "programs.json"), json.dumps(kept).encode())


def _read(cache: str) -> dict[str, list[Any]]:
    try:
        with open(os.path.join(cache, "programs.json"), encoding="utf-8") as file:
            known = json.load(file)
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def _stamp(path: str) -> list[int]:
    found = os.stat(path)
    return [found.st_mtime_ns, found.st_size]
