"""Which files a text names."""

from __future__ import annotations

import pytest

from rolecall.crew.filenames import named

THERE = {"Makefile", ".env", "src/rolecall/run", "notes", "문서/설계.md", "图.svg"}


def files(text: str) -> set[str]:
    return set(named([text], "/srv/project", THERE.__contains__))


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
        ("", set()),
    ],
)
def test_files_are_found_by_their_look_or_because_they_are_there(text: str, expected: set[str]) -> None:
    assert files(text) == expected


def test_a_long_text_takes_time_by_its_length() -> None:
    for long in (
        "a/" * 200_000 + "b.py " + "." * 200_000,
        "가" * 200_000,
        "가." * 100_000,
        "a가" * 100_000 + ".",
    ):
        assert files(long) >= set()
