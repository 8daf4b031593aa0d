"""The guard itself: a test that writes to the real home fails the run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def _run_pytest(tmp_path: Path, body: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "home").mkdir()
    (tmp_path / "test_it.py").write_text(body)
    environ = {k: v for k, v in os.environ.items() if k not in ("ROLECALL_HOME", "PYTEST_XDIST_WORKER")}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "home_guard", "-p", "no:cacheprovider", str(tmp_path)],
        env={**environ, "HOME": str(tmp_path / "home"), "PYTHONPATH": str(Path(__file__).parent)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_run_that_writes_to_the_real_home_fails(tmp_path: Path) -> None:
    real = tmp_path / "home" / ".rolecall"
    done = _run_pytest(
        tmp_path, f"from pathlib import Path\ndef test_bad():\n    Path({str(real)!r}).mkdir()\n"
    )
    assert done.returncode == 1
    assert f"touched the real home {real}" in done.stdout


def test_a_run_that_uses_its_own_home_passes(tmp_path: Path) -> None:
    done = _run_pytest(
        tmp_path,
        "from rolecall.settings import config\nimport os\ndef test_good():\n    os.makedirs(config.home())\n",
    )
    assert done.returncode == 0, done.stdout
    assert not (tmp_path / "home" / ".rolecall").exists()
