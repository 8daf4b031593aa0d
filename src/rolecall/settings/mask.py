"""Keep secrets out of everything that is stored and shown, by replacing their values wherever they occur. The functions
here are pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

MASKED = "***MASKED***"
SHORTEST = 8
"""Shorter values are not masked, because they would also occur in harmless text."""

# The patterns are strings, so that importing this module compiles none of them.
_SUSPICIOUS_NAME = r"(?i)KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|_(?:PASS|PWD|AUTH)$"
_LOGIN_IN_ADDRESS = r"(?<=://)([^/\s:@]*):([^/\s@]+)@"


def is_secret_name(name: str) -> bool:
    """Return whether a variable's name suggests that its value is a secret."""
    return re.search(_SUSPICIOUS_NAME, name) is not None


def passwords_in(text: str) -> list[str]:
    """Return the passwords in the addresses that a text contains."""
    return [password for _, password in re.findall(_LOGIN_IN_ADDRESS, text)]


def secrets_in(environ: Mapping[str, str], *, always: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the secret values in an environment: the values of variables with secret names and of those in `always`,
    and the passwords in addresses."""
    names = {name for name in environ if is_secret_name(name)} | set(always)
    values = {environ[name].strip() for name in names if name in environ}
    values.update(found for value in environ.values() for found in passwords_in(value))
    # The longest come first, so that a secret that contains another one is replaced as a whole.
    return tuple(sorted((value for value in values if len(value) >= SHORTEST), key=len, reverse=True))


def is_variable_name(value: Any) -> bool:
    """Return whether a text looks like the name of a variable rather than a key."""
    return isinstance(value, str) and re.fullmatch(r"[A-Z_][A-Z0-9_]*", value) is not None


# -- secrets in the configuration --

_NAMES_OF_OTHERS = ("agentOverrides", "modelOverrides")
"""Sections whose keys are names of workflows and roles. Such a name can look like that of a secret, as `rotate-keys`
does."""


def may_have_secrets(text: str) -> bool:
    """Return whether the text of a configuration might contain a secret. Most texts only name variables that contain
    keys."""
    rest = re.sub(
        r"""apiKeyEnv["']?: *["']?[A-Z_][A-Z0-9_]*["']?(?= *(?:$|[,}#]))""", "", text, flags=re.MULTILINE
    )
    return is_secret_name(rest) or "webhook" in rest or bool(passwords_in(rest))


def secrets_of(settings: Any) -> list[str]:
    """Return every secret in the configuration itself: keys, passwords in addresses, and secret variables of agents."""
    if isinstance(settings, Mapping):
        own = [str(value) for name, value in settings.items() if _is_secret(name, value)]
        others = [value for name, value in settings.items() if name not in _NAMES_OF_OTHERS]
        return own + [secret for value in others for secret in secrets_of(value)]
    if isinstance(settings, list):
        return [secret for value in settings for secret in secrets_of(value)]
    return passwords_in(settings) if isinstance(settings, str) else []


def hide_secrets(value: Any, mask: str) -> Any:
    """Return a part of the configuration for display, with every secret replaced by `mask`."""
    if isinstance(value, Mapping):
        return {
            key: mask
            if _is_secret(key, item)
            else item
            if key in _NAMES_OF_OTHERS
            else hide_secrets(item, mask)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [hide_secrets(item, mask) for item in value]
    return re.sub(_LOGIN_IN_ADDRESS, rf"\1:{mask}@", value) if isinstance(value, str) else value


def _is_secret(name: object, value: Any) -> bool:
    """Return whether an entry is a secret: by its name, or because it contains a key where the name of a variable
    belongs."""
    if value in (None, "") or isinstance(value, Mapping):
        return False
    if name == "apiKeyEnv":
        return not is_variable_name(value)
    return name in ("apiKey", "webhook") or (isinstance(value, str) and is_secret_name(str(name)))


# -- masking --


class Mask:
    def __init__(self, secrets: Iterable[str]) -> None:
        # A secret with several lines also appears line by line: indented, numbered, or in a diff.
        texts = {secret for secret in secrets if secret}
        texts |= {
            line.strip() for text in texts for line in text.splitlines() if len(line.strip()) >= SHORTEST
        }
        # A secret with a quote or a line break is spelled differently inside JSON.
        kept = {form for text in texts for form in (text, json.dumps(text)[1:-1])}
        self._forms = sorted(kept, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, self._forms))) if kept else None

    def text(self, text: str) -> str:
        return self._pattern.sub(MASKED, text) if self._pattern else text

    def value(self, value: Any) -> Any:
        """Return a JSON value with every string in it masked, including keys."""
        if self._pattern is None:
            return value
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.text(key): self.value(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.value(item) for item in value]
        return value

    def stream(self) -> Stream:
        return Stream(self)

    def certain(self, text: str) -> int:
        """Return how many characters of an unfinished text can already be masked, because no secret extends beyond that
        point."""
        if self._pattern is None:
            return len(text)
        at = len(text)
        # The end of the text might be the beginning of a secret.
        for start in range(max(0, at - len(self._forms[0]) + 1), at):
            end = text[start:]
            if any(form.startswith(end) and form != end for form in self._forms):
                at = start
                break
        over = (match.start() for match in self._pattern.finditer(text) if match.start() < at < match.end())
        return next(over, at)


class Stream:
    """Masks a text that arrives in pieces. What might be the beginning of a secret is held back until the next
    piece."""

    def __init__(self, mask: Mask) -> None:
        self._mask = mask
        self._held = ""

    def feed(self, chunk: str) -> str:
        text = self._held + chunk
        at = self._mask.certain(text)
        self._held = text[at:]
        return self._mask.text(text[:at])

    def rest(self) -> str:
        text, self._held = self._mask.text(self._held), ""
        return text
