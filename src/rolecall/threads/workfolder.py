"""A thread's own folders: a git worktree on its own branch, or a copy of the folder it was started in.

The workflow decides which of them a role works in (`workdir`). Their paths are written to the thread's state, under
`folders`, before anything is made, so that a crash leaves no unknown folder and the next step makes what is missing. A
marker file beside a folder shows that it is complete. A folder in which a role has worked is never made again, and is
removed only at a person's request. `handover.py` shows, merges and removes the work in it.
"""

from __future__ import annotations

import fcntl
import os
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from shlex import quote
from typing import Any

from rolecall.errors import StorageError, UsageError
from rolecall.files import git
from rolecall.store.store import Store
from rolecall.threads.state import read_note, read_thread
from rolecall.threads.thread import Chain

Folder = Mapping[str, Any]
"""`path`, `cwd` (the folder inside it where roles work), `source` (the folder it was made from). A worktree has its
`branch`, its first commit (`base`) and the number of uncommitted changes it does not include (`omitted`). `from` is the
folder of the thread that was forked. `removed` means that a person removed it."""

BRANCHES = "rolecall/"
MOST_BYTES = 10 * 1024**3
MOST_FILES = 500_000


# -- planning: problems are found before anything is made --


def plan(
    kind: str, ident: str, *, cwd: str, work: str | None, parent: Folder | None = None
) -> dict[str, Any]:
    """Plan a folder for a new thread without making it. `parent` is the folder of the thread it is forked from."""
    if work is None:
        raise UsageError(
            f"the workflow works in a {kind}, and there is no place to make it in",
            hint="Whoever starts a thread has to say where: `work`.",
        )
    place = os.path.join(work, ident)
    parent = None if parent is None or "removed" in parent else parent
    plan_kind = _plan_worktree if kind == "worktree" else _plan_copy
    return {key: value for key, value in plan_kind(ident, cwd, place, parent).items() if value}


def plan_like(folder: Folder, ident: str) -> Folder:
    """The plan for another thread whose folder begins as the planned one does."""
    place, name = os.path.split(folder["path"])
    path = os.path.join(os.path.dirname(place), ident, name)
    cwd = os.path.normpath(os.path.join(path, os.path.relpath(folder["cwd"], folder["path"])))
    planned = {**folder, "path": path, "cwd": cwd}
    return {**planned, "branch": f"{BRANCHES}{ident}"} if "branch" in folder else planned


def _plan_worktree(ident: str, cwd: str, place: str, parent: Folder | None) -> dict[str, Any]:
    answer = git.ask(cwd, "rev-parse", "--is-inside-work-tree", "--show-toplevel")
    inside, _, top = answer.text.partition("\n")
    if inside == "false":
        raise UsageError(
            f"nothing is checked out at {cwd}: it is in a bare repository or in a .git folder",
            hint="Start the thread in a checked-out work tree.",
        )
    if inside != "true" or not top:
        raise UsageError(
            f"{cwd} is in no git repository, so it cannot have worktrees ({answer.err})",
            hint="Start the thread in a repository, or use `workdir: copy`, which needs none.",
        )
    if parent is not None and not git.has_branch(top, parent["branch"]):
        parent = None
    base = git.commit(top, f"refs/heads/{parent['branch']}" if parent else "HEAD")
    if base is None:
        raise UsageError(
            f"the repository {top} has no commit, so nothing can be checked out from it",
            hint="Make a first commit, or use `workdir: copy`.",
        )
    inner = os.path.relpath(cwd, top)
    if inner != "." and git.ask(top, "cat-file", "-t", f"{base}:{inner}").text != "tree":
        raise UsageError(
            f"the folder {inner!r} is not in the commit {base[:12]}, so a worktree would be without it",
            hint="Commit it first, or use `workdir: copy`.",
        )
    path = os.path.join(place, "tree")
    origin = parent["path"] if parent else top
    return {
        "path": path,
        "cwd": os.path.normpath(os.path.join(path, inner)),
        "source": top,
        "branch": f"{BRANCHES}{ident}",
        "base": base,
        "from": parent["path"] if parent else None,
        "omitted": len(git.uncommitted(origin)) if os.path.isdir(origin) else 0,
    }


