"""Where a thread works in a job, and how its data is passed from one job to the next.

A job starts on an empty machine, which is deleted at the end. So the data for the next job is stored in a commit under
the ref `refs/rolecall-ci/KEY` of the repository, which is not a branch and starts no pipeline. The commit contains
a bundle with the store and its recorded files, and a record. Its parents are the commits with which the thread works,
so these are fetched together with it. Each save replaces the commit, and a push names the commit that it replaces: if
two jobs save, the second push fails.

The thread works in a clone next to its home. The folder's path is the same on every machine, because steps record
paths. The clone contains no credentials.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple
from urllib.parse import urlsplit, urlunsplit

import msgspec

from rolecall.api import Rolecall
from rolecall.errors import Conflict, Damaged, StorageError, UsageError
from rolecall.files import git
from rolecall.files.merge import THREAD_TRAILER
from rolecall.forge.event import SavedThread
from rolecall.settings import config
from rolecall.settings.forge import Job

REFS = "refs/rolecall-ci/"
_BUNDLE = "store.tgz"
_RECORD = "thread.json"
_VERSIONS = "versions"
_KEPT = ("config.yaml", ".env", "trusted")
"""The files that are copied to a thread's home from the home of the job's user."""
_TRIES = 3
_SECONDS = 600.0
"""Seconds that git can take to fetch or push."""


class Saved(NamedTuple):
    commit: str
    record: SavedThread


class Remote:
    """The repository on the forge, as it is known from the job's checkout."""

    def __init__(self, job: Job, checkout: str) -> None:
        self.checkout = checkout
        found = git.ask(checkout, "remote", "get-url", "origin")
        if found.code:
            raise UsageError(
                f"{checkout} is not a clone with a remote named origin: {found.err}",
                hint="Check the repository out in an earlier step of the job.",
            )
        parts, self.address = urlsplit(found.text), found.text
        if parts.scheme in ("http", "https"):  # GitLab puts the job's token into the address
            self.address = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
        self._env: dict[str, str] = {}
        if self.address.startswith(("https://", "http://")):
            user = "x-access-token" if job.forge == "github" else "oauth2"
            login = b64encode(f"{user}:{job.token}".encode()).decode()
            # The header is set for this address only, so that it replaces the checkout's header for the forge and is
            # sent nowhere else. It is set only in git's environment, because every process can read a command line.
            header = f"http.{self.address}.extraHeader"
            self._env = {
                "GIT_CONFIG_COUNT": "2",
                "GIT_CONFIG_KEY_0": header,
                "GIT_CONFIG_VALUE_0": "",
                "GIT_CONFIG_KEY_1": header,
                "GIT_CONFIG_VALUE_1": f"Authorization: Basic {login}",
            }

    def fetch(self, key: str) -> Saved | None:
        """Return the last save, whose commit is fetched into the checkout, or None if nothing was saved."""
        ref = REFS + key
        if not self.find(ref):
            return None
        self.get(f"+{ref}:{ref}")
        commit = git.commit(self.checkout, ref) or ""
        text = git.ask(self.checkout, "cat-file", "blob", f"{commit}:{_RECORD}").out
        try:
            record = msgspec.json.decode(text, type=SavedThread)
        except msgspec.DecodeError as error:
            raise self.damaged(key, error) from error
        if not (record.place.isalnum() and record.version == 1):
            raise Damaged(f"{ref} of {self.address} was saved by another version", hint="Use that version.")
        return Saved(commit, record)

    def damaged(self, key: str, error: Exception) -> Damaged:
        return Damaged(
            f"{REFS}{key} of {self.address} cannot be read: {error}", hint="Delete the ref to begin again."
        )

    def push(self, repository: str, commit: str, ref: str, *, replaces: str | None) -> None:
        """Move a ref to a commit of a repository in which agents work. Raise Conflict if the ref is not at the commit
        `replaces`; if that is None, the ref must not exist."""
        lease = f"--force-with-lease={ref}:{replaces or ''}"
        # Only the checkout gets the token, because agents might have put another address into their repository.
        objects = git.run(repository, "rev-parse", "--git-path", "objects").text
        objects = os.path.abspath(os.path.join(repository, objects))
        for number in range(1, _TRIES + 1):
            done = git.ask(
                self.checkout,
                *("push", "--quiet", "--porcelain", lease, self.address, f"{commit}:{ref}"),
                env={**self._env, "GIT_ALTERNATE_OBJECT_DIRECTORIES": objects},
                timeout=_SECONDS,
            )
            # The reply to an earlier attempt might have been lost.
            if done.code == 0 or self.find(ref) == commit:
                return
            if "stale info" in done.text + done.err:
                hint = "See what it did, then run this job again."
                raise Conflict(f"another job has moved {ref}", hint=hint)
            if number == _TRIES:
                raise StorageError(
                    f"{ref} could not be pushed to {self.address}: {done.err}",
                    hint="The token needs the right to write to the repository.",
                )

    def find(self, ref: str) -> str | None:
        """Return the commit of a ref on the forge, or None if there is no such ref."""
        return self._ask("ls-remote", self.address, ref).text.partition("\t")[0] or None

    def get(self, what: str) -> None:
        """Fetch a ref into the checkout."""
        self._ask("fetch", "--quiet", "--no-tags", self.address, what)

    def _ask(self, *words: str) -> git.GitResult:
        for _ in range(_TRIES):
            done = git.ask(self.checkout, *words, env=self._env, timeout=_SECONDS)
            if done.code == 0:
                return done
        raise StorageError(
            f"git {words[0]} failed for {self.address}: {done.err}",
            hint="Check that the token may read the repository.",
        )


