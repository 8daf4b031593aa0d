"""Questions with known answers, made from packages that are installed and from the history of a repository.

A package's Python files are copied without the docstrings of their functions, so that a docstring asks for a
function that no longer says it. The kinds of questions:

    docstring    the first sentence of a docstring: the function it was taken from
    heading      a heading of a document, and the one it stands under: its section
    identifier   the name of something that is defined once: its definition
    error        the message of an exception as a user would see it: the function that raises it
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
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

KINDS = ("docstring", "heading", "identifier", "error", "commit")
_DOCUMENTS = (".md", ".rst")
_LARGEST = 500_000


class Question(NamedTuple):
    kind: str
    text: str
    path: str
    """The file the answer is in; several, separated by a line break, for a commit."""
    start: int
    end: int

    def is_answer(self, path: str, start: int, end: int) -> bool:
        """Whether a passage is of what was asked for. For a definition it has to hold its first lines."""
        if self.kind == "commit":
            return path in self.path.split("\n")
        return path == self.path and start <= self.end and end >= self.start


def site_packages(name: str) -> Path | None:
    """The folder of an installed package, of this environment or of the Python it was made from."""
    places = [*sys.path, str(Path(sys.base_prefix) / f"lib/python3.{sys.version_info[1]}/site-packages")]
    found = (Path(place) / name for place in places if place)
    return next((folder for folder in found if (folder / "__init__.py").is_file()), None)


def from_package(source: Path, target: Path, *, most: int, seed: int = 8) -> list[Question]:
    """Copy a package into `target` as a repository to be indexed, and the questions that are asked of it."""
    questions: list[Question] = []
    definitions: Counter[str] = Counter()
    messages: Counter[str] = Counter()
    for path in sorted(source.rglob("*")):
        relative = path.relative_to(source)
        if (
            not path.is_file()
            or path.is_symlink()
            or {"tests", "test", "_vendor", "vendored"} & set(relative.parts)
        ):
            continue
        if path.suffix == ".py" and path.stat().st_size < _LARGEST:
            questions += _from_python(path, target / relative, str(relative), definitions, messages)
        elif path.suffix in _DOCUMENTS and path.stat().st_size < _LARGEST:
            (target / relative).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target / relative)
            questions += _from_document(path, str(relative))
    kept = [question for question in questions if _is_single(question, questions, definitions, messages)]
    return [question for kind in KINDS for question in _drawn(kept, kind, most, seed)]


def _is_single(
    question: Question, _all: list[Question], definitions: Counter[str], messages: Counter[str]
) -> bool:
    """Whether the question has one answer."""
    if question.kind == "identifier":
        return definitions[question.text] == 1
    return messages[f"{question.kind} {question.text}"] <= 1


def _drawn(questions: list[Question], kind: str, most: int, seed: int) -> list[Question]:
    of_kind = [question for question in questions if question.kind == kind]
    once = Counter(question.text.lower() for question in of_kind)
    of_kind = [question for question in of_kind if once[question.text.lower()] == 1]
    return random.Random(seed).sample(of_kind, min(most, len(of_kind)))


# -- Python --


def _from_python(
    path: Path, copy: Path, relative: str, definitions: Counter[str], messages: Counter[str]
) -> Iterator[Question]:
    try:
        with tokenize.open(path) as file:
            text = file.read()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except (SyntaxError, UnicodeDecodeError, ValueError):
        return
    lines = text.split("\n")
    asked = list(_docstrings(tree))
    removed = {number for _, _, gone in asked for number in range(gone[0], gone[1] + 1)}
    place: dict[int, int] = {}
    for number in range(1, len(lines) + 1):
        place[number] = len(place) + 1 if number not in removed else 0
        if number in removed:
            del place[number]
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.write_text(
        "\n".join(line for number, line in enumerate(lines, 1) if number not in removed), encoding="utf-8"
    )
    for node, sentence, _ in asked:
        span = _span(node, place)
        if span and _is_asked(node, sentence):
            yield Question("docstring", sentence, relative, *span)
    yield from _names(tree, place, relative, definitions)
    yield from _errors(tree, place, relative, messages)


def _docstrings(
    tree: ast.AST,
) -> Iterator[tuple[ast.FunctionDef | ast.AsyncFunctionDef, str, tuple[int, int]]]:
    for node in ast.walk(tree):
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) or len(node.body) < 2:
            continue
        first = node.body[0]
        document = ast.get_docstring(node)
        is_alone = first.lineno > node.lineno and node.body[1].lineno > (first.end_lineno or 0)
        if document and is_alone:
            yield node, _sentence(document), (first.lineno, first.end_lineno or first.lineno)


def _sentence(document: str) -> str:
    paragraph = " ".join(document.strip().split("\n\n")[0].split())
    return re.split(r"(?<=[.!?])\s", paragraph)[0][:300]


def _is_asked(node: ast.FunctionDef | ast.AsyncFunctionDef, sentence: str) -> bool:
    has_body = (node.end_lineno or 0) - node.body[1].lineno >= 2
    return (
        has_body
        and len(re.findall(r"[A-Za-z]{2,}", sentence)) >= 4
        and not sentence.startswith((":", ">>>", "@"))
    )


def _span(node: ast.stmt, place: dict[int, int]) -> tuple[int, int] | None:
    lines = [
        place[number]
        for number in range(node.lineno, (node.end_lineno or node.lineno) + 1)
        if number in place
    ]
    return (min(lines), max(lines)) if lines else None


def _names(
    tree: ast.AST, place: dict[int, int], relative: str, definitions: Counter[str]
) -> Iterator[Question]:
    for node in ast.walk(tree):
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue
        definitions[node.name] += 1
        if len(node.name) > 3 and not node.name.startswith("__") and node.lineno in place:
            yield Question("identifier", node.name, relative, place[node.lineno], place[node.lineno])


_VALUES = ("'abc'", "42", "my_value", "3.5", "path/to/file")


def _errors(
    tree: ast.AST, place: dict[int, int], relative: str, messages: Counter[str]
) -> Iterator[Question]:
    for function in ast.walk(tree):
        if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        for node in ast.walk(function):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
                message = _message(node.exc.args[0])
                if len(re.findall(r"[A-Za-z]{2,}", message)) >= 4 and node.lineno in place:
                    messages[f"error {message}"] += 1
                    span = _span(node, place)
                    if span:
                        yield Question("error", message, relative, *span)


def _message(node: ast.expr) -> str:
    """A message with values in place of what is filled in."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return _filled(node.value)
    if isinstance(node, ast.JoinedStr):
        parts = [
            str(part.value) if isinstance(part, ast.Constant) else _VALUES[index % len(_VALUES)]
            for index, part in enumerate(node.values)
        ]
        return " ".join("".join(parts).split())
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        return _message(node.left)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "format":
        return _message(node.func.value)
    return ""