def _plan_copy(_ident: str, cwd: str, place: str, parent: Folder | None) -> dict[str, Any]:
    origin = os.path.realpath(parent["path"]) if parent and os.path.isdir(parent["path"]) else cwd
    if os.path.commonpath([origin, os.path.realpath(place)]) == origin:
        raise UsageError(
            f"{cwd} holds the place that copies are made in ({place}), so it cannot be copied there",
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
    return {"path": path, "cwd": path, "source": cwd, "from": origin if origin != cwd else None}


def _files(folder: str) -> Iterator[os.DirEntry[str]]:
    with os.scandir(folder) as found:
        for entry in found:
            if entry.is_dir(follow_symlinks=False):
                yield from _files(entry.path)
            else:
                yield entry


# -- making --


def make(kind: str, folder: Folder) -> None:
    """Make a folder as planned, unless it is already complete. Remains of an interrupted try are deleted first, so call
    this only for folders in which no role has worked."""
    try:
        with _lock(folder):
            if not _is_whole(folder):
                _delete(folder["path"])
                _make_worktree(folder) if kind == "worktree" else _make_copy(folder)
                with open(_mark(folder), "x", encoding="ascii"):
                    pass
    except OSError as error:
        raise StorageError(
            f"the thread's {kind} cannot be made in {folder['path']}: {error.strerror}",
            hint="Put that right, then try again.",
        ) from error


def discard(kind: str, folder: Folder) -> None:
    """Delete a folder with everything in it, and its branch."""
    _delete(folder["path"])
    if kind == "worktree":
        # Forced twice, because git locks a worktree while it creates it.
        git.ask(folder["source"], "worktree", "remove", "--force", "--force", folder["path"])
        git.ask(folder["source"], "branch", "--quiet", "-D", folder["branch"])
    place = os.path.dirname(folder["path"])
    if os.path.exists(_mark(folder)):
        os.unlink(_mark(folder))
    if os.path.isdir(place) and set(os.listdir(place)) <= {"lock"}:
        _delete(place)


def _is_whole(folder: Folder) -> bool:
    return os.path.exists(_mark(folder)) and os.path.isdir(folder["path"])


def _mark(folder: Folder) -> str:
    return f"{folder['path']}.made"


@contextmanager
def _lock(folder: Folder) -> Iterator[None]:
    place = os.path.dirname(folder["path"])
    os.makedirs(place, mode=0o700, exist_ok=True)
    with open(os.path.join(place, "lock"), "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _make_worktree(folder: Folder) -> None:
    source, path, branch = folder["source"], folder["path"], folder["branch"]
    # An earlier, interrupted try may have left an entry in git's list of worktrees.
    git.ask(source, "worktree", "remove", "--force", "--force", path)
    if git.has_branch(source, branch):
        git.run(source, "worktree", "add", "--quiet", path, branch)
    else:
        git.run(source, "worktree", "add", "--quiet", "--no-track", "-b", branch, path, folder["base"])


def _make_copy(folder: Folder) -> None:
    origin, path = folder.get("from", folder["source"]), folder["path"]
    shared_blocks = ("--reflink=auto",) if sys.platform == "linux" else ()
    done = subprocess.run(  # noqa: S603 -- no shell is involved
        ["cp", "-a", *shared_blocks, "--", origin, path],  # noqa: S607
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    if done.returncode:
        said = " ".join(done.stderr.decode("utf-8", "replace").split())[:1000]
        raise StorageError(f"{origin} could not be copied: {said}", hint="Put that right, then try again.")
    for entry in _files(path):
        # Nothing would be listening on the copy of a socket or a pipe.
        if stat.S_IFMT(entry.stat(follow_symlinks=False).st_mode) in (stat.S_IFSOCK, stat.S_IFIFO):
            os.unlink(entry.path)


def _delete(folder: str) -> None:
    if not os.path.lexists(folder):
        return
    import shutil  # brings the compression modules, which a step does without

    try:
        shutil.rmtree(folder)
    except PermissionError:  # read-only folders, such as some package caches
        for found, _, _ in os.walk(folder):
            os.chmod(found, 0o700)
        shutil.rmtree(folder)


# -- at a step --


def for_step(store: Store, name: str, chain: Chain, kind: str) -> str:
    """Return the folder in which a role of this thread works, and make it if it is missing and was never used."""
    ref = read_thread(store, name)
    folder = ref.state.folders.get(kind) if ref else None
    onward = "fork the thread to continue in a new one"
    if folder is None and chain.start.member is not None:
        return chain.start.cwd  # the member reads in the folder of its parent
    if folder is None:
        raise UsageError(f"the thread has no {kind} of its own; {onward}")
    if "removed" in folder:
        raise UsageError(f"the thread's {kind} was removed by a person; {onward}")
    path = folder["path"]
    if _is_whole(folder):
        return str(folder["cwd"])
    places = (str(step.payload.get("cwd", "")) for step in chain)
    was_worked_in = read_note(store, name) is not None or any(
        place == path or place.startswith(f"{path}/") for place in places
    )
    if not was_worked_in:
        make(kind, folder)
    elif not os.path.isdir(path):  # a folder that a person has restored is accepted
        lost = f"the thread's {kind} {quote(path)} is gone"
        if kind == "copy":
            raise UsageError(f"{lost}, and what was done there with it; {onward}")
        back = f"git -C {quote(folder['source'])} worktree add {quote(path)} {folder['branch']}"
        raise UsageError(
            f"{lost}, and what was not committed there with it; `{back}` brings back what was; {onward}"
        )
    return str(folder["cwd"])
