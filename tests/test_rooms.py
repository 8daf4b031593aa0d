"""The map of ARCHITECTURE.md as a test: imports point down, and only `settings/` reads the environment."""

from __future__ import annotations

import ast
import gc
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"

ROOMS = [
    {"acp", "cli", "mcp", "web"},
    {"service"},
    {"plan_run", "forge"},
    {"api"},
    {"checks"},
    {"hosts"},
    {"nexus"},
    {"evals", "traces"},
    {"threads"},
    {"knowledge"},
    {"agents"},
    {"files"},
    {"workflow"},
    {"settings"},
    {"store"},
    {"errors"},
]
"""From the doors down to the ground. A room imports rooms below its own, never one beside or above it."""

LEVEL = {room: level for level, rooms in enumerate(ROOMS) for room in rooms}
ENTRANCES = {"rolecall", "rolecall.__main__"}
"""The public names and `python -m rolecall`: they may name any room, and their names belong to no room."""

BELOW = {
    door: {"checks", "hosts", "nexus", "threads", "knowledge", "workflow", "store"}
    for door in ("acp", "cli", "mcp", "web", "plan_run", "forge")
}
BELOW["service"] = BELOW["cli"] - {"store"}  # its queue, slots and costs are refs of the store
"""The rooms that read and change threads, projects, hosts and knowledge only through `api/`, with the rooms from which
they import only values."""
VALUES = {
    # the agents that are known, the results of checks, and the changes that an installation makes
    "rolecall.checks.choose": {"can_be_held_to", "open_roles"},
    "rolecall.checks.doctor": {"AgentFinding", "Diagnosis", "Trouble", "known_agents", "preset_agents"},
    "rolecall.checks.machine": {"Check"},
    "rolecall.hosts.file_change": {"FileChange", "difference"},
    "rolecall.hosts.hook_context": {"load"},  # the catalogue from the cache of the hooks
    "rolecall.hosts.installation": {"HostInstallation"},
    "rolecall.hosts.names": "*",
    "rolecall.hosts.payload": {"Payload"},
    "rolecall.hosts.setup": {"HostSetup"},
    # the contract of a project, its catalogue, and paths
    "rolecall.nexus.brief": "*",  # the prompt of a task
    "rolecall.nexus.catalog": "*",  # agents and skills that come with us, or are in a folder of the home
    "rolecall.nexus.conformance": {"ConformanceReport"},
    "rolecall.nexus.dispatch": {"TOOLS", "Tool", "input_schema"},
    "rolecall.nexus.filenames": "*",  # the files that a text names
    "rolecall.nexus.macros": {"prose"},
    "rolecall.nexus.memory": {"NoteOverlap"},
    "rolecall.nexus.note_name": {"CATEGORIES"},
    "rolecall.nexus.overview": {"REUSE_POLICIES", "TASK_STATUSES"},
    "rolecall.nexus.project_paths": {"PLAN", "TASKS", "choose", "find", "state"},
    "rolecall.nexus.reply": "*",  # the types of replies
    "rolecall.nexus.resume": "*",  # whether an agent continues a session
    "rolecall.nexus.run_record": {"TaskRun", "key"},
    "rolecall.nexus.state_file": {"is_taken_back"},
    "rolecall.nexus.tags": {"ANY_VARIANT"},
    "rolecall.nexus.task_graph": "*",  # tasks as pictures
    "rolecall.nexus.tool_error": {"NotThere", "ToolError"},
    # types, constants and texts of knowledge and threads
    "rolecall.knowledge.search": {"find_marks"},
    "rolecall.knowledge.serve": {"PATH"},
    "rolecall.knowledge.settings": {"SETTINGS", "KnowledgeSettings"},  # a section of the project's file
    "rolecall.threads.casting": "*",  # chooses an agent from the configuration, without a store
    "rolecall.threads.dry_run": {"Outlook"},
    "rolecall.threads.forecast": {"NOTHING", "Forecast", "Range", "Sum", "add_up"},
    "rolecall.threads.import_uwf": {"has_config", "take_config"},  # the configuration of uwf, not its threads
    "rolecall.threads.prompt": {"example_output", "field_line", "required_fields"},
    "rolecall.threads.provenance": {"Proof", "ProvenStep"},
    "rolecall.threads.report": "*",
    "rolecall.threads.requests": {"Request"},
    "rolecall.threads.sessions": {"files_of"},
    "rolecall.threads.setup": {"HUMAN", "Cast"},
    "rolecall.threads.spending": {"Spent"},
    "rolecall.threads.state": {"ENDED", "GROUP", "RESUME", "Status", "ThreadState"},
    "rolecall.threads.step_files": {"FileVersions", "FilesDifference"},
    "rolecall.threads.thread": {"LIMITS", "Step", "count_usage", "sum_amounts"},
    "rolecall.threads.tryout": {"Divergence", "Trial"},
    "rolecall.threads.view_types": "*",  # the types of what the verbs that read return
    # the language of workflows
    "rolecall.workflow.document": "*",
    "rolecall.workflow.draw": "*",
    "rolecall.workflow.gallery": "*",  # files that come with us
    "rolecall.workflow.model": "*",
    "rolecall.workflow.pack": {"Pin", "Powers"},
    "rolecall.workflow.places": "*",
    "rolecall.workflow.playbook": "*",
    "rolecall.workflow.registry": {"Found", "check_trust", "files_by_name", "is_own", "project_files"},
    "rolecall.workflow.reply": {"Shape", "render"},
    "rolecall.workflow.route": {"Next", "status_of"},
    "rolecall.workflow.template": "*",
    "rolecall.workflow.yaml": {"NAME", "SANDBOX", "json_schema", "read_text"},
    # the store's own words
    "rolecall.store.atomic": "*",  # writes files of all kinds
    "rolecall.store.backend": {"StoredEvent"},
    "rolecall.store.canonical": {"JsonObject", "Schema"},
    "rolecall.store.holder": {"describe"},
    "rolecall.store.lazy": "*",
    "rolecall.store.schema": {"Type"},
}
"""What a door may import from the rooms that keep threads: values, and functions that take no store."""
FOR_THE_SERVICE = {
    "rolecall.settings.stores": {"open_backend"},  # which booking wraps
    "rolecall.threads.state": {"ThreadRef", "files_name", "read_members", "read_note", "read_thread"},
    "rolecall.threads.thread": {"slot_name"},
    "rolecall.threads.workfolder": {"find_owner", "is_newest"},
}
"""What those of `DECIDES` also import: they look at threads as they find them, as refs with the version that a decision
is made about."""
DECIDES = re.compile(r"rolecall\.service\.(recovery|supervisor|worker|fleet\..*)")
ITS_OWN_NOUN = {
    # module: (rooms, reason)
    "rolecall.service.booking": ("threads", "adds to the commits of a step, so it reads what they contain"),
    "rolecall.service.queue": ("threads", "moves a thread together with its place in the queue or its slot"),
    "rolecall.service.project_check": ("checks", "a check itself: of files, agents, triggers and endpoints"),
    "rolecall.service.reload": ("checks", "checks files in child processes, beside its event loop"),
    "rolecall.cli.conformance": ("checks", "a check of our own tools and hooks, of no use to a program"),
    "rolecall.cli.hook_answer": ("hosts nexus", "a hook must stay fast, and `hosts/` reads the state itself"),
    "rolecall.cli.cas": ("settings store", "reading a node must not load the modules of threads"),
    "rolecall.cli.cas_care": ("settings store threads", "checks, removes and copies nodes and their files"),
}
"""The rooms that a module uses directly, and why."""

