"""Finds the files that a shell command visibly writes, the notes it prints, and our own commands that it runs.

The purpose is an early, friendly message; only a sandbox enforces restrictions. `shlex` splits the command into words.
Redirections count, as do a few plain programs that write the files they name, even after `cd` and inside `bash -c`. No
command is run and no error is raised: parts that cannot be understood are left out. docs/hooks.md lists these parts.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import dropwhile
from typing import NamedTuple

LONGEST = 32 * 1024
"""The maximum number of characters in a command that are examined, not counting here-documents."""
_DEEPEST = 3
"""The maximum nesting of `bash -c`."""


class Seen(NamedTuple):
    writes: tuple[str, ...] = ()
    """The files that the command writes: absolute paths with links not resolved; `..` and wildcards are kept."""
    reads: tuple[str, ...] = ()
    """The memory notes and skills that the command prints."""
    calls: tuple[tuple[str, ...], ...] = ()
    """The arguments of each `rolecall …` that the command runs."""


def read_command(command: str, cwd: str) -> Seen:
    """Return what a shell command in the folder `cwd` visibly does."""
    shell = _Shell(cwd)
    shell.read(command)
    if "apply_patch" in command:
        shell.write(find_patched_files(command))
    return Seen(tuple(dict.fromkeys(shell.writes)), tuple(shell.reads), tuple(shell.calls))


def find_patched_files(text: str) -> list[str]:
    """Return the files that a patch for `apply_patch` names, as in `*** Update File: PATH`."""
    return re.findall(r"(?m)^\*\*\* (?:(?:Add|Update|Delete) File|Move to):[ \t]*(\S[^\r\n]*)", text)


_HERE_DOCUMENT = re.compile(r"""<<-?[ \t]*\\?(['"]?)([A-Za-z_][\w.-]*)\1""")
_QUOTED = re.compile(r"""'[^']*'|"(?:\\.|[^"\\])*"|\\.|(?<!\S)\#[^\n]*""", re.DOTALL)
_TEST = re.compile(r"\[\[(?:(?!\[\[)[^\n])*?\]\]|\(\([^()\n]*\)\)")
"""Tests such as `[[ a > b ]]` and `(( a > b ))`, in which signs are comparisons, not redirections."""
_OPERATORS = "();<>|&`\n"
_HIDE = {ord(sign): 0xE000 + at for at, sign in enumerate(f"{_OPERATORS}[]")}
_SHOW = {hidden: chr(sign) for sign, hidden in _HIDE.items()}
_WRITING = (">", ">>", ">|", "&>", "&>>", ">&", "<>")
_READING = ("<", "<<", "<<-", "<<<", "<&")


def _tokens(command: str) -> Iterator[tuple[str, bool]]:
    """Yield the words and operators of a command, each with a flag that is true for an operator."""
    kept, end = [], ""
    all_lines = {line.strip() for line in command.splitlines()} if "<<" in command else set()
    for line in command.splitlines(keepends=True):
        if end:  # lines of a here-document are content, not commands
            end = "" if line.strip() == end else end
            continue
        kept.append(line)
        found = _HERE_DOCUMENT.search(line) if all_lines else None
        end = found[2] if found and found[2] in all_lines else ""

    def hide(found: re.Match[str]) -> str:
        """Replace quoted operators with placeholders, and comments and line continuations with a space."""
        return " " if found[0][0] == "#" or found[0] == "\\\n" else found[0].translate(_HIDE)

    text = _TEST.sub(" ", _QUOTED.sub(hide, "".join(kept)[:LONGEST]))
    lexer = shlex.shlex(text, posix=True, punctuation_chars=_OPERATORS)
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
    try:
        for token in lexer:
            is_operator = token[:1] != "" and token[0] in _OPERATORS
            yield token if is_operator else token.translate(_SHOW), is_operator
    except ValueError:  # a quote is not closed, so the rest is unknown
        return


class _Shell:
    """The state of a shell, as far as it can be known."""

    def __init__(self, cwd: str | None, depth: int = 0) -> None:
        self.cwd = cwd
        """The shell's working directory; None if it is unknown."""
        self.writes: list[str] = []
        self.reads: list[str] = []
        self.calls: list[tuple[str, ...]] = []
        self._depth = depth
        self._outer: list[str | None] = []
        """The working directories of the enclosing shells, to be restored after parentheses."""

    def read(self, command: str) -> None:
        words: list[str] = []
        redirection = ""
        for token, is_operator in _tokens(command):
            if not is_operator:
                if redirection in _WRITING and not (redirection == ">&" and token.strip("-").isdecimal()):
                    self.write([token])
                if not redirection:
                    words.append(token)
                redirection = ""
                continue
            operator = token.replace("\n", "")
            if operator in _WRITING or operator in _READING:
                if words and words[-1].isdecimal():  # a file descriptor, as in 2>
                    words.pop()
                if "\n" in token:
                    self._run(words)
                    words = []
                redirection = operator
                continue
            self._run(words)
            words, redirection = [], ""
            for sign in operator:
                if sign == "(":
                    self._outer.append(self.cwd)
                elif sign == ")" and self._outer:
                    self.cwd = self._outer.pop()
        self._run(words)

    def write(self, paths: Iterable[str]) -> None:
        for path in paths:
            path = os.path.expanduser(path.replace("$PWD", ".").replace("${PWD}", "."))
            if path in ("", "-") or path.startswith("$") or "\0" in path:
                continue
            if os.path.isabs(path) or self.cwd is not None:
                self.writes.append(os.path.join(self.cwd or "", path))

    def _run(self, words: Sequence[str]) -> None:
        first = (at for at, word in enumerate(words) if word not in _RESERVED and not _ASSIGNMENT.match(word))
        words = words[next(first, len(words)) :]
        while words and os.path.basename(words[0]) in _WRAPPERS:
            words = list(dropwhile(_WRAPPER_OPTION.fullmatch, words[1:]))
        if not words:
            return
        name, rest = os.path.basename(words[0]), words[1:]
        if name in ("cd", "pushd"):
            given = (word for word in rest if word == "-" or not word.startswith("-"))
            path = os.path.expanduser(next(given, "~"))
            if path.startswith(("$", "-")):
                self.cwd = None
            elif os.path.isabs(path) or self.cwd is not None:
                self.cwd = os.path.join(self.cwd or "", path)
        elif name in _SHELLS:
            at = next((at for at, word in enumerate(rest) if re.fullmatch("-[a-z]*c", word)), len(rest))
            if at + 1 < len(rest) and self._depth < _DEEPEST:
                inner = _Shell(self.cwd, self._depth + 1)
                inner.read(rest[at + 1])
                self.writes += inner.writes
                self.reads += inner.reads
                self.calls += inner.calls
        elif name in _OURS:
            self.calls.append(tuple(rest))
        elif name.startswith("python") or name in _RUNNERS:
            ours = (at for at, word in enumerate(rest[:50], 1) if _NAMES_OURS.search(word))
            self.calls += [tuple(rest[at:]) for at in ours]
        elif name in _WRITERS:
            self.write(_find_written(name, rest))
        if name in _SHOWING and self.cwd is not None and not any(word.startswith("-i") for word in rest):
            for word in rest:
                if word.endswith(".md") and any(place in word for place in _SHOWN):
                    self.reads.append(os.path.join(self.cwd, os.path.expanduser(word)))


_RESERVED = frozenset(("if", "then", "elif", "else", "while", "until", "do", "!", "{"))
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=")
_WRAPPERS = frozenset(
    ("sudo", "env", "exec", "command", "nohup", "nice", "time", "timeout", "setsid", "xargs")
)
"""Programs whose options are followed by another program, which they run."""
_WRAPPER_OPTION = re.compile(r"-.*|[\d.]+[smhd]?|[A-Za-z_]\w*=.*", re.DOTALL)
_SHELLS = frozenset(("sh", "bash", "dash", "zsh", "ksh"))
_OURS = frozenset(("rolecall", "uwf"))
_RUNNERS = frozenset(("uv", "uvx", "pipx", "poetry", "pdm", "hatch", "rye"))
_NAMES_OURS = re.compile(r"(?:^|/|^-[A-Za-z]*m)rolecall(?:$|[@=<>~!\[\s])")
"""The name of our program or module; the package's version or extras can follow it."""
_SHOWING = frozenset(("cat", "head", "tail", "nl", "sed", "less", "more", "bat", "batcat"))
_SHOWN = (".nexus/memory/", "/SKILL.md")
_WRITERS: Mapping[str, str] = {
    **dict.fromkeys(("tee", "rm", "rmdir", "mv", "cp", "ln"), ""),
    "touch": "dtr",
    "mkdir": "m",
    "truncate": "sr",
    **dict.fromkeys(("sed", "perl"), "ef"),
}
"""Programs that write the files they name, with the letters of their options that take a value."""
_IN_PLACE = re.compile(r"-[nplawsrzuE0-9]*i\S*|--in-place\S*")


def _find_written(name: str, words: Sequence[str]) -> Sequence[str]:
    valued = re.compile(f"-[A-Za-z0-9]*[{_WRITERS[name]}]") if _WRITERS[name] else None
    operands: list[str] = []
    has_value = is_value = False
    for at, word in enumerate(words):
        if word == "--":
            operands += words[at + 1 :]
            break
        if not (is_value or word.startswith("-")):
            operands.append(word)
        is_value = not is_value and valued is not None and valued.fullmatch(word) is not None
        has_value = has_value or is_value
    if name in ("cp", "ln"):
        return operands[1:][-1:]
    if name in ("sed", "perl"):  # the first operand is the script, unless an option contains the script
        return operands[0 if has_value else 1 :] if any(map(_IN_PLACE.fullmatch, words)) else ()
    return operands
