"""Workflows from other projects: the lock file, what these workflows can do, and whether somebody has allowed them.

The files of a pack are in `.workflows`, like the project's own workflows. `.workflows/lock.yaml` says where each
workflow comes from, and pins it by the digest of its files: either its single file, or everything in its folder. Until
somebody has looked at what these files can do and has allowed it, no command starts them, loads them as code or gives
them a key. The home folder stores the allowed digest, so changed files must be allowed again.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from rolecall.errors import Conflict, Hint, RolecallError, UsageError
from rolecall.settings import capabilities, config, form
from rolecall.settings.config_file import write_file
from rolecall.store.lazy import Module
from rolecall.workflow.model import Sandbox, StoredWorkflow, describe_sandbox, dump_limits, sandbox_of
from rolecall.workflow.places import ENDINGS, LOCK, has_lock, is_index, name_of, places_around

if TYPE_CHECKING:
    from rolecall.workflow import yaml
else:
    yaml = Module("rolecall.workflow.yaml")  # checking trust does not need the parser of workflows

MOST_FILES = 1_000
MOST_BYTES = 20_000_000
LARGEST = 1_000_000
"""The maximum number of files in a pack (`MOST_FILES`), and the maximum number of bytes in all files (`MOST_BYTES`) and
in a single file (`LARGEST`)."""
_DEEPEST = 8
_LONGEST_COMMAND = 2_000
"""The maximum number of characters shown of a command; a longer command has to be read in its file."""
_NAME = r"[a-z][a-z0-9-]{0,79}"
_DIGEST = r"sha256:[0-9a-f]{64}"
_RELATIVE_IMPORT = re.compile(rb"^\s*from\s+\.", re.MULTILINE)
_HEADER = (
    "# Workflows that were taken from elsewhere, pinned by the digest of their files. See docs/packs.md.\n"
)


class Untrusted(UsageError):
    """A workflow of a pack is in a version that nobody here has allowed."""

    def __init__(self, message: str, *, path: str) -> None:
        hint = Hint("See what it may do and allow it", "trust_workflow", workflow=name_of(path))
        super().__init__(message, hint=hint)
        self.untrusted = path
        """The main file of the workflow."""


# -- the files of a workflow --


class Tree(NamedTuple):
    """The files in a pack's workflow folder, by their paths relative to that folder."""

    files: Mapping[str, bytes]
    refused: Mapping[str, str] = {}
    """The files that are left out, with the reasons: links, submodules, pipes, and files that are too large."""


class Unit(NamedTuple):
    """All files of one workflow, by their paths relative to the workflow folder."""

    name: str
    main: str
    """The main file: `NAME.yaml`, or `NAME/index.yaml` if the workflow is a folder."""
    files: Mapping[str, bytes]
    refused: Mapping[str, str] = {}

    @property
    def place(self) -> str:
        """The file or folder that contains the whole workflow."""
        return self.main.partition("/")[0]

    @property
    def content(self) -> str:
        """The digest of the workflow's files."""
        digest = hashlib.sha256()
        for name, data in sorted(self.files.items()):
            digest.update(f"{name}\0{len(data)}\0".encode() + data)
        for name, why in sorted(self.refused.items()):
            digest.update(f"{name}\0{why}".encode())
        return f"sha256:{digest.hexdigest()}"

    @property
    def is_python(self) -> bool:
        return self.main.endswith(".py")

    def require_plain(self) -> Unit:
        """Return this workflow, or raise `UsageError` if it contains a file that cannot be taken from a pack."""
        for path, why in self.refused.items():
            raise UsageError(f"{path} {why}", hint="A pack has plain files only.")
        if self.main == f"{self.name}.py" and _RELATIVE_IMPORT.search(self.files[self.main]):
            hint = f"Make it a folder: {self.name}/index.py and the files that it imports."
            message = f"{self.main} imports other files, which are not part of the workflow"
            raise UsageError(message, hint=hint)
        return self


