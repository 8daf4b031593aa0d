"""Work that a supervisor does for its project: follow the definition files and let triggers start threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from hashlib import sha256
from typing import TYPE_CHECKING

from rolecall.agents.process import end_leftovers, marked
from rolecall.service import control, project_file
from rolecall.service.policy import ServicePolicy
from rolecall.service.reload import Definitions, watch
from rolecall.service.triggers.run import Triggers
from rolecall.settings import config
from rolecall.threads import workspace

_FILE = "file "

if TYPE_CHECKING:
    from rolecall.service.supervisor import Companion, Supervisor


def of_project(
    folder: str,
    *,
    store_url: str | None,
    adjust: Callable[[ServicePolicy], ServicePolicy] = lambda policy: policy,
) -> Companion:
    """The companion for the project around a folder; `adjust` can change its policy."""

    async def project(supervisor: Supervisor) -> None:
        env = await _environment(store_url)
        store, log = supervisor.store, supervisor.log
        definitions = Definitions(store, folder, env=env, keep=config.versions_folder(store_url), say=log)
        triggers = Triggers(
            store,
            env=env,
            mask=workspace.mask(),
            say=log,
            on_start=supervisor.wake,
            problems=supervisor.problems,
        )
        told: list[str] = []

        def use() -> None:
            supervisor.policy = adjust(definitions.project.policy)
            triggers.update(definitions.project, definitions.workflows)
            _tell(supervisor.problems, definitions)
            supervisor.wake()
            plan = _plan(definitions, triggers)
            for line in plan if plan != told else ():
                log(line)
            told[:] = plan

        await definitions.refresh()
        use()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(watch(definitions, use))
            tasks.create_task(triggers.run())

    return project


def of_no_project(folder: str) -> Companion:
    """The companion of a service outside a project. It logs that, because a project created later goes unnoticed."""

    async def no_project(supervisor: Supervisor) -> None:
        supervisor.log(
            f"there is no {project_file.FILE} in {folder}: no file is followed, nothing is triggered"
        )

    return no_project


async def _environment(store_url: str | None) -> dict[str, str]:
    """The environment of everything a trigger runs, with a mark by which leftovers of a killed service are found and
    ended. A home has one service at a time."""
    env = {
        **config.environment(),
        "ROLECALL_HOME": config.home(),
        "ROLECALL_STORE": control.store_address(store_url),
    }
    mark = f"triggers-{sha256(config.home().encode()).hexdigest()[:16]}"
    await end_leftovers(mark)
    return marked(env, mark)


def _plan(definitions: Definitions, triggers: Triggers) -> list[str]:
    """The workflows and triggers that will run, as log lines; nothing else runs."""
    names = ", ".join(definitions.workflows) or "none"
    head = f"project {definitions.project.name} in {definitions.project.folder}, workflows: {names}"
    return [head, *(f"trigger {line}" for line in triggers.lines() or ["none"])]


def _tell(problems: dict[str, str], definitions: Definitions) -> None:
    """List the current problems with the files among the service's problems."""
    for name in [name for name in problems if name.startswith(_FILE)]:
        del problems[name]
    problems |= {f"{_FILE}{number}": str(one) for number, one in enumerate(definitions.problems[:20])}
