"""Snapshots of work folders as git trees.

The objects are in our own repositories below the home folder, one for each repository in which people work. Each of our
repositories borrows the objects of the repository that it belongs to, has one index for each folder, and has no refs.
Nothing is written into the user's repository, and none of its hooks or filters runs. A folder outside git works the
same way.

A tree contains the files that git would show as tracked or untracked, byte for byte: links as links, with modes kept,
and a nested repository as the commit that is checked out in it. It does not contain ignored files, empty folders,
uncommitted files of nested repositories, files larger than `LARGEST`, or files that look like secrets. The last three
are named in the snapshot.
"""

from __future__ import annotations

import fcntl
import os
import stat
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from functools import partial
from hashlib import sha256

from rolecall.errors import NotFound, StorageError, UsageError
from rolecall.files import git
from rolecall.files.snapshot import Changed, Snapshot
from rolecall.settings.repository import root_around
from rolecall.store import atomic

LARGEST = 10 * 1024**2
"""The size in bytes above which a file is left out."""
MOST_FILES = 200_000
"""The number of files above which no snapshot is taken of a folder."""
MOST_BYTES = 2 * 1024**3
"""The total size in bytes, counting only files that are new to us, above which no snapshot is taken of a folder."""
SECRETS = (
    ".env", ".env.*", "*.pem", "*.key", "*.p12", "*.pfx", "*.keystore", "*.jks", "*.kdbx", "id_rsa", "id_dsa",
    "id_ecdsa", "id_ed25519", ".netrc", ".pgpass", ".npmrc", ".pypirc", ".htpasswd", "credentials.json",
)  # fmt: skip
"""Patterns for names of files that are left out in every folder. `.env.example` and similar names are kept."""
_HARMLESS = ("*.example", "*.sample", "*.template", "*.dist")
_SMALL = 500
"""The number of entries up to which a folder is examined without git."""
_TICK_NS = 50_000_000
"""A time, in nanoseconds, that is longer than the resolution of time stamps in any file system."""
_MOST_LOOSE = 1_000
"""The number of loose objects above which they are packed."""
_ATTRIBUTES = "* -text -eol -filter -ident -working-tree-encoding\n"
_CONFIG = "[core]\n\tbare = false\n\tautocrlf = false\n\tuntrackedCache = false\n"
FORMATS = {
    False: "[core]\n\trepositoryformatversion = 0\n",
    True: "[core]\n\trepositoryformatversion = 1\n[extensions]\n\tobjectformat = sha256\n",
}
"""The settings of a repository, keyed by whether its ids are SHA-256 hashes."""
_IGNORED = ("ls-files", "-z", "--cached", "--ignored", "--exclude-standard")
_KINDS = {"A": "added", "D": "removed"}
_NESTED = "160000"
"""The mode of a nested repository in git's index."""
# Adding a file only starts to write it out. Adding the trees, which come last, waits until everything is on disk.
_WRITTEN = ("core.fsync=objects", "core.fsyncMethod=writeout-only")
_FLUSHED = ("core.fsync=objects", "core.fsyncMethod=batch")
_IS_LARGE = "large"
"""Replaces the digest of a folder that must be examined with git."""
_REFUSED_SECONDS = 3_600
"""Seconds for which a folder that was too large is not examined again."""


class TooManyFiles(StorageError):
    """Raised if a folder has more files than a snapshot records."""

    is_known = False
    """Whether an earlier check found the folder too large, so that it was not checked again."""


