"""One attempt at a step: ask the role's agent and parse its answer.

Every stage is recorded as it happens. Before the agent is asked, a note is written to the ref `attempt/<thread>`; the
session id and the answer are added to it as soon as they are known. A process that takes over the thread after a crash
therefore continues from the answer instead of paying for it again. A failed attempt becomes a node, and the step that
finally succeeds links to the attempts before it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache, partial
from itertools import count
from math import isfinite
from pathlib import Path
from typing import Any

from rolecall.agents import process, protocol
from rolecall.errors import AgentError, Conflict, ExtractError, Hint, RolecallError, UsageError
from rolecall.files import treestate
from rolecall.files.snapshot import Snapshot, StepTree, load_tree
from rolecall.files.tree import Trees
from rolecall.settings import capabilities
from rolecall.settings.mask import Mask
from rolecall.settings.repository import root_around
from rolecall.store.store import Draft, Store
from rolecall.threads import adoption, prompt, thread, workfolder
from rolecall.threads.sessions import REREAD, Decision, Fork, Origin, StoredMemory, decide, usage_of
from rolecall.threads.setup import Cast, Recalled, Recaller, Setup, Watch, no_knowledge
from rolecall.threads.state import Note, NoteRef, attempt_name, read_note
from rolecall.threads.thread import (
    ATTEMPT_SCHEMA,
    DETAIL_SCHEMA,
    ERROR_SCHEMA,
    PROMPT_SCHEMA,
    SUSPENSION_SCHEMA,
    TREE_ATTEMPT_SCHEMA,
    Chain,
)
from rolecall.threads.turn import ERROR, Turn, contained, unless
from rolecall.workflow import reply
from rolecall.workflow.model import SUSPEND, on_crash_of
from rolecall.workflow.route import Next

_OF_SESSION = ("head", "role", "by", "session", "session_total")
_OF_ANSWER = ("since", "recalled", "raw", "detail", "children", "unread", "tree")
_MOST_RUNS = 8
"""How many run ids a note keeps. An agent may start a process for every command; the newest ids find the others."""
_NOT_SEARCHED = "The repository cannot be searched for this task: look for yourself."
_LONG_LIST = 20
"""Members of a group are not shown the list that their items come from if it has more items than this."""
_LITERAL = 60
"""Parts of a prompt up to this length are stored inline rather than as nodes."""

Play = Callable[["Attempt", protocol.Cancel, str, str, str | None], Any]
"""(attempt, cancel, workflow, prompt, session) -> the outcome of the child thread that plays the role."""


@dataclass(frozen=True)
class Answer:
    """The text that an agent gave, and its session."""

    text: str
    session: str
    step: str = ""
    """The id of a step that an external agent put into the store."""
    is_unread: bool = False
    """The agent could not correct the answer, so only the extract model can find the output."""


@dataclass(frozen=True)
class Result:
    """The contents of the step to be committed."""

    output: Mapping[str, Any]
    body: str
    raw: str | None = None
    """The whole answer, if it differs from the one in the note."""
    schema: Mapping[str, Any] | None = None
    """The schema of the output, if it is not the role's."""
    agent: str = ""
    """The agent that answered, if not the one that was asked."""
    step: str = ""
    """The id of a step that an external agent stored with our library; it is used unchanged."""
    given: str = ""
    """The id of a step from an external agent that knows only uwf's fields."""
    group: str = ""
    """The roster of the group whose members' results the step joins."""
    used: Mapping[str, float] | None = None
    """The amounts that count for limits, if they are not those of the agent's usage."""


