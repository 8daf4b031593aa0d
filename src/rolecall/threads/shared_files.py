"""The files in a thread's own folder, sent through the store so that any machine can take the thread's next step.

The ref `files/<thread>/<kind>` leads to the packs that make up the folder as the thread last left it. The state of the
ref contains the folder's tree, the commit of its branch, and the id and host of the newest copy. Next to each copy, a
file called its mark contains the id of that copy. A machine whose copy is not the one named in the ref fetches the
files and then names its own copy in the ref. Only the machine with the newest copy therefore uses, merges or removes
it. Only recorded files are replaced: if a person, or a role whose process died, has changed an older copy, the fetch
fails.

If a thread's files are too large or were not recorded, the thread stays on its machine from then on, and the ref says
why.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import time
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from contextlib import suppress
from shlex import quote
from typing import Any, NamedTuple

from rolecall.errors import RolecallError, UsageError
from rolecall.files import git, tree_pack
from rolecall.files.snapshot import Snapshot
from rolecall.files.tree import Trees, find_top, hold, mark_taken
from rolecall.store import atomic, holder
from rolecall.store.backend import Ref
from rolecall.store.canonical import JsonObject
from rolecall.store.store import Draft, Store
from rolecall.threads import workfolder
from rolecall.threads.loaded_thread import LoadedThread
from rolecall.threads.state import FirstFiles, WorkFolder, files_name, read_note
from rolecall.threads.thread import FILES_SCHEMA

MOST_BYTES = 32 * 1024**2
"""The maximum number of bytes that a step sends."""
_CHUNK = 192 * 1024
"""The number of bytes in one node."""
_BATCH = 16
"""The number of nodes in one transaction."""
_RESTART = 20
"""The number of sends after which the next send contains all differences from the folder's first files, so that it does
not depend on earlier sends."""
_MOST_AT_RESTART = 4 * 1024**2
"""The maximum number of bytes of such a send. If it would be larger, the send still depends on earlier sends."""


class SentFiles(NamedTuple):
    """The next move of the folder's ref."""

    target: str | None
    state: JsonObject
    size: int = 0
    ms: int = 0

    @property
    def reason(self) -> str:
        """Why the thread stays on its machine, or empty if it does not have to."""
        return str(self.state.get("reason", ""))


class Fetched(NamedTuple):
    """A record that the folder was made, or updated, with files from another machine. The ref keeps this record for a
    process that takes over the step."""

    text: str = ""
    """The remark for the step, or empty if nothing was fetched for this step."""
    head: str = ""
    """The head that the step extends."""
    note: int = 0
    """The version of the note that an attempt on the other machine wrote; the changes of that attempt are lost."""