class JobPlace:
    """The folder of a thread in this job, with a clone (`repository`) and a `home`, which contains its store."""

    def __init__(self, folder: str, remote: Remote, key: str, saved: Saved | None) -> None:
        self.repository = os.path.join(folder, "repository")
        self.home = os.path.join(folder, "home")
        self.name = os.path.basename(folder)
        self._key = key
        self._remote = remote
        self._from = saved
        self._saved = {key: saved.commit} if saved else {}
        """The commit of the last save under each key."""
        self._bundle, self._newest = os.path.join(folder, _BUNDLE), -1
        """The path of the last bundle, and the number of its newest event."""

    def make(self, *, is_new: bool) -> Rolecall:
        """Make the clone and the home from what was saved, and open the store. With `is_new`, the thread begins with
        the commit of the checkout."""
        checkout, repository, saved = self._remote.checkout, self.repository, self._from
        os.mkdir(self.home, 0o700)
        for name in _KEPT:
            source, target = os.path.join(config.home(), name), os.path.join(self.home, name)
            if os.path.isdir(source):
                shutil.copytree(source, target)
            elif os.path.isfile(source):
                shutil.copy(source, target)
        git.run(checkout, "clone", "--quiet", "--no-checkout", checkout, repository)
        git.run(repository, "remote", "set-url", "origin", self._remote.address)
        head, branch = git.run(checkout, "rev-parse", "HEAD").text, git.branch(checkout) or ""
        if saved:
            ref = REFS + self._key
            git.run(repository, "fetch", "--quiet", "--no-tags", checkout, f"{ref}:{ref}")
            if not is_new:
                head, branch = saved.record.head, saved.record.branch
        how = ("-B", branch) if branch else ("--detach",)
        git.run(repository, "checkout", "--quiet", *how, head)
        for name, commit in saved.record.branches.items() if saved else ():
            git.run(repository, "update-ref", f"refs/heads/{name}", commit)

        config.set_variables({"ROLECALL_HOME": self.home})
        # Workflows come from the checkout, which the event chose, not from the thread's changes.
        rolecall = Rolecall(os.path.join(self.home, "store.db"), folder=checkout)
        if saved:
            with tempfile.TemporaryDirectory(dir=self.home) as folder:
                env = {"GIT_WORK_TREE": folder, "GIT_INDEX_FILE": os.path.join(folder, ".index")}
                git.run(repository, "read-tree", saved.commit, env=env)
                git.run(repository, "checkout-index", "--all", f"--prefix={folder}/", env=env)
                if os.path.isdir(kept := os.path.join(folder, _VERSIONS)):
                    shutil.copytree(kept, os.path.join(self.home, _VERSIONS))
                try:
                    rolecall.import_bundle(os.path.join(folder, _BUNDLE))
                except Damaged as error:
                    raise self._remote.damaged(self._key, error) from error
            rolecall.restore_folders()
        return rolecall

    def save(self, rolecall: Rolecall, record: SavedThread, key: str) -> SavedThread:
        """Save the thread for the next job with this `key`. Raise Conflict if another job has saved it since."""
        repository = self.repository
        listed = git.run(
            repository, "for-each-ref", "--format=%(refname:lstrip=2) %(objectname)", "refs/heads/rolecall/"
        )
        branches = dict(line.split(" ") for line in listed.text.splitlines())
        record = msgspec.structs.replace(
            record,
            head=git.commit(repository, "HEAD") or "",
            branch=git.branch(repository) or "",
            branches=branches,
        )
        with tempfile.TemporaryDirectory(dir=os.path.dirname(self.home)) as folder:
            if (newest := rolecall.newest_event()) != self._newest:
                rolecall.export(made := os.path.join(folder, _BUNDLE))
                os.replace(made, self._bundle)
                self._newest = newest
            os.link(self._bundle, os.path.join(folder, _BUNDLE))
            with open(os.path.join(folder, _RECORD), "wb") as file:
                file.write(msgspec.json.format(msgspec.json.encode(record)))
            if os.path.isdir(versions := os.path.join(self.home, _VERSIONS)):
                shutil.copytree(versions, os.path.join(folder, _VERSIONS))
            title = f"Rolecall: thread {record.thread}"
            parents = tuple(dict.fromkeys([record.head, *branches.values()]))
            commit = commit_folder(repository, folder, title, parents)
        self._remote.push(repository, commit, REFS + key, replaces=self._saved.get(key))
        self._saved[key] = commit
        return record

    def push_branch(self, folder: str, branch: str, message: str, *, base: str) -> bool:
        """Push the files in a thread's folder, committed or not, as a branch whose last commit has this message. Return
        False if the files equal those of `base`. Raise Conflict if somebody else made the branch's last commit."""
        head, ref = git.commit(folder, "HEAD") or "", f"refs/heads/{branch}"
        commit = commit_folder(folder, folder, message, (head,))
        if git.ask(folder, "diff", "--quiet", commit, base).code == 0:
            return False
        known = self._remote.find(ref)
        if known:
            self._remote.get(ref)
            form = f"--format=%cn <%ce>%x1f%(trailers:key={THREAD_TRAILER},valueonly)%x1f%T%x1f%B"
            (ours, _, *new), (who, trailer, *old) = (
                git.run(where, "log", "-1", form, one).text.split("\x1f")
                for where, one in ((folder, commit), (self._remote.checkout, known))
            )
            if who != ours or not trailer.strip():
                raise Conflict(
                    f"somebody else has pushed to {branch}, so it was left unchanged",
                    hint="Merge, rename or delete that branch, then run this job again.",
                )
            if new == old:
                return True
        self._remote.push(folder, commit, ref, replaces=known)
        return True


