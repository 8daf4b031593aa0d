"""Copies of Python workflows: the same content is one copy, and a copy has all it needs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rolecall.errors import UsageError
from rolecall.workflow import versions


def write(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def copied(file: Path, into: Path) -> dict[str, str]:
    """What lies in the copy, by its path in it."""
    kept = Path(versions.keep(str(file), str(into)))
    root = next(parent for parent in kept.parents if parent.parent == into)
    return {str(path.relative_to(root)): path.read_text() for path in root.rglob("*") if path.is_file()}


def test_a_file_is_copied_with_all_it_imports_from_beside_it(tmp_path: Path) -> None:
    folder = tmp_path / "workflows"
    file = write(
        folder / "run-it.py", "from .prompts import P\ndef f():\n    from . import late\nimport json\n"
    )
    write(folder / "prompts.py", "from .deep.words import W\n")
    write(folder / "deep" / "__init__.py")
    write(folder / "deep" / "words.py", "from ..prompts import P\n")
    write(folder / "late.py")
    write(folder / "other.py")
    into = tmp_path / "versions"
    assert sorted(copied(file, into)) == [
        "deep/__init__.py",
        "deep/words.py",
        "late.py",
        "prompts.py",
        "run-it.py",
    ]


def test_the_folder_of_an_index_is_copied_whole_under_its_own_name(tmp_path: Path) -> None:
    folder = tmp_path / "workflows" / "run-it"
    file = write(folder / "index.py", "x = 1\n")
    write(folder / "roles" / "writer.md", "Write.\n")
    write(folder / "__pycache__" / "index.pyc")
    write(folder / ".hidden")
    assert copied(file, tmp_path / "versions") == {
        "run-it/index.py": "x = 1\n",
        "run-it/roles/writer.md": "Write.\n",
    }


def test_only_another_content_is_another_copy(tmp_path: Path) -> None:
    file, into = write(tmp_path / "w" / "a.py", "x = 1\n"), tmp_path / "versions"
    first = versions.keep(str(file), str(into))
    assert versions.keep(str(file), str(into)) == first
    write(file, "x = 2\n")
    second = versions.keep(str(file), str(into))
    assert second != first
    assert (Path(first).read_text(), Path(second).read_text()) == ("x = 1\n", "x = 2\n")
    assert len(list(into.iterdir())) == 2


def test_a_copy_goes_that_nobody_needs_and_nobody_has_wanted_lately(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.mkdir()
    (tmp_path / "home").symlink_to(real)
    into = tmp_path / "home" / "versions"
    kept = [
        versions.keep(str(write(tmp_path / "w" / "a.py", f"x = {number}\n")), str(into))
        for number in range(4)
    ]
    for path in kept:
        os.utime(Path(path).parent, (1000, 1000))
    versions.keep(str(tmp_path / "w" / "a.py"), str(into))  # the last one is wanted again
    needed = {str(Path(kept[0]).resolve()), f"{kept[1]}:flow", "/elsewhere/a.py"}
    assert versions.clean(str(into), needed, before=2000) == [str(Path(kept[2]).parent)]
    assert [Path(path).exists() for path in kept] == [True, True, False, True]
    assert versions.clean(str(tmp_path / "nowhere"), (), before=2000) == []


def test_a_folder_that_is_too_large_is_refused(tmp_path: Path) -> None:
    file = write(tmp_path / "big" / "index.py")
    with (tmp_path / "big" / "data.bin").open("wb") as data:
        data.truncate(versions.MOST_BYTES + 1)
    with pytest.raises(UsageError, match="20 MB"):
        versions.keep(str(file), str(tmp_path / "versions"))
    assert not (tmp_path / "versions").exists()
