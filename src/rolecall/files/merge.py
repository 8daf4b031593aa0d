"""Merge a thread's branch into a folder, or set the branch aside and return the conflict as data.

A merge is computed before the folder is touched, so a conflict changes nothing. The folder then moves to the finished
merge commit, which git refuses if a file to be written has uncommitted changes; all other uncommitted changes stay as
they are. A merge whose check fails or does not end is undone. The per-worktree ref `_UNCHECKED` names the merge until
its check has passed, so that after a crash, the next merge first undoes the unchecked one. Hooks do not run.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import tempfile
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from shlex import quote
from typing import IO, NamedTuple, NotRequired, TypedDict

from rolecall.errors import Conflict, StorageError, UsageError
from rolecall.files import git

MOST_FILES = 100
MOST_HUNKS = 10
MOST_TEXT = 4000
"""How many files a conflict lists, how many hunks of each file, and how many characters of each hunk."""
MOST_TEXT_IN_ALL = 40_000

THREAD_TRAILER, STEP_TRAILER, DIGEST_TRAILER = "Rolecall-Thread", "Rolecall-Step", "Rolecall-Digest"
_UNCHECKED = "refs/worktree/rolecall/unchecked"
_PAUSE = 0.1


class Work(NamedTuple):
    """What a thread did: the commits on its branch and the uncommitted changes in its worktree."""

    thread: str
    title: str
    """A title for messages, such as `thread 01…: Fix the parser`."""
    branch: str
    path: str
    """The path of the worktree, which might have been removed."""
    step: str = ""
    """The newest step of the thread."""
    digest: str = ""
    """The SHA-256 hash that seals this step and everything before it."""

    def write_message(self, title: str) -> str:
        """Return the message for a commit with this work. Its trailers name the thread and the step."""
        named = {THREAD_TRAILER: self.thread, STEP_TRAILER: self.step}
        named |= {DIGEST_TRAILER: self.digest and f"sha256:{self.digest}"}
        return f"{title}\n\n" + "".join(f"{name}: {value}\n" for name, value in named.items() if value)


class ConflictingCommit(NamedTuple):
    """A commit in the folder with which a branch conflicts."""

    commit: str
    title: str
    thread: str
    """The thread whose work the commit merged, or empty if the commit did not merge a thread's work."""


class CommitConflict(TypedDict):
    """A `ConflictingCommit` as JSON."""

    commit: str
    title: str
    thread: str


class FileConflict(TypedDict):
    """A `ConflictingFile` as JSON. A conflict that a thread's folder records has only the path and the message."""

    path: str
    kind: NotRequired[str]
    message: str
    hunks: NotRequired[list[str]]
    changed_by: NotRequired[list[CommitConflict]]


class ConflictingFile(NamedTuple):
    path: str
    kind: str
    """Git's word for the conflict, such as `contents` or `modify/delete`."""
    message: str
    hunks: tuple[str, ...]
    """The lines that both sides changed, with conflict markers."""
    changed_by: tuple[ConflictingCommit, ...]
    """The commits in the folder that changed the file, newest first."""

    def as_json(self) -> FileConflict:
        return {
            "path": self.path,
            "kind": self.kind,
            "message": self.message,
            "hunks": list(self.hunks),
            "changed_by": [
                {"commit": by.commit, "title": by.title, "thread": by.thread} for by in self.changed_by
            ],
        }


class MergeCheck(NamedTuple):
    """The result of a check command."""

    command: tuple[str, ...]
    is_passed: bool
    reason: str
    output: str


class Merged(NamedTuple):
    commit: str | None
    """The merge commit, or None if the folder already contained all of the work."""
    left: str = ""
    """The branch described in `SetAside.left`."""


class FailedCheck(TypedDict):
    command: list[str]
    output: str


class MergeConflict(TypedDict, total=False):
    """Why work could not be merged, as JSON. Fields without a value are missing."""

    files: list[FileConflict]
    check: FailedCheck
    left: str
    """The branch described in `SetAside.left`."""


