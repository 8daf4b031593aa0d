"""The updates with which an editor shows a thread: its text, plan, tool calls and changed files. The functions only
compute values."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence

from acp.helpers import (
    ToolCallContentVariant,
    plan_entry,
    start_tool_call,
    text_block,
    tool_content,
    tool_diff_content,
    update_agent_message_text,
    update_agent_thought_text,
    update_plan,
    update_tool_call,
    update_user_message_text,
)
from acp.schema import (
    AgentMessageChunk,
    AgentPlanUpdate,
    AgentThoughtChunk,
    AvailableCommand,
    AvailableCommandsUpdate,
    Cost,
    PlanEntry,
    PlanEntryStatus,
    SessionInfoUpdate,
    ToolCallLocation,
    ToolCallProgress,
    ToolCallStart,
    ToolKind,
    UsageUpdate,
    UserMessageChunk,
)

from rolecall.store.canonical import JsonObject
from rolecall.threads.report import call_text, pretty, shorten
from rolecall.threads.setup import HUMAN
from rolecall.threads.step_files import FileVersions
from rolecall.threads.thread import Step
from rolecall.threads.view_types import ThreadUsage
from rolecall.workflow.document import roles_in_order
from rolecall.workflow.model import STATUS_KEYS, SUSPEND, StoredWorkflow
from rolecall.workflow.route import status_of

Update = (
    UserMessageChunk
    | AgentMessageChunk
    | AgentThoughtChunk
    | ToolCallStart
    | ToolCallProgress
    | AgentPlanUpdate
    | AvailableCommandsUpdate
    | SessionInfoUpdate
    | UsageUpdate
)

UNLIMITED = 1_000_000_000
"""The size reported for a thread without a limit on tokens. The protocol requires a size, and editors warn when little
of it is left."""
_LONGEST_RESULT = 4_000
_LONGEST_TITLE = 200
_PATHS = ("file_path", "path", "notebook_path", "filePath", "target_file")
"""The names that different agents' tools give to the argument with a file's path."""
_KINDS: Mapping[ToolKind, tuple[str, ...]] = {
    "edit": ("edit", "write", "patch", "replace"),
    "execute": ("bash", "shell", "run", "exec", "command"),
    "search": ("grep", "glob", "search", "list"),
    "fetch": ("fetch", "web"),
    "read": ("read", "view"),
    "think": ("think",),
}
"""For each kind of tool, parts of the tools' names."""

COMMANDS = {
    "continue": "continue without a message, or try again",
    "limit": "raise a limit, for example `/limit cost=20`",
    "merge": "merge the branch of the latest thread into yours",
}

say = update_agent_message_text
hear = update_user_message_text
think = update_agent_thought_text


def offer_commands() -> AvailableCommandsUpdate:
    offered = [AvailableCommand(name=name, description=about) for name, about in COMMANDS.items()]
    return AvailableCommandsUpdate(session_update="available_commands_update", available_commands=offered)


def name_session(title: str) -> SessionInfoUpdate:
    return SessionInfoUpdate(session_update="session_info_update", title=title)


def count(used: ThreadUsage, limits: Mapping[str, float]) -> UsageUpdate:
    """Return the usage of the thread, relative to its limit on tokens."""
    cost = Cost(amount=used["cost"], currency="USD") if used.get("cost") else None
    size = int(limits.get("tokens") or UNLIMITED)
    return UsageUpdate(session_update="usage_update", used=int(used.get("tokens", 0)), size=size, cost=cost)


# -- text --


class Prose:
    """The text of an agent without the frontmatter, which is for the workflow and not for people."""

    _FIELD = re.compile(r"[\"']?\$?[\w-]+[\"']?[ \t]*:")

    def __init__(self) -> None:
        self._rest = ""
        """Text that might belong to the frontmatter: the line `---`, or the beginning of a line."""
        self._is_inside = False
        self._squeezed = ""

    def feed(self, text: str) -> str:
        """Return the part of the text that can already be shown."""
        shown = []
        self._rest += text
        while self._rest:
            line, newline, after = self._rest.partition("\n")
            if self._is_inside:
                if not newline:
                    break
                self._is_inside, self._rest = line.strip() != "---", after
            elif line.strip() == "---" and newline:
                following, has_end, _ = after.partition("\n")
                if not has_end and not self._FIELD.match(following):
                    break
                self._is_inside = self._FIELD.match(following) is not None
                shown += [] if self._is_inside else [line + newline]
                self._rest = after
            elif not newline and "---".startswith(line.strip()):
                break
            else:
                shown.append(line + newline)
                self._rest = after
        return self._note("".join(shown))

    def flush(self) -> str:
        """Return the remaining text, at the end of a message."""
        rest, self._rest = "" if self._is_inside else self._rest, ""
        self._is_inside = False
        return self._note(rest)

    def has_shown(self, text: str) -> bool:
        return "".join(text.split()) in self._squeezed

    def _note(self, text: str) -> str:
        self._squeezed += "".join(text.split())
        return text


