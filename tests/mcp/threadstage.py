"""A project with a workflow and scripted agents, for the tests of thread verbs over both doors."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from select import select
from tempfile import mkdtemp
from typing import Any

from pipe import PATIENCE, Pipe, environment, make_project, piped

FLOW = """
name: change-code
description: Changes code.
roles:
  developer:
    description: Develops
    goal: Write it.
    frontmatter: {type: object, properties: {$status: {enum: [done, blocked]}}, required: [$status]}
  reviewer:
    description: Reviews
    goal: Judge it.
    agent: human
    frontmatter: {type: object, properties: {$status: {enum: [approved, rejected]}}, required: [$status]}
graph:
  $START: developer
  developer: {done: reviewer, blocked: $FAIL}
  reviewer: {approved: $END, rejected: developer}
"""
DONE = {"output": {"$status": "done"}, "body": "Did it."}


class Stage:
    """A project with workflows, and a script for the agents that play in them."""

    def __init__(self, folder: Path) -> None:
        self.project = make_project(folder)
        self.folder = folder
        (self.project / "workflows").mkdir()
        self.write("change-code.yaml", FLOW)
        home = Path(environment(folder)["ROLECALL_HOME"])
        home.mkdir(parents=True)
        (home / "config.yaml").write_text(f"defaultAgent: scripted:{folder / 'script.json'}\n")

    def write(self, name: str, text: str) -> None:
        (self.project / "workflows" / name).write_text(text)

    def script(self, *developer: Any) -> None:
        (self.folder / "script.json").write_text(json.dumps({"roles": {"developer": list(developer)}}))

    @contextmanager
    def open(self, *options: str, **more: str) -> Iterator[Pipe]:
        with piped(self.project, *options, **more) as pipe:
            pipe.initialize()
            yield pipe


class Hanging:
    """A script whose agent tells through a named pipe that it works, and by closing it that it was ended."""

    def __init__(self, stage: Stage) -> None:
        self._pipe = Path(mkdtemp(dir=stage.folder)) / "working"
        os.mkfifo(self._pipe)
        shell = f"exec 3> '{self._pipe}'; echo begun >&3; exec tail -f /dev/null"
        stage.script({"run": [["sh", "-c", shell]], "output": {"$status": "done"}, "again": [DONE]})

    def wait_for_end(self, stop: Callable[[], object]) -> None:
        """Let the agent begin, then `stop`; returns when the agent's process is gone."""
        reported = os.open(self._pipe, os.O_RDONLY | os.O_NONBLOCK)
        try:
            assert _next(reported) == b"begun\n"
            stop()
            assert _next(reported) == b""
        finally:
            os.close(reported)


def _next(source: int) -> bytes:
    """What comes next through a named pipe, which must be soon; nothing when its writers are gone."""
    assert select([source], [], [], PATIENCE)[0], "the agent neither began nor ended"
    return os.read(source, 100)
