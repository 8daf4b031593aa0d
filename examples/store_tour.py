"""A tour of the store. Runs the real command in a temporary home."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

PERSON = {
    "title": "Person",
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "friends": {"type": "array", "items": {"type": "string", "format": "ocas_ref"}},
    },
    "required": ["name"],
    "additionalProperties": False,
}


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="rolecall-demo-") as folder:
        tour = Tour(Path(folder))
        tour.say("A type is a JSON Schema, and itself a node:")
        person = tour.run("cas", "schema", "put", json.dumps(PERSON))["hash"]
        tour.say("A node's id is made from its content, so the same thing always has the same id:")
        ada = tour.run("cas", "put", person, '{"name": "Ada"}')["hash"]
        tour.run("cas", "put", person, '{ "name" : "Ada" }')
        tour.say("Nodes refer to nodes; what does not fit its type is refused, with every reason:")
        bob = tour.run("cas", "put", person, json.dumps({"name": "Bob", "friends": [ada]}))["hash"]
        tour.run("cas", "put", person, '{"name": 7, "age": 40}', fails=2)
        tour.say("Ids may be shortened, chains walked:")
        tour.run("cas", "get", bob[:5])
        tour.run("cas", "walk", bob)
        tour.say("Now somebody changes a stored byte behind our back. It is noticed, never returned:")
        tour.tamper(ada)
        tour.run("cas", "get", ada, fails=4)
        tour.run("cas", "verify", fails=4)
        tour.say(
            "Done. Your own store is made by the first put: try `.venv/bin/rolecall cas put-text hello`."
        )


class Tour:
    def __init__(self, folder: Path) -> None:
        self._home = folder / "home"
        self._program = str(Path(sys.executable).parent / "rolecall")

    def say(self, text: str) -> None:
        print(f"\n\033[1m{text}\033[0m" if sys.stdout.isatty() else f"\n{text}", flush=True)

    def run(self, *args: str, fails: int = 0) -> dict[str, str]:
        """Show a command and what it prints; stop the tour if it does not end as it should."""
        print("$ rolecall " + shlex.join([*args, "--json"]), flush=True)
        env = {**os.environ, "ROLECALL_HOME": str(self._home)}
        done = subprocess.run(
            [self._program, *args, "--json"], env=env, capture_output=True, text=True, check=False
        )
        print((done.stdout + done.stderr).rstrip(), flush=True)
        if done.returncode != fails:
            sys.exit(f"the demo expected exit code {fails} and got {done.returncode}")
        return json.loads(done.stdout) if not fails else {}

    def tamper(self, node: str) -> None:
        import sqlite3

        with sqlite3.connect(self._home / "store.db") as db:
            db.execute("UPDATE nodes SET data = replace(data, 'Ada', 'Eve') WHERE id = ?", (node,))
        db.close()


if __name__ == "__main__":
    main()
