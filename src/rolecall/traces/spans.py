"""Project threads onto spans. The projection reads the chain and changes nothing.

A thread is a span. Below it is a span for each attempt at a step, failed or not, and below each attempt are the agent's
turns and tool calls. A thread that plays a role of another thread is below the attempt that started it. The steps of a
group's members are below the step that joins them. A fork is a trace of its own, which links to the step that it
continues; a step that was taken over links to the original step. Tokens and costs appear only once, where an
agent was asked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from rolecall.agents.adapter_table import PROGRAMS
from rolecall.settings.mask import Mask
from rolecall.store.canonical import JsonObject
from rolecall.store.ids import thread_time
from rolecall.store.store import Store
from rolecall.threads.setup import HUMAN
from rolecall.threads.state import GROUP, Status, ThreadRef, read_members, read_note, read_thread
from rolecall.threads.thread import FORK, PERSON, Chain, Step, prompt_text, turns_of
from rolecall.threads.trace_ids import attempt_span, group_span, part_span, thread_span, trace_id
from rolecall.traces import conventions as names
from rolecall.workflow.route import status_of

Value = str | int | float | bool | Sequence[str]

_LONGEST = 20_000
"""How many characters of a text a span contains, because collectors refuse large messages."""
_LONGEST_ERROR = 400
_WITH_MODEL = frozenset({*PROGRAMS, "acp", "builtin"})
"""Adapters whose agents ask a model, so that each turn of such an agent is a model's answer."""
_WRONG = (Status.FAILED, Status.KILLED, Status.DISCARDED)


class Link(NamedTuple):
    trace: str
    span: str


class Span(NamedTuple):
    """A span. Its times are in milliseconds."""

    trace: str
    id: str
    parent: str
    name: str
    start: int
    end: int
    attributes: Mapping[str, Value]
    error: str | None = None
    links: Sequence[Link] = ()
    is_client: bool = False
    """Whether the span is a call of another service."""


class _Period(NamedTuple):
    start: int
    end: int


