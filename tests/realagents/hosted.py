"""A project in which Rolecall is installed in a host, and what hooks and server left there."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modelserver import ModelServer, Request

from realagents.stage import BOUND, Stage

ROLECALL = str(Path(sys.executable).parent / "rolecall")


@dataclass
class Hosted:
    stage: Stage
    host: str

    def __post_init__(self) -> None:
        subprocess.run(["git", "init", "-q"], cwd=self.work, check=True)
        self.stage.env["ROLECALL_HOME"] = str(self.stage.folder / "rolecall")

    @property
    def work(self) -> Path:
        return self.stage.work

    def rolecall(self, *args: str) -> Any:
        """What a command of ours says, as JSON."""
        done = self._run([ROLECALL, *args, "--json"])
        assert done.returncode == 0, (args, done.stdout, done.stderr)
        return json.loads(done.stdout) if done.stdout else None

    def install(self, scope: str = "--project") -> Any:
        return self.rolecall("install", self.host, scope)

    def uninstall(self, scope: str = "--project") -> Any:
        return self.rolecall("uninstall", self.host, scope)

    def plan_task(self, title: str = "Write it", **fields: str) -> None:
        words = [word for name, value in fields.items() for word in (f"--{name}", value)]
        self.rolecall("task", "add", title, "--context", "Because.", *words)

    def program(self, argv: Sequence[str], *, prompt: str = "", **env: str) -> str:
        """What the host says; it has to end well."""
        done = self._run(argv, prompt, env)
        assert done.returncode == 0, (done.stdout[-3000:], done.stderr[-3000:])
        return done.stdout

    def _run(
        self, argv: Sequence[str], text: str = "", env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            argv,
            cwd=self.work,
            env={**self.stage.env, **(env or {})},
            input=text,
            capture_output=True,
            text=True,
            timeout=BOUND,
            check=False,
        )

    def state(self, *names: str) -> Path:
        return self.work.joinpath(".nexus", "state", *names)

    def tool_log(self) -> list[dict[str, Any]]:
        path = self.state("rolecall", "tool-log.jsonl")
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]

    def doctor(self) -> list[str]:
        """What doctor has to say against the installation."""
        checks = json.loads(self._run([ROLECALL, "doctor", "--json"]).stdout)["checks"]
        return [
            check["text"]
            for check in checks
            if check["name"].startswith(self.host) and check["state"] != "ok"
        ]

    def files(self, folder: Path | None = None, *, without: Iterable[str] = (".git",)) -> dict[str, bytes]:
        """Every file below a folder, and its bytes; what is the host's own is left out."""
        root = folder or self.work
        found = {path.relative_to(root): path for path in root.rglob("*") if path.is_file()}
        return {
            str(name): path.read_bytes() for name, path in found.items() if not set(without) & set(name.parts)
        }


def claude_stage(model: ModelServer, folder: Path) -> Stage:
    """A stage on which Claude Code asks the scripted model, and nobody else."""
    switches = ("DISABLE_TELEMETRY", "DISABLE_ERROR_REPORTING", "DISABLE_AUTOUPDATER")
    env = {
        "ANTHROPIC_BASE_URL": model.root_url,
        "ANTHROPIC_API_KEY": "dummy",
        "CLAUDE_CODE_MAX_RETRIES": "0",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_TMPDIR": str(folder / "tmp"),
        **dict.fromkeys(switches, "1"),
    }
    return Stage(model, folder, env)


def read_text(request: Request) -> str:
    """A request as the model reads it, quotes and line ends as they are."""
    return request.text.replace("\\n", "\n").replace('\\"', '"')


def turns_of(model: ModelServer, sign: str) -> list[Request]:
    """The requests of one agent, told by words of its instructions."""
    return [turn for turn in model.turns if sign in turn.text]
