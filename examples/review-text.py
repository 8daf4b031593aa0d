"""A workflow in Python: a writer drafts, a reviewer sends the draft back until it is short enough.

Nothing here needs a key or a network: the writer is a plain async function where a real workflow would
name an agent (`command("…")`, `"claude"`), the reviewer is Python from end to end.

    rolecall thread start examples/review-text.py -p "Why do ships float?"
    rolecall thread run THREAD
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rolecall import END, Context, Limits, Role, RoleResult, ThreadContext, Workflow

MOST_WORDS = 12


@dataclass(frozen=True)
class Draft:
    title: str
    words: int


@dataclass(frozen=True)
class Review:
    verdict: Literal["accepted", "too long"]
    remove: int = 0


async def draft(_prompt: str, context: Context) -> str:
    """Stands in for a model: every draft is shorter than the one before."""
    tries = sum(step.role == "writer" for step in context.steps)
    text = " ".join(["Ships float because they push water aside."] * (3 - min(tries, 2)))
    return f"---\ntitle: Why ships float\nwords: {len(text.split())}\n---\n\n{text}\n"


async def what_to_write(context: ThreadContext) -> str:
    """The prompt of the writer: the second time it says what was wrong."""
    if not context.steps or context.steps[-1].role != "reviewer":
        return "Write a short answer to the question."
    return f"Your draft is too long. Remove {reviewer.read(context.steps[-1]).remove} words."


async def count_words(context: ThreadContext) -> RoleResult:
    """Measures the newest draft."""
    newest = next(step for step in reversed(context.steps) if step.role == "writer")
    excess = writer.read(newest).words - MOST_WORDS
    if excess <= 0:
        return RoleResult("Short enough.", {"verdict": "accepted"})
    return RoleResult(f"{excess} words too many.", {"verdict": "too long", "remove": excess})


writer = Role(draft, what_to_write, Draft, description="Writes and shortens the text")
reviewer = Role.function(count_words, Review)


def moderator(context: ThreadContext) -> str:
    """Who is next. It only looks: the engine calls it again whenever it needs to know."""
    if not context.steps:
        return "writer"
    last = context.steps[-1]
    if last.role == "writer":
        return "reviewer"
    return END if reviewer.read(last).verdict == "accepted" else "writer"


workflow = Workflow(
    "review-text",
    roles={"writer": writer, "reviewer": reviewer},
    moderator=moderator,
    description="Write a text and shorten it until it fits",
    limits=Limits(steps=10),
)
