r"""Invocation macros in skill bodies: `{{primitive key=value ...}}`, which are parsed and replaced by a host's wording.

A value is one of these:

- a bare word, or a placeholder (`<which one>`);
- a quoted text, with the escapes `\"`, `\\`, `\n` and `\t`;
- a list: `[a, "b c", <more of them>, {label: "x", description: "y"}]`;
- a heredoc: `key=>>NAME`, the text starting on the next line, then `<<NAME` alone on a line. The `}}` can be on the
  heredoc's first line, before the text, or after its last line. The text is literal.

Everything outside of macros is text, including `{{` without a letter after it; but `{{` followed by blanks, a name and
`key=` is an error.

The vocabulary defines the primitives and their keys, and the catalogue defines the names that values can use. The
functions passed to `expand` turn a primitive into a host's wording; `prose` is for a host without mechanisms of its
own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple, TypeVar

from rolecall.errors import UsageError
from rolecall.nexus.tags import ANY_VARIANT, Tag
from rolecall.nexus.vocabulary import Invocation
from rolecall.settings.form import did_you_mean
from rolecall.settings.yaml12 import Problem

Item = str | Mapping[str, str]
Argument = str | tuple[Item, ...]
Arguments = Mapping[str, Argument]
Render = Mapping[str, Callable[[Arguments], str]]
"""For each primitive, a function that returns the host's text."""


class MacroChoice(NamedTuple):
    """The names that a parameter accepts."""

    what: str
    names: tuple[str, ...]


Choices = Mapping[tuple[str, str], MacroChoice]
"""The names that each parameter of each primitive accepts; the modes of a skill are listed under `mode_of` the skill.
Any other parameter accepts any text."""


def mode_of(skill: str) -> str:
    """Return the key in `Choices` for the parameter `mode` of `skill_activation`, for one skill."""
    return f"mode of {skill}"


_TEXTS = {
    "skill_activation": ("skill", "mode"),
    "subagent_spawn": ("target_role", "prompt", "name", "resume_tier_hint"),
    "task_register": ("label", "state"),
    "user_question": ("question",),
    "memory_read_observation": ("file_path", "reader_identity", "observed_at"),
}
_TYPES: Mapping[tuple[str, str], str] = {
    **{(primitive, name): "string" for primitive, names in _TEXTS.items() for name in names},
    ("user_question", "options"): "array",
}
"""The types of the parameters in the shared format; packages' vocabularies give these types only in prose."""

_START = re.compile(r"(?a)\{\{(?:([A-Za-z_][\w-]*)|(?P<apart>\s++[A-Za-z_][\w-]*+\s++[A-Za-z_][\w-]*+=))")
_SPACE = re.compile(r"\s*")
_KEY = re.compile(r"([A-Za-z_][\w-]*)=", re.ASCII)
_PLACEHOLDER = r'<[^<>"\[\]{}\r\n]*>'
"""A placeholder for the reader, `<what to put here>`, which can contain blanks."""
_BARE = re.compile(rf'(?:{_PLACEHOLDER}|[^\s"\[\]{{}}])+')
_BARE_ITEM = re.compile(rf'(?:{_PLACEHOLDER}|[^\s",\[\]{{}}:])+')
_MORE_ITEMS = re.compile(r"\{(?:\.\.\.|…)\}")
"""A sign in a list that stands for more items of the same kind."""
_QUOTED = re.compile(r'"((?:[^"\\\r\n]|\\[^\r\n])*)"')
_ESCAPE = re.compile(r"\\(.)")
_ESCAPES = {'"': '"', "\\": "\\", "n": "\n", "t": "\t"}
_HEREDOC = re.compile(r">>([A-Za-z_]\w*)", re.ASCII)
_LINE_END = re.compile(r"[ \t]*(?:\r?\n|\Z)")

T = TypeVar("T")


class Macro(NamedTuple):
    primitive: str
    arguments: Arguments
    start: int
    end: int
    """The offset at which the text continues, after the macro and its heredocs."""


def expand(
    text: str,
    render: Render,
    *,
    invocations: Mapping[str, Invocation],
    choices: Choices | None = None,
    source: str = "<text>",
) -> str:
    """Replace each macro in `text` with its result from `render`. Raise a `UsageError` that lists every problem."""
    if found := problems(text, invocations, choices, source=source):
        lines = "".join(f"\n  {problem}" for problem in found)
        raise UsageError(f"the text cannot be expanded:{lines}")
    parts, done = [], 0
    for macro in find(text, source=source):
        if macro.primitive not in render:
            hint = "Give it one, or take the words for a host without it."
            raise UsageError(f"{source}: the host has no way to do {macro.primitive!r}", hint=hint)
        parts += [text[done : macro.start], render[macro.primitive](macro.arguments)]
        done = macro.end
    return "".join([*parts, text[done:]])


