"""Removes notes of a project by a commit of git, so that each can be brought back by the command in its message.

Only what git has exactly as it is on the disk is removed; everything else is refused, with what to do. The
commit holds the notes that are named and nothing else, whatever the user has staged. Whoever calls holds the
project's lock. Why a note has to go is known above.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from shlex import quote
from typing import NamedTuple

from rolecall import git
from rolecall.errors import StorageError, UsageError
from rolecall.project import note, statefile
from rolecall.project.note import Note
from rolecall.project.place import Folder

_LITERALLY = {"GIT_LITERAL_PATHSPECS": "1"}


class Kept(NamedTuple):
    """A note as git has it."""

    note: Note
    top: str
    """The work tree it lies in."""
    path: str
    """Its path from there."""
    blob: str
    commit: str
    data: bytes

    @property
    def restoring(self) -> str:
        """The command that brings it back, in any folder of the work tree."""
        is_plain = not set(self.path) & set("*?[\\")
        return f"git checkout {self.commit} -- {quote((':/' if is_plain else ':(top,literal)') + self.path)}"


def kept(found: Note) -> Kept:
    """The note as git has it; an error that says what to do first when git does not have it as it is."""
    top = _top(found)
    path = os.path.relpath(os.path.realpath(found.path), top)
    commit, data = git.commit(top, "HEAD"), note.content(found)
    blob = git.ask(top, "rev-parse", "--quiet", "--verify", f"HEAD:{path}").text
    if commit is None or not blob:
        raise _refusal(found, "is not committed", _committing(top, path))
    staged = git.run(top, "ls-files", "--stage", "-z", "--", path, env=_LITERALLY).text.split()
    if staged[1:2] != [blob] or git.run(top, "hash-object", "--", path).text != blob:
        raise _refusal(found, "has changes that are not committed", _committing(top, path))
    return Kept(found, top, path, blob, commit, data)


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


class Successor(NamedTuple):
    """The file that takes the place of notes, and may be one of them."""

    path: str
    data: bytes


def remove(
    project: Folder, notes: Sequence[Kept], *, subject: str, why: str, into: Successor | None = None
) -> str:
    """Remove notes in one commit, together with the text that takes their place; its id. When that fails,
    everything is as it was."""
    gone = [each for each in notes if into is None or each.note.path != into.path]
    undo = ExitStack()
    with undo:
        for each in notes:
            _refuse_changed(each)
        if into:
            undo.callback(_take_back, project, into, statefile.read(into.path), gone[0].top)
            statefile.replace(project, into.path, into.data)
        for each in gone:
            os.unlink(each.note.path)
            undo.callback(_put_back, project, each.note.path, each.data)
        commit = _commit(gone, into, f"{subject}\n\n{why}\n\n{_recovery(gone)}\n")
        undo.pop_all()
    return commit


def _refuse_changed(each: Kept) -> None:
    if note.content(each.note) != each.data:
        raise UsageError(
            f"{each.note.path} is being changed by somebody else", hint="Look at it, then try again."
        )


def _take_back(project: Folder, into: Successor, before: bytes | None, top: str) -> None:
    if statefile.read(into.path) == into.data:
        if before is not None:
            statefile.replace(project, into.path, before)
        else:
            statefile.remove(into.path)
            git.ask(top, "rm", "--cached", "--quiet", "--force", "--", into.path, env=_LITERALLY)


def _put_back(project: Folder, path: str, data: bytes) -> None:
    if not os.path.lexists(path):
        statefile.replace(project, path, data)


def _recovery(gone: Sequence[Kept]) -> str:
    commands = "\n".join(f"    {each.restoring}" for each in gone)
    blobs = "\n".join(f"    git cat-file blob {each.blob}" for each in gone)
    return (
        f"This brings {'it' if len(gone) == 1 else 'them'} back, in any folder of the repository:\n\n{commands}\n\n"
        f"and this shows the text, also after history was rewritten:\n\n{blobs}"
    )


def _commit(gone: Sequence[Kept], into: Successor | None, message: str) -> str:
    top = gone[0].top
    paths = [each.path for each in gone]
    if into:
        paths.append(os.path.relpath(os.path.realpath(into.path), top))
        # A file that git does not know yet cannot be named in a commit.
        git.run(top, "add", "--intent-to-add", "--force", "--", paths[-1], env=_LITERALLY)
    settings = (*git.identity(top), "commit.gpgSign=false")
    words = ("commit", "--quiet", "--cleanup=whitespace", "-m", message, "--only", "--", *paths)
    result = git.ask(top, *words, settings=settings, env=_LITERALLY)
    if result.code:
        raise StorageError(
            f"git made no commit in {top}: {result.err}",
            hint="Nothing was removed. Put that right (finish a merge that is under way, perhaps), then try again.",
        )
    return git.commit(top, "HEAD") or ""
