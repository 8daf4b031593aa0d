"""What a hook costs the host that runs it: processor time of `rolecall hook` for every event.

Measured on a normal install against bare `python -c pass`, round by round in turn, in three projects: one with a few
tasks, one with 1,000 tasks in a graph 50 deep that another harness wrote and a list of agents as long as it gets, and
one whose tool log has 100 MB. What counts is the processor's time: hosts run hooks one after the other, and the clock
would mostly show the machine's load.
"""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.measure import Row, Timing, interleaved, print_table, times
from benchmarks.startup import clean_environ, installed
from rolecall.nexus import project_paths

_BUDGET = 0.050
_GROWTH = 1.25
"""How much more an event may take with a log of 100 MB than without one."""
_MANY, _DEPTH = 1_000, 50
_LOG = 100_000_000
_AGENTS = 100
_TASKS = "tasks.json"

_TOOL = {"agent": "engineer", "agent_id": "e1"}
EVENTS: dict[str, tuple[str, dict[str, Any]]] = {
    "session_start": ("session_start", {}),
    "user_message": ("user_message", {"text": "How far are we?"}),
    "user_message, a tag": ("user_message", {"text": "[plan] add a login"}),
    "subagent_spawn": ("subagent_spawn", _TOOL),
    "pre_tool_use, a read": ("pre_tool_use", {**_TOOL, "tool": "Read", "input": {"file_path": "a.py"}}),
    "pre_tool_use, an edit": (
        "pre_tool_use",
        {**_TOOL, "tool": "Write", "input": {"file_path": "a.py", "content": "x"}},
    ),
    "pre_tool_use, a shell": (
        "pre_tool_use",
        {**_TOOL, "tool": "Bash", "input": {"command": "cd src && make test > ../log 2>&1"}},
    ),
    "post_tool_use, an edit": (
        "post_tool_use",
        {**_TOOL, "tool": "Write", "input": {"file_path": "a.py", "content": "x"}},
    ),
    "post_tool_use, a memory note": (
        "post_tool_use",
        {**_TOOL, "tool": "read_file", "input": {"path": ".nexus/memory/retry-limits.md"}},
    ),
    "subagent_complete": ("subagent_complete", {**_TOOL, "last_message": "Done."}),
    "context_compact": ("context_compact", {}),
    "session_end, of a turn": ("session_end", {"is_over": False}),
    "session_end": ("session_end", {}),
}
"""Every event, in the order of a session: each round is one. The agent has a task, which its end completes."""


def main(*, quick: bool = False) -> None:
    rounds = 7 if quick else 25
    with tempfile.TemporaryDirectory(prefix="rolecall-bench-") as folder, installed(folder) as scripts:
        environ = clean_environ(folder)
        projects = {
            "small": _project(folder, 5),
            "tasks": _project(folder, _MANY),
            "log": _project(folder, 5),
        }
        bare = partial(_child, [str(scripts / "python"), "-c", "pass"], b"", environ)
        works = [
            _hook(scripts, environ, project, name, which)
            for which, project in projects.items()
            for name in EVENTS
        ]
        interleaved(1, bare, *works)  # the first run compiles the kit and reads the files from the disk
        python, *found = interleaved(rounds, bare, *works)
    count = len(EVENTS)
    small, tasks, log = found[:count], found[count : 2 * count], found[2 * count :]
    title = f"median of {rounds} interleaved sessions; processor time; peer: python -c pass"
    print_table(
        f"Hooks, a few tasks ({title})", [_row(*pair, python) for pair in zip(EVENTS, small, strict=True)]
    )
    print_table(
        f"Hooks, {_MANY:,} tasks, {_DEPTH} deep, and {_AGENTS} agents ({title})",
        [_row(*pair, python) for pair in zip(EVENTS, tasks, strict=True)],
    )
    print_table(
        f"Hooks, a tool log of 100 MB (median of {rounds}; processor time; peer: the same without it)",
        [_growth_row(*three) for three in zip(EVENTS, log, small, strict=True)],
    )