class Projection:
    """The spans of threads in a store. They contain prompts, answers and tool results only if `content` is true."""

    def __init__(self, store: Store, mask: Mask, *, content: bool = False) -> None:
        self._store = store
        self._mask = mask
        self._content = content
        self._places: dict[str, Link] = {}

    def thread(self, ref: ThreadRef) -> Iterator[Span]:
        """Yield the spans of a thread so far, and of the threads that play its roles."""
        if not ref.state.member:
            yield self.top(ref)
        seen = set[str]()
        for node in reversed(list(self._records(ref))):  # a child belongs to the first attempt that names it
            yield from self.record(ref, node)
            for child in self._threads_in(node):
                if child not in seen and (played := read_thread(self._store, child)):
                    seen.add(child)
                    yield from self.thread(played)
        for member in read_members(self._store, ref.id):  # members of a group that is not joined yet
            yield from self.thread(member)

    def top(self, ref: ThreadRef) -> Span:
        """Return the span of a whole thread so far."""
        state, start = ref.state, thread_time(ref.id)
        last = Chain(self._store, ref.head).last
        ends = [self._store.get(node).payload.get("completed_at", start) for node in self._pending(ref)]
        totals = last.payload["totals"] if last else {}
        attributes = {
            names.OPERATION: names.INVOKE_WORKFLOW,
            names.WORKFLOW: state.name,
            names.CONVERSATION: ref.id,
            names.ERROR: state.status.value if state.status in _WRONG else "",
            "rolecall.thread": ref.id,
            "rolecall.workflow": state.workflow,
            "rolecall.status": state.status.value,
            "rolecall.steps": last.number if last else 0,
            "rolecall.total.tokens": totals.get("tokens", 0),
            "rolecall.total.cost": totals.get("cost", 0.0),
            "rolecall.title": state.title if self._content else "",
        }
        parent = self._find_caller(ref) if state.parent else ""
        fork = self._link_to_step(state.forked_thread, state.forked_from)
        return self._make(
            Link(self._place(ref).trace, thread_span(ref.id)),
            parent,
            f"{names.INVOKE_WORKFLOW} {state.name}",
            _Period(start, max(start, last.payload["completed_at"] if last else start, *ends)),
            attributes,
            error=state.reason or state.status.value if state.status in _WRONG else None,
            links=[fork] if fork else [],
        )

    def record(self, ref: ThreadRef, node: str) -> Iterator[Span]:
        """Yield the spans of one of the thread's steps or failed attempts, given its id."""
        known = self._store.get(node)
        step = Step(self._store, known) if "prev" in known.payload else None
        fields = step.payload if step else known.payload
        role, agent, output = fields["role"], fields["agent"], step.output if step else {}
        if role == FORK:
            return
        place = self._place(ref)
        span = Link(place.trace, _span_of(ref.id, node, fields))
        period = _Period(fields["started_at"], fields.get("completed_at", fields["started_at"]))
        tries = sum(1 for _ in self._attempts(fields.get("attempt" if step else "previous")))
        attributes: dict[str, Value | None] = {
            names.AGENT: role,
            names.CONVERSATION: fields.get("session") or ref.id,
            "rolecall.thread": ref.id,
            "rolecall.step": step.number if step else fields.get("number"),
            "rolecall.id": node,
            "rolecall.agent": agent,
            "rolecall.attempt": tries + 1,
            "rolecall.status": status_of(output),
            "rolecall.reused": bool(step and step.reused),
            "rolecall.member": ref.state.member,
        }
        if role == PERSON or agent == HUMAN:
            role = output.get("role", role) if role == PERSON else role
            before = self._store.follow(fields["prev"]) if fields["prev"] else None
            asked = Step(self._store, before).payload["completed_at"] if before else thread_time(ref.id)
            attributes |= {names.AGENT: role, names.OPERATION: names.HUMAN}
            attributes |= {"rolecall.answer": self._write(output)} if self._content else {}
            yield self._make(
                span, place.span, f"{names.HUMAN} {role}", _Period(asked, period.end), attributes
            )
            return
        if agent == GROUP:
            attributes |= {names.OPERATION: names.INVOKE_WORKFLOW, names.WORKFLOW: role}
            attributes["rolecall.members"] = output.get("count")
            yield self._make(span, place.span, f"{names.INVOKE_WORKFLOW} {role}", period, attributes)
            return

        adapter, model, provider = _identify(ref, role, agent, step)
        has_model = adapter in _WITH_MODEL
        usage = {} if fields.get("children") else fields.get("usage") or {}
        turns, detail = turns_of(self._store, fields.get("detail")), step.detail if step else {}
        ending = detail.get("ending", "completed" if step else "")
        finish = names.FINISHES.get(ending, names.OTHER_FINISH)
        common = {names.PROVIDER: provider, names.MODEL: model}
        attributes |= {
            **common,
            names.OPERATION: names.INVOKE_AGENT,
            names.AGENT_VERSION: step.parts.version if step and step.parts else "",
            names.INPUT_TOKENS: usage.get("input_tokens"),
            names.OUTPUT_TOKENS: usage.get("output_tokens"),
            names.CACHED_TOKENS: usage.get("cached_tokens"),
            names.FINISH_REASONS: [finish] if has_model and ending in names.FINISHES else None,
            names.ERROR: None if step else fields.get("ending") or names.OTHER_ERROR,
            "rolecall.cost": usage.get("cost"),
        }
        if self._content:
            asked_for, raw = fields.get("prompt"), fields.get("raw")
            said = step.raw if step else self._store.get(raw).payload if raw else ""
            prompt = prompt_text(self._store, asked_for) if asked_for else ""
            attributes[names.INPUT] = self._write([_message("user", prompt)]) if prompt else None
            attributes[names.OUTPUT] = (
                self._write([_message("assistant", said, finish=finish)]) if said else None
            )
            attributes["rolecall.output"] = self._write(output) if step else None
        taken = self._link_to_step(step.reused.thread, step.reused.step) if step and step.reused else None
        yield self._make(
            span,
            place.span,
            f"{names.INVOKE_AGENT} {role}",
            period,
            attributes,
            error=None if step else fields.get("error") or "failed",
            links=[taken] if taken else [],
        )
        shared = {key: attributes[key] for key in (names.AGENT, names.CONVERSATION, "rolecall.thread")}
        yield from self._turns(span, period, turns, finish, {**shared, **common} if has_model else {}, shared)

    # -- inside an attempt --

    def _turns(
        self,
        span: Link,
        period: _Period,
        turns: Sequence[JsonObject],
        finish: str,
        of_chat: Mapping[str, Value | None],
        of_tools: Mapping[str, Value | None],
    ) -> Iterator[Span]:
        """Yield the spans of an agent's turns, if it asks a model, and of the tool calls in them."""
        answers = [turn for turn in turns if turn["role"] == "assistant"]
        if not answers:
            return
        calls = [turn["tool_calls"] for turn in answers]
        flags = {} if _are_timed(calls) else {"rolecall.estimated": True}
        for number, (turn, (asked, called)) in enumerate(zip(answers, _time(calls, period), strict=True), 1):
            if of_chat:
                model = of_chat[names.MODEL]
                attributes = {names.OPERATION: names.CHAT, **of_chat, **flags}
                if self._content:
                    parts = [
                        {"type": "tool_call", "name": call["name"], "arguments": call["arguments"]}
                        for call in turn["tool_calls"]
                    ]
                    why = names.TOOL_CALL_FINISH if parts else finish
                    message = _message("assistant", turn["text"], parts, finish=why)
                    attributes[names.OUTPUT] = self._write([message])
                yield self._make(
                    Link(span.trace, part_span(span.span, f"turn {number}")),
                    span.span,
                    f"{names.CHAT} {model}" if model else names.CHAT,
                    asked,
                    attributes,
                    is_client=True,
                )
            for place, (call, when) in enumerate(zip(turn["tool_calls"], called, strict=True), 1):
                attributes = {names.OPERATION: names.EXECUTE_TOOL, names.TOOL: call["name"]}
                attributes |= {**of_tools, **flags}
                if self._content:
                    attributes |= {names.TOOL_ARGUMENTS: self._write(call["arguments"])}
                    attributes |= {names.TOOL_RESULT: self._cut(call["result"])}
                yield self._make(
                    Link(span.trace, part_span(span.span, f"turn {number} call {place}")),
                    span.span,
                    f"{names.EXECUTE_TOOL} {call['name']}",
                    when,
                    attributes,
                )

    def _make(
        self,
        span: Link,
        parent: str,
        name: str,
        period: _Period,
        attributes: Mapping[str, Value | None],
        *,
        error: str | None = None,
        links: Sequence[Link] = (),
        is_client: bool = False,
    ) -> Span:
        """Return a span whose attributes all have a value and contain no secret."""
        kept = {
            key: self._mask.value(value) for key, value in attributes.items() if value not in (None, "", 0)
        }
        wrong = None if error is None else self._mask.text(error)[:_LONGEST_ERROR]
        end, text = max(period.start, period.end), self._mask.text(name)
        return Span(span.trace, span.span, parent, text, period.start, end, kept, wrong, links, is_client)

    def _write(self, value: Any) -> str:
        return json.dumps(self._cut(value), ensure_ascii=False)

    def _cut(self, value: Any) -> Any:
        """Mask each text before cutting it, because half a secret would not be recognised."""
        if isinstance(value, str):
            return self._mask.text(value)[:_LONGEST]
        if isinstance(value, Mapping):
            return {key: self._cut(item) for key, item in value.items()}
        return [self._cut(item) for item in value] if isinstance(value, (list, tuple)) else value

    # -- where a thread belongs --

    def _place(self, ref: ThreadRef) -> Link:
        """Return the trace of a thread, and the span below which its steps are."""
        if ref.id not in self._places:
            parent, span = ref.state.parent, thread_span(ref.id)
            member = Chain(self._store, ref.head).start.member if ref.state.member else None
            if parent and member:
                span = group_span(parent, member.group.id)
            self._places[ref.id] = Link(trace_id(self._store, ref.id, parent), span)
        return self._places[ref.id]

    def _find_caller(self, ref: ThreadRef) -> str:
        """Return the id of the span of the first attempt that names a thread, or '' if the thread's parent is gone."""
        parent = read_thread(self._store, ref.state.parent or "")
        if parent is None:
            return ""
        note, found = read_note(self._store, parent.id), ""
        if note and note.note.session == ref.id:
            found = attempt_span(parent.id, note.note.head, note.attempt)
        for node in self._records(parent):
            if ref.id in self._threads_in(node):
                known = self._store.get(node)
                fields = Step(self._store, known).payload if "prev" in known.payload else known.payload
                found = _span_of(parent.id, node, fields)
            elif found:
                break
        return found

    def _link_to_step(self, thread: str | None, node: str | None) -> Link | None:
        """Return a link to a step, or to the start of a thread. If the thread was forked after that step, the link
        leads to the thread from which it was forked."""
        owner = read_thread(self._store, thread) if thread else None
        if owner is None or node is None or not self._store.has(node):
            return None
        while owner.state.forked_thread and all(step.id != node for step in self._own_steps(owner)):
            before = read_thread(self._store, owner.state.forked_thread)
            if before is None:
                break
            owner = before
        known = self._store.get(node)
        if "prev" not in known.payload:
            return Link(self._place(owner).trace, thread_span(owner.id))
        return Link(self._place(owner).trace, _span_of(owner.id, node, Step(self._store, known).payload))

    # -- the records of a thread --

    def _records(self, ref: ThreadRef) -> Iterator[str]:
        """Yield the ids of the thread's own steps and failed attempts, newest first."""
        yield from self._pending(ref)
        for step in self._own_steps(ref):
            yield step.id
            yield from self._attempts(step.payload.get("attempt"))

    def _own_steps(self, ref: ThreadRef) -> Iterator[Step]:
        """Yield the thread's steps without those that a fork shares with its source, newest first."""
        for step in Chain(self._store, ref.head):
            if step.id == ref.state.forked_from:
                return
            yield step

    def _pending(self, ref: ThreadRef) -> Iterator[str]:
        note = read_note(self._store, ref.id)
        return self._attempts(note.attempt if note else None)

    def _attempts(self, node: str | None) -> Iterator[str]:
        while node is not None:
            yield node
            node = self._store.get(node).payload.get("previous")

    def _threads_in(self, node: str) -> list[str]:
        known = self._store.get(node)
        if "prev" not in known.payload:
            return list(known.payload.get("children", ()))
        step = Step(self._store, known)
        members = step.output.get("members", ()) if step.agent == GROUP else ()
        return [*step.payload.get("children", ()), *(one["id"] for one in members if one.get("id"))]


