"""Answers stay as good as they are said to be, measured as the benchmark does on a package that Python brings."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from knowledge.knowrepo import Repo

ROOT = Path(__file__).parents[2]


class Row:
    """A line of the benchmark's table."""

    def __init__(self, line: str) -> None:
        kind, count, *numbers = line.split()
        self.kind, self.count = kind, int(count)
        figures = [float(number) for number in numbers[:6]]
        self.mrr = dict(zip(("words", "vectors", "fused"), figures[::2], strict=True))
        self.recall = dict(zip(("words", "vectors", "fused"), figures[1::2], strict=True))


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Row]:
    folder = tmp_path_factory.mktemp("quality")
    history = Repo(folder / "history", folder / "home")
    history.commit()
    history.write({"docs/storm.md": "# Storm\n\nLanterns are taken in before a storm.\n"})
    history.git("add", "--all")
    history.git("commit", "--quiet", "-m", "Take lanterns in before a storm")
    command = [
        sys.executable,
        "-m",
        "benchmarks.knowledge_quality",
        "--group",
        "judged on",
        "--only",
        "email",
    ]
    done = subprocess.run(
        [*command, "--most", "20", "--repo", str(history.folder)],
        cwd=ROOT, env=history.env, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return rows_of(done.stdout)


def rows_of(told: str) -> dict[str, Row]:
    lines = [line for line in told.splitlines() if len(line.split()) > 7 and line.split()[1].isdigit()]
    return {row.kind: row for row in map(Row, lines)}


def test_every_kind_of_question_is_asked(rows: dict[str, Row]) -> None:
    assert set(rows) == {"docstring", "documented", "heading", "identifier", "error", "commit", "all"}
    assert all(rows[kind].count >= 15 for kind in ("docstring", "documented", "heading", "identifier"))
    assert rows["commit"].count == 1


def test_names_are_found(rows: dict[str, Row]) -> None:
    assert rows["identifier"].recall["fused"] >= 0.95


@pytest.mark.parametrize("kind", ["documented", "identifier", "error"])
def test_words_and_vectors_together_are_far_better_than_vectors(rows: dict[str, Row], kind: str) -> None:
    assert rows[kind].mrr["fused"] >= 1.25 * rows[kind].mrr["vectors"]


@pytest.mark.parametrize("kind", ["docstring", "documented", "heading", "identifier", "error"])
def test_vectors_do_not_spoil_what_words_find(rows: dict[str, Row], kind: str) -> None:
    row = rows[kind]
    assert row.mrr["fused"] >= row.mrr["words"] - 1 / row.count  # one question may fall from first to nowhere


def test_source_trees_of_any_language_are_asked_in_more_ways(tmp_path: Path) -> None:
    lamps = "".join(
        f"/**\n * Fills {name} lanterns with oil. Nobody may be on the ladder.\n */\n"
        f"function fill{name}Lantern(oil) {{\n  if (!oil) {{\n"
        f"    throw new Error('no oil is left for the {name} lantern');\n  }}\n  return oil;\n}}\n"
        for name in ("Harbour", "Market", "Chapel", "Tower")
    )
    patch = "Subject: Never fill the tower twice\n--- a/lamps.js\n+++ b/lamps.js\n@@ -1 +1 @@\n"
    files = {
        "lamps.js": lamps,
        "README.md": "# The harbour lights\n\nThey burn all night long in every season.\n",
    }
    for name, text in {**files, "debian/patches/1.patch": patch}.items():
        path = tmp_path / "trees" / "lamps" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "benchmarks.knowledge_quality", "--trees", str(tmp_path / "trees")]
    env = {**os.environ, "HOME": str(tmp_path), "ROLECALL_HOME": str(tmp_path / "home")}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = rows_of(done.stdout)
    assert set(found) == {
        "docstring", "how", "documented", "heading", "section", "identifier", "recased", "spelled", "error",
        "logged", "trace", "commit", "whole", "all",
    }  # fmt: skip
    assert found["trace"].mrr["fused"] == found["identifier"].mrr["fused"] == 1.0
    assert found["docstring"].count == 2 and found["identifier"].count == 4
