"""Run conformance fixtures: calls through our tools, and events through our hooks, either as functions or as a host
runs them.

Three events of the contract are mapped to events of ours: a resumed agent is reported as started, and the files that
an agent touched are reported as written before the agent's end. Paths are relative to the project's folder, and every
case has the same session.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rolecall.errors import NotFound, RolecallError
from rolecall.hosts import hook_context, lifecycle
from rolecall.hosts.rolecall import events as host
from rolecall.nexus import conformance, fixture, project_paths
from rolecall.nexus.conformance import ConformanceReport, Tell
from rolecall.nexus.server_child import ROLECALL
from rolecall.settings import config
from rolecall.settings.form import did_you_mean
from rolecall.store.canonical import JsonObject

_PATIENCE = 60
_SESSION = "fixture"
_HOOKS = ("hooks", "hook-command")
_DOORS = (*conformance.DOORS, *_HOOKS)
OVER = {**{door: (door,) for door in _DOORS}, "both": conformance.DOORS, "all": _DOORS}
"""For each value of `over`, the interfaces through which fixtures are run: two for tools, and two for events."""


def run(
    folder: str, *, over: str = "all", only: Sequence[str] = (), done: Callable[[int], object]
) -> ConformanceReport:
    """Run the fixtures in a folder or file, or those in `only`. `done` is called with the number of cases run."""
    cases, mistakes, passed_over = fixture.load(folder)
    known_ids = {*(case.test_id for case in cases), *(mistake.test_id for mistake in mistakes)}
    for test_id in only:
        if test_id not in known_ids:
            hint = did_you_mean(test_id, [case.test_id for case in cases], what="Cases")
            raise NotFound(f"unknown case {test_id!r}", hint=hint)
    if only:  # a mistake without a test_id is kept, because it might belong to any of these cases
        cases = [case for case in cases if case.test_id in only]
        mistakes = [mistake for mistake in mistakes if mistake.test_id in (*only, "")]
    has_events = any(case.kind == "lifecycle" for case in cases)
    has_calls = any(case.kind != "lifecycle" for case in cases)
    known = [*(conformance.DOORS if has_calls else ()), *(_HOOKS if has_events else ())]
    doors = tuple(door for door in OVER[over] if over != "all" or door in known)
    environ = config.environment()
    tells = {"hooks": in_process(), "hook-command": by_command(environ)} if has_events else {}
    results = conformance.run(cases, doors, environ=environ, tells=tells, done=done)
    return ConformanceReport(doors, results, mistakes, passed_over)


def in_process() -> Tell:
    hooks = hook_context.load_own("rolecall")

    def tell(project: str, type: str, params: JsonObject) -> Any:
        own = hooks._replace(harness=params["harness_id"])
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
    """Return a function that runs each event in a child process, without our variables in its environment."""
    clean = {name: value for name, value in environ.items() if not name.startswith("ROLECALL_")}

    def tell(project: str, type: str, params: JsonObject) -> Any:
        # Use a separate home, outside the folder that must contain only the project.
        home = os.path.join(os.path.dirname(os.path.dirname(project)), "home")
        options = ("--project", project, "--harness", params["harness_id"])
        reply: Any = {}
        for name, payload in _events(project, type, params):
            done = subprocess.run(  # noqa: S603 -- runs this program itself
                [*ROLECALL, "hook", "rolecall", name, *options],
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
    """Return our events for a fixture's event, with their payloads."""
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
