"""`rolecall install`: write what a host needs to use Rolecall; `uninstall.py` takes it out again."""

from __future__ import annotations

import os
import shlex
import sys
from argparse import ArgumentParser, BooleanOptionalAction, Namespace
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rolecall.cli import Verb
from rolecall.cli.output import add_format, colored_diff, format_of, say, show, table
from rolecall.errors import RolecallError, UsageError

if TYPE_CHECKING:
    from rolecall.hosts.file_change import Change
    from rolecall.hosts.setup import Setup
    from rolecall.nexus.catalog import Catalog

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
"""What a host does about edits without tasks, and how to change that."""
_WORDS = {"same": "up to date", "kept": "left alone"}


def _install(options: Namespace) -> None:
    from rolecall.hosts.installation import host_module, plan_install, wiring_of
    from rolecall.settings import config, settings

    setup = setup_for(options, _catalog(), config.load())
    if not setup.key:
        setup = setup._replace(key=os.path.join(config.home(), config.HOST_KEYS, os.urandom(16).hex()))
    wiring = wiring_of(options.host, setup)
    changes = plan_install(wiring, force=options.force)
    exclusion = _exclusion(options, setup, changes, list({piece.path: None for piece in wiring.pieces}))
    changes += [exclusion] if exclusion else []
    if not options.dry_run:
        _keep_key(setup.key)
    carry_out(options, setup, changes)
    gate, steps = [], []
    if any(change.is_change for change in changes):
        gate = _GATE[settings.unplanned_edits(setup.settings)]
        steps = host_module(options.host).next_steps(setup)
        if setup.scope == "project" and not exclusion:
            steps.append(
                "Keep these files out of git: they contain paths of this machine. "
                f"`rolecall install {options.host} --exclude` enters them in .git/info/exclude."
            )
        if scope := other_scope(options.host, setup):
            steps.append(
                f"It is installed {scope}, too, so every hook runs twice: rolecall uninstall {options.host} {scope}"
            )
    report(options, setup, changes, steps, gate)


def _exclusion(options: Namespace, setup: Setup, changes: list[Change], paths: list[str]) -> Change | None:
    """The change of `.git/info/exclude`, if the option, an earlier installation or a person's answer asks for it."""
    from rolecall.cli.asking import ask, can_ask
    from rolecall.hosts import git_exclude

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
        is_wanted = ask(f"Keep these {len(paths)} files out of git? Adds them to {file}. (Y/n)", _is_yes)
    return git_exclude.with_block(file, options.host, setup.project, paths) if is_wanted else None


def _is_yes(answer: str) -> bool:
    if answer.lower() not in ("", "y", "yes", "n", "no"):
        raise UsageError("Answer y or n.")
    return not answer.lower().startswith("n")


def _keep_key(path: str) -> None:
    """The file whose name only hosts know. It contains its own name, so that no other file passes for it."""
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(os.path.basename(path))


def carry_out(options: Namespace, setup: Setup, changes: list[Change]) -> None:
    from rolecall.hosts import file_change as change
    from rolecall.hosts.installation import host_module

    if not options.dry_run:
        roots = host_module(options.host).roots(setup)
        change.make(changes, roots=roots, is_private=setup.scope == "user")


def other_scope(host: str, setup: Setup) -> str:
    """The options of the other scope, if hooks are installed in it: for the user, or for the project around here."""
    from rolecall.hosts.installation import host_module

    folder = _repository() if setup.scope == "user" else ""
    if setup.scope == "user" and not folder:
        return ""
    other = setup._replace(scope="project" if folder else "user", project=folder)
    try:
        found = host_module(host).commands(other)
    except RolecallError:  # a file that cannot be read is told of when that scope is installed
        return ""
    options = ["--project", folder] if folder else ["--user"]
    return shlex.join(options) if any(found.hooks.values()) else ""


# -- what is installed from --


def setup_for(options: Namespace, catalog: Catalog, settings: Mapping[str, Any]) -> Setup:
    """What the command was asked to install."""
    from rolecall.settings import config

    setup = _for_user(catalog, settings)
    if not options.user:
        setup = setup._replace(scope="project", project=_project(options.project))
    if setup.project == os.path.realpath(setup.home):  # its files are those of the user
        raise UsageError(f"{setup.project} is your home, not a project", hint="Install with --user.")
    for path in (*setup.command, setup.project, config.home()):
        if not _is_text(path):
            raise UsageError(f"the path {path!r} is not UTF-8, so no host's files can name it")
    return setup


def setups_here() -> list[Setup]:
    """What may be installed that counts in this folder: for the project around it, for itself, and for the user."""
    from rolecall.settings import config

    user = _for_user(_catalog(), config.load())
    folders = [_repository(), os.getcwd()]
    projects = [
        folder for folder in dict.fromkeys(folders) if folder and folder != os.path.realpath(user.home)
    ]
    return [*(user._replace(scope="project", project=folder) for folder in projects), user]


