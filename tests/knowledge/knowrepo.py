"""A repository to be indexed by the installed command, with a home of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import commands

from knowledge.vectorserver import VectorServer

PROGRAM = str(Path(sys.executable).parent / "rolecall")
SETTINGS = 'include: ["*.md", "*.py"]\n'
KEY = "sk-not-a-real-key-1234567890"

FILES = {
    "src/retry.py": 'def retry_limit(count):\n    """How often a request is tried again."""\n    return count * 2\n',
    "src/parser.py": "class ConfigParser:\n    def read_lines(self, source):\n        return source.splitlines()\n",
    "docs/guide.md": "# Guide\n\n## Install\n\nRun the installer with elevated rights.\n\n"
    "## Remove\n\nDelete it all.\n",
}


class Repo:
    """A git repository and the command in it."""

    def __init__(self, folder: Path, home: Path) -> None:
        self.folder = folder
        self.env = {**os.environ, "HOME": str(home), "ROLECALL_HOME": str(home / "rolecall")}
        folder.mkdir(parents=True)
        self.git("init", "--quiet", "--initial-branch=main")
        self.write({"knowledge.yaml": SETTINGS, ".gitignore": "knowledge.db*\n", **FILES})

    @property
    def index(self) -> Path:
        return self.folder / "knowledge.db"

    @property
    def home(self) -> Path:
        return Path(self.env["ROLECALL_HOME"])

    def git(self, *args: str) -> str:
        who = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org")
        done = subprocess.run(
            ["git", "-C", str(self.folder), *who, *args], capture_output=True, text=True, check=True
        )
        return done.stdout

    def commit(self) -> None:
        self.git("add", "--all")
        self.git("commit", "--quiet", "-m", "All")

    def write(self, files: dict[str, str | bytes]) -> None:
        for path, text in files.items():
            file = self.folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(text if isinstance(text, bytes) else text.encode())

    def command(self, *args: str) -> list[str]:
        return [PROGRAM, "knowledge", *args]

    def __call__(
        self, *args: str, code: int | None = 0, cwd: Path | None = None, **more: str
    ) -> subprocess.CompletedProcess[str]:
        result = commands.run(self.command(*args), cwd=cwd or self.folder, env={**self.env, **more})
        assert code is None or result.returncode == code, (
            args,
            result.returncode,
            result.stdout,
            result.stderr,
        )
        assert "Traceback" not in result.stderr, result.stderr
        return result

    def start(self, *args: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self.command(*args), cwd=self.folder, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def json(self, *args: str, **more: Any) -> Any:
        return json.loads(self(*args, "--json", **more).stdout)

    def sync(self, *args: str) -> Any:
        return self.json("sync", *args)

    def query(self, *args: str) -> list[Any]:
        return list(self.json("query", *args, code=None)["results"])

    def first(self, *args: str) -> str:
        """The path of the best answer."""
        return str(self.query(*args)[0]["path"])

    def refused(self, *args: str, code: int | None = None, **more: Any) -> str:
        """What is said when the command ends with an error."""
        done = self(*args, code=code, **more)
        assert done.returncode not in (0, 1) or code == done.returncode, done
        return done.stderr

    def use(self, server: VectorServer, *, key: str = "", model: str = "tiny", more: str = "") -> None:
        """Have an endpoint embed."""
        named = f"{{provider: fake, model: {model}{more}}}"
        self.write({"knowledge.yaml": f"{SETTINGS}embedding: {named}\n"})
        self.home.mkdir(parents=True, exist_ok=True)
        entry = {"baseUrl": server.base_url, **({"apiKeyEnv": key} if key else {})}
        (self.home / "config.yaml").write_text(json.dumps({"providers": {"fake": entry}}))


def read_terminal(master: int) -> str:
    """All that a terminal was sent, of which the kernel hands over a part at a time; nobody writes to it any more."""
    shown = b""
    with suppress(OSError):  # how Linux says that this was all
        while part := os.read(master, 65536):
            shown += part
    os.close(master)
    return shown.decode()
