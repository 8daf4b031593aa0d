"""The operations for the CLI and other interfaces, which use the current home, configuration and environment.

An index that is damaged or was written by an older version is rebuilt when it is used, and the user is notified.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from rolecall.errors import Damaged, Hint, NotFound, RolecallError, UsageError
from rolecall.knowledge import brief as briefing
from rolecall.knowledge import cache, files, index, place, query
from rolecall.knowledge import sync as syncing
from rolecall.knowledge.cache import CachedModel
from rolecall.knowledge.index import IndexReader
from rolecall.knowledge.model import Embedder
from rolecall.knowledge.query import FoundPassage, OpenIndex
from rolecall.knowledge.remote import RemoteModel
from rolecall.knowledge.settings import EMBEDDED, INDEX, TRANSFORMERS, Embedding, KnowledgeSettings
from rolecall.knowledge.static import StaticModel
from rolecall.knowledge.sync import SyncReport
from rolecall.knowledge.transformer import Transformer
from rolecall.settings import config
from rolecall.settings.models import model_endpoint
from rolecall.store.clock import timestamp

Tell = Callable[[str], None]
_LONGEST_QUESTION = 4_000
"""The number of characters of a task that are used as the question; a task usually starts with its subject."""


def sync(
    root: str,
    *,
    tell: Tell,
    rebuild: bool = False,
    is_remembered: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> SyncReport:
    """Bring a repository's index up to date. A remembered repository is included in queries that search all
    repositories."""
    settings = place.settings_of(root)
    home = config.home()
    if not _make_ignored(root):
        tell(f"git does not ignore {place.index_of(root)}: add `{INDEX}*` to .gitignore")
    embedder = CachedModel(_load_model(settings.embedding), place.cache_folder(home), tell)
    try:
        report = syncing.sync(
            root, settings, embedder, mask=config.mask(), now=timestamp(), rebuild=rebuild, progress=progress
        )
    finally:
        embedder.close()
    if is_remembered:
        try:
            place.remember(home, root)
        except OSError as error:
            tell(f"{root} is indexed, but not among those that `-g` asks: {error}")
    report.computed, report.cached = embedder.computed, embedder.found
    return report


@dataclass
class Findings:
    answers: list[FoundPassage]
    notes: list[str] = field(default_factory=list)
    """Notes on repositories that could not be queried, and on indexes that were rebuilt."""


class Searcher:
    """A searcher that answers questions and keeps the indexes open between them."""

    def __init__(self, *, tell: Tell, may_write: bool = True) -> None:
        self._tell = tell
        self._may_write = may_write
        self._open: dict[str, OpenIndex] = {}

    def ask(self, text: str, root: str, *, limit: int, path: str | None = None, by: str = "") -> Findings:
        """Query one repository."""
        found = Findings([])
        knowledge = self._open_current(root, found)
        try:
            found.answers = self._ask_one(text, knowledge, found, limit=limit, path=path, by=by)
        finally:
            self._rest()
        return found

    def _ask_one(self, text: str, knowledge: OpenIndex, found: Findings, **more: Any) -> list[FoundPassage]:
        try:
            return query.ask(text, [knowledge], **more)
        except Damaged as error:
            why = error.message
        # The error kept the old file open; by now, the error has been released.
        return query.ask(text, [self._rebuild(knowledge.root, why, found)], **more)

    def ask_all(self, text: str, *, limit: int, path: str | None = None, by: str = "") -> Findings:
        """Query every repository indexed from this home. Add a note for each repository that cannot be queried."""
        found = Findings([])
        among: list[OpenIndex] = []
        for root in place.list_remembered(config.home()):
            with _note_failure(root, found):
                if not os.path.isdir(root):
                    hint = Hint("If it is gone for good, forget it", "forget_repository", repo=root)
                    raise NotFound("it no longer exists", hint=hint)
                knowledge = self._open_current(root, found)
                if by != "words":
                    knowledge.check_model()
                among.append(knowledge)
        if not among:
            raise NotFound(
                "; ".join(found.notes) or "no repository has been indexed yet",
                hint=Hint("Index a repository, in its folder", "index_repository"),
            )
        try:
            found.answers = query.ask(text, among, limit=limit, path=path, by=by)
        except RolecallError:
            # Query each repository separately to find out which ones work.
            able: list[OpenIndex] = []
            for knowledge in among:
                with _note_failure(knowledge.root, found):
                    self._ask_one(text, knowledge, found, limit=1, by=by)
                    able.append(self._open[knowledge.root])
            if not able:
                raise
            found.answers = query.ask(text, able, limit=limit, path=path, by=by)
        finally:
            self._rest()
        return found

    def _rest(self) -> None:
        for knowledge in self._open.values():
            knowledge.reader.rest()

    def close(self) -> None:
        for root in list(self._open):
            self._close(root)

    def _close(self, root: str) -> None:
        if known := self._open.pop(root, None):
            known.reader.close()

    def _open_current(self, root: str, found: Findings) -> OpenIndex:
        settings = place.settings_of(root)
        known = self._open.get(root)
        try:
            if known is None or known.settings != settings or not known.reader.is_current_file():
                return self._reopen(root, settings)
            known.reader.refresh()
            return known
        except Damaged as error:
            why = error.message
        return self._rebuild(root, why, found)

    def _reopen(self, root: str, settings: KnowledgeSettings) -> OpenIndex:
        embedder = _load_model(settings.embedding)
        if settings.embedding.provider != EMBEDDED:  # the embedded model is faster than a cache lookup
            embedder = CachedModel(embedder, place.cache_folder(config.home()), self._tell)
        self._close(root)
        self._open[root] = OpenIndex(root, settings, IndexReader(place.index_of(root)), embedder)
        return self._open[root]

    def _rebuild(self, root: str, why: str, found: Findings) -> OpenIndex:
        if not self._may_write:
            raise Damaged(why, hint=index.REBUILD)
        self._close(root)
        self._tell(f"{why}; it is rebuilt")
        sync(root, tell=self._tell, rebuild=True)
        found.notes.append(f"{why}; it was rebuilt")
        return self._reopen(root, place.settings_of(root))


@contextmanager
def _note_failure(root: str, found: Findings) -> Iterator[None]:
    """Add a note about an error in one of several repositories, so that the others are still queried."""
    try:
        yield
    except RolecallError as error:
        found.notes.append(f"{root} was not searched: {error.message}. {error.hint}".strip())


def _load_model(embedding: Embedding) -> Embedder:
    if embedding.provider == EMBEDDED:
        return StaticModel()
    if embedding.provider == TRANSFORMERS:
        return Transformer(embedding.model)
    endpoint = model_endpoint(config.load(), config.environment(), f"{embedding.provider}/{embedding.model}")
    if endpoint.protocol != "openai":
        raise UsageError(
            f"the provider {embedding.provider!r} speaks {endpoint.protocol}, which has no embeddings",
            hint="Name one that speaks the protocol `openai`, or use the embedded model.",
        )
    return RemoteModel(
        endpoint.base_url, endpoint.model, key=endpoint.api_key, dimensions=embedding.dimensions
    )


def shared_model(named: str, tell: Tell) -> CachedModel:
    """Load a model to share with others, named `embedded` or PROVIDER/NAME."""
    provider, _, name = named.partition("/")
    if (provider == EMBEDDED) == bool(name):
        raise UsageError(
            f"{named!r} is not the name of a model",
            hint=f"Give `{EMBEDDED}`, or PROVIDER/NAME with a provider of the configuration.",
        )
    return CachedModel(_load_model(Embedding(provider, name)), place.cache_folder(config.home()), tell)


def brief(question: str, folder: str, *, tokens: int, path: str | None) -> tuple[str, Sequence[str]]:
    """Return the passages about a question in the form in which an agent gets them, and notes for a person. The
    repository is synced first, because a thread's folder has no index yet, and other roles could have written files."""
    root = place.root_of(folder)
    if not _make_ignored(root):
        raise UsageError(
            f"git does not ignore {place.index_of(root)}, so it would get into what agents hand over",
            hint=f"Add `{INDEX}*` to .gitignore.",
        )
    notes: list[str] = []
    # The repository is not remembered, because a thread's own folder is temporary.
    report = sync(root, tell=notes.append, is_remembered=False)
    notes += report.notes
    searcher = Searcher(tell=notes.append)
    try:
        found = searcher.ask(question[:_LONGEST_QUESTION], root, limit=briefing.MOST, path=path)
    finally:
        searcher.close()
    return briefing.brief(found.answers, budget=tokens), notes


