"""Records an agent's messages and tool calls within size limits, and passes them on live.

A transcript keeps the complete answer, and turns with shortened arguments and results. However long the stream is, only
the first and last turns are kept, with a note of the number left out.
"""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from time import time_ns
from typing import Any

from rolecall.agents.protocol import Context, Emit, Ending, EventKind, Reply, ToolCall, Turn, Usage
from rolecall.store.canonical import JsonObject

LONGEST_ANSWER = 8 * 1024 * 1024
_LIVE_CHARACTERS = 256 * 1024
_LIVE_EVENTS = 10_000
_FIRST_TURNS = 100
_LAST_TURNS = 300
_CALLS_OF_A_TURN = 50
_LONGEST_TEXT = 20_000
_LONGEST_RESULT = 4_000
_LONGEST_ARGUMENT = 2_000
_LONGEST_NAME = 200
_MOST_ARGUMENTS = 50
_MOST_FILES = 1_000
_DEEPEST = 40


class LiveText:
    """A function object that passes text on as events. The total is limited, because every event is stored; the answer
    itself is kept in full."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._room = _LIVE_CHARACTERS

    def __call__(self, text: str) -> None:
        if self._room <= 0 or not text:
            return
        shown = text[: self._room]
        self._room -= len(shown)
        self._emit("text", {"text": shown, "more": True} if self._room <= 0 else {"text": shown})


@dataclass
class _Turn:
    """A turn whose messages and calls are still arriving."""

    parts: list[str] = field(default_factory=list)
    size: int = 0
    calls: dict[str, ToolCall] = field(default_factory=dict)
    is_answered: bool = False
    """Whether a tool has returned a result, so that the next call starts a new turn."""

    @property
    def text(self) -> str:
        self.parts = ["".join(self.parts)]
        return self.parts[0]

    def add(self, text: str) -> None:
        kept = text[: LONGEST_ANSWER - self.size]
        self.size += len(kept)
        self.parts.append(kept)

    def done(self) -> Turn:
        return Turn("assistant", shorten(self.text, _LONGEST_TEXT), tuple(self.calls.values()))


class Transcript:
    def __init__(self, context: Context) -> None:
        self._context = context
        self._live = LiveText(context.emit)
        self._emitted = 0
        self._first: list[_Turn] = []
        self._last: deque[_Turn] = deque()
        self._left_out = 0
        self._open: dict[str, _Turn] = {}
        """The turn of each tool call that has not returned yet."""
        self._files: dict[str, None] = {}
        self._latest_message = _Turn()
        self.session: str | None = None

    # -- recording --

    def in_session(self, session: str) -> None:
        """Set the agent's own session id and report it once, as soon as it is known."""
        if session and session != self.session:
            self.session = session
            self._context.emit("session", {"session": session})

    def says(self, text: str, *, is_continued: bool = False) -> None:
        """Add a message of the agent, or the next piece of the previous message."""
        if not text:
            return
        turn = self._turn(is_new=not is_continued)
        if turn is not self._latest_message:
            # Only the latest message can become the answer, so the previous message can be shortened.
            self._latest_message.parts = [shorten(self._latest_message.text, _LONGEST_TEXT)]
            self._latest_message = turn
        turn.add(text)
        self._live(text)

    def calls(self, ident: str, name: str, arguments: Any) -> None:
        if isinstance(arguments, Mapping):
            first = list(arguments.items())[:_MOST_ARGUMENTS]
            kept = {shorten(str(key), _LONGEST_NAME): _shorten_argument(value) for key, value in first}
        else:
            kept = {} if arguments in (None, "") else {"arguments": _shorten_argument(arguments)}
        call = ToolCall(shorten(name, _LONGEST_NAME), kept, started_at=time_ns() // 1_000_000)
        latest = self._turn(is_new=False)
        turn = self._turn(is_new=latest.is_answered or len(latest.calls) >= _CALLS_OF_A_TURN)
        turn.calls[ident], self._open[ident] = call, turn
        self._emit("tool_call", {"name": call.name, "arguments": call.arguments})

    def is_running(self, ident: str) -> bool:
        return ident in self._open

    def returns(self, ident: str, result: Any) -> ToolCall | None:
        """Add a tool's result; return its call, or None if no such call is running."""
        turn = self._open.pop(ident, None)
        if turn is None:
            return None
        text, now = shorten(text_of(result), _LONGEST_RESULT), time_ns() // 1_000_000
        call = replace(turn.calls[ident], result=text, ended_at=now)
        turn.calls[ident] = call
        self._turn(is_new=False).is_answered = True
        return call

    def touches(self, path: str) -> None:
        """Add a file that the agent wrote. A path inside the work folder is recorded relative to that folder."""
        if path and len(self._files) < _MOST_FILES:
            whole = os.path.normpath(os.path.join(self._context.workdir, path))
            inside = os.path.relpath(whole, self._context.workdir)
            self._files[whole if inside.startswith("..") else inside] = None

    def asks(self, what: str, *, is_allowed: bool, reason: str = "") -> None:
        what, reason = shorten(what, _LONGEST_NAME), shorten(reason, _LONGEST_ARGUMENT)
        self._emit("permission", {"what": what, "reason": reason, "allowed": is_allowed})

    def uses(self, usage: Usage) -> None:
        body = {key: getattr(usage, key) for key in ("input_tokens", "output_tokens", "cached_tokens")}
        self._emit("usage", body | ({"cost": usage.cost} if usage.cost is not None else {}))

    def _emit(self, kind: EventKind, body: JsonObject) -> None:
        """Pass on an event. The number of events is limited, because every event is stored."""
        self._emitted += 1
        if self._emitted <= _LIVE_EVENTS:
            more = {"more": True} if self._emitted == _LIVE_EVENTS else {}
            self._context.emit(kind, {**body, **more})

    # -- the record --

    @property
    def answer(self) -> str:
        """The text of the latest message."""
        return self._latest_message.text

    @property
    def turns(self) -> tuple[Turn, ...]:
        gap = [Turn("system", f"{self._left_out} turns are left out here")] if self._left_out else []
        return (*(turn.done() for turn in self._first), *gap, *(turn.done() for turn in self._last))

    @property
    def count(self) -> int:
        return len(self._first) + self._left_out + len(self._last)

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(sorted(self._files))

    def reply(self, text: str, ending: Ending, reason: str, **more: Any) -> Reply:
        """Return the reply of a run that ends here; a single message without tools needs no turns."""
        has_turns = self.count > 1 or any(turn.tool_calls for turn in self.turns)
        return Reply(
            text,
            session=self.session,
            turns=self.turns if has_turns else (),
            files=self.files,
            ending=ending,
            reason=reason,
            **more,
        )

    def _turn(self, *, is_new: bool) -> _Turn:
        latest = self._last[-1] if self._last else self._first[-1] if self._first else None
        if latest is not None and not (is_new and (latest.size or latest.calls)):
            return latest
        turn = _Turn()
        if len(self._first) < _FIRST_TURNS:
            self._first.append(turn)
            return turn
        self._last.append(turn)
        if len(self._last) > _LAST_TURNS:
            for ident in self._last.popleft().calls:
                self._open.pop(ident, None)
            self._left_out += 1
        return turn


def shorten(text: str, limit: int) -> str:
    """Shorten a long text to its beginning and end, with a note of the number of characters left out."""
    if len(text) <= limit:
        return text
    tail = limit // 4
    return f"{text[: limit - tail]}\n… {len(text) - limit} characters …\n{text[-tail:]}"


def text_of(value: Any, *, depth: int = 0) -> str:
    """Extract the text of a result. Agents send results as text, a list of blocks, or an object of their own."""
    if isinstance(value, str):
        return value
    if depth >= _DEEPEST:
        return "…"
    if isinstance(value, list):
        return "\n".join(filter(None, (text_of(item, depth=depth + 1) for item in value)))
    if isinstance(value, Mapping):
        for key in ("text", "content", "output", "result"):
            if key in value:
                return text_of(value[key], depth=depth + 1)
        return str(value) if _is_shallow(value) else "…"
    return "" if value is None else str(value)


def _shorten_argument(value: Any) -> Any:
    if isinstance(value, str):
        return shorten(value, _LONGEST_ARGUMENT)
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if not _is_shallow(value):
        return "…"
    text = json.dumps(value, ensure_ascii=False, default=str)
    return value if len(text) <= _LONGEST_ARGUMENT else shorten(text, _LONGEST_ARGUMENT)


def _is_shallow(value: Any, depth: int = 0) -> bool:
    """Return whether a value is nested no deeper than any sensible result."""
    if depth >= _DEEPEST:
        return False
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return all(_is_shallow(item, depth + 1) for item in inner)