class SetAside(NamedTuple):
    """Work that is not merged. Its branch is kept."""

    branch: str
    reason: str
    files: tuple[ConflictingFile, ...] = ()
    check: MergeCheck | None = None
    left: str = ""
    """The branch that keeps the changes that others made to the merged files before the merge was undone."""

    def as_json(self) -> MergeConflict:
        """Return the conflict as data, without the branch and the reason."""
        conflict: MergeConflict = {}
        if self.files:
            conflict["files"] = [file.as_json() for file in self.files]
        if self.check:
            conflict["check"] = {"command": list(self.check.command), "output": self.check.output}
        if self.left:
            conflict["left"] = self.left
        return conflict


Check = Callable[[], Awaitable[MergeCheck]]


async def merge(
    folder: str, work: Work, check: Check | None = None, *, is_stopped: Callable[[], bool] = lambda: False
) -> Merged | SetAside:
    """Merge a thread's work into the branch that is checked out in `folder`, then run the check. Work that is already
    merged is not merged again. Raise UsageError if the folder cannot take any merge now, and Conflict if `is_stopped`
    returns true before it is this merge's turn."""
    with ExitStack() as stack:
        while True:
            if is_stopped():
                raise Conflict(f"stopped before anything was merged into {folder}")
            try:
                file = stack.enter_context(lock(folder))
                break
            except Conflict:
                await asyncio.sleep(_PAUSE)
        left = _undo_unchecked(folder)
        check_target(folder)
        made = _commit_merge(folder, work)
        if isinstance(made, SetAside):
            return made._replace(left=left)
        if made is None:
            return Merged(None, left)
        _move_to(folder, made, file)
        try:
            checked = await check() if check else None
        except BaseException:
            _undo_unchecked(folder)
            raise
        if checked is None or checked.is_passed:
            git.run(folder, "update-ref", "-d", _UNCHECKED)
            return Merged(made, left)
        return SetAside(work.branch, checked.reason, check=checked, left=_undo_unchecked(folder) or left)


def _commit_merge(folder: str, work: Work) -> str | SetAside | None:
    """Make the merge commit without touching the folder. Return its id, or None if there is nothing to merge, or a
    `SetAside`."""
    branch = work.branch
    try:
        commit_work(work)
    except UsageError as error:
        return SetAside(branch, error.message)
    ours, theirs = git.commit(folder, "HEAD"), git.commit(folder, f"refs/heads/{branch}")
    if ours is None or theirs is None:
        return SetAside(branch, f"the branch {branch} is gone")
    if git.contains(folder, ours, theirs):
        return None
    if not git.ask(folder, "merge-base", ours, theirs).out:
        return SetAside(branch, f"the branch {branch} has no commit in common with the folder")

    settings = ("merge.conflictStyle=zdiff3",)
    result = git.ask(folder, "merge-tree", "--write-tree", "-z", "HEAD", branch, settings=settings)
    if result.code > 1 or not result.out:
        raise StorageError(
            f"git merge-tree failed in {folder}: {result.err}", hint="Repair that, then try again."
        )
    if result.code:
        files = tuple(_conflicts(folder, ours, theirs, result.out))
        listed = ", ".join(file.path for file in files[:5]) + (", …" if files[5:] else "")
        return SetAside(branch, f"conflicts in {listed}", files)
    message = work.write_message(f"Merge {work.title}")
    words = ("commit-tree", result.words[0], "-p", ours, "-p", theirs, "-m", message)
    return git.run(folder, *words, settings=git.identity(folder)).text


def _move_to(folder: str, commit: str, lock: IO[str]) -> None:
    """Move a folder to a merge commit. Raise UsageError if it has uncommitted changes in the same files."""
    before = f"{commit}^1"
    # Git itself would bring back a file that somebody has deleted.
    added = _names(folder, "--diff-filter=A", before, commit)
    hidden = (path for path in added if os.path.lexists(os.path.join(folder, path)))
    _refuse({*git.list_uncommitted(folder), *hidden}, _names(folder, before, commit), folder)
    git.run(folder, "update-ref", _UNCHECKED, commit)
    words = ("merge", "--quiet", "--ff-only", "--no-overwrite-ignore", commit)
    moved = git.ask(folder, *words, holding=(lock.fileno(),))
    if moved.code:
        _undo_unchecked(folder)
        raise UsageError(f"nothing can be merged into {folder}: {moved.err}", hint="Fix that, then continue.")


