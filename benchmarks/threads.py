"""What the thread verbs cost on the command line: reading a thread, listing threads, taking one step.

Each is a process of its own, measured against bare `python -c pass` of the same environment, and the
reading verbs once more on a store of a million nodes against one of a thousand.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.engine import Player
from benchmarks.measure import Row, Timing, interleaved, print_table, times
from benchmarks.startup import clean_environ, installed, run_of
from benchmarks.store import build_tree
from rolecall.store.store import Store
from rolecall.threads import thread

_READING = 5.0
_STEPPING = 12.0
_GROWTH = 1.3
_THREADS = 10_000
_PAGE = 50
_BATCH = 500


def main(*, quick: bool = False) -> None:
    rounds = 7 if quick else 30
    with tempfile.TemporaryDirectory(prefix="rolecall-bench-") as folder, installed(folder) as scripts:
        command = Command(scripts, clean_environ(folder))
        against_python(folder, command, rounds=rounds, steps=100 if quick else 1_000)
        growth(folder, command, rounds=rounds, nodes=50_000 if quick else 1_000_000)


class Command(NamedTuple):
    scripts: Path
    environ: dict[str, str]

    def timing(self, *args: str) -> partial[Timing]:
        """How long `rolecall thread ARGS` takes."""
        return partial(self._run, str(self.scripts / "rolecall"), "thread", *args)

    def bare(self) -> partial[Timing]:
        return partial(self._run, str(self.scripts / "python"), "-c", "pass")

    def _run(self, *args: str) -> Timing:
        return run_of(list(args), self.environ)()


# -- against Python's own start --


def against_python(folder: str, command: Command, *, rounds: int, steps: int) -> None:
    short, short_id = played(os.path.join(folder, "one.db"), 1)
    long, long_id = played(os.path.join(folder, "many.db"), steps)
    crowded = os.path.join(folder, "crowd.db")
    crowd(crowded, _THREADS)
    # In folders of their own: to the step of one, the store of the other is a file that has changed.
    stepped, stepped_id = played(os.path.join(tempfile.mkdtemp(dir=folder), "store.db"), 1)
    quoted, quoted_id = played(os.path.join(tempfile.mkdtemp(dir=folder), "store.db"), 1)
    plain = ("--agent", _agent(folder, "as always"))
    harder = ("--agent", _agent(folder, '"as always"'))
    works: dict[str, tuple[float | None, tuple[str, ...]]] = {
        "show, 1 step": (_READING, ("show", short_id, "--store", short)),
        f"show, {steps:,} steps": (_READING, ("show", long_id, "--store", long)),
        f"list, a page of {_THREADS:,} threads": (_READING, ("list", "--store", crowded)),
        "read, 1 step": (_READING, ("read", short_id, "--store", short)),
        f"read, {steps:,} steps": (_READING, ("read", long_id, "--store", long)),
        "step, agent `cat FILE`": (_STEPPING, ("step", stepped_id, "--store", stepped, *plain)),
        "  an answer with quotes": (None, ("step", quoted_id, "--store", quoted, *harder)),
    }
    timings = [command.bare(), *(command.timing(*args) for _, args in works.values())]
    interleaved(2, *timings)  # the first runs read the files from the disk
    bare, *found = interleaved(rounds, *timings)
    rows = [
        _row(name, timing, bare, target=target)
        for (name, (target, _)), timing in zip(works.items(), found, strict=True)
    ]
    print_table(f"`rolecall thread` (median of {rounds} interleaved runs; peer: python -c pass)", rows)


def _row(name: str, timing: Timing, peer: Timing, *, target: float | None) -> Row:
    return Row(
        name,
        f"{timing.wall * 1e3:.1f} ms",
        f"{peer.wall * 1e3:.1f} ms",
        times(timing.wall, peer.wall),
        times(timing.cpu, peer.cpu),
        f"≤ {target:g}" if target else "",
        timing.wall <= target * peer.wall if target else None,
    )


def _agent(folder: str, note: str) -> str:
    """A command that says the same whatever it is asked. Quotes in it need the YAML parser."""
    answer = Path(folder) / f"answer-{len(note)}.md"
    answer.write_text(f"---\nstatus: done\nnote: {note}\n---\nDone.\n", encoding="utf-8")
    return f"command:cat {answer}"


# -- growth with the store --


def growth(folder: str, command: Command, *, rounds: int, nodes: int) -> None:
    small, large = (os.path.join(folder, name) for name in ("small.db", "large.db"))
    build_tree(small, 1_000)
    build_tree(large, nodes)
    ids = [_join(path) for path in (small, large)]
    rows = []
    for verb in ("show", "list", "read"):
        calls = [
            command.timing(verb, *([] if verb == "list" else [ident]), "--store", path)
            for path, ident in zip((small, large), ids, strict=True)
        ]
        interleaved(2, *calls)
        at_small, at_large = interleaved(rounds, *calls)
        rows.append(_row(verb, at_large, at_small, target=_GROWTH))
    print_table(
        f"Growth: `rolecall thread` at {nodes:,} nodes against 1,000 (medians of {rounds} interleaved runs)",
        rows,
    )


def _join(path: str) -> str:
    """Add a page of threads to a store; the id of one that has taken steps."""
    crowd(path, _PAGE)
    return played(path, 20)[1]


# -- stores to measure on --


def played(path: str, steps: int) -> tuple[str, str]:
    """A store with a thread that has taken so many steps; its path and the thread."""
    player = Player(path, durability="never")
    player.step(steps)
    player.close()
    return path, player.thread


def crowd(path: str, count: int) -> None:
    """A store with so many threads, all of them at their start."""
    player = Player(path, durability="never")
    model = player.store.ref(thread.ref_name(player.thread))
    assert model is not None
    for first in range(1, count, _BATCH):
        _add_threads(player.store, model.target or "", model.state, min(_BATCH, count - first))
    player.close()


def _add_threads(store: Store, head: str, state: Mapping[str, Any], count: int) -> None:
    draft = store.draft()
    for _ in range(count):
        draft.move(thread.ref_name(thread.new_thread_id(store.now())), None, head, state)
    draft.commit()


if __name__ == "__main__":
    main(quick="--quick" in sys.argv[1:])
