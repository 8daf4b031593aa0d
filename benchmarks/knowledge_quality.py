"""How good answers are: MRR@10 and recall@5 by kind of question, for words alone, vectors alone and both.

Packages are split: the weights in `search.py` were chosen on the first group and are judged on the second, and no
package is in both. `python -m benchmarks.knowledge_quality` measures both groups, with `--repo PATH` the history of
another git repository; with `--trees FOLDER` the source trees in a folder in their place, in any language and asked in
more ways (`knowledge_sources`).
"""

from __future__ import annotations

import argparse
import email
import math
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import fmean, pstdev
from typing import NamedTuple

from benchmarks import knowledge_questions as questions
from benchmarks import knowledge_sources as sources
from benchmarks.knowledge_questions import Question
from rolecall.knowledge import settings
from rolecall.knowledge.index import IndexReader
from rolecall.knowledge.query import OpenIndex, ask
from rolecall.knowledge.static import StaticModel
from rolecall.knowledge.sync import sync
from rolecall.settings.mask import Mask

GROUPS = {
    "tuned on": (
        "click", "pip", "pydantic", "hypothesis", "huggingface_hub", "networkx", "asyncio", "email",
    ),
    "judged on": (
        "mypy", "mcp", "pydantic_ai", "starlette", "anyio", "setuptools", "_pytest", "fsspec", "pygments", "numpy",
        "cryptography", "urllib3", "griffe", "openai", "docutils", "trio", "libcst", "jedi", "IPython",
        "prompt_toolkit", "unittest", "multiprocessing", "http", "xml", "importlib",
    ),
}  # fmt: skip
"""Those of them that are installed are used; some come with Python."""
WAYS = ("words", "vectors", "fused")
_SETTINGS = settings.load('include: ["*.py", "*.md", "*.rst", "*.yaml", "*.toml"]')
_ANY_FILE = settings.load('include: ["*"]')
_KINDS = tuple(dict.fromkeys((*sources.KINDS, *questions.KINDS)))
_ALL = "all"
_TIMES_VECTORS = 1.25
_IDENTIFIERS_FOUND = 0.95


class Score(NamedTuple):
    reciprocal: float
    """1 / the rank of the first right answer among ten, or 0."""
    is_early: bool
    """Among the first five."""


class Table:
    """Scores by kind of question and by way of asking."""

    def __init__(self) -> None:
        self._scores: dict[tuple[str, str], list[Score]] = defaultdict(list)

    def add(self, kind: str, way: str, score: Score) -> None:
        for each in (kind, _ALL):
            self._scores[each, way].append(score)

    def kinds(self) -> list[str]:
        return [kind for kind in (*_KINDS, _ALL) if (kind, WAYS[0]) in self._scores]

    def count(self, kind: str) -> int:
        return len(self._scores[kind, WAYS[0]])

    def mrr(self, kind: str, way: str) -> float:
        return fmean(score.reciprocal for score in self._scores[kind, way])

    def recall(self, kind: str, way: str) -> float:
        return fmean(score.is_early for score in self._scores[kind, way])

    def gain(self, kind: str) -> tuple[float, float]:
        """By how much MRR is better than with words alone, and the standard error of that."""
        both = zip(self._scores[kind, "fused"], self._scores[kind, "words"], strict=True)
        gains = [fused.reciprocal - words.reciprocal for fused, words in both]
        return fmean(gains), pstdev(gains) / math.sqrt(len(gains))


def measured(group: str, *, most: int, history: Path | None, names: Iterable[str] = ()) -> Table:
    table = Table()
    with tempfile.TemporaryDirectory() as folder:
        for root, asked in _repositories(group, Path(folder), most, history, names or GROUPS[group]):
            _measure(root, asked, table, _SETTINGS)
    return table


def measured_trees(trees: Path, *, most: int) -> Table:
    table = Table()
    with tempfile.TemporaryDirectory() as folder:
        for tree in sorted(each for each in trees.iterdir() if each.is_dir()):
            root = Path(folder) / tree.name
            _measure(root, sources.from_tree(tree, root, most=most), table, _ANY_FILE)
    return table


def _repositories(
    group: str, folder: Path, most: int, history: Path | None, names: Iterable[str]
) -> Iterator[tuple[Path, list[Question]]]:
    for name in names:
        source = questions.site_packages(name)
        if source is not None:
            yield folder / name, questions.from_package(source, folder / name, most=most)
    yield _documents(folder, group, most=2 * most)
    if history is not None:
        yield folder / "history", questions.from_history(history, folder / "history", most=2 * most)


