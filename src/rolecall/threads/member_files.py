"""The files of a group's members: the folders in which members begin, and the queue that merges their work.

A member's worktree begins at the parent's current state: at the branch of the parent's own worktree, including
uncommitted changes, or at the commit that is checked out where the parent was started. If the parent has a worktree,
members that must not write work in that worktree. The queue merges members' work into the parent's worktree or into the
folder where the parent was started, in the order in which the members finished. Merging again is safe, so recovery from
a crash needs no extra record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from rolecall.agents.confinement import confine
from rolecall.agents.protocol import Cancel
from rolecall.errors import UsageError
from rolecall.files import git, merge
from rolecall.files.merge import Merged, SetAside
from rolecall.settings.capabilities import must_not_write
from rolecall.threads import workfolder
from rolecall.threads.handover import merge_one, prepare_check, work_of
from rolecall.threads.loaded_thread import LoadedThread, Outputs
from rolecall.threads.seal import Sealer
from rolecall.threads.setup import Setup
from rolecall.threads.state import ThreadRef, WorkFolder
from rolecall.workflow import command
from rolecall.workflow.model import Group, member_workdir, sandbox_of

if TYPE_CHECKING:
    from rolecall.threads.view_types import GroupMember


class MemberPlace(NamedTuple):
    """The place where a member works: its own folders or, if it has none, `cwd`."""

    cwd: str
    folders: Mapping[str, WorkFolder] = {}


class MemberFiles:
    def __init__(self, setup: Setup, loaded: LoadedThread, parent: ThreadRef, role: str) -> None:
        """`role` is the role that the group plays for the thread `parent`."""
        self._setup = setup
        self._loaded = loaded
        self._parent = parent
        self._role = role
        self._group = loaded.workflow.roles[role].group or Group()
        self._plans: dict[str, WorkFolder] = {}
        """The plan of the first member's folder of each kind. The folders of other members begin in the same way."""

    # -- folders --

    def plan(self, member: str, role: str) -> MemberPlace:
        """Decide where a new member that plays `role` will work, without making its folders yet."""
        cwd, kind = self._loaded.chain.start.cwd, member_workdir(self._loaded.workflow, self._role, role)
        if kind == "shared":
            return MemberPlace(self._loaded.cwd)
        workdir, own = self._own(kind)
        make_own = partial(workfolder.for_step, self._setup.store, self._loaded, workdir)
        if own is not None and must_not_write(self._loaded.workflow.roles[role].capabilities):
            return MemberPlace(make_own())
        if kind not in self._plans:
            if own is not None and kind == "worktree":
                make_own()
                merge.commit_work(work_of(self._parent, own, Sealer(self._setup.store)))
            self._plans[kind] = workfolder.plan(kind, member, cwd=cwd, work=self._setup.work, parent=own)
            if self._group.merge == "queue":
                merge.check_ready(self._find_target()[0])
        return MemberPlace(cwd, {kind: workfolder.plan_like(self._plans[kind], member)})

    def _own(self, kind: str) -> tuple[str, WorkFolder | None]:
        """Return the parent's own folder from which members' folders of this kind begin: a folder of the same kind, or
        the folder that the roles of a fork share. The first value is the `workdir` of the roles that work in that
        folder."""
        folders = self._parent.state.folders
        for workdir, folder in ((kind, folders.get(kind)), ("shared", folders.get("fork"))):
            if folder and not folder.is_removed and (kind != "worktree" or folder.branch):
                return workdir, folder
        return kind, None

    # -- merging --

    async def merge(self, members: Mapping[int, ThreadRef], cancel: Cancel) -> dict[int, Merged | SetAside]:
        """Merge the work of members in the order in which they finished. `members` maps numbers to threads. Raise
        `UsageError` before anything is merged if the folder has uncommitted changes in files that members changed.
        Raise `AgentError` if `cancel` is set before all work is merged."""
        if self._group.merge != "queue":
            return {}
        order = sorted(members.items(), key=lambda one: (one[1].ref.updated, one[0]))
        sealer = Sealer(self._setup.store)
        works = {
            number: work_of(ref, ref.state.folders["worktree"], sealer)
            for number, ref in order
            if "worktree" in ref.state.folders  # a member that only reads has no worktree
        }
        folder, cwd = self._find_target()
        await asyncio.to_thread(merge.refuse_overlaps, folder, works.values())

        env = self._setup.environment_of(self._loaded.workflow.roles[self._role])
        words = command.expand(self._group.check, Outputs(self._loaded, {}).get) if self._group.check else ()
        policy = confine(
            sandbox_of(self._loaded.workflow, self._role), cwd, environment=env, private=self._setup.private,
            layers=self._setup.layers,
        )  # fmt: skip
        check = await prepare_check(self._parent.id, words, cwd=cwd, env=env, cancel=cancel, sandbox=policy)
        results: dict[int, Merged | SetAside] = {}
        for number, work in works.items():
            results[number] = result = await merge_one(folder, work, check, cancel)
            body: dict[str, Any] = {"number": number, "thread": work.thread, "branch": work.branch}
            if isinstance(result, SetAside):
                kind, body = "member_set_aside", {**body, "reason": result.reason}
            else:
                kind, body = "member_merged", {**body, "commit": result.commit}
            draft = self._setup.store.draft()
            draft.event(self._parent.id, kind, body)
            draft.commit()
            self._setup.watch(kind, body)
            await asyncio.sleep(0)  # git blocks the event loop, which must renew the lease in between
        return results

    def _find_target(self) -> tuple[str, str]:
        """Return the folder that members' work is merged into, and the folder within it where the check runs."""
        workdir, own = self._own("worktree")
        if own is not None:
            kind = "fork" if workdir == "shared" else workdir
            if why := workfolder.find_newer(self._setup.store, self._parent.id, kind, own):
                raise UsageError(why, hint="Let that machine take the step.")
            return own.path, own.cwd
        cwd = self._loaded.chain.start.cwd
        return git.run(cwd, "rev-parse", "--show-toplevel").text, cwd


def note_result(member: GroupMember, result: Merged | SetAside) -> None:
    """Note in a group's output how the work of a member was merged or set aside."""
    if isinstance(result, SetAside):
        member["status"], member["reason"] = "set_aside", result.reason
        member["conflict"] = result.as_json()
    elif result.left:
        member["reason"] = f"what changed during its merge is on the branch {result.left}"
