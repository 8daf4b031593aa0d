"""What knowledge costs: syncs of a large repository, questions in a warm and in a cold process, and how both grow.

Repositories are made of the Python files of whatever packages are installed. Questions are of every kind, taken
from the texts themselves; the figure is the median over them, and the worst one beside it. How good the answers are
is measured by `knowledge_quality.py`.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks import knowledge_quality
from benchmarks.measure import Row, Timing, peak_memory, print_table, timed
from benchmarks.startup import clean_environ, installed
from rolecall.knowledge import chunk, settings
from rolecall.knowledge.index import IndexReader
from rolecall.knowledge.query import OpenIndex, ask
from rolecall.knowledge.static import StaticModel
from rolecall.knowledge.sync import sync
from rolecall.settings.mask import Mask

_FILES = 2000
_SETTINGS = 'include: ["*.py"]\n'
_QUESTIONS = (
    "how does the cache work",
    "compute the shortest path between two nodes",
    "Return the list of all registered handlers for the given event",
    "ValueError",
    "parse_args",
    "get_value",
    "invalid literal for int() with base 10: 'abc'",
    "'NoneType' object has no attribute 'items'",
    "the value of self is not a string in the list of arguments for this function",
    "retry a request with exponential backoff",
)
_ROUNDS = 5


def main(*, quick: bool = False) -> None:
    with tempfile.TemporaryDirectory(prefix="rolecall-bench-") as folder:
        place = Path(folder)
        print_table("Sync (the embedded model, one process)", _sync_rows(place, 300 if quick else _FILES))
        sizes = (1_000, 10_000) if quick else (1_000, 10_000, 100_000)
        print_table("Questions in a warm process, by the number of passages", list(_query_rows(place, sizes)))
        print_table("`rolecall knowledge` as a command, of 10,000 passages", _command_rows(place))
    knowledge_quality.main(quick=quick)


# -- repositories --


def sources() -> Iterator[Path]:
    """Python files of installed packages, of this environment and of the Python it was made from."""
    places = [*sys.path, str(Path(sys.base_prefix) / f"lib/python3.{sys.version_info[1]}/site-packages")]
    for place in dict.fromkeys(Path(each) for each in places if each.endswith("site-packages")):
        for path in sorted(place.rglob("*.py")):
            if 500 < path.stat().st_size < 200_000 and not path.is_symlink():
                yield path


def filled(folder: Path, *, files: int = 0, passages: int = 0) -> Path:
    """A repository of so many files or passages; files are taken again under other names when there are not enough."""
    found = list(sources())
    random.Random(8).shuffle(found)
    count = number = 0
    while number < files or count < passages:
        source = found[number % len(found)]
        target = folder / f"part{number % 40}" / f"{number}_{source.name}"
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
        if passages:
            count += len(
                chunk.passages(source.name, source.read_text(encoding="utf-8", errors="replace"), limit=400)
            )
        number += 1
    (folder / "knowledge.yaml").write_text(_SETTINGS)
    return folder


def _synced(root: Path) -> int:
    """How many passages there are after a sync, in this process and without a cache."""
    report = sync(str(root), settings.load(_SETTINGS), StaticModel(), mask=Mask([]), now="")
    assert report.state is not None
    return report.state.passages


# -- sync --


def _sync_rows(place: Path, count: int) -> list[Row]:
    root = filled(place / "many", files=count)
    first = timed(lambda: _synced(root))
    again = [timed(lambda: _synced(root)) for _ in range(3)]
    changed = [_changed(root, number) for number in range(5)]
    size = (root / "knowledge.db").stat().st_size / 1e6
    rows = [
        _row(f"{count:,} files from nothing", first, 60.0),
        _row("nothing changed", _middle(again), 2.0),
        _row("one file changed", _middle(changed), 0.3),
        Row("the index", f"{size:.1f} MB"),
    ]
    shutil.rmtree(root)
    return rows


def _changed(root: Path, number: int) -> Timing:
    file = sorted(root.rglob("*.py"))[number]
    file.write_text(
        file.read_text(encoding="utf-8", errors="replace") + f"\n\ndef added_{number}():\n    return 1\n"
    )
    return timed(lambda: _synced(root))


def _middle(timings: list[Timing]) -> Timing:
    return sorted(timings)[len(timings) // 2]


def _row(name: str, timing: Timing, target: float) -> Row:
    shown = f"{timing.wall:.2f} s" if target >= 1 else f"{timing.wall * 1e3:.0f} ms"
    return Row(
        name, shown, target=f"≤ {target:g} s", met=timing.wall <= target, peer=f"{timing.cpu:.2f} s of CPU"
    )


# -- questions --


class Measured(NamedTuple):
    passages: int
    wall: float
    cpu: float
    worst: float
    memory: float


def _query_rows(place: Path, sizes: tuple[int, ...]) -> Iterator[Row]:
    targets = {10_000: 25.0, 100_000: 150.0}
    for size in sizes:
        root = filled(place / f"size{size}", passages=size)
        found = _asked(root)
        target = targets.get(size)
        yield Row(
            f"{found.passages:,} passages, a question",
            f"{found.wall:.1f} ms, worst {found.worst:.1f}",
            f"{found.cpu:.1f} ms of CPU",
            target=f"≤ {target:g} ms" if target else "",
            met=found.wall <= target if target else None,
        )
        yield Row(
            f"{found.passages:,} passages, memory",
            f"{found.memory:.0f} MB",
            target="≤ 400 MB",
            met=found.memory <= 400,
        )


def _asked(root: Path) -> Measured:
    """In a process of its own, so that its memory is its own."""
    _synced(root)
    command = [sys.executable, "-m", "benchmarks.knowledge", "--ask", str(root)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[1])
    return Measured(*json.loads(done.stdout))


def _ask(root: str) -> Measured:
    reader = IndexReader(os.path.join(root, "knowledge.db"))
    knowledge = OpenIndex(root, settings.load(_SETTINGS), reader, StaticModel())
    walls, cpus = [], []
    for text in _QUESTIONS:
        ask(text, [knowledge], limit=10)
        timings = []
        for _ in range(_ROUNDS):
            wall, cpu = time.perf_counter(), time.process_time()
            ask(text, [knowledge], limit=10)
            timings.append((time.perf_counter() - wall, time.process_time() - cpu))
        walls.append(median(timing[0] for timing in timings) * 1e3)
        cpus.append(median(timing[1] for timing in timings) * 1e3)
    return Measured(reader.state.passages, median(walls), median(cpus), max(walls), peak_memory())


# -- the command --


def _command_rows(place: Path) -> list[Row]:
    root = place / "size10000"
    with installed(str(place)) as scripts:
        if scripts.is_relative_to(place):
            pip = [
                str(scripts / "python"),
                "-m",
                "pip",
                "install",
                "--quiet",
                f"{Path(__file__).parents[1]}[knowledge]",
            ]
            subprocess.run(pip, check=True, capture_output=True)
        environ = clean_environ(str(place))
        commands = {
            "query, cold": (["query", _QUESTIONS[1], "--json"], 1.2),
            "query --words, cold": (["query", _QUESTIONS[1], "--words", "--json"], None),
            "sync, nothing changed": (["sync"], 2.0),
        }
        subprocess.run(
            [str(scripts / "rolecall"), "knowledge", "sync"],
            cwd=root,
            env=environ,
            check=True,
            capture_output=True,
        )
        return [_command_row(scripts, root, environ, name, *each) for name, each in commands.items()]


def _command_row(
    scripts: Path, root: Path, environ: dict[str, str], name: str, words: list[str], target: float | None
) -> Row:
    command = [str(scripts / "rolecall"), "knowledge", *words]

    def run() -> Timing:
        return timed(lambda: subprocess.run(command, cwd=root, env=environ, check=True, capture_output=True))

    run()
    timing = _middle([run() for _ in range(7)])
    return Row(
        name,
        f"{timing.cpu:.2f} s of CPU",
        f"{timing.wall:.2f} s",
        target=f"≤ {target:g} s of CPU" if target else "",
        met=timing.cpu <= target if target else None,
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--ask"]:
        print(json.dumps(_ask(sys.argv[2])))
    else:
        main(quick="--quick" in sys.argv[1:])
