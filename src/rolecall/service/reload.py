"""The project's file and workflows as the service uses them, and how they follow the files without a restart.

What changed is checked in a child process. What is right is used by threads that start from then on; what is wrong
is told, and what was used before stays. Threads that run keep their workflow in any case: it is a node, and one
written in Python lies in a copy that never changes.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator, Callable, Container, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress

from rolecall.checks import workflow_file
from rolecall.checks.workflow_file import Report
from rolecall.errors import RolecallError
from rolecall.service import project_file
from rolecall.service.project_file import Project
from rolecall.settings.repository import root_around
from rolecall.settings.yaml12 import Problem
from rolecall.store.store import Store
from rolecall.workflow import registry
from rolecall.workflow.model import Workflow
from rolecall.workflow.playbook import Playbook

_LOOK_ANYWAY = 60.0
"""Seconds after which the files are looked at although nothing was heard: some file systems tell nothing."""


class Definitions:
    """What is configured and defined now; `say` gets what changes."""

    def __init__(
        self, store: Store, folder: str, *, env: Mapping[str, str], keep: str, say: Callable[[str], object]
    ) -> None:
        """`keep` is the folder for copies of workflows written in Python. `UsageError` when the project's file
        is wrong: there is nothing before it that could stay."""
        self._store = store
        self._env = env
        self._keep = keep
        self.say = say
        self._seen = ""
        self.project: Project = project_file.load(folder).checked()
        self.workflows: dict[str, str] = {}
        """By name, the node that new threads use."""
        self.problems: tuple[Problem, ...] = ()
        """What is wrong with the files as they are, so that something older is used, or nothing."""
        self._told: set[str] = set()

    async def refresh(self) -> bool:
        """Look at the files, if they are not what they were; whether that was so."""
        stamp = self._stamp()
        if stamp == self._seen:
            return False
        self._seen = stamp
        try:
            project, reports = self._read_project(), await self._read_workflows()
        except (RolecallError, OSError) as error:
            # The store refuses, or a folder is gone or may not be read: another try when it is time.
            self._seen = ""
            told = error.message if isinstance(error, RolecallError) else error
            self.say(f"the files could not be looked at: {told}")
            return False
        wrong = (problem for one in reports for problem in one.problems if problem.severity == "error")
        before, self.problems = self.problems, (*project, *wrong)
        if before and not self.problems:
            self.say("what was wrong with the files is put right")
        self._tell([*self.problems, *(problem for one in reports for problem in one.agents)])
        return True

    def _read_project(self) -> tuple[Problem, ...]:
        reading = self._reading()
        if not reading.problems and reading.project != self.project:
            self.project = reading.project
            is_there = reading.marks is not None
            says = ": what it says now is used" if is_there else " is gone, so nothing is configured"
            self.say(f"{project_file.FILE}{says}")
        return reading.problems

    def _reading(self) -> project_file.Reading:
        """What the file says. While it is gone, one in a folder around it is another project's."""
        path = os.path.join(self.project.folder, project_file.FILE)
        if os.path.lexists(path):
            return project_file.load(self.project.folder)
        return project_file.Reading(project_file.parse("", path=path).project, ())

    async def _read_workflows(self) -> list[Report]:
        entries = registry.listed(None, folder=self.project.folder)
        paths = [str(entry.path) for entry in entries]
        reports = await workflow_file.check(paths, folder=self.project.folder, env=self._env, keep=self._keep)
        used: dict[str, str] = {}
        for entry, report in zip(entries, reports, strict=True):
            if report.workflow is not None:
                used[entry.name] = self._register(entry.name, report.workflow)
            elif known := self.workflows.get(entry.name) or self._last(entry.name):
                used[entry.name] = known
        for name in self.workflows.keys() - used.keys():
            self.say(f"{name}: its file is gone, so no new thread uses it")
        self.workflows = used
        return reports

    def _register(self, name: str, workflow: Workflow) -> str:
        node = registry.register(self._store, Playbook(workflow))
        if self.workflows.get(name, node) != node:
            self.say(f"{name}: new threads use the version {node}")
        return node

    def _last(self, name: str) -> str | None:
        """The version that was right when it was last looked at, by a service before this one perhaps."""
        with suppress(UnicodeEncodeError):  # the name of a file may be no text, and then it was never used
            ref = self._store.ref(registry.ref_name(name))
            return ref.target if ref else None
        return None

    def _tell(self, problems: Sequence[Problem]) -> None:
        """Each problem once, until it was away."""
        texts = dict.fromkeys(map(str, problems))
        for text in texts:
            if text not in self._told:
                self.say(text)
        self._told = set(texts)

    # -- files --

    def folders(self) -> list[str]:
        """The folders that workflows lie in."""
        place = self.project.folder
        root = root_around(place) or place
        found: list[str] = []
        while True:
            found += [os.path.join(place, name) for name in registry.FOLDERS]
            if place == root:
                return [folder for folder in found if os.path.isdir(folder)]
            place = os.path.dirname(place)

    def _stamp(self) -> str:
        """Of the files as they lie there: their paths, times and sizes. The time of the last change of its name or
        rights is among them: a file that is moved into place brings its own time along."""
        digest = hashlib.sha256()
        files = [os.path.join(self.project.folder, project_file.FILE)]
        workflows: set[str] = set()
        with suppress(OSError):  # reported when they are read
            workflows.update(map(os.path.dirname, registry.project_files(self.project.folder)))
        for folder in self.folders():
            files += _files_below(folder, workflows)
        for file in files:
            try:
                status = os.stat(file)
            except OSError:
                continue
            digest.update(os.fsencode(file))
            digest.update(
                f"\0{status.st_mtime_ns}\0{status.st_ctime_ns}\0{status.st_size}\0{status.st_ino}\0".encode()
            )
        return digest.hexdigest()


