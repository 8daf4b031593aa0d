"""An editor's session: a thread, its questions, and the threads that follow it.

The session has the id of its first thread. Everything runs in a separate Python thread, because a store can only be
used in the Python thread that opened it, and because the code of a workflow must not delay the editor's messages.
"""

from __future__ import annotations

import asyncio
import json
import os
import pwd
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from threading import Event as Flag
from threading import Lock
from typing import Any, NamedTuple, TypeVar

from acp import RequestError
from acp.agent.connection import AgentSideConnection
from acp.helpers import start_tool_call
from acp.schema import (
    AcceptElicitationResponse,
    AllowedOutcome,
    ElicitationFormSessionMode,
    ElicitationSchema,
    PermissionOption,
    ToolCallUpdate,
    Usage,
)
from pydantic import ValidationError

from rolecall.acp import hints, updates
from rolecall.acp.updates import Progress, Prose, Update, make_field
from rolecall.api import Question, Rolecall, Run, Thread, own_words
from rolecall.errors import RolecallError, UsageError
from rolecall.store.canonical import JsonObject
from rolecall.threads.report import local_time
from rolecall.threads.setup import HUMAN
from rolecall.threads.thread import Step
from rolecall.workflow.model import STATUS_KEYS, SUSPEND
from rolecall.workflow.reply import Shape
from rolecall.workflow.route import Next, status_of

T = TypeVar("T")


class Defaults(NamedTuple):
    """The settings from the command line, which apply to every session."""

    workflow: str
    agent: str | None = None
    limits: Mapping[str, float] = {}
    store: str | None = None


class Cancelled(Exception):
    """Raised if the editor has cancelled the turn or closed the connection."""


@dataclass
class PromptTurn:
    """The outcome of one prompt: whether it was cancelled, and the tokens it used."""

    is_cancelled: bool = False
    used: dict[str, int] = field(default_factory=dict)

    def add(self, usage: Mapping[str, Any] | None) -> None:
        for key in ("input_tokens", "output_tokens", "cached_tokens"):
            self.used[key] = self.used.get(key, 0) + int((usage or {}).get(key) or 0)

    def usage(self) -> Usage | None:
        given, taken, cached = (self.used.get(f"{key}_tokens", 0) for key in ("input", "output", "cached"))
        if not given + taken:
            return None
        return Usage(
            input_tokens=given, output_tokens=taken, total_tokens=given + taken, cached_read_tokens=cached
        )


