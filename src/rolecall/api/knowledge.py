"""`Knowledge`: a repository's own search."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from rolecall.errors import UsageError
from rolecall.settings import config
from rolecall.store.lazy import import_later

if TYPE_CHECKING:
    from rolecall.knowledge import cache, globs, index, place, queries, serve, start
    from rolecall.knowledge.sync import SyncReport
    from rolecall.nexus.project_paths import Folder
else:
    globals().update(import_later({"rolecall.knowledge.": "cache globs index place queries serve start"}))


class Knowledge:
    """The index of a repository, which answers questions about its files. It stays open between questions: use it in a
    `with` block, or close it."""

    def __init__(
        self,
        folder: Folder = ".",
        *,
        tell: Callable[[str], None] = lambda _text: None,
        may_write: bool = True,
    ) -> None:
        """`folder` is in the repository. `tell` is called with what a person should know, such as that a damaged index
        is rebuilt; unless this `may_write`, that is an error."""
        self.folder = os.path.realpath(folder)
        self._tell = tell
        self._may_write = may_write
        self._searcher: queries.Searcher | None = None

    def __enter__(self) -> Knowledge:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._searcher:
            self._searcher.close()

    @property
    def root(self) -> str:
        """The folder that is indexed: the nearest one with a `knowledge.yaml`, or with a `knowledge` section in its
        `rolecall.yaml`."""
        return place.root_of(self.folder)

    def init(self) -> start.InitReport:
        """Write a `knowledge.yaml` for the kinds of files in the folder."""
        if not os.path.isdir(self.folder):
            raise UsageError(f"the folder {self.folder!r} does not exist", hint="Name a repository's folder.")
        return start.init(self.folder)

    def sync(
        self, *, rebuild: bool = False, progress: Callable[[int, int], None] | None = None
    ) -> SyncReport:
        """Index what has changed, or everything again. `progress` is called with how many files are done, and of how
        many; an error that it raises leaves the index as it was."""
        return queries.sync(self.root, tell=self._tell, is_anew=rebuild, progress=progress)

    def query(
        self,
        question: str,
        *,
        max: int = 10,
        path: str | None = None,
        by_words: bool = False,
        everywhere: bool = False,
    ) -> queries.Findings:
        """Find the passages that best answer a question, in files that match `path`, a pattern as in a `.gitignore`.
        `by_words` uses no model. `everywhere` searches all repositories that were indexed."""
        if path is not None and (wrong := globs.problem(path)):
            raise UsageError(f"the pattern {path!r} {wrong}", hint="Patterns are as in a .gitignore.")
        self._searcher = self._searcher or queries.Searcher(tell=self._tell, may_write=self._may_write)
        by = "words" if by_words else ""
        if everywhere:
            return self._searcher.ask_all(question, limit=max, path=path, by=by)
        return self._searcher.ask(question, self.root, limit=max, path=path, by=by)

    def status(self) -> queries.IndexStatus:
        """What is indexed, and which files have changed since."""
        return queries.status(self.root)

    def files(self) -> dict[str, int]:
        """The files in the index, with the number of their passages."""
        return index.IndexReader(place.index_of(self.root)).counts()

    def passages(self, path: str, *, line: int | None = None) -> list[index.Stored]:
        """The passages of a file, or those at a line of it. `path` is relative to the current folder or, as in answers,
        to the root."""
        root = self.root
        from_root = os.path.relpath(os.path.realpath(path), root)
        if os.path.lexists(path) and not from_root.startswith(".."):
            path = from_root
        found = index.IndexReader(place.index_of(root)).of_file(path)
        return [each for each in found if line is None or each.start <= line <= each.end]

    def forget(self) -> bool:
        """Delete the index in the folder, which need not exist any more; return whether there was one."""
        return queries.forget(self.folder)

    # -- all repositories --

    @staticmethod
    def repositories() -> dict[str, bool]:
        """The repositories that were indexed, and whether each still has its index."""
        roots = place.list_remembered(config.home())
        return {root: os.path.exists(place.index_of(root)) for root in roots}

    @staticmethod
    def drop_vectors() -> int:
        """Delete the vectors that are kept for all repositories, and return how many bytes that frees."""
        folder = place.cache_folder(config.home())
        freed = cache.size(folder)
        index.remove(os.path.join(folder, cache.FILE))
        return freed

    def model_server(self, model: str) -> serve.Service:
        """An ASGI application that gives the vectors of a model to others: `embedded`, or PROVIDER/NAME."""
        return serve.Service(queries.shared_model(model, self._tell), model)
