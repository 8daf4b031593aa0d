"""Show, merge and remove the work in a thread's own folders, which `workfolder.py` makes.

Work that exists nowhere else is removed only if a person forces its removal. A merge that fails is undone.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, TypedDict

from rolecall.agents import process
from rolecall.agents.protocol import Cancel
from rolecall.errors import (
    AgentError,
    Conflict,
    Damaged,
    Hint,
    NotFound,
    RolecallError,
    StorageError,
    UsageError,
)
from rolecall.files import git, treestate
from rolecall.files import merge as merge_files
from rolecall.files.merge import MergeCheck, MergeConflict, Merged, SetAside, Work
from rolecall.files.snapshot import Snapshot
from rolecall.files.tree import Trees, find_top
from rolecall.store.canonical import JsonObject
from rolecall.store.ids import is_thread_id
from rolecall.store.store import Store
from rolecall.threads import workfolder
from rolecall.threads.lifecycle import refuse_running
from rolecall.threads.report import plural
from rolecall.threads.seal import Sealer
from rolecall.threads.state import (
    GROUP,
    ThreadRef,
    WorkFolder,
    check_run,
    files_name,
    move,
    read_thread,
    read_threads,
)
from rolecall.threads.thread import Chain

if TYPE_CHECKING:
    from rolecall.agents.sandbox import Policy
    from rolecall.threads.view_types import FolderFindings, FolderReport

CHECK_SECONDS = 1800
"""The time limit for the check of a merge."""
MOST_OUTPUT = 20_000
"""The maximum number of bytes kept from each output stream of a check."""

# -- looking --


def show(kind: str, folder: WorkFolder) -> FolderReport:
    """Describe a recorded folder and its current state."""
    found: FolderFindings = {} if folder.is_removed else _look_into(folder)
    return {"kind": kind, **folder.dump(), "state": _state(folder), **found}


def _look_into(folder: WorkFolder) -> FolderFindings:
    shown: FolderFindings = {}
    path, is_there = folder.path, os.path.isdir(folder.path)
    try:
        if not folder.branch:
            if is_there and (began := _compare_with_start(folder)):
                trees, before, after = began
                changed = trees.changes(before, after)
                shown["changes"] = [f"{change.kind} {change.path}" for change in changed]
            elif is_there:
                shown["changes"] = _copy_changes(folder)
            return shown
        source, branch = folder.source, folder.branch
        counts = git.run(source, "rev-list", "--left-right", "--count", f"HEAD...refs/heads/{branch}").text
        behind, ahead = map(int, counts.split())
        shown |= {"into": git.branch(source), "ahead": ahead, "behind": behind}
        if is_there:
            shown |= {"checkedOut": git.branch(path), "uncommitted": git.list_uncommitted(path)}
    except RolecallError as error:  # the repository is missing or broken; the other fields can still be shown
        shown["problem"] = error.message
    return shown


def _state(folder: WorkFolder) -> str:
    is_there = os.path.isdir(folder.path)
    if folder.is_removed:
        return "half removed" if is_there else "removed"
    return "there" if is_there else "missing"


def _scan_pair(folder: WorkFolder) -> tuple[treestate.FolderState, treestate.FolderState]:
    return treestate.scan(folder.source), treestate.scan(folder.path)


def _copy_changes(folder: WorkFolder) -> list[str]:
    pair = _scan_pair(folder)
    more = ["more files than are compared"] if any(state.is_partial for state in pair) else []
    return treestate.changes(*pair) + more


def _compare_with_start(folder: WorkFolder) -> tuple[Trees, Snapshot, Snapshot] | None:
    """Return the recorder, the first files and the current files of a fork's folder. Return None for any other
    folder."""
    path, files = folder.path, folder.files
    if files is None or find_top(path) != os.path.realpath(path):
        return None
    trees = Trees(files.place)
    return trees, Snapshot(files.tree, files.repository), trees.take(path, source=folder.source)


def changed_files(folder: WorkFolder) -> list[str] | None:
    """Return the files that a thread added, changed or removed in its own folder, whether committed or not. Return None
    if the folder no longer exists."""
    if folder.is_removed or not os.path.isdir(folder.path):
        return None
    # Uncommitted changes that were in the user's folder when the fork began do not belong to the fork.
    is_of_fork = os.path.basename(folder.path) == "fork"
    began = None if folder.branch and not is_of_fork else _compare_with_start(folder)
    if began is not None:
        trees, before, after = began
        return [change.path for change in trees.changes(before, after)]
    if folder.branch:
        return _diff_from_base(folder, "--name-only", "-z").words
    return sorted(path for _, path in treestate.differences(*_scan_pair(folder)))


def diff(kind: str, folder: WorkFolder) -> str:
    """Return a unified diff of all changes, including uncommitted changes and new files."""
    if not os.path.isdir(folder.path):
        raise UsageError(f"the thread's {kind} {folder.path} does not exist")
    if folder.branch:
        return _diff_from_base(folder).out.decode("utf-8", "replace")
    if began := _compare_with_start(folder):
        trees, before, after = began
        return trees.diff(before, after)
    parts = []
    for word, path in sorted(treestate.differences(*_scan_pair(folder)), key=lambda found: found[1]):
        pair = [os.path.join(top, path) for top in (folder.source, folder.path)]
        files = [name if os.path.isfile(name) else os.devnull for name in pair]
        done = subprocess.run(  # noqa: S603 -- no shell is involved
            ["diff", "-u", "--", *files],  # noqa: S607
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
        parts.append((done.stdout or os.fsencode(f"{word} {path}\n")).decode("utf-8", "replace"))
    return "".join(parts)


def _diff_from_base(folder: WorkFolder, *options: str) -> git.GitResult:
    path = folder.path
    with tempfile.TemporaryDirectory() as scratch:
        # A private index lets the diff include untracked files without staging anything.
        index = os.path.join(scratch, "index")
        # `copy2` keeps the modification time of the index. Git trusts an index entry without reading the file only if
        # the index is newer than the file.
        shutil.copy2(os.path.join(path, git.run(path, "rev-parse", "--git-path", "index").text), index)
        git.run(path, "add", "--all", env={"GIT_INDEX_FILE": index})
        safe = ("--cached", "--no-ext-diff", "--no-textconv")
        return git.run(path, "diff", *safe, *options, folder.base, env={"GIT_INDEX_FILE": index})


class WorkSetAside(TypedDict, total=False):
    """Why a thread's work could not be merged."""

    branch: str
    """The branch that contains the work."""
    reason: str
    conflict: MergeConflict


