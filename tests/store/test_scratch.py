"""Folders of runs: gone with the run, also when its process is killed, and never while it goes on."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rolecall.store import scratch

HOLDER = """
from rolecall.store import scratch
with scratch.folder() as path:
    (path / "settings.json").write_text("{}")
    print(path, flush=True)
    input()
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


@pytest.fixture
def holder() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        yield child
        child.kill()


def path_of(holder: subprocess.Popen[str]) -> Path:
    assert holder.stdout is not None
    return Path(holder.stdout.readline().rstrip("\n"))


def test_a_folder_is_ours_alone_and_goes_with_the_run(place: Path) -> None:
    with scratch.folder() as path:
        assert path.parent == place and path.stat().st_mode & 0o777 == 0o700
        (path / "settings.json").write_text("{}")
    assert list(place.iterdir()) == []


def test_what_a_killed_process_left_is_removed_by_the_next_run(
    place: Path, holder: subprocess.Popen[str]
) -> None:
    path = path_of(holder)
    with scratch.folder():
        assert (path / "settings.json").exists()  # its process lives
    holder.kill()
    holder.wait()
    with scratch.folder() as own:
        assert list(place.iterdir()) == [own]


def test_a_link_with_such_a_name_leads_to_no_removal(
    place: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = tmp_path_factory.mktemp("other")
    (other / "kept").write_text("")
    (place / "rolecall-run-link").symlink_to(other)
    scratch.remove_unheld()
    assert (other / "kept").exists()


def test_many_at_once_keep_their_folders(place: Path) -> None:
    def use(_number: int) -> bool:
        with scratch.folder() as path:
            (path / "settings.json").write_text("{}")
            return (path / "settings.json").exists()

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(use, range(400)))
    assert list(place.iterdir()) == []
