"""Finds notes in a project's memory that can be forgotten, and deletes them in commits.

There are four signals, each from a different source, so that none follows from another:

    unread       the log of reads: not read for `unread_days`, or never while `unread_reads` of others were counted
    unchanged    the file: not written for `unchanged_days`
    superseded   the other notes: one of them contains nearly all of the note, or the note names its successor
    gone         the repository: at least half of the paths that the note names existed once and no longer do

The signals are shown, and a person decides. A note is deleted automatically only if automatic deletion is enabled and
the note shows enough signals at the same time. A note written within `grace_days` is never a candidate. The numbers
are those in `memory.Thresholds`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from rolecall.errors import Hint, RolecallError, UsageError
from rolecall.files import git
from rolecall.nexus import forget, memory_access, note, note_name, project_paths, similarity, state_file
from rolecall.nexus.memory import THRESHOLDS, Thresholds, profile_of
from rolecall.nexus.memory_access import moment
from rolecall.nexus.note import ProjectNote
from rolecall.nexus.project_paths import Folder

if TYPE_CHECKING:
    from rolecall.nexus.reply import DeletedNote, Deletions, ForgettableNote

SETTING = "memory.autoDelete"
"""The configuration key that enables automatic deletion."""

_DAY = 86_400
_SUCCESSOR = re.compile(r"(?i)\b(?:superseded|replaced) by\s+[`\[(*_\"']*([a-z0-9][a-z0-9-]*\.md)\b")
_PATH = re.compile(
    r"(?<![\w/:.~$@\\+-])(?:\.?[\w+-][\w.+@-]*/)+[\w.+@-]*|`\.?[\w+-][\w.+-]*\.[A-Za-z]\w{0,7}`"
)
_MOST_PATHS, _LONGEST_PATH = 1000, 300
"""The maximum number and length of the paths for one git command, whose arguments the system limits."""
_JUDGED = 4 * note.LARGEST
"""The number of bytes of a note that are examined, because another program could have written a very long note."""


class ForgetSignal(NamedTuple):
    id: str
    reason: str


class ForgetCandidate(NamedTuple):
    note: ProjectNote
    signals: tuple[ForgetSignal, ...]


def candidates(
    project: Folder, *, at: str | None = None, thresholds: Thresholds = THRESHOLDS
) -> list[ForgetCandidate]:
    """Return the notes with at least one signal, those with the most signals first. Write nothing."""
    now = moment(at or project_paths.now()).timestamp()
    notes = note.list_notes(project, "memory")
    texts = {each.name: note.content(each)[:_JUDGED].decode(errors="ignore") for each in notes}
    log, gone = memory_access.read(project), _find_gone(project, texts.values())
    reads = sum(access.access_count for access in log.values())
    find_successor = _successors(notes, texts, thresholds.superseded / 100)
    found = []
    for each in notes:
        unchanged = int((now - each.changed) // _DAY)
        if now - each.changed < thresholds.grace_days * _DAY:
            continue
        signals = []
        access = log.get(memory_access.key(project, each.name))
        if access:
            unread = int((now - moment(access.last_accessed_ts).timestamp()) // _DAY)
            if unread >= thresholds.unread_days:
                signals.append(ForgetSignal("unread", f"not read for {unread} days"))
        elif reads >= thresholds.unread_reads:
            reason = f"never read, while {reads:,} reads of other notes were counted"
            signals.append(ForgetSignal("unread", reason))
        if unchanged >= thresholds.unchanged_days:
            signals.append(ForgetSignal("unchanged", f"not written for {unchanged} days"))
        if reason := find_successor(each):
            signals.append(ForgetSignal("superseded", reason))
        named = _paths(texts[each.name])
        missing = [path for path in named if path in gone]
        if missing and 2 * len(missing) >= len(named):
            shown = ", ".join(missing[:3]) + (" …" if len(missing) > 3 else "")
            rest = f"; it names {len(named)}" if len(named) > len(missing) else ""
            reason = f"names paths that the repository has no more: {shown}{rest}"
            signals.append(ForgetSignal("gone", reason))
        if signals:
            found.append(ForgetCandidate(each, tuple(signals)))
    return sorted(found, key=lambda candidate: (-len(candidate.signals), candidate.note.name))


def list_forgettable(project: Folder, *, thresholds: Thresholds = THRESHOLDS) -> list[ForgettableNote]:
    """Return the result of `candidates` as JSON."""
    return [
        {
            "name": each.note.name,
            "signals": [{"id": signal.id, "reason": signal.reason} for signal in each.signals],
        }
        for each in candidates(project, thresholds=thresholds)
    ]


def _successors(
    notes: Sequence[ProjectNote], texts: Mapping[str, str], share: float
) -> Callable[[ProjectNote], str]:
    """Return a function that explains which other note has taken the place of a note, if one has."""
    profiles = {name: profile_of(name, text) for name, text in texts.items()}
    near, by_name = similarity.find_similar(profiles, share), {each.name: each for each in notes}

    def find(one: ProjectNote) -> str:
        named = _SUCCESSOR.search(texts[one.name])
        successor = named[1].lower() if named else ""
        if successor in texts and successor != one.name:
            return f"says itself that {successor} is in its place"
        for other in (by_name[name] for name in near[one.name]):
            like = similarity.measure_containment(profiles[one.name], profiles[other.name])
            back = similarity.measure_containment(profiles[other.name], profiles[one.name])
            # If two notes contain each other, only the one that was written earlier is superseded.
            is_older = (one.changed, one.name) < (other.changed, other.name)
            if like.score >= share and (back.score < share or is_older):
                words = ", ".join(like.shared[:8])
                return f"{like.score:.0%} of it is also in {other.name}: {words}"
        return ""

    return find


def _paths(text: str) -> list[str]:
    """Return the project paths that a text names, as far as they can be recognized."""
    found = (match[0].strip("`").rstrip("/.") for match in _PATH.finditer(text))
    fitting = (path for path in found if path and len(path) <= _LONGEST_PATH)
    return list(dict.fromkeys(path for path in fitting if ".." not in path.split("/")))


def _find_gone(project: Folder, texts: Iterable[str]) -> set[str]:
    """Return the named paths that git once had and that no longer exist, by one git command for all notes."""
    folder = os.path.abspath(project)
    named = dict.fromkeys(path for text in texts for path in _paths(text))
    missing = [path for path in named if not os.path.lexists(os.path.join(folder, path))][:_MOST_PATHS]
    if not missing:
        return set()
    words = ("--no-renames", "--diff-filter=D", "--format=", "--name-only", "--relative", "-z")
    result = git.ask(folder, "log", *words, "--", *missing, env={"GIT_LITERAL_PATHSPECS": "1"})
    deleted = {word.strip("\n") for word in result.words} if result.code == 0 else set()
    for path in list(deleted):
        while path := os.path.dirname(path):
            deleted.add(path)
    return deleted.intersection(missing)


def delete(project: Folder, names: Sequence[str], *, at: str | None = None) -> list[DeletedNote]:
    """Delete notes that a person chose, each in its own commit. If one of them could not be restored, delete none."""
    files = dict.fromkeys(note_name.file_name(name) for name in names)
    for file in files:  # check before taking the lock, which would create folders
        forget.find_kept(project, file)
    # This is also done before taking the lock: judging every note takes a while, and the signals are only shown.
    known = {candidate.note.name: candidate.signals for candidate in candidates(project, at=at)}
    with state_file.hold_lock(project) as lock:
        kept = [forget.find_kept(project, file) for file in files]
        return [_delete(project, lock, each, known.get(each.name, ())) for each in kept]


def delete_automatically(
    project: Folder, *, is_enabled: bool, at: str | None = None, thresholds: Thresholds = THRESHOLDS
) -> Deletions:
    """Delete every note that enough signals mark as forgettable. `deleted` names these notes, and `stayed` names the
    notes that could not be deleted, each with the reason."""
    if not is_enabled:
        advice = "Switch it on, or look first and name the notes to delete"
        hint = Hint(advice, "enable_deletion", key=SETTING)
        raise UsageError("deleting without asking is not switched on", hint=hint)
    deleted: list[DeletedNote] = []
    stayed: dict[str, str] = {}
    with state_file.hold_lock(project) as lock:
        # Judge again after each deletion: a note whose duplicate was deleted could be the last one with its content.
        while True:
            found = candidates(project, at=at, thresholds=thresholds)
            ready = [one for one in found if len(one.signals) >= thresholds.signals]
            candidate = next((one for one in ready if one.note.name not in stayed), None)
            if candidate is None:
                break
            try:
                kept = forget.find_kept(project, candidate.note.name)
                deleted.append(_delete(project, lock, kept, candidate.signals))
            except RolecallError as exc:
                stayed[candidate.note.name] = exc.message
    return {"deleted": deleted, "stayed": [{"name": name, "reason": why} for name, why in stayed.items()]}


def _delete(project: Folder, lock: int, kept: forget.Kept, signals: Sequence[ForgetSignal]) -> DeletedNote:
    commit = forget.remove(
        project,
        lock,
        [kept],
        subject=f"Delete memory note {kept.name}",
        why="\n".join(f"{signal.id}: {signal.reason}" for signal in signals) or "Asked for by name.",
    )
    ids = [signal.id for signal in signals]
    return {"name": kept.name, "commit": commit, "restore": kept.restore, "signals": ids}
