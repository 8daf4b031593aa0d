"""The records of one attempt at a step.

Every stage is recorded as it happens. Before the agent is asked, a note is written to the ref `attempt/<thread>`; the
session id and the answer are added to it as soon as they are known. A process that takes over the thread after a crash
therefore continues from the answer instead of paying for it again. A failed attempt becomes a node, and the step that
finally succeeds links to the attempts before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from rolecall.agents import process, protocol
from rolecall.errors import AgentError, Conflict, ExtractError, Hint, RolecallError, UsageError
from rolecall.files.snapshot import Snapshot, StepTree, load_tree
from rolecall.settings.mask import Mask
from rolecall.store.canonical import JsonObject
from rolecall.store.store import Draft, Store
from rolecall.threads import adoption, prompt, thread, workfolder
from rolecall.threads.attempt_files import AttemptFiles
from rolecall.threads.key import Parts, load_parts
from rolecall.threads.key_parts import KeyInput, find_parts
from rolecall.threads.loaded_thread import ERROR, LoadedThread, contain
from rolecall.threads.sessions import REREAD, SessionChoice, decide, fork_of, origin_of, usage_of
from rolecall.threads.setup import Cast, Recalled, Setup, Watch, no_knowledge
from rolecall.threads.shared_files import Fetched, SharedFolder
from rolecall.threads.state import AttemptNote, NoteRef, ThreadState, attempt_name, read_note
from rolecall.threads.steps_above import read_above
from rolecall.threads.storable import describe_reply, describe_turn, describe_usage, drop_empty, make_plain
from rolecall.threads.thread import Reused
from rolecall.workflow import reply
from rolecall.workflow.model import SUSPEND, on_crash_of, reuse_of
from rolecall.workflow.route import Next

if TYPE_CHECKING:
    from rolecall.threads.view_types import SandboxUse

_OF_SESSION = ("head", "role", "by", "session", "session_total")
_OF_ANSWER = ("since", "recalled", "raw", "detail", "children", "unread", "tree", "parts", "sandbox")
_MOST_RUNS = 8
"""The maximum number of run ids in a note. An agent can start a process for every command; only the newest ids are
kept."""
_NOT_SEARCHED = "The repository cannot be searched for this task: look for yourself."
_NO_STATE = ThreadState()
_NOT_FETCHED = Fetched()
_LITERAL = 60
"""The maximum length of a prompt part that is stored inline; a longer part becomes a node."""


class AgentAnswer(NamedTuple):
    """The text of an agent's answer, and the session in which the agent gave it."""

    text: str
    session: str
    step: str = ""
    """The id of the step that an external agent put into the store; otherwise empty."""
    is_unread: bool = False
    """Whether the agent was unable to correct the answer, so that only the extract model can find the output."""
    taken: StepResult | None = None
    """The result of a finished step, if that step is reused and the agent is not asked."""


class StepResult(NamedTuple):
    """The contents of the step to be committed."""

    output: JsonObject
    body: str
    raw: str | None = None
    """The whole answer, if it differs from the answer in the note."""
    schema: JsonObject | None = None
    """The schema of the output, if it is not the role's."""
    agent: str = ""
    """The agent that answered, if a different agent was asked."""
    step: str = ""
    """The id of a step that an external agent stored with `rolecall.agentkit`; the engine commits that step
    unchanged."""
    given: str = ""
    """The id of a step from an external agent that knows only uwf's fields; otherwise empty."""
    group: str = ""
    """The roster of the group whose members' results the step joins."""
    used: Mapping[str, float] | None = None
    """The amounts that count for limits, if they differ from the agent's usage."""
    reused: Reused | None = None
    """The step that this result was taken over from, if any."""
    saved: Mapping[str, float] | None = None
    """The amounts that reuse has saved, in the units that limits use."""
    is_exact: bool = True
    """Whether nobody else changed files while the step was taken over. If not, the step cannot be found by its key."""
    by: Mapping[str, str] | None = None
    """If a person answered, that person and the door that the person used."""


