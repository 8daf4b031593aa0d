"""The errors of tools. The message is the whole answer, with the exact wording required by the contract."""

from __future__ import annotations

from rolecall.errors import NotFound, RolecallError, UsageError


class ToolError(RolecallError):
    """An error for a call that had no effect."""


class WrongCall(ToolError, UsageError):
    """An error for a call that is invalid and has to change."""


class NotThere(ToolError, NotFound):
    """An error for a call whose subject does not exist."""