def _span_of(thread: str, node: str, fields: JsonObject) -> str:
    if "prev" not in fields:
        return attempt_span(thread, fields["head"], fields.get("previous"))
    if "group" in fields:
        return group_span(thread, fields["group"])
    if fields["role"] == PERSON:  # more failed attempts might follow the message
        return part_span(thread_span(thread), node)
    return attempt_span(thread, fields["prev"] or fields["start"], fields.get("attempt"))


def _identify(ref: ThreadRef, role: str, agent: str, step: Step | None) -> tuple[str, str, str]:
    """Return the adapter, model and provider of the agent that was asked, as far as they are recorded."""
    bound = ref.state.agents.get(role, {})
    adapter, _, argument = str(bound.get("spec") or agent).partition(":")
    words = re.match(r"(?:.*\s)?model=(\S+)|([^\s=]+)$", argument)
    model = str(bound.get("options", {}).get("model") or (words and (words[1] or words[2])) or "")
    service, _, _ = model.rpartition("/") if adapter == "builtin" else ("", "", model)
    if step is not None and step.parts is not None:
        adapter, _, model = step.parts.agent.partition(" ")[0].partition(":")
    provider = names.PROVIDERS.get(adapter) or service or adapter
    return adapter, model if adapter in _WITH_MODEL else "", provider


