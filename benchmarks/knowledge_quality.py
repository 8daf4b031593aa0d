"""How good answers are: MRR@10 and recall@5 by kind of question, for words alone, vectors alone and both.

Packages are split: the weights in `search.py` were chosen on the first group and are judged on the second, which
nobody looked at while choosing. `python -m benchmarks.knowledge_quality --tune` measures the first group.
"""

from __future__ import annotations

import argparse
import email
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from benchmarks import knowledge_questions as questions
from benchmarks.knowledge_questions import KINDS, Question
from rolecall.knowledge import settings
from rolecall.knowledge.index import Reader
from rolecall.knowledge.query import Knowledge, ask
from rolecall.knowledge.static import StaticModel
from rolecall.knowledge.sync import sync
from rolecall.mask import Mask

TUNED_ON = ("pydantic", "pip", "hypothesis", "huggingface_hub", "click", "networkx", "moto", "awscli")
JUDGED_ON = (
    "mypy", "mcp", "pydantic_ai", "starlette", "anyio", "setuptools", "_pytest", "fsspec", "pygments", "numpy",
    "cryptography", "urllib3", "griffe", "sympy", "scipy", "docutils", "trio", "libcst", "jedi", "IPython",
    "prompt_toolkit",
)  # fmt: skip
"""Those of them that are installed are used."""
WAYS = ("words", "vectors", "fused")
_SETTINGS = settings.load('include: ["*.py", "*.md", "*.rst", "*.yaml", "*.toml"]')


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
        self._scores[kind, way].append(score)

    def kinds(self) -> list[str]:
        return [kind for kind in KINDS if (kind, WAYS[0]) in self._scores]

    def count(self, kind: str) -> int:
        return len(self._scores[kind, WAYS[0]])

    def mrr(self, kind: str, way: str) -> float:
        return fmean(score.reciprocal for score in self._scores[kind, way])

    def recall(self, kind: str, way: str) -> float:
        return fmean(score.is_early for score in self._scores[kind, way])


def measured(names: Iterable[str], *, most: int, history: Path | None, progress: bool = False) -> Table:
    table = Table()
    with tempfile.TemporaryDirectory() as folder:
        for root, asked in _repositories(names, Path(folder), most=most, history=history):
            _measure(root, asked, table)
            if progress:
                print(f"  {root.name}: {len(asked)} questions", file=sys.stderr, flush=True)
    return table


def _repositories(
    names: Iterable[str], folder: Path, *, most: int, history: Path | None
) -> Iterator[tuple[Path, list[Question]]]:
    chosen = tuple(names)
    for name in chosen:
        source = questions.site_packages(name)
        if source is not None:
            yield folder / name, questions.from_package(source, folder / name, most=most)
    yield folder / "documents", _documents(folder / "documents", is_tuned=chosen == TUNED_ON, most=2 * most)
    if history is not None:
        yield folder / "history", questions.from_history(history, folder / "history", most=most)


def _documents(target: Path, *, is_tuned: bool, most: int) -> list[Question]:
    """What installed packages say about themselves, every second package for one group."""
    target.mkdir()
    places = [Path(place) for place in sys.path if place.endswith("site-packages")]
    for place in places:
        for number, metadata in enumerate(sorted(place.glob("*.dist-info/METADATA"))):
            text = email.message_from_bytes(metadata.read_bytes()).get_payload()
            if number % 2 == is_tuned and isinstance(text, str) and text.count("\n") > 30:
                (target / f"{metadata.parent.name}.md").write_text(text, encoding="utf-8", errors="replace")
    copy = target.parent / "documents-copy"
    return questions.from_package(target, copy, most=most)


def _measure(root: Path, asked: list[Question], table: Table) -> None:
    model = StaticModel()
    sync(str(root), _SETTINGS, model, mask=Mask([]), now="")
    knowledge = Knowledge(str(root), _SETTINGS, Reader(str(root / "knowledge.db")), model)
    for question in asked:
        for way in WAYS:
            table.add(question.kind, way, _score(knowledge, question, "" if way == "fused" else way))
    knowledge.reader.close()


def _score(knowledge: Knowledge, question: Question, by: str) -> Score:
    # A commit changes files, so it is files that are ranked: each by the best of its passages.
    is_commit = question.kind == "commit"
    answers = ask(question.text, [knowledge], limit=60 if is_commit else 10, by=by)
    if is_commit:
        answers = list({answer.path: answer for answer in reversed(answers)}.values())
        answers = sorted(answers, key=lambda answer: -answer.score)[:10]
    ranks = (
        rank
        for rank, answer in enumerate(answers, 1)
        if question.is_answer(answer.path, answer.start, answer.end)
    )
    rank = next(ranks, 0)
    return Score(1 / rank if rank else 0.0, 0 < rank <= 5)


def show(table: Table) -> None:
    print(
        f"  {'':12}{'n':>6}"
        + "".join(f"{way:>16}" for way in WAYS)
        + f"{'fused/words':>13}{'fused/vectors':>15}"
    )
    for kind in table.kinds():
        cells = "".join(f"    {table.mrr(kind, way):.3f}  {table.recall(kind, way):.3f}" for way in WAYS)
        fused = table.mrr(kind, "fused")
        ratios = f"{fused / table.mrr(kind, 'words'):>13.2f}{fused / table.mrr(kind, 'vectors'):>15.2f}"
        print(f"  {kind:12}{table.count(kind):>6}{cells}{ratios}")


def main(*, quick: bool = False) -> None:
    history = Path(__file__).parents[1]
    names = JUDGED_ON[:4] if quick else JUDGED_ON
    print("Answers: MRR@10 and recall@5, embedded model, packages that were not tuned on")
    show(measured(names, most=40 if quick else 150, history=history))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tune", action="store_true", help="the packages that weights are chosen on")
    parser.add_argument("--most", type=int, default=150, help="questions of a kind from each package")
    parser.add_argument("--only", help="these packages, separated by commas")
    parser.add_argument(
        "--git", type=Path, default=Path(__file__).parents[1], help="a repository with a history"
    )
    options = parser.parse_args()
    group = TUNED_ON if options.tune else JUDGED_ON
    show(
        measured(
            options.only.split(",") if options.only else group,
            most=options.most,
            history=options.git,
            progress=True,
        )
    )
