"""The gates before every tool call: each returns a reason to block the call, or an empty string.

The capability gate applies a catalogue agent's restrictions to tools of every name. No agent that Lead started is
allowed to plan, decide or start other agents. The unplanned-edit gate blocks edits of the project's files while no task
is planned. Only our tools are allowed to write to `.nexus/state/`.

Gates run at every call, so they take no lock, write nothing and parse nothing: they only resolve paths and check
whether the task file exists. Effects that cannot be predicted are not blocked; docs/hooks.md describes these effects.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from rolecall.hosts.event import LEAD, HostAnswer, HostCaller, HostToolCall, PreToolUse
from rolecall.hosts.hook_context import HookContext
from rolecall.nexus import project_paths
from rolecall.settings.capabilities import FILES, TASK_CREATION, TASK_UPDATE, denied_classes, restrictions
from rolecall.store.lazy import Module

if TYPE_CHECKING:
    from rolecall.settings import verbs
else:
    verbs = Module("rolecall.settings.verbs")  # only calls that run our commands need the table of commands

FOR_LEAD = (
    *("nx_plan_start", "nx_plan_update", "nx_plan_decide"),
    *("memory_merge", "memory_delete", "rule_add"),
    *("workflow_run", "thread_start", "thread_run", "thread_step", "thread_answer"),
)
"""The tools of our server that agents started by Lead are not allowed to use."""
CHANGES: Mapping[str, tuple[str, ...]] = {
    "nx_task_add": TASK_CREATION,
    "nx_task_update": TASK_UPDATE,
    "nx_task_close": TASK_UPDATE,
    **dict.fromkeys(("memory_add", "knowledge_init", "knowledge_sync"), FILES),
    **dict.fromkeys(FOR_LEAD, ()),
}
"""The tools of our server that change something, with their classes of actions."""
READ_ONLY_KINDS = frozenset(("explore", "plan"))
"""The kinds of built-in host agents that only read."""
_UNKNOWN_AGENT = ("no_task_create", "no_task_update")
"""The restrictions of an agent that is not in the catalogue, because such an agent works for Lead."""
_OUR_PREFIXES = ("mcp_rolecall_", "rolecall_", "rolecall(", "rolecall.", "rolecall/")
"""Prefixes that hosts give the tools of our server, in addition to `mcp__rolecall__`."""
_MOST_PATHS = 2_000
"""The maximum number of paths in one call that are resolved."""
_PLAN_FIRST = (
    "Plan what is to be done first: the user can write [plan], and nx_task_add (`rolecall task add`) adds a task"
    " to which the edit belongs."
)


def pre_tool_use(project: str, event: PreToolUse, hooks: HookContext, _now: str) -> HostAnswer:
    """Return an answer that blocks the call or warns about it, or an empty answer."""
    call = event.call
    if not concerns(call):
        return HostAnswer()
    folder = _Project(os.path.realpath(project))
    edited: list[Places] = []
    if not _server_tool(call.tool):  # a tool of our server names an artifact, not a project file
        edited = [found for path in call.writes[:_MOST_PATHS] if (found := folder.resolve(path))]
    for places in edited:
        if folder.is_state(places):
            return HostAnswer(
                block=f"{folder.shorten(places)} is written by the tools alone, so that no two writers lose each"
                " other's work. Use nx_plan_…, nx_task_… and nx_artifact_write, or the commands `rolecall plan` and"
                " `rolecall task`."
            )
    if refusal := _refuse_by_capability(event.who, call, hooks, folder, edited):
        return HostAnswer(block=refusal)

    # An edit of the project's files needs a task; an edit of its notes (`.nexus/memory`, `rules`, `context`) does not.
    unplanned = [places for places in edited if not all(_is_below(folder.nexus, one) for one in places)]
    is_unnamed = not call.writes and not set(FILES).isdisjoint(call.classes)
    is_exempt = hooks.run or hooks.gate == "off" or not (unplanned or is_unnamed)
    if is_exempt or os.path.exists(project_paths.state(folder.root, project_paths.TASKS)):
        return HostAnswer()
    what = folder.shorten(unplanned[0]) if unplanned else "a file"
    if hooks.gate == "warn":
        return HostAnswer(context=f"{what} is edited while no task is planned. {_PLAN_FIRST}")
    advice = _PLAN_FIRST if event.who == LEAD else "Report this to Lead, who plans."
    return HostAnswer(block=f"No task is planned, so {what} is not edited. {advice}")


def concerns(call: HostToolCall) -> bool:
    """Return whether a call needs to be judged. Most calls only read and need not be judged."""
    return bool(call.writes or call.classes or call.starts or call.command or _our_tool(call.tool))


Places = tuple[str, ...]
"""A written path in two forms: with all links resolved, and with only its folder's, as a write can replace a link."""


