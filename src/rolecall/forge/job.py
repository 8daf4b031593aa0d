"""One job: read the event, fetch the thread, continue it until it ends or waits, update the comment, and save the
thread.

The thread is saved when the job has taken it over, from time to time while it runs, and at the end. So two jobs cannot
act on the same comment, and a lost job loses at most its current step and a minute of earlier steps.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from msgspec.structs import replace

from rolecall.api import Event as ThreadEvent
from rolecall.api import Rolecall, Thread
from rolecall.errors import Conflict, RolecallError, UsageError
from rolecall.files import git
from rolecall.forge import comment, event
from rolecall.forge.client import ChangeRequest, Forge, open_forge
from rolecall.forge.event import SavedThread
from rolecall.forge.place import JobPlace, Remote, open_place
from rolecall.settings import config
from rolecall.settings.forge import Job, withhold_tokens
from rolecall.settings.mask import Mask
from rolecall.threads.requests import Request as StartRequest

_TRIES = 3
_PAUSE = 60.0
"""Seconds between two saves while a thread runs."""
_LEASE = 90.0
"""Seconds for which a lost job can still appear to run the thread."""
_LONGEST_WAIT = 300.0
"""The maximum number of seconds that a job waits for the end of a provider's limit."""
_MOST_HANDLED = 500
_OUTPUTS = ("thread", "status", "branch", "request")

Tell = Callable[[str], object]
Watch = Callable[[Thread, ThreadEvent], object]


class Options(NamedTuple):
    workflow: str
    prompt: str = ""
    agent: str | None = None
    limits: Mapping[str, float] = {}
    allowed: tuple[str, ...] = ()
    """The people who may start and continue threads. If empty, everybody with write access may."""
    is_open: bool = False
    """Whether anybody may start a thread. Commands in comments are still restricted."""
    wants_request: bool = False
    """Whether to push changes as a branch and, when the thread is completed, open a pull or merge request."""
    setup: str = ""


class Done(NamedTuple):
    """The outcome of a job."""

    ignored: str = ""
    """Why the event was ignored, or empty if it was handled."""
    thread: str = ""
    status: str = ""
    reason: str = ""
    waits: bool = False
    subject: str = ""
    branch: str = ""
    request: str = ""


def run(job: Job, options: Options, *, checkout: str, tell: Tell, watch: Watch) -> Done:
    """Handle the event of a job."""
    happened = event.read(job)
    mask = config.mask()
    withhold_tokens()
    if happened.ignored:
        return Done(happened.ignored)
    forge, remote = open_forge(job), Remote(job, os.path.realpath(checkout))
    key = happened.subject.key if happened.subject else happened.key
    is_checked = False
    for number in range(1, _TRIES + 1):
        saved, note = remote.fetch(key), ""
        known = saved.record if saved else None
        try:
            decision = event.decide(happened, known, run=job.run, prompt=options.prompt)
        except UsageError as error:
            if happened.comment is None:
                raise
            decision = event.Ignore(error.explain())
            note = f"This comment could not be used: {error.explain()}"
        if not is_checked and (note or not isinstance(decision, event.Ignore)):
            if refusal := _refuse(happened, forge, options):
                return Done(refusal)
            is_checked = True
        if note and known and not known.has_ended:
            decision = event.Continue()  # without a command, this changes only the comment
        if isinstance(decision, event.Ignore):
            return Done(decision.reason)
        try:
            with open_place(job, remote, key, saved) as place:
                current = _Run(job, options, happened, forge, place, mask, tell, watch, note, key)
                return current.go(decision, known)
        except _Overtaken as error:
            if number == _TRIES:
                raise Conflict(error.message, hint=error.hint) from error
            tell(f"{error.message}: looking again")
    raise AssertionError


class _Overtaken(Conflict):
    """Raised if another job has taken over the thread first."""


