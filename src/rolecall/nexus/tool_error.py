"""What a tool answers instead of a reply. The message is the whole answer, word by word what the contract pins."""

from __future__ import annotations

from rolecall.errors import NotFound, RolecallError, UsageError


class ToolError(RolecallError):
    """A call that did nothing."""


class WrongCall(ToolError, UsageError):
    """The call has to change."""


class NotThere(ToolError, NotFound):
    """What the call is about does not exist."""
