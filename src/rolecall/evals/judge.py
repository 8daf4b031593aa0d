"""Judges, which decide whether the result of a thread passes.

A command judge runs in a fresh checkout of the files that the thread left. The judge's own files replace files with the
same names. The command is not given the agents' environment, and it runs in a sandbox if the kernel supports one. Its
exit code is the verdict. If a judge cannot start, crashes or exceeds its time limit, that says nothing about the
result, so the outcome counts as infrastructure.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
import shutil
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import fmean
from typing import Literal, NamedTuple

from rolecall.agents import process, sandbox
from rolecall.agents.protocol import Cancel
from rolecall.agents.sandbox import Layers
from rolecall.errors import AgentError, RolecallError, UsageError
from rolecall.evals.records import StoredJudge, Verdict, sum_amounts
from rolecall.evals.suite import Judge
from rolecall.files.snapshot import Snapshot
from rolecall.files.tree import Trees
from rolecall.store import scratch
from rolecall.store.canonical import JsonObject
from rolecall.workflow import condition
from rolecall.workflow.model import Sandbox

REPORT_VARIABLE = "ROLECALL_REPORT"
"""The environment variable with the path of the file to which a command judge can write its report: JSON with `score`
(0 to 1), `reason` and `details`."""
RESULT_VARIABLE = "ROLECALL_RESULT"
"""The environment variable with the path of a file that contains the task and the output of the result, as JSON."""
CANNOT_TELL = 75
"""The exit code with which a command judge says that it cannot tell (EX_TEMPFAIL)."""
_TRIAL_SECONDS = 10.0
_MOST_REPORT = 1_000_000
_MOST_REASON = 500
_REFUSED = re.compile(
    r"^.*/.*(?:Read-only file system|Permission denied).*$|^.*(?:\[Errno (?:13|30)\]).*/.*$", re.MULTILINE
)
"""Messages in which programs report that they are not allowed to write to a file."""


class Site(NamedTuple):
    """The surroundings in which command judges run."""

    trees: Trees
    environment: Mapping[str, str]
    """Rolecall's environment. A judge is given only PATH. The sandbox hides the secrets in HOME."""
    private: tuple[str, ...]
    """Rolecall's own files and folders, which the sandbox hides."""
    layers: Layers
    """What the kernel of this machine can enforce; outside Linux, nothing."""


class Judged(NamedTuple):
    """What a judge judges: the result of a thread, or a known answer."""

    task: str
    prompt: str
    files: Snapshot
    output: JsonObject
    body: str = ""
    steps: Sequence[JsonObject] = ()
    workflow: str = ""


async def judge_command(stored: StoredJudge, judged: Judged, site: Site, *, cancel: Cancel) -> Verdict:
    """Run a command judge in its own folder, without a network and without Rolecall's environment. It can write only to
    that folder."""
    judge = stored.judge
    async with _ran(stored, judged, site, judge.seconds, cancel) as (ended, report):
        code, problem = ended.code, ""
        said = (ended.stderr.strip() or ended.stdout.strip())[-_MOST_REASON:]
        if ended.ending == "timeout":
            problem, said = f"it took longer than {judge.seconds:g} seconds", ""
        elif ended.ending == "interrupted" or code is None:
            problem, said = "it was interrupted", ""
        elif code < 0 or 128 < code <= 128 + signal.NSIG:
            # A code above 128 is how a shell reports a child's signal.
            problem = f"it was ended by signal {-code if code < 0 else code - 128}"
        elif code in (126, 127):
            problem, said = "it could not be started", said or ended.reason
        elif code == CANNOT_TELL:
            problem = "it cannot tell"
        if problem:
            return Verdict(judge.name, "infrastructure", reason=f"{problem}: {said}" if said else problem)
        outcome, score, reason = "passed", 1.0, ""
        if code != 0:
            outcome, score, reason = "failed", 0.0, said or f"exit code {code}"
        if not report.is_file():
            return Verdict(judge.name, outcome, score, reason)
        try:
            if report.stat().st_size > _MOST_REPORT:
                raise ValueError(f"it is larger than {_MOST_REPORT:,} bytes")
            reply = json.loads(report.read_text(encoding="utf-8"))
            if not isinstance(reply, dict):
                raise ValueError("it is not an object")
            score = reply.get("score", score)
            if isinstance(score, bool) or not isinstance(score, (int, float)) or not 0 <= score <= 1:
                raise ValueError("`score` is not a number from 0 to 1")
            reason = str(reply.get("reason") or reason)[:_MOST_REASON]
        except ValueError as error:
            return Verdict(judge.name, "infrastructure", reason=f"its report cannot be used: {error}")
        return Verdict(judge.name, outcome, float(score), reason, reply.get("details"))


