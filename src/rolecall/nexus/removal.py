"""A removal of notes that is under way: what was noted of it, and everything else made to follow HEAD.

`forget` begins a removal and moves HEAD; what comes after is here, where it is done in the same way by whoever
began it and by whoever finds it cut off. HEAD is asked each time whether the removal came to be, so all of this
may be repeated. Nothing is removed that is not as it was when the removal began, and nothing is removed or
written on the word of the file that notes it: git has to have it so.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from shlex import quote
from typing import Any, NamedTuple

from rolecall.errors import Hint, StorageError
from rolecall.files import git
from rolecall.nexus import memory_access, note, note_name, project_paths, state_file
from rolecall.nexus.project_paths import Folder

NOTED = "removal.json"
"""What is being removed, in our own folder, while it is."""
SCRATCH = "git-index"
"""An index of git to make a commit from, there as well."""
LASTING = ("core.fsync=all",)
"""What a commit needs is on the disk before a file goes."""


class Leaving(NamedTuple):
    name: str
    blob: str
    digest: str
    """Of its bytes: a file that has others is not removed."""


class Arriving(NamedTuple):
    name: str
    mode: str
    blob: str
    text: str
    before: str | None
    """The digest of the bytes that it takes the place of; None: there was no file."""


class Removal(NamedTuple):
    """All that is needed to go on with a removal, or to see that it never came to be."""

    commit: str
    parent: str
    branch: str
    """The branch that was checked out; "" for none."""
    new_index: str
    """The name of the index as it is going to be, beside git's own."""
    gone: tuple[Leaving, ...]
    into: Arriving | None


class Gone(NamedTuple):
    """A note that was removed."""

    name: str
    commit: str
    restore: str
    into: str = ""
    """The note that took its text in."""
    stays: str = ""
    """Why its file is there all the same."""

    @property
    def told(self) -> str:
        if self.stays:
            return f"{self.name} was removed by commit {self.commit[:12]}, but its file stays: {self.stays}."
        return f"{self.name} was removed by commit {self.commit[:12]}; this brings it back: `{self.restore}`."


def restoring(commit: str, path: str) -> str:
    """The command that brings a file back, in any folder of the work tree."""
    is_plain = not set(path) & set("*?[\\")
    return f"git checkout {commit} -- {quote((':/' if is_plain else ':(top,literal)') + path)}"


def committed(top: str, path: str, commit: str = "HEAD") -> str:
    """The blob that a commit has under a path; "" when it has none."""
    return git.ask(top, "rev-parse", "--quiet", "--verify", f"{commit}:{path}").text


def git_folder(top: str) -> str:
    """Where git keeps the index and HEAD of this work tree."""
    return git.run(top, "rev-parse", "--absolute-git-dir").text


def changes(inner: str, leaving: Sequence[Leaving], arriving: Arriving | None) -> tuple[str, ...]:
    """The changes to an index, as `git update-index` has them; `inner` is the folder of the notes."""
    place_of = arriving and f"{arriving.mode},{arriving.blob},{os.path.join(inner, arriving.name)}"
    added = ("--add", "--cacheinfo", place_of) if place_of else ()
    return (*added, "--force-remove", "--", *(os.path.join(inner, each.name) for each in leaving))


def blob_of(project: Folder, top: str, path: str, data: bytes, *words: str) -> str:
    """The blob that git makes of these bytes under a path, with the settings that the path has there."""
    with state_file.drafted(project, data) as draft:
        blob = git.run(top, "hash-object", *words, "--path", path, "--", draft, settings=LASTING).text
        state_file.remove(draft)
    return blob


def clear_index(path: str) -> None:
    for each in (path, f"{path}.lock"):
        state_file.remove(each)


# -- everything follows HEAD --


