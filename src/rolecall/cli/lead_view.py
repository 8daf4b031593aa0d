"""Show a conversation with the Lead: the Lead's answer as it arrives, what the Lead does, and what else is running."""

from __future__ import annotations

import os
import textwrap
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from rolecall.api import Rolecall, Thread, own_words
from rolecall.cli.group_view import Amounts, duration, gist, work_folders
from rolecall.cli.hints import command as word_command
from rolecall.cli.output import LastLine, columns_of_terminal, paint, plural, say, short
from rolecall.cli.thread_play import View
from rolecall.errors import RolecallError
from rolecall.settings import repository
from rolecall.store.canonical import JsonObject
from rolecall.threads.report import local_time, money
from rolecall.threads.setup import HUMAN

if TYPE_CHECKING:
    from rolecall.nexus.reply import ProjectTask

_WIDEST = 100
"""The maximum line width, because longer lines are hard to read."""
_AT_WORK = ("running", "queued", "waiting")
_MOST_THREADS = 4
_MOST_LOOKED_AT = 300
"""How many of the store's newest threads the board examines."""
_STALE = 1.0
"""Seconds after which the board reads the store again."""
_SHOWN_AGAIN = 6
"""How many messages are shown when a person continues a conversation."""


class Markdown:
    """A formatter that folds Markdown to the width of the terminal, line by line as the lines arrive."""

    def __init__(self) -> None:
        self._fence = ""

    def fold(self, line: str) -> str:
        """Return a line in the form in which it is printed: headings are bold, and code is unchanged."""
        stripped = line.strip()
        if stripped.startswith(("```", "~~~")):
            is_end = self._fence and stripped.startswith(self._fence)
            self._fence = "" if is_end else self._fence or stripped[:3]
            return paint(line, "dim")
        if self._fence or stripped.startswith("|"):
            return line
        folded = fold(line)
        return paint(folded, "bold") if stripped.startswith("#") else folded