async def perform(
    setup: Setup, attempt: Attempt, cast: Cast, *, cancel: protocol.Cancel, play: Play | None = None
) -> Result:
    """Ask the agent and parse its answer: from its frontmatter, else after one correction in the same session, else
    with the extract model. If this raises, the agent's output is already recorded."""
    role = attempt.turn.role(attempt.role)
    ask = partial(_ask, setup, attempt, cast, cancel, play)
    answer = await attempt.read_waiting_answer()
    if answer is None or (answer.is_unread and not setup.can_extract(role)):
        answer = await ask()
    if answer.step:
        with contained(f"reading the step of {cast.name!r}"):
            return attempt.adopt(answer.step)

    found = reply.parse(answer.text, role.schema)
    can_correct = answer.session and not answer.is_unread and getattr(cast.agent, "can_resume", False)
    if isinstance(found, reply.Problem) and can_correct:
        attempt.fail(f"the answer could not be read: {found.reason}")
        answer = await ask(correction=prompt.correction(found, role.schema))
        found = reply.parse(answer.text, role.schema)
    if isinstance(found, reply.Problem):
        found = await _extract(setup, attempt, answer, found, cancel)
    return attempt.understand(found)


async def _ask(
    setup: Setup,
    attempt: Attempt,
    cast: Cast,
    cancel: protocol.Cancel,
    play: Play | None,
    *,
    correction: str | None = None,
) -> Answer:
    """Call the agent and record its answer before using it. If the agent has lost the session, ask it again in a new
    one."""
    if correction is not None:
        attempt.stay_in_session()
    text = correction if correction is not None else await attempt.make_prompt(cast)
    role, run, decision = attempt.turn.role(attempt.role), setup.token(), attempt.session
    words = tuple(dict.fromkeys((*role.capabilities, *setup.restrictions_of(role))))
    deniable = getattr(cast.agent, "deniable", None)
    if deniable is not None:  # the role's restrictions were checked earlier; our own process may add some
        capabilities.check_supported(cast.name, words, deniable)

    await attempt.find_files()
    attempt.note_asking(cast.name, run=run)
    context = protocol.Context(
        thread=attempt.thread, role=attempt.role, start=attempt.turn.task, workdir=Path(attempt.workdir),
        cancel=cancel, emit=attempt.note_sign, instruction=attempt.instruction, steps=attempt.turn.messages,
        session=decision.session, is_fork=decision.is_fork, session_total=decision.total, schema=role.schema,
        attempt=attempt.tries, capabilities=words,
        env=process.add_mark(_environment_of_agent(setup, attempt, cast), run),
        memory=StoredMemory(setup.store, setup.mask), play=partial(play, attempt, cancel) if play else None,
    )  # fmt: skip
    try:
        with (
            contained(f"the agent {cast.name!r}"),
            _report_changes(attempt, words),
        ):  # adapters are third-party code and may raise anything
            given = await protocol.ask(cast.agent, text, context=context)
    except AgentError as error:
        await attempt.leave_files()
        if not error.is_session_lost or decision.session is None:
            raise
        attempt.fail(error.message, error)
        attempt.lost_sessions |= {decision.session}
        return await _ask(setup, attempt, cast, cancel, play)
    await attempt.leave_files()
    return attempt.note_answer(given)


def _environment_of_agent(setup: Setup, attempt: Attempt, cast: Cast) -> dict[str, str]:
    """The environment of an agent's processes. It names the store only if the agent writes its own step or the role
    may start threads."""
    role = attempt.turn.role(attempt.role)
    environment = setup.environment_of(role)
    environment.pop(capabilities.THREADS_VARIABLE, None)  # set for the role whose agent started us
    if role.may_start_threads:
        environment[capabilities.THREADS_VARIABLE] = "1"
    elif not getattr(cast.agent, "opens_store", False):
        for name in capabilities.STORE_VARIABLES:
            environment.pop(name, None)
    return environment


@contextmanager
def _report_changes(attempt: Attempt, words: tuple[str, ...]) -> Iterator[None]:
    """Report files that a read-only role changed in its work folder."""
    if not capabilities.must_not_write(words):
        yield
        return
    before = treestate.take(attempt.workdir)
    try:
        yield
    finally:
        if changed := treestate.changes(before, treestate.take(attempt.workdir)):
            attempt.remark(
                f"{attempt.role} is read-only, yet the work folder has changed: {', '.join(changed)}"
            )


