"""What a sandbox costs a step: `process.run` of `true` with and without one, round by round in turn, for each way in
which a machine can enforce it, and what a process without one imports for it: nothing.

What counts is the processor's time, of ours and of the child's: the clock shows the machine's load as well.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

from benchmarks.measure import Row, Timing, interleaved, print_table, timed, times
from rolecall.agents import process, sandbox
from rolecall.agents.sandbox import Layers, Policy
from rolecall.workflow.model import Sandbox

_BUDGET = 0.015
_FILES, _MANY_FILES = 100, 3_000
"""In the home, which Landlock alone has to list."""


def main(*, quick: bool = False) -> None:
    rounds = 15 if quick else 101
    found = sandbox.find_layers()
    ways = {
        "namespaces and Landlock": found,
        "the same without a network": found,
        "Landlock alone": Layers(found.landlock),
        "Landlock alone, many files": Layers(found.landlock),
        "namespaces alone": Layers(0, found.namespaces, found.has_pids),
    }
    if shutil.which("bwrap"):
        ways["bubblewrap and Landlock"] = Layers(found.landlock, "bubblewrap", True)
    with tempfile.TemporaryDirectory(prefix="rolecall-bench-", dir="/var/tmp") as folder:
        for files in (_FILES, _MANY_FILES):
            home = Path(folder, str(files))
            for path in (home / "work", home / ".ssh"):
                path.mkdir(parents=True)
            for number in range(files):
                (home / f"file{number}").touch()
        works = [partial(_step, home / "work", None), partial(_python, ["-I", "-S"])]
        for name, layers in ways.items():
            home = Path(folder, str(_MANY_FILES if "many" in name else _FILES))
            said = Sandbox(network="none" if "network" in name else "all")
            policy = sandbox.plan(
                said, (), workdir=home / "work", env={"HOME": str(home)}, private=[], layers=layers
            )
            works.append(partial(_step, home / "work", policy))
        interleaved(1, *works)
        plain, python, *taken = interleaved(rounds, *works)
    rows = [_row(name, timing, plain) for name, timing in zip(ways, taken, strict=True)]
    bare = f"{python.cpu * 1e3:.1f} ms"
    rows.append(Row("of that, `python -I -S -c pass`", bare))
    rows.append(_imports("rolecall --version", "from rolecall.__main__ import main; main(['--version'])"))
    rows.append(_imports("a step without a sandbox", _STEP))
    title = f"median of {rounds} in turn; processor time; {_FILES} or {_MANY_FILES:,} files in the home"
    print_table(f"Sandbox, more than a step without one ({title})", rows)


def _step(work: Path, policy: Policy | None) -> Timing:
    async def run() -> None:
        ended = await process.run(["true"], cwd=work, env={"PATH": os.defpath}, sandbox=policy)
        assert ended.code == 0, ended

    return timed(lambda: asyncio.run(run()))


def _python(flags: list[str]) -> Timing:
    words = [os.path.realpath(sys.executable), *flags, "-c", "pass"]
    return timed(lambda: subprocess.run(words, check=True))


def _row(name: str, timing: Timing, plain: Timing) -> Row:
    more = timing.cpu - plain.cpu
    return Row(
        name,
        f"{more * 1e3:.1f} ms",
        f"{plain.cpu * 1e3:.1f} ms",
        times(timing.wall, plain.wall),
        times(timing.cpu, plain.cpu),
        f"< {_BUDGET * 1e3:.0f} ms" if "bubblewrap" not in name else "",
        more < _BUDGET if "bubblewrap" not in name else None,
    )


_STEP = """
import asyncio, pathlib
from rolecall.agents import process
asyncio.run(process.run(["true"], cwd=pathlib.Path("/"), env={"PATH": "/usr/bin:/bin"}))
"""


def _imports(name: str, source: str) -> Row:
    """How many modules of the sandbox a process has imported that needs none."""
    seen = "[name for name in sys.modules if 'sandbox' in name or name == 'ctypes']"
    tell = f"import atexit, sys; atexit.register(lambda: print({seen}))"
    words = [sys.executable, "-I", "-c", f"{tell}\n{source}"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    seen = done.stdout.splitlines()[-1]
    return Row(f"modules that {name} imports for it", seen, target="[]", met=seen == "[]")


if __name__ == "__main__":
    main(quick="--quick" in sys.argv[1:])
