"""Removes a project's notes with `git rm`, in a commit whose message contains the command that restores each note.

A note is removed only if git has it exactly as it is on disk; otherwise, the error says what to do first. The commit
contains only the named notes, whatever the user has staged. A process that is killed before the commit leaves a staged
deletion: nothing is lost, and repeating the command commits the deletion.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from shlex import quote
from typing import NamedTuple

from rolecall.errors import StorageError, UsageError
from rolecall.files import git
from rolecall.nexus import memory_access, note, note_name, state_file
from rolecall.nexus.project_paths import Folder

_SETTINGS = ("core.fsync=all", "commit.gpgSign=false", "i18n.commitEncoding=UTF-8", "core.safecrlf=false")
_LITERALLY = {"GIT_LITERAL_PATHSPECS": "1"}
_UNDER_WAY = {
    "MERGE_HEAD": "a merge",
    "CHERRY_PICK_HEAD": "a cherry-pick",
    "REVERT_HEAD": "a revert",
    "rebase-merge": "a rebase",
    "rebase-apply": "a rebase or `git am`",
    "sequencer": "a cherry-pick or a revert",
    "BISECT_LOG": "a bisection",
}


class Kept(NamedTuple):
    """A note that git has with its current content."""

    name: str
    data: bytes
    top: str
    """The work tree that contains the note."""
    path: str
    """The note's path relative to the work tree."""
    blob: str
    commit: str

    @property
    def restore(self) -> str:
        """The command that restores the note, from any folder of the work tree."""
        is_plain = not set(self.path) & set("*?[\\")
        return f"git checkout {self.commit} -- {quote((':/' if is_plain else ':(top,literal)') + self.path)}"


class Successor(NamedTuple):
    """The note that replaces other notes; it can be one of them."""

    name: str
    text: str


def find_kept(project: Folder, name: str) -> Kept:
    """Find a note in git. Raise an error that says what to do first if git does not have its current content."""
    file = note_name.file_name(name)
    folder = note.folder(project, "memory")
    path = os.path.join(folder, file)
    is_there = os.path.lexists(path)
    if is_there or not os.path.isdir(folder):
        note.find(project, "memory", file)
    found = git.ask(folder, "rev-parse", "--show-toplevel")
    if found.code or not found.text:
        why = f" ({found.err})" if "not a git repository" not in found.err else ""
        hint = "Put the project under git and commit the file; or remove the file by hand."
        problem = f"is not in a git repository{why}"
        raise UsageError(f"{path} {problem}, so removing it could not be undone", hint=hint)
    top = os.path.realpath(found.text)
    inner = os.path.relpath(os.path.join(os.path.realpath(folder), file), top)
    commit = git.commit(top, "HEAD")
    blob = git.ask(top, "rev-parse", "--quiet", "--verify", f"HEAD:{inner}").text
    if not is_there and blob and not git.read_index(top, inner):
        return Kept(file, git.run(top, "cat-file", "blob", blob).out, top, inner, blob, commit or "")
    data = note.content(note.find(project, "memory", file))
    problem = ""
    if commit is None or not blob:
        problem = "is not committed"
    else:
        entry = git.read_index(top, inner).get(inner)
        if entry is None or entry.blob != blob or git.run(top, "hash-object", "--", inner).text != blob:
            problem = "has changes that are not committed"
    if problem:
        git_there, quoted = f"git -C {quote(top)}", quote(inner)
        add, keep = f"{git_there} add -f -- {quoted}", f"{git_there} commit -m 'Keep {file}' -- {quoted}"
        hint = f"Commit it first: `{add}` and `{keep}`."
        raise UsageError(f"{path} {problem}, so removing it could not be undone", hint=hint)
    return Kept(file, data, top, inner, blob, commit or "")


def remove(
    project: Folder,
    lock: int,
    notes: Sequence[Kept],
    *,
    subject: str,
    why: str,
    into: Successor | None = None,
) -> str:
    """Remove notes in one commit, together with the text that replaces them, and return the commit's id. If the commit
    fails, everything is restored. `lock` is the project's lock, which git also holds while it runs."""
    top, folder = notes[0].top, note.folder(project, "memory")
    # During another git operation, the commit would become part of that operation, or be lost with it.
    git_folder = git.run(top, "rev-parse", "--absolute-git-dir").text
    for name, what in _UNDER_WAY.items():
        if os.path.lexists(os.path.join(git_folder, name)):
            raise _no_commit(top, f"{what} is under way")
    if git.run(top, "ls-files", "--unmerged").out:
        raise _no_commit(top, "a conflict is not resolved yet")

    gone = [each for each in notes if into is None or each.name != into.name]
    paths = [each.path for each in gone]
    target = os.path.join(os.path.dirname(notes[0].path), into.name) if into else ""
    old = {each.name: each.data for each in notes}
    if into and into.name not in old and git.read_index(top, target):
        hint = "Commit its removal, or choose another name."
        raise UsageError(f"git's index has {target}, which is not on the disk", hint=hint)

    def run(*words: str) -> None:
        result = git.ask(top, *words, settings=settings, env=_LITERALLY, holding=(lock,))
        if result.code:
            raise _no_commit(top, result.err)

    settings = (*_SETTINGS, *git.identity(top))
    changed = [*paths, target] if into else paths
    try:
        if into:
            state_file.replace(project, os.path.join(folder, into.name), note.encode(into.text))
            run("add", "--force", "--sparse", "--", target)
        run("rm", "--quiet", "--ignore-unmatch", "--sparse", "--", *paths)
        commands = "\n".join(f"    {each.restore}" for each in gone)
        blobs = "\n".join(f"    git cat-file blob {each.blob}" for each in gone)
        message = (
            f"{subject}\n\n{why}\n\n"
            f"This brings {'it' if len(gone) == 1 else 'them'} back, in any folder of the repository:\n\n{commands}\n\n"
            f"and this shows the text, also after history was rewritten:\n\n{blobs}"
        )
        run("commit", "--quiet", "--no-verify", "--cleanup=verbatim", "-m", message, "--only", "--", *changed)
    except BaseException:
        # Restore the files first, so that no text is missing, whatever happens to the index.
        state_file.make_folder(folder)
        for name, data in old.items():
            path = os.path.join(folder, name)
            if not os.path.lexists(path) or (into and name == into.name):
                state_file.replace(project, path, data)
        if into and into.name not in old:
            state_file.remove(os.path.join(folder, into.name))
        git.ask(top, "reset", "--quiet", "HEAD", "--", *changed, env=_LITERALLY)
        raise
    memory_access.follow(project, [each.name for each in gone], into.name if into else None)
    return git.commit(top, "HEAD") or ""


def _no_commit(top: str, why: str) -> StorageError:
    return StorageError(
        f"git made no commit in {top}: {why}",
        hint="Nothing was removed. Fix the problem (for example, finish a merge that is in progress), then try again.",
    )
