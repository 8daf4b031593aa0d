"""`rolecall install` and `uninstall`: write the host configuration that uses Rolecall, and remove it."""

from __future__ import annotations

import shlex
from argparse import BooleanOptionalAction, Namespace
from collections.abc import Sequence
from typing import Any

from rolecall.api import Project, reader
from rolecall.cli import CommandResult, argument, either, flag, verb
from rolecall.cli.asking import can_ask, confirm
from rolecall.cli.output import color_diff, format_of, plural, table, tell
from rolecall.errors import UsageError
from rolecall.hosts import file_change
from rolecall.hosts.file_change import FileChange
from rolecall.hosts.installation import HostInstallation
from rolecall.hosts.names import HOSTS
from rolecall.hosts.setup import HostSetup
from rolecall.settings import config
from rolecall.settings.settings import unplanned_edits

_SETTING = "rolecall config set project.unplannedEdits"
_GATE = {
    "block": [
        "From now on the host refuses edits of a project's files while it has no tasks.",
        f"To relax this: `{_SETTING} warn`, or `off`.",
    ],
    "warn": [
        "From now on the host warns the model about edits while the project has no tasks.",
        f"To refuse them: `{_SETTING} block`; to allow them: `off`.",
    ],
    "off": [
        "The host allows edits while the project has no tasks: project.unplannedEdits is off.",
        f"To change this: `{_SETTING} block`, or `warn`.",
    ],
}
"""For each mode, how a host treats edits while the project has no tasks, and how to change the mode."""
_WORDS = {"same": "up to date", "kept": "left alone"}


_HOST = (
    argument("host", "HOST", ", ".join(HOSTS), choices=HOSTS),
    either(
        argument(
            "--project",
            "DIR",
            "for this project (default: the git repository that contains the current directory)",
            nargs="?",
            const="",
        ),
        flag("--user", "for every project of this user"),
    ),
    flag("--dry-run", "show the difference and write nothing"),
    flag("--force", "also replace files that were changed by hand or existed before"),
)


@verb(
    "install",
    "write what a host (Claude Code, Codex, OpenCode) needs to use Rolecall",
    "rolecall install claude --exclude\nrolecall install claude --project ~/shop --dry-run\n"
    "rolecall install codex --user",
    *_HOST,
    argument(
        "--exclude",
        None,
        "keep the project's new files out of git with .git/info/exclude (default: ask on a terminal)",
        action=BooleanOptionalAction,
    ),
)
def install(options: Namespace) -> CommandResult:
    exclude, host = options.exclude, options.host
    if options.user and exclude:
        hint = "Leave it out, or name another --project."
        raise UsageError("--exclude needs a project in a git repository", hint=hint)
    place = reader() if options.user else Project(options.project or None)
    may_ask = exclude is None and not options.dry_run and format_of(options) == "text" and can_ask()
    if may_ask and isinstance(place, Project):
        found = place.install(host, force=options.force, is_dry=True)
        if found.change_count and not found.is_excluded and (file := found.find_exclude_file()):
            tell(_list_files(found.changes))
            question = f"Keep these {len(found.paths)} files out of git? Adds them to {file}."
            exclude = confirm(question, "Add --exclude or --no-exclude.", default=True)
    if isinstance(place, Project):
        found = place.install(host, exclude=exclude, force=options.force, is_dry=options.dry_run)
    else:
        found = place.install_for_user(host, force=options.force, is_dry=options.dry_run)
    gate, steps = [], [*found.next_steps]
    if found.change_count:
        gate = _GATE[unplanned_edits(found.setup.settings)]
        if found.setup.project and not found.is_excluded:
            steps.append(
                "Keep these files out of git: they contain paths of this machine. "
                f"`rolecall install {host} --exclude` enters them in .git/info/exclude."
            )
        if found.elsewhere:
            scope = _word_scope(found.elsewhere)
            steps.append(
                f"It is installed {scope}, too, so every hook runs twice: rolecall uninstall {host} {scope}"
            )
    return _reply(options, found, steps, gate)


@verb(
    "uninstall",
    "remove from a host what `install` wrote, and nothing else",
    "rolecall uninstall claude\nrolecall uninstall claude --user --dry-run",
    *_HOST,
)
def uninstall(options: Namespace) -> CommandResult:
    remove = reader().uninstall_for_user if options.user else Project(options.project or None).uninstall
    found = remove(options.host, force=options.force, is_dry=options.dry_run)
    scope = _word_scope(found.elsewhere) if found.elsewhere else ""
    steps = [f"It is installed {scope}: rolecall uninstall {options.host} {scope}"] if scope else []
    return _reply(options, found, steps)


def _word_scope(setup: HostSetup) -> str:
    """Return the options that select the scope."""
    return shlex.join(["--project", setup.project]) if setup.project else "--user"


def _reply(
    options: Namespace, found: HostInstallation, steps: list[str], gate: Sequence[str] = ()
) -> CommandResult:
    changes, count = found.changes, found.change_count
    shown: dict[str, Any] = {
        "host": options.host,
        "scope": found.setup.scope,
        "project": found.setup.project or None,
        "dryRun": options.dry_run,
        "changes": [{"path": one.path, "state": one.state, "note": one.note or None} for one in changes],
        "gate": list(gate),
        "next": steps,
    }
    if options.dry_run:
        shown["diff"] = config.mask().text(file_change.difference(changes))
    notes = [f"{change.path}: {change.note}" for change in changes if change.note]
    next_steps = ["", "next:", *(f"- {step}" for step in steps)] if steps else []
    if not count:
        more = " else" if any(change.state == "kept" for change in changes) else ""
        lines = [*notes, f"{found.title}: nothing{more} to change", *next_steps]
    elif options.dry_run:
        would = f"{plural(count, 'file')} would change; nothing was written"
        lines = [color_diff(shown["diff"].rstrip("\n")), *notes, "", would]
    else:
        gate_lines = ["", *gate] if gate else []
        lines = [_list_files(changes), *notes, *gate_lines, *next_steps]
    return CommandResult(shown, lines)


def _list_files(changes: Sequence[FileChange]) -> str:
    rows = [(_WORDS.get(change.state, change.state), change.path) for change in changes]
    headings = ("state", "file")
    return table(rows, headings, whole=headings)
