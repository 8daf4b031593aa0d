"""A user's machine that `rolecall install` and `doctor` are run on, as real commands."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fakeagent import executable

if TYPE_CHECKING:
    from conftest import Rolecall

SCRIPT = Path(sys.executable).parent / "rolecall"


class Machine:
    """A home, a project with blanks in its path, host programs that only have a version."""

    def __init__(self, rolecall: Rolecall, folder: Path) -> None:
        self.rolecall = rolecall
        self.folder = folder
        self.user = folder / "user"
        self.project = folder / "my project"
        self.bin = folder / "bin"
        for path in (self.user, self.project, self.bin):
            path.mkdir()
        self.env = {
            "HOME": str(self.user),
            "PATH": f"{self.bin}:/usr/bin:/bin",
            **dict.fromkeys(("CLAUDE_CONFIG_DIR", "CODEX_HOME", "XDG_CONFIG_HOME"), ""),
        }
        self.make_repository(self.project)

    def make_repository(self, folder: Path) -> Path:
        (folder / ".git").mkdir(parents=True)
        (folder / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
        return folder

    def run(self, *args: str, check: int = 0, cwd: Path | None = None) -> Any:
        """What a command says: its JSON, or its words where it fails."""
        done = self.rolecall(*args, "--json", env=self.env, cwd=cwd or self.project)
        assert done.returncode == check, (done.stdout, done.stderr)
        return json.loads(done.stdout) if done.stdout else done.stderr

    def run_with(self, program: Path | str, *args: str) -> subprocess.CompletedProcess[str]:
        """The same with another way to start Rolecall."""
        env = {**os.environ, **self.env, "ROLECALL_HOME": str(self.rolecall.home)}
        return subprocess.run(
            [program, *args],
            env=env,
            cwd=self.project,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )

    def keep_one_server(self) -> None:
        """Remove Claude's agents, and with them all servers but one, which take `doctor` most of its time."""
        for place in (self.project, self.user):
            shutil.rmtree(place / ".claude" / "agents", ignore_errors=True)

    def trust(self) -> None:
        fields = {"projects": {str(self.project): {"hasTrustDialogAccepted": True}}}
        (self.user / ".claude.json").write_text(json.dumps(fields))

    def claude(self) -> None:
        executable(self.bin / "claude", "echo '2.1.325 (Claude Code)'")

    def doctor(
        self, host: str = "claude", *, check: int = 0, cwd: Path | None = None
    ) -> dict[str, list[str]]:
        """What it says of a host, by the state of what it looked at."""
        return self.doctor_of(host, check=check, cwd=cwd)[host]

    def doctor_of(
        self, *hosts: str, check: int = 0, cwd: Path | None = None
    ) -> dict[str, dict[str, list[str]]]:
        """What it says of each host in one run."""
        fields: dict[str, dict[str, list[str]]] = {
            host: {"ok": [], "warning": [], "problem": []} for host in hosts
        }
        for one in self.run("doctor", check=check, cwd=cwd)["checks"]:
            host = one["name"].split()[0]
            if host in fields:
                fields[host][one["state"]].append(one["text"])
        return fields

    def files(self) -> dict[str, bytes]:
        files = [*self.project.rglob("*"), *self.user.rglob("*")]
        return {str(one): one.read_bytes() for one in files if one.is_file()}

    @property
    def settings(self) -> Path:
        return self.project / ".claude" / "settings.local.json"

    def edit(self, path: Path, **members: Any) -> None:
        """Members of a JSON file that somebody sets by hand."""
        found = json.loads(path.read_text()) if path.exists() else {}
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps({**found, **members}))


def states(told: Any) -> set[str]:
    return {change["state"] for change in told["changes"]}