def list_set_aside(store: Store, folder: str) -> Iterator[tuple[ThreadRef, WorkSetAside]]:
    """Yield the threads whose work could not be merged by their group or by `plan run`, each with the reason. Leave out
    threads whose work has since been merged or removed, and members of groups that still run. `folder` is a folder in
    the repository."""
    words = ("for-each-ref", "--sort=-committerdate", "--format=%(refname:lstrip=3)", "--no-merged=HEAD")
    branches = git.ask(folder, *words, f"refs/heads/{workfolder.BRANCHES}").text.split()
    known: dict[str, dict[str, JsonObject]] = {}
    for ident in filter(is_thread_id, branches):
        with suppress(NotFound, Damaged):
            ref = read_thread(store, ident)
            if ref is None:
                continue
            entry = next((one.set_aside for one in ref.state.folders.values() if one.set_aside), None)
            if ref.state.member and ref.state.parent:
                if ref.state.parent not in known:
                    known[ref.state.parent] = _entries_set_aside(store, ref.state.parent)
                entry = known[ref.state.parent].get(ident)
            # Another branch, such as the branch of the parent thread's worktree, may contain this branch.
            branch = f"{workfolder.BRANCHES}{ident}"
            options = ("--format=%(refname:short)", f"--contains={branch}", "refs/heads/")
            if entry is not None and git.ask(folder, "for-each-ref", *options).text.split() == [branch]:
                work: WorkSetAside = {}
                if "branch" in entry:
                    work["branch"] = entry["branch"]
                if "reason" in entry:
                    work["reason"] = entry["reason"]
                if "conflict" in entry:
                    work["conflict"] = entry["conflict"]
                yield ref, work


def _entries_set_aside(store: Store, parent: str) -> dict[str, JsonObject]:
    ref = read_thread(store, parent)
    if ref is None or not ref.state.is_over:
        return {}
    steps = (step for step in Chain(store, ref.head) if step.agent == GROUP)
    entries = (entry for step in steps for entry in step.output.get("members", ()))
    return {entry["id"]: entry for entry in entries if entry["status"] == "set_aside"}


# -- merging --


