"""The verbs that front doors call: with the home, the configuration and the environment filled in.

An index that is damaged, or that an older version wrote, is made anew on the way, because it can be; whoever asked
is told.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rolecall import config
from rolecall.errors import Damaged, NotFound, RolecallError, UsageError
from rolecall.knowledge import index, model, place, query
from rolecall.knowledge.cache import CachedModel
from rolecall.knowledge.index import Reader
from rolecall.knowledge.query import Answer, Knowledge
from rolecall.knowledge.settings import EMBEDDED, INDEX, Embedding, Settings
from rolecall.knowledge.sync import Report

Tell = Callable[[str], None]


def sync(
    root: str,
    *,
    now: str,
    tell: Tell,
    is_anew: bool = False,
    is_remembered: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[Report, CachedModel]:
    """Bring a repository's index up to date; the report, and what the vectors came from. One that is remembered is
    among those that are asked when all are."""
    from rolecall.knowledge import sync as work
    from rolecall.workspace import mask

    settings = place.settings_of(root)
    home = config.home()
    embedder = CachedModel(_embedder(settings), place.cache_folder(home), tell)
    more: dict[str, Any] = {"progress": progress} if progress else {}
    report = work.sync(root, settings, embedder, mask=mask(), now=now, is_anew=is_anew, **more)
    if is_remembered:
        place.remember(home, root)
    return report, embedder


@dataclass
class Found:
    answers: list[Answer]
    notes: list[str] = field(default_factory=list)
    """Repositories that could not be asked, and what was done on the way."""


class Desk:
    """Answers questions, and keeps the indexes open that it has opened."""

    def __init__(self, *, now: Callable[[], str], tell: Tell, may_write: bool = True) -> None:
        self._now = now
        self._tell = tell
        self._may_write = may_write
        self._open: dict[str, Knowledge] = {}

    def ask(self, text: str, root: str, *, limit: int, path: str | None = None, by: str = "") -> Found:
        """Of one repository."""
        found = Found([])
        knowledge = self._opened(root, found)
        try:
            found.answers = query.ask(text, [knowledge], limit=limit, path=path, by=by)
        except Damaged as error:
            knowledge = self._remade(root, error, found)
            found.answers = query.ask(text, [knowledge], limit=limit, path=path, by=by)
        finally:
            knowledge.reader.rest()
        return found

    def ask_all(self, text: str, *, limit: int, path: str | None = None, by: str = "") -> Found:
        """Of every repository that was indexed from this home; one that cannot be asked is named, and the others
        are asked."""
        found = Found([])
        among: list[Knowledge] = []
        for root in place.remembered(config.home()):
            try:
                knowledge = self._opened(root, found)
                if by != "words":
                    knowledge.check_model()
                among.append(knowledge)
            except RolecallError as error:
                found.notes.append(f"{root} was not asked: {error.message}. {error.hint}".strip())
        if not among:
            raise NotFound(
                "; ".join(found.notes) or "no repository has been indexed yet",
                hint="In a repository: `rolecall knowledge init`, then `rolecall knowledge sync`.",
            )
        found.answers = query.ask(text, among, limit=limit, path=path, by=by)
        return found

    def close(self) -> None:
        for knowledge in self._open.values():
            knowledge.reader.close()
        self._open.clear()

    def _opened(self, root: str, found: Found) -> Knowledge:
        settings = place.settings_of(root)
        known = self._open.get(root)
        try:
            if known is None or known.settings != settings or not known.reader.is_current_file():
                return self._open_anew(root, settings)
            known.reader.refresh()
            return known
        except Damaged as error:
            return self._remade(root, error, found)

    def _open_anew(self, root: str, settings: Settings) -> Knowledge:
        embedder = _embedder(settings)
        if (
            settings.embedding.provider != EMBEDDED
        ):  # computing a vector of the embedded model is the faster way
            embedder = CachedModel(embedder, place.cache_folder(config.home()), self._tell)
        self._open[root] = Knowledge(root, settings, Reader(place.index_of(root)), embedder)
        return self._open[root]

    def _remade(self, root: str, why: Damaged, found: Found) -> Knowledge:
        """The index made anew, because it is not fit for use."""
        if not self._may_write:
            why.hint = "`rolecall knowledge sync` makes it anew."
            raise why
        self._open.pop(root, None)
        self._tell(f"{why.message}; it is made anew")
        sync(root, now=self._now(), tell=self._tell, is_anew=True)
        found.notes.append(f"{why.message}; it was made anew")
        return self._open_anew(root, place.settings_of(root))


def _embedder(settings: Settings) -> model.Embedder:
    return _embedder_of(settings.embedding)


def _embedder_of(embedding: Embedding) -> model.Embedder:
    return model.chosen(embedding, config.load(), config.environment())


def shared_model(named: str, tell: Tell) -> CachedModel:
    """A model for others to ask: `embedded`, or PROVIDER/NAME."""
    provider, _, name = named.partition("/")
    if (provider == EMBEDDED) == bool(name):
        raise UsageError(
            f"{named!r} names no model",
            hint=f"Give `{EMBEDDED}`, or PROVIDER/NAME with a provider of the configuration.",
        )
    return CachedModel(_embedder_of(Embedding(provider, name)), place.cache_folder(config.home()), tell)


def brief(question: str, folder: str, *, now: str, tokens: int, path: str | None) -> str:
    """What a repository says about a question, as it is put before an agent. It is synced first: a folder that was
    made for a thread has no index yet, and what other roles have written is to be found."""
    from rolecall.knowledge import brief as told

    root = place.root_of(folder)
    if not _is_left_alone(root):
        raise UsageError(
            f"git does not ignore {place.index_of(root)}, so it would get into what agents hand over",
            hint=f"Add `{INDEX}*` to .gitignore.",
        )
    notes: list[str] = []
    sync(root, now=now, tell=notes.append, is_remembered=False)  # a thread's own folder goes away again
    desk = Desk(now=lambda: now, tell=notes.append)
    try:
        found = desk.ask(question, root, limit=told.MOST, path=path)
    finally:
        desk.close()
    return told.brief(found.answers, budget=tokens)


# -- looking --


@dataclass(frozen=True)
class Status:
    root: str
    state: index.State
    bytes: int
    changed: Sequence[str]
    """Files that are not in the index as they are now."""
    gone: Sequence[str]
    skipped: Sequence[tuple[str, str]]
    is_ignored: bool
    """Whether git leaves the index alone."""
    cache_bytes: int
    configured_model: str


def status(root: str) -> Status:
    from rolecall.knowledge import cache, files

    settings = place.settings_of(root)
    path = place.index_of(root)
    reader = Reader(path)
    known, listing = reader.digests(), files.listed(root, settings)
    changed = [
        each
        for each in listing.paths
        if each not in known or query.is_stale(root, each, known[each], largest=settings.largest_file)
    ]
    return Status(
        root=root,
        state=reader.state,
        bytes=os.path.getsize(path),
        changed=changed,
        gone=sorted(known.keys() - set(listing.paths)),
        skipped=listing.skipped,
        is_ignored=_is_left_alone(root),
        cache_bytes=cache.size(place.cache_folder(config.home())),
        configured_model=_embedder(settings).name,
    )


def _is_left_alone(root: str) -> bool:
    """Whether git ignores the index, or there is no git."""
    from rolecall import repository
    from rolecall.knowledge import files

    return repository.root_around(root) is None or files.is_ignored(root, INDEX)


def forget(root: str) -> bool:
    """Take a repository's index away; whether there was one."""
    path = place.index_of(root)
    was_there = os.path.exists(path)
    index.remove(path)
    place.forget(config.home(), root)
    return was_there
