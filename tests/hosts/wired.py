"""A host's wiring in a folder of the test: a project with a blank in its name, and a home."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rolecall.hosts import file_change
from rolecall.hosts.installation import host_module, plan_install, plan_removal, wiring_of
from rolecall.hosts.setup import HostSetup
from rolecall.nexus import catalog

CATALOG = catalog.load()
COMMAND = ('/opt/role "call"/bin/rolecall',)


def setup_in(folder: Path, *, scope: Any = "project", **env: str) -> HostSetup:
    for name in ("my project", "home"):
        (folder / name).mkdir(exist_ok=True)
    project = str(folder / "my project") if scope == "project" else ""
    return HostSetup(scope, project, str(folder / "home"), COMMAND, CATALOG, env)


def install(host: str, setup: HostSetup) -> HostSetup:
    file_change.make(plan_install(wiring_of(host, setup)), roots=host_module(host).roots(setup))
    return setup


def uninstall(host: str, setup: HostSetup) -> None:
    file_change.make(plan_removal(wiring_of(host, setup)), roots=host_module(host).roots(setup))


def is_up_to_date(host: str, setup: HostSetup) -> bool:
    return not any(one.is_change for one in plan_install(wiring_of(host, setup)))


def files_in(folder: Path) -> dict[str, bytes]:
    return {str(one): one.read_bytes() for one in folder.rglob("*") if one.is_file()}
