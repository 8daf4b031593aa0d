"""Runs git by argument lists, in the repository that is named and no other.

A hook of git may have started us with variables that point to its own repository; these are removed. Variables that
say who commits are kept. Hooks do not run, because an agent's unfinished work must be kept even if a hook would
refuse it as a commit; the one exception is a merge, which is the user's.
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
# An agent may have written the repository's configuration, so nothing that it names is run.
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
    """The result of a git command in `folder`, even if it failed. `holding` are open lock files that git inherits, so
    that they stay locked until git ends, even if we end before it."""
    given = (*_SETTINGS, *(() if with_hooks else (_NO_HOOKS,)), *settings)
    # Through `env`, so that our own environment is neither read nor changed.
    argv = ["env", *(word for name in _MISLEADING for word in ("-u", name))]
    argv += ["GIT_OPTIONAL_LOCKS=0", "GIT_TERMINAL_PROMPT=0"]
    argv += [f"{key}={value}" for key, value in (env or {}).items()]
    argv += ["git", "-C", folder, *(word for setting in given for word in ("-c", setting)), *args]
    done = subprocess.run(  # noqa: S603 -- no shell is involved
        argv, stdin=subprocess.DEVNULL, capture_output=True, check=False, pass_fds=holding
    )
    if done.returncode == 127:
        raise UsageError("git is not installed", hint="Install it, or let the workflow use other folders.")
    said = done.stderr.decode("utf-8", "replace") or done.stdout.decode("utf-8", "replace")
    return Result(done.returncode, done.stdout, " ".join(said.split())[:1000])


def run(
    folder: str,
    *args: str,
    settings: tuple[str, ...] = (),
    env: Mapping[str, str] | None = None,
    holding: tuple[int, ...] = (),
) -> Result:
    """Like `ask`, but failing is an error."""
    result = ask(folder, *args, settings=settings, env=env, holding=holding)
    if result.code:
        raise StorageError(
            f"git {args[0]} failed in {folder}: {result.err}", hint="Repair that, then try again."
        )
    return result


# -- small questions --


def commit(folder: str, name: str) -> str | None:
    """The commit that a name stands for, or None."""
    return ask(folder, "rev-parse", "--quiet", "--verify", f"{name}^{{commit}}").text or None


def identity(folder: str) -> tuple[str, ...]:
    """Who commits, as settings: from the environment, else git's configuration, else Rolecall."""
    # Without this setting git would make up a name from the account and the machine.
    known = (
        ask(folder, "var", who, settings=("user.useConfigOnly=true",)).code == 0
        for who in ("GIT_AUTHOR_IDENT", "GIT_COMMITTER_IDENT")
    )
    return () if all(known) else _OURSELVES


def contains(folder: str, name: str, commit: str) -> bool:
    """Whether a commit is in the history of the commit that a name stands for."""
    return ask(folder, "merge-base", "--is-ancestor", commit, name).code == 0


class Entry(NamedTuple):
    """A file as the index has it."""

    mode: str
    blob: str


def staged(folder: str, *paths: str, index: str | None = None) -> dict[str, Entry]:
    """The entries of git's index, or of another one, under these paths, without files that have conflicts."""
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
    """The branch that is checked out; None if HEAD is detached."""
    return ask(folder, "symbolic-ref", "--quiet", "--short", "HEAD").text or None


def uncommitted(folder: str) -> list[str]:
    """The paths in the work tree that differ from what is committed."""
    options = ("--porcelain", "-z", "--untracked-files=all", "--no-renames")
    return [record[3:] for record in run(folder, "status", *options).words]
