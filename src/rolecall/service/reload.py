"""The project's file and workflows as the service uses them, reloaded when the files change.

Changes are checked in a child process. Correct ones apply to threads that start from then on; wrong ones are reported,
and the previous version stays in use. Running threads always keep their workflow: it is a node, and a workflow written
in Python is kept in a copy that never changes.
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
"""Seconds after which the files are checked even without a notification, because some file systems send none."""


class Definitions:
    """The current configuration and workflows; `say` gets a message about each change."""

    def __init__(
        self, store: Store, folder: str, *, env: Mapping[str, str], keep: str, say: Callable[[str], object]
    ) -> None:
        """`keep` is the folder for copies of workflows written in Python. Raises `UsageError` if the project's file is
        wrong, because there is no previous version to use."""
        self._store = store
        self._env = env
        self._keep = keep
        self.say = say
        self._seen = ""
        self.project: Project = project_file.load(folder).checked()
        self.workflows: dict[str, str] = {}
        """The node that new threads use, by workflow name."""
        self.problems: tuple[Problem, ...] = ()
        """Problems with the current files; an older version is used instead, or none."""
        self._told: set[str] = set()

    async def refresh(self) -> bool:
        """Read the files if they have changed; return whether they have."""
        stamp = self._stamp()
        if stamp == self._seen:
            return False
        self._seen = stamp
        try:
            project, reports = self._read_project(), await self._read_workflows()
        except (RolecallError, OSError) as error:
            # The store failed, or a folder is gone or unreadable: try again later.
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
        """Read the project's own file. If it is gone, a file in a folder above belongs to another project."""
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
        """The last correct version, perhaps registered by an earlier service."""
        with suppress(UnicodeEncodeError):  # a file name that is not valid text was never registered
            ref = self._store.ref(registry.ref_name(name))
            return ref.target if ref else None
        return None

    def _tell(self, problems: Sequence[Problem]) -> None:
        """Report each problem once, until it has gone away and come back."""
        texts = dict.fromkeys(map(str, problems))
        for text in texts:
            if text not in self._told:
                self.say(text)
        self._told = set(texts)

    # -- files --

    def folders(self) -> list[str]:
        """The folders that may contain workflows."""
        place = self.project.folder
        root = root_around(place) or place
        found: list[str] = []
        while True:
            found += [os.path.join(place, name) for name in registry.FOLDERS]
            if place == root:
                return [folder for folder in found if os.path.isdir(folder)]
            place = os.path.dirname(place)

    def _stamp(self) -> str:
        """A digest of the files' paths, times and sizes. It includes the inode change time, because a file moved into
        place keeps its old modification time."""
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
    """Every file in or below a folder of workflows. A workflow's own folder, listed in `workflows`, may be a link;
    other links are not followed, because they may lead anywhere."""
    links: list[str] = []
    with suppress(OSError), os.scandir(folder) as entries:  # the folder may have just been removed
        links = sorted(entry.path for entry in entries if entry.is_symlink() and entry.path in workflows)
    for top in (folder, *links):
        for place, below, names in os.walk(top):
            below[:] = sorted(name for name in below if name != "__pycache__")
            yield from (os.path.join(place, name) for name in sorted(names))


async def watch(definitions: Definitions, on_change: Callable[[], object]) -> None:
    """Follow the files until cancelled; `on_change` is called each time they have been read again."""
    while True:
        folders = definitions.folders()
        async with _news(definitions, folders) as news:
            while folders == definitions.folders():
                # Read after the watchers have started, so that no later change is missed.
                if await definitions.refresh():
                    on_change()
                    continue
                with suppress(TimeoutError):
                    async with asyncio.timeout(_LOOK_ANYWAY):
                        await news.wait()
                news.clear()


@asynccontextmanager
async def _news(definitions: Definitions, folders: list[str]) -> AsyncIterator[asyncio.Event]:
    """An event that is set when something changes in the project's folder itself, or in or below `folders`."""
    from rolecall.service.watch import changes

    news, deaf = asyncio.Event(), asyncio.Event()

    async def follow(paths: list[str], *, is_deep: bool) -> None:
        try:
            async for _ in changes(paths, is_deep=is_deep):
                news.set()
        except (RolecallError, OSError) as error:
            if not deaf.is_set():  # both watchers fail for the same reason
                definitions.say(f"changes of files are noticed within a minute, not at once: {error}")
            deaf.set()

    tasks = [asyncio.create_task(follow([definitions.project.folder], is_deep=False))]
    tasks += [asyncio.create_task(follow(folders, is_deep=True))] if folders else []
    await asyncio.sleep(0)  # let both start watching
    try:
        yield news
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