async def _extract(
    setup: Setup, attempt: Attempt, answer: Answer, problem: reply.Problem, cancel: protocol.Cancel
) -> reply.Reply:
    """Find the output with the extract model. If that fails, the answer is kept so that it can be read later."""
    role = attempt.turn.role(attempt.role)
    attempt.note = attempt.note._replace(unread=True)
    try:
        reading = setup.extract(answer.text, role.schema, role.extract)
        output, usage = await unless(cancel, "reading the answer", reading)
    except ExtractError as error:
        attempt.add_usage(error.usage)
        found = "; ".join([problem.reason, *problem.misfits])
        raise ExtractError(
            f"the answer could not be read ({found}), and {error.message}",
            raw=answer.text,
            attempts=error.attempts,
            usage=error.usage,
            hint=error.hint,
            is_outage=error.is_outage,
        ) from error
    attempt.add_usage(usage)
    return reply.Reply(output, answer.text)


class Attempt:
    """Keeps the records of one step, from before its agent is asked until the step is in the chain."""

    def __init__(
        self,
        store: Store,
        turn: Turn,
        way: Next,
        *,
        mask: Mask,
        watch: Watch = lambda _kind, _body: None,
        is_owner: bool = True,
        fork: Fork | None = None,
        origin: Origin | None = None,
        recall: Recaller = no_knowledge,
        trees: Trees | None = None,
    ) -> None:
        """`is_owner` is False in an external agent's process, because the process that started it owns the note.
        Without `trees` the files of the step are not recorded."""
        self.store = store
        self.mask = mask
        self.watch = watch
        self.turn = turn
        self.thread = turn.thread
        self.role = way.role
        self.way = way
        self.workdir = _workdir(store, turn, way)
        self.session = Decision("")
        """The agent's session to use, and why."""
        self.lost_sessions: frozenset[str] = frozenset()
        """Sessions that the agent no longer knows and that are not tried again."""
        self._is_owner = is_owner
        self._fork = fork
        self._origin = origin
        self._recall = recall
        self._trees = trees

        self._ref = read_note(store, self.thread)
        self.note = self._ref.note if self._ref else Note()
        self.previous = self._ref.attempt if self._ref else None
        """The newest failed attempt at this step."""
        self.agent = self.note.by
        """The name of the agent that is being asked."""
        self.started_at = store.now()
        if self._is_left_here() and self.note.started_at is not None:
            self.started_at = self.note.started_at
        self.tries = len(list(self._attempts()))

        self._live = mask.stream()
        self._remarks: list[str] = []
        self._since: int | None = None
        self._recalled = ""
        self._prompt: prompt.Prompt | None = None
        self._steps_shown: dict[int | None, str] = {}

    @cached_property
    def number(self) -> int:
        return (self.turn.last or self.turn.chain).number + 1

    @property
    def instruction(self) -> str:
        """The rendered prompt of the edge that leads to the role."""
        return self.mask.text(self.way.prompt)

    def totals(self) -> dict[str, Any]:
        """The thread's usage so far, including failed attempts at this step."""
        totals = dict(self.turn.totals)
        for attempt in self._attempts():
            ms = attempt.get("completed_at", 0) - attempt["started_at"]
            used = thread.counted(attempt.get("usage"), ms=ms, steps=0)
            totals = thread.add_totals(totals, attempt["role"], used)
        return totals

    def _attempts(self) -> Iterator[dict[str, Any]]:
        node = self.previous
        while node is not None:
            payload = self.store.get(node).payload
            yield payload
            node = payload.get("previous")

    def _is_left_here(self) -> bool:
        """Whether the note belongs to this step rather than to one that a person has moved the thread away from."""
        return self.note.head == self.turn.chain.head and self.note.role == self.role

    # -- before the answer --

    async def read_waiting_answer(self) -> Answer | None:
        """Return an answer that arrived before the process that asked for it died."""
        if not self._is_left_here() or not (self.note.raw or self.note.step):
            return None
        await self._assemble(self.note.since, self.note.recalled)  # the step stores the prompt that was used
        return Answer(self.note.raw, self.note.session, self.note.step, is_unread=self.note.unread)

    async def make_prompt(self, cast: Cast) -> str:
        """Choose the session in which to ask the agent, and return the prompt."""
        await self.close_left_behind()
        self.agent = self.mask.text(cast.name)
        self.session = self._decide_session(cast)
        return (await self._assemble(self.session.since, await self._search_repository())).text

    def stay_in_session(self) -> None:
        """Use the session of the last answer for the next question."""
        total = usage_of(self.note.session_total)
        self.session = Decision("resumed: a correction", self.note.session or None, total=total)

    async def close_left_behind(self) -> None:
        """End an agent whose parent process has died, because nobody reads its output any more."""
        if not self.note.agent or not self._is_owner:
            return
        for run in filter(None, (self.note.run, *self.note.runs)):
            await process.end_leftovers(run)
        if "left" not in self.note.tree:  # otherwise another process died while it put the files back
            await self.leave_files()
        await self._restore_files()

    async def _restore_files(self) -> None:
        """Record the attempt of a process that has died, after its files were put back if the role wants that."""
        gone, tree = "the process that ran this attempt is gone", load_tree(self.note.tree)
        wants = on_crash_of(self.turn.workflow, self.role) == "restore" and self._is_left_here()
        # The thread of another workflow continues with its files, and members of a group may share theirs.
        is_alone = self.turn.chain.start.member is None or self.turn.workdir_of(self.role) != "shared"
        if not wants or not is_alone or self.note.by.startswith("workflow:"):
            self.fail(f"{gone}; the files that it changed are kept" if tree and tree.changed else gone)
        elif self._trees is None or tree is None:
            self.fail(f"{gone}; its files are kept, because those that it found are not on this machine")
        else:
            self._write(self.note)  # what it left is recorded before it is replaced
            try:
                await asyncio.to_thread(self._trees.restore, tree.found, self.workdir, source=self._source)
            except (RolecallError, OSError) as error:
                raise UsageError(
                    f"the files that the crashed attempt found cannot be put back: {error}",
                    hint="Resume the thread to start the role with the files as they are.",
                ) from error
            text = f"{gone}; the files that it found are put back"
            # The session would not know that its changes are undone, so it is not continued.
            self.fail(text, AgentError(text, ending="killed"))

    def _decide_session(self, cast: Cast) -> Decision:
        tier = self.turn.role(self.role).resume
        if not getattr(cast.agent, "can_resume", False):
            return Decision(f"new: {cast.name} cannot resume" if tier or self._origin else "")
        return decide(
            self.turn.chain,
            role=self.role,
            agent=self.agent,
            tier=tier,
            workdir=self.workdir,
            can_fork=getattr(cast.agent, "can_fork", False),
            fork=self._fork,
            # If an attempt failed, its session may be the cause.
            origin=None if self.tries and not self.lost_sessions else self._origin,
            interrupted=self.note if self._is_left_here() else None,
            lost=self.lost_sessions,
        )

    async def _search_repository(self) -> str:
        """Find passages for a role that wants them, unless its session already has them."""
        wanted = self.turn.role(self.role).knowledge
        if wanted is None or self.session.since is not None:
            return ""
        try:
            found = await self._recall(wanted, f"{self.turn.task}\n{self.way.prompt}", self.workdir)
        except UsageError as error:
            if wanted.is_required:
                raise
            found = Recalled(_NOT_SEARCHED, [f"{error.message}. {error.hint}"])
        for note in found.notes:
            self.remark(note)
        return found.text

    async def _assemble(self, since: int | None, recalled: str) -> prompt.Prompt:
        task, ask_python = self.turn.task, self.turn.playbook.prompts.get(self.role)
        if ask_python is not None:
            with contained(f"the prompt of {self.role}"):
                text = await ask_python(self.turn.context(workdir=self.workdir))
            if not isinstance(text, str):
                raise UsageError(f"the prompt of {self.role} must return text, not {type(text).__name__}")
            task = f"{task}\n\n{text}"

        role = self.turn.role(self.role)
        is_bounded = since is not None and role.resume == "bounded"
        self._since, self._recalled = since, recalled
        self._prompt = prompt.assemble(
            role,
            name=self.role,
            task=task,
            newest_first=self._past_steps(),
            instruction=f"{self.way.prompt}\n\n{REREAD}" if is_bounded else self.way.prompt,
            show_command=f"rolecall thread read {self.thread}",
            knowledge=recalled,
            last_turn=since,
        )
        return self._prompt

    def _past_steps(self) -> Iterator[prompt.PastStep]:
        for step in self.turn.chain:
            if step.role != thread.FORK:
                self._steps_shown[step.number] = step.id
                yield prompt.PastStep(step.number, step.role, step.output, step.body, step.agent)
        if (member := self.turn.chain.start.member) is not None:
            for node, past in _steps_above(self.store, member.group.above).read(member.item):
                self._steps_shown[past.number] = node
                yield past

    def note_asking(self, agent: str, *, run: str = "") -> None:
        """Note the agent before it is asked; `run` marks the processes that it will start."""
        self.agent = self.mask.text(agent)
        note = Note(
            head=self.turn.chain.head,
            role=self.role,
            agent=self.agent,
            by=self.agent,
            run=run,
            since=self._since,
            recalled=self.mask.text(self._recalled),
            started_at=self.started_at,
            session=(not self.session.is_fork and self.session.session) or "",
            session_total=_usage(self.session.total),
            session_reason=self.session.reason,
            tree=self.note.tree,
        )
        self._write(note, "step_started", {"role": self.role, "agent": self.agent, "number": self.number})

    def note_sign(self, kind: str, body: Mapping[str, Any]) -> None:
        """Handle a live event of the agent. A session is noted at once, so that it can be resumed after a crash."""
        given = _plain(body)
        if kind == "text" and isinstance(given.get("text"), str):
            given["text"] = self._live.feed(given["text"])
            if not given["text"]:
                return
        given = self.mask.value(given)
        if kind == "session" and self._is_owner:
            self._write(self.note._replace(session=given.get("session") or self.note.session), kind, given)
        elif kind == "process" and self._is_owner and isinstance(given.get("run"), str):
            # A process that an agent keeps open between steps does not have this attempt's mark.
            runs = list(dict.fromkeys([*self.note.runs, given["run"]]))
            self._write(self.note._replace(runs=runs[-_MOST_RUNS:]), kind, given)
        else:
            self._tell(kind, given)

    # -- files --

    async def find_files(self) -> None:
        """Record the files that the role finds."""
        found = await self._take_files()
        self.note = self.note._replace(tree=self._dump_tree(StepTree(found, found)) if found else {})

    async def leave_files(self) -> None:
        """Record the files that the role has left, and what it has changed."""
        known = load_tree(self.note.tree)
        left = await self._take_files() if known else None
        if known is not None and left is None and self._is_owner:  # "unchanged" would be a lie
            self.note = self.note._replace(tree={})
        if self._trees is not None and known is not None and left is not None:
            changed = []
            if left.tree != known.found.tree:
                try:
                    changed = await asyncio.to_thread(self._trees.changes, known.found, left)
                except (RolecallError, OSError) as error:  # another machine has recorded the first tree
                    self.remark(f"the changes of this step are not known: {error}")
                    self.note = self.note._replace(tree={})
                    return
            tree = StepTree(known.found, left, tuple(changed))
            self.note = self.note._replace(tree=self._dump_tree(tree))

    def _dump_tree(self, tree: StepTree) -> dict[str, Any]:
        return dict(self.mask.value(_plain(tree.dump())))

    async def _take_files(self) -> Snapshot | None:
        if self._trees is None or not self._is_owner:
            return None
        try:
            known = self._trees.recall(self.workdir, source=self._source)
            return known or await asyncio.to_thread(self._trees.take, self.workdir, source=self._source)
        except (RolecallError, OSError) as error:
            self.remark(f"the files of this step are not recorded: {error}")
            return None

    @property
    def _source(self) -> str | None:
        """The folder to which its snapshots belong, if not the work folder. The repository of a copy goes with the
        copy, so its objects are not borrowed; the files of a fork outside git belong to the folder it was made for."""
        start, kind = self.turn.chain.start.cwd, self.turn.workdir_of(self.role)
        is_fork = kind == "shared" and self.turn.cwd != start
        return start if kind == "copy" or (is_fork and root_around(self.workdir) is None) else None

    # -- the answer --

    def note_answer(self, given: protocol.Reply) -> Answer:
        """Record the answer before it is used."""
        self._tell_rest()
        note = self.note._replace(
            raw=self.mask.text(_plain(given.text)),
            session=self.mask.value(_plain(given.session)) or self.note.session,
            session_total=_usage(given.session_total),
            children=list(given.children),
            usage=_usage(given.usage),
            detail=self._with_remarks(self.mask.value(_plain(_detail(given)))),
            completed_at=self.store.now(),
            step=given.step or "",
        )
        try:
            self._write(note)
        except Conflict:
            self._keep_beside("the thread was taken over before this answer came")
            raise
        return Answer(note.raw, note.session, note.step)

    def remark(self, text: str) -> None:
        """Add a remark for readers of the step to its detail."""
        text = self.mask.text(text)
        if text not in self._remarks:
            self._remarks.append(text)
            self._tell("remark", {"role": self.role, "text": text})

    def add_usage(self, usage: Mapping[str, Any]) -> None:
        """Add the extract model's usage to that of the step."""
        known = dict(self.note.usage)
        for key, name in (("input_tokens", "prompt_tokens"), ("output_tokens", "completion_tokens")):
            if usage.get(name, 0):
                known[key] = known.get(key, 0) + usage[name]
        self.note = self.note._replace(usage=known)

    def understand(self, found: reply.Reply | reply.Suspension) -> Result:
        if isinstance(found, reply.Suspension):
            output = {"$status": SUSPEND, "reason": found.reason}
            return Result(output, found.body, schema=SUSPENSION_SCHEMA)
        for repair in found.repairs:
            self.remark(repair)
        self.note = self.note._replace(detail=self._with_remarks(self.note.detail))
        return Result(dict(found.output), found.body)

    def adopt(self, step: str) -> Result:
        """Check a step that an external agent put into the store, and return it as the result."""
        done = adoption.read_step(self.store, step, attempt=self.previous)
        if done.is_ours:
            self.previous = done.payload.get("attempt")
        adoption.check(
            self.store, done, self.turn, self.role, number=self.number, totals=self.totals(), mask=self.mask
        )
        if done.is_ours:
            return Result(done.output, done.body, step=step)
        if done.turns:
            self.note = self.note._replace(detail=self._with_remarks({"turns": self.mask.value(done.turns)}))
        schema = SUSPENSION_SCHEMA if adoption.is_suspension(done.output) else None
        return Result(done.output, done.body, raw=done.body, schema=schema, given=step)

    # -- failing --

    def fail(self, error: str, cause: RolecallError | None = None) -> None:
        """Store the note as a failed attempt, so that none of the agent's output is lost."""
        self._tell_rest()
        if isinstance(cause, AgentError):
            self._note_given(cause)
        elif not (isinstance(cause, ExtractError) and cause.is_outage):
            self.note = self.note._replace(unread=False)  # reading it again would not help
        ending = cause.ending if isinstance(cause, AgentError) else ""
        if self._is_owner:
            try:
                self.look_again()
            except Conflict:
                self._keep_beside(error)
                raise

        # The fields that the next attempt at this step continues from. Usage is counted with this attempt.
        kept: tuple[str, ...] = ()
        if self.note.unread:
            kept = (*_OF_SESSION, *_OF_ANSWER)
        elif self.note.session and ending not in (
            "failed",
            "killed",
        ):  # otherwise the session may be the cause
            kept = _OF_SESSION
        note = Note(**{key: getattr(self.note, key) for key in kept})
        draft = self.store.draft()
        attempt = self._put_attempt(draft, error, ending)
        event = {"attempt": attempt, "role": self.role, "error": self.mask.text(_plain(error))}
        draft.event(self.thread, "attempt_failed", event)
        if self._is_owner:
            draft.move(attempt_name(self.thread), self._ref and self._ref.ref, attempt, note.dump())
        for moved in draft.commit():
            self._ref = NoteRef(note, attempt, moved)
        self.previous, self.note = attempt, note
        self.tries += 1
        self.started_at = self.store.now()
        self.watch("attempt_failed", event)

    def unreadable(self, error: ExtractError) -> Result:
        """The result for an answer that could not be read; a moderator decides what happens next."""
        output = {"$status": ERROR, "reason": error.message}
        return Result(output, error.raw, raw=error.raw, schema=ERROR_SCHEMA)

    def _note_given(self, error: AgentError) -> None:
        """Add the output of an agent that failed to the note."""
        detail: dict[str, Any] = {}
        if error.turns or error.files:
            detail = {"turns": [_turn(turn) for turn in error.turns], **filled({"files": list(error.files)})}
        given = {
            "raw": error.text,
            "session": error.session,
            "children": list(error.children),
            "detail": detail,
        }
        given = self.mask.value(_plain(given))
        given["detail"] = self._with_remarks(given["detail"])
        used = {"usage": _usage(error.usage), "session_total": _usage(error.session_total)}
        self.note = self.note._replace(**filled({**given, **used}))

    def _keep_beside(self, error: str) -> None:
        """Add a failed attempt although another process now runs the thread; that process's note is kept."""
        while True:
            there = read_note(self.store, self.thread)
            self.previous = there.attempt if there else None
            draft = self.store.draft()
            note = there.note.dump() if there else {}
            draft.move(
                attempt_name(self.thread), there.ref if there else None, self._put_attempt(draft, error), note
            )
            try:
                draft.commit()
            except Conflict:
                continue
            return

    def _put_attempt(self, draft: Draft, error: str, ending: str = "") -> str:
        note = self.note
        fields = {
            "start": self.turn.chain.start.id,
            "head": note.head or self.turn.chain.head,
            "role": note.role or self.role,
            "agent": note.agent or self.agent,
            "state": "failed",
            "error": self.mask.text(_plain(error)),
            "ending": ending,
            "started_at": note.started_at or self.started_at,
            "completed_at": self.store.now(),
            "cwd": self.workdir,
            "raw": draft.put_text(note.raw) if note.raw else None,
            "usage": note.usage,
            "previous": self.previous,
            "number": self.number,
            **self.put_context(draft),
        }
        return draft.put_as(
            TREE_ATTEMPT_SCHEMA if note.tree else ATTEMPT_SCHEMA, filled(fields, keep=("agent",))
        )

    # -- the contents of the step --

    def put_context(self, draft: Draft) -> dict[str, Any]:
        """The fields that steps and failed attempts share; their nodes are added to `draft`."""
        note, told = self.note, None
        if self._prompt is not None:
            parts = [self._prompt_part(draft, part) for part in self._prompt.parts]
            told = draft.put_as(PROMPT_SCHEMA, {"parts": parts})
        return {
            "prompt": told,
            "edge_prompt": self.instruction,
            "detail": draft.put_as(DETAIL_SCHEMA, note.detail) if note.detail else None,
            "session": note.session,
            "session_reason": note.session_reason,
            "session_total": note.session_total,
            "children": note.children,
            "tree": note.tree,
        }

    def _prompt_part(self, draft: Draft, part: prompt.Part) -> dict[str, Any]:
        """The stored form of a prompt part: an earlier step's id, a short text inline, or a long text's node."""
        text = self.mask.text(part.text)
        if part.step in self._steps_shown and text == part.text:
            return {"step": self._steps_shown[part.step], "form": 1}
        return {"text": draft.put_text(text)} if len(text) > _LITERAL else {"literal": text}

    def close(self, draft: Draft) -> None:
        """Add the removal of the note's ref to the step's draft; the step itself links to the failed attempts."""
        if self._ref is not None:
            draft.move(self._ref.ref.name, self._ref.ref)

    def look_again(self) -> None:
        """Read the note again, because a process that lost the thread may have added an attempt. Raise Conflict if
        another process has written its own note: then we have lost the thread."""
        if not self._is_owner:
            return
        there = read_note(self.store, self.thread)
        if (there.note.run if there else "") != (self._ref.note.run if self._ref else ""):
            raise Conflict(
                f"thread {self.thread} was taken over while this step ran",
                hint=Hint("See it", "show_thread", before="What the agent gave is kept.", thread=self.thread),
            )
        self._ref, self.previous = there, there.attempt if there else None

    def _write(self, note: Note, kind: str = "", body: Mapping[str, Any] | None = None) -> None:
        """Write the note, and an event if one is given."""
        self.note = note
        if not self._is_owner:
            return
        self.look_again()
        draft = self.store.draft()
        draft.move(attempt_name(self.thread), self._ref and self._ref.ref, self.previous, note.dump())
        if kind:
            draft.event(self.thread, kind, body or {})
        # This survives a crash of the process; the step's commit waits for the disk.
        self._ref = NoteRef(note, self.previous, draft.commit(durable=False)[0])
        if kind:
            self.watch(kind, body or {})

    def _tell(self, kind: str, body: Mapping[str, Any]) -> None:
        draft = self.store.draft()
        draft.event(self.thread, kind, body)
        draft.commit()
        self.watch(kind, body)

    def _tell_rest(self) -> None:
        if rest := self._live.rest():
            self._tell("text", {"text": rest})

    def _with_remarks(self, detail: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"turns": [], **detail, "notes": list(self._remarks)} if self._remarks else detail