class Conversation:
    def __init__(
        self,
        ident: str,
        folder: str,
        defaults: Defaults,
        connection: AgentSideConnection,
        *,
        can_fill_forms: bool,
    ) -> None:
        """`can_fill_forms` says whether the editor can ask a person to fill in fields."""
        self.id = ident
        self.folder = folder
        self.workflow = defaults.workflow
        self.agent = defaults.agent
        self._defaults = defaults
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._can_fill_forms = can_fill_forms
        self._busy = Lock()
        self._cancelled = Flag()
        self._run: Run | None = None
        self._request: Future[Any] | None = None
        self._chosen = ""
        """The status that a person has chosen while the rest of the answer is still missing."""

    # -- what the editor asks for --

    def open(self) -> Rolecall:
        return Rolecall(self._defaults.store, folder=self.folder)

    def prompt(self, text: str) -> PromptTurn:
        """Start or continue the thread with a person's words, and follow it until it ends or waits for a person."""
        if not self._busy.acquire(blocking=False):
            raise UsageError("the session is still at work", hint="Cancel it, or wait until it has ended.")
        turn = PromptTurn()
        try:
            self._cancelled.clear()
            with self.open() as rolecall:
                self._answer(rolecall, text.strip(), turn)
        except (Cancelled, CancelledError, ConnectionError):
            turn.is_cancelled = True
        except RolecallError as error:
            self._say(f"⚠ {error.message}\n\n{hints.word(error.hint)}")
        finally:
            self._busy.release()
        turn.is_cancelled |= self._cancelled.is_set()
        return turn

    def cancel(self) -> None:
        """Stop the thread, and wait until it has stopped. The thread can be continued later."""
        self._cancelled.set()
        if (request := self._request) is not None:
            request.cancel()
        if (run := self._run) is not None:
            run.stop()

    def replay(self) -> None:
        """Show the history of all threads of the session."""
        with self.open() as rolecall:
            last = None
            for last in self._list_threads(rolecall):
                view = _View(self, last, PromptTurn())
                self._show(updates.hear(own_words(last.prompt)))
                for step in last.steps:
                    if step.role == "$PERSON":
                        self._show(updates.hear(own_words(str(step.output["answer"]))))
                    elif step.agent == HUMAN:
                        status = next((step.output[key] for key in STATUS_KEYS if key in step.output), "")
                        words = filter(None, (str(status), updates.word_answer(step)))
                        self._show(updates.hear(own_words("\n\n".join(words) or "…")))
                    elif not step.role.startswith("$"):
                        view.replay(step)
                view.end()
            if last is not None:
                self._show(updates.offer_commands(), updates.name_session(last.state.title))
                self._show(updates.count(last.totals(), last.summary()["limits"]))
                self._say_status(last)

    def _list_threads(self, rolecall: Rolecall) -> Iterator[Thread]:
        """Yield the threads of the session, oldest first."""
        thread = rolecall.thread_if_any(self.id)
        while thread is not None:
            yield thread
            thread = thread.next

    # -- a turn --

    def _answer(self, rolecall: Rolecall, text: str, turn: PromptTurn) -> None:
        thread = next(iter([*self._list_threads(rolecall)][::-1]), None)
        self._show(updates.offer_commands())
        command, _, argument = text.partition(" ")
        if not text:
            raise UsageError("the message has no text", hint="Write what to do; images are left out.")
        if thread is None:
            if command[:1] == "/" and command[1:] in updates.COMMANDS:
                raise UsageError(f"{command} has nothing to act on yet", hint="Write what to do.")
            limits = self._defaults.limits
            thread = rolecall.talk(
                text, workflow=self.workflow, agent=self.agent, limits=limits, ident=self.id
            )
            self._show(updates.name_session(thread.state.title))
        else:
            if (pending := thread.summary().get("pending")) and pending["answered"]:
                # Commit an answer that has arrived, so that it is not asked for again.
                self._follow(thread, turn, steps=1)
            if command == "/merge":
                merged = thread.merge_folder()
                return self._say(f"Merged {merged['branch']}.")
            if command == "/limit":
                thread.resume(limits=_read_limits(argument), is_run_here=True)
            elif command == "/continue":
                if thread.state.status == "suspended":
                    thread.resume(is_run_here=True)
            else:
                words = f"{self._chosen}: {text}" if self._chosen else text
                self._chosen = ""
                thread = thread.say(words, by=_describe_person(), is_run_here=True)
        if thread.notice:
            self._say(thread.notice)
        self._follow(thread, turn)
        while not self._cancelled.is_set() and thread.needs_person and self._ask(thread):
            self._follow(thread, turn)
        return None if self._cancelled.is_set() else self._say_status(thread)

    def _follow(self, thread: Thread, turn: PromptTurn, *, steps: int | None = None) -> None:
        view = _View(self, thread, turn)
        if thread.state.status == "suspended" or thread.has_ended:
            return view.end()
        if self._cancelled.is_set():
            raise Cancelled
        self._run = thread.run(steps=steps, agent=self.agent)
        try:
            if self._cancelled.is_set():
                self._run.stop()
            for event in self._run:
                view.take(event.kind, event.body)
            view.end()
        finally:
            self._run.stop()  # even if the editor is gone
            self._run = None

    # -- questions --

    def _ask(self, thread: Thread) -> bool:
        """Ask the person whose turn it is, if the editor has a form for the answer. Return whether the thread can
        continue."""
        asked = thread.asking
        question = asked.question()
        onward = asked.continuation
        if onward is None or onward.code != "answer_thread":
            return False
        if question.due is None or question.role is None:
            if not question.is_asked:
                return False
            field = {"type": "string", "title": "Your answer"}
            schema = {"properties": {"answer": field}, "required": ["answer"]}
            given = self._fill(f"{asked.role} asks: {asked.reason}", schema, known={})
            if words := str(given.get("answer", "")).strip():
                thread.say(words, by=_describe_person(), is_run_here=True)
            return bool(words)
        if question.takes_words:
            return False
        shape, output = Shape(question.role.schema), dict[str, Any]()
        form: JsonObject = shape.schema
        if shape.statuses and shape.status_field:
            status = self._choose(asked, question.due, question, shape.statuses)
            if not status:
                return False
            output[shape.status_field] = status
            form = next((one.schema for one in shape.variants if one.status == status), form)
        if shape.misfits(output):
            message = _word_question(question, question.due)
            more = self._fill(message, form, known=output)
            if not more:
                self._chosen = str(output.get(shape.status_field or "", ""))
                return False
            output |= more
        thread.say(json.dumps(output), by=_describe_person(), is_run_here=True)
        return True

    def _choose(self, asked: Thread, due: Next, question: Question, statuses: tuple[str, ...]) -> str:
        """Let the person choose a status. Return the status, or an empty text if the person makes no choice."""
        message = _word_question(question, due)
        if self._can_fill_forms:
            schema = {
                "properties": {"status": {"type": "string", "enum": list(statuses)}},
                "required": ["status"],
            }
            return str(self._fill(message, schema, known={}).get("status", ""))
        ident, title = f"{asked.id}-{asked.head}", f"{due.role} is your turn"
        content = updates.quote(message)
        self._show(start_tool_call(ident, title, kind="other", status="pending", content=content))
        options = [
            PermissionOption(option_id=status, name=status, kind="reject_once" if number else "allow_once")
            for number, status in enumerate(statuses)
        ]
        call = ToolCallUpdate(
            tool_call_id=ident, title=title, kind="other", status="pending", content=content
        )
        try:
            reply = self._wait(self._connection.request_permission(self.id, call, options))
        except Cancelled:
            self._show(updates.end_call(ident, is_failed=True))
            raise
        outcome = reply.outcome if reply else None
        chosen = outcome.option_id if isinstance(outcome, AllowedOutcome) else ""
        status = chosen if chosen in statuses else ""
        self._show(updates.end_call(ident, f"{message}\n\n→ {status or 'no answer'}", is_failed=not status))
        return status

    def _fill(self, message: str, form: JsonObject, known: JsonObject) -> JsonObject:
        """Let the person fill in the unknown fields of a form. The result is empty if the person declines, or if the
        editor or the protocol has no form for these fields."""
        if not self._can_fill_forms:
            return {}
        fields = {name: make_field(item) for name, (item, *_) in Shape(form).declared.items()}
        items = {name: item for name, item in fields.items() if item is not None and name not in known}
        needed = [name for name in form.get("required", ()) if name not in known]
        if not items.keys() >= set(needed):
            return {}
        try:
            wanted = ElicitationSchema.model_validate({"properties": items, "required": needed})
        except ValidationError:
            return {}
        mode = ElicitationFormSessionMode(session_id=self.id, requested_schema=wanted)
        reply = self._wait(self._connection.create_elicitation(message, mode))
        if not isinstance(reply, AcceptElicitationResponse):
            return {}
        given = reply.model_dump(mode="json", exclude_none=True).get("content") or {}
        return {name: value for name, value in given.items() if name in items}

    # -- speaking --

    def _say_status(self, thread: Thread) -> None:
        """Show what the thread waits for, or how the thread has ended."""
        state, asked = thread.state, thread.asking
        if thread.has_ended:
            lines = [f"{thread.status}: {state.reason}"] if state.reason else []
            lines += [
                f"The work is on the branch `{folder.branch}`. Send `/merge` to merge it into yours."
                for folder in state.folders.values()
                if folder.branch and not folder.is_removed and thread.changed_files()
            ]
            return self._say("\n\n".join(lines))
        if not thread.needs_person:
            return self._say(
                "" if thread.status == "running" else "Interrupted. Send `/continue`, or say what to do."
            )
        question, onward = asked.question(), asked.continuation
        if question.due and question.role and onward and onward.code == "answer_thread":
            words = _word_question(question, question.due)
            if question.takes_words:
                # In a conversation, the last answer of the agent is the question.
                return self._say("" if question.before and not question.due.prompt else words)
            shape = Shape(question.role.schema)
            how = f"Begin your answer with {' or '.join(f'`{one}:`' for one in shape.statuses)}"
            if self._chosen:
                how = f"Now write the text for `{self._chosen}`"
            return self._say(
                f"{words}\n\n{how if shape.statuses else 'Answer'}, or write its fields as JSON."
            )
        who = f"**{asked.role} asks:** " if question.is_asked else "⚠ "
        advice = "" if question.is_asked or onward is None else hints.word(onward)
        return self._say(f"{who}{asked.reason}\n\n{advice}")

    def _say(self, text: str) -> None:
        if text.strip():
            self._show(updates.say(f"\n\n{text.strip()}\n"))

    def _show(self, *shown: Update) -> None:
        for update in shown:
            future = asyncio.run_coroutine_threadsafe(
                self._connection.session_update(self.id, update), self._loop
            )
            future.result()

    def _wait(self, asking: Coroutine[Any, Any, T]) -> T | None:
        """Wait until a person answers or the turn is cancelled. Return None if the editor cannot ask."""
        self._request = future = asyncio.run_coroutine_threadsafe(asking, self._loop)
        try:
            if self._cancelled.is_set():
                future.cancel()
            return future.result()
        except (CancelledError, ConnectionError) as error:
            raise Cancelled from error
        except (RequestError, ValidationError):
            return None
        finally:
            self._request = None


