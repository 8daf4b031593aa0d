"""A thread's own folders: a git worktree on its own branch, or a copy of the folder in which it was started.

The workflow decides which of these folders a role works in (`workdir`). A fork begins with the files of its step, which
are written into its worktree and its copy. Roles of the fork that share a folder work in `fork`, a worktree or a plain
folder, instead of the folder where the first thread was started.

The paths are written to the thread's state, under `folders`, before anything is made. A crash therefore leaves no
unknown folder, and the next step makes what is missing. A marker file next to a folder shows that the folder is
complete. A folder in which a role has worked is never recreated, and is removed only if a person asks for that.
`handover.py` shows, merges and removes the work in these folders.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from shlex import quote
from typing import TYPE_CHECKING, NamedTuple

from rolecall.errors import Hint, StorageError, UsageError
from rolecall.files import git
from rolecall.files.snapshot import Snapshot
from rolecall.files.tree import Trees, find_top
from rolecall.settings.repository import root_around
from rolecall.store.lazy import Module
from rolecall.store.store import Store
from rolecall.threads.state import FirstFiles, ThreadRef, WorkFolder, files_name, read_note, read_thread
from rolecall.threads.thread import Chain, Step

if TYPE_CHECKING:
    import shutil

    from rolecall.threads.loaded_thread import LoadedThread
else:
    shutil = Module("shutil")  # imports the compression modules, which a step does not need

BRANCHES = "rolecall/"
MOST_BYTES = 10 * 1024**3
MOST_FILES = 500_000


class FilesAt(NamedTuple):
    """The files with which a fork begins."""

    snapshot: Snapshot
    place: str
    """The folder of Rolecall's repositories, one of which contains the files."""
    at: int
    """The time at which the folder contained these files."""


# -- the files of a step --


def files_at(store: Store, chain: Chain, source: ThreadRef | None, kind: str, place: str) -> FilesAt | None:
    """Return the files in a folder of this kind after the last step of `chain`. They are the files left by the newest
    of its steps in that folder or, if there is none, those found by the first step that the thread `source` took there.
    Return None if that step did not record its files."""
    places = list(_places(store, source, kind, chain.start.cwd))
    step = next(_steps_in(chain, places), None)
    is_left = step is not None
    if step is None and source is not None:
        *_, step = [None, *_steps_in(Chain(store, source.head), places)]
    # Outside git, the snapshot of a subfolder contains only the files of that subfolder.
    if step is None or step.tree is None or find_top(step.payload["cwd"]) not in places:
        return None
    if is_left:
        return FilesAt(step.tree.left, place, step.payload["completed_at"])
    return FilesAt(step.tree.found, place, step.payload["started_at"])


def _places(store: Store, ref: ThreadRef | None, kind: str, cwd: str) -> Iterator[str]:
    """Yield the folders in which a thread, and the threads it was forked from, have worked, newest first."""
    while ref is not None:
        if folder := ref.state.folders.get(kind):
            yield os.path.realpath(folder.path)
        ref = read_thread(store, ref.state.forked_thread) if ref.state.forked_thread else None
    if kind == "fork":
        yield find_top(cwd)


def _steps_in(chain: Chain, places: list[str]) -> Iterator[Step]:
    """Yield the steps, newest first, in which somebody other than a person worked in one of these folders."""
    for step in chain:
        is_asked = not step.role.startswith("$") and step.agent != "human"
        if is_asked and any(_is_in(step.payload["cwd"], place) for place in places):
            yield step