def _are_timed(calls: Sequence[Sequence[JsonObject]]) -> bool:
    return all("started_at" in call for turn in calls for call in turn) and any(calls)


def _time(calls: Sequence[Sequence[JsonObject]], period: _Period) -> Iterator[tuple[_Period, list[_Period]]]:
    """Yield when the model was asked and when each tool ran, turn by turn. Between two calls, the agent was waiting for
    its model. Older records have no times, so their turns are spread evenly over the attempt."""
    start, end = period
    if not _are_timed(calls):
        slots = sum(1 + len(turn) for turn in calls)
        edges = [start + (end - start) * at // slots for at in range(slots + 1)]
        at = 0
        for turn in calls:
            asked, *called = (_Period(*edges[place : place + 2]) for place in range(at, at + 1 + len(turn)))
            at += 1 + len(turn)
            yield asked, called
        return
    begins = [min((call["started_at"] for call in turn), default=None) for turn in calls]
    now = start
    for place, turn in enumerate(calls):
        upcoming = next((begin for begin in begins[place:] if begin is not None), end)
        asked = _Period(now, min(max(now, upcoming), end))
        called = [
            _Period(max(start, call["started_at"]), min(end, call.get("ended_at", end))) for call in turn
        ]
        now = max([asked.end, *(one.end for one in called)])
        yield asked, called


def _message(
    role: str, text: str, parts: Sequence[JsonObject] = (), *, finish: str | None = None
) -> JsonObject:
    said = [{"type": "text", "content": text}] if text else []
    return {"role": role, "parts": [*said, *parts], **({"finish_reason": finish} if finish else {})}
