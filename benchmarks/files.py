"""The files of steps: what recording them adds to a step, and how much it stores.

Each figure is a step of an engine that records files beside a step of one that does not, in turn, with the same agent
in folders with the same content: git repositories whose files are committed. The agent changes one line of one file, or
nothing. Most of the time goes to five short runs of git, so a busy machine shows several times the processor time.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks.engine import Player, answer
from benchmarks.measure import Row, interleaved, print_table, timed, times
from rolecall.files.tree import Trees

_SMALL_MS = 40.0
_LARGE_MS = 300.0
_STILL_BYTES = 200
_CHANGED_MB = 10.0
_LINES = 100


def main(*, quick: bool = False) -> None:
    with tempfile.TemporaryDirectory(prefix="rolecall-bench-") as folder:
        speed(folder, rounds=5 if quick else 15, largest=5_000 if quick else 50_000)
        size(folder, steps=200 if quick else 1_000)


class Pair:
    """Two threads in equal folders, of which the first records its files."""

    def __init__(self, folder: str, files: int, *, changes: bool, has_git: bool = True) -> None:
        os.makedirs(folder)
        self.trees = os.path.join(folder, "trees")
        self._numbers = count(1)
        self._changes = changes
        self.players = []
        for name, trees in (("recorded", Trees(self.trees)), ("plain", None)):
            work = os.path.join(folder, name)
            _write_files(work, files, has_git=has_git)
            store = os.path.join(folder, f"{name}-store", "store.db")
            os.makedirs(os.path.dirname(store))
            player = Player(store, work=work, trees=trees, agent=self._answer)
            player.step()
            self.players.append(player)

    async def _answer(self, prompt: str, context: Any) -> str:
        if self._changes:
            number = next(self._numbers)
            path = Path(context.workdir, "folder0", f"file{number % 10}.txt")
            lines = path.read_text(encoding="utf-8").splitlines()
            lines[number % _LINES] = f"changed by step {number}"
            path.write_text("\n".join(lines), encoding="utf-8")
        return await answer(prompt, context)

    def close(self) -> int:
        """Close the stores, and return how many more bytes the nodes of the first one have."""
        recorded, plain = (int(player.store.backend.size()["bytes"]) for player in self.players)
        for player in self.players:
            player.close()
        return recorded - plain


def speed(folder: str, *, rounds: int, largest: int) -> None:
    rows = []
    for files in (10, 1_000, largest):
        for changes in (True, False):
            pair = Pair(os.path.join(folder, f"speed-{files}-{changes}"), files, changes=changes)
            recorded, plain = interleaved(rounds, *(lambda p=p: timed(p.step) for p in pair.players))
            pair.close()
            added, limit = (recorded.wall - plain.wall) * 1e3, _LARGE_MS if files > 1_000 else _SMALL_MS
            row = Row(
                f"a step in {files:,} files that changes {'one' if changes else 'none'}",
                f"{recorded.wall * 1e3:.1f} ms",
                f"{plain.wall * 1e3:.1f} ms",
                times(recorded.wall, plain.wall),
                times(recorded.cpu, plain.cpu),
                f"{added:.0f} ≤ {limit:g} ms more",
                added <= limit,
            )
            processor = (recorded.cpu - plain.cpu) * 1e3
            rows += [row, Row("  more processor time", f"{processor:.0f} ms")]
    print_table(f"A step that records its files against one that does not, {rounds} rounds in turn", rows)


def size(folder: str, *, steps: int) -> None:
    still, changing = (
        Pair(os.path.join(folder, f"size-{changes}"), 100, changes=changes) for changes in (False, True)
    )
    before = _disk_use(still.trees), _disk_use(changing.trees)
    for pair in (still, changing):
        for player in pair.players:
            player.step(steps)
    after = _disk_use(still.trees), _disk_use(changing.trees)
    each = (still.close() + after[0] - before[0]) / steps
    total = (changing.close() + after[1] - before[1]) / 1e6
    print_table(
        f"What {steps:,} steps store for their files",
        [
            Row(
                "a step that changes nothing",
                f"{each:.0f} bytes",
                target=f"< {_STILL_BYTES} bytes",
                met=each < _STILL_BYTES,
            ),
            Row(
                f"{steps:,} steps that change one line each",
                f"{total:.1f} MB",
                target=f"< {_CHANGED_MB:g} MB",
                met=total < _CHANGED_MB,
            ),
        ],
    )


def _write_files(folder: str, number: int, *, has_git: bool) -> None:
    for at in range(number):
        path = Path(folder, f"folder{at // 50}", f"file{at % 50}.txt")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"line {line} of file {at}\n" for line in range(_LINES)), encoding="utf-8")
    if has_git:
        who = ("-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "gc.auto=0")
        for words in (("init", "--quiet"), ("add", "."), ("commit", "--quiet", "--message", "first")):
            subprocess.run(["git", "-C", folder, *who, *words], check=True)


def _disk_use(folder: str) -> int:
    """The bytes that the files below a folder take on disk, without the indexes, which do not grow."""
    return sum(os.lstat(path).st_blocks * 512 for path in _files_below(folder))


def _files_below(folder: str) -> Iterator[str]:
    for top, _, names in os.walk(folder):
        yield from (os.path.join(top, name) for name in names if "indexes" not in top)


if __name__ == "__main__":
    main(quick="--quick" in sys.argv[1:])