def settle(project: Folder) -> list[Gone]:
    """Go on with the removal that is noted, as far as HEAD has it, or take it back. Under the project's lock."""
    clear_index(project_paths.ours(project, SCRATCH))
    removal = noted(project)
    if removal is None:
        return []
    result = git.ask(_nearest(note.folder(project, "memory")), "rev-parse", "--show-toplevel")
    top = os.path.realpath(result.text) if result.code == 0 and result.text else None
    settled = _follow(project, top, removal) if top else []
    state_file.remove(project_paths.ours(project, NOTED))
    return settled


def _nearest(folder: str) -> str:
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    return folder


def _follow(project: Folder, top: str, removal: Removal) -> list[Gone]:
    inner = os.path.relpath(os.path.realpath(note.folder(project, "memory")), top)
    is_made = git.contains(top, "HEAD", removal.commit)
    if is_made:
        _refuse_forged(project, top, inner, removal)
    _follow_in_index(top, inner, removal, is_made=is_made)
    if is_made:
        reasons = _follow_with_files(project, top, inner, removal)
        gone = [name for name, reason in reasons.items() if not reason]
        memory_access.follow(project, gone, removal.into.name if removal.into else None)
    elif removal.branch and git.contains(top, removal.branch, removal.commit):
        reasons = {each.name: f"{removal.branch} is not checked out any more" for each in removal.gone}
    else:
        reasons = {}
    into = removal.into.name if removal.into else ""
    return [
        Gone(name, removal.commit, restoring(removal.parent, os.path.join(inner, name)), into, reason)
        for name, reason in reasons.items()
    ]


def _refuse_forged(project: Folder, top: str, inner: str, removal: Removal) -> None:
    """Whoever wrote the file, its commit has to have done what it says."""
    paths = {os.path.join(inner, each.name): each.blob for each in removal.gone}
    has_removed = all(
        committed(top, path, removal.parent) == blob and not committed(top, path, removal.commit)
        for path, blob in paths.items()
    )
    into = removal.into
    if has_removed and (
        not into or committed(top, os.path.join(inner, into.name), removal.commit) == into.blob
    ):
        return
    path, names = project_paths.ours(project, NOTED), ", ".join(each.name for each in removal.gone)
    problem = f"commit {removal.commit[:12]} did not remove {names} as it says"
    raise state_file.DamagedFile(path, state_file.read(path) or b"", problem)


def _follow_in_index(top: str, inner: str, removal: Removal, *, is_made: bool) -> None:
    index = os.path.join(git_folder(top), "index")
    new = os.path.join(os.path.dirname(index), removal.new_index)
    if _is_same(new, f"{index}.lock"):
        if is_made:
            os.replace(f"{index}.lock", index)
        else:
            os.unlink(f"{index}.lock")
    elif is_made and os.path.lexists(new) and not _is_same(new, index):
        # Somebody removed the lock by hand, so the index is as it was, but for what they did to it since.
        left = [each for each in removal.gone if _is_due(top, inner, removal, each.name)]
        into = removal.into if removal.into and _is_due(top, inner, removal, removal.into.name) else None
        git.run(top, "update-index", *changes(inner, left, into), settings=LASTING)
    clear_index(new)


def _is_due(top: str, inner: str, removal: Removal, name: str) -> bool:
    """Whether the index has a file as it was before the removal, and HEAD as it was made by it."""
    path = os.path.join(inner, name)
    entry = git.staged(top, path).get(path)
    is_as_before = (entry.blob if entry else "") == committed(top, path, removal.parent)
    return is_as_before and committed(top, path) == committed(top, path, removal.commit)


def _is_same(one: str, other: str) -> bool:
    try:
        return os.path.samestat(os.lstat(one), os.lstat(other))
    except FileNotFoundError:
        return False


