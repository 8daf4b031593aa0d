"""Run git with argument lists, and only in the given repository.

A git hook might have started us with variables that point to its own repository; these are removed. Variables that name
the committer are kept. Hooks do not run, because an agent's unfinished work must be committed even if a hook would
reject it. The one exception is a merge that the user asked for.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from signal import SIGINT
from typing import NamedTuple

from rolecall.errors import StorageError, UsageError
from rolecall.settings import config

_MISLEADING = (
    *("GIT_DIR", "GIT_WORK_TREE", "GIT_COMMON_DIR", "GIT_INDEX_FILE", "GIT_NAMESPACE", "GIT_PREFIX"),
    *("GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_QUARANTINE_PATH", "GIT_SHALLOW_FILE"),
    *("GIT_CONFIG", "GIT_CONFIG_PARAMETERS", "GIT_CONFIG_COUNT", "GIT_CEILING_DIRECTORIES"),
    *("GIT_GRAFT_FILE", "GIT_REPLACE_REF_BASE", "GIT_NO_REPLACE_OBJECTS", "GIT_IMPLICIT_WORK_TREE"),
    *("GIT_LITERAL_PATHSPECS", "GIT_GLOB_PATHSPECS", "GIT_NOGLOB_PATHSPECS", "GIT_ICASE_PATHSPECS"),
    *("GIT_REFLOG_ACTION", "GIT_DIFF_OPTS", "GIT_EXTERNAL_DIFF"),
)
# An agent might have changed the repository's configuration, so programs named there are not run.
_SETTINGS = ("core.fsmonitor=false", "core.quotePath=false", "color.ui=false", "gc.auto=0")
_NO_HOOKS = "core.hooksPath=/dev/null"
# Ssh might ask for a passphrase on the terminal, which only a process in the foreground can read.
_MAY_ASK = ("fetch", "ls-remote", "push")
_OURSELVES = ("user.name=Rolecall", "user.email=rolecall@localhost")


class GitResult(NamedTuple):
    code: int
    out: bytes
    err: str
    """Git's error output on one line."""

    @property
    def text(self) -> str:
        return os.fsdecode(self.out).rstrip("\n")

    @property
    def words(self) -> list[str]:
        """The fields of NUL-separated output (-z)."""
        return [os.fsdecode(word) for word in self.out.split(b"\0") if word]


def ask(
    folder: str,
    *args: str,
    settings: tuple[str, ...] = (),
    env: Mapping[str, str] | None = None,
    with_hooks: bool = False,
    holding: tuple[int, ...] = (),
    stdin: bytes = b"",
    timeout: float | None = None,
) -> GitResult:
    """Run a git command in `folder` and return its result, even if the command failed. Git inherits the open lock files
    in `holding`, so they stay locked until git ends, even if we end first. After `timeout` seconds, git is killed."""
    given = (*_SETTINGS, *(() if with_hooks else (_NO_HOOKS,)), *settings)
    argv = ["git", "-C", folder, *(word for setting in given for word in ("-c", setting)), *args]
    around = config.child_environment(GIT_OPTIONAL_LOCKS="0", GIT_TERMINAL_PROMPT="0")
    around = {key: value for key, value in around.items() if key not in _MISLEADING} | dict(env or {})
    is_foreground = with_hooks or args[0] in _MAY_ASK  # otherwise Ctrl-C reaches only us, not git
    try:
        child = subprocess.Popen(  # noqa: S603 -- no shell is involved
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=holding,
            env=around,
            process_group=None if is_foreground else 0,
        )
    except FileNotFoundError:
        hint = "Install it, or let the workflow use other folders."
        raise UsageError("git is not installed", hint=hint) from None
    with child:
        try:
            out, err = child.communicate(stdin, timeout)
        except subprocess.TimeoutExpired:
            child.kill()
            return GitResult(-1, b"", f"it took longer than {timeout:g} seconds")
        except BaseException:  # for example Ctrl-C
            # If git were killed instead, it could not remove its lock files.
            child.terminate()
            child.wait()
            raise
    # the signal came before git was in a process group of its own
    if child.returncode == -SIGINT and not is_foreground:
        return ask(folder, *args, settings=settings, env=env, holding=holding, stdin=stdin, timeout=timeout)
    said = err.decode("utf-8", "replace") or out.decode("utf-8", "replace")
    return GitResult(child.returncode, out, " ".join(said.split())[:1000])


def run(
    folder: str,
    *args: str,
    settings: tuple[str, ...] = (),
    env: Mapping[str, str] | None = None,
    holding: tuple[int, ...] = (),
    stdin: bytes = b"",
) -> GitResult:
    """Run a git command like `ask`, but raise an error if the command fails."""
    result = ask(folder, *args, settings=settings, env=env, holding=holding, stdin=stdin)
    if result.code:
        raise StorageError(
            f"git {args[0]} failed in {folder}: {result.err}", hint="Repair that, then try again."
        )
    return result


# -- queries --


def commit(folder: str, name: str) -> str | None:
    """Return the commit to which a name refers, or None if there is none."""
    return ask(folder, "rev-parse", "--quiet", "--verify", f"{name}^{{commit}}").text or None


def identity(folder: str) -> tuple[str, ...]:
    """Return git settings for the committer. They are empty if the environment or git's configuration names one;
    otherwise Rolecall is the committer."""
    # Without this setting, git would derive a name from the account and the machine.
    known = (
        ask(folder, "var", who, settings=("user.useConfigOnly=true",)).code == 0
        for who in ("GIT_AUTHOR_IDENT", "GIT_COMMITTER_IDENT")
    )
    return () if all(known) else _OURSELVES


def contains(folder: str, name: str, commit: str) -> bool:
    """Return whether a commit is in the history of the commit to which a name refers."""
    return ask(folder, "merge-base", "--is-ancestor", commit, name).code == 0


class IndexEntry(NamedTuple):
    """A file in git's index."""

    mode: str
    blob: str


def read_index(folder: str, *paths: str) -> dict[str, IndexEntry]:
    """Return the entries of git's index under these paths, except files with conflicts."""
    env, found = {"GIT_LITERAL_PATHSPECS": "1"}, {}
    for record in run(folder, "ls-files", "--stage", "-z", "--full-name", "--", *paths, env=env).words:
        (mode, blob, stage), path = record.partition("\t")[0].split(), record.partition("\t")[2]
        if stage == "0":
            found[path] = IndexEntry(mode, blob)
    return found


def has_branch(folder: str, name: str) -> bool:
    return commit(folder, f"refs/heads/{name}") is not None


def branch(folder: str) -> str | None:
    """Return the current branch, or None if HEAD is detached."""
    return ask(folder, "symbolic-ref", "--quiet", "--short", "HEAD").text or None


def list_uncommitted(folder: str) -> list[str]:
    """Return the paths in the work tree that differ from the current commit."""
    options = ("--porcelain", "-z", "--untracked-files=all", "--no-renames")
    return [record[3:] for record in run(folder, "status", *options).words]


def list_nested(top: str) -> list[str]:
    """Return the repositories inside a work tree whose files and commits are stored nowhere else, because git keeps
    only a link to them. A submodule is not one of them, because its repository is inside that of the work tree."""
    linked = (record.split("\t", 1) for record in run(top, "ls-files", "--stage", "-z").words)
    found = {path for about, path in linked if about.startswith("160000")}
    found.update(path.rstrip("/") for path in list_uncommitted(top) if path.endswith("/"))
    return sorted(path for path in found if os.path.isdir(os.path.join(top, path, ".git")))
