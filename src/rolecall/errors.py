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
    `-- StorageError          the disk, the folder or the server refused: fix that, then retry

Normal endings (a thread completed, suspended, reached a limit) are values, not errors. Only the
front doors turn an error into an exit code, a status or a tool result.
"""

from __future__ import annotations

from collections.abc import Sequence


class RolecallError(Exception):
    """What went wrong and with which thing; `hint` says what to do about it."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


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


class StorageError(RolecallError):
    """The disk is full, the folder is read-only, the server is gone."""