def find_units(tree: Tree) -> dict[str, Unit]:
    """Return the workflows in a pack's workflow folder, by name."""
    units: dict[str, Unit] = {}
    for main in sorted({*tree.files, *tree.refused}):
        top, slash, below = main.partition("/")
        if main == LOCK or not main.endswith(ENDINGS) or (slash and (not is_index(below) or "/" in below)):
            continue
        name = top if slash else top.rpartition(".")[0]

        def is_part(path: str, main: str = main, folder: str = f"{top}/" if slash else "") -> bool:
            return path == main or (bool(folder) and path.startswith(folder))

        files = {path: data for path, data in tree.files.items() if is_part(path)}
        refused = {path: why for path, why in tree.refused.items() if is_part(path)}
        if not re.fullmatch(_NAME, name):
            refused[main] = "has a name that is not in kebab-case"
        if is_index(main) and not slash:
            refused[main] = "is the index file of no folder"
        if name in units:
            refused[main] = f"has the name of another workflow, {units[name].main}"
        units[name] = Unit(name, main, files, refused)
    return units


def read_folder(folder: str, *, only: str = "", is_deep: bool = True) -> Tree:
    """Read the files of a folder or, if `only` is given, of the folder `only` in it. If `is_deep`, read the files of
    all folders below as well. Links are not followed, and files whose names begin with a dot are ignored."""
    files: dict[str, bytes] = {}
    refused: dict[str, str] = {}
    waiting, left = [only], MOST_BYTES
    while waiting:
        below = waiting.pop()
        for entry in sorted(os.scandir(os.path.join(folder, below)), key=lambda one: one.name):
            path = f"{below}/{entry.name}" if below else entry.name
            is_link = entry.is_symlink()
            if not is_taken(entry.name) or (entry.is_dir() and not is_link and not is_deep):
                continue
            if is_link or not (entry.is_dir() or entry.is_file()):
                refused[path] = "is a link" if is_link else "is not a file"
            elif entry.is_dir():
                check_depth(path)
                waiting.append(path)
            elif entry.stat().st_size > LARGEST:
                refused[path] = f"is larger than {LARGEST:,} bytes"
            else:
                with open(entry.path, "rb") as file:
                    files[path] = file.read(LARGEST)
                left -= len(files[path])
            check_size(len(files) + len(refused) + len(waiting), left)
    return Tree(files, refused)


def is_taken(name: str) -> bool:
    """Return whether a file or folder of this name belongs to a workflow."""
    return not name.startswith(".") and name != "__pycache__"


def check_depth(path: str) -> None:
    if path.count("/") >= _DEEPEST:
        raise UsageError(f"the pack has folders more than {_DEEPEST} deep: {path[:200]}")


def check_size(count: int, left: int) -> None:
    if count > MOST_FILES or left < 0:
        most = f"{MOST_FILES:,} files or {MOST_BYTES // 1_000_000} MB"
        raise UsageError(f"the pack has more than {most}", hint="Take a part of it: name its folder.")


def read_unit(path: str) -> Unit:
    """Read all files of a workflow. `path` is the workflow's file, its folder, or the index file of its folder."""
    folder, part = os.path.split(os.path.dirname(path) if is_index(path) else path)
    path = os.path.join(folder, part)
    if os.path.isdir(path):
        tree, mains = read_folder(folder, only=part), [f"{part}/index{ending}" for ending in ENDINGS]
        return Unit(part, next((main for main in mains if main in tree.files), mains[0]), *tree)
    if os.stat(path).st_size > LARGEST or not os.path.isfile(path):
        return Unit(name_of(path), part, {}, {part: f"is larger than {LARGEST:,} bytes"})
    with open(path, "rb") as file:
        return Unit(name_of(path), part, {part: file.read(LARGEST)})


# -- the lock file --


class Pin(NamedTuple):
    """The place from which a workflow of a pack comes, and the digest of its files."""

    source: str
    """A git URL or a folder, either absolute or relative to the folder that contains `.workflows`."""
    content: str
    ref: str | None = None
    """The branch, tag or commit that was requested."""
    commit: str | None = None

    @property
    def origin(self) -> str:
        return self.source + (f"#{self.ref}" if self.ref else "")


