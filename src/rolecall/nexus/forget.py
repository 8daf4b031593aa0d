"""Removes notes of a project by a commit of git, so that each can be brought back by the command in its message.

Only what git has exactly as it is on the disk is removed; everything else is refused, with what to do. The
commit holds the notes that are named and nothing else, whatever the user has staged, and it comes first:

    1. the commit is made as an object that nobody sees yet, and a file of ours notes what is about to be done
    2. git's index as it is going to be is put where git has its lock, so nobody else changes the index
    3. HEAD is moved to the commit, if it is where it was: from here on the notes are removed
    4. the index and the files follow, and the file of ours goes

Whoever is killed before 3 has done nothing, whoever is killed after it has left files that git has already
given up. Either is seen to by whoever writes next, in the way in which 4 is always done: see `removal`. Why a
note has to go is known above.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from shlex import quote
from typing import NamedTuple

from rolecall.errors import RolecallError, StorageError, UsageError
from rolecall.files import git
from rolecall.nexus import note, note_name, project_paths, removal, state_file
from rolecall.nexus.note import Note
from rolecall.nexus.project_paths import Folder
from rolecall.nexus.removal import Arriving, Gone, Leaving, Removal

# The index of a commit is thrown away: it need not last, and must leave no parts of itself behind.
_PASSING = ("core.fsync=all,-index", "core.splitIndex=false", "index.sparse=false")
_AT_ONCE = "somebody else stages changes or commits at the same time"
_HEADS = {"MERGE_HEAD": "a merge", "CHERRY_PICK_HEAD": "a cherry-pick", "REVERT_HEAD": "a revert"}
_FILES = {
    "rebase-merge": "a rebase",
    "rebase-apply": "a rebase or `git am`",
    "sequencer": "a cherry-pick or a revert",
    "BISECT_LOG": "a bisection",
}


class Kept(NamedTuple):
    """A note as git has it."""

    note: Note
    top: str
    """The work tree it lies in."""
    path: str
    """Its path from there."""
    entry: git.Entry
    commit: str
    data: bytes

    @property
    def restoring(self) -> str:
        return removal.restoring(self.commit, self.path)


def kept(found: Note) -> Kept:
    """The note as git has it; an error that says what to do first when git does not have it as it is."""
    note_name.file_name(found.name)  # it stands in the commit's message
    top = _top(found)
    path = os.path.relpath(os.path.realpath(found.path), top)
    commit, data = git.commit(top, "HEAD"), note.content(found)
    blob = removal.committed(top, path)
    if commit is None or not blob:
        raise _refusal(found, "is not committed", _committing(top, path))
    entry = git.staged(top, path).get(path)
    if entry is None or entry.blob != blob or git.run(top, "hash-object", "--", path).text != blob:
        raise _refusal(found, "has changes that are not committed", _committing(top, path))
    return Kept(found, top, path, entry, commit, data)


def _top(found: Note) -> str:
    result = git.ask(os.path.dirname(found.path), "rev-parse", "--show-toplevel")
    if result.code or not result.text:
        told = f" ({result.err})" if "not a git repository" not in result.err else ""
        raise _refusal(
            found,
            f"lies in no git repository{told}",
            "Put the project under git and commit it; or remove the file by hand.",
        )
    return os.path.realpath(result.text)


def _refusal(found: Note, why: str, hint: str) -> UsageError:
    return UsageError(f"{found.path} {why}, so removing it could not be undone", hint=hint)


def _committing(top: str, path: str) -> str:
    """The commands that commit a note, whether git knew it before or not."""
    there, file = quote(top), quote(path)
    return (
        f"Commit it first: `git -C {there} add -f -- {file}` and `git -C {there} commit -m 'Keep "
        f"{os.path.basename(path)}' -- {file}`."
    )


# -- one writer at a time, after what others left is settled --


class Writing(NamedTuple):
    """The time during which nobody else writes to the project."""

    lock: int
    settled: tuple[Gone, ...]
    """What somebody else had begun to remove."""
    done: list[Gone]
    """The same, and what was removed since."""


def check_there(project: Folder, *names: str) -> None:
    """Refuse a note that is not there before the lock is taken, which would leave folders in a project that has
    none. One that is being removed may be gone on with."""
    if not os.path.lexists(project_paths.ours(project, removal.NOTED)):
        for name in names:
            note.find(project, "memory", name)


@contextmanager
def writing(project: Folder) -> Iterator[Writing]:
    """The project's lock, and whatever a killed process left of a removal settled. An error says what was
    removed before it came."""
    with state_file.locked(project) as lock:
        settled = removal.settle(project)
        work = Writing(lock, tuple(settled), settled)
        try:
            yield work
        except RolecallError as exc:
            exc.hint = " ".join([exc.hint, *(f"Before that, {gone.told}" for gone in work.done)]).strip()
            raise


def unfinished(project: Folder) -> str:
    """That a removal was cut off, and what to do; "" when none was. Changes nothing."""
    if not os.path.lexists(project_paths.ours(project, removal.NOTED)):
        return ""
    try:
        with state_file.locked(project):  # whoever is at work meanwhile ends first
            begun = removal.noted(project)
    except StorageError:  # nobody can write here, so nobody is at work
        begun = removal.noted(project)
    if begun is None:
        return ""
    names = " and ".join(each.name for each in begun.gone)
    return (
        f"the removal of {names} (commit {begun.commit[:12]}) was cut off in the middle; "
        "it is finished or taken back when a note is next added, merged or deleted"
    )


# -- removing --


class Successor(NamedTuple):
    """The note that takes the place of others, and may be one of them."""

    name: str
    text: str


def remove(
    project: Folder,
    work: Writing,
    notes: Sequence[Kept],
    *,
    subject: str,
    why: str,
    into: Successor | None = None,
) -> list[Gone]:
    """Remove notes in one commit, together with the text that takes their place. When that fails, everything
    is as it was."""
    top = notes[0].top
    _refuse_under_way(top)
    begun = _begun(project, notes, into, f"{subject}\n\n{why}\n\n")
    settled: list[Gone] = []
    try:
        removal.note_down(project, begun)
        _hold_index(work.lock, notes, begun)
        words = ("-m", f"rolecall: {subject}", "HEAD", begun.commit, begun.parent)
        result = git.ask(top, "update-ref", *words, settings=removal.LASTING, holding=(work.lock,))
        if result.code and (head := git.commit(top, "HEAD")) != begun.commit:
            raise _no_commit(top, result.err if head == begun.parent else _AT_ONCE)
    finally:
        settled += removal.settle(project)
        work.done.extend(settled)
    return settled


def _refuse_under_way(top: str) -> None:
    """What git itself has begun is not disturbed: the commit would become a part of it, or be lost with it."""
    folder = removal.git_folder(top)
    heads = (what for name, what in _HEADS.items() if git.commit(top, name))
    files = (what for name, what in _FILES.items() if os.path.lexists(os.path.join(folder, name)))
    for what in (*heads, *files):
        raise _no_commit(top, f"{what} is under way")


def _no_commit(top: str, why: str) -> StorageError:
    return StorageError(
        f"git made no commit in {top}: {why}",
        hint="Nothing was removed. Put that right (finish a merge that is under way, perhaps), then try again.",
    )


def _refuse_changed(each: Kept) -> None:
    if note.content(each.note) != each.data:
        raise UsageError(
            f"{each.note.path} is being changed by somebody else", hint="Look at it, then try again."
        )


# -- 1: the commit, which nobody sees yet --


def _begun(project: Folder, notes: Sequence[Kept], into: Successor | None, message: str) -> Removal:
    gone = [each for each in notes if into is None or each.note.name != into.name]
    top, parent = notes[0].top, notes[0].commit
    if {each.commit for each in notes} != {parent}:
        raise _no_commit(top, _AT_ONCE)
    arriving = _stored(project, notes, into) if into else None
    inner = os.path.dirname(notes[0].path)
    leaving = [Leaving(each.note.name, each.entry.blob, state_file.digest(each.data)) for each in gone]
    changes = removal.changes(inner, leaving, arriving)
    commit = _commit_object(project, notes[0], changes, message + _recovery(gone))
    branch = git.ask(top, "symbolic-ref", "--quiet", "HEAD").text
    name = f"index.rolecall-{os.urandom(8).hex()}"
    return Removal(commit, parent, branch, name, tuple(leaving), arriving)


def _stored(project: Folder, notes: Sequence[Kept], into: Successor) -> Arriving:
    """The new text as git is going to have it."""
    top, path = notes[0].top, os.path.join(os.path.dirname(notes[0].path), into.name)
    replaced = next((each for each in notes if each.note.name == into.name), None)
    if replaced is None and git.staged(top, path):
        raise UsageError(
            f"git's index has {path}, which is not there",
            hint="Commit that it is gone, or choose another name.",
        )
    data = note.encoded(into.text)
    blob = removal.blob_of(project, top, path, data, "-w")
    mode = replaced.entry.mode if replaced else "100644"
    return Arriving(into.name, mode, blob, into.text, state_file.digest(replaced.data) if replaced else None)


def _commit_object(project: Folder, kept: Kept, changes: Sequence[str], message: str) -> str:
    scratch = project_paths.ours(project, removal.SCRATCH)
    here = {"GIT_INDEX_FILE": scratch}
    settings = (*_PASSING, *git.identity(kept.top), "i18n.commitEncoding=UTF-8")
    try:
        git.run(kept.top, "read-tree", kept.commit, settings=settings, env=here)
        git.run(kept.top, "update-index", *changes, settings=settings, env=here)
        tree = git.run(kept.top, "write-tree", settings=settings, env=here).text
        words = (tree, "-p", kept.commit, "-m", message)
        result = git.ask(kept.top, "commit-tree", *words, settings=settings)
    finally:
        removal.clear_index(scratch)
    if result.code:
        raise _no_commit(kept.top, result.err)
    return result.text


def _recovery(gone: Sequence[Kept]) -> str:
    commands = "\n".join(f"    {each.restoring}" for each in gone)
    blobs = "\n".join(f"    git cat-file blob {each.entry.blob}" for each in gone)
    return (
        f"This brings {'it' if len(gone) == 1 else 'them'} back, in any folder of the repository:\n\n{commands}\n\n"
        f"and this shows the text, also after history was rewritten:\n\n{blobs}"
    )


# -- 2: the index --


def _hold_index(lock: int, notes: Sequence[Kept], begun: Removal) -> None:
    """Put the index as it is going to be where git has its lock: nobody changes the index or commits from it
    until it is moved into place, or away."""
    top, inner = notes[0].top, os.path.dirname(notes[0].path)
    index = os.path.join(removal.git_folder(top), "index")
    new = os.path.join(os.path.dirname(index), begun.new_index)
    data = _copied(index, new)
    found = git.staged(top, *(each.path for each in notes), index=new)
    if any(found.get(each.path) != each.entry for each in notes):
        raise _no_commit(top, _AT_ONCE)
    changes = removal.changes(inner, begun.gone, begun.into)
    here = {"GIT_INDEX_FILE": new}
    git.run(top, "update-index", *changes, settings=removal.LASTING, env=here, holding=(lock,))
    try:
        os.link(new, f"{index}.lock")
    except FileExistsError:
        raise _no_commit(
            top, f"{index}.lock exists, so another git is at work, or one that was killed left it"
        ) from None
    if _bytes_of(index) != data:
        raise _no_commit(top, _AT_ONCE)
    for each in notes:
        _refuse_changed(each)


def _bytes_of(index: str) -> bytes:
    with open(index, "rb") as file:
        return file.read()


def _copied(index: str, new: str) -> bytes:
    status, data = os.stat(index), _bytes_of(index)
    with open(new, "xb") as file:
        file.write(data)
    # By this time git tells which files may have been changed right after it looked at them.
    os.utime(new, ns=(status.st_atime_ns, status.st_mtime_ns))
    return data
