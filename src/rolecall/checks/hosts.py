"""Check whether our installation in a host works: the files, the servers, the hooks, and the host itself.

The checks try the commands that are in the files now, not those that an installation would write: every server is
started and asked for its tools, and every hook is run with a sample payload. Hooks run in a temporary project, so the
real project is not touched. A repository can come from anybody, so a program inside the project is run only if it is
the running Rolecall.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from tempfile import TemporaryDirectory, TemporaryFile
from typing import NamedTuple

from rolecall import __version__
from rolecall.agents.identity import QUIET, version_in
from rolecall.checks.machine import Check
from rolecall.errors import Hint, RolecallError
from rolecall.hosts import host_file
from rolecall.hosts.file_change import read_text
from rolecall.hosts.installation import host_module, is_present, parse, plan_install, wiring_of
from rolecall.hosts.names import HOSTS
from rolecall.hosts.setup import HostSetup
from rolecall.nexus import dispatch
from rolecall.nexus.server_child import ServerChild, Unanswered
from rolecall.settings import config

_PATIENCE = 10.0
_AT_ONCE = 8
_LONGEST_QUOTE = 200
_BEFORE_TOOLS = ("PreToolUse", "tool.execute.before")
"""The hosts' names for the event in which a tool can be refused. The sample payload of this event is an edit."""


def check_hosts(setups: Sequence[HostSetup], *, blocks_edits: bool) -> list[Check]:
    """Check every host in which something of ours is installed, in each scope. `blocks_edits` says whether hooks should
    refuse an edit that is not covered by a task."""
    found: list[Check] = []
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        present = {host: [one for one in setups if is_present(wiring_of(host, one))] for host in HOSTS}
        # Some hosts take seconds to print their version, so ask all of them at once while the other checks run.
        some = {host: scopes for host, scopes in present.items() if scopes}
        programs = {host: pool.submit(_check_program, host, scopes[0].env) for host, scopes in some.items()}
        for host, program in programs.items():
            scopes = [_Scope(host, setup) for setup in present[host]]
            tried = [check for scope in scopes for check in scope.check(pool, blocks_edits=blocks_edits)]
            found += [program.result(), *tried]
            if len({one.scope for one in present[host]}) > 1:
                text = (
                    "the hooks are installed for the project and for the user, so each runs twice: calls are logged"
                    " twice, and the model sees everything twice"
                )
                fix = Hint("Keep one of them", "uninstall_scope", host=host)
                found.append(Check(host, "warning", text, fix))
    return found


def _check_program(host: str, env: Mapping[str, str]) -> Check:
    module = host_module(host)
    path = shutil.which(module.PROGRAM, path=env.get("PATH", os.defpath))
    if path is None:
        fix = Hint(f"Install {module.TITLE}, or take this out", "uninstall_host", host=host)
        return Check(host, "warning", f"the program {module.PROGRAM} was not found", fix)
    try:
        done = _run([path, "--version"], "", os.path.dirname(path), {**env, **QUIET})
    except subprocess.TimeoutExpired:
        text = f"{path} did not print its version within {_PATIENCE:g} s"
        return Check(host, "warning", text, f"Run {module.PROGRAM} --version by hand.")
    except OSError as exc:
        return Check(host, "warning", f"{path} does not run: {exc.strerror}", f"Reinstall {module.TITLE}.")
    return Check(host, "ok", f"{path}, version {version_in(done.stdout) or 'unknown'}")


