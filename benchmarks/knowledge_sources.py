"""Questions with known answers from source trees in any language we cut by structure, made in more ways.

`knowledge_questions` knows Python and asks in few ways; ranking that suits those may suit no others. Here a tree as
a source package unpacks it is copied to be indexed, and every second documented function loses its comment. Kinds:

    docstring, whole, later, how   of a comment that was taken away its first sentence, all of it, a later sentence,
                                   "How do I ...?": the function that no longer says it
    documented                     a first sentence that is still there, without every third word: its function
    heading, section               a heading; the first sentence below one, without every third word: its section
    identifier, recased, spelled   a name that is defined once as it is written (also with what it stands in, or
                                   the whole path to it), in another case, and as words: its definition
    error, logged                  a message with values filled in; with other values and quotes, and with the time
                                   and level of a log before it: where it is reported
    trace                          a line of a stack trace: the function
    commit                         what a patch of a distributor is called: the files it changes

Every choice is drawn from a fixed seed.
"""

from __future__ import annotations

import random
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.knowledge_questions import Question, has_words, heads_of, thinned
from rolecall.knowledge.chunk import code

if TYPE_CHECKING:
    from tree_sitter import Node

KINDS = (
    "docstring", "whole", "later", "how", "documented", "heading", "section", "identifier", "recased", "spelled",
    "error", "logged", "trace", "commit",
)  # fmt: skip
_DOCUMENTS = (".md", ".rst")
_LARGEST = 400_000
_LEFT_OUT = re.compile(
    r"""(?ix) (^|/)(?:\.git|tests?|testing|testdata|testsuite|vendor(?:ed)?|third_party|node_modules|dist|debian)/
    | (^|/)(?:test_[^/]*|[^/]*[_.]tests?|conftest|[^/]*\.min|[^/]*\.d)\.\w+$"""
)
_FUNCTIONS = frozenset(
    (
        "function_definition", "function_declaration", "generator_function_declaration", "method_declaration",
        "method_definition", "function_item", "constructor_declaration",
    )
)  # fmt: skip
_TYPES = frozenset(
    (
        "class_definition", "class_declaration", "interface_declaration", "struct_item", "enum_item", "trait_item",
        "class_specifier", "type_spec", "enum_declaration",
    )
)  # fmt: skip
_AROUND = frozenset(("export_statement", "decorated_definition", "template_declaration", "type_declaration"))
_STRINGS = frozenset(
    ("string", "string_literal", "interpreted_string_literal", "template_string", "raw_string_literal")
)
_STATEMENTS = frozenset(("raise_statement", "throw_statement"))
_CALLS = frozenset(
    ("call", "call_expression", "macro_invocation", "new_expression", "object_creation_expression")
)
_REPORTS = re.compile(r"(?i)err|fatal|panic|bail|\bdie|warn|fail|abort|exception|invalid|raise|throw|expect")
_POOL = 40
_MOST_PASSED = 4
"""How far outside a message what reports it may be."""
_VALUES = ("'abc'", "42", "my_value", "3.5", "/path/to/file.txt")
_OTHER_VALUES = ("7f3a-11", '"user 17"', "/var/lib/data/x1.db", "8080", "localhost:5432")
_PLACE = re.compile(r"%(?:\(\w+\))?[-#0-9.*]*(?:ll|l|z|h)?[srdifuxvqwcpT]|\$?\{[^{}]*\}")


def from_tree(tree: Path, target: Path, *, most: int, seed: int = 8) -> list[Question]:
    """Copy a tree into `target` as a repository to be indexed, and what is asked of it."""
    found: list[Question] = []
    for path in sorted(tree.rglob("*")):
        inside = path.relative_to(tree).as_posix()
        is_code = path.suffix in code.LANGUAGES
        if not (is_code or path.suffix in _DOCUMENTS) or _LEFT_OUT.search(inside):
            continue
        if path.is_symlink() or not path.is_file() or path.stat().st_size > _LARGEST:
            continue
        (target / inside).parent.mkdir(parents=True, exist_ok=True)
        if is_code:
            found += _Source(path, inside).questions(target / inside)
        else:
            shutil.copyfile(path, target / inside)
            found += _from_document(path, inside)
    found += _from_patches(tree / "debian/patches", target)
    return _drawn(found, most, seed)


