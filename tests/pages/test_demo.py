"""`make demo` without the `make`: the demo in an environment with nothing but a home, a path and a language."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

DEMO = Path(__file__).parents[2] / "examples" / "demo.py"


def test_the_demo_runs_to_its_end_and_keeps_its_threads_for_the_page(tmp_path: Path) -> None:
    names = ("PATH", "LANG", "LC_ALL")
    environment = {name: os.environ[name] for name in names if name in os.environ}
    home, temporary = tmp_path / "home", tmp_path / "tmp"
    home.mkdir()
    temporary.mkdir()
    done = subprocess.run(
        [sys.executable, str(DEMO)],
        env={**environment, "HOME": str(home), "TMPDIR": str(temporary)},
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=300,
        check=False,
    )
    printed = done.stdout.decode()
    assert done.returncode == 0, printed + done.stderr.decode()
    assert printed.count("✓ 5 reviewer · approved") == 2  # the thread, and its fork
    assert [*temporary.iterdir()] == []
    place = home / ".cache" / "rolecall-demo"
    assert [
        path for path in home.rglob("*") if path not in place.parents and place not in (path, *path.parents)
    ] == []

    with subprocess.Popen(
        [sys.executable, str(DEMO), "web"],
        env={**environment, "HOME": str(home)},
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as page:
        assert page.stdout is not None
        link = page.stdout.readline()
        page.terminate()
    assert link.startswith("http://127.0.0.1:")


def test_the_demo_of_evaluations_shows_a_difference(tmp_path: Path) -> None:
    names = ("PATH", "LANG", "LC_ALL")
    environment = {name: os.environ[name] for name in names if name in os.environ}
    done = subprocess.run(
        [sys.executable, str(DEMO), "eval"],
        env={**environment, "HOME": str(tmp_path)},
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=300,
        check=False,
    )
    printed = done.stdout.decode()
    assert done.returncode == 0, printed + done.stderr.decode()
    assert "the judges are right about every reference and every cheat" in printed
    assert "done: 30 passed, 18 failed" in printed
    assert "hasty    33 %" in printed and "careful  92 %" in printed
    assert printed.count(" · reused") == 14
