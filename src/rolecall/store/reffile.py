"""The files that hold refs: YAML maps and the history of ended threads, shared with the predecessor, and one file of
our own per ref. This module names, reads and writes them; `refview` combines them.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rolecall.errors import UsageError
from rolecall.store.backend import is_time
from rolecall.store.disk import damaged_file, find_damage, is_count, is_object, parse_entry, read
from rolecall.store.ids import is_node_id, is_thread_id

THREADS = "threads.yaml"
HISTORY = "history.jsonl"

REASON = {"completed": "completed", "failed": "failed", "killed": "cancelled", "discarded": "cancelled"}
"""Maps our status of an ended thread to the reason in its history line."""
STATUS = {"completed": "completed", "failed": "failed", "cancelled": "killed", None: "completed"}

_ENTRY = re.compile(r'(?:"([\w@.$/-]+)"|([A-Za-z0-9][\w.$/-]*)): +(?:"([0-9A-Z]{13})"|([0-9A-Z]{13}))')
_REF = {
    "target": lambda node: node is None or (isinstance(node, str) and is_node_id(node)),
    "state": is_object,
    "version": is_count,
    "updated": is_time,
}


def registry_file(root: Path) -> str:
    """The file that maps workflow names; the predecessor has used both names."""
    return "workflows.yaml" if (root / "workflows.yaml").exists() else "registry.yaml"


def read_map(path: Path) -> dict[str, str]:
    """Read a flat YAML map from name to node id. Every scalar is text, because an id may look like a number."""
    data = read(path)
    if data is None:
        return {}
    try:
        text = data.decode()
    except UnicodeDecodeError as exc:
        raise damaged_file(path, f"line {data.count(10, 0, exc.start) + 1} is not UTF-8") from exc
    found: dict[str, str] = {}
    for line in text.splitlines():
        match = _ENTRY.fullmatch(line.rstrip())
        if match is None or not is_node_id(match[3] or match[4]):
            return _parse_yaml_map(text, path)
        found[match[1] or match[2]] = match[3] or match[4]
    return found


def _parse_yaml_map(text: str, path: Path) -> dict[str, str]:
    """Parse a map in any YAML that the predecessor or a person may have written; slow."""
    import yaml  # slow to import, and the maps that we write need no parser

    try:
        top = yaml.compose(text, Loader=getattr(yaml, "CBaseLoader", yaml.BaseLoader))
    except yaml.YAMLError as exc:
        mark = getattr(exc, "problem_mark", None)
        line = mark.line + 1 if mark else 1
        raise damaged_file(path, f"line {line}: {getattr(exc, 'problem', exc)}") from exc
    if top is None:
        return {}
    if not isinstance(top, yaml.MappingNode):
        raise damaged_file(path, "line 1: it is not a map from name to node id")
    found: dict[str, str] = {}
    for key, value in top.value:
        if not isinstance(key, yaml.ScalarNode) or not is_node_id(str(value.value)):
            raise damaged_file(path, f"line {key.start_mark.line + 1}: it is not a name with a node id")
        found[key.value] = value.value
    return found


def edit_map(entries: Mapping[str, str], edits: Mapping[str, str | None]) -> dict[str, str]:
    return {key: value for key, value in {**entries, **edits}.items() if value is not None}


def map_text(entries: Mapping[str, str]) -> str:
    """Write YAML that any parser reads; JSON strings are valid YAML strings."""
    lines = [f"{json.dumps(key)}: {json.dumps(value)}\n" for key, value in sorted(entries.items())]
    return "".join(lines) or "{}\n"


class Ending(NamedTuple):
    """A line of `history.jsonl`: how a thread ended."""

    thread: str
    workflow: str | None
    head: str
    completedAt: int
    reason: str | None


def parse_ending(line: bytes) -> Ending | None:
    """Parse a line of `history.jsonl`; None if it does not describe how a thread ended."""
    try:
        entry = json.loads(line)
        thread, head, at = entry["thread"], entry["head"], entry["completedAt"]
    except (ValueError, TypeError, LookupError):
        return None
    if not is_thread_id(str(thread)) or not is_node_id(str(head)) or not is_time(at):
        return None
    workflow, reason = (
        entry.get(key) if isinstance(entry.get(key), str) else None for key in ("workflow", "reason")
    )
    return Ending(thread, workflow, head, int(at), reason)


def ref_path(root: Path, name: str) -> Path:
    segments = name.split("/")
    if any(part in ("", ".", "..") or "\0" in part for part in segments):
        raise UsageError(f"{name!r} is not a ref name", hint="Join non-empty segments by /.")
    return _ref_folder(root, segments[:-1]) / f"{segments[-1]}.json"


def _ref_folder(root: Path, segments: list[str]) -> Path:
    # A folder `a.json` would collide with the file of the ref `a`; ref names contain no plus sign.
    return root.joinpath("refs", *(f"{part}+" if part.endswith(".json") else part for part in segments))


def read_ref(root: Path, name: str) -> dict[str, Any] | None:
    """The content of a ref's own file."""
    path = ref_path(root, name)
    data = read(path)
    return None if data is None else parse_entry(data, path, _REF)


def ref_names(root: Path, prefix: str) -> Iterator[str]:
    """Names of refs with their own file; only folders that match `prefix` are opened."""
    base, _, _ = prefix.rpartition("/")
    start = _ref_folder(root, [part for part in base.split("/") if part])
    waiting = [(start, f"{base}/" if base else "")]
    while waiting:
        place, name = waiting.pop()
        if not place.is_dir():
            continue
        with os.scandir(place) as entries:
            for entry in entries:
                if entry.is_dir():
                    waiting.append((Path(entry.path), f"{name}{entry.name.removesuffix('+')}/"))
                elif entry.name.endswith(".json"):
                    yield name + entry.name[:-5]


def problems(root: Path) -> Iterator[str]:
    path = root / HISTORY
    for number, raw in enumerate((read(path) or b"").splitlines(), 1):
        ending = parse_ending(raw)
        if ending is None and raw.strip():
            yield f"{path}: line {number} does not tell how a thread ended"
        elif ending is not None and ending.reason not in STATUS:
            yield f"{path}: line {number} has the unknown reason {ending.reason!r}"
    for file in (THREADS, registry_file(root)):
        yield from find_damage(lambda file=file: read_map(root / file))  # type: ignore[misc]
    for name in ref_names(root, ""):
        yield from find_damage(lambda name=name: read_ref(root, name))  # type: ignore[misc]
