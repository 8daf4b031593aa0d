"""`rolecall lead`: talk with the Lead in a terminal, or send it one message through a pipe. A conversation is a
thread."""

from __future__ import annotations

import os
import re
import signal
import sys
from argparse import Namespace
from collections.abc import Callable
from typing import TYPE_CHECKING

from rolecall.api import Rolecall, Thread
from rolecall.cli import CommandResult, argument, either, flag, verb
from rolecall.cli.arguments import AGENT, LIMIT, describe_person, in_this_store
from rolecall.cli.lead_view import Board, LeadView, fold, fold_lines, messages, show_history
from rolecall.cli.output import STORE, paint, read_input, say, tell
from rolecall.cli.parser import report
from rolecall.cli.thread_outcome import CODES, INTERRUPTED
from rolecall.cli.thread_play import View, play, take_steps
from rolecall.errors import NotFound, RolecallError, UsageError, explain_missing
from rolecall.store.lazy import Module
from rolecall.threads.state import ENDED, Status
from rolecall.workflow.reply import Shape

if TYPE_CHECKING:
    from rolecall.cli import lead_prompt
else:
    lead_prompt = Module("rolecall.cli.lead_prompt")

COMMANDS = {
    "/board": "show what runs, what waits for you, and the tasks",
    "/answer": "answer a thread that waits for you: /answer [THREAD] [WORDS]",
    "/history": "show this conversation from its beginning",
    "/new": "begin another conversation",
    "/close": "end this conversation for good",
    "/help": "explain keys, tags and commands",
    "/quit": "leave; the conversation can be continued (Ctrl-D)",
}
_SHORTEST_ID = 6
"""How many characters of a thread's id `/answer` requires, so that a shorter word counts as part of the answer. Lists
show ids of this length."""
_KEYS = """\
Enter sends, Alt-Enter or Ctrl-J begins a new line, Tab completes, ↑ and Ctrl-R find what you wrote before.
Ctrl-C stops the Lead's turn; an empty line then lets it continue. Ctrl-D leaves."""


@verb(
    "lead",
    "talk with the Lead: your agent, which plans, decides with you, starts work and reports",
    "rolecall lead\n"
    "rolecall lead '[plan] Move the upload to a queue' --agent claude\n"
    "rolecall lead --continue\n"
    "git diff | rolecall lead 'Is this change complete?'",
    argument(
        "prompt", "PROMPT", "the first words; standard input follows them unless it is a terminal", nargs="?"
    ),
    either(
        flag("--continue", "continue the latest conversation of this folder", dest="goes_on"),
        argument("--thread", "THREAD", "take up this conversation"),
    ),
    LIMIT,
    AGENT,
    STORE,
)
def lead(options: Namespace) -> CommandResult | int:
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    with Rolecall(options.store) as rolecall:
        thread = _find_conversation(options, rolecall)
        if is_terminal:
            return LeadConversation(options, rolecall, thread).hold()
        piped = "" if sys.stdin.isatty() else read_input("-").strip()
        text = "\n\n".join(filter(None, (options.prompt, piped)))
        if text:
            thread = _speak(options, rolecall, thread, text)
        if thread is None:
            raise UsageError("nothing was said", hint="Write it after `rolecall lead`, or pipe it in.")
        if thread.notice:
            tell(f"⚠ {thread.notice}")
        if thread.state.status == Status.SUSPENDED and not text:
            raise UsageError("the Lead waits for your message", hint="Write it after `rolecall lead`.")
        number = _take_turn(options, thread, View())
        problem = _explain(thread)
        replies = [words for is_person, words in messages(thread) if not is_person]
        answer = replies[-1].strip() if replies and not problem and not number else ""
        if problem:
            tell(f"✗ {problem}")
        thread.leave()
        onward = f"continue: {in_this_store(options, f'rolecall lead --thread {thread.id}')}"
        code = INTERRUPTED if number else CODES.get(thread.status, 5) if problem else 0
        reply = {"thread": thread.id, "answer": answer, "reason": problem}
        return CommandResult(reply, answer, code, note=onward)


