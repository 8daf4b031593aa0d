"""The `Knowledge` class: search in a repository."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
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
    """The index of a repository, which answers questions about the repository's files. The index stays open between
    questions: use it in a `with` block, or call `close`."""

    def __init__(
        self,
        folder: Folder = ".",
        *,
        tell: Callable[[str], None] = lambda _text: None,
        may_write: bool = True,
    ) -> None:
        """`folder` is any folder in the repository. `tell` is called with what a person should know, such as that a
        damaged index is being rebuilt. If `may_write` is false, a damaged index is an error instead."""
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
        """The folder that is indexed: the nearest folder that contains a `knowledge.yaml`, or a `rolecall.yaml` with a
        `knowledge` section."""
        return place.root_of(self.folder)

    def init(self) -> start.InitReport:
        """Write a `knowledge.yaml` that suits the kinds of files in the folder."""
        if not os.path.isdir(self.folder):
            raise UsageError(f"the folder {self.folder!r} does not exist", hint="Name a repository's folder.")
        return start.init(self.folder)

    def sync(
        self, *, rebuild: bool = False, progress: Callable[[int, int], None] | None = None
    ) -> SyncReport:
        """Index the files that have changed or, with `rebuild`, all files. `progress` is called with the number of
        files done so far and the number of files to index; an error that `progress` raises leaves the index as it
        was."""
        return queries.sync(self.root, tell=self._tell, rebuild=rebuild, progress=progress)

    def query(
        self,
        question: str,
        *,
        max: int = 10,
        path: str | None = None,
        by_words: bool = False,
        everywhere: bool = False,
    ) -> queries.Findings:
        """Find the passages that best answer a question. `path` restricts the search to files that match a pattern as
        in a `.gitignore`. With `by_words`, no model is used. With `everywhere`, all indexed repositories are
        searched."""
        if not isinstance(max, int) or max < 1:
            raise UsageError(
                f"max must be a whole number above 0, not {max!r}",
                hint="It is the number of passages to return.",
            )
        if path is not None and (wrong := globs.problem(path)):
            raise UsageError(f"the pattern {path!r} {wrong}", hint="Patterns are as in a .gitignore.")
        self._searcher = self._searcher or queries.Searcher(tell=self._tell, may_write=self._may_write)
        by = "words" if by_words else ""
        if everywhere:
            return self._searcher.ask_all(question, limit=max, path=path, by=by)
        return self._searcher.ask(question, self.root, limit=max, path=path, by=by)

    def status(self) -> queries.IndexStatus:
        """Return what is indexed, and which files have changed since they were indexed."""
        return queries.status(self.root)

    def files(self) -> dict[str, int]:
        """Return the files in the index, each with the number of its passages."""
        with closing(index.IndexReader(place.index_of(self.root))) as reader:
            return reader.counts()

    def passages(self, path: str, *, line: int | None = None) -> list[index.Stored]:
        """Return the passages of a file, or only those that contain the line `line`. `path` is relative to the current
        folder or, like the paths in answers, to the root."""
        root = self.root
        from_root = os.path.relpath(os.path.realpath(path), root)
        if os.path.lexists(path) and not from_root.startswith(".."):
            path = from_root
        with closing(index.IndexReader(place.index_of(root))) as reader:
            found = reader.of_file(path)
        return [each for each in found if line is None or each.start <= line <= each.end]

    def forget(self) -> bool:
        """Delete the index of the folder, even if the folder no longer exists. Return whether an index existed."""
        return queries.forget(self.folder)

    # -- all repositories --

    @staticmethod
    def repositories() -> dict[str, bool]:
        """Return the repositories that have been indexed, and whether the index of each still exists."""
        roots = place.list_remembered(config.home())
        return {root: os.path.exists(place.index_of(root)) for root in roots}

    @staticmethod
    def drop_vectors() -> int:
        """Delete the cached vectors, which all repositories share, and return how many bytes that frees."""
        folder = place.cache_folder(config.home())
        freed = cache.size(folder)
        index.remove(os.path.join(folder, cache.FILE))
        return freed

    def model_server(self, model: str) -> serve.Service:
        """Return an ASGI application that serves the vectors of a model to other machines. `model` is `embedded` or
        PROVIDER/NAME."""
        return serve.Service(queries.shared_model(model, self._tell), model)
