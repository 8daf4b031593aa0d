"""Removes keys and passwords from a text before it is indexed.

Anything that looks like a secret is replaced, and so is a random-looking value after a name such as `api_key`. Losing a
harmless string does little harm here, so more is replaced than in checks that refuse a text.
"""

from __future__ import annotations

import re
from itertools import pairwise

from rolecall.settings.keyscan import PATTERNS
from rolecall.settings.mask import MASKED, Mask

VERSION = 1
"""The version of the patterns for secrets; an index with another version is rebuilt."""

_PRIVATE_KEY = re.compile(
    r"""(?xs)
    -----BEGIN\ ([A-Z0-9\ ]*)PRIVATE\ KEY(?:\ BLOCK)?-----
    (?: .{0,20000}? -----END\ [A-Z0-9\ ]*PRIVATE\ KEY(?:\ BLOCK)?----- | (?: \W* [A-Za-z0-9+/=]{16,} )* )
    """
)
"""The pattern of a private key. It matches up to the end of the key, or as far as the lines look like a key, because a
program's source can contain only the first line."""
_BESIDE_A_NAME = re.compile(
    r"""(?x)
    (?P<name> [kK](?:ey|EY) | [sS](?:ecret|ECRET) | [tT](?:oken|OKEN) | [cC](?:redential|REDENTIAL)
    | [pP](?:assw(?:or)?d|ASSW(?:OR)?D|assphrase|ASSPHRASE) )[sS]?\w{0,100}+
    ["']? \s* (?::\s*[\w.\[\]]+\s*)? (?:=>|:=|=|:|(?<=\w)[ \t]++) \s*+ (?P<quote>["'`]?)
    (?P<value>[^\s"'`,;(){}<>$\[\]]{6,})
    """
)
"""The pattern of a value after a name such as `password`. It spells out the common capitalizations, because ignoring
case is 50 % slower. Its possessive quantifiers (`+`) prevent excessive backtracking in a text that consists of names or
spaces."""
_PASSWORD_ALONE = re.compile(r"(?<=://:)(?![<${*…%])[^/\s@]+(?=@)")
"""The pattern of a password in a URL without a user name."""
_HOOK = re.compile(r"(?<=hooks\.slack\.com/services/)[\w/]{20,}")
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
    "a bearer token": ("earer", "EARER"),
    "a password in an address": ("://",),
}
"""For each kind of secret, strings of which every such secret contains one. Most files contain none of these strings,
and searching for them is fast."""


def without_secrets(text: str, mask: Mask) -> str:
    """Replace every secret in a text. Line numbers stay the same."""
    text = mask.text(text)
    if "PRIVATE KEY" in text:
        text = _PRIVATE_KEY.sub(lambda found: MASKED + "\n" * found[0].count("\n"), text)
    for kind, pattern in PATTERNS.items():
        if any(part in text for part in _ALWAYS.get(kind, ("",))):
            text = pattern.sub(MASKED, text)
    if "://:" in text:
        text = _PASSWORD_ALONE.sub(MASKED, text)
    if "hooks.slack" in text:
        text = _HOOK.sub(MASKED, text)
    return _BESIDE_A_NAME.sub(_without_value, text)


def _without_value(found: re.Match[str]) -> str:
    value = found["value"]
    # A password that a person chose is less random, but is usually quoted.
    is_password = (
        found["quote"]
        and found["name"][0] in "pPsS"
        and re.search(r"\d", value)
        and re.search("[a-zA-Z]", value)
    )
    return found[0][: -len(value)] + MASKED if is_password or _is_random(value) else found[0]


def _is_random(value: str) -> bool:
    """Return whether a value mixes letters and digits at random, unlike a path, a name, a number or a call."""
    if len(value) < 12 or value.startswith("/") or not re.fullmatch(r"[A-Za-z0-9+/=_.~!@#%^&*-]+", value):
        return False
    letters, digits = sum(map(str.isalpha, value)), sum(map(str.isdigit, value))
    if letters < 3 or digits < 1:
        return False
    if len(value) >= 32 and value.lower() != value != value.upper() and "." not in value:
        return True
    changes = sum(a.isdigit() != b.isdigit() for a, b in pairwise(value))
    return digits >= 2 and (changes >= 3 or re.fullmatch(r"[0-9a-f]{20,}", value) is not None)
