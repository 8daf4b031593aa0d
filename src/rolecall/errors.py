"""The error tree. Every error a user can meet is one of these; nothing here prints or exits.

    RolecallError
    |-- UsageError            the request is wrong: change it
    |   |-- InvalidValue      a value that has no canonical form
    |   |-- InvalidSchema     a JSON Schema outside the accepted set
    |   `-- InvalidPayload    a payload that does not fit its type
    |-- NotFound              the thing asked for is not there
    |-- Damaged               stored bytes are not what was put: restore them
    |   `-- Collision         an id that already stands for other bytes
    |-- Conflict              somebody else moved first: look again, then retry
    |-- AgentError            the agent gave no answer; what it gave is kept in the error
    |-- ExtractError          no model could find the output in an answer, which is kept in the error
    `-- StorageError          the disk, the folder or the server refused: fix that, then retry

Normal endings (a thread completed, suspended, reached a limit) are values, not errors. Only the
front doors turn an error into an exit code, a status or a tool result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

Ending = Literal[
    "completed",  # the agent answered
    "refused",  # the agent declined to do it
    "limit",  # the agent reached a limit of turns, tokens or cost
    "interrupted",  # the caller's cancel signal ended it
    "api_failure",  # the model's endpoint failed
    "timeout",  # the adapter's timeout ended it
    "killed",  # a signal that did not come from us ended it
    "suspended",  # it waits for a person, and can go on in its session
    "failed",  # the program is missing, cannot be run, or gave up with an error
]
"""How an agent can end."""


class Hint(str):
    """Advice to do something. As a string it is plain English; `code` and `arguments` name the action, which each
    front door words as its own command or tool. `before` is advice that needs no action."""

    def __new__(cls, advice: str, code: str, *, before: str = "", **arguments: object) -> Hint:
        hint = super().__new__(cls, f"{before} {advice}.".lstrip())
        hint.advice, hint.code, hint.before, hint.arguments = advice, code, before, arguments
        return hint

    advice: str
    code: str
    before: str
    arguments: dict[str, object]

    def __getnewargs_ex__(self) -> tuple[tuple[str, str], dict[str, object]]:
        return (self.advice, self.code), {"before": self.before, **self.arguments}

    def call(self) -> str:
        """The action as a call, `fork_thread(thread='01…')`."""
        return f"{self.code}({', '.join(f'{name}={value!r}' for name, value in self.arguments.items())})"


class RolecallError(Exception):
    """What went wrong and with which thing; `hint` says what to do about it."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        if hint:
            # so that a traceback shows it
            self.add_note(f"{hint} {hint.call()}" if isinstance(hint, Hint) else hint)


class UsageError(RolecallError):
    """The request itself is wrong."""


class InvalidValue(UsageError):
    """A value without a canonical form: NaN, a lone surrogate, a nesting that is too deep."""


class InvalidSchema(UsageError):
    """A schema that uses what the store does not accept; `problems` lists everything found."""

    def __init__(self, message: str, problems: Sequence[str], *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.problems = tuple(problems)


class InvalidPayload(UsageError):
    """A payload that does not fit its type; `problems` lists every misfit with its path."""

    def __init__(self, message: str, problems: Sequence[str], *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.problems = tuple(problems)


class NotFound(RolecallError):
    """A node, type, ref or store that is not there."""


class Damaged(RolecallError):
    """Stored bytes that are not what was put. They are never returned; `node` names them."""

    def __init__(self, message: str, *, node: str = "", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.node = node


class Collision(Damaged):
    """A put whose id is taken by other bytes: a 64-bit collision or a changed store."""


class Conflict(RolecallError):
    """A compare-and-swap that lost."""


class AgentError(RolecallError):
    """An agent that gave no answer: why, and what it had given by then, as in a `Reply` of agents/protocol.py."""

    def __init__(
        self,
        message: str,
        *,
        ending: Ending,
        text: str = "",
        session: str | None = None,
        usage: Any = None,
        turns: Sequence[Any] = (),
        hint: str = "",
        session_total: Any = None,
        is_session_lost: bool = False,
        children: Sequence[str] = (),
        files: Sequence[str] = (),
    ) -> None:
        super().__init__(message, hint=hint)
        self.ending = ending
        self.text = text
        self.session = session
        self.usage = usage
        self.turns = tuple(turns)
        self.session_total = session_total
        self.is_session_lost = is_session_lost
        self.children = tuple(children)
        self.files = tuple(files)


class ExtractError(RolecallError):
    """An answer whose output could not be found; `raw` is the answer, `attempts` what the model said."""

    def __init__(
        self,
        message: str,
        *,
        raw: str = "",
        attempts: Sequence[tuple[str, str]] = (),
        usage: Mapping[str, int] | None = None,
        hint: str = "",
        is_outage: bool = False,
    ) -> None:
        super().__init__(message, hint=hint)
        self.raw = raw
        self.is_outage = is_outage
        """The model could not be asked; the same answer may be read later."""
        self.attempts = tuple(attempts)
        """Per attempt: what the model answered, and what was wrong with it."""
        self.usage = dict(usage or {})


class StorageError(RolecallError):
    """The disk is full, the folder is read-only, the server is gone."""
