"""The prompt at which a person writes to the Lead, built with prompt_toolkit. Only `rolecall lead` on a terminal
imports this module."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping

from prompt_toolkit import PromptSession
from prompt_toolkit.application import run_in_terminal
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.formatted_text import FormattedText
from prompt_toolkit.history import FileHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.styles import Style

from rolecall.cli.output import printable, say
from rolecall.settings import config

_HISTORY = "lead-history"
_STYLE = Style.from_dict({"bottom-toolbar": "noreverse ansibrightblack", "mark": "bold ansicyan"})


class WordCompleter(Completer):
    """A completer for tags at the start of a line and for commands at the start of the text."""

    def __init__(self, known: Mapping[str, str]) -> None:
        self._known = known

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:  # noqa: ARG002
        line = document.current_line_before_cursor.lstrip()
        if line[:1] == "[" or (line[:1] == "/" and document.text_before_cursor.lstrip() == line):
            for word, about in self._known.items():
                if word.startswith(line):
                    yield Completion(word, -len(line), display_meta=about)


class MaskedHistory(FileHistory):
    def store_string(self, string: str) -> None:
        super().store_string(config.mask().text(string))


def make_prompt(
    known: Mapping[str, str], board: Callable[[], list[str]], news: Callable[[], list[str]]
) -> Callable[[], str]:
    """Return a function that reads one message. `known` maps words that can be completed to descriptions; `board`
    returns the lines to show below the prompt, and `news` the lines to print above it. The returned function raises
    KeyboardInterrupt for Ctrl-C, and EOFError for Ctrl-D on an empty line."""
    keys = KeyBindings()

    @keys.add("enter")
    def _send(event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    @keys.add("escape", "enter")
    @keys.add("c-j")
    def _break(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    def draw_board() -> str:
        lines = board()
        if arrived := news():
            run_in_terminal(lambda: say("\n".join(arrived)))
        return printable("\n".join(lines))

    path = os.path.join(config.home(), _HISTORY)
    os.makedirs(config.home(), exist_ok=True)
    # Only the person may read the history.
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    session: PromptSession[str] = PromptSession(
        FormattedText([("class:mark", "› ")]),
        multiline=True,
        prompt_continuation="  ",
        history=MaskedHistory(path),
        completer=WordCompleter(known),
        key_bindings=keys,
        style=_STYLE,
        bottom_toolbar=draw_board,
        refresh_interval=1.0,
        reserve_space_for_menu=4,
        enable_open_in_editor=True,
    )
    return session.prompt
