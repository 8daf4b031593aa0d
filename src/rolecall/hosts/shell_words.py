"""A shell command as words, operators and here-documents, quotes removed. Values.

Of POSIX shells and bash only what matters for seeing what a command does: substitutions are handed over as tokens of
their own, variables are told apart from text, here-documents are kept whole. Every character is looked at once, and
whatever the text is, reading it ends: a quote that is not closed ends with the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, TypeAlias

DEEPEST = 8
"""Levels of commands within commands that are looked at."""


class Word(NamedTuple):
    text: str
    is_known: bool = True
    """Whether where it leads is certain: nothing that the shell puts in stands at its beginning."""
    is_bare: bool = True
    """Whether it begins without a quote, so that it may be a reserved word, an assignment or `~`."""


class Operator(NamedTuple):
    text: str


class Here(NamedTuple):
    """What a command is given to read: a here-document or a here-string."""

    text: str


Token: TypeAlias = Word | Operator | Here
Inner: TypeAlias = "Callable[[Iterable[Token], int], None]"
"""Takes the tokens of a substitution, and how deep it lies."""

_SPACE = re.compile(r"(?:[ \t]|\\\n)+")
_OPERATOR = re.compile(r"&>>|&>|<<<|<<-|<<|<>|>>|>\||>&|<&|[<>]\(|>|<|&&|\|\||\|&|;;&|;;|;&|[;&|()\n]")
_PLAIN = re.compile(r"[^ \t\n;&|()<>'\"\\$`]+")
_COMMENT = re.compile(r"#[^\n]*")
_SINGLE = re.compile(r"'([^']*)'?")
_ANSI = re.compile(r"\$'((?:[^'\\]|\\.)*)'?", re.DOTALL)
_ANSI_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{1,2}|[0-7]{1,3}|u[0-9a-fA-F]{1,4}|.)", re.DOTALL)
_ANSI_NAMED = {
    "n": "\n",
    "t": "\t",
    "r": "\r",
    "a": "\a",
    "b": "\b",
    "e": "\x1b",
    "E": "\x1b",
    "f": "\f",
    "v": "\v",
}
_IN_DOUBLE = re.compile(r'[^"\\$`]+')
_VARIABLE = re.compile(r"\$(?:\{([^{}]*)\}|([A-Za-z_]\w*)|[0-9@*#?$!-])", re.ASCII)
_ARITHMETIC = re.compile(r"\$?\(\((?:[^()]|\([^()]*\))*\)\)")
_BACKTICKS = re.compile(r"`((?:[^`\\]|\\.)*)`?", re.DOTALL)
_BACKTICKS_ESCAPE = re.compile(r"\\([\\`$])")
_DESCRIPTOR = re.compile(r"\d+(?=[<>])")


class Lexer:
    """Reads a text to its end, or to the bracket that closes the substitution it stands in."""

    def __init__(self, text: str, inner: Inner, *, at: int = 0, depth: int = 0) -> None:
        self._text = text
        self._at = at
        self._inner = inner
        self._depth = depth
        self._awaited: list[tuple[str, bool]] = []
        """Delimiters of here-documents whose text begins on the next line, and whether tabs may stand before."""

    def tokens(self, *, is_nested: bool = False) -> Iterator[Token]:
        brackets = 0
        while self._at < len(self._text):
            if self._take(_SPACE) or self._take(_COMMENT) or self._arithmetic() or self._take(_DESCRIPTOR):
                continue
            operator = self._take(_OPERATOR)
            if operator == ")" and is_nested and not brackets:
                return
            brackets += (operator == "(") - (operator == ")" and brackets > 0)
            yield from self._operator(operator) if operator else (self._word(),)

    def _arithmetic(self) -> bool:
        """`(( … ))`, in which < and > compare."""
        return self._text.startswith("((", self._at) and bool(self._take(_ARITHMETIC))

    def _operator(self, operator: str) -> Iterator[Token]:
        if operator in ("<<", "<<-", "<<<"):
            self._take(_SPACE)
            word = self._word().text
            if operator == "<<<":
                yield Here(word)
            else:
                self._awaited.append((word, operator == "<<-"))
        elif operator in ("<(", ">("):
            self._substitution()
            yield Word("", is_known=False)
        else:
            if operator == "\n":
                yield from self._documents()
            yield Operator(operator)

    def _documents(self) -> Iterator[Token]:
        for delimiter, is_indented in self._awaited:
            line = rf"^{chr(92) + 't*' if is_indented else ''}{re.escape(delimiter)}$"
            end = re.compile(line, re.MULTILINE).search(self._text, self._at)
            yield Here(self._text[self._at : end.start() if end else len(self._text)])
            self._at = end.end() if end else len(self._text)
        self._awaited = []

    def _word(self) -> Word:
        """From here to the next blank or operator."""
        begun, parts, is_known = self._at, list[str](), True
        while self._at < len(self._text):
            character = self._text[self._at]
            if character == "'":
                _add(parts, self._inside(_SINGLE))
            elif character == '"':
                is_known &= self._double(parts)
            elif character == "\\":
                _add(parts, self._text[self._at + 1 : self._at + 2].strip("\n"))
                self._at += 2
            elif character in "$`":
                is_known &= self._expansion(parts)
            elif plain := self._take(_PLAIN):
                parts.append(plain)
            else:
                break
        if self._at == begun:
            self._at += 1  # whatever stands here, reading goes on behind it
        return Word("".join(parts), is_known, self._text[begun : begun + 1] not in ("'", '"', "\\"))

    def _double(self, parts: list[str]) -> bool:
        self._at += 1
        is_known = True
        while self._at < len(self._text) and self._text[self._at] != '"':
            if plain := self._take(_IN_DOUBLE):
                parts.append(plain)
            elif self._text[self._at] == "\\":
                escaped = self._text[self._at + 1 : self._at + 2]
                _add(parts, escaped.strip("\n") if escaped in ('"', "\\", "$", "`", "\n") else f"\\{escaped}")
                self._at += 2
            else:
                is_known &= self._expansion(parts)
        self._at += 1
        return is_known

    def _expansion(self, parts: list[str]) -> bool:
        """What the shell puts in, as `$`; whether it is still certain where the word leads."""
        if self._text.startswith("$'", self._at):
            _add(parts, _ANSI_ESCAPE.sub(_ansi, self._inside(_ANSI)))
            return True
        is_known = bool(parts)
        if variable := _VARIABLE.match(self._text, self._at):
            self._at = variable.end()
            if (variable[1] or variable[2]) == "PWD" and not parts:
                parts.append(".")
                return True
            if variable[1] and ("$(" in variable[1] or "`" in variable[1]):
                self._within(variable[1])
        elif not self._take(_ARITHMETIC):
            self._command()
        parts.append("$")
        return is_known

    def _command(self) -> None:
        if self._text.startswith("$(", self._at):
            self._at += 2
            self._substitution()
        elif self._text.startswith("`", self._at):
            self._within(_BACKTICKS_ESCAPE.sub(r"\1", self._inside(_BACKTICKS)))
        else:
            self._at += 1

    def _within(self, text: str) -> None:
        if self._depth < DEEPEST:
            self._inner(Lexer(text, self._inner, depth=self._depth + 1).tokens(), self._depth + 1)

    def _substitution(self) -> None:
        """Read on in the same text up to its closing bracket, so that nothing is looked at twice."""
        if self._depth >= DEEPEST:
            self._at = len(self._text)
            return
        within = Lexer(self._text, self._inner, at=self._at, depth=self._depth + 1)
        found = list(within.tokens(is_nested=True))
        self._at = within._at
        self._inner(found, self._depth + 1)

    def _take(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self._text, self._at)
        self._at = found.end() if found else self._at
        return found[0] if found else ""

    def _inside(self, pattern: re.Pattern[str]) -> str:
        """What stands between quotes."""
        found = pattern.match(self._text, self._at)
        self._at = found.end() if found else len(self._text)
        return found[1] if found else ""


def _add(parts: list[str], text: str) -> None:
    """Only what is there: the first part tells whether a word has begun."""
    if text:
        parts.append(text)


def _ansi(escape: re.Match[str]) -> str:
    code = escape[1]
    if code[0] in "xu" and len(code) > 1:
        return chr(int(code[1:], 16))
    return chr(int(code, 8) & 0xFF) if code[0] in "01234567" else _ANSI_NAMED.get(code, code)
