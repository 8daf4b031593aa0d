"""Brings an index up to date with the files: changed files are indexed, deleted files are removed.

Files are compared by their contents. A sync is one transaction of the index. Vectors are cached as soon as they are
computed, so repeating an interrupted sync costs little.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rolecall.errors import Damaged, Hint, StorageError
from rolecall.knowledge import chunk, files, index, secrets, words
from rolecall.knowledge.chunk import Passage
from rolecall.knowledge.files import Skipped
from rolecall.knowledge.index import IndexState, Writer
from rolecall.knowledge.model import Embedder, add_title
from rolecall.knowledge.settings import INDEX, KnowledgeSettings
from rolecall.settings.mask import Mask

Progress = Callable[[int, int], None]
_BATCH = 256
"""The number of passages to embed at once."""


@dataclass
class SyncReport:
    """The result of a sync."""

    root: str
    indexed: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    unchanged: int = 0
    skipped: list[Skipped] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Further information for the user, such as why everything was indexed again."""
    state: IndexState = field(init=False)
    computed: int = 0
    """The number of vectors that the model computed. The other vectors, counted in `cached`, were in the cache."""
    cached: int = 0


@dataclass(frozen=True)
class _File:
    path: str
    digest: bytes
    passages: Sequence[Passage]


def sync(
    root: str,
    settings: KnowledgeSettings,
    embedder: Embedder,
    *,
    mask: Mask,
    now: str,
    rebuild: bool = False,
    progress: Progress | None = None,
) -> SyncReport:
    """Index changed files, or all files with `rebuild`. `progress` is called with the number of finished files and the
    total."""
    path = os.path.join(root, INDEX)
    work = _Sync(root, settings, embedder, mask, progress or (lambda _done, _total: None))
    with index.only_writer(root):
        try:
            return work.run(path, now=now, rebuild=rebuild)
        except Damaged as error:
            why = error.message
        # The error kept the old file open; by now, the error has been released.
        index.remove(path)
        report = work.run(path, now=now, rebuild=True)
        report.notes.insert(0, f"{why}; it was rebuilt")
        return report


@dataclass(frozen=True)
class _Sync:
    root: str
    settings: KnowledgeSettings
    embedder: Embedder
    mask: Mask
    progress: Progress

    def run(self, path: str, *, now: str, rebuild: bool) -> SyncReport:
        report = SyncReport(self.root)
        versions = f"chunk {chunk.VERSION}, words {words.VERSION}, secrets {secrets.VERSION}"
        recipe = f"{versions}, {self.settings.tokens} tokens"
        with index.writing(path) as writer:
            state = writer.state()
            dimensions = state.dimensions if state else 0
            if state and state.passages and state.model != self.embedder.name:
                report.notes.append(
                    f"the model was {state.model}: everything is embedded again by {self.embedder.name}"
                )
            elif state and state.recipe != recipe:
                report.notes.append(
                    "files are now split into passages differently: everything is indexed again"
                )
            if state and (report.notes or rebuild):
                writer.clear()
                dimensions = 0
            known = writer.digests()
            listing = files.list_files(self.root, self.settings)
            changed = files.find_changed(self.root, listing.paths, known, largest=self.settings.largest_file)
            report.unchanged = len(listing.paths) - len(changed)
            for gone in sorted(known.keys() - set(listing.paths)):
                writer.remove(gone)
                report.removed.append(gone)

            if changed:
                self.progress(0, len(changed))
            batch: list[_File] = []
            for number, each in enumerate(changed, 1):
                # Read the file only once, so that its passages and its digest belong together.
                data = files.read(self.root, each, largest=self.settings.largest_file)
                text = data if isinstance(data, Skipped) else files.decode(each, data)
                if isinstance(data, bytes) and isinstance(text, str):
                    safe = secrets.without_secrets(text, self.mask)
                    found = chunk.passages(each, safe, limit=self.settings.tokens)
                    batch.append(_File(each, files.digest(data), found))
                elif isinstance(text, Skipped):
                    report.skipped.append(text)
                    if each in known:
                        writer.remove(each)
                        report.removed.append(each)
                # One request to the model embeds the passages of several files.
                if sum(len(file.passages) for file in batch) >= _BATCH or number == len(changed):
                    dimensions = self._put(writer, batch, dimensions)
                    report.indexed += [file.path for file in batch]
                    batch = []
                    self.progress(number, len(changed))
            report.skipped[:0] = listing.skipped
            report.state = writer.finish(
                model=self.embedder.name, dimensions=dimensions, recipe=recipe, synced=now
            )
        return report

    def _put(self, writer: Writer, batch: Sequence[_File], dimensions: int) -> int:
        """Embed and write the passages of some files, and return the length of the vectors."""
        texts = [
            add_title(" ".join(each.trail) or file.path.rpartition("/")[2], each.text)
            for file in batch
            for each in file.passages
        ]
        if batch:
            vectors = self.embedder.embed(texts)
            if texts and dimensions and vectors.shape[1] != dimensions:
                raise StorageError(
                    f"{self.embedder.name} gives vectors of {vectors.shape[1]} numbers, "
                    f"and those of the index have {dimensions}",
                    hint=Hint(
                        "If the model has changed, rebuild it", "rebuild_index", before="Nothing was changed."
                    ),
                )
        at = 0
        for file in batch:
            writer.put(file.path, file.digest, file.passages, vectors[at : at + len(file.passages)])
            at += len(file.passages)
        return vectors.shape[1] if texts else dimensions
