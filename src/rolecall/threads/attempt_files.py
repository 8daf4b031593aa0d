"""The files in the work folder of an attempt, before and after the role's turn."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from rolecall.errors import RolecallError
from rolecall.files import git, treestate
from rolecall.files.snapshot import MOST_COMMITS, Snapshot, StepTree
from rolecall.files.tree import TooManyFiles, Trees, find_head, find_top
from rolecall.settings.repository import root_around
from rolecall.threads.loaded_thread import LoadedThread

CHANGED_ANYWAY = "is read-only, but the work folder has changed"
"""Part of the remark that reports a read-only role that changed files."""


@dataclass
class AttemptFiles:
    """A recorder of the files in a work folder, which can also restore recorded files."""

    trees: Trees | None
    """The recorder of snapshots; if None, nothing is recorded."""
    workdir: str
    loaded: LoadedThread
    role: str
    is_first: bool
    """Whether the thread has no step yet."""
    remark: Callable[[str], None]
    _watched: tuple[bool, treestate.FolderState] | None = None
    """Set for a read-only role: whether a snapshot contains the files from before the role's turn, and the state of the
    files that the snapshot omits."""

    async def find(self) -> StepTree | None:
        """Record the files before the role's turn."""
        found = await self._take()
        return StepTree(found, found, head=find_head(self._top)) if found else None

    async def leave(self, known: StepTree | None, since: int) -> StepTree | None:
        """Record the files after the role's turn and the commits made in the repository after the time `since`. Report
        changes by a read-only role. Return None if the files from before the turn (`known`) were not recorded, or if
        the role's changes cannot be determined."""
        tree = await self._compare(known) if known else None
        watched, self._watched = self._watched, None
        if watched is not None and watched[0] == (tree is not None):  # unrecorded files cannot be compared
            found = treestate.changes(watched[1], self._look_at_rest(tree))
            if tree is not None:
                named = [f"{one.kind} {one.path}" for one in tree.changed]
                found = treestate.shorten(found + named, tree.more)
            if found:
                self.remark(f"{self.role} {CHANGED_ANYWAY}: {', '.join(found)}")
        if tree is None or known is None or (head := find_head(self._top)) in ("", known.head):
            return tree
        begun = [f"^{known.head}"] if known.head else []
        words = ("rev-list", f"--max-count={MOST_COMMITS}", f"--max-age={since // 1000}", head, *begun)
        made = await asyncio.to_thread(git.ask, self._top, *words)
        return tree._replace(commits=tuple(made.text.split()) if made.code == 0 else ())

    async def _compare(self, known: StepTree) -> StepTree | None:
        left = await self._take()
        if left is None or self.trees is None:  # reporting no change would be wrong
            return None
        if left.tree == known.found.tree:
            return StepTree(known.found, left, head=known.head)
        try:
            changed = await asyncio.to_thread(self.trees.changes, known.found, left)
        except (RolecallError, OSError) as error:  # another machine has recorded the earlier tree
            self.remark(f"the changes of this step are not known: {error}")
            return None
        return StepTree(known.found, left, tuple(changed), head=known.head)

    async def _take(self) -> Snapshot | None:
        if self.trees is None:
            return None
        try:
            known = self.trees.recall(self._top, source=self._source)
            return known or await asyncio.to_thread(self.trees.take, self._top, source=self._source)
        except (RolecallError, OSError) as error:
            if self.is_first or not (isinstance(error, TooManyFiles) and error.is_known):
                self.remark(f"the files of this step are not recorded: {error}")
            return None

    @cached_property
    def _source(self) -> str | None:
        """The folder whose snapshots and repository are used, if not the work folder. A copy uses the folder it was
        copied from, because the copy's own repository is removed along with the copy. A fork outside git uses the
        folder where the thread was started."""
        start, kind = self.loaded.chain.start.cwd, self.loaded.workdir_of(self.role)
        is_fork = kind == "shared" and self.loaded.cwd != start
        return start if kind == "copy" or (is_fork and root_around(self.workdir) is None) else None

    @cached_property
    def below_top(self) -> str:
        """The work folder, relative to the folder that its snapshots cover."""
        return os.path.relpath(os.path.realpath(self.workdir), self._top)

    @cached_property
    def _top(self) -> str:
        return find_top(self.workdir)

    # -- read-only roles --

    def watch(self, tree: StepTree | None, *, must_stay: bool) -> None:
        """If `must_stay`, prepare `leave` to report changes by a role that must not write. Snapshots show most changes;
        without a snapshot, the whole folder is compared."""
        self._watched = (tree is not None, self._look_at_rest(tree)) if must_stay else None

    def _look_at_rest(self, tree: StepTree | None) -> treestate.FolderState:
        """Return the state of the files that the snapshots do not cover."""
        if tree is None:
            return treestate.take(self.workdir)
        return treestate.take_rest(self.workdir, tree.left.omitted)

    # -- writing --

    async def put_back(self, found: Snapshot) -> bool:
        """Restore the files of a snapshot. Return False if no snapshots are recorded on this machine."""
        if self.trees is None:
            return False
        await asyncio.to_thread(self.trees.restore, found, self.workdir, source=self._source)
        return True

    async def repeat_changes(self, tree: StepTree, *, is_begun: bool) -> str:
        """Apply a step's changes to the folder. `is_begun` means that a process may have died while applying them. If
        the changes cannot be applied, for example because the folder has different files, undo those already applied
        and return the reason."""
        try:
            reason = await self._advance(tree.found, tree.left, is_begun=is_begun)
        except (RolecallError, OSError) as error:
            reason, is_begun = str(error), True
        return await self.undo_changes(tree, reason) if reason and is_begun else reason

    async def undo_changes(self, tree: StepTree, reason: str) -> str:
        """Restore the files from before a step, in a folder that may have some of the step's changes. Return `reason`,
        extended if some changes could not be undone."""
        try:
            problem = await self._advance(tree.left, tree.found, is_begun=True)
        except (RolecallError, OSError) as error:
            problem = str(error)
        return f"{reason}; some of the step's changes might still be in the folder" if problem else reason

    async def _advance(self, before: Snapshot, after: Snapshot, *, is_begun: bool) -> str:
        if self.trees is None:
            return "files are not recorded"
        return await asyncio.to_thread(
            self.trees.advance, before, after, self.workdir, source=self._source, is_begun=is_begun
        )
