"""Whether what is installed in a host would work: its files, its servers, its hooks, the host itself.

What is tried is what stands in the files, not what would be written now: every server is started and asked for its
tools, every hook is fired with a sample. Hooks are fired at a project made for it, so nothing happens to the real one.
A repository may come from anybody: a program that lies in the project is run only if it is the one that runs now.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from tempfile import TemporaryDirectory, TemporaryFile

from rolecall import __version__
from rolecall.checks.machine import Check
from rolecall.errors import RolecallError
from rolecall.hosts import host_file, toml_text
from rolecall.hosts.file_change import read_text
from rolecall.hosts.installation import host_module, wiring_of
from rolecall.hosts.managed_block import installed, is_present
from rolecall.hosts.names import HOSTS
from rolecall.hosts.setup import Setup
from rolecall.nexus import tool_map
from rolecall.nexus.server_child import ServerChild, Unanswered

_PATIENCE = 10.0
_AT_ONCE = 8
_QUOTED = 200
_BEFORE_TOOLS = ("PreToolUse", "tool.execute.before")
"""What hosts call the event at which a tool can be refused; the sample for it is an edit."""
_QUIET = {"NO_COLOR": "1", "DISABLE_AUTOUPDATER": "1", "OPENCODE_DISABLE_AUTOUPDATE": "1"}


def check_hosts(setups: Sequence[Setup], *, blocks_edits: bool) -> list[Check]:
    """What there is to say of every host that has something of ours, in each scope; nothing of the others.
    `blocks_edits`: an edit that was not planned is to be refused."""
    there = {host: [one for one in setups if is_present(wiring_of(host, one))] for host in HOSTS}
    found: list[Check] = []
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        programs = {host: pool.submit(_program, host, scopes) for host, scopes in there.items() if scopes}
        for host, program in programs.items():
            scopes = there[host]
            checks = [_Examination(host, scope, pool).checks(blocks_edits=blocks_edits) for scope in scopes]
            found += [program.result(), *(check for one in checks for check in one), *_doubled(host, scopes)]
    return found


def _program(host: str, scopes: Sequence[Setup]) -> Check:
    """The host itself; its version is asked for while everything else is looked at, because some take seconds."""
    module, env = host_module(host), scopes[0].env
    path = shutil.which(module.PROGRAM, path=env.get("PATH", os.defpath))
    if path is None:
        fix = f"Install {module.TITLE}, or take this out: rolecall uninstall {host}"
        return Check(host, "warning", f"the program {module.PROGRAM} was not found", fix)
    try:
        told = _run([path, "--version"], "", os.path.dirname(path), {**env, **_QUIET})
    except subprocess.TimeoutExpired:
        text = f"{path} did not tell its version within {_PATIENCE:g} s"
        return Check(host, "warning", text, f"Run {module.PROGRAM} --version by hand.")
    except OSError as exc:
        return Check(host, "warning", f"{path} does not run: {exc.strerror}", f"Install {module.TITLE} anew.")
    version = re.search(r"\d+(?:\.\d+)+", told.stdout)
    return Check(host, "ok", f"{path}, version {version[0] if version else 'unknown'}")


def _doubled(host: str, scopes: Sequence[Setup]) -> Iterator[Check]:
    if len({one.scope for one in scopes}) > 1:
        text = (
            "the hooks of the project and those of the user are there, so each runs twice: calls are logged twice, and"
            " the model is told everything twice"
        )
        yield Check(host, "warning", text, f"rolecall uninstall {host} --user, or --project")


class _Examination:
    """One host in one scope."""

    def __init__(self, host: str, setup: Setup, pool: Executor) -> None:
        self._host = host
        self._module = host_module(host)
        self._setup = setup
        self._pool = pool
        self._name = f"{host} ({setup.scope})"
        scope = shlex.join(["--project", setup.project]) if setup.scope == "project" else "--user"
        self._fix = f"rolecall install {host} {scope}"

    def checks(self, *, blocks_edits: bool) -> list[Check]:
        obstacles = [Check(self._name, "warning", *one) for one in self._module.obstacles(self._setup)]
        checks = [*obstacles, *self._files()]
        try:
            commands = self._module.commands(self._setup)
        except RolecallError:  # a file cannot be read, which its check says
            return checks
        with TemporaryDirectory(prefix="rolecall-doctor-") as folder:
            _make_project(folder)
            checks += self._servers(commands.servers, folder)
            checks += self._hooks(commands.hooks, folder, blocks_edits=blocks_edits)
        return checks

    def _ok(self, text: str) -> Check:
        return Check(self._name, "ok", text)

    def _problem(self, text: str, fix: str = "") -> Check:
        return Check(self._name, "problem", text, fix or self._fix)

    # -- files --

    def _files(self) -> Iterator[Check]:
        try:
            changes = installed(wiring_of(self._host, self._setup))
        except RolecallError as error:
            yield self._problem(error.message, error.hint)
            return
        if missing := [change.path for change in changes if change.state == "new"]:
            yield self._problem(f"missing: {_listed(missing)}")
        if others := [change.path for change in changes if change.state in ("changed", "removed")]:
            this = f"this Rolecall ({__version__}, {shlex.join(self._setup.command)})"
            yield Check(self._name, "warning", f"other than {this} writes: {_listed(others)}", self._fix)
        for change in changes:
            if change.note:
                yield Check(self._name, "warning", f"{change.path}: {change.note}", f"{self._fix} --force")
            if change.state == "kept" and (fault := _unloadable(change.path)):
                yield self._problem(f"{change.path} was changed so that no host can load it: {fault}")
        if current := sum(change.state == "same" for change in changes):
            yield self._ok(f"{_counted(current, 'file is', 'files are')} up to date")

    # -- servers --

    def _servers(self, servers: Mapping[str, tuple[str, ...]], folder: str) -> Iterator[Check]:
        """All of them side by side: hosts start as many, too."""
        tried = list(self._pool.map(lambda words: self._tools(words, folder), servers.values()))
        troubles = {name: found for name, found in zip(servers, tried, strict=True) if isinstance(found, str)}
        yield from self._troubles("server", troubles)
        good = [found for found in tried if not isinstance(found, str)]
        if good:
            answering = _counted(len(good), "server answers", "servers answer")
            yield self._ok(f"{answering}, with up to {max(map(len, good))} tools")

    def _tools(self, words: tuple[str, ...], folder: str) -> list[str] | str:
        """The tools of a server, or what is wrong with it."""
        if reason := self._why_not(words):
            return reason
        with TemporaryFile() as said:
            command = _in_project(words, folder)
            child = ServerChild(folder, self._setup.env, command=command, stderr=said, patience=_PATIENCE)
            try:
                tools = child.tools()
            except (OSError, Unanswered) as exc:
                said.seek(0)
                last = said.read()[-_QUOTED:].decode(errors="replace").strip().rpartition("\n")[2]
                return _unstarted(words, last or exc)
            finally:
                child.close()
        forbidden = sorted(set(tools).intersection(tool_map.LEAD_ONLY)) if "--agent" in words else []
        return f"had tools that are Lead's: {', '.join(forbidden)}" if forbidden else tools

    # -- hooks --

    def _hooks(
        self, hooks: Mapping[str, tuple[str, ...]], folder: str, *, blocks_edits: bool
    ) -> Iterator[Check]:
        """One after the other, so that the time is what one takes."""
        slowest, troubles = 0.0, dict[str, str]()
        for event, words in hooks.items():
            begun = time.perf_counter()
            trouble = self._why_not(words) or self._fired(event, words, folder, blocks_edits=blocks_edits)
            slowest = max(slowest, time.perf_counter() - begun)
            troubles |= {event: trouble} if trouble else {}
        yield from self._troubles("hook", troubles)
        if good := len(hooks) - len(troubles):
            answering = _counted(good, "hook answers", "hooks answer")
            yield self._ok(f"{answering} (slowest {slowest * 1000:.0f} ms)")

    def _fired(self, event: str, words: Sequence[str], folder: str, *, blocks_edits: bool) -> str:
        """What is wrong with a hook; empty when nothing is."""
        payload = json.dumps(self._module.sample(event, folder))
        try:
            # Where an agent runs doctor, Claude Code may have told it a folder, which is the real project.
            env = {**self._setup.env, "CLAUDE_PROJECT_DIR": folder}
            done = _run(_in_project(words, folder), payload, folder, env)
        except subprocess.TimeoutExpired:
            return f"did not answer within {_PATIENCE:g} s"
        except OSError as exc:
            return _unstarted(words, exc)
        if done.returncode != 0:
            return f"ended with {done.returncode}: {' '.join(done.stderr.split())[:_QUOTED]}"
        if event in _BEFORE_TOOLS and blocks_edits and not self._module.is_refusal(done.stdout):
            return "let an edit pass that nobody had planned"
        return ""

    # -- both --

    def _why_not(self, words: Sequence[str]) -> str:
        """Why a command is not run; empty where it may be."""
        own, project = self._setup.command, self._setup.project
        if not words:
            return "went missing"
        if place := _other_project(words, project):
            return f"would act on {place}, not on this project" if project else f"would act on {place} alone"
        if not project or tuple(words[: len(own)]) == own or os.sep not in words[0]:
            return ""
        path, root = os.path.join(project, words[0]), os.path.realpath(project)
        ways = [os.path.normpath(path), os.path.realpath(path)]
        if any(os.path.commonpath([root, way]) == root for way in ways):
            return f"could not be tried: {words[0]} lies in the project and is not this Rolecall"
        return ""

    def _troubles(self, what: str, troubles: Mapping[str, str]) -> Iterator[Check]:
        """One problem for all that have the same trouble."""
        names: dict[str, list[str]] = {}
        for name, trouble in troubles.items():
            names.setdefault(trouble, []).append(name)
        for trouble, found in names.items():
            yield self._problem(f"the {what}{'s' if len(found) > 1 else ''} {_listed(found)} {trouble}")


def _unloadable(path: str) -> str:
    """Why an agent or a skill that somebody changed cannot be loaded; empty where nothing speaks against it."""
    text = read_text(path) or ""
    try:
        if path.endswith(".toml"):
            toml_text.parse(text)
        if not path.endswith(".md"):
            return ""
        fields = host_file.head_of(text)
    except RolecallError as error:
        return " ".join(error.message.split())[:_QUOTED]
    missing = [key for key in ("name", "description") if not fields.get(key)]
    return f"it has no {' and no '.join(missing)}" if missing else ""


def _other_project(words: Sequence[str], project: str) -> str:
    """The project that a command names, if that is another than it stands in: the folder was copied, or moved."""
    named = words[words.index("--project") + 1] if "--project" in words[:-1] else ""
    return named if named and os.path.realpath(named) != project else ""


def _in_project(words: Sequence[str], folder: str) -> list[str]:
    """The same command for another project, where it names one."""
    given = list(words)
    if "--project" in given[:-1]:
        given[given.index("--project") + 1] = folder
    return given


def _make_project(folder: str) -> None:
    """A project with nothing planned in it; in the scope of the user, hooks look for both of these."""
    for name in (".git", ".nexus"):
        os.makedirs(os.path.join(folder, name), exist_ok=True)
    with open(os.path.join(folder, ".git", "HEAD"), "w", encoding="utf-8") as file:
        file.write("ref: refs/heads/main\n")


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


def _unstarted(words: Sequence[str], reason: object) -> str:
    return f"could not be started: {getattr(reason, 'strerror', None) or reason} ({words[0]})"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _counted(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"
