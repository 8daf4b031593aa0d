"""`rolecall memory` and `rule`: the lessons and rules of a project, which are notes in `.nexus/memory/` and
`.nexus/rules/`."""

from __future__ import annotations

from argparse import Namespace
from shlex import join

from rolecall.api import Project
from rolecall.cli import CommandResult, argument, either, flag, repeated, verb
from rolecall.cli.output import table, warn
from rolecall.cli.project import MESSAGE, PROJECT, SOURCE, read_text, reply_text
from rolecall.errors import UsageError
from rolecall.nexus.memory import NoteOverlap
from rolecall.nexus.note_name import CATEGORIES

_MOST_CHARACTERS = 200
"""The maximum length of a text that is repeated in a suggested command."""


@verb(
    "memory add",
    "keep a lesson, in a new note or in the existing one on its subject",
    "rolecall memory add retry-limits --category external -m 'The API answers 429 after 60 calls a minute.'\n"
    "rolecall memory add queue-order --into retry-limits notes.md\n"
    "git log -1 --format=%B | rolecall memory add release-steps -",
    argument("name", "NAME", "2 to 4 words that say what it is about: retry-limits"),
    SOURCE,
    MESSAGE,
    argument("--category", None, "what kind of lesson it is; begins the name", choices=CATEGORIES),
    either(
        argument("--into", "NOTE", "put the text into this note, under a heading"),
        flag("--new", "make a new note even if one on the subject exists"),
    ),
    PROJECT,
)
def add(options: Namespace) -> CommandResult:
    try:
        reply = Project(options.project).remember(
            options.name, read_text(options), category=options.category, into=options.into, is_new=options.new
        )
    except NoteOverlap as overlap:
        text = ["-m", options.message] if options.message is not None else [options.source]
        if len(text[-1]) > _MOST_CHARACTERS:
            text[-1] = "…"
        words = ["memory", "add", options.name, *text]
        words += ["--category", options.category] if options.category else []
        into = _command(options, *words, "--into", overlap.matches[0].name)
        hint = f"Put it there: `{into}`\n  or keep it apart: `{_command(options, *words, '--new')}`"
        raise UsageError(overlap.message, hint=hint) from overlap
    return CommandResult(reply, f"{'wrote' if reply['created'] else 'added to'} {reply['path']}")


def _command(options: Namespace, *words: str) -> str:
    return join(["rolecall", *words, *(["--project", options.project] if options.project else [])])


@verb(
    "memory list",
    "list the notes and how often each was read",
    "rolecall memory list",
    flag("--context", "list .nexus/context/ instead"),
    PROJECT,
)
def list_notes(options: Namespace) -> CommandResult:
    project = Project(options.project)
    if options.context:
        files = project.note_files("context")
        found = [{"name": one.name, "size": one.size, "path": one.path} for one in files]
        return CommandResult(found, [one.path for one in files] or ["the project has no context files"])
    notes = project.memories()
    rows = []
    for one in notes:
        read = (one["lastAccess"] or "never")[:16].replace("T", " ")
        age = f"{one['ageDays']} d"
        rows.append((one["name"], one["category"], one["size"], read, one["accessCount"], age))
    headings = ("name", "category", "bytes", "last read", "reads", "age")
    return CommandResult(notes, table(rows, headings) if rows else "there are no notes yet")


@verb(
    "memory read",
    "print a note, and count the read",
    "rolecall memory read retry-limits",
    argument("name", "NAME", "the note"),
    argument("--agent", "ID", "who reads (default: lead)", default="lead"),
    PROJECT,
)
def read(options: Namespace) -> CommandResult | None:
    return reply_text(options, Project(options.project).recall(options.name, agent=options.agent, warn=warn))


@verb(
    "memory merge",
    "merge two notes into one; a git commit removes the merged notes",
    "rolecall memory merge retry-limits api-limits\n"
    "rolecall memory merge retry-limits api-limits --into call-limits",
    argument("first", "A", "the note to merge into"),
    argument("second", "B", "the other note, which is removed"),
    argument("--into", "NAME", "join both in a new note and remove both"),
    PROJECT,
)
def merge(options: Namespace) -> CommandResult:
    reply = Project(options.project).merge_memories(options.first, options.second, into=options.into)
    pairs = zip(reply["removed"], reply["restore"], strict=True)
    lines = [f"wrote {reply['path']}"]
    lines += [f"removed {name}; this brings it back: {command}" for name, command in pairs]
    return CommandResult(reply, lines)


@verb(
    "memory gc",
    "show which notes can be deleted and why, or delete them in a commit that can be undone",
    "rolecall memory gc\nrolecall memory gc --delete retry-limits",
    either(
        argument("--delete", "NAME", "delete these, each by a commit", nargs="+"),
        flag(
            "--auto",
            "delete notes with three signals against them, if `memory.autoDelete` is true in the configuration",
        ),
    ),
    PROJECT,
)
def gc(options: Namespace) -> CommandResult:
    project = Project(options.project)
    if not options.delete and not options.auto:
        found, lines = [], []
        for candidate in project.forgettable():
            name, signals = candidate["name"], candidate["signals"]
            command = _command(options, "memory", "gc", "--delete", name)
            found.append({**candidate, "command": command})
            lines += ["", name, *(f"  {signal['id']:11} {signal['reason']}" for signal in signals)]
            lines.append(f"  delete it: {command}")
        return CommandResult({"candidates": found}, lines[1:] or ["no note should be deleted"])
    if options.auto:
        reply = project.forget_automatically()
    else:
        reply = {"deleted": project.forget(options.delete), "stayed": []}
    lines = [f"removed {each['name']}; this brings it back: {each['restore']}" for each in reply["deleted"]]
    lines += [f"{each['name']} stays: {each['reason']}" for each in reply["stayed"]]
    return CommandResult(reply, lines or ["nothing was deleted"])


@verb(
    "rule add",
    "write a rule",
    "rolecall rule add commit-messages -m 'The first line says what changed.'\n"
    "rolecall rule add css-tokens --tag frontend rules/css.md",
    argument("name", "NAME", "what it is about: commit-messages"),
    SOURCE,
    MESSAGE,
    repeated("--tag", "TAG", "where it applies: frontend"),
    PROJECT,
)
def add_rule(options: Namespace) -> CommandResult:
    reply = Project(options.project).add_rule(options.name, read_text(options), tags=options.tag)
    return CommandResult(reply, f"wrote {reply['path']}")


@verb(
    "rule list",
    "list the rules",
    "rolecall rule list --tag frontend",
    argument("--tag", "TAG", "only those with this tag"),
    PROJECT,
)
def list_rules(options: Namespace) -> CommandResult:
    rules = Project(options.project).rules(tag=options.tag)
    rows = [(entry["name"], ", ".join(entry["tags"]), entry["size"]) for entry in rules]
    return CommandResult(rules, table(rows, ("name", "tags", "bytes")) if rows else "there are no rules yet")


@verb(
    "rule read",
    "print a rule",
    "rolecall rule read commit-messages",
    argument("name", "NAME", "the rule"),
    PROJECT,
)
def read_rule(options: Namespace) -> CommandResult | None:
    return reply_text(options, Project(options.project).rule(options.name))
