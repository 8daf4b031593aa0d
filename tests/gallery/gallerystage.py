"""A git repository, a scripted agent, and the workflows of the gallery run through the Python interface."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rolecall.api import Rolecall, Thread

Visit = Mapping[str, Any]
TESTS = "! grep -q bug code.txt\n"
"""The tests of the repository: nothing may contain the word."""

CLAUDE = """\
#!/bin/sh
[ "$1" = --version ] && echo '2.1.325 (Claude Code)' && exit
prompt=$(cat)
play() {
PLAYS
}
answer=$(play) || exit 1
answer=$(printf '%s\\n' "$answer" | sed 's/[\\\\"]/\\\\&/g' | awk '{printf "%s\\\\n", $0}')
printf '{"type":"result","subtype":"success","session_id":"s","num_turns":1,"result":"%s"}\\n' "$answer"
"""
"""A stand-in for Claude Code, which can be held to restrictions: what PLAYS prints is its answer to `$prompt`."""


def deliver(status: str = "", /, edit: Mapping[str, str] | None = None, **output: Any) -> Visit:
    """What a scripted role does on a visit: its edits, which it commits, and its output."""
    made: dict[str, Any] = {"output": {**({"$status": status} if status else {}), **output}}
    if edit:
        made["edit"] = dict(edit)
        made["run"] = [["git", "add", "--all"], ["git", "commit", "--quiet", "-m", "work"]]
    return {**made, "usage": {"input_tokens": 10, "output_tokens": 5, "turns": 1, "cost": 0.25}}


class Stage:
    def __init__(self, place: Path) -> None:
        self.place = place
        self.repo = place / "repo"
        self.repo.mkdir()
        self.git("init", "--quiet", "--initial-branch=main")
        self.git("config", "user.name", "Somebody")
        self.git("config", "user.email", "some@body")
        self.commit({"code.txt": "a bug\n", "test.sh": TESTS})
        self.rolecall = Rolecall(folder=self.repo)

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *_error: object) -> None:
        self.rolecall.close()

    def git(self, *words: str) -> str:
        done = subprocess.run(["git", *words], cwd=self.repo, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    def commit(self, files: Mapping[str, str]) -> str:
        for name, text in files.items():
            (self.repo / name).parent.mkdir(parents=True, exist_ok=True)
            (self.repo / name).write_text(text)
        self.git("add", "--all")
        self.git("commit", "--quiet", "-m", f"change {', '.join(files)}")
        return self.git("rev-parse", "HEAD")

    def run(self, workflow: str, /, **roles: Sequence[Visit] | str) -> Thread:
        """Run a workflow of the gallery with what each role does on its visits, in their order; a text is a program in
        shell that plays the role by `$prompt`."""
        visits, players = {}, {}
        for role, plays in roles.items():
            if not isinstance(plays, str):
                visits[role] = plays
                continue
            program = self.place / f"{role}.sh"
            program.write_text(CLAUDE.replace("PLAYS", plays))
            program.chmod(0o755)
            players[role] = {"adapter": "claude", "executable": str(program)}
        script = self.place / "script.json"
        script.write_text(json.dumps({"roles": visits}))
        overrides = {workflow: {role: role for role in players}}
        config = {"defaultAgent": f"scripted:{script}", "agents": players, "agentOverrides": overrides}
        (self.place / "home").mkdir(exist_ok=True)
        (self.place / "home" / "config.yaml").write_text(json.dumps(config))
        thread = self.rolecall.start(workflow, "The task.")
        thread.run().wait()
        return thread

    def read(self, thread: Thread, name: str) -> str:
        """A file in the worktree of a thread."""
        return (Path(thread.state.folders["worktree"].path) / name).read_text()


def went(thread: Thread) -> str:
    """The way of a thread: its roles with their statuses, and how it ended."""
    ways = [
        f"{step.role}:{status}"
        if (status := step.output.get("$status") or step.output.get("status"))
        else step.role
        for step in thread.steps
    ]
    return " ".join([*ways, thread.status])
