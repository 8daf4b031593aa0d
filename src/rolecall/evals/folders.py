"""The work folders of an evaluation: a fresh one for each thread, with the files of its task."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path

from rolecall.agents import process
from rolecall.agents.protocol import Cancel
from rolecall.errors import AgentError, NotFound, UsageError
from rolecall.evals.records import StoredTask
from rolecall.evals.suite import SECONDS
from rolecall.evals.tasks import EvalTask, KnownAnswer, describe_command
from rolecall.files import git
from rolecall.files.snapshot import Snapshot
from rolecall.files.tree import Trees
from rolecall.store import scratch
from rolecall.store.store import Store
from rolecall.threads import kept_files

_UPLOAD = "git -c uploadpack.allowAnySHA1InWant=true upload-pack"
"""A program for `--upload-pack` with which a local repository serves a commit that is not the tip of a branch. It
writes nothing to that repository."""


_EMPTY = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
"""The id of the empty tree, which git always knows."""
_COMMITTED = {"NAME": "Rolecall", "EMAIL": "rolecall@localhost", "DATE": "2000-01-01T00:00:00Z"}
_COMMITTER = {
    f"GIT_{who}_{what}": value for who in ("AUTHOR", "COMMITTER") for what, value in _COMMITTED.items()
}
"""The committer's variables, which give the commit the same id in every folder."""


def take_folder(trees: Trees, folder: str, *, source: str) -> Snapshot:
    """Record the files of a folder, independently of the repository that contains it. `source` determines in which of
    Rolecall's repositories the files are recorded."""
    with scratch.folder("rolecall-eval-") as place:
        copy = place / "files"
        shutil.copytree(folder, copy, symlinks=True, ignore=shutil.ignore_patterns(".git"))
        return trees.take(str(copy), source=source)


def find_tree(store: Store, task: str, tree: str) -> Snapshot:
    """Return the recorded files that a task names by the id of their tree."""
    for repository, known in kept_files.name_trees(store, skip_damaged=True).items():
        if tree in known:
            return Snapshot(tree, repository)
    raise NotFound(
        f"the task {task!r}: no thread of this store has recorded the tree {tree[:12]}",
        hint="Import the bundle that contains the tree, or name a folder.",
    )


def find_commit(task: EvalTask, cache: str) -> str:
    """Return the full id of the commit with which a task begins. Its history is fetched only once."""
    given = task.files
    commit = git.commit(given.repository, given.commit) if os.path.isdir(given.repository) else given.commit
    if commit is None or (len(commit) not in (40, 64)):
        hint = "Name a commit of that repository. For a URL, give the full commit id."
        raise UsageError(f"the task {task.id!r}: {given.repository} has no commit {given.commit}", hint=hint)
    _fetch(given.repository, commit, cache)
    return commit


def _fetch(repository: str, commit: str, cache: str) -> str:
    """Return a repository that contains only a commit and its history, because an agent must not find the solution in a
    later commit."""
    name = sha256(f"{repository}\0{commit}".encode()).hexdigest()[:24]
    ours = os.path.join(cache, f"{name}.git")
    if os.path.isdir(ours):
        return ours
    with _making(ours) as made:
        git.run(cache, "init", "--quiet", "--bare", *_format_words(commit), made)
        is_local = os.path.isdir(repository)
        words = ("--upload-pack", _UPLOAD) if is_local else ()
        found = git.ask(made, "fetch", "--quiet", "--no-tags", *words, repository, commit)
        if found.code:
            hint = "Check that the repository has the commit and that you can reach the repository."
            raise UsageError(
                f"the commit {commit[:12]} cannot be fetched from {repository}: {found.err}", hint=hint
            )
        git.run(made, "update-ref", "refs/heads/main", commit)
    return ours


def _copy(files: Snapshot, trees: Trees, cache: str) -> str:
    """Return a repository that contains only these recorded files. The repository in which they are recorded also
    contains the files of judges and of other tasks."""
    ours = os.path.join(cache, f"{files.tree}.git")
    if os.path.isdir(ours):
        return ours
    with _making(ours) as made:
        git.run(cache, "init", "--quiet", "--bare", *_format_words(files.tree), made)
        pack = os.path.join(made, "objects", "pack", "pack")
        env = {"GIT_DIR": os.path.dirname(trees.objects_of(files))}
        git.run(cache, "pack-objects", "--quiet", "--revs", pack, env=env, stdin=f"{files.tree}\n".encode())
    return ours


@contextmanager
def _making(path: str) -> Iterator[str]:
    """Yield a path at which to make a folder, which is renamed to `path` once it is complete."""
    cache = os.path.dirname(path)
    os.makedirs(cache, exist_ok=True)
    with scratch.folder(".making-", cache) as place:
        made = str(place / "made")
        yield made
        with suppress(OSError):  # another process was faster
            os.rename(made, path)


