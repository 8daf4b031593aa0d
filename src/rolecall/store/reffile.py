"""The files that hold refs: YAML maps and the history of ended threads, which are shared with the predecessor, and one
file of our own for each ref. This module knows the names and formats of these files; `refview` combines them."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rolecall.errors import UsageError
from rolecall.store.backend import is_time
from rolecall.store.disk import damaged_file_error, read
from rolecall.store.ids import is_node_id, is_thread_id
from rolecall.store.lazy import Module

if TYPE_CHECKING:
    import yaml
else:
    yaml = Module("yaml")  # the maps that we write need no parser

THREADS = "threads.yaml"
HISTORY = "history.jsonl"

REASON = {"completed": "completed", "failed": "failed", "killed": "cancelled", "discarded": "cancelled"}
"""The reason that is written in a history line for each status of an ended thread."""
STATUS = {"completed": "completed", "failed": "failed", "cancelled": "killed", None: "completed"}

_ENTRY = re.compile(r'(?:"([\w@.$/-]+)"|([A-Za-z0-9][\w.$/-]*)): +(?:"([0-9A-Z]{13})"|([0-9A-Z]{13}))')


def registry_file(root: Path) -> str:
    """Return the name of the file that maps workflow names to nodes. The predecessor has used two names for it."""
    return "workflows.yaml" if (root / "workflows.yaml").exists() else "registry.yaml"


def read_map(path: Path) -> dict[str, str]:
    """Read a flat YAML map from names to node ids. Every scalar is read as text, because an id can look like a
    number."""
    data = read(path)
    if data is None:
        return {}
    try:
        text = data.decode()
    except UnicodeDecodeError as exc:
        raise damaged_file_error(path, f"line {data.count(10, 0, exc.start) + 1} is not UTF-8") from exc
    found: dict[str, str] = {}
    for line in text.splitlines():
        match = _ENTRY.fullmatch(line.rstrip())
        if match is None or not is_node_id(match[3] or match[4]):
            break
        found[match[1] or match[2]] = match[3] or match[4]
    else:
        return found

    # The predecessor or a person might have written any other YAML, which takes longer to parse.
    try:
        top = yaml.compose(text, Loader=getattr(yaml, "CBaseLoader", yaml.BaseLoader))
    except yaml.YAMLError as exc:
        mark = getattr(exc, "problem_mark", None)
        number = mark.line + 1 if mark else 1
        raise damaged_file_error(path, f"line {number}: {getattr(exc, 'problem', exc)}") from exc
    if top is None:
        return {}
    if not isinstance(top, yaml.MappingNode):
        raise damaged_file_error(path, "line 1: it is not a map from name to node id")
    found = {}
    for key, value in top.value:
        if not isinstance(key, yaml.ScalarNode) or not is_node_id(str(value.value)):
            raise damaged_file_error(path, f"line {key.start_mark.line + 1}: it is not a name with a node id")
        found[key.value] = value.value
    return found


def edit_map(entries: Mapping[str, str], edits: Mapping[str, str | None]) -> dict[str, str]:
    return {key: value for key, value in {**entries, **edits}.items() if value is not None}


def map_text(entries: Mapping[str, str]) -> str:
    """Return YAML that any parser reads. JSON strings are valid YAML strings."""
    lines = [f"{json.dumps(key)}: {json.dumps(value)}\n" for key, value in sorted(entries.items())]
    return "".join(lines) or "{}\n"


class Ending(NamedTuple):
    """A line of `history.jsonl`, which says how a thread ended."""

    thread: str
    workflow: str | None
    head: str
    completedAt: int
    reason: str | None


def parse_ending(line: bytes) -> Ending | None:
    """Parse a line of `history.jsonl`. Return None if the line does not say how a thread ended."""
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


def ref_file(name: str) -> str:
    """Return the path of a ref's file, relative to the store folder."""
    segments = name.split("/")
    if any(part in ("", ".", "..") or "\0" in part for part in segments):
        raise UsageError(f"{name!r} is not a ref name", hint="Join non-empty segments by /.")
    return f"{_ref_folder(segments[:-1])}{segments[-1]}.json"


def _ref_folder(segments: list[str]) -> str:
    # A folder `a.json` would collide with the file of the ref `a`; ref names contain no plus sign.
    return "".join(f"{part}+/" if part.endswith(".json") else f"{part}/" for part in ["refs", *segments])


def ref_name(file: str) -> str:
    """Return the name of the ref that a file contains."""
    return file.removeprefix("refs/").removesuffix(".json").replace("+/", "/")


def ref_names(root: Path, prefix: str) -> Iterator[str]:
    """Yield the names of refs that have a file of their own. Only folders that match `prefix` are opened."""
    waiting = [_ref_folder([part for part in prefix.split("/")[:-1] if part])]
    while waiting:
        place = waiting.pop()
        if not (root / place).is_dir():
            continue
        with os.scandir(root / place) as entries:
            for entry in entries:
                if entry.is_dir():
                    waiting.append(f"{place}{entry.name}/")
                elif entry.name.endswith(".json"):
                    yield ref_name(place + entry.name)
