"""`rolecall memory`: what a project has learnt, kept as notes in its `.nexus/memory/`."""

from __future__ import annotations

import sys
from argparse import ArgumentParser, Namespace
from shlex import join
from typing import Any

from rolecall.cli import Verb
from rolecall.cli.note_arguments import add_text, print_text, text_of
from rolecall.cli.output import colored, say, show, table
from rolecall.cli.project_call import add_project, project_of
from rolecall.errors import UsageError
from rolecall.settings import config
from rolecall.threads import workspace

_SHOWN_TEXT = 200
"""A longer text is not repeated in a command that is to be typed again."""


# -- add --


def _add(options: Namespace) -> None:
    from rolecall.nexus import memory

    try:
        reply = memory.add(
            project_of(options),
            options.name,
            text_of(options),
            mask=workspace.mask(),
            category=options.category,
            into=options.into,
            is_new=options.new,
            thresholds=memory.configured_thresholds(),
        )
    except memory.Overlap as overlap:
        raise UsageError(overlap.message, hint=_choices(options, overlap)) from overlap
    wrote = f"{'wrote' if reply['created'] else 'added to'} {reply['path']}"
    show(options, reply, lambda: wrote)


def _choices(options: Namespace, overlap: Any) -> str:
    """The two commands to choose between, as they have to be typed here."""
    if options.message is None:
        text = [options.source]
    else:
        text = ["-m", options.message if len(options.message) <= _SHOWN_TEXT else "…"]
    words = ["memory", "add", options.name, *text]
    words += ["--category", options.category] if options.category else []
    there = _command(options, *words, "--into", overlap.matches[0].name)
    return f"Put it there: `{there}`\n  or keep it apart: `{_command(options, *words, '--new')}`"


def _command(options: Namespace, *words: str) -> str:
    """A command that is to be typed next, with the project that was named for this one."""
    return join(["rolecall", *words, *(["--project", options.project] if options.project else [])])


def _restoring(command: str) -> str:
    return f"this brings it back: {command}"


# -- list and read --


def _list(options: Namespace) -> None:
    from rolecall.nexus import memory

    project = project_of(options)
    if options.context:
        _list_context(options, project)
        return
    notes = memory.listed(project)
    show(options, notes, lambda: _listed(notes) if notes else "nothing is remembered yet")


def _warn(warning: str) -> None:
    if warning:
        sys.stdout.flush()
        say(f"{colored('warning:', 'yellow')} {warning}", sys.stderr)


def _listed(notes: list[dict[str, Any]]) -> str:
    rows = [
        (
            note["name"],
            note["category"],
            note["size"],
            (note["lastAccess"] or "never")[:16].replace("T", " "),
            note["accessCount"],
            f"{note['ageDays']} d",
        )
        for note in notes
    ]
    return table(rows, ("name", "category", "bytes", "last read", "reads", "age"))


def _list_context(options: Namespace, project: str) -> None:
    from rolecall.nexus import note

    found = [
        {"name": each.name, "size": each.size, "path": each.path} for each in note.listed(project, "context")
    ]
    show(options, found, lambda: "\n".join(str(entry["path"]) for entry in found) or "there is no context")


def _read(options: Namespace) -> None:
    from rolecall.nexus import memory, note_name

    if not note_name.is_utf8(options.agent):
        raise UsageError(f"--agent {options.agent!r} holds bytes that are not UTF-8", hint="Name the agent.")
    reading = memory.read(project_of(options), options.name, agent=options.agent)
    print_text(options, reading.text, name=options.name)
    _warn(reading.warning)


# -- merge --


def _merge(options: Namespace) -> None:
    from rolecall.nexus import memory

    reply = memory.merge(project_of(options), options.first, options.second, into=options.into)
    show(options, reply, lambda: "\n".join(_merged(reply)))


def _merged(reply: dict[str, Any]) -> list[str]:
    pairs = zip(reply["removed"], reply["restore"], strict=True)
    lines = [f"wrote {reply['path']}"]
    lines += [f"removed {name}; {_restoring(command)}" for name, command in pairs]
    return lines


# -- gc --