class Trees:
    """The snapshots in one home folder."""

    def __init__(self, place: str, *, private: tuple[str, ...] = (), is_shared: bool = False) -> None:
        """`private` are our own files and folders, which no snapshot records even if they are in a work folder."""
        self.place = place
        """The folder that contains our repositories."""
        self.is_shared = is_shared
        """Whether the files of threads with folders of their own are passed to other machines through the store."""
        self._private = tuple(os.path.realpath(path) for path in (place, *private) if path)

    # -- taking --

    def recall(self, folder: str, *, source: str | None = None) -> Snapshot | None:
        """Return the snapshot of a small folder that has not changed since it was taken, or None if a snapshot must be
        taken again."""
        top = find_top(folder)
        ours = self.prepare(source or top)
        file, began = f"{_index_of(ours, top)}.tree", time.time_ns()
        look, *known = _read(file).split("\0")
        if look in ("", _IS_LARGE) or look != _look_at(top, self._private_in(top)):
            return None
        mark_taken(ours, known[0])
        with suppress(FileNotFoundError):  # another thread is taking a snapshot of the folder now
            os.utime(file, ns=(began, began))
        return Snapshot(known[0], os.path.basename(ours), tuple(known[1:]))

    def take(self, folder: str, *, source: str | None = None) -> Snapshot:
        """Record the files of the work tree that contains `folder` or, outside git, of the folder itself. If `folder`
        is a temporary copy, `source` is the original folder, from whose repository objects are borrowed."""
        top = find_top(folder)
        ours = self.prepare(source or top)
        index = _index_of(ours, top)
        known = f"{index}.tree"
        _refuse_again(index, os.path.join(top, ".gitignore"), os.path.join(ours, "info", "exclude"))
        with hold(ours, fcntl.LOCK_SH), _lock(index):
            # The file contains the digest of the folder, its tree, and the files that were left out.
            before, began = _read(known).split("\0"), time.time_ns()
            look = _IS_LARGE if before[0] == _IS_LARGE else _look_at(top, self._private_in(top))
            env = {"GIT_DIR": ours, "GIT_WORK_TREE": top, "GIT_INDEX_FILE": index}
            if not os.path.exists(index):
                # The user's index also contains the files that are tracked although they are ignored.
                entries = git.ask(top, "ls-files", "--stage", "-z") if root_around(top) == top else None
                tracked = entries.out if entries is not None and entries.code == 0 else b""
                entered = (os.fsdecode(entry).split("\t", 1) for entry in tracked.split(b"\0") if entry)
                _note_nested(index, {path for mode, path in entered if mode.startswith(_NESTED)})
                git.run(top, "update-index", "-z", "--index-info", env=env, stdin=tracked)
                git.ask(top, "update-index", "-q", "--really-refresh", env=env)  # fails if files differ
            digits = 64 if "sha256" in _read(os.path.join(ours, "config")) else 40
            gone = _forget_nested(index, top)
            if gone:
                _update_index(top, env, "--force-remove", gone)
            listed = ("--modified", "--deleted", "--others", "--exclude-standard")
            shown = git.run(top, "ls-files", "-z", *listed, env=env).words
            paths = {path.rstrip("/") for path in shown}
            if _may_ignore_others(top, ours, known, paths):
                theirs = {*git.ask(top, *_IGNORED).words} if root_around(top) == top else set()
                own = {*git.run(top, *_IGNORED, env=env).words}
                gone |= own - theirs
                paths |= {path for path in theirs - own if not _is_left_out(top, path, digits)}
                paths -= gone
            if private := self._private_in(top):
                paths = {path for path in paths if not _is_private(os.path.join(top, path), private)}
            if len(paths) > MOST_FILES:
                raise _refuse(index, top, f"more than {MOST_FILES:,} files")
            nested = _note_nested(index, paths & {path.rstrip("/") for path in shown if path.endswith("/")})
            omitted = sorted(path for path in paths if _is_left_out(top, path, digits))
            # Git lists files below a folder that is now a link, but does not record them.
            behind = {folder for folder in map(os.path.dirname, paths) if _is_link(top, folder)}
            linked = sorted(path for path in paths if os.path.dirname(path) in behind)
            kept = sorted(paths - {*omitted, *linked})
            if len(kept) * LARGEST > MOST_BYTES and sum(_size(top, path) for path in kept) > MOST_BYTES:
                raise _refuse(index, top, f"more than {MOST_BYTES // 1024**3} GiB of new files")
            tree = before[1] if before[1:] else ""
            if kept or linked or gone or not tree or omitted != before[2:]:
                with suppress(FileNotFoundError):  # the file is absent while the index changes
                    os.unlink(known)
                for option, chosen in (("--force-remove", [*omitted, *linked, *gone]), ("--add", kept)):
                    if chosen:
                        _update_index(top, env, option, chosen)
                tree = git.run(top, "write-tree", env=env, settings=_FLUSHED).text
                self._pack_loose(ours)
            _write(known, "\0".join([look, tree, *omitted]))
            os.utime(known, ns=(began, began))
            mark_taken(ours, tree)
            changed = {path for path in nested if path in omitted or _has_uncommitted_files(top, path)}
        named = sorted([*({*omitted} - changed), *(f"{path}/" for path in changed)])
        return Snapshot(tree, os.path.basename(ours), tuple(named))

    def _private_in(self, top: str) -> tuple[str, ...]:
        """Return Rolecall's own files and folders below `top`. A folder that contains `top`, such as the home, does not
        count."""
        return tuple(own for own in self._private if own.startswith(f"{top}/"))

    def prepare(self, source: str, name: str = "") -> str:
        """Make our repository for a user's repository or folder, unless it exists, and return its path. `name` is the
        name that the repository has on another machine."""
        theirs = find_git_folder(source)
        settings = _read(os.path.join(theirs, "config")).lower() if theirs else ""
        is_sha256 = "objectformat = sha256" in settings
        of_format = b"\0sha256" if is_sha256 else b""
        name = name or sha256(os.fsencode(theirs or source) + of_format).hexdigest()[:16]
        ours = os.path.join(self.place, name)
        make_repository(ours, is_sha256=is_sha256)
        alternates = os.path.join(ours, "objects", "info", "alternates")
        if theirs and not os.path.exists(alternates):
            _write(alternates, f"{theirs}/objects\n")
        # Git reads the user's global list of ignored files, but not the list in the user's repository.
        excluded = os.path.join("info", "exclude")
        if theirs and _read(os.path.join(theirs, excluded)) != _read(os.path.join(ours, excluded)):
            _write(os.path.join(ours, excluded), _read(os.path.join(theirs, excluded)))
        return ours

    def _pack_loose(self, ours: str) -> None:
        # Ids are evenly distributed, so counting one of the 256 folders is enough to estimate the total.
        objects = os.path.join(ours, "objects")
        if len(_list(os.path.join(objects, "17"))) * 256 <= _MOST_LOOSE:
            return
        loose = [f"{start:02x}{rest}" for start in range(256) for rest in _list(f"{objects}/{start:02x}")]
        written = [name for name in loose if "_" not in name]  # the others are still being written
        words, given = ("pack-objects", "-q", f"{objects}/pack/pack"), "\n".join(written).encode()
        git.run(ours, *words, env={"GIT_DIR": ours}, stdin=given)
        git.run(ours, "prune-packed", "-q", env={"GIT_DIR": ours})

    # -- reading --

    def check_out(self, snapshot: Snapshot, folder: str) -> None:
        """Write the files of a tree into a folder that is empty or does not exist. Create an empty folder for each
        nested repository."""
        os.makedirs(folder, exist_ok=True)
        if os.listdir(folder):
            raise UsageError(f"{folder} is not empty", hint="Name a new folder.")
        self._fill(snapshot, folder)

    def restore(self, snapshot: Snapshot, folder: str, *, source: str | None = None) -> None:
        """Make the files of a folder those of a snapshot. Other files of the kind that snapshots record are removed;
        ignored files, files that are left out, and nested repositories stay. Raise UsageError if one of these is where
        a folder has to be."""
        top = find_top(folder)
        with self._lock_writing(top, source) as lock:
            now = self.take(top, source=source)
            changes = self.changes(now, snapshot)
            if obstacle := _find_obstacle(top, changes):
                raise UsageError(f"{obstacle} is in the way", hint="Move it elsewhere.")
            self._write_changes(now, snapshot, changes, top, lock)

    def advance(
        self,
        before: Snapshot,
        after: Snapshot,
        folder: str,
        *,
        source: str | None = None,
        is_begun: bool = False,
    ) -> str:
        """Apply the changes between two snapshots to a folder, which must contain the files of the first. With
        `is_begun`, some files can already be those of the second, or half written, because a process died during this
        change or its opposite. Return why nothing was done, or an empty string. A file is overwritten only if the first
        snapshot contains it."""
        top = find_top(folder)
        if before.omitted != after.omitted:
            return "files that are not recorded have changed, too"
        try:
            ours = self._repository(after)
        except NotFound as error:
            return error.message
        is_half_written = partial(self._is_half_written, (after, before), top)
        # Nobody removes objects while the lock is held, and a git process whose parent has died has ended.
        with hold(ours, fcntl.LOCK_SH), self._lock_writing(top, source) as lock:
            now = self.take(top, source=source)
            if not self.is_whole(after):
                return "the files that the step left are not complete on this machine"
            changes = self.changes(now, after)
            if now.tree != before.tree:
                differ = {change.path for change in self.changes(now, before)}
                differ &= {change.path for change in changes}
                is_ours = differ <= {change.path for change in self.changes(before, after)}
                if not is_begun or not is_ours or not all(map(is_half_written, differ)):
                    return "the files in the folder are not those from before the step"
            words = self._compare(now, after, "--raw", "--no-renames", "-z").words
            for modes, path in zip(words[::2], words[1::2], strict=True):
                if _NESTED in modes:
                    return f"the commit of the nested repository {path} has changed, too"
                if not modes.endswith(" A") or not os.path.lexists(os.path.join(top, path)):
                    continue
                if not is_begun or not is_half_written(path):
                    return f"{path} is in the way"
            if obstacle := _find_obstacle(top, changes):
                return f"{obstacle} is in the way"
            self._write_changes(now, after, changes, top, lock)
        return ""

    def _is_half_written(self, snapshots: Iterable[Snapshot], top: str, path: str) -> bool:
        """Return whether a file is missing, or is a truncated copy of the version in one of the snapshots."""
        whole = os.path.join(top, path)
        if not os.path.lexists(whole):
            return True
        if os.path.islink(whole) or not os.path.isfile(whole):
            return False
        with open(whole, "rb") as file:
            written = file.read()
        for snapshot in snapshots:
            with suppress(NotFound):
                if self.read(snapshot, path).startswith(written):
                    return True
        return False

    @contextmanager
    def _lock_writing(self, top: str, source: str | None) -> Iterator[int]:
        """Hold the lock for writing into a folder. Git inherits the descriptor, and with it the lock."""
        index = _index_of(self.prepare(source or top), top)
        with open(f"{index}.writing", "w", encoding="ascii") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield lock.fileno()

    def _write_changes(
        self, now: Snapshot, snapshot: Snapshot, changes: list[Changed], top: str, lock: int
    ) -> None:
        """Write the files in which a folder differs from a snapshot, and remove the files that the snapshot lacks."""
        if not changes:
            return
        removed = [change.path for change in changes if change.kind == "removed"]
        written = [change.path for change in changes if change.kind != "removed"]
        self._fill(snapshot, top, written, holding=(lock,))
        # The snapshot's own lists of ignored files are back by now, and the files that they name also stay.
        env, given = {"GIT_DIR": self._repository(now), "GIT_WORK_TREE": top}, os.fsencode("\0".join(removed))
        ignored = git.ask(top, "check-ignore", "--no-index", "-z", "--stdin", env=env, stdin=given).words
        for path in {*removed} - {*ignored} - {*snapshot.omitted}:
            whole = os.path.join(top, path)
            is_file = os.path.islink(whole) or os.path.isfile(whole)
            if is_file and not _is_link(top, os.path.dirname(path)):
                os.unlink(whole)

    def _fill(
        self,
        snapshot: Snapshot,
        folder: str,
        paths: list[str] | None = None,
        *,
        holding: tuple[int, ...] = (),
    ) -> None:
        """Write all files of a tree, or only those at `paths`, over the files of a folder."""
        ours = self._repository(snapshot)
        index = os.path.join(ours, "indexes", f"filling-{os.getpid()}-{threading.get_ident()}")
        env = {"GIT_DIR": ours, "GIT_WORK_TREE": folder, "GIT_INDEX_FILE": index}
        try:
            git.run(folder, "read-tree", snapshot.tree, env=env)
            which = ("--all",) if paths is None else ("-z", "--stdin")
            given = os.fsencode("\0".join(paths or ()))
            words = ("checkout-index", "--force", "--quiet", *which)
            git.run(folder, *words, env=env, stdin=given, holding=holding)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(index)

    def changes(self, before: Snapshot, after: Snapshot) -> list[Changed]:
        """Return the files that differ between two snapshots, sorted by path."""
        if before.tree == after.tree:
            return []
        words = self._compare(before, after, "--raw", "--numstat", "--no-renames", "-z").words
        # The output contains first `:MODE MODE ID ID LETTER` and the path of each file, then `ADDED\tREMOVED\tPATH`.
        counted = (at for at, word in enumerate(words) if not at % 2 and not word.startswith(":"))
        size = next(counted, len(words))
        kinds = {words[at + 1]: _KINDS.get(words[at][-1], "changed") for at in range(0, size, 2)}
        changed = []
        for word in words[size:]:
            added, removed, path = word.split("\t", 2)
            counts = (int(count) if count != "-" else None for count in (added, removed))
            changed.append(Changed(path, kinds[path], *counts))
        return changed

    def diff(self, before: Snapshot, after: Snapshot, paths: Iterable[str] = ()) -> str:
        """Return a unified diff of two trees, with all files or only those below `paths`."""
        found = self._compare(before, after, "--patch", "--find-renames", paths=paths)
        return found.out.decode("utf-8", "replace")

    def read(self, snapshot: Snapshot, path: str) -> bytes:
        """Return the bytes of one file."""
        found = git.ask(self.place, "cat-file", "blob", f"{snapshot.tree}:{path}", env=self._env(snapshot))
        if found.code:
            raise NotFound(f"there is no file {path!r} in the tree {snapshot.tree[:12]}")
        return found.out

    def list_files(self, snapshot: Snapshot) -> dict[str, str]:
        """Return the mode and the id of each file, keyed by its path."""
        listed = git.run(self.place, "ls-tree", "-r", "-z", snapshot.tree, env=self._env(snapshot)).words
        parts = (record.partition("\t") for record in listed)
        return {path: " ".join(about.split()[::2]) for about, _, path in parts}

    def objects_of(self, snapshot: Snapshot) -> str:
        """Return the folder with those objects of a tree that are not borrowed."""
        return os.path.join(self._repository(snapshot), "objects")

    def is_whole(self, snapshot: Snapshot) -> bool:
        """Return whether every object of the tree can be read."""
        listed = ("rev-list", "--objects", "--missing=error", "--quiet", snapshot.tree)
        try:
            return git.ask(self.place, *listed, env=self._env(snapshot)).code == 0
        except NotFound:
            return False

    def _compare(
        self, before: Snapshot, after: Snapshot, *words: str, paths: Iterable[str] = ()
    ) -> git.GitResult:
        env = self._env(after)
        if before.repository != after.repository:
            env["GIT_ALTERNATE_OBJECT_DIRECTORIES"] = self.objects_of(before)
        return git.run(self.place, "diff-tree", "-r", *words, before.tree, after.tree, "--", *paths, env=env)

    def _env(self, snapshot: Snapshot) -> dict[str, str]:
        return {"GIT_DIR": self._repository(snapshot), "GIT_LITERAL_PATHSPECS": "1"}

    def _repository(self, snapshot: Snapshot) -> str:
        ours = os.path.join(self.place, snapshot.repository)
        if not os.path.exists(os.path.join(ours, "HEAD")):
            raise NotFound(
                f"the files of the tree {snapshot.tree[:12]} are not on this machine",
                hint="Import them with the bundle that has them.",
            )
        return ours


