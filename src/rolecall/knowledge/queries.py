"""The verbs that front doors call: with the home, the configuration and the environment filled in.

An index that is damaged, or that an older version wrote, is made anew on the way, because it can be; whoever asked
is told.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from rolecall.errors import Damaged, Hint, NotFound, RolecallError, UsageError
from rolecall.knowledge import index, model, place, query
from rolecall.knowledge.cache import CachedModel
from rolecall.knowledge.index import Reader
from rolecall.knowledge.query import Answer, Knowledge
from rolecall.knowledge.settings import EMBEDDED, INDEX, Embedding, Settings
from rolecall.knowledge.sync import Report
from rolecall.settings import config

Tell = Callable[[str], None]
_LONGEST_QUESTION = 4_000
"""Characters of a task that are asked by: it begins with what it is about, and models take no more than so much."""


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

    settings = place.settings_of(root)
    home = config.home()
    if not _leave_alone(root):
        tell(f"git does not ignore {place.index_of(root)}: add `{INDEX}*` to .gitignore")
    embedder = CachedModel(_embedder(settings.embedding), place.cache_folder(home), tell)
    try:
        report = work.sync(
            root, settings, embedder, mask=config.mask(), now=now, is_anew=is_anew, progress=progress
        )
    finally:
        embedder.close()
    if is_remembered:
        try:
            place.remember(home, root)
        except OSError as error:
            tell(f"{root} is indexed, but not among those that `-g` asks: {error}")
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
            found.answers = self._asked(text, knowledge, found, limit=limit, path=path, by=by)
        finally:
            self._rest()
        return found

    def _asked(self, text: str, knowledge: Knowledge, found: Found, **more: Any) -> list[Answer]:
        """Of an index that is made anew should it turn out to be damaged."""
        try:
            return query.ask(text, [knowledge], **more)
        except Damaged as error:
            why = error.message
        return query.ask(text, [self._remade(knowledge.root, why, found)], **more)

    def ask_all(self, text: str, *, limit: int, path: str | None = None, by: str = "") -> Found:
        """Of every repository that was indexed from this home; one that cannot be asked is named, and the others
        are asked."""
        found = Found([])
        among: list[Knowledge] = []
        for root in place.remembered(config.home()):
            with _passed_over(root, found):
                if not os.path.isdir(root):
                    hint = Hint("If it is gone for good, forget it", "forget_repository", repo=root)
                    raise NotFound("it is not there any more", hint=hint)
                knowledge = self._opened(root, found)
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
            among = self._that_answer(text, among, by, found)
            if not among:
                raise
            found.answers = query.ask(text, among, limit=limit, path=path, by=by)
        finally:
            self._rest()
        return found

    def _that_answer(self, text: str, among: Sequence[Knowledge], by: str, found: Found) -> list[Knowledge]:
        """Those of some repositories that can be asked, each on its own; one that is damaged is made anew."""
        able: list[Knowledge] = []
        for knowledge in among:
            with _passed_over(knowledge.root, found):
                self._asked(text, knowledge, found, limit=1, by=by)
                able.append(self._open[knowledge.root])
        return able

    def _rest(self) -> None:
        for knowledge in self._open.values():
            knowledge.reader.rest()

    def close(self) -> None:
        for root in list(self._open):
            self._close(root)

    def _close(self, root: str) -> None:
        if known := self._open.pop(root, None):
            known.reader.close()

    def _opened(self, root: str, found: Found) -> Knowledge:
        settings = place.settings_of(root)
        known = self._open.get(root)
        try:
            if known is None or known.settings != settings or not known.reader.is_current_file():
                return self._open_anew(root, settings)
            known.reader.refresh()
            return known
        except Damaged as error:
            why = error.message
        return self._remade(root, why, found)

    def _open_anew(self, root: str, settings: Settings) -> Knowledge:
        embedder = _embedder(settings.embedding)
        if settings.embedding.provider != EMBEDDED:  # which computes a vector faster than one is looked up
            embedder = CachedModel(embedder, place.cache_folder(config.home()), self._tell)
        self._close(root)
        self._open[root] = Knowledge(root, settings, Reader(place.index_of(root)), embedder)
        return self._open[root]

    def _remade(self, root: str, why: str, found: Found) -> Knowledge:
        """The index made anew, because it is not fit for use."""
        if not self._may_write:
            raise Damaged(why, hint=index.ANEW)
        self._close(root)
        self._tell(f"{why}; it is made anew")
        sync(root, now=self._now(), tell=self._tell, is_anew=True)
        found.notes.append(f"{why}; it was made anew")
        return self._open_anew(root, place.settings_of(root))


@contextmanager
def _passed_over(root: str, found: Found) -> Iterator[None]:
    """What is wrong with one of many repositories is told, and the others go on."""
    try:
        yield
    except RolecallError as error:
        found.notes.append(f"{root} was not asked: {error.message}. {error.hint}".strip())


def _embedder(embedding: Embedding) -> model.Embedder:
    return model.chosen(embedding, config.load(), config.environment())


def shared_model(named: str, tell: Tell) -> CachedModel:
    """A model for others to ask: `embedded`, or PROVIDER/NAME."""
    provider, _, name = named.partition("/")
    if (provider == EMBEDDED) == bool(name):
        raise UsageError(
            f"{named!r} names no model",
            hint=f"Give `{EMBEDDED}`, or PROVIDER/NAME with a provider of the configuration.",
        )
    return CachedModel(_embedder(Embedding(provider, name)), place.cache_folder(config.home()), tell)


def brief(
    question: str, folder: str, *, now: str, tokens: int, path: str | None
) -> tuple[str, Sequence[str]]:
    """What a repository says about a question, as it is put before an agent, and what a person should know about it.
    It is synced first: a folder that was made for a thread has no index yet, and what other roles have written is to
    be found."""
    from rolecall.knowledge import brief as told

    root = place.root_of(folder)
    if not _leave_alone(root):
        raise UsageError(
            f"git does not ignore {place.index_of(root)}, so it would get into what agents hand over",
            hint=f"Add `{INDEX}*` to .gitignore.",
        )
    notes: list[str] = []
    report, _ = sync(
        root, now=now, tell=notes.append, is_remembered=False
    )  # a thread's own folder goes away again
    notes += report.notes
    desk = Desk(now=lambda: now, tell=notes.append)
    try:
        found = desk.ask(question[:_LONGEST_QUESTION], root, limit=told.MOST, path=path)
    finally:
        desk.close()
    return told.brief(found.answers, budget=tokens), notes


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
        configured_model=_embedder(settings.embedding).name,
    )


def _is_left_alone(root: str) -> bool:
    """Whether git ignores the index, or there is no git."""
    from rolecall.knowledge import files
    from rolecall.settings import repository

    return repository.root_around(root) is None or files.is_ignored(root, INDEX)


def _leave_alone(root: str) -> bool:
    """Make git ignore the index through `.git/info/exclude`, and return whether it does."""
    from rolecall.knowledge import files

    if not _is_left_alone(root):
        with suppress(OSError):  # without write permission, the caller says what to do
            files.exclude(root, f"{INDEX}*")
    return _is_left_alone(root)


def forget(root: str) -> bool:
    """Take a repository's index away; whether there was one."""
    path = place.index_of(root)
    was_there = os.path.lexists(path)
    if was_there:
        with index.only_writer(root):
            index.remove(path)
    place.forget(config.home(), root)
    return was_there
