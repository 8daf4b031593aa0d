"""The history: cycles that were closed. One is added, none is ever changed or dropped; they can be searched.

Archiving takes several files: the cycle goes into the history first, then the plan and the tasks are removed.
A note of ours, written before either, says which cycle is about to be added and from which bytes. Whoever
takes the lock next finishes what the note tells of: if the cycle is in the history, the files that went into
it are removed, and nothing is archived twice.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rolecall.nexus import longlist, project_paths, shape, state_file
from rolecall.nexus.longlist import Kind, Layout, LongList
from rolecall.nexus.project_paths import Folder

SCHEMA_VERSION = "0.10"
"""What cycles say of the contract they were written under."""
_NOTE = "archiving.json"
_BLOCK = 200
"""How many cycles are looked through at once: a copy of all in lower case would be paid for in page faults."""


def _plan_id(cycle: Mapping[str, Any]) -> float:
    return cycle["plan"]["id"] if cycle["plan"] else 0


HISTORY = Kind("history", "cycles", shape.HISTORY_HEAD, shape.CYCLE, _plan_id)


def load(project: Folder) -> LongList:
    """The history; one without cycles when there is none."""
    return longlist.load(project, project_paths.history(project), HISTORY) or longlist.empty(HISTORY, {})


# -- adding a cycle --


@contextmanager
def writing(project: Folder) -> Iterator[None]:
    """The project is ours to change, and nothing an earlier writer began is left half done."""
    with state_file.locked(project):
        _finish(project)
        yield


def add(
    project: Folder,
    history: LongList,
    plan: dict[str, Any] | None,
    tasks: Sequence[Any],
    *,
    sources: Mapping[str, bytes],
) -> tuple[dict[str, Any], Layout]:
    """Add a cycle made from the bytes of these state files, which the caller then removes or replaces."""
    cycle = {
        "schema_version": SCHEMA_VERSION,
        "completed_at": project_paths.now(),
        "branch": project_paths.branch(project),
        "plan": plan and {key: value for key, value in plan.items() if key != "schema_version"},
        "tasks": list(tasks),
    }
    note = {
        "cycle": history.count,
        "completed_at": cycle["completed_at"],
        "sources": {name: state_file.digest(data) for name, data in sources.items()},
    }
    state_file.replace(project, project_paths.ours(project, _NOTE), longlist.json_bytes(note))
    change = longlist.appended(history, HISTORY, cycle)
    longlist.save(project, project_paths.history(project), HISTORY, change)
    return cycle, change.layout


def remove_sources(project: Folder, names: Sequence[str]) -> None:
    """The end of archiving: the files are gone, and then the note about them."""
    for name in names:
        state_file.remove(project_paths.state(project, name))
    state_file.sync_folder(project_paths.state(project))
    forget_note(project)


def forget_note(project: Folder) -> None:
    state_file.remove(project_paths.ours(project, _NOTE))


def _finish(project: Folder) -> None:
    data = state_file.read(project_paths.ours(project, _NOTE))
    if data is None:
        return
    try:
        note = json.loads(data)
        number, completed_at, sources = int(note["cycle"]), note["completed_at"], dict(note["sources"])
        if number < 0 or not set(sources) <= {project_paths.PLAN, project_paths.TASKS}:
            raise ValueError(f"cycle {number} of {sorted(sources)}")
    except (ValueError, KeyError, TypeError, RecursionError) as exc:
        raise state_file.DamagedFile(
            project_paths.ours(project, _NOTE), data, f"no note of ours: {exc!r}"
        ) from exc
    history = load(project)
    if number < history.count and history.entry(number)["completed_at"] == completed_at:
        archived = [name for name in sources if _is_as_archived(project, name, sources[name])]
        remove_sources(project, archived)
    else:
        forget_note(project)


def _is_as_archived(project: Folder, name: str, digest: str) -> bool:
    """Whether a file still has the bytes that were archived: others came later and were not."""
    data = state_file.read(project_paths.state(project, name))
    return data is not None and state_file.digest(data) == digest


# -- searching --


_BREAKS = re.compile(r'[\s"\\{}\[\]:,]+')
"""What JSON may write with or without spaces around it, or in several ways."""


def search(history: LongList, query: str) -> Sequence[int]:
    """The cycles whose JSON holds the query, whatever the case of letters; by number, oldest first.

    The JSON meant is the one without spaces between its parts, whoever wrote the file and however. A query
    that is plain words reads the same in every writing, so it is looked for in the bytes. Of any other the
    longest word is, and only the cycles that have it are read.
    """
    wanted = query.lower()
    if not wanted:
        return range(history.count)
    words = [word for word in _BREAKS.split(wanted) if word]
    if " ".join(words) == wanted:
        return _holding(history, wanted)
    likely = _holding(history, max(words, key=len)) if words else range(history.count)
    return [number for number in likely if wanted in _json_text(history.entry(number))]


def _holding(history: LongList, words: str) -> Sequence[int]:
    """The cycles that have these words, which JSON does not write in any other way."""
    data = history.data
    if not history.layout.is_literal:
        return [n for n in range(history.count) if words in _json_text(history.entry(n))]
    if not _is_bytewise(data, words):
        return [n for n in range(history.count) if words in history.slice(n).decode().lower()]
    wanted = words.encode(errors="surrogatepass")
    blocks = range(0, history.count, _BLOCK)
    return [number for first in blocks for number in _found_in_block(history, first, wanted)]


def _is_bytewise(data: bytes, words: str) -> bool:
    """Whether lower case can be had byte by byte: two letters beyond ASCII have one within it."""
    if data.isascii():
        return True
    return words.isascii() and "\u0130".encode() not in data and "\u212a".encode() not in data


def _found_in_block(history: LongList, first: int, words: bytes) -> Iterator[int]:
    starts = [*history.layout.starts[first : first + _BLOCK + 1], history.layout.closing][: _BLOCK + 1]
    block = history.data[starts[0] : starts[-1]].lower()
    at = block.find(words)
    while at >= 0:
        number = bisect_right(starts, starts[0] + at) - 1
        yield first + number
        at = block.find(words, starts[number + 1] - starts[0])


def _json_text(cycle: Any) -> str:
    return longlist.json_bytes(cycle).decode().lower()
