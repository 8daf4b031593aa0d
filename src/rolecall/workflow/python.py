"""Workflows written in Python: `Workflow` and `Role`, compiled to a playbook for the engine.

A workflow file has a module-level variable `workflow`. Its definition (roles, texts, schemas, limits) is stored like
that of a YAML file and checked by the same rules. Its functions stay in the file, which every process that takes a step
loads again. If the file's definition has changed since the thread started, the thread is refused rather than continued
with different rules.
"""

from __future__ import annotations

import inspect
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import KW_ONLY, dataclass
from importlib import import_module
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from traceback import extract_tb
from types import ModuleType
from typing import Any, Generic, Literal, NamedTuple, TypedDict, TypeVar, Union, Unpack, cast, overload

from rolecall.errors import Hint, RolecallError, UsageError
from rolecall.settings.yaml12 import Position, Problem, refusal
from rolecall.store.canonical import JsonObject, Schema
from rolecall.workflow import document, typed, yaml
from rolecall.workflow.model import (
    Join,
    Limits,
    Merge,
    OnCrash,
    OnFailure,
    OnLimit,
    Resume,
    Sandbox,
    StoredWorkflow,
    Workdir,
    dump_limits,
    sandbox_payload,
)
from rolecall.workflow.places import name_of
from rolecall.workflow.playbook import (
    AgentFunction,
    FileChanged,
    FileGone,
    Message,
    Moderator,
    Playbook,
    PromptFunction,
    RoleFunction,
    ThreadContext,
)

M = TypeVar("M")
T = TypeVar("T")
DEFAULT_NAME = "workflow"
"""The name of the module-level variable that contains a file's workflow."""
_PLAIN_KEYS = ("graph", "conditions", "limits", "workdir", "on_crash", "reuse", "sandbox")
_FILE_HINT = f"A workflow file ends with `{DEFAULT_NAME} = Workflow(…)`."


class RoleOptions(TypedDict, total=False):
    """Further options of a role, with the same meaning as the keys in YAML."""

    description: str
    capabilities: Sequence[str]
    procedure: str
    output: str
    resume: Resume
    limits: Limits | Mapping[str, float]
    extract: JsonObject
    workdir: Workdir
    knowledge: bool | JsonObject
    may_start_threads: bool
    on_crash: OnCrash
    reuse: bool
    stand_in: str
    sandbox: Sandbox | JsonObject | Literal["off"]


class GroupOptions(TypedDict, total=False):
    """Options of a group, with the same meaning as the keys in YAML."""

    at_once: int
    join: Join | Mapping[str, int]
    on_failure: OnFailure
    on_limit: OnLimit
    deadline: float
    merge: Merge
    check: Sequence[str]


class TeamOptions(GroupOptions, total=False):
    description: str
    workdir: Workdir


@dataclass(frozen=True)
class MemberResult(Generic[M]):
    """One member in the output of a group."""

    number: int
    status: str
    """One of `done`, `failed`, `stopped` and `set_aside`."""
    output: M | None
    id: str
    """The id of the member's thread."""
    item: Any = None
    role: str | None = None
    reason: str = ""
    branch: str | None = None
    conflict: JsonObject | None = None


@dataclass(frozen=True)
class Joined(Generic[M]):
    """The output of a group, as returned by `Role.read`."""

    status: str
    """One of `done`, `partly` and `failed`."""
    members: tuple[MemberResult[M], ...]
    """The members, in the order of the list."""

    @property
    def outputs(self) -> list[M]:
        """The outputs of the members that are done."""
        return [one.output for one in self.members if one.status == "done" and one.output is not None]