_PIN = form.Record(
    Pin,
    "a workflow",
    {
        "source": form.Field(form.Text(is_line=True, most=2_000), required=True),
        "content": form.Field(form.Text("a digest", pattern=_DIGEST), required=True),
        "ref": form.Text(is_line=True, most=200),
        "commit": form.Text("a commit", pattern=r"[0-9a-f]{40,64}"),
    },
)
_PINS: form.Record[dict[str, Any]] = form.Section("the lock file", {"workflows": form.MapOf(_PIN, key=_NAME)})


def read_pins(folder: str) -> dict[str, Pin]:
    """Read the lock file of a workflow folder, which lists all workflows from other projects. Raise `UsageError` if the
    file cannot be read, because it is then unknown which workflows these are."""
    path = os.path.join(folder, LOCK)
    if not has_lock(folder):
        return {}
    if not os.path.isfile(path) or os.path.getsize(path) > LARGEST:
        raise UsageError(f"{path} is not a file of at most {LARGEST:,} bytes")
    read = form.load(_PINS, config.read_text(path), source=path).require(path)
    return dict(read.get("workflows") or {})


def write_pins(folder: str, pins: Mapping[str, Pin]) -> None:
    lines = [_HEADER, "workflows:\n" if pins else "workflows: {}\n"]
    for name, pin in sorted(pins.items()):
        lines.append(f"  {name}:\n")
        known = {"source": pin.source, "ref": pin.ref, "commit": pin.commit, "content": pin.content}
        for key, value in known.items():
            if value is not None:  # within single quotes, only the single quote is special
                quoted = value.replace("'", "''")
                lines.append(f"    {key}: '{quoted}'\n")
    write_file(os.path.join(folder, LOCK), "".join(lines).encode())


# -- trust --


class Pinned(NamedTuple):
    """The local copy of a workflow of a pack, and its entry in the lock file."""

    folder: str
    unit: Unit
    pin: Pin

    @property
    def main(self) -> str:
        """The path of the workflow's main file."""
        return os.path.join(self.folder, self.unit.main)


def find_pinned(path: str) -> Pinned | None:
    """Return the workflow of a pack to which a file belongs, or None. All files in the folder of a workflow belong to
    it, not only its main file."""
    for folder, part in places_around(path) if os.path.exists(path) else ():
        name = part.casefold()  # some file systems ignore case
        name = name.rpartition(".")[0] if name.endswith(ENDINGS) else name
        if pin := read_pins(folder).get(name):
            return Pinned(folder, read_unit(os.path.join(folder, part)), pin)
    return None


def refuse_untrusted(path: str) -> None:
    """Raise `Untrusted` if the file belongs to a pinned workflow whose current content nobody here has allowed."""
    found = find_pinned(path)
    if found is None or os.path.exists(_trust_file(found.unit.content)):
        return
    name, origin = found.unit.name, found.pin.origin
    if found.unit.content == found.pin.content:
        what = f"{name} comes from {origin}, and nobody here has looked at what it may do"
    else:
        what = f"{found.main} has changed since it was taken from {origin}, and nobody here has looked at it"
    raise Untrusted(what, path=found.main)


def trust(path: str, content: str) -> None:
    """Record that somebody has allowed this content of the workflow to which the file at `path` belongs."""
    found = find_pinned(path)
    if found is None or found.unit.require_plain().content != content:
        raise Conflict(f"{path} has just been changed", hint="Look at it again.")
    write_file(_trust_file(content), f"{found.unit.name}\n".encode())


def _trust_file(content: str) -> str:
    return os.path.join(config.trusted_folder(), content.removeprefix("sha256:"))


# -- what a workflow can do --


