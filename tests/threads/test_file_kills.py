"""An engine killed between snapshot, answer and commit: no step, attempt or note names files that are not there.

After each kill everything that is not named is removed at once, so that a tree which only the dead process knew of
is gone, and then a fresh process takes the thread to its end.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import actor
import pytest
import stage

from rolecall.files import tree_keep
from rolecall.files.tree import Trees
from rolecall.store.store import Store
from rolecall.threads import kept_files

KILLS = 7
"""At each place, spread over the whole run."""


@pytest.fixture(scope="module")
def server() -> Iterator[subprocess.Popen[str]]:
    words = [sys.executable, actor.__file__]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(timeout=60) == 0


@pytest.mark.parametrize(
    ("place", "is_reused"),
    [
        *((place, False) for place in ("take", "taken", "git", "commit", "committed", "logged")),
        *((place, True) for place in ("taken", "git", "commit")),
    ],
)
def test_no_step_names_files_that_are_not_there(
    tmp_path: Path, server: subprocess.Popen[str], place: str, is_reused: bool
) -> None:
    """If its steps are reused, a thread asks nobody, however often its process is killed."""
    trees = str(tmp_path / "trees")

    def order(name: str, at: int) -> Any:
        given = {"store": str(tmp_path / "store.db"), "thread": name, "log": str(tmp_path / name)}
        words = {**given, "agent": "function", "trees": trees, "place": place if at else "", "at": at}
        assert server.stdin is not None and server.stdout is not None
        server.stdin.write(json.dumps(words) + "\n")
        server.stdin.flush()
        return json.loads(server.stdout.readline())

    def check(store: Store) -> None:
        named = kept_files.name_trees(store)
        assert list(tree_keep.find_lost(trees, named)) == []
        assert tree_keep.collect(trees, named, before=time.time(), delete=True).problems == ()
        assert list(tree_keep.find_lost(trees, named)) == []

    with stage.open_store(tmp_path / "store.db") as store:

        def new_thread() -> str:
            count = sum(1 for _ in tmp_path.glob("work*"))
            folder = tmp_path / (f"work{count}" if is_reused else "work")
            return stage.start(store, stage.book(stage.LOOP), folder, reuse=is_reused)

        first = new_thread()
        counted = order(first, 0)
        if is_reused:
            counted = order(new_thread(), 0)
        assert counted["code"] == 0, counted
        total = actor.STEPS if place == "logged" else counted["told"][-1][place]
        kills = KILLS // 2 if is_reused else KILLS
        for at in sorted({1 + (total - 1) * kill // kills for kill in range(kills)}):
            name = new_thread()
            died = order(name, at)
            assert died["code"] == -signal.SIGKILL, (at, died)
            check(store)
            finished = order(name, 0)
            assert finished["code"] == 0, (at, finished)
            check(store)
            steps = stage.steps(store, name)
            assert len(steps) == actor.STEPS
            for number, step in enumerate(steps, 1):
                assert step.tree is not None, (at, number)
                last = Trees(trees).read(step.tree.left, f"file{number}")
                assert last.startswith((first if is_reused else name).encode()), (at, number)
                assert (step.reused is not None) is is_reused, (at, number)
                assert Path(step.payload["cwd"], f"file{number}").read_bytes() == last, (at, number)
