"""The journal: a change as the files will show it, decided once `journal.json` is in its place.

Here it is planned line by line, written, carried out (twice is as good as once), and laid over the
files that grow for whoever reads before that is done. What a node or a ref is, it does not know: above
are `nodefile` and `refview`, which plan into it, and `files`, which holds the lock. Below are `reffile`
and `disk`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

from rolecall.store.backend import Moved, is_time
from rolecall.store.disk import (
    damaged_file,
    has_kinds,
    is_count,
    is_object,
    is_text,
    json_text,
    parsed,
    read,
    replace,
    sync,
    temporary_name,
    write,
    write_all,
)
from rolecall.store.reffile import HISTORY, edited, ended_line, map_text, read_map, ref_path

MOVES = "moves.jsonl"
EVENTS = "events.jsonl"
_JOURNAL = "journal.json"
_COUNTERS = "counters.json"
_NUMBERED = {
    "move": (MOVES, {"seq": is_count, "name": is_text, "target": is_text, "at": is_time}),
    "event": (
        EVENTS,
        {"seq": is_count, "stream": is_text, "kind": is_text, "body": is_object, "at": is_time},
    ),
}
_COUNTED = {"change": is_count, "move": is_count, "event": is_count}


class Journal(NamedTuple):
    """A change as the files will show it; the same value overlays what a reader finds."""

    nodes: dict[str, list[str]]
    """Id to the temporary file that holds the node and the file it becomes."""
    lengths: dict[str, int]
    lines: dict[str, list[str]]
    """Per file that grows: how long it was, and the lines it gets."""
    maps: dict[str, dict[str, str | None]]
    """Per YAML file the entries to set, or with None to take out."""
    refs: dict[str, dict[str, Any] | None]
    forget: list[str]
    """Names of refs whose history goes."""
    before: dict[str, int]
    counters: dict[str, int]

    @property
    def changes_nothing(self) -> bool:
        return self == _unchanged(self.before)


_PARTS: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(Journal._fields, is_object),
    "forget": lambda names: isinstance(names, list),
    "before": lambda counters: has_kinds(counters, _COUNTED),
    "counters": lambda counters: has_kinds(counters, _COUNTED),
}


def empty_journal(root: Path) -> Journal:
    """A journal that changes nothing yet, to plan into."""
    return _unchanged(_counters(root))


def _unchanged(counters: dict[str, int]) -> Journal:
    return Journal({}, {}, {}, {}, {}, [], dict(counters), dict(counters))


def _counters(root: Path) -> dict[str, int]:
    path = root / _COUNTERS
    data = read(path)
    if data is None:
        return {"change": 0, "move": _last_number(root / MOVES), "event": _last_number(root / EVENTS)}
    counters = parsed(data, path)
    if not has_kinds(counters, _COUNTED):
        raise damaged_file(path, "a counter is missing or no number")
    return dict(counters)


def _last_number(path: Path) -> int:
    lines = [line for line in (read(path) or b"").splitlines(keepends=True) if line.endswith(b"\n")]
    if not lines:
        return 0
    last = parsed(lines[-1], path)
    if not has_kinds(last, {"seq": is_count}):
        raise damaged_file(path, "its last line has no number")
    return int(last["seq"])


def read_journal(root: Path) -> Journal | None:
    path = root / _JOURNAL
    data = read(path)
    # A journal that had to last was on the disk before it got its name. One that lost its bytes in a
    # power cut belongs to a change that nobody was to wait for.
    if data is None or not data.strip(b"\0"):
        return None
    parts = parsed(data, path)
    if not has_kinds(parts, _PARTS):
        raise damaged_file(path, "it is not a journal")
    return Journal(**{name: parts[name] for name in Journal._fields})


def instant(root: Path) -> tuple[bytes | None, bytes | None]:
    """Differs before and after a change of refs begins or ends to show."""
    return read(root / _JOURNAL), read(root / _COUNTERS)


def write_journal(journal: Journal, root: Path, *, durable: bool) -> None:
    place = root / _JOURNAL
    temporary = root / temporary_name()
    write(temporary, json_text(journal._asdict()).encode(), sync=durable)
    if durable:
        sync(temporary.parent)
    try:
        temporary.replace(place)
        if durable:
            sync(root)
    except BaseException:
        place.unlink(missing_ok=True)
        raise


def finish_journal(root: Path, *, first: bool) -> None:
    """Carry out what a killed writer had decided; after that, or the `first` time, clear up behind it."""
    journal = read_journal(root)
    if journal is not None:
        carry_out(journal, root, durable=True)
    if journal is not None or first:
        (root / _JOURNAL).unlink(missing_ok=True)
        sweep(root)


def sweep(root: Path) -> None:
    """Remove temporary files; with the lock held and no journal they are nobody's."""
    folder = root / ".tmp"
    if (root / _JOURNAL).exists() or not folder.is_dir():
        return
    for left in folder.iterdir():
        if left.is_dir():
            from shutil import rmtree  # Slow to import, and only a rebuilt index leaves a folder.

            rmtree(left)
        else:
            left.unlink()


def carry_out(journal: Journal, root: Path, *, durable: bool) -> None:
    """Bring the files up to the journal. Doing it twice is doing it once."""
    touched = {root, root / "cas"}
    touched |= _add_lines(journal, root, durable=durable)
    touched |= _place_nodes(journal, root)
    if journal.forget:
        _forget(journal, root, durable=durable)
    for file, edits in journal.maps.items():
        entries = read_map(root / file)
        if (changed := edited(entries, edits)) != entries:
            replace(root / file, map_text(changed).encode(), root=root, sync=durable)
    for name, entry in journal.refs.items():
        touched |= _write_ref(name, entry, root=root, durable=durable)
    if journal.counters != journal.before:
        replace(root / _COUNTERS, json_text(journal.counters).encode(), root=root, sync=durable)
    if durable:
        for folder in touched:
            sync(folder)
    (root / _JOURNAL).unlink()


