"""Check the agents that workflows need: their programs, versions, sign-ins and flags.

Results are values; `cli/doctor.py` prints them. No check costs money: programs are only asked for their version and
help, and a sign-in is detected by environment variables that are set and files that exist.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, NamedTuple

from rolecall import agents
from rolecall.agents import PROGRAMS, process
from rolecall.agents.acp_presets import PRESETS
from rolecall.agents.identity import QUIET, version_in
from rolecall.agents.presence import adapter_of, check_present, env_of, find_program, locate, program_of
from rolecall.agents.program import Program
from rolecall.checks.machine import Check, check_collector, check_extract
from rolecall.errors import AgentError, NotFound, RolecallError
from rolecall.settings.form import did_you_mean
from rolecall.settings.settings import NAME_AN_AGENT, Settings
from rolecall.threads.setup import Cast, Casting
from rolecall.workflow.model import StoredRole, Workdir, workdir_of
from rolecall.workflow.playbook import Playbook, players

_AT_ONCE = 2
_MAX_OUTPUT = 512 * 1024
_MAX_QUOTE = 300

State = Literal["ready", "not installed", "does not run", "does not fit", "not signed in"]


class Trouble(NamedTuple):
    """A problem. `fix` says how to repair it."""

    text: str
    fix: str = ""


class SignIn(NamedTuple):
    state: Literal["yes", "no", "unknown"]
    how: str
    """The evidence, which is the name of a variable or file, never its contents."""


class DoctorPlace(NamedTuple):
    """The environment in which agents would run, and the folder in which threads would work."""

    env: Mapping[str, str]
    folder: Path
    patience: float = 10.0
    """Seconds to wait for a program."""


@dataclass(frozen=True)
class AgentFinding:
    """The result of checking one agent."""

    agent: str
    program: str = ""
    """The command that starts the agent, or empty if the agent needs no program."""
    path: str | None = None
    version: str | None = None
    signed_in: SignIn | None = None
    """Whether the agent is signed in, or None if there is nothing to sign in to."""
    missing_flags: tuple[str, ...] = ()
    state: State = "ready"
    troubles: tuple[Trouble, ...] = ()

    @property
    def is_ready(self) -> bool:
        return self.state == "ready"


@dataclass(frozen=True)
class AgentNeed:
    """A role, and the agent that would play it."""

    workflow: str
    role: str
    entry: StoredRole
    workdir: Workdir
    cast: Cast | None
    """The agent, or None if none was found, in which case `trouble` says why."""
    trouble: Trouble | None = None
    lacks_agent: bool = False
    """Whether nobody has chosen an agent for the role."""


@dataclass(frozen=True)
class Diagnosis:
    checks: tuple[Check, ...]
    needs: tuple[AgentNeed, ...]
    findings: Mapping[str, AgentFinding]
    """The findings by label, for the agents that are needed and those that were requested in addition."""
    others: Mapping[str, bool] = field(default_factory=dict)
    """The agents that are known but have no finding, and whether each is installed."""
    unready: tuple[AgentFinding, ...] = ()
    """The agents that could be made ready. Empty if an agent is ready, or none is needed."""

    @property
    def is_ready(self) -> bool:
        return not self.troubles()

    def needs_for(self, label: str) -> list[AgentNeed]:
        return [need for need in self.needs if need.cast is not None and label_of(need.cast) == label]

    def troubles(self) -> list[Trouble]:
        """Return the problems that keep workflows from running. An agent that no role needs does not count."""
        found = [Trouble(check.text, check.fix) for check in self.checks if check.state == "problem"]
        without_agent: dict[str, list[str]] = {}
        choose_one = ""
        for need in self.needs:
            if need.trouble is not None and need.lacks_agent:
                without_agent.setdefault(need.workflow, []).append(need.role)
                choose_one = need.trouble.fix
            elif need.trouble is not None:
                found.append(need.trouble._replace(text=f"{need.workflow}, {need.role}: {need.trouble.text}"))
        if without_agent:
            roles = ", ".join(f"{name} ({', '.join(names)})" for name, names in without_agent.items())
            found.append(Trouble(f"no agent is chosen for {roles}", choose_one))
        for label, finding in self.findings.items():
            if self.needs_for(label):
                found += [one._replace(text=f"{label}: {one.text}") for one in finding.troubles]
        return found


async def diagnose(
    needs: Sequence[AgentNeed],
    place: DoctorPlace,
    *,
    settings: Settings,
    besides: Sequence[Cast] = (),
    checks: Sequence[Check] = (),
) -> Diagnosis:
    """Check every needed agent, the agents in `besides`, git, the endpoints and the collector of traces."""
    wanted = [*(need.cast for need in needs if need.cast is not None), *besides]
    casts: dict[str, Cast] = {}
    for cast in wanted:
        casts.setdefault(label_of(cast), cast)
    findings, git, endpoints, traces = await asyncio.gather(
        examine(casts.values(), place),
        _check_git(place, is_needed=any(need.workdir == "worktree" for need in needs)),
        check_extract([need.entry.extract for need in needs], settings, place.env),
        check_collector(settings, place.env),
    )
    found = dict(zip(casts, findings, strict=True))
    return Diagnosis((*checks, git, *endpoints, *traces), tuple(needs), found)


# -- what workflows need --


def needs_of(books: Iterable[Playbook], casting: Casting, find: Callable[[str], Playbook]) -> list[AgentNeed]:
    """Return the needs of every role of these workflows, and of the workflows that play their roles."""
    needs: list[AgentNeed] = []
    waiting, seen = list(books), set[str]()
    while waiting:
        book = waiting.pop(0)
        if book.workflow.name in seen:
            continue
        seen.add(book.workflow.name)
        for role, played_book in players(book):
            if role in book.functions:
                continue
            about = played_book.workflow.roles[role]
            need = AgentNeed(book.workflow.name, role, about, workdir_of(book.workflow, role), None)
            try:
                cast = casting(played_book, role)
                need = replace(need, cast=cast)
                if adapter_of(cast.agent) == "workflow" and (played := getattr(cast.agent, "workflow", "")):
                    waiting.append(find(played))
            except RolecallError as error:
                trouble = Trouble(error.message, error.hint)
                lacks_agent = error.hint == NAME_AN_AGENT
                need = replace(need, cast=None, trouble=trouble, lacks_agent=lacks_agent)
            needs.append(need)
    return needs


# -- agents --


def known_agents() -> list[Cast]:
    """Return the agents that have an adapter of their own, without options."""
    return [Cast(name, agents.make(name, {})) for name in (*PROGRAMS, "builtin")]


def preset_agents() -> list[Cast]:
    """Return the agents that have a preset for the Agent Client Protocol."""
    return [Cast(f"acp:{name}", agents.acp(name)) for name in PRESETS]


def find_agents(names: Collection[str], place: DoctorPlace) -> dict[str, AgentFinding]:
    """Check known agents without asking for their flags. Without `names`, check those that are programs."""
    names = (names,) if isinstance(names, str) else names
    known = {cast.name: cast for cast in known_agents()}
    if not known.keys() >= set(names):
        known |= {cast.name: cast for cast in preset_agents()}
    for name in names:
        if name not in known:
            raise NotFound(f"unknown agent {name!r}", hint=did_you_mean(name, known, what="Known"))
    casts = [known[name] for name in names or PROGRAMS]
    findings = asyncio.run(examine(casts, place, has_flags=False))
    return {cast.name: finding for cast, finding in zip(casts, findings, strict=True)}


def explain_absence(agent: object, env: Mapping[str, str], folder: Path | None = None) -> Trouble | None:
    """Return why an agent cannot be started, as far as this can be seen without starting it, or None if it can."""
    try:
        check_present(agent, env=env, folder=folder)
    except NotFound as error:
        return Trouble(error.message, error.hint)
    return None


def label_of(cast: Cast) -> str:
    """Return the agent's label. Agents with the same label are checked once, because the model makes no difference."""
    agent = cast.agent
    if isinstance(agent, Program) and not agent.executable and not getattr(agent, "env", None):
        return agent.name
    return cast.name


