"""Calls tools from outside: by name, with unchecked arguments, for callers that might be restricted.

The table describes every tool and its parameters; the doors generate their help and schemas from the table. Argument
types are checked here, with the contract's error messages where it defines any; `tools` does the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

from rolecall.errors import UsageError
from rolecall.nexus import overview, project_paths, tools
from rolecall.nexus.project_paths import Folder
from rolecall.nexus.tool_error import WrongCall
from rolecall.settings.capabilities import TASK_CREATION, TASK_UPDATE, check_allowed, check_lead
from rolecall.settings.mask import Mask
from rolecall.store.canonical import Schema

T = TypeVar("T")


class Kind(NamedTuple):
    name: str
    fits: Callable[[Any], bool]
    schema: Schema


def _is_text(value: Any) -> bool:
    return type(value) is str


_TEXT = Kind("a string", _is_text, {"type": "string"})
_NUMBER = Kind(tools.A_NUMBER, tools.is_number, {"type": "number"})
_TEXTS = Kind(
    "a list of strings",
    lambda value: type(value) is list and all(map(_is_text, value)),
    {"type": "array", "items": {"type": "string"}},
)
_NUMBERS = Kind(
    "a list of numbers",
    lambda value: type(value) is list and all(map(tools.is_number, value)),
    {"type": "array", "items": {"type": "number"}},
)
_MAP = Kind(
    "an object of strings",
    lambda value: type(value) is dict and all(map(_is_text, value.values())),
    {"type": "object", "additionalProperties": {"type": "string"}},
)


class Argument(NamedTuple):
    kind: Kind
    description: str
    is_required: bool = False
    choices: tuple[str, ...] = ()


class Tool(NamedTuple):
    run: Callable[..., object]
    description: str
    parameters: Mapping[str, Argument] = {}
    denied_as: tuple[str, ...] = ()
    """The tool's classes of actions; a restriction that denies one of the classes denies the tool."""
    is_reader: bool = False
    is_for_lead: bool = False
    """Whether the tool plans or decides, which no role is allowed to do, regardless of its restrictions."""
    needs: str = ""
    """The state file without which the tool refuses, whatever its arguments."""


def _needed(kind: Kind, description: str, *choices: str) -> Argument:
    return Argument(kind, description, True, choices)


TOOLS: Mapping[str, Tool] = {
    "plan_start": Tool(
        tools.plan_start,
        "Begin a plan: a topic and the issues to decide on, in order. Research comes first, so its summary is"
        " required. A plan that is still active goes into the history.",
        {
            "topic": _needed(_TEXT, "What the plan is about."),
            "issues": _needed(_TEXTS, "The questions to decide, one title each, in the order to take them."),
            "research_summary": _needed(_TEXT, "What was found out before planning."),
        },
        is_for_lead=True,
    ),
    "plan_status": Tool(
        tools.plan_status,
        "The active plan: its issues, their decisions, and how many are left.",
        is_reader=True,
    ),
    "plan_update": Tool(
        tools.plan_update,
        "Change the issues of the active plan: add one, remove one, give one another title, or reopen a"
        " decided one.",
        {
            "action": _needed(_TEXT, f"One of {', '.join(tools.ACTIONS)}."),
            "issue_id": Argument(_NUMBER, "The issue; for remove, edit and reopen."),
            "title": Argument(_TEXT, "The title; for add and edit."),
        },
        is_for_lead=True,
        needs=project_paths.PLAN,
    ),
    "plan_decide": Tool(
        tools.plan_decide,
        "Record the decision on an issue of the active plan, and which agents were asked about it.",
        {
            "issue_id": _needed(_NUMBER, "The issue."),
            "decision": _needed(_TEXT, "What was decided, and why."),
            "how_agents": Argument(_TEXTS, "The agents that were asked."),
            "how_summary": Argument(_MAP, "What each of them advised, by agent."),
            "how_agent_ids": Argument(_MAP, "The id of each one's instance, by agent, to ask it again."),
        },
        is_for_lead=True,
        needs=project_paths.PLAN,
    ),
    "task_add": Tool(
        tools.task_add,
        "Add a task to the running cycle. It is ready once every task it depends on is completed.",
        {
            "title": _needed(_TEXT, "What is to be done, in one line."),
            "context": _needed(_TEXT, "What the agent needs to know to do it."),
            "deps": Argument(_NUMBERS, "Ids of the tasks that have to be completed before."),
            "approach": Argument(_TEXT, "How to go about it."),
            "acceptance": Argument(_TEXT, "What has to hold when it is done."),
            "risk": Argument(_TEXT, "What may go wrong."),
            "plan_issue": Argument(_NUMBER, "The issue of the plan that it comes from."),
            "goal": Argument(
                _TEXT, "What all tasks of the cycle are for; takes the place of the last one given."
            ),
            "decisions": Argument(_TEXTS, "Decisions that bind the work; added to those given before."),
            "owner": Argument(_TEXT, 'The agent that does it, or "lead".'),
            "owner_agent_id": Argument(_TEXT, "The id of the instance that does it."),
            "owner_reuse_policy": Argument(
                _TEXT,
                "Whether an instance that worked on it before is resumed.",
                choices=overview.REUSE_POLICIES,
            ),
        },
        TASK_CREATION,
    ),
    "task_list": Tool(
        tools.task_list,
        "The tasks of the running cycle with a summary: how many are completed, pending, being worked on"
        " (`blocked`), and the ids of those that can be begun now (`ready`).",
        is_reader=True,
    ),
    "task_update": Tool(
        tools.task_update,
        "Set the status of a task. A completed one may be set back.",
        {
            "id": _needed(_NUMBER, "The task."),
            "status": _needed(_TEXT, "Its new status.", *overview.TASK_STATUSES),
        },
        TASK_UPDATE,
    ),
    "task_close": Tool(
        tools.task_close,
        "Close the cycle, finished or not: its plan and tasks go into the history, and a new one can begin.",
        denied_as=TASK_UPDATE,
    ),
    "history_search": Tool(
        tools.history_search,
        "Closed cycles in short, the most recent ones, oldest first.",
        {
            "query": Argument(_TEXT, "Only those that have this text anywhere, upper or lower case."),
            "last_n": Argument(_NUMBER, f"How many at most; {tools.DEFAULT_LAST} when not given."),
        },
        is_reader=True,
    ),
    "context": Tool(
        tools.context,
        "Where the project stands: branch, goal, how many tasks are left, the decisions that bind the work.",
        is_reader=True,
    ),
    "artifact_write": Tool(
        tools.artifact_write,
        "Write a file for later steps or for people, below the project's artifacts; the reply has its path.",
        {
            "filename": _needed(_TEXT, "A name, with folders if wanted: findings/storage.md."),
            "content": _needed(_TEXT, "The whole text of the file."),
        },
    ),
}
LEAD_ONLY = tuple(f"nx_{name}" for name, tool in TOOLS.items() if tool.is_for_lead)
"""The tools that plan or decide, which no catalogue agent uses, regardless of its capabilities."""


