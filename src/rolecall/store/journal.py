"""The journal: a change to the files of a store folder, which takes effect once `journal.json` is in place.

A change is planned, written, and then carried out; carrying it out can be repeated safely. `Journal.read` returns a
file as it is after the change, so planning sees its own writes, and readers see the change of a writer that was killed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from rolecall.store import disk
from rolecall.store.disk import json_text
from rolecall.store.reffile import edit_map, map_text, read_map

_JOURNAL = "journal.json"
COUNTERS = "counters.json"


@dataclass
class Journal:
    """A change to the files of the folder `root`. It is empty until something is planned. Files are named relative to
    `root`."""

    root: Path
    nodes: dict[str, list[str]] = field(default_factory=dict)
    """For the id of each new node, the temporary file and the final path."""
    texts: dict[str, str | None] = field(default_factory=dict)
    """The new contents of whole files; None removes the file."""
    lines: dict[str, list[str]] = field(default_factory=dict)
    lengths: dict[str, int] = field(default_factory=dict)
    """The lines to append to growing files (`lines`), and the previous lengths of those files."""
    forgotten: dict[str, list[list[str]]] = field(default_factory=dict)
    """For each growing file, pairs of a field and a value. Lines with that value in that field are removed, even if the
    predecessor wrote them."""
    entries: dict[str, dict[str, str | None]] = field(default_factory=dict)
    """For each YAML map that the predecessor also writes, the entries to set, or to remove if the value is None."""

    @property
    def is_empty(self) -> bool:
        return not (self.nodes or self.texts or self.lines or self.forgotten or self.entries)

    # -- planning --

    def read(self, file: str) -> bytes | None:
        """Return the content of a file after the change. Changes to single entries of maps are not applied; the caller
        applies them."""
        if file in self.texts:
            text = self.texts[file]
            return None if text is None else text.encode()
        data, added = disk.read(self.root / file), self._join_lines(file)
        if file in self.forgotten and data is not None:
            new = {line.encode() for line in self.lines.get(file, ())}
            kept = (line for line in data.splitlines() if line not in new and not self._forgets(file, line))
            return b"".join(line + b"\n" for line in kept) + added
        if file not in self.lines:
            return data
        data, length = data or b"", self.lengths[file]
        return data[:length] + _complete(data[length:], added)

    def read_lines(self, file: str) -> Iterator[bytes]:
        """Return the complete lines of a file. A last line without a newline was never finished."""
        return (line for line in (self.read(file) or b"").splitlines(keepends=True) if line.endswith(b"\n"))

    def append(self, file: str, line: str, *, shared: bool = False) -> None:
        """Append a line to a file. With `shared`, the predecessor appends to the file, too."""
        if file not in self.lines:
            self.lengths[file], is_whole = _trim(self.root / file, shared=shared)
            self.lines[file] = [] if is_whole else [""]
        self.lines[file].append(line)

    def forget(self, file: str, field: str, value: str, *, shared: bool = False) -> None:
        """Remove from a growing file the lines that have this value in this field."""
        _trim(self.root / file, shared=shared)
        self.forgotten.setdefault(file, []).append([field, value])
        if file in self.lines:
            self.lines[file] = [line for line in self.lines[file] if not self._forgets(file, line.encode())]

    def _forgets(self, file: str, line: bytes) -> bool:
        for key, value in self.forgotten[file]:
            with suppress(ValueError, TypeError, LookupError):  # a line that is not ours can contain anything
                if value.encode() in line and json.loads(line)[key] == value:
                    return True
        return False

    def _join_lines(self, file: str) -> bytes:
        return "".join(f"{line}\n" for line in self.lines.get(file, ())).encode()

    # -- taking effect --

    def write(self, *, durable: bool) -> None:
        """Put the journal in place, which makes the change take effect."""
        place, temporary = self.root / _JOURNAL, self.root / disk.temporary_name()
        plan = {key: value for key, value in vars(self).items() if key != "root"}
        disk.write(temporary, json_text(plan).encode(), sync=durable)
        if durable:
            disk.sync(temporary.parent)
        try:
            temporary.replace(place)
            if durable:
                disk.sync(self.root)
        except BaseException:
            place.unlink(missing_ok=True)
            raise

    def carry_out(self, *, durable: bool) -> None:
        """Bring the files up to date. Doing so twice has no further effect."""
        touched = {self.root, self.root / "cas"}
        for file in self.lines.keys() - self.forgotten.keys():
            _append(self.root / file, self._join_lines(file), length=self.lengths[file], durable=durable)
            touched.add((self.root / file).parent)
        for temporary, final in self.nodes.values():
            if (self.root / temporary).exists():
                (self.root / final).parent.mkdir(exist_ok=True)
                (self.root / temporary).replace(self.root / final)
                touched.add((self.root / final).parent)
        new = {file: self.read(file) for file in (*self.texts, *self.forgotten)}
        for file, edits in self.entries.items():
            before = read_map(self.root / file)
            if (after := edit_map(before, edits)) != before:
                new[file] = map_text(after).encode()
        for file, data in new.items():
            path = self.root / file
            if data is None:
                path.unlink(missing_ok=True)
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                disk.replace(path, data, root=self.root, sync=durable)
            touched.update(folder for folder in path.parents if self.root in folder.parents)
        if durable:
            for folder in touched:
                if folder.exists():
                    disk.sync(folder)
        (self.root / _JOURNAL).unlink()


def read_journal(root: Path) -> Journal | None:
    """Return the journal that is to be carried out, or None if there is none."""
    path = root / _JOURNAL
    data = disk.read(path)
    # A durable journal was on disk before it got its name. If a power failure emptied the journal, its change was not
    # durable, so it is acceptable to lose the change.
    if data is None or not data.strip(b"\0"):
        return None
    try:
        return Journal(root, **json.loads(data))
    except (ValueError, TypeError) as exc:
        raise disk.damaged_file_error(path, str(exc)) from exc


def read_marker(root: Path) -> tuple[bytes | None, bytes | None]:
    """Return a value that differs whenever a change to refs has taken effect or has been carried out."""
    return disk.read(root / _JOURNAL), disk.read(root / COUNTERS)


def finish_journal(root: Path, *, first: bool) -> None:
    """Carry out the journal of a killed writer, if there is one. Clean up afterwards, or if this is the `first`
    write."""
    journal = read_journal(root)
    if journal is not None:
        journal.carry_out(durable=True)
    if journal is not None or first:
        (root / _JOURNAL).unlink(missing_ok=True)
        sweep(root)


def sweep(root: Path) -> None:
    """Remove temporary files. While the lock is held and there is no journal, nobody uses them."""
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


def _append(path: Path, text: bytes, *, length: int, durable: bool) -> None:
    """Append to a file that was `length` bytes long, unless the text was already appended."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        size = os.fstat(file).st_size
        since = os.pread(file, size - length, length) if size > length else b""
        os.lseek(file, 0, os.SEEK_END)
        disk.write_all(file, _complete(since, text)[len(since) :])
        if durable:
            os.fsync(file)
    finally:
        os.close(file)


def _complete(since: bytes, text: bytes) -> bytes:
    """Return what must follow the original content of a file so that it contains the whole text. `since` is what was
    written after that content: part of the text by a writer that was killed, or other lines by the predecessor."""
    if since.startswith(text):
        return since
    if text.startswith(since):
        return text
    return since + (b"" if since.endswith(b"\n") else b"\n") + text


def _trim(path: Path, *, shared: bool) -> tuple[int, bool]:
    """Return the length of a growing file, and whether its last line is complete. In a file to which only we append, a
    last line without a newline was never finished, so it is cut off."""
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
