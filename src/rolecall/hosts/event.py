"""The eight events of a host and our answer, independent of any particular host.

Annotations in this module are not strings, because a named tuple would compile each of them in every hook that runs.
"""

from typing import Literal, NamedTuple, TypeAlias


class HostCaller(NamedTuple):
    """Who acts: an agent that was started, or Lead."""

    agent: str = ""
    """Its id in the catalogue, or the host's name for its kind; empty for Lead."""
    id: str = ""
    """The host's id for this instance."""


LEAD = HostCaller()


class HostToolCall(NamedTuple):
    """What a tool is about to do, or did, as far as its input shows."""

    tool: str
    """The host's name for the tool."""
    classes: tuple[str, ...] = ()
    """Its classes of actions, from `capabilities.CLASSES`."""
    writes: tuple[str, ...] = ()
    """Files it creates, changes or removes: absolute paths, links not resolved."""
    reads: tuple[str, ...] = ()
    """Files whose contents it shows the model."""
    command: str = ""
    """The shell command; files that it visibly writes are in `writes`."""
    starts: str = ""
    """The kind of agent it starts."""
    skill: str = ""
    """The skill whose text it shows the model."""
    words: str = ""
    """The arguments of the skill."""
    calls: tuple[tuple[str, ...], ...] = ()
    """The arguments of each `rolecall …` in the command."""


class SessionStart(NamedTuple):
    session: str
    is_new: bool = True
    """False if a session was resumed."""
    cwd: str = ""
    """The session's working folder, if the host reports it."""


class UserMessage(NamedTuple):
    session: str
    text: str
    id: str = ""
    """Distinguishes messages with the same text, if the host has such an id."""


class SubagentSpawn(NamedTuple):
    session: str
    who: HostCaller


class SubagentComplete(NamedTuple):
    session: str
    who: HostCaller
    last_message: str = ""


class PreToolUse(NamedTuple):
    session: str
    who: HostCaller
    call: HostToolCall


class PostToolUse(NamedTuple):
    session: str
    who: HostCaller
    call: HostToolCall
    error: str = ""


class SessionEnd(NamedTuple):
    session: str
    is_over: bool = True
    """False at the end of a turn, in hosts with such an event: unfinished work is reported, but nothing is removed."""


class ContextCompact(NamedTuple):
    session: str


Event: TypeAlias = (
    "SessionStart | UserMessage | SubagentSpawn | SubagentComplete | PreToolUse | PostToolUse"
    " | SessionEnd | ContextCompact"
)


class HostAnswer(NamedTuple):
    """What a host should do about an event; an empty answer means continue."""

    block: str = ""
    """The reason for the model why the tool may not run."""
    context: str = ""
    """Text for the model."""
    notice: str = ""
    """Text for the person."""


GateMode: TypeAlias = Literal["block", "warn", "off"]
"""How file edits are treated while no task is planned."""
