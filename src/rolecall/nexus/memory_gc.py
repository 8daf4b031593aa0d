"""Which notes of a project's memory can be forgotten: signals, and deletion by commit.

Four signals, each from a source of its own, so that no two follow from each other:

    unread       the log of reads: not read for `unread_days`, or never, while `unread_reads` of others were counted
    unchanged    the file: not written for `unchanged_days`
    superseded   the other notes: one of them holds nearly all it says, or it names its successor
    gone         the repository: at least half of the paths it names were there once and are not any more

The signals are shown, and a person decides. A note is deleted without asking only if that is switched on and enough
signals hold at once. A note written within `grace_days` is never a candidate. The numbers are those of
`memory.Thresholds`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from rolecall.errors import Hint, RolecallError, UsageError
from rolecall.files import git
from rolecall.nexus import forget, memory_access, note, note_name, project_paths, similarity, state_file
from rolecall.nexus.memory import THRESHOLDS, Thresholds, profile_of
from rolecall.nexus.memory_access import Log, moment
from rolecall.nexus.note import Note
from rolecall.nexus.project_paths import Folder
from rolecall.nexus.similarity import Profile

SETTING = "memory.autoDelete"
"""The key of the configuration that switches deletion without asking on."""

_DAY = 86_400
_SUCCESSOR = re.compile(
    r"\b(?:superseded|replaced) by\s+[`\[(*_\"']*([a-z0-9][a-z0-9-]*\.md)\b", re.IGNORECASE
)
_PATH = re.compile(
    r"(?<![\w/:.~$@\\+-])(?:\.?[\w+-][\w.+@-]*/)+[\w.+@-]*|`\.?[\w+-][\w.+-]*\.[A-Za-z]\w{0,7}`"
)
_MOST_PATHS, _LONGEST_PATH = 1000, 300
"""What git is asked about at once: it is given to it as arguments, which must not be too much for the system."""
_JUDGED = 4 * note.LARGEST
"""Bytes of a note that are looked at: others than we may have written a longer one."""


class Signal(NamedTuple):
    id: str
    reason: str


class Candidate(NamedTuple):
    note: Note
    signals: tuple[Signal, ...]


# -- looking --


def candidates(
    project: Folder, *, at: str | None = None, thresholds: Thresholds = THRESHOLDS
) -> list[Candidate]:
    """Notes that something speaks against, those with most signals first. Writes nothing."""
    now = moment(at or project_paths.now()).timestamp()
    notes = note.listed(project, "memory")
    texts = {each.name: note.content(each)[:_JUDGED].decode(errors="ignore") for each in notes}
    log, gone = memory_access.read(project), _gone_paths(project, texts.values())
    profiles = {name: profile_of(name, text) for name, text in texts.items()}
    share = thresholds.superseded / 100
    near, by_name = similarity.near(profiles, share), {each.name: each for each in notes}
    found = []
    for each in notes:
        if now - each.changed < thresholds.grace_days * _DAY:
            continue
        signals = (
            _unread(log.get(memory_access.key(project, each.name)), log, now, thresholds),
            _unchanged(each, now, thresholds),
            _superseded(each, texts, [by_name[name] for name in near[each.name]], profiles, share),
            _gone(texts[each.name], gone),
        )
        found.append(Candidate(each, tuple(signal for signal in signals if signal is not None)))
    shown = [candidate for candidate in found if candidate.signals]
    return sorted(shown, key=lambda candidate: (-len(candidate.signals), candidate.note.name))


def _unread(
    access: memory_access.Access | None, log: Log, now: float, thresholds: Thresholds
) -> Signal | None:
    if access:
        days = int((now - moment(access.last_accessed_ts).timestamp()) // _DAY)
        return Signal("unread", f"not read for {days} days") if days >= thresholds.unread_days else None
    others = sum(other.access_count for other in log.values())
    if others < thresholds.unread_reads:
        return None
    return Signal("unread", f"never read, while {others:,} reads of other notes were counted")


def _unchanged(found: Note, now: float, thresholds: Thresholds) -> Signal | None:
    days = int((now - found.changed) // _DAY)
    return Signal("unchanged", f"not written for {days} days") if days >= thresholds.unchanged_days else None


def _superseded(
    found: Note,
    texts: Mapping[str, str],
    others: Iterable[Note],
    profiles: Mapping[str, Profile],
    share: float,
) -> Signal | None:
    named = _SUCCESSOR.search(texts[found.name])
    successor = named[1].lower() if named else ""
    if successor in texts and successor != found.name:
        return Signal("superseded", f"says itself that {successor} is in its place")
    for other in others:
        like = similarity.contained(profiles[found.name], profiles[other.name])
        back = similarity.contained(profiles[other.name], profiles[found.name])
        # Of two notes that say the same, the one that was written earlier goes, and never both.
        is_older = (found.changed, found.name) < (other.changed, other.name)
        if like.score >= share and (back.score < share or is_older):
            words = ", ".join(like.shared[:8])
            return Signal("superseded", f"{like.score:.0%} of it is also in {other.name}: {words}")
    return None


# -- paths that a note names --


def _gone(text: str, gone: set[str]) -> Signal | None:
    named = _paths(text)
    missing = [path for path in named if path in gone]
    if not missing or 2 * len(missing) < len(named):
        return None
    shown = ", ".join(missing[:3]) + (" …" if len(missing) > 3 else "")
    rest = f"; it names {len(named)}" if len(named) > len(missing) else ""
    return Signal("gone", f"names paths that the repository has no more: {shown}{rest}")


def _paths(text: str) -> list[str]:
    """The paths of the project that a text names, as far as they can be told from other words."""
    found = (match[0].strip("`").rstrip("/.") for match in _PATH.finditer(text))
    fitting = (path for path in found if path and len(path) <= _LONGEST_PATH)
    return list(dict.fromkeys(path for path in fitting if ".." not in path.split("/")))


def _gone_paths(project: Folder, texts: Iterable[str]) -> set[str]:
    """Of all paths named, those that git once had and the folder has no more: one question for all notes."""
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


# -- deleting --


def delete(project: Folder, names: Sequence[str], *, at: str | None = None) -> list[dict[str, Any]]:
    """Delete notes that a person chose, each by a commit of its own; all of them, or none if one could not be brought
    back."""
    files = dict.fromkeys(note_name.file_name(name) for name in names)
    for file in files:  # before the lock, which would create folders
        forget.kept(project, file)
    # Before the lock as well: judging every note takes long, and the signals are only shown.
    known = {candidate.note.name: candidate.signals for candidate in candidates(project, at=at)}
    with state_file.locked(project) as lock:
        kept = [forget.kept(project, file) for file in files]
        return [_delete(project, lock, each, known.get(each.name, ())) for each in kept]


def delete_automatically(
    project: Folder, *, is_enabled: bool, at: str | None = None, thresholds: Thresholds = THRESHOLDS
) -> dict[str, Any]:
    """Delete every note for which enough signals hold at once. Keep what cannot be restored, with the reason."""
    if not is_enabled:
        raise UsageError(
            "deleting without asking is not switched on",
            hint=Hint(
                "Switch it on, or look first and name the notes to delete", "enable_deletion", key=SETTING
            ),
        )
    deleted: list[dict[str, Any]] = []
    stayed: dict[str, str] = {}

    def next_to_go() -> Candidate | None:
        for candidate in candidates(project, at=at, thresholds=thresholds):
            if len(candidate.signals) >= thresholds.signals and candidate.note.name not in stayed:
                return candidate
        return None

    with state_file.locked(project) as lock:
        # Judged once more after each: a note whose double is gone may be the last that says it.
        while candidate := next_to_go():
            try:
                kept = forget.kept(project, candidate.note.name)
                deleted.append(_delete(project, lock, kept, candidate.signals))
            except RolecallError as exc:
                stayed[candidate.note.name] = exc.message
    return {"deleted": deleted, "stayed": [{"name": name, "reason": why} for name, why in stayed.items()]}


def _delete(project: Folder, lock: int, kept: forget.Kept, signals: Sequence[Signal]) -> dict[str, Any]:
    commit = forget.remove(
        project,
        lock,
        [kept],
        subject=f"Delete memory note {kept.name}",
        why="\n".join(f"{signal.id}: {signal.reason}" for signal in signals) or "Asked for by name.",
    )
    ids = [signal.id for signal in signals]
    return {"name": kept.name, "commit": commit, "restore": kept.restore, "signals": ids}
