"""Questions with known answers, made from packages that are installed and from the history of a repository.

A package is copied as a repository to be indexed; every second function loses its docstring on the way. The kinds
of questions:

    docstring    the first sentence of a docstring that was taken away: the function that no longer says it
    documented   the first sentence of one that is still there, without every third word: its function
    heading      a heading of a document, after the one it stands under if it comes up more than once: its section
    identifier   the name of something that is defined once, as people write it: its definition
    error        the message of an exception with values filled in, as a program prints it: where it is raised
    commit       the subject of a commit: the files it changed

Every choice is drawn from a fixed seed, so that a set is the same again tomorrow.
"""

from __future__ import annotations

import ast
import random
import re
import shutil
import subprocess
import sys
import tokenize
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

KINDS = ("docstring", "documented", "heading", "identifier", "error", "commit")
_DOCUMENTS = (".md", ".rst")
_LARGEST = 500_000
_LEFT_OUT = frozenset(("tests", "test", "testing", "_vendor", "vendored", "vendor"))

_Function = ast.FunctionDef | ast.AsyncFunctionDef


class Question(NamedTuple):
    kind: str
    text: str
    path: str
    """The file the answer is in; several, separated by a line break, for a commit."""
    start: int
    end: int

    def is_answer(self, path: str, start: int, end: int) -> bool:
        """Whether a passage is of what was asked for: for a definition, it holds the line that begins it."""
        if self.kind == "commit":
            return path in self.path.split("\n")
        return path == self.path and start <= self.end and end >= self.start


def site_packages(name: str) -> Path | None:
    """The folder of an installed package, of this environment or of the Python it was made from."""
    places = [*sys.path, str(Path(sys.base_prefix) / f"lib/python3.{sys.version_info[1]}/site-packages")]
    found = (Path(place) / name for place in places if place)
    return next((folder for folder in found if (folder / "__init__.py").is_file()), None)


def from_package(source: Path, target: Path, *, most: int, seed: int = 8) -> list[Question]:
    """Copy a package into `target` as a repository to be indexed, and what is asked of it."""
    found: list[Question] = []
    for path in sorted(source.rglob("*")):
        inside = path.relative_to(source)
        is_code, is_document = path.suffix == ".py", path.suffix in _DOCUMENTS
        if not (is_code or is_document) or not path.is_file() or path.is_symlink():
            continue
        if _LEFT_OUT & set(inside.parts) or path.stat().st_size > _LARGEST:
            continue
        (target / inside).parent.mkdir(parents=True, exist_ok=True)
        if is_code:
            found += _from_python(path, target / inside, str(inside))
        else:
            shutil.copyfile(path, target / inside)
            found += _from_document(path, str(inside))
    return drawn(found, most, seed)


def drawn(questions: Iterable[Question], most: int, seed: int = 8) -> list[Question]:
    """So many of each kind, among those that have one answer."""
    found = list(questions)
    times = Counter(each for question in found for each in _asked_for(question))
    single = [question for question in found if times[_asked_for(question)[0]] == 1]
    by_kind = [[question for question in single if question.kind == kind] for kind in KINDS]
    return [
        question for those in by_kind for question in random.Random(seed).sample(those, min(most, len(those)))
    ]


def _asked_for(question: Question) -> list[tuple[str, str]]:
    """What it asks for first; a name with another one before it is one of those with that name, too."""
    text = question.text.lower().removesuffix("()")
    whole, last = (question.kind, text), (question.kind, text.rpartition(".")[2])
    return [whole, last] if question.kind == "identifier" and whole != last else [whole]


# -- Python --


def _from_python(path: Path, copy: Path, relative: str) -> Iterator[Question]:
    try:
        with tokenize.open(path) as file:
            text = file.read()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except (SyntaxError, UnicodeDecodeError, ValueError):
        return
    documented = list(_docstrings(tree))
    taken, left = documented[::2], documented[1::2]
    gone = {number for _, span in taken for number in range(span[0], span[1] + 1)}
    lines = [line for number, line in enumerate(text.split("\n"), 1) if number not in gone]
    copy.write_text("\n".join(lines), encoding="utf-8")
    moved = _moved(text.count("\n") + 1, gone)
    asked = [
        *(_Asked("docstring", _sentence(node), node) for node, _ in taken if _is_asked(node)),
        *(_Asked("documented", thinned(_sentence(node)), node) for node, _ in left if _is_asked(node)),
        *_names(tree, relative),
        *_errors(tree),
    ]
    for kind, question, node in asked:
        last = node.lineno if kind == "identifier" else node.end_lineno or node.lineno
        there = [moved[number] for number in range(node.lineno, last + 1) if number in moved]
        yield Question(kind, question, relative, there[0], there[-1])


class _Asked(NamedTuple):
    kind: str
    text: str
    answer: ast.stmt


def _moved(count: int, gone: set[int]) -> dict[int, int]:
    """Where lines are after others are gone."""
    kept = (number for number in range(1, count + 1) if number not in gone)
    return {number: place for place, number in enumerate(kept, 1)}


def _docstrings(tree: ast.AST) -> Iterator[tuple[_Function, tuple[int, int]]]:
    """Functions whose docstring can be taken away without touching another line, and its lines."""
    for node in ast.walk(tree):
        if not isinstance(node, _Function) or len(node.body) < 2 or not ast.get_docstring(node):
            continue
        first, last = node.body[0].lineno, node.body[0].end_lineno or 0
        if first > node.lineno and node.body[1].lineno > last:
            yield node, (first, last)