def _refuse(happened: event.ForgeEvent, forge: Forge, options: Options) -> str:
    person = happened.by
    if person is None or (options.is_open and happened.comment is None):
        return ""
    if options.allowed:
        names = {name.removeprefix("@").casefold() for name in options.allowed}  # forges ignore case
        may, needed = person.name.casefold() in names, "is not in the list of those who may"
    else:
        may, needed = forge.may_write(person), "may not write to this repository"
    return "" if may else f"{person.name} {needed}"


@dataclass
class _Run:
    """The handling of one thread in this job."""

    job: Job
    options: Options
    happened: event.ForgeEvent
    forge: Forge
    place: JobPlace
    mask: Mask
    tell: Tell
    watch: Watch
    note: str
    key: str

    def __post_init__(self) -> None:
        self.subject = self.happened.subject

    def go(self, decision: event.StartThread | event.Continue, record: SavedThread | None) -> Done:
        options, repository = self.options, self.place.repository
        with self.place.make(is_new=isinstance(decision, event.StartThread)) as rolecall:
            if options.setup:
                self.tell("preparing the folder")
                # The command comes from the project's own pipeline, not from an event.
                words = ["/bin/sh", "-ec", options.setup]
                prepared = subprocess.run(words, cwd=repository, stdin=subprocess.DEVNULL, check=False)  # noqa: S603
                if code := prepared.returncode:
                    raise UsageError(f"the command that prepares the folder ended with {code}")
            if isinstance(decision, event.StartThread):
                loaded = rolecall.load_workflow(options.workflow, is_kept=True)
                for _, error in rolecall.missing_agents(loaded.playbook, options.agent):
                    raise error
                thread = rolecall.start(
                    loaded,
                    decision.task,
                    agent=options.agent,
                    limits=options.limits,
                    folder=repository,
                    request=StartRequest(self.happened.key, decision.task),
                )
                record = SavedThread(
                    place=self.place.name,
                    thread=thread.id,
                    base=git.commit(repository, "HEAD") or "",
                    target=self.happened.target,
                    handled=record.handled if record else (),
                )
            else:
                assert record is not None  # noqa: S101 -- only a saved thread is continued
                thread, until = rolecall.thread(record.thread), time.monotonic() + _LEASE
                while True:  # until the job that ran the thread before has certainly ended
                    try:
                        thread.refuse_running()
                        break
                    except Conflict:
                        if time.monotonic() > until:
                            raise
                        time.sleep(1.0)
                self._obey(thread, decision.command)
            handled = (*record.handled, self.happened.key)[-_MOST_HANDLED:]
            record = replace(record, run=self.job.run, handled=tuple(dict.fromkeys(handled)), is_told=False)
            try:
                record = self._save(rolecall, thread, record)
            except Conflict as error:
                raise _Overtaken(error.message, hint=error.hint) from error
            self.tell(f"thread {thread.id}")
            record = self._advance(rolecall, thread, record)
            return self._finish(rolecall, thread, record)

    def _obey(self, thread: Thread, command: event.CommentCommand | None) -> None:
        """Carry out a command from a comment. If that fails, Rolecall's comment says why."""
        person = self.happened.by
        if command is None or person is None:
            return
        by = {"person": person.name, "door": self.job.forge, "event": self.happened.key}
        try:
            if command.verb == "kill":
                thread.kill(command.text or f"killed by {person.name} in a comment")
            elif command.verb == "answer":
                thread.say(command.text, by=by, is_run_here=True)
            else:
                thread.resume(command.text or None, limits=command.limits, by=by, is_run_here=True)
        except UsageError as error:
            self.note = f"The comment of {person.name} could not be used: {error.explain()}"
            self.tell(self.note)

    def _advance(self, rolecall: Rolecall, thread: Thread, record: SavedThread) -> SavedThread:
        if thread.state.is_over or thread.needs_person:
            return record
        saved_at, run = time.monotonic(), thread.run(agent=self.options.agent)
        try:
            for event in run:
                self.watch(thread, event)
                if event.kind == "limited" and event.body["until"] / 1000 - time.time() > _LONGEST_WAIT:
                    run.stop()
                if event.kind == "step" and time.monotonic() - saved_at > _PAUSE:
                    record, saved_at = self._save(rolecall, thread, record), time.monotonic()
        except KeyboardInterrupt:  # the job was cancelled, or has run out of time
            run.stop()
            self._save(rolecall, thread, record)
            raise
        except Conflict:
            raise
        except RolecallError as error:
            self.note = f"The thread could not continue: {error.explain()}"
            self.tell(self.note)
        return record

    def _save(self, rolecall: Rolecall, thread: Thread, record: SavedThread) -> SavedThread:
        is_done, waits = thread.has_ended, thread.needs_person
        return self.place.save(rolecall, replace(record, has_ended=is_done, needs_person=waits), self.key)

    # -- reporting --

    def _finish(self, rolecall: Rolecall, thread: Thread, record: SavedThread) -> Done:
        record = self._save(rolecall, thread, record)
        state, branch, request, failure = thread.state, "", "", None
        mark = comment.mark_of(thread)
        if self.options.wants_request:
            try:
                branch, request = self._publish(thread, record)
            except RolecallError as error:  # the comment reports the error before the job fails
                failure, self.note = error, f"The changes could not be pushed: {error.explain()}"
        if self.subject is None and thread.needs_person:  # the person needs a place for the answer
            title = self.mask.text(f"{state.name} waits: {state.title}")[:200]
            about = f"{mark}\nA thread of `{state.name}` waits for an answer here."
            self.subject = event.Subject("issue", self.forge.open_issue(title, about, mark=mark))
        text = comment.write(
            thread, job=self.job.address, note=self.note, branch=branch, request=request, mask=self.mask
        )
        if self.subject is not None:
            ident = self.forge.comment(self.subject, text, mark=mark, known=record.comment)
            record = replace(record, comment=ident)
        if self.job.summary:
            with open(self.job.summary, "a", encoding="utf-8") as file:
                file.write(text)
        record = replace(record, is_told=failure is None)
        if self.subject is not None and self.subject.key != self.key:
            self.place.save(rolecall, record, self.subject.key)
        self._save(rolecall, thread, record)
        if failure:
            raise failure
        done = Done(
            thread=thread.id,
            status=thread.status,
            reason=self.mask.text(state.reason),
            waits=thread.needs_person and thread.asking.state.onward is None,
            subject=self.subject.key if self.subject else "",
            branch=branch,
            request=request,
        )
        if self.job.outputs:
            with open(self.job.outputs, "a", encoding="utf-8") as file:
                values = (done.thread, done.status, done.branch, done.request)
                file.writelines(f"{name}={value}\n" for name, value in zip(_OUTPUTS, values, strict=True))
        return done

    def _publish(self, thread: Thread, record: SavedThread) -> tuple[str, str]:
        """Push the thread's changes as a branch. If the thread is completed, also open a pull or merge request."""
        own = [folder for folder in thread.state.folders.values() if folder.branch and not folder.is_removed]
        folder = own[0].path if own else self.place.repository
        title = self.mask.text(thread.state.title)
        branch = f"rolecall/{self.key}"
        if not self.place.push_branch(folder, branch, thread.write_message(title), base=record.base):
            return "", ""
        if thread.status != "completed":
            return branch, ""
        is_issue = self.subject is not None and self.subject.kind == "issue"
        closes = f"\n\nCloses #{self.subject.number}." if self.subject and is_issue else ""
        result = thread.result()
        text = comment.escape_markup(self.mask.text(result["text"])) if result else ""
        about = f"{text}{closes}\n\nThread `{thread.id}`.".lstrip()
        request = ChangeRequest(branch, record.target or self.happened.target, title, about)
        try:
            return branch, self.forge.open_request(request)
        except UsageError as error:
            self.note = f"The branch is pushed, but could not be offered for a merge: {error.explain()}"
            return branch, ""