def _files_below(folder: str, workflows: Container[str]) -> Iterator[str]:
    """Every file in a folder of workflows and below it. A workflow's own folder, one of `workflows`, may be a link;
    others, and links in it, which may lead anywhere, are left alone."""
    links: list[str] = []
    with suppress(OSError), os.scandir(folder) as entries:  # it may have gone just now
        links = sorted(entry.path for entry in entries if entry.is_symlink() and entry.path in workflows)
    for top in (folder, *links):
        for place, below, names in os.walk(top):
            below[:] = sorted(name for name in below if name != "__pycache__")
            yield from (os.path.join(place, name) for name in sorted(names))


async def watch(definitions: Definitions, on_change: Callable[[], object]) -> None:
    """Follow the files until cancelled; `on_change` is called after they were looked at anew."""
    while True:
        folders = definitions.folders()
        async with _news(definitions, folders) as news:
            while folders == definitions.folders():
                # Looked at after the watchers are there: what changes from now on is heard of.
                if await definitions.refresh():
                    on_change()
                    continue
                with suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_ANYWAY):
                        await news.wait()
                news.clear()


@asynccontextmanager
async def _news(definitions: Definitions, folders: list[str]) -> AsyncIterator[asyncio.Event]:
    """Is set whenever something changes in the project's folder itself, or in or below the others."""
    from rolecall.service.watch import changes

    news, deaf = asyncio.Event(), asyncio.Event()

    async def follow(paths: list[str], *, is_deep: bool) -> None:
        try:
            async for _ in changes(paths, is_deep=is_deep):
                news.set()
        except (RolecallError, OSError) as error:
            if not deaf.is_set():  # what keeps one from hearing keeps both
                definitions.say(f"changes of files are noticed within a minute, not at once: {error}")
            deaf.set()

    tasks = [asyncio.create_task(follow([definitions.project.folder], is_deep=False))]
    tasks += [asyncio.create_task(follow(folders, is_deep=True))] if folders else []
    await asyncio.sleep(0)  # both have begun to watch
    try:
        yield news
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
