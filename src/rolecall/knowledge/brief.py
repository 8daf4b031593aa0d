"""What of a repository is put before an agent with its task: the best passages that fit, then where more is. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rolecall.knowledge.query import Answer
from rolecall.knowledge.words import tokens

MOST = 24
"""Passages that are asked for; those that do not fit are named, for the agent to open."""
_OPENING = (
    "Passages that a search of the repository found for the task, the best first. They may not be all there is: "
    "open the files for what is around them."
)
_FURTHER = "Also found, not shown here:"
_NOTHING = "A search of the repository found nothing for the task."


def brief(answers: Sequence[Answer], *, budget: int) -> str:
    """Passages up to `budget` tokens; that nothing was found, when there is none."""
    if not answers:
        return _NOTHING
    shown: list[str] = []
    named: list[str] = []
    left = budget - tokens(_OPENING) - tokens(_FURTHER)
    for answer in answers:
        text = f"{_place(answer)}\n\n{_fenced(answer)}"
        line = f"- {_place(answer).removeprefix('## ')}"
        if not named and tokens(text) <= left:
            shown.append(text)
            left -= tokens(text)
        elif tokens(line) <= left:
            named.append(line)
            left -= tokens(line)
    further = ["\n".join([_FURTHER, "", *named])] if named else []
    return "\n\n".join([_OPENING, *shown, *further])


def _place(answer: Answer) -> str:
    name = (" › " if answer.is_prose else ".").join(answer.trail)
    path = answer.path.replace("\n", "\\n")
    return f"## {path}:{answer.start}-{answer.end}" + (f" {' '.join(name.split())}" if name else "")


def _fenced(answer: Answer) -> str:
    """The text in a fence longer than any it holds."""
    longest = max((len(run) for run in re.findall(r"`{3,}", answer.text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}\n{answer.text}\n{fence}"
