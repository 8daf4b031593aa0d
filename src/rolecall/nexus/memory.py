"""A project's lessons: short notes in `.nexus/memory/`, which agents read and people keep in git.

A lesson is added to the note on its subject, if there is one (`similarity` finds the note and explains why); otherwise,
the lesson becomes a new note. `memory_access` counts reads, and `memory_gc` decides which notes can be forgotten. Each
verb is a plain function over a project folder.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from rolecall.errors import Hint, RolecallError, UsageError
from rolecall.nexus import forget, memory_access, note, note_name, project_paths, similarity, state_file
from rolecall.nexus.project_paths import Folder
from rolecall.nexus.similarity import Profile
from rolecall.settings import config, keyscan
from rolecall.settings.mask import Mask
from rolecall.store.lazy import Module

if TYPE_CHECKING:
    from rolecall.nexus.reply import AddedNote, MergedNotes, NoteEntry
    from rolecall.settings import settings
else:
    settings = Module("rolecall.settings.settings")

_SHOWN_WORDS = 12


class Thresholds(NamedTuple):
    """The settings that the contract's policy leaves to the owner of a project."""

    unread_days: int = 90
    unread_reads: int = 20
    """The number of reads of other notes after which a note that was never read becomes a candidate."""
    unchanged_days: int = 180
    grace_days: int = 14
    """The number of days for which a new note is always kept."""
    signals: int = 3
    """The number of signals that a note must show at the same time to be deleted automatically."""
    overlap: int = round(100 * similarity.OVERLAP)
    """The minimum percentage of shared words at which two notes count as being on the same subject."""
    superseded: int = round(100 * similarity.CONTAINED)
    """The minimum percentage of a note's words found in another note at which the note adds little of its own."""


THRESHOLDS = Thresholds()


class Match(NamedTuple):
    """A note on the same subject."""

    name: str
    score: float
    shared: tuple[str, ...]


class NoteOverlap(UsageError):
    """An error for a lesson on a subject that already has a note: the caller chooses where the lesson goes."""

    def __init__(self, file: str, matches: Sequence[Match], overlap: int) -> None:
        best = matches[0]
        words = ", ".join(best.shared[:_SHOWN_WORDS]) + (" …" if len(best.shared) > _SHOWN_WORDS else "")
        super().__init__(
            f"{best.name} seems to be on the same subject as {file}: {best.score:.0%} of the shorter one is in "
            f"both (from {overlap}% on it counts). Words in both: {words}",
            hint=Hint(
                f"Add it to {best.name}, or keep it apart in a note of its own", "choose_note", note=best.name
            ),
        )
        self.file, self.matches = file, tuple(matches)


def add(
    project: Folder,
    name: str,
    text: str,
    *,
    mask: Mask,
    category: str | None = None,
    into: str | None = None,
    is_new: bool = False,
    thresholds: Thresholds = THRESHOLDS,
) -> AddedNote:
    """Keep a lesson: in the note `into` or, without `into`, in a new note unless there is a note on the same subject
    (with `is_new`, even then). `mask` knows the secrets that must not be stored."""
    file, kept = note_name.new_memory(name, category), note.clean(text)
    keyscan.refuse_secrets(kept, mask)
    if into is not None:
        note.find(project, "memory", into)  # before taking the lock, which would create folders
    with state_file.hold_lock(project):
        if into is not None:
            target = note.find(project, "memory", into)
            joined = f"{note.text(target).rstrip()}\n\n{_section(file, 'Added', kept)}"
            note.refuse_oversize(joined)
            note.rewrite(project, target, joined)
        else:
            if os.path.lexists(path := os.path.join(note.folder(project, "memory"), file)):
                hint = f"Put it `into` {file}, or choose another name."
                raise UsageError(f"{path} exists already", hint=hint)
            if not is_new and (matches := find_overlaps(project, file, kept, thresholds)):
                raise NoteOverlap(file, matches, thresholds.overlap)
            target = note.create(project, "memory", file, kept)
    category = note_name.category_of(target.name)
    return {"name": target.name, "path": target.path, "category": category, "created": into is None}


def _section(file: str, came: str, text: str) -> str:
    return f"## {_title(file)}\n\n*{came} {project_paths.now()[:10]}.*\n\n{text.strip()}\n"


def _title(file: str) -> str:
    return note_name.topic_of(file).replace("-", " ").capitalize()


