"""What hosts tell us and what we answer, in words that are no host's own. Values.

Annotations are no texts in this module: a named tuple would compile each of them, in every hook that is run.
"""

from typing import Literal, NamedTuple, TypeAlias


class Caller(NamedTuple):
    """Who acts: an agent that was started, or Lead."""

    agent: str = ""
    """Its id in the catalogue, or the host's name for its kind; empty: Lead."""
    id: str = ""
    """This very instance, as the host calls it."""


LEAD = Caller()


class Deed(NamedTuple):
    """What a tool is about to do, or did, as far as its input tells."""

    tool: str
    """The host's name for it."""
    classes: tuple[str, ...] = ()
    """Classes of actions it falls under, of `capabilities.CLASSES`."""
    writes: tuple[str, ...] = ()
    """Files it creates, changes or removes: absolute paths, links not yet followed."""
    reads: tuple[str, ...] = ()
    """Files whose content it gives to the model."""
    command: str = ""
    """What a shell is given; the files it visibly writes are in `writes`."""
    starts: str = ""
    """The kind of agent it starts."""
    skill: str = ""
    """The skill whose text it shows the model."""
    words: str = ""
    """What the skill was called with."""
    calls: tuple[tuple[str, ...], ...] = ()
    """The words after the program of each `rolecall …` in the command."""


class SessionStart(NamedTuple):
    session: str
    is_new: bool = True
    """False where a session goes on: it was resumed."""
    cwd: str = ""
    """The folder it works in, where the host tells it."""


class UserMessage(NamedTuple):
    session: str
    text: str
    id: str = ""
    """What tells two messages with the same text apart, where the host has such a thing."""


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
    deed: Deed


class PostToolUse(NamedTuple):
    session: str
    who: Caller
    deed: Deed
    error: str = ""


class SessionEnd(NamedTuple):
    session: str
    is_over: bool = True
    """False at the end of a turn, where a host has an event for that: unfinished work is named, nothing is removed."""


class ContextCompact(NamedTuple):
    session: str


Event: TypeAlias = (
    "SessionStart | UserMessage | SubagentSpawn | SubagentComplete | PreToolUse | PostToolUse"
    " | SessionEnd | ContextCompact"
)


class Answer(NamedTuple):
    """What a host is to do about an event; empty: go on."""

    block: str = ""
    """Why the tool may not run, said to the model."""
    context: str = ""
    """What is put before the model."""
    notice: str = ""
    """What is said to the person."""


GateMode: TypeAlias = Literal["block", "warn", "off"]
"""What happens to edits of files while no task is planned."""