IMPORTS_IN_FUNCTIONS = {
    "rolecall": ("importlib",),  # reading `__version__` imports nothing
    # `--version` imports nothing, not even `store/lazy.py`
    "rolecall.__main__": ("rolecall.cli", "rolecall.cli.hook", "rolecall.cli.parser", "warnings"),
}
"""Everywhere else a module names at its top what it imports later, in a table of `store/lazy.py`."""


@cache
def modules() -> dict[str, ast.Module]:
    gc.disable()  # nothing of what is parsed is garbage, and looking for some takes as long as parsing
    found = {}
    for path in sorted((SOURCE / "rolecall").rglob("*.py")):
        name = ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
        found[name] = ast.parse(path.read_text(encoding="utf-8"), str(path))
    gc.freeze()
    gc.enable()
    return found


def imported(tree: ast.Module) -> Iterator[str]:
    """Modules of ours that a module imports: at its top, inside functions, or in a table of `store/lazy.py`."""
    yield from (name for name in named_for_later(tree) if name in modules())
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules())
        elif isinstance(node, ast.ImportFrom) and node.module in modules():
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in modules() else node.module


def named_for_later(tree: ast.Module) -> Iterator[str]:
    """The modules that the tables of a module name: `Module("…")` and `import_later({…})`."""
    tables: dict[str, ast.expr] = {}
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Dict() as table):
                tables[name] = table
            case ast.Call(func=ast.Name(id="Module"), args=[ast.Constant(value=str(name))]):
                yield name
            case ast.Call(func=ast.Name(id="import_later"), args=[argument]):
                found = tables[argument.id] if isinstance(argument, ast.Name) else argument
                for package, names in ast.literal_eval(found).items():
                    yield from (f"{package}{name}" for name in names.split())