class _Project(NamedTuple):
    """A project's folder, with links resolved."""

    root: str

    @property
    def nexus(self) -> str:
        return os.path.join(self.root, ".nexus")

    def resolve(self, path: str) -> Places:
        """Resolve a path. Return an empty tuple if the path is outside the project."""
        folder, name = os.path.split(path.rstrip("/").replace("\0", "") or "/")
        found = [os.path.realpath(os.path.join(folder, name))]
        if name not in ("", ".", ".."):
            found.append(os.path.join(os.path.realpath(folder), name))
        return tuple(found) if any(_is_below(self.root, one) for one in found) else ()

    def is_state(self, places: Places) -> bool:
        """Return whether a path is inside the state folder or contains it, even on a file system that ignores case."""
        nexus = self.nexus.casefold()
        return any(one == nexus or _is_below(f"{nexus}/state", one) for one in map(str.casefold, places))

    def shorten(self, places: Places) -> str:
        return os.path.relpath(next(one for one in places if _is_below(self.root, one)), self.root)


def _is_below(folder: str, path: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _refuse_by_capability(
    who: HostCaller, call: HostToolCall, hooks: HookContext, folder: _Project, edited: Sequence[Places]
) -> str:
    is_agent = not hooks.run and who != LEAD
    if not is_agent and not hooks.restrictions:
        return ""
    words = (*hooks.restrictions, *(capabilities_of(who.agent, hooks) if is_agent else ()))
    name = f"the agent {who.agent or who.id}" if is_agent else "this role"
    if call.starts and is_agent:
        return f"Only Lead starts agents, and {name} is not Lead. Say in your report what else is to be done."
    # The call's actions on Rolecall, by a tool of our server or a shell command: name, classes, for Lead only.
    own = _our_tool(call.tool)
    actions = [(own, CHANGES[own], own in FOR_LEAD)] if own else []
    for words_of in call.calls:
        plain = [word for word in words_of if not word.startswith("-")]
        names = (" ".join(plain[:count]) for count in (3, 2, 1))
        if verb := next((one for one in names if one in verbs.VERBS), ""):
            done, action = verbs.find_action(verb, partial(_is_given, words_of))
            actions.append((f"rolecall {done}", action.classes, action.is_for_lead or action.is_door))
    for tool, classes, is_for_lead in actions:
        if is_for_lead and (is_agent or restrictions(words)):
            return f"Only Lead may use {tool}, and {name} is not Lead. Report what you found; Lead decides."
        if word := _denier(words, classes):
            return f"{tool} is denied to {name} by {word}. Report to Lead instead."
    is_edit = bool(edited) or (not call.writes and not set(FILES).isdisjoint(call.classes))
    if is_edit and (word := _denier(words, FILES)):
        what, advice = folder.shorten(edited[0]) if edited else "a file", "what should be changed, and how"
        return f"Changing {what} is denied to {name} by {word}. Report to Lead {advice}."
    others = [one for one in call.classes if one not in FILES and one != "shell_file_write"]
    word = _denier(words, others)
    return f"{call.tool} is denied to {name} by {word}." if word else ""


def capabilities_of(agent: str, hooks: HookContext) -> tuple[str, ...]:
    """Return the restrictions of an agent that Lead started; the catalogue need not contain the agent."""
    rules = hooks.agents.get(agent)
    if rules is not None:
        return rules.capabilities
    # If the configured catalogue is unreadable, an agent that our own catalogue lacks could be one that must not edit.
    is_reader = agent.lower() in READ_ONLY_KINDS or bool(hooks.problem)
    return (*_UNKNOWN_AGENT, "no_file_edit") if is_reader else _UNKNOWN_AGENT


def _denier(words: Collection[str], classes: Collection[str]) -> str:
    return next((word for word in words if not set(denied_classes([word])).isdisjoint(classes)), "")


def _is_given(words: Sequence[str], option: str) -> bool:
    """Return whether an option is in the words: in full, abbreviated or as its letter."""
    flags = [word.partition("=")[0] for word in words if word not in ("", "-", "--")]
    return any(f"--{option}".startswith(flag) or flag[:2] == f"-{option[0]}" for flag in flags)


def _our_tool(tool: str) -> str:
    """Return the name of our tool that changes something, if any. A name with `nx_` counts under any server."""
    name = _server_tool(tool)
    if not name and "nx_" in tool:
        at = tool.index("nx_")
        name = "" if tool[at - 1].isalnum() else tool[at:].removesuffix(")")
    return name if name in CHANGES else ""


def _server_tool(tool: str) -> str:
    """Return the tool's name in our server, or an empty string. Agents can have a server of their own."""
    server, _, name = tool.removeprefix("mcp__").partition("__" if tool.startswith("mcp__") else "_")
    if name and (server.startswith("rolecall-") or (server == "rolecall" and tool.startswith("mcp__"))):
        return name
    for prefix in _OUR_PREFIXES:
        if tool.startswith(prefix):
            return tool.removeprefix(prefix).removesuffix(")")
    return tool if tool.startswith("nx_") else ""