def problems(
    text: str,
    invocations: Mapping[str, Invocation],
    choices: Choices | None = None,
    *,
    source: str = "<text>",
) -> list[Problem]:
    """Return the problems with a text's macros, up to the first macro that cannot be parsed."""
    found: list[Problem] = []
    try:
        for macro in _Parser(text).macros():
            for message, hint in _find_misuses(macro, invocations, choices or {}):
                found.append(Problem("error", message, source, *_place(text, macro.start), hint))
    except _Unreadable as exc:
        found.append(Problem("error", exc.message, source, *_place(text, exc.offset), exc.hint))
    return found


def find(text: str, *, source: str = "<text>") -> Iterator[Macro]:
    """Yield the macros of a text. Raise a `UsageError` with the place of a macro that cannot be parsed."""
    try:
        yield from _Parser(text).macros()
    except _Unreadable as exc:
        line, column = _place(text, exc.offset)
        raise UsageError(f"{source}:{line}:{column}: {exc.message}", hint=exc.hint) from None


def _place(text: str, offset: int) -> tuple[int, int]:
    return text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset)


def _find_misuses(
    macro: Macro, invocations: Mapping[str, Invocation], choices: Choices
) -> Iterator[tuple[str, str]]:
    invocation = invocations.get(macro.primitive)
    if invocation is None:
        hint = did_you_mean(macro.primitive, invocations, what="Primitives")
        yield f"the primitive {macro.primitive!r} is not known", hint
        return
    parameters = {one.name: one for one in invocation.semantic_params}
    for name, parameter in parameters.items():
        if parameter.required and name not in macro.arguments:
            yield f"{macro.primitive} needs the parameter {name!r}", parameter.description
    for name, value in macro.arguments.items():
        if name not in parameters:
            hint = did_you_mean(name, parameters, what="Parameters")
            yield f"{macro.primitive} has no parameter {name!r}", hint
            continue
        place = (macro.primitive, name)
        wanted = parameters[name].value_type or _TYPES.get(place, "")
        if place == ("skill_activation", "mode"):
            place = (macro.primitive, mode_of(str(macro.arguments.get("skill"))))
        if wanted == "array" and isinstance(value, str):
            yield f"{macro.primitive}: {name!r} takes a list", f"Write {name}=[...]."
        elif wanted == "string" and not isinstance(value, str):
            yield f"{macro.primitive}: {name!r} takes a text, not a list", ""
        elif place in choices and value not in choices[place].names:
            what, names = choices[place]
            hint = did_you_mean(str(value), list(names), what=what) if names else f"{what}: none."
            yield f"{macro.primitive}: {name!r} cannot be {value!r}", hint


# -- parsing --


