"""What doctor says about the layers of a sandbox, and the one in which workflows are loaded."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from pathlib import Path

import pytest

from rolecall.agents.sandbox import Layers, find_layers
from rolecall.checks import machine, workflow_file

HELLO = """\
name: hello
description: A role without a network.
roles: {tests: {agent: "run:true", sandbox: {network: none}}}
graph: {$START: tests, tests: {passed: $END, failed: $END}}
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="says only that it is not Linux")
@pytest.mark.parametrize(
    ("layers", "env", "state", "part"),
    [
        (Layers(7, "own", True), {}, "ok", "Landlock 7, namespaces for mounts, process ids and the network"),
        (Layers(7, "bubblewrap"), {}, "ok", "namespaces by bubblewrap for mounts and the network"),
        (Layers(7), {}, "warning", "so `network` is not enforced"),
        (Layers(0, "own", True), {}, "warning", "the kernel has no Landlock"),
        (
            Layers(),
            {},
            "warning",
            "nothing can be enforced: restricted roles rely on the agents' own settings",
        ),
        (Layers(7, "own"), {"ROLECALL_SANDBOX": "off"}, "warning", "switched off by ROLECALL_SANDBOX"),
    ],
)
def test_doctor_says_what_the_kernel_can_enforce(
    layers: Layers, env: dict[str, str], state: str, part: str
) -> None:
    found = machine.check_sandbox(layers, env)
    assert found.state == state
    assert part in found.text


def test_doctor_says_what_forbids_namespaces(monkeypatch: pytest.MonkeyPatch) -> None:
    value = {"/proc/sys/user/max_user_namespaces": "0"}
    monkeypatch.setattr(machine, "_read", lambda path: value.get(path, ""))
    found = machine.check_sandbox(Layers(7), {})
    assert "no user namespaces (user.max_user_namespaces)" in found.text
    assert found.fix == "sudo sysctl -w user.max_user_namespaces=10000"


def test_a_workflow_in_python_is_loaded_where_it_can_neither_write_nor_connect(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        file = tmp_path / "hello.py"
        file.write_text(
            "import pathlib, socket\n"
            f"for path in ('{tmp_path}/written', '{tmp_path}/home/written'):\n"
            "    try: pathlib.Path(path).write_text('x')\n"
            "    except OSError: pass\n"
            f"try: socket.create_connection(('127.0.0.1', {server.getsockname()[1]}), 5); got = 'connected'\n"
            "except OSError: got = 'alone'\n"
            "raise ValueError(got)\n"
        )
        (tmp_path / "home").mkdir()
        env = {**os.environ, "HOME": str(tmp_path / "user"), "ROLECALL_HOME": str(tmp_path / "home")}
        checked = workflow_file.check([str(file)], folder=str(tmp_path), env=env, patience=60)
        [report] = asyncio.run(checked)
    assert "alone" in report.problems[0].message
    assert not (tmp_path / "written").exists()
    assert not (tmp_path / "home/written").exists()


@pytest.mark.skipif(find_layers().namespaces != "own", reason="this machine makes no namespaces")
def test_a_sandbox_that_the_machine_can_enforce_is_valid_before_there_is_a_home(tmp_path: Path) -> None:
    file = tmp_path / "hello.yaml"
    file.write_text(HELLO)
    env = {**os.environ, "ROLECALL_HOME": str(tmp_path / "home")}
    [report] = asyncio.run(workflow_file.check([str(file)], folder=str(tmp_path), env=env, patience=60))
    assert (report.problems, report.agents) == ((), ())
