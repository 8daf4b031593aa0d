"""What a repository says about itself, as tools: thin wrappers over `knowledge.desk`.

A reply is for a model to read, so it is bounded: the best passages, each with the file and the lines it stands in,
and a long one cut. Asking writes nothing, because hosts may call a reader unasked; an index that is damaged is made
anew by `knowledge_sync`.
"""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Any

from rolecall.errors import UsageError
from rolecall.mcp.protocol import Cancel
from rolecall.mcp.tools import Place, Reply, checked_tool
from rolecall.settings.capabilities import FILES

if TYPE_CHECKING:
    from rolecall.knowledge.queries import Desk
    from rolecall.knowledge.query import Answer

_MOST_PASSAGES = 20
_LONGEST_PASSAGE = 3_000
_LONGEST_REPLY = 24_000
"""Characters of all passages together; some 6,000 tokens."""
_NAMED = 20
"""Files that a reply about a sync names."""


# -- asking --


class _Warm:
    """One desk for all calls of this process, which keeps indexes open; over HTTP calls come in several threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._desk: Desk | None = None
        self._notes: list[str] = []

    def ask(self, text: str, root: str, *, limit: int, path: str | None) -> tuple[list[Answer], list[str]]:
        from rolecall.knowledge.queries import Desk
        from rolecall.nexus.project_paths import now

        with self._lock:
            self._desk = self._desk or Desk(now=now, tell=self._notes.append, may_write=False)
            self._notes.clear()
            found = self._desk.ask(text, root, limit=limit, path=path)
            return found.answers, [*found.notes, *self._notes]


_WARM = _Warm()


def _knowledge_query(place: Place, arguments: dict[str, Any], _cancel: Cancel) -> Reply:
    from rolecall.knowledge.globs import problem
    from rolecall.knowledge.place import root_of

    pattern = arguments.get("path")
    if pattern is not None and (wrong := problem(pattern)):
        raise UsageError(f"the pattern {pattern!r} {wrong}", hint="Patterns are as in a .gitignore.")
    limit = arguments.get("limit", 8)
    answers, notes = _WARM.ask(arguments["query"], root_of(place.project), limit=limit, path=pattern)
    if any(answer.is_stale for answer in answers):
        notes.append(
            "files marked as stale have changed since they were indexed; knowledge_sync indexes them again"
        )
    return {"results": _bounded(answers), **({"notes": notes} if notes else {})}


def _bounded(answers: list[Answer]) -> list[dict[str, Any]]:
    """The best come first, so what is cut first is the text of the last ones; files and lines always stay."""
    left = _LONGEST_REPLY
    results = []
    for answer in answers:
        room = min(_LONGEST_PASSAGE, left)
        results.append(_result(answer, room))
        left -= min(len(answer.text), room)
    return results


def _result(answer: Answer, room: int) -> dict[str, Any]:
    name = {"heading": " › ".join(answer.trail)} if answer.is_prose else {"symbol": ".".join(answer.trail)}
    return {
        "path": answer.path,
        "lines": f"{answer.start}-{answer.end}",
        **(name if answer.trail else {}),
        "score": round(answer.score, 4),
        **({"stale": True} if answer.is_stale else {}),
        "text": answer.text[:room],
        **({"cut": len(answer.text) - room} if len(answer.text) > room else {}),
    }


# -- making --


def _knowledge_init(place: Place, _arguments: dict[str, Any], _cancel: Cancel) -> Reply:
    from rolecall.knowledge import start

    started = start.init(place.project)
    return {"path": started.path, "include": started.include, "gitignore": started.ignored_in}


def _knowledge_sync(place: Place, arguments: dict[str, Any], cancel: Cancel) -> Reply:
    from rolecall.knowledge import queries
    from rolecall.knowledge.place import root_of
    from rolecall.nexus.project_paths import now

    def check(_done: int, _total: int) -> None:
        if cancel.is_set:
            raise UsageError("the sync was cancelled, and the index is as it was before")

    notes: list[str] = []
    root, is_anew = root_of(place.project), arguments.get("rebuild", False)
    report, _ = queries.sync(root, now=now(), tell=notes.append, is_anew=is_anew, progress=check)
    assert report.state is not None  # noqa: S101 -- a sync that ended has one
    return {
        "indexed": len(report.indexed),
        "removed": len(report.removed),
        "unchanged": report.unchanged,
        "files": report.state.files,
        "passages": report.state.passages,
        "skipped": [{"path": each.path, "reason": each.reason} for each in report.skipped[:_NAMED]],
        "skippedInAll": len(report.skipped),
        "notes": [*report.notes, *notes],
    }


# -- the table --


TOOLS = (
    checked_tool(
        "knowledge_query",
        _knowledge_query,
        "Search this repository's code and documents by meaning and by words: a question, a name from the code, or an"
        " error message. Replies the best passages with file and lines; open the file for what is around them.",
        {
            "query": {
                "type": "string",
                "minLength": 1,
                "maxLength": 10_000,
                "description": "What to look for.",
            }
        },
        {
            "limit": {
                "type": "integer",
                "minimum": 1,
                "maximum": _MOST_PASSAGES,
                "description": "How many passages; 8 if left out.",
            },
            "path": {
                "type": "string",
                "description": "Only files that match, as in a .gitignore: docs/, *.py.",
            },
        },
    ),
    checked_tool(
        "knowledge_init",
        _knowledge_init,
        "Write a knowledge.yaml for this repository, which says what is indexed. Then knowledge_sync.",
        {},
        effect="adds",
        classes=FILES,
    ),
    checked_tool(
        "knowledge_sync",
        _knowledge_sync,
        "Index the files of this repository that have changed since the last time, for knowledge_query.",
        {},
        {"rebuild": {"type": "boolean", "description": "Index everything anew."}},
        effect="adds",
        classes=FILES,
        is_long=True,
    ),
)
