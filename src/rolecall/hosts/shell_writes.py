"""Find the files a shell command visibly writes, the notes it prints, and our own commands that it runs.

The command is split into words by `shlex`. Redirections count, and so do programs whose arguments are the files they
write, even after `cd`, `sudo` and the like, and inside `bash -c`. Nothing is run and nothing raises: parts that cannot
be understood are left out. docs/hooks.md lists what is not detected.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

LONGEST = 32 * 1024
"""Maximum characters of a command that are examined, not counting here-documents."""
_DEEPEST = 3
"""Maximum nesting of `bash -c`."""


class Seen(NamedTuple):
    writes: tuple[str, ...] = ()
    """Absolute paths, links not resolved; `..` and wildcards are kept."""
    reads: tuple[str, ...] = ()
    """Memory notes and skills that the command prints."""
    calls: tuple[tuple[str, ...], ...] = ()
    """The arguments of each `rolecall …` that is run."""


def read_command(command: str, cwd: str) -> Seen:
    """What a shell command run in `cwd` visibly does."""
    shell = _Shell(cwd)
    shell.read(command)
    if "apply_patch" in command:
        shell.write(patched_files(command))
    return Seen(tuple(dict.fromkeys(shell.writes)), tuple(shell.reads), tuple(shell.calls))


def patched_files(text: str) -> list[str]:
    """The files that a patch for `apply_patch` names: `*** Update File: PATH` and the like."""
    return re.findall(
        r"^\*\*\* (?:(?:Add|Update|Delete) File|Move to):[ \t]*(\S[^\r\n]*)", text, re.MULTILINE
    )


# -- words --

_HERE_DOCUMENT = re.compile(r"""<<-?[ \t]*\\?(['"]?)([A-Za-z_][\w.-]*)\1""")
_QUOTED = re.compile(r"""'[^']*'|"(?:\\.|[^"\\])*"|\\.|(?<!\S)\#[^\n]*""", re.DOTALL)
_TEST = re.compile(r"\[\[(?:(?!\[\[)[^\n])*?\]\]|\(\([^()\n]*\)\)")
"""`[[ a > b ]]` and `(( a > b ))` are comparisons, not redirections."""
_OPERATORS = "();<>|&`\n"
_HIDE = {ord(sign): 0xE000 + at for at, sign in enumerate(f"{_OPERATORS}[]")}
_SHOW = {hidden: chr(sign) for sign, hidden in _HIDE.items()}
_WRITING = (">", ">>", ">|", "&>", "&>>", ">&", "<>")
_READING = ("<", "<<", "<<-", "<<<", "<&")


def _tokens(command: str) -> Iterator[tuple[str, bool]]:
    """The words and operators of a command, and whether each is an operator."""
    kept, end = [], ""
    all_lines = {line.strip() for line in command.splitlines()} if "<<" in command else set()
    for line in command.splitlines(keepends=True):
        if end:  # in a here-document, which is content
            end = "" if line.strip() == end else end
            continue
        kept.append(line)
        found = _HERE_DOCUMENT.search(line) if all_lines else None
        end = found[2] if found and found[2] in all_lines else ""

    def hide(found: re.Match[str]) -> str:
        """Hide quoted operators, and replace comments and line continuations by a space."""
        return " " if found[0][0] == "#" or found[0] == "\\\n" else found[0].translate(_HIDE)

    text = _TEST.sub(" ", _QUOTED.sub(hide, "".join(kept)[:LONGEST]))
    lexer = shlex.shlex(text, posix=True, punctuation_chars=_OPERATORS)
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
    try:
        for token in lexer:
            is_operator = token[:1] != "" and token[0] in _OPERATORS
            yield token if is_operator else token.translate(_SHOW), is_operator
    except ValueError:  # an unclosed quote, so the rest is unknown
        return


class _Shell:
    """The state of a shell, as far as it can be known."""

    def __init__(self, cwd: str | None, depth: int = 0) -> None:
        self.cwd = cwd
        """None if the folder is unknown."""
        self.writes: list[str] = []
        self.reads: list[str] = []
        self.calls: list[tuple[str, ...]] = []
        self._depth = depth
        self._outer: list[str | None] = []
        """The folders of the enclosing shells, for parentheses."""

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
            words = _unwrap(words)
        if not words:
            return
        name, rest = os.path.basename(words[0]), words[1:]
        if name in ("cd", "pushd"):
            self._change_folder(next((word for word in rest if word == "-" or not word.startswith("-")), "~"))
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
            self.calls += [
                tuple(rest[at:]) for at, word in enumerate(rest[:50], 1) if _NAMES_OURS.search(word)
            ]
        elif name == "git":
            self._git(rest)
        elif name == "find":
            self._find(rest)
        elif name in _WRITERS:
            self.write(_WRITERS[name](rest))
        if name in _SHOWING and self.cwd is not None and not any(word.startswith("-i") for word in rest):
            for word in rest:
                if word.endswith(".md") and any(place in word for place in _SHOWN):
                    self.reads.append(os.path.join(self.cwd, os.path.expanduser(word)))

    def _change_folder(self, path: str) -> None:
        path = os.path.expanduser(path)
        if path.startswith(("$", "-")):
            self.cwd = None
        elif os.path.isabs(path) or self.cwd is not None:
            self.cwd = os.path.join(self.cwd or "", path)

    def _git(self, words: Sequence[str]) -> None:
        within = _Shell(self.cwd)
        at = 0
        while at < len(words) and words[at].startswith("-"):
            if words[at] == "-C" and at + 1 < len(words):
                within._change_folder(words[at + 1])
            at += 2 if words[at] in ("-C", "-c") else 1
        if at < len(words):
            within.write(_git_writes(words[at], words[at + 1 :]))
            self.writes += within.writes

    def _find(self, words: Sequence[str]) -> None:
        roots = []
        for word in words:
            if word[:1] in ("-", "!", "("):
                break
            roots.append(word)
        if "-delete" in words:
            self.write(roots or ["."])
        for option in ("-exec", "-execdir"):
            if option in words:
                command = list(words[words.index(option) + 1 :])
                ends = [at for at, word in enumerate(command) if word in (";", "+")]
                command = command[: ends[0]] if ends else command
                for root in roots[:50] or ["."]:
                    self._run([word.replace("{}", os.path.join(root, "{}")) for word in command])


# -- programs --

_RESERVED = frozenset(("if", "then", "elif", "else", "while", "until", "do", "!", "{"))
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=")
_WRAPPERS: Mapping[str, str] = {
    **dict.fromkeys(("nohup", "command", "setsid", "stdbuf"), ""),
    "sudo": "ugpCDhrtTUR",
    "doas": "uC",
    "env": "uC",
    "exec": "a",
    "nice": "n",
    "ionice": "cn",
    "time": "fo",
    "timeout": "sk",
    "xargs": "IEdLnPsa",
}
"""Programs that run another program, which follows their options, and the letters of options that take a value."""
_SHELLS = frozenset(("sh", "bash", "dash", "zsh", "ksh"))
_OURS = frozenset(("rolecall", "uwf"))
_RUNNERS = frozenset(("uv", "uvx", "pipx", "poetry", "pdm", "hatch", "rye"))
_NAMES_OURS = re.compile(r"(?:^|/|^-[A-Za-z]*m)rolecall(?:$|[@=<>~!\[\s])")
"""Our program, possibly with a version or extras of the package, or our module."""
_SHOWING = frozenset(("cat", "head", "tail", "nl", "sed", "less", "more", "bat", "batcat"))
_SHOWN = (".nexus/memory/", "/SKILL.md")
_IN_PLACE = re.compile(r"-[nplawsrzuE0-9]*i\S*|--in-?place\S*")
_READ_ONLY_OPTIONS = frozenset(("--check", "--stat", "--numstat", "--summary", "--cached", "--abort"))
_Writer = Callable[[Sequence[str]], Iterable[str]]


def _unwrap(words: Sequence[str]) -> Sequence[str]:
    """The inner program that a wrapper runs, with its arguments."""
    name, is_value = os.path.basename(words[0]), False
    for at, word in enumerate(words[1:], 1):
        is_option = word.startswith("-")
        is_duration = name == "timeout" and re.fullmatch(r"[\d.]+[smhd]?", word)
        if not (is_value or is_option or is_duration or _ASSIGNMENT.match(word)):
            return words[at:]
        is_value = not is_value and is_option and word[1:2] != "-" and word[-1] in _WRAPPERS[name]
    return ()


def _operands(words: Sequence[str], *valued: str) -> list[str]:
    """The words that are neither options nor the values of options in `valued`."""
    found: list[str] = []
    is_value = False
    for at, word in enumerate(words):
        if word == "--":
            return [*found, *words[at + 1 :]]
        if not is_value and (not word.startswith("-") or word == "-"):
            found.append(word)
        is_value = word in valued
    return found


def _value(words: Sequence[str], letter: str, long: str = "") -> list[str]:
    """The value of an option in any of its forms; empty if it is not given."""
    for at, word in enumerate(words):
        if long and word.startswith(f"{long}="):
            return [word.partition("=")[2]]
        if word == long or re.fullmatch(f"-[A-Za-z]*{letter}", word):
            return list(words[at + 1 : at + 2])
        if joined := re.fullmatch(f"-[fkLnqsSuv]*{letter}(.+)", word):
            return [joined[1]]
    return []


def _has(words: Sequence[str], letter: str, long: str) -> bool:
    """Whether an option is given, by its name or as one of several letters."""
    return any(word == long or re.fullmatch(f"-[A-Za-z]*{letter}[A-Za-z]*", word) for word in words)


def _edit_in_place(words: Sequence[str]) -> Iterable[str]:
    """The files of `sed -i` or `perl -pi -e`: the operands, without the script if no option contains it."""
    if not any(_IN_PLACE.fullmatch(word) for word in words):
        return []
    scripts = [word for word in words if re.fullmatch(r"-[A-Za-z0-9]*[eEf]|--expression.*", word)]
    return _operands(words, *scripts)[0 if scripts else 1 :]


def _tar(words: Sequence[str]) -> Iterable[str]:
    """The folder that tar extracts to, or the archive it creates."""
    flags = "".join(word for at, word in enumerate(words) if at == 0 or re.fullmatch("-[A-Za-z]+", word))
    if "x" in flags:
        return _value(words, "C", "--directory") or ["."]
    operands = _operands(words[1:], "-C")
    return operands[:1] if set(flags) & set("cru") else []


_WRITERS: Mapping[str, _Writer] = {
    **dict.fromkeys(("tee", "rm", "rmdir", "unlink", "mv"), _operands),
    "touch": lambda words: _operands(words, "-d", "-t", "-r"),
    "mkdir": lambda words: _operands(words, "-m"),
    "truncate": lambda words: _operands(words, "-s", "-r"),
    **dict.fromkeys(("cp", "ln", "rsync", "scp"), lambda words: _operands(words)[1:][-1:]),
    "install": lambda words: _operands(words, "-m", "-o", "-g")[-1:],
    **dict.fromkeys(("sed", "gsed", "perl", "ruby"), _edit_in_place),
    "dd": lambda words: [word.removeprefix("of=") for word in words if word.startswith("of=")],
    "sort": lambda words: _value(words, "o", "--output"),
    "curl": lambda words: _value(words, "o", "--output") or ["."] * _has(words, "O", "--remote-name"),
    "wget": lambda words: _value(words, "O", "--output-document") or ["."],
    "tar": _tar,
    "unzip": lambda words: [] if {"-l", "-p", "-t"} & set(words) else _value(words, "d") or ["."],
    "patch": lambda words: [] if "--dry-run" in words else _operands(words, "-p", "-i")[:1] or ["."],
}


def _git_writes(verb: str, words: Sequence[str]) -> Iterable[str]:
    """The files that git changes in the work tree.

    Moving to another commit (switch, merge, rebase, pull) is not an edit, because the contents are committed.
    """
    operands = _operands(words, "-s", "--source")
    if verb == "checkout":
        if "--" in words:
            return words[words.index("--") + 1 :]
        is_branch = {"-b", "-B", "--orphan", "-t", "--track", "--detach"}.intersection(words)
        return [] if is_branch else operands if operands == ["."] else operands[1:]
    is_try = verb in ("rm", "mv", "clean") and _has(words, "n", "--dry-run")
    is_index = verb == "restore" and _has(words, "S", "--staged") and not _has(words, "W", "--worktree")
    if is_try or is_index or _READ_ONLY_OPTIONS.intersection(words):
        return []
    if verb in ("rm", "mv", "restore"):
        return operands
    is_whole = (
        verb in ("apply", "am", "cherry-pick", "revert", "clean")
        or (verb == "stash" and words[:1] in (["pop"], ["apply"]))
        or (verb == "reset" and "--hard" in words)
    )
    return ["."] if is_whole else []
