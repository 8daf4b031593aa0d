"""Takes keys and passwords out of a text before it is indexed. Pure.

What has the form of a secret is replaced, and so is a value that is written beside a name such as `api_key` and
looks like no word. To lose a harmless string here costs little, so more is taken than where a text is refused.
"""

from __future__ import annotations

import re
from itertools import pairwise

from rolecall.mask import MASKED, Mask
from rolecall.project.keyscan import PATTERNS

_PRIVATE_KEY = re.compile(
    r"-----BEGIN ([A-Z0-9 ]*)PRIVATE KEY( BLOCK)?-----.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----|\Z)",
    re.S,
)
_BESIDE_A_NAME = re.compile(
    r"""(?ix)
    (?:key|secret|token|passw(?:or)?d|credential)s?\w*
    ["']? \s* (?::\s*[\w.\[\]]+\s*)? (?:=>|:=|=|:) \s* ["'`]? ([^\s"'`,;(){}<>$\[\]]{12,})
    """
)
_ALWAYS = {
    "a private key": ("PRIVATE KEY",),
    "an AWS access key": ("AKIA", "ASIA"),
    "a GitHub token": ("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"),
    "a GitLab token": ("glpat-",),
    "an API key": ("sk-", "sk_live_", "rk_live_"),
    "a Google API key": ("AIza",),
    "a Slack token": ("xox",),
    "an npm token": ("npm_",),
    "a Hugging Face token": ("hf_",),
    "a JSON Web Token": ("eyJ",),
}
"""What secrets of a kind hold for certain. Most files hold none of it, and to look for it alone is fast."""


def without_secrets(text: str, mask: Mask) -> str:
    """The text with every secret replaced; lines stay where they are."""
    text = mask.text(text)
    if "PRIVATE KEY" in text:
        text = _PRIVATE_KEY.sub(lambda found: MASKED + "\n" * found[0].count("\n"), text)
    for kind, pattern in PATTERNS.items():
        if any(part in text for part in _ALWAYS.get(kind, ("",))):
            text = pattern.sub(MASKED, text)
    return _BESIDE_A_NAME.sub(_without_value, text)


def _without_value(found: re.Match[str]) -> str:
    value = found[1]
    return found[0][: -len(value)] + MASKED if _is_random(value) else found[0]


def _is_random(value: str) -> bool:
    """Letters and digits mixed as nobody writes them: no path, no name, no number, no call."""
    if value.startswith("/") or not re.fullmatch(r"[A-Za-z0-9+/=_.~!@#%^&*-]+", value):
        return False
    letters, digits = sum(map(str.isalpha, value)), sum(map(str.isdigit, value))
    if letters < 3 or digits < 2 or value.isdigit():
        return False
    changes = sum(a.isdigit() != b.isdigit() for a, b in pairwise(value))
    return changes >= 3 or (re.fullmatch(r"[0-9a-f]{20,}", value) is not None)