@asynccontextmanager
async def _ran(
    stored: StoredJudge, judged: Judged, site: Site, seconds: float, cancel: Cancel
) -> AsyncIterator[tuple[process.Exit, Path]]:
    """Run a command judge. Yield how it ended and the path of its report, which is removed afterwards."""
    judge = stored.judge
    with scratch.folder("rolecall-judge-") as place:
        work, report, result = place / "work", place / "report.json", place / "result.json"
        await asyncio.to_thread(_lay_out, stored, judged.files, site.trees, work)
        content = {"task": judged.task, "prompt": judged.prompt, "output": judged.output, "body": judged.body}
        result.write_text(json.dumps(content), encoding="utf-8")
        (place / "home").mkdir()
        env = {
            "PATH": site.environment.get("PATH", os.defpath),
            "HOME": str(place / "home"),
            "LANG": "C.UTF-8",
            REPORT_VARIABLE: str(report),
            RESULT_VARIABLE: str(result),
        }
        network: Literal["all", "none"] = "all" if judge.network else "none"
        policy = sandbox.plan(
            Sandbox(network=network, memory=judge.megabytes * 1024**2, best_effort=True),
            (),
            workdir=place,
            env=site.environment,
            private=site.private,
            layers=site.layers,
        )
        try:
            ended = await process.run(
                judge.command, cwd=work, env=env, timeout=seconds, cancel=cancel, sandbox=policy
            )
        except AgentError as error:
            ended = process.Exit("failed", error.message, 127, "", error.message)
        yield ended, report


async def find_writes(stored: StoredJudge, judged: Judged, site: Site, *, cancel: Cancel) -> str:
    """Return the message in which a command judge reports that it is denied write access outside its folder, or an
    empty string if there is none. The judge runs for a short time on unchanged files, and its verdict is ignored."""
    seconds = min(stored.judge.seconds, _TRIAL_SECONDS)
    async with _ran(stored, judged, site, seconds, cancel) as (ended, _):
        found = _REFUSED.search(f"{ended.stderr}\n{ended.stdout}")
        return found[0].strip()[:_MOST_REASON] if found else ""


def _lay_out(stored: StoredJudge, files: Snapshot, trees: Trees, work: Path) -> None:
    """Check out the result, then replace its files with those files of the judge that have the same names."""
    trees.check_out(files, str(work))
    if stored.files is None:
        return
    laid = work / stored.judge.files
    if laid.is_symlink() or laid.is_file():
        laid.unlink()
    elif laid.exists():
        shutil.rmtree(laid)
    trees.check_out(stored.files, str(laid))


def judge_expression(judge: Judge, judged: Judged) -> Verdict:
    """Evaluate an expression that can use `output`, `steps`, `steps_count` and `start`."""
    start = {"workflow": judged.workflow, "prompt": judged.prompt, "cwd": ""}
    try:
        has_passed = condition.evaluate(
            judge.expression, start=start, steps=judged.steps, output=dict(judged.output)
        )
    except UsageError as error:
        return Verdict(judge.name, "infrastructure", reason=error.message)
    outcome, score = ("passed", 1.0) if has_passed else ("failed", 0.0)
    return Verdict(judge.name, outcome, score, "" if has_passed else f"not true: {judge.expression}")


# -- agents --


class Vote(NamedTuple):
    """One vote of an agent that judges. A vote with a `problem` counts as infrastructure."""

    has_passed: bool = False
    score: float = 0.0
    reason: str = ""
    step: str = ""
    usage: Mapping[str, float] = {}
    problem: str = ""


def question_of(judged: Judged) -> str:
    """Return the prompt for the judging agent, which contains the task and its answer."""
    output = json.dumps(judged.output, indent=2, ensure_ascii=False, sort_keys=True)
    parts = [
        "Judge the result of a task. The files of the result are in this folder.",
        f"## The task\n\n{judged.prompt.strip()}",
        f"## The answer\n\n```json\n{output}\n```\n\n{judged.body.strip()}",
    ]
    return "\n\n".join(parts).strip()


def count_votes(judge: Judge, votes: Sequence[Vote]) -> Verdict:
    """Return the verdict of the majority, with the mean score. A tie means that the result fails, because half of the
    votes reject it."""
    steps = [vote.step for vote in votes if vote.step]
    usage = sum_amounts(vote.usage for vote in votes)
    if problems := [vote.problem for vote in votes if vote.problem]:
        return Verdict(judge.name, "infrastructure", reason=problems[0], usage=usage, votes=steps)
    passed = sum(vote.has_passed for vote in votes)
    outcome = "passed" if passed * 2 > len(votes) else "failed"
    mean = fmean(vote.score for vote in votes)
    reason = next((vote.reason for vote in votes if vote.has_passed == (outcome == "passed")), "")
    details = {"votes": len(votes), "passed": passed, "scores": [vote.score for vote in votes]}
    return Verdict(judge.name, outcome, mean, reason[:_MOST_REASON], details, usage, steps)


# -- all judges --


def decide(deciding: Sequence[str], verdicts: Sequence[Verdict]) -> tuple[str, str, float | None]:
    """Return the outcome of a cell, the reason, and the mean score of the judges that gave one."""
    chosen = [verdict for verdict in verdicts if verdict.judge in deciding]
    scores = [verdict.score for verdict in verdicts if verdict.score is not None]
    score = fmean(scores) if scores and not any(map(math.isnan, scores)) else None
    for outcome in ("infrastructure", "failed"):
        for verdict in chosen:
            if verdict.outcome == outcome:
                return outcome, f"{verdict.judge}: {verdict.reason}", score
    return "passed", "", score


def describe_problem(error: RolecallError) -> str:
    return f"{error.message}. {error.hint}" if isinstance(error.hint, str) and error.hint else error.message