def make_repository(ours: str, *, is_sha256: bool) -> None:
    """Make one of our repositories, unless it exists."""
    if os.path.exists(os.path.join(ours, "HEAD")):
        return
    for folder in ("objects/info", "objects/pack", "refs", "info", "indexes", "taken"):
        os.makedirs(os.path.join(ours, folder), mode=0o700, exist_ok=True)
    _write(os.path.join(ours, "info", "attributes"), _ATTRIBUTES)
    _write(os.path.join(ours, "config"), FORMATS[is_sha256] + _CONFIG)
    # written last, because it marks the repository as complete
    _write(os.path.join(ours, "HEAD"), "ref: refs/heads/none\n")


def mark_taken(ours: str, tree: str) -> None:
    """Record that a tree is in use now, although no step names it yet. The record is the time of an empty file."""
    path = os.path.join(ours, "taken", tree)
    try:
        os.utime(path)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))


@contextmanager
def hold(ours: str, how: int) -> Iterator[None]:
    """Hold the lock of one of our repositories: shared to add objects, exclusive to remove some."""
    with open(os.path.join(ours, "objects.used"), "w", encoding="ascii") as lock:
        fcntl.flock(lock, how)
        yield


def find_top(folder: str) -> str:
    """Return the folder that a snapshot covers: the work tree that contains `folder`, or the folder itself if it is
    outside git or ignored."""
    folder = os.path.realpath(folder)
    top = root_around(folder)
    if top is None or (top != folder and git.ask(top, "check-ignore", "-q", "--", folder).code == 0):
        return folder
    return top