def _gc(options: Namespace) -> None:
    from rolecall.nexus import memory_gc
    from rolecall.nexus.memory import configured_thresholds

    project = project_of(options)
    if not options.delete and not options.auto:
        _show_candidates(options, project)
        return
    if options.auto:
        is_enabled = (config.load().get("memory") or {}).get("autoDelete") is True
        thresholds = configured_thresholds()
        reply = memory_gc.delete_automatically(project, is_enabled=is_enabled, thresholds=thresholds)
    else:
        reply = {"deleted": memory_gc.delete(project, options.delete), "stayed": []}
    show(options, reply, lambda: _gone(reply))


def _gone(reply: dict[str, Any]) -> str:
    lines = [f"removed {each['name']}; {_restoring(each['restore'])}" for each in reply["deleted"]]
    lines += [f"{each['name']} stays: {each['reason']}" for each in reply["stayed"]]
    return "\n".join(lines) or "nothing was deleted"


def _show_candidates(options: Namespace, project: str) -> None:
    from rolecall.nexus import memory_gc
    from rolecall.nexus.memory import configured_thresholds

    found = [
        {
            "name": candidate.note.name,
            "signals": [signal._asdict() for signal in candidate.signals],
            "command": _command(options, "memory", "gc", "--delete", candidate.note.name),
        }
        for candidate in memory_gc.candidates(project, thresholds=configured_thresholds())
    ]
    show(options, {"candidates": found}, lambda: _candidates(found))


def _candidates(found: list[dict[str, Any]]) -> str:
    lines = []
    for entry in found:
        lines += ["", entry["name"]]
        lines += [f"  {signal['id']:11} {signal['reason']}" for signal in entry["signals"]]
        lines += [f"  delete it: {entry['command']}"]
    return "\n".join(lines[1:]) or "nothing speaks against any note"


# -- the table --


def _add_arguments(parser: ArgumentParser) -> None:
    from rolecall.nexus.note_name import CATEGORIES

    parser.add_argument("name", metavar="NAME", help="2 to 4 words that say what it is about: retry-limits")
    add_text(parser)
    parser.add_argument("--category", choices=CATEGORIES, help="what kind of lesson it is; begins the name")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--into", metavar="NOTE", help="put the text into this note, under a heading")
    where.add_argument(
        "--new", action="store_true", help="make a note of it also where one is on the subject"
    )
    add_project(parser)


def _list_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--context", action="store_true", help="list .nexus/context/ instead")
    add_project(parser)


def _read_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the note")
    parser.add_argument("--agent", metavar="ID", default="lead", help="who reads (default: lead)")
    add_project(parser)


def _merge_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("first", metavar="A", help="a note, which takes the other in")
    parser.add_argument("second", metavar="B", help="the other note, which is removed")
    parser.add_argument("--into", metavar="NAME", help="join both in a new note and remove both")
    add_project(parser)


def _gc_arguments(parser: ArgumentParser) -> None:
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--delete", nargs="+", metavar="NAME", help="delete these, each by a commit")
    what.add_argument(
        "--auto",
        action="store_true",
        help="delete what three signals speak against, if `memory.autoDelete` of the configuration is true",
    )
    add_project(parser)


VERBS = {
    "add": Verb(
        _add,
        "keep a lesson, in a note of its own or in the one on its subject",
        "rolecall memory add retry-limits --category external -m 'The API answers 429 after 60 calls a minute.'\n"
        "rolecall memory add queue-order --into retry-limits notes.md\n"
        "git log -1 --format=%B | rolecall memory add release-steps -",
        _add_arguments,
    ),
    "list": Verb(
        _list, "list the notes and how often each was read", "rolecall memory list", _list_arguments
    ),
    "read": Verb(
        _read, "print a note, and count the read", "rolecall memory read retry-limits", _read_arguments
    ),
    "merge": Verb(
        _merge,
        "join two notes; what is joined is removed by a commit",
        "rolecall memory merge retry-limits api-limits\n"
        "rolecall memory merge retry-limits api-limits --into call-limits",
        _merge_arguments,
    ),
    "gc": Verb(
        _gc,
        "show what may be forgotten and why, or delete it by a commit that can be undone",
        "rolecall memory gc\nrolecall memory gc --delete retry-limits",
        _gc_arguments,
    ),
}
