"""What is written down about a step while it happens, and the step itself in the end.

Before the agent is asked, a pending note says so; its session id and its answer go into that note as
soon as they are known. The note is the state of the ref `attempt/<thread>`, so a process that takes the
thread up after a crash finds it. A failed attempt becomes a node; the step that succeeds in the end
links the attempts before it, and the ref goes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from rolecall import prompt, thread
from rolecall.agents import protocol
from rolecall.errors import AgentError, ExtractError, RolecallError, UsageError
from rolecall.mask import Mask
from rolecall.reply import Reply, Suspension
from rolecall.route import Next, Route
from rolecall.store.store import Draft, Store
from rolecall.thread import ATTEMPT_SCHEMA, DETAIL_SCHEMA, PROMPT_SCHEMA, STEP_SCHEMA, SUSPENSION_SCHEMA
from rolecall.turn import ERROR, Turn, way_on
from rolecall.workflow import SUSPEND

if TYPE_CHECKING:
    from rolecall.engine import Cast

ERROR_SCHEMA: dict[str, Any] = {
    "title": "rolecall.error",
    "type": "object",
    "properties": {"$status": {"const": ERROR}, "reason": {"type": "string"}},
    "required": ["$status", "reason"],
    "additionalProperties": False,
}
_LITERAL = 40
"""A part of a prompt shorter than this is not worth a node of its own."""


@dataclass(frozen=True)
class Answer:
    text: str
    session: str | None
    step: str | None = None
    """A step that an external agent has put itself."""


class Recorder:
    """The records of one step of one thread, from before it is asked until it is in the chain."""

    def __init__(self, store: Store, name: str, turn: Turn, way: Next, *, mask: Mask) -> None:
        self._store = store
        self.thread = name
        self.turn = turn
        self.role = way.role
        self._way = way
        self._mask = mask
        self.workdir = _workdir(turn.chain.start.cwd, way.location)
        self._started = store.now()
        self._prompt: prompt.Prompt | None = None
        self._quotes: dict[str, tuple[str, int]] = {}
        self._ref = store.ref(thread.attempt_name(name))
        self._note: dict[str, Any] = self._left_behind()
        self.tries = len(list(self._attempts()))

    @property
    def number(self) -> int:
        return (self.turn.last.number if self.turn.last else 0) + 1

    @property
    def session(self) -> str | None:
        return self._note.get("session")

    # -- before the answer --

    def _left_behind(self) -> dict[str, Any]:
        """The note of an earlier process about this very step, if there is one."""
        note = dict(self._ref.state) if self._ref else {}
        if note.get("head") != self.turn.chain.head or note.get("role") != self.role:
            return {}
        self._started = note.get("started_at", self._started)
        return note

    def waiting_answer(self) -> Answer | None:
        """An answer that had arrived before the process that asked for it died."""
        if "raw" not in self._note:
            return None
        return Answer(self._note["raw"], self._note.get("session"), self._note.get("step"))

    async def prompt_for(self, cast: Cast) -> tuple[str, str | None]:
        """What to tell the agent, and the session to tell it in."""
        if self._note:
            self.failed("the process that ran this attempt is gone")
        goal = self.turn.playbook.prompts.get(self.role)
        role = self.turn.role(self.role)
        task = self.turn.task if goal is None else f"{self.turn.task}\n\n{await goal(self.turn.context())}"
        session, last_turn = self._resumable(cast)
        self._prompt = prompt.assemble(
            role,
            name=self.role,
            task=task,
            newest_first=self._past(),
            instruction=self._way.prompt,
            show_command=f"rolecall thread read {self.thread}",
            last_turn=last_turn,
        )
        return self._prompt.text, session

    def _resumable(self, cast: Cast) -> tuple[str | None, int | None]:
        """The agent's own session to go on in, and the step that ended it last; neither when it cannot."""
        if not getattr(cast.agent, "can_resume", False):
            return None, None
        if interrupted := self._note.get("session"):
            return interrupted, None
        if self.turn.role(self.role).resume not in ("bounded", "persistent"):
            return None, None
        for step in self.turn.chain:
            if step.role == self.role and step.agent == cast.name and step.payload.get("session"):
                return step.payload["session"], step.number
        return None, None

    def _past(self) -> Iterator[prompt.PastStep]:
        for step in self.turn.chain:
            if step.role == thread.FORK:
                continue
            body = step.body
            if "raw" in step.payload and "body" not in step.payload:
                quoted = body.strip()
                self._quotes[quoted] = (step.payload["raw"], step.payload["body_at"] + body.index(quoted))
            yield prompt.PastStep(step.number, step.role, step.output, body, step.agent)

    def asking(self, agent: str) -> None:
        note = {
            "head": self.turn.chain.head,
            "role": self.role,
            "agent": agent,
            "started_at": self._started,
            "session": self._note.get("session"),
        }
        self._write(note, event=("step_started", {"role": self.role, "agent": agent, "number": self.number}))

    def sign(self, kind: str, body: Mapping[str, Any]) -> None:
        """A live sign of the agent. Its session and its child are noted at once, so that whoever takes
        the thread up after a crash can resume the one and end the other."""
        event = (kind, self._mask.value(dict(body)))
        if kind in ("session", "process"):
            self._write(
                {**self._note, **_filled({key: body.get(key) for key in ("session", "run")})}, event=event
            )
            return
        draft = self._store.draft()
        draft.event(self.thread, *event)
        draft.commit()

    # -- the answer --

    def answered(self, reply: protocol.Reply) -> Answer:
        """Write the answer down before anything is done with it."""
        text = self._mask.text(reply.text)
        self._write(
            {
                **self._note,
                "raw": text,
                "session": reply.session or self._note.get("session"),
                "usage": _usage(reply.usage),
                "detail": self._mask.value(_detail(reply)),
                "completed_at": self._store.now(),
                "step": reply.step,
            }
        )
        return Answer(text, self._note.get("session"), reply.step)

    def add_usage(self, usage: Mapping[str, Any]) -> None:
        """What the extract model used belongs to the step it was asked for."""
        known = self._note.get("usage") or {}
        added = {
            "input_tokens": usage.get("prompt_tokens", 0),
            "output_tokens": usage.get("completion_tokens", 0),
        }
        self._note["usage"] = known | {key: known.get(key, 0) + value for key, value in added.items()}

    def failed(self, error: str, cause: RolecallError | None = None) -> None:
        """Turn the note into an attempt node: nothing the agent gave is lost."""
        note, draft = self._note, self._store.draft()
        raw = note.get("raw")
        usage = note.get("usage")
        session = note.get("session")
        ending = ""
        if isinstance(cause, AgentError):
            raw, ending, session = cause.text or raw, cause.ending, cause.session or session
            usage = _usage(cause.usage) or usage
        fields = {
            "start": self.turn.chain.start.id,
            "head": self.turn.chain.head,
            "role": self.role,
            "agent": note.get("agent", ""),
            "state": "failed",
            "error": self._mask.text(error),
            "ending": ending or None,
            "started_at": self._started,
            "completed_at": self._store.now(),
            "cwd": self.workdir,
            "edge_prompt": self._mask.text(self._way.prompt) or None,
            "raw": draft.put_text(self._mask.text(raw)) if raw else None,
            "prompt": self._put_prompt(draft),
            "detail": draft.put_as(DETAIL_SCHEMA, note["detail"]) if note.get("detail") else None,
            "session": session,
            "usage": usage,
            "previous": self._ref.target if self._ref else None,
            "number": self.number,
        }
        attempt = draft.put_as(ATTEMPT_SCHEMA, _filled(fields))
        kept = {"session": session} if session else {}
        draft.event(
            self.thread, "attempt_failed", {"attempt": attempt, "role": self.role, "error": fields["error"]}
        )
        draft.move(thread.attempt_name(self.thread), self._ref, attempt, kept)
        self._ref = draft.commit()[0]
        self._note = kept
        self.tries += 1
        self._started = self._store.now()

    # -- the step --

    def understood(self, found: Reply | Suspension) -> dict[str, Any]:
        if isinstance(found, Suspension):
            output = {"$status": SUSPEND, "reason": found.reason}
            return {"output": output, "schema": SUSPENSION_SCHEMA, "body": found.body}
        return {"output": dict(found.output), "body": found.body}

    def unreadable(self, error: ExtractError) -> dict[str, Any]:
        """A step that says its answer could not be read, for a moderator to decide about."""
        output = {"$status": ERROR, "reason": error.message}
        return {"output": output, "schema": ERROR_SCHEMA, "body": error.raw, "text": error.raw}

    def adopted(self, step: str) -> dict[str, Any]:
        """A step an external agent has put: taken only if it extends what we gave out."""
        payload = self._store.get(step).payload
        expected = {
            "start": self.turn.chain.start.id,
            "prev": self.turn.chain.head if self.turn.last else None,
            "role": self.role,
        }
        wrong = [
            f"{key} {payload.get(key)!r} instead of {value!r}"
            for key, value in expected.items()
            if payload.get(key) != value
        ]
        if wrong:
            raise AgentError(
                f"the agent returned a step that is not the one asked for: {'; '.join(wrong)}",
                ending="failed",
            )
        done = thread.Step(self._store, self._store.get(step))
        return {"step": step, "output": done.output, "body": done.body}

    def put_step(self, draft: Draft, found: Mapping[str, Any]) -> tuple[str, Route]:
        """Add the step to `draft`; its id and where the thread goes from it."""
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
            "agent": found.get("agent") or note.get("agent", ""),
            "raw": draft.put_text(raw) if raw else None,
            **_where_body(draft, raw, body),
            "prompt": self._put_prompt(draft),
            "edge_prompt": self._mask.text(self._way.prompt) or None,
            "detail": draft.put_as(DETAIL_SCHEMA, note["detail"]) if note.get("detail") else None,
            "session": note.get("session"),
            "usage": usage or None,
            "attempt": self._ref.target if self._ref else None,
            "started_at": self._started,
            "completed_at": now,
            "cwd": self.workdir,
            "totals": thread.add_totals(self._totals_with_attempts(), self.role, used),
        }
        return draft.put_as(STEP_SCHEMA, _filled(fields, keep=("prev",))), onward

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
        parts = [self._prompt_part(draft, self._mask.text(piece)) for piece in self._prompt.pieces]
        return draft.put_as(PROMPT_SCHEMA, {"parts": parts})

    def _prompt_part(self, draft: Draft, text: str) -> dict[str, Any]:
        """A piece of a prompt: short ones as they are, a report as a place in the answer it came from."""
        if len(text) <= _LITERAL:
            return {"literal": text}
        if text in self._quotes:
            raw, start = self._quotes[text]
            return {"text": raw, "from": start, "to": start + len(text)}
        return {"text": draft.put_text(text)}

    def _totals_with_attempts(self) -> dict[str, Any]:
        totals = dict(self.turn.totals)
        for attempt in self._attempts():
            ms = attempt.get("completed_at", 0) - attempt["started_at"]
            totals = thread.add_totals(
                totals, attempt["role"], thread.counted(attempt.get("usage"), ms=ms, steps=0)
            )
        return totals

    def _attempts(self) -> Iterator[dict[str, Any]]:
        node = self._ref.target if self._ref else None
        while node is not None:
            payload = self._store.get(node).payload
            yield payload
            node = payload.get("previous")

    def _write(self, note: dict[str, Any], event: tuple[str, Mapping[str, Any]] | None = None) -> None:
        self._note = _filled(note)
        draft = self._store.draft()
        draft.move(
            thread.attempt_name(self.thread), self._ref, self._ref.target if self._ref else None, self._note
        )
        if event is not None:
            draft.event(self.thread, *event)
        # A process that dies loses nothing of this; waiting for the disk is left to the step's commit.
        self._ref = draft.commit(durable=False)[0]


def _workdir(cwd: str, location: str | None) -> str:
    folder = os.path.join(cwd, os.path.expanduser(location)) if location else cwd
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


def _detail(reply: protocol.Reply) -> dict[str, Any] | None:
    """What the agent did besides answering; None when it only answered."""
    told = {"files": list(reply.files), "reason": reply.reason}
    if reply.ending != "completed":
        told["ending"] = reply.ending
    turns = [_turn(turn) for turn in reply.turns]
    return {"turns": turns, **_filled(told)} if turns or any(told.values()) else None


def _turn(turn: protocol.Turn) -> dict[str, Any]:
    calls = [
        {"name": call.name, "arguments": dict(call.arguments), "result": call.result}
        for call in turn.tool_calls
    ]
    return {"role": turn.role, "text": turn.text} | ({"tool_calls": calls} if calls else {})


def _usage(usage: protocol.Usage | None) -> dict[str, Any]:
    return {key: value for key, value in asdict(usage).items() if value} if usage else {}


def _filled(fields: Mapping[str, Any], keep: tuple[str, ...] = ()) -> dict[str, Any]:
    """Only what has a value; what has none is left out, so that a later field changes no id."""
    return {key: value for key, value in fields.items() if value not in (None, "", {}, []) or key in keep}
