"""The files that hold refs, each by itself: YAML maps, the history of ended threads, one file per ref.

Here is how they are named, read and spelled. What they mean together is `refview`'s, and what a change
under way adds to them `journal`'s; both stand above. Below is `disk`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rolecall.errors import UsageError
from rolecall.store.backend import is_time
from rolecall.store.disk import damage_met, damaged_file, has_kinds, is_count, is_object, parsed, read
from rolecall.store.ids import is_node_id, is_thread_id

THREADS = "threads.yaml"
HISTORY = "history.jsonl"

REASON = {"completed": "completed", "failed": "failed", "killed": "cancelled", "discarded": "cancelled"}
"""How a thread ended: our status to the reason in its line."""
STATUS = {"completed": "completed", "failed": "failed", "cancelled": "killed", None: "completed"}

_ENTRY = re.compile(r'(?:"([\w@.$/-]+)"|([A-Za-z0-9][\w.$/-]*)): +(?:"([0-9A-Z]{13})"|([0-9A-Z]{13}))')


_REF = {
    "target": lambda node: node is None or (isinstance(node, str) and is_node_id(node)),
    "state": is_object,
    "version": is_count,
    "updated": is_time,
}


def registry_file(root: Path) -> str:
    """The map of workflow names; the predecessor has called it both ways."""
    return "workflows.yaml" if (root / "workflows.yaml").exists() else "registry.yaml"


def read_map(path: Path) -> dict[str, str]:
    """A flat YAML map from name to node id. Every scalar is text: an id may look like a number."""
    data = read(path)
    if data is None:
        return {}
    try:
        text = data.decode()
    except UnicodeDecodeError as exc:
        raise damaged_file(path, f"line {data.count(10, 0, exc.start) + 1} is not UTF-8") from exc
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        match = _ENTRY.fullmatch(line.rstrip())
        if match is None:
            return _read_any_map(text, path)
        value = match[3] or match[4]
        if not is_node_id(value):
            raise damaged_file(path, f"line {number}: {value!r} is not a node id")
        found[match[1] or match[2]] = value
    return found


def _read_any_map(text: str, path: Path) -> dict[str, str]:
    import yaml

    try:
        top = yaml.compose(text, Loader=getattr(yaml, "CBaseLoader", yaml.BaseLoader))
    except yaml.MarkedYAMLError as exc:
        line = exc.problem_mark.line + 1 if exc.problem_mark else 1
        raise damaged_file(path, f"line {line}: {exc.problem}") from exc
    except yaml.YAMLError as exc:
        raise damaged_file(path, str(exc)) from exc
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


def edited(entries: Mapping[str, str], edits: Mapping[str, str | None]) -> dict[str, str]:
    return {key: value for key, value in {**entries, **edits}.items() if value is not None}


def map_text(entries: Mapping[str, str]) -> str:
    """YAML that any parser reads: JSON strings are YAML strings."""
    lines = [f"{json.dumps(key)}: {json.dumps(value)}\n" for key, value in sorted(entries.items())]
    return "".join(lines) or "{}\n"


def ended_line(line: bytes) -> dict[str, Any] | None:
    """A line of `history.jsonl`, or None where it does not tell how a thread ended."""
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    if not isinstance(entry, dict) or not is_thread_id(str(entry.get("thread"))):
        return None
    if not is_node_id(str(entry.get("head"))) or not is_time(entry.get("completedAt")):
        return None
    reason, workflow = entry.get("reason"), entry.get("workflow")
    return {
        "thread": entry["thread"],
        "head": entry["head"],
        "completedAt": int(entry["completedAt"]),
        "reason": reason if isinstance(reason, str) else None,
        "workflow": workflow if isinstance(workflow, str) else None,
    }


def ref_path(root: Path, name: str) -> Path:
    segments = name.split("/")
    if any(part in ("", ".", "..") or "\0" in part for part in segments):
        raise UsageError(f"{name!r} is not a ref name", hint="Join non-empty segments by /.")
    return _ref_folder(root, segments[:-1]) / f"{segments[-1]}.json"


def _ref_folder(root: Path, segments: list[str]) -> Path:
    # A folder `a.json` could not live beside the file of the ref `a`; no name holds a plus sign.
    return root.joinpath("refs", *(f"{part}+" if part.endswith(".json") else part for part in segments))


def read_ref(root: Path, name: str) -> dict[str, Any] | None:
    """What is kept of a ref in a file of its own."""
    path = ref_path(root, name)
    data = read(path)
    if data is None:
        return None
    entry = parsed(data, path)
    if not has_kinds(entry, _REF):
        raise damaged_file(path, "it is not a ref")
    return dict(entry)


def ref_names(root: Path, prefix: str) -> Iterator[str]:
    """Names of refs that have a file of their own; only folders that `prefix` allows are opened."""
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
    yield from _bad_ended_lines(root / HISTORY)
    for file in (THREADS, registry_file(root)):
        yield from damage_met(lambda file=file: read_map(root / file))  # type: ignore[misc]
    for name in ref_names(root, ""):
        yield from damage_met(lambda name=name: read_ref(root, name))  # type: ignore[misc]


def _bad_ended_lines(path: Path) -> Iterator[str]:
    for number, raw in enumerate((read(path) or b"").splitlines(), 1):
        line = ended_line(raw)
        if line is None and raw.strip():
            yield f"{path}: line {number} does not tell how a thread ended"
        elif line is not None and line["reason"] not in STATUS:
            yield f"{path}: line {number} has the unknown reason {line['reason']!r}"