def _hook(
    scripts: Path, environ: dict[str, str], project: Path, name: str, which: str
) -> Callable[[], Timing]:
    """One event as a host tells it. Every session begins with the tasks as the other harness left them, and a log that
    was put aside for its size is laid there again."""
    event, payload = EVENTS[name]
    words = [str(scripts / "rolecall"), "hook", "rolecall", event, "--project", str(project)]
    data = json.dumps({"session": "s1", "cwd": str(project), **payload}).encode()

    def run() -> Timing:
        if event == "session_start":
            shutil.copy(project / _TASKS, project / ".nexus/state" / _TASKS)
            if which == "tasks":
                _lay_agents(project)
        if which == "log":
            _lay_log(project)
        return _child(words, data, environ)

    return run


def _child(words: list[str], data: bytes, environ: dict[str, str]) -> Timing:
    """A command by the clock, and on the processor without what starting it takes from us."""
    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(words, input=data, env=environ, check=True, capture_output=True)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Timing(wall, used)


def _lay_agents(project: Path) -> None:
    """The session goes on that has started them, and they have ended. In the list they take nearly the bytes that are
    kept of it."""
    now = project_paths.now()
    ended = {"harness_id": "rolecall", "agent_name": "engineer", "resume_count": 0, "status": "completed"}
    ended |= {"started_at": now, "stopped_at": now, "last_message": "m" * 50}
    ended |= {"files_touched": [f"src/{number}.py" for number in range(15)]}
    names = [f"agent-{number}" for number in range(_AGENTS)]
    ours = project / ".nexus/state/rolecall"
    _write(ours / "agent-tracker.json", [{**ended, "agent_id": name} for name in names])
    _write(ours / "sessions.json", {"s1": {"seen": now, "agents": dict.fromkeys(names, "1 0a1b2c3d")}})


def _lay_log(project: Path) -> None:
    """A file of that size without its blocks: nobody reads it, and that is what is to be shown."""
    log = project / ".nexus/state/rolecall/tool-log.jsonl"
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as file:
        file.truncate(_LOG)


def _row(name: str, timing: Timing, python: Timing) -> Row:
    return Row(
        name,
        f"{timing.cpu * 1e3:.1f} ms",
        f"{python.cpu * 1e3:.1f} ms",
        times(timing.wall, python.wall),
        times(timing.cpu, python.cpu),
        f"≤ {_BUDGET * 1e3:.0f} ms",
        timing.cpu <= _BUDGET,
    )


def _growth_row(name: str, timing: Timing, without: Timing) -> Row:
    return Row(
        name,
        f"{timing.cpu * 1e3:.1f} ms",
        f"{without.cpu * 1e3:.1f} ms",
        times(timing.wall, without.wall),
        times(timing.cpu, without.cpu),
        f"≤ {_GROWTH:g}",
        timing.cpu <= _GROWTH * without.cpu,
    )


# -- projects --


def _project(folder: str, tasks: int) -> Path:
    """A project in the middle of its work, as another harness would have written it."""
    project = Path(tempfile.mkdtemp(dir=folder))
    issues = [{"id": n, "title": f"Issue {n}", "status": "pending"} for n in range(1, 6)]
    plan = {"id": 1, "topic": "Storage", "issues": issues, "created_at": "2026-01-31T09:30:00.000Z"}
    _write(project / ".nexus/state/plan.json", plan)
    found = [_task(number, max(1, tasks // _DEPTH)) for number in range(1, tasks + 1)]
    _write(project / _TASKS, {"goal": "Ship it", "decisions": [], "tasks": found})
    for name in ("memory/retry-limits.md", "rules/style.md", "context/domain.md"):
        _write(project / ".nexus" / name, "x")
    return project


def _task(number: int, width: int) -> dict[str, Any]:
    """One of a graph that is as deep as there are rows of this width."""
    return {
        "id": number,
        "title": f"Task {number}",
        "context": "c" * 200,
        "acceptance": "a" * 100,
        "status": "in_progress" if number == 3 * width else "completed" if number < 3 * width else "pending",
        "deps": [number - width] if number > width else [],
        "owner": "engineer",
        "created_at": "2026-01-31T09:30:00.000Z",
    }


def _write(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))


if __name__ == "__main__":
    main(quick="--quick" in sys.argv[1:])
