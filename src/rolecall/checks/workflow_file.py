"""Check a workflow file completely. A Python file is loaded in a child process.

A user's file might hang, exit, crash or print. A child process with a timeout protects the caller from that. The child
(`python -m rolecall.checks.workflow_file`) reads its instructions from standard input and answers in JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rolecall.agents import process
from rolecall.agents.confinement import confine, find_allowed_layers
from rolecall.checks import agents as agent_check
from rolecall.errors import Hint, NotFound, RolecallError
from rolecall.settings import config
from rolecall.settings.settings import Settings
from rolecall.settings.stores import open_store
from rolecall.settings.yaml12 import Problem
from rolecall.store.canonical import JsonObject
from rolecall.store.lazy import Module
from rolecall.workflow import gallery, registry, versions
from rolecall.workflow.model import Sandbox, StoredWorkflow, from_payload, schema_ids_of
from rolecall.workflow.playbook import Playbook, ThreadContext

if TYPE_CHECKING:
    from rolecall.agents import sandbox
    from rolecall.agents.sandbox import Layers
else:
    sandbox = Module("rolecall.agents.sandbox")

PATIENCE = 20.0
"""Seconds that checking a file can take."""
AT_ONCE = 2
"""The number of child processes that can run at once."""
_MAX_ANSWER = 8 * 1024 * 1024


@dataclass(frozen=True)
class FileReport:
    """The result of checking one file."""

    path: str
    workflow: StoredWorkflow | None
    """The workflow in the file, without its functions if the file is in Python, or None if there is an error."""
    problems: tuple[Problem, ...]
    """Problems with the definition."""
    agents: tuple[Problem, ...] = ()
    """Problems with roles that no agent on this machine can play."""
    coded: tuple[str, ...] = ()
    """The roles that functions or objects in a Python file play."""

    @property
    def extracts(self) -> list[Settings | None]:
        """The settings of the workflow's roles for the model that reads answers."""
        return [role.extract for role in self.workflow.roles.values()] if self.workflow else []


async def _play_in_file(_: ThreadContext) -> JsonObject:
    raise RolecallError("the functions of this workflow are in its file, which was loaded in another process")


def check_apart(path: str, *, folder: str) -> registry.Checked:
    """Check one file as `check` does. The playbook knows which roles code plays, but not the code."""
    checking = check([path], folder=folder, env=config.environment(), severity="warning")
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        (report,) = asyncio.run(checking)
    else:
        with ThreadPoolExecutor(1) as beside:
            (report,) = beside.submit(asyncio.run, checking).result()
    book = None
    if report.workflow is not None:
        book = Playbook(report.workflow, functions=dict.fromkeys(report.coded, _play_in_file))
    return registry.Checked(book, report.problems, agents=report.agents)


async def check(
    paths: Sequence[str],
    *,
    folder: str,
    env: Mapping[str, str],
    keep: str = "",
    patience: float = PATIENCE,
    severity: Literal["error", "warning"] = "error",
) -> list[FileReport]:
    """Report on each file, in the given order. Each Python file has a child process of its own; the other files share
    one. Agents and other workflows are looked up from `folder`. Copies of Python files are stored in `keep`, so that
    later edits do not change what was checked (see `versions.py`). `severity` applies to roles that nobody can play."""
    alone = [[path] for path in paths if path.endswith(".py")]
    together = [path for path in paths if not path.endswith(".py")]
    gate = asyncio.Semaphore(AT_ONCE)

    # A file of the project must only define things, so it cannot write or connect to anything. It sees our home and
    # every environment variable, because the configured agents are looked up.
    layers = find_allowed_layers(env)
    policy = None
    if layers.can_restrict_files:
        narrow = Sandbox(write=(), network="none" if layers.namespaces else "all", env=("*",))
        policy = confine(narrow, folder, environment=env, private=(), layers=lambda: layers)

    async def check_batch(batch: list[str]) -> list[FileReport]:
        sources = []
        for path in batch:
            source = path
            if keep and path.endswith(".py"):
                with suppress(RolecallError, OSError):  # the child meets the same problem and reports it
                    registry.check_trust(path)
                    source = versions.keep(path, keep)
            sources.append((path, source))
        # Inside the sandbox, the child could not determine the layers itself.
        order = {"sources": sources, "folder": folder, "severity": severity, "layers": layers}
        async with gate:
            ended = await process.run(
                # With -P, a file in the project cannot shadow an imported module.
                [sys.executable, "-P", "-m", "rolecall.checks.workflow_file"],
                cwd=Path(folder),
                env={**env, "PYTHONDONTWRITEBYTECODE": "1"},
                prompt=json.dumps(order),
                timeout=patience,
                max_output=_MAX_ANSWER,
                sandbox=policy,
            )
        try:
            if ended.ending != "timeout":
                answers = json.loads(ended.stdout)
                return [_read_report(path, answer) for path, answer in zip(batch, answers, strict=True)]
            why = f"loading it took longer than {patience:g} s"
        except ValueError:
            last = ended.stderr.strip().rpartition("\n")[2][:300]
            why = f"the process that loaded it ended without an answer (exit code {ended.code})"
            why += f": {last}" if last else ""
        hint = "A workflow file only defines: what takes time or ends the process belongs in its functions."
        return [FileReport(path, None, (Problem("error", why, path, 1, 1, hint),)) for path in batch]

    batches = [together, *alone] if together else alone
    answers = await asyncio.gather(*map(check_batch, batches))
    reports = {report.path: report for answer in answers for report in answer}
    return [reports[path] for path in paths]