def _for_user(catalog: Catalog, settings: Mapping[str, Any]) -> Setup:
    from rolecall.hosts.setup import Setup
    from rolecall.settings import config

    home = os.path.abspath(os.path.expanduser("~"))
    return Setup("user", "", home, own_command(), catalog, config.environment(), settings, config.host_key())


def _catalog() -> Catalog:
    from rolecall.nexus import catalog
    from rolecall.settings import config

    return catalog.load(config.catalog_folder())


def _project(folder: str | None) -> str:
    """The project's folder by the way that hosts see it, links followed."""
    if not folder:
        from rolecall.nexus.project_paths import find

        return find(os.getcwd())
    if not os.path.isdir(folder):
        raise UsageError(f"there is no folder {folder!r}", hint="--project names the folder of a project.")
    return os.path.realpath(folder)


def _repository() -> str:
    from rolecall.settings.repository import root_around

    return root_around(os.getcwd()) or ""


def _is_text(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def own_command() -> tuple[str, ...]:
    """The words that start this very Rolecall from anywhere: its script, or Python with its module."""
    for program in (sys.argv[0], sys.executable):
        script = os.path.join(os.path.dirname(os.path.abspath(program)), "rolecall")
        if _can_run(script):
            return (script,)
    return (os.path.abspath(sys.executable), "-P", "-m", "rolecall")


def _can_run(script: str) -> bool:
    """Whether it is a program, and what it is written for is there: not so in an environment that was moved."""
    if not os.path.isfile(script) or not os.access(script, os.X_OK):
        return False
    with open(script, "rb") as file:
        first = file.readline(4096)
    interpreter = first[2:].split()[:1] if first.startswith(b"#!") else []
    return all(map(os.path.exists, interpreter))


# -- what is shown --


def report(
    options: Namespace, setup: Setup, changes: list[Change], steps: list[str], gate: Sequence[str] = ()
) -> None:
    """The changes (or planned changes), what they mean for edits, and the next steps."""
    from rolecall.hosts.file_change import difference
    from rolecall.threads import workspace

    told: dict[str, Any] = {
        "host": options.host,
        "scope": setup.scope,
        "project": setup.project or None,
        "dryRun": options.dry_run,
        "changes": [
            {"path": change.path, "state": change.state, "note": change.note or None} for change in changes
        ],
        "gate": list(gate),
        "next": steps,
    }
    if options.dry_run:
        told["diff"] = workspace.mask().text(difference(changes))
    if format_of(options) == "text":
        say(_text(options, changes, told))
    else:
        show(options, told)


def _text(options: Namespace, changes: list[Change], told: dict[str, Any]) -> str:
    notes = [f"{change.path}: {change.note}" for change in changes if change.note]
    steps = ["", "next:", *(f"- {step}" for step in told["next"])] if told["next"] else []
    if not any(change.is_change for change in changes):
        return "\n".join([*notes, _nothing(options, changes), *steps])
    if options.dry_run:
        count = sum(change.is_change for change in changes)
        would = f"{count} file{'s' if count > 1 else ''} would change; nothing was written"
        return "\n".join([colored_diff(told["diff"].rstrip("\n")), *notes, "", would])
    rows = [(_WORDS.get(change.state, change.state), change.path) for change in changes]
    gate = ["", *told["gate"]] if told["gate"] else []
    return "\n".join([table(rows, ("state", "file")), *notes, *gate, *steps])


def _nothing(options: Namespace, changes: list[Change]) -> str:
    from rolecall.hosts.installation import host_module

    title = host_module(options.host).TITLE
    if any(change.state == "kept" for change in changes):
        return f"{title}: nothing else to change"
    return f"{title}: nothing to change"


def _install_arguments(parser: ArgumentParser) -> None:
    arguments(parser)
    parser.add_argument(
        "--exclude",
        action=BooleanOptionalAction,
        help="keep the project's new files out of git with .git/info/exclude (default: ask on a terminal)",
    )


def arguments(parser: ArgumentParser) -> None:
    from rolecall.hosts.names import HOSTS

    parser.add_argument("host", choices=HOSTS, metavar="HOST", help=", ".join(HOSTS))
    scope = parser.add_mutually_exclusive_group()
    scope.add_argument(
        "--project",
        nargs="?",
        const="",
        metavar="DIR",
        help="for this project (default: the git repository around here)",
    )
    scope.add_argument("--user", action="store_true", help="for every project of this user")
    parser.add_argument("--dry-run", action="store_true", help="show the difference and write nothing")
    parser.add_argument(
        "--force", action="store_true", help="also files that were changed by hand or were there before"
    )
    add_format(parser)


VERBS = {
    "": Verb(
        _install,
        "write what a host (Claude Code, Codex, OpenCode) needs to use Rolecall",
        "rolecall install claude --exclude\nrolecall install claude --project ~/shop --dry-run\n"
        "rolecall install codex --user",
        _install_arguments,
    )
}