def _workdir(store: Store, turn: Turn, way: Next) -> str:
    """The role's work folder in this workflow, or the edge's `location` relative to it."""
    folder = workfolder.for_step(
        store, turn.thread, turn.chain, turn.workdir_of(way.role), location=way.location
    )
    if not os.path.isdir(folder):
        raise UsageError(
            f"the work folder {folder!r} does not exist", hint="Make it, or fork the thread with another one."
        )
    return folder


# -- the agent's output as values that can be stored, whatever a third-party adapter returned --


def _detail(given: protocol.Reply) -> dict[str, Any]:
    """The agent's turns, files and ending; empty if it did nothing but answer."""
    ending = given.ending if given.ending != "completed" else ""
    said = filled({"files": list(given.files), "reason": given.reason, "ending": ending})
    turns = [_turn(turn) for turn in given.turns]
    return {"turns": turns, **said} if turns or said else {}


def _turn(given: protocol.Turn) -> dict[str, Any]:
    calls = [
        {"name": call.name, "arguments": dict(call.arguments), "result": call.result}
        for call in given.tool_calls
    ]
    return {"role": given.role, "text": given.text} | ({"tool_calls": calls} if calls else {})


def _usage(used: protocol.Usage | None) -> dict[str, Any]:
    given = asdict(used) if used else {}
    return {key: round(value, 10) if key == "cost" else value for key, value in given.items() if value}