class Role(Generic[M]):
    """A role: its agent, its instructions (`prompt`) and the form of its output (`schema`).

    Args:
        agent: an adapter, an async function of (prompt, context), an agent spec such as
            `command:prog`, or None to use the configured agent. Members of a group take
            the specs of a list in turn.
        prompt: a text, or an async function of the ThreadContext that returns a text.
        schema: a JSON Schema, a dataclass or a pydantic model. `meta` is an older name of this argument.
    """

    @overload
    def __init__(
        self: Role[JsonObject],
        agent: AgentFunction | str | Sequence[str] | None,
        prompt: str | PromptFunction,
        schema: Schema,
        **options: Unpack[RoleOptions],
    ) -> None: ...

    @overload
    def __init__(
        self,
        agent: AgentFunction | str | Sequence[str] | None,
        prompt: str | PromptFunction,
        schema: type[M],
        **options: Unpack[RoleOptions],
    ) -> None: ...

    def __init__(
        self, agent: Any, prompt: Any, schema: Any = None, *, meta: Any = None, **options: Any
    ) -> None:
        self.agent = agent
        self.prompt = prompt
        self.schema = meta if schema is None else schema
        self.options = options
        self.call: RoleFunction | None = None
        self.group: JsonObject | None = None
        self.place = _caller()

    @overload
    @staticmethod
    def function(
        call: RoleFunction, schema: Schema | None = None, **options: Unpack[RoleOptions]
    ) -> Role[JsonObject]: ...

    @overload
    @staticmethod
    def function(call: RoleFunction, schema: type[T], **options: Unpack[RoleOptions]) -> Role[T]: ...

    @staticmethod
    def function(call: Any, schema: Any = None, *, meta: Any = None, **options: Any) -> Role[Any]:
        """Create a role that is played by an async function of the `ThreadContext`. The function returns `body` and
        `output`."""
        given = meta if schema is None else schema
        role: Role[Any] = Role(None, "", {} if given is None else given, **options)
        role.call = call
        role.place = _caller()
        return role

    @staticmethod
    def each(items: str, role: Role[T], **options: Unpack[GroupOptions]) -> Role[Joined[T]]:
        """Let members play a role for the items of a list, one member for each item. `items` is a JSONata expression,
        as in `Role.each("steps[-1].output.files", Role(None, "Review {{item}}.", Review))`."""
        return _make_group(role, {"each": items, **options}, _caller())

    @staticmethod
    def times(number: int, role: Role[T], **options: Unpack[GroupOptions]) -> Role[Joined[T]]:
        """Let several members play a role, all with the same task."""
        return _make_group(role, {"times": number, **options}, _caller())

    @staticmethod
    def team(*roles: str, **options: Unpack[TeamOptions]) -> Role[Joined[JsonObject]]:
        """Let several roles of the workflow work on the same task at once."""
        return _make_group(Role(None, "", {}), {"roles": list(roles), **options}, _caller())

    def read(self, message: Message) -> M:
        """Return the typed output of a step of this role. The output of a group is a `Joined`."""
        if self.group is None:
            return cast(M, self._read_output(message.output))
        members = []
        for one in message.output["members"]:
            output = one["output"] and self._read_output(one["output"])
            members.append(MemberResult(**{**one, "output": output}))
        return cast(M, Joined(message.output["status"], tuple(members)))

    def _read_output(self, output: JsonObject) -> Any:
        return typed.instance_of(self.schema, output) if typed.is_type(self.schema) else dict(output)


def _make_group(role: Role[Any], group: JsonObject, place: Position) -> Role[Any]:
    made = copy(role if isinstance(role, Role) else Role.function(role))
    made.group, made.place = group, place
    return made


AnyRole = Union["Role[Any]", RoleFunction]


@dataclass(eq=False)
class Workflow:
    """Roles, and what decides which role comes next. This is either a `moderator`, which is a pure function of the
    `ThreadContext` that returns a role's name or END, or a `graph` in any form that YAML allows."""

    name: str
    roles: Mapping[str, AnyRole]
    moderator: Moderator | None = None
    _: KW_ONLY
    graph: JsonObject | None = None
    conditions: JsonObject | None = None
    description: str = ""
    limits: Limits | Mapping[str, float] | None = None
    version: str = ""
    workdir: Workdir | None = None
    on_crash: OnCrash | None = None
    reuse: bool | None = None
    sandbox: Sandbox | JsonObject | Literal["off"] | None = None

    def __post_init__(self) -> None:
        self.place = _caller(3)
        self._globals = sys._getframe(2).f_globals

    def address(self) -> str:
        """Return the address from which another process can load the workflow, in the form `FILE:VARIABLE`."""
        file = self._globals.get("__file__")
        names = [name for name, value in self._globals.items() if value is self]
        if not isinstance(file, str) or not names:
            raise UsageError(
                f"the workflow {self.name!r} is not a module-level variable of a file",
                hint="Every process that takes a step loads it again, so write `workflow = Workflow(…)` in a file.",
            )
        return f"{os.path.realpath(file)}:{DEFAULT_NAME if DEFAULT_NAME in names else names[0]}"


