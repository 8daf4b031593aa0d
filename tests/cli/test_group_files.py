"""A group whose members' files are merged, with the installed program: checks, kills and what is left to a person."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from processes import gone

if TYPE_CHECKING:
    from conftest import Rolecall

AGENT = """\
#!/bin/sh
number=$(grep -o 'Write part [0-9]*' | head -n 1 | grep -o '[0-9]*$')
[ "$number" ] || exit 1  # its runner died before it had given the prompt
echo "$number" >> "$ASKED"
echo "$number" > "part $number"
printf -- '---\\nnote: part %s\\n---\\nWrote it.\\n' "$number"
"""
# Kills the runner at the check of this number, and only once.
KILL = """\
echo x >> "$CHECKS"
if [ "$(wc -l < "$CHECKS")" = "$AT" ]; then echo $$ > "$CHECKS.pid"; kill -9 $PPID; exec sleep 60; fi
"""


class Project:
    def __init__(self, rolecall: Rolecall, place: Path, **group: Any) -> None:
        self.rolecall = rolecall
        self.place = place
        self.folder = place / "my project"
        self.folder.mkdir()
        (self.folder / "first").write_text("first\n")
        for words in (
            ("init", "--quiet", "--initial-branch=main"),
            ("config", "user.name", "Somebody"),
            ("config", "user.email", "some@body"),
            ("add", "--all"),
            ("commit", "--quiet", "-m", "first"),
        ):
            self.git(*words)
        agent = place / "agent.sh"
        agent.write_text(AGENT)
        agent.chmod(0o755)
        self.agent = f"command:{agent}"
        note = {"type": "object", "properties": {"note": {"type": "string"}}, "required": ["note"]}
        writer = {"times": 3, "workdir": "worktree", "merge": "queue", "goal": "Write part {{number}}."}
        definition = {
            "name": "write-parts",
            "description": "Several write at once.",
            "roles": {"writer": {**writer, "schema": note, **group}},
            "graph": {"$START": "writer", "writer": {"done": "$END", "partly": "$END", "failed": "$FAIL"}},
        }
        self.file = place / "write-parts.yaml"
        self.file.write_text(json.dumps(definition))

    def git(self, *args: str) -> str:
        argv = ["git", "-C", str(self.folder), *args]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (args, done.stderr)
        return done.stdout.strip()

    def start(self) -> str:
        words = ("thread", "start", str(self.file), "-p", "Write", "--cwd", str(self.folder))
        ident: str = self.rolecall.json(*words, "--agent", self.agent)["thread"]
        return ident

    def run(self, ident: str, **env: str) -> subprocess.CompletedProcess[str]:
        given = {"ASKED": str(self.place / "asked"), "CHECKS": str(self.place / "checks"), **env}
        return self.rolecall("thread", "run", ident, env=given)

    def asked(self) -> list[str]:
        return sorted((self.place / "asked").read_text().split())


@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_runner_killed_during_any_check_merges_everything_once(
    rolecall: Rolecall, tmp_path: Path, at: int
) -> None:
    project = Project(rolecall, tmp_path, check=["sh", "-c", KILL])
    ident = project.start()
    assert project.run(ident, AT=str(at)).returncode == -signal.SIGKILL
    check = int((tmp_path / "checks.pid").read_text())
    assert ") Z " not in Path(f"/proc/{check}/stat").read_text()
    done = project.run(ident, AT="0")
    assert done.returncode == 0, done.stderr
    assert project.git("rev-list", "--count", "--merges", "HEAD") == "3"
    assert sorted(path.name for path in project.folder.glob("part *")) == ["part 1", "part 2", "part 3"]
    assert project.git("status", "--porcelain") == ""
    assert project.asked() == ["1", "2", "3"]
    gone(check)
    # Only the merge that was being checked is checked again.
    assert len((tmp_path / "checks").read_text().split()) == 4


def test_a_runner_killed_at_random_moments_merges_everything_once(rolecall: Rolecall, tmp_path: Path) -> None:
    project = Project(rolecall, tmp_path, times=6, check=["sh", "-c", "sleep 0.1; test -e first"])
    ident, seed = project.start(), random.randrange(10**6)
    moments = random.Random(seed)
    argv = [str(Path(sys.executable).parent / "rolecall"), "thread", "run", ident]
    env = {**os.environ, "ROLECALL_HOME": str(rolecall.home), "ASKED": str(tmp_path / "asked")}
    for _ in range(12):
        with subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
            with suppress(subprocess.TimeoutExpired):
                child.wait(moments.uniform(0.3, 2))
            child.kill()
    assert project.run(ident).returncode == 0, seed
    assert project.git("rev-list", "--count", "--merges", "HEAD") == "6", seed
    assert len(list(project.folder.glob("part *"))) == 6
    assert project.git("status", "--porcelain") == ""
    assert project.git("branch", "--list", "rolecall/left-*") == ""


def test_killing_a_thread_whose_runner_died_ends_its_check(rolecall: Rolecall, tmp_path: Path) -> None:
    project = Project(rolecall, tmp_path, check=["sh", "-c", KILL])
    ident = project.start()
    assert project.run(ident, AT="2").returncode == -signal.SIGKILL
    check = int((tmp_path / "checks.pid").read_text())
    rolecall("thread", "kill", ident, check=0)
    gone(check)


def test_what_is_set_aside_keeps_its_branch_and_a_person_can_merge_it(
    rolecall: Rolecall, tmp_path: Path
) -> None:
    project = Project(rolecall, tmp_path, check=["test", "!", "-e", "part 2"])
    ident = project.start()
    assert project.run(ident).returncode == 0
    shown = rolecall("thread", "show", ident, check=0).stdout
    assert "): the check failed: 'test' exited with status 1\n  $ test '!' -e 'part 2'\n" in shown
    step = rolecall.json("thread", "steps", ident)["steps"][-1]
    assert step["output"]["status"] == "partly"
    aside = step["output"]["members"][1]
    assert aside["status"] == "set_aside"
    assert aside["reason"] == "the check failed: 'test' exited with status 1"
    pruned = rolecall.json("thread", "folder", "prune")
    assert [kept["thread"] for kept in pruned["kept"]] == [aside["id"]]
    assert len(pruned["removed"]) == 2
    assert rolecall.json("thread", "folder", "merge", aside["id"])["merged"]
    assert (project.folder / "part 2").read_text() == "2\n"
