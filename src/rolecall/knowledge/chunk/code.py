"""Divides source code into functions and classes with tree-sitter, which also parses code that does not compile.

A function is a section. A class, module or namespace adds its name to the trail of its contents, and the parts between
its functions are separate sections. A comment or attribute belongs to the definition directly below it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from time import thread_time
from typing import TYPE_CHECKING, NamedTuple

from rolecall.knowledge.chunk.outline import OutlineSection
from rolecall.knowledge.lazy import tree_sitter
from rolecall.knowledge.words import tokens

if TYPE_CHECKING:
    from tree_sitter import Node


class _Language(NamedTuple):
    module: str
    leaves: frozenset[str]
    """The definitions that form a single section."""
    holders: frozenset[str] = frozenset()
    """The definitions that contain other definitions."""
    wrappers: frozenset[str] = frozenset()
    """The nodes that enclose definitions but have no name."""
    attached: frozenset[str] = frozenset({"comment"})
    """The nodes that belong to the definition below them."""
    loader: str = "language"


def _kinds(text: str) -> frozenset[str]:
    return frozenset(text.split())


_C_WRAPPERS = """
preproc_if preproc_ifdef preproc_else preproc_elif linkage_specification declaration_list template_declaration
type_definition declaration
"""
_SCRIPT_LEAVES = """
function_declaration generator_function_declaration method_definition interface_declaration type_alias_declaration
enum_declaration function_signature abstract_method_signature variable_declarator assignment_expression
public_field_definition field_definition
"""
_SCRIPT_HOLDERS = "class_declaration abstract_class_declaration class internal_module module"
_SCRIPT_WRAPPERS = """
export_statement lexical_declaration variable_declaration expression_statement ambient_declaration
"""
_PYTHON_WRAPPERS = """
decorated_definition if_statement else_clause elif_clause try_statement except_clause finally_clause with_statement
block
"""
_PYTHON = _Language(
    "tree_sitter_python", _kinds("function_definition"), _kinds("class_definition"), _kinds(_PYTHON_WRAPPERS)
)
_JAVASCRIPT = _Language(
    "tree_sitter_javascript", _kinds(_SCRIPT_LEAVES), _kinds(_SCRIPT_HOLDERS), _kinds(_SCRIPT_WRAPPERS),
    _kinds("comment decorator"),
)  # fmt: skip
_TYPESCRIPT = _JAVASCRIPT._replace(module="tree_sitter_typescript", loader="language_typescript")
_GO = _Language("tree_sitter_go", _kinds("function_declaration method_declaration type_declaration"))
_RUST = _Language(
    "tree_sitter_rust",
    _kinds("function_item struct_item enum_item union_item type_item macro_definition"),
    _kinds("impl_item trait_item mod_item"),
    attached=_kinds("line_comment block_comment attribute_item"),
)
_JAVA = _Language(
    "tree_sitter_java",
    _kinds("method_declaration constructor_declaration compact_constructor_declaration"),
    _kinds(
        "class_declaration interface_declaration enum_declaration record_declaration annotation_type_declaration"
    ),
    _kinds("enum_body_declarations"),
    _kinds("line_comment block_comment"),
)
_C = _Language(
    "tree_sitter_c",
    _kinds("function_definition struct_specifier union_specifier enum_specifier preproc_function_def"),
    wrappers=_kinds(_C_WRAPPERS),
)
_CPP = _Language(
    "tree_sitter_cpp",
    _kinds(
        "function_definition union_specifier enum_specifier preproc_function_def concept_definition alias_declaration"
    ),
    _kinds("namespace_definition class_specifier struct_specifier"),
    _kinds(_C_WRAPPERS + "field_declaration"),
)

LANGUAGES = {
    **dict.fromkeys((".py", ".pyi", ".pyw"), _PYTHON),
    **dict.fromkeys((".js", ".mjs", ".cjs", ".jsx"), _JAVASCRIPT),
    **dict.fromkeys((".ts", ".mts", ".cts"), _TYPESCRIPT),
    ".tsx": _TYPESCRIPT._replace(loader="language_tsx"),
    ".go": _GO,
    ".rs": _RUST,
    ".java": _JAVA,
    ".c": _C,
    **dict.fromkeys((".h", ".cc", ".cpp", ".cxx", ".hpp", ".hh", ".hxx"), _CPP),
}
"""The language of each file suffix. Headers are parsed as C++, which includes nearly all of C."""

_FUNCTIONS = _kinds("arrow_function function_expression function generator_function class class_expression")
_LEADING = _kinds("decorated_definition template_declaration export_statement type_definition")
"""Wrappers of a single definition; the definition starts where its wrapper starts."""
_SMALL = 12
"""The maximum number of tokens in a part that is joined to the next section."""
_PATIENCE = 3.0
"""The CPU time for one file, in seconds. Code takes less than one second; other texts can take the parser much
longer."""
_READ_SIZE = 4_096
"""The number of bytes that the parser reads at a time; between reads, the parser can be stopped."""
_DEEPEST = 100
"""The maximum nesting. Real code stays below it; data written as code need not."""


def outline(text: str, suffix: str) -> list[OutlineSection]:
    """Divide a text into sections. If the text cannot be parsed in time, the whole text is one section."""
    language, data, last = LANGUAGES[suffix], text.encode("utf-8", "replace"), text.count("\n") + 1
    until = thread_time() + _PATIENCE

    def read(offset: int, _: object) -> bytes:
        return data[offset : offset + _READ_SIZE] if thread_time() < until else b""

    root = _load_parser(language.module, language.loader).parse(read).root_node
    if thread_time() >= until:
        return [OutlineSection(1, last, ())]
    return list(_Outline(language, text).sections(root, (), 1, last))


@cache
def _load_parser(module: str, loader: str) -> tree_sitter.Parser:
    language = tree_sitter.Language(getattr(import_module(module), loader)())
    return tree_sitter.Parser(language)


class _Outline:
    def __init__(self, language: _Language, text: str) -> None:
        self._language = language
        self._lines = text.split("\n")

    def sections(
        self, holder: Node, trail: tuple[str, ...], start: int, end: int
    ) -> Iterator[OutlineSection]:
        """Divide lines `start` to `end`, all inside `holder`, into sections."""
        at = start
        for above, node in self._definitions(holder):
            first, last = max(above, at), min(_last_line(node), end)
            name = self._name(node)
            if first > last or not name:
                continue
            is_heading = at == start and bool(trail)  # the first line of a class describes it
            between = "".join(map(str.strip, self._lines[at - 1 : first - 1]))
            if first > at and not is_heading and tokens(between) <= _SMALL:
                first = at  # comments or a constant alone are too small for a section of their own
            elif first > at:
                yield OutlineSection(at, first - 1, trail)
            inner = (*trail, *name)
            if node.type in self._language.holders and last > first and len(inner) < _DEEPEST:
                yield from self.sections(node, inner, first, last)
            else:
                yield OutlineSection(first, last, inner)
            at = last + 1
        if at <= end:
            yield OutlineSection(at, end, trail)

    def _definitions(self, holder: Node, depth: int = 0) -> Iterator[tuple[int, Node]]:
        """Find the definitions directly inside a node, each with the first line that belongs to it."""
        above: int | None = None
        previous_end = 0
        for child in (holder.child_by_field_name("body") or holder).named_children:
            kind, start = child.type, child.start_point[0] + 1
            if kind in self._language.attached:
                above = start if above is None or start > previous_end + 1 else above
                previous_end = _last_line(child)
                continue
            first = above if above is not None and start <= previous_end + 1 else start
            above = None
            if self._is_definition(child):
                yield first, child
            elif kind in self._language.wrappers and depth < _DEEPEST:
                inside = list(self._definitions(child, depth + 1))
                if inside and (kind in _LEADING or inside[0][0] == start):
                    inside[0] = (first, inside[0][1])
                yield from inside

    def _is_definition(self, node: Node) -> bool:
        kind = node.type
        if kind in ("struct_specifier", "union_specifier", "enum_specifier", "class_specifier"):
            return node.child_by_field_name("body") is not None
        if kind in ("variable_declarator", "public_field_definition", "field_definition"):
            value = node.child_by_field_name("value")
            return value is not None and value.type in _FUNCTIONS
        if kind == "assignment_expression":
            value = node.child_by_field_name("right")
            return value is not None and value.type in _FUNCTIONS
        return kind in self._language.leaves or kind in self._language.holders

    # -- names --

    def _name(self, node: Node) -> tuple[str, ...]:
        """Return the name of a definition, preceded by its class for a method defined outside the class."""
        kind = node.type
        if kind == "impl_item":
            return (_plain(_text(node.child_by_field_name("type"))),)
        if kind == "method_declaration" and (receiver := node.child_by_field_name("receiver")):
            return (
                _plain(_text(receiver).strip("()").split(" ")[-1]),
                _text(node.child_by_field_name("name")),
            )
        if kind == "type_declaration":
            names = [_text(spec.child_by_field_name("name")) for spec in node.named_children]
            return (", ".join(filter(None, names)),)
        if kind == "assignment_expression":
            return (_text(node.child_by_field_name("left")).removeprefix("module.").removeprefix("exports."),)
        named = node.child_by_field_name("name")
        if named is not None:
            return tuple(_plain(part) for part in _text(named).split("::"))
        # The name is inside a C declarator, or is the new name in `typedef struct {…} name`.
        inner = node.child_by_field_name("declarator")
        if inner is None and node.parent is not None and node.parent.type == "type_definition":
            inner = node.parent.child_by_field_name("declarator")
        while inner is not None and (below := inner.child_by_field_name("declarator")) is not None:
            inner = below
        if inner is None or not _text(inner):
            return ("(anonymous)",) if node.type == "namespace_definition" else ()
        return tuple(_plain(part) for part in _TEMPLATE.sub("", _text(inner)).split("::") if part)


_TEMPLATE = re.compile(r"<[^<>]*>")


def _plain(name: str) -> str:
    """Return a type's name without parameters and pointer signs."""
    return re.split(r"[<\[(]", name.strip("*& \n"))[0].strip() or name


def _last_line(node: Node) -> int:
    row, column = node.end_point
    return row if column == 0 else row + 1  # some nodes include the final line break


def _text(node: Node | None) -> str:
    return (node.text or b"").decode("utf-8", "replace") if node is not None else ""
