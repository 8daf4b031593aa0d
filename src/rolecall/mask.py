"""Keeps secrets out of what is stored and shown: their values are replaced wherever they occur. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

MASKED = "***MASKED***"
SHORTEST = 8
"""A value shorter than this would be found in harmless text."""

_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL", re.IGNORECASE)


def secrets_in(environ: Mapping[str, str], *, always: Iterable[str] = ()) -> tuple[str, ...]:
    """The values that must not leave: of variables named like secrets, and of those in `always`."""
    names = {name for name in environ if _SECRET_NAME.search(name)} | set(always)
    values = {environ[name].strip() for name in names if name in environ}
    # Longest first, so that a secret that contains another is replaced whole.
    return tuple(sorted((value for value in values if len(value) >= SHORTEST), key=len, reverse=True))


class Mask:
    def __init__(self, secrets: Iterable[str]) -> None:
        kept = [secret for secret in secrets if secret]
        self._pattern = re.compile("|".join(map(re.escape, kept))) if kept else None

    def text(self, text: str) -> str:
        return self._pattern.sub(MASKED, text) if self._pattern else text

    def value(self, value: Any) -> Any:
        """A JSON value with every string in it masked, keys included."""
        if self._pattern is None:
            return value
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.text(key): self.value(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.value(item) for item in value]
        return value