def _caller(depth: int = 2) -> Position:
    """Return the place from which the calling function, or a function further out, was called."""
    frame = sys._getframe(depth)
    return Position(frame.f_code.co_filename, frame.f_lineno, 1)


# -- compiling --


def compile(workflow: Workflow, *, name: str | None = None, python: str | None = None) -> Playbook:
    """Compile a workflow to a playbook. Raise `UsageError` with all problems in its definition.

    Args:
        name: the name that the workflow must have, if its file determines the name.
        python: the address from which the workflow is loaded again; if None, the variable that contains it.
    """
    playbook, problems = check(workflow, name=name, python=python)
    if playbook is not None:
        return playbook
    raise refusal(f"{workflow.place.file}:{workflow.place.line}: the workflow", problems)


def check(
    workflow: Workflow, *, name: str | None, python: str | None
) -> tuple[Playbook | None, list[Problem]]:
    """Return the playbook, or None if there is an error, and all errors and warnings with their positions."""
    reader = _Reader(workflow)
    value = reader.read()
    judged = yaml.judge(
        value,
        place=workflow.place,
        places=reader.places,
        functions=reader.functions,
        prompts=reader.prompts,
        name=name,
    )
    main = workflow.place.file
    problems = sorted(
        [*reader.problems, *judged.problems], key=lambda one: (one.file != main, one.file, one.line)
    )
    if reader.problems or judged.workflow is None:
        return None, problems
    playbook = Playbook(
        judged.workflow._replace(python=python or workflow.address()),
        moderator=workflow.moderator,
        prompts=reader.prompts,
        functions=reader.functions,
        agents=reader.agents,
    )
    return playbook, problems


