"""Stand-ins for the programs of agents: real executables that tell a version and a help text."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import dedent

from rolecall.agents.adapters.claude import Claude

CLAUDE_HELP = "Options:\n" + "".join(f"  {flag} <value>  what it does\n" for flag in Claude.needed_flags)


def executable(path: Path, script: str) -> Path:
    """A shell script at `path` that can be run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n" + dedent(script), encoding="utf-8")
    path.chmod(0o755)
    return path


def fake_claude(
    folder: Path, *, version: str = "2.1.325 (Claude Code)", help: str = CLAUDE_HELP, run: str = "exit 9"
) -> Path:
    """A `claude` that tells its version and its help; asked anything else it does `run`."""
    (folder / "help.txt").parent.mkdir(parents=True, exist_ok=True)
    (folder / "help.txt").write_text(help, encoding="utf-8")
    script = f"""
case "$1" in
  --version) echo '{version}';;
  --help) cat '{folder}/help.txt';;
  *) {run};;
esac
"""
    return executable(folder / "claude", script)


def claude_says(text: str, *, session: str = "s-1", cost: float = 0.25) -> str:
    """The shell command that prints a run of Claude Code with this answer."""
    events = [
        {"type": "system", "subtype": "init", "session_id": session},
        {
            "type": "assistant",
            "session_id": session,
            "message": {"id": "m1", "content": [{"type": "text", "text": text}]},
        },
        {
            "type": "result",
            "subtype": "success",
            "is_error": False,
            "result": text,
            "session_id": session,
            "num_turns": 1,
            "total_cost_usd": cost,
            "modelUsage": {"a-model": {"inputTokens": 12, "outputTokens": 3}},
            "terminal_reason": "completed",
        },
    ]
    return "cat >/dev/null; " + "; ".join(f"printf '%s\\n' '{json.dumps(event)}'" for event in events)
