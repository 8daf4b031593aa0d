"""Check a workflow file completely; a Python file is loaded in a child process.

A user's file may hang, exit, crash or print. A child process with a timeout protects the caller from that. The child
(`python -m rolecall.checks.workflow_file`) reads its instructions from standard input and answers in JSON. The answer
is validated, because the file's own code ran in the same process.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rolecall.errors import Hint, RolecallError
from rolecall.settings.yaml12 import Problem

if TYPE_CHECKING:
    from rolecall.workflow.model import Workflow
    from rolecall.workflow.playbook import Playbook
    from rolecall.workflow.registry import Checked

PATIENCE = 20.0
"""Seconds that checking a file may take."""
AT_ONCE = 2
"""Child processes that may run at once."""
_MAX_ANSWER = 8 * 1024 * 1024


@dataclass(frozen=True)
class Report:
    path: str
    workflow: Workflow | None
    """The workflow in the file, without its functions if it is in Python; None if there is an error."""
    problems: tuple[Problem, ...]
    """Problems of the definition."""
    agents: tuple[Problem, ...] = ()
    """Roles that no agent here can play."""

    @property
    def extracts(self) -> list[Mapping[str, Any] | None]:
        """The settings of its roles for the model that reads answers."""
        return [role.extract for role in self.workflow.roles.values()] if self.workflow else []


async def check(
    paths: Sequence[str],
    *,
    folder: str,
    env: Mapping[str, str],
    keep: str = "",
    patience: float = PATIENCE,
) -> list[Report]:
    """Report on each file, in the given order. Each Python file gets its own child; the others share one. Agents and
    other workflows are looked up from `folder`; copies of Python files are stored in `keep`, so that later edits do not
    change what was checked (see `versions.py`)."""
    alone = [[path] for path in paths if path.endswith(".py")]
    together = [path for path in paths if not path.endswith(".py")]
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(batch: list[str]) -> list[Report]:
        async with gate:
            return await _in_child(batch, folder=folder, env=env, keep=keep, patience=patience)

    batches = [together, *alone] if together else alone
    reports = {report.path: report for found in await asyncio.gather(*map(one, batches)) for report in found}
    return [reports[path] for path in paths]


async def _in_child(
    paths: list[str], *, folder: str, env: Mapping[str, str], keep: str, patience: float
) -> list[Report]:
    from rolecall.agents import process

    order = json.dumps({"paths": paths, "folder": folder, "keep": keep})
    ended = await process.run(
        # -P: a file of the project must not shadow one of the modules that are imported.
        [sys.executable, "-P", "-m", "rolecall.checks.workflow_file"],
        cwd=Path(folder),
        env={**env, "PYTHONDONTWRITEBYTECODE": "1"},
        prompt=order,
        timeout=patience,
        max_output=_MAX_ANSWER,
    )
    if ended.ending == "timeout":
        return [_lost(path, f"loading it took longer than {patience:g} s") for path in paths]
    try:
        answers = json.loads(ended.stdout)
        return [_report(answer, path) for answer, path in zip(answers, paths, strict=True)]
    except (ValueError, KeyError, TypeError, AttributeError):
        last = ended.stderr.strip().rpartition("\n")[2][:300]
        why = f"the process that loaded it ended without a word (exit code {ended.code})"
        return [_lost(path, f"{why}{f': {last}' if last else ''}") for path in paths]


def _lost(path: str, message: str) -> Report:
    hint = "A workflow file only defines: what takes time or ends the process belongs into its functions."
    return Report(path, None, (Problem("error", message, path, 1, 1, hint),))


def _report(answer: Mapping[str, Any], path: str) -> Report:
    from rolecall.workflow.model import from_payload

    stored = answer["stored"]
    workflow = from_payload(stored["payload"], stored["schemas"]) if stored else None
    problems, agents = (tuple(map(_problem, answer[key])) for key in ("problems", "agents"))
    if workflow is None and not problems:
        raise ValueError(path)
    return Report(path, workflow, problems, agents)


def _problem(fields: Mapping[str, Any]) -> Problem:
    severity, line, column = fields["severity"], fields["line"], fields["column"]
    if severity not in ("error", "warning") or not isinstance(line, int) or not isinstance(column, int):
        raise ValueError(severity)
    message, file, hint = (str(fields[key])[:2000] for key in ("message", "file", "hint"))
    if action := fields["action"]:
        hint = Hint(action["advice"], action["code"], before=action["before"], **action["arguments"])
    return Problem(severity, message, file, line, column, hint)


# -- the child --


def main() -> None:
    order = json.loads(sys.stdin.read())
    # Output that a file prints, even from C code, must not end up in the answer.
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    reports = [_looked_at(path, order["folder"], order["keep"]) for path in order["paths"]]
    answer.write(json.dumps(reports))
    answer.flush()
    os._exit(0)  # even if the file has started threads


def _looked_at(path: str, folder: str, keep: str) -> dict[str, Any]:
    from rolecall.workflow import registry

    try:
        source = path
        if keep and path.endswith(".py"):
            from rolecall.workflow import versions

            source = versions.keep(path, keep)
        checked = registry.check_file(source)
        problems = [problem._replace(file=problem.file.replace(source, path)) for problem in checked.problems]
        agents = _agent_problems(checked, path, folder)
    except RolecallError as error:
        checked = registry.Checked(None, ())
        problems, agents = [Problem("error", error.message, path, 1, 1, error.hint)], []
    return {
        "stored": _stored(checked),
        "problems": [_fields_of(problem) for problem in problems],
        "agents": [_fields_of(problem) for problem in agents],
    }


def _fields_of(problem: Problem) -> dict[str, Any]:
    hint = problem.hint  # JSON alone would reduce it to a plain string
    return {**problem._asdict(), "action": vars(hint) if isinstance(hint, Hint) else None}


def _agent_problems(checked: Checked, path: str, folder: str) -> list[Problem]:
    from rolecall.checks import agents as agentcheck
    from rolecall.settings import config

    if checked.playbook is None:
        return []
    settings, env = config.load(), config.environment()
    found = agentcheck.problems(
        checked.playbook,
        path,
        settings=settings,
        env=env,
        find=lambda name: _other(name, folder),
        marks=checked.marks,
        severity="error",
    )
    return list(found)


def _other(name: str, folder: str) -> Playbook:
    """Load another workflow that plays a role, from the project or from the store."""
    from rolecall.errors import NotFound
    from rolecall.threads.workspace import open_store
    from rolecall.workflow import registry

    try:
        return registry.load_file(str(registry.find(None, name, folder=folder).path))
    except NotFound:
        with open_store(create=False) as store:
            found = registry.find(store, name, folder=folder)
            return registry.load_node(store, str(found.node))


def _stored(checked: Checked) -> dict[str, Any] | None:
    from rolecall.workflow.model import schema_ids_of
    from rolecall.workflow.registry import stored_form

    if checked.playbook is None:
        return None
    payload = stored_form(checked.playbook).payload
    ids, roles = schema_ids_of(payload), checked.playbook.workflow.roles
    return {"payload": payload, "schemas": {ids[name]: dict(roles[name].schema) for name in roles}}


if __name__ == "__main__":
    main()
