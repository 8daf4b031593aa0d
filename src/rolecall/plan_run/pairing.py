"""Decides who checks a task in addition to its owner, and why.

Code gets a tester, and a document gets a reviewer, if there is something to check: acceptance criteria that cannot be
verified at a glance. In case of doubt the task is checked, because an unnecessary check costs less than a missing one.
To override this, add a tester's or reviewer's task that depends on the work, or record an exception in the task's
context.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from rolecall.nexus.reply import ProjectTask


CHECKERS: Mapping[str, str] = {"engineer": "tester", "writer": "reviewer"}

_EXCEPTION = re.compile(r"\b(docs_only\.(?:coherent|independent)|same_file_bundle|generated_artifacts)\b")


def _words(*patterns: str) -> re.Pattern[str]:
    """Return a pattern that matches any of these patterns at the start of a text."""
    return re.compile("|".join(rf"\W*{pattern}" for pattern in patterns), re.IGNORECASE)


_REFACTORING = _words(r"refactor(?:ing)?\b(?!.*\b(?:add|allow|fix|make|support)\b)")
_PURE = re.compile(r"(?<!\bno )(?<!\bnot a )\bpure refactor(?:ing)?\b", re.IGNORECASE)
_KEEPS_BEHAVIOUR = _words(
    r"no changes? (?:in|of|to) (?:the )?behaviou?r$",
    r"(?:the |all )?behaviou?r (?:is|stays|remains) (?:unchanged|the same)$",
    r"keep(?:s|ing)? (?:the |its |all )?behaviou?r(?: as it is)?$",
)
_TESTS_PASS = _words(r"(?:all |the |existing )*tests?(?: suite)? (?:still |stays? )?(?:pass|passes|green)$")
_TYPES_ONLY = _words(
    r"(?:types?|typing)[- ]only\b",
    r"annotate\b.*\bwith types\b",
    r"(?:add|complete|correct|fix)\s+(?:\w+\s+)?type (?:hints?|annotations?)\b",
)
_TEXT_BESIDE = (
    "typos?|spelling|docstrings?|code comments?|release notes|licen[cs]e headers?"
    r"|readme(?:\.\w+)?|changelog(?:\.\w+)?"
)
_BESIDE = _words(
    rf"(?:add|correct|extend|fix|reword|update|write)\s+(?:an?\s+|the\s+)?(?:\w+\s+)?(?:{_TEXT_BESIDE})"
    # The next word distinguishes a text change from a feature with a similar name, such as "Fix typo tolerance".
    r"(?=$|[,.:;]|\s+(?:and|at|in|of|to)\b)"
)
_SMALL_TEXT = _words(r"(?:correct|fix)\s+(?:an?\s+|the\s+)?(?:typos?|spelling)\b")


class TaskPair(NamedTuple):
    checker: str
    """The role that checks the task; empty if it is not checked."""
    reason: str


def pair(task: ProjectTask, *, owner: str, checks: Iterable[float] = ()) -> TaskPair:
    """Choose who checks `owner`'s work on a task; `checks` are the testers' and reviewers' tasks that depend on it."""
    checker = CHECKERS.get(owner)
    if checker is None:
        return TaskPair("", f"work of the {owner} is not checked by another agent")
    listed = sorted(checks)
    if listed:
        return TaskPair("", f"task {listed[0]} checks it")
    if not task.get("acceptance", "").strip():
        return TaskPair("", "it has no acceptance to check")
    exceptions = _EXCEPTION.findall(task["context"])
    documents = next((name for name in exceptions if name.startswith("docs_only.")), None)
    title = task["title"]
    if owner != "engineer":
        if documents:
            return TaskPair(checker, f"{documents}: a reviewer for each writer")
        if _SMALL_TEXT.match(title):
            return TaskPair("", "it is a small change of text")
        return TaskPair(checker, "its acceptance says what a reader finds")
    if documents:
        return TaskPair("", f"{documents}: it contains no code to run")
    asked = [point.strip(" -*\t") for point in re.split(r"[\n;.]", task["acceptance"])]
    others = [point for point in asked if point and not _TESTS_PASS.match(point)]
    is_pure = _PURE.search(f"{title}\n{task.get('approach', '')}")
    if _REFACTORING.match(title) or is_pure or (others and all(map(_KEEPS_BEHAVIOUR.match, others))):
        return TaskPair("", "it keeps the behaviour as it is")
    if _TYPES_ONLY.match(title):
        return TaskPair("", "it changes types only")
    if _BESIDE.match(title):
        return TaskPair("", "it changes text beside the code")
    return TaskPair(checker, "its acceptance says how the result behaves")
