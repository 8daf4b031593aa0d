"""Ways out of a sandbox. Each gets out without one, which shows that the test can fail, and none gets out of it."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import time
from collections.abc import Iterator

import pytest
from escapes import (
    BUBBLEWRAP,
    COMMANDS,
    DAEMONS,
    FILES,
    GIT,
    LANDLOCK,
    MOUNTS,
    NETWORK,
    NO_PIDS,
    OPEN_COMMANDS,
    OTHERS,
    OWN,
    RUN,
    SECRETS,
    Way,
    leftovers,
)
from scene import PYTHON, Scene

from rolecall.agents import process
from rolecall.agents.process import Exit
from rolecall.agents.sandbox import Layers, Needs, Policy, find_layers
from rolecall.workflow.model import Sandbox

BOUND = 120.0
LAYERS = {
    "both": Layers(7, "own", True),
    NO_PIDS: Layers(7, "own", False),
    LANDLOCK: Layers(7, "", False),
    MOUNTS: Layers(0, "own", True),
    BUBBLEWRAP: Layers(0, "bubblewrap", True),
}


@pytest.fixture(autouse=True)
def needed_layers(request: pytest.FixtureRequest) -> None:
    """Skip what this machine cannot enforce."""
    parameters = request.node.callspec.params if hasattr(request.node, "callspec") else {}
    wanted, found = LAYERS[parameters.get("layers", "both")], find_layers()
    if wanted.namespaces == "bubblewrap" and shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    if wanted.landlock > found.landlock or (wanted.namespaces == "own" and found.namespaces != "own"):
        pytest.skip(f"this machine can enforce only {found}")


@pytest.fixture(scope="module")
def module_scene() -> Iterator[Scene]:
    made = Scene()
    yield made
    made.close()


@pytest.fixture
def scene(module_scene: Scene) -> Scene:
    module_scene.set()
    return module_scene


def run(scene: Scene, script: str, policy: Policy | None) -> Exit:
    return start(scene, ["/bin/sh", "-c", script], policy)


def start(scene: Scene, argv: list[str], policy: Policy | None) -> Exit:
    async def bounded() -> Exit:
        return await asyncio.wait_for(process.run(argv, cwd=scene.work, env=scene.env, sandbox=policy), BOUND)

    return asyncio.run(bounded())


def named(ways: list[Way]) -> list[object]:
    can = os.getuid() == 0
    skip = pytest.mark.skipif(not can, reason="only root could do it without a sandbox")
    return [pytest.param(way, id=way.name, marks=[skip] if way.needs_root else []) for way in ways]


@pytest.mark.parametrize("way", named([*FILES, *SECRETS, *OTHERS, *GIT, *NETWORK, *OWN, *DAEMONS]))
def test_it_gets_out_without_a_sandbox(scene: Scene, way: Way) -> None:
    ended = run(scene, way.script, None)
    end = time.monotonic() + BOUND
    while not way.has_happened(scene, ended.stdout):  # another program stops a moment after its signal
        assert time.monotonic() < end, ended
        time.sleep(0.01)


@pytest.mark.parametrize("layers", LAYERS)
@pytest.mark.parametrize("way", named([*FILES, *SECRETS, *OTHERS, *GIT, *DAEMONS]))
def test_it_does_not_get_out_of_a_sandbox(scene: Scene, way: Way, layers: str) -> None:
    policy = scene.plan(LAYERS[layers])
    ended = run(scene, way.script, policy)
    assert policy.enforced, ended
    assert way.has_happened(scene, ended.stdout) == (layers in way.open_in), ended


@pytest.mark.parametrize("layers", [name for name in LAYERS if name != LANDLOCK])
@pytest.mark.parametrize("way", named(NETWORK))
def test_it_reaches_nobody_without_a_network(scene: Scene, way: Way, layers: str) -> None:
    policy = scene.plan(LAYERS[layers], Sandbox(network="none"))
    ended = run(scene, way.script, policy)
    assert "network: a namespace" in policy.enforced, ended
    assert not way.has_happened(scene, ended.stdout), ended


@pytest.mark.parametrize("layers", ["both", LANDLOCK, MOUNTS])
@pytest.mark.parametrize("way", named(OWN))
def test_our_own_command_does_not_write_from_inside(scene: Scene, way: Way, layers: str) -> None:
    policy = scene.plan(LAYERS[layers]).grant(Needs(read=(sys.base_prefix,)))
    ended = run(scene, f"$ROLECALL --version && {way.script}", policy)
    assert ended.stdout.startswith("rolecall"), ended
    assert way.has_happened(scene, ended.stdout) == (layers in way.open_in), ended


@pytest.mark.parametrize("name", [*COMMANDS, *OPEN_COMMANDS])
def test_a_role_without_commands_runs_none(scene: Scene, name: str) -> None:
    argv = [PYTHON, "-I", "-S", "-c", RUN.format({**COMMANDS, **OPEN_COMMANDS}[name])]
    policy = scene.plan(LAYERS["both"], None, "no_shell_exec")
    assert "GOT OUT" in start(scene, argv, None).stdout
    scene.set()
    assert ("GOT OUT" in start(scene, argv, policy).stdout) == (name in OPEN_COMMANDS)


def test_memory_has_a_limit_also_in_files_that_are_kept_there(scene: Scene) -> None:
    script = (
        f"{PYTHON} -c 'bytearray(300 << 20); print(1)'; "
        "head -c 300M /dev/zero > /dev/shm/x && echo 2; rm -f /dev/shm/x; head -c 300M /dev/zero > /tmp/$MARK && echo 3"
    )
    policy = scene.plan(LAYERS["both"], Sandbox(memory=100 << 20))
    ended = run(scene, script, policy)
    assert ended.stdout == "", ended
    assert f"memory: {100 << 20}" in policy.enforced
    assert run(scene, script, scene.plan(LAYERS["both"])).stdout == "1\n2\n3\n"


def test_a_program_that_takes_too_long_is_ended(scene: Scene) -> None:
    ended = run(scene, "sleep 900.$MARK", scene.plan(LAYERS["both"], Sandbox(seconds=0.5)))
    assert ended.ending == "timeout"
    assert not leftovers(scene.mark)