def find_git_folder(folder: str) -> str:
    """Return the git folder that the worktrees of a repository share, or an empty string outside git."""
    root = root_around(folder)
    if root is None:
        return ""
    place = _find_own_git_folder(root)
    return os.path.realpath(os.path.join(place, _read(os.path.join(place, "commondir")).strip()))


def find_head(folder: str) -> str:
    """Return the commit that is checked out, or an empty string if there is none. It is read without starting git,
    because every step asks for it."""
    root = root_around(folder)
    if root is None:
        return ""
    place, common = _find_own_git_folder(root), find_git_folder(root)
    kind, _, ref = _read(os.path.join(place, "HEAD")).strip().partition(": ")
    if kind != "ref":
        return kind  # no branch is checked out
    if os.path.isdir(os.path.join(common, "reftable")):
        return git.commit(root, "HEAD") or ""
    packed = os.path.join(common, "packed-refs")
    found = _read(os.path.join(common, ref)).strip()
    return found or next(
        (line[: -len(ref) - 1] for line in _read(packed).splitlines() if line.endswith(f" {ref}")), ""
    )


def _find_own_git_folder(root: str) -> str:
    place = os.path.join(root, ".git")
    if os.path.isfile(place):  # a worktree or a submodule
        place = os.path.join(root, _read(place).removeprefix("gitdir:").strip())
    return place


