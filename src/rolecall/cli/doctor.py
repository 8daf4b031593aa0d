"""`rolecall doctor`: check that everything the project's workflows need is available, and suggest fixes."""

from __future__ import annotations

import asyncio
from argparse import Namespace
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

from rolecall.agents.sandbox import find_layers
from rolecall.api import Rolecall, reader
from rolecall.checks import machine
from rolecall.checks.choose import find_programs
from rolecall.checks.doctor import (
    AgentFinding,
    Diagnosis,
    DoctorPlace,
    Trouble,
    diagnose,
    explain_absence,
    known_agents,
    needs_of,
    preset_agents,
)
from rolecall.checks.hosts import check_hosts
from rolecall.checks.machine import Check
from rolecall.cli import CommandResult, argument, flag, hints, verb
from rolecall.cli.agents import agents_table, cast_agent
from rolecall.cli.install import setups_here
from rolecall.cli.output import STORE, paint, plural, table
from rolecall.errors import RolecallError
from rolecall.settings import config
from rolecall.settings.mask import Mask
from rolecall.settings.settings import Settings, unplanned_edits
from rolecall.threads import casting
from rolecall.threads.setup import Cast
from rolecall.workflow.playbook import Playbook
from rolecall.workflow.registry import check_trust

_MARKS = {"ok": "✓", "warning": paint("!", "yellow"), "problem": "✗"}
_NONE = "–"


@verb(
    "doctor",
    "check that the agents and the endpoint that workflows need are here, and say what to fix",
    "rolecall doctor\nrolecall doctor solve-issue\nrolecall doctor --all",
    argument(
        "workflows", "WORKFLOW", "the workflows to check (default: all workflows of the project)", nargs="*"
    ),
    flag("--all", "check every known agent, needed or not"),
    STORE,
)
def doctor(options: Namespace) -> CommandResult:
    checks = machine.check_home(lambda url: Rolecall(url, create=False).store, url=options.store)
    others: dict[str, bool] = {}
    unready: list[AgentFinding] = []
    mask = Mask(())
    try:
        settings, place, mask = config.load(), DoctorPlace(config.environment(), Path.cwd()), config.mask()
    except RolecallError:  # one of the checks reports the error; the agents of the roles remain unknown
        diagnosis = Diagnosis(tuple(checks), (), {})
    else:
        checks.append(machine.check_sandbox(find_layers(config.cache_folder(), again=True), place.env))
        try:
            blocks_edits = unplanned_edits(settings) == "block"
            checks += check_hosts(setups_here(), blocks_edits=blocks_edits)
        except RolecallError as error:  # an unreadable catalogue, or an unknown mode
            checks.append(Check("hosts", "problem", error.message, error.hint))
        with reader(options.store) as rolecall:
            diagnosis, others, unready = _diagnose(options, rolecall, settings, place, checks)
    shown = mask.value(_as_json(diagnosis, others))
    text = mask.text("\n".join(_word(diagnosis, others, unready, mask)))
    return CommandResult(shown, text, code=0 if diagnosis.is_ready else 1)


def _diagnose(
    options: Namespace, rolecall: Rolecall, settings: Settings, place: DoctorPlace, checks: list[Check]
) -> tuple[Diagnosis, dict[str, bool], list[AgentFinding]]:
    """Return the diagnosis, which known agents outside the diagnosis are installed, and what to do for each agent that
    is not ready. There is no such advice if any agent is ready or no agent is needed."""

    def load(name: str) -> Playbook:
        return rolecall.look_up(name if has_store else rolecall.find_file(name))

    def cast_role(book: Playbook, role: str) -> Cast:
        return casting.cast(settings, book, role, environment=place.env)

    has_store = False
    with suppress(RolecallError):  # the check of the store reports why the store cannot be opened
        has_store = rolecall.store_if_any is not None
    books = [load(name) for name in options.workflows]
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
                fix = f"rolecall workflow validate {path}"
                checks.append(Check("workflow", "problem", f"{path} does not validate", fix))
    known = known_agents()
    installed = {cast.name: explain_absence(cast.agent, place.env) is None for cast in known}
    needs = needs_of(books, cast_role, load)
    default = settings.get("defaultAgent")
    programs: dict[str, AgentFinding] = {}
    if any(need.lacks_agent for need in needs) or not (needs or default):
        programs = find_programs(place.env, place.folder)
    ready = [name for name, finding in programs.items() if finding.is_ready]
    # Suggest an installed agent for roles without one. The built-in agent needs a model first.
    proposed = next((name for name in (*ready, *programs) if installed[name]), None)
    if proposed:
        fix = f"{proposed} is installed: `rolecall config set defaultAgent {proposed}`, or use --agent {proposed}."
        for at, need in enumerate(needs):
            if need.trouble and need.lacks_agent:
                needs[at] = replace(need, trouble=need.trouble._replace(fix=fix))
    besides = [*known, *preset_agents()] if options.all else []
    if default:  # worth checking even before there is a workflow
        with suppress(RolecallError):  # the check of the configuration reports an unknown name
            besides.insert(0, cast_agent(settings, str(default), place.env))
    found = asyncio.run(diagnose(needs, place, settings=settings, besides=besides, checks=checks))
    others = {name: is_there for name, is_there in installed.items() if name not in found.findings}
    return found, others, [] if ready else list(programs.values())


