"""What a tool may do now: the gates before every call. A reason against it, or none.

The capability gate: an agent of the catalogue is held to its restrictions, whatever the tool is called; no agent that
Lead started plans, decides or starts others. The unplanned-edit gate: files of the project are not edited while no
task is planned. Beside both, `.nexus/state/` is written by the tools alone.

Nothing is locked, written or parsed here, because this happens at every call: where a path leads is asked of the
file system, and whether tasks are planned is whether their file is there. What cannot be known beforehand is not
blocked; docs/hooks.md says what that is.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from rolecall.hosts.event import LEAD, Answer, Caller, Deed, PreToolUse
from rolecall.hosts.hook_context import Kit
from rolecall.nexus import project_paths
from rolecall.settings.capabilities import FILES, TASK_CREATION, TASK_UPDATE, denied, restrictions

FOR_LEAD = (
    *("nx_plan_start", "nx_plan_update", "nx_plan_decide"),
    *("memory_merge", "memory_delete", "rule_add"),
    *("thread_start", "thread_step", "thread_answer"),
)
"""Tools of our server that no agent uses which Lead started."""
CHANGES: Mapping[str, tuple[str, ...]] = {
    "nx_task_add": TASK_CREATION,
    "nx_task_update": TASK_UPDATE,
    "nx_task_close": TASK_UPDATE,
    **dict.fromkeys(("memory_add", "knowledge_init", "knowledge_sync"), FILES),
    **dict.fromkeys(FOR_LEAD, ()),
}
"""Tools of our server that change something, and the classes of what they do."""
READ_ONLY_KINDS = frozenset(("explore", "plan"))
"""Kinds of agents that hosts bring along and that only look around."""
_STRANGER = ("no_task_create", "no_task_update")
"""What an agent is held to that the catalogue does not know: it is Lead's hand, and no more than that."""
_OUR_PREFIXES = ("mcp_rolecall_", "rolecall_", "rolecall(", "rolecall.", "rolecall/")
"""How hosts begin the names of our server's tools, beside `mcp__rolecall__`."""
_MOST_PATHS = 2_000
"""Paths of one call that are looked up; a command that names more is judged by these."""


def pre_tool_use(project: str, event: PreToolUse, kit: Kit, _now: str) -> Answer:
    """Whether the tool may run: an answer that blocks it, one that warns, or an empty one."""
    deed = event.deed
    if not concerns(deed):
        return Answer()
    ground = _Ground(os.path.realpath(project))
    inside = [found for path in deed.writes[:_MOST_PATHS] if (found := ground.places(path))]
    if _server_tool(deed.tool):
        inside = []  # the file it names is an artifact, not one of the project
    refusal = _state_refusal(ground, inside) or _capability_refusal(event.who, deed, kit, ground, inside)
    if refusal:
        return Answer(block=refusal)
    return Answer() if kit.run else _unplanned(event.who, deed, kit, ground, inside)


def concerns(deed: Deed) -> bool:
    """Whether there is anything to judge: most calls only read."""
    return bool(deed.writes or deed.classes or deed.starts or deed.command or _our_tool(deed.tool))


# -- where a path leads --

Places = tuple[str, ...]
"""Of one path that is written: the file, links followed, and the link itself, which may be replaced."""


class _Ground(NamedTuple):
    """A project's folder, links followed."""

    project: str

    @property
    def nexus(self) -> str:
        return os.path.join(self.project, ".nexus")

    def places(self, path: str) -> Places:
        """Where a path leads; empty when that is outside the project."""
        folder, name = os.path.split(path.rstrip("/").replace("\0", "") or "/")
        found = [os.path.realpath(os.path.join(folder, name))]
        if name not in ("", ".", ".."):
            found.append(os.path.join(os.path.realpath(folder), name))
        return tuple(found) if any(_is_below(self.project, one) for one in found) else ()

    def is_state(self, places: Places) -> bool:
        """Whether it is the state, or what holds it; also where the file system takes `.NEXUS` for the same."""
        nexus = self.nexus.casefold()
        folded = [one.casefold() for one in places]
        return nexus in folded or any(_is_below(f"{nexus}/state", one) for one in folded)

    def needs_plan(self, places: Places) -> bool:
        """What a project knows (`.nexus/memory`, `rules`, `context`) may be written at any time."""
        return not all(_is_below(self.nexus, one) for one in places)

    def has_tasks(self) -> bool:
        return os.path.exists(project_paths.state(self.project, project_paths.TASKS))

    def shown(self, places: Places) -> str:
        inside = next(one for one in places if _is_below(self.project, one))
        return os.path.relpath(inside, self.project)