def _is_in(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")


# -- planning: problems are found before anything is made --


def plan(
    kind: str,
    ident: str,
    *,
    cwd: str,
    work: str | None,
    parent: WorkFolder | None = None,
    files: FilesAt | None = None,
) -> WorkFolder:
    """Plan a folder for a new thread without making it. `parent` is the corresponding folder of the thread that the new
    thread is forked from. `files` are the files with which the folder begins."""
    if work is None:
        raise UsageError(
            f"the workflow uses a {kind}, but no location for it was given",
            hint="Say where with the argument `work`.",
        )
    place = os.path.join(work, ident)
    parent = None if parent is None or parent.is_removed else parent
    top = find_top(cwd) if kind == "fork" else ""
    is_repository = top and root_around(top) == top and git.commit(top, "HEAD") is not None
    if kind == "worktree" or is_repository:
        planned = _plan_worktree(kind, ident, cwd, place, parent, files)
    elif kind == "fork":
        path = os.path.join(place, "fork")
        planned = WorkFolder(path, path, cwd)
    else:
        origin = os.path.realpath(parent.cwd) if parent and os.path.isdir(parent.cwd) else cwd
        if os.path.commonpath([origin, os.path.realpath(place)]) == origin:
            raise UsageError(
                f"{cwd} contains the folder in which copies are created ({place}), so it cannot be copied there",
                hint="Start the thread in the project's own folder.",
            )
        size = count = 0
        for found in _files(origin):
            size, count = size + found.stat(follow_symlinks=False).st_size, count + 1
            if size > MOST_BYTES or count > MOST_FILES:
                raise UsageError(
                    f"{origin} is too large to be copied for a thread: more than "
                    f"{MOST_BYTES // 1024**3} GiB or {MOST_FILES:,} files",
                    hint="Start the thread in a smaller folder, or use `workdir: worktree`.",
                )
        path = os.path.join(place, "copy")
        planned = WorkFolder(path, path, cwd, origin=origin if origin != cwd else "")
    if files is None:
        return planned
    return planned._replace(files=FirstFiles(files.snapshot.tree, files.snapshot.repository, files.place))


def plan_like(folder: WorkFolder, ident: str) -> WorkFolder:
    """Return the plan for a folder of another thread that begins in the same way as `folder`."""
    place, name = os.path.split(folder.path)
    path = os.path.join(os.path.dirname(place), ident, name)
    cwd = os.path.normpath(os.path.join(path, os.path.relpath(folder.cwd, folder.path)))
    return folder._replace(path=path, cwd=cwd, branch=f"{BRANCHES}{ident}" if folder.branch else "")


def _plan_worktree(
    kind: str, ident: str, cwd: str, place: str, parent: WorkFolder | None, files: FilesAt | None
) -> WorkFolder:
    answer = git.ask(cwd, "rev-parse", "--is-inside-work-tree", "--show-toplevel")
    inside, _, top = answer.text.partition("\n")
    if inside == "false":
        raise UsageError(
            f"nothing is checked out at {cwd}: it is in a bare repository or in a .git folder",
            hint="Start the thread in a checked-out work tree.",
        )
    if inside != "true" or not top:
        raise UsageError(
            f"{cwd} is not in a git repository, so it cannot have worktrees ({answer.err})",
            hint="Start the thread in a repository, or use `workdir: copy`, which needs none.",
        )
    if parent is not None and not (parent.branch and git.has_branch(top, parent.branch)):
        parent = None
    newest = f"refs/heads/{parent.branch}" if parent else "HEAD"
    base = git.commit(top, newest)
    if files is not None:  # the commit that was checked out at that time, judging by its date
        older = git.ask(top, "rev-list", "-1", "--first-parent", f"--min-age={files.at // 1000}", newest)
        base = older.text or base
    if base is None:
        raise UsageError(
            f"the repository {top} has no commit, so nothing can be checked out from it",
            hint="Make a first commit, or use `workdir: copy`.",
        )
    inner = os.path.relpath(cwd, top)
    if inner != "." and files is None and git.ask(top, "cat-file", "-t", f"{base}:{inner}").text != "tree":
        raise UsageError(
            f"the folder {inner!r} is not in the commit {base[:12]}, so a worktree would be without it",
            hint="Commit it first, or use `workdir: copy`.",
        )
    path = os.path.join(place, "tree" if kind == "worktree" else kind)
    origin = parent.path if parent else top
    has_changes = files is None and os.path.isdir(origin)
    return WorkFolder(
        path,
        os.path.normpath(os.path.join(path, inner)),
        top,
        branch=f"{BRANCHES}{ident}" if kind == "worktree" else f"{BRANCHES}{ident}-{kind}",
        base=base,
        origin=parent.path if parent else "",
        omitted=len(git.list_uncommitted(origin)) if has_changes else 0,
    )


def _files(folder: str) -> Iterator[os.DirEntry[str]]:
    with os.scandir(folder) as found:
        for entry in found:
            if entry.is_dir(follow_symlinks=False):
                yield from _files(entry.path)
            else:
                yield entry


# -- making --


def make(kind: str, folder: WorkFolder) -> None:
    """Make a folder as planned, unless it is already complete. Remains of an interrupted try are deleted first, so call
    this function only for folders in which no role has worked."""
    try:
        place = os.path.dirname(folder.path)
        os.makedirs(place, mode=0o700, exist_ok=True)
        with open(os.path.join(place, "lock"), "w", encoding="ascii") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not is_whole(folder):
                _delete(folder.path)
                with suppress(FileNotFoundError):  # the mark remains if a person has removed the folder
                    os.unlink(_mark(folder))
                if folder.branch:
                    _make_worktree(folder)
                elif kind == "copy":
                    _make_copy(folder)
                if files := folder.files:
                    write_files(folder, Trees(files.place), Snapshot(files.tree, files.repository))
                with open(_mark(folder), "w", encoding="ascii"):
                    pass
    except OSError as error:
        raise StorageError(
            f"the thread's {kind} cannot be created in {folder.path}: {error.strerror}",
            hint="Fix the problem, then try again.",
        ) from error


def bring_back(store: Store, refs: Iterable[ThreadRef], place: str) -> list[str]:
    """Make the folders of threads as their last steps left them, and return these folders. Call this function on a
    machine that has imported the threads and their recorded files from a bundle. Pass parents before their children.
    The commits that the folders need must already exist."""
    newest: dict[str, tuple[FilesAt, str | None]] = {}
    for ref in refs:
        chain, folders = Chain(store, ref.head), ref.state.folders
        places: dict[str, tuple[str, str | None]] = {}
        for kind, folder in folders.items():
            if not folder.is_removed:
                make(kind, folder)
                places[kind] = (os.path.realpath(folder.path), folder.source)
        if "fork" not in folders:
            places["fork"] = (find_top(chain.start.cwd), None)
        for kind, (path, source) in places.items():
            found = files_at(store, chain, ref, kind, place)
            if found and (path not in newest or newest[path][0].at <= found.at):
                newest[path] = (found, source)
    for path, (files, source) in newest.items():
        Trees(place).restore(files.snapshot, path, source=source)
    return list(newest)


def discard(folder: WorkFolder) -> None:
    """Delete a folder and everything in it, and its branch."""
    _delete(folder.path)
    if folder.branch:
        # The removal is forced twice, because git locks a worktree while creating it.
        git.ask(folder.source, "worktree", "remove", "--force", "--force", folder.path)
        git.ask(folder.source, "branch", "--quiet", "-D", folder.branch)
    place = os.path.dirname(folder.path)
    for mark in (_mark(folder), shared_mark(folder.path)):
        if os.path.exists(mark):
            os.unlink(mark)
    if os.path.isdir(place) and set(os.listdir(place)) <= {"lock"}:
        _delete(place)


def is_whole(folder: WorkFolder) -> bool:
    """Return whether a folder exists and is complete."""
    return os.path.exists(_mark(folder)) and os.path.isdir(folder.path)


def _mark(folder: WorkFolder) -> str:
    return f"{folder.path}.made"


def shared_mark(path: str) -> str:
    """Return the file that records the state of a folder when its files last came from, or went to, other machines."""
    return f"{path}.shared"


# -- the copies of a folder on several machines --


def read_mark(path: str) -> dict[str, str]:
    """Return the content of the mark next to a folder: the id of this `copy`, and the `tree` and the `head` that the
    folder contains. If a process died while changing the folder, the mark contains the tree before the change (`from`,
    empty if there was no folder) and the tree after the change (`to`) instead."""
    try:
        with open(shared_mark(path), encoding="ascii") as file:
            return dict(json.load(file))
    except (FileNotFoundError, ValueError):
        return {}


def is_newest(path: str, copy: str) -> bool:
    """Return whether the folder on this machine is the newest copy, which has the id `copy`. This is true even if a
    person has deleted the folder."""
    return read_mark(path).get("copy") == copy


def find_newer(store: Store, thread: str, kind: str, folder: WorkFolder) -> str:
    """Say which machine has the newest copy of a thread's own folder. Return an empty string if this machine has it, or
    if there is only one copy."""
    shared = store.ref(files_name(thread, kind)) if store.is_shared else None
    if shared is None or is_newest(folder.path, shared.state.get("copy", "")):
        return ""
    return f"the newest files of {folder.path} are on {shared.state.get('host', 'another machine')}"


def find_owner(store: Store, ref: ThreadRef | None, path: str) -> tuple[str, str, WorkFolder] | None:
    """Return the own folder of a thread that contains a path, with its thread and its kind. Search the folders of the
    thread `ref` and of the threads that it works for."""
    while ref is not None:
        for kind, folder in ref.state.folders.items():
            if not folder.is_removed and _is_in(path, folder.path):
                return ref.id, kind, folder
        ref = read_thread(store, ref.state.parent) if ref.state.parent else None
    return None


def _make_worktree(folder: WorkFolder) -> None:
    source, path, branch = folder.source, folder.path, folder.branch
    # An earlier, interrupted try may have left an entry in git's list of worktrees.
    git.ask(source, "worktree", "remove", "--force", "--force", path)
    if git.has_branch(source, branch):
        git.run(source, "worktree", "add", "--quiet", path, branch)
    else:
        git.run(source, "worktree", "add", "--quiet", "--no-track", "-b", branch, path, folder.base)


def _make_copy(folder: WorkFolder) -> None:
    origin, path = folder.origin or folder.source, folder.path
    shared_blocks = ("--reflink=auto",) if sys.platform == "linux" else ()
    done = subprocess.run(  # noqa: S603 -- no shell is involved
        ["cp", "-a", *shared_blocks, "--", origin, path],  # noqa: S607
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    if done.returncode:
        said = " ".join(done.stderr.decode("utf-8", "replace").split())[:1000]
        raise StorageError(f"{origin} could not be copied: {said}", hint="Fix the problem, then try again.")
    for entry in _files(path):
        # No process would be listening on the copy of a socket or a pipe.
        if stat.S_IFMT(entry.stat(follow_symlinks=False).st_mode) in (stat.S_IFSOCK, stat.S_IFIFO):
            os.unlink(entry.path)


def write_files(folder: WorkFolder, trees: Trees, snapshot: Snapshot) -> None:
    """Make the files in a folder equal to those of a snapshot."""
    path = folder.path
    if not os.path.exists(path):
        trees.check_out(snapshot, path)
    elif find_top(path) == os.path.realpath(path):
        trees.restore(snapshot, path, source=folder.source)
    else:  # a copy of a folder without git, in a repository around the home folder
        raise UsageError(
            f"{path} is in a repository other than the thread's",
            hint=Hint("Fork with the files as they are now", "keep_files"),
        )
    os.makedirs(folder.cwd, exist_ok=True)


def _delete(folder: str) -> None:
    if not os.path.lexists(folder):
        return
    try:
        shutil.rmtree(folder)
    except PermissionError:  # read-only folders, such as some package caches
        for found, _, _ in os.walk(folder):
            os.chmod(found, 0o700)
        shutil.rmtree(folder)


# -- at a step --


def for_step(
    store: Store, loaded: LoadedThread, workdir: str, location: str | None = None, *, is_needed: bool = True
) -> str:
    """Return the folder in which a role of this thread works. If `is_needed`, make the folder if it is missing and was
    never used, and raise `UsageError` if it does not exist or if another machine has a newer copy. `location` is
    relative to the folder. If it is an absolute path into a folder of the thread from which this thread was forked, use
    the same place in this thread's own folder instead."""
    kind, cwd = "fork" if workdir == "shared" else workdir, loaded.chain.start.cwd
    folder, owner = loaded.folders.get(kind), None
    if folder is not None:
        owner = None if folder.is_removed else (loaded.thread, kind, folder)
    elif workdir != "shared" and loaded.chain.start.member is None:
        raise UsageError(f"the thread has no {kind} of its own; {_ONWARD}")
    elif store.is_shared:  # a member reads in the folder of its parent
        owner = find_owner(store, read_thread(store, loaded.thread), cwd)
    if is_needed and owner and (why := find_newer(store, *owner)):
        raise UsageError(why, hint="Let that machine take the step.")
    if is_needed and folder:
        _make_missing(store, loaded, kind, folder)

    path = folder.cwd if folder else cwd
    if location:
        path = os.path.join(path, os.path.expanduser(location))
    if folder and location and os.path.isabs(location):
        places = _places(store, read_thread(store, loaded.thread), kind, cwd)
        if old := next((place for place in places if _is_in(location, place)), ""):
            path = os.path.normpath(os.path.join(folder.path, os.path.relpath(location, old)))
    if is_needed and not os.path.isdir(path):
        raise UsageError(
            f"the work folder {path!r} does not exist",
            hint="Create the folder, or fork the thread with another folder.",
        )
    return path


_ONWARD = "fork the thread to continue in a new one"


def _make_missing(store: Store, loaded: LoadedThread, kind: str, folder: WorkFolder) -> None:
    what = "folder" if kind == "fork" else kind
    if folder.is_removed:
        raise UsageError(f"the thread's {what} was removed by a person; {_ONWARD}")
    if is_whole(folder):
        return
    path = folder.path
    was_worked_in = read_note(store, loaded.thread) is not None or any(
        _is_in(str(step.payload.get("cwd", "")), path) for step in loaded.chain
    )
    if not was_worked_in:
        make(kind, folder)
    elif not os.path.isdir(path):  # a folder that a person has restored is accepted
        lost = f"the thread's {what} {quote(path)} is gone"
        if not folder.branch:
            raise UsageError(f"{lost}, and so is the work in it; {_ONWARD}")
        back = f"git -C {quote(folder.source)} worktree add {quote(path)} {folder.branch}"
        raise UsageError(
            f"{lost}, and so are uncommitted changes in it; `{back}` restores what was committed; {_ONWARD}"
        )
