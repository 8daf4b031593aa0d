"""A command that dies in the middle of a sandboxed step: the next one ends what it left and takes the step again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import processes
import pytest
from listeners import Pipe

if TYPE_CHECKING:
    from conftest import Rolecall

PROGRAM = str(Path(sys.executable).parent / "rolecall")
FLOW = """
name: keep-out
description: Works in a sandbox.
roles:
  worker:
    prompt: Work.
    schema: {type: object, properties: {status: {enum: [done]}}, required: [status]}
    sandbox: {network: none}
graph:
  $START: worker
  worker: {done: $END}
"""
# The first time it leaves a daemon that neither its session nor its environment leads to, and waits to be killed.
AGENT = """#!/bin/sh
(echo x > ../out) 2>/dev/null
if [ -e begun ]; then printf -- '---\\nstatus: done\\n---\\n'; exit; fi
touch begun
mkfifo up
env -i setsid /bin/sh -c 'echo > up; exec sleep 900' </dev/null >/dev/null 2>&1 &
cat up
echo ready > told
sleep 900
"""


@pytest.mark.parametrize("whom", ["the command", "everything"])
def test_a_killed_command_leaves_no_process_of_a_sandboxed_step(
    rolecall: Rolecall, disk_path: Path, whom: str
) -> None:
    work = disk_path / "work"
    work.mkdir()
    reported = Pipe(work / "told")
    (disk_path / "keep-out.yaml").write_text(FLOW)
    agent = disk_path / "agent"
    agent.write_text(AGENT)
    agent.chmod(0o755)
    words = ["-p", "x", "--cwd", str(work), "--agent", f"command:{agent}"]
    ident = rolecall.json("thread", "start", str(disk_path / "keep-out.yaml"), *words)["thread"]
    env = {**os.environ, "ROLECALL_HOME": str(rolecall.home)}
    with subprocess.Popen([PROGRAM, "thread", "run", str(ident)], env=env, stdout=subprocess.PIPE) as command:
        assert reported.read() == "ready\n"
        inside = find_inside(command.pid)
        assert len(inside) >= 4, inside
        for pid in [command.pid] if whom == "the command" else [command.pid, *inside]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:  # it ended with another one
                continue
        command.communicate(timeout=60)
    reported.close()
    rolecall("thread", "run", str(ident), check=0)
    assert rolecall.json("thread", "show", str(ident))["status"] == "completed"
    for pid in inside:
        processes.gone(pid)
    assert not (disk_path / "out").exists()


def find_inside(command: int) -> list[int]:
    """The processes that have another user namespace than the command, and come from it."""
    outside, found = os.readlink(f"/proc/{command}/ns/user"), [command]
    for pid in found:
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(
                FileNotFoundError, ProcessLookupError
            ):  # a thread of the command that has just ended
                found += [int(word) for word in (task / "children").read_text().split()]
    own = {os.readlink(f"/proc/{pid}/ns/user") for pid in found} - {outside}
    everybody = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return [pid for pid in everybody if read_namespace(pid) in own]


def read_namespace(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/user")
    except OSError:
        return ""