def _may_ignore_others(top: str, ours: str, known: str, paths: Iterable[str]) -> bool:
    """Return whether git might now ignore different files than at the last snapshot, because a list of ignored files or
    the user's index has changed."""
    if any(os.path.basename(path) == ".gitignore" for path in paths):
        return True
    own_index = os.path.join(_find_own_git_folder(top), "index")
    since = _find_time(known) - _TICK_NS
    return any(_find_time(path) > since for path in (own_index, os.path.join(ours, "info", "exclude")))


def _look_at(folder: str, private: tuple[str, ...]) -> str:
    """Return a digest of the names, modes, sizes and times of everything in a small folder, or `_IS_LARGE` for a large
    one. Return an empty string if a file has changed so recently that it could change again within the same time
    stamp."""
    seen, waiting, newest = list[tuple[str, int, int, int, int]](), [folder], 0
    began = time.time_ns()
    try:
        while waiting:
            with os.scandir(waiting.pop()) as found:
                for entry in found:
                    if _is_private(entry.path, private):
                        continue
                    facts = entry.stat(follow_symlinks=False)
                    newest = max(newest, facts.st_ctime_ns)
                    seen.append((entry.path, facts.st_mode, facts.st_size, facts.st_ctime_ns, facts.st_ino))
                    if len(seen) > _SMALL:
                        return _IS_LARGE
                    if entry.name != ".git" and entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    elif entry.name == ".git" and os.path.dirname(entry.path) != folder:
                        return ""  # a nested repository, whose commit is not covered by the digest
    except OSError:  # the folder is unreadable, or was just deleted
        return ""
    is_settled = newest < began - _TICK_NS
    return sha256(os.fsencode(repr(sorted(seen)))).hexdigest() if is_settled else ""


