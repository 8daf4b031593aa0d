"""The child of the kill tests of groups: runs a thread with a group and dies at the moment it is told.

It serves orders like `actor.py`. The members are played by a shell command that leaves a line in a log, and that kills
the process at the places `start`, `read`, `trace` and `answer` if it plays the member `at`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import actor
import stage

from rolecall.agents.adapters.command import command
from rolecall.agents.protocol import Context
from rolecall.threads import members as _imported_early  # noqa: F401 - so that no forked child pays for it

SIZE = 100
FLOW = f"""
name: hundred
description: A hundred members
roles:
  member:
    times: {SIZE}
    at_once: 8
    workdir: shared
    goal: Work as number {{{{number}}}}.
    schema: {{type: object, properties: {{$status: {{enum: [done]}}, note: {{type: string}}}}, required: [$status]}}
  last:
    goal: End.
    schema: {{type: object, properties: {{$status: {{enum: [end]}}}}, required: [$status]}}
graph:
  $START: member
  member: {{done: last, partly: $FAIL, failed: $FAIL}}
  last: {{end: $END}}
"""


def number_in(prompt: str) -> int:
    return int(prompt.partition("Work as number ")[2].partition(".")[0] or 0)


async def play(order: dict[str, Any], tell: Callable[[Any], None]) -> None:
    store = stage.open_store(Path(order["store"]))
    fuse = actor.Fuse(order["place"], order["at"], {})

    async def ask(prompt: str, context: Context) -> Any:
        number = number_in(prompt)
        env = {
            "DIE": order["place"] if number == order["at"] else "",
            "LOG": order["log"],
            "NUMBER": str(number),
            "ANSWER": stage.answer("done" if number else "end", f"by {number}" if number else ""),
        }
        return await command(["/bin/sh", "-c", actor.SCRIPT], env=env)(prompt, context)

    playing = stage.engine(store, ask, token=lambda: os.urandom(8).hex())
    fuse.lay(store)
    async for outcome in playing.run(order["thread"], cancel=asyncio.Event()):
        tell([outcome.took, outcome.status])
    tell(fuse.counted)


if __name__ == "__main__":
    actor.main(play)