def _plain(value: Any) -> Any:
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, Mapping):
        return {_plain(str(key)): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, (bool, int)) or (isinstance(value, float) and isfinite(value)):
        return value
    return _plain(str(value))


def filled(fields: Mapping[str, Any], keep: tuple[str, ...] = ()) -> dict[str, Any]:
    """Drop fields without a value, so that adding a field later does not change existing ids."""
    return {key: value for key, value in fields.items() if value not in (None, "", {}, [], ()) or key in keep}


class _StepsAbove:
    """The steps before a group, as its members are shown them: read once for all members that this process runs, and
    only as far as they are shown."""

    def __init__(self, chain: Chain) -> None:
        self._unread = (step for step in chain if step.role != thread.FORK)
        self._read: list[tuple[str, prompt.PastStep]] = []

    def read(self, item: Any) -> Iterator[tuple[str, prompt.PastStep]]:
        """Each step with its id, newest first. The list that has the `item` of a member is left out if it is long:
        every member would pay for it."""
        for place in count():
            if place == len(self._read):
                step = next(self._unread, None)
                if step is None:
                    return
                whole = step.output
                output = _leave_out_list(whole, item)
                is_cut = output != whole
                past = prompt.PastStep(step.number, step.role, output, step.body, step.agent, is_cut)
                self._read.append((step.id, past))
            yield self._read[place]


@lru_cache(maxsize=8)
def _steps_above(store: Store, head: str) -> _StepsAbove:
    return _StepsAbove(Chain(store, head))


def _leave_out_list(value: Any, item: Any) -> Any:
    if isinstance(value, dict):
        return {key: _leave_out_list(inner, item) for key, inner in value.items()}
    if isinstance(value, list) and len(value) > _LONG_LIST and item in value:
        return f"({len(value):,} items, among them yours)"
    return value
