"""The eight events that a host can report, and our answer, independent of any particular host.

Annotations in this module are not strings, because a named tuple would compile each string in every hook that runs.
"""

from typing import Literal, NamedTuple, TypeAlias


class HostCaller(NamedTuple):
    """The actor in an event: an agent that was started, or Lead."""

    agent: str = ""
    """The agent's id in the catalogue, or the host's name for this kind of agent; empty for Lead."""
    id: str = ""
    """The host's id for this instance of the agent."""


LEAD = HostCaller()


class HostToolCall(NamedTuple):
    """What a tool is about to do, or has done, as far as its input shows."""

    tool: str
    """The host's name for the tool."""
    classes: tuple[str, ...] = ()
    """The call's classes of actions, from `capabilities.CLASSES`."""
    writes: tuple[str, ...] = ()
    """The files that the call creates, changes or removes: absolute paths with links not resolved."""
    reads: tuple[str, ...] = ()
    """The files whose contents the call shows the model."""
    command: str = ""
    """The shell command; the files that it visibly writes are in `writes`."""
    starts: str = ""
    """The kind of agent that the call starts."""
    skill: str = ""
    """The skill whose text the call shows the model."""
    words: str = ""
    """The arguments of the skill."""
    calls: tuple[tuple[str, ...], ...] = ()
    """The arguments of each `rolecall …` in the command."""


class SessionStart(NamedTuple):
    session: str
    is_new: bool = True
    """Whether the session is new; False if it was resumed."""
    cwd: str = ""
    """The session's working directory, if the host reports it."""


class UserMessage(NamedTuple):
    session: str
    text: str
    id: str = ""
    """The host's id of the message, if it has one, which distinguishes messages with the same text."""


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
    """Whether the session is over. At the end of a turn it is not, and nothing is removed."""


class ContextCompact(NamedTuple):
    session: str


Event: TypeAlias = (
    "SessionStart | UserMessage | SubagentSpawn | SubagentComplete | PreToolUse | PostToolUse"
    " | SessionEnd | ContextCompact"
)


class HostAnswer(NamedTuple):
    """What a host should do about an event; an empty answer means continue."""

    block: str = ""
    """The reason, for the model, why the tool is not allowed to run."""
    context: str = ""
    """Text for the model."""
    notice: str = ""
    """Text for the person."""


GateMode: TypeAlias = Literal["block", "warn", "off"]
"""How file edits are treated while no task is planned."""