class Power(NamedTuple):
    """What one role can do, as far as the definition shows."""

    role: str
    agent: str | None
    """The agent as the workflow names it, or None for the configured agent."""
    command: str | None = None
    """A command that runs without asking an agent."""
    is_program: bool = False
    """Whether the workflow chooses the agent's program or its arguments, so that no restriction can be relied on."""
    changes_files: bool = True
    runs_commands: bool = True
    starts_threads: bool = False
    restrictions: tuple[str, ...] = ()
    endpoint: str | None = None
    """The address, provider or name of the model that reads the role's answers, if the workflow mentions one."""
    key: str | None = None
    """The environment variable whose value is sent to that model."""
    sandbox: Sandbox | None = None
    """What the role's processes can reach, if the workflow defines it."""

    @property
    def has_processes(self) -> bool:
        return (self.agent or "").partition(":")[0] not in ("human", "workflow")

    @property
    def words(self) -> str:
        """A one-line description of what the role can do."""
        kind, _, name = (self.agent or "").partition(":")
        if self.command is not None or self.is_program:
            what = "program of its choice" if self.command is None else "command"
            text = (self.agent or "") if self.command is None else self.command
            more = len(text) - _LONGEST_COMMAND
            cut = f"… and {more:,} more characters, see the file" if more > 0 else ""
            words = f"runs the {what}: {text[:_LONGEST_COMMAND]}{cut}"
        elif kind in ("human", "workflow"):
            words = "a person answers" if kind == "human" else f"is played by the workflow {name}"
        else:
            may = {"change files": self.changes_files, "run commands": self.runs_commands}
            verbs = [what for what, is_so in may.items() if is_so]
            held = f" ({', '.join(self.restrictions)})" if self.restrictions else ""
            words = f"{self.agent or 'your agent'}: may {' and '.join(verbs) or 'only read'}{held}"
        if self.starts_threads:
            words += "; may start other threads"
        if self.endpoint:
            words += f"; sends its answers to {self.endpoint}"
            words += f" with the value of {self.key}" if self.key else ""
        if self.sandbox is not None and self.has_processes:
            is_off = self.sandbox.is_off
            words += "; without a sandbox" if is_off else f"; in a sandbox: {describe_sandbox(self.sandbox)}"
        return words


class Powers(NamedTuple):
    """What a workflow file can do, as far as its definition shows."""

    name: str
    path: str
    content: str = ""
    """The digest of all files of the workflow, if it comes from a pack."""
    pin: Pin | None = None
    """The place from which the workflow comes, if it comes from a pack."""
    roles: tuple[Power, ...] = ()
    folders: tuple[str, ...] = ()
    """The work folders that the workflow's edges name, as templates. If empty, the workflow works in the thread's
    folder."""
    limits: Mapping[str, float] = {}
    python: Mapping[str, int] = {}
    """The number of lines of each Python file in a workflow of a pack. The effects of these files are unknown."""
    others: tuple[str, ...] = ()
    """The further files of the workflow, except other YAML workflows, which have descriptions of their own."""

    @property
    def nested(self) -> list[str]:
        """The names of the workflows that play roles of this workflow."""
        agents = (power.agent or "" for power in self.roles)
        return [agent.partition(":")[2].strip() for agent in agents if agent.startswith("workflow:")]

    @property
    def is_changed(self) -> bool:
        """Whether the workflow's files have changed since they were taken from the pack."""
        return self.pin is not None and self.pin.content != self.content

    def explain(self) -> list[tuple[str, str]]:
        """Return everything that the workflow can do, as lines with one heading each, for the person who decides."""
        rows = [(power.role, power.words) for power in self.roles]
        if self.python:
            count = sum(self.python.values())
            lines = f"{count} line" if count == 1 else f"{count:,} lines"
            what = f"runs its own code, {lines}, which can do anything you can; nothing else is known"
            rows.append(("Python", what))
        if files := (*self.python, *self.others):
            rows.append(("files", ", ".join(files)))
        if not self.path.endswith(".py"):
            if self.folders:
                rows.append(("folders", f"also works in {', '.join(self.folders)}"))
            kept = [f"{value:g} {name}" for name, value in self.limits.items()]
            no_cost = "" if "cost" in self.limits else ", none on the cost"
            rows.append(("limits", ", ".join(kept) + no_cost if kept else "none"))
            active = [power for power in self.roles if power.has_processes]
            free = [power.role for power in active if (power.sandbox or Sandbox()).network == "all"]
            whose = "" if len(free) == len(active) else f" for {', '.join(dict.fromkeys(free))}"
            words = f"not restricted{whose}: agents and commands can use it"
            words = words if free or not active else "only as the sandboxes of its roles say"
            rows.append(("network", words))
        rows.append(("prompts", f"tell the agents what to do: read {os.path.relpath(self.path)}"))
        return [(_one_line(name), _one_line(text)) for name, text in rows]


