"""Which files a text names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rolecall.nexus.filenames import ProjectFiles, find_changed_since, find_names

THERE = {
    "Makefile", ".env", "src/rolecall/run", "notes", "문서/설계.md", "图.svg", "lib/one.c", "lib/two.c", "lib/one.h",
    "lib/deep/three.c", ".nexus/state/four.c", ".git/five.c",
}  # fmt: skip


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("named").resolve() / "project"
    for name in THERE:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    (root / "lib" / ("l" * 250)).touch()
    (root / "lib/link.c").symlink_to("one.c")
    (root / "linked").symlink_to("lib")
    (root / "out.c").symlink_to("/dev/null")
    (root.parent / "other-name").symlink_to(root)
    return root


def files(text: str, project: Path) -> set[str]:
    return set(find_names([text.replace("/srv", str(project.parent))], ProjectFiles(str(project))))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Change src/a.py.", {"src/a.py"}),
        ("Change ./src/a.py, then src//a.py and src/x/../a.py:12:3!", {"src/a.py"}),
        ("`calc.py` and (lib/x.c); 'docs/b.md'", {"calc.py", "lib/x.c", "docs/b.md"}),
        ("tests/test_x.py::test_y fails", {"tests/test_x.py"}),
        ("The Makefile, .env and src/rolecall/run", {"Makefile", ".env", "src/rolecall/run"}),
        ("/srv/project/src/a.py but not /etc/app.conf or ../other/b.py", {"src/a.py"}),
        (".github/workflows/ci.yml", {".github/workflows/ci.yml"}),
        ("See https://example.com/a/b.html and ftp://host/x.txt", set()),
        ("With Node.js 20.1, e.g. and/or i.e. v1.2.3, src/ and tests/", set()),
        ("mail me@example.com about example.com", set()),
        ("never .nexus/state/tasks.json, but .nexus/rules/a.md", {".nexus/rules/a.md"}),
        ("Ändere src/größe.py und docs/Übersicht.md!", {"src/größe.py", "docs/Übersicht.md"}),
        ("Измени код/разбор.py", {"код/разбор.py"}),
        ("src/a.py를 고치고 修改src/b.py文件，src/c.pyを直す", {"src/a.py", "src/b.py", "src/c.py"}),
        ("문서/설계.md를 고친다, 图.svg too", {"문서/설계.md", "图.svg"}),
        ("Every lib/*.c", {"lib/one.c", "lib/two.c"}),
        ("Every **/*.c, or lib/**/*.c", {"lib/one.c", "lib/two.c", "lib/deep/three.c", "/dev/null"}),
        ("./lib/t*.c and /srv/project/lib/*.h", {"lib/two.c", "lib/one.h"}),
        ("2*3 is **bold**, lib/* and *.nothing", set()),
        ("lib/link.c and linked/one.c", {"lib/one.c"}),
        ("linked/new.c", {"lib/new.c"}),
        ("/srv/other-name/lib/one.c", {"lib/one.c"}),
        ("out.c", {"/dev/null"}),
        ("", set()),
    ],
)
def test_files_are_found_by_their_look_or_because_they_are_there(
    text: str, expected: set[str], project: Path
) -> None:
    assert files(text, project) == expected


def test_a_long_text_takes_time_by_its_length(project: Path) -> None:
    for long in (
        "a/" * 200_000 + "b.py " + "." * 200_000,
        "가" * 200_000,
        "가." * 100_000,
        "a가" * 100_000 + ".",
        "*a" * 200_000 + ".py",
        "*" * 200_000 + ".py",
        "a*b.py " * 50_000,
        "**/**/**/**/x.py and " + "*l" * 8 + ".py",
    ):
        assert files(long, project) >= set()


def test_a_file_changed_since_when_it_was_written_or_may_have_been_removed(tmp_path: Path) -> None:
    for name, seconds in (("old/a", 100), ("new/b", 300), ("new/c", 100)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (seconds, seconds))
    for folder, seconds in (("old", 100), ("new", 300), (".", 100)):
        os.utime(tmp_path / folder, (seconds, seconds))
    names = ["old/a", "old/never", "new/b", "new/c", "new/gone", "never/there"]
    assert find_changed_since(str(tmp_path), names, "1970-01-01T00:03:20.000Z") == {"new/b", "new/gone"}
    assert find_changed_since(str(tmp_path), names, "no time") == frozenset()