def commit_folder(repository: str, folder: str, title: str, parents: tuple[str, ...]) -> str:
    """Make a commit of all files in a folder without moving any branch, and return the commit."""
    with tempfile.TemporaryDirectory() as place:
        env = {"GIT_WORK_TREE": folder, "GIT_INDEX_FILE": os.path.join(place, "index")}
        env["GIT_DIR"] = git.run(repository, "rev-parse", "--absolute-git-dir").text
        if repository == folder:  # start from HEAD, so that tracked files stay even if they are ignored
            git.run(folder, "read-tree", "HEAD", env=env)
        forced = () if repository == folder else ("--force",)
        git.run(folder, "add", "--all", *forced, ".", env=env)
        tree = git.run(folder, "write-tree", env=env).text
        words = [word for parent in parents for word in ("-p", parent)]
        who = git.identity(repository)
        return git.run(repository, "commit-tree", tree, *words, "-m", title, settings=who).text


@contextmanager
def open_place(job: Job, remote: Remote, key: str, saved: Saved | None) -> Iterator[JobPlace]:
    """Make a new, empty folder for a thread, and remove it at the end."""
    root, name = job.folder, saved.record.place if saved else os.urandom(8).hex()
    try:
        os.makedirs(root, mode=0o700, exist_ok=True)
        about = os.lstat(root)
        problem = "" if about.st_uid == os.getuid() else "belongs to somebody else"
    except OSError as error:
        problem = f"cannot be made: {error.strerror}"
    if problem:
        raise UsageError(f"{root} {problem}", hint="Name another folder in ROLECALL_CI_FOLDER, for all jobs.")
    folder, before = os.path.join(root, name), config.home()
    with open(f"{folder}.lock", "w", encoding="ascii") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Conflict(f"another job on this machine works in {folder}") from None
        try:
            _remove(folder)  # the folder was left behind by a killed job, whose last save counts
            os.mkdir(folder, 0o700)
            yield JobPlace(folder, remote, key, saved)
        finally:
            config.set_variables({"ROLECALL_HOME": before})
            _remove(folder)
            os.unlink(lock.name)


def _remove(folder: str) -> None:
    if os.path.isdir(folder):
        for found, _, _ in os.walk(folder):  # some package caches contain read-only folders
            if not os.path.islink(found):
                os.chmod(found, 0o700)
        shutil.rmtree(folder)