def _refuse(index: str, top: str, why: str) -> TooManyFiles:
    now = time.time()
    at, again = (time.strftime("%H:%M", time.localtime(at)) for at in (now, now + _REFUSED_SECONDS))
    later = f"it is looked at again after {again}, or when its .gitignore changes"
    _write(f"{index}.refused", f"{top} had {why} at {at}; {later}")
    return TooManyFiles(
        f"{top} has {why}", hint="Work in a smaller folder, or let the repository ignore more."
    )


def _refuse_again(index: str, *ignoring: str) -> None:
    """Raise TooManyFiles for a folder that was too large a short while ago, so that not every step walks through it.
    The folder is examined if one of the files in `ignoring`, which say what git ignores, has changed since then."""
    refused_at = _find_time(f"{index}.refused")
    is_recent = time.time_ns() - refused_at < _REFUSED_SECONDS * 10**9
    if is_recent and all(_find_time(path) <= refused_at for path in ignoring):
        error = TooManyFiles(_read(f"{index}.refused"))
        error.is_known = True
        raise error


def _is_left_out(top: str, path: str, digits: int) -> bool:
    """Return whether a file is too large, looks like a secret, or cannot be recorded. `digits` is the length of the
    repository's ids."""
    name, whole = os.path.basename(path), os.path.join(top, path)
    if any(fnmatchcase(name, secret) for secret in SECRETS):
        return not any(fnmatchcase(name, harmless) for harmless in _HARMLESS)
    try:
        found = os.lstat(whole)
    except OSError:  # the file was deleted
        return False
    if stat.S_ISDIR(found.st_mode):
        # a nested repository, whose commit is recorded, or a folder in place of a file
        return _is_nested(whole) and len(git.commit(whole, "HEAD") or "") != digits
    if stat.S_ISLNK(found.st_mode):
        return False
    return not stat.S_ISREG(found.st_mode) or found.st_size > LARGEST or not os.access(whole, os.R_OK)


