"""The passages of a repository that an agent gets with its task: the best passages that fit, then the names of
others."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rolecall.knowledge.query import FoundPassage
from rolecall.knowledge.words import tokens

MOST = 24
"""The number of passages to request; those that do not fit are only listed by name."""
_OPENING = (
    "Passages that a search of the repository found for the task, the best first. They may not be all there is: "
    "open the files for what is around them."
)
_FURTHER = "Also found, not shown here:"
_NOTHING = "A search of the repository found nothing for the task."


def brief(answers: Sequence[FoundPassage], *, budget: int) -> str:
    """Format passages up to `budget` tokens, or say that nothing was found."""
    if not answers:
        return _NOTHING
    shown: list[str] = []
    named: list[str] = []
    left = budget - tokens(_OPENING) - tokens(_FURTHER)
    for answer in answers:
        name = " ".join(answer.heading.split())
        path = answer.path.replace("\n", "\\n")
        place = f"{path}:{answer.start}-{answer.end}{f' {name}' if name else ''}"
        # The fence must be longer than any fence in the text.
        longest = max((len(run) for run in re.findall(r"`{3,}", answer.text)), default=2)
        fence = "`" * (longest + 1)
        text = f"## {place}\n\n{fence}\n{answer.text}\n{fence}"
        line = f"- {place}"
        if not named and tokens(text) <= left:
            shown.append(text)
            left -= tokens(text)
        elif tokens(line) <= left:
            named.append(line)
            left -= tokens(line)
    further = ["\n".join([_FURTHER, "", *named])] if named else []
    return "\n\n".join([_OPENING, *shown, *further])