class _Reader:
    """A converter from a `Workflow` to the form of the YAML, which also reports problems that only Python code can
    have."""

    def __init__(self, workflow: Workflow) -> None:
        self._workflow = workflow
        self.problems: list[Problem] = []
        self.places: dict[str, Position] = {}
        """The position of each role's definition."""
        self.prompts: dict[str, PromptFunction] = {}
        self.functions: dict[str, RoleFunction] = {}
        self.agents: dict[str, AgentFunction] = {}

    def read(self) -> JsonObject:
        workflow = self._workflow
        moderator: Any = workflow.moderator
        if (moderator is None) == (workflow.graph is None):
            had = "neither a moderator nor" if workflow.graph is None else "both a moderator and"
            self._report(f"the workflow has {had} a graph; give it one of them")
        if moderator is not None and not callable(moderator):
            self._report(f"the moderator must be a function, not {_kind(moderator)}")
        elif _is_async(moderator):
            self._report(
                "the moderator must be a plain function, not an async one: it decides and does nothing else"
            )
        if moderator is not None and workflow.conditions:
            only = "conditions are allowed only in a graph"
            self._report(f"{only}; a moderator makes its decisions in Python code")
        value = {
            "name": workflow.name,
            "description": workflow.description,
            "version": workflow.version,
            "roles": dict(self._read_roles()),
            **{key: self._plain(getattr(workflow, key), key) for key in _PLAIN_KEYS},
        }
        return {key: one for key, one in value.items() if one is not None}

    def _report(self, message: str, role: Any = None) -> None:
        self.problems.append(Problem("error", message, *self.places.get(role, self._workflow.place)))

    def _read_roles(self) -> Iterator[tuple[str, JsonObject]]:
        roles: Any = self._workflow.roles
        if not isinstance(roles, Mapping):
            self._report(f"roles must be a mapping from names to roles, not {_kind(roles)}")
            return
        for name, written in roles.items():
            role: Role[Any] = written if isinstance(written, Role) else Role.function(written)
            if not isinstance(name, str):
                self._report(f"the role name {name!r} must be a string")
                continue
            self.places[name] = role.place
            if role is not written and (code := getattr(written, "__code__", None)):
                self.places[name] = Position(code.co_filename, code.co_firstlineno, 1)
            elif role is not written:
                self.places[name] = self._workflow.place
            if role.call is None:
                player = self._read_agent(name, role)
            else:
                if not _is_async(role.call):
                    kind = _kind(role.call)
                    self._report(f"the role {name!r} must be a Role or an async function, not {kind}", name)
                self.functions[name] = role.call
                player = {"description": (inspect.getdoc(role.call) or "").partition("\n")[0]}
            if unknown := sorted(role.options.keys() - RoleOptions.__annotations__.keys()):
                self._report(f"the role {name!r} has no option {', '.join(unknown)}", name)
            options = {
                key: self._plain(value, f"{key} of {name!r}", name)
                for key, value in role.options.items()
                if key not in unknown
            }
            group = self._plain(role.group or {}, f"the group {name!r}", name) or {}
            if "roles" in group:
                yield name, {**options, **group}
                continue
            yield name, {**player, **options, "schema": self._read_schema(name, role.schema), **group}

    def _read_agent(self, name: str, role: Role[Any]) -> JsonObject:
        found = dict[str, Any]()
        if isinstance(role.prompt, str):
            found["prompt"] = role.prompt
        elif _is_async(role.prompt):
            self.prompts[name] = role.prompt
        else:
            kind = _kind(role.prompt)
            self._report(f"the prompt of {name!r} must be text or an async function, not {kind}", name)
        if isinstance(role.agent, str):
            found["agent"] = role.agent
        elif isinstance(role.agent, (list, tuple)):
            found["agent"] = self._plain(role.agent, f"the agent of {name!r}", name)
        elif callable(role.agent) and not isinstance(role.agent, type):
            self.agents[name] = role.agent
        elif role.agent is not None:
            wanted = "an adapter, an async function or the name of one"
            self._report(f"the agent of {name!r} must be {wanted}, not {_kind(role.agent)}", name)
        return found

    def _read_schema(self, name: str, schema: Any) -> Any:
        if isinstance(schema, Mapping):
            return self._plain(dict(schema), f"the schema of {name!r}", name)
        if not typed.is_type(schema):
            wanted = "a JSON Schema, a dataclass or a pydantic model"
            self._report(f"the schema of {name!r} must be {wanted}, not {_kind(schema)}", name)
            return {}
        try:
            return self._plain(typed.schema_of(schema), f"the schema of {name!r}", name)
        except RolecallError as exc:
            self._report(f"the schema of {name!r}: {exc.explain()}", name)
        return {}

    def _plain(self, value: Any, what: str, role: str | None = None) -> Any:
        """Return the value as the store will return it: tuples become lists, and nothing is shared with the caller."""
        if isinstance(value, Limits):
            value = dump_limits(value)
        elif isinstance(value, Sandbox):
            value = sandbox_payload(value)
        try:
            return json.loads(json.dumps(value, allow_nan=False, default=_mapping_as_dict))
        except (TypeError, ValueError, RecursionError) as exc:
            self._report(f"{what} is not plain data: {exc}", role)
            return None


