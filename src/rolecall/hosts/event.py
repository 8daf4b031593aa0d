"""The eight events of a host and our answer, in words of no particular host.

Annotations in this module are not strings: a named tuple would compile each of them, in every hook that runs.
"""

from typing import Literal, NamedTuple, TypeAlias


class Caller(NamedTuple):
    """Who acts: an agent that was started, or Lead."""

    agent: str = ""
    """Its id in the catalogue, or the host's name for its kind; empty: Lead."""
    id: str = ""
    """The host's id of this instance."""


LEAD = Caller()


class ToolCall(NamedTuple):
    """What a tool is about to do, or did, as far as its input tells."""

    tool: str
    """The host's name for it."""
    classes: tuple[str, ...] = ()
    """Classes of actions it falls under, of `capabilities.CLASSES`."""
    writes: tuple[str, ...] = ()
    """Files it creates, changes or removes: absolute paths, links not yet followed."""
    reads: tuple[str, ...] = ()
    """Files whose content it shows the model."""
    command: str = ""
    """The shell command; the files it visibly writes are in `writes`."""
    starts: str = ""
    """The kind of agent it starts."""
    skill: str = ""
    """The skill whose text it shows the model."""
    words: str = ""
    """The arguments of the skill."""
    calls: tuple[tuple[str, ...], ...] = ()
    """The words after the program of each `rolecall …` in the command."""


class SessionStart(NamedTuple):
    session: str
    is_new: bool = True
    """False if a session was resumed."""
    cwd: str = ""
    """The folder it works in, if the host tells it."""


class UserMessage(NamedTuple):
    session: str
    text: str
    id: str = ""
    """Tells two messages with the same text apart, if the host has such an id."""


class SubagentSpawn(NamedTuple):
    session: str
    who: Caller


class SubagentComplete(NamedTuple):
    session: str
    who: Caller
    last_message: str = ""


class PreToolUse(NamedTuple):
    session: str
    who: Caller
    call: ToolCall


class PostToolUse(NamedTuple):
    session: str
    who: Caller
    call: ToolCall
    error: str = ""


class SessionEnd(NamedTuple):
    session: str
    is_over: bool = True
    """False at the end of a turn, in hosts that have an event for it: unfinished work is named, nothing removed."""


class ContextCompact(NamedTuple):
    session: str


Event: TypeAlias = (
    "SessionStart | UserMessage | SubagentSpawn | SubagentComplete | PreToolUse | PostToolUse"
    " | SessionEnd | ContextCompact"
)


class Answer(NamedTuple):
    """What a host should do about an event; empty: continue."""

    block: str = ""
    """Why the tool may not run, for the model."""
    context: str = ""
    """What the model should read."""
    notice: str = ""
    """What the person should read."""


GateMode: TypeAlias = Literal["block", "warn", "off"]
"""What happens to edits of files while no task is planned."""
