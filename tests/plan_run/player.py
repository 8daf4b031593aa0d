"""A coding agent for tests: a real program with the command line and the events of Claude Code.

It finds its task and its role in the prompt, does what `score.json` beside it says for them, and writes every call
into `calls.jsonl`. What it does is a list, one entry for each time it is asked about the same task in the same role;
the last entry is done again and again.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
import uuid
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
BOUND = 120


def main() -> None:
    arguments = sys.argv[1:]
    if arguments in (["--version"], ["--help"]):
        print("2.1.325 (Claude Code)")
        return
    prompt = sys.stdin.read()
    signal.alarm(BOUND)  # nobody waits for ever
    role = re.findall(r"^# Your role: (.+)$", prompt, re.MULTILINE)[0]
    title = re.findall(r"^TASK: (.+)$", prompt, re.MULTILINE)[0]
    resumed = arguments[arguments.index("--resume") + 1] if "--resume" in arguments else None
    session = resumed or str(uuid.uuid4())
    told = {"role": role, "title": title, "session": session, "resumed": resumed, "pid": os.getpid()}
    told |= {
        "restrictions": os.environ.get("ROLECALL_RESTRICTIONS", ""),
        "arguments": arguments,
        "prompt": prompt,
    }
    visit = sum(call["role"] == role and call["title"] == title for call in calls("asked"))
    note("asked", told)
    say({"type": "system", "subtype": "init", "session_id": session})
    perform(entry(role, title, visit), session)
    note("answered", told)


def entry(role: str, title: str, visit: int) -> dict[str, Any]:
    score = json.loads((HERE / "score.json").read_text())
    entries = score.get(f"{role}: {title}") or score[role]
    found: dict[str, Any] = entries[min(visit, len(entries) - 1)]
    return found


def perform(entry: dict[str, Any], session: str) -> None:
    if "lost" in entry:
        print(f"No conversation found with session ID: {session}", file=sys.stderr)
        sys.exit(1)
    for name in entry.get("meet", ()):
        meet(HERE / name, entry["side"])
    if "never_meet" in entry and would_meet(HERE / entry["never_meet"]):
        finish(
            {"status": "blocked", "summary": "another one was at work at the same time", "files": []},
            "",
            session,
        )
        return
    for path, text in entry.get("write", {}).items():
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(text)
        use = {"type": "tool_use", "id": path, "name": "Write", "input": {"file_path": os.path.abspath(path)}}
        say({"type": "assistant", "session_id": session, "message": {"id": path, "content": [use]}})
        result = {"type": "tool_result", "tool_use_id": path, "content": "written"}
        say({"type": "user", "session_id": session, "message": {"content": [result]}})
    if "run" in entry:
        import subprocess

        done = subprocess.run(entry["run"], capture_output=True, text=True, check=False)
        note("ran", {"code": done.returncode, "stdout": done.stdout, "stderr": done.stderr})
    if entry.get("deaf"):
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: note("heard", {}))
        note("deaf", {})
    while entry.get("hang"):
        signal.pause()
    if "exit" in entry:
        sys.exit(entry["exit"])
    finish(entry["output"], entry.get("body", "The report."), session)


def meet(fifo: Path, side: str) -> None:
    """Wait until the other side is there as well: opening one end of a pipe waits for the other."""
    fifo.open("w" if side == "left" else "r").close()


def would_meet(folder: Path) -> bool:
    """Whether another agent comes into the same place within a second."""
    mark = folder / str(os.getpid())
    mark.touch()
    until = time.monotonic() + 1
    while time.monotonic() < until:
        if len(list(folder.iterdir())) > 1:
            return True
        time.sleep(0.02)
    mark.unlink()
    return False


def finish(output: dict[str, Any], body: str, session: str) -> None:
    text = f"---\n{json.dumps(output)}\n---\n{body}"
    content = [{"type": "text", "text": text}]
    say({"type": "assistant", "session_id": session, "message": {"id": "m", "content": content}})
    say(
        {
            "type": "result",
            "subtype": "success",
            "is_error": False,
            "result": text,
            "session_id": session,
            "num_turns": 1,
            "total_cost_usd": 0.25,
            "modelUsage": {"a-model": {"inputTokens": 90, "outputTokens": 10}},
            "terminal_reason": "completed",
        }
    )


def say(event: dict[str, Any]) -> None:
    print(json.dumps(event), flush=True)


def note(kind: str, told: dict[str, Any]) -> None:
    line = json.dumps({"kind": kind, "at": time.monotonic_ns(), **told}) + "\n"
    with (HERE / "calls.jsonl").open("ab", buffering=0) as file:
        file.write(line.encode())


def calls(kind: str) -> list[dict[str, Any]]:
    path = HERE / "calls.jsonl"
    lines = path.read_text().split("\n")[:-1] if path.exists() else []  # the last one is still being written
    return [call for call in map(json.loads, lines) if call["kind"] == kind]


if __name__ == "__main__":
    main()