def _follow_with_files(project: Folder, top: str, inner: str, removal: Removal) -> dict[str, str]:
    """Why each of the files stays; "" for one that is gone."""
    folder = note.folder(project, "memory")
    try:
        changed = _arrive(project, top, inner, removal.into) if removal.into else ""
        reasons = {each.name: changed or _leave(folder, top, inner, each) for each in removal.gone}
        state_file.sync_folder(_nearest(folder))
    except OSError as exc:
        raise StorageError(
            f"commit {removal.commit[:12]} removed {', '.join(each.name for each in removal.gone)}, but the files "
            f"could not follow: {exc.filename}: {exc.strerror}",
            hint=Hint("Put that right, then finish the removal", "tidy_memory", before="Nothing is lost."),
        ) from exc
    return reasons


def _arrive(project: Folder, top: str, inner: str, into: Arriving) -> str:
    file, path = os.path.join(note.folder(project, "memory"), into.name), os.path.join(inner, into.name)
    found, data = _digest(file), note.encoded(into.text)
    if found == state_file.digest(data):
        return ""
    is_as_committed = committed(top, path) == into.blob == blob_of(project, top, path, data)
    if found != into.before or not is_as_committed:
        return f"{into.name}, which was to take it in, was changed meanwhile; `git show HEAD:{path}` has both"
    state_file.replace(project, file, data)
    return ""


def _leave(folder: str, top: str, inner: str, each: Leaving) -> str:
    file, path = os.path.join(folder, each.name), os.path.join(inner, each.name)
    if committed(top, path) or git.staged(top, path):
        return "it is in git again"
    found = _digest(file)
    is_in_git = found is None or (
        found == each.digest and git.run(top, "hash-object", "--", path).text == each.blob
    )
    if not is_in_git:
        return "it was changed meanwhile, and git does not have it any more"
    state_file.remove(file)
    return ""


def _digest(file: str) -> str | None:
    """Of a file's bytes; None when there is none, "" when it is no plain file."""
    if not os.path.lexists(file):
        return None
    if os.path.islink(file) or not os.path.isfile(file):
        return ""
    return state_file.digest(state_file.read(file) or b"")


# -- the file that notes a removal --

_HEX = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_INDEX = re.compile(r"index\.rolecall-[0-9a-f]{16}")


def note_down(project: Folder, removal: Removal) -> None:
    gone = [each._asdict() for each in removal.gone]
    value = {**removal._asdict(), "gone": gone, "into": removal.into and removal.into._asdict()}
    state_file.replace(project, project_paths.ours(project, NOTED), json.dumps(value).encode())


def noted(project: Folder) -> Removal | None:
    path = project_paths.ours(project, NOTED)
    data = state_file.read(path)
    if data is None:
        return None
    try:
        removal = _parsed(json.loads(data))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as exc:
        raise state_file.DamagedFile(
            path, data, f"it notes no removal ({type(exc).__name__}: {exc})"
        ) from exc
    return removal


def _parsed(value: Any) -> Removal:
    """A repository may come from anybody, with such a file in it: no word of it may lead elsewhere."""
    gone = tuple(Leaving(**each) for each in value["gone"])
    removal = Removal(**{**value, "gone": gone, "into": Arriving(**value["into"]) if value["into"] else None})
    notes: list[Leaving | Arriving] = [*removal.gone, *([removal.into] if removal.into else [])]
    fields = [pair for each in notes for pair in each._asdict().items() if pair != ("before", None)]
    texts = [removal.branch, removal.new_index, *(value for _, value in fields)]
    ids = [removal.commit, removal.parent, *(each.blob for each in notes)]
    fits = [
        bool(removal.gone),
        all(type(text) is str for text in texts),
        all(_HEX.fullmatch(each) for each in ids),
        all(note_name.is_file_name(each.name) for each in notes),
        _INDEX.fullmatch(removal.new_index) is not None,
        not removal.branch or removal.branch.startswith("refs/"),
        not removal.into or removal.into.mode in ("100644", "100755"),
    ]
    if not all(fits):
        raise ValueError("a value in it is not of its kind")
    return removal
