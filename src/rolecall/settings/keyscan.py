"""Finds keys and passwords in a text that is to be kept in the project, where git would hand them to everybody.

Known secrets are found by their value, others by the form that their issuers gave them. A form that ordinary
text has too is not among them: what is refused here has to be a secret. Every form is looked for in a time that
grows with the text and not faster. Pure.
"""

from __future__ import annotations

import re

from rolecall.errors import UsageError
from rolecall.settings.mask import Mask

_FORMS = {
    "a private key": r"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----",
    "an AWS access key": r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b",
    "a GitHub token": r"\b(?:gh[pousr]_[A-Za-z0-9]{36,}|github_pat_[A-Za-z0-9_]{40,})",
    "a GitLab token": r"\bglpat-[A-Za-z0-9_-]{20,}",
    "an API key": r"\bsk-(?=[A-Za-z0-9_-]{0,200}[0-9])[A-Za-z0-9_-]{20,}|\b[rs]k_live_[A-Za-z0-9]{16,}",
    "a Google API key": r"\bAIza[0-9A-Za-z_-]{35}",
    "a Slack token": r"\bxox[abeoprs]-[A-Za-z0-9-]{10,}",
    "an npm token": r"\bnpm_[A-Za-z0-9]{36}\b",
    "a Hugging Face token": r"\bhf_[A-Za-z0-9]{34,}\b",
    # Looked for where a word begins, and only where the other parts follow: it may hold its own beginning many times.
    "a JSON Web Token": r"(?<![A-Za-z0-9_-])(?=[A-Za-z0-9_-]+\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10})"
    r"[A-Za-z0-9_-]*\beyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+",
    "a bearer token": r"(?i:\bauthorization:\s*bearer\s+)(?=[^\s]*[0-9])[A-Za-z0-9._~+/-]{20,}",
    # USER:PASSWORD, <password>, $PASSWORD, *** and the like only stand for a password.
    "a password in an address": r"://[^/\s:@]+:(?![A-Z_]+@|[<${*…%])[^/\s@]+@",
}
PATTERNS = {what: re.compile(form) for what, form in _FORMS.items()}


def refuse_secrets(text: str, mask: Mask) -> None:
    """Raise an error that names the line and the kind of each secret, and never its value."""
    found = [
        f"line {number} holds {what}"
        for number, line in enumerate(text.splitlines(), 1)
        for what, pattern in PATTERNS.items()
        if pattern.search(line)
    ]
    if mask.text(text) != text:
        found += [f"line {_first_known(text, mask)} holds the value of a secret of this environment"]
    if found:
        raise UsageError(
            f"the text is not kept, because of secrets in it: {'; '.join(found)}",
            hint="Write what the key is for and where it is kept, and leave the key itself out.",
        )


def _first_known(text: str, mask: Mask) -> int:
    """The line that the first known secret begins in."""
    masked = mask.text(text)
    same = next((at for at, pair in enumerate(zip(text, masked, strict=False)) if pair[0] != pair[1]), 0)
    return text.count("\n", 0, same) + 1