class _Scope(NamedTuple):
    """One host in one scope."""

    host: str
    setup: HostSetup

    @property
    def name(self) -> str:
        return f"{self.host} ({self.setup.scope})"

    @property
    def fix(self) -> Hint:
        return self._install("Install it again")

    def _install(self, advice: str, *, force: bool = False) -> Hint:
        project = self.setup.project if self.setup.scope == "project" else ""
        return Hint(advice, "install_host", host=self.host, project=project, user=not project, force=force)

    def check(self, pool: Executor, *, blocks_edits: bool) -> Iterator[Check]:
        module = host_module(self.host)
        for obstacle in module.obstacles(self.setup):
            yield Check(self.name, "warning", *obstacle)
        yield from self._check_files()
        try:
            commands = module.commands(self.setup)
        except RolecallError:  # the check of the files reports an unreadable file
            return
        with TemporaryDirectory(prefix="rolecall-doctor-") as folder:
            # In the user's scope, hooks act only in folders that contain a repository and a project.
            for name in (".git", ".nexus"):
                os.mkdir(os.path.join(folder, name))
            with open(os.path.join(folder, ".git", "HEAD"), "w", encoding="utf-8") as file:
                file.write("ref: refs/heads/main\n")

            # Start all servers at once, as hosts do.
            def try_server(words: tuple[str, ...]) -> int | str:
                return self._why_not(words) or self._try_server(words, folder)

            answers = list(pool.map(try_server, commands.servers.values()))
            servers = zip(commands.servers, answers, strict=True)
            yield from self._report("server", {name: text for name, text in servers if isinstance(text, str)})
            if counts := [answer for answer in answers if isinstance(answer, int)]:
                answering = _count(len(counts), "server answers", "servers answer")
                yield Check(self.name, "ok", f"{answering}, with up to {max(counts)} tools")

            # Run the hooks one after the other, so that each is timed on its own.
            slowest, troubles = 0.0, dict[str, str]()
            for event, words in commands.hooks.items():
                start = time.perf_counter()
                trouble = self._why_not(words) or self._try_hook(event, words, folder, blocks_edits)
                slowest = max(slowest, time.perf_counter() - start)
                troubles |= {event: trouble} if trouble else {}
            yield from self._report("hook", troubles)
            if good := len(commands.hooks) - len(troubles):
                answering = _count(good, "hook answers", "hooks answer")
                yield Check(self.name, "ok", f"{answering} (slowest {slowest * 1000:.0f} ms)")

    def _check_files(self) -> Iterator[Check]:
        try:
            changes = plan_install(wiring_of(self.host, self.setup))
        except RolecallError as error:
            yield Check(self.name, "problem", error.message, error.hint or self.fix)
            return
        if missing := [change.path for change in changes if change.state == "new"]:
            yield Check(self.name, "problem", f"missing: {_join(missing)}", self.fix)
        if others := [change.path for change in changes if change.state in ("changed", "removed")]:
            this = f"this Rolecall ({__version__}, {shlex.join(self.setup.command)})"
            yield Check(self.name, "warning", f"other than {this} writes: {_join(others)}", self.fix)
        for change in changes:
            if change.note:
                fix = self._install("Replace it", force=True)
                yield Check(self.name, "warning", f"{change.path}: {change.note}", fix)
            if change.state == "kept" and (fault := _find_fault(change.path)):
                text = f"{change.path} was changed so that no host can load it: {fault}"
                yield Check(self.name, "problem", text, self.fix)
        if current := sum(change.state == "same" for change in changes):
            yield Check(self.name, "ok", f"{_count(current, 'file is', 'files are')} up to date")

    def _try_server(self, words: tuple[str, ...], folder: str) -> int | str:
        """Return the number of a server's tools, or a description of the problem."""
        with TemporaryFile() as stderr:
            command = _with_project(words, folder)
            child = ServerChild(folder, self.setup.env, command=command, stderr=stderr, patience=_PATIENCE)
            try:
                tools = child.tools()
            except (OSError, Unanswered) as exc:
                stderr.seek(0)
                last = stderr.read()[-_LONGEST_QUOTE:].decode(errors="replace").strip().rpartition("\n")[2]
                reason = last or getattr(exc, "strerror", None) or str(exc)
                return f"could not be started: {reason} ({words[0]})"
            finally:
                child.close()
        forbidden = sorted(set(tools).intersection(dispatch.LEAD_ONLY))
        if forbidden and {"--as", "--agent"}.intersection(words):
            return f"had tools that are Lead's: {', '.join(forbidden)}"
        return len(tools)

    def _try_hook(self, event: str, words: Sequence[str], folder: str, blocks_edits: bool) -> str:
        module = host_module(self.host)
        # If an agent runs doctor, Claude Code might have set this variable to the real project.
        env = {**self.setup.env, config.SESSION_FOLDER: folder}
        try:
            payload = json.dumps(module.sample(event, folder))
            done = _run(_with_project(words, folder), payload, folder, env)
        except subprocess.TimeoutExpired:
            return f"did not answer within {_PATIENCE:g} s"
        except OSError as exc:
            return f"could not be started: {exc.strerror} ({words[0]})"
        if done.returncode != 0:
            return f"ended with {done.returncode}: {' '.join(done.stderr.split())[:_LONGEST_QUOTE]}"
        if event in _BEFORE_TOOLS and blocks_edits and not module.is_refusal(done.stdout):
            return "let an unplanned edit pass"
        return ""

    def _why_not(self, words: Sequence[str]) -> str:
        own, project = self.setup.command, self.setup.project
        if not words:
            return "went missing"
        named = words[words.index("--project") + 1] if "--project" in words[:-1] else ""
        if named and os.path.realpath(named) != project:  # the folder was copied or moved
            return f"would act on {named}, not on this project" if project else f"would act on {named} alone"
        if not project or tuple(words[: len(own)]) == own or os.sep not in words[0]:
            return ""
        path, root = os.path.join(project, words[0]), os.path.realpath(project)
        for place in (os.path.normpath(path), os.path.realpath(path)):
            if os.path.commonpath([root, place]) == root:
                whose = "does not belong to the Rolecall installation that is running"
                return f"could not be tried: {words[0]} is inside the project and {whose}"
        return ""

    def _report(self, kind: str, troubles: Mapping[str, str]) -> Iterator[Check]:
        """Yield one problem for all commands that share it."""
        for trouble in dict.fromkeys(troubles.values()):
            names = [name for name, found in troubles.items() if found == trouble]
            text = f"the {kind}{'s' if len(names) > 1 else ''} {_join(names)} {trouble}"
            yield Check(self.name, "problem", text, self.fix)


def _find_fault(path: str) -> str:
    text = read_text(path) or ""
    try:
        if path.endswith(".toml"):
            parse(path, text)
        if not path.endswith(".md"):
            return ""
        fields = host_file.read_head(text)
    except RolecallError as error:
        return " ".join(error.message.split())[:_LONGEST_QUOTE]
    missing = [key for key in ("name", "description") if not fields.get(key)]
    return f"it has no {' and no '.join(missing)}" if missing else ""


def _with_project(words: Sequence[str], folder: str) -> list[str]:
    """Return the command with `folder` as its project, if the command names a project."""
    given = list(words)
    if "--project" in given[:-1]:
        given[given.index("--project") + 1] = folder
    return given


def _run(
    words: Sequence[str], text: str, folder: str, env: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603 -- no shell is involved
        list(words),
        input=text,
        cwd=folder,
        env=dict(env),
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        timeout=_PATIENCE,
        check=False,
    )


def _join(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _count(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"