class _View:
    """A view that shows the events of a thread as updates."""

    def __init__(self, conversation: Conversation, thread: Thread, turn: PromptTurn) -> None:
        self._show: Callable[..., None] = conversation._show
        self._thread = thread
        self._turn = turn
        self._folder = thread.state.cwd or conversation.folder
        self.progress = Progress(thread.rolecall.read_workflow(thread.workflow))
        if self.progress.has_team:
            for step in thread.steps:
                self.progress.finish(step)
        self._prose = Prose()
        self._has_shown_text = False
        self._calls: list[str] = []
        """The tool calls of the step, in order. The last call might still be running."""
        self._is_calling = False
        self._members: set[str] = set()
        self._group = self._done = 0

    def take(self, kind: str, body: JsonObject) -> None:
        """Show a live event."""
        if kind == "step_started":
            self._begin(str(body["role"]))
        elif kind == "text":
            self._end_call()
            self._speak(self._prose.feed(str(body["text"])))
        elif kind == "tool_call":
            self._speak(self._prose.flush())
            self._end_call()
            ident = f"{self._thread.head}-{os.urandom(4).hex()}"
            arguments = body["arguments"] if isinstance(body.get("arguments"), Mapping) else {}
            self._show(updates.start_call(ident, str(body["name"]), arguments, self._folder))
            self._calls.append(ident)
            self._is_calling = True
        elif kind == "permission" and not body["allowed"]:
            self._show(updates.think(f"\nNot allowed: {body['what']}. {body['reason']}\n"))
        elif kind == "step":
            self._finish(self._thread.rolecall.find_step(body["step"]))
        elif kind == "attempt_failed":
            self._end_call(is_failed=True)
            self._show(updates.think(f"\n{body['role']}: {body['error']}\n"))
        elif kind == "limited":
            self._show(updates.say(f"\n\n◷ {body['reason']}: waits until {local_time(int(body['until']))}\n"))
        elif kind == "remark":
            self._show(updates.think(f"\n⚠ {body['text']}\n"))
        elif kind == "group":
            self._begin(str(body["role"]))
            self._group, self._done = int(body["count"]), 0
        elif kind == "member":
            self._take_member(str(body["thread"]), body)

    def end(self) -> None:
        """Close the calls that an interrupted step has left open, and show which role is working or waiting for a
        person."""
        self._speak(self._prose.flush())
        self._end_call(is_failed=True)
        role, is_at_work = self._thread.role or "", self._thread.status == "running"
        self.progress.start(role if is_at_work or self.progress.is_person(role) else "")
        self.show_plan()

    def show_plan(self) -> None:
        if self.progress.has_team:
            self._show(self.progress.plan())

    def replay(self, step: Step) -> None:
        """Show a recorded step."""
        self._begin(step.role, is_live=False)
        self._show(*updates.replay_calls(step, self._folder))
        self._finish(step, is_live=False)

    def _begin(self, role: str, *, is_live: bool = True) -> None:
        self.progress.start(role)
        self._prose, self._has_shown_text, self._calls = Prose(), False, []
        if is_live:
            self.show_plan()

    def _speak(self, text: str) -> None:
        if not text or not (self._has_shown_text or text.strip()):
            return
        if not self._has_shown_text:
            text = text.lstrip("\n")
            if self.progress.has_team:
                text = updates.word_heading(self.progress.current) + text
        self._has_shown_text = True
        self._show(updates.say(text))

    def _end_call(self, *, is_failed: bool = False) -> None:
        if self._is_calling:
            self._show(updates.end_call(self._calls[-1], is_failed=is_failed))
            self._is_calling = False

    def _finish(self, step: Step, *, is_live: bool = True) -> None:
        self.progress.current = step.role
        self._speak(self._prose.flush())
        self._end_call()
        results = [call["result"] for turn in step.turns for call in turn["tool_calls"]]
        if len(results) == len(self._calls):
            ended = zip(self._calls, results, strict=True)
            self._show(*(updates.end_call(ident, result) for ident, result in ended if result.strip()))
        if changes := updates.show_changes(step, self._thread.file_versions(step)):
            self._show(changes)
        asks_live = is_live and status_of(step.output) == SUSPEND  # if so, the question is shown next
        answer = step.body.strip() if asks_live else updates.word_answer(step)
        if answer and not self._prose.has_shown(answer):
            self._speak(f"\n\n{answer}\n" if self._has_shown_text else f"{answer}\n")
        self._turn.add(step.payload.get("usage"))
        self.progress.finish(step)
        if is_live:
            self._show(updates.count(self._thread.totals(), self._thread.summary()["limits"]))

    def _take_member(self, ident: str, body: JsonObject) -> None:
        """Show a member of a group as one tool call, because several members cannot speak in one conversation at
        once."""
        kind, about = body["kind"], body["body"]
        if ident not in self._members:
            self._members.add(ident)
            title = str(about.get("title") or self._thread.rolecall.thread(ident).state.title)
            shown = updates.shorten_title(title)  # the title begins with the role and the number
            self._show(start_tool_call(ident, shown, kind="think", status="in_progress"))
        if kind == "over":
            self._members.discard(ident)
            self._done += 1
            self.progress.remark = f"{self._done} of {self._group}"
            last = next(iter(self._thread.rolecall.thread(ident).steps[::-1]), None)
            answer = updates.word_answer(last) if last else str(about.get("reason") or "")
            self._show(updates.end_call(ident, answer, is_failed=about["status"] != "done"))
            self.show_plan()


def _read_limits(text: str) -> dict[str, float]:
    try:
        limits = {name: float(value) for name, _, value in (word.partition("=") for word in text.split())}
    except ValueError:
        limits = {}
    if not limits:
        raise UsageError(f"{text!r} is not a limit", hint="Write it as `/limit steps=40`.")
    return limits


def _word_question(question: Question, due: Next) -> str:
    role = question.role
    about = (role.description, due.prompt, role.prompt) if role else (due.prompt,)
    return "\n\n".join([f"**{due.role}**", *(text.strip() for text in about if text.strip())])


def _describe_person() -> dict[str, str]:
    return {"person": pwd.getpwuid(os.getuid()).pw_name, "door": "acp"}