def test_the_tables_of_modules_imported_later_are_read() -> None:
    source = """
later = Module("asyncio")
_TABLE = {"": "shutil", "rolecall.store.": "bundle ids"}
globals().update(import_later(_TABLE))
globals().update(import_later({"rolecall.nexus.": "memory"}))
"""
    names = {"asyncio", "shutil", "rolecall.store.bundle", "rolecall.store.ids", "rolecall.nexus.memory"}
    assert set(named_for_later(ast.parse(source))) == names
    assert ("rolecall.api.project", "rolecall.nexus.memory") in edges()
    named = {name for tree in modules().values() for name in named_for_later(tree)}
    assert {name for name in named if name.startswith("rolecall")} <= {"rolecall", *modules()}


@cache
def edges() -> set[tuple[str, str]]:
    inside = {name: tree for name, tree in modules().items() if name not in ENTRANCES}
    return {
        (name, other) for name, tree in inside.items() for other in imported(tree) if other not in ENTRANCES
    }


def room(module: str) -> str:
    return module.split(".")[1]


def test_every_module_has_a_room() -> None:
    assert {room(name) for name in modules() if name not in ENTRANCES} <= set(LEVEL)


def test_imports_point_down() -> None:
    up = [
        f"{name} imports {other}"
        for name, other in sorted(edges())
        if room(name) != room(other) and LEVEL[room(name)] >= LEVEL[room(other)]
    ]
    assert not up, "\n".join(up)


def names_used(tree: ast.Module, module: str) -> set[str]:
    """The attributes of an imported module that the code reads; `*` where it uses the module in another way."""
    found, read = set(), set()
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id=name) as value, attr=attribute) if name == module:
                found.add(attribute)
                read.add(value)
            case ast.Name(id=name, ctx=ast.Load()) if name == module and node not in read:
                found.add("*")
    return found


def test_a_door_reads_and_changes_everything_through_the_api_alone() -> None:
    wrong = []
    for name, tree in modules().items():
        if name in ENTRANCES or room(name) not in BELOW:
            continue
        own, _ = ITS_OWN_NOUN.get(name, ("", ""))
        for node in ast.walk(tree):
            if not isinstance(node, ast.ImportFrom) or not node.module:
                continue
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                is_module = full in modules()
                module = full if is_module else node.module
                if module in ENTRANCES or module not in modules():
                    continue
                if room(module) not in BELOW[room(name)] and module != "rolecall.settings.stores":
                    continue
                if room(module) in own.split():
                    continue
                allowed = set(VALUES.get(module, ()))
                if DECIDES.fullmatch(name):
                    allowed |= FOR_THE_SERVICE.get(module, set())
                for used in names_used(tree, alias.asname or alias.name) if is_module else {alias.name}:
                    if "*" not in allowed and used not in allowed:
                        wrong.append(f"{name} imports {used} of {module}")
    assert not wrong, "\n".join(wrong)


def test_imports_stand_at_the_top() -> None:
    found: dict[str, set[str]] = {}
    for name, tree in modules().items():
        for function in ast.walk(tree):
            if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            for node in ast.walk(function):
                match node:
                    case ast.ImportFrom(module=module):
                        found.setdefault(name, set()).add(module or ".")
                    case ast.Import(names=names):
                        found.setdefault(name, set()).update(alias.name for alias in names)
                    case ast.Call(func=ast.Name(id="import_module"), args=[ast.Constant(value=str(module))]):
                        if module in modules():
                            found.setdefault(name, set()).add(module)
    assert {name: tuple(sorted(imports)) for name, imports in found.items()} == IMPORTS_IN_FUNCTIONS


def test_there_is_no_ring() -> None:
    # A module may import its own package, whose `__init__` lists the names of the room.
    below: dict[str, set[str]] = {}
    for name, other in edges():
        if not name.startswith(f"{other}."):
            below.setdefault(name, set()).add(other)

    def reach(start: str) -> set[str]:
        found: set[str] = set()
        waiting = [start]
        while waiting:
            new = below.get(waiting.pop(), set()) - found
            found |= new
            waiting += new
        return found

    reached = {name: reach(name) for name in below}
    rings = [
        f"{name} imports {other}" for name in below for other in below[name] if name in reached.get(other, ())
    ]
    assert not rings, "\n".join(sorted(rings))


def test_only_the_settings_read_the_environment() -> None:
    reads = []
    for name, tree in modules().items():
        if name.startswith("rolecall.settings"):
            continue
        for node in ast.walk(tree):
            match node:
                case ast.Attribute(value=ast.Name(id="os"), attr="environ" | "environb" | "getenv"):
                    reads.append(f"{name}, line {node.lineno}")
                case ast.ImportFrom(module="os"):
                    if {alias.name for alias in node.names} & {"environ", "environb", "getenv"}:
                        reads.append(f"{name}, line {node.lineno}")
    assert not reads, "\n".join(reads)