def _find_conversation(options: Namespace, rolecall: Rolecall) -> Thread | None:
    if options.thread:
        thread = rolecall.thread(options.thread)
        if thread.state.name != "lead":
            raise UsageError(
                f"thread {thread.id} is not a conversation with the Lead but one of {thread.state.name}",
                hint=f"Read it: `rolecall thread read {thread.id}`.",
            )
        return thread
    if not options.goes_on:
        return None
    here = os.path.realpath(rolecall.folder)
    for thread in rolecall.threads(workflow="lead", status=sorted({*Status} - {*ENDED, Status.DAMAGED})):
        if os.path.realpath(thread.state.cwd or "") == here:
            return thread
    raise NotFound(
        "no conversation with the Lead was begun in this folder", hint="Begin one: `rolecall lead`."
    )


def _speak(options: Namespace, rolecall: Rolecall, thread: Thread | None, text: str) -> Thread:
    if thread is None:
        return rolecall.talk(text, agent=options.agent, limits=dict(options.limit))
    if options.limit:
        thread.resume(limits=dict(options.limit), is_run_here=True)
    if (pending := thread.summary().get("pending")) and pending["answered"]:
        _take_turn(options, thread, View(), steps=1)  # commits an answer that has arrived
    return thread.say(text, is_run_here=True)


def _take_turn(options: Namespace, thread: Thread, view: View, *, steps: int | None = None) -> int:
    """Let the Lead answer. Return the number of the signal that stopped the Lead, or 0."""
    if thread.state.status in (*ENDED, Status.SUSPENDED):
        return 0
    _, stopped = take_steps(options, thread, view, steps=steps, is_run=False)
    return stopped.number


def _explain(thread: Thread) -> str:
    """Return why nobody answers, or an empty text if it is the person's turn or the thread is completed."""
    return "" if thread.role == "user" or thread.status == "completed" else thread.reason