async def examine(casts: Iterable[Cast], place: DoctorPlace, *, has_flags: bool = True) -> list[AgentFinding]:
    """Check the agents, a few at a time, and with `has_flags` also the flags that the adapters use."""
    gate = asyncio.Semaphore(_AT_ONCE)

    async def examine_one(cast: Cast) -> AgentFinding:
        async with gate:
            return await _examine(cast, place, has_flags=has_flags)

    return await asyncio.gather(*map(examine_one, casts))


async def _examine(cast: Cast, place: DoctorPlace, *, has_flags: bool) -> AgentFinding:
    agent, program = cast.agent, program_of(cast.agent)
    found = AgentFinding(label_of(cast), program, signed_in=_find_sign_in(agent, place.env))
    absent = explain_absence(agent, place.env, place.folder)
    if absent is not None:
        trouble = absent._replace(fix=absent.fix.removeprefix("Install it: "))
        return replace(found, state="not installed", troubles=(trouble,))
    if program:
        found = replace(found, path=locate(agent, env=place.env, folder=place.folder))

    # Do not ask an unknown command for its version, because running it could do anything.
    if isinstance(agent, Program):
        path, around, help = found.path or "", place._replace(env=env_of(agent, place.env)), None
        try:
            version = await _run([path, "--version"], around)
            if version.ending != "completed":
                raise version.error()
            if has_flags and agent.needed_flags:
                help = await _run([path, *agent.help_arguments], around)
                if help.ending == "timeout":
                    raise help.error()
        except AgentError as error:
            fix = f"Run it by hand, or install it again: {agent.install}"
            return replace(found, state="does not run", troubles=(Trouble(error.message[:_MAX_QUOTE], fix),))
        found = replace(found, version=version_in(f"{version.stdout}\n{version.stderr}") or "unknown")
        words = set(re.findall(r"[\w-]+", f"{help.stdout}\n{help.stderr}")) if help else agent.needed_flags
        if missing := tuple(flag for flag in agent.needed_flags if flag not in words):
            text = f"its help does not name {', '.join(missing)}, which the adapter uses: another version is needed"
            trouble = Trouble(text, agent.install)
            found = replace(found, missing_flags=missing, state="does not fit", troubles=(trouble,))

    known = _find_program(agent)
    if known is None or found.signed_in is None or found.signed_in.state != "no":
        return found
    variable = next((sign for sign in known.signed_in if not sign.startswith("~")), "")
    fix = f"Run `{known.command}` and sign in{f', or set {variable}' if variable else ''}."
    trouble = Trouble(f"no sign that it is signed in ({found.signed_in.how})", fix)
    state: State = "not signed in" if found.is_ready else found.state
    return replace(found, state=state, troubles=(*found.troubles, trouble))


