"""Checks whether an agent's program, or the package its adapter needs, is on this machine.

The check comes before a run, so that a missing agent costs nothing. It starts no program; `doctor.py` checks further.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rolecall.agents.adapter_table import ADAPTERS, PROGRAMS
from rolecall.errors import NotFound
from rolecall.settings import config
from rolecall.store.lazy import Module

if TYPE_CHECKING:
    from importlib import util
else:
    util = Module("importlib.util")

EXTRAS = {"builtin": ("pydantic_ai", "llm"), "acp": ("acp", "acp")}
"""Adapters that need a package: its module, and the Rolecall extra that installs it."""


def check_present(
    agent: object, *, env: Mapping[str, str], folder: str | os.PathLike[str] | None = None
) -> None:
    """Raise an error if the agent's program or package is missing.

    A relative program path is resolved in `folder`; without a folder it is not checked.
    """
    module, extra = EXTRAS.get(adapter_of(agent), ("", ""))
    if module and util.find_spec(module) is None:
        raise NotFound(
            f"the agent {adapter_of(agent)!r} needs the package {module!r}, which is not installed",
            hint=f"Install it: pip install 'rolecall[{extra}]'",
        )
    program = program_of(agent)
    if program and (folder is not None or "/" not in program or os.path.isabs(program)):
        locate(agent, env=env, folder=folder or "/")


def program_of(agent: object) -> str:
    """Return the name or path of the program an agent starts, or an empty string if it starts none."""
    found = getattr(agent, "executable", None) or getattr(agent, "program", "")
    return found if isinstance(found, str) else ""


def adapter_of(agent: object) -> str:
    """Return the name of an agent's adapter, or an empty string for a custom agent."""
    modules = {module: name for name, module in ADAPTERS.items()}
    return modules.get(type(agent).__module__, "")


def env_of(agent: object, env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of an agent's program: `env` with the agent's own variables added."""
    return {**env, **(getattr(agent, "env", None) or {})}


def locate(agent: object, *, env: Mapping[str, str], folder: str | os.PathLike[str]) -> str:
    """Return the path of an agent's program, as a child process started in `folder` would find it."""
    program = program_of(agent)
    path, is_there = find_program(program, env=env_of(agent, env), folder=folder)
    if path is not None and is_there:
        return path
    if path is not None:
        raise NotFound(f"the program {program!r} is not executable", hint=f"chmod +x {path}")
    named = getattr(agent, "name", "") or adapter_of(agent)
    looked = str(folder) if "/" in program else env_of(agent, env).get("PATH", os.defpath)
    install = "" if getattr(agent, "executable", None) else getattr(agent, "install", "")
    raise NotFound(
        f"the agent {named!r} needs the program {program!r}, which was not found",
        hint=f"Install it: {install}" if install else f"Install it or correct the name; looked in {looked}.",
    )


def first_installed() -> str | None:
    """Return the first known agent whose program is on this machine, or None. The agent might not be signed in."""
    environment = config.environment()
    for name, program in PROGRAMS.items():
        _, can_run = find_program(program, env=environment, folder="/")
        if can_run:
            return name
    return None


def find_program(
    program: str, *, env: Mapping[str, str], folder: str | os.PathLike[str]
) -> tuple[str | None, bool]:
    """Return the path of a program, and whether it can be run. An executable file is preferred to any other match."""
    # Not shutil.which: shutil imports the compression modules, which would slow down every step.
    folders = [str(folder)] if "/" in program else env.get("PATH", os.defpath).split(os.pathsep)
    files = [os.path.normpath(os.path.join(one, program)) for one in folders]
    found = [file for file in files if os.path.isfile(file)]
    runnable = next((path for path in found if os.access(path, os.X_OK)), None)
    return runnable or next(iter(found), None), runnable is not None


def find_interpreters(path: str, env: Mapping[str, str], folder: Path) -> list[str]:
    """Return the programs that a script names in its first line: the interpreter, and the program that `env` runs."""
    try:
        with open(path, "rb") as file:
            line = file.readline(256).decode("utf-8", "replace")
    except OSError:
        return []
    words = line[2:].split() if line.startswith("#!") else []
    found = words[:1]
    if words and os.path.basename(words[0]) == "env":
        named = next((word for word in words[1:] if not word.startswith("-") and "=" not in word), "")
        inner, _ = find_program(named, env=env, folder=folder) if named else (None, False)
        found += [inner] if inner else []
    return found