class Attempt:
    """The records of one step, from before its agent is asked until the step is in the chain."""

    def __init__(
        self,
        store: Store,
        loaded: LoadedThread,
        way: Next,
        *,
        mask: Mask,
        setup: Setup | None = None,
        state: ThreadState = _NO_STATE,
        shared: SharedFolder | None = None,
        fetched: Fetched = _NOT_FETCHED,
        is_owner: bool = True,
        is_answer: bool = False,
    ) -> None:
        """`setup` is needed to ask an agent and to record files. `state` is the thread's state. If other machines
        may need the thread's own folder, `shared` is that folder and `fetched` describes the files fetched from
        another machine. `is_owner` is False in an external agent's process, because the process that started the
        agent owns the note. `is_answer` is True for a person's answer, which needs no work folder on a machine that
        shares the store."""
        self.store = store
        self.mask = mask
        self.watch: Watch = setup.watch if setup else lambda _kind, _body: None
        self.state = state
        self.loaded = loaded
        self.thread = loaded.thread
        self.role = way.role
        self.way = way
        trees = setup.trees if setup and is_owner else None
        self._shared, self._fetched = shared, fetched
        self._ref = read_note(store, self.thread)
        is_needed = not (is_answer and store.is_shared)
        workdir = loaded.workdir_of(way.role)
        self.workdir = workfolder.for_step(store, loaded, workdir, way.location, is_needed=is_needed)
        self.session = SessionChoice("")
        """The agent's session to use, and the reason for the choice."""
        self.lost_sessions: frozenset[str] = frozenset()
        """Sessions that the agent no longer knows; they are not tried again."""
        self._is_owner = is_owner
        self._origin = origin_of(store, state, way.role)
        self._recall = setup.recall if setup else no_knowledge
        self.reuse = reuse_of(loaded.workflow, way.role, state.reuse)
        """Whether to reuse a finished step, or None if neither the workflow nor the thread decides this."""

        self.note = self._ref.note if self._ref else AttemptNote()
        self.previous = self._ref.attempt if self._ref else None
        """The newest failed attempt at this step."""
        self.agent = self.note.by
        """The name of the agent that is being asked."""
        self.started_at = store.now()
        if self._is_left_here() and self.note.started_at is not None:
            self.started_at = self.note.started_at
        self.tries = len(list(self._attempts()))
        self._starts_over = bool(state.eval)
        """Whether to undo the changes of an earlier attempt before asking the agent, as evaluations do."""

        self._live = mask.stream()
        self._remarks: list[str] = []
        self._since: int | None = None
        self._task = mask.text(loaded.task)
        self._recalled = ""
        self.parts: Parts | None = None
        """The parts of the step's key, once they are known."""
        self._prompt: prompt.Prompt | None = None
        self._steps_shown: dict[int | None, str] = {}
        self._found: StepTree | None = None
        """The files before the last failed attempt on this machine."""
        self.files = AttemptFiles(
            trees, self.workdir, loaded, way.role, is_first=loaded.last is None, remark=self.remark
        )
        if self._fetched.text:
            self.remark(self._fetched.text)

    @cached_property
    def number(self) -> int:
        return (self.loaded.last or self.loaded.chain).number + 1

    @property
    def instruction(self) -> str:
        """The rendered prompt of the edge that leads to the role."""
        return self.mask.text(self.way.prompt)

    def totals(self) -> dict[str, Any]:
        """The thread's usage so far, including failed attempts at this step."""
        return thread.add_attempts(self.loaded.totals, self._attempts())

    def _attempts(self) -> Iterator[JsonObject]:
        return (attempt.payload for attempt in thread.read_attempts(self.store, self.previous))

    def _is_left_here(self) -> bool:
        """Return whether the note belongs to this step. After a person has moved the thread, the note can belong to
        another step."""
        return self.note.head == self.loaded.chain.head and self.note.role == self.role

    # -- before the answer --

    async def read_waiting_answer(self) -> AgentAnswer | None:
        """Return the answer that arrived before the process that had asked for it died, or None."""
        if not self._is_left_here() or not (self.note.raw or self.note.step):
            return None
        await self._remember_question()
        return AgentAnswer(self.note.raw, self.note.session, self.note.step, is_unread=self.note.unread)

    async def read_begun_reuse(self) -> Mapping[str, str]:
        """Return the ids of the finished step that a process was taking over when it died, and of that step's thread.
        Return an empty mapping if no step was being taken over."""
        if not self._is_left_here() or not self.note.reused:
            return {}
        await self._remember_question()
        return self.note.reused

    async def _remember_question(self) -> None:
        """Rebuild the note's prompt, because the step stores it."""
        if self.role not in self.loaded.playbook.functions:
            await self._assemble(self.note.since, self.note.recalled)
        found = self.tree.found.tree if self.tree else ""
        self.parts = load_parts(self.note.parts, found) if self.note.parts else None

    async def make_prompt(self, cast: Cast) -> str:
        """Choose the session in which to ask the agent, and return the prompt."""
        await self.close_left_behind()
        self.agent = self.mask.text(cast.name)
        tier = self.loaded.role(self.role).resume
        if getattr(cast.agent, "can_resume", False):
            self.session = decide(
                self.loaded.chain,
                role=self.role,
                agent=self.agent,
                tier=tier,
                workdir=self.workdir,
                can_fork=getattr(cast.agent, "can_fork", False),
                fork=fork_of(self.store, self.state),
                # The session from which a failed attempt started might be the cause of the failure.
                origin=None if self.tries and not self.lost_sessions else self._origin,
                interrupted=self.note if self._is_left_here() else None,
                lost=self.lost_sessions,
            )
        else:
            self.session = SessionChoice(f"new: {cast.name} cannot resume" if tier or self._origin else "")
        await self.start_over()
        wanted, recalled = self.loaded.role(self.role).knowledge, Recalled("")
        if wanted is not None and self.session.since is None:  # otherwise the session contains the passages
            try:
                recalled = await self._recall(wanted, f"{self.loaded.task}\n{self.way.prompt}", self.workdir)
            except UsageError as error:
                if wanted.is_required:
                    raise
                recalled = Recalled(_NOT_SEARCHED, [error.explain()])
        for note in recalled.notes:
            self.remark(note)
        return (await self._assemble(self.session.since, recalled.text)).text

    def stay_in_session(self) -> None:
        """Ask the next question in the session of the last answer. Keep the files recorded before the first question as
        the files that the session started from."""
        known = self._found
        self._note_tree(StepTree(known.found, known.found, head=known.head) if known else None)
        total = usage_of(self.note.session_total)
        self.session = SessionChoice("resumed: a correction", self.note.session or None, total=total)

    async def close_left_behind(self) -> None:
        """End an agent whose parent process has died, because no process reads the agent's output any more."""
        if not self.note.agent or not self._is_owner:
            return
        for run in filter(None, (self.note.run, *self.note.runs)):
            await process.end_leftovers(run)
        if "left" not in self.note.tree and self._ref and self._ref.ref.version == self._fetched.note:
            self.note = self.note._replace(tree={})
            self.fail("the machine that ran this attempt is gone, and so are the files that it changed")
            return
        if "left" not in self.note.tree:  # already recorded if a process died while restoring the files
            await self.leave_files()
        gone, tree = "the process that ran this attempt is gone", self.tree
        wants = on_crash_of(self.loaded.workflow, self.role) == "restore" and self._is_left_here()
        # The thread of another workflow continues with its own files, and members of a group can share a folder.
        is_alone = self.loaded.chain.start.member is None or self.loaded.workdir_of(self.role) != "shared"
        if not wants or not is_alone or self.note.by.startswith("workflow:"):
            self.fail(f"{gone}; the files that it changed are kept" if tree and tree.changed else gone)
        elif tree is None or not await self._put_back(tree):
            self.fail(
                f"{gone}; the files that it changed are kept, because the original files are not on this machine"
            )
        else:
            text = f"{gone}; the files from before the attempt are restored"
            # The session does not know that its changes were undone, so it is not continued.
            self.fail(text, AgentError(text, ending="killed"))

    async def start_over(self) -> None:
        """In an evaluation, restore the files from before the first attempt at this step. Do nothing if the agent
        continues its session, because the agent then knows what it has changed."""
        is_continued = self.session.session and self.session.session == self.note.session
        attempts = list(self._attempts()) if self._starts_over and not is_continued else []
        if attempts and (tree := load_tree(attempts[-1].get("tree"))):
            await self._put_back(tree)
        self._starts_over = False  # a stand-in continues with the files as they are

    async def _put_back(self, tree: StepTree) -> bool:
        self._write(self.note)  # record the files that the attempt left before replacing them
        try:
            return await self.files.put_back(tree.found)
        except (RolecallError, OSError) as error:
            raise UsageError(
                f"the files from before the earlier attempt cannot be restored: {error}",
                hint="Resume the thread to start the role with the files as they are.",
            ) from error

    async def _assemble(self, since: int | None, recalled: str) -> prompt.Prompt:
        task, ask_python = self.loaded.task, self.loaded.playbook.prompts.get(self.role)
        if ask_python is not None:
            with contain(f"the prompt of {self.role}"):
                text = await ask_python(self.loaded.context(workdir=self.workdir))
            if not isinstance(text, str):
                raise UsageError(f"the prompt of {self.role} must return text, not {type(text).__name__}")
            task = f"{task}\n\n{text}"

        role = self.loaded.role(self.role)
        is_bounded = since is not None and role.resume == "bounded"
        self._since, self._task, self._recalled = since, self.mask.text(task), self.mask.text(recalled)
        self._prompt = prompt.assemble(
            role,
            name=self.role,
            task=task,
            newest_first=self._past_steps(),
            instruction=f"{self.way.prompt}\n\n{REREAD}" if is_bounded else self.way.prompt,
            show_command=self._show_command,
            knowledge=recalled,
            last_turn=since,
        )
        return self._prompt

    @property
    def _show_command(self) -> str:
        return f"rolecall thread read {self.thread}"

    def _steps_shown_since(self, since: int | None) -> Sequence[prompt.ShownStep]:
        """Return the earlier steps to show to a session that has already seen the steps up to number `since`."""
        if self._prompt is not None and self._since == since:
            return self._prompt.shown
        chosen = prompt.choose_steps(self._past_steps(), since=since or 0, show_command=self._show_command)
        return [step for step, _ in chosen]

    def _past_steps(self) -> Iterator[prompt.ShownStep]:
        for step in self.loaded.chain:
            if step.role != thread.FORK:
                self._steps_shown[step.number] = step.id
                yield step.past
        if (member := self.loaded.chain.start.member) is not None:
            group = self.loaded.defined.roles[member.group.role].group
            for node, past in read_above(self.store, member.group.above, group.each if group else None):
                self._steps_shown[past.number] = node
                yield past

    def note_asking(self, agent: str, *, run: str = "") -> None:
        """Write the note that names the agent, before the agent is asked. `run` marks the processes that the agent
        starts."""
        self.agent = self.mask.text(agent)
        note = self._begin_note()._replace(
            agent=self.agent,
            by=self.agent,
            run=run,
            session=(not self.session.is_fork and self.session.session) or "",
            session_total=describe_usage(self.session.total),
            session_reason=self.session.reason,
            sandbox=self.note.sandbox,
        )
        self._write(note, "step_started", {"role": self.role, "agent": self.agent, "number": self.number})

    def note_sandbox(self, use: SandboxUse | None) -> None:
        """Add the sandbox of the agent's processes, and how it is enforced, to the note in memory."""
        self.note = self.note._replace(sandbox=dict(self.mask.value(make_plain(use or {}))))

    def note_reuse(self, step: str, of_thread: str) -> None:
        """Record in the note in memory which finished step is being taken over; `write_note` stores the note."""
        self.note = self._begin_note()._replace(reused={"step": step, "thread": of_thread})

    def _begin_note(self) -> AttemptNote:
        return AttemptNote(
            head=self.loaded.chain.head,
            role=self.role,
            since=self._since,
            recalled=self._recalled,
            started_at=self.started_at,
            tree=self.note.tree,
            parts=self.dump_parts(),
        )

    def write_note(self) -> None:
        """Store the current note, so that it survives a crash of the process."""
        self._write(self.note)

    def note_sign(self, kind: str, body: JsonObject) -> None:
        """Handle a live event from the agent. Write a session id to the note at once, so that the session can be
        resumed after a crash."""
        given = make_plain(body)
        if kind == "text" and isinstance(given.get("text"), str):
            given["text"] = self._live.feed(given["text"])
            if not given["text"]:
                return
        given = self.mask.value(given)
        if kind == "session" and self._is_owner:
            self._write(self.note._replace(session=given.get("session") or self.note.session), kind, given)
        elif kind == "process" and self._is_owner and isinstance(given.get("run"), str):
            # A process that an agent keeps open between steps has its own run id, not this attempt's.
            runs = list(dict.fromkeys([*self.note.runs, given["run"]]))
            self._write(self.note._replace(runs=runs[-_MOST_RUNS:]), kind, given)
        else:
            self._tell(kind, given)

    # -- files --

    @property
    def tree(self) -> StepTree | None:
        """The files before and after the role's turn, as recorded in the note."""
        return load_tree(self.note.tree)

    async def find_files(self) -> None:
        """Record the files before the role's turn."""
        tree = await self.files.find()
        self._note_tree(tree)
        if self._shared is not None and self._shared.is_new:
            await self._send_files(tree.found if tree else None)

    async def leave_files(self) -> None:
        """Record the files that the role left, and the changes that the role made. Report changes by a read-only
        role."""
        tree = await self.files.leave(self.tree, self.started_at)
        if self._is_owner:
            self._note_tree(tree)
        await self._send_files(tree.left if tree else None)

    def _note_tree(self, tree: StepTree | None) -> None:
        stored = dict(self.mask.value(make_plain(tree.dump()))) if tree else {}
        self.note = self.note._replace(tree=stored)

    async def _send_files(self, files: Snapshot | None) -> None:
        sent = await self._shared.send(files, self.workdir) if self._shared else None
        if self._shared is None or sent is None:
            return
        if sent.reason:
            self.remark(f"the thread stays on this machine: {sent.reason}")
        draft, body = self.store.draft(), {"bytes": sent.size, "ms": sent.ms, "reason": sent.reason}
        try:
            if self._ref is not None:
                # A process that has lost the thread must not report the state of the thread's files.
                self.look_again()
                self._add_note(draft, self.previous, self.note)
            self._shared.add(draft, sent)
            draft.event(self.thread, "files_sent", body)
            # The commit is durable, because the store must know the newest state of a folder.
            *noted, moved = draft.commit(durable=True)
        except Conflict:  # the answer is recorded next, as a failed attempt of this process
            return
        if noted:
            self._ref = NoteRef(self.note, self.previous, noted[0])
        self._shared.mark(moved)
        self.watch("files_sent", body)

    async def find_parts(self, setup: Setup, cast: Cast) -> None:
        """Find what the answer depends on. Call this once the prompt and the files are known."""
        if self._is_owner:
            with contain(f"the agent {cast.name!r}"):
                self.parts = await find_parts(setup, self.question, cast.agent)

    @property
    def question(self) -> KeyInput:
        """The question that the role is about to be asked, from which the parts of the key are computed."""
        found = self.tree.found if self.tree else None
        return KeyInput(
            self.loaded,
            self.role,
            self.workdir,
            self.files.below_top if found else ".",
            found.tree if found and not found.nested else "",
            self._task,
            self.instruction,
            self._recalled,
            self._steps_shown_since,
            self._origin,
            self.state.repeat or 0,
        )

    def commits(self) -> Iterator[str]:
        """Yield the commits made during the step and during the failed attempts before it."""
        for stored in (self.note.tree, *(attempt.get("tree") or {} for attempt in self._attempts())):
            yield from stored.get("commits", ())

    def dump_parts(self) -> dict[str, Any]:
        return self.parts.dump(self.note.tree.get("found", "")) if self.parts else {}

    # -- the answer --

    def note_answer(self, given: protocol.Reply) -> AgentAnswer:
        """Record the agent's answer before anything uses it."""
        self._tell_rest()
        note = self.note._replace(
            raw=self.mask.text(make_plain(given.text)),
            session=self.mask.value(make_plain(given.session)) or self.note.session,
            session_total=describe_usage(given.session_total),
            children=list(given.children),
            usage=describe_usage(given.usage),
            detail=self._with_remarks(self.mask.value(make_plain(describe_reply(given)))),
            completed_at=self.store.now(),
            step=given.step or "",
        )
        try:
            self._write(note)
        except Conflict:
            self._keep_beside("the thread was taken over before this answer arrived")
            raise
        return AgentAnswer(note.raw, note.session, note.step)

    def note_taken(self, files: Sequence[str]) -> None:
        """Record the files that the agent of the reused step touched."""
        detail = {"turns": [], "files": list(files)} if files else {}
        self.note = self.note._replace(detail=self._with_remarks(detail))

    def remark(self, text: str) -> None:
        """Add a remark to the step's detail, for people who read the step."""
        text = self.mask.text(text)
        if text not in self._remarks:
            self._remarks.append(text)
            self._tell("remark", {"role": self.role, "text": text})

    def add_usage(self, usage: JsonObject) -> None:
        """Add the extract model's usage to the step's usage."""
        known = dict(self.note.usage)
        for key, name in (("input_tokens", "prompt_tokens"), ("output_tokens", "completion_tokens")):
            if usage.get(name, 0):
                known[key] = known.get(key, 0) + usage[name]
        self.note = self.note._replace(usage=known)

    def understand(self, found: reply.ParsedReply | reply.Suspension) -> StepResult:
        if isinstance(found, reply.Suspension):
            output = {"$status": SUSPEND, "reason": found.reason}
            return StepResult(output, found.body, schema=thread.SUSPENSION_SCHEMA)
        for repair in found.repairs:
            self.remark(repair)
        self.note = self.note._replace(detail=self._with_remarks(self.note.detail))
        return StepResult(dict(found.output), found.body)

    def adopt(self, step: str) -> StepResult:
        """Check a step that an external agent put into the store, and return it as the result."""
        done = adoption.read_step(self.store, step, attempt=self.previous)
        if done.is_ours:
            self.previous = done.payload.get("attempt")
        adoption.check(
            self.store, done, self.loaded, self.role, number=self.number, totals=self.totals(), mask=self.mask
        )
        if done.is_ours:
            return StepResult(done.output, done.body, step=step)
        if done.turns:
            self.note = self.note._replace(detail=self._with_remarks({"turns": self.mask.value(done.turns)}))
        schema = thread.SUSPENSION_SCHEMA if adoption.is_suspension(done.output) else None
        return StepResult(done.output, done.body, raw=done.body, schema=schema, given=step)

    # -- failing --

    def fail(self, error: str, cause: RolecallError | None = None) -> None:
        """Store the note as a failed attempt, so that none of the agent's output is lost."""
        self._tell_rest()
        if isinstance(cause, AgentError):
            self._note_given(cause)
        elif not (isinstance(cause, ExtractError) and cause.is_outage):
            self.note = self.note._replace(unread=False)  # asking the extract model again would not help
        ending = cause.ending if isinstance(cause, AgentError) else ""
        self._found = self.tree
        if self._is_owner:
            try:
                self.look_again()
            except Conflict:
                self._keep_beside(error)
                raise

        # The note keeps these fields for the next attempt at this step. Usage is counted with the failed attempt.
        kept: tuple[str, ...] = ()
        if self.note.unread:
            kept = (*_OF_SESSION, *_OF_ANSWER)
        elif self.note.session and ending not in ("failed", "killed"):  # the session might be the cause
            kept = _OF_SESSION
        note = AttemptNote(**{key: getattr(self.note, key) for key in kept})
        draft = self.store.draft()
        attempt = self._put_attempt(draft, error, ending)
        event = {"attempt": attempt, "role": self.role, "error": self.mask.text(make_plain(error))}
        draft.event(self.thread, "attempt_failed", event)
        if self._is_owner:
            self._add_note(draft, attempt, note)
        for moved in draft.commit():
            self._ref = NoteRef(note, attempt, moved)
        self.previous, self.note = attempt, note
        self.tries += 1
        self.started_at = self.store.now()
        self.watch("attempt_failed", event)

    def unreadable(self, error: ExtractError) -> StepResult:
        """Return the result for an answer that could not be parsed. A moderator decides what happens next."""
        output = {"$status": ERROR, "reason": error.message}
        return StepResult(output, error.raw, raw=error.raw, schema=thread.ERROR_SCHEMA)

    def _note_given(self, error: AgentError) -> None:
        detail = drop_empty(
            {"turns": [describe_turn(turn) for turn in error.turns], "files": list(error.files)}
        )
        given = {
            "raw": error.text,
            "session": error.session,
            "children": list(error.children),
            "detail": {"turns": [], **detail} if detail else {},
        }
        given = self.mask.value(make_plain(given))
        given["detail"] = self._with_remarks(given["detail"])
        used = {"usage": describe_usage(error.usage), "session_total": describe_usage(error.session_total)}
        self.note = self.note._replace(**drop_empty({**given, **used}))

    def _keep_beside(self, error: str) -> None:
        """Record a failed attempt although another process now runs the thread, and keep the note of that process."""
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
            "start": self.loaded.chain.start.id,
            "head": note.head or self.loaded.chain.head,
            "role": note.role or self.role,
            "agent": note.agent or self.agent,
            "state": "failed",
            "error": self.mask.text(make_plain(error)),
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
        known = drop_empty(fields, keep=("agent",))
        return draft.put_as(thread.find_type(thread.ATTEMPT_SCHEMAS, known), known)

    # -- the contents of the step --

    def put_context(self, draft: Draft) -> dict[str, Any]:
        """Return the fields that steps and failed attempts share, and add the nodes of these fields to `draft`."""
        note, prompt = self.note, None
        if self._prompt is not None:
            parts: list[JsonObject] = []
            for part in self._prompt.parts:
                text = self.mask.text(part.text)
                if part.step in self._steps_shown and text == part.text:
                    parts.append({"step": self._steps_shown[part.step], "form": 1})
                else:
                    is_long = len(text) > _LITERAL
                    parts.append({"text": draft.put_text(text)} if is_long else {"literal": text})
            prompt = draft.put_as(thread.PROMPT_SCHEMA, {"parts": parts})
        return {
            "prompt": prompt,
            "edge_prompt": self.instruction,
            "detail": draft.put_as(thread.DETAIL_SCHEMA, note.detail) if note.detail else None,
            "session": note.session,
            "session_reason": note.session_reason,
            "session_total": note.session_total,
            "children": note.children,
            "tree": note.tree,
            "sandbox": note.sandbox,
        }

    def close(self, draft: Draft) -> None:
        """Add the removal of the note's ref to the step's draft. The ref is no longer needed, because the step itself
        links to the failed attempts."""
        if self._ref is not None:
            draft.move(self._ref.ref.name, self._ref.ref)

    def look_again(self) -> None:
        """Read the note again, because a process that lost the thread can have added an attempt. Raise `Conflict` if
        another process has written a note of its own, because that process has taken over the thread."""
        if not self._is_owner:
            return
        there = read_note(self.store, self.thread)
        if (there.note.run if there else "") != (self._ref.note.run if self._ref else ""):
            raise Conflict(
                f"thread {self.thread} was taken over while this step ran",
                hint=Hint("See it", "show_thread", before="What the agent gave is kept.", thread=self.thread),
            )
        self._ref, self.previous = there, there.attempt if there else None

    def _add_note(self, draft: Draft, attempt: str | None, note: AttemptNote) -> None:
        draft.move(attempt_name(self.thread), self._ref and self._ref.ref, attempt, note.dump())

    def _write(self, note: AttemptNote, kind: str = "", body: JsonObject | None = None) -> None:
        self.note = note
        if not self._is_owner:
            return
        self.look_again()
        draft = self.store.draft()
        self._add_note(draft, self.previous, note)
        if kind:
            draft.event(self.thread, kind, body or {})
        # This write survives a crash of the process; only the step's commit waits for the disk.
        self._ref = NoteRef(note, self.previous, draft.commit(durable=False)[0])
        if kind:
            self.watch(kind, body or {})

    def _tell(self, kind: str, body: JsonObject) -> None:
        draft = self.store.draft()
        draft.event(self.thread, kind, body)
        draft.commit()
        self.watch(kind, body)

    def _tell_rest(self) -> None:
        if rest := self._live.rest():
            self._tell("text", {"text": rest})

    def _with_remarks(self, detail: JsonObject) -> JsonObject:
        # If a process died, the detail already contains the remarks of that process.
        notes = list(dict.fromkeys([*detail.get("notes", ()), *self._remarks]))
        return {"turns": [], **detail, "notes": notes} if notes else detail
