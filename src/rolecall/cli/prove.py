"""`rolecall prove`: show from which prompts, agents, checks and people a commit comes, and whether that can be
verified."""

from __future__ import annotations

import json
import re
from argparse import Namespace
from collections.abc import Iterator
from typing import TYPE_CHECKING

from rolecall.api import reader
from rolecall.cli import CommandResult, argument, verb
from rolecall.cli.output import STORE, paint, plural, short, tell, write_file
from rolecall.errors import UsageError
from rolecall.threads.report import moment

if TYPE_CHECKING:
    from rolecall.threads.provenance import Proof


@verb(
    "prove",
    "show which prompts, agents, checks and people a commit comes from, and check it",
    "rolecall prove HEAD\n"
    "rolecall prove 1f2e3d4 --export proof.json\n"
    "rolecall prove 1f2e3d4 --bundle proof.json\n"
    "rolecall prove HEAD --as in-toto > statement.json",
    argument(
        "commit",
        "COMMIT",
        "a commit of the repository around this folder (default: HEAD)",
        nargs="?",
        default="HEAD",
    ),
    argument("--bundle", "FILE", "check it with this exported proof instead of the store"),
    argument("--export", "FILE", "write a new proof file, which has no prompts, answers or file names"),
    argument("--as", "in-toto", "print an in-toto statement, to sign", choices=("in-toto",), dest="form"),
    STORE,
)
def prove(options: Namespace) -> CommandResult:
    with reader(options.store) as rolecall:
        proof = rolecall.prove(options.commit, bundle=options.bundle)
    code = 0 if proof.is_proven else 1
    if options.export and code == 0:
        if not proof.anchor:
            raise UsageError(
                "no commit seals the steps yet, so nobody could check an exported proof",
                hint="Merge the thread's work first, or sign a statement: `rolecall prove COMMIT --as in-toto`.",
            )
        write_file(options.export, proof.sealed.dump(), is_new=True)
        tell(f"exported: {options.export}")
    if options.form == "in-toto" and code == 0:
        statement = proof.make_statement()
        return CommandResult(statement, json.dumps(statement, indent=2))
    shown = proof._asdict() | {
        "proven": proof.is_proven,
        "steps": [
            step._asdict() | {"sandbox": step.sandbox and step.sandbox._asdict()} for step in proof.steps
        ],
        "people": [one.id for one in proof.people],
        "checks": [check._asdict() for check in proof.checks],
    }
    del shown["sealed"]
    return CommandResult(shown, _describe(proof), code=code)


def _describe(proof: Proof) -> Iterator[str]:
    verdict = paint("proven:", "green") if proof.is_proven else paint("not proven:", "red") + " that"
    yield f"{verdict} {proof.commit[:12]} comes from thread {proof.thread}"
    yield from (f"  {paint('✗', 'red')} {problem}" for problem in proof.problems)
    if proof.files:
        yield f"  {proof.files}"
    where = "the store" if proof.source == "store" else "the exported proof"
    if proof.anchor and proof.is_proven:
        yield f"  {proof.anchor[:12]} seals {plural(len(proof.steps), 'step')}, read from {where}"
    yield f"\nworkflow  {proof.workflow or '?'}"
    yield f"task      {_first_line(proof.task)}"
    for step in proof.steps:
        parts = (step.agent, step.model if step.model != step.agent else "", step.version, step.status)
        yield f"\n{step.number} {step.role} · {' · '.join(filter(None, parts))}"
        reused = f" · taken over from {step.reused}" if step.reused else ""
        yield f"  {step.id} · {moment(step.completed_at)}{reused}"
        if step.prompt_seal:
            text = step.prompt or ""  # a prompt says first what to deliver, and then what the role is for
            found = re.search(r"^# Your role: .*\n(?:\s*## Goal\n)?", text, re.MULTILINE)
            yield f"  prompt   {_first_line(text[found.end() :] if found else step.prompt)}"
        if step.restrictions or step.sandbox:
            box = [step.sandbox.rules, *step.sandbox.enforced] if step.sandbox else []
            yield f"  confined {'; '.join([*step.restrictions, *box])}"
        if step.failed_attempts:
            yield f"  after    {plural(step.failed_attempts, 'failed attempt')}"
        if step.left != step.found:
            yield f"  files    {step.found[:12]} → {step.left[:12]}"
        if step.commits:
            yield f"  commits  {', '.join(one[:12] for one in step.commits)}"
    yield "\npeople who answered"
    for one in proof.people:
        door = f" ({one.door})" if one.door else ""
        when = moment(one.completed_at)
        yield f"  {one.person}{door} · {one.role} · {one.status or 'a message'} · {when}"
    if not proof.people:
        yield "  nobody"
    yield "\nchecks"
    yield from [f"  {one.role} · {one.command} · {one.status}" for one in proof.checks] or ["  none"]
    if proof.uncovered:
        yield "\nnot covered"
        yield from (f"  {what}" for what in proof.uncovered)


def _first_line(text: str | None) -> str:
    return "(withheld)" if text is None else short(text.strip(), 160)