def _sentence(node: _Function) -> str:
    paragraph = " ".join((ast.get_docstring(node) or "").strip().split("\n\n")[0].split())
    return re.split(r"(?<=[.!?])\s", paragraph)[0][:300]


def thinned(sentence: str) -> str:
    return " ".join(word for number, word in enumerate(sentence.split(), 1) if number % 3)


def _is_asked(node: _Function) -> bool:
    has_body = (node.end_lineno or 0) - node.body[1].lineno >= 2
    return has_body and has_words(_sentence(node), 4) and not _sentence(node).startswith((":", ">>>", "@"))


def has_words(text: str, least: int) -> bool:
    return len(re.findall(r"[A-Za-z]{2,}", text)) >= least


def _names(tree: ast.AST, relative: str) -> Iterator[_Asked]:
    """Definitions and constants, each in one of the ways to write them."""
    module = re.sub(r"(/__init__)?\.py$", "", relative).rpartition("/")[2]
    for holder in ast.walk(tree):
        if not isinstance(holder, (ast.Module, ast.ClassDef)):
            continue
        outer = holder.name if isinstance(holder, ast.ClassDef) else module
        for node in holder.body:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                name = node.name
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                name = node.targets[0].id if node.targets[0].id.isupper() else ""
            else:
                continue
            if len(name) > 3 and not name.startswith("__"):
                forms = (name, f"{outer}.{name}", name, f"{name}()")
                yield _Asked("identifier", forms[node.lineno % 4].removeprefix("."), node)


_VALUES = ("'abc'", "42", "my_value", "3.5", "/path/to/file.txt")


def _errors(tree: ast.AST) -> Iterator[_Asked]:
    """Messages of exceptions, every second one after the name of its exception."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
            message = _message(node.exc.args[0])
            if has_words(message, 4):
                name = ast.unparse(node.exc.func).rpartition(".")[2]
                yield _Asked("error", f"{name}: {message}" if node.lineno % 2 else message, node)


def _message(node: ast.expr) -> str:
    """A message with values in place of what is filled in."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return _require_value(node.value)
    if isinstance(node, ast.JoinedStr):
        parts = [
            str(part.value) if isinstance(part, ast.Constant) else _VALUES[number % len(_VALUES)]
            for number, part in enumerate(node.values)
        ]
        return " ".join("".join(parts).split())
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        return _message(node.left)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "format":
        return _message(node.func.value)
    return ""


def _require_value(text: str) -> str:
    places = re.split(r"%(?:\(\w+\))?[-#0-9.]*[srdif]|\{[^{}]*\}", text)
    values = [_VALUES[number % len(_VALUES)] for number in range(len(places) - 1)]
    return " ".join("".join(a + b for a, b in zip(places, [*values, ""], strict=True)).split())


# -- documents and history --


def _from_document(path: Path, relative: str) -> Iterator[Question]:
    text = path.read_text(encoding="utf-8", errors="replace")
    heads = heads_of(path.suffix, text)
    count = text.count("\n") + 1
    titles = Counter(title.lower() for _, _, title in heads)
    for number, (line, level, title) in enumerate(heads):
        end = heads[number + 1][0] - 1 if number + 1 < len(heads) else count
        above = [outer for _, depth, outer in heads[:number] if depth < level]
        words = (
            title if titles[title.lower()] == 1 and has_words(title, 2) else " ".join([*above[-1:], title])
        )
        if end - line >= 2 and has_words(words, 2):
            yield Question("heading", words, relative, line, end)


def heads_of(suffix: str, text: str) -> list[tuple[int, int, str]]:
    """The headings of a document: line, level and title."""
    return list(_markdown_heads(text) if suffix == ".md" else _rst_heads(text))


def _markdown_heads(text: str) -> Iterator[tuple[int, int, str]]:
    is_code = False
    for number, line in enumerate(text.split("\n"), 1):
        if line.lstrip().startswith(("```", "~~~")):
            is_code = not is_code
        found = re.match(r"(#{1,6})\s+(.*?)\s*#*\s*$", line)
        if found and not is_code:
            yield number, len(found[1]), found[2]


def _rst_heads(text: str) -> Iterator[tuple[int, int, str]]:
    styles: list[str] = []
    lines = text.split("\n")
    rule = re.compile(r"([=\-~^\"'*+#])\1{2,}")
    for number in range(1, len(lines)):
        title, under = lines[number - 1].rstrip(), lines[number].rstrip()
        if rule.fullmatch(under) and title and not rule.fullmatch(title) and len(under) >= len(title):
            if under[0] not in styles:
                styles.append(under[0])
            yield number, styles.index(under[0]), title.strip()


def from_history(repository: Path, target: Path, *, most: int) -> list[Question]:
    """The files of a git repository as they are committed, and the subjects of commits."""
    git = ["git", "-C", str(repository)]
    archive = subprocess.run([*git, "archive", "HEAD"], capture_output=True, check=True)
    target.mkdir(parents=True, exist_ok=True)
    subprocess.run(["tar", "-x", "-C", str(target)], input=archive.stdout, check=True)
    log = [*git, "log", "--no-merges", "--name-only", "--format=%x00%s"]
    told = subprocess.run(log, capture_output=True, text=True, check=True).stdout
    found = []
    for entry in told.split("\0")[1:]:
        subject, *paths = [line for line in entry.split("\n") if line]
        there = [path for path in paths if (target / path).is_file()]
        if 1 <= len(there) <= 20 and len(subject.split()) >= 3:
            found.append(Question("commit", subject, "\n".join(there), 1, 1))
    return drawn(found, most)
