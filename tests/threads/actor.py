"""The child of the kill tests: steps a thread and dies at the moment it is told.

Started once, it forks a fresh process for every order it reads, because starting Python is most of what a
child costs. An order is a line of JSON; the answer says how the process ended and which steps it had
acknowledged. `place` is one of: `commit` (before commit `at`), `committed` (after it), `instruction` (at
the part `at` of everything SQLite does), `called` and `logged` (the agent of step `at`, before and after it
leaves its trace), `start`, `read`, `trace`, `answer` (the command of step `at` kills the engine and goes
on), `outside` (after `at` acknowledgements and `spins` turns of a loop). With `trees`, steps record their files
there, and the agent writes one; then there are also `take` and `taken` (before and after snapshot `at`) and `git`
(before git runs for the `at`-th time).
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import stage

from rolecall.agents.adapters.command import command
from rolecall.agents.protocol import Context, Reply, Usage
from rolecall.files import git
from rolecall.files.snapshot import Snapshot
from rolecall.files.tree import Trees
from rolecall.threads import compose
from rolecall.threads.extract import extract as _imported_early  # noqa: F401 - so that no forked child pays for it
from rolecall.workflow import registry

STEPS = 4
SCRIPT = """
die() { [ "$DIE" = "$1" ] && kill -9 "$PPID" && exec sleep 300; }
echo $$ >> "$LOG.pids"
die start
cat > /dev/null
die read
echo "$NUMBER" >> "$LOG"
die trace
printf '%s' "$ANSWER"
die answer
exit 0
"""


class Fuse:
    """Kills this process at a place; counts the places it passes."""

    def __init__(self, place: str, at: float, counted: dict[str, int]) -> None:
        self._place, self._at = place, at
        self.counted = counted

    def burn(self, place: str, number: int | None = None) -> None:
        self.counted[place] = self.counted.get(place, 0) + 1
        if place == self._place and (number or self.counted[place]) == self._at:
            os.kill(os.getpid(), signal.SIGKILL)

    def instruction(self) -> int:
        self.burn("instruction")
        return 0

    def lay(self, store: Any) -> None:
        commit = store.backend.commit

        def burning(*args: Any, **options: Any) -> Any:
            self.burn("commit")
            done = commit(*args, **options)
            self.burn("committed")
            return done

        store.backend.commit = burning
        store.backend._db.set_progress_handler(self.instruction, 10)


def said(role: str, number: int) -> str:
    return stage.answer(
        "done" if role == "worker" else "end" if number >= STEPS else "again", f"after {number}"
    )


def trace(log: str, *words: object) -> None:
    with open(log, "a", encoding="utf-8") as file:
        print(*words, file=file, flush=True)
        os.fsync(file.fileno())


@dataclass
class Speaker:
    """An agent in this process, with a session that can be resumed. Its key does not depend on when it dies."""

    log: str = field(compare=False)
    fuse: Fuse = field(compare=False)
    writes: bool = False
    can_resume: ClassVar[bool] = True

    async def __call__(self, _prompt: str, context: Context) -> Reply:
        number = len(context.steps) + 1
        session = context.session or f"session-{os.getpid()}-{number}"
        context.emit("session", {"session": session})
        self.fuse.burn("called", number)
        trace(self.log, number, context.session or "")
        if self.writes:
            Path(context.workdir, f"file{number}").write_text(f"{context.thread} {os.getpid()}\n")
        self.fuse.burn("logged", number)
        return Reply(said(context.role, number), session=session, usage=Usage(10, 5, turns=1))


class BurningTrees(Trees):
    """Snapshots that burn a fuse before and after they are taken, and before git runs."""

    def __init__(self, place: str, fuse: Fuse) -> None:
        super().__init__(place)
        self._fuse, run = fuse, git.run

        def burning(*args: Any, **options: Any) -> git.GitResult:
            fuse.burn("git")
            return run(*args, **options)

        git.run = burning

    def recall(self, folder: str, *, source: str | None = None) -> None:
        """Nothing: whether a folder has settled depends on the load, and every run must take as many snapshots."""

    def take(self, folder: str, *, source: str | None = None) -> Snapshot:
        self._fuse.burn("take")
        found = super().take(folder, source=source)
        self._fuse.burn("taken")
        return found


def commanded(log: str, place: str, at: float) -> Callable[..., Any]:
    async def ask(prompt: str, context: Context) -> Any:
        number = len(context.steps) + 1
        env = {
            "DIE": place if number == at else "",
            "LOG": log,
            "NUMBER": str(number),
            "ANSWER": said(context.role, number),
        }
        return await command(["/bin/sh", "-c", SCRIPT], env=env)(prompt, context)

    return ask


async def play(order: dict[str, Any], tell: Callable[[Any], None]) -> None:
    store = stage.open_store(Path(order["store"]))
    fuse = Fuse(order["place"], order["at"], {})
    trees = BurningTrees(order["trees"], fuse) if "trees" in order else None
    agent: Any = Speaker(order["log"], fuse, writes=trees is not None)
    if order["agent"] == "command":
        agent = commanded(order["log"], order["place"], order["at"])
    playing = stage.engine(store, agent, token=lambda: os.urandom(8).hex(), trees=trees)
    fuse.lay(store)
    while True:
        outcome = await playing.step(order["thread"], cancel=asyncio.Event())
        tell([outcome.took, outcome.status])
        if outcome.status != "idle":
            tell(fuse.counted)
            if order["place"] == "outside":
                signal.pause()  # the kill is on its way, and a fast machine must not be done before it
            return


def say(pipe: int, told: Any) -> None:
    os.write(pipe, json.dumps(told).encode() + b"\n")


Play = Callable[[dict[str, Any], Callable[[Any], None]], Coroutine[Any, Any, None]]


def perform(order: dict[str, Any], pipe: int, play: Play) -> None:
    status = 1
    try:
        asyncio.run(play(order, partial(say, pipe)))
        status = 0
    except BaseException as error:  # the fork must not run on as a second server
        say(pipe, f"{type(error).__name__}: {error}")
    finally:
        os._exit(status)


def carry_out(order: dict[str, Any], play: Play) -> dict[str, Any]:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        perform(order, writing, play)
    os.close(writing)
    received: list[Any] = []
    with os.fdopen(reading, "rb") as pipe:
        for line in iter(pipe.readline, b""):
            if line.endswith(b"\n"):
                received.append(json.loads(line))
            if order["place"] == "outside" and len(received) == order["at"]:
                for _ in range(order["spins"]):
                    pass
                os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return {"code": os.waitstatus_to_exitcode(status), "told": received}


def main(play: Play = play) -> None:
    assert registry and compose  # imported here for all forks
    for line in sys.stdin:
        print(json.dumps(carry_out(json.loads(line), play)), flush=True)


if __name__ == "__main__":
    main()
