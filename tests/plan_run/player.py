"""A coding agent for tests: a real program with the command line and the events of Claude Code.

It finds its task and its role in the prompt, does what `score.json` beside it says for them, and writes every call
into `calls.jsonl`. What it does is a list, one entry for each time it is asked about the same task in the same role;
the last entry is done again and again.

It is started hundreds of times, so it imports nothing that takes longer than what it does.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

HERE = os.path.dirname(__file__)
BOUND = 240


def main() -> None:
    arguments = sys.argv[1:]
    prompt = sys.stdin.read()
    signal.alarm(BOUND)  # nobody waits for ever
    role = re.findall(r"^# Your role: (.+)$", prompt, re.MULTILINE)[0]
    title = re.findall(r"^TASK: (.+)$", prompt, re.MULTILINE)[0]
    resumed = arguments[arguments.index("--resume") + 1] if "--resume" in arguments else None
    session = resumed or os.urandom(16).hex()
    fields = {"role": role, "title": title, "session": session, "resumed": resumed, "pid": os.getpid()}
    fields |= {
        "restrictions": os.environ.get("ROLECALL_RESTRICTIONS", ""),
        "arguments": arguments,
        "prompt": prompt,
    }
    visit = sum(call["role"] == role and call["title"] == title for call in calls("asked"))
    note("asked", fields)
    say({"type": "system", "subtype": "init", "session_id": session})
    perform(entry(role, title, visit), session)
    note("answered", fields)


def entry(role: str, title: str, visit: int) -> dict[str, Any]:
    with open(f"{HERE}/score.json") as file:
        score = json.load(file)
    entries = score.get(f"{role}: {title}") or score[role]
    found: dict[str, Any] = entries[min(visit, len(entries) - 1)]
    return found


def perform(entry: dict[str, Any], session: str) -> None:
    if "lost" in entry:
        print(f"No conversation found with session ID: {session}", file=sys.stderr)
        sys.exit(1)
    for name in entry.get("meet", ()):
        meet(f"{HERE}/{name}", entry["side"])
    if "never_meet" in entry and would_meet(f"{HERE}/{entry['never_meet']}"):
        finish(
            {"status": "blocked", "summary": "another one was at work at the same time", "files": []},
            "",
            session,
        )
        return
    for path, text in entry.get("write", {}).items():
        os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
        with open(path, "w") as file:
            file.write(text)
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


def meet(fifo: str, side: str) -> None:
    """Wait until the other side is there as well: opening one end of a pipe waits for the other."""
    with open(fifo, "w" if side == "left" else "r"):
        pass


def would_meet(folder: str) -> bool:
    """Whether another agent comes into the same place within a second."""
    mark = f"{folder}/{os.getpid()}"
    with open(mark, "w"):
        pass
    until = time.monotonic() + 1
    while time.monotonic() < until:
        if len(os.listdir(folder)) > 1:
            return True
        time.sleep(0.02)
    os.unlink(mark)
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
    with open(f"{HERE}/calls.jsonl", "ab", buffering=0) as file:
        file.write(line.encode())


def calls(kind: str) -> list[dict[str, Any]]:
    if not os.path.exists(f"{HERE}/calls.jsonl"):
        return []
    with open(f"{HERE}/calls.jsonl") as file:
        lines = file.read().split("\n")[:-1]  # the last one is still being written
    return [call for call in map(json.loads, lines) if call["kind"] == kind]


if __name__ == "__main__":
    main()