def find_overlaps(project: Folder, file: str, text: str, thresholds: Thresholds = THRESHOLDS) -> list[Match]:
    """Return the notes on the subject of a new note, the most similar first. Notes of different categories count as
    being on different subjects, unless one contains most of the other."""
    own, category = profile_of(file, text), note_name.category_of(file)
    found = []
    for other in note.list_notes(project, "memory"):
        theirs = note.content(other).decode(errors="ignore")
        like = similarity.measure_likeness(own, profile_of(other.name, theirs))
        their_category = note_name.category_of(other.name)
        is_apart = category and their_category and category != their_category
        if round(100 * like.score) >= (thresholds.superseded if is_apart else thresholds.overlap):
            found.append(Match(other.name, like.score, like.shared))
    return sorted(found, key=lambda match: (-match.score, match.name))


def profile_of(file: str, text: str) -> Profile:
    return similarity.profile(note_name.topic_of(file).replace("-", " "), text)


class NoteReading(NamedTuple):
    text: str
    warning: str
    """Why the read was not counted; empty if it was."""


def read(
    project: Folder, name: str, *, agent: str = memory_access.LEAD, at: str | None = None
) -> NoteReading:
    """Return a note's text and count the read. A log that cannot be written does not prevent reading."""
    found = note.find(project, "memory", name)
    text = note.text(found)
    try:
        memory_access.observe(project, found.path, agent, at or project_paths.now())
    except RolecallError as exc:
        return NoteReading(text, f"the read was not counted: {exc.message}")
    return NoteReading(text, "")


def list_notes(project: Folder, *, at: str | None = None) -> list[NoteEntry]:
    """Return the notes sorted by name, each with its number of reads and the time of its last read."""
    log = memory_access.read(project)
    now = memory_access.moment(at or project_paths.now()).timestamp()
    entries: list[NoteEntry] = []
    for found in note.list_notes(project, "memory"):
        access = log.get(memory_access.key(project, found.name))
        entries.append(
            {
                "name": found.name,
                "category": note_name.category_of(found.name),
                "size": found.size,
                "lastAccess": access.last_accessed_ts if access else None,
                "lastAgent": access.last_agent if access else None,
                "accessCount": access.access_count if access else 0,
                "ageDays": max(0, int((now - found.changed) // 86_400)),
                "path": found.path,
            }
        )
    return entries


def merge(project: Folder, first: str, second: str, *, into: str | None = None) -> MergedNotes:
    """Merge two notes into the first or into a new one. Remove the merged notes in the same commit."""
    for name in (first, second):
        note.find(project, "memory", name)  # before taking the lock, which would create folders
    with state_file.hold_lock(project) as lock:
        sources = [note.find(project, "memory", name) for name in (first, second)]
        if sources[0].name == sources[1].name:
            raise UsageError(f"{sources[0].name} cannot be merged with itself", hint="Name two notes.")
        target = note_name.file_name(into) if into else sources[0].name
        if target not in [source.name for source in sources]:
            target = note_name.new_memory(target)
            if os.path.lexists(path := os.path.join(note.folder(project, "memory"), target)):
                raise note.already_there(path)
        memory_access.read(project)  # a damaged log is found before anything is changed
        kept = [forget.find_kept(project, source.name) for source in sources]
        parts = [note.text(source).strip() for source in sources if source.name == target]
        parts = parts or [f"# {_title(target)}"]
        gone = [each for each in kept if each.name != target]
        for source, each in zip(sources, kept, strict=True):
            if each in gone:
                came = f"From {each.name} ({each.commit[:12]}), merged"
                parts.append(_section(each.name, came, note.text(source)).strip())
        joined = "\n\n".join(parts) + "\n"
        note.refuse_oversize(joined)
        names = " and ".join(each.name for each in gone)
        commit = forget.remove(
            project,
            lock,
            kept,
            subject=f"Merge memory note {names} into {target}",
            why=f"The text of {names} is now in {target}.",
            into=forget.Successor(target, joined),
        )
    return {
        "name": target,
        "path": os.path.join(note.folder(project, "memory"), target),
        "removed": [each.name for each in gone],
        "commit": commit,
        "restore": [each.restore for each in gone],
    }


def load_thresholds() -> Thresholds:
    """Read the thresholds from the configuration."""
    return Thresholds(**settings.memory_thresholds(config.load()))