def _documents(folder: Path, group: str, *, most: int) -> tuple[Path, list[Question]]:
    """What installed packages say about themselves, every second package for one group."""
    source, target = folder / "described", folder / "documents"
    source.mkdir()
    places = [Path(place) for place in sys.path if place.endswith("site-packages")]
    described = sorted(each for place in places for each in place.glob("*.dist-info/METADATA"))
    for metadata in described[list(GROUPS).index(group) :: len(GROUPS)]:
        text = email.message_from_bytes(metadata.read_bytes()).get_payload()
        if isinstance(text, str) and text.count("\n") > 30:
            (source / f"{metadata.parent.name}.md").write_text(text, encoding="utf-8", errors="replace")
    target.mkdir()
    return target, questions.from_package(source, target, most=most)


def _measure(root: Path, asked: list[Question], table: Table, chosen: settings.KnowledgeSettings) -> None:
    model = StaticModel()
    sync(str(root), chosen, model, mask=Mask([]), now="")
    knowledge = OpenIndex(str(root), chosen, IndexReader(str(root / "knowledge.db")), model)
    for question in asked:
        for way in WAYS:
            table.add(question.kind, way, _score(knowledge, question, "" if way == "fused" else way))
    knowledge.reader.close()
    print(f"  {root.name}: {len(asked)} questions", file=sys.stderr, flush=True)


def _score(knowledge: OpenIndex, question: Question, by: str) -> Score:
    # A commit changes files, so it is files that are ranked: each by the best of its passages.
    is_commit = question.kind == "commit"
    answers = ask(question.text, [knowledge], limit=60 if is_commit else 10, by=by)
    if is_commit:
        answers = list({answer.path: answer for answer in answers}.values())[:10]
    ranks = (
        rank
        for rank, answer in enumerate(answers, 1)
        if question.is_answer(answer.path, answer.start, answer.end)
    )
    rank = next(ranks, 0)
    return Score(1 / rank if rank else 0.0, 0 < rank <= 5)


def show(group: str, table: Table) -> None:
    print(f"\nAnswers, packages {group}: MRR@10 and recall@5")
    ways = "".join(f"{way:>15}" for way in WAYS)
    print(f"  {'':12}{'n':>6}{ways}   over words       times vectors")
    for kind in table.kinds():
        cells = "".join(f"   {table.mrr(kind, way):.3f}  {table.recall(kind, way):.3f}"[-15:] for way in WAYS)
        gain, error = table.gain(kind)
        times = table.mrr(kind, "fused") / max(table.mrr(kind, "vectors"), 1e-9)
        told = f"  {gain:+.3f} ± {error:.3f}{times:>15.2f}"
        print(f"  {kind:12}{table.count(kind):>6}{cells}{told}   {_verdict(table, kind)}".rstrip())


def _verdict(table: Table, kind: str) -> str:
    gain, error = table.gain(kind)
    wanted = _TIMES_VECTORS * table.mrr(kind, "vectors")
    missed = []
    if gain < 0:
        missed.append("below words" if gain < -2 * error else "below words, within the error")
    if table.mrr(kind, "fused") < wanted:
        missed.append(f"below {_TIMES_VECTORS} times vectors" + (", which is above 1" if wanted > 1 else ""))
    if kind == "identifier" and table.recall(kind, "fused") < _IDENTIFIERS_FOUND:
        missed.append(f"recall below {_IDENTIFIERS_FOUND}")
    return "; ".join(missed) or "met"


def main(*, quick: bool = False) -> None:
    history = Path(__file__).parents[1]
    group = "judged on"
    names = GROUPS[group][:4] if quick else ()
    show(group, measured(group, most=30 if quick else 60, history=history, names=names))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--group", choices=list(GROUPS), help="only this one")
    parser.add_argument("--most", type=int, default=60, help="questions of a kind from each package")
    parser.add_argument("--only", help="these packages, separated by commas")
    parser.add_argument(
        "--repo", type=Path, default=Path(__file__).parents[1], help="a git repository with a history"
    )
    parser.add_argument(
        "--trees", type=Path, help="a folder of unpacked source packages, in place of the groups"
    )
    options = parser.parse_args()
    if options.trees:
        show(options.trees.name, measured_trees(options.trees, most=options.most))
        sys.exit()
    for each in [options.group] if options.group else GROUPS:
        only = options.only.split(",") if options.only else ()
        show(each, measured(each, most=options.most, history=options.repo, names=only))
