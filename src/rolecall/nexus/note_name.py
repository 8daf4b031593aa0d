"""The names of notes: which names a new note can have, and suggestions for better ones. The functions have no side
effects.

A name is only a file name, so no name leads out of its folder. Existing names are accepted as they are; only new names
have to follow the policy.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

from rolecall.errors import UsageError
from rolecall.nexus import similarity

CATEGORIES = ("empirical", "external", "pattern")
PATTERN = re.compile(r"[a-z0-9][a-z0-9-]*\.md")
FEWEST_WORDS, MOST_WORDS = 2, 4
LONGEST = 100
"""The maximum number of characters in a name including its extension, so that the name fits on a line of a list."""

_MONTH = re.compile(
    r"jan(uary)?|feb(ruary)?|mar(ch)?|apr(il)?|may|june?|july?|aug(ust)?|sept?(ember)?|oct(ober)?|nov(ember)?|"
    r"dec(ember)?"
)
_DATE = re.compile(r"(199\d|20[0-3]\d)((0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])?)?")
"""A year from 1990 to 2039, or a month or day in one of these years."""
_VERSION_WORD = re.compile(r"v\d+[a-z]?|(rc|alpha|beta)\d+")
_TRANSLITERATED = str.maketrans({"ß": "ss", "æ": "ae", "ø": "o", "đ": "d", "ł": "l"})


def file_name(name: str) -> str:
    """Return `name` as a file name in its folder; the extension can be omitted."""
    full = name if name.endswith(".md") else f"{name}.md"
    if not is_file_name(full):
        has_bytes = "" if is_utf8(full) else ": it holds bytes that are not UTF-8"
        better = _kebab(name) if PATTERN.fullmatch(f"{_kebab(name)}.md") else "retry-limits"
        hint = f"Give the name alone, without a folder, such as {better}.md."
        raise UsageError(f"{name!r} is not the name of a note{has_bytes}", hint=hint)
    return full


def is_file_name(full: str) -> bool:
    """Return whether a name with its extension is a plain file name that every file system can store."""
    is_bare = full == full.strip() and not full.startswith(".") and not re.search(r"[/\\\x00-\x1f\x7f]", full)
    return is_bare and full.endswith(".md") and is_utf8(full) and len(full.encode()) <= 255


def is_utf8(text: str) -> bool:
    """Return whether a text has no lone surrogates, which JSON allows and Python uses for invalid bytes."""
    return not re.search(r"[\ud800-\udfff]", text)


def new_memory(name: str, category: str | None = None) -> str:
    """Return the file name of a new memory note. The error for a bad name suggests a better one."""
    full = file_name(name)
    written = category_of(full)
    if category and written and written != category:
        hint = f"Leave the prefix out, or call it {category}-{topic_of(full)}.md."
        raise UsageError(f"{full} is named as {written}, but its category is to be {category}", hint=hint)
    if category and not written:
        full = f"{category}-{full}"
    words = topic_of(full).split("-")
    reason = _objection(full)
    if not reason and (dated := list(_passing(words))):
        reason = f"has a date or a version in it ({', '.join(dated)}), which belongs in the text"
    if not reason and not FEWEST_WORDS <= len(words) <= MOST_WORDS:
        reason = f"names its subject with {len(words)} word{'s' * (len(words) != 1)}"
    if reason:
        policy = (
            f"A name is {FEWEST_WORDS} to {MOST_WORDS} lower-case words for the subject, joined by hyphens, with a "
            f"category before them if there is one ({', '.join(CATEGORIES)}). "
        )
        plain = _kebab(full)
        prefix = category_of(f"{plain}-")
        words = plain.removeprefix(prefix).strip("-").split("-")
        dated = list(_passing(words))
        kept = [word for word in words if word and word not in dated][:MOST_WORDS]
        better = "-".join([prefix, *kept] if prefix else kept) + ".md"
        advice = f"Call it, for example, {better}."
        if len(kept) < FEWEST_WORDS or len(better) > LONGEST:
            advice = "Say in a few words what it is about, such as retry-limits.md."
        raise UsageError(f"{full} {reason}", hint=f"{policy}{advice}")
    return full


def new_rule(name: str) -> str:
    """Return the file name of a new rule, which can use any words."""
    full = file_name(name)
    if reason := _objection(full):
        raise UsageError(f"{full} {reason}", hint=f"Call it, for example, {_kebab(full) or 'code-style'}.md.")
    return full


def from_text(text: str) -> str:
    """Return a name for a new note from the first meaningful words of a text, or "" if they are too few."""
    words = [word for word in similarity.find_telling_words(text[:1_000]) if re.fullmatch("[a-z0-9]+", word)]
    passing = set(_passing(words))
    kept = [word for word in words if word not in passing and not word.isdigit() and word not in CATEGORIES]
    name = "-".join(kept[:MOST_WORDS])
    return name if len(kept) >= FEWEST_WORDS and len(name) <= LONGEST - len(".md") else ""


def category_of(file: str) -> str:
    """Return the category with which a name begins, or "" if it has none."""
    return next((word for word in CATEGORIES if file.startswith(f"{word}-")), "")


def topic_of(file: str) -> str:
    """Return the subject in a note's name, without the category and extension."""
    category = category_of(file)
    return file.removesuffix(".md").removeprefix(f"{category}-" if category else "")


def _objection(full: str) -> str:
    if not PATTERN.fullmatch(full):
        return "is not lower-case letters and digits joined by hyphens"
    if "--" in full or full.endswith("-.md"):
        return "has a hyphen that joins nothing"
    if len(full) > LONGEST:
        return f"is longer than {LONGEST} characters"
    return ""


def _passing(words: list[str]) -> Iterator[str]:
    """Yield the words that are part of a date or a version, because they would make a name outdated."""
    for before, word, after in zip(["", *words], words, [*words[1:], ""], strict=False):
        if word.isdigit():
            beside = before.isdigit() or after.isdigit() or _counts(before) or _MONTH.fullmatch(after)
            is_passing = bool(beside) or _DATE.fullmatch(word) is not None
        else:
            is_passing = bool(_VERSION_WORD.fullmatch(word)) or (_counts(word) and after.isdigit())
            is_passing = is_passing or bool(_MONTH.fullmatch(word) and before.isdigit())
        if is_passing:
            yield word


def _counts(word: str) -> bool:
    """Return whether a number after this word is a version or a day."""
    return word in ("v", "version") or _MONTH.fullmatch(word) is not None


def _kebab(name: str) -> str:
    """Return the last part of `name` as lower-case words joined by hyphens, or "" if nothing is left."""
    base = re.split(r"[/\\]", name.rstrip("/\\"))[-1].removesuffix(".md")
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", base).lower().translate(_TRANSLITERATED)
    letters = unicodedata.normalize("NFKD", spaced).encode("ascii", "ignore").decode()
    return re.sub(r"[^a-z0-9]+", "-", letters).strip("-")
