"""Decides which programs run in a sandbox, and which policy applies to each on this machine.

`sandbox.py` is imported only for those programs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rolecall.settings import capabilities, config
from rolecall.store.lazy import Module
from rolecall.workflow.model import Sandbox

if TYPE_CHECKING:
    from rolecall.agents import sandbox as sandboxes
    from rolecall.agents.sandbox import Layers, Policy
else:
    sandboxes = Module("rolecall.agents.sandbox")


def is_wanted(sandbox: Sandbox | None, words: Collection[str]) -> bool:
    """Return whether a role's processes run in a sandbox: its own, unless off, or one that restrictions imply."""
    if sandbox is not None:
        return not sandbox.is_off
    return not set(capabilities.IMPLY_SANDBOX).isdisjoint(words)


def find_allowed_layers(environment: Mapping[str, str] | None = None) -> Layers:
    """Return what this machine can enforce, or nothing if the user has turned sandboxes off."""
    known = config.environment() if environment is None else environment
    is_off = known.get(capabilities.SANDBOX_VARIABLE) == "off"
    return sandboxes.Layers() if is_off else sandboxes.find_layers(config.cache_folder())


def private_places(address: str, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the paths of Rolecall's home and of the store, if its files are on this machine. Both are hidden from
    agents in a sandbox."""
    kind, path = config.store_address(address)
    files = [path] if kind == "files" else [f"{path}{end}" for end in ("", "-wal", "-shm")]
    return (config.home(environment), *(files if kind in ("files", "sqlite") else ()))


def confine(
    sandbox: Sandbox | None,
    workdir: str,
    words: Collection[str] = (),
    *,
    environment: Mapping[str, str],
    private: Sequence[str],
    layers: Callable[[], Layers],
    may_start_threads: bool = False,
) -> Policy | None:
    """Return the policy for a program that starts in `workdir`, or None if the program runs without a sandbox."""
    if not is_wanted(sandbox, words):
        return None
    return sandboxes.plan(
        sandbox,
        words,
        workdir=Path(workdir),
        env=environment,
        private=private,
        layers=layers(),
        may_start_threads=may_start_threads,
    )


def confine_project(
    sandbox: Sandbox | None, folder: str, environment: Mapping[str, str], *, owner: str
) -> Policy | None:
    """Return the policy for one of a project's commands. Without a `sandbox`, the command can write to the project's
    folder and sees no secrets, as far as the machine can enforce this."""
    layers = find_allowed_layers(environment)
    if sandbox is not None:
        sandboxes.check_enforceable(sandbox, layers, owner=owner)
    elif not layers.can_restrict_files:
        return None
    return confine(
        sandbox or Sandbox(),
        folder,
        environment=environment,
        private=private_places(config.full_store_address(environ=environment), environment),
        layers=lambda: layers,
    )
