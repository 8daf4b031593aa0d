"""Test the judges of a suite before money is spent: known good answers must pass, and known bad ones must fail.

Only commands and expressions are asked, because they cost nothing.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from rolecall.agents.protocol import Cancel
from rolecall.errors import RolecallError
from rolecall.evals import folders, judge
from rolecall.evals.begin import choose, find_tasks
from rolecall.evals.judge import Judged, Site
from rolecall.evals.records import StoredJudge, StoredTask, Verdict
from rolecall.evals.suite import Suite
from rolecall.evals.tasks import EvalTask, KnownAnswer
from rolecall.files.snapshot import Snapshot
from rolecall.store import scratch
from rolecall.store.ids import NodeId
from rolecall.store.store import Store


class JudgedAnswer(NamedTuple):
    """The judges' verdict on a known answer to a task."""

    task: str
    kind: str
    """`reference`, `cheat`, `untouched` (the unchanged files of the task), or a key of TRICKS."""
    is_as_expected: bool
    outcome: str
    reason: str
    verdicts: tuple[Verdict, ...] = ()


_AT_ONCE = 4
_EXIT = "import os\nos._exit(0)\n"
TRICKS: Mapping[str, Mapping[str, str]] = {
    "conftest.py": {"conftest.py": _EXIT},
    "pytest.ini": {"pytest.ini": "[pytest]\naddopts = --collect-only\n"},
    "pytest.py": {"pytest.py": _EXIT, "unittest.py": _EXIT},
    "Makefile": {"Makefile": "%:\n\t@true\n", "package.json": '{"scripts": {"test": "true"}}\n'},
    "code that ends its process": {"*.py": _EXIT},
}
"""Files with which an agent could pass without doing the task if a judge runs code from the result."""


async def check(
    suite: Suite, store: Store, site: Site, *, only: Sequence[str], cache: str, cancel: Cancel
) -> list[JudgedAnswer]:
    """Ask the judges of a suite about the known answers to its tasks. If a command decides, also let it judge the
    untouched files of each task, which is what an agent that does nothing leaves. For one task whose untouched files
    fail, also try the tricks of a cheating agent."""
    source = os.path.dirname(suite.path)
    judges = [
        StoredJudge(NodeId(""), one._replace(files=os.path.basename(one.files)), files, None)
        for one in suite.judges
        if not one.agent
        for files in [folders.take_folder(site.trees, one.files, source=source) if one.files else None]
    ]
    places = asyncio.Semaphore(_AT_ONCE)
    chosen = suite._replace(tasks=tuple(choose(suite.tasks, only)))

    async def prove(task: EvalTask, files: Snapshot | None, kind: str, answer: KnownAnswer) -> JudgedAnswer:
        own = (task.id, task.prompt, task.tags, task.setup, files, task.files.repository, task.files.commit)
        verdicts = list[Verdict]()
        try:
            async with places:
                left = await lay_out(StoredTask(NodeId(""), *own), kind, answer)
                judged = Judged(task.id, task.prompt, left, answer.output or {})
                for one in judges:
                    if one.judge.command:
                        verdicts.append(await judge.judge_command(one, judged, site, cancel=cancel))
                    elif answer.output is not None:
                        verdicts.append(judge.judge_expression(one.judge, judged))
        except RolecallError as error:
            return JudgedAnswer(task.id, kind, False, "infrastructure", judge.describe_problem(error))
        deciding = {one.name for one in suite.deciding} & {one.judge for one in verdicts}
        if not deciding:
            reason = "no judge that decides was asked: commands need files, expressions an `output`"
            return JudgedAnswer(task.id, kind, False, "infrastructure", reason, tuple(verdicts))
        outcome, reason, _ = judge.decide(sorted(deciding), verdicts)
        is_as_expected = outcome == ("passed" if kind == "reference" else "failed")
        return JudgedAnswer(task.id, kind, is_as_expected, outcome, reason, tuple(verdicts))

    async def lay_out(task: StoredTask, kind: str, answer: KnownAnswer) -> Snapshot:
        env = site.environment
        with scratch.folder("rolecall-check-") as place:
            folder = str(place / "work")
            await asyncio.to_thread(folders.fill_task, folder, task, site.trees, cache)
            await folders.set_up(folder, task, env=env, cancel=cancel)
            await folders.apply_answer(folder, answer, env=env, cancel=cancel)
            for pattern, text in TRICKS.get(kind, {}).items():
                for path in [*Path(folder).rglob(pattern)] if "*" in pattern else [Path(folder, pattern)]:
                    if path.is_dir() and not path.is_symlink():
                        continue
                    path.unlink(missing_ok=True)  # the path can be read-only, or a link to somewhere else
                    path.write_text(text, encoding="utf-8")
            return await asyncio.to_thread(site.trees.take, folder, source=source)

    tasks = list(find_tasks(store, site.trees, chosen, cache, source))
    asked = []
    for task in tasks:
        answers = [(kind, suite.answers(kind, task[0])) for kind in ("reference", "cheat")]
        if any(one.command for one in suite.deciding):
            answers.append(("untouched", KnownAnswer()))
        asked += [prove(*task, kind, answer) for kind, answer in answers if answer is not None]
    proofs = await asyncio.gather(*asked)
    failing = {proof.task for proof in proofs if proof.kind == "untouched" and proof.is_as_expected}
    if first := next((task for task in tasks if task[0].id in failing), None):
        proofs += await asyncio.gather(*(prove(*first, trick, KnownAnswer()) for trick in TRICKS))
    return proofs
