"""`rolecall install` and `uninstall`: write the host configuration that uses Rolecall, and remove it."""

from __future__ import annotations

import os
import shlex
import sys
from argparse import BooleanOptionalAction, Namespace
from collections.abc import Sequence
from typing import Any

from rolecall.cli import CommandResult, argument, either, flag, verb
from rolecall.cli.asking import can_ask, confirm
from rolecall.cli.output import color_diff, format_of, plural, table, tell
from rolecall.errors import RolecallError, UsageError
from rolecall.hosts import file_change, git_exclude
from rolecall.hosts.file_change import FileChange
from rolecall.hosts.installation import host_module, plan_install, plan_removal, wiring_of
from rolecall.hosts.names import HOSTS
from rolecall.hosts.setup import HostSetup
from rolecall.nexus import catalog
from rolecall.nexus.project_paths import choose
from rolecall.settings import config, settings
from rolecall.settings.repository import root_around

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
    setup = _setup_for(options, catalog.load(config.catalog_folder()), config.load())
    if not setup.key:
        setup = setup._replace(key=os.path.join(config.home(), config.HOST_KEYS, os.urandom(16).hex()))
    wiring = wiring_of(options.host, setup)
    changes = plan_install(wiring, force=options.force)
    exclusion = _plan_exclusion(options, setup, changes, list({entry.path: None for entry in wiring.entries}))
    changes += [exclusion] if exclusion else []
    if not options.dry_run:
        # Only hosts know the key, which is the name of the file. The file also contains the key, so that no other
        # file can pass for it.
        os.makedirs(os.path.dirname(setup.key), mode=0o700, exist_ok=True)
        with open(setup.key, "w", encoding="utf-8") as file:
            file.write(os.path.basename(setup.key))
    _make(options, setup, changes)
    gate, steps = [], []
    if any(change.is_change for change in changes):
        gate = _GATE[settings.unplanned_edits(setup.settings)]
        steps = host_module(options.host).next_steps(setup)
        if setup.scope == "project" and not exclusion:
            steps.append(
                "Keep these files out of git: they contain paths of this machine. "
                f"`rolecall install {options.host} --exclude` enters them in .git/info/exclude."
            )
        if scope := _other_scope(options.host, setup):
            steps.append(
                f"It is installed {scope}, too, so every hook runs twice: rolecall uninstall {options.host} {scope}"
            )
    return _reply(options, setup, changes, steps, gate)


@verb(
    "uninstall",
    "remove from a host what `install` wrote, and nothing else",
    "rolecall uninstall claude\nrolecall uninstall claude --user --dry-run",
    *_HOST,
)
def uninstall(options: Namespace) -> CommandResult:
    # Entries are recognised by their form, so the built-in catalogue is enough, even if the configuration is
    # unreadable.
    setup = _setup_for(options, catalog.load(), {})
    plan = plan_removal(wiring_of(options.host, setup), force=options.force)
    changes = [change for change in plan if change.state != "same"]
    file = git_exclude.find(setup.project) if setup.scope == "project" else None
    if file and git_exclude.has_block(file, options.host):
        changes.append(git_exclude.without_block(file, options.host))
    _make(options, setup, changes)
    scope = "" if changes else _other_scope(options.host, setup)
    steps = [f"It is installed {scope}: rolecall uninstall {options.host} {scope}"] if scope else []
    return _reply(options, setup, changes, steps)


def _plan_exclusion(
    options: Namespace, setup: HostSetup, changes: list[FileChange], paths: list[str]
) -> FileChange | None:
    """Return the change to `.git/info/exclude` if an option, an earlier installation or the user asks for it."""
    file = git_exclude.find(setup.project) if setup.scope == "project" else None
    if file is None:
        if options.exclude:
            raise UsageError(
                "--exclude needs a project in a git repository",
                hint="Leave it out, or name another --project.",
            )
        return None
    is_wanted = options.exclude or (options.exclude is None and git_exclude.has_block(file, options.host))
    may_ask = options.exclude is None and not options.dry_run and format_of(options) == "text" and can_ask()
    if not is_wanted and may_ask and any(change.is_change for change in changes):
        if git_exclude.hides(setup.project, paths):
            return None
        tell(_list_files(changes))
        question = f"Keep these {len(paths)} files out of git? Adds them to {file}."
        is_wanted = confirm(question, "Add --exclude or --no-exclude.", default=True)
    return git_exclude.with_block(file, options.host, setup.project, paths) if is_wanted else None