class LeadConversation:
    """A conversation in which a person and the Lead take turns until the person leaves."""

    def __init__(self, options: Namespace, rolecall: Rolecall, thread: Thread | None) -> None:
        without = "In a pipe it works without: echo 'What is left?' | rolecall lead"
        with explain_missing("lead", "a conversation in the terminal", advice=without):
            make_prompt = lead_prompt.make_prompt
        self._options, self._rolecall, self._thread = options, rolecall, thread
        self._board = Board(rolecall, thread)
        self._read: Callable[[], str] = make_prompt(
            {**rolecall.tags(), **COMMANDS}, self._board.lines, self._board.take_news
        )
        self._is_stopped = False

    def hold(self) -> int:
        if self._thread is not None:
            show_history(self._thread)
            self._explain_stop(self._thread)
        elif not self._options.prompt:
            how = "You talk with the Lead of this project. /help explains keys, tags and commands."
            say(paint(how, "dim"))
            try:  # report a missing agent before the person writes; /board and /answer work without an agent
                lead_book = self._rolecall.load_workflow("lead").playbook
                for _, error in self._rolecall.missing_agents(lead_book, self._options.agent):
                    report(error)
            except RolecallError as error:
                report(error)
        text = self._options.prompt or ""
        while True:
            try:
                said = text or self._read().strip()
                text = ""
            except KeyboardInterrupt:  # Ctrl-C clears the line
                continue
            except EOFError:
                return self._leave()
            if said in ("/quit", "/exit"):
                return self._leave()
            if said in COMMANDS or said.startswith("/answer "):
                try:
                    self._command(*said.split(None, 1))
                except RolecallError as error:
                    report(error)
            elif re.fullmatch("/[^ /]*", said) and said not in self._rolecall.tags():
                say(f"unknown command {said}; /help lists them")
            elif (said or self._is_stopped) and not self._turn(said):
                return self._leave()

    def _turn(self, said: str) -> bool:
        """Send a message, or let a stopped turn continue. Return whether the conversation continues."""
        number = 0
        try:
            if said:
                self._thread = _speak(self._options, self._rolecall, self._thread, said)
                if self._thread.notice:
                    say(fold_lines(f"⚠ {self._thread.notice}"))
            elif self._thread is not None and self._thread.state.status == Status.SUSPENDED:
                self._thread.resume(is_run_here=True)
            if self._thread is not None:
                self._board.thread = self._thread
                number = _take_turn(self._options, self._thread, LeadView(self._thread, self._board))
        except RolecallError as error:
            report(error)
        if self._thread is not None:
            self._explain_stop(self._thread)
        return number in (0, signal.SIGINT)

    def _explain_stop(self, thread: Thread) -> None:
        """Say why the Lead has not finished its turn, and how the turn can be finished."""
        self._is_stopped = thread.role == "lead"
        if thread.status == "completed":
            say(paint(fold("This conversation has ended; your next message begins a new one."), "dim"))
        elif self._is_stopped:
            stopped = "The Lead's last turn was stopped."
            if thread.status == Status.RUNNING:
                stopped = "Another process runs this conversation."
            why = _explain(thread) or stopped
            how = fold("Press Enter to let it try again, or write something else.")
            say(f"{fold_lines(f'⚠ {why}')}\n{paint(how, 'dim')}")
        say("")

    def _answer(self, words: str) -> None:
        """Answer a thread that waits for a person, and run the thread. If no answer is given, show what the thread
        asks."""
        waiting = {str(one["thread"]): one for one in self._board.list_waiting()}
        first = words.partition(" ")[0].upper()
        is_id = len(first) >= _SHORTEST_ID
        named = next((one for one in waiting if is_id and (one.startswith(first) or one.endswith(first))), "")
        ident = named or next(iter(waiting), "")
        words = words.partition(" ")[2].strip() if named else words
        if not ident:
            say("nothing waits for you")
        elif not words or (len(waiting) > 1 and not named):
            if words and not named:
                say("several threads wait for you: say which by its id\n")
            for one in [ident] if named else waiting:
                asked = self._rolecall.thread(one).asking
                question = asked.question()
                role = question.role if question.due else None
                prompts = [question.due.prompt if question.due else "", role.prompt if role else ""]
                about = [text.strip() for text in (asked.reason, *prompts) if text.strip()]
                statuses = Shape(role.schema).statuses if role else ()
                how = f"{' or '.join(statuses)}: WORDS" if statuses else "WORDS"
                say("\n".join([f"{waiting[one]['name']} · {waiting[one]['title']}", *about]))
                say(paint(f"/answer {one if len(waiting) > 1 else ''} {how}".replace("  ", " "), "dim"))
        else:
            thread = self._rolecall.thread(ident).say(words, by=describe_person(), is_run_here=True)
            play(Namespace(**{**vars(self._options), "agent": None}), thread, steps=None, is_run=True)
        say("")

    def _command(self, command: str, words: str = "") -> None:
        thread = self._thread
        if command == "/help":
            known = {**self._rolecall.tags(), **COMMANDS}
            lines = [*_KEYS.split("\n"), "", *(f"  {word:10} {about}" for word, about in known.items()), ""]
            say("\n".join(fold(line, 13 if line.startswith("  ") else 0) for line in lines))
        elif command == "/board":
            say(fold_lines("\n".join([*self._board.list_all(), ""])))
        elif command == "/answer":
            self._answer(words)
        elif command == "/history" and thread is not None:
            show_history(thread, is_whole=True)
            say("")
        elif command == "/new" or (command == "/close" and thread is not None):
            if command == "/close" and thread is not None and not thread.has_ended:
                if thread.role == "user":
                    thread.answer({"closed": True})
                else:
                    thread.kill("closed by its user")
                say("the conversation has ended")
            if thread is not None:
                thread.leave()
            self._thread = self._board.thread = None
            self._is_stopped = False

    def _leave(self) -> int:
        if self._thread is not None:
            if unfinished := self._thread.leave():
                tell(paint(unfinished, "dim"))
            if not self._thread.has_ended:
                command = in_this_store(self._options, f"rolecall lead --thread {self._thread.id}")
                tell(f"continue: {command}")
        return 0
