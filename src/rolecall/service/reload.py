"""The project's file and workflows as the service uses them, reloaded when the files change.

Changes are checked in a child process. A correct version applies to threads that start from then on. A wrong version is
reported, and the previous one stays in use. Running threads always keep their workflow: it is a node, and a workflow
written in Python is kept in a copy that never changes.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress

from rolecall.api import Rolecall
from rolecall.checks import workflow_file
from rolecall.checks.workflow_file import FileReport
from rolecall.errors import RolecallError
from rolecall.service import project_file
from rolecall.service.project_file import ProjectFile
from rolecall.settings import config
from rolecall.settings.repository import root_around
from rolecall.settings.yaml12 import Problem
from rolecall.store.store import Store
from rolecall.workflow import gallery
from rolecall.workflow.places import FOLDERS
from rolecall.workflow.playbook import Playbook
from rolecall.workflow.registry import files_by_name, is_own, project_files

_PAUSE = 1.0
"""Seconds between two looks at the files."""
_SELDOM = 500
"""The pause after a look is at least this many times the CPU time that the look used."""
_RETRY = 60.0
"""Seconds until files that could not be read are read again."""


class Definitions:
    """The current configuration and workflows. `say` is called with a message about each change."""

    def __init__(
        self, store: Store, folder: str, *, env: Mapping[str, str], keep: str, say: Callable[[str], object]
    ) -> None:
        """`keep` is the folder for copies of workflows written in Python. Raise `UsageError` if the project's file is
        wrong, because no previous version can be used instead."""
        self._rolecall = Rolecall(store)
        self._env = env
        self._keep = keep
        self.say = say
        self.seen = ""
        """The stamp of the files when they were last read, or an empty string if they could not be read."""
        self.project: ProjectFile = project_file.load(folder).require()
        self.workflows: dict[str, str] = {}
        """The id of the node that new threads use, keyed by workflow name."""
        self.problems: tuple[Problem, ...] = ()
        """Problems with the current files. In place of a wrong file, its last correct version is used, if any."""
        self._reported: set[str] = set()

    async def refresh(self) -> bool:
        """Read the files if they have changed, and return whether they had."""
        stamp = self.stamp()
        if stamp == self.seen:
            return False
        self.seen = stamp
        folder = self.project.folder
        path = os.path.join(folder, project_file.FILE)
        try:
            # If the project's own file is gone, files in the folders above belong to other projects.
            is_there = os.path.lexists(path)
            reading = project_file.load(folder) if is_there else project_file.parse("", path=path)
            if not reading.problems and reading.project != self.project:
                self.project = reading.project
                says = ": its new content is used" if is_there else " is gone, so nothing is configured"
                self.say(f"{project_file.FILE}{says}")
            reports = await self._read_workflows()
        except (RolecallError, OSError) as error:
            # The store failed, or a folder is gone or unreadable: try again later.
            self.seen = ""
            why = error.message if isinstance(error, RolecallError) else error
            self.say(f"the files could not be read: {why}")
            return False
        found = [problem for one in reports for problem in one.problems if problem.severity == "error"]
        wrong = (*reading.problems, *found)
        if self.problems and not wrong:
            self.say("the problems with the files are solved")
        self.problems = wrong
        # Report each problem once, until it has gone away and come back.
        texts = dict.fromkeys(map(str, [*wrong, *(problem for one in reports for problem in one.agents)]))
        for text in texts:
            if text not in self._reported:
                self.say(text)
        self._reported = set(texts)
        return True

    async def _read_workflows(self) -> list[FileReport]:
        paths = files_by_name(self.project.folder)
        for name in {trigger.workflow for trigger in self.project.triggers} - paths.keys():
            if bundled := gallery.path_of(name):
                paths[name] = bundled
        reports = await workflow_file.check(
            list(paths.values()), folder=self.project.folder, env=self._env, keep=self._keep
        )
        used: dict[str, str] = {}
        for name, report in zip(paths, reports, strict=True):
            known = self.workflows.get(name)
            if report.workflow is not None:
                book = Playbook(report.workflow)
                node = used[name] = self._rolecall.put(book, is_named=is_own(paths[name]))
                if known not in (node, None):
                    self.say(f"{name}: new threads use the version {node}")
            elif known is not None:
                used[name] = known
            else:  # use the last correct version, perhaps registered by an earlier service
                for version in self._rolecall.versions(name)[:1]:
                    used[name] = version.node
        for name in self.workflows.keys() - used.keys():
            self.say(f"{name}: its file is gone, so no new thread uses it")
        self.workflows = used
        return reports

    # -- files --

    def stamp(self) -> str:
        """Return a digest of the files' paths, sizes, times and inodes. A moved file keeps only some of these."""
        digest = hashlib.sha256()
        own = os.path.join(self.project.folder, project_file.FILE)
        # A workflow from a pack can be used as soon as somebody has allowed it.
        for file in (own, config.trusted_folder(self._env), *self._files()):
            with suppress(OSError):
                status = os.stat(file)
                digest.update(os.fsencode(file))
                stamps = (status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino)
                digest.update(f"\0{stamps}\0".encode())
        return digest.hexdigest()

    def _files(self) -> Iterator[str]:
        """Yield every file in or below the workflow folders. A workflow's own folder can be a link; other links are not
        followed, because they could lead anywhere."""
        place, tops = self.project.folder, list[str]()
        root = root_around(place) or place
        while place != os.path.dirname(root):
            tops += [os.path.join(place, name) for name in FOLDERS]
            place = os.path.dirname(place)
        with suppress(OSError):  # reported when the workflows are read
            own = set(map(os.path.dirname, project_files(self.project.folder)))
            tops += sorted(
                folder for folder in own if os.path.islink(folder) and os.path.dirname(folder) in tops
            )
        for top in tops:
            for place, below, names in os.walk(top):
                below[:] = sorted(name for name in below if name != "__pycache__")
                yield from (os.path.join(place, name) for name in sorted(names))


async def watch(definitions: Definitions, on_change: Callable[[], object]) -> None:
    """Follow the files until cancelled. `on_change` is called each time the files have been read again."""
    pause, last = _PAUSE, ""
    while True:
        began = time.thread_time()
        before, last = last, definitions.stamp()
        pause = max(_PAUSE, _SELDOM * (time.thread_time() - began))
        # Files that are still changing, for example during a checkout, are not read yet.
        if last == before != definitions.seen:
            if await definitions.refresh():
                on_change()
            else:
                pause = _RETRY
        await asyncio.sleep(pause)
