"""Brings an index up to date with the files: what changed is indexed, what is gone is removed.

Files are compared by their contents. Everything happens in one transaction of the index; vectors that were paid
for are in the cache by then, so a sync that was interrupted costs little to do again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from rolecall.errors import Damaged, Hint, StorageError
from rolecall.knowledge import chunk, files, index, secrets, words
from rolecall.knowledge.chunk import Passage
from rolecall.knowledge.files import Skipped
from rolecall.knowledge.index import State, Writer
from rolecall.knowledge.model import Embedder, titled
from rolecall.knowledge.settings import INDEX, Settings
from rolecall.settings.mask import Mask

Progress = Callable[[int, int], None]
_BATCH = 256
"""Passages that are embedded at once."""


@dataclass
class Report:
    """What a sync did."""

    root: str
    indexed: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    unchanged: int = 0
    skipped: list[Skipped] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What else is to be known: that everything was done anew, and why."""
    state: State | None = None


@dataclass(frozen=True)
class _File:
    path: str
    digest: bytes
    passages: Sequence[Passage]


def sync(
    root: str,
    settings: Settings,
    embedder: Embedder,
    *,
    mask: Mask,
    now: str,
    is_anew: bool = False,
    progress: Progress | None = None,
) -> Report:
    """Index what changed. `progress` is told how many of the files to be indexed are done, and how many there are."""
    path = os.path.join(root, INDEX)
    work = _Sync(root, settings, embedder, mask, progress or (lambda _done, _total: None))
    with index.only_writer(root):
        try:
            return work.run(path, now=now, is_anew=is_anew)
        except Damaged as error:
            why = error.message
        # Here the error is gone, and with it what it held open of the old file.
        index.remove(path)
        report = work.run(path, now=now, is_anew=True)
        report.notes.insert(0, f"{why}; it was made anew")
        return report


@dataclass(frozen=True)
class _Sync:
    root: str
    settings: Settings
    embedder: Embedder
    mask: Mask
    progress: Progress

    def run(self, path: str, *, now: str, is_anew: bool) -> Report:
        report = Report(self.root)
        with index.writing(path) as writer:
            dimensions = self._begin(writer, report, is_anew=is_anew)
            known = writer.digests()
            listing = files.listed(self.root, self.settings)
            changed = [each for each in listing.paths if self._is_changed(each, known.get(each))]
            report.unchanged = len(listing.paths) - len(changed)
            for gone in sorted(known.keys() - set(listing.paths)):
                self._remove(writer, gone, report)
            self.progress(0, len(changed))
            for batch in _batches(self._files(writer, changed, known, report)):
                dimensions = self._put(writer, batch, dimensions)
                report.indexed += [file.path for file in batch]
                self.progress(len(report.indexed) + len(report.skipped), len(changed))
            report.skipped[:0] = listing.skipped
            report.state = writer.finish(
                model=self.embedder.name, dimensions=dimensions, recipe=self._recipe, synced=now
            )
        return report

    @property
    def _recipe(self) -> str:
        versions = f"chunk {chunk.VERSION}, words {words.VERSION}, secrets {secrets.VERSION}"
        return f"{versions}, {self.settings.tokens} tokens"

    def _begin(self, writer: Writer, report: Report, *, is_anew: bool) -> int:
        """Clear an index that was made in another way, and say so; how long its vectors are."""
        state = writer.state()
        if state is None:
            return 0
        if state.passages and state.model != self.embedder.name:
            report.notes.append(
                f"the model was {state.model}: everything is embedded anew by {self.embedder.name}"
            )
        elif state.recipe != self._recipe:
            report.notes.append("passages are made in another way than before: everything is indexed anew")
        elif not is_anew:
            return state.dimensions
        writer.clear()
        return 0

    def _is_changed(self, path: str, known: bytes | None) -> bool:
        if known is None:
            return True
        data = files.read(self.root, path, largest=self.settings.largest_file)
        return not isinstance(data, bytes) or index.digest(data) != known

    def _files(
        self, writer: Writer, paths: Iterable[str], known: Container[str], report: Report
    ) -> Iterator[_File]:
        """The passages of files. Contents are read once here, so they and their digest belong together."""
        for path in paths:
            read = self._passages(path)
            if isinstance(read, _File):
                yield read
                continue
            report.skipped.append(read)
            if path in known:
                self._remove(writer, path, report)

    def _passages(self, path: str) -> _File | Skipped:
        data = files.read(self.root, path, largest=self.settings.largest_file)
        if isinstance(data, Skipped):
            return data
        text = files.decoded(path, data)
        if isinstance(text, Skipped):
            return text
        safe = secrets.without_secrets(text, self.mask)
        return _File(path, index.digest(data), chunk.passages(path, safe, limit=self.settings.tokens))

    def _remove(self, writer: Writer, path: str, report: Report) -> None:
        writer.remove(path)
        report.removed.append(path)

    def _put(self, writer: Writer, batch: Sequence[_File], dimensions: int) -> int:
        """Embed the passages of some files and write them; how long the vectors are."""
        texts = [titled(_title(file.path, each), each.text) for file in batch for each in file.passages]
        vectors = self.embedder.embed(texts)
        if len(texts) and dimensions and vectors.shape[1] != dimensions:
            raise StorageError(
                f"{self.embedder.name} gives vectors of {vectors.shape[1]} numbers, "
                f"and those of the index have {dimensions}",
                hint=Hint(
                    "If the model has changed, rebuild it",
                    "rebuild_index",
                    before="Nothing was changed.",
                ),
            )
        at = 0
        for file in batch:
            writer.put(file.path, file.digest, file.passages, vectors[at : at + len(file.passages)])
            at += len(file.passages)
        return vectors.shape[1] if len(texts) else dimensions


def _title(path: str, passage: Passage) -> str:
    return " ".join(passage.trail) or path.rpartition("/")[2]


def _batches(found: Iterable[_File]) -> Iterator[list[_File]]:
    batch: list[_File] = []
    count = 0
    for file in found:
        batch.append(file)
        count += len(file.passages)
        if count >= _BATCH:
            yield batch
            batch, count = [], 0
    if batch:
        yield batch
