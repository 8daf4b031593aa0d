"""What is written down about a step while it happens, and the step itself in the end.

Before the agent is asked, a pending note says so; its session id and its answer go into that note as
soon as they are known. The note is the state of the ref `attempt/<thread>`, so a process that takes the
thread up after a crash finds it. A failed attempt becomes a node; the step that succeeds in the end
links the attempts before it, and the ref goes.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from rolecall.agents import protocol
from rolecall.errors import AgentError, Conflict, ExtractError, Hint, RolecallError, UsageError
from rolecall.settings.mask import Mask
from rolecall.store.backend import Ref
from rolecall.store.store import Draft, Store
from rolecall.threads import adoption, evidence, prompt, thread
from rolecall.threads.sessions import REREAD, Decision, Fork, Origin, decide, usage_of
from rolecall.threads.thread import (
    ATTEMPT_SCHEMA,
    DETAIL_SCHEMA,
    ERROR_SCHEMA,
    PROMPT_SCHEMA,
    SUSPENSION_SCHEMA,
)
from rolecall.threads.turn import ERROR, Turn, contained, way_on
from rolecall.workflow.model import SUSPEND, Recall, workdir_of
from rolecall.workflow.reply import Reply, Suspension
from rolecall.workflow.route import Next, Route

if TYPE_CHECKING:
    from rolecall.threads.engine import Cast

_OF_SESSION = ("head", "role", "by", "session", "session_total")
_OF_ANSWER = ("since", "recalled", "raw", "detail", "children", "unread")
_MOST_RUNS = 8
"""An agent may start a process for every command it runs; those carry the mark of the step."""
_NOT_SEARCHED = "There is no search of the repository to be had for this task: look for yourself."
_LITERAL = 60
"""A part of a prompt shorter than this is not worth a node of its own."""


class Recalled(NamedTuple):
    """Passages of the repository as they are told, and what a person should know about how they were found."""

    text: str
    notes: Sequence[str] = ()


Recaller = Callable[[Recall, str, str], Awaitable[Recalled]]
"""(what a role wants, the question, the folder) -> what the repository says; raises UsageError."""


async def no_knowledge(_wanted: Recall, _question: str, _folder: str) -> Recalled:
    raise UsageError(
        "the role wants the repository's knowledge", hint="This engine was given none to look in."
    )


@dataclass(frozen=True)
class Answer:
    text: str
    session: str | None
    step: str | None = None
    """A step that an external agent has put itself."""
    is_unread: bool = False
    """The agent has had its chance to correct it: only a model can find the output in it."""


class Recorder:
    """The records of one step of one thread, from before it is asked until it is in the chain."""

    def __init__(
        self,
        store: Store,
        name: str,
        turn: Turn,
        way: Next,
        *,
        mask: Mask,
        watch: Callable[[str, Mapping[str, Any]], None] = lambda _kind, _body: None,
        is_owner: bool = True,
        fork: Fork | None = None,
        origin: Origin | None = None,
        recall: Recaller = no_knowledge,
    ) -> None:
        """`is_owner` is False in the process of an external agent: the one that asked it keeps the ref. `recall`
        finds what the repository says about a task."""
        self._recall = recall
        self._recalled = ""
        self._fork = fork
        self._origin = origin
        self._lost: frozenset[str] = frozenset()
        self._remarks: list[str] = []
        self.going_on = Decision("")
        """In which of the agent's sessions it is asked, and why."""
        self._store = store
        self._watch = watch
        self.thread = name
        self.turn = turn
        self.role = way.role
        self._way = way
        self._mask = mask
        self.workdir = _workdir(store, turn, way)
        self._started = store.now()
        self._prompt: prompt.Prompt | None = None
        self._told: dict[int | None, str] = {}
        self._is_owner = is_owner
        self._ref = store.ref(thread.attempt_name(name))
        self._attempt = self._ref.target if self._ref else None
        self._note: dict[str, Any] = dict(self._ref.state) if self._ref else {}
        if self._is_left_here():
            self._started = self._note.get("started_at", self._started)
        self._since: int | None = None
        self._live = mask.stream()
        self.agent = str(self._note.get("by", ""))
        """The name of the agent that is being asked."""
        self.tries = len(list(self._attempts()))

    @property
    def number(self) -> int:
        return (self.turn.last.number if self.turn.last else 0) + 1

    @property
    def instruction(self) -> str:
        """What the edge to the role says."""
        return self._mask.text(self._way.prompt)

    @property
    def session(self) -> str | None:
        return self._note.get("session")

    # -- before the answer --

    def _is_left_here(self) -> bool:
        """Whether the note is about this very step, and not one that a person has moved the thread away from."""
        return self._note.get("head") == self.turn.chain.head and self._note.get("role") == self.role

    async def waiting_answer(self) -> Answer | None:
        """An answer that had arrived before the process that asked for it died."""
        if not self._is_left_here() or ("raw" not in self._note and "step" not in self._note):
            return None
        # What was asked is told by the chain, so the step can keep it as if nothing had happened.
        self._since = self._note.get("since")
        self._recalled = self._note.get("recalled", "")
        await self._assemble()
        return Answer(
            self._note.get("raw", ""),
            self._note.get("session"),
            self._note.get("step"),
            is_unread=bool(self._note.get("unread")),
        )

    async def prompt_for(self, cast: Cast) -> str:
        """What to tell the agent; in which session to tell it is in `going_on`."""
        await self.close_left_behind()
        self.agent = self._mask.text(cast.name)
        self.going_on = self._decided(cast)
        self._since = self.going_on.since
        self._recalled = await self._found_in_repository()
        return (await self._assemble()).text

    def correct(self) -> None:
        """The answer that was given is asked for once more, in the session that gave it."""
        total = usage_of(self._note.get("session_total"))
        self.going_on = Decision("resumed: a correction", self.session, total=total)

    async def _assemble(self) -> prompt.Prompt:
        is_bounded = self._since is not None and self.turn.role(self.role).resume == "bounded"
        self._prompt = prompt.assemble(
            self.turn.role(self.role),
            name=self.role,
            task=await self._task(),
            newest_first=self._past(),
            instruction=f"{self._way.prompt}\n\n{REREAD}" if is_bounded else self._way.prompt,
            show_command=f"rolecall thread read {self.thread}",
            knowledge=self._recalled,
            last_turn=self._since,
        )
        return self._prompt

    async def _found_in_repository(self) -> str:
        """For a role that wants it, and a session that has not been told."""
        wanted = self.turn.role(self.role).knowledge
        if wanted is None or self._since is not None:
            return ""
        try:
            found = await self._recall(wanted, f"{self.turn.task}\n{self._way.prompt}", self.workdir)
        except UsageError as error:
            if wanted.is_required:
                raise
            found = Recalled(_NOT_SEARCHED, [f"{error.message}. {error.hint}"])
        for note in found.notes:
            self.remark(note)
        return found.text

    async def _task(self) -> str:
        """What the thread is for and, where that is Python's to say, what the role is to do about it."""
        told = self.turn.playbook.prompts.get(self.role)
        if told is None:
            return self.turn.task
        with contained(f"the prompt of {self.role}"):
            text = await told(self.turn.context(workdir=self.workdir))
        if not isinstance(text, str):
            raise UsageError(f"the prompt of {self.role} must return text, not {type(text).__name__}")
        return f"{self.turn.task}\n\n{text}"

    async def close_left_behind(self) -> None:
        """Nobody reads what the child of a dead process still says, so it must not go on working."""
        if "agent" not in self._note or not self._is_owner:
            return
        for run in filter(None, (self._note.get("run"), *self._note.get("runs", ()))):
            from rolecall.agents.process import end_leftovers

            await end_leftovers(run)
        self.failed("the process that ran this attempt is gone")

    def _decided(self, cast: Cast) -> Decision:
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
            # A session in which an attempt has failed may be what is broken.
            origin=None if self.tries and not self._lost else self._origin,
            interrupted=self._note if self._is_left_here() else None,
            lost=self._lost,
        )

    def forget_session(self, session: str) -> None:
        """The agent does not know this session: it is not tried again for this step."""
        self._lost |= {session}

    def _past(self) -> Iterator[prompt.PastStep]:
        for step in self.turn.chain:
            if step.role == thread.FORK:
                continue
            self._told[step.number] = step.id
            yield thread.told(step)

    def asking(self, agent: str, *, run: str = "") -> None:
        """Note who is asked before it is; `run` marks whatever processes the agent is going to start."""
        self.agent = self._mask.text(agent)
        note = {
            "head": self.turn.chain.head,
            "role": self.role,
            "agent": self.agent,
            "by": self.agent,
            "run": run,
            "since": self._since,
            "recalled": self._mask.text(self._recalled) or None,
            "started_at": self._started,
            "session": None if self.going_on.is_fork else self.going_on.session,
            "session_total": evidence.usage(self.going_on.total),
            "session_reason": self.going_on.reason,
        }
        event = {"role": self.role, "agent": self.agent, "number": self.number}
        self._write(note, event=("step_started", event))

    def sign(self, kind: str, body: Mapping[str, Any]) -> None:
        """A live sign of the agent. Its session is noted at once, so that whoever takes the thread up
        after a crash can resume it."""
        told = evidence.plain(body)
        if kind == "text" and isinstance(told.get("text"), str):
            told["text"] = self._live.feed(told["text"])
            if not told["text"]:
                return
        event = (kind, self._mask.value(told))
        if kind == "session" and self._is_owner:
            self._write({**self._note, **evidence.filled({"session": event[1].get("session")})}, event=event)
            return
        if kind == "process" and self._is_owner and isinstance(told.get("run"), str):
            # A process that an agent keeps from step to step does not carry the mark of this one.
            runs = dict.fromkeys([*self._note.get("runs", ()), told["run"]])
            self._write({**self._note, "runs": list(runs)[-_MOST_RUNS:]}, event=event)
            return
        self._tell(*event)

    def _tell(self, kind: str, body: Mapping[str, Any]) -> None:
        draft = self._store.draft()
        draft.event(self.thread, kind, body)
        draft.commit()
        self._watch(kind, body)

    # -- the answer --

    def answered(self, reply: protocol.Reply) -> Answer:
        """Write the answer down before anything is done with it."""
        self._tell_rest()
        text = self._mask.text(evidence.plain(reply.text))
        note = {
            **self._note,
            "raw": text,
            "session": self._mask.value(evidence.plain(reply.session)) or self._note.get("session"),
            "session_total": evidence.usage(reply.session_total),
            "children": list(reply.children),
            "usage": evidence.usage(reply.usage),
            "detail": self._with_notes(self._mask.value(evidence.plain(evidence.detail(reply)))),
            "completed_at": self._store.now(),
            "step": reply.step,
        }
        try:
            self._write(note)
        except Conflict:
            self._keep_beside("the thread was taken over before this answer came")
            raise
        return Answer(text, self._note.get("session"), reply.step)

    def remark(self, text: str) -> None:
        """Something a reader of the step should know, kept with what the agent did."""
        text = self._mask.text(text)
        if text not in self._remarks:
            self._remarks.append(text)
            self._tell("remark", {"role": self.role, "text": text})

    def _with_notes(self, detail: dict[str, Any] | None) -> dict[str, Any] | None:
        if not self._remarks:
            return detail
        return {"turns": [], **(detail or {}), "notes": list(self._remarks)}

    def _tell_rest(self) -> None:
        if rest := self._live.rest():
            self._tell("text", {"text": rest})

    def reading(self) -> None:
        """A model is asked to read the answer: if that fails, the answer stays to be read again."""
        self._note["unread"] = True

    def add_usage(self, usage: Mapping[str, Any]) -> None:
        """What the extract model used belongs to the step it was asked for."""
        known = self._note.get("usage") or {}
        added = {
            "input_tokens": usage.get("prompt_tokens", 0),
            "output_tokens": usage.get("completion_tokens", 0),
        }
        self._note["usage"] = known | {
            key: known.get(key, 0) + value for key, value in added.items() if value
        }

    def failed(self, error: str, cause: RolecallError | None = None) -> None:
        """Turn the note into an attempt node: nothing the agent gave is lost."""
        self._tell_rest()
        if isinstance(cause, AgentError):
            self._note |= self._given_by(cause)
        elif not (isinstance(cause, ExtractError) and cause.is_outage):
            self._note.pop("unread", None)  # reading it again would find no more in it
        ending = cause.ending if isinstance(cause, AgentError) else ""
        if self._is_owner:
            try:
                self._look_again()
            except Conflict:
                self._keep_beside(error)
                raise
        draft = self._store.draft()
        attempt = self._put_attempt(draft, error, ending)
        kept = evidence.filled({key: self._note.get(key) for key in self._kept_after(ending)})
        event = {"attempt": attempt, "role": self.role, "error": self._mask.text(evidence.plain(error))}
        draft.event(self.thread, "attempt_failed", event)
        if self._is_owner:
            draft.move(thread.attempt_name(self.thread), self._ref, attempt, kept)
        self._ref = next(iter(draft.commit()), self._ref)
        self._attempt, self._note = attempt, kept
        self.tries += 1
        self._started = self._store.now()
        self._watch("attempt_failed", event)

    def _kept_after(self, ending: str) -> tuple[str, ...]:
        """What of a failed attempt the next one at the same step goes on from."""
        if self._note.get("unread"):
            # What it cost is counted with the attempt; the answer itself is not asked for again.
            return (*_OF_SESSION, *_OF_ANSWER)
        if "session" not in self._note or ending in ("failed", "killed"):
            return ()  # a session that may itself be what is broken is not tried again
        return _OF_SESSION

    def _given_by(self, error: AgentError) -> dict[str, Any]:
        """What an agent had given before it failed."""
        did = {
            "turns": [evidence.turn(turn) for turn in error.turns],
            **evidence.filled({"files": list(error.files)}),
        }
        detail = did if error.turns or error.files else None
        given = {"raw": error.text, "session": error.session, "children": list(error.children)}
        given = self._mask.value(evidence.plain({**given, "detail": detail}))
        given["detail"] = self._with_notes(given["detail"])
        used = {"usage": evidence.usage(error.usage), "session_total": evidence.usage(error.session_total)}
        return evidence.filled({**given, **used})

    def _keep_beside(self, error: str) -> None:
        """Add an attempt to those of whoever runs the thread now; the note there is theirs and stays."""
        name = thread.attempt_name(self.thread)
        while True:
            ref = self._store.ref(name)
            self._attempt = ref.target if ref else None
            draft = self._store.draft()
            draft.move(name, ref, self._put_attempt(draft, error), ref.state if ref else {})
            try:
                draft.commit()
            except Conflict:
                continue
            return

    def _put_attempt(self, draft: Draft, error: str, ending: str = "") -> str:
        note = self._note
        raw = note.get("raw")
        fields = {
            "start": self.turn.chain.start.id,
            "head": note.get("head", self.turn.chain.head),
            "role": note.get("role", self.role),
            "agent": note.get("agent", self.agent),
            "state": "failed",
            "error": self._mask.text(evidence.plain(error)),
            "ending": ending,
            "started_at": note.get("started_at", self._started),
            "completed_at": self._store.now(),
            "cwd": self.workdir,
            "edge_prompt": self._mask.text(self._way.prompt) or None,
            "raw": draft.put_text(raw) if raw else None,
            "prompt": self._put_prompt(draft),
            "detail": draft.put_as(DETAIL_SCHEMA, note["detail"]) if note.get("detail") else None,
            **self._session_fields(),
            "usage": note.get("usage"),
            "previous": self._attempt,
            "number": self.number,
        }
        return draft.put_as(ATTEMPT_SCHEMA, evidence.filled(fields, keep=("agent",)))

    # -- the step --

    def understood(self, found: Reply | Suspension) -> dict[str, Any]:
        if isinstance(found, Suspension):
            output = {"$status": SUSPEND, "reason": found.reason}
            return {"output": output, "schema": SUSPENSION_SCHEMA, "body": found.body}
        for repair in found.repairs:
            self.remark(repair)
        self._note["detail"] = self._with_notes(self._note.get("detail"))
        return {"output": dict(found.output), "body": found.body}

    def unreadable(self, error: ExtractError) -> dict[str, Any]:
        """A step that says its answer could not be read, for a moderator to decide about."""
        output = {"$status": ERROR, "reason": error.message}
        return {"output": output, "schema": ERROR_SCHEMA, "body": error.raw, "text": error.raw}

    def adopted(self, step: str) -> dict[str, Any]:
        """A step an external agent has put: taken only if it extends what we gave out."""
        done = adoption.found(self._store, step, attempt=self._attempt)
        if done.is_ours:
            self._attempt = done.payload.get("attempt")
        adoption.check(
            self._store, done, self.turn, self.role, number=self.number, totals=self.totals(), mask=self._mask
        )
        if done.is_ours:
            return {"step": step, "output": done.output, "body": done.body}
        if done.turns:
            self._note["detail"] = self._with_notes({"turns": self._mask.value(done.turns)})
        found = {"output": done.output, "text": done.body, "given": step}
        return found | ({"schema": SUSPENSION_SCHEMA} if adoption.is_suspension(done.output) else {})

    def put_step(
        self, draft: Draft, found: Mapping[str, Any], *, limits: Mapping[str, float] | None = None
    ) -> tuple[str, Route]:
        """Add the step to `draft`; return its id and the thread's next route. `limits` are the thread's own, which
        a fork from the step keeps."""
        if self._is_owner:
            self._look_again()
        output, body = (
            self._mask.value(found["output"]),
            self._mask.text(found.get("body", found.get("text", ""))),
        )
        added = {"role": self.role, "output": output, "body": body}
        onward = way_on(self.turn, self.role, output, body, [added])
        if "step" in found:
            return found["step"], onward
        note = self._note
        raw = self._mask.text(found.get("text", note.get("raw", "")))
        usage, now = note.get("usage"), self._store.now()
        used = thread.counted(usage, ms=now - self._started)
        fields = {
            "start": self.turn.chain.start.id,
            "prev": self.turn.chain.head if self.turn.last else None,
            "number": self.number,
            "role": self.role,
            "output": self._put_output(draft, found, output),
            "agent": found.get("agent") or self.agent,
            "raw": raw,
            **_where_body(draft, raw, body),
            "prompt": self._put_prompt(draft),
            "edge_prompt": self._mask.text(self._way.prompt) or None,
            "detail": draft.put_as(DETAIL_SCHEMA, note["detail"]) if note.get("detail") else None,
            **self._session_fields(),
            "usage": usage or None,
            "attempt": self._attempt,
            "given": found.get("given"),
            "started_at": self._started,
            "completed_at": now,
            "cwd": self.workdir,
            "totals": thread.add_totals(self.totals(), self.role, used),
            "limits": dict(limits or {}),
        }
        return thread.put_step(
            draft, evidence.filled(fields, keep=("prev", "number", "totals", "agent"))
        ), onward

    def _session_fields(self) -> dict[str, Any]:
        return {
            key: self._note.get(key) for key in ("session", "session_reason", "session_total", "children")
        }

    def settle(self, draft: Draft) -> None:
        """The step is in the chain: the note and the attempts' ref have served."""
        if self._ref is not None:
            draft.move(self._ref.name, self._ref)

    def _put_output(self, draft: Draft, found: Mapping[str, Any], output: Any) -> str:
        if "schema" in found:
            return draft.put_as(found["schema"], output)
        known = self.turn.playbook.schema_ids.get(self.role)
        return (
            draft.put(known, output)
            if known
            else draft.put(draft.put_schema(dict(self.turn.role(self.role).schema)), output)
        )

    def _put_prompt(self, draft: Draft) -> str | None:
        if self._prompt is None:
            return None
        parts = [self._prompt_part(draft, part) for part in self._prompt.parts]
        return draft.put_as(PROMPT_SCHEMA, {"parts": parts})

    def _prompt_part(self, draft: Draft, part: prompt.Part) -> dict[str, Any]:
        """A part of a prompt: an earlier step by its id, a short text as it is, a long one as a node."""
        text = self._mask.text(part.text)
        if part.step in self._told and text == part.text:
            return {"step": self._told[part.step], "form": 1}
        return {"text": draft.put_text(text)} if len(text) > _LITERAL else {"literal": text}

    def totals(self) -> dict[str, Any]:
        """What the thread has used so far, failed attempts of this step included."""
        totals = dict(self.turn.totals)
        for attempt in self._attempts():
            ms = attempt.get("completed_at", 0) - attempt["started_at"]
            totals = thread.add_totals(
                totals, attempt["role"], thread.counted(attempt.get("usage"), ms=ms, steps=0)
            )
        return totals

    def _attempts(self) -> Iterator[dict[str, Any]]:
        node = self._attempt
        while node is not None:
            payload = self._store.get(node).payload
            yield payload
            node = payload.get("previous")

    def _write(self, note: dict[str, Any], event: tuple[str, Mapping[str, Any]] | None = None) -> None:
        self._note = evidence.filled(note)
        if not self._is_owner:
            return
        self._look_again()
        draft = self._store.draft()
        draft.move(thread.attempt_name(self.thread), self._ref, self._attempt, self._note)
        if event is not None:
            draft.event(self.thread, *event)
        # A process that dies loses nothing of this; waiting for the disk is left to the step's commit.
        self._ref = draft.commit(durable=False)[0]
        if event is not None:
            self._watch(*event)

    def _look_again(self) -> None:
        """The attempts' ref as it is now. A step that lost its thread may have added an attempt to it; that
        somebody else has written a note means that we are the ones who lost it."""
        ref = self._store.ref(thread.attempt_name(self.thread))
        if _run_of(ref) != _run_of(self._ref):
            raise Conflict(
                f"thread {self.thread} was taken over while this step ran",
                hint=Hint("See it", "show_thread", before="What the agent gave is kept.", thread=self.thread),
            )
        self._ref, self._attempt = ref, ref.target if ref else None


def _run_of(ref: Ref | None) -> Any:
    return ref.state.get("run") if ref else None


def _workdir(store: Store, turn: Turn, way: Next) -> str:
    """The folder that the workflow has for the role, or the one that the edge names, seen from there."""
    cwd, kind = turn.chain.start.cwd, workdir_of(turn.workflow, way.role)
    if kind != "shared":
        from rolecall.threads import workfolder

        cwd = workfolder.for_step(store, turn.thread, turn.chain, kind)
    folder = os.path.join(cwd, os.path.expanduser(way.location)) if way.location else cwd
    if not os.path.isdir(folder):
        raise UsageError(
            f"the work folder {folder!r} does not exist", hint="Make it, or fork the thread with another one."
        )
    return folder


def _where_body(draft: Draft, raw: str, body: str) -> dict[str, Any]:
    """The body as a place in the answer where it is its end, which is nearly always."""
    if raw.endswith(body):
        return {"body_at": len(raw) - len(body)}
    return {"body": draft.put_text(body)}
