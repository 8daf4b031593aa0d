"""The tools for a repository's knowledge.

A model reads the reply, so the reply is limited to the best passages, each with its file and lines; long passages are
shortened. Queries write nothing, because hosts are allowed to call reading tools without asking the user;
`knowledge_sync` rebuilds a damaged index.
"""

from __future__ import annotations

from functools import cache
from threading import Lock

from rolecall import api
from rolecall.errors import UsageError
from rolecall.mcp.tools import Caller, McpOutput, ToolContext, flag, make_tool, text, whole
from rolecall.settings.capabilities import FILES

_LONGEST_PASSAGE = 3_000
_LONGEST_REPLY = 24_000
"""The maximum number of characters in all passages of a reply together, about 6,000 tokens."""
_MOST_REPORTS = 20
"""The maximum number of progress reports from one sync."""
_NAMED = 20
"""The maximum number of files that the reply of a sync names."""

_LOCK = Lock()
"""Held while the searcher is used. HTTP calls come from several threads, which share one searcher with its open
indexes."""
_NOTES: list[str] = []


@cache
def _knowledge(project: str) -> api.Knowledge:
    return api.Knowledge(project, tell=_NOTES.append, may_write=False)


def query(
    place: ToolContext, _caller: Caller, /, query: str, max: int = 8, path: str | None = None
) -> McpOutput:
    with _LOCK:
        _NOTES.clear()
        found = _knowledge(place.project).query(query, max=max, path=path)
        notes = [*found.notes, *_NOTES]
    if any(answer.is_stale for answer in found.answers):
        notes.append(
            "files marked as stale have changed since they were indexed; knowledge_sync indexes them again"
        )
    # The best passages come first, so the last texts are cut first. The files and line numbers are always kept.
    room, results = _LONGEST_REPLY, []
    for answer in found.answers:
        length = min(_LONGEST_PASSAGE, room)
        results.append(
            {
                "path": answer.path,
                "lines": f"{answer.start}-{answer.end}",
                **({"heading" if answer.is_prose else "symbol": answer.heading} if answer.trail else {}),
                "score": round(answer.score, 4),
                **({"stale": True} if answer.is_stale else {}),
                "text": answer.text[:length],
                **({"cut": len(answer.text) - length} if len(answer.text) > length else {}),
            }
        )
        room -= min(len(answer.text), length)
    return {"results": results, **({"notes": notes} if notes else {})}


def init(place: ToolContext, _caller: Caller, /) -> McpOutput:
    started = api.Knowledge(place.project).init()
    return {"path": started.path, "include": started.include, "gitignore": started.ignored_in}


def sync(place: ToolContext, caller: Caller, /, rebuild: bool = False) -> McpOutput:
    def check(done: int, total: int) -> None:
        if caller.is_set:
            raise UsageError("the sync was cancelled, and the index is as it was before")
        if done * _MOST_REPORTS // total != (done - 1) * _MOST_REPORTS // total:
            caller.tell("indexing", done=done, total=total)

    notes: list[str] = []
    report = api.Knowledge(place.project, tell=notes.append).sync(rebuild=rebuild, progress=check)
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


TOOLS = (
    make_tool(
        "knowledge_query",
        query,
        "Search this repository's code and documents by meaning and by words: a question, a name from the code, or an"
        " error message. Replies the best passages with file and lines; open the file for what is around them.",
        {"query": text("What to look for.", minLength=1, maxLength=10_000)},
        {
            "max": whole("How many passages; 8 if left out.", minimum=1, maximum=20),
            "path": text("Only files that match, as in a .gitignore: docs/, *.py."),
        },
        renamed={"limit": "max"},
    ),
    make_tool(
        "knowledge_init",
        init,
        "Write a knowledge.yaml for this repository, which says what is indexed. Then knowledge_sync.",
        {},
        effect="adds",
        classes=FILES,
    ),
    make_tool(
        "knowledge_sync",
        sync,
        "Index the files of this repository that have changed since the last time, for knowledge_query.",
        {},
        {"rebuild": flag("Index everything again.")},
        effect="adds",
        classes=FILES,
        is_long=True,
    ),
)
