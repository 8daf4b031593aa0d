"""`rolecall doctor`: check that everything the project's workflows need is available, and suggest fixes."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from itertools import groupby
from typing import Any

from rolecall.api import reader
from rolecall.checks.doctor import Diagnosis, Trouble
from rolecall.checks.machine import Check
from rolecall.cli import CommandResult, argument, flag, hints, verb
from rolecall.cli.agents import agents_table
from rolecall.cli.output import STORE, paint, plural, table
from rolecall.errors import Hint, RolecallError
from rolecall.settings import config
from rolecall.settings.mask import Mask

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
    with reader(options.store) as rolecall:
        diagnosis = rolecall.diagnose(options.workflows, all_agents=options.all)
    try:
        mask = config.mask()
    except RolecallError:  # the diagnosis reports the error
        mask = Mask(())
    text = mask.text("\n".join(_word(diagnosis, mask)))
    return CommandResult(mask.value(_as_json(diagnosis)), text, code=0 if diagnosis.is_ready else 1)


def _as_json(diagnosis: Diagnosis) -> dict[str, Any]:
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
        "others": [{"agent": name, "installed": is_there} for name, is_there in diagnosis.others.items()],
        "fix": [_with_fix(trouble) for trouble in diagnosis.troubles()],
    }


def _with_fix(found: Check | Trouble) -> dict[str, Any]:
    return {**found._asdict(), "fix": _word_fix(found.fix)}


def _word_fix(fix: str) -> str:
    if isinstance(fix, Hint) and fix.code == "validate_workflow":  # the text of the check says enough
        return hints.command(fix)
    return hints.word(fix)


def _word(diagnosis: Diagnosis, mask: Mask) -> Iterator[str]:
    rows, unready = [], diagnosis.unready
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
        names = [name for name, is_installed in diagnosis.others.items() if is_installed == is_there]
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
        yield f"    {_word_fix(fix)}"
    if troubles:
        yield "\n" + paint(f"not ready: {plural(len(troubles), 'thing')} to fix", "red")
        return
    workflows = len({need.workflow for need in diagnosis.needs})
    what = f"{plural(workflows, 'workflow')} can be run" if workflows else "no workflow here"
    yield "\n" + (paint(f"not ready: {what}", "yellow") if unready else paint(f"ready: {what}", "green"))


def _one_line(text: str) -> str:
    return " ".join(text.split())
