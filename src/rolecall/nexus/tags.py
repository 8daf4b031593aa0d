"""Tags in what a user writes: `[plan:auto] ...` activates a skill, `[d] ...` is done at once. Values.

A tag counts where the user speaks, which `spoken` tells: not in code, quoted lines or links, not escaped with
a backslash, not as part of a word. Tags that are not known are left alone; one that is nearly a known one is
pointed out. What is done about a tag is for whoever calls this.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import NamedTuple

from rolecall.nexus import markdown_prose

ANY_VARIANT = "*"
NO_PLAN = (
    "No active plan session: [d] records a decision of a plan, and none is active. Start one with [plan]."
)
"""What `[d]` is answered without a plan."""

_TAG = re.compile(r"(?<![A-Za-z0-9_\[])\[([A-Za-z][^\[\]\n]{0,80})\](?![A-Za-z0-9_(\]])")
_ALIKE = 0.75
"""How alike two names are at least, as difflib counts it: one slip in a name of four letters."""
_MARKS = " \t\r\n.,;:!?)}\"'\u2019\u201d\u00bb\u2026"
"""What ends a sentence; alone it is nothing that was said."""
_MOST_UNKNOWN = 50
"""How many unknown words in brackets are looked at for a slip."""


class Tag(NamedTuple):
    """As the vocabulary has it."""

    id: str
    trigger: str
    type: str
    """`skill` or `inline_action`."""
    description: str
    skill: str = ""
    handler: str = ""
    variants: tuple[str, ...] = ()
    prose_guidance: str = ""


class Activation(NamedTuple):
    """A skill the user called for, how, and what they said with it."""

    skill: str
    mode: str = ""
    text: str = ""
    tag: str = ""


class Action(NamedTuple):
    """Something to do at once: by whom, the part behind the colon, and what the user said with it."""

    handler: str
    variant: str = ""
    text: str = ""
    tag: str = ""


class NearMiss(NamedTuple):
    written: str
    meant: str

    def __str__(self) -> str:
        return f"{self.written} is no tag. Did you mean {self.meant}?"


class Detection(NamedTuple):
    found: tuple[Activation | Action, ...]
    """In the order they were written."""
    near_misses: tuple[NearMiss, ...] = ()


def detect(message: str, tags: Mapping[str, Tag]) -> Detection:
    """The tags in a message, and what is nearly one."""
    if not _TAG.search(message):
        return Detection(())  # most messages, and this is done for each
    lines = markdown_prose.lines(message)
    found: list[tuple[re.Match[str], Tag, str]] = []
    unknown: dict[str, None] = {}
    for match in _TAG.finditer(
        markdown_prose.speech(lines, lambda written: _known(written, tags) is not None)
    ):
        if markdown_prose.backslashes(message, match.start()) % 2:
            continue
        known = _known(match[1], tags)
        if known:
            found.append((match, *known))
        else:
            unknown[match[1]] = None
    texts = _texts(message, lines, [match.span() for match, *_ in found])
    values = (
        _value(tag, variant, text)
        for (_, tag, variant), text in zip(found, texts, strict=True)
        if text is not None
    )
    return Detection(tuple(values), tuple(_near_misses(unknown, tags)))


def refusal(action: Action, *, has_plan: bool) -> str:
    """Why an action cannot be done now; empty when it can."""
    return NO_PLAN if action.handler == "nx_plan_decide" and not has_plan else ""


def _value(tag: Tag, variant: str, text: str) -> Activation | Action:
    if tag.type == "skill":
        return Activation(tag.skill, variant, text, tag.id)
    return Action(tag.handler, variant, text, tag.id)


def _known(written: str, tags: Mapping[str, Tag]) -> tuple[Tag, str] | None:
    """The tag that was written and its variant. A trigger of its own comes before a variant of another."""
    for tag in tags.values():
        if tag.trigger == f"[{written}]":
            return tag, ""
    name, _, variant = written.partition(":")
    for tag in tags.values():
        is_accepted = variant in tag.variants or ANY_VARIANT in tag.variants
        if variant.strip() and is_accepted and tag.trigger == f"[{name}]":
            return tag, variant.strip()
    return None


def _near_misses(unknown: Iterable[str], tags: Mapping[str, Tag]) -> Iterator[NearMiss]:
    for written in islice(unknown, _MOST_UNKNOWN):
        if meant := _meant(written.lower(), tags):
            yield NearMiss(f"[{written}]", f"[{meant}]")


def _meant(written: str, tags: Mapping[str, Tag]) -> str:
    """What a word in brackets that is no tag was probably meant to be; empty when it is not near to one."""
    variants = _variants(tags.values())
    name, variant = (part.strip() for part in f"{written}:".split(":")[:2])
    if name not in variants:
        # Words of one or two letters in brackets are too common to be taken for slips.
        name = _nearest(name, [known for known in variants if len(known) > 2]) if len(name) > 2 else ""
    if not name or not variant:
        return name
    if ANY_VARIANT in variants[name]:
        return f"{name}:{variant}"
    near = _nearest(variant, variants[name])
    return f"{name}:{near}" if near else name


def _variants(tags: Iterable[Tag]) -> Mapping[str, list[str]]:
    """What may stand before the colon, and for each what may stand behind it."""
    variants: dict[str, list[str]] = defaultdict(list)
    for tag in tags:
        name, _, variant = tag.trigger.strip("[]").partition(":")
        variants[name] += [*tag.variants, *([variant] if variant else [])]
    return variants


def _nearest(written: str, known: list[str]) -> str:
    from difflib import get_close_matches

    return next(iter(get_close_matches(written, known, 1, _ALIKE)), "")


# -- what belongs to a tag --


def _texts(
    message: str, lines: list[markdown_prose.Line], spans: list[tuple[int, int]]
) -> Iterator[str | None]:
    """For each tag what stands behind it in its paragraph, up to the next tag; when nothing is behind, what stands
    before it and is no other's. Tags side by side share it. A code block without a blank line before it belongs to the
    paragraph. None where a mark is all there is: `[d]?` asks about the tag."""
    breaks = [0, *(line.start for line in lines if line.is_break), len(message)]
    groups = _side_by_side(message, spans)
    ends = [*(group[0][0] for group in groups), len(message)][1:]
    free = 0
    for group, following in zip(groups, ends, strict=True):
        start, end = group[0][0], group[-1][1]
        paragraph_end = breaks[bisect_left(breaks, end)]
        text = message[end : min(following, paragraph_end)].removeprefix(":").strip()
        is_behind = bool(text.strip(_MARKS))
        before = ""
        if not is_behind:
            paragraph_start = breaks[bisect_right(breaks, start) - 1]
            before = message[max(free, paragraph_start) : start].strip()
        free = following if is_behind else end
        said = text if is_behind else before
        yield from [None if text and not said else said] * len(group)


def _side_by_side(message: str, spans: list[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    groups: list[list[tuple[int, int]]] = []
    for span in spans:
        between = message[groups[-1][-1][1] : span[0]] if groups else "first"
        if between.strip(" \t,"):
            groups.append([])
        groups[-1].append(span)
    return groups