class SharedFolder:
    """A thread's own folder, in a store that several machines share."""

    def __init__(self, store: Store, thread: str, kind: str, folder: WorkFolder, trees: Trees | None) -> None:
        """Without `trees`, files are neither sent nor fetched."""
        self._store = store
        self._name = files_name(thread, kind)
        self._kind = kind
        self._folder = folder
        self._trees = trees if trees is not None and trees.is_shared else None
        self._ref = store.ref(self._name)

    @property
    def is_new(self) -> bool:
        """Whether nothing has been sent yet."""
        return self._ref is None

    # -- sending --

    async def send(self, snapshot: Snapshot | None, workdir: str) -> SentFiles | None:
        """Store what other machines need to recreate the folder. Return None if they already have it, or if the thread
        stays on this machine anyway. `snapshot` covers the work folder, which is not the whole folder if a role works
        in a part of it or elsewhere."""
        known = self._ref.state if self._ref else {}
        if "reason" in known or (self._ref is None and self._trees is None):
            return None
        if self._trees is None or snapshot is None:
            reason = "its files are not recorded" if self._trees else "sharing is switched off"
            return self._refuse(reason) if self._ref else None
        if (branch := self._folder.branch) and (found := git.branch(self._folder.path)) != branch:
            return self._refuse(f"{found or 'no branch'} is checked out in its worktree instead of {branch}")
        began = time.monotonic()
        if find_top(workdir) != os.path.realpath(self._folder.path):
            try:
                path, source = self._folder.path, self._folder.source
                snapshot = await asyncio.to_thread(self._trees.take, path, source=source)
            except (RolecallError, OSError) as error:
                return self._refuse(str(error))
        head = git.commit(self._folder.path, "HEAD") or "" if self._folder.branch else ""
        if (known.get("tree"), known.get("head", "")) == (snapshot.tree, head):
            return None
        try:
            packs, has_all = await asyncio.to_thread(self._pack_next, self._trees, snapshot, head, known)
            objects, commits = (self._put(pack) for pack in packs)
        except (RolecallError, OSError) as error:  # too large, git failed, or the server has no room
            return self._refuse(str(error))
        at = _describe(snapshot.tree, head)
        previous = {"previous": self._ref.target} if self._ref and not has_all else {}
        draft = self._store.draft()
        target = draft.put_as(FILES_SCHEMA, {**at, "objects": objects, "commits": commits, **previous})
        draft.commit()
        state: dict[str, Any] = {**at, "repository": snapshot.repository, **self._name_copy()}
        if "fetched" in known:
            state["fetched"] = known["fetched"]
        if not has_all:
            state["more"] = known.get("more", 0) + 1
        if snapshot.omitted:
            state["omitted"] = list(snapshot.omitted[:20])
        if os.path.exists(os.path.join(self._folder.path, ".git")):
            state["git"] = True  # a copy has its own repository, which is not sent
        return SentFiles(target, state, sum(map(len, packs)), round((time.monotonic() - began) * 1000))

    def _refuse(self, reason: str) -> SentFiles:
        return SentFiles(None, {"reason": reason, **self._name_copy()})

    def _name_copy(self) -> dict[str, str]:
        """Describe this machine's copy of the folder as the state of the ref does."""
        mark = workfolder.read_mark(self._folder.path)
        if "copy" not in mark:
            # The mark is written before the ref names the copy, so that even after a crash the ref never names a
            # missing copy.
            mark = {"copy": os.urandom(8).hex()}
            self._write_mark(mark)
        return {"copy": mark["copy"], "host": holder.name_of_host(holder.process(os.getpid()))}

    def _pack_next(
        self, trees: Trees, snapshot: Snapshot, head: str, known: JsonObject
    ) -> tuple[tuple[bytes, bytes], bool]:
        """Return the packs of the next send, and whether they are independent of earlier packs."""
        if not known:
            return self._pack(trees, snapshot, head, {}, MOST_BYTES), True
        if known.get("more", 0) % _RESTART == _RESTART - 1:
            with suppress(tree_pack.TooLarge):
                return self._pack(trees, snapshot, head, {}, _MOST_AT_RESTART), True
        return self._pack(trees, snapshot, head, known, MOST_BYTES), False

    def _pack(
        self, trees: Trees, snapshot: Snapshot, head: str, known: JsonObject, most: int
    ) -> tuple[bytes, bytes]:
        """Return two packs: the parts of the tree, and of the commits up to `head`, that machines with the `known`
        objects lack."""
        ours = os.path.join(trees.place, snapshot.repository)
        known_commits = [*filter(None, (self._folder.base, known.get("head")))]
        commits = b""
        if head and head not in known_commits:
            commits = tree_pack.write_pack(ours, [head], without=known_commits, most=most)
            known_commits.append(head)
        known_trees = [f"{commit}^{{tree}}" for commit in known_commits]
        known_trees += [known["tree"]] if known else []
        rest = most - len(commits)
        return tree_pack.write_pack(ours, [snapshot.tree], without=known_trees, most=rest), commits

    def _put(self, pack: bytes) -> list[str]:
        ids = []
        for batch in range(0, len(pack), _BATCH * _CHUNK):
            draft = self._store.draft()
            for at in range(batch, min(len(pack), batch + _BATCH * _CHUNK), _CHUNK):
                ids.append(draft.put_text(b64encode(pack[at : at + _CHUNK]).decode()))
            draft.commit()
        return ids

    def add(self, draft: Draft, sent: SentFiles) -> None:
        """Add the move of the ref to a draft."""
        draft.move(self._name, self._ref, sent.target, sent.state)

    def mark(self, ref: Ref) -> None:
        """Record in the folder's mark that the folder matches the moved ref."""
        self._ref, state = ref, ref.state
        self._write_mark({"copy": state["copy"], **_describe(state.get("tree", ""), state.get("head", ""))})

    def _write_mark(self, mark: Mapping[str, str]) -> None:
        atomic.replace(workfolder.shared_mark(self._folder.path), json.dumps(mark).encode())

    # -- fetching --

    async def fetch(self, head: str, note: int) -> Fetched:
        """Bring the folder to the state in which the thread left it on another machine, for the step that extends
        `head`. `note` is the version of the note of that step's attempt. Raise `UsageError` if this fails, or if
        something in the folder would be lost. Git runs in another operating-system thread, because the lease must be
        renewed meanwhile."""
        ref, path, trees = self._ref, self._folder.path, self._trees
        if ref is None:
            return Fetched()
        if workfolder.is_newest(path, ref.state.get("copy", "")) and (os.path.isdir(path) or not ref.target):
            before = Fetched(*ref.state.get("fetched", ()))
            return before if before.head == head else Fetched()
        mark, state = workfolder.read_mark(path), ref.state
        if ref.target is None or trees is None:
            why = state.get("reason") or "sharing is switched off on this machine (trees.share)"
            host = state.get("host", "another machine")
            raise UsageError(
                f"the newest files of {path} are on {host} and cannot be fetched: {why}",
                hint="Let that machine take the step.",
            )
        is_remains = mark.get("from") == "" and not workfolder.is_whole(self._folder)
        is_there = os.path.isdir(path) and not is_remains
        began = time.monotonic()
        try:
            if is_there:  # git must not treat the folder as part of another repository
                is_worktree = os.path.exists(os.path.join(path, ".git"))
                if find_top(path) != os.path.realpath(path) or (self._folder.branch and not is_worktree):
                    raise UsageError(
                        "the folder does not belong to the thread; copy what you need from it, then remove it"
                    )
            sent = [self._store.get(ref.target).payload]  # newest first
            while previous := sent[-1].get("previous"):
                sent.append(self._store.get(previous).payload)
            size = 0
            for entry in reversed(await asyncio.to_thread(self._find_missing, ref, sent, trees)):
                commits, objects = (
                    b"".join(b64decode(self._store.get(part).payload) for part in entry[name])
                    for name in ("commits", "objects")
                )
                await asyncio.to_thread(self._receive, ref, commits, objects, trees)
                size += len(commits) + len(objects)
            await asyncio.to_thread(self._bring, ref, sent, trees, mark, is_there=is_there)
        except (OSError, RolecallError) as error:
            self._store.ref(self._name)  # raises if the server is unreachable: retry later
            raise UsageError(
                f"the files of the thread cannot be fetched from another machine to {path}: {error}",
                hint="Fix that, then resume the thread.",
            ) from error
        ms = round((time.monotonic() - began) * 1000)
        what = "brought up to date" if is_there else "made"
        omitted = state.get("omitted", ())
        left_out = f"; without {', '.join(omitted)}, which stay where they are" if omitted else ""
        text = f"{path} was {what} with files from another machine ({size:,} bytes, {ms} ms){left_out}"
        fetched = Fetched(text, head, note)
        state = {**state, **self._name_copy(), "fetched": list(fetched)}
        self.mark(self._store.move(self._name, ref, ref.target, state))
        return fetched

    def _find_missing(self, ref: Ref, sent: Sequence[JsonObject], trees: Trees) -> list[JsonObject]:
        """Return the newest sends, down to but not including the first whose objects are already on this machine."""
        source, repository = self._folder.source, ref.state["repository"]
        trees.prepare(source, repository)
        missing = []
        for entry in sent:
            is_here = tree_pack.has_tree(trees.place, repository, entry["tree"])
            is_here = is_here and trees.is_whole(Snapshot(entry["tree"], repository))
            if is_here and ("head" not in entry or git.commit(source, entry["head"])):
                break
            missing.append(entry)
        return missing

    def _receive(self, ref: Ref, commits: bytes, objects: bytes, trees: Trees) -> None:
        if commits:  # the commits of the thread's branch go into the user's repository
            tree_pack.read_pack(self._folder.source, commits)
        if objects:
            ours = os.path.join(trees.place, ref.state["repository"])
            with hold(ours, fcntl.LOCK_SH):
                tree_pack.read_pack(ours, objects, env={"GIT_DIR": ours})

    def _bring(
        self, ref: Ref, sent: Sequence[JsonObject], trees: Trees, mark: Mapping[str, str], *, is_there: bool
    ) -> None:
        """Make the folder, or bring it up to date, from objects that are on this machine."""
        state, path = ref.state, self._folder.path
        newest, repository = state["tree"], state["repository"]
        mark_taken(os.path.join(trees.place, repository), newest)
        tree = self._check_files(mark, sent, trees) if is_there else ""
        self._check_branch(mark, sent)
        if is_there:
            self._write_mark({"from": tree, "to": newest})
            before, after = Snapshot(tree, repository), Snapshot(newest, repository)
            if problem := trees.advance(before, after, path, source=self._folder.source):
                raise UsageError(problem)
        else:
            can_copy = self._folder.branch or os.path.isdir(self._folder.origin or self._folder.source)
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
            self._write_mark({"from": "", "to": newest})
            files = FirstFiles(newest, repository, trees.place)
            workfolder.make(self._kind if can_copy else "fork", self._folder._replace(files=files))
        if "head" in state:
            git.run(path, "symbolic-ref", "HEAD", f"refs/heads/{self._folder.branch}")
            git.run(path, "reset", "--quiet", "--mixed", state["head"])

    def _check_files(self, mark: Mapping[str, str], sent: Sequence[JsonObject], trees: Trees) -> str:
        """Return the tree of an older folder. Raise `UsageError` if no step has recorded that tree."""
        path, source = self._folder.path, self._folder.source
        found = trees.take(path, source=source)
        known = {mark.get("tree"), mark.get("from"), *(entry["tree"] for entry in sent)}
        if mark.get("from") and found.tree not in known:  # a process died while updating the folder
            before, after = (Snapshot(mark[name], found.repository) for name in ("from", "to"))
            trees.advance(before, after, path, source=source, is_begun=True)
            found = trees.take(path, source=source)
        if found.tree not in known:
            raise UsageError(
                "the folder has changes that no step has recorded; save what you need of them, then remove the folder"
            )
        return found.tree

    def _check_branch(self, mark: Mapping[str, str], sent: Sequence[JsonObject]) -> None:
        """Raise `UsageError` if fetching would lose commits that neither a step nor another branch contains."""
        path, source, branch = self._folder.path, self._folder.source, self._folder.branch
        if not branch:
            return
        ours = (os.path.isdir(path) and git.commit(path, "HEAD"), git.commit(source, f"refs/heads/{branch}"))
        heads = (self._folder.base, mark.get("head"), *(entry.get("head") for entry in sent))
        known = [*filter(None, heads)]
        known += [f"--exclude={branch}", "--branches", "--remotes", "--tags"]
        words = ("rev-list", "--ignore-missing", "--max-count=1", *filter(None, ours), "--not", *known)
        if any(ours) and (newest := git.run(source, *words).text):
            raise UsageError(
                f"{branch} has commits that no step has recorded; keep them on a branch of your own: "
                f"git -C {quote(source)} branch NAME {newest[:12]}"
            )


def _describe(tree: str, head: str) -> dict[str, str]:
    return {"tree": tree, **({"head": head} if head else {})}


async def fetch_files(
    store: Store, loaded: LoadedThread, role: str, trees: Trees | None
) -> tuple[SharedFolder | None, Fetched]:
    """Return the thread's own folder in which a role works, if other machines may need that folder. First fetch the
    files from the machine that took the last step. Members of a group stay on the machine that merges their work."""
    if not store.is_shared or loaded.chain.start.member is not None:
        return None, Fetched()
    workdir = loaded.workdir_of(role)
    kind = "fork" if workdir == "shared" else workdir
    folder = loaded.folders.get(kind)
    if folder is None or folder.is_removed:
        return None, Fetched()
    shared, note = SharedFolder(store, loaded.thread, kind, folder, trees), read_note(store, loaded.thread)
    return shared, await shared.fetch(loaded.chain.head, note.ref.version if note else 0)