def _one_line(text: str) -> str:
    """Put a text of a pack on one line, because further lines could look like entries of the list."""
    return " ".join(text.replace("\n", "\\n").replace("\r", "\\r").split())


def describe(path: str) -> list[Powers]:
    """Return what the workflow in a file can do. If the file comes from a pack, also return what the other files of
    that workflow can do, because any of them can play a role. No code is run."""
    found = find_pinned(path)
    if found is None:
        return [_describe_file(Powers(name_of(path), path))]
    unit = found.unit
    python = {name: data.count(b"\n") for name, data in unit.files.items() if name.endswith(".py")}
    main = _describe_file(Powers(unit.name, found.main, unit.content, found.pin, python=python))
    inner, others = list[Powers](), list[str]()
    for name in sorted(unit.files.keys() - {unit.main, *python}):
        file = Powers(name, os.path.join(found.folder, name), unit.content, found.pin)
        try:
            inner.append(_describe_file(file))
        except RolecallError:  # the file is not a workflow, so it cannot play a role
            others.append(name)
    return [main._replace(others=tuple(others)), *inner]


def _describe_file(known: Powers) -> Powers:
    path = known.path
    if path.endswith(".py"):
        return known
    workflow = yaml.load_file(path).workflow
    if workflow is None:
        raise UsageError(f"{path} has problems", hint=Hint("See them", "validate_workflow", workflow=path))
    edges = (edge for edges in workflow.graph.values() for edge in edges)
    places = dict.fromkeys(edge.location for edge in edges if edge.location)
    roles = tuple(describe_roles(workflow))
    return known._replace(roles=roles, folders=tuple(places), limits=dump_limits(workflow.limits))


_MODELS = {"baseUrl": "{}", "provider": "the provider {}", "model": "the model {}", "apiKeyEnv": "your model"}
"""How `extract` names the model that reads a role's answers, in words, the most exact name first."""


def describe_roles(workflow: StoredWorkflow) -> Iterator[Power]:
    """Yield what each role of a workflow can do. A role with several agents has several entries."""
    for name, role in workflow.roles.items():
        group, denied = role.group, set(capabilities.denied_classes(role.capabilities))
        if group and group.check:
            yield Power(f"{name}, after each merge", None, " ".join(group.check))
        if group and group.roles:
            continue  # a team, whose members are roles of their own
        agents = group.agents if group and group.agents else (role.agent,)
        for agent in (*agents, role.stand_in) if role.stand_in else agents:
            kind, _, argument = (agent or "").partition(":")
            is_played = kind in ("human", "workflow")
            try:
                options = {word.partition("=")[0] for word in shlex.split(argument) if "=" in word}
            except ValueError:  # no agent has such a spec
                options = set()
            # These options name the agent's program, or arguments that can undo its restrictions.
            chooses_program = not is_played and not options.isdisjoint(("executable", "args"))
            extract: Mapping[str, Any] = role.extract or {}
            models = (words.format(extract[word]) for word, words in _MODELS.items() if extract.get(word))
            yield Power(
                name,
                agent,
                argument if kind in ("command", "external", "run") else None,
                changes_files=not is_played and not denied.issuperset(capabilities.FILES),
                runs_commands=not is_played and not denied.issuperset(capabilities.SHELL),
                starts_threads=role.may_start_threads,
                restrictions=capabilities.restrictions(role.capabilities),
                is_program=kind in ("acp", "scripted") or chooses_program,
                endpoint=next(models, None),
                key=extract.get("apiKeyEnv"),
                sandbox=sandbox_of(workflow, name),
            )
