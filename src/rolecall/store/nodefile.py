"""Node files: their bytes and paths, and the two indexes next to them, one of types and one of SHA-256 hashes.

A node is in the node folder or, in the newer layout, in `nodes/` within it; both places are read. Reads include the
journal, so a node is visible as soon as its change takes effect.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from rolecall.errors import Damaged, Hint, InvalidValue
from rolecall.store import canonical
from rolecall.store.backend import Damage, NodeRecord, collision, is_time
from rolecall.store.disk import changed_ns, read, replace, temporary_name
from rolecall.store.ids import is_id_of, is_node_id
from rolecall.store.journal import Journal, read_journal, sweep

# Paths as written in a journal. Only a node folder in its usual place is ever written to.
_CAS = "cas"
_INDEX = "cas/_index"
_HASHES = "cas/_sha256"

_HEAD = b"\xa3dtype\x6d"
_PAYLOAD = b"gpayload"
_TIMESTAMP = b"itimestamp"


class NodeFolder:
    """The nodes in the folder `path`, including those that a journal in the store folder `root` is about to add."""

    def __init__(self, path: Path, *, root: Path) -> None:
        self.path = path
        self._root = root
        self._newer = path / "nodes"
        self._index = path / "_index"
        self._hashes = path / "_sha256"

    def find(self, node: str) -> Path | None:
        return next((path for path in self._places(node) if path.exists()), None)

    def _places(self, node: str) -> tuple[Path, Path]:
        return self.path / f"{node}.bin", self._newer / f"{node}.bin"

    def _pending(self) -> dict[str, Path]:
        """Return the nodes that a journal is about to put in place, with their temporary files."""
        journal = read_journal(self._root)
        nodes = journal.nodes if journal else {}
        return {node: self._root / temporary for node, (temporary, _) in nodes.items()}

    def _read(self, file: Path) -> bytes:
        """Return the content of an index file, including the lines that a journal is about to append."""
        if file.is_relative_to(self._root):
            journal = read_journal(self._root) or Journal(self._root)
            return journal.read(str(file.relative_to(self._root))) or b""
        return read(file) or b""

    def has(self, node: str) -> bool:
        return bool(self.find(node) or node in self._pending() or self.find(node))

    def record(self, node: str) -> NodeRecord | None:
        # While a journal or the predecessor moves a file into place, the file can be missed once, but not twice.
        for _ in range(2):
            path = self.find(node) or self._pending().get(node)
            if path is not None and (data := read(path)) is not None:
                return parse_node(data, path, node=node)._replace(sha256=self._sha256(node))
        return None

    def _sha256(self, node: str) -> bytes | None:
        data = b"\n" + self._read(self._hashes / node[:2])
        at = data.rfind(b"\n" + node.encode() + b" ")
        try:
            return bytes.fromhex(data[at + 15 : at + 79].decode("ascii", "replace")) if at >= 0 else None
        except ValueError:
            return None

    def of_type(self, type_id: str) -> Iterator[str]:
        """Yield the ids of the nodes of one type, oldest first."""
        if not self._index.is_dir():
            yield from (node for _, node in sorted(self._by_type().get(type_id, [])))
            return
        pending = self._pending()
        for node in dict.fromkeys(self._list_indexed(type_id)):
            if self.find(node) is not None or node in pending:
                yield node

    def _list_indexed(self, type_id: str) -> Iterator[str]:
        if type_id.encode() in self._read(self._index / "_meta").split():
            yield type_id
        words = self._read(self._index / type_id).decode("ascii", "replace").split()
        yield from filter(is_node_id, words)

    def _by_type(self) -> dict[str, list[tuple[int, str]]]:
        """Return the times and ids of the readable nodes of each type. Nodes that are their own type are also listed
        under `_meta`."""
        members: dict[str, list[tuple[int, str]]] = {}
        for item in self.scan(hashes=False):
            if isinstance(item, NodeRecord):  # a damaged node has no known type
                members.setdefault(item.type, []).append((item.created, item.id))
                if item.type == item.id:
                    members.setdefault("_meta", []).append((item.created, item.id))
        return members

    def listing(self) -> Iterator[tuple[str, Path]]:
        """Yield every node file, each id once, including the files that a journal is about to put in place."""
        pending = self._pending()
        for folder in (self._newer, self.path):
            if not folder.is_dir():
                continue
            with os.scandir(folder) as entries:
                for entry in entries:
                    node = _node_of(entry.name)
                    if node is None or (folder == self.path and (self._newer / entry.name).exists()):
                        continue
                    pending.pop(node, None)
                    yield node, Path(entry.path)
        yield from pending.items()

    def latest_put(self) -> int:
        """Return the time of the latest put by a writer that took the lock; the lock file keeps this time."""
        return changed_ns(self._root / ".lock")

    def scan(self, *, hashes: bool) -> Iterator[NodeRecord | Damage]:
        """Yield every node, then those put in the meantime, which a directory listing in progress can miss."""
        start = self.latest_put()
        young: set[str] = set()
        for node, path in self.listing():
            if changed_ns(path) > start:
                young.add(node)
            yield from self._load(node, path, hashes=hashes)
        if self.latest_put() != start:
            for node, path in self.listing():
                if node not in young and changed_ns(path) > start:
                    yield from self._load(node, path, hashes=hashes)

    def _load(self, node: str, path: Path, *, hashes: bool) -> Iterator[NodeRecord | Damage]:
        data = read(path)
        if data is None:  # the file was moved into place, or deleted
            path = self.find(node) or path
            data = read(path)
        if data is None:
            return
        try:
            record = parse_node(data, path, node=node)
        except Damaged as exc:
            yield Damage(node, exc.message)
        else:
            yield record._replace(sha256=self._sha256(node)) if hashes else record

    def times(self) -> Iterator[tuple[str, int]]:
        """Yield when each node was last put, which is the modification time of its file."""
        for node, path in self.listing():
            at = changed_ns(path) or changed_ns(self.find(node) or path)
            if at:
                yield node, at

    def compare(self, records: Sequence[NodeRecord]) -> tuple[list[NodeRecord], list[Path]]:
        """Return the new records, and the files of the records that are already stored with the same bytes."""
        fresh: list[NodeRecord] = []
        known: list[Path] = []
        for record in {record.id: record for record in records}.values():
            path = self.find(record.id)
            if path is None:
                fresh.append(record)
                continue
            stored = parse_node(path.read_bytes(), path, node=record.id)
            if (stored.type, stored.data) != (record.type, record.data):
                raise collision(record, self._sha256(record.id))
            known.append(path)
        return fresh, known

    def plan(self, journal: Journal, fresh: Sequence[NodeRecord]) -> None:
        """Plan the files and the index lines of new nodes."""
        if fresh and not self._index.is_dir():
            self.rebuild_index()
        folder = f"{_CAS}/nodes" if self._newer.is_dir() else _CAS
        for record in fresh:
            journal.nodes[record.id] = [temporary_name(), f"{folder}/{record.id}.bin"]
            for type_id in (record.type, "_meta") if record.type == record.id else (record.type,):
                journal.append(f"{_INDEX}/{type_id}", record.id, shared=True)
            if record.sha256 is not None:
                line = f"{record.id} {record.sha256.hex()}"
                journal.append(f"{_HASHES}/{record.id[:2]}", line)

    def delete(self, nodes: Iterable[str]) -> int:
        doomed = set(nodes)
        found = 0
        for node in doomed:
            paths = [path for path in self._places(node) if path.exists()]
            found += bool(paths)
            for path in paths:
                path.unlink()
        gone = {node.encode() for node in doomed}
        folders = [folder for folder in (self._index, self._hashes) if folder.is_dir()]
        for path in [path for folder in folders for path in folder.iterdir()]:
            lines = path.read_bytes().splitlines()
            kept = [line for line in lines if line[:13] not in gone]
            if not kept:
                path.unlink()
            elif len(kept) < len(lines):
                replace(path, b"\n".join(kept) + b"\n", root=self._root, sync=False)
        return found

    def rebuild_index(self) -> None:
        fresh = self._root / temporary_name()
        fresh.mkdir(parents=True)
        for type_id, members in self._by_type().items():
            (fresh / type_id).write_text("".join(f"{node}\n" for _, node in sorted(members)))
        if self._index.is_dir():
            self._index.replace(self._root / temporary_name())
        fresh.replace(self._index)
        sweep(self._root)

    def problems(self) -> Iterator[str]:
        for folder in (self.path, self._newer):
            for name in sorted(os.listdir(folder)) if folder.is_dir() else ():
                # The predecessor keeps its variables in files of its own in this folder.
                known = name.startswith(("_", "variables.db")) or (folder == self.path and name == "nodes")
                if not known and _node_of(name) is None:
                    yield f"{folder / name}: not the name of a node file"
        if not self._index.is_dir():
            return
        for type_id, members in self._by_type().items():
            # Read the index after the nodes, so that it includes the new nodes of a writer.
            listed = set(self._list_indexed(type_id))
            missed = [node for _, node in members if node not in listed and self.find(node)]
            if missed and type_id != "_meta":
                yield (
                    f"{self._index / type_id}: {len(missed)} of its nodes are missing, {missed[0]} for example; "
                    "reindex the store to rebuild it"
                )


def holds_nodes(folder: Path) -> bool:
    """Return whether `folder` is itself a node folder, without a store folder around it."""
    if (folder / "_index").is_dir():
        return True
    places = [place for place in (folder, folder / "nodes") if place.is_dir()]
    return any(_node_of(path.name) for place in places for path in place.glob("*.bin"))


def _node_of(file: str) -> str | None:
    return file[:-4] if file.endswith(".bin") and is_node_id(file[:-4]) else None


def node_bytes(record: NodeRecord) -> bytes:
    """Return the deterministic CBOR encoding of {type, payload, timestamp}, in which shorter keys come first."""
    head = _HEAD + record.type.encode() + _PAYLOAD
    return head + record.data + _TIMESTAMP + canonical.encode(record.created)


def parse_node(data: bytes, path: Path, *, node: str) -> NodeRecord:
    """Cut the record out of a node file without decoding the payload."""
    reason = "it does not begin like a node file" if data else "the file is empty"
    at = data.rfind(_TIMESTAMP)
    if data.startswith(_HEAD) and data[20:28] == _PAYLOAD and at >= 28:
        reason = "its bytes do not give its id, or its timestamp is not a time"
        try:
            created, end = canonical.decode_at(data, at + len(_TIMESTAMP))
        except (Damaged, InvalidValue):
            created, end = None, 0
        record = NodeRecord(node, data[7:20].decode("ascii", "replace"), data[28:at], created, None, None)
        if end == len(data) and is_time(created) and is_id_of(node, record.type, record.data):
            return record._replace(created=int(created))
    raise Damaged(
        f"node {node} is damaged: {path}: {reason}",
        node=node,
        hint=Hint("Restore it from a bundle that holds it", "repair_store"),
    )
