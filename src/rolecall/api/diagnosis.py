"""Check everything that the workflows of a project need: the machine, the hosts, the agents and the endpoints."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rolecall.agents.sandbox import find_layers
from rolecall.checks import doctor, machine
from rolecall.checks.doctor import Diagnosis, DoctorPlace
from rolecall.checks.hosts import check_hosts
from rolecall.checks.machine import Check
from rolecall.errors import Hint, RolecallError
from rolecall.hosts.setup import setups_around
from rolecall.settings import config, stores
from rolecall.settings.settings import unplanned_edits
from rolecall.threads import casting
from rolecall.threads.setup import Cast
from rolecall.workflow.playbook import Playbook
from rolecall.workflow.registry import check_trust

if TYPE_CHECKING:
    from rolecall.api import Rolecall


def diagnose(rolecall: Rolecall, url: str | None, workflows: Sequence[str], *, all_agents: bool) -> Diagnosis:
    """Return the result of `Rolecall.diagnose`. `url` is the address of the store, or None for the configured store."""
    checks = machine.check_home(lambda at: stores.open_store(at, create=False), url=url)
    try:
        settings, place = config.load(), DoctorPlace(config.environment(), Path(rolecall.folder))
    except RolecallError:  # one of the checks reports the error; the agents of the roles remain unknown
        return Diagnosis(tuple(checks), (), {})
    checks.append(machine.check_sandbox(find_layers(config.cache_folder(), again=True), place.env))
    try:
        blocks_edits = unplanned_edits(settings) == "block"
        checks += check_hosts(setups_around(rolecall.folder), blocks_edits=blocks_edits)
    except RolecallError as error:  # an unreadable catalogue, or an unknown mode
        checks.append(Check("hosts", "problem", error.message, error.hint))

    def load(name: str) -> Playbook:
        return rolecall.look_up(name if has_store else rolecall.find_file(name))

    def cast_role(book: Playbook, role: str) -> Cast:
        return casting.cast(settings, book, role, environment=place.env)

    has_store = False
    with suppress(RolecallError):  # the check of the store reports why the store cannot be opened
        has_store = rolecall.store_if_any is not None
    books = [load(name) for name in workflows]
    if not books:
        for path in rolecall.workflow_files():
            try:  # the agents and endpoints of a workflow that is not allowed are not contacted
                check_trust(path)
            except RolecallError as error:
                checks.append(Check("workflow", "warning", error.message, error.hint))
                continue
            if checked := rolecall.check(path).playbook:
                books.append(checked)
            else:
                fix = Hint("See its problems", "validate_workflow", workflow=path)
                checks.append(Check("workflow", "problem", f"{path} does not validate", fix))

    known = doctor.known_agents()
    installed = {cast.name: doctor.explain_absence(cast.agent, place.env) is None for cast in known}
    needs = doctor.needs_of(books, cast_role, load)
    default = settings.get("defaultAgent")
    programs = {}
    if any(need.lacks_agent for need in needs) or not (needs or default):
        programs = rolecall.agents()
    ready = [name for name, finding in programs.items() if finding.is_ready]
    # Suggest an installed agent for roles without one. The built-in agent needs a model first.
    proposed = next((name for name in (*ready, *programs) if installed[name]), None)
    if proposed:
        fix = Hint(f"{proposed} is installed", "choose_agent", agent=proposed)
        for at, need in enumerate(needs):
            if need.trouble and need.lacks_agent:
                needs[at] = replace(need, trouble=need.trouble._replace(fix=fix))
    besides = [*known, *doctor.preset_agents()] if all_agents else []
    if default:  # worth checking even before there is a workflow
        with suppress(RolecallError):  # the check of the configuration reports an unknown name
            besides.insert(0, casting.cast_alone(settings, str(default), environment=place.env))
    found = asyncio.run(doctor.diagnose(needs, place, settings=settings, besides=besides, checks=checks))
    others = {name: is_there for name, is_there in installed.items() if name not in found.findings}
    return replace(found, others=others, unready=() if ready else tuple(programs.values()))