class FolderMerge(TypedDict):
    """The result of merging a thread's branch."""

    branch: str
    into: str
    committed: bool
    """Whether uncommitted work was committed first."""
    head: str | None
    """The commit that is checked out after the merge."""
    merged: bool
    """False if the branch was already merged."""


def merge(store: Store, ref: ThreadRef) -> FolderMerge:
    """Merge a thread's branch into the branch that is checked out where the thread was started. Commit uncommitted work
    first. Keep the worktree."""
    folder = _worktree_of(store, ref)
    source, path, branch = folder.source, folder.path, folder.branch
    work = work_of(ref, folder, Sealer(store))
    with merge_files.lock(source):
        into = merge_files.check_target(source)
        is_committed = merge_files.commit_work(work)
        before = git.commit(source, "HEAD")
        # The user asked for this merge into their own branch, so the user's hooks run as usual. `--no-ff` makes git
        # create a commit even if it could just move the branch, because the merge commit names its step and the agents'
        # commits do not.
        message = work.write_message(f"Merge {work.title}")
        words = ("merge", "--quiet", "--no-edit", "--no-ff", "-m", message, branch)
        result = git.ask(source, *words, settings=git.identity(source), with_hooks=True)
        if result.code:
            if git.commit(source, "MERGE_HEAD") is None:
                raise UsageError(
                    f"git did not begin to merge {branch} into {into}: {result.err}",
                    hint=f"{source} was not changed. Fix the problem, for example with a commit of your own, "
                    "and merge again.",
                )
            conflicts = git.ask(source, "diff", "--name-only", "--diff-filter=U", "-z").words
            git.run(source, "merge", "--abort")
            why = f"conflicts in {', '.join(conflicts)}" if conflicts else result.err
            raise UsageError(
                f"{branch} could not be merged into {into}: {why}",
                hint=f"{source} was not changed. Merge {into} into {branch} first "
                f"(`git -C {quote(path)} merge {into}`), or merge by hand: `git -C {quote(source)} merge {branch}`.",
            )
    head = git.commit(source, "HEAD")
    merged: FolderMerge = {
        "branch": branch,
        "into": into,
        "committed": is_committed,
        "head": head,
        "merged": head != before,
    }
    if head != before:
        draft = store.draft()
        draft.event(ref.id, "folder_merged", merged)
        draft.commit()
    return merged


async def queue_merge(
    store: Store,
    ref: ThreadRef,
    check: Sequence[str] = (),
    *,
    env: Mapping[str, str],
    cancel: Cancel | None = None,
) -> Merged | SetAside:
    """Merge a thread's branch as a group merges its members: if the branch conflicts or the check fails, set the work
    aside. Raise `AgentError` if `cancel` is set during the merge."""
    folder = _worktree_of(store, ref)
    run = await prepare_check(ref.id, check, cwd=ref.state.cwd or folder.source, env=env, cancel=cancel)
    try:
        result = await merge_one(folder.source, work_of(ref, folder, Sealer(store)), run, cancel)
    except UsageError as error:  # the source folder is not in a state to merge into
        _note_merge(store, ref, folder, SetAside(folder.branch, error.message), check)
        raise
    _note_merge(store, ref, folder, result, check)
    return result


def _note_merge(
    store: Store, ref: ThreadRef, folder: WorkFolder, result: Merged | SetAside, check: Sequence[str]
) -> None:
    """Record how a merge ended. If the work was set aside, record that in the thread's folder, so that the work can be
    found."""
    draft, noted = store.draft(), folder._replace(set_aside={})
    if isinstance(result, SetAside):
        details = {"branch": result.branch, "reason": result.reason}
        draft.event(ref.id, "folder_set_aside", details)
        files = [{"path": file.path, "message": file.message} for file in result.files]
        noted = folder._replace(set_aside={**details, "conflict": {"files": files}})
    elif result.commit:
        passed = {"check": list(check)} if check else {}
        draft.event(ref.id, "folder_merged", {"branch": folder.branch, "head": result.commit, **passed})
    if noted != folder:
        ref = read_thread(store, ref.id) or ref  # the thread may have moved, because a merge can take minutes
        folders = {kind: noted if one == folder else one for kind, one in ref.state.folders.items()}
        move(draft, ref, ref.state._replace(folders=folders))
    draft.commit()


