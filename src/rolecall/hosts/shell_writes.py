"""Which files a shell command visibly creates, changes or removes, and which of our own commands it runs. Values.

Looked at are redirections and programs whose arguments are the files they write; `cd`, subshells, `bash -c`,
substitutions and here-documents are followed. A program that decides for itself what it writes (an interpreter, a
build, a formatter) is not seen through, and a path that begins with a variable is not known: nothing is claimed
about either. Nothing is run, and nothing raises: what cannot be understood is left out.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple, TypeAlias

from rolecall.hosts.shell_words import DEEPEST, Here, Lexer, Operator, Token, Word

LONGEST = 128 * 1024
"""Characters of a command that are looked at: what Linux lets a shell be given as an argument."""


class Seen(NamedTuple):
    writes: tuple[str, ...] = ()
    """Absolute paths, links not followed; `..`, wildcards and `$` for a variable stand in them as written."""
    calls: tuple[tuple[str, ...], ...] = ()
    """Each `rolecall …` that is run: its words behind the program."""


def seen(command: str, cwd: str) -> Seen:
    """What a command that is given to a shell in the folder `cwd` visibly does."""
    found = _Found([], [])
    _Shell(cwd, found).read(command[:LONGEST], 0)
    return Seen(tuple(dict.fromkeys(found.writes)), tuple(found.calls))


def patched(text: str) -> list[str]:
    """The files that a patch names which says so itself: `*** Update File: PATH` and its like."""
    return [match[1] for match in _PATCHED.finditer(text)]


_PATCHED = re.compile(r"^\*\*\* (?:(?:Add|Update|Delete) File|Move to):[ \t]*(\S[^\r\n]*)", re.MULTILINE)


# -- commands --


class _Found(NamedTuple):
    writes: list[str]
    calls: list[tuple[str, ...]]


class _Command(NamedTuple):
    words: list[Word]
    given: list[str]
    """What it reads: the texts of here-documents."""


_REDIRECTIONS = frozenset((">", ">>", ">|", "&>", "&>>", ">&", "<>"))
_SOURCES = frozenset(("<", "<&"))
_RESERVED = frozenset(("if", "then", "elif", "else", "while", "until", "do", "!", "{", "time", "coproc"))
_SHELLS = frozenset(("sh", "bash", "dash", "zsh", "ksh", "ash", "fish"))
_RUNNERS = frozenset(("uv", "uvx", "pipx", "poetry", "pdm", "hatch", "rye"))
_MODULE_OPTION = re.compile("-[bBdEiIOPqRsSuvx]*m.*", re.DOTALL)
"""Of Python, behind options without a value; the module stands in the same word or in the next."""
_NAMES_ROLECALL = re.compile(r"(?:^|/|^-[A-Za-z]*m)rolecall(?:$|[@=<>~!\[\s])")
"""As a program, with a version or parts of the package, or as a module."""
_MOST_STARTS = 50
"""Words of one command behind which a call of ours may begin."""
_MOST_ROOTS = 50
"""Folders of one `find` for which a program that it runs is looked at."""
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=", re.ASCII)
_SHELL_COMMAND_OPTION = re.compile(r"-[A-Za-z]*c[A-Za-z]*")


class _Shell:
    """A shell in a folder, as far as one can tell; None: in some folder."""

    def __init__(self, cwd: str | None, found: _Found) -> None:
        self.cwd = cwd
        self._found = found
        self._before: list[str | None] = []
        """The folders of the shells around, inside brackets."""

    def read(self, text: str, depth: int) -> None:
        if depth <= DEEPEST:
            self.obey(Lexer(text, self._apart, depth=depth).tokens(), depth)

    def _apart(self, tokens: Iterable[Token], depth: int) -> None:
        _Shell(self.cwd, self._found).obey(tokens, depth)

    def obey(self, tokens: Iterable[Token], depth: int) -> None:
        command, target, is_test = _Command([], []), "", False
        for token in tokens:
            if is_test:
                is_test = token != Word("]]")  # [[ a > b ]] compares
            elif isinstance(token, Here):
                command.given.append(token.text)
            elif isinstance(token, Word):
                is_test = token == Word("[[") and not target and _is_first(command.words)
                if not target:
                    command.words.append(token)
                elif target in _REDIRECTIONS:
                    self._redirect(target, token)
                target = ""
            elif token.text in _REDIRECTIONS | _SOURCES:
                target = token.text
            else:
                self._end(command, token, depth)
                command, target = _Command([], []), ""
        self._end(command, Operator(";"), depth)

    def _end(self, command: _Command, operator: Operator, depth: int) -> None:
        self._run(command, depth)
        if operator.text == "(":
            self._before.append(self.cwd)
        elif operator.text == ")" and self._before:
            self.cwd = self._before.pop()

    def _redirect(self, operator: str, target: Word) -> None:
        is_descriptor = operator == ">&" and (target.text.rstrip("-").isdigit() or target.text == "-")
        if not is_descriptor:
            self.claim(target)

    def claim(self, *words: Word) -> None:
        """These are written."""
        for word in words:
            path = _home(word)
            if not word.is_known or path in ("", "-") or "\0" in path:
                continue
            if os.path.isabs(path):
                self._found.writes.append(path)
            elif self.cwd is not None:
                self._found.writes.append(os.path.join(self.cwd, path))

    def _run(self, command: _Command, depth: int) -> None:
        words = command.words[_program_at(command.words) :]
        if not words:
            return
        name, rest = os.path.basename(words[0].text), words[1:]
        if name in ("cd", "pushd", "popd"):
            self._change_folder(name, rest)
        elif name in _SHELLS or name == "eval":
            for script in _scripts(name, rest, command.given):
                self.read(script, depth + 1)
        elif name in ("rolecall", "uwf"):
            self._found.calls.append(tuple(word.text for word in rest))
        elif name.startswith("python") or name in _RUNNERS:
            self._found.calls.extend(_started(name, rest))
        elif name == "find":
            self._find(rest, depth)
        elif name == "apply_patch":
            for text in (*command.given, *(word.text for word in rest)):
                self.claim(*map(Word, patched(text)))
        elif name == "git":
            self._git(rest)
        elif name in _WRITERS:
            self.claim(*_WRITERS[name](rest))

    def _change_folder(self, name: str, words: Sequence[Word]) -> None:
        operands = _operands(words)
        target = operands[0] if operands else Word("~" if name == "cd" else "", is_known=name == "cd")
        path = _home(target)
        if not target.is_known or path == "-" or name == "popd":
            self.cwd = None
        elif os.path.isabs(path):
            self.cwd = path
        elif self.cwd is not None:
            self.cwd = os.path.join(self.cwd, path)

    def _find(self, words: Sequence[Word], depth: int) -> None:
        at = next((n for n, word in enumerate(words) if word.text[:1] in "-(!" and word.text), len(words))
        roots = list(words[:at]) or [Word(".")]
        while at < len(words):
            text, at = words[at].text, at + 1
            if text == "-delete":
                self.claim(*roots)
            elif text in ("-fprint", "-fprintf", "-fls"):
                self.claim(*words[at : at + 1])
            elif text in ("-exec", "-execdir", "-ok", "-okdir"):
                end = next((n for n in range(at, len(words)) if words[n].text in (";", "+")), len(words))
                for root in roots[:_MOST_ROOTS]:
                    self._run(_Command([_filled(word, root) for word in words[at:end]], []), depth)
                at = end

    def _git(self, words: Sequence[Word]) -> None:
        within = _Shell(self.cwd, self._found)
        at = 0
        while at < len(words) and words[at].text.startswith("-"):
            if words[at].text == "-C":
                within._change_folder("cd", words[at + 1 : at + 2])
            at += 2 if words[at].text in ("-C", "-c", "--git-dir", "--work-tree", "--namespace") else 1
        if at < len(words):
            within.claim(*_git_writes(words[at].text, words[at + 1 :]))


def _started(name: str, words: Sequence[Word]) -> Iterator[tuple[str, ...]]:
    """The words for a Rolecall that Python has as a module, or that a tool for environments runs."""
    texts = [word.text for word in words]
    if name in _RUNNERS:
        # Which of their options have a value is not known, as in `uvx --from rolecall rolecall run`.
        starts = (n for n, text in enumerate(texts, 1) if _NAMES_ROLECALL.search(text))
        yield from (tuple(texts[n:]) for n in islice(starts, _MOST_STARTS))
        return
    at = next((n for n, text in enumerate(texts) if _MODULE_OPTION.fullmatch(text)), len(texts))
    is_first = all(n > 0 and texts[n - 1] in ("-W", "-X") for n in range(at) if texts[n][:1] != "-")
    attached = texts[at].partition("m")[2] if at < len(texts) else ""
    told = [attached, *texts[at + 1 :]] if attached else texts[at + 1 :]
    if is_first and told[:1] == ["rolecall"]:
        yield tuple(told[1:])


def _home(word: Word) -> str:
    return os.path.expanduser(word.text) if word.is_bare and word.text.startswith("~") else word.text


def _filled(word: Word, root: Word) -> Word:
    """An argument of `find -exec`, with the folder that is searched in the place of what is found there."""
    if "{}" not in word.text:
        return word
    return Word(word.text.replace("{}", os.path.join(root.text, "{}")), root.is_known)


def _scripts(name: str, words: Sequence[Word], given: Sequence[str]) -> list[str]:
    """What a shell is told to run, as far as it is in the command itself."""
    if name == "eval":
        return [" ".join(word.text for word in words)]
    for number, word in enumerate(words):
        if _SHELL_COMMAND_OPTION.fullmatch(word.text):
            return [operand.text for operand in _operands(words[number + 1 :])[:1]]
        if not word.text.startswith(("-", "+")):
            return []  # a file of commands
    return list(given)


# -- what stands before a program --

_WRAPPERS: Mapping[str, tuple[Collection[str], int]] = {
    "sudo": (("-u", "-g", "-h", "-p", "-C", "-T", "-U", "-D", "-R", "-r", "-t"), 0),
    "doas": (("-u", "-C", "-a"), 0),
    "env": (("-u", "-C", "--chdir", "--unset"), 0),
    "nohup": ((), 0),
    "setsid": ((), 0),
    "command": ((), 0),
    "builtin": ((), 0),
    "exec": (("-a",), 0),
    "nice": (("-n",), 0),
    "ionice": (("-c", "-n", "-p"), 0),
    "stdbuf": (("-i", "-o", "-e"), 0),
    "timeout": (("-k", "-s"), 1),
    "xargs": (("-I", "-n", "-P", "-d", "-a", "-L", "-s", "-E"), 0),
}
"""Programs that run another: their options that have a value, and how many arguments come before its name."""


def _program_at(words: Sequence[Word]) -> int:
    """Where the program stands, behind assignments, reserved words and programs that run others."""
    at = 0
    while at < len(words):
        word = words[at]
        name = os.path.basename(word.text)
        if (word.is_bare and word.text in _RESERVED) or _ASSIGNMENT.match(word.text):
            at += 1
        elif name in _WRAPPERS:
            at = _behind_options(words, at + 1, *_WRAPPERS[name])
        else:
            break
    return at


def _is_first(before: Sequence[Word]) -> bool:
    """Whether the program is still to come."""
    return _program_at(before) >= len(before)


def _behind_options(words: Sequence[Word], at: int, valued: Collection[str], arguments: int) -> int:
    while at < len(words) and words[at].text.startswith("-"):
        at += 2 if words[at].text in valued else 1
    return at + arguments


# -- programs that write what they are told to --

_Writer: TypeAlias = "Callable[[Sequence[Word]], Iterable[Word]]"
_HERE = Word(".")
"""Some file in the folder, which one is not said."""


def _operands(words: Sequence[Word], valued: Collection[str] = ()) -> list[Word]:
    """What is no option and no value of one."""
    found: list[Word] = []
    at, has_options = 0, True
    while at < len(words):
        word, at = words[at], at + 1
        if has_options and word.text == "--":
            has_options = False
        elif has_options and word.text.startswith("-") and len(word.text) > 1:
            at += word.text in valued
        else:
            found.append(word)
    return found


def _options(words: Sequence[Word]) -> Iterator[str]:
    for word in words:
        if word.text == "--":
            return
        if word.text.startswith("-"):
            yield word.text


def _value_of(words: Sequence[Word], short: str, long: str = "") -> Word | None:
    """The value of an option, in whichever of its forms."""
    for number, word in enumerate(words):
        if word.text == "--":
            return None
        if word.text in (short, long) and word.text:
            return words[number + 1] if number + 1 < len(words) else None
        if long and word.text.startswith(f"{long}="):
            return Word(word.text[len(long) + 1 :], word.is_known)
        if short and word.text.startswith(short):
            return Word(word.text[len(short) :], word.is_known)
        if short and re.fullmatch(f"-[A-Za-z]*{short[-1]}", word.text):  # the last of several in one word
            return words[number + 1] if number + 1 < len(words) else None
    return None


def _all_of(*valued: str) -> _Writer:
    return lambda words: _operands(words, valued)


def _value(short: str, long: str = "") -> _Writer:
    def written(words: Sequence[Word]) -> Iterable[Word]:
        found = _value_of(words, short, long)
        return [found] if found else []

    return written


_COPY_VALUED = ("-t", "--target-directory", "-S", "--suffix", "-m", "--mode", "-o", "-g")


def _copied(words: Sequence[Word]) -> Iterable[Word]:
    """The last argument, unless the folder is named by an option."""
    target = _value_of(words, "-t", "--target-directory")
    operands = _operands(words, _COPY_VALUED)
    return [target] if target else operands[-1:] if len(operands) > 1 else []


def _sent(words: Sequence[Word]) -> Iterable[Word]:
    operands = _operands(words, ("-e", "--rsh", "-i", "-P", "-F", "-o", "--exclude", "--include", "-f"))
    return operands[-1:] if len(operands) > 1 else []


def _moved(words: Sequence[Word]) -> Iterable[Word]:
    return [*_copied(words), *_operands(words, _COPY_VALUED)]


def _installed(words: Sequence[Word]) -> Iterable[Word]:
    return _operands(words, _COPY_VALUED) if "-d" in _options(words) else _copied(words)


def _linked(words: Sequence[Word]) -> Iterable[Word]:
    operands = _operands(words, _COPY_VALUED)
    if len(operands) == 1 and not _value_of(words, "-t", "--target-directory"):
        return [Word(os.path.basename(operands[0].text), operands[0].is_known)]
    return _copied(words)


_IN_PLACE = re.compile(r"-[nplawsrzuE0-9]*i\S*|--in-place\S*")


def _edited(words: Sequence[Word]) -> Iterable[Word]:
    """Editors of streams that change files in place when told so: `sed -i`, `perl -pi -e`, `ruby -i`."""
    options = list(_options(words))
    if not any(_IN_PLACE.fullmatch(option) for option in options):
        return []
    valued = {option for option in options if re.fullmatch("-[A-Za-z0-9]*[eEf]", option)}
    has_script = bool(valued) or any(option.startswith("--expression") for option in options)
    return _operands(words, valued)[0 if has_script else 1 :]


def _dd(words: Sequence[Word]) -> Iterable[Word]:
    return [
        Word(word.text.removeprefix("of="), word.is_known) for word in words if word.text.startswith("of=")
    ]


def _downloaded(short: str, long: str, folder: str, *, is_always_file: bool) -> _Writer:
    def written(words: Sequence[Word]) -> Iterable[Word]:
        named = _value_of(words, short, long)
        if named is not None:
            return [named]
        if is_always_file or any(
            option in ("-O", "--remote-name", "-OJ", "-LO") for option in _options(words)
        ):
            return [_value_of(words, folder) or _HERE]
        return []

    return written


def _archived(words: Sequence[Word]) -> Iterable[Word]:
    if words and not words[0].text.startswith("-"):  # `tar xzf FILE`
        words = [Word(f"-{words[0].text}"), *words[1:]]
    options = set(_options(words))
    letters = {letter for option in options if not option.startswith("--") for letter in option}
    if "x" in letters or options & {"--extract", "--get"}:
        return [_value_of(words, "-C", "--directory") or _HERE]
    if letters & set("cru") or options & {"--create", "--append", "--update"}:
        named = _value_of(words, "-f", "--file")
        return [named] if named else []
    return []


def _unzipped(words: Sequence[Word]) -> Iterable[Word]:
    is_look = any(option in ("-l", "-p", "-t", "-v", "-Z") for option in _options(words))
    return [] if is_look else [_value_of(words, "-d") or _HERE]


def _compressed(words: Sequence[Word]) -> Iterable[Word]:
    is_to_output = any(
        option in ("--stdout", "--to-stdout", "--list", "--test")
        or re.fullmatch("-[a-z]*[clt][a-z]*", option)
        for option in _options(words)
    )
    return [] if is_to_output else _operands(words)


def _patch(words: Sequence[Word]) -> Iterable[Word]:
    if "--dry-run" in _options(words):
        return []
    named = _value_of(words, "-o", "--output") or _value_of(words, "-d", "--directory")
    return [named or next(iter(_operands(words, ("-p", "-i", "-d", "-o"))), _HERE)]


def _yq(words: Sequence[Word]) -> Iterable[Word]:
    is_in_place = any(option in ("-i", "--inplace") for option in _options(words))
    return _operands(words)[1:] if is_in_place else []


_WRITERS: Mapping[str, _Writer] = {
    **dict.fromkeys(("tee", "rm", "rmdir", "unlink", "shred", "mkfifo", "sponge", "link"), _all_of()),
    "touch": _all_of("-d", "-t", "-r", "--date", "--reference"),
    "mkdir": _all_of("-m", "--mode"),
    "truncate": _all_of("-s", "-r", "--size", "--reference"),
    "cp": _copied,
    **dict.fromkeys(("rsync", "scp"), _sent),
    "mv": _moved,
    "install": _installed,
    "ln": _linked,
    **dict.fromkeys(("sed", "gsed", "perl", "ruby"), _edited),
    "dd": _dd,
    "sort": _value("-o", "--output"),
    "curl": _downloaded("-o", "--output", "--output-dir", is_always_file=False),
    "wget": _downloaded("-O", "--output-document", "-P", is_always_file=True),
    **dict.fromkeys(("tar", "bsdtar"), _archived),
    "unzip": _unzipped,
    "zip": lambda words: _operands(words)[:1],
    **dict.fromkeys(("gzip", "gunzip", "bzip2", "bunzip2", "xz", "unxz", "zstd", "unzstd"), _compressed),
    "patch": _patch,
    "yq": _yq,
}


def _git_writes(verb: str, words: Sequence[Word]) -> Iterable[Word]:
    """What git changes in the work tree. Going to another commit (switch, checkout of a branch, merge, rebase, pull)
    is not an edit: what then lies there was committed by somebody."""
    options = set(_options(words))
    if verb in ("apply", "am", "cherry-pick", "revert"):
        return (
            []
            if options & {"--check", "--stat", "--numstat", "--summary", "--cached", "--abort"}
            else [_HERE]
        )
    if verb in ("rm", "mv"):
        return [] if options & {"--cached", "-n", "--dry-run"} else _operands(words)
    if verb == "restore":
        is_index_only = "--staged" in options and not options & {"--worktree", "-W"}
        return [] if is_index_only else _operands(words, ("-s", "--source"))
    if verb == "checkout":
        return _checked_out(words, options)
    if verb == "clean":
        is_dry = any(re.fullmatch("-[a-z]*n[a-z]*|--dry-run", option) for option in options)
        return [] if is_dry else _operands(words, ("-e",)) or [_HERE]
    if verb == "stash":
        return [_HERE] if words and words[0].text in ("pop", "apply") else []
    return [_HERE] if verb == "reset" and "--hard" in options else []


def _checked_out(words: Sequence[Word], options: Collection[str]) -> Iterable[Word]:
    """Paths behind a commit, or behind `--`. A single word may be a branch, and is taken for one."""
    at = next((n for n, word in enumerate(words) if word.text == "--"), None)
    if at is not None:
        return words[at + 1 :]
    if {"-b", "-B", "--orphan", "-t", "--track", "--detach", "-d"}.intersection(options):
        return []
    operands = _operands(words)
    is_path_only = {"--ours", "--theirs"}.intersection(options) or [word.text for word in operands] == ["."]
    return operands if is_path_only else operands[1:]
