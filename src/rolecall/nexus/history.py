"""The history of closed cycles: cycles are added and searched, never changed or dropped.

Archiving involves several files: the cycle is added to the history first, then the plan and the tasks are removed.
Before the first change, a note is written that says which cycle is about to be added, and from which bytes. If a writer
is killed, the next process that takes the lock finishes the work: if the cycle is in the history, the files from which
it was made are removed.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from rolecall.nexus import project_paths, state, state_file
from rolecall.nexus.project_paths import Folder
from rolecall.nexus.state import Cycle, Plan, Task
from rolecall.nexus.state_file import Bytes

SCHEMA_VERSION = "0.10"
"""The contract version in which cycles are written."""
_NOTE = "archiving.json"
_OPENING = re.compile(rb'"cycles"\s*:\s*\[')


class _File(Struct, forbid_unknown_fields=True):
    cycles: list[msgspec.Raw]
    schema_version: state.Version | UnsetType = UNSET


class CycleHistory:
    """The cycles and the surrounding bytes, so that adding a cycle leaves the others exactly as they were written."""

    def __init__(
        self, cycles: Sequence[bytes | msgspec.Raw], front: Sequence[Bytes], back: bytes, highest: int
    ) -> None:
        self.cycles = cycles
        self._front, self._back = front, back
        self.highest_plan = highest
        """The highest plan id in the history."""
        self._searchable: tuple[bytearray, list[int]] | None = None
        """The compact JSON of all cycles in lower case, one cycle per line, and the start of each line."""

    def cycle(self, number: int) -> Cycle:
        return state.CYCLE.decode(self.cycles[number])

    def save_with(self, project: Folder, cycle: Cycle) -> CycleHistory:
        """Add a cycle to the file, and return the new history."""
        text = state.encode(cycle)
        entry = (b",\n" if self.cycles else b"\n") + text
        front = [*self._front, entry] if len(self._front) < 100 else [b"".join(self._front), entry]
        path = project_paths.history(project)
        stamp = state_file.replace(project, path, *front, b"\n", self._back)
        highest = max(self.highest_plan, int(cycle.plan.id) if cycle.plan else 0)
        longer = CycleHistory([*self.cycles, text], front, self._back, highest)
        state.remember(path, stamp, longer)
        return longer

    def search(self, query: str) -> Sequence[int]:
        """Return the indexes of the cycles whose compact JSON contains the query, ignoring case, oldest first."""
        wanted = query.lower()
        if not wanted:
            return range(len(self.cycles))
        if "\n" in wanted:
            return []  # JSON escapes line breaks
        if self._searchable is None:
            # The text is one growing array, because joining pieces would take twice the memory.
            lines = bytearray()
            starts: list[int] = []
            for cycle in self.cycles:
                starts.append(len(lines))
                lines += msgspec.json.encode(msgspec.json.decode(cycle)).decode().lower().encode() + b"\n"
            self._searchable = lines, starts
        text, starts = self._searchable
        # A regular expression is several times faster than bytes.find here.
        pattern = re.compile(re.escape(wanted.encode(errors="surrogatepass")))
        found: list[int] = []
        match = pattern.search(text)
        while match:
            found.append(bisect_right(starts, match.start()) - 1)
            match = pattern.search(text, text.index(b"\n", match.end()))
        return found


def load(project: Folder) -> CycleHistory:
    """Load the history, which is empty if the file does not exist."""
    found = state.load(project_paths.history(project), _parse)
    return found or CycleHistory([], [b'{"cycles":['], b"]}\n", 0)


def _parse(data: bytes) -> CycleHistory:
    state.refuse_repeats(data, "cycles")
    file = msgspec.json.decode(data, type=_File)
    highest = 0
    for number, cycle in enumerate(file.cycles):
        try:
            plan = state.CYCLE.decode(cycle).plan
        except ValueError as exc:
            raise ValueError(f"cycles[{number}]: {exc}") from exc
        highest = max(highest, int(plan.id) if plan else 0)
    if file.cycles:
        last = memoryview(file.cycles[-1])
        end = data.rindex(last) + len(last)
    else:
        opened = _OPENING.search(data)
        end = opened.end() if opened else 0
    # Like the cycles, these bytes are a view, because copying a long history takes a while.
    return CycleHistory(file.cycles, [memoryview(data)[:end]], data[data.index(b"]", end) :], highest)


# -- archiving --


@contextmanager
def writing(project: Folder) -> Iterator[None]:
    """Hold the project's lock, after finishing the archiving that an earlier writer left incomplete."""
    with state_file.hold_lock(project):
        path = project_paths.ours(project, _NOTE)
        data = state_file.read(path)
        if data is not None:
            try:
                note = msgspec.json.decode(data, type=_Note)
            except ValueError as exc:
                problem = f"it is not a note that Rolecall wrote: {exc}"
                raise state_file.DamagedFile(path, data, problem) from exc
            past = load(project)
            is_added = note.cycle < len(past.cycles)
            if is_added and past.cycle(note.cycle).completed_at == note.completed_at:
                # A file with different bytes is newer, and was not archived.
                sources = note.sources.items()
                archived = [name for name, digest in sources if state.digest_of(project, name) == digest]
                remove_sources(project, archived)
            else:
                remove_note(project)
        yield


def archive(
    project: Folder, plan: Plan | None, tasks: Sequence[Task], *, sources: Mapping[str, str]
) -> tuple[Cycle, CycleHistory]:
    """Add a cycle made from files with the digests `sources`, which the caller then removes or replaces."""
    history = load(project)
    cycle = Cycle(
        schema_version=SCHEMA_VERSION,
        completed_at=project_paths.now(),
        branch=project_paths.branch(project),
        plan=plan and msgspec.structs.replace(plan, schema_version=UNSET),
        tasks=list(tasks),
    )
    note = {"cycle": len(history.cycles), "completed_at": cycle.completed_at, "sources": sources}
    state_file.replace(project, project_paths.ours(project, _NOTE), state.encode(note))
    return cycle, history.save_with(project, cycle)


def remove_sources(project: Folder, names: Sequence[str]) -> None:
    """Finish archiving: remove the archived files, then the note about them."""
    for name in names:
        state_file.remove(project_paths.state(project, name))
    state_file.sync_folder(project_paths.state(project))
    remove_note(project)


def remove_note(project: Folder) -> None:
    state_file.remove(project_paths.ours(project, _NOTE))


class _Note(Struct, forbid_unknown_fields=True):
    cycle: Annotated[int, Meta(ge=0)]
    completed_at: str
    sources: dict[Literal["plan.json", "tasks.json"], str]
