"""The errors of tools. The message is the whole answer, with the exact wording that the contract requires."""

from __future__ import annotations

from rolecall.errors import NotFound, RolecallError, UsageError


class ToolError(RolecallError):
    """A call that had no effect."""


class WrongCall(ToolError, UsageError):
    """The call is invalid and has to change."""


class NotThere(ToolError, NotFound):
    """The subject of the call does not exist."""