def refuse_overlaps(folder: str, works: Iterable[Work]) -> None:
    """Raise UsageError if the folder has uncommitted changes in files that are to be merged."""
    mine = set(git.list_uncommitted(folder))
    theirs: set[str] = set()
    for work in works if mine else ():
        with suppress(UsageError):  # the merge itself will set this work aside
            commit_work(work)
        if git.has_branch(folder, work.branch):
            theirs.update(_names(folder, f"HEAD...refs/heads/{work.branch}"))
    _refuse(mine, theirs, folder)


def _refuse(mine: set[str], theirs: Iterable[str], folder: str) -> None:
    if shared := sorted(map(_readable, mine.intersection(theirs))):
        listed = ", ".join(shared[:10]) + (", …" if shared[10:] else "")
        raise UsageError(
            f"{folder} has uncommitted changes in files that are to be merged: {listed}",
            hint="The changes were not touched. Commit or stash them, then continue.",
        )


# -- the two sides --


def check_ready(folder: str) -> None:
    """Raise UsageError if nothing could be merged into a folder. Call this before doing work that is to be merged."""
    version = git.run(folder, "version").text
    numbers = re.findall(r"\d+", version)[:2]
    if [int(number) for number in numbers] < [2, 38]:
        raise UsageError(f"merging needs git 2.38, and this is {version}", hint="Install a newer git.")
    check_target(folder)


def check_target(folder: str) -> str:
    """Return the branch that is checked out in a folder, or raise UsageError if nothing can be merged into it."""
    into = git.branch(folder)
    if into is None:
        raise UsageError(
            f"no branch is checked out in {folder}, so there is nothing to merge into",
            hint="Check out a branch first.",
        )
    if git.commit(folder, "MERGE_HEAD"):
        raise UsageError(
            f"{folder} is in the middle of another merge", hint="Finish or abort that merge first."
        )
    return into


def commit_work(work: Work) -> bool:
    """Commit the uncommitted changes in a thread's worktree, and return whether there were any."""
    path = work.path
    if not os.path.isdir(path):
        return False
    if (now := git.branch(path)) != work.branch:
        raise UsageError(
            f"the thread's worktree has {now or 'no branch'} checked out instead of {work.branch}",
            hint=f"Switch back: `git -C {quote(path)} switch {work.branch}`; or merge the right branch by hand.",
        )
    if git.run(path, "ls-files", "--unmerged").text:
        raise UsageError(f"{path} has conflicts that are not resolved", hint="Resolve them there first.")
    for nested in git.list_nested(path):
        raise UsageError(
            f"git would keep only a link to the repository {_readable(nested)} in {path}, not its files",
            hint="Move the repository elsewhere, let git ignore it, or remove its .git folder and any link to it.",
        )
    if not git.list_uncommitted(path):
        return False
    git.run(path, "add", "--all")
    settings = (*git.identity(path), "commit.gpgSign=false")
    message = work.write_message(work.title[:1].upper() + work.title[1:])
    git.run(path, "commit", "--quiet", "-m", message, settings=settings)
    return True


@contextmanager
def lock(folder: str) -> Iterator[IO[str]]:
    """Keep others from merging into a folder. Raise Conflict if somebody is merging into it now."""
    place = os.path.join(folder, git.run(folder, "rev-parse", "--git-path", "rolecall-merge.lock").text)
    with open(place, "w", encoding="ascii") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Conflict(
                f"other work is being merged into {folder}", hint="Wait until it is done."
            ) from None
        yield file


# -- undoing --