# -- looking --


@dataclass(frozen=True)
class IndexStatus:
    root: str
    state: index.IndexState
    bytes: int
    changed: Sequence[str]
    """The files whose current contents are not in the index."""
    gone: Sequence[str]
    skipped: Sequence[tuple[str, str]]
    is_ignored: bool
    """Whether git ignores the index."""
    cache_bytes: int
    configured_model: str


def status(root: str) -> IndexStatus:
    settings = place.settings_of(root)
    path = place.index_of(root)
    with closing(IndexReader(path)) as reader:
        known, state = reader.digests(), reader.state
    listing = files.list_files(root, settings)
    return IndexStatus(
        root=root,
        state=state,
        bytes=os.path.getsize(path),
        changed=files.find_changed(root, listing.paths, known, largest=settings.largest_file),
        gone=sorted(known.keys() - set(listing.paths)),
        skipped=listing.skipped,
        is_ignored=files.is_index_ignored(root),
        cache_bytes=cache.size(place.cache_folder(config.home())),
        configured_model=_load_model(settings.embedding).name,
    )


def _make_ignored(root: str) -> bool:
    """Make git ignore the index through `.git/info/exclude`, and return whether git ignores it."""
    if not files.is_index_ignored(root):
        with suppress(OSError):  # without write permission, the caller explains what to do
            files.exclude(root, f"{INDEX}*")
    return files.is_index_ignored(root)


def forget(root: str) -> bool:
    """Delete a repository's index, and return whether there was one."""
    path = place.index_of(root)
    was_there = os.path.lexists(path)
    if was_there:
        with index.only_writer(root):
            index.remove(path)
    place.forget(config.home(), root)
    return was_there