def _filled(text: str) -> str:
    return " ".join(re.sub(r"%[-#0-9.]*[srdif]|\{[^{}]*\}", _VALUES[0], text).split())


# -- documents and history --


def _from_document(path: Path, relative: str) -> Iterator[Question]:
    text = path.read_text(encoding="utf-8", errors="replace")
    heads = list(_markdown_heads(text) if path.suffix == ".md" else _rst_heads(text))
    count = text.count("\n") + 1
    for index, (line, level, title) in enumerate(heads):
        end = heads[index + 1][0] - 1 if index + 1 < len(heads) else count
        parents = [above for _, depth, above in heads[:index] if depth < level]
        words = " ".join([*parents[-1:], title])
        has_text = end - line >= 2
        if has_text and len(re.findall(r"[A-Za-z]{2,}", words)) >= 2:
            yield Question("heading", words, relative, line, end)


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
    for number in range(1, len(lines)):
        title, under = lines[number - 1], lines[number].rstrip()
        if (
            re.fullmatch(r"([=\-~^\"'*+#])\1{2,}", under)
            and title.strip()
            and len(under) >= len(title.rstrip())
        ):
            if re.fullmatch(r"([=\-~^\"'*+#])\1{2,}", title.rstrip()):
                continue
            if under[0] not in styles:
                styles.append(under[0])
            yield number, styles.index(under[0]), title.strip()


def from_history(repository: Path, target: Path, *, most: int, seed: int = 8) -> list[Question]:
    """The files of a git repository as they are committed, and the subjects of commits as questions."""
    archive = subprocess.run(
        ["git", "-C", str(repository), "archive", "HEAD"], capture_output=True, check=True
    )
    target.mkdir(parents=True, exist_ok=True)
    subprocess.run(["tar", "-x", "-C", str(target)], input=archive.stdout, check=True)
    log = subprocess.run(
        ["git", "-C", str(repository), "log", "--no-merges", "--name-only", "--format=%x00%s"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    questions = []
    for entry in log.stdout.split("\0")[1:]:
        subject, *paths = [line for line in entry.split("\n") if line]
        there = [path for path in paths if (target / path).is_file()]
        if 1 <= len(there) <= 20 and len(subject.split()) >= 3:
            questions.append(Question("commit", subject, "\n".join(there), 1, 1))
    return _drawn(questions, "commit", most, seed)