def _add_lines(journal: Journal, root: Path, *, durable: bool) -> set[Path]:
    touched = set()
    for file, lines in journal.lines.items():
        if journal.forget and file in (MOVES, HISTORY):
            continue  # Written anew by `_forget`.
        path = root / file
        path.parent.mkdir(parents=True, exist_ok=True)
        _append(path, lines, length=journal.lengths[file], durable=durable)
        touched.add(path.parent)
    return touched


def _append(path: Path, lines: list[str], *, length: int, durable: bool) -> None:
    """Append lines to a file that was `length` long, unless they are there already."""
    text = "".join(f"{line}\n" for line in lines).encode()
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        size = os.fstat(file).st_size
        since = os.pread(file, size - length, length) if size > length else b""
        if not since.startswith(text):
            if text.startswith(since):
                os.ftruncate(file, length)
            elif not since.endswith(b"\n"):
                text = b"\n" + text
            os.lseek(file, 0, os.SEEK_END)
            write_all(file, text)
        if durable:
            os.fsync(file)
    finally:
        os.close(file)


def _place_nodes(journal: Journal, root: Path) -> set[Path]:
    touched = set()
    for temporary, final in journal.nodes.values():
        if (root / temporary).exists():
            (root / final).parent.mkdir(exist_ok=True)
            (root / temporary).replace(root / final)
            touched.add((root / final).parent)
    return touched


def _forget(journal: Journal, root: Path, *, durable: bool) -> None:
    kept = "".join(f"{json_text(move._asdict())}\n" for move in moves(journal, root))
    replace(root / MOVES, kept.encode(), root=root, sync=durable)
    if HISTORY in journal.lines or (root / HISTORY).exists():
        replace(root / HISTORY, history(journal, read(root / HISTORY) or b""), root=root, sync=durable)


def _write_ref(name: str, entry: dict[str, Any] | None, *, root: Path, durable: bool) -> set[Path]:
    path = ref_path(root, name)
    if entry is None:
        path.unlink(missing_ok=True)
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace(path, json_text(entry).encode(), root=root, sync=durable)
    return {parent for parent in path.parents if len(parent.parts) > len(root.parts) and parent.exists()}


def plan_line(journal: Journal, root: Path, *, file: str, line: str, shared: bool = False) -> None:
    """Add a line to a file that grows. `shared` is one that the predecessor appends to as well."""
    if file not in journal.lines:
        length, whole = _settled(root / file, shared=shared)
        journal.lengths[file] = length
        journal.lines[file] = [] if whole else [""]
    journal.lines[file].append(line)


def _settled(path: Path, *, shared: bool) -> tuple[int, bool]:
    """How long a growing file is and whether its last line is whole. In one that only we append to, a
    last line without its newline was never finished, and is cut off."""
    try:
        file = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return 0, True
    try:
        size = os.fstat(file).st_size
        if size == 0 or os.pread(file, 1, size - 1) == b"\n":
            return size, True
        if shared:
            return size, False
        size = os.pread(file, size, 0).rfind(b"\n") + 1
        os.ftruncate(file, size)
        return size, True
    finally:
        os.close(file)


def history(journal: Journal, data: bytes) -> bytes:
    """The bytes of `history.jsonl`, now `data`, once the journal is carried out."""
    gone = {name.removeprefix("thread/") for name in journal.forget}
    added = [line.encode() for line in journal.lines.get(HISTORY, []) if line]
    if not gone and not added:
        return data
    known = set(added)
    kept = []
    for line in data.splitlines():
        entry = ended_line(line) if gone else None
        if line not in known and not (entry and entry["thread"] in gone):
            kept.append(line)
    return b"".join(line + b"\n" for line in (*kept, *added))


def moves(journal: Journal, root: Path, *, after: int = 0) -> Iterator[Moved]:
    for line in numbered(journal, root, kind="move", after=after):
        if line["name"] not in journal.forget or line["seq"] > journal.before["move"]:
            yield Moved(line["seq"], line["name"], line["target"], line["at"])


def numbered(
    journal: Journal, root: Path, *, kind: Literal["move", "event"], after: int
) -> Iterator[dict[str, Any]]:
    """The lines of a file numbered by `seq` beyond `after`, as of the journal."""
    name, kinds = _NUMBERED[kind]
    path = root / name
    if path.exists():
        for entry in _written(path, after, kinds):
            if after < entry["seq"] <= journal.before[kind]:
                yield entry
    for text in journal.lines.get(name, ()):
        if text and (entry := json.loads(text))["seq"] > after:
            yield entry


def _written(path: Path, after: int, kinds: Mapping[str, Callable[[Any], bool]]) -> Iterator[dict[str, Any]]:
    with path.open("rb") as file:
        _seek_beyond(file, after)
        for line in file:
            # A line without its end is still being written, or never was.
            if not line.endswith(b"\n"):
                break
            entry = parsed(line, path)
            if not has_kinds(entry, kinds):
                raise damaged_file(path, "a line does not say what it must")
            yield entry


def _seek_beyond(file: BinaryIO, seq: int) -> None:
    """Go to the start of a line not beyond `seq` and close before it; the numbers rise along the file."""
    low, high = 0, os.fstat(file.fileno()).st_size
    while seq and high - low > 4096:
        middle = (low + high) // 2
        file.seek(middle)
        file.readline()
        match = re.match(rb'\{"seq":(\d+),.*\n', file.readline())
        if match and int(match[1]) <= seq:
            low = middle
        else:
            high = middle
    file.seek(low)
    if low:
        file.readline()
