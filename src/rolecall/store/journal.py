"""The journal: a change to the files, which takes effect once `journal.json` is in place.

It is planned line by line, written, and then carried out, which can be repeated safely. Until then, readers overlay it
on the files. It knows nothing about nodes and refs: `nodefile` and `refview` plan into it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rolecall.store import disk
from rolecall.store.backend import Moved, is_time
from rolecall.store.disk import is_count, is_text, json_text, parse_entry
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
        {"seq": is_count, "stream": is_text, "kind": is_text, "body": disk.is_object, "at": is_time},
    ),
}


@dataclass
class Journal:
    """A change to the files; readers overlay the same value on the files they find."""

    before: dict[str, int]
    counters: dict[str, int]
    nodes: dict[str, list[str]] = field(default_factory=dict)
    """Maps an id to the temporary file of the node and its final path."""
    lengths: dict[str, int] = field(default_factory=dict)
    lines: dict[str, list[str]] = field(default_factory=dict)
    """The previous length of each file that grows, and the lines to append."""
    maps: dict[str, dict[str, str | None]] = field(default_factory=dict)
    """For each YAML file, the entries to set, or to remove if None."""
    refs: dict[str, dict[str, Any] | None] = field(default_factory=dict)
    forget: list[str] = field(default_factory=list)
    """Names of refs whose history is removed."""

    @property
    def changes_nothing(self) -> bool:
        return self == Journal(self.before, self.before)

    def add_line(self, root: Path, file: str, line: str, *, shared: bool = False) -> None:
        """Append a line to a file. `shared` means that the predecessor appends to it too."""
        if file not in self.lines:
            self.lengths[file], is_whole = _trim(root / file, shared=shared)
            self.lines[file] = [] if is_whole else [""]
        self.lines[file].append(line)


def empty_journal(root: Path) -> Journal:
    """An empty journal to plan into."""
    path = root / _COUNTERS
    data = disk.read(path)
    if data is None:
        counters = {"change": 0, "move": _last_number(root / MOVES), "event": _last_number(root / EVENTS)}
    else:
        counters = parse_entry(data, path, _COUNTED)
    return Journal(counters, dict(counters))


def _last_number(path: Path) -> int:
    lines = [line for line in (disk.read(path) or b"").splitlines(keepends=True) if line.endswith(b"\n")]
    return int(parse_entry(lines[-1], path, {"seq": is_count})["seq"]) if lines else 0


def read_journal(root: Path) -> Journal | None:
    path = root / _JOURNAL
    data = disk.read(path)
    # A durable journal was on disk before it got its name. If a power failure emptied the journal, its change was not
    # durable, so it may be lost.
    if data is None or not data.strip(b"\0"):
        return None
    try:
        return Journal(**json.loads(data))
    except (ValueError, TypeError) as exc:
        raise disk.damaged_file(path, str(exc)) from exc


def instant(root: Path) -> tuple[bytes | None, bytes | None]:
    """A value that changes whenever a change of refs takes effect or is finished."""
    return disk.read(root / _JOURNAL), disk.read(root / _COUNTERS)


def write_journal(journal: Journal, root: Path, *, durable: bool) -> None:
    place = root / _JOURNAL
    temporary = root / disk.temporary_name()
    disk.write(temporary, json_text(vars(journal)).encode(), sync=durable)
    if durable:
        disk.sync(temporary.parent)
    try:
        temporary.replace(place)
        if durable:
            disk.sync(root)
    except BaseException:
        place.unlink(missing_ok=True)
        raise


def finish_journal(root: Path, *, first: bool) -> None:
    """Carry out the journal of a killed writer; then, or if this is the `first` write, clean up."""
    journal = read_journal(root)
    if journal is not None:
        carry_out(journal, root, durable=True)
    if journal is not None or first:
        (root / _JOURNAL).unlink(missing_ok=True)
        sweep(root)


def sweep(root: Path) -> None:
    """Remove temporary files. With the lock held and no journal, nobody uses them."""
    folder = root / ".tmp"
    if (root / _JOURNAL).exists() or not folder.is_dir():
        return
    for left in folder.iterdir():
        if left.is_dir():  # an index whose rebuild was interrupted
            for file in left.iterdir():
                file.unlink()
            left.rmdir()
        else:
            left.unlink()


def carry_out(journal: Journal, root: Path, *, durable: bool) -> None:
    """Bring the files up to date with the journal. Doing this twice has no further effect."""
    touched = {root, root / "cas"}
    for file, lines in journal.lines.items():
        if journal.forget and file in (MOVES, HISTORY):
            continue  # rewritten as a whole below
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
        disk.replace(root / MOVES, kept.encode(), root=root, sync=durable)
        if HISTORY in journal.lines or (root / HISTORY).exists():
            disk.replace(
                root / HISTORY, history(journal, disk.read(root / HISTORY) or b""), root=root, sync=durable
            )
    for file, edits in journal.maps.items():
        entries = read_map(root / file)
        if (changed := edit_map(entries, edits)) != entries:
            disk.replace(root / file, map_text(changed).encode(), root=root, sync=durable)
    for name, entry in journal.refs.items():
        path = ref_path(root, name)
        if entry is None:
            path.unlink(missing_ok=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            disk.replace(path, json_text(entry).encode(), root=root, sync=durable)
        touched.update(folder for folder in path.parents if root in folder.parents and folder.exists())
    if journal.counters != journal.before:
        disk.replace(root / _COUNTERS, json_text(journal.counters).encode(), root=root, sync=durable)
    if durable:
        for folder in touched:
            disk.sync(folder)
    (root / _JOURNAL).unlink()


def _append(path: Path, lines: list[str], *, length: int, durable: bool) -> None:
    """Append lines to a file that was `length` bytes long, unless they are already there."""
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
            disk.write_all(file, text)
        if durable:
            os.fsync(file)
    finally:
        os.close(file)


def _trim(path: Path, *, shared: bool) -> tuple[int, bool]:
    """The length of a growing file, and whether its last line is complete. In a file that only we append to, a last
    line without a newline was never finished and is cut off."""
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
    """The new content of `history.jsonl`, given its current `data`, once the journal is carried out."""
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
    for line in read_numbered(journal, root, kind="move", after=after):
        if line["name"] not in journal.forget or line["seq"] > journal.before["move"]:
            yield Moved(line["seq"], line["name"], line["target"], line["at"])


def read_numbered(
    journal: Journal, root: Path, *, kind: Literal["move", "event"], after: int
) -> Iterator[dict[str, Any]]:
    """The lines of a numbered file with a `seq` above `after`, including those in the journal."""
    name, kinds = _NUMBERED[kind]
    path = root / name
    if path.exists():
        with path.open("rb") as file:
            for raw in file:
                # A line without a newline is still being written, or was never finished.
                if not raw.endswith(b"\n"):
                    break
                entry = parse_entry(raw, path, kinds)
                if after < entry["seq"] <= journal.before[kind]:
                    yield entry
    for text in journal.lines.get(name, ()):
        if text and (entry := json.loads(text))["seq"] > after:
            yield entry
