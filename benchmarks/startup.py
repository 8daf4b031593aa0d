"""What a command costs before it does anything: `rolecall` against bare `python -c pass`.

Measured on a normal install, which pip compiles; when the running environment holds an editable one,
a throwaway environment is made and the repository installed into it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import distribution
from pathlib import Path

from benchmarks.measure import Row, Timing, interleaved, print_table, timed, times

_REPOSITORY = Path(__file__).parent.parent
_TARGET = 4.0
_CHECKING = 6.0


def main(*, quick: bool = False) -> None:
    rounds = 10 if quick else 40
    with tempfile.TemporaryDirectory(prefix="rolecall-bench-") as folder, installed(folder) as scripts:
        environ = clean_environ(folder)
        rolecall, python = str(scripts / "rolecall"), str(scripts / "python")
        put = subprocess.run(
            [rolecall, "cas", "put-text", "hello", "--format", "json"],
            env=environ, check=True, capture_output=True, text=True,
        )  # fmt: skip
        file = str(_REPOSITORY / "examples" / "fix-issue.yaml")
        commands = {
            "rolecall --version": (_TARGET, [rolecall, "--version"]),
            "rolecall cas get ID": (_TARGET, [rolecall, "cas", "get", json.loads(put.stdout)["hash"]]),
            "rolecall workflow validate FILE": (_CHECKING, [rolecall, "workflow", "validate", file]),
        }
        argvs = [[python, "-c", "pass"], *(argv for _, argv in commands.values())]
        runs = [run_of(argv, environ) for argv in argvs]
        interleaved(2, *runs)  # the first runs read the files from the disk
        bare, *found = interleaved(rounds, *runs)
    rows = [
        _row(name, timing, bare, target=target)
        for (name, (target, _)), timing in zip(commands.items(), found, strict=True)
    ]
    print_table(f"Start-up (median of {rounds} interleaved runs; peer: python -c pass)", rows)


def _row(name: str, timing: Timing, bare: Timing, *, target: float) -> Row:
    return Row(
        name,
        f"{timing.wall * 1e3:.1f} ms",
        f"{bare.wall * 1e3:.1f} ms",
        times(timing.wall, bare.wall),
        times(timing.cpu, bare.cpu),
        f"≤ {target:g}",
        timing.wall <= target * bare.wall,
    )


def run_of(command: list[str], environ: dict[str, str]) -> Callable[[], Timing]:
    return lambda: timed(lambda: subprocess.run(command, env=environ, check=True, capture_output=True))


def clean_environ(folder: str) -> dict[str, str]:
    """The caller's environment without what slows Python down or leads to the caller's own store."""
    left_out = ("PYTHON", "ROLECALL_", "COVERAGE_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    return {**kept, "ROLECALL_HOME": os.path.join(folder, "home")}


@contextmanager
def installed(folder: str) -> Iterator[Path]:
    """The folder of commands of an environment with a normal install."""
    if not _is_editable():
        yield Path(sys.executable).parent
        return
    target = Path(folder) / "venv"
    environ = {**clean_environ(folder), "PYTHON": sys.executable}
    subprocess.run(["sh", "scripts/make-venv", str(target)], cwd=_REPOSITORY, env=environ, check=True)
    pip = [str(target / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, str(_REPOSITORY)], env=environ, check=True)
    yield target / "bin"


def _is_editable() -> bool:
    origin = distribution("rolecall").read_text("direct_url.json")
    return bool(origin and json.loads(origin).get("dir_info", {}).get("editable"))


if __name__ == "__main__":
    main(quick="--quick" in sys.argv[1:])
