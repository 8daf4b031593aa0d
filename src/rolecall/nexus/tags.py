"""Tags in a user's message: `[plan:auto] ...` activates a skill, and `[d] ...` is carried out at once.

A tag counts at the start of a line or of a list item, outside fenced and indented code. The text of a tag extends to
the end of the paragraph or to the next tag; adjacent tags share one text. Unknown tags are ignored, but a tag that
resembles a known one is reported. The caller carries out the tags.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Mapping
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from rolecall.store.lazy import Module

if TYPE_CHECKING:
    import difflib
else:
    difflib = Module("difflib")  # only typos need it, and a hook runs for every message

ANY_VARIANT = "*"
NO_PLAN = (
    "No active plan session: [d] records a decision of a plan, and none is active. Start one with [plan]."
)
"""The answer to `[d]` without a plan."""

_START = re.compile(r" {0,3}(?:(?:[-*+]|\d{1,9}[.)])[ \t]+)?(?=\[)")
_TAG = re.compile(r"\[([A-Za-z][^\[\]\n]{0,80})\](?![A-Za-z0-9_(\]])")
_BETWEEN = re.compile(r"[ \t,]*(?=\[)")
_DEFINITION = re.compile(r":[ \t]*(?:<|\w+://|\.{1,2}/|mailto:|www\.)")
"""The address of a Markdown link definition, which follows the label."""
_FENCE = re.compile(r" {0,3}(?:(?:[-*+]|\d{1,9}[.)])[ \t]+)*(`{3,}(?=[^`]*$)|~{3,})")
_ALIKE = 0.75
"""The minimum similarity of two names, as computed by difflib: one typo in a name of four letters."""
_MARKS = " \t\r\n.,;:!?)}\"'\u2019\u201d\u00bb\u2026"
"""Punctuation that is not the text of a tag: `[d]?` asks about the tag instead of using it."""
_MOST_UNKNOWN = 50
"""The maximum number of unknown words in brackets that are compared with tags."""


class Tag(NamedTuple):
    """A tag as defined in the vocabulary."""

    id: str
    trigger: str
    type: str
    """The type of the tag: `skill` or `inline_action`."""
    description: str
    skill: str = ""
    handler: str = ""
    variants: tuple[str, ...] = ()
    prose_guidance: str = ""


class Activation(NamedTuple):
    """A skill that the user activated, with its mode and the accompanying text."""

    skill: str
    mode: str = ""
    text: str = ""
    tag: str = ""


class InlineAction(NamedTuple):
    """An action to carry out at once: its handler, the part of the tag after the colon, and the accompanying text."""

    handler: str
    variant: str = ""
    text: str = ""
    tag: str = ""


class NearMiss(NamedTuple):
    written: str
    meant: str

    def __str__(self) -> str:
        return f"{self.written} is not a tag. Did you mean {self.meant}?"


class Detection(NamedTuple):
    found: tuple[Activation | InlineAction, ...]
    """The activations and actions, in the order in which they were written."""
    near_misses: tuple[NearMiss, ...] = ()


def detect(message: str, tags: Mapping[str, Tag]) -> Detection:
    """Find the tags in a message, and words that are nearly tags."""
    found: list[tuple[list[tuple[Tag, str]], list[str]]] = []
    unknown: dict[str, None] = {}
    fence, is_open = "", False
    for line in message.splitlines(keepends=True):
        if fence:
            end = line.strip()
            if len(end) >= len(fence) and set(end) == {fence[0]}:
                fence = ""
        elif opening := _FENCE.match(line):
            fence = opening[1]
        elif not line.strip():
            is_open = False
        elif start := _START.match(line):
            group, at = _tags_at(line, start.end(), tags, unknown)
            if group:
                found.append((group, [line[at:]]))
                is_open = True
                continue
        if is_open:
            found[-1][1].append(line)
    values: list[Activation | InlineAction] = []
    for group, lines in found:
        text = "".join(lines).removeprefix(":").strip()
        if text and not text.strip(_MARKS):
            continue
        for tag, variant in group:
            if tag.type == "skill":
                values.append(Activation(tag.skill, variant, text, tag.id))
            else:
                values.append(InlineAction(tag.handler, variant, text, tag.id))
    misses = [(written, _guess_tag(written.lower(), tags)) for written in islice(unknown, _MOST_UNKNOWN)]
    near = tuple(NearMiss(f"[{written}]", f"[{meant}]") for written, meant in misses if meant)
    return Detection(tuple(values), near)


def slash(message: str, skills: Collection[str], tags: Mapping[str, Tag]) -> Activation | None:
    """Return the skill that `/skill words` activates, or None. The first word can be a mode of the skill."""
    first, _, rest = message.strip().partition("\n")
    command, _, words = first.partition(" ")
    skill = command.removeprefix("/")
    if not command.startswith("/") or skill not in skills:
        return None
    modes = {mode for tag in tags.values() if tag.skill == skill for mode in tag.variants} - {ANY_VARIANT}
    mode, _, others = words.strip().partition(" ")
    if mode not in modes:
        mode, others = "", words
    return Activation(skill, mode, f"{others.strip()}\n{rest}".strip())


def _tags_at(
    line: str, at: int, tags: Mapping[str, Tag], unknown: dict[str, None]
) -> tuple[list[tuple[Tag, str]], int]:
    """Return the adjacent tags that start at `at`, and where they end. A Markdown link is not a tag."""
    group: list[tuple[Tag, str]] = []
    end = at
    while match := _TAG.match(line, at):
        known = _find_tag(match[1], tags)
        if known is None:
            if not group and not line.startswith("[", match.end()):
                unknown[match[1]] = None
            break
        group.append(known)
        end = match.end()
        gap = _BETWEEN.match(line, end)
        at = gap.end() if gap else end
    is_link = _DEFINITION.match(line, end) or line.startswith("[", end)
    return ([] if is_link else group), end


def _find_tag(written: str, tags: Mapping[str, Tag]) -> tuple[Tag, str] | None:
    """Return the tag that was written and its variant, or None. An exact trigger takes precedence over a variant of
    another tag."""
    for tag in tags.values():
        if tag.trigger == f"[{written}]":
            return tag, ""
    name, _, variant = written.partition(":")
    for tag in tags.values():
        is_accepted = variant in tag.variants or ANY_VARIANT in tag.variants
        if variant.strip() and is_accepted and tag.trigger == f"[{name}]":
            return tag, variant.strip()
    return None


def _guess_tag(written: str, tags: Mapping[str, Tag]) -> str:
    """Return the tag that is most similar to an unknown word in brackets, or an empty string if none is close."""
    variants: dict[str, list[str]] = defaultdict(list)
    for tag in tags.values():
        name, _, variant = tag.trigger.strip("[]").partition(":")
        variants[name] += [*tag.variants, *([variant] if variant else [])]
    name, variant = (part.strip() for part in f"{written}:".split(":")[:2])
    if name not in variants:
        # Words of one or two letters in brackets are too common to be treated as typos.
        name = _nearest(name, [known for known in variants if len(known) > 2]) if len(name) > 2 else ""
    if not name or not variant:
        return name
    if ANY_VARIANT in variants[name]:
        return f"{name}:{variant}"
    near = _nearest(variant, variants[name])
    return f"{name}:{near}" if near else name


def _nearest(written: str, known: list[str]) -> str:
    return next(iter(difflib.get_close_matches(written, known, 1, _ALIKE)), "")
