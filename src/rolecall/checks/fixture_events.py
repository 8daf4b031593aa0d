"""Run the events of conformance fixtures through our hooks: as functions, or through the command as a host does.

The contract's three events are mapped to ours: a resumed agent is started again, and the files that an agent reports as
touched are first touched by it. Paths are relative to the project's folder, and every case has the same session.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from rolecall.errors import RolecallError
from rolecall.hosts import hook_context, lifecycle
from rolecall.hosts.rolecall import events as host
from rolecall.nexus import project_paths
from rolecall.nexus.conformance import Tell
from rolecall.store.canonical import JsonObject

_COMMAND = "from rolecall.__main__ import command; raise SystemExit(command())"
_PATIENCE = 60
_SESSION = "fixture"


def in_process() -> Tell:
    kit = hook_context.load_own("rolecall")

    def tell(project: str, type: str, params: JsonObject) -> Any:
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
    """Run each event in a child process, without our variables in its environment."""
    clean = {name: value for name, value in environ.items() if not name.startswith("ROLECALL_")}

    def tell(project: str, type: str, params: JsonObject) -> Any:
        # A separate home, outside the folder that must contain only the project.
        home = os.path.join(os.path.dirname(os.path.dirname(project)), "home")
        options = ("--project", project, "--harness", params["harness_id"])
        reply: Any = {}
        for name, payload in _events(project, type, params):
            done = subprocess.run(  # noqa: S603 -- runs this program itself
                [sys.executable, "-P", "-c", _COMMAND, "hook", "rolecall", name, *options],
                input=json.dumps(payload).encode(),
                capture_output=True,
                env={**clean, "ROLECALL_HOME": home},
                timeout=_PATIENCE,
                check=False,
            )
            if done.returncode != 0:
                return {"error": done.stderr.decode(errors="replace").strip()}
            reply = json.loads(done.stdout or b"{}")
        return reply

    return tell


def _events(project: str, type: str, params: JsonObject) -> list[tuple[str, JsonObject]]:
    """Our events for a fixture's event, with their payloads."""
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
