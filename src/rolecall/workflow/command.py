"""Commands in a workflow: those of roles that run a command, and the check after a merge. The code is pure.

A command is a list of words and is never passed to a shell. The word `{{steps.ROLE.FIELD}}` is replaced by that field
of the role's latest output: a text or a number becomes one word, and each text in a list becomes a word of its own.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from rolecall.errors import UsageError
from rolecall.store.canonical import JsonObject, Schema

RUN = "run:"
"""The prefix of an agent that runs a command."""
SCHEMA: Schema = {
    "type": "object",
    "properties": {
        "status": {"type": "string", "enum": ["passed", "failed"]},
        "command": {"type": "array", "items": {"type": "string"}},
        "exit_code": {"type": "integer"},
        "output": {"type": "string"},
    },
    "required": ["status", "command", "exit_code", "output"],
}
"""The schema of a role that runs a command."""
_INTERPRETER = re.compile(r"(.*/)?((a|ba|c|da|fi|k|tc|z)?sh|python[\d.]*|perl|ruby|node|php)")
_GIVES_CODE = re.compile(r"-[A-Za-z]*[ceEr]|--eval|--command")
_TAKES_VALUE = re.compile(r"[-+][A-Za-z]*[oOrIWX]|--[\w-]+")
"""An option of an interpreter that can be followed by a value, as in `bash -euo pipefail -c`."""
_TAG = re.compile(r"\{\{steps\.([^.{}\s]+)\.([^{}\s]+)\}\}")


class FieldTag(NamedTuple):
    """A word that is replaced by a field of an earlier step."""

    word: str
    role: str
    place: int
    """The position of the word in the command; 0 is the program."""
    reader: str = ""
    """The shell or interpreter that reads the field's text as a program, as in `sh -c {{…}}`; otherwise empty."""


def is_run(agent: str | None) -> bool:
    """Return whether an agent is a command whose exit code is the answer."""
    return agent is not None and agent.startswith(RUN)


def words_of(agent: str) -> list[str]:
    """Return the words of an agent's command, or an empty list if the command's quotes do not match."""
    try:
        return shlex.split(agent.removeprefix(RUN))
    except ValueError:
        return []


def tags(words: Sequence[str]) -> Iterator[FieldTag]:
    """Yield the words that are replaced by fields. Raise `UsageError` if a tag is only a part of its word."""
    for place, word in enumerate(words):
        if found := _TAG.fullmatch(word):
            yield FieldTag(word, found[1], place, _find_reader(words[:place]))
        elif "{{" in word:
            raise UsageError(
                f"{word!r} cannot be a word of a command",
                hint="A tag is a word of its own and names a role and a field: {{steps.ROLE.FIELD}}.",
            )


def _find_reader(before: Sequence[str]) -> str:
    """Return the interpreter that reads the next word as a program, as in `sh -c`, or an empty string if there is
    none."""
    if not before or not _GIVES_CODE.fullmatch(before[-1]):
        return ""
    words = list(before[:-1])
    while len(words) > 1 and (words[-1].startswith(("-", "+")) or _TAKES_VALUE.fullmatch(words[-2])):
        words.pop()
    return words[-1] if words and _INTERPRETER.fullmatch(words[-1]) else ""


def source_of(words: Sequence[str]) -> str:
    """Return the role in the command's last tag, which supplies the command or a part of it. Return an empty string if
    there are no tags."""
    return next((tag.role for tag in reversed([*tags(words)])), "")


def expand(words: Sequence[str], latest: Callable[[str], JsonObject | None]) -> tuple[str, ...]:
    """Return the command with its tags replaced by values. `latest` returns the latest output of a role. Raise
    `UsageError` if a field is missing, or is neither a text nor a list of texts."""
    known = {tag.word: tag for tag in tags(words)}
    found: list[str] = []
    for word in words:
        if word not in known:
            found.append(word)
            continue
        value: Any = latest(known[word].role)
        for name in word.strip("{}").split(".")[2:]:
            value = value.get(name) if isinstance(value, Mapping) else None
        parts = value if isinstance(value, list | tuple) else [value]
        if not all(isinstance(part, str | int) and "\0" not in str(part) for part in parts):
            raise UsageError(
                f"{word} is neither a text nor a list of texts, so it cannot be part of a command"
            )
        found += map(str, parts)
    if not found or not found[0]:
        raise UsageError(f"the command {' '.join(words)!r} has no program")
    return tuple(found)
