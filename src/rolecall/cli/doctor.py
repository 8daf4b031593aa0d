"""`rolecall doctor`: is everything here that the project's workflows need, and what to do where it is not."""

from __future__ import annotations

import asyncio
import os
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rolecall.cli import Verb, hints
from rolecall.cli.output import add_format, add_store, colored, show, table
from rolecall.errors import NotFound, RolecallError

if TYPE_CHECKING:
    from rolecall.checks.doctor import Diagnosis, Finding, Need, Place, Trouble
    from rolecall.checks.machine import Check
    from rolecall.settings.mask import Mask
    from rolecall.store.store import Store
    from rolecall.threads.engine import Cast
    from rolecall.workflow.playbook import Playbook

_MARKS = {"ok": "✓", "warning": colored("!", "yellow"), "problem": "✗"}
_NONE = "–"


def _doctor(options: Namespace) -> int:
    from rolecall.checks import machine
    from rolecall.checks.doctor import Diagnosis, Place
    from rolecall.settings import config
    from rolecall.settings.mask import Mask
    from rolecall.threads import workspace

    checks = machine.check_home(lambda url: workspace.open_store(url, create=False), url=options.store)
    others: dict[str, bool] = {}
    place, mask = Place({}, Path.cwd()), Mask(())
    try:
        settings, place, mask = config.load(), place._replace(env=config.environment()), workspace.mask()
    except RolecallError:  # told by the checks; without a configuration nobody knows who plays what
        diagnosis = Diagnosis(tuple(checks), (), {})
    else:
        checks += _hosts(settings)
        with _store_if_any(options.store) or nullcontext() as store:
            diagnosis, others = _diagnosed(options, store, settings, place, checks)
    show(
        options,
        mask.value(_shown(diagnosis, others)),
        lambda: mask.text("\n".join(_lines(diagnosis, others, mask))),
    )
    return 0 if diagnosis.is_ready else 1


def _diagnosed(
    options: Namespace, store: Store | None, settings: dict[str, Any], place: Place, checks: list[Check]
) -> tuple[Diagnosis, dict[str, bool]]:
    """What was found, and of the known agents that were not looked at whether they are installed."""
    from rolecall.checks.doctor import absence, diagnose, known_agents, needs_of, preset_agents
    from rolecall.threads import workspace

    def casting(book: Playbook, role: str) -> Cast:
        return workspace.cast(settings, book, role, environment=place.env)

    books, broken = _books(store, options.workflows)
    known = known_agents()
    installed = {cast.name: absence(cast.agent, place.env) is None for cast in known}
    needs = _with_proposals(needs_of(books, casting, lambda name: _load(store, name)), installed)
    besides = [*_default_agent(settings, place), *((*known, *preset_agents()) if options.all else ())]
    found = asyncio.run(diagnose(needs, place, settings=settings, besides=besides, checks=[*checks, *broken]))
    return found, {name: is_there for name, is_there in installed.items() if name not in found.findings}


def _with_proposals(needs: list[Need], installed: dict[str, bool]) -> list[Need]:
    """Propose an installed agent for roles that have none. The built-in one needs a model first."""
    from dataclasses import replace

    from rolecall.settings.settings import NAME_AN_AGENT

    found = next((name for name, is_there in installed.items() if is_there and name != "builtin"), None)
    if found is None:
        return needs
    fix = f"{found} is installed: `rolecall config set defaultAgent {found}`, or use --agent {found}."
    return [
        replace(need, trouble=need.trouble._replace(fix=fix))
        if need.trouble and need.trouble.fix == NAME_AN_AGENT
        else need
        for need in needs
    ]


def _hosts(settings: dict[str, Any]) -> list[Check]:
    """Of the hosts that Rolecall is installed in: for the project around here, and for the user."""
    from rolecall.checks.hosts import check_hosts
    from rolecall.checks.machine import Check
    from rolecall.cli.install import setups_here
    from rolecall.settings.settings import unplanned_edits

    try:
        return check_hosts(setups_here(), blocks_edits=unplanned_edits(settings) == "block")
    except RolecallError as error:  # a catalogue that cannot be read, or a mode that is none
        return [Check("hosts", "problem", error.message, error.hint)]


def _default_agent(settings: dict[str, Any], place: Place) -> list[Cast]:
    """The agent of roles that name none, which is worth a look before there is a workflow."""
    from rolecall.cli.agents import named_agent

    name = settings.get("defaultAgent")
    try:
        return [named_agent(settings, str(name), place.env)] if name else []
    except RolecallError:  # a name that leads nowhere is told by the check of the configuration
        return []


# -- workflows --


def _books(store: Store | None, names: list[str]) -> tuple[list[Playbook], list[Check]]:
    """The workflows named, or all of the project; one that does not validate is a problem of its own."""
    from rolecall.checks.machine import Check
    from rolecall.workflow import registry

    if names:
        return [_load(store, name) for name in names], []
    books, broken = [], []
    for entry in registry.listed(None, folder=os.getcwd()):
        checked = registry.check_file(str(entry.path))
        if checked.playbook is not None:
            books.append(checked.playbook)
        else:
            fix = f"rolecall workflow validate {entry.path}"
            broken.append(Check("workflow", "problem", f"{entry.path} does not validate", fix))
    return books, broken


