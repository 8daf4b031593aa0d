"""`rolecall workflow add`, `outdated`, `update` and `trust`: use workflows from other folders and repositories."""

from __future__ import annotations

import os
from argparse import Namespace
from textwrap import wrap
from typing import Any

from rolecall.api import Rolecall, reader
from rolecall.cli import CommandResult, argument, flag, verb
from rolecall.cli.asking import confirm
from rolecall.cli.output import color_diff, columns_of_terminal, paint, plural, table, tell
from rolecall.errors import UsageError
from rolecall.files.packs import diff
from rolecall.workflow.pack import Pin, Powers

_YES = flag("--yes", "do not ask")
_NAMES = argument("names", "NAME", "workflows (default: all that come from packs)", nargs="*")


@verb(
    "workflow add",
    "copy workflows from another folder or git repository, without running them",
    "rolecall workflow add https://example.com/flows.git#v2\n"
    "rolecall workflow add git@example.com:team/flows.git review-api\n"
    "rolecall workflow add ../flows",
    argument("source", "FOLDER|URL[#REF]", "a folder, or a git repository and a branch, tag or commit of it"),
    argument("names", "NAME", "the workflows to take (default: all)", nargs="*"),
)
def add(options: Namespace) -> CommandResult:
    with reader() as rolecall:
        added, others = rolecall.add_workflows(options.source, options.names)
        names = sorted(added)
        files = {name: os.path.relpath(rolecall.find_file(name)) for name in names}
    shown = {
        "added": [{"name": name, "file": files[name], **_view(added[name])} for name in names],
        "others": others,
    }
    width = max(map(len, names), default=0)
    lines = [f"  {name:{width}}  {files[name]}" for name in names]
    lines = lines or ["Nothing to add: every workflow is already here."]
    if names:
        first = added[names[0]]
        at = f", commit {first.commit[:12]}" if first.commit else ""
        lines.insert(0, f"{plural(len(names), 'workflow')} from {first.origin}{at}:")
        lines += ["", "Nothing has run. The first run shows what the workflow may do, and asks."]
        lines.append(f"See it now: rolecall workflow trust {names[0]}")
    if others:
        lines.append(f"Not taken: {', '.join(others)}")
    return CommandResult(shown, lines)


def _view(pin: Pin) -> dict[str, Any]:
    return {"source": pin.source, "ref": pin.ref, "commit": pin.commit, "content": pin.content}


@verb(
    "workflow outdated",
    "compare workflows of packs with their sources; exit code 1 if one differs",
    "rolecall workflow outdated",
    _NAMES,
)
def list_outdated(options: Namespace) -> CommandResult:
    with reader() as rolecall:
        found = rolecall.compare_workflows(options.names)
    rows, cells = [], []
    for one in found:
        pin = {**_view(one.pin), "offered": one.new_pin.commit}
        rows.append({"name": one.name, "state": one.state, **pin, "reason": one.reason})
        reason = f": {one.reason}" if one.reason else ""
        cells.append((one.name, one.state, one.pin.origin + reason))
    text = table(cells, ("workflow", "state", "source")) if found else "No workflow here comes from a pack."
    if any(one.can_update for one in found):
        text += "\n\nSee the differences and take them: rolecall workflow update"
    return CommandResult(rows, text, code=1 if any(one.state != "current" for one in found) else 0)