def word_answer(step: Step) -> str:
    """Return the text of a step: its body or, if the body is empty, its fields."""
    fields = {name: value for name, value in step.output.items() if name not in STATUS_KEYS}
    if step.body.strip() or not fields:
        return step.body.strip()
    if all(isinstance(value, str) for value in fields.values()):
        return "\n\n".join(f"**{name}**: {value}" for name, value in fields.items())
    return f"```json\n{pretty(fields)}\n```"


def word_heading(role: str) -> str:
    return f"\n\n**{role}**\n\n"


# -- the plan --


class Progress:
    """The roles that have answered, and the role that is at work."""

    def __init__(self, workflow: StoredWorkflow) -> None:
        self._workflow = workflow
        self._statuses: dict[str, str] = {}
        self.current = ""
        self.remark = ""
        """The progress of the role that is at work, if a group plays the role."""

    @property
    def has_team(self) -> bool:
        """Whether agents play more than one role, so that people need to know which role speaks."""
        return sum(role.agent != HUMAN for role in self._workflow.roles.values()) > 1

    def start(self, role: str) -> None:
        self.current, self.remark = role, ""

    def finish(self, step: Step) -> None:
        self._statuses[step.role] = status_of(step.output) or ""
        self.start("")

    def is_person(self, role: str) -> bool:
        return role in self._workflow.roles and self._workflow.roles[role].agent == HUMAN

    def plan(self) -> AgentPlanUpdate:
        entries: list[PlanEntry] = []
        for name in roles_in_order(self._workflow):
            role = self._workflow.roles[name]
            about = role.description.strip().partition("\n")[0]
            is_current, said = name == self.current, self._statuses.get(name)
            status = self.remark if is_current else "asks" if said == SUSPEND else said
            is_at_work = is_current or said == SUSPEND
            words = ": ".join(filter(None, (name, about)))
            state: PlanEntryStatus = (
                "in_progress" if is_at_work else "pending" if said is None else "completed"
            )
            entries.append(plan_entry(f"{words} ({status})" if status else words, status=state))
        return update_plan(entries)


# -- questions --


def make_field(schema: JsonObject) -> JsonObject | None:
    """Return the form field for a value with this schema, or None if the protocol has no such field."""
    choices = schema.get("enum")
    is_choice = isinstance(choices, Sequence) and all(isinstance(one, str) for one in choices)
    match schema.get("type", "string" if is_choice else None):
        case "string" | "number" | "integer" | "boolean" as kind:
            return {**schema, "type": kind}
        case "array" if isinstance(schema.get("items"), Mapping):
            item = make_field(schema["items"])
            return {**schema, "items": item} if item and "enum" in item else None
    return None


# -- tool calls --


def start_call(ident: str, name: str, arguments: JsonObject, folder: str) -> ToolCallStart:
    """Return the update for a tool call of an agent that works in `folder`."""
    path = next((str(arguments[key]) for key in _PATHS if arguments.get(key)), "")
    title = " ".join(filter(None, (name, call_text(arguments))))
    return start_tool_call(
        ident,
        shorten_title(title),
        kind=next((kind for kind, parts in _KINDS.items() if any(p in name.lower() for p in parts)), "other"),
        status="in_progress",
        locations=[ToolCallLocation(path=os.path.join(folder, path))] if path else None,
        raw_input=dict(arguments),
    )


def end_call(ident: str, result: str = "", *, is_failed: bool = False) -> ToolCallProgress:
    content = quote(result) if result.strip() else None
    return update_tool_call(ident, status="failed" if is_failed else "completed", content=content)


def quote(text: str) -> list[ToolCallContentVariant]:
    return [tool_content(text_block(shorten(text.strip(), _LONGEST_RESULT)))]


def shorten_title(title: str) -> str:
    return title if len(title) <= _LONGEST_TITLE else f"{title[: _LONGEST_TITLE - 1]}…"


def show_changes(step: Step, files: Sequence[FileVersions]) -> ToolCallStart | None:
    """Return an update with the files that a step changed, and a diff of each file that can be shown. Return None if
    the step changed no files."""
    if step.tree is None or not step.tree.changed:
        return None
    names = [change.path for change in step.tree.changed]
    more = len(names) + step.tree.more - 3
    named = ", ".join(names[:3]) + (f" and {more} more" if more > 0 else "")
    shown = {file.path for file in files}
    diffs: list[ToolCallContentVariant] = [
        tool_diff_content(file.path, file.after or "", file.before) for file in files
    ]
    hidden = [name for name in names if not any(path.endswith(f"/{name}") for path in shown)]
    return start_tool_call(
        f"{step.id}-files",
        shorten_title(f"{step.role} changed {named}"),
        kind="edit",
        status="completed",
        content=[*diffs, *(quote("Not shown: " + ", ".join(hidden)) if hidden else [])],
        locations=[ToolCallLocation(path=file.path) for file in files],
    )


def replay_calls(step: Step, folder: str) -> Iterable[ToolCallStart]:
    """Yield the tool calls of a recorded step."""
    calls = [call for turn in step.turns for call in turn["tool_calls"]]
    for number, call in enumerate(calls):
        arguments = call["arguments"] if isinstance(call["arguments"], Mapping) else {}
        started = start_call(f"{step.id}-{number}", call["name"], arguments, folder)
        content = quote(call["result"]) if call["result"].strip() else None
        yield started.model_copy(update={"status": "completed", "content": content})