def input_schema(tool: Tool) -> Schema:
    """Return the JSON Schema of a tool's arguments. The action of `plan_update` is a plain string on purpose: an
    unknown action must reach the tool, because the contract defines the reply to it."""
    properties = {
        name: {
            **parameter.kind.schema,
            "description": parameter.description,
            **({"enum": list(parameter.choices)} if parameter.choices else {}),
        }
        for name, parameter in tool.parameters.items()
    }
    required = [name for name, parameter in tool.parameters.items() if parameter.is_required]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def call(
    project: Folder,
    tool: Callable[..., T],
    arguments: Mapping[str, object] | None = None,
    *,
    mask: Callable[[], Mask] = lambda: Mask(()),
) -> T:
    """Call a tool, given as a function of `tools`, after checking the arguments as `call_json` does."""
    given = _check_call(project, tool.__name__, arguments, (), mask)
    return tool(project, **given)


def call_json(
    project: Folder,
    name: str,
    arguments: Any = None,
    *,
    restrictions: Iterable[str] = (),
    mask: Callable[[], Mask] = lambda: Mask(()),
) -> bytes:
    """Call a tool by its name with unchecked arguments, and return the reply as JSON. `mask`, for secrets, is called
    only if the tool writes."""
    given = _check_call(project, name, arguments, restrictions, mask)
    if name == "task_list":
        return tools.task_list_json(project)
    return tools.to_json(TOOLS[name].run(project, **given))


def _check_call(
    project: Folder, name: str, arguments: Any, restrictions: Iterable[str], mask: Callable[[], Mask]
) -> dict[str, object]:
    """Validate the arguments, and return them in the form that the tool takes."""
    if name not in TOOLS:
        raise WrongCall(f"the tool {name!r} is not known; the tools are {', '.join(TOOLS)}")
    tool, held_to = TOOLS[name], tuple(restrictions)
    try:
        if tool.is_for_lead:
            check_lead(held_to, name)
        check_allowed(held_to, name, tool.denied_as)
    except UsageError as exc:
        raise WrongCall(exc.message, hint=exc.hint) from None
    if tool.needs:
        tools.check_there(project, tool.needs)
    given = {} if arguments is None else arguments
    if not isinstance(given, dict):
        raise WrongCall(f"the arguments of {name} are not an object")
    # Many hosts send null for omitted arguments.
    given = {key: value for key, value in given.items() if value is not None}
    # The contract requires the tool's own reply to an unknown action, even if other arguments are wrong.
    action = given.get("action") if name == "plan_update" else None
    is_unknown_action = isinstance(action, str) and action not in tools.ACTIONS
    for key, value in given.items():
        parameter = tool.parameters.get(key)
        if parameter is None:
            takes = ", ".join(tool.parameters) or "none"
            raise WrongCall(f"{name} has no parameter {key!r}; it has {takes}")
        if not parameter.kind.fits(value) and not is_unknown_action:
            raise WrongCall(f"{key} must be {parameter.kind.name}")
        if parameter.choices and value not in parameter.choices:
            raise WrongCall(f"{key} must be one of {', '.join(parameter.choices)}")
    for key, parameter in tool.parameters.items():
        if parameter.is_required and key not in given:
            raise WrongCall(f"{key} is required for {name}")
    if tool.is_reader or not given:
        return given
    masked: dict[str, object] = mask().value(given)
    return masked
