"""Questions to a person at a terminal. The questions are printed on standard error, because standard output contains
only the result."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TypeVar

from rolecall.cli import hints
from rolecall.cli.output import printable, tell
from rolecall.errors import RolecallError, UsageError

T = TypeVar("T")


def can_ask() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()


def ask(question: str, check: Callable[[str], T], *, mark: str = ":") -> T:
    """Return the answer parsed by `check`. If `check` refuses the answer, explain why and ask again."""
    while True:
        sys.stderr.write(printable(f"{question}{mark} "))
        sys.stderr.flush()
        answer = _read_line().strip()
        try:
            return check(answer)
        except RolecallError as error:
            tell(f"  {error.message}" + (f"\n  {hints.word(error.hint)}" if error.hint else ""))


def ask_choice(
    question: str, choices: Sequence[str], *, is_required: bool = False, default: int | None = None
) -> int | None:
    """Return the index of the chosen item, which a person gives by its number or its first word. If the answer is empty
    and not required, return `default`."""
    tell("\n".join([question, *(f"{number:3}) {choice}" for number, choice in enumerate(choices, 1))]))

    def check(text: str) -> int | None:
        if not text and not is_required:
            return default
        if text.isdecimal() and 1 <= int(text) <= len(choices):
            return int(text) - 1
        if text in choices:
            return choices.index(text)
        if text and text in (names := [choice.partition("  ")[0] for choice in choices]):
            return names.index(text)
        raise UsageError(f"{text!r} is not one of them." if text else "An answer is needed.")

    skipped = "leave it out" if default is None else default + 1
    return ask(f"1 to {len(choices)}{'' if is_required else f' (Enter: {skipped})'}", check)


def confirm(question: str, otherwise: str, *, problem: str = "", default: bool = False) -> bool:
    """Ask a yes-or-no question; an empty answer selects the default. Without a terminal, raise an error whose message
    is `problem` (or the question, if no `problem` is given) and whose hint is `otherwise`."""
    if not can_ask():
        raise UsageError(problem or f"{question} Nobody can be asked without a terminal.", hint=otherwise)
    answers = {"": default, "y": True, "yes": True, "n": False, "no": False}

    def check(text: str) -> bool:
        if text.lower() not in answers:
            raise UsageError("Answer y or n.")
        return answers[text.lower()]

    return ask(question, check, mark=" [Y/n]" if default else " [y/N]")


def ask_text(question: str, *, is_required: bool) -> str:
    """Return the lines that are typed before the first empty line."""
    tell(f"{question} ({'' if is_required else 'optional; '}end it with an empty line):")
    while True:
        lines: list[str] = []
        while line := _read_line().rstrip("\n"):
            lines.append(line)
        if lines or not is_required:
            return "\n".join(lines)
        tell("  An answer is needed.")


def _read_line() -> str:
    line = sys.stdin.readline()
    if not line:
        tell("")
        raise end_of_input()
    return line


def end_of_input() -> UsageError:
    return UsageError("the input ended before everything was answered", hint="Nothing was written.")
