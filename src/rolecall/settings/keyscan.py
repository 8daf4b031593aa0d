"""Find keys and passwords in a text that will be stored in the project, where git would share them with everyone.

Known secrets are found by their value, others by their issuer's format. Formats that can occur in ordinary text are not
included, so that only real secrets are refused. Every pattern takes time linear in the length of the text. The
functions here are pure.
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
    # Match only at the beginning of a word, and only if the other parts follow, because the prefix can occur many
    # times.
    "a JSON Web Token": r"(?<![A-Za-z0-9_-])(?=[A-Za-z0-9_-]+\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10})"
    r"[A-Za-z0-9_-]*\beyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+",
    "a bearer token": r"(?i:\bauthorization:\s*bearer\s+)(?=[^\s]*[0-9])[A-Za-z0-9._~+/-]{20,}",
    # USER:PASSWORD, <password>, $PASSWORD, *** and the like are only placeholders.
    "a password in an address": r"://[^/\s:@]+:(?![A-Z_]+@|[<${*…%])[^/\s@]+@",
}
PATTERNS = {what: re.compile(form) for what, form in _FORMS.items()}


def refuse_secrets(text: str, mask: Mask) -> None:
    """Raise an error that names the line and the kind of each secret, but never its value."""
    found = [
        f"line {number} holds {what}"
        for number, line in enumerate(text.splitlines(), 1)
        for what, pattern in PATTERNS.items()
        if pattern.search(line)
    ]
    masked = mask.text(text)
    if masked != text:
        at = next((at for at, (one, other) in enumerate(zip(text, masked, strict=False)) if one != other), 0)
        line = text.count("\n", 0, at) + 1
        found += [f"line {line} holds the value of a secret of this environment"]
    if found:
        raise UsageError(
            f"the text is not kept because it contains secrets: {'; '.join(found)}",
            hint="Write what the key is for and where it is kept, and leave the key itself out.",
        )
