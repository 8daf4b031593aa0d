"""The verbs that search the texts of threads and the repository's knowledge."""

from __future__ import annotations

from typing import Any

from rolecall.errors import RolecallError
from rolecall.web import hints
from rolecall.web.verbs import Ask, get

_SECONDS = 1.5


@get(
    "/search",
    "Threads whose task or answers contain all words, newest first. `next` is the cursor that continues with "
    "older ones, null when all were searched.",
    is_slow=True,
    q="the words",
    after="the cursor",
)
def search_threads(ask: Ask) -> Any:
    found = ask.rolecall.search(
        ask.query.get("q", ""), after=ask.query.get("after") or None, seconds=_SECONDS
    )
    return found._replace(found=[{**entry, "continue": None} for entry in found.found])._asdict()


@get("/knowledge", "Passages of the repository that best answer a question.", is_slow=True, q="the question")
def search_knowledge(ask: Ask) -> Any:
    question = ask.query.get("q", "")
    if not question.strip():
        return {"answers": [], "problem": None}
    try:
        answers = ask.rolecall.query(question, max=8, may_write=not ask.is_read_only)
    except RolecallError as error:
        return {"answers": [], "problem": f"{error.message}. {hints.word(error.hint)}".strip()}
    return {
        "answers": [
            {"path": one.path, "start": one.start, "end": one.end, "trail": list(one.trail), "text": one.text}
            for one in answers
        ],
        "problem": None,
    }