def _read_report(path: str, answer: JsonObject) -> FileReport:
    def read_problem(fields: JsonObject) -> Problem:
        hint = fields["hint"]
        if isinstance(hint, dict):
            hint = Hint(hint["advice"], hint["code"], before=hint["before"], **hint["arguments"])
        return Problem(**{**fields, "hint": hint})

    stored = answer["stored"]
    workflow = from_payload(stored["payload"], stored["schemas"]) if stored else None
    problems, agents = (tuple(map(read_problem, answer[key])) for key in ("problems", "agents"))
    return FileReport(path, workflow, problems, agents, tuple(answer["coded"]))


# -- the child --


def main() -> None:
    order = json.loads(sys.stdin.read())
    # Output that a file prints, even from C code, must not become part of the answer.
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    layers = sandbox.Layers(*order["layers"])
    folder, severity = order["folder"], order["severity"]
    reports = [_check_file(path, source, folder, severity, layers) for path, source in order["sources"]]
    answer.write(json.dumps(reports))
    answer.flush()
    os._exit(0)  # exit even if the file has started threads


def _check_file(
    path: str, source: str, folder: str, severity: Literal["error", "warning"], layers: Layers
) -> JsonObject:
    def find(name: str) -> Playbook:
        """Load another workflow that plays a role, from the project, the store or the gallery."""
        path = None
        with suppress(NotFound):
            path = registry.find(None, name, folder=folder).path
        if path is not None and not gallery.has_file(path):
            return registry.read_file(path)
        try:  # a stored workflow takes precedence over one from the gallery
            with open_store(create=False) as store:
                found = registry.find(store, name, folder=folder)
                if found.path:
                    return registry.read_file(found.path)
                return registry.load_node(store, str(found.node))
        except NotFound:
            if path is None:
                raise
            return registry.read_file(path)

    stored: JsonObject | None = None
    agents: list[Problem] = []
    coded: list[str] = []
    try:
        registry.check_trust(path)
        checked = registry.check_file(source)
        problems = [problem._replace(file=problem.file.replace(source, path)) for problem in checked.problems]
        if (book := checked.playbook) is not None:
            agents += agent_check.problems(
                book,
                path,
                settings=config.load(),
                env=config.environment(),
                find=find,
                marks=checked.marks,
                severity=severity,
                layers=lambda: layers,
            )
            payload = registry.compute_node(book).payload
            ids, roles = schema_ids_of(payload), book.workflow.roles
            coded = [*book.functions, *book.agents]
            stored = {"payload": payload, "schemas": {ids[name]: dict(roles[name].schema) for name in roles}}
    except RolecallError as error:
        problems = [Problem("error", error.message, path, 1, 1, error.hint)]
    return {
        "stored": stored,
        "problems": _write_problems(problems),
        "agents": _write_problems(agents),
        "coded": coded,
    }


def _write_problems(problems: Sequence[Problem]) -> list[JsonObject]:
    return [
        {**problem._asdict(), "hint": vars(problem.hint) if isinstance(problem.hint, Hint) else problem.hint}
        for problem in problems
    ]


if __name__ == "__main__":
    main()