def _note_nested(index: str, found: set[str]) -> set[str]:
    """Record nested repositories, because git lists them only until they are in the index. Return all that are
    known."""
    noted = {*filter(None, _read(f"{index}.nested").split("\0"))}
    if not found <= noted:
        _write(f"{index}.nested", "\0".join(sorted(noted | found)))
    return noted | found


def _forget_nested(index: str, top: str) -> set[str]:
    """Forget the nested repositories that are now plain folders with files, and return them."""
    noted = {*filter(None, _read(f"{index}.nested").split("\0"))}
    places = {path: os.path.join(top, path) for path in noted}
    gone = {path for path, place in places.items() if not _is_nested(place) and _list(place)}
    if gone:
        _write(f"{index}.nested", "\0".join(sorted(noted - gone)))
    return gone


def _is_nested(folder: str) -> bool:
    return os.path.lexists(os.path.join(folder, ".git"))


def _update_index(top: str, env: Mapping[str, str], option: str, paths: Iterable[str]) -> None:
    given, words = os.fsencode("\0".join(paths)), ("-z", "--replace", "--remove", option, "--stdin")
    git.run(top, "update-index", *words, env=env, stdin=given, settings=_WRITTEN)


def _has_uncommitted_files(top: str, nested: str) -> bool:
    folder = os.path.join(top, nested)
    if not _is_nested(folder):  # the repository is gone, or was never cloned
        return False
    found = git.ask(folder, "status", "--porcelain", "--untracked-files=normal")
    return bool(found.out) or found.code != 0


def _size(top: str, path: str) -> int:
    try:
        return os.lstat(os.path.join(top, path)).st_size
    except OSError:
        return 0


def _find_time(path: str) -> int:
    """Return when a file was changed, in nanoseconds, or 0 if it does not exist."""
    try:
        return os.stat(path).st_mtime_ns
    except FileNotFoundError:
        return 0


def _is_link(top: str, folder: str) -> bool:
    while folder:
        if os.path.islink(os.path.join(top, folder)):
            return True
        folder = os.path.dirname(folder)
    return False


def _find_obstacle(top: str, changes: list[Changed]) -> str:
    """Return a file or link that is where a file to be written needs a folder, unless it is going to be removed;
    otherwise an empty string."""
    removed = {change.path for change in changes if change.kind == "removed"}
    folders = set[str]()
    for change in changes:
        folder = os.path.dirname(change.path) if change.kind == "added" else ""
        while folder and folder not in folders:
            folders.add(folder)
            folder = os.path.dirname(folder)
    for folder in sorted(folders - removed):
        whole = os.path.join(top, folder)
        if os.path.islink(whole) or (os.path.lexists(whole) and not os.path.isdir(whole)):
            return folder
    return ""


def _is_private(path: str, private: tuple[str, ...]) -> bool:
    # The files next to a database have names that begin with its own.
    return any(path == own or path.startswith((f"{own}/", f"{own}-")) for own in private)


def _index_of(ours: str, top: str) -> str:
    return os.path.join(ours, "indexes", sha256(os.fsencode(top)).hexdigest()[:32])


@contextmanager
def _lock(index: str) -> Iterator[None]:
    with open(f"{index}.used", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with suppress(FileNotFoundError):  # left behind by a git process that was killed
            os.unlink(f"{index}.lock")
        yield


def _list(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except FileNotFoundError:
        return ""


def _write(path: str, text: str) -> None:
    atomic.replace(path, text.encode(errors="surrogateescape"))