def _as_json(diagnosis: Diagnosis, others: dict[str, bool]) -> dict[str, Any]:
    return {
        "ready": diagnosis.is_ready,
        "agents": [
            {
                "agent": finding.agent,
                "state": finding.state,
                "program": finding.program or None,
                "path": finding.path,
                "version": finding.version,
                "signedIn": finding.signed_in.state if finding.signed_in else None,
                "signedInBy": finding.signed_in.how if finding.signed_in else None,
                "missingFlags": list(finding.missing_flags),
                "neededBy": [
                    {"workflow": need.workflow, "role": need.role} for need in diagnosis.needs_for(label)
                ],
                "problems": [_with_fix(trouble) for trouble in finding.troubles],
            }
            for label, finding in diagnosis.findings.items()
        ],
        "roles": [
            {
                "workflow": need.workflow,
                "role": need.role,
                "agent": need.cast.name if need.cast else None,
                "problem": need.trouble.text if need.trouble else None,
                "hint": hints.word(need.trouble.fix) if need.trouble else None,
            }
            for need in diagnosis.needs
        ],
        "checks": [_with_fix(check) for check in diagnosis.checks],
        "others": [{"agent": name, "installed": is_there} for name, is_there in others.items()],
        "fix": [_with_fix(trouble) for trouble in diagnosis.troubles()],
    }


def _with_fix(found: Check | Trouble) -> dict[str, Any]:
    return {**found._asdict(), "fix": hints.word(found.fix)}


def _word(
    diagnosis: Diagnosis, others: dict[str, bool], unready: list[AgentFinding], mask: Mask
) -> Iterator[str]:
    rows = []
    for label, finding in diagnosis.findings.items():
        needs = diagnosis.needs_for(label)
        roles: dict[str, list[str]] = {}
        for need in needs:
            roles.setdefault(need.workflow, []).append(need.role)
        signed_in = _NONE
        if finding.signed_in is not None and finding.path:
            how = finding.signed_in.how.partition(" is ")[0]
            signed_in = f"yes ({how})" if finding.signed_in.state == "yes" else finding.signed_in.state
        color = "green" if finding.is_ready else "red" if needs else "yellow"
        name = mask.text(finding.agent)  # before the table shortens the name
        needed_by = "; ".join(f"{workflow}: {', '.join(names)}" for workflow, names in roles.items())
        state = paint(finding.state, color)
        rows.append((name, finding.version or _NONE, signed_in, needed_by or _NONE, state))
    if rows:
        yield table(rows, ("agent", "version", "signed in", "needed by", "state"))
        yield ""
    for check in diagnosis.checks:
        yield f"{_MARKS[check.state]} {check.name}: {_one_line(check.text)}"
    for is_there, what in ((True, "installed and not needed here"), (False, "not installed")):
        names = [name for name, is_installed in others.items() if is_installed == is_there]
        if names and not unready:
            yield f"also known, {what}: {', '.join(names)}"
    if unready:
        yield "\nNo agent is ready here. Make one ready:"
        yield mask.text(agents_table(unready))

    troubles = [("problem", *trouble) for trouble in diagnosis.troubles()]
    warnings = [("warning", check.text, check.fix) for check in diagnosis.checks if check.state == "warning"]
    if troubles or warnings:
        yield "\nto fix:"
    for fix, group in groupby([*troubles, *warnings], lambda one: one[2]):
        for state, text, _ in group:
            yield f"{_MARKS[state]} {_one_line(text)}"
        yield f"    {hints.word(fix)}"
    if troubles:
        yield "\n" + paint(f"not ready: {plural(len(troubles), 'thing')} to fix", "red")
        return
    workflows = len({need.workflow for need in diagnosis.needs})
    what = f"{plural(workflows, 'workflow')} can be run" if workflows else "no workflow here"
    yield "\n" + (paint(f"not ready: {what}", "yellow") if unready else paint(f"ready: {what}", "green"))


def _one_line(text: str) -> str:
    return " ".join(text.split())
