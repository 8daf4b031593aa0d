"""The journal: a change as the files will show it, decided once `journal.json` is in its place.

It is planned line by line, written and carried out (twice is as good as once); a reader that comes before
that lays it over the files. It knows nothing of nodes and refs: `nodefile` and `refview` plan into it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Literal

from rolecall.store.backend import Moved, is_time
from rolecall.store.disk import (
    is_count,
    is_object,
    is_text,
    json_text,
    parse_entry,
    read,
    replace,
    sync,
    temporary_name,
    write,
    write_all,
)
from rolecall.store.reffile import HISTORY, edit_map, map_text, parse_ending, read_map, ref_path

MOVES = "moves.jsonl"
EVENTS = "events.jsonl"
_JOURNAL = "journal.json"
_COUNTERS = "counters.json"
_COUNTED = {"change": is_count, "move": is_count, "event": is_count}
_NUMBERED = {
    "move": (MOVES, {"seq": is_count, "name": is_text, "target": is_text, "at": is_time}),
    "event": (
        EVENTS,
        {"seq": is_count, "stream": is_text, "kind": is_text, "body": is_object, "at": is_time},
    ),
}


@dataclass
class Journal:
    """A change as the files will show it; the same value overlays what a reader finds."""

    before: dict[str, int]
    counters: dict[str, int]
    nodes: dict[str, list[str]] = field(default_factory=dict)
    """Id to the temporary file that holds the node and the file it becomes."""
    lengths: dict[str, int] = field(default_factory=dict)
    lines: dict[str, list[str]] = field(default_factory=dict)
    """Per file that grows: how long it was, and the lines it gets."""
    maps: dict[str, dict[str, str | None]] = field(default_factory=dict)
    """Per YAML file the entries to set, or with None to take out."""
    refs: dict[str, dict[str, Any] | None] = field(default_factory=dict)
    forget: list[str] = field(default_factory=list)
    """Names of refs whose history goes."""

    @property
    def changes_nothing(self) -> bool:
        return self == Journal(self.before, self.before)

    def add_line(self, root: Path, file: str, line: str, *, shared: bool = False) -> None:
        """Add a line to a file that grows. `shared` is one that the predecessor appends to as well."""
        if file not in self.lines:
            self.lengths[file], is_whole = _trim(root / file, shared=shared)
            self.lines[file] = [] if is_whole else [""]
        self.lines[file].append(line)


_PARTS: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(Journal.__dataclass_fields__, is_object),
    "forget": lambda names: isinstance(names, list),
}


def empty_journal(root: Path) -> Journal:
    """A journal that changes nothing yet, to plan into."""
    path = root / _COUNTERS
    data = read(path)
    if data is None:
        counters = {"change": 0, "move": _last_number(root / MOVES), "event": _last_number(root / EVENTS)}
    else:
        counters = parse_entry(data, path, _COUNTED)
    return Journal(counters, dict(counters))


def _last_number(path: Path) -> int:
    lines = [line for line in (read(path) or b"").splitlines(keepends=True) if line.endswith(b"\n")]
    return int(parse_entry(lines[-1], path, {"seq": is_count})["seq"]) if lines else 0


def read_journal(root: Path) -> Journal | None:
    path = root / _JOURNAL
    data = read(path)
    # A journal that had to last was on the disk before it got its name. One that lost its bytes in a
    # power cut belongs to a change that nobody was to wait for.
    if data is None or not data.strip(b"\0"):
        return None
    parts = parse_entry(data, path, _PARTS)
    for counters in ("before", "counters"):
        parse_entry(json_text(parts[counters]).encode(), path, _COUNTED)
    return Journal(**{name: parts[name] for name in _PARTS})


def instant(root: Path) -> tuple[bytes | None, bytes | None]:
    """Differs before and after a change of refs begins or ends to show."""
    return read(root / _JOURNAL), read(root / _COUNTERS)


def write_journal(journal: Journal, root: Path, *, durable: bool) -> None:
    place = root / _JOURNAL
    temporary = root / temporary_name()
    write(temporary, json_text(vars(journal)).encode(), sync=durable)
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
        if left.is_dir():  # an index that was being rebuilt
            for file in left.iterdir():
                file.unlink()
            left.rmdir()
        else:
            left.unlink()


def carry_out(journal: Journal, root: Path, *, durable: bool) -> None:
    """Bring the files up to the journal. Doing it twice is doing it once."""
    touched = {root, root / "cas"}
    for file, lines in journal.lines.items():
        if journal.forget and file in (MOVES, HISTORY):
            continue  # written as a whole below
        path = root / file
        path.parent.mkdir(parents=True, exist_ok=True)
        _append(path, lines, length=journal.lengths[file], durable=durable)
        touched.add(path.parent)
    for temporary, final in journal.nodes.values():
        if (root / temporary).exists():
            (root / final).parent.mkdir(exist_ok=True)
            (root / temporary).replace(root / final)
            touched.add((root / final).parent)
    if journal.forget:
        kept = "".join(f"{json_text(move._asdict())}\n" for move in moves(journal, root))
        replace(root / MOVES, kept.encode(), root=root, sync=durable)
        if HISTORY in journal.lines or (root / HISTORY).exists():
            replace(root / HISTORY, history(journal, read(root / HISTORY) or b""), root=root, sync=durable)
    for file, edits in journal.maps.items():
        entries = read_map(root / file)
        if (changed := edit_map(entries, edits)) != entries:
            replace(root / file, map_text(changed).encode(), root=root, sync=durable)
    for name, entry in journal.refs.items():
        path = ref_path(root, name)
        if entry is None:
            path.unlink(missing_ok=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            replace(path, json_text(entry).encode(), root=root, sync=durable)
        touched.update(folder for folder in path.parents if root in folder.parents and folder.exists())
    if journal.counters != journal.before:
        replace(root / _COUNTERS, json_text(journal.counters).encode(), root=root, sync=durable)
    if durable:
        for folder in touched:
            sync(folder)
    (root / _JOURNAL).unlink()


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


def _trim(path: Path, *, shared: bool) -> tuple[int, bool]:
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
    kept = []
    for line in data.splitlines():
        ending = parse_ending(line) if gone else None
        if line not in added and not (ending and ending.thread in gone):
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
        with path.open("rb") as file:
            _seek_beyond(file, after)
            for raw in file:
                # A line without its end is still being written, or never was.
                if not raw.endswith(b"\n"):
                    break
                entry = parse_entry(raw, path, kinds)
                if after < entry["seq"] <= journal.before[kind]:
                    yield entry
    for text in journal.lines.get(name, ()):
        if text and (entry := json.loads(text))["seq"] > after:
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