def _is_below(folder: str, path: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


# -- the state --


def _state_refusal(ground: _Ground, inside: Sequence[Places]) -> str:
    for places in inside:
        if ground.is_state(places):
            return (
                f"{ground.shown(places)} is written by the tools alone, so that no two writers lose each other's work."
                " Use nx_plan_…, nx_task_… and nx_artifact_write, or the commands `rolecall plan` and `rolecall task`."
            )
    return ""


# -- capabilities --


def _capability_refusal(who: Caller, deed: Deed, kit: Kit, ground: _Ground, inside: Sequence[Places]) -> str:
    is_agent = not kit.run and who != LEAD
    if not is_agent and not kit.run and not kit.restrictions:
        return ""
    words = (*kit.restrictions, *(capabilities_of(who.agent, kit) if is_agent else ()))
    name = f"the agent {who.agent or who.id}" if is_agent else "this role"
    is_held = is_agent or bool(restrictions(words))
    if deed.starts and is_agent:
        return f"Only Lead starts agents, and {name} is not Lead. Say in your report what else is to be done."
    for tool, classes, is_leads in _own_actions(deed):
        if is_held and is_leads:
            return f"{tool} is Lead's, and {name} is not Lead. Report what you found; Lead decides."
        if word := _denier(words, classes):
            return f"{tool} is denied to {name} by {word}. Report to Lead instead."
    return _class_refusal(name, words, deed, ground, inside)


def _class_refusal(
    name: str, words: Sequence[str], deed: Deed, ground: _Ground, inside: Sequence[Places]
) -> str:
    is_edit = bool(inside) or (not deed.writes and bool(set(FILES).intersection(deed.classes)))
    if is_edit and (word := _denier(words, FILES)):
        what = ground.shown(inside[0]) if inside else "a file"
        return (
            f"Changing {what} is denied to {name} by {word}. Report to Lead what should be changed, and how."
        )
    others = [one for one in deed.classes if one not in FILES and one != "shell_file_write"]
    if word := _denier(words, others):
        return f"{deed.tool} is denied to {name} by {word}."
    return ""


def capabilities_of(agent: str, kit: Kit) -> tuple[str, ...]:
    """What an agent that Lead started is held to; the catalogue does not know all of them."""
    rules = kit.agents.get(agent)
    if rules is not None:
        return rules.capabilities
    # If the configured catalogue is unreadable, an agent unknown to ours may be one that must not edit.
    is_reader = agent.lower() in READ_ONLY_KINDS or bool(kit.problem)
    return (*_STRANGER, "no_file_edit") if is_reader else _STRANGER


def _denier(words: Collection[str], classes: Collection[str]) -> str:
    """The restriction that denies one of the classes; empty: none."""
    return next((word for word in words if set(denied([word])).intersection(classes)), "")


def _own_actions(deed: Deed) -> Iterator[tuple[str, tuple[str, ...], bool]]:
    """What a call does with Rolecall, through a tool of our server or a command in a shell: its name, its classes, and
    whether only Lead may do it."""
    if own := _our_tool(deed.tool):
        yield own, CHANGES[own], own in FOR_LEAD
    if deed.calls:
        from rolecall.settings.verbs import VERBS, named_action

        for words in deed.calls:
            plain = [word for word in words if not word.startswith("-")]
            names = (" ".join(plain[:count]) for count in (3, 2, 1))
            if verb := next((name for name in names if name in VERBS), ""):
                name, action = named_action(verb, partial(_is_given, words))
                yield f"rolecall {name}", action.classes, action.is_for_lead or action.is_door


def _is_given(words: Sequence[str], option: str) -> bool:
    """Whether an option is among the words, including its abbreviations and its letter."""
    flags = [word.partition("=")[0] for word in words if word not in ("", "-", "--")]
    return any(f"--{option}".startswith(flag) or flag[:2] == f"-{option[0]}" for flag in flags)


def _our_tool(tool: str) -> str:
    """The name of a tool of ours that changes something; one whose name leaves no doubt also under others' servers."""
    name = _server_tool(tool)
    if not name and "nx_" in tool:
        at = tool.index("nx_")
        name = "" if tool[at - 1].isalnum() else tool[at:].removesuffix(")")
    return name if name in CHANGES else ""


def _server_tool(tool: str) -> str:
    """The name that a tool has in our server, which may run once for each agent; empty for tools of others."""
    server, _, name = tool.removeprefix("mcp__").partition("__" if tool.startswith("mcp__") else "_")
    if name and (server.startswith("rolecall-") or (server == "rolecall" and tool.startswith("mcp__"))):
        return name
    for prefix in _OUR_PREFIXES:
        if tool.startswith(prefix):
            return tool.removeprefix(prefix).removesuffix(")")
    return tool if tool.startswith("nx_") else ""


# -- unplanned edits --


def _unplanned(who: Caller, deed: Deed, kit: Kit, ground: _Ground, inside: Sequence[Places]) -> Answer:
    if kit.gate == "off":
        return Answer()
    edited = [places for places in inside if ground.needs_plan(places)]
    is_somewhere = not deed.writes and bool(set(FILES).intersection(deed.classes))
    if not (edited or is_somewhere) or ground.has_tasks():
        return Answer()
    what = ground.shown(edited[0]) if edited else "a file"
    if kit.gate == "warn":
        return Answer(context=f"{what} is edited while no task is planned. {_PLAN_FIRST}")
    if who != LEAD:
        return Answer(block=f"No task is planned, so {what} is not edited. Report this to Lead, who plans.")
    return Answer(block=f"No task is planned, so {what} is not edited. {_PLAN_FIRST}")


_PLAN_FIRST = (
    "Plan what is to be done first: the user can write [plan], and nx_task_add (`rolecall task add`) adds a task"
    " to which the edit belongs."
)