def _mapping_as_dict(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


def _is_async(value: Any) -> bool:
    return inspect.iscoroutinefunction(value) or inspect.iscoroutinefunction(getattr(value, "__call__", None))  # noqa: B004


def _kind(value: Any) -> str:
    if inspect.isfunction(value):
        return f"the plain function {value.__name__!r}"
    if isinstance(value, type):
        return f"the class {value.__name__!r}"
    return (
        f"{value!r:.60}" if isinstance(value, (str, int, float, type(None))) else f"a {type(value).__name__}"
    )


# -- loading --


class _Unloadable(UsageError):
    """The user's code raised an exception. The message names the exception and the line of the file that caused it."""

    def __init__(self, place: str, error: BaseException) -> None:
        lines = [frame.lineno for frame in extract_tb(error.__traceback__) if frame.filename == place]
        reason: Any = error
        if isinstance(error, SyntaxError):
            lines += [error.lineno] if error.filename == place else []
            reason = error.msg
        self.reason = f"the workflow cannot be loaded: {type(error).__name__}: {reason}"
        self.line = (lines[-1] if lines else None) or 1
        where = f"{place}:{self.line}" if lines else place
        hint = error.hint if isinstance(error, RolecallError) else ""
        super().__init__(f"{where}: {self.reason}", hint=hint)


class _Found(NamedTuple):
    workflow: Workflow
    place: str
    """The file or the module."""
    name: str | None
    """The name that the workflow must have, if its file determines the name."""
    python: str
    """The address from which the workflow is loaded again."""


def load_python(
    where: str, *, expected: StoredWorkflow | None = None, schema_ids: Mapping[str, str] | None = None
) -> Playbook:
    """Load the playbook of a file, of `FILE:VARIABLE` or of `MODULE:VARIABLE`.

    Args:
        expected: the stored definition; a file with a different definition is refused.
        schema_ids: the nodes of the roles' schemas.
    """
    found = _find(where)
    # A stored workflow keeps its name, which need not be the name of the file if a program started the thread.
    name = found.name if expected is None else None
    playbook = compile(found.workflow, name=name, python=found.python)
    if expected is not None and (
        changes := document.changes(expected, playbook.workflow._replace(python=expected.python))
    ):
        what = "; ".join(map(str, changes))
        way = "Bring the old version back, or fork the thread to continue with the new one"
        raise FileChanged(
            f"{found.place} is not what it was when the thread started: {what}",
            place=found.place,
            hint=Hint(way, "fork_to_workflow", workflow=found.place),
        )
    return playbook._replace(schema_ids=dict(schema_ids or {}))


def check_python(path: str, *, has_any_name: bool = False) -> tuple[Playbook | None, list[Problem]]:
    """Return the playbook of a file, or None if there is an error, and all errors and warnings. With `has_any_name`,
    the name of the workflow can differ from that of the file."""
    try:
        found = _find(path)
    except _Unloadable as error:
        return None, [Problem("error", error.reason, path, error.line, 1, error.hint)]
    except RolecallError as error:
        return None, [Problem("error", error.message, path, 1, 1, error.hint)]
    return check(found.workflow, name=None if has_any_name else found.name, python=found.python)


def _find(where: str) -> _Found:
    place, variable = where, ""
    if not where.endswith(".py"):
        place, colon, variable = where.rpartition(":")
        if not colon or not variable.isidentifier():
            hint = "Write FILE.py or MODULE:VARIABLE."
            raise UsageError(f"{where!r} names no workflow in Python", hint=hint)
    is_file = place.endswith(".py")
    module = _run_file(place) if is_file else _loading(place, lambda: import_module(place))
    if not variable and not isinstance(getattr(module, DEFAULT_NAME, None), Workflow):
        workflows = {id(value): name for name, value in vars(module).items() if isinstance(value, Workflow)}
        if len(workflows) != 1:
            had = f"several workflows ({', '.join(workflows.values())})" if workflows else "no workflow"
            raise UsageError(f"{place} has {had}", hint=_FILE_HINT)
        variable = next(iter(workflows.values()))
    variable = variable or DEFAULT_NAME
    workflow = getattr(module, variable, None)
    if not isinstance(workflow, Workflow):
        raise UsageError(f"{place} has no workflow {variable!r}", hint=_FILE_HINT)
    name = name_of(os.path.abspath(place)) if is_file and variable == DEFAULT_NAME else None
    return _Found(workflow, place, name, f"{os.path.realpath(place) if is_file else place}:{variable}")


def _run_file(path: str) -> ModuleType:
    """Run a file as a separate module of a package for its folder, so that `from .roles import writer` finds the files
    next to it."""
    path = os.path.realpath(path)
    if not os.path.isfile(path):
        hint = "Restore the file, or fork the thread with another workflow."
        raise FileGone(f"the workflow file {path} does not exist", hint=hint)
    name = "_rolecall_" + re.sub(r"\W", "_", path)
    for known in [known for known in sys.modules if known == name or known.startswith(name + ".")]:
        del sys.modules[known]
    loader = SourceFileLoader(name, path)
    folders = [os.path.dirname(path)]
    spec = spec_from_file_location(name, path, loader=loader, submodule_search_locations=folders)
    assert spec is not None  # noqa: S101 - a loader was given
    module = module_from_spec(spec)
    sys.modules[name] = module

    def run() -> ModuleType:
        # The loader's own cache would compare times only to the second, and would leave a file behind.
        exec(loader.source_to_code(loader.get_data(path), path), module.__dict__)  # noqa: S102
        return module

    return _loading(path, run)


def _loading(place: str, load: Callable[[], ModuleType]) -> ModuleType:
    try:
        return load()
    except (Exception, SystemExit) as error:
        raise _Unloadable(place, error) from error


__all__ = ["Role", "RoleOptions", "ThreadContext", "Workflow", "compile", "load_python"]