def fold(line: str, hang: int = 0) -> str:
    """Fold a line between words. Continuation lines are indented by `hang` columns or, in a list item, like the item's
    text."""
    text = line.lstrip()
    mark = text.partition(" ")[0] if text[:1] in "-*>+" or text.partition(".")[0].isdecimal() else ""
    indent = " " * (hang or len(line) - len(text) + (len(mark) + 1 if mark else 0))
    width = max(20, min(columns_of_terminal() - 1, _WIDEST))
    folded = textwrap.wrap(
        line, width, subsequent_indent=indent[: width // 2], break_long_words=False, break_on_hyphens=False
    )
    return "\n".join(folded) if text else ""


def fold_lines(text: str) -> str:
    """Fold each line of a text. Continuation lines are indented by two columns more than the line itself."""
    return "\n".join(fold(line, len(line) - len(line.lstrip()) + 2) for line in text.split("\n"))


class Board:
    """The activity in a project: running threads, the tasks of the cycle, what waits for a person, and the costs."""

    def __init__(self, rolecall: Rolecall, thread: Thread | None = None) -> None:
        self._rolecall = rolecall
        self.thread = thread
        """The thread of this conversation, or None if it has not begun."""
        folder = os.path.realpath(rolecall.folder)
        self._place = repository.root_around(folder) or folder
        self._known: list[str] = []
        self._read_at = 0.0
        self._at_work: set[str] = set()
        self._news: list[str] = []

    def lines(self) -> list[str]:
        """Return a line for each thread at work, and one line that summarizes the rest. The store is read at most once
        a second."""
        if time.monotonic() - self._read_at > _STALE:
            try:
                at_work, waiting = self._list_threads()
                tasks = self._list_tasks()
                done = sum(task["status"] == "completed" for task in tasks)
                more = len(at_work) - _MOST_THREADS
                rest = [f"{more} more at work"] if more > 0 else []
                rest += [f"{plural(len(waiting), 'thread')} waiting for you: /answer"] if waiting else []
                rest += [f"tasks {done} of {len(tasks)} done"] if tasks else []
                if self.thread is not None and (cost := self.thread.totals().get("cost")):
                    rest.append(f"this conversation {money(cost)}")
                self._known = [*at_work[:_MOST_THREADS], *fold(" · ".join(rest)).splitlines()]
            except RolecallError as error:  # a busy or damaged store must not end the conversation
                self._known = [f"the board cannot be read: {error.message}"]
            self._read_at = time.monotonic()
        return self._known

    def take_news(self) -> list[str]:
        """Return a line for each thread that has ended or started to wait for a person since the last call."""
        news, self._news = self._news, []
        return news

    def list_all(self) -> list[str]:
        """Return what is at work, what waits for a person and how to answer it, and the tasks of the cycle."""
        at_work, waiting = self._list_threads()
        signs = {"completed": "✓", "in_progress": "●"}
        tasks = [f"{signs.get(one['status'], '○')} {one['id']} {one['title']}" for one in self._list_tasks()]
        waits = []
        for one in waiting:
            onward, how = one["continue"], one["reason"]
            if onward:
                is_answered_here = onward.code in ("answer_thread", "resume_thread")
                how = f"/answer {one['thread']}" if is_answered_here else word_command(onward)
            waits.append(f"{one['name']} · {short(own_words(one['title'] or ''), 40)}: {how}")
        parts = {"at work": at_work, "waiting for you": waits, "tasks": tasks}
        shown: list[str] = []
        for name, lines in parts.items():
            shown += [name, *(f"  {line}" for line in lines)] if lines else []
        return shown or ["nothing runs, and nothing waits for you"]

    def list_waiting(self) -> list[JsonObject]:
        """Return what `Thread.entry` returns for each thread that waits for a person, newest first."""
        return self._list_threads()[1]

    def _list_threads(self) -> tuple[list[str], list[JsonObject]]:
        """Return a line for each thread at work in this project, and the threads that wait for a person. Threads that
        were at work at the last call, but no longer are, become news."""
        left = iter(range(_MOST_LOOKED_AT))
        statuses = (*_AT_WORK, "suspended", "crashed")
        at_work, waiting, ids = list[str](), list[JsonObject](), set[str]()
        for entry in self._rolecall.entries(status=statuses, look=lambda _: next(left, None) is not None):
            thread = self._rolecall.thread(entry["thread"])
            folder = os.path.realpath(thread.state.cwd or self._place)
            is_own = self.thread is not None and thread.id == self.thread.id
            if is_own or os.path.commonpath([self._place, folder]) != self._place:
                continue
            if entry["status"] in _AT_WORK:
                spent = duration(max(0.0, time.time() - entry["created"] / 1000))
                used = Amounts.of(thread.totals()).words()
                title = short(own_words(entry["title"] or ""), 40)
                parts = [entry["name"], entry["currentRole"] or entry["status"], spent, *used, title]
                at_work.append("● " + " · ".join(filter(None, parts)))
                ids.add(thread.id)
            elif entry["name"] != "lead" and (not thread.state.eval or thread.state.waits_for_person):
                waiting.append(entry)
        for ident in sorted(self._at_work - ids):
            thread = self._rolecall.thread(ident)
            sign = {"completed": "✓", "suspended": "⚠"}.get(thread.status, "✗")
            title = short(own_words(thread.state.title), 40)
            why = f": {short(thread.reason, 200)}" if thread.reason else ""
            how = " (/answer)" if thread.needs_person else ""
            self._news.append(f"{sign} {thread.state.name} {thread.status} · {title}{why}{how}")
        self._at_work = ids
        return at_work, waiting

    def _list_tasks(self) -> list[ProjectTask]:
        if not os.path.isdir(os.path.join(self._place, ".nexus")):
            return []
        with suppress(RolecallError):  # the Lead is told about files that cannot be read
            return self._rolecall.project().tasks().get("tasks", [])
        return []


class LeadView(View):
    """A view of one turn of the Lead. On a terminal, the text being written, the agent at work and the board are shown
    below the turn."""

    def __init__(self, thread: Thread, board: Board) -> None:
        self._board = board
        self._thread = thread
        self._folders = work_folders(thread)
        self._now = LastLine()
        self._markdown = Markdown()
        self._line = self._said = self._latest = self._agent = ""
        self._since = time.monotonic()
        self._usage: JsonObject = {}
        self._is_apart = True
        """Whether the next text begins a new paragraph."""
        self._failure = ""
        """The error of a failed attempt, which is shown only if the turn continues. If the turn ends, the thread says
        why it stopped."""

    def event(self, kind: str, body: JsonObject) -> None:
        if self._failure and kind in ("text", "tool_call", "step"):
            self._say(f"✗ {self._failure}")
            self._failure = ""
        if kind == "step_started":
            self._agent, self._since, self._usage = str(body["agent"]), time.monotonic(), {}
        elif kind == "text":
            self._speak(str(body["text"]))
        elif kind == "tool_call":
            self._end_paragraph()
            what = short(gist(kind, body, folders=self._folders), columns_of_terminal() - 4)
            self._say(paint(f"  {what}", "dim"))
        elif kind == "usage":
            self._usage = body
        elif kind == "step":
            self._end_paragraph()
            step = self._thread.rolecall.find_step(body["step"])
            if step.agent == HUMAN or step.role.startswith("$"):
                return
            answer = step.body if step.body.strip() else str(step.output.get("reason") or "")
            if "".join(answer.split()) not in "".join(self._said.split()):  # the agent does not stream
                self._speak(answer.strip() + "\n")
            ms = step.payload["completed_at"] - step.payload["started_at"]
            used = [step.agent, duration(ms / 1000), *Amounts.of(step.payload.get("usage", {})).words()]
            self._say(paint(fold(" · ".join(short(word, 30) for word in used)), "dim"))
            self._agent = self._said = ""
        elif kind == "attempt_failed":
            self._end_paragraph()
            self._failure = str(body["error"])
        elif kind == "limited":
            until = local_time(int(body["until"]))
            self._say(f"◷ {body['reason']}\n  waits until {until}; Ctrl-C stops waiting")
        elif kind == "remark":
            self._say(f"⚠ {body['text']}")

    def _speak(self, text: str) -> None:
        if self._is_apart and self._said:
            self._say("")
        self._is_apart = False
        self._said += text
        *lines, self._line = (self._line + text).split("\n")
        for line in lines:
            self._say(self._markdown.fold(line))

    def _end_paragraph(self) -> None:
        if self._line:
            line, self._line = self._line, ""
            self._say(self._markdown.fold(line))
        self._is_apart = True

    def tick(self) -> None:
        height = self._now.height
        if not height or not self._agent:
            return
        used = [duration(time.monotonic() - self._since), *Amounts.of(self._usage).words()]
        status = " · ".join([f"… {short(self._agent, 24)}", *used, "Ctrl-C stops it"])
        board = self._board.lines()
        for line in self._board.take_news():
            self._say(line)
        below = [status, *(f"  {line}" for line in board)][:height]
        text = fold(self._line).split("\n")[-max(1, height - len(below)) :] if self._line else []
        self._now.draw(*text, *below)

    def close(self) -> None:
        self._now.clear()
        if self._line:
            self._end_paragraph()

    def _say(self, line: str) -> None:
        self._now.clear()
        say(line)


def messages(thread: Thread) -> Iterator[tuple[bool, str]]:
    """For each message of a conversation, oldest first, yield whether a person wrote the message, and its text."""
    yield True, own_words(thread.prompt)
    for step in thread.steps:
        if step.role == "$PERSON":
            yield True, own_words(str(step.output.get("answer") or ""))
        elif step.agent == HUMAN:
            yield True, own_words(step.body)
        elif not step.role.startswith("$"):
            yield False, step.body


def show_history(thread: Thread, *, is_whole: bool = False) -> None:
    """Print the last messages of a conversation or, with `is_whole`, all of them."""
    said = [(is_person, text.strip()) for is_person, text in messages(thread) if text.strip()]
    shown = said if is_whole else said[-_SHOWN_AGAIN:]
    if len(shown) < len(said):
        say(paint(f"{plural(len(said) - len(shown), 'earlier message')}: /history shows all", "dim"))
    for number, (is_person, text) in enumerate(shown):
        if number:
            say("")
        if is_person:
            lines = text.replace("\n", "\n  ").split("\n")
            lines[0] = f"› {lines[0]}"
            say(paint("\n".join(fold(line, 2) for line in lines), "cyan"))
        else:
            markdown = Markdown()
            say("\n".join(markdown.fold(line) for line in text.split("\n")))
