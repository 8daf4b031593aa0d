"""Whether what an agent needs is on this machine: its program, or the package its adapter stands on.

Looked up before a run, so that a missing agent costs nothing. Nothing is started here: `doctor.py` asks
programs for more.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from rolecall.errors import NotFound

EXTRAS = {"builtin": ("pydantic_ai", "llm"), "acp": ("acp", "acp")}
"""Adapters that stand on a package: its module, and the extra of ours that installs it."""


def check_present(agent: object, *, env: Mapping[str, str], folder: Path | None = None) -> None:
    """Refuse an agent whose program or package is not here.

    A program named by a relative path is looked for in `folder`; without one, that is left to the run.
    """
    module, extra = EXTRAS.get(adapter_of(agent), ("", ""))
    if module and not _is_importable(module):
        raise NotFound(
            f"the agent {adapter_of(agent)!r} needs the package {module!r}, which is not installed",
            hint=f"Install it: pip install 'rolecall[{extra}]'",
        )
    program = program_of(agent)
    if program and (folder is not None or "/" not in program or os.path.isabs(program)):
        locate(agent, env=env, folder=folder or Path("/"))


def program_of(agent: object) -> str:
    """The program an agent starts, by name or path; empty when it starts none."""
    found = getattr(agent, "executable", None) or getattr(agent, "program", "")
    return found if isinstance(found, str) else ""


def adapter_of(agent: object) -> str:
    """The adapter an agent belongs to; empty for one that is somebody's own."""
    from rolecall.agents import ADAPTERS

    modules = {module: name for name, module in ADAPTERS.items()}
    return modules.get(type(agent).__module__, "")


def env_of(agent: object, env: Mapping[str, str]) -> dict[str, str]:
    """The environment of an agent's program: everybody's, and the agent's own over it."""
    return {**env, **(getattr(agent, "env", None) or {})}


def locate(agent: object, *, env: Mapping[str, str], folder: Path) -> str:
    """The path of an agent's program, as a child that is started in `folder` would find it."""
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


def find_program(program: str, *, env: Mapping[str, str], folder: Path) -> tuple[str | None, bool]:
    """Where a program is, and whether it can be run: one that can goes before one that cannot."""
    # Not shutil.which, because shutil brings the compression modules along, and every step would wait for them.
    folders = [str(folder)] if "/" in program else env.get("PATH", os.defpath).split(os.pathsep)
    files = [os.path.normpath(os.path.join(one, program)) for one in folders]
    found = [file for file in files if os.path.isfile(file)]
    runnable = next((path for path in found if os.access(path, os.X_OK)), None)
    return runnable or next(iter(found), None), runnable is not None


def _is_importable(module: str) -> bool:
    from importlib.util import find_spec

    return find_spec(module) is not None
