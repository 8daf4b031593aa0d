"""What the library says to people at a command line, said to who calls tools: the same advice by names of tools.

Advice that no tool can carry out is left out, because a model that is told of a command goes and looks for it.
Only texts of our own are reworded, never what a person or an agent has written.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

_COMMAND = re.compile(r"`(?:rolecall |(?=cas ))([^`]*)`|\brolecall ([a-z]+ ?[a-z-]*)")
_OPTION = re.compile(r"(?<![^\s(])(?:--[a-z]|-p )")
_THREAD = re.compile(r"\b[0-9A-Z]{26}\b")
_BETWEEN_SENTENCES = re.compile(r"(?<=[.!?])(?<!e\.g\.)\s+")
_MORE_CALLS = re.compile(r"^(- and \d+ more): `rolecall thread step-details \w+`$", re.MULTILINE)

_TOOLS = {
    "memory gc": "",
    "thread resume": "thread_answer",
    "thread run": "thread_step",
    "thread steps": "thread_read",
    "thread watch": "thread_show",
}
"""Commands whose tool has another name than theirs, or does not do what they do: the tool only looks at notes."""
_OF_THREADS = ("thread_answer", "thread_list", "thread_read", "thread_show", "thread_start", "thread_step")


def tool_of(command: str) -> str | None:
    """The tool that would do what a command does."""
    if " --limit " in command:
        return None
    noun, verb = [*command.removeprefix("rolecall ").split(), "", ""][:2]
    if noun in ("plan", "task", "history", "artifact"):
        return f"nx_{noun}_{verb}"
    return _TOOLS.get(f"{noun} {verb}", f"{noun}_{verb}")


def _named(text: str, tools: Collection[str]) -> str:
    """A text with tools in the place of commands, as far as `tools` has them."""

    def instead(found: re.Match[str]) -> str:
        command = found[1] or found[2] or ""
        tool, thread = tool_of(command), _THREAD.search(command)
        if tool not in tools:
            return found[0]
        return f"`{tool}` for {thread[0]}" if thread else f"`{tool}`"

    return _COMMAND.sub(instead, text)


def in_tools(hint: str, tools: Collection[str]) -> str:
    """A hint without the sentences that only a command line could follow."""
    sentences = (_named(sentence, tools) for sentence in _BETWEEN_SENTENCES.split(hint))
    return " ".join(one for one in sentences if not _COMMAND.search(one) and not _OPTION.search(one))


# -- notes --


def cut_off(warning: str) -> str:
    """A warning of notes. Who finishes a removal at the command line is `memory gc`, whose tool only looks."""
    told, command, _ = warning.partition("; `rolecall memory gc`")
    return f"{told}; that is put right when a note is next added, merged or deleted" if command else told


# -- threads --


def standing(view: Mapping[str, Any]) -> dict[str, Any]:
    """How a thread stands, with the tool that lets it go on in the place of the command."""
    command = view["continue"]
    if command is None:
        return dict(view)
    # Then the reason is the question itself.
    is_asking = command.startswith("rolecall thread answer ")
    reason = view["reason"] if is_asking or not view["reason"] else _reason(view["reason"])
    return {**view, "reason": reason, "continue": tool_of(command)}


def _reason(reason: str) -> str:
    """What happened, which always stays and may be what an agent has said, and then perhaps a hint."""
    told = _named(reason, _OF_THREADS)
    if not _COMMAND.search(told):
        return told
    first, *hints = _BETWEEN_SENTENCES.split(told)
    return " ".join([first, *(hint for hint in hints if not _COMMAND.search(hint))])


def failed_step(said: str) -> str:
    """What `thread step` wrote when no step could be taken: the error, its hint, and how to go on."""
    first, *rest = said.strip().removeprefix("rolecall: ").splitlines() or [""]
    kept = (line for line in rest if not line.startswith(("continue: ", "watch: ")))
    hints = (in_tools(line.strip(), _OF_THREADS) for line in kept)
    return "\n".join(filter(None, [first, *hints]))


def reading(read: Mapping[str, Any]) -> dict[str, Any]:
    """What was read of a thread; the way to its earlier steps is the tool itself."""
    command = f"`rolecall thread read {read['thread']} --before {read['before']}`"
    text = read["text"].replace(command, f"`thread_read` and `before` {read['before']}", 1)
    return {**read, "text": _MORE_CALLS.sub(r"\1", text)}
