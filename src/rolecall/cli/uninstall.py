"""`rolecall uninstall`: take out what `rolecall install` wrote into a host, and nothing else."""

from __future__ import annotations

from argparse import Namespace

from rolecall.cli import Verb
from rolecall.cli.install import arguments, carry_out, other_scope, report, setup_for


def _uninstall(options: Namespace) -> None:
    from rolecall.hosts import git_exclude
    from rolecall.hosts.installation import plan_removal, wiring_of
    from rolecall.nexus import catalog

    # Entries are recognised by their form, so our own catalogue is enough, even if the configuration is unreadable.
    setup = setup_for(options, catalog.load(), {})
    changes = [
        change
        for change in plan_removal(wiring_of(options.host, setup), force=options.force)
        if change.state != "same"
    ]
    file = git_exclude.find(setup.project) if setup.scope == "project" else None
    if file and git_exclude.has_block(file, options.host):
        changes.append(git_exclude.without_block(file, options.host))
    carry_out(options, setup, changes)
    scope = "" if changes else other_scope(options.host, setup)
    steps = [f"It is installed {scope}: rolecall uninstall {options.host} {scope}"] if scope else []
    report(options, setup, changes, steps)


VERBS = {
    "": Verb(
        _uninstall,
        "take out of a host what `install` wrote, and nothing else",
        "rolecall uninstall claude\nrolecall uninstall claude --user --dry-run",
        arguments,
    )
}