def fill(folder: str, files: Snapshot | None, trees: Trees, cache: str) -> None:
    """Write recorded files into a folder, after emptying it. The folder becomes a repository with these files in its
    only commit, because many agents work only in a repository."""
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    if files is not None:
        trees.check_out(files, folder)
    tree = files.tree if files else _EMPTY
    _begin_repository(folder, _copy(files, trees, cache) if files else "", tree)
    commit = git.run(folder, "commit-tree", tree, "-m", "The files of the task", env=_COMMITTER).text
    git.run(folder, "update-ref", "refs/heads/main", commit)
    git.run(folder, "read-tree", commit)


def fill_from(folder: str, repository: str, commit: str, cache: str) -> None:
    """Write the files of a commit into a folder, after emptying it, together with the history of the commit."""
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    _begin_repository(folder, _fetch(repository, commit, cache), commit)
    git.run(folder, "reset", "--quiet", "--hard", commit)


def _begin_repository(folder: str, lender: str, ident: str) -> None:
    """Make a folder a repository. If `lender` is given, the repository borrows the objects of that repository. `ident`
    is the id of one of the objects."""
    git.run(folder, "init", "--quiet", "--template=", "--initial-branch=main", *_format_words(ident))
    if lender:
        alternates = os.path.join(folder, ".git", "objects", "info", "alternates")
        os.makedirs(os.path.dirname(alternates), exist_ok=True)
        with open(alternates, "w", encoding="utf-8") as file:
            file.write(f"{os.path.join(lender, 'objects')}\n")


def _format_words(ident: str) -> tuple[str, ...]:
    """Return the options of `git init` for a repository with ids like this one."""
    return ("--object-format=sha256",) if len(ident) == 64 else ()


def fill_task(folder: str, task: StoredTask, trees: Trees, cache: str) -> None:
    """Write the files of a task into a folder, after emptying it."""
    if task.repository:
        fill_from(folder, task.repository, task.commit, cache)
    else:
        fill(folder, task.files, trees, cache)


async def set_up(folder: str, task: StoredTask, *, env: Mapping[str, str], cancel: Cancel) -> None:
    """Run the task's setup command in its folder. Raise UsageError if the command fails."""
    if not task.setup:
        return
    try:
        ended = await process.run(task.setup, cwd=Path(folder), env=env, timeout=SECONDS, cancel=cancel)
    except AgentError as error:
        raise UsageError(f"the setup of the task {task.id!r} cannot run: {error.message}") from error
    if ended.code or ended.ending != "completed":
        # the reason already contains the error output
        said = "" if ended.stderr.strip() else ended.stdout.strip()[-500:]
        why = f"{ended.reason}: {said}" if said else ended.reason
        hint = f"It was: {describe_command(task.setup)}"
        raise UsageError(f"the setup of the task {task.id!r} failed: {why}", hint=hint)


async def prepare(
    folder: str, task: StoredTask, trees: Trees, cache: str, *, env: Mapping[str, str], cancel: Cancel
) -> None:
    """Make a folder with the files of a task and run the setup there, unless that was already done."""
    ready = f"{folder}.ready"
    if os.path.exists(ready):
        return
    await asyncio.to_thread(fill_task, folder, task, trees, cache)
    await set_up(folder, task, env=env, cancel=cancel)
    Path(ready).touch()


def clear(folder: str) -> None:
    """Remove the files of a folder whose thread has ended, but keep the repository, because snapshots use its
    objects."""
    with suppress(FileNotFoundError):
        os.unlink(f"{folder}.ready")
    for name in os.listdir(folder) if os.path.isdir(folder) else ():
        path = os.path.join(folder, name)
        if name != ".git" and os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path, ignore_errors=True)
        elif name != ".git":
            os.unlink(path)


async def apply_answer(folder: str, answer: KnownAnswer, *, env: Mapping[str, str], cancel: Cancel) -> None:
    """Apply a known answer to the files of a task. Raise UsageError if that fails."""
    if answer.folder:
        await asyncio.to_thread(shutil.copytree, answer.folder, folder, symlinks=True, dirs_exist_ok=True)
    if answer.patch:
        applied = git.ask(folder, "apply", "--whitespace=nowarn", answer.patch)
        if applied.code:
            raise UsageError(f"the patch {answer.patch} does not apply: {applied.err}")
    if answer.command:
        try:
            ended = await process.run(
                answer.command, cwd=Path(folder), env=env, timeout=SECONDS, cancel=cancel
            )
        except AgentError as error:
            raise UsageError(error.message) from error
        if ended.code:
            raise UsageError(f"{' '.join(answer.command)!r} failed: {ended.reason}")
