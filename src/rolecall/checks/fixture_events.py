"""Events of conformance fixtures, told to our hooks: to the functions, and to the command as a host runs it.

The contract's three events are told as ours: an agent that is resumed starts once more, and the files that an agent is
said to have touched are first touched by it. Paths are meant from the project's folder, and a session is made up where
a case does not care for it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from rolecall.errors import RolecallError
from rolecall.hosts import hook_context as kits
from rolecall.hosts import lifecycle
from rolecall.hosts.rolecall import events as host
from rolecall.nexus import project_paths
from rolecall.nexus.conformance import Tell

_COMMAND = "from rolecall.cli import command; raise SystemExit(command())"
_PATIENCE = 60
_SESSION = "fixture"


def in_process() -> Tell:
    kit = kits.load_own("rolecall")

    def tell(project: str, type: str, params: dict[str, Any]) -> Any:
        own = kit._replace(harness=params["harness_id"])
        reply: Any = {}
        for name, payload in _events(project, type, params):
            try:
                event = host.event(name, payload)
                answer = lifecycle.handle(project, event, own, project_paths.now()) if event else None
            except RolecallError as error:
                return {"error": error.message}
            reply = json.loads(host.output(name, answer).stdout) if answer else {}
        return reply

    return tell


def by_command(environ: Mapping[str, str]) -> Tell:
    """Each event by a child, with nothing of a run or a configuration in its environment."""
    clean = {name: value for name, value in environ.items() if not name.startswith("ROLECALL_")}

    def tell(project: str, type: str, params: dict[str, Any]) -> Any:
        reply: Any = {}
        for name, payload in _events(project, type, params):
            options = ("--project", project, "--harness", params["harness_id"])
            done = _run(["hook", "rolecall", name, *options], payload, {**clean, **_home(project)})
            if done.returncode != 0:
                return {"error": done.stderr.decode(errors="replace").strip()}
            reply = json.loads(done.stdout or b"{}")
        return reply

    return tell


def _home(project: str) -> dict[str, str]:
    """A home of the run's own, beside the folder that holds the project and nothing else."""
    return {"ROLECALL_HOME": os.path.join(os.path.dirname(os.path.dirname(project)), "home")}


def _run(
    words: Sequence[str], payload: Mapping[str, Any], environ: Mapping[str, str]
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(  # noqa: S603 -- this very program
        [sys.executable, "-P", "-c", _COMMAND, *words],
        input=json.dumps(payload).encode(),
        capture_output=True,
        env=dict(environ),
        timeout=_PATIENCE,
        check=False,
    )


def _events(project: str, type: str, params: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """The events of ours that an event of a fixture is, with their payloads."""
    given = {key: value for key, value in params.items() if key != "harness_id"}
    base = {"session": _SESSION, "cwd": project}
    if type not in ("agent_spawn", "agent_resume", "agent_complete"):
        return [(type, {**base, **given})]
    who = {**base, "agent": given.get("agent_name", ""), "agent_id": given.get("agent_id", "")}
    if type != "agent_complete":
        return [("subagent_spawn", who)]
    touched = [
        ("post_tool_use", {**who, "tool": "Write", "input": {"file_path": path, "content": ""}})
        for path in given.get("files_touched", ())
    ]
    return [*touched, ("subagent_complete", {**who, "last_message": given.get("last_message", "")})]