def _drawn(questions: list[Question], most: int, seed: int) -> list[Question]:
    """So many of each kind, at most a pool of them, among those that have one answer; fewer are the first of more."""
    names = Counter(_last_name(each) for each in questions if each.kind == "identifier")
    times = Counter((each.kind, each.text.lower()) for each in questions)
    drawn: list[Question] = []
    for kind in KINDS:
        single = [
            each for each in questions
            if each.kind == kind and times[kind, each.text.lower()] == 1
            and (kind not in ("identifier", "recased", "spelled") or names[_last_name(each)] == 1)
        ]  # fmt: skip
        drawn += random.Random(seed).sample(single, min(_POOL, len(single)))[:most]
    return drawn


def _last_name(question: Question) -> str:
    last = re.split(r"\.|::", question.text.removesuffix("()"))[-1]
    return re.sub(r"[\W_]", "", last).lower()


# -- source code --


class _Source:
    """One file of source code."""

    def __init__(self, path: Path, inside: str) -> None:
        language = code.LANGUAGES[path.suffix]
        self._bytes = path.read_text(encoding="utf-8", errors="replace").encode()
        self._tree = code._load_parser(language.module, language.loader).parse(self._bytes)
        self._inside = inside
        self._gone: set[int] = set()

    def questions(self, copy: Path) -> list[Question]:
        nodes = list(_walk(self._tree.root_node))
        functions = [each for each in nodes if each.type in _FUNCTIONS and _name(each)]
        documented = [(each, *comment) for each in functions if (comment := self._comment(each))]
        taken = documented[::2]
        self._gone = {number for _, _, first, last in taken for number in range(first, last + 1)}
        lines = self._bytes.decode().split("\n")
        kept = [line for number, line in enumerate(lines, 1) if number not in self._gone]
        copy.write_text("\n".join(kept), encoding="utf-8")
        found = [each for node, text, *_ in taken for each in self._of_comment(node, text)]
        found += [
            self._asked("documented", thinned(_sentences(text)[0]), node)
            for node, text, *_ in documented[1::2]
        ]
        found += [each for node in nodes if node.type in _FUNCTIONS | _TYPES for each in self._of_name(node)]
        found += [self._trace(node) for node in functions if _lines(node) > 3]
        found += [each for node in nodes if node.type in _STRINGS for each in self._of_message(node)]
        return [each for each in found if each is not None]

    def _asked(self, kind: str, text: str, node: Node, *, is_line: bool = False) -> Question | None:
        named = node.child_by_field_name("name") or node.child_by_field_name("declarator") or node
        first = named.start_point[0] + 1 if is_line else node.start_point[0] + 1
        last = first if is_line else node.end_point[0] + 1
        before = sum(1 for number in self._gone if number < first)
        within = sum(1 for number in self._gone if first <= number <= last)
        least = (
            1 if kind in ("identifier", "recased", "trace") else 2 if kind in ("heading", "spelled") else 4
        )
        if not has_words(text, least):
            return None
        return Question(kind, text, self._inside, first - before, last - before - within)

    # comments

    def _comment(self, function: Node) -> tuple[str, int, int] | None:
        """What a function says about itself and the lines it does so in, if those can be taken away."""
        if _lines(function) < 4:
            return None
        if function.type == "function_definition" and self._inside.endswith((".py", ".pyi")):
            first = function.child_by_field_name("body")
            first = first.named_children[0] if first and len(first.named_children) > 1 else None
            found = (
                [first]
                if first and first.type == "expression_statement" and first.children[0].type == "string"
                else []
            )
        else:
            found = _comments_above(function)
        text = _plain("\n".join((each.text or b"").decode() for each in found))
        if not re.match(r"[\w`'\"(]", text) or not has_words(_sentences(text)[0], 4):
            return None
        return text, found[0].start_point[0] + 1, found[-1].end_point[0] + (found[-1].end_point[1] > 0)

    def _of_comment(self, node: Node, text: str) -> Iterator[Question | None]:
        first, *later = _sentences(text)
        yield self._asked("docstring", first, node)
        if len(text.split()) > 1.5 * len(first.split()):
            yield self._asked("whole", text[:1000], node)
        if later:
            yield self._asked("later", later[len(later) // 2][:300], node)
        name = _name(node)
        if first.split()[0].lower() != name.lower():  # Go begins every comment with the name
            yield self._asked("how", f"How do I {first[0].lower()}{first[1:].rstrip('.')}?", node)

    # names

    def _of_name(self, node: Node) -> Iterator[Question | None]:
        name = _name(node)
        if len(name) <= 3 or name.startswith("__") or node.child_by_field_name("body") is None:
            return
        outer = next((_name(each) for each in _outwards(node) if each.type in _TYPES and _name(each)), "")
        path = re.sub(r"(/__init__|/index|/mod)?\.\w+$", "", self._inside)
        inner = [outer, name] if outer else [name]
        forms = (name, ".".join(inner), ".".join([*path.split("/"), *inner]), f"{name}()")
        yield self._asked("identifier", forms[node.start_point[0] % 4], node, is_line=True)
        parts = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)
        if len(parts) > 1:
            camel = "".join(
                part.capitalize() if number else part.lower() for number, part in enumerate(parts)
            )
            yield self._asked(
                "recased", camel if "_" in name else "_".join(parts).lower(), node, is_line=True
            )
            yield self._asked("spelled", " ".join(parts).lower(), node, is_line=True)

    def _trace(self, node: Node) -> Question | None:
        number = node.start_point[0] + 2
        shift = sum(1 for gone in self._gone if gone < number)
        name, place = _name(node), f"{self._inside}"
        forms = {
            ".py": f'File "/usr/lib/app/{place}", line {number - shift}, in {name}',
            ".java": f"at com.example.{Path(place).stem}.{name}({Path(place).name}:{number - shift})",
            ".go": f"main.{name}(0xc000010000, 0x1)\n\t/go/src/{place}:{number - shift} +0x1d",
        }
        text = forms.get(Path(place).suffix, f"    at {name} (/app/{place}:{number - shift}:15)")
        return self._asked("trace", text, node)

    # messages

    def _of_message(self, string: Node) -> Iterator[Question | None]:
        literal = (string.text or b"").decode()
        text = " ".join(re.sub(r"^\w{0,2}[\"'`]+|[\"'`]+$|\\[nt]", " ", literal).split())
        node = self._report_of(string)
        if node is None or not 10 < len(text) < 200 or not has_words(text, 4):
            return
        yield self._asked("error", _require_value(text, _VALUES), node)
        other = _require_value(text.translate(str.maketrans("'\"", "\"'")), _OTHER_VALUES)
        stem = Path(self._inside).stem
        yield self._asked("logged", f"2024-05-01 12:00:01,123 ERROR [{stem}] {other}", node)

    def _report_of(self, string: Node) -> Node | None:
        for _, each in zip(range(_MOST_PASSED), _outwards(string), strict=False):
            if each.type in _STATEMENTS:
                return each
            if each.type in _CALLS:
                called = (each.child_by_field_name("function") or each.children[0]).text or b""
                called = (
                    (each.text or b"").split(b"(")[0]
                    if each.type not in ("call", "call_expression")
                    else called
                )
                if _REPORTS.search(called.decode("utf-8", "replace")[-40:]):
                    return each
        return None


def _walk(node: Node) -> Iterator[Node]:
    stack = [node]
    while stack:
        each = stack.pop()
        yield each
        stack.extend(reversed(each.named_children))


def _outwards(node: Node) -> Iterator[Node]:
    outer = node.parent
    while outer is not None:
        yield outer
        outer = outer.parent


def _lines(node: Node) -> int:
    return int(node.end_point[0] - node.start_point[0])


def _name(node: Node) -> str:
    named = node.child_by_field_name("name")
    while named is None and (below := node.child_by_field_name("declarator")) is not None:
        node, named = below, below if below.type.endswith("identifier") else None
    return (named.text or b"").decode().rpartition("::")[2] if named is not None else ""


def _comments_above(node: Node) -> list[Node]:
    while node.parent is not None and node.parent.type in _AROUND:
        node = node.parent
    found: list[Node] = []
    above, top = node.prev_named_sibling, node.start_point[0]
    while above is not None and above.end_point[0] + 1 >= top:
        is_comment = above.type.endswith("comment")
        if not is_comment and above.type not in ("attribute_item", "decorator"):
            break
        begins_line = above.prev_sibling is None or above.prev_sibling.end_point[0] < above.start_point[0]
        if is_comment and not begins_line:
            break
        found[:0] = [above] if is_comment else []
        top, above = above.start_point[0], above.prev_named_sibling
    return found


def _plain(comment: str) -> str:
    """What a comment says, without its signs and what follows in tables of parameters."""
    bare = re.sub(
        r'(?m)^\s*(?:///?!?|/\*+!?|\*+/?|[rRuU]?"""|[rRuU]?\'\'\'|#+)[ \t]?|\*+/\s*$|"""\s*$|\'\'\'\s*$',
        "",
        comment,
    )
    return bare.strip()


def _sentences(text: str) -> list[str]:
    told = re.split(r"\n\s*(?:[@:\\]\w+|Args:|Parameters\b|Returns?:|Raises:|>>>|```|\.\. )", text)[0]
    flat = " ".join(told.split())
    found = [each.strip()[:300] for each in re.split(r"(?<=[.!?])\s", flat)]
    return [found[0], *(each for each in found[1:] if has_words(each, 5))]


def _require_value(text: str, values: tuple[str, ...]) -> str:
    numbers = iter(range(1000))
    return _PLACE.sub(lambda _: values[next(numbers) % len(values)], text)


# -- documents and patches --


def _from_document(path: Path, inside: str) -> Iterator[Question]:
    text = path.read_text(encoding="utf-8", errors="replace")
    lines, heads = text.split("\n"), heads_of(path.suffix, text)
    for number, (line, _, title) in enumerate(heads):
        end = heads[number + 1][0] - 1 if number + 1 < len(heads) else len(lines)
        if end - line < 2:
            continue
        if has_words(title, 2):
            yield Question("heading", title, inside, line, end)
        below = "\n".join(lines[line:end]).strip().lstrip("=-~^*+#\"'\n ")
        first = _sentences(below.split("\n\n")[0])[0] if below else ""
        if has_words(first, 6) and not first.startswith(("..", "|", "<", "[", "`", ":")):
            yield Question("section", thinned(first), inside, line, end)


_SUBJECT = re.compile(r"(?m)^(?:Subject|Description): *(?:\[[^\]]*\] *)*(.+(?:\n .+)*)")


def _from_patches(folder: Path, target: Path) -> Iterator[Question]:
    for path in sorted(folder.rglob("*")):
        if not path.is_file() or path.name.startswith("series"):
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        subject = _SUBJECT.search(text)
        named = set(re.findall(r"(?m)^\+\+\+ [^/\s]+/(\S+)", text))
        there = sorted(each for each in named if (target / each).is_file())
        if subject and 1 <= len(there) <= 20 and has_words(subject[1], 3):
            words = " ".join(subject[1].split("\n\n")[0].split())[:120]
            yield Question("commit", words, "\n".join(there), 1, 1)
