"""Runs git: by argument lists, in the repository that is named and no other.

Whoever started us may itself be a hook of git, with variables set that point to its own repository; they are
taken away. Those that say who commits are not: whoever sets them means it. Hooks do not run, because nothing
here is what they were written for: an agent's half-done work must be kept even where a hook would refuse it as
a commit. The one exception is a merge, which is the user's.
What the answers mean is up to the caller.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from typing import NamedTuple

from rolecall.errors import StorageError, UsageError

_MISLEADING = (
    *("GIT_DIR", "GIT_WORK_TREE", "GIT_COMMON_DIR", "GIT_INDEX_FILE", "GIT_NAMESPACE", "GIT_PREFIX"),
    *("GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_QUARANTINE_PATH", "GIT_SHALLOW_FILE"),
    *("GIT_CONFIG", "GIT_CONFIG_PARAMETERS", "GIT_CONFIG_COUNT", "GIT_CEILING_DIRECTORIES"),
    *("GIT_GRAFT_FILE", "GIT_REPLACE_REF_BASE", "GIT_NO_REPLACE_OBJECTS", "GIT_IMPLICIT_WORK_TREE"),
    *("GIT_LITERAL_PATHSPECS", "GIT_GLOB_PATHSPECS", "GIT_NOGLOB_PATHSPECS", "GIT_ICASE_PATHSPECS"),
    *("GIT_REFLOG_ACTION", "GIT_DIFF_OPTS", "GIT_EXTERNAL_DIFF"),
)
# A repository's configuration may be an agent's work: nothing it names is run just because we look.
_SETTINGS = ("core.fsmonitor=false", "core.quotePath=false", "color.ui=false", "gc.auto=0")
_NO_HOOKS = "core.hooksPath=/dev/null"
_OURSELVES = ("user.name=Rolecall", "user.email=rolecall@localhost")


class Result(NamedTuple):
    code: int
    out: bytes
    err: str
    """What git said, in one line."""

    @property
    def text(self) -> str:
        return os.fsdecode(self.out).rstrip("\n")

    @property
    def words(self) -> list[str]:
        """The parts of an answer given with -z."""
        return [os.fsdecode(word) for word in self.out.split(b"\0") if word]


def ask(
    folder: str,
    *args: str,
    settings: tuple[str, ...] = (),
    env: Mapping[str, str] | None = None,
    with_hooks: bool = False,
    holding: tuple[int, ...] = (),
) -> Result:
    """What git answers in `folder`, whether it succeeded or not. `holding` are locks of ours, open files, that
    are free again when git has ended, also where we end before it."""
    given = (*_SETTINGS, *(() if with_hooks else (_NO_HOOKS,)), *settings)
    return _run(folder, args, given, env or {}, holding)


def run(
    folder: str,
    *args: str,
    settings: tuple[str, ...] = (),
    env: Mapping[str, str] | None = None,
    holding: tuple[int, ...] = (),
) -> Result:
    """The same where it has to succeed."""
    result = ask(folder, *args, settings=settings, env=env, holding=holding)
    if result.code:
        raise StorageError(
            f"git {args[0]} failed in {folder}: {result.err}", hint="Put that right, then try again."
        )
    return result


def _run(
    folder: str,
    args: tuple[str, ...],
    settings: tuple[str, ...],
    env: Mapping[str, str],
    holding: tuple[int, ...],
) -> Result:
    # By way of `env`, so that ours is neither read nor changed.
    argv = ["env", *(word for name in _MISLEADING for word in ("-u", name))]
    argv += [
        "GIT_OPTIONAL_LOCKS=0",
        "GIT_TERMINAL_PROMPT=0",
        *(f"{key}={value}" for key, value in env.items()),
    ]
    argv += ["git", "-C", folder, *(word for setting in settings for word in ("-c", setting)), *args]
    done = subprocess.run(  # noqa: S603 -- no shell is involved
        argv, stdin=subprocess.DEVNULL, capture_output=True, check=False, pass_fds=holding
    )
    if done.returncode == 127:
        raise UsageError("git is not installed", hint="Install it, or let the workflow use other folders.")
    said = done.stderr.decode("utf-8", "replace") or done.stdout.decode("utf-8", "replace")
    return Result(done.returncode, done.stdout, " ".join(said.split())[:1000])


# -- small questions --


def commit(folder: str, name: str) -> str | None:
    """The commit that a name stands for; None when there is none."""
    return ask(folder, "rev-parse", "--quiet", "--verify", f"{name}^{{commit}}").text or None


def identity(folder: str) -> tuple[str, ...]:
    """Who commits, as settings: whoever the environment names, else git's configuration, else ourselves."""
    # Git would make up a name from the account and the machine's.
    known = (
        ask(folder, "var", who, settings=("user.useConfigOnly=true",)).code == 0
        for who in ("GIT_AUTHOR_IDENT", "GIT_COMMITTER_IDENT")
    )
    return () if all(known) else _OURSELVES


def contains(folder: str, name: str, commit: str) -> bool:
    """Whether a commit is in the history of what a name stands for."""
    return ask(folder, "merge-base", "--is-ancestor", commit, name).code == 0


class Entry(NamedTuple):
    """A file as the index has it."""

    mode: str
    blob: str


def staged(folder: str, *paths: str, index: str | None = None) -> dict[str, Entry]:
    """What git's index, or another one, has under these paths; files with conflicts are left out."""
    env = {"GIT_LITERAL_PATHSPECS": "1", **({"GIT_INDEX_FILE": index} if index else {})}
    found = {}
    for record in run(folder, "ls-files", "--stage", "-z", "--full-name", "--", *paths, env=env).words:
        (mode, blob, stage), path = record.partition("\t")[0].split(), record.partition("\t")[2]
        if stage == "0":
            found[path] = Entry(mode, blob)
    return found


def has_branch(folder: str, name: str) -> bool:
    return commit(folder, f"refs/heads/{name}") is not None


def branch(folder: str) -> str | None:
    """The branch that is checked out; None when HEAD is on none."""
    return ask(folder, "symbolic-ref", "--quiet", "--short", "HEAD").text or None


def uncommitted(folder: str) -> list[str]:
    """What in the work tree is not as it was committed, by path."""
    options = ("--porcelain", "-z", "--untracked-files=all", "--no-renames")
    return [record[3:] for record in run(folder, "status", *options).words]