async def _run(argv: Sequence[str], place: DoctorPlace) -> process.Exit:
    """Run a program that only prints something, in a temporary folder."""
    with TemporaryDirectory(prefix="rolecall-") as folder:
        return await process.run(
            argv,
            cwd=Path(folder),
            env={**place.env, **QUIET},
            timeout=place.patience,
            max_output=_MAX_OUTPUT,
        )


# -- sign-ins --

_SIGN_IN_OF = {"acp:codex-acp": "codex", "acp:claude-agent-acp": "claude"}
"""The agents that use another agent's sign-in."""


def _find_program(agent: object) -> Program | None:
    """Return the adapter that can detect this agent's sign-in, or None."""
    if isinstance(agent, Program):
        return agent
    name = str(getattr(agent, "name", "")) if adapter_of(agent) == "acp" else ""
    name = _SIGN_IN_OF.get(name, name.removeprefix("acp:"))
    return agents.make(name, {}) if name in PROGRAMS else None


def _find_sign_in(agent: object, env: Mapping[str, str]) -> SignIn | None:
    """Find evidence of a sign-in: an environment variable that is set or a file that exists. A name that ends in `?` is
    a settings file that might contain a sign-in. Return None if there is nothing to sign in to."""

    def exists(sign: str) -> bool:
        if not sign.startswith("~"):
            return bool(env.get(sign))
        return bool(env.get("HOME")) and os.path.exists(os.path.join(env["HOME"], sign.removeprefix("~/")))

    known = _find_program(agent)
    if known is None:
        return None
    signs, env = known.signed_in, env_of(agent, env)
    there = [sign for sign in signs if exists(sign.removesuffix("?"))]
    sure = [sign for sign in there if not sign.endswith("?")]
    if sure:
        return SignIn("yes", f"{sure[0]} is {'there' if sure[0].startswith('~') else 'set'}")
    if there:
        return SignIn("unknown", f"it may be in what {there[0].removesuffix('?')} holds")
    if not signs:
        return SignIn("unknown", "it cannot be seen from outside")
    # On macOS, programs keep keys in the keychain; reading it would prompt the user.
    is_hidden = sys.platform == "darwin" or not env.get("HOME")
    looked = ", ".join(sign for sign in signs if not sign.endswith("?"))
    return SignIn("unknown" if is_hidden else "no", f"looked for {looked}")


async def _check_git(place: DoctorPlace, *, is_needed: bool) -> Check:
    """Check git and, if a role works in a worktree, that there is a repository with a commit."""
    path, is_there = find_program("git", env=place.env, folder=place.folder)
    if path is None or not is_there:
        text = "git was not found: work folders of the kind `worktree` need it"
        return Check("git", "problem" if is_needed else "warning", text, "Install git.")
    ended = await _run([path, "--version"], place)
    if is_needed:
        head = await _run([path, "-C", str(place.folder), "rev-parse", "--verify", "HEAD"], place)
        if head.ending != "completed":
            text = f"a role works in a worktree, and {place.folder} is not a git repository with a commit"
            return Check("git", "problem", text, "git init && git add --all && git commit")
    return Check("git", "ok", version_in(ended.stdout))