async def merge_one(
    folder: str, work: Work, check: merge_files.Check | None, cancel: Cancel | None
) -> Merged | SetAside:
    """Wait for the thread's turn and merge its work. Raise `AgentError` if `cancel` is set before the merge."""
    is_stopped = cancel.is_set if cancel else lambda: False
    try:
        return await merge_files.merge(folder, work, check, is_stopped=is_stopped)
    except Conflict as error:
        raise AgentError(error.message, ending="interrupted") from error
    except StorageError as error:  # git failed
        raise UsageError(error.message, hint=error.hint) from error


def work_of(ref: ThreadRef, folder: WorkFolder, sealer: Sealer) -> Work:
    digest = ""
    with suppress(NotFound, Damaged):  # a thread that has lost nodes can still be merged, but without a seal
        digest = sealer.seal(ref.head)
    title = f"thread {ref.id}: {ref.state.title}"
    return Work(ref.id, title, folder.branch, folder.path, ref.head, digest)


def _worktree_of(store: Store, ref: ThreadRef) -> WorkFolder:
    found = ref.state.folders.values()
    folder = next((folder for folder in found if folder.branch and not folder.is_removed), None)
    if folder is None:
        by_hand = Hint("Copy the thread's changes out of its copy by hand", "diff_folder", thread=ref.id)
        in_place = f"The thread worked in {ref.state.cwd}, so its changes are already there."
        raise UsageError(
            f"thread {ref.id} has no worktree to merge", hint=by_hand if ref.state.folders else in_place
        )
    refuse_running(store, ref)
    for why in _find_newer(store, ref):
        raise UsageError(
            f"{folder.branch} cannot be merged here: {why}", hint="Merge the branch on that machine."
        )
    return folder


async def prepare_check(
    thread: str,
    command: Sequence[str],
    *,
    cwd: str,
    env: Mapping[str, str],
    cancel: Cancel | None,
    sandbox: Policy | None = None,
) -> merge_files.Check | None:
    """Return a function that runs `command` to check a merge of a thread, or None if there is no command. First end a
    check that a dead process left running."""
    if not command:
        return None
    run = check_run(thread)
    await process.end_leftovers(run)

    async def check() -> MergeCheck:
        try:
            done = await process.run(
                command,
                cwd=Path(cwd),
                env=process.add_mark(env, run),
                timeout=CHECK_SECONDS,
                cancel=cancel,
                max_output=MOST_OUTPUT,
                sandbox=sandbox,
            )
        except AgentError as error:  # the command cannot be started, which says nothing about the work
            raise UsageError(f"the check cannot run: {error.message}", hint=error.hint) from error
        if done.ending == "interrupted":
            raise done.error()
        output = "\n".join(filter(None, (done.stdout.strip(), done.stderr.strip()[-MOST_OUTPUT:])))
        reason = f"the check failed: {done.reason.partition(': ')[0]}"
        return MergeCheck(tuple(command), done.ending == "completed", reason, output)

    return check


# -- removing --


class RemovedFolders(TypedDict):
    removed: list[str]
    kept: list[str]
    """The branches that were kept because they are checked out somewhere else."""


def remove(store: Store, ref: ThreadRef, *, force: bool = False) -> RemovedFolders:
    """Remove a thread's own folders and branches. Without `force`, raise `UsageError` if that would lose work that
    exists nowhere else. The removal is recorded first, so calling this function again finishes an interrupted
    removal."""
    refuse_running(store, ref)
    folders = ref.state.folders
    for why in () if force else _find_newer(store, ref):
        raise UsageError(
            f"the folders of thread {ref.id} cannot be removed here: {why}",
            hint="Remove them on that machine. With force, they are removed here, and the thread cannot continue "
            "on any machine.",
        )
    if losses := [] if force else list(_find_losses(store, ref)):
        raise UsageError(
            f"removing the folders of thread {ref.id} would lose {' and '.join(losses)}",
            hint=Hint("Keep a worktree's work, or remove it all", "merge_or_force", thread=ref.id),
        )
    if any(not folder.is_removed for folder in folders.values()):
        gone = {kind: folder._replace(is_removed=True) for kind, folder in folders.items()}
        state = ref.state._replace(folders=gone)
        draft = store.draft()
        draft.event(ref.id, "folder_removed", {"folders": state.dump_folders(), "force": force})
        move(draft, ref, state)
        for kind in folders:
            if (shared := store.ref(files_name(ref.id, kind))) is not None:
                draft.move(shared.name, shared)
        draft.commit(durable=True)
    removed = [folder.path for folder in folders.values() if os.path.lexists(folder.path)]
    for folder in folders.values():
        workfolder.discard(folder)
    branches = [(folder.source, folder.branch) for folder in folders.values() if folder.branch]
    # Git refuses to delete a branch that is checked out elsewhere.
    return {"removed": removed, "kept": [branch for top, branch in branches if git.has_branch(top, branch)]}


