"""Projects to test on: made, looked into, and filled with what another harness would have written."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rolecall.nexus import dispatch

PLAN, TASKS, HISTORY = ".nexus/state/plan.json", ".nexus/state/tasks.json", ".nexus/history.json"


def read(project: Path, name: str) -> Any:
    """The JSON of a file of the project; None when there is none."""
    path = project / name
    return json.loads(path.read_bytes()) if path.exists() else None


def write(project: Path, name: str, content: Any, *, indent: int | None = 2) -> Path:
    """A file as another harness leaves it."""
    path = project / name
    path.parent.mkdir(parents=True, exist_ok=True)
    text = content if isinstance(content, str) else json.dumps(content, indent=indent)
    path.write_text(text, encoding="utf-8")
    return path


def call_tool(
    project: Path | str, name: str, arguments: Any = None, *, restrictions: Iterable[str] = ()
) -> Any:
    """Return the reply of a tool, decoded from JSON."""
    return json.loads(dispatch.call_json(project, name, arguments, restrictions=restrictions))


def files(project: Path) -> dict[str, bytes]:
    """Every file below a folder, with its bytes; folders end in a slash."""
    found = {}
    for path in sorted(project.rglob("*")):
        name = str(path.relative_to(project))
        found[name + ("/" if path.is_dir() else "")] = b"" if path.is_dir() else path.read_bytes()
    return found


def git(project: Path, *args: str) -> None:
    identity = ("-c", "user.name=A Person", "-c", "user.email=person@example.org")
    subprocess.run(["git", *identity, *args], cwd=project, check=True, capture_output=True)


def task(number: int, **fields: Any) -> dict[str, Any]:
    base = {"id": number, "title": f"Task {number}", "context": "Why.", "status": "pending", "deps": []}
    return {**base, **fields}


def tasks_file(
    *tasks: dict[str, Any], goal: str = "Ship it", decisions: tuple[str, ...] = ()
) -> dict[str, Any]:
    return {"goal": goal, "decisions": list(decisions), "tasks": list(tasks)}


def plan(number: int = 1, *titles: str, **fields: Any) -> dict[str, Any]:
    issues = [{"id": n, "title": title, "status": "pending"} for n, title in enumerate(titles, 1)]
    return {
        "id": number,
        "topic": f"Topic {number}",
        "issues": issues,
        "created_at": "2026-04-12T00:00:00.000Z",
        **fields,
    }


def cycle(number: int | None = None, **fields: Any) -> dict[str, Any]:
    """A cycle as harnesses before 0.5 wrote it; give `schema_version` for a later one."""
    return {
        "completed_at": f"2026-04-12T00:00:{(number or 0) % 60:02d}.000Z",
        "branch": "main",
        "plan": None if number is None else plan(number),
        "tasks": [],
        **fields,
    }