def _load(store: Store | None, name: str) -> Playbook:
    from rolecall.workflow import registry

    is_file_here = "/" not in name and "." in name and os.path.isfile(name)
    found = registry.find(store, f"./{name}" if is_file_here else name, folder=os.getcwd())
    if found.path is not None:
        return registry.load_file(found.path)
    if store is None:
        raise NotFound(f"there is no workflow {name!r}")
    return registry.load_node(store, str(found.node))


def _store_if_any(url: str | None) -> Store | None:
    from rolecall.threads.workspace import open_store

    try:
        return open_store(url, create=False)
    except RolecallError:  # why it does not open is told by its check
        return None


# -- as JSON --


def _shown(diagnosis: Diagnosis, others: dict[str, bool]) -> dict[str, Any]:
    return {
        "ready": diagnosis.is_ready,
        "agents": [
            _finding_shown(finding, diagnosis.needs_for(label))
            for label, finding in diagnosis.findings.items()
        ],
        "roles": [_need_shown(need) for need in diagnosis.needs],
        "checks": [_with_fix(check) for check in diagnosis.checks],
        "others": [{"agent": name, "installed": is_there} for name, is_there in others.items()],
        "fix": [_with_fix(trouble) for trouble in diagnosis.troubles()],
    }


def _with_fix(found: Check | Trouble) -> dict[str, Any]:
    return {**found._asdict(), "fix": hints.word(found.fix)}


def _finding_shown(finding: Finding, needs: list[Need]) -> dict[str, Any]:
    signed_in = finding.signed_in
    return {
        "agent": finding.agent,
        "state": finding.state,
        "program": finding.program or None,
        "path": finding.path,
        "version": finding.version,
        "signedIn": signed_in.state if signed_in else None,
        "signedInBy": signed_in.how if signed_in else None,
        "missingFlags": list(finding.missing_flags),
        "neededBy": [{"workflow": need.workflow, "role": need.role} for need in needs],
        "problems": [_with_fix(trouble) for trouble in finding.troubles],
    }


def _need_shown(need: Need) -> dict[str, Any]:
    return {
        "workflow": need.workflow,
        "role": need.role,
        "agent": need.cast.name if need.cast else None,
        "problem": need.trouble.text if need.trouble else None,
        "hint": hints.word(need.trouble.fix) if need.trouble else None,
    }


# -- as text --


def _lines(diagnosis: Diagnosis, others: dict[str, bool], mask: Mask) -> Iterator[str]:
    if diagnosis.findings:
        yield _table(diagnosis, mask)
        yield ""
    for check in diagnosis.checks:
        yield f"{_MARKS[check.state]} {check.name}: {_one_line(check.text)}"
    yield from _others(others)
    troubles = [("problem", *trouble) for trouble in diagnosis.troubles()]
    warnings = [("warning", check.text, check.fix) for check in diagnosis.checks if check.state == "warning"]
    if troubles or warnings:
        yield "\nto fix:"
    for fix, group in groupby([*troubles, *warnings], lambda listed: listed[2]):
        for state, text, _ in group:
            yield f"{_MARKS[state]} {_one_line(text)}"
        yield f"    {hints.word(fix)}"
    yield f"\n{_verdict(diagnosis, len(troubles))}"


def _verdict(diagnosis: Diagnosis, count: int) -> str:
    if count:
        return colored(f"not ready: {count} thing{'s' if count > 1 else ''} to fix", "red")
    workflows = len({need.workflow for need in diagnosis.needs})
    what = (
        f"{workflows} workflow{'s' if workflows > 1 else ''} can be run" if workflows else "no workflow here"
    )
    return colored(f"ready: {what}", "green")


def _table(diagnosis: Diagnosis, mask: Mask) -> str:
    """Agents are masked before the table cuts them."""
    headings = ("agent", "version", "signed in", "needed by", "state")
    items = [(finding, diagnosis.needs_for(label)) for label, finding in diagnosis.findings.items()]
    rows = [
        (
            mask.text(finding.agent),
            finding.version or _NONE,
            _signed_in(finding),
            _needed_by(needs) or _NONE,
            colored(finding.state, "green" if finding.is_ready else "red" if needs else "yellow"),
        )
        for finding, needs in items
    ]
    return table(rows, headings)


def _signed_in(finding: Finding) -> str:
    if finding.signed_in is None or not finding.path:
        return _NONE
    state, how = finding.signed_in
    return f"yes ({how.partition(' is ')[0]})" if state == "yes" else state


def _needed_by(needs: list[Need]) -> str:
    roles: dict[str, list[str]] = {}
    for need in needs:
        roles.setdefault(need.workflow, []).append(need.role)
    return "; ".join(f"{workflow}: {', '.join(names)}" for workflow, names in roles.items())


def _others(others: dict[str, bool]) -> Iterator[str]:
    for is_there, what in ((True, "installed and not needed here"), (False, "not installed")):
        names = [name for name, is_installed in others.items() if is_installed == is_there]
        if names:
            yield f"also known, {what}: {', '.join(names)}"


def _one_line(text: str) -> str:
    return " ".join(text.split())


# -- the table of verbs --


def _arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "workflows", metavar="WORKFLOW", nargs="*", help="these workflows (default: all of the project)"
    )
    parser.add_argument("--all", action="store_true", help="look at every known agent, needed or not")
    add_format(parser)
    add_store(parser)


VERBS = {
    "": Verb(
        _doctor,
        "check that the agents and the endpoint that workflows need are here, and say what to fix",
        "rolecall doctor\nrolecall doctor solve-issue\nrolecall doctor --all",
        _arguments,
    )
}