class _Unreadable(Exception):
    def __init__(self, offset: int, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.offset, self.message, self.hint = offset, message, hint


class _Parser:
    """A parser that parses one macro after the other; `_at` is the current position."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def macros(self) -> Iterator[Macro]:
        while start := _START.search(self._text, self._at):
            self._at = start.end()
            if start["apart"]:
                message = "a macro's name stands right behind {{, without a blank"
                raise _Unreadable(start.start(), message, "Or it would be text.")
            arguments: dict[str, Argument] = {}
            behind: list[tuple[str, re.Match[str]]] = []
            while True:
                before = self._at
                self._match(_SPACE)
                if self._at == len(self._text):
                    message = f"the macro {start[0]} is not closed"
                    raise _Unreadable(start.start(), message, "Close it with }}.")
                if self._skip("}}"):
                    break
                if self._at == before:
                    raise self._fail_at("a blank or }}")
                key = self._match(_KEY)
                if key is None:
                    raise self._fail_at("key=value or }}")
                if key[1] in arguments:
                    raise _Unreadable(key.start(), f"the parameter {key[1]!r} is given twice")
                heredoc = self._match(_HEREDOC)
                if heredoc is None and self._skip("["):
                    arguments[key[1]] = tuple(self._read_entries("]", self._read_item))
                elif heredoc is None and self._text.startswith(">>", self._at):
                    raise _Unreadable(self._at, "a heredoc needs a name", "Write >>NAME.")
                elif heredoc is None:
                    arguments[key[1]] = self._read_word(_BARE, "a value")
                elif _LINE_END.match(self._text, self._at):
                    arguments[key[1]] = self._read_heredoc(heredoc)
                else:
                    arguments[key[1]] = ""  # the heredoc's text follows the macro
                    behind.append((key[1], heredoc))
            for name, heredoc in behind:
                arguments[name] = self._read_heredoc(heredoc)
            yield Macro(start[1], arguments, start.start(), self._at)

    def _read_heredoc(self, announced: re.Match[str]) -> str:
        if self._match(_LINE_END) is None:
            raise self._fail_at(f"the end of the line, because the text of {announced[0]} follows")
        end = re.compile(rf"^[ \t]*<<{announced[1]}[ \t]*(?=\r?$)", re.MULTILINE)
        found = end.search(self._text, self._at)
        if found is None:
            hint = f"Write <<{announced[1]} alone on a line behind its text."
            raise _Unreadable(announced.start(), f"the heredoc {announced[0]} is not closed", hint)
        text = self._text[self._at : found.start()]
        self._at = found.end()
        return text.removesuffix("\n").removesuffix("\r")

    def _read_word(self, bare: re.Pattern[str], expected: str) -> str:
        start = self._at
        if not self._text.startswith('"', start):
            word = self._match(bare)
            if word is None:
                raise self._fail_at(expected)
            return word[0]
        quoted = self._match(_QUOTED)
        if quoted is None:
            hint = "Several lines are written as a heredoc."
            raise _Unreadable(start, "the quote is not closed on its line", hint)

        def unescape(escape: re.Match[str]) -> str:
            if escape[1] not in _ESCAPES:
                message = f"the escape {escape[0]} is not known"
                raise _Unreadable(start + 1 + escape.start(), message, 'Known are \\" \\\\ \\n and \\t.')
            return _ESCAPES[escape[1]]

        return _ESCAPE.sub(unescape, quoted[1])

    def _read_item(self) -> Item:
        if more := self._match(_MORE_ITEMS):
            return more[0]
        if not self._skip("{"):
            return self._read_word(_BARE_ITEM, "an entry of the list")
        pairs: dict[str, str] = {}

        def read_pair() -> None:
            start, key = self._at, self._read_word(_BARE_ITEM, "a key")
            self._match(_SPACE)
            if not self._skip(":"):
                raise self._fail_at(f": behind the key {key!r}")
            self._match(_SPACE)
            if key in pairs:
                raise _Unreadable(start, f"{key!r} is given twice in one entry")
            pairs[key] = self._read_word(_BARE_ITEM, "a value")

        list(self._read_entries("}", read_pair))
        return pairs

    def _read_entries(self, end: str, read: Callable[[], T]) -> Iterator[T]:
        self._match(_SPACE)
        while not self._skip(end):
            yield read()
            self._match(_SPACE)
            if self._skip(","):
                self._match(_SPACE)
                if self._text.startswith(end, self._at):
                    raise self._fail_at("another entry behind the comma")
            elif not self._text.startswith(end, self._at):
                raise self._fail_at(f", or {end}")

    def _skip(self, text: str) -> bool:
        is_there = self._text.startswith(text, self._at)
        self._at += len(text) if is_there else 0
        return is_there

    def _match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        match = pattern.match(self._text, self._at)
        if match:
            self._at = match.end()
        return match

    def _fail_at(self, expected: str) -> _Unreadable:
        here = self._text[self._at : self._at + 20].split("\n")[0]
        found = repr(here) if self._at < len(self._text) else "the end of the text"
        return _Unreadable(self._at, f"expected {expected}, found {found}")


# -- text for a host without mechanisms of its own --


def prose(tags: Mapping[str, Tag]) -> Render:
    """Return the texts for a host without mechanisms of its own; without these texts, macros would be skipped silently.
    Progress reports are meant for a display, and access records for a hook, so the texts for them are empty."""

    def activate(arguments: Arguments) -> str:
        skill, mode = str(arguments["skill"]), str(arguments.get("mode", ""))
        tag = next((one for one in tags.values() if one.skill == skill), None)
        if tag is None or (mode and not {mode, ANY_VARIANT}.intersection(tag.variants)):
            return f"Go on with the skill `{skill}`{f' in the mode {mode}' if mode else ''}."
        trigger = f"{tag.trigger.removesuffix(']')}:{mode}]" if mode else tag.trigger
        return f"Go on with the skill `{skill}`: write `{trigger}` on a line of its own."

    def spawn(arguments: Arguments) -> str:
        details = [f"called `{arguments['name']}`"] if "name" in arguments else []
        if "resume_tier_hint" in arguments:
            details.append(f"resume tier {arguments['resume_tier_hint']}")
        about = f" ({', '.join(details)})" if details else ""
        return (
            f"Hand this to an agent in the role `{arguments['target_role']}`{about}. Where agents cannot be started,"
            " tell the user that this step was not delegated. Its prompt:\n\n"
            + fence(str(arguments["prompt"]))
        )

    def ask(arguments: Arguments) -> str:
        options = arguments["options"]
        lines: list[str] = []
        for option in [options] if isinstance(options, str) else options:
            if not isinstance(option, str):
                words = [option[key] for key in ("label", "description") if option.get(key)]
                option = ": ".join(words) or ", ".join(option.values())
            lines.append(f"\n{len(lines) + 1}. {option}")
        text = f"Ask the user this, and end your turn:\n\n{arguments['question']}\n{''.join(lines)}"
        return text.rstrip("\n")

    return {
        "skill_activation": activate,
        "subagent_spawn": spawn,
        "task_register": lambda _: "",
        "user_question": ask,
        "memory_read_observation": lambda _: "",
    }


def fence(text: str) -> str:
    """Return a text as a fenced block. The fence is longer than any fence in the text."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    ticks = "`" * max(3, longest + 1)
    return f"{ticks}text\n{text}\n{ticks}"