@verb(
    "workflow update",
    "show how workflows differ from their sources, and update them",
    "rolecall workflow update\nrolecall workflow update review-api --ref v3",
    _NAMES,
    argument("--ref", "REF", "switch to this branch, tag or commit"),
    _YES,
)
def update(options: Namespace) -> CommandResult | int:
    with reader() as rolecall:
        found = rolecall.compare_workflows(options.names, ref=options.ref)
        chosen = [one for one in found if one.can_update]
        left = [one for one in found if not one.can_update and one.state != "current"]
        for one in left:
            why = {
                "changed here": "which was changed here; move the file away to take the version of "
                f"{one.pin.origin}",
                "gone there": f"which {one.pin.source} no longer has",
                "unreachable": one.reason,
            }.get(one.state, one.state)
            tell(f"{paint('left unchanged:', 'yellow')} {one.name}, {why}")
        if chosen:
            for one in chosen:  # what an updated workflow may do is shown before its next run
                assert one.offered is not None  # noqa: S101 - it can be updated
                at = f", commit {one.new_pin.commit[:12]}" if one.new_pin.commit else ""
                tell(f"{one.name}: {one.new_pin.origin}{at}")
                difference = diff(one.here, one.offered).rstrip("\n") or "the same files"
                tell(f"{color_diff(difference)}\n")
            question = f"Take {plural(len(chosen), 'workflow')} from there?"
            if not options.yes and not confirm(question, "Read the differences above, then add --yes."):
                tell("Nothing was changed.")
                return 1
            rolecall.update_workflows(chosen)
    shown = {
        "updated": [{"name": one.name, **_view(one.new_pin)} for one in chosen],
        "left": [{"name": one.name, "state": one.state, "reason": one.reason} for one in left],
    }
    changed = [one.name for one in chosen if one.state != "current"]
    lines = [f"{one.name} comes from {one.new_pin.origin}." for one in chosen if one.state == "current"]
    lines += [f"{name} is updated; its next run asks first." for name in changed]
    return CommandResult(shown, lines or ["There is nothing to update."], code=1 if left else 0)


@verb(
    "workflow trust",
    "show what a workflow of a pack may do, and allow it",
    "rolecall workflow trust review-api\nrolecall workflow trust review-api --yes",
    argument("workflow", "WORKFLOW", "its name or its file"),
    _YES,
)
def trust(options: Namespace) -> CommandResult | int:
    with reader() as rolecall:
        return _trust(rolecall, options.workflow, is_asked=not options.yes)


def ask_for_trust(path: str) -> bool:
    """Show what a workflow may do, and return whether a person allows it to run."""
    with reader() as rolecall:
        return isinstance(_trust(rolecall, path, is_asked=True), CommandResult)


def _trust(rolecall: Rolecall, name: str, *, is_asked: bool) -> CommandResult | int:
    powers, of_packs = rolecall.powers(name), dict[str, Powers]()
    for one in powers:
        if one.pin:
            of_packs.setdefault(one.content, one)  # the first file with this content is the main file
    if not of_packs:
        raise UsageError(f"{name} does not come from a pack, so it needs no permission")
    for one in powers:
        tell(word_powers(one))
        tell("")
    if is_asked and not confirm("May it run?", "Read above what it may do, then add --yes."):
        tell("It may not run.")
        return 1
    rolecall.trust(list(of_packs.values()))
    allowed = [{"name": one.name, "content": one.content} for one in of_packs.values()]
    text = [f"{one['name']} may run until its files change." for one in allowed]
    return CommandResult({"allowed": allowed}, text)


def word_powers(powers: Powers) -> str:
    """Describe everything that a workflow may do, so that a person can decide whether to allow it."""
    width = min(columns_of_terminal(), 100)
    pin, head = powers.pin, powers.name
    if pin is not None:
        head += f", from {pin.origin}" + (f", commit {pin.commit[:12]}" if pin.commit else "")
    lines = [f"{head}:"]
    if pin is not None and powers.is_changed:
        lines.append(paint("Its files have changed since they were taken from there.", "yellow"))
    rows = powers.explain()
    room = min(max(len(name) for name, _ in rows), 20)
    for name, text in rows:
        first, *rest = wrap(text, width - room - 4, break_long_words=True, break_on_hyphens=False) or [""]
        lines.append(f"  {name:{room}}  {first}")
        lines += [f"  {'':{room}}  {line}" for line in rest]
    return "\n".join(lines)