def _make(options: Namespace, setup: HostSetup, changes: list[FileChange]) -> None:
    if not options.dry_run:
        roots = host_module(options.host).roots(setup)
        file_change.make(changes, roots=roots, is_private=setup.scope == "user")


def _other_scope(host: str, setup: HostSetup) -> str:
    """Return the options that select the other scope, if hooks are installed there. The other scope is that of the
    user, or that of the project around the working directory."""
    folder = root_around(os.getcwd()) or "" if setup.scope == "user" else ""
    if setup.scope == "user" and not folder:
        return ""
    other = setup._replace(scope="project" if folder else "user", project=folder)
    try:
        found = host_module(host).commands(other)
    except RolecallError:  # an unreadable file is reported when installing in that scope
        return ""
    options = ["--project", folder] if folder else ["--user"]
    return shlex.join(options) if any(found.hooks.values()) else ""


def _setup_for(options: Namespace, agents: catalog.Catalog, known: settings.Settings) -> HostSetup:
    setup = _user_setup(agents, known)
    if not options.user:
        # Hosts see the folder with links resolved.
        project = os.path.realpath(choose(options.project or None))
        setup = setup._replace(scope="project", project=project)
    if setup.project == os.path.realpath(setup.home):  # here, project files and user files are the same
        raise UsageError(f"{setup.project} is your home, not a project", hint="Install with --user.")
    for path in (*setup.command, setup.project, config.home()):
        try:
            path.encode()
        except UnicodeEncodeError:
            raise UsageError(f"the path {path!r} is not UTF-8, so no host's files can name it") from None
    return setup


def setups_here() -> list[HostSetup]:
    """Return the installations that apply to this folder: of the project around it, of itself, and of the user."""
    user = _user_setup(catalog.load(config.catalog_folder()), config.load())
    home = os.path.realpath(user.home)
    folders = dict.fromkeys((root_around(os.getcwd()), os.getcwd()))
    projects = [folder for folder in folders if folder and folder != home]
    return [*(user._replace(scope="project", project=folder) for folder in projects), user]


def _user_setup(agents: catalog.Catalog, known: settings.Settings) -> HostSetup:
    home = os.path.abspath(os.path.expanduser("~"))
    return HostSetup("user", "", home, own_command(), agents, config.environment(), known, config.host_key())


def own_command() -> tuple[str, ...]:
    """Return a command that starts this Rolecall from any folder: its script, or Python with the module."""
    for program in (sys.argv[0], sys.executable):
        script = os.path.join(os.path.dirname(os.path.abspath(program)), "rolecall")
        if not os.path.isfile(script) or not os.access(script, os.X_OK):
            continue
        with open(script, "rb") as file:
            first = file.readline(4096)
        interpreter = first[2:].split()[:1] if first.startswith(b"#!") else []
        if all(map(os.path.exists, interpreter)):  # false if the environment was moved
            return (script,)
    return (os.path.abspath(sys.executable), "-P", "-m", "rolecall")


def _reply(
    options: Namespace,
    setup: HostSetup,
    changes: list[FileChange],
    steps: list[str],
    gate: Sequence[str] = (),
) -> CommandResult:
    shown: dict[str, Any] = {
        "host": options.host,
        "scope": setup.scope,
        "project": setup.project or None,
        "dryRun": options.dry_run,
        "changes": [{"path": one.path, "state": one.state, "note": one.note or None} for one in changes],
        "gate": list(gate),
        "next": steps,
    }
    if options.dry_run:
        shown["diff"] = config.mask().text(file_change.difference(changes))
    notes = [f"{change.path}: {change.note}" for change in changes if change.note]
    next_steps = ["", "next:", *(f"- {step}" for step in steps)] if steps else []
    count = sum(change.is_change for change in changes)
    if not count:
        more = " else" if any(change.state == "kept" for change in changes) else ""
        lines = [*notes, f"{host_module(options.host).TITLE}: nothing{more} to change", *next_steps]
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
