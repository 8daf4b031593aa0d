"""The form in which the JSON interface reports errors."""

from __future__ import annotations

from typing import NamedTuple

from rolecall.errors import (
    Conflict,
    Damaged,
    InvalidPayload,
    NotFound,
    RolecallError,
    StorageError,
    UsageError,
)
from rolecall.web import hints

_STATUSES: tuple[tuple[type[BaseException], int, str], ...] = (
    (InvalidPayload, 422, "invalid"),
    (UsageError, 400, "usage"),
    (NotFound, 404, "not_found"),
    (Conflict, 409, "conflict"),
    (Damaged, 500, "damaged"),
    (StorageError, 503, "storage"),
    (RolecallError, 502, "failed"),
    (OSError, 503, "storage"),
    (ValueError, 400, "usage"),
)
EXPECTED = (RolecallError, OSError, ValueError)
"""The errors that a verb is expected to raise."""


class Failure(NamedTuple):
    status: int
    """The HTTP status of the reply."""
    code: str
    error: str
    hint: str = ""
    problems: tuple[str, ...] = ()
    """The places where a request body does not fit its schema."""


def describe(error: BaseException) -> Failure:
    """Return the failure that describes an error. The error must be one of `EXPECTED`."""
    status, code = next((status, code) for kind, status, code in _STATUSES if isinstance(error, kind))
    if not isinstance(error, RolecallError):
        why = (
            error.strerror or str(error)
            if isinstance(error, OSError)
            else f"the request is not valid: {error}"
        )
        return Failure(status, code, why)
    problems = error.problems if isinstance(error, InvalidPayload) else ()
    return Failure(status, code, error.message, hints.word(error.hint), problems)