class PrunedThread(TypedDict):
    """An ended thread whose folders and branches were removed."""

    thread: str
    folders: list[str]
    branches: list[str]


class UnprunedThread(TypedDict):
    """A thread whose folders or branches were kept, with the reason."""

    thread: str
    why: str


class PrunedFolders(TypedDict):
    dryRun: bool
    """Whether nothing was removed, and `removed` lists what would be removed."""
    removed: list[PrunedThread]
    kept: list[UnprunedThread]


def prune(store: Store, *, is_dry: bool = False) -> PrunedFolders:
    """Remove the folders and branches of ended threads, including discarded threads, whose work has been merged. Report
    the other threads with the reason for keeping their folders."""
    removed: list[PrunedThread] = []
    kept: list[UnprunedThread] = []
    for ref in read_threads(store):
        folders = {kind: folder for kind, folder in ref.state.folders.items() if _state(folder) != "removed"}
        if not folders:
            continue
        try:
            if why := _reason_to_keep(store, ref):
                kept.append({"thread": ref.id, "why": why})
                continue
            held = [] if is_dry else remove(store, ref)["kept"]
        except RolecallError as error:  # the repository is missing, or a process runs the thread
            kept.append({"thread": ref.id, "why": error.message})
            continue
        paths = [folder.path for folder in folders.values()]
        branches = [folder.branch for folder in folders.values() if folder.branch]
        gone = [branch for branch in branches if branch not in held]
        removed.append({"thread": ref.id, "folders": paths, "branches": gone})
        for branch in held:
            kept.append({"thread": ref.id, "why": f"the branch {branch} is checked out somewhere else"})
    return {"dryRun": is_dry, "removed": removed, "kept": kept}


def _reason_to_keep(store: Store, ref: ThreadRef) -> str:
    if not ref.state.has_ended and any(not one.is_removed for one in ref.state.folders.values()):
        return f"the thread is {ref.state.status} and can still continue"
    if newer := next(_find_newer(store, ref), ""):
        return newer
    return " and ".join(_find_losses(store, ref, is_merge_needed=True))


def _find_newer(store: Store, ref: ThreadRef) -> Iterator[str]:
    """Yield a message for each of the thread's folders whose newest files are on another machine."""
    for kind, folder in ref.state.folders.items():
        if not folder.is_removed and (why := workfolder.find_newer(store, ref.id, kind, folder)):
            yield why


def _find_losses(store: Store, ref: ThreadRef, *, is_merge_needed: bool = False) -> Iterator[str]:
    """Yield a description of each piece of work that removing a thread's folders would lose. With `is_merge_needed`,
    work that only another thread's branch contains counts as lost."""
    for folder in ref.state.folders.values():
        path, is_there = folder.path, os.path.isdir(folder.path)
        # If machines share the store, a folder recorded as removed can still exist on this machine.
        if folder.is_removed and not (store.is_shared and is_there):
            continue
        if not folder.branch:
            if is_there and (changes := _copy_changes(folder)):
                yield f"the differences in {path} ({', '.join(changes[:5])}{', …' if changes[5:] else ''})"
            continue
        if is_there and (left := git.list_uncommitted(path)):
            yield f"{plural(len(left), 'uncommitted change')} in {path}"
        for nested in git.list_nested(path) if is_there else ():
            yield f"the repository {nested} in {path}"

        # The thread's commits that no other branch contains.
        source, branch = folder.source, folder.branch
        heads = [git.commit(source, f"refs/heads/{branch}"), git.commit(path, "HEAD") if is_there else None]
        if not (ours := [head for head in heads if head]):
            continue
        apart_from = f"{workfolder.BRANCHES}*" if is_merge_needed else branch
        others = ["--not", f"--exclude={apart_from}", "--branches", "--tags", "--remotes"]
        if checked_out := git.commit(source, "HEAD"):
            others.append(checked_out)
        if count := int(git.run(source, "rev-list", "--count", *ours, *others).text):
            place = "not merged into any branch" if is_merge_needed else "not on any other branch"
            yield f"{plural(count, 'commit')} that {'is' if count == 1 else 'are'} {place}"