def _undo_unchecked(folder: str) -> str:
    """Undo a merge whose check has not passed, wherever it was interrupted. If others have since changed the merged
    files, keep their version on a branch and return the branch's name."""
    after = git.commit(folder, _UNCHECKED)
    if after is None:
        return ""
    before, head = git.commit(folder, f"{after}^1"), git.commit(folder, "HEAD")
    if before is None or head not in (before, after):
        git.run(folder, "update-ref", "-d", _UNCHECKED)
        raise UsageError(
            f"{folder} has other commits on top of a merge that did not pass its check",
            hint=f"Undo that merge by hand: `git -C {quote(folder)} revert -m 1 {after[:12]}`. Then continue.",
        )
    paths = _names(folder, before, after)
    update = ("update-index", "--add", "--remove", "-z", "--stdin")
    with tempfile.TemporaryDirectory() as scratch:
        private = {"GIT_INDEX_FILE": os.path.join(scratch, "index")}
        git.run(folder, "read-tree", after, env=private)
        git.run(folder, *update, env=private, stdin=_as_input(paths))
        found = git.run(folder, "write-tree", env=private).text
    others = set(_names(folder, found, after)) & set(_names(folder, found, before))
    left = ""
    # git died while it was writing the files; a file that differs from both commits was not written by git
    if head == before:
        paths = [path for path in paths if path not in others]
    elif others:
        message = f"What was changed while {after[:12]} was checked"
        words = ("commit-tree", found, "-p", after, "-m", message)
        kept = git.run(folder, *words, settings=git.identity(folder)).text
        left = f"rolecall/left-{kept[:12]}"
        git.run(folder, "update-ref", f"refs/heads/{left}", kept)

    # With the current files in the index, git takes back exactly these files, and keeps everything else that is staged.
    git.run(folder, *update, stdin=_as_input(paths))
    git.run(folder, "read-tree", "-m", "-u", found, before)
    if head == after:
        git.run(folder, "update-ref", "-m", "rolecall: undo an unchecked merge", "HEAD", before, after)
    git.run(folder, "update-ref", "-d", _UNCHECKED)
    return left


def _as_input(paths: Iterable[str]) -> bytes:
    return b"".join(os.fsencode(path) + b"\0" for path in paths)


def _names(folder: str, *commits: str) -> list[str]:
    return git.run(folder, "diff", "--name-only", "--no-renames", "--no-ext-diff", "-z", *commits).words


# -- conflicts as data --


def _conflicts(folder: str, ours: str, theirs: str, output: bytes) -> Iterator[ConflictingFile]:
    """Yield the conflicts in the output of `git merge-tree -z`, which contains a tree, the stages of each file, and
    then messages."""
    fields = [os.fsdecode(field) for field in output.split(b"\0")]
    tree, end = fields[0], fields.index("")
    paths = dict.fromkeys(record.partition("\t")[2] for record in fields[1:end])
    kinds: dict[str, tuple[str, str]] = {}
    at = end + 1
    while at < len(fields) and fields[at].isdigit():
        last = at + int(fields[at])
        kind, message = fields[last + 1 : last + 3]
        if kind.startswith("CONFLICT"):
            word = kind.removeprefix("CONFLICT (").removesuffix(")")
            kinds |= dict.fromkeys(fields[at + 1 : last + 1], (word, message.partition(": ")[2].strip()))
        at = last + 3
    base = git.run(folder, "merge-base", ours, theirs).text
    form = f"--format=%H%x1f%s%x1f%(trailers:key={THREAD_TRAILER},valueonly,separator=%x2C)"
    room = MOST_TEXT_IN_ALL
    for path in list(paths)[:MOST_FILES]:
        kind, message = kinds.get(path, ("contents", ""))
        text = git.ask(folder, "cat-file", "blob", f"{tree}:{path}").out.decode("utf-8", "replace")
        hunks = tuple(_hunks(text)) if room > 0 else ()
        room -= sum(map(len, hunks))
        words = ("log", "--first-parent", "-z", form, f"{base}..{ours}", "--", path)
        listed = git.run(folder, *words, env={"GIT_LITERAL_PATHSPECS": "1"}).words
        commits = (map(_readable, record.split("\x1f")) for record in listed)
        changes = tuple(ConflictingCommit(*commit) for commit in commits)
        yield ConflictingFile(_readable(path), kind, _readable(message), hunks, changes)


def _hunks(text: str) -> Iterator[str]:
    lines, count = text.split("\n"), 0
    starts = [at for at, line in enumerate(lines) if line.startswith("<<<<<<< ")]
    for start in starts[:MOST_HUNKS]:
        end = next((at for at in range(start, len(lines)) if lines[at].startswith(">>>>>>> ")), start)
        hunk = "\n".join(lines[start : end + 1])
        rest = len(hunk) - MOST_TEXT
        yield hunk if rest <= 0 else f"{hunk[:MOST_TEXT]}\n… {rest} more characters"
        count += 1
    if starts[count:]:
        yield f"… {len(starts) - count} more"


def _readable(text: str) -> str:
    """Return text from git in a form that can be stored, even if its bytes are not valid UTF-8."""
    return os.fsencode(text).decode("utf-8", "replace")
